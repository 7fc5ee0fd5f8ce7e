// attention_few.cuh - attention of few rows of queries, in float, as when one token is decoded.
//
// A block has up to ROWS rows of queries that share keys, and one part of the keys. It reads each
// key and value once for all its rows. Eight lanes share a row of a key or value, eight elements
// each. So a warp reads four rows in one step, with wide loads. Each row keeps its largest score
// and its sum, and scales earlier sums when the largest score grows. A tile of 64 keys has three
// barriers. gb_attention_join adds the parts.
#ifndef GB_CUDA_KERNELS_ATTENTION_FEW_CUH
#define GB_CUDA_KERNELS_ATTENTION_FEW_CUH

#include "cuda/kernels/attention.cuh"

enum { GB_FEW_KEYS = 64, GB_FEW_QUERIES = 8, GB_FEW_LANES = 8 };

// Distance of queries in shared memory, in floats; zeros follow the row.
static inline __device__ __host__ int gb_attention_few_pitch(int64_t d) { return (int) ((d + 7) / 8 * 8); }

// Shared memory of a block, in floats.
static inline size_t gb_attention_few_shared(int rows, int64_t d) {
    return (size_t) rows * (2 * (size_t) gb_attention_few_pitch(d) + GB_FEW_KEYS + 3);
}

// Elements [i, i + 8) of a row; zeros from n on. TYPE: dense rows of this type that begin at multiples of 16 bytes;
// GGML_TYPE_COUNT: any type and stride.
template <int TYPE>
GB_DEVICE void gb_few_eight(const gb_attention_input & t, const char * row, int64_t i, int64_t n, float (&v)[8]) {
    if (TYPE == GGML_TYPE_F32 && i + 8 <= n) {
        const float4 a = gb_load_float4((const float *) (const void *) row + i),
                     b = gb_load_float4((const float *) (const void *) row + i + 4);
        v[0] = a.x, v[1] = a.y, v[2] = a.z, v[3] = a.w, v[4] = b.x, v[5] = b.y, v[6] = b.z, v[7] = b.w;
    } else if (TYPE != GGML_TYPE_F32 && TYPE != GGML_TYPE_COUNT && i + 8 <= n) {
        const uint4 x = *(const uint4 *) (const void *) (row + i * 2);
        const uint32_t word[4] = { x.x, x.y, x.z, x.w };
        GB_UNROLL for (int j = 0; j < 4; j++) {
            if (TYPE == GGML_TYPE_F16) {
                v[2 * j] = gb_half_bits_to_float((uint16_t) word[j]);
                v[2 * j + 1] = gb_half_bits_to_float((uint16_t) (word[j] >> 16));
            } else {
                v[2 * j] = gb_bits_to_float(word[j] << 16);
                v[2 * j + 1] = gb_bits_to_float(word[j] & 0xffff0000u);
            }
        }
    } else {
        GB_UNROLL for (int j = 0; j < 8; j++) {
            v[j] = i + j < n ? gb_load_float(t.type, row + (i + j) * (int64_t) t.nb0) : 0;
        }
    }
}

GB_DEVICE float gb_few_sum(float x) { // over the lanes that share a row
    x += gb_shfl_xor(x, 1);
    x += gb_shfl_xor(x, 2);
    return x + gb_shfl_xor(x, 4);
}

// Adds the products of eight elements of each row of queries, `pitch` apart, with v.
template <int ROWS>
GB_DEVICE void gb_few_add_dots(float (&sum)[ROWS], const float * query, int pitch, const float (&v)[8]) {
    GB_UNROLL for (int r = 0; r < ROWS; r++) {
        const float4 a = gb_load_float4(query + r * pitch), b = gb_load_float4(query + r * pitch + 4);
        sum[r] =
            gb_dot4(b, make_float4(v[4], v[5], v[6], v[7]), gb_dot4(a, make_float4(v[0], v[1], v[2], v[3]), sum[r]));
    }
}

// weight[row][key] = score for the keys [key, key + 64); -infinity for keys that the row does not see.
template <int TYPE, int ROWS>
GB_DEVICE void gb_few_scores(const gb_attention & p, int64_t group, int64_t i3, int64_t first, int64_t key, int64_t end,
    const float * query, float * weight) {
    const int warp = (int) threadIdx.x / 32, lane = (int) threadIdx.x % 32, mine = lane % GB_FEW_LANES;
    const gb_attention_row any = gb_attention_row_of(p, group, first);
    const int64_t rows = p.n * (p.heads / p.outer);
    const int pitch = gb_attention_few_pitch(p.d), chunks = pitch / 8;
    for (int k = warp * 4 + lane / GB_FEW_LANES; k < GB_FEW_KEYS; k += GB_ATTENTION_THREADS / GB_FEW_LANES) {
        const bool there = key + k < end;
        const char * row = gb_attention_at(p.k, there ? key + k : key, any.i2, i3);
        float sum[ROWS] = {};
        for (int c = mine; c < chunks; c += GB_FEW_LANES) {
            float v[8];
            gb_few_eight<TYPE>(p.k, row, c * 8, p.d, v);
            gb_few_add_dots<ROWS>(sum, query + c * 8, pitch, v);
        }
        GB_UNROLL for (int r = 0; r < ROWS; r++) { sum[r] = gb_few_sum(sum[r]); }
        for (int r = mine; r < ROWS; r += GB_FEW_LANES) {
            float score = -INFINITY;
            GB_UNROLL for (int s = 0; s < ROWS; s++) { score = s == r ? sum[s] : score; }
            const gb_attention_row at = gb_attention_row_of(p, group, gb_min(first + r, rows - 1));
            score *= p.scale;
            if (there && p.mask.x != NULL) {
                score += gb_load_float(p.mask.type,
                    gb_attention_mask_row(p.mask, at.i1, at.i2, i3) + (key + k) * (int64_t) p.mask.nb0);
            }
            weight[r * GB_FEW_KEYS + k] = there && key + k < gb_keys_seen(p, at.i1) ? score : -INFINITY;
        }
    }
}

// Turns scores into exponentials. state: of each row, the largest score, the sum, and the factor
// for earlier sums. A row has STATE numbers.
template <int ROWS, int STATE = 3> GB_DEVICE void gb_few_exponentials(float * weight, float * state) {
    const int warp = (int) threadIdx.x / 32, lane = (int) threadIdx.x % 32;
    for (int r = warp; r < ROWS; r += GB_ATTENTION_THREADS / 32) {
        float *const w = weight + r * GB_FEW_KEYS, *const of = state + STATE * r;
        const float a = w[lane], b = w[lane + 32], before = of[0];
        const float largest = fmaxf(before, gb_warp_max(fmaxf(a, b))), origin = largest == -INFINITY ? 0 : largest;
        const float x = expf(a - origin), y = expf(b - origin), sum = gb_warp_sum(x + y);
        w[lane] = x;
        w[lane + 32] = y;
        gb_sync_warp(); // all lanes have read `before`
        if (lane == 0) {
            const float shrink = expf(before - origin);
            of[0] = largest;
            of[1] = of[1] * shrink + sum;
            of[2] = shrink;
        }
    }
}

// out[row][c] = out[row][c] times its factor, plus the weighted values of the keys from `key` on.
template <int TYPE, int ROWS>
GB_DEVICE void gb_few_values(const gb_attention & p, int64_t head, int64_t i3, int64_t key, int64_t end,
    const float * weight, const float * state, float * out) {
    const int warp = (int) threadIdx.x / 32, lane = (int) threadIdx.x % 32, mine = lane % GB_FEW_LANES;
    const int pitch = gb_attention_few_pitch(p.d);
    const int64_t rounds = (p.d + 15) / 16; // the same for all lanes of a warp
    for (int64_t i = 0; i < rounds; i++) {
        const int64_t c = i * 16 + warp * 4 + lane / GB_FEW_LANES;
        const char * row = gb_attention_at(p.v, gb_min(c, p.d - 1), head, i3) + key * (int64_t) p.v.nb0;
        float v[8];
        gb_few_eight<TYPE>(p.v, row, mine * 8, end - key, v);
        GB_UNROLL for (int r = 0; r < ROWS; r++) {
            const float * w = weight + r * GB_FEW_KEYS + mine * 8;
            const float4 a = gb_load_float4(w), b = gb_load_float4(w + 4);
            float sum =
                a.x * v[0] + a.y * v[1] + a.z * v[2] + a.w * v[3] + b.x * v[4] + b.y * v[5] + b.z * v[6] + b.w * v[7];
            sum = gb_few_sum(sum);
            if (mine == 0 && c < p.d) {
                out[r * pitch + c] = out[r * pitch + c] * state[3 * r + 2] + sum;
            }
        }
    }
}

// grid: x tiles of rows times parts of the keys, y groups of heads that share keys, z batch.
template <int TYPE, int ROWS> GB_KERNEL GB_BOUNDS(GB_ATTENTION_THREADS, 1) gb_attention_few(gb_attention p) {
    gb_wait_for_earlier();
    GB_DYNAMIC_SHARED(float, shared);
    float *const weight = shared, *const query = weight + ROWS * GB_FEW_KEYS,
                 *const out = query + ROWS * gb_attention_few_pitch(p.d),
                 *const state = out + ROWS * gb_attention_few_pitch(p.d);
    const int pitch = gb_attention_few_pitch(p.d);
    const int64_t rows = p.n * (p.heads / p.outer), first = (int64_t) (blockIdx.x / p.parts) * ROWS, group = blockIdx.y,
                  i3 = blockIdx.z, part = blockIdx.x % p.parts, from = part * p.part_keys;
    int64_t end = 0; // of the keys that any row sees
    for (int r = 0; r < ROWS; r++) {
        end = gb_max(end, gb_keys_seen(p, gb_attention_row_of(p, group, gb_min(first + r, rows - 1)).i1));
    }
    end = p.parts > 1 ? gb_min(end, from + p.part_keys) : end;
    for (int i = (int) threadIdx.x; i < ROWS * pitch; i += GB_ATTENTION_THREADS) {
        const int c = i % pitch;
        const gb_attention_row at = gb_attention_row_of(p, group, gb_min(first + i / pitch, rows - 1));
        const char * q = gb_attention_at(p.q, at.i1, at.i2, i3);
        query[i] = c < p.d ? gb_load_float(p.q.type, q + c * (int64_t) p.q.nb0) : 0;
        out[i] = 0;
    }
    if (threadIdx.x < ROWS) {
        state[3 * threadIdx.x] = -INFINITY;
        state[3 * threadIdx.x + 1] = 0;
    }
    gb_sync_block();
    const int64_t head = gb_attention_row_of(p, group, first).i2;
    for (int64_t key = from; key < end; key += GB_FEW_KEYS) {
        gb_few_scores<TYPE, ROWS>(p, group, i3, first, key, end, query, weight);
        gb_sync_block();
        gb_few_exponentials<ROWS>(weight, state);
        gb_sync_block();
        gb_few_values<TYPE, ROWS>(p, head, i3, key, end, weight, state, out);
        gb_sync_block(); // no thread reads the tile any more
    }
    for (int i = (int) threadIdx.x; i < ROWS * pitch; i += GB_ATTENTION_THREADS) {
        const int r = i / pitch, c = i % pitch;
        if (first + r < rows && c < p.d) {
            const gb_attention_row at = gb_attention_row_of(p, group, first + r);
            const float sum = state[3 * r + 1];
            if (p.partial != NULL) {
                float * to = gb_attention_partial(p, at.i1, at.i2, i3, part);
                to[c] = out[i];
                if (c == 0) {
                    to[p.d] = state[3 * r] * 1.44269504f; // exponents are of base 2 there
                    to[p.d + 1] = sum;
                }
            } else {
                gb_attention_result(p, at.i1, at.i2, i3)[c] = sum == 0 ? 0 : out[i] * (sum > 0 ? 1 / sum : sum);
            }
        }
    }
}

#endif // GB_CUDA_KERNELS_ATTENTION_FEW_CUH
