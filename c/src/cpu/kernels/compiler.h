// compiler.h - compiler extensions that the kernel templates use: inlining, unrolling, registers,
// prefetching.
//
// With a compiler that does not support them, these macros do nothing. They use V_ASM_REGISTER of
// the vector operations (isa.h).
#ifndef GB_CPU_KERNELS_COMPILER_H
#define GB_CPU_KERNELS_COMPILER_H

#if defined(__SANITIZE_ADDRESS__) || \
    defined(__SANITIZE_THREAD__) // checks in dozens of unrolled copies would take minutes to compile
#    define ALWAYS_INLINE __attribute__((noinline, unused))
#    define UNROLL
#elif defined(__GNUC__)
#    define ALWAYS_INLINE inline __attribute__((always_inline))
#    define UNROLL _Pragma("GCC unroll 64")
#else
#    define ALWAYS_INLINE inline
#    define UNROLL
#endif

// IN_REGISTER(v) keeps v in a register. If instructions take operands from memory, compilers load a
// vector again for each product with it, and loads then bound the loop.
#if defined(__GNUC__) && HAVE_MEMORY_OPERANDS
#    define IN_REGISTER(v) __asm__("" : "+" V_ASM_REGISTER(v))
#else
#    define IN_REGISTER(v) (void) (v)
#endif

// IN_MEMORY(a) makes the compiler read elements of array a from memory. To broadcast them from there
// costs a load, from a register one or two shuffles.
#ifdef __GNUC__
#    define IN_MEMORY(a) __asm__("" : "+m"(a))
#else
#    define IN_MEMORY(a) (void) (a)
#endif

// COMPUTED_HERE(x) makes the compiler compute values that depend on integer x after this point.
// Without it, the compiler hoists them out of the loop and spills them to memory.
#ifdef __GNUC__
#    define COMPUTED_HERE(x) __asm__ volatile("" : "+r"(x))
#else
#    define COMPUTED_HERE(x) (void) (x)
#endif

// Prefetch the cache line of an address: to the first-level cache, to the second, or to the first
// for writing. Prefetch data from memory to the second level, because the first level soon evicts
// it, and holds fewer requests. Scalar code does not prefetch, because arithmetic bounds it.
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
