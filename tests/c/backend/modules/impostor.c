// impostor.c - another library with the same function names, loaded first and globally visible.
#include <stddef.h>

__attribute__((visibility("default"))) size_t ggml_nbytes(const void * tensor);
__attribute__((visibility("default"))) int ggml_backend_register(const char * name, void * init, void * buft,
    void * user);
__attribute__((visibility("default"))) void * ggml_backend_buffer_init(void * buft, void * context);
__attribute__((visibility("default"))) const char * ggml_get_name(const void * tensor);
__attribute__((visibility("default"))) int impostor_calls(void);

static int n_calls;

size_t ggml_nbytes(const void * tensor) {
    (void) tensor;
    n_calls++;
    return 1;
}

int ggml_backend_register(const char * name, void * init, void * buft, void * user) {
    (void) name, (void) init, (void) buft, (void) user;
    n_calls++;
    return -1;
}

void * ggml_backend_buffer_init(void * buft, void * context) {
    (void) buft, (void) context;
    n_calls++;
    return NULL;
}

const char * ggml_get_name(const void * tensor) {
    (void) tensor;
    n_calls++;
    return "impostor";
}

int impostor_calls(void) { return n_calls; }
