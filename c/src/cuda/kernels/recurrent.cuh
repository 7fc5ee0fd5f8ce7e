// recurrent.cuh - recurrent layers: SSM_SCAN, GATED_DELTA_NET, RWKV_WKV6, RWKV_WKV7, GATED_LINEAR_ATTN.
//
// A state has `size` keys for each of `rows` values. The rows of values do not depend on each other. A warp computes a
// row for all tokens of a sequence. Its lanes have the keys in registers, PER each. So a state is
// read and written once.
#ifndef GB_CUDA_KERNELS_RECURRENT_CUH
#define GB_CUDA_KERNELS_RECURRENT_CUH

#include "cuda/kernels/elements.cuh"
#include "cuda/kernels/wrong_index.cuh"

enum gb_recurrence { GB_SSM_SCAN, GB_DELTA_NET, GB_WKV6, GB_WKV7, GB_LINEAR_ATTN };

enum { GB_RECURRENT_WARPS = 4, GB_RECURRENT_SOURCES = 7 };

struct gb_recurrent {
    gb_view in[GB_RECURRENT_SOURCES]; // the sources of the operator, f32 with dense rows
    int64_t size, rows, heads, tokens, sequences; // tokens: of a sequence
    int64_t key_step, row_step; // of the states, in elements
    int64_t n_states; // states in the result: after the last token, after the one before it, ...
    const float * from; // states that the sequences start from
    int64_t from_step; // distance of the states of two sequences, in elements
    float *y, *states; // of the result
    float scale; // of the outputs
    gb_index_reader reader; // of SSM_SCAN
};

struct gb_recurrent_place { // of a warp
    int64_t row, head, sequence;
    int lane;
};

GB_DEVICE const float * gb_floats(const gb_view & v, int64_t i1, int64_t i2, int64_t i3) {
    return (const float *) (const void *) gb_at(v, 0, i1, i2, i3);
}

// The keys of a lane; zeros after the last.
template <int PER> struct gb_keys {
    float v[PER];
};

template <int PER> GB_DEVICE gb_keys<PER> gb_keys_at(const gb_recurrent & q, const float * p, int lane) {
    gb_keys<PER> k;
    GB_UNROLL for (int i = 0; i < PER; i++) {
        const int64_t key = lane + GB_WARP * i;
        k.v[i] = key < q.size ? p[key] : 0;
    }
    return k;
}

template <int PER> GB_DEVICE float gb_keys_dot(const gb_keys<PER> & a, const gb_keys<PER> & b) {
    float sum = 0;
    GB_UNROLL for (int i = 0; i < PER; i++) { sum += a.v[i] * b.v[i]; }
    return gb_warp_sum(sum);
}

// The row of the state that is n tokens before the end; n is below n_states.
GB_DEVICE float * gb_state_row(const gb_recurrent & q, const gb_recurrent_place & at, int64_t n) {
    return q.states + ((n * q.sequences + at.sequence) * q.heads + at.head) * q.rows * q.size + at.row * q.row_step;
}

template <int PER>
GB_DEVICE void gb_store_state(const gb_recurrent & q, const gb_recurrent_place & at, int64_t n,
    const gb_keys<PER> & s) {
    float * to = gb_state_row(q, at, n);
    GB_UNROLL for (int i = 0; i < PER; i++) {
        const int64_t key = at.lane + GB_WARP * i;
        if (key < q.size) {
            to[key * q.key_step] = s.v[i];
        }
    }
}

// x, dt, A, B, C of the token: s = s exp(d A) + d x B, y = s C, with d = softplus(dt).
template <int PER>
GB_DEVICE float gb_scan_token(const gb_recurrent & q, const gb_recurrent_place & at, int64_t t, gb_keys<PER> & s) {
    const int64_t group = at.head / (q.heads / q.in[4].ne[1]);
    const float dt = gb_floats(q.in[2], t, at.sequence, 0)[at.head], d = dt > 20 ? dt : log1pf(expf(dt));
    const float dx = d * gb_floats(q.in[1], at.head, t, at.sequence)[at.row];
    const float * A = gb_floats(q.in[3], at.head, 0, 0);
    const bool each = q.in[3].ne[0] != 1;
    const float decay = each ? 0 : expf(d * A[0]);
    const gb_keys<PER> B = gb_keys_at<PER>(q, gb_floats(q.in[4], group, t, at.sequence), at.lane),
                       C = gb_keys_at<PER>(q, gb_floats(q.in[5], group, t, at.sequence), at.lane);
    GB_UNROLL for (int i = 0; i < PER; i++) {
        const int64_t key = at.lane + GB_WARP * i;
        const float w = !each ? decay : key < q.size ? expf(d * A[key]) : 0;
        s.v[i] = s.v[i] * w + dx * B.v[i];
    }
    return gb_keys_dot(s, C);
}

// q, k, v, g, beta of the token: s = e^g s, then s = s + beta (v - s k) k, y = s q.
template <int PER>
GB_DEVICE float gb_delta_token(const gb_recurrent & q, const gb_recurrent_place & at, int64_t t, gb_keys<PER> & s) {
    const int64_t head = at.head % q.in[0].ne[1], sequence = at.sequence / (q.sequences / q.in[0].ne[3]);
    const gb_keys<PER> r = gb_keys_at<PER>(q, gb_floats(q.in[0], head, t, sequence), at.lane),
                       k = gb_keys_at<PER>(q, gb_floats(q.in[1], head, t, sequence), at.lane);
    const float * g = gb_floats(q.in[3], at.head, t, at.sequence);
    const bool each = q.in[3].ne[0] != 1;
    const float gate = each ? 0 : expf(g[0]);
    GB_UNROLL for (int i = 0; i < PER; i++) {
        const int64_t key = at.lane + GB_WARP * i;
        s.v[i] *= !each ? gate : key < q.size ? expf(g[key]) : 0;
    }
    const float v = gb_floats(q.in[2], at.head, t, at.sequence)[at.row],
                beta = gb_floats(q.in[4], at.head, t, at.sequence)[0];
    const float change = beta * (v - gb_keys_dot(s, k));
    GB_UNROLL for (int i = 0; i < PER; i++) { s.v[i] += change * k.v[i]; }
    return gb_keys_dot(s, r);
}

// The inputs and formulas of the other operators. Each of their inputs is dense.
template <int KIND, int PER>
GB_DEVICE float gb_heads_token(const gb_recurrent & q, const gb_recurrent_place & at, int64_t t, gb_keys<PER> & s) {
    const int64_t place = ((at.sequence * q.tokens + t) * q.heads + at.head) * q.size;
    const auto in = [&](int i) { return (const float *) (const void *) q.in[i].p + place; };
    if constexpr (KIND == GB_WKV7) { // r, w, k, v, a, b: s = w s + v k + (a s) b, y = r s
        const gb_keys<PER> r = gb_keys_at<PER>(q, in(0), at.lane), w = gb_keys_at<PER>(q, in(1), at.lane),
                           k = gb_keys_at<PER>(q, in(2), at.lane), a = gb_keys_at<PER>(q, in(4), at.lane),
                           b = gb_keys_at<PER>(q, in(5), at.lane);
        const float v = in(3)[at.row], c = gb_keys_dot(a, s);
        GB_UNROLL for (int i = 0; i < PER; i++) { s.v[i] = s.v[i] * w.v[i] + v * k.v[i] + c * b.v[i]; }
        return gb_keys_dot(r, s);
    } else if constexpr (KIND == GB_LINEAR_ATTN) { // k, v, q, g: s = g s + k v, y = q s
        const gb_keys<PER> k = gb_keys_at<PER>(q, in(0), at.lane), r = gb_keys_at<PER>(q, in(2), at.lane),
                           g = gb_keys_at<PER>(q, in(3), at.lane);
        const float v = in(1)[at.row];
        GB_UNROLL for (int i = 0; i < PER; i++) { s.v[i] = s.v[i] * g.v[i] + k.v[i] * v; }
        return gb_keys_dot(r, s);
    } else { // k, v, r, tf, td: y = r (tf k v + s), then s = td s + k v
        const gb_keys<PER> k = gb_keys_at<PER>(q, in(0), at.lane), r = gb_keys_at<PER>(q, in(2), at.lane),
                           td = gb_keys_at<PER>(q, in(4), at.lane),
                           tf =
                               gb_keys_at<PER>(q, (const float *) (const void *) q.in[3].p + at.head * q.size, at.lane);
        const float v = in(1)[at.row];
        gb_keys<PER> seen;
        GB_UNROLL for (int i = 0; i < PER; i++) {
            seen.v[i] = tf.v[i] * k.v[i] * v + s.v[i];
            s.v[i] = s.v[i] * td.v[i] + k.v[i] * v;
        }
        return gb_keys_dot(r, seen);
    }
}

// The state that the sequence starts from. NULL: its index is out of range.
template <int KIND> GB_DEVICE const float * gb_first_state(const gb_recurrent & q, const gb_recurrent_place & at) {
    int64_t number = at.sequence;
    if (KIND == GB_SSM_SCAN) {
        const gb_view & ids = q.in[6];
        const int32_t id = *(const int32_t *) (const void *) (ids.p + at.sequence * ids.nb[0]);
        number = id;
        if (id < 0 || id >= q.in[0].ne[3]) {
            if (at.row == 0 && at.head == 0 && at.lane == 0) {
                gb_note_wrong_index(q.reader, id, at.sequence, 0, 0);
            }
            return NULL;
        }
    }
    return q.from + number * q.from_step + at.head * q.rows * q.size + at.row * q.row_step;
}

template <int KIND, int PER>
GB_KERNEL GB_BOUNDS(GB_RECURRENT_WARPS * GB_WARP, 1) gb_recurrent_rows(gb_recurrent q, int64_t warps) {
    gb_wait_for_earlier();
    const int64_t number = (int64_t) blockIdx.x * GB_RECURRENT_WARPS + threadIdx.x / GB_WARP;
    if (number >= warps) {
        return; // the whole warp
    }
    const gb_recurrent_place at = { number % q.rows, number / q.rows % q.heads, number / q.rows / q.heads, gb_lane() };
    const float * from = gb_first_state<KIND>(q, at);
    gb_keys<PER> s;
    GB_UNROLL for (int i = 0; i < PER; i++) {
        const int64_t key = at.lane + GB_WARP * i;
        s.v[i] = key >= q.size ? 0 : from != NULL ? from[key * q.key_step] : NAN;
    }
    for (int64_t n = q.tokens; n < q.n_states; n++) { // states before the first token
        gb_store_state(q, at, n, s);
    }
    for (int64_t t = 0; t < q.tokens; t++) {
        float y;
        if constexpr (KIND == GB_SSM_SCAN) {
            y = gb_scan_token(q, at, t, s);
        } else if constexpr (KIND == GB_DELTA_NET) {
            y = gb_delta_token(q, at, t, s);
        } else {
            y = gb_heads_token<KIND>(q, at, t, s);
        }
        if (at.lane == 0) {
            q.y[((at.sequence * q.tokens + t) * q.heads + at.head) * q.rows + at.row] = y * q.scale;
        }
        if (q.tokens - 1 - t < q.n_states) {
            gb_store_state(q, at, q.tokens - 1 - t, s);
        }
    }
}

// A thread makes one output: the products of a channel's last samples with its kernel.
GB_KERNEL GB_BOUNDS(256, 1) gb_ssm_conv(gb_view y, gb_view x, gb_view c, int64_t n) {
    gb_wait_for_earlier();
    const int64_t k = gb_thread();
    if (k < n) {
        const gb_index at = gb_unravel<uint64_t>((uint64_t) k, y.ne); // channel, token, sequence
        const float *from = gb_floats(x, at.i[0], at.i[2], 0) + at.i[1], *w = gb_floats(c, at.i[0], 0, 0);
        float sum = 0;
        for (int64_t i = 0; i < c.ne[0]; i++) {
            sum += from[i] * w[i];
        }
        *(float *) (void *) gb_at(y, at) = sum;
    }
}

#endif // GB_CUDA_KERNELS_RECURRENT_CUH
