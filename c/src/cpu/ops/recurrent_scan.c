// recurrent_scan.c - the operators of state-space models: SSM_CONV and SSM_SCAN.
#include <inttypes.h>
#include <math.h>

#include "cpu/ops/recurrent.h"

enum { SHORT_ROW = 64 }; // elements; shorter rows with a decay for each element are always computed in lanes

// ------------------------------------------------------------------------------------------------------------ SSM_CONV

// Row (t, s) of the result has all channels. A piece of channels is laid out with one channel per lane.
static void conv_piece(const struct gb_cpu_call * call, struct ggml_tensor * node, int64_t sequence, int64_t first,
    float * scratch) {
    const struct ggml_tensor *sx = node->src[0], *c = node->src[1];
    const int64_t width = c->ne[0], n = GB_MIN(node->ne[0] - first, (int64_t) GB_LANES), tokens = node->ne[1];
    float *kernel = scratch, *x = scratch + width * GB_LANES;
    call->k->transpose_32(n, width, (uint32_t *) (void *) kernel, GB_LANES * sizeof(float),
        (const uint32_t *) (const void *) gb_row_floats(c, first, 0, 0), c->nb[1]);
    for (int64_t t0 = 0; t0 < tokens; t0 += GB_LANES) { // as many outputs at a time
        const int64_t m = GB_MIN(tokens - t0, (int64_t) GB_LANES);
        const float * from = gb_row_floats(sx, first, sequence, 0) + t0;
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
    if (!gb_recurrent_is_aligned(call, node)) {
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

static const char * ssm_conv_unsupported(const struct ggml_tensor * node) { return gb_recurrent_unsupported(node, 2); }

static int ssm_conv_tasks(const struct ggml_tensor * node, int n_threads) {
    return gb_tasks_for((double) gb_count(node) * (double) node->src[1]->ne[0] / 2,
        gb_div_up(node->ne[0], GB_LANES) * node->ne[2], n_threads);
}

static size_t ssm_conv_work(const struct ggml_tensor * node, int n_tasks) {
    return gb_floats_size((2 * node->src[1]->ne[0] + GB_LANES) * GB_LANES, n_tasks);
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

static int64_t scan_floats(int64_t size) { return (GB_UNIT_PIECES * GB_LANES + 1 + 2 * 2 * GB_CHUNK) * size; }

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
    a.unit = gb_unit_pieces(scan_pieces(&a), a.groups * a.sequences, n_threads);
    if (call != NULL) {
        a.lanes = gb_my_floats(call, scan_floats(a.size));
        a.decay = a.lanes + GB_UNIT_PIECES * GB_LANES * a.size;
        a.rows = a.decay + a.size;
    }
    return a;
}

static int64_t scan_units(const struct scan * a) {
    return gb_div_up(scan_pieces(a), a->unit) * a->groups * a->sequences;
}

// The rows of a piece: the heads that have them, and the place of the first row in its head.
struct scan_piece {
    struct gb_piece p; // of the group
    int64_t row, head, first, n_heads;
};

// Piece u of all groups and sequences.
static struct scan_piece scan_piece_at(const struct scan * a, int64_t u) {
    struct scan_piece s = { .p = gb_piece_at(u, a->group_rows, a->groups) };
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
    const float * x = gb_row_floats(a->x, s->head, token, s->p.sequence) + s->first;
    call->k->softplus_f32(s->n_heads, step, gb_row_floats(a->dt, token, s->p.sequence, 0) + s->head);
    if (a->width == 1 && a->dense_x) { // every row is a head
        memcpy(d, step, (size_t) s->p.n * sizeof(float));
        call->k->mul_f32(s->p.n, dx, step, x);
        return;
    }
    for (int64_t i = 0, h = 0, first = s->first; i < s->p.n; h++, first = 0) {
        const int64_t end = GB_MIN(i + a->width - first, s->p.n);
        const float * row = a->dense_x ? x + i : gb_row_floats(a->x, s->head + h, token, s->p.sequence) + first;
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
    const struct gb_piece * p = &s->p;
    for (int64_t t = 0; t < a->tokens; t++) {
        float d[GB_LANES], dx[GB_LANES];
        float * slot = slot_of(a, t, p->sequence);
        float * to = slot != NULL ? slot + s->row * a->size : a->lanes;
        scan_lanes(call, a, s, t, d, dx);
        for (int64_t i = 0; i < p->n; i++) {
            const int64_t h = (s->row + i) / a->width, at = i * a->size;
            const float * A = gb_row_floats(a->A, h, 0, 0);
            const float w = a->A->ne[0] == 1 ? expf(d[i] * A[0]) : 0;
            if (a->A->ne[0] != 1) {
                call->k->scale_f32(a->size, a->decay, A, d[i]);
                call->k->exp_f32(a->size, a->decay, a->decay);
            }
            a->y[(t + a->tokens * p->sequence) * a->width * a->heads + s->row + i] =
                call->k->state_row_f32(a->size, to + at, from + at, w, a->A->ne[0] == 1 ? NULL : a->decay,
                    gb_row_floats(a->B, p->head, t, p->sequence), dx[i], gb_row_floats(a->C, p->head, t, p->sequence));
        }
        from = to;
    }
}

// One token at a time, because each element of the state has a decay of its own.
static void scan_each(const struct gb_cpu_call * call, const struct scan * a, const struct scan_piece * s,
    const float * from) {
    const struct gb_piece * p = &s->p;
    float * factors = a->lanes + GB_LANES * a->size;
    memset(factors, 0, (size_t) (GB_LANES * a->size) * sizeof(float));
    for (int64_t i = 0; i < p->n; i++) {
        const float * A = gb_row_floats(a->A, (s->row + i) / a->width, 0, 0);
        for (int64_t j = 0; j < a->size; j++) {
            factors[j * GB_LANES + i] = A[j];
        }
    }
    gb_to_lanes(call, a->lanes, from, p->n, a->size);
    for (int64_t t = 0; t < a->tokens; t++) {
        float d[GB_LANES] = { 0 }, dx[GB_LANES] = { 0 }, y[GB_LANES];
        scan_lanes(call, a, s, t, d, dx);
        call->k->lanes_scan_f32(a->size, y, a->lanes, factors, d, gb_row_floats(a->B, p->head, t, p->sequence), dx,
            gb_row_floats(a->C, p->head, t, p->sequence));
        memcpy(a->y + (t + a->tokens * p->sequence) * a->width * a->heads + s->row, y, (size_t) p->n * sizeof(float));
        float * slot = slot_of(a, t, p->sequence);
        if (slot != NULL) {
            gb_from_lanes(call, slot + s->row * a->size, a->lanes, p->n, a->size);
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
    struct gb_token_rows b, c;
    float products[GB_CHUNK][GB_CHUNK];
};

static struct scan_chunk scan_chunk_at(const struct gb_cpu_call * call, const struct scan * a,
    const struct gb_piece * p, int64_t first, float * rows) {
    struct scan_chunk c = { .first = first, .n = gb_chunk_size(first, a->tokens, a->n_states) };
    c.b = gb_rows_of_chunk(a->B, p->head, first, p->sequence, c.n, rows);
    c.c = gb_rows_of_chunk(a->C, p->head, first, p->sequence, c.n, rows + GB_CHUNK * a->size);
    gb_products_of_rows(call, a->size, c.c, c.n, c.b, c.n, c.products);
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
        s->factors[i] = *gb_row_floats(a->A, (s->at.row + i) / a->width, 0, 0);
    }
    gb_to_lanes(call, s->lanes, states + s->at.row * a->size, s->at.p.n, a->size);
    for (int t = 0; t < c->n; t++) {
        call->k->lanes_dot_f32(a->size, s->y[t], s->lanes, c->c.p + t * c->c.ld);
    }
}

// next: NULL after the last chunk
static void scan_chunk(const struct gb_cpu_call * call, const struct scan * a, struct scan_state * s,
    const struct scan_chunk * c, const struct scan_chunk * next) {
    const struct gb_piece * p = &s->at.p;
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
        gb_from_lanes(call, slot + s->at.row * a->size, s->lanes, p->n, a->size);
    }
}

// n pieces of a group, from piece u on. states: of the sequence
static void scan_chunks(const struct gb_cpu_call * call, const struct scan * a, int64_t u, int64_t n,
    const float * states) {
    struct scan_state s[GB_UNIT_PIECES];
    const struct gb_piece p = scan_piece_at(a, u).p;
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
    const bool chunks = a->A->ne[0] == 1 && a->tokens > GB_FEW_TOKENS;
    for (int64_t i = 0; i < n; i++) {
        const struct scan_piece s = scan_piece_at(a, u + i);
        const float * from = states + s.row * a->size;
        keep_first_scan(a, &s, from);
        if (a->tokens <= GB_FEW_TOKENS && (a->size >= SHORT_ROW || a->A->ne[0] == 1)) {
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
    if (!gb_recurrent_is_aligned(call, node)) {
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
        scan_unit(call, &a, list * pieces + begin, GB_MIN(a.unit, pieces - begin), gb_row_floats(a.s, 0, 0, id));
        if (gb_cpu_stopped(call, 1)) {
            return;
        }
    }
}

static const char * ssm_scan_unsupported(const struct ggml_tensor * node) {
    const char * why = gb_recurrent_unsupported(node, 6);
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

const struct gb_cpu_op gb_cpu_op_ssm_conv = {
    .unsupported = ssm_conv_unsupported, .n_tasks = ssm_conv_tasks, .work_size = ssm_conv_work, .run = run_ssm_conv
};
const struct gb_cpu_op gb_cpu_op_ssm_scan = {
    .unsupported = ssm_scan_unsupported, .n_tasks = ssm_scan_tasks, .work_size = ssm_scan_work, .run = run_ssm_scan
};
