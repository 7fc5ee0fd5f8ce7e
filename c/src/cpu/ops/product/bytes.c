// bytes.c - shared parts of products of bytes: the kernels that unpack formats, packing, and rows
// of activations.
#include "cpu/ops/product/bytes.h"

#include "cpu/ops/product/algorithm.h"
#include "cpu/ops/product/tuning.h"
#include "tensor/quant/quant.h"

_Static_assert(GB_BYTE_DOTS_ROWS <= GB_DOT_Q8_ROWS, "dot_q8 takes all rows at once");

// ------------------------------------------------------------------------------------------------------------- formats

struct gb_unpack gb_unpack_of(const struct gb_kernels * k, enum ggml_type type) {
    switch (type) {
#define GB_FORMAT(id, stem, name, elements, bytes, group, zero, top, use, ...) \
    GB_IF_UNPACKED_##use(case GGML_TYPE_##id : return (struct gb_unpack){      \
        k->unpack_##stem, GB_BYTES_KIND(group, top), zero };)
#include "tensor/quant/formats.def"
#undef GB_FORMAT
        default: return (struct gb_unpack){ NULL, 0, 0 };
    }
}

const char * gb_bytes_decline(const struct gb_gemm * p) {
    return !ggml_is_quantized(p->w.type)                              ? "the weights are not quantized"
           : p->activations >= GB_ACTIVATIONS_TWO_BYTES               ? "activations are not to be rounded"
           : p->x.type != GGML_TYPE_F32                               ? "the activations are not f32"
           : !gb_gemm_both_dense(p)                                   ? "terms are not consecutive"
           : gb_quant_format_of(p->w.type)->use == GB_USE_ACTIVATIONS ? "the format cannot be unpacked to bytes"
                                                                      : NULL;
}

// ------------------------------------------------------------------------------------------------------------- packing

// Packs consecutive rows of `k` floats into a panel.
static float * pack_part(const struct gb_kernels * kernels, int64_t k, int n, int width, float * y,
    const float * rows) {
    const void * x[GB_GEMM_NR_MAX];
    for (int i = 0; i < n; i++) {
        x[i] = rows + i * k;
    }
    kernels->pack_f32(k, n, width, y, x);
    return y + k * width;
}

void gb_bytes_pack_rows(const struct gb_kernels * kernels, const struct gb_unpack * unpack, int64_t k, int n, int width,
    float * y, const void * const * x) {
    float * const d = y + width * (k / 4);
    float * const s = d + width * (k / 32);
    for (int i = 0; i < n; i++) {
        kernels->quantize_q8(&(struct gb_quantize_q8){
            .k = k,
            .kind = unpack->kind,
            .zero = unpack->zero,
            .step = width,
            .q = (int8_t *) y + 32 * i,
            .d = d + i,
            .s = s + i,
            .x = x[i],
        });
    }
}

void gb_bytes_pack_columns(const struct gb_kernels * kernels, const struct gb_unpack * unpack, enum ggml_type type,
    int64_t k, int n, int width, float * y, const void * const * x, float * buf) {
    const int64_t groups = k / gb_bytes_group(unpack->kind);
    float * d = buf + n * (k / 4);
    float * m = d + n * groups;
    if (kernels->pack_columns_q8((int) type, k, unpack->zero != 0, n, y, x)) {
        return;
    }
    for (int i = 0; i < n; i++) {
        unpack->fn(k, (uint8_t *) (buf + i * (k / 4)), d + i * groups, m + i * groups, x[i]);
    }
    y = pack_part(kernels, k / 4, n, width, y, buf);
    y = pack_part(kernels, groups, n, width, y, d);
    if (unpack->zero == 0) {
        pack_part(kernels, groups, n, width, y, m);
    }
}

// ---------------------------------------------------------------------------------------------------------------- dots

size_t gb_bytes_row_size(int64_t k, int kind) {
    return gb_lines((size_t) gb_bytes_row_floats(k, kind) * sizeof(float));
}

// Works in pieces, so that several threads can share one row.
void gb_bytes_quantize_rows(const struct gb_cpu_call * call, const struct gb_gemm * p, int kind, char * rows) {
    enum { PIECE = 2048 };
    const int64_t pieces = gb_div_up(p->k, PIECE);
    int64_t i, last;
    gb_cpu_share(call, p->total * pieces, &i, &last);
    for (; i < last; i++) {
        const int64_t k0 = i % pieces * PIECE, n = GB_MIN(p->k - k0, PIECE);
        char * const row = rows + (size_t) (i / pieces) * gb_bytes_row_size(p->k, kind);
        float * const d = (float *) (row + p->k);
        float * const s = d + p->k / 32;
        int64_t g, r;
        gb_gemm_locate(p, i / pieces, &g, &r);
        call->k->quantize_q8(&(struct gb_quantize_q8){
            .k = n,
            .kind = kind,
            .step = 1,
            .q = (int8_t *) row + k0,
            .d = d + k0 / 32,
            .s = s + k0 / gb_bytes_group(kind),
            .x = (const float *) p->row_of(p, g, r).x + k0,
        });
        if (gb_cpu_stopped(call, n)) {
            return;
        }
    }
}

enum { PREFETCH_AHEAD = 4096 }; // bytes

// Addresses of a term of each row, as kernels take them.
struct places {
    const int8_t * q[GB_BYTE_DOTS_ROWS];
    const float *dx[GB_BYTE_DOTS_ROWS], *s[GB_BYTE_DOTS_ROWS];
};

// row: the first of n quantized rows of k terms
static struct places places_at(int64_t k, int kind, int n, const char * row, int64_t k0) {
    const size_t size = gb_bytes_row_size(k, kind);
    struct places p = { .q = { NULL } };
    for (int r = 0; r < n; r++) {
        const char * const x = row + (size_t) r * size;
        p.q[r] = (const int8_t *) x + k0;
        p.dx[r] = (const float *) (x + k) + k0 / 32;
        p.s[r] = (const float *) (x + k) + k / 32 + k0 / gb_bytes_group(kind);
    }
    return p;
}

// Adds the products with a column that is unpacked first, a part at a time.
static void dots_unpacked(const struct gb_kernels * kernels, const struct gb_unpack * unpack, enum ggml_type type,
    int64_t k, const char * w, int n, const char * row, float * y) {
    _Alignas(64) uint8_t u[GB_UNPACK_MAX]; // in whole cache lines
    _Alignas(64) float d[GB_UNPACK_MAX / 16], m[GB_UNPACK_MAX / 16];
    for (int64_t k0 = 0; k0 < k; k0 += GB_UNPACK_MAX) {
        const int64_t terms = GB_MIN(k - k0, GB_UNPACK_MAX);
        const size_t bytes = (size_t) (terms / ggml_blck_size(type)) * ggml_type_size(type);
        const struct places at = places_at(k, unpack->kind, n, row, k0);
        gb_prefetch(w + PREFETCH_AHEAD, bytes); // of the next columns, unless this is the last one
        unpack->fn(terms, u, d, m, w);
        w += bytes;
        kernels->dot_q8(&(struct gb_dot_q8){
            .k = terms,
            .kind = unpack->kind,
            .n = n,
            .y = y,
            .u = u,
            .d = d,
            .m = m,
            .q = at.q,
            .dx = at.dx,
            .s = at.s,
        });
    }
}

void gb_bytes_dots(const struct gb_kernels * kernels, const struct gb_unpack * unpack, enum ggml_type type, int64_t k,
    const struct gb_bytes_columns * w, int n, const char * row, float * const * dst) {
    const struct places at = places_at(k, unpack->kind, n, row, 0);
    const struct gb_dot_columns_q8 all = {
        .k = k,
        .columns = w->n,
        .n = n,
        .w = w->data,
        .nb_w = w->nb,
        .y = dst,
        .q = at.q,
        .dx = at.dx,
        .s = at.s,
    };
    if (kernels->dot_columns_q8((int) type, &all)) {
        return;
    }
    for (int64_t j = 0; j < w->n; j++) {
        float y[GB_BYTE_DOTS_ROWS] = { 0 };
        dots_unpacked(kernels, unpack, type, k, w->data + (size_t) j * w->nb, n, row, y);
        for (int r = 0; r < n; r++) {
            dst[r][j] = y[r];
        }
    }
}
