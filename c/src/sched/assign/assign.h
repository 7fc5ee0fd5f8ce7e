// assign.h - assigns the nodes of a plan to backends, with the reasons, and tells which memory a
// backend can use.
//
// rules.h and problem.h are pure: integers in, integers out. The functions here query backends and
// buffers. `supports` caches the answers of backends about nodes.
#ifndef GB_SCHED_ASSIGN_ASSIGN_H
#define GB_SCHED_ASSIGN_ASSIGN_H

#include "ggml-backend.h"
#include "sched/assign/rules.h"
#include "sched/cost/cost.h"

struct ggml_backend_sched;
struct gb_backend_need;
struct gb_sched_input;
struct gb_text;
struct gb_costs; // the user's cost table

// gb_sched_assign makes it. Then it never changes, except that `supports` caches more answers.
// Owned by the plan.
struct gb_sched_assigned {
    struct gb_assignment * to; // per id
    uint8_t * supports;        // n_nodes x n_backends: 0 unknown, 1 yes, 2 no
    bool predicted; // costs decided the assignment
    struct ggml_backend_sched_prediction prediction;
};

// Prices of memory, used when a plan is made again because of memory limits.
struct gb_sched_memory_prices {
    double per_byte[GB_COST_BACKENDS_MAX]; // per backend
    double bound_us; // predicted time of the placement without limits
    int rounds;
};

// `memory` is NULL, or has no rounds, until a plan exceeded a memory limit. Fills `assigned`, which
// must be zero; gb_sched_free_assigned frees it after a failure, too. UNSUPPORTED: no backend can
// run a node, or the one that the user chose cannot. INVALID_STATE: the backend that the user chose
// for a leaf cannot use the leaf's memory. The message contains the reasons of the backends.
enum ggml_status gb_sched_assign(const struct ggml_backend_sched * s, const struct gb_sched_input * in,
    const struct gb_sched_memory_prices * memory, struct gb_sched_assigned * assigned);
void gb_sched_free_assigned(struct gb_sched_assigned * assigned);

// prices.c
// Makes a checked copy of the user's table, owned by the caller. INVALID_ARGUMENT and UNSUPPORTED
// name the entry that is wrong or missing; ALLOC_FAILED: no memory.
enum ggml_status gb_costs_new(const struct ggml_backend_sched * s, const struct ggml_backend_cost_table * table,
    struct gb_costs ** costs);
void gb_costs_free(struct gb_costs * costs);
// Assigns by the scheduler's policy. Without costs, or with another policy than COST, the rules
// decide and nothing is predicted. Fills `to`, and `prediction` if costs decided. It does not check
// the assignment.
enum ggml_status gb_sched_assign_by_policy(const struct ggml_backend_sched * s, const struct gb_sched_input * in,
    const struct gb_sched_memory_prices * memory, const struct gb_assign_graph * graph,
    struct gb_sched_assigned * assigned);
// Raises the prices of memory where a plan needs more than the costs allow. `need`: per backend.
// *again: make the plan again. Call it for each plan, until *again is false. ALLOC_FAILED, and
// reported: after many rounds the plan still exceeds a limit. Does nothing without limits, or if
// costs did not place the plan.
enum ggml_status gb_sched_raise_prices(const struct ggml_backend_sched * s, const struct gb_sched_assigned * assigned,
    const struct gb_backend_need * need, struct gb_sched_memory_prices * memory, bool * again);

// reach.c
// True if `backend` can use buffers of this type.
bool gb_sched_supports_buft(const struct ggml_backend_sched * s, ggml_backend_buffer_type_t buft, int backend);
// The buffer type of a root that has memory; NULL: it has none yet.
ggml_backend_buffer_type_t gb_sched_placed_buft(const struct gb_sched_input * in, int root);
// True if `backend` can use memory that the scheduler allocates for `of_backend`.
bool gb_sched_shares(const struct ggml_backend_sched * s, int backend, int of_backend);
// True if `backend` can use the memory that the root has or will have.
bool gb_sched_reaches(const struct ggml_backend_sched * s, const struct gb_sched_input * in,
    const struct gb_sched_assigned * assigned, int backend, int root);
// The backend of the root, if it can use the root's memory; else -1.
int gb_sched_owner_of(const struct ggml_backend_sched * s, const struct gb_sched_input * in,
    const struct gb_sched_assigned * assigned, int root);

// refusal.c
// Appends "; NAME: reason" for each backend that cannot run the node, with `before` before the
// name.
void gb_sched_append_refusals(struct gb_text * t, const struct ggml_backend_sched * s, const struct ggml_tensor * node,
    const char * before);
// Reports the tensor whose assignment is invalid (gb_assign_check).
enum ggml_status gb_sched_fail_assignment(const struct ggml_backend_sched * s, const struct gb_sched_input * in,
    int id);

#endif // GB_SCHED_ASSIGN_ASSIGN_H
