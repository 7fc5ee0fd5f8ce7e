// level_scalar.c - the portable level: plain C without an instruction set. Other levels are tested
// against it.
#include "vec_scalar.h"

#define LEVEL_KERNELS gb_kernels_scalar
#include "level.tpl.h"
