// content.h - where a tensor's memory is, and whether its content is the tensor's own.
//
// One counter numbers all writes of inputs from Python. A write leaves its number in the tensor, as its *stamp*
// (gb_tensor_content). A run notes the counter when it begins. A result is out of date as soon as one of the inputs
// that it was computed from has a higher number. A result in the user's memory keeps the number of its run. For a
// result in memory of a scheduler, the scheduler knows whether its plan is the current one, whether it ran to its
// end, and which memory was given to another tensor since (sched/results.h). Only valid content may be read.
//
// A NumPy view of an unset input is filled with zeros and counts as set, because users write through it.
#ifndef GBPY_CONTENT_H
#define GBPY_CONTENT_H

#include "extension.h"
#include "locks.h"

static inline int64_t gbpy_stamp(const struct ggml_tensor * t) { return gb_tensor_content(t); }
static inline void gbpy_set_stamp(struct ggml_tensor * t, int64_t stamp) { gb_tensor_set_content(t, stamp); }

extern atomic_llong gbpy_sets; // the counter

// Call this with a write lock on the buffer, after all of it was overwritten. It makes results in the buffer invalid.
void gbpy_note_clear(struct gbpy_memory * buffer);

// Call the next three under the mutex while nobody places tensors of the context, or with a lock on the memory.
// The owner of the tensor's memory; NULL: it has no buffer, or one with an unknown owner.
struct gbpy_memory * gbpy_owner_of(const struct ggml_tensor * t);
bool gbpy_has_lost_memory(const struct ggml_tensor * t); // its memory was freed
// Fails with INVALID_STATE: the tensor has no memory, or its memory was freed.
int gbpy_fail_no_memory(const struct ggml_tensor * t, const char * what);

// With the lock for placing tensors of its context: takes the tensor's memory away. The two functions for lost memory
// do so only for tensors whose memory was freed and is not locked any more.
void gbpy_unplace(struct ggml_tensor * t);
void gbpy_unplace_lost(struct ggml_tensor * t);
void gbpy_unplace_all_lost(struct ggml_context * ctx);

// With a lock on the owner (NULL: the context owns the memory): true if the input was never set, and its memory was
// never written.
bool gbpy_is_unset(const struct gbpy_memory * owner, const struct ggml_tensor * t);
// With a lock on the owner: false if a scheduler has given the tensor's memory to another graph since.
bool gbpy_is_own(const struct gbpy_memory * owner, const struct ggml_tensor * t);
// INVALID_STATE, in a message that begins with `what`, unless gbpy_is_own.
int gbpy_check_own(const struct gbpy_memory * owner, const struct ggml_tensor * t, const char * what);
// The same unless the content is valid.
int gbpy_check_readable(const struct gbpy_memory * owner, const struct ggml_tensor * t, const char * what);

// With a lock on the owner: moves a view that was made before its source was placed, or before it was placed elsewhere.
int gbpy_refresh(struct ggml_tensor * t, const char * what);
// With a write lock on the owner: INVALID_STATE for results, constants and tensors in read-only memory.
int gbpy_check_writable(const struct gbpy_memory * owner, const struct ggml_tensor * t, const char * what);
// All that a write needs: gbpy_check_own, gbpy_refresh, gbpy_check_writable.
int gbpy_prepare_write(const struct gbpy_memory * owner, struct ggml_tensor * t, const char * what);

// True for an input that was made with its data. Only gbpy_upload_constants writes it.
bool gbpy_is_constant(const struct ggml_tensor * t);
void gbpy_set_constant_flag(struct ggml_tensor * t);

// For a copied graph: results that can be read in the original can be read in the copy. False: out of memory.
bool gbpy_copy_content(const struct ggml_cgraph * from, struct ggml_cgraph * to);

void gbpy_describe(const struct ggml_tensor * t, char * text, size_t size); // name and operator, for messages

#endif // GBPY_CONTENT_H
