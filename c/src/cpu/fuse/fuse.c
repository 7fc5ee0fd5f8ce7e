// fuse/fuse.c - the list of the kinds of fused steps.
#include "cpu/fuse/fuse.h"

#include "cpu/fuse/fusions.h"
#include "ggml-cpu.h"

const struct gb_fusion * gb_fusion_of(enum gb_fusion_kind kind) {
    static const struct gb_fusion * const all[GB_FUSION_KINDS] = {
        [GB_FUSE_ATTENTION] = &gb_fusion_attention,
        [GB_FUSE_PRODUCTS] = &gb_fusion_products,
        [GB_FUSE_PRODUCT] = &gb_fusion_product,
        [GB_FUSE_COLUMNS] = &gb_fusion_columns,
        [GB_FUSE_CONVOLUTION] = &gb_fusion_convolution,
        [GB_FUSE_ROPE] = &gb_fusion_rope,
        [GB_FUSE_ROWS] = &gb_fusion_rows,
    };
    return all[kind];
}

const char * gb_fusion_name(enum gb_fusion_kind kind) {
    static const char * const names[GB_FUSION_KINDS] = {
        [GB_FUSE_ATTENTION] = "attention",
        [GB_FUSE_PRODUCTS] = "products",
        [GB_FUSE_PRODUCT] = "product",
        [GB_FUSE_COLUMNS] = "columns",
        [GB_FUSE_CONVOLUTION] = "convolution",
        [GB_FUSE_ROPE] = "rope",
        [GB_FUSE_ROWS] = "rows",
    };
    return names[kind];
}

// The same switch by its older names.

bool ggml_cpu_get_fusion(void) { return ggml_graph_get_fusion(); }

void ggml_cpu_set_fusion(bool on) { ggml_graph_set_fusion(on); }
