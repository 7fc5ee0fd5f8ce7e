// binary.c - ADD, SUB, MUL, DIV (src[1] repeats over src[0]), ADD1, and ACC and SET, which change a
// region of a copy of src[0]. ADD and ADD1 also accept a quantized src[0] and then give a quantized
// result: they dequantize runs, add, and quantize.
#include "cpu/ops/elements.h"

// --------------------------------------------------------------------------------------------------------- elementwise

// Accepts any float types, also different ones, because runs are converted.
static const char * unsupported2(const struct ggml_tensor * node) { return gb_need_float(node, 2); }

// Without a quantized tensor, the rule of the other operators holds. With one, src[0] must be
// loadable and the result storable by blocks, and src[1] must be a float type.
static const char * sum_unsupported(const struct ggml_tensor * node) {
    const struct ggml_tensor *a = node->src[0], *b = node->src[1];
    if (a == NULL || b == NULL || !(ggml_is_quantized(a->type) || ggml_is_quantized(node->type))) {
        return gb_need_float(node, 2);
    }
    if (!gb_is_float(b->type)) {
        return "source 1 must be f32, f16 or bf16";
    }
    if (gb_count(a) > GB_MAX_COUNT || gb_count(b) > GB_MAX_COUNT) {
        return "a tensor has more than 2^48 elements";
    }
    if (!gb_can_load(a)) {
        return "source 0 cannot be dequantized: its format, or rows that are not whole blocks";
    }
    return gb_can_store(node) ? NULL : "the result cannot be quantized: its format, or rows that are not whole blocks";
}

// Defines the driver of an operator that is one kernel of two runs, <name>_f32.
#define ELEMENTWISE(name, unsupported_)                                                                            \
    static void map_##name(const struct gb_cpu_call * call, const struct ggml_tensor * node, int64_t n, float * z, \
        const float * x, const float * y) {                                                                        \
        (void) node;                                                                                               \
        call->k->name##_f32(n, z, x, y);                                                                           \
    }                                                                                                              \
    static void run_##name(const struct gb_cpu_call * call, struct ggml_tensor * node) {                           \
        gb_run_map2(call, node, map_##name);                                                                       \
    }                                                                                                              \
    const struct gb_cpu_op gb_cpu_op_##name = {                                                                    \
        .unsupported = unsupported_, .n_tasks = gb_tasks_map, .run = run_##name, .map2 = map_##name                \
    };

ELEMENTWISE(add, sum_unsupported)
ELEMENTWISE(sub, unsupported2)
ELEMENTWISE(mul, unsupported2)
ELEMENTWISE(div, unsupported2)

// src[1] is one value, read again for each run. It may overlap the result only if the result has
// one element.
static void map_add1(const struct gb_cpu_call * call, const struct ggml_tensor * node, int64_t n, float * y,
    const float * x) {
    const struct ggml_tensor * b = node->src[1];
    call->k->add1_f32(n, y, x, gb_get(b->type, b->data));
}

static void run_add1(const struct gb_cpu_call * call, struct ggml_tensor * node) { gb_run_map1(call, node, map_add1); }

const struct gb_cpu_op gb_cpu_op_add1 = { .unsupported = sum_unsupported, .n_tasks = gb_tasks_map, .run = run_add1 };

// ------------------------------------------------------------------------------------------------------------ ACC, SET

// The region of the result that src[1] changes: strides in bytes, elements along dim 0 dense.
struct region {
    size_t nb[4], offset;
    bool inplace;
};

// op_params: nb1, nb2, nb3, offset, inplace (ggml_acc and ggml_set write them).
static struct region region_of(const struct ggml_tensor * node) {
    struct region r = { .nb[0] = ggml_type_size(node->type), .inplace = gb_op_param_i32(node, 4) != 0 };
    for (int i = 1; i < 4; i++) {
        r.nb[i] = (uint32_t) gb_op_param_i32(node, i - 1); // kept as 32 unsigned bits
    }
    r.offset = (uint32_t) gb_op_param_i32(node, 3);
    return r;
}

// One past the last byte. SIZE_MAX if the computation overflows.
static size_t region_end(const struct region * r, const struct ggml_tensor * b) {
    size_t end = r->offset + r->nb[0];
    for (int i = 0; i < 4; i++) {
        size_t reach;
        if (!gb_mul_size((size_t) (b->ne[i] - 1), r->nb[i], &reach) || !gb_add_size(end, reach, &end)) {
            return SIZE_MAX;
        }
    }
    return end;
}

// True if the elements of src[1] go to distinct places. Otherwise their order matters, and one
// thread writes all of them.
static bool region_is_injective(const struct region * r, const struct ggml_tensor * b) {
    size_t extent = r->nb[0];
    for (int i = 0; i < 4; i++) {
        if (b->ne[i] > 1 && r->nb[i] < extent) {
            return false;
        }
        extent = (size_t) (b->ne[i] - 1) * r->nb[i] + extent;
    }
    return true;
}

// Checks that the region is inside the result. Its strides and offset are parameters, which may
// come from a file or a user.
static const char * region_unsupported(const struct ggml_tensor * node) {
    const struct region r = region_of(node);
    const struct ggml_tensor * b = node->src[1];
    if (!ggml_is_contiguous(node)) {
        return "the result must be contiguous";
    }
    return !gb_is_empty(b) && region_end(&r, b) > ggml_nbytes(node) ? "the region goes beyond the result" : NULL;
}

// ACC adds in f32, so all three tensors are floats.
static const char * acc_unsupported(const struct ggml_tensor * node) {
    const char * why = gb_need_float(node, 2);
    return why != NULL ? why : region_unsupported(node);
}

// SET moves elements of any plain type, or converts between floats.
static const char * set_unsupported(const struct ggml_tensor * node) {
    const char * why = gb_need_same(node, 2);
    if (why != NULL && gb_need_float(node, 2) == NULL) {
        why = NULL; // floats are converted
    }
    return why != NULL ? why : region_unsupported(node);
}

// One thread writes overlapping elements of the region, in order.
static int region_tasks(const struct ggml_tensor * node, int n_threads) {
    const struct region r = region_of(node);
    return region_is_injective(&r, node->src[1]) ? gb_tasks_dst_rows(node, n_threads) : 1;
}

// d = s for n elements, converted if the types differ.
static void copy_row(const struct gb_cpu_call * call, struct ggml_tensor * dst, char * d,
    const struct ggml_tensor * src, const char * s, int64_t n) {
    if (dst->type == src->type) {
        gb_move(ggml_type_size(dst->type), n, d, dst->nb[0], s, src->nb[0]);
        return;
    }
    float buf[GB_RUN];
    for (int64_t i = 0; i < n; i += GB_RUN) {
        const int64_t m = GB_MIN(n - i, (int64_t) GB_RUN);
        gb_load(call->k, src->type, m, buf, s + (size_t) i * src->nb[0], src->nb[0]);
        gb_store(call->k, dst->type, m, d + (size_t) i * dst->nb[0], dst->nb[0], buf);
    }
}

// Copies src[0] to the result. Threads share its rows.
static void copy_first_source(const struct gb_cpu_call * call, struct ggml_tensor * dst) {
    const struct ggml_tensor * a = dst->src[0];
    int64_t first, last;
    gb_cpu_share(call, gb_rows(dst), &first, &last);
    for (int64_t i = first; i < last; i++) {
        const struct gb_row r = gb_row_at(dst, i);
        copy_row(call, dst, gb_row_of(dst, r), a, gb_row_of(a, r), dst->ne[0]);
        if (gb_cpu_stopped(call, dst->ne[0])) {
            return;
        }
    }
}

// d += s for n elements.
static void add_row(const struct gb_cpu_call * call, struct ggml_tensor * dst, char * d, const struct ggml_tensor * src,
    const char * s, int64_t n) {
    float x_buf[GB_RUN], y_buf[GB_RUN];
    for (int64_t i = 0; i < n; i += GB_RUN) {
        const int64_t m = GB_MIN(n - i, (int64_t) GB_RUN);
        char * p = d + (size_t) i * dst->nb[0];
        const float * x = gb_in(call->k, dst, p, m, x_buf);
        float * y = gb_out(dst, p, m, x_buf);
        call->k->add_f32(m, y, x, gb_in(call->k, src, s + (size_t) i * src->nb[0], m, y_buf));
        gb_put(call->k, dst, p, m, y);
    }
}

// An operation on a row of src[1] and its row d of the region.
typedef void region_row(const struct gb_cpu_call * call, struct ggml_tensor * dst, char * d,
    const struct ggml_tensor * src, const char * s, int64_t n);

// Threads copy src[0], sharing rows of the result. After a barrier, they change the region, sharing
// rows of src[1].
static void run_region(const struct gb_cpu_call * call, struct ggml_tensor * dst, region_row * f) {
    const struct region r = region_of(dst);
    const struct ggml_tensor * b = dst->src[1];
    if (!r.inplace) {
        copy_first_source(call, dst);
        if (!gb_cpu_barrier(call)) {
            return;
        }
    }
    int64_t first, last;
    gb_cpu_share(call, gb_is_empty(b) ? 0 : gb_rows(b), &first, &last);
    for (int64_t i = first; i < last; i++) {
        const struct gb_row at = gb_row_at(b, i);
        char * d = (char *) dst->data + r.offset + (size_t) at.i1 * r.nb[1] + (size_t) at.i2 * r.nb[2] +
                   (size_t) at.i3 * r.nb[3];
        f(call, dst, d, b, gb_row_of(b, at), b->ne[0]);
        if (gb_cpu_stopped(call, b->ne[0])) {
            return;
        }
    }
}

static void run_acc(const struct gb_cpu_call * call, struct ggml_tensor * node) { run_region(call, node, add_row); }

static void run_set(const struct gb_cpu_call * call, struct ggml_tensor * node) { run_region(call, node, copy_row); }

const struct gb_cpu_op gb_cpu_op_acc = { .unsupported = acc_unsupported, .n_tasks = region_tasks, .run = run_acc };
const struct gb_cpu_op gb_cpu_op_set = { .unsupported = set_unsupported, .n_tasks = region_tasks, .run = run_set };
