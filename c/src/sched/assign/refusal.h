// refusal.h - texts of what backends cannot do.
#ifndef GB_SCHED_ASSIGN_REFUSAL_H
#define GB_SCHED_ASSIGN_REFUSAL_H

#include "sched/sched.h"

struct gb_text {
    char * at;
    size_t room; // bytes left, with the NUL
};

// Cut off where there is no room.
GGML_ATTRIBUTE_FORMAT(2, 3) void gb_text_append(struct gb_text * t, const char * fmt, ...);
// What each backend says that cannot run the node.
void gb_sched_append_refusals(struct gb_text * t, const struct ggml_backend_sched * s, const struct ggml_tensor * node);
// Reports the tensor whose assignment cannot stand (gb_assign_check).
enum ggml_status gb_sched_fail_assignment(struct ggml_backend_sched * s, struct gb_sched_plan * p, int id);

#endif // GB_SCHED_ASSIGN_REFUSAL_H
