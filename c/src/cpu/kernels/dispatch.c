// dispatch.c - chooses the level whose kernels run.
//
// The levels come from levels.def in ascending order, so the best level is the last usable one.
// GGML_CPU_LEVEL limits the choice to the best usable level that is not above the named one. The
// choice is made when a CPU backend is made, and by callers that name a level.
#include <string.h>

#include "base/env.h"
#include "base/status.h"
#include "base/thread.h"
#include "cpu/features.h"
#include "cpu/kernels/kernels.h"
#include "cpu/kernels/self_check.h"
#include "ggml-cpu.h"

#define GB_LEVEL(level, condition)                            \
    extern const struct gb_kernels gb_kernels_##level;        \
    static bool level##_usable(void) {                        \
        const struct gb_cpu_features * f = gb_cpu_features(); \
        (void) f;                                             \
        return condition;                                     \
    }
#include "levels.def"
#undef GB_LEVEL

// Returns the level. Returns NULL and reports the error if it computes wrong numbers.
static const struct gb_level * checked(const struct gb_level * level) { return gb_self_check(level) ? level : NULL; }

// Constant after set_up_levels.
static struct gb_level levels[] = {
#define GB_LEVEL(level, condition) { #level, level##_usable, &gb_kernels_##level },
#include "levels.def"
#undef GB_LEVEL
};

#define N_LEVELS ((int) (sizeof(levels) / sizeof(levels[0])))

static gb_once levels_once = GB_ONCE_INIT;
static bool reproducible;
static struct gb_kernels exact_kernels[N_LEVELS];

// With GGML_CPU_REPRODUCIBLE, a level that approximates reciprocals takes all kernels that need
// reciprocals from the best lower level that divides. tests/c/cpu/kernels/check_rough.cmake checks
// that the list of these kernels matches the code.
static void set_up_levels(void) {
    const char * env = gb_env_get("GGML_CPU_REPRODUCIBLE");
    const struct gb_kernels * below = levels[0].kernels;
    reproducible = env != NULL && strcmp(env, "0") != 0;
    for (int i = 0; i < N_LEVELS && reproducible; i++) {
        if (!levels[i].kernels->rough) {
            below = levels[i].kernels;
            continue;
        }
        struct gb_kernels * k = &exact_kernels[i];
        *k = *levels[i].kernels;
        k->geglu_f32 = below->geglu_f32;
        k->geglu_quick_f32 = below->geglu_quick_f32;
        k->gelu_f32 = below->gelu_f32;
        k->gelu_quick_f32 = below->gelu_quick_f32;
        k->sigmoid_f32 = below->sigmoid_f32;
        k->silu_back_f32 = below->silu_back_f32;
        k->silu_f32 = below->silu_f32;
        k->swiglu_f32 = below->swiglu_f32;
        k->swiglu_oai_f32 = below->swiglu_oai_f32;
        k->tanh_f32 = below->tanh_f32;
        levels[i].kernels = k;
    }
}

bool gb_kernels_reproducible(void) {
    gb_call_once(&levels_once, set_up_levels);
    return reproducible;
}

// "scalar, avx2, avx512"
#define LEVEL_NAMES_SIZE 128
static const char * level_names(char buf[LEVEL_NAMES_SIZE]) {
    size_t n = 0;
    for (int i = 0; i < N_LEVELS; i++) {
        const size_t len = strlen(levels[i].name);
        if (n + len + 3 > LEVEL_NAMES_SIZE) {
            break;
        }
        if (n > 0) {
            memcpy(buf + n, ", ", 2);
            n += 2;
        }
        memcpy(buf + n, levels[i].name, len);
        n += len;
    }
    buf[n] = '\0';
    return buf;
}

static int level_index(const char * name) { // -1 if unknown
    for (int i = 0; i < N_LEVELS; i++) {
        if (strcmp(levels[i].name, name) == 0) {
            return i;
        }
    }
    return -1;
}

static const struct gb_level * best_up_to(int top) { // level 0 runs everywhere
    gb_call_once(&levels_once, set_up_levels);
    for (int i = top; i > 0; i--) {
        if (levels[i].usable()) {
            return &levels[i];
        }
    }
    return &levels[0];
}

int gb_level_count(void) { return N_LEVELS; }

const struct gb_level * gb_level_at(int i) {
    gb_call_once(&levels_once, set_up_levels);
    return i >= 0 && i < N_LEVELS ? &levels[i] : NULL;
}

static int top_level(void) { // the highest level that GGML_CPU_LEVEL allows; -1: unknown name
    const char * cap = gb_env_get("GGML_CPU_LEVEL");
    return cap != NULL ? level_index(cap) : N_LEVELS - 1;
}

const struct gb_level * gb_level_default(void) {
    const int top = top_level();
    char names[LEVEL_NAMES_SIZE];
    GB_FAIL_IF_RETURNING(top < 0, NULL, GGML_STATUS_INVALID_ARGUMENT, "GGML_CPU_LEVEL is '%s', must be one of %s",
        gb_env_get("GGML_CPU_LEVEL"), level_names(names));
    return checked(best_up_to(top));
}

const struct gb_level * gb_level_find(const char * name) {
    GB_CHECK_ARG_RETURNING(name, NULL);
    gb_call_once(&levels_once, set_up_levels);
    const int i = level_index(name);
    char names[LEVEL_NAMES_SIZE];
    GB_FAIL_IF_RETURNING(i < 0, NULL, GGML_STATUS_INVALID_ARGUMENT, "%s: argument 'name' is '%s', must be one of %s",
        __func__, name, level_names(names));
    GB_FAIL_IF_RETURNING(!levels[i].usable(), NULL, GGML_STATUS_UNSUPPORTED,
        "%s: this processor does not have level '%s', the best it has is '%s'", __func__, name,
        best_up_to(N_LEVELS - 1)->name);
    return checked(&levels[i]);
}

static gb_once chosen_once = GB_ONCE_INIT;
static const struct gb_level * chosen; // NULL: GGML_CPU_LEVEL is an unknown name, or the level is wrong

static void choose_level(void) {
    const int top = top_level();
    chosen = top < 0 ? NULL : checked(best_up_to(top));
}

const struct gb_kernels * gb_kernels_default(void) {
    gb_call_once(&chosen_once, choose_level);
    const struct gb_level * level = chosen != NULL ? chosen : gb_level_default(); // which reports
    return level != NULL ? level->kernels : NULL;
}

// -------------------------------------------------------------------------------------------------------------- public

int ggml_cpu_level_count(void) { return N_LEVELS; }

const char * ggml_cpu_level_name(int i) {
    const struct gb_level * level = gb_level_at(i);
    return level != NULL ? level->name : NULL;
}

bool ggml_cpu_level_usable(int i) {
    const struct gb_level * level = gb_level_at(i);
    return level != NULL && level->usable();
}
