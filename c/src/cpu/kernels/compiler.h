// compiler.h - what the kernel templates need of the compiler beyond C: inlining, unrolling, registers, prefetching.
//
// With a compiler that cannot, these do nothing. They use V_ASM_REGISTER of the vector operations (isa.h).
#ifndef GB_CPU_KERNELS_COMPILER_H
#define GB_CPU_KERNELS_COMPILER_H

#if defined(__SANITIZE_ADDRESS__) || \
    defined(__SANITIZE_THREAD__) // checks in dozens of unrolled copies take minutes to compile
#    define ALWAYS_INLINE __attribute__((noinline, unused))
#    define UNROLL
#elif defined(__GNUC__)
#    define ALWAYS_INLINE inline __attribute__((always_inline))
#    define UNROLL _Pragma("GCC unroll 64")
#else
#    define ALWAYS_INLINE inline
#    define UNROLL
#endif

// IN_REGISTER(v) keeps v in a register. Where instructions take operands from memory, compilers read a vector again for
// each product with it, and the loop is then bound by loads.
#if defined(__GNUC__) && HAVE_MEMORY_OPERANDS
#    define IN_REGISTER(v) __asm__("" : "+" V_ASM_REGISTER(v))
#else
#    define IN_REGISTER(v) (void) (v)
#endif

// What is computed from integer x behind COMPUTED_HERE(x) is computed there: not before a loop around it, where it
// would be kept in memory for want of registers.
#ifdef __GNUC__
#    define COMPUTED_HERE(x) __asm__ volatile("" : "+r"(x))
#else
#    define COMPUTED_HERE(x) (void) (x)
#endif

// Prefetch the cache line of any address: to the first-level cache, to the second, to the first to be written. What
// comes from memory is asked for long before it is needed: it goes to the second, since the first soon loses it again
// and has room for fewer requests (on Zen 4 products of few rows then take 1.1 to 1.7 times as long). Scalar code is
// bound by arithmetic: no prefetching.
#if defined(__GNUC__) && !V_ISA_SCALAR
#    define PREFETCH(p) __builtin_prefetch(p)
#    define PREFETCH_L2(p) __builtin_prefetch(p, 0, 2)
#    define PREFETCH_TO_WRITE(p) __builtin_prefetch(p, 1)
#else
#    define PREFETCH(p) (void) (p)
#    define PREFETCH_L2(p) (void) (p)
#    define PREFETCH_TO_WRITE(p) (void) (p)
#endif

#endif // GB_CPU_KERNELS_COMPILER_H
