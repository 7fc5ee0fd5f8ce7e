// resample.tpl.h - rows whose elements are weighted sums: of elements of another row, at ascending
// places, or of several rows.
//
// Neighbouring results depend on neighbouring elements. AVX-512 picks the elements for a vector of results from two
// vectors in registers: those of all taps if they fit, else those of one tap. Elements that are farther apart are
// gathered.

#if V_ISA_AVX512
struct window_ {
    const float * x;
    bool near;
    vf low, high; // elements from `base` on, if near
    vi base;
};

// The elements first .. last of x, of `length` elements.
static ALWAYS_INLINE struct window_ window_of_(const float * x, int64_t length, int32_t first, int32_t last) {
    struct window_ w = { x, last - first < 2 * V_N, v_set(0.0f), v_set(0.0f), vi_set(first) };
    const int64_t left = length - first;
    if (w.near && left >= 2 * V_N) {
        w.low = v_load(x + first);
        w.high = v_load(x + first + V_N);
    } else if (w.near) {
        w.low = v_load_n(x + first, left < V_N ? (int) left : V_N);
        w.high = left > V_N ? v_load_n(x + first + V_N, left < 2 * V_N ? (int) left - V_N : V_N) : w.low;
    }
    return w;
}

// The elements of a tap, whose places are at[0] .. at[V_N - 1]; all: those of all taps.
static ALWAYS_INLINE struct window_ tap_window_(const struct window_ * all, int64_t length, const int32_t * at) {
    return all->near ? *all : window_of_(all->x, length, at[0], at[V_N - 1]);
}

static ALWAYS_INLINE vf taken_(const struct window_ * w, const int32_t * at) {
    const vi place = _mm512_loadu_si512(at);
    return w->near ? _mm512_permutex2var_ps(w->low, vi_sub(place, w->base), w->high)
                   : _mm512_i32gather_ps(place, w->x, sizeof(float));
}
#else
struct window_ {
    const float * x;
};

static ALWAYS_INLINE struct window_ window_of_(const float * x, int64_t length, int32_t first, int32_t last) {
    (void) length;
    (void) first;
    (void) last;
    return (struct window_) { x };
}

static ALWAYS_INLINE struct window_ tap_window_(const struct window_ * all, int64_t length, const int32_t * at) {
    (void) length;
    (void) at;
    return *all;
}

static ALWAYS_INLINE vf taken_(const struct window_ * w, const int32_t * at) {
#    if V_ISA_AVX2
    return _mm256_i32gather_ps(w->x, _mm256_loadu_si256((const __m256i *) at), sizeof(float));
#    else
    float some[V_N];
    for (int i = 0; i < V_N; i++) {
        some[i] = w->x[at[i]];
    }
    return v_load(some);
#    endif
}
#endif

// The results that fill whole vectors. Returns their number.
static ALWAYS_INLINE int64_t resample_vectors_(int64_t n, float * y, int64_t length, const float * x, int taps,
    const int32_t * at, const float * w) {
    int64_t i = 0;
    for (; i + V_N <= n; i += V_N) {
        const struct window_ all = window_of_(x, length, at[i], at[(taps - 1) * n + i + V_N - 1]);
        struct window_ from = tap_window_(&all, length, at + i);
        vf sum = taken_(&from, at + i);
        if (w != NULL) {
            sum = v_mul(v_load(w + i), sum);
            for (int t = 1; t < taps; t++) {
                from = tap_window_(&all, length, at + t * n + i);
                sum = v_fma(v_load(w + t * n + i), taken_(&from, at + t * n + i), sum);
            }
        }
        v_store(y + i, sum);
    }
    return i;
}

static void resample_f32(int64_t n, float * y, int64_t length, const float * x, int taps, const int32_t * at,
    const float * w) {
    int64_t i;
    switch (taps) {
        case 2: i = resample_vectors_(n, y, length, x, 2, at, w); break;
        case 4: i = resample_vectors_(n, y, length, x, 4, at, w); break;
        default: i = resample_vectors_(n, y, length, x, taps, at, w); break;
    }
    for (; i < n; i++) {
        if (w == NULL) {
            memcpy(y + i, x + at[i], sizeof(float)); // any bits
            continue;
        }
        y[i] = w[i] * x[at[i]];
        for (int t = 1; t < taps; t++) {
            y[i] += w[t * n + i] * x[at[t * n + i]];
        }
    }
}

// ------------------------------------------------------------------------------------------------------- several rows

// Sums of n <= V_N elements from i on.
static ALWAYS_INLINE void combine_some_(int taps, const struct gb_combine * p, const vf w[GB_COMBINE_ROWS], int64_t i,
    int n) {
    vf sum = v_mul(w[0], v_load_n(p->x[0] + i, n));
    UNROLL
    for (int t = 1; t < taps; t++) {
        sum = v_fma(w[t], v_load_n(p->x[t] + i, n), sum);
    }
    v_store_n(p->y + i, p->add ? v_add(sum, v_load_n(p->y + i, n)) : sum, n);
}

static ALWAYS_INLINE void combine_(int taps, const struct gb_combine * p) {
    const int64_t n = p->n;
    float * const y = p->y;
    const float * x[GB_COMBINE_ROWS];
    vf w[GB_COMBINE_ROWS];
    int64_t i = 0;
    UNROLL
    for (int t = 0; t < taps; t++) {
        x[t] = p->x[t];
        w[t] = v_set(p->w[t]);
    }
#if HAVE_STREAM // stores that bypass the caches need aligned addresses
    const int64_t off = (int64_t) ((uintptr_t) y / sizeof(float) % V_N);
    if (p->far && off != 0) {
        i = V_N - off < n ? V_N - off : n;
        combine_some_(taps, p, w, 0, (int) i);
    }
#endif
    for (; i + V_N <= n; i += V_N) {
        vf sum = v_mul(w[0], v_load(x[0] + i));
        UNROLL
        for (int t = 1; t < taps; t++) {
            sum = v_fma(w[t], v_load(x[t] + i), sum);
        }
        sum = p->add ? v_add(sum, v_load(y + i)) : sum;
        if (i < p->n_next) {
            PREFETCH(p->next + i);
        }
#if HAVE_STREAM
        if (p->far) {
            v_stream(y + i, sum);
            continue;
        }
#endif
        v_store(y + i, sum);
    }
    if (i < n) {
        combine_some_(taps, p, w, i, (int) (n - i));
    }
}

static void combine_f32(const struct gb_combine * p) {
    switch (p->taps) {
        case 1: combine_(1, p); break;
        case 2: combine_(2, p); break;
        case 3: combine_(3, p); break;
        case 4: combine_(4, p); break;
        case 5: combine_(5, p); break;
        case 6: combine_(6, p); break;
        case 7: combine_(7, p); break;
        default: combine_(GB_COMBINE_ROWS, p); break;
    }
}
