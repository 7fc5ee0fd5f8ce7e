// columns.c - algorithm columns: packs the columns of some positions, then multiplies tiles.
//
// A band is some whole rows of the output. Its positions are numbered without gaps between rows, so
// that few columns of tiles are unused in small planes. The input is copied to a slab (slab.h). Then
// the inputs of one block of terms and one tile of positions are packed into a panel. The panel stays
// in the cache while all output channels read it. The results of later blocks of terms are added.
//
// The last positions of a band are dot products if they are few, because a tile would compute a
// whole vector of positions.
#include "cpu/ops/conv/algorithm.h"

enum {
    POSITIONS = 256, // of a band, at most; so longer rows are left to other algorithms
    SLAB_FLOATS = 1 << 20, // at most
    TERMS = 384, // of a block, at most
    VECTOR = 16, // floats that are copied at once, and an estimate of what a tile computes at once
    FEW = GB_ROWS_X_MAX, // last positions that are dot products, at most
    // When tiles are faster, or as fast:
    CHANNELS_MIN = 96, // fewer output channels of a group: packing takes too long
    TERMS_MANY = 4096, // more terms: reading the weights takes most of the time
    SHORT_ROW = 16, // longer rows, with stride 1: tiles have few unused columns
};

// Whole rows of the output per band: the number that leaves the fewest columns unused.
static int64_t rows_of(const struct gb_conv_job * j) {
    const int64_t width = j->axis[0].out, height = j->axis[1].out, channels = j->ic * j->axis[2].kernel;
    int64_t best = 1, least = INT64_MAX;
    for (int64_t rows = 1; rows <= GB_MIN(height, POSITIONS / width); rows++) {
        const int64_t n = rows * width, last = height % rows * width;
        const int64_t columns = height / rows * (n % VECTOR <= FEW / 2 ? n : gb_div_up(n, VECTOR) * VECTOR) +
                                gb_div_up(last, VECTOR) * VECTOR;
        if (columns <= least && gb_slab_floats(j, width, rows, channels, SLAB_FLOATS) >= 0) {
            best = rows;
            least = columns;
        }
    }
    return best;
}

static struct gb_conv_bands bands_of(const struct gb_conv_job * j) {
    const int64_t width = j->axis[0].out, rows = rows_of(j);
    const int64_t floats = gb_slab_floats(j, width, rows, j->ic * j->axis[2].kernel, SLAB_FLOATS);
    return (struct gb_conv_bands){ .columns = width,
        .rows = rows,
        .n_columns = 1,
        .n_rows = gb_div_up(j->axis[1].out, rows),
        .floats = floats < 0 ? -1 : floats + GB_CONV_SLACK };
}

const char * gb_conv_columns_cannot(const struct gb_conv_job * j) {
    if (j->axis[0].out > POSITIONS) {
        return "rows are too long";
    }
    if (gb_conv_terms(j) == 0 || gb_conv_positions(j) == 0) {
        return "there are no terms or no results";
    }
    return gb_slab_floats(j, j->axis[0].out, 1, j->ic * j->axis[2].kernel, SLAB_FLOATS) < 0
               ? "a padded copy of the input would be too large"
               : NULL;
}

const char * gb_conv_columns_declines(const struct gb_conv_job * j) {
    return j->oc < CHANNELS_MIN            ? "a group has few output channels"
           : gb_conv_terms(j) > TERMS_MANY ? "there are many terms"
           : j->axis[0].stride == 1 && j->axis[0].out > SHORT_ROW
               ? "rows are so long that tiles have few unused columns"
               : NULL;
}

struct sizes { // of a thread, in floats
    int64_t terms; // of a block; a number of terms
    int64_t offsets, weights, panel, slab;
};

static struct sizes sizes_of(const struct gb_conv_job * j, const struct gb_conv_bands * b) {
    const int64_t terms = gb_conv_terms(j), each = gb_div_up(terms, gb_div_up(terms, (int64_t) TERMS));
    return (struct sizes){
        .terms = each,
        .offsets = gb_conv_aligned(GB_CONV_FLOATS_OF_OFFSETS(terms)),
        .weights = gb_conv_aligned(j->oc * each),
        .panel = gb_conv_aligned(GB_GEMM_NR_MAX * each) + GB_CONV_SLACK,
        .slab = gb_conv_aligned(b->floats),
    };
}

static int64_t memory_floats(const struct sizes * s) { return s->offsets + s->weights + s->panel + s->slab; }

size_t gb_conv_columns_work_size(const struct gb_conv_job * j, int n_tasks) {
    const struct gb_conv_bands b = bands_of(j);
    const struct sizes s = sizes_of(j, &b);
    return gb_floats_size(memory_floats(&s), n_tasks);
}

struct columns { // the settings of a thread
    const struct gb_cpu_call * call;
    const struct gb_conv_job * j;
    int64_t terms; // of a block
    int64_t blocks, block; // number of blocks of output channels; channels of a block
    int64_t * offsets;
    float *weights, *panel, *slab;
};

static struct columns columns_of(const struct gb_cpu_call * call, const struct gb_conv_job * j,
    const struct gb_conv_bands * b) {
    const struct sizes s = sizes_of(j, b);
    float * p = gb_my_floats(call, memory_floats(&s));
    struct columns c = { .call = call, .j = j, .terms = s.terms, .block = gb_conv_block(call, j, b) };
    c.blocks = gb_div_up(j->oc, c.block);
    c.offsets = (int64_t *) (void *) p;
    c.weights = p + s.offsets;
    c.panel = c.weights + s.weights;
    c.slab = c.panel + s.panel;
    return c;
}

// A block of terms for a block of output channels.
struct part {
    const struct columns * c;
    const struct gb_conv_unit * u;
    int64_t k, n; // the first term, number of terms
    int64_t first, last; // output channels
    const float * a; // weights of the first channel, lda floats from one channel to the next
    int64_t lda;
};

// The weights of a part, in place or copied.
static void find_weights(struct part * p) {
    const struct gb_conv_job * j = p->c->j;
    const int64_t terms = gb_conv_terms(j);
    const size_t size = ggml_type_size(j->w_type);
    const char * w = j->w + (size_t) ((p->u->group * j->oc + p->first) * terms + p->k) * size;
    if (gb_are_floats(j->w_type, sizeof(float), w, 2)) {
        p->a = (const float *) (const void *) w;
        p->lda = terms;
        return;
    }
    for (int64_t i = 0; i < p->last - p->first; i++) {
        gb_load(p->c->call->k, j->w_type, p->n, p->c->weights + i * p->n, w + (size_t) (i * terms) * size, size);
    }
    p->a = p->c->weights;
    p->lda = p->n;
}

// Consecutive positions of a row of the slab, as columns of a panel.
struct segment {
    int64_t from; // floats from the first position of the slab
    int64_t at, n; // the first column; number of positions
};

// Packs the segments for each term. A copy of VECTOR floats may exceed its segment. The next
// segment, or the next term, overwrites the excess, except in unused columns, whose values do not
// matter, and after the last term, where the panel has slack.
static void pack_segments(const struct part * p, const struct segment * segments, int n) {
    const int64_t * offsets = p->c->offsets + p->k;
    const int64_t width = p->c->call->k->gemm_nr;
    float * y = p->c->panel;
    for (int64_t t = 0; t < p->n; t++, y += width) {
        const float * x = p->c->slab + offsets[t];
        for (int i = 0; i < n; i++) {
            const float * from = x + segments[i].from;
            float * to = y + segments[i].at;
            for (int64_t left = segments[i].n; left > 0; left -= VECTOR, from += VECTOR, to += VECTOR) {
                memcpy(to, from, VECTOR * sizeof(*to));
            }
        }
    }
}

// Packs n positions from position f of the band on.
static void pack(const struct part * p, int64_t f, int64_t n) {
    const struct gb_slab * s = &p->u->slab;
    struct segment segments[GB_GEMM_NR_MAX];
    int64_t row = f / s->n[0], column = f % s->n[0];
    int count = 0;
    if (n < p->c->call->k->gemm_nr) { // scratch memory may hold denormal numbers, which are slow
        memset(p->c->panel, 0, (size_t) (p->n * p->c->call->k->gemm_nr) * sizeof(float));
    }
    for (int64_t at = 0, run; at < n; at += run) {
        run = GB_MIN(n - at, s->n[0] - column);
        segments[count++] = (struct segment){ row * s->pitch + column, at, run };
        column = 0;
        row++;
    }
    pack_segments(p, segments, count);
}

static void multiply(const struct part * p, int64_t f, int64_t n) {
    const struct columns * c = p->c;
    const int64_t channels = p->last - p->first, mr = gb_div_up(channels, gb_div_up(channels, c->call->k->gemm_mr));
    struct gb_tile tile = {
        .k = p->n, .lda = p->lda, .b = c->panel, .ldc = c->j->y_channel, .nr = (int) n, .accumulate = p->k > 0
    };
    for (int64_t o = 0; o < channels; o += mr) {
        tile.a = p->a + o * p->lda;
        tile.c = gb_conv_y(c->j, p->u, p->first + o) + f;
        tile.mr = (int) GB_MIN(mr, channels - o);
        c->call->k->gemm_tile_f32(&tile);
    }
}

// Computes n positions as dot products.
static void multiply_few(const struct part * p, int64_t f, int64_t n) {
    const struct columns * c = p->c;
    const struct gb_slab * s = &p->u->slab;
    float part[FEW * GB_ROWS_W];
    for (int64_t i = 0; i < n; i++) {
        const float * x = c->slab + (f + i) / s->n[0] * s->pitch + (f + i) % s->n[0];
        for (int64_t t = 0; t < p->n; t++) {
            c->panel[i * p->n + t] = x[c->offsets[p->k + t]];
        }
    }
    for (int64_t o = p->first; o < p->last; o += GB_ROWS_W) {
        const int64_t nw = GB_MIN(p->last - o, (int64_t) GB_ROWS_W);
        c->call->k->rows_columns_f32(&(struct gb_rows_columns){ .k = p->n,
            .nw = (int) nw,
            .nx = (int) n,
            .w = p->a + (o - p->first) * p->lda,
            .nb_w = (size_t) p->lda * sizeof(float),
            .x = c->panel,
            .ldx = (size_t) p->n,
            .y = part,
            .ldy = GB_ROWS_W });
        for (int64_t i = 0; i < nw * n; i++) {
            float * y = gb_conv_y(c->j, p->u, o + i / n) + f + i % n;
            const float sum = part[i % n * GB_ROWS_W + i / n];
            *y = p->k > 0 ? *y + sum : sum;
        }
    }
}

// A band for a block of output channels. False: the run is over.
static bool run_unit(const struct columns * c, struct gb_conv_unit * u, bool filled) {
    const struct gb_conv_job * j = c->j;
    gb_slab_layout(j, &u->slab);
    if (!filled) {
        gb_slab_offsets(j, &u->slab, u->slab.channels, c->offsets);
        if (!gb_slab_fill(c->call, j, &u->slab, false, u->batch, u->group * j->ic, j->ic, c->slab)) {
            return false;
        }
    }
    const int64_t terms = gb_conv_terms(j), positions = u->slab.n[0] * u->slab.n[1], nr = c->call->k->gemm_nr;
    const int64_t left = positions % (nr / 2), few = left <= gb_conv_few(c->call->k) ? left : 0;
    struct part p = { .c = c, .u = u, .first = u->block * c->block };
    p.last = GB_MIN(p.first + c->block, j->oc);
    for (p.k = 0; p.k < terms; p.k += p.n) {
        p.n = GB_MIN(c->terms, terms - p.k);
        find_weights(&p);
        for (int64_t f = 0; f < positions - few; f += nr) {
            const int64_t n = GB_MIN(nr, positions - few - f);
            pack(&p, f, n);
            multiply(&p, f, n);
            if (gb_cpu_stopped(c->call, gb_conv_work((p.last - p.first) * n * p.n))) {
                return false;
            }
        }
        if (few > 0) {
            multiply_few(&p, positions - few, few);
        }
    }
    gb_conv_finish(c->call, j, u, p.first, p.last - p.first);
    return true;
}

void gb_conv_columns_run(const struct gb_cpu_call * call, const struct gb_conv_job * j) {
    const struct gb_conv_bands b = bands_of(j);
    const struct columns c = columns_of(call, j, &b);
    struct gb_cpu_taking taking = gb_cpu_taking_of(call, gb_conv_n_units(j, &b, c.blocks), 1);
    int64_t first, last, part, filled = -1;
    while (gb_cpu_take(&taking, &first, &last, &part)) {
        for (int64_t i = first; i < last; i++) {
            struct gb_conv_unit u = gb_conv_unit_at(j, &b, c.blocks, i);
            if (!run_unit(&c, &u, filled == i / c.blocks)) {
                return;
            }
            filled = i / c.blocks;
        }
    }
}
