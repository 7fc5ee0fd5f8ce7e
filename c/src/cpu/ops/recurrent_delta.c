// recurrent_delta.c - GATED_DELTA_NET.
#include <math.h>

#include "cpu/ops/recurrent.h"

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

static int64_t delta_floats(int64_t size) { return (GB_UNIT_PIECES * GB_LANES + 2 * DELTA_ROWS) * size; }

static struct delta delta_of(const struct gb_cpu_call * call, const struct ggml_tensor * node) {
    const struct ggml_tensor * v = node->src[2];
    struct delta a = { .q = node->src[0], .k = node->src[1], .v = v, .g = node->src[3], .beta = node->src[4] };
    a.size = v->ne[0], a.heads = v->ne[1], a.tokens = v->ne[2], a.sequences = v->ne[3];
    a.n_states = gb_op_param_i32(node, 0);
    a.from = (const float *) node->src[5]->data;
    a.y = (float *) node->data;
    a.states = a.y + gb_count(v);
    a.lanes = gb_my_floats(call, delta_floats(a.size));
    a.rows = a.lanes + GB_UNIT_PIECES * GB_LANES * a.size;
    a.unit = gb_unit_pieces(gb_div_up(a.size, GB_LANES), a.heads * a.sequences, call->nth);
    a.share = 1.0f / sqrtf((float) a.size);
    return a;
}

// The head and the sequence of q and k.
static int64_t delta_head(const struct delta * a, const struct gb_piece * p) { return p->head % a->q->ne[1]; }

static int64_t delta_sequence(const struct delta * a, const struct gb_piece * p) {
    return p->sequence / (a->sequences / a->q->ne[3]);
}

static float beta_of(const struct delta * a, const struct gb_piece * p, int64_t t) {
    return *gb_row_floats(a->beta, p->head, t, p->sequence);
}

static float * delta_out(const struct delta * a, const struct gb_piece * p, int64_t t) {
    return a->y + ((p->sequence * a->tokens + t) * a->heads + p->head) * a->size + p->first;
}

// The rows of the piece in the state r tokens before the end.
static float * delta_state(const struct delta * a, const struct gb_piece * p, int64_t r) {
    return a->states + (((r * a->sequences + p->sequence) * a->heads + p->head) * a->size + p->first) * a->size;
}

// The same after this token, if that state is kept.
static float * delta_slot(const struct delta * a, const struct gb_piece * p, int64_t t) {
    const int64_t r = a->tokens - 1 - t;
    return r >= a->n_states ? NULL : delta_state(a, p, r);
}

// Row by row, for few tokens.
static void delta_rows(const struct gb_cpu_call * call, const struct delta * a, const struct gb_piece * p,
    const float * from) {
    float *keys = a->rows, *gates = keys + a->size;
    for (int64_t t = 0; t < a->tokens; t++) {
        const int64_t head = delta_head(a, p), sequence = delta_sequence(a, p);
        const float *g = gb_row_floats(a->g, p->head, t, p->sequence), *k = gb_row_floats(a->k, head, t, sequence);
        const bool one = a->g->ne[0] == 1; // also if a state has one key
        const float gate = one ? expf(g[0]) : 1, beta = beta_of(a, p, t);
        if (!one) {
            call->k->exp_f32(a->size, gates, g);
            call->k->mul_f32(a->size, keys, gates, k);
        }
        const float * v = gb_row_floats(a->v, p->head, t, p->sequence) + p->first;
        float *y = delta_out(a, p, t), *slot = delta_slot(a, p, t), *to = slot != NULL ? slot : a->lanes;
        for (int64_t i = 0; i < p->n; i++) {
            const float * s = from + i * a->size;
            const float found = gate * call->k->dot_f32(a->size, s, one ? k : keys);
            y[i] = a->share * call->k->state_row_f32(a->size, to + i * a->size, s, gate, one ? NULL : gates, k,
                                  beta * (v[i] - found), gb_row_floats(a->q, head, t, sequence));
        }
        from = to;
    }
}

// Data of a chunk that all pieces of a head share. If each key has its own gate, the rows include decays. If all keys
// have the same gate, lanes_tokens applies the decays.
struct delta_chunk {
    int64_t first;
    int n;
    struct gb_token_rows k; // keys, with the decays of later tokens of the chunk
    struct gb_token_rows a, r; // keys and queries, with the decays of the tokens up to theirs
    const float * decay; // of each key over the chunk; NULL if all keys have the same gate
    float gates[GB_CHUNK][GB_LANES]; // of the tokens, if all keys have the same gate
    float beta[GB_CHUNK];
    float kk[GB_CHUNK][GB_CHUNK], kr[GB_CHUNK][GB_CHUNK]; // products of keys and queries with the rows of k
};

// A gate for each key. rows: DELTA_ROWS
static void decay_chunk(const struct gb_cpu_call * call, const struct delta * a, const struct gb_piece * p,
    struct delta_chunk * c, float * rows) {
    const int64_t n = a->size;
    float *ks = rows, *as = ks + GB_CHUNK * n, *rs = as + GB_CHUNK * n, *decay = rs + GB_CHUNK * n, *gate = decay + n;
    if (c->n < GB_CHUNK) {
        memset(rows, 0, (size_t) (3 * GB_CHUNK * n) * sizeof(float));
    }
    c->k = (struct gb_token_rows){ ks, n };
    c->a = (struct gb_token_rows){ as, n };
    c->r = (struct gb_token_rows){ rs, n };
    c->decay = decay;
    for (int t = 0; t < c->n; t++) {
        const int64_t head = delta_head(a, p), sequence = delta_sequence(a, p), at = c->first + t;
        const float *k = gb_row_floats(a->k, head, at, sequence), *q = gb_row_floats(a->q, head, at, sequence);
        call->k->exp_f32(n, gate, gb_row_floats(a->g, p->head, at, p->sequence));
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
        gb_products_of_rows(call, n, (struct gb_token_rows){ k, 0 }, 1, c->k, t + 1, c->kk + t);
        gb_products_of_rows(call, n, (struct gb_token_rows){ q, 0 }, 1, c->k, t + 1, c->kr + t);
    }
    gb_prefetch_rows(a->k, delta_head(a, p), c->first + c->n, delta_sequence(a, p), n);
    gb_prefetch_rows(a->q, delta_head(a, p), c->first + c->n, delta_sequence(a, p), n);
    gb_prefetch_rows(a->g, p->head, c->first + c->n, p->sequence, n);
}

// The same gate for all keys.
static void gate_chunk(const struct gb_cpu_call * call, const struct delta * a, const struct gb_piece * p,
    struct delta_chunk * c, float * rows) {
    const int64_t head = delta_head(a, p), sequence = delta_sequence(a, p);
    c->k = c->a = gb_rows_of_chunk(a->k, head, c->first, sequence, c->n, rows);
    c->r = gb_rows_of_chunk(a->q, head, c->first, sequence, c->n, rows + GB_CHUNK * a->size);
    c->decay = NULL;
    gb_products_of_rows(call, a->size, c->k, c->n, c->k, c->n, c->kk);
    gb_products_of_rows(call, a->size, c->r, c->n, c->k, c->n, c->kr);
    for (int t = 0; t < c->n; t++) {
        const float gate = expf(*gb_row_floats(a->g, p->head, c->first + t, p->sequence));
        for (int i = 0; i < GB_LANES; i++) {
            c->gates[t][i] = gate;
        }
    }
}

static void open_delta_chunk(const struct gb_cpu_call * call, const struct delta * a, const struct gb_piece * p,
    int64_t first, float * rows, struct delta_chunk * c) {
    c->first = first;
    c->n = gb_chunk_size(first, a->tokens, a->n_states);
    for (int t = 0; t < c->n; t++) {
        c->beta[t] = beta_of(a, p, first + t);
    }
    gb_prefetch_rows(a->v, p->head, first, p->sequence, a->size);
    for (int t = 0; t < c->n; t++) {
        gb_prefetch(delta_out(a, p, first + t), (size_t) a->size * sizeof(float));
    }
    if (a->g->ne[0] == 1) { // also if a state has one key
        gate_chunk(call, a, p, c, rows);
    } else {
        decay_chunk(call, a, p, c, rows);
    }
}

// A piece on its way through the chunks: its state, and the sums of the next chunk over it.
struct delta_piece {
    struct gb_piece at;
    float * lanes;
    float f[GB_CHUNK][GB_LANES], y[GB_CHUNK][GB_LANES];
};

static void open_delta(const struct gb_cpu_call * call, const struct delta * a, struct delta_piece * s,
    const struct delta_chunk * c) {
    const struct gb_piece * p = &s->at;
    gb_to_lanes(call, s->lanes, a->from + ((p->sequence * a->heads + p->head) * a->size + p->first) * a->size, p->n,
        a->size);
    for (int t = 0; t < c->n; t++) {
        call->k->lanes_dot_f32(a->size, s->f[t], s->lanes, c->a.p + t * c->a.ld);
        call->k->lanes_dot_f32(a->size, s->y[t], s->lanes, c->r.p + t * c->r.ld);
    }
}

// next: NULL after the last chunk
static void delta_chunk(const struct gb_cpu_call * call, const struct delta * a, struct delta_piece * s,
    const struct delta_chunk * c, const struct delta_chunk * next) {
    const struct gb_piece * p = &s->at;
    float u[GB_CHUNK][GB_LANES], all[GB_LANES];
    for (int t = 0; t < c->n; t++) {
        gb_lanes_of(u[t], gb_row_floats(a->v, p->head, c->first + t, p->sequence) + p->first, p->n);
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
        call->k->scale_f32(p->n, delta_out(a, p, c->first + t), s->y[t], a->share);
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
        gb_from_lanes(call, slot, s->lanes, p->n, a->size);
    }
}

// n pieces of a head, from piece u on.
static void delta_chunks(const struct gb_cpu_call * call, const struct delta * a, int64_t u, int64_t n) {
    struct delta_piece s[GB_UNIT_PIECES];
    struct delta_chunk c[2];
    const struct gb_piece p = gb_piece_at(u, a->size, a->heads);
    open_delta_chunk(call, a, &p, 0, a->rows, &c[0]);
    for (int64_t i = 0; i < n; i++) {
        s[i].at = gb_piece_at(u + i, a->size, a->heads);
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
        const struct gb_piece p = gb_piece_at(u + i, a->size, a->heads);
        const float * from = a->from + ((p.sequence * a->heads + p.head) * a->size + p.first) * a->size;
        for (int64_t r = a->tokens; r < a->n_states; r++) { // before the first token: the initial state
            memcpy(delta_state(a, &p, r), from, (size_t) (p.n * a->size) * sizeof(float));
        }
        if (a->tokens <= GB_FEW_TOKENS) {
            delta_rows(call, a, &p, from);
        }
        if (gb_cpu_stopped(call, a->size * p.n / 2)) {
            return;
        }
    }
    if (a->tokens > GB_FEW_TOKENS) {
        delta_chunks(call, a, u, n);
    }
}

static void run_gated_delta_net(const struct gb_cpu_call * call, struct ggml_tensor * node) {
    if (!gb_recurrent_is_aligned(call, node)) {
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
    const char * why = gb_recurrent_unsupported(node, 6);
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

const struct gb_cpu_op gb_cpu_op_gated_delta_net = {
    .unsupported = delta_unsupported, .n_tasks = delta_tasks, .work_size = delta_work, .run = run_gated_delta_net
};
