// elements.h - host code of most operators: views of tensors, sizes of grids, common reasons for refusal.
#ifndef GB_CUDA_OPS_ELEMENTS_H
#define GB_CUDA_OPS_ELEMENTS_H

#include "cuda/kernels/elements.cuh"
#include "cuda/op.h"

enum { GB_BLOCK = 256 };

static inline gb_view gb_view_of(const ggml_tensor * t) {
    gb_view v;
    v.p = gb_cuda_data(t);
    v.type = t->type;
    for (int i = 0; i < 4; i++) {
        v.ne[i] = t->ne[i];
        v.nb[i] = (int64_t) t->nb[i];
    }
    return v;
}

static inline int64_t gb_count(const ggml_tensor * t) { return t->ne[0] * t->ne[1] * t->ne[2] * t->ne[3]; }

static inline int64_t gb_rows(const ggml_tensor * t) { return t->ne[1] * t->ne[2] * t->ne[3]; }

static inline unsigned gb_blocks(int64_t n) { // blocks of GB_BLOCK threads, one thread for each of n
    return (unsigned) gb_cuda_ceil_div(n, GB_BLOCK);
}

static inline bool gb_is_small(int64_t n) { // can be counted in 32 bits
    return n < (int64_t) 1 << 31;
}

// Launches kernel<I> with a thread for each of n elements, which I counts: GB_EACH_LAUNCH(kernel, n, queue, ...).
#define GB_EACH_LAUNCH(kernel, n, q, ...)                                                      \
    (gb_is_small(n) ? GB_LAUNCH((kernel<uint32_t>), gb_blocks(n), GB_BLOCK, 0, q, __VA_ARGS__) \
                    : GB_LAUNCH((kernel<uint64_t>), gb_blocks(n), GB_BLOCK, 0, q, __VA_ARGS__))

// Scratch memory in the shape of t, as dense f32. False, reported: no memory.
static inline bool gb_scratch_floats(gb_cuda_backend & b, const ggml_tensor * t, gb_view * v) {
    *v = gb_view_of(t);
    v->type = GGML_TYPE_F32;
    v->p = (char *) gb_cuda_scratch(b, (size_t) gb_count(t) * sizeof(float));
    for (int64_t i = 0, stride = sizeof(float); i < 4; stride *= v->ne[i++]) {
        v->nb[i] = stride;
    }
    return v->p != NULL;
}

static inline float gb_param_float(const ggml_tensor * t, int i) {
    float f;
    memcpy(&f, &t->op_params[i], sizeof(f));
    return f;
}

static inline bool gb_is_float_type(enum ggml_type type) {
    return type == GGML_TYPE_F32 || type == GGML_TYPE_F16 || type == GGML_TYPE_BF16;
}

static inline bool gb_same_shape(const ggml_tensor * a, const ggml_tensor * b) {
    return a->ne[0] == b->ne[0] && a->ne[1] == b->ne[1] && a->ne[2] == b->ne[2] && a->ne[3] == b->ne[3];
}

// True for dense, 16-aligned f32.
static inline bool gb_is_dense_f32(const ggml_tensor * t) {
    return t->type == GGML_TYPE_F32 && ggml_is_contiguous(t) && (uintptr_t) gb_cuda_data(t) % 16 == 0;
}

// ------------------------------------------------------------------------------------------------------------ refusals

enum { GB_MAX_BITS = 38 }; // of a count; grids along x are large enough

// NULL if elements are aligned; else the reason for a refusal.
static inline const char * gb_unaligned(const ggml_tensor * t) {
    const size_t size = ggml_is_quantized(t->type) ? 1 : ggml_type_size(t->type);
    for (int i = 0; i < 4; i++) {
        if (t->nb[i] % size != 0) {
            return "strides that are no multiples of the element's size";
        }
    }
    return t->view_src != NULL && t->view_offs % size != 0 ? "a view that begins inside an element" : NULL;
}

static inline const char * gb_need_plain(const ggml_tensor * t) {
    if (t == NULL) {
        return "a source is missing";
    }
    return gb_count(t) >> GB_MAX_BITS != 0 ? "more than 2^38 elements" : gb_unaligned(t);
}

// NULL if the result and the first n sources are F32, F16 or BF16.
static inline const char * gb_need_floats(const ggml_tensor * dst, int n) {
    for (int i = -1; i < n; i++) {
        const ggml_tensor * t = i < 0 ? dst : dst->src[i];
        const char * why = gb_need_plain(t);
        if (why != NULL) {
            return why;
        }
        if (!gb_is_float_type(t->type)) {
            return "a type that is not f32, f16 or bf16";
        }
    }
    return NULL;
}

// NULL if the result and the first n sources have one type that is not quantized.
static inline const char * gb_need_same(const ggml_tensor * dst, int n) {
    for (int i = -1; i < n; i++) {
        const ggml_tensor * t = i < 0 ? dst : dst->src[i];
        const char * why = gb_need_plain(t);
        if (why != NULL) {
            return why;
        }
        if (t->type != dst->type || ggml_is_quantized(t->type)) {
            return "types that differ or are quantized";
        }
    }
    return NULL;
}

// soft_max.cu: SCALE, DIAG_MASK_INF or both, and the SOFT_MAX that follows.
int gb_soft_max_fuse(gb_cuda_backend & b, const gb_cuda_nodes & nodes, int i);

// copy.cu: copies or converts elements in logical order. Both sides have the same number of
// elements, possibly 0.
cudaError_t gb_launch_copy(const gb_view & y, const gb_view & x, const gb_queue & queue);
// The same between floats and a quantized type with rows of whole blocks; gb_may_quantize must allow the target.
cudaError_t gb_launch_conversion(const gb_view & y, const gb_view & x, const gb_queue & queue);
bool gb_may_quantize(enum ggml_type type);
bool gb_rows_are_blocks(const ggml_tensor * t);

// ----------------------------------------------------------------------------- memory of nodes that are taken together

static inline bool gb_is_same_place(const ggml_tensor * a, const ggml_tensor * b) {
    return gb_cuda_data(a) == gb_cuda_data(b) && a->type == b->type && memcmp(a->nb, b->nb, sizeof(a->nb)) == 0;
}

// True if `later` writes its own memory, or exactly the elements of `earlier`.
static inline bool gb_is_apart_or_same(const ggml_tensor * earlier, const ggml_tensor * later) {
    return gb_is_same_place(earlier, later) || !gb_cuda_overlap(earlier, later);
}

// ----------------------------------------------------------------------------------------------------- grids over rows

// Launches a row kernel with threads that fit the length: GB_ROW_LAUNCH(kernel, n, rows, queue,
// ...). kernel<WARPS> works on rows of n elements. A short row gets one warp.
#define GB_ROW_LAUNCH(kernel, n, rows, q, ...)                                                                       \
    ((n) <= 256       ? GB_LAUNCH((kernel<1>), (unsigned) gb_cuda_ceil_div(rows, 8), 8 * GB_WARP, 0, q, __VA_ARGS__) \
        : (n) <= 2048 ? GB_LAUNCH((kernel<4>), (unsigned) (rows), 4 * GB_WARP, 0, q, __VA_ARGS__)                    \
                      : GB_LAUNCH((kernel<16>), (unsigned) (rows), 16 * GB_WARP, 0, q, __VA_ARGS__))

// True if four adjacent elements of a type can be read or written at once. p NULL: there is nothing to read.
static inline bool gb_has_fours(const gb_view & v, enum ggml_type type) {
    const int64_t size = (int64_t) ggml_type_size(type);
    const uintptr_t places = (uintptr_t) v.p | (uintptr_t) v.nb[1] | (uintptr_t) v.nb[2] | (uintptr_t) v.nb[3];
    return v.p == NULL || (v.type == type && v.nb[0] == size && places % (uintptr_t) (4 * size) == 0);
}

// Launches a kernel that keeps a row in registers: n is a multiple of 4, at most GB_FOURS_MOST.
// launch<WARPS, FOURS>(blocks, threads, ...) launches it for rows of at most 128 WARPS FOURS elements.
// Eight rows of one warp share a block.
enum { GB_FOURS_MOST = 8192 };
#define GB_FOURS_LAUNCH(launch, n, rows, ...)                                                        \
    ((n) <= 128       ? launch<1, 1>((unsigned) gb_cuda_ceil_div(rows, 8), 8 * GB_WARP, __VA_ARGS__) \
        : (n) <= 512  ? launch<4, 1>((unsigned) (rows), 4 * GB_WARP, __VA_ARGS__)                    \
        : (n) <= 1024 ? launch<8, 1>((unsigned) (rows), 8 * GB_WARP, __VA_ARGS__)                    \
        : (n) <= 2048 ? launch<16, 1>((unsigned) (rows), 16 * GB_WARP, __VA_ARGS__)                  \
        : (n) <= 4096 ? launch<16, 2>((unsigned) (rows), 16 * GB_WARP, __VA_ARGS__)                  \
                      : launch<16, 4>((unsigned) (rows), 16 * GB_WARP, __VA_ARGS__))

#endif // GB_CUDA_OPS_ELEMENTS_H
