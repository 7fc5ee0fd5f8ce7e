// refusal.c - reports why a graph cannot be assigned: the node or leaf, and the reason of each
// backend.
#include "base/text.h"
#include "sched/assign/assign.h"
#include "sched/input/input.h"
#include "sched/sched.h"

void gb_sched_append_refusals(struct gb_text * t, const struct ggml_backend_sched * s, const struct ggml_tensor * node,
    const char * before) {
    for (int b = 0; b < s->n_backends; b++) {
        const char * reason = ggml_backend_unsupported_reason(s->devices[b].backend, node);
        if (reason) {
            gb_text_append(t, "; %s%s: %s", before, s->devices[b].name, reason);
        }
    }
}

// A leaf fails only if the backend that the user chose cannot use its memory.
static enum ggml_status fail_leaf(const struct ggml_backend_sched * s, const struct gb_sched_input * in, int id) {
    const struct ggml_tensor * tensor = in->ids.data[id].tensor;
    return gb_fail(GGML_STATUS_INVALID_STATE,
        "ggml_backend_sched: tensor '%s' is assigned to backend %s, but is in %s, which that backend cannot use",
        tensor->name, s->devices[in->chosen[id]].name,
        tensor->buffer ? ggml_backend_buffer_name(tensor->buffer) : "plain host memory");
}

enum ggml_status gb_sched_fail_assignment(const struct ggml_backend_sched * s, const struct gb_sched_input * in,
    int id) {
    const struct ggml_tensor * node = in->ids.data[id].tensor;
    if (!in->ids.data[id].computes) {
        return fail_leaf(s, in, id);
    }
    char described[768], refusals[1024] = "";
    struct gb_text t = { refusals, sizeof(refusals) };
    gb_describe_node(node, described, sizeof(described));
    if (in->chosen[id] >= 0) {
        const char * reason = ggml_backend_unsupported_reason(s->devices[in->chosen[id]].backend, node);
        gb_fail(GGML_STATUS_UNSUPPORTED,
            "ggml_backend_sched: node %d, %s, is assigned to backend %s by the user, which cannot run it: %s", id,
            described, s->devices[in->chosen[id]].name, reason ? reason : "it gives no reason");
    } else {
        gb_sched_append_refusals(&t, s, node, "");
        gb_fail(GGML_STATUS_UNSUPPORTED, "ggml_backend_sched: no backend can run node %d, %s%s", id, described,
            refusals);
    }
    gb_set_fault(&(struct gb_fault){ .kind = GB_FAULT_NODE_REFUSED, .op = node->op });
    return GGML_STATUS_UNSUPPORTED;
}
