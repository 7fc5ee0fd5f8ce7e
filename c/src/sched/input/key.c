// key.c - makes the record that a plan keeps of a tensor.
#include "sched/input/key.h"

#include <string.h>

// The size of a usual record: no parameters, two sources, and a name of up to 15 letters.
enum { USUAL_WORDS = (sizeof(struct gb_key) + 16) / sizeof(uint64_t) };

bool gb_keys_reserve(struct gb_keys * keys, size_t n) {
    return gb_vec_reserve(&keys->at, n) && gb_vec_reserve(&keys->words, n * USUAL_WORDS);
}

bool gb_keys_add(struct gb_keys * keys, const struct ggml_tensor * t) {
    struct gb_key key = { .buffer = t->buffer,
        .data = t->data,
        .view_src = t->view_src,
        .src = { t->src[0], t->src[1] },
        .view_offs = t->view_offs,
        .type = (int32_t) t->type,
        .op = (int32_t) t->op,
        .state = gb_tensor_state(t),
        .has_params = gb_key_wants_params(t),
        .has_more = gb_key_wants_more(t) };
    const size_t params = key.has_params ? GB_KEY_PARAMS * sizeof(int32_t) : 0;
    const size_t more = key.has_more ? GB_KEY_MORE * sizeof(*t->src) : 0;
    const size_t name = strnlen(t->name, sizeof(t->name) - 1);
    const size_t at = keys->words.n;
    const size_t words = (sizeof(key) + params + more + name) / sizeof(uint64_t) + 1; // with at least one 0 byte
    memcpy(key.ne, t->ne, sizeof(key.ne));
    memcpy(key.nb, t->nb, sizeof(key.nb));
    if (!gb_vec_reserve(&keys->words, at + words) || !gb_vec_push(&keys->at, at)) {
        return false;
    }
    keys->words.n = at + words;
    keys->words.data[at + words - 1] = 0; // the end of the name
    char * record = (char *) (keys->words.data + at);
    memcpy(record, &key, sizeof(key));
    memcpy(record + sizeof(key), t->op_params, params);
    memcpy(record + sizeof(key) + params, t->src + GB_KEY_SRC, more);
    memcpy(record + sizeof(key) + params + more, t->name, name);
    return true;
}

void gb_keys_free(struct gb_keys * keys) {
    gb_vec_free(&keys->words);
    gb_vec_free(&keys->at);
}
