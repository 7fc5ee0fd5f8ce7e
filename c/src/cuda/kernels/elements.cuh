// elements.cuh - access to elements of a tensor of any type and stride.
//
// A view describes a tensor to a kernel. One thread makes one element of the result. gb_unravel
// turns its number into indices, with 32-bit divisions if the count allows (I = uint32_t). Float
// types are distinguished at run time: all threads take the same branch, and memory limits these
// kernels. Dense f32 has separate kernels, with 16 bytes a thread.
#ifndef GB_CUDA_KERNELS_ELEMENTS_CUH
#define GB_CUDA_KERNELS_ELEMENTS_CUH

#include "cuda/kernels/bits.cuh"
#include "ggml.h"

struct gb_view {
    char * p;
    int64_t ne[4], nb[4];
    int type;
};

struct gb_index {
    int64_t i[4];
};

template <class I> GB_DEVICE gb_index gb_unravel(I k, const int64_t * ne) {
    gb_index at;
    GB_UNROLL for (int d = 0; d < 3; d++) {
        const I rest = k / (I) ne[d];
        at.i[d] = (int64_t) (k - rest * (I) ne[d]);
        k = rest;
    }
    at.i[3] = (int64_t) k;
    return at;
}

// Indices of a row, which is counted through dimensions 1 to 3; i[0] is 0.
template <class I> GB_DEVICE gb_index gb_unravel_row(I row, const int64_t * ne) {
    const I rest = row / (I) ne[1], i3 = rest / (I) ne[2];
    const gb_index at = { { 0, (int64_t) (row - rest * (I) ne[1]), (int64_t) (rest - i3 * (I) ne[2]), (int64_t) i3 } };
    return at;
}

GB_DEVICE char * gb_at(const gb_view & v, const gb_index & at) {
    return v.p + at.i[0] * v.nb[0] + at.i[1] * v.nb[1] + at.i[2] * v.nb[2] + at.i[3] * v.nb[3];
}

GB_DEVICE char * gb_at(const gb_view & v, int64_t i0, int64_t i1, int64_t i2, int64_t i3) {
    return v.p + i0 * v.nb[0] + i1 * v.nb[1] + i2 * v.nb[2] + i3 * v.nb[3];
}

GB_DEVICE float gb_get(int type, const char * p) { // F32, F16, BF16
    if (type == GGML_TYPE_F32) {
        return *(const float *) (const void *) p;
    }
    const uint16_t h = *(const uint16_t *) (const void *) p;
    return type == GGML_TYPE_F16 ? gb_half_bits_to_float(h) : gb_bits_to_float((uint32_t) h << 16);
}

GB_DEVICE void gb_put(int type, char * p, float x) {
    if (type == GGML_TYPE_F32) {
        *(float *) (void *) p = x;
    } else {
        *(uint16_t *) (void *) p =
            type == GGML_TYPE_F16 ? gb_half_bits(gb_float_to_half(x)) : gb_bf16_bits(gb_float_to_bf16(x));
    }
}

// Four adjacent elements, which begin at a multiple of their size.
GB_DEVICE float4 gb_get_four(int type, const char * p) {
    if (type == GGML_TYPE_F32) {
        return *(const float4 *) (const void *) p;
    }
    const uint2 two = *(const uint2 *) (const void *) p;
    if (type == GGML_TYPE_F16) {
        return make_float4(gb_half_bits_to_float((uint16_t) two.x), gb_half_bits_to_float((uint16_t) (two.x >> 16)),
            gb_half_bits_to_float((uint16_t) two.y), gb_half_bits_to_float((uint16_t) (two.y >> 16)));
    }
    return make_float4(gb_bits_to_float(two.x << 16), gb_bits_to_float(two.x & 0xffff0000u),
        gb_bits_to_float(two.y << 16), gb_bits_to_float(two.y & 0xffff0000u));
}

GB_DEVICE void gb_put_four(int type, char * p, float4 v) {
    if (type == GGML_TYPE_F32) {
        *(float4 *) (void *) p = v;
    } else if (type == GGML_TYPE_F16) {
        *(uint2 *) (void *) p = make_uint2(gb_pack2<GB_HALF_F16>(v.x, v.y), gb_pack2<GB_HALF_F16>(v.z, v.w));
    } else {
        *(uint2 *) (void *) p =
            make_uint2(gb_bf16_bits(gb_float_to_bf16(v.x)) | (uint32_t) gb_bf16_bits(gb_float_to_bf16(v.y)) << 16,
                gb_bf16_bits(gb_float_to_bf16(v.z)) | (uint32_t) gb_bf16_bits(gb_float_to_bf16(v.w)) << 16);
    }
}

// Elements i to i + 3 of a dense row of F32.
GB_DEVICE float4 gb_load_floats(const char * row, int64_t i) {
    return gb_get_four(GGML_TYPE_F32, row + i * (int64_t) sizeof(float));
}

GB_DEVICE void gb_store_floats(const gb_view & to, const gb_index & at, int64_t i, float4 v) { // p NULL: not stored
    if (to.p != NULL) {
        gb_put_four(GGML_TYPE_F32, gb_at(to, at) + i * (int64_t) sizeof(float), v);
    }
}

// Copies an element of 1, 2, 4, 8 or 16 bytes, or a block of a quantized type.
GB_DEVICE void gb_move(int size, char * to, const char * from) {
    switch (size) {
        case 1: *to = *from; break;
        case 2: *(uint16_t *) (void *) to = *(const uint16_t *) (const void *) from; break;
        case 4: *(uint32_t *) (void *) to = *(const uint32_t *) (const void *) from; break;
        case 8: *(uint64_t *) (void *) to = *(const uint64_t *) (const void *) from; break;
        case 16: *(uint4 *) (void *) to = *(const uint4 *) (const void *) from; break;
        default:
            for (int i = 0; i < size; i++) {
                to[i] = from[i];
            }
    }
}

GB_DEVICE void gb_clear(int size, char * to) {
    for (int i = 0; i < size; i++) {
        to[i] = 0;
    }
}

// The thread's number in a grid along x.
GB_DEVICE int64_t gb_thread(void) { return (int64_t) blockIdx.x * blockDim.x + threadIdx.x; }

// -------------------------------------------------------------------------------------------- threads that share a row

// A row belongs to one warp (WARPS = 1; several rows a block) or to a block. Every thread of the owner calls these.
// Sums have a fixed order.
template <int WARPS, class T> GB_DEVICE T gb_row_sum(T x, T * shared) {
    x = gb_warp_sum(x);
    if (WARPS > 1) {
        gb_sync_block(); // the values of the last call have been read
        if (threadIdx.x % GB_WARP == 0) {
            shared[threadIdx.x / GB_WARP] = x;
        }
        gb_sync_block();
        x = 0;
        for (int w = 0; w < WARPS; w++) {
            x += shared[w];
        }
    }
    return x;
}

template <int WARPS> GB_DEVICE float gb_row_max(float x, float * shared) {
    x = gb_warp_max(x);
    if (WARPS > 1) {
        gb_sync_block();
        if (threadIdx.x % GB_WARP == 0) {
            shared[threadIdx.x / GB_WARP] = x;
        }
        gb_sync_block();
        x = shared[0];
        for (int w = 1; w < WARPS; w++) {
            x = fmaxf(x, shared[w]);
        }
    }
    return x;
}

// The row of this thread, and below its number among the threads of the row. The row may be past the
// last one. Callers then repeat the last row, because no thread may return.
template <int WARPS> GB_DEVICE int64_t gb_my_row(void) {
    return WARPS > 1 ? (int64_t) blockIdx.x : (int64_t) blockIdx.x * (blockDim.x / GB_WARP) + threadIdx.x / GB_WARP;
}

template <int WARPS> GB_DEVICE int gb_my_place(void) {
    return WARPS > 1 ? (int) threadIdx.x : (int) threadIdx.x % GB_WARP;
}

#endif // GB_CUDA_KERNELS_ELEMENTS_CUH
