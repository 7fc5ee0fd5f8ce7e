// access.c - single elements of tensors in host memory.
//
// Each function checks the index, finds the address of the element, and converts between the
// element's type and int32_t or float. Integer values are cut to the range of the type. Floats
// become integers by truncation towards zero.
#include "base/fp16.h"
#include "ggml-backend-impl.h"
#include "tensor.h"

// ---------------------------------------------------------------------------------------------------------- conversion

// True if single elements of the type can be read and written; blocks of quantized types cannot.
static bool has_elements(enum ggml_type type) {
    switch ((int) type) {
        case GGML_TYPE_I8:
        case GGML_TYPE_I16:
        case GGML_TYPE_I32:
        case GGML_TYPE_F16:
        case GGML_TYPE_BF16:
        case GGML_TYPE_F32: return true;
        default: return false;
    }
}

// Reads an element byte by byte, because a view may put it at any address. A double holds every
// value of these types.
static double load(enum ggml_type type, const void * p) {
    int8_t i8;
    int16_t i16;
    int32_t i32;
    uint16_t h;
    float f;
    switch ((int) type) {
        case GGML_TYPE_I8: memcpy(&i8, p, sizeof(i8)); return i8;
        case GGML_TYPE_I16: memcpy(&i16, p, sizeof(i16)); return i16;
        case GGML_TYPE_I32: memcpy(&i32, p, sizeof(i32)); return i32;
        case GGML_TYPE_F16: memcpy(&h, p, sizeof(h)); return gb_f16_to_f32(h);
        case GGML_TYPE_BF16: memcpy(&h, p, sizeof(h)); return gb_bf16_to_f32(h);
        default: memcpy(&f, p, sizeof(f)); return f;
    }
}

// Rounds towards zero and cuts to the range. NaN gives 0.
static int32_t to_int(double v, int32_t low, int32_t high) {
    return v != v ? 0 : v <= low ? low : v >= high ? high : (int32_t) v;
}

// Writes an element of a type for which has_elements holds.
static void store(enum ggml_type type, void * p, double v) {
    const int8_t i8 = (int8_t) to_int(v, INT8_MIN, INT8_MAX);
    const int16_t i16 = (int16_t) to_int(v, INT16_MIN, INT16_MAX);
    const int32_t i32 = to_int(v, INT32_MIN, INT32_MAX);
    const float f = (float) v;
    uint16_t h;
    switch ((int) type) {
        case GGML_TYPE_I8: memcpy(p, &i8, sizeof(i8)); return;
        case GGML_TYPE_I16: memcpy(p, &i16, sizeof(i16)); return;
        case GGML_TYPE_I32: memcpy(p, &i32, sizeof(i32)); return;
        case GGML_TYPE_F16:
            h = gb_f32_to_f16(f);
            memcpy(p, &h, sizeof(h));
            return;
        case GGML_TYPE_BF16:
            h = gb_f32_to_bf16(f);
            memcpy(p, &h, sizeof(h));
            return;
        default: memcpy(p, &f, sizeof(f)); return;
    }
}

// ------------------------------------------------------------------------------------------------------------- address

// Reads the buffer's struct directly, because this folder is below `backend`.
bool gb_tensor_is_host(const struct ggml_tensor * t) {
    const struct ggml_backend_buffer * buffer = gb_root(t)->buffer;
    if (t->data == NULL || !gb_view_is_bound(t)) {
        return false;
    }
    if (buffer == NULL) {
        return true;
    }
    const ggml_backend_buffer_type_t buft = buffer->buft;
    // A buffer without hooks was freed (a scheduler's arena after a reset).
    return buffer->iface.get_base != NULL && buft != NULL && buft->iface.is_host != NULL && buft->iface.is_host(buft);
}

// False and reported for the function `func`, unless the host can read and write the tensor's
// bytes.
static bool check_host(const struct ggml_tensor * t, const char * func) {
    if (t == NULL) {
        gb_fail_null(func, "tensor");
        return false;
    }
    GB_FAIL_IF_RETURNING(t->data == NULL, false, GGML_STATUS_INVALID_STATE, "%s: tensor '%s' has no data yet", func,
        t->name);
    GB_FAIL_IF_RETURNING(!gb_view_is_bound(t), false, GGML_STATUS_INVALID_STATE,
        "%s: tensor '%s' is a view of '%s', which has moved", func, t->name, t->view_src->name);
    GB_FAIL_IF_RETURNING(!gb_tensor_is_host(t), false, GGML_STATUS_INVALID_STATE,
        "%s: tensor '%s' is not in host memory: use ggml_backend_tensor_get and ggml_backend_tensor_set", func,
        t->name);
    return true;
}

// The same, and the type must have single elements.
static bool check_elements(const struct ggml_tensor * t, const char * func) {
    if (!check_host(t, func)) {
        return false;
    }
    const char * name = ggml_type_name(t->type);
    GB_FAIL_IF_RETURNING(!has_elements(t->type), false, GGML_STATUS_INVALID_ARGUMENT,
        "%s: tensor '%s': needs type i8, i16, i32, f16, bf16 or f32, has %s", func, t->name, name ? name : "none");
    return true;
}

// The index must be in range.
static char * address(const struct ggml_tensor * t, const int64_t i[GGML_MAX_DIMS]) {
    return (char *) t->data + (size_t) i[0] * t->nb[0] + (size_t) i[1] * t->nb[1] + (size_t) i[2] * t->nb[2] +
           (size_t) i[3] * t->nb[3];
}

// The first element of a row, counted over dimensions 1 to 3.
static char * row_address(const struct ggml_tensor * t, int64_t row) {
    const int64_t i[GGML_MAX_DIMS] = { 0, row % t->ne[1], row / t->ne[1] % t->ne[2], row / t->ne[1] / t->ne[2] };
    return address(t, i);
}

// Splits an index over all elements into one for each dimension. No size is 0, because the index is
// in range.
static void unravel(const struct ggml_tensor * t, int64_t flat, int64_t i[GGML_MAX_DIMS]) {
    for (int d = 0; d < GGML_MAX_DIMS; d++) {
        i[d] = flat % t->ne[d];
        flat /= t->ne[d];
    }
}

// Element `flat` in logical order, for any strides. NULL if it does not exist or the host cannot
// access it (reported).
static char * element_1d(const struct ggml_tensor * t, int64_t flat, const char * func) {
    if (!check_elements(t, func)) {
        return NULL;
    }
    char text[GB_DESCRIBE_SIZE];
    GB_FAIL_IF_RETURNING(flat < 0 || flat >= ggml_nelements(t), NULL, GGML_STATUS_INVALID_ARGUMENT,
        "%s: index %lld is out of range: %s has %lld elements", func, (long long) flat, gb_describe(t, text),
        (long long) ggml_nelements(t));
    int64_t i[GGML_MAX_DIMS];
    unravel(t, flat, i);
    return address(t, i);
}

// The same by four indices.
static char * element_nd(const struct ggml_tensor * t, int i0, int i1, int i2, int i3, const char * func) {
    if (!check_elements(t, func)) {
        return NULL;
    }
    const int64_t i[GGML_MAX_DIMS] = { i0, i1, i2, i3 };
    for (int d = 0; d < GGML_MAX_DIMS; d++) {
        char text[GB_DESCRIBE_SIZE];
        GB_FAIL_IF_RETURNING(i[d] < 0 || i[d] >= t->ne[d], NULL, GGML_STATUS_INVALID_ARGUMENT,
            "%s: index [%d, %d, %d, %d] is out of range in dimension %d of %s", func, i0, i1, i2, i3, d,
            gb_describe(t, text));
    }
    return address(t, i);
}

// NULL outputs are skipped.
void ggml_unravel_index(const struct ggml_tensor * tensor, int64_t i, int64_t * i0, int64_t * i1, int64_t * i2,
    int64_t * i3) {
    GB_CHECK_ARG_RETURNING(tensor, );
    GB_FAIL_IF_RETURNING(i < 0 || i >= ggml_nelements(tensor), , GGML_STATUS_INVALID_ARGUMENT,
        "%s: index %lld is out of range: tensor '%s' has %lld elements", __func__, (long long) i, tensor->name,
        (long long) ggml_nelements(tensor));
    int64_t at[GGML_MAX_DIMS];
    unravel(tensor, i, at);
    int64_t * const out[GGML_MAX_DIMS] = { i0, i1, i2, i3 };
    for (int d = 0; d < GGML_MAX_DIMS; d++) {
        if (out[d] != NULL) {
            *out[d] = at[d];
        }
    }
}

// --------------------------------------------------------------------------------------------------------- one element

static int32_t get_i32(const struct ggml_tensor * t, const char * p) {
    return p ? to_int(load(t->type, p), INT32_MIN, INT32_MAX) : 0;
}

static float get_f32(const struct ggml_tensor * t, const char * p) { return p ? (float) load(t->type, p) : 0.0f; }

// p is NULL if the element was refused, which is reported already.
static enum ggml_status set(const struct ggml_tensor * t, char * p, double value) {
    if (p == NULL) {
        return ggml_last_status();
    }
    store(t->type, p, value);
    return GGML_STATUS_SUCCESS;
}

int32_t ggml_get_i32_1d(const struct ggml_tensor * tensor, int i) {
    return get_i32(tensor, element_1d(tensor, i, __func__));
}

float ggml_get_f32_1d(const struct ggml_tensor * tensor, int i) {
    return get_f32(tensor, element_1d(tensor, i, __func__));
}

enum ggml_status ggml_set_i32_1d(const struct ggml_tensor * tensor, int i, int32_t value) {
    return set(tensor, element_1d(tensor, i, __func__), value);
}

enum ggml_status ggml_set_f32_1d(const struct ggml_tensor * tensor, int i, float value) {
    return set(tensor, element_1d(tensor, i, __func__), value);
}

int32_t ggml_get_i32_nd(const struct ggml_tensor * tensor, int i0, int i1, int i2, int i3) {
    return get_i32(tensor, element_nd(tensor, i0, i1, i2, i3, __func__));
}

float ggml_get_f32_nd(const struct ggml_tensor * tensor, int i0, int i1, int i2, int i3) {
    return get_f32(tensor, element_nd(tensor, i0, i1, i2, i3, __func__));
}

enum ggml_status ggml_set_i32_nd(const struct ggml_tensor * tensor, int i0, int i1, int i2, int i3, int32_t value) {
    return set(tensor, element_nd(tensor, i0, i1, i2, i3, __func__), value);
}

enum ggml_status ggml_set_f32_nd(const struct ggml_tensor * tensor, int i0, int i1, int i2, int i3, float value) {
    return set(tensor, element_nd(tensor, i0, i1, i2, i3, __func__), value);
}

// -------------------------------------------------------------------------------------------------------- all elements

// Converts the value once and copies it to every element. Returns t; NULL on failure (reported).
static struct ggml_tensor * fill(struct ggml_tensor * t, double value, const char * func) {
    if (!check_elements(t, func)) {
        return NULL;
    }
    char one[8];
    store(t->type, one, value);
    const size_t size = ggml_type_size(t->type);
    for (int64_t r = 0, n = ggml_nrows(t); r < n; r++) {
        char * row = row_address(t, r);
        for (int64_t i = 0; i < t->ne[0]; i++) {
            memcpy(row + (size_t) i * t->nb[0], one, size);
        }
    }
    return t;
}

struct ggml_tensor * ggml_set_i32(struct ggml_tensor * tensor, int32_t value) { return fill(tensor, value, __func__); }

struct ggml_tensor * ggml_set_f32(struct ggml_tensor * tensor, float value) { return fill(tensor, value, __func__); }

// Changes only bytes of this tensor: bytes between the rows of a view belong to other tensors.
struct ggml_tensor * ggml_set_zero(struct ggml_tensor * tensor) {
    if (!check_host(tensor, __func__)) {
        return NULL;
    }
    const size_t size = ggml_type_size(tensor->type);
    const int blck = ggml_blck_size(tensor->type);
    if (ggml_is_contiguous(tensor) || blck == 0) {
        memset(tensor->data, 0, ggml_nbytes(tensor));
        return tensor;
    }
    GB_FAIL_IF_RETURNING(blck > 1 && tensor->nb[0] != size, NULL, GGML_STATUS_UNSUPPORTED,
        "%s: tensor '%s': rows of permuted blocks cannot be set", __func__, tensor->name);
    for (int64_t r = 0, n = ggml_nrows(tensor); r < n; r++) {
        char * row = row_address(tensor, r);
        for (int64_t i = 0; i < tensor->ne[0] / blck; i++) {
            memset(row + (size_t) i * tensor->nb[0], 0, size);
        }
    }
    return tensor;
}

// --------------------------------------------------------------------------------------------------------- raw pointer

void * ggml_get_data(const struct ggml_tensor * tensor) { return tensor ? tensor->data : NULL; }

// The address of the first element, even if the host cannot read it.
float * ggml_get_data_f32(const struct ggml_tensor * tensor) {
    GB_CHECK_ARG_RETURNING(tensor, NULL);
    const char * name = ggml_type_name(tensor->type);
    GB_FAIL_IF_RETURNING(tensor->type != GGML_TYPE_F32, NULL, GGML_STATUS_INVALID_ARGUMENT,
        "%s: tensor '%s': needs type f32, has %s", __func__, tensor->name, name ? name : "none");
    return tensor->data;
}
