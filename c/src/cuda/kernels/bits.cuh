// bits.cuh - bits of numbers in registers, and the kinds of 16-bit floats.
#ifndef GB_CUDA_KERNELS_BITS_CUH
#define GB_CUDA_KERNELS_BITS_CUH

#include "cuda/launch.cuh"

#define GB_METHOD __device__ __forceinline__ // for members, as GB_DEVICE is for functions

GB_DEVICE float gb_bits_to_float(uint32_t bits) {
    float f;
    memcpy(&f, &bits, sizeof(f));
    return f;
}

GB_DEVICE float gb_half_bits_to_float(uint16_t bits) { return gb_to_float(gb_half_of_bits(bits)); }

// 16-bit floats, by their bits in memory and in registers of the tensor cores. GB_HALF_WIDE: bf16, which has the range
// of float; f16 in code for devices without products of bf16.
enum gb_half_kind { GB_HALF_F16, GB_HALF_BF16, GB_HALF_WIDE };

template <int KIND> constexpr bool gb_is_f16 = KIND == GB_HALF_F16 || (KIND == GB_HALF_WIDE && !gb_is_code_for_80);

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
