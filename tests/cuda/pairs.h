// pairs.h - covering arrays: combinations of properties that have each pair of values of two properties at least once.
#ifndef GB_TESTS_PAIRS_H
#define GB_TESTS_PAIRS_H

#include <vector>

#include "test.h"

typedef std::vector<int> combination; // the number of the value of each property

static inline combination random_combination(const std::vector<int> & counts) {
    combination x;
    for (int n : counts) {
        x.push_back((int) (test_random() % (uint64_t) n));
    }
    return x;
}

// The pairs of values that were tried.
struct coverage {
    enum { MOST = 40 }; // values of a property
    size_t n;
    std::vector<bool> seen;

    explicit coverage(size_t n_properties) : n(n_properties), seen(n * n * MOST * MOST, false) {}
    size_t at(size_t i, int a, size_t j, int b) const { return ((i * n + j) * MOST + (size_t) a) * MOST + (size_t) b; }
    int add(const combination & x, bool mark) { // number of its new pairs
        int added = 0;
        for (size_t i = 0; i < n; i++) {
            for (size_t j = i + 1; j < n; j++) {
                const size_t place = at(i, x[i], j, x[j]);
                added += !seen[place];
                seen[place] = seen[place] || mark;
            }
        }
        return added;
    }
};

// Greedy: takes each uncovered pair, with the best of some random values for the other properties.
static inline std::vector<combination> covering_array(const std::vector<int> & counts) {
    enum { TRIES = 30 };
    coverage done(counts.size());
    std::vector<combination> all;
    for (size_t i = 0; i < counts.size(); i++) {
        for (size_t j = i + 1; j < counts.size(); j++) {
            for (int pair = 0; pair < counts[i] * counts[j]; pair++) {
                const int a = pair / counts[j], b = pair % counts[j];
                if (done.seen[done.at(i, a, j, b)]) {
                    continue;
                }
                combination best;
                int most = 0;
                for (int k = 0; k < TRIES; k++) {
                    combination x = random_combination(counts);
                    x[i] = a;
                    x[j] = b;
                    const int n = done.add(x, false);
                    if (n > most) {
                        most = n;
                        best = x;
                    }
                }
                done.add(best, true);
                all.push_back(best);
            }
        }
    }
    return all;
}

#endif // GB_TESTS_PAIRS_H
