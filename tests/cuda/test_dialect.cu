// test_dialect.cu - the dialect of launch.cuh does what its comments say, on a device and in the emulation.
//
// Products of tiles are compared with their definition, with small integers, which are exact everywhere. The emulation
// must also notice forbidden code.
#include "kernel_test.h"

// --------------------------------------------------------------------------------------------------------------- warps

GB_KERNEL lanes(int * out) {
    const int lane = gb_lane();
    int * mine = out + 6 * threadIdx.x;
    mine[0] = gb_shfl(lane * 3, 5);
    mine[1] = gb_shfl_xor(lane, 6);
    mine[2] = gb_shfl_up(lane, 3);
    mine[3] = (int) gb_ballot(lane % 3 == 0);
    mine[4] = gb_warp_sum(lane);
    mine[5] = (int) gb_warp_max((float) (lane ^ 21));
}

static void warps_exchange() {
    CUDA_OR_SKIP();
    device_memory m(64 * 6 * sizeof(int));
    CHECK_INT(GB_LAUNCH(lanes, 1, 64, 0, queue(), (int *) m.p), cudaSuccess);
    const std::vector<int> out = read_back<int>(m);
    for (int t = 0; t < 64; t++) {
        const int lane = t % 32;
        const int * mine = &out[(size_t) (6 * t)];
        CHECK_INT(mine[0], 15);
        CHECK_INT(mine[1], lane ^ 6);
        CHECK_INT(mine[2], lane < 3 ? lane : lane - 3);
        CHECK_INT(mine[3], 0x49249249);
        CHECK_INT(mine[4], 496);
        CHECK_INT(mine[5], 31);
    }
}

// ------------------------------------------------------------------------------------------------------- shared memory

GB_KERNEL reverse(const float * x, float * y) {
    GB_SHARED(float, a, 128);
    GB_DYNAMIC_SHARED(float, b);
    a[threadIdx.x] = x[blockIdx.x * 128 + threadIdx.x];
    gb_sync_block();
    b[threadIdx.x] = a[127 - threadIdx.x];
    gb_sync_block();
    y[blockIdx.x * 128 + threadIdx.x] = b[(threadIdx.x + 1) % 128];
}

// Rows of 16 bytes: copied whole, in part with zeros after them, and 8 bytes at a time, in two groups.
GB_KERNEL async_copies(const int * x, int * y, int bytes) {
    GB_SHARED(int, a, 128);
    GB_SHARED(int, b, 128);
    const int t = (int) threadIdx.x;
    gb_cp_async_16(a + 4 * t, x + 4 * t, bytes);
    gb_cp_async_commit();
    for (int i = 0; i < 4; i += 2) {
        gb_cp_async_8(b + 4 * t + i, x + 4 * t + 2 - i);
    }
    gb_cp_async_commit();
    gb_cp_async_wait<1>();
    gb_sync_warp();
    for (int i = 0; i < 4; i++) {
        y[4 * t + i] = a[4 * ((t + 1) % 32) + i];
    }
    gb_cp_async_wait<0>();
    gb_sync_warp();
    for (int i = 0; i < 4; i++) {
        y[128 + 4 * t + i] = b[4 * ((t + 1) % 32) + i];
    }
}

static void shared_memory_is_shared() {
    CUDA_OR_SKIP();
    std::vector<float> x(3 * 128);
    for (size_t i = 0; i < x.size(); i++) {
        x[i] = (float) i;
    }
    device_memory in(x.size() * 4), out(x.size() * 4);
    write(in, x);
    CHECK_INT(GB_LAUNCH(reverse, 3, 128, 128 * sizeof(float), queue(), (const float *) in.p, (float *) out.p),
        cudaSuccess);
    const std::vector<float> y = read_back<float>(out);
    for (int i = 0; i < 3 * 128; i++) {
        CHECK(y[(size_t) i] == (float) (i / 128 * 128 + 127 - (i + 1) % 128));
    }
}

static void copies_arrive() {
    CUDA_OR_SKIP();
    std::vector<int> x(128);
    for (int i = 0; i < 128; i++) {
        x[(size_t) i] = i + 1;
    }
    device_memory in(512), out(1024);
    write(in, x);
    for (int bytes = 0; bytes <= 16; bytes += 4) {
        CHECK_INT(GB_LAUNCH(async_copies, 1, 32, 0, queue(), (const int *) in.p, (int *) out.p, bytes), cudaSuccess);
        const std::vector<int> y = read_back<int>(out);
        for (int i = 0; i < 128; i++) {
            const int row = (i / 4 + 1) % 32;
            CHECK_INT(y[(size_t) i], i % 4 < bytes / 4 ? 4 * row + i % 4 + 1 : 0);
            CHECK_INT(y[(size_t) (128 + i)], 4 * row + (i % 4 ^ 2) + 1);
        }
    }
}

// ------------------------------------------------------------------------------------------------------------ products

// A of 16 x K and B of K x 8 (by columns), `per` elements a register. Each lane takes the elements of the manual.
template <int K, class Element>
GB_DEVICE void load_fragments(const Element * a, const Element * b, uint32_t (&ra)[4], uint32_t (&rb)[2]) {
    const int per = 4 / (int) sizeof(Element), g = gb_lane() / 4, t = gb_lane() % 4;
    for (int half = 0; half < 2; half++) {
        const int k = half * K / 2 + t * per;
        memcpy(&ra[2 * half], a + g * K + k, 4);
        memcpy(&ra[2 * half + 1], a + (g + 8) * K + k, 4);
        memcpy(&rb[half], b + g * K + k, 4);
    }
}

template <class Sum> GB_DEVICE void store_fragments(Sum * d, const Sum (&rd)[4]) {
    const int g = gb_lane() / 4, t = gb_lane() % 4;
    for (int i = 0; i < 4; i++) {
        d[(g + 8 * (i / 2)) * 8 + 2 * t + i % 2] = rd[i];
    }
}

template <int type> GB_KERNEL multiply_float(const void * a, const void * b, float * d) {
    uint32_t ra[4], rb[2];
    float rd[4] = { 1, 1, 1, 1 };
    if (type == 2) {
        load_fragments<8>((const uint32_t *) a, (const uint32_t *) b, ra, rb);
        gb_mma_tf32(rd, ra, rb);
    } else {
        load_fragments<16>((const uint16_t *) a, (const uint16_t *) b, ra, rb);
        if (type == 0) {
            gb_mma_f16(rd, ra, rb);
        } else {
            gb_mma_bf16(rd, ra, rb);
        }
    }
    store_fragments(d, rd);
}

GB_KERNEL multiply_bytes(const int8_t * a, const int8_t * b, int * d) {
    uint32_t ra[4], rb[2];
    int rd[4] = { 1, 1, 1, 1 };
    load_fragments<32>(a, b, ra, rb);
    gb_mma_s8(rd, ra, rb);
    store_fragments(d, rd);
}

// The same in two steps.
GB_KERNEL multiply_half_bytes(const int8_t * a, const int8_t * b, int * d) {
    uint32_t ra[4], rb[2];
    int rd[4] = { 1, 1, 1, 1 };
    load_fragments<32>(a, b, ra, rb);
    int half[4], all[4];
    const uint32_t low[2] = { ra[0], ra[1] }, high[2] = { ra[2], ra[3] };
    gb_mma_s8_half(half, low, rb[0], rd);
    gb_mma_s8_half(rd, high, rb[1], half);
    const int one[4] = { 1, 1, 1, 1 };
    gb_mma_s8(all, ra, rb, one);
    for (int i = 0; i < 4; i++) {
        rd[i] = all[i] == rd[i] ? rd[i] : -1000000;
    }
    store_fragments(d, rd);
}

// The same product of halves, with fragments from shared memory: A by rows, B by rows and transposed by the load.
GB_KERNEL multiply_shared(const uint16_t * a, const uint16_t * b, float * d) {
    GB_SHARED(uint16_t, sa, 16 * 16);
    GB_SHARED(uint16_t, sb, 16 * 16);
    const int lane = gb_lane();
    for (int i = lane; i < 256; i += 32) {
        sa[i] = a[i];
        sb[i] = b[i % 128];
    }
    gb_sync_warp();
    uint32_t ra[4], rb[4];
    float rd[4] = { 1, 1, 1, 1 };
    gb_ldmatrix_x4(ra, sa + lane % 16 * 16 + lane / 16 * 8);
    gb_ldmatrix_x4(rb, sb + lane % 8 * 16 + lane / 8 * 8 % 16);
    const uint32_t first[2] = { rb[0], rb[1] };
    gb_mma_f16(rd, ra, first);
    store_fragments(d, rd);
}

static uint32_t encode(int value, int type) { // a small integer
    float x = (float) value;
    uint32_t u;
    memcpy(&u, &x, 4);
    return type == 0 ? ggml_fp32_to_fp16(x) : type == 1 ? u >> 16 : type == 2 ? u : (uint32_t) (uint8_t) (int8_t) value;
}

// Integers a and b of 16 x k and 8 x k, as `bytes` each of the type; and their product plus one.
struct tiles {
    std::vector<uint8_t> a, b;
    double d[16 * 8];
};

static tiles random_tiles(int k, int bytes, int type) {
    tiles t;
    std::vector<int> a((size_t) (16 * k)), b((size_t) (8 * k));
    for (std::vector<int> * v : { &a, &b }) {
        for (int & x : *v) {
            x = (int) test_random_int(-20, 20);
            const uint32_t u = encode(x, type);
            for (int i = 0; i < bytes; i++) {
                (v == &a ? t.a : t.b).push_back((uint8_t) (u >> (8 * i)));
            }
        }
    }
    for (int i = 0; i < 16 * 8; i++) {
        t.d[i] = 1;
        for (int j = 0; j < k; j++) {
            t.d[i] += (double) a[(size_t) (i / 8 * k + j)] * b[(size_t) (i % 8 * k + j)];
        }
    }
    return t;
}

template <class Sum> static void check_product(const char * what, const device_memory & d, const tiles & t) {
    const std::vector<Sum> got = read_back<Sum>(d);
    int wrong = 0;
    for (int i = 0; i < 16 * 8; i++) {
        wrong += (double) got[(size_t) i] != t.d[i];
    }
    CHECK_MSG(wrong == 0, "%s: %d of 128 are wrong", what, wrong);
}

static bool has_8_0() {
    cudaDeviceProp p;
    return cudaGetDeviceProperties(&p, 0) == cudaSuccess && p.major >= 8;
}

static void tiles_multiply() {
    CUDA_OR_SKIP();
    device_memory d(16 * 8 * 4);
    for (int round = 0; round < 3; round++) {
        for (int type = 0; type < 4; type++) {
            const int k = type == 2 ? 8 : type == 3 ? 32 : 16, bytes = type == 2 ? 4 : type == 3 ? 1 : 2;
            const tiles t = random_tiles(k, bytes, type);
            device_memory a(t.a.size()), b(t.b.size());
            write(a, t.a);
            write(b, t.b);
            if (type == 0) {
                CHECK_INT(GB_LAUNCH(multiply_float<0>, 1, 32, 0, queue(), (const void *) a.p, (const void *) b.p,
                              (float *) d.p),
                    cudaSuccess);
                check_product<float>("f16", d, t);
                CHECK_INT(GB_LAUNCH(multiply_shared, 1, 32, 0, queue(), (const uint16_t *) a.p, (const uint16_t *) b.p,
                              (float *) d.p),
                    cudaSuccess);
                check_product<float>("f16 from shared memory", d, t);
            } else if (type == 3) {
                CHECK_INT(GB_LAUNCH(multiply_bytes, 1, 32, 0, queue(), (const int8_t *) a.p, (const int8_t *) b.p,
                              (int *) d.p),
                    cudaSuccess);
                check_product<int>("s8", d, t);
                if (has_8_0()) {
                    CHECK_INT(GB_LAUNCH(multiply_half_bytes, 1, 32, 0, queue(), (const int8_t *) a.p,
                                  (const int8_t *) b.p, (int *) d.p),
                        cudaSuccess);
                    check_product<int>("s8 in halves", d, t);
                }
            } else if (has_8_0()) {
                CHECK_INT(type == 1 ? GB_LAUNCH(multiply_float<1>, 1, 32, 0, queue(), (const void *) a.p,
                                          (const void *) b.p, (float *) d.p)
                                    : GB_LAUNCH(multiply_float<2>, 1, 32, 0, queue(), (const void *) a.p,
                                          (const void *) b.p, (float *) d.p),
                    cudaSuccess);
                check_product<float>(type == 1 ? "bf16" : "tf32", d, t);
            }
        }
    }
}

// ------------------------------------------------------------------------------------------------------------- numbers

GB_KERNEL raise_two(const float * x, float * y) { y[threadIdx.x] = gb_exp2(x[threadIdx.x]); }

static void powers_of_two(void) {
    CUDA_OR_SKIP();
    std::vector<float> x = { 0, 1, -1, 127.5f, -126, -130, -149.5f, -200, -INFINITY, INFINITY, NAN };
    while (x.size() < 256) {
        x.push_back(test_random_float(-40, 40));
    }
    device_memory from(x.size() * sizeof(float)), to(x.size() * sizeof(float));
    write(from, x);
    CHECK_INT(GB_LAUNCH(raise_two, 1, (unsigned) x.size(), 0, queue(), (const float *) from.p, (float *) to.p),
        cudaSuccess);
    const std::vector<float> y = read_back<float>(to);
    for (size_t i = 0; i < x.size(); i++) {
        const double exact = exp2((double) x[i]), error = fabs(y[i] - exact);
        const bool tiny = exact < ldexp(1, -126) && y[i] == 0;
        const bool same = isnan(exact) ? isnan(y[i]) : isinf(exact) ? (double) y[i] == exact : false;
        CHECK_MSG(same || tiny || error <= exact * ldexp(1, -22), "2^%g is %g", x[i], y[i]);
    }
}

GB_KERNEL convert(const float * x, uint16_t * h, uint16_t * b, float * hf, float * bf, int n) {
    const int i = (int) (blockIdx.x * blockDim.x + threadIdx.x);
    if (i < n) {
        h[i] = gb_half_bits(gb_from_float<gb_half>(x[i]));
        b[i] = gb_bf16_bits(gb_from_float<gb_bf16>(x[i]));
        hf[i] = gb_to_float(gb_half_of_bits(h[i]));
        bf[i] = gb_to_float(gb_from_float<gb_bf16>(x[i]));
    }
}

GB_KERNEL dots(const int * x, int * y) { y[threadIdx.x] = gb_dp4a(x[threadIdx.x], x[31 - threadIdx.x], 7); }

static void numbers_convert() {
    CUDA_OR_SKIP();
    enum { N = 4096 };
    std::vector<float> x(N);
    for (int i = 0; i < N; i++) {
        const uint32_t u = (uint32_t) test_random();
        memcpy(&x[(size_t) i], &u, 4);
        if (i % 2) {
            x[(size_t) i] = ldexpf(test_random_float(-1, 1), (int) test_random_int(-26, 17)); // halves and beyond
        }
    }
    x[0] = INFINITY, x[1] = -INFINITY, x[2] = 65519.996f, x[3] = 65520.0f, x[4] = 5.9604645e-8f / 2, x[5] = 0.0f,
    x[6] = -0.0f;
    device_memory in(N * 4), h(N * 2), b(N * 2), hf(N * 4), bf(N * 4);
    write(in, x);
    CHECK_INT(GB_LAUNCH(convert, N / 128, 128, 0, queue(), (const float *) in.p, (uint16_t *) h.p, (uint16_t *) b.p,
                  (float *) hf.p, (float *) bf.p, (int) N),
        cudaSuccess);
    const std::vector<uint16_t> gh = read_back<uint16_t>(h), gb = read_back<uint16_t>(b);
    const std::vector<float> ghf = read_back<float>(hf), gbf = read_back<float>(bf);
    for (size_t i = 0; i < N; i++) {
        if (isnan(x[i])) {
            CHECK(isnan(ghf[i]) && isnan(gbf[i]));
            continue;
        }
        CHECK_INT(gh[i], ggml_fp32_to_fp16(x[i]));
        CHECK_INT(gb[i], ggml_fp32_to_bf16(x[i]).bits);
        const ggml_bf16_t rounded = { gb[i] };
        CHECK(ghf[i] == ggml_fp16_to_fp32(gh[i]));
        CHECK(gbf[i] == ggml_bf16_to_fp32(rounded));
    }
}

static void bytes_multiply() {
    CUDA_OR_SKIP();
    std::vector<int> x(32);
    for (int & v : x) {
        v = (int) (uint32_t) test_random();
    }
    device_memory in(128), out(128);
    write(in, x);
    CHECK_INT(GB_LAUNCH(dots, 1, 32, 0, queue(), (const int *) in.p, (int *) out.p), cudaSuccess);
    const std::vector<int> y = read_back<int>(out);
    for (int i = 0; i < 32; i++) {
        int sum = 7;
        for (int j = 0; j < 4; j++) {
            sum += (int8_t) (x[(size_t) i] >> (8 * j)) * (int8_t) (x[(size_t) (31 - i)] >> (8 * j));
        }
        CHECK_INT(y[(size_t) i], sum);
    }
}

#ifdef GB_CUDA_EMULATED
// -------------------------------------------------------------------------------------- what the emulation must notice

GB_KERNEL barrier_of_some(int * out) {
    if (threadIdx.x < 40) {
        gb_sync_block();
    }
    out[threadIdx.x] = 1;
}

GB_KERNEL lanes_disagree(int * out) { out[threadIdx.x] = threadIdx.x % 2 ? gb_shfl(1, 0) : (int) gb_ballot(true); }

GB_KERNEL copy_forgotten(const int * x, int * out) {
    GB_SHARED(int, a, 128);
    gb_cp_async_16(a + 4 * threadIdx.x, x + 4 * threadIdx.x);
    gb_cp_async_commit();
    out[threadIdx.x] = 1;
}

GB_KERNEL two_barriers(int * out) {
    if (threadIdx.x % 2) {
        gb_sync_block();
        out[threadIdx.x] = 1;
    } else {
        gb_sync_block();
    }
}

// Reads its neighbour's value without a barrier, which is correct in one order only.
GB_KERNEL barrier_missing(int * out) {
    GB_SHARED(int, a, 128);
    a[threadIdx.x] = (int) threadIdx.x;
    out[threadIdx.x] = a[(threadIdx.x + 1) % 128];
}

static void expect_failure(const char * what, cudaError_t launched) {
    CHECK_INT(launched, cudaSuccess);
    CHECK_MSG(cudaStreamSynchronize(stream()) == cudaErrorLaunchFailure, "%s is not noticed", what);
    gb_emu_reset();
}

static void mistakes_are_noticed() {
    CUDA_OR_SKIP();
    device_memory m(512);
    int * out = (int *) m.p;
    fprintf(stderr, "(five messages of the emulation follow)\n");
    expect_failure("a barrier that not all threads come to", GB_LAUNCH(barrier_of_some, 1, 64, 0, queue(), out));
    expect_failure("lanes that do different things", GB_LAUNCH(lanes_disagree, 1, 64, 0, queue(), out));
    expect_failure("a copy that nobody waits for",
        GB_LAUNCH(copy_forgotten, 1, 32, 0, queue(), (const int *) out, out));
    expect_failure("barriers at two places", GB_LAUNCH(two_barriers, 1, 64, 0, queue(), out));
    expect_failure("dynamic shared memory that was not asked for",
        GB_LAUNCH(reverse, 1, 128, 0, queue(), (const float *) out, (float *) out));
    CHECK_INT(GB_LAUNCH(lanes, 1, 2048, 0, queue(), out), cudaErrorInvalidConfiguration);
    bool wrong = false;
    for (uint64_t seed = 1; seed <= 5; seed++) {
        gb_emu_set_seed(seed);
        CHECK_INT(GB_LAUNCH(barrier_missing, 1, 128, 0, queue(), out), cudaSuccess);
        const std::vector<int> y = read_back<int>(m);
        for (int i = 0; i < 128; i++) {
            wrong = wrong || y[(size_t) i] != (i + 1) % 128;
        }
    }
    CHECK(wrong);
}

// The limit of a block belongs to the process. A launch that needs less does not lower it.
static void shared_memory_is_not_taken_away() {
    CUDA_OR_SKIP();
    device_memory m(128 * sizeof(float));
    const uint64_t before = gb_emu_count().shared_lowered;
    for (size_t kib : { 100, 60, 100, 49 }) {
        CHECK_INT(GB_LAUNCH(reverse, 1, 128, kib << 10, queue(), (const float *) m.p, (float *) m.p), cudaSuccess);
        CHECK_INT(cudaStreamSynchronize(stream()), cudaSuccess);
    }
    CHECK_INT(gb_emu_count().shared_lowered, before);
    CHECK_INT(GB_LAUNCH(reverse, 1, 128, 1 << 20, queue(), (const float *) m.p, (float *) m.p), cudaErrorInvalidValue);
    gb_emu_reset();
}

// Nothing runs until a thread waits. Then work runs in the order of events.
static void queues_wait() {
    CUDA_OR_SKIP();
    cudaStream_t a, b;
    cudaEvent_t e;
    (void) cudaStreamCreateWithFlags(&a, cudaStreamNonBlocking);
    (void) cudaStreamCreateWithFlags(&b, cudaStreamNonBlocking);
    (void) cudaEventCreateWithFlags(&e, cudaEventDisableTiming);
    device_memory m(128);
    int early = 0, late = 0;
    for (uint64_t seed = 1; seed <= 40; seed++) {
        gb_emu_set_seed(seed);
        int value = -1;
        void * pinned = nullptr;
        (void) cudaHostAlloc(&pinned, 128, cudaHostAllocDefault);
        (void) cudaMemsetAsync(m.p, 0, 128, a);
        (void) cudaStreamSynchronize(a);
        (void) cudaMemsetAsync(m.p, 1, 128, a);
        if (seed % 2) {
            (void) cudaEventRecord(e, a);
            (void) cudaStreamWaitEvent(b, e, 0);
        }
        (void) cudaMemcpyAsync(pinned, m.p, 128, cudaMemcpyDeviceToHost, b);
        (void) cudaStreamSynchronize(b);
        memcpy(&value, pinned, 4);
        (void) cudaStreamSynchronize(a);
        if (seed % 2) {
            CHECK_INT(value, 0x01010101);
        } else {
            (value == 0 ? early : late)++;
        }
        (void) cudaFreeHost(pinned);
    }
    CHECK(early > 0 && late > 0);
    (void) cudaEventDestroy(e);
    (void) cudaStreamDestroy(a);
    (void) cudaStreamDestroy(b);
}

#    define EMULATED_TESTS , TEST(mistakes_are_noticed), TEST(shared_memory_is_not_taken_away), TEST(queues_wait)
#else
#    define EMULATED_TESTS
#endif

TEST_MAIN(TEST(warps_exchange), TEST(shared_memory_is_shared), TEST(copies_arrive), TEST(tiles_multiply),
    TEST(powers_of_two), TEST(numbers_convert), TEST(bytes_multiply) EMULATED_TESTS)
