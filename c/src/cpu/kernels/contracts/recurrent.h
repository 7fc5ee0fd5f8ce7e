// recurrent.h - contracts of the kernels of recurrent layers and of gates.
//
// A block of a state is s[n][GB_LANES]: element j of GB_LANES rows of the state side by side, one
// row per lane. The rows do not depend on each other, so a block stays in the nearest cache for all
// tokens, and sums over j need no sums over lanes. Pointers are aligned to floats. Outputs do not
// overlap inputs unless a contract allows it.
#ifndef GB_CPU_KERNELS_CONTRACTS_RECURRENT_H
#define GB_CPU_KERNELS_CONTRACTS_RECURRENT_H

#include <stdint.h>

#define GB_LANES 32

// c[lane] = the sum over j of a[j] s[j][lane]
typedef void gb_kernel_lanes_dot(int64_t n, float * c, const float * s, const float * a);

// s[j][lane] = w_j s[j][lane] + k[j] u[lane] + b[j] c[lane]; then y[lane] = the sum over j of r[j] s[j][lane].
// w_j is wv[j]. b NULL: no third term. r NULL: y is not written.
struct gb_lanes_step {
    const float *wv, *k, *u, *b, *c, *r;
};
typedef void gb_kernel_lanes_step(int64_t n, float * y, float * s, const struct gb_lanes_step * step);

// Up to GB_CHUNK consecutive tokens read and write the state once. lanes_tokens computes what the tokens of a chunk do
// to each other, from their sums over the state before the chunk. lanes_pass adds the chunk to the state, and computes
// the sums for the next chunk. An array of lanes has a row of GB_LANES for each token of a chunk.
#define GB_CHUNK 4

// In each lane, for t = 0 to n - 1 in order. p is w[0] times ... times w[t]. c_i is u[i] w[i + 1] times ... times w[t].
//   u[t] = beta[t] (u[t] - p f[t] - the sum over i < t of kk[t][i] c_i), if beta is not NULL
//   y[t] = p y[t] + the sum over i <= t of kr[t][i] c_i
// Then u[i] is c_i, or 0 for i >= n, and `all` is the product of all w. w NULL: each w is 1. `all` is not written.
struct gb_lanes_tokens {
    int n;
    const float * w;
    const float * beta;
    const float (*kk)[GB_CHUNK], (*kr)[GB_CHUNK];
    const float * f;
    float *u, *y, *all;
};
typedef void gb_kernel_lanes_tokens(const struct gb_lanes_tokens * p);

// s[j][lane] = w_j s[j][lane] + the sum over i < GB_CHUNK of k[i ldk + j] u[i][lane]. w_j is wv[j]; wv NULL: w[lane].
// Then f[i][lane] = the sum over j of a[i lda + j] s[j][lane]. y[i][lane] is the same sum with r[i ldr + j].
// a NULL: f and y are not written. r NULL: y is not written, and if a is not NULL, wv must be NULL.
struct gb_lanes_pass {
    const float *wv, *w, *u;
    const float *k, *a, *r;
    int64_t ldk, lda, ldr;
    float *f, *y;
};
typedef void gb_kernel_lanes_pass(int64_t n, float * s, const struct gb_lanes_pass * p);

// s[j][lane] = e^(w[j][lane] d[lane]) s[j][lane] + k[j] u[lane]; then y[lane] = the sum over j of r[j] s[j][lane].
typedef void gb_kernel_lanes_scan(int64_t n, float * y, float * s, const float * w, const float * d, const float * k,
    const float * u, const float * r);

// One row of the state: d[j] = w_j s[j] + k[j] u; returns the sum of r[j] d[j]. d may be s. w_j is wv[j], or w if wv is
// NULL.
typedef float gb_kernel_state_row(int64_t n, float * d, const float * s, float w, const float * wv, const float * k,
    float u, const float * r);

#endif // GB_CPU_KERNELS_CONTRACTS_RECURRENT_H
