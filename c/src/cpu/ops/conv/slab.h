// slab.h - the zero-padded copy of a piece of the input from which tiles and rows read.
//
// A slab holds the planes of all input channels of a group, for a band of output rows and columns.
// With stride s a plane is split into s phases along each axis: phase f holds the padded positions
// f, f + s, f + 2s, ... Then the values under one kernel element, for consecutive output positions,
// are contiguous. Only phases that a kernel element reads are stored. Elements k and k + m share a
// phase if m dilation is a multiple of s.
//
// If possible, the zeros at the end of a row are also the zeros at the beginning of the next row.
#ifndef GB_CPU_OPS_CONV_SLAB_H
#define GB_CPU_OPS_CONV_SLAB_H

#include "cpu/ops/conv/conv.h"

struct gb_slab {
    int64_t first[3], n[3]; // output positions of the band; n[2] is 1
    int64_t phases[2]; // along width, height
    int64_t reach[2]; // the largest shift of a kernel element inside its phase
    int64_t rows, pitch; // of a phase: number of rows, and floats from one row to the next
    int64_t phase_size, channel_size; // floats
    int64_t channels; // input channels times kernel planes
};

// The layout of a band of n[0] columns and n[1] rows of one output plane. Returns its floats,
// without the slack after it.
int64_t gb_slab_layout(const struct gb_conv_job * j, struct gb_slab * s);

// The maximum number of floats that a slab of such a band needs, at any position. Negative if it is
// more than `most`.
int64_t gb_slab_floats(const struct gb_conv_job * j, int64_t columns, int64_t rows, int64_t channels, int64_t most);

// Offsets of the terms of a sum, in the order of the weights, for `channels` input channels.
void gb_slab_offsets(const struct gb_conv_job * j, const struct gb_slab * s, int64_t channels, int64_t * offsets);

// True if both slabs have the same layout with zeros at the same places.
static inline bool gb_slab_is_like(const struct gb_slab * a, const struct gb_slab * b) {
    return memcmp(a->first, b->first, sizeof(a->first)) == 0 && memcmp(a->n, b->n, sizeof(a->n)) == 0 &&
           a->channels == b->channels;
}

// Copies input channels [first, first + n) of an image. `zeroed`: the slab held a similar slab
// before (gb_slab_is_like), so its zeros are already there. False: the run has ended.
bool gb_slab_fill(const struct gb_cpu_call * call, const struct gb_conv_job * j, const struct gb_slab * s, bool zeroed,
    int64_t batch, int64_t first, int64_t n, float * slab);

#endif // GB_CPU_OPS_CONV_SLAB_H
