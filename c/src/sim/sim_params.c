// sim_params.c - reads the parameters of a device. An unknown key or a bad value is an error, which
// names the pair and lists the known keys.
#include <stdio.h>
#include <string.h>

#include "base/params.h"
#include "base/text.h"
#include "cpu/cpu.h"
#include "sim/sim_device.h"
#include "tensor/tensor.h"

static const char known[] = "known are name=<text>, mem=<size>, max=<size>, align=<size>, ops=<op+op>, noops=<op+op>, "
                            "delay=<time>, op_delay=<time>, copy_delay=<time>, copy_bw=<size>, threads=<count>, "
                            "fail_op=<op>, fail_alloc_after=<count>";

// ----------------------------------------------------------------------------------------------------------- op filter

bool gb_sim_op_has_name(const struct ggml_tensor * node, const char * name) {
    return gb_text_equal(ggml_op_name(node->op), name) || gb_text_equal(ggml_op_desc(node), name);
}

// Marks the operator, or the function of UNARY, of that name as refused or not. False: there is no
// such name.
static bool set_op(struct gb_sim_params * params, const char * name, bool refuse) {
    for (int op = 1; op < GGML_OP_COUNT; op++) {
        if (gb_text_equal(ggml_op_name((enum ggml_op) op), name)) {
            params->refuses[op] = refuse;
            for (int u = 0; op == GGML_OP_UNARY && u < GGML_UNARY_OP_COUNT; u++) {
                params->refuses_unary[u] = refuse;
            }
            return true;
        }
    }
    for (int u = 0; u < GGML_UNARY_OP_COUNT; u++) {
        if (gb_text_equal(ggml_unary_op_name((enum ggml_unary_op) u), name)) {
            params->refuses_unary[u] = refuse;
            params->refuses[GGML_OP_UNARY] &= refuse; // other operators keep their marks
            return true;
        }
    }
    return false;
}

// Applies a list of names joined by "+".
static enum ggml_status set_ops(struct gb_sim_params * params, const char * key, const char * list, bool refuse) {
    char name[64];
    while (gb_params_item(&list, '+', name, sizeof(name))) {
        GB_FAIL_IF(!set_op(params, name, refuse), GGML_STATUS_INVALID_ARGUMENT,
            "SIM: parameter '%s': there is no operator '%s'", key, name);
    }
    return GGML_STATUS_SUCCESS;
}

// --------------------------------------------------------------------------------------------------------- single keys

// The lists of operators. They are applied when all parameters are read, so the order of keys does
// not matter.
struct lists {
    char ops[512], noops[512];
    bool has_ops;
};

// Returns NULL, or the error of the value, as do all functions of this section.
static const char * set_text(char * to, size_t size, const char * value) {
    if (*value == '\0' || strlen(value) >= size) {
        return "needs a text that is neither empty nor long";
    }
    snprintf(to, size, "%s", value);
    return NULL;
}

// From 16 bytes on, so that the numbers of every type are aligned.
static const char * set_alignment(struct gb_sim_params * params, const char * value) {
    size_t size;
    if (!gb_params_size(value, &size) || size < 16 || size > 65536 || (size & (size - 1)) != 0) {
        return "needs a power of two from 16 to 65536";
    }
    params->alignment = size;
    return NULL;
}

// Tries the name on a scratch device first, because an unknown name would never fail.
static const char * set_fail_op(struct gb_sim_params * params, const char * value) {
    struct gb_sim_params scratch = { 0 };
    if (!set_op(&scratch, value, true)) {
        return "needs the name of an operator";
    }
    return set_text(params->fail_op, sizeof(params->fail_op), value);
}

// Sets one parameter. Returns NULL, or the error of the value.
static const char * set_param(struct gb_sim_params * params, struct lists * lists, const char * key,
    const char * value) {
    static const char bad_size[] = "needs a size like 64M", bad_time[] = "needs a time like 2ms";
    int64_t n = params->n_threads;
    if (gb_text_equal(key, "name")) {
        return set_text(params->name, sizeof(params->name), value);
    }
    if (gb_text_equal(key, "mem")) {
        return gb_params_size(value, &params->mem_size) ? NULL : bad_size;
    }
    if (gb_text_equal(key, "max")) {
        return gb_params_size(value, &params->max_size) ? NULL : bad_size;
    }
    if (gb_text_equal(key, "align")) {
        return set_alignment(params, value);
    }
    if (gb_text_equal(key, "delay")) {
        return gb_params_duration(value, &params->delay_ns) ? NULL : bad_time;
    }
    if (gb_text_equal(key, "op_delay")) {
        return gb_params_duration(value, &params->op_delay_ns) ? NULL : bad_time;
    }
    if (gb_text_equal(key, "copy_bw")) {
        return gb_params_size(value, &params->copy_bw) ? NULL : bad_size;
    }
    if (gb_text_equal(key, "copy_delay")) {
        return gb_params_duration(value, &params->copy_delay_ns) ? NULL : bad_time;
    }
    if (gb_text_equal(key, "fail_op")) {
        return set_fail_op(params, value);
    }
    if (gb_text_equal(key, "fail_alloc_after")) {
        return gb_params_int(value, 0, INT32_MAX, &params->fail_alloc_after) ? NULL : "needs a count";
    }
    if (gb_text_equal(key, "noops")) {
        return set_text(lists->noops, sizeof(lists->noops), value);
    }
    if (gb_text_equal(key, "ops")) {
        lists->has_ops = true;
        return *value == '\0' ? NULL : set_text(lists->ops, sizeof(lists->ops), value); // empty: no operator
    }
    if (gb_text_equal(key, "threads")) {
        const bool good = gb_params_int(value, 1, GB_CPU_MAX_THREADS, &n);
        params->n_threads = (int) n;
        return good ? NULL : "needs a count from 1 to 512";
    }
    return "is unknown";
}

// Sets the parameters of a device without limits, delays and faults, then applies the pairs in
// `text` (NULL: none).
enum ggml_status gb_sim_params_parse(const char * text, struct gb_sim_params * params) {
    *params = (struct gb_sim_params){
        .mem_size = SIZE_MAX,
        .max_size = SIZE_MAX,
        .alignment = 128,
        .n_threads = 1,
        .fail_alloc_after = -1,
    };
    struct lists lists = { 0 };
    struct gb_param param;
    enum gb_params_next next;
    while ((next = gb_params_next(&text, &param)) == GB_PARAMS_GOOD) {
        const char * wrong = set_param(params, &lists, param.key, param.value);
        GB_FAIL_IF(wrong != NULL, GGML_STATUS_INVALID_ARGUMENT, "SIM: parameter '%s=%s' %s; %s", param.key, param.value,
            wrong, known);
    }
    GB_FAIL_IF(next == GB_PARAMS_BAD, GGML_STATUS_INVALID_ARGUMENT,
        "SIM: parameters must read key=value,key=value, not '%s'; %s", text, known);
    if (lists.has_ops) {
        memset(params->refuses, true, sizeof(params->refuses));
        memset(params->refuses_unary, true, sizeof(params->refuses_unary));
    }
    GB_TRY(set_ops(params, "ops", lists.ops, false));
    return set_ops(params, "noops", lists.noops, true);
}
