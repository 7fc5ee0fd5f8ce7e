// rope.cu - ROPE and ROPE_BACK: rotate pairs of elements of a head by angles that grow with the
// token's position. If the only reader of the result is a copy, such as that of keys into a cache, the
// result is written directly into the copy.
//
// The first kernel makes a table of cosines and sines for each position and pair, once for all nodes of a graph with
// the same positions and parameters (gb_cuda_keep). Angles are in double precision: at position 100,000 a float is
// wrong by a hundredth of a turn. The second kernel applies the table to all heads. Pairs and angles follow the modes:
// normal (2j, 2j + 1), NeoX (j, j + n_dims/2), GLM (two halves with a position each), and those with GGML_ROPE_EXACT
// (ggml-ext.h). MROPE, IMROPE and VISION have four positions a token.
#include "cuda/ops/rope.h"

#include "cuda/ops/elements.h"
#include "tensor/numbers.h"

GB_DEVICE float2 gb_turn(const gb_rope & r, double angle, double magnitude) {
    const double s = sin(angle) * magnitude;
    return make_float2((float) (cos(angle) * magnitude), (float) (r.back ? -s : s));
}

// `pair` sets the position between interpolated (scaled) and extrapolated (unscaled) angles.
GB_DEVICE float2 gb_turn_yarn(const gb_rope & r, double extrapolated, int pair, double factor) {
    double angle = r.freq_scale * extrapolated, magnitude = r.attn_factor;
    if (r.ext_factor != 0) {
        const double at = ((double) pair - r.low) / fmax(0.001, r.high - r.low);
        const double mix = (1.0 - fmin(1.0, fmax(0.0, at))) * r.ext_factor;
        angle = angle * (1 - mix) + extrapolated * mix;
        magnitude *= 1.0 + 0.1 * log(1.0 / r.freq_scale);
    }
    return gb_turn(r, angle, magnitude * factor);
}

GB_DEVICE double gb_xpos(const gb_rope & r, int j, int position) {
    if (r.xpos_base == 0) {
        return 1;
    }
    const double zeta = pow((2.0 * j + 0.4 * r.n) / (1.4 * r.n), (double) position / r.xpos_base);
    return r.xpos_down ? 1.0 / zeta : zeta;
}

// The position, of four, by which pair j turns. *exponent: the pair's number in the powers of the base.
GB_DEVICE int gb_rope_stream(const gb_rope & r, int j, int * exponent) {
    const int * s = r.sections;
    *exponent = j;
    if (!r.four) {
        return 0;
    }
    const int k = (int) (j % ((int64_t) s[0] + s[1] + s[2] + s[3]));
    if (r.interleaved) {
        return k < 3 * (int64_t) s[k % 3] ? k % 3 : 3;
    }
    int64_t start = 0;
    int stream = 0;
    while (stream < 3 && k >= start + s[stream]) {
        start += s[stream++];
    }
    *exponent = r.vision ? (int) (k - start) : j;
    return stream;
}

// exponent: of pair j.
GB_DEVICE float2 gb_turn_at(const gb_rope & r, int position, int j, int exponent) {
    const int of = r.mode & GB_ROPE_GLM ? j % (r.n_turns / 2) : exponent;
    double freq = pow(r.freq_base, -2.0 * of / r.n_dims);
    if (r.factors != NULL) {
        freq /= (double) gb_get(GGML_TYPE_F32, r.factors + j * r.factors_nb);
    }
    if (r.mode & GB_ROPE_GLM) { // the first half by the position in the text, the second by that in the generated block
        const double limit = (double) r.n_ctx - 2;
        return gb_turn(r,
            (j < r.n_turns / 2 ? fmin((double) position, limit) : fmax((double) position - limit, 0.0)) * freq, 1.0);
    }
    // freq_scale counts twice, and all pairs use the ramp of pair 0.
    if ((r.mode & GB_ROPE_NEOX) && !(r.mode & GGML_ROPE_EXACT)) {
        return gb_turn_yarn(r, position * r.freq_scale * freq, 0, 1.0);
    }
    return gb_turn_yarn(r, position * freq, j, gb_xpos(r, j, position));
}

GB_KERNEL GB_BOUNDS(256, 1) gb_rope_table(gb_rope r, gb_view positions, float2 * table, int64_t n) {
    gb_wait_for_earlier();
    const int64_t k = gb_thread();
    if (k < n) {
        const int64_t at = k / r.n_turns, tokens = n / r.n_turns;
        const int j = (int) (k - at * r.n_turns);
        int exponent;
        const int64_t place = at + gb_rope_stream(r, j, &exponent) * tokens;
        const int32_t position = *(const int32_t *) (const void *) (positions.p + place * positions.nb[0]);
        table[k] = gb_turn_at(r, position, j, exponent);
    }
}

// A thread rotates a pair, or copies two elements. Gives the elements of pair j of a row.
GB_DEVICE void gb_pair_at(const gb_rope & r, int64_t j, int64_t * a, int64_t * b) {
    if (r.mode & GB_ROPE_GLM) {
        const int64_t half = r.n_turns / 2, block = j / half, in = j - block * half;
        *a = block * r.n_dims + in;
        *b = *a + half;
    } else if (r.halves && j < r.n_turns) {
        *a = r.offset + j;
        *b = *a + r.n_turns;
    } else if (j < r.n_turns) {
        *a = r.offset + 2 * j;
        *b = *a + 1;
    } else { // elements before and after the pairs
        const int64_t rest = 2 * (j - r.n_turns);
        *a = rest < r.offset ? rest : rest + 2 * (int64_t) r.n_turns;
        *b = *a + 1;
    }
}

// Pair k of a tensor. table: unused if nothing is rotated.
template <class I>
GB_DEVICE void gb_rope_pair(const gb_rope & r, const gb_view & y, const gb_view & x, const float2 * table,
    int64_t pairs, int64_t k) {
    const I row = (I) k / (I) pairs;
    const int64_t j = (int64_t) ((I) k - row * (I) pairs);
    const gb_index at = gb_unravel_row<I>(row, y.ne);
    const char * from = gb_at(x, at);
    char * to = gb_at(y, at);
    int64_t a, b;
    gb_pair_at(r, j, &a, &b);
    const float u = gb_get(x.type, from + a * x.nb[0]), v = b < y.ne[0] ? gb_get(x.type, from + b * x.nb[0]) : 0;
    const bool turns = j < r.n_turns; // else both are copied unchanged
    const float2 turn = turns ? table[at.i[2] * r.n_turns + j] : make_float2(1, 0);
    gb_put(y.type, to + a * y.nb[0], turns ? u * turn.x - v * turn.y : u);
    if (b < y.ne[0]) {
        gb_put(y.type, to + b * y.nb[0], turns ? u * turn.y + v * turn.x : v);
    }
}

template <class I>
GB_KERNEL GB_BOUNDS(256, 1)
    gb_rope_apply(gb_rope r, gb_view y, gb_view x, const float2 * table, int64_t pairs, int64_t n) {
    gb_wait_for_earlier();
    const int64_t k = gb_thread();
    if (k < n) {
        gb_rope_pair<I>(r, y, x, table, pairs, k);
    }
}

enum { GB_ROPE_PARTS = 3 };

struct gb_rope_group {
    int n, first[GB_ROPE_PARTS]; // part i has the blocks from first[i] on
    gb_rope_part part[GB_ROPE_PARTS];
};

GB_KERNEL GB_BOUNDS(256, 1) gb_rope_apply_group(gb_rope_group q) {
    gb_wait_for_earlier();
    int i = 0;
    GB_UNROLL for (int j = 1; j < GB_ROPE_PARTS; j++) { i = j < q.n && (int) blockIdx.x >= q.first[j] ? j : i; }
    const gb_rope_part & p = q.part[i];
    const int64_t k = (int64_t) ((int) blockIdx.x - q.first[i]) * 256 + threadIdx.x, pairs = (p.y.ne[0] + 1) / 2;
    if (k < pairs * p.y.ne[1] * p.y.ne[2] * p.y.ne[3]) {
        gb_rope_pair<uint32_t>(p.r, p.y, p.x, p.table, pairs, k);
    }
}

// The pair whose wavelength is 1 / `beta` of the original context.
static double corr_dim(const gb_rope & r, int n_orig_ctx, double beta) {
    return r.n_dims * log(n_orig_ctx / (2.0 * 3.14159265358979323846 * beta)) / (2.0 * log(r.freq_base));
}

static gb_rope rope_of(const ggml_tensor * dst) {
    gb_rope r;
    memset(&r, 0, sizeof(r)); // also padding, because keys are compared byte by byte
    r.n_dims = dst->op_params[1];
    r.mode = dst->op_params[2];
    r.n_ctx = dst->op_params[3];
    r.n = (int) dst->ne[0];
    const int exact = r.mode & GGML_ROPE_EXACT ? r.mode & ~GGML_ROPE_EXACT : -1; // -1 without the flag
    r.vision = exact == GGML_ROPE_TYPE_VISION;
    r.interleaved = exact == GGML_ROPE_TYPE_IMROPE;
    r.four = r.vision || r.interleaved || exact == GGML_ROPE_TYPE_MROPE;
    r.halves = (r.mode & GB_ROPE_NEOX) || r.four;
    r.n_turns = r.vision                                                                 ? r.n_dims
                : (r.mode & (GB_ROPE_NEOX | GGML_ROPE_EXACT)) && !(r.mode & GB_ROPE_GLM) ? r.n_dims / 2
                                                                                         : (int) (dst->ne[0] / 2);
    r.freq_base = gb_param_float(dst, 5);
    r.freq_scale = gb_param_float(dst, 6);
    r.ext_factor = gb_param_float(dst, 7);
    r.attn_factor = gb_param_float(dst, 8);
    if (r.four) {
        memcpy(r.sections, &dst->op_params[11], sizeof(r.sections));
    } else {
        r.xpos_base = dst->type == GGML_TYPE_F32 ? gb_param_float(dst, 11) : 0;
        r.xpos_down = (dst->op_params[12] & 0xff) != 0;
    }
    r.offset = exact >= 0 ? dst->op_params[15] : 0;
    if (dst->src[2] != NULL) {
        r.factors = gb_cuda_data(dst->src[2]);
        r.factors_nb = (int64_t) dst->src[2]->nb[0];
    }
    r.back = dst->op == GGML_OP_ROPE_BACK;
    if (r.ext_factor != 0) {
        r.low = fmax(0, floor(corr_dim(r, dst->op_params[4], gb_param_float(dst, 9))));
        r.high = fmin(r.n_dims - 1, ceil(corr_dim(r, dst->op_params[4], gb_param_float(dst, 10))));
    }
    return r;
}

// Nodes with the same positions and parameters share a table: q and k of all layers.
static gb_cuda_recipe table_of(const ggml_tensor * dst, const gb_rope & r) {
    struct {
        gb_rope rope;
        int64_t nb0, n;
    } key;
    static_assert(sizeof(key) <= GB_CUDA_KEY, "the key fits");
    memset(&key, 0, sizeof(key));
    memcpy(&key.rope, &r, sizeof(r));
    key.nb0 = (int64_t) dst->src[1]->nb[0];
    key.n = dst->ne[2];
    gb_cuda_recipe recipe = gb_cuda_recipe_of(dst->src[1], &key, sizeof(key));
    const ggml_tensor * factors = dst->src[2];
    recipe.other = factors != NULL && factors->view_src != NULL ? factors->view_src : factors;
    return recipe;
}

static bool table_of_node(const gb_cuda_backend & b, int i, gb_cuda_recipe * recipe) {
    const ggml_tensor * node = b.nodes->node[i];
    if (node->op != GGML_OP_ROPE && node->op != GGML_OP_ROPE_BACK) {
        return false;
    }
    *recipe = table_of(node, rope_of(node));
    return true;
}

// Makes the table, unless it exists.
static enum ggml_status make_table(gb_cuda_backend & b, const ggml_tensor * dst, const gb_rope & r,
    const float2 ** to) {
    const int64_t n_table = dst->ne[2] * r.n_turns;
    bool there = false;
    float2 * table =
        (float2 *) gb_cuda_keep(b, table_of(dst, r), (size_t) (n_table + 1) * sizeof(float2), table_of_node, &there);
    if (table == NULL) {
        return GGML_STATUS_ALLOC_FAILED;
    }
    if (n_table > 0 && !there) {
        GB_CUDA_TRY(b, GB_LAUNCH(gb_rope_table, gb_blocks(n_table), GB_BLOCK, 0, b.queue, r, gb_view_of(dst->src[1]),
                           table, n_table));
    }
    *to = table;
    return GGML_STATUS_SUCCESS;
}

// y: the result, in the shape of dst.
static enum ggml_status rope_into(gb_cuda_backend & b, const ggml_tensor * dst, const gb_view & y) {
    const gb_rope r = rope_of(dst);
    const int64_t pairs = gb_cuda_ceil_div(dst->ne[0], 2), n = pairs * gb_rows(dst);
    const float2 * table;
    const enum ggml_status status = make_table(b, dst, r, &table);
    if (status != GGML_STATUS_SUCCESS) {
        return status;
    }
    const gb_view x = gb_view_of(dst->src[0]);
    GB_CUDA_TRY(b,
        (gb_is_small(n)
                ? GB_LAUNCH((gb_rope_apply<uint32_t>), gb_blocks(n), GB_BLOCK, 0, b.queue, r, y, x, table, pairs, n)
                : GB_LAUNCH((gb_rope_apply<uint64_t>), gb_blocks(n), GB_BLOCK, 0, b.queue, r, y, x, table, pairs, n)));
    return GGML_STATUS_SUCCESS;
}

enum ggml_status gb_rope_part_of(gb_cuda_backend & b, const ggml_tensor * rope, gb_rope_part * part) {
    *part = {};
    if (rope == NULL) {
        return GGML_STATUS_SUCCESS; // no pair is rotated
    }
    part->r = rope_of(rope);
    return make_table(b, rope, part->r, &part->table);
}

enum ggml_status gb_rope_launch(gb_cuda_backend & b, const gb_rope_part * part, int n) {
    gb_rope_group q = {};
    int64_t blocks = 0;
    q.n = n;
    for (int i = 0; i < n; i++) {
        const gb_view & y = part[i].y;
        q.first[i] = (int) blocks;
        q.part[i] = part[i];
        blocks += gb_blocks(gb_cuda_ceil_div(y.ne[0], 2) * y.ne[1] * y.ne[2] * y.ne[3]);
    }
    GB_CUDA_TRY(b, GB_LAUNCH(gb_rope_apply_group, (unsigned) blocks, GB_BLOCK, 0, b.queue, q));
    return GGML_STATUS_SUCCESS;
}

static enum ggml_status rope_run(gb_cuda_backend & b, ggml_tensor * dst) { return rope_into(b, dst, gb_view_of(dst)); }

// The memory of the copy in the shape of t. Both have the same elements.
static bool shaped(const ggml_tensor * copy, const ggml_tensor * t, gb_view * y) {
    *y = gb_view_of(copy);
    int64_t stride = (int64_t) ggml_type_size(copy->type);
    if (gb_same_shape(copy, t)) {
        return true;
    }
    for (int i = 0; i < 4; stride *= t->ne[i++]) {
        y->ne[i] = t->ne[i];
        y->nb[i] = stride;
    }
    return ggml_is_contiguous(copy) && ggml_is_contiguous(t);
}

bool gb_rope_copies(const ggml_tensor * copy, gb_view * y) {
    return (copy->op == GGML_OP_CPY || copy->op == GGML_OP_CONT) && gb_is_float_type(copy->type) &&
           shaped(copy, copy->src[0], y);
}

bool gb_rope_is_copy_of(const ggml_tensor * rope, const ggml_tensor * copy, gb_view * y) {
    const ggml_tensor * from = copy->src[0];
    if (!gb_rope_copies(copy, y)) {
        return false;
    }
    if (from == rope) {
        return true;
    }
    if (from->src[0] != rope) {
        return false;
    }
    if (from->op == GGML_OP_PERMUTE && gb_same_shape(copy, from)) {
        const gb_view permuted = *y;
        for (int i = 0; i < 4; i++) { // dimension i of the rotated tensor is this one of the copy
            y->ne[i] = rope->ne[i];
            y->nb[i] = permuted.nb[from->op_params[i]];
        }
        return true;
    }
    return from->op == GGML_OP_RESHAPE && shaped(copy, rope, y);
}

static bool is_unseen(const gb_cuda_backend & b, const ggml_tensor * t) {
    return b.kind == GB_CUDA_PLAN || ggml_backend_may_leave_out(t);
}

static int rope_fuse(gb_cuda_backend & b, const gb_cuda_nodes & nodes, int i) {
    const ggml_tensor *rope = nodes.node[i], *copy = i + 1 < nodes.n ? nodes.node[i + 1] : NULL;
    gb_view y;
    if (rope->type != GGML_TYPE_F32 || copy == NULL || !gb_rope_is_copy_of(rope, copy, &y) || !is_unseen(b, rope) ||
        !is_unseen(b, copy->src[0]) || gb_cuda_overlap(copy, rope->src[0]) || gb_cuda_overlap(copy, rope->src[1])) {
        return 0;
    }
    return rope_into(b, rope, y) == GGML_STATUS_SUCCESS ? 2 : -1;
}

// Parameters that the kernels could not index with. The builders refuse them, too.
static const char * parameters_unsupported(const ggml_tensor * dst) {
    const int n_dims = dst->op_params[1], mode = dst->op_params[2];
    if (n_dims < 1 || n_dims > dst->ne[0] || n_dims % 2 != 0 || dst->ne[0] > INT32_MAX) {
        return "n_dims that are odd or do not fit into a row";
    }
    if ((mode & GB_ROPE_GLM) && dst->ne[0] != 2 * (int64_t) n_dims) {
        return "mode 4 with rows that are not of 2 n_dims elements";
    }
    const gb_rope r = rope_of(dst);
    const int * s = r.sections;
    if (r.offset < 0 || r.offset % 2 != 0 || r.offset + 2 * (int64_t) r.n_turns > dst->ne[0]) {
        return "pairs beyond the row";
    }
    const bool shares = s[0] >= 0 && s[1] >= 0 && s[2] >= 0 && s[3] >= 0 && (s[0] | s[1] | s[2] | s[3]) != 0;
    return r.four && (!shares || dst->src[1]->ne[0] < 4 * dst->ne[2]) ? "sections or positions" : NULL;
}

static const char * rope_supports(const gb_cuda_device &, const ggml_tensor * dst) {
    const ggml_tensor *positions = dst->src[1], *factors = dst->src[2];
    const char * why = gb_need_floats(dst, 1);
    if (why != NULL) {
        return why;
    }
    if (gb_need_plain(positions) != NULL || positions->type != GGML_TYPE_I32) {
        return "positions that are not i32";
    }
    if (factors != NULL && (gb_need_plain(factors) != NULL || factors->type != GGML_TYPE_F32)) {
        return "factors that are not f32";
    }
    return parameters_unsupported(dst);
}

GB_CUDA_FAMILY_DEFINE(rope, { GGML_OP_ROPE, rope_supports, rope_run, rope_fuse },
    { GGML_OP_ROPE_BACK, rope_supports, rope_run, nullptr })
