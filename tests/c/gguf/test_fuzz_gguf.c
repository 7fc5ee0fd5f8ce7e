// Replays the corpus of the fuzzer (tests/fuzz/corpus_gguf). Each file is also cut and damaged in
// some hundred fixed positions.
#include "test.h"

#include <dirent.h>

#include "../../fuzz/fuzz_gguf.c"

#include "base/mem.h"

enum { MAX_FILE = 1 << 16, VARIANTS = 300 };

static void mutate(uint8_t * data, size_t * size) {
    static const uint64_t values[] = { 0, 1, 2, 31, 0x7fffffff, 0x80000000, 0xffffffff, 0x100000000, INT64_MAX,
        0x8000000000000000u, UINT64_MAX };
    const uint64_t r = test_random();
    if (*size == 0) {
        return;
    }
    const size_t at = (size_t) (r >> 16) % *size;
    switch (r % 4) {
        case 0: *size = at; break;
        case 1: data[at] = (uint8_t) (r >> 8); break;
        case 2: data[at] ^= (uint8_t) (1u << (r >> 8 & 7)); break;
        default: {
            const size_t width = (r & 64) ? 8 : 4;
            if (at + width <= *size) {
                memcpy(data + at, &values[(r >> 8) % (sizeof(values) / sizeof(values[0]))], width);
            }
        }
    }
}

static bool replay(const char * folder, const char * name) {
    static uint8_t original[MAX_FILE], data[MAX_FILE];
    char path[2048];
    snprintf(path, sizeof(path), "%s/%s", folder, name);
    FILE * f = fopen(path, "rb");
    if (f == NULL) {
        return false;
    }
    const size_t n = fread(original, 1, sizeof(original), f);
    fclose(f);
    LLVMFuzzerTestOneInput(original, n);
    for (int i = 0; i < VARIANTS; i++) {
        size_t size = n;
        memcpy(data, original, n);
        for (int k = 0; k <= i % 3; k++) {
            mutate(data, &size);
        }
        LLVMFuzzerTestOneInput(data, size);
    }
    return true;
}

static void corpus(void) {
    char folder[1024];
    snprintf(folder, sizeof(folder), "%s", __FILE__);
    char * slash = strrchr(folder, '/');
    REQUIRE(slash);
    snprintf(slash, sizeof(folder) - (size_t) (slash - folder), "/../../fuzz/corpus_gguf");
    DIR * dir = opendir(folder);
    if (dir == NULL) {
        SKIP("%s is not there", folder);
    }
    ggml_log_set(quiet, NULL);
    const int64_t live = gb_test_live_allocs();
    int n = 0;
    for (const struct dirent * entry = readdir(dir); entry; entry = readdir(dir)) {
        n += entry->d_name[0] != '.' && replay(folder, entry->d_name);
    }
    closedir(dir);
    CHECK_MSG(n >= 40, "only %d files in %s", n, folder);
    CHECK_MSG(n_accepted > 1000 && n_refused > 1000, "%d accepted, %d refused: the mutations test nothing", n_accepted,
        n_refused);
    CHECK_INT(gb_test_live_allocs(), live);
}

TEST_MAIN(TEST(corpus))
