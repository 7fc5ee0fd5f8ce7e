// The pool of offsets: every allocation and release against a map of bytes.
#include "alloc/offset_pool.h"
#include "base/mem.h"
#include "pool_validator.h"
#include "test.h"

static void agrees_with_a_map_of_bytes(void) {
    enum { SPACE = 300, PIECES = 60 };
    for (int round = 0; round < 200; round++) {
        struct gb_offset_pool pool;
        bool used[SPACE] = { 0 };
        struct gb_free_block pieces[PIECES];
        int n = 0;
        const size_t start = (size_t) test_random_int(0, 20);
        REQUIRE(gb_pool_init(&pool, start, SPACE));
        for (int step = 0; step < 300; step++) {
            if (n < PIECES && test_random_int(0, 2)) {
                size_t offset;
                const size_t size = (size_t) test_random_int(0, 20);
                size_t largest = 0, run = 0;
                for (size_t i = start; i < SPACE; i++) {
                    run = used[i] ? 0 : run + 1;
                    largest = GB_MAX(largest, run);
                }
                CHECK_INT(gb_pool_largest_free(&pool), largest);
                const enum gb_pool_result result = gb_pool_take(&pool, size, &offset);
                CHECK_INT(result, size <= largest ? GB_POOL_OK : GB_POOL_FULL);
                if (result == GB_POOL_OK && size > 0) {
                    for (size_t i = offset; i < offset + size; i++) {
                        CHECK(i >= start && i < SPACE && !used[i]);
                        used[i] = true;
                    }
                    pieces[n++] = (struct gb_free_block){ offset, size };
                }
            } else if (n > 0) {
                const int i = (int) test_random_int(0, n - 1);
                gb_pool_give_back(&pool, pieces[i].offset, pieces[i].size);
                memset(used + pieces[i].offset, 0, pieces[i].size);
                pieces[i] = pieces[--n];
            }
            CHECK(pool_is_valid(&pool));
        }
        gb_pool_free(&pool);
    }
}

static void takes_the_smallest_gap_that_fits(void) {
    struct gb_offset_pool pool;
    size_t a, b, c, d, e, x;
    REQUIRE(gb_pool_init(&pool, 0, 1000));
    gb_pool_take(&pool, 100, &a);
    gb_pool_take(&pool, 10, &b);
    gb_pool_take(&pool, 50, &c);
    gb_pool_take(&pool, 10, &d);
    gb_pool_take(&pool, 100, &e);
    gb_pool_give_back(&pool, a, 100);
    gb_pool_give_back(&pool, c, 50);
    CHECK(gb_pool_take(&pool, 40, &x) == GB_POOL_OK && x == c); // the smallest gap that fits
    CHECK(gb_pool_take(&pool, 60, &x) == GB_POOL_OK && x == a);
    CHECK(gb_pool_take(&pool, 50, &x) == GB_POOL_OK && x == 270); // no gap fits, so at the end
    CHECK_INT(pool.high, 320);
    gb_pool_reset(&pool);
    CHECK_INT(pool.high, 320);
    CHECK(gb_pool_take(&pool, 1000, &x) == GB_POOL_OK && x == 0);
    CHECK(gb_pool_take(&pool, 1, &x) == GB_POOL_FULL);
    CHECK(gb_pool_take(&pool, 0, &x) == GB_POOL_OK);
    gb_pool_free(&pool);
}

TEST_MAIN(TEST(agrees_with_a_map_of_bytes), TEST(takes_the_smallest_gap_that_fits))
