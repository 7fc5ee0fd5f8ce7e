// interleaved.tpl.h - few rows times quantized columns, sixteen groups in parallel. Levels without
// the instructions get kernels that do nothing and return false.

#if HAVE_VNNI && HAVE_VBMI
#    define HAVE_INTERLEAVED true
#    include "x86/interleaved.tpl.h"
#else
#    define HAVE_INTERLEAVED false

static void interleave_row(int64_t k, int kind, int zero, void * y, const float * x) {
    (void) k, (void) kind, (void) zero, (void) y, (void) x;
}

static bool interleave_column(int type, int64_t k, void * y, const void * w) {
    (void) type, (void) k, (void) y, (void) w;
    return false;
}

static bool interleaved_dots(const struct gb_interleaved_dots * p) {
    (void) p;
    return false;
}

static bool interleaved_row_dots(const struct gb_interleaved_row_dots * p) {
    (void) p;
    return false;
}

static bool interleaved_tails(const struct gb_interleaved_tails * p) {
    (void) p;
    return false;
}

static void interleaved_tile(const struct gb_interleaved_tile * p) { (void) p; }

static void interleaved_sums(int nw, float * y, const float * acc) { (void) nw, (void) y, (void) acc; }
#endif
