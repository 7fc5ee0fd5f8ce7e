// interleaved.h - contracts of the kernels that multiply few rows with quantized columns. They
// process sixteen groups of terms in parallel, each group in its own lane (x86/interleaved.tpl.h).
//
// A unit is sixteen groups: words, and two floats for each group. Groups after the last whole unit
// are the tail. Columns that are unpacked before consist of whole units. A row has its whole units,
// then a unit for each part of its tail, which repeats the part.
//
// Sums are vectors of GB_INTERLEAVED_LANES floats: acc[4 i + j] belongs to column i and row j. A
// result depends on k and the format alone. It does not depend on the other rows and columns of the
// call, nor on whether columns were unpacked before. Levels without these kernels
// (gb_kernels.interleaved is false) do nothing and return false.
#ifndef GB_CPU_KERNELS_CONTRACTS_INTERLEAVED_H
#define GB_CPU_KERNELS_CONTRACTS_INTERLEAVED_H

#include <stdbool.h>
#include <stdint.h>

#define GB_INTERLEAVED_LANES 16 // groups of a unit
#define GB_INTERLEAVED_X 4 // rows that kernels take per call
#define GB_INTERLEAVED_W 2 // columns that interleaved_dots takes per call
#define GB_INTERLEAVED_W_READY 3 // columns that interleaved_tile takes per call
#define GB_INTERLEAVED_STREAMS 4 // streams that interleaved_row_dots reads at the same time

// Terms and bytes of a unit; halves: true for kind GB_BYTES_HALVES
#define GB_INTERLEAVED_UNIT_TERMS(halves) (GB_INTERLEAVED_LANES * ((halves) ? 16 : 32))
#define GB_INTERLEAVED_UNIT_SIZE(halves) (GB_INTERLEAVED_UNIT_TERMS(halves) + 2 * 4 * GB_INTERLEAVED_LANES)

// The groups of a tail with padding: one or two powers of two, the sizes of its parts, the largest
// first. Padding costs less than a third part.
static inline int gb_interleaved_padded_groups(int groups) {
    while ((groups & (groups - 1) & ((groups & (groups - 1)) - 1)) != 0) { // three bits
        groups += groups & -groups;
    }
    return groups;
}

// Units of a row of k terms: the whole ones, and one for each part of the tail.
static inline int64_t gb_interleaved_row_units(int64_t k, bool halves) {
    const int64_t terms = GB_INTERLEAVED_UNIT_TERMS(halves);
    const int padded = gb_interleaved_padded_groups((int) (k % terms * GB_INTERLEAVED_LANES / terms));
    return k / terms + (padded != 0) + ((padded & (padded - 1)) != 0);
}

// Rounds a row of k activations, a multiple of 32, to bytes and interleaves it. zero: the format's
// level for 0 if it is the same in all groups, else 0.
typedef void gb_kernel_interleave_row(int64_t k, int kind, int zero, void * y, const float * x);

// Unpacks and interleaves whole units of a column of weights. type: enum ggml_type. False: not
// available for this format.
typedef bool gb_kernel_interleave_column(int type, int64_t k, void * y, const void * w);

// Whole units of nw <= GB_INTERLEAVED_W columns, which the kernel unpacks, times nx <=
// GB_INTERLEAVED_X rows. The kernel may write the sums of both columns, and all four of a column.
// False: not available for this format.
struct gb_interleaved_dots {
    int type; // enum ggml_type of the columns
    int64_t k; // whole units; 0 sets the sums to 0 unless `accumulate`
    int nw, nx;
    float * acc;
    const void * const * columns;
    const void * const * rows; // by interleave_row
    const void * const * next; // for each column: where to prefetch as many bytes as it has
    bool accumulate;
};

typedef bool gb_kernel_interleaved_dots(const struct gb_interleaved_dots * p);

// The tails of n columns, nb_w bytes apart, times nx rows: y[j][i] for column i and row j. False:
// not available for this format.
struct gb_interleaved_tails {
    int type; // enum ggml_type of the columns
    int64_t k; // terms of a tail, less than a unit
    int n, nx;
    const void * w; // the tail of column 0
    size_t nb_w, ahead; // the kernel prefetches data `ahead` bytes later
    const void * const * rows; // the first unit of each row's tail
    float * const * y;
    bool add; // to y
};

typedef bool gb_kernel_interleaved_tails(const struct gb_interleaved_tails * p);

// y[c] = column c times one row, with the bits of interleaved_dots, interleaved_tails and
// interleaved_sums. Columns are nb_w bytes apart. A stream is n consecutive columns. Stream s starts
// at column s * apart, and all streams are read at the same time: more requests to memory are then
// under way. False: not available for this format.
struct gb_interleaved_row_dots {
    int type; // enum ggml_type of the columns
    int streams; // at most GB_INTERLEAVED_STREAMS
    int64_t k, n; // terms; columns of a stream
    int64_t apart; // at least n
    const void * w;
    size_t nb_w, ahead; // the kernel prefetches data `ahead` bytes later
    const void * x; // by interleave_row
    float * y;
};

typedef bool gb_kernel_interleaved_row_dots(const struct gb_interleaved_row_dots * p);

// nw <= GB_INTERLEAVED_W_READY unpacked columns times nx <= GB_INTERLEAVED_X rows
struct gb_interleaved_tile {
    int64_t units;
    int kind; // GB_BYTES_HALVES, GB_BYTES_CENTERED
    int nw, nx;
    float * acc;
    const void * const * columns; // by interleave_column
    const void * const * rows; // by interleave_row
    bool accumulate;
};

typedef void gb_kernel_interleaved_tile(const struct gb_interleaved_tile * p);

// y[4 i + j] = the sum of the lanes of acc[4 i + j], for i < nw and all four j
typedef void gb_kernel_interleaved_sums(int nw, float * y, const float * acc);

#endif // GB_CPU_KERNELS_CONTRACTS_INTERLEAVED_H
