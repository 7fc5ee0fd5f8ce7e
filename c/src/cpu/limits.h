// limits.h - measures the peak arithmetic and memory rates of this machine, over all threads.
// Benchmarks compare the rates of operators with these peaks.
#ifndef GB_CPU_LIMITS_H
#define GB_CPU_LIMITS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum gb_cpu_limit {
    GB_CPU_LIMIT_F32, // operations a second of multiply-adds in registers
    GB_CPU_LIMIT_BYTES, // operations a second of products of bytes
    GB_CPU_LIMIT_BF16, // operations a second of products of pairs of bfloat16
    GB_CPU_LIMIT_READ, // bytes read a second
    GB_CPU_LIMIT_COPY, // bytes read and written a second
    GB_CPU_LIMIT_COUNT,
};

// The total rate of `n_threads` threads that work for at least `ns` nanoseconds, with the
// instructions of a level (NULL: the default). `bytes`: size of each thread's own memory, which it
// reads again and again (READ), or reads and writes (COPY). The size selects the cache or memory
// that is measured. processor_time: counts processor time of the threads instead of wall time, for
// busy machines. Reports failures and returns 0.
double gb_cpu_measure_limit(enum gb_cpu_limit what, const char * level, size_t bytes, int n_threads, int64_t ns,
    bool processor_time);

#endif // GB_CPU_LIMITS_H
