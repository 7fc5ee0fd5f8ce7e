// optimizer.cu - OPT_STEP_ADAMW and OPT_STEP_SGD: one thread for each element, any strides.
//
// The numbers of a step are in device memory, so that a recorded graph serves every step.
#include "cuda/ops/elements.h"
#include "tensor/numbers.h"

GB_DEVICE float gb_float_at(const gb_view & v, gb_index at) { return *(const float *) (const void *) gb_at(v, at); }

// ----------------------------------------------------------------------------------------------------------------- SGD

template <class I>
GB_KERNEL GB_BOUNDS(256, 1) gb_sgd(gb_view y, gb_view a, gb_view g, const float * params, int64_t n) {
    gb_wait_for_earlier();
    const int64_t k = gb_thread();
    if (k < n) {
        const gb_index at = gb_unravel<I>((I) k, y.ne);
        const float kept = gb_float_at(a, at) * (1.0f - params[0] * params[1]);
        gb_put(GGML_TYPE_F32, gb_at(y, at), kept - params[0] * gb_float_at(g, at));
    }
}

static const float * params_of(const ggml_tensor * t) { return (const float *) (const void *) gb_cuda_data(t); }

static enum ggml_status sgd_run(gb_cuda_backend & b, ggml_tensor * dst) {
    const int64_t n = gb_count(dst);
    GB_CUDA_TRY(b, GB_EACH_LAUNCH(gb_sgd, n, b.queue, gb_view_of(dst), gb_view_of(dst->src[0]), gb_view_of(dst->src[1]),
                       params_of(dst->src[2]), n));
    return GGML_STATUS_SUCCESS;
}

// NULL if the result, the first n_src sources and the parameters are F32.
static const char * need_f32(const ggml_tensor * dst, int n_src, const ggml_tensor * params) {
    const char * why = gb_need_floats(dst, n_src);
    for (int i = -1; i < n_src && why == NULL; i++) {
        why = (i < 0 ? dst : dst->src[i])->type == GGML_TYPE_F32 ? NULL : "a type that is not f32";
    }
    if (why != NULL) {
        return why;
    }
    return gb_need_plain(params) == NULL && params->type == GGML_TYPE_F32 && ggml_is_contiguous(params)
               ? NULL
               : "parameters that are not contiguous f32";
}

static const char * sgd_supports(const gb_cuda_device &, const ggml_tensor * dst) {
    return need_f32(dst, 2, dst->src[2]);
}

// --------------------------------------------------------------------------------------------------------------- ADAMW

// The mean of g, or of g^2, which moves towards the new value.
template <class I>
GB_KERNEL GB_BOUNDS(256, 1)
    gb_adamw_mean(gb_view y, gb_view mean, gb_view g, const float * params, bool squares, int64_t n) {
    gb_wait_for_earlier();
    const int64_t k = gb_thread();
    if (k < n) {
        const gb_index at = gb_unravel<I>((I) k, y.ne);
        const float beta = params[squares ? 2 : 1], x = gb_float_at(g, at);
        gb_put(GGML_TYPE_F32, gb_at(y, at), beta * gb_float_at(mean, at) + (1.0f - beta) * (squares ? x * x : x));
    }
}

template <class I>
GB_KERNEL GB_BOUNDS(256, 1)
    gb_adamw_weights(gb_view y, gb_view a, gb_view mean, gb_view v, const float * params, int64_t n) {
    gb_wait_for_earlier();
    const int64_t k = gb_thread();
    if (k < n) {
        const gb_index at = gb_unravel<I>((I) k, y.ne);
        const float root = sqrtf(gb_float_at(v, at) * params[6]) + params[3];
        const float change = gb_float_at(mean, at) * params[5] / root;
        gb_put(GGML_TYPE_F32, gb_at(y, at), gb_float_at(a, at) * (1.0f - params[0] * params[4]) - params[0] * change);
    }
}

static enum ggml_status adamw_run(gb_cuda_backend & b, ggml_tensor * dst) {
    const int64_t n = gb_count(dst);
    const int part = dst->op_params[0];
    const gb_view y = gb_view_of(dst), s0 = gb_view_of(dst->src[0]), s1 = gb_view_of(dst->src[1]);
    if (part == GB_ADAMW_WEIGHTS) {
        GB_CUDA_TRY(b, GB_EACH_LAUNCH(gb_adamw_weights, n, b.queue, y, s0, s1, gb_view_of(dst->src[2]),
                           params_of(dst->src[3]), n));
    } else {
        const bool squares = part == GB_ADAMW_SQUARES;
        GB_CUDA_TRY(b, GB_EACH_LAUNCH(gb_adamw_mean, n, b.queue, y, s0, s1, params_of(dst->src[2]), squares, n));
    }
    return GGML_STATUS_SUCCESS;
}

static const char * adamw_supports(const gb_cuda_device &, const ggml_tensor * dst) {
    const int part = dst->op_params[0];
    if (part < GB_ADAMW_MEAN || part > GB_ADAMW_WEIGHTS) {
        return "an unknown part of AdamW";
    }
    const int at = part == GB_ADAMW_WEIGHTS ? 3 : 2;
    return need_f32(dst, at, dst->src[at]);
}

GB_CUDA_FAMILY_DEFINE(optimizer, { GGML_OP_OPT_STEP_ADAMW, adamw_supports, adamw_run, nullptr },
    { GGML_OP_OPT_STEP_SGD, sgd_supports, sgd_run, nullptr })
