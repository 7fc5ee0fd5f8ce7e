// isa.h - the features of instruction sets that templates use. The default of each feature is 0.
//
// A vec_<isa>.h states the features of its set. The number of lanes, V_N, does not imply any
// feature. Every set states
//   V_N, V_REGISTERS      lanes of a vector of floats; vector registers
//   V_GEMM_*, V_BYTES_*   rows and vectors of the tiles of gemm.tpl.h and int8.tpl.h
//   V_CHAINS              independent sums that keep the pipelines busy (limits.tpl.h)
//   V_ASM_REGISTER        the constraint of vector registers in inline assembly
// and may define names below as 1 for further features. Then it includes this file. A template may
// have a body for one instruction set in x86/ or arm/. It chooses the body by one of these names.
// Other sets use the portable body.
#ifndef GB_CPU_KERNELS_ISA_H
#define GB_CPU_KERNELS_ISA_H

// One lane, in plain C. Arithmetic, not memory, bounds it. vb is a struct, not a register. v_fma
// rounds twice.
#ifndef V_ISA_SCALAR
#    define V_ISA_SCALAR 0
#endif

// The intrinsics that a body may use. V_ISA_AVX2: AVX2 with FMA, F16C and BMI2. V_ISA_AVX512:
// AVX-512 with F, BW, DQ and VL, which includes AVX2. V_ISA_X86: either of them.
#ifndef V_ISA_AVX2
#    define V_ISA_AVX2 0
#endif
#ifndef V_ISA_AVX512
#    define V_ISA_AVX512 0
#endif
#define V_ISA_X86 (V_ISA_AVX2 || V_ISA_AVX512)

// For sets of sixteen lanes: v_lookup looks up each lane in a register of sixteen floats
// (math_lookup.tpl.h).
#ifndef V_LOOKUP
#    define V_LOOKUP 0
#endif

// v_scale2 is one instruction; else two multiplications (math.tpl.h).
#ifndef HAVE_SCALE2
#    define HAVE_SCALE2 0
#endif

// v_recip begins with an approximation that differs between makers of processors.
#ifndef HAVE_ROUGH_RECIPROCALS
#    define HAVE_ROUGH_RECIPROCALS 0
#endif

// Arithmetic takes operands from memory. Compilers then read a vector again for each use, unless
// IN_REGISTER prevents that.
#ifndef HAVE_MEMORY_OPERANDS
#    define HAVE_MEMORY_OPERANDS 0
#endif

// v_stream stores a whole, aligned vector and bypasses the caches. stream_done_ waits until other
// threads can see it.
#ifndef HAVE_STREAM
#    define HAVE_STREAM 0
#endif

// vd_add_at(s, p) adds the floats at p to s. Converting them from memory is cheaper than from a
// register.
#ifndef HAVE_ADD_AT
#    define HAVE_ADD_AT 0
#endif

// v_load_i8(p) converts V_N signed bytes.
#ifndef HAVE_LOAD_I8
#    define HAVE_LOAD_I8 0
#endif

// v_store_u16_high(p, a, b) stores the upper halves of the lanes of a, then those of b.
#ifndef HAVE_STORE_HIGH
#    define HAVE_STORE_HIGH 0
#endif

// f32_of_f16_ and f16_of_f32_ convert single numbers.
#ifndef HAVE_F16C
#    define HAVE_F16C 0
#endif

// deposit_64_ puts the lowest bits where a mask has ones.
#ifndef HAVE_PDEP64
#    define HAVE_PDEP64 0
#endif

// vi_dot4 is one instruction of AVX-512, for any u, so vi_dot4w is not needed.
#ifndef HAVE_VNNI
#    define HAVE_VNNI 0
#endif

// Permutations of bytes across a whole vector of AVX-512.
#ifndef HAVE_VBMI
#    define HAVE_VBMI 0
#endif

// v_dot_bf16(c, a, b) adds the products of pairs of bfloat16, and treats subnormal numbers as 0.
// Processors differ in whether they round in between (Intel's do), and in whether it is faster than
// v_fma (cpu/traits.h).
//   v_bf16_pairs(a, b)     rounds a to the lower and b to the upper halves of lanes
//   v_store_bf16(p, a, b)  stores both rounded, contiguously
//   v_has_subnormal(a, b)  true if one of their numbers is subnormal
#ifndef HAVE_BF16_DOT
#    define HAVE_BF16_DOT 0
#endif

// Products of matrices of bfloat16 in the tile registers of AMX.
#ifndef HAVE_AMX_BF16
#    define HAVE_AMX_BF16 0
#endif

// Products of matrices of bytes in Neon.
#ifndef HAVE_I8MM
#    define HAVE_I8MM 0
#endif

#endif // GB_CPU_KERNELS_ISA_H
