// launch_device.cuh - the dialect of launch.cuh on a GPU: thin wrappers around intrinsics and PTX.
//
// Fragments of gb_mma_* and gb_ldmatrix_* are laid out as in the PTX manual. On compute capability
// 7.5 they are composed of the smaller shapes of that capability. Products of bf16 and tf32, and
// gb_mma_s8_half, need 8.0 and trap on older devices; no launch reaches them (gb_cuda_device.cc).
// Before 8.0 an asynchronous copy is made immediately.
#ifndef GB_CUDA_LAUNCH_DEVICE_CUH
#define GB_CUDA_LAUNCH_DEVICE_CUH

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#define GB_BOUNDS(threads, blocks) __launch_bounds__(threads, blocks)
#define GB_UNROLL _Pragma("unroll")
#define GB_UNROLL_2 _Pragma("unroll 2")
#define GB_NO_UNROLL _Pragma("unroll 1")

#if __CUDA_ARCH__ >= 800
constexpr bool gb_is_code_for_80 = true;
#else
constexpr bool gb_is_code_for_80 = false;
#endif

#define GB_CONST static __device__ const

#define GB_SHARED(type, name, count) __shared__ __align__(16) type name[count]
#define GB_DYNAMIC_SHARED(type, name)                                           \
    extern __shared__ __align__(1024) unsigned char gb_dynamic_shared_memory[]; \
    type * const name = reinterpret_cast<type *>(gb_dynamic_shared_memory)

template <class... P> inline void gb_know_kernel(const char *, void (*)(P...)) {} // the runtime knows its kernels

// ---- numbers

typedef __half gb_half;
typedef __nv_bfloat16 gb_bf16;

static __device__ __forceinline__ float gb_to_float(gb_half x) { return __half2float(x); }
static __device__ __forceinline__ float gb_to_float(gb_bf16 x) { return __bfloat162float(x); }
static __device__ __forceinline__ gb_half gb_float_to_half(float x) { return __float2half_rn(x); }
static __device__ __forceinline__ gb_bf16 gb_float_to_bf16(float x) { return __float2bfloat16_rn(x); }
static __device__ __forceinline__ gb_half gb_half_of_bits(uint16_t bits) { return __ushort_as_half(bits); }
static __device__ __forceinline__ uint16_t gb_half_bits(gb_half x) { return __half_as_ushort(x); }
static __device__ __forceinline__ uint16_t gb_bf16_bits(gb_bf16 x) { return __bfloat16_as_ushort(x); }
// Two halves in a register, the first in the low bits.
static __device__ __forceinline__ uint32_t gb_pack_half2(float lo, float hi) {
    const __half2 h = __floats2half2_rn(lo, hi);
    return *reinterpret_cast<const uint32_t *>(&h);
}
static __device__ __forceinline__ float2 gb_unpack_half2(uint32_t u) {
    return __half22float2(*reinterpret_cast<const __half2 *>(&u));
}

static __device__ __forceinline__ uint32_t gb_perm(uint32_t a, uint32_t b, uint32_t select) {
    uint32_t d;
    asm("prmt.b32 %0, %1, %2, %3;\n" : "=r"(d) : "r"(a), "r"(b), "r"(select));
    return d;
}

static __device__ __forceinline__ uint32_t gb_funnel_right(uint32_t low, uint32_t high, uint32_t shift) {
    return __funnelshift_r(low, high, shift);
}

// One instruction: with a known mask the compiler would make more.
static __device__ __forceinline__ uint32_t gb_select(uint32_t mask, uint32_t a, uint32_t b) {
    uint32_t d;
    asm("lop3.b32 %0, %1, %2, %3, 0xca;\n" : "=r"(d) : "r"(mask), "r"(a), "r"(b));
    return d;
}

static __device__ __forceinline__ uint32_t gb_parity(uint32_t bits) { return (uint32_t) __popc(bits) & 1; }

static __device__ __forceinline__ int gb_lowest_bit(uint32_t bits) { return __ffs((int) bits) - 1; }

static __device__ __forceinline__ float gb_rounded_product(float x, float y) { return __fmul_rn(x, y); }

static __device__ __forceinline__ float gb_exp2(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;\n" : "=f"(y) : "f"(x));
    return y;
}

// c + the sum of four products of signed bytes.
static __device__ __forceinline__ int gb_dp4a(int a, int b, int c) { return __dp4a(a, b, c); }

// The same with unsigned bytes in a.
static __device__ __forceinline__ int gb_dp4a_unsigned(uint32_t a, int b, int c) {
    int d;
    asm("dp4a.u32.s32 %0, %1, %2, %3;\n" : "=r"(d) : "r"(a), "r"(b), "r"(c));
    return d;
}

static __device__ __forceinline__ void gb_needs_code(int) {}

// ---- order of kernels

// The next kernel may begin only when all blocks of this kernel run, so it delays none of them.
static __device__ __forceinline__ void gb_wait_for_earlier(void) {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;\n" ::: "memory");
    asm volatile("griddepcontrol.launch_dependents;\n" ::: "memory");
#endif
}

static __device__ __forceinline__ void gb_prefetch([[maybe_unused]] const void * p) {
#if __CUDA_ARCH__ >= 900
    asm volatile("prefetch.global.L2 [%0];\n" ::"l"(p));
#endif
}

// ---- threads of a block or warp

static __device__ __forceinline__ void gb_sync_block(void) { __syncthreads(); }
static __device__ __forceinline__ void gb_sync_warp(void) { __syncwarp(); }
template <class T> static __device__ __forceinline__ T gb_shfl(T x, int lane) {
    return __shfl_sync(0xffffffffu, x, lane);
}
template <class T> static __device__ __forceinline__ T gb_shfl_xor(T x, int mask) {
    return __shfl_xor_sync(0xffffffffu, x, mask);
}
template <class T> static __device__ __forceinline__ T gb_shfl_up(T x, int delta) {
    return __shfl_up_sync(0xffffffffu, x, delta);
}
static __device__ __forceinline__ uint32_t gb_ballot(bool x) { return __ballot_sync(0xffffffffu, x); }
// Returns the old value. T: int, unsigned, float.
template <class T> static __device__ __forceinline__ T gb_atomic_add(T * p, T x) { return atomicAdd(p, x); }
// Orders this thread's earlier writes before its later ones, as the host sees them.
static __device__ __forceinline__ void gb_fence_system(void) { __threadfence_system(); }

// ---- asynchronous copies of 16 or 8 bytes into shared memory, aligned to their size; the last bytes
// may be zeros

static __device__ __forceinline__ uint32_t gb_shared_address(const void * p) {
    return (uint32_t) __cvta_generic_to_shared(p);
}

// Copies `bytes` bytes and fills the rest with zeros. compute-sanitizer's initcheck counts all 16, and reports the last
// copy of a row if uninitialized memory follows it.
static __device__ __forceinline__ void gb_cp_async_16(void * shared, const void * global, int bytes = 16) {
#if __CUDA_ARCH__ >= 800
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;\n" ::"r"(gb_shared_address(shared)), "l"(global),
        "r"(bytes)
        : "memory");
#else
    uint4 v = make_uint4(0, 0, 0, 0);
    if (bytes == 16) {
        v = *(const uint4 *) global;
    } else {
        for (int i = 0; i < bytes; i++) {
            ((unsigned char *) &v)[i] = ((const unsigned char *) global)[i];
        }
    }
    *(uint4 *) shared = v;
#endif
}

static __device__ __forceinline__ void gb_cp_async_8(void * shared, const void * global, int bytes = 8) {
#if __CUDA_ARCH__ >= 800
    asm volatile("cp.async.ca.shared.global [%0], [%1], 8, %2;\n" ::"r"(gb_shared_address(shared)), "l"(global),
        "r"(bytes)
        : "memory");
#else
    uint64_t v = 0;
    for (int i = 0; i < bytes; i++) {
        v |= (uint64_t) ((const unsigned char *) global)[i] << (8 * i);
    }
    *(uint64_t *) shared = v;
#endif
}

// Closes a group of copies of this thread.
static __device__ __forceinline__ void gb_cp_async_commit(void) {
#if __CUDA_ARCH__ >= 800
    asm volatile("cp.async.commit_group;\n" ::: "memory");
#endif
}

// Waits until at most `pending` of this thread's newest groups have not ended. Other threads see the
// data after a gb_sync_*.
template <int pending> static __device__ __forceinline__ void gb_cp_async_wait(void) {
#if __CUDA_ARCH__ >= 800
    asm volatile("cp.async.wait_group %0;\n" ::"n"(pending) : "memory");
#endif
}

// ---- matrices of 8 x 8 16-bit elements from shared memory; lane 8 i + r gives the 16-aligned address of row r of
// matrix i

static __device__ __forceinline__ void gb_ldmatrix_x4(uint32_t (&r)[4], const void * row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];\n"
        : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
        : "r"(gb_shared_address(row))
        : "memory");
}

// ---- products of tiles: d += a b, with a of 16 x k by rows, b of k x 8 by columns, d of 16 x 8

// k = 16, of halves.
static __device__ __forceinline__ void gb_mma_f16(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
#if __CUDA_ARCH__ >= 800
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, "
                 "%1, %2, %3};\n"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
#else
    for (int h = 0; h < 2; h++) {
        asm volatile(
            "mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5}, {%6}, {%0, %1, %2, %3};\n"
            : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
            : "r"(a[2 * h]), "r"(a[2 * h + 1]), "r"(b[h]));
    }
#endif
}

// k = 16, of bfloat16. Needs 8.0.
static __device__ __forceinline__ void gb_mma_bf16(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
#if __CUDA_ARCH__ >= 800
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
                 "{%0, %1, %2, %3};\n"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
#else
    (void) d, (void) a, (void) b;
    __trap();
#endif
}

// k = 8, of floats, of which the hardware uses 10 bits after the point. Needs 8.0.
static __device__ __forceinline__ void gb_mma_tf32(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
#if __CUDA_ARCH__ >= 800
    asm volatile("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
                 "{%0, %1, %2, %3};\n"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
#else
    (void) d, (void) a, (void) b;
    __trap();
#endif
}

// The nearest float with 10 bits after the point; ties round away from zero.
static __device__ __forceinline__ uint32_t gb_to_tf32(float x) {
#if __CUDA_ARCH__ >= 800
    uint32_t u;
    asm("cvt.rna.tf32.f32 %0, %1;\n" : "=r"(u) : "f"(x));
    return u;
#else
    return __float_as_uint(x);
#endif
}

// k = 32, of signed bytes.
static __device__ __forceinline__ void gb_mma_s8(int (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
#if __CUDA_ARCH__ >= 800
    asm volatile("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, "
                 "%1, %2, %3};\n"
        : "+r"(d[0]), "+r"(d[1]), "+r"(d[2]), "+r"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
#else
    for (int h = 0; h < 2; h++) { // half of k
        for (int m = 0; m < 2; m++) { // half of the rows
            asm volatile("mma.sync.aligned.m8n8k16.row.col.s32.s8.s8.s32 {%0, %1}, {%2}, {%3}, {%0, %1};\n"
                : "+r"(d[2 * m]), "+r"(d[2 * m + 1])
                : "r"(a[2 * h + m]), "r"(b[h]));
        }
    }
#endif
}

// d = c + a b.
static __device__ __forceinline__ void gb_mma_s8(int (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2],
    const int (&c)[4]) {
#if __CUDA_ARCH__ >= 800
    asm("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%10, %11, %12, "
        "%13};\n"
        : "=r"(d[0]), "=r"(d[1]), "=r"(d[2]), "=r"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]), "r"(c[0]), "r"(c[1]), "r"(c[2]), "r"(c[3]));
#else
    for (int i = 0; i < 4; i++) {
        d[i] = c[i];
    }
    gb_mma_s8(d, a, b);
#endif
}

// d = c + a b, k = 16, of signed bytes: the half of the fragments of gb_mma_s8 that has the lower k. Needs 8.0.
static __device__ __forceinline__ void gb_mma_s8_half(int (&d)[4], const uint32_t (&a)[2], uint32_t b,
    const int (&c)[4]) {
#if __CUDA_ARCH__ >= 800
    asm("mma.sync.aligned.m16n8k16.row.col.s32.s8.s8.s32 {%0, %1, %2, %3}, {%4, %5}, {%6}, {%7, %8, %9, %10};\n"
        : "=r"(d[0]), "=r"(d[1]), "=r"(d[2]), "=r"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(b), "r"(c[0]), "r"(c[1]), "r"(c[2]), "r"(c[3]));
#else
    (void) d, (void) a, (void) b, (void) c;
    __trap();
#endif
}

#endif // GB_CUDA_LAUNCH_DEVICE_CUH
