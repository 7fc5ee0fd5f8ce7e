// product_steps.cuh - the steps before and after a product: sorts rows by expert, adds up parts of the depth.
#ifndef GB_CUDA_KERNELS_PRODUCT_STEPS_CUH
#define GB_CUDA_KERNELS_PRODUCT_STEPS_CUH

#include "cuda/kernels/rows.cuh"

// dst[i] = the sum of the parts.
GB_KERNEL GB_BOUNDS(256, 1) gb_gemm_add_parts(float * dst, const float * part, int64_t n, int parts) {
    gb_wait_for_earlier();
    const int64_t i = (int64_t) blockIdx.x * 256 + threadIdx.x;
    if (i < n) {
        float sum = 0;
        for (int s = 0; s < parts; s++) {
            sum += part[s * n + i];
        }
        dst[i] = sum;
    }
}

// One block sorts the tokens by expert: first[e] .. first[e + 1] in `tokens`, in their order. Rows
// of dst whose id is out of range are not in the list. They become NaN, and the first such id is
// noted.
GB_KERNEL GB_BOUNDS(256, 1) gb_route(gb_weights w, int n, int * first, int * tokens, float * dst, int64_t m) {
    gb_wait_for_earlier();
    GB_SHARED(int, counts, 256);
    GB_SHARED(int, next, GGML_MAX_SRC + 1);
    const int per = (n + 255) / 256, begin = gb_min(n, (int) threadIdx.x * per), end = gb_min(n, begin + per);
    if (threadIdx.x == 0) {
        next[0] = 0;
    }
    for (int e = 0; e <= w.n_experts; e++) { // the last bucket is for ids out of range
        int mine = 0;
        for (int i = begin; i < end; i++) {
            const int id = *(const int *) (const void *) (w.ids + i * (int64_t) w.ids_nb);
            mine += e < w.n_experts ? id == e : id < 0 || id >= w.n_experts;
        }
        counts[threadIdx.x] = mine;
        gb_sync_block();
        int at = next[e];
        for (int i = 0; i < (int) threadIdx.x; i++) {
            at += counts[i];
        }
        for (int i = begin; i < end; i++) {
            const int id = *(const int *) (const void *) (w.ids + i * (int64_t) w.ids_nb);
            if (e < w.n_experts ? id == e : id < 0 || id >= w.n_experts) {
                tokens[at++] = i;
            }
        }
        gb_sync_block();
        if (threadIdx.x == 255) {
            next[e + 1] = at;
        }
        gb_sync_block();
    }
    if ((int) threadIdx.x <= w.n_experts) {
        first[threadIdx.x] = next[threadIdx.x];
    }
    if (threadIdx.x == 0 && next[w.n_experts] < n) {
        const int token = tokens[next[w.n_experts]];
        gb_note_wrong_index(w.reader, *(const int *) (const void *) (w.ids + token * (int64_t) w.ids_nb), token, 0, 0);
    }
    for (int i = next[w.n_experts]; i < n; i++) {
        for (int64_t c = threadIdx.x; c < m; c += 256) {
            dst[tokens[i] * m + c] = gb_bits_to_float(0x7fc00000u);
        }
    }
}

#endif // GB_CUDA_KERNELS_PRODUCT_STEPS_CUH
