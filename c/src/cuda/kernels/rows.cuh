// rows.cuh - shared by all products: addresses of weights, and converted rows of the other operand.
//
// A product reads its second operand from dense rows of one type. gb_rows_of_* write them into scratch memory, or the
// tensor has such rows. Weights are found by slice or, in MUL_MAT_ID and MUL_MAT_EXPERTS, by the id that a row of dst
// has, which only the device knows.
#ifndef GB_CUDA_KERNELS_ROWS_CUH
#define GB_CUDA_KERNELS_ROWS_CUH

#include "cuda/kernels/bits.cuh"
#include "cuda/kernels/unpack.cuh"
#include "cuda/kernels/wrong_index.cuh"
#include "ggml.h"
#include "tensor/numbers.h"

struct gb_weights {
    const char * a[GGML_MAX_SRC]; // matrices: one, or a list of experts, or the first of a stack of experts
    size_t nb_m, nb2, nb3; // bytes
    bool stacked;          // the experts are a stack, nb2 bytes apart
    int64_t ne2; // of the product; slice z has indices z % ne2, z / ne2
    int64_t r2, r3; // slices of the product that share a slice of a, in dimensions 2 and 3
    const char * ids; // NULL, or the experts: row r of dst has the id r % used of token r / used
    int used; // ids of a token
    size_t ids_nb, id_nb; // distance of tokens, of the ids of a token, in bytes
    int n_experts;
    gb_index_reader reader; // with ids
};

GB_DEVICE const char * gb_weights_of_slice(const gb_weights & w, int64_t z) {
    return w.a[0] + z % w.ne2 / w.r2 * (int64_t) w.nb2 + z / w.ne2 / w.r3 * (int64_t) w.nb3;
}

GB_DEVICE const char * gb_weights_of_expert(const gb_weights & w, int expert) {
    return w.stacked ? w.a[0] + expert * (int64_t) w.nb2 : w.a[expert];
}

// The id of a row of dst.
GB_DEVICE int gb_expert_of_row(const gb_weights & w, int row) {
    const int token = row / w.used, i = row - token * w.used;
    return *(const int *) (const void *) (w.ids + token * (int64_t) w.ids_nb + i * (int64_t) w.id_nb);
}

GB_DEVICE void gb_note_wrong_expert(const gb_weights & w, int row) {
    const bool is_column = w.reader.column >= 0; // the place is the token alone
    gb_note_wrong_index(w.reader, gb_expert_of_row(w, row), is_column ? row : row % w.used,
        is_column ? 0 : row / w.used, 0);
}

// NULL: the expert does not exist. One thread of the grid notes that.
GB_DEVICE const char * gb_weights_of_row(const gb_weights & w, int64_t row) {
    const int id = gb_expert_of_row(w, (int) row);
    if (id >= 0 && id < w.n_experts) {
        return gb_weights_of_expert(w, id);
    }
    if (threadIdx.x == 0 && blockIdx.x == 0) {
        gb_note_wrong_expert(w, (int) row);
    }
    return NULL;
}

// Rows of dst, sorted by expert: rows first[e] .. first[e + 1] of `list` have expert e. A product has tiles[e] tiles
// before those of expert e. Both have n_experts + 1 entries. NULL: without experts.
struct gb_routed_rows {
    const int *first, *tiles, *list;
};

// Returns the expert that has tile *tile, or n_experts. *tile becomes the tile's number within the expert.
GB_DEVICE int gb_expert_of_tile(const gb_routed_rows & r, int n_experts, int64_t * tile) {
    int low = 0, high = n_experts;
    if (*tile >= r.tiles[n_experts]) {
        return n_experts;
    }
    while (high - low > 1) { // tiles[low] <= *tile < tiles[high]
        const int middle = (low + high) / 2;
        if (r.tiles[middle] <= *tile) {
            low = middle;
        } else {
            high = middle;
        }
    }
    *tile -= r.tiles[low];
    return low;
}

// F32, F16 or BF16.
GB_DEVICE float gb_load_float(int type, const char * p) {
    if (type == GGML_TYPE_F32) {
        return *(const float *) (const void *) p;
    }
    const uint16_t h = *(const uint16_t *) (const void *) p;
    return type == GGML_TYPE_F16 ? gb_half_bits_to_float(h) : gb_bits_to_float((uint32_t) h << 16);
}

// ------------------------------------------------------------------------------------------------------- rows of bytes

// 32 groups of 32 elements. Quants and scales are laid out for a warp that reads a group per lane. Element 4 i + j of
// group g is the scale times byte j of q[i / 4][g][i % 4]. s[g]: bits of the scale; sums of the quants of the first
// half, of the second, of all. Groups after the end of a row are zeros.
struct gb_q8_stretch {
    int q[2][32][4];
    int s[32][4];
};

struct gb_q8_group { // of one lane
    int q[8];
    float d, minimum; // minimum: d times the sum of all quants, if a kernel computes it
    int sum[2], all;
};

GB_DEVICE gb_q8_group gb_q8_load(const gb_q8_stretch * p, int lane) {
    const int4 a = *(const int4 *) (const void *) p->q[0][lane], b = *(const int4 *) (const void *) p->q[1][lane],
               s = *(const int4 *) (const void *) p->s[lane];
    return { { a.x, a.y, a.z, a.w, b.x, b.y, b.z, b.w }, gb_bits_to_float((uint32_t) s.x), 0, { s.y, s.z }, s.w };
}

template <bool OFFSETS> GB_DEVICE float gb_group_dot(const gb_group & w, const gb_q8_group & x) {
    int half[2] = { 0, 0 };
    GB_UNROLL for (int i = 0; i < 8; i++) { half[i / 4] = gb_dp4a(w.q[i], x.q[i], half[i / 4]); }
    const float dot = x.d * (w.d[0] * (float) half[0] + w.d[1] * (float) half[1]);
    return OFFSETS ? dot + x.d * (w.m[0] * (float) x.sum[0] + w.m[1] * (float) x.sum[1]) : dot;
}

// --------------------------------------------------------------------------------------------------------- making rows

struct gb_make_rows { // row r of the result is row r % n of slice r / n % ne2, r / n / ne2 of the source
    int type;
    const char * x;
    size_t nb0, nb1, nb2, nb3;
    int64_t n, ne2, k;
    void * y;
    int64_t y_row; // distance of rows, in elements or stretches of 1,024; zeros follow element k
};

// r is below 2^31, as in a grid.
GB_DEVICE const char * gb_source_row(const gb_make_rows & p, int64_t r) {
    const uint32_t n = (uint32_t) p.n, ne2 = (uint32_t) p.ne2, row = (uint32_t) r, slice = row / n;
    return p.x + row % n * (int64_t) p.nb1 + slice % ne2 * (int64_t) p.nb2 + slice / ne2 * (int64_t) p.nb3;
}

// Element i of a row, of a float type or a format of activations.
GB_DEVICE float gb_load_activation(const gb_make_rows & p, const char * row, int64_t i) {
    const uint8_t * b = (const uint8_t *) row;
    switch (p.type) {
        case GGML_TYPE_Q8_0:
            b += i / 32 * GB_BYTES(q8_0);
            return gb_read_f16(b + GB_AT(q8_0, d)) * (float) (int8_t) b[GB_AT(q8_0, qs) + i % 32];
        case GGML_TYPE_Q8_1:
            b += i / 32 * GB_BYTES(q8_1);
            return gb_read_f32(b + GB_AT(q8_1, d)) * (float) (int8_t) b[GB_AT(q8_1, qs) + i % 32];
        case GGML_TYPE_Q8_K:
            b += i / 256 * GB_BYTES(q8_k);
            return gb_read_f32(b + GB_AT(q8_k, d)) * (float) (int8_t) b[GB_AT(q8_k, qs) + i % 256];
        default: return gb_load_float(p.type, row + i * (int64_t) p.nb0);
    }
}

// Makes a group, by a warp. The largest magnitude becomes 127. Rounds half away from zero. As on the CPU, groups below
// 2^-100 are zeros. Groups with a value of 2^100 or more, an infinity or NaN have the scale NaN.
GB_DEVICE void gb_make_group(const gb_make_rows & p, int64_t r, int64_t group, int lane) {
    const int64_t i = group * 32 + lane;
    const float x = i < p.k ? gb_load_activation(p, gb_source_row(p, r), i) : 0;
    const float largest = gb_warp_max(fabsf(x) < GB_LARGEST_ACTIVATION ? fabsf(x) : INFINITY);
    const float d = largest < GB_LEAST_ACTIVATION ? 0
                    : largest < INFINITY          ? largest / 127
                                                  : NAN,
                scaled = d > 0 ? x * (1 / d) : 0;
    const int q = (int) roundf(fminf(fmaxf(scaled, -127.0f), 127.0f));
    int sum = q;
    GB_UNROLL for (int mask = 8; mask > 0; mask /= 2) { sum += gb_shfl_xor(sum, mask); }
    const int all = sum + gb_shfl_xor(sum, 16), g = (int) (group % 32);
    gb_q8_stretch * y = (gb_q8_stretch *) p.y + r * p.y_row + group / 32;
    ((int8_t *) y->q[lane / 16][g])[lane % 16] = (int8_t) q;
    if (lane % 16 == 0) {
        y->s[g][1 + lane / 16] = sum;
    }
    if (lane == 0) {
        y->s[g][0] = (int) gb_bits(d);
        y->s[g][3] = all;
    }
}

// Forms of the rows of the second operand. A switch over them lists all and has no default, so the
// compiler reports a switch without a case for a new one.
enum gb_row_kind {
    GB_ROWS_F16 = GB_HALF_F16,
    GB_ROWS_BF16 = GB_HALF_BF16,
    GB_ROWS_WIDE = GB_HALF_WIDE,
    GB_ROWS_F32,
    GB_ROWS_BYTES, // gb_q8_stretch
    GB_ROWS_PANELS, // gb_panel
    GB_ROWS_PERMUTED, // bf16 in the order of gemm_packed_hopper.cuh
    GB_ROWS_SORTED, // by expert; halves, or with quantized weights as GB_ROWS_PERMUTED
    GB_ROWS_NONE // nothing is read
};

// grid: x rows, y stretches of 256 elements, or the maximum of a grid.
template <int KIND> GB_KERNEL GB_BOUNDS(256, 1) gb_rows_of_floats(gb_make_rows p) {
    gb_wait_for_earlier();
    const int64_t r = blockIdx.x;
    const char * row = gb_source_row(p, r);
    for (int64_t i = (int64_t) blockIdx.y * 256 + threadIdx.x; i < p.y_row; i += (int64_t) gridDim.y * 256) {
        const float x = i < p.k ? gb_load_activation(p, row, i) : 0;
        if (KIND == GB_ROWS_F32) {
            ((float *) p.y)[r * p.y_row + i] = x;
        } else {
            ((uint16_t *) p.y)[r * p.y_row + i] = gb_to_half<KIND>(x);
        }
    }
}

// Eight adjacent elements of a row, from i on. row: of the source, dense F32 with 16-aligned rows.
template <int KIND> GB_DEVICE void gb_make_eight(const gb_make_rows & p, const float * row, int64_t r, int64_t i) {
    float v[8];
    if (i + 8 <= p.k) {
        const float4 a = *(const float4 *) (const void *) (row + i), b = *(const float4 *) (const void *) (row + i + 4);
        v[0] = a.x, v[1] = a.y, v[2] = a.z, v[3] = a.w, v[4] = b.x, v[5] = b.y, v[6] = b.z, v[7] = b.w;
    } else {
        GB_UNROLL for (int j = 0; j < 8; j++) { v[j] = i + j < p.k ? row[i + j] : 0; }
    }
    if constexpr (KIND == GB_ROWS_F32) {
        float4 * to = (float4 *) (void *) ((float *) p.y + r * p.y_row + i);
        to[0] = make_float4(v[0], v[1], v[2], v[3]);
        to[1] = make_float4(v[4], v[5], v[6], v[7]);
    } else {
        *(uint4 *) (void *) ((uint16_t *) p.y + r * p.y_row + i) = make_uint4(gb_pack2<KIND>(v[0], v[1]),
            gb_pack2<KIND>(v[2], v[3]), gb_pack2<KIND>(v[4], v[5]), gb_pack2<KIND>(v[6], v[7]));
    }
}

// The same for rows that gb_make_eight can read. grid: y stretches of 2,048 elements, eight a
// thread.
template <int KIND> GB_KERNEL GB_BOUNDS(256, 1) gb_rows_of_dense(gb_make_rows p) {
    gb_wait_for_earlier();
    const int64_t r = blockIdx.x;
    const float * row = (const float *) (const void *) gb_source_row(p, r);
    for (int64_t i = ((int64_t) blockIdx.y * 256 + threadIdx.x) * 8; i < p.y_row; i += (int64_t) gridDim.y * 2048) {
        gb_make_eight<KIND>(p, row, r, i);
    }
}

#endif // GB_CUDA_KERNELS_ROWS_CUH
