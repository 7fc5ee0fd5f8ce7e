// module.c - loads backends from shared libraries. Each file is checked before its code runs,
// loaded once, and recorded.
//
// A module carries a descriptor (ggml-backend-module.h). It is found in the file by a magic text,
// in any file format. The system loads the file only if version and sizes agree. Only then does
// code of the module run: first its constructors, then its entry point, which gets the table of
// functions below. Modules are never unloaded, because backends, buffers and registry entries point
// into them.
//
// The list of records only grows, and records never change, so pointers to them stay valid.
// GB_MUTEX_MODULES guards the list. GB_MUTEX_LOADING serialises loads. The entry point of a module
// runs under GB_MUTEX_LOADING only, and may call everything except ggml_backend_load.
#include <string.h>

#include "backend/backend.h"
#include "base/file.h"
#include "base/library.h"
#include "base/mem.h"
#include "base/thread.h"
#include "base/vec.h"
#include "ggml-backend-module.h"

// ggml_report_error for modules, without variable arguments: the module makes the text.
static enum ggml_status report_error(enum ggml_status status, const char * message) {
    return gb_fail(status, "%s", message ? message : "");
}

// The functions that a module may call, in the order of ggml-backend-api.def. The module's side is made from the same
// list.
static const struct ggml_backend_api api = {
    sizeof(struct ggml_backend_api),
    GGML_BACKEND_MODULE_VERSION,
    report_error,
#define GGML_API_FUNC(returns, convention, name, parameters, arguments) name,
#define GGML_API_PROC(convention, name, parameters, arguments) name,
#include "ggml-backend-api.def"
#undef GGML_API_FUNC
#undef GGML_API_PROC
};

static GB_VEC(struct ggml_backend_load_record *) records; // guarded by GB_MUTEX_MODULES; owned, never freed
static _Thread_local bool in_load;  // this thread runs an entry point: a nested load would deadlock

// ---------------------------------------------------------------------------------------------------------- descriptor

// Compares in two steps, so that this library's own file does not contain the magic.
static bool is_magic(const uint8_t * p) {
    static const char text[sizeof(((struct ggml_backend_module_descriptor *) 0)->magic) - 1] =
        GGML_BACKEND_MODULE_MAGIC_TEXT;
    return p[0] == 0177 && memcmp(p + 1, text, sizeof(text)) == 0;
}

// Counts the descriptors in the file and copies the last one to `found`. A module has exactly one.
static int find_descriptor(const struct gb_file_map * file, struct ggml_backend_module_descriptor * found) {
    int n = 0;
    const uint8_t * p = file->data;
    const uint8_t * end = file->size >= sizeof(*found) ? p + (file->size - sizeof(*found)) + 1 : p;
    while (p < end && (p = memchr(p, 0177, (size_t) (end - p))) != NULL) {
        if (is_magic(p)) {
            memcpy(found, p, sizeof(*found));
            n++;
        }
        p++;
    }
    return n;
}

// Every size of the layout must be the same as in this library, except that the table of functions
// may be larger here than in the module.
static enum ggml_status check_layout(const char * path, const struct ggml_backend_module_layout * theirs) {
    static const struct ggml_backend_module_layout ours = GGML_BACKEND_MODULE_LAYOUT;
    static const char * const what[] = {
        "pointers",
        "struct ggml_backend_api",
        "struct ggml_tensor",
        "struct ggml_cgraph",
        "struct ggml_backend",
        "struct ggml_backend_i",
        "struct ggml_backend_buffer",
        "struct ggml_backend_buffer_i",
        "struct ggml_backend_buffer_type",
        "struct ggml_backend_buffer_type_i",
    };
    enum { API = 1, N = (int) GB_ARRAY_LEN(what) };
    uint32_t a[N], b[N];
    memcpy(a, theirs, sizeof(a));
    memcpy(b, &ours, sizeof(b));
    for (int i = 0; i < N; i++) {
        const bool fits = i == API ? a[i] <= b[i] : a[i] == b[i]; // the table may have grown since the module was built
        GB_FAIL_IF(!fits, GGML_STATUS_UNSUPPORTED,
            "ggml_backend_load: '%s': %s: %u bytes in the module, %u in the library: "
            "build the module against these headers",
            path, what[i], a[i], b[i]);
    }
    return GGML_STATUS_SUCCESS;
}

// Reads the descriptor of a file before any of its code runs. Fails unless the module was built for
// this library's interface.
static enum ggml_status check_file(const char * path, struct ggml_backend_module_descriptor * descriptor) {
    struct gb_file_map file;
    GB_TRY(gb_file_map_open(&file, path));
    const int n = find_descriptor(&file, descriptor);
    GB_TRY(gb_file_map_close(&file));
    GB_FAIL_IF(n != 1, GGML_STATUS_INVALID_ARGUMENT,
        "ggml_backend_load: '%s' is no backend module: it has %d module descriptors, not one "
        "(see ggml-backend-module.h)",
        path, n);
    descriptor->name[sizeof(descriptor->name) - 1] = '\0';
    GB_FAIL_IF(descriptor->version != GGML_BACKEND_MODULE_VERSION, GGML_STATUS_UNSUPPORTED,
        "ggml_backend_load: '%s': module '%s' has version %u of the module interface, this library has %d", path,
        descriptor->name, descriptor->version, GGML_BACKEND_MODULE_VERSION);
    return check_layout(path, &descriptor->layout);
}

// ------------------------------------------------------------------------------------------------------------- records

// True if the file is loaded. Loading it again succeeds without effect. A failed load may be
// repeated.
static bool is_loaded(const char * path) {
    bool found = false;
    gb_process_lock(GB_MUTEX_MODULES);
    for (size_t i = 0; i < records.n && !found; i++) {
        found = records.data[i]->status == GGML_STATUS_SUCCESS && strcmp(records.data[i]->path, path) == 0;
    }
    gb_process_unlock(GB_MUTEX_MODULES);
    return found;
}

// True if two attempts had the same outcome.
static bool is_same(const struct ggml_backend_load_record * a, const struct ggml_backend_load_record * b) {
    return a->status == b->status && strcmp(a->path, b->path) == 0 && strcmp(a->message, b->message) == 0;
}

static void free_record(struct ggml_backend_load_record * r) {
    if (r != NULL) {
        gb_free((char *) r->path);
        gb_free((char *) r->name);
        gb_free((char *) r->message);
        gb_free(r);
    }
}

// A deep copy. NULL if memory runs out.
static struct ggml_backend_load_record * copy_record(const struct ggml_backend_load_record * from) {
    struct ggml_backend_load_record * r = GB_NEW(struct ggml_backend_load_record);
    if (r == NULL) {
        return NULL;
    }
    *r = *from;
    r->path = gb_strdup(from->path);
    r->name = gb_strdup(from->name);
    r->message = gb_strdup(from->message);
    if (r->path == NULL || r->name == NULL || r->message == NULL) {
        free_record(r);
        return NULL;
    }
    return r;
}

// Adds a record to the list unless the list has the same outcome already. If memory runs out, the
// load keeps its outcome but has no record.
static void keep_record(const struct ggml_backend_load_record * record) {
    struct ggml_backend_load_record * copy = copy_record(record);
    gb_process_lock(GB_MUTEX_MODULES);
    bool known = copy == NULL;
    for (size_t i = 0; i < records.n && !known; i++) {
        known = is_same(records.data[i], copy);
    }
    const bool kept = !known && gb_vec_push(&records, copy);
    gb_process_unlock(GB_MUTEX_MODULES);
    if (!kept) {
        free_record(copy);
    }
}

size_t ggml_backend_load_count(void) {
    gb_process_lock(GB_MUTEX_MODULES);
    const size_t n = records.n;
    gb_process_unlock(GB_MUTEX_MODULES);
    return n;
}

const struct ggml_backend_load_record * ggml_backend_load_get(size_t i) {
    gb_process_lock(GB_MUTEX_MODULES);
    const struct ggml_backend_load_record * record = i < records.n ? records.data[i] : NULL;
    gb_process_unlock(GB_MUTEX_MODULES);
    return record;
}

// ---------------------------------------------------------------------------------------------------------------- load

// The one symbol that a module exports.
typedef enum ggml_status (*entry_point)(const struct ggml_backend_api *);

// Runs the entry point. From here on the module stays loaded, even after a failure.
static enum ggml_status call_entry(const char * path, entry_point entry) {
    const uint64_t before = gb_fail_count();
    const enum ggml_status status = entry(&api);
    GB_FAIL_IF(status != GGML_STATUS_SUCCESS && gb_fail_count() == before, status,
        "ggml_backend_load: '%s': the module's entry point failed: %s", path, ggml_status_to_string(status));
    return status;
}

// Fills in the module's part of the record. The module may be closed only if its entry point has
// not run.
static enum ggml_status open_module(const char * path, struct ggml_backend_load_record * record) {
    struct ggml_backend_module_descriptor descriptor;
    GB_TRY(check_file(path, &descriptor));
    char * name = gb_strdup(descriptor.name);
    if (name == NULL) {
        return GGML_STATUS_ALLOC_FAILED;
    }
    record->name = name;
    void * library = gb_library_open(path);
    if (library == NULL) {
        return GGML_STATUS_FAILED;
    }
    const entry_point entry = (entry_point) gb_library_find(library, GGML_BACKEND_MODULE_ENTRY);
    if (entry == NULL) {
        gb_library_close(library);
        return gb_fail(GGML_STATUS_INVALID_ARGUMENT, "ggml_backend_load: '%s' does not export %s", path,
            GGML_BACKEND_MODULE_ENTRY);
    }
    const size_t n = ggml_backend_reg_get_count();
    in_load = true;
    const enum ggml_status status = call_entry(path, entry);
    in_load = false;
    record->n_backends = ggml_backend_reg_get_count() - n;
    return status;
}

// One attempt, with GB_MUTEX_LOADING held. Every outcome except a repeated load leaves a record.
static enum ggml_status load(const char * given) {
    const uint64_t before = gb_fail_count();
    char * path = gb_path_resolve(given);
    struct ggml_backend_load_record record = { .path = path ? path : given, .status = GGML_STATUS_IO_ERROR };
    if (path != NULL && is_loaded(path)) {
        gb_free(path);
        return GGML_STATUS_SUCCESS;
    }
    if (path != NULL) {
        record.status = open_module(path, &record);
    }
    char * name = (char *) record.name;
    record.name = name ? name : "";
    record.message = record.status != GGML_STATUS_SUCCESS && gb_fail_count() != before ? ggml_last_error() : "";
    keep_record(&record);
    gb_free(name);
    gb_free(path);
    return record.status;
}

// Refuses bare names, because neither this library nor the system may search for modules.
enum ggml_status ggml_backend_load(const char * path) {
    GB_CHECK_ARG(path);
    GB_FAIL_IF(!gb_path_has_directory(path), GGML_STATUS_INVALID_ARGUMENT,
        "%s: argument 'path': '%s' has no directory, and modules are not searched for: write ./%s or a full path",
        __func__, path, path);
    GB_FAIL_IF(in_load, GGML_STATUS_INVALID_ARGUMENT, "%s: called by a module that is being loaded", __func__);
    gb_process_lock(GB_MUTEX_LOADING);
    const enum ggml_status status = load(path);
    gb_process_unlock(GB_MUTEX_LOADING);
    return status;
}
