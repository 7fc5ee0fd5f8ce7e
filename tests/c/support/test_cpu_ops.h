// test_cpu_ops.h - tests operators of the CPU backend: inputs of any type and layout, every kernel
// level, several numbers of threads. The oracle computes each element of the result in double
// precision.
//
// All tensor data are in one arena that is filled with a pattern. After a run every byte outside of
// the result must be unchanged, so stray writes are found. At one level, all numbers of threads
// must give the same bits.
#ifndef GB_TESTS_TEST_CPU_OPS_H
#define GB_TESTS_TEST_CPU_OPS_H

#include "cpu/cpu.h"
#include "cpu/kernels/kernels.h"
#include "cpu/ops/ops.h"
#include "test.h"

enum { ARENA = 24 << 20 };

static char *arena, *arena_before; // before: the arena before the run, which oracles read
static unsigned char * arena_mask; // 1 for each byte of the result
static size_t arena_used;
static struct ggml_context * ctx;

static inline void begin(void) {
    if (arena == NULL) {
        arena = aligned_alloc(64, ARENA);
        arena_before = malloc(ARENA);
        arena_mask = malloc(ARENA);
    }
    arena_used = 0;
    ctx = ggml_init((struct ggml_init_params) { .mem_size = 1 << 16, .no_alloc = true });
}

static inline void end(void) {
    ggml_free(ctx);
    ctx = NULL;
}

static inline void give_memory(struct ggml_tensor * t) {
    const size_t size = ggml_nbytes(t) + 64; // a gap, so that stray writes hit no neighbour
    if (arena_used + size > ARENA) {
        fprintf(stderr, "the arena is too small\n");
        exit(1);
    }
    t->data = arena + arena_used;
    memset(t->data, 0x5a, size);
    arena_used = (arena_used + size + 63) & ~(size_t) 63;
}

// ------------------------------------------------------------------------------------------------------------ elements

static inline double half_to_double(uint16_t h, bool bf16) { // by the definition of each format
    const int fraction = bf16 ? 7 : 10, bias = bf16 ? 127 : 15, width = bf16 ? 8 : 5;
    const int e = (h >> fraction) & ((1 << width) - 1);
    const int m = h & ((1 << fraction) - 1);
    const double sign = h & 0x8000 ? -1 : 1;
    if (e == (1 << width) - 1) {
        return m ? (double) NAN : sign * INFINITY;
    }
    return sign * (e ? ldexp(m + (1 << fraction), e - bias - fraction) : ldexp(m, 1 - bias - fraction));
}

static inline uint16_t double_to_half(double v, bool bf16) { // the nearest value, by a search: slow and simple
    const int fraction = bf16 ? 7 : 10, bias = bf16 ? 127 : 15;
    const uint16_t sign = signbit(v) ? 0x8000 : 0;
    double a = fabs(v);
    if (isnan(a)) {
        return sign | (bf16 ? 0x7fc0 : 0x7e00);
    }
    if (isinf(a)) {
        return sign | (bf16 ? 0x7f80 : 0x7c00);
    }
    if (a == 0) {
        return sign;
    }
    int e;
    frexp(a, &e);
    e = e - 1 < 1 - bias ? 1 - bias : e - 1;
    const double scaled = nearbyint(ldexp(a, fraction - e)); // ties to even
    const double back = ldexp(scaled, e - fraction);
    int e2;
    frexp(back, &e2);
    if (back < ldexp(1, 1 - bias)) {
        return sign | (uint16_t) ldexp(back, bias - 1 + fraction);
    }
    if (e2 - 1 > bias) {
        return sign | (bf16 ? 0x7f80 : 0x7c00);
    }
    return sign |
           (uint16_t) (((e2 - 1 + bias) << fraction) + (int) (ldexp(back, fraction - (e2 - 1)) - (1 << fraction)));
}

static inline char * address(const struct ggml_tensor * t, const int64_t i[4]) {
    return (char *) t->data + i[0] * (int64_t) t->nb[0] + i[1] * (int64_t) t->nb[1] + i[2] * (int64_t) t->nb[2] +
           i[3] * (int64_t) t->nb[3];
}

static inline double read_value(enum ggml_type type, const char * p) {
    float f;
    double d;
    uint16_t h;
    int8_t i8;
    int16_t i16;
    int32_t i32;
    int64_t i64;
    switch (type) {
        case GGML_TYPE_F32: memcpy(&f, p, 4); return f;
        case GGML_TYPE_F64: memcpy(&d, p, 8); return d;
        case GGML_TYPE_F16:
        case GGML_TYPE_BF16: memcpy(&h, p, 2); return half_to_double(h, type == GGML_TYPE_BF16);
        case GGML_TYPE_I8: memcpy(&i8, p, 1); return i8;
        case GGML_TYPE_I16: memcpy(&i16, p, 2); return i16;
        case GGML_TYPE_I32: memcpy(&i32, p, 4); return i32;
        case GGML_TYPE_I64: memcpy(&i64, p, 8); return (double) i64;
        default: return NAN;
    }
}

static inline void write_value(enum ggml_type type, char * p, double v) {
    const float f = (float) v;
    const int8_t i8 = (int8_t) v;
    const int16_t i16 = (int16_t) v;
    uint16_t h;
    int32_t i32;
    int64_t i64;
    switch (type) {
        case GGML_TYPE_F32: memcpy(p, &f, 4); break;
        case GGML_TYPE_F64: memcpy(p, &v, 8); break;
        case GGML_TYPE_F16:
        case GGML_TYPE_BF16:
            h = double_to_half(v, type == GGML_TYPE_BF16);
            memcpy(p, &h, 2);
            break;
        case GGML_TYPE_I8: memcpy(p, &i8, 1); break;
        case GGML_TYPE_I16: memcpy(p, &i16, 2); break;
        case GGML_TYPE_I32:
            i32 = (int32_t) v;
            memcpy(p, &i32, 4);
            break;
        case GGML_TYPE_I64:
            i64 = (int64_t) v;
            memcpy(p, &i64, 8);
            break;
        default: break;
    }
}

// The element before the run. Right for sources that the result overwrites.
static inline double at(const struct ggml_tensor * t, int64_t i0, int64_t i1, int64_t i2, int64_t i3) {
    const int64_t i[4] = { i0, i1, i2, i3 };
    return read_value(t->type, arena_before + (address(t, i) - arena));
}

#define FOR_ELEMENTS(t, i)                                         \
    for (int64_t i[4] = { 0, 0, 0, 0 }; i[3] < (t)->ne[3]; i[3]++) \
        for (i[2] = 0; i[2] < (t)->ne[2]; i[2]++)                  \
            for (i[1] = 0; i[1] < (t)->ne[1]; i[1]++)              \
                for (i[0] = 0; i[0] < (t)->ne[0]; i[0]++)

// -------------------------------------------------------------------------------------------------------------- inputs

// TRANSPOSED and REVERSED have gaps along dim 0. PADDED has gaps between rows and an offset.
enum layout { DENSE, PADDED, SWAPPED, TRANSPOSED, REVERSED, N_LAYOUTS };

static inline struct ggml_tensor * parent_of(enum ggml_type type, int64_t n0, int64_t n1, int64_t n2, int64_t n3) {
    struct ggml_tensor * t = ggml_new_tensor_4d(ctx, type, n0, n1, n2, n3);
    give_memory(t);
    return t;
}

static inline struct ggml_tensor * tensor(enum ggml_type type, int layout, int64_t n0, int64_t n1, int64_t n2,
    int64_t n3) {
    struct ggml_tensor * p;
    switch (layout) {
        case PADDED:
            p = parent_of(type, n0 + 3, n1 + 1, n2, n3 + 1);
            return ggml_view_4d(ctx, p, n0, n1, n2, n3, p->nb[1], p->nb[2], p->nb[3], p->nb[0]);
        case SWAPPED: return ggml_permute(ctx, parent_of(type, n0, n2, n1, n3), 0, 2, 1, 3);
        case TRANSPOSED: return ggml_transpose(ctx, parent_of(type, n1, n0, n2, n3));
        case REVERSED: return ggml_permute(ctx, parent_of(type, n3, n2, n1, n0), 3, 2, 1, 0);
        default: return parent_of(type, n0, n1, n2, n3);
    }
}

static inline struct ggml_tensor * fill(struct ggml_tensor * t, float low, float high) {
    FOR_ELEMENTS(t, i) { write_value(t->type, address(t, i), test_random_float(low, high)); }
    return t;
}

static inline struct ggml_tensor * fill_int(struct ggml_tensor * t, int64_t low, int64_t high) {
    FOR_ELEMENTS(t, i) { write_value(t->type, address(t, i), (double) test_random_int(low, high)); }
    return t;
}

static inline struct ggml_tensor * random_tensor(enum ggml_type type, int layout, int64_t n0, int64_t n1, int64_t n2,
    int64_t n3) {
    return fill(tensor(type, layout, n0, n1, n2, n3), -2, 2);
}

// The node reads t, of the same shape, instead of src[k]: operators accept layouts that builders
// refuse.
static inline struct ggml_tensor * reading(struct ggml_tensor * node, int k, struct ggml_tensor * t) {
    if (node != NULL) {
        node->src[k] = t;
    }
    return node;
}

// A dense f32 tensor for a builder, without memory.
static inline struct ggml_tensor * stand_in(int64_t n0, int64_t n1, int64_t n2, int64_t n3) {
    return ggml_new_tensor_4d(ctx, GGML_TYPE_F32, n0, n1, n2, n3);
}

// Changes the type of the result (for operators that follow the type of src[0]).
static inline struct ggml_tensor * typed(struct ggml_tensor * node, enum ggml_type type) {
    if (node != NULL) {
        node->type = type;
        node->nb[0] = ggml_type_size(type);
        for (int d = 1; d < 4; d++) {
            node->nb[d] = node->nb[d - 1] * (size_t) node->ne[d - 1];
        }
    }
    return node;
}

// The node writes to src[k], like an in-place form or with reused memory.
static inline struct ggml_tensor * onto(struct ggml_tensor * node, int k) {
    if (node != NULL) {
        node->data = node->src[k]->data;
        if (node->view_src != NULL) { // an in-place form of another source becomes one of this source
            node->view_src = node->src[k]->view_src != NULL ? node->src[k]->view_src : node->src[k];
            node->view_offs = (size_t) ((char *) node->data - (char *) node->view_src->data);
        }
        memcpy(node->nb, node->src[k]->nb, sizeof(node->nb));
    }
    return node;
}

// ---------------------------------------------------------------------------------------------------------------- runs

// pool NULL: the caller does the work of n threads alone.
static inline enum ggml_status run_node_on(struct gb_cpu_pool * pool, struct ggml_tensor * node, int n_threads,
    const struct gb_kernels * kernels) {
    struct gb_cpu_plan * plan = gb_cpu_plan_new(&node, 1, n_threads);
    if (plan == NULL) {
        return ggml_last_status();
    }
    void * work = malloc(gb_cpu_plan_work_size(plan) + 1); // exact, so that sanitizers find accesses beyond its end
    const struct gb_cpu_run run = { .kernels = kernels, .work = work };
    const enum ggml_status status = gb_cpu_plan_run(plan, pool, &run);
    free(work);
    gb_cpu_plan_free(plan);
    return status;
}

static inline enum ggml_status run_node(struct ggml_tensor * node, int n_threads, const struct gb_kernels * kernels) {
    static struct gb_cpu_pool * pool; // for the largest number of threads
    if (pool == NULL) {
        pool = gb_cpu_pool_new(5);
    }
    return run_node_on(pool, node, n_threads, kernels);
}

// The expected element i of the node.
typedef double want_fn(const struct ggml_tensor * node, const int64_t i[4]);

static inline bool is_near(double got, double want, double tolerance, enum ggml_type type) {
    if (isnan(want) || isinf(want)) {
        return isnan(want) ? isnan(got) : got == want;
    }
    const double rounding = type == GGML_TYPE_F16    ? 0x1p-11
                            : type == GGML_TYPE_BF16 ? 0x1p-8
                            : type == GGML_TYPE_F32  ? 0x1p-23
                                                     : 0;
    const double least = type == GGML_TYPE_F16 ? 0x1p-24 : 0; // spacing of denormals
    return fabs(got - want) <= tolerance * (1 + fabs(want)) + 1.01 * rounding * fabs(want) + least;
}

static inline double * expectations(struct ggml_tensor * node, want_fn * want) {
    double * list = malloc(sizeof(double) * (size_t) (ggml_nelements(node) + 1));
    size_t n = 0;
    FOR_ELEMENTS(node, i) { list[n++] = want(node, i); }
    return list;
}

static inline void compare(const char * file, int line, struct ggml_tensor * node, const double * wanted,
    double tolerance, const char * level) {
    int shown = 0;
    FOR_ELEMENTS(node, i) {
        const double got = read_value(node->type, address(node, i)), expected = *wanted++;
        if (!is_near(got, expected, tolerance, node->type) && shown++ < 3) {
            test_fail(file, line, "%s of %s, level %s, [%d,%d,%d,%d]: %.9g, expected %.9g", ggml_op_name(node->op),
                ggml_type_name(node->src[0]->type), level, (int) i[0], (int) i[1], (int) i[2], (int) i[3], got,
                expected);
        }
    }
    const size_t size = ggml_type_size(node->type);
    memset(arena_mask, 0, arena_used);
    FOR_ELEMENTS(node, i) { memset(arena_mask + (address(node, i) - arena), 1, size); }
    for (size_t b = 0; b < arena_used; b++) {
        if (!arena_mask[b] && arena[b] != arena_before[b]) {
            test_fail(file, line, "%s wrote outside its result", ggml_op_name(node->op));
            break;
        }
    }
}

// Runs the node at every level with 1, 2 and 5 threads. want NULL: only compares numbers of
// threads.
static inline void check_node_at(const char * file, int line, struct ggml_tensor * node, want_fn * want,
    double tolerance) {
    if (node == NULL) {
        test_fail(file, line, "no node: %s", ggml_last_error());
        ggml_clear_error();
        return;
    }
    if (node->data == NULL) {
        give_memory(node);
    }
    static const int threads[] = { 1, 2, 5 };
    char * first = malloc(arena_used);
    memcpy(arena_before, arena, arena_used);
    double * wanted = want != NULL ? expectations(node, want) : NULL;
    for (int l = 0; l < gb_level_count(); l++) {
        const struct gb_level * level = gb_level_at(l);
        for (int t = 0; t < 3 && level->usable(); t++) {
            memcpy(arena, arena_before, arena_used);
            if (run_node(node, threads[t], level->kernels) != GGML_STATUS_SUCCESS) {
                test_fail(file, line, "%s", ggml_last_error());
                ggml_clear_error();
                free(first);
                free(wanted);
                return;
            }
            if (t == 0) {
                memcpy(first, arena, arena_used);
                if (wanted != NULL) {
                    compare(file, line, node, wanted, tolerance, level->name);
                }
            } else if (memcmp(first, arena, arena_used) != 0) {
                test_fail(file, line, "%s: %d threads do not give the bits of one", ggml_op_name(node->op), threads[t]);
            }
        }
    }
    memcpy(arena, arena_before, arena_used);
    free(first);
    free(wanted);
}

#define CHECK_NODE(node, want, tolerance) check_node_at(__FILE__, __LINE__, node, want, tolerance)

// True if threads share the work of this node. Otherwise a test of threads would prove nothing.
static inline bool is_shared(const struct ggml_tensor * node) {
    const struct gb_cpu_op * op = gb_cpu_op_of(node);
    return (op->n_tasks != NULL ? op->n_tasks(node, 5) : gb_cpu_default_tasks(node, 5)) == 5;
}

static const enum ggml_type float_types[3] = { GGML_TYPE_F32, GGML_TYPE_F16, GGML_TYPE_BF16 };

#define FOR_FLOATS(type) \
    for (int type##_i = 0, type = float_types[0]; type##_i < 3; type = float_types[++type##_i < 3 ? type##_i : 0])
#define FOR_LAYOUTS(l) for (int l = DENSE; l < N_LAYOUTS; l++)

#endif // GB_TESTS_TEST_CPU_OPS_H
