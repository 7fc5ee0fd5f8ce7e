// attention_tiles.c - attention for many queries, by tiles. The full score matrix is never stored.
//
// Softmax is computed piece by piece. For a tile of queries, the thread processes the keys in
// blocks. A block adds its exponentials, relative to the largest score so far, and its weighted
// values to the sums. If a block raises a query's largest score, the query's sums are scaled down.
// At the end each result is divided by its sum of exponentials.
//
// A unit of work is several tiles of one head, so that all of them use a packed block of keys and
// values. A packed block stays for the next unit if that unit has the same head and a single block.
// Queries and weights are not packed. A panel is the queries that one product takes. The product
// skips keys after the last key that a query of the panel sees.
//
// Keys that a mask hides are left out if that does not change the result. An added mask of -inf
// hides no NaN, and a weight of zero hides no infinite value. So heads with such keys or values use
// all keys. Heads are checked only if a mask hides keys. In FLASH_ATTN, hidden keys and values
// never count.
#include "cpu/ops/attention_tiles.h"

#include <math.h>

// The stride of score rows is not a power of two. Otherwise rows of a panel would evict each other
// from the first-level cache.
enum { QUERIES = 48, KEYS = 512, TILES = 4, PANEL = GB_GEMM_NR_MAX, SCORES = KEYS + 16 };

// Scores this far below the largest score (a factor of 2^-100) count as 0. Products with their
// exponentials may be subnormal numbers, which are slow.
#define LEAST (-70.0f)

// The smallest multiple of `to` that is at least n.
static int64_t round_up(int64_t n, int64_t to) { return (n + to - 1) / to * to; }

// A tile of queries.
struct tile {
    int64_t first, n; // queries
    int64_t end; // number of leading keys that some query sees
    int64_t seen[QUERIES]; // number of leading keys that each query sees
    bool masks_hide; // masks add only finite numbers or -inf to hidden keys
    bool all_count; // hidden keys are computed, too
    float max[QUERIES];
    double sum[QUERIES];
    float * queries; // n x d, scaled
    float * out; // QUERIES x padded dv
};

// A thread's state. Panels are padded to whole tiles.
struct tiles {
    const struct gb_kernels * k;
    const struct gb_attention * a;
    int64_t d, dv, m; // length of a key, of a result; keys
    float * keys; // packed block of keys
    float * values; // packed block of values
    float * score; // QUERIES x SCORES
    int64_t out_stride;
    // the block in `keys` and `values`: plane of the head * blocks + block; -1: none
    int64_t packed;
    int64_t looked; // the head of `keys_norm` and `values_norm`; -1: none
    // norms of the longest key and of all values; NaN or infinite if an element is, or is huge
    double keys_norm, values_norm;
    bool values_far; // FLASH_ATTN: not all values of the block are finite
    struct tile tile[TILES];
};

// Floats of each part of a thread's scratch.
struct sizes {
    int64_t queries, keys, values, score, out;
};

static struct sizes sizes_of(const struct gb_attention * a) { // for tiles of any level: panels padded to PANEL
    const int64_t d = a->q->ne[0], dv = a->v->ne[1], keys = round_up(GB_MIN(a->k->ne[1], (int64_t) KEYS), PANEL);
    const int64_t wide = round_up(dv, PANEL);
    return (struct sizes){ QUERIES * d, keys * d, keys * wide, QUERIES * (int64_t) SCORES, QUERIES * wide };
}

// Number of tiles of a unit, which share packed blocks.
static int64_t tiles_a_unit(const struct gb_attention * a) { return a->k->ne[1] > KEYS ? TILES : 1; }

int64_t gb_attention_tiled_floats(const struct gb_attention * a) {
    const struct sizes s = sizes_of(a);
    return s.keys + s.values + s.score + tiles_a_unit(a) * (s.queries + s.out);
}

// Divides this thread's scratch. No block is packed yet.
static struct tiles tiles_of(const struct gb_cpu_call * call, const struct gb_attention * a) {
    const struct sizes s = sizes_of(a);
    struct tiles t = {
        .k = call->k, .a = a, .d = a->q->ne[0], .dv = a->v->ne[1], .m = a->k->ne[1], .packed = -1, .looked = -1
    };
    t.keys = gb_my_floats(call, gb_attention_tiled_floats(a));
    t.values = t.keys + s.keys;
    t.score = t.values + s.values;
    t.out_stride = round_up(t.dv, PANEL);
    for (int64_t i = 0; i < tiles_a_unit(a); i++) {
        t.tile[i].queries = t.score + s.score + i * (s.queries + s.out);
        t.tile[i].out = t.tile[i].queries + s.queries;
    }
    return t;
}

// ------------------------------------------------------------------------------------------------------------- packing

// Packs n rows of length `depth` at p, `stride` bytes apart, into panels of `width`.
static void pack(const struct gb_kernels * k, enum ggml_type type, float * y, const char * p, size_t stride, int64_t n,
    int64_t depth, int width) {
    const void * rows[PANEL];
    for (int64_t i = 0; i < n; i += width) {
        const int count = (int) GB_MIN(n - i, (int64_t) width);
        for (int j = 0; j < count; j++) {
            rows[j] = p + (size_t) (i + j) * stride;
        }
        gb_pack_of(k, type)(depth, count, width, y + i * depth, rows);
    }
}

static void scale_queries(struct tiles * t, struct tile * tile, struct gb_row at) {
    const struct ggml_tensor * q = t->a->q;
    for (int64_t i = 0; i < tile->n; i++) {
        float * row = tile->queries + i * t->d;
        t->k->scale_f32(t->d, row, gb_in(t->k, q, gb_row_ptr(q, tile->first + i, at.i2, at.i3), t->d, row),
            t->a->scale);
    }
}

// The head, of n heads, that query head i of n_query uses.
static int64_t head_of(const struct gb_attention * a, int64_t i, int64_t n, int64_t n_query) {
    return a->in_turn ? i % n : i / (n_query / n);
}

struct heads { // of keys and values, for a row of queries
    int64_t k2, k3, v2, v3;
    int64_t number; // of this combination
};

static struct heads heads_of(const struct gb_attention * a, struct gb_row at) {
    const struct ggml_tensor *q = a->q, *k = a->k, *v = a->v;
    struct heads h = { .k2 = head_of(a, at.i2, k->ne[2], q->ne[2]),
        .k3 = head_of(a, at.i3, k->ne[3], q->ne[3]),
        .v2 = head_of(a, at.i2, v->ne[2], q->ne[2]),
        .v3 = head_of(a, at.i3, v->ne[3], q->ne[3]) };
    h.number = ((h.k3 * k->ne[2] + h.k2) * v->ne[3] + h.v3) * v->ne[2] + h.v2;
    return h;
}

// Packs keys key0 .. key0 + keys - 1 of the head, and their values, unless they are packed already.
static void pack_block(struct tiles * t, struct gb_row at, int64_t key0, int64_t keys) {
    const struct ggml_tensor *k = t->a->k, *v = t->a->v;
    const struct heads h = heads_of(t->a, at);
    const int64_t block = h.number * gb_div_up(t->m, KEYS) + key0 / KEYS;
    if (t->packed == block) {
        return;
    }
    pack(t->k, k->type, t->keys, gb_row_ptr(k, key0, h.k2, h.k3), k->nb[1], keys, t->d, t->k->gemm_nr);
    pack(t->k, v->type, t->values, gb_row_ptr(v, 0, h.v2, h.v3) + (size_t) key0 * v->nb[0], v->nb[1], t->dv, keys,
        t->k->gemm_nr);
    t->packed = block;
    const int64_t n = round_up(t->dv, t->k->gemm_nr) * keys;
    t->values_far = t->a->in_turn && t->a->causal && !isfinite(t->k->dot_f32(n, t->values, t->values));
}

// --------------------------------------------------------------------------------------------------------------- masks

// The row of an edit's tensor for a row of scores.
static const float * edit_row(const struct gb_score_edit * e, int64_t query, struct gb_row at) {
    const struct ggml_tensor * t = e->t;
    return (const float *) (const void *) gb_row_ptr(t, query % t->ne[1], at.i2 % t->ne[2], at.i3 % t->ne[3]);
}

// The number of the row's n values, not counting trailing values of -inf.
static int64_t without_hidden(const float * row, int64_t n) {
    enum { AT_ONCE = 16 };
    const uint32_t minus_infinity = 0xff800000;
    for (uint32_t other = 0; n >= AT_ONCE; n -= AT_ONCE) {
        uint32_t bits[AT_ONCE];
        memcpy(bits, row + n - AT_ONCE, sizeof(bits));
        for (int i = 0; i < AT_ONCE; i++) {
            other |= bits[i] ^ minus_infinity;
        }
        if (other != 0) {
            break;
        }
    }
    while (n > 0 && row[n - 1] == -INFINITY) {
        n--;
    }
    return n;
}

static bool all_below_infinity(const float * row, int64_t first, int64_t end) {
    bool fine = true;
    for (int64_t i = first; i < end; i++) {
        fine &= row[i] < 1e38f;
    }
    return fine;
}

// Finds the number of leading keys that query i of the tile sees, so that all later scores are
// -inf. Also checks that masks add only finite numbers or -inf to the later keys.
static void look_at_masks(const struct tiles * t, struct tile * tile, int64_t i, struct gb_row at) {
    const struct gb_attention * a = t->a;
    const int64_t query = tile->first + i;
    int64_t seen = a->causal ? GB_MAX((int64_t) 0, GB_MIN(a->past + query + 1, t->m)) : t->m;
    const float * row[GB_SCORE_EDITS];
    int64_t before[GB_SCORE_EDITS], behind[GB_SCORE_EDITS]; // [behind, before) of the row is -inf
    for (int e = 0; e < a->n_edits; e++) {
        row[e] = a->edits[e].kind == GB_SCORE_SCALE ? NULL : edit_row(&a->edits[e], query, at);
        before[e] = seen;
        seen = row[e] != NULL ? without_hidden(row[e], seen) : seen;
        behind[e] = seen;
    }
    tile->seen[i] = seen;
    for (int e = 0; e < a->n_edits; e++) {
        tile->masks_hide &= row[e] == NULL || (all_below_infinity(row[e], seen, behind[e]) &&
                                                  all_below_infinity(row[e], before[e], t->m));
    }
}

// Hides keys like DIAG_MASK_INF.
static void hide(const struct tiles * t, float * score, int64_t query, int64_t key0, int64_t n) {
    for (int64_t i = GB_MAX((int64_t) 0, t->a->past + query + 1 - key0); i < n; i++) {
        score[i] = -INFINITY;
    }
}

// Applies the edits, in order, to n scores of a query, from key0 on. Applies the causal mask, too,
// if hidden keys are computed.
static void edit(const struct tiles * t, bool all_count, float * score, int64_t query, struct gb_row at, int64_t key0,
    int64_t n) {
    for (int i = 0; i <= t->a->n_edits; i++) {
        const struct gb_score_edit * e = &t->a->edits[i];
        if (all_count && t->a->causal && i == t->a->causal_at) {
            hide(t, score, query, key0, n);
        }
        if (i == t->a->n_edits) {
            break;
        }
        if (e->kind == GB_SCORE_SCALE) {
            t->k->scale_f32(n, score, score, e->value);
        } else {
            t->k->add_f32(n, score, score, edit_row(e, query, at) + key0);
        }
    }
}

// ---------------------------------------------------------------------------------------------- what masks do not hide

// The sum of squares of a dense row whose type is_packable accepts.
static double squares(const struct gb_kernels * k, enum ggml_type type, const void * row, int64_t n) {
    return type == GGML_TYPE_F32   ? k->dot_f32(n, row, row)
           : type == GGML_TYPE_F16 ? k->dot_f16(n, row, row)
                                   : k->dot_bf16(n, row, row);
}

// Computes keys_norm and values_norm for the head, unless they are known.
static void look_at_head(struct tiles * t, struct gb_row at) {
    const struct ggml_tensor *k = t->a->k, *v = t->a->v;
    const struct heads h = heads_of(t->a, at);
    if (t->looked == h.number) {
        return;
    }
    t->looked = h.number;
    t->keys_norm = t->values_norm = 0;
    for (int64_t i = 0; i < t->m; i++) {
        const double norm = squares(t->k, k->type, gb_row_ptr(k, i, h.k2, h.k3), t->d);
        t->keys_norm = norm <= t->keys_norm ? t->keys_norm : norm;
        if (isnan(norm)) {
            return;
        }
    }
    for (int64_t i = 0; i < t->dv; i++) {
        t->values_norm += squares(t->k, v->type, gb_row_ptr(v, i, h.v2, h.v3), t->m);
    }
}

// True if keys that a mask hides from a query of the tile may be left out, because no product with
// such a key can be infinite.
static bool may_leave_out(struct tiles * t, const struct tile * tile, struct gb_row at) {
    double bound = 0;
    if (!tile->masks_hide) {
        return false;
    }
    look_at_head(t, at);
    for (int64_t i = 0; i < tile->n; i++) {
        const float * row = tile->queries + i * t->d;
        const double norm = t->k->dot_f32(t->d, row, row);
        bound = norm <= bound || isnan(bound) ? bound : norm;
    }
    bound = sqrt(bound) * sqrt(t->keys_norm);
    for (int e = 0; e < t->a->n_edits; e++) {
        bound *=
            t->a->edits[e].kind == GB_SCORE_SCALE && t->a->edits[e].value > 1 ? (double) t->a->edits[e].value : 1.0;
    }
    return bound < 1e38 && isfinite(t->values_norm);
}

// --------------------------------------------------------------------------------------------------------------- tiles

// c[rows x columns] = or += a b over `depth` terms, for at most gemm_mr rows of a, which is not
// packed. b has panels of b_depth terms.
static void product(const struct gb_kernels * k, int64_t depth, const float * a, int64_t lda, int64_t rows,
    const float * b, int64_t b_depth, int64_t columns, float * c, int64_t stride, bool accumulate) {
    for (int64_t j = 0; j < columns; j += k->gemm_nr) {
        k->gemm_tile_f32(&(struct gb_tile){
            .k = depth,
            .a = a,
            .lda = lda,
            .b = b + j * b_depth,
            .c = c + j,
            .ldc = stride,
            .mr = (int) rows,
            .nr = (int) GB_MIN(columns - j, (int64_t) k->gemm_nr),
            .accumulate = accumulate,
        });
    }
}

// Sets x[from .. to - 1] to 0.
static void clear(float * x, int64_t from, int64_t to) {
    for (int64_t i = from; i < to; i++) {
        x[i] = 0;
    }
}

// Converts the scores of query i of the tile to exponentials. Only the first `seen` keys of the
// block count.
static void weigh(struct tiles * t, struct tile * tile, int64_t i, int64_t keys, int64_t seen) {
    float * score = t->score + i * SCORES;
    float * out = tile->out + i * t->out_stride;
    const float block_max = seen > 0 ? t->k->max_f32(seen, score) : -INFINITY, max = GB_MAX(tile->max[i], block_max);
    if (seen == 0 || max == -INFINITY) { // no key is seen; a NaN score would make max NaN
        clear(score, 0, keys);
        return;
    }
    if (max > tile->max[i] && tile->sum[i] != 0) {
        const float apart = tile->max[i] - max, less = apart < LEAST ? 0.0f : expf(apart);
        t->k->scale_f32(t->dv, out, out, less);
        tile->sum[i] *= (double) less;
    }
    tile->max[i] = max;
    tile->sum[i] += t->k->exp_sum_f32(seen, score, score, max, LEAST);
    clear(score, seen, keys);
}

// out += weights x values for `rows` queries of the tile from i on, over the first `seen` values of the block.
static void add_values(struct tiles * t, struct tile * tile, int64_t i, int64_t rows, int64_t seen, int64_t packed) {
    product(t->k, seen, t->score + i * SCORES, SCORES, rows, t->values, packed, t->dv, tile->out + i * t->out_stride,
        t->out_stride, true);
}

// Prepares a tile of queries: the keys that each query sees, and whether hidden keys are computed.
static void open_tile(struct tiles * t, struct tile * tile, struct gb_row at, int64_t first) {
    tile->first = first;
    tile->n = GB_MIN(t->a->q->ne[1] - first, (int64_t) QUERIES);
    tile->end = 0;
    tile->masks_hide = true;
    int64_t least = t->m;
    for (int64_t i = 0; i < tile->n; i++) {
        tile->max[i] = -INFINITY;
        tile->sum[i] = 0;
        look_at_masks(t, tile, i, at);
        tile->end = GB_MAX(tile->end, tile->seen[i]);
        least = GB_MIN(least, tile->seen[i]);
    }
    scale_queries(t, tile, at);
    tile->all_count = !t->a->in_turn && least < t->m && !may_leave_out(t, tile, at);
    for (int64_t i = 0; i < tile->n && tile->all_count; i++) {
        tile->seen[i] = tile->end = t->m;
    }
    memset(tile->out, 0, (size_t) (tile->n * t->out_stride) * sizeof(float));
}

// Adds the keys of the packed block that a query of the panel sees. Computes all scores, then all
// results, so that the keys, and then the values, stay in the second-level cache.
static void add_block(struct tiles * t, struct tile * tile, struct gb_row at, int64_t key0, int64_t packed) {
    const int64_t mr = t->k->gemm_mr;
    int64_t seen[QUERIES], keys[QUERIES]; // keys that a query sees; keys that its panel computes
    for (int64_t i = 0, n; i < tile->n; i += n) {
        n = GB_MIN(tile->n - i, mr);
        int64_t end = 0;
        for (int64_t j = i; j < i + n; j++) {
            seen[j] = GB_MAX((int64_t) 0, GB_MIN(tile->seen[j] - key0, packed));
            end = GB_MAX(end, seen[j]);
        }
        product(t->k, t->d, tile->queries + i * t->d, t->d, n, t->keys, t->d, end, t->score + i * SCORES, SCORES,
            false);
        for (int64_t j = i; j < i + n; j++) {
            keys[j] = end;
            edit(t, tile->all_count, t->score + j * SCORES, tile->first + j, at, key0, seen[j]);
            weigh(t, tile, j, end, seen[j]);
        }
    }
    for (int64_t i = 0, n; i < tile->n; i += n) {
        n = t->values_far ? 1 : GB_MIN(tile->n - i, mr);
        add_values(t, tile, i, n, t->values_far ? seen[i] : keys[i], packed);
    }
}

// Divides by the sums of exponentials and stores the results.
static void close_tile(struct tiles * t, struct tile * tile, struct gb_row at) {
    const struct gb_attention * a = t->a;
    for (int64_t i = 0; i < tile->n; i++) {
        const float * out = tile->out + i * t->out_stride;
        char * to =
            a->out + (size_t) (tile->first + i) * a->nb[1] + (size_t) at.i2 * a->nb[2] + (size_t) at.i3 * a->nb[3];
        const bool direct = gb_are_floats(a->type, a->nb[0], to, t->dv);
        float * y = direct ? (float *) (void *) to : t->score;
        // A sum of 0 means that no key was seen; the results are then zeros.
        t->k->scale_f32(t->dv, y, out, tile->sum[i] != 0 ? (float) (1.0 / tile->sum[i]) : 1.0f);
        if (!direct) {
            gb_store(t->k, a->type, t->dv, to, a->nb[0], y);
        }
    }
}

// Computes up to n tiles of queries of one head, from query at.i1 on.
static void run_unit(const struct gb_cpu_call * call, struct tiles * t, struct gb_row at, int64_t n) {
    int64_t end = 0, count = 0;
    for (; count < n && at.i1 + count * QUERIES < t->a->q->ne[1]; count++) {
        open_tile(t, &t->tile[count], at, at.i1 + count * QUERIES);
        end = GB_MAX(end, t->tile[count].end);
    }
    for (int64_t key0 = 0; key0 < end; key0 += KEYS) {
        const int64_t keys = GB_MIN(t->m - key0, (int64_t) KEYS);
        pack_block(t, at, key0, keys);
        for (int64_t i = 0; i < count; i++) {
            if (key0 < t->tile[i].end) {
                add_block(t, &t->tile[i], at, key0, keys);
            }
            if (gb_cpu_stopped(call, t->tile[i].n * keys * (t->d + t->dv) / 16)) {
                return;
            }
        }
    }
    for (int64_t i = 0; i < count; i++) {
        close_tile(t, &t->tile[i], at);
    }
}

// --------------------------------------------------------------------------------------------------------- the callers

static bool is_packable(const struct ggml_tensor * t) { // rows are dense and aligned, if the first one is
    const size_t size = ggml_type_size(t->type);
    return gb_is_float(t->type) && t->nb[0] == size && (t->nb[1] | t->nb[2] | t->nb[3]) % size == 0;
}

bool gb_attention_is_aligned(const struct gb_attention * a) {
    return (uintptr_t) a->k->data % ggml_type_size(a->k->type) == 0 &&
           (uintptr_t) a->v->data % ggml_type_size(a->v->type) == 0;
}

// With fewer queries or keys, packing costs more than it saves. The limit for the row length bounds
// the scratch of a thread.
bool gb_attention_is_tiled(const struct gb_attention * a) {
    const struct ggml_tensor *q = a->q, *k = a->k, *v = a->v;
    return q->ne[1] >= 8 && k->ne[1] >= 16 && q->ne[0] >= 8 && q->ne[0] <= 512 && v->ne[1] >= 8 && v->ne[1] <= 512 &&
           gb_is_float(q->type) && is_packable(k) && is_packable(v);
}

int64_t gb_attention_tiled_units(const struct gb_attention * a) {
    return gb_div_up(a->q->ne[1], QUERIES * tiles_a_unit(a)) * a->q->ne[2] * a->q->ne[3];
}

// Computes units of one head one after another, so that packed blocks are used again.
void gb_attention_run_tiled(const struct gb_cpu_call * call, const struct gb_attention * a) {
    struct tiles t = tiles_of(call, a);
    const int64_t each = QUERIES * tiles_a_unit(a);
    const int64_t chunks = gb_div_up(a->q->ne[1], each);
    int64_t first, last;
    gb_cpu_share(call, gb_attention_tiled_units(a), &first, &last);
    for (int64_t u = first; u < last; u++) {
        const int64_t plane = u / chunks;
        const struct gb_row at = { (u - plane * chunks) * each, plane % a->q->ne[2], plane / a->q->ne[2] };
        run_unit(call, &t, at, tiles_a_unit(a));
        if (gb_cpu_stopped(call, QUERIES * t.d)) {
            return;
        }
    }
}
