// record.c - writes tensors as bytes, and reads them (record.h).
#include "tensor/record.h"

#include <stdio.h>


enum { NDIM_AT = GGML_MAX_NAME - 1 };

bool gb_record_holds(const struct ggml_tensor * t) { return !gb_op_is_custom(t->op); }

static void write_name(const struct ggml_tensor * t, bool named, char name[GGML_MAX_NAME]) {
    memset(name, 0, GGML_MAX_NAME);
    if (named) {
        gb_tensor_read_name(t, name);
    }
    if (name[NDIM_AT - 1] == '\0') {
        name[NDIM_AT] = (char) (gb_tensor_ndim(t) + 1);
    }
}

// Reads the number of dimensions. Always ends the name with a NUL.
static void settle_name(struct ggml_tensor * t) {
    const int ndim = t->name[NDIM_AT - 1] == '\0' ? t->name[NDIM_AT] - 1 : -1;
    t->name[NDIM_AT] = '\0';
    if (strlen(t->name) == NDIM_AT) {
        gb_cut_at_character(t->name);
    }
    gb_tensor_set_ndim(t, ndim >= 0 && ndim <= GGML_MAX_DIMS ? ndim : -1);
}

static uint8_t * put(uint8_t * to, const void * from, size_t size) {
    memcpy(to, from, size);
    return to + size;
}

static const uint8_t * take(const uint8_t * from, void * to, size_t size) {
    memcpy(to, from, size);
    return from + size;
}

void gb_record_write(const struct ggml_tensor * t, bool as_leaf, bool named, uint8_t to[GB_RECORD_SIZE]) {
    const uint32_t words[2] = { (uint32_t) t->type, (uint32_t) (as_leaf ? GGML_OP_NONE : t->op) };
    uint64_t shape[2 * GGML_MAX_DIMS];
    char name[GGML_MAX_NAME];
    for (int d = 0; d < GGML_MAX_DIMS; d++) {
        shape[2 * d] = (uint64_t) t->ne[d];
        shape[2 * d + 1] = t->nb[d];
    }
    write_name(t, named, name);
    to = put(put(put(to, words, sizeof(words)), shape, sizeof(shape)), name, sizeof(name));
    if (as_leaf) {
        memset(to, 0, sizeof(t->op_params));
    } else {
        memcpy(to, t->op_params, sizeof(t->op_params));
    }
}

bool gb_record_read(const uint8_t from[GB_RECORD_SIZE], struct ggml_tensor * t, char wrong[GB_RECORD_WRONG_SIZE]) {
    uint32_t words[2];
    uint64_t shape[2 * GGML_MAX_DIMS];
    from = take(take(take(from, words, sizeof(words)), shape, sizeof(shape)), t->name, sizeof(t->name));
    take(from, t->op_params, sizeof(t->op_params));
    settle_name(t);
    if (words[0] >= GGML_TYPE_COUNT || !gb_type_is_valid((enum ggml_type) words[0])) {
        snprintf(wrong, GB_RECORD_WRONG_SIZE, "%u is no tensor type", words[0]);
        return false;
    }
    if (words[1] >= GGML_OP_COUNT || gb_op_is_custom((enum ggml_op) words[1])) {
        snprintf(wrong, GB_RECORD_WRONG_SIZE, "%u is no operator that a record can hold", words[1]);
        return false;
    }
    t->type = (enum ggml_type) words[0];
    t->op = (enum ggml_op) words[1];
    int64_t n_elements = 1;
    for (int d = 0; d < GGML_MAX_DIMS; d++) {
        if (shape[2 * d] > INT64_MAX || shape[2 * d + 1] > SIZE_MAX ||
            !gb_mul_i64(n_elements, (int64_t) shape[2 * d], &n_elements)) {
            snprintf(wrong, GB_RECORD_WRONG_SIZE, "the shape of tensor '%s' overflows", t->name);
            return false;
        }
        t->ne[d] = (int64_t) shape[2 * d];
        t->nb[d] = (size_t) shape[2 * d + 1];
    }
    size_t extent;
    if (!gb_bytes_needed(t, &extent) || extent > PTRDIFF_MAX) {
        snprintf(wrong, GB_RECORD_WRONG_SIZE, "the size of tensor '%s' overflows", t->name);
        return false;
    }
    return true;
}

void gb_sources_find(const struct ggml_tensor * t, const struct gb_ptrmap * numbers, int64_t found[GGML_MAX_SRC]) {
    for (int k = 0; k < GGML_MAX_SRC; k++) {
        found[k] = t->src[k] != NULL ? gb_ptrmap_get(numbers, t->src[k]) : -1;
    }
}

int gb_sources_misfit(enum ggml_op op, const int64_t numbers[GGML_MAX_SRC], int64_t own) {
    for (int k = 0; k < GGML_MAX_SRC; k++) {
        if (numbers[k] < -1 || numbers[k] > own || (numbers[k] == own && (op != GGML_OP_CPY || k == 0))) {
            return k;
        }
    }
    return -1;
}

void gb_sources_write(const int64_t numbers[GGML_MAX_SRC], uint8_t to[GB_SOURCES_SIZE]) {
    int32_t narrow[GGML_MAX_SRC];
    for (int k = 0; k < GGML_MAX_SRC; k++) {
        narrow[k] = (int32_t) numbers[k];
    }
    memcpy(to, narrow, sizeof(narrow));
}

void gb_sources_read(const uint8_t from[GB_SOURCES_SIZE], int64_t numbers[GGML_MAX_SRC]) {
    int32_t narrow[GGML_MAX_SRC];
    memcpy(narrow, from, sizeof(narrow));
    for (int k = 0; k < GGML_MAX_SRC; k++) {
        numbers[k] = narrow[k];
    }
}
