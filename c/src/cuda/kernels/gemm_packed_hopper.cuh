// gemm_packed_hopper.cuh - products of quantized weights with many rows of dst on compute capability
// 9.0. Weights become bf16 in the registers that products read; shared memory holds them only as
// bytes.
//
// A block has twelve warps and makes the tiles of hopper_tiles.cuh. Two groups of four warps
// multiply, each 64 columns (rows of weights) by NT rows, with all sums in registers. Three warps
// copy the bytes of weights, GB_RAW_DEPTH elements of 128 rows per step, into one of two slots. A
// thread of the last warp copies 64 elements of depth of the other operand per step, p.stages
// ahead. setmaxnreg gives the groups the registers that these four warps do not need.
//
// The depth may be in any order, because a product is a sum. A thread has, of each of its two rows
// of weights, one of four adjacent groups of 32 elements. So each format is unpacked by unpack.cuh,
// and no lane repeats the work of another lane. Of 128 elements, column 2 t + 8 j + i of step s is
// element 32 t + 4 s + 2 j + i. gb_rows_in_order permutes the rows of the other operand to match.
//
// Barriers: `full` and `empty` of each stage as in gemm_hopper.cuh. `raw_full` of a slot: the three
// warps have copied it. `raw_empty`: the eight warps have it in registers. Registers hold two
// operands of 64 elements: the products of the first run while the second is unpacked.
//
// A slot is handed over without a race in the PTX memory model, by the following steps.
// compute-sanitizer's racecheck reports these reads and writes, because it does not support one
// lane that arrives for its warp.
//
// 1. cp.async.wait_group makes the bytes that a lane copied visible to that lane. cp.async without .bulk belongs to the
//    generic proxy, as loads do, so no proxy fence is needed.
// 2. bar.warp.sync orders the copies of all lanes before the arrival of lane 0 at raw_full.
// 3. mbarrier.arrive is a release and mbarrier.try_wait an acquire, for the block. Every thread that reads waits itself
//    for the phase, which needs an arrival of each of the three warps. Causality order is transitive.
// 4. A slot is returned by the same steps. Reads end in registers, bar.warp.sync follows, lane 0 arrives at raw_empty,
//    and every lane that copies waits for that phase. So no byte is overwritten before it was read.
// 5. No read goes past the pitch of its row: blocks end within gb_raw::pieces * 16 bytes, and so does a word that
//    begins in a block. So no read overlaps the copies of the other slot.
// 6. Some bytes that are read were not copied: rows past the last column, groups past the end of the depth. Such rows
//    are not stored, and such groups have the scale 0.
#ifndef GB_CUDA_KERNELS_GEMM_PACKED_HOPPER_CUH
#define GB_CUDA_KERNELS_GEMM_PACKED_HOPPER_CUH

#include "cuda/kernels/gemm.cuh"
#include "cuda/kernels/hopper_tiles.cuh"

enum {
    GB_PACKED_COPIERS = 3, // warps that copy
    GB_PACKED_THREADS = 32 * (GB_HOPPER_WARPS + GB_PACKED_COPIERS + 1),
    GB_PACKED_SLOTS = 2,
};

struct gb_gemm_packed {
    gb_tensor_map rows; // dimensions: depth in this order, row, slice, 1
    gb_hopper_grid grid;
    int stages;
    gb_weights w;
};

// Shared memory in bytes: stages of the rows, slots, barriers.
template <int SOURCE, int NT> struct gb_packed_layout {
    static constexpr int stage = NT * GB_HOPPER_K * 2, slot = gb_raw<SOURCE>::slot, each = stage + 2 * 8,
                         once = GB_PACKED_SLOTS * (slot + 2 * 8);
};

struct gb_packed_barriers {
    gb_barrier *full, *empty, *raw_full, *raw_empty;
    GB_METHOD static void * at(char * shared, int stages, int stage, int slot) {
        return shared + stages * stage + GB_PACKED_SLOTS * slot;
    }
    GB_METHOD gb_packed_barriers(void * memory, int stages)
        : full((gb_barrier *) memory), empty(full + stages), raw_full(empty + stages),
          raw_empty(raw_full + GB_PACKED_SLOTS) {}
};

// Address of the first row of weights of a tile, at its first element of depth.
GB_DEVICE const char * gb_packed_matrix(const gb_gemm_packed & p, const gb_hopper_tile & t, int block, int bytes) {
    const char * a =
        p.grid.routed.list != NULL ? gb_weights_of_expert(p.w, t.expert) : gb_weights_of_slice(p.w, t.slice);
    return a + t.column * (int64_t) p.w.nb_m + t.k0 / block * (int64_t) bytes;
}

// -------------------------------------------------------------------------------------------------------------- copies

GB_DEVICE void gb_packed_copy_rows(const gb_gemm_packed & p, char * shared, int stage, const gb_packed_barriers & b,
    const gb_hopper_tile & t, gb_hopper_place & at) {
    for (int step = 0; step < (t.steps + 1) / 2 * 2; step++) { // 128 elements at a time
        gb_barrier_wait(&b.empty[at.stage], at.parity ^ 1); // returns at once for a new stage
        gb_barrier_expect(&b.full[at.stage], stage);
        gb_copy_tile(shared + at.stage * stage, p.rows, t.k0 + step * GB_HOPPER_K, t.row, t.slice, 0,
            &b.full[at.stage]);
        at.next(p.stages);
    }
}

// By each warp that copies: eight lanes a row, so that adjacent bytes are requested together.
template <int SOURCE>
GB_DEVICE void gb_packed_copy_weights(const gb_gemm_packed & p, char * slots, const gb_packed_barriers & b,
    const gb_hopper_tile & t, gb_hopper_place & at) {
    typedef gb_format<SOURCE> format;
    typedef gb_raw<SOURCE> layout;
    enum { LANES = 8, ROWS = GB_WARP / LANES * GB_PACKED_COPIERS }; // per step
    const int lane = (int) threadIdx.x % 32, piece = lane % LANES * 16;
    const int first = ((int) threadIdx.x - 32 * GB_HOPPER_WARPS) / LANES;
    const int rows = (int) gb_min<int64_t>(GB_HOPPER_M, p.grid.m - t.column);
    const char * a = gb_packed_matrix(p, t, format::block, format::bytes) + first * (int64_t) p.w.nb_m;
    for (int depth = t.depth; depth > 0; depth -= GB_RAW_DEPTH, a += layout::bytes) {
        const int left = depth / format::block * format::bytes;
        const char * from = a;
        char * to = slots + at.stage * layout::slot + first * layout::pitch + piece;
        gb_barrier_wait(&b.raw_empty[at.stage], at.parity ^ 1);
        GB_NO_UNROLL for (int r = first; r < rows;
            r += ROWS, from += ROWS * (int64_t) p.w.nb_m, to += ROWS * layout::pitch) {
            const int before = (int) ((uint32_t) (uintptr_t) from & 15);
            const char * x = from - before + piece;
            if (left >= layout::pieces * 16) { // bytes beyond belong to the row
                GB_UNROLL for (int i = 0; i < layout::pieces * 16; i += LANES * 16) {
                    if (piece < layout::pieces * 16 - i) {
                        gb_cp_async_16(to + i, x + i);
                    }
                }
            } else {
                GB_NO_UNROLL for (int i = 0; i < before + left - piece; i += LANES * 16) {
                    gb_cp_async_16(to + i, x + i, gb_min(before + left - piece - i, 16));
                }
            }
        }
        gb_cp_async_commit();
        gb_cp_async_wait<0>();
        gb_sync_warp();
        if (lane == 0) {
            gb_barrier_arrive(&b.raw_full[at.stage]);
        }
        at.next(GB_PACKED_SLOTS);
    }
}

// ------------------------------------------------------------------------------------------------------------ products

// Formats whose scales are not halves. A large number times such a scale may overflow.
template <int SOURCE>
constexpr bool gb_has_large_scales = SOURCE == GGML_TYPE_MXFP4 || SOURCE == GGML_TYPE_Q8_1 || SOURCE == GGML_TYPE_Q8_K;

// Four adjacent elements of a group, as pairs of bf16. A signed byte x becomes the float 2^15 + 128
// + x. The offset subtracts GB_PACKED_ABOVE times the scale, without a loss that bf16 would show.
constexpr float GB_PACKED_ABOVE = 32768 + 128;

template <int SOURCE>
GB_DEVICE void gb_packed_numbers(const gb_group & o, int word, uint32_t & first, uint32_t & second) {
    const float d = o.d[word / 4], m = o.m[word / 4];
    float x[4];
    if constexpr (gb_has_large_scales<SOURCE>) {
        GB_UNROLL for (int i = 0; i < 4; i++) { x[i] = d * gb_byte_to_float(o.q[word], i) + m; }
    } else {
        const uint32_t bytes = (uint32_t) o.q[word] ^ 0x80808080u;
        GB_UNROLL for (int i = 0; i < 4; i++) {
            x[i] = d * gb_bits_to_float(gb_perm(bytes, 0x47000000u, 0x7404u + ((uint32_t) i << 4))) + m;
        }
    }
    first = gb_pack_bf16(x[0], x[1]);
    second = gb_pack_bf16(x[2], x[3]);
}

// Unpacks, of both rows of a thread in a slot, its group among the 128 elements from `element` on. left: elements to
// the end of the depth.
template <int SOURCE>
GB_DEVICE void gb_packed_groups(const char * const (&row)[2], int element, int left, gb_group (&o)[2]) {
    typedef gb_format<SOURCE> format;
    const int mine = element + (int) threadIdx.x % 4 * 32;
    GB_UNROLL for (int h = 0; h < 2; h++) {
        format::unpack((const uint8_t *) row[h] + mine / format::block * format::bytes, mine % format::block / 32,
            o[h]);
        const bool in = format::block == GB_RAW_DEPTH || mine < left;
        GB_UNROLL for (int i = 0; i < 2; i++) { // after the end the other operand has zeros
            o[h].d[i] = in ? o[h].d[i] : 0;
            o[h].m[i] = in ? o[h].m[i] : 0;
            if constexpr (!gb_has_large_scales<SOURCE>) {
                o[h].m[i] -= GB_PACKED_ABOVE * o[h].d[i];
            }
        }
    }
}

// Multiplies the first or the last 64 of the 128 elements by those of a stage.
template <int SOURCE, int NT>
GB_DEVICE void gb_packed_products(const gb_group (&o)[2], int half, const char * rows, gb_barrier * full, int parity,
    uint32_t (&a)[4][4], float (&sum)[NT / 2]) {
    GB_UNROLL for (int s = 0; s < 4; s++) {
        gb_packed_numbers<SOURCE>(o[0], 4 * half + s, a[s][0], a[s][2]);
        gb_packed_numbers<SOURCE>(o[1], 4 * half + s, a[s][1], a[s][3]);
    }
    gb_barrier_wait(full, parity);
    const uint64_t b = gb_matrix_of(rows);
    gb_matrix_fence(a);
    GB_UNROLL for (int s = 0; s < 4; s++) { // a descriptor has address / 16: 2 for 16 elements
        gb_matrix_mma_rows<GB_HALF_BF16, NT>(sum, a[s], b + 2 * s, true);
    }
    gb_matrix_commit();
}

template <int SOURCE, int NT>
GB_DEVICE void gb_packed_multiply(const gb_gemm_packed & p, char * shared, const gb_packed_barriers & b) {
    typedef gb_format<SOURCE> format;
    typedef gb_raw<SOURCE> layout;
    typedef gb_packed_layout<SOURCE, NT> memory;
    const int lane = (int) threadIdx.x % 32, mine = (int) threadIdx.x / 32 * 16 + lane / 4;
    gb_hopper_place at, raw_at;
    for (int number = (int) blockIdx.x; number < p.grid.tiles; number += (int) gridDim.x) {
        const gb_hopper_tile t = gb_hopper_tile_of<NT>(p.grid, number);
        if (t.steps == 0) {
            continue;
        }
        const uint32_t at_first = (uint32_t) (uintptr_t) gb_packed_matrix(p, t, format::block, format::bytes) +
                                  (uint32_t) mine * (uint32_t) p.w.nb_m; // low bits of the address of the first row
        float sum[NT / 2] = {};
        uint32_t a[2][4][4];
        gb_group o[2];
        int before[2] = { 0, 0 }; // stages whose products may still run
        for (int i = 0; i < (t.steps + 1) / 2; i++) {
            const int half = i % 2;
            const uint32_t from = at_first + (uint32_t) (i / 2 * layout::bytes);
            const char * slot = shared + p.stages * memory::stage + raw_at.stage * layout::slot + mine * layout::pitch;
            const char * const row[2] = { slot + (from & 15),
                slot + 8 * layout::pitch + ((from + 8 * (uint32_t) p.w.nb_m) & 15) };
            if (half == 0) {
                gb_barrier_wait(&b.raw_full[raw_at.stage], raw_at.parity);
            }
            gb_packed_groups<SOURCE>(row, half * 128, t.depth - i / 2 * GB_RAW_DEPTH, o);
            if (half == 1 || (i + 1) * 2 >= t.steps) {
                gb_sync_warp();
                if (lane == 0) {
                    gb_barrier_arrive(&b.raw_empty[raw_at.stage]);
                }
                raw_at.next(GB_PACKED_SLOTS);
            }
            GB_UNROLL for (int h = 0; h < 2; h++) {
                if (i > 0) { // the products that read a[h] must end first
                    gb_matrix_wait<1>();
                    if (lane == 0) {
                        gb_barrier_arrive(&b.empty[before[h]]);
                    }
                }
                gb_packed_products<SOURCE, NT>(o, h, shared + at.stage * memory::stage, &b.full[at.stage], at.parity,
                    a[h], sum);
                before[h] = at.stage;
                at.next(p.stages);
            }
        }
        gb_matrix_wait<0>();
        if (lane == 0) {
            gb_barrier_arrive(&b.empty[before[0]]);
            gb_barrier_arrive(&b.empty[before[1]]);
        }
        gb_matrix_done(sum);
        gb_hopper_store<NT>(p.grid, t, sum);
    }
}

// grid: one block for each multiprocessor, at most one for each tile.
template <int SOURCE, int NT>
GB_KERNEL GB_BOUNDS(GB_PACKED_THREADS, 1) gb_gemm_packed_hopper(GB_FIXED_PARAMETER gb_gemm_packed p) {
    typedef gb_packed_layout<SOURCE, NT> memory;
    GB_DYNAMIC_SHARED(char, shared);
    const gb_packed_barriers b(gb_packed_barriers::at(shared, p.stages, memory::stage, memory::slot), p.stages);
    if (threadIdx.x == 0) {
        for (int i = 0; i < p.stages; i++) {
            gb_barrier_init(&b.full[i], 1);
            gb_barrier_init(&b.empty[i], GB_HOPPER_WARPS);
        }
        for (int i = 0; i < GB_PACKED_SLOTS; i++) {
            gb_barrier_init(&b.raw_full[i], GB_PACKED_COPIERS);
            gb_barrier_init(&b.raw_empty[i], GB_HOPPER_WARPS);
        }
        gb_barrier_fence();
    }
    gb_wait_for_earlier();
    gb_sync_block();
    if (threadIdx.x < 32 * GB_HOPPER_WARPS) {
        gb_registers_more<232>();
        gb_packed_multiply<SOURCE, NT>(p, shared, b);
        return;
    }
    gb_registers_fewer<40>();
    const bool copies_weights = threadIdx.x < 32 * (GB_HOPPER_WARPS + GB_PACKED_COPIERS);
    gb_hopper_place at;
    for (int number = (int) blockIdx.x; number < p.grid.tiles; number += (int) gridDim.x) {
        const gb_hopper_tile t = gb_hopper_tile_of<NT>(p.grid, number);
        if (t.steps == 0) {
            continue;
        }
        if (copies_weights) {
            gb_packed_copy_weights<SOURCE>(p, shared + p.stages * memory::stage, b, t, at);
        } else if (threadIdx.x % 32 == 0) {
            gb_packed_copy_rows(p, shared, memory::stage, b, t, at);
        }
    }
}

#endif // GB_CUDA_KERNELS_GEMM_PACKED_HOPPER_CUH
