// features.h - the instruction sets of the running processor. levels.def selects usable levels by
// them.
#ifndef GB_CPU_FEATURES_H
#define GB_CPU_FEATURES_H

#include <stdbool.h>
#include <stddef.h>

// A flag is set only if the instructions exist and the operating system saves the registers they
// use. levels.def uses the names of the members in its conditions.
struct gb_cpu_features {
    // x86-64
    bool sse3, ssse3, sse41, sse42, popcnt;
    bool avx, avx2, fma, f16c, bmi1, bmi2, avx_vnni;
    bool avx512f, avx512bw, avx512dq, avx512vl, avx512vbmi, avx512vnni, avx512bf16;
    bool amx_tile, amx_bf16;
    // arm64
    bool neon, arm_fma, fp16, dotprod, i8mm, bf16, sve;
    // decided when compiling, because there is no portable way to detect them
    bool wasm_simd, vsx;
};

const struct gb_cpu_features * gb_cpu_features(void); // detected once; thread-safe

// Bytes of the data cache of a level from 1 to 3, as the processor reports it. 0: not reported.
size_t gb_cpu_cache_size(int level);

#endif // GB_CPU_FEATURES_H
