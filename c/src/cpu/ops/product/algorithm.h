// algorithm.h - what the parts of the engine share: blocked.c (blocked products), and for few rows dots.c,
// interleaved.c, short.c.
#ifndef GB_CPU_OPS_GEMM_IMPL_H
#define GB_CPU_OPS_GEMM_IMPL_H

#include "cpu/ops/product/bytes.h"
#include "tensor/quant/quant.h"

static inline int64_t gb_gemm_group_rows(const struct gb_gemm * p, int64_t g) {
    return p->first != NULL ? p->first[g + 1] - p->first[g] : p->rows;
}

static inline int64_t gb_gemm_first_row(const struct gb_gemm * p, int64_t g) { // counted through all groups
    return p->first != NULL ? p->first[g] : g * p->rows;
}

// For gb_cpu_stopped: what so many multiply-adds take.
static inline int64_t gb_gemm_work(int64_t rows, int64_t columns, int64_t terms) { return rows * columns * terms / 16; }

static inline bool gb_gemm_is_dense(const struct gb_gemm_operand * o) {
    return !o->across && o->nb_k == ggml_type_size(o->type);
}

static inline bool gb_gemm_uses_bytes(const struct gb_gemm * p) {
    return !p->exact && p->x.type == GGML_TYPE_F32 && gb_gemm_is_dense(&p->x) && gb_gemm_is_dense(&p->w) &&
           gb_has_unpack(p->w.type);
}

// Rows of floats and dense columns: several of each are multiplied at a time.
static inline bool gb_gemm_uses_dense_dots(const struct gb_gemm * p) {
    return p->x.type == GGML_TYPE_F32 && !ggml_is_quantized(p->w.type) && gb_gemm_is_dense(&p->w) &&
           gb_gemm_is_dense(&p->x);
}

// From the first term of a row to term k, which starts a block.
static inline size_t gb_gemm_term_offset(const struct gb_gemm_operand * o, int64_t k) {
    return (size_t) (o->across ? k : k / ggml_blck_size(o->type)) * o->nb_k;
}

static inline void gb_gemm_dequantize(enum ggml_type type, const char * x, int64_t n, float * y) {
    gb_quant_format_of(type)->to_float(x, y, (int) n);
}

// The epilogue for n columns of rows [first, end) of group g, or, where a way of computing does not know it, for all at
// the end.
void gb_gemm_finish_rows(const struct gb_cpu_call * call, const struct gb_gemm * p, int64_t g, int64_t first,
    int64_t end, int64_t column, int64_t n);
void gb_gemm_finish_all(const struct gb_cpu_call * call, const struct gb_gemm * p);

// Few rows: columns of w are multiplied as they lie, without packing.
bool   gb_gemm_uses_dots(const struct gb_gemm * p);
size_t gb_gemm_dots_work_size(const struct gb_gemm * p);
void   gb_gemm_run_dots(const struct gb_cpu_call * call, const struct gb_gemm * p);

// Few rows of floats and quantized columns, at levels with kernels for it (interleaved.c).
bool   gb_gemm_may_use_stripes(const struct gb_gemm * p);
bool   gb_gemm_uses_stripes(const struct gb_gemm * p, const struct gb_kernels * kernels);
size_t gb_gemm_stripes_work_size(const struct gb_gemm * p);
void   gb_gemm_run_stripes(const struct gb_cpu_call * call, const struct gb_gemm * p);

// Few rows of floats and short columns of Q8_0, as they lie, at levels with a kernel for it (short.c).
bool   gb_gemm_may_be_short(const struct gb_gemm * p);
bool   gb_gemm_is_short(const struct gb_gemm * p, const struct gb_kernels * kernels);
size_t gb_gemm_short_work_size(const struct gb_gemm * p);
void   gb_gemm_run_short(const struct gb_cpu_call * call, const struct gb_gemm * p);

// Floats from one row's dst to the next; 0: they are anywhere.
static inline int64_t gb_gemm_dst_stride(const struct gb_gemm_row * row, int rows) {
    const int64_t ld = rows > 1 ? row[1].dst - row[0].dst : 0;
    for (int r = 2; r < rows; r++) {
        if (row[r].dst - row[r - 1].dst != ld) {
            return 0;
        }
    }
    return ld;
}

#endif // GB_CPU_OPS_GEMM_IMPL_H
