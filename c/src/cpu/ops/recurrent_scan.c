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
    // scratch: the states of a unit, then A laid out alike; decays of a row; rows of two chunks
    float *lanes, *decay, *rows;
    bool dense_x; // rows of x follow each other
    int64_t unit; // pieces of a unit
};

static int64_t scan_floats(int64_t size) { return (2 * GB_UNIT_PIECES * GB_LANES + 1 + 2 * 2 * GB_CHUNK) * size; }

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
        a.decay = a.lanes + 2 * GB_UNIT_PIECES * GB_LANES * a.size;
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

// d = softplus(dt) of the heads of a piece for n tokens. Each token has n_heads numbers.
static void scan_steps(const struct gb_cpu_call * call, const struct scan * a, const struct scan_piece * s,
    int64_t token, int n, float * d) {
    for (int t = 0; t < n; t++) {
        const float * dt = gb_row_floats(a->dt, token + t, s->p.sequence, 0) + s->head;
        memcpy(d + t * s->n_heads, dt, (size_t) s->n_heads * sizeof(float));
    }
    call->k->softplus_f32(n * s->n_heads, d, d);
}

// Puts the number of each head into the lanes of its rows.
static void spread(const struct scan * a, const struct scan_piece * s, const float * of_heads, float * lanes) {
    if (a->width == 1) { // every row is a head
        memcpy(lanes, of_heads, (size_t) s->p.n * sizeof(float));
        return;
    }
    if (s->n_heads == 1 && s->p.n == GB_LANES) { // the compiler knows the length
        for (int i = 0; i < GB_LANES; i++) {
            lanes[i] = of_heads[0];
        }
        return;
    }
    for (int64_t i = 0, h = 0, first = s->first; i < s->p.n; h++, first = 0) {
        for (const int64_t end = GB_MIN(i + a->width - first, s->p.n); i < end; i++) {
            lanes[i] = of_heads[h];
        }
    }
}

// dx = d x of the rows. d: of each head
static void scale_rows(const struct gb_cpu_call * call, const struct scan * a, const struct scan_piece * s,
    int64_t token, const float * d, float * dx) {
    const float * x = gb_row_floats(a->x, s->head, token, s->p.sequence) + s->first;
    if (a->width == 1 && a->dense_x) {
        call->k->mul_f32(s->p.n, dx, d, x);
        return;
    }
    for (int64_t i = 0, h = 0, first = s->first; i < s->p.n; h++, first = 0) {
        const int64_t end = GB_MIN(i + a->width - first, s->p.n);
        const float * row = a->dense_x ? x + i : gb_row_floats(a->x, s->head + h, token, s->p.sequence) + first;
        call->k->scale_f32(end - i, dx + i, row, d[h]);
        i = end;
    }
}

// Computes d = softplus(dt) and d x of the rows.
static void scan_lanes(const struct gb_cpu_call * call, const struct scan * a, const struct scan_piece * s,
    int64_t token, float * d, float * dx) {
    float step[GB_LANES];
    scan_steps(call, a, s, token, 1, step);
    spread(a, s, step, d);
    scale_rows(call, a, s, token, step, dx);
}

// The results of the rows of a piece.
static float * scan_out(const struct scan * a, const struct scan_piece * s, int64_t token) {
    return a->y + (token + a->tokens * s->p.sequence) * a->width * a->heads + s->row;
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
            scan_out(a, s, t)[i] =
                call->k->state_row_f32(a->size, to + at, from + at, w, a->A->ne[0] == 1 ? NULL : a->decay,
                    gb_row_floats(a->B, p->head, t, p->sequence), dx[i], gb_row_floats(a->C, p->head, t, p->sequence));
        }
        from = to;
    }
}

// A piece whose elements each have a decay of their own: the state and A, both in lanes.
struct own_decays {
    struct scan_piece at;
    float *lanes, *factors;
};

static void open_scan_lanes(const struct gb_cpu_call * call, const struct scan * a, struct own_decays * s, int64_t u,
    const float * states) {
    s->at = scan_piece_at(a, u);
    memset(s->factors, 0, (size_t) (GB_LANES * a->size) * sizeof(float));
    for (int64_t i = 0; i < s->at.p.n; i++) {
        const float * A = gb_row_floats(a->A, (s->at.row + i) / a->width, 0, 0);
        for (int64_t j = 0; j < a->size; j++) {
            s->factors[j * GB_LANES + i] = A[j];
        }
    }
    gb_to_lanes(call, s->lanes, states + s->at.row * a->size, s->at.p.n, a->size);
}

static void scan_token(const struct gb_cpu_call * call, const struct scan * a, const struct own_decays * s, int64_t t) {
    const struct gb_piece * p = &s->at.p;
    float d[GB_LANES], dx[GB_LANES], y[GB_LANES];
    gb_clear_lanes(d, 1, p->n);
    gb_clear_lanes(dx, 1, p->n);
    scan_lanes(call, a, &s->at, t, d, dx);
    call->k->lanes_scan_f32(a->size, y, s->lanes, s->factors, d, gb_row_floats(a->B, p->head, t, p->sequence), dx,
        gb_row_floats(a->C, p->head, t, p->sequence));
    memcpy(scan_out(a, &s->at, t), y, (size_t) p->n * sizeof(float));
    float * slot = slot_of(a, t, p->sequence);
    if (slot != NULL) {
        gb_from_lanes(call, slot + s->at.row * a->size, s->lanes, p->n, a->size);
    }
}

// One token at a time, because each element of the state has a decay of its own. The n pieces from piece u on take
// turns, so that they read whole cache lines of the rows of a token one after another.
static void scan_each(const struct gb_cpu_call * call, const struct scan * a, int64_t u, int64_t n,
    const float * states) {
    struct own_decays s[GB_UNIT_PIECES];
    for (int64_t i = 0; i < n; i++) {
        s[i].lanes = a->lanes + 2 * i * GB_LANES * a->size;
        s[i].factors = s[i].lanes + GB_LANES * a->size;
        open_scan_lanes(call, a, &s[i], u + i, states);
    }
    for (int64_t t = 0; t < a->tokens; t++) {
        const int64_t later = GB_MIN(t + GB_CHUNK, a->tokens - 1), heads = s[n - 1].at.head + s[n - 1].at.n_heads;
        gb_prefetch(gb_row_floats(a->dt, later, s[0].at.p.sequence, 0) + s[0].at.head,
            (size_t) (heads - s[0].at.head) * sizeof(float));
        for (int64_t i = 0; i < n; i++) {
            gb_prefetch(gb_row_floats(a->x, s[i].at.head, later, s[i].at.p.sequence) + s[i].at.first,
                (size_t) s[i].at.p.n * sizeof(float));
            gb_prefetch(scan_out(a, &s[i].at, later), (size_t) s[i].at.p.n * sizeof(float));
            scan_token(call, a, &s[i], t);
        }
        if (gb_cpu_stopped(call, n * a->size * 60)) {
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
    float *lanes, factors[GB_LANES]; // the state; A of each head
    float y[GB_CHUNK][GB_LANES]; // of the next chunk, over this state
};

static void open_scan(const struct gb_cpu_call * call, const struct scan * a, struct scan_state * s, int64_t u,
    const float * states, const struct scan_chunk * c) {
    s->at = scan_piece_at(a, u);
    for (int64_t h = 0; h < s->at.n_heads; h++) {
        s->factors[h] = *gb_row_floats(a->A, s->at.head + h, 0, 0);
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
    const int64_t heads = s->at.n_heads;
    float w[GB_CHUNK][GB_LANES], u[GB_CHUNK][GB_LANES], all[GB_LANES];
    float step[GB_CHUNK * GB_LANES], decay[GB_CHUNK * GB_LANES]; // of each token and head
    gb_clear_lanes(w[0], GB_CHUNK, p->n);
    gb_clear_lanes(u[0], GB_CHUNK, p->n);
    scan_steps(call, a, &s->at, c->first, c->n, step);
    for (int t = 0; t < c->n; t++) {
        call->k->mul_f32(heads, decay + t * heads, step + t * heads, s->factors);
    }
    call->k->exp_f32(c->n * heads, decay, decay);
    gb_prefetch_rows(a->x, s->at.head, c->first + c->n, p->sequence, p->n);
    for (int t = 0; t < GB_CHUNK; t++) {
        gb_prefetch(scan_out(a, &s->at, c->first + c->n + t), (size_t) p->n * sizeof(float));
    }
    for (int t = 0; t < c->n; t++) {
        spread(a, &s->at, decay + t * heads, w[t]);
        scale_rows(call, a, &s->at, c->first + t, step + t * heads, u[t]);
    }
    call->k->lanes_tokens_f32(&(struct gb_lanes_tokens){
        .n = c->n, .w = w[0], .kr = c->products, .u = u[0], .y = s->y[0], .all = all });
    for (int t = 0; t < c->n; t++) {
        memcpy(scan_out(a, &s->at, c->first + t), s->y[t], (size_t) p->n * sizeof(float));
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
    const bool one = a->A->ne[0] == 1, rows = a->tokens <= GB_FEW_TOKENS && (a->size >= SHORT_ROW || one);
    for (int64_t i = 0; i < n; i++) {
        const struct scan_piece s = scan_piece_at(a, u + i);
        const float * from = states + s.row * a->size;
        keep_first_scan(a, &s, from);
        if (rows) {
            scan_rows(call, a, &s, from);
        }
        if (gb_cpu_stopped(call, a->size * s.p.n / 4)) {
            return;
        }
    }
    if (!rows && one) {
        scan_chunks(call, a, u, n, states);
    } else if (!rows) {
        scan_each(call, a, u, n, states);
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
