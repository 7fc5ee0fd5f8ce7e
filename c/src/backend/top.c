// top.c - the largest elements of rows, for programs that choose the next token of a text.
#include <math.h>

#include "backend/backend.h"
#include "base/current.h"
#include "base/mapped.h"
#include "base/mem.h"
#include "base/status.h"
#include "tensor/tensor.h"

struct top { // the k largest elements so far, as a heap: each element is better than its parent
    float * values;
    int32_t * ids;
    int k;
};

// NaN is worse than every number. Of equal elements, the later one is worse.
static bool is_worse(float a, int32_t id_a, float b, int32_t id_b) {
    if (isnan(a) || isnan(b)) {
        return isnan(a) && (!isnan(b) || id_a > id_b);
    }
    return a < b || (a == b && id_a > id_b);
}

// Moves element i down, in a heap of n elements.
static void sift(const struct top * t, int n, int i) {
    const float value = t->values[i];
    const int32_t id = t->ids[i];
    for (int child; (child = 2 * i + 1) < n; i = child) {
        if (child + 1 < n && is_worse(t->values[child + 1], t->ids[child + 1], t->values[child], t->ids[child])) {
            child++;
        }
        if (!is_worse(t->values[child], t->ids[child], value, id)) {
            break;
        }
        t->values[i] = t->values[child];
        t->ids[i] = t->ids[child];
    }
    t->values[i] = value;
    t->ids[i] = id;
}

enum { BLOCK = 64 }; // elements that are compared at once

static bool any_above(const float x[BLOCK], float least) {
    int any = 0;
    for (int i = 0; i < BLOCK; i++) {
        any |= x[i] > least;
    }
    return any != 0;
}

// The k largest of n elements, the largest first.
static void find_top(const struct top * t, const float * x, int64_t n) {
    for (int i = 0; i < t->k; i++) {
        t->values[i] = x[i];
        t->ids[i] = i;
    }
    for (int i = t->k / 2 - 1; i >= 0; i--) {
        sift(t, t->k, i);
    }
    for (int64_t i = t->k, end; i < n; i = end) {
        end = GB_MIN(i + BLOCK, n);
        if (end - i == BLOCK && !isnan(t->values[0]) && !any_above(x + i, t->values[0])) {
            continue;
        }
        for (int64_t j = i; j < end; j++) {
            if (is_worse(t->values[0], t->ids[0], x[j], (int32_t) j)) {
                t->values[0] = x[j];
                t->ids[0] = (int32_t) j;
                sift(t, t->k, 0);
            }
        }
    }
    for (int last = t->k - 1; last > 0; last--) { // the worst of the heap goes to its end
        const struct top end = { &t->values[last], &t->ids[last], 1 };
        const float value = *end.values;
        const int32_t id = *end.ids;
        *end.values = t->values[0];
        *end.ids = t->ids[0];
        t->values[0] = value;
        t->ids[0] = id;
        sift(t, last, 0);
    }
}

static enum ggml_status check(const struct ggml_tensor * tensor, int k) {
    static const char func[] = "ggml_backend_tensor_get_top";
    GB_FAIL_IF(tensor->type != GGML_TYPE_F32 || tensor->nb[0] != sizeof(float), GGML_STATUS_UNSUPPORTED,
        "%s: tensor '%s' must be f32 with dense rows", func, tensor->name);
    GB_FAIL_IF(tensor->ne[0] > INT32_MAX, GGML_STATUS_UNSUPPORTED,
        "%s: a row of tensor '%s' has %lld elements, but ids are int32", func, tensor->name, (long long) tensor->ne[0]);
    GB_FAIL_IF(k < 1 || k > tensor->ne[0], GGML_STATUS_INVALID_ARGUMENT,
        "%s: argument 'k' must be from 1 to %lld, the length of a row of tensor '%s', is %d", func,
        (long long) tensor->ne[0], tensor->name, k);
    return GGML_STATUS_SUCCESS;
}

// True if the host can read the rows as floats where they are.
static bool is_readable(const struct ggml_tensor * t) {
    const ggml_backend_buffer_t buffer = gb_tensor_buffer(t);
    return (buffer == NULL || gb_buffer_is_host(buffer)) &&
           ((uintptr_t) t->data | t->nb[1] | t->nb[2] | t->nb[3]) % sizeof(float) == 0;
}

// Row r. room: NULL to read it where it is, or memory for a copy.
static const float * row_at(const struct ggml_tensor * t, int64_t r, float * room) {
    const int64_t i1 = r % t->ne[1], i2 = r / t->ne[1] % t->ne[2], i3 = r / t->ne[1] / t->ne[2];
    const size_t offset = (size_t) i1 * t->nb[1] + (size_t) i2 * t->nb[2] + (size_t) i3 * t->nb[3];
    if (room == NULL) {
        return (const float *) (const void *) ((const char *) t->data + offset);
    }
    return ggml_backend_tensor_get(t, room, offset, (size_t) t->ne[0] * sizeof(float)) == GGML_STATUS_SUCCESS ? room
                                                                                                              : NULL;
}

enum ggml_status ggml_backend_tensor_get_top(const struct ggml_tensor * tensor, int k, int32_t * ids, float * values) {
    GB_CHECK_ARG(tensor);
    GB_CHECK_ARG(ids);
    GB_CHECK_ARG(values);
    GB_TRY(check(tensor, k));
    GB_TRY(gb_tensor_check_access(__func__, tensor, values, 0, 0));
    const bool readable = is_readable(tensor);
    float * room = readable ? NULL : gb_malloc((size_t) tensor->ne[0] * sizeof(float));
    enum ggml_status status = readable || room != NULL ? GGML_STATUS_SUCCESS : ggml_last_status();
    for (int64_t r = 0; r < ggml_nrows(tensor) && status == GGML_STATUS_SUCCESS; r++) {
        const float * row = row_at(tensor, r, room);
        if (row == NULL) {
            status = ggml_last_status();
            break;
        }
        const struct top top = { values + r * k, ids + r * k, k };
        gb_mapped_enter();
        find_top(&top, row, tensor->ne[0]);
        gb_mapped_leave();
        status = gb_check_poll();
    }
    gb_free(room);
    GB_TRY(status);
    return readable ? gb_mapped_check_at(__func__, tensor->data) : GGML_STATUS_SUCCESS;
}
