// interleaved.tpl.h - few rows of activations times quantized columns: sixteen groups of a column at a time, each in a
// lane of its own.
//
// A unit is 16 groups of terms that follow each other: 512 terms, or 256 where groups have 16 terms ("halves"). It is
// held as 8 (4) vectors of words, vector j with word j, four bytes, of each group, and two vectors of floats. Products
// of bytes then add up in a lane until its group is complete, and one multiplication and one FMA put all sixteen into a
// sum of floats; nothing is moved across lanes. Rows of activations are brought into this order once (interleave_row):
// words, scales D, and S or the centered sums of int8.tpl.h. Columns are brought into it while they are multiplied: the
// blocks of a format are put in order in registers, then unpacked, so that levels are moved as the bits that they have
// in memory. Formats without such a function (interleaved_formats.tpl.h) are unpacked by their kernel (unpack.tpl.h)
// and put in order then.
//
// Behind the last block of weights a unit is filled up, with zero bytes in columns and zero scales in rows. The order
// of a sum does not depend on which rows and columns are taken together, nor on whether columns are unpacked while they
// are multiplied (interleaved_dots) or before (interleave_column, interleaved_tile).

#define INTERLEAVED_ROWS GB_INTERLEAVED_X
#define INTERLEAVED_DIRECT GB_INTERLEAVED_W
#define INTERLEAVED_COLUMNS GB_INTERLEAVED_W_READY
#define INTERLEAVED_K GB_UNPACK_MAX // terms that are unpacked at a time
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

// A unit of nw columns with that of each row, at byte `at`, onto sums of floats.
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

// Sums of floats: from memory if they are added to, else 0; and back to memory.
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

// The sum of the lanes of each of four vectors, n of which are stored. Four are stored without a mask, which processors
// cannot read back before the store has left for the cache.
static ALWAYS_INLINE void sums_of_four_(const vf a[4], int n, float * y) {
    vf t = half_sums_(half_sums_(a[0], a[1]), half_sums_(a[2], a[3]));
    t = v_add(t, _mm512_permute_ps(t, 0x4e));
    t = v_add(t, _mm512_permute_ps(t, 0xb1));
    t = _mm512_permutexvar_ps(_mm512_setr_epi32(0, 4, 8, 12, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0), t);
    if (n == 4) {
        _mm_storeu_ps(y, _mm512_castps512_ps128(t));
    } else {
        v_store_n(y, t, n);
    }
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

// Levels that were unpacked before.
struct unpacked {
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
    turn_groups_(halves, s->u);
    s->d = v_load(a->d + 16 * index);
    s->m = v_load(a->m + 16 * index);
}

struct dots_task { // of interleaved_dots
    const uint8_t *w[INTERLEAVED_DIRECT], *next[INTERLEAVED_DIRECT];
    const char * x[INTERLEAVED_ROWS];
    bool accumulate;
};

// Each format: its dot products with rows, and itself unpacked. The last unit is copied if it is not whole.
#define INTERLEAVED_OF(stem, halves, zero, block, size)                                                         \
    enum { INTERLEAVED_BYTES_##stem = INTERLEAVED_TERMS(halves) / (block) * (size) };                           \
    static ALWAYS_INLINE const uint8_t * last_unit_##stem##_(uint8_t * copy, int64_t k, const uint8_t * p) {    \
        const size_t left = (size_t) (k % INTERLEAVED_TERMS(halves) / (block)) * (size);                        \
        memset(copy + left, 0, INTERLEAVED_BYTES_##stem - left);                                                \
        return memcpy(copy, p, left);                                                                           \
    }                                                                                                           \
    static ALWAYS_INLINE void interleaved_dots_##stem##_(int nw, int nx, int64_t k, float * sums,               \
        const struct dots_task * t) {                                                                           \
        uint8_t copy[INTERLEAVED_BYTES_##stem];                                                                 \
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
        if (k > 0) {                                                                                            \
            UNROLL                                                                                              \
            for (int i = 0; i < nw; i++) {                                                                      \
                interleave_##stem##_(last_unit_##stem##_(copy, k, t->w[i] + byte), &s[i]);                      \
            }                                                                                                   \
            multiply_interleaved_(nw, nx, halves, (zero) != 0, s, t->x, at, acc);                               \
        }                                                                                                       \
        store_sums_(nw, nx, acc, sums);                                                                         \
    }                                                                                                           \
    static void interleave_column_##stem##_(int64_t k, char * y, const uint8_t * p) {                           \
        uint8_t copy[INTERLEAVED_BYTES_##stem];                                                                 \
        struct interleaved s;                                                                                   \
        for (; k >= INTERLEAVED_TERMS(halves);                                                                  \
            k -= INTERLEAVED_TERMS(halves), y += INTERLEAVED_SIZE(halves), p += INTERLEAVED_BYTES_##stem) {     \
            interleave_##stem##_(p, &s);                                                                        \
            store_interleaved_(halves, (zero) != 0, &s, y);                                                     \
        }                                                                                                       \
        if (k > 0) {                                                                                            \
            interleave_##stem##_(last_unit_##stem##_(copy, k, p), &s);                                          \
            store_interleaved_(halves, (zero) != 0, &s, y);                                                     \
        }                                                                                                       \
    }

// The same through an array of levels, of at most INTERLEAVED_K terms.
#define INTERLEAVED_BY_KERNEL(stem, halves, zero, block, size)                                                    \
    static int64_t unpack_part_##stem##_(struct unpacked * a, int64_t k, const uint8_t * p) {                     \
        const int64_t terms = k < INTERLEAVED_K ? k : INTERLEAVED_K,                                              \
                      units = (terms + INTERLEAVED_TERMS(halves) - 1) / INTERLEAVED_TERMS(halves);                \
        unpack_##stem(terms, a->u, a->d, a->m, p);                                                                \
        memset(a->u + terms, 0, (size_t) (units * INTERLEAVED_TERMS(halves) - terms));                            \
        for (int64_t g = terms / (INTERLEAVED_TERMS(halves) / 16); g < 16 * units; g++) {                         \
            a->d[g] = a->m[g] = 0;                                                                                \
        }                                                                                                         \
        return units;                                                                                             \
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

// A call for many columns keeps what a format needs in registers, and adds the lanes of four sums at a time.
#define INTERLEAVED_ROW(stem)                                                              \
    static void interleaved_row_dots_##stem##_(const struct gb_interleaved_row_dots * p) { \
        _Alignas(64) float sums[4 * V_N];                                                  \
        struct dots_task t = { .x = { p->x } };                                            \
        for (int64_t i = 0; i < p->n; i += 4) {                                            \
            const int nw = p->n - i < 4 ? (int) (p->n - i) : 4;                            \
            vf a[4];                                                                       \
            for (int j = 0; j < nw; j++) {                                                 \
                t.w[0] = (const uint8_t *) p->w + (size_t) (i + j) * p->nb_w;              \
                t.next[0] = t.w[0] + p->ahead;                                             \
                interleaved_dots_##stem##_(1, 1, p->k, sums + (size_t) j * V_N, &t);       \
            }                                                                              \
            UNROLL                                                                         \
            for (int j = 0; j < 4; j++) {                                                  \
                a[j] = v_load(sums + (j < nw ? j : 0) * V_N);                              \
            }                                                                              \
            sums_of_four_(a, nw, p->y + i);                                                \
        }                                                                                  \
    }
#define INTERLEAVED_NONE(...)
#define INTERLEAVED_REPEATED(stem, ...) INTERLEAVED_OF(stem, __VA_ARGS__) INTERLEAVED_ROW(stem)
#define INTERLEAVED_ONCE(stem, ...) INTERLEAVED_OF(stem, __VA_ARGS__) INTERLEAVED_ROW(stem)
#define INTERLEAVED_UNPACKED(stem, ...) INTERLEAVED_BY_KERNEL(stem, __VA_ARGS__) INTERLEAVED_ROW(stem)
#define GB_FORMAT(id, stem, name, elements, bytes, group, zero, top, use, partner, columns, rows, ...) \
    INTERLEAVED_##rows(stem, (group) == 16, zero, elements, bytes)
#include "tensor/quant/formats.def"
#undef GB_FORMAT
#undef INTERLEAVED_NONE
#undef INTERLEAVED_REPEATED
#undef INTERLEAVED_ONCE
#undef INTERLEAVED_UNPACKED

static void interleave_row(int64_t k, int kind, int zero, void * y, const float * x) {
    const bool halves = kind & GB_BYTES_HALVES;
    const int words = halves ? 4 : 8, terms = INTERLEAVED_TERMS(halves), group = terms / 16;
    char * out = y;
    for (; k > 0; k -= terms, x += terms, out += INTERLEAVED_SIZE(halves)) {
        _Alignas(64) int8_t q[512] = { 0 };
        float d[16] = { 0 }, ends[2][16] = { { 0 } };
        vi u[8];
        quantize_q8(&(struct gb_quantize_q8) {
            .k = k < terms ? k : terms, .kind = kind, .zero = zero, .step = 1, .q = q, .d = d, .s = ends[1], .x = x });
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

// nw columns, unpacked, by nx rows; acc[i][j] is a vector of V_N sums.
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
        sums_of_four_(a, 4, y + INTERLEAVED_ROWS * i);
    }
}
