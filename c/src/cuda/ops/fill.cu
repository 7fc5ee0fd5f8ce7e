// fill.cu - FILL, ARANGE, TIMESTEP_EMBEDDING: results that follow from numbers.
#include "cuda/ops/elements.h"

// ---------------------------------------------------------------------------------------------------------------- FILL

template <class I> GB_KERNEL GB_BOUNDS(256, 1) gb_fill(gb_view y, float value, int64_t n) {
    gb_wait_for_earlier();
    const int64_t k = gb_thread();
    if (k < n) {
        gb_put(y.type, gb_at(y, gb_unravel<I>((I) k, y.ne)), value);
    }
}

static enum ggml_status fill_run(gb_cuda_backend & b, ggml_tensor * dst) {
    const int64_t n = gb_count(dst);
    GB_CUDA_TRY(b, GB_EACH_LAUNCH(gb_fill, n, b.queue, gb_view_of(dst), gb_param_float(dst, 0), n));
    return GGML_STATUS_SUCCESS;
}

static const char * fill_supports(const gb_cuda_device &, const ggml_tensor * dst) { return gb_need_floats(dst, 0); }

// -------------------------------------------------------------------------------------------------------------- ARANGE

// In double, rounded once.
GB_KERNEL GB_BOUNDS(256, 1) gb_arange(gb_view y, double start, double step, int64_t n) {
    gb_wait_for_earlier();
    const int64_t k = gb_thread();
    if (k < n) {
        gb_put(y.type, y.p + k * y.nb[0], (float) (start + step * (double) k));
    }
}

static enum ggml_status arange_run(gb_cuda_backend & b, ggml_tensor * dst) {
    const int64_t n = gb_count(dst);
    const double start = (double) gb_param_float(dst, 0), step = (double) gb_param_float(dst, 2);
    GB_CUDA_TRY(b, GB_LAUNCH(gb_arange, gb_blocks(n), GB_BLOCK, 0, b.queue, gb_view_of(dst), start, step, n));
    return GGML_STATUS_SUCCESS;
}

// -------------------------------------------------------------------------------------------------- TIMESTEP_EMBEDDING

// Angles in double. Cosines, then sines; the last element of an odd row is 0.
template <class I>
GB_KERNEL GB_BOUNDS(256, 1) gb_timestep_embedding(gb_view y, gb_view t, double log_period, int64_t n) {
    gb_wait_for_earlier();
    const int64_t k = gb_thread();
    if (k < n) {
        const gb_index at = gb_unravel<I>((I) k, y.ne);
        const int64_t half = y.ne[0] / 2, j = at.i[0] < half ? at.i[0] : at.i[0] - half;
        float value = 0;
        if (j < half) {
            const double time = (double) gb_get(t.type, t.p + at.i[1] * t.nb[0]);
            const double angle = time * exp(-log_period * (double) j / (double) half);
            value = (float) (at.i[0] < half ? cos(angle) : sin(angle));
        }
        gb_put(y.type, gb_at(y, at), value);
    }
}

static enum ggml_status timestep_run(gb_cuda_backend & b, ggml_tensor * dst) {
    const int64_t n = gb_count(dst);
    GB_CUDA_TRY(b, GB_EACH_LAUNCH(gb_timestep_embedding, n, b.queue, gb_view_of(dst), gb_view_of(dst->src[0]),
                       log((double) dst->op_params[1]), n));
    return GGML_STATUS_SUCCESS;
}

static const char * timestep_supports(const gb_cuda_device &, const ggml_tensor * dst) {
    return gb_need_floats(dst, 1);
}

GB_CUDA_FAMILY_DEFINE(fill, { GGML_OP_FILL, fill_supports, fill_run, nullptr },
    { GGML_OP_ARANGE, fill_supports, arange_run, nullptr },
    { GGML_OP_TIMESTEP_EMBEDDING, timestep_supports, timestep_run, nullptr })
