// test_file_fill.c - a fake device fills tensors from its own files, which are tables of bytes.
#include "base/digest.h"
#include "test_fake.h"

#define OK(call) CHECK_MSG((call) == GGML_STATUS_SUCCESS, "%s: %s", #call, ggml_last_error())

enum { N = 40, COUNT = 300, NBYTES = COUNT * 4, MOST = 16 };

// The files of the device, and its received requests.
static struct {
    char path[32]; // "": no file
    uint8_t bytes[N * NBYTES];
    int n_begun, n_ended, most, n_kept;
    bool refuses; // file_begin returns NULL
    int fails;    // countdown to a reported failure
    uint8_t kept[GB_DIGEST_SIZE];
} disk;

static void * begin(ggml_backend_buffer_t buffer, const struct ggml_backend_file_fill * part) {
    (void) buffer;
    if (fake_fails(&disk.fails)) {
        ggml_report_error(GGML_STATUS_DEVICE_ERROR, "disk: cannot be asked");
        return NULL;
    }
    disk.n_begun += !disk.refuses;
    disk.most = GB_MAX(disk.most, disk.n_begun - disk.n_ended);
    return disk.refuses ? NULL : (void *) (uintptr_t) part;
}

static bool end(ggml_backend_buffer_t buffer, void * request, bool wanted) {
    const struct ggml_backend_file_fill * part = request;
    struct gb_digest digest;
    uint8_t found[GB_DIGEST_SIZE];
    (void) buffer;
    disk.n_ended++;
    if (!wanted) {
        ggml_report_error(GGML_STATUS_FAILED, "disk: nobody wants to know");
        return false;
    }
    if (strcmp(part->path, disk.path) != 0) {
        return false;
    }
    gb_digest_begin(&digest);
    gb_digest_add(&digest, disk.bytes + part->at, part->size);
    gb_digest_end(&digest, found);
    if (memcmp(found, part->digest, sizeof(found)) != 0) {
        ggml_report_error(GGML_STATUS_IO_ERROR, "disk: another file");
        return false;
    }
    memcpy((char *) part->tensor->data + part->offset, disk.bytes + part->at, part->size);
    return true;
}

static void keep(ggml_backend_buffer_t buffer, const struct ggml_backend_file_fill * part) {
    (void) buffer;
    memcpy(disk.kept, part->digest, sizeof(disk.kept));
    disk.n_kept++;
}

static struct {
    struct fake device;
    ggml_backend_buffer_t buffer;
    struct ggml_context * ctx;
    uint8_t file[N * NBYTES]; // equal to the host's file
    struct ggml_backend_file_fill parts[N];
} p;

static void open_parts(bool has_hooks) {
    fake_new(&p.device);
    memset(&disk, 0, sizeof(disk));
    strcpy(disk.path, "/models/m");
    for (size_t i = 0; i < sizeof(p.file); i++) {
        p.file[i] = disk.bytes[i] = (uint8_t) (i % 251);
    }
    p.ctx = ggml_init((struct ggml_init_params){ 1 << 20, NULL, true });
    for (int i = 0; i < N; i++) {
        struct ggml_tensor * t = ggml_format_name(ggml_new_tensor_1d(p.ctx, GGML_TYPE_F32, COUNT), "t%d", i);
        p.parts[i] = (struct ggml_backend_file_fill){ .tensor = t, .size = NBYTES, .path = "/models/m" };
        p.parts[i].at = (uint64_t) i * NBYTES;
        p.parts[i].data = p.file + (size_t) i * NBYTES;
    }
    p.buffer = ggml_backend_alloc_ctx_tensors_from_buft(p.ctx, &p.device.buft);
    REQUIRE(p.buffer != NULL);
    ggml_backend_buffer_clear(p.buffer, 0);
    if (has_hooks) {
        p.buffer->iface.file_begin = begin;
        p.buffer->iface.file_end = end;
        p.buffer->iface.file_keep = keep;
    }
}

static void close_parts(void) {
    CHECK_INT(disk.n_ended, disk.n_begun); // in every case
    ggml_backend_buffer_free(p.buffer);
    ggml_free(p.ctx);
}

static int n_filled(void) {
    int n = 0;
    for (int i = 0; i < N; i++) {
        n += p.parts[i].filled;
        CHECK(!p.parts[i].filled || memcmp(p.parts[i].tensor->data, p.parts[i].data, NBYTES) == 0);
    }
    return n;
}

static void a_device_reads_its_own_file(void) {
    open_parts(true);
    OK(ggml_backend_fill_from_files(p.parts, N));
    CHECK_INT(n_filled(), N);
    CHECK_INT(p.device.n_set, 0); // no data were sent
    CHECK_INT(disk.most, MOST);   // several reads were pending
    CHECK_INT(disk.n_begun, N);

    ggml_backend_buffer_clear(p.buffer, 0); // a slice of a tensor
    p.parts[3].offset = 400;
    p.parts[3].at += 400;
    p.parts[3].data = (const char *) p.parts[3].data + 400;
    p.parts[3].size = 100;
    const uint64_t version = gb_buffer_version(p.buffer);
    OK(ggml_backend_fill_from_files(&p.parts[3], 1));
    CHECK(p.parts[3].filled && gb_buffer_version(p.buffer) != version); // copies of it are outdated
    const uint8_t * bytes = p.parts[3].tensor->data;
    CHECK(bytes[399] == 0 && bytes[500] == 0 && memcmp(bytes + 400, p.parts[3].data, 100) == 0);
    close_parts();
}

static void the_caller_sets_unread_parts(void) {
    open_parts(true);
    disk.path[0] = '\0'; // the device has no such file
    OK(ggml_backend_fill_from_files(p.parts, N));
    CHECK(n_filled() == 0 && p.parts[5].asked && disk.n_begun == N);
    OK(ggml_backend_keep_file(&p.parts[5]));
    CHECK(disk.n_kept == 1 && memcmp(disk.kept, p.parts[5].digest, GB_DIGEST_SIZE) == 0);
    disk.refuses = true; // or cannot read it
    OK(ggml_backend_fill_from_files(p.parts, N));
    CHECK(n_filled() == 0 && !p.parts[5].asked);
    OK(ggml_backend_keep_file(&p.parts[5]));
    p.buffer->iface.file_keep = NULL;
    p.parts[5].asked = true;
    OK(ggml_backend_keep_file(&p.parts[5]));
    CHECK_INT(disk.n_kept, 1);
    close_parts();

    open_parts(false); // a backend without the hooks
    OK(ggml_backend_fill_from_files(p.parts, N));
    CHECK(n_filled() == 0 && !p.parts[0].asked && p.device.n_set == 0);
    p.buffer->iface.file_begin = begin; // or with only one hook
    OK(ggml_backend_fill_from_files(p.parts, N));
    CHECK(n_filled() == 0 && disk.n_begun == 0);
    close_parts();
}

static void another_file_is_an_error(void) {
    open_parts(true);
    disk.bytes[17 * NBYTES] ^= 1;
    CHECK_INT(ggml_backend_fill_from_files(p.parts, N), GGML_STATUS_IO_ERROR);
    CHECK_ERROR(GGML_STATUS_IO_ERROR, "tensor 't17' from '/models/m': disk: another file");
    CHECK(p.parts[16].filled && !p.parts[17].filled && !p.parts[N - 1].filled);
    disk.fails = 20;
    disk.bytes[17 * NBYTES] ^= 1;
    CHECK_INT(ggml_backend_fill_from_files(p.parts, N), GGML_STATUS_DEVICE_ERROR);
    CHECK_ERROR(GGML_STATUS_DEVICE_ERROR, "tensor 't19' from '/models/m': disk: cannot be asked");
    OK(ggml_backend_fill_from_files(p.parts, N));
    CHECK_INT(n_filled(), N);
    close_parts();
}

static void bad_arguments(void) {
    open_parts(true);
    OK(ggml_backend_fill_from_files(NULL, 0));
    CHECK_INT(ggml_backend_fill_from_files(NULL, 1), GGML_STATUS_INVALID_ARGUMENT);
    CHECK_INT(ggml_backend_keep_file(NULL), GGML_STATUS_INVALID_ARGUMENT);
    p.parts[1].path = NULL;
    CHECK_INT(ggml_backend_fill_from_files(p.parts, N), GGML_STATUS_INVALID_ARGUMENT);
    CHECK_ERROR(GGML_STATUS_INVALID_ARGUMENT, "part 1 has no path");
    p.parts[1].path = "/models/m";
    p.parts[1].data = NULL;
    CHECK_INT(ggml_backend_fill_from_files(p.parts, N), GGML_STATUS_INVALID_ARGUMENT);
    p.parts[1].size = 0; // it gets no request
    OK(ggml_backend_fill_from_files(p.parts, N));
    CHECK(!p.parts[1].asked && n_filled() == N - 1);
    p.parts[2].offset = 1;
    CHECK_INT(ggml_backend_fill_from_files(p.parts, N), GGML_STATUS_INVALID_ARGUMENT);
    CHECK_ERROR(GGML_STATUS_INVALID_ARGUMENT, "tensor 't2': offset 1 and size 1200 reach past its 1200 bytes");
    struct ggml_tensor * placeless = ggml_new_tensor_1d(p.ctx, GGML_TYPE_F32, COUNT);
    p.parts[2] = (struct ggml_backend_file_fill){ .tensor = placeless, .size = NBYTES, .path = "m", .data = p.file };
    CHECK_INT(ggml_backend_fill_from_files(p.parts, N), GGML_STATUS_INVALID_STATE);
    p.parts[2].tensor = NULL;
    CHECK_INT(ggml_backend_keep_file(&p.parts[2]), GGML_STATUS_INVALID_ARGUMENT);
    close_parts();
}

TEST_MAIN(TEST(a_device_reads_its_own_file), TEST(the_caller_sets_unread_parts), TEST(another_file_is_an_error),
    TEST(bad_arguments))
