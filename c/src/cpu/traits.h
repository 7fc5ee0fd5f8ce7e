// traits.h - numbers that distinguish processors with the same instructions. Products choose their
// algorithm by bf16_dots and byte_dots, never by the name of a processor, which hypervisors hide.
// The other numbers are only reported to users.
//
// A probe (traits.c) measures the rates once per process and level. It runs when a product needs a
// rate, or when the user asks. Making a backend, listing levels or loading the library measures
// nothing. GGML_CPU_TRAITS replaces any of the numbers. GGML_CPU_REPRODUCIBLE replaces those that
// affect bits of results.
//
// A measured rate is rounded to a power of two. So small noise does not change it, and the same
// processor computes the same bits in each process.
#ifndef GB_CPU_TRAITS_H
#define GB_CPU_TRAITS_H

#include <stdbool.h>

#include "base/status.h"
#include "cpu/kernels/kernels.h"

enum gb_cpu_trait {
    GB_TRAIT_BF16_DOTS, // rate of bfloat16 products divided by that of f32 multiply-adds
    GB_TRAIT_BYTE_DOTS, // the same for products of bytes
    GB_TRAIT_WIDE, // rate of f32 multiply-adds at the level divided by that with 256-bit vectors
    GB_TRAIT_L1, // bytes of a core's first-level data cache
    GB_TRAIT_L2, // bytes of its second-level cache
    GB_TRAIT_L3, // bytes of its third-level cache
    GB_TRAIT_COUNT
};

enum gb_cpu_trait_source {
    GB_TRAIT_UNKNOWN, // the value is 0
    GB_TRAIT_MEASURED, // by the probe
    GB_TRAIT_STATED, // by the processor
    GB_TRAIT_GIVEN, // in GGML_CPU_TRAITS
    GB_TRAIT_FIXED // because of GGML_CPU_REPRODUCIBLE
};

struct gb_cpu_traits {
    double value[GB_TRAIT_COUNT];
    enum gb_cpu_trait_source source[GB_TRAIT_COUNT];
};

// The traits of this processor with the kernels of a level. The first call for a level takes up to
// 2 ms of processor time. On a busy machine, it takes more wall time.
const struct gb_cpu_traits * gb_cpu_traits_of(const struct gb_kernels * kernels);

// Returns false and reports the error if GGML_CPU_TRAITS is invalid. Called when a backend that
// uses kernels is made, and when a graph is computed without a backend. Reads the variable once per
// process and measures nothing.
bool gb_cpu_traits_check(void);

// ---------------------------------------------------------------------------------------------------- parts, for tests

// Parses "bf16_dots=0.5,l2=2M". Each named trait gets the value and the source "given". False:
// `message` is the error, and *traits may have changed in part.
bool gb_cpu_traits_parse(const char * text, struct gb_cpu_traits * traits, char message[GB_ERROR_SIZE]);
// The power of two that is nearest by ratio. 0 if `ratio` is not a finite positive number.
double gb_cpu_trait_class(double ratio);

#endif // GB_CPU_TRAITS_H
