// Sequences with repetitions: by hand, and on random instances beside the cheapest of all sequences.
// Graphs with repetitions: their results beside those of the given graph, bit for bit.
//
// The oracle is a shortest path over states: the number of nodes of the given order that are done,
// and the set of storages that are there. It may drop any storage, and run any node again, at any
// time.
#include "alloc/recompute.h"
#include "base/current.h"
#include "base/hash.h"
#include "base/mem.h"
#include "ggml-alloc.h"
#include "ggml-backend.h"
#include "test_alloc.h"

enum { N_MAX = 9, UNIT = 16, NONE = GB_RECOMPUTE_NONE };

struct instance {
    struct gb_recompute_node nodes[N_MAX];
    struct gb_recompute_storage storages[N_MAX];
    struct gb_recompute_input in;
};

// Every node makes the storage of its own number.
static void add(struct instance * x, size_t size, double work, unsigned reads) {
    const int v = x->in.n_nodes++;
    x->nodes[v] = (struct gb_recompute_node){ .makes = v, .work = work };
    for (int i = 0; i < v; i++) {
        if (reads >> i & 1) {
            x->nodes[v].reads[x->nodes[v].n_reads++] = i;
        }
    }
    struct gb_recompute_storage * made = &x->storages[v];
    *made = (struct gb_recompute_storage){ .size = size, .maker = v, .may_repeat = true, .valid_until = N_MAX };
    x->in.n_storages = x->in.n_nodes;
    x->in.nodes = x->nodes;
    x->in.storages = x->storages;
}

// ---------------------------------------------------------------------------------------------------------- the oracle

struct oracle {
    const struct gb_recompute_input * in;
    size_t limit;
    double price[N_MAX + 1][1 << N_MAX]; // < 0: unknown
    bool open[N_MAX + 1][1 << N_MAX]; // the price fell after the next states were offered
};

static size_t bytes_of(const struct gb_recompute_input * in, unsigned set) {
    size_t sum = 0;
    for (int i = 0; i < in->n_storages; i++) {
        sum += set >> i & 1 ? in->storages[i].size : 0;
    }
    return sum;
}

static void offer(struct oracle * o, int done, unsigned set, double price) {
    if (o->price[done][set] < 0 || price < o->price[done][set]) {
        o->price[done][set] = price;
        o->open[done][set] = true;
    }
}

// Offers the states after a run of node v, with and without overwriting a source.
static void offer_run(struct oracle * o, int done, unsigned set, double price, int v) {
    const struct gb_recompute_node * node = &o->in->nodes[v];
    const int next = done + (v == done);
    for (int k = 0; k < node->n_reads; k++) {
        if (!(set >> node->reads[k] & 1)) {
            return;
        }
    }
    const unsigned with = node->makes == NONE ? set : set | 1u << node->makes;
    if (bytes_of(o->in, with) <= o->limit) {
        offer(o, next, with, price + node->work);
    }
    for (int k = 0; k < node->n_reads; k++) {
        const struct gb_recompute_storage * read = &o->in->storages[node->reads[k]];
        const unsigned over = with & ~(1u << node->reads[k]);
        if (node->over[k] && !read->to_end && read->size == o->in->storages[node->makes].size &&
            bytes_of(o->in, over) <= o->limit) {
            offer(o, next, over, price + node->work);
        }
    }
}

static void offer_all(struct oracle * o, int done, unsigned set) {
    const double price = o->price[done][set];
    for (int i = 0; i < o->in->n_storages; i++) {
        if (set >> i & 1 && !o->in->storages[i].to_end) {
            offer(o, done, set & ~(1u << i), price);
        }
    }
    for (int v = 0; v <= done && v < o->in->n_nodes; v++) {
        const struct gb_recompute_node * node = &o->in->nodes[v];
        const struct gb_recompute_storage * made = node->makes == NONE ? NULL : &o->in->storages[node->makes];
        const bool may_repeat = made && made->may_repeat && done <= made->valid_until;
        if (v == done || (may_repeat && !(set >> node->makes & 1))) {
            offer_run(o, done, set, price, v);
        }
        if (v == done && made && made->may_repeat && !made->to_end) {
            offer(o, done + 1, set, price); // it runs later, or never
        }
    }
}

// The least work of a sequence within the limit; -1: there is none.
static double least_work(struct oracle * o, const struct gb_recompute_input * in, size_t limit) {
    unsigned start = 0, outputs = 0;
    double best = -1;
    o->in = in;
    o->limit = limit;
    for (int i = 0; i < in->n_storages; i++) {
        start |= in->storages[i].maker == NONE ? 1u << i : 0;
        outputs |= in->storages[i].to_end ? 1u << i : 0;
    }
    for (int d = 0; d <= in->n_nodes; d++) {
        for (unsigned s = 0; s < 1u << in->n_storages; s++) {
            o->price[d][s] = -1;
            o->open[d][s] = false;
        }
    }
    if (bytes_of(in, start) <= limit) {
        offer(o, 0, start, 0);
    }
    for (bool any = true; any;) {
        any = false;
        for (int d = 0; d <= in->n_nodes; d++) {
            for (unsigned s = 1u << in->n_storages; s-- > 0;) {
                if (o->open[d][s]) {
                    o->open[d][s] = false;
                    offer_all(o, d, s);
                    any = true;
                }
            }
        }
    }
    for (unsigned s = 0; s < 1u << in->n_storages; s++) {
        const double price = o->price[in->n_nodes][s];
        best = (s & outputs) == outputs && price >= 0 && (best < 0 || price < best) ? price : best;
    }
    return best;
}

// ------------------------------------------------------------------------------------------------------ the sequences

static bool can_repeat(const struct gb_recompute_input * in, int node) {
    const int made = in->nodes[node].makes;
    return made != NONE && in->storages[made].may_repeat && !in->storages[made].to_end;
}

// What is wrong with the sequence. NULL: it reads only storages that are there, keeps the order of
// nodes that cannot repeat, and has the peak and the work that the choice says.
static const char * fault_of(const struct gb_recompute_input * in, const struct gb_recompute_choice * r,
    double work_of_all) {
    static int last[64 * N_MAX];
    int maker[N_MAX], latest = -1;
    bool ran[N_MAX] = { false };
    double work = 0;
    for (int k = 0; k < r->n; k++) {
        const struct gb_recompute_node * node = &in->nodes[r->sequence[k]];
        const bool may_repeat = can_repeat(in, r->sequence[k]);
        if (!may_repeat && (r->sequence[k] < latest || ran[r->sequence[k]])) {
            return "a node that cannot repeat runs twice or too early";
        }
        for (int v = 0; v < r->sequence[k] && !may_repeat; v++) {
            if (!ran[v] && !can_repeat(in, v)) {
                return "a node that cannot repeat runs too late";
            }
        }
        latest = may_repeat ? latest : r->sequence[k];
        if (may_repeat && in->storages[node->makes].valid_until < latest) {
            return "a node runs after its sources are overwritten";
        }
        ran[r->sequence[k]] = true;
        work += node->work;
    }
    size_t live = 0, peak;
    for (int i = 0; i < in->n_storages; i++) {
        maker[i] = in->storages[i].maker == NONE ? r->n + i : -1;
        last[r->n + i] = in->storages[i].to_end ? r->n : -1;
        live += maker[i] >= 0 ? in->storages[i].size : 0;
    }
    static int from[64 * N_MAX][GB_LIVE_SLOTS];
    for (int k = 0; k < r->n; k++) {
        const struct gb_recompute_node * node = &in->nodes[r->sequence[k]];
        for (int j = 0; j < node->n_reads; j++) {
            from[k][j] = maker[node->reads[j]];
            if (from[k][j] < 0) {
                return "a node reads what no node has made";
            }
            last[from[k][j]] = last[from[k][j]] == r->n ? r->n : k;
        }
        if (node->makes != NONE) {
            maker[node->makes] = k;
            last[k] = in->storages[node->makes].to_end ? r->n : -1;
        }
    }
    peak = live;
    for (int k = 0; k < r->n; k++) {
        const struct gb_recompute_node * node = &in->nodes[r->sequence[k]];
        const size_t size = node->makes == NONE ? 0 : in->storages[node->makes].size;
        size_t saved = 0, dead = 0;
        for (int j = 0; j < node->n_reads; j++) {
            const size_t bytes = in->storages[node->reads[j]].size;
            saved = last[from[k][j]] == k && node->over[j] && bytes == size ? size : saved;
            dead += last[from[k][j]] == k ? bytes : 0;
        }
        peak = GB_MAX(peak, live + size - saved);
        live = live + size - dead;
    }
    return peak != r->peak ? "another peak" : fabs(work - work_of_all - r->again) > 1e-6 ? "another work" : NULL;
}

static void one_result_runs_again(void) {
    struct instance x = { .in.n_nodes = 0 };
    add(&x, 100, 5, 0);
    add(&x, 100, 7, 1);
    add(&x, 100, 7, 2);
    add(&x, 10, 1, 1 | 4);
    x.storages[3].to_end = true;
    struct gb_recompute_result r;
    REQUIRE(gb_recompute(&x.in, &r) == GGML_STATUS_SUCCESS);
    REQUIRE(r.n_choices == 2 && r.before == 300 && r.least == 210 && r.lower_bound == 210 && r.work == 20);
    const struct gb_recompute_choice * given = gb_recompute_choose(&r, 300);
    CHECK(given == &r.choices[1] && given->n == 4 && given->peak == 300 && given->again == 0);
    static const int expected[5] = { 0, 1, 2, 0, 3 };
    const struct gb_recompute_choice * again = gb_recompute_choose(&r, 299);
    CHECK(again->n == 5 && memcmp(again->sequence, expected, sizeof(expected)) == 0);
    CHECK(again->peak == 210 && again->again == 5);
    CHECK(gb_recompute_choose(&r, 210) == again && gb_recompute_choose(&r, 209) == NULL);
    gb_recompute_free(&r);
    CHECK(r.choices == NULL && r.n_choices == 0);
    x.storages[0].valid_until = 2;
    REQUIRE(gb_recompute(&x.in, &r) == GGML_STATUS_SUCCESS);
    CHECK(r.n_choices == 1 && r.least == 300 && gb_recompute_choose(&r, 299) == NULL);
    gb_recompute_free(&r);
}

// Both sources of the last node have to be computed again, and one of them from a large result. The
// search must not keep the small one meanwhile, or its price is higher.
static void waiting_sources_can_go(void) {
    struct instance x = { .in.n_nodes = 0 };
    add(&x, 30, 1, 0);      // 0: small and cheap
    add(&x, 40, 5, 0);      // 1
    add(&x, 60, 5, 2);      // 2: from 1
    add(&x, 50, 5, 4);      // 3: from 2
    add(&x, 90, 1, 1 | 8);  // 4
    add(&x, 100, 1, 16);    // 5
    add(&x, 10, 1, 1 | 8 | 32); // 6
    x.storages[6].to_end = true;
    struct gb_recompute_result r;
    static struct oracle o;
    REQUIRE(gb_recompute(&x.in, &r) == GGML_STATUS_SUCCESS);
    CHECK(r.n_choices > 2 && least_work(&o, &x.in, r.least - 1) < 0);
    for (int k = 0; k < r.n_choices; k++) {
        const struct gb_recompute_choice * choice = &r.choices[k];
        CHECK(fault_of(&x.in, choice, r.work) == NULL);
        CHECK(fabs(r.work + choice->again - least_work(&o, &x.in, choice->peak)) < 1e-9);
    }
    gb_recompute_free(&r);
}

static void nothing_to_do(void) {
    struct instance x = { .in.n_nodes = 0 };
    struct gb_recompute_result r;
    REQUIRE(gb_recompute(&x.in, &r) == GGML_STATUS_SUCCESS);
    CHECK(r.n_choices == 1 && r.choices[0].n == 0 && r.choices[0].sequence != NULL && r.before == 0);
    CHECK(r.least == 0 && r.lower_bound == 0 && gb_recompute_choose(&r, 0) == r.choices);
    gb_recompute_free(&r);
    add(&x, 8, 1, 0);
    x.storages[0].to_end = true;
    REQUIRE(gb_recompute(&x.in, &r) == GGML_STATUS_SUCCESS);
    CHECK(gb_recompute_choose(&r, 7) == NULL && r.least == 8 && r.lower_bound == 8);
    gb_recompute_free(&r);
    CHECK(gb_recompute(NULL, &r) == GGML_STATUS_INVALID_ARGUMENT);
    ggml_clear_error();
}

// Nodes that read recent results, and later ones that read early results, as gradients do.
static void random_instance(struct instance * x) {
    *x = (struct instance){ .in.n_nodes = 0 };
    const int n = (int) test_random_int(4, N_MAX);
    const bool even = test_random_int(0, 1) != 0;
    for (int v = 0; v < n; v++) {
        unsigned reads = v ? 1u << (v - 1) : 0;
        for (int k = (int) test_random_int(0, 2); v > 1 && k > 0; k--) {
            reads |= 1u << (test_random_int(0, 1) ? GB_MAX(0, n - 1 - v) % v : (int) test_random_int(0, v - 1));
        }
        add(x, (size_t) (even ? UNIT : UNIT * test_random_int(1, 6)), (double) test_random_int(1, 20), reads);
        for (int j = 0; j < x->nodes[v].n_reads; j++) {
            x->nodes[v].over[j] = test_random_int(0, 2) == 0;
        }
        x->storages[v].may_repeat = test_random_int(0, 19) != 0;
        x->storages[v].valid_until = test_random_int(0, 5) ? n : (int) test_random_int(v + 1, n);
        x->storages[v].to_end = test_random_int(0, 19) == 0;
    }
    for (int i = 0; i < n; i++) { // results that no node reads
        bool is_read = false;
        for (int v = i + 1; v < n; v++) {
            for (int j = 0; j < x->nodes[v].n_reads; j++) {
                is_read = is_read || x->nodes[v].reads[j] == i;
            }
        }
        x->storages[i].to_end = x->storages[i].to_end || !is_read;
    }
}

// The smallest limit that the oracle meets without a gap from `least` downwards.
static size_t possible_limit(struct oracle * o, const struct gb_recompute_input * in, size_t least) {
    while (least >= UNIT && least_work(o, in, least - UNIT) >= 0) {
        least -= UNIT;
    }
    return least;
}

// The search is a heuristic: it must stay within 1.05 of the least work at each limit, and few least
// limits may be missed. Their number is the same on all machines.
static void against_all_sequences(void) {
    static struct oracle o;
    static const uint64_t seeds[3] = { 1, 11, 777 };
    int n = 0, n_best = 0, n_least = 0;
    const int n_graphs = 250;
    for (int round = 0; round < 3 * n_graphs; round++) {
        struct instance x;
        test_seed = round % n_graphs == 0 ? seeds[round / n_graphs] : test_seed;
        random_instance(&x);
        struct gb_recompute_result r;
        REQUIRE(gb_recompute(&x.in, &r) == GGML_STATUS_SUCCESS);
        const size_t before = r.before, least = r.least, possible = possible_limit(&o, &x.in, least);
        CHECK_MSG(r.lower_bound <= possible && least <= before, "round %d: bounds", round);
        n_least += possible == least;
        for (int k = 0; k < r.n_choices; k++) {
            const char * fault = fault_of(&x.in, &r.choices[k], r.work);
            CHECK_MSG(fault == NULL, "round %d, choice %d: %s", round, k, fault);
        }
        for (size_t limit = least; limit < before; limit += UNIT) {
            const struct gb_recompute_choice * choice = gb_recompute_choose(&r, limit);
            REQUIRE(choice != NULL && choice->peak <= limit);
            const double ratio = (r.work + choice->again) / least_work(&o, &x.in, limit);
            CHECK_MSG(ratio > 1 - 1e-9 && ratio <= 1.05, "round %d: %.3f times the least work", round, ratio);
            n++;
            n_best += ratio < 1 + 1e-9;
        }
        gb_recompute_free(&r);
    }
    CHECK_MSG(n > 500 && n_best * 200 >= n * 199 && n_least * 200 >= 3 * n_graphs * 199,
        "%d limits: least work in %d; the least limit in %d of %d graphs", n, n_best, n_least, 3 * n_graphs);
}

// The last node reads storage 0, which can be computed again before node 3 only.
static void what_expires_runs_early(void) {
    struct instance x = { .in.n_nodes = 0 };
    add(&x, 100, 5, 0);
    add(&x, 100, 7, 1);
    add(&x, 100, 7, 2);
    add(&x, 10, 1, 4);
    add(&x, 10, 1, 1 | 8);
    x.storages[0].valid_until = 3;
    x.storages[4].to_end = true;
    struct gb_recompute_result r;
    static struct oracle o;
    REQUIRE(gb_recompute(&x.in, &r) == GGML_STATUS_SUCCESS);
    const struct gb_recompute_choice * choice = gb_recompute_choose(&r, 210);
    REQUIRE(choice && least_work(&o, &x.in, 210) == 26 && r.n_choices == 2);
    CHECK(choice->again == 5 && fault_of(&x.in, choice, r.work) == NULL);
    gb_recompute_free(&r);
}

// A chain of layers and the gradients of their sum, as a large instance. Storage i is made by node i.
struct large {
    struct gb_recompute_node nodes[200];
    struct gb_recompute_storage storages[200];
};

static void random_gradients(struct large * x, struct gb_recompute_input * in) {
    const int n = (int) test_random_int(20, 100);
    *in = (struct gb_recompute_input){ x->nodes, 2 * n, x->storages, 2 * n };
    for (int v = 0; v < 2 * n; v++) {
        struct gb_recompute_node * node = &x->nodes[v];
        *node = (struct gb_recompute_node){ .makes = v, .work = (double) test_random_int(1, 100) };
        if (v > 0) {
            node->reads[node->n_reads++] = v - 1;
        }
        if (v > n) { // the gradient of layer 2n - v - 1 reads what the layer reads
            node->reads[node->n_reads++] = 2 * n - v - 1;
        }
        const int early = v > 4 && v <= n ? (int) test_random_int(0, v - 3) : 0;
        if (early > 0 && test_random_int(0, 4) == 0) { // a skip connection
            node->reads[node->n_reads++] = early;
        }
        x->storages[v] = (struct gb_recompute_storage){ .size = (size_t) test_random_int(1, 4000),
            .maker = v,
            .may_repeat = true,
            .to_end = v == 2 * n - 1 || test_random_int(0, 19) == 0,
            .valid_until = 2 * n };
    }
}

static void work_never_rises_with_the_limit(void) {
    static struct large x;
    int n_again = 0;
    for (int round = 0; round < 8; round++) {
        struct gb_recompute_input in;
        struct gb_recompute_result r;
        random_gradients(&x, &in);
        REQUIRE(gb_recompute(&in, &r) == GGML_STATUS_SUCCESS);
        double work = INFINITY;
        CHECK(gb_recompute_choose(&r, r.least - 1) == NULL);
        for (size_t limit = r.least; limit <= r.before; limit += (r.before - r.least) / 97 + 1) {
            const struct gb_recompute_choice * choice = gb_recompute_choose(&r, limit);
            REQUIRE(choice != NULL && choice->peak <= limit);
            CHECK_MSG(choice->again <= work, "round %d: limit %zu costs %g, a lower one %g", round, limit,
                choice->again, work);
            n_again += choice->again < work && choice->again > 0;
            work = choice->again;
        }
        CHECK(gb_recompute_choose(&r, r.before)->again == 0);
        for (int k = 0; k < r.n_choices; k++) {
            const struct gb_recompute_choice * tighter = &r.choices[k - 1];
            CHECK(k == 0 || (tighter->peak < r.choices[k].peak && tighter->again >= r.choices[k].again));
        }
        gb_recompute_free(&r);
    }
    CHECK_MSG(n_again > 80, "%d prices", n_again);
}

// -------------------------------------------------------------------------------------------------------------- graphs

static void set_leafs(const struct random_graph * g) {
    for (int i = 0; i < g->n_leafs; i++) {
        float values[RANDOM_ROWS * RANDOM_COLUMNS];
        for (int k = 0; k < RANDOM_ROWS * RANDOM_COLUMNS; k++) {
            values[k] = (float) ((k * 37 + i * 11) % 23) / 16 - 0.6f;
        }
        ggml_backend_tensor_set(g->leafs[i], values, 0, ggml_nbytes(g->leafs[i]));
    }
}

// The bytes of all outputs and of the leafs, which nodes may have written.
static size_t read_all(struct random_graph * g, const struct ggml_cgraph * graph, const int32_t * origins,
    const bool * is_output, char * bytes) {
    size_t n = 0;
    for (int i = 0; i < g->graph->n_nodes; i++) {
        for (int k = graph->n_nodes - 1; is_output[i] && k >= 0; k--) {
            if ((origins ? origins[k] : k) == i) {
                ggml_backend_tensor_get(graph->nodes[k], bytes + n, 0, ggml_nbytes(graph->nodes[k]));
                n += ggml_nbytes(graph->nodes[k]);
                break;
            }
        }
    }
    for (int i = 0; i < g->n_leafs; i++) {
        ggml_backend_tensor_get(g->leafs[i], bytes + n, 0, ggml_nbytes(g->leafs[i]));
        n += ggml_nbytes(g->leafs[i]);
    }
    return n;
}

static void find_outputs(const struct random_graph * g, bool * is_output) {
    for (int i = 0; i < g->graph->n_nodes; i++) {
        const struct ggml_tensor * node = g->graph->nodes[i];
        bool is_read = false;
        for (int k = i + 1; k < g->graph->n_nodes; k++) {
            for (int s = 0; s < GGML_MAX_SRC; s++) {
                is_read = is_read || g->graph->nodes[k]->src[s] == node;
            }
        }
        is_output[i] = !is_read || gb_tensor_has_flag(node, GB_TENSOR_OUTPUT);
    }
}

// Computes with memory of its own for each tensor, so wrong sources or a wrong order show.
static void results_stay_the_same(void) {
    static char expected[RANDOM_MAX * 512], found[RANDOM_MAX * 512];
    const ggml_backend_t cpu = ggml_backend_cpu_init();
    int n_again = 0, n_clones = 0;
    for (int round = 0; round < 150; round++) {
        struct random_graph g;
        bool is_output[RANDOM_MAX];
        REQUIRE(random_graph_make(&g,
            (struct random_graph_params){ (int) test_random_int(5, 60), round % 2 == 0, false, round % 4 == 0 }));
        struct ggml_context * ctx = ggml_init((struct ggml_init_params){ 1 << 20, NULL, true });
        struct ggml_recompute_info info, now;
        REQUIRE(ctx && ggml_graph_recompute(ctx, g.graph, SIZE_MAX, NULL, &info));
        CHECK(info.n_again == 0 && info.after == info.before && info.again == 0);
        struct ggml_cgraph * graph = ggml_graph_recompute(ctx, g.graph, info.least, NULL, &info);
        REQUIRE(graph && info.after <= info.least);
        // the new graph needs what the search says
        REQUIRE(ggml_graph_recompute(ctx, graph, SIZE_MAX, NULL, &now));
        CHECK_INT(now.before, info.after);
        find_outputs(&g, is_output);
        ggml_backend_buffer_t buffers[2] = { ggml_backend_alloc_ctx_tensors(g.ctx, cpu),
            ggml_backend_alloc_ctx_tensors(ctx, cpu) };
        set_leafs(&g);
        CHECK(ggml_backend_graph_compute(cpu, g.graph));
        const size_t n = read_all(&g, g.graph, NULL, is_output, expected);
        set_leafs(&g);
        CHECK(ggml_backend_graph_compute(cpu, graph));
        CHECK_INT(read_all(&g, graph, info.origins, is_output, found), n);
        CHECK_MSG(memcmp(expected, found, n) == 0, "round %d: other values", round);
        n_again += info.n_again > 0;
        n_clones += buffers[1] != NULL;
        ggml_backend_buffer_free(buffers[0]);
        ggml_backend_buffer_free(buffers[1]);
        ggml_free(ctx);
        random_graph_free(&g);
    }
    CHECK_MSG(n_again > 10 && n_clones >= n_again, "%d graphs run nodes again", n_again);
    ggml_backend_free(cpu);
}

struct scene {
    struct ggml_context * ctx;
    struct ggml_cgraph * graph;
    struct ggml_tensor *x, *early;
};

static void count_call(struct ggml_tensor * dst, const struct ggml_tensor * a, int ith, int nth, void * calls) {
    (void) dst;
    (void) a;
    (void) ith;
    (void) nth;
    ++*(int *) calls;
}

// A result that is read at once and at the end, with larger ones in between. kind 1: a custom
// operator; 2: its source is overwritten in between; 3: it is an output; 4: another node writes it
static struct scene scene(int kind, int * calls) {
    struct scene w = { .ctx = ggml_init((struct ggml_init_params){ 100000, NULL, true }) };
    w.x = ggml_new_tensor_2d(w.ctx, GGML_TYPE_F32, 16, 8);
    w.early = kind == 1 ? ggml_map_custom1(w.ctx, w.x, count_call, 1, calls) : ggml_sin(w.ctx, w.x);
    struct ggml_tensor * t = ggml_sum_rows(w.ctx, kind == 4 ? ggml_scale_inplace(w.ctx, w.early, 2) : w.early);
    t = ggml_repeat(w.ctx, t, ggml_new_tensor_2d(w.ctx, GGML_TYPE_F32, 32, 8));
    w.graph = ggml_new_graph(w.ctx);
    ggml_build_forward_expand(w.graph, t);
    if (kind == 2) {
        ggml_build_forward_expand(w.graph, ggml_scale_inplace(w.ctx, w.x, 3));
    }
    if (kind == 3) {
        ggml_set_output(w.early);
    }
    ggml_build_forward_expand(w.graph, ggml_add(w.ctx, ggml_sum(w.ctx, t), ggml_sum(w.ctx, w.early)));
    return w;
}

static void effects_happen_once(void) {
    for (int kind = 0; kind <= 4; kind++) {
        int calls = 0;
        struct scene w = scene(kind, &calls);
        struct ggml_recompute_info info;
        REQUIRE(ggml_graph_recompute(w.ctx, w.graph, SIZE_MAX, NULL, &info));
        struct ggml_cgraph * graph = ggml_graph_recompute(w.ctx, w.graph, info.least, NULL, &info);
        REQUIRE(graph != NULL);
        CHECK_MSG((info.n_again > 0) == (kind == 0), "kind %d: %d nodes run again", kind, info.n_again);
        CHECK(ggml_graph_recompute(w.ctx, w.graph, info.least - 1, NULL, &info) == NULL && info.origins == NULL);
        CHECK_ERROR(GGML_STATUS_ALLOC_FAILED, "too few: the least that was found is");
        ggml_free(w.ctx);
    }
}

static void clones_have_names_and_places(void) {
    struct scene w = scene(0, NULL);
    struct ggml_recompute_info info;
    ggml_set_name(w.early, "early");
    REQUIRE(ggml_graph_recompute(w.ctx, w.graph, SIZE_MAX, NULL, &info));
    const int n = w.graph->n_nodes;
    struct ggml_cgraph * graph = ggml_graph_recompute(w.ctx, w.graph, info.least, NULL, &info);
    REQUIRE(graph && info.n_again == 1 && graph->n_nodes == n + 1);
    CHECK(w.graph->n_nodes == n && graph->n_leafs == w.graph->n_leafs && info.again > 0 && info.work > info.again);
    for (int k = 0; k < graph->n_nodes; k++) {
        const struct ggml_tensor *now = graph->nodes[k], *old = w.graph->nodes[info.origins[k]];
        CHECK(now->op == old->op && ggml_are_same_shape(now, old) && now->type == old->type);
        CHECK(strncmp(now->name, old->name, strlen(old->name)) == 0);
    }
    CHECK(ggml_graph_get_tensor(graph, "early") == w.early && ggml_graph_get_tensor(graph, "early (again)"));
    ggml_free(w.ctx);
}

static void wrong_arguments(void) {
    struct scene w = scene(0, NULL);
    struct ggml_recompute_info info;
    CHECK(ggml_graph_recompute(NULL, w.graph, 1, NULL, &info) == NULL);
    CHECK(ggml_graph_recompute(w.ctx, NULL, 1, NULL, &info) == NULL);
    CHECK(ggml_graph_recompute(w.ctx, w.graph, 1, NULL, NULL) == NULL);
    struct ggml_tensor * first = w.graph->nodes[0];
    w.graph->nodes[0] = w.graph->nodes[w.graph->n_nodes - 1];
    w.graph->nodes[w.graph->n_nodes - 1] = first;
    CHECK(ggml_graph_recompute(w.ctx, w.graph, 1, NULL, &info) == NULL);
    CHECK_ERROR(GGML_STATUS_INVALID_ARGUMENT, "computed later");
    struct ggml_cgraph * empty = ggml_new_graph(w.ctx);
    struct ggml_cgraph * same = ggml_graph_recompute(w.ctx, empty, 0, NULL, &info);
    CHECK_MSG(same && same->n_nodes == 0 && info.before == 0, "%s", ggml_last_error());
    ggml_free(w.ctx);
}

static void out_of_memory(void) {
    struct scene w = scene(0, NULL);
    struct ggml_recompute_info info;
    REQUIRE(ggml_graph_recompute(w.ctx, w.graph, SIZE_MAX, NULL, &info));
    const size_t least = info.least;
    const int64_t live = gb_test_live_allocs();
    for (int n = 1;; n++) {
        struct ggml_context * ctx = ggml_init((struct ggml_init_params){ 1 << 16, NULL, true });
        gb_test_fail_alloc(n, false);
        struct ggml_cgraph * graph = ggml_graph_recompute(ctx, w.graph, least, NULL, &info);
        const bool failed = gb_test_alloc_failed();
        gb_test_fail_alloc(0, false);
        ggml_free(ctx);
        CHECK((graph == NULL) == failed);
        CHECK_INT(gb_test_live_allocs(), live);
        if (!failed) {
            CHECK(n > 20);
            break;
        }
        CHECK_INT(ggml_last_status(), GGML_STATUS_ALLOC_FAILED);
        ggml_clear_error();
    }
    ggml_free(w.ctx);
}

enum { LAYERS = 1500 };

static bool stop(void * n_polls) { return ++*(int *) n_polls == LAYERS; }

// The first round runs more nodes than polls are allowed, so it stops. A search that polls between
// rounds alone would go on.
static void rounds_call_the_poll(void) {
    struct ggml_context * ctx = ggml_init((struct ggml_init_params){ 4 << 20, NULL, true });
    struct ggml_cgraph * graph = ggml_new_graph_custom(ctx, 4096, false);
    struct ggml_tensor * early[LAYERS] = { ggml_new_tensor_1d(ctx, GGML_TYPE_F32, 100) };
    for (int i = 1; i < LAYERS; i++) {
        early[i] = ggml_sin(ctx, early[i - 1]);
    }
    struct ggml_tensor * t = early[LAYERS - 1];
    for (int i = LAYERS - 2; i > 0; i--) { // as gradients do
        t = ggml_mul(ctx, t, early[i]);
    }
    ggml_build_forward_expand(graph, t);
    struct ggml_recompute_info info;
    int n_polls = 0;
    gb_test_poll_always(true);
    gb_set_poll(stop, &n_polls);
    CHECK(ggml_graph_recompute(ctx, graph, 0, NULL, &info) == NULL);
    gb_set_poll(NULL, NULL);
    gb_test_poll_always(false);
    CHECK_INT(ggml_last_status(), GGML_STATUS_ABORTED);
    CHECK_INT(n_polls, LAYERS);
    ggml_clear_error();
    ggml_free(ctx);
}

// One search makes the same graphs as a search for each limit.
static void a_search_makes_several_graphs(void) {
    struct scene w = scene(0, NULL);
    struct ggml_recompute_info info, other;
    struct ggml_recompute * search = ggml_recompute_new(w.graph, NULL);
    REQUIRE(search != NULL);
    struct ggml_cgraph * given = ggml_recompute_graph(search, w.ctx, SIZE_MAX, &info);
    REQUIRE(given && info.n_again == 0 && info.after == info.before && given->n_nodes == w.graph->n_nodes);
    struct ggml_cgraph * tight = NULL;
    while (info.after > info.least) {
        const struct ggml_recompute_info looser = info;
        tight = ggml_recompute_graph(search, w.ctx, looser.after - 1, &info);
        REQUIRE(tight && info.after < looser.after && info.again >= looser.again && info.least == looser.least);
    }
    REQUIRE(tight && info.n_again == 1 && info.again > 0);
    struct ggml_cgraph * same = ggml_graph_recompute(w.ctx, w.graph, info.least, NULL, &other);
    REQUIRE(same && same->n_nodes == tight->n_nodes && other.after == info.after && other.again == info.again);
    CHECK(memcmp(info.origins, other.origins, (size_t) same->n_nodes * sizeof(int32_t)) == 0);
    CHECK(ggml_recompute_graph(search, w.ctx, info.after - 1, &other) == NULL && other.least == info.least);
    CHECK_ERROR(GGML_STATUS_ALLOC_FAILED, "too few: the least that was found is");
    CHECK(ggml_recompute_graph(NULL, w.ctx, 0, &other) == NULL);
    CHECK(ggml_recompute_graph(search, NULL, 0, &other) == NULL);
    CHECK(ggml_recompute_graph(search, w.ctx, 0, NULL) == NULL);
    CHECK(ggml_recompute_new(NULL, NULL) == NULL);
    ggml_clear_error();
    ggml_recompute_free(search);
    ggml_recompute_free(NULL);
    ggml_free(w.ctx);
}

static void a_full_context_keeps_nothing(void) {
    static _Alignas(16) char memory[1 << 16];
    struct scene w = scene(0, NULL);
    struct ggml_recompute_info info;
    REQUIRE(ggml_graph_recompute(w.ctx, w.graph, SIZE_MAX, NULL, &info));
    const size_t least = info.least, clone = ggml_tensor_overhead();
    bool done = false;
    for (size_t size = clone / 2; size < sizeof(memory) && !done; size += clone / 4) {
        struct ggml_context * ctx = ggml_init((struct ggml_init_params){ size, memory, true });
        REQUIRE(ctx != NULL);
        done = ggml_graph_recompute(ctx, w.graph, least, NULL, &info) != NULL;
        CHECK(done || (ggml_last_status() == GGML_STATUS_ALLOC_FAILED && info.n_again > 0));
        CHECK((ggml_used_mem(ctx) == 0) == !done);
        ggml_free(ctx);
        ggml_clear_error();
    }
    CHECK(done);
    ggml_free(w.ctx);
}

TEST_MAIN(TEST(one_result_runs_again), TEST(waiting_sources_can_go), TEST(nothing_to_do), TEST(against_all_sequences),
    TEST(what_expires_runs_early), TEST(work_never_rises_with_the_limit), TEST(results_stay_the_same),
    TEST(effects_happen_once), TEST(clones_have_names_and_places), TEST(wrong_arguments), TEST(out_of_memory),
    TEST(rounds_call_the_poll), TEST(a_search_makes_several_graphs), TEST(a_full_context_keeps_nothing))
