// foreign.c - recognizes files that are not GGUF, for error messages. Typical ones are web pages
// and Git LFS pointers from a download, and models in other formats.
#include <ctype.h>
#include <string.h>

#include "gguf/gguf_impl.h"

// The first bytes of a kind of file, its name, and what to do.
struct signature {
    const char * bytes;
    size_t n;
    const char * what;
};

#define SIGNATURE(bytes, what) { bytes, sizeof(bytes) - 1, what }

#define OLD "a model in a format older than GGUF (GGML, GGMF, GGJT or GGLA): get the model as GGUF, or convert it anew"
#define PACKED "unpack it first"
#define CONVERT "convert it with a program that reads it"

// The old formats wrote their magic as a number, so both byte orders occur.
static const struct signature signatures[] = {
    SIGNATURE("version https://git-lfs", "a Git LFS pointer: fetch the file itself with git lfs pull"),
    SIGNATURE("PK\x03\x04", "a ZIP file, perhaps a PyTorch checkpoint: " CONVERT " (by way of safetensors)"),
    SIGNATURE("lmgg", OLD),
    SIGNATURE("ggml", OLD),
    SIGNATURE("GGML", OLD),
    SIGNATURE("tjgg", OLD),
    SIGNATURE("ggjt", OLD),
    SIGNATURE("fmgg", OLD),
    SIGNATURE("ggmf", OLD),
    SIGNATURE("algg", OLD),
    SIGNATURE("ggla", OLD),
    SIGNATURE("FUGG",
        "a GGUF file in the other byte order: convert it with gguf-convert-endian of the Python package gguf"),
    SIGNATURE("\x80\x02", "a pickle, perhaps a PyTorch checkpoint: " CONVERT " (by way of safetensors)"),
    SIGNATURE("\x80\x03", "a pickle, perhaps a PyTorch checkpoint: " CONVERT " (by way of safetensors)"),
    SIGNATURE("\x80\x04", "a pickle, perhaps a PyTorch checkpoint: " CONVERT " (by way of safetensors)"),
    SIGNATURE("\x80\x05", "a pickle, perhaps a PyTorch checkpoint: " CONVERT " (by way of safetensors)"),
    SIGNATURE("\x1f\x8b", "a gzip file: " PACKED),
    SIGNATURE("\x28\xb5\x2f\xfd", "a Zstandard file: " PACKED),
    SIGNATURE("\xfd"
              "7zXZ",
        "an xz file: " PACKED),
    SIGNATURE("7z\xbc\xaf\x27\x1c", "a 7z file: " PACKED),
    SIGNATURE("BZh", "a bzip2 file: " PACKED),
    SIGNATURE("\x93NUMPY", "an array of NumPy (.npy): load it there"),
    SIGNATURE("\x89HDF", "an HDF5 file, perhaps of Keras: " CONVERT),
    SIGNATURE("\x7f"
              "ELF",
        "a program (ELF), not a model"),
    SIGNATURE("%PDF", "a PDF document, not a model"),
    SIGNATURE("\0\0\0\0", "zeros, perhaps an unfinished download: download it again"),
};

// True if data begins with the text, in capital or small letters.
static bool begins(const uint8_t * data, size_t size, const char * with) {
    const size_t n = strlen(with);
    for (size_t i = 0; i < n; i++) {
        if (i >= size || tolower(data[i]) != with[i]) {
            return false;
        }
    }
    return true;
}

// True for a web page. A server may send an error, a login or a description instead of the file.
static bool is_page(const uint8_t * data, size_t size) {
    size_t at = size >= 3 && memcmp(data, "\xef\xbb\xbf", 3) == 0 ? 3 : 0;
    while (at < size && isspace(data[at])) {
        at++;
    }
    static const char * const openings[] = { "<!doctype", "<html", "<head", "<body", "<?xml", "<!--" };
    for (size_t i = 0; i < sizeof(openings) / sizeof(openings[0]); i++) {
        if (begins(data + at, size - at, openings[i])) {
            return true;
        }
    }
    return false;
}

// A safetensors file begins with the length of its header, which is a JSON object.
static bool is_safetensors(const uint8_t * data, size_t size) {
    uint64_t length;
    if (size < 9 || data[8] != '{') {
        return false;
    }
    memcpy(&length, data, sizeof(length));
    return length >= 2 && length <= 100000000;
}

const char * gb_gguf_foreign(const uint8_t * data, size_t size) {
    static const char tar[] = "ustar";
    static const size_t at = 257;  // offset of a tar file's signature
    if (is_safetensors(data, size)) { // first: the length may begin with a signature
        return "a safetensors file: convert it with python -m ggml_backend gguf convert";
    }
    for (size_t i = 0; i < sizeof(signatures) / sizeof(signatures[0]); i++) {
        const struct signature * s = &signatures[i];
        if (size >= s->n && memcmp(data, s->bytes, s->n) == 0) {
            return s->what;
        }
    }
    if (size >= at + 5 && memcmp(data + at, tar, 5) == 0) {
        return "a tar file: " PACKED;
    }
    if (is_page(data, size)) {
        return "an HTML or XML page: download the file itself (the server may ask you to log in)";
    }
    return NULL;
}
