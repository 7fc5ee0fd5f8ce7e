// q8_1.c - 32 elements in 40 bytes: f32 d, f32 d sum(q), 32 signed bytes; y = q d. The partner of formats with an
// offset in dot products.
#include "tensor/quant/legacy.h"

// Rounds the stored sum once, from the exact sum of integers. It is for the offset m of the other
// format: sum(m y) = m d sum(q).
static void quantize_block(const float * x, uint8_t * block) {
    int8_t q[GB_BLOCK];
    const float d = gb_quantize_bytes(x, q);
    int sum = 0;
    for (int i = 0; i < GB_BLOCK; i++) {
        sum += q[i];
    }
    const float s = d * (float) sum;
    memcpy(block + GB_AT(q8_1, d), &d, sizeof(d));
    memcpy(block + GB_AT(q8_1, sum), &s, sizeof(s));
    memcpy(block + GB_AT(q8_1, qs), q, sizeof(q));
}

static void to_float(const void * x, float * y, int k) {
    for (int i = 0; i < k; i += GB_BLOCK) {
        const uint8_t * block = (const uint8_t *) x + (size_t) (i / GB_BLOCK) * GB_BYTES(q8_1);
        float d;
        memcpy(&d, block + GB_AT(q8_1, d), sizeof(d));
        for (int j = 0; j < GB_BLOCK; j++) {
            y[i + j] = (float) (int8_t) block[GB_AT(q8_1, qs) + j] * d;
        }
    }
}

static void quantize(const float * src, void * dst, int64_t n_rows, int64_t n_per_row, const float * importance,
    int64_t * hist) {
    (void) importance;
    (void) hist;
    for (int64_t i = 0; i < n_rows * n_per_row / GB_BLOCK; i++) {
        quantize_block(src + i * GB_BLOCK, (uint8_t *) dst + i * GB_BYTES(q8_1));
    }
}

GB_ACTIVATION_FORMAT(q8_1, from_float)
