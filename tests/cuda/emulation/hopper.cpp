// hopper.cpp - implements hopper.h: mbarrier, cp.async.bulk.tensor and wgmma as in the PTX manual.
#include "hopper.h"

#include <algorithm>
#include <array>
#include <functional>
#include <map>
#include <string>

#include "block.h"
#include "cuda/tensor_map.h"

// --------------------------------------------------------------------------------------------------------- tensor maps

namespace {

struct tensor { // the contents of a tensor map, in its 128 bytes
    uint64_t magic;
    char * base;
    uint64_t ne[4];
    uint64_t nb[3];
    uint32_t box[4];
};
static_assert(sizeof(tensor) <= sizeof(gb_tensor_map), "fits");
enum { DYNAMIC_AT = 1024 }; // the address of dynamic shared memory
constexpr uint64_t magic_of_map = 0x70616d726f736e74u;

} // namespace

int gb_emu_encode_tiled(void * map, int type, unsigned rank, void * address, const uint64_t * ne, const uint64_t * nb,
    const unsigned * box, const unsigned * steps, int interleave, int swizzle, int l2, int outside) {
    enum { F16 = 6, BF16 = 9, NO_INTERLEAVE = 0, SWIZZLE_128B = 3, ZEROS = 0 };
    const bool known = (type == F16 || type == BF16) && rank == 4 && interleave == NO_INTERLEAVE &&
                       swizzle == SWIZZLE_128B && l2 >= 0 && l2 <= 3 && outside == ZEROS;
    if (!known || (uintptr_t) map % 64 != 0 || (uintptr_t) address % 16 != 0 || box[0] * 2 % 16 != 0 ||
        box[0] * 2 > 128) {
        return 1;
    }
    tensor t = { magic_of_map, static_cast<char *>(address), {}, {}, {} };
    uint64_t stride = 2, extent = 1; // of the previous dimension
    for (unsigned i = 0; i < rank; i++) {
        if (ne[i] == 0 || ne[i] > (uint64_t) 1 << 32 || box[i] == 0 || box[i] > 256 || steps[i] != 1) {
            return 1;
        }
        if (i > 0 && (nb[i - 1] % 16 != 0 || nb[i - 1] >= (uint64_t) 1 << 40 || nb[i - 1] % stride != 0 ||
                         nb[i - 1] / stride < extent)) {
            return 1;
        }
        stride = i > 0 ? nb[i - 1] : stride;
        extent = ne[i];
        t.ne[i] = ne[i];
        t.box[i] = box[i];
        if (i > 0) {
            t.nb[i - 1] = nb[i - 1];
        }
    }
    memset(map, 0, sizeof(gb_tensor_map));
    memcpy(map, &t, sizeof(t));
    return 0;
}

// ---------------------------------------------------------------------------------------------------------- of a block

namespace {

struct barrier {
    int arrivals; // of a phase
    int waiting;  // arrivals that the phase still needs
    int bytes;    // bytes that it still needs
    int phase;    // number of the current phase
    bool fenced;  // gb_barrier_fence was called, so copies may count here
};

struct copy {
    tensor t;
    char * to;
    int at[4];
    uint64_t * barrier;
    bool late; // arrives only when all threads wait
};

struct sums { // registers of a thread that products write
    std::vector<float> values;
    int going_on = 0; // products that have not ended
};

struct thread_state {
    std::vector<gb_emu_product> open;
    std::vector<std::vector<gb_emu_product>> groups; // oldest first
    std::map<float *, sums> sums_of;
    bool fenced = false;
    // Operands in registers, as they were when a fence named them.
    std::map<const uint32_t *, std::array<uint32_t, 4>> rows;
};

struct group_state { // of four warps that meet
    int arrived = 0;
    uint64_t round = 0;
    int line = 0;
    gb_emu_product what = {};
};

uint64_t mark_of(const uint64_t * b, int phase) { return (uintptr_t) b * 0x9e3779b97f4a7c15u ^ (uint64_t) phase; }

struct hopper : gb_emu_beside {
    std::map<uint64_t *, barrier> barriers;
    std::vector<copy> copies;
    std::map<size_t, thread_state> threads;
    std::map<size_t, group_state> groups;
    std::map<size_t, int> registers; // registers of a thread, if changed
    int free_registers = -1;

    bool has_work(bool idle) const override {
        return std::any_of(copies.begin(), copies.end(), [=](const copy & c) { return idle || !c.late; });
    }
    std::string work(bool idle, gb_emu_random & random) override;
    std::string at_end_of(size_t thread) override {
        const auto found = threads.find(thread);
        const bool idle = found == threads.end() || (found->second.open.empty() && found->second.groups.empty());
        return idle ? "" : "a thread returns while its products go on";
    }
    std::string at_end() override { return copies.empty() ? "" : "a block ends before its copies"; }
    // Begins the next phase if nothing is missing. Returns "" or what is wrong.
    std::string settle(uint64_t * p, barrier & b);
};

hopper & here(void) {
    std::unique_ptr<gb_emu_beside> & beside = gb_emu_block_beside();
    if (!beside) {
        beside.reset(new hopper);
    }
    return static_cast<hopper &>(*beside);
}

std::string hopper::settle(uint64_t * p, barrier & b) {
    enum { MOST_BYTES = (1 << 20) - 1 };
    if (b.waiting < 0) {
        return "a barrier gets more arrivals than its phase has";
    }
    if (b.bytes > MOST_BYTES || b.bytes < -MOST_BYTES) {
        return "a barrier counts more bytes than it can";
    }
    if (b.waiting == 0 && b.bytes == 0) {
        b.phase++;
        b.waiting = b.arrivals;
        *p = mark_of(p, b.phase);
        gb_emu_wake(p);
    }
    return "";
}

// Makes one copy: goes through the box in the order of shared memory, 16 bytes at a time.
std::string hopper::work(bool idle, gb_emu_random & random) {
    size_t i = random.below(copies.size());
    while (!idle && copies[i].late) {
        i = random.below(copies.size());
    }
    const copy c = copies[i];
    copies.erase(copies.begin() + (ptrdiff_t) i);
    const int64_t rows = (int64_t) c.t.box[1] * c.t.box[2] * c.t.box[3], pitch = c.t.box[0] * 2;
    for (int64_t r = 0; r < rows; r++) {
        const int64_t y = c.at[1] + r % c.t.box[1], z = c.at[2] + r / c.t.box[1] % c.t.box[2],
                      w = c.at[3] + r / c.t.box[1] / c.t.box[2];
        const bool in =
            y >= 0 && y < (int64_t) c.t.ne[1] && z >= 0 && z < (int64_t) c.t.ne[2] && w >= 0 && w < (int64_t) c.t.ne[3];
        const char * from =
            in ? c.t.base + y * (int64_t) c.t.nb[0] + z * (int64_t) c.t.nb[1] + w * (int64_t) c.t.nb[2] : nullptr;
        for (int64_t piece = 0; piece < pitch / 16; piece++) {
            char * flat = c.to + r * pitch + piece * 16;
            const uintptr_t address = gb_shared_address(flat);
            uint16_t * to = reinterpret_cast<uint16_t *>(flat + (((address >> 7 & 7) << 4) ^ address) - address);
            for (int j = 0; j < 8; j++) {
                const int64_t x = c.at[0] + piece * 8 + j;
                to[j] = 0;
                if (in && x >= 0 && x < (int64_t) c.t.ne[0]) {
                    memcpy(&to[j], from + 2 * x, 2);
                }
            }
        }
    }
    auto found = barriers.find(c.barrier);
    if (found == barriers.end() || *c.barrier != mark_of(c.barrier, found->second.phase)) {
        return "a copy comes to a barrier that something wrote over";
    }
    found->second.bytes -= (int) (rows * pitch);
    return settle(c.barrier, found->second);
}

} // namespace

uint32_t gb_shared_address(const void * p) {
    gb_emu_check_shared("an address", p, 1);
    const char * start = static_cast<const char *>(gb_emu_dynamic_shared());
    const char * c = static_cast<const char *>(p);
    if (c < start || c - start > 1 << 18) {
        gb_emu_fail_block("an address of static shared memory, which is not modelled");
    }
    return (uint32_t) (DYNAMIC_AT + (c - start));
}

// ------------------------------------------------------------------------------------------------------------ barriers

static barrier & barrier_at(const char * what, uint64_t * p, int line) {
    gb_emu_at(what, line);
    gb_needs_hopper();
    auto found = here().barriers.find(p);
    if (found == here().barriers.end()) {
        gb_emu_fail_block("a barrier that was not made");
    }
    if (*p != mark_of(p, found->second.phase)) {
        gb_emu_fail_block("a barrier that something wrote over");
    }
    return found->second;
}

static void require(const std::string & wrong) {
    if (!wrong.empty()) {
        gb_emu_fail_block(wrong);
    }
}

void gb_barrier_init(uint64_t * p, int arrivals, int line) {
    gb_emu_at("gb_barrier_init", line);
    gb_needs_hopper();
    gb_emu_check_shared("a barrier", p, 8);
    if ((uintptr_t) p % 8 != 0 || arrivals < 1 || arrivals >= 1 << 20) {
        gb_emu_fail_block("a barrier that is not 8-aligned, or without arrivals");
    }
    if (here().barriers.count(p)) {
        gb_emu_fail_block("a barrier that is made twice");
    }
    here().barriers[p] = { arrivals, arrivals, 0, 0, false };
    *p = mark_of(p, 0);
}

void gb_barrier_fence(int line) {
    gb_emu_at("gb_barrier_fence", line);
    for (auto & b : here().barriers) {
        b.second.fenced = true;
    }
}

void gb_barrier_arrive(uint64_t * p, int line) {
    barrier & b = barrier_at("gb_barrier_arrive", p, line);
    b.waiting--;
    require(here().settle(p, b));
}

void gb_barrier_expect(uint64_t * p, int bytes, int line) {
    barrier & b = barrier_at("gb_barrier_expect", p, line);
    if (bytes < 0) {
        gb_emu_fail_block("fewer bytes than none");
    }
    b.bytes += bytes;
    b.waiting--;
    require(here().settle(p, b));
}

void gb_barrier_wait(uint64_t * p, int parity, int line) {
    if (parity != 0 && parity != 1) {
        gb_emu_fail_block("a parity that is none");
    }
    // waits as long as the current phase has this parity
    while ((barrier_at("gb_barrier_wait", p, line).phase & 1) == parity) {
        gb_emu_sleep(p);
    }
}

// -------------------------------------------------------------------------------------------------------------- copies

void gb_copy_tile(void * shared, const gb_tensor_map & map, int x, int y, int z, int w, uint64_t * p, int line) {
    const barrier & b = barrier_at("gb_copy_tile", p, line);
    copy c = { {}, static_cast<char *>(shared), { x, y, z, w }, p, gb_emu_draw(4) != 0 };
    memcpy(&c.t, &map, sizeof(c.t));
    if ((uintptr_t) &map % 64 != 0 || c.t.magic != magic_of_map) {
        gb_emu_fail_block("a tensor map that is none");
    }
    const size_t bytes = (size_t) c.t.box[0] * c.t.box[1] * c.t.box[2] * c.t.box[3] * 2;
    gb_emu_check_shared("a copy of a tile", shared, bytes);
    gb_emu_touch_device("a copy of a tile");
    if (gb_shared_address(shared) % 128 != 0) {
        gb_emu_fail_block("a copy of a tile to an address that 128 does not divide");
    }
    if (!b.fenced) {
        gb_emu_fail_block("a copy counts at a barrier without a fence after it was made");
    }
    for (int i = 0; i < 4; i++) {
        const int64_t at = c.at[i], ne = (int64_t) c.t.ne[i];
        if (at < 0 || (i == 0 ? at % 8 != 0 : at >= ne)) {
            gb_emu_fail_block("a copy of a box that devices may refuse (hopper.cuh)");
        }
    }
    memset(shared, 0xff, bytes);
    for (size_t i = 0; i < bytes; i += 16) {
        gb_emu_copied_by(static_cast<char *>(shared) + i) = 0;
    }
    here().copies.push_back(c);
}

void gb_copies_to_matrix(int line) {
    gb_emu_at("gb_copies_to_matrix", line);
    gb_needs_hopper();
    gb_emu_pass_on_copied();
}

// ------------------------------------------------------------------------------------------------------------ products

namespace {

struct matrix { // in shared memory: rows of `span` bytes, eight adjacent ones, the next eight `eight` bytes further
    const char * memory; // dynamic shared memory
    uint32_t address, span, eight;
    uint32_t address_of(int row, int k) const {
        const uint32_t flat = address + (uint32_t) (row % 8) * span + (uint32_t) (row / 8) * eight + (uint32_t) k * 2;
        return flat ^ ((flat >> 7 & (span / 16 - 1)) << 4);
    }
    uint16_t at(int row, int k) const {
        uint16_t bits;
        memcpy(&bits, memory + (address_of(row, k) - DYNAMIC_AT), 2);
        return bits;
    }
    void check_copied(int rows) const {
        for (int r = 0; r < rows; r++) {
            for (int k = 0; k < 16; k += 8) {
                const int who = gb_emu_copied_by(memory + (address_of(r, k) - DYNAMIC_AT));
                if (who != 0) {
                    gb_emu_fail_block("products read what thread " + std::to_string(who - 1) +
                                      " copied to shared memory and did not pass on (gb_copies_to_matrix)");
                }
            }
        }
    }
};

// A matrix descriptor of wgmma. Bits 0 to 13: address / 16. 16 to 29: a distance that swizzled rows do not use. 32 to
// 45: distance of eight rows / 16. 49 to 51: start of the pattern. 62 and 63: swizzle. The others are zeros.
matrix matrix_of(uint64_t descriptor, int rows) {
    const unsigned swizzle = (unsigned) (descriptor >> 62);
    const matrix m = { static_cast<const char *>(gb_emu_dynamic_shared()), (uint32_t) (descriptor & 0x3fff) << 4,
        swizzle == 0 ? 0 : 256u >> swizzle, (uint32_t) (descriptor >> 32 & 0x3fff) << 4 };
    if (swizzle == 0 || (descriptor & 0x3fffc000c000c000u) != 0) {
        gb_emu_fail_block("a matrix without swizzle, with a base offset, or with bits that mean nothing");
    }
    // Bits 7 to 9 of the address permute the 16 bytes of a row of 128, so they must be those of the row.
    if (m.address / (8 * m.span) * (8 * m.span) != m.address / m.span * m.span || m.eight % (8 * m.span) != 0 ||
        m.eight == 0) {
        gb_emu_fail_block("a matrix whose rows do not begin where its pattern does");
    }
    if (m.address % m.span + 32 > m.span) {
        gb_emu_fail_block("16 elements that reach over the end of a row");
    }
    const intptr_t start = (intptr_t) m.memory + (intptr_t) (m.address / m.span * m.span) - DYNAMIC_AT;
    for (int r = 0; r < rows; r += 8) {
        gb_emu_check_shared("a matrix", (const void *) (start + r / 8 * (intptr_t) m.eight), 8 * m.span);
    }
    return m;
}

const std::vector<float> & table(bool f16) {
    static const std::vector<float> halves = [] {
        std::vector<float> t(65536);
        for (uint32_t i = 0; i < 65536; i++) {
            t[i] = gb_emu_half_to_float((uint16_t) i);
        }
        return t;
    }();
    static const std::vector<float> wide = [] {
        std::vector<float> t(65536);
        for (uint32_t i = 0; i < 65536; i++) {
            t[i] = gb_emu_bf16_to_float((uint16_t) i);
        }
        return t;
    }();
    return f16 ? halves : wide;
}

// Reads rows g and g + 8 of the thread's warp.
void rows_in_memory(const gb_emu_product & p, const std::vector<float> & number, float (&rows)[2][16]) {
    const int first = (int) gb_emu_thread() / 32 % 4 * 16 + gb_emu_lane() / 4;
    const matrix a = matrix_of(p.a, 64);
    for (int k = 0; k < 16; k++) {
        rows[0][k] = number[a.at(first, k)];
        rows[1][k] = number[a.at(first + 8, k)];
    }
}

// Reads the same rows from the registers of four lanes.
void rows_in_registers(const gb_emu_product & p, const std::vector<float> & number, int line, float (&rows)[2][16]) {
    std::array<uint32_t, 4> mine;
    std::copy(p.rows, p.rows + 4, mine.begin());
    if (mine != here().threads[gb_emu_thread()].rows[p.rows]) {
        gb_emu_fail_block("registers of an operand were written while products with them went on");
    }
    const unsigned char * all = gb_emu_exchange("gb_matrix_wait", line, mine.data(), sizeof(mine));
    for (int t = 0; t < 4; t++) {
        const auto theirs = gb_emu_slot<std::array<uint32_t, 4>>(all, gb_emu_lane() / 4 * 4 + t);
        for (int i = 0; i < 4; i++) {
            for (int e = 0; e < 2; e++) {
                rows[i % 2][i / 2 * 8 + 2 * t + e] = number[theirs[(size_t) i] >> (16 * e) & 0xffff];
            }
        }
    }
}

// Computes the sums of one thread: its two rows, columns 2 t and 2 t + 1 of each eight.
void compute(const gb_emu_product & p, int line, std::vector<float> & values) {
    const int t = gb_emu_lane() % 4;
    const matrix b = matrix_of(p.b, p.n);
    const std::vector<float> & number = table(p.f16);
    float rows[2][16];
    if (p.rows != nullptr) {
        rows_in_registers(p, number, line, rows);
    } else {
        rows_in_memory(p, number, rows);
    }
    for (int j = 0; j < p.n / 8; j++) {
        for (int i = 0; i < 2; i++) {
            double sum[2] = { 0, 0 };
            for (int k = 0; k < 16; k++) {
                const float x = number[b.at(8 * j + 2 * t + i, k)];
                sum[0] += (double) rows[0][k] * x;
                sum[1] += (double) rows[1][k] * x;
            }
            for (int h = 0; h < 2; h++) {
                float & d = values[(size_t) (4 * j + 2 * h + i)];
                d = (float) ((p.keep ? (double) d : 0.0) + sum[h]);
            }
        }
    }
}

bool same_product(const gb_emu_product & x, const gb_emu_product & y) {
    return x.n == y.n && x.f16 == y.f16 && x.keep == y.keep && x.a == y.a && x.b == y.b &&
           (x.rows == nullptr) == (y.rows == nullptr);
}

// All 128 threads of four warps call this with the same matrices (or none). The last one does the work of all.
void meet(const gb_emu_product & p, int line, const std::function<void()> & for_all) {
    if ((gb_emu_thread() / 128 + 1) * 128 > gb_emu_threads()) {
        gb_emu_fail_block("fewer than four warps");
    }
    group_state & g = here().groups[gb_emu_thread() / 128];
    if (g.arrived == 0) {
        g.what = p;
        g.line = line;
    } else if (!same_product(g.what, p) || g.line != line) {
        gb_emu_fail_block("warps of a group do different things, or multiply different matrices, another at line " +
                          std::to_string(g.line));
    }
    if (++g.arrived == 128) {
        for_all();
        g.arrived = 0;
        g.round++;
        gb_emu_wake(&g);
        return;
    }
    const uint64_t round = g.round;
    while (g.round == round) {
        gb_emu_sleep(&g);
    }
}

} // namespace

void gb_matrix_fence(int line) {
    const char nothing = 0;
    gb_needs_hopper();
    gb_emu_exchange("gb_matrix_fence", line, &nothing, 1);
    here().threads[gb_emu_thread()].fenced = true;
}

void gb_emu_matrix_fence(const uint32_t (*rows)[4], int n, int line) {
    thread_state & t = here().threads[gb_emu_thread()];
    for (int i = 0; i < n; i++) {
        std::copy(rows[i], rows[i] + 4, t.rows[rows[i]].begin());
    }
    gb_matrix_fence(line);
}

void gb_matrix_commit(int line) {
    const char nothing = 0;
    gb_emu_exchange("gb_matrix_commit", line, &nothing, 1);
    thread_state & t = here().threads[gb_emu_thread()];
    t.groups.push_back(std::move(t.open));
    t.open.clear();
}

void gb_emu_matrix_mma(const gb_emu_product & p, int line) {
    gb_emu_at("gb_matrix_mma", line);
    gb_needs_hopper();
    thread_state & t = here().threads[gb_emu_thread()];
    if (p.rows == nullptr) {
        (void) matrix_of(p.a, 64);
    } else if (t.rows.count(p.rows) == 0 || !std::equal(p.rows, p.rows + 4, t.rows[p.rows].begin())) {
        gb_emu_fail_block("registers of an operand were written without a fence after it that names them");
    }
    (void) matrix_of(p.b, p.n);
    meet(p, line, [&] {
        if (p.rows == nullptr) {
            matrix_of(p.a, 64).check_copied(64);
        }
        matrix_of(p.b, p.n).check_copied(p.n);
    });
    const size_t n = (size_t) p.n / 2;
    sums & s = t.sums_of[p.sum];
    const bool known = s.values.size() == n;
    if (!known && s.going_on > 0) {
        gb_emu_fail_block("products of different shapes go on with the same sums");
    }
    if (s.going_on == 0) {
        if (!t.fenced && (!known || memcmp(s.values.data(), p.sum, n * sizeof(float)) != 0)) {
            gb_emu_fail_block("the registers of the sums were written without a fence after it");
        }
        s.values.assign(p.sum, p.sum + n);
    }
    s.going_on++;
    std::fill(p.sum, p.sum + n, NAN);
    t.open.push_back(p);
}

void gb_emu_matrix_wait(int pending, int line) {
    const char nothing = 0;
    gb_needs_hopper();
    gb_emu_exchange("gb_matrix_wait", line, &nothing, 1);
    thread_state & t = here().threads[gb_emu_thread()];
    while ((int) t.groups.size() > pending) {
        for (const gb_emu_product & p : t.groups.front()) {
            sums & s = t.sums_of[p.sum];
            compute(p, line, s.values);
            if (--s.going_on == 0) {
                std::copy(s.values.begin(), s.values.end(), p.sum);
            }
        }
        t.groups.erase(t.groups.begin());
    }
    t.fenced = false;
    gb_emu_exchange("gb_matrix_wait", line, &nothing, 1); // a warp waits together
}

// ----------------------------------------------------------------------------------------------------------- registers

void gb_emu_set_registers(int n, bool more, int line) {
    enum { ALL = 65536, LEAST_STEP = 8, MOST = 248 };
    gb_emu_at(more ? "gb_registers_more" : "gb_registers_fewer", line);
    gb_needs_hopper();
    const size_t group = gb_emu_thread() / 128;
    // Warps share four quarters of the registers.
    const int warps = (int) (gb_emu_threads() + 127) / 128,
              first = std::min<int>(MOST, ALL / 4 / 32 / warps / LEAST_STEP * LEAST_STEP);
    meet({}, line, [] {});
    if (gb_emu_thread() % 128 == 0) { // for all threads of the group
        hopper & h = here();
        h.free_registers = h.free_registers < 0 ? ALL - first * 128 * warps : h.free_registers;
        int & mine = h.registers.emplace(group, first).first->second;
        if (more ? n < mine : n > mine) {
            gb_emu_fail_block("a group has " + std::to_string(mine) + " registers a thread");
        }
        while ((n - mine) * 128 > h.free_registers) {
            gb_emu_sleep(&h.free_registers);
        }
        h.free_registers -= (n - mine) * 128;
        mine = n;
        gb_emu_wake(&h.free_registers);
    }
    meet({}, line, [] {});
}
