// plan_order.c - sort keys: the orders in which heuristics place buffers and the search tries them.
//
// The larger key comes first. Ties are broken by size and lifetime, then by index, so that the
// order of items does not matter.
#include "plan/plan_impl.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "base/status.h"

// Saturates at 64 bits.
static uint64_t area(const struct gb_plan_buffer * b, uint64_t width) {
    return b->size > UINT64_MAX / width ? UINT64_MAX : b->size * width;
}

// size * max_load^(2^squares), times width^(1/4) if `wide`. Returns bits below 2^63 that sort like
// the number. IEEE 754 defines products, square roots and conversions exactly. The scale of the
// load prevents overflow and does not change the order.
static uint64_t weight(const struct gb_plan_buffer * b, size_t max_load, int squares, bool wide) {
    double power = (double) max_load * 0x1p-32;
    for (int k = 0; k < squares; k++) {
        power *= power;
    }
    const double root = wide ? sqrt(sqrt((double) (b->last - b->first))) : 1;
    const double number = power * (double) b->size * root;
    uint64_t bits;
    memcpy(&bits, &number, sizeof(bits));
    return bits;
}

// Buffers of the busiest section first, by width. Their tops then form stairs that fall to both
// sides, so the free space beside them is contiguous. Then the other buffers by size, load and
// width.
static uint64_t around_peak(const struct gb_plan_part * part, const struct gb_plan_buffer * b, size_t max_load) {
    if (b->first <= part->busiest && b->last > part->busiest) {
        return ((uint64_t) 1 << 63) + (b->last - b->first);
    }
    return weight(b, max_load, 4, true);
}

bool gb_plan_needs_max_load(enum gb_plan_key key) {
    switch (key) {
        case GB_PLAN_BY_SIZE:
        case GB_PLAN_BY_AREA:
        case GB_PLAN_BY_WIDTH:
        case GB_PLAN_BY_BIRTH:
        case GB_PLAN_BY_DEATH:
        case GB_PLAN_BY_DEATH_NARROW:
        case GB_PLAN_BY_DEATH_SPAN: return false;
        default: return true;
    }
}

size_t gb_plan_max_load(const struct gb_plan_buffer * b, const size_t * load) {
    size_t most = 0;
    for (uint32_t s = b->first; s < b->last; s++) {
        most = GB_MAX(most, load[s]);
    }
    return most;
}

struct gb_plan_ranked gb_plan_rank(const struct gb_plan_part * part, uint32_t index, enum gb_plan_key key,
    size_t max_load) {
    const struct gb_plan_buffer * const b = &part->buffers[index];
    struct gb_plan_ranked r = { { 0, 0, 0 }, b->first, b->last, b->size, index };
    uint64_t * const k = r.key;
    const uint64_t width = b->last - b->first;
    switch (key) {
        case GB_PLAN_BY_SIZE: k[0] = b->size; break;
        case GB_PLAN_BY_AREA: k[0] = area(b, width); break;
        case GB_PLAN_BY_WIDTH: k[0] = width; break;
        case GB_PLAN_BY_LOAD: k[0] = max_load; break;
        case GB_PLAN_BY_BIRTH: k[0] = UINT32_MAX - b->first; break;
        case GB_PLAN_BY_DEATH: k[0] = b->last; break;
        case GB_PLAN_BY_LOADED_SIZE: k[0] = weight(b, max_load, 3, false); break;
        case GB_PLAN_BY_LOADED_WIDTH: k[0] = weight(b, max_load, 3, true); break;
        case GB_PLAN_BY_PEAK: k[0] = around_peak(part, b, max_load); break;
        case GB_PLAN_BY_WIDTH_AREA_LOAD: k[0] = width, k[1] = area(b, width), k[2] = max_load; break;
        case GB_PLAN_BY_LOAD_AREA_WIDTH: k[0] = max_load, k[1] = area(b, width), k[2] = width; break;
        case GB_PLAN_BY_LOAD_WIDTH_AREA: k[0] = max_load, k[1] = width, k[2] = area(b, width); break;
        case GB_PLAN_BY_AREA_WIDTH_LOAD: k[0] = area(b, width), k[1] = width, k[2] = max_load; break;
        case GB_PLAN_BY_BIRTH_LOAD_WIDTH: k[0] = UINT32_MAX - b->first, k[1] = max_load, k[2] = width; break;
        case GB_PLAN_BY_DEATH_LOAD_WIDTH: k[0] = b->last, k[1] = max_load, k[2] = width; break;
        case GB_PLAN_BY_DEATH_NARROW: k[0] = b->last, k[1] = b->first; break;
        case GB_PLAN_BY_LATE_BIRTH_LOAD_WIDTH: k[0] = b->first, k[1] = max_load, k[2] = width; break;
        case GB_PLAN_BY_LOAD_SPAN: k[0] = max_load, k[1] = b->span, k[2] = area(b, b->span); break;
        case GB_PLAN_BY_BIRTH_LOAD_SPAN: k[0] = UINT32_MAX - b->first, k[1] = max_load, k[2] = area(b, b->span); break;
        case GB_PLAN_BY_DEATH_SPAN: k[0] = b->last, k[1] = b->span, k[2] = area(b, b->span); break;
    }
    return r;
}

int gb_plan_by_rank(const void * pa, const void * pb) {
    const struct gb_plan_ranked *a = pa, *b = pb;
    for (int k = 0; k < 3; k++) {
        if (a->key[k] != b->key[k]) {
            return a->key[k] > b->key[k] ? -1 : 1;
        }
    }
    if (a->size != b->size) {
        return a->size > b->size ? -1 : 1;
    }
    if (a->first != b->first) {
        return a->first < b->first ? -1 : 1;
    }
    if (a->last != b->last) {
        return a->last > b->last ? -1 : 1;
    }
    return a->buffer < b->buffer ? -1 : a->buffer > b->buffer;
}

// ------------------------------------------------------------------------------------------------------------- sorting

enum { DIGIT = 11, FEW = 64 };

static void insert(struct gb_plan_keyed * all, uint32_t n) {
    for (uint32_t k = 1; k < n; k++) {
        const struct gb_plan_keyed one = all[k];
        uint32_t at = k;
        for (; at > 0 && all[at - 1].key > one.key; at--) {
            all[at] = all[at - 1];
        }
        all[at] = one;
    }
}

// Radix sort, lowest digit first. Digits in which all keys agree are skipped.
void gb_plan_sort(struct gb_plan_keyed * all, struct gb_plan_keyed * scratch, uint32_t n) {
    if (n < FEW) {
        insert(all, n);
        return;
    }
    uint64_t any = 0, each = UINT64_MAX;
    for (uint32_t k = 0; k < n; k++) {
        any |= all[k].key;
        each &= all[k].key;
    }
    struct gb_plan_keyed *from = all, *to = scratch;
    for (unsigned shift = 0; shift < 64; shift += DIGIT) {
        uint32_t begin[(1 << DIGIT) + 1] = { 0 };
        const uint64_t mask = (1 << DIGIT) - 1;
        if (((any ^ each) >> shift & mask) == 0) {
            continue;
        }
        for (uint32_t k = 0; k < n; k++) {
            begin[(from[k].key >> shift & mask) + 1]++;
        }
        for (uint32_t d = 0; d < 1 << DIGIT; d++) {
            begin[d + 1] += begin[d];
        }
        for (uint32_t k = 0; k < n; k++) {
            to[begin[from[k].key >> shift & mask]++] = from[k];
        }
        struct gb_plan_keyed * const swap = from;
        from = to;
        to = swap;
    }
    if (from != all) {
        memcpy(all, from, n * sizeof(*all));
    }
}

// -------------------------------------------------------------------------------------------------------- a whole part

// A maximum tree over the loads: node k holds the larger of its two children.
enum ggml_status gb_plan_find_max_loads(struct gb_plan_part * part) {
    if (part->has_max_loads) {
        return GGML_STATUS_SUCCESS;
    }
    const size_t m = part->n_sections;
    size_t * const most = gb_calloc(2 * m, sizeof(*most));
    if (most == NULL) {
        return GGML_STATUS_ALLOC_FAILED;
    }
    memcpy(most + m, part->load, m * sizeof(*most));
    for (size_t k = m; k-- > 1;) {
        most[k] = GB_MAX(most[2 * k], most[2 * k + 1]);
    }
    for (uint32_t b = 0; b < part->n; b++) {
        size_t max_load = 0;
        for (size_t i = m + part->buffers[b].first, j = m + part->buffers[b].last; i < j; i /= 2, j /= 2) {
            max_load = i & 1 ? GB_MAX(max_load, most[i]) : max_load;
            i += i & 1;
            max_load = j & 1 ? GB_MAX(max_load, most[j - 1]) : max_load;
            j -= j & 1;
        }
        part->max_load[b] = max_load;
    }
    gb_free(most);
    part->busiest = 0;
    for (uint32_t k = 1; k < m; k++) {
        part->busiest = part->load[k] > part->load[part->busiest] ? k : part->busiest;
    }
    part->has_max_loads = true;
    return GGML_STATUS_SUCCESS;
}

// Insertion sort that stops, with false, after 4 n moves.
static bool insert_few(struct gb_plan_ranked * ranked, uint32_t n) {
    uint64_t may_move = 4 * (uint64_t) n;
    for (uint32_t k = 1; k < n; k++) {
        const struct gb_plan_ranked one = ranked[k];
        uint32_t at = k;
        for (; at > 0 && gb_plan_by_rank(&ranked[at - 1], &one) > 0; at--) {
            ranked[at] = ranked[at - 1];
        }
        ranked[at] = one;
        if (k - at > may_move) {
            return false;
        }
        may_move -= k - at;
    }
    return true;
}

// Sorts buffers whose first keys are equal. They come by birth.
static void order_ties(const struct gb_plan_part * part, enum gb_plan_key key, const struct gb_plan_keyed * ties,
    uint32_t n, struct gb_plan_ranked * ranked, uint32_t * order) {
    for (uint32_t k = 0; k < n; k++) {
        const uint32_t b = ties[k].buffer;
        ranked[k] = gb_plan_rank(part, b, key, part->max_load[b]);
    }
    if (!insert_few(ranked, n)) {
        qsort(ranked, n, sizeof(*ranked), gb_plan_by_rank);
    }
    for (uint32_t k = 0; k < n; k++) {
        order[k] = ranked[k].buffer;
    }
}

// Sorts by the first key, then each run of ties by all keys.
enum ggml_status gb_plan_order(struct gb_plan_part * part, enum gb_plan_key key, uint32_t * order) {
    if (gb_plan_needs_max_load(key)) {
        GB_TRY(gb_plan_find_max_loads(part));
    }
    const uint32_t n = part->n;
    struct gb_plan_keyed * keyed = gb_calloc((size_t) n * 2, sizeof(*keyed));
    struct gb_plan_ranked * ranked = NULL;
    uint32_t most = 0; // ties
    for (uint32_t b = 0; keyed && b < n; b++) {
        keyed[b] = (struct gb_plan_keyed){ ~gb_plan_rank(part, b, key, part->max_load[b]).key[0], b };
    }
    if (keyed) {
        gb_plan_sort(keyed, keyed + n, n);
        for (uint32_t k = 0, same = 0; k < n; k++) {
            same = k > 0 && keyed[k].key == keyed[k - 1].key ? same + 1 : 1;
            most = GB_MAX(most, same);
        }
        ranked = gb_calloc(most + 1, sizeof(*ranked));
    }
    for (uint32_t k = 0, end = 0; ranked && k < n; k = end) {
        for (end = k + 1; end < n && keyed[end].key == keyed[k].key;) {
            end++;
        }
        order_ties(part, key, keyed + k, end - k, ranked, order + k);
    }
    const bool ok = keyed && ranked;
    gb_free(keyed);
    gb_free(ranked);
    return ok ? GGML_STATUS_SUCCESS : GGML_STATUS_ALLOC_FAILED;
}

enum ggml_status gb_plan_order_by_offset(struct gb_plan_part * part, const size_t * offsets, uint32_t * order) {
    const uint32_t n = part->n;
    struct gb_plan_keyed * keyed = gb_calloc((size_t) n * 2, sizeof(*keyed));
    enum ggml_status status = keyed ? GGML_STATUS_SUCCESS : GGML_STATUS_ALLOC_FAILED;
    if (status == GGML_STATUS_SUCCESS) {
        status = gb_plan_order(part, (enum gb_plan_key) part->best_key, order);
    }
    if (status == GGML_STATUS_SUCCESS) {
        for (uint32_t k = 0; k < n; k++) {
            keyed[k] = (struct gb_plan_keyed){ offsets[order[k]], order[k] };
        }
        gb_plan_sort(keyed, keyed + n, n);
        for (uint32_t k = 0; k < n; k++) {
            order[k] = keyed[k].buffer;
        }
    }
    gb_free(keyed);
    return status;
}
