// attention_few.c - attention for few rows that share keys and values, as for one token.
//
// Packing does not pay, so kernels read keys and values in place: floats with dense rows, and blocks of Q8_0. Other
// keys and values are converted to f32, a block at a time.
//
// With keys of Q8_0 the queries are rounded to bytes, as rows of MUL_MAT are, unless the node has GGML_PREC_F32.
#include <math.h>

#include "cpu/ops/attention.h"

enum { ROWS = GB_ATTENTION_FEW, KEYS = 128 }; // of a block

// Floats of each part of a thread's scratch.
struct sizes {
    int64_t queries, bytes, convert, score, mask, out;
};

// A query in bytes: levels, then scales and sums of groups of 32.
static int64_t byte_floats(int64_t dk) { return dk / 4 + 2 * (dk / 32); }

static struct sizes sizes_of(const struct gb_attention * a) {
    const int64_t dk = a->q->ne[0], dv = gb_attention_width(a);
    return (struct sizes){ .queries = ROWS * dk,
        .bytes = a->k->type == GGML_TYPE_Q8_0 ? ROWS * byte_floats(dk) : 0,
        .convert = KEYS * GB_MAX(dk, dv),
        .score = ROWS * KEYS,
        .mask = KEYS,
        .out = ROWS * dv };
}

int64_t gb_attention_few_floats(const struct gb_attention * a) {
    const struct sizes s = sizes_of(a);
    return s.queries + s.bytes + s.convert + s.score + s.mask + s.out;
}

// The state of a thread.
struct few {
    const struct gb_kernels * k;
    const struct gb_attention * a;
    struct gb_attention_heads heads;
    int64_t n, dk, dv; // rows; lengths of a key and a value
    bool bytes; // keys are multiplied as bytes
    float *queries, *bytes_of, *convert, *score, *out;
    struct gb_attention_scores scores;
    struct gb_attention_view view[ROWS];
    struct gb_attention_row row[ROWS];
};

static struct few few_of(const struct gb_cpu_call * call, const struct gb_attention * a) {
    const struct sizes s = sizes_of(a);
    struct few f = { .k = call->k, .a = a, .n = gb_attention_rows(a), .dk = a->q->ne[0], .dv = gb_attention_width(a) };
    f.bytes = a->k->type == GGML_TYPE_Q8_0 && !a->exact && f.n <= call->k->q8_0_rows;
    f.queries = gb_my_floats(call, gb_attention_few_floats(a));
    f.bytes_of = f.queries + s.queries;
    f.convert = f.bytes_of + s.bytes;
    f.score = f.convert + s.convert;
    f.scores = (struct gb_attention_scores){ .k = call->k, .a = a, .mask = f.score + s.score };
    f.out = f.scores.mask + s.mask;
    return f;
}

// The levels of query i, which the scales follow.
static int8_t * levels_of(const struct few * f, int64_t i) {
    return (int8_t *) (void *) (f->bytes_of + i * byte_floats(f->dk));
}

static float * scales_of(const struct few * f, int64_t i) { return f->bytes_of + i * byte_floats(f->dk) + f->dk / 4; }

// Sets up the rows of a plane for keys [first, end), with scaled queries. Returns the keys that some row sees.
static struct gb_attention_view open_unit(struct few * f, int64_t plane, int64_t first, int64_t end) {
    const struct gb_attention * a = f->a;
    struct gb_attention_view all = { .first = end, .end = first };
    for (int64_t i = 0; i < f->n; i++) {
        const struct gb_row at = gb_attention_row_at(a, plane, i);
        float * q = f->queries + i * f->dk;
        f->view[i] = (struct gb_attention_view){ .first = first, .end = end };
        gb_attention_look(a, at, &f->view[i]);
        f->row[i] = (struct gb_attention_row){
            .at = at, .plain = f->view[i].plain, .max = -INFINITY, .out = f->out + i * f->dv
        };
        if (f->view[i].first < f->view[i].end) {
            all.first = GB_MIN(all.first, f->view[i].first);
            all.end = GB_MAX(all.end, f->view[i].end);
        }
        f->k->scale_f32(f->dk, q, gb_in(f->k, a->q, gb_row_ptr(a->q, at.i1, at.i2, at.i3), f->dk, q), a->scale);
        if (f->bytes) {
            float * d = scales_of(f, i);
            f->k->quantize_q8(&(struct gb_quantize_q8){
                .k = f->dk, .step = 1, .q = levels_of(f, i), .d = d, .s = d + f->dk / 32, .x = q });
        }
    }
    f->heads = gb_attention_heads_of(a, f->row[0].at);
    memset(f->out, 0, (size_t) (f->n * f->dv) * sizeof(float));
    return all;
}

// -------------------------------------------------------------------------------------------------------------- blocks

// Consecutive rows of floats that kernels can read.
struct rows {
    enum ggml_type type;
    const char * p;
    size_t stride;
};

// n rows of t from p on, in place or converted.
static struct rows rows_of(struct few * f, const struct ggml_tensor * t, const char * p, int64_t n) {
    const size_t size = ggml_type_size(t->type);
    if (gb_is_float(t->type) && t->nb[0] == size && ((uintptr_t) p | t->nb[1]) % size == 0) {
        return (struct rows){ t->type, p, t->nb[1] };
    }
    for (int64_t c = 0; c < n; c++) {
        gb_load(f->k, t->type, t->ne[0], f->convert + c * t->ne[0], p + (size_t) c * t->nb[1], t->nb[0]);
    }
    return (struct rows){ GGML_TYPE_F32, (const char *) f->convert, (size_t) t->ne[0] * sizeof(float) };
}

static void score_bytes(struct few * f, const char * keys, int64_t n) {
    const int8_t * q[ROWS];
    const float * d[ROWS];
    for (int64_t i = 0; i < f->n; i++) {
        q[i] = levels_of(f, i);
        d[i] = scales_of(f, i);
    }
    f->k->dots_q8_0(&(struct gb_dots_q8_0){
        .k = f->dk,
        .n = n,
        .nx = (int) f->n,
        .w = keys,
        .nb_w = f->a->k->nb[1],
        .q = q,
        .dx = d,
        .y = f->score,
        .ldy = KEYS,
    });
}

// Scores of n keys for all rows.
static void score_block(struct few * f, int64_t key0, int64_t n) {
    const struct ggml_tensor * k = f->a->k;
    const char * p = gb_row_ptr(k, key0, f->heads.k2, f->heads.k3);
    if (f->bytes) {
        score_bytes(f, p, n);
        return;
    }
    const struct rows keys = rows_of(f, k, p, n);
    gb_kernel_rows_columns * const kernel = keys.type == GGML_TYPE_F16    ? f->k->rows_columns_f16
                                            : keys.type == GGML_TYPE_BF16 ? f->k->rows_columns_bf16
                                                                          : f->k->rows_columns_f32;
    for (int64_t c = 0; c < n; c += GB_ROWS_W) {
        for (int64_t i = 0; i < f->n; i += f->k->rows_x) {
            kernel(&(struct gb_rows_columns){
                .k = f->dk,
                .nw = (int) GB_MIN(n - c, (int64_t) GB_ROWS_W),
                .nx = (int) GB_MIN(f->n - i, (int64_t) f->k->rows_x),
                .w = keys.p + (size_t) c * keys.stride,
                .nb_w = keys.stride,
                .x = f->queries + i * f->dk,
                .ldx = (size_t) f->dk,
                .y = f->score + i * KEYS + c,
                .ldy = KEYS,
            });
        }
    }
}

// Converts n scores of each row to exponentials. Those of keys that the row does not see become 0.
static void weigh_block(struct few * f, int64_t key0, int64_t n) {
    for (int64_t i = 0; i < f->n; i++) {
        const struct gb_attention_view * view = &f->view[i];
        const int64_t first = GB_MIN(GB_MAX(view->first - key0, (int64_t) 0), n);
        const int64_t end = GB_MAX(GB_MIN(view->end - key0, n), first);
        float * score = f->score + i * KEYS;
        if (first < end) {
            gb_attention_weigh(&f->scores, &f->row[i], false, key0 + first, end - first, score + first);
        }
        memset(score, 0, (size_t) first * sizeof(float));
        memset(score + end, 0, (size_t) (n - end) * sizeof(float));
    }
}

static void add_values(struct few * f, int64_t key0, int64_t n) {
    const struct ggml_tensor * v = f->a->v;
    const char * p = gb_row_ptr(v, key0, f->heads.v2, f->heads.v3);
    const bool bytes = v->type == GGML_TYPE_Q8_0;
    const struct rows values = bytes ? (struct rows){ v->type, p, v->nb[1] } : rows_of(f, v, p, n);
    gb_kernel_weigh * const kernel = bytes                           ? f->k->weigh_q8_0
                                     : values.type == GGML_TYPE_F16  ? f->k->weigh_f16
                                     : values.type == GGML_TYPE_BF16 ? f->k->weigh_bf16
                                                                     : f->k->weigh_f32;
    kernel(&(struct gb_weigh){
        .k = f->dv,
        .n = n,
        .nx = (int) f->n,
        .x = values.p,
        .nb_x = values.stride,
        .w = f->score,
        .ldw = KEYS,
        .y = f->out,
        .ldy = f->dv,
    });
}

// False: the run is over.
static bool run_unit(const struct gb_cpu_call * call, struct few * f, int64_t plane, int64_t part, float * parts) {
    const struct gb_attention * a = f->a;
    const int64_t m = a->k->ne[1];
    const struct gb_attention_view all = open_unit(f, plane, part * a->part, GB_MIN((part + 1) * a->part, m));
    for (int64_t key0 = all.first; key0 < all.end; key0 += KEYS) {
        const int64_t n = GB_MIN(all.end - key0, (int64_t) KEYS);
        score_block(f, key0, n);
        weigh_block(f, key0, n);
        add_values(f, key0, n);
        if (gb_cpu_stopped(call, n * (f->dk + f->dv) * (2 + f->n) / 16)) {
            return false;
        }
    }
    for (int64_t i = 0; i < f->n; i++) {
        gb_attention_close(f->k, a, &f->row[i], plane, i, part, f->convert, parts);
    }
    return true;
}

void gb_attention_run_few(const struct gb_cpu_call * call, const struct gb_attention * a) {
    struct few f = few_of(call, a);
    float * shared = (float *) (void *) ((char *) call->work + gb_floats_size(gb_attention_few_floats(a), call->nth));
    int64_t first, last;
    gb_cpu_share(call, gb_attention_planes(a) * a->parts, &first, &last);
    for (int64_t u = first; u < last && run_unit(call, &f, u / a->parts, u % a->parts, shared); u++) {
    }
    gb_attention_combine(call, a, f.out, shared);
}
