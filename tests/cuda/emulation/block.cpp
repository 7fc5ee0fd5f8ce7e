// block.cpp - runs one block: a fiber for each thread, and the places where threads wait for each
// other.
//
// A thread runs until it must wait for others. Then one of the threads that can run is drawn at random. If no thread
// can run and some have not ended, threads wait at different places. That is a divergent barrier, which hardware does
// not allow. After the end of a thread its fiber runs another thread. The fibers of a failed block are not used again.
#include "block.h"

#include <sys/mman.h>

#include <algorithm>
#include <map>
#include <memory>

#if defined(__SANITIZE_ADDRESS__)
#    include <sanitizer/asan_interface.h>
#    include <sanitizer/common_interface_defs.h>
#endif
#if !defined(__x86_64__)
#    include <ucontext.h>
#endif

thread_local gb_emu_thread_view * gb_emu_view;

namespace {

// -------------------------------------------------------------------------------------------------------------- fibers

constexpr size_t stack_size = 256 * 1024;

struct fiber {
    void * sp = nullptr; // stack pointer while it is stopped
    char * stack = nullptr;
    void * fake = nullptr; // of the address sanitizer
#if !defined(__x86_64__)
    ucontext_t context;
#endif
};

void thread_loop();

#if defined(__x86_64__)
extern "C" void gb_emu_switch(void ** save, void * to);
__asm__(R"(
.text
.globl gb_emu_switch
.hidden gb_emu_switch
.type gb_emu_switch, @function
gb_emu_switch:
    pushq %rbp
    pushq %rbx
    pushq %r12
    pushq %r13
    pushq %r14
    pushq %r15
    movq %rsp, (%rdi)
    movq %rsi, %rsp
    popq %r15
    popq %r14
    popq %r13
    popq %r12
    popq %rbx
    popq %rbp
    ret
.size gb_emu_switch, .-gb_emu_switch
)");

void prepare(fiber & f) {
    void ** sp = reinterpret_cast<void **>(f.stack + stack_size);
    *--sp = nullptr; // return address, and the alignment that a function expects
    *--sp = reinterpret_cast<void *>(&thread_loop);
    for (int i = 0; i < 6; i++) {
        *--sp = nullptr;
    }
    f.sp = sp;
}

void transfer(fiber & from, fiber & to) { gb_emu_switch(&from.sp, to.sp); }
#else
void prepare(fiber & f) {
    getcontext(&f.context);
    f.context.uc_stack.ss_sp = f.stack;
    f.context.uc_stack.ss_size = stack_size;
    f.context.uc_link = nullptr;
    makecontext(&f.context, thread_loop, 0);
}

void transfer(fiber & from, fiber & to) { swapcontext(&from.context, &to.context); }
#endif

thread_local fiber home; // the scheduler, on the host thread's own stack
[[maybe_unused]] thread_local const void * home_stack; // for the address sanitizer
[[maybe_unused]] thread_local size_t home_size;

void arrived(void * fake) {
#if defined(__SANITIZE_ADDRESS__)
    const void * stack = nullptr;
    size_t size = 0;
    __sanitizer_finish_switch_fiber(fake, &stack, &size);
    if (fake == nullptr || home_stack == nullptr) { // the first switch to a fiber comes from home
        home_stack = stack;
        home_size = size;
    }
#else
    (void) fake;
#endif
}

void go_to(fiber & f) { // from home
#if defined(__SANITIZE_ADDRESS__)
    __sanitizer_start_switch_fiber(&home.fake, f.stack, stack_size);
    transfer(home, f);
    __sanitizer_finish_switch_fiber(home.fake, nullptr, nullptr);
#else
    transfer(home, f);
#endif
}

void go_home(fiber & f) {
#if defined(__SANITIZE_ADDRESS__)
    __sanitizer_start_switch_fiber(&f.fake, home_stack, home_size);
    transfer(f, home);
    __sanitizer_finish_switch_fiber(f.fake, &home_stack, &home_size);
#else
    transfer(f, home);
#endif
}

thread_local std::vector<std::unique_ptr<fiber>> spare; // fibers that wait in thread_loop for a thread
thread_local std::vector<std::unique_ptr<fiber>> stuck;

// ------------------------------------------------------------------------------------------------------------- threads

enum class state { READY, RUNNING, AT_BARRIER, IN_WARP, ASLEEP, HELD, DONE }; // HELD: in gb_wait_for_earlier

struct thread {
    gb_emu_thread_view view;
    std::unique_ptr<fiber> f;
    state now = state::READY;
    int line = 0; // where it waits
    const char * what = "";
    const void * asleep_on = nullptr;
    uint64_t exchanges = 0;
    gb_emu_copies copies;
    bool waited = false; // for earlier kernels
};

struct warp {
    int arrived = 0;
    uint64_t round = 0;
    const char * kind = "";
    int line = 0;
    size_t bytes = 0;
    unsigned char slots[2][32 * GB_EMU_SLOT]; // of this round and of the previous one, which slow lanes may still read
};

struct shared_piece {
    std::unique_ptr<char[]> memory;
    char * start = nullptr;
    size_t bytes = 0;
};

} // namespace

struct gb_emu_block_run {
    gb_emu_block what;
    const std::function<void()> * body;
    std::vector<thread> threads;
    std::vector<warp> warps;
    std::vector<int> ready;
    int at_barrier = 0, n_done = 0;
    std::map<const void *, shared_piece> shared;
    shared_piece dynamic;
    std::vector<uint16_t> copied_by; // of gb_emu_copied_by, for each 16 bytes; the last entry: all other memory
    std::unique_ptr<gb_emu_beside> beside;
    gb_emu_random * random;
    std::string failure;
    int current = -1;
    bool early = false; // earlier kernels still run
};

namespace {

typedef gb_emu_block_run block_run;

thread_local block_run * run;

thread & current() { return run->threads[(size_t) run->current]; }

void pause_thread() {
    fiber & f = *current().f;
    go_home(f);
    current().now = state::RUNNING;
}

void thread_loop() {
    arrived(nullptr);
    for (;;) {
        try {
            (*run->body)();
        } catch (const std::string & message) { // gb_emu_fail_block
            run->failure = message;
        }
        current().now = state::DONE;
        go_home(*current().f);
    }
}

std::unique_ptr<fiber> get_fiber() {
    if (!spare.empty()) {
        std::unique_ptr<fiber> f = std::move(spare.back());
        spare.pop_back();
        return f;
    }
    std::unique_ptr<fiber> f(new fiber);
    void * stack =
        mmap(nullptr, stack_size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (stack == MAP_FAILED) {
        return nullptr;
    }
    f->stack = static_cast<char *>(stack);
    prepare(*f);
    return f;
}

std::string place(const thread & t) {
    return "thread (" + std::to_string(t.view.thread.x) + ", " + std::to_string(t.view.thread.y) + ", " +
           std::to_string(t.view.thread.z) + ")" +
           (t.line > 0 ? std::string(" in ") + t.what + " at line " + std::to_string(t.line) : std::string());
}

shared_piece new_piece(size_t bytes) {
    shared_piece p;
    p.memory.reset(new char[bytes + 1024]);
    const uintptr_t a = (reinterpret_cast<uintptr_t>(p.memory.get()) + 1023) & ~(uintptr_t) 1023;
    p.start = reinterpret_cast<char *>(a);
    p.bytes = bytes;
    memset(p.start, 0xff, bytes); // NaN: contents of shared memory are undefined
#if defined(__SANITIZE_ADDRESS__)
    const size_t behind = (bytes + 7) & ~(size_t) 7;
    const size_t all = bytes + 1024 - (size_t) (p.start - p.memory.get());
    if (behind < all) {
        __asan_poison_memory_region(p.start + behind, all - behind);
    }
#endif
    return p;
}

void free_piece(shared_piece & p) {
#if defined(__SANITIZE_ADDRESS__)
    if (p.memory) {
        __asan_unpoison_memory_region(p.memory.get(), p.bytes + 1024);
    }
#endif
    p.memory.reset();
}

void wake_all(state waiting, size_t from, size_t to) {
    for (size_t i = from; i < to; i++) {
        if (run->threads[i].now == waiting) {
            run->threads[i].now = state::READY;
            run->ready.push_back((int) i);
        }
    }
}

void say_who_waits() {
    const thread * first = nullptr;
    for (const thread & t : run->threads) {
        if (t.now != state::DONE && first == nullptr) {
            first = &t;
        }
    }
    run->failure = "threads wait for others that do not come: " + (first ? place(*first) : std::string("?")) + ", " +
                   std::to_string(run->n_done) + " of " + std::to_string(run->threads.size()) + " have returned";
}

// Lets the device work between two turns of threads: at drawn times, and when no thread can run. False: it does not.
bool work_beside(gb_emu_random & random) {
    const bool over = run->n_done == (int) run->threads.size(), idle = run->ready.empty();
    if (!run->beside || over || !run->beside->has_work(idle) || (!idle && random.below(8) != 0)) {
        return false;
    }
    run->failure = run->beside->work(idle, random);
    return true;
}

void finish_thread(thread & t) {
    run->n_done++;
    spare.push_back(std::move(t.f));
    if (!run->failure.empty()) {
        return;
    }
    if (run->what.dependent && !t.waited) {
        run->failure = "a thread returns that has not waited for earlier kernels: " + place(t);
    }
    if (!t.copies.open.empty() || !t.copies.groups.empty()) {
        run->failure = "thread returns with asynchronous copies on their way";
    }
    if (run->at_barrier > 0) {
        run->failure = "a thread returned while others wait at a barrier";
    }
    if (run->beside && run->failure.empty()) {
        run->failure = run->beside->at_end_of((size_t) run->current);
    }
}

void run_thread(gb_emu_random & random) {
    const size_t i = random.below(run->ready.size());
    run->current = run->ready[i];
    run->ready[i] = run->ready.back();
    run->ready.pop_back();
    thread & t = current();
    if (!t.f) {
        t.f = get_fiber();
        if (!t.f) {
            run->failure = "no memory for a fiber";
            return;
        }
    }
    t.now = state::RUNNING;
    gb_emu_view = &t.view;
    go_to(*t.f);
    if (t.now == state::DONE) {
        finish_thread(t);
    }
}

void run_ready(gb_emu_random & random) {
    while (run->failure.empty()) {
        if (!work_beside(random)) {
            if (run->ready.empty()) {
                break;
            }
            run_thread(random);
        }
    }
}

// Fails the block if a thread is not at the wait for earlier kernels: no thread can run before they have ended.
void check_held() {
    for (const thread & t : run->threads) {
        if (run->failure.empty() && t.now != state::HELD) {
            run->failure = "not every thread comes to gb_wait_for_earlier by itself: " + place(t);
        }
    }
}

void run_threads(gb_emu_random & random) {
    run_ready(random);
    if (run->failure.empty() && run->n_done < (int) run->threads.size()) {
        say_who_waits();
    }
    if (run->failure.empty() && run->beside) {
        run->failure = run->beside->at_end();
    }
}

} // namespace

gb_emu_running::gb_emu_running(const gb_emu_block & what, const std::function<void()> & body)
    : b(new gb_emu_block_run) {
    const size_t n = (size_t) what.block.x * what.block.y * what.block.z;
    b->what = what;
    b->body = &body;
    b->threads.resize(n);
    b->warps.resize((n + 31) / 32);
    if (what.shared > 0) {
        b->dynamic = new_piece(what.shared);
    }
    b->copied_by.resize(what.shared / 16 + 2);
    for (size_t i = 0; i < n; i++) {
        thread & t = b->threads[i];
        t.view.thread = { (unsigned) (i % what.block.x), (unsigned) (i / what.block.x % what.block.y),
            (unsigned) (i / what.block.x / what.block.y) };
        t.view.block = what.index;
        t.view.block_dim = what.block;
        t.view.grid_dim = what.grid;
        b->ready.push_back((int) i);
    }
}

gb_emu_running::~gb_emu_running() {
    for (thread & t : b->threads) {
        if (t.f) { // of a failed block: stopped inside a function, not usable
            stuck.push_back(std::move(t.f));
        }
    }
    for (auto & s : b->shared) {
        free_piece(s.second);
    }
    free_piece(b->dynamic);
}

std::string gb_emu_running::begin(gb_emu_random & random) {
    b->random = &random;
    b->early = true;
    run = b.get();
    run_ready(random);
    check_held();
    run = nullptr;
    b->early = false;
    return b->failure;
}

std::string gb_emu_running::finish(gb_emu_random & random) {
    b->random = &random;
    run = b.get();
    wake_all(state::HELD, 0, b->threads.size());
    run_threads(random);
    run = nullptr;
    return b->failure;
}

// ---------------------------------------------------------------------------------------------------- calls of kernels

void gb_emu_fail_block(const std::string & message) { throw message + ", " + place(current()); }

void gb_wait_for_earlier(int line) {
    thread & t = current();
    gb_emu_at("gb_wait_for_earlier", line);
    if (t.waited) {
        gb_emu_fail_block("a second wait for earlier kernels");
    }
    t.waited = true;
    if (run->early) {
        t.now = state::HELD;
        pause_thread();
    }
}

void gb_emu_touch_device(const char * what) {
    if (run->what.dependent && !current().waited) {
        gb_emu_fail_block(std::string(what) + " of a thread that has not waited for earlier kernels");
    }
}

void gb_emu_note_touch(const std::string & message) {
    if (run != nullptr && run->failure.empty()) {
        run->failure = message;
    }
}

int gb_emu_lane(void) { return run->current % 32; }

gb_emu_copies & gb_emu_thread_copies(void) { return current().copies; }

std::unique_ptr<gb_emu_beside> & gb_emu_block_beside(void) { return run->beside; }

size_t gb_emu_thread(void) { return (size_t) run->current; }

size_t gb_emu_threads(void) { return run->threads.size(); }

size_t gb_emu_draw(size_t n) { return run->random->below(n); }

void gb_emu_at(const char * what, int line) {
    current().what = what;
    current().line = line;
}

void gb_emu_sleep(const void * on) {
    current().asleep_on = on;
    current().now = state::ASLEEP;
    pause_thread();
}

void gb_emu_wake(const void * on) {
    for (size_t i = 0; i < run->threads.size(); i++) {
        if (run->threads[i].asleep_on == on) {
            run->threads[i].asleep_on = nullptr;
            wake_all(state::ASLEEP, i, i + 1);
        }
    }
}

void * gb_emu_shared(const void * id, size_t bytes, const char * name) {
    (void) name;
    auto found = run->shared.find(id);
    if (found == run->shared.end()) {
        found = run->shared.emplace(id, new_piece(bytes)).first;
        size_t sum = 0;
        for (const auto & s : run->shared) {
            sum += s.second.bytes;
        }
        if (sum > 48 * 1024) {
            gb_emu_fail_block("more than 48 KiB of static shared memory");
        }
    }
    return found->second.start;
}

void * gb_emu_dynamic_shared(void) {
    if (run->dynamic.start == nullptr || run->what.shared == 0) {
        gb_emu_fail_block("dynamic shared memory is used, and the launch gave none");
    }
    return run->dynamic.start;
}

void gb_emu_check_shared(const char * what, const void * p, size_t bytes) {
    const char * c = static_cast<const char *>(p);
    auto inside = [&](const shared_piece & s) { return s.memory && c >= s.start && c + bytes <= s.start + s.bytes; };
    bool ok = inside(run->dynamic);
    for (const auto & s : run->shared) {
        ok = ok || inside(s.second);
    }
    if (!ok) {
        gb_emu_fail_block(std::string(what) + ": an address outside of shared memory");
    }
}

uint16_t & gb_emu_copied_by(const void * p) {
    const char * c = static_cast<const char *>(p);
    const bool inside = c >= run->dynamic.start && c < run->dynamic.start + run->dynamic.bytes;
    const size_t last = run->copied_by.size() - 1;
    return run->copied_by[inside ? (size_t) (c - run->dynamic.start) / 16 : last];
}

void gb_emu_pass_on_copied(void) {
    std::replace(run->copied_by.begin(), run->copied_by.end(), (uint16_t) (run->current + 1), (uint16_t) 0);
}

void gb_emu_sync_block(int line) {
    thread & t = current();
    t.line = line;
    t.what = "gb_sync_block";
    if (run->n_done > 0) {
        gb_emu_fail_block("a barrier that not all threads of the block come to");
    }
    for (const thread & other : run->threads) {
        if (other.now == state::AT_BARRIER) {
            if (other.line != line) {
                gb_emu_fail_block("two barriers at once, the other at line " + std::to_string(other.line));
            }
            break;
        }
    }
    if (++run->at_barrier == (int) run->threads.size()) {
        run->at_barrier = 0;
        wake_all(state::AT_BARRIER, 0, run->threads.size());
        t.now = state::READY; // the last to arrive is not the first to continue
        run->ready.push_back(run->current);
    } else {
        t.now = state::AT_BARRIER;
    }
    pause_thread();
}

const unsigned char * gb_emu_exchange(const char * kind, int line, const void * mine, size_t bytes) {
    thread & t = current();
    const size_t first = (size_t) run->current / 32 * 32;
    t.line = line;
    t.what = kind;
    if (first + 32 > run->threads.size()) {
        gb_emu_fail_block("a warp of fewer than 32 threads");
    }
    if (bytes > GB_EMU_SLOT) {
        gb_emu_fail_block("too much to exchange");
    }
    warp & w = run->warps[first / 32];
    if (w.arrived == 0) {
        w.kind = kind;
        w.line = line;
        w.bytes = bytes;
    } else if (strcmp(w.kind, kind) != 0 || w.line != line || w.bytes != bytes) {
        gb_emu_fail_block(std::string("lanes of a warp do different things, another is in ") + w.kind + " at line " +
                          std::to_string(w.line));
    }
    unsigned char * slots = w.slots[w.round % 2];
    memcpy(slots + (size_t) (run->current % 32) * GB_EMU_SLOT, mine, bytes);
    if (++w.arrived == 32) {
        w.arrived = 0;
        w.round++;
        wake_all(state::IN_WARP, first, first + 32);
    } else {
        t.now = state::IN_WARP;
        pause_thread();
    }
    return slots;
}
