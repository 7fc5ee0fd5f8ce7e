// plan_chunks.c - plans for memory in chunks of limited size. No item may cross the end of a chunk.
//
// 1. A plan without a limit comes first. If it fits into one chunk, it is the result.
// 2. If no item crosses certain offsets of that plan, and these offsets are close enough to each other,
//   the plan is cut there into chunks. The sum stays the same.
// 3. Otherwise items are fitted into chunks in several orders. Then each chunk is planned again alone.
//
// A chunk is only as large as its items need. The sum of the chunks counts, so the bound of the
// unlimited problem holds.
#include "plan/plan.h"

#include <stdlib.h>
#include <string.h>

#include "alloc/offset_pool.h"
#include "plan/plan_impl.h"
#include "base/mem.h"
#include "base/status.h"
#include "base/vec.h"

#define ALL_STEPS ((uint64_t) 1 << 26) // for all orders but the first
#define CHUNK_STEPS ((uint64_t) 1 << 21) // of search in all chunks together

// The place of an item. offset: within the chunk.
struct spot {
    size_t chunk, offset;
};

// The state of one call. best: the smallest plan in chunks so far. trial: the plan being made.
struct chunked {
    struct gb_plan_item * items; // borrowed; with the offsets of the plan without limit
    size_t n, alignment, chunk;
    struct spot * best; // owned; by item
    struct spot * trial; // owned
    size_t total, n_chunks; // of `best`
    size_t * peaks; // owned; n + 1: by chunk
    struct gb_plan_item * some; // owned; scratch
    uint32_t * order; // owned; scratch: indices of items or buffers
};

static bool needs_memory(const struct gb_plan_item * item) { return item->size > 0 && item->lower < item->upper; }

static size_t padded(const struct chunked * c, size_t size) {
    return GGML_PAD(size, c->alignment); // cannot overflow: the unlimited plan exists
}

// Makes the trial the best plan if it needs fewer bytes, or as many bytes in fewer chunks.
static void keep_if_smaller(struct chunked * c) {
    size_t n_chunks = 0, total = 0;
    memset(c->peaks, 0, (c->n + 1) * sizeof(*c->peaks));
    for (size_t i = 0; i < c->n; i++) {
        if (needs_memory(&c->items[i])) {
            size_t * peak = &c->peaks[c->trial[i].chunk];
            *peak = GB_MAX(*peak, c->trial[i].offset + padded(c, c->items[i].size));
            n_chunks = GB_MAX(n_chunks, c->trial[i].chunk + 1);
        }
    }
    for (size_t k = 0; k < n_chunks; k++) {
        total += c->peaks[k];
    }
    if (total < c->total || (total == c->total && n_chunks < c->n_chunks)) {
        c->total = total;
        c->n_chunks = n_chunks;
        memcpy(c->best, c->trial, c->n * sizeof(*c->best));
    }
}

// ---------------------------------------------------------------------------------------------------------------- cuts

struct edge { // of an item in the plan without limit
    size_t offset, end;
};

static int by_offset(const void * pa, const void * pb) {
    const struct edge *a = pa, *b = pb;
    return a->offset != b->offset ? (a->offset < b->offset ? -1 : 1) : (a->end > b->end) - (a->end < b->end);
}

// Cuts the plan without limit at offsets that no item crosses, each as high as the chunk size
// allows. Does nothing if two such offsets are further apart than a chunk.
static enum ggml_status cut_cleanly(struct chunked * c) {
    GB_VEC(struct edge) edges = { 0 };
    GB_VEC(size_t) cuts = { 0 }; // where chunks begin
    bool ok = gb_vec_push(&cuts, (size_t) 0);
    for (size_t i = 0; ok && i < c->n; i++) {
        ok = !needs_memory(&c->items[i]) ||
             gb_vec_push(&edges,
                 ((struct edge){ c->items[i].offset, c->items[i].offset + padded(c, c->items[i].size) }));
    }
    if (edges.n > 0) {
        qsort(edges.data, edges.n, sizeof(*edges.data), by_offset);
    }
    size_t top = 0, clean = 0; // of all items so far; the last offset that no item crosses
    bool fits = true;
    for (size_t k = 0; ok && fits && k < edges.n; k++) {
        clean = edges.data[k].offset >= top ? edges.data[k].offset : clean;
        top = GB_MAX(top, edges.data[k].end);
        if (top - cuts.data[cuts.n - 1] > c->chunk) {
            ok = gb_vec_push(&cuts, clean);
            fits = top - clean <= c->chunk;
        }
    }
    for (size_t i = 0; ok && fits && i < c->n; i++) {
        size_t low = 0, high = cuts.n; // the last cut at or below the item
        while (high - low > 1) {
            const size_t middle = (low + high) / 2;
            if (cuts.data[middle] <= c->items[i].offset) {
                low = middle;
            } else {
                high = middle;
            }
        }
        c->trial[i] = needs_memory(&c->items[i]) ? (struct spot){ low, c->items[i].offset - cuts.data[low] }
                                                 : (struct spot){ 0, 0 };
    }
    gb_vec_free(&edges);
    gb_vec_free(&cuts);
    if (ok && fits) {
        keep_if_smaller(c);
    }
    return ok ? GGML_STATUS_SUCCESS : GGML_STATUS_ALLOC_FAILED;
}

// ------------------------------------------------------------------------------------------------------------ in order

// Takes memory from the first chunk with space, or from a new chunk. Each chunk is a pool.
static enum gb_pool_result take(const struct chunked * c, struct gb_offset_pool * pools, size_t * n_pools, size_t size,
    struct spot * at) {
    for (at->chunk = 0; at->chunk < *n_pools; at->chunk++) {
        const enum gb_pool_result result = gb_pool_take(&pools[at->chunk], size, &at->offset);
        if (result != GB_POOL_FULL) {
            return result;
        }
    }
    if (!gb_pool_init(&pools[*n_pools], 0, c->chunk)) {
        return GB_POOL_NO_MEMORY;
    }
    return gb_pool_take(&pools[(*n_pools)++], size, &at->offset);
}

// Sorts the buffers of the part by death (counting sort).
static enum ggml_status order_deaths(struct chunked * c, const struct gb_plan_part * part) {
    uint32_t * begin = gb_calloc((size_t) part->n_sections + 2, sizeof(*begin));
    if (begin == NULL) {
        return GGML_STATUS_ALLOC_FAILED;
    }
    for (uint32_t i = 0; i < part->n; i++) {
        begin[part->buffers[i].last + 1]++;
    }
    for (uint32_t s = 0; s <= part->n_sections; s++) {
        begin[s + 1] += begin[s];
    }
    for (uint32_t i = 0; i < part->n; i++) {
        c->order[begin[part->buffers[i].last]++] = i;
    }
    gb_free(begin);
    return GGML_STATUS_SUCCESS;
}

// In-order best fit with a pool for each chunk: the fallback.
static enum ggml_status fit_in_order(struct chunked * c, const struct gb_plan_part * part) {
    GB_TRY(order_deaths(c, part));
    struct gb_offset_pool * pools = gb_calloc(part->n, sizeof(*pools));
    size_t n_pools = 0;
    enum gb_pool_result result = pools ? GB_POOL_OK : GB_POOL_NO_MEMORY;
    for (uint32_t i = 0, ended = 0; i < part->n && result == GB_POOL_OK; i++) {
        for (; part->buffers[c->order[ended]].last <= part->buffers[i].first; ended++) {
            const struct gb_plan_buffer * dead = &part->buffers[c->order[ended]];
            gb_pool_give_back(&pools[c->trial[dead->item].chunk], c->trial[dead->item].offset, dead->size);
        }
        result = take(c, pools, &n_pools, part->buffers[i].size, &c->trial[part->buffers[i].item]);
    }
    for (size_t k = 0; k < n_pools; k++) {
        gb_pool_free(&pools[k]);
    }
    gb_free(pools);
    return result == GB_POOL_OK ? GGML_STATUS_SUCCESS : GGML_STATUS_ALLOC_FAILED;
}

// ------------------------------------------------------------------------------------------------------ several orders

// First fit in one space, where no buffer crosses a multiple of the chunk. *fitted: false if the
// budget ended it.
static enum ggml_status fit_by_key(struct chunked * c, struct gb_plan_part * part, enum gb_plan_key key,
    struct gb_plan_budget * budget, bool * fitted) {
    size_t peak;
    part->chunk = c->chunk;
    GB_TRY(gb_plan_first_fit(part, key, false, budget, &peak));
    *fitted = peak != SIZE_MAX;
    for (uint32_t i = 0; i < part->n; i++) {
        c->trial[part->buffers[i].item] = (struct spot){ part->trial[i] / c->chunk, part->trial[i] % c->chunk };
    }
    return GGML_STATUS_SUCCESS;
}

// The bytes that stay free at the end of a chunk are fewer than the size of the buffer that
// follows. So twice the sum of the sizes bounds that space.
static bool may_overflow(const struct gb_plan_problem * p) {
    size_t sum = 0;
    for (size_t i = 0; i < p->n; i++) {
        sum += p->buffers[i].size; // the sum of all does not overflow
    }
    return sum > SIZE_MAX / 4;
}

// In-order best fit of all parts, then first fit by several keys. First fit by size always runs, up to
// GB_PLAN_MAX_PROMISED items.
static enum ggml_status fit_chunks(struct chunked * c, struct gb_plan_problem * p) {
    static const enum gb_plan_key keys[] = { GB_PLAN_BY_SIZE, GB_PLAN_BY_AREA, GB_PLAN_BY_WIDTH, GB_PLAN_BY_LOAD,
        GB_PLAN_BY_BIRTH };
    struct gb_plan_budget budget = { .steps = ALL_STEPS, .deadline = INT64_MAX };
    for (size_t k = 0; k < p->n_parts; k++) {
        GB_TRY(fit_in_order(c, &p->parts[k]));
    }
    keep_if_smaller(c);
    bool fitted = !may_overflow(p);
    for (size_t k = 0; k < GB_ARRAY_LEN(keys) && fitted && c->total > p->bound; k++) {
        const bool free = k == 0 && c->n <= GB_PLAN_MAX_PROMISED;
        for (size_t i = 0; i < p->n_parts && fitted; i++) {
            GB_TRY(fit_by_key(c, &p->parts[i], keys[k], free ? NULL : &budget, &fitted));
        }
        if (budget.aborted) {
            return GGML_STATUS_ABORTED;
        }
        if (fitted) {
            keep_if_smaller(c);
        }
    }
    return GGML_STATUS_SUCCESS;
}

// Plans each chunk of the best plan again. Items stay in their chunks.
static enum ggml_status plan_each_chunk(struct chunked * c) {
    const struct gb_plan_effort effort = { .steps = CHUNK_STEPS / GB_MAX(c->n_chunks, 1),
        .limit_ns = 100 * (int64_t) 1000000 };
    size_t * end = c->peaks; // first as counts; 0 .. n_chunks
    memset(end, 0, (c->n + 1) * sizeof(*end));
    for (size_t i = 0; i < c->n; i++) {
        end[c->best[i].chunk + 1]++;
    }
    for (size_t k = 0; k < c->n_chunks; k++) {
        end[k + 1] += end[k];
    }
    for (size_t i = 0; i < c->n; i++) {
        c->order[end[c->best[i].chunk]++] = (uint32_t) i;
    }
    size_t begin = 0;
    for (size_t k = 0; k < c->n_chunks; begin = end[k++]) {
        struct gb_plan_result result;
        size_t peak = 0;
        for (size_t j = begin; j < end[k]; j++) {
            const size_t i = c->order[j];
            c->some[j - begin] = c->items[i];
            peak = needs_memory(&c->items[i]) ? GB_MAX(peak, c->best[i].offset + padded(c, c->items[i].size)) : peak;
        }
        GB_TRY(gb_plan_search(c->some, end[k] - begin, c->alignment, &effort, &result));
        for (size_t j = begin; j < end[k]; j++) {
            const size_t i = c->order[j];
            c->trial[i] = result.peak < peak ? (struct spot){ k, c->some[j - begin].offset } : c->best[i];
        }
    }
    keep_if_smaller(c);
    return GGML_STATUS_SUCCESS;
}

// -------------------------------------------------------------------------------------------------------------- bounds

// A lower bound for the number of chunks: the load divided by the chunk size, or the number of
// items larger than half a chunk that are alive at the same time, because no two of these share a
// chunk.
static enum ggml_status count_chunks(const struct chunked * c, const struct gb_plan_problem * p, size_t * bound) {
    *bound = p->bound / c->chunk + (p->bound % c->chunk > 0);
    int64_t * large = gb_calloc(p->n + 1, sizeof(*large)); // by section of a part: births less deaths
    if (large == NULL) {
        return GGML_STATUS_ALLOC_FAILED;
    }
    for (size_t k = 0; k < p->n_parts; k++) {
        const struct gb_plan_part * part = &p->parts[k];
        memset(large, 0, ((size_t) part->n_sections + 1) * sizeof(*large));
        for (uint32_t i = 0; i < part->n; i++) {
            const int64_t one = part->buffers[i].size > c->chunk / 2;
            large[part->buffers[i].first] += one;
            large[part->buffers[i].last] -= one;
        }
        int64_t alive = 0;
        for (uint32_t s = 0; s < part->n_sections; s++) {
            alive += large[s];
            *bound = GB_MAX(*bound, (size_t) alive);
        }
    }
    gb_free(large);
    return GGML_STATUS_SUCCESS;
}

// ----------------------------------------------------------------------------------------------------------- the whole

static enum ggml_status plan_chunks(struct chunked * c, struct gb_plan_problem * p, struct gb_plan_chunks * result) {
    GB_TRY(gb_plan_problem_init(p, c->items, c->n, c->alignment));
    GB_TRY(count_chunks(c, p, &result->n_bound));
    GB_TRY(cut_cleanly(c));
    if (c->total > result->one.peak) { // the cuts failed
        GB_TRY(fit_chunks(c, p));
        GB_TRY(plan_each_chunk(c));
    }
    result->total = c->total;
    result->bound = result->one.bound;
    result->n = c->n_chunks;
    result->proved = result->total <= result->bound;
    return GGML_STATUS_SUCCESS;
}

static enum ggml_status init(struct chunked * c) {
    c->best = gb_calloc(c->n + 1, sizeof(*c->best));
    c->trial = gb_calloc(c->n + 1, sizeof(*c->trial));
    c->peaks = gb_calloc(c->n + 1, sizeof(*c->peaks));
    c->some = gb_calloc(c->n + 1, sizeof(*c->some));
    c->order = gb_calloc(c->n + 1, sizeof(*c->order));
    return c->best && c->trial && c->peaks && c->some && c->order ? GGML_STATUS_SUCCESS : GGML_STATUS_ALLOC_FAILED;
}

static void free_all(struct chunked * c) {
    gb_free(c->best);
    gb_free(c->trial);
    gb_free(c->peaks);
    gb_free(c->some);
    gb_free(c->order);
}

// The plan without limit fits into one chunk, or needs none if all items are empty.
static void fill_one_chunk(size_t n, int * chunk_of, struct gb_plan_chunks * result) {
    for (size_t i = 0; i < n; i++) {
        chunk_of[i] = 0;
    }
    result->total = result->one.peak;
    result->bound = result->one.bound;
    result->n = result->one.peak > 0;
    result->n_bound = result->n;
    result->proved = result->total <= result->bound;
}

// Replaces the offsets of the plan without limit by offsets in several chunks.
static enum ggml_status plan_several(struct chunked * c, int * chunk_of, struct gb_plan_chunks * result) {
    struct gb_plan_problem p = { 0 };
    enum ggml_status status = init(c);
    status = status == GGML_STATUS_SUCCESS ? plan_chunks(c, &p, result) : status;
    for (size_t i = 0; status == GGML_STATUS_SUCCESS && i < c->n; i++) {
        c->items[i].offset = c->best[i].offset;
        chunk_of[i] = (int) c->best[i].chunk;
    }
    gb_plan_problem_free(&p);
    free_all(c);
    return status;
}

static enum ggml_status check_sizes(const struct chunked * c) {
    for (size_t i = 0; i < c->n; i++) {
        GB_FAIL_IF(c->items[i].size > c->chunk, GGML_STATUS_ALLOC_FAILED,
            "gb_plan_in_chunks: item %zu of %zu bytes exceeds a chunk, %zu bytes", i, c->items[i].size, c->chunk);
    }
    return GGML_STATUS_SUCCESS;
}

// A failure restores the offsets of the items.
enum ggml_status gb_plan_in_chunks_with(struct gb_plan_item * items, size_t n, size_t alignment, size_t chunk,
    const struct gb_plan_effort * effort, int * chunk_of, struct gb_plan_chunks * result) {
    GB_CHECK_ARG(result);
    GB_FAIL_IF(n > 0 && (items == NULL || chunk_of == NULL), GGML_STATUS_INVALID_ARGUMENT, "%s: an array is NULL",
        __func__);
    GB_FAIL_IF(n > INT32_MAX, GGML_STATUS_INVALID_ARGUMENT, "%s: %zu items are too many", __func__, n);
    GB_FAIL_IF(alignment == 0 || (alignment & (alignment - 1)) != 0 || chunk < alignment, GGML_STATUS_INVALID_ARGUMENT,
        "%s: needs an alignment that is a power of two and a chunk of at least that, has %zu and %zu", __func__,
        alignment, chunk);
    struct chunked c = {
        .items = items, .n = n, .alignment = alignment, .chunk = chunk - chunk % alignment, .total = SIZE_MAX
    };
    struct gb_plan_chunks found = { 0 };
    GB_TRY(check_sizes(&c));
    size_t * before = gb_calloc(n, sizeof(*before));
    if (before == NULL) {
        return GGML_STATUS_ALLOC_FAILED;
    }
    for (size_t i = 0; i < n; i++) {
        before[i] = items[i].offset;
    }
    enum ggml_status status = effort ? gb_plan_search(items, n, alignment, effort, &found.one)
                                     : gb_plan_offsets(items, n, alignment, &found.one);
    if (status == GGML_STATUS_SUCCESS && found.one.peak <= c.chunk) {
        fill_one_chunk(n, chunk_of, &found);
    } else if (status == GGML_STATUS_SUCCESS) {
        status = plan_several(&c, chunk_of, &found);
    }
    if (status == GGML_STATUS_SUCCESS) {
        *result = found;
    }
    for (size_t i = 0; status != GGML_STATUS_SUCCESS && i < n; i++) {
        items[i].offset = before[i];
    }
    gb_free(before);
    return status;
}

enum ggml_status gb_plan_in_chunks(struct gb_plan_item * items, size_t n, size_t alignment, size_t chunk,
    int * chunk_of, struct gb_plan_chunks * result) {
    return gb_plan_in_chunks_with(items, n, alignment, chunk, NULL, chunk_of, result);
}
