// device.h - the CUDA devices of the machine, and errors of runtime calls.
//
// The list of devices is made at the first query and never changes. Registry entries and buffers
// point into it.
#ifndef GB_CUDA_DEVICE_H
#define GB_CUDA_DEVICE_H

#include <cuda_runtime.h>

#include <mutex>

#include "ggml-backend-module.h"

struct gb_cuda_device {
    int id;            // number of the runtime, and index in the list
    int n_sm;          // multiprocessors
    int cc;            // compute capability, major * 10 + minor; gb_cuda_check_code lowers it to that of the code
    size_t shared_max; // bytes; largest shared memory of a block
    size_t l2_bytes;
    size_t pitch_max; // bytes; largest distance of rows in a copy
    bool dependent;   // a kernel may begin before its predecessor ends (queue.h); set by gb_cuda_check_code
    bool hopper;      // the kernels of hopper.cuh run on it; set by gb_cuda_check_code
    char name[16];    // "CUDA0"
    char description[256];
};

int gb_cuda_device_count(void);             // 0: gb_cuda_absent_reason says why
const char * gb_cuda_absent_reason(void);   // "" when there are devices
gb_cuda_device * gb_cuda_device_get(int i); // NULL when out of range

// True if the device can run kernels of this build; else reports an error. If the driver
// runs code that was built for an older capability, device->cc becomes that capability.
bool gb_cuda_check_code(gb_cuda_device * device);

// True if the current device can run the kernels of hopper.cuh. False if GGML_CUDA_HOPPER=0 turns them off.
bool gb_cuda_has_hopper_kernels(void); // code_hopper.cu

// Makes a device current for the calling thread until the end of the scope. Then makes the previous
// device current again, but only if that device has a context: making it current would create one.
class gb_cuda_on_device {
  public:
    explicit gb_cuda_on_device(int id);
    ~gb_cuda_on_device();
    gb_cuda_on_device(const gb_cuda_on_device &) = delete;
    gb_cuda_on_device & operator=(const gb_cuda_on_device &) = delete;

  private:
    int previous;
};
// For pinned memory, which belongs to no device: a device that has a context, or the first.
gb_cuda_on_device gb_cuda_on_any_device();

// Waits for all work that is queued on the device. Holds the wait lock, as does a thread that
// captures a library's work: a wait during the capture would break it.
cudaError_t gb_cuda_wait(const gb_cuda_device * device);
std::mutex & gb_cuda_wait_lock(const gb_cuda_device * device);

// Call it before the first copy between two devices. Enables direct copies if the devices support them.
void gb_cuda_reach(const gb_cuda_device * a, const gb_cuda_device * b);
// Waits for the device, and for all devices that it has exchanged copies with.
void gb_cuda_wait_for_users(const gb_cuda_device * device);
void gb_cuda_wait_for_all(void); // waits for every device that has a context

// Reports a failed call as "CUDA0: <call>: <text of the runtime>", and returns the status. If the device is still
// usable, the runtime forgets the error.
enum ggml_status gb_cuda_report(const char * device, const char * call, cudaError_t error);
bool gb_cuda_is_sticky(cudaError_t error); // the process cannot use the device after it

#endif // GB_CUDA_DEVICE_H
