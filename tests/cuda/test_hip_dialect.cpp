// test_hip_dialect.cpp - the arithmetic of c/src/cuda/launch_hip.cuh, compiled for the host: instructions of AMD stand
// here as their manual (RDNA2 instruction set) has them, and results are compared with what the PTX manual and the
// formats of floats say. Only what the header computes itself: what hipcc makes of it, a device must show.
#include "cuda_test.h"


#    include "launch.cuh"

namespace {

// v_perm_b32: each byte of the selector names a byte of both words, 0 to 3 of the second.
uint32_t perm(uint32_t a, uint32_t b, uint32_t select) {
    const uint64_t both = b | (uint64_t) a << 32;
    uint32_t r = 0;
    for (int i = 0; i < 4; i++) {
        const uint32_t s = select >> 8 * i & 255;
        const uint32_t v = s < 8     ? (uint32_t) (both >> 8 * s & 255)
                           : s < 12  ? (both >> (16 * (s - 8) + 15) & 1 ? 255 : 0)
                           : s == 12 ? 0
                                     : 255;
        r |= v << 8 * i;
    }
    return r;
}

// v_dot4_i32_i8, without clamping.
int sdot4(int a, int b, int c, bool) {
    int64_t sum = c;
    for (int i = 0; i < 4; i++) {
        sum += (int8_t) (a >> 8 * i) * (int8_t) (b >> 8 * i);
    }
    return (int) (uint32_t) sum;
}

struct float16 { // as conversions of the hardware make them: the library's, which other tests check
    uint16_t bits;
    float16() = default;
    explicit float16(float x) : bits(ggml_fp32_to_fp16(x)) {}
    explicit operator float() const { return ggml_fp16_to_fp32(bits); }
};

} // namespace

#    define __shared__
#    define __builtin_amdgcn_perm perm
#    define __builtin_amdgcn_sdot4 sdot4
#    define __builtin_amdgcn_fence(...) (void) 0
#    define __builtin_amdgcn_wave_barrier() (void) 0
#    define __syncthreads() (void) 0
#    define __threadfence_system() (void) 0
#    define __ballot(x) ((uint64_t) (x))
#    define _Float16 float16

#    undef GB_CONST
#    undef GB_SHARED
#    undef GB_DYNAMIC_SHARED

namespace plain { // dot products written out, as for gfx1010
#    include "launch_hip.cuh"
}
#    undef GB_CUDA_LAUNCH_HIP_CUH
#    undef GB_NO_MMA
#    undef GB_CONST
#    undef GB_SHARED
#    undef GB_DYNAMIC_SHARED
#    define __gfx1030__
namespace dots {
#    include "launch_hip.cuh"
}

static uint32_t any_bits(void) { return (uint32_t) (test_random() >> 16); }

static uint32_t prmt(uint32_t a, uint32_t b, uint32_t select) { // as in the PTX manual
    const uint64_t both = a | (uint64_t) b << 32;
    uint32_t r = 0;
    for (int i = 0; i < 4; i++) {
        const uint32_t s = select >> 4 * i & 15, byte = (uint32_t) (both >> 8 * (s & 7) & 255);
        r |= (s < 8 ? byte : byte < 128 ? 0 : 255) << 8 * i;
    }
    return r;
}

static void bytes(void) {
    int wrong = 0;
    for (int i = 0; i < 20000; i++) {
        const uint32_t a = any_bits(), b = any_bits(), s = any_bits();
        wrong += plain::gb_prmt(a, b, s) != prmt(a, b, s);
        wrong += plain::gb_lop3_select(s, a, b) != ((a & s) | (b & ~s));
    }
    CHECK_INT(wrong, 0);
}

static void dot_products(void) {
    int wrong = 0;
    for (int i = 0; i < 20000; i++) {
        const uint32_t a = i == 0 ? 0x80808080u : any_bits(), b = i <= 1 ? 0x80808080u : any_bits();
        const int c = (int) (any_bits() >> 8);
        int with_sign = c, without = c;
        for (int j = 0; j < 4; j++) {
            with_sign += (int8_t) (a >> 8 * j) * (int8_t) (b >> 8 * j);
            without += (int) (a >> 8 * j & 255) * (int8_t) (b >> 8 * j);
        }
        wrong += plain::gb_dp4a((int) a, (int) b, c) != with_sign || dots::gb_dp4a((int) a, (int) b, c) != with_sign;
        wrong += plain::gb_dp4a_unsigned(a, (int) b, c) != without || dots::gb_dp4a_unsigned(a, (int) b, c) != without;
    }
    CHECK_INT(wrong, 0);
}

static void floats(void) {
    int wrong = 0;
    for (int i = 0; i < 200000; i++) {
        static const uint32_t edges[] = { 0, 0x80000000, 0x7f800000, 0xff800000, 0x7f800001, 0x7fffffff, 0xffffffff,
            0x3f808000, 0x3f818000, 0x7f7fffff, 1, 0x00008000, 0x3f801000, 0x3f803000 };
        const uint32_t bits = i < (int) (sizeof(edges) / sizeof(edges[0])) ? edges[i] : any_bits();
        const float x = __uint_as_float(bits);
        const uint16_t bf16 = plain::gb_float_to_bf16(x).bits;
        if (x != x) {
            wrong +=
                !isnan(plain::gb_to_float(plain::gb_bf16{ bf16 })) || !isnan(__uint_as_float(plain::gb_to_tf32(x)));
            continue;
        }
        wrong += bf16 != ggml_fp32_to_bf16(x).bits || plain::gb_to_tf32(x) != gb_to_tf32(x);
        wrong += __float_as_uint(plain::gb_to_float(plain::gb_bf16{ (uint16_t) (bits >> 16) })) != (bits >> 16 << 16);
        const uint32_t pair = plain::gb_pack_half2(x, -x);
        wrong += (pair & 0xffff) != ggml_fp32_to_fp16(x) || pair >> 16 != ggml_fp32_to_fp16(-x);
        wrong += __float_as_uint(plain::gb_unpack_half2(pair).y) != __float_as_uint(ggml_fp16_to_fp32(pair >> 16));
    }
    CHECK_INT(wrong, 0);
}

// What lies past `bytes` is zeros, and nothing past it is read: the source ends there.
template <int size> static void copies_of(void (*copy)(void *, const void *, int)) {
    for (int bytes = 0; bytes <= size; bytes++) {
        alignas(16) unsigned char to[size];
        unsigned char * from = NULL;
        REQUIRE(posix_memalign((void **) &from, 16, (size_t) (bytes > 0 ? bytes : 1)) == 0);
        memset(to, 0xff, sizeof(to));
        for (int i = 0; i < bytes; i++) {
            from[i] = (unsigned char) (i + 1);
        }
        copy(to, from, bytes);
        for (int i = 0; i < size; i++) {
            CHECK_INT(to[i], i < bytes ? i + 1 : 0);
        }
        free(from);
    }
}

static void copies(void) {
    copies_of<16>(plain::gb_cp_async_16);
    copies_of<8>(plain::gb_cp_async_8);
    copies_of<4>(plain::gb_cp_async_4);
}

TEST_MAIN(TEST(bytes), TEST(dot_products), TEST(floats), TEST(copies))
