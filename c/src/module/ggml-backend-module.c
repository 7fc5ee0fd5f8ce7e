// ggml-backend-module.c - the public functions as a module sees them. Each forwards to the library
// that loaded the module.
//
// This file is linked into every module, never into the library. The entry point of a module calls
// ggml_backend_module_connect first. No other function may be called before that call has
// succeeded. Before the entry point only constructors of the module run, and they must not call the
// library.
#include "ggml-backend-module.h"

#include <stdarg.h>
#include <stdio.h>

// The functions of the library. Set once, before any other call, and never freed.
static const struct ggml_backend_api * library;

// UNSUPPORTED, not reported, if the table has another version or is too small for this module.
enum ggml_status ggml_backend_module_connect(const struct ggml_backend_api * api) {
    if (api == NULL || api->version != GGML_BACKEND_MODULE_VERSION || api->size < sizeof(struct ggml_backend_api)) {
        return GGML_STATUS_UNSUPPORTED; // the library checks this before loading, with a better report
    }
    library = api;
    return GGML_STATUS_SUCCESS;
}

#define GGML_API_FUNC(returns, convention, name, parameters, arguments) \
    returns convention name parameters { return library->name arguments; }
#define GGML_API_PROC(convention, name, parameters, arguments) \
    void convention name parameters { library->name arguments; }
#include "ggml-backend-api.def"

// Variable arguments cannot be passed through a table, so this function makes the text and cuts it
// to the size of a message.
enum ggml_status ggml_report_error(enum ggml_status status, const char * fmt, ...) {
    char message[2048];
    va_list args;
    va_start(args, fmt);
    vsnprintf(message, sizeof(message), fmt, args);
    va_end(args);
    return library->report_error(status, message);
}

struct ggml_tensor * ggml_format_name(struct ggml_tensor * tensor, const char * fmt, ...) {
    char name[GGML_MAX_NAME + 4]; // longer than the longest name, so that the library cuts a name that is too long
    va_list args;
    va_start(args, fmt);
    vsnprintf(name, sizeof(name), fmt, args);
    va_end(args);
    return library->ggml_set_name(tensor, name);
}
