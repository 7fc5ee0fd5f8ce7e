// launch.cuh - the dialect that kernels are written in.
//
// One idea: device code touches the hardware only through the names below, so that the same source runs on a GPU
// (compiled by nvcc) and in the tests' emulation (compiled by the host's C++ compiler with GB_CUDA_EMULATED;
// tests/cuda/emulation). What is allowed:
//
//   threadIdx blockIdx blockDim gridDim, float2 float4 int2 int4 uint2 uint4 and make_*
//   functions of <math.h> on float, rsqrtf
//   GB_LAUNCH                    instead of <<< >>>; gives a cudaError_t, to be checked with GB_CUDA_TRY
//   GB_SHARED, GB_DYNAMIC_SHARED instead of __shared__
//   gb_wait_for_earlier          the first statement of every kernel, by all threads: see below
//   gb_sync_block gb_sync_warp   instead of __syncthreads, __syncwarp: by all threads of the block, of the warp; none
//                                may have returned
//   gb_shfl* gb_ballot gb_any    by all 32 lanes; so blocks have a multiple of 32 threads
//   gb_all gb_warp_sum gb_warp_max
//   gb_exp2                      2 to the power of x in one instruction, to 2^-22 of it; below 2^-126 it may be zero
//   gb_cp_async_* gb_ldmatrix_*  as in the PTX manual
//   gb_mma_* gb_dp4a gb_atomic_*
//   gb_fence_system              instead of __threadfence_system
//   gb_needs_code                only code for this capability (80, say) may come here: the emulation looks
//
// From compute capability 9.0 on a kernel may begin while the one before it in the queue still runs (queue.h). What
// keeps them in order is gb_wait_for_earlier: it returns when every earlier kernel has ended and what these wrote is
// seen, and from then on the next kernel may begin, up to its own. Invariant: every thread of every kernel calls it
// once, before it touches memory that is not its block's or its own, and before it returns. Then a kernel ends after
// all before it ended, so to wait for one is to wait for all, and no more than two overlap. Before it a kernel may set
// up its barriers and compute with its parameters. The emulation fails where a kernel breaks this, and
// tools/check_waits.py proves it of the machine code. Elsewhere it is nothing.
//
// Not allowed: device lambdas, recursion, printf, asserts, warp-level code under a condition that lanes disagree on,
// __constant__ (use GB_CONST for tables), cooperative groups, other inline assembly.
#ifndef GB_CUDA_LAUNCH_CUH
#define GB_CUDA_LAUNCH_CUH

#include <cuda_runtime.h>

#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#define GB_WARP 32

#include "cuda/queue.h"

// Kernel by name, with template arguments in parentheses: GB_LAUNCH((scale<float, 4>), grid, block, 0, b.queue, x, y,
// n). Grid and block are dim3 or a number.
#define GB_LAUNCH(kernel, grid, block, shared_bytes, queue, ...) \
    gb_launch(#kernel, kernel, dim3(grid), dim3(block), (size_t) (shared_bytes), queue, __VA_ARGS__)

#ifdef GB_CUDA_EMULATED
#    include "launch_emulated.h"
#else
#    include "cuda/launch_device.cuh"
#endif

// --------------------------------------------------------------------------------------------------- the same for both

// The arguments become what the kernel's parameters are.
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

// To any of float, gb_half, gb_bf16 (round to nearest even); integers are cut.
template <class T> __device__ __forceinline__ T gb_from_float(float x) { return (T) x; }
template <> __device__ __forceinline__ gb_half gb_from_float<gb_half>(float x) { return gb_float_to_half(x); }
template <> __device__ __forceinline__ gb_bf16 gb_from_float<gb_bf16>(float x) { return gb_float_to_bf16(x); }

GB_DEVICE int gb_lane(void) {
    return (int) (threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z)) % GB_WARP;
}

// Of a value of each lane, to all lanes. NaN: of the maximum, ignored unless all are NaN.
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

// The bits of a value of four bytes.
template <class T> __device__ __forceinline__ uint32_t gb_bits(T x) {
    static_assert(sizeof(T) == 4, "four bytes");
    uint32_t u;
    memcpy(&u, &x, 4);
    return u;
}

#endif // GB_CUDA_LAUNCH_CUH
