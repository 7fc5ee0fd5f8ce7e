// product_steps.cuh - the steps before and after a product: sorts rows by expert, adds up parts of the depth.
#ifndef GB_CUDA_KERNELS_PRODUCT_STEPS_CUH
#define GB_CUDA_KERNELS_PRODUCT_STEPS_CUH

#include "cuda/kernels/elements.cuh"
#include "cuda/kernels/rows.cuh"

// Element i of n: a float, or four.
template <bool FOURS> struct gb_part_element;
template <> struct gb_part_element<false> {
    float x;
    static GB_METHOD gb_part_element load(const float * from, int64_t i) { return { from[i] }; }
    GB_METHOD void add(const gb_part_element & y) { x += y.x; }
    GB_METHOD void store(float * to, int64_t i) const { to[i] = x; }
};
template <> struct gb_part_element<true> {
    float4 x;
    static GB_METHOD gb_part_element load(const float * from, int64_t i) {
        return { ((const float4 *) (const void *) from)[i] };
    }
    GB_METHOD void add(const gb_part_element & y) {
        x = make_float4(x.x + y.x.x, x.y + y.x.y, x.z + y.x.z, x.w + y.x.w);
    }
    GB_METHOD void store(float * to, int64_t i) const { ((float4 *) (void *) to)[i] = x; }
};

// dst[i] = the sum of the parts, in their order. n: elements of a part. Four loads are under way at a time.
template <bool FOURS>
GB_KERNEL GB_BOUNDS(256, 1) gb_gemm_add_parts(float * dst, const float * part, int64_t n, int parts) {
    gb_wait_for_earlier();
    typedef gb_part_element<FOURS> element;
    const int64_t i = (int64_t) blockIdx.x * 256 + threadIdx.x;
    if (i >= n) {
        return;
    }
    element sum = element::load(part, i);
    int s = 1;
    for (; s + 4 <= parts; s += 4) {
        element next[4];
        GB_UNROLL for (int j = 0; j < 4; j++) { next[j] = element::load(part, (s + j) * n + i); }
        GB_UNROLL for (int j = 0; j < 4; j++) { sum.add(next[j]); }
    }
    for (; s < parts; s++) {
        sum.add(element::load(part, s * n + i));
    }
    sum.store(dst, i);
}

// The expert of a row, n_experts for an id out of range.
GB_DEVICE int gb_route_of(const gb_weights & w, int row) {
    const int id = gb_expert_of_row(w, row);
    return id >= 0 && id < w.n_experts ? id : w.n_experts;
}

// The sum of what earlier threads of the block hold. counts: 256 numbers in shared memory.
GB_DEVICE int gb_route_sum_before(int mine, int * counts) {
    counts[threadIdx.x] = mine;
    gb_sync_block();
    int sum = 0;
    for (int i = 0; i < (int) threadIdx.x; i++) {
        sum += counts[i];
    }
    return sum;
}

// Lists the rows of `expert` in their order, from the place after the rows of smaller experts. Returns that place.
GB_DEVICE int gb_route_list(const gb_weights & w, int n, int expert, int * counts, int * sums, int * list) {
    const int per = (n + 255) / 256, begin = gb_min(n, (int) threadIdx.x * per), end = gb_min(n, begin + per);
    int before = 0, mine = 0;
    for (int i = begin; i < end; i++) {
        const int e = gb_route_of(w, i);
        before += e < expert;
        mine += e == expert;
    }
    before = gb_row_sum<256 / GB_WARP>(before, sums);
    int at = before + gb_route_sum_before(mine, counts);
    for (int i = begin; i < end; i++) {
        if (gb_route_of(w, i) == expert) {
            list[at++] = i;
        }
    }
    return before;
}

// Counts the tiles of each expert, of at most nt rows: tiles[e] of all earlier experts, tiles[n_experts] of all.
GB_DEVICE void gb_route_tiles(const gb_weights & w, int n, int nt, int * counts, int * tiles) {
    for (int e = (int) threadIdx.x; e <= w.n_experts; e += 256) {
        tiles[e] = 0;
    }
    gb_sync_block();
    for (int i = (int) threadIdx.x; i < n; i += 256) {
        const int e = gb_route_of(w, i);
        if (e < w.n_experts) {
            gb_atomic_add(&tiles[e], 1);
        }
    }
    gb_sync_block();
    const int share = (w.n_experts + 255) / 256, from = gb_min(w.n_experts, (int) threadIdx.x * share),
              to = gb_min(w.n_experts, from + share);
    int all = 0;
    for (int e = from; e < to; e++) {
        all += (tiles[e] + nt - 1) / nt;
    }
    int sum = gb_route_sum_before(all, counts);
    for (int e = from; e < to; e++) {
        const int here = (tiles[e] + nt - 1) / nt;
        tiles[e] = sum;
        sum += here;
    }
    if (threadIdx.x == 255) {
        tiles[w.n_experts] = sum;
    }
}

// Sorts the n rows of dst by expert, in their order. Block e lists the rows of expert e. The last
// block lists rows whose id is out of range after all others. They become NaN, and the first is
// noted. That block also counts the tiles. tiles: n_experts + 1 entries.
GB_KERNEL GB_BOUNDS(256, 1)
    gb_route(gb_weights w, int n, int nt, int * first, int * tiles, int * list, float * dst, int64_t m) {
    gb_wait_for_earlier();
    GB_SHARED(int, counts, 256);
    GB_SHARED(int, sums, 256 / GB_WARP);
    const int expert = (int) blockIdx.x, before = gb_route_list(w, n, expert, counts, sums, list);
    if (threadIdx.x == 0) {
        first[expert] = before;
    }
    if (expert < w.n_experts) {
        return; // the whole block
    }
    gb_sync_block(); // the list is written, and the counts are read
    if (threadIdx.x == 0 && before < n) {
        gb_note_wrong_expert(w, list[before]);
    }
    for (int i = before; i < n; i++) {
        for (int64_t c = threadIdx.x; c < m; c += 256) {
            dst[list[i] * m + c] = gb_bits_to_float(0x7fc00000u);
        }
    }
    gb_route_tiles(w, n, nt, counts, tiles);
}

#endif // GB_CUDA_KERNELS_PRODUCT_STEPS_CUH
