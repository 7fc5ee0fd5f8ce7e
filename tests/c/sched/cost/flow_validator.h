// flow_validator.h - checks a flow and a cut by their definitions. Shares no code with mincut.c.
#ifndef TEST_FLOW_VALIDATOR_H
#define TEST_FLOW_VALIDATOR_H

#include "base/mem.h"
#include "sched/cost/mincut.h"

static const char * check_arc(const struct gb_flow * net, size_t e) {
    const struct gb_flow_arc * a = &net->arcs.data[e];
    const int64_t f = net->flow[e];
    if (a->from < 0 || a->to < 0 || a->from >= net->n_nodes || a->to >= net->n_nodes || a->cap < 0 || a->back < 0) {
        return "an arc is malformed";
    }
    if (f > a->cap || -f > a->back) {
        return "an arc carries more than its capacity";
    }
    const int from = net->side[a->from], to = net->side[a->to];
    if ((from == 1 && to == 0 && f != a->cap) || (from == 0 && to == 1 && -f != a->back)) {
        return "an arc across the cut is not full";
    }
    return NULL;
}

static int64_t surplus(const struct gb_flow * net, int32_t node) { // outgoing flow minus incoming flow
    int64_t sum = 0;
    for (size_t e = 0; e < net->arcs.n; e++) {
        sum += net->arcs.data[e].from == node ? net->flow[e] : 0;
        sum -= net->arcs.data[e].to == node ? net->flow[e] : 0;
    }
    return sum;
}

static const char * check_balance(const struct gb_flow * net, int32_t source, int32_t sink) {
    int64_t * sum = gb_calloc((size_t) net->n_nodes, sizeof(*sum));
    if (sum == NULL) {
        return "memory is out";
    }
    for (size_t e = 0; e < net->arcs.n; e++) {
        sum[net->arcs.data[e].from] += net->flow[e];
        sum[net->arcs.data[e].to] -= net->flow[e];
    }
    const char * wrong = NULL;
    for (int32_t v = 0; v < net->n_nodes; v++) {
        if (v != source && v != sink && sum[v] != 0) {
            wrong = "a node keeps or makes flow";
        }
    }
    gb_free(sum);
    return wrong;
}

// NULL, or the fault of the certificate. The flow must be conserved and within capacities. The cut
// must have the same value, with arcs full in forward and empty in backward direction.
static const char * flow_problem(const struct gb_flow * net, int32_t source, int32_t sink) {
    if (net->flow == NULL || net->side == NULL) {
        return "there is no result";
    }
    if (net->side[source] != 1 || net->side[sink] != 0) {
        return "the cut does not separate source and sink";
    }
    int64_t cut = 0;
    for (size_t e = 0; e < net->arcs.n; e++) {
        const char * wrong = check_arc(net, e);
        if (wrong) {
            return wrong;
        }
        const struct gb_flow_arc * a = &net->arcs.data[e];
        cut += net->side[a->from] && !net->side[a->to] ? a->cap : !net->side[a->from] && net->side[a->to] ? a->back : 0;
    }
    if (surplus(net, source) != net->value || surplus(net, sink) != -net->value) {
        return "what leaves the source or enters the sink is not the value";
    }
    return cut != net->value ? "the cut's capacity is not the flow's value" : check_balance(net, source, sink);
}

#endif // TEST_FLOW_VALIDATOR_H
