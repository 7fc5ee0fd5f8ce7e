// resample.tpl.h - rows whose elements are weighted sums: of elements of another row, at ascending
// places, or of several rows.
//
// Neighbouring results depend on neighbouring elements. AVX2 and AVX-512 pick the elements for a vector of results from
// one vector or two in registers: those of all taps if they fit, else those of one tap. Elements that are farther apart
// are gathered.

#if V_ISA_X86
#    if V_ISA_AVX512
static ALWAYS_INLINE vi places_at_(const int32_t * at) { return _mm512_loadu_si512(at); }
static ALWAYS_INLINE vf pick_(vf low, vi at) { return _mm512_permutexvar_ps(at, low); }
static ALWAYS_INLINE vf pick2_(vf low, vf high, vi at) { return _mm512_permutex2var_ps(low, at, high); }
static ALWAYS_INLINE vf gather_(const float * x, vi at) { return _mm512_i32gather_ps(at, x, sizeof(float)); }
#    else
static ALWAYS_INLINE vi places_at_(const int32_t * at) { return _mm256_loadu_si256((const __m256i *) at); }
static ALWAYS_INLINE vf pick_(vf low, vi at) { return _mm256_permutevar8x32_ps(low, at); }
static ALWAYS_INLINE vf pick2_(vf low, vf high, vi at) { // bit 3 of a place chooses the vector
    return _mm256_blendv_ps(pick_(low, at), pick_(high, at), v_from_bits(vi_shl(at, 28)));
}
static ALWAYS_INLINE vf gather_(const float * x, vi at) { return _mm256_i32gather_ps(x, at, sizeof(float)); }
#    endif

struct window_ {
    const float * x;
    int vectors; // that hold the elements; 0: too far apart
    vf low, high; // elements from `base` on
    vi base;
};

// The elements first .. last of x, of `length` elements.
static ALWAYS_INLINE struct window_ window_of_(const float * x, int64_t length, int32_t first, int32_t last) {
    struct window_ w = { x,
        last - first < V_N       ? 1
        : last - first < 2 * V_N ? 2
                                 : 0,
        v_set(0.0f), v_set(0.0f), vi_set(first) };
    const int64_t left = length - first;
    if (w.vectors > 0) {
        w.low = left >= V_N ? v_load(x + first) : v_load_n(x + first, (int) left);
    }
    if (w.vectors == 2) { // so more than V_N are left
        w.high = left >= 2 * V_N ? v_load(x + first + V_N) : v_load_n(x + first + V_N, (int) left - V_N);
    }
    return w;
}

// The elements of a tap, whose places are at[0] .. at[V_N - 1]; all: those of all taps.
static ALWAYS_INLINE struct window_ tap_window_(const struct window_ * all, int64_t length, const int32_t * at) {
    return all->vectors > 0 ? *all : window_of_(all->x, length, at[0], at[V_N - 1]);
}

static ALWAYS_INLINE vf taken_(const struct window_ * w, const int32_t * at) {
    const vi places = places_at_(at);
    switch (w->vectors) {
        case 1: return pick_(w->low, vi_sub(places, w->base));
        case 2: return pick2_(w->low, w->high, vi_sub(places, w->base));
        default: return gather_(w->x, places);
    }
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
    float some[V_N];
    for (int i = 0; i < V_N; i++) {
        some[i] = w->x[at[i]];
    }
    return v_load(some);
}
#endif

// A vector of results, with the elements of all taps in one window or with one window for each tap. n: results of the
// row, at and w: those of the first result.
static ALWAYS_INLINE vf resampled_(int64_t n, int64_t length, const struct window_ * all, int taps, const int32_t * at,
    const float * w) {
    struct window_ from = tap_window_(all, length, at);
    vf sum = taken_(&from, at);
    if (w != NULL) {
        sum = v_mul(v_load(w), sum);
        for (int t = 1; t < taps; t++) {
            from = tap_window_(all, length, at + t * n);
            sum = v_fma(v_load(w + t * n), taken_(&from, at + t * n), sum);
        }
    }
    return sum;
}

// The results that fill whole vectors. Returns their number.
static ALWAYS_INLINE int64_t resample_vectors_(int64_t n, float * y, int64_t length, const float * x, int taps,
    const int32_t * at, const float * w) {
    int64_t i = 0;
    for (; i + V_N <= n; i += V_N) {
        struct window_ all = window_of_(x, length, at[i], at[(taps - 1) * n + i + V_N - 1]);
#if V_ISA_X86
        if (all.vectors == 1) { // the compiler sees the constant
            all.vectors = 1;
            v_store(y + i, resampled_(n, length, &all, taps, at + i, w != NULL ? w + i : NULL));
            continue;
        }
#endif
        v_store(y + i, resampled_(n, length, &all, taps, at + i, w != NULL ? w + i : NULL));
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

// The loop for whole vectors. `next`: prefetches two vectors of the elements that will be read next.
static ALWAYS_INLINE int64_t combine_vectors_(int taps, const struct gb_combine * p, const vf w[GB_COMBINE_ROWS],
    int64_t i, int64_t end, bool add, bool far, bool next) {
    const float * x[GB_COMBINE_ROWS];
    float * const y = p->y;
    UNROLL
    for (int t = 0; t < taps; t++) {
        x[t] = p->x[t];
    }
    for (; i + V_N <= end; i += V_N) {
        vf sum = v_mul(w[0], v_load(x[0] + i));
        UNROLL
        for (int t = 1; t < taps; t++) {
            sum = v_fma(w[t], v_load(x[t] + i), sum);
        }
        if (add) {
            sum = v_add(sum, v_load(y + i));
        }
        UNROLL
        for (int line = 0; next && line < 2 * V_N; line += 16) {
            PREFETCH(p->next + 2 * i + line);
        }
#if HAVE_STREAM
        if (far) {
            v_stream(y + i, sum);
            continue;
        }
#else
        (void) far;
#endif
        v_store(y + i, sum);
    }
    return i;
}

static ALWAYS_INLINE void combine_(int taps, const struct gb_combine * p) {
    const int64_t n = p->n, n_next = p->n_next / 2 < n ? p->n_next / 2 : n;
    vf w[GB_COMBINE_ROWS];
    int64_t i = 0;
    UNROLL
    for (int t = 0; t < taps; t++) {
        w[t] = v_set(p->w[t]);
    }
#if HAVE_STREAM // stores that bypass the caches need aligned addresses
    const int64_t off = (int64_t) ((uintptr_t) p->y / sizeof(float) % V_N);
    if (p->far && off != 0) {
        i = V_N - off < n ? V_N - off : n;
        combine_some_(taps, p, w, 0, (int) i);
    }
#endif
    if (p->far && !p->add) {
        i = combine_vectors_(taps, p, w, i, n_next, false, true, true);
        i = combine_vectors_(taps, p, w, i, n, false, true, false);
    } else if (!p->add) {
        i = combine_vectors_(taps, p, w, i, n_next, false, false, true);
        i = combine_vectors_(taps, p, w, i, n, false, false, false);
    } else {
        i = combine_vectors_(taps, p, w, i, n, true, p->far, false);
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
