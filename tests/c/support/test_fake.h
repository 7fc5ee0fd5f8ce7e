// test_fake.h - a backend whose fields determine what it supports and when its hooks fail. It
// counts calls.
//
// Its memory is ordinary memory. `host` says whether the library sees it as host memory.
// Single-threaded.
#ifndef GB_TESTS_TEST_FAKE_H
#define GB_TESTS_TEST_FAKE_H

#include "backend/backend.h"
#include "base/mem.h"
#include "test.h"

struct fake {
    struct ggml_backend_buffer_type buft; // first, because hooks cast their buft to the fake
    struct ggml_backend backend;
    size_t alignment, max_size, extra; // extra: bytes that a tensor needs beyond its own
    bool host;
    bool copies_in, copies_out; // cpy_tensor and cpy_tensor_to copy
    int fail_init;              // countdown: the n-th init_tensor fails
    int fail_get, fail_copy;    // countdowns of other hooks
    int n_buffers, n_init, n_free_tensor, n_reset, n_set, n_get, n_copy_in, n_copy_out, n_clear, n_sync, n_compute,
        n_async;
    size_t largest_get;
    const struct ggml_tensor * freed[1000]; // by free_tensor
};

static inline struct fake * fake_of(ggml_backend_buffer_t buffer) { return (struct fake *) buffer->buft; }

static inline bool fake_fails(int * countdown) { return *countdown > 0 && --*countdown == 0; }

static inline const char * fake_buft_name(ggml_backend_buffer_type_t buft) {
    return buft->context ? buft->context : "FAKE";
}

static inline const char * fake_buffer_name(ggml_backend_buffer_t buffer) { return fake_buft_name(buffer->buft); }

static inline void fake_free_buffer(ggml_backend_buffer_t buffer) {
    fake_of(buffer)->n_buffers--;
    free(buffer->context);
}

static inline void * fake_base(ggml_backend_buffer_t buffer) { return buffer->context; }

static inline void fake_init_tensor(ggml_backend_buffer_t buffer, struct ggml_tensor * tensor) {
    fake_of(buffer)->n_init++;
    if (fake_fails(&fake_of(buffer)->fail_init)) {
        ggml_report_error(GGML_STATUS_DEVICE_ERROR, "fake: cannot set up '%s'", tensor->name);
    }
}

static inline void fake_set(ggml_backend_buffer_t buffer, struct ggml_tensor * tensor, const void * data, size_t offset,
    size_t size) {
    fake_of(buffer)->n_set++;
    memcpy((char *) tensor->data + offset, data, size);
}

static inline void fake_get(ggml_backend_buffer_t buffer, const struct ggml_tensor * tensor, void * data, size_t offset,
    size_t size) {
    struct fake * f = fake_of(buffer);
    f->n_get++;
    f->largest_get = GB_MAX(f->largest_get, size);
    if (fake_fails(&f->fail_get)) {
        ggml_report_error(GGML_STATUS_DEVICE_ERROR, "fake: cannot read '%s'", tensor->name);
        return;
    }
    memcpy(data, (const char *) tensor->data + offset, size);
}

static inline bool fake_copy(ggml_backend_buffer_t buffer, int * count, bool can, const struct ggml_tensor * src,
    struct ggml_tensor * dst) {
    ++*count;
    if (fake_fails(&fake_of(buffer)->fail_copy)) {
        ggml_report_error(GGML_STATUS_DEVICE_ERROR, "fake: cannot copy '%s'", src->name);
        return false;
    }
    if (can) {
        memcpy(dst->data, src->data, ggml_nbytes(dst));
    }
    return can;
}

static inline bool fake_copy_in(ggml_backend_buffer_t buffer, const struct ggml_tensor * src,
    struct ggml_tensor * dst) {
    CHECK(gb_tensor_buffer(dst) == buffer); // the hook of each side
    return fake_copy(buffer, &fake_of(buffer)->n_copy_in, fake_of(buffer)->copies_in, src, dst);
}

static inline bool fake_copy_out(ggml_backend_buffer_t buffer, const struct ggml_tensor * src,
    struct ggml_tensor * dst) {
    CHECK(gb_tensor_buffer(src) == buffer);
    return fake_copy(buffer, &fake_of(buffer)->n_copy_out, fake_of(buffer)->copies_out, src, dst);
}

static inline void fake_clear(ggml_backend_buffer_t buffer, uint8_t value) {
    fake_of(buffer)->n_clear++;
    memset(buffer->context, value, buffer->size);
}

static inline void fake_reset(ggml_backend_buffer_t buffer) { fake_of(buffer)->n_reset++; }

static inline void fake_free_tensor(ggml_backend_buffer_t buffer, struct ggml_tensor * tensor) {
    struct fake * f = fake_of(buffer);
    if (f->n_free_tensor < (int) GB_ARRAY_LEN(f->freed)) {
        f->freed[f->n_free_tensor++] = tensor;
    }
}

static inline ggml_backend_buffer_t fake_alloc(ggml_backend_buffer_type_t buft, size_t size) {
    struct fake * f = (struct fake *) buft;
    if (size > (size_t) 1 << 40) {
        return NULL; // without a report
    }
    const struct ggml_backend_buffer_i iface = { fake_buffer_name, fake_free_buffer, fake_base, fake_init_tensor,
        fake_set, fake_get, fake_copy_in, fake_clear, fake_reset, fake_free_tensor, fake_copy_out, NULL, NULL, NULL };
    void * memory = aligned_alloc(4096, (size + 4095) / 4096 * 4096 + 4096);
    const ggml_backend_buffer_t buffer = ggml_backend_buffer_init(buft, iface, memory, size);
    if (buffer == NULL) {
        free(memory);
        return NULL;
    }
    f->n_buffers++;
    return buffer;
}

static inline size_t fake_alignment(ggml_backend_buffer_type_t buft) { return ((struct fake *) buft)->alignment; }

static inline size_t fake_max_size(ggml_backend_buffer_type_t buft) { return ((struct fake *) buft)->max_size; }

static inline size_t fake_alloc_size(ggml_backend_buffer_type_t buft, const struct ggml_tensor * tensor) {
    return ggml_nbytes(tensor) + ((struct fake *) buft)->extra;
}

static inline bool fake_is_host(ggml_backend_buffer_type_t buft) { return ((struct fake *) buft)->host; }

static inline bool fake_supports_backend(ggml_backend_buffer_type_t buft, ggml_backend_t backend) {
    return backend->context == buft;
}

// --------------------------------------------------------------------------------------------------------- its backend

static inline struct fake * fake_device(ggml_backend_t backend) { return backend->context; }

static inline const char * fake_name(ggml_backend_t backend) { return fake_buft_name(&fake_device(backend)->buft); }

static inline ggml_backend_buffer_type_t fake_default_buft(ggml_backend_t backend) {
    return &fake_device(backend)->buft;
}

static inline void fake_sync(ggml_backend_t backend) { fake_device(backend)->n_sync++; }

static inline bool fake_compute(ggml_backend_t backend, struct ggml_cgraph * graph) {
    fake_device(backend)->n_compute++;
    return graph->n_nodes != 13; // fails without a report
}

static inline bool fake_supports_op(ggml_backend_t backend, const struct ggml_tensor * op) {
    (void) backend;
    return op->op == GGML_OP_ADD;
}

static inline void fake_new(struct fake * f) {
    *f = (struct fake) {
        .buft = { { fake_buft_name, fake_alloc, fake_alignment, fake_max_size, fake_alloc_size, fake_supports_backend,
                      fake_is_host },
            NULL },
        .alignment = 32,
        .max_size = SIZE_MAX,
    };
    f->backend = (struct ggml_backend) { .iface = { .get_name = fake_name,
                                             .get_default_buffer_type = fake_default_buft,
                                             .synchronize = fake_sync,
                                             .graph_compute = fake_compute,
                                             .supports_op = fake_supports_op },
        .context = f };
}

#endif // GB_TESTS_TEST_FAKE_H
