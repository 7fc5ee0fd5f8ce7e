// explain.c - explains why a node runs on its backend. Names come from the plan's records, because
// other tensors of the graph may be freed.
#include "base/text.h"
#include "sched/assign/assign.h"
#include "sched/input/input.h"
#include "sched/program/program.h"
#include "sched/report/report.h"
#include "sched/sched.h"

// The parts of a plan that the text describes; borrowed.
struct explained {
    const struct gb_sched_input * in;
    const struct gb_sched_assigned * assigned;
    const struct gb_sched_program * program;
    const struct gb_sched_report * report;
};

// The extra cost on the next best backend, from the solver.
static void append_cost(struct gb_text * t, const struct ggml_backend_sched * s, const struct gb_assignment * a) {
    if (a->other < 0) {
        gb_text_append(t, ", because no other device can take it");
    } else {
        gb_text_append(t, ", because that saves %.3f us against %s", (double) a->saved * 1e-3,
            s->devices[a->other].name);
    }
}

// Appends the rule of docs/design/scheduler.md that decided.
static void append_cause(struct gb_text * t, const struct ggml_backend_sched * s, const struct explained * p, int id) {
    const struct gb_assignment * a = &p->assigned->to[id];
    const char * by = a->by >= 0 ? gb_sched_name_of(p->in, a->by) : "";
    switch ((enum gb_cause) a->cause) {
        case GB_CAUSE_USER: gb_text_append(t, ", as you assigned it"); break;
        case GB_CAUSE_BUFFER:
            if (a->by >= 0) {
                gb_text_append(t, ", because its result is in '%s', whose memory is there", by);
            } else {
                gb_text_append(t, ", because its memory is there");
            }
            break;
        case GB_CAUSE_WEIGHT: gb_text_append(t, ", because its weight '%s' is there", by); break;
        case GB_CAUSE_SOURCE: gb_text_append(t, ", because its largest source '%s' is there", by); break;
        case GB_CAUSE_UP: gb_text_append(t, ", like '%s' after it", by); break;
        case GB_CAUSE_DOWN: gb_text_append(t, ", like '%s' before it", by); break;
        case GB_CAUSE_PRIORITY: gb_text_append(t, ", the first device that can run it"); break;
        case GB_CAUSE_ALIAS: gb_text_append(t, ", because its result is in '%s', which is there", by); break;
        case GB_CAUSE_VIEW: gb_text_append(t, ", as a view of '%s'", by); break;
        case GB_CAUSE_READER: gb_text_append(t, ", where '%s' uses it first", by); break;
        case GB_CAUSE_UNUSED: gb_text_append(t, ", although no node uses it"); break;
        case GB_CAUSE_COST: append_cost(t, s, a); break;
        case GB_CAUSE_NONE: break;
    }
}

// Small sizes are exact, larger ones have four digits.
static void append_size(struct gb_text * t, size_t bytes) {
    if (bytes < 10240) {
        gb_text_append(t, "%zu bytes", bytes);
    } else if (bytes < 1024 * 1024) {
        gb_text_append(t, "%.4g KiB", (double) bytes / 1024);
    } else {
        gb_text_append(t, "%.4g MiB", (double) bytes / (1024 * 1024));
    }
}

// Copies of the node's sources; if the node fell back, also copies of its result.
static void append_copies(struct gb_text * t, const struct ggml_backend_sched * s, const struct explained * p, int id) {
    const struct gb_fallback * f = gb_sched_fallback_of(p->report, id);
    const struct gb_copied copied = gb_sched_copies_of(p->report, id, f != NULL);
    if (copied.n > 0) {
        gb_text_append(t, "; that %s copies of %zu tensor%s, ", f ? "costs" : "needs", copied.n,
            copied.n == 1 ? "" : "s");
        append_size(t, copied.bytes);
    }
    if (copied.n > 0 && f == NULL) {
        gb_text_append(t, ", to %s", s->devices[p->assigned->to[id].backend].name);
    }
    for (size_t w = 0; w < p->program->backs.n; w++) {
        if (p->program->backs.data[w].node == id) {
            gb_text_append(t, "; its result is written back to '%s'",
                gb_sched_name_of(p->in, p->in->ids.data[id].root));
        }
    }
}

// Appends why other backends do not run the node. A preferred backend that supports the node cannot
// write its result. Other backends are queried again for their reasons.
static void append_others(struct gb_text * t, struct ggml_backend_sched * s, const struct explained * p, int id) {
    const struct gb_assignment * a = &p->assigned->to[id];
    const struct gb_fallback * f = gb_sched_fallback_of(p->report, id);
    const bool supports =
        a->wanted >= 0 && p->assigned->supports[(size_t) id * (size_t) p->in->n_backends + (size_t) a->wanted] != 2;
    if (supports) {
        gb_text_append(t, "; not on %s, which cannot write to the memory of the result", s->devices[a->wanted].name);
    }
    if (a->cause == GB_CAUSE_PRIORITY) {
        gb_sched_append_refusals(t, s, p->in->ids.data[id].tensor, "not on ");
    } else if (f) {
        gb_text_append(t, "; not on %s: %s", s->devices[f->refused_by].name, f->reason);
    } else if (a->wanted >= 0 && !supports) {
        gb_text_append(t, "; not on %s", s->devices[a->wanted].name);
    }
}

// The tensor of `id` is alive: the caller has just named it.
const char * gb_sched_explain(struct ggml_backend_sched * s, const struct gb_sched_input * in,
    const struct gb_sched_assigned * assigned, const struct gb_sched_program * program,
    const struct gb_sched_report * report, int id) {
    enum { SIZE = 4096 };
    const struct explained parts = { in, assigned, program, report };
    const struct explained * p = &parts;
    const struct gb_assignment * a = &p->assigned->to[id];
    const bool computes = p->in->ids.data[id].computes;
    if (a->backend < 0 || !gb_vec_reserve(&s->text, SIZE)) {
        return "";
    }
    struct gb_text t = { s->text.data, SIZE };
    gb_text_append(&t, "%s on %s", computes ? "runs" : "is", s->devices[a->backend].name);
    append_cause(&t, s, p, id);
    if (computes) {
        append_others(&t, s, p, id);
        append_copies(&t, s, p, id);
    }
    return s->text.data;
}
