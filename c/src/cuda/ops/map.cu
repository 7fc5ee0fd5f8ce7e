// map.cu - operators that map each element of src[0] to one element of the result.
//
// NaN maps to NaN, except for sgn and step, which give 0 as on the CPU.
#include "cuda/ops/elements.h"
#include "cuda/ops/gate.h"

enum gb_map { // operators besides the unary ones of ggml.h
    GB_MAP_SQR = GGML_UNARY_OP_COUNT,
    GB_MAP_SQRT,
    GB_MAP_LOG,
    GB_MAP_LEAKY_RELU,
    GB_MAP_CLAMP,
    GB_MAP_SCALE,
};

// x / (1 + exp(-t)), without -infinity times 0.
GB_DEVICE float gb_times_sigmoid(float x, float t) { return (x < -1000.0f ? -1000.0f : x) / (1.0f + expf(-t)); }

GB_DEVICE float gb_hardsigmoid(float x) { return x <= -3.0f ? 0.0f : x >= 3.0f ? 1.0f : (x + 3.0f) / 6.0f; }

// The functions of UNARY that this backend computes. It refuses others, so the scheduler gives them to another backend.
#define GB_UNARY_FORMULAS(X)                                                             \
    X(ABS, fabsf(x))                                                                     \
    X(SGN, (x > 0 ? 1.0f : 0.0f) - (x < 0 ? 1.0f : 0.0f))                                \
    X(NEG, -x)                                                                           \
    X(STEP, x > 0 ? 1.0f : 0.0f)                                                         \
    X(TANH, tanhf(x))                                                                    \
    X(ELU, x > 0 ? x : expm1f(x))                                                        \
    X(RELU, x < 0 ? 0.0f : x)                                                            \
    X(GELU, gb_times_sigmoid(x, x * (1.59576912160573f + 0.0713548162726f * x * x)))     \
    X(GELU_QUICK, gb_times_sigmoid(x, 1.702f * x))                                       \
    X(SILU, gb_times_sigmoid(x, x))                                                      \
    X(HARDSWISH, x < -3.0f ? -0.0f : x * gb_hardsigmoid(x))                              \
    X(HARDSIGMOID, gb_hardsigmoid(x))                                                    \
    X(GELU_ERF, (x < -1000.0f ? -1000.0f : x) * 0.5f * erfcf(-0.70710678118654752f * x)) \
    X(EXP, expf(x))                                                                      \
    X(SIGMOID, 1.0f / (1.0f + expf(-x)))                                                 \
    X(SIN, sinf(x))                                                                      \
    X(COS, cosf(x))                                                                      \
    X(SOFTPLUS, (x < 0 ? 0.0f : x) + log1pf(expf(-fabsf(x))))

template <int OP> GB_DEVICE float gb_map_one(float x, float a, float b) {
#define GB_CASE(name, value) \
    case GGML_UNARY_OP_##name: return value;
    switch (OP) {
        GB_UNARY_FORMULAS(GB_CASE)
        case GB_MAP_SQR: return x * x;
        case GB_MAP_SQRT: return sqrtf(x);
        case GB_MAP_LOG: return logf(x);
        case GB_MAP_LEAKY_RELU: return x > 0 ? x : a * x;
        case GB_MAP_CLAMP: return x < a ? a : x > b ? b : x;
        default: return a * x; // scale
    }
#undef GB_CASE
}

template <int OP, class I>
GB_KERNEL GB_BOUNDS(256, 1) gb_map_strided(gb_view y, gb_view x, float a, float b, int64_t n) {
    gb_wait_for_earlier();
    const int64_t k = gb_thread();
    if (k < n) {
        const gb_index at = gb_unravel<I>((I) k, y.ne);
        gb_put(y.type, gb_at(y, at), gb_map_one<OP>(gb_get(x.type, gb_at(x, at)), a, b));
    }
}

template <int OP> GB_KERNEL GB_BOUNDS(256, 1) gb_map_dense(float * y, const float * x, float a, float b, int64_t n) {
    gb_wait_for_earlier();
    const int64_t k = 4 * gb_thread();
    if (k + 4 <= n) {
        const float4 v = *(const float4 *) (const void *) (x + k);
        *(float4 *) (void *) (y + k) = make_float4(gb_map_one<OP>(v.x, a, b), gb_map_one<OP>(v.y, a, b),
            gb_map_one<OP>(v.z, a, b), gb_map_one<OP>(v.w, a, b));
        return;
    }
    for (int64_t i = k; i < n; i++) {
        y[i] = gb_map_one<OP>(x[i], a, b);
    }
}

template <int OP> static cudaError_t launch(const ggml_tensor * dst, float a, float b, const gb_queue & queue) {
    const ggml_tensor * x = dst->src[0];
    const int64_t n = gb_count(dst);
    if (gb_is_dense_f32(dst) && gb_is_dense_f32(x)) {
        return GB_LAUNCH((gb_map_dense<OP>), gb_blocks(gb_cuda_ceil_div(n, 4)), GB_BLOCK, 0, queue, (float *) dst->data,
            (const float *) x->data, a, b, n);
    }
    if (gb_is_small(n)) {
        return GB_LAUNCH((gb_map_strided<OP, uint32_t>), gb_blocks(n), GB_BLOCK, 0, queue, gb_view_of(dst),
            gb_view_of(x), a, b, n);
    }
    return GB_LAUNCH((gb_map_strided<OP, uint64_t>), gb_blocks(n), GB_BLOCK, 0, queue, gb_view_of(dst), gb_view_of(x),
        a, b, n);
}

template <int OP, int N_PARAMS> static enum ggml_status run(gb_cuda_backend & b, ggml_tensor * dst) {
    const float first = N_PARAMS > 0 ? gb_param_float(dst, 0) : 0, second = N_PARAMS > 1 ? gb_param_float(dst, 1) : 0;
    GB_CUDA_TRY(b, (launch<OP>(dst, first, second, b.queue)));
    return GGML_STATUS_SUCCESS;
}

static enum ggml_status unary_run(gb_cuda_backend & b, ggml_tensor * dst) {
#define GB_CASE(name, value) \
    case GGML_UNARY_OP_##name: return run<GGML_UNARY_OP_##name, 0>(b, dst);
    switch (dst->op_params[0]) {
        GB_UNARY_FORMULAS(GB_CASE)
        default: return gb_cuda_fail(b, "unary operator", cudaErrorInvalidValue); // not supported
    }
#undef GB_CASE
}

// --------------------------------------------------------------------------------------------------------------- gates

// A block makes 1,024 elements, and their bytes.
template <int OP> GB_KERNEL GB_BOUNDS(256, 1) gb_gate_row(gb_gate q) {
    gb_wait_for_earlier();
    const int64_t first = (int64_t) blockIdx.x * 1024;
    for (int64_t i = first + threadIdx.x; i < gb_min(q.n, first + 1024); i += 256) {
        q.y[i] = gb_map_one<OP>(q.gate[i], 0, 0) * q.up[i];
    }
    if (q.rounds) {
        gb_sync_block();
        for (int g = (int) threadIdx.x / 32; g < 32; g += 8) {
            gb_make_group(q.made, 0, (int64_t) blockIdx.x * 32 + g, (int) threadIdx.x % 32);
        }
    }
}

#define GB_GATES(X) X(RELU) X(GELU) X(GELU_QUICK) X(GELU_ERF) X(SILU) X(SIGMOID)

bool gb_gate_has(int unary) {
#define GB_CASE(name) case GGML_UNARY_OP_##name:
    switch (unary) {
        GB_GATES(GB_CASE) return true;
        default: return false;
    }
#undef GB_CASE
}

cudaError_t gb_gate_launch(int unary, const gb_gate & q, const gb_queue & queue) {
    const unsigned blocks = (unsigned) gb_cuda_ceil_div(q.n, 1024);
#define GB_CASE(name) \
    case GGML_UNARY_OP_##name: return GB_LAUNCH((gb_gate_row<GGML_UNARY_OP_##name>), blocks, 256, 0, queue, q);
    switch (unary) {
        GB_GATES(GB_CASE)
        default: return cudaErrorInvalidValue;
    }
#undef GB_CASE
}

// ----------------------------------------------------------------------------------------------------------- operators

static const char * map_supports(const gb_cuda_device &, const ggml_tensor * dst) { return gb_need_floats(dst, 1); }

static const char * unary_supports(const gb_cuda_device &, const ggml_tensor * dst) {
#define GB_CASE(name, value) case GGML_UNARY_OP_##name:
    switch (dst->op_params[0]) {
        GB_UNARY_FORMULAS(GB_CASE) return gb_need_floats(dst, 1);
        default: return "unary operator";
    }
#undef GB_CASE
}

GB_CUDA_FAMILY_DEFINE(map, { GGML_OP_UNARY, unary_supports, unary_run, nullptr },
    { GGML_OP_SQR, map_supports, run<GB_MAP_SQR, 0>, nullptr },
    { GGML_OP_SQRT, map_supports, run<GB_MAP_SQRT, 0>, nullptr },
    { GGML_OP_LOG, map_supports, run<GB_MAP_LOG, 0>, nullptr },
    { GGML_OP_LEAKY_RELU, map_supports, run<GB_MAP_LEAKY_RELU, 1>, nullptr },
    { GGML_OP_CLAMP, map_supports, run<GB_MAP_CLAMP, 2>, nullptr },
    { GGML_OP_SCALE, map_supports, run<GB_MAP_SCALE, 1>, gb_soft_max_fuse })
