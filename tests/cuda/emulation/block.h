// block.h - runs one block, for runtime.cpp; the running thread, for matrix.cpp and hopper.cpp.
#ifndef GB_EMULATED_BLOCK_H
#define GB_EMULATED_BLOCK_H

#include <stddef.h>
#include <stdint.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "launch_emulated.h"

// SplitMix64, the same on every machine.
struct gb_emu_random {
    uint64_t state;
    uint64_t next() {
        uint64_t z = (state += 0x9e3779b97f4a7c15u);
        z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
        z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
        return z ^ (z >> 31);
    }
    size_t below(size_t n) { return (size_t) (next() % n); }
};

struct gb_emu_copy { // an asynchronous copy of one thread
    void * to;
    const void * from;
    int size, bytes; // `bytes` bytes are copied, zeros fill the rest of `size`
};

struct gb_emu_copies {
    std::vector<std::vector<gb_emu_copy>> groups; // committed, oldest first
    std::vector<gb_emu_copy> open;
};
gb_emu_copies & gb_emu_thread_copies(void);
// The owner of 16 bytes of dynamic shared memory: 1 + the number of the thread whose asynchronous copy wrote them.
// Products of four warps must not read them (hopper.cpp). 0: they may.
uint16_t & gb_emu_copied_by(const void * p);
void gb_emu_pass_on_copied(void); // products may read what the running thread has copied

// Fails the block unless the bytes are inside its shared memory.
void gb_emu_check_shared(const char * what, const void * p, size_t bytes);
[[noreturn]] void gb_emu_fail_block(const std::string & message);

// Work of the device beside a block's threads (hopper.cpp).
struct gb_emu_beside {
    virtual ~gb_emu_beside() = default;
    // idle: no thread can run. Some work waits for that.
    virtual bool has_work(bool idle) const = 0;
    virtual std::string work(bool idle, gb_emu_random & random) = 0; // does some work; returns "" or what is wrong
    virtual std::string at_end_of(size_t thread) = 0;                // the same after the thread has returned
    virtual std::string at_end() = 0;                                // the same after the block
};
std::unique_ptr<gb_emu_beside> & gb_emu_block_beside(void); // of the running block; NULL: none

size_t gb_emu_thread(void); // number of the running thread in its block
size_t gb_emu_threads(void);
size_t gb_emu_draw(size_t n);                // below n, from the generator of the order
void gb_emu_at(const char * what, int line); // tells where the running thread is, for messages
void gb_emu_sleep(const void * on);          // waits for the next gb_emu_wake of the same address
void gb_emu_wake(const void * on);
void gb_needs_hopper(void); // fails the block without code for 9.0a

struct gb_emu_block {
    uint3 index;
    dim3 grid, block;
    size_t shared;  // bytes, dynamic
    bool dependent; // every thread must call gb_wait_for_earlier before it touches device memory
};

// For a call that reads or writes device memory: fails the block unless the thread has waited for earlier kernels.
void gb_emu_touch_device(const char * what);
// Fails the running block with this message when it stops: it touched device memory too early.
void gb_emu_note_touch(const std::string & message);

struct gb_emu_block_run;

// A block that runs in steps. Its arguments must outlive it. It stays on the host thread that begins it.
class gb_emu_running {
  public:
    gb_emu_running(const gb_emu_block & what, const std::function<void()> & body);
    ~gb_emu_running();
    gb_emu_running(const gb_emu_running &) = delete;
    gb_emu_running & operator=(const gb_emu_running &) = delete;
    // Runs all threads of a dependent block up to their wait, while earlier kernels run. Returns "" or what is wrong.
    std::string begin(gb_emu_random & random);
    // Runs all threads to their ends. Returns "" or what is wrong.
    std::string finish(gb_emu_random & random);

  private:
    std::unique_ptr<gb_emu_block_run> b;
};

#endif // GB_EMULATED_BLOCK_H
