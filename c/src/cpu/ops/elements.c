// elements.c - runs of elements (elements.h): conversion, moving, and the elementwise drivers that binary.c, select.c
// and unary.c build on.
#include "cpu/ops/elements.h"

#include "base/fp16.h"
#include "tensor/quant/quant.h"

// -------------------------------------------------------------------------------------------------------------- checks

static_assert(GGML_MAX_SRC == 10, "MESSAGES names all sources");
// By number of the source, with the result first.
#define MESSAGES(result, source) \
    {                            \
        "the result " result,    \
        "source 0 " source,      \
        "source 1 " source,      \
        "source 2 " source,      \
        "source 3 " source,      \
        "source 4 " source,      \
        "source 5 " source,      \
        "source 6 " source,      \
        "source 7 " source,      \
        "source 8 " source,      \
        "source 9 " source,      \
    }
#define MUST_BE_FLOAT "must be f32, f16 or bf16"
#define MUST_BE_F32 "must be f32"
static const char * const bad_float[GGML_MAX_SRC + 1] = MESSAGES(MUST_BE_FLOAT, MUST_BE_FLOAT);
static const char * const bad_f32[GGML_MAX_SRC + 1] = MESSAGES(MUST_BE_F32, MUST_BE_F32);
static const char * const bad_same[GGML_MAX_SRC + 1] =
    MESSAGES("must not be quantized", "must have the type of the result");

// The three rules of need(): whether a type is allowed, given the type of the result.
static bool is_f32(enum ggml_type type, enum ggml_type result) {
    (void) result;
    return type == GGML_TYPE_F32;
}

static bool is_float(enum ggml_type type, enum ggml_type result) {
    (void) result;
    return gb_is_float(type);
}

static bool is_same(enum ggml_type type, enum ggml_type result) { return type == result; }

// Checks the result (message 0) and sources 0 .. n_src - 1 (message i + 1). Returns NULL, or the
// message of the first tensor that breaks the rule. Quantized and huge tensors always break it.
static const char * need(const struct ggml_tensor * node, int n_src, bool (*fits)(enum ggml_type, enum ggml_type),
    const char * const * messages) {
    for (int i = -1; i < n_src; i++) {
        const struct ggml_tensor * t = i < 0 ? node : node->src[i];
        if (ggml_is_quantized(t->type)) {
            return "the operator does not accept quantized tensors";
        }
        if (gb_count(t) > GB_MAX_COUNT) {
            return "a tensor has more than 2^48 elements";
        }
        if (!fits(t->type, node->type)) {
            return messages[i + 1];
        }
    }
    return NULL;
}

const char * gb_need_float(const struct ggml_tensor * node, int n_src) {
    return need(node, n_src, is_float, bad_float);
}

const char * gb_need_f32(const struct ggml_tensor * node, int n_src) { return need(node, n_src, is_f32, bad_f32); }

const char * gb_need_same(const struct ggml_tensor * node, int n_src) { return need(node, n_src, is_same, bad_same); }

bool gb_rows_are_blocks(const struct ggml_tensor * t) {
    return t->nb[0] == ggml_type_size(t->type) && t->ne[0] % ggml_blck_size(t->type) == 0;
}

bool gb_can_load(const struct ggml_tensor * t) {
    const struct gb_quant_format * format = gb_quant_format_of(t->type);
    return gb_is_float(t->type) || (format != NULL && format->to_float != NULL && gb_rows_are_blocks(t));
}

bool gb_can_store(const struct ggml_tensor * t) {
    const struct gb_quant_format * format = gb_quant_format_of(t->type);
    return gb_is_float(t->type) || (format != NULL && format->from_float != NULL && gb_rows_are_blocks(t));
}

// ---------------------------------------------------------------------------------------------------------- conversion

float gb_get(enum ggml_type type, const char * p) {
    if (type == GGML_TYPE_F32) {
        return gb_get_f32(p);
    }
    uint16_t h;
    memcpy(&h, p, sizeof(h));
    return type == GGML_TYPE_F16 ? gb_f16_to_f32(h) : gb_bf16_to_f32(h);
}

void gb_set(enum ggml_type type, char * p, float v) {
    if (type == GGML_TYPE_F32) {
        memcpy(p, &v, sizeof(v));
        return;
    }
    const uint16_t h = type == GGML_TYPE_F16 ? gb_f32_to_f16(v) : gb_f32_to_bf16(v);
    memcpy(p, &h, sizeof(h));
}

// n dense, aligned values of f16 or bf16 to f32.
static void widen(const struct gb_kernels * k, enum ggml_type type, int64_t n, float * y, const uint16_t * x) {
    if (type == GGML_TYPE_F16) {
        k->f16_to_f32(n, y, x);
    } else {
        k->bf16_to_f32(n, y, x);
    }
}

// The reverse: f32 to f16 or bf16, rounded to nearest even by the kernels.
static void narrow(const struct gb_kernels * k, enum ggml_type type, int64_t n, uint16_t * y, const float * x) {
    if (type == GGML_TYPE_F16) {
        k->f32_to_f16(n, y, x);
    } else {
        k->f32_to_bf16(n, y, x);
    }
}

// Strided or misaligned half-precision data is gathered into `half`, which is then converted.
void gb_load(const struct gb_kernels * k, enum ggml_type type, int64_t n, float * y, const char * p, size_t stride) {
    if (type == GGML_TYPE_F32) {
        gb_move(sizeof(float), n, (char *) y, sizeof(float), p, stride);
        return;
    }
    if (type == GGML_TYPE_Q8_0) {
        k->q8_0_to_f32(n, y, p);
        return;
    }
    if (type == GGML_TYPE_Q4_0) {
        k->q4_0_to_f32(n, y, p);
        return;
    }
    if (ggml_is_quantized(type)) {
        gb_quant_format_of(type)->to_float(p, y, (int) n);
        return;
    }
    if (stride == sizeof(uint16_t) && (uintptr_t) p % sizeof(uint16_t) == 0) {
        widen(k, type, n, y, (const uint16_t *) (const void *) p);
        return;
    }
    uint16_t half[GB_RUN];
    for (int64_t i = 0; i < n; i += GB_RUN) {
        const int64_t m = GB_MIN(n - i, (int64_t) GB_RUN);
        gb_move(sizeof(uint16_t), m, (char *) half, sizeof(uint16_t), p + (size_t) i * stride, stride);
        widen(k, type, m, y + i, half);
    }
}

// The reverse: converts into `half`, then scatters.
void gb_store(const struct gb_kernels * k, enum ggml_type type, int64_t n, char * p, size_t stride, const float * x) {
    if (type == GGML_TYPE_F32) {
        gb_move(sizeof(float), n, p, stride, (const char *) x, sizeof(float));
        return;
    }
    if (type == GGML_TYPE_Q8_0) {
        k->f32_to_q8_0(n, p, x);
        return;
    }
    if (type == GGML_TYPE_Q4_0) {
        k->f32_to_q4_0(n, p, x);
        return;
    }
    if (ggml_is_quantized(type)) {
        gb_quant_format_of(type)->from_float(x, p, (int) n);
        return;
    }
    if (stride == sizeof(uint16_t) && (uintptr_t) p % sizeof(uint16_t) == 0) {
        narrow(k, type, n, (uint16_t *) (void *) p, x);
        return;
    }
    uint16_t half[GB_RUN];
    for (int64_t i = 0; i < n; i += GB_RUN) {
        const int64_t m = GB_MIN(n - i, (int64_t) GB_RUN);
        narrow(k, type, m, half, x + i);
        gb_move(sizeof(uint16_t), m, p + (size_t) i * stride, stride, (const char *) half, sizeof(uint16_t));
    }
}

// -------------------------------------------------------------------------------------------------------------- moving

// One loop for each element size, so that the compiler sees the constant.
#define MOVE_LOOP(bytes)                                                     \
    for (int64_t i = 0; i < n; i++) {                                        \
        memcpy(d + (size_t) i * d_stride, s + (size_t) i * s_stride, bytes); \
    }

void gb_move(size_t size, int64_t n, char * d, size_t d_stride, const char * s, size_t s_stride) {
    if (n <= 0 || (d == s && (d_stride == s_stride || n == 1))) {
        return;
    }
    if (d_stride == size && s_stride == size) {
        memmove(d, s, (size_t) n * size); // a caller may copy between overlapping views
        return;
    }
    switch (size) {
        case 1: MOVE_LOOP(1) break;
        case 2: MOVE_LOOP(2) break;
        case 4: MOVE_LOOP(4) break;
        case 8: MOVE_LOOP(8) break;
        default: MOVE_LOOP(size) break;
    }
}

// Clears a strided result element by element, because the bytes between do not belong to it.
void gb_clear(size_t size, int64_t n, char * d, size_t d_stride) {
    if (n <= 0) {
        return;
    }
    if (d_stride == size) {
        memset(d, 0, (size_t) n * size);
        return;
    }
    for (int64_t i = 0; i < n; i++) {
        memset(d + (size_t) i * d_stride, 0, size);
    }
}

// ------------------------------------------------------------------------------------------------------------- sharing

int gb_cpu_default_tasks(const struct ggml_tensor * node, int n_threads) {
    int64_t n = ggml_nelements(node);
    // A reduction reads its whole input. A gather reads only as much as it writes.
    if (node->src[0] != NULL && gb_op_info(node->op)->work != GB_WORK_PICK) {
        n = GB_MAX(n, ggml_nelements(node->src[0]));
    }
    return (int) GB_MIN(GB_MAX(n / GB_TASK_ELEMENTS, 1), n_threads);
}

// A thread gets at least one row.
int gb_tasks_src_rows(const struct ggml_tensor * node, int n_threads) {
    return gb_tasks_for((double) gb_count(node->src[0]), gb_rows(node->src[0]), n_threads);
}

int gb_tasks_dst_rows(const struct ggml_tensor * node, int n_threads) {
    return gb_tasks_for((double) gb_count(node), gb_rows(node), n_threads);
}

// --------------------------------------------------------------------------------------------------------- elementwise

// The iteration space of elementwise drivers: rows of n0 elements, cut into runs. Dense tensors of
// one shape are one row.
struct space {
    bool flat;
    int64_t n0, runs, units; // runs in a row, runs in all
};

// The space has rows if one of the n_src sources has strides or another shape.
static struct space space_of(const struct ggml_tensor * node, int n_src) {
    struct space s = { .flat = ggml_is_contiguous(node) };
    for (int i = 0; i < n_src; i++) {
        s.flat = s.flat && ggml_is_contiguous(node->src[i]) && gb_same_ne(node->src[i], node);
    }
    s.n0 = s.flat ? gb_count(node) : node->ne[0];
    s.runs = gb_div_up(s.n0, GB_RUN);
    s.units = s.flat ? s.runs : s.runs * gb_rows(node);
    return s;
}

// An estimate for all drivers. It ignores the repetition of further sources.
int gb_tasks_map(const struct ggml_tensor * node, int n_threads) {
    const double n = (double) gb_count(node);
    if (gb_tasks_for(n, INT64_MAX, n_threads) == 1) {
        return 1; // for any number of units
    }
    return gb_tasks_for(n, space_of(node, 1).units, n_threads);
}

// True if any run of t within a row can be used in place.
static bool is_dense_f32(const struct ggml_tensor * t) {
    return t->type == GGML_TYPE_F32 && t->nb[0] == sizeof(float) &&
           ((uintptr_t) t->data | t->nb[1] | t->nb[2] | t->nb[3]) % sizeof(float) == 0;
}

enum { LONG_RUNS = 128 }; // maximum number of units of a long run; a thread may stop between runs

// A run: n values from i0 on of row r of the result. p is the address of the first. `units` is its
// cost.
struct run {
    int64_t units, i0, n;
    struct gb_row r;
    char * p;
};

// The run that begins with unit u. A direct run needs no buffer, so it extends to the end of the
// row, or to unit `last`.
static struct run run_of(const struct space * s, const struct ggml_tensor * node, int64_t u, int64_t last,
    bool direct) {
    struct run at;
    const int64_t row = u == 0 ? 0 : u / s->runs;
    at.units = direct ? GB_MIN(GB_MIN(last, (row + 1) * s->runs) - u, (int64_t) LONG_RUNS) : 1;
    at.i0 = (u - row * s->runs) * GB_RUN;
    at.n = GB_MIN(s->n0 - at.i0, at.units * GB_RUN);
    at.r = gb_row_at(node, row);
    at.p = gb_row_of(node, at.r) + gb_offset(node, at.i0);
    return at;
}

// True if the f32 result has GB_FAR_BYTES or more and overwrites no source. An overwritten source
// is in the caches already.
static bool is_far(const struct ggml_tensor * node, const struct space * s, int n_src) {
    if (s->units < (int64_t) (GB_FAR_BYTES / sizeof(float) / GB_RUN) || ggml_nbytes(node) < GB_FAR_BYTES) {
        return false;
    }
    bool apart = true;
    for (int i = 0; i < n_src; i++) {
        apart = apart && node->src[i]->data != node->data;
    }
    return apart;
}

// Stores the values of a run, unless they were computed in place. `streams`: bypasses the caches.
// `next`: an address that will be read soon.
static void put(const struct gb_cpu_call * call, const struct ggml_tensor * node, const struct run * at,
    const float * values, const float * next, bool streams) {
    if (streams) {
        call->k->stream_f32(at->n, (float *) (void *) at->p, values, next, false);
    } else {
        gb_put(call->k, node, at->p, at->n, values);
    }
}

// Units are runs of GB_RUN elements. Threads share them. A thread takes several units together if
// no conversion is needed.
void gb_run_map1(const struct gb_cpu_call * call, struct ggml_tensor * node, gb_map1 * f) {
    const struct ggml_tensor * a = node->src[0];
    const struct space s = space_of(node, 1);
    const bool direct = is_dense_f32(node) && is_dense_f32(a), streams = direct && is_far(node, &s, 1);
    float x_buf[GB_RUN], y_buf[GB_RUN];
    int64_t first, last;
    gb_cpu_share(call, s.units, &first, &last);
    while (first < last) {
        const struct run at = run_of(&s, node, first, last, direct && !streams);
        const float * x = gb_in(call->k, a, gb_row_of(a, at.r) + gb_offset(a, at.i0), at.n, x_buf);
        float * y = streams ? y_buf : gb_out(node, at.p, at.n, y_buf);
        f(call, node, at.n, y, x);
        put(call, node, &at, y, x + 2 * at.n, streams);
        if (gb_cpu_stopped(call, gb_store_work(node->type, at.n))) {
            break;
        }
        first += at.units;
    }
    if (streams) {
        call->k->stream_f32(0, NULL, NULL, NULL, true);
    }
}

// n values of the repeated row of b at p, from index i0 on.
static const float * repeated_in(const struct gb_cpu_call * call, const struct ggml_tensor * b, const char * p,
    int64_t i0, int64_t n, bool whole, float * buf) {
    if (whole) { // as long as the result's row
        return gb_in(call->k, b, p + (size_t) i0 * b->nb[0], n, buf);
    }
    for (int64_t done = 0; done < n;) {
        const int64_t at = (i0 + done) % b->ne[0];
        const int64_t m = GB_MIN(b->ne[0] - at, n - done);
        if (b->ne[0] == 1) {
            const float v = gb_get(b->type, p);
            for (int64_t i = 0; i < n; i++) {
                buf[i] = v;
            }
            break;
        }
        gb_load(call->k, b->type, m, buf + done, p + (size_t) at * b->nb[0], b->nb[0]);
        done += m;
    }
    return buf;
}

// The row of b that repeats at row r.
static const char * repeated_row(const struct ggml_tensor * b, struct gb_row r) {
    return (r.i1 | r.i2 | r.i3) == 0 ? b->data : gb_row_ptr(b, r.i1 % b->ne[1], r.i2 % b->ne[2], r.i3 % b->ne[3]);
}

// Like gb_run_map1. The coordinates modulo the dims of src[1] select its row.
void gb_run_map2(const struct gb_cpu_call * call, struct ggml_tensor * node, gb_map2 * f) {
    const struct ggml_tensor * a = node->src[0];
    const struct ggml_tensor * b = node->src[1];
    const struct space s = space_of(node, 2);
    const bool direct = is_dense_f32(node) && is_dense_f32(a) && is_dense_f32(b) && (s.flat || b->ne[0] == s.n0);
    const bool streams = direct && is_far(node, &s, 2);
    float x_buf[GB_RUN], y_buf[GB_RUN], z_buf[GB_RUN];
    int64_t first, last;
    gb_cpu_share(call, gb_is_empty(b) ? 0 : s.units, &first, &last);
    while (first < last) {
        const struct run at = run_of(&s, node, first, last, direct && !streams);
        const float * x = gb_in(call->k, a, gb_row_of(a, at.r) + gb_offset(a, at.i0), at.n, x_buf);
        const float * y = repeated_in(call, b, repeated_row(b, at.r), at.i0, at.n, s.flat || b->ne[0] == s.n0, y_buf);
        float * z = streams ? z_buf : gb_out(node, at.p, at.n, z_buf);
        f(call, node, at.n, z, x, y);
        put(call, node, &at, z, x + 2 * at.n, streams);
        if (gb_cpu_stopped(call, gb_store_work(node->type, at.n))) {
            break;
        }
        first += at.units;
    }
    if (streams) {
        call->k->stream_f32(0, NULL, NULL, NULL, true);
    }
}

// Like gb_run_map2, but all three sources repeat.
void gb_run_map3(const struct gb_cpu_call * call, struct ggml_tensor * node, gb_map3 * f) {
    const struct space s = space_of(node, 3);
    bool direct = is_dense_f32(node), whole[3], is_empty = false;
    for (int i = 0; i < 3; i++) {
        const struct ggml_tensor * t = node->src[i];
        whole[i] = s.flat || t->ne[0] == s.n0;
        direct = direct && whole[i] && is_dense_f32(t);
        is_empty = is_empty || gb_is_empty(t);
    }
    float buf[3][GB_RUN], z_buf[GB_RUN];
    int64_t first, last;
    gb_cpu_share(call, is_empty ? 0 : s.units, &first, &last);
    while (first < last) {
        const struct run at = run_of(&s, node, first, last, direct);
        const float * in[3];
        for (int i = 0; i < 3; i++) {
            in[i] = repeated_in(call, node->src[i], repeated_row(node->src[i], at.r), at.i0, at.n, whole[i], buf[i]);
        }
        float * z = gb_out(node, at.p, at.n, z_buf);
        f(call, node, at.n, z, in[0], in[1], in[2]);
        gb_put(call->k, node, at.p, at.n, z);
        if (gb_cpu_stopped(call, at.n)) {
            return;
        }
        first += at.units;
    }
}
