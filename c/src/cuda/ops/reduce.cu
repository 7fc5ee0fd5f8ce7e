// reduce.cu - SUM, SUM_ROWS, MEAN, ARGMAX, ARGSORT, TOP_K.
//
// Sums are in double precision. The shape alone determines their order.
#include "cuda/ops/elements.h"

#include <algorithm>

// ----------------------------------------------------------------------------------------------------------------- SUM

// Each block adds up one part. Then one block adds up the results.
enum { GB_SUM_BLOCKS = 512, GB_SUM_WARPS = 8 };

GB_KERNEL GB_BOUNDS(256, 1) gb_sum_shares(gb_view x, double * shares, int64_t n) {
    gb_wait_for_earlier();
    GB_SHARED(double, shared, GB_SUM_WARPS);
    double sum = 0;
    for (int64_t k = gb_thread(); k < n; k += (int64_t) gridDim.x * blockDim.x) {
        sum += (double) gb_get(x.type, gb_at(x, gb_unravel<uint64_t>((uint64_t) k, x.ne)));
    }
    sum = gb_row_sum<GB_SUM_WARPS>(sum, shared);
    if (threadIdx.x == 0) {
        shares[blockIdx.x] = sum;
    }
}

GB_KERNEL GB_BOUNDS(256, 1) gb_sum_up(char * y, int type, const double * shares, int n) {
    gb_wait_for_earlier();
    GB_SHARED(double, shared, GB_SUM_WARPS);
    double sum = 0;
    for (int k = (int) threadIdx.x; k < n; k += (int) blockDim.x) {
        sum += shares[k];
    }
    sum = gb_row_sum<GB_SUM_WARPS>(sum, shared);
    if (threadIdx.x == 0) {
        gb_put(type, y, (float) sum);
    }
}

static enum ggml_status sum_run(gb_cuda_backend & b, ggml_tensor * dst) {
    const int64_t n = gb_count(dst->src[0]);
    const int blocks = n > (int64_t) GB_SUM_BLOCKS * GB_BLOCK ? GB_SUM_BLOCKS : (int) gb_blocks(n);
    double * shares = (double *) gb_cuda_scratch(b, GB_SUM_BLOCKS * sizeof(double));
    if (shares == NULL) {
        return GGML_STATUS_ALLOC_FAILED;
    }
    if (blocks > 0) {
        GB_CUDA_TRY(b, GB_LAUNCH(gb_sum_shares, (unsigned) blocks, GB_SUM_WARPS * GB_WARP, 0, b.queue,
                           gb_view_of(dst->src[0]), shares, n));
    }
    GB_CUDA_TRY(b, GB_LAUNCH(gb_sum_up, 1, GB_SUM_WARPS * GB_WARP, 0, b.queue, gb_cuda_data(dst), (int) dst->type,
                       shares, blocks));
    return GGML_STATUS_SUCCESS;
}

// ------------------------------------------------------------------------------------------------------ SUM_ROWS, MEAN

struct gb_sum_rows_args {
    gb_view x, y;
    bool mean;
    int64_t rows;
};

template <int WARPS> GB_KERNEL GB_BOUNDS(512, 1) gb_sum_rows(gb_sum_rows_args q) {
    gb_wait_for_earlier();
    GB_SHARED(double, shared, WARPS);
    const int64_t row = gb_my_row<WARPS>(), n = q.x.ne[0];
    const gb_index at = gb_unravel_row<uint64_t>((uint64_t) gb_min(row, q.rows - 1), q.x.ne);
    const char * x = gb_at(q.x, at);
    double sum = 0;
    for (int64_t i = gb_my_place<WARPS>(); i < n; i += WARPS * GB_WARP) {
        sum += (double) gb_get(q.x.type, x + i * q.x.nb[0]);
    }
    sum = gb_row_sum<WARPS>(sum, shared);
    if (row < q.rows && gb_my_place<WARPS>() == 0) {
        gb_put(q.y.type, gb_at(q.y, at), (float) (q.mean ? sum / (double) n : sum));
    }
}

static enum ggml_status sum_rows_run(gb_cuda_backend & b, ggml_tensor * dst) {
    const gb_sum_rows_args q = { gb_view_of(dst->src[0]), gb_view_of(dst), dst->op == GGML_OP_MEAN,
        gb_rows(dst->src[0]) };
    GB_CUDA_TRY(b, GB_ROW_LAUNCH(gb_sum_rows, q.x.ne[0], q.rows, b.queue, q));
    return GGML_STATUS_SUCCESS;
}

static const char * sum_supports(const gb_cuda_device &, const ggml_tensor * dst) {
    return dst->src[0] != NULL && gb_rows(dst->src[0]) >= (int64_t) 1 << 31 ? "more than 2^31 rows"
                                                                            : gb_need_floats(dst, 1);
}

// -------------------------------------------------------------------------------------------------------------- ARGMAX

struct gb_argmax_args {
    gb_view x;
    char * y;
    int64_t nb, rows;
};

struct gb_best { // the last of equal maxima; NaN is the largest
    float value;
    int at;
};

GB_DEVICE gb_best gb_better(gb_best a, gb_best b) {
    const bool none_a = a.value != a.value, none_b = b.value != b.value;
    if (none_a != none_b) {
        return none_b ? b : a;
    }
    return b.value > a.value || ((none_b || b.value == a.value) && b.at > a.at) ? b : a;
}

template <int WARPS> GB_KERNEL GB_BOUNDS(512, 1) gb_argmax(gb_argmax_args q) {
    gb_wait_for_earlier();
    GB_SHARED(gb_best, shared, WARPS);
    const int64_t row = gb_my_row<WARPS>(), n = q.x.ne[0];
    const char * x = gb_at(q.x, gb_unravel_row<uint64_t>((uint64_t) gb_min(row, q.rows - 1), q.x.ne));
    gb_best best = { -INFINITY, 0 };
    for (int64_t i = gb_my_place<WARPS>(); i < n; i += WARPS * GB_WARP) {
        const float v = gb_get(q.x.type, x + i * q.x.nb[0]);
        best = gb_better(best, { v, (int) i });
    }
    for (int d = GB_WARP / 2; d > 0; d /= 2) {
        const gb_best other = { gb_shfl_xor(best.value, d), gb_shfl_xor(best.at, d) };
        best = gb_better(best, other);
    }
    if (WARPS > 1) {
        if (threadIdx.x % GB_WARP == 0) {
            shared[threadIdx.x / GB_WARP] = best;
        }
        gb_sync_block();
        for (int w = 0; w < WARPS; w++) {
            best = gb_better(best, shared[w]);
        }
    }
    if (row < q.rows && gb_my_place<WARPS>() == 0) {
        *(int32_t *) (void *) (q.y + row * q.nb) = best.at;
    }
}

static enum ggml_status argmax_run(gb_cuda_backend & b, ggml_tensor * dst) {
    const gb_argmax_args q = { gb_view_of(dst->src[0]), gb_cuda_data(dst), (int64_t) dst->nb[0], gb_rows(dst->src[0]) };
    GB_CUDA_TRY(b, GB_ROW_LAUNCH(gb_argmax, q.x.ne[0], q.rows, b.queue, q));
    return GGML_STATUS_SUCCESS;
}

static const char * indices_unsupported(const ggml_tensor * dst) {
    const ggml_tensor * a = dst->src[0];
    if (gb_need_plain(a) != NULL || gb_need_plain(dst) != NULL) {
        return gb_need_plain(a) != NULL ? gb_need_plain(a) : gb_need_plain(dst);
    }
    if (dst->type != GGML_TYPE_I32 || !gb_is_float_type(a->type)) {
        return "a type that is not f32, f16 or bf16";
    }
    return gb_rows(a) >= (int64_t) 1 << 31 || a->ne[0] > INT32_MAX ? "more than 2^31 rows or columns" : NULL;
}

static const char * argmax_supports(const gb_cuda_device &, const ggml_tensor * dst) {
    return indices_unsupported(dst);
}

// ------------------------------------------------------------------------------------------------------ ARGSORT, TOP_K

// A block sorts a short row in shared memory. A longer row is sorted in runs, which are merged in
// pairs until one is left. A bisection finds the position of each element.
enum { GB_SORT_RUN = 4096 };

struct gb_sort {
    gb_view x, y; // y: i32, the result
    bool descending;
    int64_t n, rows;
    int64_t keep;     // indices of a row that y takes, from the first on
    int size;         // of runs that a block sorts, a power of two; or of sorted runs that are merged
    const int * from; // of a merge: rows of indices
};

// True if index a with value x comes before b with y: by value, then by index. NaN is last in either order.
GB_DEVICE bool gb_sorts_before(float x, int a, float y, int b, bool descending) {
    if (x != x || y != y) {
        return x != x && y != y ? a < b : y != y;
    }
    return x != y ? (descending ? x > y : x < y) : a < b;
}

GB_DEVICE char * gb_sort_row(const gb_view & v, int64_t row) {
    return gb_at(v, gb_unravel_row<uint64_t>((uint64_t) row, v.ne));
}

// A block sorts a run with a bitonic network. Padding sorts last.
GB_KERNEL GB_BOUNDS(512, 1) gb_argsort(gb_sort q) {
    gb_wait_for_earlier();
    GB_DYNAMIC_SHARED(float, values);
    int * index = (int *) (void *) (values + q.size);
    const int64_t runs = (q.n + q.size - 1) / q.size, row = blockIdx.x / runs, first = blockIdx.x % runs * q.size;
    const int n = (int) gb_min<int64_t>(q.size, q.n - first);
    const char * x = gb_sort_row(q.x, row) + first * q.x.nb[0];
    for (int i = (int) threadIdx.x; i < q.size; i += (int) blockDim.x) {
        values[i] = i < n ? gb_get(q.x.type, x + i * q.x.nb[0]) : 0;
        index[i] = i;
    }
    for (int run = 2; run <= q.size; run *= 2) {
        for (int gap = run / 2; gap > 0; gap /= 2) {
            gb_sync_block();
            for (int k = (int) threadIdx.x; k < q.size / 2; k += (int) blockDim.x) {
                const int i = k / gap * 2 * gap + k % gap, j = i + gap, a = index[j], b = index[i];
                const bool before =
                    a >= n || b >= n ? a < b : gb_sorts_before(values[a], a, values[b], b, q.descending);
                if (before == ((i & run) == 0)) {
                    index[i] = a;
                    index[j] = b;
                }
            }
        }
    }
    gb_sync_block();
    char * to = gb_sort_row(q.y, row);
    for (int i = (int) threadIdx.x; i < n; i += (int) blockDim.x) {
        if (first + i < q.keep) {
            *(int32_t *) (void *) (to + (first + i) * q.y.nb[0]) = (int32_t) first + index[i];
        }
    }
}

// A thread moves one index from its run into the merged one.
GB_KERNEL GB_BOUNDS(256, 1) gb_argsort_merge(gb_sort q) {
    gb_wait_for_earlier();
    const int64_t k = gb_thread(), row = k / q.n, i = k % q.n;
    if (row >= q.rows) {
        return;
    }
    const char * x = gb_sort_row(q.x, row);
    const int * from = q.from + row * q.n;
    const int64_t begin = i / (2 * (int64_t) q.size) * (2 * (int64_t) q.size), middle = gb_min(q.n, begin + q.size),
                  end = gb_min(q.n, middle + q.size);
    const int mine = from[i];
    const float value = gb_get(q.x.type, x + mine * q.x.nb[0]);
    // Number of elements of the other run that come before.
    int64_t low = i < middle ? middle : begin, high = i < middle ? end : middle;
    const int64_t other = low;
    while (low < high) {
        const int64_t half = low + (high - low) / 2;
        const int that = from[half];
        if (gb_sorts_before(gb_get(q.x.type, x + that * q.x.nb[0]), that, value, mine, q.descending)) {
            low = half + 1;
        } else {
            high = half;
        }
    }
    const int64_t place = begin + (low - other) + (i - (i < middle ? begin : middle));
    if (place < q.keep) {
        *(int32_t *) (void *) (gb_sort_row(q.y, row) + place * q.y.nb[0]) = mine;
    }
}

static enum ggml_status sort_runs(gb_cuda_backend & b, const gb_sort & q) {
    const int threads = std::min(512, std::max<int>(GB_WARP, q.size / 2));
    const unsigned blocks = (unsigned) (q.rows * gb_cuda_ceil_div(q.n, q.size));
    GB_CUDA_TRY(b, GB_LAUNCH(gb_argsort, blocks, threads, (size_t) q.size * 8, b.queue, q));
    return GGML_STATUS_SUCCESS;
}

// Stores the first indices of each row's order, as many as dst has.
static enum ggml_status sort_rows(gb_cuda_backend & b, const ggml_tensor * dst, bool descending) {
    const ggml_tensor * a = dst->src[0];
    gb_sort q = { gb_view_of(a), gb_view_of(dst), descending, a->ne[0], gb_rows(a), dst->ne[0], 2, NULL };
    while (q.size < q.n && q.size < GB_SORT_RUN) {
        q.size *= 2;
    }
    if (q.n <= q.size) {
        return sort_runs(b, q);
    }
    gb_view now, next; // i32 is as large as f32
    if (!gb_scratch_floats(b, a, &now) || !gb_scratch_floats(b, a, &next)) {
        return GGML_STATUS_ALLOC_FAILED;
    }
    const gb_view result = q.y;
    const int64_t keep = q.keep;
    q.y = now;
    q.keep = q.n;
    const enum ggml_status status = sort_runs(b, q);
    if (status != GGML_STATUS_SUCCESS) {
        return status;
    }
    for (int64_t run = q.size; run < q.n; run *= 2) {
        q.size = (int) run;
        q.from = (const int *) (const void *) now.p;
        const bool last = 2 * run >= q.n;
        q.y = last ? result : next;
        q.keep = last ? keep : q.n;
        GB_CUDA_TRY(b, GB_LAUNCH(gb_argsort_merge, gb_blocks(q.n * q.rows), GB_BLOCK, 0, b.queue, q));
        std::swap(now, next);
    }
    return GGML_STATUS_SUCCESS;
}

static enum ggml_status argsort_run(gb_cuda_backend & b, ggml_tensor * dst) {
    return sort_rows(b, dst, dst->op_params[0] == GGML_SORT_DESC);
}

// NaN comes last in either order, and the first of equal elements comes first.
static enum ggml_status top_k_run(gb_cuda_backend & b, ggml_tensor * dst) { return sort_rows(b, dst, true); }

static const char * argsort_supports(const gb_cuda_device &, const ggml_tensor * dst) {
    const char * why = indices_unsupported(dst);
    return why != NULL ? why
           : gb_rows(dst) * gb_cuda_ceil_div(dst->src[0]->ne[0], GB_SORT_RUN) >> 31 != 0
               ? "more than 2^31 pieces of rows"
               : NULL;
}

GB_CUDA_FAMILY_DEFINE(reduce, { GGML_OP_SUM, sum_supports, sum_run, nullptr },
    { GGML_OP_SUM_ROWS, sum_supports, sum_rows_run, nullptr }, { GGML_OP_MEAN, sum_supports, sum_rows_run, nullptr },
    { GGML_OP_ARGMAX, argmax_supports, argmax_run, nullptr },
    { GGML_OP_ARGSORT, argsort_supports, argsort_run, nullptr },
    { GGML_OP_TOP_K, argsort_supports, top_k_run, nullptr })
