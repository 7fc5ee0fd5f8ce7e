// sim.h - the simulated device: a backend with memory that the host cannot access, and its own
// queue.
#ifndef GB_SIM_SIM_H
#define GB_SIM_SIM_H

#include "ggml-backend.h"

// For the registry. Parameters:
// "mem=64M,max=16M,ops=mul_mat+add,noops=rope,delay=2ms,op_delay=1ms,copy_delay=1ms,copy_bw=1G,threads=1,name=A,...".
// A call with parameters makes a new device with its own memory. A call without parameters takes
// the default device, or makes a new one if a backend uses that already. NULL and reported: an
// unknown parameter or a bad value.
GGML_CALL ggml_backend_t gb_sim_reg_init(const char * params, void * user_data);

// The type of the default device's buffers. It lives as long as the process, even without a
// backend.
ggml_backend_buffer_type_t gb_sim_default_buffer_type(void);

#endif // GB_SIM_SIM_H
