// fuzz_gguf.c - any bytes as a GGUF file: refused with a message that names the position, or
// everything in it can be read and written again.
//
// A libFuzzer target (tools/check_long.sh builds it with clang). tests/c/gguf/test_fuzz_gguf.c
// replays its corpus with any compiler.
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ggml.h"
#include "gguf.h"

#define MUST(cond)                                                                             \
    do {                                                                                       \
        if (!(cond)) {                                                                         \
            fprintf(stderr, "%s:%d: %s (%s)\n", __FILE__, __LINE__, #cond, ggml_last_error()); \
            abort();                                                                           \
        }                                                                                      \
    } while (0)

int LLVMFuzzerTestOneInput(const uint8_t * data, size_t size);

static volatile uint64_t sink; // so that reading is not optimized away
static int n_accepted, n_refused;

static void quiet(enum ggml_log_level level, const char * text, void * user_data) {
    (void) level, (void) text, (void) user_data;
}

// Reads every byte: strings have terminators, and arrays their stated length.
static void read_value(const struct gguf_context * g, int i) {
    const enum gguf_type type = gguf_get_kv_type(g, i);
    if (type == GGUF_TYPE_STRING) {
        sink = strlen(gguf_get_val_str(g, i));
        return;
    }
    if (type != GGUF_TYPE_ARRAY) {
        sink = *(const uint8_t *) gguf_get_val_data(g, i);
        return;
    }
    static const size_t sizes[GGUF_TYPE_COUNT] = { 1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8 };
    const int n = gguf_get_arr_n(g, i);
    const size_t bytes = (size_t) n * sizes[gguf_get_arr_type(g, i)];
    uint64_t sum = 0;
    for (int k = 0; gguf_get_arr_type(g, i) == GGUF_TYPE_STRING && k < n; k++) {
        sum += strlen(gguf_get_arr_str(g, i, k));
    }
    for (size_t k = 0; k < bytes; k++) {
        sum += ((const uint8_t *) gguf_get_arr_data(g, i))[k];
    }
    sink = sum;
}

// Dequantizes the first blocks of a tensor, whose bits may be any.
static void read_tensor(const struct gguf_context * g, const struct ggml_context * ctx, int i) {
    const int64_t * ne = gguf_get_tensor_ne(g, i);
    const enum ggml_type type = gguf_get_tensor_type(g, i);
    const ggml_type_traits_t traits = ctx ? ggml_internal_get_type_traits(type) : (ggml_type_traits_t){ 0 };
    float out[512];
    MUST(ne != NULL && gguf_get_tensor_name(g, i) != NULL);
    MUST(gguf_find_tensor(g, gguf_get_tensor_name(g, i)) == i);
    if (ctx == NULL) { // of an unknown type or next to one, so without data
        return;
    }
    const char * data = (const char *) gguf_get_data(g) + gguf_get_tensor_offset(g, i);
    if (traits.to_float && gguf_get_tensor_size(g, i) > 0) {
        traits.to_float(data, out, ne[0] < 512 ? (int) ne[0] : 512 / ggml_blck_size(type) * ggml_blck_size(type));
    }
    uint64_t sum = 0;
    for (size_t k = 0; k < gguf_get_tensor_size(g, i); k++) {
        sum += (uint8_t) data[k];
    }
    sink = sum;
}

// The read file can be written, and gives the same when it is read again.
static void write_again(const struct gguf_context * g) {
    const size_t size = gguf_get_meta_size(g);
    void * meta = malloc(size);
    struct gguf_context * copy = gguf_init_empty();
    if (meta != NULL && copy != NULL) {
        MUST(gguf_get_meta_data(g, meta) == GGML_STATUS_SUCCESS);
        MUST(gguf_set_kv(copy, (struct gguf_context *) g) == GGML_STATUS_SUCCESS);
        MUST(gguf_get_n_kv(copy) == gguf_get_n_kv(g) && gguf_get_alignment(copy) == gguf_get_alignment(g));
        if (gguf_get_n_tensors(g) == 0) {
            struct gguf_context * again = gguf_init_from_buffer(meta, size, (struct gguf_init_params){ true, NULL });
            MUST(again != NULL && gguf_get_n_kv(again) == gguf_get_n_kv(g));
            gguf_free(again);
        }
    }
    gguf_free(copy);
    free(meta);
}

int LLVMFuzzerTestOneInput(const uint8_t * data, size_t size) {
    ggml_log_set(quiet, NULL);
    ggml_clear_error();
    uint8_t * exact = malloc(size ? size : 1); // an exact size, so that reads beyond the last byte are found
    if (exact == NULL) {
        return 0;
    }
    if (size > 0) {
        memcpy(exact, data, size);
    }
    struct ggml_context * ctx = NULL;
    struct gguf_context * g = gguf_init_from_buffer(exact, size, (struct gguf_init_params){ false, &ctx });
    // with an unknown type: metadata and bytes only
    if (g == NULL && ggml_last_status() == GGML_STATUS_UNSUPPORTED) {
        MUST(ctx == NULL && strstr(ggml_last_error(), "at offset ") != NULL);
        g = gguf_init_from_buffer(exact, size, (struct gguf_init_params){ true, NULL });
        MUST(g != NULL);
    }
    free(exact);
    if (g == NULL) {
        n_refused++;
        MUST(ctx == NULL && ggml_last_status() == GGML_STATUS_IO_ERROR);
        MUST(strstr(ggml_last_error(), "at offset ") != NULL);
        return 0;
    }
    n_accepted++;
    for (int i = 0; i < gguf_get_n_kv(g); i++) {
        MUST(gguf_find_key(g, gguf_get_key(g, i)) == i);
        read_value(g, i);
    }
    for (int i = 0; i < gguf_get_n_tensors(g); i++) {
        read_tensor(g, ctx, i);
    }
    write_again(g);
    gguf_free(g);
    ggml_free(ctx);
    return 0;
}
