// attention_hopper.cu - attention of many query rows on 9.0, with larger tiles (gb_attention_tall).
#include "cuda/kernels/attention_hopper.cuh"
#include "cuda/ops/attention.h"

enum { SHORT_HEAD = 64, LONG_HEAD = 128 }; // padded; longer heads have 256

static int padded(const gb_attention & p) {
    return p.d <= SHORT_HEAD ? SHORT_HEAD : p.d <= LONG_HEAD ? LONG_HEAD : 256;
}

static int keys_of(const gb_attention & p) { return p.d <= LONG_HEAD ? 128 : 64; }

// ------------------------------------------------------------------------------------------------------------ operands

// Describes `tall` rows of `wide` halves in a head.
static gb_tensor_layout layout_of(const gb_attention_input & t, int64_t wide, int64_t tall, int rows, int (&axis)[3]) {
    const int64_t ne[4] = { wide, tall, t.ne2, t.ne3 };
    const size_t nb[3] = { t.nb1, t.nb2, t.nb3 };
    return gb_tensor_layout_of(t.x, t.type == GGML_TYPE_BF16, ne, nb, rows, axis);
}

static gb_tensor_layout layout_of_keys(const gb_attention & p, int (&axis)[3]) {
    return layout_of(p.k, p.d, p.m, keys_of(p), axis);
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
    return p.d <= SHORT_HEAD  ? (size_t) gb_tall_layout<SHORT_HEAD, 128>::end
           : p.d <= LONG_HEAD ? (size_t) gb_tall_layout<LONG_HEAD, 128>::end
                              : (size_t) gb_tall_layout<256, 64>::end;
}

const char * gb_attention_hopper_declines(const gb_cuda_device & d, const gb_attention & p) {
    enum { LEAST_ROWS = 65 }; // fewer rows would leave half of a block idle
    int axis[3];
    const char * why = !d.hopper ? "needs compute capability 9.0 and its kernels" : gb_attention_halves_decline(d, p);
    return why != NULL                              ? why
           : p.n * (p.heads / p.outer) < LEAST_ROWS ? "needs more than 64 rows of queries that share keys"
           : !(p.scale > 0)                         ? "needs a positive scale"
           : p.m == 0                               ? "there are no keys"
           : shared_of(p) > d.shared_max            ? "the device has too little shared memory"
           : gb_tensor_map_is_possible(layout_of_keys(p, axis)) && gb_tensor_map_is_possible(layout_of_values(p, axis))
               ? NULL
               : "a tensor map cannot have the strides or addresses of keys or values";
}

template <int KIND, int DP, int KEYS>
static cudaError_t launch(const gb_attention_tiles & t, dim3 grid, const gb_queue & queue) {
    const size_t shared = gb_tall_layout<DP, KEYS>::end;
    return t.p.mask.x != NULL
               ? GB_LAUNCH((gb_attention_tall<KIND, DP, KEYS, true>), grid, GB_TALL_THREADS, shared, queue, t)
               : GB_LAUNCH((gb_attention_tall<KIND, DP, KEYS, false>), grid, GB_TALL_THREADS, shared, queue, t);
}

template <int KIND> static cudaError_t launch_size(const gb_attention_tiles & t, dim3 grid, const gb_queue & queue) {
    return t.p.d <= SHORT_HEAD  ? launch<KIND, SHORT_HEAD, 128>(t, grid, queue)
           : t.p.d <= LONG_HEAD ? launch<KIND, LONG_HEAD, 128>(t, grid, queue)
                                : launch<KIND, 256, 64>(t, grid, queue);
}

static cudaError_t launch_tall(const gb_attention & p, int64_t batch, const gb_queue & queue) {
    gb_attention_tiles t = { p, {}, {}, {}, {}, has_pairs(p.mask) };
    const gb_tensor_layout keys = layout_of_keys(p, t.k_axis), values = layout_of_values(p, t.v_axis);
    // a dry run has no addresses
    if (!queue.nowhere && !(gb_tensor_map_make(keys, &t.k) && gb_tensor_map_make(values, &t.v))) {
        return cudaErrorInvalidValue;
    }
    const int64_t tiles = gb_attention_row_tiles(p, GB_TALL_ROWS);
    const dim3 grid((unsigned) (tiles * p.parts), (unsigned) p.outer, (unsigned) batch);
    return p.q.type == GGML_TYPE_F16 ? launch_size<GB_HALF_F16>(t, grid, queue)
                                     : launch_size<GB_HALF_BF16>(t, grid, queue);
}

enum ggml_status gb_attention_hopper_run(gb_cuda_backend & b, gb_attention p, int64_t batch) {
    if (!gb_attention_cut_keys(b, p, batch, GB_TALL_ROWS, keys_of(p), GB_ATTENTION_LEAST_KEYS, b.device->n_sm)) {
        return GGML_STATUS_ALLOC_FAILED;
    }
    GB_CUDA_TRY(b, launch_tall(p, batch, b.queue));
    return gb_attention_join_parts(b, p, batch);
}
