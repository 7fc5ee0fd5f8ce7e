// ffi_files.h - files that Python holds: structs that are made empty, with their destructor, and filled by one call.
// At any moment they are empty or own their file, so an interrupt leaks neither a descriptor nor a file.
#ifndef GBPY_FFI_FILES_H
#define GBPY_FFI_FILES_H

#include <errno.h>
#include <fcntl.h>

#ifdef _WIN32
#    include <io.h>
#    define open _open
#endif

#include "extension.h"

// cdef: begin

// A new file that may replace an old one (base/file.h). The calls return 0 or an errno.
struct gbpy_output {
    void * writer; // NULL: empty
};

static inline int gbpy_output_open(struct gbpy_output * output, const char * path);
static inline int gbpy_output_write(struct gbpy_output * output, const void * data, size_t size);
static inline int gbpy_output_commit(struct gbpy_output * output);
static inline void gbpy_output_abandon(struct gbpy_output * output); // the destructor

// An `opener` for io.FileIO, which owns the descriptor. Does not wait for the writer of a pipe. Negative: ffi.errno
// has the reason.
static inline int gbpy_open_to_read(const char * path, int flags);

// cdef: end

static inline int gbpy_output_end(struct gbpy_output * output, int error) {
    gb_free(output->writer);
    output->writer = NULL;
    return error;
}

static inline int gbpy_output_open(struct gbpy_output * output, const char * path) {
    struct gb_file_writer * w = GB_NEW(struct gb_file_writer);
    output->writer = w;
    if (w == NULL) {
        return ENOMEM;
    }
    return gb_file_writer_open(w, path) == GGML_STATUS_SUCCESS ? 0 : gbpy_output_end(output, w->error);
}

static inline int gbpy_output_write(struct gbpy_output * output, const void * data, size_t size) {
    struct gb_file_writer * w = (struct gb_file_writer *) output->writer;
    return gb_file_writer_write(w, data, size) == GGML_STATUS_SUCCESS ? 0 : w->error;
}

static inline int gbpy_output_commit(struct gbpy_output * output) {
    struct gb_file_writer * w = (struct gb_file_writer *) output->writer;
    return gbpy_output_end(output, gb_file_writer_commit(w) == GGML_STATUS_SUCCESS ? 0 : w->error);
}

static inline void gbpy_output_abandon(struct gbpy_output * output) {
    if (output->writer) {
        gb_file_writer_abandon((struct gb_file_writer *) output->writer);
        gbpy_output_end(output, 0);
    }
}

static inline int gbpy_open_to_read(const char * path, int flags) {
#ifdef O_NONBLOCK
    flags |= O_NONBLOCK;
#endif
    return open(path, flags);
}

#endif // GBPY_FFI_FILES_H
