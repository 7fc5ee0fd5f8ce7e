// current.c - the thread's own variables.
#include "current.h"

#include <stddef.h>

static _Thread_local gb_poll_fn current_poll;
static _Thread_local void *     current_poll_data;
static _Thread_local void *     current_run;

void gb_set_poll(gb_poll_fn poll, void * data) {
    current_poll      = poll;
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
    void * const     data = current_poll_data;
    if (poll == NULL) {
        return false;
    }
    gb_set_poll(NULL, NULL); // the poll may run anything, waits too
    const bool stop = poll(data);
    gb_set_poll(poll, data);
    return stop;
}

void gb_set_run(void * run) { current_run = run; }
void * gb_run(void) { return current_run; }
