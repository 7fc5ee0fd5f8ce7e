// test_dependent.cu - kernels that may begin while the previous one ends (queue.h). In the emulation some of their
// blocks do begin early, and a kernel that does not wait as launch.cuh requires fails.
//
// Each step adds one to the numbers of the step before, in reverse order, so a block that is too early has wrong ones.
#include "kernel_test.h"
#include "cuda/replay.h"

enum { THREADS = 64, BLOCKS = 5, N = THREADS * BLOCKS };

GB_KERNEL add_one(const int * x, int * y) {
    gb_wait_for_earlier();
    const int i = (int) (blockIdx.x * blockDim.x + threadIdx.x);
    y[i] = x[N - 1 - i] + 1;
}

// Sets up shared memory first, as kernels may.
GB_KERNEL add_one_slowly(const int * x, int * y) {
    GB_SHARED(int, mine, THREADS);
    mine[threadIdx.x] = 1;
    gb_wait_for_earlier();
    gb_sync_block();
    const int i = (int) (blockIdx.x * blockDim.x + threadIdx.x);
    y[i] = x[N - 1 - i] + mine[THREADS - 1 - threadIdx.x];
}

// Prefetches what the previous kernel may still write.
GB_KERNEL add_one_prefetched(const int * x, int * y) {
    gb_prefetch(x + N - 1 - (int) (blockIdx.x * blockDim.x + threadIdx.x));
    gb_wait_for_earlier();
    const int i = (int) (blockIdx.x * blockDim.x + threadIdx.x);
    y[i] = x[N - 1 - i] + 1;
}

static bool may_be_dependent() {
    int device = 0;
    cudaDeviceProp p;
    cudaFuncAttributes a;
    return cudaGetDevice(&device) == cudaSuccess && cudaGetDeviceProperties(&p, device) == cudaSuccess &&
           cudaFuncGetAttributes(&a, (const void *) add_one) == cudaSuccess && p.major >= 9 && a.ptxVersion >= 90;
}

#define DEPENDENT_OR_SKIP()                                \
    do {                                                   \
        CUDA_OR_SKIP();                                    \
        if (!may_be_dependent()) {                         \
            SKIP("no code for compute capability 9.0 on"); \
        }                                                  \
    } while (0)

static gb_queue dependent_queue() { return { stream(), nullptr, false, true }; }

static std::vector<int> numbers(int first) {
    std::vector<int> v(N);
    for (int i = 0; i < N; i++) {
        v[(size_t) i] = first + 7 * i;
    }
    return v;
}

static std::vector<int> reversed(std::vector<int> v, int steps) {
    for (int s = 0; s < steps; s++) {
        v = std::vector<int>(v.rbegin(), v.rend());
        for (int & x : v) {
            x++;
        }
    }
    return v;
}

static void check_numbers(const char * what, const device_memory & m, const std::vector<int> & expected) {
    const std::vector<int> got = read_back<int>(m);
    for (int i = 0; i < N; i++) {
        CHECK_MSG(got[(size_t) i] == expected[(size_t) i], "%s: element %d: %d, not %d", what, i, got[(size_t) i],
            expected[(size_t) i]);
    }
}

static void seed([[maybe_unused]] uint64_t s) {
#ifdef GB_CUDA_EMULATED
    gb_emu_set_seed(s);
#endif
}

enum { STEPS = 12 };

// From a to b and back; the result is in a. Copies and zeros between wait for all before them.
static void queue_steps(const gb_queue & q, const device_memory & a, const device_memory & b, bool with_others) {
    for (int i = 0; i < STEPS; i += 2) {
        if (i % 4 == 0) {
            CHECK_INT(GB_LAUNCH(add_one, BLOCKS, THREADS, 0, q, (const int *) a.p, (int *) b.p), cudaSuccess);
        } else {
            CHECK_INT(GB_LAUNCH(add_one_prefetched, BLOCKS, THREADS, 0, q, (const int *) a.p, (int *) b.p),
                cudaSuccess);
        }
        if (with_others && i == 4) {
            CHECK_INT(gb_queue_copy(q, a.p, b.p, sizeof(int) * N), cudaSuccess);
            CHECK_INT(gb_queue_clear(q, b.p, sizeof(int) * N), cudaSuccess);
            CHECK_INT(gb_queue_copy(q, b.p, a.p, sizeof(int) * N), cudaSuccess);
        }
        CHECK_INT(GB_LAUNCH(add_one_slowly, BLOCKS, THREADS, 0, q, (const int *) b.p, (int *) a.p), cudaSuccess);
    }
}

static void kernels_keep_their_order() {
    DEPENDENT_OR_SKIP();
    device_memory a(N * sizeof(int)), b(N * sizeof(int));
    for (uint64_t s = 1; s <= 20; s++) {
        seed(s);
        write(a, numbers((int) s));
        const gb_queue q = dependent_queue();
        queue_steps(q, a, b, s % 2 == 0);
        check_numbers("queued", a, reversed(numbers((int) s), STEPS));
    }
}

// An executable graph that gets other parameters keeps its edges.
static void graphs_keep_the_order() {
    DEPENDENT_OR_SKIP();
    device_memory a(N * sizeof(int)), b(N * sizeof(int)), c(N * sizeof(int));
    for (uint64_t s = 1; s <= 20; s++) {
        seed(s);
        gb_task_list list, other;
        gb_replay replay;
        gb_queue q = dependent_queue();
        bool dependent = true;
        write(a, numbers((int) s));
        q.list = &list;
        queue_steps(q, a, b, s % 2 == 0);
        CHECK(gb_replay_make(replay, list, dependent) && dependent);
        CHECK_INT(cudaGraphLaunch(replay.exec, stream()), cudaSuccess);
        CHECK_INT(cudaGraphLaunch(replay.exec, stream()), cudaSuccess);
        check_numbers("replayed", a, reversed(numbers((int) s), 2 * STEPS));
        q.list = &other;
        queue_steps(q, a, c, s % 2 == 0);
        CHECK(gb_replay_fits(replay, other) && gb_replay_update(replay, other));
        CHECK_INT(cudaGraphLaunch(replay.exec, stream()), cudaSuccess);
        check_numbers("updated", a, reversed(numbers((int) s), 3 * STEPS));
        gb_replay_free(replay);
        gb_task_list_free(list);
        gb_task_list_free(other);
    }
}

#ifdef GB_CUDA_EMULATED

// Only kernels that directly follow a kernel are launched as dependent.
static void early_launches_are_counted() {
    CUDA_OR_SKIP();
    device_memory a(N * sizeof(int)), b(N * sizeof(int));
    write(a, numbers(1));
    for (bool others : { false, true }) {
        const gb_emu_counts before = gb_emu_count();
        const gb_queue q = dependent_queue();
        queue_steps(q, a, b, others);
        CHECK_INT(cudaStreamSynchronize(stream()), cudaSuccess);
        CHECK_INT(gb_emu_count().dependent - before.dependent, STEPS - 1 - others);
        CHECK(gb_emu_count().early_blocks > before.early_blocks);
        gb_queue_settle(q);
        CHECK_INT(GB_LAUNCH(add_one, BLOCKS, THREADS, 0, q, (const int *) a.p, (int *) b.p), cudaSuccess);
        CHECK_INT(cudaStreamSynchronize(stream()), cudaSuccess);
        CHECK_INT(gb_emu_count().dependent - before.dependent, STEPS - 1 - others);
    }
}

// A driver without such edges: the graph has full ones.
static void edges_can_be_refused() {
    CUDA_OR_SKIP();
    device_memory a(N * sizeof(int)), b(N * sizeof(int));
    gb_task_list list;
    gb_replay replay;
    gb_queue q = dependent_queue();
    bool dependent = true;
    write(a, numbers(3));
    q.list = &list;
    queue_steps(q, a, b, true);
    gb_emu_fail("cudaGraphAddDependencies", 1, cudaErrorNotSupported);
    CHECK(gb_replay_make(replay, list, dependent) && !dependent);
    const uint64_t before = gb_emu_count().dependent;
    CHECK_INT(cudaGraphLaunch(replay.exec, stream()), cudaSuccess);
    check_numbers("with full edges", a, reversed(numbers(3), STEPS));
    CHECK_INT(gb_emu_count().dependent, before);
    gb_replay_free(replay);
    // Another error does not mean that edges are missing.
    queue_steps(q, a, b, false);
    dependent = true;
    gb_emu_fail("cudaGraphInstantiate", 0, cudaErrorMemoryAllocation);
    CHECK(!gb_replay_make(replay, list, dependent) && dependent);
    gb_replay_free(replay);
    gb_task_list_free(list);
}

// -------------------------------------------------------------------------------------- what the emulation must notice

GB_KERNEL never_waits(int * y) { y[threadIdx.x] = 1; }

GB_KERNEL returns_at_once(int *) {}

GB_KERNEL half_waits(int * y) {
    if (threadIdx.x >= 32) {
        return;
    }
    gb_wait_for_earlier();
    y[threadIdx.x] = 1;
}

GB_KERNEL reads_before(const int * x, int * y) {
    const int v = x[threadIdx.x];
    gb_wait_for_earlier();
    y[threadIdx.x] = v;
}

GB_KERNEL writes_before(int * y) {
    y[threadIdx.x] = 1;
    gb_wait_for_earlier();
}

GB_KERNEL prefetches_elsewhere(int * y) {
    const int local = 0;
    gb_prefetch(&local);
    gb_wait_for_earlier();
    y[threadIdx.x] = local;
}

GB_KERNEL copies_before(const int * x, int * y) {
    GB_SHARED(int, a, 4 * THREADS);
    gb_cp_async_16(a + 4 * threadIdx.x, x + 4 * threadIdx.x);
    gb_cp_async_commit();
    gb_wait_for_earlier();
    gb_cp_async_wait<0>();
    y[threadIdx.x] = a[4 * threadIdx.x];
}

// One thread has waited. The others continue after a barrier without a wait.
GB_KERNEL waits_for_others(const int * x, int * y) {
    if (threadIdx.x == 0) {
        gb_wait_for_earlier();
    }
    gb_sync_block();
    const int v = x[threadIdx.x];
    if (threadIdx.x != 0) {
        gb_wait_for_earlier();
    }
    y[threadIdx.x] = v;
}

GB_KERNEL waits_twice(int * y) {
    gb_wait_for_earlier();
    gb_wait_for_earlier();
    y[threadIdx.x] = 1;
}

static void mistakes_are_noticed() {
    CUDA_OR_SKIP();
    device_memory a(N * sizeof(int)), b(N * sizeof(int));
    const int * x = (const int *) a.p;
    int * y = (int *) b.p;
    fprintf(stderr, "(messages of the emulation follow, a line for each mistake and seed)\n");
    for (uint64_t s = 1; s <= 3; s++) {
        const auto expect_failure = [&](const char * what, auto launch) {
            seed(s);
            const gb_queue q = dependent_queue();
            CHECK_INT(GB_LAUNCH(add_one, BLOCKS, THREADS, 0, q, x, y), cudaSuccess);
            CHECK_INT(launch(q), cudaSuccess);
            CHECK_MSG(cudaStreamSynchronize(stream()) == cudaErrorLaunchFailure, "%s is not noticed", what);
            gb_emu_reset();
            const gb_queue alone = queue(); // after the reset a correct kernel runs
            CHECK_INT(GB_LAUNCH(add_one, BLOCKS, THREADS, 0, alone, x, y), cudaSuccess);
            CHECK_INT(cudaStreamSynchronize(stream()), cudaSuccess);
        };
        expect_failure("a kernel that never waits",
            [&](const gb_queue & q) { return GB_LAUNCH(never_waits, 1, THREADS, 0, q, y); });
        expect_failure("a kernel that does nothing",
            [&](const gb_queue & q) { return GB_LAUNCH(returns_at_once, 1, THREADS, 0, q, y); });
        expect_failure("a kernel of which half of the threads wait",
            [&](const gb_queue & q) { return GB_LAUNCH(half_waits, 1, THREADS, 0, q, y); });
        expect_failure("a kernel that reads first",
            [&](const gb_queue & q) { return GB_LAUNCH(reads_before, BLOCKS, THREADS, 0, q, x, y); });
        expect_failure("a kernel that writes first",
            [&](const gb_queue & q) { return GB_LAUNCH(writes_before, BLOCKS, THREADS, 0, q, y); });
        expect_failure("a kernel that prefetches no memory of the device",
            [&](const gb_queue & q) { return GB_LAUNCH(prefetches_elsewhere, 1, THREADS, 0, q, y); });
        expect_failure("a kernel that copies first",
            [&](const gb_queue & q) { return GB_LAUNCH(copies_before, 1, THREADS, 0, q, x, y); });
        expect_failure("a kernel whose threads wait for each other",
            [&](const gb_queue & q) { return GB_LAUNCH(waits_for_others, 1, THREADS, 0, q, x, y); });
        expect_failure("a kernel that waits twice",
            [&](const gb_queue & q) { return GB_LAUNCH(waits_twice, 1, THREADS, 0, q, y); });
    }
}

#    undef gridDim // structures of the runtime have them, too
#    undef blockDim

static cudaError_t add_edge(cudaGraph_t graph, cudaGraphNode_t from, cudaGraphNode_t to, int port, int type) {
    cudaGraphEdgeData edge = {};
    edge.from_port = (unsigned char) port;
    edge.type = (unsigned char) type;
    const cudaError_t error = cudaGraphAddDependencies(graph, &from, &to, &edge, 1);
    (void) cudaGetLastError();
    return error;
}

// Early edges go only from kernel to kernel, with the documented ports.
static void wrong_edges_are_refused() {
    CUDA_OR_SKIP();
    enum { FULL = cudaGraphDependencyTypeDefault, EARLY = cudaGraphDependencyTypeProgrammatic };
    device_memory a(N * sizeof(int)), b(N * sizeof(int));
    cudaGraph_t graph;
    cudaGraphNode_t first, second, copy, clear;
    const int * x = (const int *) a.p;
    int * y = (int *) b.p;
    void * values[] = { &x, &y };
    cudaKernelNodeParams kernel = {};
    cudaMemsetParams zeros = {};
    kernel.func = (void *) add_one;
    kernel.gridDim = BLOCKS;
    kernel.blockDim = THREADS;
    kernel.kernelParams = values;
    zeros.dst = b.p;
    zeros.elementSize = 4;
    zeros.width = N;
    zeros.height = 1;
    gb_know_kernel("add_one", add_one);
    CHECK_INT(cudaGraphCreate(&graph, 0), cudaSuccess);
    CHECK_INT(cudaGraphAddKernelNode(&first, graph, nullptr, 0, &kernel), cudaSuccess);
    CHECK_INT(cudaGraphAddKernelNode(&second, graph, nullptr, 0, &kernel), cudaSuccess);
    CHECK_INT(cudaGraphAddMemsetNode(&clear, graph, nullptr, 0, &zeros), cudaSuccess);
    CHECK_INT(cudaGraphAddMemcpyNode1D(&copy, graph, nullptr, 0, a.p, b.p, 16, cudaMemcpyDeviceToDevice), cudaSuccess);
    for (cudaGraphNode_t other : { copy, clear }) {
        CHECK_INT(add_edge(graph, first, other, cudaGraphKernelNodePortProgrammatic, EARLY), cudaErrorInvalidValue);
        CHECK_INT(add_edge(graph, other, second, cudaGraphKernelNodePortProgrammatic, EARLY), cudaErrorInvalidValue);
        CHECK_INT(add_edge(graph, first, other, cudaGraphKernelNodePortProgrammatic, FULL), cudaErrorInvalidValue);
        CHECK_INT(add_edge(graph, first, other, cudaGraphKernelNodePortDefault, FULL), cudaSuccess);
    }
    CHECK_INT(add_edge(graph, first, second, cudaGraphKernelNodePortDefault, EARLY), cudaErrorInvalidValue);
    CHECK_INT(add_edge(graph, first, second, cudaGraphKernelNodePortProgrammatic, EARLY), cudaSuccess);
    CHECK_INT(cudaGraphDestroy(graph), cudaSuccess);
}

// The attribute needs 9.0. A queue of another device never sets it.
static void older_devices_refuse_dependent_launches() {
    CUDA_OR_SKIP();
    device_memory a(N * sizeof(int)), b(N * sizeof(int));
    gb_emu_set_capability(8, 9);
    const gb_queue q = dependent_queue();
    CHECK_INT(GB_LAUNCH(add_one, BLOCKS, THREADS, 0, q, (const int *) a.p, (int *) b.p), cudaSuccess);
    CHECK_INT(GB_LAUNCH(add_one, BLOCKS, THREADS, 0, q, (const int *) a.p, (int *) b.p), cudaErrorNotSupported);
    gb_emu_set_capability(9, 0);
    gb_emu_reset();
    CHECK_INT(cudaStreamSynchronize(stream()), cudaSuccess);
}

#    define EMULATED_TESTS                                                                      \
    , TEST(early_launches_are_counted), TEST(edges_can_be_refused), TEST(mistakes_are_noticed), \
        TEST(wrong_edges_are_refused), TEST(older_devices_refuse_dependent_launches)
#else
#    define EMULATED_TESTS
#endif

TEST_MAIN(TEST(kernels_keep_their_order), TEST(graphs_keep_the_order) EMULATED_TESTS)
