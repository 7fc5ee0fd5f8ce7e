// profiles.h - which profile (ggml-profile.h) records a computation.
//
// A profile is attached to a scheduler, to a graph, or to the process. When a computation begins, it looks for a
// profile in this order, and keeps it until it ends. A computation inside another one, such as in a callback, does
// not use the profile of the process. While no profile is attached anywhere, this costs one load. A profile is
// detached when its handle is released, because nobody could read it any more.
#ifndef GBPY_PROFILES_H
#define GBPY_PROFILES_H

#include "objects.h"

// cdef: begin

int gbpy_open_profile(struct gbpy_handle * handle, size_t max_records);
void gbpy_release_profile(struct gbpy_handle * handle); // the destructor of handles of profiles
// Attaches the profile to the object of `where` (NULL: the process). INVALID_STATE: another profile is attached there,
// this one is attached already, or a handle is closed.
int gbpy_attach_profile(struct gbpy_handle * profile, struct gbpy_handle * where);
void gbpy_detach_profile(struct gbpy_handle * profile); // does nothing for a profile that is not attached
bool gbpy_is_attached(const struct gbpy_handle * profile);

// cdef: end

struct gbpy_sched;

struct gbpy_recording { // of one computation
    struct gbpy_object * profile; // strong; NULL: none
    struct gb_profile_scope before;
};

extern atomic_int gbpy_n_attached;

// The slow paths of the two functions below, when a profile is attached somewhere.
void gbpy_find_recording(struct gbpy_recording * r, const struct gbpy_sched * sched, const struct gbpy_graph * graph);
void gbpy_leave_recording(const struct gbpy_recording * r, bool ok);

// Call the first before gb_set_run, and the second after the computation, on the same thread. sched may be NULL.
static inline void gbpy_begin_recording(struct gbpy_recording * r, const struct gbpy_sched * sched,
    const struct gbpy_graph * graph) {
    r->profile = NULL;
    if (atomic_load_explicit(&gbpy_n_attached, memory_order_relaxed) != 0) {
        gbpy_find_recording(r, sched, graph);
    }
}

// ok: false if a callback raised an exception, although C completed the computation.
static inline void gbpy_end_recording(const struct gbpy_recording * r, bool ok) {
    if (r->profile != NULL) {
        gbpy_leave_recording(r, ok);
    }
}

#endif // GBPY_PROFILES_H
