// attention_hopper.cuh - attention of halves with many query rows on compute capability 9.0. The
// copy engine copies keys and values; four warps together make each product.
//
// A block has 128 query rows of one group of heads, as in gb_attention_halves, and loops over tiles
// of keys. A thread of its last four warps copies tiles of keys and of values, two tiles ahead;
// these warps free registers for the others. Two groups of four warps have 64 rows each. Scores are
// products of queries and keys in shared memory. The exponentials remain in registers, as the first
// operand of the second product. Values are read along the keys, as products require.
//
// A group starts the scores of the next tile before the second product of this tile, and computes
// exponentials while the product runs.
//
// Each stage of keys and of values has two barriers as in gemm_hopper.cuh. `full`: its bytes have
// arrived. `empty`: the eight warps have read them. Elements past the ends of operands read as zeros.
#ifndef GB_CUDA_KERNELS_ATTENTION_HOPPER_CUH
#define GB_CUDA_KERNELS_ATTENTION_HOPPER_CUH

#include "cuda/hopper.cuh"
#include "cuda/kernels/attention_parts.cuh"
#include "cuda/kernels/rows.cuh"

enum {
    GB_TALL_ROWS = 128, // queries of a block
    GB_TALL_WARPS = 8, // warps that multiply
    GB_TALL_THREADS = 32 * (GB_TALL_WARPS + 4),
    GB_TALL_STAGES = 2,
    GB_TALL_WIDE = 64, // halves of a row that are adjacent: 128 bytes
};

struct gb_attention_tiles {
    gb_attention p;
    gb_tensor_map k, v; // dimensions: halves of a row; then row, head and batch by stride
    int k_axis[3], v_axis[3]; // dimensions of row, head and batch in the map: 1 to 3
    bool mask_pairs; // the mask is F32 or F16 and can be read in pairs
};

// Shared memory in bytes: queries, stages of keys, stages of values, barriers. A tile of R rows of W halves is W / 64
// pieces of R rows.
template <int DP, int KEYS> struct gb_tall_layout {
    static constexpr int q = 0, tile = KEYS * DP * 2, k = GB_TALL_ROWS * DP * 2, v = k + GB_TALL_STAGES * tile,
                         barriers = v + GB_TALL_STAGES * tile, end = barriers + 4 * GB_TALL_STAGES * 8;
};

struct gb_tall_barriers {
    gb_barrier k_full[GB_TALL_STAGES], k_empty[GB_TALL_STAGES], v_full[GB_TALL_STAGES], v_empty[GB_TALL_STAGES];
};

struct gb_tall_block {
    int64_t group, i3, part, rows; // rows: rows of the group
    int64_t first; // first row
    int key, tiles; // first key, number of tiles
};

template <int KEYS> GB_DEVICE gb_tall_block gb_tall_block_of(const gb_attention & p) {
    gb_tall_block b;
    b.group = blockIdx.y;
    b.i3 = blockIdx.z;
    b.part = blockIdx.x % p.parts;
    b.rows = p.n * (p.heads / p.outer);
    // The last rows see the most keys, so they run first.
    b.first = (gridDim.x / p.parts - 1 - blockIdx.x / p.parts) * (int64_t) GB_TALL_ROWS;
    const int64_t last = gb_min(b.rows, b.first + GB_TALL_ROWS) - 1;
    const bool one_head = b.first / p.n == last / p.n;
    b.key = (int) b.part * p.part_keys;
    const int end = (int) gb_min<int64_t>(gb_keys_seen(p, one_head ? last % p.n : p.n - 1), b.key + p.part_keys);
    b.tiles = end > b.key ? (end - b.key + KEYS - 1) / KEYS : 0;
    return b;
}

// -------------------------------------------------------------------------------------------------------------- copies

// Copies the queries, by all threads. A barrier of the block must follow.
template <int DP> GB_DEVICE void gb_tall_queries(const gb_attention & p, const gb_tall_block & b, char * shared) {
    for (int i = (int) threadIdx.x; i < GB_TALL_ROWS * DP / 8; i += GB_TALL_THREADS) {
        const int r = i / (DP / 8), piece = i % (DP / 8);
        const bool in = b.first + r < b.rows && piece * 8 < p.d;
        const gb_attention_row at = gb_attention_row_of(p, b.group, in ? b.first + r : 0);
        gb_cp_async_16(shared + piece / 8 * (GB_TALL_ROWS * 128) + r * 128 + (piece % 8 ^ r % 8) * 16,
            gb_attention_at(p.q, at.i1, at.i2, b.i3) + (in ? piece * 16 : 0), in ? 16 : 0);
    }
    gb_cp_async_commit();
    gb_cp_async_wait<0>();
    gb_copies_to_matrix();
}

// Coordinates 1 to 3 of the tile that begins at a row of a head.
GB_DEVICE void gb_tall_place(const int (&axis)[3], int row, int head, int batch, int (&at)[3]) {
    GB_UNROLL for (int i = 0; i < 3; i++) { at[i] = axis[0] == i + 1 ? row : axis[1] == i + 1 ? head : batch; }
}

template <int DP, int KEYS>
GB_DEVICE void gb_tall_copy(const gb_attention_tiles & t, const gb_tall_block & b, char * shared) {
    typedef gb_tall_layout<DP, KEYS> layout;
    gb_tall_barriers * barriers = (gb_tall_barriers *) (void *) (shared + layout::barriers);
    const int64_t head = b.group * t.p.group_step;
    const int k_head = (int) (head / t.p.k.r2 % t.p.k.ne2), k_batch = (int) (b.i3 / t.p.k.r3 % t.p.k.ne3);
    const int v_head = (int) (head / t.p.v.r2 % t.p.v.ne2), v_batch = (int) (b.i3 / t.p.v.r3 % t.p.v.ne3);
    gb_hopper_place at;
    for (int i = 0; i < b.tiles; i++) {
        const int key = b.key + i * KEYS, s = at.stage;
        int c[3];
        gb_barrier_wait(&barriers->k_empty[s], at.parity ^ 1); // returns at once for a new stage
        gb_barrier_expect(&barriers->k_full[s], layout::tile);
        gb_tall_place(t.k_axis, key, k_head, k_batch, c);
        for (int w = 0; w < DP / GB_TALL_WIDE; w++) {
            gb_copy_tile(shared + layout::k + s * layout::tile + w * (KEYS * 128), t.k, w * GB_TALL_WIDE, c[0], c[1],
                c[2], &barriers->k_full[s]);
        }
        gb_barrier_wait(&barriers->v_empty[s], at.parity ^ 1);
        gb_barrier_expect(&barriers->v_full[s], layout::tile);
        gb_tall_place(t.v_axis, 0, v_head, v_batch, c);
        for (int w = 0; w < KEYS / GB_TALL_WIDE; w++) {
            gb_copy_tile(shared + layout::v + s * layout::tile + w * (DP * 128), t.v, key + w * GB_TALL_WIDE, c[0],
                c[1], c[2], &barriers->v_full[s]);
        }
        at.next(GB_TALL_STAGES);
    }
}

// ------------------------------------------------------------------------------------------------------------ products

// Visible keys of the two rows of a thread, and addresses of their masks.
struct gb_tall_rows {
    int seen[2], all_see; // all_see: keys that all rows of the warp see
    const char * mask[2];
};

template <bool MASK>
GB_DEVICE gb_tall_rows gb_tall_rows_of(const gb_attention & p, const gb_tall_block & b, int64_t first) {
    gb_tall_rows rows = {};
    rows.all_see = (int) p.m;
    GB_UNROLL for (int h = 0; h < 2; h++) {
        const int64_t r = first + 8 * h;
        rows.seen[h] = r < b.rows ? (int) gb_keys_seen(p, r % p.n) : 0;
        rows.all_see = r < b.rows ? gb_min(rows.all_see, rows.seen[h]) : rows.all_see;
        if (MASK) {
            const gb_attention_row at = gb_attention_row_of(p, b.group, r < b.rows ? r : 0);
            rows.mask[h] = gb_attention_mask_row(p.mask, at.i1, at.i2, b.i3);
        }
    }
    GB_UNROLL for (int d = GB_WARP / 2; d > 0; d /= 2) {
        rows.all_see = gb_min(rows.all_see, gb_shfl_xor(rows.all_see, d));
    }
    return rows;
}

// Scales scores and adds the mask, which it reads in pairs. All rows of the warp see all keys of the tile.
template <int KEYS>
GB_DEVICE void gb_tall_add_pairs(const gb_attention & p, const gb_tall_rows & rows, int key, float (&s)[KEYS / 2]) {
    const float base = 1.44269504088896f, to_exponent = p.scale * base;
    GB_UNROLL for (int h = 0; h < 2; h++) {
        const char * const at =
            rows.mask[h] + (key + 2 * ((int) threadIdx.x % 4)) * (p.mask.type == GGML_TYPE_F32 ? 4 : 2);
        GB_UNROLL for (int j = 0; j < KEYS / 8; j++) {
            const float2 pair = p.mask.type == GGML_TYPE_F32
                                    ? ((const float2 *) (const void *) at)[4 * j]
                                    : gb_unpack_half2(((const uint32_t *) (const void *) at)[4 * j]);
            s[4 * j + 2 * h] = s[4 * j + 2 * h] * to_exponent + base * pair.x;
            s[4 * j + 2 * h + 1] = s[4 * j + 2 * h + 1] * to_exponent + base * pair.y;
        }
    }
}

// Turns scores of the keys from `key` on into exponentials. `shrink`: factor for earlier sums.
// Scores are multiples of `step`. Scores with a mask were multiplied before.
template <int KEYS, bool MASK>
GB_DEVICE void gb_tall_softmax(const gb_attention_tiles & t, const gb_tall_rows & rows, int key, float (&s)[KEYS / 2],
    gb_softmax_state & state, float (&shrink)[2]) {
    const gb_attention & p = t.p;
    const float base = 1.44269504088896f, to_exponent = p.scale * base, step = MASK ? 1 : to_exponent;
    if (MASK && t.mask_pairs && key + KEYS <= rows.all_see) {
        gb_tall_add_pairs<KEYS>(p, rows, key, s);
    } else if (MASK || key + KEYS > rows.all_see) {
        const int lane = (int) threadIdx.x % 32;
        GB_UNROLL for (int e = 0; e < 4; e++) {
            const int left = rows.seen[e / 2] - key;
            GB_UNROLL for (int j = 0; j < KEYS / 8; j++) {
                const int c = 8 * j + 2 * (lane % 4) + e % 2;
                float & x = s[4 * j + e];
                x = MASK ? x * to_exponent : x;
                if (MASK && c < left) {
                    x += base * gb_load_float(p.mask.type, rows.mask[e / 2] + (key + c) * (int64_t) p.mask.nb0);
                }
                x = c < left ? x : -INFINITY;
            }
        }
    }
    GB_UNROLL for (int h = 0; h < 2; h++) {
        float largest = state.largest[h];
        GB_UNROLL for (int j = 0; j < KEYS / 8; j++) {
            largest = fmaxf(largest, fmaxf(s[4 * j + 2 * h], s[4 * j + 2 * h + 1]));
        }
        largest = gb_quad_max(largest);
        const float origin = largest == -INFINITY ? 0 : largest * step; // no key so far
        shrink[h] = gb_exp2(state.largest[h] * step - origin);
        float sum = 0;
        GB_UNROLL for (int j = 0; j < KEYS / 8; j++) {
            GB_UNROLL for (int e = 0; e < 2; e++) {
                float & x = s[4 * j + 2 * h + e];
                x = gb_exp2(x * step - origin);
                sum += x;
            }
        }
        state.sum[h] = state.sum[h] * shrink[h] + sum;
        state.largest[h] = largest;
    }
}

template <int KIND, int KEYS>
GB_DEVICE void gb_tall_pack(const float (&s)[KEYS / 2], uint32_t (&weights)[KEYS / 16][4]) {
    GB_UNROLL for (int i = 0; i < KEYS / 16; i++) {
        GB_UNROLL for (int j = 0; j < 4; j++) {
            weights[i][j] = gb_pack2<KIND>(s[8 * i + 2 * j], s[8 * i + 2 * j + 1]);
        }
    }
}

// Multiplies 64 rows of queries by a tile of keys.
template <int KIND, int DP, int KEYS>
GB_DEVICE void gb_tall_scores(const char * queries, const char * keys, float (&s)[KEYS / 2]) {
    const uint64_t a = gb_matrix_of(queries), b = gb_matrix_of(keys);
    gb_matrix_fence();
    GB_UNROLL for (int i = 0; i < DP / 16; i++) { // descriptors have addresses / 16
        gb_matrix_mma<KIND, KEYS>(s, a + i / 4 * (GB_TALL_ROWS * 128 / 16) + i % 4 * 2,
            b + i / 4 * (KEYS * 128 / 16) + i % 4 * 2, i > 0);
    }
    gb_matrix_commit();
}

template <int KIND, int DP, int KEYS>
GB_DEVICE void gb_tall_add(uint32_t (&weights)[KEYS / 16][4], const char * values, float (&out)[DP / 2]) {
    const uint64_t b = gb_matrix_of(values);
    gb_matrix_fence(weights);
    GB_UNROLL for (int i = 0; i < KEYS / 16; i++) {
        gb_matrix_mma_rows<KIND, DP>(out, weights[i], b + i / 4 * (DP * 128 / 16) + i % 4 * 2, true);
    }
    gb_matrix_commit();
}

GB_DEVICE void gb_tall_done_with(gb_barrier * empty) {
    if (threadIdx.x % 32 == 0) {
        gb_barrier_arrive(empty);
    }
}

template <int KIND, int DP, int KEYS, bool MASK>
GB_DEVICE void gb_tall_attend(const gb_attention_tiles & t, const gb_tall_block & b, char * shared) {
    const gb_attention & p = t.p;
    typedef gb_tall_layout<DP, KEYS> layout;
    gb_tall_barriers * barriers = (gb_tall_barriers *) (void *) (shared + layout::barriers);
    const int warp = (int) threadIdx.x / 32, lane = (int) threadIdx.x % 32;
    const int64_t mine = b.first + 16 * warp + lane / 4;
    const char * const queries = shared + warp / 4 * (64 * 128);
    const gb_tall_rows rows = gb_tall_rows_of<MASK>(p, b, mine);
    gb_softmax_state state = { { -INFINITY, -INFINITY }, { 0, 0 } };
    gb_hopper_place k_at, v_at;
    float s[KEYS / 2], out[DP / 2] = {}, shrink[2];
    uint32_t weights[KEYS / 16][4];
    if (b.tiles > 0) {
        gb_barrier_wait(&barriers->k_full[0], 0);
        gb_tall_scores<KIND, DP, KEYS>(queries, shared + layout::k, s);
        gb_matrix_wait<0>();
        gb_matrix_done(s);
        gb_tall_done_with(&barriers->k_empty[0]);
        gb_tall_softmax<KEYS, MASK>(t, rows, b.key, s, state, shrink);
        gb_tall_pack<KIND, KEYS>(s, weights);
        k_at.next(GB_TALL_STAGES);
        for (int i = 1; i < b.tiles; i++) {
            gb_barrier_wait(&barriers->k_full[k_at.stage], k_at.parity);
            gb_tall_scores<KIND, DP, KEYS>(queries, shared + layout::k + k_at.stage * layout::tile, s);
            gb_barrier_wait(&barriers->v_full[v_at.stage], v_at.parity);
            gb_tall_add<KIND, DP, KEYS>(weights, shared + layout::v + v_at.stage * layout::tile, out);
            gb_matrix_wait<1>();
            gb_matrix_done(s);
            gb_tall_done_with(&barriers->k_empty[k_at.stage]);
            gb_tall_softmax<KEYS, MASK>(t, rows, b.key + i * KEYS, s, state, shrink);
            gb_matrix_wait<0>();
            gb_matrix_done(out);
            gb_tall_done_with(&barriers->v_empty[v_at.stage]);
            GB_UNROLL for (int j = 0; j < DP / 2; j++) { out[j] *= shrink[j / 2 % 2]; }
            gb_tall_pack<KIND, KEYS>(s, weights);
            k_at.next(GB_TALL_STAGES);
            v_at.next(GB_TALL_STAGES);
        }
        gb_barrier_wait(&barriers->v_full[v_at.stage], v_at.parity);
        gb_tall_add<KIND, DP, KEYS>(weights, shared + layout::v + v_at.stage * layout::tile, out);
        gb_matrix_wait<0>();
        gb_matrix_done(out);
    }
    const float unit = MASK ? 1 : p.scale * 1.44269504088896f; // of the largest scores, for gb_attention_join
    GB_UNROLL for (int h = 0; h < 2; h++) {
        state.largest[h] = state.largest[h] == -INFINITY ? -INFINITY : state.largest[h] * unit;
    }
    gb_attention_store<DP>(p, b.group, b.i3, b.part, mine, b.rows, state, out);
}

// DP: D rounded up. KEYS: keys of a tile. grid: x tiles of rows times parts, y groups, z batch. p.scale is above zero.
template <int KIND, int DP, int KEYS, bool MASK>
GB_KERNEL GB_BOUNDS(GB_TALL_THREADS, 1) gb_attention_tall(GB_FIXED_PARAMETER gb_attention_tiles t) {
    GB_DYNAMIC_SHARED(char, shared);
    const gb_tall_block b = gb_tall_block_of<KEYS>(t.p);
    if (threadIdx.x == 0) {
        gb_tall_barriers * barriers = (gb_tall_barriers *) (void *) (shared + gb_tall_layout<DP, KEYS>::barriers);
        for (int i = 0; i < GB_TALL_STAGES; i++) {
            gb_barrier_init(&barriers->k_full[i], 1);
            gb_barrier_init(&barriers->v_full[i], 1);
            gb_barrier_init(&barriers->k_empty[i], GB_TALL_WARPS);
            gb_barrier_init(&barriers->v_empty[i], GB_TALL_WARPS);
        }
        gb_barrier_fence();
    }
    gb_wait_for_earlier();
    gb_tall_queries<DP>(t.p, b, shared);
    gb_sync_block();
    if (threadIdx.x < 32 * GB_TALL_WARPS) {
        gb_registers_more<240>();
        gb_tall_attend<KIND, DP, KEYS, MASK>(t, b, shared);
    } else {
        gb_registers_fewer<24>();
        if (threadIdx.x == 32 * GB_TALL_WARPS) {
            gb_tall_copy<DP, KEYS>(t, b, shared);
        }
    }
}

#endif // GB_CUDA_KERNELS_ATTENTION_HOPPER_CUH
