// q2_k.c - 256 elements in 84 bytes: 16 pairs of a scale and a minimum of 4 bits each, 2-bit levels, f16 d and dmin.
// y = d sc level - dmin mn.
#include "tensor/quant/kquant.h"

struct fit { // scales and minima of sub-blocks: exact, and as integers times d and dmin
    float scales[16], mins[16], d, dmin;
    uint8_t sc[16], mn[16], levels[GB_SUPER];
};

// Fits scales and minima of sub-blocks to their common steps, weighted by the sums of their
// elements' weights.
static void fit_with_importance(const float * x, const float * w, struct fit * f) {
    float sums[16] = { 0 };
    for (int s = 0; s < 16; s++) {
        const int i = 16 * s;
        f->scales[s] = gb_fit_affine(16, 3, x + i, w + i, &gb_k_importance_search, f->levels + i, &f->mins[s]);
        for (int k = i; k < i + 16; k++) {
            sums[s] += w[k];
        }
    }
    f->d = gb_fit_positive(16, 15, f->scales, sums, f->sc);
    f->dmin = gb_fit_positive(16, 15, f->mins, sums, f->mn);
}

// Weights |x| and absolute errors, as in the format's reference algorithm without importance.
static void fit_plain(const float * x, struct fit * f) {
    static const struct gb_fit_search search = { -0.5f, 0.1f, 15, true };
    float w[16];
    for (int s = 0; s < 16; s++) {
        for (int i = 0; i < 16; i++) {
            w[i] = fabsf(x[16 * s + i]);
        }
        f->scales[s] = gb_fit_affine(16, 3, x + 16 * s, w, &search, f->levels + 16 * s, &f->mins[s]);
    }
    f->d = gb_k_quantize_scales(16, 15, f->scales, f->sc);
    f->dmin = gb_k_quantize_scales(16, 15, f->mins, f->mn);
}

// The level nearest to a quotient, for small.h.
static int nearest(float v) { return gb_fit_round(v, 0, 3); }

static void quantize_block(const float * x, const float * importance, uint8_t * block) {
    struct fit f;
    float w[GB_SUPER];
    if (importance) {
        gb_k_importance(x, importance, 1, w);
        fit_with_importance(x, w, &f);
    } else {
        fit_plain(x, &f);
    }
    const bool small = gb_k_affine_is_small(f.d, f.dmin);
    if (small) {
        gb_k_affine_small(16, 16, 15, nearest, x, importance ? w : NULL, f.scales, f.mins, &f.d, &f.dmin, f.sc, f.mn,
            f.levels);
    }
    f.d = gb_store_f16(block + GB_AT(q2_k, d), f.d);
    f.dmin = gb_store_f16(block + GB_AT(q2_k, dmin), f.dmin);
    for (int s = 0; s < 16; s++) {
        block[GB_AT(q2_k, scales) + s] = (uint8_t) (f.sc[s] | f.mn[s] << 4);
    }
    if (!small) {
        gb_k_requantize_affine(16, 16, 3, x, f.d, f.dmin, f.sc, f.mn, f.levels);
    }
    gb_k_pack2(f.levels, block + GB_AT(q2_k, qs));
}

// A byte of scales has the scale in its lower half and the minimum in its upper half.
static void unpack_block(const uint8_t * block, struct gb_super * b) {
    b->d = gb_load_f16(block + GB_AT(q2_k, d));
    b->dmin = gb_load_f16(block + GB_AT(q2_k, dmin));
    b->affine = true;
    for (int s = 0; s < 16; s++) {
        b->scale[s] = block[GB_AT(q2_k, scales) + s] & 15;
        b->min[s] = block[GB_AT(q2_k, scales) + s] >> 4;
    }
    gb_k_unpack2(block + GB_AT(q2_k, qs), b->level);
}

GB_K_FORMAT(q2_k, GB_F16_MAX * 15 / 2)
