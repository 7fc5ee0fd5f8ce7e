// A program that uses only the installed library: two products on the CPU backend, through the
// scheduler.
#include <stdio.h>

#include "ggml-alloc.h"
#include "ggml-backend.h"
#include "ggml.h"

int main(int argc, char ** argv) {
    struct ggml_init_params params = { 16 * ggml_tensor_overhead() + ggml_graph_overhead(), NULL, true };
    struct ggml_context * ctx = ggml_init(params);
    struct ggml_tensor * a = ggml_new_tensor_2d(ctx, GGML_TYPE_F32, 2, 2);
    struct ggml_tensor * b = ggml_new_tensor_2d(ctx, GGML_TYPE_F32, 2, 2);
    struct ggml_tensor * c = ggml_mul_mat(ctx, a, b);
    struct ggml_cgraph * graph = ggml_new_graph(ctx);
    ggml_build_forward_expand(graph, c);

    ggml_backend_t cpu = ggml_backend_reg_init_backend_from_str("CPU");
    ggml_backend_sched_t sched = ggml_backend_sched_new(&cpu, NULL, 1, GGML_DEFAULT_GRAPH_SIZE);
    ggml_backend_sched_alloc_graph(sched, graph);

    const float va[4] = { 1, 2, 3, 4 }, vb[4] = { 5, 6, 7, 8 };
    const float expected[4] = { 17, 39, 23, 53 }; // c[n][m] = sum over k of a[m][k] b[n][k]
    float vc[4];
    ggml_backend_tensor_set(a, va, 0, sizeof(va));
    ggml_backend_tensor_set(b, vb, 0, sizeof(vb));
    if (ggml_backend_sched_graph_compute(sched, graph) != GGML_STATUS_SUCCESS) {
        fprintf(stderr, "%s\n", ggml_last_error());
        return 1;
    }
    ggml_backend_tensor_get(c, vc, 0, sizeof(vc));
    for (int i = 0; i < 4; i++) {
        if (vc[i] != expected[i]) {
            fprintf(stderr, "c[%d] = %g, expected %g\n", i, vc[i], expected[i]);
            return 1;
        }
    }
    ggml_backend_sched_free(sched);
    ggml_backend_free(cpu);
    ggml_free(ctx);
    if (argc > 1) { // a backend in a module, built against the installed library
        ggml_backend_t mini =
            ggml_backend_load(argv[1]) == GGML_STATUS_SUCCESS ? ggml_backend_reg_init_backend_from_str("MINI") : NULL;
        if (mini == NULL) {
            fprintf(stderr, "%s\n", ggml_last_error());
            return 1;
        }
        ggml_backend_free(mini);
    }
    puts("consumer: ok");
    return 0;
}
