// test_hopper_dialect.cu - the dialect of hopper.cuh does what its comments say, on a device of compute capability 9.0
// and in the emulation.
//
// Products are compared with their definition, with small integers, which are exact everywhere. The emulation must also
// notice forbidden code. Copies of tiles: test_hopper_boxes.cu.
#include "hopper_test.h"

// ---------------------------------------------------------------------------------------------------------------- maps

static void maps_have_conditions() {
    HOPPER_OR_SKIP();
    device_memory m(1 << 16);
    char * const p = (char *) m.p;
    const gb_tensor_layout good = { p, true, { 64, 16, 4, 2 }, { 128, 2048, 8192 }, { 64, 16, 1, 1 } };
    gb_tensor_map map;
    CHECK(gb_tensor_map_make(good, &map));
    gb_tensor_layout t = good;
    t.base = p + 8; // an address that 16 does not divide
    CHECK(!gb_tensor_map_make(t, &map));
    t = good;
    t.nb[0] = 136; // a stride that 16 does not divide
    CHECK(!gb_tensor_map_make(t, &map));
    t = good;
    t.nb[1] = 128 * 15; // rows that belong to two slices
    CHECK(!gb_tensor_map_make(t, &map));
    t = good;
    t.nb[1] = 2048 + 16; // no whole number of rows
    CHECK(!gb_tensor_map_make(t, &map));
    t = good;
    t.ne[0] = 65; // rows that overlap
    CHECK(!gb_tensor_map_make(t, &map));
    t = good;
    t.box[1] = 257;
    CHECK(!gb_tensor_map_make(t, &map));
    t = good;
    t.ne[3] = 0;
    CHECK(!gb_tensor_map_make(t, &map));
}

// ------------------------------------------------------------------------------------------------------------ barriers

// Warp 0 writes a number to each of two places in turn. Warps 1 and 2 add them up. A place is written again after both
// have read it.
GB_KERNEL hand_over(int * out, int n) {
    GB_DYNAMIC_SHARED(int, shared);
    gb_barrier * full = (gb_barrier *) (void *) (shared + 64);
    gb_barrier * empty = full + 2;
    const int lane = (int) threadIdx.x % 32, warp = (int) threadIdx.x / 32;
    if (threadIdx.x == 0) {
        for (int i = 0; i < 2; i++) {
            gb_barrier_init(&full[i], 32);
            gb_barrier_init(&empty[i], 64);
        }
        gb_barrier_fence();
    }
    gb_sync_block();
    int sum = 0;
    for (int i = 0; i < n; i++) {
        const int at = i % 2, parity = i / 2 % 2;
        if (warp == 0) {
            gb_barrier_wait(&empty[at], parity ^ 1);
            shared[32 * at + lane] = i * i + lane;
            gb_barrier_arrive(&full[at]);
        } else {
            gb_barrier_wait(&full[at], parity);
            sum = 3 * sum + shared[32 * at + (lane + warp) % 32];
            gb_barrier_arrive(&empty[at]);
        }
    }
    out[threadIdx.x] = sum;
}

static void phases_follow_each_other() {
    HOPPER_OR_SKIP();
    for (int n : { 1, 2, 3, 9 }) {
        device_memory out(96 * sizeof(int));
        CHECK_INT(GB_LAUNCH(hand_over, 1, 96, 64 * 4 + 32, queue(), (int *) out.p, n), cudaSuccess);
        const std::vector<int> got = read_back<int>(out);
        for (int t = 32; t < 96; t++) {
            int sum = 0;
            for (int i = 0; i < n; i++) {
                sum = 3 * sum + i * i + (t % 32 + t / 32) % 32;
            }
            CHECK_INT(got[(size_t) t], sum);
        }
    }
}

// ------------------------------------------------------------------------------------------------------------ products

struct two_maps {
    gb_tensor_map a, b;
};

enum mistake {
    NONE,
    NO_SWIZZLE, // in a descriptor
    WRONG_DISTANCE, // of eight rows
    WRONG_DEPTH, // 16 elements that are not there
    WRONG_PARITY, // waits for phases that are over
    NO_PHASE, // the second wait is for the first phase, too
    TOO_FEW_BYTES, // expected
    NO_BARRIER_FENCE,
    NO_MATRIX_FENCE,
    NO_WAIT, // for products, before the sums are read
    NEVER_WAIT,
    EARLY_COPY, // over operands of products that go on
    FEW_WARPS,
    OTHER_MATRICES, // in one of four warps
    WRITTEN_OVER, // a barrier
    UNNAMED_ROWS, // operands in registers, by the fence
    EARLY_WRITE, // to such registers
    NOT_PASSED_ON, // operands that threads copied
    LATE_COPY, // copied again while products go on
    TOO_MANY, // registers
    NOT_ALL, // of a group's warps ask for them
};

#ifdef GB_CUDA_EMULATED
GB_DEVICE int made(int wrong) { return wrong; }
#else
GB_DEVICE int made(int) { return NONE; }
#endif

// d[128][N] = a b^T, by two tiles of 64 elements of depth in the same memory.
template <int KIND, int N> GB_KERNEL multiply(GB_FIXED_PARAMETER two_maps q, float * d, int asked) {
    const int wrong = made(asked);
    GB_DYNAMIC_SHARED(char, shared);
    constexpr int A = 128 * 128, B = N * 128;
    gb_barrier * b = (gb_barrier *) (void *) (shared + A + B);
    const int lane = (int) threadIdx.x % 32, warp = (int) threadIdx.x / 32;
    if (threadIdx.x == 0) {
        gb_barrier_init(b, 1);
        if (wrong != NO_BARRIER_FENCE) {
            gb_barrier_fence();
        }
    }
    gb_sync_block();
    float sum[N / 2];
    for (int tile = 0; tile < 2; tile++) {
        if (threadIdx.x == 0) {
            gb_barrier_expect(b, wrong == TOO_FEW_BYTES ? A + B - 64 : A + B);
            gb_copy_tile(shared, q.a, 64 * tile, 0, 0, 0, b);
            gb_copy_tile(shared + A, q.b, 64 * tile, 0, 0, 0, b);
        }
        gb_barrier_wait(b, wrong == WRONG_PARITY ? tile ^ 1 : wrong == NO_PHASE ? tile * 0 : tile);
        uint64_t x = gb_matrix_of(shared + warp / 4 * 64 * 128), y = gb_matrix_of(shared + A);
        x = wrong == NO_SWIZZLE ? x & ~((uint64_t) 3 << 62) : x;
        y = wrong == WRONG_DISTANCE ? y + ((uint64_t) 64 << 32) : wrong == WRONG_DEPTH ? y + 1 : y;
        y += wrong == OTHER_MATRICES && warp == 1 ? 2 : 0;
        if (wrong != NO_MATRIX_FENCE) {
            gb_matrix_fence();
        }
        if (wrong != FEW_WARPS || warp > 0) {
            for (int i = 0; i < 4; i++) {
                gb_matrix_mma<KIND, N>(sum, x + 2 * i, y + 2 * i, tile + i > 0);
                if (i % 2 == 1) {
                    gb_matrix_commit();
                }
            }
        }
        if (wrong == EARLY_COPY && tile == 0 && threadIdx.x == 0) {
            gb_copy_tile(shared, q.a, 64, 0, 0, 0, b);
        }
        if (wrong != NEVER_WAIT && (wrong != NO_WAIT || tile == 0)) {
            gb_matrix_wait<1>();
            gb_matrix_wait<0>();
        }
        if (wrong == WRITTEN_OVER && threadIdx.x == 0) {
            *b = 1;
        }
        gb_sync_block(); // the operands are free
    }
    gb_matrix_done(sum);
    for (int j = 0; j < N / 8; j++) {
        for (int i = 0; i < 4; i++) {
            d[(16 * warp + lane / 4 + i / 2 * 8) * N + 8 * j + 2 * (lane % 4) + i % 2] = sum[4 * j + i];
        }
    }
    if (wrong == NO_WAIT) {
        gb_matrix_wait<0>();
    }
}

struct operands {
    std::vector<uint16_t> a, b; // rows of 128 elements
    device_memory da, db;
    two_maps maps = {};

    operands(bool bf16, int n) : a(128 * 128), b((size_t) n * 128), da(a.size() * 2), db(b.size() * 2) {
        for (uint16_t & v : a) {
            v = number(bf16);
        }
        for (uint16_t & v : b) {
            v = number(bf16);
        }
        write(da, a);
        write(db, b);
        REQUIRE(gb_tensor_map_make({ da.p, bf16, { 128, 128, 1, 1 }, { 256, 1 << 15, 1 << 15 }, { 64, 128, 1, 1 } },
            &maps.a));
        REQUIRE(gb_tensor_map_make({ db.p, bf16, { 128, n, 1, 1 }, { 256, n * 256, n * 256 }, { 64, n, 1, 1 } },
            &maps.b));
    }
    static uint16_t number(bool bf16) {
        const float x = (float) test_random_int(-8, 8);
        return bf16 ? ggml_fp32_to_bf16(x).bits : ggml_fp32_to_fp16(x);
    }
};

static float value_of(bool bf16, uint16_t bits) {
    ggml_bf16_t b;
    b.bits = bits;
    return bf16 ? ggml_bf16_to_fp32(b) : ggml_fp16_to_fp32(bits);
}

// Number of wrong elements.
template <int KIND, int N> static int count_wrong(int wrong) {
    const bool bf16 = KIND == GB_HALF_BF16;
    const operands o(bf16, N);
    device_memory d(128 * N * sizeof(float));
    CHECK_INT(GB_LAUNCH((multiply<KIND, N>), 1, 256, (128 + N) * 128 + 8, queue(), o.maps, (float *) d.p, wrong),
        cudaSuccess);
    if (cudaStreamSynchronize(stream()) != cudaSuccess) {
        return -1;
    }
    const std::vector<float> got = read_back<float>(d);
    int n = 0;
    for (int r = 0; r < 128; r++) {
        for (int c = 0; c < N; c++) {
            float sum = 0;
            for (int k = 0; k < 128; k++) {
                sum += value_of(bf16, o.a[(size_t) (r * 128 + k)]) * value_of(bf16, o.b[(size_t) (c * 128 + k)]);
            }
            n += !(got[(size_t) (r * N + c)] == sum);
        }
    }
    return n;
}

static void tiles_multiply() {
    HOPPER_OR_SKIP();
    CHECK_INT((count_wrong<GB_HALF_F16, 64>(NONE)), 0);
    CHECK_INT((count_wrong<GB_HALF_BF16, 64>(NONE)), 0);
    CHECK_INT((count_wrong<GB_HALF_F16, 128>(NONE)), 0);
    CHECK_INT((count_wrong<GB_HALF_BF16, 128>(NONE)), 0);
    CHECK_INT((count_wrong<GB_HALF_F16, 256>(NONE)), 0);
    CHECK_INT((count_wrong<GB_HALF_BF16, 256>(NONE)), 0);
}

// N rows of 64 elements, by 128 threads, as products read them.
template <int N> GB_DEVICE void copy_rows(const uint16_t * rows, char * shared) {
    for (int i = (int) threadIdx.x; i < N * 8; i += 128) {
        const int r = i / 8, piece = i % 8;
        gb_cp_async_16(shared + r * 128 + (piece ^ r % 8) * 16, rows + r * 64 + piece * 8);
    }
    gb_cp_async_commit();
}

// d[64][N] = a b^T, 64 elements deep: rows of a in registers; threads copy those of b to shared memory.
template <int KIND, int N> GB_KERNEL multiply_rows(const uint16_t * a, const uint16_t * b, float * d, int asked) {
    const int wrong = made(asked);
    GB_DYNAMIC_SHARED(char, shared);
    const int lane = (int) threadIdx.x % 32, first = (int) threadIdx.x / 32 * 16 + lane / 4;
    copy_rows<N>(b, shared);
    gb_cp_async_wait<0>();
    if (wrong != NOT_PASSED_ON || threadIdx.x != 77) {
        gb_copies_to_matrix();
    }
    gb_sync_block();
    uint32_t rows[4][4];
    GB_UNROLL for (int i = 0; i < 16; i++) { // registers need constant indices
        const int r = first + i % 2 * 8, k = i / 4 * 16 + i / 2 % 2 * 8 + lane % 4 * 2;
        memcpy(&rows[i / 4][i % 4], a + r * 64 + k, 4);
    }
    float sum[N / 2] = {};
    if (wrong == UNNAMED_ROWS) {
        gb_matrix_fence();
    } else {
        gb_matrix_fence(rows);
    }
    GB_UNROLL for (int i = 0; i < 4; i++) { gb_matrix_mma_rows<KIND, N>(sum, rows[i], gb_matrix_of(shared, i), i > 0); }
    gb_matrix_commit();
    if (wrong == EARLY_WRITE) {
        rows[3][lane % 4] ^= 1;
    }
    if (wrong == LATE_COPY) {
        copy_rows<N>(b, shared);
    }
    gb_matrix_wait<0>();
    gb_matrix_done(sum);
    gb_cp_async_wait<0>();
    for (int j = 0; j < N / 8; j++) {
        for (int i = 0; i < 4; i++) {
            d[(first + i / 2 * 8) * N + 8 * j + 2 * (lane % 4) + i % 2] = sum[4 * j + i];
        }
    }
}

// Number of wrong elements.
template <int KIND, int N> static int count_wrong_rows(int wrong) {
    const bool bf16 = KIND == GB_HALF_BF16;
    std::vector<uint16_t> a(64 * 64), b((size_t) N * 64);
    for (std::vector<uint16_t> * v : { &a, &b }) {
        for (uint16_t & x : *v) {
            x = operands::number(bf16);
        }
    }
    device_memory da(a.size() * 2), db(b.size() * 2), d(64 * N * sizeof(float));
    write(da, a);
    write(db, b);
    CHECK_INT(GB_LAUNCH((multiply_rows<KIND, N>), 1, 128, N * 128, queue(), (const uint16_t *) da.p,
                  (const uint16_t *) db.p, (float *) d.p, wrong),
        cudaSuccess);
    if (cudaStreamSynchronize(stream()) != cudaSuccess) {
        return -1;
    }
    const std::vector<float> got = read_back<float>(d);
    int n = 0;
    for (int r = 0; r < 64; r++) {
        for (int c = 0; c < N; c++) {
            float sum = 0;
            for (int k = 0; k < 64; k++) {
                sum += value_of(bf16, a[(size_t) (r * 64 + k)]) * value_of(bf16, b[(size_t) (c * 64 + k)]);
            }
            n += !(got[(size_t) (r * N + c)] == sum);
        }
    }
    return n;
}

static void rows_in_registers_multiply() {
    HOPPER_OR_SKIP();
    CHECK_INT((count_wrong_rows<GB_HALF_F16, 64>(NONE)), 0);
    CHECK_INT((count_wrong_rows<GB_HALF_BF16, 64>(NONE)), 0);
    CHECK_INT((count_wrong_rows<GB_HALF_F16, 128>(NONE)), 0);
    CHECK_INT((count_wrong_rows<GB_HALF_BF16, 128>(NONE)), 0);
    CHECK_INT((count_wrong_rows<GB_HALF_F16, 256>(NONE)), 0);
    CHECK_INT((count_wrong_rows<GB_HALF_BF16, 256>(NONE)), 0);
}

// ----------------------------------------------------------------------------------------------------------- registers

// Two of three groups of warps get the registers that the third frees.
GB_KERNEL GB_BOUNDS(384, 1) share_registers(int * out, int asked) {
    const int wrong = made(asked);
    const int group = (int) threadIdx.x / 128;
    if (group == 2) {
        if (wrong == TOO_MANY) {
            gb_registers_fewer<160>();
        } else {
            gb_registers_fewer<24>();
        }
    } else if (wrong != NOT_ALL || threadIdx.x >= 32) {
        gb_registers_more<240>();
    }
    out[threadIdx.x] = group;
}

static int count_wrong_groups(int wrong) {
    device_memory out(384 * sizeof(int));
    CHECK_INT(GB_LAUNCH(share_registers, 1, 384, 0, queue(), (int *) out.p, wrong), cudaSuccess);
    if (cudaStreamSynchronize(stream()) != cudaSuccess) {
        return -1;
    }
    const std::vector<int> got = read_back<int>(out);
    int n = 0;
    for (int t = 0; t < 384; t++) {
        n += got[(size_t) t] != t / 128;
    }
    return n;
}

static void registers_are_shared() {
    HOPPER_OR_SKIP();
    CHECK_INT(count_wrong_groups(NONE), 0);
}

#ifdef GB_CUDA_EMULATED
// -------------------------------------------------------------------------------------- what the emulation must notice

static void mistakes_are_noticed() {
    HOPPER_OR_SKIP();
    const struct {
        mistake what;
        const char * name;
        bool fails; // always; else the result may be wrong instead
    } all[] = {
        { NO_SWIZZLE, "a descriptor without swizzle", true },
        { WRONG_DISTANCE, "a wrong distance of eight rows", true }, // past the end of shared memory
        { WRONG_DEPTH, "elements past the end of a row", true },
        { WRONG_PARITY, "a phase that was over before", false },
        { NO_PHASE, "a second wait for the first phase", false },
        { TOO_FEW_BYTES, "a phase that lacks bytes", true },
        { NO_BARRIER_FENCE, "a barrier that copies do not see", true },
        { NO_MATRIX_FENCE, "sums without a fence", true },
        { NO_WAIT, "sums that are read early", false },
        { NEVER_WAIT, "products that nobody waits for", true },
        { EARLY_COPY, "operands that are overwritten", false },
        { FEW_WARPS, "products of three warps", true },
        { OTHER_MATRICES, "warps with different matrices", true },
        { WRITTEN_OVER, "a barrier that is overwritten", true },
    };
    fprintf(stderr, "(messages of the emulation follow)\n");
    for (const auto & m : all) {
        const int n = count_wrong<GB_HALF_F16, 64>(m.what);
        CHECK_MSG(m.fails ? n < 0 : n != 0, "%s is not noticed: %d", m.name, n);
        gb_emu_reset();
    }
    CHECK_INT((count_wrong<GB_HALF_F16, 64>(NONE)), 0);
}

static void mistakes_with_registers_are_noticed() {
    HOPPER_OR_SKIP();
    fprintf(stderr, "(messages of the emulation follow)\n");
    for (int m : { UNNAMED_ROWS, EARLY_WRITE, NOT_PASSED_ON }) {
        CHECK_INT((count_wrong_rows<GB_HALF_F16, 64>(m)), -1);
        gb_emu_reset();
    }
    CHECK((count_wrong_rows<GB_HALF_F16, 64>(LATE_COPY)) != 0);
    gb_emu_reset();
    for (int m : { TOO_MANY, NOT_ALL }) {
        CHECK_INT(count_wrong_groups(m), -1);
        gb_emu_reset();
    }
    CHECK_INT((count_wrong_rows<GB_HALF_F16, 64>(NONE)), 0);
    CHECK_INT(count_wrong_groups(NONE), 0);
}

static void other_devices_have_no_code() {
    CUDA_OR_SKIP();
    CHECK(gb_has_hopper_code(nothing));
    gb_emu_set_hopper_code(0);
    CHECK(!gb_has_hopper_code(nothing));
    fprintf(stderr, "(a message of the emulation follows)\n");
    CHECK_INT((count_wrong<GB_HALF_F16, 64>(NONE)), -1);
    gb_emu_reset();
    gb_emu_set_hopper_code(1);
    CHECK_INT((count_wrong<GB_HALF_F16, 64>(NONE)), 0);
}

#    define EMULATED_TESTS \
    , TEST(mistakes_are_noticed), TEST(mistakes_with_registers_are_noticed), TEST(other_devices_have_no_code)
#else
#    define EMULATED_TESTS
#endif

TEST_MAIN(TEST(maps_have_conditions), TEST(phases_follow_each_other), TEST(tiles_multiply),
    TEST(rows_in_registers_multiply), TEST(registers_are_shared) EMULATED_TESTS)
