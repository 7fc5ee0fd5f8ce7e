// reach.c - which backend can use which memory.
#include "sched/sched.h"

bool gb_sched_supports_buft(const struct ggml_backend_sched * s, ggml_backend_buffer_type_t buft, int backend) {
    return ggml_backend_buft_supports_backend(buft, s->devices[backend].backend);
}

// The type of the memory that a root has already; NULL: it has none yet.
ggml_backend_buffer_type_t gb_sched_placed_buft(const struct gb_sched_plan * p, int root) {
    const struct gb_id * id = &p->ids.data[root];
    switch ((enum gb_home) id->home) {
        case GB_HOME_USER:
        case GB_HOME_SHARED: return id->tensor->buffer->buft;
        case GB_HOME_HOST: return gb_plain_host_buffer_type();
        default: return NULL;
    }
}

bool gb_sched_shares(const struct ggml_backend_sched * s, int backend, int of_backend) {
    return backend == of_backend || gb_sched_supports_buft(s, s->devices[of_backend].buft, backend);
}

bool gb_sched_plan_reaches(const struct ggml_backend_sched * s, const struct gb_sched_plan * p, int backend, int root) {
    const ggml_backend_buffer_type_t buft = gb_sched_placed_buft(p, root);
    return buft ? gb_sched_supports_buft(s, buft, backend) : gb_sched_shares(s, backend, p->assignment[root].backend);
}
