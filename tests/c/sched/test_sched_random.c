// test_sched_random.c - random graphs on random sets of devices, against the same graphs on one CPU
// with separate memory for each tensor.
// A graph is first a list of numbers (struct step). The same graph is built from it twice: in a
// context with data, computed by ggml_graph_compute (the reference), and in a context without data,
// run by schedulers. After each of a series of random actions, results and all leafs must have the
// same bits, and the tensors' structs must be unchanged. Before each run a simulation of the plan
// writes the name of each storage over its bytes in the arenas. At each read it checks that the
// name is still there.
//
//     test_sched_random [--count N] [--seed S] [--mutate] [--verbose]      stops at a failure and prints its seed
//     GGML_TEST_RANDOM_GRAPHS=N                                 the same as --count N
#include "base/mem.h"
#include "ggml-alloc.h"
#include "ggml-backend.h"
#include "sched/plan.h"
#include "test.h"
#include "test_plan_faults.h"
#include "test_queue.h"
#include "tensor/marks.h"

enum { LEAFS = 10, VALUES = 96, STEPS = 64, DEVICES = 6, GRAPHS = 2, RESULTS = 24 };

enum kind { // operations of a step
    ADD,
    MUL,
    MUL_MAT,
    TANH,
    SCALE,
    SOFT_MAX,
    SCALE_INPLACE,
    RELU_INPLACE,
    ADD_INPLACE,
    SOFT_MAX_INPLACE,
    ROWS,
    ROWS_RELU,
    ROWS_MUL_MAT,
    CACHE_WRITE,
    CACHE_READ,
    TRANSPOSE,
    CAST,
    GET_ROWS,
    SET_INPLACE,
    ACC,
    RESHAPE,
    MUL_MAT_ID,
    RMS_NORM,
    SET_ROWS,
    KINDS
};

// D x D; D x r rows of one; F16; the cache, D x 3D; D indices; ids of experts
enum shape { MATRIX, PART, HALF, CACHE, INDEX, IDS, SHAPES };

struct step {
    enum kind kind;
    int a, b, c; // values
    int rows, at;
    float f;
    int user; // device that the user sets; -1: none
    bool output;
};

struct recipe {
    int d, n_steps, n_values;
    struct step steps[STEPS];
    enum shape shape[VALUES];
    int rows[VALUES];
};

struct leaf {
    enum shape shape;
    int device; // its device; -1: by the scheduler, -2: plain host memory
    bool weight, input;
};

struct built {
    struct ggml_cgraph * graph;
    struct ggml_tensor * value[VALUES];
};

struct scene {
    int d, n_devices;
    struct leaf leafs[LEAFS];
    struct recipe recipes[GRAPHS];

    ggml_backend_t devices[DEVICES];
    ggml_backend_buffer_t buffers[LEAFS];
    ggml_backend_buffer_t results[RESULTS]; // of nodes in the user's memory
    int n_results;
    ggml_backend_buffer_t packed; // one for all leafs on the last device; NULL: each leaf has its own
    size_t packed_end;
    struct ggml_context * reference_ctx;
    struct ggml_context * ctx;
    struct ggml_context * host_ctx;
    struct ggml_tensor * reference_leafs[LEAFS];
    struct ggml_tensor * placed_leafs[LEAFS];
    struct built reference[GRAPHS], graphs[GRAPHS];
    ggml_backend_sched_t scheds[2];
    int n_copies[2];
    bool little_memory; // some device has a limit, so running out of memory is allowed
    bool is_out;
    bool has_queues; // devices of test_queue.h, which cannot report that memory ran out
};

static bool verbose;

static int below(int n) { return (int) test_random_int(0, n - 1); }

static bool chance(int one_in) { return below(one_in) == 0; }

// ------------------------------------------------------------------------------------------------------------- recipes

// A random value of that shape; -1 if none exists.
static int pick(const struct recipe * r, enum shape shape, int rows) {
    int found = -1, n = 0;
    for (int i = 0; i < r->n_values; i++) {
        if (r->shape[i] == shape && (rows < 0 || r->rows[i] == rows) && below(++n) == 0) {
            found = i;
        }
    }
    return found;
}

// Mostly recent values, for long chains and short lifetimes.
static int pick_matrix(const struct recipe * r) {
    for (int k = 0; k < 6; k++) {
        const int i = r->n_values - 1 - below(6);
        if (i >= 0 && r->shape[i] == MATRIX) {
            return i;
        }
    }
    return pick(r, MATRIX, -1);
}

static void add_value(struct recipe * r, enum shape shape, int rows) {
    r->shape[r->n_values] = shape;
    r->rows[r->n_values++] = rows;
}

static void random_step(struct recipe * r) {
    struct step s = {
        .kind = (enum kind) below(KINDS), .a = pick_matrix(r), .b = pick_matrix(r), .c = pick_matrix(r), .user = -1
    };
    enum shape shape = MATRIX;
    s.rows = 1 + below(r->d);
    s.at = below(r->d - s.rows + 1);
    s.f = test_random_float(-1.5f, 1.5f);
    s.output = chance(20);
    switch (s.kind) {
        case ROWS: shape = PART; break;
        case ROWS_RELU:
            s.a = pick(r, PART, -1);
            shape = PART;
            break;
        case ROWS_MUL_MAT:
            s.b = pick(r, PART, -1);
            shape = PART;
            break;
        case SET_INPLACE:
        case ACC: s.b = pick(r, PART, -1); break;
        case CACHE_WRITE:
            s.b = pick(r, CACHE, -1);
            s.at = below(2 * r->d + 1);
            break;
        case CACHE_READ:
            s.a = pick(r, CACHE, -1);
            s.at = below(2 * r->d + 1);
            break;
        case GET_ROWS: s.b = pick(r, INDEX, -1); break;
        case MUL_MAT_ID: s.c = pick(r, IDS, -1); break;
        case SET_ROWS:
            s.b = pick(r, CACHE, -1);
            s.c = pick(r, INDEX, -1);
            shape = CACHE;
            break;
        default: break;
    }
    if (s.a < 0 || s.b < 0 || s.c < 0 || r->n_values + 2 >= VALUES) {
        return;
    }
    if (shape == PART && s.kind != ROWS) {
        s.rows = r->rows[s.kind == ROWS_RELU ? s.a : s.b];
    }
    if (s.kind == SET_INPLACE || s.kind == ACC) {
        s.rows = r->rows[s.b];
        s.at = below(r->d - s.rows + 1);
    }
    s.user = chance(8) ? below(DEVICES) : -1;
    r->steps[r->n_steps++] = s;
    add_value(r, shape, shape == PART ? s.rows : 0);
}

static void make_recipe(struct recipe * r, const struct scene * w, int n_steps) {
    r->d = w->d;
    for (int i = 0; i < LEAFS; i++) {
        add_value(r, w->leafs[i].shape, 0);
    }
    for (int i = 0; i < n_steps; i++) {
        random_step(r);
    }
}

// ------------------------------------------------------------------------------------------------------------ building

static struct ggml_tensor * new_leaf(struct ggml_context * ctx, enum shape shape, int d) {
    switch (shape) {
        case CACHE: return ggml_new_tensor_2d(ctx, GGML_TYPE_F32, d, 3 * d);
        case INDEX: return ggml_new_tensor_1d(ctx, GGML_TYPE_I32, d);
        case IDS: return ggml_new_tensor_2d(ctx, GGML_TYPE_I32, 2, d);
        default: return ggml_new_tensor_2d(ctx, GGML_TYPE_F32, d, d);
    }
}

static struct ggml_tensor * rows_of(struct ggml_context * ctx, struct ggml_tensor * t, int rows, int at) {
    return ggml_view_2d(ctx, t, t->ne[0], rows, t->nb[1], (size_t) at * t->nb[1]);
}

static struct ggml_tensor * apply(struct ggml_context * ctx, const struct step * s, int d,
    struct ggml_tensor * const * v) {
    struct ggml_tensor *a = v[s->a], *b = v[s->b];
    switch (s->kind) {
        case ADD: return ggml_add(ctx, a, b);
        case MUL: return ggml_mul(ctx, a, b);
        case MUL_MAT: return ggml_mul_mat(ctx, a, b);
        case TANH: return ggml_tanh(ctx, a);
        case SCALE: return ggml_scale(ctx, a, s->f);
        case SOFT_MAX: return ggml_soft_max(ctx, a);
        case RMS_NORM: return ggml_rms_norm(ctx, a, 1e-5f);
        case SCALE_INPLACE: return ggml_scale_inplace(ctx, a, s->f);
        case RELU_INPLACE: return ggml_relu_inplace(ctx, a);
        case ADD_INPLACE: return ggml_add_inplace(ctx, a, b);
        case SOFT_MAX_INPLACE: return ggml_soft_max_inplace(ctx, a);
        case ROWS: return rows_of(ctx, a, s->rows, s->at);
        case ROWS_RELU: return ggml_relu(ctx, a);
        case ROWS_MUL_MAT: return ggml_mul_mat(ctx, a, b);
        case CACHE_WRITE: return ggml_cpy(ctx, a, rows_of(ctx, b, d, s->at));
        case CACHE_READ: return rows_of(ctx, a, d, s->at);
        case TRANSPOSE: return ggml_cont(ctx, ggml_transpose(ctx, a));
        case CAST: return ggml_cast(ctx, ggml_cast(ctx, a, GGML_TYPE_F16), GGML_TYPE_F32);
        case GET_ROWS: return ggml_get_rows(ctx, a, b);
        case SET_ROWS: return ggml_set_rows(ctx, b, a, v[s->c]);
        case SET_INPLACE: return ggml_set_2d_inplace(ctx, a, b, a->nb[1], (size_t) s->at * a->nb[1]);
        case ACC: return ggml_acc(ctx, a, b, a->nb[1], a->nb[2], a->nb[3], (size_t) s->at * a->nb[1]);
        case RESHAPE: return ggml_reshape_2d(ctx, ggml_reshape_1d(ctx, a, (int64_t) d * d), d, d);
        case MUL_MAT_ID: {
            struct ggml_tensor * experts[] = { a, b };
            return ggml_mul_mat_id(ctx, experts, 2, v[s->c], s->at % 2, a);
        }
        default: return NULL;
    }
}

// In the order of the steps, so that in-place effects have this order everywhere.
static bool build(struct ggml_context * ctx, const struct recipe * r, struct ggml_tensor * const * leafs,
    struct built * out) {
    out->graph = ggml_new_graph(ctx);
    memcpy(out->value, leafs, LEAFS * sizeof(*leafs));
    for (int i = 0; i < r->n_steps; i++) {
        struct ggml_tensor * t = apply(ctx, &r->steps[i], r->d, out->value);
        if (t == NULL || ggml_build_forward_expand(out->graph, t) != GGML_STATUS_SUCCESS) {
            return false;
        }
        if (r->steps[i].output) {
            ggml_set_output(t);
        }
        ggml_set_name(t, "");
        char name[32];
        snprintf(name, sizeof(name), "s%d", i);
        ggml_set_name(t, name);
        out->value[LEAFS + i] = t;
    }
    return true;
}

// ------------------------------------------------------------------------------------------------------------- devices

static ggml_backend_t random_device(int i, int d, bool * little_memory) {
    static const char * ops[] = { "add", "mul", "mul_mat", "unary", "scale", "soft_max", "cpy", "cont", "get_rows",
        "set", "acc", "mul_mat_id", "rms_norm", "dup", "set_rows" };
    char text[512];
    int n = snprintf(text, sizeof(text), "name=S%d,threads=1", i);
    if (chance(2)) {
        n += snprintf(text + n, sizeof(text) - (size_t) n, ",delay=%dus,copy_delay=%dus", below(3) * 60, below(3) * 40);
    }
    if (chance(4)) { // little more than the cache
        n += snprintf(text + n, sizeof(text) - (size_t) n, ",max=%d", 12 * d * d + 1024);
    }
    if (chance(8)) { // not enough to keep all copies
        n += snprintf(text + n, sizeof(text) - (size_t) n, ",mem=%d", (30 + below(30)) * d * d + 4096);
        *little_memory = true;
    }
    if (chance(3)) {
        n += snprintf(text + n, sizeof(text) - (size_t) n, ",align=%d", 16 << below(5));
    }
    if (chance(2)) {
        n += snprintf(text + n, sizeof(text) - (size_t) n, ",noops=");
        const int count = 1 + below(4);
        for (int k = 0; k < count; k++) {
            n += snprintf(text + n, sizeof(text) - (size_t) n, "%s%s", k ? "+" : "",
                ops[below((int) (sizeof(ops) / sizeof(ops[0])))]);
        }
    }
    if (verbose) {
        printf("  device SIM:%s\n", text);
    }
    char full[600];
    snprintf(full, sizeof(full), "SIM:%s", text);
    return ggml_backend_reg_init_backend_from_str(full);
}

static bool make_devices(struct scene * w) {
    const int n_sims = below(DEVICES); // 0 .. 5
    const int queues = below(3); // none, about half, or all of them have queues on shared memory
    for (int i = 0; i < n_sims; i++) {
        const bool queue = below(2) < queues;
        w->has_queues |= queue;
        w->devices[w->n_devices] =
            queue ? queue_device_new(i, chance(2) ? 0 : 100) : random_device(i, w->d, &w->little_memory);
        if (w->devices[w->n_devices++] == NULL) {
            return false;
        }
    }
    w->devices[w->n_devices] = ggml_backend_cpu_init();
    ggml_backend_cpu_set_n_threads(w->devices[w->n_devices], 1);
    return w->devices[w->n_devices++] != NULL;
}

static bool place_leaf(struct scene * w, int i) {
    const struct leaf * leaf = &w->leafs[i];
    struct ggml_tensor * t = w->placed_leafs[i];
    if (leaf->device < 0) {
        return true;
    }
    const ggml_backend_buffer_type_t buft = ggml_backend_get_default_buffer_type(w->devices[leaf->device]);
    if (w->packed && leaf->device == w->n_devices - 1) {
        char * base = (char *) ggml_backend_buffer_get_base(w->packed) + w->packed_end;
        const size_t unit = (size_t) 64 << below(3);
        w->packed_end += GGML_PAD(ggml_nbytes(t), unit);
        return ggml_backend_tensor_alloc(w->packed, t, base) == GGML_STATUS_SUCCESS;
    }
    w->buffers[i] = ggml_backend_buft_alloc_buffer(buft, ggml_backend_buft_get_alloc_size(buft, t));
    if (w->buffers[i] == NULL) {
        return false;
    }
    if (leaf->weight) {
        ggml_backend_buffer_set_usage(w->buffers[i], GGML_BACKEND_BUFFER_USAGE_WEIGHTS);
    }
    return ggml_backend_tensor_alloc(w->buffers[i], t, ggml_backend_buffer_get_base(w->buffers[i])) ==
           GGML_STATUS_SUCCESS;
}

static bool make_leafs(struct scene * w) {
    if (chance(2)) {
        w->packed = ggml_backend_alloc_buffer(w->devices[w->n_devices - 1], 1 << 16);
    }
    for (int i = 0; i < LEAFS; i++) {
        const bool host = w->leafs[i].device == -2;
        w->reference_leafs[i] = new_leaf(w->reference_ctx, w->leafs[i].shape, w->d);
        w->placed_leafs[i] = new_leaf(host ? w->host_ctx : w->ctx, w->leafs[i].shape, w->d);
        if (!w->reference_leafs[i] || !w->placed_leafs[i]) {
            return false;
        }
        char name[32];
        snprintf(name, sizeof(name), "leaf%d", i);
        ggml_set_name(w->placed_leafs[i], name);
        if (w->leafs[i].input) {
            ggml_set_input(w->placed_leafs[i]);
        }
        if (!place_leaf(w, i)) {
            return false;
        }
    }
    return true;
}

// The user allocates some results, on any device.
static void place_results(struct scene * w, const struct ggml_cgraph * graph, int one_in) {
    for (int i = 0; i < graph->n_nodes && w->n_results < RESULTS; i++) {
        struct ggml_tensor * t = graph->nodes[i];
        if (t->view_src || t->data || !chance(one_in)) {
            continue;
        }
        const ggml_backend_buffer_type_t buft = ggml_backend_get_default_buffer_type(w->devices[below(w->n_devices)]);
        const ggml_backend_buffer_t buffer =
            ggml_backend_buft_alloc_buffer(buft, ggml_backend_buft_get_alloc_size(buft, t));
        if (buffer == NULL) {
            ggml_clear_error(); // the device is full
            continue;
        }
        w->results[w->n_results++] = buffer;
        ggml_backend_tensor_alloc(buffer, t, ggml_backend_buffer_get_base(buffer));
    }
}

static void describe_scene(struct scene * w) {
    w->d = 2 + below(11);
    static const enum shape shapes[LEAFS] = { MATRIX, MATRIX, MATRIX, MATRIX, MATRIX, MATRIX, CACHE, CACHE, INDEX,
        IDS };
    const int style = below(4); // most leafs: anywhere, by the scheduler, on devices, on the host
    for (int i = 0; i < LEAFS; i++) {
        struct leaf * leaf = &w->leafs[i];
        leaf->shape = shapes[i];
        leaf->device = style == 1                ? -1
                       : style == 2 || chance(2) ? below(w->n_devices)
                       : style == 3 || chance(3) ? -2
                                                 : -1;
        leaf->weight = chance(2);
        leaf->input = chance(4);
    }
}

static struct ggml_context * new_context(bool no_alloc) {
    return ggml_init((struct ggml_init_params){ 1 << 16, NULL, no_alloc });
}

// Sets a leaf of the reference and, once it has memory, of the scheduler to the same random values.
static bool fill_leafs(struct scene * w) {
    for (int i = 0; i < LEAFS; i++) {
        struct ggml_tensor * t = w->reference_leafs[i];
        for (int64_t k = 0; k < ggml_nelements(t); k++) {
            if (t->type == GGML_TYPE_I32) {
                ((int32_t *) t->data)[k] = below(w->leafs[i].shape == IDS ? 2 : w->d);
            } else {
                ((float *) t->data)[k] = test_random_float(-1.0f, 1.0f);
            }
        }
        if (w->placed_leafs[i]->data &&
            ggml_backend_tensor_set(w->placed_leafs[i], t->data, 0, ggml_nbytes(t)) != GGML_STATUS_SUCCESS) {
            return false;
        }
    }
    return true;
}

// -------------------------------------------------------------------------------------------------------------- checks

static uint64_t struct_hash(const struct scene * w) {
    uint64_t h = 0;
    for (int g = 0; g < GRAPHS; g++) {
        const struct ggml_cgraph * graph = w->graphs[g].graph;
        for (int i = 0; i < graph->n_nodes + graph->n_leafs; i++) {
            struct ggml_tensor t;
            // including its gaps
            memcpy(&t, i < graph->n_nodes ? graph->nodes[i] : graph->leafs[i - graph->n_nodes], sizeof(t));
            t.buffer = NULL;
            t.data = NULL;
            t.extra = NULL;
            t.perf_runs = 0; // statistics of runs
            t.perf_cycles = 0;
            t.perf_time_us = 0;
            gb_tensor_set_stamp(&t, 0, 0);
            h = gb_hash_bytes(&t, sizeof(t), h);
        }
    }
    return h;
}

static bool same_data(const struct ggml_tensor * expected, const struct ggml_tensor * t, const char * what, int i) {
    const size_t n = ggml_nbytes(t);
    char * bytes = malloc(n + 1);
    const bool got = ggml_backend_tensor_get(t, bytes, 0, n) == GGML_STATUS_SUCCESS;
    const bool same = got && memcmp(bytes, expected->data, n) == 0;
    if (!same) {
        size_t at = 0;
        while (got && at < n && bytes[at] == ((const char *) expected->data)[at]) {
            at++;
        }
        test_fail(__FILE__, __LINE__, "%s %d '%s' (%s) differs at byte %zu of %zu%s", what, i, t->name,
            ggml_op_name(t->op), at, n, got ? "" : ": cannot be read");
    }
    free(bytes);
    return same;
}

// True for outputs, and for nodes that no other node reads.
static bool is_result(const struct ggml_cgraph * graph, const struct ggml_tensor * t) {
    for (int i = 0; i < graph->n_nodes; i++) {
        for (int s = 0; s < GGML_MAX_SRC; s++) {
            if (graph->nodes[i]->src[s] == t && graph->nodes[i] != t) {
                return ggml_is_output(t);
            }
        }
    }
    return true;
}

static bool same_results(const struct scene * w, int g) {
    const struct ggml_cgraph *r = w->reference[g].graph, *graph = w->graphs[g].graph;
    for (int i = 0; i < graph->n_nodes; i++) {
        if (is_result(graph, graph->nodes[i]) && !same_data(r->nodes[i], graph->nodes[i], "node", i)) {
            return false;
        }
    }
    for (int i = 0; i < LEAFS; i++) {
        if (w->placed_leafs[i]->data && !same_data(w->reference_leafs[i], w->placed_leafs[i], "leaf", i)) {
            return false;
        }
    }
    return true;
}

// ---- the simulated arenas: each byte holds the storage that wrote it last ----

struct shadow_memory {
    const struct ggml_backend_sched * sched;
    const void ** owner[64]; // for each buffer of the scheduler, for each byte
    bool ok;
};

static const void ** owners(struct shadow_memory * m, const struct ggml_tensor * t, size_t * n) {
    const struct ggml_tensor * root = t->view_src ? t->view_src : t;
    for (size_t i = 0; i < m->sched->mems.n && i < 64; i++) {
        const struct gb_mem * mem = m->sched->mems.data[i];
        if (mem->buffer == root->buffer && mem->kind == GB_MEM_ARENA && mem->size > 0) {
            if (m->owner[i] == NULL) {
                m->owner[i] = calloc(mem->size, sizeof(void *));
            }
            *n = ggml_nbytes(root);
            const size_t offset = (size_t) ((char *) root->data - mem->base);
            if ((char *) root->data < mem->base || offset + *n > mem->size) {
                test_fail(__FILE__, __LINE__, "'%s' lies outside of its arena", t->name);
                m->ok = false;
                return NULL;
            }
            return m->owner[i] + offset;
        }
    }
    return NULL;
}

// Names a storage by its start and its owner in the graph. Clones stand for their originals through
// the data pointer of the storage, so the name is the tensor that the plan's program writes.
static const void * name_of(const struct gb_sched_plan * p, const struct ggml_tensor * t) {
    const struct ggml_tensor * root = t->view_src ? t->view_src : t;
    struct gb_shadow_iter it = { 0 };
    for (struct gb_shadow * sh = gb_sched_next_shadow(&p->program, &it); sh;
        sh = gb_sched_next_shadow(&p->program, &it)) {
        if (&sh->tensor == root && sh->copy < 0) {
            return p->in.nodes[sh->origin];
        }
    }
    return root;
}

static void writes(struct shadow_memory * m, const struct gb_sched_plan * p, const struct ggml_tensor * t) {
    size_t n;
    const void **o = owners(m, t, &n), *name = name_of(p, t);
    for (size_t i = 0; o && i < n; i++) {
        o[i] = name;
    }
}

static void reads(struct shadow_memory * m, const struct gb_sched_plan * p, const struct ggml_tensor * t,
    const char * by) {
    size_t n;
    const void **o = owners(m, t, &n), *name = name_of(p, t);
    for (size_t i = 0; o && i < n && m->ok; i++) {
        if (o[i] != name) {
            test_fail(__FILE__, __LINE__, "'%s', which %s reads, was overwritten", t->name, by);
            m->ok = false;
        }
    }
}

static bool arenas_are_safe(const struct ggml_backend_sched * s) {
    struct shadow_memory m = { s, { NULL }, true };
    const struct gb_sched_plan * p = s->last;
    const int64_t n = p->in.n_ids + (int64_t) p->program.copies.n;
    for (int64_t id = 0; id < n; id++) { // tables have an entry for each line
        const struct gb_item * item = gb_sched_arena_item(&p->layout, id);
        CHECK_MSG(item == NULL || (item->group >= 0 && item->group < n &&
                                      gb_sched_arena_item(&p->layout, item->group)->group == item->group),
            "alias group %lld of %lld", item ? (long long) item->group : 0, (long long) n);
    }
    for (size_t k = 0; k < p->program.steps.n && m.ok; k++) {
        const struct gb_step * step = &p->program.steps.data[k];
        if (step->kind == GB_STEP_COPY) {
            const struct gb_copy * copy = &p->program.copies.data[step->index];
            if (copy->fill) {
                reads(&m, p, p->in.nodes[copy->root], "a copy");
            }
            writes(&m, p, &copy->dst->tensor);
        } else if (step->kind == GB_STEP_BACK) {
            reads(&m, p, &p->program.backs.data[step->index].from->tensor, "a write-back");
            writes(&m, p, p->in.nodes[p->program.backs.data[step->index].node]);
        }
        for (size_t e = 0; step->kind == GB_STEP_COMPUTE && e < p->program.exec.n; e++) {
            const struct gb_split * split = &p->program.splits.data[step->index];
            if (e < split->exec_begin || e >= split->exec_end) {
                continue;
            }
            const struct ggml_tensor * t = p->program.exec.data[e];
            for (int i = 0; i < GGML_MAX_SRC; i++) {
                if (t->src[i] && t->src[i] != t) {
                    reads(&m, p, t->src[i], t->name);
                }
            }
            if (t->view_src) {
                reads(&m, p, t, "an in-place node");
            }
            writes(&m, p, t);
        }
    }
    for (int i = 0; i < p->in.n_nodes && m.ok; i++) {
        const struct ggml_cgraph graph = { .n_nodes = p->in.n_nodes, .nodes = p->in.nodes };
        if (is_result(&graph, p->in.nodes[i])) {
            reads(&m, p, p->in.nodes[i], "the user");
        }
    }
    for (int i = 0; i < 64; i++) {
        free(m.owner[i]);
    }
    return m.ok;
}

// ------------------------------------------------------------------------------------------------------------- actions

struct seen {
    const struct scene * w;
    int g, next;
    bool ok;
    uint64_t random;
};

// Checks every node's result when the callback shows it.
static bool watch(struct ggml_tensor * t, bool ask, void * user_data) {
    struct seen * s = user_data;
    const struct ggml_cgraph * graph = s->w->graphs[s->g].graph;
    if (ask) {
        s->ok = s->ok && s->next < graph->n_nodes && graph->nodes[s->next] == t;
        s->next++;
        return (gb_hash_u64(s->random + (uint64_t) s->next) & 3) == 0;
    }
    s->ok = s->ok && graph->nodes[s->next - 1] == t;
    return true;
}

// True if the failure is allowed. Then the scene ends.
static bool ran_out(struct scene * w, enum ggml_status status) {
    w->is_out |= w->little_memory && status == GGML_STATUS_ALLOC_FAILED;
    return w->is_out;
}

static bool compute(struct scene * w, int which, int g, int mode) {
    const ggml_backend_sched_t sched = w->scheds[which];
    struct ggml_cgraph * graph = w->graphs[g].graph;
    struct seen seen = { w, g, 0, true, test_random() };
    if (ggml_graph_compute_with_ctx(w->reference_ctx, w->reference[g].graph, 1) != GGML_STATUS_SUCCESS) {
        test_fail(__FILE__, __LINE__, "reference: %s", ggml_last_error());
        return false;
    }
    if (mode == 1) {
        ggml_backend_sched_set_eval_callback(sched, watch, &seen);
    }
    if (mode == 2 && ggml_backend_sched_alloc_graph(sched, graph) != GGML_STATUS_SUCCESS) {
        if (ran_out(w, ggml_last_status())) {
            return false;
        }
        test_fail(__FILE__, __LINE__, "alloc: %s", ggml_last_error());
        return false;
    }
    enum ggml_status status = mode == 3 ? ggml_backend_sched_graph_compute_async(sched, graph)
                                        : ggml_backend_sched_graph_compute(sched, graph);
    if (status == GGML_STATUS_SUCCESS && mode == 3) {
        status = ggml_backend_sched_synchronize(sched);
    }
    ggml_backend_sched_set_eval_callback(sched, NULL, NULL);
    if (status != GGML_STATUS_SUCCESS) {
        if (ran_out(w, status)) {
            return false;
        }
        test_fail(__FILE__, __LINE__, "compute: %s", ggml_last_error());
        return false;
    }
    if (mode == 1 && (!seen.ok || seen.next != graph->n_nodes)) {
        test_fail(__FILE__, __LINE__, "callback: not asked for each node in order (%d of %d)", seen.next,
            graph->n_nodes);
        return false;
    }
    return arenas_are_safe(sched) && same_results(w, g);
}

static bool allocate(struct scene * w) {
    for (int g = 0; g < GRAPHS; g++) {
        if (ggml_backend_sched_alloc_graph(w->scheds[0], w->graphs[g].graph) != GGML_STATUS_SUCCESS) {
            if (ran_out(w, ggml_last_status())) {
                return false;
            }
            test_fail(__FILE__, __LINE__, "alloc: %s", ggml_last_error());
            return false;
        }
    }
    return fill_leafs(w);
}

static void assign_users(struct scene * w, ggml_backend_sched_t sched) {
    for (int g = 0; g < GRAPHS; g++) {
        const struct recipe * r = &w->recipes[g];
        for (int i = 0; i < r->n_steps; i++) {
            struct ggml_tensor * t = w->graphs[g].value[LEAFS + i];
            const int b = r->steps[i].user;
            if (b >= 0 && b < w->n_devices && ggml_backend_supports_op(w->devices[b], t)) {
                ggml_backend_sched_set_node_backend(sched, t, w->devices[b]);
            }
        }
    }
}

static bool is_written(const struct scene * w, const struct ggml_tensor * leaf) {
    for (int g = 0; g < GRAPHS; g++) {
        const struct ggml_cgraph * graph = w->graphs[g].graph;
        for (int i = 0; i < graph->n_nodes; i++) {
            if (graph->nodes[i]->view_src == leaf && gb_op_computes(graph->nodes[i]->op)) {
                return true;
            }
        }
    }
    return false;
}

// Inputs that may be set while runs are pending.
static bool fill_inputs(struct scene * w) {
    for (int i = 0; i < LEAFS; i++) {
        struct ggml_tensor *r = w->reference_leafs[i], *t = w->placed_leafs[i];
        if (w->leafs[i].shape != MATRIX || !w->leafs[i].input || t->data == NULL || is_written(w, t) ||
            (t->buffer && !ggml_backend_buffer_is_host(t->buffer))) {
            continue;
        }
        for (int64_t k = 0; k < ggml_nelements(r); k++) {
            ((float *) r->data)[k] = test_random_float(-1.0f, 1.0f);
        }
        if (ggml_backend_tensor_set(t, r->data, 0, ggml_nbytes(t)) != GGML_STATUS_SUCCESS) {
            return false;
        }
    }
    return true;
}

// Pending runs, with inputs that are set meanwhile if allowed.
static bool compute_many(struct scene * w, int g) {
    for (int n = 2 + below(4); n > 0; n--) {
        if ((w->n_copies[0] > 1 && !fill_inputs(w)) ||
            ggml_graph_compute_with_ctx(w->reference_ctx, w->reference[g].graph, 1) != GGML_STATUS_SUCCESS) {
            return false;
        }
        const enum ggml_status status = ggml_backend_sched_graph_compute_async(w->scheds[0], w->graphs[g].graph);
        if (status != GGML_STATUS_SUCCESS) {
            if (!ran_out(w, status)) {
                test_fail(__FILE__, __LINE__, "one of several: %s", ggml_last_error());
            }
            return false;
        }
    }
    const enum ggml_status status = ggml_backend_sched_synchronize(w->scheds[0]);
    if (status != GGML_STATUS_SUCCESS) {
        test_fail(__FILE__, __LINE__, "the last of several: %s", ggml_last_error());
        return false;
    }
    return same_results(w, g);
}

static bool stop_it(struct ggml_tensor * t, bool ask, void * user_data) {
    (void) t;
    int * left = user_data;
    return ask ? --*left == 0 : false;
}

// Stopped at some node, or out of memory at some allocation. Afterwards everything works as before.
static bool disturb(struct scene * w, int g) {
    const ggml_backend_sched_t s = w->scheds[0];
    int left = 1 + below(w->graphs[g].graph->n_nodes);
    const bool stop = w->has_queues || chance(2);
    enum ggml_status status;
    if (stop) {
        ggml_backend_sched_set_eval_callback(s, stop_it, &left);
        status = ggml_backend_sched_graph_compute(s, w->graphs[g].graph);
        ggml_backend_sched_set_eval_callback(s, NULL, NULL);
    } else {
        const bool reset = chance(2); // then the leafs have no content
        gb_test_fail_alloc(1 + below(100), false);
        status = reset ? ggml_backend_sched_reset(s) : GGML_STATUS_SUCCESS;
        status = reset ? ggml_backend_sched_alloc_graph(s, w->graphs[g].graph)
                       : ggml_backend_sched_graph_compute(s, w->graphs[g].graph);
        gb_test_fail_alloc(0, false);
    }
    if (stop ? status != GGML_STATUS_ABORTED : status != GGML_STATUS_SUCCESS && status != GGML_STATUS_ALLOC_FAILED) {
        if (!ran_out(w, status)) {
            test_fail(__FILE__, __LINE__, "disturbed: %s: %s", ggml_status_to_string(status), ggml_last_error());
        }
        return false;
    }
    return allocate(w) && compute(w, 0, g, 0);
}

static bool act(struct scene * w) {
    const int g = below(GRAPHS);
    switch (below(12)) {
        case 8:
        case 9: return compute_many(w, g);
        case 10: return disturb(w, g);
        case 0:
            ggml_backend_sched_reset(w->scheds[0]);
            ggml_backend_sched_reset(w->scheds[1]);
            assign_users(w, w->scheds[0]);
            return allocate(w) && compute(w, 0, g, 0);
        case 1: return compute(w, 1, g, below(2));
        case 2: return compute(w, 0, 0, 0) && compute(w, 0, 1, 0) && compute(w, 0, 0, 0);
        case 3: return fill_leafs(w) && compute(w, 0, g, 2);
        default: return compute(w, 0, g, below(4));
    }
}

// -------------------------------------------------------------------------------------------------------------- faults

// A run with fault `k` in its plan.
static enum ggml_status compute_with_fault(struct scene * w, int g, enum plan_fault_kind kind, int k) {
    if (!fill_leafs(w)) {
        return GGML_STATUS_FAILED;
    }
    const struct plan_fault fault = plan_inject(w->scheds[0]->last, kind, k);
    ggml_clear_error();
    const enum ggml_status status = ggml_backend_sched_graph_compute(w->scheds[0], w->graphs[g].graph);
    plan_repair(&fault);
    return status;
}

// The validator accepts the right program, and stops it without any one of its copies or waits.
static bool faults_are_found(struct scene * w, int * n_faults) {
    static const char * names[] = { "copy", "wait" };
    const int g = below(GRAPHS);
    if (ggml_backend_sched_set_check(w->scheds[0], true) != GGML_STATUS_SUCCESS || !fill_leafs(w)) {
        return false;
    }
    for (int kind = 0; kind < N_FAULT_KINDS; kind++) {
        if (!fill_leafs(w) || !compute(w, 0, g, 0) || !fill_leafs(w) || !compute(w, 0, g, 0)) {
            return false;
        }
        const int n = plan_n_faults(w->scheds[0]->last, (enum plan_fault_kind) kind);
        for (int k = 0; k < n; k += n > 12 ? 1 + below(n / 6) : 1) {
            const enum ggml_status status = compute_with_fault(w, g, (enum plan_fault_kind) kind, k);
            ++*n_faults;
            if (status != GGML_STATUS_FAILED || strstr(ggml_last_error(), "check: ") == NULL) {
                test_fail(__FILE__, __LINE__, "the validator missed the lack of %s %d of %d: %s", names[kind], k + 1, n,
                    ggml_last_error());
                return false;
            }
        }
    }
    return fill_leafs(w) && compute(w, 0, g, 0) &&
           ggml_backend_sched_set_check(w->scheds[0], false) == GGML_STATUS_SUCCESS && fill_leafs(w) &&
           compute(w, 0, g, 0);
}

// ------------------------------------------------------------------------------------------------------------- a scene

// Random costs that do not describe the devices, for placements of every kind.
static void place_by_random_costs(ggml_backend_sched_t sched, int n) {
    struct ggml_backend_op_cost ops[2 * DEVICES];
    struct ggml_backend_copy_cost copies[DEVICES * DEVICES];
    size_t limits[DEVICES], n_copies = 0;
    for (int i = 0; i < n; i++) {
        const int class_of = 1 + below(4);
        ops[i] = (struct ggml_backend_op_cost){ i, GGML_BACKEND_COST_ANY, -1, test_random_float(0, 4), 1 + below(2000),
            1 + below(2000) };
        ops[n + i] =
            (struct ggml_backend_op_cost){ i, class_of, -1, test_random_float(0, 4), 1 + below(2000), 1 + below(2000) };
        limits[i] = i < n - 1 && chance(6) ? 8192 + (size_t) below(1 << 15) : 0;
        for (int j = 0; j < n; j++) {
            if (i != j) {
                copies[n_copies++] = (struct ggml_backend_copy_cost){ i, j, test_random_float(0, 8), 1 + below(1000) };
            }
        }
    }
    const struct ggml_backend_cost_table table = { ops, (size_t) (2 * n), copies, n_copies, test_random_float(0, 4),
        1 + below(3), chance(3) ? limits : NULL };
    if (ggml_backend_sched_set_costs(sched, &table) != GGML_STATUS_SUCCESS ||
        ggml_backend_sched_set_policy(sched, GGML_BACKEND_SCHED_POLICY_COST) != GGML_STATUS_SUCCESS) {
        test_fail(__FILE__, __LINE__, "costs: %s", ggml_last_error());
    }
}

static ggml_backend_sched_t random_sched(struct scene * w, bool all) {
    ggml_backend_t list[DEVICES];
    int n = 0;
    for (int i = 0; i < w->n_devices; i++) {
        if (all || i == w->n_devices - 1 || chance(2)) {
            list[n++] = w->devices[i];
        }
    }
    ggml_backend_sched_t sched = ggml_backend_sched_new(list, NULL, n, 0);
    switch (sched ? below(6) : 0) {
        case 1: ggml_backend_sched_set_policy(sched, GGML_BACKEND_SCHED_POLICY_SOURCES); break;
        case 2:
        case 3: place_by_random_costs(sched, n); break;
        default: break;
    }
    return sched;
}

static bool make_scene(struct scene * w) {
    w->d = 2 + below(11);
    if (!make_devices(w)) {
        return false;
    }
    const int d = w->d;
    describe_scene(w);
    w->d = d;
    w->reference_ctx = new_context(false);
    w->ctx = new_context(true);
    w->host_ctx = new_context(false);
    if (!make_leafs(w)) {
        return false;
    }
    for (int g = 0; g < GRAPHS; g++) {
        make_recipe(&w->recipes[g], w, 3 + below(40));
        if (!build(w->reference_ctx, &w->recipes[g], w->reference_leafs, &w->reference[g]) ||
            !build(w->ctx, &w->recipes[g], w->placed_leafs, &w->graphs[g])) {
            return false;
        }
    }
    w->scheds[0] = random_sched(w, true);
    w->scheds[1] = random_sched(w, false);
    for (int i = 0; i < 2; i++) {
        w->n_copies[i] = chance(2) ? 1 : 2 + below(3);
        ggml_backend_sched_set_n_copies(w->scheds[i], w->n_copies[i]);
    }
    return w->scheds[0] && w->scheds[1];
}

static void free_scene(struct scene * w) {
    ggml_backend_sched_free(w->scheds[0]);
    ggml_backend_sched_free(w->scheds[1]);
    ggml_free(w->reference_ctx);
    ggml_free(w->ctx);
    ggml_free(w->host_ctx);
    for (int i = 0; i < LEAFS; i++) {
        ggml_backend_buffer_free(w->buffers[i]);
    }
    for (int i = 0; i < w->n_results; i++) {
        ggml_backend_buffer_free(w->results[i]);
    }
    ggml_backend_buffer_free(w->packed);
    for (int i = 0; i < w->n_devices; i++) {
        ggml_backend_free(w->devices[i]);
    }
}

static bool run_scene(struct scene * w, bool mutate, int * n_faults) {
    if (!make_scene(w)) {
        test_fail(__FILE__, __LINE__, "cannot set up: %s", ggml_last_error());
        return false;
    }
    assign_users(w, w->scheds[0]);
    for (int g = 0, one_in = 3 << below(4); g < GRAPHS && chance(2); g++) {
        place_results(w, w->graphs[g].graph, one_in);
    }
    const uint64_t before = struct_hash(w);
    bool ok = allocate(w) && compute(w, 0, 0, 0) && compute(w, 0, 0, 0);
    for (int k = 2 + below(4); ok && k > 0; k--) {
        ok = act(w);
    }
    if (!ok && w->is_out) {
        return true;
    }
    ok = ok && (!mutate || faults_are_found(w, n_faults));
    if (!ok && w->is_out) {
        return true;
    }
    if (ok && struct_hash(w) != before) {
        test_fail(__FILE__, __LINE__, "the graph was changed");
        ok = false;
    }
    return ok;
}

// ---- counts of the report ----

// Counts the copies of a node by their definition. Copies of its sources go into its split. Copies of its result go
// into later splits, until another node writes the same memory.
static void copies_by_definition(const struct gb_sched_plan * p, int node, struct gb_node_copies * counted) {
    const int root = p->in.ids.data[node].root;
    memset(counted, 0, sizeof(*counted));
    for (size_t c = 0; c < p->program.copies.n; c++) {
        const struct gb_copy * copy = &p->program.copies.data[c];
        const struct gb_split * split = &p->program.splits.data[copy->split];
        bool reads = false, still = p->in.ids.data[node].computes;
        for (uint32_t k = p->in.src_begin[node]; k < p->in.src_begin[node + 1]; k++) {
            reads = reads || p->in.ids.data[p->in.srcs[k]].root == copy->root;
        }
        for (int i = node + 1; i < split->start; i++) {
            still = still && !(p->in.ids.data[i].computes && p->in.ids.data[i].root == root);
        }
        if (copy->fill && reads && node >= split->start && node < split->end) {
            counted->in.n++;
            counted->in.bytes += copy->hi - copy->lo;
        }
        if (copy->fill && still && copy->root == root && split->start > node) {
            counted->of_result.n++;
            counted->of_result.bytes += copy->hi - copy->lo;
        }
    }
}

static bool report_counts_copies(const struct gb_sched_plan * p) {
    for (int i = 0; p->in.n_backends > 1 && i < p->in.n_nodes; i++) {
        struct gb_node_copies counted;
        copies_by_definition(p, i, &counted);
        const struct gb_copied in = gb_sched_copies_of(&p->report, i, false),
                               all = gb_sched_copies_of(&p->report, i, true);
        if (in.n != counted.in.n || in.bytes != counted.in.bytes || all.n != counted.in.n + counted.of_result.n ||
            all.bytes != counted.in.bytes + counted.of_result.bytes) {
            test_fail(__FILE__, __LINE__, "node %d: %zu copies of %zu bytes, not %zu of %zu", i, all.n, all.bytes,
                counted.in.n + counted.of_result.n, counted.in.bytes + counted.of_result.bytes);
            return false;
        }
    }
    return true;
}

int main(int argc, char ** argv) {
    (void) test_skips;
    uint64_t seed = 1;
    bool mutate = false; // in every scene, not in every fifth
    int count = getenv("GGML_TEST_RANDOM_GRAPHS") ? atoi(getenv("GGML_TEST_RANDOM_GRAPHS")) : 250;
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--count") == 0 && i + 1 < argc) {
            count = atoi(argv[++i]);
        } else if (strcmp(argv[i], "--seed") == 0 && i + 1 < argc) {
            seed = strtoull(argv[++i], NULL, 10);
        } else if (strcmp(argv[i], "--verbose") == 0) {
            verbose = true;
        } else if (strcmp(argv[i], "--mutate") == 0) {
            mutate = true;
        } else {
            fprintf(stderr, "usage: %s [--count N] [--seed S] [--mutate] [--verbose]\n", argv[0]);
            return 2;
        }
    }
    ggml_log_set(ggml_log_discard, NULL);
    int n_faults = 0;
    size_t n_splits = 0, n_copies = 0, n_backs = 0, n_nodes = 0, n_merged = 0, n_kept = 0, n_staged = 0, n_by_cost = 0;
    for (int k = 0; k < count; k++, seed++) {
        struct scene * w = calloc(1, sizeof(*w));
        test_seed = seed * 7919;
        ggml_clear_error();
        bool ok = run_scene(w, mutate || seed % 5 == 0, &n_faults);
        if (w->scheds[0] && w->scheds[0]->last) {
            const struct gb_sched_plan * p = w->scheds[0]->last;
            ok = ok && report_counts_copies(p);
            n_splits += p->program.splits.n;
            n_copies += p->program.copies.n;
            n_backs += p->program.backs.n;
            n_nodes += (size_t) p->in.n_nodes;
            n_kept += p->program.n_kept;
            n_staged += p->program.n_staged;
            n_by_cost += p->assigned.predicted;
            for (size_t c = 0; c < p->program.copies.n; c++) {
                n_merged += p->program.copies.data[c].merged >= 0;
            }
        }
        free_scene(w);
        free(w);
        if (!ok) {
            fprintf(stderr, "failed with --seed %llu --count 1\n", (unsigned long long) seed);
            return 1;
        }
    }
    printf("%d scenes, %zu placed by cost; in their last plans %zu nodes, %zu splits, %zu copies (%zu kept, %zu "
           "staged, %zu merged), %zu write-backs; %d mutations found\n",
        count, n_by_cost, n_nodes, n_splits, n_copies, n_kept, n_staged, n_merged, n_backs, n_faults);
    return test_failures > 0;
}
