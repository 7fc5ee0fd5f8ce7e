// cuda_runtime.h - a CUDA runtime on the host, for tests only. It is never installed, and too slow for real work.
//
// It has the part of NVIDIA's interface that the backend uses, with its documented meaning, on
// emulated devices. Queued work runs only when a thread synchronizes, in a random order of streams.
// So code that misses an event or a synchronization finds memory without its results. Each piece of
// device memory is an allocation of the host, so that a sanitizer sees every access outside of it.
// It begins as NaN.
//
// runtime.cpp implements it. emulation.h has what tests can change.
#ifndef GB_EMULATED_CUDA_RUNTIME_H
#define GB_EMULATED_CUDA_RUNTIME_H

#include <stddef.h>
#include <stdint.h>

#include <functional>
#include <vector>

#include "emulation.h"

#define GB_CUDA_EMULATED 1
#define CUDART_VERSION 13000

#define __global__
#define __device__
#define __host__
#define __forceinline__ inline
#define __launch_bounds__(...)

struct alignas(8) float2 {
    float x, y;
};
struct alignas(16) float4 {
    float x, y, z, w;
};
struct alignas(8) int2 {
    int x, y;
};
struct alignas(16) int4 {
    int x, y, z, w;
};
struct alignas(8) uint2 {
    unsigned x, y;
};
struct alignas(16) uint4 {
    unsigned x, y, z, w;
};
struct uint3 {
    unsigned x, y, z;
};
struct dim3 {
    unsigned x, y, z;
    constexpr dim3(unsigned x_ = 1, unsigned y_ = 1, unsigned z_ = 1) : x(x_), y(y_), z(z_) {}
};

static inline float2 make_float2(float x, float y) { return { x, y }; }
static inline float4 make_float4(float x, float y, float z, float w) { return { x, y, z, w }; }
static inline int2 make_int2(int x, int y) { return { x, y }; }
static inline int4 make_int4(int x, int y, int z, int w) { return { x, y, z, w }; }
static inline uint2 make_uint2(unsigned x, unsigned y) { return { x, y }; }
static inline uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w) { return { x, y, z, w }; }

enum cudaError_t {
    cudaSuccess = 0,
    cudaErrorInvalidValue = 1,
    cudaErrorMemoryAllocation = 2,
    cudaErrorInitializationError = 3,
    cudaErrorInvalidConfiguration = 9,
    cudaErrorInsufficientDriver = 35,
    cudaErrorNoDevice = 100,
    cudaErrorInvalidDevice = 101,
    cudaErrorNoKernelImageForDevice = 209,
    cudaErrorInvalidResourceHandle = 400,
    cudaErrorNotReady = 600,
    cudaErrorIllegalAddress = 700,
    cudaErrorPeerAccessAlreadyEnabled = 704,
    cudaErrorHostMemoryAlreadyRegistered = 712,
    cudaErrorHostMemoryNotRegistered = 713,
    cudaErrorLaunchFailure = 719,
    cudaErrorNotSupported = 801,
    cudaErrorStreamCaptureUnsupported = 900,
    cudaErrorStreamCaptureInvalidated = 901,
    cudaErrorGraphExecUpdateFailure = 910,
    cudaErrorUnknown = 999,
};

enum cudaMemcpyKind {
    cudaMemcpyHostToHost,
    cudaMemcpyHostToDevice,
    cudaMemcpyDeviceToHost,
    cudaMemcpyDeviceToDevice,
    cudaMemcpyDefault
};
enum cudaStreamCaptureMode {
    cudaStreamCaptureModeGlobal,
    cudaStreamCaptureModeThreadLocal,
    cudaStreamCaptureModeRelaxed
};
enum cudaDeviceAttr {
    cudaDevAttrMaxSharedMemoryPerBlockOptin = 97,
};
enum cudaFuncAttribute { cudaFuncAttributeMaxDynamicSharedMemorySize = 8 };
enum cudaDriverEntryPointQueryResult { cudaDriverEntryPointSuccess, cudaDriverEntryPointSymbolNotFound };
enum cudaMemoryType { cudaMemoryTypeUnregistered, cudaMemoryTypeHost, cudaMemoryTypeDevice, cudaMemoryTypeManaged };

typedef struct gb_emu_stream * cudaStream_t;
typedef struct gb_emu_event * cudaEvent_t;
typedef struct gb_emu_graph * cudaGraph_t;
typedef struct gb_emu_graph_exec * cudaGraphExec_t;
typedef struct gb_emu_node * cudaGraphNode_t;

struct cudaKernelNodeParams {
    void * func;
    dim3 gridDim, blockDim;
    unsigned sharedMemBytes;
    void ** kernelParams;
    void ** extra;
};

enum cudaLaunchAttributeID { cudaLaunchAttributeProgrammaticStreamSerialization = 6 };
union cudaLaunchAttributeValue {
    char pad[64];
    int programmaticStreamSerializationAllowed;
};
struct cudaLaunchAttribute {
    cudaLaunchAttributeID id;
    char pad[8 - sizeof(cudaLaunchAttributeID)];
    cudaLaunchAttributeValue val;
};
struct cudaLaunchConfig_t {
    dim3 gridDim, blockDim;
    size_t dynamicSmemBytes;
    cudaStream_t stream;
    cudaLaunchAttribute * attrs;
    unsigned numAttrs;
};

enum { cudaGraphDependencyTypeDefault = 0, cudaGraphDependencyTypeProgrammatic = 1 };
#define cudaGraphKernelNodePortDefault 0
#define cudaGraphKernelNodePortProgrammatic 1
#define cudaGraphKernelNodePortLaunchCompletion 2
struct cudaGraphEdgeData {
    unsigned char from_port, to_port, type, reserved[5];
};

struct cudaMemsetParams {
    void * dst;
    size_t pitch;
    unsigned value, elementSize;
    size_t width, height;
};

struct cudaPitchedPtr {
    void * ptr;
    size_t pitch, xsize, ysize;
};
struct cudaExtent {
    size_t width, height, depth;
};
struct cudaPos {
    size_t x, y, z;
};
struct cudaMemcpy3DPeerParms {
    void * srcArray;
    cudaPos srcPos;
    cudaPitchedPtr srcPtr;
    int srcDevice;
    void * dstArray;
    cudaPos dstPos;
    cudaPitchedPtr dstPtr;
    int dstDevice;
    cudaExtent extent;
};

struct cudaDeviceProp {
    char name[256];
    int major, minor, multiProcessorCount, l2CacheSize;
    size_t totalGlobalMem, sharedMemPerBlock, sharedMemPerBlockOptin, memPitch;
};

struct cudaFuncAttributes {
    int ptxVersion, binaryVersion;
};

#define cudaStreamNonBlocking 1u
#define cudaEventDefault 0u
#define cudaEventDisableTiming 2u
#define cudaHostAllocPortable 1u
#define cudaHostAllocMapped 2u
#define cudaHostAllocDefault 0u
#define cudaHostRegisterPortable 1u
#define cudaHostRegisterReadOnly 8u

const char * cudaGetErrorString(cudaError_t error);
const char * cudaGetErrorName(cudaError_t error);
cudaError_t cudaGetLastError(void);
cudaError_t cudaPeekAtLastError(void);
cudaError_t cudaGetDeviceCount(int * count);
cudaError_t cudaGetDevice(int * device);
cudaError_t cudaSetDevice(int device);
cudaError_t cudaGetDeviceProperties(cudaDeviceProp * properties, int device);
cudaError_t cudaFuncGetAttributes(cudaFuncAttributes * attributes, const void * function);
cudaError_t cudaDeviceSynchronize(void);
cudaError_t cudaDeviceCanAccessPeer(int * can, int device, int peer);
cudaError_t cudaDeviceEnablePeerAccess(int peer, unsigned flags);
cudaError_t cudaMemGetInfo(size_t * free, size_t * total);
cudaError_t cudaMalloc(void ** memory, size_t size);
cudaError_t cudaFree(void * memory);
cudaError_t cudaHostAlloc(void ** memory, size_t size, unsigned flags);
cudaError_t cudaFreeHost(void * memory);
cudaError_t cudaHostRegister(void * memory, size_t size, unsigned flags);
cudaError_t cudaHostUnregister(void * memory);
cudaError_t cudaMemcpyAsync(void * to, const void * from, size_t size, cudaMemcpyKind kind, cudaStream_t stream);
cudaError_t cudaMemcpyPeerAsync(void * to, int to_device, const void * from, int from_device, size_t size,
    cudaStream_t stream);
cudaError_t cudaMemcpy2DAsync(void * to, size_t to_pitch, const void * from, size_t from_pitch, size_t width,
    size_t height, cudaMemcpyKind kind, cudaStream_t stream);
cudaError_t cudaMemsetAsync(void * to, int value, size_t size, cudaStream_t stream);
cudaError_t cudaStreamCreateWithFlags(cudaStream_t * stream, unsigned flags);
cudaError_t cudaStreamDestroy(cudaStream_t stream);
cudaError_t cudaStreamSynchronize(cudaStream_t stream);
cudaError_t cudaStreamQuery(cudaStream_t stream);
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned flags);
cudaError_t cudaEventCreateWithFlags(cudaEvent_t * event, unsigned flags);
cudaError_t cudaEventDestroy(cudaEvent_t event);
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream);
cudaError_t cudaEventSynchronize(cudaEvent_t event);
cudaError_t cudaEventElapsedTime(float * ms, cudaEvent_t start, cudaEvent_t end);
cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode mode);
cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t * graph);
cudaError_t cudaGraphCreate(cudaGraph_t * graph, unsigned flags);
cudaError_t cudaGraphAddKernelNode(cudaGraphNode_t * node, cudaGraph_t graph, const cudaGraphNode_t * after, size_t n,
    const cudaKernelNodeParams * parameters);
cudaError_t cudaGraphAddMemcpyNode1D(cudaGraphNode_t * node, cudaGraph_t graph, const cudaGraphNode_t * after, size_t n,
    void * to, const void * from, size_t size, cudaMemcpyKind kind);
cudaError_t cudaGraphAddMemsetNode(cudaGraphNode_t * node, cudaGraph_t graph, const cudaGraphNode_t * after, size_t n,
    const cudaMemsetParams * parameters);
cudaError_t cudaGraphAddChildGraphNode(cudaGraphNode_t * node, cudaGraph_t graph, const cudaGraphNode_t * after,
    size_t n, cudaGraph_t child);
cudaError_t cudaGraphAddDependencies(cudaGraph_t graph, const cudaGraphNode_t * from, const cudaGraphNode_t * to,
    const cudaGraphEdgeData * edges, size_t n);
cudaError_t cudaGraphInstantiate(cudaGraphExec_t * exec, cudaGraph_t graph, unsigned long long flags);
cudaError_t cudaGraphExecKernelNodeSetParams(cudaGraphExec_t exec, cudaGraphNode_t node,
    const cudaKernelNodeParams * parameters);
cudaError_t cudaGraphExecMemcpyNodeSetParams1D(cudaGraphExec_t exec, cudaGraphNode_t node, void * to, const void * from,
    size_t size, cudaMemcpyKind kind);
cudaError_t cudaGraphExecMemsetNodeSetParams(cudaGraphExec_t exec, cudaGraphNode_t node,
    const cudaMemsetParams * parameters);
cudaError_t cudaGraphExecChildGraphNodeSetParams(cudaGraphExec_t exec, cudaGraphNode_t node, cudaGraph_t child);
cudaError_t cudaGraphLaunch(cudaGraphExec_t exec, cudaStream_t stream);
cudaError_t cudaGraphDestroy(cudaGraph_t graph);
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t exec);
cudaError_t cudaLaunchKernel(const void * function, dim3 grid, dim3 block, void ** values, size_t shared,
    cudaStream_t stream);
cudaError_t cudaLaunchKernelExC(const cudaLaunchConfig_t * config, const void * function, void ** values);
cudaError_t cudaFuncSetAttribute(const void * function, enum cudaFuncAttribute attribute, int value);
cudaError_t cudaGetDriverEntryPointByVersion(const char * symbol, void ** function, unsigned version,
    unsigned long long flags, enum cudaDriverEntryPointQueryResult * status);
cudaError_t cudaMemcpy3DPeerAsync(const cudaMemcpy3DPeerParms * parameters, cudaStream_t stream);

// Calls a kernel for one thread, with pointers to the values of its parameters.
typedef void (*gb_emu_caller)(const void * function, void ** values);
void gb_emu_know_kernel(const char * name, const void * function, std::vector<size_t> sizes, gb_emu_caller call);

#endif // GB_EMULATED_CUDA_RUNTIME_H
