// attention_tiles.c - attention for many rows, by tiles.
//
// A unit of work is several tiles of one plane, so that all of them use a packed block of keys and
// values. A packed block stays for the next unit if that unit has the same heads and a single block.
// Queries and weights are not packed. A panel is the rows that one product takes. The product
// skips keys before the first and after the last key that a row of the panel sees.
//
// Keys that a mask hides are left out if that does not change the result. In FLASH_ATTN and
// FLASH_ATTN_EXT they never count. In a chain, an added mask of -inf hides no NaN, and a weight of
// zero hides no infinite value. So heads with such keys or values use all keys. Heads are checked
// only if a mask hides keys.
//
// A weight of zero times an infinite value would be NaN. If values are rows, such rows are zeros in
// the packed block, and are added one by one to the rows in which they have a weight. Otherwise a
// product for each row ends with the last key that the row sees.
#include <math.h>

#include "cpu/ops/attention.h"

// The stride of score rows is not a power of two. Otherwise rows of a panel would evict each other
// from the first-level cache.
enum { ROWS = 48, KEYS = 512, TILES = 4, PANEL = GB_GEMM_NR_MAX, SCORES = KEYS + 16 };

// Keys times elements of a block, at most, so that long keys and values do not need more scratch.
enum { BLOCK = KEYS * 512 };

// The smallest multiple of `to` that is at least n.
static int64_t round_up(int64_t n, int64_t to) { return (n + to - 1) / to * to; }

// A tile of rows.
struct tile {
    int64_t first, n; // rows
    int64_t start, end; // keys that some row sees
    struct gb_attention_view view[ROWS];
    struct gb_attention_row row[ROWS];
    bool all_count; // hidden keys are computed, too
    float * queries; // n x d, scaled
    float * out; // ROWS x padded dv
};

// A thread's state. Panels are padded to whole tiles.
struct tiles {
    const struct gb_kernels * k;
    const struct gb_attention * a;
    int64_t d, dv, m; // length of a key, of a result; keys
    int64_t block; // keys of a block
    float * keys; // packed block of keys
    float * values; // packed block of values
    float * score; // ROWS x SCORES
    float * convert; // rows of keys or values, or a result
    int64_t out_stride;
    struct gb_attention_scores scores;
    struct gb_attention_view * views; // of each query, if all heads and batches have the same; else NULL
    // the block in `keys` and `values`: number of the heads * blocks + block; -1: none
    int64_t packed;
    int64_t looked; // the heads of `keys_norm` and `values_norm`; -1: none
    // squared norms of the longest key and of all values; NaN or infinite if an element is, or huge
    double keys_norm, values_norm;
    bool values_far; // FLASH_ATTN: not all values of the block are finite
    int64_t n_far; // rows of values that are not finite, and zeros in `values`
    int64_t far[KEYS]; // their places in the block
    struct tile tile[TILES];
};

// Floats of each part of a thread's scratch.
struct sizes {
    int64_t queries, keys, values, score, convert, mask, views, out;
};

static int64_t keys_of_block(const struct gb_attention * a) {
    const int64_t longest = GB_MAX(GB_MAX(a->q->ne[0], gb_attention_width(a)), (int64_t) 1);
    return GB_MAX(GB_MIN(BLOCK / longest, (int64_t) KEYS) / PANEL, (int64_t) 1) * PANEL;
}

// True if every head and batch has the same masks.
static bool shares_views(const struct gb_attention * a) {
    bool shared = true;
    for (int i = 0; i < a->n_edits; i++) {
        shared &= a->edits[i].t == NULL || (a->edits[i].t->ne[2] == 1 && a->edits[i].t->ne[3] == 1);
    }
    return shared;
}

static struct sizes sizes_of(const struct gb_attention * a) { // for tiles of any level: panels padded to PANEL
    const int64_t d = a->q->ne[0], dv = gb_attention_width(a), block = keys_of_block(a);
    const int64_t keys = round_up(GB_MIN(a->k->ne[1], block), PANEL), wide = round_up(dv, PANEL);
    return (struct sizes){ .queries = ROWS * d,
        .keys = keys * d,
        .values = keys * wide,
        .score = ROWS * (int64_t) SCORES,
        .convert = GB_MAX(PANEL * d, dv),
        .mask = KEYS,
        .views = shares_views(a) ? a->q->ne[1] * (int64_t) (sizeof(struct gb_attention_view) / sizeof(float)) : 0,
        .out = ROWS * wide };
}

// Number of tiles of a unit, which share packed blocks.
static int64_t tiles_a_unit(const struct gb_attention * a) { return a->k->ne[1] > keys_of_block(a) ? TILES : 1; }

int64_t gb_attention_tiled_floats(const struct gb_attention * a) {
    const struct sizes s = sizes_of(a);
    return s.views + s.keys + s.values + s.score + s.convert + s.mask + tiles_a_unit(a) * (s.queries + s.out);
}

// Divides this thread's scratch. No block is packed yet, and no views are known: their ends are -1.
static struct tiles tiles_of(const struct gb_cpu_call * call, const struct gb_attention * a) {
    const struct sizes s = sizes_of(a);
    struct tiles t = { .k = call->k,
        .a = a,
        .d = a->q->ne[0],
        .dv = gb_attention_width(a),
        .m = a->k->ne[1],
        .block = keys_of_block(a),
        .packed = -1,
        .looked = -1 };
    float * scratch = gb_my_floats(call, gb_attention_tiled_floats(a));
    t.views = s.views > 0 ? (struct gb_attention_view *) (void *) scratch : NULL;
    for (int64_t i = 0; t.views != NULL && i < a->q->ne[1]; i++) {
        t.views[i].end = -1;
    }
    t.keys = scratch + s.views;
    t.values = t.keys + s.keys;
    t.score = t.values + s.values;
    t.convert = t.score + s.score;
    t.scores = (struct gb_attention_scores){ .k = call->k, .a = a, .mask = t.convert + s.convert };
    t.out_stride = round_up(t.dv, PANEL);
    for (int64_t i = 0; i < tiles_a_unit(a); i++) {
        t.tile[i].queries = t.scores.mask + s.mask + i * (s.queries + s.out);
        t.tile[i].out = t.tile[i].queries + s.queries;
    }
    return t;
}

// ------------------------------------------------------------------------------------------------------------- packing

static bool is_packable(const struct ggml_tensor * t) { // rows are dense and aligned, if the first one is
    const size_t size = ggml_type_size(t->type);
    return gb_is_float(t->type) && t->nb[0] == size && (t->nb[1] | t->nb[2] | t->nb[3]) % size == 0;
}

static bool is_aligned(const struct ggml_tensor * t) { return (uintptr_t) t->data % ggml_type_size(t->type) == 0; }

// Packs n rows of length `depth` at p, `stride` bytes apart, into panels of the tile's columns. Rows that no kernel can
// pack are converted first.
static void pack(struct tiles * t, const struct ggml_tensor * from, float * y, const char * p, size_t stride, int64_t n,
    int64_t depth) {
    const int width = t->k->gemm_nr;
    const bool direct = is_packable(from) && is_aligned(from);
    gb_kernel_pack * const kernel = direct ? gb_pack_of(t->k, from->type) : t->k->pack_f32;
    const void * rows[PANEL];
    for (int64_t i = 0; i < n; i += width) {
        const int count = (int) GB_MIN(n - i, (int64_t) width);
        for (int j = 0; j < count; j++) {
            const char * row = p + (size_t) (i + j) * stride;
            rows[j] = direct ? (const void *) row : gb_in(t->k, from, row, depth, t->convert + j * depth);
        }
        kernel(depth, count, width, y + i * depth, rows);
    }
}

static bool is_finite(const struct gb_kernels * k, int64_t n, const float * x) { return isfinite(k->dot_f32(n, x, x)); }

// Row c of values of the heads.
static const float * value_at(struct tiles * t, struct gb_attention_heads h, int64_t c) {
    return gb_in(t->k, t->a->v, gb_row_ptr(t->a->v, c, h.v2, h.v3), t->dv, t->convert);
}

// Writes n elements of v as row c of values, and zeros after them.
static void pack_value(struct tiles * t, int64_t keys, int64_t c, int64_t n, const float * v) {
    const int64_t nr = t->k->gemm_nr;
    for (int64_t j = 0; j < t->dv; j += nr) {
        float * to = t->values + j * keys + c * nr;
        const int64_t some = GB_MAX(GB_MIN(n - j, nr), (int64_t) 0);
        memcpy(to, v + j, (size_t) some * sizeof(float));
        memset(to + some, 0, (size_t) (nr - some) * sizeof(float));
    }
}

// Packs rows of values. Rows that are not finite become zeros.
static void pack_rows_of_values(struct tiles * t, struct gb_attention_heads h, int64_t key0, int64_t keys) {
    for (int64_t c = 0; c < keys; c++) {
        pack_value(t, keys, c, t->dv, value_at(t, h, key0 + c));
    }
    t->n_far = 0;
    if (is_finite(t->k, round_up(t->dv, t->k->gemm_nr) * keys, t->values)) {
        return;
    }
    for (int64_t c = 0; c < keys; c++) {
        const float * v = value_at(t, h, key0 + c);
        if (!is_finite(t->k, t->dv, v)) {
            t->far[t->n_far++] = c;
            pack_value(t, keys, c, 0, v);
        }
    }
}

// Packs keys key0 .. key0 + keys - 1 of the heads, and their values, unless they are packed already.
static void pack_block(struct tiles * t, struct gb_row at, int64_t key0, int64_t keys) {
    const struct ggml_tensor *k = t->a->k, *v = t->a->v;
    const struct gb_attention_heads h = gb_attention_heads_of(t->a, at);
    const int64_t block = h.number * gb_div_up(t->m, t->block) + key0 / t->block;
    if (t->packed == block) {
        return;
    }
    t->packed = block;
    pack(t, k, t->keys, gb_row_ptr(k, key0, h.k2, h.k3), k->nb[1], keys, t->d);
    if (t->a->rows_of_values) {
        pack_rows_of_values(t, h, key0, keys);
        return;
    }
    pack(t, v, t->values, gb_row_ptr(v, 0, h.v2, h.v3) + (size_t) key0 * v->nb[0], v->nb[1], t->dv, keys);
    t->values_far = t->a->in_turn && t->a->causal && !is_finite(t->k, round_up(t->dv, t->k->gemm_nr) * keys, t->values);
}

// ---------------------------------------------------------------------------------------------- what masks do not hide

// The sum of squares of a dense row whose type is_packable accepts.
static double squares(const struct gb_kernels * k, enum ggml_type type, const void * row, int64_t n) {
    return type == GGML_TYPE_F32   ? k->dot_f32(n, row, row)
           : type == GGML_TYPE_F16 ? k->dot_f16(n, row, row)
                                   : k->dot_bf16(n, row, row);
}

// Computes keys_norm and values_norm for the heads, unless they are known.
static void look_at_heads(struct tiles * t, struct gb_row at) {
    const struct ggml_tensor *k = t->a->k, *v = t->a->v;
    const struct gb_attention_heads h = gb_attention_heads_of(t->a, at);
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

// True if keys that a mask hides from a row of the tile may be left out, because no product with
// such a key can be infinite.
static bool may_leave_out(struct tiles * t, const struct tile * tile) {
    double bound = 0;
    for (int64_t i = 0; i < tile->n; i++) {
        if (!tile->view[i].masks_hide) {
            return false;
        }
    }
    look_at_heads(t, tile->row[0].at);
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

// The view of a row. Views that rows of other heads share are computed once.
static struct gb_attention_view view_of(struct tiles * t, struct gb_row at) {
    struct gb_attention_view *known = t->views != NULL ? &t->views[at.i1] : NULL, view = { .end = t->m };
    if (known != NULL && known->end >= 0) {
        return *known;
    }
    gb_attention_look(t->a, at, &view);
    if (known != NULL) {
        *known = view;
    }
    return view;
}

// Prepares a tile of rows for keys [key0, end): the keys that each row sees, and whether hidden keys are computed.
static void open_tile(struct tiles * t, struct tile * tile, int64_t plane, int64_t first, int64_t key0, int64_t end) {
    const struct gb_attention * a = t->a;
    tile->first = first;
    tile->n = GB_MIN(gb_attention_rows(a) - first, (int64_t) ROWS);
    tile->start = end;
    tile->end = key0;
    bool hides = false;
    struct gb_row at = gb_attention_row_at(a, plane, first);
    for (int64_t i = 0; i < tile->n; i++, at = gb_attention_next_row(a, at, first + i)) {
        float * query = tile->queries + i * t->d;
        struct gb_attention_view view = view_of(t, at);
        tile->row[i] = (struct gb_attention_row){
            .at = at, .plain = view.plain, .max = -INFINITY, .out = tile->out + i * t->out_stride
        };
        hides |= view.end < t->m;
        view.first = GB_MIN(GB_MAX(view.first, key0), end);
        view.end = GB_MAX(GB_MIN(view.end, end), view.first);
        tile->view[i] = view;
        if (view.first < view.end) {
            tile->start = GB_MIN(tile->start, view.first);
            tile->end = GB_MAX(tile->end, view.end);
        }
        t->k->scale_f32(t->d, query, gb_in(t->k, a->q, gb_row_ptr(a->q, at.i1, at.i2, at.i3), t->d, query), a->scale);
    }
    tile->all_count = !a->in_turn && !a->rows_of_values && hides && !may_leave_out(t, tile);
    for (int64_t i = 0; i < tile->n && tile->all_count; i++) {
        tile->start = tile->view[i].first = 0;
        tile->end = tile->view[i].end = t->m;
    }
    memset(tile->out, 0, (size_t) (tile->n * t->out_stride) * sizeof(float));
}

// The keys of a block that some row of a panel sees.
struct span {
    int64_t first, end;
};

// Computes the scores and exponentials of n rows of the tile, a panel, from row i on.
static struct span weigh_panel(struct tiles * t, struct tile * tile, int64_t i, int64_t n, int64_t key0,
    int64_t packed) {
    struct span seen[GB_GEMM_MR_MAX], all = { packed, 0 };
    for (int64_t j = 0; j < n; j++) {
        const struct gb_attention_view * view = &tile->view[i + j];
        seen[j].first = GB_MIN(GB_MAX(view->first - key0, (int64_t) 0), packed);
        seen[j].end = GB_MAX(GB_MIN(view->end - key0, packed), seen[j].first);
        all.first = seen[j].first < seen[j].end ? GB_MIN(all.first, seen[j].first) : all.first;
        all.end = seen[j].first < seen[j].end ? GB_MAX(all.end, seen[j].end) : all.end;
    }
    all.first = all.first < all.end ? all.first / t->k->gemm_nr * t->k->gemm_nr : all.end;
    product(t->k, t->d, tile->queries + i * t->d, t->d, n, t->keys + all.first * t->d, t->d, all.end - all.first,
        t->score + i * SCORES + all.first, SCORES, false);
    for (int64_t j = 0; j < n; j++) {
        float * score = t->score + (i + j) * SCORES;
        const int64_t first = seen[j].first < seen[j].end ? seen[j].first : all.end;
        if (first < all.end) {
            gb_attention_weigh(&t->scores, &tile->row[i + j], tile->all_count, key0 + first, seen[j].end - first,
                score + first);
            memset(score + seen[j].end, 0, (size_t) (all.end - seen[j].end) * sizeof(float));
        }
        memset(score + all.first, 0, (size_t) (first - all.first) * sizeof(float));
    }
    return all;
}

// Adds the values of the keys in `span`, with their weights, to n rows of the tile from row i on.
static void add_values(struct tiles * t, struct tile * tile, int64_t i, int64_t n, struct span span, int64_t packed) {
    product(t->k, span.end - span.first, t->score + i * SCORES + span.first, SCORES, n,
        t->values + span.first * t->k->gemm_nr, packed, t->dv, tile->out + i * t->out_stride, t->out_stride, true);
}

// Adds the values that are not finite to the rows in which they have a weight.
static void add_far_values(struct tiles * t, struct tile * tile, const struct span * span, int64_t key0) {
    const struct gb_attention_heads h = gb_attention_heads_of(t->a, tile->row[0].at);
    for (int64_t f = 0; f < t->n_far; f++) {
        const int64_t c = t->far[f];
        const float * v = value_at(t, h, key0 + c);
        for (int64_t i = 0; i < tile->n; i++) {
            const float weight = span[i].first <= c && c < span[i].end ? t->score[i * SCORES + c] : 0;
            if (weight != 0) {
                t->k->mad_f32(t->dv, tile->row[i].out, v, weight);
            }
        }
    }
}

// Adds a packed block to the rows of a tile. Computes all scores, then all results, so that the
// keys, and then the values, stay in the second-level cache.
static void add_block(struct tiles * t, struct tile * tile, int64_t key0, int64_t packed) {
    const int64_t mr = t->k->gemm_mr;
    struct span span[ROWS];
    for (int64_t i = 0, n; i < tile->n; i += n) {
        n = GB_MIN(tile->n - i, mr);
        const struct span all = weigh_panel(t, tile, i, n, key0, packed);
        for (int64_t j = i; j < i + n; j++) {
            span[j] = all;
        }
    }
    for (int64_t i = 0, n; i < tile->n; i += n) {
        n = t->values_far ? 1 : GB_MIN(tile->n - i, mr);
        if (t->values_far) {
            span[i].end = GB_MAX(GB_MIN(tile->view[i].end - key0, packed), span[i].first);
        }
        if (span[i].first < span[i].end) {
            add_values(t, tile, i, n, span[i], packed);
        }
    }
    if (t->a->rows_of_values && t->n_far > 0) {
        add_far_values(t, tile, span, key0);
    }
}

// Computes the tiles of a unit, from row `first` of the plane on, for one part of the keys.
static void run_unit(const struct gb_cpu_call * call, struct tiles * t, int64_t plane, int64_t first, int64_t part,
    float * parts) {
    const struct gb_attention * a = t->a;
    const int64_t rows = gb_attention_rows(a), key0 = part * a->part;
    const int64_t key1 = a->parts > 1 ? GB_MIN(key0 + a->part, t->m) : t->m;
    int64_t start = key1, end = key0, count = 0;
    for (; count < tiles_a_unit(a) && first + count * ROWS < rows; count++) {
        open_tile(t, &t->tile[count], plane, first + count * ROWS, key0, key1);
        start = GB_MIN(start, t->tile[count].start);
        end = GB_MAX(end, t->tile[count].end);
    }
    for (int64_t key = start / t->block * t->block; key < end; key += t->block) {
        const int64_t keys = GB_MIN(t->m - key, t->block);
        pack_block(t, t->tile[0].row[0].at, key, keys);
        for (int64_t i = 0; i < count; i++) {
            struct tile * tile = &t->tile[i];
            if (key < tile->end && tile->start < key + keys) {
                add_block(t, tile, key, keys);
            }
            if (gb_cpu_stopped(call, tile->n * keys * (t->d + t->dv) / 16)) {
                return;
            }
        }
    }
    for (int64_t i = 0; i < count; i++) {
        for (int64_t j = 0; j < t->tile[i].n; j++) {
            gb_attention_close(t->k, a, &t->tile[i].row[j], plane, t->tile[i].first + j, part, t->convert, parts);
        }
    }
}

// --------------------------------------------------------------------------------------------------------- the callers

bool gb_attention_is_aligned(const struct gb_attention * a) { return is_aligned(a->k) && is_aligned(a->v); }

// With fewer queries or keys, packing costs more than it saves. The limit for the row length bounds
// the scratch of a thread.
bool gb_attention_is_tiled(const struct gb_attention * a) {
    const struct ggml_tensor *q = a->q, *k = a->k, *v = a->v;
    return q->ne[1] >= 8 && k->ne[1] >= 16 && q->ne[0] >= 8 && q->ne[0] <= 512 && v->ne[1] >= 8 && v->ne[1] <= 512 &&
           gb_is_float(q->type) && is_packable(k) && is_packable(v);
}

int64_t gb_attention_tiled_units(const struct gb_attention * a) {
    return gb_div_up(gb_attention_rows(a), ROWS * tiles_a_unit(a)) * gb_attention_planes(a);
}

// Computes units of one plane one after another, so that packed blocks are used again.
void gb_attention_run_tiled(const struct gb_cpu_call * call, const struct gb_attention * a) {
    struct tiles t = tiles_of(call, a);
    const int64_t each = ROWS * tiles_a_unit(a), parts = GB_MAX(a->parts, (int64_t) 1);
    const int64_t chunks = gb_div_up(gb_attention_rows(a), each);
    float * shared = (float *) (void *) ((char *) call->work + gb_floats_size(gb_attention_tiled_floats(a), call->nth));
    int64_t first, last;
    gb_cpu_share(call, gb_attention_tiled_units(a) * parts, &first, &last);
    for (int64_t u = first; u < last; u++) {
        const int64_t part = u / chunks % parts;
        run_unit(call, &t, u / chunks / parts, u % chunks * each, part, shared);
        if (gb_cpu_stopped(call, ROWS * t.d)) {
            break;
        }
    }
    gb_attention_combine(call, a, t.convert, shared);
}
