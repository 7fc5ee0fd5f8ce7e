// quantize.cuh - floats to quantized blocks of 32 elements, byte for byte as on the CPU
// (c/src/tensor/quant/<format>.c).
//
// A warp makes a block, and a lane has one element. Every lane adds up in the order of the CPU.
// Products are rounded before they are added (gb_rounded_product). The first of equal extremes
// counts. Scales that underflow in half precision are chosen again (c/src/tensor/quant/small.h). A
// block becomes NaN if it cannot represent one of its numbers (check.h).
//
// Formats of super-blocks are missing: their search takes too long for a copy by one warp.
#ifndef GB_CUDA_KERNELS_QUANTIZE_CUH
#define GB_CUDA_KERNELS_QUANTIZE_CUH

#include "cuda/kernels/elements.cuh"
#include "cuda/kernels/unpack.cuh"

enum { GB_QUANTIZE_WARPS = 8 };

GB_DEVICE uint16_t gb_half_bits_of(float x) { // NaN: quiet, with its sign, as in c/src/base/fp16.h
    return x != x ? (uint16_t) (0x7e00u | (gb_bits(x) >> 16 & 0x8000u)) : gb_half_bits(gb_float_to_half(x));
}

GB_DEVICE void gb_write_u16(uint8_t * p, uint16_t x) {
    p[0] = (uint8_t) x;
    p[1] = (uint8_t) (x >> 8);
}

GB_DEVICE uint16_t gb_written_u16(const uint8_t * p) { return (uint16_t) (p[0] | p[1] << 8); }

GB_DEVICE void gb_write_u32(uint8_t * p, uint32_t x) {
    gb_write_u16(p, (uint16_t) x);
    gb_write_u16(p + 2, (uint16_t) (x >> 16));
}

// The value of the first lane for which `is` holds. It must hold for at least one lane.
GB_DEVICE float gb_of_first(bool is, float x) { return gb_shfl(x, gb_lowest_bit(gb_ballot(is))); }

// The value of largest magnitude, with its sign. Ignores NaN; 0 without other values.
GB_DEVICE float gb_block_extreme(float x) {
    const float magnitude = x == x ? fabsf(x) : 0, largest = gb_warp_max(magnitude);
    const float found = gb_of_first(magnitude == largest, x);
    return largest > 0 ? found : 0;
}

// The smallest and largest value. NaN only if the first element is NaN.
GB_DEVICE void gb_block_range(float x, float & low, float & high) {
    const float first = gb_shfl(x, 0);
    high = gb_warp_max(x);
    low = -gb_warp_max(-x);
    low = gb_of_first(x == low || first != first, x);
    high = gb_of_first(x == high || first != first, x);
}

GB_DEVICE int gb_block_level(float v, int max) { // truncated; NaN: 0
    return !(v > 0) ? 0 : v >= (float) max ? max : (int) v;
}

GB_DEVICE void gb_write_nibbles(uint8_t * p, int level) {
    const int upper = gb_shfl_xor(level, 16), lane = gb_lane();
    if (lane < 16) {
        p[lane] = (uint8_t) ((level & 15) | upper << 4);
    }
}

GB_DEVICE void gb_write_fifths(uint8_t * p, int level) {
    const uint32_t bits = gb_ballot((level & 16) != 0);
    if (gb_lane() == 0) {
        gb_write_u32(p, bits);
    }
}

// ------------------------------------------------------------------------------------------------------- small numbers

[[maybe_unused]] GB_CONST int8_t gb_iq4_levels[16] = { GB_VALUES_IQ4(GB_VALUE) };

// The index of the value closest to half of `twice`; NaN: 0.
GB_DEVICE int gb_iq4_nearest(float twice) {
    int low = 0;
    for (int step = 8; step > 0; step /= 2) {
        if (twice >= (float) (gb_iq4_levels[low + step - 1] + gb_iq4_levels[low + step])) {
            low += step;
        }
    }
    return low;
}

// True if level n times the stored d is more than half a level off.
GB_DEVICE bool gb_scale_is_inexact(float d, float stored, int n) {
    return fabsf(stored) <= 65504.0f && 2 * (float) n * fabsf(stored - d) > fabsf(d);
}

// The level LOW .. HIGH that is nearest to v; for -127 .. 113 the nearest value of IQ4.
template <int LOW, int HIGH> GB_DEVICE int gb_nearest_level(float v) {
    if constexpr (LOW == -127 && HIGH == 113) {
        return gb_iq4_levels[gb_iq4_nearest(2 * v)];
    } else {
        return !(v > (float) LOW) ? LOW : v >= (float) HIGH ? HIGH : (int) rintf(v);
    }
}

template <int LOW, int HIGH> GB_DEVICE float gb_small_error(float x, float d, float m, int & level) {
    level = gb_nearest_level<LOW, HIGH>(d != 0 ? (x - m) / d : 0);
    const float e = gb_rounded_product(d, (float) level) + m - x;
    float error = 0;
    for (int i = 0; i < 32; i++) {
        const float other = gb_shfl(e, i);
        error += gb_rounded_product(other, other);
    }
    return error;
}

// The better of the two half floats around d, as bits, and the levels for it.
template <int LOW, int HIGH> GB_DEVICE uint16_t gb_small_scale(float x, float d, float m, int & level) {
    const uint16_t nearest = gb_half_bits_of(fabsf(d)), sign = d < 0 ? 0x8000 : 0;
    const float size = gb_half_bits_to_float(nearest);
    const uint16_t inward = (uint16_t) ((nearest - (size > fabsf(d))) | sign),
                   outward = (uint16_t) ((nearest + (size < fabsf(d))) | sign);
    int other;
    const float error = gb_small_error<LOW, HIGH>(x, gb_half_bits_to_float(inward), m, level);
    if (gb_small_error<LOW, HIGH>(x, gb_half_bits_to_float(outward), m, other) < error) {
        level = other;
        return outward;
    }
    return inward;
}

// --------------------------------------------------------------------------------------------------------- the formats

// Levels 0 .. 2 N - 1 with zero at N, for Q4_0 and Q5_0, which begin with the same members
// (blocks.h).
template <int N> GB_DEVICE int gb_symmetric_level(float x, uint8_t * block) {
    const float d = gb_block_extreme(x) / (float) -N, inverse = d != 0 ? 1 / d : 0;
    int level = gb_block_level(gb_rounded_product(x, inverse) + ((float) N + 0.5f), 2 * N - 1);
    uint16_t bits = gb_half_bits_of(d);
    if (gb_scale_is_inexact(d, gb_half_bits_to_float(bits), N)) { // the same for all lanes
        bits = gb_small_scale<-N, N - 1>(x, d, 0, level);
        level += N;
    }
    if (gb_lane() == 0) {
        gb_write_u16(block + GB_AT(q4_0, d), bits);
    }
    return level;
}

// Levels 0 .. N from the smallest to the largest, for Q4_1 and Q5_1, which begin with the same
// members (blocks.h).
template <int N> GB_DEVICE int gb_affine_level(float x, uint8_t * block) {
    float low, high;
    gb_block_range(x, low, high);
    const float d = (high - low) / (float) N, inverse = d != 0 ? 1 / d : 0;
    const uint16_t offset = gb_half_bits_of(low);
    int level = gb_block_level(gb_rounded_product(x - low, inverse) + 0.5f, N);
    uint16_t bits = gb_half_bits_of(d);
    if (gb_scale_is_inexact(d, gb_half_bits_to_float(bits), N)) {
        bits = gb_small_scale<0, N>(x, d, gb_half_bits_to_float(offset), level);
    }
    if (gb_lane() == 0) {
        gb_write_u16(block + GB_AT(q4_1, d), bits);
        gb_write_u16(block + GB_AT(q4_1, m), offset);
    }
    return level;
}

// Signed bytes, rounded half away from zero, NaN: 0.
GB_DEVICE int gb_byte_level(float x, float & d) {
    d = gb_warp_max(x == x ? fabsf(x) : 0) / 127;
    const float inverse = d >= 0x1p-126f ? 1 / d : 0;
    float v = gb_rounded_product(x, inverse);
    v = v == v ? gb_max(-127.0f, gb_min(127.0f, v)) : 0;
    const int whole = (int) v;
    const float rest = v - (float) whole; // exact
    return whole + (rest >= 0.5f) - (rest <= -0.5f);
}

[[maybe_unused]] GB_CONST int8_t gb_e2m1_levels[16] = { GB_VALUES_E2M1(GB_VALUE) };

// The weighted sums of x v and v v over the values v closest to x / scale. Has four partial sums, as the
// CPU does.
GB_DEVICE void gb_iq4_sums(const float * x, const float * w, float scale, float & wxv, float & wvv) {
    const float inverse = 2 / scale;
    float p[4] = { 0, 0, 0, 0 }, q[4] = { 0, 0, 0, 0 };
    for (int i = 0; i < 32; i += 4) {
        GB_UNROLL for (int k = 0; k < 4; k++) {
            const float v = (float) gb_iq4_levels[gb_iq4_nearest(gb_rounded_product(x[i + k], inverse))];
            p[k] += gb_rounded_product(gb_rounded_product(w[i + k], x[i + k]), v);
            q[k] += gb_rounded_product(gb_rounded_product(w[i + k], v), v);
        }
    }
    wxv = p[0] + p[1] + p[2] + p[3];
    wvv = q[0] + q[1] + q[2] + q[3];
}

// The best of 38 scales. A lane tries one or two. x and w: of the warp, in shared memory.
GB_DEVICE float gb_iq4_fit(const float * x, const float * w, float extreme) {
    enum { TRIALS = 38 };
    float wxv[2], wvv[2], scale = 0, best = 0;
    if (!(fabsf(extreme) > 1e-30f) || fabsf(extreme) == INFINITY) {
        return 0; // the whole warp returns
    }
    GB_UNROLL for (int i = 0; i < 2; i++) {
        const int t = gb_min(gb_lane() + 32 * i, TRIALS - 1);
        const float end = t % 2 ? -127.0f : 113.0f, part = 0.82f + gb_rounded_product(0.02f, (float) (t / 2));
        gb_iq4_sums(x, w, extreme / gb_rounded_product(end, part), wxv[i], wvv[i]);
    }
    for (int t = 0; t < TRIALS; t++) {
        const float xv = gb_shfl(wxv[t / 32], t % 32), vv = gb_shfl(wvv[t / 32], t % 32);
        if (vv > 0 && gb_rounded_product(xv, xv) > gb_rounded_product(best, vv)) {
            scale = xv / vv;
            best = gb_rounded_product(scale, xv);
        }
    }
    return scale;
}

// shared: 64 floats of the warp.
GB_DEVICE void gb_quantize_iq4_nl(float x, uint8_t * block, float * shared) {
    const int lane = gb_lane();
    gb_sync_warp(); // all lanes have read the previous block
    shared[lane] = x;
    gb_sync_warp();
    float squares = 0;
    for (int i = 0; i < 32; i++) {
        squares += gb_rounded_product(shared[i], shared[i]);
    }
    shared[32 + lane] = sqrtf(squares / 32 + gb_rounded_product(x, x));
    gb_sync_warp();
    const float wanted = gb_iq4_fit(shared, shared + 32, gb_block_extreme(x));
    uint16_t scale = gb_half_bits_of(wanted);
    if (gb_scale_is_inexact(wanted, gb_half_bits_to_float(scale), 8)) {
        int unused;
        scale = gb_small_scale<-127, 113>(x, wanted, 0, unused);
    }
    const float d = gb_half_bits_to_float(scale);
    if (lane == 0) {
        gb_write_u16(block + GB_AT(iq4_nl, d), scale);
    }
    gb_write_nibbles(block + GB_AT(iq4_nl, qs), gb_iq4_nearest(d != 0 ? 2 * (x / d) : 0));
}

// The scale is the power of two that brings the largest magnitude into [4, 8).
GB_DEVICE void gb_quantize_mxfp4(float x, uint8_t * block) {
    const float largest = fabsf(gb_block_extreme(x));
    const float e = largest > 0 ? floorf((float) log2((double) largest)) - 2 + 127 : 0;
    const int exponent = e < 0 ? 0 : e > 254 ? 254 : (int) e;
    const float d = gb_bits_to_float(exponent < 2 ? 0x200000u << exponent : (uint32_t) (exponent - 1) << 23);
    float error = fabsf(x);
    int level = 0;
    for (int i = 1; i < 16; i++) { // the first of equals; NaN: 0
        const float distance = fabsf(gb_rounded_product(d, (float) gb_e2m1_levels[i]) - x);
        if (distance < error) {
            error = distance;
            level = i;
        }
    }
    if (gb_lane() == 0) {
        block[GB_AT(mxfp4, e)] = (uint8_t) exponent;
    }
    gb_write_nibbles(block + GB_AT(mxfp4, qs), level);
}

// Formats that devices make; `shared`: 64 floats of the warp.
template <int TYPE> struct gb_quantizer {
    static constexpr bool exists = false;
};

// Begins the definition of a format's block.
#define GB_QUANTIZER(id)                                                \
    template <> struct gb_quantizer<GGML_TYPE_##id> {                   \
        static constexpr bool exists = true;                            \
        static GB_METHOD void block(float x, uint8_t * block, float *); \
    };                                                                  \
    GB_METHOD void gb_quantizer<GGML_TYPE_##id>::block(float x, uint8_t * block, [[maybe_unused]] float * shared)

GB_QUANTIZER(Q4_0) { gb_write_nibbles(block + GB_AT(q4_0, qs), gb_symmetric_level<GB_ZERO(q4_0)>(x, block)); }

GB_QUANTIZER(Q5_0) {
    const int level = gb_symmetric_level<GB_ZERO(q5_0)>(x, block);
    gb_write_fifths(block + GB_AT(q5_0, qh), level);
    gb_write_nibbles(block + GB_AT(q5_0, qs), level);
}

GB_QUANTIZER(Q4_1) { gb_write_nibbles(block + GB_AT(q4_1, qs), gb_affine_level<GB_TOP(q4_1)>(x, block)); }

GB_QUANTIZER(Q5_1) {
    const int level = gb_affine_level<GB_TOP(q5_1)>(x, block);
    gb_write_fifths(block + GB_AT(q5_1, qh), level);
    gb_write_nibbles(block + GB_AT(q5_1, qs), level);
}

GB_QUANTIZER(Q8_0) {
    float d;
    int level = gb_byte_level(x, d);
    uint16_t bits = gb_half_bits_of(d);
    if (gb_scale_is_inexact(d, gb_half_bits_to_float(bits), 127)) {
        bits = gb_small_scale<-127, 127>(x, d, 0, level);
    }
    if (gb_lane() == 0) {
        gb_write_u16(block + GB_AT(q8_0, d), bits);
    }
    block[GB_AT(q8_0, qs) + gb_lane()] = (uint8_t) level;
}

GB_QUANTIZER(Q8_1) {
    float d;
    const int level = gb_byte_level(x, d), sum = gb_warp_sum(level);
    if (gb_lane() == 0) {
        gb_write_u32(block + GB_AT(q8_1, d), gb_bits(d));
        gb_write_u32(block + GB_AT(q8_1, sum), gb_bits(gb_rounded_product(d, (float) sum)));
    }
    block[GB_AT(q8_1, qs) + gb_lane()] = (uint8_t) level;
}

GB_QUANTIZER(IQ4_NL) { gb_quantize_iq4_nl(x, block, shared); }

GB_QUANTIZER(MXFP4) { gb_quantize_mxfp4(x == x ? gb_max(-0x1.fffffep127f, gb_min(0x1.fffffep127f, x)) : 0, block); }

#undef GB_QUANTIZER

// A block becomes NaN if its scales cannot represent one of its numbers. The scale is at byte 0; m
// is where Q4_1 has it.
static_assert(GB_AT(q4_0, d) == 0 && GB_AT(q4_1, d) == 0 && GB_AT(q5_0, d) == 0 && GB_AT(q5_1, d) == 0 &&
                  GB_AT(q8_0, d) == 0 && GB_AT(q8_1, d) == 0 && GB_AT(iq4_nl, d) == 0,
    "blocks begin with d");
template <int TYPE> GB_DEVICE void gb_check_block(float x, uint8_t * block, int bytes) {
    if constexpr (TYPE != GGML_TYPE_MXFP4) {
        constexpr bool WIDE = TYPE == GGML_TYPE_Q8_1, AFFINE = gb_format<TYPE>::offsets;
        const auto is_finite = [](float v) { return fabsf(v) < INFINITY; };
        gb_sync_warp(); // the scales are written
        bool bad = gb_ballot(!is_finite(x)) != 0;
        if constexpr (WIDE) {
            bad = bad ||
                  !is_finite(gb_rounded_product(127,
                      gb_bits_to_float((uint32_t) gb_written_u16(block) | (uint32_t) gb_written_u16(block + 2) << 16)));
        } else {
            bad = bad || (gb_written_u16(block) & 0x7c00) == 0x7c00 ||
                  (AFFINE && (gb_written_u16(block + GB_AT(q4_1, m)) & 0x7c00) == 0x7c00);
        }
        if constexpr (TYPE == GGML_TYPE_IQ4_NL) { // the sums for its scale may have overflowed
            const float most = gb_block_extreme(x), d = gb_half_bits_to_float(gb_written_u16(block));
            const float held =
                gb_rounded_product(d, (float) gb_iq4_levels[gb_iq4_nearest(d != 0 ? 2 * (most / d) : 0)]);
            bad = bad || (fabsf(most) > 80 * 65504.0f && !(fabsf(held - most) <= fabsf(most) / 2));
        }
        if (bad) {
            gb_sync_warp(); // the scales have been read
            for (int i = gb_lane(); i < bytes; i += 32) {
                block[i] = WIDE ? (i == 2 ? 0xc0 : i == 3 ? 0x7f : 0) : i == 1 ? 0x7e : 0;
            }
        }
    }
}

// Block k of y, of `bytes`, from elements 32 k ... of x. Rows of both are whole blocks.
template <int TYPE>
GB_KERNEL GB_BOUNDS(GB_QUANTIZE_WARPS * GB_WARP, 1)
    gb_copy_quantizing(gb_view y, gb_view x, int bytes, int64_t n_blocks) {
    gb_wait_for_earlier();
    GB_SHARED(float, shared, GB_QUANTIZE_WARPS * 64);
    const int warp = (int) threadIdx.x / GB_WARP;
    const int64_t k = (int64_t) blockIdx.x * GB_QUANTIZE_WARPS + warp, per_row = y.ne[0] / 32;
    if (k >= n_blocks) {
        return; // the whole warp returns; no barrier of the block follows
    }
    const gb_index from = gb_unravel<uint64_t>((uint64_t) k * 32, x.ne);
    const gb_index to = gb_unravel_row<uint64_t>((uint64_t) (k / per_row), y.ne);
    const float value = gb_get(x.type, gb_at(x, from) + gb_lane() * x.nb[0]);
    uint8_t * block = (uint8_t *) gb_at(y, to) + k % per_row * bytes;
    gb_quantizer<TYPE>::block(value, block, shared + warp * 64);
    gb_check_block<TYPE>(value, block, bytes);
}

#endif // GB_CUDA_KERNELS_QUANTIZE_CUH
