// blas.cu - loads cuBLAS at run time, and calls it through a table of six functions.
//
// Its types are declared here, as its documentation has them, so no header of it is needed. The
// system's loader finds the library by its versioned name. Nothing is loaded if LD_LIBRARY_PATH would
// lead to the current directory.
#include "cuda/blas.h"

#include "cuda/memory.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <new>

#if !defined(_WIN32)
#    include <dlfcn.h>
#endif

namespace {

typedef void * cublas_handle;
typedef int cublas_status; // 0: success

struct functions {
    cublas_status (*create)(cublas_handle * handle);
    cublas_status (*destroy)(cublas_handle handle);
    cublas_status (*set_stream)(cublas_handle handle, cudaStream_t stream);
    cublas_status (*set_workspace)(cublas_handle handle, void * workspace, size_t size);
    cublas_status (*get_version)(cublas_handle handle, int * version);
    cublas_status (*multiply)(cublas_handle handle, int op_a, int op_b, int m, int n, int k, const void * alpha,
        const void * a, int a_type, int a_column, long long a_next, const void * b, int b_type, int b_column,
        long long b_next, const void * beta, void * c, int c_type, int c_column, long long c_next, int count,
        int compute, int algorithm);
};

enum { OP_N = 0, OP_T = 1, TYPE_F32 = 0, TYPE_F16 = 2, TYPE_BF16 = 14, COMPUTE_F32 = 68, DEFAULT_ALGORITHM = -1 };

constexpr size_t WORKSPACE = (size_t) 32 << 20; // bytes; recommended for compute capability 9.0

} // namespace

struct gb_cuda_blas {
    gb_cuda_device * device;
    void * library; // never closed: it leaves threads and atexit functions behind
    functions call;
    cublas_handle handle; // owned
    void * workspace; // owned
    size_t capacity;
    char * text; // not owned; of the backend
    bool failed;
};

#if defined(_WIN32)
static void * open_library(const char * wish, char * name, char * text) {
    (void) wish;
    (void) name;
    snprintf(text, 256, "cuBLAS: not supported on this system");
    return nullptr;
}
static void * function_of(void *, const char *) { return nullptr; }
#else
// True if every entry of the list is absolute. A relative or empty entry means the current directory.
static bool has_full_paths(const char * list) {
    if (list == nullptr || list[0] == '\0') {
        return true;
    }
    for (const char * entry = list;; entry++) {
        if (*entry != '/') {
            return false;
        }
        entry += strcspn(entry, ":;");
        if (*entry == '\0') {
            return true;
        }
    }
}

static void * open_by_name(char * name, char * text) {
    static const char * const names[] = { "libcublas.so.13", "libcublas.so.12", "libcublas.so.11" };
    for (const char * n : names) {
        void * library = dlopen(n, RTLD_NOW | RTLD_LOCAL | RTLD_NOLOAD);
        if (library != nullptr) {
            snprintf(name, 64, "%s", n);
            return library;
        }
    }
    if (!has_full_paths(getenv("LD_LIBRARY_PATH"))) {
        snprintf(text, 256, "cuBLAS: LD_LIBRARY_PATH has an entry that is not a full path: nothing is loaded by name");
        return nullptr;
    }
    for (const char * n : names) {
        void * library = dlopen(n, RTLD_NOW | RTLD_LOCAL);
        if (library != nullptr) {
            snprintf(name, 64, "%s", n);
            return library;
        }
    }
    const char * why = dlerror();
    snprintf(text, 256, "cuBLAS: the system's loader finds none: %.180s", why != nullptr ? why : "");
    return nullptr;
}

static void * open_library(const char * wish, char * name, char * text) {
    if (strcmp(wish, "1") == 0) {
        return open_by_name(name, text);
    }
    if (wish[0] != '/') {
        snprintf(text, 256, "cuBLAS: GGML_CUDA_CUBLAS is 0, 1 or a full path, has '%.100s'", wish);
        return nullptr;
    }
    void * library = dlopen(wish, RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) {
        const char * why = dlerror();
        snprintf(text, 256, "cuBLAS: %.200s", why != nullptr ? why : "cannot be loaded");
    }
    snprintf(name, 64, "%.63s", strrchr(wish, '/') + 1);
    return library;
}

static void * function_of(void * library, const char * name) { return dlsym(library, name); }
#endif

template <class F> static bool find(void * library, const char * name, F & function, char * text) {
    void * found = function_of(library, name);
    if (found == nullptr) {
        snprintf(text, 256, "cuBLAS: the library has no %s", name);
        return false;
    }
    memcpy(&function, &found, sizeof(function));
    return true;
}

static bool find_all(void * library, functions & f, char * text) {
    return find(library, "cublasCreate_v2", f.create, text) && find(library, "cublasDestroy_v2", f.destroy, text) &&
           find(library, "cublasSetStream_v2", f.set_stream, text) &&
           find(library, "cublasSetWorkspace_v2", f.set_workspace, text) &&
           find(library, "cublasGetVersion_v2", f.get_version, text) &&
           find(library, "cublasGemmStridedBatchedEx", f.multiply, text);
}

// Sets the stream first: that discards the workspace.
static bool prepare(gb_cuda_blas & blas, cudaStream_t stream, int * version) {
    const char * what = "cublasCreate_v2";
    cublas_status status = blas.call.create(&blas.handle);
    if (status != 0) {
        blas.handle = nullptr;
    }
    if (status == 0) {
        what = "cublasSetStream_v2";
        status = blas.call.set_stream(blas.handle, stream);
    }
    if (status == 0) {
        what = "cublasSetWorkspace_v2";
        status = blas.call.set_workspace(blas.handle, blas.workspace, WORKSPACE);
    }
    if (status == 0) {
        what = "cublasGetVersion_v2";
        status = blas.call.get_version(blas.handle, version);
    }
    if (status != 0) {
        snprintf(blas.text, 256, "cuBLAS: %s: status %d", what, status);
    }
    return status == 0;
}

gb_cuda_blas * gb_cuda_blas_new(gb_cuda_device * device, cudaStream_t stream, char * text) {
    const char * wish = getenv("GGML_CUDA_CUBLAS");
    char name[64];
    int version = 0;
    text[0] = '\0';
    if (wish == nullptr || wish[0] == '\0' || strcmp(wish, "0") == 0) {
        return nullptr;
    }
    gb_cuda_blas * blas = new (std::nothrow) gb_cuda_blas();
    if (blas == nullptr) {
        snprintf(text, 256, "cuBLAS: no host memory");
        return nullptr;
    }
    blas->device = device;
    blas->text = text;
    blas->library = open_library(wish, name, text);
    if (blas->library != nullptr && find_all(blas->library, blas->call, text)) {
        blas->workspace = gb_cuda_pool_alloc(device, WORKSPACE, &blas->capacity);
        if (blas->workspace == nullptr) {
            snprintf(text, 256, "cuBLAS: no device memory for its workspace");
        } else if (prepare(*blas, stream, &version)) {
            snprintf(text, 256, "%s, version %d", name, version);
            return blas;
        }
    }
    gb_cuda_blas_free(blas);
    return nullptr;
}

void gb_cuda_blas_free(gb_cuda_blas * blas) {
    if (blas == nullptr) {
        return;
    }
    if (blas->handle != nullptr) {
        (void) blas->call.destroy(blas->handle);
    }
    gb_cuda_pool_free(blas->device, blas->workspace, blas->capacity);
    delete blas;
}

static bool fits_int(int64_t n) { return n > 0 && n <= INT32_MAX; }

// cuBLAS stores matrices by columns: dst is m x rows, w is k x m and transposed, x is k x rows.
bool gb_cuda_blas_run(gb_cuda_blas * blas, const gb_cuda_blas_product & p, bool listed) {
    if (blas->failed || !fits_int(p.m) || !fits_int(p.k) || !fits_int(p.rows) || !fits_int(p.w_row) ||
        !fits_int(p.x_row) || !fits_int(p.slices)) {
        return false;
    }
    const float one = 1, zero = 0;
    const int type = p.type == GGML_TYPE_F32 ? TYPE_F32 : p.type == GGML_TYPE_F16 ? TYPE_F16 : TYPE_BF16;
    const cublas_status status = blas->call.multiply(blas->handle, OP_T, OP_N, (int) p.m, (int) p.rows, (int) p.k, &one,
        p.w, type, (int) p.w_row, p.w_next, p.x, type, (int) p.x_row, p.rows * p.x_row, &zero, p.dst, TYPE_F32,
        (int) p.m, p.rows * p.m, (int) p.slices, COMPUTE_F32, DEFAULT_ALGORITHM);
    if (status != 0 && !listed) {
        blas->failed = true;
        snprintf(blas->text, 256, "cuBLAS: not used any more: cublasGemmStridedBatchedEx: status %d", status);
    }
    return status == 0;
}
