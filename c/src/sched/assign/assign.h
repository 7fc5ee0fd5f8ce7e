// assign.h - which backend runs each node of a plan, why, and which memory a backend can use.
//
// rules.h and problem.h are the pure part: integers in, integers out. Here backends and buffers are asked. What a
// backend answers about a node is kept in `supports`: whoever wants to know it later finds it there.
#ifndef GB_SCHED_ASSIGN_ASSIGN_H
#define GB_SCHED_ASSIGN_ASSIGN_H

#include "ggml-backend.h"
#include "sched/assign/rules.h"
#include "sched/cost/cost.h"

struct ggml_backend_sched;
struct gb_backend_need;
struct gb_sched_input;
struct gb_text;
struct gb_costs; // what the user says that work costs

// Made by gb_sched_assign, then never changed, except that `supports` learns answers. Owned by the plan.
struct gb_sched_assigned {
    struct gb_assignment * to; // per id
    uint8_t * supports;        // n_nodes x n_backends: 0 unknown, 1 yes, 2 no
    bool predicted;            // placed by costs:
    struct ggml_backend_sched_prediction prediction;
};

// What memory costs, when a plan is made again because of memory limits.
struct gb_sched_memory_prices {
    double per_byte[GB_COST_BACKENDS_MAX]; // by backend
    double bound_us;                       // of placements without limits
    int rounds;
};

// `memory` is NULL, or has no rounds, until a memory limit was met. Fills `assigned`, which is all zero before;
// gb_sched_free_assigned frees it after a failure, too. UNSUPPORTED: no backend can run a node, or not the one that the
// user chose; INVALID_STATE: a leaf of the user lies where the backend that was chosen for it cannot use it; both are
// reported with what the backends say.
enum ggml_status gb_sched_assign(const struct ggml_backend_sched * s, const struct gb_sched_input * in,
    const struct gb_sched_memory_prices * memory, struct gb_sched_assigned * assigned);
void gb_sched_free_assigned(struct gb_sched_assigned * assigned);

// prices.c
// Makes a checked copy of the user's table, owned by the caller. INVALID_ARGUMENT and UNSUPPORTED name the entry of the
// table that is wrong or missing; ALLOC_FAILED: no memory.
enum ggml_status gb_costs_new(const struct ggml_backend_sched * s, const struct ggml_backend_cost_table * table,
    struct gb_costs ** costs);
void gb_costs_free(struct gb_costs * costs);
// Assigns by the scheduler's policy, whichever it is. Without costs, or with another policy, the rules alone decide and
// nothing is predicted. It fills `to`, and if costs decided `prediction`; it does not look whether the assignment can
// stand.
enum ggml_status gb_sched_assign_by_policy(const struct ggml_backend_sched * s, const struct gb_sched_input * in,
    const struct gb_sched_memory_prices * memory, const struct gb_assign_graph * graph,
    struct gb_sched_assigned * assigned);
// Prices bytes on backends where a plan needs more than the costs allow; need: per backend. *again: the plan is to be
// made again. It is called with each plan that was made, until *again is false. ALLOC_FAILED, and reported: after many
// rounds the plan still needs more than is allowed. Without limits, or if the plan was not placed by costs, nothing
// happens.
enum ggml_status gb_sched_raise_prices(const struct ggml_backend_sched * s, const struct gb_sched_assigned * assigned,
    const struct gb_backend_need * need, struct gb_sched_memory_prices * memory, bool * again);

// reach.c
// Can `backend` use buffers of this type?
bool gb_sched_supports_buft(const struct ggml_backend_sched * s, ggml_backend_buffer_type_t buft, int backend);
// The type of the memory that a root has already; NULL: it has none yet.
ggml_backend_buffer_type_t gb_sched_placed_buft(const struct gb_sched_input * in, int root);
// Can `backend` use memory that is placed on `of_backend`? The scheduler places tensors in buffers of the type that
// belongs to the backend.
bool gb_sched_shares(const struct ggml_backend_sched * s, int backend, int of_backend);
// Can `backend` use the memory that the root has or will have?
bool gb_sched_reaches(const struct ggml_backend_sched * s, const struct gb_sched_input * in,
    const struct gb_sched_assigned * assigned, int backend, int root);
// The backend to which the root is assigned, if it can use the root's memory; else -1.
int gb_sched_owner_of(const struct ggml_backend_sched * s, const struct gb_sched_input * in,
    const struct gb_sched_assigned * assigned, int root);

// refusal.c
// "; NAME: reason" for each backend that cannot run the node; `before` stands before the name.
void gb_sched_append_refusals(struct gb_text * t, const struct ggml_backend_sched * s, const struct ggml_tensor * node,
    const char * before);
// Reports the tensor whose assignment cannot stand (gb_assign_check).
enum ggml_status gb_sched_fail_assignment(const struct ggml_backend_sched * s, const struct gb_sched_input * in,
    int id);

#endif // GB_SCHED_ASSIGN_ASSIGN_H
