// blocked.c - products of many rows: packed panels of floats, of pairs of bfloat16, or of bytes where the weights are
// quantized (bytes.h), multiplied by blocks. Where a level multiplies pairs of bfloat16 far faster than bytes,
// quantized weights become such pairs on the way.
//
// The threads pack rows of x together, as panels of as many rows as a tile has (k-major), into shared memory. Then they
// take jobs, a block of panels times a chunk of columns, from a common counter; for each stretch of terms a job packs
// its columns of w into memory of its own thread (where they stay in cache) and runs over the tiles. Weights are thus
// converted on the fly and stay where they are. When x is larger than the scratch memory this happens in rounds.
//
// Between two stretches a job keeps its sums tile by tile in memory of its thread: rows of dst often lie a power of two
// apart, and would push each other out of the caches.
//
// Invariant: how a result is computed (in which stretches of k) depends on the shapes alone, never on the number of
// threads, on the scratch size or on who takes which job. So results are the same bits for every number of threads.
#include <stdatomic.h>

#include "base/fp16.h"
#include "cpu/ops/product/algorithm.h"
#include "cpu/ops/product/tuning.h"
#include "cpu/traits.h"

#define SUPER_MAX 256 // elements of the largest quantized block
#define MR_MAX    GB_BF16_MR_MAX
#define NR_MAX    GB_GEMM_NR_MAX

struct panel {
    float * dst[MR_MAX];
    int64_t ld; // floats from one row of dst to the next; 0: they are anywhere
    int     rows;
};

struct block { // panels [first, first + n) of the round, all of one group
    int64_t g, first, n;
};

struct shared { // at the start of the scratch memory; written by thread 0 before the barrier of a round
    atomic_llong next_job;
    int64_t      n_blocks, n_chunks, chunk; // jobs: a block by a chunk of columns, which is a multiple of gemm_nr
    char         pad[32];
};

struct layout { // of the scratch memory
    struct shared * shared;
    float *         w;      // this thread's packed chunk: chunk_floats()
    float *         rows;   // this thread's dequantized rows, if there are any: ROWS_FLOATS
    float *         sums;   // of this thread's job, if there are several stretches: sums_floats()
    float *         x;      // capacity panels of gemm_mr * k floats
    struct panel *  panels; // capacity
    struct block *  blocks; // capacity
    int64_t         capacity;
};

// --------------------------------------------------------------------------------------------------------------- sizes

// What dequantizing takes: a stretch of terms of each row of a panel, or all blocks of one term that a chunk of columns
// touches.
enum { ROWS_FLOATS = GB_BLOCKED_TERMS * NR_MAX };
_Static_assert(GB_BLOCKED_TERMS >= SUPER_MAX && GB_BLOCKED_COLUMNS + 2 * SUPER_MAX <= ROWS_FLOATS, "blocks fit");
_Static_assert(sizeof(struct shared) % 64 == 0, "what follows is aligned, too");
_Static_assert(MR_MAX >= GB_GEMM_MR_MAX, "panels of all kinds fit");
_Static_assert(GB_BLOCKED_TERMS % GB_BF16_STEP == 0, "a panel of pairs has twice as many terms, in whole steps");
_Static_assert(GB_BLOCKED_COLUMNS % NR_MAX == 0 && GB_BLOCKED_COLUMNS_BYTES % NR_MAX == 0, "chunks have whole tiles");

// A column of bytes takes up to 3/8 of a float for each term: levels, and the scale and minimum of every 16.
_Static_assert(3 * GB_BLOCKED_TERMS_BYTES * GB_BLOCKED_COLUMNS_BYTES <= 8 * GB_BLOCKED_TERMS * GB_BLOCKED_COLUMNS &&
                   3 * GB_BLOCKED_TERMS_BYTES * NR_MAX <= 8 * ROWS_FLOATS,
    "a thread's memory holds a chunk of bytes, and the columns of a tile before they are packed");
_Static_assert(GB_BLOCKED_TERMS_BYTES <= GB_PACK_COLUMNS_MAX && GB_BLOCKED_TERMS_BYTES <= GB_UNPACK_MAX,
    "kernels take a stretch of bytes at a time");
#define GB_FORMAT(id, stem, name, elements, ...)                                                      \
    _Static_assert((elements) <= SUPER_MAX && SUPER_MAX % (elements) == 0, name " has small blocks"); \
    _Static_assert(GB_BLOCKED_TERMS_BYTES % (elements) == 0, "stretches are whole blocks of " name);
#include "tensor/quant/formats.def"
#undef GB_FORMAT

static bool is_quantized(const struct gb_gemm * p) {
    return ggml_is_quantized(p->w.type) || ggml_is_quantized(p->x.type);
}

static size_t rows_floats(const struct gb_gemm * p) {
    return is_quantized(p) || p->w.type == GGML_TYPE_BF16 ? ROWS_FLOATS : 0;
}

// Does a level that this processor has turn quantized weights into pairs? The level of a run is not known when its plan
// is made.
static bool may_become_pairs(void) {
    for (int i = 0; i < gb_level_count(); i++) {
        if (gb_level_at(i)->kernels->bf16_tiles && gb_level_at(i)->usable()) {
            return true;
        }
    }
    return false;
}

// May the product run on tiles of pairs that are that fast?
static bool may_be_pairs(const struct gb_gemm * p) {
    return (ggml_is_quantized(p->w.type) || p->w.type == GGML_TYPE_BF16) && may_become_pairs();
}

// Columns of a chunk at most, and what these take when they are packed.
static size_t most_columns(const struct gb_gemm * p) {
    return may_be_pairs(p) ? GB_BLOCKED_COLUMNS_PAIRS : GB_MAX(GB_BLOCKED_COLUMNS, GB_BLOCKED_COLUMNS_BYTES);
}

static size_t chunk_floats(const struct gb_gemm * p) {
    const size_t floats = GB_BLOCKED_TERMS * GB_BLOCKED_COLUMNS;
    return may_be_pairs(p) ? GB_MAX(floats, GB_BLOCKED_TERMS_PAIRS / 2 * GB_BLOCKED_COLUMNS_PAIRS) : floats;
}

// Rows of a block, a multiple of every tile's, by chunks of columns; none if all terms are one stretch at every level.
static size_t sums_floats(const struct gb_gemm * p) {
    const int64_t rows = GB_MIN(p->rows + MR_MAX - 1, GB_MAX(GB_BLOCKED_ROWS, GB_BLOCKED_ROWS_BYTES));
    return p->k > GB_MIN(GB_BLOCKED_TERMS, GB_BLOCKED_TERMS_BYTES) / SUPER_MAX * SUPER_MAX
               ? (size_t) rows * most_columns(p)
               : 0;
}

// How panels hold terms: as floats, as bytes, or as pairs of bfloat16.
struct packing {
    bool             bytes;
    bool             pairs;   // of bfloat16: x is rounded to it
    struct gb_unpack unpack;  // of quantized weights that become bytes or pairs
    int              mr, nr;  // of a tile
    int              step;    // pairs: how many of a row lie together
    int64_t          stretch; // terms; whole blocks
    int              columns; // of a chunk
};

// Pairs of k terms, filled up with zeros.
static int64_t padded_pairs(const struct packing * packing, int64_t k) {
    return gb_div_up(k, 2 * packing->step) * packing->step;
}

// Floats that k terms of a row of x take in a panel, and those of a column of w.
static int64_t row_floats(const struct packing * packing, int64_t k) {
    return packing->bytes   ? gb_bytes_row_floats(k, packing->unpack.kind)
           : packing->pairs ? padded_pairs(packing, k)
                            : k;
}

static int64_t column_floats(const struct packing * packing, int64_t k) {
    return packing->bytes ? gb_bytes_column_floats(k, &packing->unpack) : packing->pairs ? padded_pairs(packing, k) : k;
}

// Floats at most that a row takes in a panel of any kind.
static int64_t largest_row_floats(const struct gb_gemm * p) {
    if (gb_blocked_bytes_declines(p) != NULL) {
        return p->k + GB_BF16_STEP;
    }
    const int64_t bytes = gb_bytes_row_floats(p->k, GB_BYTES_HALVES);
    return may_become_pairs() ? GB_MAX(bytes, p->k / 2 + GB_BF16_STEP) : bytes;
}

size_t gb_blocked_work_size(const struct gb_gemm * p, int n_tasks) {
    // Levels differ in gemm_mr: a row's share of what belongs to its panel is below ROW_EXTRA for all of
    // them.
    enum { ROW_EXTRA = (sizeof(struct panel) + sizeof(struct block)) / GB_GEMM_MR_MIN + 1 };
    const size_t row    = (size_t) largest_row_floats(p) * sizeof(float) + ROW_EXTRA;
    const size_t padded = (size_t) (p->total + p->n_groups * (MR_MAX - 1));
    const size_t least  = GB_MAX(MR_MAX, GB_MIN(GB_ROUND_ROWS, GB_ROUND_BYTES_MAX / row));
    const size_t round  = GB_MAX(least, (size_t) n_tasks * GB_ROUND_BYTES / row);
    const size_t own    = (chunk_floats(p) + rows_floats(p) + sums_floats(p)) * sizeof(float);
    return sizeof(struct shared) + (size_t) n_tasks * own + GB_MIN(padded, round) * row + 64;
}

static char * align_up(char * p) { return p + (64 - (uintptr_t) p % 64) % 64; }

static struct layout lay_out(const struct gb_cpu_call * call, const struct gb_gemm * p,
    const struct packing * packing) {
    const size_t  panel_size = (size_t) packing->mr * (size_t) row_floats(packing, p->k) * sizeof(float);
    char * const  start      = call->work;
    char * const  end        = (char *) call->work + call->work_size;
    float * const w          = (float *) (start + sizeof(struct shared));
    float * const rows       = w + (size_t) call->nth * chunk_floats(p);
    float * const sums       = rows + (size_t) call->nth * rows_floats(p);
    float * const x          = sums + (size_t) call->nth * sums_floats(p);
    struct layout l          = { .shared = (struct shared *) start, .x = x };

    l.w    = w + (size_t) call->ith * chunk_floats(p);
    l.rows = rows + (size_t) call->ith * rows_floats(p);
    l.sums = sums + (size_t) call->ith * sums_floats(p);
    l.capacity =
        (int64_t) ((size_t) (end - (char *) x - 64) / (panel_size + sizeof(struct panel) + sizeof(struct block)));
    l.panels = (struct panel *) align_up((char *) x + (size_t) l.capacity * panel_size);
    l.blocks = (struct block *) (l.panels + l.capacity);
    return l;
}

// ------------------------------------------------------------------------------------------------------------- packing

static float element(enum ggml_type type, const char * p) {
    switch (type) {
        case GGML_TYPE_F16: return ggml_fp16_to_fp32(*(const ggml_fp16_t *) p);
        case GGML_TYPE_BF16: return gb_bf16_to_f32(*(const uint16_t *) p);
        default: return *(const float *) p;
    }
}

static void widen(const struct gb_kernels * k, enum ggml_type type, int64_t n, float * y, const char * x) {
    switch (type) {
        case GGML_TYPE_F16: k->f16_to_f32(n, y, (const uint16_t *) x); break;
        case GGML_TYPE_BF16: k->bf16_to_f32(n, y, (const uint16_t *) x); break;
        default: memcpy(y, x, (size_t) n * sizeof(float)); break;
    }
}

static bool are_adjacent(const void * const * rows, int n, size_t step) {
    for (int i = 1; i < n; i++) {
        if ((const char *) rows[i] != (const char *) rows[0] + (size_t) i * step) {
            return false;
        }
    }
    return true;
}

static void pack_blocks(const struct gb_kernels * kernels, enum ggml_type type, int64_t k, int n, int width, float * y,
    const void * const * rows, float * buf) {
    const void * x[NR_MAX];
    for (int i = 0; i < n; i++) {
        x[i] = buf + i * k;
        gb_gemm_dequantize(type, rows[i], k, buf + i * k);
    }
    kernels->pack_f32(k, n, width, y, x);
}

// What the next stretch of k terms of x will read, unless it has gaps.
static void prefetch_rows(const struct gb_gemm_operand * o, const void * const * rows, int n, int64_t k) {
    const size_t bytes = gb_gemm_term_offset(o, k);
    for (int i = 0; i < n && gb_gemm_is_dense(o); i++) {
        gb_prefetch((const char *) rows[i] + bytes, bytes);
    }
}

// Rows of floats as a panel of pairs of bfloat16, filled up with zeros. Beside quantized weights their range is that of
// bytes, so that a row is NaN at all levels or at none.
static void pack_rounded(const struct gb_kernels * kernels, const struct packing * packing, int64_t k, int n, float * y,
    const void * const * rows, float * buf) {
    enum { PIECE = 8 * 2 * GB_BF16_STEP }; // terms of one row before those of the next: they share lines and pages
    const int64_t        pairs = padded_pairs(packing, k), step = packing->step, mr = packing->mr;
    struct gb_round_bf16 row = { .limited = packing->unpack.fn != NULL };
    if (step == 1) {
        const void * x[MR_MAX];
        for (int i = 0; i < n; i++) {
            x[i]  = buf + i * pairs;
            row.k = row.together = k;
            row.y                = (uint16_t *) (buf + i * pairs);
            row.x                = rows[i];
            kernels->round_bf16(&row);
        }
        kernels->pack_f32(pairs, n, packing->mr, y, x);
        return;
    }
    if (n < mr || 2 * pairs > k) {
        memset(y, 0, (size_t) (pairs * mr) * sizeof(float));
    }
    row.together = 2 * step;
    row.stride   = 2 * step * mr;
    for (int64_t j = 0; j < k; j += PIECE) {
        for (int i = 0; i < n; i++) {
            row.k = GB_MIN(k - j, PIECE);
            row.y = (uint16_t *) (y + j / 2 * mr + i * step);
            row.x = (const float *) rows[i] + j;
            kernels->round_bf16(&row);
        }
    }
}

// y[j * width + i] = rows[i][j], zero for i >= n. buf: ROWS_FLOATS if the operand is quantized.
static void pack(const struct gb_kernels * kernels, const struct gb_gemm_operand * o, int64_t k, int n, int width,
    float * y, const void * const * rows, float * buf) {
    if (ggml_is_quantized(o->type)) {
        pack_blocks(kernels, o->type, k, n, width, y, rows, buf);
        return;
    }
    if (gb_gemm_is_dense(o)) {
        gb_pack_of(kernels, o->type)(k, n, width, y, rows);
        return;
    }
    const bool adjacent = are_adjacent(rows, n, ggml_type_size(o->type));
    for (int64_t j = 0; j < k; j++, y += width) {
        const size_t offset = (size_t) j * o->nb_k;
        if (adjacent) {
            widen(kernels, o->type, n, y, (const char *) rows[0] + offset);
        } else {
            for (int i = 0; i < n; i++) {
                y[i] = element(o->type, (const char *) rows[i] + offset);
            }
        }
        memset(y + n, 0, (size_t) (width - n) * sizeof(float));
    }
}

// -------------------------------------------------------------------------------------------------------------- panels

struct cursor { // a panel: number `i` of group `g`
    int64_t g, i;
};

static int64_t group_panels(const struct gb_gemm * p, int64_t g, int mr) {
    return gb_div_up(gb_gemm_group_rows(p, g), mr);
}

static int64_t total_panels(const struct gb_gemm * p, int mr) {
    if (p->first == NULL) {
        return p->n_groups > 0 ? p->n_groups * group_panels(p, 0, mr) : 0;
    }
    int64_t n = 0;
    for (int64_t g = 0; g < p->n_groups; g++) {
        n += group_panels(p, g, mr);
    }
    return n;
}

static struct cursor cursor_at(const struct gb_gemm * p, int64_t panel, int mr) {
    struct cursor c = { 0, panel };
    if (p->first == NULL) {
        const int64_t per_group = group_panels(p, 0, mr);
        return (struct cursor){ panel / per_group, panel % per_group };
    }
    while (c.i >= group_panels(p, c.g, mr)) {
        c.i -= group_panels(p, c.g, mr);
        c.g++;
    }
    return c;
}

static void cursor_next_group(const struct gb_gemm * p, struct cursor * c, int mr) {
    do {
        c->g++;
        c->i = 0;
    } while (c->g < p->n_groups && group_panels(p, c->g, mr) == 0);
}

static int64_t cut_blocks(const struct gb_gemm * p, int64_t first, int64_t n, int64_t block_panels, int mr,
    struct block * blocks) {
    int64_t count = 0;
    for (int64_t done = 0; done < n; count++) {
        const struct cursor c    = cursor_at(p, first + done, mr);
        const int64_t       left = GB_MIN(n - done, group_panels(p, c.g, mr) - c.i);
        blocks[count]            = (struct block){ c.g, done, GB_MIN(left, block_panels) };
        done += blocks[count].n;
    }
    return count;
}

// ---------------------------------------------------------------------------------------------------------------- jobs

struct round {
    const struct gb_cpu_call * call;
    const struct gb_gemm *     p;
    struct packing             packing;
    struct layout              l;
    int64_t                    first, n; // panels of all groups, counted through
};

// Large blocks and chunks pack less; small ones give every thread something to do.
static void cut_jobs(const struct round * r) {
    struct shared * s         = r->l.shared;
    const int       mr        = r->packing.mr;
    const int64_t   want      = r->call->nth > 1 ? 3 * (int64_t) r->call->nth : 1;
    int64_t         per_block = GB_MAX((r->packing.bytes ? GB_BLOCKED_ROWS_BYTES : GB_BLOCKED_ROWS) / mr, 1);

    s->chunk = r->packing.columns;
    for (;;) {
        s->n_chunks = gb_div_up(r->p->m, s->chunk);
        s->n_blocks = cut_blocks(r->p, r->first, r->n, per_block, mr, r->l.blocks);
        if (s->n_blocks * s->n_chunks >= want) {
            return;
        }
        if (s->chunk / 2 >= r->packing.nr) {
            s->chunk /= 2;
        } else if (per_block > 2) {
            per_block /= 2;
        } else {
            return;
        }
    }
}

// Terms k0 .. k0 + kc - 1 of panel i. A stretch of all panels lies together: what a block reads between two changes of
// w is contiguous.
static float * panel_at(const struct round * r, int64_t i, int64_t k0, int64_t kc) {
    return r->l.x +
           (size_t) (row_floats(&r->packing, k0) * r->n + i * row_floats(&r->packing, kc)) * (size_t) r->packing.mr;
}

// What the kernel of a tile counts for kc terms: pairs, where they are packed as such.
static int64_t tile_terms(const struct round * r, int64_t kc) {
    return r->packing.pairs ? padded_pairs(&r->packing, kc) : kc;
}

// The tile, whichever kind panels are of.
static void tile(const struct round * r, const struct gb_tile * t) {
    const struct gb_kernels * k = r->call->k;
    if (r->packing.bytes) {
        k->gemm_tile_q8(gb_bytes_tile_kind(&r->packing.unpack), t);
    } else if (r->packing.pairs) {
        k->gemm_tile_bf16(t);
    } else {
        k->gemm_tile_f32(t);
    }
}

// Quantized columns as a panel of pairs: some of their terms at a time become a panel of bytes first.
static void pack_quantized_pairs(const struct round * r, int64_t kc, int n, float * y, const void ** rows) {
    const struct gb_unpack * const unpack = &r->packing.unpack;
    const int                      nr     = r->packing.nr;
    for (int64_t k0 = 0, k; k0 < kc; k0 += k) {
        k                   = GB_MIN(kc - k0, GB_BLOCKED_TERMS_BYTES);
        float * const bytes = r->l.rows;
        float * const buf   = bytes + nr * gb_bytes_column_floats(k, unpack);
        gb_bytes_pack_columns(r->call->k, unpack, r->p->w.type, k, n, nr, bytes, rows, buf);
        r->call->k->bytes_to_bf16(&(struct gb_bytes_to_bf16){
            .k    = k,
            .kind = gb_bytes_tile_kind(unpack),
            .zero = unpack->zero,
            .x    = bytes,
            .y    = y + k0 / 2 * nr,
        });
        for (int i = 0; i < n; i++) {
            rows[i] = (const char *) rows[i] + gb_gemm_term_offset(&r->p->w, k);
        }
    }
}

// Columns of bfloat16 as a panel of pairs, filled up with zeros.
static void pack_pairs(const struct round * r, int64_t kc, int n, float * y, const void * const * rows) {
    const int     nr    = r->packing.nr;
    const int64_t pairs = padded_pairs(&r->packing, kc);
    r->call->k->pack_f32(kc / 2, n, nr, y, rows); // pairs as floats
    memset(y + kc / 2 * nr, 0, (size_t) ((pairs - kc / 2) * nr) * sizeof(float));
}

// Terms k0 .. k0 + kc - 1 of the columns from `column` on, as panels.
static void pack_columns(const struct round * r, const struct gb_gemm_matrix * w, int64_t column, int n, int64_t k0,
    int64_t kc) {
    const int nr = r->packing.nr;
    for (int j = 0; j < n; j += nr) {
        float *      y = r->l.w + (size_t) j * (size_t) column_floats(&r->packing, kc);
        const void * rows[NR_MAX];
        const int    valid = GB_MIN(nr, n - j);
        for (int i = 0; i < valid; i++) {
            rows[i] = w->data + (size_t) (column + j + i) * w->nb_m + gb_gemm_term_offset(&r->p->w, k0);
        }
        if (r->packing.bytes) {
            gb_bytes_pack_columns(r->call->k, &r->packing.unpack, r->p->w.type, kc, valid, nr, y, rows, r->l.rows);
        } else if (r->packing.pairs && r->packing.unpack.fn != NULL) {
            pack_quantized_pairs(r, kc, valid, y, rows);
        } else if (r->packing.pairs) {
            pack_pairs(r, kc, valid, y, rows);
        } else {
            pack(r->call->k, &r->p->w, kc, valid, nr, y, rows, r->l.rows);
        }
    }
}

// The same for blocks that lie along the columns: term by term, all blocks that the chunk touches.
static void pack_columns_across(const struct round * r, const struct gb_gemm_matrix * w, int64_t column, int n,
    int64_t k0, int64_t kc) {
    const enum ggml_type type  = r->p->w.type;
    const int64_t        block = ggml_blck_size(type);
    const int            nr    = r->call->k->gemm_nr;
    const int64_t        first = column / block, last = gb_div_up(column + n, block);
    for (int64_t t = 0; t < kc; t++) {
        const char * blocks = w->data + gb_gemm_term_offset(&r->p->w, k0 + t) + (size_t) first * w->nb_m;
        gb_gemm_dequantize(type, blocks, (last - first) * block, r->l.rows);
        const float * x = r->l.rows + (column - first * block);
        for (int j = 0; j < n; j += nr) {
            float *   y     = r->l.w + (size_t) j * (size_t) kc + (size_t) t * (size_t) nr;
            const int valid = GB_MIN(nr, n - j);
            memcpy(y, x + j, (size_t) valid * sizeof(float));
            memset(y + valid, 0, (size_t) (nr - valid) * sizeof(float));
        }
    }
}

// Weights that are packed next: `bytes` of each of n columns. They are prefetched bit by bit, before each tile: memory
// takes only so many requests at a time, and a thread that makes more of them waits.
struct ahead {
    const char * data;
    size_t       nb_m, bytes;
    int64_t      n;
    int64_t      tile, tiles; // of the block: the next one, all
};

static void prefetch_next(struct ahead * a) {
    for (int64_t j = a->n * a->tile / a->tiles; j < a->n * (a->tile + 1) / a->tiles; j++) {
        gb_prefetch(a->data + (size_t) j * a->nb_m, a->bytes);
    }
    a->tile++;
}

// Rows of sums that lie together, mr by nr of them, to their places.
static void put_sums(const struct panel * panel, int64_t column, const float * sums, int nr, int valid) {
    for (int i = 0; i < panel->rows; i++) {
        memcpy(panel->dst[i] + column, sums + i * nr, (size_t) valid * sizeof(float));
    }
}

// Lets tile `j` of panel i, of `tiles`, prefetch its share of the next panel where a tile takes so little time that
// panels from beyond the second-level cache would be waited for.
static void prefetch_next_panel(const struct round * r, const struct block * b, int64_t i, int64_t j, int64_t tiles,
    int64_t k0, int64_t kc, struct gb_tile * t) {
    if (!r->packing.pairs || r->packing.step == 1 || i + 1 == b->first + b->n) {
        t->ahead = NULL;
        return;
    }
    const int64_t lines = row_floats(&r->packing, kc) * r->packing.mr / 16, steps = GB_MAX(t->k / r->packing.step, 1);
    t->ahead       = (const char *) (panel_at(r, i + 1, k0, kc) + j * (lines / tiles) * 16);
    t->ahead_lines = (int) (lines / tiles / steps);
}

// All panels of the block times the packed columns, terms k0 .. k0 + kc - 1. A panel passes by once: of memory beyond
// the second-level cache little is read, and dst is written in longer pieces. Sums go straight to dst if they are
// complete and a tile's rows are equally far apart there. False: the run is over.
//
// The tile is described in place: whoever copies a structure that was just written waits for all stores before it.
static bool multiply(const struct round * r, const struct block * b, int64_t column, int n, int64_t k0, int64_t kc,
    struct ahead * ahead) {
    const int     nr     = r->packing.nr;
    const int64_t a_tile = r->packing.mr * nr, b_panel = nr * column_floats(&r->packing, kc);
    const bool    whole = kc == r->p->k, last = k0 + kc == r->p->k;
    float         few[MR_MAX * NR_MAX];
    float *       sums = r->l.sums;

    struct gb_tile t = { .k = tile_terms(r, kc), .accumulate = k0 > 0 };
    ahead->tiles     = b->n * ((n + nr - 1) / nr);
    for (int64_t i = b->first; i < b->first + b->n; i++) {
        const struct panel * panel  = &r->l.panels[i];
        const bool           direct = whole && panel->ld != 0;
        t.a                         = panel_at(r, i, k0, kc);
        t.b                         = r->l.w;
        t.mr                        = panel->rows;
        t.ldc                       = direct ? panel->ld : nr;
        for (int j = 0; j < n; j += nr, t.b += b_panel) {
            t.c  = direct ? panel->dst[0] + column + j : whole ? few : sums;
            t.nr = GB_MIN(nr, n - j);
            prefetch_next(ahead);
            prefetch_next_panel(r, b, i, j / nr, gb_div_up(n, nr), k0, kc, &t);
            tile(r, &t);
            if (last && !direct) {
                put_sums(panel, column + j, t.c, nr, t.nr);
            }
            sums += whole ? 0 : a_tile;
        }
        if (gb_cpu_stopped(r->call, gb_gemm_work(panel->rows, n, kc))) {
            return false;
        }
    }
    return true;
}

static void finish(const struct round * r, const struct block * b, int64_t column, int n) {
    const struct gb_gemm_epilogue * e = r->p->epilogue;
    for (int64_t i = b->first; i < b->first + b->n && e != NULL; i++) {
        for (int j = 0; j < r->l.panels[i].rows; j++) {
            e->finish(r->call, e, r->l.panels[i].dst[j] + column, column, n);
        }
    }
}

// Where terms k0 and on of the job's columns are.
static struct ahead weights_of(const struct round * r, int64_t job, int64_t k0) {
    const struct shared * s = r->l.shared;
    if (job >= s->n_blocks * s->n_chunks || !gb_gemm_is_dense(&r->p->w)) { // with gaps it would be too much
        return (struct ahead){ .n = 0 };
    }
    const int64_t               column = job % s->n_chunks * s->chunk, kc = GB_MIN(r->p->k - k0, r->packing.stretch);
    const struct gb_gemm_matrix w = r->p->w_of(r->p, r->l.blocks[job / s->n_chunks].g);
    return (struct ahead){ .data = w.data + (size_t) column * w.nb_m + gb_gemm_term_offset(&r->p->w, k0),
        .nb_m                    = w.nb_m,
        .bytes                   = gb_gemm_term_offset(&r->p->w, kc),
        .n                       = GB_MIN(r->p->m - column, s->chunk) };
}

static void run_job(const struct round * r, int64_t job) {
    const struct shared * s      = r->l.shared;
    const struct block *  b      = &r->l.blocks[job / s->n_chunks];
    const int64_t         column = job % s->n_chunks * s->chunk;
    const int             n      = (int) GB_MIN(r->p->m - column, s->chunk);
    int64_t               k0     = 0;

    const struct gb_gemm_matrix w = r->p->w_of(r->p, b->g);
    do { // once even for k = 0: an empty sum is 0
        const int64_t kc = GB_MIN(r->p->k - k0, r->packing.stretch);
        if (r->p->w.across) {
            pack_columns_across(r, &w, column, n, k0, kc);
        } else {
            pack_columns(r, &w, column, n, k0, kc);
        }
        const bool   more  = k0 + kc < r->p->k; // else the job that this thread gets if all take turns
        struct ahead ahead = weights_of(r, more ? job : job + r->call->nth, more ? k0 + kc : 0);
        if (!multiply(r, b, column, n, k0, kc, &ahead)) {
            return;
        }
        k0 += kc;
    } while (k0 < r->p->k);
    finish(r, b, column, n);
}

// False: the run is over.
static bool pack_panel(const struct round * r, struct cursor c, int64_t index) {
    const struct gb_gemm * p     = r->p;
    const int              mr    = r->packing.mr;
    struct panel *         panel = &r->l.panels[index];
    const void *           x[MR_MAX];
    struct gb_gemm_row     row[MR_MAX];

    const int64_t rows = gb_gemm_group_rows(p, c.g), n = group_panels(p, c.g, mr);
    const int64_t each = gb_div_up(rows, n); // panels of one size: a tile of few rows takes as long as a larger one
    panel->rows        = (int) GB_MIN(rows - c.i * each, each);
    for (int i = 0; i < panel->rows; i++) {
        row[i]        = p->row_of(p, c.g, c.i * each + i);
        x[i]          = row[i].x;
        panel->dst[i] = row[i].dst;
    }
    panel->ld = panel->rows > 1 ? gb_gemm_dst_stride(row, panel->rows) : p->m;
    for (int64_t k0 = 0, kc; k0 < p->k; k0 += kc) {
        kc = GB_MIN(p->k - k0, r->packing.stretch);
        if (r->packing.bytes) {
            gb_bytes_pack_rows(r->call->k, &r->packing.unpack, kc, panel->rows, mr, panel_at(r, index, k0, kc), x);
        } else if (r->packing.pairs) {
            pack_rounded(r->call->k, &r->packing, kc, panel->rows, panel_at(r, index, k0, kc), x, r->l.rows);
        } else {
            prefetch_rows(&p->x, x, panel->rows, kc);
            pack(r->call->k, &p->x, kc, panel->rows, mr, panel_at(r, index, k0, kc), x, r->l.rows);
        }
        for (int i = 0; i < panel->rows; i++) {
            x[i] = (const char *) x[i] + gb_gemm_term_offset(&p->x, kc);
        }
        if (gb_cpu_stopped(r->call, kc * mr)) {
            return false;
        }
    }
    return true;
}

static void pack_round(const struct round * r) {
    const int mr = r->packing.mr;
    int64_t   i, last;
    gb_cpu_share(r->call, r->n, &i, &last);
    if (i >= last) {
        return;
    }
    struct cursor c = cursor_at(r->p, r->first + i, mr);
    for (; i < last && pack_panel(r, c, i); i++) {
        if (++c.i >= group_panels(r->p, c.g, mr)) {
            cursor_next_group(r->p, &c, mr);
        }
    }
}

static void take_jobs(const struct round * r) {
    struct shared * s      = r->l.shared;
    const int64_t   n_jobs = s->n_blocks * s->n_chunks;
    for (;;) {
        const int64_t job = atomic_fetch_add_explicit(&s->next_job, 1, memory_order_relaxed);
        if (job >= n_jobs || gb_cpu_stopped(r->call, 0)) {
            return;
        }
        run_job(r, job);
    }
}

static void run_blocked(const struct gb_cpu_call * call, const struct gb_gemm * p, const struct packing * packing) {
    const int64_t total = total_panels(p, packing->mr);
    struct round  r     = { .call = call, .p = p, .packing = *packing, .l = lay_out(call, p, packing) };
    for (r.first = 0; r.first < total; r.first += r.n) {
        r.n = GB_MIN(total - r.first, r.l.capacity);
        if (r.first > 0 && !gb_cpu_barrier(call)) { // everybody is done with the panels and jobs of the last round
            return;
        }
        if (call->ith == 0) {
            atomic_store_explicit(&r.l.shared->next_job, 0, memory_order_relaxed);
            cut_jobs(&r);
        }
        pack_round(&r);
        if (!gb_cpu_barrier(call)) {
            return;
        }
        if (packing->pairs) {
            call->k->enter_tiles();
        }
        take_jobs(&r);
        if (packing->pairs) {
            call->k->leave_tiles();
        }
    }
}

// ---------------------------------------------------------------------------------------------------------- algorithms

const char * gb_blocked_bytes_declines(const struct gb_gemm * p) { return gb_bytes_decline(p); }

void gb_blocked_bytes_run(const struct gb_cpu_call * call, const struct gb_gemm * p) {
    const struct packing packing = { .bytes = true,
        .unpack                             = gb_unpack_of(call->k, p->w.type),
        .mr                                 = call->k->gemm_q8_mr,
        .nr                                 = call->k->gemm_q8_nr,
        .stretch                            = GB_BLOCKED_TERMS_BYTES,
        .columns                            = GB_BLOCKED_COLUMNS_BYTES };
    run_blocked(call, p, &packing);
}

// Weights of bfloat16 with floats that may be rounded to it.
const char * gb_blocked_bf16_declines(const struct gb_gemm * p) {
    return p->w.type != GGML_TYPE_BF16  ? "the weights are not bf16"
           : p->rows < GB_PAIRS_ROWS    ? "there are few rows"
           : p->exact                   ? "activations are not to be rounded"
           : p->x.type != GGML_TYPE_F32 ? "the activations are not f32"
           : !gb_gemm_both_dense(p)     ? "terms are not one behind the other"
           : p->k % 2 != 0              ? "the number of terms is odd"
                                        : NULL;
}

const char * gb_blocked_bf16_level_declines(const struct gb_gemm * p, const struct gb_kernels * kernels,
    const struct gb_cpu_traits * traits) {
    (void) p;
    if (!kernels->fast_bf16) {
        return "the level has no instruction for it";
    }
    const struct gb_cpu_traits * t = traits != NULL ? traits : gb_cpu_traits_of(kernels);
    return t->value[GB_TRAIT_BF16_DOTS] > GB_PAIRS_DOTS ? NULL
           : t->source[GB_TRAIT_BF16_DOTS] == GB_TRAIT_FIXED
               ? "processors round products of bf16 differently (trait bf16_dots, fixed by GGML_CPU_REPRODUCIBLE)"
               : "the processor multiplies pairs of bf16 no faster than f32 (trait bf16_dots)";
}

static struct packing pairs_packing(const struct gb_kernels * kernels) {
    return (struct packing){ .pairs = true,
        .mr                         = kernels->bf16_mr,
        .nr                         = kernels->bf16_nr,
        .step                       = kernels->bf16_step,
        .stretch                    = kernels->bf16_tiles ? GB_BLOCKED_TERMS_PAIRS : 2 * GB_BLOCKED_TERMS,
        .columns                    = kernels->bf16_tiles ? GB_BLOCKED_COLUMNS_PAIRS : GB_BLOCKED_COLUMNS };
}

void gb_blocked_bf16_run(const struct gb_cpu_call * call, const struct gb_gemm * p) {
    const struct packing packing = pairs_packing(call->k);
    run_blocked(call, p, &packing);
}

const char * gb_unpacked_bf16_declines(const struct gb_gemm * p) {
    const char * why = gb_bytes_decline(p);
    return why != NULL                         ? why
           : p->rows < GB_QUANTIZED_PAIRS_ROWS ? "there are few rows"
           : p->k < GB_QUANTIZED_PAIRS_TERMS   ? "sums are short"
                                               : NULL;
}

const char * gb_unpacked_bf16_level_declines(const struct gb_gemm * p, const struct gb_kernels * kernels,
    const struct gb_cpu_traits * traits) {
    (void) p;
    if (!kernels->bf16_tiles) {
        return "the level has no tile registers";
    }
    const struct gb_cpu_traits * t = traits != NULL ? traits : gb_cpu_traits_of(kernels);
    return t->value[GB_TRAIT_BF16_DOTS] > t->value[GB_TRAIT_BYTE_DOTS] ? NULL
           : t->source[GB_TRAIT_BF16_DOTS] == GB_TRAIT_FIXED
               ? "other processors have no tile registers (trait bf16_dots, fixed by GGML_CPU_REPRODUCIBLE)"
               : "the processor multiplies pairs of bf16 no faster than bytes (traits bf16_dots, byte_dots)";
}

void gb_unpacked_bf16_run(const struct gb_cpu_call * call, const struct gb_gemm * p) {
    struct packing packing = pairs_packing(call->k);
    packing.unpack         = gb_unpack_of(call->k, p->w.type);
    run_blocked(call, p, &packing);
}

void gb_blocked_f32_run(const struct gb_cpu_call * call, const struct gb_gemm * p) {
    const struct packing packing = { .mr = call->k->gemm_mr,
        .nr                              = call->k->gemm_nr,
        .stretch = is_quantized(p) ? GB_BLOCKED_TERMS / SUPER_MAX * SUPER_MAX : GB_BLOCKED_TERMS,
        .columns = GB_BLOCKED_COLUMNS };
    run_blocked(call, p, &packing);
}
