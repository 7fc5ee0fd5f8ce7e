// gemm.cuh - products with many rows of dst, in tiles: on tensor cores for halves and quantized
// weights, in float for the rest.
//
// gb_gemm_halves: a block makes NT rows of dst times 128 columns, a warp 64 x 64 of them (NT =
// 256), 64 x 32 or 32 x 16. Reads of shared memory limit the tensor cores, and larger tiles need
// fewer reads. Both operands go to shared memory as rows of 64 halves, along the sum. Piece p (16
// bytes) of row r is at p xor r % 8, so that loads of fragments hit distinct shared-memory banks.
// Copies run some stages ahead of the products. Quantized weights are copied unchanged, 256
// elements of each row in one step. While the tensor cores work on a stage, a thread unpacks 32
// elements of a later stage. If shared memory is too small for these copies, the thread unpacks
// from global memory. Operands are padded with zeros.
//
// F32 weights, if the user allows tf32 (GGML_CUDA_TF32): the same, with stages of 32 elements. A step of
// 16 halves is one of 8 floats, whose fragments have the same places.
//
// gb_gemm_exact: the same product in float, from any type and stride. A stage is 32 deep.
//
// With experts, rows of dst are sorted by expert (gb_route in product_steps.cuh). A block looks up the expert of its
// tile.
#ifndef GB_CUDA_KERNELS_GEMM_CUH
#define GB_CUDA_KERNELS_GEMM_CUH

#include "cuda/kernels/bits.cuh"
#include "cuda/kernels/rows.cuh"
#include "cuda/kernels/unpack.cuh"

enum { GB_GEMM_THREADS = 256, GB_GEMM_M = 128, GB_GEMM_K = 64, GB_GEMM_BAND = 8 };

// SOURCE in the kernels is the type of the weights: a quantized format, halves, or F32 for products of tf32.
enum { GB_HALVES = -1, GB_FLOATS = -2 };

template <int SOURCE> constexpr bool gb_is_packed = SOURCE >= 0; // a quantized format

struct gb_gemm {
    gb_weights w;
    const void * x; // rows of halves, or of floats
    int64_t x_row; // distance of rows, in elements
    float * dst;
    int64_t m, k, rows; // columns of dst, depth, rows of a slice
    int64_t part_rows; // the depth is cut into parts; distance of their results, in rows
    int parts, part_depth;
    gb_routed_rows routed;
    int stages; // in shared memory: 2, 3 or 4
    int raw; // quantized: bytes are copied to shared memory first
};

// The part of the product that a block makes.
struct gb_tile {
    const char * a; // matrix of weights; NULL: the block has no tile
    int64_t row, end; // rows of the slice, or positions in the list of routed rows
    int64_t column, slice; // first column of dst
    int64_t k0, k1; // depth
    float * dst;
};

template <int NT> GB_DEVICE gb_tile gb_tile_of(const gb_gemm & p, int columns) {
    gb_tile t;
    const int64_t part = blockIdx.z % p.parts;
    // Blocks with adjacent numbers run at the same time. They get tiles that are close in both
    // dimensions, in bands of GB_GEMM_BAND rows of tiles, so that their operands fit the cache.
    const int64_t linear = (int64_t) blockIdx.y * gridDim.x + blockIdx.x, per_band = (int64_t) GB_GEMM_BAND * gridDim.x;
    const int64_t band = linear / per_band * GB_GEMM_BAND,
                  wide = gb_min<int64_t>(GB_GEMM_BAND, (int64_t) gridDim.y - band);
    int64_t y = band + linear % per_band % wide;
    t.slice = blockIdx.z / p.parts;
    t.column = linear % per_band / wide * columns;
    t.k0 = part * p.part_depth;
    t.k1 = gb_min(p.k, t.k0 + p.part_depth);
    t.dst = p.dst + part * p.part_rows * p.m;
    t.a = NULL;
    t.row = t.end = 0;
    if (p.routed.list == NULL) {
        t.a = gb_weights_of_slice(p.w, t.slice);
        t.row = y * NT;
        t.end = gb_min(p.rows, t.row + NT);
        return t;
    }
    const int e = gb_expert_of_tile(p.routed, p.w.n_experts, &y);
    if (e < p.w.n_experts) {
        t.a = gb_weights_of_expert(p.w, e);
        t.row = p.routed.first[e] + y * NT;
        t.end = gb_min<int64_t>(p.routed.first[e + 1], t.row + NT);
    }
    return t;
}

// Index of a row in dst and in the other operand, over all slices.
GB_DEVICE int64_t gb_tile_row(const gb_gemm & p, const gb_tile & t, int64_t r) {
    return p.routed.list != NULL ? p.routed.list[r] : t.slice * p.rows + r;
}

// Stores columns c and c + 1 of a row of dst.
GB_DEVICE void gb_store_two(const gb_gemm & p, const gb_tile & t, int64_t row, int64_t c, float x, float y) {
    float * to = t.dst + row * p.m + c;
    if (c + 1 < p.m && p.m % 2 == 0) {
        *(float2 *) (void *) to = make_float2(x, y);
        return;
    }
    if (c < p.m) {
        to[0] = x;
    }
    if (c + 1 < p.m) {
        to[1] = y;
    }
}

// -------------------------------------------------------------------------------------------------------- tensor cores

// Address of piece `piece` (16 bytes) of row r, in a tile of rows of 64 halves.
GB_DEVICE uint16_t * gb_piece(uint16_t * tile, int r, int piece) {
    return tile + r * GB_GEMM_K + (piece ^ (r & 7)) * 8;
}

// Elements 8 i to 8 i + 7 of a group, as 16 bytes of halves.
template <int KIND> GB_DEVICE uint4 gb_group_halves(const gb_group & o, int i) {
    const float d = o.d[i / 2], m = o.m[i / 2];
    uint32_t pair[4];
    GB_UNROLL for (int j = 0; j < 4; j++) {
        const int word = o.q[2 * i + j / 2], byte = 2 * (j % 2);
        pair[j] = gb_pack2<KIND>(d * gb_byte_to_float(word, byte) + m, d * gb_byte_to_float(word, byte + 1) + m);
    }
    return make_uint4(pair[0], pair[1], pair[2], pair[3]);
}

// Quantized weights as bytes: 256 elements of each column of a tile, from the 16-aligned address before them.
enum { GB_RAW_DEPTH = 256, GB_RAW_STAGES = GB_RAW_DEPTH / GB_GEMM_K };
template <int SOURCE> struct gb_raw {
    static constexpr int bytes = GB_RAW_DEPTH / gb_format<SOURCE>::block * gb_format<SOURCE>::bytes,
                         pieces = (bytes + 15 + 15) / 16, // an odd pitch: columns hit distinct banks
        pitch = (pieces | 1) * 16, slot = GB_GEMM_M * pitch;
};
template <> struct gb_raw<GB_HALVES> {
    static constexpr int slot = 0;
};
template <> struct gb_raw<GB_FLOATS> : gb_raw<GB_HALVES> {};

// The column of weights that a thread copies and unpacks. Two threads share a column.
struct gb_raw_column {
    const char * at; // its row at depth t.k0; NULL: none
    int depth; // of the part, from t.k0 on
};

template <int SOURCE> GB_DEVICE gb_raw_column gb_raw_column_of(const gb_gemm & p, const gb_tile & t) {
    typedef gb_format<SOURCE> format;
    const int64_t column = t.column + threadIdx.x / 2;
    return { column < p.m ? t.a + column * (int64_t) p.w.nb_m + t.k0 / format::block * format::bytes : NULL,
        (int) (t.k1 - t.k0) };
}

// Starts copying the bytes of depth [256 n, 256 n + 256) of the part.
template <int SOURCE> GB_DEVICE void gb_raw_copy(const gb_raw_column & c, int n, char * raw) {
    typedef gb_format<SOURCE> format;
    typedef gb_raw<SOURCE> layout;
    const int left = c.depth / format::block * format::bytes - n * layout::bytes;
    if (c.at == NULL || left <= 0) {
        return;
    }
    const char * from = c.at + n * layout::bytes;
    const uint32_t before = (uint32_t) (uintptr_t) from & 15;
    const int side = (int) threadIdx.x % 2 * 16;
    const int total = gb_min(left, (int) layout::bytes) + (int) before - side;
    char * const to = raw + n % 2 * layout::slot + (int) threadIdx.x / 2 * layout::pitch + side;
    from += side - (int) before;
    if (left >= layout::pieces * 16) { // bytes beyond belong to the row
        GB_UNROLL for (int i = 0; i < layout::pieces * 16; i += 32) {
            if (i + 16 < layout::pieces * 16 || side == 0) {
                gb_cp_async_16(to + i, from + i);
            }
        }
        return;
    }
    for (int i = 0; i < total; i += 32) {
        gb_cp_async_16(to + i, from + i, gb_min(total - i, 16));
    }
}

// Unpacks depth [64 stage, 64 stage + 64) of the part.
template <int SOURCE, int KIND>
GB_DEVICE void gb_unpack_weights(const gb_gemm & p, const gb_raw_column & c, int stage, const char * raw,
    uint16_t * tile) {
    if constexpr (gb_is_packed<SOURCE>) {
        typedef gb_format<SOURCE> format;
        typedef gb_raw<SOURCE> layout;
        const int r = (int) threadIdx.x / 2, half = (int) threadIdx.x % 2, from = stage * GB_GEMM_K + half * 32;
        const bool in = c.at != NULL && from < c.depth;
        gb_group o;
        if (in) {
            const int n = stage / GB_RAW_STAGES, block = from % GB_RAW_DEPTH / format::block * format::bytes;
            const char * at = c.at + n * layout::bytes;
            at = p.raw != 0 ? raw + n % 2 * layout::slot + r * layout::pitch + (int) ((uint32_t) (uintptr_t) at & 15)
                            : at;
            format::unpack((const uint8_t *) at + block, from % format::block / 32, o);
        }
        GB_UNROLL for (int i = 0; i < 4; i++) {
            *(uint4 *) (void *) gb_piece(tile, r, half * 4 + i) =
                in ? gb_group_halves<KIND>(o, i) : make_uint4(0, 0, 0, 0);
        }
    }
}

// Copies weights that are not packed: columns [t.column, t.column + 128), depth [k, k + 64) in halves.
template <int SOURCE> GB_DEVICE void gb_load_weights(const gb_gemm & p, const gb_tile & t, int64_t k, uint16_t * tile) {
    if constexpr (!gb_is_packed<SOURCE>) {
        GB_UNROLL for (int i = 0; i < GB_GEMM_M * 8 / GB_GEMM_THREADS; i++) {
            const int at = (int) threadIdx.x + i * GB_GEMM_THREADS, r = at / 8, piece = at % 8;
            const int64_t column = t.column + r, from = k + piece * 8, left = (t.k1 - from) * 2;
            const int bytes = column >= p.m || left <= 0 ? 0 : left >= 16 ? 16 : (int) left;
            const char * a = t.a + (bytes > 0 ? column * (int64_t) p.w.nb_m + from * 2 : 0);
            gb_cp_async_16(gb_piece(tile, r, piece), a, bytes);
        }
    }
}

// Copies the other operand. `row`: addresses of the rows that this thread copies, NULL after the end.
template <int N>
GB_DEVICE void gb_load_rows(const gb_tile & t, int64_t k, const uint16_t * const (&row)[N], const void * any,
    uint16_t * tile) {
    const int piece = (int) threadIdx.x % 8;
    GB_UNROLL for (int i = 0; i < N; i++) {
        const int r = (int) threadIdx.x / 8 + i * (GB_GEMM_THREADS / 8);
        const int64_t from = k + piece * 8, left = (t.k1 - from) * 2;
        const int bytes = row[i] == NULL || left <= 0 ? 0 : left >= 16 ? 16 : (int) left;
        gb_cp_async_16(gb_piece(tile, r, piece), bytes > 0 ? (const void *) (row[i] + from) : any, bytes);
    }
}

// The tile with its depth in units of two bytes, for operands of four-byte elements.
GB_DEVICE gb_tile gb_in_halves(gb_tile t) {
    t.k0 *= 2;
    t.k1 *= 2;
    return t;
}

// The rows of the other operand that this thread copies, NULL after the end. UNITS: halves in an element.
template <int NT, int UNITS>
GB_DEVICE void gb_rows_to_copy(const gb_gemm & p, const gb_tile & t,
    const uint16_t * (&row)[NT * 8 / GB_GEMM_THREADS]) {
    GB_UNROLL for (int i = 0; i < NT * 8 / GB_GEMM_THREADS; i++) {
        const int64_t r = t.row + threadIdx.x / 8 + i * (GB_GEMM_THREADS / 8);
        row[i] = r < t.end ? (const uint16_t *) p.x + gb_tile_row(p, t, r) * p.x_row * UNITS : NULL;
    }
}

// Waits until the oldest of the stages that are being copied is complete.
GB_DEVICE void gb_wait_for_stage(int stages) {
    if (stages == 2) {
        gb_cp_async_wait<0>();
    } else if (stages == 3) {
        gb_cp_async_wait<1>();
    } else {
        gb_cp_async_wait<2>();
    }
}

// d += a b.
template <int SOURCE, int KIND>
GB_DEVICE void gb_tile_mma(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
    if constexpr (SOURCE == GB_FLOATS) {
        gb_mma_tf32(d, a, b);
    } else {
        gb_mma<KIND>(d, a, b);
    }
}

template <int SOURCE, int N> GB_DEVICE void gb_round_floats(uint32_t (&x)[N]) {
    if constexpr (SOURCE == GB_FLOATS) {
        GB_UNROLL for (int i = 0; i < N; i++) { x[i] = gb_to_tf32(gb_bits_to_float(x[i])); }
    }
}

// The part of a tile of NT rows and 128 columns that a warp makes, in a grid of WN x WM warps: FN fragments of 16 rows,
// FM pairs of 8 columns.
template <int NT> struct gb_warp_tile {
    static constexpr int WN = NT == 256   ? 4
                              : NT == 128 ? 2
                                          : 1,
                         WM = 8 / WN, FN = NT / WN / 16, FM = GB_GEMM_M / WM / 16;
    static GB_METHOD int row(void) { return (int) threadIdx.x / 32 % WN * (NT / WN); }
    static GB_METHOD int column(void) { return (int) threadIdx.x / 32 / WN * (GB_GEMM_M / WM); }
};

// Adds the products of a stage. rows, columns: tiles in shared memory.
template <int SOURCE, int KIND, int NT>
GB_DEVICE void gb_multiply_stage(uint16_t * rows, uint16_t * columns,
    float (&sum)[gb_warp_tile<NT>::FN][2 * gb_warp_tile<NT>::FM][4]) {
    typedef gb_warp_tile<NT> tile;
    const int lane = (int) threadIdx.x % 32;
    GB_UNROLL for (int step = 0; step < GB_GEMM_K / 16; step++) {
        uint32_t a[tile::FN][4], b[2 * tile::FM][2];
        GB_UNROLL for (int i = 0; i < tile::FN; i++) { // rows 0 to 7 and 8 to 15 of the first piece, then of the second
            gb_ldmatrix_x4(a[i], gb_piece(rows, tile::row() + 16 * i + lane % 16, 2 * step + lane / 16));
            gb_round_floats<SOURCE>(a[i]);
        }
        GB_UNROLL for (int j = 0; j < tile::FM; j++) { // both pieces of columns 0 to 7, then of 8 to 15
            uint32_t four[4];
            gb_ldmatrix_x4(four,
                gb_piece(columns, tile::column() + 16 * j + lane / 16 * 8 + lane % 8, 2 * step + lane / 8 % 2));
            gb_round_floats<SOURCE>(four);
            b[2 * j][0] = four[0], b[2 * j][1] = four[1], b[2 * j + 1][0] = four[2], b[2 * j + 1][1] = four[3];
        }
        GB_UNROLL for (int i = 0; i < tile::FN; i++) {
            GB_UNROLL for (int j = 0; j < 2 * tile::FM; j++) { gb_tile_mma<SOURCE, KIND>(sum[i][j], a[i], b[j]); }
        }
    }
}

// Tiles of 256 rows need more shared memory than devices before 8.0 have.
constexpr bool gb_has_large_tiles = gb_is_code_for_80;

template <int SOURCE, int KIND, int NT>
GB_KERNEL GB_BOUNDS(GB_GEMM_THREADS, NT >= 128 ? 1 : 2) gb_gemm_halves(gb_gemm p) {
    gb_wait_for_earlier();
    constexpr int FN = gb_warp_tile<NT>::FN, FM = gb_warp_tile<NT>::FM, N_ROWS = NT * 8 / GB_GEMM_THREADS;
    constexpr int STAGE = (GB_GEMM_M + NT) * GB_GEMM_K; // halves
    GB_DYNAMIC_SHARED(uint16_t, shared);
    const int lane = (int) threadIdx.x % 32;
    if constexpr (NT == 256 && !gb_has_large_tiles) {
        return; // not reached: there is no launch
    }
    gb_tile t = gb_tile_of<NT>(p, GB_GEMM_M);
    if (t.a == NULL) {
        return; // the whole block returns
    }
    if constexpr (SOURCE == GB_FLOATS) {
        t = gb_in_halves(t);
    }
    const uint16_t * row[N_ROWS];
    gb_rows_to_copy<NT, SOURCE == GB_FLOATS ? 2 : 1>(p, t, row);
    const int warp_n = gb_warp_tile<NT>::row(), warp_m = gb_warp_tile<NT>::column();
    float sum[FN][2 * FM][4] = {};
    int64_t ahead = t.k0;
    char * raw = (char *) (shared + p.stages * STAGE);
    // Of the weights: stage to unpack next, next bytes to copy.
    gb_raw_column column = {};
    int unpacked = 0, copied = 2;
    if constexpr (gb_is_packed<SOURCE>) {
        column = gb_raw_column_of<SOURCE>(p, t);
        if (p.raw != 0) {
            gb_raw_copy<SOURCE>(column, 0, raw);
            gb_raw_copy<SOURCE>(column, 1, raw);
        }
        gb_cp_async_commit();
    }
    for (int s = 0; s < p.stages - 1; s++, ahead += GB_GEMM_K) {
        if (ahead < t.k1) {
            gb_load_weights<SOURCE>(p, t, ahead, shared + s * STAGE);
            gb_load_rows<N_ROWS>(t, ahead, row, p.x, shared + s * STAGE + GB_GEMM_M * GB_GEMM_K);
        }
        gb_cp_async_commit();
    }
    if constexpr (gb_is_packed<SOURCE>) {
        if (p.stages == 2) {
            gb_cp_async_wait<1>();
        } else if (p.stages == 3) {
            gb_cp_async_wait<2>();
        } else {
            gb_cp_async_wait<3>();
        }
        gb_sync_block();
        for (; unpacked < p.stages - 1; unpacked++) {
            gb_unpack_weights<SOURCE, KIND>(p, column, unpacked, raw, shared + unpacked * STAGE);
        }
    }
    int stage = 0;
    for (int64_t k = t.k0; k < t.k1; k += GB_GEMM_K, ahead += GB_GEMM_K) {
        gb_wait_for_stage(p.stages);
        gb_sync_block(); // the stage is complete, and no thread reads the one that is overwritten next
        uint16_t * to = shared + (stage == 0 ? p.stages - 1 : stage - 1) * STAGE;
        if (ahead < t.k1) {
            gb_load_rows<N_ROWS>(t, ahead, row, p.x, to + GB_GEMM_M * GB_GEMM_K);
            gb_load_weights<SOURCE>(p, t, ahead, to);
        }
        if constexpr (gb_is_packed<SOURCE>) {
            // All bytes of the older step are unpacked: copies the next ones into their place. They are
            // needed in four stages.
            if (p.raw != 0 && unpacked == GB_RAW_STAGES * (copied - 1)) {
                gb_raw_copy<SOURCE>(column, copied++, raw);
            }
        }
        gb_cp_async_commit();
        uint16_t * weights = shared + stage * STAGE;
        gb_multiply_stage<SOURCE, KIND, NT>(weights + GB_GEMM_M * GB_GEMM_K, weights, sum);
        if constexpr (gb_is_packed<SOURCE>) {
            if (ahead < t.k1) {
                gb_unpack_weights<SOURCE, KIND>(p, column, unpacked, raw, to);
            }
            unpacked++;
        }
        stage = stage + 1 == p.stages ? 0 : stage + 1;
    }
    gb_cp_async_wait<0>();
    GB_UNROLL for (int i = 0; i < FN; i++) {
        GB_UNROLL for (int h = 0; h < 2; h++) {
            const int64_t r = t.row + warp_n + 16 * i + 8 * h + lane / 4;
            if (r < t.end) {
                const int64_t to = gb_tile_row(p, t, r);
                GB_UNROLL for (int j = 0; j < 2 * FM; j++) {
                    gb_store_two(p, t, to, t.column + warp_m + 8 * j + 2 * (lane % 4), sum[i][j][2 * h],
                        sum[i][j][2 * h + 1]);
                }
            }
        }
    }
}

// ---------------------------------------------------------------------------------------------------- float arithmetic

enum { GB_EXACT_K = 32 };

struct gb_exact { // layout of the weights
    int type;
    size_t nb_k; // bytes from element to element along the sum; for quantized weights only with `across`
    bool across; // quantized blocks are along the columns of dst, not along the sum
};

// Unpacks the group of quantized weights of any format that begins at `element`.
GB_DEVICE void gb_unpack_any(int type, const char * row, int64_t element, gb_group & o) {
    switch (type) {
#define GB_FORMAT(id, ...)                                                              \
    case GGML_TYPE_##id: {                                                              \
        typedef gb_format<GGML_TYPE_##id> format;                                       \
        format::unpack((const uint8_t *) row + element / format::block * format::bytes, \
            (int) (element % format::block / 32), o);                                   \
        break;                                                                          \
    }
#include "tensor/quant/formats.def"
#undef GB_FORMAT
        default: break;
    }
}

// Element [k][column] of a tile. The pitch spreads a column over eight banks and keeps rows 16-aligned.
template <int COLUMNS> GB_DEVICE float & gb_exact_at(float * tile, int k, int column) {
    return tile[k * (COLUMNS + 4) + column];
}

template <int COLUMNS>
GB_DEVICE void gb_exact_groups(const gb_gemm & p, const gb_tile & t, const gb_exact & e, int64_t k, float * tile) {
    // A tile has COLUMNS groups, along the sum or across it.
    for (int i = (int) threadIdx.x; i < COLUMNS; i += GB_GEMM_THREADS) {
        const int g = e.across ? i % (COLUMNS / 32) * 32 : i; // first column
        const int depth = e.across ? i / (COLUMNS / 32) : 0;
        const int64_t column = t.column + g;
        const bool in = column < p.m && k + depth < t.k1;
        gb_group o = {};
        if (in) {
            const char * row = t.a + (e.across ? (k + depth) * (int64_t) e.nb_k : column * (int64_t) p.w.nb_m);
            gb_unpack_any(e.type, row, e.across ? column : k, o);
        }
        for (int j = 0; j < 32; j++) {
            const float v = in ? o.d[j / 16] * gb_byte_to_float(o.q[j / 4], j % 4) + o.m[j / 16] : 0;
            gb_exact_at<COLUMNS>(tile, e.across ? depth : j, e.across ? g + j : g) = v;
        }
    }
}

template <int COLUMNS>
GB_DEVICE void gb_exact_floats(const gb_gemm & p, const gb_tile & t, const gb_exact & e, int64_t k, float * tile) {
    const bool along = e.nb_k <= p.w.nb_m; // adjacent threads take elements that are closer in memory
    GB_UNROLL for (int i = (int) threadIdx.x; i < COLUMNS * GB_EXACT_K; i += GB_GEMM_THREADS) {
        const int depth = along ? i % GB_EXACT_K : i / COLUMNS, c = along ? i / GB_EXACT_K : i % COLUMNS;
        const int64_t column = t.column + c;
        const bool in = column < p.m && k + depth < t.k1;
        gb_exact_at<COLUMNS>(tile, depth, c) =
            in ? gb_load_float(e.type, t.a + column * (int64_t) p.w.nb_m + (k + depth) * (int64_t) e.nb_k) : 0;
    }
}

// Four elements of a row of a tile, and the four at distance 64.
template <int TM> GB_DEVICE void gb_exact_fours(const float * from, float (&to)[TM]) {
    GB_UNROLL for (int i = 0; i < TM; i += 4) {
        const float4 v = *(const float4 *) (const void *) (from + 16 * i);
        to[i] = v.x, to[i + 1] = v.y, to[i + 2] = v.z, to[i + 3] = v.w;
    }
}

// A tile is 16 TM x 16 TM; a thread makes TM x TM of it, in fours. QUANTIZED: any format, with blocks
// along the sum or across it.
template <bool QUANTIZED, int TM> GB_KERNEL GB_BOUNDS(GB_GEMM_THREADS, 1) gb_gemm_exact(gb_gemm p, gb_exact e) {
    gb_wait_for_earlier();
    constexpr int SIDE = 16 * TM;
    GB_SHARED(float, weights, GB_EXACT_K *(SIDE + 4));
    GB_SHARED(float, rows, GB_EXACT_K *(SIDE + 4));
    const gb_tile t = gb_tile_of<SIDE>(p, SIDE);
    const int tx = (int) threadIdx.x % 16, ty = (int) threadIdx.x / 16;
    if (t.a == NULL) {
        return; // the whole block returns
    }
    float sum[TM][TM] = {};
    for (int64_t k = t.k0; k < t.k1; k += GB_EXACT_K) {
        if constexpr (QUANTIZED) {
            gb_exact_groups<SIDE>(p, t, e, k, weights);
        } else {
            gb_exact_floats<SIDE>(p, t, e, k, weights);
        }
        GB_UNROLL for (int i = (int) threadIdx.x; i < SIDE * GB_EXACT_K; i += GB_GEMM_THREADS) {
            const int depth = i % GB_EXACT_K;
            const int64_t r = t.row + i / GB_EXACT_K;
            const bool in = r < t.end && k + depth < t.k1;
            gb_exact_at<SIDE>(rows, depth, i / GB_EXACT_K) =
                in ? ((const float *) p.x)[gb_tile_row(p, t, r) * p.x_row + k + depth] : 0;
        }
        gb_sync_block();
        GB_UNROLL_2 for (int depth = 0; depth < GB_EXACT_K; depth++) {
            float a[TM], b[TM];
            gb_exact_fours(&gb_exact_at<SIDE>(rows, depth, 4 * ty), a);
            gb_exact_fours(&gb_exact_at<SIDE>(weights, depth, 4 * tx), b);
            GB_UNROLL for (int i = 0; i < TM; i++) {
                GB_UNROLL for (int j = 0; j < TM; j++) { sum[i][j] += a[i] * b[j]; }
            }
        }
        gb_sync_block();
    }
    GB_UNROLL for (int i = 0; i < TM; i++) {
        const int64_t r = t.row + 4 * ty + i / 4 * 64 + i % 4;
        if (r < t.end) {
            const int64_t to = gb_tile_row(p, t, r);
            GB_UNROLL for (int j = 0; j < TM; j += 2) {
                gb_store_two(p, t, to, t.column + 4 * tx + j / 4 * 64 + j % 4, sum[i][j], sum[i][j + 1]);
            }
        }
    }
}

#endif // GB_CUDA_KERNELS_GEMM_CUH
