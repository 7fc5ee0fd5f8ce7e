// interleaved.tpl.h - few rows of activations times quantized columns: sixteen groups of a column at a time, each in a
// lane of its own.
//
// A stripe is 16 groups of terms that follow each other: 512 terms, or 256 where groups have 16 terms ("halves"). It is
// held as 8 (4) vectors of words, vector j with word j, four bytes, of each group, and two vectors of floats. Products
// of bytes then add up in a lane until its group is complete, and one multiplication and one FMA put all sixteen into a
// sum of floats; nothing is moved across lanes. Rows of activations are brought into this order once (stripe_rows:
// words, scales D, and S or the centered sums of int8.tpl.h, which see). Columns are on the way: what a format stores
// is put in order in registers, then unpacked, so that every level is moved as the bits that it has in memory. Formats
// without such a function are unpacked by their kernel (unpack.tpl.h) and put in order then.
//
// Behind the last block a stripe is filled up with zero bytes in columns, zero scales in rows. A sum is made in the
// same order whatever rows and columns are taken together, and whether columns are unpacked by the way (stripe_dots) or
// before (stripe_columns, stripe_tile).

#define STRIPE_ROWS    4    // of activations at a time
#define STRIPE_DIRECT  2    // columns at a time that are unpacked by the way
#define STRIPE_COLUMNS 3    // that were unpacked before
#define STRIPE_K       4096 // terms that are unpacked at a time

#include "interleaved_formats.tpl.h"

// ------------------------------------------------------------------------------------------------------------ products

#define STRIPE_TERMS(halves) ((halves) ? 256 : 512)
#define STRIPE_SIZE(halves)  ((halves) ? 384 : 640) // of rows and unpacked columns: words, two vectors of floats

static ALWAYS_INLINE void ask_for_lines_(const uint8_t * p, size_t size) {
    for (size_t i = 0; i < size; i += 64) {
        ASK(p + i);
    }
}

// A stripe of nw columns with that of each row, at byte `at`, onto sums of floats.
static ALWAYS_INLINE void multiply_stripe_(int nw, int nx, bool halves, bool centered,
    const struct stripe s[STRIPE_DIRECT], const char * const * x, size_t at, vf acc[STRIPE_DIRECT][STRIPE_ROWS]) {
    const int words = halves ? 4 : 8;
    UNROLL
    for (int j = 0; j < nx; j++) {
        const char * const p = x[j] + at;
        const vf           d = v_from_bits(words_(p + 64 * words)), end = v_from_bits(words_(p + 64 * words + 64));
        vi                 sum[STRIPE_DIRECT];
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

// Sums of floats come from memory, or are new, and go there.
static ALWAYS_INLINE void load_sums_(int nw, int nx, vf sums[][STRIPE_ROWS], const float * acc, bool accumulate) {
    UNROLL
    for (int i = 0; i < nw; i++) {
        UNROLL
        for (int j = 0; j < nx; j++) {
            sums[i][j] = accumulate ? v_load(acc + (i * STRIPE_ROWS + j) * V_N) : v_set(0.0f);
        }
    }
}

static ALWAYS_INLINE void store_sums_(int nw, int nx, vf sums[][STRIPE_ROWS], float * acc) {
    UNROLL
    for (int i = 0; i < nw; i++) {
        UNROLL
        for (int j = 0; j < nx; j++) {
            v_store(acc + (i * STRIPE_ROWS + j) * V_N, sums[i][j]);
        }
    }
}

// The sums of the lanes of each.
static ALWAYS_INLINE void sums_of_four_(const vf a[4], int n, float * y) {
    vf t = half_sums_(half_sums_(a[0], a[1]), half_sums_(a[2], a[3]));
    t    = v_add(t, _mm512_permute_ps(t, 0x4e));
    t    = v_add(t, _mm512_permute_ps(t, 0xb1));
    v_store_n(y, _mm512_permutexvar_ps(_mm512_setr_epi32(0, 4, 8, 12, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0), t), n);
}

static ALWAYS_INLINE void store_stripe_(bool halves, bool centered, const struct stripe * s, char * y) {
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

// Levels that were unpacked before.
struct unpacked {
    uint8_t u[STRIPE_K];
    float   d[STRIPE_K / 16], m[STRIPE_K / 16];
};

static ALWAYS_INLINE void stripe_unpacked_(bool halves, const struct unpacked * a, int64_t index, struct stripe * s) {
    const int words = halves ? 4 : 8;
    UNROLL
    for (int i = 0; i < words; i++) {
        s->u[i] = words_(a->u + index * STRIPE_TERMS(halves) + 64 * i);
    }
    turn_groups_(halves, s->u);
    s->d = v_load(a->d + 16 * index);
    s->m = v_load(a->m + 16 * index);
}

struct stripe_task { // of stripe_dots
    const uint8_t *w[STRIPE_DIRECT], *next[STRIPE_DIRECT];
    const char *   x[STRIPE_ROWS];
    bool           accumulate;
};

// Each format: its dot products with rows, and itself unpacked. The last stripe is copied if it is not whole.
#define STRIPES_OF(stem, halves, zero, block, size)                                                           \
    enum { STRIPE_BYTES_##stem = STRIPE_TERMS(halves) / (block) * (size) };                                   \
    static ALWAYS_INLINE const uint8_t * stripe_end_##stem##_(uint8_t * copy, int64_t k, const uint8_t * p) { \
        const size_t left = (size_t) (k % STRIPE_TERMS(halves) / (block)) * (size);                           \
        memset(copy + left, 0, STRIPE_BYTES_##stem - left);                                                   \
        return memcpy(copy, p, left);                                                                         \
    }                                                                                                         \
    static ALWAYS_INLINE void stripe_dots_##stem##_(int nw, int nx, int64_t k, float * sums,                  \
        const struct stripe_task * t) {                                                                       \
        uint8_t       copy[STRIPE_BYTES_##stem];                                                              \
        struct stripe s[STRIPE_DIRECT];                                                                       \
        vf            acc[STRIPE_DIRECT][STRIPE_ROWS];                                                        \
        size_t        at = 0, byte = 0;                                                                       \
        load_sums_(nw, nx, acc, sums, t->accumulate);                                                         \
        for (; k >= STRIPE_TERMS(halves);                                                                     \
            k -= STRIPE_TERMS(halves), at += STRIPE_SIZE(halves), byte += STRIPE_BYTES_##stem) {              \
            UNROLL                                                                                            \
            for (int i = 0; i < nw; i++) {                                                                    \
                ask_for_lines_(t->next[i] + byte, STRIPE_BYTES_##stem);                                       \
                stripe_##stem##_(t->w[i] + byte, &s[i]);                                                      \
            }                                                                                                 \
            multiply_stripe_(nw, nx, halves, (zero) != 0, s, t->x, at, acc);                                  \
        }                                                                                                     \
        if (k > 0) {                                                                                          \
            UNROLL                                                                                            \
            for (int i = 0; i < nw; i++) {                                                                    \
                stripe_##stem##_(stripe_end_##stem##_(copy, k, t->w[i] + byte), &s[i]);                       \
            }                                                                                                 \
            multiply_stripe_(nw, nx, halves, (zero) != 0, s, t->x, at, acc);                                  \
        }                                                                                                     \
        store_sums_(nw, nx, acc, sums);                                                                       \
    }                                                                                                         \
    static void stripe_columns_##stem##_(int64_t k, char * y, const uint8_t * p) {                            \
        uint8_t       copy[STRIPE_BYTES_##stem];                                                              \
        struct stripe s;                                                                                      \
        for (; k >= STRIPE_TERMS(halves);                                                                     \
            k -= STRIPE_TERMS(halves), y += STRIPE_SIZE(halves), p += STRIPE_BYTES_##stem) {                  \
            stripe_##stem##_(p, &s);                                                                          \
            store_stripe_(halves, (zero) != 0, &s, y);                                                        \
        }                                                                                                     \
        if (k > 0) {                                                                                          \
            stripe_##stem##_(stripe_end_##stem##_(copy, k, p), &s);                                           \
            store_stripe_(halves, (zero) != 0, &s, y);                                                        \
        }                                                                                                     \
    }

// The same through an array of levels, of at most STRIPE_K terms.
#define STRIPES_BY_KERNEL(stem, halves, zero, block, size)                                                     \
    static int64_t unpack_part_##stem##_(struct unpacked * a, int64_t k, const uint8_t * p) {                  \
        const int64_t terms   = k < STRIPE_K ? k : STRIPE_K,                                                   \
                      stripes = (terms + STRIPE_TERMS(halves) - 1) / STRIPE_TERMS(halves);                     \
        unpack_##stem(terms, a->u, a->d, a->m, p);                                                             \
        memset(a->u + terms, 0, (size_t) (stripes * STRIPE_TERMS(halves) - terms));                            \
        for (int64_t g = terms / (STRIPE_TERMS(halves) / 16); g < 16 * stripes; g++) {                         \
            a->d[g] = a->m[g] = 0;                                                                             \
        }                                                                                                      \
        return stripes;                                                                                        \
    }                                                                                                          \
    static ALWAYS_INLINE void stripe_column_dots_##stem##_(int nx, int64_t k, float * sums,                    \
        const struct stripe_task * t, int column) {                                                            \
        vf              acc[STRIPE_DIRECT][STRIPE_ROWS];                                                       \
        struct unpacked a;                                                                                     \
        struct stripe   s[STRIPE_DIRECT];                                                                      \
        const uint8_t * p  = t->w[column];                                                                     \
        size_t          at = 0;                                                                                \
        load_sums_(1, nx, acc, sums, t->accumulate);                                                           \
        ask_for_lines_(t->next[column], (size_t) k / (block) * (size));                                        \
        for (; k > 0; k -= STRIPE_K, p += STRIPE_K / (block) * (size)) {                                       \
            const int64_t stripes = unpack_part_##stem##_(&a, k, p);                                           \
            for (int64_t i = 0; i < stripes; i++, at += STRIPE_SIZE(halves)) {                                 \
                stripe_unpacked_(halves, &a, i, s);                                                            \
                multiply_stripe_(1, nx, halves, (zero) != 0, s, t->x, at, acc);                                \
            }                                                                                                  \
        }                                                                                                      \
        store_sums_(1, nx, acc, sums);                                                                         \
    }                                                                                                          \
    static void stripe_dots_##stem##_(int nw, int nx, int64_t k, float * sums, const struct stripe_task * t) { \
        for (int i = 0; i < nw; i++, sums += STRIPE_ROWS * V_N) {                                              \
            switch (nx) {                                                                                      \
                case 1: stripe_column_dots_##stem##_(1, k, sums, t, i); break;                                 \
                case 2: stripe_column_dots_##stem##_(2, k, sums, t, i); break;                                 \
                default: stripe_column_dots_##stem##_(4, k, sums, t, i); break;                                \
            }                                                                                                  \
        }                                                                                                      \
    }                                                                                                          \
    static void stripe_columns_##stem##_(int64_t k, char * y, const uint8_t * p) {                             \
        struct unpacked a;                                                                                     \
        struct stripe   s;                                                                                     \
        for (; k > 0; k -= STRIPE_K, p += STRIPE_K / (block) * (size)) {                                       \
            const int64_t stripes = unpack_part_##stem##_(&a, k, p);                                           \
            for (int64_t i = 0; i < stripes; i++, y += STRIPE_SIZE(halves)) {                                  \
                stripe_unpacked_(halves, &a, i, &s);                                                           \
                store_stripe_(halves, (zero) != 0, &s, y);                                                     \
            }                                                                                                  \
        }                                                                                                      \
    }
#define STRIPES_NONE(...)
#define STRIPES_REPEATED(...) STRIPES_OF(__VA_ARGS__)
#define STRIPES_ONCE(...)     STRIPES_OF(__VA_ARGS__)
#define STRIPES_UNPACKED(...) STRIPES_BY_KERNEL(__VA_ARGS__)
#define GB_FORMAT(id, stem, name, elements, bytes, group, zero, top, use, partner, columns, rows, ...) \
    STRIPES_##rows(stem, (group) == 16, zero, elements, bytes)
#include "tensor/quant/formats.def"
#undef GB_FORMAT

static void stripe_rows(int64_t k, int kind, int zero, void * y, const float * x) {
    const bool halves = kind & GB_BYTES_HALVES;
    const int  words = halves ? 4 : 8, terms = STRIPE_TERMS(halves), group = terms / 16;
    char *     out = y;
    for (; k > 0; k -= terms, x += terms, out += STRIPE_SIZE(halves)) {
        _Alignas(64) int8_t q[512] = { 0 };
        float               d[16] = { 0 }, ends[2][16] = { { 0 } };
        vi                  u[8];
        quantize_q8(k < terms ? k : terms, kind, zero, 1, q, d, ends[1], x);
        for (int g = 0; g < 16; g++) {
            ends[0][g] = d[g * group / 32];
        }
        UNROLL
        for (int w = 0; w < 8; w++) {
            u[w] = words_(q + 64 * w);
        }
        turn_groups_(halves, u);
        for (int w = 0; w < words; w++) {
            _mm512_storeu_si512(out + 64 * w, u[w]);
        }
        memcpy(out + 64 * words, ends, sizeof(ends));
    }
}

// Three rows are taken as four, of which two are the same, and one column with several rows as two: not worth versions
// of their own.
static bool stripe_dots(int type, int64_t k, int nw, int nx, float * acc, const void * const * columns,
    const void * const * rows, const void * const * next, bool accumulate) {
    struct stripe_task t = { .accumulate = accumulate };
    for (int i = 0; i < STRIPE_DIRECT && nw > 0; i++) {
        t.w[i]    = columns[i < nw ? i : 0];
        t.next[i] = next[i < nw ? i : 0];
    }
    for (int j = 0; j < STRIPE_ROWS && nx > 0; j++) {
        t.x[j] = rows[j < nx ? j : nx - 1];
    }
    switch (type) {
#define DOTS_NONE(id, stem)
#define DOTS_REPEATED(id, stem)                                     \
    case GGML_TYPE_##id:                                            \
        switch (nx == 1 ? nw : 1 + nx) {                            \
            case 1: stripe_dots_##stem##_(1, 1, k, acc, &t); break; \
            case 2: stripe_dots_##stem##_(2, 1, k, acc, &t); break; \
            case 3: stripe_dots_##stem##_(2, 2, k, acc, &t); break; \
            case 4:                                                 \
            case 5: stripe_dots_##stem##_(2, 4, k, acc, &t); break; \
            default: break;                                         \
        }                                                           \
        return true;
#define DOTS_ONCE(id, stem) DOTS_REPEATED(id, stem)
#define DOTS_UNPACKED(id, stem) \
    case GGML_TYPE_##id: stripe_dots_##stem##_(nw, nx, k, acc, &t); return true;
#define GB_FORMAT(id, stem, name, elements, bytes, group, zero, top, use, partner, columns, rows, ...) \
    DOTS_##rows(id, stem)
#include "tensor/quant/formats.def"
#undef GB_FORMAT
        default: return false;
    }
}

static bool stripe_columns(int type, int64_t k, void * y, const void * w) {
    switch (type) {
#define GB_FORMAT(id, stem, name, elements, bytes, group, zero, top, use, ...) \
    GB_IF_UNPACKED_##use(case GGML_TYPE_##id : stripe_columns_##stem##_(k, y, w); return true;)
#include "tensor/quant/formats.def"
#undef GB_FORMAT
        default: return false;
    }
}

// nw columns, unpacked, by nx rows; acc[i][j] is a vector of V_N sums.
static ALWAYS_INLINE void stripe_tile_(int nw, int nx, bool halves, bool centered, int64_t stripes, float * acc,
    const char * const * w, const char * const * x, bool accumulate) {
    const int words = halves ? 4 : 8;
    vf        sums[STRIPE_COLUMNS][STRIPE_ROWS];
    load_sums_(nw, nx, sums, acc, accumulate);
    for (size_t at = 0; stripes > 0; stripes--, at += STRIPE_SIZE(halves)) {
        const size_t ends = at + 64 * (size_t) words;
        vi           dot[STRIPE_COLUMNS][STRIPE_ROWS];
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
            vi u[STRIPE_COLUMNS];
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
                         m  = centered ? dw : v_from_bits(words_(w[i] + ends + 64));
                sums[i][j]  = v_fma(v_from_int(dot[i][j]), v_mul(dw, d), sums[i][j]);
                sums[i][j]  = centered ? sums[i][j] : v_fma(m, s, sums[i][j]);
            }
        }
    }
    store_sums_(nw, nx, sums, acc);
}

static void stripe_tile(int64_t stripes, int kind, int nw, int nx, float * acc, const void * const * columns,
    const void * const * rows, bool accumulate) {
    const char *w[STRIPE_COLUMNS], *x[STRIPE_ROWS];
    for (int i = 0; i < nw; i++) {
        w[i] = columns[i];
    }
    for (int j = 0; j < nx; j++) {
        x[j] = rows[j];
    }
#define STRIPE_KIND(cw, cx, halves, centered)                                   \
    case (halves * GB_BYTES_HALVES + centered * GB_BYTES_CENTERED):             \
        stripe_tile_(cw, cx, halves, centered, stripes, acc, w, x, accumulate); \
        break;
#define STRIPE_TILE(cw, cx)           \
    case 8 * cw + cx:                 \
        switch (kind) {               \
            STRIPE_KIND(cw, cx, 0, 0) \
            STRIPE_KIND(cw, cx, 1, 0) \
            STRIPE_KIND(cw, cx, 0, 1) \
            STRIPE_KIND(cw, cx, 1, 1) \
            default: break;           \
        }                             \
        break;
    switch (8 * nw + nx) {
        STRIPE_TILE(1, 1)
        STRIPE_TILE(1, 2)
        STRIPE_TILE(1, 3)
        STRIPE_TILE(1, 4)
        STRIPE_TILE(2, 1)
        STRIPE_TILE(2, 2)
        STRIPE_TILE(2, 3)
        STRIPE_TILE(2, 4)
        STRIPE_TILE(3, 1)
        STRIPE_TILE(3, 2)
        STRIPE_TILE(3, 3)
        STRIPE_TILE(3, 4)
        default: break;
    }
}

static void stripe_sums(int nw, int nx, float * y, const float * acc) {
    for (int i = 0; i < nw; i++) {
        vf a[STRIPE_ROWS];
        UNROLL
        for (int j = 0; j < STRIPE_ROWS; j++) {
            a[j] = v_load(acc + (STRIPE_ROWS * i + j) * V_N);
        }
        sums_of_four_(a, nx, y + STRIPE_ROWS * i);
    }
}
