// kernels.h - the kernel table and the levels that provide one.
//
// A level is a set of instruction-set flags for which all templates are compiled once, into one
// object with one exported symbol (gb_kernels_<name>). levels.def lists the levels in ascending
// order, beginning with the most portable. Each backend object stores the level that it uses.
#ifndef GB_CPU_KERNELS_KERNELS_H
#define GB_CPU_KERNELS_KERNELS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "cpu/kernels/contracts/bytes.h"
#include "cpu/kernels/contracts/convert.h"
#include "cpu/kernels/contracts/convolution.h"
#include "cpu/kernels/contracts/dense.h"
#include "cpu/kernels/contracts/elements.h"
#include "cpu/kernels/contracts/interleaved.h"
#include "cpu/kernels/contracts/recurrent.h"
#include "cpu/kernels/contracts/reduce.h"
#include "cpu/kernels/contracts/rows.h"
#include "tensor/quant/blocks.h"

// What unpack kernels expect of each format.
#define GB_FORMAT(id, stem, name, elements, bytes, group, zero, top, use, ...) \
    GB_IF_UNPACKED_##use(static_assert(GB_UNPACK_MAX % (elements) == 0 && ((group) == 16 || (group) == 32), name);)
#include "tensor/quant/formats.def"
#undef GB_FORMAT

struct gb_kernels {
#define GB_KERNEL(name, tolerance, contract) contract * name;
#include "kernels.def"
#undef GB_KERNEL
    int gemm_mr, gemm_nr; // tile of gemm_tile_f32, at most GB_GEMM_MR_MAX, GB_GEMM_NR_MAX
    // The level has an instruction for gemm_tile_bf16. The traits of the processor (cpu/traits.h)
    // tell whether it is faster than gemm_tile_f32.
    bool has_bf16_dots;
    bool bf16_tiles; // the instruction uses registers that hold a tile
    int bf16_mr, bf16_nr; // tile of gemm_tile_bf16, at most GB_BF16_MR_MAX, GB_GEMM_NR_MAX
    int bf16_step; // consecutive pairs of a row in its panels (contracts/dense.h)
    bool rough; // kernels use an approximate reciprocal instruction, whose results differ between processors
    int gemm_q8_mr, gemm_q8_nr; // tile of gemm_tile_q8
    int dots_w; // columns that dots_f32, dots_f16, dots_bf16 take per call, at most GB_DOTS_W_MAX
    bool interleaved; // the level has the kernels of contracts/interleaved.h
    int q8_0_rows; // maximum rows for which dots_q8_0 is faster, up to GB_Q8_0_ROWS_MAX; 0: it does nothing
    int rows_x; // rows that rows_columns_* take per call, at most GB_ROWS_X_MAX
    void (*enter_tiles)(void); // around gemm_tile_bf16 (contracts/dense.h)
    void (*leave_tiles)(void);
    int64_t (*limit_f32)(int64_t steps); // limits.tpl.h: for measuring
    int64_t (*limit_bytes)(int64_t steps);
    int64_t (*limit_bf16)(int64_t steps);
    void (*limit_read)(int64_t n, const float * x);
    void (*limit_copy)(int64_t n, float * y, const float * x);
};

// The kernel that packs rows of f32, f16 or bf16.
static inline gb_kernel_pack * gb_pack_of(const struct gb_kernels * k, enum ggml_type type) {
    return type == GGML_TYPE_F16 ? k->pack_f16 : type == GGML_TYPE_BF16 ? k->pack_bf16 : k->pack_f32;
}

struct gb_level {
    const char * name;
    bool (*usable)(void); // true if this processor has the level
    const struct gb_kernels * kernels;
};

// True if GGML_CPU_REPRODUCIBLE is set and not "0". A level then computes the same bits on every
// processor that has it: its kernels use no approximate reciprocals, whose results differ between
// processors. Products of bfloat16 differ in their rounding, too, which cpu/traits.h handles. Read
// once per process.
bool gb_kernels_reproducible(void);

int gb_level_count(void);
const struct gb_level * gb_level_at(int i);
// The highest usable level, at most GGML_CPU_LEVEL. Returns NULL and reports the error if the variable names no level
// (the message lists them), or if the level computes wrong numbers (self_check.h).
const struct gb_level * gb_level_default(void);
// Finds a level by name. Returns NULL and reports a name that is unknown or not usable here, or a wrong level.
const struct gb_level * gb_level_find(const char * name);
// The kernels of the default level, chosen once per process, for code without a backend. NULL as
// gb_level_default.
const struct gb_kernels * gb_kernels_default(void);

#endif // GB_CPU_KERNELS_KERNELS_H
