// ggml-backend-module.c - the public functions as a module sees them: each forwards to the library that loaded the
// module.
//
// Linked into every module (never into the library). Before ggml_backend_module_connect nothing here may be called: the
// entry point does that first, and no code of a module runs before its entry point except constructors, which must not
// call us.
#include "ggml-backend-module.h"

#include <stdarg.h>
#include <stdio.h>

static const struct ggml_backend_api * library; // never freed; set once, before any other call

enum ggml_status ggml_backend_module_connect(const struct ggml_backend_api * api) {
    if (api == NULL || api->version != GGML_BACKEND_MODULE_VERSION || api->size < sizeof(struct ggml_backend_api)) {
        return GGML_STATUS_UNSUPPORTED; // the library has checked before, and says more than we can here
    }
    library = api;
    return GGML_STATUS_SUCCESS;
}

#define GGML_API_FUNC(returns, convention, name, parameters, arguments) \
    returns convention name parameters { return library->name arguments; }
#define GGML_API_PROC(convention, name, parameters, arguments) \
    void convention name parameters { library->name arguments; }
#include "ggml-backend-api.def"

// Variable arguments cannot be handed on: the text is made here.
enum ggml_status ggml_report_error(enum ggml_status status, const char * fmt, ...) {
    char    message[2048];
    va_list args;
    va_start(args, fmt);
    vsnprintf(message, sizeof(message), fmt, args);
    va_end(args);
    return library->report_error(status, message);
}

struct ggml_tensor * ggml_format_name(struct ggml_tensor * tensor, const char * fmt, ...) {
    char    name[GGML_MAX_NAME + 4]; // a character more than fits, so that the library sees where to cut
    va_list args;
    va_start(args, fmt);
    vsnprintf(name, sizeof(name), fmt, args);
    va_end(args);
    return library->ggml_set_name(tensor, name);
}
