// emulation.h - what a test can make the emulated devices do. C and C++.
#ifndef GB_EMULATION_H
#define GB_EMULATION_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

// Before the first call of the runtime, at first 2 devices of 1 GiB, compute capability 9.0. 0 devices: none answers.
void gb_emu_set_devices(int n, size_t bytes_each);
// The compute capability of the devices and of their code; also set by GB_EMU_CAPABILITY=8.0.
void gb_emu_set_capability(int major, int minor);
// what the code was compiled for: up to the devices' capability it runs, else there is none
void gb_emu_set_code(int major, int minor);
int gb_emu_code(void); // major * 10 + minor
// Whether code for 9.0 comes with some for 9.0a (c/src/cuda/hopper.cuh), as at first; before the devices are used.
void gb_emu_set_hopper_code(int on);

// Of all orders from now on; also by environment: GB_EMU_SEED.
void gb_emu_set_seed(uint64_t seed);

enum { // numbers as cudaError_t has them
    GB_EMU_OUT_OF_MEMORY = 2,
    GB_EMU_ILLEGAL_ADDRESS = 700, // sticky
    GB_EMU_INVALID_VALUE = 1
};
// the call of it after `after` more fails; NULL: none. "cudaLaunchKernel" too, however it is asked for
void gb_emu_fail(const char * function, int after, int error);
// a kernel touches what is not there, when it runs; -1: none
void gb_emu_fail_kernel(int after);
void gb_emu_reset(void); // devices work again after sticky errors; nothing fails

// Somebody else in the process synchronizes the device all the time: before each call that needs one, as if in between.
void gb_emu_set_neighbour(int on);
void gb_emu_set_pitch_max(size_t bytes); // of copies of rows; before the devices are listed
int gb_emu_has_context(int device); // the primary one
int gb_emu_has_peer(int device, int peer);

// Queues work of a library on a stream, as a kernel would be: `run` with a copy of the `size` bytes at `argument`. A
// cudaError_t.
int gb_emu_queue(void * stream, void (*run)(const void * argument), const void * argument, size_t size);

struct gb_emu_counts {
    uint64_t launches, graph_launches, graph_nodes, copies, allocations; // since the start; launches: that were run
    uint64_t updates; // nodes of executable graphs that were changed
    uint64_t dependent; // launches that were allowed to begin early, of those that were run
    uint64_t early_blocks; // that began while the kernel before theirs ran
    uint64_t neighbour_errors; // calls of the neighbour that failed because of us
    uint64_t shared_lowered; // times that a kernel was given less shared memory than it had
    uint64_t live_device, live_host, live_objects; // allocations; streams, events, graphs
};
struct gb_emu_counts gb_emu_count(void);
// of kernels with this in their names, as the source has them in GB_LAUNCH
uint64_t gb_emu_launches_of(const char * part);

#ifdef __cplusplus
}
#endif

#endif // GB_EMULATION_H
