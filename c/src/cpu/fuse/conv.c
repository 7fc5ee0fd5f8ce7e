// fuse/conv.c - fuses convolutions with the nodes after them.
//
//    columns:      IM2COL [CPY] MUL_MAT
//    convolution:  CONV_2D | CONV_2D_DW | CONV_3D  [ADD | SUB | MUL | DIV | SCALE | UNARY | DUP | ...]+
//
// columns computes IM2COL and its product, which are a convolution, in one step. It never stores
// the columns. It rounds the input like IM2COL. Results agree with the unfused ones within the
// rounding of a float sum.
//
// The operators after a convolution are applied to rows of positions as soon as these are complete.
// An operand with one number for each channel is a shared operand (stages.h).
#include "cpu/fuse/stages.h"
#include "cpu/ops/conv/conv.h"
#include "ggml-backend-impl.h"

// ------------------------------------------------------------------------------------------------------------- columns

// The kernel of the product, if its other operand is all of the rows. NULL if it is another
// product. `depthwise`: the rows of each channel are multiplied by a separate kernel.
static const struct ggml_tensor * kernel_of(const struct ggml_tensor * rows, const struct ggml_tensor * product,
    bool depthwise) {
    const struct ggml_tensor * seen = product->src[depthwise ? 1 : 0];
    const struct ggml_tensor * kernel = product->src[depthwise ? 0 : 1];
    if (gb_root(seen) != rows || seen == NULL || seen->view_offs != 0 || !ggml_is_contiguous(seen) ||
        gb_count(seen) != gb_count(rows) || seen->ne[0] != rows->ne[0] || gb_root(kernel) == rows ||
        (kernel->type != GGML_TYPE_F32 && kernel->type != GGML_TYPE_F16) || !ggml_is_contiguous(kernel)) {
        return NULL;
    }
    const bool is_matrix = kernel->ne[2] == 1 && kernel->ne[3] == 1 && seen->ne[2] == 1 && seen->ne[3] == 1;
    const bool is_each = kernel->ne[1] == 1 && kernel->ne[3] == 1 && kernel->ne[2] == seen->ne[2];
    return (depthwise ? is_each : is_matrix) ? kernel : NULL;
}

static int columns_length(struct ggml_tensor * const * nodes, int n) {
    const struct ggml_tensor * columns = nodes[0];
    const int last = n > 2 && nodes[1]->op == GGML_OP_CPY ? 2 : 1;
    if (n < 2 || columns->op != GGML_OP_IM2COL || !ggml_is_contiguous(columns) || gb_is_empty(columns) ||
        !gb_is_float(columns->src[1]->type) || nodes[last]->op != GGML_OP_MUL_MAT || !gb_fuse_is_dense(nodes[last]) ||
        gb_is_empty(nodes[last])) {
        return 0;
    }
    if (last == 2 && (nodes[1]->src[0] != columns || nodes[1]->type != GGML_TYPE_F32 || !ggml_is_contiguous(nodes[1]) ||
                         nodes[1]->view_src != NULL)) {
        return 0;
    }
    const bool each = columns->op_params[6] == 1 && columns->src[1]->ne[2] == 1;
    return kernel_of(nodes[last - 1], nodes[last], false) != NULL ||
                   (each && kernel_of(nodes[last - 1], nodes[last], true) != NULL)
               ? last + 1
               : 0;
}

static struct gb_conv_job columns_job(struct ggml_tensor * const * nodes, int n) {
    const struct ggml_tensor *columns = nodes[0], *rows = nodes[n - 2], *product = nodes[n - 1];
    const struct ggml_tensor * kernel = kernel_of(rows, product, false);
    if (kernel != NULL) {
        return gb_conv_job_of_columns(columns, product, kernel);
    }
    kernel = kernel_of(rows, product, true);
    struct gb_conv_job j = gb_conv_job_of_columns(columns, product, kernel);
    j.groups = kernel->ne[2]; // channels, which IM2COL treats as images
    j.oc = 1;
    j.batches /= j.groups;
    j.x_channel = j.x_batch;
    j.x_batch *= (size_t) j.groups;
    j.y_channel = gb_conv_positions(&j);
    j.y_batch = j.y_channel * j.groups;
    return j;
}

static int columns_tasks(struct ggml_tensor * const * nodes, int n, int n_threads) {
    const struct gb_conv_job j = columns_job(nodes, n);
    return gb_conv_n_tasks(&j, n_threads);
}

static size_t columns_work(struct ggml_tensor * const * nodes, int n, int n_tasks) {
    const struct gb_conv_job j = columns_job(nodes, n);
    return gb_conv_work_size(&j, n_tasks);
}

// The product may share the memory of the input, which no node reads after IM2COL. Results then go
// to the memory of the columns first.
static bool is_apart(struct ggml_tensor * const * nodes, int n) {
    return gb_fuse_is_disjoint(nodes[n - 1], nodes[0]->src[1]);
}

static bool columns_is_safe(struct ggml_tensor * const * nodes, int n) {
    const struct ggml_tensor *product = nodes[n - 1], *columns = nodes[0];
    const struct ggml_tensor * kernel = product->src[gb_root(product->src[0]) == nodes[n - 2] ? 1 : 0];
    bool safe = gb_fuse_is_disjoint(product, kernel) && (uintptr_t) product->data % sizeof(float) == 0;
    for (int i = 0; i + 1 < n && safe; i++) {
        safe = ggml_backend_may_leave_out(nodes[i]);
    }
    return safe && (is_apart(nodes, n) ||
                       (ggml_nbytes(columns) >= ggml_nbytes(product) && gb_fuse_is_disjoint(product, columns) &&
                           gb_fuse_is_disjoint(columns, columns->src[1]) && gb_fuse_is_disjoint(columns, kernel) &&
                           (uintptr_t) columns->data % sizeof(float) == 0));
}

static void run_columns(const struct gb_cpu_call * call, struct ggml_tensor * const * nodes, int n) {
    struct gb_conv_job j = columns_job(nodes, n);
    struct ggml_tensor * product = nodes[n - 1];
    if (is_apart(nodes, n)) {
        gb_conv_run(call, &j);
        return;
    }
    j.y = (float *) nodes[0]->data;
    gb_conv_run(call, &j);
    int64_t first, last;
    gb_cpu_share(call, gb_count(product), &first, &last);
    if (gb_cpu_barrier(call) && first < last) {
        memcpy((float *) product->data + first, j.y + first, (size_t) (last - first) * sizeof(float));
    }
}

static bool columns_leave_out(struct ggml_tensor * const * nodes, int n) {
    (void) nodes;
    (void) n;
    return true;
}

const struct gb_fusion gb_fusion_columns = {
    .length = columns_length,
    .n_tasks = columns_tasks,
    .work_size = columns_work,
    .is_safe = columns_is_safe,
    .run = run_columns,
    .leaves_out = columns_leave_out,
};

// --------------------------------------------------------------------------------------------------------- convolution

struct convolution { // the convolution and the operators after it
    struct gb_conv_epilogue epilogue;
    struct gb_fuse_stages stages;
    struct gb_fuse_pass pass;
};

static bool is_per_channel(const struct ggml_tensor * t, const struct ggml_tensor * y) {
    return y->op != GGML_OP_CONV_3D && t->ne[0] == 1 && t->ne[1] == 1 && t->ne[2] == y->ne[2] && t->ne[3] == 1;
}

static int convolution_length(struct ggml_tensor * const * nodes, int n) {
    return gb_fuse_stages_length(nodes, n, is_per_channel);
}

static bool convolution_is_safe(struct ggml_tensor * const * nodes, int n) {
    const struct gb_fuse_stages s = gb_fuse_stages_of(nodes, n, is_per_channel);
    return gb_fuse_stages_are_safe(&s, nodes);
}

static const float * repeated(const struct ggml_tensor * t, int64_t channel, int64_t n, float * room) {
    for (int64_t i = 0; i < n; i++) {
        room[i] = ((const float *) t->data)[channel];
    }
    return room;
}

static void finish(const struct gb_cpu_call * call, const struct gb_conv_epilogue * e, float * dst, int64_t channel,
    int64_t n) {
    const struct convolution * c = e->context;
    float room[GB_RUN];
    for (int64_t i = 0; i < n; i += GB_RUN) {
        const size_t at = (size_t) ((const char *) (dst + i) - c->stages.first);
        gb_fuse_stages_run(call, &c->stages, at, channel, GB_MIN(n - i, (int64_t) GB_RUN), repeated, room);
    }
}

// The same by one kernel. Adding -0 changes nothing.
static void finish_at_once(const struct gb_cpu_call * call, const struct gb_conv_epilogue * e, float * dst,
    int64_t channel, int64_t n) {
    const struct convolution * c = e->context;
    const struct gb_fuse_pass * p = &c->pass;
    const size_t at = (size_t) ((const char *) dst - c->stages.first);
    const float shift = p->shift != NULL ? ((const float *) p->shift->data)[channel] : -0.0f;
    const char * other = p->other != NULL ? (const char *) p->other->data + at : NULL;
    float * y = (float *) (void *) (p->to + at);
    call->k->shift_clamp_f32(n, y, dst, (const float *) (const void *) other, shift, p->min, p->max);
}

static void run_convolution(const struct gb_cpu_call * call, struct ggml_tensor * const * nodes, int n) {
    struct convolution c = { .stages = gb_fuse_stages_of(nodes, n, is_per_channel) };
    c.stages.numbers = true;
    struct gb_conv_job j = gb_conv_job_of(nodes[0]);
    const bool at_once = gb_fuse_stages_are_pass(&c.stages, &c.pass);
    // The convolution stores where the last result will be, if that is the memory of no operand.
    if (at_once && ggml_backend_may_leave_out(nodes[0]) && (c.pass.other == NULL || c.pass.other->data != c.pass.to)) {
        j.y = (float *) (void *) c.pass.to;
        c.stages.first = c.pass.to;
    }
    c.epilogue = (struct gb_conv_epilogue){ at_once ? finish_at_once : finish, &c };
    j.epilogue = &c.epilogue;
    gb_conv_run(call, &j);
}

static bool convolution_leaves_out(struct ggml_tensor * const * nodes, int n) {
    const struct gb_fuse_stages s = gb_fuse_stages_of(nodes, n, is_per_channel);
    return gb_fuse_stages_leave_out(&s);
}

const struct gb_fusion gb_fusion_convolution = {
    .length = convolution_length,
    .n_tasks = gb_fuse_first_tasks,
    .work_size = gb_fuse_first_work,
    .is_safe = convolution_is_safe,
    .run = run_convolution,
    .leaves_out = convolution_leaves_out,
};
