// attention_few.cu - attention of few rows of queries (gb_attention_few), and all attention that no
// other algorithm computes.
#include "cuda/kernels/attention_few.cuh"
#include "cuda/ops/attention.h"

const char * gb_attention_few_declines(const gb_cuda_device &, const gb_attention & p) {
    return p.by_key                                     ? "values are stored by key"
           : p.n * (p.heads / p.outer) > GB_FEW_QUERIES ? "needs at most 8 rows of queries that share keys"
                                                        : NULL;
}

bool gb_attention_is_dense(const gb_attention_input & t, int type) {
    return t.type == type && t.nb0 == ggml_type_size((enum ggml_type) type) &&
           ((uintptr_t) t.x | t.nb1 | t.nb2 | t.nb3) % 16 == 0;
}

template <int TYPE, int ROWS>
static enum ggml_status launch(gb_cuda_backend & b, const gb_attention & p, int64_t batch) {
    const int64_t tiles = gb_attention_row_tiles(p, ROWS);
    const dim3 grid((unsigned) (tiles * p.parts), (unsigned) p.outer, (unsigned) batch);
    const size_t shared = gb_attention_few_shared(ROWS, p.d) * sizeof(float);
    GB_CUDA_TRY(b, GB_LAUNCH((gb_attention_few<TYPE, ROWS>), grid, GB_ATTENTION_THREADS, shared, b.queue, p));
    return gb_attention_join_parts(b, p, batch);
}

template <int ROWS> static enum ggml_status run_rows(gb_cuda_backend & b, gb_attention p, int64_t batch) {
    enum { LEAST_KEYS = 64 };
    if (!gb_attention_cut_keys(b, p, batch, ROWS, GB_FEW_KEYS, LEAST_KEYS, 2 * b.device->n_sm)) {
        return GGML_STATUS_ALLOC_FAILED;
    }
    const int type = p.k.type;
    const bool dense = gb_attention_is_dense(p.k, type) && gb_attention_is_dense(p.v, type);
    return !dense                  ? launch<GGML_TYPE_COUNT, ROWS>(b, p, batch)
           : type == GGML_TYPE_F32 ? launch<GGML_TYPE_F32, ROWS>(b, p, batch)
           : type == GGML_TYPE_F16 ? launch<GGML_TYPE_F16, ROWS>(b, p, batch)
                                   : launch<GGML_TYPE_BF16, ROWS>(b, p, batch);
}

enum ggml_status gb_attention_few_run(gb_cuda_backend & b, gb_attention p, int64_t batch) {
    const int64_t rows = p.n * (p.heads / p.outer);
    return rows == 1 || p.d > 256 ? run_rows<1>(b, p, batch)
           : rows <= 4            ? run_rows<4>(b, p, batch)
                                  : run_rows<GB_FEW_QUERIES>(b, p, batch);
}
