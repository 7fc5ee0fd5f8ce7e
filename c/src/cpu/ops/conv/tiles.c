// tiles.c - algorithms tiles and in_place: tiles of output channels by positions, in registers.
//
// tiles reads a slab (slab.h). Positions are numbered with the pitch of the slab, so a tile can
// begin in one row and end in the next. Results between the rows are left out when the tile is
// stored.
//
// in_place reads the tensor itself, whose channels are the terms. Only the last positions of a
// plane are copied, because kernels read whole vectors.
#include "cpu/ops/conv/algorithm.h"

enum {
    SLAB_FLOATS = 64 << 10, // approximately, so that it stays in the second-level cache
    BUFFER = GB_GEMM_MR_MAX * GB_GEMM_NR_MAX, // floats of a tile
};

struct memory { // of a thread
    int64_t * offsets;
    int64_t * last_offsets; // in_place: offsets of the copied positions
    float *weights, *buffer, *slab;
};

struct tiles { // the settings of a thread
    const struct gb_cpu_call * call;
    const struct gb_conv_job * j;
    struct memory m;
    int64_t terms;
    int64_t blocks, block; // number of blocks of output channels; channels of a block
};

static int64_t weight_floats(const struct gb_conv_job * j) {
    return gb_conv_aligned(GB_GEMM_MR_MAX * gb_conv_terms(j));
}

static int64_t memory_floats(const struct gb_conv_job * j, int64_t slab) {
    return 2 * gb_conv_aligned(GB_CONV_FLOATS_OF_OFFSETS(gb_conv_terms(j))) + weight_floats(j) + BUFFER +
           gb_conv_aligned(slab);
}

static struct memory memory_of(const struct gb_cpu_call * call, const struct gb_conv_job * j, int64_t slab) {
    struct memory m;
    float * p = gb_my_floats(call, memory_floats(j, slab));
    m.offsets = (int64_t *) (void *) p;
    p += gb_conv_aligned(GB_CONV_FLOATS_OF_OFFSETS(gb_conv_terms(j)));
    m.last_offsets = (int64_t *) (void *) p;
    p += gb_conv_aligned(GB_CONV_FLOATS_OF_OFFSETS(gb_conv_terms(j)));
    m.weights = p;
    m.buffer = p + weight_floats(j);
    m.slab = m.buffer + BUFFER;
    return m;
}

static struct tiles tiles_of(const struct gb_cpu_call * call, const struct gb_conv_job * j,
    const struct gb_conv_bands * b, int64_t slab) {
    const int64_t block = gb_conv_block(call, j, b);
    return (struct tiles){ call, j, memory_of(call, j, slab), gb_conv_terms(j), gb_div_up(j->oc, block), block };
}

// Output channels of a tile: as equal as possible.
static int64_t channels_of_tile(const struct tiles * t, int64_t n) {
    return gb_div_up(n, gb_div_up(n, t->call->k->gemm_mr));
}

static struct gb_conv_tile tile_of(const struct tiles * t, const float * a, const float * x, int64_t mr, int64_t nr) {
    return (struct gb_conv_tile){
        .k = t->terms, .a = a, .lda = t->terms, .x = x, .offsets = t->m.offsets, .mr = (int) mr, .nr = (int) nr
    };
}

// -------------------------------------------------------------------------------------------------------------- tiles

const char * gb_conv_tiles_cannot(const struct gb_conv_job * j) {
    return gb_conv_bands_of(j, SLAB_FLOATS).floats < 0 ? "a padded copy of the input would be too large" : NULL;
}

size_t gb_conv_tiles_work_size(const struct gb_conv_job * j, int n_tasks) {
    return gb_floats_size(memory_floats(j, gb_conv_bands_of(j, SLAB_FLOATS).floats), n_tasks);
}

// A row of tiles: output channels [o, o + mr) at all positions of the band.
static void tile_row(const struct tiles * t, const struct gb_conv_unit * u, int64_t o, int64_t mr) {
    const struct gb_slab * s = &u->slab;
    const int64_t span = (s->n[1] - 1) * s->pitch + s->n[0], nr = t->call->k->gemm_nr;
    const float * a = gb_conv_weights(t->call, t->j, u->group, o, mr, t->m.weights);
    float * y = gb_conv_y(t->j, u, o);
    for (int64_t f = 0; f < span; f += nr) {
        struct gb_conv_tile tile = tile_of(t, a, t->m.slab + f, mr, GB_MIN(nr, span - f));
        const int64_t row = f / s->pitch, column = f % s->pitch;
        if (column + tile.nr <= s->n[0]) {
            tile.c = y + row * t->j->axis[0].out + column;
            tile.ldc = t->j->y_channel;
            t->call->k->conv_tile_f32(&tile);
            continue;
        }
        tile.c = t->m.buffer;
        tile.ldc = GB_GEMM_NR_MAX;
        t->call->k->conv_tile_f32(&tile);
        for (int64_t i = 0; i < mr; i++) {
            gb_conv_store(t->j, s, f, tile.nr, t->m.buffer + i * GB_GEMM_NR_MAX, y + i * t->j->y_channel);
        }
    }
}

static bool tile_unit(const struct tiles * t, struct gb_conv_unit * u, int64_t * filled, int64_t i) {
    const struct gb_conv_job * j = t->j;
    gb_slab_layout(j, &u->slab);
    if (*filled != i / t->blocks) { // otherwise an earlier block of this band has filled the slab
        gb_slab_offsets(j, &u->slab, u->slab.channels, t->m.offsets);
        if (!gb_slab_fill(t->call, j, &u->slab, false, u->batch, u->group * j->ic, j->ic, t->m.slab)) {
            return false;
        }
        *filled = i / t->blocks;
    }
    const int64_t first = u->block * t->block, n = GB_MIN(t->block, j->oc - first), mr = channels_of_tile(t, n);
    for (int64_t o = first; o < first + n; o += mr) {
        const int64_t channels = GB_MIN(mr, first + n - o);
        tile_row(t, u, o, channels);
        if (gb_cpu_stopped(t->call, gb_conv_work(channels * u->slab.n[0] * u->slab.n[1] * t->terms))) {
            return false;
        }
        gb_conv_finish(t->call, j, u, o, channels);
    }
    return true;
}

void gb_conv_tiles_run(const struct gb_cpu_call * call, const struct gb_conv_job * j) {
    const struct gb_conv_bands b = gb_conv_bands_of(j, SLAB_FLOATS);
    const struct tiles t = tiles_of(call, j, &b, b.floats);
    struct gb_cpu_taking taking = gb_cpu_taking_of(call, gb_conv_n_units(j, &b, t.blocks), 1);
    int64_t first, last, part, filled = -1;
    while (gb_cpu_take(&taking, &first, &last, &part)) {
        for (int64_t i = first; i < last; i++) {
            struct gb_conv_unit u = gb_conv_unit_at(j, &b, t.blocks, i);
            if (!tile_unit(&t, &u, &filled, i)) {
                return;
            }
        }
    }
}

// ------------------------------------------------------------------------------------------------------------ in_place

static bool is_unit(const struct gb_conv_axis * a) { return a->kernel == 1 && a->stride == 1 && a->pad == 0; }

const char * gb_conv_in_place_cannot(const struct gb_conv_job * j) {
    const size_t row = sizeof(float) * (size_t) j->axis[0].in, plane = row * (size_t) j->axis[1].in;
    if (!is_unit(&j->axis[0]) || !is_unit(&j->axis[1]) || !is_unit(&j->axis[2])) {
        return "the kernel has more than one element, or there are strides or padding";
    }
    if (j->x_type != GGML_TYPE_F32 || j->rounds) {
        return "the data is converted";
    }
    return j->x_nb[0] != sizeof(float) || (j->axis[1].in > 1 && j->x_nb[1] != row) ||
                   (j->axis[2].in > 1 && j->x_nb[2] != plane) || j->x_channel % sizeof(float) != 0
               ? "the positions of a channel are not contiguous"
               : NULL;
}

const char * gb_conv_in_place_declines(const struct gb_conv_job * j) {
    return j->oc <= 2 ? "a group has few output channels" : NULL;
}

static int64_t in_place_floats(const struct gb_conv_job * j) { return j->ic * GB_GEMM_NR_MAX; }

size_t gb_conv_in_place_work_size(const struct gb_conv_job * j, int n_tasks) {
    return gb_floats_size(memory_floats(j, in_place_floats(j)), n_tasks);
}

// Bands are ranges of positions, with the plane as one row.
static struct gb_conv_bands stretches_of(const struct gb_conv_job * j) {
    const int64_t n = gb_conv_positions(j), nr = GB_GEMM_NR_MAX;
    struct gb_conv_bands b = { .rows = 1, .n_rows = 1 };
    b.columns = GB_MIN(n, GB_MAX(SLAB_FLOATS / GB_MAX(j->ic, 1) / nr * nr, 2 * nr));
    b.n_columns = gb_div_up(n, b.columns);
    return b;
}

// The last n positions of output channels [o, o + m), a few: one dot product each, from the copied columns. A tile
// would compute a whole vector of positions.
static void few_positions(const struct tiles * t, const float * a, int64_t m, int64_t n, float * y) {
    float part[GB_ROWS_X_MAX * GB_ROWS_W];
    for (int64_t i = 0; i < m; i += GB_ROWS_W) {
        const int64_t nw = GB_MIN(m - i, (int64_t) GB_ROWS_W);
        t->call->k->rows_columns_f32(&(struct gb_rows_columns){ .k = t->terms,
            .nw = (int) nw,
            .nx = (int) n,
            .w = a + i * t->terms,
            .nb_w = (size_t) t->terms * sizeof(float),
            .x = t->m.slab,
            .ldx = (size_t) t->terms,
            .y = part,
            .ldy = GB_ROWS_W });
        for (int64_t c = 0; c < nw; c++) {
            for (int64_t p = 0; p < n; p++) {
                y[(i + c) * t->j->y_channel + p] = part[p * GB_ROWS_W + c];
            }
        }
    }
}

// How the positions of a stretch are computed: full tiles, then a copied part of a tile or a few dot products.
struct stretch {
    int64_t n, whole, few; // positions: all, of tiles that read in place, of dot products
};

static struct stretch stretch_of(const struct tiles * t, int64_t n) {
    const int64_t nr = t->call->k->gemm_nr, half = nr / 2, whole = n / half * half;
    if (n - whole <= gb_conv_few(t->call->k)) {
        return (struct stretch){ n, whole, n - whole };
    }
    return (struct stretch){ n, n / nr * nr, 0 };
}

// Copies what kernels cannot read in place, because they read whole vectors.
static void copy_last(const struct tiles * t, const struct stretch * s, const float * x) {
    const int64_t n = s->n - s->whole;
    for (int64_t c = 0; c < t->j->ic; c++) {
        const float * from = x + t->m.offsets[c] + s->whole;
        if (s->few == 0) {
            memcpy(t->m.slab + c * GB_GEMM_NR_MAX, from, (size_t) n * sizeof(*x));
        }
        for (int64_t i = 0; i < s->few; i++) {
            t->m.slab[i * t->terms + c] = from[i];
        }
    }
}

static bool in_place_unit(const struct tiles * t, const struct gb_conv_unit * u, const float * x, int64_t * copied,
    int64_t i) {
    const struct gb_conv_job * j = t->j;
    const struct stretch s = stretch_of(t, u->slab.n[0]);
    const int64_t nr = t->call->k->gemm_nr, tiled = s.n - s.few;
    const int64_t first = u->block * t->block, channels = GB_MIN(t->block, j->oc - first);
    const int64_t mr = channels_of_tile(t, channels);
    if (s.whole < s.n && *copied != i / t->blocks) {
        copy_last(t, &s, x);
        *copied = i / t->blocks;
    }
    for (int64_t o = first; o < first + channels; o += mr) {
        const int64_t m = GB_MIN(mr, first + channels - o);
        const float * a = gb_conv_weights(t->call, j, u->group, o, m, t->m.weights);
        for (int64_t f = 0; f < tiled; f += nr) {
            struct gb_conv_tile tile = tile_of(t, a, x + f, m, GB_MIN(nr, tiled - f));
            if (f >= s.whole) {
                tile.x = t->m.slab;
                tile.offsets = t->m.last_offsets;
            }
            tile.c = gb_conv_y(j, u, o) + f;
            tile.ldc = j->y_channel;
            t->call->k->conv_tile_f32(&tile);
        }
        if (s.few > 0) {
            few_positions(t, a, m, s.few, gb_conv_y(j, u, o) + tiled);
        }
        if (gb_cpu_stopped(t->call, gb_conv_work(m * s.n * t->terms))) {
            return false;
        }
        gb_conv_finish(t->call, j, u, o, m);
    }
    return true;
}

void gb_conv_in_place_run(const struct gb_cpu_call * call, const struct gb_conv_job * job) {
    struct gb_conv_job j = *job;
    const int64_t n = gb_conv_positions(&j), spacing = (int64_t) (j.x_channel / sizeof(float));
    j.axis[0].in = j.axis[0].out = n;
    j.axis[1].in = j.axis[1].out = j.axis[2].in = j.axis[2].out = 1;
    const struct gb_conv_bands b = stretches_of(&j);
    const struct tiles t = tiles_of(call, &j, &b, in_place_floats(&j));
    for (int64_t c = 0; c < j.ic; c++) {
        t.m.offsets[c] = c * spacing;
        t.m.last_offsets[c] = c * GB_GEMM_NR_MAX;
    }
    struct gb_cpu_taking taking = gb_cpu_taking_of(call, gb_conv_n_units(&j, &b, t.blocks), 1);
    int64_t first, last, part, copied = -1;
    while (gb_cpu_take(&taking, &first, &last, &part)) {
        for (int64_t i = first; i < last; i++) {
            const struct gb_conv_unit u = gb_conv_unit_at(&j, &b, t.blocks, i);
            const float * x = (const float *) (const void *) (j.x + (size_t) u.batch * j.x_batch +
                                                              (size_t) (u.group * j.ic) * j.x_channel) +
                              u.slab.first[0];
            if (!in_place_unit(&t, &u, x, &copied, i)) {
                return;
            }
        }
    }
}
