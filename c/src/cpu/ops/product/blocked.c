// blocked.c - products of many rows. Operands are packed into panels (packing.h), which are multiplied by blocks.
//
// Panels hold bytes if the weights are quantized. They hold pairs of bfloat16 if the weights are
// bfloat16, or if they are quantized and the processor multiplies such pairs faster than bytes. If
// neither suits the product and the processor, panels hold floats. With few columns, packing rows
// of floats does not pay, and a tile reads them in place.
//
// All threads pack rows of x into shared memory. Then they take jobs from a common counter. A job
// is a block of panels times a chunk of columns. For each stretch of terms, a job packs its columns
// of w into memory of its own thread, where they stay in cache, and computes the tiles. So weights
// are converted during the product. If x is larger than the scratch memory, this happens in rounds.
//
// Between two stretches, a job keeps the sums of each tile in memory of its thread. Rows of dst are
// often a power of two apart, and would evict each other from the caches.
//
// Invariant: the stretches of k, and so the order of each sum, depend on the shapes alone. They
// never depend on the number of threads, on the scratch size, or on which thread takes a job. So
// results have the same bits for every number of threads.
#include <stdatomic.h>

#include "cpu/ops/product/packing.h"
#include "cpu/traits.h"

#define MR_MAX GB_PACKED_ROWS_MAX
#define NR_MAX GB_PACKED_COLUMNS_MAX

struct panel {
    float * dst[MR_MAX];
    int64_t ld; // floats from one row of dst to the next; 0: not constant
    const float * x; // row 0 of x, if rows are read in place
    int64_t ldx; // floats from one row of x to the next; 0: rows are packed
    int rows;
};

struct block { // panels [first, first + n) of the round, all of one group
    int64_t g, first, n;
};

struct shared { // at the start of the scratch memory; written by thread 0 before the barrier of a round
    atomic_llong next_job;
    int64_t n_blocks, n_chunks, chunk; // jobs: a block by a chunk of columns, which is a multiple of gemm_nr
    char pad[32];
};

struct part { // of the results
    int64_t panel, panels_end; // numbers of panels, counted through all groups
    int64_t column, columns_end;
};

struct own { // floats of the memory of a thread
    size_t chunk, buffer; // gb_packing_limits
    size_t sums; // of a job with several stretches; else 0
};

struct layout { // of the scratch memory
    struct shared * shared;
    float * w; // this thread's packed chunk
    float * buffer; // this thread's
    float * sums; // this thread's
    float * x; // capacity panels
    struct panel * panels; // capacity
    struct block * blocks; // capacity
    int64_t capacity;
};

// --------------------------------------------------------------------------------------------------------------- sizes

_Static_assert(sizeof(struct shared) % 64 == 0, "the memory after it is aligned");

static struct own own_of(const struct gb_gemm * p, const struct gb_packing_limits * limits) {
    const int64_t rows = GB_MIN(p->rows + limits->rows - 1, GB_MAX(GB_BLOCKED_ROWS, GB_BLOCKED_ROWS_BYTES));
    const size_t sums = (size_t) rows * (size_t) limits->columns;
    return (struct own){ limits->chunk, limits->buffer, p->k > limits->stretch ? sums : 0 };
}

// True if a barrier would take too long for such a small product. Each thread then computes a part
// of the results from its own panels. Several threads may pack the same data, but no thread waits
// or reads panels from another core's cache.
static bool is_done_apart(const struct gb_gemm * p, int n_tasks) {
    return n_tasks > 1 && (double) p->total * (double) p->m * (double) GB_MAX(p->k, 1) <= GB_APART_TERMS;
}

size_t gb_blocked_work_size(const struct gb_gemm * p, int n_tasks) {
    // Levels differ in gemm_mr. A row's share of the data of its panel is below ROW_EXTRA at all levels.
    enum { ROW_EXTRA = (sizeof(struct panel) + sizeof(struct block)) / GB_GEMM_MR_MIN + 1 };
    const struct gb_packing_limits limits = gb_packing_limits_of(p);
    const struct own own = own_of(p, &limits);
    const size_t row = (size_t) limits.row * sizeof(float) + ROW_EXTRA;
    const size_t mr = (size_t) limits.rows, padded = (size_t) p->total + (size_t) p->n_groups * (mr - 1);
    const size_t each = (own.chunk + own.buffer + own.sums) * sizeof(float);
    if (is_done_apart(p, n_tasks)) {
        const size_t round = GB_MAX(mr, GB_ROUND_BYTES / row);
        const size_t part = sizeof(struct shared) + each + GB_MIN(padded, round) * row + 64;
        return (size_t) n_tasks * ((part + 63) / 64 * 64);
    }
    const size_t least = GB_MAX(mr, GB_MIN(GB_ROUND_ROWS, GB_ROUND_BYTES_MAX / row));
    const size_t round = GB_MAX(least, (size_t) n_tasks * GB_ROUND_BYTES / row);
    return sizeof(struct shared) + (size_t) n_tasks * each + GB_MIN(padded, round) * row + 64;
}

static char * align_up(char * p) { return p + (64 - (uintptr_t) p % 64) % 64; }

static struct layout lay_out(const struct gb_cpu_call * call, const struct gb_gemm * p,
    const struct gb_packing * packing) {
    const struct gb_packing_limits limits = gb_packing_limits_of(p);
    const struct own own = own_of(p, &limits);
    const size_t panel_size = (size_t) packing->mr * (size_t) gb_packed_row_floats(packing, p->k) * sizeof(float);
    const size_t nth = (size_t) call->nth, ith = (size_t) call->ith;
    char * const start = call->work;
    char * const end = (char *) call->work + call->work_size;
    float * const w = (float *) (start + sizeof(struct shared));
    float * const buffer = w + nth * own.chunk;
    float * const sums = buffer + nth * own.buffer;
    float * const x = sums + nth * own.sums;
    struct layout l = { .shared = (struct shared *) start,
        .w = w + ith * own.chunk,
        .buffer = buffer + ith * own.buffer,
        .sums = sums + ith * own.sums,
        .x = x };
    l.capacity =
        (int64_t) ((size_t) (end - (char *) x - 64) / (panel_size + sizeof(struct panel) + sizeof(struct block)));
    l.panels = (struct panel *) align_up((char *) x + (size_t) l.capacity * panel_size);
    l.blocks = (struct block *) (l.panels + l.capacity);
    return l;
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
    struct cursor c = cursor_at(p, first, mr);
    for (int64_t done = 0; done < n; count++) {
        const int64_t left = group_panels(p, c.g, mr) - c.i;
        blocks[count] = (struct block){ c.g, done, GB_MIN(GB_MIN(n - done, left), block_panels) };
        done += blocks[count].n;
        c.i += blocks[count].n;
        if (blocks[count].n == left) {
            cursor_next_group(p, &c, mr);
        }
    }
    return count;
}

// ---------------------------------------------------------------------------------------------------------------- jobs

struct round {
    const struct gb_cpu_call * call;
    const struct gb_gemm * p;
    struct gb_packing packing;
    struct layout l;
    struct part part;
    int64_t first, n; // panels, numbered through all groups
};

static struct part whole_of(const struct gb_gemm * p, const struct gb_packing * packing) {
    return (struct part){ 0, total_panels(p, packing->mr), 0, p->m };
}

// This thread's part if threads work without barriers: some panels or some columns, whichever takes less time.
static struct part part_of(const struct gb_cpu_call * call, const struct gb_gemm * p,
    const struct gb_packing * packing) {
    struct part part = whole_of(p, packing);
    const int64_t tiles = gb_div_up(p->m, packing->nr);
    const int64_t rows = gb_div_up(part.panels_end, call->nth) * packing->mr;
    const int64_t columns = gb_div_up(tiles, call->nth) * packing->nr;
    const int64_t by_rows = rows * p->m + GB_APART_PACKING * (rows + p->m);
    if (p->n_groups > 1 || by_rows <= columns * p->total + GB_APART_PACKING * (columns + p->total)) {
        gb_cpu_share(call, part.panels_end, &part.panel, &part.panels_end);
    } else {
        gb_cpu_share(call, tiles, &part.column, &part.columns_end);
        part.column = part.column * packing->nr;
        part.columns_end = GB_MIN(part.columns_end * packing->nr, p->m);
    }
    return part;
}

// Cuts the work into jobs. Large blocks and chunks pack less data. Small ones give every thread a
// job.
static void cut_jobs(const struct round * r) {
    struct shared * s = r->l.shared;
    const int mr = r->packing.mr;
    const int64_t want = r->call->nth > 1 ? 3 * (int64_t) r->call->nth : 1;
    int64_t per_block = GB_MAX((r->packing.as == GB_PACKED_BYTES ? GB_BLOCKED_ROWS_BYTES : GB_BLOCKED_ROWS) / mr, 1);

    s->chunk = r->packing.columns;
    for (;;) {
        s->n_chunks = gb_div_up(r->part.columns_end - r->part.column, s->chunk);
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

// The memory of terms k0 .. k0 + kc - 1 of panel i. A stretch of all panels is contiguous, because
// a block reads it for one packed chunk of w.
static float * panel_at(const struct round * r, int64_t i, int64_t k0, int64_t kc) {
    const struct gb_packing * packing = &r->packing;
    const int64_t before = gb_packed_row_floats(packing, k0) * r->n + i * gb_packed_row_floats(packing, kc);
    return r->l.x + (size_t) before * (size_t) packing->mr;
}

// Packs terms k0 .. k0 + kc - 1 of n columns from `column` on.
static void pack_columns(const struct round * r, const struct gb_gemm_matrix * w, int64_t column, int n, int64_t k0,
    int64_t kc) {
    const struct gb_packing * packing = &r->packing;
    const char * data = w->data + gb_gemm_term_offset(&r->p->w, k0);
    if (r->p->w.across) {
        gb_pack_columns_across(packing, &r->p->w, kc, column, n, r->l.w, data, w->nb_m, r->l.buffer);
        return;
    }
    const int64_t each = gb_packed_column_floats(packing, kc);
    for (int j = 0; j < n; j += packing->nr) {
        const void * columns[NR_MAX];
        const int valid = GB_MIN(packing->nr, n - j);
        for (int i = 0; i < valid; i++) {
            columns[i] = data + (size_t) (column + j + i) * w->nb_m;
        }
        gb_pack_columns(packing, &r->p->w, kc, valid, r->l.w + (size_t) j * (size_t) each, columns, r->l.buffer);
    }
}

// The weights to pack next: `bytes` of each of n columns. Each tile prefetches a part of them,
// because memory takes a limited number of requests at a time. A thread that makes more requests
// waits.
struct ahead {
    const char * data;
    size_t nb_m, bytes;
    int64_t n;
    int64_t tile, tiles; // of the block: the next tile, all tiles
};

static void prefetch_next(struct ahead * a) {
    for (int64_t j = a->n * a->tile / a->tiles; j < a->n * (a->tile + 1) / a->tiles; j++) {
        gb_prefetch(a->data + (size_t) j * a->nb_m, a->bytes);
    }
    a->tile++;
}

// Copies contiguous sums, mr by nr, to the rows of dst.
static void put_sums(const struct panel * panel, int64_t column, const float * sums, int nr, int valid) {
    for (int i = 0; i < panel->rows; i++) {
        memcpy(panel->dst[i] + column, sums + i * nr, (size_t) valid * sizeof(float));
    }
}

// The bytes of the next panel that each of `tiles` tiles prefetches, and the lines at each step. 0
// unless a tile is so short that it would wait for panels that are not in the second-level cache.
struct share {
    int64_t bytes;
    int lines;
};

static struct share share_of_panel(const struct gb_packing * packing, int64_t kc, int64_t tiles) {
    if (packing->as != GB_PACKED_PAIRS || packing->step == 1) {
        return (struct share){ 0, 0 };
    }
    const int64_t lines = gb_packed_row_floats(packing, kc) * packing->mr / 16 / tiles;
    const int64_t steps = GB_MAX(gb_packed_tile_terms(packing, kc) / packing->step, 1);
    return (struct share){ lines * 64, (int) (lines / steps) };
}

// Multiplies terms k0 .. k0 + kc - 1 of all panels of the block with the packed columns. Each panel
// is read once, so little is read from outside the second-level cache, and dst is written in longer
// pieces. Sums go directly to dst if they are complete and the rows of a tile have a constant
// distance there. False: the run is over.
//
// The loop updates one tile description. A copy of a structure would wait for the stores to it.
static bool multiply(const struct round * r, const struct block * b, int64_t column, int n, int64_t k0, int64_t kc,
    struct ahead * ahead) {
    const struct gb_packing * packing = &r->packing;
    const int nr = packing->nr;
    const int64_t a_tile = packing->mr * nr, b_panel = nr * gb_packed_column_floats(packing, kc);
    const int64_t tiles = gb_div_up(n, nr), end = b->first + b->n;
    const bool whole = kc == r->p->k, last = k0 + kc == r->p->k;
    const struct share share = share_of_panel(packing, kc, tiles);
    float few[MR_MAX * NR_MAX];
    float * sums = r->l.sums;

    struct gb_tile t = { .k = gb_packed_tile_terms(packing, kc), .accumulate = k0 > 0 };
    ahead->tiles = b->n * tiles;
    for (int64_t i = b->first; i < end; i++) {
        const struct panel * panel = &r->l.panels[i];
        const bool direct = whole && panel->ld != 0;
        t.a = panel->ldx != 0 ? panel->x + k0 : panel_at(r, i, k0, kc);
        t.lda = panel->ldx;
        t.b = r->l.w;
        t.mr = panel->rows;
        t.ldc = direct ? panel->ld : nr;
        t.ahead = (const char *) panel_at(r, GB_MIN(i + 1, end - 1), k0, kc);
        t.ahead_lines = i + 1 < end ? share.lines : 0;
        for (int j = 0; j < n; j += nr, t.b += b_panel, t.ahead += share.bytes) {
            t.c = direct ? panel->dst[0] + column + j : whole ? few : sums;
            t.nr = GB_MIN(nr, n - j);
            prefetch_next(ahead);
            gb_packed_tile(packing, &t);
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
            e->finish(r->call, e, b->g, r->l.panels[i].dst[j] + column, column, n);
        }
    }
}

static int64_t column_of(const struct round * r, int64_t job) { // the first column of a job
    return r->part.column + job % r->l.shared->n_chunks * r->l.shared->chunk;
}

// The next stretch of the job's columns, from term k0 on.
static struct ahead weights_of(const struct round * r, int64_t job, int64_t k0) {
    const struct shared * s = r->l.shared;
    if (job >= s->n_blocks * s->n_chunks || !gb_gemm_is_dense(&r->p->w)) { // terms far apart are too many lines
        return (struct ahead){ .n = 0 };
    }
    const int64_t column = column_of(r, job), kc = GB_MIN(r->p->k - k0, r->packing.stretch);
    const struct gb_gemm_matrix w = r->p->w_of(r->p, r->l.blocks[job / s->n_chunks].g);
    return (struct ahead){ .data = w.data + (size_t) column * w.nb_m + gb_gemm_term_offset(&r->p->w, k0),
        .nb_m = w.nb_m,
        .bytes = gb_gemm_term_offset(&r->p->w, kc),
        .n = GB_MIN(r->part.columns_end - column, s->chunk) };
}

static void run_job(const struct round * r, int64_t job) {
    const struct shared * s = r->l.shared;
    const struct block * b = &r->l.blocks[job / s->n_chunks];
    const int64_t column = column_of(r, job);
    const int n = (int) GB_MIN(r->part.columns_end - column, s->chunk);
    int64_t k0 = 0;

    const struct gb_gemm_matrix w = r->p->w_of(r->p, b->g);
    do { // once even for k = 0: an empty sum is 0
        const int64_t kc = GB_MIN(r->p->k - k0, r->packing.stretch);
        pack_columns(r, &w, column, n, k0, kc);
        const bool more = k0 + kc < r->p->k; // otherwise prefetch the job that this thread probably takes next
        struct ahead ahead = weights_of(r, more ? job : job + r->call->nth, more ? k0 + kc : 0);
        if (!multiply(r, b, column, n, k0, kc, &ahead)) {
            return;
        }
        k0 += kc;
    } while (k0 < r->p->k);
    finish(r, b, column, n);
}

// True if rows of x with a constant distance are multiplied in place.
static bool is_read_in_place(const struct gb_gemm * p, const struct gb_packing * packing) {
    return packing->as == GB_PACKED_FLOATS && p->x.type == GGML_TYPE_F32 && gb_gemm_is_dense(&p->x) &&
           p->m <= GB_IN_PLACE_COLUMNS;
}

// Floats from one row of a panel to the next if the rows are read in place. 0: they are packed. A
// step of a tile reads a float of each row. Floats that are a multiple of 4 KiB apart would evict
// each other from the first-level cache.
static int64_t stride_in_place(const struct round * r, const struct gb_gemm_row * row, int rows) {
    if (!is_read_in_place(r->p, &r->packing) || (uintptr_t) row[0].x % sizeof(float) != 0) {
        return 0;
    }
    const int64_t nb = rows > 1 ? gb_gemm_x_stride(row, rows) : (int64_t) sizeof(float);
    return nb % (int64_t) sizeof(float) == 0 && nb % 4096 != 0 ? nb / (int64_t) sizeof(float) : 0;
}

// The rows of panel c. Panels have equal size, because a small tile takes as long as a large one. The size is even, so
// that a row stays with its remainder (two_bytes.c). It is at most mr, so the last panel is not empty.
static int panel_rows(const struct round * r, struct cursor c, struct gb_gemm_row * row) {
    const int64_t rows = gb_gemm_group_rows(r->p, c.g), n = group_panels(r->p, c.g, r->packing.mr);
    const int64_t each = GB_MIN(gb_div_up(gb_div_up(rows, n), 2) * 2, r->packing.mr);
    const int count = (int) GB_MIN(rows - c.i * each, each);
    gb_gemm_rows_of(r->p, c.g, c.i * each, count, row);
    return count;
}

static void describe_panel(const struct round * r, struct cursor c, int64_t index) {
    struct panel * panel = &r->l.panels[index];
    struct gb_gemm_row row[MR_MAX];
    panel->rows = panel_rows(r, c, row);
    for (int i = 0; i < panel->rows; i++) {
        panel->dst[i] = row[i].dst;
    }
    panel->ld = panel->rows > 1 ? gb_gemm_dst_stride(row, panel->rows) : r->p->m;
    panel->x = (const float *) (const void *) row[0].x;
    panel->ldx = stride_in_place(r, row, panel->rows);
}

// Packs terms k0 .. end - 1 of a panel, unless it is read in place. False: the run is over.
static bool pack_panel(const struct round * r, struct cursor c, int64_t index, int64_t k0, int64_t end) {
    const struct gb_gemm * p = r->p;
    const int mr = r->packing.mr;
    const void * x[MR_MAX];
    struct gb_gemm_row row[MR_MAX];
    if (r->l.panels[index].ldx != 0) {
        return true;
    }
    const int rows = panel_rows(r, c, row);
    for (int i = 0; i < rows; i++) {
        x[i] = row[i].x + gb_gemm_term_offset(&p->x, k0);
    }
    for (int64_t kc; k0 < end; k0 += kc) {
        kc = GB_MIN(end - k0, r->packing.stretch);
        const size_t bytes = gb_gemm_term_offset(&p->x, kc);
        const bool asks = r->packing.as == GB_PACKED_FLOATS && k0 + kc < end;
        for (int i = 0; i < rows && asks; i++) { // the next stretch
            gb_prefetch((const char *) x[i] + bytes, bytes);
        }
        gb_pack_rows(&r->packing, &p->x, kc, rows, panel_at(r, index, k0, kc), x, r->l.buffer);
        for (int i = 0; i < rows; i++) {
            x[i] = (const char *) x[i] + bytes;
        }
        if (gb_cpu_stopped(r->call, kc * mr)) {
            return false;
        }
    }
    return true;
}

// Panels share cache lines if terms are apart. A stretch of all panels is then packed before the next stretch.
static void pack_round(const struct round * r) {
    const int mr = r->packing.mr;
    const int64_t step = gb_gemm_is_dense(&r->p->x) ? GB_MAX(r->p->k, 1) : r->packing.stretch;
    int64_t first, last;
    gb_cpu_share(r->call, r->n, &first, &last);
    for (int64_t k0 = 0; first < last && (k0 == 0 || k0 < r->p->k); k0 += step) {
        struct cursor c = cursor_at(r->p, r->first + first, mr);
        for (int64_t i = first; i < last; i++) {
            if (k0 == 0) {
                describe_panel(r, c, i);
            }
            if (!pack_panel(r, c, i, k0, GB_MIN(k0 + step, r->p->k))) {
                return;
            }
            if (++c.i >= group_panels(r->p, c.g, mr)) {
                cursor_next_group(r->p, &c, mr);
            }
        }
    }
}

static void take_jobs(const struct round * r) {
    struct shared * s = r->l.shared;
    const int64_t n_jobs = s->n_blocks * s->n_chunks;
    for (;;) {
        const int64_t job = atomic_fetch_add_explicit(&s->next_job, 1, memory_order_relaxed);
        if (job >= n_jobs || gb_cpu_stopped(r->call, 0)) {
            return;
        }
        run_job(r, job);
    }
}

static void run_part(const struct gb_cpu_call * call, const struct gb_gemm * p, const struct gb_packing * packing,
    const struct part * part) {
    struct round r = { .call = call, .p = p, .packing = *packing, .l = lay_out(call, p, packing), .part = *part };
    for (r.first = part->panel; r.first < part->panels_end; r.first += r.n) {
        r.n = GB_MIN(part->panels_end - r.first, r.l.capacity);
        if (r.first > part->panel &&
            !gb_cpu_barrier(call)) { // until all threads are done with the panels and jobs of the last round
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
        if (packing->as == GB_PACKED_PAIRS) {
            call->k->enter_tiles();
        }
        take_jobs(&r);
        if (packing->as == GB_PACKED_PAIRS) {
            call->k->leave_tiles();
        }
    }
}

static void run_blocked(const struct gb_cpu_call * call, const struct gb_gemm * p, const struct gb_packing * packing) {
    if (!is_done_apart(p, call->nth)) {
        const struct part whole = whole_of(p, packing);
        run_part(call, p, packing, &whole);
        return;
    }
    const struct part part = part_of(call, p, packing);
    struct gb_cpu_call alone = *call; // a team of one
    alone.ith = 0;
    alone.nth = 1;
    alone.work_size = call->work_size / (size_t) call->nth / 64 * 64;
    alone.work = (char *) call->work + (size_t) call->ith * alone.work_size;
    if (part.column < part.columns_end) {
        run_part(&alone, p, packing, &part);
    }
}

// ---------------------------------------------------------------------------------------------------------- algorithms

const char * gb_blocked_bytes_declines(const struct gb_gemm * p) { return gb_bytes_decline(p); }

void gb_blocked_bytes_run(const struct gb_cpu_call * call, const struct gb_gemm * p) {
    const struct gb_packing packing = gb_packing_bytes(call->k, p);
    run_blocked(call, p, &packing);
}

// Declines unless weights are bfloat16 and floats may be rounded to bfloat16.
const char * gb_blocked_bf16_declines(const struct gb_gemm * p) {
    return p->w.type != GGML_TYPE_BF16                  ? "the weights are not bf16"
           : p->rows < GB_PAIRS_ROWS                    ? "there are few rows"
           : p->activations >= GB_ACTIVATIONS_TWO_BYTES ? "activations are not to be rounded"
           : p->x.type != GGML_TYPE_F32                 ? "the activations are not f32"
           : !gb_gemm_both_dense(p)                     ? "terms are not consecutive"
           : p->k % 2 != 0                              ? "the number of terms is odd"
                                                        : NULL;
}

// The reason, from the traits, why the processor multiplies pairs of bfloat16 too slowly. NULL: it
// is fast enough.
static const char * pairs_are_slow(const struct gb_cpu_traits * t, double than, const char * fixed,
    const char * measured) {
    return t->value[GB_TRAIT_BF16_DOTS] > than               ? NULL
           : t->source[GB_TRAIT_BF16_DOTS] == GB_TRAIT_FIXED ? fixed
                                                             : measured;
}

const char * gb_blocked_bf16_level_declines(const struct gb_gemm * p, const struct gb_kernels * kernels,
    const struct gb_cpu_traits * traits) {
    (void) p;
    if (!kernels->has_bf16_dots) {
        return "the level has no instruction for it";
    }
    const struct gb_cpu_traits * t = traits != NULL ? traits : gb_cpu_traits_of(kernels);
    return pairs_are_slow(t, GB_PAIRS_DOTS,
        "processors round products of bf16 differently (trait bf16_dots, fixed by GGML_CPU_REPRODUCIBLE)",
        "the processor multiplies pairs of bf16 no faster than f32 (trait bf16_dots)");
}

void gb_blocked_bf16_run(const struct gb_cpu_call * call, const struct gb_gemm * p) {
    const struct gb_packing packing = gb_packing_pairs(call->k, p);
    run_blocked(call, p, &packing);
}

const char * gb_unpacked_bf16_declines(const struct gb_gemm * p) {
    const char * why = gb_bytes_decline(p);
    return why != NULL                              ? why
           : p->activations == GB_ACTIVATIONS_BYTES ? "activations are to be bytes"
           : p->rows < GB_QUANTIZED_PAIRS_ROWS      ? "there are few rows"
           : p->k < GB_QUANTIZED_PAIRS_TERMS        ? "sums are short"
                                                    : NULL;
}

const char * gb_unpacked_bf16_level_declines(const struct gb_gemm * p, const struct gb_kernels * kernels,
    const struct gb_cpu_traits * traits) {
    (void) p;
    if (!kernels->bf16_tiles) {
        return "the level has no tile registers";
    }
    const struct gb_cpu_traits * t = traits != NULL ? traits : gb_cpu_traits_of(kernels);
    return pairs_are_slow(t, t->value[GB_TRAIT_BYTE_DOTS],
        "activations are bytes on every processor (trait bf16_dots, fixed by GGML_CPU_REPRODUCIBLE)",
        "the processor multiplies pairs of bf16 no faster than bytes (traits bf16_dots, byte_dots)");
}

void gb_unpacked_bf16_run(const struct gb_cpu_call * call, const struct gb_gemm * p) {
    const struct gb_packing packing = gb_packing_pairs(call->k, p);
    run_blocked(call, p, &packing);
}

void gb_blocked_f32_run(const struct gb_cpu_call * call, const struct gb_gemm * p) {
    const struct gb_packing packing = gb_packing_floats(call->k, p);
    run_blocked(call, p, &packing);
}
