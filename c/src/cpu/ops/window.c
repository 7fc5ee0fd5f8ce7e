// window.c - operators of windowed attention: dividing an image into windows, the reverse, and
// relative position terms.
#include "cpu/ops/elements.h"

// ------------------------------------------------------------------------------------------------ WIN_PART, WIN_UNPART

// Result [C, w, w, npx npy] of an image [C, W, H]. Windows are filled with 0 outside the image.
static void win_part_row(const struct ggml_tensor * node, struct gb_row r, char * d) {
    const struct ggml_tensor * a = node->src[0];
    const int64_t npx = gb_op_param_i32(node, 0), w = gb_op_param_i32(node, 2);
    const int64_t x = r.i3 % npx * w + r.i1, y = r.i3 / npx * w + r.i2;
    const size_t size = ggml_type_size(node->type);
    if (x < a->ne[1] && y < a->ne[2]) {
        gb_move(size, node->ne[0], d, node->nb[0], gb_row_ptr(a, x, y, 0), a->nb[0]);
    } else {
        gb_clear(size, node->ne[0], d, node->nb[0]);
    }
}

static void run_win_part(const struct gb_cpu_call * call, struct ggml_tensor * node) {
    gb_run_rows(call, node, win_part_row);
}

// The driver divides by the number of windows in a row of the image, so that must not be 0.
static const char * win_part_unsupported(const struct ggml_tensor * node) {
    return gb_op_param_i32(node, 0) < 1 || gb_op_param_i32(node, 2) < 1 ? "window sizes must be positive"
                                                                        : gb_need_same(node, 1);
}

// The reverse: the image [C, W, H] of windows, without the elements outside it.
static void win_unpart_row(const struct ggml_tensor * node, struct gb_row r, char * d) {
    const struct ggml_tensor * a = node->src[0];
    const int64_t w = gb_op_param_i32(node, 0);
    const int64_t npx = gb_div_up(node->ne[1], w);
    const char * s = gb_row_ptr(a, r.i1 % w, r.i2 % w, r.i2 / w * npx + r.i1 / w);
    gb_move(ggml_type_size(node->type), node->ne[0], d, node->nb[0], s, a->nb[0]);
}

static void run_win_unpart(const struct gb_cpu_call * call, struct ggml_tensor * node) {
    gb_run_rows(call, node, win_unpart_row);
}

// The driver divides by the size of a window, so that must not be 0.
static const char * win_unpart_unsupported(const struct ggml_tensor * node) {
    return gb_op_param_i32(node, 0) < 1 ? "the window size must be positive" : gb_need_same(node, 1);
}

// -------------------------------------------------------------------------------------------- GET_REL_POS, ADD_REL_POS

// Result [C, k, k]: row (x, y) is row k - 1 - x + y of src[0], the term for the distance of y from
// x.
static void get_rel_pos_row(const struct ggml_tensor * node, struct gb_row r, char * d) {
    const struct ggml_tensor * a = node->src[0];
    const char * s = gb_row_ptr(a, node->ne[1] - 1 - r.i1 + r.i2, 0, 0);
    gb_move(ggml_type_size(node->type), node->ne[0], d, node->nb[0], s, a->nb[0]);
}

static void run_get_rel_pos(const struct gb_cpu_call * call, struct ggml_tensor * node) {
    gb_run_rows(call, node, get_rel_pos_row);
}

static const char * get_rel_pos_unsupported(const struct ggml_tensor * node) { return gb_need_same(node, 1); }

// Each row of src[0] is a k x k picture. Line y gets ph[y], column x gets pw[x] of the same row of
// pw and ph.
static void run_add_rel_pos(const struct gb_cpu_call * call, struct ggml_tensor * node) {
    const struct ggml_tensor *a = node->src[0], *pw = node->src[1], *ph = node->src[2];
    const int64_t k = pw->ne[0];
    float * scratch = gb_my_floats(call, 3 * k); // pw row, ph row, a line
    int64_t first, last;
    gb_cpu_share(call, k > 0 ? gb_rows(node) : 0, &first, &last);
    for (int64_t i = first; i < last; i++) {
        const struct gb_row r = gb_row_at(node, i);
        const float * w = gb_in(call->k, pw, gb_row_of(pw, gb_row_at(pw, i)), k, scratch);
        const float * h = gb_in(call->k, ph, gb_row_of(ph, gb_row_at(ph, i)), k, scratch + k);
        for (int64_t y = 0; y < k; y++) {
            char * p = gb_row_of(node, r) + (size_t) (y * k) * node->nb[0];
            const float * x = gb_in(call->k, a, gb_row_of(a, r) + (size_t) (y * k) * a->nb[0], k, scratch + 2 * k);
            float * d = gb_out(node, p, k, scratch + 2 * k);
            call->k->add1_f32(k, d, x, h[y]);
            call->k->add_f32(k, d, d, w);
            gb_put(call->k, node, p, k, d);
        }
        if (gb_cpu_stopped(call, k * k)) {
            return;
        }
    }
}

static const char * add_rel_pos_unsupported(const struct ggml_tensor * node) { return gb_need_float(node, 3); }

// A row of pw, a row of ph and a line of the picture for each thread.
static size_t add_rel_pos_work(const struct ggml_tensor * node, int n_tasks) {
    return gb_floats_size(3 * node->src[1]->ne[0], n_tasks);
}

const struct gb_cpu_op gb_cpu_op_win_part = {
    .unsupported = win_part_unsupported, .n_tasks = gb_tasks_dst_rows, .run = run_win_part
};
const struct gb_cpu_op gb_cpu_op_win_unpart = {
    .unsupported = win_unpart_unsupported, .n_tasks = gb_tasks_dst_rows, .run = run_win_unpart
};
const struct gb_cpu_op gb_cpu_op_get_rel_pos = {
    .unsupported = get_rel_pos_unsupported,
    .n_tasks = gb_tasks_dst_rows,
    .run = run_get_rel_pos,
};
const struct gb_cpu_op gb_cpu_op_add_rel_pos = {
    .unsupported = add_rel_pos_unsupported,
    .n_tasks = gb_tasks_dst_rows,
    .work_size = add_rel_pos_work,
    .run = run_add_rel_pos,
};
