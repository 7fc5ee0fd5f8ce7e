// limits.tpl.h - loops that reach the limits of the processor, for measuring (cpu/limits.h). No operator uses them.
//
// The first three work in registers only, on V_CHAINS independent sums, and return the number of
// operations done (a multiplication and an addition count as two). HIDE makes the compiler believe
// that a value changed, without an instruction. Before each operation it keeps the operation in the
// loop. After the operation it keeps the sum in its register. limit_read and limit_copy touch n
// floats once.

#if defined(__GNUC__)
#    define HIDE(v) __asm__("" : "+" V_ASM_REGISTER(v))
#else
#    define HIDE(v) (void) (v)
#endif

static _Thread_local volatile float limit_sink_; // one for each thread, because all threads of a team write it

static ALWAYS_INLINE void finish_(const vf acc[V_CHAINS]) {
    vf sum = acc[0];
    UNROLL
    for (int i = 1; i < V_CHAINS; i++) {
        sum = v_add(sum, acc[i]);
    }
    limit_sink_ = v_sum(sum);
}

// `ops` operations per lane and step.
#define LIMIT(name, ops, STEP)                               \
    static int64_t name(int64_t steps) {                     \
        vf acc[V_CHAINS], x = v_set(0.5f), y = v_set(0.25f); \
        UNROLL                                               \
        for (int i = 0; i < V_CHAINS; i++) {                 \
            acc[i] = v_set((float) i);                       \
        }                                                    \
        for (int64_t s = 0; s < steps; s++) {                \
            UNROLL                                           \
            for (int i = 0; i < V_CHAINS; i++) {             \
                HIDE(x);                                     \
                acc[i] = STEP;                               \
                HIDE(acc[i]);                                \
            }                                                \
        }                                                    \
        finish_(acc);                                        \
        return ops * V_N * V_CHAINS * steps;                 \
    }

LIMIT(limit_f32, 2, v_fma(x, y, acc[i]))
#if !HAVE_AMX_BF16                             // otherwise x86/tile_amx.tpl.h has it
LIMIT(limit_bf16, 4, dot_pairs_(acc[i], x, y)) // as the level multiplies pairs: with the instruction, or widened
#endif

static int64_t limit_bytes(int64_t steps) {
    static const uint8_t ones[4] = { 1, 1, 1, 1 };
    vi acc[V_CHAINS];
    vf sums[V_CHAINS];
    vb x = vb_set4(ones), y = vb_set4(ones);
    UNROLL
    for (int i = 0; i < V_CHAINS; i++) {
        acc[i] = vi_set(0);
    }
    for (int64_t s = 0; s < steps; s++) {
        UNROLL
        for (int i = 0; i < V_CHAINS; i++) {
#if !V_ISA_SCALAR
            HIDE(x);
#endif
            acc[i] = vi_dot4(acc[i], x, y);
#if !V_ISA_SCALAR
            HIDE(acc[i]);
#endif
        }
#if V_ISA_SCALAR && defined(__GNUC__) // vb is not a register
        __asm__("" : "+m"(x));
#endif
    }
    UNROLL
    for (int i = 0; i < V_CHAINS; i++) {
        sums[i] = v_from_int(acc[i]);
    }
    finish_(sums);
    return 8 * V_N * V_CHAINS * steps;
}

static void limit_read(int64_t n, const float * x) {
    vf acc[V_CHAINS];
    UNROLL
    for (int i = 0; i < V_CHAINS; i++) {
        acc[i] = v_set(0.0f);
    }
    int64_t i = 0;
    for (; i + 8 * V_N <= n; i += 8 * V_N) {
        UNROLL
        for (int j = 0; j < 8; j++) {
            acc[j] = v_add(acc[j], v_load(x + i + j * V_N));
        }
    }
    for (; i < n; i++) {
        acc[0] = v_add(acc[0], v_set(x[i]));
    }
    finish_(acc);
}

static void limit_copy(int64_t n, float * y, const float * x) {
    int64_t i = 0;
    for (; i + 4 * V_N <= n; i += 4 * V_N) {
        UNROLL
        for (int j = 0; j < 4; j++) {
            v_store(y + i + j * V_N, v_load(x + i + j * V_N));
        }
    }
    for (; i < n; i++) {
        y[i] = x[i];
    }
}
