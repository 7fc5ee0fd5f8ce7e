// matvec_quick.cuh - products with one column and weights of the formats that models have most: Q4_0, Q8_0, Q4_K, Q6_K,
// IQ4_XS.
//
// As matvec.cuh, with a warp for four rows and nothing in the loop that is the same for every stretch: the rows begin
// at addresses that 16 divides, so copies and words in shared memory lie where the lane's number says; stretches are
// whole but for the last. Quants are not moved to where their value is right: a nibble that stays in the high half of
// its byte counts sixteen times, and what a format subtracts from its quants is subtracted from the sum. The table of
// instructions that docs/CUDA.md has is counted from this loop (tools/count_sass.py).
#ifndef GB_CUDA_KERNELS_MATVEC_QUICK_CUH
#define GB_CUDA_KERNELS_MATVEC_QUICK_CUH

#include "cuda/kernels/matvec.cuh"

enum { GB_QUICK_ROWS = 4 };

// What the compiler takes for unknown: a constant, or what follows from the lane's number, then stays in its register,
// where it would be made again for each use. By all lanes.
template <class T> __device__ __forceinline__ T gb_quick_keep(T x) { return gb_shfl(x, gb_lane()); }

// What a format does: `place` is what follows from the lane's number; `prepare` makes of the lane's group of
// activations what suits it, once for all rows; `add` multiplies the lane's group of a row, whose stretch lies at `at`
// in shared memory, and adds it up. bytes: of a stretch; chunk: of a copy; room: of a stretch in shared memory, with
// what may be read past its end.
template <int TYPE> struct gb_quick {
    static constexpr bool exists = false;
};

struct gb_quick_lane { // the place of formats that need no more
    int lane;
    GB_METHOD explicit gb_quick_lane(int lane_) : lane(lane_) {}
};

GB_DEVICE uint32_t gb_quick_word(const char * at, int offset) {
    return *(const uint32_t *) (const void *) (at + offset);
}

GB_DEVICE float gb_quick_half(const char * at, int offset) {
    return gb_half_bits_to_float(*(const uint16_t *) (const void *) (at + offset));
}

// N words from the byte that the lane's number says on, which lies at an even address.
template <int N> GB_DEVICE void gb_quick_words(const char * at, int offset, uint32_t (&w)[N]) {
    const int      aligned = offset & ~3;
    const uint32_t shift   = (uint32_t) (offset & 3) * 8;
    uint32_t       raw[N + 1];
    GB_UNROLL for (int i = 0; i <= N; i++) { raw[i] = gb_quick_word(at, aligned + 4 * i); }
    GB_UNROLL for (int i = 0; i < N; i++) { w[i] = gb_funnel_right(raw[i], raw[i + 1], shift); }
}

// The low nibbles of four words with the first half of a group, the high ones with the second.
GB_DEVICE int gb_quick_nibbles(const uint32_t (&w)[4], const int (&q)[8], int start) {
    int sum = start * 16;
    GB_UNROLL for (int i = 0; i < 4; i++) { sum = gb_dp4a_unsigned(w[i] & 0xf0f0f0f0u, q[4 + i], sum); }
    sum >>= 4; // every term is a multiple of 16
    GB_UNROLL for (int i = 0; i < 4; i++) { sum = gb_dp4a_unsigned(w[i] & 0x0f0f0f0fu, q[i], sum); }
    return sum;
}

template <> struct gb_quick<GGML_TYPE_Q4_0> {
    static constexpr bool exists = true;
    static constexpr int  bytes = 32 * GB_BYTES(q4_0), chunk = 16, room = bytes + 16;
    typedef gb_quick_lane place;
    static GB_METHOD void prepare(gb_q8_group & x, const place &) { x.all *= -GB_ZERO(q4_0); }
    static GB_METHOD void add(const char * at, const place & p, const gb_q8_group & x, float & to) {
        const int lane = p.lane;
        uint32_t  w[4];
        gb_quick_words(at, lane * GB_BYTES(q4_0) + GB_AT(q4_0, qs), w);
        to +=
            gb_quick_half(at, lane * GB_BYTES(q4_0) + GB_AT(q4_0, d)) * (x.d * (float) gb_quick_nibbles(w, x.q, x.all));
    }
};

template <> struct gb_quick<GGML_TYPE_Q8_0> {
    static constexpr bool exists = true;
    static constexpr int  bytes = 32 * GB_BYTES(q8_0), chunk = 16, room = bytes + 16;
    typedef gb_quick_lane place;
    static GB_METHOD void prepare(gb_q8_group &, const place &) {}
    static GB_METHOD void add(const char * at, const place & p, const gb_q8_group & x, float & to) {
        const int lane = p.lane;
        uint32_t  w[8];
        int       sum = 0;
        gb_quick_words(at, lane * GB_BYTES(q8_0) + GB_AT(q8_0, qs), w);
        GB_UNROLL for (int i = 0; i < 8; i++) { sum = gb_dp4a((int) w[i], x.q[i], sum); }
        to += gb_quick_half(at, lane * GB_BYTES(q8_0) + GB_AT(q8_0, d)) * (x.d * (float) sum);
    }
};

template <> struct gb_quick<GGML_TYPE_Q4_K> {
    static constexpr bool exists = true;
    static constexpr int  bytes = 4 * GB_BYTES(q4_k), chunk = 16, room = bytes;
    struct place {
        int      head, qs;                     // bytes in a stretch
        uint32_t mask, bytes, move, six, four; // of quants; which bytes of the scales, and which bits of these
        float    high;                         // what quants in high nibbles, those of odd groups, count less
        GB_METHOD explicit place(int lane) {
            const int g = lane % 8, j = g % 4;
            head  = gb_quick_keep(lane / 8 * GB_BYTES(q4_k));
            qs    = gb_quick_keep(lane / 8 * GB_BYTES(q4_k) + GB_AT(q4_k, qs) + g / 2 * 32);
            mask  = gb_quick_keep(g % 2 != 0 ? 0xf0f0f0f0u : 0x0f0f0f0fu);
            high  = gb_quick_keep(g % 2 != 0 ? 0.0625f : 1.0f);
            bytes = gb_quick_keep((uint32_t) (j | (j + 4) << 4));
            move  = gb_quick_keep(g >= 4 ? 2u : 0u);
            six   = gb_quick_keep(g >= 4 ? 0x3030u : 0x3f3fu);
            four  = gb_quick_keep(g >= 4 ? 0x0f0fu : 0u);
        }
    };
    static GB_METHOD void prepare(gb_q8_group & x, const place & p) {
        x.minimum = x.d * (float) x.all;
        x.d *= p.high;
    }
    static GB_METHOD void add(const char * at, const place & p, const gb_q8_group & x, float & to) {
        const uint4    head = *(const uint4 *) (const void *) (at + p.head);
        const uint4 *  qs   = (const uint4 *) (const void *) (at + p.qs);
        const uint4    a = qs[0], b = qs[1];
        const uint32_t w[8] = { a.x, a.y, a.z, a.w, b.x, b.y, b.z, b.w };
        int            sum  = 0;
        GB_UNROLL for (int i = 0; i < 8; i++) { sum = gb_dp4a_unsigned(w[i] & p.mask, x.q[i], sum); }
        const float2   d     = gb_unpack_half2(head.x);                               // of scales and of minima
        const uint32_t scale = (gb_perm(head.y, head.z, p.bytes) >> p.move & p.six) | // and, in the next byte, minimum
                               (gb_perm(head.w, head.w >> 4, p.bytes) & p.four);
        to += d.x * (x.d * (float) (sum * (int) (scale & 0xffu)));
        to -= d.y * (x.minimum * (float) (scale >> 8));
    }
};

template <> struct gb_quick<GGML_TYPE_Q6_K> {
    static constexpr bool exists = true;
    static constexpr int  bytes = 4 * GB_BYTES(q6_k), chunk = 8, room = (bytes + 31) / 16 * 16;
    struct place {
        int      low, high, scale, d; // bytes in a stretch: of words
        uint32_t move_low, move_high; // bits
        GB_METHOD explicit place(int lane) {
            const int g = lane % 8, block = lane / 8 * GB_BYTES(q6_k);
            const int low_bit  = (block + GB_AT(q6_k, ql) + g / 4 * 64 + g % 2 * 32) * 8 + g / 2 % 2 * 4;
            const int high_bit = (block + GB_AT(q6_k, qh) + g / 4 * 32) * 8 + g % 4 * 2 - 4; // two bits become 4 and 5
            low                = gb_quick_keep(low_bit / 32 * 4);
            high               = gb_quick_keep(high_bit / 32 * 4);
            move_low           = gb_quick_keep((uint32_t) low_bit % 32);
            move_high          = gb_quick_keep((uint32_t) high_bit % 32);
            scale              = gb_quick_keep(block + GB_AT(q6_k, scales) + 2 * g);
            d                  = gb_quick_keep(block + GB_AT(q6_k, d));
        }
    };
    static GB_METHOD void prepare(gb_q8_group & x, const place &) {
        x.sum[0] *= -GB_ZERO(q6_k);
        x.sum[1] *= -GB_ZERO(q6_k);
    }
    // Eight words from a bit on: a value then lies where it is used, and only needs a mask.
    static GB_METHOD void words(const char * at, uint32_t move, uint32_t (&w)[8]) {
        uint32_t raw[9];
        GB_UNROLL for (int i = 0; i < 9; i++) { raw[i] = gb_quick_word(at, 4 * i); }
        GB_UNROLL for (int i = 0; i < 8; i++) { w[i] = gb_funnel_right(raw[i], raw[i + 1], move); }
    }
    static GB_METHOD void add(const char * at, const place & p, const gb_q8_group & x, float & to) {
        uint32_t low[8], high[8];
        words(at + p.low, p.move_low, low);
        words(at + p.high, p.move_high, high);
        int sum[2] = { x.sum[0], x.sum[1] };
        GB_UNROLL for (int i = 0; i < 8; i++) {
            const uint32_t both = (low[i] & 0x0f0f0f0fu) | (high[i] & 0x30303030u);
            sum[i / 4]          = gb_dp4a((int) both, x.q[i], sum[i / 4]);
        }
        const int8_t * scale = (const int8_t *) at + p.scale;
        to += gb_quick_half(at, p.d) * (x.d * (float) (sum[0] * scale[0] + sum[1] * scale[1]));
    }
};

template <> struct gb_quick<GGML_TYPE_IQ4_XS> {
    static constexpr bool exists = true;
    static constexpr int  bytes = 4 * GB_BYTES(iq4_xs), chunk = 16, room = bytes;
    struct place {
        int        head, qs;  // bytes in a stretch
        uint32_t   low, high; // bits of the scale
        gb_table16 t;
        GB_METHOD explicit place(int lane) {
            const int g = lane % 8;
            head        = gb_quick_keep(lane / 8 * GB_BYTES(iq4_xs));
            qs          = gb_quick_keep(lane / 8 * GB_BYTES(iq4_xs) + GB_AT(iq4_xs, qs) + g * 16);
            low         = gb_quick_keep((uint32_t) (4 * g));
            high        = gb_quick_keep((uint32_t) (12 + 2 * g));
            t           = gb_iq4_table();
            GB_UNROLL for (int i = 0; i < 4; i++) { // what is the same in all lanes would not be kept
                t.w[i] = gb_quick_keep(t.w[i] ^ (uint32_t) lane) ^ (uint32_t) lane;
            }
        }
    };
    // Values come in the order of their nibbles, so the activations do: low and high halves alternate.
    static GB_METHOD void prepare(gb_q8_group & x, const place &) {
        int q[8];
        GB_UNROLL for (int i = 0; i < 4; i++) {
            q[2 * i]     = (int) gb_perm((uint32_t) x.q[i], (uint32_t) x.q[4 + i], 0x5140);
            q[2 * i + 1] = (int) gb_perm((uint32_t) x.q[i], (uint32_t) x.q[4 + i], 0x7362);
        }
        GB_UNROLL for (int i = 0; i < 8; i++) { x.q[i] = q[i]; }
    }
    // The values of eight nibbles, in their order. A selector's high half is not looked at.
    static GB_METHOD void lookup(const gb_table16 & t, uint32_t codes, uint32_t (&v)[2]) {
        const uint32_t three = codes & 0x77777777u, fourth = 0x32103210u | (codes >> 1 & 0x44444444u);
        GB_UNROLL for (int i = 0; i < 2; i++) {
            const uint32_t low  = gb_perm(t.w[0], t.w[1], three >> 16 * i),
                           high = gb_perm(t.w[2], t.w[3], three >> 16 * i);
            v[i]                = gb_perm(low, high, fourth >> 16 * i);
        }
    }
    static GB_METHOD void add(const char * at, const place & p, const gb_q8_group & x, float & to) {
        const uint2    head = *(const uint2 *) (const void *) (at + p.head);
        const uint2 *  qs   = (const uint2 *) (const void *) (at + p.qs);
        const uint2    a = qs[0], b = qs[1];
        const uint32_t w[4] = { a.x, a.y, b.x, b.y };
        int            sum  = 0;
        GB_UNROLL for (int i = 0; i < 4; i++) {
            uint32_t v[2];
            lookup(p.t, w[i], v);
            sum = gb_dp4a((int) v[0], x.q[2 * i], sum);
            sum = gb_dp4a((int) v[1], x.q[2 * i + 1], sum);
        }
        const uint32_t scale = (head.y >> p.low & 15) | (head.x >> p.high & 0x30);
        to += gb_half_bits_to_float((uint16_t) head.x) * (x.d * (float) (sum * ((int) scale - 32)));
    }
};

// Queues the copy of a stretch of a row: bytes are those that there are, `whole` all of them. from: the lane's place.
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
    const gb_q8_stretch * stretch, bool mine, float (&sum)[GB_QUICK_ROWS][1]) {
    gb_q8_group x = gb_q8_load(stretch, (int) threadIdx.x % 32);
    gb_quick<TYPE>::prepare(x, place);
    GB_UNROLL for (int r = 0; r < GB_QUICK_ROWS; r++) {
        float more = sum[r][0];
        gb_quick<TYPE>::add(at + r * gb_quick<TYPE>::room, place, x, more);
        sum[r][0] = mine ? more : sum[r][0];
    }
}

// One column; rows of weights begin at addresses that 16 divides.
template <int TYPE> GB_KERNEL GB_BOUNDS(GB_MATVEC_WARPS * 32, 5) gb_matvec_quick(gb_matvec p) {
    typedef gb_quick<TYPE> format;
    constexpr int          ROWS = GB_QUICK_ROWS, STAGES = format::bytes > 800 ? 2 : 3, stage = ROWS * format::room;
    GB_SHARED(char, rings, GB_MATVEC_WARPS * STAGES * stage);
    const int                    lane = (int) threadIdx.x % 32;
    char * const                 ring = rings + threadIdx.x / 32 * (STAGES * stage);
    const gb_matvec_place        at   = gb_matvec_where<1, ROWS>(p);
    const bool                   any  = at.a != NULL && at.row < p.m;
    const typename format::place place(lane);
    const int                    n_groups = any ? (int) (p.k / 32) : 0, n = (n_groups + 31) / 32; // stretches
    const int last_bytes = (int) (p.k / gb_format<TYPE>::block * gb_format<TYPE>::bytes) - (n - 1) * format::bytes;

    const char * from[ROWS]; // of the next copy; rows past the last one repeat it; without rows nobody follows it
    GB_UNROLL for (int r = 0; r < ROWS; r++) {
        from[r] = any ? at.a + gb_min<int64_t>(at.row + r, p.m - 1) * (int64_t) p.w.nb_m : (const char *) p.x;
        from[r] += at.first * format::bytes + lane * format::chunk;
    }
    const gb_q8_stretch * x            = (const gb_q8_stretch *) p.x + at.column * p.x_row + at.first;
    float                 sum[ROWS][1] = {};
    int                   ahead = at.first, here = 0, there = 0; // stretch to copy; stages to compute, to copy to
    for (int s = 0; s < STAGES - 1; s++) {
        GB_UNROLL for (int r = 0; r < ROWS; r++) {
            if (ahead < n) {
                gb_quick_copy<TYPE, false>(ring + there + r * format::room, from[r], lane,
                    ahead < n - 1 ? format::bytes : last_bytes);
            }
            from[r] += at.step * format::bytes;
        }
        gb_cp_async_commit();
        ahead += at.step;
        there += stage;
    }
    for (; ahead < n - 1; ahead += at.step, x += at.step) { // all of these are whole, and so are those before them
        gb_cp_async_wait<STAGES - 2>();
        gb_sync_warp(); // the copies of all lanes have arrived, and all have read what is overwritten next
        GB_UNROLL for (int r = 0; r < ROWS; r++) {
            gb_quick_copy<TYPE, true>(ring + there + r * format::room, from[r], lane, 0);
            from[r] += at.step * format::bytes;
        }
        gb_cp_async_commit();
        gb_quick_multiply<TYPE>(ring + here, place, x, true, sum);
        here  = here == (STAGES - 1) * stage ? 0 : here + stage;
        there = there == (STAGES - 1) * stage ? 0 : there + stage;
    }
    for (int c = ahead - (STAGES - 1) * at.step; c < n; c += at.step, ahead += at.step, x += at.step) {
        gb_cp_async_wait<STAGES - 2>();
        gb_sync_warp();
        GB_UNROLL for (int r = 0; r < ROWS; r++) {
            if (ahead < n) {
                gb_quick_copy<TYPE, false>(ring + there + r * format::room, from[r], lane, last_bytes);
            }
        }
        gb_cp_async_commit();
        gb_quick_multiply<TYPE>(ring + here, place, x, c * 32 + lane < n_groups, sum);
        here  = here == (STAGES - 1) * stage ? 0 : here + stage;
        there = there == (STAGES - 1) * stage ? 0 : there + stage;
    }
    gb_cp_async_wait<0>();
    gb_matvec_finish<1, ROWS>(p, at, sum);
}

#endif // GB_CUDA_KERNELS_MATVEC_QUICK_CUH
