// level_avx512bf16.c - the level for AVX-512 with VNNI, VBMI and BF16; compiled with the flags that cmake/levels.cmake
// gives it.
#include "vec_avx512.h"

#define LEVEL_KERNELS gb_kernels_avx512bf16
#include "cpu/kernels/level.tpl.h"
