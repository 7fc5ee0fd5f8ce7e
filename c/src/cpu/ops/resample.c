// resample.c - INTERPOLATE, PAD_EXT, PAD_REFLECT_1D, ROLL.
//
// All except the smooth modes of INTERPOLATE move elements, and so work for every plain type. Large results bypass the
// caches: ordinary stores would first read the memory that they overwrite. A row is first written to scratch memory.
// Only the smooth modes add up to SLOTS rows of the source straight to the result.
#include <math.h>

#include "cpu/ops/elements.h"

static const char * move_unsupported(const struct ggml_tensor * node) { return gb_need_same(node, 1); }

// Results of at least this size bypass the caches. Rows of images are read once, long after they were written, so the
// limit is lower than GB_FAR_BYTES: several times the size of a second-level cache.
#define FAR_IMAGE_BYTES ((size_t) 8 << 20)

// True if results are written by gb_kernel_stream.
static bool is_far(const struct ggml_tensor * node) {
    return ggml_type_size(node->type) == sizeof(float) && node->nb[0] == sizeof(float) &&
           ((node->nb[1] | node->nb[2] | node->nb[3]) % sizeof(float)) == 0 && ggml_nbytes(node) >= FAR_IMAGE_BYTES;
}

static bool streams(const struct ggml_tensor * node) {
    return is_far(node) && (uintptr_t) node->data % sizeof(float) == 0;
}

// next: elements that will be read next, or NULL
static void stream(const struct gb_cpu_call * call, const struct ggml_tensor * node, char * d, const float * row,
    const char * next) {
    const float * later = next != NULL ? (const float *) (const void *) next : row;
    call->k->stream_f32(node->ne[0], (float *) (void *) d, row, later, false);
}

static void end_stream(const struct gb_cpu_call * call) { call->k->stream_f32(0, NULL, NULL, NULL, true); }

// The row of src[0] that a row of the result is made of. NULL: none.
typedef const char * row_source(const struct ggml_tensor * node, struct gb_row r);

// Like gb_run_rows. Loads from memory would wait for stores that bypass the caches, so the next row is prefetched.
static inline void run_rows(const struct gb_cpu_call * call, const struct ggml_tensor * node, gb_row_writer * f,
    row_source * source) {
    if (!streams(node)) {
        gb_run_rows(call, node, f);
        return;
    }
    float * row = gb_my_floats(call, node->ne[0]);
    int64_t first, last;
    gb_cpu_share(call, gb_rows(node), &first, &last);
    for (int64_t i = first; i < last; i++) {
        const struct gb_row r = gb_row_at(node, i);
        f(node, r, (char *) row);
        stream(call, node, gb_row_of(node, r), row, i + 1 < last ? source(node, gb_row_at(node, i + 1)) : NULL);
        if (gb_cpu_stopped(call, node->ne[0])) {
            break;
        }
    }
    end_stream(call);
}

static size_t rows_work(const struct ggml_tensor * node, int n_tasks) {
    return is_far(node) ? gb_floats_size(node->ne[0], n_tasks) : 0;
}

// i modulo n, not negative; n > 0
static int64_t wrapped(int64_t i, int64_t n) {
    const int64_t r = i % n;
    return r < 0 ? r + n : r;
}

// ------------------------------------------------------------------------------------------------------------- PAD_EXT

// The index along dimension d of the source for index i of the result. -1: in the padding.
static int64_t source_at(const struct ggml_tensor * node, int d, int64_t i) {
    const int64_t at = i - gb_op_param_i32(node, 2 * d), n = node->src[0]->ne[d];
    if (gb_op_param_i32(node, 8) != 0) {
        return wrapped(at, n);
    }
    return at < 0 || at >= n ? -1 : at;
}

static const char * pad_ext_source(const struct ggml_tensor * node, struct gb_row r) {
    const int64_t i1 = source_at(node, 1, r.i1), i2 = source_at(node, 2, r.i2), i3 = source_at(node, 3, r.i3);
    return i1 < 0 || i2 < 0 || i3 < 0 ? NULL : gb_row_ptr(node->src[0], i1, i2, i3);
}

static void pad_ext_row(const struct ggml_tensor * node, struct gb_row r, char * d) {
    const struct ggml_tensor * a = node->src[0];
    const size_t size = ggml_type_size(node->type), step = node->nb[0];
    const int64_t before = gb_op_param_i32(node, 0), n = a->ne[0];
    const char * s = pad_ext_source(node, r);
    if (s == NULL) {
        gb_clear(size, node->ne[0], d, step);
        return;
    }
    if (gb_op_param_i32(node, 8) == 0) {
        gb_clear(size, before, d, step);
        gb_move(size, n, d + (size_t) before * step, step, s, a->nb[0]);
        gb_clear(size, node->ne[0] - before - n, d + (size_t) (before + n) * step, step);
        return;
    }
    int64_t from = wrapped(-before, n);
    for (int64_t i = 0; i < node->ne[0];) {
        const int64_t m = GB_MIN(n - from, node->ne[0] - i);
        gb_move(size, m, d + (size_t) i * step, step, s + (size_t) from * a->nb[0], a->nb[0]);
        i += m;
        from = 0;
    }
}

static void run_pad_ext(const struct gb_cpu_call * call, struct ggml_tensor * node) {
    run_rows(call, node, pad_ext_row, pad_ext_source);
}

// ------------------------------------------------------------------------------------------------------ PAD_REFLECT_1D

static const char * pad_reflect_source(const struct ggml_tensor * node, struct gb_row r) {
    return gb_row_of(node->src[0], r);
}

static void pad_reflect_row(const struct ggml_tensor * node, struct gb_row r, char * d) {
    const struct ggml_tensor * a = node->src[0];
    const size_t size = ggml_type_size(node->type), step = node->nb[0];
    const int64_t p0 = gb_op_param_i32(node, 0), p1 = gb_op_param_i32(node, 1), n = a->ne[0];
    const char * s = gb_row_of(a, r);
    for (int64_t i = 0; i < p0; i++) {
        memcpy(d + (size_t) i * step, s + (size_t) (p0 - i) * a->nb[0], size);
    }
    gb_move(size, n, d + (size_t) p0 * step, step, s, a->nb[0]);
    for (int64_t i = 0; i < p1; i++) {
        memcpy(d + (size_t) (p0 + n + i) * step, s + (size_t) (n - 2 - i) * a->nb[0], size);
    }
}

static void run_pad_reflect_1d(const struct gb_cpu_call * call, struct ggml_tensor * node) {
    run_rows(call, node, pad_reflect_row, pad_reflect_source);
}

// ---------------------------------------------------------------------------------------------------------------- ROLL

static const char * roll_source(const struct ggml_tensor * node, struct gb_row r) {
    const struct ggml_tensor * a = node->src[0];
    return gb_row_ptr(a, wrapped(r.i1 - gb_op_param_i32(node, 1), a->ne[1]),
        wrapped(r.i2 - gb_op_param_i32(node, 2), a->ne[2]), wrapped(r.i3 - gb_op_param_i32(node, 3), a->ne[3]));
}

static void roll_row(const struct ggml_tensor * node, struct gb_row r, char * d) {
    const struct ggml_tensor * a = node->src[0];
    const size_t size = ggml_type_size(node->type), step = node->nb[0];
    const int64_t n = node->ne[0], shift = n > 0 ? wrapped(gb_op_param_i32(node, 0), n) : 0;
    const char * s = roll_source(node, r);
    gb_move(size, shift, d, step, s + (size_t) (n - shift) * a->nb[0], a->nb[0]);
    gb_move(size, n - shift, d + (size_t) shift * step, step, s, a->nb[0]);
}

static void run_roll(const struct gb_cpu_call * call, struct ggml_tensor * node) {
    run_rows(call, node, roll_row, roll_source);
}

// ----------------------------------------------------------------------------------------------- INTERPOLATE: one axis

// Resamples n elements to `out`. `ratio` is out to n.
struct axis {
    int64_t n, out;
    bool aligned, smooth;    // align_corners; antialias
    enum ggml_scale_mode mode;
    double ratio;
    int taps; // maximum number of elements that a result depends on
};

static struct axis axis_of(const struct ggml_tensor * node, int d) {
    const uint32_t mode = (uint32_t) gb_op_param_i32(node, 0);
    struct axis x = { .n = node->src[0]->ne[d], .out = node->ne[d], .mode = (enum ggml_scale_mode)(mode & 0xff) };
    x.aligned = (mode & GGML_SCALE_FLAG_ALIGN_CORNERS) != 0;
    x.smooth = (mode & GGML_SCALE_FLAG_ANTIALIAS) != 0;
    x.ratio = x.n > 0 ? (double) x.out / (double) x.n : 1;
    if (x.aligned && x.n > 1 && x.out > 1) {
        x.ratio = (double) (x.out - 1) / (double) (x.n - 1);
    }
    x.taps = x.mode == GGML_SCALE_MODE_BICUBIC ? 4 : x.mode == GGML_SCALE_MODE_BILINEAR ? 2 : 1;
    if (x.smooth && x.out > 0) {
        const double most = 2 * ceil(fmax(1.0, 1 / x.ratio)) + 1;
        x.taps = (int) GB_MIN((int64_t) most, x.n);
    }
    return x;
}

// The nearest element below, computed with integers.
static int64_t nearest(const struct axis * x, int64_t i) {
    if (x->aligned && x->n > 1 && x->out > 1) {
        return i * (x->n - 1) / (x->out - 1);
    }
    return i * x->n / x->out;
}

// Keys's kernel with a = -0.75, at distances up to 1 and from 1 to 2
static double cubic_near(double u) { return (1.25 * u - 2.25) * u * u + 1; }
static double cubic_far(double u) { return -0.75 * (((u - 5) * u + 8) * u - 4); }

static int64_t cut(int64_t i, int64_t n) { return i < 0 ? 0 : i < n ? i : n - 1; }

// The elements and weights of result i: taps of them, `step` apart. Unused weights are 0.
static void find_taps(const struct axis * x, int64_t i, int32_t * at, float * w, int64_t step) {
    const double half = x->aligned ? 0 : 0.5, centre = ((double) i + half) / x->ratio - half;
    if (x->smooth) {
        const double reach = fmax(1.0, 1 / x->ratio);
        const int64_t first = GB_MIN(GB_MAX((int64_t) ceil(centre - reach), (int64_t) 0), x->n - x->taps);
        double sum = 0;
        for (int t = 0; t < x->taps; t++) {
            sum += fmax(0.0, 1 - fabs((double) (first + t) - centre) / reach);
        }
        for (int t = 0; t < x->taps; t++) {
            at[t * step] = (int32_t) (first + t);
            w[t * step] = (float) (fmax(0.0, 1 - fabs((double) (first + t) - centre) / reach) / sum);
        }
        return;
    }
    if (x->mode == GGML_SCALE_MODE_BILINEAR) {
        const double c = fmax(centre, 0);
        const int64_t left = (int64_t) floor(c);
        at[0] = (int32_t) cut(left, x->n);
        at[step] = (int32_t) cut(left + 1, x->n);
        w[step] = (float) (c - (double) left);
        w[0] = (float) (1 - (c - (double) left));
        return;
    }
    const int64_t left = (int64_t) floor(centre);
    const double t = centre - (double) left;
    const double weights[4] = { cubic_far(1 + t), cubic_near(t), cubic_near(1 - t), cubic_far(2 - t) };
    for (int k = 0; k < 4; k++) {
        at[k * step] = (int32_t) cut(left - 1 + k, x->n);
        w[k * step] = (float) weights[k];
    }
}

// ---------------------------------------------------------------------------------------------------- INTERPOLATE: run

// If a plane gets more rows, its rows are first resampled along dimension 0. These rows are kept, because the next
// results need them again. SLOTS is the maximum number. If a plane gets fewer rows, its rows are added first, so that
// fewer rows are resampled along dimension 0.
enum { SLOTS = GB_COMBINE_ROWS };

// A thread's scratch: taps of dimension 0, a table [taps][out], and of the current row; kept rows; a source row; sorted
// elements or results of a row; a row of results.
struct resampler {
    struct axis x, y;
    int32_t *at_x, *at_y;
    float *w_x, *w_y, *kept, *source, *phases, *sum;
    int slots;
    int64_t pitch; // floats from a kept row to the next
    int64_t kept_row[SLOTS]; // number of the row of src[0] among all rows, -1: none
    bool sums_first; // rows are added before they are resampled
    // A row has `ways` results for each `step` elements; one of the two is 1. Far from the edges, results that are
    // `ways` apart have the same weights, for elements that are `step` apart. This holds for groups inner to
    // inner_end - 1 of `ways` results. The range is empty if it does not hold.
    int64_t ways, step, inner, inner_end;
};

static int slots_of(const struct axis * y) { return GB_MIN(y->taps, (int) SLOTS); }

// Whole cache lines, and not a multiple of 4 KiB, so that kept rows lie in different places of the nearest cache.
static int64_t pitch_of(const struct axis * x) {
    const int64_t lines = gb_div_up(x->out, 16);
    return 16 * (lines + (lines % 64 == 0));
}

static int64_t scratch_floats(const struct ggml_tensor * node) {
    const struct axis x = axis_of(node, 0), y = axis_of(node, 1);
    return x.mode == GGML_SCALE_MODE_NEAREST ? 2 * x.out
                                             : 2 * (int64_t) x.taps * x.out + 2 * (int64_t) y.taps +
                                                   slots_of(&y) * pitch_of(&x) + x.out + x.n + GB_MAX(x.n, x.out);
}

static bool has_float_rows(const struct ggml_tensor * a) {
    return a->type == GGML_TYPE_F32 && a->nb[0] == sizeof(float) &&
           ((a->nb[1] | a->nb[2] | a->nb[3] | (uintptr_t) a->data) % sizeof(float)) == 0;
}

// True if the taps of each result of group i are those of group j, moved.
static bool has_same_taps(const struct resampler * r, int64_t i, int64_t j) {
    for (int64_t t = 0; t < r->x.taps * r->x.out; t += r->x.out) {
        for (int64_t f = 0; f < r->ways; f++) {
            const int64_t a = t + i * r->ways + f, b = t + j * r->ways + f;
            if (r->at_x[a] - i * r->step != r->at_x[b] - j * r->step || r->w_x[a] != r->w_x[b]) {
                return false;
            }
        }
    }
    return true;
}

// Finds the groups with the weights of the one in the middle. weave_f32 and every_f32 are fast for the numbers of
// results and elements below.
static void find_inner(struct resampler * r) {
    const struct axis * x = &r->x;
    r->inner = r->inner_end = 0;
    r->ways = x->n > 0 && x->out % x->n == 0 ? x->out / x->n : 1;
    r->step = x->out > 0 && x->n % x->out == 0 ? x->n / x->out : 1;
    const bool more = r->step == 1 && (r->ways == 2 || r->ways == 4), fewer = r->ways == 1 && r->step > 1;
    if (!(more || (fewer && r->sums_first)) || x->taps > GB_COMBINE_ROWS) {
        return;
    }
    const int64_t groups = x->out / r->ways, middle = groups / 2;
    r->inner = middle;
    r->inner_end = middle + 1;
    while (r->inner > 0 && has_same_taps(r, r->inner - 1, middle)) {
        r->inner--;
    }
    while (r->inner_end < groups && has_same_taps(r, r->inner_end, middle)) {
        r->inner_end++;
    }
}

static void open_resampler(struct resampler * r, const struct gb_cpu_call * call, const struct ggml_tensor * node) {
    r->x = axis_of(node, 0);
    r->y = axis_of(node, 1);
    r->slots = slots_of(&r->y);
    float * p = gb_my_floats(call, scratch_floats(node));
    const int64_t table = r->x.taps * r->x.out;
    r->pitch = pitch_of(&r->x);
    r->kept = p;
    r->sum = p + r->slots * r->pitch;
    r->at_x = (int32_t *) (void *) (r->sum + r->x.out);
    r->w_x = r->sum + r->x.out + table;
    r->at_y = (int32_t *) (void *) (r->w_x + table);
    r->w_y = r->w_x + table + r->y.taps;
    r->source = r->w_y + r->y.taps;
    r->phases = r->source + r->x.n;
    for (int64_t i = 0; i < r->x.out; i++) {
        find_taps(&r->x, i, r->at_x + i, r->w_x + i, r->x.out);
    }
    for (int i = 0; i < SLOTS; i++) {
        r->kept_row[i] = -1;
    }
    r->sums_first = r->y.out < r->y.n && has_float_rows(node->src[0]);
    find_inner(r);
}

// Results first .. end - 1 of a row, element by element.
static void resample_some(const struct resampler * r, const float * x, int64_t first, int64_t end, float * y) {
    for (int64_t i = first; i < end; i++) {
        y[i] = 0;
        for (int64_t t = 0; t < r->x.taps * r->x.out; t += r->x.out) {
            y[i] += r->w_x[t + i] * x[r->at_x[t + i]];
        }
    }
}

// Resamples a row along dimension 0. The inner groups are sums of moved rows: elements that are `step` apart are first
// put next to each other, and the results of a group are put next to each other in the end.
static void resample_row(const struct gb_cpu_call * call, const struct resampler * r, const float * x, float * y) {
    const struct axis * axis = &r->x;
    const int64_t first = r->inner * r->ways, end = r->inner_end * r->ways, n = r->inner_end - r->inner;
    if (n == 0) {
        call->k->resample_f32(axis->out, y, axis->n, x, axis->taps, r->at_x, r->w_x);
        return;
    }
    for (int64_t f = 0; f < r->step && r->step > 1; f++) {
        call->k->every_f32(axis->out, r->phases + f * axis->out, x + f, r->step);
    }
    for (int64_t f = 0; f < r->ways; f++) {
        const float * rows[GB_COMBINE_ROWS];
        float w[GB_COMBINE_ROWS];
        for (int t = 0; t < axis->taps; t++) {
            const int64_t at = r->at_x[t * axis->out + first + f];
            rows[t] = r->step > 1 ? r->phases + at % r->step * axis->out + at / r->step : x + at;
            w[t] = r->w_x[t * axis->out + first + f];
        }
        call->k->combine_f32(&(struct gb_combine){
            .n = n, .y = r->ways > 1 ? r->phases + f * n : y + first, .x = rows, .w = w, .taps = axis->taps });
    }
    if (r->ways > 1) {
        call->k->weave_f32(n, r->ways, y + first, r->phases, n);
    }
    resample_some(r, x, 0, first, y);
    resample_some(r, x, end, axis->out, y);
}

// Keeps row `i1` of a plane of the source, resampled, and returns its slot. Neighbouring rows have different slots.
static int keep_row(const struct gb_cpu_call * call, struct resampler * r, const struct ggml_tensor * a, int64_t i1,
    int64_t i2, int64_t i3) {
    const int64_t number = (i3 * a->ne[2] + i2) * a->ne[1] + i1;
    const int slot = (int) (number % r->slots);
    if (r->kept_row[slot] != number) {
        resample_row(call, r, gb_in(call->k, a, gb_row_ptr(a, i1, i2, i3), a->ne[0], r->source),
            r->kept + slot * r->pitch);
        r->kept_row[slot] = number;
    }
    return slot;
}

// Rows of a plane of the source that are added together, at most as many as there are slots.
struct group {
    const float * x[SLOTS];
    float w[SLOTS];
    int n;
};

// Takes rows from tap t on, and returns the first tap that is left. Taps without weight are skipped.
// Neighbouring taps at an edge have the same row. Kept rows of a group have different slots.
static int take_rows(const struct gb_cpu_call * call, struct resampler * r, const struct ggml_tensor * a, int64_t i2,
    int64_t i3, int t, struct group * g) {
    int32_t first = 0, last = -1;
    for (g->n = 0; t < r->y.taps; t++) {
        if (r->w_y[t] == 0) {
            continue;
        }
        if (r->at_y[t] == last) {
            g->w[g->n - 1] += r->w_y[t];
            continue;
        }
        last = r->at_y[t];
        first = g->n == 0 ? last : first;
        if (last - first >= r->slots) {
            break;
        }
        g->x[g->n] = r->sums_first ? (const float *) (const void *) gb_row_ptr(a, last, i2, i3)
                                   : r->kept + keep_row(call, r, a, last, i2, i3) * r->pitch;
        g->w[g->n++] = r->w_y[t];
    }
    return t;
}

// The elements of the source that will be read next, for prefetching: the row after those of this result, if its
// elements are consecutive floats. If a plane gets fewer rows, the next result needs about two more.
static int64_t next_row(const struct ggml_tensor * a, const struct resampler * r, int64_t i2, int64_t i3,
    const float ** next) {
    const int64_t i1 = r->at_y[r->y.taps - 1] + 1, n = a->ne[0];
    if (i1 >= a->ne[1] || a->type != GGML_TYPE_F32 || a->nb[0] != sizeof(float)) {
        return 0;
    }
    *next = (const float *) (const void *) gb_row_ptr(a, i1, i2, i3);
    return r->sums_first && a->nb[1] == (size_t) n * sizeof(float) && i1 + 1 < a->ne[1] ? 2 * n : n;
}

// y = the sum of the rows of a plane that the current result depends on, n elements of each. As many taps at a time as
// there are slots. False: the run was stopped.
static bool add_rows(const struct gb_cpu_call * call, const struct ggml_tensor * a, struct resampler * r, int64_t i2,
    int64_t i3, int64_t n, float * y, bool far) {
    for (int t = 0; t < r->y.taps;) {
        struct group g;
        struct gb_combine sums = { .n = n, .y = y, .x = g.x, .w = g.w, .add = t > 0, .far = far };
        t = take_rows(call, r, a, i2, i3, t, &g);
        if (g.n == 0) {
            break;
        }
        sums.taps = g.n;
        sums.n_next = next_row(a, r, i2, i3, &sums.next);
        call->k->combine_f32(&sums);
        if (gb_cpu_stopped(call, 2 * r->slots * n)) {
            return false;
        }
    }
    return true;
}

static void smooth_row(const struct gb_cpu_call * call, const struct ggml_tensor * node, struct resampler * r,
    struct gb_row row, char * d, bool far) {
    const struct ggml_tensor * a = node->src[0];
    const int64_t n = node->ne[0], i2 = row.i2 * a->ne[2] / node->ne[2], i3 = row.i3 * a->ne[3] / node->ne[3];
    const bool direct = far && !r->sums_first && r->y.taps <= r->slots; // one group is added straight to its place
    float * sum = direct ? (float *) (void *) d : far ? r->sum : gb_out(node, d, n, r->sum);
    find_taps(&r->y, row.i1, r->at_y, r->w_y, 1);
    if (!r->sums_first) {
        if (!add_rows(call, a, r, i2, i3, n, sum, direct)) {
            return;
        }
    } else {
        if (!add_rows(call, a, r, i2, i3, a->ne[0], r->source, false)) {
            return;
        }
        resample_row(call, r, r->source, sum);
    }
    if (!far) {
        gb_put(call->k, node, d, n, sum);
    } else if (!direct) {
        stream(call, node, d, sum, NULL);
    }
}

// at: the offset of each element's source. If two rows have the same source row, the second one is
// copied from the first.
static void nearest_row(const struct gb_cpu_call * call, const struct ggml_tensor * node, const int32_t * at,
    const char * s, char * d) {
    const size_t size = ggml_type_size(node->type), from = node->src[0]->nb[0];
    if (size == sizeof(float) && from == size && node->nb[0] == size && ((uintptr_t) s | (uintptr_t) d) % size == 0) {
        call->k->resample_f32(node->ne[0], (float *) (void *) d, node->src[0]->ne[0], (const float *) (const void *) s,
            1, at, NULL);
        return;
    }
    for (int64_t i = 0; i < node->ne[0]; i++) {
        memcpy(d + (size_t) i * node->nb[0], s + (size_t) at[i] * from, size);
    }
}

static void run_nearest(const struct gb_cpu_call * call, struct ggml_tensor * node) {
    const struct ggml_tensor * a = node->src[0];
    const struct axis x = axis_of(node, 0), y = axis_of(node, 1);
    int32_t * at = (int32_t *) (void *) gb_my_floats(call, 2 * x.out);
    const bool far = streams(node);
    for (int64_t i = 0; i < x.out; i++) {
        at[i] = (int32_t) nearest(&x, i);
    }
    char * scratch = (char *) (at + x.out);
    const char *last_source = NULL, *last_row = NULL;
    int64_t first, last;
    gb_cpu_share(call, gb_rows(node), &first, &last);
    for (int64_t u = first; u < last; u++) {
        const struct gb_row r = gb_row_at(node, u);
        char *d = gb_row_of(node, r), *to = far ? scratch : d;
        const char * s = gb_row_ptr(a, nearest(&y, r.i1), r.i2 * a->ne[2] / node->ne[2], r.i3 * a->ne[3] / node->ne[3]);
        if (s != last_source) {
            nearest_row(call, node, at, s, to);
        } else if (!far) {
            gb_move(ggml_type_size(node->type), node->ne[0], d, node->nb[0], last_row, node->nb[0]);
        }
        if (far) {
            stream(call, node, d, (const float *) (const void *) scratch, NULL);
        }
        last_source = s;
        last_row = d;
        if (gb_cpu_stopped(call, node->ne[0])) {
            break;
        }
    }
    if (far) {
        end_stream(call);
    }
}

static void run_interpolate(const struct gb_cpu_call * call, struct ggml_tensor * node) {
    if ((gb_op_param_i32(node, 0) & 0xff) == GGML_SCALE_MODE_NEAREST) {
        run_nearest(call, node);
        return;
    }
    struct resampler r;
    open_resampler(&r, call, node);
    const bool far = node->type == GGML_TYPE_F32 && streams(node);
    int64_t first, last;
    gb_cpu_share(call, gb_rows(node), &first, &last);
    for (int64_t u = first; u < last; u++) {
        const struct gb_row row = gb_row_at(node, u);
        smooth_row(call, node, &r, row, gb_row_of(node, row), far);
        if (gb_cpu_stopped(call, 4 * node->ne[0])) {
            break;
        }
    }
    if (far) {
        end_stream(call);
    }
}

// Offsets are products of two sizes, and are stored in tables of i32.
static const char * interpolate_unsupported(const struct ggml_tensor * node) {
    const struct ggml_tensor * a = node->src[0];
    for (int d = 0; d < 4; d++) {
        if (a->ne[d] > INT32_MAX || node->ne[d] > INT32_MAX) {
            return "a size is 2^31 or more";
        }
    }
    return (gb_op_param_i32(node, 0) & 0xff) == GGML_SCALE_MODE_NEAREST ? gb_need_same(node, 1)
                                                                        : gb_need_float(node, 1);
}

static int interpolate_tasks(const struct ggml_tensor * node, int n_threads) {
    return gb_tasks_for((double) gb_count(node) + (double) gb_count(node->src[0]), gb_rows(node), n_threads);
}

static size_t interpolate_work(const struct ggml_tensor * node, int n_tasks) {
    return gb_floats_size(scratch_floats(node), n_tasks);
}

const struct gb_cpu_op gb_cpu_op_interpolate = {
    .unsupported = interpolate_unsupported,
    .n_tasks = interpolate_tasks,
    .work_size = interpolate_work,
    .run = run_interpolate,
};
const struct gb_cpu_op gb_cpu_op_pad_ext = {
    .unsupported = move_unsupported, .n_tasks = gb_tasks_dst_rows, .work_size = rows_work, .run = run_pad_ext
};
const struct gb_cpu_op gb_cpu_op_pad_reflect_1d = {
    .unsupported = move_unsupported, .n_tasks = gb_tasks_dst_rows, .work_size = rows_work, .run = run_pad_reflect_1d
};
const struct gb_cpu_op gb_cpu_op_roll = {
    .unsupported = move_unsupported, .n_tasks = gb_tasks_dst_rows, .work_size = rows_work, .run = run_roll
};
