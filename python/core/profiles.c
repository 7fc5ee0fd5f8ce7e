// profiles.c - profiles, and who records in them (profiles.h).
#include "profiles.h"

#include "extension.h"
#include "world.h"

static atomic_int           n_attached;
static struct gbpy_object * everything; // attached to the process: a strong reference; under the lock

int gbpy_open_profile(struct gbpy_handle * handle, size_t max_records) {
    struct gbpy_object * o = gbpy_object_new(GBPY_PROFILE);
    if (o == NULL) {
        return GGML_STATUS_ALLOC_FAILED;
    }
    o->ptr = ggml_profile_new(max_records);
    if (o->ptr == NULL) {
        const int status = (int) ggml_last_status();
        gbpy_unref(o);
        return status;
    }
    handle->object = o;
    return GGML_STATUS_SUCCESS;
}

static struct gbpy_object ** place_of(const struct gbpy_handle * where) {
    return where != NULL ? &where->object->profile : &everything;
}

int gbpy_attach_profile(struct gbpy_handle * profile, struct gbpy_handle * where) {
    static const char    what[] = "profile";
    struct gbpy_object * p      = gbpy_object_of(profile, what);
    if (p == NULL || (where != NULL && gbpy_object_of(where, what) == NULL)) {
        return GGML_STATUS_INVALID_STATE;
    }
    gbpy_lock();
    const bool is_free = *place_of(where) == NULL;
    if (is_free) {
        gbpy_ref(p);
        *place_of(where) = p;
        atomic_fetch_add(&n_attached, 1);
    }
    gbpy_unlock();
    GB_FAIL_IF(!is_free, GGML_STATUS_INVALID_STATE, "%s: a profile is being recorded already; stop() it first", what);
    return GGML_STATUS_SUCCESS;
}

bool gbpy_is_attached(const struct gbpy_handle * profile, const struct gbpy_handle * where) {
    if (profile == NULL || profile->object == NULL || (where != NULL && where->object == NULL)) {
        return false;
    }
    gbpy_lock();
    const bool is = *place_of(where) == profile->object;
    gbpy_unlock();
    return is;
}

void gbpy_detach_profile(struct gbpy_handle * profile, struct gbpy_handle * where) {
    struct gbpy_object * found = NULL;
    if (profile == NULL || profile->object == NULL || (where != NULL && where->object == NULL)) {
        return;
    }
    gbpy_lock();
    if (*place_of(where) == profile->object) {
        found            = profile->object;
        *place_of(where) = NULL;
        atomic_fetch_sub(&n_attached, 1);
    }
    gbpy_unlock();
    gbpy_unref(found);
}

void gbpy_drop_profile(struct gbpy_object * o, struct gbpy_object ** dead) {
    if (o->profile != NULL) {
        atomic_fetch_sub(&n_attached, 1);
        gbpy_give(o->profile, dead);
    }
}

struct gbpy_recording gbpy_begin_recording(const struct gbpy_object * sched, const struct gbpy_object * graph) {
    struct gbpy_recording r = { 0 };
    if (atomic_load_explicit(&n_attached, memory_order_relaxed) == 0) {
        return r;
    }
    gbpy_lock();
    r.profile = sched != NULL && sched->profile != NULL ? sched->profile : graph->profile;
    r.profile = r.profile == NULL && gb_run() == NULL ? everything : r.profile;
    if (r.profile != NULL) {
        gbpy_ref(r.profile);
    }
    gbpy_unlock();
    if (r.profile != NULL) {
        r.before = gb_profile_enter(r.profile->ptr);
    }
    return r;
}

void gbpy_end_recording(struct gbpy_recording r) {
    if (r.profile != NULL) {
        gb_profile_leave(r.before);
        gbpy_unref(r.profile);
    }
}
