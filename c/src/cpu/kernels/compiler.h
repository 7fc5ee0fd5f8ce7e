// compiler.h - what the kernel templates ask of the compiler beyond C: inlining, unrolling, registers, and asking
// memory for what comes next. Where it cannot, these do nothing. Included first by level.tpl.h, after the vector
// operations.
#ifndef GB_CPU_KERNELS_COMPILER_H
#define GB_CPU_KERNELS_COMPILER_H

#if defined(__SANITIZE_ADDRESS__) || \
    defined(__SANITIZE_THREAD__) // checks in dozens of unrolled copies take minutes to compile
#    define ALWAYS_INLINE __attribute__((noinline))
#    define UNROLL
#elif defined(__GNUC__)
#    define ALWAYS_INLINE inline __attribute__((always_inline))
#    define UNROLL        _Pragma("GCC unroll 64")
#else
#    define ALWAYS_INLINE inline
#    define UNROLL
#endif

// Compilers read a vector again for every product with it, if they may: loads are then what the loop waits for.
#if defined(__GNUC__) && HAVE_MEMORY_OPERANDS
#    define IN_REGISTER(v) __asm__("" : "+" V_ASM_REGISTER(v))
#else
#    define IN_REGISTER(v) (void) (v)
#endif

// The line at any address: to the nearest cache, to the second, to the nearest to be written. One lane is slower than
// any memory.
#if defined(__GNUC__) && !V_ISA_SCALAR
#    define ASK(p)          __builtin_prefetch(p)
#    define ASK_SECOND(p)   __builtin_prefetch(p, 0, 2)
#    define ASK_TO_WRITE(p) __builtin_prefetch(p, 1)
#else
#    define ASK(p)          (void) (p)
#    define ASK_SECOND(p)   (void) (p)
#    define ASK_TO_WRITE(p) (void) (p)
#endif

#endif // GB_CPU_KERNELS_COMPILER_H
