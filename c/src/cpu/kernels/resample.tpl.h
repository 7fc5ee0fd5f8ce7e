// resample.tpl.h - a row whose elements are weighted sums of elements of another row, at ascending places.
//
// Neighbouring results depend on neighbouring elements. If those of a vector of results fit into two vectors, AVX-512
// picks them from registers. Else they are gathered.

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
    if (w.near) {
        const int64_t left = length - first;
        w.low = v_load_n(x + first, left < V_N ? (int) left : V_N);
        w.high = left > V_N ? v_load_n(x + first + V_N, left < 2 * V_N ? (int) left - V_N : V_N) : w.low;
    }
    return w;
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

static void resample_f32(int64_t n, float * y, int64_t length, const float * x, int taps, const int32_t * at,
    const float * w) {
    int64_t i = 0;
    for (; i + V_N <= n; i += V_N) {
        const struct window_ from = window_of_(x, length, at[i], at[(taps - 1) * n + i + V_N - 1]);
        vf sum = taken_(&from, at + i);
        if (w != NULL) {
            sum = v_mul(v_load(w + i), sum);
            for (int t = 1; t < taps; t++) {
                sum = v_fma(v_load(w + t * n + i), taken_(&from, at + t * n + i), sum);
            }
        }
        v_store(y + i, sum);
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
