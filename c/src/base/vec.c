// vec.c - growable arrays. The capacity grows by half, so n pushes move at most 3 n elements.
#include "vec.h"

bool gb_vec_grow(void ** data, size_t * cap, size_t n, size_t element_size) {
    size_t next = *cap + *cap / 2;
    if (next < n) {
        next = n;
    }
    if (next < 8) {
        next = 8;
    }
    void * moved = gb_realloc(*data, next, element_size);
    if (moved == NULL) {
        return false;
    }
    *data = moved;
    *cap = next;
    return true;
}
