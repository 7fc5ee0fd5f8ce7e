// products_and_attention.h - the tests of products and of attention, for tests that run their cases on other devices.
// Include it once.
#ifndef GB_TESTS_PRODUCTS_AND_ATTENTION_H
#define GB_TESTS_PRODUCTS_AND_ATTENTION_H

#include "device_graph.h"

#pragma push_macro("TEST_MAIN")
#undef TEST_MAIN
#define TEST_MAIN(...) [[maybe_unused]] static const struct test_case all_cases[] = { __VA_ARGS__ };
namespace products {
#include "test_products.cpp"
}
namespace attentions {
#include "test_attention.cpp"
}
#pragma pop_macro("TEST_MAIN")

#endif // GB_TESTS_PRODUCTS_AND_ATTENTION_H
