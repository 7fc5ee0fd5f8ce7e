// explain.c - why things are where they are, in words. Names come from the plan's own copies: other tensors of the
// graph may be gone.
#include "sched/sched.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

struct text {
    char * at;
    size_t room; // bytes left, with the NUL
};

GGML_ATTRIBUTE_FORMAT(2, 3) static void append(struct text * t, const char * fmt, ...) {
    va_list args;
    va_start(args, fmt);
    const int n = vsnprintf(t->at, t->room, fmt, args);
    va_end(args);
    const size_t used = n < 0 ? 0 : GB_MIN((size_t) n, t->room - 1);
    t->at += used;
    t->room -= used;
}

static const char * backend_name(const struct ggml_backend_sched * s, int backend) { return s->devices[backend].name; }

// What each backend says that cannot run the node.
static void append_refusals(struct text * t, const struct ggml_backend_sched * s, const struct ggml_tensor * node) {
    for (int b = 0; b < s->n_backends; b++) {
        const char * reason = ggml_backend_unsupported_reason(s->devices[b].backend, node);
        if (reason) {
            append(t, "; %s: %s", backend_name(s, b), reason);
        }
    }
}

static enum ggml_status fail_leaf(struct ggml_backend_sched * s, const struct gb_sched_plan * p, int id) {
    const struct ggml_tensor * tensor = p->ids.data[id].tensor;
    return gb_fail(GGML_STATUS_INVALID_STATE,
        "ggml_backend_sched: tensor '%s' is assigned to backend %s, but lies in buffer %s, which that backend cannot "
        "use",
        tensor->name, backend_name(s, p->user[id]),
        tensor->buffer ? ggml_backend_buffer_name(tensor->buffer) : "of plain host memory");
}

enum ggml_status gb_sched_fail_assignment(struct ggml_backend_sched * s, struct gb_sched_plan * p, int id) {
    const struct ggml_tensor * node = p->ids.data[id].tensor;
    if (!p->ids.data[id].computes) {
        return fail_leaf(s, p, id);
    }
    char        described[768], refusals[1024] = "";
    struct text t = { refusals, sizeof(refusals) };
    gb_describe_node(node, described, sizeof(described));
    if (p->user[id] >= 0) {
        const char * reason = ggml_backend_unsupported_reason(s->devices[p->user[id]].backend, node);
        return gb_fail(GGML_STATUS_UNSUPPORTED,
            "ggml_backend_sched: node %d, %s, is assigned to backend %s by the user, which cannot run it: %s", id,
            described, backend_name(s, p->user[id]), reason ? reason : "it says so");
    }
    append_refusals(&t, s, node);
    return gb_fail(GGML_STATUS_UNSUPPORTED, "ggml_backend_sched: no backend can run node %d, %s%s", id, described,
        refusals);
}

static void append_cost(struct text * t, const struct ggml_backend_sched * s, const struct gb_assignment * a) {
    if (a->other < 0) {
        append(t, "cost: nobody else can take it");
    } else {
        append(t, "cost: running on %s saves %.3f us against %s", backend_name(s, a->backend), (double) a->saved * 1e-3,
            backend_name(s, a->other));
    }
}

static void append_cause(struct text * t, const struct ggml_backend_sched * s, const struct gb_sched_plan * p, int id) {
    const struct gb_assignment * a  = &p->assignment[id];
    const char *                 by = a->by >= 0 ? p->key[a->by].name : "";
    switch ((enum gb_cause) a->cause) {
        case GB_CAUSE_USER: append(t, "assigned by the user"); break;
        case GB_CAUSE_BUFFER:
            if (a->by >= 0) {
                append(t, "its result lies in '%s', whose memory is there", by);
            } else {
                append(t, "its memory is there");
            }
            break;
        case GB_CAUSE_WEIGHT: append(t, "reads weight '%s' there", by); break;
        case GB_CAUSE_SOURCE: append(t, "its best source '%s' is there", by); break;
        case GB_CAUSE_UP: append(t, "spread upward from '%s'", by); break;
        case GB_CAUSE_DOWN: append(t, "spread downward from '%s'", by); break;
        case GB_CAUSE_PRIORITY: append(t, "the next in priority that can run it"); break;
        case GB_CAUSE_ALIAS: append(t, "its result lies in '%s', which is there", by); break;
        case GB_CAUSE_VIEW: append(t, "a view of '%s'", by); break;
        case GB_CAUSE_READER: append(t, "first used there, by '%s'", by); break;
        case GB_CAUSE_UNUSED: append(t, "used by no node"); break;
        case GB_CAUSE_COST: append_cost(t, s, a); break;
        case GB_CAUSE_NONE: append(t, "for no reason"); break;
    }
}

static void append_size(struct text * t, size_t bytes) {
    if (bytes < 10240) {
        append(t, "%zu bytes", bytes);
    } else if (bytes < 1024 * 1024) {
        append(t, "%.4g KiB", (double) bytes / 1024);
    } else {
        append(t, "%.4g MiB", (double) bytes / (1024 * 1024));
    }
}

// Copies that the node's split makes for sources of this node; of one that fell back also those of its result.
static void append_copies(struct text * t, const struct ggml_backend_sched * s, const struct gb_sched_plan * p,
    int id) {
    const struct gb_fallback * f = gb_sched_fallback_of(p, id);
    size_t                     n, bytes;
    gb_sched_count_copies(p, id, f != NULL, &n, &bytes);
    if (n > 0) {
        append(t, "; %s copies of %zu tensor%s, ", f ? "this forces" : "needs", n, n == 1 ? "" : "s");
        append_size(t, bytes);
    }
    if (n > 0 && f == NULL) {
        append(t, ", to %s", backend_name(s, p->assignment[id].backend));
    }
    for (size_t w = 0; w < p->backs.n; w++) {
        if (p->backs.data[w].node == id) {
            append(t, "; its result is written back to '%s'", p->key[p->ids.data[id].root].name);
        }
    }
}

// `tensor` of the id is alive: the caller has just named it.
const char * gb_sched_explain(struct ggml_backend_sched * s, struct gb_sched_plan * p, int id) {
    enum { SIZE = 4096 };
    const struct gb_assignment * a = &p->assignment[id];
    if (a->backend < 0 || !gb_vec_reserve(&s->text, SIZE)) {
        return "";
    }
    struct text t = { s->text.data, SIZE };
    append(&t, "backend %s: ", backend_name(s, a->backend));
    append_cause(&t, s, p, id);
    if (p->ids.data[id].computes) {
        if (a->wanted >= 0) {
            const bool supports = p->supports[(size_t) id * (size_t) p->n_backends + (size_t) a->wanted] != 2;
            append(&t, "; not on %s", backend_name(s, a->wanted));
            append(&t, supports ? ", which cannot write where the result lies" : "");
        }
        const struct gb_fallback * f = gb_sched_fallback_of(p, id);
        if (a->cause == GB_CAUSE_PRIORITY) {
            append_refusals(&t, s, p->ids.data[id].tensor);
        } else if (f) {
            append(&t, "; %s: %s", backend_name(s, f->refused_by), f->reason);
        }
        append_copies(&t, s, p, id);
    }
    return s->text.data;
}
