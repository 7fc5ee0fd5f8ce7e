// current.c - the calling thread's poll and run, in thread-local variables.
//
// A poll may call any function, even a function that polls. So the thread has no poll while the
// poll runs.
#include "current.h"

#include <stddef.h>
#include <string.h>

#include "base/env.h"
#include "base/status.h"

static _Thread_local gb_poll_fn current_poll;
static _Thread_local void * current_poll_data;
static _Thread_local int64_t polled_ns; // when the poll was last called
static _Thread_local void * current_run;

void gb_set_poll(gb_poll_fn poll, void * data) {
    current_poll = poll;
    current_poll_data = data;
}

gb_poll_fn gb_get_poll(void ** data) {
    if (data != NULL) {
        *data = current_poll_data;
    }
    return current_poll;
}

bool gb_poll(void) {
    const gb_poll_fn poll = current_poll;
    void * const data = current_poll_data;
    if (poll == NULL) {
        return false;
    }
    gb_set_poll(NULL, NULL);
    const bool stop = poll(data);
    gb_set_poll(poll, data);
    polled_ns = gb_time_ns();
    return stop;
}

#ifdef GB_TEST_HOOKS
static _Thread_local bool polls_always;

void gb_test_poll_always(bool always) { polls_always = always; }
#else
enum { polls_always = false };
#endif

bool gb_poll_is_due(void) { return current_poll != NULL && (polls_always || gb_time_ns() - polled_ns >= GB_POLL_NS); }

// The failure is not logged, because the program asked to stop. The calling function reports it.
enum ggml_status gb_check_poll(void) {
    return gb_poll_is_due() && gb_poll() ? gb_fail_quietly(GGML_STATUS_ABORTED, "interrupted") : GGML_STATUS_SUCCESS;
}

enum ggml_status gb_fill(void * memory, int value, size_t size) {
    for (size_t done = 0; done < size; done += GB_POLL_BYTES) {
        if (done > 0) {
            GB_TRY(gb_check_poll());
        }
        memset((char *) memory + done, value, size - done < GB_POLL_BYTES ? size - done : GB_POLL_BYTES);
    }
    return GGML_STATUS_SUCCESS;
}

void gb_set_run(void * run) { current_run = run; }
void * gb_run(void) { return current_run; }
