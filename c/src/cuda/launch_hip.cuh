// launch_hip.cuh - the dialect of launch.cuh for devices of AMD whose wavefronts have 32 lanes (RDNA), by hipcc.
//
// Compiled and never run: no device of AMD was there (docs/CUDA.md, ROCm). A wavefront is a warp, LDS is shared memory.
// Asynchronous copies are made at once, by loads and stores. Kernels do not overlap, so nothing waits for earlier ones.
//
// There are no products of tiles (gb_mma_*) and no loads for them (gb_ldmatrix_*): their fragments are laid out as in
// the PTX manual, which no instruction of AMD follows. They are declared, because templates name them, and defined
// nowhere, so a kernel that uses one does not link. GB_NO_MMA leaves such kernels out, gb_has_mma keeps products and
// attention from choosing them.
#ifndef GB_CUDA_LAUNCH_HIP_CUH
#define GB_CUDA_LAUNCH_HIP_CUH

#if defined(__HIP_DEVICE_COMPILE__) && __AMDGCN_WAVEFRONT_SIZE != 32
#    error "kernels count on warps of 32 lanes: compile for gfx10 or newer, without -mwavefrontsize64"
#endif

#define GB_NO_MMA
static inline bool gb_has_mma(void) { return false; }

#define GB_CONST static __device__ const

#define GB_SHARED(type, name, count) __shared__ __attribute__((aligned(16))) type name[count]
#define GB_DYNAMIC_SHARED(type, name)                                                          \
    extern __shared__ __attribute__((aligned(1024))) unsigned char gb_dynamic_shared_memory[]; \
    type * const name = reinterpret_cast<type *>(gb_dynamic_shared_memory)

template <class... P> inline void gb_know_kernel(const char *, void (*)(P...)) {} // the runtime knows it

// ---- numbers

struct gb_half {
    uint16_t bits;
};
struct gb_bf16 {
    uint16_t bits;
};

static __device__ __forceinline__ float gb_to_float(gb_half x) {
    _Float16 h;
    memcpy(&h, &x.bits, sizeof(h));
    return (float) h;
}
static __device__ __forceinline__ gb_half gb_float_to_half(float x) { // to nearest, ties to even, as devices begin
    const _Float16 h = (_Float16) x;
    gb_half r;
    memcpy(&r.bits, &h, sizeof(h));
    return r;
}
static __device__ __forceinline__ float gb_to_float(gb_bf16 x) { return __uint_as_float((uint32_t) x.bits << 16); }
static __device__ __forceinline__ gb_bf16 gb_float_to_bf16(float x) {
    const uint32_t u = __float_as_uint(x), odd = u >> 16 & 1;
    return { x != x ? (uint16_t) 0x7fff : (uint16_t) ((u + 0x7fff + odd) >> 16) };
}
static __device__ __forceinline__ gb_half gb_half_of_bits(uint16_t bits) { return { bits }; }
static __device__ __forceinline__ uint16_t gb_half_bits(gb_half x) { return x.bits; }
static __device__ __forceinline__ gb_bf16 gb_bf16_of_bits(uint16_t bits) { return { bits }; }
static __device__ __forceinline__ uint16_t gb_bf16_bits(gb_bf16 x) { return x.bits; }
// Two halves in a register, the first in the low bits.
static __device__ __forceinline__ uint32_t gb_pack_half2(float lo, float hi) {
    return gb_float_to_half(lo).bits | (uint32_t) gb_float_to_half(hi).bits << 16;
}
static __device__ __forceinline__ float2 gb_unpack_half2(uint32_t u) {
    return make_float2(gb_to_float(gb_half{ (uint16_t) u }), gb_to_float(gb_half{ (uint16_t) (u >> 16) }));
}

// As the PTX manual has prmt: nibble 3 of a selector takes the sign of the byte. v_perm_b32 has a byte for each
// selector and other meanings from 8 on.
static __device__ __forceinline__ uint32_t gb_prmt(uint32_t a, uint32_t b, uint32_t select) {
    uint32_t s = select & 0xffff;
    s = (s | s << 8) & 0x00ff00ff;
    s = (s | s << 4) & 0x0f0f0f0f;
    const uint32_t bytes = __builtin_amdgcn_perm(b, a, s & 0x07070707);
    const uint32_t mask = (s >> 3 & 0x01010101) * 255;
    return (bytes & ~mask) | ((bytes >> 7 & 0x01010101) * 255 & mask);
}

static __device__ __forceinline__ uint32_t gb_lop3_select(uint32_t mask, uint32_t a, uint32_t b) {
    return (mask & a) | (~mask & b); // v_bfi_b32
}

extern "C" __device__ __attribute__((const)) float __ocml_native_exp2_f32(float);

static __device__ __forceinline__ float gb_exp2(float x) { return __ocml_native_exp2_f32(x); }

// A product that is never part of a fused multiply-add; __fmul_rn of HIP may be.
static __device__ __forceinline__ float gb_mul_rn(float x, float y) {
#pragma clang fp contract(off)
    return x * y;
}

// The nearest float with 10 bits behind the point; halves go away from zero.
static __device__ __forceinline__ uint32_t gb_to_tf32(float x) {
    return x != x ? 0x7fffffffu : (__float_as_uint(x) + 0x1000) & ~0x1fffu;
}

// c + the sum of four products of signed bytes.
static __device__ __forceinline__ int gb_dp4a(int a, int b, int c) {
#if defined(__gfx1011__) || defined(__gfx1012__) || defined(__gfx1030__) || defined(__gfx1031__) || \
    defined(__gfx1032__) || defined(__gfx1033__) || defined(__gfx1034__) || defined(__gfx1035__) || \
    defined(__gfx1036__)
    return __builtin_amdgcn_sdot4(a, b, c, false);
#elif defined(__gfx1100__) || defined(__gfx1101__) || defined(__gfx1102__) || defined(__gfx1103__)
    return __builtin_amdgcn_sudot4(true, a, true, b, c, false);
#else
    for (int i = 0; i < 4; i++) {
        c += (int) (int8_t) (a >> 8 * i) * (int) (int8_t) (b >> 8 * i);
    }
    return c;
#endif
}

// The same, with the bytes of a without a sign: 128 less, they have one.
static __device__ __forceinline__ int gb_dp4a_unsigned(uint32_t a, int b, int c) {
#if defined(__gfx1100__) || defined(__gfx1101__) || defined(__gfx1102__) || defined(__gfx1103__)
    return __builtin_amdgcn_sudot4(false, (int) a, true, b, c, false);
#else
    return gb_dp4a((int) (a ^ 0x80808080u), b, c) + gb_dp4a(0x01010101, b, 0) * 128;
#endif
}

static __device__ __forceinline__ void gb_needs_code(int) {}

// ---- kernels after each other

static __device__ __forceinline__ void gb_wait_for_earlier(void) {}

// ---- threads together

static __device__ __forceinline__ void gb_sync_block(void) { __syncthreads(); }
// Lanes run together; what they wrote to memory comes before what they read after.
static __device__ __forceinline__ void gb_sync_warp(void) {
    __builtin_amdgcn_fence(__ATOMIC_RELEASE, "wavefront");
    __builtin_amdgcn_wave_barrier();
    __builtin_amdgcn_fence(__ATOMIC_ACQUIRE, "wavefront");
}
template <class T> static __device__ __forceinline__ T gb_shfl(T x, int lane) { return __shfl(x, lane, 32); }
template <class T> static __device__ __forceinline__ T gb_shfl_xor(T x, int mask) { return __shfl_xor(x, mask, 32); }
template <class T> static __device__ __forceinline__ T gb_shfl_up(T x, int delta) {
    return __shfl_up(x, (unsigned) delta, 32);
}
template <class T> static __device__ __forceinline__ T gb_shfl_down(T x, int delta) {
    return __shfl_down(x, (unsigned) delta, 32);
}
static __device__ __forceinline__ uint32_t gb_ballot(bool x) { return (uint32_t) __ballot(x); }
static __device__ __forceinline__ bool gb_any(bool x) { return gb_ballot(x) != 0; }
static __device__ __forceinline__ bool gb_all(bool x) { return gb_ballot(!x) == 0; }
// int, unsigned, float; the old value
template <class T> static __device__ __forceinline__ T gb_atomic_add(T * p, T x) { return atomicAdd(p, x); }
template <class T> static __device__ __forceinline__ T gb_atomic_max(T * p, T x) { // int, unsigned
    return atomicMax(p, x);
}
// What the thread has written so far is seen by the host before what it writes after.
static __device__ __forceinline__ void gb_fence_system(void) { __threadfence_system(); }

// ---- asynchronous copies into shared memory: 16 bytes, both addresses 16-aligned, the last 16 - bytes of them zeros;
// or 8, or 4. They are made at once.

template <class T> static __device__ __forceinline__ void gb_copy_now(void * shared, const void * global, int bytes) {
    T v = {};
    if (bytes == (int) sizeof(T)) {
        v = *(const T *) global;
    } else {
#pragma unroll
        for (int i = 0; i < (int) sizeof(T); i++) { // numbers that the compiler knows: v stays in registers
            if (i < bytes) {
                ((unsigned char *) &v)[i] = ((const unsigned char *) global)[i];
            }
        }
    }
    *(T *) shared = v;
}
static __device__ __forceinline__ void gb_cp_async_16(void * shared, const void * global, int bytes = 16) {
    gb_copy_now<uint4>(shared, global, bytes);
}
static __device__ __forceinline__ void gb_cp_async_8(void * shared, const void * global, int bytes = 8) {
    gb_copy_now<uint2>(shared, global, bytes);
}
static __device__ __forceinline__ void gb_cp_async_4(void * shared, const void * global, int bytes = 4) {
    gb_copy_now<uint32_t>(shared, global, bytes);
}
static __device__ __forceinline__ void gb_cp_async_commit(void) {}
template <int pending> static __device__ __forceinline__ void gb_cp_async_wait(void) {}

// ---- defined nowhere, see above

__device__ void gb_ldmatrix_x4(uint32_t (&r)[4], const void * row);
__device__ void gb_mma_f16(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]);
__device__ void gb_mma_bf16(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]);

#endif // GB_CUDA_LAUNCH_HIP_CUH
