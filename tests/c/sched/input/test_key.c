// test_key.c - the key of a tensor in a plan: it recognizes the tensor, and detects a change of
// every field that planning reads.
#include "sched/input/key.h"

#include "test.h"

enum { N = 3000 };

static struct ggml_tensor tensors[N], others[4];

// Random bytes in the fields. Some tensors have all parameters and sources, many have few, in any
// slots.
static void fill(struct ggml_tensor * t) {
    memset(t, 0, sizeof(*t));
    t->type = (enum ggml_type)(test_random() % 3 == 0 ? GGML_TYPE_F16 : GGML_TYPE_F32);
    t->op = (enum ggml_op)(test_random() % GGML_OP_COUNT);
    for (int i = 0; i < GGML_MAX_DIMS; i++) {
        t->ne[i] = (int64_t) (1 + test_random() % 5);
        t->nb[i] = (size_t) (i == 0 ? ggml_type_size(t->type) : t->nb[i - 1] * (size_t) t->ne[i - 1]);
    }
    const uint64_t kind = test_random() % 4;
    for (size_t i = 0; i < GGML_MAX_OP_PARAMS / sizeof(int32_t); i++) {
        t->op_params[i] = kind == 0 || (kind == 1 && test_random() % 8 == 0) ? (int32_t) test_random() : 0;
    }
    for (int i = 0; i < GGML_MAX_SRC; i++) {
        t->src[i] = kind == 2                                  ? &others[test_random() % 4]
                    : test_random() % 4 == 0 && i < (int) kind ? &others[1]
                                                               : NULL;
    }
    t->view_src = test_random() % 3 == 0 ? &others[2] : NULL;
    t->view_offs = t->view_src ? test_random() % 100 : 0;
    t->data = (void *) &others[test_random() % 4];
    const size_t letters = test_random() % 5 == 0 ? GGML_MAX_NAME - 1 : test_random() % 20;
    for (size_t i = 0; i < letters; i++) {
        t->name[i] = (char) ('a' + test_random() % 26);
    }
    gb_tensor_set_ndim(t, (int) (test_random() % 5));
}

// Flips each bit of the fields in the key, then of the others.
static void changes(const struct gb_key * key, const struct ggml_tensor * t) {
    struct ggml_tensor x = *t;
    CHECK(gb_key_is_like(key, &x));
    static const struct {
        size_t from, to;
        bool counts;
    } fields[] = {
        { offsetof(struct ggml_tensor, type), offsetof(struct ggml_tensor, backend), true },
        { offsetof(struct ggml_tensor, backend), offsetof(struct ggml_tensor, ne), false }, // and the buffer
        { offsetof(struct ggml_tensor, ne), offsetof(struct ggml_tensor, is_param), true }, // nb, op and op_params, too
        { offsetof(struct ggml_tensor, grad), offsetof(struct ggml_tensor, src), false },
        { offsetof(struct ggml_tensor, src), offsetof(struct ggml_tensor, perf_runs), true },
        { offsetof(struct ggml_tensor, view_src), offsetof(struct ggml_tensor, data), true }, // and view_offs
        { offsetof(struct ggml_tensor, data), offsetof(struct ggml_tensor, padding), false },
        { offsetof(struct ggml_tensor, padding), offsetof(struct ggml_tensor, padding) + 1, true },
        { offsetof(struct ggml_tensor, padding) + 1, sizeof(struct ggml_tensor), false },
    };
    for (size_t f = 0; f < GB_ARRAY_LEN(fields); f++) {
        for (size_t at = fields[f].from; at < fields[f].to; at++) {
            char * byte = (char *) &x + at;
            *byte = (char) (*byte ^ (char) (1 << test_random() % 8));
            CHECK_MSG(gb_key_is_like(key, &x) != fields[f].counts, "byte %zu of the struct", at);
            memcpy(byte, (const char *) t + at, 1);
        }
    }
}

static void known_again(void) {
    struct gb_keys keys = { 0 };
    REQUIRE(gb_keys_reserve(&keys, N / 2)); // a tensor may exceed the reserved space
    for (int i = 0; i < N; i++) {
        fill(&tensors[i]);
        REQUIRE(gb_keys_add(&keys, &tensors[i]));
    }
    for (int i = 0; i < N; i++) {
        const struct gb_key * key = gb_key_of(&keys, i);
        CHECK_STR(gb_key_name(key), tensors[i].name);
        CHECK(key->data == tensors[i].data && key->buffer == tensors[i].buffer);
        CHECK(key->op == (int32_t) tensors[i].op && key->state == gb_tensor_state(&tensors[i]));
        CHECK(gb_key_nbytes(key) == ggml_nbytes(&tensors[i]));
        if (i % 10 == 0) {
            changes(key, &tensors[i]);
        }
    }
    // a name without a terminator is cut
    memset(tensors[0].name, 'x', sizeof(tensors[0].name));
    REQUIRE(gb_keys_add(&keys, &tensors[0]));
    CHECK(strlen(gb_key_name(gb_key_of(&keys, N))) == GGML_MAX_NAME - 1);
    gb_keys_free(&keys);
    CHECK(keys.words.data == NULL && keys.at.n == 0);
}

TEST_MAIN(TEST(known_again))
