// test_compat_layout.c - the binary interface that programs of early 2024 rely on: struct sizes and
// offsets, enum values, constants, for machines with 64-bit pointers. The compiler checks
// everything.
#include "ggml-alloc.h"
#include "ggml-backend-impl.h"
#include "test.h"

#define IS(expr, value) _Static_assert((expr) == (value), #expr)
#define AT(type, field, offset) IS(offsetof(struct type, field), offset)

#if UINTPTR_MAX == UINT64_MAX
IS(sizeof(struct ggml_object), 32);
AT(ggml_object, offs, 0);
AT(ggml_object, size, 8);
AT(ggml_object, next, 16);
AT(ggml_object, type, 24);

IS(sizeof(struct ggml_tensor), 368);
AT(ggml_tensor, type, 0);
AT(ggml_tensor, backend, 4);
AT(ggml_tensor, buffer, 8);
AT(ggml_tensor, ne, 16);
AT(ggml_tensor, nb, 48);
AT(ggml_tensor, op, 80);
AT(ggml_tensor, op_params, 84);
AT(ggml_tensor, is_param, 148);
AT(ggml_tensor, grad, 152);
AT(ggml_tensor, src, 160);
AT(ggml_tensor, perf_runs, 240);
AT(ggml_tensor, perf_cycles, 248);
AT(ggml_tensor, perf_time_us, 256);
AT(ggml_tensor, view_src, 264);
AT(ggml_tensor, view_offs, 272);
AT(ggml_tensor, data, 280);
AT(ggml_tensor, name, 288);
AT(ggml_tensor, extra, 352);
AT(ggml_tensor, padding, 360);

IS(sizeof(struct ggml_cplan), 40);
AT(ggml_cplan, work_size, 0);
AT(ggml_cplan, work_data, 8);
AT(ggml_cplan, n_threads, 16);
AT(ggml_cplan, abort_callback, 24);
AT(ggml_cplan, abort_callback_data, 32);

IS(sizeof(struct ggml_hash_set), 16);
IS(sizeof(struct ggml_cgraph), 80);
AT(ggml_cgraph, size, 0);
AT(ggml_cgraph, n_nodes, 4);
AT(ggml_cgraph, n_leafs, 8);
AT(ggml_cgraph, nodes, 16);
AT(ggml_cgraph, grads, 24);
AT(ggml_cgraph, leafs, 32);
AT(ggml_cgraph, visited_hash_table, 40);
AT(ggml_cgraph, order, 56);
AT(ggml_cgraph, perf_runs, 60);
AT(ggml_cgraph, perf_cycles, 64);
AT(ggml_cgraph, perf_time_us, 72);

IS(sizeof(struct ggml_scratch), 24);
IS(sizeof(struct ggml_init_params), 24);
IS(sizeof(struct ggml_compute_params), 32);
AT(ggml_compute_params, wsize, 16);
AT(ggml_compute_params, wdata, 24);
IS(sizeof(struct gguf_init_params), 16);
IS(sizeof(ggml_type_traits_t), 72);
IS(offsetof(ggml_type_traits_t, type_size), 16);
IS(offsetof(ggml_type_traits_t, to_float), 32);
IS(offsetof(ggml_type_traits_t, vec_dot), 56);
IS(offsetof(ggml_type_traits_t, vec_dot_type), 64);
IS(GGML_MEM_ALIGN, 16);

AT(ggml_backend_buffer_type_i, get_name, 0);
AT(ggml_backend_buffer_type_i, alloc_buffer, 8);
AT(ggml_backend_buffer_type_i, get_alignment, 16);
AT(ggml_backend_buffer_type_i, get_max_size, 24);
AT(ggml_backend_buffer_type_i, get_alloc_size, 32);
AT(ggml_backend_buffer_type_i, supports_backend, 40);
AT(ggml_backend_buffer_type_i, is_host, 48);
AT(ggml_backend_buffer_i, get_name, 0);
AT(ggml_backend_buffer_i, free_buffer, 8);
AT(ggml_backend_buffer_i, get_base, 16);
AT(ggml_backend_buffer_i, init_tensor, 24);
AT(ggml_backend_buffer_i, set_tensor, 32);
AT(ggml_backend_buffer_i, get_tensor, 40);
AT(ggml_backend_buffer_i, cpy_tensor, 48);
AT(ggml_backend_buffer_i, clear, 56);
AT(ggml_backend_buffer_i, reset, 64);
AT(ggml_backend_i, get_name, 0);
AT(ggml_backend_i, free, 8);
AT(ggml_backend_i, get_default_buffer_type, 16);
AT(ggml_backend_i, set_tensor_async, 24);
AT(ggml_backend_i, get_tensor_async, 32);
AT(ggml_backend_i, cpy_tensor_async, 40);
AT(ggml_backend_i, synchronize, 48);
AT(ggml_backend_i, graph_plan_create, 56);
AT(ggml_backend_i, graph_plan_free, 64);
AT(ggml_backend_i, graph_plan_compute, 72);
AT(ggml_backend_i, graph_compute, 80);
AT(ggml_backend_i, supports_op, 88);
IS(sizeof(struct ggml_backend_graph_copy), 32);
#endif

IS(GGML_FILE_MAGIC, 0x67676d6c);
IS(GGML_FILE_VERSION, 1);
IS(GGML_QNT_VERSION, 2);
IS(GGML_QNT_VERSION_FACTOR, 1000);
IS(GGML_MAX_DIMS, 4);
IS(GGML_MAX_PARAMS, 2048);
IS(GGML_MAX_CONTEXTS, 64);
IS(GGML_MAX_SRC, 10);
IS(GGML_MAX_NAME, 64);
IS(GGML_MAX_OP_PARAMS, 64);
IS(GGML_DEFAULT_N_THREADS, 4);
IS(GGML_DEFAULT_GRAPH_SIZE, 2048);
IS(GGML_EXIT_SUCCESS, 0);
IS(GGML_EXIT_ABORTED, 1);
IS(GGML_N_TASKS_MAX, -1);
IS(GGUF_VERSION, 3);
IS(GGUF_DEFAULT_ALIGNMENT, 32);
IS(GGML_PAD(17, 16), 32);
IS(GGML_PAD(32, 16), 32);

IS(GGML_TYPE_F32, 0);
IS(GGML_TYPE_F16, 1);
IS(GGML_TYPE_Q4_0, 2);
IS(GGML_TYPE_Q4_1, 3);
IS(GGML_TYPE_Q5_0, 6);
IS(GGML_TYPE_Q5_1, 7);
IS(GGML_TYPE_Q8_0, 8);
IS(GGML_TYPE_Q8_1, 9);
IS(GGML_TYPE_Q2_K, 10);
IS(GGML_TYPE_Q3_K, 11);
IS(GGML_TYPE_Q4_K, 12);
IS(GGML_TYPE_Q5_K, 13);
IS(GGML_TYPE_Q6_K, 14);
IS(GGML_TYPE_Q8_K, 15);
IS(GGML_TYPE_IQ2_XXS, 16);
IS(GGML_TYPE_IQ2_XS, 17);
IS(GGML_TYPE_IQ3_XXS, 18);
IS(GGML_TYPE_I8, 24); // as in GGUF files
IS(GGML_TYPE_I16, 25);
IS(GGML_TYPE_I32, 26);
IS(GGML_TYPE_I64, 27);
IS(GGML_TYPE_F64, 28);
IS(GGML_TYPE_BF16, 30);

IS(GGML_PREC_DEFAULT, 0);
IS(GGML_PREC_F32, 1);
IS(GGML_BACKEND_CPU, 0);
IS(GGML_BACKEND_GPU, 10);
IS(GGML_BACKEND_GPU_SPLIT, 20);
IS(GGML_FTYPE_UNKNOWN, -1);
IS(GGML_FTYPE_MOSTLY_F16, 1);
IS(GGML_FTYPE_MOSTLY_Q4_1_SOME_F16, 4);
IS(GGML_FTYPE_MOSTLY_Q8_0, 7);
IS(GGML_FTYPE_MOSTLY_Q6_K, 14);
IS(GGML_FTYPE_MOSTLY_IQ3_XXS, 17);
IS(GGML_UNARY_OP_ABS, 0);
IS(GGML_UNARY_OP_TANH, 4);
IS(GGML_UNARY_OP_GELU, 7);
IS(GGML_UNARY_OP_SILU, 9);
IS(GGML_UNARY_OP_HARDSIGMOID, 11);
IS(GGML_OBJECT_TENSOR, 0);
IS(GGML_OBJECT_GRAPH, 1);
IS(GGML_OBJECT_WORK_BUFFER, 2);
IS(GGML_LOG_LEVEL_ERROR, 2);
IS(GGML_LOG_LEVEL_DEBUG, 5);
IS(GGML_CGRAPH_EVAL_ORDER_LEFT_TO_RIGHT, 0);
IS(GGML_CGRAPH_EVAL_ORDER_COUNT, 2);
IS(GGML_TASK_INIT, 0);
IS(GGML_TASK_FINALIZE, 2);
IS(GGML_OP_POOL_MAX, 0);
IS(GGML_OP_POOL_AVG, 1);
IS(GGML_OP_POOL_COUNT, 2);
IS(GGML_SORT_ASC, 0);
IS(GGML_SORT_DESC, 1);
IS(GGML_BACKEND_BUFFER_USAGE_ANY, 0);
IS(GGML_BACKEND_BUFFER_USAGE_WEIGHTS, 1);
IS(GGUF_TYPE_UINT8, 0);
IS(GGUF_TYPE_FLOAT32, 6);
IS(GGUF_TYPE_STRING, 8);
IS(GGUF_TYPE_ARRAY, 9);
IS(GGUF_TYPE_FLOAT64, 12);
IS(GGUF_TYPE_COUNT, 13);

// Operators by number, with the names that ggml_op_name gives.
static const char * const ops[] = {
    "NONE",
    "DUP",
    "ADD",
    "ADD1",
    "ACC",
    "SUB",
    "MUL",
    "DIV",
    "SQR",
    "SQRT",
    "LOG",
    "SUM",
    "SUM_ROWS",
    "MEAN",
    "ARGMAX",
    "REPEAT",
    "REPEAT_BACK",
    "CONCAT",
    "SILU_BACK",
    "NORM",
    "RMS_NORM",
    "RMS_NORM_BACK",
    "GROUP_NORM",
    "MUL_MAT",
    "MUL_MAT_ID",
    "OUT_PROD",
    "SCALE",
    "SET",
    "CPY",
    "CONT",
    "RESHAPE",
    "VIEW",
    "PERMUTE",
    "TRANSPOSE",
    "GET_ROWS",
    "GET_ROWS_BACK",
    "DIAG",
    "DIAG_MASK_INF",
    "DIAG_MASK_ZERO",
    "SOFT_MAX",
    "SOFT_MAX_BACK",
    "ROPE",
    "ROPE_BACK",
    "ALIBI",
    "CLAMP",
    "CONV_TRANSPOSE_1D",
    "IM2COL",
    "CONV_TRANSPOSE_2D",
    "POOL_1D",
    "POOL_2D",
    "UPSCALE",
    "PAD",
    "ARGSORT",
    "LEAKY_RELU",
    "FLASH_ATTN",
    "FLASH_FF",
    "FLASH_ATTN_BACK",
    "WIN_PART",
    "WIN_UNPART",
    "GET_REL_POS",
    "ADD_REL_POS",
    "UNARY",
    "MAP_UNARY",
    "MAP_BINARY",
    "MAP_CUSTOM1_F32",
    "MAP_CUSTOM2_F32",
    "MAP_CUSTOM3_F32",
    "MAP_CUSTOM1",
    "MAP_CUSTOM2",
    "MAP_CUSTOM3",
    "CROSS_ENTROPY_LOSS",
    "CROSS_ENTROPY_LOSS_BACK",
};
IS(sizeof(ops) / sizeof(ops[0]), 72);
IS(GGML_OP_CROSS_ENTROPY_LOSS_BACK, 71);
IS(GGML_OP_MUL_MAT, 23);
IS(GGML_OP_RESHAPE, 30);
IS(GGML_OP_UNARY, 61);

static const char * const unary_ops[] = { "ABS", "SGN", "NEG", "STEP", "TANH", "ELU", "RELU", "GELU", "GELU_QUICK",
    "SILU", "HARDSWISH", "HARDSIGMOID" };

static void names_by_number(void) {
    for (int i = 0; i < 72; i++) {
        CHECK_STR(ggml_op_name((enum ggml_op) i), ops[i]);
    }
    for (int i = 0; i < 12; i++) {
        CHECK_STR(ggml_unary_op_name((enum ggml_unary_op) i), unary_ops[i]);
    }
    CHECK_INT(GGML_OBJECT_SIZE, 32);
    CHECK_INT(GGML_TENSOR_SIZE, 368);
    CHECK_INT(memcmp(GGUF_MAGIC, "GGUF", 4), 0);
}

// The macros of op implementations outside the library.
static void macros(void) {
    const struct ggml_init_params params = { 0, NULL, true };
    struct ggml_context * ctx = ggml_init(params);
    struct ggml_tensor * src0 = ggml_new_tensor_4d(ctx, GGML_TYPE_F32, 2, 3, 4, 5);
    struct ggml_tensor * src1 = ggml_new_tensor_4d(ctx, GGML_TYPE_F16, 6, 7, 8, 9);
    struct ggml_tensor * dst = ggml_new_tensor_4d(ctx, GGML_TYPE_F32, 10, 11, 12, 13);
    GGML_TENSOR_BINARY_OP_LOCALS
    CHECK(ne00 == 2 && ne01 == 3 && ne02 == 4 && ne03 == 5 && nb00 == 4 && nb01 == 8 && nb02 == 24 && nb03 == 96);
    CHECK(ne10 == 6 && ne13 == 9 && nb10 == 2 && nb11 == 12 && ne0 == 10 && ne3 == 13 && nb1 == 40);
    GGML_ASSERT(ne0 == 10);
    ggml_free(ctx);
}

TEST_MAIN(TEST(names_by_number), TEST(macros))
