// gathered.c - algorithm gathered: collects the inputs of each tile of positions, value by value,
// and multiplies them.
//
// It computes every convolution, with any padding, strides and dilation, because it needs no padded
// copy.
#include "base/fp16.h"
#include "cpu/ops/conv/algorithm.h"

static int64_t memory_floats(const struct gb_conv_job * j) {
    const int64_t terms = gb_conv_terms(j);
    return gb_conv_aligned(GB_CONV_FLOATS_OF_OFFSETS(terms)) + gb_conv_aligned(GB_GEMM_MR_MAX * terms) +
           terms * GB_GEMM_NR_MAX + GB_CONV_SLACK;
}

size_t gb_conv_gathered_work_size(const struct gb_conv_job * j, int n_tasks) {
    return gb_floats_size(memory_floats(j), n_tasks);
}

// The input under element k of the kernel (counted along all axes) at an output position. 0
// outside.
static float input_at(const struct gb_conv_job * j, const char * channel, int64_t k, int64_t position) {
    for (int d = 0; d < 3; d++) {
        const struct gb_conv_axis * a = &j->axis[d];
        const int64_t at = position % a->out * a->stride + k % a->kernel * a->dilation - a->pad;
        if (at < 0 || at >= a->in) {
            return 0.0f;
        }
        channel += (size_t) at * j->x_nb[d];
        position /= a->out;
        k /= a->kernel;
    }
    const float v = j->x_type == GGML_TYPE_F32 ? gb_get_f32(channel) : gb_get(j->x_type, channel);
    return j->rounds ? gb_f16_to_f32(gb_f32_to_f16(v)) : v;
}

// Collects all terms for n positions from `first` on. False: the run has ended.
static bool gather(const struct gb_cpu_call * call, const struct gb_conv_job * j, int64_t batch, int64_t group,
    int64_t first, int64_t n, float * y) {
    const int64_t area = gb_conv_terms(j) / GB_MAX(j->ic, 1);
    for (int64_t c = 0; c < j->ic; c++) {
        const char * channel = j->x + (size_t) batch * j->x_batch + (size_t) (group * j->ic + c) * j->x_channel;
        for (int64_t k = 0; k < area; k++, y += GB_GEMM_NR_MAX) {
            for (int64_t i = 0; i < n; i++) {
                y[i] = input_at(j, channel, k, first + i);
            }
            for (int64_t i = n; i < GB_GEMM_NR_MAX; i++) {
                y[i] = 0.0f;
            }
            if (gb_cpu_stopped(call, 8 * n)) {
                return false;
            }
        }
    }
    return true;
}

// Computes n positions of all output channels of a group.
static bool gathered_unit(const struct gb_cpu_call * call, const struct gb_conv_job * j, int64_t batch, int64_t group,
    int64_t first, int64_t n, float * memory) {
    const int64_t terms = gb_conv_terms(j), mr = call->k->gemm_mr;
    const int64_t * offsets = (const int64_t *) (const void *) memory;
    float * weights = memory + gb_conv_aligned(GB_CONV_FLOATS_OF_OFFSETS(terms));
    float * inputs = weights + gb_conv_aligned(GB_GEMM_MR_MAX * terms);
    if (!gather(call, j, batch, group, first, n, inputs)) {
        return false;
    }
    for (int64_t o = 0; o < j->oc; o += mr) {
        const int64_t m = GB_MIN(mr, j->oc - o), channel = group * j->oc + o;
        float * y = j->y + batch * j->y_batch + channel * j->y_channel + first;
        const struct gb_conv_tile tile = { .k = terms,
            .a = gb_conv_weights(call, j, group, o, m, weights),
            .lda = terms,
            .x = inputs,
            .offsets = offsets,
            .c = y,
            .ldc = j->y_channel,
            .mr = (int) m,
            .nr = (int) n };
        call->k->conv_tile_f32(&tile);
        if (gb_cpu_stopped(call, gb_conv_work(m * n * terms))) {
            return false;
        }
        for (int64_t i = 0; i < m && j->epilogue != NULL; i++) {
            j->epilogue->finish(call, j->epilogue, y + i * j->y_channel, channel + i, n);
        }
    }
    return true;
}

void gb_conv_gathered_run(const struct gb_cpu_call * call, const struct gb_conv_job * j) {
    const int64_t positions = gb_conv_positions(j), nr = call->k->gemm_nr, pieces = gb_div_up(positions, nr);
    float * memory = gb_my_floats(call, memory_floats(j));
    int64_t * offsets = (int64_t *) (void *) memory;
    for (int64_t k = 0; k < gb_conv_terms(j); k++) {
        offsets[k] = k * GB_GEMM_NR_MAX;
    }
    struct gb_cpu_taking taking = gb_cpu_taking_of(call, j->batches * j->groups * pieces, 1);
    int64_t first, last, part;
    while (gb_cpu_take(&taking, &first, &last, &part)) {
        for (int64_t i = first; i < last; i++) {
            const int64_t at = i % pieces * nr, image = i / pieces;
            if (!gathered_unit(call, j, image / j->groups, image % j->groups, at, GB_MIN(nr, positions - at), memory)) {
                return;
            }
        }
    }
}
