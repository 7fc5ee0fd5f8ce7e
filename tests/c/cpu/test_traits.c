// test_traits.c - cpu/traits.h: measured values are powers of two and constant, given values
// replace them, and invalid values are an error wherever kernels compute.
#define _GNU_SOURCE // setenv
#include "test.h"

#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/thread.h"
#include "cpu/cpu.h"
#include "cpu/traits.h"
#include "ggml-cpu.h"

static bool is_power_of_two(double x) {
    int exponent;
    return x > 0 && frexp(x, &exponent) == 0.5;
}

static void classes(void) {
    const double cases[][2] = { { 0.52, 0.5 }, { 0.7, 0.5 }, { 0.72, 1 }, { 1, 1 }, { 1.41, 1 }, { 1.42, 2 },
        { 2.01, 2 }, { 15.07, 16 }, { 30.1, 32 }, { 1e-9, exp2(-30) }, { 0, 0 }, { -1, 0 }, { NAN, 0 },
        { INFINITY, 0 } };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        CHECK_MSG(gb_cpu_trait_class(cases[i][0]) == cases[i][1], "%g becomes %g, not %g", cases[i][0],
            gb_cpu_trait_class(cases[i][0]), cases[i][1]);
    }
}

// In a child with its own variables, because a process reads them once.
static bool in_a_child(bool (*holds)(void), const char * traits, const char * reproducible) {
    fflush(stdout);
    const pid_t child = fork();
    if (child == 0) {
        unsetenv("GGML_CPU_TRAITS");
        unsetenv("GGML_CPU_REPRODUCIBLE");
        if (traits != NULL) {
            setenv("GGML_CPU_TRAITS", traits, 1);
        }
        if (reproducible != NULL) {
            setenv("GGML_CPU_REPRODUCIBLE", reproducible, 1);
        }
        _exit(holds() ? 0 : 1);
    }
    int status = 1;
    return child > 0 && waitpid(child, &status, 0) == child && status == 0;
}

static const struct gb_level * level_that(bool has_bf16_dots) { // the best one with or without
    const struct gb_level * found = NULL;
    for (int i = 0; i < gb_level_count(); i++) {
        const struct gb_level * level = gb_level_at(i);
        found = level->usable() && level->kernels->has_bf16_dots == has_bf16_dots ? level : found;
    }
    return found;
}

static bool rates_are_powers_of_two(void) {
    bool all = true;
    for (int i = 0; i < gb_level_count(); i++) {
        const struct gb_level * level = gb_level_at(i);
        if (!level->usable()) {
            continue;
        }
        const struct gb_cpu_traits * t = gb_cpu_traits_of(level->kernels);
        all &= t == gb_cpu_traits_of(level->kernels);
        all &= level->kernels->has_bf16_dots ? is_power_of_two(t->value[GB_TRAIT_BF16_DOTS])
                                             : t->value[GB_TRAIT_BF16_DOTS] == 0;
        all &= is_power_of_two(t->value[GB_TRAIT_BYTE_DOTS]) && t->source[GB_TRAIT_BYTE_DOTS] == GB_TRAIT_MEASURED;
        for (int trait = GB_TRAIT_L1; trait <= GB_TRAIT_L3; trait++) {
            all &= t->value[trait] >= 0;
            all &= (t->value[trait] > 0) == (t->source[trait] == GB_TRAIT_STATED);
        }
    }
    return all;
}

static void measured(void) { CHECK(in_a_child(rates_are_powers_of_two, NULL, NULL)); }

static void of_no_level(void) { // needs its own table
    const struct gb_kernels mine = *gb_level_at(0)->kernels;
    const struct gb_cpu_traits * t = gb_cpu_traits_of(&mine);
    for (int i = 0; i < GB_TRAIT_COUNT; i++) {
        CHECK(t->value[i] == 0 && t->source[i] == GB_TRAIT_UNKNOWN);
    }
}

static const struct gb_cpu_traits * seen[4];

static void ask(void * arg) { *(const struct gb_cpu_traits **) arg = gb_cpu_traits_of(gb_kernels_default()); }

static void threads_see_the_same(void) {
    gb_thread threads[4];
    for (int i = 0; i < 4; i++) {
        REQUIRE(gb_thread_start(&threads[i], ask, &seen[i]));
    }
    for (int i = 0; i < 4; i++) {
        gb_thread_join(threads[i]);
        CHECK(seen[i] == seen[0] && seen[i]->value[GB_TRAIT_BYTE_DOTS] > 0);
    }
}

static void parsing(void) {
    char message[GB_ERROR_SIZE];
    struct gb_cpu_traits t = { 0 };
    CHECK(gb_cpu_traits_parse(NULL, &t, message) && gb_cpu_traits_parse("", &t, message));
    CHECK(t.source[GB_TRAIT_BF16_DOTS] == GB_TRAIT_UNKNOWN);
    CHECK(gb_cpu_traits_parse("bf16_dots=0.5,l2=2M,wide=0", &t, message));
    CHECK(t.value[GB_TRAIT_BF16_DOTS] == 0.5 && t.source[GB_TRAIT_BF16_DOTS] == GB_TRAIT_GIVEN);
    CHECK(t.value[GB_TRAIT_L2] == 2097152 && t.source[GB_TRAIT_L2] == GB_TRAIT_GIVEN);
    CHECK(t.value[GB_TRAIT_WIDE] == 0 && t.source[GB_TRAIT_WIDE] == GB_TRAIT_GIVEN);
    CHECK(t.source[GB_TRAIT_L1] == GB_TRAIT_UNKNOWN);
    const char * const bad[][2] = { { "bf16", "must read name=value" }, { "bf16=2", "must be one of bf16_dots" },
        { "bf16_dots=fast", "needs a number from 0 to 1000" }, { "bf16_dots=", "needs a number" },
        { "bf16_dots=-1", "needs a number" }, { "bf16_dots=2x", "needs a number" },
        { "bf16_dots=1e9", "needs a number" }, { "l1=big", "needs a number of bytes" },
        { "byte_dots=4,=2", "must read name=value" } };
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        message[0] = '\0';
        CHECK(!gb_cpu_traits_parse(bad[i][0], &t, message));
        CHECK_MSG(strstr(message, bad[i][1]) != NULL, "%s: %s", bad[i][0], message);
        CHECK_MSG(strstr(message, "GGML_CPU_TRAITS") != NULL, "%s: %s", bad[i][0], message);
    }
    for (int i = 0; i < GB_TRAIT_COUNT; i++) { // the list in the message has all names
        struct ggml_cpu_trait trait;
        CHECK(!gb_cpu_traits_parse("none=1", &t, message));
        CHECK_INT(ggml_cpu_get_trait(i, NULL, &trait), GGML_STATUS_SUCCESS);
        CHECK_MSG(strstr(message, trait.name) != NULL, "%s is not in: %s", trait.name, message);
    }
}

static bool given_is_what_counts(void) {
    struct ggml_cpu_trait trait;
    const bool got = ggml_cpu_get_trait(GB_TRAIT_BF16_DOTS, NULL, &trait) == GGML_STATUS_SUCCESS;
    return got && trait.value == 3 && strcmp(trait.source, "given by GGML_CPU_TRAITS") == 0 &&
           ggml_cpu_get_trait(GB_TRAIT_BYTE_DOTS, NULL, &trait) == GGML_STATUS_SUCCESS &&
           strcmp(trait.source, "measured") == 0;
}

static bool wrong_is_refused(void) {
    for (int i = 0; i < 2; i++) { // in each call
        if (ggml_backend_cpu_init() != NULL || strstr(ggml_last_error(), "GGML_CPU_TRAITS has 'wide=?'") == NULL) {
            return false;
        }
        ggml_clear_error();
        if (ggml_backend_reg_init_backend_from_str("SIM") != NULL ||
            strstr(ggml_last_error(), "GGML_CPU_TRAITS has 'wide=?'") == NULL) {
            return false;
        }
        ggml_clear_error();
    }
    struct ggml_context * ctx = ggml_init((struct ggml_init_params){ 1 << 20, NULL, false });
    struct ggml_cgraph * graph = ggml_new_graph(ctx);
    ggml_build_forward_expand(graph, ggml_relu(ctx, ggml_new_f32(ctx, -1)));
    const bool refused = ggml_graph_compute_with_ctx(ctx, graph, 1) == GGML_STATUS_INVALID_ARGUMENT &&
                         strstr(ggml_last_error(), "GGML_CPU_TRAITS") != NULL;
    ggml_free(ctx);
    struct ggml_cpu_trait trait;
    return refused && ggml_cpu_get_trait(0, NULL, &trait) == GGML_STATUS_INVALID_ARGUMENT;
}

static bool levels_divide(void) { // rough functions come from a lower level that is not rough
    bool all = gb_kernels_reproducible();
    for (int i = 0; i < gb_level_count(); i++) {
        const struct gb_kernels *k = gb_level_at(i)->kernels, *below = NULL;
        for (int j = 0; j <= i; j++) {
            below = gb_level_at(j)->kernels->rough ? below : gb_level_at(j)->kernels;
        }
        all &= k->silu_f32 == below->silu_f32 && k->gelu_f32 == below->gelu_f32;
        all &= k->tanh_f32 == below->tanh_f32 && k->gelu_quick_f32 == below->gelu_quick_f32;
        all &= k == below || k->add_f32 != below->add_f32;
        if (gb_level_at(i)->usable()) {
            all &= gb_cpu_traits_of(k)->value[GB_TRAIT_BF16_DOTS] == 0;
            all &= gb_cpu_traits_of(k)->source[GB_TRAIT_BF16_DOTS] == GB_TRAIT_FIXED;
        }
    }
    return all;
}

static bool is_not_reproducible(void) { return !gb_kernels_reproducible(); }

static void environment(void) {
    CHECK(in_a_child(given_is_what_counts, "bf16_dots=3", NULL));
    CHECK(in_a_child(wrong_is_refused, "wide=?", NULL));
    CHECK(in_a_child(levels_divide, NULL, "1"));
    CHECK(in_a_child(levels_divide, "bf16_dots=3", "yes")); // overrides given values
    CHECK(in_a_child(is_not_reproducible, NULL, "0"));
    CHECK(in_a_child(is_not_reproducible, NULL, NULL));
}

static void asking(void) {
    struct ggml_cpu_trait trait;
    CHECK_INT(ggml_cpu_trait_count(), GB_TRAIT_COUNT);
    for (int i = 0; i < ggml_cpu_trait_count(); i++) {
        CHECK_INT(ggml_cpu_get_trait(i, "scalar", &trait), GGML_STATUS_SUCCESS);
        CHECK(trait.name[0] != '\0' && trait.meaning[0] != '\0' && trait.source[0] != '\0');
    }
    CHECK(ggml_cpu_get_trait(-1, NULL, &trait) != GGML_STATUS_SUCCESS);
    CHECK_ERROR(GGML_STATUS_INVALID_ARGUMENT, "'i'");
    CHECK(ggml_cpu_get_trait(GB_TRAIT_COUNT, NULL, &trait) != GGML_STATUS_SUCCESS);
    CHECK_ERROR(GGML_STATUS_INVALID_ARGUMENT, "'i'");
    CHECK(ggml_cpu_get_trait(0, NULL, NULL) != GGML_STATUS_SUCCESS);
    CHECK_ERROR(GGML_STATUS_INVALID_ARGUMENT, "'trait'");
    CHECK(ggml_cpu_get_trait(0, "none", &trait) != GGML_STATUS_SUCCESS);
    CHECK(strstr(ggml_last_error(), "none") != NULL);
    ggml_clear_error();
    CHECK(ggml_cpu_processor_name() != NULL && ggml_cpu_processor_name() == ggml_cpu_processor_name());
    const size_t n = strlen(ggml_cpu_processor_name());
    CHECK(n < 49 && (n == 0 || (ggml_cpu_processor_name()[0] != ' ' && ggml_cpu_processor_name()[n - 1] != ' ')));
    const struct gb_level * with = level_that(true);
    if (with == NULL) {
        printf("no level with products of bfloat16 here: that its trait is measured is not tested\n");
    }
}

// Children first: this process has not read the variables yet.
TEST_MAIN(TEST(classes), TEST(environment), TEST(measured), TEST(of_no_level), TEST(parsing),
    TEST(threads_see_the_same), TEST(asking))
