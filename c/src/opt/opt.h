// opt.h - the optimizers behind ggml_opt, and the function that they minimize.
//
// A problem is a loss over the elements of all parameters, in the order of the graph. An optimizer
// sees it as a function of one vector x of nx floats with a gradient g. AdamW changes the parameters
// themselves. L-BFGS has an x of its own, which gb_problem_set writes to the parameters.
//
//   opt.c       the public functions: defaults, state, graphs
//   problem.c   the loss and its gradient
//   adam.c      AdamW: Kingma and Ba 2015; Loshchilov and Hutter 2019
//   lbfgs.c     L-BFGS with backtracking: Nocedal and Wright 2006, algorithms 7.4 and 7.5
#ifndef GB_OPT_OPT_H
#define GB_OPT_OPT_H

#include "base/vec.h"
#include "ggml.h"

struct gb_problem {
    struct ggml_tensor * f;
    struct ggml_cgraph * gf;
    struct ggml_cgraph * gb;
    GB_VEC(struct ggml_tensor *) params;
    int64_t nx;
    struct ggml_cplan plan; // owns work_data
    int n_accumulation;
    float sched; // the callback's, at first the user's
    ggml_opt_callback callback; // or NULL
    void * callback_data;
};

// Checks f, the parameters in gf and their gradients. On failure (reported) the problem is closed.
enum ggml_opt_result gb_problem_open(struct gb_problem * p, const struct ggml_opt_params * params);
void gb_problem_close(struct gb_problem * p);

// Copies all parameters to x, or x to all parameters.
void gb_problem_get(const struct gb_problem * p, float * x);
void gb_problem_set(const struct gb_problem * p, const float * x);

// The mean loss of n_accumulation evaluations at the parameters' values, and its gradient. CANCEL: by
// the callback. FAIL: a computation failed (reported).
enum ggml_opt_result gb_problem_evaluate(struct gb_problem * p, float * fx, float * g);
// False: the loss or an element of the gradient is NaN or infinite (reported). A step would then spoil
// all parameters.
bool gb_problem_is_finite(const struct gb_problem * p, float fx, const float * g, int iter);

// Run until an end that the parameters name. The state in opt belongs to this problem.
enum ggml_opt_result gb_adam_run(struct gb_problem * p, struct ggml_opt_context * opt);
enum ggml_opt_result gb_lbfgs_run(struct gb_problem * p, struct ggml_opt_context * opt);

// The dot product of n floats, in double.
double gb_opt_dot(int64_t n, const float * a, const float * b);

// Losses of the last iterations, in a ring of `past` floats that pf holds; NULL: there is none.
struct gb_past {
    const struct ggml_opt_params * params;
    struct ggml_tensor * pf;
    float * best;
    int * n_no_improvement;
};

void gb_past_begin(const struct gb_past * past, float fx);
// True if the losses of iteration `iter`, from 1, and before show convergence.
bool gb_past_converged(const struct gb_past * past, int iter, float fx);

#endif // GB_OPT_OPT_H
