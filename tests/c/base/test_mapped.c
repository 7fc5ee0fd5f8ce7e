// Mapped files that shrink: the call that reads one fails, in any thread, and in a child. SIGBUS of
// other origin is not handled.
#ifndef _GNU_SOURCE
#    define _GNU_SOURCE
#endif
#include "test.h"

#ifdef _WIN32
int main(void) {
    printf("skipped: Windows lets nobody shorten a mapped file\n");
    return 77;
}
#else

#    include <fcntl.h>
#    include <pthread.h>
#    include <signal.h>
#    include <sys/mman.h>
#    include <sys/stat.h>
#    include <sys/wait.h>
#    include <unistd.h>

#    include "base/mapped.h"
#    include "ggml-alloc.h"
#    include "ggml-backend.h"
#    include "gguf.h"

enum { ROWS = 256, COLUMNS = 1024, BYTES = ROWS * COLUMNS * 4 }; // of float32: 256 pages

struct file {
    char path[64];
    char * data;
};

static bool make_file(struct file * f, size_t size) {
    snprintf(f->path, sizeof(f->path), "/tmp/ggml_mapped_XXXXXX");
    const int fd = mkstemp(f->path);
    const float ones[256] = { [0 ... 255] = 1.0f };
    bool ok = fd >= 0;
    for (size_t done = 0; ok && done < size; done += sizeof(ones)) {
        ok = write(fd, ones, sizeof(ones)) == (ssize_t) sizeof(ones);
    }
    f->data = ok ? mmap(NULL, size, PROT_READ, MAP_PRIVATE, fd, 0) : MAP_FAILED;
    close(fd);
    return f->data != MAP_FAILED;
}

static void drop_file(struct file * f, size_t size) {
    munmap(f->data, size);
    unlink(f->path);
}

// w (ROWS, COLUMNS) in the file times ones.
struct product {
    ggml_backend_t backend;
    ggml_backend_buffer_t buffer, rest;
    struct ggml_context * ctx;
    struct ggml_cgraph * graph;
    struct ggml_tensor *w, *out;
};

static bool make_product(struct product * p, ggml_backend_t backend, char * data) {
    p->backend = backend;
    p->ctx = ggml_init((struct ggml_init_params){ 0, NULL, true });
    p->w = ggml_new_tensor_2d(p->ctx, GGML_TYPE_F32, COLUMNS, ROWS);
    p->buffer = ggml_backend_cpu_buffer_from_ptr(data, BYTES);
    ggml_backend_buffer_set_usage(p->buffer, GGML_BACKEND_BUFFER_USAGE_WEIGHTS);
    struct ggml_tensor * x = ggml_new_tensor_1d(p->ctx, GGML_TYPE_F32, COLUMNS);
    p->out = ggml_mul_mat(p->ctx, p->w, x);
    p->graph = ggml_new_graph(p->ctx);
    ggml_build_forward_expand(p->graph, p->out);
    if (ggml_backend_tensor_alloc(p->buffer, p->w, data) != GGML_STATUS_SUCCESS) {
        return false;
    }
    p->rest = ggml_backend_alloc_ctx_tensors(p->ctx, backend);
    static const float ones[COLUMNS] = { [0 ... COLUMNS - 1] = 1.0f };
    return p->rest && ggml_backend_tensor_set(x, ones, 0, sizeof(ones)) == GGML_STATUS_SUCCESS;
}

static void drop_product(struct product * p) {
    ggml_backend_buffer_free(p->rest);
    ggml_backend_buffer_free(p->buffer);
    ggml_free(p->ctx);
    ggml_backend_free(p->backend);
}

static void computing_on_a_file_that_shrinks(void) {
    for (int threads = 1; threads <= 4; threads += 3) {
        for (int small = 0; small < 2; small++) { // shrinks to one and a half pages, or by less than a page
            struct file f;
            struct product p;
            REQUIRE(make_file(&f, BYTES));
            struct gb_mapped * watch = gb_mapped_watch(f.data, BYTES, 0, false, f.path);
            ggml_backend_t cpu = ggml_backend_cpu_init();
            ggml_backend_cpu_set_n_threads(cpu, threads);
            REQUIRE(watch && make_product(&p, cpu, f.data));
            CHECK(ggml_backend_graph_compute(cpu, p.graph));
            CHECK(((const float *) p.out->data)[ROWS - 1] == COLUMNS);
            REQUIRE(truncate(f.path, small ? BYTES - 100 : 6000) == 0);
            for (int again = 0; again < 2; again++) {
                CHECK(!ggml_backend_graph_compute(cpu, p.graph));
                CHECK_ERROR(GGML_STATUS_IO_ERROR, "shrank");
            }
            if (!small) {  // the file grows again, but its bytes were lost
                REQUIRE(truncate(f.path, BYTES) == 0);
                CHECK(!ggml_backend_graph_compute(cpu, p.graph));
                CHECK_ERROR(GGML_STATUS_IO_ERROR, "lost");
            }
            drop_product(&p);
            gb_mapped_forget(watch);
            drop_file(&f, BYTES);
        }
    }
    CHECK(!gb_mapped_any());
}

static void reading_and_writing_tensors(void) {
    struct file f;
    struct product p;
    REQUIRE(make_file(&f, BYTES));
    struct gb_mapped * watch = gb_mapped_watch(f.data, BYTES, 0, false, f.path);
    ggml_backend_t sim = ggml_backend_reg_init_backend_from_str("SIM");
    REQUIRE(watch && make_product(&p, ggml_backend_cpu_init(), f.data));
    struct ggml_context * ctx = ggml_init((struct ggml_init_params){ 0, NULL, true });
    struct ggml_tensor * beyond = ggml_new_tensor_2d(ctx, GGML_TYPE_F32, COLUMNS, ROWS);
    ggml_backend_buffer_t there = ggml_backend_alloc_ctx_tensors(ctx, sim);
    char * to = malloc(BYTES);
    REQUIRE(there && to);
    CHECK_INT(ggml_backend_tensor_copy(p.w, beyond), GGML_STATUS_SUCCESS);
    REQUIRE(truncate(f.path, 100) == 0);
    CHECK_INT(ggml_backend_tensor_get(p.w, to, 0, BYTES), GGML_STATUS_IO_ERROR);
    CHECK_INT(ggml_backend_tensor_set(beyond, f.data, 0, BYTES), GGML_STATUS_IO_ERROR);
    CHECK_INT(ggml_backend_tensor_copy(p.w, beyond), GGML_STATUS_IO_ERROR);
    CHECK_INT(ggml_backend_tensor_set_async(sim, beyond, f.data, 0, BYTES), GGML_STATUS_IO_ERROR);
    CHECK_INT(ggml_backend_synchronize(sim), GGML_STATUS_SUCCESS);
    free(to);
    ggml_backend_buffer_free(there);
    ggml_free(ctx);
    ggml_backend_free(sim);
    drop_product(&p);
    gb_mapped_forget(watch);
    drop_file(&f, BYTES);
}

// The scheduler copies weights to another device, in its queue.
static void scheduler_copies(void) {
    struct file f;
    REQUIRE(make_file(&f, BYTES));
    struct gb_mapped * watch = gb_mapped_watch(f.data, BYTES, 0, false, f.path);
    ggml_backend_t both[] = { ggml_backend_reg_init_backend_from_str("SIM"), ggml_backend_cpu_init() };
    ggml_backend_sched_t sched = ggml_backend_sched_new(both, NULL, 2, 64);
    struct ggml_context * ctx = ggml_init((struct ggml_init_params){ 0, NULL, true });
    struct ggml_tensor * w = ggml_new_tensor_2d(ctx, GGML_TYPE_F32, COLUMNS, ROWS);
    ggml_backend_buffer_t buffer = ggml_backend_cpu_buffer_from_ptr(f.data, BYTES);
    REQUIRE(watch && sched && ggml_backend_tensor_alloc(buffer, w, f.data) == GGML_STATUS_SUCCESS);
    struct ggml_tensor * out = ggml_sqr(ctx, w);
    struct ggml_cgraph * graph = ggml_new_graph(ctx);
    ggml_build_forward_expand(graph, out);
    ggml_backend_sched_set_node_backend(sched, out, both[0]);
    CHECK_INT(ggml_backend_sched_graph_compute(sched, graph), GGML_STATUS_SUCCESS);
    REQUIRE(truncate(f.path, 5000) == 0);
    CHECK_INT(ggml_backend_sched_graph_compute(sched, graph), GGML_STATUS_IO_ERROR);
    CHECK_ERROR(GGML_STATUS_IO_ERROR, "shrank");
    ggml_backend_sched_free(sched);
    ggml_backend_buffer_free(buffer);
    ggml_free(ctx);
    ggml_backend_free(both[0]);
    ggml_backend_free(both[1]);
    gb_mapped_forget(watch);
    drop_file(&f, BYTES);
}

// Many threads read shrunk files at once, while other mappings are watched and forgotten.
struct reader {
    struct file file;
    pthread_t thread;
    atomic_bool go;
    int wrong;
};

static void * read_all(void * arg) {
    struct reader * r = arg;
    while (!atomic_load(&r->go)) {
    }
    for (int round = 0; round < 20; round++) {
        struct gb_mapped * extra = gb_mapped_watch(r, sizeof(*r), 0, false, NULL);
        volatile char sum = 0;
        gb_mapped_enter();
        for (int i = BYTES - 4096; i >= 0; i -= 4096) {
            sum = (char) (sum + r->file.data[i]);
        }
        gb_mapped_leave();
        r->wrong += gb_mapped_check_at("read_all", r->file.data) != GGML_STATUS_IO_ERROR;
        r->wrong += extra == NULL || gb_mapped_check_at("read_all", &r->wrong) != GGML_STATUS_SUCCESS;
        gb_mapped_forget(extra);
    }
    return NULL;
}

static void many_threads(void) {
    enum { N = 8 };
    static struct reader readers[N];
    struct gb_mapped *watches[N], *many[100];
    for (int i = 0; i < N; i++) {
        REQUIRE(make_file(&readers[i].file, BYTES));
        watches[i] = gb_mapped_watch(readers[i].file.data, BYTES, 0, false, NULL); // no path: only missing pages tell
        REQUIRE(watches[i] && truncate(readers[i].file.path, 4096) == 0);
        REQUIRE(pthread_create(&readers[i].thread, NULL, read_all, &readers[i]) == 0);
    }
    for (int i = 0; i < 100; i++) { // more than the static table can hold
        many[i] = gb_mapped_watch(&many[i], sizeof(many[i]), 0, false, NULL);
        CHECK(many[i] != NULL && gb_mapped_find(&many[i]) == many[i]);
    }
    for (int i = 0; i < N; i++) {
        atomic_store(&readers[i].go, true);
    }
    for (int i = 0; i < N; i++) {
        pthread_join(readers[i].thread, NULL);
        CHECK_INT(readers[i].wrong, 0);
        gb_mapped_forget(watches[i]);
        drop_file(&readers[i].file, BYTES);
    }
    for (int i = 0; i < 100; i++) {
        gb_mapped_forget(many[i]);
        CHECK(gb_mapped_find(&many[i]) == NULL);
    }
    CHECK(!gb_mapped_any());
}

// The status of a child that runs `body`.
static int status_of(void (*body)(struct file *), struct file * f) {
    fflush(NULL);
    const pid_t child = fork();
    if (child == 0) {
        body(f);
        _exit(0);
    }
    int status = -1;
    waitpid(child, &status, 0);
    return status;
}

static void by_itself(struct file * f) {
    volatile char c = f->data[BYTES - 1];
    (void) c;
}

static void guarded(struct file * f) {
    gb_mapped_enter();
    volatile char c = f->data[BYTES - 1];
    gb_mapped_leave();
    _exit(c == 0 && gb_mapped_check_at("guarded", f->data) == GGML_STATUS_IO_ERROR ? 3 : 4);
}

static void sent(struct file * f) {
    (void) f;
    gb_mapped_enter();
    kill(getpid(), SIGBUS);
    sleep(5);
}

static void another(struct file * f) { // an unwatched mapping, read by a thread inside gb_mapped_enter
    struct file other;
    if (make_file(&other, BYTES) && truncate(other.path, 0) == 0) {
        unlink(other.path);
        gb_mapped_enter();
        volatile char c = other.data[BYTES - 1];
        (void) c;
    }
    (void) f;
}

static void others_signals(void) {
    struct file f;
    REQUIRE(make_file(&f, BYTES));
    struct gb_mapped * watch = gb_mapped_watch(f.data, BYTES, 0, false, NULL);
    REQUIRE(watch && truncate(f.path, 0) == 0);
    const int good = status_of(guarded, &f);
    CHECK(WIFEXITED(good) && WEXITSTATUS(good) == 3); // also after a fork
    void (*const ends[])(struct file *) = { by_itself, sent, another };
    for (int i = 0; i < 3; i++) {
        const int status = status_of(ends[i], &f);
        // sanitizers exit
        CHECK_MSG(WIFSIGNALED(status) || (WIFEXITED(status) && WEXITSTATUS(status) != 0), "%d: status %x", i, status);
    }
    gb_mapped_forget(watch);
    drop_file(&f, BYTES);
}

static void reading_gguf(void) {
    struct gguf_context * ctx = gguf_init_empty();
    char path[] = "/tmp/ggml_mapped_XXXXXX";
    REQUIRE(ctx && close(mkstemp(path)) == 0);
    gguf_set_val_str(ctx, "general.name", "x");
    gguf_write_to_file(ctx, path, true);
    gguf_free(ctx);
    struct gguf_context * again = gguf_init_from_file(path, (struct gguf_init_params){ true, NULL });
    CHECK(again != NULL);
    gguf_free(again);
    CHECK(!gb_mapped_any());
    unlink(path);
}

TEST_MAIN(TEST(computing_on_a_file_that_shrinks), TEST(reading_and_writing_tensors), TEST(scheduler_copies),
    TEST(many_threads), TEST(others_signals), TEST(reading_gguf))

#endif
