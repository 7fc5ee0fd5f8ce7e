// test_memory.h - runs a scenario with each of its allocations failing in turn. Each failure must
// be reported, and nothing may leak.
#ifndef GB_TESTS_TEST_MEMORY_H
#define GB_TESTS_TEST_MEMORY_H

#include "base/mem.h"
#include "test.h"

// `scenario` cleans up, and returns true if everything worked. It makes fewer than `most`
// allocations.
static inline void test_each_allocation_fails(bool (*scenario)(void), int most) {
    const int64_t before = gb_test_live_allocs();
    bool done = false;
    for (int n = 1; n < most && !done; n++) {
        gb_test_fail_alloc(n, false);
        const bool ok = scenario();
        done = !gb_test_alloc_failed();
        gb_test_fail_alloc(0, false);
        CHECK_MSG(ok == done, "with allocation %d failing the scenario %s", n, ok ? "succeeded" : "failed");
        CHECK_INT(gb_test_live_allocs(), before);
    }
    CHECK(done);
}

#endif // GB_TESTS_TEST_MEMORY_H
