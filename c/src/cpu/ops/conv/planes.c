// planes.c - algorithm planes: depthwise convolutions with a square kernel and stride 1 or 2, read from the input where
// it lies.
//
// The kernel (conv_plane_f32) leaves out what lies outside of the input, so nothing is copied. A unit of work is some
// rows of the output of one channel.
#include "cpu/ops/conv/algorithm.h"

enum {
    POSITIONS = 8192, // of a unit, about
    CHANNELS_MAX = 2, // output channels of a group
    WIDTH_MAX = 64, // columns of the output, above which rows are faster with stride 1
};

const char * gb_conv_planes_cannot(const struct gb_conv_job * j) {
    const struct gb_conv_axis *w = &j->axis[0], *h = &j->axis[1], *d = &j->axis[2];
    if (j->ic != 1 || w->kernel != h->kernel || (w->kernel != 3 && w->kernel != 5 && w->kernel != 7) ||
        d->kernel != 1 || d->in != 1 || d->out != 1 || d->pad != 0) {
        return "the kernel is no square of side 3, 5 or 7 on one channel";
    }
    if (w->stride != h->stride || w->stride > 2 || w->dilation != 1 || h->dilation != 1) {
        return "there are dilations, or strides that are not 1 or 2 along both axes";
    }
    if (j->x_type != GGML_TYPE_F32 || j->rounds) {
        return "the data is converted";
    }
    return j->x_nb[0] != sizeof(float) || j->x_nb[1] % sizeof(float) != 0 || j->x_channel % sizeof(float) != 0 ||
                   j->x_batch % sizeof(float) != 0
               ? "rows do not consist of consecutive floats"
               : NULL;
}

const char * gb_conv_planes_declines(const struct gb_conv_job * j) {
    return j->oc > CHANNELS_MAX                                   ? "a group has several output channels"
           : j->axis[0].stride == 1 && j->axis[0].out > WIDTH_MAX ? "rows are long"
                                                                  : NULL;
}

size_t gb_conv_planes_work_size(const struct gb_conv_job * j, int n_tasks) {
    return gb_floats_size(gb_conv_aligned(gb_conv_terms(j)), n_tasks);
}

struct planes {
    const struct gb_cpu_call * call;
    const struct gb_conv_job * j;
    int64_t rows, bands; // output rows of a unit; units of a channel
};

// Rows [first, first + rows) of output channel o of a group. False: the run is over.
static bool run_unit(const struct planes * p, int64_t batch, int64_t group, int64_t o, int64_t first, int64_t rows) {
    const struct gb_conv_job * j = p->j;
    const struct gb_conv_axis *w = &j->axis[0], *h = &j->axis[1];
    const int64_t above = GB_MAX(first * h->stride - h->pad, (int64_t) 0); // input rows that these do not read
    const int64_t channel = group * j->oc + o;
    float * buffer = gb_my_floats(p->call, gb_conv_aligned(gb_conv_terms(j)));
    const char * x = j->x + (size_t) batch * j->x_batch + (size_t) group * j->x_channel + (size_t) above * j->x_nb[1];
    float * y = j->y + batch * j->y_batch + channel * j->y_channel + first * w->out;
    const struct gb_conv_plane plane = { .side = (int) w->kernel,
        .stride = (int) w->stride,
        .w = gb_conv_weights(p->call, j, group, o, 1, buffer),
        .x = (const float *) (const void *) x,
        .ldx = (int64_t) (j->x_nb[1] / sizeof(float)),
        .in_w = w->in,
        .in_h = h->in - above,
        .pad_w = w->pad,
        .pad_h = GB_MAX(h->pad - first * h->stride, (int64_t) 0),
        .y = y,
        .ldy = w->out,
        .out_w = w->out,
        .out_h = rows };
    p->call->k->conv_plane_f32(&plane);
    if (gb_cpu_stopped(p->call, gb_conv_work(rows * w->out * gb_conv_terms(j)))) {
        return false;
    }
    if (j->epilogue != NULL) {
        j->epilogue->finish(p->call, j->epilogue, y, channel, rows * w->out);
    }
    return true;
}

// Divisions would take as long as a small plane, so units of one channel are counted by hand.
void gb_conv_planes_run(const struct gb_cpu_call * call, const struct gb_conv_job * j) {
    const int64_t height = j->axis[1].out;
    struct planes p = { call, j, GB_MIN(GB_MAX(POSITIONS / j->axis[0].out / 4, (int64_t) 1) * 4, height), 0 };
    p.bands = gb_div_up(height, p.rows);
    struct gb_cpu_taking taking = gb_cpu_taking_of(call, j->batches * j->groups * p.bands, 1);
    int64_t first, last, part;
    while (gb_cpu_take(&taking, &first, &last, &part)) {
        int64_t band = first % p.bands, group = first / p.bands % j->groups, batch = first / p.bands / j->groups;
        for (int64_t i = first; i < last; i++) {
            const int64_t row = band * p.rows;
            for (int64_t o = 0; o < j->oc; o++) {
                if (!run_unit(&p, batch, group, o, row, GB_MIN(p.rows, height - row))) {
                    return;
                }
            }
            band = band + 1 == p.bands ? 0 : band + 1;
            group += band == 0;
            if (group == j->groups) {
                group = 0;
                batch++;
            }
        }
    }
}
