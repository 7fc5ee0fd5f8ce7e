// dot_columns.tpl.h - columns of quantized weights, read in place, times a few rows in bytes.
//
// The levels of a group of 32 terms stay in registers: nothing is unpacked to memory. Eight groups
// are computed together: their scales are one vector, which is multiplied by the scales of each row.
// Levels are unsigned, with minima m as in unpack.tpl.h, or signed, without minima. A result depends
// on k alone, not on the other rows or columns.
//
// Levels without a body here unpack first (dot_q8). Those of AVX-512 have interleaved.tpl.h.

#if V_ISA_AVX2
#    include "x86/dot_nibbles_avx2.tpl.h"
#    include "x86/dot_columns_avx2.tpl.h"
#else
static bool dot_columns_q8(int type, const struct gb_dot_columns_q8 * p) {
    (void) type, (void) p;
    return false;
}
#endif
