// bits.cuh - words and bytes in registers: what device code needs beyond launch.cuh, and how the host's compiler does
// the same.
#ifndef GB_CUDA_KERNELS_BITS_CUH
#define GB_CUDA_KERNELS_BITS_CUH

#include "cuda/launch.cuh"

#ifdef GB_CUDA_EMULATED
#    define GB_BOUNDS(threads, blocks)
#    define GB_UNROLL
#    define GB_UNROLL_2
#    define GB_NO_UNROLL
#else
#    define GB_BOUNDS(threads, blocks) \
    __launch_bounds__(threads, blocks) // of a block; blocks that a multiprocessor should hold
#    define GB_UNROLL _Pragma("unroll")
#    define GB_UNROLL_2 _Pragma("unroll 2")
#    define GB_NO_UNROLL _Pragma("unroll 1")
#endif

#define GB_METHOD __device__ __forceinline__ // what GB_DEVICE is, for members

// Byte i of the result is the byte of b:a that nibble i of `select` names, 0 .. 7; what is above the low half of
// `select` is not looked at.
GB_DEVICE uint32_t gb_perm(uint32_t a, uint32_t b, uint32_t select) {
#ifdef GB_CUDA_EMULATED
    const uint64_t both = a | (uint64_t) b << 32;
    uint32_t r = 0;
    for (int i = 0; i < 4; i++) {
        const uint32_t byte = (uint32_t) (both >> 8 * (select >> 4 * i & 7) & 255); // from 8 on: its sign
        r |= ((select >> 4 * i & 8) == 0 ? byte : byte < 128 ? 0 : 255) << 8 * i;
    }
    return r;
#else
    return gb_prmt(a, b, select);
#endif
}

// The low word of high:low moved right by up to 31 bits.
GB_DEVICE uint32_t gb_funnel_right(uint32_t low, uint32_t high, uint32_t shift) {
#ifdef GB_CUDA_EMULATED
    return (uint32_t) ((low | (uint64_t) high << 32) >> shift);
#else
    return __funnelshift_r(low, high, shift);
#endif
}

// The bits of a where `mask` has ones, of b elsewhere: one instruction, which the compiler does not take apart where it
// knows the mask.
GB_DEVICE uint32_t gb_select(uint32_t mask, uint32_t a, uint32_t b) {
#ifdef GB_CUDA_EMULATED
    return (a & mask) | (b & ~mask);
#else
    return gb_lop3_select(mask, a, b);
#endif
}

GB_DEVICE uint32_t gb_parity(uint32_t bits) {
#ifdef GB_CUDA_EMULATED
    return (uint32_t) __builtin_parity(bits);
#else
    return (uint32_t) __popc(bits) & 1;
#endif
}

// The number of the lowest bit that is set; there is one.
GB_DEVICE int gb_lowest_bit(uint32_t bits) {
#ifdef GB_CUDA_EMULATED
    return __builtin_ctz(bits);
#else
    return __ffs((int) bits) - 1;
#endif
}

// A product that is rounded by itself, never part of a fused multiply-add: where results must be the CPU's to the bit.
GB_DEVICE float gb_rounded_product(float x, float y) {
#ifdef GB_CUDA_EMULATED
    return x * y; // compiled without contraction
#else
    return __fmul_rn(x, y);
#endif
}

GB_DEVICE float gb_bits_to_float(uint32_t bits) {
    float f;
    memcpy(&f, &bits, sizeof(f));
    return f;
}

GB_DEVICE float gb_half_bits_to_float(uint16_t bits) { return gb_to_float(gb_half_of_bits(bits)); }

// The 16-bit floats, as the bits that they are in memory and in the registers of the tensor cores. GB_HALF_WIDE: bf16,
// which has the range of float, or f16 where the device that the code is compiled for has no products of bf16.
enum gb_half_kind { GB_HALF_F16, GB_HALF_BF16, GB_HALF_WIDE };

#if defined(GB_CUDA_EMULATED) || __CUDA_ARCH__ >= 800
template <int KIND> constexpr bool gb_is_f16 = KIND == GB_HALF_F16;
#else
template <int KIND> constexpr bool gb_is_f16 = KIND != GB_HALF_BF16;
#endif

template <int KIND> GB_DEVICE uint16_t gb_to_half(float x) {
    return gb_is_f16<KIND> ? gb_half_bits(gb_float_to_half(x)) : gb_bf16_bits(gb_float_to_bf16(x));
}

template <int KIND> GB_DEVICE uint32_t gb_pack2(float low, float high) {
    return gb_is_f16<KIND> ? gb_pack_half2(low, high) : gb_to_half<KIND>(low) | (uint32_t) gb_to_half<KIND>(high) << 16;
}

template <int KIND> GB_DEVICE void gb_mma(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
    if constexpr (gb_is_f16<KIND>) {
        gb_mma_f16(d, a, b);
    } else {
        if (KIND == GB_HALF_BF16) {
            gb_needs_code(80);
        }
        gb_mma_bf16(d, a, b);
    }
}

#endif // GB_CUDA_KERNELS_BITS_CUH
