// env.c - environment variables, clocks, processors and address ranges, for Linux, macOS, other POSIX systems and
// Windows.
//
// Facts that cannot change while the process runs (number of processors, NUMA) are read by the
// first call that needs them.
#ifndef _GNU_SOURCE
#    define _GNU_SOURCE
#endif
#include "env.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "ggml.h"
#include "mem.h"
#include "status.h"
#include "thread.h"

#ifdef _WIN32
#    include <windows.h>
#else
#    include <errno.h>
#    include <sched.h>
#    include <sys/mman.h>
#    include <unistd.h>
#endif
#if defined(__linux__)
#    include <sys/auxv.h>
#    include <sys/syscall.h>
#endif
#if defined(__GLIBC__) || defined(__APPLE__)
#    include <execinfo.h>
#endif

const char * gb_env_get(const char * name) {
    const char * value = getenv(name);
    return value != NULL && value[0] != '\0' ? value : NULL;
}

// ---------------------------------------------------------------------------------------------------------------- time

int64_t gb_time_ns(void) {
#ifdef _WIN32
    LARGE_INTEGER now, frequency;
    QueryPerformanceCounter(&now);
    QueryPerformanceFrequency(&frequency);
    const int64_t seconds = now.QuadPart / frequency.QuadPart;
    return seconds * 1000000000 + (now.QuadPart % frequency.QuadPart) * 1000000000 / frequency.QuadPart;
#else
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t) now.tv_sec * 1000000000 + now.tv_nsec;
#endif
}

int64_t gb_thread_time_ns(void) {
#if defined(_WIN32) // clock_gettime would need a library of the compiler here
    FILETIME created, ended, kernel, user;
    if (GetThreadTimes(GetCurrentThread(), &created, &ended, &kernel, &user)) { // in units of 100 ns
        const uint64_t high = (uint64_t) kernel.dwHighDateTime + user.dwHighDateTime,
                       low = (uint64_t) kernel.dwLowDateTime + user.dwLowDateTime;
        return (int64_t) ((high << 32) + low) * 100;
    }
#elif defined(CLOCK_THREAD_CPUTIME_ID)
    struct timespec now;
    if (clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now) == 0) {
        return (int64_t) now.tv_sec * 1000000000 + now.tv_nsec;
    }
#endif
    return gb_time_ns();
}

void ggml_time_init(void) {}
int64_t ggml_time_ms(void) { return gb_time_ns() / 1000000; }
int64_t ggml_time_us(void) { return gb_time_ns() / 1000; }
// Ticks of clock(): processor time of the whole process, not cycles of the hardware.
int64_t ggml_cycles(void) { return (int64_t) clock(); }
int64_t ggml_cycles_per_ms(void) { return CLOCKS_PER_SEC / 1000; }

// Writes to stderr by its descriptor and without allocating, because the process may be about to
// abort. Does nothing on systems without execinfo.h.
void ggml_print_backtrace(void) {
#if defined(__GLIBC__) || defined(__APPLE__)
    void * frames[64];
    const int n = backtrace(frames, (int) GB_ARRAY_LEN(frames));
    fflush(stderr);
    backtrace_symbols_fd(frames, n, 2);
#endif
}

// ---------------------------------------------------------------------------------------------------------- processors

#if defined(__linux__)

// Reads the first line of a file of the system, with its newline; false if there is no such file.
static bool read_line(const char * path, char * line, int size) {
    FILE * f = fopen(path, "r");
    if (f == NULL) {
        return false;
    }
    const bool ok = fgets(line, size, f) != NULL;
    fclose(f);
    return ok;
}

// True if `cpu` is the first hardware thread of its core, or if the system does not report that.
static bool leads_its_core(int cpu) {
    char path[128], line[64];
    snprintf(path, sizeof(path), "/sys/devices/system/cpu/cpu%d/topology/thread_siblings_list", cpu);
    return !read_line(path, line, sizeof(line)) || atoi(line) == cpu;
}

// The number of processors that the control group lets this process keep busy, rounded down, at
// least 1. INT32_MAX without a limit. Containers have such a quota instead of an affinity mask.
// Threads beyond it would only wait for each other.
static int cpus_by_quota(void) {
    char line[128], *end;
    long long quota = 0, period = 0;
    if (read_line("/sys/fs/cgroup/cpu.max", line, sizeof(line))) { // version 2: "max 100000" or "150000 100000"
        quota = strtoll(line, &end, 10);
        period = strtoll(end, NULL, 10);
    } else if (read_line("/sys/fs/cgroup/cpu/cpu.cfs_quota_us", line, sizeof(line))) {
        quota = strtoll(line, NULL, 10);
        if (!read_line("/sys/fs/cgroup/cpu/cpu.cfs_period_us", line, sizeof(line))) {
            return INT32_MAX;
        }
        period = strtoll(line, NULL, 10);
    }
    if (quota <= 0 || period <= 0) {
        return INT32_MAX;
    }
    return (int) GB_MIN(GB_MAX(quota / period, 1), INT32_MAX);
}

// Counts cores rather than hardware threads, because two threads of one core share the units that
// kernels keep busy.
static int count_processors(void) {
    cpu_set_t mask;
    CPU_ZERO(&mask);
    // allowed: processors of the affinity mask (all online ones if unknown). cores: their cores
    int allowed = 0, cores = 0;
    if (sched_getaffinity(0, sizeof(mask), &mask) == 0) {
        allowed = CPU_COUNT(&mask);
    } else {
        allowed = (int) sysconf(_SC_NPROCESSORS_ONLN);
    }
    const int online = (int) sysconf(_SC_NPROCESSORS_ONLN);
    for (int cpu = 0; cpu < online; cpu++) {
        cores += leads_its_core(cpu);
    }
    return GB_MIN(GB_MIN(allowed, cores > 0 ? cores : online), cpus_by_quota());
}

#elif defined(_WIN32)

static int count_processors(void) {
    SYSTEM_INFO info;
    GetSystemInfo(&info);
    return (int) info.dwNumberOfProcessors;
}

#else

static int count_processors(void) { return (int) sysconf(_SC_NPROCESSORS_ONLN); }

#endif

unsigned long gb_hwcap(void) {
#if defined(__linux__)
    return getauxval(AT_HWCAP);
#else
    return 0;
#endif
}

unsigned long gb_hwcap2(void) {
#if defined(__linux__) && defined(AT_HWCAP2)
    return getauxval(AT_HWCAP2);
#else
    return 0;
#endif
}

bool gb_allow_tile_registers(void) {
#if defined(__linux__) && defined(__x86_64__) && defined(SYS_arch_prctl)
    enum { REQUEST_PERMISSION = 0x1023, TILE_DATA = 18 }; // ARCH_REQ_XCOMP_PERM; the bit of the tiles in XCR0
    return syscall(SYS_arch_prctl, REQUEST_PERMISSION, TILE_DATA) == 0;
#else
    return false;
#endif
}

static gb_once processors_once = GB_ONCE_INIT;
static int processors = 1;

static void init_processors(void) {
    const int n = count_processors();
    processors = n > 0 ? n : 1;
}

int gb_n_processors(void) {
    gb_call_once(&processors_once, init_processors);
    return processors;
}

// ---------------------------------------------------------------------------------------------------------------- NUMA

static gb_once numa_once = GB_ONCE_INIT;
static bool numa;

// A machine has several memory nodes if the kernel shows a second one.
static void init_numa(void) {
#if defined(__linux__)
    numa = access("/sys/devices/system/node/node1", F_OK) == 0;
#endif
}

void ggml_numa_init(void) { gb_call_once(&numa_once, init_numa); }

bool ggml_is_numa(void) {
    ggml_numa_init();
    return numa;
}

// --------------------------------------------------------------------------------------------------------------- pages

size_t gb_page_size(void) {
#ifdef _WIN32
    SYSTEM_INFO info;
    GetSystemInfo(&info);
    return info.dwPageSize;
#else
    return (size_t) sysconf(_SC_PAGESIZE);
#endif
}

void * gb_addresses_reserve(size_t size) {
#ifdef _WIN32
    void * addresses = VirtualAlloc(NULL, size, MEM_RESERVE, PAGE_NOACCESS);
#else
    void * addresses = mmap(NULL, size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    addresses = addresses == MAP_FAILED ? NULL : addresses;
#endif
    GB_FAIL_IF_RETURNING(addresses == NULL, NULL, GGML_STATUS_ALLOC_FAILED, "cannot reserve %zu bytes of addresses",
        size);
    return addresses;
}

void gb_addresses_release(void * addresses, size_t size) {
    if (addresses != NULL) {
#ifdef _WIN32
        (void) size;
        VirtualFree(addresses, 0, MEM_RELEASE);
#else
        munmap(addresses, size);
#endif
    }
}
