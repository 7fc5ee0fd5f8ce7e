// interleaved.h - contracts of the kernels that multiply few rows with quantized columns, sixteen groups of terms at a
// time, each group in a lane of its own (x86/interleaved.tpl.h).
//
// Rows, and columns that are unpacked before, are made of units of sixteen groups: words, and two floats for each
// group; the last unit is filled up. Sums are vectors of GB_INTERLEAVED_LANES floats: acc[4 i + j] of column i and row
// j. Levels without these kernels (gb_kernels.interleaved is false) do nothing and return false. A result depends on k
// and the format alone, not on what it is computed with, nor on whether columns were unpacked before.
#ifndef GB_CPU_KERNELS_CONTRACTS_INTERLEAVED_H
#define GB_CPU_KERNELS_CONTRACTS_INTERLEAVED_H

#include <stdbool.h>
#include <stdint.h>

#define GB_INTERLEAVED_LANES 16 // groups of a unit
#define GB_INTERLEAVED_X 4  // rows that kernels take at a time
#define GB_INTERLEAVED_W 2  // columns at a time that are unpacked on the way
#define GB_INTERLEAVED_W_READY 3  // columns at a time that were unpacked before

// Terms and bytes of a unit; halves: of kind GB_BYTES_HALVES
#define GB_INTERLEAVED_UNIT_TERMS(halves) (GB_INTERLEAVED_LANES * ((halves) ? 16 : 32))
#define GB_INTERLEAVED_UNIT_SIZE(halves) (GB_INTERLEAVED_UNIT_TERMS(halves) + 2 * 4 * GB_INTERLEAVED_LANES)

// A row of k activations, a multiple of 32, rounded to bytes and interleaved. zero: the format's level for 0 where all
// groups have the same, or 0
typedef void gb_kernel_interleave_row(int64_t k, int kind, int zero, void * y, const float * x);

// A column of weights of a type (enum ggml_type), unpacked and interleaved; false: the format cannot
typedef bool gb_kernel_interleave_column(int type, int64_t k, void * y, const void * w);

// nw <= GB_INTERLEAVED_W columns, unpacked on the way, times nx <= GB_INTERLEAVED_X rows. Both columns' sums, and all
// four of a column, may be written. False: the format cannot.
struct gb_interleaved_dots {
    int type; // enum ggml_type of the columns
    int64_t k;
    int nw, nx;
    float * acc;
    const void * const * columns;
    const void * const * rows; // by interleave_row
    const void * const * next; // for each column: as many bytes as it has are prefetched from here
    bool accumulate;
};

typedef bool gb_kernel_interleaved_dots(const struct gb_interleaved_dots * p);

// y[i] = column i times one row, for n columns that are nb_w bytes apart, unpacked on the way: the bits of
// interleaved_dots and interleaved_sums. False: the format cannot.
struct gb_interleaved_row_dots {
    int type; // enum ggml_type of the columns
    int64_t k, n;
    const void * w;
    size_t nb_w, ahead; // what lies so many bytes behind a column is prefetched
    const void * x;     // by interleave_row
    float * y;
};

typedef bool gb_kernel_interleaved_row_dots(const struct gb_interleaved_row_dots * p);

// nw <= GB_INTERLEAVED_W_READY columns that were unpacked before times nx <= GB_INTERLEAVED_X rows
struct gb_interleaved_tile {
    int64_t units;
    int kind; // GB_BYTES_HALVES, GB_BYTES_CENTERED
    int nw, nx;
    float * acc;
    const void * const * columns; // by interleave_column
    const void * const * rows;    // by interleave_row
    bool accumulate;
};

typedef void gb_kernel_interleaved_tile(const struct gb_interleaved_tile * p);

// y[4 i + j] = the sum of the lanes of acc[4 i + j], for i < nw and all four j
typedef void gb_kernel_interleaved_sums(int nw, float * y, const float * acc);

#endif // GB_CPU_KERNELS_CONTRACTS_INTERLEAVED_H
