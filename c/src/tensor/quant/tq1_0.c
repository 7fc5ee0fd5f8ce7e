// tq1_0.c - 256 elements in 54 bytes: 52 bytes of base-3 digits, f16 d; y = d (digit - 1).
//
// A byte holds five digits (the last four bytes: four) as a fixed-point fraction: the number
// 0.digits in base 3, times 256, rounded up. If it is multiplied by 3, its overflow is the first
// digit. Neighbouring digits of a byte belong to elements that are a group's stride apart.
#include "tensor/quant/ternary.h"

static const struct group {
    int first, bytes, n_digits, element; // bytes [first, first + bytes) have the elements from `element` on
} groups[] = { { GB_AT(tq1_0, by32), 32, 5, 0 }, { GB_AT(tq1_0, by16), 16, 5, 160 }, { GB_AT(tq1_0, by4), 4, 4, 240 } };

enum { N_GROUPS = sizeof(groups) / sizeof(groups[0]) };

// Packs digits, first digit highest. number / 243 is the fraction. Because it is rounded up,
// multiplications by 3 recover each digit.
static void quantize_block(const float * x, const float * importance, uint8_t * block) {
    (void) importance;
    uint8_t levels[GB_SUPER];
    gb_store_f16(block + GB_AT(tq1_0, d), gb_ternary_quantize(GB_SUPER, x, levels));
    for (const struct group * g = groups; g < groups + N_GROUPS; g++) {
        for (int i = 0; i < g->bytes; i++) {
            int number = 0;
            for (int digit = 0; digit < 5; digit++) {
                number = 3 * number + (digit < g->n_digits ? levels[g->element + digit * g->bytes + i] : 0);
            }
            block[g->first + i] = (uint8_t) ((256 * number + 242) / 243);
        }
    }
}

// Each step removes the first digit, which is the integer part of three times the fraction. The
// fractional part continues.
static void unpack_block(const uint8_t * block, struct gb_super * b) {
    for (const struct group * g = groups; g < groups + N_GROUPS; g++) {
        for (int i = 0; i < g->bytes; i++) {
            uint8_t rest = block[g->first + i];
            for (int digit = 0; digit < g->n_digits; digit++) {
                b->level[g->element + digit * g->bytes + i] = (int8_t) (3 * rest >> 8);
                rest = (uint8_t) (3 * rest);
            }
        }
    }
    gb_ternary_center(block + GB_AT(tq1_0, d), b);
}

GB_K_FORMAT(tq1_0, GB_F16_MAX)
