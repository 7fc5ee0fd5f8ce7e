// plan_window.c - lowers the peak by planning the buffers around it in time again.
//
// A window is a span of sections around the highest buffer. Buffers that live within it are placed
// again, by first fit in learned orders (plan_learn.c). Buffers that reach past it are fixed. If
// that lowers the window's top, the plan is kept and the next highest buffer follows. Otherwise the
// window doubles. A round costs as much as the window is large.
#include "plan/search/plan_methods.h"

#include <string.h>

#include "base/mem.h"
#include "base/status.h"

#define SMALLEST 256 // buffers in a window
#define LARGEST 4096

struct windows {
    struct gb_plan_part * part; // borrowed
    uint32_t * died; // owned; by section: number of buffers dead by then
    struct gb_plan_buffer * buffers; // owned, as all arrays here; of the window, as in a part
    size_t * offsets;
    size_t * trial;
    size_t * max_load;
    size_t * load;
    uint32_t * order;
    uint32_t * origin; // by buffer of the window: the buffer of the part
    uint32_t capacity; // buffers that fit into these arrays; `load` has one entry per section of the part
};

static void windows_free(struct windows * w) {
    gb_free(w->died);
    gb_free(w->buffers);
    gb_free(w->offsets);
    gb_free(w->trial);
    gb_free(w->max_load);
    gb_free(w->load);
    gb_free(w->order);
    gb_free(w->origin);
}

static bool windows_init(struct windows * w, struct gb_plan_part * part) {
    const size_t n = part->n, m = part->n_sections;
    w->part = part;
    w->died = gb_calloc(m + 1, sizeof(*w->died));
    w->buffers = gb_calloc(n, sizeof(*w->buffers));
    w->offsets = gb_calloc(n, sizeof(*w->offsets));
    w->trial = gb_calloc(n, sizeof(*w->trial));
    w->max_load = gb_calloc(n, sizeof(*w->max_load));
    w->load = gb_calloc(m + 1, sizeof(*w->load));
    w->order = gb_calloc(n, sizeof(*w->order));
    w->origin = gb_calloc(n, sizeof(*w->origin));
    if (!w->died || !w->buffers || !w->offsets || !w->trial || !w->max_load || !w->load || !w->order || !w->origin) {
        return false;
    }
    for (uint32_t b = 0; b < n; b++) {
        w->died[part->buffers[b].last]++;
    }
    for (size_t s = 1; s <= m; s++) {
        w->died[s] += w->died[s - 1];
    }
    return true;
}

// Ties are broken by lifetime and size, not by index.
static bool is_higher(const struct gb_plan_part * part, uint32_t a, uint32_t b) {
    const struct gb_plan_buffer *x = &part->buffers[a], *y = &part->buffers[b];
    const size_t top_x = part->offsets[a] + x->size, top_y = part->offsets[b] + y->size;
    if (top_x != top_y) {
        return top_x > top_y;
    }
    if (x->first != y->first) {
        return x->first < y->first;
    }
    return x->last != y->last ? x->last < y->last : x->size < y->size;
}

static uint32_t highest(const struct gb_plan_part * part) {
    uint32_t best = 0;
    for (uint32_t b = 1; b < part->n; b++) {
        best = is_higher(part, b, best) ? b : best;
    }
    return best;
}

// The sections around a buffer in which at least `want` buffers are alive, or all sections.
static void span_of(const struct windows * w, uint32_t b, uint32_t want, uint32_t * first, uint32_t * last) {
    const struct gb_plan_part * part = w->part;
    uint32_t width = part->buffers[b].last - part->buffers[b].first;
    const uint32_t middle = part->buffers[b].first + width / 2;
    *first = part->buffers[b].first;
    *last = part->buffers[b].last;
    while (part->born[*last - 1] - w->died[*first] < want && (*first > 0 || *last < part->n_sections)) {
        width += width / 2 + 2;
        *first = GB_MIN(*first, middle > width / 2 ? middle - width / 2 : 0);
        *last = GB_MAX(*last, GB_MIN(part->n_sections, middle + width / 2));
    }
}

// Makes the window a part: the buffers within it, then the fixed ones.
static void gather(struct windows * w, struct gb_plan_part * window, uint32_t first, uint32_t last) {
    const struct gb_plan_part * part = w->part;
    uint64_t area = 0;
    *window = (struct gb_plan_part){ .buffers = w->buffers,
        .offsets = w->offsets,
        .trial = w->trial,
        .max_load = w->max_load,
        .load = w->load,
        .n_sections = last - first,
        .peak = SIZE_MAX,
        .best_key = part->best_key };
    memset(w->load, 0, ((size_t) last - first + 1) * sizeof(*w->load));
    for (int stays = 0; stays < 2; stays++) {
        for (uint32_t b = 0; b < part->born[last - 1]; b++) {
            const struct gb_plan_buffer * one = &part->buffers[b];
            const bool past = one->first < first || one->last > last;
            if (one->last <= first || past != (bool) stays) {
                continue;
            }
            const uint32_t k = stays ? window->n + window->n_fixed++ : window->n++;
            w->buffers[k] = *one;
            w->buffers[k].first = GB_MAX(one->first, first) - first;
            w->buffers[k].last = GB_MIN(one->last, last) - first;
            w->trial[k] = part->offsets[b];
            w->origin[k] = b;
            w->load[w->buffers[k].first] += one->size;
            w->load[w->buffers[k].last] -= one->size; // unsigned arithmetic wraps, so the sums are correct
            area += w->buffers[k].last - w->buffers[k].first;
        }
    }
    for (uint32_t s = 1; s < window->n_sections; s++) {
        w->load[s] += w->load[s - 1];
    }
    window->n_pairs = area * (window->n + window->n_fixed) / window->n_sections / 2; // as if evenly distributed
}

// Plans the window again. *lower: its top is below `top` now, and the part has the new offsets.
static enum ggml_status replan(struct windows * w, struct gb_plan_part * window, size_t goal, size_t top,
    struct gb_plan_budget * budget, bool * lower) {
    struct gb_plan_learner * learner = gb_plan_learner_new(window);
    enum ggml_status status = learner ? GGML_STATUS_SUCCESS : GGML_STATUS_ALLOC_FAILED;
    window->peak = top; // only a lower plan helps
    if (status == GGML_STATUS_SUCCESS) {
        status = gb_plan_order(window, (enum gb_plan_key) window->best_key, w->order);
    }
    if (status == GGML_STATUS_SUCCESS) {
        status = gb_plan_learn_from(learner, w->order, goal, budget);
    }
    gb_plan_learner_free(learner);
    *lower = status == GGML_STATUS_SUCCESS && window->peak < top;
    for (uint32_t k = 0; *lower && k < window->n; k++) {
        w->part->offsets[w->origin[k]] = w->offsets[k];
    }
    return status;
}

enum ggml_status gb_plan_lower_peaks(struct gb_plan_part * part, size_t goal, struct gb_plan_budget * budget) {
    struct windows w = { 0 };
    enum ggml_status status = windows_init(&w, part) ? GGML_STATUS_SUCCESS : GGML_STATUS_ALLOC_FAILED;
    uint32_t want = SMALLEST;
    while (status == GGML_STATUS_SUCCESS && part->peak > goal && want <= LARGEST &&
           gb_plan_spend(budget, (uint64_t) part->n * 3)) {
        struct gb_plan_part window;
        uint32_t first, last;
        bool lower;
        const uint32_t b = highest(part);
        part->peak = part->offsets[b] + part->buffers[b].size;
        if (part->peak <= goal) {
            break;
        }
        span_of(&w, b, want, &first, &last);
        gather(&w, &window, first, last);
        status = replan(&w, &window, goal, part->peak, budget, &lower);
        want = lower ? GB_MAX(want / 2, SMALLEST) : want * 2;
    }
    if (status == GGML_STATUS_SUCCESS) {
        const uint32_t b = highest(part);
        part->peak = part->offsets[b] + part->buffers[b].size;
    }
    windows_free(&w);
    return status;
}
