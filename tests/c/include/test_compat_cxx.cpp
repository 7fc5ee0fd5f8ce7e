// test_compat_cxx.cpp - a C++11 program as of early 2024: containers of handles, RAII by
// unique_ptr, lambdas as callbacks, positional initialisation.
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "ggml-alloc.h"
#include "ggml-backend-impl.h"
#include "ggml-backend.h"
#include "ggml-cpu.h"
#include "ggml-program.h"
#include "ggml.h"

static_assert(sizeof(ggml_tensor) == 368 || sizeof(void *) != 8, "the layout of tensors is the C one");
static_assert(GGML_MAX_DIMS == 4 && GGML_TYPE_F32 == 0 && GGML_OP_MUL_MAT == 23, "so are the numbers");

static int failures;

#define CHECK(cond)                                                                                         \
    do {                                                                                                    \
        if (!(cond)) {                                                                                      \
            std::fprintf(stderr, "%s:%d: failed: %s (%s)\n", __FILE__, __LINE__, #cond, ggml_last_error()); \
            failures++;                                                                                     \
        }                                                                                                   \
    } while (0)

struct context_deleter {
    void operator()(ggml_context * ctx) const { ggml_free(ctx); }
};
struct backend_deleter {
    void operator()(ggml_backend_t backend) const { ggml_backend_free(backend); }
};
struct buffer_deleter {
    void operator()(ggml_backend_buffer_t buffer) const { ggml_backend_buffer_free(buffer); }
};

typedef std::unique_ptr<ggml_context, context_deleter> context_ptr;
typedef std::unique_ptr<ggml_backend, backend_deleter> backend_ptr;
typedef std::unique_ptr<ggml_backend_buffer, buffer_deleter> buffer_ptr;

static context_ptr new_context(size_t n_tensors) {
    struct ggml_init_params params = {
        /*.mem_size   =*/ggml_tensor_overhead() * n_tensors + ggml_graph_overhead(),
        /*.mem_buffer =*/NULL,
        /*.no_alloc   =*/true,
    };
    return context_ptr(ggml_init(params));
}

// c = a b^T on every backend, with values that make it exact
static void matmul(const std::string & name) {
    backend_ptr backend(ggml_backend_reg_init_backend_from_str(name.c_str()));
    CHECK(backend != nullptr);
    const int M = 4, N = 3, K = 2;
    std::vector<float> a = { 2, 8, 5, 1, 4, 2, 8, 6 };
    std::vector<float> b = { 10, 5, 9, 9, 5, 4 };
    context_ptr ctx = new_context(8);
    ggml_tensor * ta = ggml_new_tensor_2d(ctx.get(), GGML_TYPE_F32, K, M);
    ggml_tensor * tb = ggml_new_tensor_2d(ctx.get(), GGML_TYPE_F32, K, N);
    ggml_tensor * tc = ggml_mul_mat(ctx.get(), ta, tb);
    ggml_mul_mat_set_prec(tc, GGML_PREC_F32);
    ggml_cgraph * gf = ggml_new_graph(ctx.get());
    ggml_build_forward_expand(gf, tc);
    buffer_ptr buffer(ggml_backend_alloc_ctx_tensors(ctx.get(), backend.get()));
    CHECK(buffer != nullptr);
    ggml_backend_tensor_set(ta, a.data(), 0, ggml_nbytes(ta));
    ggml_backend_tensor_set(tb, b.data(), 0, ggml_nbytes(tb));
    CHECK(ggml_backend_graph_compute(backend.get(), gf));
    std::vector<float> c(ggml_nelements(tc));
    ggml_backend_tensor_get(tc, c.data(), 0, ggml_nbytes(tc));
    for (int n = 0; n < N; n++) {
        for (int m = 0; m < M; m++) {
            float expected = 0;
            for (int k = 0; k < K; k++) {
                expected += a[m * K + k] * b[n * K + k];
            }
            CHECK(c[n * M + m] == expected);
        }
    }
}

static void scheduler() {
    backend_ptr device(ggml_backend_reg_init_backend_from_str("SIM"));
    backend_ptr cpu(ggml_backend_cpu_init());
    std::vector<ggml_backend_t> backends = { device.get(), cpu.get() };
    std::unique_ptr<ggml_backend_sched, void (*)(ggml_backend_sched_t)> sched(ggml_backend_sched_new(backends.data(),
                                                                                  nullptr, (int) backends.size(),
                                                                                  GGML_DEFAULT_GRAPH_SIZE),
        ggml_backend_sched_free);
    context_ptr ctx = new_context(16);
    ggml_tensor * x = ggml_new_tensor_1d(ctx.get(), GGML_TYPE_F32, 3);
    ggml_set_input(x);
    ggml_tensor * y = ggml_sqr(ctx.get(), ggml_scale(ctx.get(), x, 3.0f));
    ggml_set_name(y, "y");
    ggml_cgraph * gf = ggml_new_graph(ctx.get());
    ggml_build_forward_expand(gf, y);
    std::vector<std::string> shown;
    ggml_backend_sched_set_eval_callback(
        sched.get(),
        [](struct ggml_tensor * t, bool ask, void * user_data) {
            if (!ask) {
                static_cast<std::vector<std::string> *>(user_data)->push_back(t->name);
            }
            return true;
        },
        &shown);
    CHECK(ggml_backend_sched_alloc_graph(sched.get(), gf) == GGML_STATUS_SUCCESS);
    const float in[3] = { 1, -2, 0.5f };
    float out[3];
    ggml_backend_tensor_set(x, in, 0, sizeof(in));
    CHECK(ggml_backend_sched_graph_compute(sched.get(), gf) == GGML_STATUS_SUCCESS);
    ggml_backend_tensor_get(y, out, 0, sizeof(out));
    CHECK(out[0] == 9 && out[1] == 36 && out[2] == 2.25f);
    CHECK(shown.size() == 2 && shown.back() == "y");
}

static void op_with_a_lambda() {
    context_ptr ctx = new_context(8);
    backend_ptr cpu(ggml_backend_cpu_init());
    ggml_tensor * a = ggml_new_tensor_1d(ctx.get(), GGML_TYPE_F32, 100);
    float factor = 3;
    ggml_tensor * b = ggml_map_custom1(
        ctx.get(), a,
        [](struct ggml_tensor * dst, const struct ggml_tensor * src, int ith, int nth, void * userdata) {
            for (int i = ith; i < (int) ggml_nelements(dst); i += nth) {
                static_cast<float *>(dst->data)[i] =
                    static_cast<const float *>(src->data)[i] * *static_cast<const float *>(userdata);
            }
        },
        GGML_N_TASKS_MAX, &factor);
    ggml_cgraph * gf = ggml_new_graph(ctx.get());
    ggml_build_forward_expand(gf, b);
    buffer_ptr buffer(ggml_backend_alloc_ctx_tensors(ctx.get(), cpu.get()));
    for (int i = 0; i < 100; i++) {
        ggml_set_f32_1d(a, i, (float) i);
    }
    CHECK(ggml_backend_graph_compute(cpu.get(), gf));
    for (int i = 0; i < 100; i++) {
        CHECK(ggml_get_f32_1d(b, i) == (float) (3 * i));
    }
}

static void errors() {
    context_ptr ctx = new_context(8);
    std::string said;
    ggml_log_set([](enum ggml_log_level, const char * text,
                     void * user_data) { *static_cast<std::string *>(user_data) += text; },
        &said);
    ggml_tensor * a = ggml_new_tensor_2d(ctx.get(), GGML_TYPE_F32, 4, 4);
    ggml_tensor * b = ggml_new_tensor_2d(ctx.get(), GGML_TYPE_F32, 5, 4);
    CHECK(ggml_mul_mat(ctx.get(), a, b) == nullptr);
    CHECK(ggml_last_status() == GGML_STATUS_INVALID_ARGUMENT && said.find("ggml_mul_mat") != std::string::npos);
    ggml_log_set(nullptr, nullptr);
    ggml_clear_error();
}

int main() {
    for (size_t i = 0; i < ggml_backend_reg_get_count(); i++) {
        matmul(ggml_backend_reg_get_name(i));
    }
    scheduler();
    op_with_a_lambda();
    errors();
    std::printf("%d failures\n", failures);
    return failures > 0;
}
