// profile.h - recording of computations in the profile of the calling thread (ggml-profile.h).
//
// The outermost function begins a run: a scheduler, ggml_backend_graph_compute, or the CPU engine.
// Its callees add to that run.
#ifndef GB_BACKEND_PROFILE_H
#define GB_BACKEND_PROFILE_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "ggml-backend.h"

extern atomic_int gb_profiles;  // number of profiles

// True if the calling thread uses a profile. Without any profile, the check reads one number.
bool gb_profile_is_used(void);
static inline bool gb_profile_is_on(void) {
    return atomic_load_explicit(&gb_profiles, memory_order_relaxed) != 0 && gb_profile_is_used();
}

// The facts of a record and its step. Texts that are too long are cut. NULL is "".
struct gb_profile_note {
    struct ggml_tensor * const * nodes; // only nodes that compute are counted
    int n_nodes;
    bool apart;  // computed one after another, else together
    const char *fusion, *algorithm, *level;
    int64_t start_ns, end_ns, waiting_ns;
    int n_threads, n_tasks;
};
// Adds a record to the thread's run. Counts it as dropped if there is no space. Without a run it does nothing.
void gb_profile_add(const struct gb_profile_note * note);
// Counts records that could not be made.
void gb_profile_drop(uint64_t n);
// Records of the calling thread so far. A caller of a backend uses it to see if the backend
// records.
uint64_t gb_profile_n_added(void);

// Begins a run. False: the thread uses no profile, or has begun a run already. Pass the answer to
// the matching gb_profile_end_run.
bool gb_profile_begin_run(void);
void gb_profile_end_run(bool begun, bool complete);

// Marks the last ended run, since the thread entered its profile, as not complete.
void gb_profile_fail_run(void);

// Sets the name of the computing device, a static text, and returns the previous one. NULL: CPU.
const char * gb_profile_set_device(const char * name);

// The profile that the calling thread uses, and its position in it.
struct gb_profile_scope {
    struct ggml_profile * profile; // NULL: none
    const char * device;
    uint32_t run;
    bool in_run;
    uint64_t n_added;
};
// Until the matching gb_profile_leave, the thread records in another profile, which must outlive
// that call. NULL: it records nothing. The current run pauses until then. The CPU engine enters
// NULL around calls of user functions.
struct gb_profile_scope gb_profile_enter(struct ggml_profile * profile);
void gb_profile_leave(struct gb_profile_scope before);

#endif // GB_BACKEND_PROFILE_H
