// recurrent_heads.c - RWKV_WKV6, RWKV_WKV7, GATED_LINEAR_ATTN.
//
// They compute one token at a time.
#include "cpu/ops/recurrent.h"

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
static void move_keys(const struct heads * a, const struct gb_piece * p, float * state, bool back) {
    for (int64_t j = 0; j < a->size; j++) {
        float *lanes = a->lanes + j * GB_LANES, *row = state + j * a->size + p->first;
        if (back) {
            memcpy(row, lanes, (size_t) p->n * sizeof(float));
        } else {
            gb_lanes_of(lanes, row, p->n);
        }
    }
}

// Computes one token of the piece. `at`: the floats before those of the head in each input.
static void heads_token(const struct gb_cpu_call * call, const struct ggml_tensor * node, const struct heads * a,
    const struct gb_piece * p, int64_t at) {
    const float * in[7];
    float u[GB_LANES], c[GB_LANES], y[GB_LANES];
    for (int i = 0; i < 7; i++) {
        in[i] = node->src[i] != NULL ? (const float *) node->src[i]->data + at : NULL;
    }
    if (a->kind == WKV7) { // r, w, k, v, a, b
        gb_lanes_of(u, in[3] + p->first, p->n);
        call->k->lanes_dot_f32(a->size, c, a->lanes, in[4]);
        const struct gb_lanes_step step = { .wv = in[1], .k = in[2], .u = u, .b = in[5], .c = c, .r = in[0] };
        call->k->lanes_step_f32(a->size, y, a->lanes, &step);
    } else if (a->kind == LINEAR) { // k, v, q, g
        gb_lanes_of(u, in[1] + p->first, p->n);
        const struct gb_lanes_step step = { .wv = in[3], .k = in[0], .u = u, .r = in[2] };
        call->k->lanes_step_f32(a->size, y, a->lanes, &step);
        call->k->scale_f32(GB_LANES, y, y, gb_op_param_f32(node, 0));
    } else { // k, v, r, tf, td; the bonus of this token is r (tf k) v
        const float * tf = (const float *) node->src[3]->data + p->head * a->size;
        double bonus = 0;
        for (int64_t j = 0; j < a->size; j++) {
            bonus += (double) in[2][j] * (double) tf[j] * (double) in[0][j];
        }
        gb_lanes_of(u, in[1] + p->first, p->n);
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
        const struct gb_piece p = gb_piece_at(u, a->size, a->heads);
        const int64_t whole = (p.sequence * a->heads + p.head) * a->size * a->size;
        float * from = (float *) a->state->data + whole;
        if (a->kind == WKV7) {
            gb_to_lanes(call, a->lanes, from + p.first * a->size, p.n, a->size);
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
            gb_from_lanes(call, a->states + whole + p.first * a->size, a->lanes, p.n, a->size);
        } else {
            move_keys(a, &p, a->states + whole, true);
        }
        if (gb_cpu_stopped(call, a->size * p.n / 2)) {
            return;
        }
    }
}

static const char * heads_unsupported(const struct ggml_tensor * node, int n_src) {
    const char * why = gb_recurrent_unsupported(node, n_src);
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
        if (gb_recurrent_is_aligned(call, node)) {                                       \
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
