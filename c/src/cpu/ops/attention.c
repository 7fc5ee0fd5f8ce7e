// attention.c - FLASH_ATTN, FLASH_FF, FLASH_ATTN_BACK: attention and feed-forward as single
// operators.
//
// FLASH_ATTN: out = softmax(q k^T / sqrt(D)) v, causal if op_params[0] is not 0.
// FLASH_FF: out = c0 gelu(b0 a + b1) + c1.
//
// attention_tiles.c computes many queries at a time. This file computes one query at a time. The
// thread's scratch memory holds the scores of the row for all keys. v is stored transposed, so the
// weighted sum over positions is also a dot product of rows. Query head i uses key head i mod the
// number of key heads.
#include <math.h>

#include "cpu/ops/attention.h"
#include "cpu/ops/elements.h"

// The sum of x[i] y[i], where y are n values of t at p. Half types have separate kernels.
static float dot_with(const struct gb_kernels * k, const struct ggml_tensor * t, const char * p, int64_t n,
    const float * y, float * buf) {
    if (t->type != GGML_TYPE_F32 && t->nb[0] == sizeof(uint16_t) && (uintptr_t) p % sizeof(uint16_t) == 0) {
        const uint16_t * half = (const uint16_t *) (const void *) p;
        return t->type == GGML_TYPE_F16 ? k->dot_f16_f32(n, half, y) : k->dot_bf16_f32(n, half, y);
    }
    return k->dot_f32(n, gb_in(k, t, p, n, buf), y);
}

// The number of keys that query row n sees: all, or those up to its position.
static int64_t keys_seen(const struct ggml_tensor * q, const struct ggml_tensor * k, int64_t n, bool masked) {
    const int64_t past = k->ne[1] - q->ne[1];
    return masked ? GB_MAX((int64_t) 0, GB_MIN(past + n + 1, k->ne[1])) : k->ne[1];
}

enum { PIECE = 1 << 16 }; // terms of dot products between which a thread may stop

// score[c] = softmax over c < n of (k_c q) / sqrt(D), for the keys of head h2, batch h3. False: the run is over.
static bool attend(const struct gb_cpu_call * call, const struct ggml_tensor * k, int64_t h2, int64_t h3,
    const float * q, int64_t n, float * score, float * buf) {
    const struct gb_kernels * const kernels = call->k;
    const int64_t piece = PIECE / GB_MAX(k->ne[0], 1) + 1;
    if (n == 0) {
        return true;
    }
    for (int64_t c = 0; c < n;) {
        for (const int64_t end = GB_MIN(n, c + piece); c < end; c++) {
            score[c] = dot_with(kernels, k, gb_row_ptr(k, c, h2, h3), k->ne[0], q, buf);
        }
        if (gb_cpu_stopped(call, GB_MIN(n, piece) * (5 + k->ne[0] / 8))) {
            return false;
        }
    }
    kernels->soft_max_row_f32(n, score, score, (float) (1.0 / sqrt((double) k->ne[0])), NULL);
    return true;
}

// ---------------------------------------------------------------------------------------------------------- FLASH_ATTN

// Scratch of a thread: a query, scores, a result row, and a converted row of k or v.
static int64_t attn_floats(const struct ggml_tensor * node) {
    const int64_t d = node->src[0]->ne[0], m = node->src[1]->ne[1];
    return 2 * d + m + GB_MAX(d, m);
}

// Describes the node for attention.h. The causal mask is its only change of the scores.
static struct gb_attention attention_of(const struct ggml_tensor * node) {
    struct gb_attention a = {
        .q = node->src[0],
        .k = node->src[1],
        .v = node->src[2],
        .in_turn = true,
        .scale = (float) (1.0 / sqrt((double) node->src[0]->ne[0])),
        .causal = gb_op_param_i32(node, 0) != 0,
        .past = node->src[1]->ne[1] - node->src[0]->ne[1],
        .type = node->type,
        .out = node->data,
    };
    memcpy(a.nb, node->nb, sizeof(a.nb));
    gb_attention_set_group(&a);
    return a;
}

// Without tiles. Threads share the query rows, and scratch holds all scores of a row.
static void run_flash_attn(const struct gb_cpu_call * call, struct ggml_tensor * node) {
    const struct gb_attention a = attention_of(node);
    if (gb_attention_is_tiled(&a) && gb_attention_is_aligned(&a)) {
        gb_attention_run_tiled(call, &a);
        return;
    }
    const struct ggml_tensor *q = node->src[0], *k = node->src[1], *v = node->src[2];
    const int64_t d = q->ne[0], m = k->ne[1];
    const bool masked = gb_op_param_i32(node, 0) != 0;
    float * query = gb_my_floats(call, attn_floats(node));
    float * score = query + d;
    float * out = score + m;
    float * buf = out + d;
    int64_t first, last;
    gb_cpu_share(call, d > 0 ? gb_rows(node) : 0, &first, &last);
    for (int64_t i = first; i < last; i++) {
        const struct gb_row r = gb_row_at(node, i);
        const int64_t n = keys_seen(q, k, r.i1, masked);
        char * p = gb_row_of(node, r);
        float * y = gb_out(node, p, d, out);
        const float * x = gb_in(call->k, q, gb_row_of(q, r), d, query);
        if (!attend(call, k, r.i2 % k->ne[2], r.i3 % k->ne[3], x, n, score, buf)) {
            return;
        }
        for (int64_t j = 0; j < d; j++) {
            y[j] = dot_with(call->k, v, gb_row_ptr(v, j, r.i2 % v->ne[2], r.i3 % v->ne[3]), n, score, buf);
            if (n >= PIECE && gb_cpu_stopped(call, n / 8)) {
                return;
            }
        }
        gb_put(call->k, node, p, d, y);
        if (gb_cpu_stopped(call, d * GB_MIN(n, (int64_t) PIECE) / 8)) {
            return;
        }
    }
}

// Head numbers are taken modulo these numbers, so they must not be 0.
static bool has_heads(const struct ggml_tensor * t) { return t->ne[2] > 0 && t->ne[3] > 0; }

// The driver converts all float types and handles all strides.
static const char * flash_attn_unsupported(const struct ggml_tensor * node) {
    const char * why = gb_need_float(node, 3);
    if (why != NULL) {
        return why;
    }
    return has_heads(node->src[1]) && has_heads(node->src[2]) ? NULL : "sources 1 and 2 must have heads";
}

// The larger of both sizes, because the alignment that tiles need is known only at run time.
static size_t flash_attn_work(const struct ggml_tensor * node, int n_tasks) {
    const struct gb_attention a = attention_of(node);
    const int64_t tiled = gb_attention_is_tiled(&a) ? gb_attention_tiled_floats(&a) : 0;
    return gb_floats_size(GB_MAX(tiled, attn_floats(node)), n_tasks);
}

// The work is the product of queries and keys.
static int flash_attn_tasks(const struct ggml_tensor * node, int n_threads) {
    const struct gb_attention a = attention_of(node);
    const int64_t units = gb_attention_is_tiled(&a) ? gb_attention_tiled_units(&a) : gb_rows(node);
    return gb_tasks_for((double) gb_count(node) * (double) node->src[1]->ne[1], units, n_threads);
}

// ------------------------------------------------------------------------------------------------------------ FLASH_FF

// Scratch of a thread: an input row, the hidden row, a result row, and a converted row of weights
// or biases.
static int64_t ff_floats(const struct ggml_tensor * node) {
    const int64_t d = node->src[0]->ne[0], hidden = node->src[1]->ne[1];
    return 2 * node->ne[0] + d + hidden + GB_MAX(GB_MAX(d, hidden), node->ne[0]);
}

// y = weights^T x + bias for one row; buf holds a converted row. False: the run is over.
static bool affine(const struct gb_cpu_call * call, int64_t n_out, float * y, const struct ggml_tensor * w,
    struct gb_row at, const float * x, const struct ggml_tensor * bias, float * buf) {
    const int64_t piece = PIECE / GB_MAX(w->ne[0], 1) + 1;
    for (int64_t j = 0; j < n_out;) {
        for (const int64_t end = GB_MIN(n_out, j + piece); j < end; j++) {
            y[j] = dot_with(call->k, w, gb_row_ptr(w, j, at.i2, at.i3), w->ne[0], x, buf);
        }
        if (gb_cpu_stopped(call, GB_MIN(n_out, piece) * (5 + w->ne[0] / 8))) {
            return false;
        }
    }
    call->k->add_f32(n_out, y, y, gb_in(call->k, bias, bias->data, n_out, buf));
    return true;
}

// Threads share the rows of a. Each row goes through both layers in the thread's scratch.
static void run_flash_ff(const struct gb_cpu_call * call, struct ggml_tensor * node) {
    const struct ggml_tensor *a = node->src[0], *b0 = node->src[1], *c0 = node->src[3];
    const int64_t d = a->ne[0], hidden = b0->ne[1];
    float * in = gb_my_floats(call, ff_floats(node));
    float * h = in + d;
    float * out = h + hidden;
    float * buf = out + node->ne[0];
    int64_t first, last;
    gb_cpu_share(call, node->ne[0] > 0 ? gb_rows(node) : 0, &first, &last);
    for (int64_t i = first; i < last; i++) {
        const struct gb_row r = gb_row_at(node, i);
        char * p = gb_row_of(node, r);
        if (!affine(call, hidden, h, b0, r, gb_in(call->k, a, gb_row_of(a, r), d, in), node->src[2], buf)) {
            return;
        }
        call->k->gelu_f32(hidden, h, h);
        if (!affine(call, node->ne[0], out, c0, r, h, node->src[4], buf)) {
            return;
        }
        gb_store(call->k, node->type, node->ne[0], p, node->nb[0], out);
    }
}

static const char * flash_ff_unsupported(const struct ggml_tensor * node) { return gb_need_float(node, 5); }

static size_t flash_ff_work(const struct ggml_tensor * node, int n_tasks) {
    return gb_floats_size(ff_floats(node), n_tasks);
}

// The work is the product of rows and hidden units.
static int flash_ff_tasks(const struct ggml_tensor * node, int n_threads) {
    return gb_tasks_for((double) gb_count(node) * (double) node->src[1]->ne[1], gb_rows(node), n_threads);
}

// ----------------------------------------------------------------------------------------------------- FLASH_ATTN_BACK

// The result is one dense vector: the gradients of q, k and v. Each has its tensor's shape and
// starts at a multiple of 16 bytes.
struct grads {
    float *q, *k, *v;
};

// Bytes of a gradient, padded to 16.
static size_t padded(const struct ggml_tensor * t) {
    return ((size_t) gb_count(t) * sizeof(float) + 15) & ~(size_t) 15;
}

static struct grads grads_of(const struct ggml_tensor * node) {
    char * base = node->data;
    char * k = base + padded(node->src[0]);
    return (struct grads){ (float *) (void *) base, (float *) (void *) k,
        (float *) (void *) (k + padded(node->src[1])) };
}

// A row of a gradient. Gradients are dense for any strides of their tensors.
static float * grad_row(float * grad, const struct ggml_tensor * t, int64_t i1, int64_t i2, int64_t i3) {
    return grad + ((i3 * t->ne[2] + i2) * t->ne[1] + i1) * t->ne[0];
}

// Clears the bytes that pad the three parts, so that the whole result is defined. The first thread
// calls it.
static void clear_gaps(const struct ggml_tensor * node) {
    char * at = node->data;
    for (int i = 0; i < 3; i++) {
        const size_t used = (size_t) gb_count(node->src[i]) * sizeof(float);
        memset(at + used, 0, padded(node->src[i]) - used);
        at += padded(node->src[i]);
    }
}

// The node's tensors and parameters. Then scratch of the thread: a query, the gradient of the
// output row, the weights, their gradient, and a converted row of k or v.
struct back {
    const struct ggml_tensor *q, *k, *v, *d;
    struct grads g;
    bool masked;
    float *query, *dout, *weight, *dweight, *buf;
};

static int64_t back_floats(const struct ggml_tensor * node) {
    const int64_t d = node->src[0]->ne[0], m = node->src[1]->ne[1];
    return 2 * d + 2 * m + GB_MAX(d, m);
}

// The node's tensors and parameters, and this thread's scratch.
static struct back back_of(const struct gb_cpu_call * call, const struct ggml_tensor * node) {
    const int64_t d = node->src[0]->ne[0], m = node->src[1]->ne[1];
    float * p = gb_my_floats(call, back_floats(node));
    return (struct back){ .q = node->src[0],
        .k = node->src[1],
        .v = node->src[2],
        .d = node->src[3],
        .g = grads_of(node),
        .masked = gb_op_param_i32(node, 0) != 0,
        .query = p,
        .dout = p + d,
        .weight = p + 2 * d,
        .dweight = p + 2 * d + m,
        .buf = p + 2 * d + 2 * m };
}

// Converts the gradient G of the weights A to the gradient of the scores, in place:
// A (G - sum A G) / sqrt(D).
static void score_gradient(const struct back * b, int64_t n) {
    double along = 0;
    for (int64_t c = 0; c < n; c++) {
        along += (double) b->weight[c] * (double) b->dweight[c];
    }
    const float scale = (float) (1.0 / sqrt((double) b->q->ne[0]));
    for (int64_t c = 0; c < n; c++) {
        b->dweight[c] = b->weight[c] * (b->dweight[c] - (float) along) * scale;
    }
}

// Computes query row r with the keys and values of head h2, batch h3. False: the run is over.
static bool back_row(const struct gb_cpu_call * call, const struct back * b, struct gb_row r, int64_t h2, int64_t h3) {
    const struct gb_kernels * const kernels = call->k;
    const int64_t d = b->q->ne[0], n = keys_seen(b->q, b->k, r.i1, b->masked);
    const float * x = gb_in(kernels, b->q, gb_row_of(b->q, r), d, b->query);
    const float * dout = gb_in(kernels, b->d, gb_row_of(b->d, r), d, b->dout);
    float * dq = grad_row(b->g.q, b->q, r.i1, r.i2, r.i3);
    memset(dq, 0, (size_t) d * sizeof(*dq));
    if (n == 0) {
        return true;
    }
    if (!attend(call, b->k, h2, h3, x, n, b->weight, b->buf)) {
        return false;
    }
    memset(b->dweight, 0, (size_t) n * sizeof(float));
    for (int64_t j = 0; j < d; j++) {
        kernels->mad_f32(n, b->dweight, gb_in(kernels, b->v, gb_row_ptr(b->v, j, h2, h3), n, b->buf), dout[j]);
        kernels->mad_f32(n, grad_row(b->g.v, b->v, j, h2, h3), b->weight, dout[j]);
        if (gb_cpu_stopped(call, n / 2)) {
            return false;
        }
    }
    score_gradient(b, n);
    for (int64_t c = 0; c < n; c++) {
        kernels->mad_f32(d, dq, gb_in(kernels, b->k, gb_row_ptr(b->k, c, h2, h3), d, b->buf), b->dweight[c]);
        kernels->mad_f32(d, grad_row(b->g.k, b->k, c, h2, h3), x, b->dweight[c]);
        if (gb_cpu_stopped(call, d / 2)) {
            return false;
        }
    }
    return true;
}

// Threads share the key heads. One thread computes all query heads of a key head.
static void run_flash_attn_back(const struct gb_cpu_call * call, struct ggml_tensor * node) {
    const struct back b = back_of(call, node);
    const size_t plane = (size_t) (b.k->ne[0] * b.k->ne[1]) * sizeof(float);
    int64_t first, last;
    if (call->ith == 0) {
        clear_gaps(node);
    }
    gb_cpu_share(call, b.k->ne[2] * b.k->ne[3], &first, &last);
    for (int64_t u = first; u < last; u++) {
        const int64_t h3 = u / b.k->ne[2], h2 = u % b.k->ne[2];
        memset(grad_row(b.g.k, b.k, 0, h2, h3), 0, plane);
        memset(grad_row(b.g.v, b.v, 0, h2, h3), 0, plane);
        for (int64_t i3 = h3; i3 < b.q->ne[3]; i3 += b.k->ne[3]) {
            for (int64_t i2 = h2; i2 < b.q->ne[2]; i2 += b.k->ne[2]) {
                for (int64_t i1 = 0; i1 < b.q->ne[1]; i1++) {
                    if (!back_row(call, &b, (struct gb_row){ i1, i2, i3 }, h2, h3)) {
                        return;
                    }
                }
            }
        }
    }
}

// The same thread writes the gradients of a head of keys and of values. So both must have the same
// heads and positions.
static const char * flash_attn_back_unsupported(const struct ggml_tensor * node) {
    const char * why = gb_need_float(node, 4);
    if (why != NULL) {
        return why;
    }
    const struct ggml_tensor *k = node->src[1], *v = node->src[2];
    if (!has_heads(k) || k->ne[2] != v->ne[2] || k->ne[3] != v->ne[3] || k->ne[0] != v->ne[1] || k->ne[1] != v->ne[0]) {
        return "sources 1 and 2 must have the same heads";
    }
    return node->type == GGML_TYPE_F32 && ggml_is_contiguous(node) ? NULL : "the result must be f32 and contiguous";
}

static size_t flash_attn_back_work(const struct ggml_tensor * node, int n_tasks) {
    return gb_floats_size(back_floats(node), n_tasks);
}

// A key head is indivisible.
static int flash_attn_back_tasks(const struct ggml_tensor * node, int n_threads) {
    const struct ggml_tensor *q = node->src[0], *k = node->src[1];
    return gb_tasks_for((double) gb_count(q) * (double) k->ne[1], k->ne[2] * k->ne[3], n_threads);
}

const struct gb_cpu_op gb_cpu_op_flash_attn = {
    .unsupported = flash_attn_unsupported,
    .n_tasks = flash_attn_tasks,
    .work_size = flash_attn_work,
    .run = run_flash_attn,
};
const struct gb_cpu_op gb_cpu_op_flash_ff = {
    .unsupported = flash_ff_unsupported,
    .n_tasks = flash_ff_tasks,
    .work_size = flash_ff_work,
    .run = run_flash_ff,
};
const struct gb_cpu_op gb_cpu_op_flash_attn_back = {
    .unsupported = flash_attn_back_unsupported,
    .n_tasks = flash_attn_back_tasks,
    .work_size = flash_attn_back_work,
    .run = run_flash_attn_back,
};
