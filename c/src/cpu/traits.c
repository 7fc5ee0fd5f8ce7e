// traits.c - measures the traits of this processor (traits.h).
//
// The probe alternates between the loops of kernels/limits.tpl.h, in slices of some microseconds,
// and keeps the best rate of each. Other processes on the core disturb only some slices. A change
// of the clock rate affects both sides of a ratio. The probe takes longer if a ratio is between two
// powers of two.
#include "cpu/traits.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/env.h"
#include "base/mem.h"
#include "base/params.h"
#include "base/thread.h"
#include "cpu/features.h"
#include "cpu/limits.h"
#include "ggml-cpu.h"

#define SLICE_STEPS 256 // steps of one call of a loop of kernels/limits.tpl.h
#define ROUNDS 12 // least number of rounds
#define PROBE_NS 1500000 // after ROUNDS rounds, the probe ends at this time
#define CLEAR 0.3 // largest distance of log2 of a clear ratio from a whole number
#define MOST 1000 // largest rate that users may give

static const struct {
    const char * name;
    bool bits; // results depend on it: GGML_CPU_REPRODUCIBLE makes it 0
    bool size; // true: bytes; false: a rate
    const char * meaning; // description for users
} facts[GB_TRAIT_COUNT] = {
    [GB_TRAIT_BF16_DOTS] = { "bf16_dots", true, false,
        "rate of bfloat16 products divided by that of f32 multiply-adds; above 1, batches use BF16 weights as pairs of "
        "bfloat16, else the weights are widened to f32; above byte_dots, quantized weights become such pairs, too, at "
        "level amx" },
    [GB_TRAIT_BYTE_DOTS] = { "byte_dots", true, false,
        "rate of byte products divided by that of f32 multiply-adds; below bf16_dots, batches use quantized weights as "
        "pairs of bfloat16 at level amx, else as bytes" },
    [GB_TRAIT_WIDE] = { "wide", false, false,
        "rate of f32 multiply-adds in the level's vectors divided by that in vectors of 256 bits; nothing depends on "
        "it" },
    [GB_TRAIT_L1] = { "l1", false, true, "bytes of the first-level cache for data; nothing depends on it" },
    [GB_TRAIT_L2] = { "l2", false, true, "bytes of the second-level cache; nothing depends on it" },
    [GB_TRAIT_L3] = { "l3", false, true, "bytes of the third-level cache; nothing depends on it" },
};

static void set(struct gb_cpu_traits * t, enum gb_cpu_trait i, double value, enum gb_cpu_trait_source source) {
    t->value[i] = value;
    t->source[i] = value > 0 || source >= GB_TRAIT_GIVEN ? source : GB_TRAIT_UNKNOWN;
}

// --------------------------------------------------------------------------------------------------------------- probe

double gb_cpu_trait_class(double ratio) { return ratio > 0 && isfinite(ratio) ? exp2(floor(log2(ratio) + 0.5)) : 0; }

typedef int64_t loop(int64_t steps); // returns operations

// *best: operations per nanosecond. Does nothing if `run` is NULL.
static void run_slice(loop * run, double * best) {
    const int64_t start = run != NULL ? gb_time_ns() : 0;
    if (run != NULL) {
        const double ops = (double) run(SLICE_STEPS);
        const int64_t ns = gb_time_ns() - start;
        *best = GB_MAX(*best, ops / (double) GB_MAX(ns, 1));
    }
}

static bool is_clear(double ratio) {
    const double log_ratio = ratio > 0 ? log2(ratio) : 0;
    return fabs(log_ratio - floor(log_ratio + 0.5)) <= CLEAR;
}

// The multiply-add loop of the level with vectors of 256 bits. NULL if that level is not usable.
static loop * narrow_loop(void) {
    for (int i = 0; i < gb_level_count(); i++) {
        if (strcmp(gb_level_at(i)->name, "avx2") == 0 && gb_level_at(i)->usable()) {
            return gb_level_at(i)->kernels->limit_f32;
        }
    }
    return NULL;
}

static void measure_rates(const struct gb_kernels * k, struct gb_cpu_traits * t) {
    enum { F32, BF16, BYTES, NARROW, N };
    loop * const loops[N] = { k->limit_f32, k->has_bf16_dots ? k->limit_bf16 : NULL, k->limit_bytes, narrow_loop() };
    double best[N] = { 0 };
    const int64_t start = gb_time_ns();
    for (int round = 0; round < ROUNDS || gb_time_ns() - start < PROBE_NS; round++) {
        for (int i = 0; i < N; i++) {
            run_slice(loops[i], &best[i]);
        }
        if (round + 1 >= ROUNDS && is_clear(best[BF16] / best[F32]) && is_clear(best[BYTES] / best[F32])) {
            break;
        }
    }
    set(t, GB_TRAIT_BF16_DOTS, gb_cpu_trait_class(best[BF16] / best[F32]), GB_TRAIT_MEASURED);
    set(t, GB_TRAIT_BYTE_DOTS, gb_cpu_trait_class(best[BYTES] / best[F32]), GB_TRAIT_MEASURED);
    set(t, GB_TRAIT_WIDE, best[NARROW] > 0 ? gb_cpu_trait_class(best[F32] / best[NARROW]) : 0, GB_TRAIT_MEASURED);
}

// ------------------------------------------------------------------------------------------------------- given values

static int trait_of(const char * name) { // -1: unknown name
    for (int i = 0; i < GB_TRAIT_COUNT; i++) {
        if (strcmp(facts[i].name, name) == 0) {
            return i;
        }
    }
    return -1;
}

static bool read_value(enum gb_cpu_trait i, const char * text, double * value) {
    if (facts[i].size) {
        size_t bytes = 0;
        const bool read = gb_params_size(text, &bytes);
        *value = (double) bytes;
        return read;
    }
    const char * end = text;
    return gb_number_read(text, value, &end) && *end == '\0' && *value <= MOST;
}

static void name_traits(char message[GB_ERROR_SIZE], int length) { // appends "bf16_dots, byte_dots"
    for (int i = 0; i < GB_TRAIT_COUNT && length < GB_ERROR_SIZE; i++) {
        length +=
            snprintf(message + length, (size_t) (GB_ERROR_SIZE - length), "%s%s", i > 0 ? ", " : "", facts[i].name);
    }
}

bool gb_cpu_traits_parse(const char * text, struct gb_cpu_traits * traits, char message[GB_ERROR_SIZE]) {
    struct gb_param param;
    enum gb_params_next next;
    const char * rest = text;
    while ((next = gb_params_next(&rest, &param)) == GB_PARAMS_GOOD) {
        const int i = trait_of(param.key);
        double value = 0;
        if (i < 0) {
            name_traits(message,
                snprintf(message, GB_ERROR_SIZE, "GGML_CPU_TRAITS names '%s', must be one of ", param.key));
            return false;
        }
        if (!read_value((enum gb_cpu_trait) i, param.value, &value)) {
            snprintf(message, GB_ERROR_SIZE, "GGML_CPU_TRAITS has '%s=%.60s', needs %s", param.key, param.value,
                facts[i].size ? "a number of bytes, as in 2M" : "a number from 0 to 1000");
            return false;
        }
        set(traits, (enum gb_cpu_trait) i, value, GB_TRAIT_GIVEN);
    }
    if (next == GB_PARAMS_BAD) {
        snprintf(message, GB_ERROR_SIZE, "GGML_CPU_TRAITS is '%.100s', must read name=value,name=value", text);
    }
    return next == GB_PARAMS_END;
}

static gb_once given_once = GB_ONCE_INIT;
static struct gb_cpu_traits given; // from GGML_CPU_TRAITS
static char wrong[GB_ERROR_SIZE]; // the error in GGML_CPU_TRAITS; "": none

static void read_environment(void) {
    if (!gb_cpu_traits_parse(gb_env_get("GGML_CPU_TRAITS"), &given, wrong)) {
        given = (struct gb_cpu_traits){ 0 };
    }
}

bool gb_cpu_traits_check(void) {
    gb_call_once(&given_once, read_environment);
    GB_FAIL_IF_RETURNING(wrong[0] != '\0', false, GGML_STATUS_INVALID_ARGUMENT, "%s", wrong);
    return true;
}

// ---------------------------------------------------------------------------------------------------------- all levels

static void find_out(const struct gb_kernels * kernels, struct gb_cpu_traits * t) {
    gb_call_once(&given_once, read_environment);
    measure_rates(kernels, t);
    for (int level = 1; level <= 3; level++) {
        set(t, (enum gb_cpu_trait)(GB_TRAIT_L1 + level - 1), (double) gb_cpu_cache_size(level), GB_TRAIT_STATED);
    }
    for (int i = 0; i < GB_TRAIT_COUNT; i++) {
        if (given.source[i] == GB_TRAIT_GIVEN) {
            set(t, (enum gb_cpu_trait) i, given.value[i], GB_TRAIT_GIVEN);
        }
        if (facts[i].bits && gb_kernels_reproducible()) {
            set(t, (enum gb_cpu_trait) i, 0, GB_TRAIT_FIXED);
        }
    }
}

// One entry for each level, in the order of gb_level_at().
enum {
#define GB_LEVEL(level, condition) AT_##level,
#include "cpu/kernels/levels.def"
#undef GB_LEVEL
    N_LEVELS
};

static struct gb_cpu_traits of_level[N_LEVELS];

#define GB_LEVEL(level, condition) \
    static void find_out_##level(void) { find_out(gb_level_at(AT_##level)->kernels, &of_level[AT_##level]); }
#include "cpu/kernels/levels.def"
#undef GB_LEVEL

static struct {
    gb_once once;
    void (*find_out)(void);
} finders[N_LEVELS] = {
#define GB_LEVEL(level, condition) { GB_ONCE_INIT, find_out_##level },
#include "cpu/kernels/levels.def"
#undef GB_LEVEL
};

const struct gb_cpu_traits * gb_cpu_traits_of(const struct gb_kernels * kernels) {
    static const struct gb_cpu_traits unknown = { { 0 }, { GB_TRAIT_UNKNOWN } };
    for (int i = 0; i < N_LEVELS; i++) {
        if (gb_level_at(i)->kernels == kernels) {
            gb_call_once(&finders[i].once, finders[i].find_out);
            return &of_level[i];
        }
    }
    return &unknown; // kernels of no level
}

// -------------------------------------------------------------------------------------------------------------- public

bool ggml_cpu_is_reproducible(void) { return gb_kernels_reproducible(); }

int ggml_cpu_trait_count(void) { return GB_TRAIT_COUNT; }

enum ggml_status ggml_cpu_get_trait(int i, const char * level, struct ggml_cpu_trait * trait) {
    static const char * const sources[] = { [GB_TRAIT_UNKNOWN] = "unknown",
        [GB_TRAIT_MEASURED] = "measured",
        [GB_TRAIT_STATED] = "stated by the processor",
        [GB_TRAIT_GIVEN] = "given by GGML_CPU_TRAITS",
        [GB_TRAIT_FIXED] = "fixed by GGML_CPU_REPRODUCIBLE" };
    GB_CHECK_ARG(trait);
    GB_FAIL_IF(i < 0 || i >= GB_TRAIT_COUNT, GGML_STATUS_INVALID_ARGUMENT, "%s: argument 'i' needs 0 to %d, has %d",
        __func__, GB_TRAIT_COUNT - 1, i);
    const struct gb_level * found = level != NULL ? gb_level_find(level) : gb_level_default();
    if (found == NULL || !gb_cpu_traits_check()) {
        return ggml_last_status();
    }
    const struct gb_cpu_traits * t = gb_cpu_traits_of(found->kernels);
    *trait = (struct ggml_cpu_trait){ facts[i].name, t->value[i], sources[t->source[i]], facts[i].meaning };
    return GGML_STATUS_SUCCESS;
}
