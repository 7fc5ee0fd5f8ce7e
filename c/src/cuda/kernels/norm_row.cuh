// norm_row.cuh - NORM and RMS_NORM of rows that fit the registers of their threads: dense F32, 16-aligned.
//
// A thread reads FOURS times four adjacent elements, and the weight and bias for them, before it
// computes. Each is read once. The result for products is made from a copy of the row in shared memory.
// A row has 1, 4, 8 or 16 warps by its length. So one row of a decoder fills a multiprocessor, and all
// its loads are issued at once.
#ifndef GB_CUDA_KERNELS_NORM_ROW_CUH
#define GB_CUDA_KERNELS_NORM_ROW_CUH

#include "cuda/kernels/elements.cuh"
#include "cuda/kernels/panels.cuh"
#include "cuda/kernels/rows_in_order.cuh"

struct gb_norm_args {
    gb_view x, y; // y.p NULL: the norm itself is not stored
    gb_view z, w, b; // y w, then + b; z.p or b.p NULL: none; w, b: one row, dense f32
    gb_view s; // y w + b
    float eps;
    int64_t rows;
    // The last of these results, converted for products.
    gb_row_kind kind; // GB_ROWS_NONE: not converted
    gb_make_panels made; // other kinds than panels use only made.rows
};

// Rows whose squares overflow are computed again with values smaller by this factor.
#define GB_NORM_FAR 0x1p-80f

template <int WARPS, int KIND> GB_DEVICE void gb_norm_eights(const gb_make_rows & p, int64_t row) {
    const float * x = (const float *) (const void *) gb_source_row(p, row);
    for (int64_t i = 8 * gb_my_place<WARPS>(); i < p.y_row; i += 8 * WARPS * GB_WARP) {
        gb_make_eight<KIND>(p, x, row, i);
    }
}

template <int WARPS> GB_DEVICE void gb_norm_permuted(const gb_make_rows & p, int64_t row) {
    const char * x = gb_source_row(p, row);
    for (int64_t i = 8 * gb_my_place<WARPS>(); i < p.y_row; i += 8 * WARPS * GB_WARP) {
        *(uint4 *) (void *) ((uint16_t *) p.y + row * p.y_row + i) =
            gb_eight_in_order<GB_ROWS_BF16, true>(p, x, i, true);
    }
}

// Converts the row, by the threads that made it. Equals the result of the kernels that only
// convert. made.rows describes the source: the result in memory, or a copy of the row.
template <int WARPS> GB_DEVICE void gb_norm_round(gb_row_kind kind, const gb_make_panels & made, int64_t row) {
    const gb_make_rows & p = made.rows;
    const int warp = WARPS == 1 ? 0 : (int) threadIdx.x / GB_WARP;
    if (WARPS == 1) {
        gb_sync_warp();
    } else {
        gb_sync_block();
    }
    switch (kind) {
        case GB_ROWS_BYTES:
            for (int64_t g = warp; g < p.y_row * 32; g += WARPS) {
                gb_make_group(p, row, g, gb_lane());
            }
            break;
        case GB_ROWS_PANELS: {
            const uint32_t n = (uint32_t) made.n, slice = (uint32_t) row / n, r = (uint32_t) row % n;
            // The last row also fills the rest of the panel.
            const uint32_t end = r + 1 < n ? r + 1 : (uint32_t) made.bands * GB_PANEL_ROWS;
            for (uint32_t i = r; i < end; i++) {
                for (int s = warp; s < made.stages; s += WARPS) {
                    gb_make_panel_row(made, slice, i, s);
                }
            }
            break;
        }
        case GB_ROWS_F16: gb_norm_eights<WARPS, GB_ROWS_F16>(p, row); break;
        case GB_ROWS_BF16: gb_norm_eights<WARPS, GB_ROWS_BF16>(p, row); break;
        case GB_ROWS_WIDE: gb_norm_eights<WARPS, GB_ROWS_WIDE>(p, row); break;
        case GB_ROWS_PERMUTED: gb_norm_permuted<WARPS>(p, row); break;
        case GB_ROWS_F32:
        case GB_ROWS_SORTED:
        case GB_ROWS_NONE: break; // gb_rows_ahead never gives these
    }
}

// The sum over a row's threads, in a fixed order. It has one barrier, so consecutive calls need different `shared`.
template <int WARPS> GB_DEVICE float gb_norm_sum(float x, float * shared) {
    x = gb_warp_sum(x);
    if (WARPS > 1) {
        if (threadIdx.x % GB_WARP == 0) {
            shared[threadIdx.x / GB_WARP] = x;
        }
        gb_sync_block();
        x = gb_warp_sum(gb_lane() < WARPS ? shared[gb_lane()] : 0.0f);
    }
    return x;
}

// x * down - mean of the elements that exist; zeros after them.
template <int FOURS>
GB_DEVICE void gb_norm_shift(const float4 (&x)[FOURS], const bool (&in)[FOURS], float down, float mean,
    float4 (&d)[FOURS]) {
    GB_UNROLL for (int j = 0; j < FOURS; j++) {
        const float m = in[j] ? mean : 0;
        d[j] = make_float4(x[j].x * down - m, x[j].y * down - m, x[j].z * down - m, x[j].w * down - m);
    }
}

// Sets d to the deviations, scaled by a power of two, and gives the factor that makes them the norm.
template <int WARPS, bool MEAN, int FOURS>
GB_DEVICE float gb_norm_of(const float4 (&x)[FOURS], const bool (&in)[FOURS], int64_t n, float eps, float4 (&d)[FOURS],
    float * shared) {
    float down = 1, squares = 0;
    for (int far = 0; far < 2; far++) { // again with smaller values if squares overflow
        float mean = 0;
        if (MEAN) {
            float sum = 0;
            GB_UNROLL for (int j = 0; j < FOURS; j++) { sum += (x[j].x + x[j].y + (x[j].z + x[j].w)) * down; }
            mean = gb_norm_sum<WARPS>(sum, shared) / (float) n;
        }
        gb_norm_shift<FOURS>(x, in, down, mean, d);
        squares = 0;
        GB_UNROLL for (int j = 0; j < FOURS; j++) {
            squares += d[j].x * d[j].x + d[j].y * d[j].y + (d[j].z * d[j].z + d[j].w * d[j].w);
        }
        squares = gb_norm_sum<WARPS>(squares, shared + WARPS);
        if (squares < INFINITY || far == 1) {
            break;
        }
        if (WARPS > 1) {
            gb_sync_block(); // the sums are read
        }
        down = GB_NORM_FAR;
    }
    return 1.0f / sqrtf(squares / (float) n + eps * down * down);
}

// n is a multiple of 4, at most 128 WARPS FOURS.
template <int WARPS, bool MEAN, int FOURS> GB_KERNEL GB_BOUNDS(512, 1) gb_norm_row(gb_norm_args q) {
    gb_wait_for_earlier();
    constexpr int ROWS = WARPS == 1 ? 8 : 1, MOST = 128 * WARPS * FOURS;
    GB_SHARED(float, sums, 2 * WARPS);
    GB_SHARED(float4, copies, ROWS * MOST / 4);
    const int64_t row = gb_my_row<WARPS>(), n = q.x.ne[0], first = 4 * gb_my_place<WARPS>();
    const gb_index at = gb_unravel_row<uint32_t>((uint32_t) gb_min(row, q.rows - 1), q.x.ne);
    float4 x[FOURS], w[FOURS], b[FOURS], d[FOURS];
    bool in[FOURS];
    GB_UNROLL for (int j = 0; j < FOURS; j++) {
        const int64_t i = first + j * 128 * WARPS;
        const float4 zero = make_float4(0, 0, 0, 0);
        in[j] = i < n;
        x[j] = in[j] ? gb_load_floats(gb_at(q.x, at), i) : zero;
        w[j] = in[j] && q.w.p != NULL ? gb_load_floats(q.w.p, i) : make_float4(1, 1, 1, 1);
        b[j] = in[j] && q.b.p != NULL ? gb_load_floats(q.b.p, i) : zero;
    }
    const float scale = gb_norm_of<WARPS, MEAN, FOURS>(x, in, n, q.eps, d, sums);
    if (row >= q.rows) {
        return; // the whole warp
    }
    float4 * const copy = copies + (ROWS == 1 ? 0 : (int) threadIdx.x / GB_WARP * (MOST / 4));
    GB_UNROLL for (int j = 0; j < FOURS; j++) {
        const int64_t i = first + j * 128 * WARPS;
        if (!in[j]) {
            continue;
        }
        float4 v = make_float4(d[j].x * scale, d[j].y * scale, d[j].z * scale, d[j].w * scale);
        gb_store_floats(q.y, at, i, v);
        v = make_float4(v.x * w[j].x, v.y * w[j].y, v.z * w[j].z, v.w * w[j].w);
        if (q.w.p != NULL) {
            gb_store_floats(q.z, at, i, v);
        }
        if (q.b.p != NULL) {
            v = make_float4(v.x + b[j].x, v.y + b[j].y, v.z + b[j].z, v.w + b[j].w);
            gb_store_floats(q.s, at, i, v);
        }
        copy[i / 4] = v;
    }
    if (q.kind != GB_ROWS_NONE) {
        gb_make_panels made = q.made;
        made.rows.x = (const char *) copy;
        made.rows.nb1 = made.rows.nb2 = made.rows.nb3 = 0; // every row is the copy
        gb_norm_round<WARPS>(q.kind, made, row);
    }
}

#endif // GB_CUDA_KERNELS_NORM_ROW_CUH
