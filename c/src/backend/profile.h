// profile.h - recording of computations in the profile of the calling thread (ggml-profile.h).
//
// A run begins where the first of them does: a scheduler, ggml_backend_graph_compute, the CPU engine. Who is called
// inside of a run adds to it.
#ifndef GB_BACKEND_PROFILE_H
#define GB_BACKEND_PROFILE_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "ggml-backend.h"

extern atomic_int gb_profiles; // how many there are

// True if the calling thread uses a profile. Without any profile, the check reads one number.
bool gb_profile_is_used(void);
static inline bool gb_profile_is_on(void) {
    return atomic_load_explicit(&gb_profiles, memory_order_relaxed) != 0 && gb_profile_is_used();
}

// What is known of a record and its step. Texts are cut where they are too long; NULL is "".
struct gb_profile_note {
    struct ggml_tensor * const * nodes; // those that compute are counted
    int n_nodes;
    bool apart; // computed one after the other, else in one go
    const char *fusion, *algorithm, *level;
    int64_t start_ns, end_ns, waiting_ns;
    int n_threads, n_tasks;
};
// Adds a record to the thread's run. Without a run, or a place for it, nothing happens.
void gb_profile_add(const struct gb_profile_note * note);
// Counts records that could not be made.
void gb_profile_drop(uint64_t n);
// Records of the calling thread so far. A caller of a backend uses it to see if the backend
// records.
uint64_t gb_profile_n_added(void);

// Begins a run; false: the thread uses no profile, or is in a run already. The matching call of gb_profile_end_run gets
// the answer.
bool gb_profile_begin_run(void);
void gb_profile_end_run(bool begun, bool complete);

// The run that ended last, since the thread entered its profile, was not complete after all.
void gb_profile_fail_run(void);

// Sets the name of the device that computes, a text that outlives its use, and returns the one before; NULL: CPU.
const char * gb_profile_set_device(const char * name);

// The profile that the calling thread uses, and its position in it.
struct gb_profile_scope {
    struct ggml_profile * profile; // NULL: none
    const char * device;
    uint32_t run;
    bool in_run;
    uint64_t n_added;
};
// From here to the matching gb_profile_leave the thread records in another profile, which outlives that; NULL: nothing.
// A run that it is in stays as it is meanwhile. The CPU engine enters NULL while functions of the user's may be called.
struct gb_profile_scope gb_profile_enter(struct ggml_profile * profile);
void gb_profile_leave(struct gb_profile_scope before);

#endif // GB_BACKEND_PROFILE_H
