// level_amx.c - the level for AMX with bfloat16 and all of avx512bf16; compiled with the flags that cmake/levels.cmake
// gives it.
#include "vec_avx512.h"

#define LEVEL_KERNELS gb_kernels_amx
#include "cpu/kernels/level.tpl.h"
