// grid.h - the common part of the IQ formats: groups of 8 or 4 elements whose levels are a row of a codebook (a grid).
//
// Such a super-block has d, a small scale for each sub-block, and for each group the index of a
// row, with signs or an offset (struct gb_grid_block). Each format packs and unpacks these. grid.c
// expands and searches them.
#ifndef GB_TENSOR_QUANT_GRID_H
#define GB_TENSOR_QUANT_GRID_H

#include "tensor/quant/kquant.h"

// A codebook. Rows ascend, so the rows with one upper byte are neighbours.
struct gb_grid {
    const uint16_t * rows;  // grids.c; 8 codes of 2 bits or 4 codes of 4 bits, the first lowest; ascending
    const uint16_t * first; // of the rows with each upper byte, as grids.c says
    int bits;               // a code
    int n_levels;
    int low, step, extra;  // code c stands for low + step c, the last code for extra more
};

extern const struct gb_grid gb_grid_iq2_xxs, gb_grid_iq2_xs, gb_grid_iq2_s, gb_grid_iq3_xxs, gb_grid_iq3_s, gb_grid_iq1;
extern const uint16_t gb_grid_rows_iq2_xxs[256], gb_grid_rows_iq2_xs[512], gb_grid_rows_iq2_s[1024];
extern const uint16_t gb_grid_rows_iq3_xxs[256], gb_grid_rows_iq3_s[512], gb_grid_rows_iq1[2048];
extern const uint16_t gb_grid_first_iq2_xxs[82], gb_grid_first_iq2_xs[82], gb_grid_first_iq2_s[82];
extern const uint16_t gb_grid_first_iq3_xxs[65], gb_grid_first_iq3_s[65], gb_grid_first_iq1[82];

// An element is d unit (2 scale + 1) v. v is a level with a sign, or, in formats with offsets, a
// level plus 1 or minus 1.
struct gb_grid_format {
    const struct gb_grid * grid;
    int per_scale; // elements that share a scale: 16 or 32
    int n_scales;  // scales are 0 .. n_scales - 1
    float unit;
    bool even_signs;  // an even number of 8 signs is negative, so seven are stored
    int per_offset;  // elements that share an offset: 8 or 32; 0: levels are magnitudes and have signs
    float low, high; // trial scales make the largest magnitude of a sub-block low to high times the largest level
};

// An unpacked super-block: the result of read() and the argument of write().
struct gb_grid_block {
    float d;
    uint8_t scale[16]; // of each sub-block
    uint16_t row[64];  // of each group
    uint8_t signs[32]; // of 8 elements: bit j negates element j
    bool negative[32]; // of 8 elements: the offset is -1
};

// Writes d, scales and levels of b from g, for gb_k_dequantize and gb_k_dot. Does not set
// b->affine.
void gb_grid_expand(const struct gb_grid_format * f, const struct gb_grid_block * g, struct gb_super * b);

// d is rounded to f16. importance: NULL or 256 weights.
void gb_grid_quantize(const struct gb_grid_format * f, const float * x, const float * importance,
    struct gb_grid_block * g);

// gb_grid_sign_code reduces eight signs to the seven stored bits. gb_grid_signs expands them.
static inline uint8_t gb_grid_sign_code(uint8_t signs) { return signs & 127; }

// The eighth sign is the parity of the seven, so that an even number is negative.
static inline uint8_t gb_grid_signs(unsigned code) {
    unsigned parity = code ^ code >> 4;
    parity ^= parity >> 2;
    parity ^= parity >> 1;
    return (uint8_t) ((code & 127) | (parity & 1) << 7);
}

// Defines the block functions of a format from `format` and two functions: read(block, g) and write(g, block).
#define GB_GRID_BLOCKS                                                                       \
    static void quantize_block(const float * x, const float * importance, uint8_t * block) { \
        struct gb_grid_block g;                                                              \
        gb_grid_quantize(&format, x, importance, &g);                                        \
        write(&g, block);                                                                    \
    }                                                                                        \
    static void unpack_block(const uint8_t * block, struct gb_super * b) {                   \
        struct gb_grid_block g;                                                              \
        read(block, &g);                                                                     \
        gb_grid_expand(&format, &g, b);                                                      \
    }

// The constant, from the largest magnitude of an element for d = 1. Larger numbers are clipped.
#define GB_GRID_FORMAT(stem, largest, nan, nan_at) GB_SUPER_FORMAT(stem, GB_F16_MAX *(largest), true, nan, nan_at)

#endif // GB_TENSOR_QUANT_GRID_H
