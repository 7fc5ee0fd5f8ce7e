// sim_graph.c - computes a graph on a device: a snapshot whose tensors point into private memory,
// run by the CPU engine.
//
// The snapshot copies every tensor that a computed node is or reads. So the program may change the
// graph, and place its tensors elsewhere, while the work is queued. A graph plan and pieces of
// queued work share the snapshot, which never changes.
#include <string.h>

#include "base/hash.h"
#include "base/mem.h"
#include "base/vec.h"
#include "cpu/cpu.h"
#include "ggml-cpu.h"
#include "sim/sim_device.h"
#include "tensor/tensor.h"

struct gb_sim_graph {
    atomic_int refs;
    struct gb_sim_device * device; // a reference
    struct ggml_tensor * shadows; // owned
    struct gb_cpu_plan * plan; // owned; its tensors are the shadows
    void * work; // owned; the plan's
    size_t n_nodes; // nodes that compute
    struct ggml_tensor * faulty; // the shadow whose computation fails by parameter fail_op; NULL: none
};

// State while a snapshot is taken.
struct snapshot {
    struct gb_ptrmap ids; // original -> index in originals and in shadows
    GB_VEC(struct ggml_tensor *) originals; // by id
    GB_VEC(struct ggml_tensor *) nodes; // shadows to compute, in order
};

// ----------------------------------------------------------------------------------------------------------- op filter

// True if a parameter excludes the operator, or the function of a UNARY node.
static bool is_refused(const struct gb_sim_params * params, const struct ggml_tensor * node) {
    if (node->op >= GGML_OP_COUNT || node->op != GGML_OP_UNARY) {
        return node->op < GGML_OP_COUNT && params->refuses[node->op];
    }
    const int unary = gb_op_param_i32(node, 0);
    return params->refuses[GGML_OP_UNARY] ||
           (unary >= 0 && unary < GGML_UNARY_OP_COUNT && params->refuses_unary[unary]);
}

// Views compute nothing, so every device supports them.
const char * gb_sim_unsupported_reason(const struct gb_sim_device * device, const struct ggml_tensor * node) {
    if (node == NULL) {
        return "there is no node";
    }
    if (!gb_op_computes(node->op)) {
        return NULL;
    }
    if (gb_op_is_custom(node->op)) {
        return "custom operators read host memory";
    }
    if (is_refused(&device->params, node)) {
        return "the device was made without this operator";
    }
    return ggml_cpu_unsupported_reason(node);
}

// ------------------------------------------------------------------------------------------------------------ snapshot

// Gives a tensor the next index unless it has one. False: no memory. NULL is allowed.
static bool add_original(struct snapshot * s, struct ggml_tensor * t) {
    return t == NULL || gb_ptrmap_get(&s->ids, t) != GB_PTRMAP_ABSENT ||
           (gb_ptrmap_set(&s->ids, t, (int64_t) s->originals.n) && gb_vec_push(&s->originals, t));
}

// UNSUPPORTED with the reason if the device cannot compute the node.
static enum ggml_status check_node(const struct gb_sim_device * device, const struct ggml_tensor * node) {
    const char * reason = gb_sim_unsupported_reason(device, node);
    char text[GB_ERROR_SIZE / 2];
    GB_FAIL_IF(reason != NULL, GGML_STATUS_UNSUPPORTED, "%s: cannot compute %s: %s", device->name,
        gb_describe_node(node, text, sizeof(text)), reason);
    return GGML_STATUS_SUCCESS;
}

// Lists the nodes that compute, and all tensors that they are or read. Other tensors of the graph
// are not copied.
static enum ggml_status collect(struct snapshot * s, struct gb_sim_device * device, const struct ggml_cgraph * cgraph) {
    GB_TRY(gb_tensors_check(cgraph->nodes, cgraph->n_nodes, device->name));
    for (int i = 0; i < cgraph->n_nodes; i++) {
        struct ggml_tensor * node = cgraph->nodes[i];
        GB_TRY(check_node(device, node));
        if (!gb_op_computes(node->op)) {
            continue;
        }
        bool ok = gb_vec_push(&s->nodes, node) && add_original(s, node);
        for (int j = 0; j < GGML_MAX_SRC; j++) {
            ok = ok && add_original(s, node->src[j]);
        }
        if (!ok) {
            return GGML_STATUS_ALLOC_FAILED;
        }
    }
    return GGML_STATUS_SUCCESS;
}

// Every tensor that is computed or read must be in this device's memory.
static enum ggml_status check_memory(const struct gb_sim_device * device, const struct ggml_tensor * t) {
    char text[GB_DESCRIBE_SIZE];
    GB_FAIL_IF(t->data == NULL, GGML_STATUS_INVALID_STATE, "%s: tensor %s is not allocated", device->name,
        gb_describe(t, text));
    const ggml_backend_buffer_t buffer = gb_root(t)->buffer;
    GB_FAIL_IF(gb_sim_device_of(t) != device, GGML_STATUS_INVALID_ARGUMENT,
        "%s: tensor %s is in %s memory, not in this device's", device->name, gb_describe(t, text),
        buffer != NULL ? ggml_backend_buffer_name(buffer) : "host");
    return GGML_STATUS_SUCCESS;
}

// A copy of the tensor for the engine. It points into private memory, is not a view, and has no
// buffer.
static enum ggml_status make_shadow(struct gb_sim_graph * graph, const struct snapshot * s, size_t id) {
    const struct ggml_tensor * t = s->originals.data[id];
    struct ggml_tensor * shadow = &graph->shadows[id];
    GB_TRY(check_memory(graph->device, t));
    *shadow = *t;
    shadow->buffer = NULL;
    shadow->view_src = NULL;
    shadow->grad = NULL;
    shadow->extra = NULL;
    shadow->data = gb_sim_translate(t, 0, ggml_nbytes(t));
    // The engine may leave out the same results as on the host.
    gb_tensor_set_surely_read_once(shadow, ggml_backend_may_leave_out(t));
    if (shadow->data == NULL) {
        return ggml_last_status();
    }
    // A tensor that is only read may have sources without a shadow, which the engine does not
    // follow.
    for (int j = 0; j < GGML_MAX_SRC; j++) {
        const int64_t src = t->src[j] != NULL ? gb_ptrmap_get(&s->ids, t->src[j]) : GB_PTRMAP_ABSENT;
        shadow->src[j] = src != GB_PTRMAP_ABSENT ? &graph->shadows[src] : NULL;
    }
    return GGML_STATUS_SUCCESS;
}

// Replaces the nodes by their shadows and plans them for the CPU engine, as nodes of a graph of
// this size.
static enum ggml_status make_plan(struct gb_sim_graph * graph, struct snapshot * s, int size) {
    const struct gb_sim_params * params = &graph->device->params;
    graph->n_nodes = s->nodes.n;
    for (size_t i = 0; i < s->nodes.n; i++) {
        s->nodes.data[i] = &graph->shadows[gb_ptrmap_get(&s->ids, s->nodes.data[i])];
        if (graph->faulty == NULL && gb_sim_op_has_name(s->nodes.data[i], params->fail_op)) {
            graph->faulty = s->nodes.data[i];
        }
    }
    GB_FAIL_IF(s->nodes.n > INT32_MAX, GGML_STATUS_INVALID_ARGUMENT, "%s: too many nodes", graph->device->name);
    const bool trust = gb_trust_tensors(true); // the shadows are copies of tensors that collect() has checked
    const struct ggml_cgraph list = { .size = size, .n_nodes = (int) s->nodes.n, .nodes = s->nodes.data };
    graph->plan = gb_cpu_plan_of_graph(&list, params->n_threads);
    gb_trust_tensors(trust);
    if (graph->plan == NULL) {
        return ggml_last_status();
    }
    graph->work = gb_malloc(gb_cpu_plan_work_size(graph->plan));
    return graph->work != NULL ? GGML_STATUS_SUCCESS : GGML_STATUS_ALLOC_FAILED;
}

// Collects first, because the shadows are one array whose size must be known.
static enum ggml_status take_snapshot(struct gb_sim_graph * graph, struct snapshot * s,
    const struct ggml_cgraph * cgraph) {
    GB_TRY(collect(s, graph->device, cgraph));
    graph->shadows = gb_calloc(s->originals.n, sizeof(*graph->shadows));
    if (graph->shadows == NULL) {
        return GGML_STATUS_ALLOC_FAILED;
    }
    for (size_t id = 0; id < s->originals.n; id++) {
        GB_TRY(make_shadow(graph, s, id));
    }
    return make_plan(graph, s, cgraph->size);
}

struct gb_sim_graph * gb_sim_graph_new(struct gb_sim_device * device, const struct ggml_cgraph * cgraph) {
    struct gb_sim_graph * graph = GB_NEW(struct gb_sim_graph);
    if (graph == NULL) {
        return NULL;
    }
    atomic_init(&graph->refs, 1);
    graph->device = gb_sim_device_ref(device);
    struct snapshot s = { 0 };
    const enum ggml_status status = take_snapshot(graph, &s, cgraph);
    gb_ptrmap_free(&s.ids);
    gb_vec_free(&s.originals);
    gb_vec_free(&s.nodes);
    if (status != GGML_STATUS_SUCCESS) {
        gb_sim_graph_unref(graph);
        return NULL;
    }
    return graph;
}

// The queue thread never ends the device here, because a thread that waits for queued work has a
// reference.
void gb_sim_graph_unref(struct gb_sim_graph * graph) {
    if (graph == NULL || atomic_fetch_sub(&graph->refs, 1) > 1) {
        return;
    }
    gb_cpu_plan_free(graph->plan);
    gb_free(graph->work);
    gb_free(graph->shadows);
    gb_sim_device_unref(graph->device);
    gb_free(graph);
}

// ------------------------------------------------------------------------------------------------------------- running

// One queued computation of a snapshot.
struct graph_work {
    struct gb_sim_work work; // first
    struct gb_sim_graph * graph; // a reference
};

// One run of the plan on the queue thread (and the device's pool), unless the parameter fail_op makes it fail.
static enum ggml_status run_graph(struct gb_sim_work * work) {
    struct gb_sim_graph * graph = ((struct graph_work *) work)->graph;
    if (graph->faulty != NULL) {
        char text[GB_ERROR_SIZE / 2];
        return gb_fail(GGML_STATUS_DEVICE_ERROR, "%s: %s fails, as parameter fail_op says", graph->device->name,
            gb_describe_node(graph->faulty, text, sizeof(text)));
    }
    const struct gb_cpu_run run = { gb_kernels_default(), graph->work, gb_sim_is_cancelled, graph->device, NULL };
    if (run.kernels == NULL) {
        return ggml_last_status();
    }
    return gb_cpu_plan_run(graph->plan, graph->device->pool, &run);
}

static void free_graph_work(struct gb_sim_device * device, struct gb_sim_work * work) {
    struct gb_sim_graph * graph = ((struct graph_work *) work)->graph;
    gb_sim_work_free(device, work);
    gb_sim_graph_unref(graph);
}

// The piece's delay is the sum of the delays of the graph and of its nodes.
enum ggml_status gb_sim_graph_queue(struct gb_sim_graph * graph) {
    struct graph_work * w = gb_sim_work_new(graph->device, sizeof(*w));
    if (w == NULL) {
        return GGML_STATUS_ALLOC_FAILED;
    }
    atomic_fetch_add(&graph->refs, 1);
    w->graph = graph;

    const struct gb_sim_params * params = &graph->device->params;
    const double delay = (double) params->delay_ns + (double) params->op_delay_ns * (double) graph->n_nodes;
    w->work = (struct gb_sim_work){
        .run = run_graph, .free = free_graph_work, .delay_ns = delay < 1e18 ? (int64_t) delay : (int64_t) 1e18
    };
    return gb_sim_submit(graph->device, &w->work);
}
