// test_digest.c - digests of bytes that come in pieces of any size, against the values of Python's hashlib.
#include "base/digest.h"

#include "base/mem.h"
#include "test.h"

static const struct {
    size_t size;
    const char * digest;
} known[] = {
    { 0, "0e5751c026e543b2e8ab2eb06099daa1d1e5df47778f7787faab45cdf12fe3a8" },
    { 3, "9facd640130c81e7f318a8d5c660bc1b0f5d03861ffbd4cc1358e0e904593c28" },
    { 128, "f0501d06597880592bc49234eef100ec1ff349058d0e9d9b753504e24af86dd6" },
    { 129, "a34a4e1e03c541dfbf3099c4b6c143c022ced65c28bd7e8a10e0a098461aecf0" },
    { 100000, "20b8634b7228973e5a49a5f6857b7fe2e879a928f797a682928c00eaa8fb7776" },
};

static void check_digest(const uint8_t * data, size_t size, size_t piece, const char * wanted) {
    struct gb_digest digest;
    uint8_t found[GB_DIGEST_SIZE];
    char text[2 * GB_DIGEST_SIZE + 1] = "";
    gb_digest_begin(&digest);
    for (size_t at = 0; at < size; at += piece) {
        gb_digest_add(&digest, data + at, GB_MIN(piece, size - at));
    }
    gb_digest_end(&digest, found);
    for (int i = 0; i < GB_DIGEST_SIZE; i++) {
        snprintf(text + 2 * i, 3, "%02x", found[i]);
    }
    CHECK_STR(text, wanted);
}

static void values(void) {
    static uint8_t data[100000];
    for (size_t i = 0; i < sizeof(data); i++) {
        data[i] = (uint8_t) (i * 7 + 3);
    }
    const size_t pieces[] = { 1, 7, 127, 128, 129, 1000, sizeof(data) };
    for (size_t i = 0; i < GB_ARRAY_LEN(known); i++) {
        for (size_t k = 0; k < GB_ARRAY_LEN(pieces); k++) {
            check_digest(data, known[i].size, pieces[k], known[i].digest);
        }
    }
    check_digest((const uint8_t *) "abc", 3, 3, "bddd813c634239723171ef3fee98579b94964e3bb1cb3e427262c8c068d52319");
}

TEST_MAIN(TEST(values))
