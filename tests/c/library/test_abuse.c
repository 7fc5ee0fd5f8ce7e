// No call may crash, hang, corrupt or leak. Calls every public function (abuse.def, and by hand
// those that need valid arguments) with arguments that are valid, NULL one after another, out of
// range, in the wrong state, or of the wrong kind. Made for sanitizers. Tensors that builders
// return become arguments of later calls.
#ifndef _GNU_SOURCE
#    define _GNU_SOURCE
#endif
#include "test.h"

#include <fcntl.h>
#include <limits.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/mem.h"
#include "cpu/cpu.h"
#include "custom.h"
#include "ggml-backend-impl.h"
#include "ggml-cpu.h"
#include "ggml-cuda.h"
#include "ggml-program.h"
#include "gguf.h"
#include "tensor/nodes.h"

#define GGML_TODAY_DECLARATIONS_ONLY
#include "ggml-today.h"

#pragma GCC diagnostic ignored "-Wdeprecated-declarations"

// Absurd sizes are refused, as on a system without overcommitment.
const char * __asan_default_options(void); // sanitizers call it
__attribute__((visibility("default"))) const char * __asan_default_options(void) {
    return "allocator_may_return_null=1:max_allocation_size_mb=256";
}

const char * __tsan_default_options(void);
__attribute__((visibility("default"))) const char * __tsan_default_options(void) {
    return "allocator_may_return_null=1:max_allocation_size_mb=256";
}

// --------------------------------------------------------------------------------------------------------- the objects

enum { N_FIXED = 32, N_TENSORS = 96, N_GRAPHS = 8, BYTES = 1 << 16, META_BYTES = 4 << 20 };

static struct {
    struct ggml_context * ctx[4];
    struct ggml_tensor * t[N_TENSORS]; // the first N_FIXED are never replaced
    struct ggml_cgraph * g[N_GRAPHS];
    struct ggml_cgraph part, hollow, negative; // a view; a graph with a NULL node; a negative count
    struct ggml_tensor * no_node[1];
    ggml_backend_t backend[4];
    ggml_backend_buffer_t buffer[6];
    ggml_backend_buffer_type_t buft[4];
    ggml_tallocr_t tallocr[5];
    ggml_gallocr_t gallocr[2];
    ggml_today_gallocr_t today[2];
    ggml_allocr_t allocr[3];
    ggml_backend_sched_t sched[3];
    ggml_backend_event_t event[3];
    struct gguf_context * gguf[2];
    struct ggml_hash_set set[3]; // usable, none, without keys
    struct ggml_backend hookless;
    struct ggml_backend_buffer_type hookless_buft;
    void * fixed_memory;
    ggml_profile_t profile[1]; // of few records, so that they fit into `bytes`
    ggml_program_t program[1];
} pool;

static _Alignas(64) char bytes[BYTES], bytes2[BYTES];
static char long_text[70000];
static char meta[META_BYTES];

// --------------------------------------------------------------------------------------------------------- the choices

static int null_at;    // index of the pointer argument that is NULL; -1: none on purpose
static int n_pointers; // of the call so far
static bool wild;      // any value; false: likely values

static size_t any(size_t n) { return (size_t) (test_random() % n); }

static bool null_now(void) {
    const int i = n_pointers++;
    return i == null_at || (wild && any(16) == 0);
}

#define PICK(array) (null_now() ? NULL : (array)[any(GB_ARRAY_LEN(array))])

static struct ggml_tensor * pick_tensor(void) {
    if (null_now()) {
        return NULL;
    }
    struct ggml_tensor * t = NULL;
    for (int i = 0; i < 8 && t == NULL; i++) {
        t = pool.t[any(wild ? N_TENSORS : 4)];
    }
    return t;
}

static int pick_int(void) {
    static const int values[] = { 0, 1, 2, 3, 4, 5, 7, 8, 16, 32, -1, -2, INT_MIN, INT_MIN + 1, INT_MAX, INT_MAX - 1,
        1 << 16, 1 << 30 };
    return values[any(wild ? GB_ARRAY_LEN(values) : 5)];
}

static int64_t pick_i64(void) {
    static const int64_t values[] = { 0, 1, 2, 4, 8, 12, 24, 32, 256, -1, INT64_MIN, INT64_MAX, INT64_MAX / 4,
        INT64_MAX - 31, (int64_t) 1 << 31, (int64_t) 1 << 32, (int64_t) 1 << 40, (int64_t) 1 << 61, 3037000500 };
    return values[any(wild ? GB_ARRAY_LEN(values) : 8)];
}

static size_t pick_size(void) {
    static const size_t values[] = { 0, 1, 16, 32, 64, 100, 4096, 1 << 15, SIZE_MAX, SIZE_MAX - 1, SIZE_MAX - 31,
        SIZE_MAX / 2, SIZE_MAX / 2 + 1, SIZE_MAX / 8, (size_t) 1 << 32, (size_t) 1 << 40, 3 };
    return values[any(wild ? GB_ARRAY_LEN(values) : 7)];
}

static float pick_float(void) {
    static const float values[] = { 1.0f, 0.5f, 2.0f, 0.0f, -1.0f, INFINITY, -INFINITY, NAN, 1e38f, -1e38f, 1e-45f };
    return values[any(wild ? GB_ARRAY_LEN(values) : 3)];
}

static int pick_count(void) { // at most the number of elements of `bytes`
    static const int values[] = { 0, 1, 31, 32, 64, 256, 512, 1024, -1, INT_MIN };
    return values[any(GB_ARRAY_LEN(values))];
}

static int pick_small(void) { // at most the number of elements of the short arrays here
    static const int values[] = { 0, 1, 2, 3, 4, -1, INT_MIN };
    return values[any(GB_ARRAY_LEN(values))];
}

static int pick_enum(void) { return any(4) ? (int) any(80) : (int[]){ -1, 100, 255, INT_MAX, INT_MIN }[any(5)]; }

static int pick_type(void) {
    return wild && any(3) ? pick_enum()
                          : (int[]){ GGML_TYPE_F32, GGML_TYPE_F16, GGML_TYPE_I32, GGML_TYPE_Q8_0 }[any(4)];
}

static const char * pick_text(void) {
    static const char * const texts[] = {
        "",
        "x",
        "a",
        "general.alignment",
        "general.name",
        "CPU",
        "SIM",
        "SIM:mem=1M",
        "SIM:threads=99999999",
        "SIM:mem=,=,,==",
        "SIM:mem=99999999999999999999T",
        "SIM:",
        ":",
        "CPU:threads=-1",
        "CPU:n_threads=x",
        "none",
        "%s%n%d",
        "avx2",
        "scalar",
        "\xff\xfe\x01",
        long_text,
        "SIM:delay=-1ms",
        "SIM:align=3",
        "SIM:ops=,mul_mat+,+",
        "SIM:name=",
        "SIM:max=0",
    };
    return null_now() ? NULL : texts[any(GB_ARRAY_LEN(texts))];
}

static const int64_t * pick_ne(void) {
    static int64_t ne[8];
    for (size_t i = 0; i < GB_ARRAY_LEN(ne); i++) {
        ne[i] = pick_i64();
    }
    return null_now() ? NULL : ne;
}

static int64_t * pick_hist(void) {
    static int64_t hist[16];
    return null_now() ? NULL : hist;
}

static struct ggml_tensor ** pick_tensors(void) {
    static struct ggml_tensor * list[GGML_MAX_SRC];
    for (size_t i = 0; i < GB_ARRAY_LEN(list); i++) {
        list[i] = any(8) ? pool.t[any(4)] : pool.t[any(N_TENSORS)];
    }
    return null_now() ? NULL : list;
}

// Where a function writes tensors.
static struct ggml_tensor ** pick_results(void) {
    static struct ggml_tensor * list[GGML_MAX_SRC];
    return null_now() ? NULL : list;
}

static const char ** pick_texts(void) {
    static const char * list[4];
    for (size_t i = 0; i < GB_ARRAY_LEN(list); i++) {
        list[i] = (const char *[]){ "", "x", NULL, "text" }[any(4)];
    }
    return null_now() ? NULL : list;
}

static const int * pick_list(void) {
    static int list[8];
    for (size_t i = 0; i < GB_ARRAY_LEN(list); i++) {
        list[i] = pick_int();
    }
    return null_now() ? NULL : list;
}

static ggml_tallocr_t * pick_tallocrs(void) {
    static ggml_tallocr_t list[64];
    for (size_t i = 0; i < GB_ARRAY_LEN(list); i++) {
        list[i] = any(4) ? pool.tallocr[any(GB_ARRAY_LEN(pool.tallocr))] : NULL;
    }
    return null_now() ? NULL : list;
}

static struct ggml_cgraph * pick_graph(void) { return null_now() ? NULL : pool.g[any(wild ? N_GRAPHS : 3)]; }

static struct ggml_cplan * pick_cplan(void) {
    static struct ggml_cplan plan;
    plan = (struct ggml_cplan){ any(4) ? BYTES : 0, any(4) ? (uint8_t *) bytes : NULL, any(4) ? 2 : pick_int(), NULL,
        NULL };
    return null_now() ? NULL : &plan;
}

static struct ggml_hash_set pick_set(void) { return pool.set[any(wild ? 3 : 1)]; }

static struct ggml_scratch pick_scratch(void) { // at least as large as the stated size
    const size_t size = any(2) ? BYTES : 100;
    return (struct ggml_scratch){ any(4) ? 0 : pick_size(), size, any(2) ? bytes + any(2) : NULL };
}

static const struct ggml_plan_options * pick_options(void) {
    static struct ggml_plan_options options;
    options = (struct ggml_plan_options){ pick_size(), pick_i64() % 10, pick_int(), any(2) == 1 };
    return null_now() ? NULL : &options;
}

// Few iterations and no output. The state is that of an earlier call.
static struct ggml_opt_context opt_state;

static struct ggml_opt_params pick_opt_params(void) {
    struct ggml_opt_params params = ggml_opt_default_params((enum ggml_opt_type) any(3));
    params.print_forward_graph = params.print_backward_graph = false;
    params.graph_size = 64;
    params.n_threads = any(3);
    params.past = any(4) - 1;
    params.n_gradient_accumulation = any(3) - 1;
    params.adam.n_iter = params.lbfgs.n_iter = 2;
    params.adam.gclip = pick_float();
    params.lbfgs.m = any(4);
    params.lbfgs.linesearch = (enum ggml_linesearch) any(4);
    params.lbfgs.max_linesearch = any(4);
    return params;
}

// Frees the context that a call made for the state.
static void drop_opt_context(const struct ggml_context * given) {
    if (given == NULL && opt_state.ctx != NULL) {
        ggml_free(opt_state.ctx);
        opt_state = (struct ggml_opt_context){ 0 };
    }
}

static void opt_init(struct ggml_context * ctx, struct ggml_opt_context * opt, struct ggml_opt_params params,
    int64_t nx) {
    const bool is_costly = nx > 1 << 16 && nx < INT64_MAX / 64; // would allocate that much memory
    ggml_opt_init(ctx, opt, params, is_costly ? 1 << 16 : nx);
    drop_opt_context(opt != NULL ? ctx : opt_state.ctx);
}

static enum ggml_opt_result opt_resume(struct ggml_context * ctx, struct ggml_opt_context * opt, struct ggml_tensor * f,
    struct ggml_cgraph * gf, struct ggml_cgraph * gb) {
    struct ggml_context * before = opt_state.ctx;
    const enum ggml_opt_result result = ggml_opt_resume_g(ctx, opt, f, gf, gb, NULL, NULL);
    drop_opt_context(before != NULL ? before : ctx);
    return result;
}

#define CTX PICK(pool.ctx)
#define T pick_tensor()
#define G pick_graph()
#define I pick_int()
#define I64 pick_i64()
#define SZ pick_size()
#define F pick_float()
#define B (any(2) == 1)
#define U16 ((uint16_t) test_random())
#define BF16 ((ggml_bf16_t){ U16 })
#define TYPE ((enum ggml_type) pick_type())
#define ENUM(type) ((enum type) pick_enum())
#define STR pick_text()
#define STRS pick_texts()
#define NE ((int64_t *) (uintptr_t) pick_ne())
#define HIST pick_hist()
#define META ((void *) (null_now() ? NULL : meta))
#define LIST pick_list()
#define COUNT pick_count()
#define SMALL pick_small()
#define PTR ((void *) (null_now() ? NULL : bytes))
#define PTR2 ((void *) (null_now() ? NULL : bytes2))
#define BE PICK(pool.backend)
#define BUF PICK(pool.buffer)
#define BUFT PICK(pool.buft)
#define TALLOC PICK(pool.tallocr)
#define TALLOCS pick_tallocrs()
#define GALLOC PICK(pool.gallocr)
#define TODAY PICK(pool.today)
#define ALLOCR PICK(pool.allocr)
#define SCHED PICK(pool.sched)
#define EVENT PICK(pool.event)
#define PROFILE PICK(pool.profile)
#define PROGRAM PICK(pool.program)
#define GGUF PICK(pool.gguf)
#define HS pick_set()
#define SCRATCH pick_scratch()
#define PLAN_OPTIONS pick_options()
#define TENSORS pick_tensors()
#define RESULTS pick_results()
#define CPLAN pick_cplan()
#define OPT_PARAMS pick_opt_params()
#define OPT (null_now() ? NULL : &opt_state)
#define FUN(f) (null_now() ? NULL : (f))

static bool compare(int i, struct ggml_tensor * a, struct ggml_tensor * b, void * data) {
    (void) i, (void) a, (void) b, (void) data;
    return true;
}
static bool eval(struct ggml_tensor * t, bool ask, void * data) {
    (void) t, (void) ask, (void) data;
    return test_random() % 4 != 0;
}

// -------------------------------------------------------------------------------------------------- making the objects

static struct ggml_tensor * corrupt(struct ggml_context * ctx, int type, int op) {
    struct ggml_tensor * t = ggml_new_tensor_2d(ctx, GGML_TYPE_F32, 4, 4);
    t->type = (enum ggml_type) type;
    t->op = (enum ggml_op) op;
    return t;
}

static void make_tensors(void) {
    struct ggml_context * ctx = pool.ctx[0]; // no_alloc
    struct ggml_context * mem = pool.ctx[2]; // with data
    int n = 0;
    pool.t[n++] = ggml_new_tensor_2d(mem, GGML_TYPE_F32, 8, 4);
    pool.t[n++] = ggml_new_tensor_2d(mem, GGML_TYPE_F32, 8, 8);
    pool.t[n++] = ggml_new_tensor_3d(mem, GGML_TYPE_F32, 8, 4, 2);
    pool.t[n++] = ggml_new_tensor_1d(mem, GGML_TYPE_I32, 4);
    for (int i = 0; i < n; i++) {
        ggml_set_zero(pool.t[i]);
    }
    pool.t[n++] = ggml_new_tensor_2d(mem, GGML_TYPE_F16, 8, 4);
    pool.t[n++] = ggml_new_tensor_2d(mem, GGML_TYPE_Q8_0, 32, 2);
    pool.t[n++] = ggml_new_tensor_4d(mem, GGML_TYPE_F32, 0, 3, 2, 1);
    pool.t[n++] = ggml_new_tensor_1d(mem, GGML_TYPE_F32, 1);
    pool.t[n++] = ggml_transpose(mem, pool.t[0]);
    pool.t[n++] = ggml_view_2d(mem, pool.t[1], 2, 2, 64, 4);
    pool.t[n++] = ggml_new_tensor_2d(ctx, GGML_TYPE_F32, 8, 4); // 10: no data
    pool.t[n++] = ggml_view_1d(ctx, pool.t[10], 8, 32);
    pool.t[n++] = ggml_new_tensor_2d(ctx, GGML_TYPE_F32, (int64_t) 1 << 40, 1 << 10);
    pool.t[n++] = ggml_new_tensor_4d(ctx, GGML_TYPE_F32, 1 << 15, 1 << 15, 1 << 15, 1 << 15);
    pool.t[n++] = ggml_new_tensor_1d(ctx, GGML_TYPE_I8, INT64_MAX);
    pool.t[n++] = ggml_new_tensor_4d(ctx, GGML_TYPE_F32, 0, INT64_MAX, INT64_MAX, 1);
    pool.t[n++] = ggml_new_tensor_1d(ctx, GGML_TYPE_Q4_K, 256);
    pool.t[n++] = ggml_new_tensor_1d(ctx, GGML_TYPE_F64, 4);
    pool.t[n++] = ggml_new_tensor_1d(ctx, GGML_TYPE_I64, 4);
    pool.t[n++] = ggml_new_tensor_1d(ctx, GGML_TYPE_BF16, 4);
    pool.t[n++] = corrupt(ctx, 4, GGML_OP_NONE); // 20: a retired type
    pool.t[n++] = corrupt(ctx, 12345, GGML_OP_NONE);
    pool.t[n++] = corrupt(ctx, GGML_TYPE_F32, 12345);
    pool.t[n++] = corrupt(ctx, GGML_TYPE_F32, GGML_OP_COUNT);
    // no op without its sources, because CPU operators read them
    pool.t[n++] = corrupt(ctx, GGML_TYPE_COUNT, GGML_OP_NONE);
    pool.t[n++] = corrupt(mem, -1, GGML_OP_COUNT);
    pool.t[n++] = ggml_new_tensor_2d(ctx, GGML_TYPE_F32, 8, 4); // 26, 27: on the device
    pool.t[n++] = ggml_new_tensor_2d(ctx, GGML_TYPE_F32, 8, 8);
    char * base = ggml_backend_buffer_get_base(pool.buffer[1]);
    ggml_backend_tensor_alloc(pool.buffer[1], pool.t[26], base);
    ggml_backend_tensor_alloc(pool.buffer[1], pool.t[27], base + 1024);
    pool.t[n++] = ggml_view_1d(ctx, pool.t[26], 4, 16);
    pool.t[n++] = ggml_mul_mat(ctx, pool.t[27], pool.t[26]);
    pool.t[n++] = ggml_add(mem, pool.t[0], pool.t[0]);
    pool.t[n++] = ggml_unary(ctx, pool.t[10], GGML_UNARY_OP_GELU);
    pool.t[n - 1]->op_params[0] = 99;
    ggml_set_param(mem, pool.t[1]);
}

static void make_graphs(void) {
    struct ggml_context * mem = pool.ctx[2];
    pool.g[0] = ggml_new_graph_custom(mem, 16, false);
    pool.g[1] = ggml_new_graph_custom(mem, 16, true);
    pool.g[2] = ggml_new_graph_custom(pool.ctx[1], 64, false); // empty
    ggml_build_forward_expand(pool.g[0], ggml_relu(mem, ggml_mul_mat(mem, pool.t[1], pool.t[0])));
    ggml_build_forward_expand(pool.g[1], ggml_sum(mem, ggml_mul_mat(mem, pool.t[1], pool.t[0])));
    pool.g[3] = ggml_new_graph_custom(pool.ctx[0], 1, false);
    ggml_build_forward_expand(pool.g[3], ggml_mul(pool.ctx[0], pool.t[26], pool.t[26]));
    pool.g[4] = ggml_new_graph_custom(pool.ctx[0], 0, true);
    ggml_build_forward_expand(pool.g[4], ggml_sqr(pool.ctx[0], pool.t[12]));
    pool.part = ggml_graph_view(pool.g[0], 0, 1);
    pool.hollow = (struct ggml_cgraph){ .size = 1, .n_nodes = 1, .nodes = pool.no_node };
    pool.negative = (struct ggml_cgraph){ .size = -1, .n_nodes = -5, .n_leafs = -7 };
    pool.g[5] = &pool.part;
    pool.g[6] = &pool.hollow;
    pool.g[7] = &pool.negative;
}

static enum ggml_status first_memory(void * context, const struct ggml_tensor * t, struct gb_nodes_place * place) {
    place->memory = t == context;
    return GGML_STATUS_SUCCESS;
}

// Loads a program with one graph, y = relu(x).
static ggml_program_t make_program(void) {
    char path[] = "/tmp/gb_abuse_XXXXXX";
    const char *input = "x", *output = "y";
    const int32_t node = 0;
    struct ggml_context * ctx = ggml_init((struct ggml_init_params){ 0, NULL, false });
    struct gguf_context * file = gguf_init_empty();
    struct ggml_tensor * x = ggml_new_tensor_1d(ctx, GGML_TYPE_F32, 4);
    struct ggml_tensor * y = ggml_relu(ctx, x);
    gb_nodes_bytes message = { 0 };
    gb_nodes_write(&y, 1, true, first_memory, x, &message);
    struct ggml_tensor * graph = ggml_new_tensor_1d(ctx, GGML_TYPE_I8, (int64_t) message.n);
    memcpy(ggml_set_name(graph, "program.graph.0")->data, message.data, message.n);
    gguf_set_val_u32(file, "program.version", 1);
    gguf_set_val_u32(file, "program.graphs", 1);
    gguf_set_arr_str(file, "program.graph.0.inputs", &input, 1);
    gguf_set_arr_str(file, "program.graph.0.outputs", &output, 1);
    gguf_set_arr_data(file, "program.graph.0.output_nodes", GGUF_TYPE_INT32, &node, 1);
    gguf_add_tensor(file, graph);
    const int fd = mkstemp(path);
    gguf_write_to_file(file, path, false);
    ggml_program_t program = ggml_program_load(path, NULL);
    close(fd);
    unlink(path);
    gb_vec_free(&message);
    gguf_free(file);
    ggml_free(ctx);
    return program;
}

static void make_allocators(void) {
    pool.tallocr[0] = ggml_tallocr_new(bytes2, BYTES, 32);
    pool.tallocr[1] = ggml_tallocr_new_measure(32);
    pool.tallocr[2] = ggml_tallocr_new_from_backend(pool.backend[0], 4096);
    pool.tallocr[3] = ggml_tallocr_new_from_backend(pool.backend[1], 4096);
    pool.tallocr[4] = ggml_tallocr_new_measure_from_backend(pool.backend[1]);
    pool.gallocr[0] = ggml_gallocr_new();
    pool.gallocr[1] = ggml_gallocr_new();
    for (size_t i = 0; i < GB_ARRAY_LEN(pool.today); i++) {
        pool.today[i] = ggml_today_gallocr_new(ggml_backend_get_default_buffer_type(pool.backend[i]));
    }
    pool.allocr[0] = ggml_allocr_new_measure(32);
    pool.allocr[1] = ggml_allocr_new_from_backend(pool.backend[0], 4096);
    pool.allocr[2] = ggml_allocr_new_from_backend(pool.backend[1], 4096);
    ggml_backend_t both[] = { pool.backend[1], pool.backend[0] };
    pool.sched[0] = ggml_backend_sched_new(&both[1], NULL, 1, 16);
    pool.sched[1] = ggml_backend_sched_new(both, NULL, 2, 16);
    pool.sched[2] = ggml_backend_sched_new(both, NULL, 2, 0);
    for (size_t i = 0; i < GB_ARRAY_LEN(pool.event); i++) {
        pool.event[i] = ggml_backend_event_new(pool.backend[i]);
    }
}

static bool pool_make(void) {
    memset(&pool, 0, sizeof(pool));
    memset(long_text, 'y', sizeof(long_text) - 1);
    pool.fixed_memory = aligned_alloc(64, 1 << 20);
    pool.ctx[0] = ggml_init((struct ggml_init_params){ 0, NULL, true });
    pool.ctx[1] = ggml_init((struct ggml_init_params){ 1 << 16, NULL, true });
    pool.ctx[2] = ggml_init((struct ggml_init_params){ 1 << 20, pool.fixed_memory, false });
    pool.ctx[3] = pool.ctx[0];
    pool.backend[0] = ggml_backend_cpu_init();
    pool.backend[1] = ggml_backend_reg_init_backend_from_str("SIM:mem=1M,max=256k,threads=1");
    pool.backend[2] = &pool.hookless;
    pool.backend[3] = pool.backend[0];
    pool.buft[0] = ggml_backend_cpu_buffer_type();
    pool.buft[1] = ggml_backend_get_default_buffer_type(pool.backend[1]);
    pool.buft[2] = &pool.hookless_buft;
    pool.buft[3] = pool.buft[0];
    pool.buffer[0] = ggml_backend_alloc_buffer(pool.backend[0], 4096);
    pool.buffer[1] = ggml_backend_alloc_buffer(pool.backend[1], 4096);
    pool.buffer[2] = ggml_backend_cpu_buffer_from_ptr(bytes, BYTES);
    pool.buffer[3] =
        ggml_backend_buffer_init(&pool.hookless_buft, (struct ggml_backend_buffer_i){ .get_name = NULL }, NULL, 64);
    ggml_backend_buffer_t parts[] = { ggml_backend_alloc_buffer(pool.backend[0], 64),
        ggml_backend_alloc_buffer(pool.backend[1], 64) };
    pool.buffer[4] = ggml_backend_multi_buffer_alloc_buffer(parts, 2);
    pool.buffer[5] = ggml_backend_alloc_buffer(pool.backend[0], 0);
    pool.gguf[0] = gguf_init_empty();
    pool.gguf[1] = gguf_init_empty();
    pool.profile[0] = ggml_profile_new(40);
    pool.program[0] = make_program();
    pool.set[0] = ggml_hash_set_new(50);
    pool.set[2] = (struct ggml_hash_set){ 17, NULL };
    if (pool.fixed_memory == NULL || pool.backend[1] == NULL || pool.buffer[4] == NULL || pool.gguf[1] == NULL) {
        return false;
    }
    make_tensors();
    make_graphs();
    make_allocators();
    return pool.sched[2] != NULL && pool.tallocr[4] != NULL && pool.program[0] != NULL;
}

static void pool_free(void) {
    for (size_t i = 0; i < GB_ARRAY_LEN(pool.event); i++) {
        ggml_backend_event_free(pool.event[i]);
    }
    ggml_profile_use(NULL);
    ggml_profile_free(pool.profile[0]);
    ggml_program_free(pool.program[0]);
    for (size_t i = 0; i < GB_ARRAY_LEN(pool.sched); i++) {
        ggml_backend_sched_free(pool.sched[i]);
    }
    for (size_t i = 0; i < GB_ARRAY_LEN(pool.tallocr); i++) {
        ggml_tallocr_free(pool.tallocr[i]);
    }
    for (size_t i = 0; i < GB_ARRAY_LEN(pool.allocr); i++) {
        ggml_allocr_free(pool.allocr[i]);
    }
    for (size_t i = 0; i < GB_ARRAY_LEN(pool.today); i++) {
        ggml_today_gallocr_free(pool.today[i]);
    }
    for (size_t i = 0; i < GB_ARRAY_LEN(pool.gallocr); i++) {
        ggml_gallocr_free(pool.gallocr[i]);
    }
    opt_state = (struct ggml_opt_context){ 0 };
    gguf_free(pool.gguf[0]);
    gguf_free(pool.gguf[1]);
    for (size_t i = 0; i < 3; i++) {
        ggml_free(pool.ctx[i]);
    }
    for (size_t i = 0; i < GB_ARRAY_LEN(pool.buffer); i++) {
        ggml_backend_buffer_free(pool.buffer[i]);
    }
    ggml_backend_free(pool.backend[0]);
    ggml_backend_free(pool.backend[1]);
    ggml_hash_set_free(pool.set[0]);
    free(pool.fixed_memory);
    memset(&pool, 0, sizeof(pool));
}

// ----------------------------------------------------------------------------------------------------------- the calls

static const char * call_text; // for debuggers

#define BEGIN(call) (n_pointers = 0, call_text = #call, ggml_clear_error())

#define CALL(call) \
    BEGIN(call);   \
    (void) (call);

#define OWN(free_it, call) \
    BEGIN(call);           \
    free_it(call);

#define TENSOR(call) \
    BEGIN(call);     \
    keep(call);

// A builder's result. NULL requires an error.
static void keep(struct ggml_tensor * t) {
    if (t == NULL) {
        CHECK_MSG(ggml_last_status() != GGML_STATUS_SUCCESS && ggml_last_error()[0] != '\0', "%s: NULL and no error",
            call_text);
        return;
    }
    CHECK_MSG(ggml_type_size(t->type) > 0, "%s: made a tensor of type %d", call_text, (int) t->type);
    for (int d = 0; d < GGML_MAX_DIMS; d++) {
        CHECK_MSG(t->ne[d] >= 0, "%s: made a tensor of %lld elements", call_text, (long long) t->ne[d]);
    }
    pool.t[N_FIXED + any(N_TENSORS - N_FIXED)] = t;
}

static void call_all_once(void) {
#include "abuse.def"
}

// Makes all objects anew, because calls leave tensors that refer to freed memory.
static void round_of_calls(void) {
    const int64_t before = gb_test_live_allocs();
    if (pool_make()) {
        call_all_once();
    } else {
        CHECK(!"the objects were made");
    }
    pool_free();
    gb_cpu_pools_trim(); // threads that ggml_graph_compute keeps
    CHECK_INT(gb_test_live_allocs(), before);
}

static void null_in_turn(void) {
    (void) ggml_backend_cuda_load(); // a build with CUDA keeps the record of the attempt
    wild = false;
    for (null_at = -1; null_at < 8; null_at++) {
        round_of_calls();
    }
    null_at = -1;
}

static void anything(void) {
    const char * runs = getenv("GGML_TEST_FUZZ_RUNS");
    wild = true;
    for (int i = 0, n = runs ? atoi(runs) : 60; i < n; i++) {
        test_seed = (uint64_t) i * 7919 + 1;
        round_of_calls();
    }
}

// ------------------------------------------------------------------------------------------------------------- by hand

static bool pool_ready(void) {
    wild = false;
    null_at = -1;
    if (!pool_make()) {
        pool_free();
        return false;
    }
    return true;
}

static int quiet(void) { // hides output to stdout
    fflush(stdout);
    const int old = dup(STDOUT_FILENO), null = open("/dev/null", O_WRONLY);
    if (null >= 0) {
        dup2(null, STDOUT_FILENO);
        close(null);
    }
    return old;
}

static void loud(int old) {
    fflush(stdout);
    dup2(old, STDOUT_FILENO);
    close(old);
}

static void traits(void) {
    struct ggml_cpu_trait trait;
    for (int i = -2; i < ggml_cpu_trait_count() + 2; i++) {
        const bool known = i >= 0 && i < ggml_cpu_trait_count();
        CHECK_INT(ggml_cpu_get_trait(i, NULL, &trait) == GGML_STATUS_SUCCESS, known);
        CHECK(ggml_cpu_get_trait(i, "", &trait) != GGML_STATUS_SUCCESS);
        CHECK(ggml_cpu_get_trait(i, "scalar", NULL) != GGML_STATUS_SUCCESS);
    }
    ggml_clear_error();
}

static void printing(void) {
    REQUIRE(pool_ready());
    const int out = quiet();
    ggml_print_object(NULL);
    ggml_print_object(&(struct ggml_object){ .type = (enum ggml_object_type) 77 });
    ggml_print_objects(NULL);
    ggml_print_objects(pool.ctx[0]); // with tensors of unknown type and op
    ggml_print_objects(pool.ctx[2]);
    ggml_graph_print(NULL);
    for (int i = 0; i < N_GRAPHS; i++) {
        ggml_graph_print(pool.g[i]);
    }
    loud(out);
    pool_free();
}

static int n_logged;

static void failing_log(enum ggml_log_level level, const char * text, void * data) {
    (void) level, (void) text, (void) data;
    n_logged++;
    ggml_new_tensor_1d(NULL, GGML_TYPE_F32, 1); // fails in turn
    ggml_backend_free(NULL);
    ggml_clear_error();
}

// A failing call inside the callback does not change the current error, and does not recurse
// without end.
static void log_callback_that_fails(void) {
    ggml_log_set(failing_log, NULL);
    n_logged = 0;
    CHECK(gguf_set_val_u8(NULL, "x", 1) == GGML_STATUS_INVALID_ARGUMENT);
    CHECK_INT(n_logged, 1);
    CHECK_INT(ggml_last_status(), GGML_STATUS_INVALID_ARGUMENT);
    CHECK(strstr(ggml_last_error(), "gguf_set_val_u8") != NULL);
    ggml_log_set(NULL, NULL);
    ggml_log_set(ggml_log_discard, NULL);
    ggml_clear_error();
}

static void contexts(void) {
    const struct ggml_init_params params[] = {
        { SIZE_MAX, NULL, false },
        { SIZE_MAX - 63, NULL, true },
        { (size_t) 1 << 50, NULL, false },
        { 0, bytes, false },
        { 1, bytes, false },
        { 15, bytes + 1, false },
        { BYTES - 1, bytes + 1, true },
        { BYTES, bytes, false },
        { SIZE_MAX / 2, NULL, false },
        { 0, NULL, false },
    };
    for (size_t i = 0; i < GB_ARRAY_LEN(params); i++) {
        ggml_clear_error();
        struct ggml_context * ctx = ggml_init(params[i]);
        CHECK_MSG(ctx != NULL || ggml_last_status() != GGML_STATUS_SUCCESS, "parameters %zu: NULL and no error", i);
        if (ctx != NULL) { // whose memory ends
            for (int k = 0; k < 300 && ggml_new_tensor_1d(ctx, GGML_TYPE_F32, 1) != NULL; k++) {
            }
            ggml_new_graph(ctx);
            ggml_new_graph_custom(ctx, SIZE_MAX, true);
            ggml_new_graph_custom(ctx, INT_MAX, true);
            ggml_new_tensor_1d(ctx, GGML_TYPE_F32, INT64_MAX / 8);
        }
        ggml_free(ctx);
    }
    ggml_free(NULL);
}

enum { N_FILE_NAMES = 6 };

static char file_dir[256], file_pipe[300];

static char * join(char * to, size_t size, const char * name) {
    snprintf(to, size, "%.255s/%s", file_dir, name);
    return to;
}

// Only names below the test's own directory, so that a fault of the library cannot damage other
// files.
static bool make_file_names(const char * names[N_FILE_NAMES]) {
    static char absent[300], too_long[700], slash[300];
    char zeros[300];
    const char * tmp = getenv("TMPDIR");
    snprintf(file_dir, sizeof(file_dir), "%.200s/test_abuse.XXXXXX", tmp && tmp[0] ? tmp : "/tmp");
    if (mkdtemp(file_dir) == NULL) {
        return false;
    }
    snprintf(zeros, sizeof(zeros), "%0280d", 0); // may exceed the length of a path
    names[0] = NULL;
    names[1] = file_dir;
    names[2] = join(file_pipe, sizeof(file_pipe), "pipe");
    names[3] = join(absent, sizeof(absent), "absent/x");
    names[4] = join(too_long, sizeof(too_long), zeros);
    names[5] = join(slash, sizeof(slash), "");
    return mkfifo(file_pipe, 0600) == 0;
}

static void files(void) {
    const char * file_names[N_FILE_NAMES];
    REQUIRE(make_file_names(file_names));
    REQUIRE(pool_ready());
    gguf_set_val_str(pool.gguf[0], "key", "value");
    for (int i = 0; i < N_FIXED; i++) {
        gguf_add_tensor(pool.gguf[0], pool.t[i]); // some have no data, some are on the device, some are invalid
    }
    for (int f = 0; f < N_FILE_NAMES; f++) {
        const char * name = file_names[f];
        for (int only_meta = 0; only_meta < 2; only_meta++) {
            gguf_write_to_file(pool.gguf[0], name, only_meta == 1);
            gguf_write_to_file(NULL, name, only_meta == 1);
            struct ggml_context * ctx = NULL;
            struct gguf_context * in =
                gguf_init_from_file(name, (struct gguf_init_params){ only_meta == 1, only_meta ? &ctx : NULL });
            CHECK_MSG(in == NULL && ctx == NULL, "read a model from %s", name ? name : "NULL");
            gguf_free(in);
        }
        for (int g = 0; g < N_GRAPHS; g++) {
            ggml_graph_export(pool.g[g], name);
            if (f != 2) { // opening a pipe for writing waits for a reader
                ggml_graph_dump_dot(pool.g[g], NULL, name);
                ggml_graph_dump_dot(pool.g[g], pool.g[(g + 1) % N_GRAPHS], name);
            }
        }
        ggml_graph_export(NULL, name);
        ggml_graph_dump_dot(NULL, NULL, name);
        struct ggml_context *data = NULL, *eval_ctx = NULL;
        CHECK(ggml_graph_import(name, &data, &eval_ctx) == NULL && data == NULL && eval_ctx == NULL);
        CHECK(ggml_graph_import(name, NULL, NULL) == NULL);
        CHECK(ggml_graph_import(name, &data, NULL) == NULL);
    }
    for (int i = 1; i < N_FILE_NAMES; i++) { // including names that a write must not create
        CHECK_INT(gguf_write_to_file(pool.gguf[1], file_names[i], false), GGML_STATUS_IO_ERROR);
    }
    struct stat info; // has its content, and no other file beside it
    CHECK(stat(file_pipe, &info) == 0 && S_ISFIFO(info.st_mode));
    CHECK(unlink(file_pipe) == 0 && rmdir(file_dir) == 0);
    gguf_free(NULL);
    pool_free();
}

static void texts(void) {
    REQUIRE(pool_ready());
    CHECK(ggml_format_name(NULL, "%d", 1) == NULL);
    const char * volatile no_format = NULL;
    CHECK(ggml_format_name(pool.t[0], no_format) == NULL);
    ggml_format_name(pool.t[0], "%s", long_text);
    CHECK_INT(strlen(ggml_get_name(pool.t[0])), GGML_MAX_NAME - 1);
    ggml_report_error(GGML_STATUS_FAILED, no_format);
    ggml_report_error(GGML_STATUS_FAILED, "%s", long_text);
    CHECK(strlen(ggml_last_error()) > 100);
    CHECK_STR(ggml_status_to_string((enum ggml_status) 1000), "UNKNOWN");
    pool_free();
}

static struct ggml_backend * GGML_CALL no_backend(const char * params, void * data) {
    (void) params, (void) data;
    return NULL;
}

static void registry(void) {
    CHECK(ggml_backend_register(NULL, no_backend, NULL, NULL) != GGML_STATUS_SUCCESS);
    CHECK(ggml_backend_register("", no_backend, NULL, NULL) != GGML_STATUS_SUCCESS);
    CHECK(ggml_backend_register("a:b", no_backend, NULL, NULL) != GGML_STATUS_SUCCESS);
    CHECK(ggml_backend_register("cPu", no_backend, NULL, NULL) != GGML_STATUS_SUCCESS);
    CHECK(ggml_backend_register("hollow", NULL, NULL, NULL) != GGML_STATUS_SUCCESS);
    CHECK(ggml_backend_register("hollow", no_backend, NULL, NULL) == GGML_STATUS_SUCCESS);
    CHECK(ggml_backend_register("HOLLOW", no_backend, NULL, NULL) != GGML_STATUS_SUCCESS);
    CHECK(ggml_backend_reg_init_backend_from_str("hollow:x") == NULL);
    CHECK(ggml_backend_reg_get_default_buffer_type(ggml_backend_reg_find_by_name("hollow")) == NULL);
    CHECK(ggml_backend_reg_alloc_buffer(ggml_backend_reg_find_by_name("hollow"), 16) == NULL);
    memset(long_text, 'y', sizeof(long_text) - 1);
    CHECK(ggml_backend_register(long_text, no_backend, NULL, NULL) == GGML_STATUS_SUCCESS);
    CHECK(ggml_backend_reg_init_backend_from_str("none") == NULL); // the message lists the names
}

static void buffers(void) {
    REQUIRE(pool_ready());
    const struct ggml_backend_buffer_i none = { .get_name = NULL };
    CHECK(ggml_backend_buffer_init(NULL, none, NULL, 1) == NULL);
    ggml_backend_buffer_t list[] = { pool.buffer[0], NULL, pool.buffer[0], pool.buffer[3] };
    CHECK(ggml_backend_multi_buffer_alloc_buffer(NULL, 1) == NULL);
    CHECK(ggml_backend_multi_buffer_alloc_buffer(list, 0) == NULL);
    CHECK(ggml_backend_multi_buffer_alloc_buffer(list, 2) == NULL);
    list[1] = pool.buffer[1];
    CHECK(ggml_backend_multi_buffer_alloc_buffer(list, 3) == NULL); // would be freed twice
    CHECK(ggml_backend_multi_buffer_set_usage(pool.buffer[0], GGML_BACKEND_BUFFER_USAGE_WEIGHTS) !=
          GGML_STATUS_SUCCESS);
    struct ggml_backend_file_fill fills[N_FIXED] = { { .tensor = NULL } };
    for (int i = 0; i < N_FIXED; i++) {
        CHECK(ggml_backend_fill_from_files(&fills[i], 1) != GGML_STATUS_SUCCESS);
        CHECK(ggml_backend_keep_file(&fills[i]) != GGML_STATUS_SUCCESS);
        CHECK(strstr(ggml_last_error(), "ggml_backend_keep_file") != NULL);
        fills[i] = (struct ggml_backend_file_fill){ pool.t[i], 0, 16, "file", 0, long_text, { 0 }, true, true };
        ggml_backend_fill_from_files(&fills[i], 1);
        ggml_backend_keep_file(&fills[i]);
        fills[i].offset = SIZE_MAX;
        CHECK(ggml_backend_fill_from_files(&fills[i], 1) != GGML_STATUS_SUCCESS);
    }
    ggml_backend_fill_from_files(fills, N_FIXED);
    CHECK(ggml_backend_fill_from_files(NULL, 1) != GGML_STATUS_SUCCESS);
    CHECK(ggml_backend_keep_file(NULL) != GGML_STATUS_SUCCESS);
    ggml_backend_buffer_free(NULL);
    ggml_backend_free(NULL);
    ggml_hash_set_free((struct ggml_hash_set){ 0, NULL });
    ggml_hash_set_free((struct ggml_hash_set){ 5, NULL });
    ggml_backend_graph_copy_free((struct ggml_backend_graph_copy){ NULL, NULL, NULL, NULL });
    pool_free();
}

static void whole_contexts(void) {
    for (int i = 0; i < 2; i++) {
        REQUIRE(pool_ready());
        CHECK(ggml_backend_alloc_ctx_tensors(NULL, pool.backend[i]) == NULL);
        CHECK(ggml_backend_alloc_ctx_tensors(pool.ctx[0], NULL) == NULL);
        CHECK(ggml_backend_alloc_ctx_tensors(pool.ctx[0], pool.backend[i]) == NULL); // has absurd tensors
        CHECK(pool.t[10]->data == NULL && pool.t[10]->buffer == NULL);
        CHECK(ggml_backend_alloc_ctx_tensors_from_buft(NULL, pool.buft[i]) == NULL);
        CHECK(ggml_backend_alloc_ctx_tensors_from_buft(pool.ctx[0], NULL) == NULL);
        CHECK(ggml_backend_alloc_ctx_tensors_from_buft(pool.ctx[0], &pool.hookless_buft) == NULL);
        pool_free();
    }
}

// A plan can be used only with the backend that made it.
static void foreign_plans(void) {
    REQUIRE(pool_ready());
    struct ggml_cgraph * graph = pool.g[0];
    const ggml_backend_t other = ggml_backend_cpu_init();
    struct ggml_backend planless = *pool.backend[0];
    planless.iface.graph_plan_create = NULL;
    ggml_backend_t owners[] = { pool.backend[0], &planless, pool.backend[0] };
    ggml_backend_t others[] = { pool.backend[1], pool.backend[0], &planless };
    for (int i = 0; i < 3; i++) {
        ggml_backend_graph_plan_t plan = ggml_backend_graph_plan_create(owners[i], graph);
        REQUIRE(plan != NULL);
        CHECK_INT(ggml_backend_graph_plan_compute(others[i], plan), GGML_STATUS_INVALID_ARGUMENT);
        ggml_clear_error();
        ggml_backend_graph_plan_free(others[i], plan); // the call was refused
        CHECK_INT(ggml_last_status(), GGML_STATUS_INVALID_ARGUMENT);
        CHECK_INT(ggml_backend_graph_plan_compute(NULL, plan), GGML_STATUS_INVALID_ARGUMENT);
        CHECK_INT(ggml_backend_graph_plan_compute(owners[i], NULL), GGML_STATUS_INVALID_ARGUMENT);
        ggml_backend_graph_plan_free(owners[i], NULL);
        ggml_backend_graph_plan_free(NULL, plan);
        CHECK_INT(ggml_backend_graph_plan_compute(owners[i], plan), GGML_STATUS_SUCCESS);
        ggml_backend_graph_plan_free(owners[i], plan);
    }
    for (int b = 0; b < 4; b++) {
        for (int g = 0; g < N_GRAPHS; g++) {
            ggml_backend_graph_plan_t plan = ggml_backend_graph_plan_create(pool.backend[b], pool.g[g]);
            if (plan != NULL) {
                ggml_backend_graph_plan_compute(pool.backend[b], plan);
                ggml_backend_graph_plan_free(pool.backend[b], plan);
            }
            CHECK(ggml_backend_graph_plan_create(NULL, pool.g[g]) == NULL);
            struct ggml_backend_graph_copy copy = ggml_backend_graph_copy(pool.backend[b], pool.g[g]);
            ggml_backend_graph_copy_free(copy);
            CHECK(ggml_backend_graph_copy(NULL, pool.g[g]).graph == NULL);
        }
        CHECK(ggml_backend_graph_plan_create(pool.backend[b], NULL) == NULL);
        CHECK(ggml_backend_graph_copy(pool.backend[b], NULL).graph == NULL);
    }
    ggml_backend_free(other);
    pool_free();
}

static bool abort_at_once(void * data) {
    (void) data;
    return true;
}

static void schedulers(void) {
    REQUIRE(pool_ready());
    ggml_backend_t sim_cpu[] = { pool.backend[1], pool.backend[0] };
    ggml_backend_t with_null[] = { pool.backend[1], NULL };
    ggml_backend_t twice[] = { pool.backend[0], pool.backend[0] };
    ggml_backend_t hollow[] = { &pool.hookless, pool.backend[0] };
    ggml_backend_buffer_type_t bufts[] = { pool.buft[0], pool.buft[1] };  // in the wrong order
    ggml_backend_buffer_type_t no_bufts[] = { NULL, &pool.hookless_buft };
    CHECK(ggml_backend_sched_new(NULL, NULL, 1, 1) == NULL);
    CHECK(ggml_backend_sched_new(sim_cpu, NULL, 0, 1) == NULL);
    CHECK(ggml_backend_sched_new(sim_cpu, NULL, -1, 1) == NULL);
    CHECK(ggml_backend_sched_new(sim_cpu, NULL, INT_MIN, 1) == NULL);
    CHECK(ggml_backend_sched_new(with_null, NULL, 2, 1) == NULL);
    const struct {
        ggml_backend_t * backends;
        ggml_backend_buffer_type_t * bufts;
        size_t size;
    } cases[] = {
        { twice, NULL, 1 },
        { hollow, NULL, 1 },
        { sim_cpu, bufts, 1 },
        { sim_cpu, no_bufts, 1 },
        { sim_cpu, NULL, SIZE_MAX },
        { sim_cpu, NULL, SIZE_MAX / 16 },
        { sim_cpu, NULL, (size_t) 1 << 40 },
    };
    for (size_t i = 0; i < GB_ARRAY_LEN(cases); i++) {
        make_graphs(); // refer to memory of a freed scheduler
        ggml_clear_error();
        ggml_backend_sched_t sched = ggml_backend_sched_new(cases[i].backends, cases[i].bufts, 2, cases[i].size);
        CHECK_MSG(sched != NULL || ggml_last_status() != GGML_STATUS_SUCCESS, "case %zu: NULL and no error", i);
        for (int g = 0; g < N_GRAPHS && sched != NULL; g++) {
            ggml_backend_sched_reserve(sched, pool.g[g]);
            ggml_backend_sched_graph_compute(sched, pool.g[g]);
            ggml_backend_sched_reset(sched);
        }
        ggml_backend_sched_free(sched);
    }
    make_graphs();
    ggml_backend_sched_set_eval_callback(NULL, eval, NULL);
    ggml_backend_sched_set_eval_callback(pool.sched[1], eval, NULL);
    ggml_backend_sched_graph_compute(pool.sched[1], pool.g[0]);
    ggml_backend_sched_set_eval_callback(pool.sched[1], NULL, NULL);
    CHECK(ggml_backend_cpu_set_abort_callback(NULL, abort_at_once, NULL) != GGML_STATUS_SUCCESS);
    CHECK(ggml_backend_cpu_set_abort_callback(pool.backend[1], abort_at_once, NULL) != GGML_STATUS_SUCCESS);
    CHECK(ggml_backend_cpu_set_abort_callback(&pool.hookless, abort_at_once, NULL) != GGML_STATUS_SUCCESS);
    CHECK(ggml_backend_cpu_set_abort_callback(pool.backend[0], abort_at_once, NULL) == GGML_STATUS_SUCCESS);
    CHECK(!ggml_backend_graph_compute(pool.backend[0], pool.g[0]));
    CHECK_INT(ggml_last_status(), GGML_STATUS_ABORTED);
    CHECK(ggml_backend_cpu_set_abort_callback(pool.backend[0], NULL, NULL) == GGML_STATUS_SUCCESS);
    ggml_backend_sched_free(NULL);
    pool_free();
}

static void nothing_to_free(void) {
    ggml_allocr_free(NULL);
    ggml_tallocr_free(NULL);
    ggml_gallocr_free(NULL);
    ggml_quantize_free();
    ggml_quantize_init(GGML_TYPE_Q4_0);
    ggml_quantize_free();
    ggml_quantize_free();
    const int err = dup(STDERR_FILENO), null = open("/dev/null", O_WRONLY);
    dup2(null, STDERR_FILENO);
    ggml_print_backtrace();
    dup2(err, STDERR_FILENO);
    close(err);
    close(null);
}

TEST_MAIN(TEST(null_in_turn), TEST(anything), TEST(traits), TEST(printing), TEST(log_callback_that_fails),
    TEST(contexts), TEST(files), TEST(texts), TEST(registry), TEST(buffers), TEST(whole_contexts), TEST(foreign_plans),
    TEST(schedulers), TEST(nothing_to_free))
