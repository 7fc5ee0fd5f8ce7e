// soft_max_row.cuh - SOFT_MAX of rows that fit the registers of their threads: dense F32, 16-aligned.
//
// A thread reads FOURS times four adjacent elements, and the mask for them, before it computes. Each is
// read once, and has one exponential. A row has 1, 4, 8 or 16 warps by its length. soft_max.cu explains
// the values and has the kernel for all other rows.
#ifndef GB_CUDA_KERNELS_SOFT_MAX_ROW_CUH
#define GB_CUDA_KERNELS_SOFT_MAX_ROW_CUH

#include "cuda/kernels/alibi.cuh"
#include "cuda/kernels/elements.cuh"

struct gb_soft_max_args {
    gb_view x, y;
    gb_view mask; // p NULL: none; its rows, heads and batches repeat
    gb_view sinks; // p NULL: none; f32, one for each head
    float scale;
    int64_t rows;
    float bias_max; // 0: the mask is added unchanged; else heads have slopes
    int floor_heads;
    // Operators before it: x becomes x times `factor`, and -infinity after column last + i in row i
    // of its matrix.
    bool edited, causal;
    float factor;
    int64_t last;
    gb_view scaled, masked; // f32; p NULL: not stored
};

GB_DEVICE float gb_edited(const gb_soft_max_args & q, float v, int64_t i1, int64_t i) {
    return q.causal && i > q.last + i1 ? -INFINITY : v * q.factor;
}

// Index i, below 2^31, of a tensor that repeats along an axis of n. Divisions of 64 bits are slow on devices.
GB_DEVICE int64_t gb_repeated(int64_t i, int64_t n) { return i < n ? i : (int64_t) ((uint32_t) i % (uint32_t) n); }

// What all threads of a row know about it.
struct gb_soft_max_row_of {
    gb_index at;
    const char * mask; // NULL: none
    float slope, sink;
};

GB_DEVICE gb_soft_max_row_of gb_soft_max_row_at(const gb_soft_max_args & q, int64_t row) {
    gb_soft_max_row_of r;
    r.at = gb_unravel_row<uint32_t>((uint32_t) gb_min(row, q.rows - 1), q.x.ne);
    const int64_t * i = r.at.i;
    r.mask = q.mask.p != NULL ? gb_at(q.mask, 0, gb_repeated(i[1], q.mask.ne[1]), gb_repeated(i[2], q.mask.ne[2]),
                                    gb_repeated(i[3], q.mask.ne[3]))
                              : NULL;
    r.slope = q.bias_max > 0 ? gb_alibi_slope(i[2], q.floor_heads, q.bias_max) : 1;
    r.sink = q.sinks.p != NULL ? gb_get(GGML_TYPE_F32, q.sinks.p + i[2] * q.sinks.nb[0]) : -INFINITY;
    return r;
}

// The part of the sink in the sum of exponentials. max: the largest score of the row and its sink.
GB_DEVICE float gb_sink_weight(const gb_soft_max_args & q, float sink, float max, float down, float up) {
    return q.sinks.p == NULL  ? 0.0f
           : max == -INFINITY ? (sink == sink ? 0.0f : sink)
                              : expf((sink * down * down - max) * up * up);
}

// The exponential of a score. A NaN counts in rows without a score, too.
GB_DEVICE float gb_score_weight(float score, float max, float up) {
    return max == -INFINITY ? (score == score ? 0.0f : score) : expf((score - max) * up * up);
}

// ------------------------------------------------------------------------------------------------------ four at a time

// Four scores times `down` twice. MASK: its type; GGML_TYPE_COUNT: none. m: the mask times its slope.
template <int MASK> GB_DEVICE float4 gb_four_scores(float4 v, float4 m, float scale, float down) {
    scale = scale * down * down;
    if (MASK == GGML_TYPE_COUNT) {
        return make_float4(v.x * scale, v.y * scale, v.z * scale, v.w * scale);
    }
    return make_float4(fmaf(v.x, scale, m.x * down * down), fmaf(v.y, scale, m.y * down * down),
        fmaf(v.z, scale, m.z * down * down), fmaf(v.w, scale, m.w * down * down));
}

// Sets s to the scores of the elements that exist, -infinity after them, and gives the largest of the row.
template <int WARPS, int MASK, int FOURS>
GB_DEVICE float gb_row_scores(const gb_soft_max_args & q, const float4 (&x)[FOURS], const float4 (&m)[FOURS],
    const bool (&in)[FOURS], float sink, float down, float4 (&s)[FOURS], float * shared) {
    float max = -INFINITY;
    GB_UNROLL for (int j = 0; j < FOURS; j++) {
        s[j] = in[j] ? gb_four_scores<MASK>(x[j], m[j], q.scale, down)
                     : make_float4(-INFINITY, -INFINITY, -INFINITY, -INFINITY);
        max = fmaxf(max, fmaxf(fmaxf(s[j].x, s[j].y), fmaxf(s[j].z, s[j].w)));
    }
    return fmaxf(gb_row_max<WARPS>(max, shared), sink * down * down);
}

// n is a multiple of 4, at most 128 WARPS FOURS.
template <int WARPS, int MASK, int FOURS> GB_KERNEL GB_BOUNDS(512, 1) gb_soft_max_row(gb_soft_max_args q) {
    gb_wait_for_earlier();
    GB_SHARED(float, shared, WARPS);
    const int64_t row = gb_my_row<WARPS>(), n = q.x.ne[0], first = 4 * gb_my_place<WARPS>();
    const gb_soft_max_row_of r = gb_soft_max_row_at(q, row);
    const int64_t i1 = r.at.i[1];
    float4 given[FOURS], x[FOURS], m[FOURS], s[FOURS];
    bool in[FOURS];
    GB_UNROLL for (int j = 0; j < FOURS; j++) {
        const int64_t i = first + j * 128 * WARPS;
        const float4 zero = make_float4(0, 0, 0, 0);
        in[j] = i < n;
        given[j] = in[j] ? gb_load_floats(gb_at(q.x, r.at), i) : zero;
        m[j] =
            in[j] && MASK != GGML_TYPE_COUNT ? gb_get_four(MASK, r.mask + i * (MASK == GGML_TYPE_F32 ? 4 : 2)) : zero;
    }
    GB_UNROLL for (int j = 0; j < FOURS; j++) {
        const int64_t i = first + j * 128 * WARPS;
        const float4 v = given[j];
        x[j] = q.edited ? make_float4(gb_edited(q, v.x, i1, i), gb_edited(q, v.y, i1, i + 1),
                              gb_edited(q, v.z, i1, i + 2), gb_edited(q, v.w, i1, i + 3))
                        : v;
        m[j] = make_float4(m[j].x * r.slope, m[j].y * r.slope, m[j].z * r.slope, m[j].w * r.slope);
    }
    float down = 1, max = gb_row_scores<WARPS, MASK, FOURS>(q, x, m, in, r.sink, down, s, shared);
    if (!(fabsf(max) < INFINITY)) { // the same for all threads of the row
        down = 0x1p-64f;
        max = gb_row_scores<WARPS, MASK, FOURS>(q, x, m, in, r.sink, down, s, shared);
    }
    const float up = 1 / down;
    float sum = 0;
    GB_UNROLL for (int j = 0; j < FOURS; j++) {
        s[j] = make_float4(gb_score_weight(s[j].x, max, up), gb_score_weight(s[j].y, max, up),
            gb_score_weight(s[j].z, max, up), gb_score_weight(s[j].w, max, up));
        sum += in[j] ? s[j].x + s[j].y + (s[j].z + s[j].w) : 0.0f;
    }
    sum = gb_row_sum<WARPS>(sum, shared) + gb_sink_weight(q, r.sink, max, down, up);
    const float factor = sum == 0 ? 0.0f : 1.0f / sum;
    if (row >= q.rows) {
        return; // the whole warp
    }
    GB_UNROLL for (int j = 0; j < FOURS; j++) {
        const int64_t i = first + j * 128 * WARPS;
        if (!in[j]) {
            continue;
        }
        if (q.edited) {
            const float4 v = given[j];
            const float f = q.factor;
            gb_store_floats(q.scaled, r.at, i, make_float4(v.x * f, v.y * f, v.z * f, v.w * f));
            gb_store_floats(q.masked, r.at, i, x[j]);
        }
        gb_store_floats(q.y, r.at, i,
            max == -INFINITY ? make_float4(sum, sum, sum, sum)
                             : make_float4(s[j].x * factor, s[j].y * factor, s[j].z * factor, s[j].w * factor));
    }
}

#endif // GB_CUDA_KERNELS_SOFT_MAX_ROW_CUH
