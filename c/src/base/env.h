// env.h - what the process finds around it: environment variables, clocks, processors, pages. The library changes none
// of that; it may ask the system for more (tile registers, addresses). Only gb_addresses_reserve reports failures.
#ifndef GB_BASE_ENV_H
#define GB_BASE_ENV_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

// The value of an environment variable; NULL if it is unset or empty. The text belongs to the system.
const char * gb_env_get(const char * name);

// Nanoseconds of a monotonic clock since an unspecified start.
int64_t gb_time_ns(void);
// Nanoseconds of processor time that the calling thread has used; gb_time_ns where the system does not tell.
int64_t gb_thread_time_ns(void);

// How many threads can compute at once: min(physical cores, affinity mask, cgroup CPU quota), at least 1. Computed once
// per process.
int gb_n_processors(void);
// Bytes of a page of memory, a power of two.
size_t gb_page_size(void);

// The features of the processor as the kernel states them (Linux: AT_HWCAP and AT_HWCAP2); 0 on other systems.
unsigned long gb_hwcap(void);
unsigned long gb_hwcap2(void);

// Asks the system to let the threads of this process use the tile registers of AMX, which Linux saves only for who
// asks. False: it does not (other systems, older kernels, a signal stack that is too small for what is saved).
bool gb_allow_tile_registers(void);

// Reserves a range of addresses with nothing behind it: any access faults. Device memory that the host must not touch
// hands out such addresses. NULL on failure (reported).
void * gb_addresses_reserve(size_t size);
// Gives such a range back; `size` as it was reserved. NULL is fine.
void gb_addresses_release(void * addresses, size_t size);

#endif // GB_BASE_ENV_H
