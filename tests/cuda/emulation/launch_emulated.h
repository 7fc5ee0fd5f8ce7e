// launch_emulated.h - the kernel dialect of c/src/cuda/launch.cuh in the emulation. Every thread of a block is a fiber.
//
// Fibers switch only where threads wait for each other: at barriers and in functions of a warp. A
// seeded generator draws which fiber runs next, so a test sees orders that hardware rarely has.
// Fragments of matrices have the layout of the PTX manual. An asynchronous copy arrives when the
// kernel waits for it, not before.
#ifndef GB_LAUNCH_EMULATED_H
#define GB_LAUNCH_EMULATED_H

#include <math.h>
#include <stdint.h>
#include <string.h>

#include <utility>

#include "cuda_runtime.h"

struct gb_emu_thread_view { // of the thread that runs
    uint3 thread, block;
    dim3 block_dim, grid_dim;
};
extern thread_local gb_emu_thread_view * gb_emu_view;

#define threadIdx (gb_emu_view->thread)
#define blockIdx (gb_emu_view->block)
#define blockDim (gb_emu_view->block_dim)
#define gridDim (gb_emu_view->grid_dim)
#define warpSize 32

#define GB_CONST static const
#define GB_BOUNDS(threads, blocks)
#define GB_UNROLL
#define GB_UNROLL_2
#define GB_NO_UNROLL
constexpr bool gb_is_code_for_80 = true;

// The block's memory for this declaration, the same for every thread. `id` is an address unique to the declaration.
void * gb_emu_shared(const void * id, size_t bytes, const char * name);
void * gb_emu_dynamic_shared(void);

#define GB_SHARED(type, name, count)    \
    static const char gb_id_##name = 0; \
    type * const name = static_cast<type *>(gb_emu_shared(&gb_id_##name, sizeof(type) * (count), #name))
#define GB_DYNAMIC_SHARED(type, name) type * const name = static_cast<type *>(gb_emu_dynamic_shared())

template <class... P, size_t... I>
inline void gb_emu_call(void (*kernel)(P...), void ** values, std::index_sequence<I...>) {
    kernel(*static_cast<P *>(values[I])...);
}

template <class... P> inline void gb_know_kernel(const char * name, void (*kernel)(P...)) {
    gb_emu_know_kernel(name, reinterpret_cast<const void *>(kernel), { sizeof(P)... },
        [](const void * function, void ** values) {
            gb_emu_call(reinterpret_cast<void (*)(P...)>(const_cast<void *>(function)), values,
                std::index_sequence_for<P...>());
        });
}

// ---- numbers

struct gb_half {
    uint16_t bits;
};
struct gb_bf16 {
    uint16_t bits;
};

float gb_emu_half_to_float(uint16_t bits);
uint16_t gb_emu_float_to_half(float x); // to nearest, ties to even
float gb_emu_bf16_to_float(uint16_t bits);
uint16_t gb_emu_float_to_bf16(float x);

static inline float gb_to_float(gb_half x) { return gb_emu_half_to_float(x.bits); }
static inline float gb_to_float(gb_bf16 x) { return gb_emu_bf16_to_float(x.bits); }
static inline gb_half gb_float_to_half(float x) { return { gb_emu_float_to_half(x) }; }
static inline gb_bf16 gb_float_to_bf16(float x) { return { gb_emu_float_to_bf16(x) }; }
static inline gb_half gb_half_of_bits(uint16_t bits) { return { bits }; }
static inline uint16_t gb_half_bits(gb_half x) { return x.bits; }
static inline uint16_t gb_bf16_bits(gb_bf16 x) { return x.bits; }
static inline uint32_t gb_pack_half2(float lo, float hi) {
    return (uint32_t) gb_emu_float_to_half(lo) | (uint32_t) gb_emu_float_to_half(hi) << 16;
}
static inline float2 gb_unpack_half2(uint32_t u) {
    return { gb_emu_half_to_float((uint16_t) u), gb_emu_half_to_float((uint16_t) (u >> 16)) };
}
static inline int gb_dp4a(int a, int b, int c) {
    for (int i = 0; i < 4; i++) {
        c = (int) ((unsigned) c + (unsigned) ((int8_t) (a >> (8 * i)) * (int8_t) (b >> (8 * i))));
    }
    return c;
}
static inline int gb_dp4a_unsigned(uint32_t a, int b, int c) {
    for (int i = 0; i < 4; i++) {
        c = (int) ((unsigned) c + (unsigned) ((int) (a >> (8 * i) & 255) * (int8_t) (b >> (8 * i))));
    }
    return c;
}
static inline float gb_exp2(float x) {
    const float y = exp2f(x);
    return y < 0x1p-126f ? 0 : y;
}
static inline float rsqrtf(float x) { return 1.0f / sqrtf(x); }
static inline uint32_t __float_as_uint(float x) {
    uint32_t u;
    memcpy(&u, &x, 4);
    return u;
}
static inline float __uint_as_float(uint32_t u) {
    float x;
    memcpy(&x, &u, 4);
    return x;
}

static inline uint32_t gb_perm(uint32_t a, uint32_t b, uint32_t select) {
    const uint64_t both = a | (uint64_t) b << 32;
    uint32_t r = 0;
    for (int i = 0; i < 4; i++) {
        const uint32_t byte = (uint32_t) (both >> 8 * (select >> 4 * i & 7) & 255); // from 8 on: its sign
        r |= ((select >> 4 * i & 8) == 0 ? byte : byte < 128 ? 0 : 255) << 8 * i;
    }
    return r;
}
static inline uint32_t gb_funnel_right(uint32_t low, uint32_t high, uint32_t shift) {
    return (uint32_t) ((low | (uint64_t) high << 32) >> shift);
}
static inline uint32_t gb_select(uint32_t mask, uint32_t a, uint32_t b) { return (a & mask) | (b & ~mask); }
static inline uint32_t gb_parity(uint32_t bits) { return (uint32_t) __builtin_parity(bits); }
static inline int gb_lowest_bit(uint32_t bits) { return __builtin_ctz(bits); }
static inline float gb_rounded_product(float x, float y) { return x * y; } // compiled without contraction

void gb_needs_code(int capability); // fails the block if the code is for an older capability

// ---- order of kernels

void gb_wait_for_earlier(int line = __builtin_LINE());
void gb_prefetch(const void * p, int line = __builtin_LINE()); // fails the block outside of all allocations

// ---- threads together; `line` is for messages about divergent threads

void gb_emu_sync_block(int line);
// All 32 lanes give `bytes` (<= 64) and see the bytes of all, until their next call. `kind`: the function that they
// call.
const unsigned char * gb_emu_exchange(const char * kind, int line, const void * mine, size_t bytes);
enum { GB_EMU_SLOT = 64 };

static inline void gb_sync_block(int line = __builtin_LINE()) { gb_emu_sync_block(line); }
static inline void gb_sync_warp(int line = __builtin_LINE()) {
    const char nothing = 0;
    gb_emu_exchange("gb_sync_warp", line, &nothing, 1);
}
int gb_emu_lane(void);

template <class T> static inline T gb_emu_slot(const unsigned char * all, int lane) {
    T x;
    memcpy(&x, all + (size_t) lane * GB_EMU_SLOT, sizeof(T));
    return x;
}
template <class T> static inline T gb_shfl(T x, int lane, int line = __builtin_LINE()) {
    return gb_emu_slot<T>(gb_emu_exchange("gb_shfl", line, &x, sizeof(x)), lane & 31);
}
template <class T> static inline T gb_shfl_xor(T x, int mask, int line = __builtin_LINE()) {
    return gb_emu_slot<T>(gb_emu_exchange("gb_shfl_xor", line, &x, sizeof(x)), (gb_emu_lane() ^ mask) & 31);
}
template <class T> static inline T gb_shfl_up(T x, int delta, int line = __builtin_LINE()) {
    const unsigned char * all = gb_emu_exchange("gb_shfl_up", line, &x, sizeof(x));
    return gb_emu_lane() >= delta ? gb_emu_slot<T>(all, gb_emu_lane() - delta) : x;
}
static inline uint32_t gb_ballot(bool x, int line = __builtin_LINE()) {
    const unsigned char * all = gb_emu_exchange("gb_ballot", line, &x, sizeof(x));
    uint32_t bits = 0;
    for (int i = 0; i < 32; i++) {
        bits |= (uint32_t) gb_emu_slot<bool>(all, i) << i;
    }
    return bits;
}
template <class T> static inline T gb_atomic_add(T * p, T x) {
    const T old = *p;
    *p = old + x;
    return old;
}
static inline void gb_fence_system() {} // one thread runs at a time

// ---- asynchronous copies, matrices, products: matrix.cpp

void gb_cp_async_16(void * shared, const void * global, int bytes = 16, int line = __builtin_LINE());
void gb_cp_async_8(void * shared, const void * global, int bytes = 8, int line = __builtin_LINE());
void gb_cp_async_commit(void);
void gb_emu_cp_async_wait(int pending);
template <int pending> static inline void gb_cp_async_wait(void) { gb_emu_cp_async_wait(pending); }
void gb_ldmatrix_x4(uint32_t (&r)[4], const void * row, int line = __builtin_LINE());
void gb_mma_f16(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2], int line = __builtin_LINE());
void gb_mma_bf16(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2], int line = __builtin_LINE());
void gb_mma_tf32(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2], int line = __builtin_LINE());
void gb_mma_s8(int (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2], int line = __builtin_LINE());
void gb_mma_s8(int (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2], const int (&c)[4],
    int line = __builtin_LINE());
void gb_mma_s8_half(int (&d)[4], const uint32_t (&a)[2], uint32_t b, const int (&c)[4], int line = __builtin_LINE());
uint32_t gb_to_tf32(float x);

#endif // GB_LAUNCH_EMULATED_H
