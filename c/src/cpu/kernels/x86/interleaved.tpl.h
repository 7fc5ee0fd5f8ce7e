// interleaved.tpl.h - multiplies few rows of activations with quantized columns, sixteen groups of
// terms in parallel.
//
// A unit is 16 consecutive groups: 512 terms, or 256 if groups have 16 terms ("halves"). Each group
// has a lane. A unit is 8 (4) vectors of words and two vectors of floats. Vector j holds word j,
// four bytes, of each group. Byte products are added in the lane of their group. One multiplication
// and one FMA then add all sixteen groups to a vector of float sums. So no data moves between
// lanes.
//
// interleave_row converts rows of activations to this order once: words, scales D, and S or the
// centered sums of int8.tpl.h. Columns are converted while they are multiplied: registers take the
// blocks of a format, order them and unpack them. So data moves in the packed form that it has in
// memory. Formats without such a function (interleaved_formats.tpl.h) are unpacked by their kernel
// (unpack.tpl.h) and ordered then.
//
// The tail of a column is the groups after its last whole unit. It is cut into one or two parts of
// 16, 8, 4, 2 or 1 groups, of which the last may be padded. The same part of several columns fills
// a unit, so the cost of a tail is about proportional to its terms. Rows hold each part of their
// tail as a unit that repeats it. The lanes of a part are added separately, and their sum is added
// to the sum of the whole units.
//
// The order of a sum does not depend on the rows and columns that are computed together. It also
// does not depend on whether columns are unpacked while they are multiplied (interleaved_dots) or
// before (interleave_column, interleaved_tile).

#define INTERLEAVED_ROWS GB_INTERLEAVED_X
#define INTERLEAVED_DIRECT GB_INTERLEAVED_W
#define INTERLEAVED_COLUMNS GB_INTERLEAVED_W_READY
#define ROW_STREAMS GB_INTERLEAVED_STREAMS
#define INTERLEAVED_K GB_UNPACK_MAX // terms that are unpacked together
#define TAIL_COLUMNS V_N // columns whose tails are copied together: a unit has parts of up to sixteen columns
static_assert(V_N == GB_INTERLEAVED_LANES, "a vector has a lane for each group of a unit");

#include "interleaved_formats.tpl.h"

// ------------------------------------------------------------------------------------------------------------ products

#define INTERLEAVED_TERMS(halves) GB_INTERLEAVED_UNIT_TERMS(halves)
#define INTERLEAVED_SIZE(halves) GB_INTERLEAVED_UNIT_SIZE(halves)

static ALWAYS_INLINE void prefetch_lines_(const uint8_t * p, size_t size) {
    for (size_t i = 0; i < size; i += 64) {
        PREFETCH_L2(p + i);
    }
}

// Adds the products of a unit of nw columns with the unit at byte `at` of nx rows to float sums.
static ALWAYS_INLINE void multiply_interleaved_(int nw, int nx, bool halves, bool centered,
    const struct interleaved s[INTERLEAVED_DIRECT], const char * const * x, size_t at,
    vf acc[INTERLEAVED_DIRECT][INTERLEAVED_ROWS]) {
    const int words = halves ? 4 : 8;
    UNROLL
    for (int j = 0; j < nx; j++) {
        const char * const p = x[j] + at;
        const vf d = v_from_bits(words_(p + 64 * words)), end = v_from_bits(words_(p + 64 * words + 64));
        vi sum[INTERLEAVED_DIRECT];
        UNROLL
        for (int i = 0; i < nw; i++) {
            sum[i] = centered ? v_bits(end) : vi_set(0);
        }
        UNROLL
        for (int l = 0; l < words; l++) {
            vi q = words_(p + 64 * l);
            if (nw > 1) {
                IN_REGISTER(q);
            }
            UNROLL
            for (int i = 0; i < nw; i++) {
                sum[i] = vi_dot4(sum[i], s[i].u[l], q);
            }
        }
        UNROLL
        for (int i = 0; i < nw; i++) {
            acc[i][j] = v_fma(v_from_int(sum[i]), v_mul(s[i].d, d), acc[i][j]);
            acc[i][j] = centered ? acc[i][j] : v_fma(s[i].m, end, acc[i][j]);
        }
    }
}

// Loads float sums if `accumulate`, else sets them to 0.
static ALWAYS_INLINE void load_sums_(int nw, int nx, vf sums[][INTERLEAVED_ROWS], const float * acc, bool accumulate) {
    UNROLL
    for (int i = 0; i < nw; i++) {
        UNROLL
        for (int j = 0; j < nx; j++) {
            sums[i][j] = accumulate ? v_load(acc + (i * INTERLEAVED_ROWS + j) * V_N) : v_set(0.0f);
        }
    }
}

static ALWAYS_INLINE void store_sums_(int nw, int nx, vf sums[][INTERLEAVED_ROWS], float * acc) {
    UNROLL
    for (int i = 0; i < nw; i++) {
        UNROLL
        for (int j = 0; j < nx; j++) {
            v_store(acc + (i * INTERLEAVED_ROWS + j) * V_N, sums[i][j]);
        }
    }
}

// Stores the sums of the lanes of four vectors.
static ALWAYS_INLINE void sums_of_four_(const vf a[4], float * y) {
    vf t = half_sums_(half_sums_(a[0], a[1]), half_sums_(a[2], a[3]));
    t = v_add(t, _mm512_permute_ps(t, 0x4e));
    t = v_add(t, _mm512_permute_ps(t, 0xb1));
    t = _mm512_permutexvar_ps(_mm512_setr_epi32(0, 4, 8, 12, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0), t);
    _mm_storeu_ps(y, _mm512_castps512_ps128(t));
}

static ALWAYS_INLINE void store_interleaved_(bool halves, bool centered, const struct interleaved * s, char * y) {
    const int words = halves ? 4 : 8;
    UNROLL
    for (int i = 0; i < words; i++) {
        _mm512_storeu_si512(y + 64 * i, s->u[i]);
    }
    _mm512_storeu_ps(y + 64 * words, s->d);
    if (!centered) {
        _mm512_storeu_ps(y + 64 * words + 64, s->m);
    }
}

struct unpacked { // levels, scales and minima of consecutive groups
    uint8_t u[INTERLEAVED_K];
    float d[INTERLEAVED_K / 16], m[INTERLEAVED_K / 16];
};

static ALWAYS_INLINE void interleave_unpacked_(bool halves, const struct unpacked * a, int64_t index,
    struct interleaved * s) {
    const int words = halves ? 4 : 8;
    UNROLL
    for (int i = 0; i < words; i++) {
        s->u[i] = words_(a->u + index * INTERLEAVED_TERMS(halves) + 64 * i);
    }
    transpose_groups_(halves, s->u);
    s->d = v_load(a->d + 16 * index);
    s->m = v_load(a->m + 16 * index);
}

struct dots_task { // of interleaved_dots
    const uint8_t *w[INTERLEAVED_DIRECT], *next[INTERLEAVED_DIRECT];
    const char * x[INTERLEAVED_ROWS];
    bool accumulate;
};

// Unpacks sixteen groups of consecutive blocks by interleave_<stem>_ if the format has it, else by
// unpack_<stem>.
#define UNIT_BY_KERNEL(stem, halves)                                                            \
    static ALWAYS_INLINE void interleave_##stem##_(const uint8_t * p, struct interleaved * s) { \
        struct unpacked a;                                                                      \
        unpack_##stem(INTERLEAVED_TERMS(halves), a.u, a.d, a.m, p);                             \
        interleave_unpacked_(halves, &a, 0, s);                                                 \
    }

// Defines functions for whole units of a format: dot products with rows, and unpacking columns
// before.
#define INTERLEAVED_OF(stem, halves, zero, block, size)                                                         \
    static ALWAYS_INLINE void interleaved_dots_##stem##_(int nw, int nx, int64_t k, float * sums,               \
        const struct dots_task * t) {                                                                           \
        struct interleaved s[INTERLEAVED_DIRECT];                                                               \
        vf acc[INTERLEAVED_DIRECT][INTERLEAVED_ROWS];                                                           \
        size_t at = 0, byte = 0;                                                                                \
        load_sums_(nw, nx, acc, sums, t->accumulate);                                                           \
        for (; k >= INTERLEAVED_TERMS(halves);                                                                  \
            k -= INTERLEAVED_TERMS(halves), at += INTERLEAVED_SIZE(halves), byte += INTERLEAVED_BYTES_##stem) { \
            UNROLL                                                                                              \
            for (int i = 0; i < nw; i++) {                                                                      \
                prefetch_lines_(t->next[i] + byte, INTERLEAVED_BYTES_##stem);                                   \
                interleave_##stem##_(t->w[i] + byte, &s[i]);                                                    \
            }                                                                                                   \
            multiply_interleaved_(nw, nx, halves, (zero) != 0, s, t->x, at, acc);                               \
        }                                                                                                       \
        store_sums_(nw, nx, acc, sums);                                                                         \
    }                                                                                                           \
    static void interleave_column_##stem##_(int64_t k, char * y, const uint8_t * p) {                           \
        struct interleaved s;                                                                                   \
        for (; k >= INTERLEAVED_TERMS(halves);                                                                  \
            k -= INTERLEAVED_TERMS(halves), y += INTERLEAVED_SIZE(halves), p += INTERLEAVED_BYTES_##stem) {     \
            interleave_##stem##_(p, &s);                                                                        \
            store_interleaved_(halves, (zero) != 0, &s, y);                                                     \
        }                                                                                                       \
    }

// The same for formats that unpack_<stem> unpacks, INTERLEAVED_K terms at a time.
#define INTERLEAVED_BY_KERNEL(stem, halves, zero, block, size)                                                    \
    static ALWAYS_INLINE int64_t unpack_part_##stem##_(struct unpacked * a, int64_t k, const uint8_t * p) {       \
        const int64_t terms = k < INTERLEAVED_K ? k : INTERLEAVED_K;                                              \
        unpack_##stem(terms, a->u, a->d, a->m, p);                                                                \
        return terms / INTERLEAVED_TERMS(halves);                                                                 \
    }                                                                                                             \
    static ALWAYS_INLINE void interleaved_column_dots_##stem##_(int nx, int64_t k, float * sums,                  \
        const struct dots_task * t, int column) {                                                                 \
        vf acc[INTERLEAVED_DIRECT][INTERLEAVED_ROWS];                                                             \
        struct unpacked a;                                                                                        \
        struct interleaved s[INTERLEAVED_DIRECT];                                                                 \
        const uint8_t * p = t->w[column];                                                                         \
        size_t at = 0;                                                                                            \
        load_sums_(1, nx, acc, sums, t->accumulate);                                                              \
        for (; k > 0; k -= INTERLEAVED_K, p += INTERLEAVED_K / (block) * (size)) {                                \
            const int64_t units = unpack_part_##stem##_(&a, k, p);                                                \
            prefetch_lines_(t->next[column] + (p - t->w[column]),                                                 \
                (size_t) (k < INTERLEAVED_K ? k : INTERLEAVED_K) / (block) * (size));                             \
            for (int64_t i = 0; i < units; i++, at += INTERLEAVED_SIZE(halves)) {                                 \
                interleave_unpacked_(halves, &a, i, s);                                                           \
                multiply_interleaved_(1, nx, halves, (zero) != 0, s, t->x, at, acc);                              \
            }                                                                                                     \
        }                                                                                                         \
        store_sums_(1, nx, acc, sums);                                                                            \
    }                                                                                                             \
    static void interleaved_dots_##stem##_(int nw, int nx, int64_t k, float * sums, const struct dots_task * t) { \
        for (int i = 0; i < nw; i++, sums += INTERLEAVED_ROWS * V_N) {                                            \
            switch (nx) {                                                                                         \
                case 1: interleaved_column_dots_##stem##_(1, k, sums, t, i); break;                               \
                case 2: interleaved_column_dots_##stem##_(2, k, sums, t, i); break;                               \
                default: interleaved_column_dots_##stem##_(4, k, sums, t, i); break;                              \
            }                                                                                                     \
        }                                                                                                         \
    }                                                                                                             \
    static void interleave_column_##stem##_(int64_t k, char * y, const uint8_t * p) {                             \
        struct unpacked a;                                                                                        \
        struct interleaved s;                                                                                     \
        for (; k > 0; k -= INTERLEAVED_K, p += INTERLEAVED_K / (block) * (size)) {                                \
            const int64_t units = unpack_part_##stem##_(&a, k, p);                                                \
            for (int64_t i = 0; i < units; i++, y += INTERLEAVED_SIZE(halves)) {                                  \
                interleave_unpacked_(halves, &a, i, &s);                                                          \
                store_interleaved_(halves, (zero) != 0, &s, y);                                                   \
            }                                                                                                     \
        }                                                                                                         \
    }

// ----------------------------------------------------------------------------------------------------------- the tails

struct tails {
    int n, groups, padded; // columns; groups of a tail, and of its padded parts
    const uint8_t * w; // tail of column 0
    size_t nb_w, ahead;
    const char * x[INTERLEAVED_ROWS]; // tails of the rows
    float * y[INTERLEAVED_ROWS];
    int rows; // rows to store: three rows are computed as four
    bool add;
};

// Copies `valid` bytes of each of n columns, `bytes` apart, and sets the bytes between them to 0.
// Writes up to 63 bytes after the last column, too. Does not read the bytes after a part, because
// they may be outside the buffer, or another thread may write them.
static ALWAYS_INLINE void gather_tails_(uint8_t * y, size_t bytes, const uint8_t * w, size_t valid, size_t nb_w, int n,
    size_t ahead) {
    const size_t last = (valid - 1) / 64 * 64;
    const __mmask64 rest = ~(__mmask64) 0 >> (64 - (valid - last));
    for (int i = 0; i < n; i++, w += nb_w, y += bytes) {
        for (size_t at = 0; at < last; at += 64) {
            PREFETCH_L2(w + ahead + at);
            _mm512_storeu_si512(y + at, words_(w + at));
        }
        PREFETCH_L2(w + ahead + last);
        _mm512_storeu_si512(y + last, _mm512_maskz_loadu_epi8(rest, w + last));
        for (size_t at = last + 64; at < bytes; at += 64) {
            _mm512_storeu_si512(y + at, vi_set(0));
        }
    }
}

// Adds the lanes of each of n parts of a unit, and stores the sums as results of columns c .. c + n - 1.
static ALWAYS_INLINE void store_tails_(int nx, const struct tails * t, const vf sums[INTERLEAVED_ROWS], int c, int n,
    int groups, bool add) {
    const vi firsts =
        _mm512_mullo_epi32(_mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15), vi_set(groups));
    for (int j = 0; j < nx && j < t->rows; j++) {
        vf a = sums[j];
        a = groups > 8 ? v_add(a, _mm512_shuffle_f32x4(a, a, 0x4e)) : a;
        a = groups > 4 ? v_add(a, _mm512_shuffle_f32x4(a, a, 0xb1)) : a;
        a = groups > 2 ? v_add(a, _mm512_permute_ps(a, 0x4e)) : a;
        a = groups > 1 ? v_add(a, _mm512_permute_ps(a, 0xb1)) : a;
        a = _mm512_permutexvar_ps(firsts, a);
        v_store_n(t->y[j] + c, add ? v_add(v_load_n(t->y[j] + c, n), a) : a, n);
    }
}

#define INTERLEAVED_TAILS(stem, halves, zero, block, size)                                                      \
    static ALWAYS_INLINE void interleaved_tails_##stem##_(int nx, const struct tails * t) {                     \
        uint8_t blocks[TAIL_COLUMNS * INTERLEAVED_BYTES_##stem + 64];                                           \
        const uint8_t * w = t->w;                                                                               \
        size_t at = 0;                                                                                          \
        int left = t->groups;                                                                                   \
        for (int groups = 16; groups > 0; groups /= 2) {                                                        \
            const int each = 16 / groups, valid = left < groups ? left : groups;                                \
            const size_t bytes = (size_t) groups * INTERLEAVED_BYTES_##stem / 16,                               \
                         used = (size_t) valid * INTERLEAVED_BYTES_##stem / 16;                                 \
            if ((t->padded & groups) == 0) {                                                                    \
                continue;                                                                                       \
            }                                                                                                   \
            for (int c = 0; c < t->n; c += TAIL_COLUMNS) {                                                      \
                const int n = t->n - c < TAIL_COLUMNS ? t->n - c : TAIL_COLUMNS, odd = n % each;                \
                gather_tails_(blocks, bytes, w + (size_t) c * t->nb_w, used, t->nb_w, n, t->ahead);             \
                if (odd != 0) {                                                                                 \
                    memset(blocks + (size_t) n * bytes, 0, (size_t) (each - odd) * bytes);                      \
                }                                                                                               \
                for (int i = 0; i < n; i += each) {                                                             \
                    struct interleaved s[INTERLEAVED_DIRECT];                                                   \
                    vf sums[INTERLEAVED_DIRECT][INTERLEAVED_ROWS];                                              \
                    UNROLL                                                                                      \
                    for (int j = 0; j < nx; j++) {                                                              \
                        sums[0][j] = v_set(0.0f);                                                               \
                    }                                                                                           \
                    interleave_##stem##_(blocks + (size_t) i * bytes, s);                                       \
                    multiply_interleaved_(1, nx, halves, (zero) != 0, s, t->x, at, sums);                       \
                    store_tails_(nx, t, sums[0], c + i, n - i < each ? n - i : each, groups, t->add || at > 0); \
                }                                                                                               \
            }                                                                                                   \
            w += bytes;                                                                                         \
            left -= valid;                                                                                      \
            at += INTERLEAVED_SIZE(halves);                                                                     \
        }                                                                                                       \
    }                                                                                                           \
    static void multiply_tails_##stem##_(int nx, const struct tails * t) {                                      \
        switch (nx) {                                                                                           \
            case 1: interleaved_tails_##stem##_(1, t); break;                                                   \
            case 2: interleaved_tails_##stem##_(2, t); break;                                                   \
            default: interleaved_tails_##stem##_(4, t); break;                                                  \
        }                                                                                                       \
    }

// The whole units of a column of each stream times one row. The columns take turns unit by unit, so
// memory is read at several places at a time.
#define INTERLEAVED_STREAMS(stem, halves, zero)                                                              \
    static ALWAYS_INLINE void interleaved_streams_##stem##_(int64_t k, const uint8_t * w,                    \
        const struct gb_interleaved_row_dots * p, vf acc[ROW_STREAMS]) {                                     \
        const char * const x = p->x;                                                                         \
        const size_t apart = (size_t) p->apart * p->nb_w;                                                    \
        UNROLL                                                                                               \
        for (int i = 0; i < ROW_STREAMS; i++) {                                                              \
            acc[i] = v_set(0.0f);                                                                            \
        }                                                                                                    \
        for (size_t at = 0; k > 0;                                                                           \
            k -= INTERLEAVED_TERMS(halves), at += INTERLEAVED_SIZE(halves), w += INTERLEAVED_BYTES_##stem) { \
            UNROLL                                                                                           \
            for (int i = 0; i < ROW_STREAMS; i++) {                                                          \
                struct interleaved s[INTERLEAVED_DIRECT];                                                    \
                vf sums[INTERLEAVED_DIRECT][INTERLEAVED_ROWS] = { { acc[i] } };                              \
                prefetch_lines_(w + (size_t) i * apart + p->ahead, INTERLEAVED_BYTES_##stem);                \
                interleave_##stem##_(w + (size_t) i * apart, s);                                             \
                multiply_interleaved_(1, 1, halves, (zero) != 0, s, &x, at, sums);                           \
                acc[i] = sums[0][0];                                                                         \
            }                                                                                                \
        }                                                                                                    \
    }

// The same for up to ROW_STREAMS columns, one after the other.
#define INTERLEAVED_STREAMS_IN_TURN(stem)                                                                             \
    static void interleaved_in_turn_##stem##_(int64_t k, const uint8_t * w, const struct gb_interleaved_row_dots * p, \
        vf acc[ROW_STREAMS]) {                                                                                        \
        _Alignas(64) float sums[INTERLEAVED_DIRECT * INTERLEAVED_ROWS * V_N];                                         \
        struct dots_task t = { .x = { p->x } };                                                                       \
        for (int i = 0; i < ROW_STREAMS; i++) {                                                                       \
            acc[i] = v_set(0.0f);                                                                                     \
            if (i < p->streams) {                                                                                     \
                t.w[0] = w + (size_t) i * (size_t) p->apart * p->nb_w;                                                \
                t.next[0] = t.w[0] + p->ahead;                                                                        \
                interleaved_dots_##stem##_(1, 1, k, sums, &t);                                                        \
                acc[i] = v_load(sums);                                                                                \
            }                                                                                                         \
        }                                                                                                             \
    }

// Multiplies the tails of n consecutive columns from column c on.
#define INTERLEAVED_ROW_TAILS(stem, halves)                                                                       \
    static void interleaved_row_tails_##stem##_(const struct gb_interleaved_row_dots * p, int64_t c, int64_t n) { \
        const int64_t tail = p->k % INTERLEAVED_TERMS(halves);                                                    \
        const size_t units = (size_t) (p->k / INTERLEAVED_TERMS(halves));                                         \
        const int groups = (int) (tail / (INTERLEAVED_TERMS(halves) / 16));                                       \
        if (tail > 0) {                                                                                           \
            multiply_tails_##stem##_(1,                                                                           \
                &(struct tails) { .n = (int) n,                                                                   \
                    .groups = groups,                                                                             \
                    .padded = gb_interleaved_padded_groups(groups),                                               \
                    .w = (const uint8_t *) p->w + (size_t) c * p->nb_w + units * INTERLEAVED_BYTES_##stem,        \
                    .nb_w = p->nb_w,                                                                              \
                    .ahead = p->ahead,                                                                            \
                    .x = { (const char *) p->x + units * INTERLEAVED_SIZE(halves) },                              \
                    .y = { p->y + c },                                                                            \
                    .rows = 1,                                                                                    \
                    .add = units > 0 });                                                                          \
        }                                                                                                         \
    }

// One call for many columns keeps the constants of a format in registers, and adds the lanes of
// four sums together. Streams without gaps between them are consecutive columns, whose tails fill
// more units together. SUMS multiplies a column of each of ROW_STREAMS streams.
#define INTERLEAVED_ROW(stem, halves, SUMS)                                                \
    static void interleaved_row_dots_##stem##_(const struct gb_interleaved_row_dots * p) { \
        const int64_t whole = p->k - p->k % INTERLEAVED_TERMS(halves);                     \
        for (int64_t i = 0; i < p->n && whole > 0; i++) {                                  \
            const uint8_t * w = (const uint8_t *) p->w + (size_t) i * p->nb_w;             \
            float y[ROW_STREAMS];                                                          \
            vf acc[ROW_STREAMS];                                                           \
            if (p->streams == ROW_STREAMS) {                                               \
                SUMS(whole, w, p, acc);                                                    \
            } else {                                                                       \
                interleaved_in_turn_##stem##_(whole, w, p, acc);                           \
            }                                                                              \
            sums_of_four_(acc, y);                                                         \
            for (int j = 0; j < p->streams; j++) {                                         \
                p->y[i + j * p->apart] = y[j];                                             \
            }                                                                              \
        }                                                                                  \
        if (p->n == p->apart) {                                                            \
            interleaved_row_tails_##stem##_(p, 0, p->n * p->streams);                      \
        } else {                                                                           \
            for (int j = 0; j < p->streams; j++) {                                         \
                interleaved_row_tails_##stem##_(p, j * p->apart, p->n);                    \
            }                                                                              \
        }                                                                                  \
    }

// The bytes of a unit of blocks.
#define INTERLEAVED_BYTES_(stem, halves, block, size) \
    enum { INTERLEAVED_BYTES_##stem = INTERLEAVED_TERMS(halves) / (block) * (size) };
#define INTERLEAVED_NONE(...)
#define INTERLEAVED_REPEATED(stem, halves, zero, block, size) \
    INTERLEAVED_BYTES_(stem, halves, block, size)             \
    INTERLEAVED_OF(stem, halves, zero, block, size)           \
    INTERLEAVED_TAILS(stem, halves, zero, block, size)        \
    INTERLEAVED_STREAMS(stem, halves, zero)                   \
    INTERLEAVED_STREAMS_IN_TURN(stem)                         \
    INTERLEAVED_ROW_TAILS(stem, halves)                       \
    INTERLEAVED_ROW(stem, halves, interleaved_streams_##stem##_)
#define INTERLEAVED_ONCE(stem, ...) INTERLEAVED_REPEATED(stem, __VA_ARGS__)
#define INTERLEAVED_UNPACKED(stem, halves, zero, block, size) \
    INTERLEAVED_BYTES_(stem, halves, block, size)             \
    UNIT_BY_KERNEL(stem, halves)                              \
    INTERLEAVED_BY_KERNEL(stem, halves, zero, block, size)    \
    INTERLEAVED_TAILS(stem, halves, zero, block, size)        \
    INTERLEAVED_STREAMS_IN_TURN(stem)                         \
    INTERLEAVED_ROW_TAILS(stem, halves)                       \
    INTERLEAVED_ROW(stem, halves, interleaved_in_turn_##stem##_)
#define GB_FORMAT(id, stem, name, elements, bytes, group, zero, top, use, partner, columns, rows, ...) \
    INTERLEAVED_##rows(stem, (group) == 16, zero, elements, bytes)
#include "tensor/quant/formats.def"
#undef GB_FORMAT
#undef INTERLEAVED_NONE
#undef INTERLEAVED_REPEATED
#undef INTERLEAVED_ONCE
#undef INTERLEAVED_UNPACKED

// Stores sixteen groups of quantized activations, with their scales and sums, as a unit.
static ALWAYS_INLINE void store_row_unit_(bool halves, const int8_t * q, float ends[2][16], char * y) {
    const int words = halves ? 4 : 8;
    vi u[8];
    UNROLL
    for (int w = 0; w < 8; w++) {
        u[w] = w < words ? words_(q + 64 * w) : vi_set(0);
    }
    transpose_groups_(halves, u);
    UNROLL
    for (int w = 0; w < words; w++) {
        _mm512_storeu_si512(y + 64 * w, u[w]);
    }
    memcpy(y + 64 * words, ends, 2 * sizeof(ends[0]));
}

static void interleave_row(int64_t k, int kind, int zero, void * y, const float * x) {
    const bool halves = kind & GB_BYTES_HALVES;
    const int terms = INTERLEAVED_TERMS(halves), group = terms / 16;
    const size_t size = INTERLEAVED_SIZE(halves);
    char * out = y;
    for (; k > 0; k -= terms, x += terms) {
        _Alignas(64) int8_t q[512];
        float d[16], ends[2][16];
        const int n = k < terms ? (int) k / group : 16; // groups
        quantize_q8(&(struct gb_quantize_q8) {
            .k = (int64_t) n * group, .kind = kind, .zero = zero, .step = 1, .q = q, .d = d, .s = ends[1], .x = x });
        for (int g = 0; g < n; g++) {
            ends[0][g] = d[g * group / 32];
        }
        if (n == 16) {
            store_row_unit_(halves, q, ends, out);
            out += size;
        }
        const int padded = n < 16 ? gb_interleaved_padded_groups(n) : 0;
        for (int part = 16, lane = 0; part > 0; lane += padded & part, part /= 2) {
            _Alignas(64) int8_t again[512] = { 0 };
            float again_ends[2][16] = { { 0 } };
            if ((padded & part) == 0) {
                continue;
            }
            for (int g = 0; g < 16; g++) {
                const int from = lane + g % part;
                if (from < n) {
                    memcpy(again + g * group, q + from * group, (size_t) group);
                    again_ends[0][g] = ends[0][from];
                    again_ends[1][g] = ends[1][from];
                }
            }
            store_row_unit_(halves, again, again_ends, out);
            out += size;
        }
    }
}

// Three rows are computed as four, one of them twice. One column with several rows is computed as
// two. Separate versions would not pay.
static bool interleaved_dots(const struct gb_interleaved_dots * p) {
    struct dots_task t = { .accumulate = p->accumulate };
    const int nw = p->nw, nx = p->nx;
    const int64_t k = p->k;
    float * const acc = p->acc;
    for (int i = 0; i < INTERLEAVED_DIRECT && nw > 0; i++) {
        t.w[i] = p->columns[i < nw ? i : 0];
        t.next[i] = p->next[i < nw ? i : 0];
    }
    for (int j = 0; j < INTERLEAVED_ROWS && nx > 0; j++) {
        t.x[j] = p->rows[j < nx ? j : nx - 1];
    }
    switch (p->type) {
#define DOTS_NONE(id, stem)
#define DOTS_REPEATED(id, stem)                                          \
    case GGML_TYPE_##id:                                                 \
        switch (nx == 1 ? nw : 1 + nx) {                                 \
            case 1: interleaved_dots_##stem##_(1, 1, k, acc, &t); break; \
            case 2: interleaved_dots_##stem##_(2, 1, k, acc, &t); break; \
            case 3: interleaved_dots_##stem##_(2, 2, k, acc, &t); break; \
            case 4:                                                      \
            case 5: interleaved_dots_##stem##_(2, 4, k, acc, &t); break; \
            default: break;                                              \
        }                                                                \
        return true;
#define DOTS_ONCE(id, stem) DOTS_REPEATED(id, stem)
#define DOTS_UNPACKED(id, stem) \
    case GGML_TYPE_##id: interleaved_dots_##stem##_(nw, nx, k, acc, &t); return true;
#define GB_FORMAT(id, stem, name, elements, bytes, group, zero, top, use, partner, columns, rows, ...) \
    DOTS_##rows(id, stem)
#include "tensor/quant/formats.def"
#undef GB_FORMAT
#undef DOTS_NONE
#undef DOTS_REPEATED
#undef DOTS_ONCE
#undef DOTS_UNPACKED
        default: return false;
    }
}

static bool interleaved_tails(const struct gb_interleaved_tails * p) {
    struct tails t = { .n = p->n, .w = p->w, .nb_w = p->nb_w, .ahead = p->ahead, .rows = p->nx, .add = p->add };
    for (int j = 0; j < INTERLEAVED_ROWS && p->nx > 0; j++) {
        t.x[j] = p->rows[j < p->nx ? j : p->nx - 1];
        t.y[j] = p->y[j < p->nx ? j : p->nx - 1];
    }
    switch (p->type) {
#define GB_FORMAT(id, stem, name, elements, bytes, group, zero, top, use, ...)    \
    GB_IF_UNPACKED_##use(case GGML_TYPE_##id : t.groups = (int) (p->k / (group)); \
        t.padded = gb_interleaved_padded_groups(t.groups); multiply_tails_##stem##_(p->nx, &t); return true;)
#include "tensor/quant/formats.def"
#undef GB_FORMAT
        default: return false;
    }
}

static bool interleaved_row_dots(const struct gb_interleaved_row_dots * p) {
    switch (p->type) {
#define GB_FORMAT(id, stem, name, elements, bytes, group, zero, top, use, ...) \
    GB_IF_UNPACKED_##use(case GGML_TYPE_##id : interleaved_row_dots_##stem##_(p); return true;)
#include "tensor/quant/formats.def"
#undef GB_FORMAT
        default: return false;
    }
}

static bool interleave_column(int type, int64_t k, void * y, const void * w) {
    switch (type) {
#define GB_FORMAT(id, stem, name, elements, bytes, group, zero, top, use, ...) \
    GB_IF_UNPACKED_##use(case GGML_TYPE_##id : interleave_column_##stem##_(k, y, w); return true;)
#include "tensor/quant/formats.def"
#undef GB_FORMAT
        default: return false;
    }
}

// Adds units of nw unpacked columns times nx rows. acc[i][j] is a vector of V_N sums.
static ALWAYS_INLINE void interleaved_tile_(int nw, int nx, bool halves, bool centered, int64_t units, float * acc,
    const char * const * w, const char * const * x, bool accumulate) {
    const int words = halves ? 4 : 8;
    vf sums[INTERLEAVED_COLUMNS][INTERLEAVED_ROWS];
    load_sums_(nw, nx, sums, acc, accumulate);
    for (size_t at = 0; units > 0; units--, at += INTERLEAVED_SIZE(halves)) {
        const size_t ends = at + 64 * (size_t) words;
        vi dot[INTERLEAVED_COLUMNS][INTERLEAVED_ROWS];
        UNROLL
        for (int j = 0; j < nx; j++) {
            const vi start = centered ? words_(x[j] + ends + 64) : vi_set(0);
            UNROLL
            for (int i = 0; i < nw; i++) {
                dot[i][j] = start;
            }
        }
        UNROLL
        for (int p = 0; p < words; p++) {
            vi u[INTERLEAVED_COLUMNS];
            UNROLL
            for (int i = 0; i < nw; i++) {
                u[i] = words_(w[i] + at + 64 * p);
                IN_REGISTER(u[i]);
            }
            UNROLL
            for (int j = 0; j < nx; j++) {
                vi q = words_(x[j] + at + 64 * p);
                IN_REGISTER(q);
                UNROLL
                for (int i = 0; i < nw; i++) {
                    dot[i][j] = vi_dot4(dot[i][j], u[i], q);
                }
            }
        }
        UNROLL
        for (int j = 0; j < nx; j++) {
            const vf d = v_from_bits(words_(x[j] + ends)), s = centered ? d : v_from_bits(words_(x[j] + ends + 64));
            UNROLL
            for (int i = 0; i < nw; i++) {
                const vf dw = v_from_bits(words_(w[i] + ends)),
                         m = centered ? dw : v_from_bits(words_(w[i] + ends + 64));
                sums[i][j] = v_fma(v_from_int(dot[i][j]), v_mul(dw, d), sums[i][j]);
                sums[i][j] = centered ? sums[i][j] : v_fma(m, s, sums[i][j]);
            }
        }
    }
    store_sums_(nw, nx, sums, acc);
}

static void interleaved_tile(const struct gb_interleaved_tile * p) {
    const char *w[INTERLEAVED_COLUMNS], *x[INTERLEAVED_ROWS];
    for (int i = 0; i < p->nw; i++) {
        w[i] = p->columns[i];
    }
    for (int j = 0; j < p->nx; j++) {
        x[j] = p->rows[j];
    }
#define INTERLEAVED_KIND(cw, cx, halves, centered)                                          \
    case (halves * GB_BYTES_HALVES + centered * GB_BYTES_CENTERED):                         \
        interleaved_tile_(cw, cx, halves, centered, p->units, p->acc, w, x, p->accumulate); \
        break;
#define INTERLEAVED_TILE(cw, cx)           \
    case 8 * cw + cx:                      \
        switch (p->kind) {                 \
            INTERLEAVED_KIND(cw, cx, 0, 0) \
            INTERLEAVED_KIND(cw, cx, 1, 0) \
            INTERLEAVED_KIND(cw, cx, 0, 1) \
            INTERLEAVED_KIND(cw, cx, 1, 1) \
            default: break;                \
        }                                  \
        break;
    switch (8 * p->nw + p->nx) {
        INTERLEAVED_TILE(1, 1)
        INTERLEAVED_TILE(1, 2)
        INTERLEAVED_TILE(1, 3)
        INTERLEAVED_TILE(1, 4)
        INTERLEAVED_TILE(2, 1)
        INTERLEAVED_TILE(2, 2)
        INTERLEAVED_TILE(2, 3)
        INTERLEAVED_TILE(2, 4)
        INTERLEAVED_TILE(3, 1)
        INTERLEAVED_TILE(3, 2)
        INTERLEAVED_TILE(3, 3)
        INTERLEAVED_TILE(3, 4)
        default: break;
    }
}

static void interleaved_sums(int nw, float * y, const float * acc) {
    for (int i = 0; i < nw; i++) {
        vf a[INTERLEAVED_ROWS];
        UNROLL
        for (int j = 0; j < INTERLEAVED_ROWS; j++) {
            a[j] = v_load(acc + (INTERLEAVED_ROWS * i + j) * V_N);
        }
        sums_of_four_(a, y + INTERLEAVED_ROWS * i);
    }
}
