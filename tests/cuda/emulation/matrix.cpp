// matrix.cpp - asynchronous copies, matrices from shared memory, products of tiles, and the numbers in them.
//
// With g = lane / 4 and t = lane % 4, as in the PTX manual, for 16-bit elements (m16n8k16):
//   a[0], a[1]: rows g, g + 8 at k = 2 t, 2 t + 1;  a[2], a[3]: the same 8 further along k
//   b[0], b[1]: column g at k = 2 t, 2 t + 1;  8 further
//   d[0..1], d[2..3]: rows g, g + 8 at columns 2 t, 2 t + 1
// Bytes (m16n8k32) have four to a register at k = 4 t ... 4 t + 3, then 16 further. m16n8k16 of bytes has a[0], a[1]
// and b[0] of that. tf32 (m16n8k8) has one at k = t, then 4 further.
#include "block.h"

// ------------------------------------------------------------------------------------------------------------- numbers

float gb_emu_half_to_float(uint16_t h) {
    const int exponent = h >> 10 & 31;
    const int fraction = h & 1023;
    const float sign = h & 0x8000 ? -1.0f : 1.0f;
    if (exponent == 31) {
        return fraction ? NAN : sign * INFINITY;
    }
    return sign * (exponent ? ldexpf((float) (1024 + fraction), exponent - 25) : ldexpf((float) fraction, -24));
}

uint16_t gb_emu_float_to_half(float x) {
    const uint16_t sign = signbit(x) ? 0x8000 : 0;
    if (isnan(x)) {
        return (uint16_t) (sign | 0x7fff);
    }
    const float a = fabsf(x);
    if (a >= 65520.0f || a == 0.0f) {
        return (uint16_t) (a == 0.0f ? sign : sign | 0x7c00);
    }
    if (a == 0) {
        return sign;
    }
    int exponent = 0;
    frexpf(a, &exponent); // a = m 2^exponent, 1/2 <= m < 1
    const int step = exponent < -13 ? -24 : exponent - 11; // weight of the last bit
    const uint16_t n = (uint16_t) nearbyintf(ldexpf(a, -step)); // exact before rounding; at most 2048
    if (exponent < -13) {
        return (uint16_t) (sign | n); // also if it rounds up to the first normal number
    }
    return (uint16_t) (sign + (uint16_t) ((exponent + 14) << 10) + (uint16_t) (n - 1024));
}

float gb_emu_bf16_to_float(uint16_t bits) { return __uint_as_float((uint32_t) bits << 16); }

uint16_t gb_emu_float_to_bf16(float x) {
    const uint32_t u = __float_as_uint(x);
    return isnan(x) ? 0x7fff : (uint16_t) ((u + 0x7fff + (u >> 16 & 1)) >> 16);
}

uint32_t gb_to_tf32(float x) {
    const uint32_t u = __float_as_uint(x);
    return (u & 0x7f800000) == 0x7f800000 ? u : (u + 0x1000) & ~0x1fffu;
}

// ------------------------------------------------------------------------------------------------- asynchronous copies

static void add_copy(void * to, const void * from, int size, int bytes) {
    const uintptr_t both = bytes > 0 ? (uintptr_t) to | (uintptr_t) from : (uintptr_t) to;
    if (both % (uintptr_t) size != 0) {
        gb_emu_fail_block("an asynchronous copy between addresses that are not aligned to its size");
    }
    if (bytes < 0 || bytes > size) {
        gb_emu_fail_block("an asynchronous copy of more than its size");
    }
    gb_emu_check_shared("asynchronous copy", to, (size_t) size);
    gb_emu_touch_device("an asynchronous copy");
    memset(to, 0xff, (size_t) size); // undefined until the thread waits
    gb_emu_thread_copies().open.push_back({ to, from, size, bytes });
}

void gb_cp_async_16(void * shared, const void * global, int bytes, int line) {
    gb_emu_at("gb_cp_async_16", line);
    add_copy(shared, global, 16, bytes);
}

void gb_cp_async_8(void * shared, const void * global, int bytes, int line) {
    gb_emu_at("gb_cp_async_8", line);
    add_copy(shared, global, 8, bytes);
}

void gb_cp_async_commit(void) {
    gb_emu_copies & copies = gb_emu_thread_copies();
    copies.groups.push_back(std::move(copies.open));
    copies.open.clear();
}

void gb_emu_cp_async_wait(int pending) {
    gb_emu_copies & copies = gb_emu_thread_copies();
    while ((int) copies.groups.size() > pending) {
        for (const gb_emu_copy & c : copies.groups.front()) {
            memset(c.to, 0, (size_t) c.size);
            memcpy(c.to, c.from, (size_t) c.bytes);
            gb_emu_copied_by(c.to) = (uint16_t) (gb_emu_thread() + 1);
        }
        copies.groups.erase(copies.groups.begin());
    }
}

// ------------------------------------------------------------------------------------------------------------ matrices

void gb_ldmatrix_x4(uint32_t (&r)[4], const void * row, int line) {
    const unsigned char * all = gb_emu_exchange("gb_ldmatrix_x4", line, &row, sizeof(row));
    const int lane = gb_emu_lane();
    if ((uintptr_t) row % 16 != 0) {
        gb_emu_fail_block("ldmatrix: a row that is not 16-aligned");
    }
    gb_emu_check_shared("ldmatrix", row, 16);
    const int g = lane / 4, t = lane % 4;
    for (int i = 0; i < 4; i++) {
        uint16_t pair[2];
        for (int j = 0; j < 2; j++) {
            const unsigned char * const p = gb_emu_slot<const unsigned char *>(all, 8 * i + g);
            memcpy(&pair[j], p + 2 * (2 * t + j), 2);
        }
        r[i] = (uint32_t) pair[0] | (uint32_t) pair[1] << 16;
    }
}

// ------------------------------------------------------------------------------------------------------------ products

namespace {

struct fragments {
    uint32_t a[4], b[2];
};

// Element j of a register is at k = t * per + j + half * 4 * per: a[2 * half] of row g, a[2 * half + 1] of row g + 8,
// b[half] of column g.
template <class T, class Sum, Sum (*value)(uint32_t reg, int j), int per>
void multiply(Sum (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2], const char * kind, int line) {
    fragments mine;
    memcpy(mine.a, a, sizeof(mine.a));
    memcpy(mine.b, b, sizeof(mine.b));
    const unsigned char * all = gb_emu_exchange(kind, line, &mine, sizeof(mine));
    const int g = gb_emu_lane() / 4, t = gb_emu_lane() % 4;
    for (int i = 0; i < 4; i++) {
        const int column = 2 * t + i % 2;
        T sum = 0;
        for (int q = 0; q < 4; q++) { // the lane that has these k
            const fragments fa = gb_emu_slot<fragments>(all, 4 * g + q);
            const fragments fb = gb_emu_slot<fragments>(all, 4 * column + q);
            for (int half = 0; half < 2; half++) {
                for (int j = 0; j < per; j++) {
                    sum += (T) value(fa.a[2 * half + i / 2], j) * (T) value(fb.b[half], j);
                }
            }
        }
        d[i] = (Sum) ((T) d[i] + sum);
    }
}

float half_at(uint32_t reg, int j) { return gb_emu_half_to_float((uint16_t) (reg >> (16 * j))); }
float bf16_at(uint32_t reg, int j) { return gb_emu_bf16_to_float((uint16_t) (reg >> (16 * j))); }
float tf32_at(uint32_t reg, int) { return __uint_as_float(reg & ~0x1fffu); }
int byte_at(uint32_t reg, int j) { return (int8_t) (reg >> (8 * j)); }

} // namespace

void gb_needs_code(int capability) {
    if (gb_emu_code() < capability) {
        gb_emu_fail_block("the code is for compute capability " + std::to_string(gb_emu_code()) +
                          ", but the kernel needs " + std::to_string(capability));
    }
}

void gb_mma_f16(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2], int line) {
    multiply<double, float, half_at, 2>(d, a, b, "gb_mma_f16", line);
}

void gb_mma_bf16(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2], int line) {
    multiply<double, float, bf16_at, 2>(d, a, b, "gb_mma_bf16", line);
}

void gb_mma_tf32(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2], int line) {
    multiply<double, float, tf32_at, 1>(d, a, b, "gb_mma_tf32", line);
}

void gb_mma_s8(int (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2], int line) {
    multiply<int64_t, int, byte_at, 4>(d, a, b, "gb_mma_s8", line);
}

void gb_mma_s8(int (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2], const int (&c)[4], int line) {
    memcpy(d, c, sizeof(d));
    gb_mma_s8(d, a, b, line);
}

void gb_mma_s8_half(int (&d)[4], const uint32_t (&a)[2], uint32_t b, const int (&c)[4], int line) {
    const uint32_t whole_a[4] = { a[0], a[1], 0, 0 }, whole_b[2] = { b, 0 };
    memcpy(d, c, sizeof(d));
    multiply<int64_t, int, byte_at, 4>(d, whole_a, whole_b, "gb_mma_s8_half", line);
}
