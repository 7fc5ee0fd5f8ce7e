// test_place.h - a fixture for tests of the scheduler: devices, a scheduler over them, a context
// and a graph, and short names for frequent steps.
#ifndef GB_TESTS_TEST_PLACE_H
#define GB_TESTS_TEST_PLACE_H

#include "ggml-backend.h"
#include "test.h"

struct place {
    ggml_backend_t backends[20];
    int n;
    ggml_backend_sched_t sched;
    struct ggml_context * ctx; // no_alloc
    struct ggml_cgraph * graph;
    ggml_backend_buffer_t buffers[16];
    int n_buffers;
};

// devices: names for the registry, separated by spaces.
static inline bool open_place(struct place * p, const char * devices) {
    memset(p, 0, sizeof(*p));
    char text[1024];
    snprintf(text, sizeof(text), "%s", devices);
    for (char * name = strtok(text, " "); name; name = strtok(NULL, " ")) {
        p->backends[p->n] = ggml_backend_reg_init_backend_from_str(name);
        if (p->backends[p->n++] == NULL) {
            return false;
        }
        if (ggml_backend_is_cpu(p->backends[p->n - 1])) {
            ggml_backend_cpu_set_n_threads(p->backends[p->n - 1], 1);
        }
    }
    p->sched = ggml_backend_sched_new(p->backends, NULL, p->n, 0);
    p->ctx = ggml_init((struct ggml_init_params) { 1 << 16, NULL, true });
    p->graph = p->ctx ? ggml_new_graph(p->ctx) : NULL;
    return p->sched && p->graph;
}

static inline void close_place(struct place * p) {
    ggml_backend_sched_free(p->sched);
    ggml_free(p->ctx);
    for (int i = 0; i < p->n_buffers; i++) {
        ggml_backend_buffer_free(p->buffers[i]);
    }
    for (int i = 0; i < p->n; i++) {
        ggml_backend_free(p->backends[i]);
    }
}

#define OPEN(p, devices) \
    struct place p;      \
    REQUIRE(open_place(&p, devices))

static inline struct ggml_tensor * leaf(struct place * p, const char * name, int64_t ne0, int64_t ne1) {
    return ggml_set_name(ggml_new_tensor_2d(p->ctx, GGML_TYPE_F32, ne0, ne1), name);
}

static inline struct ggml_tensor * put(struct place * p, struct ggml_tensor * t, int device, bool weights) {
    ggml_backend_buffer_t buffer = ggml_backend_alloc_buffer(p->backends[device], ggml_nbytes(t));
    p->buffers[p->n_buffers++] = buffer;
    ggml_backend_buffer_set_usage(buffer, weights ? GGML_BACKEND_BUFFER_USAGE_WEIGHTS : GGML_BACKEND_BUFFER_USAGE_ANY);
    ggml_backend_tensor_alloc(buffer, t, ggml_backend_buffer_get_base(buffer));
    return t;
}

static inline void fill(struct ggml_tensor * t, float first, float step) {
    float values[256];
    const int n = (int) ggml_nelements(t);
    for (int i = 0; i < n; i++) {
        values[i] = first + step * (float) i;
    }
    CHECK_INT(ggml_backend_tensor_set(t, values, 0, ggml_nbytes(t)), GGML_STATUS_SUCCESS);
}

static inline float at(const struct ggml_tensor * t, int i) {
    float value = NAN;
    CHECK_INT(ggml_backend_tensor_get(t, &value, (size_t) i * sizeof(float), sizeof(float)), GGML_STATUS_SUCCESS);
    return value;
}

#define CHECK_AT(t, i, expected) \
    CHECK_MSG(at(t, i) == (expected), "%s[%d] is %g, expected %g", #t, i, (double) at(t, i), (double) (expected))
#define OK(call) CHECK_MSG((call) == GGML_STATUS_SUCCESS, "%s: %s", #call, ggml_last_error())

static inline void expand(struct place * p, struct ggml_tensor * t) {
    CHECK_INT(ggml_build_forward_expand(p->graph, t), GGML_STATUS_SUCCESS);
}

// "SIM0:0-2 CPU:2-3(1)": splits with their nodes and the number of copied inputs.
static inline const char * splits(struct place * p) {
    static char text[1024];
    text[0] = '\0';
    struct ggml_backend_sched_split_info s;
    for (int i = 0; i < ggml_backend_sched_get_n_splits(p->sched) &&
                    ggml_backend_sched_get_split(p->sched, i, &s) == GGML_STATUS_SUCCESS;
        i++) {
        const size_t n = strlen(text);
        snprintf(text + n, sizeof(text) - n, "%s%s:%d-%d", i ? " " : "", ggml_backend_name(s.backend), s.i_start,
            s.i_end);
        if (s.n_inputs) {
            snprintf(text + strlen(text), sizeof(text) - strlen(text), "(%d)", s.n_inputs);
        }
    }
    return text;
}

#endif // GB_TESTS_TEST_PLACE_H
