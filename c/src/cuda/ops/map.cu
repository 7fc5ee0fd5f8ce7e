// map.cu - operators that map each element of src[0] by itself, and GLU, which maps pairs of elements.
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
    GB_MAP_SCALE_BIAS,
    GB_MAP_XIELU,
};

enum { GB_MAP_PARAMS = 4 };

struct gb_map_params { // the first op_params, as floats; of UNARY: zeros
    float v[GB_MAP_PARAMS];
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
    X(SOFTPLUS, (x < 0 ? 0.0f : x) + log1pf(expf(-fabsf(x))))                            \
    X(EXPM1, expm1f(x))                                                                  \
    X(FLOOR, floorf(x))                                                                  \
    X(CEIL, ceilf(x))                                                                    \
    X(ROUND, roundf(x))                                                                  \
    X(TRUNC, truncf(x))

template <int OP> GB_DEVICE float gb_map_one(float x, const gb_map_params & p) {
    const float a = p.v[0], b = p.v[1];
#define GB_CASE(name, value) \
    case GGML_UNARY_OP_##name: return value;
    switch (OP) {
        GB_UNARY_FORMULAS(GB_CASE)
        case GB_MAP_SQR: return x * x;
        case GB_MAP_SQRT: return sqrtf(x);
        case GB_MAP_LOG: return logf(x);
        case GB_MAP_LEAKY_RELU: return x > 0 ? x : a * x;
        case GB_MAP_CLAMP: return x < a ? a : x > b ? b : x;
        case GB_MAP_SCALE_BIAS: return a * x + b;
        case GB_MAP_XIELU: // a and b: factors below and above 0
            return p.v[2] * x + (x > 0 ? b * x * x : (expm1f(p.v[3] < x ? p.v[3] : x) - x) * a);
        default: return a * x; // scale
    }
#undef GB_CASE
}

template <int OP, class I>
GB_KERNEL GB_BOUNDS(256, 1) gb_map_strided(gb_view y, gb_view x, gb_map_params p, int64_t n) {
    gb_wait_for_earlier();
    const int64_t k = gb_thread();
    if (k < n) {
        const gb_index at = gb_unravel<I>((I) k, y.ne);
        gb_put(y.type, gb_at(y, at), gb_map_one<OP>(gb_get(x.type, gb_at(x, at)), p));
    }
}

template <int OP> GB_KERNEL GB_BOUNDS(256, 1) gb_map_dense(float * y, const float * x, gb_map_params p, int64_t n) {
    gb_wait_for_earlier();
    const int64_t k = 4 * gb_thread();
    if (k + 4 <= n) {
        const float4 v = *(const float4 *) (const void *) (x + k);
        *(float4 *) (void *) (y + k) =
            make_float4(gb_map_one<OP>(v.x, p), gb_map_one<OP>(v.y, p), gb_map_one<OP>(v.z, p), gb_map_one<OP>(v.w, p));
        return;
    }
    for (int64_t i = k; i < n; i++) {
        y[i] = gb_map_one<OP>(x[i], p);
    }
}

template <int OP> static cudaError_t launch(const ggml_tensor * dst, const gb_map_params & p, const gb_queue & queue) {
    const ggml_tensor * x = dst->src[0];
    const int64_t n = gb_count(dst);
    if (gb_is_dense_f32(dst) && gb_is_dense_f32(x)) {
        return GB_LAUNCH((gb_map_dense<OP>), gb_blocks(gb_cuda_ceil_div(n, 4)), GB_BLOCK, 0, queue, (float *) dst->data,
            (const float *) x->data, p, n);
    }
    if (gb_is_small(n)) {
        return GB_LAUNCH((gb_map_strided<OP, uint32_t>), gb_blocks(n), GB_BLOCK, 0, queue, gb_view_of(dst),
            gb_view_of(x), p, n);
    }
    return GB_LAUNCH((gb_map_strided<OP, uint64_t>), gb_blocks(n), GB_BLOCK, 0, queue, gb_view_of(dst), gb_view_of(x),
        p, n);
}

template <int OP, int N_PARAMS> static enum ggml_status run(gb_cuda_backend & b, ggml_tensor * dst) {
    gb_map_params p = {};
    for (int i = 0; i < N_PARAMS; i++) {
        p.v[i] = gb_param_float(dst, i);
    }
    GB_CUDA_TRY(b, (launch<OP>(dst, p, b.queue)));
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
        q.y[i] = gb_map_one<OP>(q.gate[i], {}) * q.up[i];
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

// ----------------------------------------------------------------------------------------------------------------- GLU

struct gb_glu_args {
    gb_view z, x, g; // z = f(x) g
    int op;
    float alpha, limit; // of SWIGLU_OAI
};

// A NaN stays: comparisons with it are false.
GB_DEVICE float gb_glu_one(const gb_glu_args & q, float x, float g) {
    switch (q.op) {
        case GGML_GLU_OP_REGLU: return x > 0 ? x * g : x == x ? 0.0f : x; // 0 whatever g is
        case GGML_GLU_OP_GEGLU: return gb_map_one<GGML_UNARY_OP_GELU>(x, {}) * g;
        case GGML_GLU_OP_SWIGLU: return gb_map_one<GGML_UNARY_OP_SILU>(x, {}) * g;
        case GGML_GLU_OP_GEGLU_ERF: return gb_map_one<GGML_UNARY_OP_GELU_ERF>(x, {}) * g;
        case GGML_GLU_OP_GEGLU_QUICK: return gb_map_one<GGML_UNARY_OP_GELU_QUICK>(x, {}) * g;
        default: {
            const float u = q.limit < x ? q.limit : x, v = q.limit < g ? q.limit : g, w = v < -q.limit ? -q.limit : v;
            return gb_times_sigmoid(u, q.alpha * u) * (w + 1);
        }
    }
}

template <class I> GB_KERNEL GB_BOUNDS(256, 1) gb_glu(gb_glu_args q, int64_t n) {
    gb_wait_for_earlier();
    const int64_t k = gb_thread();
    if (k < n) {
        const gb_index at = gb_unravel<I>((I) k, q.z.ne);
        gb_put(q.z.type, gb_at(q.z, at),
            gb_glu_one(q, gb_get(q.x.type, gb_at(q.x, at)), gb_get(q.g.type, gb_at(q.g, at))));
    }
}

static enum ggml_status glu_run(gb_cuda_backend & b, ggml_tensor * dst) {
    const ggml_tensor *a = dst->src[0], *other = dst->src[1];
    const int64_t n = gb_count(dst);
    gb_glu_args q = { gb_view_of(dst), gb_view_of(a), gb_view_of(other != NULL ? other : a), dst->op_params[0],
        gb_param_float(dst, 2), gb_param_float(dst, 3) };
    if (other == NULL) { // halves of the rows
        gb_view & second = dst->op_params[1] != 0 ? q.x : q.g;
        second.p += dst->ne[0] * second.nb[0];
    }
    GB_CUDA_TRY(b, GB_EACH_LAUNCH(gb_glu, n, b.queue, q, n));
    return GGML_STATUS_SUCCESS;
}

static const char * glu_supports(const gb_cuda_device &, const ggml_tensor * dst) {
    return dst->op_params[0] < 0 || dst->op_params[0] >= GGML_GLU_OP_COUNT
               ? "unknown gate"
               : gb_need_floats(dst, dst->src[1] != NULL ? 2 : 1);
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
    { GGML_OP_SCALE, map_supports, run<GB_MAP_SCALE, 1>, gb_soft_max_fuse },
    { GGML_OP_SCALE_BIAS, map_supports, run<GB_MAP_SCALE_BIAS, 2>, nullptr },
    { GGML_OP_XIELU, map_supports, run<GB_MAP_XIELU, 4>, nullptr }, { GGML_OP_GLU, glu_supports, glu_run, nullptr })
