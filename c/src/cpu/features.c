// features.c - detects the instruction sets of the running processor, once, under gb_once. The
// sources are CPUID and XGETBV on x86-64, the kernel's capability words on arm64 Linux, and the
// compiler's target options elsewhere.
//
// An instruction set counts only if the system saves its registers across context switches (XCR0).
// Otherwise its instructions fault.
#include "cpu/features.h"

#include <stdint.h>
#include <string.h>

#include "base/env.h"
#include "base/thread.h"
#include "ggml-cpu.h"
#include "ggml.h"

#if defined(__x86_64__) || defined(_M_X64)
#    define ON_X86 1
#    ifdef _MSC_VER
#        include <intrin.h>
#    else
#        include <cpuid.h>
#    endif
#else
#    define ON_X86 0
#endif

static struct gb_cpu_features features;
static gb_once features_once = GB_ONCE_INIT;

#if ON_X86

enum { EAX, EBX, ECX, EDX };

// Leaf and subleaf as in the manuals of Intel and AMD. `regs` has the order of the enum above.
static void cpuid(uint32_t leaf, uint32_t subleaf, uint32_t regs[4]) {
#    ifdef _MSC_VER
    __cpuidex((int *) regs, (int) leaf, (int) subleaf);
#    else
    __cpuid_count(leaf, subleaf, regs[EAX], regs[EBX], regs[ECX], regs[EDX]);
#    endif
}

// XCR0: the register sets that the system saves. XGETBV exists only if CPUID's OSXSAVE bit is set.
static uint64_t enabled_state(void) {
#    ifdef _MSC_VER
    return _xgetbv(0);
#    else
    uint32_t low, high;
    __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    return (uint64_t) high << 32 | low;
#    endif
}

static bool bit(uint32_t word, int i) { return (word >> i & 1u) != 0; }

// Bit numbers are those of CPUID leaf 1. ymm: the system saves the 256-bit registers.
static void detect_leaf1(struct gb_cpu_features * f, const uint32_t * r, bool ymm) {
    f->sse3 = bit(r[ECX], 0);
    f->ssse3 = bit(r[ECX], 9);
    f->sse41 = bit(r[ECX], 19);
    f->sse42 = bit(r[ECX], 20);
    f->popcnt = bit(r[ECX], 23);
    f->avx = ymm && bit(r[ECX], 28);
    f->fma = ymm && bit(r[ECX], 12);
    f->f16c = ymm && bit(r[ECX], 29);
}

// Bit numbers are those of CPUID leaf 7, subleaves 0 and 1. Every other AVX-512 flag implies
// avx512f, because levels rely on the base set.
static void detect_leaf7(struct gb_cpu_features * f, bool ymm, bool zmm, bool tiles) {
    uint32_t r[4], r1[4] = { 0 };
    cpuid(7, 0, r);
    if (r[EAX] >= 1) {
        cpuid(7, 1, r1);
    }
    f->bmi1 = bit(r[EBX], 3);
    f->bmi2 = bit(r[EBX], 8);
    f->avx2 = ymm && bit(r[EBX], 5);
    f->avx_vnni = ymm && bit(r1[EAX], 4);
    f->avx512f = zmm && bit(r[EBX], 16);
    f->avx512dq = f->avx512f && bit(r[EBX], 17);
    f->avx512bw = f->avx512f && bit(r[EBX], 30);
    f->avx512vl = f->avx512f && bit(r[EBX], 31);
    f->avx512vbmi = f->avx512f && bit(r[ECX], 1);
    f->avx512vnni = f->avx512f && bit(r[ECX], 11);
    f->avx512bf16 = f->avx512f && bit(r1[EAX], 5);
    f->amx_tile = tiles && bit(r[EDX], 24) && gb_allow_tile_registers();
    f->amx_bf16 = f->amx_tile && bit(r[EDX], 22);
}

static void detect_machine(struct gb_cpu_features * f) {
    uint32_t r[4];
    cpuid(0, 0, r);
    const uint32_t last_leaf = r[EAX];
    cpuid(1, 0, r);
    const uint64_t state = bit(r[ECX], 27) ? enabled_state() : 0;
    const bool ymm = (state & 0x06) == 0x06; // halves of the vector registers: xmm, upper ymm
    const bool zmm = (state & 0xe6) == 0xe6; // and mask registers, upper zmm, zmm16 and above
    const bool tiles = (state & 0x60000) == 0x60000; // the tiles of AMX and their configuration
    detect_leaf1(f, r, ymm);
    if (last_leaf >= 7) {
        detect_leaf7(f, ymm, zmm, tiles);
    }
}

// A leaf of Intel, or a leaf of AMD in the same form, lists the caches.
size_t gb_cpu_cache_size(int level) {
    uint32_t r[4];
    cpuid(0, 0, r);
    const bool has_intels = r[EAX] >= 4;
    cpuid(0x80000000u, 0, r);
    const bool has_amds = r[EAX] >= 0x8000001du;
    for (int leaf = 0; leaf < 2; leaf++) {
        for (uint32_t i = 0; i < 8 && (leaf == 0 ? has_intels : has_amds); i++) {
            cpuid(leaf == 0 ? 4 : 0x8000001du, i, r);
            const uint32_t type = r[EAX] & 31; // 0: end, 1: data, 2: instructions, 3: unified
            if (type == 0) {
                break;
            }
            if (type != 2 && (int) (r[EAX] >> 5 & 7) == level) {
                const size_t ways = (r[EBX] >> 22) + 1, parts = (r[EBX] >> 12 & 0x3ff) + 1, line = (r[EBX] & 0xfff) + 1;
                return ways * parts * line * ((size_t) r[ECX] + 1);
            }
        }
    }
    return 0;
}

static char processor_name[49];
static gb_once name_once = GB_ONCE_INIT;

static void read_name(void) {
    uint32_t r[4];
    cpuid(0x80000000u, 0, r);
    for (uint32_t i = 0; i < 3 && r[EAX] >= 0x80000004u; i++) {
        uint32_t part[4];
        cpuid(0x80000002u + i, 0, part);
        memcpy(processor_name + 16 * i, part, 16);
    }
    size_t n = 0; // collapses runs of blanks and trims both ends
    for (const char * c = processor_name; *c != '\0'; c++) {
        if (*c != ' ' || (n > 0 && processor_name[n - 1] != ' ')) {
            processor_name[n++] = *c;
        }
    }
    processor_name[n > 0 && processor_name[n - 1] == ' ' ? n - 1 : n] = '\0';
}

const char * ggml_cpu_processor_name(void) {
    gb_call_once(&name_once, read_name);
    return processor_name;
}

#elif defined(__aarch64__) && defined(__linux__)

static void detect_machine(struct gb_cpu_features * f) {
    const unsigned long cap = gb_hwcap(), cap2 = gb_hwcap2();
    f->neon = (cap >> 1 & 1) != 0; // bit numbers: the kernel's arm64 ELF hwcaps
    f->arm_fma = f->neon;
    f->fp16 = (cap >> 10 & 1) != 0;
    f->dotprod = (cap >> 20 & 1) != 0;
    f->sve = (cap >> 22 & 1) != 0;
    f->i8mm = (cap2 >> 13 & 1) != 0;
    f->bf16 = (cap2 >> 14 & 1) != 0;
}

#else

static void detect_machine(struct gb_cpu_features * f) { // only instructions that the compiler may use anyway
#    ifdef __ARM_NEON
    f->neon = true;
#    endif
#    ifdef __ARM_FEATURE_FMA
    f->arm_fma = true;
#    endif
#    ifdef __ARM_FEATURE_FP16_VECTOR_ARITHMETIC
    f->fp16 = true;
#    endif
#    ifdef __ARM_FEATURE_DOTPROD
    f->dotprod = true;
#    endif
#    ifdef __ARM_FEATURE_MATMUL_INT8
    f->i8mm = true;
#    endif
    (void) f;
}

#endif

#if !ON_X86
size_t gb_cpu_cache_size(int level) {
    (void) level;
    return 0;
}

const char * ggml_cpu_processor_name(void) { return ""; }
#endif

static void detect(void) {
#ifdef __wasm_simd128__
    features.wasm_simd = true;
#endif
#ifdef __POWER9_VECTOR__
    features.vsx = true;
#endif
    detect_machine(&features);
}

const struct gb_cpu_features * gb_cpu_features(void) {
    gb_call_once(&features_once, detect);
    return &features;
}

// ------------------------------------------------------------------------------------------------------ public queries

// 1 if the running processor has the instruction set, else 0. For wasm_simd and vsx: 1 if the
// library was compiled for it.
int ggml_cpu_has_sse3(void) { return gb_cpu_features()->sse3; }
int ggml_cpu_has_ssse3(void) { return gb_cpu_features()->ssse3; }
int ggml_cpu_has_avx(void) { return gb_cpu_features()->avx; }
int ggml_cpu_has_avx2(void) { return gb_cpu_features()->avx2; }
int ggml_cpu_has_avx_vnni(void) { return gb_cpu_features()->avx_vnni; }
int ggml_cpu_has_avx512(void) { return gb_cpu_features()->avx512f; }
int ggml_cpu_has_avx512_vbmi(void) { return gb_cpu_features()->avx512vbmi; }
int ggml_cpu_has_avx512_vnni(void) { return gb_cpu_features()->avx512vnni; }
int ggml_cpu_has_fma(void) { return gb_cpu_features()->fma; }
int ggml_cpu_has_f16c(void) { return gb_cpu_features()->f16c; }
int ggml_cpu_has_neon(void) { return gb_cpu_features()->neon; }
int ggml_cpu_has_arm_fma(void) { return gb_cpu_features()->arm_fma; }
int ggml_cpu_has_fp16_va(void) { return gb_cpu_features()->fp16; }
int ggml_cpu_has_wasm_simd(void) { return gb_cpu_features()->wasm_simd; }
int ggml_cpu_has_vsx(void) { return gb_cpu_features()->vsx; }

// The build decides which libraries this library uses.
#ifdef GGML_USE_CUBLAS
#    define HAS_CUBLAS 1
#else
#    define HAS_CUBLAS 0
#endif

int ggml_cpu_has_cublas(void) { return HAS_CUBLAS; }
int ggml_cpu_has_metal(void) { return 0; }
int ggml_cpu_has_clblast(void) { return 0; }
int ggml_cpu_has_vulkan(void) { return 0; }
int ggml_cpu_has_sycl(void) { return 0; }
int ggml_cpu_has_gpublas(void) { return HAS_CUBLAS; }
int ggml_cpu_has_blas(void) { return HAS_CUBLAS; }
