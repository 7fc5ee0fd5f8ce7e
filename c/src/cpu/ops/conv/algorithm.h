// algorithm.h - the interface of the algorithms for convolutions, and their shared functions. Private to this folder.
#ifndef GB_CPU_OPS_CONV_ALGORITHM_H
#define GB_CPU_OPS_CONV_ALGORITHM_H

#include "cpu/ops/conv/conv.h"
#include "cpu/ops/conv/slab.h"

struct gb_conv_algorithm {
    const char * name; // for users; unique
    // NULL if it can compute the convolution. Otherwise the reason, a static text. Depends on
    // shapes, types and strides alone.
    const char * (*cannot)(const struct gb_conv_job * j);
    // NULL if it is faster than the later algorithms. Called only if it can compute the
    // convolution.
    const char * (*declines)(const struct gb_conv_job * j);
    size_t (*work_size)(const struct gb_conv_job * j, int n_tasks);
    void (*run)(const struct gb_cpu_call * call, const struct gb_conv_job * j);
};

const char * gb_conv_pointwise_cannot(const struct gb_conv_job * j);
const char * gb_conv_pointwise_declines(const struct gb_conv_job * j);
size_t gb_conv_pointwise_work_size(const struct gb_conv_job * j, int n_tasks);
void gb_conv_pointwise_run(const struct gb_cpu_call * call, const struct gb_conv_job * j);

const char * gb_conv_planes_cannot(const struct gb_conv_job * j);
const char * gb_conv_planes_declines(const struct gb_conv_job * j);
size_t gb_conv_planes_work_size(const struct gb_conv_job * j, int n_tasks);
void gb_conv_planes_run(const struct gb_cpu_call * call, const struct gb_conv_job * j);

const char * gb_conv_rows_cannot(const struct gb_conv_job * j);
const char * gb_conv_rows_declines(const struct gb_conv_job * j);
size_t gb_conv_rows_work_size(const struct gb_conv_job * j, int n_tasks);
void gb_conv_rows_run(const struct gb_cpu_call * call, const struct gb_conv_job * j);

const char * gb_conv_columns_cannot(const struct gb_conv_job * j);
const char * gb_conv_columns_declines(const struct gb_conv_job * j);
size_t gb_conv_columns_work_size(const struct gb_conv_job * j, int n_tasks);
void gb_conv_columns_run(const struct gb_cpu_call * call, const struct gb_conv_job * j);

const char * gb_conv_tiles_cannot(const struct gb_conv_job * j);
size_t gb_conv_tiles_work_size(const struct gb_conv_job * j, int n_tasks);
void gb_conv_tiles_run(const struct gb_cpu_call * call, const struct gb_conv_job * j);

size_t gb_conv_gathered_work_size(const struct gb_conv_job * j, int n_tasks);
void gb_conv_gathered_run(const struct gb_cpu_call * call, const struct gb_conv_job * j);

// --------------------------------------------------------------------------------------------------------------- bands

// The bands of positions into which an output plane is divided. A band is computed from one slab.
struct gb_conv_bands {
    int64_t columns, rows; // of a band; the last ones may have fewer
    int64_t n_columns, n_rows; // bands along the width and the height
    int64_t floats; // of the largest slab, with slack; negative: a slab would be too large
};

// Bands whose slabs have about `limit` floats.
struct gb_conv_bands gb_conv_bands_of(const struct gb_conv_job * j, int64_t limit);

// A unit is the work of a thread between two checks: a band of one output plane for a block of
// output channels. Consecutive units are blocks of the same band, so that a thread can keep the
// slab.
struct gb_conv_unit {
    int64_t batch, group, block;
    struct gb_slab slab; // first and n are set
};

static inline int64_t gb_conv_n_units(const struct gb_conv_job * j, const struct gb_conv_bands * b, int64_t blocks) {
    return j->batches * j->groups * j->axis[2].out * b->n_rows * b->n_columns * blocks;
}
struct gb_conv_unit gb_conv_unit_at(const struct gb_conv_job * j, const struct gb_conv_bands * b, int64_t blocks,
    int64_t i);

// Output channels of a block: all, or fewer if there are too few bands for the threads. A multiple
// of the rows of a tile.
int64_t gb_conv_block(const struct gb_cpu_call * call, const struct gb_conv_job * j, const struct gb_conv_bands * b);

// Copies n floats of rows of a band, `pitch` floats apart, from flat position f of the band on. y:
// the first position of the band in the output plane.
void gb_conv_store(const struct gb_conv_job * j, const struct gb_slab * s, int64_t f, int64_t n, const float * x,
    float * y);

// The first result of the unit's band for output channel o of the group.
static inline float * gb_conv_y(const struct gb_conv_job * j, const struct gb_conv_unit * u, int64_t o) {
    const struct gb_slab * s = &u->slab;
    return j->y + u->batch * j->y_batch + (u->group * j->oc + o) * j->y_channel +
           (s->first[2] * j->axis[1].out + s->first[1]) * j->axis[0].out + s->first[0];
}

// The epilogue for the unit's band of output channels [o, o + n).
void gb_conv_finish(const struct gb_cpu_call * call, const struct gb_conv_job * j, const struct gb_conv_unit * u,
    int64_t o, int64_t n);

// The weights of output channels [o, o + n) of a group as floats, in place or copied to buffer.
const float * gb_conv_weights(const struct gb_cpu_call * call, const struct gb_conv_job * j, int64_t group, int64_t o,
    int64_t n, float * buffer);

// Last positions up to which dot products are faster than half a tile.
static inline int64_t gb_conv_few(const struct gb_kernels * k) { return GB_MIN(k->rows_x, k->gemm_nr / 4); }

// Output channels of a tile, for n channels: as equal as possible.
static inline int64_t gb_conv_channels_of_tile(const struct gb_kernels * k, int64_t n) {
    return gb_div_up(n, gb_div_up(n, k->gemm_mr));
}

// The cost of a number of multiply-adds, in the unit of gb_cpu_stopped.
static inline int64_t gb_conv_work(int64_t macs) { return macs / 16; }

// The number of floats that n 64-bit numbers occupy.
#define GB_CONV_FLOATS_OF_OFFSETS(n) (2 * (n))

// Rounds up, because pieces of a thread's memory begin at multiples of 16 floats.
static inline int64_t gb_conv_aligned(int64_t floats) { return (floats + 15) / 16 * 16; }

#endif // GB_CPU_OPS_CONV_ALGORITHM_H
