// vec.h - growable arrays. struct { T * data; size_t n, cap; } made by GB_VEC(T); all zero is the empty array.
#ifndef GB_BASE_VEC_H
#define GB_BASE_VEC_H

#include <string.h>

#include "mem.h"

#define GB_VEC(T)      \
    struct {           \
        T *    data;   \
        size_t n, cap; \
    }

// Room for at least `want` elements; false when memory is out (reported), the array is then unchanged.
bool gb_vec_grow(void ** data, size_t * cap, size_t want, size_t element_size);

#define gb_vec_reserve(v, want) \
    ((want) <= (v)->cap || gb_vec_grow((void **) &(v)->data, &(v)->cap, (want), sizeof(*(v)->data)))
#define gb_vec_push(v, x) (gb_vec_reserve((v), (v)->n + 1) && ((v)->data[(v)->n++] = (x), true))
#define gb_vec_free(v)    (gb_free((v)->data), (v)->data = NULL, (v)->n = (v)->cap = 0)

// Room for `count` elements, the new ones zeroed; n becomes count.
#define gb_vec_resize_zero(v, count)                                                                                  \
    (gb_vec_reserve((v), (count)) &&                                                                                  \
        ((count) > (v)->n ? (void) memset((v)->data + (v)->n, 0, ((count) - (v)->n) * sizeof(*(v)->data)) : (void) 0, \
            (v)->n = (count), true))

#endif // GB_BASE_VEC_H
