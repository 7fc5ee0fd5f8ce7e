// test_damage.h - a temporary file that a test writes again and again, with other damage each time.
// The program that includes it defines _POSIX_C_SOURCE as 200809L first, for mkstemp.
#ifndef GB_TESTS_TEST_DAMAGE_H
#define GB_TESTS_TEST_DAMAGE_H

#include <unistd.h>

#include "test.h"

__attribute__((visibility("default"))) const char * __asan_default_options(void);
const char * __asan_default_options(void) {
    return "allocator_may_return_null=1"; // damaged files request any amount
}

static char path[] = "/tmp/gb_damage_XXXXXX";

static void new_path(void) {
    strcpy(path, "/tmp/gb_damage_XXXXXX");
    const int fd = mkstemp(path);
    if (fd >= 0) {
        close(fd);
    }
}

static void write_bytes(const void * data, size_t size) {
    remove(path); // closing a file that was truncated waits for the disk (ext4)
    FILE * f = fopen(path, "wb");
    if (f == NULL || fwrite(data, 1, size, f) != size) {
        test_fail(__FILE__, __LINE__, "cannot write %s", path);
    }
    if (f) {
        fclose(f);
    }
}

static size_t read_bytes(uint8_t * data, size_t max) {
    FILE * f = fopen(path, "rb");
    const size_t size = f ? fread(data, 1, max, f) : 0;
    if (f) {
        fclose(f);
    }
    return size;
}

#endif // GB_TESTS_TEST_DAMAGE_H
