// assign.h - which backend runs each node of a plan, why, and which memory a backend can use.
//
// rules.h and problem.h are the pure part: integers in, integers out. Here backends and buffers are asked.
#ifndef GB_SCHED_ASSIGN_ASSIGN_H
#define GB_SCHED_ASSIGN_ASSIGN_H

#include "ggml-backend.h"
#include "sched/assign/rules.h"

struct ggml_backend_sched;
struct gb_backend_need;
struct gb_sched_input;
struct gb_costs; // what the user says that work costs

// Made by gb_sched_assign, then never changed, except that `supports` learns answers. Owned by the plan.
struct gb_sched_assigned {
    struct gb_assignment *               to;        // per id
    uint8_t *                            supports;  // n_nodes x n_backends: 0 unknown, 1 yes, 2 no
    bool                                 predicted; // placed by costs:
    struct ggml_backend_sched_prediction prediction;
};

// how a plan was made again because of memory limits
struct gb_sched_relief {
    double pressure[64]; // per backend: price of a byte
    double bound_us;     // of placements without limits
    int    rounds;
};

// relief: NULL or without rounds: no memory limit was met.
enum ggml_status gb_sched_assign(const struct ggml_backend_sched * s, const struct gb_sched_input * in,
    const struct gb_sched_relief * relief, struct gb_sched_assigned * assigned);
void             gb_sched_free_assigned(struct gb_sched_assigned * assigned);

// prices.c
// a checked copy of the user's table; owned by the caller
enum ggml_status gb_costs_new(const struct ggml_backend_sched * s, const struct ggml_backend_cost_table * table,
    struct gb_costs ** costs);
void             gb_costs_free(struct gb_costs * costs);
// any policy
enum ggml_status gb_sched_assign_by_cost(const struct ggml_backend_sched * s, const struct gb_sched_input * in,
    const struct gb_sched_relief * relief, const struct gb_assign_graph * graph, struct gb_sched_assigned * assigned);
// Prices bytes on backends where a plan needs more than the costs allow; need: per backend. *again: the plan is to be
// made again.
enum ggml_status gb_sched_relieve(const struct ggml_backend_sched * s, const struct gb_sched_assigned * assigned,
    const struct gb_backend_need * need, struct gb_sched_relief * relief, bool * again);
double           gb_sched_flops(const struct ggml_tensor * t);

// reach.c
bool gb_sched_supports_buft(const struct ggml_backend_sched * s, ggml_backend_buffer_type_t buft, int backend);
// the type of the memory that a root has already; NULL: it has none yet
ggml_backend_buffer_type_t gb_sched_placed_buft(const struct gb_sched_input * in, int root);
// can `backend` use memory that is placed on `of_backend`
bool gb_sched_shares(const struct ggml_backend_sched * s, int backend, int of_backend);
// can `backend` use the memory that the root has or will have
bool gb_sched_reaches(const struct ggml_backend_sched * s, const struct gb_sched_input * in,
    const struct gb_sched_assigned * assigned, int backend, int root);
// the backend to which the root is assigned, if it can use the root's memory; else -1
int gb_sched_owner_of(const struct ggml_backend_sched * s, const struct gb_sched_input * in,
    const struct gb_sched_assigned * assigned, int root);

// refusal.c
struct gb_text {
    char * at;
    size_t left; // bytes, with the NUL
};

// Cut off where there are no bytes left.
GGML_ATTRIBUTE_FORMAT(2, 3) void gb_text_append(struct gb_text * t, const char * fmt, ...);
// What each backend says that cannot run the node.
void gb_sched_append_refusals(struct gb_text * t, const struct ggml_backend_sched * s, const struct ggml_tensor * node);
// Reports the tensor whose assignment cannot stand (gb_assign_check).
enum ggml_status gb_sched_fail_assignment(const struct ggml_backend_sched * s, const struct gb_sched_input * in,
    int id);

#endif // GB_SCHED_ASSIGN_ASSIGN_H
