// conv_direct.cu - CONV_2D, CONV_2D_DW and CONV_3D by the kernels of conv.cuh, and the table of their algorithms.
#include <algorithm>

#include "cuda/kernels/conv.cuh"
#include "cuda/ops/elements.h"
#include "cuda/ops/products.h"

enum { MAX_GRID = 65535, LEAST_ROWS = 32 }; // LEAST_ROWS: output channels of the smallest tile

// --------------------------------------------------------------------------------------------------------- description

// Parameters of a node: strides, paddings and dilations of each axis, width first. Then CONV_2D has groups, CONV_3D
// input channels, images, output channels and groups. 0 groups stand for 1.
static int axes_of(const ggml_tensor * dst) { return dst->op == GGML_OP_CONV_3D ? 3 : 2; }

static int at_least_1(int n) { return n > 0 ? n : 1; }

static int64_t positions_of(const ggml_tensor * dst) { // of an image
    return dst->ne[0] * dst->ne[1] * (axes_of(dst) == 3 ? dst->ne[2] : 1);
}

static gb_conv describe(const ggml_tensor * dst) {
    const ggml_tensor *a = dst->src[0], *b = dst->src[1];
    const int32_t * o = dst->op_params;
    const int axes = axes_of(dst);
    gb_conv q = {};
    q.w = gb_cuda_data(a);
    q.x = gb_cuda_data(b);
    q.dst = (float *) (void *) gb_cuda_data(dst);
    q.w_type = a->type;
    q.x_type = b->type;
    q.axis[2] = { 1, 1, 1, 1, 0, 1 };
    q.positions = (int) positions_of(dst);
    for (int d = 0; d < axes; d++) {
        q.axis[d] = { (int) b->ne[d], (int) a->ne[d], (int) dst->ne[d], o[d], o[axes + d], o[2 * axes + d] };
        q.x_nb[d] = (int64_t) b->nb[d];
    }
    q.x_channel = (int64_t) b->nb[axes];
    int images = (int) b->ne[3], in = (int) b->ne[2], out = (int) a->ne[3];
    q.x_image = (int64_t) b->nb[3];
    if (axes == 3) {
        in = o[9], images = o[10], out = o[11];
        q.groups = at_least_1(o[12]);
        q.x_image = in * q.x_channel;
    } else {
        q.groups = dst->op == GGML_OP_CONV_2D_DW ? in : at_least_1(o[6]);
    }
    q.ic = in / q.groups;
    q.oc = out / q.groups;
    q.terms = q.ic * q.axis[0].kernel * q.axis[1].kernel * q.axis[2].kernel;
    q.columns = q.positions * images;
    q.parts = 1;
    q.part_depth = q.terms;
    q.part_size = gb_count(dst);
    q.w_aligned = (uintptr_t) q.w % 16 == 0 && (int64_t) q.terms * (int64_t) ggml_type_size(a->type) % 16 == 0;
    return q;
}

// Kernels count places, terms and columns in 31 bits.
static const char * supports(const gb_cuda_device &, const ggml_tensor * dst) {
    enum { MOST = 1 << 30 };
    const ggml_tensor *a = dst->src[0], *b = dst->src[1];
    const char * why = gb_need_floats(dst, 2);
    if (why != NULL) {
        return why;
    }
    if ((a->type != GGML_TYPE_F32 && a->type != GGML_TYPE_F16) || !ggml_is_contiguous(a)) {
        return "the kernel must be f32 or f16 and contiguous";
    }
    if (dst->type != GGML_TYPE_F32 || !ggml_is_contiguous(dst)) {
        return "the result must be f32 and contiguous";
    }
    const int axes = axes_of(dst);
    for (int d = 0; d < axes; d++) {
        const int64_t pad = dst->op_params[axes + d], reach = (a->ne[d] - 1) * (int64_t) dst->op_params[2 * axes + d];
        if (a->ne[d] > MOST || b->ne[d] + 2 * pad + reach > MOST) {
            return "an axis with its padding has more than 2^30 places";
        }
    }
    const int64_t positions = positions_of(dst), images = axes == 3 ? dst->op_params[10] : dst->ne[3];
    const int64_t channels = gb_count(dst) / std::max<int64_t>(1, positions); // of all images
    return gb_count(a) > MOST || gb_rows(b) > MOST || positions * images > MOST || channels > MOST ||
                   gb_count(dst) > (int64_t) 1 << 34
               ? "more elements than the kernels count"
               : NULL;
}

// ---------------------------------------------------------------------------------------------------------- algorithms

static int64_t tiles_of(const gb_conv & q, int nt) {
    return gb_cuda_ceil_div(q.columns, GB_CONV_POSITIONS) * gb_cuda_ceil_div(q.oc, nt) * q.groups;
}

static int rows_of_tile(const gb_conv & q) { return q.oc <= LEAST_ROWS ? LEAST_ROWS : q.oc <= 64 ? 64 : 128; }

// Cuts the terms into parts if the tiles leave multiprocessors empty.
static enum ggml_status cut_terms(gb_cuda_backend & b, gb_conv & q) {
    enum { STEP = 64, LEAST = 4 * STEP, MOST_PARTS = 16 };
    const int64_t tiles = tiles_of(q, rows_of_tile(q)), free = std::min<int64_t>(b.device->n_sm, MAX_GRID) / tiles;
    const int64_t parts = std::min<int64_t>(std::min<int64_t>(free, q.terms / LEAST), MOST_PARTS);
    if (parts < 2) {
        return GGML_STATUS_SUCCESS;
    }
    q.part_depth = (int) gb_cuda_round_up(gb_cuda_ceil_div(q.terms, parts), STEP);
    q.parts = (int) gb_cuda_ceil_div(q.terms, q.part_depth);
    q.dst = (float *) gb_cuda_scratch(b, (size_t) (q.part_size * q.parts) * sizeof(float));
    return q.dst != NULL ? GGML_STATUS_SUCCESS : GGML_STATUS_ALLOC_FAILED;
}

template <bool HALVES, bool F32, int NT> static cudaError_t launch_size(const gb_conv & q, const gb_queue & queue) {
    const dim3 grid((unsigned) gb_cuda_ceil_div(q.columns, GB_CONV_POSITIONS), (unsigned) gb_cuda_ceil_div(q.oc, NT),
        (unsigned) (q.groups * q.parts));
    const size_t shared = 2 * gb_conv_stage<HALVES, NT>::halves * sizeof(uint16_t);
    return GB_LAUNCH((gb_conv_tiles<HALVES, F32, NT>), grid, GB_GEMM_THREADS, shared, queue, q);
}

template <bool HALVES, bool F32> static cudaError_t launch_type(const gb_conv & q, const gb_queue & queue) {
    const int nt = rows_of_tile(q);
    return nt == 32   ? launch_size<HALVES, F32, 32>(q, queue)
           : nt == 64 ? launch_size<HALVES, F32, 64>(q, queue)
                      : launch_size<HALVES, F32, 128>(q, queue);
}

template <bool HALVES> static cudaError_t launch_tiles(const gb_conv & q, const gb_queue & queue) {
    return q.x_type == GGML_TYPE_F32 ? launch_type<HALVES, true>(q, queue) : launch_type<HALVES, false>(q, queue);
}

template <bool HALVES> static enum ggml_status run_tiles(gb_cuda_backend & b, gb_conv q) {
    float * const dst = q.dst;
    const enum ggml_status status = cut_terms(b, q);
    if (status != GGML_STATUS_SUCCESS) {
        return status;
    }
    GB_CUDA_TRY(b, launch_tiles<HALVES>(q, b.queue));
    return q.parts > 1 ? gb_add_parts(b, dst, q.part_size, q.dst, q.parts) : GGML_STATUS_SUCCESS;
}

static enum ggml_status run_depthwise(gb_cuda_backend & b, gb_conv q) {
    const int64_t n = q.part_size;
    GB_CUDA_TRY(b, q.x_type == GGML_TYPE_F32
                       ? GB_LAUNCH(gb_conv_depthwise<true>, gb_blocks(n), GB_BLOCK, 0, b.queue, q, n)
                       : GB_LAUNCH(gb_conv_depthwise<false>, gb_blocks(n), GB_BLOCK, 0, b.queue, q, n));
    return GGML_STATUS_SUCCESS;
}

static const char * tiles_decline(const gb_conv & q) {
    enum { MOST_OUT = 4 }; // output channels of a group with one input channel, for which a tile is too large
    return q.ic == 1 && q.oc <= MOST_OUT                   ? "groups have one input channel"
           : gb_cuda_ceil_div(q.oc, LEAST_ROWS) > MAX_GRID ? "more output channels than a grid has"
           : q.groups > MAX_GRID                           ? "more groups than a grid has"
                                                           : NULL;
}

static const char * halves_decline(const gb_conv & q) {
    return q.w_type != GGML_TYPE_F16 ? "the kernel is f32" : tiles_decline(q);
}

static const char * floats_decline(const gb_conv & q) {
    return q.w_type != GGML_TYPE_F32 ? "the kernel is f16" : tiles_decline(q);
}

static const char * never_declines(const gb_conv &) { return NULL; }

// The first that does not decline computes the node.
static const struct {
    const char * name;
    const char * (*declines)(const gb_conv & q);
    enum ggml_status (*run)(gb_cuda_backend & b, gb_conv q);
} algorithms[] = {
    { "conv_tensor_cores", halves_decline, run_tiles<true> },
    { "conv_tiles", floats_decline, run_tiles<false> },
    { "conv_depthwise", never_declines, run_depthwise },
};

static gb_cuda_choice choose(const gb_cuda_backend &, const ggml_tensor * dst) {
    const gb_conv q = describe(dst);
    int i = 0;
    while (algorithms[i].declines(q) != NULL) {
        i++; // ends: the last algorithm never declines
    }
    return { i, -1 };
}

static const char * candidate(const gb_cuda_backend & b, const ggml_tensor * dst, int i, const char ** why) {
    if (i < 0 || i > choose(b, dst).algorithm) {
        return NULL;
    }
    *why = algorithms[i].declines(describe(dst));
    return algorithms[i].name;
}

static enum ggml_status run(gb_cuda_backend & b, ggml_tensor * dst) {
    return algorithms[b.choices.data[b.at].algorithm].run(b, describe(dst));
}

GB_CUDA_FAMILY_DEFINE(conv_direct, { GGML_OP_CONV_2D, supports, run, nullptr, choose, candidate },
    { GGML_OP_CONV_2D_DW, supports, run, nullptr, choose, candidate },
    { GGML_OP_CONV_3D, supports, run, nullptr, choose, candidate })
