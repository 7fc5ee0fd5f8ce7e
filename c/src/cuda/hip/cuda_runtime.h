// cuda_runtime.h - the calls of CUDA's runtime that the backend makes, as HIP's: found in place of CUDA's own header
// where hipcc compiles the backend (c/cmake/hip.cmake).
//
// Compiled and never run (docs/CUDA.md, ROCm). Most calls differ by their name alone, and HIP's errors have CUDA's
// numbers. What differs by more is a function below; what HIP lacks is said there, and nowhere else.
#ifndef GB_HIP_CUDA_RUNTIME_H
#define GB_HIP_CUDA_RUNTIME_H

#include <hip/hip_runtime.h>

#include <stdio.h>
#include <string.h>

#define GB_HIP
#define CUDART_VERSION 0 // none: no edges between nodes but full ones, no entry points by version

// ------------------------------------------------------------------------------------------------ other names, no more

#define cudaError_t hipError_t
#define cudaSuccess hipSuccess
#define cudaErrorIllegalAddress hipErrorIllegalAddress
#define cudaErrorInvalidConfiguration hipErrorInvalidConfiguration
#define cudaErrorInvalidValue hipErrorInvalidValue
#define cudaErrorMemoryAllocation hipErrorOutOfMemory
#define cudaErrorNotSupported hipErrorNotSupported
#define cudaErrorUnknown hipErrorUnknown
#define cudaGetErrorName hipGetErrorName
#define cudaGetErrorString hipGetErrorString
#define cudaGetLastError hipGetLastError
#define cudaDeviceCanAccessPeer hipDeviceCanAccessPeer
#define cudaDeviceEnablePeerAccess hipDeviceEnablePeerAccess
#define cudaDeviceSynchronize hipDeviceSynchronize
#define cudaGetDevice hipGetDevice
#define cudaGetDeviceCount hipGetDeviceCount
#define cudaSetDevice hipSetDevice
#define cudaEvent_t hipEvent_t
#define cudaEventCreateWithFlags hipEventCreateWithFlags
#define cudaEventDefault hipEventDefault
#define cudaEventDestroy hipEventDestroy
#define cudaEventDisableTiming hipEventDisableTiming
#define cudaEventElapsedTime hipEventElapsedTime
#define cudaEventRecord hipEventRecord
#define cudaEventSynchronize hipEventSynchronize
#define cudaStream_t hipStream_t
#define cudaStreamBeginCapture hipStreamBeginCapture
#define cudaStreamCaptureModeRelaxed hipStreamCaptureModeRelaxed
#define cudaStreamCreateWithFlags hipStreamCreateWithFlags
#define cudaStreamDestroy hipStreamDestroy
#define cudaStreamEndCapture hipStreamEndCapture
#define cudaStreamNonBlocking hipStreamNonBlocking
#define cudaStreamSynchronize hipStreamSynchronize
#define cudaStreamWaitEvent hipStreamWaitEvent
#define cudaFree hipFree
#define cudaFreeHost hipHostFree
#define cudaHostAlloc hipHostMalloc
#define cudaHostAllocMapped hipHostMallocMapped
#define cudaHostAllocPortable hipHostMallocPortable
#define cudaHostRegister hipHostRegister
#define cudaHostRegisterPortable hipHostRegisterPortable
#define cudaHostUnregister hipHostUnregister
#define cudaMalloc hipMalloc
#define cudaMemGetInfo hipMemGetInfo
#define cudaMemcpy2DAsync hipMemcpy2DAsync
#define cudaMemcpyAsync hipMemcpyAsync
#define cudaMemcpyDefault hipMemcpyDefault
#define cudaMemcpyDeviceToDevice hipMemcpyDeviceToDevice
#define cudaMemcpyDeviceToHost hipMemcpyDeviceToHost
#define cudaMemcpyHostToDevice hipMemcpyHostToDevice
#define cudaMemcpyPeerAsync hipMemcpyPeerAsync
#define cudaMemsetAsync hipMemsetAsync
#define cudaFuncAttributeMaxDynamicSharedMemorySize hipFuncAttributeMaxDynamicSharedMemorySize
#define cudaFuncSetAttribute hipFuncSetAttribute
#define cudaLaunchKernel hipLaunchKernel
#define cudaGraph_t hipGraph_t
#define cudaGraphNode_t hipGraphNode_t
#define cudaGraphExec_t hipGraphExec_t
#define cudaKernelNodeParams hipKernelNodeParams
#define cudaMemsetParams hipMemsetParams
#define cudaGraphAddChildGraphNode hipGraphAddChildGraphNode
#define cudaGraphAddDependencies hipGraphAddDependencies
#define cudaGraphAddKernelNode hipGraphAddKernelNode
#define cudaGraphAddMemcpyNode1D hipGraphAddMemcpyNode1D
#define cudaGraphAddMemsetNode hipGraphAddMemsetNode
#define cudaGraphCreate hipGraphCreate
#define cudaGraphDestroy hipGraphDestroy
#define cudaGraphExecChildGraphNodeSetParams hipGraphExecChildGraphNodeSetParams
#define cudaGraphExecDestroy hipGraphExecDestroy
#define cudaGraphExecKernelNodeSetParams hipGraphExecKernelNodeSetParams
#define cudaGraphExecMemcpyNodeSetParams1D hipGraphExecMemcpyNodeSetParams1D
#define cudaGraphExecMemsetNodeSetParams hipGraphExecMemsetNodeSetParams
#define cudaGraphLaunch hipGraphLaunch

// Memory that cannot be written is not registered: HIP has no flag for it, and refuses this one.
#define cudaHostRegisterReadOnly 0x80000000u

// ------------------------------------------------------------------------------------------------------------- devices

// What the backend chooses kernels by. AMD's devices are taken for the oldest of NVIDIA's that it knows: no bf16 in
// products of tiles, no kernels that overlap, none of hopper.cuh; that they have no products of tiles at all says
// gb_has_mma (launch_hip.cuh). A device with wavefronts of 64 lanes gets a capability that is refused.
enum { GB_HIP_CAPABILITY = 75 };

struct cudaDeviceProp {
    int major, minor, multiProcessorCount, l2CacheSize;
    size_t sharedMemPerBlockOptin, memPitch;
    char name[256];
};

static inline hipError_t cudaGetDeviceProperties(cudaDeviceProp * p, int device) {
    hipDeviceProp_t h;
    const hipError_t error = hipGetDeviceProperties(&h, device);
    if (error != hipSuccess) {
        return error;
    }
    *p = cudaDeviceProp{};
    const int capability = h.warpSize == 32 ? (int) GB_HIP_CAPABILITY : 0;
    p->major = capability / 10;
    p->minor = capability % 10;
    p->multiProcessorCount = h.multiProcessorCount;
    p->l2CacheSize = h.l2CacheSize;
    p->sharedMemPerBlockOptin = h.sharedMemPerBlock; // nobody has to ask for more
    p->memPitch = h.memPitch;
    snprintf(p->name, sizeof(p->name), "%s", h.name);
    return hipSuccess;
}

struct cudaFuncAttributes {
    int ptxVersion;
};

// Fails where the module has no code for the device.
static inline hipError_t cudaFuncGetAttributes(cudaFuncAttributes * a, const void * function) {
    hipFuncAttributes h;
    const hipError_t error = hipFuncGetAttributes(&h, function);
    a->ptxVersion = GB_HIP_CAPABILITY;
    return error;
}

// --------------------------------------------------------------------------------------------- functions of the driver

enum cudaDriverEntryPointQueryResult { cudaDriverEntryPointSuccess, cudaDriverEntryPointSymbolNotFound };

// HIP's own, of those that the backend asks for; it has no tensor maps.
static inline hipError_t cudaGetDriverEntryPoint(const char * name, void ** function, unsigned long long,
    cudaDriverEntryPointQueryResult * found) {
    const bool known = strcmp(name, "cuDevicePrimaryCtxGetState") == 0;
    *function = known ? reinterpret_cast<void *>(hipDevicePrimaryCtxGetState) : nullptr;
    *found = known ? cudaDriverEntryPointSuccess : cudaDriverEntryPointSymbolNotFound;
    return hipSuccess;
}

// ------------------------------------------------------------------------------------------------- copies and launches

struct cudaMemcpy3DPeerParms {
    hipPitchedPtr srcPtr, dstPtr;
    int srcDevice, dstDevice;
    hipExtent extent;
};

// HIP has no such call: its plain one finds the devices by the addresses.
static inline hipError_t cudaMemcpy3DPeerAsync(const cudaMemcpy3DPeerParms * p, hipStream_t stream) {
    hipMemcpy3DParms h = {};
    h.srcPtr = p->srcPtr;
    h.dstPtr = p->dstPtr;
    h.extent = p->extent;
    h.kind = hipMemcpyDefault;
    return hipMemcpy3DAsync(&h, stream);
}

enum cudaLaunchAttributeID { cudaLaunchAttributeProgrammaticStreamSerialization };
struct cudaLaunchAttribute {
    cudaLaunchAttributeID id;
    struct {
        int programmaticStreamSerializationAllowed;
    } val;
};
struct cudaLaunchConfig_t {
    dim3 gridDim, blockDim;
    size_t dynamicSmemBytes;
    hipStream_t stream;
    cudaLaunchAttribute * attrs;
    unsigned numAttrs;
};

// HIP has no such attributes. What they allow, the kernel does not make use of.
static inline hipError_t cudaLaunchKernelExC(const cudaLaunchConfig_t * c, const void * function, void ** values) {
    return hipLaunchKernel(function, c->gridDim, c->blockDim, values, c->dynamicSmemBytes, c->stream);
}

static inline hipError_t cudaGraphInstantiate(hipGraphExec_t * exec, hipGraph_t graph, unsigned long long) {
    return hipGraphInstantiate(exec, graph, nullptr, nullptr, 0);
}

#endif // GB_HIP_CUDA_RUNTIME_H
