// hopper_device.cuh - the dialect of hopper.cuh on a GPU: thin wrappers around PTX.
//
// In code for other devices than 9.0a the functions trap. No launch reaches them.
#ifndef GB_CUDA_HOPPER_DEVICE_CUH
#define GB_CUDA_HOPPER_DEVICE_CUH

#define GB_FIXED_PARAMETER const __grid_constant__

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
#    define GB_HAS_HOPPER 1
#    define GB_HOPPER_ONLY(code) code
#else
#    define GB_HAS_HOPPER 0
#    define GB_HOPPER_ONLY(code) __trap()
#endif

// True if the module has code of this kernel for the current device. GB_HOPPER_CODE: the file is compiled for 9.0a.
// Creates the device's context.
template <class... P> inline bool gb_has_hopper_code(void (*kernel)(P...)) {
#ifndef GB_HOPPER_CODE
    return (void) kernel, false;
#else
    cudaFuncAttributes a;
    const cudaError_t error = cudaFuncGetAttributes(&a, (const void *) kernel);
    (void) cudaGetLastError(); // other devices give an error
    return error == cudaSuccess && a.binaryVersion == 90;
#endif
}

// ---- barriers

static __device__ __forceinline__ void gb_barrier_init(gb_barrier * b, int arrivals) {
    GB_HOPPER_ONLY(asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;\n" ::"r"(gb_shared_address(b)),
        "r"(arrivals) : "memory"));
}

static __device__ __forceinline__ void gb_barrier_fence(void) {
    GB_HOPPER_ONLY(asm volatile("fence.mbarrier_init.release.cluster;\n"
                                "fence.proxy.async.shared::cta;\n" :: : "memory"));
}

static __device__ __forceinline__ void gb_barrier_arrive(gb_barrier * b) {
    GB_HOPPER_ONLY(
        asm volatile("{\n.reg .b64 state;\n"
                     "mbarrier.arrive.shared::cta.b64 state, [%0];\n}\n" ::"r"(gb_shared_address(b)) : "memory"));
}

static __device__ __forceinline__ void gb_barrier_expect(gb_barrier * b, int bytes) {
    GB_HOPPER_ONLY(
        asm volatile("{\n.reg .b64 state;\n"
                     "mbarrier.arrive.expect_tx.shared::cta.b64 state, [%0], %1;\n}\n" ::"r"(gb_shared_address(b)),
            "r"(bytes) : "memory"));
}

static __device__ __forceinline__ bool gb_barrier_try(gb_barrier * b, int parity) {
    uint32_t over = 1;
    GB_HOPPER_ONLY(asm volatile("{\n.reg .pred p;\n"
                                "mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\n"
                                "selp.u32 %0, 1, 0, p;\n}\n" : "=r"(over) : "r"(gb_shared_address(b)),
        "r"(parity) : "memory"));
    return over != 0;
}

static __device__ __forceinline__ void gb_barrier_wait(gb_barrier * b, int parity) {
    while (!gb_barrier_try(b, parity)) {
    }
}

// ---- registers

template <int N> static __device__ __forceinline__ void gb_registers_fewer(void) {
    GB_HOPPER_ONLY(asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;\n" ::"n"(N)));
}

template <int N> static __device__ __forceinline__ void gb_registers_more(void) {
    GB_HOPPER_ONLY(asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;\n" ::"n"(N)));
}

// ---- copies

static __device__ __forceinline__ void gb_copy_tile(void * shared, const gb_tensor_map & map, int x, int y, int z,
    int w, gb_barrier * b) {
    GB_HOPPER_ONLY(asm volatile("cp.async.bulk.tensor.4d.shared::cluster.global.tile.mbarrier::complete_tx::bytes "
                                "[%0], [%1, {%2, %3, %4, %5}], [%6];\n" ::"r"(gb_shared_address(shared)),
        "l"(&map), "r"(x), "r"(y), "r"(z), "r"(w), "r"(gb_shared_address(b)) : "memory"));
}

// ---- products

static __device__ __forceinline__ uint32_t gb_pack_bf16(float low, float high) {
    uint32_t both = 0;
    GB_HOPPER_ONLY(asm("cvt.rn.bf16x2.f32 %0, %1, %2;\n" : "=r"(both) : "f"(high), "f"(low)));
    return both;
}

static __device__ __forceinline__ void gb_matrix_fence(void) {
    GB_HOPPER_ONLY(asm volatile("wgmma.fence.sync.aligned;\n" :: : "memory"));
}

// Keeps the compiler from moving writes to the registers below this point.
template <int N> static __device__ __forceinline__ void gb_matrix_fence(uint32_t (&a)[N][4]) {
    GB_UNROLL for (int i = 0; i < N; i++) {
        GB_UNROLL for (int j = 0; j < 4; j++) { asm volatile("" : "+r"(a[i][j])::"memory"); }
    }
    gb_matrix_fence();
}

static __device__ __forceinline__ void gb_copies_to_matrix(void) {
    GB_HOPPER_ONLY(asm volatile("fence.proxy.async.shared::cta;\n" :: : "memory"));
}

static __device__ __forceinline__ void gb_matrix_commit(void) {
    GB_HOPPER_ONLY(asm volatile("wgmma.commit_group.sync.aligned;\n" :: : "memory"));
}

template <int pending> static __device__ __forceinline__ void gb_matrix_wait(void) {
    GB_HOPPER_ONLY(asm volatile("wgmma.wait_group.sync.aligned %0;\n" ::"n"(pending) : "memory"));
}

// Keeps the compiler from moving reads of the registers above this point.
template <int N> static __device__ __forceinline__ void gb_matrix_done(float (&sum)[N]) {
    GB_UNROLL for (int i = 0; i < N; i++) { asm volatile("" : "+f"(sum[i])::"memory"); }
}

// The registers of the sums, as text and as operands. Both matrices and the flag `keep` follow them.
#define GB_SUMS_32                                                                                         \
    "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, " \
    "%22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define GB_SUMS_64                                                                                                    \
    GB_SUMS_32 ", "                                                                                                   \
               "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, %48, %49, %50, %51, " \
               "%52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
#define GB_SUMS_128                                                                                                   \
    GB_SUMS_64 ", "                                                                                                   \
               "%64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, %80, %81, %82, %83, " \
               "%84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95, %96, %97, %98, %99, %100, %101, %102, "   \
               "%103, %104, %105, %106, %107, %108, %109, %110, %111, %112, %113, %114, %115, %116, %117, %118, "     \
               "%119, %120, %121, %122, %123, %124, %125, %126, %127"
#define GB_SUM_8(d, i)                                                                                          \
    "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3]), "+f"(d[i + 4]), "+f"(d[i + 5]), "+f"(d[i + 6]), \
        "+f"(d[i + 7])
#define GB_SUM_32(d, i) GB_SUM_8(d, i), GB_SUM_8(d, i + 8), GB_SUM_8(d, i + 16), GB_SUM_8(d, i + 24)
#define GB_SUM_64(d, i) GB_SUM_32(d, i), GB_SUM_32(d, i + 32)
#define GB_SUM_128(d, i) GB_SUM_64(d, i), GB_SUM_64(d, i + 64)

#define GB_WGMMA(n, type, count, a_at, b_at, keep_at)                                                 \
    asm volatile("{\n.reg .pred keep;\nsetp.ne.b32 keep, %" keep_at ", 0;\n"                          \
                 "wgmma.mma_async.sync.aligned.m64n" #n "k16.f32." type "." type " {" GB_SUMS_##count \
        "}, %" a_at ", %" b_at ", keep, 1, 1, 0, 0;\n}\n"                                             \
        : GB_SUM_##count(sum, 0)                                                                      \
        : "l"(a), "l"(b), "r"((int) keep)                                                             \
        : "memory")
#define GB_WGMMA_OF(n, count, a_at, b_at, keep_at)       \
    if constexpr (KIND == GB_HALF_F16) {                 \
        GB_WGMMA(n, "f16", count, a_at, b_at, keep_at);  \
    } else {                                             \
        GB_WGMMA(n, "bf16", count, a_at, b_at, keep_at); \
    }

// keep: adds to the sums; else replaces them.
template <int KIND, int N>
static __device__ __forceinline__ void gb_matrix_mma(float (&sum)[N / 2], uint64_t a, uint64_t b, bool keep) {
    static_assert(N == 64 || N == 128 || N == 256, "N is 64, 128 or 256");
#if GB_HAS_HOPPER
    if constexpr (N == 64) {
        GB_WGMMA_OF(64, 32, "32", "33", "34");
    } else if constexpr (N == 128) {
        GB_WGMMA_OF(128, 64, "64", "65", "66");
    } else {
        GB_WGMMA_OF(256, 128, "128", "129", "130");
    }
#else
    (void) sum, (void) a, (void) b, (void) keep;
    __trap();
#endif
}

#define GB_WGMMA_ROWS(n, type, count, a0, a1, a2, a3, b_at, keep_at)                                  \
    asm volatile("{\n.reg .pred keep;\nsetp.ne.b32 keep, %" keep_at ", 0;\n"                          \
                 "wgmma.mma_async.sync.aligned.m64n" #n "k16.f32." type "." type " {" GB_SUMS_##count \
        "}, {%" a0 ", %" a1 ", %" a2 ", %" a3 "}, %" b_at ", keep, 1, 1, 0;\n}\n"                     \
        : GB_SUM_##count(sum, 0)                                                                      \
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"((int) keep)                         \
        : "memory")
#define GB_WGMMA_ROWS_OF(n, count, a0, a1, a2, a3, b_at, keep_at)       \
    if constexpr (KIND == GB_HALF_F16) {                                \
        GB_WGMMA_ROWS(n, "f16", count, a0, a1, a2, a3, b_at, keep_at);  \
    } else {                                                            \
        GB_WGMMA_ROWS(n, "bf16", count, a0, a1, a2, a3, b_at, keep_at); \
    }

template <int KIND, int N>
static __device__ __forceinline__ void gb_matrix_mma_rows(float (&sum)[N / 2], const uint32_t (&a)[4], uint64_t b,
    bool keep) {
    static_assert(N == 64 || N == 128 || N == 256, "N is 64, 128 or 256");
#if GB_HAS_HOPPER
    if constexpr (N == 64) {
        GB_WGMMA_ROWS_OF(64, 32, "32", "33", "34", "35", "36", "37");
    } else if constexpr (N == 128) {
        GB_WGMMA_ROWS_OF(128, 64, "64", "65", "66", "67", "68", "69");
    } else {
        GB_WGMMA_ROWS_OF(256, 128, "128", "129", "130", "131", "132", "133");
    }
#else
    (void) sum, (void) a, (void) b, (void) keep;
    __trap();
#endif
}

#endif // GB_CUDA_HOPPER_DEVICE_CUH
