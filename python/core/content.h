// content.h - where a tensor's memory is, and whether its content is the tensor's own.
//
// Each write of an input from Python takes the next number of one counter and leaves it in the tensor (its stamp:
// gb_tensor_content). A run notes the counter when it begins: what it computes is out of date as
// soon as an input that it was computed from has a higher number. Tensors that the user placed keep the number of the
// run that computed them; of what a scheduler placed, its plan says whether the plan is the current one, whether it ran
// to its end, and which memory was given to another tensor since (sched/results.h). A result may only be read if it is
// there. An array over an input that nobody set has zeros, which count as set: writing to it is how some are set.
#ifndef GBPY_CONTENT_H
#define GBPY_CONTENT_H

#include "extension.h"
#include "locks.h"

static inline int64_t gbpy_stamp(const struct ggml_tensor * t) { return gb_tensor_content(t); }
static inline void gbpy_set_stamp(struct ggml_tensor * t, int64_t stamp) { gb_tensor_set_content(t, stamp); }

extern atomic_llong gbpy_sets; // the counter
// The caller writes the buffer: all content of it was overwritten, so what were results are none any more.
void gbpy_note_clear(struct gbpy_object * buffer);

// The next three: under the lock while nobody places tensors of its context, or by a user of the owner.
// The owner of its buffer; NULL: it has none, or an unknown one.
struct gbpy_object * gbpy_owner_of(const struct ggml_tensor * t);
bool gbpy_has_lost(const struct ggml_tensor * t); // its memory was given back
// Fails with INVALID_STATE: it has no memory, or has lost it.
int gbpy_fail_lost(const struct ggml_tensor * t, const char * what);

// By the user that places in its context: it has no memory from then on. `lost`: only tensors that have lost their
// memory, and with which nobody computes any more.
void gbpy_unplace(struct ggml_tensor * t);
void gbpy_unplace_lost(struct ggml_tensor * t);
void gbpy_unplace_all_lost(struct ggml_context * ctx);

// By a user of the owner (NULL: the context has the memory): was this input never set, and its memory never written?
bool gbpy_is_unset(const struct gbpy_object * owner, const struct ggml_tensor * t);
// By a user of the owner of its memory: is it still its own? A scheduler may have given it to other graphs since.
bool gbpy_is_own(const struct gbpy_object * owner, const struct ggml_tensor * t);
// Is it an input that was made with its data? gbpy_upload_constants alone writes it.
bool gbpy_is_constant(const struct ggml_tensor * t);
void gbpy_set_constant_flag(struct ggml_tensor * t);

// By a user of the owner of its memory: INVALID_STATE, reported with `what`, if the content is not its own or,
// `reading`, not there.
int gbpy_check_content(const struct gbpy_object * owner, const struct ggml_tensor * t, bool reading, const char * what);
// For a copied graph: what can be read in the original can be read in the copy. False: no memory.
bool gbpy_copy_content(const struct ggml_cgraph * from, struct ggml_cgraph * to);

void gbpy_describe(const struct ggml_tensor * t, char * text, size_t size); // for messages: name and operator

#endif // GBPY_CONTENT_H
