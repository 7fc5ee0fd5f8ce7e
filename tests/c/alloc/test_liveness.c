// Lifetimes of node lists: by hand, and random graphs that are planned with them and simulated
// (test_alloc.h).
#include "alloc/liveness.h"
#include "plan/plan.h"
#include "base/hash.h"
#include "base/mem.h"
#include "test_alloc.h"

struct ids {
    struct gb_ptrmap map;
    int64_t arenas;       // ids go to arenas in turn
    const void * outside; // a tensor that has memory already
    const void * kept;
    int id_calls;
};

static int64_t id_of(void * user, const struct ggml_tensor * t) {
    struct ids * ids = user;
    ids->id_calls++;
    CHECK(t->view_src == NULL);
    const int64_t id = gb_ptrmap_get(&ids->map, t);
    return id == GB_PTRMAP_ABSENT ? -1 : id;
}

static int arena_of(void * user, int64_t id, const struct ggml_tensor * t) {
    struct ids * ids = user;
    CHECK_INT(gb_ptrmap_get(&ids->map, t), id);
    return t == ids->outside ? -1 : (int) (id % ids->arenas);
}

static size_t size_of(void * user, int64_t id, const struct ggml_tensor * t) {
    (void) user;
    (void) id;
    return ggml_nbytes(t);
}

static bool keep(void * user, int64_t id, const struct ggml_tensor * t) {
    (void) id;
    return t == ((struct ids *) user)->kept;
}

static void number(struct ids * ids, const struct ggml_tensor * t) {
    const struct ggml_tensor * root = gb_root(t);
    if (gb_ptrmap_get(&ids->map, root) == GB_PTRMAP_ABSENT) {
        gb_ptrmap_set(&ids->map, root, (int64_t) ids->map.n);
    }
}

static void number_all(struct ids * ids, struct ggml_cgraph * graph) {
    for (int i = 0; i < graph->n_nodes; i++) {
        number(ids, graph->nodes[i]);
        for (int s = 0; s < GGML_MAX_SRC; s++) {
            if (graph->nodes[i]->src[s]) {
                number(ids, graph->nodes[i]->src[s]);
            }
        }
    }
}

static struct gb_liveness_input input_of(struct ids * ids, struct ggml_cgraph * graph) {
    return (struct gb_liveness_input){ .nodes = graph->nodes,
        .n_nodes = graph->n_nodes,
        .user_data = ids,
        .id_of = id_of,
        .n_ids = (int64_t) ids->map.n,
        .arena_of = arena_of,
        .size_of = size_of,
        .keep = keep };
}

static const struct gb_live_item * item_of(const struct ids * ids, const struct gb_liveness * l,
    const struct ggml_tensor * t) {
    const int64_t item = l->item_of[gb_ptrmap_get(&ids->map, gb_root(t))];
    return item < 0 ? NULL : &l->items[item];
}

#define CHECK_SPAN(t, low, high)                                  \
    do {                                                          \
        const struct gb_live_item * item_ = item_of(&ids, &l, t); \
        CHECK(item_ != NULL);                                     \
        if (item_) {                                              \
            CHECK_INT(item_->lower, low);                         \
            CHECK_INT(item_->upper, high);                        \
        }                                                         \
    } while (0)

struct fixture {
    struct ggml_context * ctx;
    struct ggml_cgraph * graph;
};

static struct fixture fixture(void) {
    struct fixture f;
    f.ctx = ggml_init((struct ggml_init_params){ 100000, NULL, true });
    f.graph = ggml_new_graph(f.ctx);
    return f;
}

static struct ggml_tensor * vector(struct ggml_context * ctx) { return ggml_new_tensor_1d(ctx, GGML_TYPE_F32, 16); }

static void chain_in_place(void) {
    struct fixture f = fixture();
    struct ids ids = { .arenas = 1 };
    struct gb_liveness l;
    struct ggml_tensor * x = vector(f.ctx);
    struct ggml_tensor * a = ggml_scale(f.ctx, x, 2); // node 0
    struct ggml_tensor * b = ggml_sqr(f.ctx, a);      // node 1
    struct ggml_tensor * c = ggml_mul(f.ctx, b, a);   // node 2: a also dies here
    struct ggml_tensor * d = ggml_cont(f.ctx, c);     // node 3: not in place
    ggml_build_forward_expand(f.graph, d);
    number_all(&ids, f.graph);
    struct gb_liveness_input in = input_of(&ids, f.graph);
    REQUIRE(gb_liveness_compute(&in, &l) == GGML_STATUS_SUCCESS);
    CHECK_SPAN(x, 0, 3); // x is from outside; a reused x, and c reused a
    CHECK(item_of(&ids, &l, x) == item_of(&ids, &l, a));
    CHECK_SPAN(b, 1, 4); // c is computed in b, its first source
    CHECK(item_of(&ids, &l, c) == item_of(&ids, &l, b));
    CHECK_SPAN(d, 3, 4);
    CHECK_INT(l.n_items, 3);
    gb_liveness_free(&l);
    gb_ptrmap_free(&ids.map);
    ggml_free(f.ctx);
}

static void inputs_outputs_and_keeping(void) {
    struct fixture f = fixture();
    struct ids ids = { .arenas = 1 };
    struct gb_liveness l;
    struct ggml_tensor * x = vector(f.ctx);
    struct ggml_tensor * y = vector(f.ctx);
    struct ggml_tensor * a = ggml_cont(f.ctx, x);           // 0
    struct ggml_tensor * b = ggml_cont(f.ctx, a);           // 1
    struct ggml_tensor * v = ggml_view_1d(f.ctx, b, 8, 32); // 2
    struct ggml_tensor * w = ggml_cont(f.ctx, v);           // 3
    struct ggml_tensor * e = ggml_cont(f.ctx, y);           // 4
    struct ggml_tensor * d = ggml_cont(f.ctx, e);           // 5
    ggml_set_output(v);
    ids.kept = w;
    ggml_build_forward_expand(f.graph, w);
    ggml_build_forward_expand(f.graph, d);
    number_all(&ids, f.graph);
    struct gb_liveness_input in = input_of(&ids, f.graph);
    REQUIRE(gb_liveness_compute(&in, &l) == GGML_STATUS_SUCCESS);
    CHECK_SPAN(x, 0, 1);
    CHECK_SPAN(y, 0, 5); // read late, but has content from the start
    CHECK_SPAN(a, 0, 2);
    CHECK_SPAN(b, 1, 6); // an output, because its view is one
    CHECK_SPAN(w, 3, 6);
    CHECK_SPAN(e, 4, 6);
    CHECK_SPAN(d, 5, 6); // no node reads it
    gb_liveness_free(&l);
    ids.outside = b;
    REQUIRE(gb_liveness_compute(&in, &l) == GGML_STATUS_SUCCESS);
    CHECK(item_of(&ids, &l, b) == NULL && item_of(&ids, &l, v) == NULL && item_of(&ids, &l, w) != NULL);
    gb_liveness_free(&l);
    ggml_set_input(e);
    REQUIRE(gb_liveness_compute(&in, &l) == GGML_STATUS_SUCCESS);
    CHECK_SPAN(e, 0, 6);
    gb_liveness_free(&l);
    gb_ptrmap_free(&ids.map);
    ggml_free(f.ctx);
}

static void sources_that_must_stay(void) {
    struct fixture f = fixture();
    struct ids ids = { .arenas = 1 };
    struct gb_liveness l;
    struct ggml_tensor * a = ggml_cont(f.ctx, vector(f.ctx));
    struct ggml_tensor * v = ggml_view_1d(f.ctx, a, 16, 0);
    struct ggml_tensor * b = ggml_soft_max_ext(f.ctx, a, v, 1); // reads a twice, once as the mask
    struct ggml_tensor * c = ggml_scale(f.ctx, ggml_cont(f.ctx, b), 1);
    struct ggml_tensor * d = ggml_add(f.ctx, c, b); // c and b die here, so they may be reused
    struct ggml_tensor * r = ggml_rms_norm(f.ctx, ggml_view_1d(f.ctx, d, 8, 4), 1); // the view begins inside
    ggml_build_forward_expand(f.graph, r);
    number_all(&ids, f.graph);
    struct gb_liveness_input in = input_of(&ids, f.graph);
    REQUIRE(gb_liveness_compute(&in, &l) == GGML_STATUS_SUCCESS);
    CHECK(item_of(&ids, &l, b) != item_of(&ids, &l, a));
    CHECK(item_of(&ids, &l, d) == item_of(&ids, &l, c));
    CHECK(item_of(&ids, &l, r) != item_of(&ids, &l, d));
    gb_liveness_free(&l);
    ids.arenas = 2; // tensors of neighbouring ids are in different arenas
    REQUIRE(gb_liveness_compute(&in, &l) == GGML_STATUS_SUCCESS);
    for (size_t i = 0; i < l.n_items; i++) {
        CHECK_INT(l.items[i].arena, arena_of(&ids, gb_ptrmap_get(&ids.map, l.items[i].tensor), l.items[i].tensor));
    }
    gb_liveness_free(&l);
    gb_ptrmap_free(&ids.map);
    ggml_free(f.ctx);
}

static void second_operand_only_when_elementwise(void) {
    struct fixture f = fixture();
    struct ggml_tensor * a = vector(f.ctx);
    struct ggml_tensor * b = vector(f.ctx);
    struct ggml_tensor * m = ggml_soft_max_ext(f.ctx, a, b, 1);
    struct ggml_tensor * r = ggml_add(f.ctx, ggml_new_tensor_2d(f.ctx, GGML_TYPE_F32, ggml_nelements(a), 2), b);
    REQUIRE(r != NULL);
    CHECK(gb_allocator_can_write_over(ggml_add(f.ctx, a, b), 1));
    CHECK(gb_allocator_can_write_over(m, 0));
    CHECK(!gb_allocator_can_write_over(m, 1));
    CHECK(!gb_allocator_can_write_over(m, -1));
    CHECK(!gb_allocator_can_write_over(m, 2));
    CHECK(!gb_allocator_can_write_over(ggml_cont(f.ctx, a), 0));
    CHECK(!gb_allocator_can_write_over(ggml_scale_inplace(f.ctx, a, 1), 0)); // not for a result that is a view
    CHECK(gb_allocator_can_write_over(r, 0));
    CHECK(!gb_allocator_can_write_over(r, 1)); // not for a repeated source
    ggml_free(f.ctx);
}

// The rule of the graph allocator: an input gets memory at its first reader. A node reuses a source
// that only one slot reads. A tensor that dies between two barriers stays until the second one.
static void rule_of_the_allocator(void) {
    struct fixture f = fixture();
    struct ids ids = { .arenas = 1 };
    struct gb_liveness l;
    struct ggml_tensor * x = vector(f.ctx);
    struct ggml_tensor * y = vector(f.ctx);
    struct ggml_tensor * a = ggml_sqr(f.ctx, x);         // 0: reuses x
    struct ggml_tensor * b = ggml_mul(f.ctx, a, a);      // 1: two slots read it
    struct ggml_tensor * c = ggml_norm(f.ctx, b, 1e-5f); // 2: the operator cannot work in place
    struct ggml_tensor * d = ggml_add(f.ctx, y, c);      // 3: reuses y, the first of two sources
    ggml_build_forward_expand(f.graph, d);
    number_all(&ids, f.graph);
    struct gb_liveness_input in = input_of(&ids, f.graph);
    in.rule = GB_LIVE_ALLOCATOR;
    REQUIRE(gb_liveness_compute(&in, &l) == GGML_STATUS_SUCCESS);
    CHECK_SPAN(x, 0, 2);
    CHECK(item_of(&ids, &l, a) == item_of(&ids, &l, x) && !item_of(&ids, &l, a)->to_end);
    CHECK_SPAN(b, 1, 3);
    CHECK_SPAN(c, 2, 4);
    CHECK_SPAN(y, 3, 4);
    CHECK(item_of(&ids, &l, d) == item_of(&ids, &l, y) && item_of(&ids, &l, d)->to_end); // no node reads d
    gb_liveness_free(&l);
    const int released[] = { 2, 2, 4, 4 };
    in.released = released;
    REQUIRE(gb_liveness_compute(&in, &l) == GGML_STATUS_SUCCESS);
    CHECK_SPAN(x, 0, 2);
    CHECK_SPAN(b, 1, 4);
    CHECK(item_of(&ids, &l, a) == item_of(&ids, &l, x) && item_of(&ids, &l, d) == item_of(&ids, &l, y));
    gb_liveness_free(&l);
    gb_ptrmap_free(&ids.map);
    ggml_free(f.ctx);
}

static void refuses_disorder(void) {
    struct fixture f = fixture();
    struct ids ids = { .arenas = 1 };
    struct gb_liveness l = { .items = (void *) 1, .n_items = 2 };
    struct ggml_tensor * a = ggml_cont(f.ctx, vector(f.ctx));
    struct ggml_tensor * b = ggml_cont(f.ctx, a);
    ggml_set_name(a, "first");
    ggml_set_name(b, "second");
    ggml_build_forward_expand(f.graph, b);
    number_all(&ids, f.graph);
    f.graph->nodes[0] = b;
    f.graph->nodes[1] = a;
    struct gb_liveness_input in = input_of(&ids, f.graph);
    CHECK_INT(gb_liveness_compute(&in, &l), GGML_STATUS_INVALID_ARGUMENT);
    CHECK_ERROR(GGML_STATUS_INVALID_ARGUMENT, "'second', reads 'first'");
    CHECK(l.items == NULL && l.n_items == 0);
    f.graph->nodes[0] = a;
    CHECK_INT(gb_liveness_compute(&in, &l), GGML_STATUS_INVALID_ARGUMENT);
    CHECK_ERROR(GGML_STATUS_INVALID_ARGUMENT, "twice");
    CHECK_INT(gb_liveness_compute(NULL, &l), GGML_STATUS_INVALID_ARGUMENT);
    in.size_of = NULL;
    CHECK_INT(gb_liveness_compute(&in, &l), GGML_STATUS_INVALID_ARGUMENT);
    gb_ptrmap_free(&ids.map);
    ggml_free(f.ctx);
}

// ------------------------------------------------------------------------------------------------------- random graphs

struct placed {
    struct ids * ids;
    struct gb_liveness * l;
    size_t * offsets; // by item
    int64_t arena_size;
};

static int64_t address_of(void * user, struct ggml_tensor * t) {
    struct placed * p = user;
    const int64_t id = gb_ptrmap_get(&p->ids->map, t);
    const int64_t item = id == GB_PTRMAP_ABSENT ? -1 : p->l->item_of[id]; // a leaf that no node reads
    return item < 0 ? -1 : p->l->items[item].arena * p->arena_size + (int64_t) p->offsets[item];
}

static void random_graphs(void) {
    size_t used = 0, sum = 0;
    for (int round = 0; round < 400; round++) {
        struct random_graph g;
        struct ids ids = { .arenas = test_random_int(1, 3) };
        struct gb_liveness l;
        REQUIRE(random_graph_make(&g, (struct random_graph_params){ (int) test_random_int(1, 60), round % 2 != 0,
                                          round % 3 == 0, round % 5 == 0 }));
        number_all(&ids, g.graph);
        struct gb_liveness_input in = input_of(&ids, g.graph);
        REQUIRE(gb_liveness_compute(&in, &l) == GGML_STATUS_SUCCESS);
        struct gb_plan_item items[RANDOM_MAX];
        size_t offsets[RANDOM_MAX];
        for (int arena = 0; arena < ids.arenas; arena++) {
            struct gb_plan_result result;
            size_t which[RANDOM_MAX], n = 0;
            for (size_t i = 0; i < l.n_items; i++) {
                if (l.items[i].arena == arena) {
                    items[n] = (struct gb_plan_item){ l.items[i].lower, l.items[i].upper, l.items[i].size, 0 };
                    which[n++] = i;
                }
            }
            REQUIRE(gb_plan_offsets(items, n, 32, &result) == GGML_STATUS_SUCCESS);
            for (size_t k = 0; k < n; k++) {
                offsets[which[k]] = items[k].offset;
                sum += items[k].size;
            }
            used += result.peak;
        }
        struct placed placed = { &ids, &l, offsets, 1 << 18 };
        struct memory_sim sim = { .address_of = address_of, .user = &placed, .size = 3 << 18 };
        CHECK_MSG(sim_run(&sim, g.graph, NULL), "round %d: %s", round, sim.problem);
        gb_liveness_free(&l);
        gb_ptrmap_free(&ids.map);
        random_graph_free(&g);
    }
    CHECK(used < sum * 3 / 4); // some memory is reused
}

// ----------------------------------------------------------------------------------------------------- the lowest load

// The maximum load of the arena: bytes alive, position by position.
static size_t highest_load(const struct gb_liveness * l, int arena, int n_nodes) {
    size_t most = 0;
    for (int64_t t = 0; t < n_nodes; t++) {
        size_t sum = 0;
        for (size_t i = 0; i < l->n_items; i++) {
            sum += l->items[i].arena == arena && l->items[i].lower <= t && t < l->items[i].upper ? l->items[i].size : 0;
        }
        most = GB_MAX(most, sum);
    }
    return most;
}

// Half of a larger tensor dies in a node. If the node reuses that half, the whole tensor stays
// alive.
static void larger_memory(void) {
    for (int late = 0; late < 2; late++) {
        struct fixture f = fixture();
        struct ids ids = { .arenas = 1 };
        struct gb_liveness l;
        // 0: 64 bytes, as large as the leaf
        struct ggml_tensor * big = ggml_cont(f.ctx, vector(f.ctx));
        struct ggml_tensor * half = ggml_view_1d(f.ctx, big, 8, 0); // 1
        struct ggml_tensor * a = ggml_sqr(f.ctx, half);             // 2: 32 bytes
        struct ggml_tensor * end = a;
        // more bytes are alive during a than at its start
        if (late) {
            struct ggml_tensor * other = ggml_cont(f.ctx, ggml_cont(f.ctx, vector(f.ctx))); // 3, 4
            end = ggml_add(f.ctx, ggml_view_1d(f.ctx, other, 8, 0), a);                     // 5, 6
        }
        ggml_build_forward_expand(f.graph, a);
        ggml_build_forward_expand(f.graph, end);
        number_all(&ids, f.graph);
        struct gb_liveness_input in = input_of(&ids, f.graph);
        REQUIRE(gb_liveness_compute(&in, &l) == GGML_STATUS_SUCCESS);
        CHECK_INT(item_of(&ids, &l, a) == item_of(&ids, &l, big), !late);
        gb_liveness_free(&l);
        gb_ptrmap_free(&ids.map);
        ggml_free(f.ctx);
    }
}

static void an_element_wise_square(void) { // reads and writes the same storage, twice
    struct fixture f = fixture();
    struct ids ids = { .arenas = 1 };
    struct gb_liveness l;
    struct ggml_tensor * a = ggml_cont(f.ctx, vector(f.ctx));
    struct ggml_tensor * b = ggml_mul(f.ctx, a, ggml_view_1d(f.ctx, a, 16, 0));
    ggml_build_forward_expand(f.graph, b);
    number_all(&ids, f.graph);
    struct gb_liveness_input in = input_of(&ids, f.graph);
    REQUIRE(gb_liveness_compute(&in, &l) == GGML_STATUS_SUCCESS);
    CHECK(item_of(&ids, &l, b) == item_of(&ids, &l, a));
    gb_liveness_free(&l);
    in.no_join = true;
    REQUIRE(gb_liveness_compute(&in, &l) == GGML_STATUS_SUCCESS);
    CHECK(item_of(&ids, &l, b) != item_of(&ids, &l, a));
    gb_liveness_free(&l);
    gb_ptrmap_free(&ids.map);
    ggml_free(f.ctx);
}

// The smallest maximum load of all choices of nodes that overwrite one of their sources. The input
// has spans without results in place.
struct choices {
    int n;                 // nodes that could overwrite a source
    int64_t node[64];      // its item
    int64_t source[64][2]; // items of sources; -1: none
};

static bool nobody_reads(const struct ggml_cgraph * graph, const struct ggml_tensor * t) {
    for (int j = 0; j < graph->n_nodes; j++) {
        for (int s = 0; s < GGML_MAX_SRC; s++) {
            if (graph->nodes[j]->src[s] == t) {
                return false;
            }
        }
    }
    return true;
}

static bool ends_with(const struct ggml_cgraph * graph, const struct ggml_tensor * root, int i) {
    for (int j = 0; j < graph->n_nodes; j++) {
        const struct ggml_tensor * node = graph->nodes[j];
        bool uses = gb_root(node) == root;
        if (uses && nobody_reads(graph, node)) {
            return false;
        }
        for (int s = 0; s < GGML_MAX_SRC; s++) {
            uses = uses || (node->src[s] && gb_root(node->src[s]) == root);
        }
        if (uses && j > i) {
            return false;
        }
    }
    return true;
}

static int64_t source_item(const struct ids * ids, const struct gb_liveness * l, struct ggml_cgraph * graph, int i,
    int s) {
    const struct ggml_tensor * node = graph->nodes[i];
    const struct ggml_tensor * src = node->src[s];
    if (src == NULL || !gb_plan_can_write_over(node, s) || (src->view_src && src->view_offs) ||
        !ends_with(graph, gb_root(src), i)) {
        return -1;
    }
    for (int k = 0; k < GGML_MAX_SRC; k++) {
        const struct ggml_tensor * other = node->src[k];
        if (other && gb_root(other) == gb_root(src) &&
            (!gb_plan_can_write_over(node, k) || (other->view_src && other->view_offs))) {
            return -1;
        }
    }
    return l->item_of[gb_ptrmap_get(&ids->map, gb_root(src))];
}

static size_t load_of_choice(const struct gb_liveness * apart, const struct choices * c, const int * take,
    int n_nodes) {
    struct gb_live_item items[RANDOM_MAX];
    struct gb_liveness merged = { .items = items, .n_items = apart->n_items };
    int64_t in[RANDOM_MAX];
    memcpy(items, apart->items, apart->n_items * sizeof(*items));
    for (size_t i = 0; i < apart->n_items; i++) {
        in[i] = (int64_t) i;
    }
    for (int k = 0; k < c->n; k++) { // sorted like the nodes
        if (take[k] < 2) {
            const int64_t node = c->node[k], to = in[c->source[k][take[k]]];
            if (items[to].size < items[node].size) {
                return SIZE_MAX;
            }
            for (int j = 0; j < k; j++) {
                if (take[j] < 2 && c->source[j][take[j]] == c->source[k][take[k]]) {
                    return SIZE_MAX;
                }
            }
            items[to].upper = items[node].upper;
            items[node].size = 0;
            in[node] = to;
        }
    }
    return highest_load(&merged, 0, n_nodes);
}

static size_t lowest_load(const struct gb_liveness * apart, const struct choices * c, int n_nodes) {
    int take[64];
    size_t best = SIZE_MAX;
    for (int k = 0; k < c->n; k++) {
        take[k] = 2;
    }
    for (;;) { // takes every combination, from 222... down to 000...
        best = GB_MIN(best, load_of_choice(apart, c, take, n_nodes));
        int k = 0;
        do {
            if (k == c->n) {
                return best;
            }
            take[k] = take[k] == 0 ? 2 : take[k] - 1;
            while (take[k] < 2 && c->source[k][take[k]] < 0) {
                take[k] = take[k] == 0 ? 2 : take[k] - 1;
            }
        } while (take[k++] == 2);
    }
}

static struct choices choices_of(const struct ids * ids, const struct gb_liveness * l, struct ggml_cgraph * graph) {
    struct choices c = { 0 };
    for (int i = 0; i < graph->n_nodes && c.n < 64; i++) {
        if (graph->nodes[i]->view_src == NULL) {
            c.node[c.n] = l->item_of[gb_ptrmap_get(&ids->map, graph->nodes[i])];
            c.source[c.n][0] = source_item(ids, l, graph, i, 0);
            c.source[c.n][1] = source_item(ids, l, graph, i, 1);
            if (c.source[c.n][1] == c.source[c.n][0]) {
                c.source[c.n][1] = -1;
            }
            c.n += c.source[c.n][0] >= 0 || c.source[c.n][1] >= 0;
        }
    }
    return c;
}

static void load_is_low(void) {
    int n_lower = 0, n_judged = 0, n_best = 0;
    for (int round = 0; round < 600; round++) {
        struct random_graph g;
        struct ids ids = { .arenas = 1 };
        struct gb_liveness l, apart;
        REQUIRE(random_graph_make(&g,
            (struct random_graph_params){ (int) test_random_int(2, 14), round % 3 == 0, false, false }));
        number_all(&ids, g.graph);
        struct gb_liveness_input in = input_of(&ids, g.graph);
        REQUIRE(gb_liveness_compute(&in, &l) == GGML_STATUS_SUCCESS);
        in.no_join = true;
        REQUIRE(gb_liveness_compute(&in, &apart) == GGML_STATUS_SUCCESS);
        const size_t ours = highest_load(&l, 0, g.graph->n_nodes), without = highest_load(&apart, 0, g.graph->n_nodes);
        const struct choices c = choices_of(&ids, &apart, g.graph);
        CHECK_MSG(ours <= without, "round %d: %zu in place, %zu apart", round, ours, without);
        n_lower += ours < without;
        if (c.n <= 8) {
            const size_t lowest = lowest_load(&apart, &c, g.graph->n_nodes);
            CHECK_MSG(ours >= lowest, "round %d: %zu, but the lowest is %zu", round, ours, lowest);
            n_judged++;
            n_best += ours == lowest;
        }
        gb_liveness_free(&l);
        gb_liveness_free(&apart);
        gb_ptrmap_free(&ids.map);
        random_graph_free(&g);
    }
    CHECK(n_lower > 60 && n_judged > 400);
    CHECK_MSG(n_best * 100 >= n_judged * 97, "the lowest load in %d of %d graphs", n_best, n_judged);
}

static void out_of_memory(void) {
    struct random_graph g;
    struct ids ids = { .arenas = 2 };
    REQUIRE(random_graph_make(&g, (struct random_graph_params){ 40, true, true, true }));
    number_all(&ids, g.graph);
    struct gb_liveness_input in = input_of(&ids, g.graph);
    const int64_t live = gb_test_live_allocs();
    for (int n = 1;; n++) {
        struct gb_liveness l;
        gb_test_fail_alloc(n, false);
        const enum ggml_status status = gb_liveness_compute(&in, &l);
        const bool failed = gb_test_alloc_failed();
        gb_test_fail_alloc(0, false);
        CHECK_INT(status, failed ? GGML_STATUS_ALLOC_FAILED : GGML_STATUS_SUCCESS);
        gb_liveness_free(&l);
        CHECK_INT(gb_test_live_allocs(), live);
        if (!failed) {
            CHECK(n > 4);
            break;
        }
    }
    gb_ptrmap_free(&ids.map);
    random_graph_free(&g);
}

TEST_MAIN(TEST(chain_in_place), TEST(inputs_outputs_and_keeping), TEST(sources_that_must_stay),
    TEST(second_operand_only_when_elementwise), TEST(rule_of_the_allocator), TEST(refuses_disorder),
    TEST(random_graphs), TEST(larger_memory), TEST(an_element_wise_square), TEST(load_is_low), TEST(out_of_memory))
