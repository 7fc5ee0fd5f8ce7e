// test_sched.c - the scheduler's functions, one behaviour for each test. Placement of small graphs
// is checked against splits and values found by hand. Also tests all promises about state: graphs
// do not change, leafs keep their content, failures change nothing.
#include "ggml-alloc.h"
#include "ggml-backend-impl.h"
#include "ggml-backend.h"
#include "sched/plan.h"
#include "test.h"
#include "test_fake.h"
#include "test_place.h"

// -------------------------------------------------------------------------------------------------------------- basics

static void one_cpu(void) {
    OPEN(p, "CPU");
    struct ggml_tensor *x = leaf(&p, "x", 4, 1), *y = leaf(&p, "y", 4, 1);
    struct ggml_tensor *s = ggml_add(p.ctx, x, y), *r = ggml_scale(p.ctx, s, 2.0f);
    expand(&p, r);
    CHECK_INT(ggml_backend_sched_get_n_splits(p.sched), 0);
    OK(ggml_backend_sched_alloc_graph(p.sched, p.graph));
    fill(x, 1, 1);
    fill(y, 10, 0);
    OK(ggml_backend_sched_graph_compute(p.sched, p.graph));
    CHECK_AT(r, 0, 22);
    CHECK_AT(r, 3, 28);
    CHECK_STR(splits(&p), "CPU:0-2");
    CHECK(ggml_backend_sched_get_node_backend(p.sched, s) == p.backends[0]);
    CHECK(s->data == r->data); // in place
    for (int i = 0; i < 3; i++) { // inputs keep their memory and content
        OK(ggml_backend_sched_graph_compute(p.sched, p.graph));
        CHECK_AT(r, 0, 22);
    }
    size_t peak, no_reuse;
    OK(ggml_backend_sched_get_memory(p.sched, p.backends[0], &peak, &no_reuse));
    CHECK_INT(peak, 3 * 64); // x, y, one of the results
    CHECK_INT(no_reuse, 4 * 64);
    CHECK_INT(ggml_backend_sched_get_buffer_size(p.sched, p.backends[0]), peak);
    CHECK(ggml_backend_sched_get_buffer(p.sched, p.backends[0]) == r->buffer);
    close_place(&p);
}

static void second_run_allocates_nothing(void) {
    OPEN(p, "CPU");
    struct ggml_tensor * x = leaf(&p, "x", 4, 1);
    struct ggml_tensor * r = x;
    for (int i = 0; i < 40; i++) {
        r = ggml_add(p.ctx, r, x);
    }
    expand(&p, r);
    OK(ggml_backend_sched_alloc_graph(p.sched, p.graph));
    fill(x, 1, 0);
    OK(ggml_backend_sched_graph_compute(p.sched, p.graph));
    gb_test_fail_alloc(1, true);
    OK(ggml_backend_sched_graph_compute(p.sched, p.graph));
    CHECK(!gb_test_alloc_failed());
    gb_test_fail_alloc(0, false);
    CHECK_AT(r, 0, 41);
    close_place(&p);
}

static void weights_decide(void) {
    OPEN(p, "SIM:name=A SIM:name=B CPU");
    struct ggml_tensor *x = put(&p, leaf(&p, "x", 2, 2), 2, false), *wa = put(&p, leaf(&p, "wa", 2, 2), 0, true),
                       *wb = put(&p, leaf(&p, "wb", 2, 2), 1, true);
    struct ggml_tensor *h = ggml_mul_mat(p.ctx, wa, x), *g = ggml_relu(p.ctx, h), *y = ggml_mul_mat(p.ctx, wb, g),
                       *z = ggml_scale(p.ctx, y, 0.5f);
    ggml_set_name(h, "h");
    ggml_set_name(y, "y");
    expand(&p, z);
    fill(x, 1, 1); // columns (1,2) (3,4)
    fill(wa, 1, 0); // all ones
    fill(wb, 2, 0);
    OK(ggml_backend_sched_graph_compute(p.sched, p.graph));
    CHECK_STR(splits(&p), "A:0-1(1) B:1-4(1)"); // spreading upward from y places relu
    CHECK_AT(z, 0, 6);
    CHECK_AT(z, 3, 14);
    CHECK(ggml_backend_sched_get_split_input(p.sched, 0, 0) == x);
    CHECK(ggml_backend_sched_get_split_input(p.sched, 1, 0) == h);
    CHECK(ggml_backend_sched_get_split_input(p.sched, 1, 1) == NULL);
    CHECK_ERROR(GGML_STATUS_INVALID_ARGUMENT, "no input 1");
    CHECK(strstr(ggml_backend_sched_explain(p.sched, h),
              "runs on A, because its weight 'wa' is there; that needs copies of 1 tensor, 16 bytes") != NULL);
    CHECK(strstr(ggml_backend_sched_explain(p.sched, g), "like 'y' after it") != NULL);
    CHECK(strstr(ggml_backend_sched_explain(p.sched, x), "its memory is there") != NULL);
    // copies have the documented name
    CHECK_STR(p.sched->last->program.copies.data[0].dst->tensor.name, "A#x");
    struct ggml_backend_sched_split_info info;
    OK(ggml_backend_sched_get_split(p.sched, 0, &info));
    CHECK_INT(info.input_bytes, 16);
    OK(ggml_backend_sched_set_policy(p.sched, GGML_BACKEND_SCHED_POLICY_SOURCES));
    OK(ggml_backend_sched_graph_compute(p.sched, p.graph));
    CHECK_STR(splits(&p), "A:0-2(1) B:2-4(1)"); // relu is placed with its source
    CHECK_AT(z, 3, 14);
    close_place(&p);
}

static void users_are_obeyed(void) {
    OPEN(p, "SIM:name=A SIM:name=B,noops=mul CPU");
    struct ggml_tensor *x = leaf(&p, "x", 2, 1), *a = ggml_sqr(p.ctx, x), *b = ggml_sqr(p.ctx, a),
                       *c = ggml_mul(p.ctx, b, a);
    expand(&p, c);
    OK(ggml_backend_sched_set_node_backend(p.sched, b, p.backends[1]));
    CHECK(ggml_backend_sched_get_node_backend(p.sched, b) == p.backends[1]);
    CHECK(ggml_backend_sched_get_node_backend(p.sched, a) == NULL);
    OK(ggml_backend_sched_alloc_graph(p.sched, p.graph));
    fill(x, 2, 1);
    OK(ggml_backend_sched_graph_compute(p.sched, p.graph));
    CHECK_AT(c, 1, 729);
    CHECK(ggml_backend_sched_get_node_backend(p.sched, a) == p.backends[1]);
    CHECK_STR(ggml_backend_sched_explain(p.sched, b), "runs on B, as you assigned it");
    CHECK(strstr(ggml_backend_sched_explain(p.sched, c), "; not on B: ") != NULL);
    // an assignment to a backend without support is an error, and no node moves
    OK(ggml_backend_sched_set_node_backend(p.sched, c, p.backends[1]));
    CHECK_INT(ggml_backend_sched_graph_compute(p.sched, p.graph), GGML_STATUS_UNSUPPORTED);
    CHECK_ERROR(GGML_STATUS_UNSUPPORTED, "assigned to backend B by the user");
    OK(ggml_backend_sched_set_node_backend(p.sched, c, NULL));
    OK(ggml_backend_sched_graph_compute(p.sched, p.graph));
    CHECK_AT(c, 0, 64);
    CHECK_AT(c, 1, 729);
    close_place(&p);
}

static void no_backend_supports_a_node(void) {
    OPEN(p, "SIM:name=A,noops=sqr SIM:name=B,noops=sqr");
    struct ggml_tensor *x = leaf(&p, "x", 2, 1), *a = ggml_sqr(p.ctx, x);
    expand(&p, a);
    CHECK_INT(ggml_backend_sched_alloc_graph(p.sched, p.graph), GGML_STATUS_UNSUPPORTED);
    CHECK(strstr(ggml_last_error(), "SQR") && strstr(ggml_last_error(), "f32") && strstr(ggml_last_error(), "A: ") &&
          strstr(ggml_last_error(), "B: "));
    CHECK(a->data == NULL && x->data == NULL);
    struct ggml_cgraph * other = ggml_new_graph(p.ctx);
    struct ggml_tensor * b = ggml_scale(p.ctx, x, 3.0f);
    ggml_build_forward_expand(other, b);
    OK(ggml_backend_sched_alloc_graph(p.sched, other)); // still usable
    fill(x, 1, 1);
    OK(ggml_backend_sched_graph_compute(p.sched, other));
    CHECK_AT(b, 1, 6);
    close_place(&p);
}

// -------------------------------------------------------------------------------------------------- storage and copies

// A cache is read, written through a view on its own device, and read again. The second reader must
// see the new content.
static void copies_are_renewed(void) {
    OPEN(p, "SIM:name=A CPU");
    struct ggml_tensor *cache = put(&p, leaf(&p, "cache", 4, 2), 1, false), *x = leaf(&p, "x", 4, 1);
    struct ggml_tensor * before = ggml_scale(p.ctx, cache, 10.0f);
    struct ggml_tensor * write = ggml_cpy(p.ctx, x, ggml_view_1d(p.ctx, cache, 4, 4 * sizeof(float)));
    struct ggml_tensor * after = ggml_scale(p.ctx, cache, 10.0f);
    struct ggml_tensor * again = ggml_sqr(p.ctx, ggml_view_1d(p.ctx, cache, 2, 4 * sizeof(float)));
    expand(&p, before);
    expand(&p, write);
    expand(&p, after);
    expand(&p, again);
    struct ggml_tensor * on_a[] = { before, after, again };
    for (int i = 0; i < 3; i++) {
        OK(ggml_backend_sched_set_node_backend(p.sched, on_a[i], p.backends[0]));
    }
    OK(ggml_backend_sched_alloc_graph(p.sched, p.graph));
    fill(cache, 1, 0);
    fill(x, 5, 0);
    OK(ggml_backend_sched_graph_compute(p.sched, p.graph));
    CHECK_STR(splits(&p), "A:0-2(1) CPU:2-3 A:3-6(1)"); // the last reader's view uses the copy of the cache
    CHECK_AT(before, 7, 10);
    CHECK_AT(after, 0, 10);
    CHECK_AT(after, 7, 50);
    CHECK_AT(again, 1, 25);
    CHECK_AT(cache, 3, 1);
    CHECK_AT(cache, 4, 5);
    fill(x, 7, 0);
    OK(ggml_backend_sched_graph_compute(p.sched, p.graph)); // the cache has the written values
    CHECK_AT(before, 7, 50);
    CHECK_AT(after, 7, 70);
    close_place(&p);
}

static void only_what_is_read_is_copied(void) {
    OPEN(p, "SIM:name=A CPU");
    struct ggml_tensor * big = put(&p, leaf(&p, "big", 16, 16), 1, false);
    struct ggml_tensor *v = ggml_set_name(ggml_view_1d(p.ctx, big, 16, 32 * sizeof(float)), "v"),
                       *r = ggml_sqr(p.ctx, v);
    expand(&p, r);
    OK(ggml_backend_sched_set_node_backend(p.sched, r, p.backends[0]));
    fill(big, 0, 1);
    OK(ggml_backend_sched_graph_compute(p.sched, p.graph));
    CHECK_AT(r, 1, 33 * 33);
    struct ggml_backend_sched_split_info info;
    OK(ggml_backend_sched_get_split(p.sched, 0, &info));
    CHECK_INT(info.n_inputs, 1);
    CHECK_INT(info.input_bytes, 64);
    CHECK(ggml_backend_sched_get_split_input(p.sched, 0, 0) == v);
    close_place(&p);
}

// A device writes rows of memory that it cannot use. The other rows keep their values.
static void written_rows_are_written_back(void) {
    OPEN(p, "SIM:name=A CPU");
    struct ggml_tensor *cache = put(&p, leaf(&p, "cache", 4, 3), 1, false), *x = leaf(&p, "x", 4, 2);
    struct ggml_tensor * places = ggml_set_name(ggml_new_tensor_1d(p.ctx, GGML_TYPE_I32, 2), "places");
    struct ggml_tensor *before = ggml_sum(p.ctx, cache),
                       *write = ggml_set_rows(p.ctx, cache, ggml_sqr(p.ctx, x), places);
    struct ggml_tensor * after = ggml_sum(p.ctx, cache); // a copy of the cache, not of the result
    expand(&p, before);
    expand(&p, write);
    expand(&p, after);
    struct ggml_tensor * on_a[] = { before, write, after };
    for (int i = 0; i < 3; i++) {
        OK(ggml_backend_sched_set_node_backend(p.sched, on_a[i], p.backends[0]));
    }
    OK(ggml_backend_sched_alloc_graph(p.sched, p.graph));
    fill(cache, 1, 0);
    fill(x, 2, 0);
    const int32_t to[2] = { 2, 0 };
    OK(ggml_backend_tensor_set(places, to, 0, sizeof(to)));
    OK(ggml_backend_sched_graph_compute(p.sched, p.graph));
    CHECK_AT(before, 0, 12);
    CHECK_AT(cache, 0, 4);
    CHECK_AT(cache, 5, 1);
    CHECK_AT(cache, 11, 4);
    CHECK_AT(after, 0, 36);
    close_place(&p);
}

// A result in memory that its backend cannot use is written back, also if it is part of another
// tensor.
static void results_are_written_back(void) {
    OPEN(p, "SIM:name=A CPU");
    struct ggml_tensor *cache = put(&p, leaf(&p, "cache", 4, 2), 1, false), *x = leaf(&p, "x", 4, 1);
    struct ggml_tensor *s = ggml_sqr(p.ctx, x), *write = ggml_cpy(p.ctx, s, ggml_view_1d(p.ctx, cache, 4, 16));
    struct ggml_tensor *twice = ggml_scale_inplace(p.ctx, cache, 2.0f), *sum = ggml_sum(p.ctx, twice);
    expand(&p, write);
    expand(&p, sum);
    struct ggml_tensor * on_a[] = { write, twice, sum };
    for (int i = 0; i < 3; i++) {
        OK(ggml_backend_sched_set_node_backend(p.sched, on_a[i], p.backends[0]));
    }
    OK(ggml_backend_sched_alloc_graph(p.sched, p.graph));
    fill(cache, 1, 0);
    fill(x, 1, 1);
    OK(ggml_backend_sched_graph_compute(p.sched, p.graph));
    CHECK_AT(cache, 0, 2);
    CHECK_AT(cache, 5, 8);
    CHECK_AT(write, 3, 32); // the old content of that part, doubled
    CHECK_AT(sum, 0, 2 * (4 + 1 + 4 + 9 + 16));
    CHECK(strstr(ggml_backend_sched_explain(p.sched, write), "written back to 'cache'") != NULL);
    // the whole result in the user's memory, on a device that the backend cannot use
    struct ggml_cgraph * other = ggml_new_graph(p.ctx);
    struct ggml_tensor * r = ggml_sqr(p.ctx, x);
    put(&p, r, 1, false);
    ggml_build_forward_expand(other, r);
    OK(ggml_backend_sched_set_node_backend(p.sched, r, p.backends[0]));
    OK(ggml_backend_sched_graph_compute(p.sched, other));
    CHECK_AT(r, 3, 16);
    CHECK_STR(splits(&p), "A:0-1");
    close_place(&p);
}

static void in_place_goes_where_its_memory_is(void) {
    OPEN(p, "SIM:name=A SIM:name=B CPU");
    struct ggml_tensor *x = leaf(&p, "x", 4, 1), *w = put(&p, leaf(&p, "w", 4, 1), 1, true),
                       *cache = put(&p, leaf(&p, "cache", 4, 1), 0, false);
    struct ggml_tensor *add = ggml_add_inplace(p.ctx, cache, w), *r = ggml_mul(p.ctx, x, add);
    expand(&p, r);
    OK(ggml_backend_sched_alloc_graph(p.sched, p.graph));
    fill(x, 1, 1);
    fill(w, 3, 0);
    fill(cache, 1, 0);
    OK(ggml_backend_sched_graph_compute(p.sched, p.graph));
    CHECK(ggml_backend_sched_get_node_backend(p.sched, add) == p.backends[0]); // not on the device of its weight
    CHECK_AT(cache, 2, 4);
    CHECK_AT(r, 3, 16);
    close_place(&p);
}

static void plain_host_memory(void) {
    OPEN(p, "SIM:name=A CPU");
    struct ggml_context * host = ggml_init((struct ggml_init_params){ 1 << 12, NULL, false });
    struct ggml_tensor * x = ggml_new_tensor_1d(host, GGML_TYPE_F32, 4);
    ggml_set_f32(x, 3.0f);
    struct ggml_tensor *a = ggml_sqr(p.ctx, x), *b = ggml_scale_inplace(p.ctx, x, 2.0f);
    expand(&p, a);
    expand(&p, b);
    OK(ggml_backend_sched_set_node_backend(p.sched, a, p.backends[0]));
    OK(ggml_backend_sched_set_node_backend(p.sched, b, p.backends[0]));
    OK(ggml_backend_sched_graph_compute(p.sched, p.graph));
    CHECK_AT(a, 0, 9);
    CHECK_INT(ggml_get_f32_1d(x, 1), 6);
    CHECK(x->buffer == NULL);
    close_place(&p);
    ggml_free(host);
}

static void every_source_slot_counts(void) {
    OPEN(p, "SIM:name=A CPU");
    struct ggml_tensor *ids = ggml_new_tensor_2d(p.ctx, GGML_TYPE_I32, 1, 2), *b = leaf(&p, "b", 2, 2), *experts[3];
    for (int i = 0; i < 3; i++) {
        experts[i] = put(&p, leaf(&p, "e", 2, 2), i % 2, false);
        fill(experts[i], (float) i + 1, 0);
    }
    struct ggml_tensor * r = ggml_mul_mat_id(p.ctx, experts, 3, ids, 0, b);
    REQUIRE(r != NULL);
    struct ggml_tensor * half = ggml_cast(p.ctx, ggml_cast(p.ctx, r, GGML_TYPE_F16), GGML_TYPE_F32); // reads itself
    expand(&p, half);
    OK(ggml_backend_sched_set_node_backend(p.sched, r, p.backends[0]));
    OK(ggml_backend_sched_set_node_backend(p.sched, half, p.backends[1]));
    OK(ggml_backend_sched_alloc_graph(p.sched, p.graph));
    const int32_t which[] = { 1, 2 };
    OK(ggml_backend_tensor_set(ids, which, 0, sizeof(which)));
    fill(b, 1, 0);
    OK(ggml_backend_sched_graph_compute(p.sched, p.graph));
    CHECK_AT(half, 0, 4);
    CHECK_AT(half, 3, 6);
    close_place(&p);
    // behind an empty slot
    OPEN(q, "SIM:name=A CPU");
    struct ggml_tensor *x = leaf(&q, "x", 4, 1), *y = put(&q, leaf(&q, "y", 4, 1), 1, false);
    struct ggml_tensor * sum = ggml_add(q.ctx, x, y);
    sum->src[3] = put(&q, leaf(&q, "far", 4, 1), 1, false); // a source that the operation ignores
    expand(&q, sum);
    OK(ggml_backend_sched_set_node_backend(q.sched, sum, q.backends[0]));
    OK(ggml_backend_sched_alloc_graph(q.sched, q.graph));
    CHECK_STR(splits(&q), "A:0-1(2)");
    close_place(&q);
}

// --------------------------------------------------------------------------------------------------- state over graphs

static void leafs_keep_their_content(void) {
    OPEN(p, "CPU");
    struct ggml_tensor *w = leaf(&p, "w", 4, 1), *x = leaf(&p, "x", 4, 1), *y = ggml_mul(p.ctx, w, x),
                       *z = ggml_add(p.ctx, w, x);
    struct ggml_cgraph * other = ggml_new_graph(p.ctx);
    expand(&p, y);
    ggml_build_forward_expand(other, z);
    OK(ggml_backend_sched_alloc_graph(p.sched, p.graph));
    fill(w, 3, 0);
    fill(x, 2, 0);
    const void * where = w->data;
    for (int i = 0; i < 3; i++) {
        OK(ggml_backend_sched_graph_compute(p.sched, other));
        CHECK_AT(z, 0, 5);
        OK(ggml_backend_sched_graph_compute(p.sched, p.graph));
        CHECK_AT(y, 0, 6);
    }
    CHECK(w->data == where);
    OK(ggml_backend_sched_reset(p.sched));
    CHECK_INT(ggml_backend_sched_get_n_splits(p.sched), 0);
    OK(ggml_backend_sched_alloc_graph(p.sched, other));
    fill(w, 1, 0);
    fill(x, 1, 0);
    OK(ggml_backend_sched_graph_compute(p.sched, other));
    CHECK_AT(z, 0, 2);
    close_place(&p);
}

static void leafs_move_with_their_assignment(void) {
    OPEN(p, "SIM:name=A CPU");
    struct ggml_tensor *w = leaf(&p, "w", 4, 1), *y = ggml_sqr(p.ctx, w);
    expand(&p, y);
    OK(ggml_backend_sched_alloc_graph(p.sched, p.graph));
    fill(w, 3, 1);
    CHECK(!ggml_backend_buffer_is_host(w->buffer));
    OK(ggml_backend_sched_set_node_backend(p.sched, w, p.backends[1]));
    OK(ggml_backend_sched_graph_compute(p.sched, p.graph));
    CHECK(ggml_backend_buffer_is_host(w->buffer));
    CHECK_AT(y, 3, 36); // with its content
    OK(ggml_backend_sched_set_node_backend(p.sched, y, p.backends[1]));
    OK(ggml_backend_sched_graph_compute(p.sched, p.graph));
    CHECK_STR(splits(&p), "CPU:0-1");
    CHECK_AT(y, 3, 36);
    // a leaf in the user's memory cannot move
    struct ggml_cgraph * other = ggml_new_graph(p.ctx);
    struct ggml_tensor * fixed = put(&p, leaf(&p, "fixed", 4, 1), 1, false);
    ggml_build_forward_expand(other, ggml_sqr(p.ctx, fixed));
    OK(ggml_backend_sched_set_node_backend(p.sched, fixed, p.backends[0]));
    CHECK_INT(ggml_backend_sched_alloc_graph(p.sched, other), GGML_STATUS_INVALID_STATE);
    CHECK_ERROR(GGML_STATUS_INVALID_STATE, "tensor 'fixed' is assigned to backend A");
    close_place(&p);
}

// A graph in two parts: the second reads a result of the first, which nothing has overwritten.
static void results_of_earlier_graphs(void) {
    OPEN(p, "CPU");
    struct ggml_tensor *x = leaf(&p, "x", 64, 1), *a = ggml_sqr(p.ctx, x), *b = ggml_scale(p.ctx, a, 3.0f),
                       *c = ggml_sqr(p.ctx, b);
    expand(&p, c);
    struct ggml_cgraph first = ggml_graph_view(p.graph, 0, 2), second = ggml_graph_view(p.graph, 2, 3),
                       only_b = ggml_graph_view(p.graph, 1, 2);
    OK(ggml_backend_sched_alloc_graph(p.sched, &first));
    fill(x, 2, 0);
    for (int i = 0; i < 3; i++) {
        OK(ggml_backend_sched_graph_compute(p.sched, &first));
        OK(ggml_backend_sched_graph_compute(p.sched, &second));
        CHECK_AT(c, 63, 144);
    }
    CHECK_INT(ggml_backend_sched_graph_compute(p.sched, &only_b), GGML_STATUS_INVALID_STATE); // a was overwritten
    CHECK_ERROR(GGML_STATUS_INVALID_STATE, "not in memory any more");
    OK(ggml_backend_sched_graph_compute(p.sched, p.graph));
    CHECK_AT(c, 0, 144);
    close_place(&p);
}

static void two_schedulers_one_graph(void) {
    OPEN(p, "SIM:name=A CPU");
    ggml_backend_sched_t cpu_only = ggml_backend_sched_new(&p.backends[1], NULL, 1, 0);
    struct ggml_tensor *x = leaf(&p, "x", 4, 1), *a = ggml_sqr(p.ctx, x), *b = ggml_add(p.ctx, a, x);
    expand(&p, b);
    OK(ggml_backend_sched_alloc_graph(p.sched, p.graph));
    fill(x, 1, 1);
    for (int i = 0; i < 3; i++) {
        OK(ggml_backend_sched_graph_compute(p.sched, p.graph));
        CHECK_AT(b, 3, 20);
        CHECK(!ggml_backend_buffer_is_host(b->buffer));
        OK(ggml_backend_sched_graph_compute(cpu_only, p.graph));
        CHECK_AT(b, 3, 20);
        CHECK(ggml_backend_buffer_is_host(b->buffer));
        CHECK_AT(x, 3, 4); // still in memory of the first scheduler, on A
    }
    ggml_backend_sched_free(cpu_only);
    close_place(&p);
}

static void buffers_grow(void) {
    OPEN(p, "CPU");
    struct ggml_tensor *x = leaf(&p, "x", 4, 1), *y = ggml_sqr(p.ctx, x);
    expand(&p, y);
    OK(ggml_backend_sched_reserve(p.sched, p.graph));
    CHECK(x->data == NULL && y->data == NULL && x->buffer == NULL && y->buffer == NULL); // unchanged
    const size_t small = ggml_backend_sched_get_buffer_size(p.sched, p.backends[0]);
    CHECK_INT(small, 64 + 64); // for y, and for x
    OK(ggml_backend_sched_alloc_graph(p.sched, p.graph));
    fill(x, 1, 1);
    OK(ggml_backend_sched_graph_compute(p.sched, p.graph));
    struct ggml_cgraph * large = ggml_new_graph(p.ctx);
    struct ggml_tensor * big = ggml_repeat(p.ctx, x, leaf(&p, "shape", 4, 64));
    ggml_build_forward_expand(large, big);
    OK(ggml_backend_sched_graph_compute(p.sched, large));
    CHECK_AT(big, 255, 4);
    CHECK_AT(y, 3, 16); // the result of the smaller graph is unchanged
    OK(ggml_backend_sched_graph_compute(p.sched, p.graph));
    CHECK(y->buffer == ggml_backend_sched_get_buffer(p.sched, p.backends[0]));
    CHECK(ggml_backend_sched_get_buffer_size(p.sched, p.backends[0]) >= 1024);
    CHECK_AT(y, 3, 16);
    close_place(&p);
}

static void many_graphs(void) { // more graphs than the scheduler keeps
    OPEN(p, "SIM:name=A CPU");
    struct ggml_tensor *x = put(&p, leaf(&p, "x", 4, 1), 0, false), *first = NULL;
    struct ggml_cgraph * first_graph = NULL;
    fill(x, 2, 0);
    for (int i = 0; i < 3 * GB_SCHED_PLANS_MAX; i++) {
        struct ggml_cgraph * g = ggml_new_graph_custom(p.ctx, 8, false);
        struct ggml_tensor *y = leaf(&p, "y", 4, 1 + i % 5), *r = ggml_add(p.ctx, y, ggml_sqr(p.ctx, x));
        ggml_build_forward_expand(g, r);
        OK(ggml_backend_sched_alloc_graph(p.sched, g));
        fill(y, 1, 0);
        OK(ggml_backend_sched_graph_compute(p.sched, g));
        CHECK_AT(r, 0, 5);
        first_graph = i ? first_graph : g;
        first = i ? first : r;
    }
    CHECK(p.sched->plans.n <= GB_SCHED_PLANS_MAX);
    CHECK_INT(ggml_backend_sched_graph_compute(p.sched, first_graph), GGML_STATUS_INVALID_STATE); // no longer known
    CHECK_ERROR(GGML_STATUS_INVALID_STATE, "tensor 'y' has lost its content");
    OK(ggml_backend_sched_alloc_graph(p.sched, first_graph));
    fill(first->src[0], 3, 0);
    OK(ggml_backend_sched_graph_compute(p.sched, first_graph));
    CHECK_AT(first, 0, 7);
    OK(ggml_backend_sched_reset(p.sched));
    OK(ggml_backend_sched_graph_compute(p.sched, first_graph)); // allocated again; content undefined
    close_place(&p);
}

static void changed_graphs_are_noticed(void) {
    OPEN(p, "CPU");
    struct ggml_tensor *x = leaf(&p, "x", 4, 1), *y = ggml_scale(p.ctx, x, 2.0f), *z = ggml_sqr(p.ctx, y);
    expand(&p, z);
    OK(ggml_backend_sched_alloc_graph(p.sched, p.graph));
    fill(x, 1, 1);
    OK(ggml_backend_sched_graph_compute(p.sched, p.graph));
    CHECK_AT(z, 3, 64);
    const float three = 3.0f;
    memcpy(y->op_params, &three, sizeof(three));
    OK(ggml_backend_sched_graph_compute(p.sched, p.graph));
    CHECK_AT(z, 3, 144);
    z->op = GGML_OP_SQRT;
    OK(ggml_backend_sched_graph_compute(p.sched, p.graph));
    CHECK_AT(z, 2, 3);
    z->src[0] = x;
    OK(ggml_backend_sched_graph_compute(p.sched, p.graph));
    CHECK_AT(z, 3, 2);
    ggml_set_output(y); // now its memory must not be reused
    OK(ggml_backend_sched_graph_compute(p.sched, p.graph));
    CHECK(y->data != z->data);
    close_place(&p);
}

// -------------------------------------------------------------------------------------------------------- old programs

// As programs of early 2024 do: build with measure allocators, measure, build again, compute.
static struct ggml_cgraph * build_old(struct place * p, struct ggml_context * ctx, struct ggml_tensor ** input,
    struct ggml_tensor ** result) {
    ggml_tallocr_t alloc = ggml_backend_sched_get_tallocr(p->sched, p->backends[p->n - 1]);
    struct ggml_cgraph * graph = ggml_new_graph(ctx);
    struct ggml_tensor * x = ggml_new_tensor_1d(ctx, GGML_TYPE_F32, 8);
    OK(ggml_tallocr_alloc(alloc, x));
    if (!ggml_tallocr_is_measure(alloc)) {
        fill(x, 1, 1);
    }
    struct ggml_tensor * y = ggml_sqr(ctx, x);
    ggml_backend_sched_set_node_backend(p->sched, y, p->backends[0]);
    *result = ggml_add(ctx, y, x);
    *input = x;
    ggml_build_forward_expand(graph, *result);
    return graph;
}

static void two_steps(const char * devices) {
    OPEN(p, devices);
    struct ggml_tensor *x, *r;
    struct ggml_context * first = ggml_init((struct ggml_init_params){ 1 << 14, NULL, true });
    struct ggml_cgraph * measure = build_old(&p, first, &x, &r);
    CHECK(ggml_tallocr_is_measure(ggml_backend_sched_get_tallocr(p.sched, p.backends[0])));
    OK(ggml_backend_sched_init_measure(p.sched, measure));
    for (int i = 0; i < p.n; i++) {
        CHECK(ggml_backend_buffer_get_size(ggml_backend_sched_get_buffer(p.sched, p.backends[i])) > 0);
    }
    CHECK(x->data == NULL && r->data == NULL);
    ggml_free(first);
    for (int i = 0; i < 40; i++) { // a new graph each time
        struct ggml_context * ctx = ggml_init((struct ggml_init_params){ 1 << 14, NULL, true });
        ggml_backend_sched_reset(p.sched);
        struct ggml_cgraph * graph = build_old(&p, ctx, &x, &r);
        OK(ggml_backend_sched_graph_compute(p.sched, graph));
        CHECK_AT(r, 7, 72);
        CHECK_AT(x, 7, 8); // kept throughout
        CHECK(ggml_backend_sched_get_node_backend(p.sched, x) == p.backends[p.n - 1]);
        ggml_free(ctx);
    }
    close_place(&p);
}

static void two_steps_on_devices(void) {
    two_steps("CPU");
    two_steps("SIM:name=A CPU");
    two_steps("SIM:name=A SIM:name=B CPU");
}

// ------------------------------------------------------------------------------------------------------------ callback

struct watched {
    struct ggml_tensor * asked[16];
    struct ggml_tensor * shown[16];
    float value[16];
    int n_asked, n_shown;
    struct ggml_tensor * want[3];
    struct ggml_tensor * stop_at;
};

static bool watch(struct ggml_tensor * t, bool ask, void * user_data) {
    struct watched * w = user_data;
    if (ask) {
        w->asked[w->n_asked++] = t;
        return t == w->want[0] || t == w->want[1] || t == w->want[2];
    }
    w->value[w->n_shown] = at(t, 0);
    w->shown[w->n_shown++] = t;
    return t != w->stop_at;
}

static void callbacks(void) {
    OPEN(p, "SIM:name=A,delay=1ms SIM:name=B CPU");
    struct ggml_tensor *x = leaf(&p, "x", 4, 1), *a = ggml_scale(p.ctx, x, 2), *v = ggml_reshape_1d(p.ctx, a, 4),
                       *b = ggml_sqr(p.ctx, v);
    struct ggml_tensor *c = ggml_scale(p.ctx, b, 10), *d = ggml_sqr(p.ctx, c);
    expand(&p, d);
    OK(ggml_backend_sched_set_node_backend(p.sched, c, p.backends[1]));
    OK(ggml_backend_sched_set_node_backend(p.sched, b, p.backends[0]));
    OK(ggml_backend_sched_alloc_graph(p.sched, p.graph));
    fill(x, 1, 0);
    struct watched w = { .want = { v, b, c } };
    OK(ggml_backend_sched_set_eval_callback(p.sched, watch, &w));
    OK(ggml_backend_sched_graph_compute(p.sched, p.graph));
    struct ggml_tensor * order[] = { a, v, b, c, d };
    CHECK_INT(w.n_asked, 5);
    CHECK(memcmp(w.asked, order, sizeof(order)) == 0);
    CHECK_INT(w.n_shown, 3);
    CHECK(w.shown[0] == v && w.shown[1] == b && w.shown[2] == c);
    CHECK(w.value[0] == 2 && w.value[1] == 4 && w.value[2] == 40);
    CHECK_AT(d, 0, 1600);
    fill(x, 2, 0);
    struct watched stop = { .want = { b, c }, .stop_at = b };
    OK(ggml_backend_sched_set_eval_callback(p.sched, watch, &stop));
    CHECK_INT(ggml_backend_sched_graph_compute(p.sched, p.graph), GGML_STATUS_ABORTED);
    CHECK_INT(stop.n_shown, 1);
    // nodes that do not run leave NaN
    if (!test_runs_are_checked()) {
        CHECK_AT(d, 0, 1600); // no later node ran
    }
    OK(ggml_backend_sched_set_eval_callback(p.sched, NULL, NULL));
    OK(ggml_backend_sched_graph_compute(p.sched, p.graph));
    CHECK_AT(d, 0, 25600);
    close_place(&p);
}

// --------------------------------------------------------------------------------------------------- limits and errors

static void many_backends_and_splits(void) {
    char devices[512] = "";
    for (int i = 0; i < 18; i++) {
        snprintf(devices + strlen(devices), sizeof(devices) - strlen(devices), "SIM:name=D%d ", i);
    }
    strcat(devices, "CPU");
    OPEN(p, devices);
    struct ggml_tensor *x = leaf(&p, "x", 4, 1), *r = x;
    struct ggml_cgraph * graph = ggml_new_graph_custom(p.ctx, 2000, false);
    enum { N = 600 };
    for (int i = 0; i < N; i++) {
        r = ggml_add(p.ctx, r, x);
        OK(ggml_backend_sched_set_node_backend(p.sched, r, p.backends[i % p.n]));
    }
    ggml_build_forward_expand(graph, r);
    OK(ggml_backend_sched_alloc_graph(p.sched, graph));
    fill(x, 1, 0);
    OK(ggml_backend_sched_graph_compute(p.sched, graph));
    CHECK_INT(ggml_backend_sched_get_n_splits(p.sched), N);
    CHECK_AT(r, 0, N + 1);
    size_t n_inputs_of_x = 0; // one copy for each backend, not one for each reader
    for (size_t c = 0; c < p.sched->last->program.copies.n; c++) {
        n_inputs_of_x += p.sched->last->in.nodes[p.sched->last->program.copies.data[c].root] == x;
    }
    CHECK_INT(n_inputs_of_x, p.n - 1);
    close_place(&p);
}

static void arenas_in_chunks(void) {
    OPEN(p, "SIM:name=A,max=1K,align=64");
    struct ggml_tensor *x = leaf(&p, "x", 128, 1), *r[6], *sum = NULL;
    for (int i = 0; i < 6; i++) {
        r[i] = ggml_scale(p.ctx, x, (float) i);
        expand(&p, r[i]); // all of them first, so that all are alive at once
    }
    for (int i = 0; i < 6; i++) {
        sum = sum ? ggml_add(p.ctx, sum, r[i]) : r[i];
    }
    expand(&p, sum);
    OK(ggml_backend_sched_alloc_graph(p.sched, p.graph));
    fill(x, 1, 0);
    OK(ggml_backend_sched_graph_compute(p.sched, p.graph));
    CHECK_AT(sum, 127, 15);
    CHECK(r[0]->buffer != r[5]->buffer);
    CHECK(p.sched->devices[0].arena.n >= 3);
    struct ggml_cgraph * other = ggml_new_graph(p.ctx);
    ggml_build_forward_expand(other, ggml_sqr(p.ctx, leaf(&p, "huge", 16, 17)));
    CHECK_INT(ggml_backend_sched_alloc_graph(p.sched, other), GGML_STATUS_ALLOC_FAILED);
    CHECK_ERROR(GGML_STATUS_ALLOC_FAILED, "exceeds the largest buffer of backend A");
    OK(ggml_backend_sched_graph_compute(p.sched, p.graph));
    close_place(&p);
}

static void device_memory_runs_out(void) {
    OPEN(p, "SIM:name=A,mem=4K CPU");
    struct ggml_tensor *x = leaf(&p, "x", 16, 16), *y = ggml_sqr(p.ctx, x), *z = ggml_mul(p.ctx, ggml_sqr(p.ctx, y), y);
    expand(&p, z); // x 1K, y, sqr(y): 3K
    OK(ggml_backend_sched_alloc_graph(p.sched, p.graph));
    fill(x, 1, 0);
    OK(ggml_backend_sched_graph_compute(p.sched, p.graph));
    struct ggml_cgraph * large = ggml_new_graph(p.ctx);
    struct ggml_tensor * big = ggml_repeat(p.ctx, x, leaf(&p, "shape", 16, 64));
    ggml_build_forward_expand(large, big);
    CHECK_INT(ggml_backend_sched_graph_compute(p.sched, large), GGML_STATUS_ALLOC_FAILED);
    CHECK(big->data == NULL);
    OK(ggml_backend_sched_graph_compute(p.sched, p.graph)); // as before
    CHECK_AT(z, 255, 1);
    // with fewer nodes on the device it fits
    OK(ggml_backend_sched_set_node_backend(p.sched, big, p.backends[1]));
    OK(ggml_backend_sched_graph_compute(p.sched, large));
    CHECK_AT(big, 1023, 1);
    close_place(&p);
}

static void failing_devices(void) {
    OPEN(p, "SIM:name=A SIM:name=B,fail_op=sqr CPU");
    struct ggml_tensor *x = leaf(&p, "x", 4, 1), *a = ggml_scale(p.ctx, x, 2), *b = ggml_sqr(p.ctx, a),
                       *c = ggml_scale(p.ctx, b, 2);
    expand(&p, c);
    OK(ggml_backend_sched_set_node_backend(p.sched, a, p.backends[0]));
    OK(ggml_backend_sched_set_node_backend(p.sched, b, p.backends[1]));
    OK(ggml_backend_sched_set_node_backend(p.sched, c, p.backends[2]));
    OK(ggml_backend_sched_alloc_graph(p.sched, p.graph));
    fill(x, 1, 0);
    CHECK(ggml_backend_sched_graph_compute(p.sched, p.graph) < 0);
    CHECK_MSG(strstr(ggml_last_error(), "backend") && strstr(ggml_last_error(), "B"), "%s", ggml_last_error());
    OK(ggml_backend_sched_set_node_backend(p.sched, b, p.backends[0]));
    OK(ggml_backend_sched_graph_compute(p.sched, p.graph));
    CHECK_AT(c, 0, 8);
    close_place(&p);
}

// The scheduler does not access foreign backends, which may have been freed.
static void freed_foreign_backend(void) {
    OPEN(p, "SIM:name=A CPU");
    struct ggml_tensor * y = ggml_relu(p.ctx, leaf(&p, "x", 4, 1));
    expand(&p, y);
    OK(ggml_backend_sched_alloc_graph(p.sched, p.graph));
    ggml_backend_t freed = ggml_backend_cpu_init();
    struct ggml_backend_sched_arena arena;
    ggml_backend_free(freed);
    CHECK(ggml_backend_sched_set_node_backend(p.sched, y, freed) != GGML_STATUS_SUCCESS);
    CHECK_ERROR(GGML_STATUS_INVALID_ARGUMENT, "argument 'backend' is not a backend of this scheduler");
    CHECK(ggml_backend_sched_get_tallocr(p.sched, freed) == NULL);
    CHECK(ggml_backend_sched_get_buffer(p.sched, freed) == NULL);
    CHECK_INT(ggml_backend_sched_get_buffer_size(p.sched, freed), 0);
    CHECK_INT(ggml_backend_sched_get_work_size(p.sched, freed), 0);
    CHECK(ggml_backend_sched_get_arena(p.sched, freed, &arena) != GGML_STATUS_SUCCESS);
    CHECK(ggml_backend_sched_get_work_size(p.sched, NULL) == 0);
    CHECK_ERROR(GGML_STATUS_INVALID_ARGUMENT, "argument 'backend' is NULL");
    close_place(&p);
}

static void bad_arguments(void) {
    OPEN(p, "SIM:name=A CPU");
    struct ggml_tensor * x = leaf(&p, "x", 4, 1);
    ggml_backend_t twice[] = { p.backends[0], p.backends[1], p.backends[0] }, gap[] = { p.backends[0], NULL };
    ggml_backend_buffer_type_t swapped[] = { ggml_backend_get_default_buffer_type(p.backends[1]),
        ggml_backend_get_default_buffer_type(p.backends[0]) };
    ggml_backend_t foreign = ggml_backend_cpu_init();
    CHECK(ggml_backend_sched_new(NULL, NULL, 1, 0) == NULL);
    CHECK(ggml_backend_sched_new(p.backends, NULL, 0, 0) == NULL);
    CHECK(ggml_backend_sched_new(p.backends, NULL, -1, 0) == NULL);
    CHECK(ggml_backend_sched_new(twice, NULL, 3, 0) == NULL);
    CHECK_ERROR(GGML_STATUS_INVALID_ARGUMENT, "backend A occurs twice");
    CHECK(ggml_backend_sched_new(gap, NULL, 2, 0) == NULL);
    CHECK(ggml_backend_sched_new(p.backends, swapped, 2, 0) == NULL);
    ggml_backend_sched_free(NULL);
    CHECK(ggml_backend_sched_reset(NULL) != GGML_STATUS_SUCCESS);
    CHECK(ggml_backend_sched_alloc_graph(NULL, p.graph) != GGML_STATUS_SUCCESS);
    CHECK(ggml_backend_sched_alloc_graph(p.sched, NULL) != GGML_STATUS_SUCCESS);
    CHECK(ggml_backend_sched_graph_compute(p.sched, NULL) != GGML_STATUS_SUCCESS);
    CHECK(ggml_backend_sched_graph_compute_async(NULL, NULL) != GGML_STATUS_SUCCESS);
    CHECK(ggml_backend_sched_synchronize(NULL) != GGML_STATUS_SUCCESS);
    CHECK(ggml_backend_sched_init_measure(p.sched, NULL) != GGML_STATUS_SUCCESS);
    CHECK(ggml_backend_sched_set_node_backend(p.sched, NULL, p.backends[0]) != GGML_STATUS_SUCCESS);
    CHECK(ggml_backend_sched_set_node_backend(p.sched, x, foreign) != GGML_STATUS_SUCCESS);
    CHECK_ERROR(GGML_STATUS_INVALID_ARGUMENT, "not a backend of this scheduler");
    CHECK(ggml_backend_sched_get_node_backend(p.sched, x) == NULL);
    CHECK(ggml_backend_sched_get_node_backend(NULL, x) == NULL);
    CHECK(ggml_backend_sched_get_tallocr(p.sched, foreign) == NULL);
    CHECK(ggml_backend_sched_get_tallocr(p.sched, NULL) == NULL);
    CHECK(ggml_backend_sched_get_buffer(p.sched, p.backends[0]) == NULL);
    CHECK_INT(ggml_backend_sched_get_buffer_size(p.sched, foreign), 0);
    CHECK_INT(ggml_backend_sched_get_n_splits(NULL), 0);
    CHECK_INT(ggml_backend_sched_get_n_backends(p.sched), 2);
    CHECK(ggml_backend_sched_get_backend(p.sched, 1) == p.backends[1]);
    CHECK(ggml_backend_sched_get_backend(p.sched, 2) == NULL && ggml_backend_sched_get_backend(p.sched, -1) == NULL);
    size_t size;
    CHECK_INT(ggml_backend_sched_get_memory(p.sched, p.backends[0], &size, &size), GGML_STATUS_INVALID_STATE);
    struct ggml_backend_sched_split_info info;
    CHECK(ggml_backend_sched_get_split(p.sched, 0, &info) != GGML_STATUS_SUCCESS);
    CHECK(ggml_backend_sched_get_split_input(p.sched, 0, 0) == NULL);
    CHECK_STR(ggml_backend_sched_explain(p.sched, x), "");
    CHECK(ggml_backend_sched_set_policy(p.sched, (enum ggml_backend_sched_policy) 7) != GGML_STATUS_SUCCESS);
    struct ggml_tensor * nodes[] = { ggml_sqr(p.ctx, x), NULL };
    struct ggml_cgraph broken = { .size = 2, .n_nodes = 2, .nodes = nodes };
    CHECK_INT(ggml_backend_sched_alloc_graph(p.sched, &broken), GGML_STATUS_INVALID_ARGUMENT);
    nodes[1] = nodes[0];
    CHECK_INT(ggml_backend_sched_alloc_graph(p.sched, &broken), GGML_STATUS_INVALID_ARGUMENT);
    broken.n_nodes = -1;
    CHECK_INT(ggml_backend_sched_alloc_graph(p.sched, &broken), GGML_STATUS_INVALID_ARGUMENT);
    struct ggml_cgraph empty = { 0 };
    OK(ggml_backend_sched_graph_compute(p.sched, &empty));
    CHECK_INT(ggml_backend_sched_get_n_splits(p.sched), 0);
    OK(ggml_backend_sched_graph_compute(p.sched, p.graph)); // also an empty one
    ggml_backend_free(foreign);
    close_place(&p);
}

static void empty_tensors(void) {
    OPEN(p, "SIM:name=A CPU");
    struct ggml_tensor *x = leaf(&p, "x", 4, 0), *a = ggml_sqr(p.ctx, x), *b = ggml_scale(p.ctx, a, 2);
    expand(&p, b);
    OK(ggml_backend_sched_set_node_backend(p.sched, b, p.backends[1]));
    OK(ggml_backend_sched_graph_compute(p.sched, p.graph));
    CHECK(b->data != NULL);
    close_place(&p);
}

// ------------------------------------------------------------------------------------------------ third-party backends

// A backend with only the hooks of 2024: no plans, no queue. Its failures name it and change
// nothing.
static void third_party_backend(void) {
    struct fake f;
    fake_new(&f);
    OPEN(p, "CPU");
    ggml_backend_t backends[] = { &f.backend, p.backends[0] };
    ggml_backend_sched_t s = ggml_backend_sched_new(backends, NULL, 2, 0);
    struct ggml_tensor *x = leaf(&p, "x", 4, 1), *a = ggml_add(p.ctx, x, x), *b = ggml_sqr(p.ctx, a),
                       *c = ggml_add(p.ctx, b, x);
    expand(&p, c);
    for (int n = 1;; n++) { // each call of init_tensor fails in turn
        f.fail_init = n;
        const enum ggml_status status = ggml_backend_sched_alloc_graph(s, p.graph);
        if (f.fail_init > 0) {
            OK(status);
            CHECK(n > 3);
            break;
        }
        CHECK_INT(status, GGML_STATUS_DEVICE_ERROR);
        CHECK(!x->data && !a->data && !b->data && !c->data && !x->buffer && !a->buffer && !b->buffer && !c->buffer);
    }
    f.fail_init = 0;
    OK(ggml_backend_sched_graph_compute(s, p.graph));
    CHECK_INT(f.n_compute, 2);
    CHECK_INT(ggml_backend_sched_get_n_splits(s), 3);
    const int n_init = f.n_init;
    OK(ggml_backend_sched_graph_compute(s, p.graph));
    CHECK_INT(f.n_compute, 4);
    CHECK_INT(f.n_init, n_init); // allocated once
    f.fail_get = 1;
    CHECK_INT(ggml_backend_sched_graph_compute(s, p.graph), GGML_STATUS_DEVICE_ERROR);
    CHECK_ERROR(GGML_STATUS_DEVICE_ERROR, "split 1 (nodes 1 to 1) on backend CPU: fake: cannot read");
    CHECK_INT(f.n_compute, 5); // no later node ran
    OK(ggml_backend_sched_graph_compute(s, p.graph));
    ggml_backend_sched_free(s);
    CHECK_INT(f.n_buffers, 0);
    close_place(&p);
}

// The callback may query the scheduler, but not run or reset it.
static bool meddle(struct ggml_tensor * t, bool ask, void * user_data) {
    struct place * p = user_data;
    CHECK_INT(ggml_backend_sched_reset(p->sched), GGML_STATUS_INVALID_STATE);
    CHECK_INT(ggml_backend_sched_graph_compute(p->sched, p->graph), GGML_STATUS_INVALID_STATE);
    CHECK(ggml_backend_sched_get_node_backend(p->sched, t) == p->backends[0]);
    return ask || t != NULL;
}

static void callbacks_cannot_reenter(void) {
    OPEN(p, "CPU");
    struct ggml_tensor *x = leaf(&p, "x", 4, 1), *y = ggml_sqr(p.ctx, x);
    expand(&p, y);
    OK(ggml_backend_sched_alloc_graph(p.sched, p.graph));
    fill(x, 3, 0);
    OK(ggml_backend_sched_set_eval_callback(p.sched, meddle, &p));
    OK(ggml_backend_sched_graph_compute(p.sched, p.graph));
    CHECK_AT(y, 0, 9);
    OK(ggml_backend_sched_set_eval_callback(p.sched, NULL, NULL));
    OK(ggml_backend_sched_reset(p.sched));
    close_place(&p);
}

// ------------------------------------------------------------------------------------------------------- out of memory

// Each allocation fails in turn: no crash, no leak. Afterwards the same calls give right results.
static void every_allocation_fails(void) {
    OPEN(p, "SIM:name=A SIM:name=B CPU");
    struct ggml_tensor *w = put(&p, leaf(&p, "w", 4, 4), 0, true), *x = leaf(&p, "x", 4, 1),
                       *cache = put(&p, leaf(&p, "cache", 4, 2), 2, false);
    struct ggml_tensor *a = ggml_mul_mat(p.ctx, w, x), *b = ggml_sqr(p.ctx, a),
                       *write = ggml_cpy(p.ctx, b, ggml_view_1d(p.ctx, cache, 4, 16));
    struct ggml_tensor *c = ggml_add(p.ctx, b, ggml_view_1d(p.ctx, cache, 4, 16)), *d = ggml_scale_inplace(p.ctx, c, 2);
    expand(&p, write);
    expand(&p, d);
    fill(w, 1, 0);
    fill(cache, 0, 0);
    ggml_backend_sched_free(p.sched);
    p.sched = NULL;
    bool done = false;
    const int before = test_failures;
    for (int n = 1; !done && n < 2000; n++) {
        const int64_t live = gb_test_live_allocs();
        gb_test_fail_alloc(n, false);
        ggml_backend_sched_t s = ggml_backend_sched_new(p.backends, NULL, p.n, 0);
        bool ok = s != NULL;
        ok = ok && ggml_backend_sched_set_node_backend(s, b, p.backends[1]) == GGML_STATUS_SUCCESS;
        ok = ok && ggml_backend_sched_set_node_backend(s, d, p.backends[1]) == GGML_STATUS_SUCCESS;
        ok = ok && ggml_backend_sched_reserve(s, p.graph) == GGML_STATUS_SUCCESS;
        ok = ok && ggml_backend_sched_alloc_graph(s, p.graph) == GGML_STATUS_SUCCESS;
        if (ok) {
            float ones[4] = { 1, 1, 1, 1 };
            ok = ggml_backend_tensor_set(x, ones, 0, sizeof(ones)) == GGML_STATUS_SUCCESS;
        }
        ok = ok && ggml_backend_sched_graph_compute(s, p.graph) == GGML_STATUS_SUCCESS;
        done = !gb_test_alloc_failed();
        gb_test_fail_alloc(0, false);
        CHECK_MSG(ok || !done, "%s", ggml_last_error());
        if (s) { // again, with memory
            ggml_backend_sched_set_node_backend(s, b, p.backends[1]);
            ggml_backend_sched_set_node_backend(s, d, p.backends[1]);
            OK(ggml_backend_sched_alloc_graph(s, p.graph));
            fill(x, 1, 0);
            OK(ggml_backend_sched_graph_compute(s, p.graph));
            CHECK_AT(d, 3, 64);
            CHECK_AT(cache, 7, 16);
        }
        ggml_backend_sched_free(s);
        for (int i = 0; i < p.graph->n_nodes; i++) { // the owner of a freed buffer must forget it
            p.graph->nodes[i]->buffer = NULL;
            p.graph->nodes[i]->data = NULL;
        }
        x->buffer = NULL;
        x->data = NULL;
        CHECK_INT(gb_test_live_allocs(), live);
        if (test_failures > before) {
            fprintf(stderr, "allocation %d\n", n);
            break;
        }
    }
    CHECK(done);
    close_place(&p);
}

TEST_MAIN(TEST(one_cpu), TEST(second_run_allocates_nothing), TEST(weights_decide), TEST(users_are_obeyed),
    TEST(no_backend_supports_a_node), TEST(copies_are_renewed), TEST(only_what_is_read_is_copied),
    TEST(results_are_written_back), TEST(written_rows_are_written_back), TEST(in_place_goes_where_its_memory_is),
    TEST(plain_host_memory), TEST(every_source_slot_counts), TEST(leafs_keep_their_content),
    TEST(leafs_move_with_their_assignment), TEST(results_of_earlier_graphs), TEST(two_schedulers_one_graph),
    TEST(buffers_grow), TEST(many_graphs), TEST(changed_graphs_are_noticed), TEST(two_steps_on_devices),
    TEST(callbacks), TEST(many_backends_and_splits), TEST(arenas_in_chunks), TEST(device_memory_runs_out),
    TEST(failing_devices), TEST(bad_arguments), TEST(freed_foreign_backend), TEST(empty_tensors),
    TEST(third_party_backend), TEST(callbacks_cannot_reenter), TEST(every_allocation_fails))
