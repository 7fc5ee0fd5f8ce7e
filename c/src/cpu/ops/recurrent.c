// recurrent.c - SSM_CONV, SSM_SCAN, GATED_DELTA_NET, RWKV_WKV6, RWKV_WKV7, GATED_LINEAR_ATTN.
//
// The rows of a state do not depend on each other. A piece is GB_LANES rows of one head and sequence. A thread computes
// it for all tokens while the piece is in the nearest caches, one row per lane (kernels/contracts/recurrent.h). With
// few tokens, converting the piece to lanes and back does not pay. Rows are then computed one by one, from the old
// state to the new one.
//
// SSM_SCAN with one decay for a head, and GATED_DELTA_NET, compute GB_CHUNK tokens in one pass over the state. What the
// tokens of a chunk do to each other depends on products of their keys. All pieces of a unit share those.
#include <inttypes.h>
#include <math.h>

#include "cpu/ops/elements.h"

enum { FEW_TOKENS = 3, SHORT_ROW = 64 };

// ------------------------------------------------------------------------------------------------------ units, layouts

static inline const float * floats_at(const struct ggml_tensor * t, int64_t i1, int64_t i2, int64_t i3) {
    return (const float *) (const void *) gb_row_ptr(t, i1, i2, i3);
}

// The sources are F32, with dense and aligned rows.
static const char * rows_unsupported(const struct ggml_tensor * node, int n_src) {
    const char * why = gb_need_f32(node, n_src);
    for (int i = 0; i < n_src && why == NULL; i++) {
        const struct ggml_tensor * t = node->src[i];
        if ((t->nb[0] != sizeof(float) && t->ne[0] > 1) || ((t->nb[1] | t->nb[2] | t->nb[3]) % sizeof(float)) != 0) {
            return "rows of sources must be dense";
        }
    }
    return why != NULL || ggml_is_contiguous(node) ? why : "the result must be contiguous";
}

// Views may begin at any byte. False: a source is not aligned, which is reported.
static bool is_aligned(const struct gb_cpu_call * call, const struct ggml_tensor * node) {
    for (int i = 0; i < GGML_MAX_SRC && node->src[i] != NULL; i++) {
        if ((uintptr_t) node->src[i]->data % sizeof(float) != 0) {
            gb_cpu_fail(call, node, GGML_STATUS_INVALID_ARGUMENT, "the data of source %d must be aligned to 4 bytes",
                i);
            return false;
        }
    }
    return true;
}

// Rows [first, first + n) of a state, each of `size` elements.
struct piece {
    int64_t head, sequence, first, n;
};

static struct piece piece_at(int64_t u, int64_t rows, int64_t heads) {
    const int64_t pieces = gb_div_up(rows, GB_LANES), head = u / pieces;
    const int64_t first = u % pieces * GB_LANES;
    return (struct piece){ head % heads, head / heads, first, GB_MIN(rows - first, (int64_t) GB_LANES) };
}

// Converts rows of a state to lanes and back. Lanes beyond the last row are 0.
static void to_lanes(const struct gb_cpu_call * call, float * s, const float * rows, int64_t n, int64_t size) {
    if (n < GB_LANES) {
        memset(s, 0, (size_t) size * GB_LANES * sizeof(float));
    }
    call->k->transpose_32(n, size, (uint32_t *) (void *) s, GB_LANES * sizeof(float),
        (const uint32_t *) (const void *) rows, (size_t) size * sizeof(float));
}

static void from_lanes(const struct gb_cpu_call * call, float * rows, const float * s, int64_t n, int64_t size) {
    call->k->transpose_32(size, n, (uint32_t *) (void *) rows, (size_t) size * sizeof(float),
        (const uint32_t *) (const void *) s, GB_LANES * sizeof(float));
}

// Puts n values into lanes. The remaining lanes get 0.
static void lanes_of(float * lanes, const float * values, int64_t n) {
    memset(lanes, 0, GB_LANES * sizeof(float));
    memcpy(lanes, values, (size_t) n * sizeof(float));
}

// ------------------------------------------------------------------------------------------------------------ SSM_CONV

// Row (t, s) of the result has all channels. A piece of channels is laid out with one channel per lane.
static void conv_piece(const struct gb_cpu_call * call, struct ggml_tensor * node, int64_t sequence, int64_t first,
    float * scratch) {
    const struct ggml_tensor *sx = node->src[0], *c = node->src[1];
    const int64_t width = c->ne[0], n = GB_MIN(node->ne[0] - first, (int64_t) GB_LANES), tokens = node->ne[1];
    float *kernel = scratch, *x = scratch + width * GB_LANES;
    call->k->transpose_32(n, width, (uint32_t *) (void *) kernel, GB_LANES * sizeof(float),
        (const uint32_t *) (const void *) floats_at(c, first, 0, 0), c->nb[1]);
    for (int64_t t0 = 0; t0 < tokens; t0 += GB_LANES) { // as many outputs at a time
        const int64_t m = GB_MIN(tokens - t0, (int64_t) GB_LANES);
        const float * from = floats_at(sx, first, sequence, 0) + t0;
        call->k->transpose_32(n, m + width - 1, (uint32_t *) (void *) x, GB_LANES * sizeof(float),
            (const uint32_t *) (const void *) from, sx->nb[1]);
        for (int64_t t = 0; t < m; t++) {
            float * y = (float *) (void *) gb_row_ptr(node, t0 + t, sequence, 0) + first;
            call->k->mul_f32(n, y, x + t * GB_LANES, kernel);
            for (int64_t k = 1; k < width; k++) {
                float product[GB_LANES];
                call->k->mul_f32(n, product, x + (t + k) * GB_LANES, kernel + k * GB_LANES);
                call->k->add_f32(n, y, y, product);
            }
        }
        if (gb_cpu_stopped(call, m * width * 16)) {
            return;
        }
    }
}

static void run_ssm_conv(const struct gb_cpu_call * call, struct ggml_tensor * node) {
    if (!is_aligned(call, node)) {
        return;
    }
    const int64_t pieces = gb_div_up(node->ne[0], GB_LANES), width = node->src[1]->ne[0];
    float * scratch = gb_my_floats(call, (2 * width + GB_LANES) * GB_LANES);
    int64_t first, last;
    gb_cpu_share(call, pieces * node->ne[2], &first, &last);
    for (int64_t u = first; u < last; u++) {
        conv_piece(call, node, u / pieces, u % pieces * GB_LANES, scratch);
        if (gb_cpu_stopped(call, 1)) {
            return;
        }
    }
}

static const char * ssm_conv_unsupported(const struct ggml_tensor * node) { return rows_unsupported(node, 2); }

static int ssm_conv_tasks(const struct ggml_tensor * node, int n_threads) {
    return gb_tasks_for((double) gb_count(node) * (double) node->src[1]->ne[0] / 2,
        gb_div_up(node->ne[0], GB_LANES) * node->ne[2], n_threads);
}

static size_t ssm_conv_work(const struct ggml_tensor * node, int n_tasks) {
    return gb_floats_size((2 * node->src[1]->ne[0] + GB_LANES) * GB_LANES, n_tasks);
}

// -------------------------------------------------------------------------------------------------------------- chunks

enum { UNIT_PIECES = 2 }; // maximum number of pieces of a unit, whose states stay in the nearest cache

// Pieces of a unit, if `lists` lists have `pieces` pieces each. Threads get several units, so that they end together.
static int64_t unit_pieces(int64_t pieces, int64_t lists, int n_threads) {
    return GB_MAX((int64_t) 1, GB_MIN((int64_t) UNIT_PIECES, GB_MIN(pieces, pieces * lists / (4 * n_threads))));
}

// Tokens of the chunk that begins at token t. A chunk ends with each state that is kept.
static int chunk_size(int64_t t, int64_t tokens, int64_t n_states) {
    const int64_t until = GB_MAX(tokens - n_states + 1, t + 1); // tokens before the first kept state
    return (int) GB_MIN((int64_t) GB_CHUNK, GB_MIN(until, tokens) - t);
}

// Rows of GB_CHUNK tokens, `ld` floats apart.
struct token_rows {
    const float * p;
    int64_t ld;
};

// The rows of n tokens of t, from row (i1, first, i3) on. Fewer than GB_CHUNK are copied to `copy`, with zeros behind.
static struct token_rows rows_of_chunk(const struct ggml_tensor * t, int64_t i1, int64_t first, int64_t i3, int n,
    float * copy) {
    const int64_t size = t->ne[0];
    if (n == GB_CHUNK) {
        return (struct token_rows){ floats_at(t, i1, first, i3), (int64_t) (t->nb[2] / sizeof(float)) };
    }
    memset(copy, 0, (size_t) (GB_CHUNK * size) * sizeof(float));
    for (int i = 0; i < n; i++) {
        memcpy(copy + i * size, floats_at(t, i1, first + i, i3), (size_t) size * sizeof(float));
    }
    return (struct token_rows){ copy, size };
}

// y[t][i] = row t of x times row i of k, for nx and n rows of `size` floats
static void products_of_rows(const struct gb_cpu_call * call, int64_t size, struct token_rows x, int nx,
    struct token_rows k, int n, float (*y)[GB_CHUNK]) {
    static_assert(GB_CHUNK <= GB_ROWS_W, "the columns of a call");
    for (int t = 0; t < nx; t += call->k->rows_x) {
        call->k->rows_columns_f32(&(struct gb_rows_columns){
            .k = size,
            .nw = n,
            .nx = GB_MIN(nx - t, call->k->rows_x),
            .w = k.p,
            .nb_w = (size_t) k.ld * sizeof(float),
            .x = x.p + t * x.ld,
            .ldx = (size_t) x.ld,
            .y = y[t],
            .ldy = GB_CHUNK,
        });
    }
}

// ------------------------------------------------------------------------------------------------------------ SSM_SCAN

// The rows of all heads of a group count as one list: row p of head h is p + P h, in x and in the
// state.
struct scan {
    const struct ggml_tensor *s, *x, *dt, *A, *B, *C;
    int64_t size, width, heads, groups, tokens, sequences, n_states; // N, P, H, G, T, S, K
    int64_t group_rows; // of a group
    float *y, *states; // of the result
    // scratch: the states of a unit, or of a piece and then A laid out alike; decays of a row; rows of two chunks
    float *lanes, *decay, *rows;
    bool dense_x; // rows of x follow each other
    int64_t unit; // pieces of a unit
};

static int64_t scan_floats(int64_t size) { return (UNIT_PIECES * GB_LANES + 1 + 2 * 2 * GB_CHUNK) * size; }

static int64_t scan_pieces(const struct scan * a) { return gb_div_up(a->group_rows, GB_LANES); } // of a group

static struct scan scan_of(const struct gb_cpu_call * call, const struct ggml_tensor * node, int n_threads) {
    struct scan a = { .s = node->src[0],
        .x = node->src[1],
        .dt = node->src[2],
        .A = node->src[3],
        .B = node->src[4],
        .C = node->src[5] };
    a.size = a.s->ne[0], a.width = a.s->ne[1], a.heads = a.s->ne[2], a.groups = a.B->ne[1];
    a.tokens = a.x->ne[2], a.sequences = a.x->ne[3], a.n_states = gb_op_param_i32(node, 0);
    a.group_rows = a.groups > 0 ? a.heads / a.groups * a.width : 0;
    a.dense_x = a.x->nb[1] == (size_t) a.width * sizeof(float);
    a.y = (float *) node->data;
    a.states = a.y + gb_count(a.x);
    a.unit = unit_pieces(scan_pieces(&a), a.groups * a.sequences, n_threads);
    if (call != NULL) {
        a.lanes = gb_my_floats(call, scan_floats(a.size));
        a.decay = a.lanes + UNIT_PIECES * GB_LANES * a.size;
        a.rows = a.decay + a.size;
    }
    return a;
}

static int64_t scan_units(const struct scan * a) {
    return gb_div_up(scan_pieces(a), a->unit) * a->groups * a->sequences;
}

// The rows of a piece: the heads that have them, and the place of the first row in its head.
struct scan_piece {
    struct piece p; // of the group
    int64_t row, head, first, n_heads;
};

// Piece u of all groups and sequences.
static struct scan_piece scan_piece_at(const struct scan * a, int64_t u) {
    struct scan_piece s = { .p = piece_at(u, a->group_rows, a->groups) };
    s.row = s.p.head * a->group_rows + s.p.first;
    s.head = s.row / a->width;
    s.first = s.row % a->width;
    s.n_heads = (s.row + s.p.n - 1) / a->width - s.head + 1;
    return s;
}

// Computes d = softplus(dt) and d x of the rows.
static void scan_lanes(const struct gb_cpu_call * call, const struct scan * a, const struct scan_piece * s,
    int64_t token, float * d, float * dx) {
    float step[GB_LANES];
    const float * x = floats_at(a->x, s->head, token, s->p.sequence) + s->first;
    call->k->softplus_f32(s->n_heads, step, floats_at(a->dt, token, s->p.sequence, 0) + s->head);
    if (a->width == 1 && a->dense_x) { // every row is a head
        memcpy(d, step, (size_t) s->p.n * sizeof(float));
        call->k->mul_f32(s->p.n, dx, step, x);
        return;
    }
    for (int64_t i = 0, h = 0, first = s->first; i < s->p.n; h++, first = 0) {
        const int64_t end = GB_MIN(i + a->width - first, s->p.n);
        const float * row = a->dense_x ? x + i : floats_at(a->x, s->head + h, token, s->p.sequence) + first;
        for (const int64_t start = i; i < end; i++) {
            d[i] = step[h];
            dx[i] = step[h] * row[i - start];
        }
    }
}

// The place of the state after this token, if it is kept.
static float * slot_of(const struct scan * a, int64_t token, int64_t sequence) {
    const int64_t r = a->tokens - 1 - token, whole = a->size * a->width * a->heads;
    return r < a->n_states ? a->states + (r * a->sequences + sequence) * whole : NULL;
}

// States before the first token are the initial state of the sequence.
static void keep_first_scan(const struct scan * a, const struct scan_piece * s, const float * from) {
    const int64_t whole = a->size * a->width * a->heads;
    for (int64_t r = a->tokens; r < a->n_states; r++) {
        float * slot = a->states + (r * a->sequences + s->p.sequence) * whole + s->row * a->size;
        memcpy(slot, from, (size_t) (s->p.n * a->size) * sizeof(float));
    }
}

// Row by row, for few tokens. from: the first row of the piece
static void scan_rows(const struct gb_cpu_call * call, const struct scan * a, const struct scan_piece * s,
    const float * from) {
    const struct piece * p = &s->p;
    for (int64_t t = 0; t < a->tokens; t++) {
        float d[GB_LANES], dx[GB_LANES];
        float * slot = slot_of(a, t, p->sequence);
        float * to = slot != NULL ? slot + s->row * a->size : a->lanes;
        scan_lanes(call, a, s, t, d, dx);
        for (int64_t i = 0; i < p->n; i++) {
            const int64_t h = (s->row + i) / a->width, at = i * a->size;
            const float * A = floats_at(a->A, h, 0, 0);
            const float w = a->A->ne[0] == 1 ? expf(d[i] * A[0]) : 0;
            if (a->A->ne[0] != 1) {
                call->k->scale_f32(a->size, a->decay, A, d[i]);
                call->k->exp_f32(a->size, a->decay, a->decay);
            }
            a->y[(t + a->tokens * p->sequence) * a->width * a->heads + s->row + i] =
                call->k->state_row_f32(a->size, to + at, from + at, w, a->A->ne[0] == 1 ? NULL : a->decay,
                    floats_at(a->B, p->head, t, p->sequence), dx[i], floats_at(a->C, p->head, t, p->sequence));
        }
        from = to;
    }
}

// One token at a time, because each element of the state has a decay of its own.
static void scan_each(const struct gb_cpu_call * call, const struct scan * a, const struct scan_piece * s,
    const float * from) {
    const struct piece * p = &s->p;
    float * factors = a->lanes + GB_LANES * a->size;
    memset(factors, 0, (size_t) (GB_LANES * a->size) * sizeof(float));
    for (int64_t i = 0; i < p->n; i++) {
        const float * A = floats_at(a->A, (s->row + i) / a->width, 0, 0);
        for (int64_t j = 0; j < a->size; j++) {
            factors[j * GB_LANES + i] = A[j];
        }
    }
    to_lanes(call, a->lanes, from, p->n, a->size);
    for (int64_t t = 0; t < a->tokens; t++) {
        float d[GB_LANES] = { 0 }, dx[GB_LANES] = { 0 }, y[GB_LANES];
        scan_lanes(call, a, s, t, d, dx);
        call->k->lanes_scan_f32(a->size, y, a->lanes, factors, d, floats_at(a->B, p->head, t, p->sequence), dx,
            floats_at(a->C, p->head, t, p->sequence));
        memcpy(a->y + (t + a->tokens * p->sequence) * a->width * a->heads + s->row, y, (size_t) p->n * sizeof(float));
        float * slot = slot_of(a, t, p->sequence);
        if (slot != NULL) {
            from_lanes(call, slot + s->row * a->size, a->lanes, p->n, a->size);
        }
        if (gb_cpu_stopped(call, a->size * 60)) {
            return;
        }
    }
}

// What all pieces of a group share.
struct scan_chunk {
    int64_t first;
    int n;
    struct token_rows b, c;
    float products[GB_CHUNK][GB_CHUNK];
};

static struct scan_chunk scan_chunk_at(const struct gb_cpu_call * call, const struct scan * a, const struct piece * p,
    int64_t first, float * rows) {
    struct scan_chunk c = { .first = first, .n = chunk_size(first, a->tokens, a->n_states) };
    c.b = rows_of_chunk(a->B, p->head, first, p->sequence, c.n, rows);
    c.c = rows_of_chunk(a->C, p->head, first, p->sequence, c.n, rows + GB_CHUNK * a->size);
    products_of_rows(call, a->size, c.c, c.n, c.b, c.n, c.products);
    return c;
}

// A piece on its way through the chunks.
struct scan_state {
    struct scan_piece at;
    float *lanes, factors[GB_LANES]; // the state; A of each row
    float y[GB_CHUNK][GB_LANES]; // of the next chunk, over this state
};

static void open_scan(const struct gb_cpu_call * call, const struct scan * a, struct scan_state * s, int64_t u,
    const float * states, const struct scan_chunk * c) {
    s->at = scan_piece_at(a, u);
    memset(s->factors, 0, sizeof(s->factors));
    for (int64_t i = 0; i < s->at.p.n; i++) {
        s->factors[i] = *floats_at(a->A, (s->at.row + i) / a->width, 0, 0);
    }
    to_lanes(call, s->lanes, states + s->at.row * a->size, s->at.p.n, a->size);
    for (int t = 0; t < c->n; t++) {
        call->k->lanes_dot_f32(a->size, s->y[t], s->lanes, c->c.p + t * c->c.ld);
    }
}

// next: NULL after the last chunk
static void scan_chunk(const struct gb_cpu_call * call, const struct scan * a, struct scan_state * s,
    const struct scan_chunk * c, const struct scan_chunk * next) {
    const struct piece * p = &s->at.p;
    float w[GB_CHUNK][GB_LANES] = { { 0 } }, u[GB_CHUNK][GB_LANES] = { { 0 } }, all[GB_LANES];
    for (int t = 0; t < c->n; t++) {
        scan_lanes(call, a, &s->at, c->first + t, w[t], u[t]);
        call->k->mul_f32(GB_LANES, w[t], w[t], s->factors);
    }
    call->k->exp_f32(c->n * GB_LANES, w[0], w[0]);
    call->k->lanes_tokens_f32(&(struct gb_lanes_tokens){
        .n = c->n, .w = w[0], .kr = c->products, .u = u[0], .y = s->y[0], .all = all });
    for (int t = 0; t < c->n; t++) {
        float * y = a->y + (c->first + t + a->tokens * p->sequence) * a->width * a->heads + s->at.row;
        memcpy(y, s->y[t], (size_t) p->n * sizeof(float));
    }
    call->k->lanes_pass_f32(a->size, s->lanes,
        &(struct gb_lanes_pass){ .w = all,
            .u = u[0],
            .k = c->b.p,
            .ldk = c->b.ld,
            .a = next != NULL ? next->c.p : NULL,
            .lda = next != NULL ? next->c.ld : 0,
            .f = s->y[0] });
    float * slot = slot_of(a, c->first + c->n - 1, p->sequence);
    if (slot != NULL) {
        from_lanes(call, slot + s->at.row * a->size, s->lanes, p->n, a->size);
    }
}

// n pieces of a group, from piece u on. states: of the sequence
static void scan_chunks(const struct gb_cpu_call * call, const struct scan * a, int64_t u, int64_t n,
    const float * states) {
    struct scan_state s[UNIT_PIECES];
    const struct piece p = scan_piece_at(a, u).p;
    struct scan_chunk c[2] = { scan_chunk_at(call, a, &p, 0, a->rows) };
    for (int64_t i = 0; i < n; i++) {
        s[i].lanes = a->lanes + i * GB_LANES * a->size;
        open_scan(call, a, &s[i], u + i, states, &c[0]);
    }
    for (int now = 0; c[now].n > 0; now = 1 - now) {
        const int64_t t = c[now].first + c[now].n;
        struct scan_chunk * next = &c[1 - now];
        next->n = 0;
        if (t < a->tokens) {
            *next = scan_chunk_at(call, a, &p, t, a->rows + (1 - now) * 2 * GB_CHUNK * a->size);
        }
        for (int64_t i = 0; i < n; i++) {
            scan_chunk(call, a, &s[i], &c[now], next->n > 0 ? next : NULL);
        }
        if (gb_cpu_stopped(call, n * a->size * 16)) {
            return;
        }
    }
}

static void scan_unit(const struct gb_cpu_call * call, const struct scan * a, int64_t u, int64_t n,
    const float * states) {
    const bool chunks = a->A->ne[0] == 1 && a->tokens > FEW_TOKENS;
    for (int64_t i = 0; i < n; i++) {
        const struct scan_piece s = scan_piece_at(a, u + i);
        const float * from = states + s.row * a->size;
        keep_first_scan(a, &s, from);
        if (a->tokens <= FEW_TOKENS && (a->size >= SHORT_ROW || a->A->ne[0] == 1)) {
            scan_rows(call, a, &s, from);
        } else if (!chunks) {
            scan_each(call, a, &s, from);
        }
        if (gb_cpu_stopped(call, a->size * s.p.n / 4)) {
            return;
        }
    }
    if (chunks) {
        scan_chunks(call, a, u, n, states);
    }
}

// A unit's group takes the place of a head, because B and C belong to the group.
static void run_ssm_scan(const struct gb_cpu_call * call, struct ggml_tensor * node) {
    if (!is_aligned(call, node)) {
        return;
    }
    const struct scan a = scan_of(call, node, call->nth);
    const struct ggml_tensor * ids = node->src[6];
    int64_t first, last;
    gb_cpu_share(call, scan_units(&a), &first, &last);
    for (int64_t u = first; u < last; u++) {
        const int64_t pieces = scan_pieces(&a), units = gb_div_up(pieces, a.unit);
        const int64_t list = u / units, begin = u % units * a.unit, sequence = list / a.groups;
        const int32_t id = gb_get_i32((const char *) ids->data + (size_t) sequence * ids->nb[0]);
        if (id < 0 || id >= a.s->ne[3]) {
            gb_cpu_fail(call, node, GGML_STATUS_INVALID_ARGUMENT,
                "index %" PRId32 " at " GB_QUOTE("[%" PRId64 "]") " of ids is out of range 0..%" PRId64, id, sequence,
                a.s->ne[3] - 1);
            return;
        }
        scan_unit(call, &a, list * pieces + begin, GB_MIN(a.unit, pieces - begin), floats_at(a.s, 0, 0, id));
        if (gb_cpu_stopped(call, 1)) {
            return;
        }
    }
}

static const char * ssm_scan_unsupported(const struct ggml_tensor * node) {
    const char * why = rows_unsupported(node, 6);
    if (why != NULL) {
        return why;
    }
    if (node->src[6]->type != GGML_TYPE_I32) {
        return "source 6 must be i32";
    }
    if (!ggml_is_contiguous(node->src[0]) || !ggml_is_contiguous(node->src[2]) || !ggml_is_contiguous(node->src[3])) {
        return "sources 0, 2 and 3 must be contiguous";
    }
    return gb_op_param_i32(node, 0) < 1 ? "no state is kept" : NULL;
}

static int ssm_scan_tasks(const struct ggml_tensor * node, int n_threads) {
    const struct scan a = scan_of(NULL, node, n_threads);
    const double elements = (double) gb_count(a.x) * (double) a.size / 4 + (double) (gb_count(node) - gb_count(a.x));
    return gb_tasks_for(elements, scan_units(&a), n_threads);
}

static size_t ssm_scan_work(const struct ggml_tensor * node, int n_tasks) {
    return gb_floats_size(scan_floats(node->src[0]->ne[0]), n_tasks);
}

// ----------------------------------------------------------------------------------------------------- GATED_DELTA_NET

// Row j of a state has the keys of value j.
struct delta {
    const struct ggml_tensor *q, *k, *v, *g, *beta;
    int64_t size, heads, tokens, sequences, n_states;
    const float * from; // the states that sequences start from
    float *y, *states;
    float *lanes, *rows; // scratch: the states of a unit; rows of two chunks
    float share; // 1 / sqrt(size)
    int64_t unit; // pieces of a unit
};

enum { DELTA_ROWS = 3 * GB_CHUNK + 2 }; // of a chunk

static int64_t delta_floats(int64_t size) { return (UNIT_PIECES * GB_LANES + 2 * DELTA_ROWS) * size; }

static struct delta delta_of(const struct gb_cpu_call * call, const struct ggml_tensor * node) {
    const struct ggml_tensor * v = node->src[2];
    struct delta a = { .q = node->src[0], .k = node->src[1], .v = v, .g = node->src[3], .beta = node->src[4] };
    a.size = v->ne[0], a.heads = v->ne[1], a.tokens = v->ne[2], a.sequences = v->ne[3];
    a.n_states = gb_op_param_i32(node, 0);
    a.from = (const float *) node->src[5]->data;
    a.y = (float *) node->data;
    a.states = a.y + gb_count(v);
    a.lanes = gb_my_floats(call, delta_floats(a.size));
    a.rows = a.lanes + UNIT_PIECES * GB_LANES * a.size;
    a.unit = unit_pieces(gb_div_up(a.size, GB_LANES), a.heads * a.sequences, call->nth);
    a.share = 1.0f / sqrtf((float) a.size);
    return a;
}

static int64_t delta_head(const struct delta * a, const struct piece * p) { return p->head % a->q->ne[1]; } // of q, k

static int64_t delta_sequence(const struct delta * a, const struct piece * p) {
    return p->sequence / (a->sequences / a->q->ne[3]);
}

static float beta_of(const struct delta * a, const struct piece * p, int64_t t) {
    return *floats_at(a->beta, p->head, t, p->sequence);
}

static float * delta_out(const struct delta * a, const struct piece * p, int64_t t) {
    return a->y + ((p->sequence * a->tokens + t) * a->heads + p->head) * a->size + p->first;
}

// The rows of the piece in the state r tokens before the end.
static float * delta_state(const struct delta * a, const struct piece * p, int64_t r) {
    return a->states + (((r * a->sequences + p->sequence) * a->heads + p->head) * a->size + p->first) * a->size;
}

// The same after this token, if that state is kept.
static float * delta_slot(const struct delta * a, const struct piece * p, int64_t t) {
    const int64_t r = a->tokens - 1 - t;
    return r >= a->n_states ? NULL : delta_state(a, p, r);
}

// Row by row, for few tokens.
static void delta_rows(const struct gb_cpu_call * call, const struct delta * a, const struct piece * p,
    const float * from) {
    float *keys = a->rows, *gates = keys + a->size;
    for (int64_t t = 0; t < a->tokens; t++) {
        const int64_t head = delta_head(a, p), sequence = delta_sequence(a, p);
        const float *g = floats_at(a->g, p->head, t, p->sequence), *k = floats_at(a->k, head, t, sequence);
        const bool one = a->g->ne[0] == 1; // also if a state has one key
        const float gate = one ? expf(g[0]) : 1, beta = beta_of(a, p, t);
        if (!one) {
            call->k->exp_f32(a->size, gates, g);
            call->k->mul_f32(a->size, keys, gates, k);
        }
        const float * v = floats_at(a->v, p->head, t, p->sequence) + p->first;
        float *y = delta_out(a, p, t), *slot = delta_slot(a, p, t), *to = slot != NULL ? slot : a->lanes;
        for (int64_t i = 0; i < p->n; i++) {
            const float * s = from + i * a->size;
            const float found = gate * call->k->dot_f32(a->size, s, one ? k : keys);
            y[i] = a->share * call->k->state_row_f32(a->size, to + i * a->size, s, gate, one ? NULL : gates, k,
                                  beta * (v[i] - found), floats_at(a->q, head, t, sequence));
        }
        from = to;
    }
}

// Data of a chunk that all pieces of a head share. If each key has its own gate, the rows include decays. If all keys
// have the same gate, lanes_tokens applies the decays.
struct delta_chunk {
    int64_t first;
    int n;
    struct token_rows k; // keys, with the decays of later tokens of the chunk
    struct token_rows a, r; // keys and queries, with the decays of the tokens up to theirs
    const float * decay; // of each key over the chunk; NULL if all keys have the same gate
    float gates[GB_CHUNK][GB_LANES]; // of the tokens, if all keys have the same gate
    float beta[GB_CHUNK];
    float kk[GB_CHUNK][GB_CHUNK], kr[GB_CHUNK][GB_CHUNK]; // products of keys and queries with the rows of k
};

// A gate for each key. rows: DELTA_ROWS
static void decay_chunk(const struct gb_cpu_call * call, const struct delta * a, const struct piece * p,
    struct delta_chunk * c, float * rows) {
    const int64_t n = a->size;
    float *ks = rows, *as = ks + GB_CHUNK * n, *rs = as + GB_CHUNK * n, *decay = rs + GB_CHUNK * n, *gate = decay + n;
    memset(rows, 0, (size_t) (3 * GB_CHUNK * n) * sizeof(float));
    c->k = (struct token_rows){ ks, n };
    c->a = (struct token_rows){ as, n };
    c->r = (struct token_rows){ rs, n };
    c->decay = decay;
    for (int t = 0; t < c->n; t++) {
        const int64_t head = delta_head(a, p), sequence = delta_sequence(a, p), at = c->first + t;
        const float *k = floats_at(a->k, head, at, sequence), *q = floats_at(a->q, head, at, sequence);
        call->k->exp_f32(n, gate, floats_at(a->g, p->head, at, p->sequence));
        for (int i = 0; i < t; i++) {
            call->k->mul_f32(n, ks + i * n, ks + i * n, gate);
        }
        if (t == 0) {
            memcpy(decay, gate, (size_t) n * sizeof(float));
        } else {
            call->k->mul_f32(n, decay, decay, gate);
        }
        memcpy(ks + t * n, k, (size_t) n * sizeof(float));
        call->k->mul_f32(n, as + t * n, k, decay);
        call->k->mul_f32(n, rs + t * n, q, decay);
        products_of_rows(call, n, (struct token_rows){ k, 0 }, 1, c->k, t + 1, c->kk + t);
        products_of_rows(call, n, (struct token_rows){ q, 0 }, 1, c->k, t + 1, c->kr + t);
    }
}

// The same gate for all keys.
static void gate_chunk(const struct gb_cpu_call * call, const struct delta * a, const struct piece * p,
    struct delta_chunk * c, float * rows) {
    const int64_t head = delta_head(a, p), sequence = delta_sequence(a, p);
    c->k = c->a = rows_of_chunk(a->k, head, c->first, sequence, c->n, rows);
    c->r = rows_of_chunk(a->q, head, c->first, sequence, c->n, rows + GB_CHUNK * a->size);
    c->decay = NULL;
    products_of_rows(call, a->size, c->k, c->n, c->k, c->n, c->kk);
    products_of_rows(call, a->size, c->r, c->n, c->k, c->n, c->kr);
    for (int t = 0; t < c->n; t++) {
        const float gate = expf(*floats_at(a->g, p->head, c->first + t, p->sequence));
        for (int i = 0; i < GB_LANES; i++) {
            c->gates[t][i] = gate;
        }
    }
}

static void open_delta_chunk(const struct gb_cpu_call * call, const struct delta * a, const struct piece * p,
    int64_t first, float * rows, struct delta_chunk * c) {
    c->first = first;
    c->n = chunk_size(first, a->tokens, a->n_states);
    for (int t = 0; t < c->n; t++) {
        c->beta[t] = beta_of(a, p, first + t);
    }
    if (a->g->ne[0] == 1) { // also if a state has one key
        gate_chunk(call, a, p, c, rows);
    } else {
        decay_chunk(call, a, p, c, rows);
    }
}

// A piece on its way through the chunks: its state, and the sums of the next chunk over it.
struct delta_piece {
    struct piece at;
    float * lanes;
    float f[GB_CHUNK][GB_LANES], y[GB_CHUNK][GB_LANES];
};

static void open_delta(const struct gb_cpu_call * call, const struct delta * a, struct delta_piece * s,
    const struct delta_chunk * c) {
    const struct piece * p = &s->at;
    to_lanes(call, s->lanes, a->from + ((p->sequence * a->heads + p->head) * a->size + p->first) * a->size, p->n,
        a->size);
    for (int t = 0; t < c->n; t++) {
        call->k->lanes_dot_f32(a->size, s->f[t], s->lanes, c->a.p + t * c->a.ld);
        call->k->lanes_dot_f32(a->size, s->y[t], s->lanes, c->r.p + t * c->r.ld);
    }
}

// next: NULL after the last chunk
static void delta_chunk(const struct gb_cpu_call * call, const struct delta * a, struct delta_piece * s,
    const struct delta_chunk * c, const struct delta_chunk * next) {
    const struct piece * p = &s->at;
    float u[GB_CHUNK][GB_LANES], all[GB_LANES];
    for (int t = 0; t < c->n; t++) {
        lanes_of(u[t], floats_at(a->v, p->head, c->first + t, p->sequence) + p->first, p->n);
    }
    call->k->lanes_tokens_f32(&(struct gb_lanes_tokens){ .n = c->n,
        .w = c->decay == NULL ? c->gates[0] : NULL,
        .beta = c->beta,
        .kk = c->kk,
        .kr = c->kr,
        .f = s->f[0],
        .u = u[0],
        .y = s->y[0],
        .all = all });
    for (int t = 0; t < c->n; t++) {
        float * out = delta_out(a, p, c->first + t);
        for (int64_t i = 0; i < p->n; i++) {
            out[i] = a->share * s->y[t][i];
        }
    }
    struct gb_lanes_pass pass = { .wv = c->decay, .w = all, .u = u[0], .k = c->k.p, .ldk = c->k.ld };
    if (next != NULL) {
        pass.a = next->a.p;
        pass.lda = next->a.ld;
        pass.r = next->r.p;
        pass.ldr = next->r.ld;
        pass.f = s->f[0];
        pass.y = s->y[0];
    }
    call->k->lanes_pass_f32(a->size, s->lanes, &pass);
    float * slot = delta_slot(a, p, c->first + c->n - 1);
    if (slot != NULL) {
        from_lanes(call, slot, s->lanes, p->n, a->size);
    }
}

// n pieces of a head, from piece u on.
static void delta_chunks(const struct gb_cpu_call * call, const struct delta * a, int64_t u, int64_t n) {
    struct delta_piece s[UNIT_PIECES];
    struct delta_chunk c[2];
    const struct piece p = piece_at(u, a->size, a->heads);
    open_delta_chunk(call, a, &p, 0, a->rows, &c[0]);
    for (int64_t i = 0; i < n; i++) {
        s[i].at = piece_at(u + i, a->size, a->heads);
        s[i].lanes = a->lanes + i * GB_LANES * a->size;
        open_delta(call, a, &s[i], &c[0]);
    }
    for (int now = 0; c[now].n > 0; now = 1 - now) {
        const int64_t t = c[now].first + c[now].n;
        struct delta_chunk * next = &c[1 - now];
        next->n = 0;
        if (t < a->tokens) {
            open_delta_chunk(call, a, &p, t, a->rows + (1 - now) * DELTA_ROWS * a->size, next);
        }
        for (int64_t i = 0; i < n; i++) {
            delta_chunk(call, a, &s[i], &c[now], next->n > 0 ? next : NULL);
        }
        if (gb_cpu_stopped(call, n * a->size * 24)) {
            return;
        }
    }
}

static void delta_unit(const struct gb_cpu_call * call, const struct delta * a, int64_t u, int64_t n) {
    for (int64_t i = 0; i < n; i++) {
        const struct piece p = piece_at(u + i, a->size, a->heads);
        const float * from = a->from + ((p.sequence * a->heads + p.head) * a->size + p.first) * a->size;
        for (int64_t r = a->tokens; r < a->n_states; r++) { // before the first token: the initial state
            memcpy(delta_state(a, &p, r), from, (size_t) (p.n * a->size) * sizeof(float));
        }
        if (a->tokens <= FEW_TOKENS) {
            delta_rows(call, a, &p, from);
        }
        if (gb_cpu_stopped(call, a->size * p.n / 2)) {
            return;
        }
    }
    if (a->tokens > FEW_TOKENS) {
        delta_chunks(call, a, u, n);
    }
}

static void run_gated_delta_net(const struct gb_cpu_call * call, struct ggml_tensor * node) {
    if (!is_aligned(call, node)) {
        return;
    }
    const struct delta a = delta_of(call, node);
    const int64_t pieces = gb_div_up(a.size, GB_LANES), units = gb_div_up(pieces, a.unit);
    int64_t first, last;
    gb_cpu_share(call, units * a.heads * a.sequences, &first, &last);
    for (int64_t u = first; u < last; u++) {
        const int64_t begin = u % units * a.unit;
        delta_unit(call, &a, u / units * pieces + begin, GB_MIN(a.unit, pieces - begin));
        if (gb_cpu_stopped(call, 1)) {
            return;
        }
    }
}

static const char * delta_unsupported(const struct ggml_tensor * node) {
    const char * why = rows_unsupported(node, 6);
    if (why != NULL) {
        return why;
    }
    if (!ggml_is_contiguous(node->src[3]) || !ggml_is_contiguous(node->src[4]) || !ggml_is_contiguous(node->src[5])) {
        return "sources 3, 4 and 5 must be contiguous";
    }
    return gb_op_param_i32(node, 0) < 1 ? "no state is kept" : NULL;
}

static int delta_tasks(const struct ggml_tensor * node, int n_threads) {
    const struct ggml_tensor * v = node->src[2];
    return gb_tasks_for((double) gb_count(v) * (double) v->ne[0] / 2,
        gb_div_up(v->ne[0], GB_LANES) * v->ne[1] * v->ne[3], n_threads);
}

static size_t delta_work(const struct ggml_tensor * node, int n_tasks) {
    return gb_floats_size(delta_floats(node->src[2]->ne[0]), n_tasks);
}

// ----------------------------------------------------------------------------- RWKV_WKV6, RWKV_WKV7, GATED_LINEAR_ATTN

enum kind { WKV6, WKV7, LINEAR };

// The states of WKV6 and GLA have a row for each key, as the lanes do. Those of WKV7 have a row for
// each value.
struct heads {
    enum kind kind;
    int64_t size, heads, tokens, sequences; // tokens of one sequence
    const struct ggml_tensor * state;
    float * y;
    float * states;
    float * lanes;
};

static struct heads heads_of(const struct gb_cpu_call * call, const struct ggml_tensor * node, enum kind kind,
    int state) {
    const struct ggml_tensor *k = node->src[0], *s = node->src[state];
    struct heads a = { .kind = kind, .size = k->ne[0], .heads = k->ne[1], .sequences = s->ne[1], .state = s };
    a.tokens = a.sequences > 0 ? k->ne[2] / a.sequences : 0;
    a.y = (float *) node->data;
    a.states = a.y + gb_count(k);
    a.lanes = gb_my_floats(call, GB_LANES * a.size);
    return a;
}

// Copies the lanes of the piece from a state whose rows are keys, or back.
static void move_keys(const struct heads * a, const struct piece * p, float * state, bool back) {
    for (int64_t j = 0; j < a->size; j++) {
        float *lanes = a->lanes + j * GB_LANES, *row = state + j * a->size + p->first;
        if (back) {
            memcpy(row, lanes, (size_t) p->n * sizeof(float));
        } else {
            lanes_of(lanes, row, p->n);
        }
    }
}

// Computes one token of the piece. `at`: the floats before those of the head in each input.
static void heads_token(const struct gb_cpu_call * call, const struct ggml_tensor * node, const struct heads * a,
    const struct piece * p, int64_t at) {
    const float * in[7];
    float u[GB_LANES], c[GB_LANES], y[GB_LANES];
    for (int i = 0; i < 7; i++) {
        in[i] = node->src[i] != NULL ? (const float *) node->src[i]->data + at : NULL;
    }
    if (a->kind == WKV7) { // r, w, k, v, a, b
        lanes_of(u, in[3] + p->first, p->n);
        call->k->lanes_dot_f32(a->size, c, a->lanes, in[4]);
        const struct gb_lanes_step step = { .wv = in[1], .k = in[2], .u = u, .b = in[5], .c = c, .r = in[0] };
        call->k->lanes_step_f32(a->size, y, a->lanes, &step);
    } else if (a->kind == LINEAR) { // k, v, q, g
        lanes_of(u, in[1] + p->first, p->n);
        const struct gb_lanes_step step = { .wv = in[3], .k = in[0], .u = u, .r = in[2] };
        call->k->lanes_step_f32(a->size, y, a->lanes, &step);
        call->k->scale_f32(GB_LANES, y, y, gb_op_param_f32(node, 0));
    } else { // k, v, r, tf, td; the bonus of this token is r (tf k) v
        const float * tf = (const float *) node->src[3]->data + p->head * a->size;
        double bonus = 0;
        for (int64_t j = 0; j < a->size; j++) {
            bonus += (double) in[2][j] * (double) tf[j] * (double) in[0][j];
        }
        lanes_of(u, in[1] + p->first, p->n);
        call->k->lanes_dot_f32(a->size, y, a->lanes, in[2]);
        call->k->mad_f32(GB_LANES, y, u, (float) bonus);
        const struct gb_lanes_step step = { .wv = in[4], .k = in[0], .u = u };
        call->k->lanes_step_f32(a->size, NULL, a->lanes, &step);
    }
    memcpy(a->y + at + p->first, y, (size_t) p->n * sizeof(float));
}

static void run_heads(const struct gb_cpu_call * call, const struct ggml_tensor * node, const struct heads * a) {
    int64_t first, last;
    gb_cpu_share(call, gb_div_up(a->size, GB_LANES) * a->heads * a->sequences, &first, &last);
    for (int64_t u = first; u < last; u++) {
        const struct piece p = piece_at(u, a->size, a->heads);
        const int64_t whole = (p.sequence * a->heads + p.head) * a->size * a->size;
        float * from = (float *) a->state->data + whole;
        if (a->kind == WKV7) {
            to_lanes(call, a->lanes, from + p.first * a->size, p.n, a->size);
        } else {
            move_keys(a, &p, from, false);
        }
        for (int64_t t = 0; t < a->tokens; t++) {
            heads_token(call, node, a, &p, ((p.sequence * a->tokens + t) * a->heads + p.head) * a->size);
            if (gb_cpu_stopped(call, a->size * 10)) {
                return;
            }
        }
        if (a->kind == WKV7) {
            from_lanes(call, a->states + whole + p.first * a->size, a->lanes, p.n, a->size);
        } else {
            move_keys(a, &p, a->states + whole, true);
        }
        if (gb_cpu_stopped(call, a->size * p.n / 2)) {
            return;
        }
    }
}

static const char * heads_unsupported(const struct ggml_tensor * node, int n_src) {
    const char * why = rows_unsupported(node, n_src);
    for (int i = 0; i < n_src && why == NULL; i++) {
        why = ggml_is_contiguous(node->src[i]) ? NULL : "sources must be contiguous";
    }
    return why;
}

static int heads_tasks(const struct ggml_tensor * node, int n_threads) {
    const struct ggml_tensor * k = node->src[0];
    return gb_tasks_for((double) gb_count(node) * (double) k->ne[0] / 2, gb_div_up(k->ne[0], GB_LANES) * k->ne[1],
        n_threads);
}

static size_t heads_work(const struct ggml_tensor * node, int n_tasks) {
    return gb_floats_size(GB_LANES * node->src[0]->ne[0], n_tasks);
}

// Defines an operator of this family with its number of sources, of which the last one is the
// state.
#define HEADS(stem, kind, sources)                                                       \
    static const char * stem##_unsupported(const struct ggml_tensor * node) {            \
        return heads_unsupported(node, sources);                                         \
    }                                                                                    \
    static void run_##stem(const struct gb_cpu_call * call, struct ggml_tensor * node) { \
        if (is_aligned(call, node)) {                                                    \
            const struct heads a = heads_of(call, node, kind, sources - 1);              \
            run_heads(call, node, &a);                                                   \
        }                                                                                \
    }                                                                                    \
    const struct gb_cpu_op gb_cpu_op_##stem = {                                          \
        .unsupported = stem##_unsupported,                                               \
        .n_tasks = heads_tasks,                                                          \
        .work_size = heads_work,                                                         \
        .run = run_##stem,                                                               \
    };

HEADS(rwkv_wkv6, WKV6, 6)
HEADS(rwkv_wkv7, WKV7, 7)
HEADS(gated_linear_attn, LINEAR, 5)

const struct gb_cpu_op gb_cpu_op_ssm_conv = {
    .unsupported = ssm_conv_unsupported, .n_tasks = ssm_conv_tasks, .work_size = ssm_conv_work, .run = run_ssm_conv
};
const struct gb_cpu_op gb_cpu_op_ssm_scan = {
    .unsupported = ssm_scan_unsupported, .n_tasks = ssm_scan_tasks, .work_size = ssm_scan_work, .run = run_ssm_scan
};
const struct gb_cpu_op gb_cpu_op_gated_delta_net = {
    .unsupported = delta_unsupported, .n_tasks = delta_tasks, .work_size = delta_work, .run = run_gated_delta_net
};
