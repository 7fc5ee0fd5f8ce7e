// attention_rows.c - the rows of attention: which keys they see, their scores, sums and results.
//
// A key that GB_SCORE_MASK hides with -inf has the weight 0, whatever the key holds. Adding -inf to a score hides the
// key, unless the score is NaN or +inf. So only rows whose largest score is NaN or +inf are looked at key by key.
#include <assert.h>
#include <math.h>

#include "cpu/ops/attention.h"

// The exponential of a score this far below the largest one counts as 0. It is below 2^-100, and
// its products may be subnormal numbers, which are slow.
#define LEAST (-70.0f)

// -------------------------------------------------------------------------------------------------------------- shapes

static int64_t greatest_divisor(int64_t a, int64_t b) {
    while (b != 0) {
        const int64_t rest = a % b;
        a = b;
        b = rest;
    }
    return a;
}

void gb_attention_set_group(struct gb_attention * a) {
    const int64_t heads = a->q->ne[2];
    a->group = a->in_turn || a->k->ne[2] == 0 || a->v->ne[2] == 0 || heads == 0
                   ? 1
                   : GB_MAX(greatest_divisor(heads / a->k->ne[2], heads / a->v->ne[2]), (int64_t) 1);
}

int64_t gb_attention_planes(const struct gb_attention * a) { return a->q->ne[2] / a->group * a->q->ne[3]; }

struct gb_row gb_attention_row_at(const struct gb_attention * a, int64_t plane, int64_t row) {
    const int64_t groups = a->q->ne[2] / a->group;
    return (struct gb_row){ row / a->group, plane % groups * a->group + row % a->group, plane / groups };
}

// The head, of n heads, that query head i of n_query uses.
static int64_t head_of(const struct gb_attention * a, int64_t i, int64_t n, int64_t n_query) {
    return a->in_turn ? i % n : i / (n_query / n);
}

struct gb_attention_heads gb_attention_heads_of(const struct gb_attention * a, struct gb_row at) {
    const struct ggml_tensor *q = a->q, *k = a->k, *v = a->v;
    struct gb_attention_heads h = { .k2 = head_of(a, at.i2, k->ne[2], q->ne[2]),
        .k3 = head_of(a, at.i3, k->ne[3], q->ne[3]),
        .v2 = head_of(a, at.i2, v->ne[2], q->ne[2]),
        .v3 = head_of(a, at.i3, v->ne[3], q->ne[3]) };
    h.number = ((h.k3 * k->ne[2] + h.k2) * v->ne[3] + h.v3) * v->ne[2] + h.v2;
    return h;
}

void gb_attention_divide(struct gb_attention * a, int64_t units, int64_t wanted, int64_t least) {
    const int64_t keys = a->k->ne[1];
    const int64_t parts = units > 0 ? GB_MIN(gb_div_up(wanted, units), GB_MAX(keys / least, (int64_t) 1)) : 1;
    a->part = GB_MAX(gb_div_up(gb_div_up(keys, parts), least), (int64_t) 1) * least;
    a->parts = GB_MAX(gb_div_up(keys, a->part), (int64_t) 1);
}

// --------------------------------------------------------------------------------------------------------------- masks

// The row of an edit's tensor for a row of scores.
static const char * edit_row(const struct gb_score_edit * e, struct gb_row at) {
    const struct ggml_tensor * t = e->t;
    return gb_row_ptr(t, at.i1 % t->ne[1], at.i2 % t->ne[2], at.i3 % t->ne[3]);
}

enum { AT_ONCE = 128 }; // bytes that are compared at a time

// True if `bytes` bytes at p, whole elements, are -inf.
static bool are_hidden(enum ggml_type type, const char * p, size_t bytes) {
#define EIGHT(x) x, x, x, x, x, x, x, x
    static const uint32_t f32[] = { EIGHT(0xff800000), EIGHT(0xff800000), EIGHT(0xff800000), EIGHT(0xff800000) };
    static const uint32_t f16[] = { EIGHT(0xfc00fc00), EIGHT(0xfc00fc00), EIGHT(0xfc00fc00), EIGHT(0xfc00fc00) };
#undef EIGHT
    static_assert(sizeof(f32) == AT_ONCE && sizeof(f16) == AT_ONCE, "one comparison");
    return memcmp(p, type == GGML_TYPE_F32 ? f32 : f16, bytes) == 0;
}

// The elements that are compared at a time. Strided elements are compared one by one.
static int64_t elements_at_once(const struct ggml_tensor * t) {
    const size_t size = ggml_type_size(t->type);
    return t->nb[0] == size ? AT_ONCE / (int64_t) size : INT64_MAX;
}

// The end of [first, end) without trailing elements of -inf.
static int64_t end_of_visible(const struct ggml_tensor * t, const char * row, int64_t first, int64_t end) {
    const int64_t many = elements_at_once(t);
    while (end - first >= many && are_hidden(t->type, row + (size_t) (end - many) * t->nb[0], AT_ONCE)) {
        end -= many;
    }
    while (end > first && are_hidden(t->type, row + (size_t) (end - 1) * t->nb[0], ggml_type_size(t->type))) {
        end--;
    }
    return end;
}

// The beginning of [first, end) without leading elements of -inf.
static int64_t start_of_visible(const struct ggml_tensor * t, const char * row, int64_t first, int64_t end) {
    const int64_t many = elements_at_once(t);
    while (end - first >= many && are_hidden(t->type, row + (size_t) first * t->nb[0], AT_ONCE)) {
        first += many;
    }
    while (end > first && are_hidden(t->type, row + (size_t) first * t->nb[0], ggml_type_size(t->type))) {
        first++;
    }
    return first;
}

// True if the elements [first, end) are +0. False for strided elements.
static bool are_zero(const struct ggml_tensor * t, const char * row, int64_t first, int64_t end) {
    static const char zeros[AT_ONCE];
    const size_t size = ggml_type_size(t->type), last = (size_t) end * size;
    bool zero = t->nb[0] == size;
    for (size_t i = (size_t) first * size; i < last && zero; i += AT_ONCE) {
        zero = memcmp(row + i, zeros, GB_MIN(last - i, (size_t) AT_ONCE)) == 0;
    }
    return zero;
}

static bool all_below_infinity(const char * row, int64_t first, int64_t end) {
    const float * x = (const float *) (const void *) row;
    bool fine = true;
    for (int64_t i = first; i < end; i++) {
        fine &= x[i] < 1e38f;
    }
    return fine;
}

void gb_attention_look(const struct gb_attention * a, struct gb_row at, struct gb_attention_view * view) {
    const int64_t m = a->k->ne[1];
    const char * row[GB_SCORE_EDITS];
    int64_t before[GB_SCORE_EDITS], behind[GB_SCORE_EDITS]; // [behind, before) of the row is -inf
    view->end = a->causal ? GB_MAX((int64_t) 0, GB_MIN(a->past + at.i1 + 1, view->end)) : view->end;
    view->masks_hide = view->plain = true;
    for (int i = 0; i < a->n_edits; i++) {
        const struct gb_score_edit * e = &a->edits[i];
        row[i] = e->t != NULL ? edit_row(e, at) : NULL;
        before[i] = view->end;
        if (e->t != NULL) {
            view->end = end_of_visible(e->t, row[i], view->first, view->end);
        }
        if (e->kind == GB_SCORE_MASK) {
            view->first = start_of_visible(e->t, row[i], view->first, view->end);
        }
        behind[i] = view->end;
    }
    for (int i = 0; i < a->n_edits; i++) {
        const struct ggml_tensor * t = a->edits[i].t;
        view->plain = view->plain && (t == NULL || are_zero(t, row[i], view->first, view->end));
        view->masks_hide = view->masks_hide &&
                           (a->edits[i].kind != GB_SCORE_ADD || (all_below_infinity(row[i], view->end, behind[i]) &&
                                                                    all_below_infinity(row[i], before[i], m)));
    }
}

// n values of a mask, from key0 on, in place or converted.
static const float * mask_of(struct gb_attention_scores * s, const struct gb_score_edit * e, struct gb_row at,
    int64_t key0, int64_t n) {
    const char * from = edit_row(e, at) + (size_t) key0 * e->t->nb[0];
    if (gb_is_direct(e->t, from, n)) {
        return (const float *) (const void *) from;
    }
    if (s->from != from || s->n < n) {
        gb_load(s->k, e->t->type, n, s->mask, from, e->t->nb[0]);
        s->from = from;
        s->n = n;
    }
    return s->mask;
}

// -------------------------------------------------------------------------------------------------------------- scores

// Hides keys like DIAG_MASK_INF.
static void hide(const struct gb_attention * a, float * score, int64_t query, int64_t key0, int64_t n) {
    for (int64_t i = GB_MAX((int64_t) 0, a->past + query + 1 - key0); i < n; i++) {
        score[i] = -INFINITY;
    }
}

static float slope_of(const struct gb_attention * a, const struct gb_score_edit * e, int64_t head) {
    const int n_head = (int) GB_MIN(a->q->ne[2], (int64_t) INT32_MAX);
    return e->value > 0 ? gb_alibi_slope(head, n_head, e->value) : 1.0f;
}

// Applies edit e to n scores of a row. Returns the values of GB_SCORE_MASK, or NULL.
static const float * edit(struct gb_attention_scores * s, const struct gb_score_edit * e, struct gb_row at,
    int64_t key0, int64_t n, float * score) {
    if (e->kind == GB_SCORE_MASK) {
        const float * mask = mask_of(s, e, at, key0, n);
        const float slope = slope_of(s->a, e, at.i2);
        if (slope == 1) {
            s->k->add_f32(n, score, score, mask);
        } else {
            s->k->mad_f32(n, score, mask, slope);
        }
        return mask;
    }
    if (e->kind == GB_SCORE_ADD) {
        s->k->add_f32(n, score, score, (const float *) (const void *) edit_row(e, at) + key0);
        return NULL;
    }
    if (e->kind == GB_SCORE_CAP) {
        s->k->tanh_f32(n, score, score);
    }
    s->k->scale_f32(n, score, score, e->value);
    return NULL;
}

// The largest score. A score that the mask hides becomes -inf even if it is NaN or +inf.
static float largest(const struct gb_kernels * k, const float * mask, int64_t n, float * score) {
    const float max = k->max_f32(n, score);
    if (mask == NULL || max < INFINITY) {
        return max;
    }
    for (int64_t i = 0; i < n; i++) {
        score[i] = mask[i] == -INFINITY ? -INFINITY : score[i];
    }
    return k->max_f32(n, score);
}

void gb_attention_weigh(struct gb_attention_scores * s, struct gb_attention_row * row, bool all_count, int64_t key0,
    int64_t n, float * score) {
    const struct gb_attention * a = s->a;
    const float * mask = NULL;
    for (int i = 0; i <= a->n_edits; i++) {
        if (all_count && a->causal && i == a->causal_at) {
            hide(a, score, row->at.i1, key0, n);
        }
        if (i < a->n_edits && (a->edits[i].t == NULL || all_count || !row->plain)) {
            mask = edit(s, &a->edits[i], row->at, key0, n, score);
        }
    }
    const float most = largest(s->k, mask, n, score), max = GB_MAX(row->max, most);
    if (isnan(most) || most == INFINITY) { // the row has no distribution
        row->sum = (double) NAN;
    }
    if (isnan(row->sum) || max == -INFINITY) {
        memset(score, 0, (size_t) n * sizeof(float));
        return;
    }
    if (max > row->max && row->max != -INFINITY) {
        const float apart = row->max - max, less = apart < LEAST ? 0.0f : expf(apart);
        s->k->scale_f32(gb_attention_width(a), row->out, row->out, less);
        row->sum *= (double) less;
    }
    row->max = max;
    row->sum += s->k->exp_sum_f32(n, score, score, max, LEAST);
}

// ------------------------------------------------------------------------------------------------------------- results

// Adds the head's sink to the sum. The results are the quotients.
static void finish(const struct gb_kernels * k, const struct gb_attention * a, const struct gb_attention_row * row,
    float * convert) {
    const int64_t n = gb_attention_width(a);
    const struct gb_row at = row->at;
    double sum = row->sum;
    float less = 1;
    if (a->sinks != NULL) {
        const float sink = gb_get_f32((const char *) a->sinks->data + (size_t) at.i2 * a->sinks->nb[0]);
        const float max = sink > row->max ? sink : row->max;
        less = row->max == -INFINITY ? 0 : expf(row->max - max);
        sum = sum * (double) less + (max == -INFINITY ? 0 : exp((double) sink - (double) max));
        sum = isnan(sink) ? (double) NAN : sum;
    }
    char * to = a->out + (size_t) at.i1 * a->nb[1] + (size_t) at.i2 * a->nb[2] + (size_t) at.i3 * a->nb[3];
    const bool direct = gb_are_floats(a->type, a->nb[0], to, n);
    float * y = direct ? (float *) (void *) to : convert;
    // A sum of 0 means that no key was seen; the results are then zeros.
    k->scale_f32(n, y, row->out, sum != 0 ? (float) ((double) less / sum) : 1.0f);
    if (!direct) {
        gb_store(k, a->type, n, to, a->nb[0], y);
    }
}

// The sums of a row over a part: the weighted values, the largest score, and the sum of exponentials, a double.
static int64_t part_floats(const struct gb_attention * a) { return gb_attention_width(a) + 3; }

static float * part_of(const struct gb_attention * a, float * parts, int64_t row, int64_t part) {
    return parts + (row * a->parts + part) * part_floats(a);
}

size_t gb_attention_parts_size(const struct gb_attention * a) {
    const int64_t rows = gb_attention_rows(a) * gb_attention_planes(a);
    return a->parts > 1 ? gb_lines((size_t) (rows * a->parts * part_floats(a)) * sizeof(float)) : 0;
}

void gb_attention_close(const struct gb_kernels * k, const struct gb_attention * a, const struct gb_attention_row * row,
    int64_t plane, int64_t number, int64_t part, float * convert, float * parts) {
    const int64_t n = gb_attention_width(a);
    if (a->parts <= 1) {
        finish(k, a, row, convert);
        return;
    }
    float * to = part_of(a, parts, plane * gb_attention_rows(a) + number, part);
    memcpy(to, row->out, (size_t) n * sizeof(float));
    to[n] = row->max;
    memcpy(to + n + 1, &row->sum, sizeof(row->sum));
}

// Adds the sums of all parts of a row, in their order.
static void combine_row(const struct gb_kernels * k, const struct gb_attention * a, int64_t number, float * out,
    float * parts) {
    const int64_t n = gb_attention_width(a), rows = gb_attention_rows(a);
    struct gb_attention_row row = {
        .at = gb_attention_row_at(a, number / rows, number % rows), .max = -INFINITY, .out = out
    };
    for (int64_t p = 0; p < a->parts; p++) {
        row.max = GB_MAX(row.max, part_of(a, parts, number, p)[n]);
    }
    memset(out, 0, (size_t) n * sizeof(float));
    for (int64_t p = 0; p < a->parts; p++) {
        const float * from = part_of(a, parts, number, p);
        double sum;
        memcpy(&sum, from + n + 1, sizeof(sum));
        const float weight = from[n] == -INFINITY ? 0.0f : expf(from[n] - row.max);
        if (weight != 0) {
            k->mad_f32(n, out, from, weight);
        }
        row.sum += isnan(sum) ? sum : sum * (double) weight;
    }
    finish(k, a, &row, out);
}

void gb_attention_combine(const struct gb_cpu_call * call, const struct gb_attention * a, float * out, float * parts) {
    int64_t first, last;
    if (a->parts <= 1 || !gb_cpu_barrier(call)) {
        return;
    }
    gb_cpu_share(call, gb_attention_rows(a) * gb_attention_planes(a), &first, &last);
    for (int64_t i = first; i < last; i++) {
        combine_row(call->k, a, i, out, parts);
        if (gb_cpu_stopped(call, a->parts * gb_attention_width(a) / 8)) {
            return;
        }
    }
}
