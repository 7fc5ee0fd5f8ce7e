// rope.c - ROPE and ROPE_BACK: pairs of elements of a head are rotated by angles that grow with the
// token's position.
//
// The rotation depends on the position and the pair only. So a thread computes the table of a
// position (cosines and sines of angles in double) once, and applies it to all heads of the token.
// Layouts differ in the elements of pair j:
//   normal  (2j, 2j+1) for the whole row; with GGML_ROPE_EXACT for j < n_dims/2
//   NeoX    (j, j + n_dims/2) for j < n_dims/2; also MROPE and IMROPE
//   VISION  (j, j + n_dims) for rows of 2 n_dims elements
//   GLM     two halves of n_dims elements: (j, j + n_dims/2) by one position, the same pairs in the second half by
//           another
// Elements without a pair are copied. Pairs begin at element n_offs in the exact layouts.
//
// Without GGML_ROPE_EXACT, NeoX multiplies by freq_scale twice, and all pairs use the ramp of pair
// 0, as programs of early 2024 expect. MROPE, IMROPE and VISION have four positions a token, and
// each pair uses one of them.
//
// In the normal layout the table is repeated for several contiguous rows, so that one call of the
// kernel rotates all of them.
#include "cpu/ops/rope.h"

#include <math.h>

#include "cpu/ops/elements.h"
#include "tensor/check.h"
#include "tensor/numbers.h"

enum { REPEATS = 4 };

// The parameters of a node, decoded once for each run.
struct rope {
    int n_dims, mode, n_ctx;
    double freq_base, freq_scale, ext_factor, attn_factor;
    double low, high; // the pairs between which YaRN's ramp is
    double xpos_base; // 0: no magnitude
    bool xpos_down, back;
    int32_t sections[4]; // of modes that gb_rope_has_sections names
    const struct ggml_tensor * factors; // by which frequencies are divided; NULL: none
    int64_t offset; // of the first pair
    int64_t n; // elements of a row
    int64_t repeats; // of the table of a row
};

// The pair whose wavelength fits `beta` times into the original context.
static double corr_dim(const struct rope * r, int n_orig_ctx, double beta) {
    return r->n_dims * log(n_orig_ctx / (2.0 * 3.14159265358979323846 * beta)) / (2.0 * log(r->freq_base));
}

// Pairs of a row that are rotated.
static int64_t n_turns(const struct rope * r) {
    if (gb_rope_has_sections(r->mode)) {
        return gb_rope_pairs(r->mode, r->n_dims);
    }
    return !(r->mode & GB_ROPE_GLM) && r->mode & (GB_ROPE_NEOX | GGML_ROPE_EXACT) ? r->n_dims / 2 : r->n / 2;
}

// NeoX without GGML_ROPE_EXACT: see the head of this file.
static bool scales_twice(const struct rope * r) { return (r->mode & GB_ROPE_NEOX) && !(r->mode & GGML_ROPE_EXACT); }

// True if pairs are of elements far apart.
static bool has_halves(const struct rope * r) { return (r->mode & GB_ROPE_NEOX) || gb_rope_has_sections(r->mode); }

// op_params as struct gb_rope describes them.
static struct rope rope_of(const struct ggml_tensor * node) {
    struct rope r = {
        .n_dims = gb_op_param_i32(node, 1),
        .mode = gb_op_param_i32(node, 2),
        .n_ctx = gb_op_param_i32(node, 3),
        .freq_base = gb_op_param_f32(node, 5),
        .freq_scale = gb_op_param_f32(node, 6),
        .ext_factor = gb_op_param_f32(node, 7),
        .attn_factor = gb_op_param_f32(node, 8),
        .back = node->op == GGML_OP_ROPE_BACK,
        .factors = node->src[2],
        .n = node->ne[0],
    };
    if (gb_rope_has_sections(r.mode)) {
        memcpy(r.sections, &node->op_params[11], sizeof(r.sections));
    } else {
        r.xpos_base = node->type == GGML_TYPE_F32 ? gb_op_param_f32(node, 11) : 0.0; // defined for f32 only
        r.xpos_down = (gb_op_param_i32(node, 12) & 0xff) != 0;
    }
    r.offset = r.mode & GGML_ROPE_EXACT ? gb_op_param_i32(node, 15) : 0;
    if (r.ext_factor != 0) {
        const int n_orig_ctx = gb_op_param_i32(node, 4);
        r.low = fmax(0, floor(corr_dim(&r, n_orig_ctx, gb_op_param_f32(node, 9))));
        r.high = fmin(r.n_dims - 1, ceil(corr_dim(&r, n_orig_ctx, gb_op_param_f32(node, 10))));
    }
    r.repeats = !(r.mode & GB_ROPE_GLM) && !has_halves(&r) && 2 * n_turns(&r) == r.n
                    ? GB_MAX((int64_t) 1, GB_MIN(node->ne[1], (int64_t) REPEATS))
                    : 1;
    return r;
}

// ------------------------------------------------------------------------------------------------ tables of a position

struct turn { // cosine and sine of a pair, with its magnitude
    float c, s;
};

// The rotations of a position. c and s have one value for each pair. c2 and s2 (normal mode) have
// one for each element, as the kernel needs.
struct turns {
    double *freq, *angle;
    int32_t * stream; // of the pair: which of four positions it uses
    float *c, *s, *c2, *s2;
};

struct positions { // of a token; without sections all are equal
    int32_t p[4];
};

// A backward rotation uses the opposite angle, that is, the opposite sign of the sine.
static struct turn turn_by(const struct rope * r, double angle, double magnitude) {
    const double s = sin(angle) * magnitude;
    return (struct turn){ (float) (cos(angle) * magnitude), (float) (r->back ? -s : s) };
}

// `pair` is the position of the pair on the ramp between interpolated (scaled) and extrapolated
// (unscaled) angles.
static struct turn turn_yarn(const struct rope * r, double extrapolated, int64_t pair, double factor) {
    double angle = r->freq_scale * extrapolated;
    double magnitude = r->attn_factor;
    if (r->ext_factor != 0) {
        const double at = ((double) pair - r->low) / fmax(0.001, r->high - r->low);
        const double ramp = 1.0 - fmin(1.0, fmax(0.0, at));
        const double mix = ramp * r->ext_factor;
        angle = angle * (1 - mix) + extrapolated * mix;
        magnitude *= 1.0 + 0.1 * log(1.0 / r->freq_scale);
    }
    return turn_by(r, angle, magnitude * factor);
}

// xPos: a magnitude that grows or falls with the position, so that distant tokens get less
// attention. 1 without xPos.
static double xpos_factor(const struct rope * r, int64_t j, int32_t position) {
    if (r->xpos_base == 0) {
        return 1;
    }
    const double n = (double) r->n;
    const double base = (2.0 * (double) j + 0.4 * n) / (1.4 * n);
    const double zeta = pow(base, (double) position / r->xpos_base);
    return r->xpos_down ? 1.0 / zeta : zeta;
}

// The position that pair j uses. *exponent: the pair's number in the powers of the base.
static int32_t stream_of(const struct rope * r, int64_t j, int64_t * exponent) {
    const int32_t * s = r->sections;
    *exponent = j;
    if (!gb_rope_has_sections(r->mode)) {
        return 0;
    }
    const int64_t k = j % ((int64_t) s[0] + s[1] + s[2] + s[3]); // the sum is above 0 (gb_check_rope)
    if (r->mode == (GGML_ROPE_EXACT | GGML_ROPE_TYPE_IMROPE)) {
        return k < 3 * (int64_t) s[k % 3] ? (int32_t) (k % 3) : 3;
    }
    int64_t start = 0;
    int32_t stream = 0;
    while (stream < 3 && k >= start + s[stream]) {
        start += s[stream++];
    }
    *exponent = gb_rope_is_vision(r->mode) ? k - start : j;
    return stream;
}

// freq_base^(-2 exponent / n_dims), divided by the factor of the pair
static void fill_frequencies(const struct rope * r, const struct turns * t) {
    for (int64_t j = 0; j < n_turns(r); j++) {
        int64_t exponent;
        t->stream[j] = stream_of(r, j, &exponent);
        t->freq[j] = pow(r->freq_base, -2.0 * (double) exponent / r->n_dims);
        if (r->factors != NULL) {
            t->freq[j] /= (double) gb_get_f32((const char *) r->factors->data + (size_t) j * r->factors->nb[0]);
        }
    }
}

static void set_turn(const struct turns * t, int64_t j, struct turn turn) {
    t->c[j] = turn.c;
    t->s[j] = turn.s;
}

// True if angles are multiples of the frequencies and the magnitude is 1, the most common case.
static bool is_plain(const struct rope * r) {
    return !(r->mode & GB_ROPE_GLM) && r->ext_factor == 0 && r->attn_factor == 1 && r->xpos_base == 0;
}

#define KERNEL_ANGLE 1048576.0 // up to which the kernel is exact

// The common case: all pairs in one call of the kernel. Angles too large for the kernel are
// computed one by one.
static void fill_plain(const struct gb_kernels * k, const struct rope * r, const struct positions * at,
    const struct turns * t) {
    const int64_t n = n_turns(r);
    const double scale = r->freq_scale * (scales_twice(r) ? r->freq_scale : 1.0);
    const double factor[4] = { at->p[0] * scale, at->p[1] * scale, at->p[2] * scale, at->p[3] * scale };
    int large = 0;
    for (int64_t j = 0; j < n; j++) {
        t->angle[j] = factor[t->stream[j]] * t->freq[j];
        large |= !(fabs(t->angle[j]) < KERNEL_ANGLE);
    }
    k->sincos_f64(n, t->c, t->s, t->angle);
    if (r->back) {
        k->neg_f32(n, t->s, t->s);
    }
    for (int64_t j = 0; large && j < n; j++) {
        if (!(fabs(t->angle[j]) < KERNEL_ANGLE)) {
            set_turn(t, j, turn_by(r, t->angle[j], 1.0));
        }
    }
}

// All other cases, pair by pair: GLM, YaRN, xPos, and an attention factor.
static void fill_other(const struct rope * r, const struct positions * at, const struct turns * t) {
    const int64_t n = n_turns(r);
    const double * freq = t->freq;
    const int32_t position = at->p[0];
    if (r->mode & GB_ROPE_GLM) { // second half: by the position in the generated block
        const double text = GB_MIN((double) position, (double) r->n_ctx - 2),
                     block = GB_MAX((double) position - ((double) r->n_ctx - 2), 0.0);
        for (int64_t j = 0; j < n / 2; j++) {
            set_turn(t, j, turn_by(r, text * freq[j], 1.0));
            set_turn(t, n / 2 + j, turn_by(r, block * freq[j], 1.0));
        }
    } else if (scales_twice(r)) { // and all pairs share the ramp of pair 0
        for (int64_t j = 0; j < n; j++) {
            set_turn(t, j, turn_yarn(r, position * r->freq_scale * freq[j], 0, 1.0));
        }
    } else {
        for (int64_t j = 0; j < n; j++) {
            set_turn(t, j, turn_yarn(r, at->p[t->stream[j]] * freq[j], j, xpos_factor(r, j, position)));
        }
    }
}

// Fills all tables for a position. The tables of the normal layout have the sine with alternating
// signs, one value for each element, r->repeats times.
static void fill_turns(const struct gb_kernels * k, const struct rope * r, const struct positions * at,
    const struct turns * t) {
    if (is_plain(r)) {
        fill_plain(k, r, at, t);
    } else {
        fill_other(r, at, t);
    }
    for (int64_t j = 0; j < n_turns(r) && !(r->mode & GB_ROPE_GLM) && !has_halves(r); j++) {
        t->c2[2 * j] = t->c2[2 * j + 1] = t->c[j];
        t->s2[2 * j] = -t->s[j];
        t->s2[2 * j + 1] = t->s[j];
    }
    for (int64_t i = 1; i < r->repeats; i++) {
        memcpy(t->c2 + i * r->n, t->c2, (size_t) r->n * sizeof(float));
        memcpy(t->s2 + i * r->n, t->s2, (size_t) r->n * sizeof(float));
    }
}

// ----------------------------------------------------------------------------------------------------------- rotations

// Copies the elements before and after the pairs, unless the node is in place.
static void copy_rest(const struct rope * r, float * y, const float * x, int64_t rotated) {
    const int64_t end = r->offset + rotated;
    if (y != x) {
        memcpy(y, x, (size_t) r->offset * sizeof(float));
        memcpy(y + end, x + end, (size_t) (r->n - end) * sizeof(float));
    }
}

// Rotates one row with the tables of its position.
static void rotate_row(const struct gb_kernels * k, const struct rope * r, float * y, const float * x,
    const struct turns * t) { // y may be x
    const int64_t n = n_turns(r);
    if (r->mode & GB_ROPE_GLM) {
        k->rope_halves_f32(n / 2, y, x, t->c, t->s);
        k->rope_halves_f32(n / 2, y + n, x + n, t->c + n / 2, t->s + n / 2);
        return;
    }
    if (has_halves(r)) {
        k->rope_halves_f32(n, y + r->offset, x + r->offset, t->c, t->s);
    } else {
        k->rope_pairs_f32(2 * n, y + r->offset, x + r->offset, t->c2, t->s2);
    }
    copy_rest(r, y, x, 2 * n);
}

// -------------------------------------------------------------------------------------------------------------- the op

struct scratch { // of a thread: each at most n/2 + 1 pairs
    struct turns turns;
    float * row;
};

// freq and angle are doubles, two floats each. Then stream, c and s, c2 and s2 for REPEATS rows,
// and REPEATS rows.
static int64_t scratch_floats(const struct ggml_tensor * node) {
    return (7 + 4 * REPEATS) * (node->ne[0] / 2 + 1) + REPEATS * node->ne[0];
}

// Doubles come first, because the start of the scratch is aligned for them.
static struct scratch scratch_of(const struct gb_cpu_call * call, const struct ggml_tensor * node) {
    float * p = gb_my_floats(call, scratch_floats(node));
    const int64_t pairs = node->ne[0] / 2 + 1;
    float * c = p + 5 * pairs;
    return (struct scratch){ { .freq = (double *) (void *) p,
                                 .angle = (double *) (void *) (p + 2 * pairs),
                                 .stream = (int32_t *) (void *) (p + 4 * pairs),
                                 .c = c,
                                 .s = c + pairs,
                                 .c2 = c + 2 * pairs,
                                 .s2 = c + (2 + 2 * REPEATS) * pairs },
        c + (2 + 4 * REPEATS) * pairs };
}

// Rotates n rows of a token from `at` on, which have a constant distance.
static void rotate_rows(const struct gb_cpu_call * call, const struct rope * r, const struct ggml_tensor * a,
    struct ggml_tensor * out, struct gb_row at, int64_t n, const struct scratch * s) {
    char * d = gb_row_of(out, at);
    const char * p = gb_row_of(a, at);
    const size_t size = (size_t) r->n * sizeof(float);
    const bool from = r->repeats > 1 && gb_is_direct(a, p, r->n) && a->nb[1] == size,
               to = gb_is_direct(out, d, r->n) && out->nb[1] == size;
    for (int64_t i = 0, rows; i < n; i += rows, p += (size_t) rows * a->nb[1]) {
        rows = from ? GB_MIN(n - i, r->repeats) : 1;
        const float * x = gb_in(call->k, a, p, r->n, s->row);
        float * y = rows == 1 || to ? gb_out(out, d, r->n, s->row) : s->row;
        if (from) {
            call->k->rope_pairs_f32(rows * r->n, y, x, s->turns.c2, s->turns.s2);
        } else {
            rotate_row(call->k, r, y, x, &s->turns);
        }
        for (int64_t j = 0; j < rows; j++, d += out->nb[1]) {
            gb_put(call->k, out, d, r->n, y + j * r->n);
        }
    }
}

// The positions of the token. With sections, b has all first positions, then all second positions,
// and so on.
static struct positions positions_of(const struct rope * r, const struct ggml_tensor * node, int64_t token) {
    const struct ggml_tensor * b = node->src[1];
    const int64_t apart = gb_rope_has_sections(r->mode) ? node->ne[2] : 0;
    struct positions at;
    for (int i = 0; i < 4; i++) {
        at.p[i] = gb_get_i32((const char *) b->data + (size_t) (token + i * apart) * b->nb[0]);
    }
    return at;
}

// Rows of a token are consecutive, so a table is filled again only when a position changes. Threads
// share the rows.
void gb_rope_run_to(const struct gb_cpu_call * call, const struct ggml_tensor * node, struct ggml_tensor * out) {
    const struct rope r = rope_of(node);
    const struct scratch s = scratch_of(call, node);
    bool filled = false;
    struct positions known = { { 0 } };
    int64_t first, last, rows;
    gb_cpu_share(call, node->ne[0] > 0 ? gb_rows(node) : 0, &first, &last);
    if (first >= last) {
        return;
    }
    fill_frequencies(&r, &s.turns);
    for (int64_t i = first; i < last; i += rows) {
        const struct gb_row at = gb_row_at(node, i);
        const struct positions now = positions_of(&r, node, at.i2);
        if (!filled || memcmp(&now, &known, sizeof(now)) != 0) {
            fill_turns(call->k, &r, &now, &s.turns);
            filled = true;
            known = now;
        }
        rows = GB_MIN(last - i, node->ne[1] - at.i1);
        rotate_rows(call, &r, node->src[0], out, at, rows, &s);
        if (gb_cpu_stopped(call, rows * r.n)) {
            return;
        }
    }
}

static void run_rope(const struct gb_cpu_call * call, struct ggml_tensor * node) { gb_rope_run_to(call, node, node); }

// Refuses parameters for which tables cannot be sized.
static const char * rope_unsupported(const struct ggml_tensor * node) {
    const int n_dims = gb_op_param_i32(node, 1), mode = gb_op_param_i32(node, 2);
    const char * why = gb_need_float(node, 1);
    if (why != NULL) {
        return why;
    }
    if (node->src[1] == NULL || node->src[1]->type != GGML_TYPE_I32) {
        return "source 1 must be i32";
    }
    if (node->src[2] != NULL && node->src[2]->type != GGML_TYPE_F32) {
        return "source 2 must be f32";
    }
    if (n_dims < 1 || n_dims > node->ne[0] || n_dims % 2 != 0) {
        return "n_dims must be even and fit into a row";
    }
    return (mode & GB_ROPE_GLM) && node->ne[0] != 2 * (int64_t) n_dims ? "mode 4 needs rows of 2 n_dims elements"
                                                                       : NULL;
}

static size_t rope_work(const struct ggml_tensor * node, int n_tasks) {
    return gb_floats_size(scratch_floats(node), n_tasks);
}

const struct gb_cpu_op gb_cpu_op_rope = {
    .unsupported = rope_unsupported, .n_tasks = gb_tasks_dst_rows, .work_size = rope_work, .run = run_rope
};
const struct gb_cpu_op gb_cpu_op_rope_back = {
    .unsupported = rope_unsupported,
    .n_tasks = gb_tasks_dst_rows,
    .work_size = rope_work,
    .run = run_rope,
};
