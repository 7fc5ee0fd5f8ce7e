// recurrent.h - contracts of the kernels of recurrent layers and of gates.
//
// A block of a state is s[n][GB_LANES]: element j of GB_LANES rows of the state side by side, one
// row per lane. The rows do not depend on each other, so a block stays in the nearest cache for all
// tokens, and sums over j need no sums over lanes. Pointers are aligned to floats. Outputs do not
// overlap inputs unless a contract allows it.
#ifndef GB_CPU_KERNELS_CONTRACTS_RECURRENT_H
#define GB_CPU_KERNELS_CONTRACTS_RECURRENT_H

#include <stdbool.h>
#include <stdint.h>

#define GB_LANES 32

// c[lane] = the sum over j of a[j] s[j][lane]
typedef void gb_kernel_lanes_dot(int64_t n, float * c, const float * s, const float * a);

// s[j][lane] = w_j s[j][lane] + k[j] u[lane] + b[j] c[lane]; then y[lane] = the sum over j of r[j] s[j][lane].
// w_j is wv[j], or w if wv is NULL. b NULL: no third term. r NULL: y is not written. a not NULL: also f[lane] = the sum
// over j of a[j] s[j][lane], which the next token needs. f may be c or u.
struct gb_lanes_step {
    float w;
    const float *wv, *k, *u, *b, *c, *r, *a;
    float * f;
};
typedef void gb_kernel_lanes_step(int64_t n, float * y, float * s, const struct gb_lanes_step * step);

// s[j][lane] = e^(w d[lane]) s[j][lane] + k[j] u[lane]; then y[lane] = the sum over j of r[j] s[j][lane]. w is w[lane]
// for all j, or with `each` w[j][lane]. w has a row of lanes even if n is 0.
typedef void gb_kernel_lanes_scan(int64_t n, float * y, float * s, const float * w, bool each, const float * d,
    const float * k, const float * u, const float * r);

// One row of the state: d[j] = w_j s[j] + k[j] u; returns the sum of r[j] d[j]. d may be s. w_j as
// above.
typedef float gb_kernel_state_row(int64_t n, float * d, const float * s, float w, const float * wv, const float * k,
    float u, const float * r);

#endif // GB_CPU_KERNELS_CONTRACTS_RECURRENT_H
