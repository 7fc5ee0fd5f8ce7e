// A thread leaves its processor for another one. Its affinity mask stays the same.
#define _GNU_SOURCE // masks of processors
#include "test.h"

#include "base/processor.h"
#include "base/thread.h"

#ifdef __linux__
#    include <sched.h>
#    include <unistd.h>

static cpu_set_t mask_of_thread(void) {
    cpu_set_t mask;
    CPU_ZERO(&mask);
    CHECK_INT(sched_getaffinity(0, sizeof(mask), &mask), 0);
    return mask;
}

static void leave_often(void * arg) {
    (void) arg;
    const cpu_set_t before = mask_of_thread();
    int moved = 0;
    for (int i = 0; i < 100; i++) {
        const int here = gb_this_processor();
        CHECK_MSG(here >= 0 && CPU_ISSET(here, &before), "on processor %d", here);
        CHECK(gb_leave_processor(here) == (CPU_COUNT(&before) > 1));
        moved += gb_this_processor() != here;
        const cpu_set_t after = mask_of_thread();
        CHECK(CPU_EQUAL(&after, &before));
    }
    CHECK(CPU_COUNT(&before) == 1 ? moved == 0 : moved > 0);
}

// Each test runs on its own thread, so the mask of the program does not change.
static void in_a_thread(void (*run)(void * arg)) {
    gb_thread t;
    REQUIRE(gb_thread_start(&t, run, NULL));
    gb_thread_join(t);
}

static void the_mask_stays(void) { in_a_thread(leave_often); }

// The program sets a mask: of two processors, of one, or of one other than the thread's.
static void leave_within_a_mask(void * arg) {
    (void) arg;
    const cpu_set_t all = mask_of_thread();
    cpu_set_t mask;
    CPU_ZERO(&mask);
    int last = -1;
    for (int cpu = 0; cpu < CPU_SETSIZE && CPU_COUNT(&mask) < 2; cpu++) {
        if (CPU_ISSET(cpu, &all)) {
            CPU_SET(cpu, &mask);
            last = cpu;
            REQUIRE(sched_setaffinity(0, sizeof(mask), &mask) == 0);
            leave_often(NULL);
            CHECK(gb_leave_processor(cpu) == (CPU_COUNT(&mask) > 1));
            const cpu_set_t after = mask_of_thread();
            CHECK(CPU_EQUAL(&after, &mask));
        }
    }
    CPU_ZERO(&mask);
    CPU_SET(last, &mask);
    REQUIRE(sched_setaffinity(0, sizeof(mask), &mask) == 0);
    leave_often(NULL);
}

static void the_mask_of_a_user_stays(void) { in_a_thread(leave_within_a_mask); }

static void leave_nowhere(void * arg) {
    (void) arg;
    const cpu_set_t before = mask_of_thread();
    const int bad[] = { -1, CPU_SETSIZE, INT32_MAX, INT32_MIN };
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        CHECK(!gb_leave_processor(bad[i]));
    }
    const cpu_set_t after = mask_of_thread();
    CHECK(CPU_EQUAL(&after, &before));
}

static void numbers_of_no_processor(void) { in_a_thread(leave_nowhere); }

TEST_MAIN(TEST(the_mask_stays), TEST(the_mask_of_a_user_stays), TEST(numbers_of_no_processor))

#else

static void other_systems_do_not_tell(void) {
    CHECK_INT(gb_this_processor(), -1);
    CHECK(!gb_leave_processor(0));
}

TEST_MAIN(TEST(other_systems_do_not_tell))

#endif
