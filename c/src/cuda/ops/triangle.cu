// triangle.cu - CUMSUM along rows, TRI and SOLVE_TRI on triangles of square matrices.
#include "cuda/ops/elements.h"

// -------------------------------------------------------------------------------------------------------------- CUMSUM

struct gb_cumsum_args {
    gb_view y, x;
    int64_t rows;
};

// Sums in double. The threads of a row take WARPS * 32 elements at a time.
template <int WARPS> GB_KERNEL GB_BOUNDS(512, 1) gb_cumsum(gb_cumsum_args q) {
    gb_wait_for_earlier();
    GB_SHARED(double, shared, WARPS);
    const int64_t row = gb_my_row<WARPS>(), n = q.x.ne[0];
    const gb_index at = gb_unravel_row<uint64_t>((uint64_t) gb_min(row, q.rows - 1), q.x.ne);
    const char * x = gb_at(q.x, at);
    char * y = gb_at(q.y, at);
    double before = 0; // the sum of all earlier elements
    for (int64_t first = 0; first < n; first += WARPS * GB_WARP) {
        const int64_t i = first + gb_my_place<WARPS>();
        double sum = i < n ? (double) gb_get(q.x.type, x + i * q.x.nb[0]) : 0;
        for (int d = 1; d < GB_WARP; d *= 2) {
            const double other = gb_shfl_up(sum, d);
            sum += gb_lane() >= d ? other : 0;
        }
        double all = gb_shfl(sum, GB_WARP - 1);
        if (WARPS > 1) {
            const int warp = (int) threadIdx.x / GB_WARP;
            gb_sync_block(); // the sums of the last elements have been read
            if (gb_lane() == 0) {
                shared[warp] = all;
            }
            gb_sync_block();
            all = 0;
            double earlier = 0;
            for (int w = 0; w < WARPS; w++) {
                earlier += w < warp ? shared[w] : 0;
                all += shared[w];
            }
            sum += earlier;
        }
        if (i < n && row < q.rows) {
            gb_put(q.y.type, y + i * q.y.nb[0], (float) (before + sum));
        }
        before += all;
    }
}

static enum ggml_status cumsum_run(gb_cuda_backend & b, ggml_tensor * dst) {
    const gb_cumsum_args q = { gb_view_of(dst), gb_view_of(dst->src[0]), gb_rows(dst) };
    GB_CUDA_TRY(b, GB_ROW_LAUNCH(gb_cumsum, dst->ne[0], q.rows, b.queue, q));
    return GGML_STATUS_SUCCESS;
}

static const char * cumsum_supports(const gb_cuda_device &, const ggml_tensor * dst) {
    return gb_rows(dst) >= (int64_t) 1 << 31 ? "more than 2^31 rows" : gb_need_floats(dst, 1);
}

// ----------------------------------------------------------------------------------------------------------------- TRI

template <class I> GB_KERNEL GB_BOUNDS(256, 1) gb_tri(gb_view y, gb_view a, int kind, int size, int64_t n) {
    gb_wait_for_earlier();
    const int64_t k = gb_thread();
    if (k < n) {
        const gb_index at = gb_unravel<I>((I) k, y.ne);
        const int64_t above = at.i[0] - at.i[1];
        const bool stays = kind == GGML_TRI_TYPE_UPPER_DIAG   ? above >= 0
                           : kind == GGML_TRI_TYPE_UPPER      ? above > 0
                           : kind == GGML_TRI_TYPE_LOWER_DIAG ? above <= 0
                                                              : above < 0;
        if (stays) {
            gb_move(size, gb_at(y, at), gb_at(a, at));
        } else {
            gb_clear(size, gb_at(y, at));
        }
    }
}

static enum ggml_status tri_run(gb_cuda_backend & b, ggml_tensor * dst) {
    const int64_t n = gb_count(dst);
    GB_CUDA_TRY(b, GB_EACH_LAUNCH(gb_tri, n, b.queue, gb_view_of(dst), gb_view_of(dst->src[0]), dst->op_params[0],
                       (int) ggml_type_size(dst->type), n));
    return GGML_STATUS_SUCCESS;
}

static const char * tri_supports(const gb_cuda_device &, const ggml_tensor * dst) {
    return dst->op_params[0] < 0 || dst->op_params[0] >= GGML_TRI_TYPE_COUNT ? "unknown triangle"
                                                                             : gb_need_same(dst, 1);
}

// ----------------------------------------------------------------------------------------------------------- SOLVE_TRI

// A thread solves a column of a matrix, from the first row to the last. All threads of a block read
// the same elements of a. x: f32, in the shape of b.
GB_KERNEL GB_BOUNDS(256, 1) gb_solve_tri(gb_view x, gb_view a, gb_view b, int64_t n) {
    gb_wait_for_earlier();
    const int64_t k = gb_thread();
    if (k >= n) {
        return;
    }
    const int64_t columns = b.ne[0], plane = k / columns, column = k % columns, i2 = plane % b.ne[2],
                  i3 = plane / b.ne[2];
    const char * solved = gb_at(x, column, 0, i2, i3);
    for (int64_t i = 0; i < b.ne[1]; i++) {
        const char * factors = gb_at(a, 0, i, i2, i3);
        float rest = gb_get(b.type, gb_at(b, column, i, i2, i3));
        for (int64_t t = 0; t < i; t++) {
            rest -= gb_get(a.type, factors + t * a.nb[0]) * gb_get(GGML_TYPE_F32, solved + t * x.nb[1]);
        }
        gb_put(GGML_TYPE_F32, gb_at(x, column, i, i2, i3), rest / gb_get(a.type, factors + i * a.nb[0]));
    }
}

static enum ggml_status solve_tri_run(gb_cuda_backend & b, ggml_tensor * dst) {
    const ggml_tensor *a = dst->src[0], *right = dst->src[1];
    const int64_t n = dst->ne[0] * dst->ne[2] * dst->ne[3];
    gb_view x = gb_view_of(dst);
    if (dst->type != GGML_TYPE_F32 && !gb_scratch_floats(b, dst, &x)) {
        return GGML_STATUS_ALLOC_FAILED;
    }
    GB_CUDA_TRY(b, GB_LAUNCH(gb_solve_tri, gb_blocks(n), GB_BLOCK, 0, b.queue, x, gb_view_of(a), gb_view_of(right), n));
    if (dst->type != GGML_TYPE_F32) {
        GB_CUDA_TRY(b, gb_launch_copy(gb_view_of(dst), x, b.queue));
    }
    return GGML_STATUS_SUCCESS;
}

static const char * solve_tri_supports(const gb_cuda_device &, const ggml_tensor * dst) {
    return gb_need_floats(dst, 2);
}

GB_CUDA_FAMILY_DEFINE(triangle, { GGML_OP_CUMSUM, cumsum_supports, cumsum_run, nullptr },
    { GGML_OP_TRI, tri_supports, tri_run, nullptr }, { GGML_OP_SOLVE_TRI, solve_tri_supports, solve_tri_run, nullptr })
