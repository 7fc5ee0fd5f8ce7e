// test_fuse.h - graphs of the tests of fusion: random inputs, and runs at a level with or without fusion.
#ifndef GB_TESTS_TEST_FUSE_H
#define GB_TESTS_TEST_FUSE_H

#include "test.h"

#include "cpu/cpu.h"
#include "cpu/fuse/fusions.h"
#include "cpu/plan.h"
#include "cpu/threadpool.h"
#include "ggml-alloc.h"
#include "ggml-backend.h"
#include "ggml-cpu.h"

static inline struct ggml_tensor * random_input(struct ggml_context * ctx, enum ggml_type type, int64_t n0, int64_t n1,
    int64_t n2) {
    struct ggml_tensor * t = ggml_new_tensor_3d(ctx, type, n0, n1, n2);
    const int64_t n = ggml_nelements(t);
    float * values = malloc((size_t) n * sizeof(float));
    for (int64_t i = 0; i < n; i++) {
        values[i] = test_random_float(-1, 1);
    }
    if (type == GGML_TYPE_F32) {
        memcpy(t->data, values, (size_t) n * sizeof(float));
    } else if (type == GGML_TYPE_F16) {
        ggml_fp32_to_fp16_row(values, t->data, (int) n);
    } else if (type == GGML_TYPE_BF16) {
        ggml_fp32_to_bf16_row(values, t->data, n);
    } else {
        int64_t hist[16] = { 0 };
        ggml_quantize_chunk(type, values, t->data, 0, (int) (n / n0), (int) n0, hist, NULL);
    }
    free(values);
    return t;
}

// Fills the memory of results with NaN: the allocator's buffer, or without an allocator that of each node.
static inline void spoil_results(const struct ggml_cgraph * graph, ggml_tallocr_t talloc) {
    if (talloc != NULL) {
        const ggml_backend_buffer_t buffer = ggml_tallocr_get_buffer(talloc);
        memset(ggml_backend_buffer_get_base(buffer), 0xff, ggml_backend_buffer_get_size(buffer));
        return;
    }
    for (int i = 0; i < graph->n_nodes; i++) {
        if (graph->nodes[i]->view_src == NULL) {
            memset(graph->nodes[i]->data, 0xff, ggml_nbytes(graph->nodes[i]));
        }
    }
}

// Computes the nodes. Returns the number of barriers: the epoch of a pool counts runs and barriers.
static inline int run_nodes(struct ggml_tensor ** nodes, int n, int threads, bool fuse,
    const struct gb_kernels * kernels) {
    ggml_graph_set_fusion(fuse);
    struct gb_cpu_plan * plan = gb_cpu_plan_new(nodes, n, threads);
    struct gb_cpu_pool * pool = gb_cpu_pool_new(threads);
    CHECK(plan != NULL && pool != NULL && kernels != NULL);
    plan->has_custom = true; // so all threads take part, even if they are delayed
    void * work = malloc(gb_cpu_plan_work_size(plan) + 1);
    memset(work, 0xff, gb_cpu_plan_work_size(plan)); // NaN
    const struct gb_cpu_run r = { .kernels = kernels, .work = work };
    const uint64_t before = gb_cpu_pool_epoch(pool);
    CHECK_INT(gb_cpu_plan_run(plan, pool, &r), GGML_STATUS_SUCCESS);
    const int barriers = (int) (gb_cpu_pool_epoch(pool) - before) - 1;
    free(work);
    gb_cpu_pool_free(pool);
    gb_cpu_plan_free(plan);
    return barriers;
}

// Each seed has another level. The level "scalar" replaces levels that this processor cannot run.
static inline const struct gb_level * level_of(int seed) {
    const struct gb_level * level = gb_level_at(seed % gb_level_count());
    return level->usable() ? level : gb_level_find("scalar");
}

#endif // GB_TESTS_TEST_FUSE_H
