// bands.c - divides the output of a convolution into bands whose input fits into a cache, and stores
// and finishes results.
#include "cpu/ops/conv/algorithm.h"

enum {
    COLUMNS_MIN = 256,     // of a band: with fewer, too many positions would be copied twice
    COLUMNS_ALONE = 32,    // the same, where each position is copied once
    ROWS_MIN = 4,          // of a band
    FLOATS_MAX = 16 << 20, // of a thread's slab
};

// The largest number from `least` to n of rows (or columns) of a band whose slab has at most
// `limit` floats. `both`: the number in the other direction.
static int64_t most_of(const struct gb_conv_job * j, bool along_rows, int64_t n, int64_t both, int64_t channels,
    int64_t least, int64_t limit) {
    int64_t low = GB_MIN(least, n), high = n;
    while (low < high) {
        const int64_t at = low + (high - low + 1) / 2;
        const bool fits = along_rows ? gb_slab_floats(j, both, at, channels, limit) >= 0
                                     : gb_slab_floats(j, at, both, channels, limit) >= 0;
        low = fits ? at : low;
        high = fits ? high : at - 1;
    }
    return low;
}

struct gb_conv_bands gb_conv_bands_of(const struct gb_conv_job * j, int64_t limit) {
    const int64_t width = j->axis[0].out, height = j->axis[1].out, channels = j->ic * j->axis[2].kernel;
    const int64_t least = j->axis[0].kernel == 1 ? COLUMNS_ALONE : COLUMNS_MIN;
    struct gb_conv_bands b;
    const int64_t columns = most_of(j, false, width, GB_MIN(height, ROWS_MIN), channels, least, 2 * limit);
    b.n_columns = gb_div_up(width, columns);
    b.columns = gb_div_up(gb_div_up(width, b.n_columns), 16) * 16;
    b.columns = GB_MIN(b.columns, width);
    b.n_columns = gb_div_up(width, b.columns);
    const int64_t rows = most_of(j, true, height, b.columns, channels, ROWS_MIN, limit);
    b.n_rows = gb_div_up(height, rows);
    b.rows = gb_div_up(height, b.n_rows);
    b.n_rows = gb_div_up(height, b.rows);
    const int64_t floats = gb_slab_floats(j, b.columns, b.rows, channels, FLOATS_MAX);
    b.floats = floats < 0 ? -1 : floats + GB_CONV_SLACK;
    return b;
}

struct gb_conv_unit gb_conv_unit_at(const struct gb_conv_job * j, const struct gb_conv_bands * b, int64_t blocks,
    int64_t i) {
    struct gb_conv_unit u = { .block = i % blocks };
    i /= blocks;
    u.slab.first[0] = i % b->n_columns * b->columns;
    i /= b->n_columns;
    u.slab.first[1] = i % b->n_rows * b->rows;
    i /= b->n_rows;
    u.slab.first[2] = i % j->axis[2].out;
    i /= j->axis[2].out;
    u.group = i % j->groups;
    u.batch = i / j->groups;
    u.slab.n[0] = GB_MIN(b->columns, j->axis[0].out - u.slab.first[0]);
    u.slab.n[1] = GB_MIN(b->rows, j->axis[1].out - u.slab.first[1]);
    u.slab.n[2] = 1;
    u.slab.channels = j->ic * j->axis[2].kernel;
    return u;
}

int64_t gb_conv_block(const struct gb_cpu_call * call, const struct gb_conv_job * j, const struct gb_conv_bands * b) {
    const int64_t bands = gb_conv_n_units(j, b, 1), parts = gb_div_up(j->oc, call->k->gemm_mr);
    const int64_t wanted = call->nth > 1 && bands < 4 * (int64_t) call->nth ? gb_div_up(4 * call->nth, bands) : 1;
    return gb_div_up(parts, GB_MIN(wanted, parts)) * call->k->gemm_mr;
}

// Copies so few floats that a call would take longer.
static void copy_few(float * y, const float * x, int64_t n) {
    int64_t i = 0;
    for (; i + 4 <= n; i += 4) {
        memcpy(y + i, x + i, 4 * sizeof(*y));
    }
    for (; i < n; i++) {
        y[i] = x[i];
    }
}

void gb_conv_store(const struct gb_conv_job * j, const struct gb_slab * s, int64_t f, int64_t n, const float * x,
    float * y) {
    int64_t column = f % s->pitch;
    y += f / s->pitch * j->axis[0].out;
    for (int64_t at = 0; at < n; column = 0, y += j->axis[0].out) {
        const int64_t run = GB_MIN(n - at, s->pitch - column), used = GB_MIN(run, s->n[0] - column);
        copy_few(y + column, x + at, used);
        at += run;
    }
}

void gb_conv_finish(const struct gb_cpu_call * call, const struct gb_conv_job * j, const struct gb_conv_unit * u,
    int64_t o, int64_t n) {
    const struct gb_slab * s = &u->slab;
    const bool whole = s->n[0] == j->axis[0].out;
    const int64_t rows = whole ? 1 : s->n[1], run = whole ? s->n[0] * s->n[1] : s->n[0];
    for (int64_t c = o; c < o + n && j->epilogue != NULL; c++) {
        for (int64_t r = 0; r < rows; r++) {
            j->epilogue->finish(call, j->epilogue, gb_conv_y(j, u, c) + r * j->axis[0].out, u->group * j->oc + c, run);
        }
    }
}

const float * gb_conv_weights(const struct gb_cpu_call * call, const struct gb_conv_job * j, int64_t group, int64_t o,
    int64_t n, float * buffer) {
    const int64_t terms = gb_conv_terms(j);
    const char * w = j->w + (size_t) ((group * j->oc + o) * terms) * ggml_type_size(j->w_type);
    if (gb_are_floats(j->w_type, sizeof(float), w, 2)) {
        return (const float *) (const void *) w;
    }
    gb_load(call->k, j->w_type, n * terms, buffer, w, ggml_type_size(j->w_type));
    return buffer;
}
