// file.c - mapping and atomic replacement, POSIX and Windows.
#include "base/file.h"

#include <errno.h>
#include <stdatomic.h>
#include <string.h>

#include "base/mem.h"
#include "base/status.h"

#ifdef _WIN32
#    include <io.h>
#    include <process.h>
#    define WIN32_LEAN_AND_MEAN
#    include <windows.h>
#    define getpid _getpid
#else
#    include <fcntl.h>
#    include <sys/mman.h>
#    include <sys/stat.h>
#    include <unistd.h>
#endif

// ------------------------------------------------------------------------------------------------------------------- reading

#ifdef _WIN32

enum ggml_status gb_file_map_open(struct gb_file_map * map, const char * path) {
    *map        = (struct gb_file_map){ 0 };
    HANDLE file = CreateFileA(path, GENERIC_READ, FILE_SHARE_READ, NULL, OPEN_EXISTING, FILE_ATTRIBUTE_NORMAL, NULL);
    if (file == INVALID_HANDLE_VALUE) {
        return gb_fail(GGML_STATUS_IO_ERROR, "cannot open '%s': error %lu", path, (unsigned long) GetLastError());
    }
    LARGE_INTEGER size   = { 0 };
    void *        view   = NULL;
    bool          ok     = GetFileSizeEx(file, &size) != 0;
    if (ok && size.QuadPart > 0) {
        HANDLE mapping = CreateFileMappingA(file, NULL, PAGE_READONLY, 0, 0, NULL);
        view           = mapping ? MapViewOfFile(mapping, FILE_MAP_READ, 0, 0, 0) : NULL;
        ok             = view != NULL;
        if (mapping) {
            CloseHandle(mapping);
        }
    }
    CloseHandle(file);
    GB_FAIL_IF(!ok, GGML_STATUS_IO_ERROR, GGML_STATUS_IO_ERROR, "cannot map '%s': error %lu", path, (unsigned long) GetLastError());
    map->data = view;
    map->size = (size_t) size.QuadPart;
    return GGML_STATUS_SUCCESS;
}

void gb_file_map_close(struct gb_file_map * map) {
    if (map->data) {
        UnmapViewOfFile(map->data);
    }
    *map = (struct gb_file_map){ 0 };
}

static bool flush_to_disk(FILE * file) {
    return fflush(file) == 0 && _commit(_fileno(file)) == 0;
}

static bool can_replace(const char * path) { // there is nothing, or a file
    const DWORD attributes = GetFileAttributesA(path);
    return attributes == INVALID_FILE_ATTRIBUTES || (attributes & (FILE_ATTRIBUTE_DIRECTORY | FILE_ATTRIBUTE_DEVICE)) == 0;
}

static bool replace(const char * from, const char * to) {
    return MoveFileExA(from, to, MOVEFILE_REPLACE_EXISTING) != 0;
}

#else

enum ggml_status gb_file_map_open(struct gb_file_map * map, const char * path) {
    *map         = (struct gb_file_map){ 0 };
    const int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK); // nonblocking: a pipe would wait for its writer
    GB_FAIL_IF(fd < 0, GGML_STATUS_IO_ERROR, GGML_STATUS_IO_ERROR, "cannot open '%s': %s", path, strerror(errno));
    struct stat info;
    if (fstat(fd, &info) != 0 || !S_ISREG(info.st_mode)) {
        close(fd);
        return gb_fail(GGML_STATUS_IO_ERROR, "cannot read '%s': not a regular file", path);
    }
    if (info.st_size > 0) {
        void * data = mmap(NULL, (size_t) info.st_size, PROT_READ, MAP_PRIVATE, fd, 0);
        if (data == MAP_FAILED) {
            const int why = errno;
            close(fd);
            return gb_fail(GGML_STATUS_IO_ERROR, "cannot map '%s': %s", path, strerror(why));
        }
        map->data = data;
        map->size = (size_t) info.st_size;
    }
    close(fd);
    return GGML_STATUS_SUCCESS;
}

void gb_file_map_close(struct gb_file_map * map) {
    if (map->data) {
        munmap((void *) (uintptr_t) map->data, map->size);
    }
    *map = (struct gb_file_map){ 0 };
}

static bool flush_to_disk(FILE * file) {
    return fflush(file) == 0 && fsync(fileno(file)) == 0;
}

static bool can_replace(const char * path) { // there is nothing, or a file: a device must not become one
    struct stat info;
    return stat(path, &info) != 0 || S_ISREG(info.st_mode);
}

static bool replace(const char * from, const char * to) {
    return rename(from, to) == 0;
}

#endif

// ------------------------------------------------------------------------------------------------------------------- writing

static void forget(struct gb_file_writer * w) {
    gb_free(w->path);
    gb_free(w->temporary);
    *w = (struct gb_file_writer){ 0 };
}

enum ggml_status gb_file_writer_open(struct gb_file_writer * w, const char * path) {
    static atomic_uint n_opened; // several threads may write the same file: the last one to complete it wins
    *w                = (struct gb_file_writer){ 0 };
    const size_t size = strlen(path) + 64;
    GB_FAIL_IF(!can_replace(path), GGML_STATUS_IO_ERROR, GGML_STATUS_IO_ERROR, "cannot write '%s': it is not a regular file", path);
    w->path           = gb_strdup(path);
    w->temporary      = w->path ? gb_malloc(size) : NULL;
    if (w->temporary == NULL) {
        forget(w);
        return GGML_STATUS_ALLOC_FAILED;
    }
    snprintf(w->temporary, size, "%s.%ld.%u.part", path, (long) getpid(), atomic_fetch_add(&n_opened, 1));
    w->file = fopen(w->temporary, "wbx"); // x: nobody else's file, nor through somebody's link
    if (w->file == NULL) {
        const enum ggml_status status = gb_fail(GGML_STATUS_IO_ERROR, "cannot create '%s': %s", w->temporary, strerror(errno));
        forget(w);
        return status;
    }
    return GGML_STATUS_SUCCESS;
}

enum ggml_status gb_file_writer_write(struct gb_file_writer * w, const void * data, size_t size) {
    if (size > 0 && fwrite(data, 1, size, w->file) != size) {
        w->failed = true;
        return gb_fail(GGML_STATUS_IO_ERROR, "cannot write %zu bytes to '%s': %s", size, w->temporary, strerror(errno));
    }
    return GGML_STATUS_SUCCESS;
}

enum ggml_status gb_file_writer_zeros(struct gb_file_writer * w, size_t size) {
    static const uint8_t zeros[4096];
    while (size > 0) {
        const size_t n = GB_MIN(size, sizeof(zeros));
        GB_TRY(gb_file_writer_write(w, zeros, n));
        size -= n;
    }
    return GGML_STATUS_SUCCESS;
}

enum ggml_status gb_file_writer_commit(struct gb_file_writer * w) {
    if (w->failed) {
        gb_file_writer_abandon(w);
        return GGML_STATUS_IO_ERROR;
    }
    const bool flushed = flush_to_disk(w->file);
    const bool closed  = fclose(w->file) == 0;
    w->file            = NULL;
    if (!flushed || !closed || !replace(w->temporary, w->path)) {
        const enum ggml_status status = gb_fail(GGML_STATUS_IO_ERROR, "cannot complete '%s': %s", w->path, strerror(errno));
        gb_file_writer_abandon(w);
        return status;
    }
    forget(w);
    return GGML_STATUS_SUCCESS;
}

void gb_file_writer_abandon(struct gb_file_writer * w) {
    if (w->file) {
        fclose(w->file);
    }
    if (w->temporary) {
        remove(w->temporary);
    }
    forget(w);
}
