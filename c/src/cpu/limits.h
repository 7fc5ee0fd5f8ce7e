// limits.h - measures what this machine can do at most: arithmetic and memory rates of its threads together. Benchmarks
// compare the rates of operators with these.
#ifndef GB_CPU_LIMITS_H
#define GB_CPU_LIMITS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum gb_cpu_limit {
    GB_CPU_LIMIT_F32, // operations a second of multiply-adds in registers
    GB_CPU_LIMIT_BYTES, // of products of bytes
    GB_CPU_LIMIT_BF16, // of products of pairs of bfloat16
    GB_CPU_LIMIT_READ, // bytes read a second
    GB_CPU_LIMIT_COPY, // bytes read and written a second
    GB_CPU_LIMIT_COUNT,
};

// The sum over `n_threads` threads that work at once for at least `ns` nanoseconds, with the instructions of a level
// (NULL: the default). `bytes`: what each thread reads again and again (READ), or reads and writes together (COPY), in
// memory of its own; the rate is then that of the cache or memory that holds it. processor_time: seconds are those of a
// thread on a processor, for machines that others use meanwhile. 0 and reported on failure.
double gb_cpu_measure_limit(enum gb_cpu_limit what, const char * level, size_t bytes, int n_threads, int64_t ns,
    bool processor_time);

#endif // GB_CPU_LIMITS_H
