// block.h - running one block, for runtime.cpp, and what matrix.cpp needs of the thread that runs.
#ifndef GB_EMULATED_BLOCK_H
#define GB_EMULATED_BLOCK_H

#include <stddef.h>
#include <stdint.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "launch_emulated.h"

// SplitMix64: small, and the same everywhere.
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

struct gb_emu_copy { // asynchronous, of one thread
    void * to;
    const void * from;
    int size, bytes; // bytes of `size` are copied, the others are zeros
};

struct gb_emu_copies {
    std::vector<std::vector<gb_emu_copy>> groups; // committed, oldest first
    std::vector<gb_emu_copy> open;
};
gb_emu_copies & gb_emu_thread_copies(void);
// Of 16 bytes of dynamic shared memory: which thread's asynchronous copy brought them, from 1 on, so that products of
// four warps do not read them (hopper.cpp); 0: they may.
uint16_t & gb_emu_copied_by(const void * p);
void gb_emu_pass_on_copied(void); // what the thread that runs brought

// The bytes are inside the block's shared memory; else the block fails with a message.
void gb_emu_check_shared(const char * what, const void * p, size_t bytes);
[[noreturn]] void gb_emu_fail_block(const std::string & message);

// What the device does for a block beside its threads (hopper.cpp).
struct gb_emu_beside {
    virtual ~gb_emu_beside() = default;
    // idle: no thread can go on; else there may be work that waits until then
    virtual bool has_work(bool idle) const = 0;
    virtual std::string work(bool idle, gb_emu_random & random) = 0; // some of it; "" or what is wrong
    virtual std::string at_end_of(size_t thread) = 0;                // the same, when the thread has returned
    virtual std::string at_end() = 0;                                // and the block
};
std::unique_ptr<gb_emu_beside> & gb_emu_block_beside(void); // of the block that runs; NULL: there is nothing

size_t gb_emu_thread(void); // number in the block of the one that runs
size_t gb_emu_threads(void);
size_t gb_emu_draw(size_t n);                // below n, from the order's random numbers
void gb_emu_at(const char * what, int line); // where it is, for messages
void gb_emu_sleep(const void * on);          // until the next gb_emu_wake of the same
void gb_emu_wake(const void * on);
void gb_needs_hopper(void); // the block fails when there is no code for 9.0a

struct gb_emu_block {
    uint3 index;
    dim3 grid, block;
    size_t shared;  // bytes, dynamic
    bool dependent; // every thread must call gb_wait_for_earlier, before it touches memory of the device
};

// What the thread that runs asks for reads or writes memory of the device: it must have waited.
void gb_emu_touch_device(const char * what);
// The block that runs has touched it too early: it fails with this when it stops.
void gb_emu_note_touch(const std::string & message);

struct gb_emu_block_run;

// A block on its way. What it is given must live as long. It stays on the host's thread that begins it.
class gb_emu_running {
  public:
    gb_emu_running(const gb_emu_block & what, const std::function<void()> & body);
    ~gb_emu_running();
    gb_emu_running(const gb_emu_running &) = delete;
    gb_emu_running & operator=(const gb_emu_running &) = delete;
    // Of a dependent block, while kernels before it still run: all threads up to where they wait. "" or what is wrong.
    std::string begin(gb_emu_random & random);
    // "" when all threads came to their end.
    std::string finish(gb_emu_random & random);

  private:
    std::unique_ptr<gb_emu_block_run> b;
};

#endif // GB_EMULATED_BLOCK_H
