// level.tpl.h - one level: all templates, compiled with the vector operations of the including file, and the table of
// kernels.
//
// The including level_<name>.c defines LEVEL_KERNELS as gb_kernels_<name>, the only symbol of its
// object. All else is static. The linker must never keep a copy of an inline function that was
// compiled with the flags of this level, because all levels would call it.
#include <string.h>

#include "cpu/kernels/kernels.h"

#include "compiler.h"
#include "elementwise.tpl.h"
#include "convert.tpl.h"
#include "math.tpl.h"
#include "waves.tpl.h"
#include "reduce.tpl.h"
#include "rows.tpl.h"
#include "recurrent.tpl.h"
#include "resample.tpl.h"
#include "moves.tpl.h"
#include "b32.tpl.h"
#include "blocks.tpl.h"
#include "gemm.tpl.h"
#include "convolution.tpl.h"
#include "dots.tpl.h"
#include "rows_columns.tpl.h"
#include "unpack.tpl.h"
#include "grids.tpl.h"
#include "int8.tpl.h"
#include "dot_columns.tpl.h"
#include "dots_q8_0.tpl.h"
#include "weigh.tpl.h"
#include "columns.tpl.h"
#include "pairs.tpl.h"
#include "interleaved.tpl.h"
#include "limits.tpl.h"

// The sizes of callers' arrays (contracts).
static_assert(TILE_MR >= GB_GEMM_MR_MIN && TILE_MR <= GB_GEMM_MR_MAX && GB_GEMM_NR_MAX % TILE_NR == 0,
    "tiles of floats");
static_assert(BF16_MR >= GB_GEMM_MR_MIN && BF16_MR <= GB_BF16_MR_MAX && GB_GEMM_NR_MAX % BF16_NR == 0 &&
                  GB_BF16_STEP % BF16_STEP == 0,
    "tiles of pairs of bfloat16");
static_assert(!HAVE_AMX_BF16 || BF16_NR == BYTES_NR, "panels of bytes become panels of pairs");
static_assert(V_BYTES_MR >= GB_GEMM_MR_MIN && V_BYTES_MR <= GB_GEMM_MR_MAX && GB_GEMM_NR_MAX % BYTES_NR == 0,
    "tiles of bytes");
static_assert(DOTS_W <= GB_DOTS_W_MAX && RC_W == GB_ROWS_W && RC_X <= GB_ROWS_X_MAX && DQ_ROWS <= GB_Q8_0_ROWS_MAX,
    "rows and columns of few rows");

extern const struct gb_kernels LEVEL_KERNELS;

const struct gb_kernels LEVEL_KERNELS = {
#define GB_KERNEL(name, tolerance, contract) .name = name,
#include "kernels.def"
#undef GB_KERNEL
    .gemm_mr = TILE_MR,
    .gemm_nr = TILE_NR,
    .has_bf16_dots = HAVE_BF16_DOT,
    .bf16_tiles = HAVE_AMX_BF16,
    .bf16_mr = BF16_MR,
    .bf16_nr = BF16_NR,
    .bf16_step = BF16_STEP,
    .rough = HAVE_ROUGH_RECIPROCALS,
    .gemm_q8_mr = V_BYTES_MR,
    .gemm_q8_nr = BYTES_NR,
    .dots_w = DOTS_W,
    .rows_x = RC_X,
    .interleaved = HAVE_INTERLEAVED,
    .q8_0_rows = DQ_ROWS,
    .enter_tiles = enter_tiles,
    .leave_tiles = leave_tiles,
    .limit_f32 = limit_f32,
    .limit_bytes = limit_bytes,
    .limit_bf16 = limit_bf16,
    .limit_read = limit_read,
    .limit_copy = limit_copy,
};
