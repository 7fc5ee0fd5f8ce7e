// lifetime.c - makes, resets and frees a scheduler.
//
// If making a scheduler fails, it is freed like any other: each part may be zero.
#include <stdio.h>
#include <string.h>

#include "base/env.h"
#include "base/text.h"
#include "sched/plan.h"

// Caches properties of a backend.
static enum ggml_status init_device(struct gb_sched_device * d, ggml_backend_t backend, ggml_backend_buffer_type_t buft,
    int i) {
    GB_FAIL_IF(backend == NULL, GGML_STATUS_INVALID_ARGUMENT,
        "ggml_backend_sched_new: argument 'backends': entry %d is NULL", i);
    d->backend = backend;
    d->buft = buft ? buft : ggml_backend_get_default_buffer_type(backend);
    GB_FAIL_IF(d->buft == NULL, GGML_STATUS_INVALID_ARGUMENT,
        "ggml_backend_sched_new: backend %s has no default buffer type", ggml_backend_name(backend));
    GB_FAIL_IF(!ggml_backend_buft_supports_backend(d->buft, backend), GGML_STATUS_INVALID_ARGUMENT,
        "ggml_backend_sched_new: backend %s cannot use buffers of type %s", ggml_backend_name(backend),
        ggml_backend_buft_name(d->buft));
    d->alignment = ggml_backend_buft_get_alignment(d->buft);
    d->max_size = ggml_backend_buft_get_max_size(d->buft);
    return d->alignment == 0 ? ggml_last_status() : GGML_STATUS_SUCCESS;
}

// Leafs use the largest alignment of all devices. So neighbouring inputs of any size can be copied
// together to any device.
static void set_leaf_units(struct ggml_backend_sched * s) {
    enum { LARGEST = 4096 };
    for (int i = 0; i < s->n_backends; i++) {
        s->devices[i].leaf_unit = s->devices[i].alignment;
        for (int b = 0; b < s->n_backends; b++) {
            s->devices[i].leaf_unit = GB_MAX(s->devices[i].leaf_unit, GB_MIN(s->devices[b].alignment, LARGEST));
        }
    }
}

// Checks that all backends are different.
static enum ggml_status init_devices(struct ggml_backend_sched * s, ggml_backend_t * backends,
    ggml_backend_buffer_type_t * bufts, int n) {
    s->devices = gb_calloc((size_t) n, sizeof(*s->devices));
    if (s->devices == NULL) {
        return GGML_STATUS_ALLOC_FAILED;
    }
    s->n_backends = n;
    for (int i = 0; i < n; i++) {
        GB_TRY(init_device(&s->devices[i], backends[i], bufts ? bufts[i] : NULL, i));
        for (int j = 0; j < i; j++) {
            GB_FAIL_IF(backends[j] == backends[i], GGML_STATUS_INVALID_ARGUMENT,
                "ggml_backend_sched_new: backend %s occurs twice, as %d and %d", ggml_backend_name(backends[i]), j, i);
        }
    }
    set_leaf_units(s);
    return GGML_STATUS_SUCCESS;
}

// True if another device has the name, or a device after it will get it.
static bool is_taken(const struct ggml_backend_sched * s, int b, const char * name) {
    for (int i = 0; i < s->n_backends; i++) {
        if (i != b && strcmp(name, i < b ? s->devices[i].name : ggml_backend_name(s->devices[i].backend)) == 0) {
            return true;
        }
    }
    return false;
}

// Gives the device the name that users see: the backend's, with a number if an earlier one has the
// same name.
static void name_device(struct ggml_backend_sched * s, int b) {
    struct gb_sched_device * d = &s->devices[b];
    const char * own = ggml_backend_name(d->backend);
    bool first = true;
    snprintf(d->name, sizeof(d->name), "%s", own);
    for (int i = 0; i < b && first; i++) {
        first = strcmp(d->name, s->devices[i].name) != 0;
    }
    for (int n = 1; !first && is_taken(s, b, d->name); n++) { // at most once per device
        snprintf(d->name, sizeof(d->name), "%.*s%d", (int) sizeof(d->name) - 12, own, n);
    }
}

static enum ggml_status init(struct ggml_backend_sched * s, ggml_backend_t * backends,
    ggml_backend_buffer_type_t * bufts, int n) {
    const char * check = gb_env_get("GGML_SCHED_CHECK");
    s->n_copies = 1;
    GB_TRY(init_devices(s, backends, bufts, n));
    GB_TRY(gb_sched_set_validator(s, check != NULL && !gb_text_equal(check, "0")));
    for (int b = 0; b < n; b++) {
        name_device(s, b);
    }
    gb_sched_watch(s);
    return GGML_STATUS_SUCCESS;
}

struct ggml_backend_sched * gb_sched_new(ggml_backend_t * backends, ggml_backend_buffer_type_t * bufts, int n) {
    struct ggml_backend_sched * s = GB_NEW(struct ggml_backend_sched);
    if (s && init(s, backends, bufts, n) != GGML_STATUS_SUCCESS) {
        gb_sched_free(s);
        return NULL;
    }
    return s;
}

void gb_sched_free(struct ggml_backend_sched * s) {
    gb_sched_unwatch(s);
    gb_sched_wait(s); // reports failures itself
    gb_sched_drop_plans(s);
    gb_sched_free_mems(s);
    gb_validator_free(s->validator);
    gb_trace_free(s->trace);
    gb_vec_free(&s->plans);
    gb_vec_free(&s->bindings);
    gb_vec_free(&s->text);
    gb_ptrmap_free(&s->chosen);
    gb_costs_free(s->costs);
    gb_free(s->devices);
    gb_free(s);
}

enum ggml_status gb_sched_reset(struct ggml_backend_sched * s) {
    const enum ggml_status status = gb_sched_wait(s);
    gb_sched_drop_plans(s);
    gb_ptrmap_clear(&s->chosen);
    s->n_resets++;
    for (int b = 0; b < s->n_backends; b++) {
        if (s->devices[b].tallocr) {
            ggml_tallocr_reset(s->devices[b].tallocr);
        }
    }
    return status;
}
