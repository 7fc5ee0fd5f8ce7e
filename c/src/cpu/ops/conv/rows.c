// rows.c - algorithm rows: one output channel at a time, for groups with few output channels
// (depthwise convolutions).
//
// Bands are small, so that a slab stays in the first-level cache while all kernel elements read it.
// Rows that are much shorter than a vector are computed as one, including the gaps of the slab
// between them.
#include "cpu/ops/conv/algorithm.h"

enum {
    SLAB_FLOATS = 8 << 10, // about
    SHORT_ROW = 8, // positions
    CHANNELS_MAX = 2, // output channels of a group, above which tiles are faster
};

const char * gb_conv_rows_cannot(const struct gb_conv_job * j) {
    return gb_conv_bands_of(j, SLAB_FLOATS).floats < 0 ? "a padded copy of the input would be too large" : NULL;
}

const char * gb_conv_rows_declines(const struct gb_conv_job * j) {
    return j->oc > CHANNELS_MAX ? "a group has several output channels" : NULL;
}

static int64_t memory_floats(const struct gb_conv_job * j, const struct gb_conv_bands * b) {
    return gb_conv_aligned(GB_CONV_FLOATS_OF_OFFSETS(gb_conv_terms(j))) + gb_conv_aligned(gb_conv_terms(j)) +
           2 * gb_conv_aligned(b->floats); // the slab, and short rows of results
}

size_t gb_conv_rows_work_size(const struct gb_conv_job * j, int n_tasks) {
    const struct gb_conv_bands b = gb_conv_bands_of(j, SLAB_FLOATS);
    return gb_floats_size(memory_floats(j, &b), n_tasks);
}

// The side of a square kernel whose lines are one row of the slab apart. 0 for other kernels.
static int square_side(const struct gb_conv_job * j) {
    const struct gb_conv_axis *w = &j->axis[0], *h = &j->axis[1];
    return j->ic == 1 && j->axis[2].kernel == 1 && w->kernel == h->kernel && h->stride == 1 && h->dilation == 1
               ? (int) GB_MIN(w->kernel, 64)
               : 0;
}

// before: the slab of the thread's previous unit, with no channels at first.
static bool rows_unit(const struct gb_cpu_call * call, const struct gb_conv_job * j, const struct gb_conv_bands * b,
    struct gb_conv_unit * u, struct gb_slab * before) {
    float * p = gb_my_floats(call, memory_floats(j, b));
    int64_t * offsets = (int64_t *) (void *) p;
    float * weights = p + gb_conv_aligned(GB_CONV_FLOATS_OF_OFFSETS(gb_conv_terms(j)));
    float * slab = weights + gb_conv_aligned(gb_conv_terms(j));
    struct gb_slab * s = &u->slab;
    const bool again = gb_slab_is_like(s, before);
    if (again) {
        *s = *before;
    } else {
        gb_slab_layout(j, s);
        gb_slab_offsets(j, s, s->channels, offsets);
        *before = *s;
    }
    if (!gb_slab_fill(call, j, s, again, u->batch, u->group * j->ic, j->ic, slab)) {
        return false;
    }
    struct gb_conv_rows rows = { .k = gb_conv_terms(j),
        .x = slab,
        .offsets = offsets,
        .pitch = s->pitch,
        .ldy = j->axis[0].out,
        .rows = s->n[1],
        .n = s->n[0],
        .square = square_side(j) };
    const bool are_short = s->n[0] <= SHORT_ROW && s->n[1] > 1;
    if (are_short) {
        rows.rows = 1;
        rows.n = (s->n[1] - 1) * s->pitch + s->n[0];
    }
    for (int64_t o = 0; o < j->oc; o++) {
        rows.w = gb_conv_weights(call, j, u->group, o, 1, weights);
        rows.y = are_short ? slab + gb_conv_aligned(b->floats) : gb_conv_y(j, u, o);
        call->k->conv_rows_f32(&rows);
        if (are_short) {
            gb_conv_store(j, s, 0, rows.n, rows.y, gb_conv_y(j, u, o));
        }
        if (gb_cpu_stopped(call, gb_conv_work(s->n[0] * s->n[1] * rows.k))) {
            return false;
        }
        gb_conv_finish(call, j, u, o, 1);
    }
    return true;
}

void gb_conv_rows_run(const struct gb_cpu_call * call, const struct gb_conv_job * j) {
    const struct gb_conv_bands b = gb_conv_bands_of(j, SLAB_FLOATS);
    struct gb_cpu_taking taking = gb_cpu_taking_of(call, gb_conv_n_units(j, &b, 1), 1);
    const int64_t bands = b.n_rows * b.n_columns * j->axis[2].out;
    struct gb_slab before = { .channels = 0 };
    struct gb_conv_unit u = { 0 };
    int64_t first, last, part;
    while (gb_cpu_take(&taking, &first, &last, &part)) {
        for (int64_t i = first; i < last; i++) {
            if (bands == 1 && i > first) { // the next channel; divisions are slow for small planes
                u.batch += u.group + 1 == j->groups;
                u.group = u.group + 1 == j->groups ? 0 : u.group + 1;
            } else {
                u = gb_conv_unit_at(j, &b, 1, i);
            }
            if (!rows_unit(call, j, &b, &u, &before)) {
                return;
            }
        }
    }
}
