// Levels of kernels: their names, and the choice of GGML_CPU_LEVEL.
#define _GNU_SOURCE // setenv
#include "test.h"

#include <sys/wait.h>
#include <unistd.h>

#include "cpu/kernels/kernels.h"
#include "ggml-backend.h"
#include "ggml-cpu.h"

static void levels(void) {
    CHECK(gb_level_count() >= 1 && ggml_cpu_level_count() == gb_level_count());
    CHECK_STR(ggml_cpu_level_name(0), "scalar");
    CHECK(ggml_cpu_level_usable(0));
    CHECK(ggml_cpu_level_name(-1) == NULL && ggml_cpu_level_name(gb_level_count()) == NULL);
    CHECK(!ggml_cpu_level_usable(-1) && gb_level_at(gb_level_count()) == NULL);
    CHECK(gb_kernels_default() != NULL);
    for (int i = 0; i < gb_level_count(); i++) {
        const struct gb_level * level = gb_level_at(i);
        CHECK(!level->usable() || gb_level_find(level->name) == level);
    }
    CHECK(gb_level_find("sse9") == NULL);
    CHECK_ERROR(GGML_STATUS_INVALID_ARGUMENT, "must be one of scalar");
    CHECK(gb_level_find(NULL) == NULL);
    CHECK_ERROR(GGML_STATUS_INVALID_ARGUMENT, "name");
}

static void level_cap(void) {
    const struct gb_level * best = NULL;
    for (int i = 0; i < gb_level_count(); i++) {
        best = gb_level_at(i)->usable() ? gb_level_at(i) : best;
        setenv("GGML_CPU_LEVEL", gb_level_at(i)->name, 1);
        CHECK(gb_level_default() == best); // the named one, or the best below it
    }
    unsetenv("GGML_CPU_LEVEL");
    CHECK(gb_level_default() == best);
    setenv("GGML_CPU_LEVEL", "AVX1024", 1);
    CHECK(gb_level_default() == NULL);
    CHECK_ERROR(GGML_STATUS_INVALID_ARGUMENT, "GGML_CPU_LEVEL is 'AVX1024'");
    unsetenv("GGML_CPU_LEVEL");
}

// In a child, because a process without a backend chooses its level once.
static void level_without_a_backend(void) {
    const pid_t child = fork();
    if (child == 0) {
        struct ggml_context * ctx = ggml_init((struct ggml_init_params){ 1 << 20, NULL, false });
        struct ggml_cgraph * graph = ggml_new_graph(ctx);
        ggml_build_forward_expand(graph, ggml_relu(ctx, ggml_new_f32(ctx, -1)));
        setenv("GGML_CPU_LEVEL", "AVX1024", 1);
        const int wrong = ggml_graph_compute_with_ctx(ctx, graph, 1);
        const bool named = strstr(ggml_last_error(), "GGML_CPU_LEVEL is 'AVX1024'") != NULL;
        const bool refused = ggml_backend_reg_init_backend_from_str("SIM") == NULL;
        unsetenv("GGML_CPU_LEVEL");
        const int mended = ggml_graph_compute_with_ctx(ctx, graph, 1);
        ggml_free(ctx);
        _exit(wrong == GGML_STATUS_INVALID_ARGUMENT && named && refused && mended == GGML_STATUS_SUCCESS ? 0 : 1);
    }
    int status = -1;
    CHECK(child > 0 && waitpid(child, &status, 0) == child);
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

TEST_MAIN(TEST(level_without_a_backend), TEST(levels), TEST(level_cap))
