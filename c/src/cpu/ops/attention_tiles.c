// attention_tiles.c - FLASH_ATTN for many queries: tiles of queries and keys, the score matrix never exists as a whole.
//
// The one idea: softmax can be formed piece by piece. For a tile of queries the thread goes through the keys in blocks:
// scores of the block by the tile product on packed panels, exponentials against the largest score so far, results
// (values weighted by them) added up the same way. When a block raises a query's largest score, what was added up for it
// is scaled down. At the end each result is divided by its sum of exponentials.
//
// Invariant: a query's block borders depend on shapes alone, so that results are the same bits for every number of
// threads. Packed blocks of keys and values stay for the next tile when that has the same head and a single block.
#include "cpu/ops/attention_tiles.h"

#include <math.h>

enum { QUERIES = 48, KEYS = 512, PANEL = GB_GEMM_MAX };

static int64_t round_up(int64_t n, int64_t to) {
    return (n + to - 1) / to * to;
}

// A thread's state. Panels are padded to whole tiles.
struct tiles {
    const struct gb_kernels *  k;
    const struct ggml_tensor *q, *key, *value;
    int64_t                    d, m; // length of a head's vectors, keys
    float *                    queries; // packed, scaled by 1 / sqrt(d)
    float *                    keys;    // packed block of keys
    float *                    values;  // packed block of values
    float *                    score;   // QUERIES x KEYS
    float *                    weight;  // one panel of it, packed
    float *                    out;     // QUERIES x padded d
    float *                    row;     // a query, scaled
    int64_t                    out_stride;
    int64_t                    packed; // the block that keys and values hold: plane of the head * blocks + block; -1: none
    float                      max[QUERIES];
    double                     sum[QUERIES];
};

struct sizes {
    int64_t queries, keys, values, score, weight, out, row;
};

static struct sizes sizes_of(const struct ggml_tensor * node) { // for tiles of any level: all sides padded to PANEL
    const int64_t d = node->src[0]->ne[0], keys = round_up(GB_MIN(node->src[1]->ne[1], (int64_t) KEYS), PANEL);
    const int64_t wide = round_up(d, PANEL), tall = round_up(QUERIES, PANEL) + PANEL;
    return (struct sizes){ tall * d, keys * d, keys * wide, QUERIES * (int64_t) KEYS, PANEL * keys, QUERIES * wide, QUERIES * d };
}

int64_t gb_attention_tiled_floats(const struct ggml_tensor * node) {
    const struct sizes s = sizes_of(node);
    return s.queries + s.keys + s.values + s.score + s.weight + s.out + s.row;
}

static struct tiles tiles_of(const struct gb_cpu_call * call, const struct ggml_tensor * node) {
    const struct sizes s = sizes_of(node);
    struct tiles t = { .k = call->k, .q = node->src[0], .key = node->src[1], .value = node->src[2], .packed = -1 };
    t.d          = t.q->ne[0];
    t.m          = t.key->ne[1];
    t.queries    = gb_my_floats(call, gb_attention_tiled_floats(node));
    t.keys       = t.queries + s.queries;
    t.values     = t.keys + s.keys;
    t.score      = t.values + s.values;
    t.weight     = t.score + s.score;
    t.out        = t.weight + s.weight;
    t.row        = t.out + s.out;
    t.out_stride = round_up(t.d, PANEL);
    return t;
}

// n rows of length `depth` at p, `stride` bytes apart, to panels of `width`.
static void pack(const struct gb_kernels * k, enum ggml_type type, float * y, const char * p, size_t stride, int64_t n,
                 int64_t depth, int width) {
    const void * rows[PANEL];
    for (int64_t i = 0; i < n; i += width) {
        const int count = (int) GB_MIN(n - i, (int64_t) width);
        for (int j = 0; j < count; j++) {
            rows[j] = p + (size_t) (i + j) * stride;
        }
        if (type == GGML_TYPE_F32) {
            k->pack_f32(depth, count, width, y + i * depth, rows);
        } else if (type == GGML_TYPE_F16) {
            k->pack_f16(depth, count, width, y + i * depth, rows);
        } else {
            k->pack_bf16(depth, count, width, y + i * depth, rows);
        }
    }
}

static void pack_queries(struct tiles * t, struct gb_row at, int64_t n) {
    const float scale = (float) (1.0 / sqrt((double) t->d));
    for (int64_t i = 0; i < n; i++) {
        float * row = t->row + i * t->d;
        gb_load(t->k, t->q->type, t->d, row, gb_row_ptr(t->q, at.i1 + i, at.i2, at.i3), t->q->nb[0]);
        t->k->scale_f32(t->d, row, row, scale);
    }
    pack(t->k, GGML_TYPE_F32, t->queries, (const char *) t->row, (size_t) t->d * sizeof(float), n, t->d, t->k->gemm_mr);
}

static void pack_block(struct tiles * t, struct gb_row at, int64_t key0, int64_t keys) {
    const int64_t h2 = at.i2 % t->key->ne[2], h3 = at.i3 % t->key->ne[3];
    const int64_t v2 = at.i2 % t->value->ne[2], v3 = at.i3 % t->value->ne[3];
    const int64_t block = (((h3 * t->key->ne[2] + h2) * t->value->ne[3] + v3) * t->value->ne[2] + v2) * gb_div_up(t->m, KEYS) + key0 / KEYS;
    if (t->packed == block) {
        return;
    }
    pack(t->k, t->key->type, t->keys, gb_row_ptr(t->key, key0, h2, h3), t->key->nb[1], keys, t->d, t->k->gemm_nr);
    pack(t->k, t->value->type, t->values, gb_row_ptr(t->value, 0, v2, v3) + (size_t) key0 * t->value->nb[0], t->value->nb[1],
         t->d, keys, t->k->gemm_nr);
    t->packed = block;
}

// c[rows x columns] = or += a b, a and b packed with this depth.
static void product(const struct gb_kernels * k, int64_t depth, const float * a, int64_t rows, const float * b,
                    int64_t columns, float * c, int64_t stride, bool accumulate) {
    for (int64_t j = 0; j < columns; j += k->gemm_nr) {
        const int nr = (int) GB_MIN(columns - j, (int64_t) k->gemm_nr);
        for (int64_t i = 0; i < rows; i += k->gemm_mr) {
            const int mr = (int) GB_MIN(rows - i, (int64_t) k->gemm_mr);
            k->gemm_tile_f32(depth, a + i * depth, b + j * depth, c + i * stride + j, stride, mr, nr, accumulate);
        }
    }
}

// Scores of query i become exponentials; the first `seen` keys of the block count.
static void weigh(struct tiles * t, int64_t i, int64_t keys, int64_t seen) {
    float * score = t->score + i * KEYS;
    float * out   = t->out + i * t->out_stride;
    if (seen > 0) {
        const float block_max = t->k->max_f32(seen, score), max = GB_MAX(t->max[i], block_max);
        if (max > t->max[i] && t->sum[i] != 0) {
            const float less = expf(t->max[i] - max);
            t->k->scale_f32(t->d, out, out, less);
            t->sum[i] *= (double) less;
        }
        t->max[i] = max;
        t->sum[i] += t->k->exp_sum_f32(seen, score, score, max);
    }
    for (int64_t c = GB_MAX(seen, (int64_t) 0); c < keys; c++) {
        score[c] = 0;
    }
}

static void add_values(struct tiles * t, int64_t n, int64_t keys) {
    const int mr = t->k->gemm_mr;
    for (int64_t i = 0; i < n; i += mr) {
        const int64_t rows = GB_MIN(n - i, (int64_t) mr);
        pack(t->k, GGML_TYPE_F32, t->weight, (const char *) (t->score + i * KEYS), KEYS * sizeof(float), rows, keys, mr);
        product(t->k, keys, t->weight, rows, t->values, t->d, t->out + i * t->out_stride, t->out_stride, true);
    }
}

static void finish(struct tiles * t, struct ggml_tensor * node, struct gb_row at, int64_t n) {
    for (int64_t i = 0; i < n; i++) {
        float * out = t->out + i * t->out_stride;
        if (t->sum[i] != 0) { // else no key was seen: zeros
            t->k->scale_f32(t->d, out, out, (float) (1.0 / t->sum[i]));
        }
        gb_store(t->k, node->type, t->d, gb_row_ptr(node, at.i1 + i, at.i2, at.i3), node->nb[0], out);
    }
}

// Queries at.i1 .. at.i1 + n - 1 of one head.
static void run_tile(struct tiles * t, struct ggml_tensor * node, struct gb_row at, int64_t n, bool masked) {
    const int64_t past = t->m - t->q->ne[1];
    const int64_t end  = masked ? GB_MAX((int64_t) 0, GB_MIN(past + at.i1 + n, t->m)) : t->m; // keys that any of them sees
    pack_queries(t, at, n);
    memset(t->out, 0, (size_t) (n * t->out_stride) * sizeof(float));
    for (int64_t i = 0; i < n; i++) {
        t->max[i] = -INFINITY;
        t->sum[i] = 0;
    }
    for (int64_t key0 = 0; key0 < end; key0 += KEYS) {
        const int64_t keys = GB_MIN(t->m - key0, (int64_t) KEYS);
        pack_block(t, at, key0, keys);
        product(t->k, t->d, t->queries, n, t->keys, keys, t->score, KEYS, false);
        for (int64_t i = 0; i < n; i++) {
            weigh(t, i, keys, masked ? GB_MIN(past + at.i1 + i + 1 - key0, keys) : keys);
        }
        add_values(t, n, keys);
    }
    finish(t, node, at, n);
}

static bool is_packable(const struct ggml_tensor * t) { // rows are dense and aligned, if the first one is
    const size_t size = ggml_type_size(t->type);
    return t->nb[0] == size && (t->nb[1] | t->nb[2] | t->nb[3]) % size == 0;
}

bool gb_attention_is_aligned(const struct ggml_tensor * node) {
    const struct ggml_tensor *k = node->src[1], *v = node->src[2];
    return (uintptr_t) k->data % ggml_type_size(k->type) == 0 && (uintptr_t) v->data % ggml_type_size(v->type) == 0;
}

bool gb_attention_is_tiled(const struct ggml_tensor * node) {
    const struct ggml_tensor *q = node->src[0], *k = node->src[1], *v = node->src[2];
    return q->ne[1] >= 8 && k->ne[1] >= 16 && q->ne[0] >= 8 && q->ne[0] <= 512 && gb_is_float(k->type) && is_packable(k) && is_packable(v);
}

int64_t gb_attention_tiled_units(const struct ggml_tensor * node) {
    return gb_div_up(node->src[0]->ne[1], QUERIES) * node->src[0]->ne[2] * node->src[0]->ne[3];
}

void gb_attention_run_tiled(const struct gb_cpu_call * call, struct ggml_tensor * node) {
    struct tiles  t      = tiles_of(call, node);
    const bool    masked = gb_op_param_i32(node, 0) != 0;
    const int64_t chunks = gb_div_up(t.q->ne[1], QUERIES);
    int64_t       first, last;
    gb_cpu_share(call, gb_attention_tiled_units(node), &first, &last);
    for (int64_t u = first; u < last; u++) {
        const int64_t       plane = u / chunks;
        const struct gb_row at    = { (u - plane * chunks) * QUERIES, plane % t.q->ne[2], plane / t.q->ne[2] };
        run_tile(&t, node, at, GB_MIN(t.q->ne[1] - at.i1, (int64_t) QUERIES), masked);
    }
}
