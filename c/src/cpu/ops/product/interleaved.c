// interleaved.c - products of up to 16 rows with quantized weights, with a group of terms in each
// lane (kernels/x86/interleaved.tpl.h), at levels with such kernels.
//
// All threads round rows to bytes and interleave them once. Up to four rows, or eight with formats
// that are quick to unpack, are multiplied with a column while registers unpack it. For more rows,
// columns are first unpacked into memory, a dozen at a time. Their stretches of terms and their
// sums stay in the first-level cache. Tails of many columns are multiplied together. The order of a
// sum depends on k and the format alone.
#include "cpu/ops/product/algorithm.h"
#include "cpu/ops/product/tuning.h"

#define ROWS_AT_ONCE GB_INTERLEAVED_X
#define COLUMNS_AT_ONCE GB_INTERLEAVED_W_READY
#define DIRECT_WIDTH GB_INTERLEAVED_W

enum {
    DIRECT_SUMS = DIRECT_WIDTH * ROWS_AT_ONCE * GB_INTERLEAVED_LANES, // floats that one kernel call computes
    TILE_SUMS = COLUMNS_AT_ONCE * ROWS_AT_ONCE * GB_INTERLEAVED_LANES, // floats of a tile of unpacked columns
    WHOLE_UNITS = GB_INTERLEAVED_UNIT_TERMS(false), // terms, of both kinds
};
_Static_assert(WHOLE_UNITS % GB_INTERLEAVED_UNIT_TERMS(true) == 0, "stretches are made of whole units");
_Static_assert(GB_INTERLEAVED_ROWS % ROWS_AT_ONCE == 0, "sums of all rows fit");
_Static_assert(GB_DIRECT_ROWS <= GB_DIRECT_ROWS_QUICK && GB_DIRECT_ROWS_QUICK <= GB_INTERLEAVED_ROWS, "rows fit");
_Static_assert(GB_DIRECT_COLUMNS % DIRECT_WIDTH == 0, "blocks of columns have whole parts");
_Static_assert(GB_DIRECT_TERMS / GB_DIRECT_ROWS_QUICK >= WHOLE_UNITS,
    "a stretch has terms, however many rows there are");
_Static_assert(GB_UNPACKED_COLUMNS % COLUMNS_AT_ONCE == 0 && GB_UNPACKED_TERMS % WHOLE_UNITS == 0,
    "unpacked columns and their sums fit");

const char * gb_interleaved_declines(const struct gb_gemm * p) {
    return p->rows > GB_INTERLEAVED_ROWS ? "there are many rows"
           : p->k == 0                   ? "there are no terms"
                                         : gb_bytes_decline(p);
}

const char * gb_interleaved_level_declines(const struct gb_gemm * p, const struct gb_kernels * kernels,
    const struct gb_cpu_traits * traits) {
    (void) traits;
    (void) p;
    return kernels->interleaved ? NULL : "the level has no kernels for it";
}

// A unit is sixteen groups of terms.
static int64_t unit_terms(int kind) { return GB_INTERLEAVED_UNIT_TERMS(kind & GB_BYTES_HALVES); }

static size_t unit_size(int kind) { return (size_t) GB_INTERLEAVED_UNIT_SIZE(kind & GB_BYTES_HALVES); }

// Terms before the tail.
static int64_t whole_terms(int64_t k, int kind) { return k - k % unit_terms(kind); }

// The bytes from the start of a row to term k0, at which a unit starts.
static size_t row_offset(int64_t k0, int kind) { return (size_t) (k0 / unit_terms(kind)) * unit_size(kind); }

static size_t row_size(int64_t k, int kind) {
    return (size_t) gb_interleaved_row_units(k, kind & GB_BYTES_HALVES) * unit_size(kind);
}

size_t gb_interleaved_work_size(const struct gb_gemm * p, int n_tasks) {
    return gb_gemm_prepared_size(p, GB_MAX(row_size(p->k, 0), row_size(p->k, GB_BYTES_HALVES)), n_tasks);
}

// Interleaves rows, some units at a time, so that several threads can share one row.
static void make_rows(const struct gb_cpu_call * call, const struct gb_gemm * p, const struct gb_unpack * unpack) {
    enum { PIECE = 4 };
    const int64_t terms = PIECE * unit_terms(unpack->kind), pieces = gb_div_up(p->k, terms);
    int64_t i, last, flat = 0;
    gb_cpu_share(call, p->total * pieces, &i, &last);
    for (int64_t g = 0; g < p->n_groups && flat * pieces < last; flat += gb_gemm_group_rows(p, g++)) {
        for (; i < last && i / pieces - flat < gb_gemm_group_rows(p, g); i++) {
            const int64_t k0 = i % pieces * terms;
            char * const y = (char *) call->work + (size_t) (i / pieces) * row_size(p->k, unpack->kind) +
                             row_offset(k0, unpack->kind);
            call->k->interleave_row(GB_MIN(p->k - k0, terms), unpack->kind, unpack->zero, y,
                (const float *) (const void *) p->row_of(p, g, i / pieces - flat).x + k0);
            if (gb_cpu_stopped(call, terms)) {
                return;
            }
        }
    }
}

struct task { // columns of one group
    const struct gb_cpu_call * call;
    const struct gb_kernels * kernels;
    enum ggml_type type;
    struct gb_unpack unpack;
    int64_t k, whole; // terms; those before the tail
    struct gb_gemm_matrix w;
    int rows;
    const void * x[GB_INTERLEAVED_ROWS]; // interleaved
    float * dst[GB_INTERLEAVED_ROWS];
};

// Adds the tails of n columns from j on to the results, which are the sums of whole units.
// Prefetches the tails of the next n columns.
static void add_tails(const struct task * t, int64_t j, int n) {
    for (int r = 0, nx; r < t->rows && t->whole < t->k; r += nx) {
        const void * x[ROWS_AT_ONCE];
        float * y[ROWS_AT_ONCE];
        nx = GB_MIN(t->rows - r, ROWS_AT_ONCE);
        for (int l = 0; l < nx; l++) {
            x[l] = (const char *) t->x[r + l] + row_offset(t->whole, t->unpack.kind);
            y[l] = t->dst[r + l] + j;
        }
        t->kernels->interleaved_tails(&(struct gb_interleaved_tails){
            .type = (int) t->type,
            .k = t->k - t->whole,
            .n = n,
            .nx = nx,
            .w = t->w.data + (size_t) j * t->w.nb_m + ggml_row_size(t->type, t->whole),
            .nb_w = t->w.nb_m,
            .ahead = (size_t) n * t->w.nb_m,
            .rows = x,
            .y = y,
            .add = t->whole > 0,
        });
    }
}

struct direct { // a stretch of terms of n columns from j on
    int64_t j, k0, terms;
    int n;
    size_t byte; // offset of term k0 in a column
};

// The weights of the columns `steps` later. After the last block, the address does not matter.
static const char * weights_later(const struct task * t, const struct direct * d, int i, int steps) {
    int64_t j = d->j, k0 = d->k0;
    for (i += DIRECT_WIDTH * steps; i >= GB_DIRECT_COLUMNS; i -= GB_DIRECT_COLUMNS) {
        k0 += d->terms;
        if (k0 >= t->whole) {
            k0 = 0;
            j += GB_DIRECT_COLUMNS;
        }
    }
    return t->w.data + (size_t) (j + i) * t->w.nb_m + (k0 == d->k0 ? d->byte : ggml_row_size(t->type, k0));
}

// The number of rows up to which unpacking in registers, for four rows at a time, is less work than storing levels.
static int direct_rows(enum ggml_type type) {
    switch (type) {
#define ROWS_NONE(id)
#define ROWS_ONCE(id)
#define ROWS_UNPACKED(id)
#define ROWS_REPEATED(id) \
    case GGML_TYPE_##id: return GB_DIRECT_ROWS_QUICK;
#define GB_FORMAT(id, stem, name, elements, bytes, group, zero, top, use, partner, columns, rows, ...) ROWS_##rows(id)
#include "tensor/quant/formats.def"
#undef GB_FORMAT
#undef ROWS_NONE
#undef ROWS_ONCE
#undef ROWS_UNPACKED
#undef ROWS_REPEATED
        default: return GB_DIRECT_ROWS;
    }
}

static void multiply_directly_stretch(const struct task * t, const struct direct * d, float * acc) {
    const size_t at = row_offset(d->k0, t->unpack.kind);
    const int64_t terms = GB_MIN(t->whole - d->k0, d->terms);
    const int steps =
        (int) (GB_INTERLEAVED_AHEAD / (ggml_row_size(t->type, GB_MIN(d->terms, t->k)) * DIRECT_WIDTH)) + 1;
    const void *x[ROWS_AT_ONCE], *w[DIRECT_WIDTH], *next[DIRECT_WIDTH];
    struct gb_interleaved_dots dots = {
        // The loop sets the members that differ between calls.
        .type = (int) t->type,
        .k = terms,
        .columns = w,
        .rows = x,
        .next = next,
        .accumulate = d->k0 > 0,
    };
    for (int i = 0; i < d->n; i += DIRECT_WIDTH) {
        w[0] = t->w.data + (size_t) (d->j + i) * t->w.nb_m + d->byte;
        next[0] = weights_later(t, d, i, steps);
        for (int l = 1; l < DIRECT_WIDTH; l++) {
            w[l] = (const char *) w[l - 1] + t->w.nb_m;
            next[l] = (const char *) next[l - 1] + t->w.nb_m;
        }
        dots.nw = GB_MIN(d->n - i, DIRECT_WIDTH);
        for (int r = 0; r < t->rows; r += ROWS_AT_ONCE, acc += DIRECT_SUMS) {
            dots.nx = GB_MIN(t->rows - r, ROWS_AT_ONCE);
            dots.acc = acc;
            for (int l = 0; l < dots.nx; l++) {
                x[l] = (const char *) t->x[r + l] + at;
            }
            t->kernels->interleaved_dots(&dots);
        }
    }
}

// Multiplies one row with n columns of each stream. Stream s starts at column j + s * apart.
static void multiply_streams(const struct task * t, int64_t j, int64_t n, int streams, int64_t apart) {
    t->kernels->interleaved_row_dots(&(struct gb_interleaved_row_dots){
        .type = (int) t->type,
        .streams = streams,
        .k = t->k,
        .n = n,
        .apart = apart,
        .w = t->w.data + (size_t) j * t->w.nb_m,
        .nb_w = t->w.nb_m,
        .ahead = gb_gemm_ahead(&t->w, ggml_row_size(t->type, t->k), GB_ROW_AHEAD),
        .x = t->x[0],
        .y = t->dst[0] + j,
    });
}

// One row: the columns are cut into consecutive streams, which are read at the same time.
static void multiply_row(const struct task * t, int64_t j, int64_t end) {
    const int64_t each = (end - j) / GB_INTERLEAVED_STREAMS, last = j + each * GB_INTERLEAVED_STREAMS;
    for (int64_t i = 0, n; i < each; i += n) {
        n = GB_MIN(each - i, GB_ROW_COLUMNS);
        multiply_streams(t, j + i, n, GB_INTERLEAVED_STREAMS, each);
        if (gb_cpu_stopped(t->call, gb_gemm_work(1, n * GB_INTERLEAVED_STREAMS, t->k))) {
            return;
        }
    }
    if (last < end) {
        multiply_streams(t, last, 1, (int) (end - last), 1);
    }
}

static void store_direct_sums(const struct task * t, const struct direct * d, const float * sums) {
    for (int i = 0; i < d->n; i += DIRECT_WIDTH) {
        const int nw = GB_MIN(d->n - i, DIRECT_WIDTH);
        for (int r = 0; r < t->rows; r += ROWS_AT_ONCE, sums += DIRECT_SUMS) {
            float y[DIRECT_WIDTH * ROWS_AT_ONCE];
            const int nx = GB_MIN(t->rows - r, ROWS_AT_ONCE);
            t->kernels->interleaved_sums(nw, y, sums);
            for (int l = 0; l < nx; l++) {
                for (int c = 0; c < nw; c++) {
                    t->dst[r + l][d->j + i + c] = y[ROWS_AT_ONCE * c + l];
                }
            }
        }
    }
}

static void multiply_directly(const struct task * t, int64_t j, int64_t end) {
    enum {
        PARTS = (GB_DIRECT_ROWS_QUICK + ROWS_AT_ONCE - 1) / ROWS_AT_ONCE, // of the rows
        TILES = GB_DIRECT_COLUMNS / DIRECT_WIDTH * PARTS,
    };
    _Alignas(64) float acc[TILES * DIRECT_SUMS];
    const int64_t terms = GB_DIRECT_TERMS / t->rows;
    struct direct d = { .j = j, .terms = terms / WHOLE_UNITS * WHOLE_UNITS };
    if (t->rows == 1 && t->k <= d.terms) {
        multiply_row(t, j, end);
        return;
    }
    for (; d.j < end; d.j += d.n) {
        d.n = (int) GB_MIN(end - d.j, GB_DIRECT_COLUMNS);
        for (d.k0 = 0; d.k0 < t->whole; d.k0 += d.terms) {
            d.byte = ggml_row_size(t->type, d.k0);
            multiply_directly_stretch(t, &d, acc);
        }
        if (t->whole > 0) {
            store_direct_sums(t, &d, acc);
        }
        add_tails(t, d.j, d.n);
        if (gb_cpu_stopped(t->call, gb_gemm_work(t->rows, d.n, t->k))) {
            return;
        }
    }
}

// Unpacked columns, and the sums of each tile. The size of a column is that of the kind with more
// bytes.
struct columns {
    _Alignas(64) char w[GB_UNPACKED_COLUMNS]
                       [GB_UNPACKED_TERMS / GB_INTERLEAVED_UNIT_TERMS(true) * GB_INTERLEAVED_UNIT_SIZE(true)];
    _Alignas(64) float acc[GB_UNPACKED_COLUMNS / COLUMNS_AT_ONCE][GB_INTERLEAVED_ROWS / ROWS_AT_ONCE][TILE_SUMS];
};

struct stretch { // terms of n columns from j on
    int64_t j, k0, terms;
    int n, per_part; // rows at a time
    const char * next; // the data to unpack next, in n columns nb_m apart
};

// Spreads the prefetches over the tiles, because memory takes a limited number of requests at a time.
static void multiply_stretch(const struct task * t, struct columns * c, const struct stretch * s) {
    const int kind = gb_bytes_tile_kind(&t->unpack) & ~GB_BYTES_WIDE;
    const int64_t count = s->terms / unit_terms(t->unpack.kind);
    const size_t at = row_offset(s->k0, t->unpack.kind), bytes = ggml_row_size(t->type, s->terms);
    const int tiles = (s->n + COLUMNS_AT_ONCE - 1) / COLUMNS_AT_ONCE * ((t->rows + s->per_part - 1) / s->per_part);
    int done = 0;
    for (int r = 0; r < t->rows; r += s->per_part) {
        const void * x[ROWS_AT_ONCE];
        const int nx = GB_MIN(t->rows - r, s->per_part);
        for (int l = 0; l < nx; l++) {
            x[l] = (const char *) t->x[r + l] + at;
        }
        for (int i = 0; i < s->n; i += COLUMNS_AT_ONCE, done++) {
            const void * w[COLUMNS_AT_ONCE];
            const int nw = GB_MIN(s->n - i, COLUMNS_AT_ONCE);
            for (int l = 0; l < nw; l++) {
                w[l] = c->w[i + l];
            }
            for (int l = done * s->n / tiles; l < (done + 1) * s->n / tiles; l++) {
                gb_prefetch(s->next + (size_t) l * t->w.nb_m, bytes);
            }
            t->kernels->interleaved_tile(&(struct gb_interleaved_tile){
                .units = count,
                .kind = kind,
                .nw = nw,
                .nx = nx,
                .acc = c->acc[i / COLUMNS_AT_ONCE][r / s->per_part],
                .columns = w,
                .rows = x,
                .accumulate = s->k0 > 0,
            });
        }
    }
}

static void store_sums(const struct task * t, const struct columns * c, int64_t j, int n, int per_part) {
    for (int r = 0; r < t->rows; r += per_part) {
        float y[GB_UNPACKED_COLUMNS * ROWS_AT_ONCE];
        const int nx = GB_MIN(t->rows - r, per_part);
        for (int i = 0; i < n; i += COLUMNS_AT_ONCE) {
            t->kernels->interleaved_sums(GB_MIN(n - i, COLUMNS_AT_ONCE), y + i * ROWS_AT_ONCE,
                c->acc[i / COLUMNS_AT_ONCE][r / per_part]);
        }
        for (int l = 0; l < nx; l++) {
            for (int i = 0; i < n; i++) {
                t->dst[r + l][j + i] = y[i * ROWS_AT_ONCE + l];
            }
        }
    }
}

// The weights GB_UNPACKED_AHEAD stretches later, of this block of columns or a later one.
static const char * next_weights(const struct task * t, const struct stretch * s) {
    const int64_t stretches = gb_div_up(t->whole, GB_UNPACKED_TERMS), i = s->k0 / GB_UNPACKED_TERMS + GB_UNPACKED_AHEAD;
    return t->w.data + (size_t) (s->j + i / stretches * GB_UNPACKED_COLUMNS) * t->w.nb_m +
           ggml_row_size(t->type, i % stretches * GB_UNPACKED_TERMS);
}

static void multiply_unpacked(const struct task * t, int64_t j, int64_t end) {
    const int parts = (t->rows + ROWS_AT_ONCE - 1) / ROWS_AT_ONCE;
    struct columns c;
    struct stretch s = { .j = j, .per_part = (t->rows + parts - 1) / parts };
    for (; s.j < end; s.j += s.n) {
        s.n = (int) GB_MIN(end - s.j, GB_UNPACKED_COLUMNS);
        for (int r = 0; r < t->rows; r++) {
            gb_prefetch(t->dst[r] + s.j, (size_t) s.n * sizeof(float));
        }
        for (s.k0 = 0; s.k0 < t->whole; s.k0 += GB_UNPACKED_TERMS) {
            const char * w = t->w.data + (size_t) s.j * t->w.nb_m + ggml_row_size(t->type, s.k0);
            s.terms = GB_MIN(t->whole - s.k0, GB_UNPACKED_TERMS);
            s.next = next_weights(t, &s);
            for (int i = 0; i < s.n; i++) {
                t->kernels->interleave_column((int) t->type, s.terms, c.w[i], w + (size_t) i * t->w.nb_m);
            }
            multiply_stretch(t, &c, &s);
        }
        if (t->whole > 0) {
            store_sums(t, &c, s.j, s.n, s.per_part);
        }
        add_tails(t, s.j, s.n);
        if (gb_cpu_stopped(t->call, gb_gemm_work(t->rows, s.n, t->k))) {
            return;
        }
    }
}

void gb_interleaved_run(const struct gb_cpu_call * call, const struct gb_gemm * p) {
    struct task t = {
        .call = call, .kernels = call->k, .type = p->w.type, .unpack = gb_unpack_of(call->k, p->w.type), .k = p->k
    };
    const size_t size = row_size(p->k, t.unpack.kind);
    const struct gb_cpu_call preparation = gb_gemm_preparation(call, p, size);
    t.whole = whole_terms(p->k, t.unpack.kind);
    make_rows(&preparation, p, &t.unpack);
    if (!gb_gemm_is_prepared(call, p)) {
        return;
    }
    struct gb_gemm_columns c = gb_gemm_share_columns(call, p);
    while (gb_gemm_next_columns(p, &c, p->m)) {
        t.rows = c.rows;
        t.w = p->w_of(p, c.g);
        for (int r = 0; r < t.rows; r++) {
            t.x[r] = (char *) preparation.work + (size_t) (gb_gemm_first_row(p, c.g) + r) * size;
            t.dst[r] = p->row_of(p, c.g, r).dst;
        }
        if (t.rows > direct_rows(t.type)) {
            multiply_unpacked(&t, c.first, c.first + c.n);
        } else if (t.rows > 0) {
            multiply_directly(&t, c.first, c.first + c.n);
        }
        if (gb_cpu_stopped(call, 0)) {
            return;
        }
        gb_gemm_finish(call, p, c.g, c.first, c.n);
    }
}
