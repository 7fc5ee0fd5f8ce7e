// ggml.h - tensors, contexts, operators and graphs.
//
// Nouns
//   type      the element format of a tensor; quantized types store blocks of elements (ggml_blck_size, ggml_type_size)
//   tensor    a typed view of memory with up to four dimensions; ne[0] is the fastest, nb[] are byte strides.
//             A tensor is also a graph node: `op` says how it is computed from `src[]`
//   context   the pool in which tensor structs and graphs (and, unless no_alloc, tensor data) live
//   graph     the nodes in execution order and the leafs they start from
//
// Errors
//   No argument or call aborts the process. A failed call returns NULL, a negative enum ggml_status, or its documented
//   neutral value. ggml_last_status() and ggml_last_error() (ggml-status.h) then give the reason, per thread. The log
//   callback gets the message, too. Builders given a NULL tensor return NULL and keep the first message.
//
// Names, enum values and struct layouts are those of ggml as of February 2024; type numbers are those of GGUF files.
// ggml-ext.h declares the additions of this library, and this header includes it. The other headers
// of that time include their additions, too. docs/COMPAT.md lists every difference.
#ifndef GGML_H
#define GGML_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "ggml-export.h"
#include "ggml-status.h"

#if UINTPTR_MAX == 0xFFFFFFFF
#    define GGML_MEM_ALIGN 4
#else
#    define GGML_MEM_ALIGN 16
#endif

#ifndef GGML_MAX_NAME
#    define GGML_MAX_NAME 64
#endif

#define GGUF_MAGIC "GGUF"

#define GGML_UNUSED(x) (void) (x)
#define GGML_PAD(x, n) (((x) + (n) - 1) & ~((n) - 1))

// For programs that use this header. The library itself does not use it to check arguments. The
// file that uses it includes <stdio.h> and <stdlib.h>.
#define GGML_ASSERT(x)                                                           \
    do {                                                                         \
        if (!(x)) {                                                              \
            fflush(stdout);                                                      \
            fprintf(stderr, "GGML_ASSERT: %s:%d: %s\n", __FILE__, __LINE__, #x); \
            ggml_print_backtrace();                                              \
            abort();                                                             \
        }                                                                        \
    } while (0)

#ifndef NDEBUG
#    define GGML_UNREACHABLE() GGML_ASSERT(!"statement should not be reached")
#elif defined(__GNUC__)
#    define GGML_UNREACHABLE() __builtin_unreachable()
#else
#    define GGML_UNREACHABLE() ((void) 0)
#endif

// Local constants from an array field: GGML_TENSOR_LOCALS(int64_t, ne0, src0, ne) declares ne00 .. ne03.
#define GGML_TENSOR_LOCALS_1(type, prefix, pointer, array) \
    const type prefix##0 = (pointer)->array[0];            \
    GGML_UNUSED(prefix##0);
#define GGML_TENSOR_LOCALS_2(type, prefix, pointer, array) \
    GGML_TENSOR_LOCALS_1(type, prefix, pointer, array)     \
    const type prefix##1 = (pointer)->array[1];            \
    GGML_UNUSED(prefix##1);
#define GGML_TENSOR_LOCALS_3(type, prefix, pointer, array) \
    GGML_TENSOR_LOCALS_2(type, prefix, pointer, array)     \
    const type prefix##2 = (pointer)->array[2];            \
    GGML_UNUSED(prefix##2);
#define GGML_TENSOR_LOCALS(type, prefix, pointer, array) \
    GGML_TENSOR_LOCALS_3(type, prefix, pointer, array)   \
    const type prefix##3 = (pointer)->array[3];          \
    GGML_UNUSED(prefix##3);

#define GGML_TENSOR_UNARY_OP_LOCALS            \
    GGML_TENSOR_LOCALS(int64_t, ne0, src0, ne) \
    GGML_TENSOR_LOCALS(size_t, nb0, src0, nb)  \
    GGML_TENSOR_LOCALS(int64_t, ne, dst, ne)   \
    GGML_TENSOR_LOCALS(size_t, nb, dst, nb)

#define GGML_TENSOR_BINARY_OP_LOCALS           \
    GGML_TENSOR_LOCALS(int64_t, ne0, src0, ne) \
    GGML_TENSOR_LOCALS(size_t, nb0, src0, nb)  \
    GGML_TENSOR_LOCALS(int64_t, ne1, src1, ne) \
    GGML_TENSOR_LOCALS(size_t, nb1, src1, nb)  \
    GGML_TENSOR_LOCALS(int64_t, ne, dst, ne)   \
    GGML_TENSOR_LOCALS(size_t, nb, dst, nb)

#ifdef __cplusplus
extern "C" {
#endif

// tools/gen_ffi.py generates the Python module's declarations from the regions between "cdef"
// marks.
// cdef: begin

#define GGML_FILE_MAGIC 0x67676d6c
#define GGML_FILE_VERSION 1
#define GGML_QNT_VERSION 2
#define GGML_QNT_VERSION_FACTOR 1000
#define GGML_MAX_DIMS 4
#define GGML_MAX_PARAMS 2048
#define GGML_MAX_CONTEXTS 64 // kept for source compatibility: the number of contexts is not limited
#define GGML_MAX_SRC 10
#define GGML_MAX_OP_PARAMS 64 // bytes
#define GGML_DEFAULT_N_THREADS 4
#define GGML_DEFAULT_GRAPH_SIZE 2048
#define GGML_EXIT_SUCCESS 0
#define GGML_EXIT_ABORTED 1
#define GGML_N_TASKS_MAX -1
#define GGUF_VERSION 3
#define GGUF_DEFAULT_ALIGNMENT 32

typedef uint16_t ggml_fp16_t; // IEEE 754 binary16 bits

struct ggml_context; // opaque
struct ggml_backend_buffer; // opaque here, see ggml-backend.h
struct gguf_context; // opaque

// ----------------------------------------------------------------------------------------------------------------- log

enum ggml_log_level {
    GGML_LOG_LEVEL_ERROR = 2,
    GGML_LOG_LEVEL_WARN = 3,
    GGML_LOG_LEVEL_INFO = 4,
    GGML_LOG_LEVEL_DEBUG = 5
};

// Called on the thread that causes the message, possibly from several threads at once. `text` ends
// with a newline.
typedef void (*ggml_log_callback)(enum ggml_log_level level, const char * text, void * user_data);

// --------------------------------------------------------------------------------------------------------------- enums

// Numbers as in GGUF files. Programs of February 2024 do not know 19 to 23 and 27 to 42. 4, 5,
// 31-33 and 36-38 are retired formats: they are never valid and have block size 0.
enum ggml_type {
    GGML_TYPE_F32 = 0,
    GGML_TYPE_F16 = 1,
    GGML_TYPE_Q4_0 = 2,
    GGML_TYPE_Q4_1 = 3,
    GGML_TYPE_Q5_0 = 6,
    GGML_TYPE_Q5_1 = 7,
    GGML_TYPE_Q8_0 = 8,
    GGML_TYPE_Q8_1 = 9,
    GGML_TYPE_Q2_K = 10,
    GGML_TYPE_Q3_K = 11,
    GGML_TYPE_Q4_K = 12,
    GGML_TYPE_Q5_K = 13,
    GGML_TYPE_Q6_K = 14,
    GGML_TYPE_Q8_K = 15,
    GGML_TYPE_IQ2_XXS = 16,
    GGML_TYPE_IQ2_XS = 17,
    GGML_TYPE_IQ3_XXS = 18,
    GGML_TYPE_IQ1_S = 19,
    GGML_TYPE_IQ4_NL = 20,
    GGML_TYPE_IQ3_S = 21,
    GGML_TYPE_IQ2_S = 22,
    GGML_TYPE_IQ4_XS = 23,
    GGML_TYPE_I8 = 24,
    GGML_TYPE_I16 = 25,
    GGML_TYPE_I32 = 26,
    GGML_TYPE_I64 = 27,
    GGML_TYPE_F64 = 28,
    GGML_TYPE_IQ1_M = 29,
    GGML_TYPE_BF16 = 30,
    GGML_TYPE_TQ1_0 = 34,
    GGML_TYPE_TQ2_0 = 35,
    GGML_TYPE_MXFP4 = 39,
    GGML_TYPE_NVFP4 = 40,
    GGML_TYPE_Q1_0 = 41,
    GGML_TYPE_Q2_0 = 42,
    GGML_TYPE_COUNT,
};

// The least precision of a product. GGML_PREC_F16 is for MUL_MAT and its forms: on the CPU, activations of quantized
// weights keep 15 bits of the largest in each group of 32. Other devices may take it as the default.
enum ggml_prec { GGML_PREC_DEFAULT = 0, GGML_PREC_F32 = 1, GGML_PREC_F16 = 2 };

enum ggml_backend_type { GGML_BACKEND_CPU = 0, GGML_BACKEND_GPU = 10, GGML_BACKEND_GPU_SPLIT = 20 };

// Model file types (the `ftype` field of model files).
enum ggml_ftype {
    GGML_FTYPE_UNKNOWN = -1,
    GGML_FTYPE_ALL_F32 = 0,
    GGML_FTYPE_MOSTLY_F16 = 1,
    GGML_FTYPE_MOSTLY_Q4_0 = 2,
    GGML_FTYPE_MOSTLY_Q4_1 = 3,
    GGML_FTYPE_MOSTLY_Q4_1_SOME_F16 = 4,
    GGML_FTYPE_MOSTLY_Q8_0 = 7,
    GGML_FTYPE_MOSTLY_Q5_0 = 8,
    GGML_FTYPE_MOSTLY_Q5_1 = 9,
    GGML_FTYPE_MOSTLY_Q2_K = 10,
    GGML_FTYPE_MOSTLY_Q3_K = 11,
    GGML_FTYPE_MOSTLY_Q4_K = 12,
    GGML_FTYPE_MOSTLY_Q5_K = 13,
    GGML_FTYPE_MOSTLY_Q6_K = 14,
    GGML_FTYPE_MOSTLY_IQ2_XXS = 15,
    GGML_FTYPE_MOSTLY_IQ2_XS = 16,
    GGML_FTYPE_MOSTLY_IQ3_XXS = 17,
    // newer than the interface of February 2024
    GGML_FTYPE_MOSTLY_IQ1_S = 18,
    GGML_FTYPE_MOSTLY_IQ4_NL = 19,
    GGML_FTYPE_MOSTLY_IQ3_S = 20,
    GGML_FTYPE_MOSTLY_IQ2_S = 21,
    GGML_FTYPE_MOSTLY_IQ4_XS = 22,
    GGML_FTYPE_MOSTLY_IQ1_M = 23,
    GGML_FTYPE_MOSTLY_BF16 = 24,
    GGML_FTYPE_MOSTLY_MXFP4 = 25,
    GGML_FTYPE_MOSTLY_NVFP4 = 26,
    GGML_FTYPE_MOSTLY_Q1_0 = 27,
    GGML_FTYPE_MOSTLY_Q2_0 = 28,
};

enum ggml_op {
    GGML_OP_NONE = 0,

    GGML_OP_DUP,
    GGML_OP_ADD,
    GGML_OP_ADD1,
    GGML_OP_ACC,
    GGML_OP_SUB,
    GGML_OP_MUL,
    GGML_OP_DIV,
    GGML_OP_SQR,
    GGML_OP_SQRT,
    GGML_OP_LOG,
    GGML_OP_SUM,
    GGML_OP_SUM_ROWS,
    GGML_OP_MEAN,
    GGML_OP_ARGMAX,
    GGML_OP_REPEAT,
    GGML_OP_REPEAT_BACK,
    GGML_OP_CONCAT,
    GGML_OP_SILU_BACK,
    GGML_OP_NORM,
    GGML_OP_RMS_NORM,
    GGML_OP_RMS_NORM_BACK,
    GGML_OP_GROUP_NORM,

    GGML_OP_MUL_MAT,
    GGML_OP_MUL_MAT_ID,
    GGML_OP_OUT_PROD,

    GGML_OP_SCALE,
    GGML_OP_SET,
    GGML_OP_CPY,
    GGML_OP_CONT,
    GGML_OP_RESHAPE,
    GGML_OP_VIEW,
    GGML_OP_PERMUTE,
    GGML_OP_TRANSPOSE,
    GGML_OP_GET_ROWS,
    GGML_OP_GET_ROWS_BACK,
    GGML_OP_DIAG,
    GGML_OP_DIAG_MASK_INF,
    GGML_OP_DIAG_MASK_ZERO,
    GGML_OP_SOFT_MAX,
    GGML_OP_SOFT_MAX_BACK,
    GGML_OP_ROPE,
    GGML_OP_ROPE_BACK,
    GGML_OP_ALIBI,
    GGML_OP_CLAMP,
    GGML_OP_CONV_TRANSPOSE_1D,
    GGML_OP_IM2COL,
    GGML_OP_CONV_TRANSPOSE_2D,
    GGML_OP_POOL_1D,
    GGML_OP_POOL_2D,
    GGML_OP_UPSCALE,
    GGML_OP_PAD,
    GGML_OP_ARGSORT,
    GGML_OP_LEAKY_RELU,

    GGML_OP_FLASH_ATTN,
    GGML_OP_FLASH_FF,
    GGML_OP_FLASH_ATTN_BACK,
    GGML_OP_WIN_PART,
    GGML_OP_WIN_UNPART,
    GGML_OP_GET_REL_POS,
    GGML_OP_ADD_REL_POS,

    GGML_OP_UNARY,

    GGML_OP_MAP_UNARY,
    GGML_OP_MAP_BINARY,
    GGML_OP_MAP_CUSTOM1_F32,
    GGML_OP_MAP_CUSTOM2_F32,
    GGML_OP_MAP_CUSTOM3_F32,
    GGML_OP_MAP_CUSTOM1,
    GGML_OP_MAP_CUSTOM2,
    GGML_OP_MAP_CUSTOM3,

    GGML_OP_CROSS_ENTROPY_LOSS,
    GGML_OP_CROSS_ENTROPY_LOSS_BACK,

    // newer than the interface of February 2024
    GGML_OP_CUSTOM,
    GGML_OP_COMPARE,
    GGML_OP_WHERE,
    GGML_OP_SET_ROWS,
    GGML_OP_MUL_MAT_EXPERTS,
    GGML_OP_ADD_ID,
    GGML_OP_FLASH_ATTN_EXT,
    GGML_OP_CONV_2D,
    GGML_OP_CONV_2D_DW,
    GGML_OP_CONV_3D,
    GGML_OP_GLU,
    GGML_OP_XIELU,
    GGML_OP_SCALE_BIAS,
    GGML_OP_L2_NORM,
    GGML_OP_TOP_K,
    GGML_OP_CUMSUM,
    GGML_OP_TRI,
    GGML_OP_SOLVE_TRI,
    GGML_OP_FILL,
    GGML_OP_ARANGE,
    GGML_OP_TIMESTEP_EMBEDDING,
    GGML_OP_SSM_CONV,
    GGML_OP_SSM_SCAN,
    GGML_OP_GATED_DELTA_NET,
    GGML_OP_RWKV_WKV6,
    GGML_OP_RWKV_WKV7,
    GGML_OP_GATED_LINEAR_ATTN,
    GGML_OP_INTERPOLATE,
    GGML_OP_PAD_EXT,
    GGML_OP_PAD_REFLECT_1D,
    GGML_OP_ROLL,
    GGML_OP_COL2IM_1D,
    GGML_OP_IM2COL_3D,
    GGML_OP_OPT_STEP_ADAMW,
    GGML_OP_OPT_STEP_SGD,
    GGML_OP_IM2COL_BACK,

    GGML_OP_COUNT,
};

enum ggml_unary_op {
    GGML_UNARY_OP_ABS = 0,
    GGML_UNARY_OP_SGN,
    GGML_UNARY_OP_NEG,
    GGML_UNARY_OP_STEP,
    GGML_UNARY_OP_TANH,
    GGML_UNARY_OP_ELU,
    GGML_UNARY_OP_RELU,
    GGML_UNARY_OP_GELU,
    GGML_UNARY_OP_GELU_QUICK,
    GGML_UNARY_OP_SILU,
    GGML_UNARY_OP_HARDSWISH,
    GGML_UNARY_OP_HARDSIGMOID,
    // newer than the interface of February 2024
    GGML_UNARY_OP_GELU_ERF,
    GGML_UNARY_OP_EXP,
    GGML_UNARY_OP_SIGMOID,
    GGML_UNARY_OP_SIN,
    GGML_UNARY_OP_COS,
    GGML_UNARY_OP_SOFTPLUS,
    GGML_UNARY_OP_EXPM1,
    GGML_UNARY_OP_FLOOR,
    GGML_UNARY_OP_CEIL,
    GGML_UNARY_OP_ROUND,
    GGML_UNARY_OP_TRUNC,
    GGML_UNARY_OP_COUNT,
};

enum ggml_object_type { GGML_OBJECT_TENSOR = 0, GGML_OBJECT_GRAPH = 1, GGML_OBJECT_WORK_BUFFER = 2 };

enum ggml_cgraph_eval_order {
    GGML_CGRAPH_EVAL_ORDER_LEFT_TO_RIGHT = 0,
    GGML_CGRAPH_EVAL_ORDER_RIGHT_TO_LEFT,
    GGML_CGRAPH_EVAL_ORDER_COUNT,
};

enum ggml_task_type { GGML_TASK_INIT = 0, GGML_TASK_COMPUTE, GGML_TASK_FINALIZE };
enum ggml_op_pool { GGML_OP_POOL_MAX = 0, GGML_OP_POOL_AVG, GGML_OP_POOL_COUNT };
enum ggml_sort_order { GGML_SORT_ASC = 0, GGML_SORT_DESC };

// ------------------------------------------------------------------------------------------------------------- structs

struct ggml_object {
    size_t offs; // of the payload
    size_t size; // of the payload, padded
    struct ggml_object * next;
    enum ggml_object_type type;
    char padding[4];
};

// 368 bytes on 64-bit machines. You may read the fields directly. Write through the functions
// below.
struct ggml_tensor {
    enum ggml_type type;
    enum ggml_backend_type backend;

    struct ggml_backend_buffer * buffer; // borrowed; NULL: not placed, or plain host memory

    int64_t ne[GGML_MAX_DIMS]; // number of elements
    size_t nb[GGML_MAX_DIMS]; // strides in bytes; nb[0] is the size of an element or block, except after permuting

    enum ggml_op op;
    int32_t op_params[GGML_MAX_OP_PARAMS / sizeof(int32_t)];
    bool is_param;

    struct ggml_tensor * grad;
    struct ggml_tensor * src[GGML_MAX_SRC];

    int perf_runs;
    int64_t perf_cycles;
    int64_t perf_time_us;

    struct ggml_tensor * view_src; // the tensor that owns the memory (never a view); NULL: this tensor does
    size_t view_offs; // byte offset from view_src->data

    void * data;
    char name[GGML_MAX_NAME];
    void * extra; // for backends
    char padding[8]; // the library's: the input/output flags and other marks
};

struct ggml_cplan {
    size_t work_size; // bytes that work_data must have; from ggml_graph_plan
    uint8_t * work_data; // the caller's
    int n_threads;

    bool (*abort_callback)(void * data); // polled between nodes and inside long ones; true stops the computation
    void * abort_callback_data;
};

struct ggml_hash_set {
    size_t size;
    struct ggml_tensor ** keys;
};

struct ggml_cgraph {
    int size; // capacity; grows when the context owns its memory
    int n_nodes;
    int n_leafs;

    struct ggml_tensor ** nodes;
    struct ggml_tensor ** grads; // NULL without gradients
    struct ggml_tensor ** leafs;

    struct ggml_hash_set visited_hash_table;
    enum ggml_cgraph_eval_order order;

    int perf_runs;
    int64_t perf_cycles;
    int64_t perf_time_us;
};

struct ggml_scratch {
    size_t offs;
    size_t size;
    void * data;
};

struct ggml_init_params {
    size_t mem_size; // bytes; if mem_buffer is NULL only a first estimate, because the context grows
    void * mem_buffer; // NULL: the context allocates memory and grows; else the caller's, fixed, GGML_MEM_ALIGN-aligned
    bool no_alloc; // true: tensors get no data
};

struct ggml_compute_params {
    enum ggml_task_type type;
    int ith, nth;
    size_t wsize;
    void * wdata;
};

// ------------------------------------------------------------------------------------------ half precision, time, info

GGML_API float ggml_fp16_to_fp32(ggml_fp16_t x); // exact
GGML_API ggml_fp16_t ggml_fp32_to_fp16(float x); // to nearest even; overflow gives infinity
GGML_API void ggml_fp16_to_fp32_row(const ggml_fp16_t * x, float * y, int n);
GGML_API void ggml_fp32_to_fp16_row(const float * x, ggml_fp16_t * y, int n);

GGML_API void ggml_time_init(void);
GGML_API int64_t ggml_time_ms(void); // monotonic
GGML_API int64_t ggml_time_us(void);
GGML_API int64_t ggml_cycles(void);
GGML_API int64_t ggml_cycles_per_ms(void);
GGML_API void ggml_print_backtrace(void);
GGML_API void ggml_numa_init(void); // detects NUMA nodes, once per process
GGML_API bool ggml_is_numa(void); // more than one node was found
GGML_API void ggml_print_object(const struct ggml_object * obj);
GGML_API void ggml_print_objects(const struct ggml_context * ctx);

// ------------------------------------------------------------------------------------------------------ tensor queries
// NULL gives 0, false or "".

GGML_API int64_t ggml_nelements(const struct ggml_tensor * tensor);
GGML_API int64_t ggml_nrows(const struct ggml_tensor * tensor);
GGML_API size_t ggml_nbytes(const struct ggml_tensor * tensor); // extent in memory, with strides
GGML_API size_t ggml_nbytes_pad(const struct ggml_tensor * tensor);

GGML_API int ggml_blck_size(enum ggml_type type); // elements a block; 0 for an invalid type
GGML_API size_t ggml_type_size(enum ggml_type type); // bytes a block; 0 for an invalid type
GGML_API size_t ggml_row_size(enum ggml_type type, int64_t ne); // bytes; ne a multiple of the block size, else 0
GGML_API double ggml_type_sizef(enum ggml_type type); // deprecated: ggml_row_size instead
GGML_API const char * ggml_type_name(enum ggml_type type); // NULL for an invalid type
GGML_API bool ggml_is_quantized(enum ggml_type type);
GGML_API enum ggml_type ggml_ftype_to_ggml_type(enum ggml_ftype ftype); // GGML_TYPE_COUNT and an error if it has none

GGML_API const char * ggml_op_name(enum ggml_op op);
GGML_API const char * ggml_op_symbol(enum ggml_op op);
GGML_API const char * ggml_unary_op_name(enum ggml_unary_op op);
GGML_API const char * ggml_op_desc(const struct ggml_tensor * t); // the unary's name for UNARY, else the op's
GGML_API size_t ggml_element_size(const struct ggml_tensor * tensor);

GGML_API bool ggml_is_transposed(const struct ggml_tensor * tensor);
GGML_API bool ggml_is_contiguous(const struct ggml_tensor * tensor);
GGML_API bool ggml_is_permuted(const struct ggml_tensor * tensor);
GGML_API bool ggml_is_scalar(const struct ggml_tensor * tensor);
GGML_API bool ggml_is_vector(const struct ggml_tensor * tensor);
GGML_API bool ggml_is_matrix(const struct ggml_tensor * tensor);
GGML_API bool ggml_is_3d(const struct ggml_tensor * tensor);
GGML_API int ggml_n_dims(const struct ggml_tensor * tensor); // 1 for a scalar
GGML_API bool ggml_are_same_shape(const struct ggml_tensor * t0, const struct ggml_tensor * t1);
GGML_API size_t ggml_tensor_overhead(void); // bytes of the context for a tensor without its data

// ------------------------------------------------------------------------------------------------------------ contexts
// Any number of threads may make tensors and graphs in one context, and iterate over its tensors,
// at the same time. They see each tensor with its type, shape and memory. Only one thread at a time
// may build a graph. After a fork, every context is unchanged and usable in the child. Tensors in
// the caller's memory outlive the context. Tensors in the context's memory do not.

GGML_API struct ggml_context * ggml_init(struct ggml_init_params params);
GGML_API void ggml_free(struct ggml_context * ctx); // NULL is allowed

GGML_API size_t ggml_used_mem(const struct ggml_context * ctx);
GGML_API size_t ggml_set_scratch(struct ggml_context * ctx, struct ggml_scratch scratch); // returns the old offs
GGML_API bool ggml_get_no_alloc(struct ggml_context * ctx);
GGML_API void ggml_set_no_alloc(struct ggml_context * ctx, bool no_alloc);
GGML_API void * ggml_get_mem_buffer(const struct ggml_context * ctx);
GGML_API size_t ggml_get_mem_size(const struct ggml_context * ctx);
GGML_API size_t ggml_get_max_tensor_size(const struct ggml_context * ctx);

GGML_API struct ggml_tensor * ggml_new_tensor(struct ggml_context * ctx, enum ggml_type type, int n_dims,
    const int64_t * ne);
GGML_API struct ggml_tensor * ggml_new_tensor_1d(struct ggml_context * ctx, enum ggml_type type, int64_t ne0);
GGML_API struct ggml_tensor * ggml_new_tensor_2d(struct ggml_context * ctx, enum ggml_type type, int64_t ne0,
    int64_t ne1);
GGML_API struct ggml_tensor * ggml_new_tensor_3d(struct ggml_context * ctx, enum ggml_type type, int64_t ne0,
    int64_t ne1, int64_t ne2);
GGML_API struct ggml_tensor * ggml_new_tensor_4d(struct ggml_context * ctx, enum ggml_type type, int64_t ne0,
    int64_t ne1, int64_t ne2, int64_t ne3);
GGML_API struct ggml_tensor * ggml_new_i32(struct ggml_context * ctx, int32_t value);
GGML_API struct ggml_tensor * ggml_new_f32(struct ggml_context * ctx, float value);
GGML_API struct ggml_tensor * ggml_dup_tensor(struct ggml_context * ctx, const struct ggml_tensor * src);
GGML_API struct ggml_tensor * ggml_view_tensor(struct ggml_context * ctx, struct ggml_tensor * src);

GGML_API struct ggml_tensor * ggml_get_first_tensor(const struct ggml_context * ctx);
GGML_API struct ggml_tensor * ggml_get_next_tensor(const struct ggml_context * ctx, struct ggml_tensor * tensor);
GGML_API struct ggml_tensor * ggml_get_tensor(struct ggml_context * ctx, const char * name);

// Element access needs host memory and type I8, I16, I32, F16, BF16 or F32. Anything else is an
// error (result 0).
GGML_API struct ggml_tensor * ggml_set_zero(struct ggml_tensor * tensor);
GGML_API struct ggml_tensor * ggml_set_i32(struct ggml_tensor * tensor, int32_t value);
GGML_API struct ggml_tensor * ggml_set_f32(struct ggml_tensor * tensor, float value);
GGML_API void ggml_unravel_index(const struct ggml_tensor * tensor, int64_t i, int64_t * i0, int64_t * i1, int64_t * i2,
    int64_t * i3);
GGML_API int32_t ggml_get_i32_1d(const struct ggml_tensor * tensor, int i);
GGML_API enum ggml_status ggml_set_i32_1d(const struct ggml_tensor * tensor, int i, int32_t value);
GGML_API int32_t ggml_get_i32_nd(const struct ggml_tensor * tensor, int i0, int i1, int i2, int i3);
GGML_API enum ggml_status ggml_set_i32_nd(const struct ggml_tensor * tensor, int i0, int i1, int i2, int i3,
    int32_t value);
GGML_API float ggml_get_f32_1d(const struct ggml_tensor * tensor, int i);
GGML_API enum ggml_status ggml_set_f32_1d(const struct ggml_tensor * tensor, int i, float value);
GGML_API float ggml_get_f32_nd(const struct ggml_tensor * tensor, int i0, int i1, int i2, int i3);
GGML_API enum ggml_status ggml_set_f32_nd(const struct ggml_tensor * tensor, int i0, int i1, int i2, int i3,
    float value);

GGML_API void * ggml_get_data(const struct ggml_tensor * tensor);
GGML_API float * ggml_get_data_f32(const struct ggml_tensor * tensor);
// GGML_UNARY_OP_COUNT and an error for other ops
GGML_API enum ggml_unary_op ggml_get_unary_op(const struct ggml_tensor * tensor);

GGML_API const char * ggml_get_name(const struct ggml_tensor * tensor);
// cut to 63 bytes, between characters of UTF-8
GGML_API struct ggml_tensor * ggml_set_name(struct ggml_tensor * tensor, const char * name);

// ----------------------------------------------------------------------------------------------------------- unary ops

GGML_API struct ggml_tensor * ggml_unary(struct ggml_context * ctx, struct ggml_tensor * a, enum ggml_unary_op op);
GGML_API struct ggml_tensor * ggml_unary_inplace(struct ggml_context * ctx, struct ggml_tensor * a,
    enum ggml_unary_op op);

// Functions of each element of a, F32, F16 or BF16. The result has the type and shape of a.
GGML_API struct ggml_tensor * ggml_abs(struct ggml_context * ctx, struct ggml_tensor * a);
GGML_API struct ggml_tensor * ggml_abs_inplace(struct ggml_context * ctx, struct ggml_tensor * a);
GGML_API struct ggml_tensor * ggml_sgn(struct ggml_context * ctx, struct ggml_tensor * a);
GGML_API struct ggml_tensor * ggml_sgn_inplace(struct ggml_context * ctx, struct ggml_tensor * a);
GGML_API struct ggml_tensor * ggml_neg(struct ggml_context * ctx, struct ggml_tensor * a);
GGML_API struct ggml_tensor * ggml_neg_inplace(struct ggml_context * ctx, struct ggml_tensor * a);
GGML_API struct ggml_tensor * ggml_step(struct ggml_context * ctx, struct ggml_tensor * a); // x > 0 ? 1 : 0
GGML_API struct ggml_tensor * ggml_step_inplace(struct ggml_context * ctx, struct ggml_tensor * a);
GGML_API struct ggml_tensor * ggml_tanh(struct ggml_context * ctx, struct ggml_tensor * a);
GGML_API struct ggml_tensor * ggml_tanh_inplace(struct ggml_context * ctx, struct ggml_tensor * a);
GGML_API struct ggml_tensor * ggml_elu(struct ggml_context * ctx, struct ggml_tensor * a);
GGML_API struct ggml_tensor * ggml_elu_inplace(struct ggml_context * ctx, struct ggml_tensor * a);
GGML_API struct ggml_tensor * ggml_relu(struct ggml_context * ctx, struct ggml_tensor * a);
GGML_API struct ggml_tensor * ggml_relu_inplace(struct ggml_context * ctx, struct ggml_tensor * a);
GGML_API struct ggml_tensor * ggml_gelu(struct ggml_context * ctx, struct ggml_tensor * a); // tanh form
GGML_API struct ggml_tensor * ggml_gelu_inplace(struct ggml_context * ctx, struct ggml_tensor * a);
// x * sigmoid(1.702 x)
GGML_API struct ggml_tensor * ggml_gelu_quick(struct ggml_context * ctx, struct ggml_tensor * a);
GGML_API struct ggml_tensor * ggml_gelu_quick_inplace(struct ggml_context * ctx, struct ggml_tensor * a);
GGML_API struct ggml_tensor * ggml_silu(struct ggml_context * ctx, struct ggml_tensor * a); // x * sigmoid(x)
GGML_API struct ggml_tensor * ggml_silu_inplace(struct ggml_context * ctx, struct ggml_tensor * a);
// x * clamp((x + 3) / 6, 0, 1)
GGML_API struct ggml_tensor * ggml_hardswish(struct ggml_context * ctx, struct ggml_tensor * a);
// clamp((x + 3) / 6, 0, 1)
GGML_API struct ggml_tensor * ggml_hardsigmoid(struct ggml_context * ctx, struct ggml_tensor * a);
GGML_API struct ggml_tensor * ggml_leaky_relu(struct ggml_context * ctx, struct ggml_tensor * a, float negative_slope,
    bool inplace);
GGML_API struct ggml_tensor * ggml_sqr(struct ggml_context * ctx, struct ggml_tensor * a);
GGML_API struct ggml_tensor * ggml_sqr_inplace(struct ggml_context * ctx, struct ggml_tensor * a);
GGML_API struct ggml_tensor * ggml_sqrt(struct ggml_context * ctx, struct ggml_tensor * a);
GGML_API struct ggml_tensor * ggml_sqrt_inplace(struct ggml_context * ctx, struct ggml_tensor * a);
GGML_API struct ggml_tensor * ggml_log(struct ggml_context * ctx, struct ggml_tensor * a);
GGML_API struct ggml_tensor * ggml_log_inplace(struct ggml_context * ctx, struct ggml_tensor * a);
// always in place
GGML_API struct ggml_tensor * ggml_clamp(struct ggml_context * ctx, struct ggml_tensor * a, float min, float max);
GGML_API struct ggml_tensor * ggml_scale(struct ggml_context * ctx, struct ggml_tensor * a, float s);
GGML_API struct ggml_tensor * ggml_scale_inplace(struct ggml_context * ctx, struct ggml_tensor * a, float s);

// ---------------------------------------------------------------------------------------------------------- binary ops
// b repeats over a in every dimension. The result has the shape of a.

GGML_API struct ggml_tensor * ggml_add(struct ggml_context * ctx, struct ggml_tensor * a, struct ggml_tensor * b);
GGML_API struct ggml_tensor * ggml_add_inplace(struct ggml_context * ctx, struct ggml_tensor * a,
    struct ggml_tensor * b);
GGML_API struct ggml_tensor * ggml_add_cast(struct ggml_context * ctx, struct ggml_tensor * a, struct ggml_tensor * b,
    enum ggml_type type);
// b is a scalar
GGML_API struct ggml_tensor * ggml_add1(struct ggml_context * ctx, struct ggml_tensor * a, struct ggml_tensor * b);
GGML_API struct ggml_tensor * ggml_add1_inplace(struct ggml_context * ctx, struct ggml_tensor * a,
    struct ggml_tensor * b);
GGML_API struct ggml_tensor * ggml_sub(struct ggml_context * ctx, struct ggml_tensor * a, struct ggml_tensor * b);
GGML_API struct ggml_tensor * ggml_sub_inplace(struct ggml_context * ctx, struct ggml_tensor * a,
    struct ggml_tensor * b);
GGML_API struct ggml_tensor * ggml_mul(struct ggml_context * ctx, struct ggml_tensor * a, struct ggml_tensor * b);
GGML_API struct ggml_tensor * ggml_mul_inplace(struct ggml_context * ctx, struct ggml_tensor * a,
    struct ggml_tensor * b);
GGML_API struct ggml_tensor * ggml_div(struct ggml_context * ctx, struct ggml_tensor * a, struct ggml_tensor * b);
GGML_API struct ggml_tensor * ggml_div_inplace(struct ggml_context * ctx, struct ggml_tensor * a,
    struct ggml_tensor * b);

// acc adds b to a region of a, both F32. set replaces the region by b, of a's type. Strides and offset are in bytes.
GGML_API struct ggml_tensor * ggml_acc(struct ggml_context * ctx, struct ggml_tensor * a, struct ggml_tensor * b,
    size_t nb1, size_t nb2, size_t nb3, size_t offset);
GGML_API struct ggml_tensor * ggml_acc_inplace(struct ggml_context * ctx, struct ggml_tensor * a,
    struct ggml_tensor * b, size_t nb1, size_t nb2, size_t nb3, size_t offset);
GGML_API struct ggml_tensor * ggml_set(struct ggml_context * ctx, struct ggml_tensor * a, struct ggml_tensor * b,
    size_t nb1, size_t nb2, size_t nb3, size_t offset);
GGML_API struct ggml_tensor * ggml_set_inplace(struct ggml_context * ctx, struct ggml_tensor * a,
    struct ggml_tensor * b, size_t nb1, size_t nb2, size_t nb3, size_t offset);
GGML_API struct ggml_tensor * ggml_set_1d(struct ggml_context * ctx, struct ggml_tensor * a, struct ggml_tensor * b,
    size_t offset);
GGML_API struct ggml_tensor * ggml_set_1d_inplace(struct ggml_context * ctx, struct ggml_tensor * a,
    struct ggml_tensor * b, size_t offset);
GGML_API struct ggml_tensor * ggml_set_2d(struct ggml_context * ctx, struct ggml_tensor * a, struct ggml_tensor * b,
    size_t nb1, size_t offset);
GGML_API struct ggml_tensor * ggml_set_2d_inplace(struct ggml_context * ctx, struct ggml_tensor * a,
    struct ggml_tensor * b, size_t nb1, size_t offset);

// --------------------------------------------------------------------- reductions, repetition, concatenation, ordering

GGML_API struct ggml_tensor * ggml_sum(struct ggml_context * ctx, struct ggml_tensor * a); // scalar
GGML_API struct ggml_tensor * ggml_sum_rows(struct ggml_context * ctx, struct ggml_tensor * a); // [1, ne1, ne2, ne3]
GGML_API struct ggml_tensor * ggml_mean(struct ggml_context * ctx, struct ggml_tensor * a); // [1, ne1, ne2, ne3]
// matrix -> I32 [ne1]; the last of equal maxima
GGML_API struct ggml_tensor * ggml_argmax(struct ggml_context * ctx, struct ggml_tensor * a);
// repeats a to the shape of b
GGML_API struct ggml_tensor * ggml_repeat(struct ggml_context * ctx, struct ggml_tensor * a, struct ggml_tensor * b);
// sums the repetitions of a
GGML_API struct ggml_tensor * ggml_repeat_back(struct ggml_context * ctx, struct ggml_tensor * a,
    struct ggml_tensor * b);
// along dimension 2
GGML_API struct ggml_tensor * ggml_concat(struct ggml_context * ctx, struct ggml_tensor * a, struct ggml_tensor * b);
// I32 permutation of each row; equal values keep their order
GGML_API struct ggml_tensor * ggml_argsort(struct ggml_context * ctx, struct ggml_tensor * a,
    enum ggml_sort_order order);
// I32 view [k, ne1, ne2, ne3] of an argsort
GGML_API struct ggml_tensor * ggml_top_k(struct ggml_context * ctx, struct ggml_tensor * a, int k);

// ------------------------------------------------------------------------------------ normalisation, F32, F16 and BF16

// (x - mean) / sqrt(var + eps), for each row
GGML_API struct ggml_tensor * ggml_norm(struct ggml_context * ctx, struct ggml_tensor * a, float eps);
GGML_API struct ggml_tensor * ggml_norm_inplace(struct ggml_context * ctx, struct ggml_tensor * a, float eps);
// x / sqrt(mean(x^2) + eps), for each row
GGML_API struct ggml_tensor * ggml_rms_norm(struct ggml_context * ctx, struct ggml_tensor * a, float eps);
GGML_API struct ggml_tensor * ggml_rms_norm_inplace(struct ggml_context * ctx, struct ggml_tensor * a, float eps);
// (x - mean) / sqrt(var + 1e-6), for each group of channels (dimension 2)
GGML_API struct ggml_tensor * ggml_group_norm(struct ggml_context * ctx, struct ggml_tensor * a, int n_groups);
GGML_API struct ggml_tensor * ggml_group_norm_inplace(struct ggml_context * ctx, struct ggml_tensor * a, int n_groups);
GGML_API struct ggml_tensor * ggml_rms_norm_back(struct ggml_context * ctx, struct ggml_tensor * a,
    struct ggml_tensor * b, float eps);
GGML_API struct ggml_tensor * ggml_silu_back(struct ggml_context * ctx, struct ggml_tensor * a, struct ggml_tensor * b);

// ----------------------------------------------------------------------------------------------------- matrix products

// a [K, M, ..], b [K, N, ..] -> [M, N, ..] F32
GGML_API struct ggml_tensor * ggml_mul_mat(struct ggml_context * ctx, struct ggml_tensor * a, struct ggml_tensor * b);
GGML_API enum ggml_status ggml_mul_mat_set_prec(struct ggml_tensor * a, enum ggml_prec prec); // a is the MUL_MAT node
// as [K, M], ids I32 [choices, N], b [K, N, ..]: multiplies row n of each batch of b by
// as[ids[id, n]]
GGML_API struct ggml_tensor * ggml_mul_mat_id(struct ggml_context * ctx, struct ggml_tensor * const as[], int n_as,
    struct ggml_tensor * ids, int id, struct ggml_tensor * b);
// a [M, K, ..], b [N, K, ..] -> [M, N, ..] F32
GGML_API struct ggml_tensor * ggml_out_prod(struct ggml_context * ctx, struct ggml_tensor * a, struct ggml_tensor * b);

// ----------------------------------------------------------------------------------------------- copies, views, gather

GGML_API struct ggml_tensor * ggml_dup(struct ggml_context * ctx, struct ggml_tensor * a);
GGML_API struct ggml_tensor * ggml_dup_inplace(struct ggml_context * ctx, struct ggml_tensor * a);
// copies a to b and converts it to the type of b; the result is a view of b
GGML_API struct ggml_tensor * ggml_cpy(struct ggml_context * ctx, struct ggml_tensor * a, struct ggml_tensor * b);
GGML_API struct ggml_tensor * ggml_cast(struct ggml_context * ctx, struct ggml_tensor * a, enum ggml_type type);
GGML_API struct ggml_tensor * ggml_cont(struct ggml_context * ctx, struct ggml_tensor * a);
GGML_API struct ggml_tensor * ggml_cont_1d(struct ggml_context * ctx, struct ggml_tensor * a, int64_t ne0);
GGML_API struct ggml_tensor * ggml_cont_2d(struct ggml_context * ctx, struct ggml_tensor * a, int64_t ne0, int64_t ne1);
GGML_API struct ggml_tensor * ggml_cont_3d(struct ggml_context * ctx, struct ggml_tensor * a, int64_t ne0, int64_t ne1,
    int64_t ne2);
GGML_API struct ggml_tensor * ggml_cont_4d(struct ggml_context * ctx, struct ggml_tensor * a, int64_t ne0, int64_t ne1,
    int64_t ne2, int64_t ne3);
// the shape of b
GGML_API struct ggml_tensor * ggml_reshape(struct ggml_context * ctx, struct ggml_tensor * a, struct ggml_tensor * b);
GGML_API struct ggml_tensor * ggml_reshape_1d(struct ggml_context * ctx, struct ggml_tensor * a, int64_t ne0);
GGML_API struct ggml_tensor * ggml_reshape_2d(struct ggml_context * ctx, struct ggml_tensor * a, int64_t ne0,
    int64_t ne1);
GGML_API struct ggml_tensor * ggml_reshape_3d(struct ggml_context * ctx, struct ggml_tensor * a, int64_t ne0,
    int64_t ne1, int64_t ne2);
GGML_API struct ggml_tensor * ggml_reshape_4d(struct ggml_context * ctx, struct ggml_tensor * a, int64_t ne0,
    int64_t ne1, int64_t ne2, int64_t ne3);
// Offsets and strides are in bytes.
GGML_API struct ggml_tensor * ggml_view_1d(struct ggml_context * ctx, struct ggml_tensor * a, int64_t ne0,
    size_t offset);
GGML_API struct ggml_tensor * ggml_view_2d(struct ggml_context * ctx, struct ggml_tensor * a, int64_t ne0, int64_t ne1,
    size_t nb1, size_t offset);
GGML_API struct ggml_tensor * ggml_view_3d(struct ggml_context * ctx, struct ggml_tensor * a, int64_t ne0, int64_t ne1,
    int64_t ne2, size_t nb1, size_t nb2, size_t offset);
GGML_API struct ggml_tensor * ggml_view_4d(struct ggml_context * ctx, struct ggml_tensor * a, int64_t ne0, int64_t ne1,
    int64_t ne2, int64_t ne3, size_t nb1, size_t nb2, size_t nb3, size_t offset);
// dimension i of a becomes dimension axis_i
GGML_API struct ggml_tensor * ggml_permute(struct ggml_context * ctx, struct ggml_tensor * a, int axis0, int axis1,
    int axis2, int axis3);
GGML_API struct ggml_tensor * ggml_transpose(struct ggml_context * ctx, struct ggml_tensor * a);
// the rows of a that the I32 indices b select
GGML_API struct ggml_tensor * ggml_get_rows(struct ggml_context * ctx, struct ggml_tensor * a, struct ggml_tensor * b);
GGML_API struct ggml_tensor * ggml_get_rows_back(struct ggml_context * ctx, struct ggml_tensor * a,
    struct ggml_tensor * b, struct ggml_tensor * c);
GGML_API struct ggml_tensor * ggml_diag(struct ggml_context * ctx, struct ggml_tensor * a);

// ------------------------------------------------------------------------------------------------------ masks, softmax

GGML_API struct ggml_tensor * ggml_diag_mask_inf(struct ggml_context * ctx, struct ggml_tensor * a, int n_past);
GGML_API struct ggml_tensor * ggml_diag_mask_inf_inplace(struct ggml_context * ctx, struct ggml_tensor * a, int n_past);
GGML_API struct ggml_tensor * ggml_diag_mask_zero(struct ggml_context * ctx, struct ggml_tensor * a, int n_past);
GGML_API struct ggml_tensor * ggml_diag_mask_zero_inplace(struct ggml_context * ctx, struct ggml_tensor * a,
    int n_past);
GGML_API struct ggml_tensor * ggml_soft_max(struct ggml_context * ctx, struct ggml_tensor * a);
GGML_API struct ggml_tensor * ggml_soft_max_inplace(struct ggml_context * ctx, struct ggml_tensor * a);
// softmax(a * scale + mask); mask may be NULL
GGML_API struct ggml_tensor * ggml_soft_max_ext(struct ggml_context * ctx, struct ggml_tensor * a,
    struct ggml_tensor * mask, float scale);
GGML_API struct ggml_tensor * ggml_soft_max_back(struct ggml_context * ctx, struct ggml_tensor * a,
    struct ggml_tensor * b);
GGML_API struct ggml_tensor * ggml_soft_max_back_inplace(struct ggml_context * ctx, struct ggml_tensor * a,
    struct ggml_tensor * b);
// in place
GGML_API struct ggml_tensor * ggml_alibi(struct ggml_context * ctx, struct ggml_tensor * a, int n_past, int n_head,
    float bias_max);

// ---------------------------------------------------------------------------------------------------- rotary embedding
// mode: 0 normal layout, 2 NeoX layout, 4 GLM layout. b: I32 positions [a.ne[2]]. The angle of pair j
// is position * freq_scale * freq_base^(-2j / n_dims). With ext_factor, YaRN mixes that angle with
// the unscaled one. Two modes deviate from this formula, as in ggml of early 2024. Mode 0 rotates all
// pairs of a row, not only those of the first n_dims elements. Mode 2 multiplies by freq_scale twice
// and mixes all pairs like pair 0. Add GGML_ROPE_EXACT to the mode to avoid both deviations.

GGML_API struct ggml_tensor * ggml_rope(struct ggml_context * ctx, struct ggml_tensor * a, struct ggml_tensor * b,
    int n_dims, int mode, int n_ctx);
GGML_API struct ggml_tensor * ggml_rope_inplace(struct ggml_context * ctx, struct ggml_tensor * a,
    struct ggml_tensor * b, int n_dims, int mode, int n_ctx);
GGML_API struct ggml_tensor * ggml_rope_custom(struct ggml_context * ctx, struct ggml_tensor * a,
    struct ggml_tensor * b, int n_dims, int mode, int n_ctx, int n_orig_ctx, float freq_base, float freq_scale,
    float ext_factor, float attn_factor, float beta_fast, float beta_slow);
GGML_API struct ggml_tensor * ggml_rope_custom_inplace(struct ggml_context * ctx, struct ggml_tensor * a,
    struct ggml_tensor * b, int n_dims, int mode, int n_ctx, int n_orig_ctx, float freq_base, float freq_scale,
    float ext_factor, float attn_factor, float beta_fast, float beta_slow);
GGML_API struct ggml_tensor * ggml_rope_xpos_inplace(struct ggml_context * ctx, struct ggml_tensor * a,
    struct ggml_tensor * b, int n_dims, float base, bool down);
GGML_API struct ggml_tensor * ggml_rope_back(struct ggml_context * ctx, struct ggml_tensor * a, struct ggml_tensor * b,
    int n_dims, int mode, int n_ctx, int n_orig_ctx, float freq_base, float freq_scale, float ext_factor,
    float attn_factor, float beta_fast, float beta_slow, float xpos_base, bool xpos_down);
GGML_API GGML_CALL void ggml_rope_yarn_corr_dims(int n_dims, int n_orig_ctx, float freq_base, float beta_fast,
    float beta_slow, float dims[2]);

// ------------------------------------------------------------------------------------ convolution, pooling, resampling

GGML_API struct ggml_tensor * ggml_im2col(struct ggml_context * ctx, struct ggml_tensor * a, struct ggml_tensor * b,
    int s0, int s1, int p0, int p1, int d0, int d1, bool is_2D);
GGML_API struct ggml_tensor * ggml_conv_1d(struct ggml_context * ctx, struct ggml_tensor * a, struct ggml_tensor * b,
    int s0, int p0, int d0);
GGML_API struct ggml_tensor * ggml_conv_1d_ph(struct ggml_context * ctx, struct ggml_tensor * a, struct ggml_tensor * b,
    int s, int d);
GGML_API struct ggml_tensor * ggml_conv_2d(struct ggml_context * ctx, struct ggml_tensor * a, struct ggml_tensor * b,
    int s0, int s1, int p0, int p1, int d0, int d1);
GGML_API struct ggml_tensor * ggml_conv_2d_sk_p0(struct ggml_context * ctx, struct ggml_tensor * a,
    struct ggml_tensor * b);
GGML_API struct ggml_tensor * ggml_conv_2d_s1_ph(struct ggml_context * ctx, struct ggml_tensor * a,
    struct ggml_tensor * b);
GGML_API struct ggml_tensor * ggml_conv_depthwise_2d(struct ggml_context * ctx, struct ggml_tensor * a,
    struct ggml_tensor * b, int s0, int s1, int p0, int p1, int d0, int d1);
GGML_API struct ggml_tensor * ggml_conv_transpose_1d(struct ggml_context * ctx, struct ggml_tensor * a,
    struct ggml_tensor * b, int s0, int p0, int d0);
GGML_API struct ggml_tensor * ggml_conv_transpose_2d_p0(struct ggml_context * ctx, struct ggml_tensor * a,
    struct ggml_tensor * b, int stride);
GGML_API struct ggml_tensor * ggml_pool_1d(struct ggml_context * ctx, struct ggml_tensor * a, enum ggml_op_pool op,
    int k0, int s0, int p0);
GGML_API struct ggml_tensor * ggml_pool_2d(struct ggml_context * ctx, struct ggml_tensor * a, enum ggml_op_pool op,
    int k0, int k1, int s0, int s1, float p0, float p1);
GGML_API struct ggml_tensor * ggml_upscale(struct ggml_context * ctx, struct ggml_tensor * a, int scale_factor);
GGML_API struct ggml_tensor * ggml_pad(struct ggml_context * ctx, struct ggml_tensor * a, int p0, int p1, int p2,
    int p3);

// ------------------------------------------------------------------------------ attention, windows, relative positions

// v is transposed: [M, D, heads, batch]
GGML_API struct ggml_tensor * ggml_flash_attn(struct ggml_context * ctx, struct ggml_tensor * q, struct ggml_tensor * k,
    struct ggml_tensor * v, bool masked);
GGML_API struct ggml_tensor * ggml_flash_attn_back(struct ggml_context * ctx, struct ggml_tensor * q,
    struct ggml_tensor * k, struct ggml_tensor * v, struct ggml_tensor * d, bool masked);
GGML_API struct ggml_tensor * ggml_flash_ff(struct ggml_context * ctx, struct ggml_tensor * a, struct ggml_tensor * b0,
    struct ggml_tensor * b1, struct ggml_tensor * c0, struct ggml_tensor * c1);
GGML_API struct ggml_tensor * ggml_win_part(struct ggml_context * ctx, struct ggml_tensor * a, int w);
GGML_API struct ggml_tensor * ggml_win_unpart(struct ggml_context * ctx, struct ggml_tensor * a, int w0, int h0, int w);
GGML_API struct ggml_tensor * ggml_get_rel_pos(struct ggml_context * ctx, struct ggml_tensor * a, int qh, int kh);
GGML_API struct ggml_tensor * ggml_add_rel_pos(struct ggml_context * ctx, struct ggml_tensor * a,
    struct ggml_tensor * pw, struct ggml_tensor * ph);
GGML_API struct ggml_tensor * ggml_add_rel_pos_inplace(struct ggml_context * ctx, struct ggml_tensor * a,
    struct ggml_tensor * pw, struct ggml_tensor * ph);

// ---------------------------------------------------------------------------------------------------- custom operators
// fun runs on the CPU backend, once for each ith in [0, nth), concurrently. n_tasks:
// GGML_N_TASKS_MAX or > 0.

typedef void (*ggml_custom1_op_t)(struct ggml_tensor * dst, const struct ggml_tensor * a, int ith, int nth,
    void * userdata);
typedef void (*ggml_custom2_op_t)(struct ggml_tensor * dst, const struct ggml_tensor * a, const struct ggml_tensor * b,
    int ith, int nth, void * userdata);
typedef void (*ggml_custom3_op_t)(struct ggml_tensor * dst, const struct ggml_tensor * a, const struct ggml_tensor * b,
    const struct ggml_tensor * c, int ith, int nth, void * userdata);
GGML_API struct ggml_tensor * ggml_map_custom1(struct ggml_context * ctx, struct ggml_tensor * a, ggml_custom1_op_t fun,
    int n_tasks, void * userdata);
GGML_API struct ggml_tensor * ggml_map_custom1_inplace(struct ggml_context * ctx, struct ggml_tensor * a,
    ggml_custom1_op_t fun, int n_tasks, void * userdata);
GGML_API struct ggml_tensor * ggml_map_custom2(struct ggml_context * ctx, struct ggml_tensor * a,
    struct ggml_tensor * b, ggml_custom2_op_t fun, int n_tasks, void * userdata);
GGML_API struct ggml_tensor * ggml_map_custom2_inplace(struct ggml_context * ctx, struct ggml_tensor * a,
    struct ggml_tensor * b, ggml_custom2_op_t fun, int n_tasks, void * userdata);
GGML_API struct ggml_tensor * ggml_map_custom3(struct ggml_context * ctx, struct ggml_tensor * a,
    struct ggml_tensor * b, struct ggml_tensor * c, ggml_custom3_op_t fun, int n_tasks, void * userdata);
GGML_API struct ggml_tensor * ggml_map_custom3_inplace(struct ggml_context * ctx, struct ggml_tensor * a,
    struct ggml_tensor * b, struct ggml_tensor * c, ggml_custom3_op_t fun, int n_tasks, void * userdata);

// -------------------------------------------------------------------------------------------------------------- losses

// minus the mean over rows of sum(b log(p (1 - 1e-9) + 1e-9)), where p = softmax(a)
GGML_API struct ggml_tensor * ggml_cross_entropy_loss(struct ggml_context * ctx, struct ggml_tensor * a,
    struct ggml_tensor * b);
// the gradient of a: c (p (1 - 1e-9) + 1e-9 - b) / rows; c is the gradient of the loss
GGML_API struct ggml_tensor * ggml_cross_entropy_loss_back(struct ggml_context * ctx, struct ggml_tensor * a,
    struct ggml_tensor * b, struct ggml_tensor * c);

// -------------------------------------------------------------------------------------------------------------- graphs

GGML_API struct ggml_cgraph * ggml_new_graph(struct ggml_context * ctx); // GGML_DEFAULT_GRAPH_SIZE nodes, no gradients
GGML_API struct ggml_cgraph * ggml_new_graph_custom(struct ggml_context * ctx, size_t size, bool grads);
GGML_API size_t ggml_graph_overhead(void);
GGML_API size_t ggml_graph_overhead_custom(size_t size, bool grads);
GGML_API struct ggml_cgraph * ggml_graph_dup(struct ggml_context * ctx, struct ggml_cgraph * cgraph);
GGML_API struct ggml_cgraph ggml_graph_view(struct ggml_cgraph * cgraph, int i0, int i1); // nodes [i0, i1), shared
GGML_API enum ggml_status ggml_graph_cpy(struct ggml_cgraph * src, struct ggml_cgraph * dst);
GGML_API enum ggml_status ggml_graph_clear(struct ggml_cgraph * cgraph);
GGML_API struct ggml_tensor * ggml_graph_get_tensor(struct ggml_cgraph * cgraph, const char * name);

// Appends the tensor and those of its ancestors that are not in the graph yet, depth first, sources
// before readers.
GGML_API enum ggml_status ggml_build_forward_expand(struct ggml_cgraph * cgraph, struct ggml_tensor * tensor);

// Gradients. A parameter gets a gradient tensor, and so does every node that depends on it. The
// backward builder differentiates all nodes of gf in reverse order. It appends to gb the nodes that
// compute the gradients of the parameters. Afterwards tensor->grad of each node is its gradient.
// Before you compute gb, call ggml_graph_reset(gf) and set the gradient of the result (usually to
// 1). keep: the nodes of gf get new gradient tensors first, so that gradients of an earlier call
// stay unchanged.
// Gradients of gradients: derive gb again, with keep. Its nodes get gradient tensors in that call.
GGML_API enum ggml_status ggml_set_param(struct ggml_context * ctx, struct ggml_tensor * tensor);
GGML_API enum ggml_status ggml_graph_reset(struct ggml_cgraph * cgraph); // zeroes all gradient tensors
GGML_API enum ggml_status ggml_build_backward_expand(struct ggml_context * ctx, struct ggml_cgraph * gf,
    struct ggml_cgraph * gb, bool keep);
// Trades time for memory: gb recomputes the forward nodes that the derivatives need from the
// nearest checkpoints. gb_tmp receives the plain backward graph. On failure gb and gb_tmp are
// empty.
GGML_API enum ggml_status ggml_build_backward_gradient_checkpointing(struct ggml_context * ctx, struct ggml_cgraph * gf,
    struct ggml_cgraph * gb, struct ggml_cgraph * gb_tmp, struct ggml_tensor ** checkpoints, int n_checkpoints);

// A graph file holds the leafs with their data, and the nodes without data, in the byte order of the
// machine. Import makes two contexts, which the caller owns. ctx_data has the content of the file, to
// which the leafs point. ctx_eval has the graph. On failure the graph and both contexts are NULL.
GGML_API enum ggml_status ggml_graph_export(const struct ggml_cgraph * cgraph, const char * fname);
GGML_API struct ggml_cgraph * ggml_graph_import(const char * fname, struct ggml_context ** ctx_data,
    struct ggml_context ** ctx_eval);

GGML_API void ggml_graph_print(const struct ggml_cgraph * cgraph); // to stdout
GGML_API enum ggml_status ggml_graph_dump_dot(const struct ggml_cgraph * gb, const struct ggml_cgraph * gf,
    const char * filename);

// Computes on the CPU, on tensors with data in host memory. n_threads <= 0 means
// GGML_DEFAULT_N_THREADS.
GGML_API struct ggml_cplan ggml_graph_plan(const struct ggml_cgraph * cgraph, int n_threads);
// an enum ggml_status
GGML_API int ggml_graph_compute(struct ggml_cgraph * cgraph, struct ggml_cplan * cplan);
GGML_API enum ggml_status ggml_graph_compute_with_ctx(struct ggml_context * ctx, struct ggml_cgraph * cgraph,
    int n_threads);

// ----------------------------------------------------------------------------------------------------------- optimizer
// Minimizes a loss over the parameters of its graph, on the CPU. Parameters are contiguous F32
// tensors with data that were passed to ggml_set_param. Any result other than OK, DID_NOT_CONVERGE
// and CANCEL sets ggml_last_error().
// cdef: end

enum ggml_opt_type { GGML_OPT_ADAM, GGML_OPT_LBFGS };

enum ggml_linesearch {
    GGML_LINESEARCH_DEFAULT = 1,
    GGML_LINESEARCH_BACKTRACKING_ARMIJO = 0,
    GGML_LINESEARCH_BACKTRACKING_WOLFE = 1,
    GGML_LINESEARCH_BACKTRACKING_STRONG_WOLFE = 2
};

enum ggml_opt_result {
    GGML_OPT_OK = 0,
    GGML_OPT_DID_NOT_CONVERGE, // all iterations ran
    GGML_OPT_NO_CONTEXT,
    GGML_OPT_INVALID_WOLFE,
    GGML_OPT_FAIL,
    GGML_OPT_CANCEL, // by the callback
    GGML_LINESEARCH_FAIL = -128, // the direction does not descend
    GGML_LINESEARCH_MINIMUM_STEP,
    GGML_LINESEARCH_MAXIMUM_STEP,
    GGML_LINESEARCH_MAXIMUM_ITERATIONS,
    GGML_LINESEARCH_INVALID_PARAMETERS
};

// Called before each evaluation; accum_step counts from 0. The callback may load the next batch,
// change the factor of the learning rate (Adam), and cancel.
typedef void (*ggml_opt_callback)(void * data, int accum_step, float * sched, bool * cancel);

struct ggml_opt_params {
    enum ggml_opt_type type;
    size_t graph_size; // nodes of the graphs that ggml_opt_resume makes
    int n_threads;
    int past; // compare the loss with that of this number of iterations before; 0: never
    float delta; // converged if the loss changed by a smaller share of itself in `past` iterations
    int max_no_improvement; // converged after this number of iterations without a smaller loss; 0: never
    bool print_forward_graph; // by ggml_graph_print, to stdout
    bool print_backward_graph;
    int n_gradient_accumulation; // evaluations whose mean is one loss
    struct {
        int n_iter;
        float sched; // factor of alpha and decay
        float decay; // of weights, as a factor of alpha
        int decay_min_ndim; // parameters with fewer dimensions do not decay
        float alpha; // learning rate
        float beta1;
        float beta2;
        float eps;
        float eps_f; // converged if the loss changed by a smaller share of itself in one iteration
        float eps_g; // not used, as in early 2024
        float gclip; // largest norm of the gradient; 0: not clipped
    } adam;
    struct {
        int m; // corrections that approximate the inverse Hessian
        int n_iter; // 0: no limit
        int max_linesearch;
        float eps; // converged if |gradient| < eps max(1, |x|)
        float ftol; // sufficient decrease, c1 of Nocedal and Wright
        float wolfe; // curvature, c2
        float min_step;
        float max_step;
        enum ggml_linesearch linesearch;
    } lbfgs;
};

// State between calls. ggml_opt_init fills it in; the tensors lie in ctx.
struct ggml_opt_context {
    struct ggml_context * ctx;
    struct ggml_opt_params params;
    int iter;
    int64_t nx; // elements of all parameters
    bool just_initialized;
    float loss_before;
    float loss_after;
    struct {
        struct ggml_tensor * g; // gradient
        struct ggml_tensor * m; // first moment
        struct ggml_tensor * v; // second moment
        struct ggml_tensor * pf; // past losses; NULL: none
        float fx_best;
        float fx_prev;
        int n_no_improvement;
    } adam;
    struct {
        struct ggml_tensor * x; // parameters
        struct ggml_tensor * xp; // previous parameters
        struct ggml_tensor * g; // gradient
        struct ggml_tensor * gp; // previous gradient
        struct ggml_tensor * d; // search direction
        struct ggml_tensor * pf; // past losses; NULL: none
        struct ggml_tensor * lmal; // alpha of each correction
        struct ggml_tensor * lmys; // y . s of each correction
        struct ggml_tensor * lms; // s = x - xp
        struct ggml_tensor * lmy; // y = g - gp
        float fx_best;
        float step;
        int j;
        int k;
        int end;
        int n_no_improvement;
    } lbfgs;
};

GGML_API struct ggml_opt_params ggml_opt_default_params(enum ggml_opt_type type);
// f has one F32 element. If ctx is NULL, the call makes a context of its own, or returns GGML_OPT_NO_CONTEXT.
GGML_API enum ggml_opt_result ggml_opt(struct ggml_context * ctx, struct ggml_opt_params params,
    struct ggml_tensor * f);
// Allocates the state of nx elements in ctx. If ctx is NULL, the state is in a new context, opt->ctx,
// which you free. On failure opt->nx is 0.
GGML_API void ggml_opt_init(struct ggml_context * ctx, struct ggml_opt_context * opt, struct ggml_opt_params params,
    int64_t nx);
// Continues from the state in opt. Makes the graphs of f in ctx, and a new state if opt->nx does not fit.
GGML_API enum ggml_opt_result ggml_opt_resume(struct ggml_context * ctx, struct ggml_opt_context * opt,
    struct ggml_tensor * f);
// The same with your graphs: gf computes f, gb its gradients (ggml_build_backward_expand).
GGML_API enum ggml_opt_result ggml_opt_resume_g(struct ggml_context * ctx, struct ggml_opt_context * opt,
    struct ggml_tensor * f, struct ggml_cgraph * gf, struct ggml_cgraph * gb, ggml_opt_callback callback,
    void * callback_data);
// cdef: begin

// -------------------------------------------------------------------------------------------------------- quantization

GGML_API void ggml_quantize_init(enum ggml_type type); // optional; thread-safe
GGML_API void ggml_quantize_free(void);
GGML_API bool ggml_quantize_requires_imatrix(enum ggml_type type);

// A format cannot hold NaN, infinities, and numbers that are too large for its scales. Functions
// that return a size report such a number as an error with its row and column. They have then
// written a part of dst. F32, F16 and BF16 hold NaN and infinities, so only a finite number that
// becomes infinite is an error. The row functions of ggml_internal_get_type_traits cannot fail: all
// elements of a block with such a number become NaN. (MXFP4 and NVFP4 have no NaN and behave as
// with CLIP.)
//
// Quantizes n values in rows of k. Increments the 16 counters of hist, which may be NULL. Returns the
// bytes written, 0 on error.
GGML_API size_t ggml_quantize_q4_0(const float * src, void * dst, int n, int k, int64_t * hist);
GGML_API size_t ggml_quantize_q4_1(const float * src, void * dst, int n, int k, int64_t * hist);
GGML_API size_t ggml_quantize_q5_0(const float * src, void * dst, int n, int k, int64_t * hist);
GGML_API size_t ggml_quantize_q5_1(const float * src, void * dst, int n, int k, int64_t * hist);
GGML_API size_t ggml_quantize_q8_0(const float * src, void * dst, int n, int k, int64_t * hist);
// For K-quants, hist is not changed.
GGML_API size_t ggml_quantize_q2_K(const float * src, void * dst, int n, int k, int64_t * hist);
GGML_API size_t ggml_quantize_q3_K(const float * src, void * dst, int n, int k, int64_t * hist);
GGML_API size_t ggml_quantize_q4_K(const float * src, void * dst, int n, int k, int64_t * hist);
GGML_API size_t ggml_quantize_q5_K(const float * src, void * dst, int n, int k, int64_t * hist);
GGML_API size_t ggml_quantize_q6_K(const float * src, void * dst, int n, int k, int64_t * hist);

// Quantizes nrows rows, from element `start` of src, to the same position in dst. imatrix: NULL or
// n_per_row importances, of which only the ratios within a block count. A block whose importances
// are all 0 is quantized without importances. A negative or NaN importance counts as 0, an infinite
// one as the largest number.
GGML_API size_t ggml_quantize_chunk(enum ggml_type type, const float * src, void * dst, int start, int nrows,
    int n_per_row, int64_t * hist, const float * imatrix);

// 1 if the running processor has the instruction set, or the library was built with the other library; else 0
GGML_API int ggml_cpu_has_avx(void);
GGML_API int ggml_cpu_has_avx_vnni(void);
GGML_API int ggml_cpu_has_avx2(void);
GGML_API int ggml_cpu_has_avx512(void);
GGML_API int ggml_cpu_has_avx512_vbmi(void);
GGML_API int ggml_cpu_has_avx512_vnni(void);
GGML_API int ggml_cpu_has_fma(void);
GGML_API int ggml_cpu_has_neon(void);
GGML_API int ggml_cpu_has_arm_fma(void);
GGML_API int ggml_cpu_has_metal(void);
GGML_API int ggml_cpu_has_f16c(void);
GGML_API int ggml_cpu_has_fp16_va(void);
GGML_API int ggml_cpu_has_wasm_simd(void);
GGML_API int ggml_cpu_has_blas(void);
GGML_API int ggml_cpu_has_cublas(void);
GGML_API int ggml_cpu_has_clblast(void);
GGML_API int ggml_cpu_has_vulkan(void);
GGML_API int ggml_cpu_has_sycl(void);
GGML_API int ggml_cpu_has_gpublas(void);
GGML_API int ggml_cpu_has_sse3(void);
GGML_API int ggml_cpu_has_ssse3(void);
GGML_API int ggml_cpu_has_vsx(void);

// cdef: end

GGML_API GGML_ATTRIBUTE_FORMAT(2, 3) struct ggml_tensor * ggml_format_name(struct ggml_tensor * tensor,
    const char * fmt, ...);

// Older custom operators, each on one thread. A function of map_unary or map_binary gets one row, others whole tensors.
typedef void (*ggml_unary_op_f32_t)(const int, float *, const float *);
typedef void (*ggml_binary_op_f32_t)(const int, float *, const float *, const float *);
typedef void (*ggml_custom1_op_f32_t)(struct ggml_tensor *, const struct ggml_tensor *);
typedef void (*ggml_custom2_op_f32_t)(struct ggml_tensor *, const struct ggml_tensor *, const struct ggml_tensor *);
typedef void (*ggml_custom3_op_f32_t)(struct ggml_tensor *, const struct ggml_tensor *, const struct ggml_tensor *,
    const struct ggml_tensor *);

GGML_DEPRECATED(GGML_API struct ggml_tensor * ggml_map_unary_f32(struct ggml_context * ctx, struct ggml_tensor * a,
                    ggml_unary_op_f32_t fun),
    "use ggml_map_custom1 instead");
GGML_DEPRECATED(GGML_API struct ggml_tensor * ggml_map_unary_inplace_f32(struct ggml_context * ctx,
                    struct ggml_tensor * a, ggml_unary_op_f32_t fun),
    "use ggml_map_custom1_inplace instead");
GGML_DEPRECATED(GGML_API struct ggml_tensor * ggml_map_binary_f32(struct ggml_context * ctx, struct ggml_tensor * a,
                    struct ggml_tensor * b, ggml_binary_op_f32_t fun),
    "use ggml_map_custom2 instead");
GGML_DEPRECATED(GGML_API struct ggml_tensor * ggml_map_binary_inplace_f32(struct ggml_context * ctx,
                    struct ggml_tensor * a, struct ggml_tensor * b, ggml_binary_op_f32_t fun),
    "use ggml_map_custom2_inplace instead");
GGML_DEPRECATED(GGML_API struct ggml_tensor * ggml_map_custom1_f32(struct ggml_context * ctx, struct ggml_tensor * a,
                    ggml_custom1_op_f32_t fun),
    "use ggml_map_custom1 instead");
GGML_DEPRECATED(GGML_API struct ggml_tensor * ggml_map_custom1_inplace_f32(struct ggml_context * ctx,
                    struct ggml_tensor * a, ggml_custom1_op_f32_t fun),
    "use ggml_map_custom1_inplace instead");
GGML_DEPRECATED(GGML_API struct ggml_tensor * ggml_map_custom2_f32(struct ggml_context * ctx, struct ggml_tensor * a,
                    struct ggml_tensor * b, ggml_custom2_op_f32_t fun),
    "use ggml_map_custom2 instead");
GGML_DEPRECATED(GGML_API struct ggml_tensor * ggml_map_custom2_inplace_f32(struct ggml_context * ctx,
                    struct ggml_tensor * a, struct ggml_tensor * b, ggml_custom2_op_f32_t fun),
    "use ggml_map_custom2_inplace instead");
GGML_DEPRECATED(GGML_API struct ggml_tensor * ggml_map_custom3_f32(struct ggml_context * ctx, struct ggml_tensor * a,
                    struct ggml_tensor * b, struct ggml_tensor * c, ggml_custom3_op_f32_t fun),
    "use ggml_map_custom3 instead");
GGML_DEPRECATED(GGML_API struct ggml_tensor * ggml_map_custom3_inplace_f32(struct ggml_context * ctx,
                    struct ggml_tensor * a, struct ggml_tensor * b, struct ggml_tensor * c, ggml_custom3_op_f32_t fun),
    "use ggml_map_custom3_inplace instead");

static const size_t GGML_OBJECT_SIZE = sizeof(struct ggml_object);
static const size_t GGML_TENSOR_SIZE = sizeof(struct ggml_tensor);

// --------------------------------------------------------------------------------------------------------- type traits

typedef void (*ggml_to_float_t)(const void * GGML_RESTRICT x, float * GGML_RESTRICT y, int k);
typedef void (*ggml_from_float_t)(const float * GGML_RESTRICT x, void * GGML_RESTRICT y, int k);
typedef void (*ggml_vec_dot_t)(const int n, float * GGML_RESTRICT s, const void * GGML_RESTRICT x,
    const void * GGML_RESTRICT y);

typedef struct {
    const char * type_name;
    int blck_size;
    size_t type_size;
    bool is_quantized;
    ggml_to_float_t to_float;
    ggml_from_float_t from_float;
    ggml_from_float_t from_float_reference;
    ggml_vec_dot_t vec_dot;
    enum ggml_type vec_dot_type;
} ggml_type_traits_t;

GGML_API ggml_type_traits_t ggml_internal_get_type_traits(enum ggml_type type); // all zero for an invalid type

#ifdef __cplusplus
}
#endif

// The additions, and the file format's functions, which programs of early 2024 find here.
#include "ggml-ext.h"
#include "gguf.h"

#endif // GGML_H
