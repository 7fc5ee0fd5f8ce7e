// file.c - reading files through a mapping, and replacing files atomically, on POSIX systems and Windows.
//
// A writer collects the content in a new file. The new file gets the target's name only when its
// content is on the disk. A failure before that leaves the target unchanged.
#ifndef _GNU_SOURCE
#    define _GNU_SOURCE
#endif
#include "base/file.h"

#include <errno.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "base/status.h"
#include "base/thread.h"

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

// ------------------------------------------------------------------------------------------------------------- reading

#ifdef _WIN32

static enum ggml_status map_file(struct gb_file_map * map, const char * path) {
    *map = (struct gb_file_map){ 0 };
    HANDLE file = CreateFileA(path, GENERIC_READ, FILE_SHARE_READ, NULL, OPEN_EXISTING, FILE_ATTRIBUTE_NORMAL, NULL);
    if (file == INVALID_HANDLE_VALUE) {
        return gb_fail(GGML_STATUS_IO_ERROR, "cannot open '%s': error %lu", path, (unsigned long) GetLastError());
    }
    LARGE_INTEGER size = { 0 };
    void * view = NULL;
    bool ok = GetFileSizeEx(file, &size) != 0;
    if (ok && size.QuadPart > 0) {
        HANDLE mapping = CreateFileMappingA(file, NULL, PAGE_READONLY, 0, 0, NULL);
        view = mapping ? MapViewOfFile(mapping, FILE_MAP_READ, 0, 0, 0) : NULL;
        ok = view != NULL;
        if (mapping) {
            CloseHandle(mapping);
        }
    }
    CloseHandle(file);
    GB_FAIL_IF(!ok, GGML_STATUS_IO_ERROR, "cannot map '%s': error %lu", path, (unsigned long) GetLastError());
    map->data = view;
    map->size = (size_t) size.QuadPart;
    return GGML_STATUS_SUCCESS;
}

static void unmap(struct gb_file_map * map) { UnmapViewOfFile(map->data); }

static bool flush_to_disk(FILE * file) { return fflush(file) == 0 && _commit(_fileno(file)) == 0; }

// True if the path does not exist, or names a file that may be replaced.
static bool can_replace(const char * path) {
    const DWORD attributes = GetFileAttributesA(path);
    return attributes == INVALID_FILE_ATTRIBUTES ||
           (attributes & (FILE_ATTRIBUTE_DIRECTORY | FILE_ATTRIBUTE_DEVICE)) == 0;
}

static bool replace(const char * from, const char * to) {
    return MoveFileExA(from, to, MOVEFILE_REPLACE_EXISTING) != 0;
}

#else

static enum ggml_status map_file(struct gb_file_map * map, const char * path) {
    *map = (struct gb_file_map){ 0 };
    const int fd =
        open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);  // O_NONBLOCK: opening a pipe must not wait for its writer
    GB_FAIL_IF(fd < 0, GGML_STATUS_IO_ERROR, "cannot open '%s': %s", path, strerror(errno));
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

static void unmap(struct gb_file_map * map) { munmap((void *) (uintptr_t) map->data, map->size); }

static bool flush_to_disk(FILE * file) { return fflush(file) == 0 && fsync(fileno(file)) == 0; }

// True if the path does not exist, or names a regular file. A name below /dev or /proc (/dev/stdout
// after a redirection) may lead to a file that another process also writes, so it must not be
// replaced.
static bool can_replace(const char * path) {
    struct stat info;
    return strncmp(path, "/dev/", 5) != 0 && strncmp(path, "/proc/", 6) != 0 &&
           (stat(path, &info) != 0 || S_ISREG(info.st_mode));
}

static bool replace(const char * from, const char * to) { return rename(from, to) == 0; }

#endif

// The thread stays between gb_mapped_enter and gb_mapped_leave while the map is open, because any
// access to the data may find a missing page.
enum ggml_status gb_file_map_open(struct gb_file_map * map, const char * path) {
    GB_TRY(map_file(map, path));
    if (map->data) {
        map->watch = gb_mapped_watch(map->data, map->size, 0, false, path);
        if (map->watch == NULL) {
            unmap(map);
            return ggml_last_status();
        }
        gb_mapped_enter();
    }
    return GGML_STATUS_SUCCESS;
}

enum ggml_status gb_file_map_close(struct gb_file_map * map) {
    enum ggml_status status = GGML_STATUS_SUCCESS;
    if (map->watch) {
        gb_mapped_leave();
        status = gb_mapped_check("reading", map->watch);
        gb_mapped_forget(map->watch);
    }
    if (map->data) {
        unmap(map);
    }
    *map = (struct gb_file_map){ 0 };
    return status;
}

// ------------------------------------------------------------------------------------------------------------- writing

enum { NAME_SUFFIX = 64 };  // bytes after the path in the name of the temporary file, with the NUL

// Frees the memory of the writer. `error` stays, because the caller still needs it for its message.
static void forget(struct gb_file_writer * w) {
    gb_free(w->path);
    gb_free(w->temporary);
    *w = (struct gb_file_writer){ .error = w->error };
}

// The file that a path names, with links resolved, so that the file is replaced and not the link.
// The path itself if there is no file yet. The caller owns the text. NULL if memory runs out.
static char * behind_links(const char * path) {
#ifndef _WIN32
    char * full = realpath(path, NULL);
    if (full != NULL) {
        char * copy = gb_strdup(full);  // the system's text comes from another allocator
        free(full);
        return copy;
    }
#endif
    return gb_strdup(path);
}

#ifndef _WIN32
// The folder of a path, "." if the path names none. `folder` has as many bytes as the path.
static void folder_of(const char * path, char * folder) {
    const char * slash = strrchr(path, '/');
    const size_t length = slash ? (size_t) (slash - path) + (slash == path) : 1;  // keeps the slash of "/"
    memcpy(folder, slash ? path : ".", length);
    folder[length] = '\0';
}
#endif

// Opens a new file without a name in the folder of the target. It is linked to its name later. NULL
// if the system or the file system has no nameless files, or no /proc, which links them. `folder`
// has as many bytes as the path, and holds the folder afterwards.
static FILE * open_nameless(const char * path, char * folder) {
#ifdef O_TMPFILE
    folder_of(path, folder);
    const int fd = open(folder, O_TMPFILE | O_WRONLY | O_CLOEXEC, 0666);
    FILE * file = fd >= 0 && access("/proc/self/fd", X_OK) == 0 ? fdopen(fd, "wb") : NULL;
    if (fd >= 0 && file == NULL) {
        close(fd);
    }
    return file;
#else
    (void) path;
    (void) folder;
    return NULL;
#endif
}

// Links the nameless file to `temporary`. Only the path in /proc needs no privilege for that
// (open(2), O_TMPFILE).
static bool give_name(struct gb_file_writer * w) {
#ifdef O_TMPFILE
    char own[64];
    snprintf(own, sizeof(own), "/proc/self/fd/%d", fileno(w->file));
    return linkat(AT_FDCWD, own, AT_FDCWD, w->temporary, AT_SYMLINK_FOLLOW) == 0;
#else
    (void) w;
    return false;
#endif
}

// Creates the file `temporary`. False, with errno EEXIST, if a file has that name already.
static bool create(struct gb_file_writer * w) {
    w->file = fopen(w->temporary, "wbx");  // x: never an existing file or link
    return w->file != NULL;
}

// Calls `make` with names beside the target until a name is free. A killed process may have left a
// file.
static bool with_free_name(struct gb_file_writer * w, bool (*make)(struct gb_file_writer *)) {
    static atomic_uint n_made;  // several threads may write the same file; the last one to commit wins
    enum { TRIES = 1000 };
    for (int i = 0; i < TRIES; i++) {
        snprintf(w->temporary, strlen(w->path) + NAME_SUFFIX, "%s.%ld.%u.part", w->path, (long) getpid(),
            atomic_fetch_add(&n_made, 1));
        if (make(w)) {
            return true;
        }
        if (errno != EEXIST) {
            break;
        }
    }
    return false;
}

// Gives the new file the owner and the mode of the file that it replaces. Ignores failures, because
// the content matters more.
static void keep_rights(struct gb_file_writer * w) {
#ifndef _WIN32
    struct stat info, made;
    const int fd = fileno(w->file);
    if (stat(w->path, &info) != 0 || fstat(fd, &made) != 0) {
        return;
    }
    const bool same = made.st_uid == info.st_uid && made.st_gid == info.st_gid;
    if ((!same && fchown(fd, info.st_uid, info.st_gid) != 0) || fchmod(fd, info.st_mode & 07777) != 0) {
        (void) fchmod(fd, info.st_mode & 0777);  // without set-user-id, because the owner may differ now
    }
#else
    (void) w;
#endif
}

// Flushes the folder, so that the new name is on the disk as well. Ignores failures, because some
// file systems cannot flush folders. Overwrites `temporary`, which is not needed any more.
static void flush_folder(struct gb_file_writer * w) {
#ifndef _WIN32
    folder_of(w->path, w->temporary);
    const int fd = open(w->temporary, O_RDONLY | O_CLOEXEC);
    if (fd >= 0) {
        (void) fsync(fd);
        close(fd);
    }
#else
    (void) w;
#endif
}

// Opens a file that is not regular, to write to it directly. Opening a pipe could wait forever. So
// a pipe without a reader fails after a second.
static FILE * open_directly(const char * path) {
#ifdef _WIN32
    return fopen(path, "wb");
#else
    enum { TRIES = 50, PAUSE_US = 20000 };
    int fd = -1;
    for (int i = 0; i < TRIES && fd < 0; i++) {
        fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NONBLOCK, 0666);
        if (fd < 0 && errno != ENXIO) {
            break;
        }
        if (fd < 0) {
            gb_sleep_us(PAUSE_US);
            errno = ENXIO;
        }
    }
    if (fd < 0) {
        return NULL;
    }
    const int flags = fcntl(fd, F_GETFL);
    FILE * file = flags >= 0 && fcntl(fd, F_SETFL, flags & ~O_NONBLOCK) == 0 ? fdopen(fd, "wb") : NULL;
    if (file == NULL) {
        close(fd);
    }
    return file;
#endif
}

// The system reports a pipe without a reader as "no such device".
static const char * reason(int error) { return error == ENXIO ? "no process reads from it" : strerror(error); }

// Tries a nameless file first, then a file with a temporary name.
enum ggml_status gb_file_writer_open(struct gb_file_writer * w, const char * path) {
    const bool direct = !can_replace(path);
    *w = (struct gb_file_writer){ .path = direct ? gb_strdup(path) : behind_links(path) };
    if (w->path == NULL) {
        w->error = ENOMEM;
        return GGML_STATUS_ALLOC_FAILED;
    }
    if (direct) {
        w->file = open_directly(w->path);
    } else {
        w->temporary = gb_malloc(strlen(w->path) + NAME_SUFFIX);
        if (w->temporary == NULL) {
            w->error = ENOMEM;
            forget(w);
            return GGML_STATUS_ALLOC_FAILED;
        }
        w->file = open_nameless(w->path, w->temporary);
        w->nameless = w->file != NULL;
        if (!w->nameless) {
            with_free_name(w, create);
        }
    }
    if (w->file == NULL) {
        w->error = errno;
        const enum ggml_status status = gb_fail(GGML_STATUS_IO_ERROR, "cannot write '%s': %s", path, reason(errno));
        forget(w);
        return status;
    }
    return GGML_STATUS_SUCCESS;
}

// Keeps the first error, because later ones follow from it.
enum ggml_status gb_file_writer_write(struct gb_file_writer * w, const void * data, size_t size) {
    if (size > 0 && fwrite(data, 1, size, w->file) != size) {
        w->error = w->failed ? w->error : errno;
        w->failed = true;
        return gb_fail(GGML_STATUS_IO_ERROR, "cannot write %zu bytes to '%s': %s", size, w->path, strerror(errno));
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

// The order matters: flush the content, link the temporary name, rename to the target's name, flush
// the folder. A crash at any point leaves the old file or the complete new one.
enum ggml_status gb_file_writer_commit(struct gb_file_writer * w) {
    if (w->failed) {
        gb_file_writer_abandon(w);
        return GGML_STATUS_IO_ERROR;
    }
    bool ok = true;
    if (w->temporary) {
        keep_rights(w);
        ok = flush_to_disk(w->file);
        if (ok && w->nameless) {
            ok = with_free_name(w, give_name);
            w->nameless = !ok;
        }
    }
    w->error = ok ? 0 : errno;
    if (fclose(w->file) != 0 && ok) {
        ok = false;
        w->error = errno;
    }
    w->file = NULL;
    if (ok && w->temporary && !replace(w->temporary, w->path)) {
        ok = false;
        w->error = errno;
    }
    if (!ok) {
        const enum ggml_status status =
            gb_fail(GGML_STATUS_IO_ERROR, "cannot complete '%s': %s", w->path, strerror(w->error));
        gb_file_writer_abandon(w);
        return status;
    }
    if (w->temporary) {
        flush_folder(w);
    }
    forget(w);
    return GGML_STATUS_SUCCESS;
}

// The system removes a nameless file when its descriptor closes.
void gb_file_writer_abandon(struct gb_file_writer * w) {
    if (w->file) {
        fclose(w->file);
    }
    if (w->temporary && !w->nameless) {
        remove(w->temporary);
    }
    forget(w);
}
