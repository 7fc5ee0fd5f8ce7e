// matvec_quick.cuh - products with one column and weights of common formats: Q4_0, Q8_0, Q4_K, Q6_K, IQ4_XS.
//
// Like matvec.cuh, with four or two rows per warp (stream.cuh). The loop computes little that is the
// same for all lanes.
// Rows are 16-aligned, so the lane alone determines the addresses of copies and of words in shared
// memory.
// All stretches but the last are whole. Quants are not shifted: a nibble in the high half of its
// byte counts 16 times. The constant that a format subtracts from its quants is subtracted from the
// sum. tools/count_sass.py counts the instructions of this loop.
#ifndef GB_CUDA_KERNELS_MATVEC_QUICK_CUH
#define GB_CUDA_KERNELS_MATVEC_QUICK_CUH

#include "cuda/kernels/matvec.cuh"
#include "cuda/kernels/stream.cuh"

enum { GB_QUICK_BLOCKS = 5 }; // on a multiprocessor

// Hides a value from the compiler: a constant, or a function of the lane. The value then stays in
// its register and is not computed again for each use. By all lanes.
template <class T> __device__ __forceinline__ T gb_quick_keep(T x) { return gb_shfl(x, gb_lane()); }

// A format. `place` holds values that depend on the lane. `group` is a lane's part of the
// activations, a group or as many elements of two groups. `load` reads it, and `prepare` converts
// it once for all rows. `add` multiplies it by the elements of a row, whose stretch is at `at` in
// shared memory, and adds up. The constants are:
//
//   bytes  of a stretch
//   chunk  bytes of a copy
//   pitch  bytes of a stretch in shared memory, including those that may be read after its end
template <int TYPE> struct gb_quick {
    static constexpr bool exists = false;
};

struct gb_quick_groups { // of formats whose lanes have a group each
    typedef gb_q8_group group;
    static GB_METHOD void load(group & x, const gb_q8_stretch * stretch, int lane) { x = gb_q8_load(stretch, lane); }
};

struct gb_quick_lane { // the place of formats that need nothing else
    int lane;
    GB_METHOD explicit gb_quick_lane(int lane_) : lane(lane_) {}
};

GB_DEVICE uint32_t gb_quick_word(const char * at, int offset) {
    return *(const uint32_t *) (const void *) (at + offset);
}

GB_DEVICE float gb_quick_half(const char * at, int offset) {
    return gb_half_bits_to_float(*(const uint16_t *) (const void *) (at + offset));
}

// Reads N words from the even `offset` on.
template <int N> GB_DEVICE void gb_quick_words(const char * at, int offset, uint32_t (&w)[N]) {
    const int aligned = offset & ~3;
    const uint32_t shift = (uint32_t) (offset & 3) * 8;
    uint32_t raw[N + 1];
    GB_UNROLL for (int i = 0; i <= N; i++) { raw[i] = gb_quick_word(at, aligned + 4 * i); }
    GB_UNROLL for (int i = 0; i < N; i++) { w[i] = gb_funnel_right(raw[i], raw[i + 1], shift); }
}

// Multiplies the low nibbles of four words by the first half of a group, the high ones by the second.
GB_DEVICE int gb_quick_nibbles(const uint32_t (&w)[4], const int (&q)[8], int start) {
    int sum = start * 16;
    GB_UNROLL for (int i = 0; i < 4; i++) { sum = gb_dp4a_unsigned(w[i] & 0xf0f0f0f0u, q[4 + i], sum); }
    sum >>= 4; // every term is a multiple of 16
    GB_UNROLL for (int i = 0; i < 4; i++) { sum = gb_dp4a_unsigned(w[i] & 0x0f0f0f0fu, q[i], sum); }
    return sum;
}

template <> struct gb_quick<GGML_TYPE_Q4_0> : gb_quick_groups {
    static constexpr bool exists = true;
    static constexpr int bytes = 32 * GB_BYTES(q4_0), chunk = 16, pitch = bytes + 16;
    typedef gb_quick_lane place;
    static GB_METHOD void prepare(gb_q8_group & x, const place &) { x.all *= -GB_ZERO(q4_0); }
    static GB_METHOD void add(const char * at, const place & p, const gb_q8_group & x, float & to) {
        const int lane = p.lane;
        uint32_t w[4];
        gb_quick_words(at, lane * GB_BYTES(q4_0) + GB_AT(q4_0, qs), w);
        to +=
            gb_quick_half(at, lane * GB_BYTES(q4_0) + GB_AT(q4_0, d)) * (x.d * (float) gb_quick_nibbles(w, x.q, x.all));
    }
};

template <> struct gb_quick<GGML_TYPE_Q8_0> : gb_quick_groups {
    static constexpr bool exists = true;
    static constexpr int bytes = 32 * GB_BYTES(q8_0), chunk = 16, pitch = bytes + 16;
    typedef gb_quick_lane place;
    static GB_METHOD void prepare(gb_q8_group &, const place &) {}
    static GB_METHOD void add(const char * at, const place & p, const gb_q8_group & x, float & to) {
        const int lane = p.lane;
        uint32_t w[8];
        int sum = 0;
        gb_quick_words(at, lane * GB_BYTES(q8_0) + GB_AT(q8_0, qs), w);
        GB_UNROLL for (int i = 0; i < 8; i++) { sum = gb_dp4a((int) w[i], x.q[i], sum); }
        to += gb_quick_half(at, lane * GB_BYTES(q8_0) + GB_AT(q8_0, d)) * (x.d * (float) sum);
    }
};

template <> struct gb_quick<GGML_TYPE_Q4_K> : gb_quick_groups {
    static constexpr bool exists = true;
    static constexpr int bytes = 4 * GB_BYTES(q4_k), chunk = 16, pitch = bytes;
    struct place {
        int head, qs; // bytes in a stretch
        uint32_t mask, bytes, move, six, four; // mask of the quants; bytes of the scales, and their bits
        float high; // 1/16 for quants in high nibbles, those of odd groups; else 1
        GB_METHOD explicit place(int lane) {
            const int g = lane % 8, j = g % 4;
            head = gb_quick_keep(lane / 8 * GB_BYTES(q4_k));
            qs = gb_quick_keep(lane / 8 * GB_BYTES(q4_k) + GB_AT(q4_k, qs) + g / 2 * 32);
            mask = gb_quick_keep(g % 2 != 0 ? 0xf0f0f0f0u : 0x0f0f0f0fu);
            high = gb_quick_keep(g % 2 != 0 ? 0.0625f : 1.0f);
            bytes = gb_quick_keep((uint32_t) (j | (j + 4) << 4));
            move = gb_quick_keep(g >= 4 ? 2u : 0u);
            six = gb_quick_keep(g >= 4 ? 0x3030u : 0x3f3fu);
            four = gb_quick_keep(g >= 4 ? 0x0f0fu : 0u);
        }
    };
    static GB_METHOD void prepare(gb_q8_group & x, const place & p) {
        x.minimum = x.d * (float) x.all;
        x.d *= p.high;
    }
    static GB_METHOD void add(const char * at, const place & p, const gb_q8_group & x, float & to) {
        const uint4 head = *(const uint4 *) (const void *) (at + p.head);
        const uint4 * qs = (const uint4 *) (const void *) (at + p.qs);
        const uint4 a = qs[0], b = qs[1];
        const uint32_t w[8] = { a.x, a.y, a.z, a.w, b.x, b.y, b.z, b.w };
        int sum = 0;
        GB_UNROLL for (int i = 0; i < 8; i++) { sum = gb_dp4a_unsigned(w[i] & p.mask, x.q[i], sum); }
        const float2 d = gb_unpack_half2(head.x); // of scales and of minima
        const uint32_t scale = (gb_perm(head.y, head.z, p.bytes) >> p.move & p.six) | // the next byte is the minimum
                               (gb_perm(head.w, head.w >> 4, p.bytes) & p.four);
        to += d.x * (x.d * (float) (sum * (int) (scale & 0xffu)));
        to -= d.y * (x.minimum * (float) (scale >> 8));
    }
};

// A lane has sixteen bytes of low bits. Their nibbles are halves of two groups, `side` and `side` +
// 2, of four. One shift moves the two high bits of both groups under one mask.
template <> struct gb_quick<GGML_TYPE_Q6_K> {
    static constexpr bool exists = true;
    static constexpr int bytes = 4 * GB_BYTES(q6_k), chunk = 8, pitch = (bytes + 31) / 16 * 16;
    struct place {
        int low, high, scale, d; // bytes in a stretch: of words; of the first scale, the second is 4 further
        uint32_t move_low, move_high; // bits
        GB_METHOD explicit place(int lane) {
            const int half = lane / 4 % 2, side = lane / 2 % 2, part = lane % 2, block = lane / 8 * GB_BYTES(q6_k);
            const int ql = block + GB_AT(q6_k, ql) + 64 * half + 32 * side + 16 * part,
                      qh = block + GB_AT(q6_k, qh) + 32 * half + 16 * part;
            low = gb_quick_keep(ql & ~3);
            high = gb_quick_keep(qh & ~3);
            move_low = gb_quick_keep((uint32_t) (ql & 3) * 8);
            move_high = gb_quick_keep((uint32_t) (qh & 3) * 8 + (uint32_t) side * 2);
            scale = gb_quick_keep(block + GB_AT(q6_k, scales) + 8 * half + 2 * side + part);
            d = gb_quick_keep(block + GB_AT(q6_k, d));
        }
    };
    struct group {
        int q[2][4], sum[2];
        float d[2];
    };
    static GB_METHOD void load(group & x, const gb_q8_stretch * stretch, int lane) {
        GB_UNROLL for (int i = 0; i < 2; i++) {
            const int part = lane % 2, g = lane / 4 * 4 + lane / 2 % 2 + 2 * i;
            const int4 q = *(const int4 *) (const void *) stretch->q[part][g];
            x.q[i][0] = q.x, x.q[i][1] = q.y, x.q[i][2] = q.z, x.q[i][3] = q.w;
            x.sum[i] = stretch->s[g][1 + part];
            x.d[i] = gb_bits_to_float((uint32_t) stretch->s[g][0]);
        }
    }
    static GB_METHOD void prepare(group & x, const place &) {
        x.sum[0] *= -GB_ZERO(q6_k);
        x.sum[1] *= -GB_ZERO(q6_k);
    }
    static GB_METHOD void words(const char * at, uint32_t move, uint32_t (&w)[4]) { // from bit `move` on
        uint32_t raw[5];
        GB_UNROLL for (int i = 0; i < 5; i++) { raw[i] = gb_quick_word(at, 4 * i); }
        GB_UNROLL for (int i = 0; i < 4; i++) { w[i] = gb_funnel_right(raw[i], raw[i + 1], move); }
    }
    static GB_METHOD void add(const char * at, const place & p, const group & x, float & to) {
        constexpr uint32_t nibble = 0x0f0f0f0fu;
        uint32_t low[4], high[4];
        words(at + p.low, p.move_low, low);
        words(at + p.high, p.move_high, high);
        int sum[2] = { x.sum[0], x.sum[1] };
        GB_UNROLL for (int i = 0; i < 4; i++) {
            // Bits 0 and 1 belong to the first group, 4 and 5 to the second.
            const uint32_t both = gb_select(0x33333333u, high[i], 0);
            const uint32_t first = gb_select(nibble, low[i], both << 4);
            const uint32_t second = gb_select(nibble, low[i] >> 4, both);
            sum[0] = gb_dp4a((int) first, x.q[0][i], sum[0]);
            sum[1] = gb_dp4a((int) second, x.q[1][i], sum[1]);
        }
        const int8_t * scale = (const int8_t *) at + p.scale;
        to += gb_quick_half(at, p.d) * (x.d[0] * (float) (sum[0] * scale[0]) + x.d[1] * (float) (sum[1] * scale[4]));
    }
};

template <> struct gb_quick<GGML_TYPE_IQ4_XS> : gb_quick_groups {
    static constexpr bool exists = true;
    static constexpr int bytes = 4 * GB_BYTES(iq4_xs), chunk = 16, pitch = bytes;
    struct place {
        int head, qs; // bytes in a stretch
        uint32_t low, high; // bits of the scale
        gb_table16 t;
        GB_METHOD explicit place(int lane) {
            const int g = lane % 8;
            head = gb_quick_keep(lane / 8 * GB_BYTES(iq4_xs));
            qs = gb_quick_keep(lane / 8 * GB_BYTES(iq4_xs) + GB_AT(iq4_xs, qs) + g * 16);
            low = gb_quick_keep((uint32_t) (4 * g));
            high = gb_quick_keep((uint32_t) (12 + 2 * g));
            t = gb_iq4_table();
            t.w[2] += 0x01010101u; // see `lookup`
            t.w[3] += 0x01010101u;
            GB_UNROLL for (int i = 0; i < 4; i++) { // a uniform value would not stay in a register
                t.w[i] = gb_quick_keep(t.w[i] ^ (uint32_t) lane) ^ (uint32_t) lane;
            }
        }
    };
    // Values are in the order of their nibbles, and so are the activations: low and high halves alternate.
    static GB_METHOD void prepare(gb_q8_group & x, const place &) {
        int q[8];
        GB_UNROLL for (int i = 0; i < 4; i++) {
            q[2 * i] = (int) gb_perm((uint32_t) x.q[i], (uint32_t) x.q[4 + i], 0x5140);
            q[2 * i + 1] = (int) gb_perm((uint32_t) x.q[i], (uint32_t) x.q[4 + i], 0x7362);
        }
        GB_UNROLL for (int i = 0; i < 8; i++) { x.q[i] = q[i]; }
    }
    // Adds four products of the nibbles in the low half of `codes`. A selector of 8 or more gives
    // the sign of a byte. Values of the lower half of the table are negative; values of the upper
    // half are not negative, and are stored plus 1. So the table without the value gives -1 or 0,
    // and both add up to the value.
    static GB_METHOD int lookup(const gb_table16 & t, uint32_t codes, uint32_t others, int x, int sum) {
        sum = gb_dp4a((int) gb_perm(t.w[0], t.w[1], codes), x, sum);
        return gb_dp4a((int) gb_perm(t.w[2], t.w[3], others), x, sum);
    }
    static GB_METHOD void add(const char * at, const place & p, const gb_q8_group & x, float & to) {
        const uint2 head = *(const uint2 *) (const void *) (at + p.head);
        const uint2 * qs = (const uint2 *) (const void *) (at + p.qs);
        const uint2 a = qs[0], b = qs[1];
        const uint32_t w[4] = { a.x, a.y, b.x, b.y };
        int sum = 0;
        GB_UNROLL for (int i = 0; i < 4; i++) {
            const uint32_t others = w[i] ^ 0x88888888u;
            sum = lookup(p.t, w[i], others, x.q[2 * i], sum);
            sum = lookup(p.t, w[i] >> 16, others >> 16, x.q[2 * i + 1], sum);
        }
        const uint32_t scale = (head.y >> p.low & 15) | (head.x >> p.high & 0x30);
        to += gb_half_bits_to_float((uint16_t) head.x) * (x.d * (float) (sum * ((int) scale - 32)));
    }
};

// Queues the copy of a stretch of a row. bytes: those that exist; WHOLE: all do. from: the lane's address.
template <int TYPE, bool WHOLE> GB_DEVICE void gb_quick_copy(char * to, const char * from, int lane, int bytes) {
    constexpr int chunk = gb_quick<TYPE>::chunk, step = 32 * chunk;
    GB_UNROLL for (int i = 0; i < gb_quick<TYPE>::bytes; i += step) {
        const int at = i + lane * chunk, left = (WHOLE ? gb_quick<TYPE>::bytes : bytes) - at;
        if ((WHOLE && i + step <= gb_quick<TYPE>::bytes) || left > 0) {
            const int n = WHOLE || left > chunk ? chunk : left;
            if constexpr (chunk == 16) {
                gb_cp_async_16(to + at, from + i, n);
            } else {
                gb_cp_async_8(to + at, from + i, n);
            }
        }
    }
}

template <int TYPE>
GB_DEVICE void gb_quick_multiply(const char * at, const typename gb_quick<TYPE>::place & place,
    const typename gb_quick<TYPE>::group & x, bool mine, float (&sum)[gb_stream::rows][1]) {
    GB_UNROLL for (int r = 0; r < gb_stream::rows; r++) {
        float more = sum[r][0];
        gb_quick<TYPE>::add(at + r * gb_quick<TYPE>::pitch, place, x, more);
        sum[r][0] = mine ? more : sum[r][0];
    }
}

// Where a warp's next copy reads.
template <int TYPE> struct gb_quick_cursor {
    typedef gb_quick<TYPE> format;
    const char * from[gb_stream::rows]; // the lane's address; rows past the last one repeat it
    int ahead, n, step;                 // stretches: the next one, of n, by how many it goes on
    int block;
    GB_METHOD void begin(const gb_matvec_group & q, const gb_matvec_place & at, int64_t m, size_t nb_m, int lane) {
        const bool any = at.a != NULL && at.row < m; // else nothing is read
        GB_UNROLL for (int r = 0; r < gb_stream::rows; r++) {
            from[r] = any ? at.a + gb_min<int64_t>(at.row + r, m - 1) * (int64_t) nb_m : (const char *) q.part[0].x;
            from[r] += at.first * format::bytes + lane * format::chunk;
        }
        ahead = at.first;
        n = any ? ((int) (q.part[0].k / 32) + 31) / 32 : 0;
        step = at.step;
    }
    GB_METHOD void advance() {
        ahead += step;
        GB_UNROLL for (int r = 0; r < gb_stream::rows; r++) { from[r] += step * format::bytes; }
    }
    // Queues the next copy if there is one.
    GB_METHOD void fetch(const gb_matvec_group & q, char * to, int last_bytes, int lane) {
        GB_UNROLL for (int r = 0; r < gb_stream::rows; r++) {
            if (ahead < n) {
                gb_quick_copy<TYPE, false>(to + r * format::pitch, from[r], lane,
                    ahead < n - 1 ? format::bytes : last_bytes);
            }
        }
        gb_cp_async_commit();
        advance();
        settle(q, lane);
    }
    // If nothing of these rows is left to copy, goes on to those of a later block of work.
    GB_METHOD void settle(const gb_matvec_group & q, int lane) {
        while (gb_stream::rolls && ahead >= n && block < q.blocks) {
            block += (int) gridDim.x;
            if (block < q.blocks) {
                const gb_matvec & p = q.part[gb_matvec_part(q, block)];
                begin(q, gb_matvec_where<1, gb_stream::rows>(q, block), p.m, p.w.nb_m, lane);
            }
        }
    }
};

// A warp's stages in shared memory.
template <int TYPE> struct gb_quick_ring {
    typedef gb_quick<TYPE> format;
    static constexpr int stages = (format::bytes > 800 ? 2 : 3) * gb_stream::stages,
                         stage = gb_stream::rows * format::pitch, size = stages * stage;
    char * at;
    int here, there; // bytes to the stages to compute and to copy to
    GB_METHOD static int after(int stage_at) { return stage_at == size - stage ? 0 : stage_at + stage; }
};

// Waits for a stage, starts the copy of another, and computes. WHOLE: the copy is of whole stretches of the same rows.
template <int TYPE, bool WHOLE>
GB_DEVICE void gb_quick_turn(const gb_matvec_group & q, gb_quick_ring<TYPE> & ring, gb_quick_cursor<TYPE> & cursor,
    const typename gb_quick<TYPE>::place & place, const gb_q8_stretch * x, int last_bytes, bool mine,
    float (&sum)[gb_stream::rows][1]) {
    typedef gb_quick<TYPE> format;
    const int lane = (int) threadIdx.x % 32;
    typename format::group group;
    if constexpr (gb_stream::early) {
        format::load(group, x, lane);
    }
    gb_cp_async_wait<gb_quick_ring<TYPE>::stages - 2>();
    gb_sync_warp(); // all copies have arrived, and no lane reads the stage that is overwritten next
    if constexpr (WHOLE) {
        GB_UNROLL for (int r = 0; r < gb_stream::rows; r++) {
            gb_quick_copy<TYPE, true>(ring.at + ring.there + r * format::pitch, cursor.from[r], lane, 0);
        }
        gb_cp_async_commit();
        cursor.advance();
    } else {
        cursor.fetch(q, ring.at + ring.there, last_bytes, lane);
    }
    if constexpr (!gb_stream::early) {
        format::load(group, x, lane);
    }
    format::prepare(group, place);
    gb_quick_multiply<TYPE>(ring.at + ring.here, place, group, mine, sum);
    ring.here = ring.after(ring.here);
    ring.there = ring.after(ring.there);
}

// One column; rows of weights are 16-aligned. A block does the work of block numbers blockIdx.x + i gridDim.x.
template <int TYPE> GB_KERNEL GB_BOUNDS(GB_MATVEC_WARPS * 32, GB_QUICK_BLOCKS) gb_matvec_quick(gb_matvec_group q) {
    typedef gb_quick<TYPE> format;
    typedef gb_quick_ring<TYPE> ring_of;
    constexpr int ROWS = gb_stream::rows;
    const int row_bytes = (int) (q.part[0].k / gb_format<TYPE>::block * gb_format<TYPE>::bytes);
    gb_matvec_begin<1, ROWS>(q, ring_of::stages - 1, format::bytes, row_bytes);
    GB_SHARED(char, rings, GB_MATVEC_WARPS * ring_of::size);
    ring_of ring = { rings + threadIdx.x / 32 * ring_of::size, 0, 0 };
    const int lane = (int) threadIdx.x % 32;
    const typename format::place place(lane);
    const int n_groups = (int) (q.part[0].k / 32), last_bytes = row_bytes - (n_groups - 1) / 32 * format::bytes;
    int block = (int) blockIdx.x;
    gb_matvec_place at = gb_matvec_where<1, ROWS>(q, block);
    const gb_matvec * p = &q.part[gb_matvec_part(q, block)];
    gb_quick_cursor<TYPE> cursor;
    cursor.block = block;
    cursor.begin(q, at, p->m, p->w.nb_m, lane);
    cursor.settle(q, lane);
    for (int s = 0; s < ring_of::stages - 1; s++, ring.there += ring_of::stage) {
        cursor.fetch(q, ring.at + ring.there, last_bytes, lane);
    }
    for (;;) {
        const int n = at.a != NULL && at.row < p->m ? (n_groups + 31) / 32 : 0; // stretches
        const gb_q8_stretch * x = (const gb_q8_stretch *) p->x + at.column * p->x_row + at.first;
        float sum[ROWS][1] = {};
        int c = at.first;
        for (; cursor.block == block && cursor.ahead < n - 1; c += at.step, x += at.step) {
            gb_quick_turn<TYPE, true>(q, ring, cursor, place, x, last_bytes, true, sum);
        }
        for (; c < n; c += at.step, x += at.step) {
            gb_quick_turn<TYPE, false>(q, ring, cursor, place, x, last_bytes, c * 32 + lane < n_groups, sum);
        }
        if (!gb_stream::rolls) {
            gb_cp_async_wait<0>();
        }
        gb_matvec_finish<1, ROWS>(*p, at, sum);
        block += (int) gridDim.x;
        if (!gb_stream::rolls || block >= q.blocks) {
            break;
        }
        at = gb_matvec_where<1, ROWS>(q, block);
        p = &q.part[gb_matvec_part(q, block)];
    }
    gb_cp_async_wait<0>();
}

#endif // GB_CUDA_KERNELS_MATVEC_QUICK_CUH
