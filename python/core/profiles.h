// profiles.h - whose computations are recorded in which profile (ggml-profile.h).
//
// A profile is attached to a scheduler, to a graph, or to the process. A computation looks for one when it begins: its
// scheduler's, else its graph's, else that of the process; of computations inside of others, such as of a callback, the
// last does not count. It keeps what it found until it ends. While nothing is attached anywhere that costs the look at
// one number.
#ifndef GBPY_PROFILES_H
#define GBPY_PROFILES_H

#include "objects.h"

// cdef: begin

int gbpy_open_profile(struct gbpy_handle * handle, size_t max_records);
// From now on the object behind `where` records there; NULL: the process. INVALID_STATE: another profile is attached.
int gbpy_attach_profile(struct gbpy_handle * profile, struct gbpy_handle * where);
// No more; nothing happens where another one is attached, or none.
void gbpy_detach_profile(struct gbpy_handle * profile, struct gbpy_handle * where);
bool gbpy_is_attached(const struct gbpy_handle * profile, const struct gbpy_handle * where);

// cdef: end

struct gbpy_recording {              // of one computation
    struct gbpy_object *    profile; // strong; NULL: none
    struct gb_profile_scope before;
};

// Around a computation, on its thread, before gb_set_run. sched: NULL where there is none.
struct gbpy_recording gbpy_begin_recording(const struct gbpy_object * sched, const struct gbpy_object * graph);
void                  gbpy_end_recording(struct gbpy_recording recording);

#endif // GBPY_PROFILES_H
