// q8_k.c - 256 elements in 292 bytes: f32 d, 256 signed bytes, 16 sums of 16 of them; y = q d. The partner of
// super-blocks in dot products.
#include "tensor/quant/kquant.h"

// The element of largest magnitude becomes -127, so that d has its opposite sign. Blocks of zeros and of infinities
// become zeros.
static void quantize_block(const float * x, const float * importance, uint8_t * block) {
    (void) importance;
    const float extreme = gb_fit_extreme(GB_SUPER, x);
    memset(block, 0, GB_BYTES(q8_k));
    if (!(fabsf(extreme) >= 0x1p-119f) || isinf(extreme)) { // smaller: the factor would be infinite
        return;
    }
    const float factor = -127 / extreme, d = 1 / factor;
    int16_t sums[16] = { 0 };
    int8_t q[GB_SUPER];
    for (int e = 0; e < GB_SUPER; e++) {
        q[e] = (int8_t) (x[e] == x[e] ? gb_fit_round(factor * x[e], -128, 127) : 0);
        sums[e / 16] = (int16_t) (sums[e / 16] + q[e]);
    }
    memcpy(block + GB_AT(q8_k, d), &d, sizeof(d));
    memcpy(block + GB_AT(q8_k, qs), q, sizeof(q));
    memcpy(block + GB_AT(q8_k, sums), sums, sizeof(sums));
}

static void to_float(const void * x, float * y, int k) {
    for (int i = 0; i < k; i += GB_SUPER) {
        const uint8_t * block = (const uint8_t *) x + (size_t) (i / GB_SUPER) * GB_BYTES(q8_k);
        float d;
        memcpy(&d, block + GB_AT(q8_k, d), sizeof(d));
        for (int j = 0; j < GB_SUPER; j++) {
            y[i + j] = d * (float) (int8_t) block[GB_AT(q8_k, qs) + j];
        }
    }
}

static void quantize(const float * src, void * dst, int64_t n_rows, int64_t n_per_row, const float * importance,
    int64_t * hist) {
    (void) hist;
    gb_k_quantize_rows(src, dst, n_rows, n_per_row, GB_BYTES(q8_k), quantize_block, importance);
}

GB_ACTIVATION_FORMAT(q8_k, NULL)
