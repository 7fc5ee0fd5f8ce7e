// tensors.cu - see tensors.h.
#include "cuda/tensors.h"

#include <stdio.h>

char * gb_cuda_data(const ggml_tensor * t) {
    const uintptr_t unplaced = (uintptr_t) 1 << 40; // a multiple of 256, as the addresses of device memory are
    return t->data != nullptr ? static_cast<char *>(t->data)
                              : reinterpret_cast<char *>(unplaced + (t->view_src != nullptr ? t->view_offs : 0));
}

bool gb_cuda_overlap(const ggml_tensor * a, const ggml_tensor * b) {
    const char * pa = gb_cuda_data(a);
    const char * pb = gb_cuda_data(b);
    return pa < pb + ggml_nbytes(b) && pb < pa + ggml_nbytes(a);
}

void gb_cuda_describe(char * text, size_t size, const ggml_tensor * t) {
    int used =
        snprintf(text, size, GB_QUOTE_BEGIN "'%s' %s [%lld", t->name, ggml_type_name(t->type), (long long) t->ne[0]);
    for (int d = 1; d < ggml_n_dims(t) && (size_t) used < size; d++) {
        used += snprintf(text + used, size - (size_t) used, ", %lld", (long long) t->ne[d]);
    }
    if ((size_t) used < size) {
        snprintf(text + used, size - (size_t) used, "]" GB_QUOTE_END);
    }
}
