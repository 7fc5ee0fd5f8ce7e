// ggml-cpu.h - additions of the CPU backend: instruction-set levels, threads, stopping.
#ifndef GGML_CPU_H
#define GGML_CPU_H

#include "ggml-backend.h"

#ifdef __cplusplus
extern "C" {
#endif

// cdef: begin

// Instruction-set levels built into this library, in ascending order from the most portable
// ("scalar"). A backend uses the highest level of the processor, limited by the environment
// variable GGML_CPU_LEVEL. One process can use several levels.
GGML_API int ggml_cpu_level_count(void);
GGML_API const char * ggml_cpu_level_name(int i); // NULL if out of range
GGML_API bool ggml_cpu_level_usable(int i);       // the running processor has it
GGML_API const char * ggml_backend_cpu_get_level(ggml_backend_t backend_cpu);
GGML_API enum ggml_status ggml_backend_cpu_set_level(ggml_backend_t backend_cpu, const char * level);

// Traits distinguish processors with the same instructions. The backend chooses algorithms by them.
// They are determined once per process and level, when a computation or ggml_cpu_get_trait first
// needs them. That takes up to 2 ms of processor time. The environment variables GGML_CPU_TRAITS
// and GGML_CPU_REPRODUCIBLE replace them.
struct ggml_cpu_trait {
    const char * name;    // "bf16_dots"
    double value;  // a ratio of rates, or bytes; 0: unknown, missing, or not used because of its source
    const char * source;  // "measured", "stated by the processor", "given by GGML_CPU_TRAITS", ...
    const char * meaning;  // its meaning, and the choice that depends on it
};
GGML_API int ggml_cpu_trait_count(void);
GGML_API enum ggml_status ggml_cpu_get_trait(int i, const char * level,
    struct ggml_cpu_trait * trait); // level NULL: the default

// True if GGML_CPU_REPRODUCIBLE is set and not "0". A level then computes the same bits on each
// processor.
GGML_API bool ggml_cpu_is_reproducible(void);

// The name that the processor reports, or "". Virtual machines may report another name.
GGML_API const char * ggml_cpu_processor_name(void);

// min(physical cores, affinity mask, cgroup quota), at least 1.
GGML_API int ggml_cpu_default_n_threads(void);
GGML_API int ggml_backend_cpu_get_n_threads(ggml_backend_t backend_cpu);

// Deprecated names of ggml_graph_get_fusion and ggml_graph_set_fusion (ggml-backend-ext.h), which
// affect all backends.
GGML_API bool ggml_cpu_get_fusion(void);
GGML_API void ggml_cpu_set_fusion(bool on);

// The thread that computes the graph polls the callback between nodes and fused groups, and about
// every millisecond inside long ones. True stops the computation with GGML_STATUS_ABORTED. The
// results of the graph are undefined then. The callback does not stop functions of the user
// (GGML_OP_MAP_*). Norms, softmax, rotations, gathering and filling do not poll within one row. A
// row of 100 million elements takes some tenths of a second, and more than one second with the
// scalar kernels and in rotations.
GGML_API enum ggml_status ggml_backend_cpu_set_abort_callback(ggml_backend_t backend_cpu, bool (*callback)(void * data),
    void * data);

// The reason why the CPU cannot compute the node. NULL if it can.
GGML_API const char * ggml_cpu_unsupported_reason(const struct ggml_tensor * node);

// cdef: end

#ifdef __cplusplus
}
#endif

#endif // GGML_CPU_H
