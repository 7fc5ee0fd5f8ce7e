// registry.c - backends that can be made by name. Only this file and cuda.c, which loads the CUDA
// module, name concrete backends.
//
// The built-in backends are a constant table and come first (CPU is entry 0). Backends that
// programs register follow in a list that only grows, so an index and a name stay valid for ever.
// The lock guards the list alone: init functions run without it and may use the registry themselves.
#include <stdio.h>
#include <string.h>

#include "backend/backend.h"
#include "base/mem.h"
#include "base/thread.h"
#include "base/vec.h"
#include "cpu/cpu.h"
#include "sim/sim.h"

static const struct {
    const char * name;
    ggml_backend_init_fn init;
    ggml_backend_buffer_type_t (*GGML_CALL default_buffer_type)(void);
} builtin[] = {
    { "CPU", gb_cpu_reg_init, ggml_backend_cpu_buffer_type },
    { "SIM", gb_sim_reg_init, gb_sim_default_buffer_type },
};

#define N_BUILTIN GB_ARRAY_LEN(builtin)

ggml_backend_buffer_type_t gb_plain_host_buffer_type(void) { return ggml_backend_cpu_buffer_type(); }

ggml_backend_buffer_t gb_plain_host_buffer(void * ptr, size_t size) {
    return ggml_backend_cpu_buffer_from_ptr(ptr, size);
}

// A backend that a program or a module registered.
struct entry {
    const char * name; // owned by the registry, never freed
    ggml_backend_init_fn init;
    ggml_backend_buffer_type_t default_buffer_type;
    void * user_data; // passed to `init`; owned by the registrant
};

static GB_VEC(struct entry) added; // guarded by GB_MUTEX_REGISTRY

// Functions whose names end in _locked need GB_MUTEX_REGISTRY held.
static size_t count_locked(void) { return N_BUILTIN + added.n; }

static const char * name_locked(size_t i) { return i < N_BUILTIN ? builtin[i].name : added.data[i - N_BUILTIN].name; }

static char lower(char c) { return c >= 'A' && c <= 'Z' ? (char) (c - 'A' + 'a') : c; }

// True if `name` equals the first n characters of `text`, except for upper and lower case.
static bool same_name(const char * name, const char * text, size_t n) {
    for (size_t i = 0; i < n; i++) {
        if (name[i] == '\0' || lower(name[i]) != lower(text[i])) {
            return false;
        }
    }
    return name[n] == '\0';
}

// The index of a backend. SIZE_MAX if there is none.
static size_t find_locked(const char * text, size_t n) {
    for (size_t i = 0; i < count_locked(); i++) {
        if (same_name(name_locked(i), text, n)) {
            return i;
        }
    }
    return SIZE_MAX;
}

// Writes "CPU, SIM, ..." for messages; what does not fit is cut.
static void list_names(char * text, size_t size) {
    size_t used = 0;
    text[0] = '\0';
    gb_process_lock(GB_MUTEX_REGISTRY);
    for (size_t i = 0; i < count_locked() && used < size; i++) {
        const int n = snprintf(text + used, size - used, "%s%s", i ? ", " : "", name_locked(i));
        used += n > 0 ? (size_t) n : 0;
    }
    gb_process_unlock(GB_MUTEX_REGISTRY);
}

// Copies entry i, without the buffer type if it is built in. False if it does not exist (reported
// for the function `func`).
static bool get_entry(const char * func, size_t i, struct entry * entry) {
    *entry = (struct entry){ NULL, NULL, NULL, NULL };
    gb_process_lock(GB_MUTEX_REGISTRY);
    const size_t n = count_locked();
    if (i < N_BUILTIN) {
        *entry = (struct entry){ builtin[i].name, builtin[i].init, NULL, NULL };
    } else if (i < n) {
        *entry = added.data[i - N_BUILTIN];
    }
    gb_process_unlock(GB_MUTEX_REGISTRY);
    GB_FAIL_IF_RETURNING(i >= n, false, GGML_STATUS_INVALID_ARGUMENT, "%s: argument 'i': %zu, there are %zu backends",
        func, i, n);
    return true;
}

// Copies the name before it takes the lock. When this returns, all threads see the entry.
enum ggml_status ggml_backend_register(const char * name, ggml_backend_init_fn init_fn,
    ggml_backend_buffer_type_t default_buffer_type, void * user_data) {
    GB_CHECK_ARG(name);
    GB_CHECK_ARG(init_fn);
    GB_FAIL_IF(name[0] == '\0' || strchr(name, ':') != NULL, GGML_STATUS_INVALID_ARGUMENT,
        "%s: argument 'name': \"%s\" must not be empty nor contain ':'", __func__, name);
    char * copy = gb_strdup(name);
    if (copy == NULL) {
        return GGML_STATUS_ALLOC_FAILED;
    }
    const struct entry entry = { copy, init_fn, default_buffer_type, user_data };
    gb_process_lock(GB_MUTEX_REGISTRY);
    const bool known = find_locked(name, strlen(name)) != SIZE_MAX;
    const bool room = !known && gb_vec_push(&added, entry);
    gb_process_unlock(GB_MUTEX_REGISTRY);
    if (!room) {
        gb_free(copy);
    }
    GB_FAIL_IF(known, GGML_STATUS_INVALID_ARGUMENT, "%s: argument 'name': a backend named \"%s\" is registered already",
        __func__, name);
    return room ? GGML_STATUS_SUCCESS : GGML_STATUS_ALLOC_FAILED;
}

size_t ggml_backend_reg_get_count(void) {
    gb_process_lock(GB_MUTEX_REGISTRY);
    const size_t n = count_locked();
    gb_process_unlock(GB_MUTEX_REGISTRY);
    return n;
}

size_t ggml_backend_reg_find_by_name(const char * name) {
    GB_CHECK_ARG_RETURNING(name, SIZE_MAX);
    gb_process_lock(GB_MUTEX_REGISTRY);
    const size_t i = find_locked(name, strlen(name));
    gb_process_unlock(GB_MUTEX_REGISTRY);
    return i;
}

const char * ggml_backend_reg_get_name(size_t i) {
    struct entry entry;
    return get_entry(__func__, i, &entry) ? entry.name : NULL;
}

ggml_backend_buffer_type_t ggml_backend_reg_get_default_buffer_type(size_t i) {
    struct entry entry;
    if (!get_entry(__func__, i, &entry)) {
        return NULL;
    }
    return i < N_BUILTIN ? builtin[i].default_buffer_type() : entry.default_buffer_type;
}

// A registered backend may have no buffer type of its own.
ggml_backend_buffer_t ggml_backend_reg_alloc_buffer(size_t i, size_t size) {
    const uint64_t before = gb_fail_count();
    const ggml_backend_buffer_type_t buft = ggml_backend_reg_get_default_buffer_type(i);
    if (buft == NULL && gb_fail_count() == before) {
        gb_fail(GGML_STATUS_UNSUPPORTED, "%s: backend %s has no default buffer type", __func__,
            ggml_backend_reg_get_name(i));
    }
    return buft ? ggml_backend_buft_alloc_buffer(buft, size) : NULL;
}

// Calls the init function without the lock. A failure without a message gets one.
ggml_backend_t ggml_backend_reg_init_backend(size_t i, const char * params) {
    struct entry entry;
    if (!get_entry(__func__, i, &entry)) {
        return NULL;
    }
    const uint64_t before = gb_fail_count();
    const ggml_backend_t backend = entry.init(params, entry.user_data);
    if (backend == NULL && gb_fail_count() == before) {
        gb_fail(GGML_STATUS_FAILED, "%s: backend %s could not be initialised with parameters \"%s\"", __func__,
            entry.name, params ? params : "");
    }
    return backend;
}

// "NAME" or "NAME:parameters". The message for an unknown name lists the known names.
ggml_backend_t ggml_backend_reg_init_backend_from_str(const char * backend_str) {
    GB_CHECK_ARG_RETURNING(backend_str, NULL);
    const char * colon = strchr(backend_str, ':');
    const size_t n = colon ? (size_t) (colon - backend_str) : strlen(backend_str);
    gb_process_lock(GB_MUTEX_REGISTRY);
    const size_t i = find_locked(backend_str, n);
    gb_process_unlock(GB_MUTEX_REGISTRY);
    if (i == SIZE_MAX) {
        char names[512];
        list_names(names, sizeof(names));
        gb_fail(GGML_STATUS_INVALID_ARGUMENT, "%s: there is no backend \"%.*s\", only %s", __func__,
            (int) GB_MIN(n, 256), backend_str, names);
        return NULL;
    }
    return ggml_backend_reg_init_backend(i, colon ? colon + 1 : NULL);
}
