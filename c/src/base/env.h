// env.h - what the surroundings say: environment variables, clocks, processors.
#ifndef GB_BASE_ENV_H
#define GB_BASE_ENV_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

const char * gb_env_get(const char * name); // NULL if unset or empty

int64_t gb_time_ns(void);        // monotonic
int64_t gb_thread_time_ns(void); // processor time of the calling thread; where the system does not tell: gb_time_ns

int    gb_n_processors(void); // min(physical cores, affinity mask, cgroup CPU quota), at least 1; computed once
size_t gb_page_size(void);

// What the kernel says of the processor (Linux: AT_HWCAP and AT_HWCAP2); 0 where it says nothing.
unsigned long gb_hwcap(void);
unsigned long gb_hwcap2(void);

// A range of addresses with nothing behind it: any access faults. Device memory that the host must not touch hands out
// such addresses. NULL on failure (reported).
void * gb_addresses_reserve(size_t size);
void   gb_addresses_release(void * addresses, size_t size);

#endif // GB_BASE_ENV_H
