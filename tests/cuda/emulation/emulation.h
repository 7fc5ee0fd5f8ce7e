// emulation.h - what tests can change of emulated devices. C and C++.
#ifndef GB_EMULATION_H
#define GB_EMULATION_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

// Call it before the first call of the runtime. Default: 2 devices of 1 GiB, compute capability 9.0. 0 devices: no
// driver.
void gb_emu_set_devices(int n, size_t bytes_each);
// The compute capability of devices and code; GB_EMU_CAPABILITY=8.0 also sets it.
void gb_emu_set_capability(int major, int minor);
// The capability of the code. It runs on devices of that capability and newer.
void gb_emu_set_code(int major, int minor);
int gb_emu_code(void); // major * 10 + minor
// True (default): code for 9.0 comes with code for 9.0a (c/src/cuda/hopper.cuh). Call it before devices are used.
void gb_emu_set_hopper_code(int on);

// Seed of all orders that are drawn from now on; GB_EMU_SEED also sets it.
void gb_emu_set_seed(uint64_t seed);

enum { // as in cudaError_t
    GB_EMU_OUT_OF_MEMORY = 2,
    GB_EMU_ILLEGAL_ADDRESS = 700, // sticky
    GB_EMU_INVALID_VALUE = 1
};
// `function` fails after `after` more calls of it; NULL: none fails. "cudaLaunchKernel" covers every form of launch.
void gb_emu_fail(const char * function, int after, int error);
// After `after` more kernels, one touches an invalid address when it runs; -1: none.
void gb_emu_fail_kernel(int after);
void gb_emu_reset(void); // devices work again after sticky errors, and nothing fails

// Another user in the process synchronizes the device before each call that needs a device.
void gb_emu_set_neighbour(int on);
void gb_emu_set_pitch_max(size_t bytes); // of copies of rows; call it before devices are listed
int gb_emu_has_context(int device); // the primary one
int gb_emu_has_peer(int device, int peer);

// Queues work of a library on a stream, as a kernel: calls `run` with a copy of the `size` bytes at `argument`. Returns
// a cudaError_t.
int gb_emu_queue(void * stream, void (*run)(const void * argument), const void * argument, size_t size);

struct gb_emu_counts {
    uint64_t launches, graph_launches, graph_nodes, copies, allocations; // since the start; launches: kernels that ran
    uint64_t updates; // changed nodes of executable graphs
    uint64_t dependent; // launches that ran and were allowed to begin early
    uint64_t early_blocks; // blocks that began while the previous kernel ran
    uint64_t prefetches; // of lines, before or after waits
    uint64_t neighbour_errors; // failed calls of the other user
    uint64_t shared_lowered; // times that a kernel got less shared memory than before
    uint64_t live_device, live_host, live_objects; // existing allocations; streams, events, graphs
};
struct gb_emu_counts gb_emu_count(void);
// Number of launches of kernels whose name in GB_LAUNCH contains `part`.
uint64_t gb_emu_launches_of(const char * part);

#ifdef __cplusplus
}
#endif

#endif // GB_EMULATION_H
