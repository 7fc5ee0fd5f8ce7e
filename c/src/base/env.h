// env.h - the environment of the process: environment variables, clocks, processors, pages. The
// functions only read it, or request tile registers and address ranges. Only gb_addresses_reserve
// reports failures.
#ifndef GB_BASE_ENV_H
#define GB_BASE_ENV_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

// The value of an environment variable; NULL if it is unset or empty. The text belongs to the system.
const char * gb_env_get(const char * name);

// Nanoseconds of a monotonic clock since an unspecified start.
int64_t gb_time_ns(void);
// Nanoseconds of processor time of the calling thread. gb_time_ns if the system does not report it.
int64_t gb_thread_time_ns(void);

// The number of threads that can compute at the same time. On Linux: the least of physical cores, affinity mask
// and cgroup CPU quota. Elsewhere: the number of processors. At least 1. Computed once per process.
int gb_n_processors(void);
// Bytes of a page of memory, a power of two.
size_t gb_page_size(void);

// The features of the processor as the kernel states them (Linux: AT_HWCAP and AT_HWCAP2); 0 on other systems.
unsigned long gb_hwcap(void);
unsigned long gb_hwcap2(void);

// Requests the tile registers of AMX for the threads of this process. Linux saves them only on
// request. False: refused (other systems, older kernels, or a signal stack that is too small for
// the tiles).
bool gb_allow_tile_registers(void);

// Reserves a range of addresses without memory, so any access faults. Device memory that the host
// must not access has such addresses. NULL on failure (reported).
void * gb_addresses_reserve(size_t size);
// Releases such a range. `size` is the reserved size. NULL is allowed.
void gb_addresses_release(void * addresses, size_t size);

#endif // GB_BASE_ENV_H
