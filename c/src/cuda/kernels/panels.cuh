// panels.cuh - rows of activations as bytes in the layout of the tensor cores, for few_rows.cuh.
//
// A panel has eight rows and 256 elements of each. A lane reads its fragments of gb_mma_s8 for two
// groups of 32 elements with one load, and the scales of its two columns of the result with a
// second load. Missing rows and elements are zeros.
//
// Invariant: bytes and scales equal those of gb_rows_of_bytes.
#ifndef GB_CUDA_KERNELS_PANELS_CUH
#define GB_CUDA_KERNELS_PANELS_CUH

#include "cuda/kernels/rows.cuh"

enum { GB_PANEL_ROWS = 8, GB_PANEL_DEPTH = 256 };

// With lane = 4 g + t, as in the PTX manual:
//
//   q[p][lane]  the fragments of groups 2 p and 2 p + 1
//   d[p][t]     the scales of rows 2 t and 2 t + 1, of both groups
//   s[lane]     for formats with minima: of row g, the scale times the sum of the bytes, for groups t and t + 4. Each
//               is split into two floats for gb_mma_tf32: the first of both groups, then the second of both
struct gb_panel {
    uint32_t q[4][32][4];
    float d[4][4][4];
    uint32_t s[32][4];
};

struct gb_make_panels {
    gb_make_rows rows; // y: panels, ordered by slice, then by eight rows, then along the depth; y_row is not used
    int n;             // rows of a slice
    int bands, stages; // panels of a slice: across its rows, along the depth
    bool dense;        // F32, 16 bytes at a time
};

// Eight adjacent elements of a row.
GB_DEVICE void gb_panel_load(const gb_make_panels & p, const char * row, int64_t i, float (&v)[8]) {
    if (p.dense && i + 8 <= p.rows.k) {
        const float4 a = *(const float4 *) (const void *) (row + i * 4),
                     b = *(const float4 *) (const void *) (row + i * 4 + 16);
        v[0] = a.x, v[1] = a.y, v[2] = a.z, v[3] = a.w, v[4] = b.x, v[5] = b.y, v[6] = b.z, v[7] = b.w;
        return;
    }
    GB_UNROLL for (int j = 0; j < 8; j++) {
        v[j] = row != NULL && i + j < p.rows.k ? gb_load_activation(p.rows, row, i + j) : 0;
    }
}

// Four bytes of a word, rounded half away from zero. Adds the bytes to sum.
GB_DEVICE uint32_t gb_panel_word(const float * v, float inverse, int & sum) {
    uint32_t word = 0;
    GB_UNROLL for (int j = 0; j < 4; j++) {
        const int q = (int) roundf(fminf(fmaxf(inverse > 0 ? v[j] * inverse : 0, -127.0f), 127.0f));
        sum += q;
        word |= (uint32_t) (q & 255) << 8 * j;
    }
    return word;
}

// Makes row r of a slice in panel s along the depth, by a warp, eight elements a lane. Zeros from p.n on.
GB_DEVICE void gb_make_panel_row(const gb_make_panels & p, uint32_t slice, uint32_t r, int s) {
    const int lane = (int) threadIdx.x % 32, group = lane / 4, half = lane / 2 % 2, word = lane % 2 * 2;
    const int g = (int) (r % GB_PANEL_ROWS);
    const char * row = (int) r < p.n ? gb_source_row(p.rows, (int64_t) slice * p.n + r) : NULL;
    gb_panel & panel = ((gb_panel *) p.rows.y)[((int64_t) slice * p.bands + r / GB_PANEL_ROWS) * p.stages + s];
    float v[8], largest = 0;
    if (row != NULL) {
        gb_panel_load(p, row, (int64_t) s * GB_PANEL_DEPTH + lane * 8, v);
    } else {
        GB_UNROLL for (int j = 0; j < 8; j++) { v[j] = 0; }
    }
    GB_UNROLL for (int j = 0; j < 8; j++) {
        largest = fmaxf(largest, fabsf(v[j]) < GB_LARGEST_ACTIVATION ? fabsf(v[j]) : INFINITY);
    }
    largest = fmaxf(largest, gb_shfl_xor(largest, 1));
    largest = fmaxf(largest, gb_shfl_xor(largest, 2));
    const float d = largest < GB_LEAST_ACTIVATION ? 0 : largest < INFINITY ? largest / 127 : NAN;
    const float inverse = d > 0 ? 1 / d : 0;
    int sum = 0;
    GB_UNROLL for (int j = 0; j < 2; j++) {
        panel.q[group / 2][g * 4 + word + j][group % 2 * 2 + half] = gb_panel_word(v + 4 * j, inverse, sum);
    }
    sum += gb_shfl_xor(sum, 1);
    sum += gb_shfl_xor(sum, 2);
    if (lane % 4 == 0) {
        const float all = d * (float) sum;
        const uint32_t first = gb_to_tf32(all);
        panel.d[group / 2][g / 2][group % 2 * 2 + g % 2] = d;
        panel.s[g * 4 + group % 4][group / 4] = first;
        panel.s[g * 4 + group % 4][2 + group / 4] = gb_to_tf32(all - gb_bits_to_float(first));
    }
}

#endif // GB_CUDA_KERNELS_PANELS_CUH
