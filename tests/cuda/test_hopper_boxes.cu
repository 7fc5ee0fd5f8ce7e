// test_hopper_boxes.cu - which boxes of a tensor gb_copy_tile copies (hopper.cuh), compared with the whole tensor.
//
// The first test has the boxes that kernels use. The others begin at an element that 8 does not divide, or lie outside
// of the tensor along rows or slices. NVIDIA's documents allow them, but an H200 ended with an illegal instruction for
// one of them. Kernels may not use them, which the emulation enforces. On a device each of these tests reports what it
// saw and never fails. It runs with GB_TEST_BOXES=1 only, because a refused box destroys the context of the process.
#include "hopper_test.h"

struct one_map {
    gb_tensor_map map;
};

struct place {
    int x, y, z, w;
};

// The box that begins at a place, as rows in their order: out[row][element].
GB_KERNEL copy_box(GB_FIXED_PARAMETER one_map q, uint16_t * out, int rows, place from) {
    GB_DYNAMIC_SHARED(char, shared);
    gb_barrier * b = (gb_barrier *) (void *) (shared + rows * 128);
    if (threadIdx.x == 0) {
        gb_barrier_init(b, 1);
        gb_barrier_fence();
    }
    gb_sync_block();
    if (threadIdx.x == 0) {
        gb_barrier_expect(b, rows * 128);
        gb_copy_tile(shared, q.map, from.x, from.y, from.z, from.w, b);
    }
    gb_barrier_wait(b, 0);
    for (int i = (int) threadIdx.x; i < rows * 64; i += (int) blockDim.x) {
        const int r = i / 64, piece = i % 64 / 8;
        out[i] = ((const uint16_t *) (const void *) shared)[r * 64 + (piece ^ r % 8) * 8 + i % 8];
    }
}

// The tensor has 77 elements of rows of 80, 11 rows of slices of 12, and 3 slices of groups of 4.
static const int64_t ne[4] = { 77, 11, 3, 2 }, at_y = 80, at_z = 80 * 12, at_w = 80 * 12 * 4;

static const int boxes[][4] = { { 64, 16, 1, 1 }, { 64, 4, 2, 1 }, { 64, 1, 3, 2 }, { 64, 256, 1, 1 } };

static uint16_t element(const std::vector<uint16_t> & tensor, int64_t x, int64_t y, int64_t z, int64_t w) {
    const bool in = x >= 0 && x < ne[0] && y >= 0 && y < ne[1] && z >= 0 && z < ne[2] && w >= 0 && w < ne[3];
    return in ? tensor[(size_t) (x + y * at_y + z * at_z + w * at_w)] : (uint16_t) 0;
}

// The number of elements of the box that arrive wrong; -1: the device refuses the box.
static int count_wrong(const int (&box)[4], const place & from) {
    device_memory m((size_t) at_w * 2 * 2);
    const int rows = box[1] * box[2] * box[3];
    device_memory out((size_t) rows * 128);
    std::vector<uint16_t> tensor(m.size / 2);
    for (uint16_t & v : tensor) {
        v = (uint16_t) test_random();
    }
    write(m, tensor);
    one_map q = {};
    const gb_tensor_layout t = { m.p, false, { ne[0], ne[1], ne[2], ne[3] }, { at_y * 2, at_z * 2, at_w * 2 },
        { box[0], box[1], box[2], box[3] } };
    if (!gb_tensor_map_make(t, &q.map) ||
        GB_LAUNCH(copy_box, 1, 64, rows * 128 + 8, queue(), q, (uint16_t *) out.p, rows, from) != cudaSuccess ||
        cudaStreamSynchronize(stream()) != cudaSuccess) {
        return -1;
    }
    const std::vector<uint16_t> got = read_back<uint16_t>(out);
    int wrong = 0;
    for (int i = 0; i < rows * 64; i++) {
        const int r = i / 64;
        wrong += got[(size_t) i] != element(tensor, from.x + i % 64, from.y + r % box[1], from.z + r / box[1] % box[2],
                                        from.w + r / box[1] / box[2]);
    }
    return wrong;
}

static void boxes_that_kernels_use_are_copied() {
    HOPPER_OR_SKIP();
    for (const int (&box)[4] : boxes) {
        for (const place & from : { place{ 0, 0, 0, 0 }, place{ 64, 8, 1, 1 }, place{ 128, 0, 0, 0 } }) {
            const int wrong = count_wrong(box, from);
            CHECK_MSG(wrong == 0, "box %d %d %d from %d %d %d %d: %d wrong", box[1], box[2], box[3], from.x, from.y,
                from.z, from.w, wrong);
        }
    }
}

static void check_or_report(const char * what, const place & from) {
    HOPPER_OR_SKIP();
#ifdef GB_CUDA_EMULATED
    fprintf(stderr, "(a message of the emulation follows)\n");
    CHECK_MSG(count_wrong(boxes[0], from) == -1, "%s: not refused", what);
    gb_emu_reset();
#else
    if (getenv("GB_TEST_BOXES") == NULL) {
        SKIP("%s: set GB_TEST_BOXES=1, and name this test alone", what);
    }
    const int wrong = count_wrong(boxes[0], from);
    printf("reported: %s: %s\n", what, wrong == 0 ? "copied" : wrong > 0 ? "copied wrong" : "refused");
#endif
}

static void odd_element() { check_or_report("from an odd element", { 7, 0, 0, 0 }); }
static void even_element() { check_or_report("from an even element", { 4, 0, 0, 0 }); }
static void element_before() { check_or_report("from 8 elements before a row", { -8, 0, 0, 0 }); }
static void row_before() { check_or_report("from a row before the first", { 0, -3, 0, 0 }); }
static void rows_all_before() { check_or_report("rows before the first alone", { 0, -16, 0, 0 }); }
static void rows_all_after() { check_or_report("rows after the last alone", { 0, 11, 0, 0 }); }
static void slice_before() { check_or_report("a slice before the first", { 0, 0, -1, 0 }); }
static void slice_after() { check_or_report("a slice after the last", { 0, 0, 3, 0 }); }

TEST_MAIN(TEST(boxes_that_kernels_use_are_copied), TEST(odd_element), TEST(even_element), TEST(element_before),
    TEST(row_before), TEST(rows_all_before), TEST(rows_all_after), TEST(slice_before), TEST(slice_after))
