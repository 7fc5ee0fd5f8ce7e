// Graph allocators: exact cases by hand; random graphs, parse sequences and several allocators against the simulation
// of test_alloc.h; and random graphs against the documented rule, by counting.
#include "alloc/alloc.h"
#include "alloc/liveness.h"
#include "pool_validator.h"
#include "test_alloc.h"
#include "test_fake.h"

struct scene {
    struct fake f;
    struct ggml_context * ctx;
    struct ggml_cgraph * graph;
    ggml_gallocr_t galloc;
    ggml_tallocr_t talloc;
};

static void scene_open(struct scene * s) {
    fake_new(&s->f);
    s->ctx = ggml_init((struct ggml_init_params){ 100000, NULL, true });
    s->graph = ggml_new_graph(s->ctx);
    s->galloc = ggml_gallocr_new();
    s->talloc = ggml_tallocr_new_from_buft(&s->f.buft, 4000);
}

static void scene_close(struct scene * s) {
    ggml_gallocr_free(s->galloc);
    ggml_tallocr_free(s->talloc);
    ggml_free(s->ctx);
    CHECK_INT(s->f.n_buffers, 0);
}

static struct ggml_tensor * vector(struct ggml_context * ctx) { // 64 bytes
    return ggml_new_tensor_1d(ctx, GGML_TYPE_F32, 16);
}

static size_t run(struct scene * s) { return ggml_gallocr_alloc_graph(s->galloc, s->talloc, s->graph); }

static ptrdiff_t at(const struct scene * s, const struct ggml_tensor * t) { return (char *) t->data - s->talloc->base; }

// The size by a measuring run of the same graph, which must not change tensors.
static size_t measured(struct scene * s) {
    ggml_tallocr_t measure = ggml_tallocr_new_measure_from_buft(&s->f.buft);
    const size_t size = ggml_gallocr_alloc_graph(s->galloc, measure, s->graph);
    for (int i = 0; i < s->graph->n_nodes; i++) {
        CHECK(s->graph->nodes[i]->data == NULL && s->graph->nodes[i]->buffer == NULL);
    }
    ggml_tallocr_free(measure);
    return size;
}

static void in_place_chain(void) {
    struct scene s;
    scene_open(&s);
    struct ggml_tensor * x = vector(s.ctx);
    struct ggml_tensor * a = ggml_sqr(s.ctx, x);
    struct ggml_tensor * b = ggml_scale(s.ctx, a, 2);
    struct ggml_tensor * c = ggml_add(s.ctx, b, x); // x has a second reader
    ggml_build_forward_expand(s.graph, c);
    const size_t size = measured(&s);
    CHECK_INT(size, 128 + 12);
    CHECK_INT(run(&s), size);
    CHECK(at(&s, x) == 0 && at(&s, a) == 64 && b->data == a->data && c->data == b->data);
    CHECK_INT(s.f.n_init, 4);
    CHECK(s.f.n_free_tensor == 1 && s.f.freed[0] == x);
    scene_close(&s);
}

static void reuse_and_views(void) {
    struct scene s;
    scene_open(&s);
    struct ggml_tensor * x = vector(s.ctx);
    struct ggml_tensor * a = ggml_cont(s.ctx, x); // at 64; x is free afterwards
    struct ggml_tensor * v = ggml_view_1d(s.ctx, a, 8, 32);
    struct ggml_tensor * b = ggml_cont(s.ctx, v); // in the memory of x
    struct ggml_tensor * c = ggml_cont(s.ctx, a); // a and v are alive until here
    struct ggml_tensor * d = ggml_add(s.ctx, ggml_cont(s.ctx, c), ggml_cont(s.ctx, b));
    (void) d;
    ggml_build_forward_expand(s.graph, b);
    ggml_build_forward_expand(s.graph, c);
    const size_t size = measured(&s);
    CHECK_INT(run(&s), size);
    CHECK(at(&s, x) == 0 && at(&s, a) == 64 && at(&s, v) == 96 && at(&s, b) == 0);
    CHECK(v->buffer == s.talloc->buffer);
    CHECK_INT(at(&s, c), 128); // the free half of x is too small
    scene_close(&s);
}

static void view_as_source_taken_over(void) {
    struct scene s;
    scene_open(&s);
    struct ggml_tensor * a = ggml_cont(s.ctx, vector(s.ctx));
    struct ggml_tensor * r = ggml_reshape_2d(s.ctx, a, 4, 4);
    struct ggml_tensor * b = ggml_sqr(s.ctx, r); // reuses a, which has no other view and no other readers
    struct ggml_tensor * v = ggml_view_2d(s.ctx, b, 4, 2, 16, 32);
    struct ggml_tensor * c = ggml_sqr(s.ctx, v); // cannot reuse b, because v does not begin at the start of b
    ggml_build_forward_expand(s.graph, c);
    CHECK(run(&s) > 0);
    CHECK(b->data == a->data && c->data != v->data && c->data != b->data);
    scene_close(&s);
}

static void not_in_place(void) {
    struct scene s;
    scene_open(&s);
    struct ggml_tensor * a = ggml_cont(s.ctx, vector(s.ctx));
    struct ggml_tensor * b = ggml_mul(s.ctx, a, a); // two readers
    struct ggml_tensor * o = ggml_cont(s.ctx, b);
    struct ggml_tensor * c = ggml_sqr(s.ctx, o);    // an output
    struct ggml_tensor * p = vector(s.ctx);         // placed beforehand
    struct ggml_tensor * d = ggml_add(s.ctx, p, c); // reuses c, not p
    ggml_set_output(o);
    ggml_build_forward_expand(s.graph, d);
    CHECK_INT(ggml_tallocr_alloc(s.talloc, p), GGML_STATUS_SUCCESS);
    CHECK(run(&s) > 0);
    CHECK(at(&s, p) == 0 && b->data != a->data && c->data != o->data && d->data == c->data);
    for (int i = 0; i < s.f.n_free_tensor; i++) {
        CHECK(s.f.freed[i] != o && s.f.freed[i] != p && s.f.freed[i] != d);
    }
    scene_close(&s);
}

static void source_behind_an_empty_slot(void) {
    struct scene s;
    scene_open(&s);
    struct ggml_tensor * a = ggml_cont(s.ctx, vector(s.ctx));
    struct ggml_tensor * b = ggml_cont(s.ctx, a);
    struct ggml_tensor * c = ggml_cont(s.ctx, b);
    c->src[5] = a; // slots 1-4 are empty
    c->src[7] = c; // c reads itself
    ggml_build_forward_expand(s.graph, c);
    CHECK(run(&s) > 0);
    CHECK(c->data != NULL && c->data != a->data && c->data != b->data && b->data != a->data);
    scene_close(&s);
}

static void inputs_and_unread_leafs(void) {
    struct scene s;
    scene_open(&s);
    struct ggml_tensor * x = vector(s.ctx);
    struct ggml_tensor * y = vector(s.ctx);
    struct ggml_tensor * l = vector(s.ctx);
    struct ggml_tensor * a = ggml_cont(s.ctx, ggml_cont(s.ctx, ggml_cont(s.ctx, x)));
    struct ggml_tensor * b = ggml_add(s.ctx, a, y);
    ggml_set_input(y);
    ggml_build_forward_expand(s.graph, b);
    ggml_build_forward_expand(s.graph, l);
    CHECK_INT(run(&s), 4 * 64 + 25);
    CHECK(y->data != NULL && l->data != NULL);
    CHECK(at(&s, y) < 128 && at(&s, l) < 128); // needs memory before any node
    for (int i = 0; i < s.graph->n_nodes; i++) {
        CHECK((s.graph->nodes[i]->data != y->data) && s.graph->nodes[i]->data != l->data);
    }
    scene_close(&s);
}

// A node reads a result that no node of the list computes. That result gets its own memory.
static void source_of_another_graph(void) {
    struct scene s;
    scene_open(&s);
    struct ggml_tensor * x = vector(s.ctx);
    struct ggml_tensor * a = ggml_sqr(s.ctx, x);
    struct ggml_tensor * b = ggml_sqr(s.ctx, a);
    ggml_build_forward_expand(s.graph, b);
    struct ggml_cgraph second = ggml_graph_view(s.graph, 1, 2);
    CHECK_INT(ggml_gallocr_alloc_graph(s.galloc, s.talloc, &second), 64 + 6);
    CHECK(x->data == NULL && at(&s, a) == 0 && b->data == a->data);
    scene_close(&s);
}

static void barriers(void) {
    struct scene s;
    scene_open(&s);
    struct ggml_tensor * x = vector(s.ctx);
    struct ggml_tensor * n[4];
    n[0] = ggml_cont(s.ctx, x);
    n[1] = ggml_cont(s.ctx, n[0]);
    n[2] = ggml_cont(s.ctx, n[1]);
    n[3] = ggml_cont(s.ctx, n[2]);
    ggml_build_forward_expand(s.graph, n[3]);
    CHECK_INT(measured(&s), 128 + 12);
    const int seq[] = { 0, 1, -1, 2, 3 };
    CHECK_INT(ggml_gallocr_set_parse_seq(s.galloc, seq, 5), GGML_STATUS_SUCCESS);
    CHECK_INT(measured(&s),
        3 * 64 + 19); // x, n0, n1 until the barrier; then n2, n3 reuse x, n0
    const int other[] = { 0, 1, 2, 3 };
    CHECK_INT(ggml_gallocr_set_parse_seq(s.galloc, other, 4), GGML_STATUS_SUCCESS);
    CHECK_INT(measured(&s), 5 * 64 + 32);
    CHECK_INT(ggml_gallocr_set_parse_seq(s.galloc, NULL, 0), GGML_STATUS_SUCCESS);
    CHECK_INT(measured(&s), 128 + 12);
    const int bad[][4] = { { 0, 1, 2, 2 }, { 0, 1, 2, -1 }, { 0, 1, 2, 4 }, { 1, 0, 2, 3 } };
    const char * const words[] = { "twice", "lists 3 nodes", "names node 4", "computed later" };
    for (int i = 0; i < 4; i++) {
        CHECK_INT(ggml_gallocr_set_parse_seq(s.galloc, bad[i], 4), GGML_STATUS_SUCCESS);
        CHECK_INT(measured(&s), 0);
        CHECK_ERROR(GGML_STATUS_INVALID_ARGUMENT, words[i]);
    }
    const int negative = -2;
    CHECK_INT(ggml_gallocr_set_parse_seq(s.galloc, &negative, 1), GGML_STATUS_INVALID_ARGUMENT);
    CHECK_INT(ggml_gallocr_set_parse_seq(s.galloc, NULL, 1), GGML_STATUS_INVALID_ARGUMENT);
    CHECK_INT(ggml_gallocr_set_parse_seq(NULL, NULL, 0), GGML_STATUS_INVALID_ARGUMENT);
    scene_close(&s);
}

static void nothing_half_done(void) {
    struct scene s;
    scene_open(&s);
    struct ggml_tensor * x = vector(s.ctx);
    struct ggml_tensor * p = vector(s.ctx);
    struct ggml_tensor * v = ggml_view_1d(s.ctx, p, 16, 0);
    struct ggml_tensor * a = ggml_add(s.ctx, ggml_cont(s.ctx, x), v);
    struct ggml_tensor * w = ggml_view_1d(s.ctx, a, 16, 0);
    struct ggml_tensor * b = ggml_cont(s.ctx, ggml_cont(s.ctx, w));
    ggml_build_forward_expand(s.graph, b);
    REQUIRE(ggml_tallocr_alloc(s.talloc, p) == GGML_STATUS_SUCCESS);
    void * const p_data = p->data;
    int n;
    for (n = 1;; n++) {
        s.f.fail_init = n;
        const size_t size = run(&s);
        if (size > 0) {
            break;
        }
        CHECK_ERROR(GGML_STATUS_DEVICE_ERROR, "cannot set up");
        CHECK(p->data == p_data && x->data == NULL && x->buffer == NULL && v->data == NULL && v->buffer == NULL);
        for (int i = 0; i < s.graph->n_nodes; i++) {
            CHECK(s.graph->nodes[i]->data == NULL && s.graph->nodes[i]->buffer == NULL);
        }
        CHECK_INT(ggml_tallocr_max_size(s.talloc), 64 + 6);
    }
    CHECK_INT(n, 8); // before, x, cont, v, a, w, cont and cont failed one after another
    // too large for the buffer
    struct ggml_cgraph * large = ggml_new_graph(s.ctx);
    struct ggml_tensor * q = ggml_cont(s.ctx, ggml_new_tensor_1d(s.ctx, GGML_TYPE_F32, 900));
    ggml_set_name(q, "q");
    ggml_build_forward_expand(large, q);
    const size_t before = ggml_tallocr_max_size(s.talloc);
    CHECK_INT(ggml_gallocr_alloc_graph(s.galloc, s.talloc, large), 0);
    CHECK_ERROR(GGML_STATUS_ALLOC_FAILED, "tensor 'q': needs 3616 bytes, largest free block");
    CHECK(q->data == NULL && q->src[0]->data == NULL && ggml_tallocr_max_size(s.talloc) == before);
    CHECK_INT(ggml_gallocr_alloc_graph(NULL, s.talloc, large), 0);
    CHECK_INT(ggml_gallocr_alloc_graph(s.galloc, NULL, large), 0);
    CHECK_INT(ggml_gallocr_alloc_graph(s.galloc, s.talloc, NULL), 0);
    ggml_gallocr_free(NULL);
    scene_close(&s);
}

// The same graph is allocated again after a reset, also with inputs placed by hand.
static void same_graph_again(void) {
    struct scene s;
    scene_open(&s);
    struct ggml_tensor * x = vector(s.ctx);
    struct ggml_tensor * y = vector(s.ctx);
    struct ggml_tensor * a = ggml_cont(s.ctx, ggml_add(s.ctx, x, y));
    struct ggml_tensor * v = ggml_view_1d(s.ctx, a, 4, 16);
    struct ggml_tensor * b = ggml_cont(s.ctx, v);
    ggml_build_forward_expand(s.graph, b);
    REQUIRE(ggml_tallocr_alloc(s.talloc, x) == GGML_STATUS_SUCCESS);
    const size_t size = run(&s);
    CHECK(size > 0);
    CHECK_INT(run(&s), size); // all tensors have memory, so nothing changes
    const int n_init = s.f.n_init;
    struct ggml_tensor * z = ggml_new_tensor_1d(s.ctx, GGML_TYPE_F32, 64);
    for (int round = 0; round < 3; round++) {
        CHECK_INT(ggml_tallocr_reset(s.talloc), GGML_STATUS_SUCCESS);
        if (round == 1) { // z moves all other tensors up
            CHECK_INT(ggml_tallocr_alloc(s.talloc, z), GGML_STATUS_SUCCESS);
            CHECK_INT(at(&s, z), 0);
        }
        CHECK_INT(ggml_tallocr_alloc(s.talloc, x), GGML_STATUS_SUCCESS);
        CHECK(run(&s) >= size);
        CHECK_INT(at(&s, x), round == 1 ? 256 : 0);
        CHECK(y->data != x->data && at(&s, y) >= (round == 1 ? 256 : 0));
        CHECK(v->data == (char *) a->data + 16);
        CHECK(a->data != v->data && b->data != v->data);
    }
    CHECK(s.f.n_init > n_init);
    scene_close(&s);
}

// A view whose source has memory elsewhere: in a buffer, or in plain memory.
static void views_of_placed_tensors(void) {
    struct scene s;
    static float memory[16];
    scene_open(&s);
    struct ggml_tensor * w = vector(s.ctx);
    struct ggml_tensor * h = vector(s.ctx);
    struct ggml_tensor * v = ggml_view_1d(s.ctx, w, 8, 32);
    struct ggml_tensor * u = ggml_view_1d(s.ctx, h, 8, 32);
    struct ggml_tensor * a = ggml_add(s.ctx, v, u);
    ggml_backend_buffer_t b = ggml_backend_buft_alloc_buffer(&s.f.buft, 64);
    REQUIRE(ggml_backend_tensor_alloc(b, w, ggml_backend_buffer_get_base(b)) == GGML_STATUS_SUCCESS);
    h->data = memory;
    ggml_build_forward_expand(s.graph, a);
    measured(&s); // does not change v and u
    CHECK(run(&s) > 0);
    CHECK(v->data == (char *) w->data + 32 && v->buffer == b);
    CHECK(u->data == memory + 8 && u->buffer == NULL);
    CHECK(at(&s, a) == 0);
    ggml_backend_buffer_free(b);
    scene_close(&s);
}

static int n_sizes_asked;

static size_t GGML_CALL count_sizes(ggml_backend_buffer_type_t buft, const struct ggml_tensor * tensor) {
    (void) buft;
    n_sizes_asked++;
    return ggml_nbytes(tensor);
}

// get_alloc_size may be slow, so the allocator calls it once for each tensor that needs memory.
static void sizes_are_asked_once(void) {
    struct scene s;
    scene_open(&s);
    s.f.buft.iface.get_alloc_size = count_sizes;
    struct ggml_tensor * x = vector(s.ctx);
    struct ggml_tensor * a = ggml_sqr(s.ctx, x);
    struct ggml_tensor * b = ggml_sum_rows(s.ctx, ggml_view_1d(s.ctx, a, 8, 0));
    ggml_build_forward_expand(s.graph, b);
    n_sizes_asked = 0;
    CHECK(run(&s) > 0 && b->data != NULL);
    CHECK_INT(n_sizes_asked, 3); // x, a, b; a view needs none
    struct ggml_tensor * alone = vector(s.ctx);
    CHECK_INT(ggml_tallocr_alloc(s.talloc, alone), GGML_STATUS_SUCCESS);
    CHECK_INT(n_sizes_asked, 4);
    scene_close(&s);
}

static void several_allocators(void) {
    struct scene s;
    scene_open(&s);
    ggml_tallocr_t second = ggml_tallocr_new_from_buft(&s.f.buft, 4000);
    struct ggml_tensor * x = vector(s.ctx);
    struct ggml_tensor * a = ggml_sqr(s.ctx, x);
    struct ggml_tensor * b = ggml_sqr(s.ctx, a); // the source is in another allocator, so not in place
    struct ggml_tensor * c = ggml_sqr(s.ctx, b);
    ggml_set_name(c, "c");
    ggml_build_forward_expand(s.graph, c);
    struct ggml_hash_set set = ggml_hash_set_new(10);
    ggml_tallocr_t by_slot[50] = { 0 };
    by_slot[ggml_hash_insert(set, x)] = s.talloc;
    by_slot[ggml_hash_insert(set, a)] = s.talloc;
    by_slot[ggml_hash_insert(set, b)] = second;
    CHECK_INT(ggml_gallocr_alloc_graph_n(s.galloc, s.graph, set, by_slot), GGML_STATUS_INVALID_ARGUMENT);
    CHECK_ERROR(GGML_STATUS_INVALID_ARGUMENT, "'c' is not placed and has no allocator");
    CHECK(x->data == NULL && a->data == NULL && b->data == NULL);
    by_slot[ggml_hash_insert(set, c)] = second;
    CHECK_INT(ggml_gallocr_alloc_graph_n(s.galloc, s.graph, set, by_slot), GGML_STATUS_SUCCESS);
    CHECK(x->buffer == s.talloc->buffer && a->data == x->data && b->buffer == second->buffer && c->data == b->data);
    CHECK_INT(ggml_tallocr_max_size(second), 64 + 6);
    CHECK_INT(ggml_gallocr_alloc_graph_n(NULL, s.graph, set, by_slot), GGML_STATUS_INVALID_ARGUMENT);
    CHECK_INT(ggml_gallocr_alloc_graph_n(s.galloc, NULL, set, by_slot), GGML_STATUS_INVALID_ARGUMENT);
    CHECK_INT(ggml_gallocr_alloc_graph_n(s.galloc, s.graph, set, NULL), GGML_STATUS_INVALID_ARGUMENT);
    ggml_hash_set_free(set);
    set = (struct ggml_hash_set){ 0, NULL };
    CHECK_INT(ggml_gallocr_alloc_graph_n(s.galloc, s.graph, set, by_slot), GGML_STATUS_INVALID_ARGUMENT);
    ggml_tallocr_free(second);
    scene_close(&s);
}

// ------------------------------------------------------------------------------------------------------- random graphs

struct two_buffers {
    char * base[2];
    ggml_backend_buffer_t buffer[2];
};

enum { SIM_SIZE = 1 << 18 };

static int64_t address_of(void * user, struct ggml_tensor * t) {
    const struct two_buffers * two = user;
    const int i = t->buffer == two->buffer[1];
    if (t->data == NULL || t->buffer != two->buffer[i]) {
        test_fail(__FILE__, __LINE__, "'%s' is not placed", t->name);
        return -1;
    }
    return i * SIM_SIZE / 2 + ((char *) t->data - two->base[i]);
}

// Shuffles groups between barriers, within the dependences.
static void shuffle(const struct ggml_cgraph * graph, const int * seq, int n_seq, int * order) {
    int n = 0;
    for (int start = 0; start < n_seq;) {
        int end = start;
        while (end < n_seq && seq[end] >= 0) {
            end++;
        }
        for (int left = end - start; left > 0; left--) {
            int ready[RANDOM_MAX], n_ready = 0;
            for (int k = start; k < end; k++) {
                bool ok = true;
                for (int j = 0; j < n; j++) {
                    ok = ok && order[j] != seq[k];
                }
                for (int s = 0; ok && s < GGML_MAX_SRC; s++) { // its sources in the group have run
                    for (int m = start; ok && m < end; m++) {
                        bool done = false;
                        for (int j = 0; j < n; j++) {
                            done = done || order[j] == seq[m];
                        }
                        ok = done || graph->nodes[seq[m]] != graph->nodes[seq[k]]->src[s];
                    }
                }
                if (ok) {
                    ready[n_ready++] = seq[k];
                }
            }
            order[n++] = ready[test_random_int(0, n_ready - 1)];
        }
        start = end + 1;
    }
}

static int random_sequence(const struct ggml_cgraph * graph, int * seq) {
    int n = 0;
    for (int i = 0; i < graph->n_nodes; i++) {
        seq[n++] = i;
        if (test_random_int(0, 3) == 0) {
            seq[n++] = -1;
        }
    }
    return n;
}

static void random_graphs(void) {
    size_t peak = 0, sum = 0;
    for (int round = 0; round < 500; round++) {
        struct random_graph g;
        struct fake f;
        const bool sequence = round % 3 == 2, by_hand = round % 4 == 1, two = round % 5 == 4;
        fake_new(&f);
        REQUIRE(random_graph_make(&g,
            (struct random_graph_params){ (int) test_random_int(1, 60), !sequence, !by_hand, round % 7 == 0 }));
        ggml_gallocr_t galloc = ggml_gallocr_new();
        ggml_tallocr_t t[2] = { ggml_tallocr_new_from_buft(&f.buft, SIM_SIZE / 2),
            ggml_tallocr_new_from_buft(&f.buft, SIM_SIZE / 2) };
        ggml_tallocr_t m[2] = { ggml_tallocr_new_measure_from_buft(&f.buft),
            ggml_tallocr_new_measure_from_buft(&f.buft) };
        int seq[2 * RANDOM_MAX], order[RANDOM_MAX];
        if (sequence) {
            const int n = random_sequence(g.graph, seq);
            CHECK_INT(ggml_gallocr_set_parse_seq(galloc, seq, n), GGML_STATUS_SUCCESS);
            shuffle(g.graph, seq, n, order);
        }
        if (by_hand) {
            for (int i = 0; i < g.n_leafs; i++) {
                CHECK_INT(ggml_tallocr_alloc(m[0], g.leafs[i]), GGML_STATUS_SUCCESS);
                CHECK_INT(ggml_tallocr_alloc(t[0], g.leafs[i]), GGML_STATUS_SUCCESS);
            }
            for (int i = 0; i < g.n_leafs; i++) {
                g.leafs[i]->data = NULL; // for the measuring run
                g.leafs[i]->buffer = NULL;
            }
        }
        struct ggml_hash_set set = ggml_hash_set_new(4 * RANDOM_MAX);
        ggml_tallocr_t *real = calloc(set.size, sizeof(*real)), *measure = calloc(set.size, sizeof(*real));
        for (int i = 0; i < g.n; i++) {
            const size_t slot = ggml_hash_insert(set, g.all[i]);
            const int side = two && !(by_hand && i < g.n_leafs) ? (int) test_random_int(0, 1) : 0;
            real[slot] = t[side];
            measure[slot] = m[side];
        }
        CHECK_INT(ggml_gallocr_alloc_graph_n(galloc, g.graph, set, measure), GGML_STATUS_SUCCESS);
        for (int i = 0; i < g.n; i++) {
            CHECK(g.all[i]->data == NULL && g.all[i]->buffer == NULL);
        }
        if (by_hand) { // restores their memory
            ggml_tallocr_reset(t[0]);
            for (int i = 0; i < g.n_leafs; i++) {
                CHECK_INT(ggml_tallocr_alloc(t[0], g.leafs[i]), GGML_STATUS_SUCCESS);
            }
        }
        CHECK_INT(ggml_gallocr_alloc_graph_n(galloc, g.graph, set, real), GGML_STATUS_SUCCESS);
        struct two_buffers buffers = { { t[0]->base, t[1]->base }, { t[0]->buffer, t[1]->buffer } };
        struct memory_sim sim = { .address_of = address_of, .user = &buffers, .size = SIM_SIZE };
        CHECK_MSG(sim_run(&sim, g.graph, sequence ? order : NULL), "round %d: %s", round, sim.problem);
        for (int i = 0; i < 2; i++) {
            CHECK_INT(ggml_tallocr_max_size(m[i]), ggml_tallocr_max_size(t[i]));
            CHECK(pool_is_valid(&t[i]->pool));
            peak += t[i]->pool.high;
        }
        for (int i = 0; i < g.graph->n_nodes; i++) {
            sum += g.graph->nodes[i]->view_src ? 0 : ggml_nbytes(g.graph->nodes[i]);
        }
        for (int i = 0; i < 2; i++) {
            ggml_tallocr_free(t[i]);
            ggml_tallocr_free(m[i]);
        }
        free(real);
        free(measure);
        ggml_hash_set_free(set);
        ggml_gallocr_free(galloc);
        random_graph_free(&g);
        CHECK_INT(f.n_buffers, 0);
    }
    CHECK_MSG(peak < sum, "%zu of %zu", peak, sum); // includes leafs, and is still less
}

// ------------------------------------------------------------------------------------------------------------ counting

// The documented rule. It counts readers and views. A tensor's bytes are freed when all readers and
// views are done. A view counts for its source. A node reuses the bytes of a source that only it
// still reads. A tensor without readers is never counted down.
struct counting {
    struct ggml_tensor * all[2 * RANDOM_MAX]; // all visited tensors; a source is before its views
    int n;
    int readers[2 * RANDOM_MAX], views[2 * RANDOM_MAX]; // that are still to come
    bool placed[2 * RANDOM_MAX], taken[2 * RANDOM_MAX]; // taken: another tensor reuses the bytes
    bool keep[2 * RANDOM_MAX], input[2 * RANDOM_MAX];
    size_t offset[2 * RANDOM_MAX], size[2 * RANDOM_MAX]; // of the tensor's bytes
    struct gb_offset_pool pool;
};

static int meet(struct counting * c, struct ggml_tensor * t) {
    for (int i = 0; i < c->n; i++) {
        if (c->all[i] == t) {
            return i;
        }
    }
    const int root = t->view_src ? meet(c, t->view_src) : -1;
    c->all[c->n] = t;
    c->keep[c->n] = ggml_is_output(t);
    c->input[c->n] = ggml_is_input(t);
    if (root >= 0) {
        c->views[root]++;
        c->keep[root] |= ggml_is_output(t);
        c->input[root] |= ggml_is_input(t);
    }
    return c->n++;
}

static bool counting_take_over(struct counting * c, int id) {
    struct ggml_tensor * t = c->all[id];
    for (int s = 0; s < GGML_MAX_SRC && !c->input[id]; s++) {
        struct ggml_tensor * src = t->src[s];
        if (src == NULL || !gb_allocator_can_write_over(t, s)) {
            continue;
        }
        const int i = meet(c, src), root = meet(c, gb_root(src));
        const bool last =
            src->view_src ? c->views[root] == 1 && c->readers[root] == 0 && src->view_offs == 0 : c->views[root] == 0;
        if (last && c->readers[i] == 1 && !c->keep[root] && !c->taken[root]) {
            c->taken[root] = true;
            c->offset[id] = c->offset[root];
            c->size[id] = c->size[root];
            return true;
        }
    }
    return false;
}

static void counting_place(struct counting * c, int id) {
    if (c->all[id]->view_src) {
        id = meet(c, c->all[id]->view_src);
    }
    if (!c->placed[id] && !counting_take_over(c, id)) {
        c->size[id] = ggml_nbytes(c->all[id]);
        CHECK(gb_pool_take(&c->pool, c->size[id], &c->offset[id]) == GB_POOL_OK);
    }
    c->placed[id] = true;
}

static void counting_release(struct counting * c, int id) {
    if (c->readers[id] > 0 || c->views[id] > 0 || c->keep[id]) {
        return;
    }
    if (c->all[id]->view_src) {
        const int root = meet(c, c->all[id]->view_src);
        c->views[root]--;
        counting_release(c, root);
    } else if (!c->taken[id]) {
        c->taken[id] = true; // free, not reused
        gb_pool_give_back(&c->pool, c->offset[id], c->size[id]);
    }
}

static void counting_run(struct counting * c, const struct ggml_cgraph * graph) {
    for (int i = 0; i < graph->n_nodes; i++) {
        meet(c, graph->nodes[i]);
        for (int s = 0; s < GGML_MAX_SRC; s++) {
            if (graph->nodes[i]->src[s]) {
                c->readers[meet(c, graph->nodes[i]->src[s])]++;
            }
        }
    }
    for (int i = 0; i < graph->n_leafs; i++) {
        meet(c, graph->leafs[i]);
    }
    for (int id = 0; id < c->n; id++) {
        const bool leaf = c->all[id]->op == GGML_OP_NONE && c->readers[id] == 0 && c->views[id] == 0;
        if (c->all[id]->view_src == NULL && (c->input[id] || leaf)) {
            counting_place(c, id);
        }
    }
    for (int i = 0; i < graph->n_nodes; i++) {
        struct ggml_tensor * node = graph->nodes[i];
        for (int s = 0; s < GGML_MAX_SRC; s++) {
            if (node->src[s]) {
                counting_place(c, meet(c, node->src[s]));
            }
        }
        counting_place(c, meet(c, node));
        for (int s = 0; s < GGML_MAX_SRC; s++) {
            if (node->src[s]) {
                c->readers[meet(c, node->src[s])]--;
                counting_release(c, meet(c, node->src[s]));
            }
        }
    }
}

static void as_documented(void) {
    for (int round = 0; round < 300; round++) {
        struct random_graph g;
        struct scene s;
        scene_open(&s);
        REQUIRE(random_graph_make(&g,
            (struct random_graph_params){ (int) test_random_int(1, 60), true, round % 2 == 0, round % 3 == 0 }));
        ggml_tallocr_free(s.talloc);
        s.talloc = ggml_tallocr_new_from_buft(&s.f.buft, 1 << 18);
        struct counting c = { .n = 0 };
        REQUIRE(gb_pool_init(&c.pool, 0, 1 << 18));
        counting_run(&c, g.graph);
        REQUIRE(ggml_gallocr_alloc_graph(s.galloc, s.talloc, g.graph) > 0);
        for (int id = 0; id < c.n; id++) {
            const struct ggml_tensor * t = c.all[id];
            CHECK_MSG(t->view_src || at(&s, t) == (ptrdiff_t) c.offset[id], "round %d: '%s' at %td, by counting at %zu",
                round, t->name, at(&s, t), c.offset[id]);
        }
        CHECK_INT(s.talloc->pool.high, c.pool.high);
        CHECK_INT(s.talloc->pool.n_live, c.pool.n_live);
        gb_pool_free(&c.pool);
        random_graph_free(&g);
        scene_close(&s);
    }
}

static void out_of_memory(void) {
    struct random_graph g;
    struct fake f;
    fake_new(&f);
    REQUIRE(random_graph_make(&g, (struct random_graph_params){ 40, true, true, true }));
    const int64_t live = gb_test_live_allocs();
    for (int n = 1;; n++) {
        gb_test_fail_alloc(n, false);
        ggml_gallocr_t galloc = ggml_gallocr_new();
        ggml_tallocr_t measure = ggml_tallocr_new_measure_from_buft(&f.buft);
        ggml_tallocr_t talloc = ggml_tallocr_new_from_buft(&f.buft, SIM_SIZE);
        const int seq = 0;
        const bool ok = galloc && measure && talloc &&
                        ggml_gallocr_set_parse_seq(galloc, &seq, 1) == GGML_STATUS_SUCCESS &&
                        ggml_gallocr_set_parse_seq(galloc, NULL, 0) == GGML_STATUS_SUCCESS &&
                        ggml_gallocr_alloc_graph(galloc, measure, g.graph) > 0 &&
                        ggml_gallocr_alloc_graph(galloc, talloc, g.graph) > 0;
        const bool failed = gb_test_alloc_failed();
        gb_test_fail_alloc(0, false);
        CHECK_INT(ok, !failed);
        for (int i = 0; i < g.n; i++) {
            CHECK(ok || (g.all[i]->data == NULL && g.all[i]->buffer == NULL));
        }
        if (!ok && measure) {
            CHECK(pool_is_valid(&measure->pool));
            for (int i = 0; talloc == NULL && i < g.n; i++) {
                CHECK(!gb_tallocr_is_placed(measure, g.all[i]));
            }
        }
        ggml_gallocr_free(galloc);
        ggml_tallocr_free(measure);
        ggml_tallocr_free(talloc);
        CHECK_INT(gb_test_live_allocs(), live);
        if (!failed) {
            CHECK(n > 15);
            break;
        }
    }
    random_graph_free(&g);
}

static void long_chain(void) {
    struct ggml_context * ctx = ggml_init((struct ggml_init_params){ 1 << 20, NULL, true });
    const int n = 100000;
    struct ggml_cgraph * graph = ggml_new_graph_custom(ctx, (size_t) n, false);
    struct ggml_tensor * t = vector(ctx);
    for (int i = 0; i < n; i++) {
        t = ggml_cont(ctx, t);
    }
    REQUIRE(ggml_build_forward_expand(graph, t) == GGML_STATUS_SUCCESS);
    ggml_gallocr_t galloc = ggml_gallocr_new();
    ggml_tallocr_t talloc = ggml_tallocr_new_measure(64);
    CHECK_INT(ggml_gallocr_alloc_graph(galloc, talloc, graph), 128 + 12);
    ggml_gallocr_free(galloc);
    ggml_tallocr_free(talloc);
    ggml_free(ctx);
}

TEST_MAIN(TEST(in_place_chain), TEST(reuse_and_views), TEST(view_as_source_taken_over), TEST(not_in_place),
    TEST(source_behind_an_empty_slot), TEST(inputs_and_unread_leafs), TEST(source_of_another_graph), TEST(barriers),
    TEST(nothing_half_done), TEST(same_graph_again), TEST(views_of_placed_tensors), TEST(sizes_are_asked_once),
    TEST(several_allocators), TEST(random_graphs), TEST(as_documented), TEST(out_of_memory), TEST(long_chain))
