// interleaved.tpl.h - few rows times quantized columns, sixteen groups at a time: levels without the instructions have
// kernels that do nothing and say so.

#if HAVE_VNNI && HAVE_VBMI
#    define HAVE_STRIPES true
#    include "x86/interleaved.tpl.h"
#else
#    define HAVE_STRIPES false

static void stripe_rows(int64_t k, int kind, int zero, void * y, const float * x) {
    (void) k, (void) kind, (void) zero, (void) y, (void) x;
}

static bool stripe_dots(int type, int64_t k, int nw, int nx, float * acc, const void * const * columns,
    const void * const * rows, const void * const * next, bool accumulate) {
    (void) type, (void) k, (void) nw, (void) nx, (void) acc, (void) columns, (void) rows, (void) next,
        (void) accumulate;
    return false;
}

static bool stripe_columns(int type, int64_t k, void * y, const void * w) {
    (void) type, (void) k, (void) y, (void) w;
    return false;
}

static void stripe_tile(int64_t stripes, int kind, int nw, int nx, float * acc, const void * const * columns,
    const void * const * rows, bool accumulate) {
    (void) stripes, (void) kind, (void) nw, (void) nx, (void) acc, (void) columns, (void) rows, (void) accumulate;
}

static void stripe_sums(int nw, int nx, float * y, const float * acc) { (void) nw, (void) nx, (void) y, (void) acc; }
#endif
