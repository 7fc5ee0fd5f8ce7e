// ggml-backend-module.h - a backend in a shared library of its own, loaded at run time with ggml_backend_load(path).
//
// The same source can be linked in or built as a module. To link it in, call the backend's own
// register function. As a module, add this line to one file:
//
//     GGML_BACKEND_MODULE("mine", my_backend_register)    // enum ggml_status my_backend_register(void) calls
//                                                         // ggml_backend_register
//
// Compile with hidden visibility and GGML_BACKEND_MODULE_BUILD defined. Link the small library of
// forwarding functions: in CMake with target_link_libraries(mine PRIVATE ggml_backend::module),
// without CMake by compiling ggml-backend-module.c too. A module does not link the ggml_backend
// library itself. It calls the copy that loads it, through a table. This works even if that copy
// hides its symbols (the Python package does) or another ggml is in the same process. A module
// exports only ggml_backend_module_init.
//
// The library reads the descriptor from the file before the system loads the module. So code of a
// module for another version never runs. A loaded module stays until the process ends.
#ifndef GGML_BACKEND_MODULE_H
#define GGML_BACKEND_MODULE_H

#include "ggml-backend-impl.h"
#include "ggml-backend.h"
#include "ggml-cpu.h"
#include "ggml-cuda.h"
#include "ggml.h"

#ifdef __cplusplus
extern "C" {
#endif

#define GGML_BACKEND_MODULE_VERSION 1 // raise it if a change below breaks modules and no size shows it
#define GGML_BACKEND_MODULE_ENTRY "ggml_backend_module_init"

// The functions of the library. `size` is sizeof(struct ggml_backend_api) of the library. A module
// needs at least the size of its own build.
struct ggml_backend_api {
    uint32_t size; // bytes
    uint32_t version;
    // Like ggml_report_error, with a complete message instead of a format.
    enum ggml_status (*report_error)(enum ggml_status status, const char * message);
#define GGML_API_FUNC(returns, convention, name, parameters, arguments) returns(convention * name) parameters;
#define GGML_API_PROC(convention, name, parameters, arguments) void(convention * name) parameters;
#include "ggml-backend-api.def"
#undef GGML_API_FUNC
#undef GGML_API_PROC
};

// Sizes of the structures that library and module share. All but `api` must be the same on both sides.
struct ggml_backend_module_layout { // bytes
    uint32_t pointer, api, tensor, graph, backend, backend_hooks, buffer, buffer_hooks, buffer_type, buffer_type_hooks;
};

#define GGML_BACKEND_MODULE_LAYOUT                                                                                  \
    { (uint32_t) sizeof(void *), (uint32_t) sizeof(struct ggml_backend_api), (uint32_t) sizeof(struct ggml_tensor), \
        (uint32_t) sizeof(struct ggml_cgraph), (uint32_t) sizeof(struct ggml_backend),                              \
        (uint32_t) sizeof(struct ggml_backend_i), (uint32_t) sizeof(struct ggml_backend_buffer),                    \
        (uint32_t) sizeof(struct ggml_backend_buffer_i), (uint32_t) sizeof(struct ggml_backend_buffer_type),        \
        (uint32_t) sizeof(struct ggml_backend_buffer_type_i) }

// The loader finds the descriptor in the file by its magic: 32 bytes, this text padded with zeros.
#define GGML_BACKEND_MODULE_MAGIC_TEXT "ggml_backend module v1 \r\n\032\n"
#define GGML_BACKEND_MODULE_MAGIC "\177" GGML_BACKEND_MODULE_MAGIC_TEXT
struct ggml_backend_module_descriptor {
    char magic[32];
    uint32_t version;
    struct ggml_backend_module_layout layout;
    char name[32];
};

// For the entry point. Stores the table for the forwarding functions, or reports why the module
// cannot use it.
enum ggml_status ggml_backend_module_connect(const struct ggml_backend_api * api);

#if defined(_WIN32)
#    define GGML_BACKEND_MODULE_EXPORT __declspec(dllexport)
#else
#    define GGML_BACKEND_MODULE_EXPORT __attribute__((visibility("default")))
#endif

#ifdef __cplusplus
#    define GGML_BACKEND_MODULE_EXTERN extern "C"
#else
#    define GGML_BACKEND_MODULE_EXTERN
#endif

#ifdef GGML_BACKEND_MODULE_BUILD
#    define GGML_BACKEND_MODULE(module_name, register_function)                                                       \
    GGML_BACKEND_MODULE_EXTERN GGML_BACKEND_MODULE_EXPORT enum ggml_status                                            \
    ggml_backend_module_init(const struct ggml_backend_api * api);                                                    \
    GGML_BACKEND_MODULE_EXTERN const volatile struct ggml_backend_module_descriptor ggml_backend_module_self;         \
    const volatile struct ggml_backend_module_descriptor ggml_backend_module_self = { GGML_BACKEND_MODULE_MAGIC,      \
        GGML_BACKEND_MODULE_VERSION, GGML_BACKEND_MODULE_LAYOUT, module_name };                                       \
                                                                                                                      \
    enum ggml_status ggml_backend_module_init(const struct ggml_backend_api * api) {                                  \
        if (ggml_backend_module_self.version != GGML_BACKEND_MODULE_VERSION) { /* keeps the descriptor in the file */ \
            return GGML_STATUS_FAILED;                                                                                \
        }                                                                                                             \
        const enum ggml_status status = ggml_backend_module_connect(api);                                             \
        return status != GGML_STATUS_SUCCESS ? status : register_function();                                          \
    }
#else
#    define GGML_BACKEND_MODULE(module_name, register_function)
#endif

#ifdef __cplusplus
}
#endif

#endif // GGML_BACKEND_MODULE_H
