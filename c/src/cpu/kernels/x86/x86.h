// x86.h - the common parts of AVX2 and AVX-512 without vectors: single numbers, and operands in
// memory.
#ifndef GB_CPU_KERNELS_X86_H
#define GB_CPU_KERNELS_X86_H

#include <immintrin.h>
#include <stdint.h>

#define HAVE_MEMORY_OPERANDS 1

#ifdef __F16C__
#    define HAVE_F16C 1
static inline float f32_of_f16_(uint16_t h) { return _cvtsh_ss(h); }
static inline uint16_t f16_of_f32_(float x) { return _cvtss_sh(x, _MM_FROUND_TO_NEAREST_INT); }
#endif

#if defined(__BMI2__) && defined(__x86_64__)
#    define HAVE_PDEP64 1
static inline uint64_t deposit_64_(uint64_t bits, uint64_t mask) { return _pdep_u64(bits, mask); }
#endif

#endif // GB_CPU_KERNELS_X86_H
