// tile_i8mm.tpl.h - the sums of a tile of byte products with arm64's products of matrices of bytes (i8mm).
//
// One instruction multiplies two columns of weights by two rows of activations, eight terms of
// each: 32 products, twice as many as a dot product of bytes. An operand holds eight terms of one
// row, then eight of the next row. Panels of weights hold four terms of all columns, then the next
// four, so two steps are zipped together. A result holds 2 x 2 sums, column by column. At the end
// they are sorted into rows.

// As in int8.tpl.h. `steps`, of four terms each, are even. A single last row is multiplied together
// with the row after it in the panel.
static ALWAYS_INLINE void tile_sums_(int mr, bool wide, int steps, const int8_t * x, const uint8_t * w,
    const float * start, vi sum[V_BYTES_MR][V_BYTES_NV]) {
    const int pairs = (mr + 1) / 2;
    vi acc[V_BYTES_MR / 2][2 * V_BYTES_NV];
    (void) wide;
    UNROLL
    for (int i = 0; i < pairs; i++) {
        UNROLL
        for (int j = 0; j < 2 * V_BYTES_NV; j++) {
            acc[i][j] = vi_set(0);
        }
    }
    for (int p = 0; p < steps; p += 2) {
        vb wv[2 * V_BYTES_NV];
        UNROLL
        for (int j = 0; j < V_BYTES_NV; j++) {
            const uint32x4_t here = vreinterpretq_u32_u8(vb_load(w + 16 * j)),
                             next = vreinterpretq_u32_u8(vb_load(w + 4 * BYTES_NR + 16 * j));
            wv[2 * j] = vreinterpretq_u8_u32(vzip1q_u32(here, next));
            wv[2 * j + 1] = vreinterpretq_u8_u32(vzip2q_u32(here, next));
        }
        UNROLL
        for (int i = 0; i < pairs; i++) {
            const int8x16_t xv = vcombine_s8(vld1_s8(x + 64 * i + 4 * p), vld1_s8(x + 64 * i + 32 + 4 * p));
            UNROLL
            for (int j = 0; j < 2 * V_BYTES_NV; j++) {
                acc[i][j] = vusmmlaq_s32(acc[i][j], wv[j], xv);
            }
        }
        w += 8 * BYTES_NR;
    }
    UNROLL
    for (int i = 0; i < pairs; i++) {
        UNROLL
        for (int j = 0; j < V_BYTES_NV; j++) {
            const vi even = start == NULL ? vi_set(0) : v_bits(v_set(start[2 * i])),
                     odd = start == NULL ? even : v_bits(v_set(start[2 * i + 1]));
            sum[2 * i][j] = vi_add(even, vuzp1q_s32(acc[i][2 * j], acc[i][2 * j + 1]));
            sum[2 * i + 1][j] = vi_add(odd, vuzp2q_s32(acc[i][2 * j], acc[i][2 * j + 1]));
        }
    }
}
