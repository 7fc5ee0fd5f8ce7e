// copy.c - DUP, CPY, CONT: element k of the source, in logical order, becomes element k of the result.
//
// Source and result are described with one shape. Dimensions that are dense in both are merged, and
// runs along dim 0 are copied. If the shapes differ and one tensor is contiguous, it gets the other
// tensor's shape. Otherwise (rare), and for quantized types, two iterators walk over both tensors
// in step, in whole blocks.
//
// If the source is dense along another dimension than the result, tiles are transposed in registers
// (kernels: transpose). Otherwise a block of columns is copied for many rows before the next block,
// so that the cache lines of the source are used for several rows.
#include "cpu/ops/elements.h"

// A strided block touches one cache line per column, and all these lines must stay in L1.
enum { BLOCK_ROWS = 64, STRIDED_COLUMNS = 16 };
#define DIRECT_BYTES ((size_t) 1 << 16)         // a unit of plain memory copy
#define PIECE_BYTES ((size_t) 1 << 20)         // a thread may stop after each piece

struct layout { // of source and result
    int64_t ne[4];
    size_t sb[4], db[4]; // strides of source and result
};

// ---------------------------------------------------------------------------------------------------------------- runs

static int32_t to_i32(float v) { // saturating, NaN becomes 0: every float has a defined result
    if (v != v) {
        return 0;
    }
    return v >= 2147483648.0f ? INT32_MAX : v <= -2147483648.0f ? INT32_MIN : (int32_t) v;
}

// i32 to floats through f32: numbers above 2^24 are rounded. n <= GB_RUN.
static void from_ints(const struct gb_kernels * k, enum ggml_type type, int64_t n, char * d, size_t ds, const char * s,
    size_t ss) {
    float buf[GB_RUN];
    for (int64_t i = 0; i < n; i++) {
        buf[i] = (float) gb_get_i32(s + (size_t) i * ss);
    }
    gb_store(k, type, n, d, ds, buf);
}

// Floats to i32, towards zero. n <= GB_RUN.
static void to_ints(const struct gb_kernels * k, enum ggml_type type, int64_t n, char * d, size_t ds, const char * s,
    size_t ss) {
    float buf[GB_RUN];
    gb_load(k, type, n, buf, s, ss);
    for (int64_t i = 0; i < n; i++) {
        const int32_t v = to_i32(buf[i]);
        memcpy(d + (size_t) i * ds, &v, sizeof(v));
    }
}

static bool is_dense_f32(enum ggml_type type, const char * p, size_t stride) {
    return type == GGML_TYPE_F32 && stride == sizeof(float) && (uintptr_t) p % sizeof(float) == 0;
}

// Converts through a buffer. n <= GB_RUN.
static void between_floats(const struct gb_kernels * k, enum ggml_type to, enum ggml_type from, int64_t n, char * d,
    size_t ds, const char * s, size_t ss) {
    float buf[GB_RUN];
    gb_load(k, from, n, buf, s, ss);
    gb_store(k, to, n, d, ds, buf);
}

// If the source or the result is dense f32, converts without a buffer. Otherwise converts in
// pieces.
static void convert_run(const struct gb_kernels * k, enum ggml_type to, enum ggml_type from, int64_t n, char * d,
    size_t ds, const char * s, size_t ss) {
    if (is_dense_f32(from, s, ss) && to != GGML_TYPE_I32) {
        gb_store(k, to, n, d, ds, (const float *) (const void *) s);
        return;
    }
    if (is_dense_f32(to, d, ds) && from != GGML_TYPE_I32) {
        gb_load(k, from, n, (float *) (void *) d, s, ss);
        return;
    }
    for (int64_t left = n; left > 0; left -= GB_RUN) {
        const int64_t m = GB_MIN(left, (int64_t) GB_RUN);
        if (from == GGML_TYPE_I32) {
            from_ints(k, to, m, d, ds, s, ss);
        } else if (to == GGML_TYPE_I32) {
            to_ints(k, from, m, d, ds, s, ss);
        } else {
            between_floats(k, to, from, m, d, ds, s, ss);
        }
        d += (size_t) (m / ggml_blck_size(to)) * ds;
        s += (size_t) (m / ggml_blck_size(from)) * ss;
    }
}

void gb_copy_run(const struct gb_kernels * k, enum ggml_type to, enum ggml_type from, int64_t n, char * d, size_t ds,
    const char * s, size_t ss) {
    if (to == from) {
        gb_move(ggml_type_size(to), n / ggml_blck_size(to), d, ds, s, ss);
    } else {
        convert_run(k, to, from, n, d, ds, s, ss);
    }
}

// ------------------------------------------------------------------------------------------------------------- layouts

static void view_dense(int64_t ne[4], size_t nb[4], size_t size) { // strides of a contiguous tensor of that shape
    nb[0] = size;
    for (int i = 1; i < 4; i++) {
        nb[i] = nb[i - 1] * (size_t) ne[i - 1];
    }
}

// Merges adjacent dims that are dense in source and result. Removes dims of length 1.
static void merge(struct layout * l) {
    int n = 0;
    for (int i = 1; i < 4; i++) {
        if (l->ne[i] == 1) {
            continue;
        }
        const size_t len = (size_t) l->ne[n];
        const bool fit = l->ne[n] == 1 || (l->sb[i] == l->sb[n] * len && l->db[i] == l->db[n] * len);
        if (fit && l->ne[n] == 1) {
            l->sb[n] = l->sb[i];
            l->db[n] = l->db[i];
        }
        n = fit ? n : n + 1;
        l->ne[n] = fit ? l->ne[n] * l->ne[i] : l->ne[i];
        if (!fit) {
            l->sb[n] = l->sb[i];
            l->db[n] = l->db[i];
        }
    }
    for (int i = n + 1; i < 4; i++) {
        l->ne[i] = 1;
        l->sb[i] = l->db[i] = 0;
    }
}

// False: no single shape describes source and result.
static bool layout_of(struct layout * l, const struct ggml_tensor * dst, const struct ggml_tensor * src) {
    const bool same = gb_same_ne(dst, src);
    if (!same && !ggml_is_contiguous(dst) && !ggml_is_contiguous(src)) {
        return false;
    }
    const struct ggml_tensor * shape = same || ggml_is_contiguous(dst) ? src : dst;
    memcpy(l->ne, shape->ne, sizeof(l->ne));
    memcpy(l->sb, src->nb, sizeof(l->sb));
    memcpy(l->db, dst->nb, sizeof(l->db));
    if (!same && shape == src) {
        view_dense(l->ne, l->db, ggml_type_size(dst->type));
    } else if (!same) {
        view_dense(l->ne, l->sb, ggml_type_size(src->type));
    }
    merge(l);
    return true;
}

// -------------------------------------------------------------------------------------------------------------- copies

// Threads share pieces of DIRECT_BYTES. If source and result overlap, each thread moves one piece.
static void copy_memory(const struct gb_cpu_call * call, char * d, const char * s, size_t size) {
    int64_t first, last;
    gb_cpu_share(call, (int64_t) ((size + DIRECT_BYTES - 1) / DIRECT_BYTES), &first, &last);
    const bool apart = (uintptr_t) d + size <= (uintptr_t) s || (uintptr_t) s + size <= (uintptr_t) d;
    const size_t end = GB_MIN((size_t) last * DIRECT_BYTES, size);
    for (size_t at = (size_t) first * DIRECT_BYTES, piece; at < end; at += piece) {
        piece = apart ? GB_MIN(end - at, (size_t) PIECE_BYTES) : end - at; // if they overlap, one piece
        memmove(d + at, s + at, piece);
        if (gb_cpu_stopped(call, (int64_t) (piece / 8))) {
            return;
        }
    }
}

// For elements of 2 or 4 bytes that are dense along dim 0 of the result and along another dim of
// the source. Returns that dim, or 0 if no dim fits.
static int transposed_with(const struct layout * l, size_t size) {
    if (l->db[0] != size || (size != 2 && size != 4)) {
        return 0;
    }
    for (int i = 1; i < 4; i++) {
        if (l->sb[i] == size && l->ne[i] > 1) {
            return i;
        }
    }
    return 0;
}

// The transposing kernels read and write whole elements, so addresses and strides must be multiples
// of the size.
static bool is_aligned(const struct layout * l, const void * d, const void * s, size_t size) {
    size_t all = (size_t) ((uintptr_t) d | (uintptr_t) s);
    for (int i = 0; i < 4; i++) {
        all |= l->sb[i] | l->db[i];
    }
    return all % size == 0;
}

// Tiles of TILE_ROWS elements along dim 0 (far apart in the source) by TILE_COLUMNS along dim `with`.
enum { TILE_ROWS = 32, TILE_COLUMNS = 256 };

// Threads share the tiles of all planes.
static void copy_transposing(const struct gb_cpu_call * call, struct ggml_tensor * dst, const struct ggml_tensor * src,
    const struct layout * l, int with) {
    const size_t size = ggml_type_size(dst->type);
    const int a = with == 1 ? 2 : 1, b = with == 3 ? 2 : 3; // the other two dims
    const int64_t n0 = gb_div_up(l->ne[0], TILE_ROWS), n1 = gb_div_up(l->ne[with], TILE_COLUMNS);
    int64_t first, last;
    gb_cpu_share(call, n0 * n1 * l->ne[a] * l->ne[b], &first, &last);
    for (int64_t u = first; u < last; u++) {
        const int64_t plane = u / (n0 * n1), tile = u - plane * n0 * n1;
        const int64_t ib = plane / l->ne[a], ia = plane - ib * l->ne[a];
        const int64_t r = tile / n1 * TILE_ROWS, c = tile % n1 * TILE_COLUMNS;
        const int64_t rows = GB_MIN(l->ne[0] - r, (int64_t) TILE_ROWS),
                      columns = GB_MIN(l->ne[with] - c, (int64_t) TILE_COLUMNS);
        void * d = (char *) dst->data + (size_t) r * l->db[0] + (size_t) c * l->db[with] + (size_t) ia * l->db[a] +
                   (size_t) ib * l->db[b];
        const void * s = (const char *) src->data + (size_t) r * l->sb[0] + (size_t) c * l->sb[with] +
                         (size_t) ia * l->sb[a] + (size_t) ib * l->sb[b];
        if (size == sizeof(uint32_t)) {
            call->k->transpose_32(rows, columns, d, l->db[with], s, l->sb[0]);
        } else {
            call->k->transpose_16(rows, columns, d, l->db[with], s, l->sb[0]);
        }
        if (gb_cpu_stopped(call, rows * columns)) {
            return;
        }
    }
}

// The columns of a block. Blocks of a single dense row are widened, because finding the place of a
// block takes time. Each thread still gets at least eight blocks. Blocks of several rows are not
// faster with more columns.
static int64_t block_width(const struct gb_cpu_call * call, bool dense, const struct layout * l) {
    const int64_t others = l->ne[2] * l->ne[3];
    int64_t width = dense ? GB_RUN : STRIDED_COLUMNS;
    while (dense && l->ne[1] == 1 && width < 8 * GB_RUN &&
           gb_div_up(l->ne[0], 2 * width) * others >= (int64_t) 8 * call->nth) {
        width *= 2;
    }
    return width;
}

// Threads share blocks of BLOCK_ROWS rows by `width` columns.
static void copy_blocks(const struct gb_cpu_call * call, struct ggml_tensor * dst, const struct ggml_tensor * src,
    const struct layout * l) {
    const bool dense = l->sb[0] == ggml_type_size(src->type) && l->db[0] == ggml_type_size(dst->type);
    const int64_t width = block_width(call, dense, l);
    const int64_t cols = gb_div_up(l->ne[0], width);
    const int64_t rows = gb_div_up(l->ne[1], BLOCK_ROWS);
    const int64_t plane = cols * rows;
    int64_t first, last;
    gb_cpu_share(call, plane * l->ne[2] * l->ne[3], &first, &last);
    for (int64_t u = first; u < last; u++) {
        const int64_t p = u / plane, in_plane = u - p * plane;
        const int64_t i3 = p / l->ne[2], i2 = p - i3 * l->ne[2];
        const int64_t row0 = in_plane / cols * BLOCK_ROWS;
        const int64_t i0 = in_plane % cols * width;
        const int64_t n = GB_MIN(l->ne[0] - i0, width);
        char * d = (char *) dst->data + (size_t) i0 * l->db[0] + (size_t) i2 * l->db[2] + (size_t) i3 * l->db[3];
        const char * s =
            (const char *) src->data + (size_t) i0 * l->sb[0] + (size_t) i2 * l->sb[2] + (size_t) i3 * l->sb[3];
        for (int64_t i1 = row0; i1 < GB_MIN(row0 + BLOCK_ROWS, l->ne[1]); i1++) {
            gb_copy_run(call->k, dst->type, src->type, n, d + (size_t) i1 * l->db[1], l->db[0],
                s + (size_t) i1 * l->sb[1], l->sb[0]);
        }
        if (gb_cpu_stopped(call, 2 * n * BLOCK_ROWS)) {
            return;
        }
    }
}

// A position in a tensor's logical order: element i0 of the row with flat index `row`.
struct walker {
    const struct ggml_tensor * t;
    int64_t i0, row;
};

// The address of the walker's element.
static char * walker_at(const struct walker * w) {
    return gb_row_of(w->t, gb_row_at(w->t, w->row)) + gb_offset(w->t, w->i0);
}

static void walker_advance(struct walker * w, int64_t n) { // never past the end of the row
    w->i0 += n;
    if (w->i0 == w->t->ne[0]) {
        w->i0 = 0;
        w->row++;
    }
}

// Threads share the elements in logical order. Each thread starts both walkers at its first
// element.
static void copy_walking(const struct gb_cpu_call * call, struct ggml_tensor * dst, const struct ggml_tensor * src) {
    const int64_t block = GB_MAX(ggml_blck_size(dst->type), ggml_blck_size(src->type)); // rows and runs are multiples
    int64_t first, last;
    gb_cpu_share(call, gb_count(dst) / block, &first, &last);
    first *= block;
    last *= block;
    struct walker d = { dst, first % dst->ne[0], first / dst->ne[0] };
    struct walker s = { src, first % src->ne[0], first / src->ne[0] };
    for (int64_t at = first; at < last;) {
        const int64_t rest = GB_MIN(dst->ne[0] - d.i0, src->ne[0] - s.i0);
        const int64_t n = GB_MIN(GB_MIN(rest, last - at), (int64_t) GB_RUN);
        gb_copy_run(call->k, dst->type, src->type, n, walker_at(&d), dst->nb[0], walker_at(&s), src->nb[0]);
        walker_advance(&d, n);
        walker_advance(&s, n);
        at += n;
        if (gb_cpu_stopped(call, 20 + gb_store_work(dst->type, n))) {
            return;
        }
    }
}

// -------------------------------------------------------------------------------------------------------------- the op

// True for plain types that gb_copy_run can convert into each other.
static bool can_convert(enum ggml_type from, enum ggml_type to) {
    return (gb_is_float(from) || from == GGML_TYPE_I32) && (gb_is_float(to) || to == GGML_TYPE_I32);
}

// For copies with a quantized source or result.
static const char * quantized_unsupported(const struct ggml_tensor * dst, const struct ggml_tensor * src) {
    const int64_t block = GB_MAX(ggml_blck_size(dst->type), ggml_blck_size(src->type));
    if (src->ne[0] % block != 0 || dst->ne[0] % block != 0) {
        return "rows of source and result must be whole blocks";
    }
    if (src->type == dst->type) {
        return gb_rows_are_blocks(src) && gb_rows_are_blocks(dst) ? NULL : "quantized blocks must be dense along rows";
    }
    if (ggml_is_quantized(src->type)) {
        if (!gb_is_float(dst->type)) {
            return "quantized data can be converted to f32, f16 and bf16 only";
        }
        return gb_can_load(src) ? NULL : "the source cannot be dequantized: its format, or blocks that are not dense";
    }
    if (!gb_is_float(src->type)) {
        return "only f32, f16 and bf16 can be quantized";
    }
    return gb_can_store(dst) ? NULL : "the result cannot be quantized: its format, or blocks that are not dense";
}

// Plain types are copied or converted. Quantized types have separate rules.
static const char * copy_unsupported(const struct ggml_tensor * node) {
    const struct ggml_tensor * src = node->src[0];
    if (ggml_is_quantized(src->type) || ggml_is_quantized(node->type)) {
        return quantized_unsupported(node, src);
    }
    return src->type == node->type || can_convert(src->type, node->type) ? NULL : "no conversion between these types";
}

// Uses the first copy that fits, from the fastest to the most general: memory, transposed tiles,
// blocks, walkers.
static void copy_run_node(const struct gb_cpu_call * call, struct ggml_tensor * dst) {
    const struct ggml_tensor * src = dst->src[0];
    struct layout l;
    if (gb_is_empty(dst) || (dst->data == src->data && gb_are_same_layout(dst, src))) {
        return; // nothing to do, or in place
    }
    if (dst->type == src->type && ggml_is_contiguous(dst) && ggml_is_contiguous(src)) {
        copy_memory(call, dst->data, src->data, ggml_nbytes(dst));
    } else if (!ggml_is_quantized(dst->type) && !ggml_is_quantized(src->type) && layout_of(&l, dst, src)) {
        const size_t size = ggml_type_size(dst->type);
        const int with = dst->type == src->type ? transposed_with(&l, size) : 0;
        if (with > 0 && is_aligned(&l, dst->data, src->data, size)) {
            copy_transposing(call, dst, src, &l, with);
        } else {
            copy_blocks(call, dst, src, &l);
        }
    } else {
        copy_walking(call, dst, src);
    }
}

// A share may begin at any element, because most copies do not depend on rows.
static int copy_tasks(const struct ggml_tensor * node, int n_threads) {
    return gb_tasks_for((double) gb_count(node), gb_count(node), n_threads);
}

const struct gb_cpu_op gb_cpu_op_dup = { .unsupported = copy_unsupported, .n_tasks = copy_tasks, .run = copy_run_node };
const struct gb_cpu_op gb_cpu_op_cpy = { .unsupported = copy_unsupported, .n_tasks = copy_tasks, .run = copy_run_node };
const struct gb_cpu_op gb_cpu_op_cont = {
    .unsupported = copy_unsupported, .n_tasks = copy_tasks, .run = copy_run_node
};
