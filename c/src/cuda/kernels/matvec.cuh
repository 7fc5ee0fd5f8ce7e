// matvec.cuh - products with few columns (rows of dst). Weights are read once, at the speed of the memory.
//
// Quantized weights: blocks have odd sizes, so a warp copies the bytes of a stretch of its rows
// unchanged, in chunks of 16 bytes and two stretches ahead, into its own ring in shared memory. It
// waits for no other warp. A lane takes one group of 32 elements of each row. It reads the
// activations of the group, bytes from gb_rows_of_bytes, once for all rows. Float weights are read
// directly into registers. The last step adds up over the lanes, and over the warps that share
// rows.
#ifndef GB_CUDA_KERNELS_MATVEC_CUH
#define GB_CUDA_KERNELS_MATVEC_CUH

#include "cuda/kernels/bits.cuh"
#include "cuda/kernels/rows.cuh"
#include "cuda/kernels/unpack.cuh"

enum { GB_MATVEC_WARPS = 4, GB_MATVEC_ROWS = 2, GB_MATVEC_STAGES = 3, GB_MATVEC_PARTS = 3 };

struct gb_matvec {
    struct gb_weights w;
    const void * x; // adjacent columns: gb_q8_stretch (quantized weights) or float
    int64_t x_row;  // distance of columns, in stretches or floats
    float * dst;    // column j at dst + j m
    int64_t m, k;
    int columns; // of a slice; slices share no column
    int split;   // warps that share rows: 1, or all of a block
    const float * add; // NULL, or added to dst
};

// Products with the same columns. Part i has the blocks from first[i] on.
struct gb_matvec_group {
    int n, blocks; // parts, blocks of all; along x
    int first[GB_MATVEC_PARTS];
    gb_matvec part[GB_MATVEC_PARTS];
};

GB_DEVICE int gb_matvec_part(const gb_matvec_group & q, int block) {
    int part = 0;
    GB_UNROLL for (int i = 1; i < GB_MATVEC_PARTS; i++) { part = i < q.n && block >= q.first[i] ? i : part; }
    return part;
}

// The part of the product that a block makes: grid.x rows, grid.y columns, NCOLS at a time, grid.z slices.
struct gb_matvec_place {
    const char * a;
    int64_t column, row, last; // columns from `column` up to `last`, rows from `row`
    int first, step;           // stretches of this warp
};

template <int NCOLS, int ROWS> GB_DEVICE gb_matvec_place gb_matvec_where(const gb_matvec_group & q, int block_of_all) {
    const int part = gb_matvec_part(q, block_of_all);
    const gb_matvec & p = q.part[part];
    const int64_t block = block_of_all - q.first[part];
    gb_matvec_place at;
    const int warp = (int) threadIdx.x / 32;
    at.column = (int64_t) blockIdx.z * p.columns + (int64_t) blockIdx.y * NCOLS;
    at.last = (int64_t) (blockIdx.z + 1) * p.columns;
    at.a = p.w.ids != NULL ? gb_weights_of_row(p.w, at.column) : gb_weights_of_slice(p.w, blockIdx.z);
    at.row = (p.split > 1 ? block : block * GB_MATVEC_WARPS + warp) * ROWS;
    at.first = p.split > 1 ? warp : 0;
    at.step = p.split > 1 ? GB_MATVEC_WARPS : 1;
    return at;
}

// Begins a kernel: prefetches what a warp reads first, `n` stretches of `bytes` of each of its rows, as
// far as they exist, and then waits for earlier kernels. So the memory is busy while the previous
// kernel ends. With experts, the rows depend on data, and nothing is prefetched. row_bytes: of a row.
template <int NCOLS, int ROWS>
GB_DEVICE void gb_matvec_begin(const gb_matvec_group & q, int n, int bytes, int64_t row_bytes) {
    enum { LINE = 128 };
    const gb_matvec & p = q.part[gb_matvec_part(q, (int) blockIdx.x)];
    if (p.w.ids == NULL) {
        const gb_matvec_place at = gb_matvec_where<NCOLS, ROWS>(q, (int) blockIdx.x);
        const int lines = (bytes + LINE - 1) / LINE;
        for (int i = (int) threadIdx.x % 32; i < n * ROWS * lines; i += 32) {
            const int64_t row = at.row + i / lines % ROWS, stretch = at.first + i / lines / ROWS * at.step;
            const int64_t offset = stretch * bytes + i % lines * LINE;
            if (row < p.m && offset < row_bytes) {
                gb_prefetch(at.a + row * (int64_t) p.w.nb_m + offset);
            }
        }
    }
    gb_wait_for_earlier();
}

// Adds up and stores. Every thread of the block calls this.
template <int NCOLS, int ROWS>
GB_DEVICE void gb_matvec_finish(const gb_matvec & p, const gb_matvec_place & at, float (&sum)[ROWS][NCOLS]) {
    GB_SHARED(float, part, GB_MATVEC_WARPS * ROWS * NCOLS);
    const int warp = (int) threadIdx.x / 32, lane = (int) threadIdx.x % 32;
    GB_UNROLL for (int r = 0; r < ROWS; r++) {
        GB_UNROLL for (int j = 0; j < NCOLS; j++) {
            sum[r][j] = gb_warp_sum(sum[r][j]);
            if (lane == 0) {
                part[(warp * ROWS + r) * NCOLS + j] = sum[r][j];
            }
        }
    }
    if (p.split > 1) {
        gb_sync_block();
    } else {
        gb_sync_warp();
    }
    const int i = p.split > 1 ? (int) threadIdx.x : lane, r = i / NCOLS;
    const int64_t column = at.column + i % NCOLS;
    if (i >= ROWS * NCOLS || at.row + r >= p.m || column >= at.last) {
        return;
    }
    float total = p.split > 1 ? 0 : part[warp * ROWS * NCOLS + i];
    for (int w = 0; p.split > 1 && w < GB_MATVEC_WARPS; w++) {
        total += part[w * ROWS * NCOLS + i];
    }
    total += p.add != NULL ? p.add[column * p.m + at.row + r] : 0;
    p.dst[column * p.m + at.row + r] = at.a != NULL ? total : gb_bits_to_float(0x7fc00000u);
}

// --------------------------------------------------------------------------------------------------- quantized weights

template <int TYPE> struct gb_stretch { // 32 groups of a row
    static constexpr int groups = 32, bytes = groups * 32 / gb_format<TYPE>::block * gb_format<TYPE>::bytes;
    // Includes the bytes before the row from the aligned address on, and a word that may be read
    // after the end.
    static constexpr int slot = (bytes + 15 + 15) / 16 * 16 + 16;
};

// Starts the copy of stretch `c` of a row; a and row_bytes describe the row.
template <int TYPE> GB_DEVICE void gb_stretch_load(char * slot, const char * a, int64_t row_bytes, int64_t c) {
    const int64_t begin = c * gb_stretch<TYPE>::bytes;
    const int64_t bytes = row_bytes - begin < gb_stretch<TYPE>::bytes ? row_bytes - begin : gb_stretch<TYPE>::bytes;
    const uint32_t before = (uint32_t) (uintptr_t) (a + begin) & 15;
    const char * aligned = a + begin - before;
    const int total = (int) bytes + (int) before;
    for (int i = (int) (threadIdx.x % 32) * 16; i < total; i += 512) {
        gb_cp_async_16(slot + i, aligned + i, total - i < 16 ? total - i : 16);
    }
}

template <int TYPE, int NCOLS> GB_KERNEL GB_BOUNDS(GB_MATVEC_WARPS * 32, 4) gb_matvec_quantized(gb_matvec_group q) {
    typedef gb_stretch<TYPE> stretch;
    typedef gb_format<TYPE> format;
    constexpr int ROWS = GB_MATVEC_ROWS, STAGES = GB_MATVEC_STAGES;
    gb_matvec_begin<NCOLS, ROWS>(q, STAGES - 1, stretch::bytes, q.part[0].k / format::block * format::bytes);
    GB_SHARED(char, rings, GB_MATVEC_WARPS * STAGES * ROWS * stretch::slot);
    const int lane = (int) threadIdx.x % 32;
    char * const ring = rings + threadIdx.x / 32 * (STAGES * ROWS * stretch::slot);
    const gb_matvec & p = q.part[gb_matvec_part(q, (int) blockIdx.x)];
    const gb_matvec_place at = gb_matvec_where<NCOLS, ROWS>(q, (int) blockIdx.x);
    const int64_t n_groups = p.k / 32, n = (n_groups + 31) / 32, row_bytes = p.k / format::block * format::bytes;
    const bool any = at.a != NULL && at.row < p.m;
    const char * row[ROWS]; // past the last row: the last row
    GB_UNROLL for (int r = 0; r < ROWS; r++) {
        row[r] = any ? at.a + (at.row + r < p.m ? at.row + r : p.m - 1) * (int64_t) p.w.nb_m : NULL;
    }
    const gb_q8_stretch * x[NCOLS];
    GB_UNROLL for (int j = 0; j < NCOLS; j++) {
        x[j] = (const gb_q8_stretch *) p.x + (at.column + j < at.last ? at.column + j : at.last - 1) * p.x_row;
    }
    float sum[ROWS][NCOLS] = {};
    int64_t ahead = any ? at.first : n;
    for (int s = 0; s < STAGES - 1; s++, ahead += at.step) {
        GB_UNROLL for (int r = 0; r < ROWS; r++) {
            if (ahead < n) {
                gb_stretch_load<TYPE>(ring + (s * ROWS + r) * stretch::slot, row[r], row_bytes, ahead);
            }
        }
        gb_cp_async_commit();
    }
    int stage = 0;
    for (int64_t c = at.first; any && c < n; c += at.step, ahead += at.step) {
        const int to = (stage + STAGES - 1) % STAGES;
        gb_cp_async_wait<STAGES - 2>();
        gb_sync_warp(); // all copies have arrived, and no lane reads the stage that is overwritten next
        GB_UNROLL for (int r = 0; r < ROWS; r++) {
            if (ahead < n) {
                gb_stretch_load<TYPE>(ring + (to * ROWS + r) * stretch::slot, row[r], row_bytes, ahead);
            }
        }
        gb_cp_async_commit();
        const int64_t group = c * 32 + lane;
        if (group < n_groups) {
            gb_group w[ROWS];
            GB_UNROLL for (int r = 0; r < ROWS; r++) {
                const uint32_t before = (uint32_t) (uintptr_t) (row[r] + c * stretch::bytes) & 15;
                const uint8_t * block = (const uint8_t *) ring + (stage * ROWS + r) * stretch::slot + before +
                                        lane * 32 / format::block * format::bytes;
                format::unpack(block, lane % (format::block / 32), w[r]);
            }
            GB_UNROLL for (int j = 0; j < NCOLS; j++) {
                const gb_q8_group v = gb_q8_load(x[j] + c, lane);
                GB_UNROLL for (int r = 0; r < ROWS; r++) { sum[r][j] += gb_group_dot<format::offsets>(w[r], v); }
            }
        }
        stage = (stage + 1) % STAGES;
    }
    gb_cp_async_wait<0>();
    gb_matvec_finish<NCOLS, ROWS>(p, at, sum);
}

// ------------------------------------------------------------------------------------------------------- float weights

// 16 bytes of a row as numbers. dense: 16-aligned.
template <int TYPE> struct gb_sixteen_bytes {
    static constexpr int n = TYPE == GGML_TYPE_F32 ? 4 : 8;
    uint32_t bits[4];
    GB_METHOD void load(const char * p, bool dense) {
        if (dense) {
            const uint4 v = *(const uint4 *) (const void *) p;
            bits[0] = v.x, bits[1] = v.y, bits[2] = v.z, bits[3] = v.w;
        } else {
            GB_UNROLL for (int i = 0; i < 4; i++) {
                bits[i] = TYPE == GGML_TYPE_F32 ? ((const uint32_t *) (const void *) p)[i]
                                                : ((const uint16_t *) (const void *) p)[2 * i] |
                                                      (uint32_t) ((const uint16_t *) (const void *) p)[2 * i + 1] << 16;
            }
        }
    }
    GB_METHOD float get(int i) const {
        if (TYPE == GGML_TYPE_F32) {
            return gb_bits_to_float(bits[i]);
        }
        const uint16_t h = (uint16_t) (bits[i / 2] >> 16 * (i % 2));
        return TYPE == GGML_TYPE_F16 ? gb_half_bits_to_float(h) : gb_bits_to_float((uint32_t) h << 16);
    }
};

template <int TYPE, int NCOLS, int ROWS>
GB_KERNEL GB_BOUNDS(GB_MATVEC_WARPS * 32, 4) gb_matvec_float(gb_matvec_group q) {
    constexpr int N = gb_sixteen_bytes<TYPE>::n;
    gb_matvec_begin<NCOLS, ROWS>(q, 2, 32 * 16, q.part[0].k * (16 / N)); // a step of the unrolled loop
    const int lane = (int) threadIdx.x % 32;
    const gb_matvec & p = q.part[gb_matvec_part(q, (int) blockIdx.x)];
    const gb_matvec_place at = gb_matvec_where<NCOLS, ROWS>(q, (int) blockIdx.x);
    const bool any = at.a != NULL && at.row < p.m;
    const bool dense = ((uintptr_t) at.a | p.w.nb_m) % 16 == 0;
    const char * row[ROWS];
    GB_UNROLL for (int r = 0; r < ROWS; r++) {
        row[r] = any ? at.a + (at.row + r < p.m ? at.row + r : p.m - 1) * (int64_t) p.w.nb_m : NULL;
    }
    const float * x[NCOLS];
    GB_UNROLL for (int j = 0; j < NCOLS; j++) {
        x[j] = (const float *) p.x + (at.column + j < at.last ? at.column + j : at.last - 1) * p.x_row;
    }
    float sum[ROWS][NCOLS] = {};
    const int64_t whole = any ? p.k / N : 0;
    GB_UNROLL_2 for (int64_t i = at.first * 32 + lane; i < whole; i += at.step * 32) {
        gb_sixteen_bytes<TYPE> w[ROWS];
        GB_UNROLL for (int r = 0; r < ROWS; r++) { w[r].load(row[r] + i * 16, dense); }
        GB_UNROLL for (int j = 0; j < NCOLS; j++) {
            float v[N];
            GB_UNROLL for (int e = 0; e < N; e += 4) {
                const float4 four = *(const float4 *) (const void *) (x[j] + i * N + e);
                v[e] = four.x, v[e + 1] = four.y, v[e + 2] = four.z, v[e + 3] = four.w;
            }
            GB_UNROLL for (int r = 0; r < ROWS; r++) {
                GB_UNROLL for (int e = 0; e < N; e++) { sum[r][j] += w[r].get(e) * v[e]; }
            }
        }
    }
    const int64_t rest = whole * N + lane; // fewer than N elements
    if (any && at.first == 0 && rest < p.k) {
        GB_UNROLL for (int r = 0; r < ROWS; r++) {
            const float w = gb_load_float(TYPE, row[r] + rest * (16 / N));
            GB_UNROLL for (int j = 0; j < NCOLS; j++) { sum[r][j] += w * x[j][rest]; }
        }
    }
    gb_matvec_finish<NCOLS, ROWS>(p, at, sum);
}

#endif // GB_CUDA_KERNELS_MATVEC_CUH
