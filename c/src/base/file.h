// file.h - files: read through a mapping, written atomically. The message of a failure has the path
// and the system's reason.
#ifndef GB_BASE_FILE_H
#define GB_BASE_FILE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include "base/mapped.h"
#include "ggml.h"

// A whole file in memory. Only the functions below write the members. An unopened or closed map is
// all zero.
struct gb_file_map {
    const uint8_t * data;     // NULL for an empty file
    size_t size;              // bytes
    struct gb_mapped * watch; // owned
};

// Maps a regular file for reading, privately. The thread that opens the map also closes it. If the
// file shrinks in between, the missing bytes read as zeros, and closing fails (mapped.h). If
// opening fails, do not close the map. IO_ERROR: the file is missing, not readable, or not a
// regular file.
enum ggml_status gb_file_map_open(struct gb_file_map * map, const char * path);
enum ggml_status gb_file_map_close(struct gb_file_map * map);

// A writer fills a new file. Committing puts it in the target's place: a process that opens the
// path sees the old content or the complete new one. If the system supports it (Linux: O_TMPFILE),
// the new file has no name until then, so a killed process leaves no file. A path that names no
// regular file (a pipe, /dev/stdout) is written to directly.
struct gb_file_writer {
    FILE * file;
    // owned; the target, with symbolic links resolved
    char * path;
    // owned; the name of the new file; NULL: the target is written to directly
    char * temporary;
    // the new file has no name yet: committing gives it the name `temporary` first
    bool nameless;
    // a write has failed: committing then abandons the file
    bool failed;
    // errno of the first failure; stays when the other members are freed
    int error;
};

// If opening fails, do not close the writer. A failed write is reported at once, and committing
// then fails, too.
enum ggml_status gb_file_writer_open(struct gb_file_writer * w, const char * path);
enum ggml_status gb_file_writer_write(struct gb_file_writer * w, const void * data, size_t size);
enum ggml_status gb_file_writer_zeros(struct gb_file_writer * w, size_t size);
// On success, the content is on the disk under the target's name. On failure, the target is
// unchanged. Both free w's members.
enum ggml_status gb_file_writer_commit(struct gb_file_writer * w);
// Removes the new file and frees w's members. The target is unchanged.
void gb_file_writer_abandon(struct gb_file_writer * w);

#endif // GB_BASE_FILE_H
