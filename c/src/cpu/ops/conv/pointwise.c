// pointwise.c - algorithm pointwise: convolutions with 1 x 1 kernels, as products.
//
// A stretch of positions of all input channels is packed into panels of the tile of products, which stay in the
// second-level cache while all output channels read them. Tiles that read the tensor itself would be slower: its
// channels are a plane apart, which is too far for prefetchers, and often falls into few sets of a cache.
//
// The last positions of a stretch are dot products if they are few, because a tile would compute a whole vector of
// positions.
#include "cpu/ops/conv/algorithm.h"

enum {
    PANEL_FLOATS = 64 << 10, // of a stretch, about
    STRETCH = 512, // positions, at most: results of a row of tiles stay in the first-level cache until the epilogue
};

static bool is_unit(const struct gb_conv_axis * a) { return a->kernel == 1 && a->stride == 1 && a->pad == 0; }

const char * gb_conv_pointwise_cannot(const struct gb_conv_job * j) {
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

const char * gb_conv_pointwise_declines(const struct gb_conv_job * j) {
    return j->oc <= 2 ? "a group has few output channels" : NULL;
}

// Bands are stretches of positions, with the plane as one row.
static struct gb_conv_bands stretches_of(const struct gb_conv_job * j) {
    const int64_t n = gb_conv_positions(j), nr = GB_GEMM_NR_MAX;
    const int64_t most = GB_MIN(PANEL_FLOATS / GB_MAX(j->ic, 1) / nr * nr, (int64_t) STRETCH);
    struct gb_conv_bands b = { .columns = GB_MIN(n, GB_MAX(most, 2 * nr)), .rows = 1, .n_rows = 1 };
    b.n_columns = gb_div_up(n, b.columns);
    return b;
}

static int64_t weight_floats(const struct gb_conv_job * j) { return gb_conv_aligned(GB_GEMM_MR_MAX * j->ic); }

static int64_t memory_floats(const struct gb_conv_job * j) {
    const int64_t columns = gb_div_up(stretches_of(j).columns, (int64_t) GB_GEMM_NR_MAX) * GB_GEMM_NR_MAX;
    return weight_floats(j) + columns * j->ic + GB_CONV_SLACK;
}

size_t gb_conv_pointwise_work_size(const struct gb_conv_job * j, int n_tasks) {
    return gb_floats_size(memory_floats(j), n_tasks);
}

struct pointwise { // the settings of a thread
    const struct gb_cpu_call * call;
    const struct gb_conv_job * j;
    int64_t blocks, block; // number of blocks of output channels; channels of a block
    float *weights, *panels;
};

// How the positions of a stretch are computed: tiles, then a few dot products.
struct stretch {
    int64_t n, tiled, few;
};

static struct stretch stretch_of(const struct pointwise * p, int64_t n) {
    const int64_t left = n % (p->call->k->gemm_nr / 2), few = left <= gb_conv_few(p->call->k) ? left : 0;
    return (struct stretch){ n, n - few, few };
}

// Packs a stretch into panels of tiles, then a column for each position of a dot product.
static void pack(const struct pointwise * p, const struct stretch * s, const float * x) {
    const int64_t nr = p->call->k->gemm_nr, terms = p->j->ic, spacing = (int64_t) (p->j->x_channel / sizeof(float));
    float * y = p->panels;
    for (int64_t f = 0; f < s->tiled; f += nr, y += nr * terms) {
        p->call->k->pack_terms_f32(terms, (int) GB_MIN(nr, s->tiled - f), (int) nr, y, x + f, spacing);
    }
    for (int64_t i = s->tiled; i < s->n; i++, y += terms) {
        for (int64_t c = 0; c < terms; c++) {
            y[c] = x[c * spacing + i];
        }
    }
}

// The dot products of output channels [o, o + m) with the columns at x.
static void multiply_few(const struct pointwise * p, const float * a, int64_t m, int64_t few, const float * x,
    float * y) {
    const int64_t terms = p->j->ic;
    float part[GB_ROWS_X_MAX * GB_ROWS_W];
    for (int64_t i = 0; i < m; i += GB_ROWS_W) {
        const int64_t nw = GB_MIN(m - i, (int64_t) GB_ROWS_W);
        p->call->k->rows_columns_f32(&(struct gb_rows_columns){ .k = terms,
            .nw = (int) nw,
            .nx = (int) few,
            .w = a + i * terms,
            .nb_w = (size_t) terms * sizeof(float),
            .x = x,
            .ldx = (size_t) terms,
            .y = part,
            .ldy = GB_ROWS_W });
        for (int64_t c = 0; c < nw; c++) {
            for (int64_t at = 0; at < few; at++) {
                y[(i + c) * p->j->y_channel + at] = part[at * GB_ROWS_W + c];
            }
        }
    }
}

// Output channels [o, o + m) at all positions of a packed stretch, from y on.
static void multiply(const struct pointwise * p, const struct stretch * s, const float * a, int64_t m, float * y) {
    const int64_t nr = p->call->k->gemm_nr, terms = p->j->ic;
    struct gb_tile tile = {
        .k = terms, .a = a, .lda = terms, .b = p->panels, .c = y, .ldc = p->j->y_channel, .mr = (int) m
    };
    for (int64_t f = 0; f < s->tiled; f += nr, tile.b += nr * terms, tile.c += nr) {
        tile.nr = (int) GB_MIN(nr, s->tiled - f);
        p->call->k->gemm_tile_f32(&tile);
    }
    if (s->few > 0) {
        multiply_few(p, a, m, s->few, tile.b, y + s->tiled);
    }
}

// A stretch for a block of output channels. False: the run is over.
static bool run_unit(const struct pointwise * p, const struct gb_conv_unit * u, const float * x, bool packed) {
    const struct gb_conv_job * j = p->j;
    const struct stretch s = stretch_of(p, u->slab.n[0]);
    const int64_t first = u->block * p->block, last = GB_MIN(first + p->block, j->oc);
    const int64_t mr = gb_conv_channels_of_tile(p->call->k, last - first);
    if (!packed) {
        pack(p, &s, x);
        if (gb_cpu_stopped(p->call, s.n * j->ic / 4)) {
            return false;
        }
    }
    for (int64_t o = first; o < last; o += mr) {
        const int64_t m = GB_MIN(mr, last - o);
        multiply(p, &s, gb_conv_weights(p->call, j, u->group, o, m, p->weights), m, gb_conv_y(j, u, o));
        if (gb_cpu_stopped(p->call, gb_conv_work(m * s.n * j->ic))) {
            return false;
        }
        gb_conv_finish(p->call, j, u, o, m);
    }
    return true;
}

void gb_conv_pointwise_run(const struct gb_cpu_call * call, const struct gb_conv_job * job) {
    struct gb_conv_job j = *job;
    j.axis[0].in = j.axis[0].out = gb_conv_positions(&j);
    j.axis[1].in = j.axis[1].out = j.axis[2].in = j.axis[2].out = 1;
    const struct gb_conv_bands b = stretches_of(&j);
    struct pointwise p = { .call = call, .j = &j, .block = gb_conv_block(call, &j, &b) };
    p.blocks = gb_div_up(j.oc, p.block);
    p.weights = gb_my_floats(call, memory_floats(&j));
    p.panels = p.weights + weight_floats(&j);
    struct gb_cpu_taking taking = gb_cpu_taking_of(call, gb_conv_n_units(&j, &b, p.blocks), 1);
    int64_t first, last, part, packed = -1;
    while (gb_cpu_take(&taking, &first, &last, &part)) {
        for (int64_t i = first; i < last; i++) {
            const struct gb_conv_unit u = gb_conv_unit_at(&j, &b, p.blocks, i);
            const char * image = j.x + (size_t) u.batch * j.x_batch + (size_t) (u.group * j.ic) * j.x_channel;
            if (!run_unit(&p, &u, (const float *) (const void *) image + u.slab.first[0], packed == i / p.blocks)) {
                return;
            }
            packed = i / p.blocks;
        }
    }
}
