// dots.c - products with few rows of x, one dot product after another. Columns of w are read once,
// in place.
//
// byte_dots: quantized weights with rows that were rounded to bytes (bytes.h). dots: products that
// no other algorithm for few rows can compute, for example with rows of f16 or bf16. Also quantized
// weights with exact rows, for which the weights are dequantized.
#include "cpu/ops/product/algorithm.h"
#include "cpu/ops/product/tuning.h"

#define GB_FORMAT(id, stem, name, elements, ...) \
    _Static_assert(GB_DOTS_TERMS % (elements) == 0, "terms that are dequantized at a time are whole blocks of " name);
#include "tensor/quant/formats.def"
#undef GB_FORMAT

// ----------------------------------------------------------------------------------------------------------- byte_dots

const char * gb_byte_dots_declines(const struct gb_gemm * p) {
    return p->rows > GB_BYTE_DOTS_ROWS ? "there are many rows" : gb_bytes_decline(p);
}

size_t gb_byte_dots_work_size(const struct gb_gemm * p, int n_tasks) {
    return gb_gemm_prepared_size(p, gb_bytes_row_size(p->k, GB_BYTES_HALVES), n_tasks);
}

void gb_byte_dots_run(const struct gb_cpu_call * call, const struct gb_gemm * p) {
    const struct gb_unpack unpack = gb_unpack_of(call->k, p->w.type);
    const size_t size = gb_bytes_row_size(p->k, unpack.kind);
    const struct gb_cpu_call preparation = gb_gemm_preparation(call, p, size);
    gb_bytes_quantize_rows(&preparation, p, unpack.kind, preparation.work);
    if (!gb_gemm_is_prepared(call, p)) {
        return;
    }
    struct gb_gemm_columns c = gb_gemm_share_columns(call, p);
    while (gb_gemm_next_columns(p, &c, gb_gemm_piece(p))) {
        const struct gb_gemm_matrix w = p->w_of(p, c.g);
        const char * const x = (const char *) preparation.work + (size_t) gb_gemm_first_row(p, c.g) * size;
        float * dst[GB_BYTE_DOTS_ROWS];
        for (int r = 0; r < c.rows; r++) {
            dst[r] = p->row_of(p, c.g, r).dst + c.first;
        }
        if (c.rows > 0) {
            const struct gb_bytes_columns columns = { w.data + (size_t) c.first * w.nb_m, w.nb_m, c.n };
            gb_bytes_dots(call->k, &unpack, p->w.type, p->k, &columns, c.rows, x, dst);
        }
        if (gb_cpu_stopped(call, gb_gemm_dots_work(p, c.rows, c.n))) {
            return;
        }
        gb_gemm_finish(call, p, c.g, c.first, c.n);
    }
}

// ---------------------------------------------------------------------------------------------------------------- dots

const char * gb_dots_declines(const struct gb_gemm * p) {
    return p->rows > GB_DOTS_ROWS                                       ? "there are many rows"
           : !gb_gemm_both_dense(p)                                     ? "terms are not consecutive"
           : ggml_is_quantized(p->x.type)                               ? "the activations are quantized"
           : ggml_is_quantized(p->w.type) && p->x.type != GGML_TYPE_F32 ? "the activations are not f32"
                                                                        : NULL;
}

static float dot(const struct gb_kernels * kernels, const struct gb_gemm * p, const char * w, const char * x) {
    const bool wide = p->x.type == GGML_TYPE_F32;
    switch (p->w.type) {
        case GGML_TYPE_F16:
            return wide ? kernels->dot_f16_f32(p->k, (const uint16_t *) w, (const float *) x)
                        : kernels->dot_f16(p->k, (const uint16_t *) w, (const uint16_t *) x);
        case GGML_TYPE_BF16:
            return wide ? kernels->dot_bf16_f32(p->k, (const uint16_t *) w, (const float *) x)
                        : kernels->dot_bf16(p->k, (const uint16_t *) w, (const uint16_t *) x);
        default: return kernels->dot_f32(p->k, (const float *) w, (const float *) x);
    }
}

// Multiplies the quantized column j of w with all rows, which are f32.
static void dots_quantized(const struct gb_kernels * kernels, const struct gb_gemm * p, const char * w,
    const struct gb_gemm_row * row, int rows, int64_t j) {
    float buf[GB_DOTS_TERMS];
    for (int r = 0; r < rows; r++) {
        row[r].dst[j] = 0;
    }
    for (int64_t k = 0; k < p->k; k += GB_DOTS_TERMS) {
        const int64_t n = GB_MIN(p->k - k, GB_DOTS_TERMS);
        gb_gemm_dequantize(p->w.type, w + gb_gemm_term_offset(&p->w, k), n, buf);
        for (int r = 0; r < rows; r++) {
            row[r].dst[j] += kernels->dot_f32(n, buf, (const float *) row[r].x + k);
        }
    }
}

static void dots(const struct gb_kernels * kernels, const struct gb_gemm * p, const char * w,
    const struct gb_gemm_row * row, int rows, int64_t j) {
    for (int r = 0; r < rows; r++) {
        row[r].dst[j] = dot(kernels, p, w, row[r].x);
    }
}

void gb_dots_run(const struct gb_cpu_call * call, const struct gb_gemm * p) {
    const bool quantized = ggml_is_quantized(p->w.type);
    struct gb_gemm_columns c = gb_gemm_share_columns(call, p);
    while (gb_gemm_next_columns(p, &c, gb_gemm_piece(p))) {
        const struct gb_gemm_matrix w = p->w_of(p, c.g);
        struct gb_gemm_row row[GB_DOTS_ROWS];
        for (int r = 0; r < c.rows; r++) {
            row[r] = p->row_of(p, c.g, r);
        }
        for (int64_t j = c.first; j < c.first + c.n; j++) {
            (quantized ? dots_quantized : dots)(call->k, p, w.data + (size_t) j * w.nb_m, row, c.rows, j);
        }
        if (gb_cpu_stopped(call, gb_gemm_dots_work(p, c.rows, c.n))) {
            return;
        }
        gb_gemm_finish(call, p, c.g, c.first, c.n);
    }
}
