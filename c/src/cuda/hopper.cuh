// hopper.cuh - the additions of compute capability 9.0 to the dialect of launch.cuh: barriers that
// count bytes, copies of tiles, products of tiles in shared memory.
//
// Kernels with these functions are in files that are compiled for 9.0a alone (c/cmake/cuda.cmake).
// Elsewhere GB_HAS_HOPPER is 0, and the kernels are empty. gb_has_hopper_code tells at run time
// whether the device can launch them.
//
//   gb_barrier                  eight bytes of shared memory, 8-aligned. Its phases have parities 0, 1, 0, ... A phase
//                               ends after its arrivals and the bytes that they expect
//   gb_barrier_init             by one thread, before any use: a phase needs `arrivals` arrivals
//   gb_barrier_fence            by that thread: makes new barriers visible to copies, and to other threads after a
//                               gb_sync_block
//   gb_barrier_arrive           one arrival
//   gb_barrier_expect           one arrival; the phase also waits for `bytes` more
//   gb_barrier_wait             waits for the end of the phase with that parity. A new barrier is in a phase of parity
//                               0, so a wait for parity 1 returns immediately
//   gb_copy_tile                by one thread: starts the copy of the box of a tensor map that begins at element
//                               (x, y, z, w), innermost first, to shared memory, and counts all bytes of the box at the
//                               barrier. x is a multiple of 8, and (y, z, w) lies in the tensor: an H200 refused the
//                               box at (7, 5, -1, 1) (test_hopper_boxes.cu). Elements past the end read as zeros. With
//                               rows of 128 bytes, chunk i (16 bytes) of row r is at chunk i ^ r % 8; rows are counted
//                               from an address that 1,024 divides
//   gb_copies_to_matrix         each thread calls it after a wait for its gb_cp_async_16 and before a barrier. Products
//                               read shared memory through the asynchronous proxy. After the barrier, products of all
//                               threads see the data. Operands must not come from plain stores
//
//   gb_registers_fewer<N>       by the four warps of a group, at the same place: each thread keeps N registers, a
//                               multiple of 8, and frees the others
//   gb_registers_more<N>        the same; takes free registers. The kernel must have launch bounds of one block
//
//   gb_matrix_of                describes a matrix of 16-bit elements in shared memory. Its rows of 128 bytes have the
//                               layout of gb_copy_tile. It begins at an address that 1,024 divides, `depth` elements
//                               further along the rows (a multiple of 16)
//   gb_matrix_mma<KIND, N>      by the four warps of a group (number 4 i to 4 i + 3 in the block), all at the same
//                               place: sum (+)= a b^T, of the first 64 rows of a and N rows of b, over 16 elements of
//                               the rows. Warp w of the group has rows 16 w to 16 w + 15. With g = lane / 4 and
//                               t = lane % 4, sum[4 j + i] is in row g + i / 2 * 8, column 8 j + 2 t + i % 2. The
//                               product runs asynchronously: until a wait, the thread must not use sum and operands
//   gb_matrix_mma_rows<KIND, N> the same with a in registers, two elements in each. a[0] and a[1] have columns 2 t and
//                               2 t + 1 of rows g and g + 8. a[2] and a[3] have the columns 8 further. So the sums of
//                               N columns, rounded and packed in pairs, are N / 16 operands a
//   gb_matrix_fence             before products: orders them after this thread's writes to the registers of sums and
//                               operands
//   gb_matrix_commit            closes a group of products
//   gb_matrix_wait<pending>     waits until at most `pending` groups have not ended
//   gb_matrix_done              after a wait: the sums may be read
//
//   gb_pack_bf16                two bf16 in a register, the first in the low bits, in one instruction
//
// KIND: GB_HALF_F16 or GB_HALF_BF16. N: 64, 128 or 256. A kernel takes tensor maps by value, in a
// parameter that is declared GB_FIXED_PARAMETER.
#ifndef GB_CUDA_HOPPER_CUH
#define GB_CUDA_HOPPER_CUH

#include "cuda/kernels/bits.cuh"
#include "cuda/tensor_map.h"

typedef uint64_t gb_barrier;

#ifdef GB_CUDA_EMULATED
#    include "hopper.h"
#else
#    include "cuda/hopper_device.cuh"
#endif

// ---- both dialects

// A descriptor of the PTX manual, for operands of wgmma whose rows lie along the sum: address, 1 (unused with this
// swizzle), distance of groups of eight rows, swizzle of 128 bytes.
GB_DEVICE uint64_t gb_matrix_of(const void * rows, int depth = 0) {
    const uint64_t address = gb_shared_address(rows) + (uint32_t) depth * 32;
    return (address & 0x3ffff) >> 4 | (uint64_t) 1 << 16 | (uint64_t) (1024 >> 4) << 32 | (uint64_t) 1 << 62;
}

// A stage of a ring of stages, and the parity of its current use.
struct gb_hopper_place {
    int stage = 0, parity = 0;
    GB_METHOD void next(int stages) {
        if (++stage == stages) {
            stage = 0;
            parity ^= 1;
        }
    }
};

#endif // GB_CUDA_HOPPER_CUH
