// b32.tpl.h - vectors of 32 bytes, for any number of lanes of a level, and the operations of
// unpacking on them.
//
//   b32_shr, b32_shl  shifts move bits across bytes, so callers mask before or after
//   b32_lookup        looks up each byte of the index, below 16, in a table
//   b32_nibbles(p)    the low nibbles of the 16 bytes at p, then the high ones
//   b32_bits(p, byte) `byte` where one of the 32 bits at p is set, else 0
//   scaled_8_         y[i] = scale bytes[i] for 8 signed bytes

#if V_ISA_X86
#    include "x86/b32.h"
#else
typedef struct {
    uint8_t b[32];
} b32;
static inline b32 b32_load(const void * p) {
    b32 a;
    memcpy(&a, p, sizeof(a));
    return a;
}
static inline void b32_store(void * p, b32 a) { memcpy(p, &a, sizeof(a)); }
#define B32_EACH(name, params, value)   \
    static inline b32 name params {     \
        for (int i = 0; i < 32; i++) {  \
            a.b[i] = (uint8_t) (value); \
        }                               \
        return a;                       \
    }
B32_EACH(b32_and, (b32 a, int byte), a.b[i] & byte)
B32_EACH(b32_or, (b32 a, b32 b), a.b[i] | b.b[i])
B32_EACH(b32_xor, (b32 a, int byte), a.b[i] ^ byte)
B32_EACH(b32_shr, (b32 a, int n), a.b[i] >> n)
B32_EACH(b32_shl, (b32 a, int n), a.b[i] << n)
B32_EACH(b32_lookup, (b32 a, const uint8_t * table), table[a.b[i]])
static inline b32 b32_nibbles(const void * p) {
    const uint8_t * q = p;
    b32 a;
    for (int i = 0; i < 16; i++) {
        a.b[i] = q[i] & 15;
        a.b[i + 16] = q[i] >> 4;
    }
    return a;
}
static inline b32 b32_bits(const void * p, int byte) {
    const uint8_t * q = p;
    b32 a;
    for (int i = 0; i < 32; i++) {
        a.b[i] = q[i / 8] >> i % 8 & 1 ? (uint8_t) byte : 0;
    }
    return a;
}
static inline void scaled_8_(float * y, const void * bytes, float scale) {
    for (int i = 0; i < 8; i++) {
        y[i] = scale * (float) ((const int8_t *) bytes)[i];
    }
}
#endif
