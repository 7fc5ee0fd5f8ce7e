// file.h - files: read through a mapping, written atomically. Failures are reported with the path and the system's
// reason.
#ifndef GB_BASE_FILE_H
#define GB_BASE_FILE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include "base/mapped.h"
#include "ggml.h"

struct gb_file_map {
    const uint8_t *    data;  // NULL for an empty file
    size_t             size;  // bytes
    struct gb_mapped * watch; // owned
};

// Read-only, private; by one thread, from opening to closing. A file that shrinks meanwhile reads as zeros, and closing
// says so (mapped.h).
enum ggml_status gb_file_map_open(struct gb_file_map * map, const char * path);
enum ggml_status gb_file_map_close(struct gb_file_map * map);

// Writes to a new file, which takes the target's place at the end: whoever opens the path sees the old content or the
// complete new one. Where the system can (Linux: O_TMPFILE), that file has no name before, so that a process that is
// killed leaves nothing. What is no regular file (a pipe, /dev/stdout) is written to directly.
struct gb_file_writer {
    FILE * file;
    char * path;      // owned; behind links
    char * temporary; // owned; NULL: written to directly
    bool   nameless;  // the new file has no name yet: it gets `temporary` first
    bool   failed;
    int    error; // errno of the first failure; it stays when the rest is freed
};

enum ggml_status gb_file_writer_open(struct gb_file_writer * w, const char * path);
enum ggml_status gb_file_writer_write(struct gb_file_writer * w, const void * data, size_t size);
enum ggml_status gb_file_writer_zeros(struct gb_file_writer * w, size_t size);
// all is on the disk when it returns; frees w's members either way
enum ggml_status gb_file_writer_commit(struct gb_file_writer * w);
void             gb_file_writer_abandon(struct gb_file_writer * w); // removes the temporary file

#endif // GB_BASE_FILE_H
