// tensor.c - makes tensors and views, and computes their layouts, names and flags.
//
// A tensor is a shape over bytes. This file checks once, for the whole library, that sizes do not
// overflow and that a view lies inside the bytes of its root. Builders make their results with
// gb_tensor_new and gb_tensor_view only.
#include "tensor.h"

#include <stdarg.h>
#include <stdio.h>


// -------------------------------------------------------------------------------------------------------------- making

// Writes "[1, 2, 3]" as a value (GB_QUOTE) of a message; returns buf.
static const char * shape_text(int n_dims, const int64_t * ne, char buf[96]) {
    size_t at = 0;
    for (int d = 0; d < n_dims; d++) {
        at += (size_t) snprintf(buf + at, 96 - at, d == 0 ? GB_QUOTE_BEGIN "[%lld" : ", %lld", (long long) ne[d]);
    }
    snprintf(buf + at, 96 - at, "]" GB_QUOTE_END);
    return buf;
}

// The alignment, in bytes, that elements of the type need to be read in place.
static size_t element_alignment(enum ggml_type type) { return ggml_is_quantized(type) ? 4 : ggml_type_size(type); }

// False and reported for the function `func`, unless the arguments describe a tensor. Callers check
// the sizes.
static bool check_type_and_dims(const char * func, enum ggml_type type, int n_dims, const int64_t * ne) {
    GB_FAIL_IF_RETURNING(!gb_type_is_valid(type), false, GGML_STATUS_INVALID_ARGUMENT,
        "%s: argument 'type': %d is not a valid type", func, (int) type);
    GB_FAIL_IF_RETURNING(n_dims < 1 || n_dims > GGML_MAX_DIMS, false, GGML_STATUS_INVALID_ARGUMENT,
        "%s: argument 'n_dims': needs 1 to %d, has %d", func, GGML_MAX_DIMS, n_dims);
    GB_FAIL_IF_RETURNING(ne == NULL, false, GGML_STATUS_INVALID_ARGUMENT, "%s: argument 'ne' is NULL", func);
    return true;
}

// Sets type, shape and contiguous strides of `t`, and *bytes to its size. False if a number does
// not fit (reported).
static bool set_shape(struct ggml_tensor * t, const char * func, enum ggml_type type, int n_dims, const int64_t * ne,
    size_t * bytes) {
    if (!check_type_and_dims(func, type, n_dims, ne)) {
        return false;
    }
    char text[96];
    t->type = type;
    int64_t n_elements = 1;
    bool fits = true;
    for (int d = 0; d < GGML_MAX_DIMS; d++) {
        t->ne[d] = d < n_dims ? ne[d] : 1;
        GB_FAIL_IF_RETURNING(t->ne[d] < 0, false, GGML_STATUS_INVALID_ARGUMENT,
            "%s: argument 'ne': %s has a negative dimension", func, shape_text(n_dims, ne, text));
        fits = fits && gb_mul_i64(n_elements, t->ne[d], &n_elements);
    }
    const int blck = ggml_blck_size(type);
    GB_FAIL_IF_RETURNING(blck > 1 && t->ne[0] % blck != 0, false, GGML_STATUS_INVALID_ARGUMENT,
        "%s: argument 'ne': %s needs a multiple of %d (the block size of %s) as its first number", func,
        shape_text(n_dims, ne, text), blck, ggml_type_name(type));
    t->nb[0] = ggml_type_size(type);
    size_t extent = t->nb[0];
    for (int d = 0; d < GGML_MAX_DIMS && fits; d++) {
        fits = gb_mul_size(extent, (size_t) (d == 0 && blck > 1 ? t->ne[0] / blck : t->ne[d]), &extent) &&
               extent <= PTRDIFF_MAX;
        if (d + 1 < GGML_MAX_DIMS) {
            t->nb[d + 1] = extent;
        }
    }
    GB_FAIL_IF_RETURNING(!fits, false, GGML_STATUS_INVALID_ARGUMENT, "%s: argument 'ne': the size of %s %s overflows",
        func, ggml_type_name(type), shape_text(n_dims, ne, text));
    *bytes = extent;
    return true;
}

// Makes every tensor that is not a view. `func` is the public function's name. in_pool: the data
// follow the struct even if the context allocates no data.
static struct ggml_tensor * make_tensor(struct ggml_context * ctx, const char * func, enum ggml_type type, int n_dims,
    const int64_t * ne, bool in_pool) {
    if (ctx == NULL) {
        gb_fail_null(func, "ctx");
        return NULL;
    }
    struct ggml_tensor layout;  // the fields that gb_context_new_tensor reads
    size_t bytes;
    layout.view_src = NULL;
    layout.view_offs = 0;
    layout.data = NULL;
    gb_tensor_clear_marks(&layout);
    gb_tensor_set_ndim(&layout, n_dims);
    return set_shape(&layout, func, type, n_dims, ne, &bytes)
               ? gb_context_new_tensor(ctx, &layout, bytes, element_alignment(type), in_pool)
               : NULL;
}

struct ggml_tensor * gb_tensor_new(struct ggml_context * ctx, enum ggml_type type, int n_dims, const int64_t * ne) {
    return make_tensor(ctx, "ggml_new_tensor", type, n_dims, ne, false);
}

struct ggml_tensor * ggml_new_tensor(struct ggml_context * ctx, enum ggml_type type, int n_dims, const int64_t * ne) {
    return make_tensor(ctx, __func__, type, n_dims, ne, false);
}

struct ggml_tensor * ggml_new_tensor_1d(struct ggml_context * ctx, enum ggml_type type, int64_t ne0) {
    return make_tensor(ctx, __func__, type, 1, &ne0, false);
}

struct ggml_tensor * ggml_new_tensor_2d(struct ggml_context * ctx, enum ggml_type type, int64_t ne0, int64_t ne1) {
    const int64_t ne[] = { ne0, ne1 };
    return make_tensor(ctx, __func__, type, 2, ne, false);
}

struct ggml_tensor * ggml_new_tensor_3d(struct ggml_context * ctx, enum ggml_type type, int64_t ne0, int64_t ne1,
    int64_t ne2) {
    const int64_t ne[] = { ne0, ne1, ne2 };
    return make_tensor(ctx, __func__, type, 3, ne, false);
}

struct ggml_tensor * ggml_new_tensor_4d(struct ggml_context * ctx, enum ggml_type type, int64_t ne0, int64_t ne1,
    int64_t ne2, int64_t ne3) {
    const int64_t ne[] = { ne0, ne1, ne2, ne3 };
    return make_tensor(ctx, __func__, type, 4, ne, false);
}

// The data are in the pool even if the context allocates no data, because the value is written now.
struct ggml_tensor * ggml_new_i32(struct ggml_context * ctx, int32_t value) {
    const int64_t one = 1;
    struct ggml_tensor * t = make_tensor(ctx, __func__, GGML_TYPE_I32, 1, &one, true);
    if (t != NULL) {
        *(int32_t *) t->data = value;
    }
    return t;
}

struct ggml_tensor * ggml_new_f32(struct ggml_context * ctx, float value) {
    const int64_t one = 1;
    struct ggml_tensor * t = make_tensor(ctx, __func__, GGML_TYPE_F32, 1, &one, true);
    if (t != NULL) {
        *(float *) t->data = value;
    }
    return t;
}

// A copy has the number of dimensions of its original. NULL passes through.
static struct ggml_tensor * with_ndim(struct ggml_tensor * t, int ndim) {
    if (t != NULL) {
        gb_tensor_set_ndim(t, ndim);
    }
    return t;
}

// The same type, shape and number of dimensions, contiguous. Copies no data.
struct ggml_tensor * ggml_dup_tensor(struct ggml_context * ctx, const struct ggml_tensor * src) {
    if (src == NULL) {
        gb_fail_null(__func__, "src");
        return NULL;
    }
    return with_ndim(make_tensor(ctx, __func__, src->type, GGML_MAX_DIMS, src->ne, false), gb_tensor_ndim(src));
}

struct ggml_tensor * gb_tensor_inherit_grad(struct ggml_context * ctx, struct ggml_tensor * result) {
    bool wanted = false;
    for (int i = 0; result != NULL && i < GGML_MAX_SRC; i++) {
        wanted = wanted || (result->src[i] != NULL && result->src[i]->grad != NULL);
    }
    if (!wanted) {
        return result;
    }
    result->grad = ggml_dup_tensor(ctx, result);
    return result->grad ? result : NULL;
}

// --------------------------------------------------------------------------------------------------------------- views

// The dimension whose stride is one block. In a permuted tensor of a blocked type that is not the
// first dimension.
static int blocked_dim(const struct ggml_tensor * t) {
    const size_t size = ggml_type_size(t->type);
    for (int d = 0; d < GGML_MAX_DIMS; d++) {
        if (t->nb[d] == size && t->ne[d] % ggml_blck_size(t->type) == 0) {
            return d;
        }
    }
    return 0;
}

// Adds the steps along each dimension and the last element. Gaps after the last element do not
// belong to the tensor.
bool gb_bytes_needed(const struct ggml_tensor * t, size_t * bytes) {
    const int64_t blck = GB_MAX(ggml_blck_size(t->type), 1); // a program's struct may have any type
    const int blocked = blck > 1 ? blocked_dim(t) : -1;
    *bytes = ggml_type_size(t->type);
    for (int d = 0; d < GGML_MAX_DIMS; d++) {
        const int64_t n = d == blocked ? t->ne[d] / blck + (t->ne[d] % blck != 0) : t->ne[d]; // steps along d
        if (n == 0) {
            *bytes = 0;
            return true;
        }
        size_t way;
        if (!gb_mul_size((size_t) n - 1, t->nb[d], &way) || !gb_add_size(*bytes, way, bytes)) {
            return false;
        }
    }
    return true;
}

size_t gb_type_alignment(enum ggml_type type) {
    const size_t size = ggml_type_size(type), natural = size & (~size + 1);
    return GB_MIN(natural, (size_t) 8);
}

bool gb_elements_are_whole(const struct ggml_tensor * t) {
    const size_t size = ggml_type_size(t->type);
    size_t rest = t->view_src != NULL ? t->view_offs % gb_type_alignment(t->type) : 0;
    if (ggml_blck_size(t->type) > 1) {
        rest |= (size_t) (t->ne[blocked_dim(t)] % ggml_blck_size(t->type));
    }
    for (int d = 0; d < GGML_MAX_DIMS; d++) {
        rest |= t->ne[d] > 1 ? t->nb[d] % size : 0;
    }
    return rest == 0 || ggml_nelements(t) == 0;
}

// True if each dimension steps over all bytes of lower dimensions, as in nearly all tensors.
static bool strides_ascend(const struct ggml_tensor * t) {
    size_t extent = ggml_type_size(t->type);
    if (t->nb[0] != extent) {
        return false;
    }
    extent *= (size_t) (t->ne[0] / GB_MAX(ggml_blck_size(t->type), 1));
    for (int d = 1; d < GGML_MAX_DIMS; d++) {
        if (t->ne[d] > 1) {
            if (t->nb[d] < extent) {
                return false;
            }
            extent = t->nb[d] * (size_t) t->ne[d];
        }
    }
    return true;
}

// The dimension with the smallest stride that is not taken. -1: all are taken.
static int next_dim(const struct ggml_tensor * t, const bool taken[GGML_MAX_DIMS]) {
    int next = -1;
    for (int d = 0; d < GGML_MAX_DIMS; d++) {
        next = !taken[d] && (next < 0 || t->nb[d] < t->nb[next]) ? d : next;
    }
    return next;
}

// From the smallest stride to the largest, each dimension must step over all bytes of the earlier
// dimensions.
bool gb_elements_are_apart(const struct ggml_tensor * t) {
    if (strides_ascend(t) || ggml_nelements(t) == 0) {
        return true;
    }
    const int64_t block = GB_MAX(ggml_blck_size(t->type), 1); // a program's struct may have any type
    const int blocked = block > 1 ? blocked_dim(t) : -1;
    size_t extent = ggml_type_size(t->type);
    bool taken[GGML_MAX_DIMS] = { false };
    for (int d = next_dim(t, taken); d >= 0; d = next_dim(t, taken)) {
        const int64_t steps = d == blocked ? t->ne[d] / block : t->ne[d];
        if (steps > 1 && t->nb[d] < extent) {
            return false;
        }
        extent += steps > 1 ? (size_t) (steps - 1) * t->nb[d] : 0;
        taken[d] = true;
    }
    return true;
}

// True if a view at byte `offs` of src's root stays inside the root's bytes. False is reported.
static bool check_extent(const struct ggml_tensor * view, const struct ggml_tensor * src, size_t offs,
    const char * func) {
    const struct ggml_tensor * root = gb_root(src);
    const size_t have = ggml_nbytes(root);
    size_t need = 0, end = 0;
    const bool fits = gb_bytes_needed(view, &need) && gb_add_size(offs, need, &end);
    if (!fits || end > have) {
        char of[GB_DESCRIBE_SIZE], shape[96];
        gb_fail(GGML_STATUS_INVALID_ARGUMENT,
            "%s: view %s with strides [%zu, %zu, %zu, %zu]: needs bytes %zu to %zu%s of %s, which has %zu", func,
            shape_text(GGML_MAX_DIMS, view->ne, shape), view->nb[0], view->nb[1], view->nb[2], view->nb[3], offs, end,
            fits ? "" : " (overflow)", gb_describe(root, of), have);
        return false;
    }
    return true;
}

// Like set_shape, but with the caller's strides if they are given. check_extent checks these.
static bool set_layout(struct ggml_tensor * t, const char * func, enum ggml_type type, int n_dims, const int64_t * ne,
    const size_t * nb) {
    size_t bytes;
    if (nb == NULL) {
        return set_shape(t, func, type, n_dims, ne, &bytes);
    }
    if (!check_type_and_dims(func, type, n_dims, ne)) {
        return false;
    }
    t->type = type;
    int64_t n = 1;
    for (int d = 0; d < GGML_MAX_DIMS; d++) {
        char text[96];
        t->ne[d] = d < n_dims ? ne[d] : 1;
        t->nb[d] = nb[d];
        GB_FAIL_IF_RETURNING(t->ne[d] < 0 || !gb_mul_i64(n, t->ne[d], &n), false, GGML_STATUS_INVALID_ARGUMENT,
            "%s: argument 'ne': %s is negative or overflows", func, shape_text(n_dims, ne, text));
    }
    return true;
}

struct ggml_tensor * gb_tensor_view(struct ggml_context * ctx, struct ggml_tensor * src, int n_dims, const int64_t * ne,
    const size_t * nb, size_t offs, const char * func) {
    if (src == NULL || ctx == NULL) {
        gb_fail_null(func, src == NULL ? "src" : "ctx");
        return NULL;
    }
    struct ggml_tensor layout; // the fields that gb_context_new_tensor reads
    size_t root_offs;
    if (!set_layout(&layout, func, src->type, n_dims, ne, nb)) {
        return NULL;
    }
    GB_FAIL_IF_RETURNING(!gb_add_size(src->view_src ? src->view_offs : 0, offs, &root_offs), NULL,
        GGML_STATUS_INVALID_ARGUMENT, "%s: argument 'offset': %zu overflows", func, offs);
    if (!check_extent(&layout, src, root_offs, func)) {
        return NULL;
    }
    layout.view_src = gb_root(src);
    layout.view_offs = root_offs;
    GB_FAIL_IF_RETURNING(!gb_elements_are_whole(&layout), NULL, GGML_STATUS_INVALID_ARGUMENT,
        "%s: strides [%zu, %zu, %zu, %zu] and offset %zu must be multiples of the %zu bytes of a%s %s", func,
        layout.nb[0], layout.nb[1], layout.nb[2], layout.nb[3], root_offs, ggml_type_size(layout.type),
        ggml_blck_size(layout.type) > 1 ? " block of" : "n element of", ggml_type_name(layout.type));
    gb_tensor_clear_marks(&layout);
    gb_tensor_set_ndim(&layout, n_dims);
    // If another thread is placing the root, the view is bound later.
    char * data = GB_READ_RELAXED(layout.view_src->data);
    layout.data = data ? data + root_offs : NULL;
    return gb_context_new_tensor(ctx, &layout, 0, 1, true);
}

// The view has the strides and the name of src.
struct ggml_tensor * ggml_view_tensor(struct ggml_context * ctx, struct ggml_tensor * src) {
    if (src == NULL) {
        gb_fail_null(__func__, "src");
        return NULL;
    }
    struct ggml_tensor * t = gb_tensor_view(ctx, src, GGML_MAX_DIMS, src->ne, src->nb, 0, __func__);
    return gb_tensor_name_after(with_ndim(t, gb_tensor_ndim(src)), src, "view", NULL);
}

// ------------------------------------------------------------------------------------------------------------- queries

// Uses unsigned arithmetic, because a program's struct may hold any sizes and signed overflow is
// undefined.
int64_t ggml_nelements(const struct ggml_tensor * t) {
    return t ? (int64_t) ((uint64_t) t->ne[0] * (uint64_t) t->ne[1] * (uint64_t) t->ne[2] * (uint64_t) t->ne[3]) : 0;
}

int64_t ggml_nrows(const struct ggml_tensor * t) {
    return t ? (int64_t) ((uint64_t) t->ne[1] * (uint64_t) t->ne[2] * (uint64_t) t->ne[3]) : 0;
}

size_t ggml_nbytes(const struct ggml_tensor * t) {
    size_t bytes; // checked when the tensor was made, so writing as many bytes stays inside
    return t != NULL && gb_type_is_valid(t->type) && gb_bytes_needed(t, &bytes) ? bytes : 0;
}

size_t ggml_nbytes_pad(const struct ggml_tensor * t) { return GGML_PAD(ggml_nbytes(t), (size_t) GGML_MEM_ALIGN); }

size_t ggml_element_size(const struct ggml_tensor * t) { return t ? ggml_type_size(t->type) : 0; }

size_t ggml_tensor_overhead(void) { return sizeof(struct ggml_object) + sizeof(struct ggml_tensor); }

// Does not count dimensions of size 1 at the end. gb_tensor_ndim is the number of dimensions with
// which the tensor was made.
int ggml_n_dims(const struct ggml_tensor * t) {
    for (int d = GGML_MAX_DIMS - 1; t != NULL && d > 0; d--) {
        if (t->ne[d] > 1) {
            return d + 1;
        }
    }
    return t ? 1 : 0;
}

// True for one element. Each function below allows sizes other than 1 in one more dimension.
bool ggml_is_scalar(const struct ggml_tensor * t) {
    return t != NULL && t->ne[0] == 1 && t->ne[1] == 1 && t->ne[2] == 1 && t->ne[3] == 1;
}

bool ggml_is_vector(const struct ggml_tensor * t) {
    return t != NULL && t->ne[1] == 1 && t->ne[2] == 1 && t->ne[3] == 1;
}

bool ggml_is_matrix(const struct ggml_tensor * t) { return t != NULL && t->ne[2] == 1 && t->ne[3] == 1; }

bool ggml_is_3d(const struct ggml_tensor * t) { return t != NULL && t->ne[3] == 1; }

// ------------------------------------------------------------------------------------------------------------- layouts

bool gb_rows_contiguous(const struct ggml_tensor * t) {
    return t != NULL && gb_type_is_valid(t->type) && t->nb[0] == ggml_type_size(t->type);
}

// Only rows may have gaps between them: nb0 = type size, nb2 = nb1 ne1, nb3 = nb2 ne2.
static bool is_row_padded(const struct ggml_tensor * t) {
    return gb_rows_contiguous(t) && t->nb[2] == t->nb[1] * (size_t) t->ne[1] &&
           t->nb[3] == t->nb[2] * (size_t) t->ne[2];
}

// The strides of dimensions of size 1 count, too: they must be those of a fresh tensor.
bool ggml_is_contiguous(const struct ggml_tensor * t) {
    return is_row_padded(t) && t->nb[1] == t->nb[0] * (size_t) (t->ne[0] / ggml_blck_size(t->type));
}

bool ggml_is_transposed(const struct ggml_tensor * t) { return t != NULL && t->nb[0] > t->nb[1]; }

// True if a stride is larger than the next one.
bool ggml_is_permuted(const struct ggml_tensor * t) {
    return t != NULL && (t->nb[0] > t->nb[1] || t->nb[1] > t->nb[2] || t->nb[2] > t->nb[3]);
}

bool ggml_are_same_shape(const struct ggml_tensor * a, const struct ggml_tensor * b) {
    return a != NULL && b != NULL && memcmp(a->ne, b->ne, sizeof(a->ne)) == 0;
}

bool gb_are_same_layout(const struct ggml_tensor * a, const struct ggml_tensor * b) {
    return ggml_are_same_shape(a, b) && a->type == b->type && memcmp(a->nb, b->nb, sizeof(a->nb)) == 0;
}

// ----------------------------------------------------------------------------------------------------- names and flags

const char * ggml_get_name(const struct ggml_tensor * t) { return t ? t->name : ""; }

#if defined(__GNUC__)
typedef uint64_t __attribute__((may_alias)) name_word;
#else
typedef uint64_t name_word;
#endif
enum { NAME_WORDS = GGML_MAX_NAME / sizeof(name_word) };
_Static_assert(offsetof(struct ggml_tensor, name) % sizeof(name_word) == 0 && GGML_MAX_NAME % sizeof(name_word) == 0,
    "names are words");

// Reads and writes names in words. So a thread that reads while another one writes never runs past
// the end.
const char * gb_tensor_read_name(const struct ggml_tensor * t, char text[GGML_MAX_NAME]) {
    const name_word * words = (const name_word *) (const void *) t->name;
    for (int i = 0; i < NAME_WORDS; i++) {
        const name_word word = GB_READ_RELAXED(words[i]);
        memcpy(text + (size_t) i * sizeof(word), &word, sizeof(word));
    }
    text[GGML_MAX_NAME - 1] = '\0';
    return text;
}

// All bytes of text are copied.
static void write_name(struct ggml_tensor * t, const char text[GGML_MAX_NAME]) {
    name_word * words = (name_word *) (void *) t->name;
    for (int i = 0; i < NAME_WORDS; i++) {
        name_word word;
        memcpy(&word, text + (size_t) i * sizeof(word), sizeof(word));
        GB_WRITE_RELAXED(words[i], word);
    }
}

void gb_cut_at_character(char * text) {
    const size_t n = strlen(text);
    size_t tail = 0; // bytes that continue a character
    while (tail < n && tail < 4 && ((unsigned char) text[n - 1 - tail] & 0xc0) == 0x80) {
        tail++;
    }
    const unsigned char lead = tail < n ? (unsigned char) text[n - 1 - tail] : 0;
    const size_t size = lead >= 0xf0 ? 4 : lead >= 0xe0 ? 3 : lead >= 0xc0 ? 2 : 0;
    if (tail + 1 < size) {
        memset(text + n - 1 - tail, 0, tail + 1);
    }
}

// Appends as much of the text to a name of *n bytes as fits, without splitting a character.
static void append(char name[GGML_MAX_NAME], size_t * n, const char * text) {
    const size_t size = strlen(text), room = GGML_MAX_NAME - 1 - *n, take = GB_MIN(size, room);
    memcpy(name + *n, text, take);
    *n += take;
    if (take < size) {
        gb_cut_at_character(name);
    }
}

// Composes the name in a copy and writes it in one step, because t may be src.
struct ggml_tensor * gb_tensor_name_after(struct ggml_tensor * t, const struct ggml_tensor * src, const char * suffix,
    const struct ggml_tensor * other) {
    if (t == NULL) {
        return NULL;
    }
    char name[GGML_MAX_NAME] = { 0 }, old[GGML_MAX_NAME];
    size_t n = 0;
    append(name, &n, gb_tensor_read_name(src, old));
    if (n > 0) {
        append(name, &n, " (");
        append(name, &n, suffix);
        if (other != NULL && *gb_tensor_read_name(other, old) != '\0') {
            append(name, &n, " of ");
            append(name, &n, old);
        }
        append(name, &n, ")");
    }
    write_name(t, name);
    return t;
}

struct ggml_tensor * ggml_set_name(struct ggml_tensor * t, const char * name) {
    if (t == NULL) {
        gb_fail_null(__func__, "tensor");
        return NULL;
    }
    char text[GGML_MAX_NAME] = { 0 }; // a copy, because the new name may be a part of the old one
    size_t n = 0;
    append(text, &n, name ? name : "");
    write_name(t, text);
    return t;
}

struct ggml_tensor * ggml_format_name(struct ggml_tensor * t, const char * fmt, ...) {
    if (t == NULL || fmt == NULL) {
        gb_fail_null(__func__, t == NULL ? "tensor" : "fmt");
        return NULL;
    }
    char text[sizeof(t->name)] = { 0 }; // a copy, because the old name may be an argument
    va_list args;
    va_start(args, fmt);
    const int n = vsnprintf(text, sizeof(text), fmt, args);
    va_end(args);
    if (n < 0) {
        text[0] = '\0';
    } else if ((size_t) n >= sizeof(text)) {
        gb_cut_at_character(text);
    }
    write_name(t, text);
    return t;
}

// Sets flags bit by bit, because other threads may set other flags.
static enum ggml_status set_flag(struct ggml_tensor * t, enum gb_tensor_flag flag, const char * func) {
    GB_FAIL_IF(t == NULL, GGML_STATUS_INVALID_ARGUMENT, "%s: argument 'tensor' is NULL", func);
    gb_tensor_set_flag(t, flag);
    return GGML_STATUS_SUCCESS;
}

enum ggml_status ggml_set_input(struct ggml_tensor * t) { return set_flag(t, GB_TENSOR_INPUT, __func__); }

enum ggml_status ggml_set_output(struct ggml_tensor * t) { return set_flag(t, GB_TENSOR_OUTPUT, __func__); }

bool ggml_is_input(const struct ggml_tensor * t) { return t != NULL && gb_tensor_has_flag(t, GB_TENSOR_INPUT); }

bool ggml_is_output(const struct ggml_tensor * t) { return t != NULL && gb_tensor_has_flag(t, GB_TENSOR_OUTPUT); }
