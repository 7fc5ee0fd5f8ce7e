// blocks.h - the rows of formats.def for the compiler: each block as a struct of bytes, each number
// as a constant.
//
// The layout of a format is written once, as the fields of its row. Code that reads or writes
// blocks (tensor/quant, the kernels of the CPU, CUDA) names a field instead of counting bytes. All
// members are bytes, so no struct has padding, and a block may be at any address. For C and C++,
// host and device.
#ifndef GB_TENSOR_QUANT_BLOCKS_H
#define GB_TENSOR_QUANT_BLOCKS_H

#include <assert.h>
#include <stddef.h>
#include <stdint.h>

#include "ggml.h"

enum gb_use { // the purpose of a format
    GB_USE_WEIGHTS,
    GB_USE_IMPORTANCE,
    GB_USE_COARSE,
    GB_USE_ACTIVATIONS,
};

// Keeps its arguments in rows of weights, that is, of formats with an unpack kernel:
// GB_IF_UNPACKED_##use(...).
#define GB_IF_UNPACKED_WEIGHTS(...) __VA_ARGS__
#define GB_IF_UNPACKED_IMPORTANCE(...) __VA_ARGS__
#define GB_IF_UNPACKED_COARSE(...) __VA_ARGS__
#define GB_IF_UNPACKED_ACTIVATIONS(...)

#define GB_FORMAT(id, stem, name, elements, bytes, group, zero, top, use, partner, columns, rows, ...)         \
    struct gb_block_##stem {                                                                                   \
        uint8_t __VA_ARGS__;                                                                                   \
    };                                                                                                         \
    enum {                                                                                                     \
        gb_elements_of_##stem = elements,                                                                      \
        gb_group_of_##stem = group,                                                                            \
        gb_zero_of_##stem = zero,                                                                              \
        gb_top_of_##stem = top,                                                                                \
        gb_use_of_##stem = GB_USE_##use,                                                                       \
        gb_partner_of_##stem = GGML_TYPE_##partner                                                             \
    };                                                                                                         \
    static_assert(sizeof(struct gb_block_##stem) == (bytes), "the fields of " name " are its bytes");          \
    static_assert((elements) % (group) == 0 && (group) % 16 == 0, "the blocks of " name " have whole groups"); \
    static_assert((zero) >= 0 && (zero) <= (top) && (top) <= 255, "a level of " name " is a byte, zero one of them");
#include "tensor/quant/formats.def"
#undef GB_FORMAT

#define GB_ELEMENTS(stem) ((int) gb_elements_of_##stem)
#define GB_BYTES(stem) ((int) sizeof(struct gb_block_##stem))
#define GB_GROUP(stem) ((int) gb_group_of_##stem)
#define GB_PARTNER(stem) ((enum ggml_type) gb_partner_of_##stem)
#define GB_TOP(stem) ((int) gb_top_of_##stem)
#define GB_ZERO(stem) ((int) gb_zero_of_##stem)
#define GB_AT(stem, field) ((int) offsetof(struct gb_block_##stem, field))       // byte of a block
#define GB_SIZE(stem, field) ((int) sizeof(((struct gb_block_##stem *) 0)->field)) // bytes of a field

// A format with a fifth bit begins like the format without it, so one function handles the scales
// of both.
static_assert(GB_AT(q5_0, d) == GB_AT(q4_0, d), "Q4_0 and Q5_0 begin alike");
static_assert(GB_AT(q5_1, d) == GB_AT(q4_1, d) && GB_AT(q5_1, m) == GB_AT(q4_1, m), "Q4_1 and Q5_1 begin alike");
static_assert(GB_AT(q5_k, d) == GB_AT(q4_k, d) && GB_AT(q5_k, dmin) == GB_AT(q4_k, dmin) &&
                  GB_AT(q5_k, scales) == GB_AT(q4_k, scales),
    "Q4_K and Q5_K begin alike");

// --------------------------------------------------------------------------------------------------- levels by a table

// GB_VALUES_<name>(f): f(value) for each code of a format, with commas between. The tables of the
// CPU, of its kernels and of CUDA use these lists.
#define GB_VALUES_IQ4(f)                                                                                              \
    f(-127), f(-104), f(-83), f(-65), f(-49), f(-35), f(-22), f(-10), f(1), f(13), f(25), f(38), f(53), f(69), f(89), \
        f(113)
// e2m1, a float of 4 bits, times 2: MXFP4 and NVFP4
#define GB_VALUES_E2M1(f) \
    f(0), f(1), f(2), f(3), f(4), f(6), f(8), f(12), f(0), f(-1), f(-2), f(-3), f(-4), f(-6), f(-8), f(-12)
#define GB_VALUES_IQ1(f) f(-8), f(0), f(8)
#define GB_VALUES_IQ2(f) f(8), f(25), f(43)
#define GB_VALUES_IQ3_XXS(f) f(4), f(12), f(20), f(28), f(36), f(44), f(52), f(62)
#define GB_VALUES_IQ3_S(f) f(1), f(3), f(5), f(7), f(9), f(11), f(13), f(15)

#define GB_VALUE(v) v

#endif // GB_TENSOR_QUANT_BLOCKS_H
