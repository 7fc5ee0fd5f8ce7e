// algorithms.c - chooses the algorithm that computes a convolution.
//
// The table lists algorithms in the order of preference. A convolution uses the first algorithm
// that can compute it and does not decline. The last one computes every convolution.
//
//   pointwise  1 x 1 kernels: a product whose panels are packed from the tensor
//   planes     depthwise, square kernels, small planes or stride 2: reads the tensor in place
//   rows       one or two output channels in a group (depthwise): rows of the output in registers
//   columns    many output channels, rows that are not too long: products of packed columns
//   tiles      other convolutions: tiles of output channels by positions
//   gathered   paddings, strides or dilations so large that a padded copy of the input would not fit
#include "cpu/ops/conv/algorithm.h"

#include <stdatomic.h>

static const char * can_always(const struct gb_conv_job * j) {
    (void) j;
    return NULL;
}

static const struct gb_conv_algorithm algorithms[] = {
    { "pointwise", gb_conv_pointwise_cannot, gb_conv_pointwise_declines, gb_conv_pointwise_work_size,
        gb_conv_pointwise_run },
    { "planes", gb_conv_planes_cannot, gb_conv_planes_declines, gb_conv_planes_work_size, gb_conv_planes_run },
    { "rows", gb_conv_rows_cannot, gb_conv_rows_declines, gb_conv_rows_work_size, gb_conv_rows_run },
    { "columns", gb_conv_columns_cannot, gb_conv_columns_declines, gb_conv_columns_work_size, gb_conv_columns_run },
    { "tiles", gb_conv_tiles_cannot, can_always, gb_conv_tiles_work_size, gb_conv_tiles_run },
    { "gathered", can_always, can_always, gb_conv_gathered_work_size, gb_conv_gathered_run },
};

enum { N_ALGORITHMS = sizeof(algorithms) / sizeof(algorithms[0]) };

static atomic_int preferred = -1;

void gb_conv_prefer(int candidate) { atomic_store(&preferred, candidate); }

static const struct gb_conv_algorithm * choose(const struct gb_conv_job * j) {
    const int first = atomic_load_explicit(&preferred, memory_order_relaxed);
    if (first >= 0 && first < N_ALGORITHMS && algorithms[first].cannot(j) == NULL) {
        return &algorithms[first];
    }
    int i = 0;
    while (algorithms[i].cannot(j) != NULL || algorithms[i].declines(j) != NULL) {
        i++;
    }
    return &algorithms[i];
}

const char * gb_conv_candidate(const struct gb_conv_job * j, int i, const char ** why) {
    if (i >= N_ALGORITHMS) {
        return NULL;
    }
    *why = algorithms[i].cannot(j);
    *why = *why != NULL ? *why : algorithms[i].declines(j);
    return algorithms[i].name;
}

int gb_conv_n_tasks(const struct gb_conv_job * j, int n_threads) {
    const double macs =
        (double) (j->batches * j->groups * j->oc) * (double) gb_conv_positions(j) * (double) gb_conv_terms(j);
    const int64_t units = j->batches * j->groups * gb_div_up(j->oc, GB_GEMM_MR_MAX) * j->axis[2].out * j->axis[1].out *
                          gb_div_up(j->axis[0].out, GB_GEMM_NR_MAX);
    return gb_tasks_for(macs / 8, units, n_threads);
}

size_t gb_conv_work_size(const struct gb_conv_job * j, int n_tasks) { return choose(j)->work_size(j, n_tasks); }

void gb_conv_run(const struct gb_cpu_call * call, const struct gb_conv_job * j) { choose(j)->run(call, j); }
