// vec.h - growable arrays: struct { T * data; size_t n, cap; } made by GB_VEC(T).
//
// All zero is the empty array, which owns nothing. `data` is owned and moves when the array grows.
// So pointers to elements are valid until the next push.
#ifndef GB_BASE_VEC_H
#define GB_BASE_VEC_H

#include <string.h>

#include "mem.h"

#define GB_VEC(T)      \
    struct {           \
        T * data;      \
        size_t n, cap; \
    }

// Reserves memory for at least `n` elements; called through gb_vec_reserve. False: memory ran out (reported), and the
// array is unchanged.
bool gb_vec_grow(void ** data, size_t * cap, size_t n, size_t element_size);

#define gb_vec_reserve(v, n) ((n) <= (v)->cap || gb_vec_grow((void **) &(v)->data, &(v)->cap, (n), sizeof(*(v)->data)))
// Appends x. False: memory ran out, which cannot happen within a reserved capacity.
#define gb_vec_push(v, x) (gb_vec_reserve((v), (v)->n + 1) && ((v)->data[(v)->n++] = (x), true))
#define gb_vec_free(v) (gb_free((v)->data), (v)->data = NULL, (v)->n = (v)->cap = 0)

// Sets n to `count`. New elements are zero. False: memory ran out.
#define gb_vec_resize_zero(v, count)                                                                                  \
    (gb_vec_reserve((v), (count)) &&                                                                                  \
        ((count) > (v)->n ? (void) memset((v)->data + (v)->n, 0, ((count) - (v)->n) * sizeof(*(v)->data)) : (void) 0, \
            (v)->n = (count), true))

#endif // GB_BASE_VEC_H
