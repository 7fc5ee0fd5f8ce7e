// profiles.c - profiles, and which scheduler, graph or process records in them (profiles.h).
#include "profiles.h"

#include "extension.h"
#include "sched_impl.h"
#include "world.h"

atomic_int gbpy_n_attached;
static struct gbpy_object * everything; // strong; the profile that is attached to the process; under the mutex

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

// The field that refers to the profile of a scheduler or graph (NULL: of the process).
static struct gbpy_object ** place_of(struct gbpy_object * where) {
    return where == NULL               ? &everything
           : where->kind == GBPY_SCHED ? &((struct gbpy_sched *) where)->profile
                                       : &((struct gbpy_graph *) where)->profile;
}

// Under the mutex. False: another profile is attached there, or this one is attached already.
static bool attach(struct gbpy_profile * p, struct gbpy_object * where) {
    struct gbpy_object ** place = place_of(where);
    if (*place != NULL || p->attached) {
        return false;
    }
    gbpy_ref(&p->head);
    *place = &p->head;
    p->attached = true;
    p->recording = where;
    if (where != NULL) {
        gbpy_weak_ref(where);
    }
    atomic_fetch_add(&gbpy_n_attached, 1);
    return true;
}

// Under the mutex. Returns the profile, whose strong reference the caller drops, and sets *where, whose weak
// reference the caller drops. NULL: the profile is not attached.
static struct gbpy_object * detach(struct gbpy_profile * p, struct gbpy_object ** where) {
    *where = NULL;
    if (!p->attached) {
        return NULL;
    }
    *where = p->recording;
    *place_of(p->recording) = NULL;
    p->attached = false;
    p->recording = NULL;
    atomic_fetch_sub(&gbpy_n_attached, 1);
    return &p->head;
}

int gbpy_attach_profile(struct gbpy_handle * profile, struct gbpy_handle * where) {
    static const char what[] = "profile";
    struct gbpy_profile * p = (struct gbpy_profile *) gbpy_object_of(profile, what);
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
    const bool is = ((const struct gbpy_profile *) profile->object)->attached;
    gbpy_mutex_unlock();
    return is;
}

void gbpy_detach_profile(struct gbpy_handle * profile) {
    struct gbpy_object * where = NULL;
    if (profile != NULL && profile->object != NULL) {
        gbpy_mutex_lock();
        struct gbpy_object * p = detach((struct gbpy_profile *) profile->object, &where);
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

void gbpy_drop_profile(struct gbpy_object ** place, struct gbpy_object ** dead) {
    struct gbpy_object * where = NULL;
    gbpy_mutex_lock();
    struct gbpy_object * p = *place != NULL ? detach((struct gbpy_profile *) *place, &where) : NULL;
    gbpy_mutex_unlock();
    if (where != NULL) {
        gbpy_weak_unref(where);
    }
    gbpy_give(p, dead);
}

void gbpy_find_recording(struct gbpy_recording * r, const struct gbpy_sched * sched, const struct gbpy_graph * graph) {
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
