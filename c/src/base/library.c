// library.c - loading shared libraries: dlopen on POSIX systems, LoadLibrary on Windows.
#ifndef _GNU_SOURCE
#    define _GNU_SOURCE
#endif
#include "library.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "mem.h"
#include "status.h"

#ifdef _WIN32
#    include <windows.h>
#else
#    include <dlfcn.h>
#endif

// realpath fails if the file does not exist. Windows needs a separate check.
char * gb_path_resolve(const char * path) {
#ifdef _WIN32
    char * full = _fullpath(NULL, path, 0);
    const bool there = full != NULL && GetFileAttributesA(full) != INVALID_FILE_ATTRIBUTES;
    const char * reason = "no such file";
#else
    char * full = realpath(path, NULL);
    const bool there = full != NULL;
    const char * reason = strerror(errno);
#endif
    char * copy = NULL;
    if (there) {
        copy = gb_strdup(full); // realpath's text comes from another allocator
    } else {
        gb_fail(GGML_STATUS_IO_ERROR, "cannot open '%s': %s", path, reason);
    }
    free(full);
    return copy;
}

// RTLD_NOW fails here if a symbol is missing, so the failure is reported before the symbol's first
// use.
void * gb_library_open(const char * path) {
#ifdef _WIN32
    HMODULE library = LoadLibraryExA(path, NULL, LOAD_LIBRARY_SEARCH_DLL_LOAD_DIR | LOAD_LIBRARY_SEARCH_SYSTEM32);
    if (library == NULL) {
        gb_fail(GGML_STATUS_FAILED, "cannot load '%s': error %lu of the system", path, GetLastError());
    }
    return (void *) library;
#else
    void * library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (library == NULL) {
        const char * reason = dlerror();
        gb_fail(GGML_STATUS_FAILED, "cannot load '%s': %s", path, reason ? reason : "unknown reason");
    }
    return library;
#endif
}

bool gb_path_has_directory(const char * path) {
#ifdef _WIN32
    return strpbrk(path, "/\\:") != NULL;
#else
    return strchr(path, '/') != NULL;
#endif
}

// The system's functions return object pointers or special types.
gb_library_function gb_library_find(void * library, const char * name) {
    gb_library_function function = NULL;
#ifdef _WIN32
    FARPROC found = GetProcAddress((HMODULE) library, name);
#else
    void * found = dlsym(library, name);
#endif
    if (found != NULL) {
        memcpy(&function, &found, sizeof(function)); // ISO C has no cast from object to function pointers
    }
    return function;
}

void gb_library_close(void * library) {
#ifdef _WIN32
    FreeLibrary((HMODULE) library);
#else
    dlclose(library);
#endif
}
