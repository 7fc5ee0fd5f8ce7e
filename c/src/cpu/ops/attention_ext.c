// attention_ext.c - FLASH_ATTN_EXT: attention with grouped heads, a mask, a cap of the scores, and sinks.
//
// A unit of work is a set of rows and a part of the keys. A row is a query of a head. All rows of a
// unit have the same head of keys and the same head of values, so each block of keys and values is
// converted to f32 once for all of them. Softmax is computed block by block: a block adds its
// exponentials, relative to the largest score so far, and its weighted values to the sums of the
// row.
//
// For few rows, dot products read keys in place. For more rows, packing a block into panels pays.
// Keys and values of Q8_0 are read in place for up to BYTE_ROWS rows. The queries are then rounded to
// bytes, as rows of MUL_MAT are, unless the node has GGML_PREC_F32.
//
// If there are few sets of rows, as for one token, the keys are divided into parts. The sums of
// parts go to scratch memory that all threads share, and are combined after a barrier.
//
// A key that the mask hides with -inf has the weight 0, and a value with the weight 0 is not added.
// So a NaN or an infinity in an unused place of a cache has no effect. Blocks that the mask hides
// from all rows are not read.
#include <math.h>

#include "cpu/ops/elements.h"

enum {
    ROWS = 32, // of a set, at most
    FEW = 4, // rows for which packing does not pay
    BYTE_ROWS = 8, // rows for which blocks of Q8_0 are read in place
    KEYS = 128, // of a block
    PART = 1024, // keys of a part, at least
    UNITS = 64, // desired number of units: fewer sets are divided by keys
    PANEL = GB_GEMM_NR_MAX,
};

// Exponentials below exp(LEAST) times the largest one count as 0, because their products may be
// subnormal.
#define LEAST (-70.0f)

struct attention {
    const struct ggml_tensor *q, *k, *v, *mask, *sinks, *node;
    float scale, bias, cap;
    int64_t dk, dv, m, n; // lengths of a key and a value; numbers of keys and queries
    int64_t group, groups; // heads of a set; number of such groups
    int64_t rows, sets; // rows of a group; sets of a group
    int64_t part, parts; // keys of a part; parts
    bool exact; // the queries must not be rounded
};

static int64_t greatest_divisor(int64_t a, int64_t b) {
    while (b != 0) {
        const int64_t rest = a % b;
        a = b;
        b = rest;
    }
    return a;
}

static struct attention attention_of(const struct ggml_tensor * node) {
    struct attention a = {
        .q = node->src[0],
        .k = node->src[1],
        .v = node->src[2],
        .mask = node->src[3],
        .sinks = node->src[4],
        .node = node,
        .scale = gb_op_param_f32(node, 0),
        .bias = gb_op_param_f32(node, 1),
        .cap = gb_op_param_f32(node, 2),
        .exact = gb_op_param_i32(node, 3) == GGML_PREC_F32,
    };
    a.dk = a.q->ne[0];
    a.dv = a.v->ne[0];
    a.n = a.q->ne[1];
    a.m = a.k->ne[1];
    // consecutive heads that share the head of keys and that of values
    a.group = a.k->ne[2] > 0 && a.v->ne[2] > 0 ? greatest_divisor(a.q->ne[2] / a.k->ne[2], a.q->ne[2] / a.v->ne[2]) : 1;
    a.groups = a.q->ne[2] / GB_MAX(a.group, 1);
    a.rows = a.group * a.n;
    a.sets = gb_div_up(a.rows, ROWS);
    const int64_t sets = a.sets * a.groups * a.q->ne[3];
    const int64_t wanted = sets > 0 ? gb_div_up(UNITS, sets) : 1, most = GB_MAX(a.m / PART, (int64_t) 1);
    a.part = gb_div_up(gb_div_up(a.m, GB_MIN(wanted, most)), KEYS) * KEYS;
    a.part = GB_MAX(a.part, (int64_t) KEYS);
    a.parts = GB_MAX(gb_div_up(a.m, a.part), (int64_t) 1);
    return a;
}

static int64_t count_units(const struct attention * a) { return a->sets * a->groups * a->q->ne[3] * a->parts; }

// ------------------------------------------------------------------------------------------------------------- scratch

// Floats of a thread. Panels are padded to whole tiles of any level.
struct sizes {
    int64_t queries, bytes, keys, values, convert, score, mask, out;
};

// A query in bytes: levels, then scales and sums of groups of 32.
static int64_t byte_floats(int64_t dk) { return dk / 4 + 2 * (dk / 32); }

static struct sizes sizes_of(const struct attention * a) {
    const int64_t wide = gb_div_up(a->dv, PANEL) * PANEL, rows = GB_MIN(a->rows, (int64_t) ROWS);
    const bool packed = rows > FEW;
    return (struct sizes){ .queries = rows * a->dk,
        .bytes = a->k->type == GGML_TYPE_Q8_0 ? GB_MIN(rows, (int64_t) BYTE_ROWS) * byte_floats(a->dk) : 0,
        .keys = packed ? KEYS * a->dk : 0,
        .values = packed ? KEYS * wide : 0,
        .convert = (packed ? PANEL : 1) * GB_MAX(GB_MAX(a->dk, a->dv), (int64_t) KEYS),
        .score = rows * KEYS,
        .mask = rows * KEYS,
        .out = rows * wide };
}

static int64_t floats_of(const struct attention * a) {
    const struct sizes s = sizes_of(a);
    return s.queries + s.bytes + s.keys + s.values + s.convert + s.score + s.mask + s.out;
}

// The sums of a row over a part of the keys: the weighted values, the largest score, and the sum of
// exponentials.
static int64_t partial_floats(const struct attention * a) { return a->dv + 3; } // a double takes two

static size_t partials_size(const struct attention * a) {
    const int64_t rows = a->rows * a->groups * a->q->ne[3];
    return a->parts > 1 ? gb_lines((size_t) (rows * a->parts * partial_floats(a)) * sizeof(float)) : 0;
}

struct row {
    int64_t query, head;
    const char * mask; // of the row, or NULL
    float slope, max;
    double sum;
};

// The state of a thread for a unit.
struct unit {
    const struct gb_kernels * k;
    const struct attention * a;
    int64_t i3, group, set, first; // batch, group of heads, set; its first row in the group
    int64_t n, wide; // rows; floats from one row of `out` to the next
    bool packed, byte_keys, byte_values; // blocks are packed; are read in place
    float *queries, *bytes, *keys, *values, *convert, *score, *mask, *out;
    bool seen[KEYS]; // keys of the block that some row sees
    struct row row[ROWS];
};

static void open_scratch(const struct gb_cpu_call * call, const struct attention * a, struct unit * u) {
    const struct sizes s = sizes_of(a);
    *u = (struct unit){ .k = call->k, .a = a, .wide = gb_div_up(a->dv, PANEL) * PANEL };
    u->queries = (float *) (void *) ((char *) call->work + partials_size(a) +
                                     (size_t) call->ith * gb_lines((size_t) floats_of(a) * sizeof(float)));
    u->bytes = u->queries + s.queries;
    u->keys = u->bytes + s.bytes;
    u->values = u->keys + s.keys;
    u->convert = u->values + s.values;
    u->score = u->convert + s.convert;
    u->mask = u->score + s.score;
    u->out = u->mask + s.mask;
}

// -------------------------------------------------------------------------------------------------------------- blocks

// The levels of query i, which the scales follow.
static int8_t * levels_of(const struct unit * u, int64_t i) {
    return (int8_t *) (void *) (u->bytes + i * byte_floats(u->a->dk));
}

static const float * scales_of(const struct unit * u, int64_t i) {
    return u->bytes + i * byte_floats(u->a->dk) + u->a->dk / 4;
}

static void round_query(struct unit * u, int64_t i) {
    const int64_t dk = u->a->dk;
    float * d = u->bytes + i * byte_floats(dk) + dk / 4;
    u->k->quantize_q8(&(struct gb_quantize_q8){
        .k = dk, .step = 1, .q = levels_of(u, i), .d = d, .s = d + dk / 32, .x = u->queries + i * dk });
}

// Sets up the rows of the unit, with scaled queries.
static void open_unit(struct unit * u, int64_t set, int64_t group, int64_t i3) {
    const struct attention * a = u->a;
    const int n_head = (int) GB_MIN(a->q->ne[2], (int64_t) INT32_MAX);
    u->i3 = i3;
    u->group = group;
    u->set = set;
    u->first = set * ROWS;
    u->n = GB_MIN(a->rows - u->first, (int64_t) ROWS);
    u->packed = u->n > FEW;
    u->byte_keys =
        a->k->type == GGML_TYPE_Q8_0 && !a->exact && u->n <= GB_MIN((int64_t) BYTE_ROWS, (int64_t) u->k->q8_0_rows);
    u->byte_values = a->v->type == GGML_TYPE_Q8_0 && u->n <= BYTE_ROWS;
    for (int64_t i = 0; i < u->n; i++) {
        struct row * row = &u->row[i];
        float * q = u->queries + i * a->dk;
        *row = (struct row){ .query = (u->first + i) / a->group, .head = group * a->group + (u->first + i) % a->group };
        row->max = -INFINITY;
        row->slope = a->bias > 0 ? gb_alibi_slope(row->head, n_head, a->bias) : 1;
        if (a->mask != NULL) {
            row->mask = gb_row_ptr(a->mask, row->query, row->head % a->mask->ne[2], i3 % a->mask->ne[3]);
        }
        u->k->scale_f32(a->dk, q, gb_in(u->k, a->q, gb_row_ptr(a->q, row->query, row->head, i3), a->dk, q), a->scale);
        if (u->byte_keys) {
            round_query(u, i);
        }
    }
    memset(u->out, 0, (size_t) (u->n * u->wide) * sizeof(float));
}

// Loads the mask of keys [key0, key0 + n) for all rows, as f32. False: it hides all of them from
// all rows.
static bool look_at_mask(struct unit * u, int64_t key0, int64_t n) {
    const struct ggml_tensor * mask = u->a->mask;
    for (int64_t c = 0; c < n; c++) {
        u->seen[c] = mask == NULL;
    }
    if (mask == NULL) {
        return true;
    }
    bool any = false;
    for (int64_t i = 0; i < u->n; i++) {
        float * m = u->mask + i * KEYS;
        if (i > 0 && u->row[i].mask == u->row[i - 1].mask) { // heads often share a mask
            memcpy(m, m - KEYS, (size_t) n * sizeof(float));
            continue;
        }
        gb_load(u->k, mask->type, n, m, u->row[i].mask + (size_t) key0 * mask->nb[0], mask->nb[0]);
        for (int64_t c = 0; c < n; c++) {
            u->seen[c] |= m[c] != -INFINITY; // NaN is seen
            any |= m[c] != -INFINITY;
        }
    }
    return any;
}

// Where key or value `i` lies.
static const char * place_of(const struct unit * u, const struct ggml_tensor * t, int64_t i) {
    return gb_row_ptr(t, i, u->group * u->a->group / (u->a->q->ne[2] / t->ne[2]), u->i3);
}

// Key or value `i` as f32, in place or converted to buf.
static const float * vector_of(const struct unit * u, const struct ggml_tensor * t, int64_t i, float * buf) {
    return gb_in(u->k, t, place_of(u, t, i), t->ne[0], buf);
}

// c[rows x columns] = or += a b over `depth` terms. b has panels of `panel_depth` terms.
static void product(const struct gb_kernels * k, int64_t depth, const float * a, int64_t lda, int64_t rows,
    const float * b, int64_t panel_depth, int64_t columns, float * c, int64_t stride, bool accumulate) {
    for (int64_t i = 0; i < rows; i += k->gemm_mr) {
        for (int64_t j = 0; j < columns; j += k->gemm_nr) {
            k->gemm_tile_f32(&(struct gb_tile){
                .k = depth,
                .a = a + i * lda,
                .lda = lda,
                .b = b + j * panel_depth,
                .c = c + i * stride + j,
                .ldc = stride,
                .mr = (int) GB_MIN(rows - i, (int64_t) k->gemm_mr),
                .nr = (int) GB_MIN(columns - j, (int64_t) k->gemm_nr),
                .accumulate = accumulate,
            });
        }
    }
}

// Scores of n keys of Q8_0.
static void score_bytes(struct unit * u, int64_t key0, int64_t n) {
    const int8_t * q[BYTE_ROWS];
    const float * d[BYTE_ROWS];
    for (int64_t i = 0; i < u->n; i++) {
        q[i] = levels_of(u, i);
        d[i] = scales_of(u, i);
    }
    u->k->dots_q8_0(&(struct gb_dots_q8_0){
        .k = u->a->dk,
        .n = n,
        .nx = (int) u->n,
        .w = place_of(u, u->a->k, key0),
        .nb_w = u->a->k->nb[1],
        .q = q,
        .dx = d,
        .y = u->score,
        .ldy = KEYS,
    });
}

// The kernel that multiplies rows with keys of a float type in place. NULL: keys must be converted or gathered.
static gb_kernel_rows_columns * rows_columns_of(const struct gb_kernels * k, const struct ggml_tensor * keys) {
    if (keys->nb[0] != ggml_type_size(keys->type)) {
        return NULL;
    }
    return keys->type == GGML_TYPE_F32    ? k->rows_columns_f32
           : keys->type == GGML_TYPE_F16  ? k->rows_columns_f16
           : keys->type == GGML_TYPE_BF16 ? k->rows_columns_bf16
                                          : NULL;
}

static void score_in_place(struct unit * u, gb_kernel_rows_columns * kernel, int64_t key0, int64_t n) {
    const struct attention * a = u->a;
    for (int64_t c = 0; c < n; c += GB_ROWS_W) {
        for (int64_t i = 0; i < u->n; i += u->k->rows_x) {
            kernel(&(struct gb_rows_columns){
                .k = a->dk,
                .nw = (int) GB_MIN(n - c, (int64_t) GB_ROWS_W),
                .nx = (int) GB_MIN(u->n - i, (int64_t) u->k->rows_x),
                .w = place_of(u, a->k, key0 + c),
                .nb_w = a->k->nb[1],
                .x = u->queries + i * a->dk,
                .ldx = (size_t) a->dk,
                .y = u->score + i * KEYS + c,
                .ldy = KEYS,
            });
        }
    }
}

// Scores of n keys for all rows. Scores of keys that no row sees may be anything, because they
// become -inf later.
static void score_block(struct unit * u, int64_t key0, int64_t n) {
    const struct attention * a = u->a;
    if (u->byte_keys) {
        score_bytes(u, key0, n);
        return;
    }
    gb_kernel_rows_columns * const kernel = u->packed ? NULL : rows_columns_of(u->k, a->k);
    if (kernel != NULL) {
        score_in_place(u, kernel, key0, n);
        return;
    }
    if (!u->packed) {
        for (int64_t c = 0; c < n; c++) {
            const float * key = u->seen[c] ? vector_of(u, a->k, key0 + c, u->convert) : NULL;
            for (int64_t i = 0; i < u->n; i++) {
                u->score[i * KEYS + c] = key != NULL ? u->k->dot_f32(a->dk, key, u->queries + i * a->dk) : 0;
            }
        }
        return;
    }
    const int nr = u->k->gemm_nr;
    for (int64_t c = 0; c < n; c += nr) {
        const void * rows[PANEL];
        const int count = (int) GB_MIN(n - c, (int64_t) nr);
        for (int j = 0; j < count; j++) {
            rows[j] = vector_of(u, a->k, key0 + c + j, u->convert + j * a->dk);
        }
        u->k->pack_f32(a->dk, count, nr, u->keys + c * a->dk, rows);
    }
    product(u->k, a->dk, u->queries, a->dk, u->n, u->keys, a->dk, n, u->score, KEYS, false);
}

// Applies cap, mask and exponential to n scores of a row. Scales its sums down if the largest score
// rises.
static void weigh_row(struct unit * u, int64_t i, int64_t n) {
    const struct attention * a = u->a;
    struct row * row = &u->row[i];
    float * s = u->score + i * KEYS;
    const float * m = u->mask + i * KEYS;
    if (a->cap > 0) {
        u->k->scale_f32(n, s, s, 1 / a->cap);
        u->k->tanh_f32(n, s, s);
        u->k->scale_f32(n, s, s, a->cap);
    }
    for (int64_t c = 0; a->mask != NULL && c < n; c++) {
        s[c] = m[c] == -INFINITY ? -INFINITY : s[c] + row->slope * m[c];
    }
    const float most = u->k->max_f32(n, s), max = GB_MAX(row->max, most);
    if (isnan(most) || most == INFINITY) { // the row has no distribution
        row->sum = (double) NAN;
        memset(s, 0, (size_t) n * sizeof(float));
        return;
    }
    if (max == -INFINITY) {
        memset(s, 0, (size_t) n * sizeof(float));
        return;
    }
    if (max > row->max && row->max != -INFINITY) {
        const float apart = row->max - max, less = apart < LEAST ? 0.0f : expf(apart);
        u->k->scale_f32(a->dv, u->out + i * u->wide, u->out + i * u->wide, less);
        row->sum *= (double) less;
    }
    row->max = max;
    row->sum += u->k->exp_sum_f32(n, s, s, max, LEAST);
}

// Adds value `v` of key c to the rows in which it has a weight.
static void add_value(struct unit * u, int64_t c, const float * v) {
    for (int64_t i = 0; i < u->n; i++) {
        const float w = u->score[i * KEYS + c];
        if (w != 0) {
            u->k->mad_f32(u->a->dv, u->out + i * u->wide, v, w);
        }
    }
}

static void add_values(struct unit * u, int64_t key0, int64_t n) {
    const struct attention * a = u->a;
    if (u->byte_values) {
        u->k->weigh_q8_0(&(struct gb_weigh_q8_0){
            .k = a->dv,
            .n = n,
            .nx = (int) u->n,
            .x = place_of(u, a->v, key0),
            .nb_x = a->v->nb[1],
            .w = u->score,
            .ldw = KEYS,
            .y = u->out,
            .ldy = u->wide,
        });
        return;
    }
    const int nr = u->k->gemm_nr;
    for (int64_t c = 0; c < n; c++) {
        const float * v = u->seen[c] ? vector_of(u, a->v, key0 + c, u->convert) : NULL;
        if (!u->packed) {
            if (v != NULL) {
                add_value(u, c, v);
            }
            continue;
        }
        const bool packs = v != NULL && isfinite(u->k->dot_f32(a->dv, v, v));
        if (v != NULL && !packs) { // a product would add 0 times infinity
            add_value(u, c, v);
        }
        for (int64_t j = 0; j < a->dv; j += nr) {
            float * to = u->values + j * n + c * nr;
            const size_t size = (size_t) GB_MIN(a->dv - j, (int64_t) nr) * sizeof(float);
            memset(to, 0, (size_t) nr * sizeof(float));
            if (packs) {
                memcpy(to, v + j, size);
            }
        }
    }
    if (u->packed) {
        product(u->k, n, u->score, KEYS, u->n, u->values, n, a->dv, u->out, u->wide, true);
    }
}

// ---------------------------------------------------------------------------------------------------------------- rows

// Adds the head's sink to the sums. Then the results are the quotients.
static void finish_row(const struct gb_kernels * k, const struct attention * a, struct row * row, float * out,
    int64_t i3) {
    float * y = (float *) (void *) gb_row_ptr(a->node, row->head, row->query, i3);
    double sum = row->sum;
    float less = 1;
    if (a->sinks != NULL) {
        const float sink = gb_get_f32((const char *) a->sinks->data + (size_t) row->head * a->sinks->nb[0]);
        const float max = sink > row->max ? sink : row->max;
        less = row->max == -INFINITY ? 0 : expf(row->max - max);
        sum = sum * (double) less + (max == -INFINITY ? 0 : exp((double) sink - (double) max));
        sum = isnan(sink) ? (double) NAN : sum;
    }
    k->scale_f32(a->dv, y, out, sum != 0 ? (float) ((double) less / sum) : 0.0f);
}

static float * partial_of(const struct gb_cpu_call * call, const struct attention * a, int64_t i3, int64_t group,
    int64_t row, int64_t part) {
    const int64_t number = ((i3 * a->groups + group) * a->rows + row) * a->parts + part;
    return (float *) call->work + number * partial_floats(a);
}

static void close_unit(const struct gb_cpu_call * call, struct unit * u, int64_t part) {
    for (int64_t i = 0; i < u->n; i++) {
        float * out = u->out + i * u->wide;
        if (u->a->parts == 1) {
            finish_row(u->k, u->a, &u->row[i], out, u->i3);
            continue;
        }
        float * to = partial_of(call, u->a, u->i3, u->group, u->first + i, part);
        memcpy(to, out, (size_t) u->a->dv * sizeof(float));
        to[u->a->dv] = u->row[i].max;
        memcpy(to + u->a->dv + 1, &u->row[i].sum, sizeof(double));
    }
}

// Adds the sums of all parts of a row, in their order.
static void combine_row(const struct gb_cpu_call * call, const struct attention * a, int64_t i3, int64_t group,
    int64_t r, float * out) {
    struct row row = { .query = r / a->group, .head = group * a->group + r % a->group, .max = -INFINITY };
    for (int64_t p = 0; p < a->parts; p++) {
        row.max = GB_MAX(row.max, partial_of(call, a, i3, group, r, p)[a->dv]);
    }
    memset(out, 0, (size_t) a->dv * sizeof(float));
    for (int64_t p = 0; p < a->parts; p++) {
        const float * from = partial_of(call, a, i3, group, r, p);
        double sum;
        memcpy(&sum, from + a->dv + 1, sizeof(sum));
        const float apart = from[a->dv] - row.max, weight = from[a->dv] == -INFINITY ? 0.0f : expf(apart);
        if (weight != 0) {
            call->k->mad_f32(a->dv, out, from, weight);
        }
        row.sum += isnan(sum) ? sum : sum * (double) weight;
    }
    finish_row(call->k, a, &row, out, i3);
}

// -------------------------------------------------------------------------------------------------------------- the op

// False: the run is over.
static bool run_unit(const struct gb_cpu_call * call, struct unit * u, int64_t part) {
    const struct attention * a = u->a;
    const int64_t end = GB_MIN((part + 1) * a->part, a->m);
    for (int64_t key0 = part * a->part; key0 < end; key0 += KEYS) {
        const int64_t n = GB_MIN(end - key0, (int64_t) KEYS);
        if (look_at_mask(u, key0, n)) {
            score_block(u, key0, n);
            for (int64_t i = 0; i < u->n; i++) {
                weigh_row(u, i, n);
            }
            add_values(u, key0, n);
        }
        if (gb_cpu_stopped(call, n * (a->dk + a->dv) * (2 + u->n) / 16)) {
            return false;
        }
    }
    close_unit(call, u, part);
    return true;
}

static void run_flash_attn_ext(const struct gb_cpu_call * call, struct ggml_tensor * node) {
    const struct attention a = attention_of(node);
    struct unit u;
    int64_t first, last;
    if (gb_is_empty(node)) {
        return;
    }
    open_scratch(call, &a, &u);
    gb_cpu_share(call, count_units(&a), &first, &last);
    for (int64_t i = first; i < last; i++) {
        const int64_t at = i / a.parts, plane = at / a.sets;
        open_unit(&u, at % a.sets, plane % a.groups, plane / a.groups);
        if (!run_unit(call, &u, i % a.parts)) {
            break;
        }
    }
    if (a.parts == 1 || !gb_cpu_barrier(call)) {
        return;
    }
    gb_cpu_share(call, a.rows * a.groups * a.q->ne[3], &first, &last);
    for (int64_t i = first; i < last; i++) {
        const int64_t plane = i / a.rows;
        combine_row(call, &a, plane / a.groups, plane % a.groups, i % a.rows, u.out);
        if (gb_cpu_stopped(call, a.parts * a.dv / 8)) {
            return;
        }
    }
}

static bool can_be_read(const struct ggml_tensor * t) { return gb_is_float(t->type) || gb_can_load(t); }

static const char * flash_attn_ext_unsupported(const struct ggml_tensor * node) {
    const struct ggml_tensor *mask = node->src[3], *sinks = node->src[4];
    if (!gb_is_float(node->src[0]->type)) {
        return "source 0 must be f32, f16 or bf16";
    }
    if (!can_be_read(node->src[1]) || !can_be_read(node->src[2])) {
        return "sources 1 and 2 must be floats, or quantized with rows of whole blocks";
    }
    if (mask != NULL && mask->type != GGML_TYPE_F32 && mask->type != GGML_TYPE_F16) {
        return "source 3 must be f32 or f16";
    }
    if (sinks != NULL && sinks->type != GGML_TYPE_F32) {
        return "source 4 must be f32";
    }
    return node->type == GGML_TYPE_F32 && node->nb[0] == sizeof(float) ? NULL
                                                                       : "the result must be f32 with dense rows";
}

static size_t flash_attn_ext_work(const struct ggml_tensor * node, int n_tasks) {
    const struct attention a = attention_of(node);
    return partials_size(&a) + gb_floats_size(floats_of(&a), n_tasks);
}

// A multiplication and an addition count as a sixteenth of an element.
static int flash_attn_ext_tasks(const struct ggml_tensor * node, int n_threads) {
    const struct attention a = attention_of(node);
    const double work =
        (double) a.rows * (double) a.groups * (double) a.q->ne[3] * (double) a.m * (double) (a.dk + a.dv) / 16;
    return gb_tasks_for(work, count_units(&a), n_threads);
}

const struct gb_cpu_op gb_cpu_op_flash_attn_ext = {
    .unsupported = flash_attn_ext_unsupported,
    .n_tasks = flash_attn_ext_tasks,
    .work_size = flash_attn_ext_work,
    .run = run_flash_attn_ext,
};
