// fusion.c - whether backends compute neighbouring nodes together: one switch for the process and
// all backends.
//
// The first call that needs the switch reads the environment. A choice of the program, whether
// earlier or later, overrides the environment.
#include <stdatomic.h>

#include "base/env.h"
#include "ggml-backend.h"

static atomic_int state;  // 0: not chosen yet, 1: off, 2: on

bool ggml_graph_get_fusion(void) {
    int now = atomic_load(&state);
    if (now == 0) {
        const char * env = gb_env_get("GGML_CPU_FUSE");
        const int wish = env != NULL && env[0] == '0' && env[1] == '\0' ? 1 : 2;
        atomic_compare_exchange_strong(&state, &now, wish);
        now = atomic_load(&state);
    }
    return now == 2;
}

void ggml_graph_set_fusion(bool on) { atomic_store(&state, on ? 2 : 1); }
