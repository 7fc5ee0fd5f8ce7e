// attention_parts.cu - what the algorithms of attention share: their limits, and parts of the keys.
//
// If the query rows alone would leave the device idle, as when one token is decoded, the keys are
// split into parts. A kernel then adds the parts.
#include <algorithm>

#include "cuda/kernels/attention.cuh"
#include "cuda/ops/attention.h"

enum { MAX_HEAD_HALVES = 256, MAX_PARTS = 64 };

bool gb_attention_fits(const ggml_tensor * dst) {
    enum { MAX_GRID = 65535 };
    return dst->ne[2] <= MAX_GRID && dst->ne[3] <= MAX_GRID && dst->ne[1] <= INT32_MAX / 1024;
}

gb_attention_input gb_attention_input_of(const ggml_tensor * t) {
    return { gb_cuda_data(t), t->type, t->nb[0], t->nb[1], t->nb[2], t->nb[3], t->ne[2], t->ne[3], 1, 1 };
}

static bool is_aligned(const gb_attention_input & t) {
    return t.nb0 == 2 && ((uintptr_t) t.x | t.nb1 | t.nb2 | t.nb3) % 16 == 0;
}

const char * gb_attention_halves_decline(const gb_cuda_device & device, const gb_attention & p) {
    const int type = p.q.type;
    return p.by_key                                   ? "values are stored by key"
           : p.exact                                  ? "GGML_PREC_F32 rounds sums only"
           : type != p.k.type || type != p.v.type     ? "queries, keys and values have different types"
           : type == GGML_TYPE_F32                    ? "the tensor cores do not take f32"
           : type == GGML_TYPE_BF16 && device.cc < 80 ? "needs compute capability 8.0 for bf16"
           : p.d > MAX_HEAD_HALVES                    ? "heads of more than 256 elements"
           : p.d % 8 != 0                             ? "heads whose length is not a multiple of 8"
           : p.m > INT32_MAX / 2                      ? "too many keys"
           : is_aligned(p.q) && is_aligned(p.k) && is_aligned(p.v)
               ? NULL
               : "rows of queries, keys or values do not begin at multiples of 16 bytes";
}

int64_t gb_attention_row_tiles(const gb_attention & p, int rows) {
    return gb_cuda_ceil_div(p.n * (p.heads / p.outer), rows);
}

bool gb_attention_cut_keys(gb_cuda_backend & b, gb_attention & p, int64_t batch, int rows, int keys, int least_keys,
    int64_t places) {
    const int64_t blocks = gb_attention_row_tiles(p, rows) * p.outer * batch, key_tiles = gb_cuda_ceil_div(p.m, keys);
    const int64_t wanted = std::min<int64_t>(std::min<int64_t>(places / blocks, p.m / least_keys), MAX_PARTS);
    p.part_keys = (int) (gb_cuda_ceil_div(key_tiles, std::max<int64_t>(1, wanted)) * keys);
    p.parts = p.m > 0 ? (int) gb_cuda_ceil_div(p.m, p.part_keys) : 1;
    if (p.parts > 1 || p.joined) {
        const int64_t all = p.n * p.heads * batch * p.parts * (p.d + 2);
        p.partial = (float *) gb_cuda_scratch(b, (size_t) all * sizeof(float));
    }
    return (p.parts == 1 && !p.joined) || p.partial != NULL;
}

enum ggml_status gb_attention_join_parts(gb_cuda_backend & b, const gb_attention & p, int64_t batch) {
    const int64_t rows = p.n * p.heads * batch;
    if (p.partial != NULL) {
        if (p.rounded != NULL) {
            *p.rounded = true;
        }
        GB_CUDA_TRY(b, GB_LAUNCH(gb_attention_join, (unsigned) gb_cuda_ceil_div(rows, GB_ATTENTION_THREADS / GB_WARP),
                           GB_ATTENTION_THREADS, 0, b.queue, p, rows));
    }
    return GGML_STATUS_SUCCESS;
}
