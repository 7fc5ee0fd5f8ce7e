// slab.c - lays out and fills slabs (slab.h).
#include "cpu/ops/conv/slab.h"

// Avoids a division in the usual case, because a slab of a small plane takes less time than a few
// divisions.
static int64_t over(int64_t a, int64_t b) { return b == 1 ? a : a / b; }

static int64_t over_up(int64_t a, int64_t b) { return b == 1 ? a : gb_div_up(a, b); }

static int64_t divisor(int64_t a, int64_t b) { return b == 0 ? a : divisor(b, a % b); }

// Kernel elements k and k + period share a phase.
static int64_t phase_period(const struct gb_conv_axis * a) {
    return a->stride == 1 ? 1 : a->stride / divisor(a->stride, a->dilation);
}

static int64_t n_phases(const struct gb_conv_axis * a) { return GB_MIN(phase_period(a), a->kernel); }

// The first padded position of phase i.
static int64_t phase_start(const struct gb_conv_axis * a, int64_t i) {
    return a->stride == 1 ? 0 : i * a->dilation % a->stride;
}

static int64_t shift_of(const struct gb_conv_axis * a, int64_t k) { return over(k * a->dilation, a->stride); }

// The extent of phase i along the width, for a band whose first padded position is `from`:
// positions before the input, positions up to the end of the input, and positions that an output
// row reads.
struct extent {
    int64_t lead, end, need;
};

static struct extent extent_of(const struct gb_conv_axis * a, int64_t from, int64_t columns, int64_t i) {
    const int64_t start = from + phase_start(a, i); // padded
    const int64_t period = phase_period(a), last = i + over(a->kernel - 1 - i, period) * period;
    const int64_t before = a->pad - start, until = a->pad + a->in - start;
    return (struct extent){
        .lead = before > 0 ? over_up(before, a->stride) : 0,
        .end = until > 0 ? over_up(until, a->stride) : 0,
        .need = columns + shift_of(a, last),
    };
}

int64_t gb_slab_layout(const struct gb_conv_job * j, struct gb_slab * s) {
    const struct gb_conv_axis *w = &j->axis[0], *h = &j->axis[1];
    int64_t beyond = 0;
    s->phases[0] = n_phases(w);
    s->phases[1] = n_phases(h);
    s->reach[0] = shift_of(w, w->kernel - 1);
    s->reach[1] = shift_of(h, h->kernel - 1);
    s->rows = s->n[1] + s->reach[1];
    s->pitch = s->n[0];
    for (int64_t i = 0; i < s->phases[0]; i++) {
        const struct extent e = extent_of(w, s->first[0] * w->stride, s->n[0], i);
        s->pitch = GB_MAX(s->pitch, GB_MAX(GB_MIN(e.need, e.end), e.need - e.lead));
    }
    for (int64_t i = 0; i < s->phases[0]; i++) {
        beyond = GB_MAX(beyond, extent_of(w, s->first[0] * w->stride, s->n[0], i).need - s->pitch);
    }
    s->phase_size = s->rows * s->pitch + beyond;
    s->channel_size = s->phases[0] * s->phases[1] * s->phase_size;
    return s->channels * s->channel_size;
}

int64_t gb_slab_floats(const struct gb_conv_job * j, int64_t columns, int64_t rows, int64_t channels, int64_t most) {
    const struct gb_conv_axis *w = &j->axis[0], *h = &j->axis[1];
    const double row = (double) columns + (double) shift_of(w, w->kernel - 1);
    const double all = (double) channels * (double) n_phases(w) * (double) n_phases(h) * row *
                       ((double) rows + (double) shift_of(h, h->kernel - 1) + 1);
    return all > (double) most ? -1 : (int64_t) all;
}

void gb_slab_offsets(const struct gb_conv_job * j, const struct gb_slab * s, int64_t channels, int64_t * offsets) {
    const struct gb_conv_axis *w = &j->axis[0], *h = &j->axis[1];
    const int64_t each = w->kernel * h->kernel;
    int64_t * next = offsets;
    for (int64_t y = 0; y < h->kernel && channels > 0; y++) {
        const int64_t row = y % s->phases[1] * s->phases[0] * s->phase_size + shift_of(h, y) * s->pitch;
        for (int64_t x = 0; x < w->kernel; x++) {
            *next++ = row + x % s->phases[0] * s->phase_size + shift_of(w, x);
        }
    }
    for (int64_t i = each; i < channels * each; i++) { // without divisions, because there are many terms
        offsets[i] = offsets[i - each] + s->channel_size;
    }
}

// Copies n values of the input row at p, from position i on, `stride` positions apart.
static void copy_row(const struct gb_cpu_call * call, const struct gb_conv_job * j, const char * p, int64_t i,
    int64_t n, float * y) {
    const int64_t stride = j->axis[0].stride;
    const char * from = p + (size_t) i * j->x_nb[0];
    if (j->x_type != GGML_TYPE_F32 || j->x_nb[0] != sizeof(float) || (uintptr_t) p % sizeof(float) != 0) {
        gb_load(call->k, j->x_type, n, y, from, j->x_nb[0] * (size_t) stride);
    } else if (stride == 1 && n <= 16) { // so few that a call would take longer
        for (int64_t k = 0; k < n; k++) {
            memcpy(y + k, from + (size_t) k * sizeof(*y), sizeof(*y));
        }
    } else if (stride == 1) {
        memcpy(y, from, (size_t) n * sizeof(*y));
    } else {
        call->k->every_f32(n, y, (const float *) (const void *) from, stride);
    }
    for (int64_t r = 0; r < n && j->rounds; r += GB_RUN) {
        uint16_t halves[GB_RUN];
        const int64_t run = GB_MIN(n - r, (int64_t) GB_RUN);
        call->k->f32_to_f16(run, halves, y + r);
        call->k->f16_to_f32(run, y + r, halves);
    }
}

// Clears a few floats, usually at the ends of rows.
static void zero(float * y, int64_t n) {
    if (n > 32) {
        memset(y, 0, (size_t) n * sizeof(*y));
        return;
    }
    for (int64_t i = 0; i < n; i++) {
        y[i] = 0.0f;
    }
}

// Fills phase (px, py) of the plane at p. NULL: a plane of zeros. `zeroed`: the padding is zero
// already.
static void fill_phase(const struct gb_cpu_call * call, const struct gb_conv_job * j, const struct gb_slab * s,
    bool zeroed, const char * p, int64_t px, int64_t py, float * y) {
    const struct gb_conv_axis *w = &j->axis[0], *h = &j->axis[1];
    const int64_t from = s->first[0] * w->stride;
    const struct extent e = extent_of(w, from, s->n[0], px);
    const int64_t lead = GB_MIN(e.lead, s->pitch), n = GB_MIN(e.end, s->pitch) - lead;
    const int64_t i = from + phase_start(w, px) + lead * w->stride - w->pad; // the first input position
    for (int64_t r = 0; r < s->rows; r++, y += s->pitch) {
        const int64_t at = (s->first[1] + r) * h->stride + phase_start(h, py) - h->pad;
        if (p == NULL || at < 0 || at >= h->in || n <= 0) {
            zero(y, zeroed ? 0 : s->pitch);
            continue;
        }
        copy_row(call, j, p + (size_t) at * j->x_nb[1], i, n, y + lead);
        if (!zeroed) {
            zero(y, lead);
            zero(y + lead + n, s->pitch - lead - n);
        }
    }
    zero(y, zeroed ? 0 : s->phase_size - s->rows * s->pitch);
}

bool gb_slab_fill(const struct gb_cpu_call * call, const struct gb_conv_job * j, const struct gb_slab * s, bool zeroed,
    int64_t batch, int64_t first, int64_t n, float * slab) {
    const struct gb_conv_axis * d = &j->axis[2];
    for (int64_t c = first; c < first + n; c++) {
        const char * channel = j->x + (size_t) batch * j->x_batch + (size_t) c * j->x_channel;
        for (int64_t k = 0; k < d->kernel; k++) {
            const int64_t at = s->first[2] * d->stride + k * d->dilation - d->pad;
            const char * plane = at < 0 || at >= d->in ? NULL : channel + (size_t) at * j->x_nb[2];
            for (int64_t i = 0; i < s->phases[0] * s->phases[1]; i++, slab += s->phase_size) {
                fill_phase(call, j, s, zeroed, plane, i % s->phases[0], i / s->phases[0], slab);
            }
            if (gb_cpu_stopped(call, s->channel_size / 4)) {
                return false;
            }
        }
    }
    return true;
}
