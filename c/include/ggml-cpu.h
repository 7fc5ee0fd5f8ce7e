// ggml-cpu.h - what is special about the CPU backend: instruction-set levels, threads, stopping.
#ifndef GGML_CPU_H
#define GGML_CPU_H

#include "ggml-backend.h"

#ifdef __cplusplus
extern "C" {
#endif

// cdef: begin

// Instruction-set levels built into this library, from the most portable ("scalar") up. A backend uses the highest one
// the processor has, capped by the environment variable GGML_CPU_LEVEL; several levels can be used side by side in one
// process.
GGML_API int ggml_cpu_level_count(void);
GGML_API const char * ggml_cpu_level_name(int i); // NULL if out of range
GGML_API bool ggml_cpu_level_usable(int i);       // the running processor has it
GGML_API const char * ggml_backend_cpu_get_level(ggml_backend_t backend_cpu);
GGML_API enum ggml_status ggml_backend_cpu_set_level(ggml_backend_t backend_cpu, const char * level);

// Traits: what distinguishes processors that have the same instructions, by which the backend chooses how it computes.
// They are found out once per process and level, which takes up to 2 ms of the processor, when a computation or
// ggml_cpu_get_trait first asks. The environment variables GGML_CPU_TRAITS and GGML_CPU_REPRODUCIBLE replace them.
struct ggml_cpu_trait {
    const char * name;    // "bf16_dots"
    double value;         // a rate by another one, or bytes; 0: unknown, not there or, by its source, not used
    const char * source;  // "measured", "stated by the processor", "given by GGML_CPU_TRAITS", ...
    const char * meaning; // what it is, and what is chosen by it
};
GGML_API int ggml_cpu_trait_count(void);
GGML_API enum ggml_status ggml_cpu_get_trait(int i, const char * level,
    struct ggml_cpu_trait * trait); // level NULL: the default

// True: GGML_CPU_REPRODUCIBLE is set and not "0", so that a level computes the same bits on each processor.
GGML_API bool ggml_cpu_is_reproducible(void);

// What the processor calls itself; "" where it does not tell. Virtual machines may give it another name.
GGML_API const char * ggml_cpu_processor_name(void);

// min(physical cores, affinity mask, cgroup quota), at least 1.
GGML_API int ggml_cpu_default_n_threads(void);
GGML_API int ggml_backend_cpu_get_n_threads(ggml_backend_t backend_cpu);

// Deprecated names of ggml_graph_get_fusion and ggml_graph_set_fusion (ggml-backend-ext.h), which count for all
// backends.
GGML_API bool ggml_cpu_get_fusion(void);
GGML_API void ggml_cpu_set_fusion(bool on);

// The thread that computes the graph polls the callback between nodes and fused groups, and in long ones about every
// millisecond. True stops the computation with GGML_STATUS_ABORTED. The results of the graph are undefined then.
// The callback does not stop functions of the user (GGML_OP_MAP_*). Norms, softmax, rotations, gathering and filling do
// not poll within one row: a row of 100 million elements takes some tenths of a second, and more than one second with
// the scalar kernels and in rotations.
GGML_API enum ggml_status ggml_backend_cpu_set_abort_callback(ggml_backend_t backend_cpu, bool (*callback)(void * data),
    void * data);

// Why the CPU cannot compute the node; NULL when it can.
GGML_API const char * ggml_cpu_unsupported_reason(const struct ggml_tensor * node);

// cdef: end

#ifdef __cplusplus
}
#endif

#endif // GGML_CPU_H
