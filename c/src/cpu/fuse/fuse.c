// fuse/fuse.c - which kinds of fused steps there are, and the switch that plans ask.
#include "cpu/fuse/fuse.h"

#include <stdatomic.h>

#include "base/env.h"
#include "cpu/fuse/fusions.h"
#include "ggml-cpu.h"

const struct gb_fusion * gb_fusion_of(enum gb_fusion_kind kind) {
    static const struct gb_fusion * const all[GB_FUSION_KINDS] = {
        [GB_FUSE_ATTENTION] = &gb_fusion_attention,
        [GB_FUSE_PRODUCT]   = &gb_fusion_product,
        [GB_FUSE_ROPE]      = &gb_fusion_rope,
        [GB_FUSE_ROWS]      = &gb_fusion_rows,
    };
    return all[kind];
}

// -------------------------------------------------------------------------------------------------------------- switch

static atomic_int state; // 0: not asked yet, 1: off, 2: on

bool gb_fuse_is_on(void) {
    int now = atomic_load(&state);
    if (now == 0) {
        const char * env  = gb_env_get("GGML_CPU_FUSE");
        const int    wish = env != NULL && env[0] == '0' && env[1] == '\0' ? 1 : 2;
        atomic_compare_exchange_strong(&state, &now, wish);
        now = atomic_load(&state);
    }
    return now == 2;
}

void gb_fuse_set(bool on) { atomic_store(&state, on ? 2 : 1); }

bool ggml_cpu_get_fusion(void) { return gb_fuse_is_on(); }

void ggml_cpu_set_fusion(bool on) { gb_fuse_set(on); }
