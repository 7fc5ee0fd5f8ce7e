// shapes.h - computes the shape of an operator's result from its sources and parameters. Builders
// use it (ops_*.c), and so does the validation of built nodes (gb_built_<stem> there).
#ifndef GB_TENSOR_SHAPES_H
#define GB_TENSOR_SHAPES_H

#include "base/mem.h"
#include "tensor/check.h"

struct gb_shape {
    int64_t ne[4];
};

// Sums and products of sizes. -1 on overflow, and if an operand is negative.
static inline int64_t gb_size_sum(int64_t x, int64_t y) { return x < 0 || y < 0 || x > INT64_MAX - y ? -1 : x + y; }

static inline int64_t gb_size_product(int64_t x, int64_t y) {
    int64_t r;
    return x >= 0 && y >= 0 && gb_mul_i64(x, y, &r) ? r : -1;
}

static inline struct gb_shape gb_shape_of(int64_t ne0, int64_t ne1, int64_t ne2, int64_t ne3) {
    return (struct gb_shape) { { ne0, ne1, ne2, ne3 } };
}

// True if the tensor has this shape.
static inline bool gb_is_shape(gb_ct t, struct gb_shape shape) {
    return t->ne[0] == shape.ne[0] && t->ne[1] == shape.ne[1] && t->ne[2] == shape.ne[2] && t->ne[3] == shape.ne[3];
}

static inline struct gb_shape gb_shape_like(gb_ct t) { return gb_shape_of(t->ne[0], t->ne[1], t->ne[2], t->ne[3]); }

static inline bool gb_is_like(gb_ct t, gb_ct a) { return gb_is_shape(t, gb_shape_like(a)); }

static inline struct gb_shape gb_shape_scalar(void) { return gb_shape_of(1, 1, 1, 1); }

// One number for each row.
static inline struct gb_shape gb_shape_per_row(gb_ct a) { return gb_shape_of(1, a->ne[1], a->ne[2], a->ne[3]); }

// One position for each row of a matrix.
static inline struct gb_shape gb_shape_argmax(gb_ct a) { return gb_shape_of(a->ne[1], 1, 1, 1); }

static inline struct gb_shape gb_shape_concat(gb_ct a, gb_ct b) {
    return gb_shape_of(a->ne[0], a->ne[1], gb_size_sum(a->ne[2], b->ne[2]), a->ne[3]);
}

// A number for each pair of a row of a and a row of b.
static inline struct gb_shape gb_shape_mul_mat(gb_ct a, gb_ct b) {
    return gb_shape_of(a->ne[1], b->ne[1], b->ne[2], b->ne[3]);
}

// A row for each number in ids, with a number for each row of a matrix.
static inline struct gb_shape gb_shape_mul_mat_experts(gb_ct as, gb_ct ids) {
    return gb_shape_of(as->ne[1], ids->ne[0], ids->ne[1], 1);
}

// A number for each pair of a column of a and a column of b.
static inline struct gb_shape gb_shape_out_prod(gb_ct a, gb_ct b) {
    return gb_shape_of(a->ne[0], b->ne[0], b->ne[2], b->ne[3]);
}

// A row for each number in b.
static inline struct gb_shape gb_shape_get_rows(gb_ct a, gb_ct b) {
    return gb_shape_of(a->ne[0], b->ne[0], b->ne[1], b->ne[2]);
}

static inline struct gb_shape gb_shape_diag(gb_ct a) { return gb_shape_of(a->ne[0], a->ne[0], a->ne[2], a->ne[3]); }

// Heads before queries.
static inline struct gb_shape gb_shape_flash_attn_ext(gb_ct q, gb_ct v) {
    return gb_shape_of(v->ne[0], q->ne[2], q->ne[1], q->ne[3]);
}

// One row that holds the three gradients one after another. A gap after each reaches to the next
// 16-byte boundary.
static inline struct gb_shape gb_shape_flash_attn_back(gb_ct q, gb_ct k, gb_ct v) {
    const gb_ct all[] = { q, k, v };
    int64_t n = 0;
    for (int i = 0; i < 3; i++) {  // a view of few bytes may have any number of elements
        const int64_t end = gb_size_sum(gb_size_sum(n, ggml_nelements(all[i])), 3);
        n = end < 0 ? -1 : end & ~INT64_C(3);
    }
    return gb_shape_of(n, 1, 1, 1);
}

// A row for each position, image by image, with all elements under the kernel. With one axis the
// channels of b are in dimension 1.
static inline struct gb_shape gb_shape_im2col(gb_ct a, gb_ct b, const struct gb_conv * v) {
    const int64_t area = gb_size_product(a->ne[0], a->ne[1]), ow = gb_conv_out(b->ne[0], a->ne[0], v->s0, v->p0, v->d0);
    return v->is_2d ? gb_shape_of(gb_size_product(area, a->ne[2]), ow,
                          gb_conv_out(b->ne[1], a->ne[1], v->s1, v->p1, v->d1), b->ne[3])
                    : gb_shape_of(area, ow, b->ne[2], 1);
}

// A plane for each kernel and image.
static inline struct gb_shape gb_shape_conv_2d(gb_ct a, gb_ct b, const struct gb_conv * v) {
    return gb_shape_of(gb_conv_out(b->ne[0], a->ne[0], v->s0, v->p0, v->d0),
        gb_conv_out(b->ne[1], a->ne[1], v->s1, v->p1, v->d1), a->ne[3], b->ne[3]);
}

static inline struct gb_shape gb_shape_conv_3d(gb_ct a, gb_ct b, const struct gb_conv_3d * v) {
    return gb_shape_of(gb_conv_out(b->ne[0], a->ne[0], v->s[0], v->p[0], v->d[0]),
        gb_conv_out(b->ne[1], a->ne[1], v->s[1], v->p[1], v->d[1]),
        gb_conv_out(b->ne[2], a->ne[2], v->s[2], v->p[2], v->d[2]), gb_size_product(v->channels_out, v->batches));
}

static inline int64_t gb_size_spread(int64_t n, int64_t stride, int64_t k) { // (n - 1) stride + k, n and k above 0
    const int64_t reach = gb_size_product(n - 1, stride);
    return reach < 0 ? -1 : gb_size_sum(reach, k);
}

// Each element of b spreads over the length of a kernel.
static inline struct gb_shape gb_shape_conv_transpose_1d(gb_ct a, gb_ct b, int stride) {
    return gb_shape_of(gb_size_spread(b->ne[0], stride, a->ne[0]), a->ne[1], b->ne[2], 1);
}

static inline struct gb_shape gb_shape_conv_transpose_2d(gb_ct a, gb_ct b, int stride) {
    return gb_shape_of(gb_size_spread(b->ne[0], stride, a->ne[0]), gb_size_spread(b->ne[1], stride, a->ne[1]), a->ne[2],
        b->ne[3]);
}

static inline struct gb_shape gb_shape_pool_1d(gb_ct a, int k, int s, int p) {
    return gb_shape_of(gb_pool_out(a->ne[0], k, s, p), a->ne[1], 1, 1);
}

static inline struct gb_shape gb_shape_pool_2d(gb_ct a, const int k[2], const int s[2], const float p[2]) {
    return gb_shape_of(gb_pool_out(a->ne[0], k[0], s[0], (double) p[0]),
        gb_pool_out(a->ne[1], k[1], s[1], (double) p[1]), a->ne[2], 1);
}

// Both axes of an image grow by the factor.
static inline struct gb_shape gb_shape_upscale(gb_ct a, int factor) {
    return gb_shape_of(gb_size_product(a->ne[0], factor), gb_size_product(a->ne[1], factor), a->ne[2], a->ne[3]);
}

static inline struct gb_shape gb_shape_pad(gb_ct a, const int p[4]) {
    return gb_shape_of(gb_size_sum(a->ne[0], p[0]), gb_size_sum(a->ne[1], p[1]), gb_size_sum(a->ne[2], p[2]),
        gb_size_sum(a->ne[3], p[3]));
}

// The number of windows of w positions that cover n positions.
static inline int64_t gb_windows(int64_t n, int64_t w) { return n / w + (n % w != 0); }

// Windows of w x w positions, one after another in dimension 3.
static inline struct gb_shape gb_shape_win_part(gb_ct a, int w) {
    return gb_shape_of(a->ne[0], w, w, gb_size_product(gb_windows(a->ne[1], w), gb_windows(a->ne[2], w)));
}

static inline struct gb_shape gb_shape_win_unpart(gb_ct a, int64_t w0, int64_t h0) {
    return gb_shape_of(a->ne[0], w0, h0, 1);
}

static inline struct gb_shape gb_shape_get_rel_pos(gb_ct a, int64_t qh, int64_t kh) {
    return gb_shape_of(a->ne[0], kh, qh, 1);
}

static inline struct gb_shape gb_shape_get_rows_back(gb_ct c) { return gb_shape_of(c->ne[0], c->ne[1], 1, 1); }

#endif // GB_TENSOR_SHAPES_H
