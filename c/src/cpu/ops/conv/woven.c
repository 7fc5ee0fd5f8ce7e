// woven.c - algorithm woven of the transposed convolutions: one small convolution for each phase of the output.
//
// With stride s and a kernel of K elements, output position s j + f has the terms w[f + s t] x[j - t]. So phase f is a
// convolution with stride 1 and at most T = ceil(K / s) elements. All phases read one slab, the input with T - 1 zeros
// around it. A tile has output channels as rows and positions as columns. The terms of a sum lie in the order
// (t along the height, t along the width, input channel). A thread packs the weights of a block of output channels in
// this order once. Then it computes all positions, some columns at a time, and weaves the phases into rows of the
// output.
#include "cpu/ops/conv/algorithm.h"
#include "cpu/ops/conv/transposed.h"

enum {
    SLAB_FLOATS = 64 << 10, // the aim: a slab of this size stays in the second-level cache
    POSITIONS = 2 * GB_GEMM_NR_MAX, // positions that are computed before they are woven
    PHASES_MAX = 256,
    WEIGHTS_MAX = 4 << 20,  // floats of a tile's output channels
    BLOCK_FLOATS = 128 << 10, // of the weights of a block; they stay in the second-level cache
    CHANNELS = 64, // input channels whose weights are transposed at a time
};

// Elements of the kernel in phase f along an axis, and in the phases before it.
static int64_t taps(const struct gb_transposed * t, int axis, int64_t f) {
    return t->kernel[axis] / t->stride[axis] + (f < t->kernel[axis] % t->stride[axis] ? 1 : 0);
}
static int64_t taps_before(const struct gb_transposed * t, int axis, int64_t f) {
    return f * (t->kernel[axis] / t->stride[axis]) + GB_MIN(f, t->kernel[axis] % t->stride[axis]);
}

static int64_t area(const struct gb_transposed * t) { return t->kernel[0] * t->kernel[1]; }

// The convolution of all phases as the slab sees it.
static struct gb_conv_job job_of(const struct gb_transposed * t, int64_t image) {
    const struct ggml_tensor * b = t->node->src[1];
    struct gb_conv_job j = {
        .axis = { { 0 }, { 0 }, { 1, 1, 1, 1, 0, 1 } },
        .batches = t->images,
        .groups = 1,
        .ic = t->ic,
        .oc = t->oc,
        .x = b->data == NULL ? NULL : gb_transposed_x(t, image, 0, 0),
        .x_type = b->type,
        .x_nb = { b->nb[0], t->axes == 2 ? b->nb[1] : 0, 0 },
        .x_channel = b->nb[t->axes],
    };
    for (int d = 0; d < 2; d++) {
        const int64_t kernel = taps(t, d, 0);
        j.axis[d] = (struct gb_conv_axis){ t->in[d], kernel, t->in[d] + kernel - 1, 1, kernel - 1, 1 };
    }
    return j;
}

// Output channels whose weights a thread packs at a time, at most. More channels fill the slab less often.
static int64_t block_of(const struct gb_transposed * t) {
    const int64_t most = BLOCK_FLOATS / (area(t) * t->ic);
    return GB_MAX(GB_MIN(most, t->oc), (int64_t) GB_GEMM_MR_MAX);
}

// Input channels whose weights are transposed at a time.
static int64_t together_of(const struct gb_transposed * t) { return GB_MIN(t->ic, (int64_t) CHANNELS); }

struct sizes { // floats of a thread
    int64_t offsets, weights, source, transposed, buffer, slab;
};

static struct sizes sizes_of(const struct gb_transposed * t, int64_t slab) {
    return (struct sizes){
        .offsets = gb_conv_aligned(GB_CONV_FLOATS_OF_OFFSETS(taps(t, 0, 0) * taps(t, 1, 0) * t->ic)),
        .weights = gb_conv_aligned(block_of(t) * area(t) * t->ic),
        .source = gb_conv_aligned(together_of(t) * block_of(t) * area(t)),
        .transposed = gb_conv_aligned(together_of(t) * block_of(t) * area(t)),
        .buffer = t->stride[0] * t->stride[1] * GB_GEMM_MR_MAX * POSITIONS,
        .slab = gb_conv_aligned(slab),
    };
}

static int64_t memory_floats(const struct sizes * s) {
    return 2 * s->offsets + s->weights + s->source + s->transposed + s->buffer + s->slab;
}

const char * gb_woven_cannot(const struct gb_transposed * t) {
    if (t->ic == 0 || t->in[0] == 0 || t->in[1] == 0) {
        return "there is no input";
    }
    if (t->stride[0] > t->kernel[0] || t->stride[1] > t->kernel[1]) {
        return "the stride is larger than the kernel";
    }
    if (t->stride[0] > PHASES_MAX / t->stride[1]) {
        return "there are too many phases";
    }
    if ((double) area(t) * (double) t->ic > WEIGHTS_MAX / GB_GEMM_MR_MAX) {
        return "the weights of an output channel are too large";
    }
    const struct gb_conv_job j = job_of(t, 0);
    return gb_conv_bands_of(&j, SLAB_FLOATS).floats < 0 ? "a padded copy of the input would be too large" : NULL;
}

int64_t gb_woven_n_units(const struct gb_transposed * t) {
    const struct gb_conv_job j = job_of(t, 0);
    const struct gb_conv_bands b = gb_conv_bands_of(&j, SLAB_FLOATS);
    return gb_conv_n_units(&j, &b, 1) * gb_div_up(t->oc, GB_GEMM_MR_MIN);
}

size_t gb_woven_work_size(const struct gb_transposed * t, int n_tasks) {
    const struct gb_conv_job j = job_of(t, 0);
    const struct sizes s = sizes_of(t, gb_conv_bands_of(&j, SLAB_FLOATS).floats);
    return gb_floats_size(memory_floats(&s), n_tasks);
}

struct woven { // what a thread computes with
    const struct gb_cpu_call * call;
    const struct gb_transposed * t;
    struct gb_conv_job j;
    int64_t * offsets[2]; // of phases with all taps along the width, and with one less
    float *weights, *source, *transposed, *buffer, *slab;
    int64_t first, channels; // of the block of output channels whose weights are packed
    struct gb_slab layout; // for which the offsets are
};

static struct woven woven_of(const struct gb_cpu_call * call, const struct gb_transposed * t,
    const struct gb_conv_job * j, int64_t slab) {
    const struct sizes s = sizes_of(t, slab);
    float * p = gb_my_floats(call, memory_floats(&s));
    struct woven w = { .call = call, .t = t, .j = *j, .first = -1, .layout = { .channels = 0 } };
    w.offsets[0] = (int64_t *) (void *) p;
    w.offsets[1] = (int64_t *) (void *) (p + s.offsets);
    w.weights = p + 2 * s.offsets;
    w.source = w.weights + s.weights;
    w.transposed = w.source + s.source;
    w.buffer = w.transposed + s.transposed;
    w.slab = w.buffer + s.buffer;
    return w;
}

// ------------------------------------------------------------------------------------------------------------- weights

// The place of element (k0, k1) among the terms of all phases: phase by phase, its taps in order.
static int64_t place_of(const struct gb_transposed * t, int64_t k0, int64_t k1) {
    const int64_t f0 = k0 % t->stride[0], f1 = k1 % t->stride[1], n1 = taps(t, 1, f1);
    return taps_before(t, 1, f1) * t->kernel[0] + n1 * taps_before(t, 0, f0) + k1 / t->stride[1] * taps(t, 0, f0) +
           k0 / t->stride[0];
}

// Weights of input channels [c, c + n) to the block, [n][channels][height][width]. *ld: floats from one input channel
// to the next.
static const float * source_of(const struct woven * w, int64_t c, int64_t n, int64_t * ld) {
    const struct gb_transposed * t = w->t;
    const struct ggml_tensor * a = t->node->src[0];
    const char * first = gb_transposed_w(t, c, w->first, 0);
    if (a->type == GGML_TYPE_F32 && ggml_is_contiguous(a) && (uintptr_t) first % sizeof(float) == 0) {
        *ld = t->oc * area(t);
        return (const float *) (const void *) first;
    }
    *ld = w->channels * area(t);
    float * y = w->source;
    for (int64_t i = 0; i < n * w->channels * t->kernel[1]; i++, y += t->kernel[0]) {
        const int64_t row = i % t->kernel[1], o = i / t->kernel[1] % w->channels, at = i / t->kernel[1] / w->channels;
        gb_load(w->call->k, a->type, t->kernel[0], y, gb_transposed_w(t, c + at, w->first + o, row), a->nb[0]);
    }
    return w->source;
}

// Packs the weights of output channels [first, first + channels): [channels][area][ic]. False: the run is over.
static bool pack(struct woven * w, int64_t first, int64_t channels) {
    const struct gb_transposed * t = w->t;
    const int64_t together = together_of(t);
    w->first = first;
    w->channels = channels;
    for (int64_t c = 0; c < t->ic; c += together) {
        const int64_t n = GB_MIN(t->ic - c, together);
        int64_t ld;
        const float * x = source_of(w, c, n, &ld);
        for (int64_t i = 0; i < GB_MIN(t->ic - c - n, together) && x != w->source; i++) { // the next ones
            gb_prefetch(x + (n + i) * ld, (size_t) (channels * area(t)) * sizeof(*x));
        }
        w->call->k->transpose_32(n, channels * area(t), (uint32_t *) (void *) w->transposed,
            (size_t) together * sizeof(float), (const uint32_t *) (const void *) x, (size_t) ld * sizeof(float));
        const float * from = w->transposed;
        for (int64_t o = 0; o < channels; o++) {
            for (int64_t k1 = 0; k1 < t->kernel[1]; k1++) {
                for (int64_t k0 = 0; k0 < t->kernel[0]; k0++, from += together) {
                    float * to = w->weights + (o * area(t) + place_of(t, k0, k1)) * t->ic + c;
                    memcpy(to, from, (size_t) n * sizeof(*to));
                }
            }
        }
        if (gb_cpu_stopped(w->call, n * channels * area(t))) {
            return false;
        }
    }
    return true;
}

// --------------------------------------------------------------------------------------------------------------- tiles

// Offsets of the terms of a phase, for n0 taps along the width. Phases with fewer taps along the height have the first
// of them.
static void fill_offsets(const struct woven * w, const struct gb_slab * s, int64_t n0, int64_t * offsets) {
    const int64_t reach0 = taps(w->t, 0, 0) - 1, n1 = taps(w->t, 1, 0);
    for (int64_t t1 = 0; t1 < n1; t1++) {
        for (int64_t t0 = 0; t0 < n0; t0++) {
            for (int64_t c = 0; c < w->t->ic; c++) {
                *offsets++ = c * s->channel_size + (n1 - 1 - t1) * s->pitch + reach0 - t0;
            }
        }
    }
}

// All phases of n positions from flat position f of the band on, for output channels [o, o + m) of the block. They go
// to the buffer: [phases][m][POSITIONS].
static void compute(const struct woven * w, int64_t o, int64_t m, int64_t f, int64_t n) {
    const struct gb_transposed * t = w->t;
    const int64_t nr = w->call->k->gemm_nr;
    float * y = w->buffer;
    for (int64_t f1 = 0; f1 < t->stride[1]; f1++) {
        for (int64_t f0 = 0; f0 < t->stride[0]; f0++, y += m * POSITIONS) {
            const int64_t n0 = taps(t, 0, f0), n1 = taps(t, 1, f1);
            struct gb_conv_tile tile = { .k = n0 * n1 * t->ic,
                .a = w->weights + (o * area(t) + place_of(t, f0, f1)) * t->ic,
                .lda = area(t) * t->ic,
                .offsets = w->offsets[n0 == taps(t, 0, 0) ? 0 : 1],
                .ldc = POSITIONS,
                .mr = (int) m };
            for (int64_t i = 0; i < n; i += nr) {
                tile.x = w->slab + f + i;
                tile.c = y + i;
                tile.nr = (int) GB_MIN(nr, n - i);
                w->call->k->conv_tile_f32(&tile);
            }
        }
    }
}

// Weaves n positions of each phase into a row y of at most `most` outputs. The phases are ld floats apart in x.
static void weave(const struct gb_kernels * k, int64_t n, int64_t phases, float * y, const float * x, int64_t ld,
    int64_t most) {
    const int64_t whole = GB_MIN(n, most / phases);
    if (phases == 1) {
        memcpy(y, x, (size_t) whole * sizeof(*y));
        return;
    }
    k->weave_f32(whole, phases, y, x, ld);
    for (int64_t f = 0; f < most - whole * phases && whole < n; f++) {
        y[whole * phases + f] = x[f * ld + whole];
    }
}

// Stores n positions from flat position f of the band on, for m output channels from `channel` on.
static void store(const struct woven * w, const struct gb_slab * s, int64_t image, int64_t channel, int64_t m,
    int64_t f, int64_t n) {
    const struct gb_transposed * t = w->t;
    for (int64_t at = 0, run; at < n; at += run) {
        const int64_t row = (f + at) / s->pitch, column = (f + at) % s->pitch;
        run = GB_MIN(n - at, s->pitch - column);
        const int64_t used = GB_MIN(run, s->n[0] - column), x = (s->first[0] + column) * t->stride[0];
        const int64_t most = GB_MIN(used * t->stride[0], t->out[0] - x);
        for (int64_t i = 0; i < m * t->stride[1] && used > 0 && most > 0; i++) {
            const int64_t o = i / t->stride[1], f1 = i % t->stride[1];
            const int64_t y = (s->first[1] + row) * t->stride[1] + f1;
            if (y < t->out[1]) {
                weave(w->call->k, used, t->stride[0], gb_transposed_y(t, image, channel + o) + y * t->out[0] + x,
                    w->buffer + (f1 * t->stride[0] * m + o) * POSITIONS + at, m * POSITIONS, most);
            }
        }
    }
}

// A band for the packed block of output channels. False: the run is over.
static bool run_unit(struct woven * w, struct gb_conv_unit * u) {
    struct gb_slab * s = &u->slab;
    if (gb_slab_is_like(s, &w->layout)) {
        *s = w->layout;
    } else {
        gb_slab_layout(&w->j, s);
        fill_offsets(w, s, taps(w->t, 0, 0), w->offsets[0]);
        fill_offsets(w, s, taps(w->t, 0, 0) - 1, w->offsets[1]);
        w->layout = *s;
    }
    const struct gb_conv_job j = job_of(w->t, u->batch);
    if (!gb_slab_fill(w->call, &j, s, false, 0, 0, j.ic, w->slab)) {
        return false;
    }
    const int64_t span = (s->n[1] - 1) * s->pitch + s->n[0];
    const int64_t tiles = gb_div_up(w->channels, w->call->k->gemm_mr), each = gb_div_up(w->channels, tiles);
    for (int64_t o = 0; o < w->channels; o += each) {
        const int64_t m = GB_MIN(each, w->channels - o);
        for (int64_t f = 0; f < span; f += POSITIONS) {
            const int64_t n = GB_MIN(span - f, (int64_t) POSITIONS);
            compute(w, o, m, f, n);
            store(w, s, u->batch, w->first + o, m, f, n);
            if (gb_cpu_stopped(w->call, gb_conv_work(n * m * area(w->t) * w->t->ic))) {
                return false;
            }
        }
    }
    return true;
}

// Output channels of a block: whole tiles, and so few that every thread has some units.
static int64_t block_for(const struct gb_cpu_call * call, const struct gb_transposed * t, int64_t bands) {
    const int64_t mr = call->k->gemm_mr;
    int64_t tiles = GB_MIN(block_of(t) / mr, gb_div_up(t->oc, mr));
    while (call->nth > 1 && tiles > 1 && gb_div_up(t->oc, tiles * mr) * bands < 4 * (int64_t) call->nth) {
        tiles /= 2;
    }
    return gb_div_up(t->oc, gb_div_up(t->oc, tiles * mr));
}

// Units are numbered block by block, so that a thread packs few blocks.
void gb_woven_run(const struct gb_cpu_call * call, const struct gb_transposed * t) {
    const struct gb_conv_job j = job_of(t, 0);
    const struct gb_conv_bands b = gb_conv_bands_of(&j, SLAB_FLOATS);
    const int64_t bands = gb_conv_n_units(&j, &b, 1), block = block_for(call, t, bands);
    const int64_t blocks = gb_div_up(t->oc, block);
    struct woven w = woven_of(call, t, &j, b.floats);
    struct gb_cpu_taking taking = gb_cpu_taking_of(call, bands * blocks, 1);
    int64_t first, last, part;
    while (gb_cpu_take(&taking, &first, &last, &part)) {
        for (int64_t i = first; i < last; i++) {
            const int64_t o = i / bands * block, n = GB_MIN(block, t->oc - o);
            struct gb_conv_unit u = gb_conv_unit_at(&j, &b, 1, i % bands);
            if ((o != w.first && !pack(&w, o, n)) || !run_unit(&w, &u)) {
                return;
            }
        }
    }
}
