// attention.cuh - softmax(scale q k) v without storing scores.
//
// gb_attention_halves: a block has 64 query rows, a warp 16 of them. The block loops over tiles of
// keys. Scores are computed on the tensor cores. Each row keeps its largest score and its sum, and
// scales earlier sums when the largest score grows. v is transposed, so both products run along
// rows. Query heads that share a key head are in one tile, so decoding several heads reads the keys
// once. The keys can be split into parts for different blocks; gb_attention_join adds the parts.
//
// gb_attention_floats: the same in float for any type and stride. A tile is ROWS query rows and 32
// keys, in shared memory as floats.
#ifndef GB_CUDA_KERNELS_ATTENTION_CUH
#define GB_CUDA_KERNELS_ATTENTION_CUH

#include "cuda/kernels/attention_parts.cuh"
#include "cuda/kernels/rows.cuh"

enum { GB_ATTENTION_ROWS = 64, GB_ATTENTION_THREADS = 128 };

// -------------------------------------------------------------------------------------------------------- tensor cores

// A tile of rows of WIDTH halves. Pieces of 16 bytes are permuted within a row, so that the pieces of eight rows hit
// distinct shared-memory banks.
template <int WIDTH> GB_DEVICE uint16_t * gb_attention_piece(uint16_t * tile, int r, int piece) {
    return tile + r * WIDTH + (WIDTH >= 64 ? piece ^ (r & 7) : piece ^ (r / 2 & 3)) * 8;
}

// Copies rows [first, first + ROWS) and halves [from, from + WIDTH) of a head. x: the head; its
// rows have the distance nb1 bytes. It has `end` rows of `wide` halves; the rest of the tile is
// zeros.
template <int ROWS, int WIDTH>
GB_DEVICE void gb_attention_load(const char * x, size_t nb1, int64_t first, int64_t end, int64_t from, int64_t wide,
    uint16_t * tile) {
    for (int i = (int) threadIdx.x; i < ROWS * WIDTH / 8; i += GB_ATTENTION_THREADS) {
        const int r = i / (WIDTH / 8), piece = i % (WIDTH / 8);
        const int64_t left = (wide - from - piece * 8) * 2;
        const int bytes = first + r >= end || left <= 0 ? 0 : left >= 16 ? 16 : (int) left;
        const char * at = bytes > 0 ? x + (first + r) * (int64_t) nb1 + (from + piece * 8) * 2 : x;
        gb_cp_async_16(gb_attention_piece<WIDTH>(tile, r, piece), at, bytes);
    }
}

// The same for a tile without an edge. mine: the first piece that this thread copies.
template <int ROWS, int WIDTH> GB_DEVICE void gb_attention_load_whole(const char * mine, size_t nb1, uint16_t * tile) {
    constexpr int PIECES = WIDTH / 8, STEP = GB_ATTENTION_THREADS / PIECES;
    GB_UNROLL for (int i = 0; i < ROWS / STEP; i++) {
        gb_cp_async_16(gb_attention_piece<WIDTH>(tile, (int) threadIdx.x / PIECES + i * STEP,
                           (int) threadIdx.x % PIECES),
            mine + i * (int64_t) (STEP * nb1));
    }
}

// Offset of the first piece that this thread copies, in a tile of rows of WIDTH halves.
template <int WIDTH> GB_DEVICE int64_t gb_attention_mine(size_t nb1) {
    return threadIdx.x / (WIDTH / 8) * (int64_t) nb1 + threadIdx.x % (WIDTH / 8) * 16;
}

// Copies keys and values of the tile that begins at `key`. k, v: this thread's first pieces of the head.
template <int DP, int KEYS>
GB_DEVICE void gb_attention_load_keys(const gb_attention & p, const char * k, const char * v, int64_t key,
    uint16_t * stage) {
    if (p.d == DP && key + KEYS <= p.m) {
        gb_attention_load_whole<KEYS, DP>(k + key * (int64_t) p.k.nb1, p.k.nb1, stage);
        gb_attention_load_whole<DP, KEYS>(v + key * 2, p.v.nb1, stage + DP * KEYS);
    } else {
        gb_attention_load<KEYS, DP>(k - gb_attention_mine<DP>(p.k.nb1), p.k.nb1, key, p.m, 0, p.d, stage);
        gb_attention_load<DP, KEYS>(v - gb_attention_mine<KEYS>(p.v.nb1), p.v.nb1, 0, p.d, key, p.m, stage + DP * KEYS);
    }
}

// Loads the fragments of 16 columns of the second operand: columns 0 to 7, then 8 to 15. A column is a
// row of the tile.
template <int WIDTH> GB_DEVICE void gb_attention_columns(uint32_t (&b)[2][2], uint16_t * tile, int first, int step) {
    const int lane = (int) threadIdx.x % 32;
    uint32_t four[4];
    gb_ldmatrix_x4(four, gb_attention_piece<WIDTH>(tile, first + lane / 16 * 8 + lane % 8, 2 * step + lane / 8 % 2));
    b[0][0] = four[0], b[0][1] = four[1], b[1][0] = four[2], b[1][1] = four[3];
}

// Turns a score s into 2^(unit (s - largest)). unit is above zero. The exponent takes one fused
// multiply-add. `shrink`: factor for earlier sums.
template <int TILES>
GB_DEVICE void gb_attention_softmax(float (&s)[TILES][4], float unit, gb_softmax_state & state, float (&shrink)[2]) {
    GB_UNROLL for (int h = 0; h < 2; h++) {
        float largest = state.largest[h];
        GB_UNROLL for (int j = 0; j < TILES; j++) { largest = fmaxf(largest, fmaxf(s[j][2 * h], s[j][2 * h + 1])); }
        largest = gb_quad_max(largest);
        const float origin = largest == -INFINITY ? 0 : largest * unit; // no key so far
        shrink[h] = gb_exp2(state.largest[h] * unit - origin);
        float sum = 0;
        GB_UNROLL for (int j = 0; j < TILES; j++) {
            GB_UNROLL for (int e = 0; e < 2; e++) {
                s[j][2 * h + e] = gb_exp2(s[j][2 * h + e] * unit - origin);
                sum += s[j][2 * h + e];
            }
        }
        state.sum[h] = state.sum[h] * shrink[h] + sum;
        state.largest[h] = largest;
    }
}

// DP: D rounded up. KEYS: keys of a tile. grid: x tiles of rows times parts, y groups, z batch.
template <int KIND, int DP, int KEYS, bool MASK>
GB_KERNEL GB_BOUNDS(GB_ATTENTION_THREADS, DP > 64 ? 1
                                          : MASK  ? 2
                                                  : 3) gb_attention_halves(gb_attention p) {
    gb_wait_for_earlier();
    constexpr int STAGE = 2 * DP * KEYS; // halves of keys and values
    GB_DYNAMIC_SHARED(uint16_t, shared);
    uint16_t * const q_tile = shared;
    uint16_t * const stages = shared + GB_ATTENTION_ROWS * DP;
    const int lane = (int) threadIdx.x % 32, warp = (int) threadIdx.x / 32;
    const int64_t group = blockIdx.y, i3 = blockIdx.z, part = blockIdx.x % p.parts, rows = p.n * (p.heads / p.outer);
    // The last rows see the most keys, so they run first.
    const int64_t tile = gridDim.x / p.parts - 1 - blockIdx.x / p.parts;
    const int64_t first = tile * GB_ATTENTION_ROWS, last = gb_min(rows, first + GB_ATTENTION_ROWS);
    const bool one_head = first / p.n == (last - 1) / p.n;
    const int64_t end = gb_min(gb_keys_seen(p, one_head ? (last - 1) % p.n : p.n - 1), (part + 1) * p.part_keys);
    const char * k = gb_attention_at(p.k, 0, group * p.group_step, i3) + gb_attention_mine<DP>(p.k.nb1);
    const char * v = gb_attention_at(p.v, 0, group * p.group_step, i3) + gb_attention_mine<KEYS>(p.v.nb1);
    int64_t key = part * p.part_keys;

    for (int i = (int) threadIdx.x; i < GB_ATTENTION_ROWS * DP / 8; i += GB_ATTENTION_THREADS) {
        const int r = i / (DP / 8), piece = i % (DP / 8);
        const bool in = first + r < rows && piece * 8 < p.d;
        const gb_attention_row at = gb_attention_row_of(p, group, in ? first + r : 0);
        gb_cp_async_16(gb_attention_piece<DP>(q_tile, r, piece),
            gb_attention_at(p.q, at.i1, at.i2, i3) + (in ? piece * 16 : 0), in ? 16 : 0);
    }
    if (p.stages == 2 && key < end) {
        gb_attention_load_keys<DP, KEYS>(p, k, v, key, stages);
    }
    gb_cp_async_commit();

    float out[DP / 8][4] = {};
    gb_softmax_state state = { { -INFINITY, -INFINITY }, { 0, 0 } };
    int64_t seen[2];
    const char * mask[2] = {};
    GB_UNROLL for (int h = 0; h < 2; h++) {
        const int64_t r = first + warp * 16 + lane / 4 + 8 * h;
        seen[h] = r < rows ? gb_keys_seen(p, r % p.n) : 0;
        if (MASK) {
            const gb_attention_row at = gb_attention_row_of(p, group, r < rows ? r : 0);
            mask[h] = gb_attention_mask_row(p.mask, at.i1, at.i2, i3);
        }
    }
    int64_t all_see = p.m; // keys that all rows of the warp see
    GB_UNROLL for (int h = 0; h < 2; h++) {
        all_see = first + warp * 16 + lane / 4 + 8 * h < rows ? gb_min(all_see, seen[h]) : all_see;
    }
    GB_UNROLL for (int d = GB_WARP / 2; d > 0; d /= 2) { all_see = gb_min(all_see, gb_shfl_xor(all_see, d)); }
    // Scores are multiplied by to_exponent in the exponent, or before it if a mask is added or if the
    // factor is not positive.
    const float base = 1.44269504088896f, to_exponent = p.scale * base;
    const bool scale_late = !MASK && to_exponent > 0;
    const float unit = scale_late ? to_exponent : 1, factor = scale_late ? 1 : to_exponent;
    for (int stage = 0; key < end; key += KEYS) {
        const int64_t next = p.stages == 2 ? key + KEYS : key;
        const int to = p.stages == 2 ? 1 - stage : 0;
        if (next < end) {
            gb_attention_load_keys<DP, KEYS>(p, k, v, next, stages + to * STAGE);
        }
        gb_cp_async_commit();
        if (p.stages == 2) {
            gb_cp_async_wait<1>();
        } else {
            gb_cp_async_wait<0>();
        }
        gb_sync_block();
        uint16_t * keys = stages + stage * STAGE;
        uint16_t * values = keys + DP * KEYS;

        float s[KEYS / 8][4] = {};
        GB_UNROLL for (int step = 0; step < DP / 16; step++) {
            uint32_t a[4];
            gb_ldmatrix_x4(a, gb_attention_piece<DP>(q_tile, warp * 16 + lane % 16, 2 * step + lane / 16));
            GB_UNROLL for (int j = 0; j < KEYS / 16; j++) {
                uint32_t b[2][2];
                gb_attention_columns<DP>(b, keys, 16 * j, step);
                gb_mma<KIND>(s[2 * j], a, b[0]);
                gb_mma<KIND>(s[2 * j + 1], a, b[1]);
            }
        }
        if (!MASK && key + KEYS <= all_see) {
            if (!scale_late) {
                GB_UNROLL for (int j = 0; j < KEYS / 8; j++) {
                    GB_UNROLL for (int e = 0; e < 4; e++) { s[j][e] *= to_exponent; }
                }
            }
        } else {
            GB_UNROLL for (int e = 0; e < 4; e++) {
                const int left = (int) gb_min<int64_t>(KEYS, seen[e / 2] - key);
                GB_UNROLL for (int j = 0; j < KEYS / 8; j++) {
                    const int c = 8 * j + 2 * (lane % 4) + e % 2;
                    s[j][e] = c < left ? s[j][e] * factor : -INFINITY;
                    if (MASK && c < left) {
                        s[j][e] += base * gb_load_float(p.mask.type, mask[e / 2] + (key + c) * (int64_t) p.mask.nb0);
                    }
                }
            }
        }
        float shrink[2];
        gb_attention_softmax<KEYS / 8>(s, unit, state, shrink);
        GB_UNROLL for (int j = 0; j < DP / 8; j++) {
            GB_UNROLL for (int e = 0; e < 4; e++) { out[j][e] *= shrink[e / 2]; }
        }
        GB_UNROLL for (int step = 0; step < KEYS / 16; step++) {
            const uint32_t a[4] = { gb_pack2<KIND>(s[2 * step][0], s[2 * step][1]),
                gb_pack2<KIND>(s[2 * step][2], s[2 * step][3]), gb_pack2<KIND>(s[2 * step + 1][0], s[2 * step + 1][1]),
                gb_pack2<KIND>(s[2 * step + 1][2], s[2 * step + 1][3]) };
            GB_UNROLL for (int j = 0; j < DP / 16; j++) {
                uint32_t b[2][2];
                gb_attention_columns<KEYS>(b, values, 16 * j, step);
                gb_mma<KIND>(out[2 * j], a, b[0]);
                gb_mma<KIND>(out[2 * j + 1], a, b[1]);
            }
        }
        gb_sync_block(); // no thread reads the stage any more
        stage = to;
    }
    gb_cp_async_wait<0>();
    GB_UNROLL for (int h = 0; h < 2; h++) { // in the form that gb_attention_join reads
        state.largest[h] = state.largest[h] == -INFINITY ? -INFINITY : state.largest[h] * unit;
    }
    gb_attention_store<DP>(p, group, i3, part, first + warp * 16 + lane / 4, rows, state, &out[0][0]);
}

// Converts the result of head i2 of a query to bytes, by the warp that has stored it. The last head also fills the rest
// of the row with zeros.
GB_DEVICE void gb_attention_round(const gb_attention & p, int64_t i1, int64_t i2, int64_t i3, int lane) {
    const int64_t groups = p.d / 32, first = i2 * groups, end = i2 < p.heads - 1 ? first + groups : p.made.y_row * 32;
    gb_sync_warp();
    for (int64_t g = first; g < end; g++) {
        gb_make_group(p.made, i3 * p.n + i1, g, lane);
    }
}

// One warp adds the parts of a row.
GB_KERNEL GB_BOUNDS(GB_ATTENTION_THREADS, 1) gb_attention_join(gb_attention p, int64_t rows) {
    gb_wait_for_earlier();
    const int lane = (int) threadIdx.x % 32;
    const int64_t row = (int64_t) blockIdx.x * (GB_ATTENTION_THREADS / 32) + threadIdx.x / 32;
    if (row >= rows) {
        return;
    }
    const int64_t i1 = row % p.n, i2 = row / p.n % p.heads, i3 = row / p.n / p.heads;
    const float * part = p.partial + row * p.parts * (p.d + 2);
    float * to = gb_attention_result(p, i1, i2, i3);
    const float sink = gb_attention_sink(p, i2) * 1.44269504f; // exponents are of base 2
    float largest = sink;
    for (int i = 0; i < p.parts; i++) {
        largest = fmaxf(largest, part[i * (p.d + 2) + p.d]);
    }
    const float origin = largest == -INFINITY ? 0 : largest;
    float sum = exp2f(sink - origin);
    for (int i = 0; i < p.parts; i++) {
        sum += part[i * (p.d + 2) + p.d + 1] * exp2f(part[i * (p.d + 2) + p.d] - origin);
    }
    for (int64_t c = lane; c < p.d; c += 32) {
        float x = 0;
        for (int i = 0; i < p.parts; i++) {
            x += part[i * (p.d + 2) + c] * exp2f(part[i * (p.d + 2) + p.d] - origin);
        }
        to[c] = sum == 0 ? 0 : x / sum;
    }
    if (p.rounded != NULL) {
        gb_attention_round(p, i1, i2, i3, lane);
    }
}

// -------------------------------------------------------------------------------------------------------------- floats

enum { GB_ATTENTION_KEYS = 32, GB_ATTENTION_FLOAT_THREADS = 256 };

// Shared memory of a block, in floats: queries, keys, values (by key), weights (by key); of each row: largest, sum,
// factor for earlier sums.
template <int DP, int ROWS> struct gb_attention_layout {
    static constexpr int pitch = DP + 4, weights = ROWS + 4;
    static constexpr int q = 0, k = q + ROWS * pitch, v = k + GB_ATTENTION_KEYS * pitch,
                         w = v + GB_ATTENTION_KEYS * pitch;
    static constexpr int largest = w + GB_ATTENTION_KEYS * weights, sum = largest + ROWS, shrink = sum + ROWS,
                         end = shrink + ROWS;
};

GB_DEVICE float4 gb_load_float4(const float * p) { return *(const float4 *) (const void *) p; }

GB_DEVICE float gb_dot4(float4 a, float4 b, float sum) { return sum + a.x * b.x + a.y * b.y + a.z * b.z + a.w * b.w; }

// Reads n rows of a head from `first` on as floats; zeros from row `end` and from element d on. by_column: rows are
// along dimension 0 of x.
template <int DP>
GB_DEVICE void gb_attention_floats_load(const gb_attention_input & x, const char * head, int64_t first, int64_t end,
    int n, int64_t d, bool by_column, float * to) {
    for (int i = (int) threadIdx.x; i < n * DP; i += GB_ATTENTION_FLOAT_THREADS) {
        const int r = by_column ? i % n : i / DP, c = by_column ? i / n : i % DP;
        const int64_t row = first + r;
        const char * at = head + (by_column ? row * (int64_t) x.nb0 + c * (int64_t) x.nb1
                                            : row * (int64_t) x.nb1 + c * (int64_t) x.nb0);
        to[r * (DP + 4) + c] = row < end && c < d ? gb_load_float(x.type, at) : 0;
    }
}

// grid: x tiles of rows, y heads, z batch. A thread makes ROWS / 16 by 2 scores of a tile, then 4 rows by 4 columns of
// the result.
template <int DP, int ROWS> GB_KERNEL GB_BOUNDS(GB_ATTENTION_FLOAT_THREADS, 1) gb_attention_floats(gb_attention p) {
    gb_wait_for_earlier();
    typedef gb_attention_layout<DP, ROWS> layout;
    constexpr int LANES = GB_ATTENTION_FLOAT_THREADS / ROWS, MINE = ROWS / 16; // LANES share a softmax
    static_assert(ROWS * DP == 16 * GB_ATTENTION_FLOAT_THREADS, "4 x 4 of the result for each thread");
    GB_DYNAMIC_SHARED(float, shared);
    const int me = (int) threadIdx.x, tq = me / 16, tk = me % 16, row4 = me / (DP / 4) * 4, column4 = me % (DP / 4) * 4;
    const int my_row = me / LANES, my_lane = me % LANES;
    const int64_t first = (int64_t) blockIdx.x * ROWS, last = gb_min(p.n, first + ROWS), i2 = blockIdx.y,
                  i3 = blockIdx.z;
    const int64_t end = gb_keys_seen(p, last - 1), seen = gb_keys_seen(p, gb_min(first + my_row, p.n - 1));
    const char * k = gb_attention_at(p.k, 0, i2, i3);
    const char * v = gb_attention_at(p.v, 0, i2, i3);
    gb_attention_floats_load<DP>(p.q, gb_attention_at(p.q, 0, i2, i3), first, last, ROWS, p.d, false,
        shared + layout::q);
    if (me < ROWS) {
        shared[layout::largest + me] = -INFINITY;
        shared[layout::sum + me] = 0;
    }
    float out[4][4] = {};
    for (int64_t key = 0; key < end; key += GB_ATTENTION_KEYS) {
        gb_attention_floats_load<DP>(p.k, k, key, p.m, GB_ATTENTION_KEYS, p.d, false, shared + layout::k);
        gb_attention_floats_load<DP>(p.v, v, key, p.m, GB_ATTENTION_KEYS, p.d, true, shared + layout::v);
        gb_sync_block();
        float s[MINE][2] = {};
        for (int c = 0; c < DP; c += 4) {
            const float4 k0 = gb_load_float4(shared + layout::k + tk * layout::pitch + c),
                         k1 = gb_load_float4(shared + layout::k + (tk + 16) * layout::pitch + c);
            GB_UNROLL for (int i = 0; i < MINE; i++) {
                const float4 q = gb_load_float4(shared + layout::q + (tq + 16 * i) * layout::pitch + c);
                s[i][0] = gb_dot4(q, k0, s[i][0]);
                s[i][1] = gb_dot4(q, k1, s[i][1]);
            }
        }
        GB_UNROLL for (int i = 0; i < MINE; i++) {
            GB_UNROLL for (int half = 0; half < 2; half++) {
                const int64_t row = first + tq + 16 * i, c = key + tk + 16 * half;
                float x = s[i][half] * p.scale;
                if (p.mask.x != NULL && row < last && c < end) {
                    x += gb_load_float(p.mask.type,
                        gb_attention_mask_row(p.mask, row, i2, i3) + c * (int64_t) p.mask.nb0);
                }
                shared[layout::w + (tk + 16 * half) * layout::weights + tq + 16 * i] = x;
            }
        }
        gb_sync_block();
        float largest = shared[layout::largest + my_row], sum = 0;
        const float before = largest;
        for (int j = my_lane; j < GB_ATTENTION_KEYS; j += LANES) {
            largest = key + j < seen ? fmaxf(largest, shared[layout::w + j * layout::weights + my_row]) : largest;
        }
        GB_UNROLL for (int step = 1; step < LANES; step *= 2) { largest = fmaxf(largest, gb_shfl_xor(largest, step)); }
        const float origin = largest == -INFINITY ? 0 : largest; // no key so far
        for (int j = my_lane; j < GB_ATTENTION_KEYS; j += LANES) {
            float & w = shared[layout::w + j * layout::weights + my_row];
            w = key + j < seen ? expf(w - origin) : 0;
            sum += w;
        }
        GB_UNROLL for (int step = 1; step < LANES; step *= 2) { sum += gb_shfl_xor(sum, step); }
        gb_sync_warp(); // no lane reads `largest` any more; a shuffle does not order memory
        if (my_lane == 0) {
            const float shrink = expf(before - origin);
            shared[layout::largest + my_row] = largest;
            shared[layout::shrink + my_row] = shrink;
            shared[layout::sum + my_row] = shared[layout::sum + my_row] * shrink + sum;
        }
        gb_sync_block();
        const float4 less = gb_load_float4(shared + layout::shrink + row4);
        GB_UNROLL for (int c = 0; c < 4; c++) {
            out[0][c] *= less.x, out[1][c] *= less.y, out[2][c] *= less.z, out[3][c] *= less.w;
        }
        for (int j = 0; j < GB_ATTENTION_KEYS; j++) {
            const float4 w = gb_load_float4(shared + layout::w + j * layout::weights + row4),
                         x = gb_load_float4(shared + layout::v + j * layout::pitch + column4);
            const float weight[4] = { w.x, w.y, w.z, w.w };
            GB_UNROLL for (int i = 0; i < 4; i++) {
                out[i][0] += weight[i] * x.x, out[i][1] += weight[i] * x.y, out[i][2] += weight[i] * x.z,
                    out[i][3] += weight[i] * x.w;
            }
        }
        gb_sync_block(); // no thread reads the tile any more
    }
    gb_sync_block(); // for the case without tiles
    GB_UNROLL for (int i = 0; i < 4; i++) {
        const int64_t row = first + row4 + i;
        const float sum = shared[layout::sum + row4 + i], scale = sum > 0 ? 1 / sum : sum; // keeps NaN
        for (int c = 0; c < 4; c++) {
            if (row < p.n && column4 + c < p.d) {
                gb_attention_result(p, row, i2, i3)[column4 + c] = sum == 0 ? 0 : out[i][c] * scale;
            }
        }
    }
}

#endif // GB_CUDA_KERNELS_ATTENTION_CUH
