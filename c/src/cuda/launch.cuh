// launch.cuh - the dialect that kernels are written in.
//
// Device code uses the hardware only through the names below. So the same source runs on a GPU
// (launch_device.cuh, compiled by nvcc) and in the emulation (tests/cuda/emulation, compiled by the
// host's C++ compiler). Allowed are:
//
//   threadIdx blockIdx blockDim gridDim, float2 float4 int2 int4 uint2 uint4 and make_*
//   functions of <math.h> on float, rsqrtf
//   GB_LAUNCH                    instead of <<< >>>; gives a cudaError_t for GB_CUDA_TRY
//   GB_SHARED, GB_DYNAMIC_SHARED instead of __shared__
//   GB_CONST                     instead of __constant__, for tables
//   GB_BOUNDS(threads, blocks)   threads of a block, and blocks that a multiprocessor should hold
//   GB_UNROLL GB_UNROLL_2 GB_NO_UNROLL    before a loop
//   gb_wait_for_earlier          the first statement of every kernel, by all threads; see below
//   gb_prefetch(p)               loads the line of the address into the L2 cache, on 9.0 and newer
//   gb_sync_block gb_sync_warp   instead of __syncthreads, __syncwarp: by all threads of the block or
//                                warp, of which none has returned
//   gb_shfl* gb_ballot           by all 32 lanes; so blocks have a multiple of 32 threads
//   gb_warp_sum gb_warp_max
//   gb_exp2                      2 to the power of x in one instruction; relative error 2^-22; below 2^-126 it may be
//                                zero
//   gb_rounded_product           x y, rounded, never part of a fused multiply-add: where results must equal the CPU's
//   gb_perm(a, b, select)        byte i of the result is byte n of b:a, where n is nibble i of select. 0 to 3 are the
//                                bytes of a. From 8 on: the sign of byte n - 8, eight times
//   gb_funnel_right              the low word of high:low shifted right by up to 31 bits
//   gb_select(mask, a, b)        bits of a where mask has ones, of b elsewhere
//   gb_parity                    1 if the number of set bits is odd, else 0
//   gb_lowest_bit                the number of the lowest set bit; there must be one
//   gb_cp_async_* gb_ldmatrix_x4 as in the PTX manual
//   gb_mma_* gb_dp4a gb_atomic_add
//   gb_fence_system              instead of __threadfence_system
//   gb_needs_code(80)            only code for capability 8.0 or newer may reach this; the emulation checks it
//   gb_is_code_for_80            constexpr: the code is for capability 8.0 or newer
//
// Not allowed are device lambdas, recursion, printf, asserts, warp-level code under a condition
// that differs between lanes, __constant__, cooperative groups, other inline assembly.
//
// On compute capability 9.0 and newer a kernel may begin while its predecessor in the queue still
// runs (queue.h). gb_wait_for_earlier keeps them in order. It returns when all earlier kernels have
// ended and their writes are visible. The next kernel may begin from then on, up to its own wait.
//
// Invariant: every thread of every kernel calls gb_wait_for_earlier once, before it accesses memory
// of other blocks and before it returns. So a kernel ends after all kernels before it, a wait for
// one is a wait for all, and at most two kernels overlap. Before the call a kernel may set up
// barriers, compute with its parameters, and call gb_prefetch. A prefetch gives the kernel no data,
// and all of the device's writes go through the L2 cache. So it is allowed for memory that earlier
// kernels still write. The emulation fails a kernel that breaks the invariant, and
// tools/check_waits.py proves it from the machine code. On older devices the function does nothing.
#ifndef GB_CUDA_LAUNCH_CUH
#define GB_CUDA_LAUNCH_CUH

#include <cuda_runtime.h>

#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#define GB_WARP 32

#include "cuda/queue.h"

// A kernel with template arguments is in parentheses: GB_LAUNCH((scale<float, 4>), grid, block, 0,
// b.queue, x, y, n). Grid and block are dim3 or numbers.
#define GB_LAUNCH(kernel, grid, block, shared_bytes, queue, ...) \
    gb_launch(#kernel, kernel, dim3(grid), dim3(block), (size_t) (shared_bytes), queue, __VA_ARGS__)

#ifdef GB_CUDA_EMULATED
#    include "launch_emulated.h"
#else
#    include "cuda/launch_device.cuh"
#endif

// --------------------------------------------------------------------------------------------------- for both dialects

// Converts the arguments to the types of the kernel's parameters.
template <class... P, class... A>
inline cudaError_t gb_launch(const char * name, void (*kernel)(P...), dim3 grid, dim3 block, size_t shared,
    const gb_queue & queue, A... args) {
    gb_know_kernel(name, kernel);
    return [&](P... values) {
        void * pointers[] = { (void *) &values... };
        const size_t sizes[] = { sizeof(values)... };
        return gb_queue_kernel(queue, { (const void *) kernel, grid, block, shared, pointers, sizes, sizeof...(P) });
    }((P) args...);
}

#define GB_DEVICE static __device__ __forceinline__
#define GB_KERNEL static __global__ void

template <class T> __device__ __forceinline__ T gb_min(T a, T b) { return a < b ? a : b; }

template <class T> __device__ __forceinline__ T gb_max(T a, T b) { return a > b ? a : b; }

GB_DEVICE float gb_to_float(float x) { return x; }
GB_DEVICE float gb_to_float(int32_t x) { return (float) x; }
GB_DEVICE float gb_to_float(int16_t x) { return (float) x; }
GB_DEVICE float gb_to_float(int8_t x) { return (float) x; }

// To float, gb_half or gb_bf16, rounded to nearest even; to integers, truncated.
template <class T> __device__ __forceinline__ T gb_from_float(float x) { return (T) x; }
template <> __device__ __forceinline__ gb_half gb_from_float<gb_half>(float x) { return gb_float_to_half(x); }
template <> __device__ __forceinline__ gb_bf16 gb_from_float<gb_bf16>(float x) { return gb_float_to_bf16(x); }

GB_DEVICE int gb_lane(void) {
    return (int) (threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z)) % GB_WARP;
}

// The sum or maximum over all lanes, for all lanes. The maximum ignores NaN unless all values are NaN.
template <class T> __device__ __forceinline__ T gb_warp_sum(T x) {
    for (int d = GB_WARP / 2; d > 0; d /= 2) {
        x += gb_shfl_xor(x, d);
    }
    return x;
}

GB_DEVICE float gb_warp_max(float x) {
    for (int d = GB_WARP / 2; d > 0; d /= 2) {
        x = fmaxf(x, gb_shfl_xor(x, d));
    }
    return x;
}

template <class T> __device__ __forceinline__ uint32_t gb_bits(T x) {
    static_assert(sizeof(T) == 4, "four bytes");
    uint32_t u;
    memcpy(&u, &x, 4);
    return u;
}

#endif // GB_CUDA_LAUNCH_CUH
