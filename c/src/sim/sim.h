// sim.h - the simulated device: a backend with memory that the host cannot access, and a queue of
// its own.
//
// sim_params.c reads the parameters. sim_device.c is the device (memory accounting, queue),
// sim_graph.c its computations. sim_buffer.c and sim_backend.c are its interfaces. They share
// sim_device.h. The device runs the CPU engine on its private memory, so its results equal those of
// the CPU backend, bit by bit. It lets tests use many devices on any machine.
#ifndef GB_SIM_SIM_H
#define GB_SIM_SIM_H

#include "ggml-backend.h"

// For the registry. Parameters:
// "mem=64M,max=16M,ops=mul_mat+add,noops=rope,delay=2ms,op_delay=1ms,copy_delay=1ms,copy_bw=1G,threads=1,name=A,...".
// Every call makes a new device with its own memory; a call without parameters returns the default
// device, unless another backend uses it. NULL and reported: an unknown parameter or a bad value.
GGML_CALL ggml_backend_t gb_sim_reg_init(const char * params, void * user_data);

// The type of the default device's buffers. It lives as long as the process, with or without a
// backend.
ggml_backend_buffer_type_t gb_sim_default_buffer_type(void);

#endif // GB_SIM_SIM_H
