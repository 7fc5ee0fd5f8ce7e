// test_queue.h - devices that share one kind of host memory. Each has a queue, and buffers do not
// wait. Results are right, and the thread sanitizer silent, only if the caller keeps the order of
// reads and writes between the queues.
#ifndef GB_TESTS_TEST_QUEUE_H
#define GB_TESTS_TEST_QUEUE_H

#include <pthread.h>

#include "base/thread.h"
#include "ggml-backend-impl.h"
#include "ggml-backend.h"
#include "test.h"

struct queue_work {
    struct queue_work * next;
    struct ggml_cgraph graph;
    struct ggml_tensor ** nodes;
};

struct queue_device {
    struct ggml_backend backend;
    char name[16];
    pthread_t thread;
    pthread_mutex_t mutex;
    pthread_cond_t changed;
    struct queue_work * first;
    struct queue_work ** last;
    bool busy, closing;
    unsigned random, max_delay_us;
    int n_graphs;
};

static void queue_run(struct queue_device * d, struct queue_work * work) {
    if (d->max_delay_us) {
        d->random = d->random * 1103515245u + 12345u;
        gb_sleep_us((d->random >> 8) % d->max_delay_us);
    }
    struct ggml_cplan plan = ggml_graph_plan(&work->graph, 1);
    plan.work_data = malloc(plan.work_size + 1);
    if (ggml_graph_compute(&work->graph, &plan) != GGML_STATUS_SUCCESS) {
        test_fail(__FILE__, __LINE__, "%s: %s", d->name, ggml_last_error());
    }
    free(plan.work_data);
    free(work->nodes);
    free(work);
}

static void * queue_main(void * arg) {
    struct queue_device * d = arg;
    pthread_mutex_lock(&d->mutex);
    while (!d->closing || d->first) {
        struct queue_work * work = d->first;
        if (work == NULL) {
            pthread_cond_wait(&d->changed, &d->mutex);
            continue;
        }
        d->first = work->next;
        d->last = d->first ? d->last : &d->first;
        d->busy = true;
        pthread_mutex_unlock(&d->mutex);
        queue_run(d, work);
        pthread_mutex_lock(&d->mutex);
        d->busy = false;
        pthread_cond_broadcast(&d->changed);
    }
    pthread_mutex_unlock(&d->mutex);
    return NULL;
}

static GGML_CALL bool queue_compute(ggml_backend_t backend, struct ggml_cgraph * cgraph) {
    struct queue_device * d = backend->context;
    struct queue_work * work = calloc(1, sizeof(*work));
    work->nodes = malloc((size_t) cgraph->n_nodes * sizeof(*work->nodes));
    memcpy(work->nodes, cgraph->nodes, (size_t) cgraph->n_nodes * sizeof(*work->nodes));
    work->graph.n_nodes = cgraph->n_nodes;
    work->graph.nodes = work->nodes;
    pthread_mutex_lock(&d->mutex);
    d->n_graphs++;
    *d->last = work;
    d->last = &work->next;
    pthread_cond_broadcast(&d->changed);
    pthread_mutex_unlock(&d->mutex);
    return true;
}

static GGML_CALL void queue_synchronize(ggml_backend_t backend) {
    struct queue_device * d = backend->context;
    pthread_mutex_lock(&d->mutex);
    while (d->first || d->busy) {
        pthread_cond_wait(&d->changed, &d->mutex);
    }
    pthread_mutex_unlock(&d->mutex);
}

static GGML_CALL void queue_free(ggml_backend_t backend) {
    struct queue_device * d = backend->context;
    pthread_mutex_lock(&d->mutex);
    d->closing = true;
    pthread_cond_broadcast(&d->changed);
    pthread_mutex_unlock(&d->mutex);
    pthread_join(d->thread, NULL);
    pthread_mutex_destroy(&d->mutex);
    pthread_cond_destroy(&d->changed);
    free(d);
}

static GGML_CALL const char * queue_name(ggml_backend_t backend) {
    return ((struct queue_device *) backend->context)->name;
}

static GGML_CALL bool queue_supports_op(ggml_backend_t backend, const struct ggml_tensor * op) {
    (void) backend;
    return op != NULL;
}

// ---- the memory ----

static GGML_CALL const char * shared_name(ggml_backend_buffer_type_t buft) {
    (void) buft;
    return "SHARED";
}

static GGML_CALL const char * shared_buffer_name(ggml_backend_buffer_t buffer) {
    (void) buffer;
    return "SHARED";
}

static GGML_CALL void shared_free(ggml_backend_buffer_t buffer) { free(buffer->context); }

static GGML_CALL void * shared_base(ggml_backend_buffer_t buffer) { return buffer->context; }

static GGML_CALL void shared_set(ggml_backend_buffer_t buffer, struct ggml_tensor * t, const void * data, size_t offset,
    size_t size) {
    (void) buffer;
    memcpy((char *) t->data + offset, data, size);
}

static GGML_CALL void shared_get(ggml_backend_buffer_t buffer, const struct ggml_tensor * t, void * data, size_t offset,
    size_t size) {
    (void) buffer;
    memcpy(data, (const char *) t->data + offset, size);
}

static GGML_CALL void shared_clear(ggml_backend_buffer_t buffer, uint8_t value) {
    memset(buffer->context, value, buffer->size);
}

static GGML_CALL ggml_backend_buffer_t shared_alloc(ggml_backend_buffer_type_t buft, size_t size) {
    const struct ggml_backend_buffer_i iface = { .get_name = shared_buffer_name,
        .free_buffer = shared_free,
        .get_base = shared_base,
        .set_tensor = shared_set,
        .get_tensor = shared_get,
        .clear = shared_clear };
    return ggml_backend_buffer_init(buft, iface, aligned_alloc(64, (size + 64) / 64 * 64), size);
}

static GGML_CALL size_t shared_alignment(ggml_backend_buffer_type_t buft) {
    (void) buft;
    return 64;
}

static GGML_CALL bool shared_supports(ggml_backend_buffer_type_t buft, ggml_backend_t backend) {
    (void) buft;
    return backend->iface.get_name == queue_name || ggml_backend_is_cpu(backend);
}

static GGML_CALL bool shared_is_host(ggml_backend_buffer_type_t buft) {
    (void) buft;
    return true;
}

static struct ggml_backend_buffer_type shared_buft = {
    { shared_name, shared_alloc, shared_alignment, NULL, NULL, shared_supports, shared_is_host }, NULL
};

static GGML_CALL ggml_backend_buffer_type_t queue_buft(ggml_backend_t backend) {
    (void) backend;
    return &shared_buft;
}

static inline ggml_backend_t queue_device_new(int i, unsigned max_delay_us) {
    struct queue_device * d = calloc(1, sizeof(*d));
    snprintf(d->name, sizeof(d->name), "Q%d", i);
    d->backend.iface = (struct ggml_backend_i) { .get_name = queue_name,
        .free = queue_free,
        .get_default_buffer_type = queue_buft,
        .synchronize = queue_synchronize,
        .graph_compute = queue_compute,
        .supports_op = queue_supports_op };
    d->backend.context = d;
    d->random = (unsigned) i + 1;
    d->max_delay_us = max_delay_us;
    d->last = &d->first;
    pthread_mutex_init(&d->mutex, NULL);
    pthread_cond_init(&d->changed, NULL);
    pthread_create(&d->thread, NULL, queue_main, d);
    return &d->backend;
}

#endif // GB_TESTS_TEST_QUEUE_H
