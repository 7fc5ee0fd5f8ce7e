// file.h - files: read through a mapping, written atomically. Failures are reported with the path and the system's reason.
#ifndef GB_BASE_FILE_H
#define GB_BASE_FILE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include "ggml.h"

struct gb_file_map {
    const uint8_t * data; // NULL for an empty file
    size_t          size; // bytes
};

enum ggml_status gb_file_map_open(struct gb_file_map * map, const char * path); // read-only, private
void             gb_file_map_close(struct gb_file_map * map);

// Writes beside the target and renames at the end: whoever opens the path sees the old content or the complete new one.
struct gb_file_writer {
    FILE * file;
    char * path;      // owned
    char * temporary; // owned
    bool   failed;
};

enum ggml_status gb_file_writer_open(struct gb_file_writer * w, const char * path);
enum ggml_status gb_file_writer_write(struct gb_file_writer * w, const void * data, size_t size);
enum ggml_status gb_file_writer_zeros(struct gb_file_writer * w, size_t size);
enum ggml_status gb_file_writer_commit(struct gb_file_writer * w); // flushes to the disk, renames; frees w's members either way
void             gb_file_writer_abandon(struct gb_file_writer * w); // removes the temporary file

#endif // GB_BASE_FILE_H
