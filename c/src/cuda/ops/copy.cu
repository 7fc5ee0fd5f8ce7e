// copy.cu - DUP, CPY, CONT: element k of the source, in logical order, becomes element k of the result.
//
// The first applicable method runs: a copy of memory; tiles, if source and result are dense along
// different dimensions; a thread for 16 bytes or four elements of a row, if both are dense along
// dimension 0; one element a thread. Quantized types are moved in whole blocks,
// dequantized in groups of 32, and quantized if one warp can do it (quantize.cuh). The rest runs on
// the CPU.
#include "cuda/kernels/copies.cuh"
#include "cuda/kernels/quantize.cuh"
#include "cuda/ops/elements.h"

#include <algorithm>

static int64_t count_of(const gb_view & v) { return v.ne[0] * v.ne[1] * v.ne[2] * v.ne[3]; }

static bool same_shape(const gb_view & y, const gb_view & x) { return std::equal(y.ne, y.ne + 4, x.ne); }

// Makes `bytes` of a dense row one element. False: the view is not dense along dimension 0, or its rows do not begin
// and end at multiples of `bytes`. size: of an element
static bool join(gb_view & v, int64_t size, int64_t bytes) {
    const uintptr_t places = (uintptr_t) v.p | (uintptr_t) v.nb[1] | (uintptr_t) v.nb[2] | (uintptr_t) v.nb[3];
    if (v.nb[0] != size || v.ne[0] * size % bytes != 0 || places % (uintptr_t) bytes != 0) {
        return false;
    }
    v.ne[0] = v.ne[0] * size / bytes;
    v.nb[0] = bytes;
    return true;
}

// Copies between equal types move the largest pieces that both sides allow. Gives their size.
static int join_bytes(gb_view & y, gb_view & x) {
    const int size = (int) ggml_type_size((enum ggml_type) y.type);
    for (int bytes : { 16, 8, 4, 2 }) {
        gb_view to = y, from = x;
        if ((bytes > size || size > 16) && same_shape(y, x) && join(to, size, bytes) && join(from, size, bytes)) {
            y = to;
            x = from;
            return bytes;
        }
    }
    return size;
}

static bool join_fours(gb_view & y, gb_view & x) {
    const int64_t to_size = (int64_t) ggml_type_size((enum ggml_type) y.type),
                  from_size = (int64_t) ggml_type_size((enum ggml_type) x.type);
    gb_view to = y, from = x;
    const bool may = gb_is_float_type((enum ggml_type) y.type) && gb_is_float_type((enum ggml_type) x.type) &&
                     same_shape(y, x) && join(to, to_size, 4 * to_size) && join(from, from_size, 4 * from_size);
    if (may) {
        y = to;
        x = from;
    }
    return may;
}

cudaError_t gb_launch_copy(const gb_view & to, const gb_view & from, const gb_queue & queue) {
    gb_view y = to, x = from;
    const bool moves = y.type == x.type;
    const int size = moves ? join_bytes(y, x) : 0;
    const bool fours = !moves && join_fours(y, x);
    const int64_t n = count_of(y);
    if (n == 0) {
        return cudaSuccess;
    }
    if (moves) {
        return gb_is_small(n) ? GB_LAUNCH((gb_copy_moving<uint32_t>), gb_blocks(n), GB_BLOCK, 0, queue, y, x, size, n)
                              : GB_LAUNCH((gb_copy_moving<uint64_t>), gb_blocks(n), GB_BLOCK, 0, queue, y, x, size, n);
    }
    if (fours) {
        return gb_is_small(n) ? GB_LAUNCH((gb_copy_fours<uint32_t>), gb_blocks(n), GB_BLOCK, 0, queue, y, x, n)
                              : GB_LAUNCH((gb_copy_fours<uint64_t>), gb_blocks(n), GB_BLOCK, 0, queue, y, x, n);
    }
    return gb_is_small(n) ? GB_LAUNCH((gb_copy_converting<uint32_t>), gb_blocks(n), GB_BLOCK, 0, queue, y, x, n)
                          : GB_LAUNCH((gb_copy_converting<uint64_t>), gb_blocks(n), GB_BLOCK, 0, queue, y, x, n);
}

// The dimension along which x is dense while y is dense along dimension 0. 0: none, or a tile copy
// does not support the sizes or types.
static int transposed_with(const gb_view & y, const gb_view & x) {
    const int64_t size = (int64_t) ggml_type_size((enum ggml_type) y.type);
    if (y.type != x.type || (size != 2 && size != 4) || y.nb[0] != size || y.ne[0] < 8) {
        return 0;
    }
    for (int d = 0; d < 4; d++) {
        if (y.ne[d] != x.ne[d]) {
            return 0;
        }
    }
    for (int d = 1; d < 4; d++) {
        const int64_t rest = count_of(y) / (y.ne[0] * y.ne[d]);
        if (x.nb[d] == size && y.ne[d] >= 8 && rest <= 65535 && gb_cuda_ceil_div(y.ne[d], GB_TILE) <= 65535) {
            return d;
        }
    }
    return 0;
}

static cudaError_t launch_transposing(const gb_view & y, const gb_view & x, int with, const gb_queue & queue) {
    const int64_t rest = count_of(y) / (y.ne[0] * y.ne[with]);
    const dim3 grid((unsigned) gb_cuda_ceil_div(y.ne[0], GB_TILE), (unsigned) gb_cuda_ceil_div(y.ne[with], GB_TILE),
        (unsigned) rest);
    const int block = GB_TILE * GB_TILE_LINES;
    return ggml_type_size((enum ggml_type) y.type) == 2
               ? GB_LAUNCH((gb_copy_transposing<uint16_t>), grid, block, 0, queue, y, x, with)
               : GB_LAUNCH((gb_copy_transposing<uint32_t>), grid, block, 0, queue, y, x, with);
}

// The same view with blocks as elements.
static gb_view in_blocks(const ggml_tensor * t) {
    gb_view v = gb_view_of(t);
    v.ne[0] /= ggml_blck_size(t->type);
    return v;
}

static cudaError_t launch_dequantizing(const gb_view & y, const gb_view & x, const gb_queue & queue) {
    const int64_t n = count_of(x) / 32;
    switch (x.type) {
#define GB_FORMAT(id, ...) \
    case GGML_TYPE_##id:   \
        return GB_LAUNCH((gb_copy_dequantizing<GGML_TYPE_##id>), gb_blocks(n), GB_BLOCK, 0, queue, y, x, n);
#include "tensor/quant/formats.def"
#undef GB_FORMAT
        default: return cudaErrorInvalidValue;
    }
}

template <int TYPE> static cudaError_t quantizing(const gb_view & y, const gb_view & x, const gb_queue & queue) {
    if constexpr (gb_quantizer<TYPE>::exists) {
        const int64_t n = count_of(y) / 32;
        const unsigned blocks = (unsigned) gb_cuda_ceil_div(n, GB_QUANTIZE_WARPS),
                       threads = GB_QUANTIZE_WARPS * GB_WARP;
        const int bytes = (int) ggml_type_size((enum ggml_type) TYPE);
        return GB_LAUNCH((gb_copy_quantizing<TYPE>), blocks, threads, 0, queue, y, x, bytes, n);
    }
    return cudaErrorInvalidValue;
}

static cudaError_t launch_quantizing(const gb_view & y, const gb_view & x, const gb_queue & queue) {
    switch (y.type) {
#define GB_FORMAT(id, ...) \
    case GGML_TYPE_##id: return quantizing<GGML_TYPE_##id>(y, x, queue);
#include "tensor/quant/formats.def"
#undef GB_FORMAT
        default: return cudaErrorInvalidValue;
    }
}

bool gb_may_quantize(enum ggml_type type) {
    switch (type) {
#define GB_FORMAT(id, ...) \
    case GGML_TYPE_##id: return gb_quantizer<GGML_TYPE_##id>::exists;
#include "tensor/quant/formats.def"
#undef GB_FORMAT
        default: return false;
    }
}

bool gb_rows_are_blocks(const ggml_tensor * t) {
    return t->nb[0] == ggml_type_size(t->type) && t->ne[0] % ggml_blck_size(t->type) == 0;
}

cudaError_t gb_launch_conversion(const gb_view & y, const gb_view & x, const gb_queue & queue) {
    const bool from = ggml_is_quantized((enum ggml_type) x.type), to = ggml_is_quantized((enum ggml_type) y.type);
    return count_of(y) == 0 ? cudaSuccess
           : from           ? launch_dequantizing(y, x, queue)
           : to             ? launch_quantizing(y, x, queue)
                            : gb_launch_copy(y, x, queue);
}

static cudaError_t launch(const ggml_tensor * dst, const gb_queue & queue) {
    const ggml_tensor * src = dst->src[0];
    if (dst->type == src->type && ggml_is_contiguous(dst) && ggml_is_contiguous(src)) {
        return dst->data == src->data ? cudaSuccess : gb_queue_copy(queue, dst->data, src->data, ggml_nbytes(dst));
    }
    if (dst->type != src->type && (ggml_is_quantized(src->type) || ggml_is_quantized(dst->type))) {
        return gb_launch_conversion(gb_view_of(dst), gb_view_of(src), queue);
    }
    const gb_view y = in_blocks(dst), x = in_blocks(src);
    const int with = ggml_is_quantized(src->type) ? 0 : transposed_with(y, x);
    return with > 0 ? launch_transposing(y, x, with, queue) : gb_launch_copy(y, x, queue);
}

static enum ggml_status copy_run(gb_cuda_backend & b, ggml_tensor * dst) {
    GB_CUDA_TRY(b, launch(dst, b.queue));
    return GGML_STATUS_SUCCESS;
}

static bool is_number(enum ggml_type type) { return gb_is_float_type(type) || type == GGML_TYPE_I32; }

static const char * quantized_unsupported(const ggml_tensor * dst, const ggml_tensor * src) {
    const int64_t block = std::max(ggml_blck_size(src->type), ggml_blck_size(dst->type));
    for (const ggml_tensor * t : { dst, src }) {
        if (t->ne[0] % block != 0 || (ggml_is_quantized(t->type) && !gb_rows_are_blocks(t))) {
            return "rows that are not whole blocks";
        }
    }
    if (dst->type == src->type) {
        return NULL;
    }
    if (ggml_is_quantized(src->type)) {
        return gb_is_float_type(dst->type) ? NULL
                                           : "conversion of a quantized type to one that is not f32, f16 or bf16";
    }
    if (!gb_is_float_type(src->type)) {
        return "quantizing what is not f32, f16 or bf16";
    }
    return gb_may_quantize(dst->type) ? NULL : "quantizing to this type, which takes a long search";
}

static const char * copy_supports(const gb_cuda_device &, const ggml_tensor * dst) {
    const ggml_tensor * src = dst->src[0];
    const char * why = gb_need_plain(dst) != NULL ? gb_need_plain(dst) : gb_need_plain(src);
    if (why != NULL) {
        return why;
    }
    if (ggml_is_quantized(src->type) || ggml_is_quantized(dst->type)) {
        return quantized_unsupported(dst, src);
    }
    return src->type == dst->type || (is_number(src->type) && is_number(dst->type)) ? NULL
                                                                                    : "conversion between these types";
}

GB_CUDA_FAMILY_DEFINE(copy, { GGML_OP_DUP, copy_supports, copy_run, nullptr },
    { GGML_OP_CPY, copy_supports, copy_run, nullptr }, { GGML_OP_CONT, copy_supports, copy_run, nullptr })
