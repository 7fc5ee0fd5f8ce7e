// prepared.c - objects of the backends that a bound plan holds: stages and prepared graphs. Also
// frees events.
//
// They are made for the first run and reused later. They are freed while the backends still work.
#include <string.h>

#include "backend/backend.h"
#include "sched/input/input.h"
#include "sched/layout/layout.h"
#include "sched/memory/memory.h"
#include "sched/program/program.h"
#include "sched/sched.h"

// Prepared graphs may contain addresses.
void gb_sched_drop_prepared(struct ggml_backend_sched * s, struct gb_sched_binding * binding) {
    for (size_t k = 0; k < binding->program->splits.n; k++) {
        struct gb_bound_split * split = &binding->splits[k];
        ggml_backend_graph_plan_free(s->devices[binding->program->splits.data[k].backend].backend, split->prepared);
        split->prepared = NULL;
    }
}

// Also frees stages that are incomplete.
static void free_stages(struct gb_sched_binding * binding) {
    for (size_t c = 0; c < binding->program->copies.n; c++) {
        struct gb_stage * stages = binding->copies[c].stages;
        for (int i = 0; stages && i < binding->in->n_copies; i++) {
            ggml_backend_event_free(stages[i].event);
            gb_aligned_free(stages[i].tensor.data);
        }
        gb_free(stages);
        binding->copies[c].stages = NULL;
    }
}

void gb_sched_disarm(struct ggml_backend_sched * s, struct gb_sched_binding * binding) {
    gb_sched_drop_prepared(s, binding);
    free_stages(binding);
    for (size_t k = 0; k < binding->events.n; k++) {
        ggml_backend_event_free(binding->events.data[k]);
    }
    gb_vec_free(&binding->events);
}

// Host memory for the copy, with an event that says when the memory has been read.
static bool make_stage(struct gb_stage * stage, const struct gb_copy * copy, ggml_backend_t backend) {
    const struct ggml_tensor * dst = &copy->dst->tensor;
    stage->event = ggml_backend_event_new(backend);
    stage->tensor.type = dst->type;
    stage->tensor.data = gb_aligned_alloc(64, GGML_PAD(ggml_nbytes(dst) + 1, 64));
    memcpy(stage->tensor.ne, dst->ne, sizeof(dst->ne));
    memcpy(stage->tensor.nb, dst->nb, sizeof(dst->nb));
    memcpy(stage->tensor.name, dst->name, sizeof(dst->name));
    gb_tensor_set_ndim(&stage->tensor, gb_tensor_ndim(dst));
    return stage->event && stage->tensor.data;
}

// Makes the stages of one copy after the other, and frees all if one fails.
enum ggml_status gb_sched_make_stages(struct ggml_backend_sched * s, struct gb_sched_binding * binding) {
    for (size_t k = 0; binding->program->n_staged > 0 && k < binding->program->steps.n; k++) {
        const struct gb_step * step = &binding->program->steps.data[k];
        const struct gb_copy * copy = step->kind == GB_STEP_COPY ? &binding->program->copies.data[step->index] : NULL;
        if (copy == NULL || !copy->staged || binding->copies[step->index].stages ||
            step->issuer == binding->in->n_backends) {
            continue;
        }
        struct gb_stage * stages = gb_calloc((size_t) binding->in->n_copies, sizeof(*stages));
        bool ok = stages != NULL;
        binding->copies[step->index].stages = stages;
        for (int i = 0; ok && i < binding->in->n_copies; i++) {
            ok = make_stage(&stages[i], copy, s->devices[step->issuer].backend);
        }
        if (!ok) {
            free_stages(binding);
            return GGML_STATUS_ALLOC_FAILED;
        }
    }
    return GGML_STATUS_SUCCESS;
}
