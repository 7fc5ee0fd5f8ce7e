// attention_ext.cuh - attention as FLASH_ATTN_EXT has it: softmax(cap(scale q k) + slope mask) v with sinks.
//
// Values are stored by key, and keys and values may be quantized. A block has ROWS rows of queries
// that share a head of keys and a head of values, and a part of the keys. It goes through the keys in
// tiles of 64:
//
// 1. The mask of the tile, with slopes. A tile that the mask hides from all rows is not read.
// 2. Scores. Eight lanes share a key; a key that no row sees is not read.
// 3. Exponentials. Each row keeps its largest score and its sum, as in attention_few.cuh.
// 4. Weighted values. A thread has eight columns of all rows in registers, for some of the keys of each tile. Sums over
//    the threads that share columns are made once, after the last tile, in a fixed order.
//
// A hidden key has the weight 0, and a value with the weight 0 is not added. So a NaN in an unused place of a cache has
// no effect. gb_attention_join adds the parts of the keys.
#ifndef GB_CUDA_KERNELS_ATTENTION_EXT_CUH
#define GB_CUDA_KERNELS_ATTENTION_EXT_CUH

#include "cuda/kernels/alibi.cuh"
#include "cuda/kernels/attention_few.cuh"
#include "cuda/kernels/elements.cuh"

enum { GB_EXT_ROWS = 8, GB_EXT_HEAD = 1024 }; // most rows of a block; longest rows of keys and of values

// Shared memory of a block, in floats: weights, queries, results; of each row four numbers (gb_ext_state).
static inline size_t gb_attention_ext_room(int rows, int64_t dk, int64_t dv) {
    return (size_t) rows *
           ((size_t) gb_attention_few_pitch(dk) + (size_t) gb_attention_few_pitch(dv) + GB_FEW_KEYS + 4);
}

// Elements [i, i + 8) of a row of a quantized format, i a multiple of 8.
template <int TYPE> GB_DEVICE void gb_ext_quantized(const char * row, int64_t i, float (&v)[8]) {
    static_assert(TYPE == GGML_TYPE_Q8_0 || TYPE == GGML_TYPE_Q4_0, "formats with kernels of their own");
    constexpr bool BYTES = TYPE == GGML_TYPE_Q8_0;
    const uint8_t * block = (const uint8_t *) row + i / 32 * (BYTES ? GB_BYTES(q8_0) : GB_BYTES(q4_0));
    const int in = (int) (i % 32);
    const float d = gb_read_f16(block + (BYTES ? GB_AT(q8_0, d) : GB_AT(q4_0, d)));
    const uint8_t * q = block + (BYTES ? GB_AT(q8_0, qs) + in : GB_AT(q4_0, qs) + in % 16);
    GB_UNROLL for (int j = 0; j < 8; j++) {
        const int level = BYTES ? (int8_t) q[j] : (in < 16 ? q[j] & 15 : q[j] >> 4) - GB_ZERO(q4_0);
        v[j] = d * (float) level;
    }
}

// Elements [i, i + 8) of a row; zeros from n on. TYPE: as in gb_few_eight, or a quantized format.
template <int TYPE>
GB_DEVICE void gb_ext_eight(const gb_attention_input & t, const char * row, int64_t i, int64_t n, float (&v)[8]) {
    if constexpr (TYPE == GGML_TYPE_Q8_0 || TYPE == GGML_TYPE_Q4_0) {
        gb_ext_quantized<TYPE>(row, i, v); // n is a multiple of 32
    } else {
        gb_few_eight<TYPE>(t, row, i, n, v);
    }
}

// Of a row of queries.
enum gb_ext_state { GB_EXT_LARGEST, GB_EXT_SUM, GB_EXT_SHRINK, GB_EXT_SLOPE, GB_EXT_STATE };

// weight[row][key] = slope mask for the keys [key, key + 64); -infinity for keys that are hidden or not there. True if
// the thread has seen a key that is not hidden.
template <int ROWS>
GB_DEVICE bool gb_ext_mask(const gb_attention & p, int64_t group, int64_t i3, int64_t first, int64_t key, int64_t end,
    const float * state, float * weight) {
    const int64_t rows = p.n * (p.heads / p.outer);
    bool seen = false;
    for (int i = (int) threadIdx.x; i < ROWS * GB_FEW_KEYS; i += GB_ATTENTION_THREADS) {
        const int r = i / GB_FEW_KEYS;
        const int64_t k = key + i % GB_FEW_KEYS;
        float m = k < end && first + r < rows ? 0 : -INFINITY;
        if (m == 0 && p.mask.x != NULL) {
            const gb_attention_row at = gb_attention_row_of(p, group, first + r);
            m = gb_load_float(p.mask.type, gb_attention_mask_row(p.mask, at.i1, at.i2, i3) + k * (int64_t) p.mask.nb0);
            m = m == -INFINITY ? m : m * state[GB_EXT_STATE * r + GB_EXT_SLOPE];
        }
        seen = seen || m != -INFINITY;
        weight[i] = m;
    }
    return seen;
}

GB_DEVICE float gb_ext_capped(const gb_attention & p, float score) {
    return p.cap > 0 ? p.cap * tanhf(score / p.cap) : score;
}

// weight[row][key] becomes the score, where it is not -infinity.
template <int TYPE, int ROWS>
GB_DEVICE void gb_ext_scores(const gb_attention & p, int64_t head, int64_t i3, int64_t key, const float * query,
    float * weight) {
    const int warp = (int) threadIdx.x / 32, lane = (int) threadIdx.x % 32, mine = lane % GB_FEW_LANES;
    const int pitch = gb_attention_few_pitch(p.dk), chunks = pitch / 8;
    for (int k = warp * 4 + lane / GB_FEW_LANES; k < GB_FEW_KEYS; k += GB_ATTENTION_THREADS / GB_FEW_LANES) {
        bool seen = false;
        GB_UNROLL for (int r = 0; r < ROWS; r++) { seen = seen || weight[r * GB_FEW_KEYS + k] != -INFINITY; }
        float sum[ROWS] = {};
        if (seen) {
            const char * row = gb_attention_at(p.k, key + k, head, i3);
            for (int c = mine; c < chunks; c += GB_FEW_LANES) {
                float v[8];
                gb_ext_eight<TYPE>(p.k, row, c * 8, p.dk, v);
                gb_few_add_dots<ROWS>(sum, query + c * 8, pitch, v);
            }
        }
        GB_UNROLL for (int r = 0; r < ROWS; r++) { sum[r] = gb_few_sum(sum[r]); }
        gb_sync_warp(); // all lanes have read the masks of the key
        for (int r = mine; r < ROWS; r += GB_FEW_LANES) {
            float score = 0;
            GB_UNROLL for (int s = 0; s < ROWS; s++) { score = s == r ? sum[s] : score; }
            float * w = weight + r * GB_FEW_KEYS + k;
            *w = *w == -INFINITY ? *w : gb_ext_capped(p, score * p.scale) + *w;
        }
    }
}

// The number of threads that together have all columns of a value, eight each.
GB_DEVICE int gb_ext_columns(const gb_attention & p) {
    int threads = 1;
    while (threads * 8 < p.d) {
        threads *= 2;
    }
    return threads; // divides GB_ATTENTION_THREADS, because d is at most GB_EXT_HEAD
}

template <int TYPE, int ROWS>
GB_DEVICE void gb_ext_values(const gb_attention & p, int64_t head, int64_t i3, int64_t key, int64_t end,
    const float * weight, const float * state, float (&out)[ROWS][8]) {
    const int columns = gb_ext_columns(p), mine = (int) threadIdx.x % columns, step = GB_ATTENTION_THREADS / columns;
    const int keys = (int) gb_min<int64_t>(GB_FEW_KEYS, end - key);
    GB_UNROLL for (int r = 0; r < ROWS; r++) {
        GB_UNROLL for (int j = 0; j < 8; j++) { out[r][j] *= state[GB_EXT_STATE * r + GB_EXT_SHRINK]; }
    }
    if (mine * 8 >= p.d) {
        return;
    }
    for (int k = (int) threadIdx.x / columns; k < keys; k += step) {
        bool any = false;
        GB_UNROLL for (int r = 0; r < ROWS; r++) { any = any || weight[r * GB_FEW_KEYS + k] != 0; }
        if (any) {
            float v[8];
            gb_ext_eight<TYPE>(p.v, gb_attention_at(p.v, key + k, head, i3), mine * 8, p.d, v);
            GB_UNROLL for (int r = 0; r < ROWS; r++) {
                const float w = weight[r * GB_FEW_KEYS + k];
                if (w != 0) {
                    GB_UNROLL for (int j = 0; j < 8; j++) { out[r][j] += w * v[j]; }
                }
            }
        }
    }
}

// sums[row][column] = the sums of all threads. Every thread of the block calls this.
template <int ROWS> GB_DEVICE void gb_ext_add_up(const gb_attention & p, const float (&out)[ROWS][8], float * sums) {
    const int columns = gb_ext_columns(p), mine = (int) threadIdx.x % columns, pitch = gb_attention_few_pitch(p.d);
    for (int s = 0; s < GB_ATTENTION_THREADS / columns; s++) {
        if ((int) threadIdx.x / columns == s && mine * 8 < p.d) {
            GB_UNROLL for (int r = 0; r < ROWS; r++) {
                GB_UNROLL for (int j = 0; j < 8; j++) {
                    float * to = sums + r * pitch + mine * 8 + j;
                    *to = s == 0 ? out[r][j] : *to + out[r][j];
                }
            }
        }
        gb_sync_block();
    }
}

// Stores the rows: results, or sums for gb_attention_join.
template <int ROWS>
GB_DEVICE void gb_ext_store(const gb_attention & p, int64_t group, int64_t i3, int64_t first, int64_t part,
    const float * sums, const float * state) {
    const int pitch = gb_attention_few_pitch(p.d);
    const int64_t rows = p.n * (p.heads / p.outer);
    for (int i = (int) threadIdx.x; i < ROWS * pitch; i += GB_ATTENTION_THREADS) {
        const int r = i / pitch, c = i % pitch;
        if (first + r >= rows || c >= p.d) {
            continue;
        }
        const gb_attention_row at = gb_attention_row_of(p, group, first + r);
        const float largest = state[GB_EXT_STATE * r + GB_EXT_LARGEST], sum = state[GB_EXT_STATE * r + GB_EXT_SUM];
        if (p.partial != NULL) {
            float * to = gb_attention_partial(p, at.i1, at.i2, i3, part);
            to[c] = sums[i];
            if (c == 0) {
                to[p.d] = largest * 1.44269504f; // exponents are of base 2 there
                to[p.d + 1] = sum;
            }
        } else {
            const float sink = gb_attention_sink(p, at.i2), top = fmaxf(largest, sink),
                        origin = top == -INFINITY ? 0 : top, less = expf(largest - origin);
            const float all = sum * less + expf(sink - origin);
            gb_attention_result(p, at.i1, at.i2, i3)[c] = all == 0 ? 0 : sums[i] * (less / all);
        }
    }
}

// TYPE: of keys and values; GGML_TYPE_COUNT: floats of any type and stride. grid: x tiles of rows times parts of the
// keys, y groups of heads that share keys and values, z batch.
template <int TYPE, int ROWS> GB_KERNEL GB_BOUNDS(GB_ATTENTION_THREADS, 1) gb_attention_ext(gb_attention p) {
    gb_wait_for_earlier();
    GB_DYNAMIC_SHARED(float, shared);
    GB_SHARED(int, visible, GB_ATTENTION_THREADS / GB_WARP);
    float *const weight = shared, *const query = weight + ROWS * GB_FEW_KEYS,
                 *const sums = query + ROWS * gb_attention_few_pitch(p.dk),
                 *const state = sums + ROWS * gb_attention_few_pitch(p.d);
    const int pitch = gb_attention_few_pitch(p.dk);
    const int64_t rows = p.n * (p.heads / p.outer), first = (int64_t) (blockIdx.x / p.parts) * ROWS, group = blockIdx.y,
                  i3 = blockIdx.z, part = blockIdx.x % p.parts, from = part * p.part_keys,
                  end = p.parts > 1 ? gb_min(p.m, from + p.part_keys) : p.m;
    for (int i = (int) threadIdx.x; i < ROWS * pitch; i += GB_ATTENTION_THREADS) {
        const int c = i % pitch;
        const gb_attention_row at = gb_attention_row_of(p, group, gb_min(first + i / pitch, rows - 1));
        query[i] =
            c < p.dk ? gb_load_float(p.q.type, gb_attention_at(p.q, at.i1, at.i2, i3) + c * (int64_t) p.q.nb0) : 0;
    }
    if (threadIdx.x < ROWS) {
        const int64_t head = gb_attention_row_of(p, group, gb_min(first + threadIdx.x, rows - 1)).i2;
        float * of = state + GB_EXT_STATE * threadIdx.x;
        of[GB_EXT_LARGEST] = -INFINITY;
        of[GB_EXT_SUM] = 0;
        of[GB_EXT_SLOPE] = p.bias_max > 0 ? gb_alibi_slope(head, p.floor_heads, p.bias_max) : 1;
    }
    gb_sync_block();
    const int64_t head = group * p.group_step;
    float out[ROWS][8] = {};
    for (int64_t key = from; key < end; key += GB_FEW_KEYS) {
        const bool seen = gb_ext_mask<ROWS>(p, group, i3, first, key, end, state, weight);
        if (gb_row_sum<GB_ATTENTION_THREADS / GB_WARP>(seen ? 1 : 0, visible) == 0) {
            continue;
        }
        gb_ext_scores<TYPE, ROWS>(p, head, i3, key, query, weight);
        gb_sync_block();
        gb_few_exponentials<ROWS, GB_EXT_STATE>(weight, state);
        gb_sync_block();
        gb_ext_values<TYPE, ROWS>(p, head, i3, key, end, weight, state, out);
        gb_sync_block(); // no thread reads the tile any more
    }
    gb_ext_add_up<ROWS>(p, out, sums);
    gb_ext_store<ROWS>(p, group, i3, first, part, sums, state);
}

#endif // GB_CUDA_KERNELS_ATTENTION_EXT_CUH
