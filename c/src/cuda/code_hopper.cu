// code_hopper.cu - tells whether the current device can run the kernels of hopper.cuh.
#include <stdlib.h>
#include <string.h>

#include "cuda/device.h"
#include "cuda/hopper.cuh"

GB_KERNEL gb_any_hopper_kernel(int * p) {
    gb_wait_for_earlier();
    *p = 0;
}

bool gb_cuda_has_hopper_kernels(void) {
    const char * setting = getenv("GGML_CUDA_HOPPER");
    const bool off = setting != NULL && strcmp(setting, "0") == 0;
    return !off && gb_has_hopper_code(gb_any_hopper_kernel) && gb_tensor_maps_exist();
}
