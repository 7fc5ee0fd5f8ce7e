// reach.c - tells which backend can use which memory. For the user's memory the buffer type
// decides, for memory of the scheduler the assigned backend.
#include "sched/assign/assign.h"
#include "sched/input/input.h"
#include "sched/sched.h"

bool gb_sched_supports_buft(const struct ggml_backend_sched * s, ggml_backend_buffer_type_t buft, int backend) {
    return ggml_backend_buft_supports_backend(buft, s->devices[backend].backend);
}

ggml_backend_buffer_type_t gb_sched_placed_buft(const struct gb_sched_input * in, int root) {
    const struct gb_id * id = &in->ids.data[root];
    switch ((enum gb_location) id->location) {
        case GB_LOCATION_USER:
        case GB_LOCATION_SHARED: return id->tensor->buffer->buft;
        case GB_LOCATION_HOST: return gb_plain_host_buffer_type();
        default: return NULL;
    }
}

bool gb_sched_shares(const struct ggml_backend_sched * s, int backend, int of_backend) {
    return backend == of_backend || gb_sched_supports_buft(s, s->devices[of_backend].buft, backend);
}

bool gb_sched_reaches(const struct ggml_backend_sched * s, const struct gb_sched_input * in,
    const struct gb_sched_assigned * assigned, int backend, int root) {
    const ggml_backend_buffer_type_t buft = gb_sched_placed_buft(in, root);
    return buft ? gb_sched_supports_buft(s, buft, backend) : gb_sched_shares(s, backend, assigned->to[root].backend);
}

int gb_sched_owner_of(const struct ggml_backend_sched * s, const struct gb_sched_input * in,
    const struct gb_sched_assigned * assigned, int root) {
    const int backend = assigned->to[root].backend;
    return backend >= 0 && gb_sched_reaches(s, in, assigned, backend, root) ? backend : -1;
}
