// Random programs against the public interface. The bytes of the input decide which call comes next
// and on which live objects, so a run can be repeated and reduced. Sanitizers find faults, and at
// the end no memory may be left.
//
// It does not use freed objects, which only a caller can do wrong. It frees all contexts before a
// buffer, an allocator or a scheduler, so no tensor refers to freed memory.
//
// With FUZZ_MAIN the program makes its own inputs: GGML_TEST_FUZZ_RUNS of them (default: for some
// seconds) from GGML_TEST_FUZZ_SEED on, or it reads the given files. GGML_TEST_FUZZ_VERBOSE prints
// each input before it runs. Without FUZZ_MAIN it is a libFuzzer target.
#ifndef _GNU_SOURCE
#    define _GNU_SOURCE // mkstemp
#endif
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/mem.h"
#include "ggml-backend-impl.h"
#include "ggml-cpu.h"
#include "tensor/record.h"

int LLVMFuzzerTestOneInput(const uint8_t * data, size_t size);

enum {
    N_CTX = 3,
    N_TENSORS = 64,
    N_GRAPHS = 6,
    N_BACKENDS = 3,
    N_BUFFERS = 6,
    N_TALLOCRS = 4,
    N_SCHEDS = 2,
    N_PLANS = 3,
    N_ALLOCRS = 2,
    FIXED_SIZE = 1 << 15,
    HOST_SIZE = 1 << 16,
    MAX_ELEMENTS = 1 << 12,
    MAX_STEPS = 400,
};

static const uint8_t * input;
static size_t left;

static struct {
    struct ggml_context * ctx[N_CTX];
    struct ggml_tensor * t[N_TENSORS];
    int n_tensors; // stored so far
    struct ggml_cgraph * g[N_GRAPHS];
    ggml_backend_t backend[N_BACKENDS]; // CPU, SIM, SIM
    ggml_backend_buffer_t buffer[N_BUFFERS];
    ggml_tallocr_t tallocr[N_TALLOCRS];
    ggml_gallocr_t gallocr;
    ggml_allocr_t allocr[N_ALLOCRS];
    ggml_backend_sched_t sched[N_SCHEDS];
    struct plan {
        ggml_backend_t backend;
        ggml_backend_graph_plan_t plan;
        struct ggml_cgraph * graph;
    } plan[N_PLANS];
} live;

static _Alignas(64) char fixed[N_CTX][FIXED_SIZE];
static _Alignas(64) char host[HOST_SIZE]; // memory of the caller
static char bytes[HOST_SIZE];             // of transfers; must outlive queued work

// ------------------------------------------------------------------------------------------------------------ choosing

static uint8_t byte(void) {
    if (left == 0) {
        return 0;
    }
    left--;
    return *input++;
}

static unsigned pick(unsigned n) { return byte() % n; }

static struct ggml_context * ctx(void) {
    const unsigned i = pick(2 * N_CTX);
    return live.ctx[i < N_CTX ? i : 0];
}

static struct ggml_tensor * tensor(void) { // sometimes NULL
    return live.t[byte() % N_TENSORS];
}

static struct ggml_tensor * some(void) { // a tensor, unless there is none
    const int n = live.n_tensors < N_TENSORS ? live.n_tensors : N_TENSORS;
    const uint8_t what = byte();
    const int back = what < 128 ? what % 4 : what; // mostly recent ones
    return n > 0 ? live.t[(live.n_tensors - 1 - back % n) % N_TENSORS] : NULL;
}

static struct ggml_cgraph * graph(void) {
    const unsigned i = byte();
    for (unsigned k = 0; k < N_GRAPHS && i < 240; k++) { // an existing one
        if (live.g[(i + k) % N_GRAPHS] != NULL) {
            return live.g[(i + k) % N_GRAPHS];
        }
    }
    return live.g[i % N_GRAPHS];
}

static ggml_backend_t backend(void) { return live.backend[pick(N_BACKENDS)]; }

static int dim(void) {
    static const int dims[] = { 1, 2, 3, 4, 8, 0, 5, 32, 4, 4, 4, 4, 4, 1, 1, 8 };
    return dims[pick(16)];
}

static size_t offset(void) {
    static const size_t offsets[] = { 0, 4, 16, 32, 64, 3, 100, SIZE_MAX, 0, 0, 0, 16, 16, 16, 64, 64 };
    return offsets[pick(16)];
}

static enum ggml_type type(void) {
    static const enum ggml_type types[] = { GGML_TYPE_F32, GGML_TYPE_F32, GGML_TYPE_F32, GGML_TYPE_F16, GGML_TYPE_I32,
        GGML_TYPE_BF16, GGML_TYPE_Q8_0, GGML_TYPE_Q4_0, GGML_TYPE_I8, GGML_TYPE_I64 };
    return types[pick(10)];
}

static void keep(struct ggml_tensor * t) {
    if (t != NULL && ggml_nelements(t) <= MAX_ELEMENTS) {
        live.t[live.n_tensors++ % N_TENSORS] = t;
    }
}

// Counts calls and successes, to detect a fuzzer whose calls all fail.
static long n_computed, n_sched_computed, n_allocated, n_copied, n_imported, n_file_computed;

static void count(long * n, bool ok) { *n += ok; }

// ------------------------------------------------------------------------------------------------------------- freeing

static void free_plans(void) {
    for (int i = 0; i < N_PLANS; i++) {
        ggml_backend_graph_plan_free(live.plan[i].backend, live.plan[i].plan);
        live.plan[i] = (struct plan){ NULL, NULL, NULL };
    }
}

// Frees all contexts, because tensors of one context may refer to another.
static void free_contexts(void) {
    free_plans();
    for (int b = 0; b < N_BACKENDS; b++) {
        ggml_backend_synchronize(live.backend[b]);
    }
    for (int i = 0; i < N_CTX; i++) {
        ggml_free(live.ctx[i]);
        live.ctx[i] = NULL;
    }
    memset(live.t, 0, sizeof(live.t));
    memset(live.g, 0, sizeof(live.g));
    live.n_tensors = 0;
}

static void make_first_context(void) { live.ctx[0] = ggml_init((struct ggml_init_params){ 0, NULL, byte() % 2 != 0 }); }

static void free_all(void) {
    free_contexts();
    for (int i = 0; i < N_SCHEDS; i++) {
        ggml_backend_sched_free(live.sched[i]);
    }
    for (int i = 0; i < N_TALLOCRS; i++) {
        ggml_tallocr_free(live.tallocr[i]);
    }
    for (int i = 0; i < N_ALLOCRS; i++) {
        ggml_allocr_free(live.allocr[i]);
    }
    ggml_gallocr_free(live.gallocr);
    for (int i = 0; i < N_BUFFERS; i++) {
        ggml_backend_buffer_free(live.buffer[i]);
    }
    for (int i = 0; i < N_BACKENDS; i++) {
        ggml_backend_free(live.backend[i]);
    }
    memset(&live, 0, sizeof(live));
}

// ------------------------------------------------------------------------------------------------------------- calling

static void do_context(void) {
    const unsigned i = pick(N_CTX), kind = pick(8);
    if (live.ctx[i] == NULL) {
        const struct ggml_init_params params[] = { { 0, NULL, true }, { 1000, NULL, true },
            { FIXED_SIZE, fixed[i], true }, { FIXED_SIZE, fixed[i], false }, { 4000, NULL, false },
            { FIXED_SIZE - 1, fixed[i] + 1, false }, { 0, NULL, true }, { 500, fixed[i], true } };
        live.ctx[i] = ggml_init(params[kind]);
    } else if (kind == 0 && pick(4) == 0) {
        free_contexts();
        make_first_context();
    } else if (kind == 1) {
        ggml_set_no_alloc(live.ctx[i], pick(2) == 1);
    }
}

static void do_tensor(void) {
    const enum ggml_type ty = type();
    const unsigned like = pick(3); // a tensor that fits the other
    const struct ggml_tensor * other = like == 0 ? some() : NULL;
    if (other != NULL) {
        keep(ggml_new_tensor(ctx(), pick(4) ? other->type : ty, GGML_MAX_DIMS, other->ne));
        return;
    }
    const int64_t ne[] = { ggml_blck_size(ty) > 1 ? 32 * (int64_t) (1 + pick(2)) : dim(), dim(), 1 + pick(2),
        pick(8) ? 1 : pick(3) };
    keep(ggml_new_tensor(ctx(), ty, 1 + (int) pick(4), ne));
}

static void do_unary(void) {
    struct ggml_context * c = ctx();
    struct ggml_tensor * a = some();
    switch (pick(20)) {
        case 0: keep(ggml_unary(c, a, (enum ggml_unary_op) pick(GGML_UNARY_OP_COUNT + 1))); break;
        case 1: keep(ggml_unary_inplace(c, a, (enum ggml_unary_op) pick(GGML_UNARY_OP_COUNT))); break;
        case 2: keep(ggml_sqr(c, a)); break;
        case 3: keep(ggml_scale_inplace(c, a, 0.5f)); break;
        case 4: keep(ggml_sum(c, a)); break;
        case 5: keep(ggml_sum_rows(c, a)); break;
        case 6: keep(ggml_mean(c, a)); break;
        case 7: keep(ggml_argmax(c, a)); break;
        case 8: keep(ggml_norm(c, a, 1e-5f)); break;
        case 9: keep(ggml_rms_norm_inplace(c, a, 1e-5f)); break;
        case 10: keep(ggml_group_norm(c, a, (int) pick(5))); break;
        case 11: keep(ggml_soft_max_ext(c, a, tensor(), 0.5f)); break;
        case 12: keep(ggml_diag_mask_inf(c, a, (int) pick(4))); break;
        case 13: keep(ggml_alibi(c, a, (int) pick(4), (int) pick(5), 8.0f)); break;
        case 14: keep(ggml_clamp(c, a, -1.0f, 1.0f)); break;
        case 15: keep(ggml_argsort(c, a, (enum ggml_sort_order) pick(3))); break;
        case 16: keep(ggml_diag(c, a)); break;
        case 17: keep(ggml_pad(c, a, (int) pick(3), (int) pick(3), (int) pick(3), (int) pick(3))); break;
        case 18: keep(ggml_upscale(c, a, (int) pick(4))); break;
        default:
            keep(ggml_pool_2d(c, a, (enum ggml_op_pool) pick(3), (int) pick(4), (int) pick(4), (int) pick(3),
                (int) pick(3), (float) pick(2), (float) pick(2)));
            break;
    }
}

static void do_binary(void) {
    struct ggml_context * c = ctx();
    struct ggml_tensor * a = some();
    struct ggml_tensor * b = some();
    switch (pick(20)) {
        case 0: keep(ggml_add(c, a, b)); break;
        case 1: keep(ggml_add_inplace(c, a, b)); break;
        case 2: keep(ggml_mul(c, a, b)); break;
        case 3: keep(ggml_div_inplace(c, a, b)); break;
        case 4: keep(ggml_sub(c, a, b)); break;
        case 5:
        case 6: keep(ggml_mul_mat(c, a, b)); break;
        case 7: keep(ggml_out_prod(c, a, b)); break;
        case 8: keep(ggml_get_rows(c, a, b)); break;
        case 9: keep(ggml_cpy(c, a, b)); break;
        case 10: keep(ggml_repeat(c, a, b)); break;
        case 11: keep(ggml_concat(c, a, b)); break;
        case 12: keep(ggml_rope(c, a, b, (int) pick(9), (int) pick(8), (int) pick(4))); break;
        case 13: keep(ggml_acc(c, a, b, offset(), offset(), offset(), offset())); break;
        case 14: keep(ggml_set_1d_inplace(c, a, b, offset())); break;
        case 15: keep(ggml_add1(c, a, b)); break;
        case 16:
            keep(ggml_im2col(c, a, b, 1 + (int) pick(2), 1, (int) pick(2), (int) pick(2), 1, 1, pick(2) == 1));
            break;
        case 17: keep(ggml_mul_mat_id(c, live.t, (int) pick(4), b, (int) pick(3), a)); break;
        case 18: keep(ggml_cross_entropy_loss(c, a, b)); break;
        default: keep(ggml_flash_attn(c, a, b, some(), pick(2) == 1)); break;
    }
}

static void do_view(void) {
    struct ggml_context * c = ctx();
    struct ggml_tensor * a = some();
    switch (pick(12)) {
        case 0: keep(ggml_view_tensor(c, a)); break;
        case 1: keep(ggml_view_1d(c, a, dim(), offset())); break;
        case 2: keep(ggml_view_2d(c, a, dim(), dim(), offset(), offset())); break;
        case 3: keep(ggml_view_3d(c, a, dim(), dim(), dim(), offset(), offset(), offset())); break;
        case 4: keep(ggml_reshape(c, a, some())); break;
        case 5: keep(ggml_reshape_2d(c, a, dim(), dim())); break;
        case 6: keep(ggml_permute(c, a, (int) pick(4), (int) pick(4), (int) pick(4), (int) pick(5))); break;
        case 7: keep(ggml_transpose(c, a)); break;
        case 8: keep(ggml_cont(c, a)); break;
        case 9: keep(ggml_cast(c, a, type())); break;
        case 10: keep(ggml_dup_inplace(c, a)); break;
        default: keep(ggml_dup_tensor(c, a)); break;
    }
}

static void do_flags(void) {
    struct ggml_tensor * t = some();
    switch (pick(4)) {
        case 0: ggml_set_input(t); break;
        case 1: ggml_set_output(t); break;
        case 2: ggml_set_param(ctx(), t); break;
        default: ggml_set_name(t, "named"); break;
    }
}

static void do_graph(void) {
    const unsigned i = pick(N_GRAPHS);
    struct ggml_cgraph view;
    switch (pick(12)) {
        case 0: live.g[i] = ggml_new_graph_custom(ctx(), pick(8), pick(2) == 1); break;
        case 1: live.g[i] = ggml_graph_dup(ctx(), graph()); break;
        case 2: ggml_graph_cpy(graph(), live.g[i]); break;
        case 3: ggml_graph_clear(live.g[i]); break;
        case 4: ggml_graph_reset(live.g[i]); break;
        case 5: ggml_build_backward_expand(ctx(), live.g[i], graph(), pick(2) == 1); break;
        case 6:
            view = ggml_graph_view(live.g[i], (int) pick(4), (int) pick(8));
            ggml_backend_graph_compute(backend(), &view);
            break;
        default:
            if (live.g[i] == NULL) {
                live.g[i] = ggml_new_graph_custom(ctx(), 1 + pick(40), pick(4) == 0);
            }
            ggml_build_forward_expand(live.g[i], some());
            break;
    }
}

static bool stop_at_some(void * data) {
    (void) data;
    return byte() % 16 == 15;
}

static bool seen(int i, struct ggml_tensor * a, struct ggml_tensor * b, void * data) {
    (void) i, (void) a, (void) b, (void) data;
    return byte() % 8 != 7;
}

static void do_compute(void) {
    ggml_backend_t b = live.backend[pick(2) ? pick(N_BACKENDS) : 0];
    struct ggml_cgraph * g = graph();
    const unsigned i = pick(N_PLANS);
    switch (pick(10)) {
        case 0:
            count(&n_computed,
                ggml_graph_compute_with_ctx(ctx(), g, 1 + (int) pick(2)) == GGML_STATUS_SUCCESS && g->n_nodes > 0);
            break;
        case 1:
            if (live.plan[i].plan == NULL) {
                live.plan[i] = (struct plan){ b, ggml_backend_graph_plan_create(b, g), g };
            }
            break;
        case 2: ggml_backend_graph_plan_compute(b, live.plan[i].plan); break;
        case 3:
            ggml_backend_graph_plan_free(live.plan[i].backend, live.plan[i].plan);
            live.plan[i] = (struct plan){ NULL, NULL, NULL };
            break;
        case 4: ggml_backend_graph_copy_free(ggml_backend_graph_copy(b, g)); break;
        case 5: ggml_backend_compare_graph_backend(b, backend(), g, seen, NULL); break;
        case 6: ggml_backend_cpu_set_abort_callback(b, pick(2) ? stop_at_some : NULL, NULL); break;
        default:
            count(&n_computed, ggml_backend_graph_compute(b, g) && g->n_nodes > 0);
            ggml_backend_synchronize(b);
            break;
    }
}

static void do_data(void) {
    struct ggml_tensor * t = some();
    const size_t n = ggml_nbytes(t) < HOST_SIZE ? ggml_nbytes(t) : HOST_SIZE;
    switch (pick(10)) {
        case 0: ggml_backend_tensor_set(t, bytes, 0, n); break;
        case 1: ggml_backend_tensor_get(t, bytes, 0, n); break;
        case 2: ggml_backend_tensor_set_async(backend(), t, bytes, offset(), offset()); break;
        case 3: ggml_backend_tensor_get_async(backend(), t, bytes, 0, n); break;
        case 4: count(&n_copied, ggml_backend_tensor_copy(t, some()) == GGML_STATUS_SUCCESS); break;
        case 5: ggml_backend_tensor_copy_async(backend(), t, some()); break;
        case 6: ggml_set_f32(t, (float) pick(4)); break;
        case 7: ggml_get_f32_nd(t, (int) pick(9), (int) pick(9), (int) pick(3), 0); break;
        case 8: ggml_set_i32_1d(t, (int) pick(64), (int) pick(8)); break;
        default: ggml_set_zero(t); break;
    }
}

static void do_buffer(void) {
    const unsigned i = pick(N_BUFFERS);
    ggml_backend_buffer_t * b = &live.buffer[i];
    char * base = NULL;
    switch (pick(10)) {
        case 0:
            if (*b == NULL) {
                *b = ggml_backend_alloc_buffer(backend(), (size_t) pick(16) * 512);
            }
            break;
        case 1:
            if (*b == NULL) {
                *b = ggml_backend_cpu_buffer_from_ptr(host, HOST_SIZE - pick(2));
            }
            break;
        case 2:
            if (*b == NULL) {
                *b = ggml_backend_alloc_ctx_tensors(ctx(), backend());
            }
            break;
        case 3:
            if (pick(4) == 0) {
                free_contexts();
                make_first_context();
                for (int k = 0; k < N_TALLOCRS; k++) { // may be on the buffer
                    ggml_tallocr_free(live.tallocr[k]);
                    live.tallocr[k] = NULL;
                }
                ggml_backend_buffer_free(*b);
                *b = NULL;
            }
            break;
        case 4: ggml_backend_buffer_clear(*b, byte()); break;
        case 5: ggml_backend_buffer_set_usage(*b, (enum ggml_backend_buffer_usage) pick(3)); break;
        case 6: ggml_backend_view_init(*b, some()); break;
        case 7: ggml_backend_buffer_reset(*b); break;
        default:
            base = *b ? ggml_backend_buffer_get_base(*b) : NULL;
            ggml_backend_tensor_alloc(*b, some(), base ? base + 64 * pick(64) : NULL);
            break;
    }
}

static void do_tallocr(void) {
    const unsigned i = pick(N_TALLOCRS);
    ggml_tallocr_t * t = &live.tallocr[i];
    switch (pick(12)) {
        case 0: *t = *t ? *t : ggml_tallocr_new(host, HOST_SIZE / 2, (size_t) 1 << pick(8)); break;
        case 1: *t = *t ? *t : ggml_tallocr_new_measure((size_t) 1 << pick(8)); break;
        case 2: *t = *t ? *t : ggml_tallocr_new_from_backend(backend(), (size_t) pick(64) * 256); break;
        case 3: *t = *t ? *t : ggml_tallocr_new_from_buffer(live.buffer[pick(N_BUFFERS)]); break;
        case 4: *t = *t ? *t : ggml_tallocr_new_measure_from_backend(backend()); break;
        case 5: ggml_tallocr_reset(*t); break;
        case 6:
            if (pick(4) == 0) {
                free_contexts();
                make_first_context();
                ggml_tallocr_free(*t);
                *t = NULL;
            }
            break;
        case 7:
        case 8: ggml_tallocr_alloc(*t, some()); break;
        default:
            if (live.gallocr == NULL) {
                live.gallocr = ggml_gallocr_new();
            }
            if (pick(8) == 0) {
                const int list[] = { (int) pick(4), (int) pick(4) - 1, (int) pick(4), -1 };
                ggml_gallocr_set_parse_seq(live.gallocr, list, (int) pick(5));
            }
            count(&n_allocated, ggml_gallocr_alloc_graph(live.gallocr, *t, graph()) > 0);
            break;
    }
}

static void do_allocr(void) {
    ggml_allocr_t * a = &live.allocr[pick(N_ALLOCRS)];
    switch (pick(8)) {
        case 0: *a = *a ? *a : ggml_allocr_new_measure((size_t) 1 << pick(7)); break;
        case 1: *a = *a ? *a : ggml_allocr_new_from_backend(backend(), (size_t) pick(64) * 256); break;
        case 2: ggml_allocr_reset(*a); break;
        case 3: ggml_allocr_alloc(*a, some()); break;
        case 4:
            if (pick(4) == 0) {
                free_contexts();
                make_first_context();
                ggml_allocr_free(*a);
                *a = NULL;
            }
            break;
        default: ggml_allocr_alloc_graph(*a, graph()); break;
    }
}

static bool sched_seen(struct ggml_tensor * t, bool ask, void * data) {
    (void) t, (void) data;
    return ask ? byte() % 4 == 0 : byte() % 16 != 15;
}

static void ask_sched(ggml_backend_sched_t s) {
    struct ggml_backend_sched_split_info info;
    size_t peak, no_reuse;
    for (int i = 0; i <= ggml_backend_sched_get_n_splits(s); i++) {
        if (ggml_backend_sched_get_split(s, i, &info) == GGML_STATUS_SUCCESS) {
            ggml_backend_sched_get_split_input(s, i, (int) pick(3));
        }
    }
    ggml_backend_sched_explain(s, tensor());
    ggml_backend_sched_get_memory(s, backend(), &peak, &no_reuse);
    ggml_backend_sched_get_buffer_size(s, backend());
    ggml_backend_sched_get_node_backend(s, tensor());
}

static void do_sched(void) {
    ggml_backend_sched_t * s = &live.sched[pick(N_SCHEDS)];
    struct ggml_cgraph * g = pick(2) ? graph() : ggml_new_graph_custom(ctx(), 20, false);
    ggml_build_forward_expand(g, some());
    if (*s == NULL) {
        const unsigned first = pick(N_BACKENDS), n = 1 + pick(N_BACKENDS);
        ggml_backend_t list[N_BACKENDS];
        for (unsigned i = 0; i < n; i++) {
            list[i] = live.backend[(first + i) % N_BACKENDS];
        }
        *s = ggml_backend_sched_new(list, NULL, (int) n, pick(8));
    }
    switch (pick(14)) {
        case 0: ggml_backend_sched_reserve(*s, g); break;
        case 1:
        case 2: ggml_backend_sched_alloc_graph(*s, g); break;
        case 3:
        case 4:
            count(&n_sched_computed, ggml_backend_sched_graph_compute(*s, g) == GGML_STATUS_SUCCESS &&
                                         ggml_backend_sched_get_n_splits(*s) > 0);
            break;
        case 5: ggml_backend_sched_graph_compute_async(*s, g); break;
        case 6: ggml_backend_sched_synchronize(*s); break;
        case 7: ggml_backend_sched_reset(*s); break;
        case 8: ggml_backend_sched_set_node_backend(*s, some(), pick(4) ? backend() : NULL); break;
        case 9: ggml_backend_sched_set_policy(*s, (enum ggml_backend_sched_policy) pick(3)); break;
        case 10: ggml_backend_sched_set_eval_callback(*s, pick(2) ? sched_seen : NULL, NULL); break;
        case 11: ggml_tallocr_alloc(ggml_backend_sched_get_tallocr(*s, backend()), some()); break;
        case 12: ask_sched(*s); break;
        default:
            if (pick(4) == 0) {
                free_contexts();
                make_first_context();
                ggml_backend_sched_free(*s);
                *s = NULL;
            }
            break;
    }
}

// --------------------------------------------------------------------------------------------------------------- files

enum { FILE_SIZE = 1 << 16, HEADER_SIZE = 24 };

// The position of tensor i's record in the graph's file.
static size_t record_at(const struct ggml_cgraph * g, int i) {
    size_t at = HEADER_SIZE;
    for (int k = 0; k < i; k++) {
        at += GB_RECORD_SIZE + (k < g->n_leafs ? ggml_nbytes(g->leafs[k]) : (size_t) GB_SOURCES_SIZE);
    }
    return at;
}

// Changes a stride of a tensor, or sometimes another field.
static void damage_record(const struct ggml_cgraph * g, uint8_t * file, size_t size) {
    const int i = (int) (byte() % (unsigned) (g->n_leafs + g->n_nodes));
    const struct ggml_tensor * t = i < g->n_leafs ? g->leafs[i] : g->nodes[i - g->n_leafs];
    const size_t at = record_at(g, i);
    const unsigned d = pick(4), what = pick(8);
    const size_t nb = t->nb[d], element = ggml_type_size(t->type);
    const uint64_t strides[16] = { 0, 1, 2, 3, 4, 6, 8, nb / 2, nb - 1, nb + 1, nb - element, nb + element, 2 * nb,
        t->nb[(d + 1) % 4], element, byte() };
    const uint64_t sizes[8] = { 0, 1, 2, 3, (uint64_t) t->ne[d] + 1, (uint64_t) t->ne[d] * 2, (uint64_t) t->ne[d] / 2,
        (uint64_t) -1 };
    const uint64_t value = what < 6 ? strides[pick(16)] : sizes[pick(8)];
    if (what == 7) {
        file[((size_t) byte() << 8 | byte()) % size] = byte();
    } else {
        memcpy(file + at + 8 + 16 * (size_t) d + (what < 6 ? 8 : 0), &value, sizeof(value));
    }
}

// Imports a file and computes what it describes.
static void use_file(const char * path) {
    struct ggml_context *data, *eval;
    struct ggml_cgraph * g = ggml_graph_import(path, &data, &eval);
    count(&n_imported, g != NULL);
    if (g != NULL) {
        count(&n_file_computed, ggml_backend_graph_compute(live.backend[0], g));
        ggml_free(data);
        ggml_free(eval);
    }
}

// Exports a graph, damages the file, and computes the graph read from it.
static void round_trip(struct ggml_cgraph * g) {
    static uint8_t file[FILE_SIZE];
    char path[] = "/tmp/gb_fuzz_XXXXXX";
    const int fd = mkstemp(path);
    if (fd < 0) {
        return;
    }
    if (ggml_graph_export(g, path) == GGML_STATUS_SUCCESS) { // replaces the file
        FILE * f = fopen(path, "r+b");
        const size_t size = f != NULL ? fread(file, 1, sizeof(file), f) : 0;
        for (unsigned n = size > HEADER_SIZE ? 1 + pick(3) : 0; n > 0; n--) {
            damage_record(g, file, size);
        }
        if (f != NULL) {
            rewind(f);
            fwrite(file, 1, size, f);
            fclose(f);
            use_file(path);
        }
    }
    close(fd);
    unlink(path);
}

// A graph in its own context, whose tensors have data.
static void do_file(void) {
    static struct ggml_context * none[N_CTX];
    struct ggml_context * ctxs[N_CTX];
    struct ggml_tensor * tensors[N_TENSORS];
    const int n_tensors = live.n_tensors;
    struct ggml_context * own = ggml_init((struct ggml_init_params){ 0, NULL, false });
    memcpy(ctxs, live.ctx, sizeof(ctxs));
    memcpy(tensors, live.t, sizeof(tensors));
    memcpy(live.ctx, none, sizeof(none));
    live.ctx[0] = own;
    live.n_tensors = 0;
    for (int i = 0; i < 3; i++) {
        do_tensor();
    }
    for (unsigned i = 2 + pick(8); i > 0; i--) {
        void (*const make[])(void) = { do_unary, do_binary, do_binary, do_view };
        make[pick(4)]();
    }
    struct ggml_cgraph * g = ggml_new_graph_custom(own, 64, false);
    for (unsigned i = 1 + pick(3); i > 0; i--) {
        ggml_build_forward_expand(g, some());
    }
    for (int i = 0; g != NULL && i < g->n_leafs; i++) {
        ggml_set_zero(g->leafs[i]);
    }
    if (g != NULL && g->n_nodes > 0) {
        round_trip(g);
    }
    memcpy(live.ctx, ctxs, sizeof(ctxs));
    memcpy(live.t, tensors, sizeof(tensors));
    live.n_tensors = n_tensors;
    ggml_free(own);
}

static void (*const actions[])(void) = {
    do_context,
    do_tensor,
    do_tensor,
    do_tensor,
    do_unary,
    do_unary,
    do_binary,
    do_binary,
    do_view,
    do_flags,
    do_graph,
    do_graph,
    do_graph,
    do_compute,
    do_compute,
    do_data,
    do_data,
    do_buffer,
    do_buffer,
    do_tallocr,
    do_allocr,
    do_sched,
    do_sched,
    do_sched,
    do_file,
};

// Returns how many allocations are left.
static long long run_input(const uint8_t * data, size_t size) {
    const int64_t before = gb_test_live_allocs();
    ggml_log_set(ggml_log_discard, NULL);
    input = data;
    left = size;
    live.backend[0] = ggml_backend_cpu_init();
    ggml_backend_cpu_set_n_threads(live.backend[0], 1 + (int) pick(2));
    live.backend[1] = ggml_backend_reg_init_backend_from_str("SIM:mem=256k,max=64k,threads=1,name=A");
    live.backend[2] = ggml_backend_reg_init_backend_from_str(pick(2) ? "SIM:mem=64k,noops=mul_mat,name=B,threads=1"
                                                                     : "SIM:name=B,align=256,threads=1,max=4k");
    make_first_context();
    for (int i = 0; left > 0 && i < MAX_STEPS; i++) {
        const uint8_t what = byte();
        gb_test_fail_alloc(what >= 246 ? what - 245 : 0, what % 2 == 0); // the next action runs out of memory
        actions[what % (sizeof(actions) / sizeof(actions[0]))]();
        gb_test_fail_alloc(0, false);
        ggml_clear_error();
    }
    free_all();
    return (long long) (gb_test_live_allocs() - before);
}

int LLVMFuzzerTestOneInput(const uint8_t * data, size_t size) {
    if (run_input(data, size) != 0) { // the library keeps some threads after the first computation, and no more later
        const long long n = run_input(data, size);
        if (n != 0) {
            fprintf(stderr, "%lld allocations are left\n", n);
            abort();
        }
    }
    return 0;
}

// ---------------------------------------------------------------------------------------------------------------- main

#ifdef FUZZ_MAIN
#include <time.h>

static unsigned long long seed; // of the run

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
void __sanitizer_set_death_callback(void (*callback)(void));

static void tell_seed(void) { fprintf(stderr, "repeat with GGML_TEST_FUZZ_SEED=%llu GGML_TEST_FUZZ_RUNS=1\n", seed); }
#endif

static uint64_t next(uint64_t * state) { // SplitMix64
    uint64_t x = (*state += 0x9e3779b97f4a7c15u);
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return x ^ (x >> 31);
}

static void run_seed(void) {
    static uint8_t data[4096];
    uint64_t state = seed;
    const size_t size = 64 + next(&state) % (sizeof(data) - 64);
    for (size_t i = 0; i < size; i++) {
        data[i] = (uint8_t) next(&state);
    }
    LLVMFuzzerTestOneInput(data, size);
}

static int run_file(const char * name) {
    static uint8_t data[1 << 16];
    FILE * file = fopen(name, "rb");
    if (file == NULL) {
        fprintf(stderr, "cannot read %s\n", name);
        return 1;
    }
    const size_t size = fread(data, 1, sizeof(data), file);
    fclose(file);
    return LLVMFuzzerTestOneInput(data, size);
}

int main(int argc, char ** argv) {
    const char * runs = getenv("GGML_TEST_FUZZ_RUNS");
    const char * start = getenv("GGML_TEST_FUZZ_SEED");
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
    __sanitizer_set_death_callback(tell_seed);
#endif
    if (argc > 1) {
        int failed = 0;
        for (int i = 1; i < argc; i++) {
            failed |= run_file(argv[i]);
        }
        return failed;
    }
    const time_t begin = time(NULL);
    long n = 0;
    seed = start ? strtoull(start, NULL, 10) : 1;
    for (; runs ? n < atol(runs) : time(NULL) - begin < 8; n++, seed++) {
        if (getenv("GGML_TEST_FUZZ_VERBOSE") != NULL) {
            fprintf(stderr, "seed %llu\n", seed);
        }
        run_seed();
    }
    printf(
        "%ld runs: %ld graphs computed, %ld by schedulers, %ld allocated, %ld tensors copied, %ld damaged files read, "
        "%ld of them computed\n",
        n, n_computed, n_sched_computed, n_allocated, n_copied, n_imported, n_file_computed);
    const bool all = n_computed > 0 && n_sched_computed > 0 && n_allocated > 0 && n_copied > 0 && n_file_computed > 0;
    return n > 0 && (n < 50 || all) ? 0 : 1;
}
#endif
