// processor.c - the processor that a thread runs on. Linux moves a thread at once if its mask
// excludes its processor. So a thread leaves its processor by excluding it for a moment.
#ifndef _GNU_SOURCE
#    define _GNU_SOURCE
#endif
#include "processor.h"

#ifdef __linux__

#    include <fcntl.h>
#    include <sched.h>
#    include <stdlib.h>
#    include <string.h>
#    include <unistd.h>

#    include "thread.h"

int gb_this_processor(void) { return sched_getcpu(); }

// "0.20 0.18 0.12 3/80 11206": the fourth number counts threads that run or are ready. Allocates
// nothing.
static int n_runnable(void) {
    char text[128];
    const int file = open("/proc/loadavg", O_RDONLY | O_CLOEXEC);
    if (file < 0) {
        return -1;
    }
    const ssize_t n = read(file, text, sizeof(text) - 1);
    close(file);
    text[n > 0 ? n : 0] = '\0';
    const char * at = text;
    for (int i = 0; i < 3 && at != NULL; i++) {
        at = strchr(at, ' ');
        at = at != NULL ? at + 1 : NULL;
    }
    return at != NULL ? atoi(at) : -1;
}

static gb_once online_once = GB_ONCE_INIT;
static long online;  // processors at the first call, because the system reads a file to count them

static void count_online(void) { online = sysconf(_SC_NPROCESSORS_ONLN); }

bool gb_has_idle_processor(void) {
    gb_call_once(&online_once, count_online);
    const int n = n_runnable();
    return n > 0 && n <= online;
}

static cpu_set_t mask_of_thread(void) {
    cpu_set_t mask;
    CPU_ZERO(&mask);
    sched_getaffinity(0, sizeof(mask), &mask);  // stays empty on failure (more processors than the type holds)
    return mask;
}

// The system reports only the part of a mask that the control group allows now. A thread that
// restores that part could not use processors that the group gets later. So this sets all
// processors first. The system keeps those that the group allows.
static void put_back(const cpu_set_t * mask) {
    cpu_set_t all;
    memset(&all, 0xff, sizeof(all));
    if (sched_setaffinity(0, sizeof(all), &all) == 0) {
        const cpu_set_t allowed = mask_of_thread();
        if (CPU_EQUAL(&allowed, mask)) {
            return;
        }
    }
    sched_setaffinity(0, sizeof(*mask), mask);
}

bool gb_leave_processor(int processor) {
    const cpu_set_t mask = mask_of_thread();
    cpu_set_t others = mask;
    if (processor < 0 || processor >= CPU_SETSIZE) {
        return false;
    }
    CPU_CLR(processor, &others);
    if (CPU_COUNT(&others) == 0 || sched_setaffinity(0, sizeof(others), &others) != 0) {
        return false;
    }
    const cpu_set_t now = mask_of_thread();
    if (CPU_EQUAL(&now, &others)) {  // otherwise another thread has set the mask
        put_back(&mask);
    }
    return true;
}

#else

int gb_this_processor(void) { return -1; }
bool gb_has_idle_processor(void) { return false; }
bool gb_leave_processor(int processor) {
    (void) processor;
    return false;
}

#endif
