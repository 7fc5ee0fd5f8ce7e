// assign.c - assigns the nodes of a plan: calls rules.c with answers of real backends and buffers.
//
// It caches the answers of supports_op, because rules, prices and fallbacks need them several
// times.
#include "sched/assign/assign.h"
#include "sched/input/input.h"
#include "sched/sched.h"

// The backend that owns the memory of a root: the owner of its handle, or the first by priority
// that supports its type. -1: none.
static int backend_of_memory(const struct ggml_backend_sched * s, const struct gb_sched_input * in, int root) {
    const ggml_backend_buffer_type_t buft = gb_sched_placed_buft(in, root);
    const struct gb_mem * mem = buft ? gb_sched_mem_of(s, in->ids.data[root].tensor->buffer) : NULL;
    if (mem) {
        return mem->backend;
    }
    for (int b = 0; buft && b < s->n_backends; b++) {
        if (gb_sched_supports_buft(s, buft, b)) {
            return b;
        }
    }
    return -1;
}

// User data of the callbacks in struct gb_assign_graph.
struct question {
    const struct ggml_backend_sched * sched;
    const struct gb_sched_input * in;
    struct gb_sched_assigned * assigned;
    enum ggml_status failure; // the first failure of a hook
};

// Calls supports_op at most once per backend and node.
static bool runs(void * user_data, int backend, int node) {
    struct question * a = user_data;
    uint8_t * known = &a->assigned->supports[(size_t) node * (size_t) a->in->n_backends + (size_t) backend];
    if (*known == 0) {
        const uint64_t before = gb_fail_count();
        *known = ggml_backend_supports_op(a->sched->devices[backend].backend, a->in->ids.data[node].tensor) ? 1 : 2;
        a->failure = a->failure == GGML_STATUS_SUCCESS ? gb_status_since(before) : a->failure;
    }
    return *known == 1;
}

// False for roots that are not placed.
static bool reaches(void * user_data, int backend, int root) {
    const struct question * a = user_data;
    const ggml_backend_buffer_type_t buft = gb_sched_placed_buft(a->in, root);
    return buft != NULL && gb_sched_supports_buft(a->sched, buft, backend);
}

static bool shares(void * user_data, int backend, int of_backend) {
    const struct question * a = user_data;
    return gb_sched_shares(a->sched, backend, of_backend);
}

// The arrays that struct gb_assign_graph points to.
struct tables { // per id; owned, for one call
    int32_t * root;
    int32_t * place;
    uint8_t * placed;
    uint8_t * computes;
    size_t * bytes;
    int32_t * chosen;
};

static void free_tables(struct tables * t) {
    gb_free(t->root);
    gb_free(t->place);
    gb_free(t->placed);
    gb_free(t->computes);
    gb_free(t->bytes);
    gb_free(t->chosen);
}

// True for an input that the user may set while an earlier run is pending: host memory suits it.
static bool wants_host(const struct ggml_backend_sched * s, const struct gb_sched_input * in, int id) {
    return in->n_copies > 1 && in->chosen[id] < 0 && in->ids.data[id].location == GB_LOCATION_LEAF &&
           gb_tensor_has_flag(in->ids.data[id].tensor, GB_TENSOR_INPUT) &&
           ggml_backend_buft_is_host(s->devices[s->n_backends - 1].buft);
}

// The graph for rules.c: flat arrays, indexed by the plan's ids.
static bool fill_tables(const struct ggml_backend_sched * s, const struct gb_sched_input * in, struct tables * t) {
    const size_t n = (size_t) in->n_ids;
    t->root = gb_calloc(n, sizeof(*t->root));
    t->place = gb_calloc(n, sizeof(*t->place));
    t->placed = gb_calloc(n, sizeof(*t->placed));
    t->computes = gb_calloc(n, sizeof(*t->computes));
    t->bytes = gb_calloc(n, sizeof(*t->bytes));
    t->chosen = gb_calloc(n, sizeof(*t->chosen));
    if (!t->root || !t->place || !t->placed || !t->computes || !t->bytes || !t->chosen) {
        return false;
    }
    for (int i = 0; i < in->n_ids; i++) {
        const struct gb_id * id = &in->ids.data[i];
        gb_tensor_prefetch_ahead(in->nodes, n, (size_t) i);
        t->root[i] = id->root;
        t->placed[i] = gb_sched_placed_buft(in, i) != NULL;
        t->computes[i] = id->computes;
        t->bytes[i] = ggml_nbytes(id->tensor);
        t->chosen[i] = wants_host(s, in, i) ? s->n_backends - 1 : in->chosen[i];
        t->place[i] = t->placed[i] ? backend_of_memory(s, in, i) : -1;
    }
    for (int i = 0; i < in->n_ids; i++) {
        t->place[i] = t->place[t->root[i]];
    }
    return true;
}

// Assigns by rules or costs. Fails for the first tensor whose assignment is invalid.
enum ggml_status gb_sched_assign(const struct ggml_backend_sched * s, const struct gb_sched_input * in,
    const struct gb_sched_memory_prices * memory, struct gb_sched_assigned * assigned) {
    struct tables tables = { 0 };
    assigned->to = gb_calloc((size_t) in->n_ids, sizeof(*assigned->to));
    assigned->supports = gb_calloc((size_t) in->n_nodes, (size_t) s->n_backends);
    if (!assigned->to || !assigned->supports) {
        return GGML_STATUS_ALLOC_FAILED;
    }
    if (!fill_tables(s, in, &tables)) {
        free_tables(&tables);
        return GGML_STATUS_ALLOC_FAILED;
    }
    struct question question = { s, in, assigned, GGML_STATUS_SUCCESS };
    const struct gb_assign_graph graph = {
        .n_backends = s->n_backends,
        .n_tensors = in->n_ids,
        .n_nodes = in->n_nodes,
        .root = tables.root,
        .src_begin = in->src_begin,
        .srcs = in->srcs,
        .computes = tables.computes,
        .chosen = tables.chosen,
        .placed = tables.placed,
        .place = tables.place,
        .weight = in->weight,
        .bytes = tables.bytes,
        .user_data = &question,
        .runs = runs,
        .reaches = reaches,
        .shares = shares,
    };
    const enum ggml_status status = gb_sched_assign_by_policy(s, in, memory, &graph, assigned);
    const int bad = status == GGML_STATUS_SUCCESS ? gb_assign_check(&graph, assigned->to) : -1;
    free_tables(&tables);
    GB_TRY(question.failure);
    GB_TRY(status);
    return bad < 0 ? GGML_STATUS_SUCCESS : gb_sched_fail_assignment(s, in, bad);
}

void gb_sched_free_assigned(struct gb_sched_assigned * a) {
    gb_free(a->to);
    gb_free(a->supports);
}
