// tiles.c - algorithm tiles: tiles of output channels by positions, in registers.
//
// Tiles read a slab (slab.h). Positions are numbered with the pitch of the slab, so a tile can begin in one row and end
// in the next. Results between the rows are left out when the tile is stored.
#include "cpu/ops/conv/algorithm.h"

enum {
    SLAB_FLOATS = 64 << 10, // approximately, so that it stays in the second-level cache
    BUFFER = GB_GEMM_MR_MAX * GB_GEMM_NR_MAX, // floats of a tile
};

struct memory { // of a thread
    int64_t * offsets;
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
    return gb_conv_aligned(GB_CONV_FLOATS_OF_OFFSETS(gb_conv_terms(j))) + weight_floats(j) + BUFFER +
           gb_conv_aligned(slab);
}

static struct memory memory_of(const struct gb_cpu_call * call, const struct gb_conv_job * j, int64_t slab) {
    struct memory m;
    float * p = gb_my_floats(call, memory_floats(j, slab));
    m.offsets = (int64_t *) (void *) p;
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

static struct gb_conv_tile tile_of(const struct tiles * t, const float * a, const float * x, int64_t mr, int64_t nr) {
    return (struct gb_conv_tile){
        .k = t->terms, .a = a, .lda = t->terms, .x = x, .offsets = t->m.offsets, .mr = (int) mr, .nr = (int) nr
    };
}

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
    const int64_t first = u->block * t->block, n = GB_MIN(t->block, j->oc - first),
                  mr = gb_conv_channels_of_tile(t->call->k, n);
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
