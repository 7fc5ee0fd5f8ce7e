// profiles.h - whose computations are recorded in which profile (ggml-profile.h).
//
// A profile is attached to a scheduler, to a graph, or to the process. A computation looks for one when it begins: its
// scheduler's, else its graph's, else that of the process; of computations inside of others, such as of a callback, the
// last does not count. It keeps what it found until it ends. While nothing is attached anywhere that costs the look at
// one number. Who records keeps its profile; a profile whose handle goes is detached, since nobody could read it.
#ifndef GBPY_PROFILES_H
#define GBPY_PROFILES_H

#include "objects.h"

// cdef: begin

int gbpy_open_profile(struct gbpy_handle * handle, size_t max_records);
void gbpy_release_profile(struct gbpy_handle * handle); // the destructor of such handles
// From now on the object behind `where` records there; NULL: the process. INVALID_STATE: another profile is attached.
int gbpy_attach_profile(struct gbpy_handle * profile, struct gbpy_handle * where);
void gbpy_detach_profile(struct gbpy_handle * profile); // no more; of one that is not attached nothing
bool gbpy_is_attached(const struct gbpy_handle * profile);

// cdef: end

struct gbpy_sched;

struct gbpy_recording { // of one computation
    struct gbpy_object * profile; // strong; NULL: none
    struct gb_profile_scope before;
};

extern atomic_int gbpy_n_attached;

// What the two below do where something is attached.
void gbpy_find_recording(struct gbpy_recording * r, const struct gbpy_sched * sched, const struct gbpy_graph * graph);
void gbpy_leave_recording(const struct gbpy_recording * r, bool ok);

// Around a computation, on its thread, before gb_set_run. sched: NULL where there is none.
static inline void gbpy_begin_recording(struct gbpy_recording * r, const struct gbpy_sched * sched,
    const struct gbpy_graph * graph) {
    r->profile = NULL;
    if (atomic_load_explicit(&gbpy_n_attached, memory_order_relaxed) != 0) {
        gbpy_find_recording(r, sched, graph);
    }
}

// ok: false if the computation has failed although C has done all of it: a callback has raised something.
static inline void gbpy_end_recording(const struct gbpy_recording * r, bool ok) {
    if (r->profile != NULL) {
        gbpy_leave_recording(r, ok);
    }
}

#endif // GBPY_PROFILES_H
