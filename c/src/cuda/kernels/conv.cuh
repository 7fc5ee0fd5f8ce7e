// conv.cuh - convolutions of one to three axes without stored columns.
//
//    dst(n, g, o, at) = sum over c, k of w(g, o)[c][k] x(n, g, c, at stride + k dilation - pad), x is 0 outside
//
// gb_conv_tiles: an implicit matrix product, on tensor cores for F16 kernels (HALVES), in float for
// F32. A block makes NT output channels of a group times 128 positions, counted through all images.
// Both operands of a stage are in shared memory as in gemm.cuh: rows of 128 bytes, which are 64
// halves or 32 floats along the sum. A thread gathers half of a stage for one position, so adjacent
// threads read adjacent places. The elements of the next stage are in registers while the block
// multiplies, so a stage has one barrier.
//
// gb_conv_depthwise: groups of one input channel. A thread makes one element.
#ifndef GB_CUDA_KERNELS_CONV_CUH
#define GB_CUDA_KERNELS_CONV_CUH

#include "cuda/kernels/elements.cuh"
#include "cuda/kernels/gemm_floats.cuh"

enum { GB_CONV_POSITIONS = GB_GEMM_M };

struct gb_conv_axis {
    int in, kernel, out, stride, pad, dilation;
};

struct gb_conv {
    gb_conv_axis axis[3]; // width, height, depth
    const char * w; // [groups][oc][terms], F16 or F32
    const char * x;
    float * dst; // [images][groups][oc][positions]; with parts: scratch memory for one such result each
    int w_type, x_type;
    int64_t x_nb[3], x_channel, x_image; // bytes
    int groups, ic, oc; // channels of a group
    int terms; // of a sum
    int positions, columns; // of an image, of all images
    int parts, part_depth; // the terms are cut into parts
    int64_t part_size; // elements
    bool w_aligned; // 16 bytes of kernels can be read at once
};

// ---------------------------------------------------------------------------------------------------------------- data

// Goes through what a position reads, in the order of the weights. A step is an addition. The other axes change only at
// the end of a kernel's row.
struct gb_conv_walk {
    const char * at; // address of the element, which may be outside
    int k[3], place[3]; // of the kernel, of the data
    bool any, rows; // the position exists; and height and depth are inside

    // column: number of the position. term: the first one to read.
    GB_METHOD gb_conv_walk(const gb_conv & q, int column, int group, int term) {
        int rest = column % q.positions;
        any = column < q.columns;
        at = q.x + column / q.positions * q.x_image;
        GB_UNROLL for (int d = 0; d < 3; d++) {
            k[d] = term % q.axis[d].kernel;
            term /= q.axis[d].kernel;
            place[d] = rest % q.axis[d].out * q.axis[d].stride - q.axis[d].pad + k[d] * q.axis[d].dilation;
            rest /= q.axis[d].out;
            at += place[d] * q.x_nb[d];
        }
        at += (group * (int64_t) q.ic + term) * q.x_channel;
        find_rows(q);
    }
    GB_METHOD void find_rows(const gb_conv & q) {
        rows = any && (uint32_t) place[1] < (uint32_t) q.axis[1].in && (uint32_t) place[2] < (uint32_t) q.axis[2].in;
    }
    template <bool F32> GB_METHOD float load(const gb_conv & q) const { // F32: x has this type
        return !rows || (uint32_t) place[0] >= (uint32_t) q.axis[0].in ? 0
               : F32                                                   ? *(const float *) (const void *) at
                                                                       : gb_get(q.x_type, at);
    }
    GB_METHOD void step(const gb_conv & q, int d) {
        k[d]++;
        place[d] += q.axis[d].dilation;
        at += q.axis[d].dilation * q.x_nb[d];
    }
    GB_METHOD void rewind(const gb_conv & q, int d) {
        k[d] = 0;
        place[d] -= q.axis[d].kernel * q.axis[d].dilation;
        at -= q.axis[d].kernel * q.axis[d].dilation * q.x_nb[d];
    }
    GB_METHOD void next(const gb_conv & q) {
        step(q, 0);
        if (k[0] < q.axis[0].kernel) {
            return;
        }
        rewind(q, 0);
        step(q, 1);
        if (k[1] == q.axis[1].kernel) {
            rewind(q, 1);
            step(q, 2);
            if (k[2] == q.axis[2].kernel) {
                rewind(q, 2);
                at += q.x_channel;
            }
        }
        find_rows(q);
    }
};

// Where results of a column begin: channel 0 of the group. Negative: there is no such column.
GB_DEVICE int64_t gb_conv_start(const gb_conv & q, int column, int group) {
    const int64_t image = column / q.positions, first = image * q.groups + group;
    return column < q.columns ? first * q.oc * q.positions + column % q.positions : -1;
}

// -------------------------------------------------------------------------------------------------------------- stages

// 16 bytes of a tile along the sum: eight halves or four floats.
template <bool HALVES> struct gb_conv_piece {
    static constexpr int elements = HALVES ? 8 : 4;
    static GB_METHOD uint4 pack(const float * v) {
        if constexpr (HALVES) {
            return make_uint4(gb_pack_half2(v[0], v[1]), gb_pack_half2(v[2], v[3]), gb_pack_half2(v[4], v[5]),
                gb_pack_half2(v[6], v[7]));
        } else {
            return make_uint4(gb_bits(v[0]), gb_bits(v[1]), gb_bits(v[2]), gb_bits(v[3]));
        }
    }
};

// The task of a block, and the elements that a thread holds of the stage that it will store next.
template <bool HALVES, int NT> struct gb_conv_stage {
    static constexpr int elements = gb_conv_piece<HALVES>::elements, depth = 8 * elements, rows = NT / 32,
                         halves = (GB_CONV_POSITIONS + NT) * GB_GEMM_K;
    int group, channel, column, k0, k1; // channel: first of the tile; column: the thread's position; terms [k0, k1)
    uint4 x[4], w[rows];

    // Reads pieces 4 h to 4 h + 3 of the thread's position. h: the half of the block that the thread is in.
    template <bool F32> GB_METHOD void gather(const gb_conv & q, int k) {
        int term = k + (int) threadIdx.x / GB_CONV_POSITIONS * 4 * elements;
        gb_conv_walk walk(q, column, group, term);
        GB_UNROLL for (int i = 0; i < 4; i++) {
            float v[elements];
            GB_UNROLL for (int j = 0; j < elements; j++, term++) {
                v[j] = term < k1 ? walk.template load<F32>(q) : 0;
                walk.next(q);
            }
            x[i] = gb_conv_piece<HALVES>::pack(v);
        }
    }

    GB_METHOD void load_weights(const gb_conv & q, int k) {
        const int from = k + (int) threadIdx.x % 8 * elements;
        GB_UNROLL for (int i = 0; i < rows; i++) {
            const int o = channel + (int) threadIdx.x / 8 + 32 * i;
            const int64_t at = (group * (int64_t) q.oc + o) * q.terms + from;
            float v[elements];
            if (o < q.oc && q.w_aligned && from + elements <= k1) {
                w[i] = *(const uint4 *) (const void *) (q.w + at * (HALVES ? 2 : 4));
                continue;
            }
            GB_UNROLL for (int j = 0; j < elements; j++) {
                v[j] = o < q.oc && from + j < k1 ? gb_get(q.w_type, q.w + (at + j) * (HALVES ? 2 : 4)) : 0;
            }
            w[i] = gb_conv_piece<HALVES>::pack(v);
        }
    }

    template <bool F32> GB_METHOD void load(const gb_conv & q, int k) {
        gather<F32>(q, k);
        load_weights(q, k);
    }

    GB_METHOD void store(uint16_t * tile) const { // positions, then channels
        const int position = (int) threadIdx.x % GB_CONV_POSITIONS, half = (int) threadIdx.x / GB_CONV_POSITIONS;
        uint16_t * const channels = tile + GB_CONV_POSITIONS * GB_GEMM_K;
        GB_UNROLL for (int i = 0; i < 4; i++) { *(uint4 *) (void *) gb_piece(tile, position, 4 * half + i) = x[i]; }
        GB_UNROLL for (int i = 0; i < rows; i++) {
            *(uint4 *) (void *) gb_piece(channels, (int) threadIdx.x / 8 + 32 * i, (int) threadIdx.x % 8) = w[i];
        }
    }

    GB_METHOD explicit gb_conv_stage(const gb_conv & q) {
        const int part = (int) blockIdx.z % q.parts;
        group = (int) blockIdx.z / q.parts;
        channel = (int) blockIdx.y * NT;
        k0 = part * q.part_depth;
        k1 = gb_min(q.terms, k0 + q.part_depth);
        column = (int) blockIdx.x * GB_CONV_POSITIONS + (int) threadIdx.x % GB_CONV_POSITIONS;
    }
};

// The sums of a thread: an element for each of its output channels and positions.
template <bool HALVES, int NT> struct gb_conv_sums;

template <int NT> struct gb_conv_sums<true, NT> {
    typedef gb_warp_tile<NT> warp;
    static constexpr int channels = 2 * warp::FN, positions = 4 * warp::FM;
    float sum[warp::FN][2 * warp::FM][4] = {};
    GB_METHOD void add(uint16_t * tile) {
        gb_multiply_stage<GB_HALVES, GB_HALF_F16, NT>(tile + GB_CONV_POSITIONS * GB_GEMM_K, tile, sum);
    }
    GB_METHOD int channel(int i) const { return warp::row() + 8 * i + (int) threadIdx.x % 32 / 4; }
    GB_METHOD int position(int j) const { return warp::column() + 8 * (j / 2) + (int) threadIdx.x % 4 * 2 + j % 2; }
    GB_METHOD float at(int i, int j) const { return sum[i / 2][j / 2][i % 2 * 2 + j % 2]; }
};

template <int NT> struct gb_conv_sums<false, NT> {
    static constexpr int channels = NT / 16, positions = 8;
    float sum[channels][8] = {};
    GB_METHOD void add(uint16_t * tile) {
        gb_floats_multiply<channels>(tile, tile + GB_CONV_POSITIONS * GB_GEMM_K, sum);
    }
    GB_METHOD int channel(int i) const { return gb_floats_row<channels>() + 4 * i; }
    GB_METHOD int position(int j) const { return gb_floats_column() + 8 * j; }
    GB_METHOD float at(int i, int j) const { return sum[i][j]; }
};

// grid: x tiles of positions, y tiles of output channels, z groups and parts.
template <bool HALVES, bool F32, int NT> GB_KERNEL GB_BOUNDS(GB_GEMM_THREADS, 1) gb_conv_tiles(gb_conv q) {
    gb_wait_for_earlier();
    GB_DYNAMIC_SHARED(uint16_t, shared);
    typedef gb_conv_stage<HALVES, NT> stage;
    stage next(q);
    gb_conv_sums<HALVES, NT> sums;
    next.template load<F32>(q, next.k0);
    for (int k = next.k0, i = 0;; i ^= 1) {
        uint16_t * const tile = shared + i * stage::halves;
        next.store(tile);
        gb_sync_block(); // the stage is complete, and no thread reads the other one
        k += stage::depth;
        const bool last = k >= next.k1;
        if (!last) {
            next.template load<F32>(q, k);
        }
        sums.add(tile);
        if (last) {
            break;
        }
    }
    float * const dst = q.dst + (int64_t) (blockIdx.z % (unsigned) q.parts) * q.part_size;
    GB_UNROLL for (int j = 0; j < sums.positions; j++) {
        const int64_t start = gb_conv_start(q, (int) blockIdx.x * GB_CONV_POSITIONS + sums.position(j), next.group);
        GB_UNROLL for (int i = 0; i < sums.channels; i++) {
            const int o = next.channel + sums.channel(i);
            if (start >= 0 && o < q.oc) {
                dst[start + o * (int64_t) q.positions] = sums.at(i, j);
            }
        }
    }
}

// n: elements of dst.
template <bool F32> GB_KERNEL GB_BOUNDS(256, 1) gb_conv_depthwise(gb_conv q, int64_t n) {
    gb_wait_for_earlier();
    const int64_t i = gb_thread();
    if (i >= n) {
        return;
    }
    const uint32_t row = (uint32_t) (i / q.positions), channels = (uint32_t) (q.groups * q.oc),
                   channel = row % channels;
    const int position = (int) (i - row * (int64_t) q.positions);
    gb_conv_walk walk(q, (int) (row / channels) * q.positions + position, (int) channel / q.oc, 0);
    const int size = q.w_type == GGML_TYPE_F16 ? 2 : 4;
    const char * w = q.w + channel * (int64_t) q.terms * size;
    float sum = 0;
    for (int term = 0; term < q.terms; term++, w += size) {
        sum += gb_get(q.w_type, w) * walk.template load<F32>(q);
        walk.next(q);
    }
    q.dst[i] = sum;
}

#endif // GB_CUDA_KERNELS_CONV_CUH
