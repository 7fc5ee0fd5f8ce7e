// attention_hopper.cu - launches gb_attention_tall, and decides what it takes.
#include "cuda/kernels/attention_hopper.cuh"
#include "cuda/ops/attention.h"

static_assert((int) GB_TALL_ROWS == (int) GB_ATTENTION_TALL_ROWS, "both names have one value");

enum { SHORT_HEAD = 64, LONG_HEAD = 128 }; // padded; longer heads have 256

static int padded(const gb_attention & p) {
    return p.d <= SHORT_HEAD ? SHORT_HEAD : p.d <= LONG_HEAD ? LONG_HEAD : 256;
}

int gb_attention_tall_keys(const gb_attention & p) { return p.d <= LONG_HEAD ? 128 : 64; }

// ------------------------------------------------------------------------------------------------------------ operands

// Describes `tall` rows of `wide` halves in a head.
static gb_tensor_layout layout_of(const gb_attention_input & t, int64_t wide, int64_t tall, int rows, int (&axis)[3]) {
    const int64_t ne[4] = { wide, tall, t.ne2, t.ne3 };
    const size_t nb[3] = { t.nb1, t.nb2, t.nb3 };
    return gb_tensor_layout_of(t.x, t.type == GGML_TYPE_BF16, ne, nb, rows, axis);
}

static gb_tensor_layout layout_of_keys(const gb_attention & p, int (&axis)[3]) {
    return layout_of(p.k, p.d, p.m, gb_attention_tall_keys(p), axis);
}

static gb_tensor_layout layout_of_values(const gb_attention & p, int (&axis)[3]) {
    return layout_of(p.v, p.m, p.d, padded(p), axis);
}

static bool has_pairs(const gb_attention_mask & m) {
    const size_t size = m.type == GGML_TYPE_F32 ? 4 : 2;
    return (m.type == GGML_TYPE_F32 || m.type == GGML_TYPE_F16) && m.nb0 == size &&
           ((uintptr_t) m.x | m.nb1 | m.nb2 | m.nb3) % (2 * size) == 0;
}

// -------------------------------------------------------------------------------------------------------------- choice

static size_t shared_of(const gb_attention & p) {
    return p.d <= SHORT_HEAD  ? (size_t) gb_tall_room<SHORT_HEAD, 128>::end
           : p.d <= LONG_HEAD ? (size_t) gb_tall_room<LONG_HEAD, 128>::end
                              : (size_t) gb_tall_room<256, 64>::end;
}

bool gb_attention_tall_takes(const gb_cuda_device & d, const gb_attention & p) {
    enum { LEAST_ROWS = 65 }; // fewer rows would leave half of a block idle
    int axis[3];
    return d.hopper && p.n * (p.heads / p.outer) >= LEAST_ROWS && p.scale > 0 && p.m > 0 &&
           shared_of(p) <= d.shared_max && gb_tensor_map_is_possible(layout_of_keys(p, axis)) &&
           gb_tensor_map_is_possible(layout_of_values(p, axis));
}

template <int KIND, int DP, int KEYS>
static cudaError_t launch(const gb_attention_tiles & t, dim3 grid, const gb_queue & queue) {
    const size_t shared = gb_tall_room<DP, KEYS>::end;
    return t.p.mask.x != NULL
               ? GB_LAUNCH((gb_attention_tall<KIND, DP, KEYS, true>), grid, GB_TALL_THREADS, shared, queue, t)
               : GB_LAUNCH((gb_attention_tall<KIND, DP, KEYS, false>), grid, GB_TALL_THREADS, shared, queue, t);
}

template <int KIND> static cudaError_t launch_size(const gb_attention_tiles & t, dim3 grid, const gb_queue & queue) {
    return t.p.d <= SHORT_HEAD  ? launch<KIND, SHORT_HEAD, 128>(t, grid, queue)
           : t.p.d <= LONG_HEAD ? launch<KIND, LONG_HEAD, 128>(t, grid, queue)
                                : launch<KIND, 256, 64>(t, grid, queue);
}

cudaError_t gb_attention_launch_tall(const gb_attention & p, int64_t batch, const gb_queue & queue) {
    gb_attention_tiles t = { p, {}, {}, {}, {}, has_pairs(p.mask) };
    const gb_tensor_layout keys = layout_of_keys(p, t.k_axis), values = layout_of_values(p, t.v_axis);
    // a dry run has no addresses
    if (!queue.nowhere && !(gb_tensor_map_make(keys, &t.k) && gb_tensor_map_make(values, &t.v))) {
        return cudaErrorInvalidValue;
    }
    const int64_t tiles = gb_cuda_ceil_div(p.n * (p.heads / p.outer), GB_TALL_ROWS);
    const dim3 grid((unsigned) (tiles * p.parts), (unsigned) p.outer, (unsigned) batch);
    return p.q.type == GGML_TYPE_F16 ? launch_size<GB_HALF_F16>(t, grid, queue)
                                     : launch_size<GB_HALF_BF16>(t, grid, queue);
}
