// profiles.c - profiles, and who records in them (profiles.h).
#include "profiles.h"

#include "extension.h"
#include "world.h"

atomic_int gbpy_n_attached;
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

// Under the lock.
static bool attach(struct gbpy_object * p, struct gbpy_object * where) {
    struct gbpy_object ** place = where != NULL ? &where->profile : &everything;
    if (*place != NULL || p->attached) {
        return false;
    }
    gbpy_ref(p);
    *place = p;
    p->attached = true;
    p->recording = where;
    if (where != NULL) {
        atomic_fetch_add(&where->weak, 1);
    }
    atomic_fetch_add(&gbpy_n_attached, 1);
    return true;
}

// Ends what attach() began; the caller gives the two references back. NULL: it is not attached. Under the lock.
static struct gbpy_object * detach(struct gbpy_object * p, struct gbpy_object ** where) {
    *where = NULL;
    if (!p->attached) {
        return NULL;
    }
    *where = p->recording;
    *(p->recording != NULL ? &p->recording->profile : &everything) = NULL;
    p->attached = false;
    p->recording = NULL;
    atomic_fetch_sub(&gbpy_n_attached, 1);
    return p;
}

int gbpy_attach_profile(struct gbpy_handle * profile, struct gbpy_handle * where) {
    static const char what[] = "profile";
    struct gbpy_object * p = gbpy_object_of(profile, what);
    struct gbpy_object * o = where != NULL ? gbpy_object_of(where, what) : NULL;
    if (p == NULL || (where != NULL && o == NULL)) {
        return GGML_STATUS_INVALID_STATE;
    }
    gbpy_mutex_lock();
    const bool attached = attach(p, o);
    gbpy_mutex_unlock();
    GB_FAIL_IF(!attached, GGML_STATUS_INVALID_STATE, "a profile is being recorded already; stop() it first");
    return GGML_STATUS_SUCCESS;
}

bool gbpy_is_attached(const struct gbpy_handle * profile) {
    if (profile == NULL || profile->object == NULL) {
        return false;
    }
    gbpy_mutex_lock();
    const bool is = profile->object->attached;
    gbpy_mutex_unlock();
    return is;
}

void gbpy_detach_profile(struct gbpy_handle * profile) {
    struct gbpy_object * where = NULL;
    if (profile != NULL && profile->object != NULL) {
        gbpy_mutex_lock();
        struct gbpy_object * p = detach(profile->object, &where);
        gbpy_mutex_unlock();
        if (where != NULL) {
            gbpy_weak_unref(where);
        }
        gbpy_unref(p);
    }
}

void gbpy_release_profile(struct gbpy_handle * handle) {
    gbpy_detach_profile(handle);
    gbpy_release(handle);
}

void gbpy_drop_profile(struct gbpy_object * o, struct gbpy_object ** dead) {
    struct gbpy_object * where = NULL;
    if (o->kind != GBPY_SCHED && o->kind != GBPY_GRAPH) {
        return;
    }
    gbpy_mutex_lock();
    struct gbpy_object * p = o->profile != NULL ? detach(o->profile, &where) : NULL;
    gbpy_mutex_unlock();
    if (where != NULL) {
        gbpy_weak_unref(where);
    }
    gbpy_give(p, dead);
}

void gbpy_find_recording(struct gbpy_recording * r, const struct gbpy_object * sched,
    const struct gbpy_object * graph) {
    gbpy_mutex_lock();
    r->profile = sched != NULL && sched->profile != NULL ? sched->profile : graph->profile;
    r->profile = r->profile == NULL && gb_run() == NULL ? everything : r->profile;
    if (r->profile != NULL) {
        gbpy_ref(r->profile);
    }
    gbpy_mutex_unlock();
    if (r->profile != NULL) {
        r->before = gb_profile_enter(r->profile->ptr);
    }
}

void gbpy_leave_recording(const struct gbpy_recording * r, bool ok) {
    if (!ok) {
        gb_profile_fail_run();
    }
    gb_profile_leave(r->before);
    gbpy_unref(r->profile);
}
