// attention_tiles.h - attention for many queries at once, for attention.c.
#ifndef GB_CPU_OPS_ATTENTION_TILES_H
#define GB_CPU_OPS_ATTENTION_TILES_H

#include "cpu/ops/elements.h"

// Are there enough queries, and layouts that panels can be packed from?
bool    gb_attention_is_tiled(const struct ggml_tensor * node);
bool    gb_attention_is_aligned(const struct ggml_tensor * node); // known when memory is
int64_t gb_attention_tiled_floats(const struct ggml_tensor * node); // scratch of a thread
int64_t gb_attention_tiled_units(const struct ggml_tensor * node);  // indivisible shares
void    gb_attention_run_tiled(const struct gb_cpu_call * call, struct ggml_tensor * node);

#endif // GB_CPU_OPS_ATTENTION_TILES_H
