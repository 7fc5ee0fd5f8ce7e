// grid.c - expands rows of codebooks, and searches them.
//
// The search minimizes the weighted squared error, a sum over the elements of a row. For a given
// scale, small tables give the error of each half of a row. The smallest error of a half is a lower
// bound for whole rows. A sub-block tries a range of scales, each with its best rows, and keeps the
// scale whose rows fit best by least squares. Then the scales are rounded to the format, rows are
// chosen again for the rounded scales, and d is fitted to all of them.
#include "tensor/quant/grid.h"

// The second argument is one of GB_VALUES_*: three values for codes of 2 bits, eight values for
// codes of 4 bits. All steps are equal except the last one.
#define GRID_OF_3(name, values) \
    const struct gb_grid gb_grid_##name = { gb_grid_rows_##name, gb_grid_first_##name, 2, 3, LINE_OF_3(values) };
#define GRID_OF_8(name, values) \
    const struct gb_grid gb_grid_##name = { gb_grid_rows_##name, gb_grid_first_##name, 4, 8, LINE_OF_8(values) };
#define LINE_OF_3(...) LINE_OF_3_(__VA_ARGS__)
#define LINE_OF_3_(a, b, c) (a), (b) - (a), (c) - ((a) + 2 * ((b) - (a)))
#define LINE_OF_8(...) LINE_OF_8_(__VA_ARGS__)
#define LINE_OF_8_(a, b, c, d, e, f, g, h) (a), (b) - (a), (h) - ((a) + 7 * ((b) - (a)))

GRID_OF_3(iq2_xxs, GB_VALUES_IQ2(GB_VALUE))
GRID_OF_3(iq2_xs, GB_VALUES_IQ2(GB_VALUE))
GRID_OF_3(iq2_s, GB_VALUES_IQ2(GB_VALUE))
GRID_OF_8(iq3_xxs, GB_VALUES_IQ3_XXS(GB_VALUE))
GRID_OF_8(iq3_s, GB_VALUES_IQ3_S(GB_VALUE))
GRID_OF_3(iq1, GB_VALUES_IQ1(GB_VALUE))

enum { MAX_GROUPS = 8, TRIALS = 9 }; // groups of a sub-block; trial scales

static int group_size(const struct gb_grid * grid) { // elements of a row
    return 16 / grid->bits;
}

// The level of a code.
static int level_of(const struct gb_grid * grid, int code) {
    return grid->low + grid->step * code + (code == grid->n_levels - 1 ? grid->extra : 0);
}

// The level of element j of a row.
static int level_at(const struct gb_grid * grid, int row, int j) {
    return level_of(grid, grid->rows[row] >> grid->bits * j & ((1 << grid->bits) - 1));
}

// Writes one code per byte, the first one lowest. Splits words in halves until each has one code.
static uint64_t spread2(uint64_t row) {
    row = (row | row << 24) & UINT64_C(0x000000ff000000ff);
    row = (row | row << 12) & UINT64_C(0x000f000f000f000f);
    return (row | row << 6) & UINT64_C(0x0303030303030303);
}

// The same for four codes of 4 bits.
static uint32_t spread4(uint32_t row) {
    row = (row | row << 8) & 0x00ff00ff;
    return (row | row << 4) & 0x0f0f0f0f;
}

// Expands the row numbers of the groups to the codes of all 256 elements, one per byte.
static void expand_codes(const struct gb_grid * grid, const uint16_t * rows, uint8_t * codes) {
    for (int i = 0; i < GB_SUPER / 8 && grid->bits == 2; i++) {
        const uint64_t row = spread2(grid->rows[rows[i]]);
        memcpy(codes + 8 * i, &row, sizeof(row));
    }
    for (int i = 0; i < GB_SUPER / 4 && grid->bits == 4; i++) {
        const uint32_t row = spread4(grid->rows[rows[i]]);
        memcpy(codes + 4 * i, &row, sizeof(row));
    }
}

// Negates the bytes whose bit is set. Inverts all bits and adds 1, which does not carry because no
// byte is 0.
static void negate(int8_t * levels, uint8_t signs) {
    const uint64_t ones = gb_spread_bits(signs);
    uint64_t eight;
    memcpy(&eight, levels, sizeof(eight));
    eight = (eight ^ ones * 0xff) + ones;
    memcpy(levels, &eight, sizeof(eight));
}

void gb_grid_expand(const struct gb_grid_format * f, const struct gb_grid_block * g, struct gb_super * b) {
    uint8_t codes[GB_SUPER];
    const uint8_t last = (uint8_t) (f->grid->n_levels - 1);
    const int8_t low = (int8_t) f->grid->low, step = (int8_t) f->grid->step, extra = (int8_t) f->grid->extra;
    b->d = g->d * f->unit;
    for (int s = 0; s < 16; s++) {
        b->scale[s] = (int16_t) (2 * g->scale[16 * s / f->per_scale] + 1);
    }
    expand_codes(f->grid, g->row, codes);
    for (int e = 0; e < GB_SUPER; e++) {
        b->level[e] = (int8_t) (low + step * codes[e] + (codes[e] == last ? extra : 0));
    }
    for (int i = 0; i < 32 && f->per_offset == 0; i++) {
        negate(b->level + 8 * i, g->signs[i]);
    }
    for (int i = 0; i < 32 && f->per_offset != 0; i++) {
        const int8_t offset = g->negative[i] ? -1 : 1;
        for (int j = 0; j < 8; j++) {
            b->level[8 * i + j] = (int8_t) (b->level[8 * i + j] + offset);
        }
    }
}

// -------------------------------------------------------------------------------------------------------------- search

// The error of half a row is one[i] + two[j], where i and j are the states of the lower and the
// upper four bits of its byte of codes. Sums are rounded in the same order everywhere, so a sum of
// larger terms is never smaller. Hence sums of minima are lower bounds.
struct half {
    float one[9], two[9], least_one, least_two;
};

// The error of x at each level, and the minimum.
static float level_errors(float x, float w, const float * levels, int n_levels, float * e) {
    float least = INFINITY;
    for (int l = 0; l < n_levels; l++) {
        const float d = x - levels[l];
        e[l] = w * d * d;
        least = e[l] < least ? e[l] : least;
    }
    return least;
}

// The same for two elements of three levels: 9 states.
static float pair_errors(const float * x, const float * w, const float * levels, float * e) {
    float first[3], second[3];
    const float least = level_errors(x[0], w[0], levels, 3, first) + level_errors(x[1], w[1], levels, 3, second);
    for (int i = 0; i < 9; i++) {
        e[i] = first[i % 3] + second[i / 3];
    }
    return least;
}

// The tables for half a row: 4 elements of 2 bits or 2 elements of 4 bits.
static void half_errors(int bits, const float * x, const float * w, const float * levels, struct half * h) {
    if (bits == 2) {
        h->least_one = pair_errors(x, w, levels, h->one);
        h->least_two = pair_errors(x + 2, w + 2, levels, h->two);
    } else {
        h->least_one = level_errors(x[0], w[0], levels, 8, h->one);
        h->least_two = level_errors(x[1], w[1], levels, 8, h->two);
    }
}

// Indexed by the four bits themselves: one[byte & 15] + two[byte >> 4].
struct bytes {
    float one[16], two[16], least;
};

// With 2-bit codes, no row has a bit pattern with the code 3.
static void by_bits(int bits, const struct half * h, struct bytes * b) {
    static const uint8_t state[16] = { 0, 1, 2, 0, 3, 4, 5, 0, 6, 7, 8, 0, 0, 0, 0, 0 };
    for (int c = 0; c < 16; c++) {
        b->one[c] = h->one[bits == 2 ? state[c] : c & 7];
        b->two[c] = h->two[bits == 2 ? state[c] : c & 7];
    }
    b->least = h->least_one + h->least_two;
}

// The state of one search for a row. `low` is indexed by bits, because every row looks it up.
// `high` is indexed by states, because the search enumerates upper bytes.
struct search {
    const struct gb_grid * grid;
    struct bytes low;
    struct half high;
    int n; // states
    float best;
    int row;
};

// Updates the best row from the rows with one upper byte.
static void scan_rows(struct search * s, int upper, float high) {
    for (int r = s->grid->first[upper]; r < s->grid->first[upper + 1]; r++) {
        const int byte = s->grid->rows[r] & 255;
        const float error = s->low.one[byte & 15] + s->low.two[byte >> 4] + high;
        if (error < s->best) {
            s->best = error;
            s->row = r;
        }
    }
}

// The first upper byte with the least error among the upper bytes of rows.
static int best_upper(const struct search * s, float * error) {
    const uint16_t * first = s->grid->first;
    const float least = s->high.least_one + s->high.least_two;
    for (int j = 0; j < s->n; j++) {  // usually one of them has the least error of all
        for (int i = 0; s->high.least_one + s->high.two[j] == least && i < s->n; i++) {
            const int u = s->n * j + i;
            if (s->high.one[i] + s->high.two[j] == least && first[u] < first[u + 1]) {
                *error = least;
                return u;
            }
        }
    }
    int best = 0;
    *error = INFINITY;
    for (int u = 0; u < s->n * s->n; u++) {
        const float e = s->high.one[u % s->n] + s->high.two[u / s->n];
        if (first[u] < first[u + 1] && e < *error) {
            *error = e;
            best = u;
        }
    }
    return best;
}

// The row with the least sum of w (x - level)^2, for levels that are already scaled (and shifted).
// The search begins with the best upper half. Then it skips upper halves that, with the best lower
// half, are no better than the best row so far.
static float nearest_row(const struct gb_grid * grid, const float * x, const float * w, const float * levels,
    uint16_t * row) {
    const int half = group_size(grid) / 2;
    struct search s = { .grid = grid, .n = grid->bits == 2 ? 9 : 8, .best = INFINITY };
    struct half low;
    float high;
    half_errors(grid->bits, x, w, levels, &low);
    half_errors(grid->bits, x + half, w + half, levels, &s.high);
    by_bits(grid->bits, &low, &s.low);
    const int start = best_upper(&s, &high);
    s.row = grid->first[start];
    scan_rows(&s, start, high);
    for (int j = 0; j < s.n; j++) {
        if (!(s.low.least + (s.high.least_one + s.high.two[j]) < s.best)) {
            continue;
        }
        for (int i = 0; i < s.n; i++) {
            const float error = s.high.one[i] + s.high.two[j];
            if (s.low.least + error < s.best) {
                scan_rows(&s, s.n * j + i, error);
            }
        }
    }
    *row = (uint16_t) s.row;
    return s.best;
}

struct choice { // for one sub-block
    uint16_t row[MAX_GROUPS];
    int8_t offset[MAX_GROUPS];
    float error;
};

// The best rows of groups first .. first + n - 1 with one offset; adds to the error.
static void choose_rows(const struct gb_grid * grid, const float * x, const float * w, float scale, int offset,
    int first, int n, struct choice * c) {
    const int size = group_size(grid);
    float levels[8];
    for (int l = 0; l < grid->n_levels; l++) {
        levels[l] = scale * (float) (level_of(grid, l) + offset);
    }
    for (int g = first; g < first + n; g++) {
        c->offset[g] = (int8_t) offset;
        c->error += nearest_row(grid, x + g * size, w + g * size, levels, &c->row[g]);
    }
}

// For one scale of the sub-block: the best rows, and the better offset of each part if the format
// has offsets.
static struct choice choose(const struct gb_grid_format * f, const float * x, const float * w, float scale) {
    const int size = group_size(f->grid), n = f->per_scale / size;
    const int step = f->per_offset ? f->per_offset / size : n;
    struct choice c = { .error = 0 };
    for (int g = 0; g < n; g += step) {
        if (f->per_offset == 0) {
            choose_rows(f->grid, x, w, scale, 0, g, step, &c);
            continue;
        }
        struct choice other = c;
        choose_rows(f->grid, x, w, scale, 1, g, step, &c);
        choose_rows(f->grid, x, w, scale, -1, g, step, &other);
        c = other.error < c.error ? other : c;
    }
    return c;
}

// Adds the weighted sums of x v and v v, where v is a level times `factor`.
static void add_sums(const struct gb_grid_format * f, const float * x, const float * w, const struct choice * c,
    float factor, float * wxv, float * wvv) {
    const int size = group_size(f->grid);
    for (int i = 0; i < f->per_scale; i++) {
        const float v = factor * (float) (level_at(f->grid, c->row[i / size], i % size) + c->offset[i / size]);
        *wxv += w[i] * x[i] * v;
        *wvv += w[i] * v * v;
    }
}

// The best scale of a sub-block before rounding. 0 for zeros.
static float fit_scale(const struct gb_grid_format * f, const float * x, const float * w) {
    const float top = (float) level_of(f->grid, f->grid->n_levels - 1);
    const float reach = fabsf(gb_fit_extreme(f->per_scale, x));
    float scale = 0, best = 0;
    for (int t = 0; t < TRIALS && reach > 1e-30f; t++) {
        const float ratio = f->low + (f->high - f->low) * (float) t / (TRIALS - 1);
        const struct choice c = choose(f, x, w, reach / (ratio * top));
        float wxv = 0, wvv = 0;
        add_sums(f, x, w, &c, 1, &wxv, &wvv);
        if (wxv > 0 && wxv * wxv > best * wvv) {
            scale = wxv / wvv;
            best = scale * wxv;
        }
    }
    return scale;
}

// The stored scale near `index` whose best rows are closest, with these rows.
static uint8_t round_scale(const struct gb_grid_format * f, const float * x, const float * w, float base, int index,
    struct choice * c) {
    int best = -1;
    for (int s = GB_MAX(index - 1, 0); s <= GB_MIN(index + 1, f->n_scales - 1); s++) {
        const struct choice trial = choose(f, x, w, base * (float) (2 * s + 1));
        if (best < 0 || trial.error < c->error) {
            best = s;
            *c = trial;
        }
    }
    return (uint8_t) best;
}

// ------------------------------------------------------------------------------------------------- a whole super-block

// Separates magnitudes and signs. If the format needs an even number of negative signs, the element
// where that costs least keeps its sign as a negative magnitude.
static void split_signs(bool even, float * x, const float * w, uint8_t * signs) {
    *signs = 0;
    int odd = 0, cheapest = 0;
    for (int j = 0; j < 8; j++) {
        if (x[j] < 0) {
            *signs = (uint8_t) (*signs | 1 << j);
            odd ^= 1;
        }
        x[j] = fabsf(x[j]);
        if (w[j] * x[j] < w[cheapest] * x[cheapest]) {
            cheapest = j;
        }
    }
    if (even && odd) {
        *signs = (uint8_t) (*signs ^ 1 << cheapest);
        x[cheapest] = -x[cheapest];
    }
}

// d after rounding to f16, limited to its range.
static float store_d(float d) { return gb_f16_to_f32(gb_f32_to_f16(GB_MIN(d, 65504.0f))); }

// Copies the rows and offsets of sub-block `sub` into the super-block.
static void put_choice(const struct gb_grid_format * f, int sub, const struct choice * c, struct gb_grid_block * g) {
    const int size = group_size(f->grid), n = f->per_scale / size;
    for (int i = 0; i < n; i++) {
        g->row[sub * n + i] = c->row[i];
        g->negative[(sub * n + i) * size / 8] = c->offset[i] < 0;
    }
}

// The best rows for d and the current scales. Returns the error.
static float choose_all(const struct gb_grid_format * f, const float * x, const float * w, struct gb_grid_block * g) {
    float error = 0;
    for (int s = 0; s < GB_SUPER / f->per_scale; s++) {
        const int i = s * f->per_scale;
        const struct choice c = choose(f, x + i, w + i, g->d * f->unit * (float) (2 * g->scale[s] + 1));
        put_choice(f, s, &c, g);
        error += c.error;
    }
    return error;
}

// The scales and rows of sub-blocks for one d. Returns the best d for these (d itself if there is
// no other).
static float choose_scales(const struct gb_grid_format * f, const float * x, const float * w, const float * scales,
    float d, struct gb_grid_block * g) {
    const float base = d * f->unit;
    float wxv = 0, wvv = 0;
    struct choice c;
    g->d = d;
    for (int s = 0; s < GB_SUPER / f->per_scale; s++) {
        const int i = s * f->per_scale;
        const int index = gb_fit_round((scales[s] / base - 1) / 2, 0, f->n_scales - 1);
        g->scale[s] = round_scale(f, x + i, w + i, base, index, &c);
        add_sums(f, x + i, w + i, &c, (float) (2 * g->scale[s] + 1), &wxv, &wvv);
        put_choice(f, s, &c, g);
    }
    return wxv > 0 ? wxv / wvv / f->unit : d;
}

// Tries the f16 numbers on both sides of d and keeps the better one.
static void choose_small(const struct gb_grid_format * f, const float * x, const float * w, const float * scales,
    float d, struct gb_grid_block * g) {
    struct gb_grid_block other = *g;
    choose_scales(f, x, w, scales, gb_f16_outward(d), g);
    const float error = choose_all(f, x, w, g), inward = gb_f16_inward(d);
    if (inward > 0) {
        choose_scales(f, x, w, scales, inward, &other);
        if (choose_all(f, x, w, &other) < error) {
            *g = other;
        }
    }
}

// x: magnitudes, or the values of formats with offsets.
static void quantize_levels(const struct gb_grid_format * f, const float * x, const float * w,
    struct gb_grid_block * g) {
    const int n_sub = GB_SUPER / f->per_scale;
    float scales[16];
    for (int s = 0; s < n_sub; s++) {
        scales[s] = fit_scale(f, x + s * f->per_scale, w + s * f->per_scale);
    }
    const float d = gb_k_max(n_sub, scales) / (f->unit * (float) (2 * f->n_scales - 1)), stored = store_d(d);
    if (gb_scale_is_inexact(d, stored, GB_REFITTED)) {
        choose_small(f, x, w, scales, d, g);
    } else if (stored > 0) {
        const float better = choose_scales(f, x, w, scales, stored, g), rounded = store_d(better);
        g->d = gb_scale_is_inexact(better, rounded, GB_REFITTED) ? stored : rounded;
        choose_all(f, x, w, g); // and the best rows for the new d
    }
}

// No row represents zeros, but d = 0 does. Uses zeros if the found rows are no better.
static void compare_with_zeros(const struct gb_grid_format * f, const float * x, const float * importance,
    struct gb_grid_block * g) {
    struct gb_super b;
    float y[GB_SUPER], error = 0, zeros = 0;
    b.affine = false;
    gb_grid_expand(f, g, &b);
    gb_k_dequantize(&b, y);
    for (int e = 0; e < GB_SUPER; e++) {
        const float w = importance != NULL ? importance[e] : 1, d = y[e] - x[e];
        error += w * d * d;
        zeros += w * x[e] * x[e];
    }
    g->d = error <= zeros ? g->d : 0;
}

// Separates signs if the format stores them, searches levels, and compares the result with zeros.
void gb_grid_quantize(const struct gb_grid_format * f, const float * x, const float * importance,
    struct gb_grid_block * g) {
    const float limit = 1e8f;  // more than any format can hold; its square is finite
    float v[GB_SUPER], w[GB_SUPER], values[GB_SUPER];
    memset(g, 0, sizeof(*g));
    for (int e = 0; e < GB_SUPER; e++) {
        v[e] = x[e] == x[e] ? GB_MAX(GB_MIN(x[e], limit), -limit) : 0;
    }
    memcpy(values, v, sizeof(v));
    // Without importances, signed formats with few levels weigh large values more. Otherwise
    // products would be too small.
    gb_k_importance(v, importance, importance == NULL && f->per_offset == 0 ? 0.25f : 1, w);
    for (int e = 0; e < GB_SUPER && importance == NULL && f->grid->bits == 4; e++) {
        w[e] = 1;
    }
    for (int i = 0; i < 32 && f->per_offset == 0; i++) {
        split_signs(f->even_signs, v + 8 * i, w + 8 * i, &g->signs[i]);
    }
    quantize_levels(f, v, w, g);
    compare_with_zeros(f, values, importance, g);
}
