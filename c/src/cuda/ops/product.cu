// product.cu - tells which products are possible, and describes a product by numbers and addresses.
#include "cuda/ops/elements.h"
#include "cuda/ops/products.h"

// True if a format of weights can be multiplied by rows of this type.
static bool is_partner(int type) {
    bool found = false;
#define GB_FORMAT(id, stem, name, elements, bytes, group, zero, top, use, partner, ...) \
    found = found || (GB_USE_##use != GB_USE_ACTIVATIONS && type == GGML_TYPE_##partner);
#include "tensor/quant/formats.def"
#undef GB_FORMAT
    return found;
}

static bool has_aligned_elements(const ggml_tensor * t) {
    const size_t size = gb_is_float_type(t->type) ? ggml_type_size(t->type) : 1;
    return (t->nb[0] | t->nb[1] | t->nb[2] | t->nb[3]) % size == 0 &&
           (gb_is_float_type(t->type) || t->nb[0] == ggml_type_size(t->type));
}

static const char * unsupported_types(const ggml_tensor * a, const ggml_tensor * b, int dim) {
    if (gb_is_format(a->type)) {
        return gb_is_float_type(b->type) || (dim == 0 && is_partner(b->type))
                   ? NULL
                   : "source 1 must be f32, f16, bf16 or the partner format of source 0";
    }
    if (!gb_is_float_type(a->type)) {
        return "source 0 must be f32, f16, bf16 or quantized";
    }
    return b->type == GGML_TYPE_F32 || b->type == a->type ? NULL : "source 1 must be f32, or have the type of source 0";
}

const char * gb_product_unsupported(const ggml_tensor * a, const ggml_tensor * b, const ggml_tensor * dst, int dim) {
    const char * why = unsupported_types(a, b, dim);
    if (why != NULL) {
        return why;
    }
    if (!has_aligned_elements(a) || !has_aligned_elements(b)) {
        return "strides that are not whole elements";
    }
    if (dst->type != GGML_TYPE_F32 || !ggml_is_contiguous(dst)) {
        return "the result must be f32 and contiguous";
    }
    // Tiles have 64 rows, or 32 if there are at most 64 rows. Each expert may have one tile that is not full.
    if (b->ne[2] * b->ne[3] > GB_MAX_GRID || b->ne[1 - dim] * b->ne[2] > (int64_t) (GB_MAX_GRID - GGML_MAX_SRC) * 64 ||
        a->ne[dim] > INT32_MAX) {
        return "more rows or slices than a grid has";
    }
    return NULL;
}

void gb_product_describe(gb_product & p, const ggml_tensor * a, const ggml_tensor * b, const ggml_tensor * dst,
    int dim) {
    p = {};
    p.type = a->type;
    p.nb_k = a->nb[dim];
    p.across = dim == 1 && !gb_is_float_type(a->type);
    p.exact = dim == 1;
    p.m = a->ne[1 - dim];
    p.k = a->ne[dim];
    p.dst = (float *) (void *) gb_cuda_data(dst);
    p.w.a[0] = gb_cuda_data(a);
    p.w.nb_m = a->nb[1 - dim];
    p.w.nb2 = a->nb[2];
    p.w.nb3 = a->nb[3];
    const int64_t n = b->ne[1 - dim], r2 = b->ne[2] / a->ne[2], r3 = b->ne[3] / a->ne[3];
    p.rows = r3 == 1 ? n * r2 : n;
    p.slices = r3 == 1 ? a->ne[2] * a->ne[3] : b->ne[2] * b->ne[3];
    p.w.ne2 = r3 == 1 ? a->ne[2] : b->ne[2];
    p.w.r2 = r3 == 1 ? 1 : r2;
    p.w.r3 = r3;
    p.b = { b->type, gb_cuda_data(b), b->nb[dim], b->nb[1 - dim], b->nb[2], b->nb[3], n, b->ne[2], p.k, NULL, 0 };
    p.b_tensor = b;
    p.b_dense = dim == 0 && ggml_is_contiguous(b) && (uintptr_t) gb_cuda_data(b) % 16 == 0;
}

// MUL_MAT_EXPERTS: row u + U t of dst is a product with row u % U' of token t of b.
static void describe_stack(gb_product & p, const ggml_tensor * dst) {
    const ggml_tensor *a = dst->src[0], *b = dst->src[1], *ids = dst->src[2];
    const int64_t used = dst->ne[1], given = b->ne[1];
    gb_product_describe(p, a, b, dst, 0);
    p.exact = dst->op_params[0] == GGML_PREC_F32;
    p.rows = used * dst->ne[2];
    p.slices = p.w.ne2 = p.w.r2 = p.w.r3 = 1;
    p.w.stacked = true;
    p.w.n_experts = (int) a->ne[2];
    p.w.ids = gb_cuda_data(ids);
    p.w.used = (int) used;
    p.w.ids_nb = ids->nb[1];
    p.w.id_nb = ids->nb[0];
    p.b.n = given;
    p.b.ne2 = given > 0 ? used / given : 1;
    p.b.nb2 = 0; // rows of a token repeat
    p.b.nb3 = b->nb[2];
    p.b_dense = p.b_dense && used == given;
}

void gb_product_of(gb_product & p, const ggml_tensor * dst) {
    if (dst->op == GGML_OP_OUT_PROD) {
        gb_product_describe(p, dst->src[0], dst->src[1], dst, 1);
        return;
    }
    if (dst->op == GGML_OP_MUL_MAT) {
        gb_product_describe(p, dst->src[0], dst->src[1], dst, 0);
        p.exact = dst->op_params[0] == GGML_PREC_F32;
        return;
    }
    if (dst->op == GGML_OP_MUL_MAT_EXPERTS) {
        describe_stack(p, dst);
        return;
    }
    const ggml_tensor * ids = dst->src[0];
    gb_product_describe(p, dst->src[2], dst->src[1], dst, 0);
    p.exact = dst->op_params[2] == GGML_PREC_F32;
    p.w.n_experts = dst->op_params[1];
    for (int i = 0; i < p.w.n_experts; i++) {
        p.w.a[i] = gb_cuda_data(dst->src[2 + i]);
    }
    p.w.ids = gb_cuda_data(ids) + dst->op_params[0] * (int64_t) ids->nb[0];
    p.w.ids_nb = ids->nb[1];
    p.w.used = 1;
}

bool gb_product_is_along(const gb_product & p) {
    return gb_is_format(p.type) ? !p.across : p.nb_k == ggml_type_size((enum ggml_type) p.type);
}

bool gb_product_is_aligned(const gb_product & p) {
    const int64_t ne2 = p.w.ids != NULL ? 1 : p.w.ne2 / p.w.r2, ne3 = p.w.ids != NULL ? 1 : p.slices / p.w.ne2 / p.w.r3;
    size_t bits = (p.m > 1 ? p.w.nb_m : 0) | (ne2 > 1 ? p.w.nb2 : 0) | (ne3 > 1 ? p.w.nb3 : 0);
    bits |= p.w.stacked && p.w.n_experts > 1 ? p.w.nb2 : 0;
    for (int i = 0; i < (p.w.ids != NULL && !p.w.stacked ? p.w.n_experts : 1); i++) {
        bits |= (uintptr_t) p.w.a[i];
    }
    return bits % 16 == 0;
}
