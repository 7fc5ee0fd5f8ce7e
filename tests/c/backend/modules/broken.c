// broken.c - modules that the loader must refuse, or whose entry must fail. A definition of
// tests/c/CMakeLists.txt selects the variant. Constructors leave a mark, so a test can detect that
// code of the module ran.
#include <stdlib.h>

#include "ggml-backend-module.h"

#if defined(NO_DEVICE)
static enum ggml_status entry(void) {
    return ggml_report_error(GGML_STATUS_UNSUPPORTED, "no device: %d of them answered", 0);
}
GGML_BACKEND_MODULE("no_device", entry)
#elif defined(RECURSIVE)
static enum ggml_status entry(void);
GGML_BACKEND_MODULE("recursive", entry)
static enum ggml_status entry(void) { // a module cannot call ggml_backend_load, but it can register twice
    return ggml_backend_register("CPU", NULL, NULL, NULL);
}
#elif defined(NO_ENTRY) || defined(OTHER_VERSION) || defined(OTHER_LAYOUT)
#    ifdef OTHER_VERSION
#        define VERSION (GGML_BACKEND_MODULE_VERSION + 1)
#    else
#        define VERSION GGML_BACKEND_MODULE_VERSION
#    endif
GGML_BACKEND_MODULE_EXPORT extern const struct ggml_backend_module_descriptor self;
#    ifdef OTHER_LAYOUT
const struct ggml_backend_module_descriptor self = { GGML_BACKEND_MODULE_MAGIC, VERSION,
    { (uint32_t) sizeof(void *), 8, 1, 2, 3, 4, 5, 6, 7, 8 }, "broken" };
#    else
const struct ggml_backend_module_descriptor self = { GGML_BACKEND_MODULE_MAGIC, VERSION, GGML_BACKEND_MODULE_LAYOUT,
    "broken" };
#    endif
#endif

__attribute__((constructor)) static void mark(void) { setenv("GGML_TEST_MODULE_RAN", "1", 1); }
