// level_neon.c - the level for arm64. Advanced SIMD with fused multiply-add is part of the base
// architecture, so the level needs no flags.
#include "vec_neon.h"

#define LEVEL_KERNELS gb_kernels_neon
#include "cpu/kernels/level.tpl.h"
