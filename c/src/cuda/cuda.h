// cuda.h - what the files of the CUDA backend share. C++17; everything is hidden in the module.
//
//   device.cu    the devices, their memory pools, errors of calls          gb_cuda_device
//   buffer.cu    buffers on a device and in pinned host memory, copies     gb_cuda_buffer
//   backend.cu   the backend hooks: streams, events, registration          gb_cuda_backend
//   graph.cu     running graphs, node by node or as one                    gb_cuda_graphs
//   queue.cu     where work goes: a stream, a list, nowhere                gb_queue
//   replay.cu    lists of work as executable graphs                        gb_replay
//   keep.cu      what several nodes of a graph share, made once            gb_cuda_keep
//   index.cu     indices that kernels find to be out of range              gb_cuda_index
//   blas.cu      products by cuBLAS, where that is wished and there        gb_cuda_blas
//   tensor_map.cu     tensors as the copy engine of 9.0 sees them               gb_tensor_map
//   driver.h          functions of the driver, which is not linked              gb_cuda_driver_function
//   ops.cu            the table of operators, and what supports_op answers      gb_cuda_op
//   ops/<family>.cu   host code of operators: checks, sizes of grids, launches
//   kernels/*.cuh     device code, in the dialect of launch.cuh
//
// How to add an operator: a `supports` and a `run` function in the file of its family, and a line in that family's
// list. A new family also gets a line in ops/families.def. `supports` is the only judge: what it lets through, `run`
// computes, for any shape and stride.
//
// Invariant: work is only ever queued on the backend's queue, in the order of calls; nothing in ops/ waits for the
// device, allocates with cudaMalloc or copies from host memory that a caller owns (an executable graph would do it
// again). Scratch comes from gb_cuda_scratch, which is measured by a dry run: the same code with a queue that leads
// nowhere. So `run` and `fuse` choose by gb_cuda_data and by what the device is, never by what happened before.
#ifndef GB_CUDA_CUDA_H
#define GB_CUDA_CUDA_H

#include <cuda_runtime.h>

#include <mutex>

#include "ggml-backend-module.h"
#include "cuda/queue.h"

// ------------------------------------------------------------------------------------------------------------- devices

struct gb_cuda_device {
    int id;            // as the runtime counts
    int n_sm;          // multiprocessors
    int cc;            // compute capability, major * 10 + minor: after gb_cuda_check_code that of our code, if lower
    size_t shared_max; // bytes of shared memory a block may ask for
    size_t l2_bytes;
    size_t pitch_max; // of copies of rows, bytes
    bool dependent;   // a kernel may begin while the one before it ends (queue.h): known after gb_cuda_check_code
    bool hopper;      // there are kernels for it that only 9.0 has (hopper.cuh): known after gb_cuda_check_code
    char name[16];    // "CUDA0"
    char description[256];
    struct ggml_backend_buffer_type buft; // of its memory
};

int gb_cuda_device_count(void);             // 0: none, and gb_cuda_absent_reason says why
const char * gb_cuda_absent_reason(void);   // "" when there are devices
gb_cuda_device * gb_cuda_device_get(int i); // NULL when out of range

// Whether kernels of this build run on the device; else reported. Code for an older one, compiled again by the driver,
// lacks what came later.
bool gb_cuda_check_code(gb_cuda_device * device);
bool gb_hopper_is_there(void); // of the current device: its code has kernels of hopper.cuh, its driver tensor maps

// Makes the device the calling thread's own until the end of the scope. A device before it that nobody had used, as
// that of a new thread, does not come back: making it current would make a context there.
class gb_cuda_on_device {
  public:
    explicit gb_cuda_on_device(int id);
    ~gb_cuda_on_device();
    gb_cuda_on_device(const gb_cuda_on_device &) = delete;
    gb_cuda_on_device & operator=(const gb_cuda_on_device &) = delete;

  private:
    int previous;
};
// One that is in use already, or the first: for what belongs to no device, as pinned memory.
gb_cuda_on_device gb_cuda_on_any_device();

// Waits for everything that is queued on the device. Nobody of us may wait so while work of a library is captured
// there: who captures holds the lock.
cudaError_t gb_cuda_wait(const gb_cuda_device * device);
std::mutex & gb_cuda_wait_lock(const gb_cuda_device * device);

// Before the first copy between two devices: it goes directly where it can. Memory made later is mapped to both.
void gb_cuda_reach(const gb_cuda_device * a, const gb_cuda_device * b);
void gb_cuda_wait_for_users(const gb_cuda_device * device); // the device, and those that copies go to or come from
void gb_cuda_wait_for_all(void);                            // every device that is in use

// Memory of a device, from its pool: `capacity` >= size is what free needs. NULL on failure, reported with what is free
// and in all.
void * gb_cuda_pool_alloc(gb_cuda_device * device, size_t size, size_t * capacity);
// when nothing on the device uses it any more
void gb_cuda_pool_free(gb_cuda_device * device, void * memory, size_t capacity);
// gives kept memory back; how much that was
size_t gb_cuda_pool_trim(gb_cuda_device * device);

// Reports a failed call, "CUDA0: <call>: <what the runtime says>", and returns the status for it. Errors that leave the
// device usable are taken off the runtime's record.
enum ggml_status gb_cuda_report(const char * device, const char * call, cudaError_t error);
bool gb_cuda_is_sticky(cudaError_t error); // nothing works any more after it

// ------------------------------------------------------------------------------------------------------------ backends

struct gb_cuda_graphs; // executable graphs, graph.cu
struct gb_cuda_blas; // blas.h
struct gb_cuda_index_watch; // index.cu

struct gb_cuda_scratch_memory {
    char * memory; // owned; of a dry run: an address that nobody follows
    size_t capacity; // bytes
    size_t used; // by the operator that is being queued
    size_t peak; // the most that an operator used
};

struct gb_cuda_nodes;

// What is made of a tensor's data, and all that it depends on beside the data. Two are the same when source, offset and
// key are.
enum { GB_CUDA_KEY = 128 };
struct gb_cuda_recipe {
    const ggml_tensor * source; // the tensor that has the memory, not a view of it
    size_t offset; // of the view
    unsigned char key[GB_CUDA_KEY]; // what is not used is zeros
};

struct gb_cuda_kept { // in scratch memory
    gb_cuda_recipe recipe;
    void * memory;
    size_t end; // bytes of scratch memory up to its end
    int last; // the last node that is known to want it
    int written; // the last node that has a part in making its source, or -1
    bool made; // else its memory is kept for it
};

enum gb_cuda_run {
    GB_CUDA_RUN, // work is queued
    GB_CUDA_MEASURE, // a dry run of the graph as it stands: what it decides, the run decides
    GB_CUDA_PLAN, // a dry run of a graph whose tensors have no memory yet: the most of each way that it may go
};

struct gb_cuda_backend {
    gb_cuda_device * device;
    cudaStream_t stream; // owned
    gb_queue queue; // where operators queue their work: the stream, unless it is listed
    enum gb_cuda_run kind;
    bool fusing; // nodes of the graph at hand may be taken together
    bool failed; // a sticky error: everything is refused
    char reason[512];
    const ggml_tensor * node; // being queued, for messages; else NULL
    gb_cuda_scratch_memory scratch;
    const gb_cuda_nodes * nodes; // of the graph that is being queued, and the number of `node`
    int at;
    gb_array<gb_cuda_kept> kept;
    gb_array<int> readers; // next_reader of these nodes
    gb_cuda_graphs * graphs; // owned
    gb_cuda_blas * blas; // owned; NULL: not used
    gb_cuda_index_watch * index; // owned; NULL in a dry run
    char blas_text[256];
    // a point in time that both clocks know, for event_time
    cudaEvent_t base_event; // NULL: not made yet
    int64_t base_ns;
};

// The backend's state is good for more work; else reported.
bool gb_cuda_is_usable(gb_cuda_backend & b);

// Reports a failed call with the operator and its tensors, and marks the backend failed when the error is sticky.
enum ggml_status gb_cuda_fail(gb_cuda_backend & b, const char * call, cudaError_t error);

// Returns the enclosing function's status unless the call, of any kind that returns cudaError_t (GB_LAUNCH too),
// succeeds.
#define GB_CUDA_TRY(backend, call)                            \
    do {                                                      \
        const cudaError_t gb_error_ = (call);                 \
        if (gb_error_ != cudaSuccess) {                       \
            return gb_cuda_fail((backend), #call, gb_error_); \
        }                                                     \
    } while (0)

// Device memory for the operator that is being queued, 256-aligned, until it is queued completely: what the next one
// gets is the same memory, and the order of the stream keeps them apart. Several pieces of one operator are disjoint.
// NULL on failure, reported.
void * gb_cuda_scratch(gb_cuda_backend & b, size_t bytes);

// The same for what later nodes of the graph may want, too: rows made ready for products, tables of ROPE. *there: it
// is made already, else the caller makes it. It is kept while one of the next nodes has the same recipe (`of` gives
// that of a node whose src[1] is the source, false: it has none) and nobody writes to the source.
// A view of `t` has the data; key_size bytes from `key` on are copied into the recipe.
gb_cuda_recipe gb_cuda_recipe_of(const ggml_tensor * t, const void * key, size_t key_size);
void * gb_cuda_keep(gb_cuda_backend & b, const gb_cuda_recipe & recipe, size_t bytes,
    bool (*of)(const gb_cuda_backend & b, const ggml_tensor * node, gb_cuda_recipe * recipe), bool * there);
// The same for what nodes from the one that is being queued to `written` make the source of: memory is kept for it, and
// who fills it sets `made` (until the next call for a kept thing), else the first that wants it makes it. NULL: no node
// after them wants it.
gb_cuda_kept * gb_cuda_keep_ahead(gb_cuda_backend & b, const gb_cuda_recipe & recipe, size_t bytes,
    bool (*of)(const gb_cuda_backend & b, const ggml_tensor * node, gb_cuda_recipe * recipe), int written);
// next_reader of the nodes, into `memory`; false: no memory
bool gb_cuda_note_readers(gb_array<int> & memory, const gb_cuda_nodes & nodes);
// When nodes [i, i + n) are queued: forgets what nobody wants, or what was made of memory that they wrote.
void gb_cuda_kept_settle(gb_cuda_backend & b, const gb_cuda_nodes & nodes, int i, int n);
size_t gb_cuda_kept_end(const gb_cuda_backend & b); // bytes of scratch memory that kept things take

// Makes room for `size` bytes of it. When that takes another block, it waits for the stream and forgets
// executable graphs, which point to the old one. False on failure, reported; then there is none.
bool gb_cuda_scratch_reserve(gb_cuda_backend & b, size_t size);

// ------------------------------------------------------------------------------------------------------- wrong indices

enum { GB_CUDA_INDEX_TEXT = 160 };

// in pinned memory; a kernel writes it
struct gb_cuda_index_note {
    unsigned claimed; // 0: all indices were in range
    int complete; // the rest is there
    int id, which; // which: of MUL_MAT_ID, the column of ids; below 0: GET_ROWS, with ids of -which dimensions
    int64_t place[3], limit;
    const void * dst;
    char text[GB_CUDA_INDEX_TEXT]; // the operator and its result
};

struct gb_index_reader; // kernels/wrong_index.cuh

gb_cuda_index_watch * gb_cuda_index_new(const char * device); // NULL on failure, reported
void gb_cuda_index_free(gb_cuda_index_watch * watch);
gb_index_reader gb_cuda_index_reader(const gb_cuda_backend & b, const ggml_tensor * dst, int which, int64_t limit);
// when the queue is empty: false, once, reported: there was a wrong index
bool gb_cuda_index_check(gb_cuda_backend & b);
// "'x' f32 [4, 2]", as the library describes tensors
void gb_cuda_describe(char * text, size_t size, const ggml_tensor * t);
bool gb_cuda_index_is_noted(const gb_cuda_backend & b); // at any time
// When the device is idle: false, reported: what a kernel wrote there was made with a wrong index.
bool gb_cuda_index_check_memory(const char * device, const char * memory, size_t size);

// ----------------------------------------------------------------------------------------------------------- operators

struct gb_cuda_op {
    enum ggml_op op;
    // NULL: run computes it. Else why not, a static string: "type of src1", "rows that are not contiguous".
    const char * (*supports)(const gb_cuda_device & device, const ggml_tensor * dst);
    // Queues it. dst has elements; what `supports` refuses does not come here.
    enum ggml_status (*run)(gb_cuda_backend & b, ggml_tensor * dst);
    // Optional, tried before run, for the nodes [i, i + result): how many it queued together, 0: none, -1: failed. The
    // results of all of them are as if they had run one by one, those apart that nobody can look at
    // (ggml_backend_may_leave_out), and their memory may overlap: gb_cuda_overlap.
    int (*fuse)(gb_cuda_backend & b, const gb_cuda_nodes & nodes, int i);
};

struct gb_cuda_nodes { // of a graph that is being queued; views and empty ones are left out, all others are supported
    ggml_tensor * const * node;
    int n;
    const int * next_reader; // of each node: the next one whose src[1] lies in the same tensor, or n
};

// Where a tensor lies; of one that has no memory yet, an address aligned as its own will be.
char * gb_cuda_data(const ggml_tensor * t);
bool gb_cuda_overlap(const ggml_tensor * a, const ggml_tensor * b); // in memory

struct gb_cuda_family {
    const char * name;
    const gb_cuda_op * ops;
    int n_ops;
};

// At the end of ops/<family>.cu, with a row for each operator:
//     GB_CUDA_FAMILY_DEFINE(norm, { GGML_OP_NORM, norm_supports, norm_run, nullptr }, { ... })
#define GB_CUDA_FAMILY_DEFINE(family, ...)                                  \
    static const gb_cuda_op family##_ops[] = { __VA_ARGS__ };               \
    extern const gb_cuda_family gb_cuda_family_##family;                    \
    const gb_cuda_family gb_cuda_family_##family = { #family, family##_ops, \
        (int) (sizeof(family##_ops) / sizeof(family##_ops[0])) };

const gb_cuda_op * gb_cuda_op_get(enum ggml_op op); // NULL: there is none
const char * gb_cuda_unsupported_reason(const gb_cuda_device & d, const ggml_tensor * op); // NULL: supported
bool gb_cuda_is_view(enum ggml_op op); // nothing to compute

// -------------------------------------------------------------------------------------------------------------- graphs

gb_cuda_graphs * gb_cuda_graphs_new(void); // NULL: no memory
void gb_cuda_graphs_free(gb_cuda_graphs * graphs);
// executable ones; what they point to is about to go away
void gb_cuda_graphs_forget(gb_cuda_graphs * graphs);
enum ggml_status gb_cuda_graph_compute(gb_cuda_backend & b, const ggml_cgraph * graph);
// tensors need no memory yet
enum ggml_status gb_cuda_graph_work_size(const gb_cuda_backend & b, const ggml_cgraph * graph, size_t * size);

void gb_cuda_graphs_set(gb_cuda_graphs * graphs, bool on);

typedef struct ggml_backend_cuda_graph_stats gb_cuda_graph_stats;
gb_cuda_graph_stats gb_cuda_graphs_stats(const gb_cuda_graphs * graphs);

// ------------------------------------------------------------------------------------------------------------- buffers

ggml_backend_buffer_type_i gb_cuda_buffer_type_hooks(void);
gb_cuda_device * gb_cuda_device_of(const ggml_tensor * tensor); // NULL: not in memory of a CUDA device
bool gb_cuda_is_host(const ggml_tensor * tensor); // the host may follow its pointer

// Queues a copy between two tensors of the same layout on `stream` of the device; false, without an error: it would
// take too many pieces.
bool gb_cuda_copy_layout(const gb_cuda_device * device, const ggml_tensor * src, ggml_tensor * dst, cudaStream_t stream,
    cudaError_t * error);

ggml_backend_buffer_type_t gb_cuda_host_buffer_type(void);

// -------------------------------------------------------------------------------------------------------- registration

// CUDA0, CUDA1, ...; UNSUPPORTED, with the reason, when no device answers
enum ggml_status ggml_backend_cuda_register(void);
bool gb_cuda_is_backend(ggml_backend_t backend);

// Small things that ops need everywhere.
static inline int64_t gb_cuda_ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

#endif // GB_CUDA_CUDA_H
