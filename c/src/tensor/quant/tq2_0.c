// tq2_0.c - 256 elements in 66 bytes: 2-bit levels, f16 d; y = d (level - 1). Quantizing writes levels 0 .. 2. Files
// may also have 3.
#include "tensor/quant/ternary.h"

static void quantize_block(const float * x, const float * importance, uint8_t * block) {
    (void) importance;
    uint8_t levels[GB_SUPER];
    const float d = gb_ternary_quantize(GB_SUPER, x, levels);
    gb_k_pack2(levels, block + GB_AT(tq2_0, qs));
    gb_store_f16(block + GB_AT(tq2_0, d), d);
}

// Two bits an element, in the order of gb_k_unpack2.
static void unpack_block(const uint8_t * block, struct gb_super * b) {
    gb_k_unpack2(block + GB_AT(tq2_0, qs), b->level);
    gb_ternary_center(block + GB_AT(tq2_0, d), b);
}

GB_K_FORMAT(tq2_0, GB_F16_MAX)
