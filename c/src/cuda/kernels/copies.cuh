// copies.cuh - kernels of DUP, CPY, CONT, SET and GET_ROWS. Element k of one tensor becomes element k of another, in
// logical order.
//
// Both tensors have the same number of elements; shapes may differ. Conversions go through float. To i32 they saturate,
// and NaN becomes 0.
#ifndef GB_CUDA_KERNELS_COPIES_CUH
#define GB_CUDA_KERNELS_COPIES_CUH

#include "cuda/kernels/elements.cuh"
#include "cuda/kernels/unpack.cuh"

GB_DEVICE int32_t gb_to_i32(float v) {
    return v != v ? 0 : v >= 2147483648.0f ? INT32_MAX : v <= -2147483648.0f ? INT32_MIN : (int32_t) v;
}

GB_DEVICE void gb_convert(int to, char * y, int from, const char * x) {
    if (from == GGML_TYPE_I32) {
        const int32_t v = *(const int32_t *) (const void *) x;
        gb_put(to, y, (float) v);
    } else if (to == GGML_TYPE_I32) {
        *(int32_t *) (void *) y = gb_to_i32(gb_get(from, x));
    } else {
        gb_put(to, y, gb_get(from, x));
    }
}

// Copies elements of `size` bytes, which may be several of the tensor. Blocks of quantized types count as elements, and
// ne counts blocks.
template <class I> GB_KERNEL GB_BOUNDS(256, 1) gb_copy_moving(gb_view y, gb_view x, int size, int64_t n) {
    gb_wait_for_earlier();
    const int64_t k = gb_thread();
    if (k < n) {
        gb_move(size, gb_at(y, gb_unravel<I>((I) k, y.ne)), gb_at(x, gb_unravel<I>((I) k, x.ne)));
    }
}

template <class I> GB_KERNEL GB_BOUNDS(256, 1) gb_copy_converting(gb_view y, gb_view x, int64_t n) {
    gb_wait_for_earlier();
    const int64_t k = gb_thread();
    if (k < n) {
        gb_convert(y.type, gb_at(y, gb_unravel<I>((I) k, y.ne)), x.type, gb_at(x, gb_unravel<I>((I) k, x.ne)));
    }
}

// Of floats. The views have a fourth of the elements, and their strides.
template <class I> GB_KERNEL GB_BOUNDS(256, 1) gb_copy_fours(gb_view y, gb_view x, int64_t n) {
    gb_wait_for_earlier();
    const int64_t k = gb_thread();
    if (k < n) {
        const gb_index at = gb_unravel<I>((I) k, y.ne); // both have one shape
        gb_put_four(y.type, gb_at(y, at), gb_get_four(x.type, gb_at(x, at)));
    }
}

// Transposes. y is dense along dimension 0, x along dimension `with`; both have one 2- or 4-byte type and one shape.
// grid: x tiles along dimension 0, y along `with`, z the rest. A tile goes through shared memory, so that reads and
// writes are coalesced.
enum { GB_TILE = 32, GB_TILE_LINES = 8 };

template <class T> GB_KERNEL GB_BOUNDS(256, 1) gb_copy_transposing(gb_view y, gb_view x, int with) {
    gb_wait_for_earlier();
    GB_SHARED(T, tile, GB_TILE * (GB_TILE + 1));
    const int a = with == 1 ? 2 : 1, b = with == 3 ? 2 : 3;
    const int64_t ia = blockIdx.z % y.ne[a], ib = blockIdx.z / y.ne[a];
    const int64_t i0 = (int64_t) blockIdx.x * GB_TILE, iw = (int64_t) blockIdx.y * GB_TILE;
    const int lane = (int) threadIdx.x % GB_TILE, line = (int) threadIdx.x / GB_TILE;
    const char * from = x.p + ia * x.nb[a] + ib * x.nb[b];
    char * to = y.p + ia * y.nb[a] + ib * y.nb[b];
    for (int j = line; j < GB_TILE; j += GB_TILE_LINES) {
        if (i0 + j < y.ne[0] && iw + lane < y.ne[with]) {
            tile[j * (GB_TILE + 1) + lane] =
                *(const T *) (const void *) (from + (i0 + j) * x.nb[0] + (iw + lane) * x.nb[with]);
        }
    }
    gb_sync_block();
    for (int j = line; j < GB_TILE; j += GB_TILE_LINES) {
        if (i0 + lane < y.ne[0] && iw + j < y.ne[with]) {
            *(T *) (void *) (to + (i0 + lane) * y.nb[0] + (iw + j) * y.nb[with]) = tile[lane * (GB_TILE + 1) + j];
        }
    }
}

// Quantized to floats. A thread makes a group of 32 elements. Rows of both tensors are multiples of 32.
template <int TYPE> GB_DEVICE void gb_dequantize_group(const char * row, int64_t group, gb_group & o) {
    constexpr int per_block = gb_format<TYPE>::block / 32;
    gb_format<TYPE>::unpack((const uint8_t *) row + group / per_block * gb_format<TYPE>::bytes,
        (int) (group % per_block), o);
}

GB_DEVICE float gb_group_element(const gb_group & o, int i) {
    return o.d[i / 16] * (float) (int8_t) (o.q[i / 4] >> 8 * (i % 4)) + o.m[i / 16];
}

template <int TYPE> GB_KERNEL GB_BOUNDS(256, 1) gb_copy_dequantizing(gb_view y, gb_view x, int64_t n_groups) {
    gb_wait_for_earlier();
    const int64_t k = gb_thread();
    if (k >= n_groups) {
        return;
    }
    const int64_t per_row = x.ne[0] / 32, first = k % per_row;
    const gb_index from = gb_unravel_row<uint64_t>((uint64_t) (k / per_row), x.ne);
    gb_index to = gb_unravel<uint64_t>((uint64_t) k * 32, y.ne); // does not cross the end of a row of y
    gb_group o;
    gb_dequantize_group<TYPE>(gb_at(x, from), first, o);
    for (int i = 0; i < 32; i++, to.i[0]++) {
        gb_put(y.type, gb_at(y, to), gb_group_element(o, i));
    }
}

#endif // GB_CUDA_KERNELS_COPIES_CUH
