// hopper.h - the dialect of hopper.cuh in the emulation: barriers with phases, copies of tiles, asynchronous products.
//
// Copies of tiles arrive in any order, each as a whole: mostly when all threads wait, else at a drawn time. The shared
// memory that a copy will write is NaN from the request on. Products read their operands, in memory and in registers,
// when their thread waits for them. Until then the registers of their sums are NaN. So code that reads early, or
// overwrites operands, has wrong results.
//
// These are errors, with their line:
// - barriers that were not initialized or were overwritten, counts out of range, waits for a phase that never comes
// - copies to invalid addresses
// - products by some of the four warps, or by warps with different matrices; invalid descriptors
// - sums touched without a fence; threads that end before their products
// - operands in registers that changed after the last fence that names them, or while products run
// - operands in memory that a thread copied without gb_copies_to_matrix
// - registers that a group frees without having them, or requests in vain (launch bounds of one block set the number)
//
// Tensor maps have four dimensions of 16-bit elements, with swizzled rows of 128 bytes. Matrices have rows along the
// sum and one of the three swizzles. Everything else is refused.
#ifndef GB_EMULATED_HOPPER_H
#define GB_EMULATED_HOPPER_H

#include "launch_emulated.h"

#define GB_FIXED_PARAMETER
#define GB_HAS_HOPPER 1

bool gb_emu_has_hopper_code(void);
template <class... P> inline bool gb_has_hopper_code(void (*)(P...)) { return gb_emu_has_hopper_code(); }

// As on hardware, dynamic shared memory begins after the first KiB.
uint32_t gb_shared_address(const void * p);

void gb_barrier_init(uint64_t * b, int arrivals, int line = __builtin_LINE());
void gb_barrier_fence(int line = __builtin_LINE());
void gb_barrier_arrive(uint64_t * b, int line = __builtin_LINE());
void gb_barrier_expect(uint64_t * b, int bytes, int line = __builtin_LINE());
void gb_barrier_wait(uint64_t * b, int parity, int line = __builtin_LINE());

void gb_emu_set_registers(int n, bool more, int line);
template <int N> static inline void gb_registers_fewer(int line = __builtin_LINE()) {
    static_assert(N % 8 == 0 && N >= 24 && N <= 256, "as the manual has it");
    gb_emu_set_registers(N, false, line);
}
template <int N> static inline void gb_registers_more(int line = __builtin_LINE()) {
    static_assert(N % 8 == 0 && N >= 24 && N <= 256, "as the manual has it");
    gb_emu_set_registers(N, true, line);
}

struct gb_tensor_map;
void gb_copy_tile(void * shared, const gb_tensor_map & map, int x, int y, int z, int w, uint64_t * b,
    int line = __builtin_LINE());

struct gb_emu_product {
    float * sum; // n / 2 registers of the thread
    int n;
    bool f16, keep;
    uint64_t a, b;
    const uint32_t * rows; // four registers in place of a; or NULL
};

void gb_matrix_fence(int line = __builtin_LINE());
void gb_emu_matrix_fence(const uint32_t (*rows)[4], int n, int line);
void gb_matrix_commit(int line = __builtin_LINE());
void gb_copies_to_matrix(int line = __builtin_LINE());
void gb_emu_matrix_mma(const gb_emu_product & product, int line);
void gb_emu_matrix_wait(int pending, int line);

template <int pending> static inline void gb_matrix_wait(int line = __builtin_LINE()) {
    gb_emu_matrix_wait(pending, line);
}
template <int N> static inline void gb_matrix_fence(uint32_t (&rows)[N][4], int line = __builtin_LINE()) {
    gb_emu_matrix_fence(rows, N, line);
}
static inline uint32_t gb_pack_bf16(float low, float high) {
    return gb_emu_float_to_bf16(low) | (uint32_t) gb_emu_float_to_bf16(high) << 16;
}
template <int N> static inline void gb_matrix_done(float (&)[N]) {}
// KIND has the numbers of GB_HALF_F16 and GB_HALF_BF16.
template <int KIND, int N>
static inline void gb_matrix_mma(float (&sum)[N / 2], uint64_t a, uint64_t b, bool keep, int line = __builtin_LINE()) {
    static_assert(N % 8 == 0 && N >= 8 && N <= 256, "as the manual has it");
    gb_emu_matrix_mma({ sum, N, KIND == 0, keep, a, b, NULL }, line);
}
template <int KIND, int N>
static inline void gb_matrix_mma_rows(float (&sum)[N / 2], const uint32_t (&a)[4], uint64_t b, bool keep,
    int line = __builtin_LINE()) {
    static_assert(N % 8 == 0 && N >= 8 && N <= 256, "as the manual has it");
    gb_emu_matrix_mma({ sum, N, KIND == 0, keep, 0, b, a }, line);
}

// The part of the driver's cuTensorMapEncodeTiled that the backend uses.
int gb_emu_encode_tiled(void * map, int type, unsigned rank, void * address, const uint64_t * ne, const uint64_t * nb,
    const unsigned * box, const unsigned * steps, int interleave, int swizzle, int l2, int outside);

#endif // GB_EMULATED_HOPPER_H
