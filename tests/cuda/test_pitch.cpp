// test_pitch.cpp - rows that are too far apart for the device's copies of rows are copied one by one.
#include "device_graph.h"


// Rows of 8 floats, `pitch` bytes apart, between all devices and the host.
static void copy_rows(size_t pitch, int64_t n) {
    ggml_backend_t backends[3] = { ggml_backend_cpu_init(), cuda_open(0), cuda_open(1) };
    for (int pair = 0; pair < 9; pair++) {
        ggml_context * ctx[2];
        ggml_tensor *whole[2], *part[2];
        ggml_backend_buffer_t buffer[2];
        for (int i = 0; i < 2; i++) {
            ctx[i] = ggml_init({ 1 << 14, NULL, true });
            whole[i] = ggml_new_tensor_1d(ctx[i], GGML_TYPE_F32, (int64_t) (pitch / 4) * n);
            part[i] = ggml_view_2d(ctx[i], whole[i], 8, n, pitch, 8);
            buffer[i] = ggml_backend_alloc_ctx_tensors(ctx[i], backends[i == 0 ? pair / 3 : pair % 3]);
        }
        std::vector<float> values((size_t) ggml_nelements(whole[0])), got(values.size(), 7);
        for (size_t i = 0; i < values.size(); i++) {
            values[i] = (float) i;
        }
        ggml_backend_tensor_set(whole[0], values.data(), 0, ggml_nbytes(whole[0]));
        ggml_backend_tensor_set(whole[1], got.data(), 0, ggml_nbytes(whole[1]));
        CHECK_MSG(ggml_backend_tensor_copy(part[0], part[1]) == GGML_STATUS_SUCCESS, "%s", ggml_last_error());
        ggml_backend_tensor_get(whole[1], got.data(), 0, ggml_nbytes(whole[1]));
        int wrong = 0;
        for (size_t i = 0; i < got.size(); i++) {
            const size_t in_row = i % (pitch / 4);
            wrong += got[i] != (in_row >= 2 && in_row < 10 ? values[i] : 7);
        }
        CHECK_MSG(wrong == 0, "pair %d, pitch %zu: %d wrong", pair, pitch, wrong);
        for (int i = 0; i < 2; i++) {
            ggml_backend_buffer_free(buffer[i]);
            ggml_free(ctx[i]);
        }
    }
    for (ggml_backend_t b : backends) {
        ggml_backend_free(b);
    }
}

static void rows_beyond_the_pitch_are_copied(void) {
    gb_emu_set_pitch_max(255); // 2^31 - 1 on a real device; set before it is listed
    CUDA_OR_SKIP();
    for (size_t pitch : { (size_t) 64, (size_t) 252, (size_t) 256, (size_t) 400 }) {
        copy_rows(pitch, 5);
    }
}


TEST_MAIN(TEST(rows_beyond_the_pitch_are_copied))
