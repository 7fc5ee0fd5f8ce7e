// attention_chain.cu - the chain of operators that models build attention from, without stored scores:
//
//     MUL_MAT(keys, queries) [SCALE | DIAG_MASK_INF | ADD]* SOFT_MAX MUL_MAT(values, .)
//
// That is allowed only if no other node reads the scores (ggml_backend_may_leave_out). Results differ
// from those of the chain only by rounding. If the products would convert queries and probabilities to
// halves, the kernel does too.
//
// If a copy after the chain joins the heads of each query, the result is written directly into the
// copy.
//
// Chains of few rows always become attention in float, as their products would be. Other chains of
// halves always run on the tensor cores. For all others the two products have larger tiles than
// gb_attention_floats, so that kernel is used only if the scores exceed the device's cache.
//
// The result may overlap queries, keys, values or the mask, which are read until the chain ends.
// Then the result is made in scratch memory and copied.
#include "cuda/kernels/rows.cuh"
#include "cuda/ops/attention.h"
#include "cuda/ops/products.h"

enum { FEW_ROWS = 8 }; // products with more rows convert them to halves

namespace {

struct chain {
    gb_attention p;
    const ggml_tensor * mask; // NULL: none
    const ggml_tensor * last; // the second product, or the copy of its permuted result
    int length; // number of nodes
};

} // namespace

// ------------------------------------------------------------------------------------------------------------ matching

static bool is_dense(const ggml_tensor * t) { return t->type == GGML_TYPE_F32 && ggml_is_contiguous(t); }

// Multiplies the scale. False: a row that is masked already might not remain masked.
static bool add_scale(chain & c, float factor) {
    if (factor == 1) {
        return true;
    }
    c.p.scale *= factor;
    return c.mask == NULL && (factor > 0 || !c.p.masked);
}

// Adds t as the mask. False: there is one, or t does not repeat over the scores.
static bool add_mask(chain & c, const ggml_tensor * t, const ggml_tensor * scores) {
    if (c.mask != NULL || !gb_is_float_type(t->type) || gb_unaligned(t) != NULL || t->ne[0] != scores->ne[0] ||
        gb_count(t) == 0 || scores->ne[1] % t->ne[1] != 0) {
        return false;
    }
    c.mask = t;
    c.p.mask = { gb_cuda_data(t), t->type, t->nb[0], t->nb[1], t->nb[2], t->nb[3], t->ne[1], t->ne[2], t->ne[3] };
    return true;
}

static bool add_sum(chain & c, const ggml_tensor * node, const ggml_tensor * before) {
    const ggml_tensor * other = node->src[0] == before ? node->src[1] : node->src[0];
    return other != before && (node->src[0] == before || gb_same_shape(other, node)) && add_mask(c, other, node);
}

static bool add_causal(chain & c, const ggml_tensor * node) {
    const int64_t past = node->op_params[0];
    c.p.past = c.p.masked ? (past < c.p.past ? past : c.p.past) : past;
    c.p.masked = true;
    return true;
}

static bool add_soft_max(chain & c, const ggml_tensor * node) {
    const ggml_tensor * mask = node->src[1];
    return node->src[2] == NULL && gb_param_float(node, 1) == 0 && add_scale(c, gb_param_float(node, 0)) &&
           (mask == NULL || (mask != node->src[0] && mask->ne[2] == 1 && mask->ne[3] == 1 && add_mask(c, mask, node)));
}

// Adds an operator between the products. False: it does not belong to a chain.
static bool add_node(chain & c, const ggml_tensor * node, const ggml_tensor * before) {
    if (!is_dense(node) || !gb_same_shape(node, before) ||
        (node->src[0] != before && !(node->op == GGML_OP_ADD && node->src[1] == before))) {
        return false;
    }
    switch (node->op) {
        case GGML_OP_SCALE: return add_scale(c, gb_param_float(node, 0));
        case GGML_OP_DIAG_MASK_INF: return add_causal(c, node);
        case GGML_OP_ADD: return add_sum(c, node, before);
        case GGML_OP_SOFT_MAX: return add_soft_max(c, node);
        default: return false;
    }
}

static bool is_product(const ggml_tensor * node) { return node->op == GGML_OP_MUL_MAT && is_dense(node); }

// Describes an operand of the products. Heads and batches share it as in products.
static bool describe_input(gb_attention_input & in, const ggml_tensor * t, const ggml_tensor * scores) {
    in = gb_attention_input_of(t);
    in.r2 = t->ne[2] > 0 ? scores->ne[2] / t->ne[2] : 0;
    in.r3 = t->ne[3] > 0 ? scores->ne[3] / t->ne[3] : 0;
    return gb_is_float_type(t->type) && gb_unaligned(t) == NULL && in.r2 > 0 && in.r3 > 0;
}

// Describes the products of a chain. False: attention cannot replace them.
static bool describe(chain & c, const ggml_tensor * first, const ggml_tensor * last) {
    gb_attention & p = c.p;
    if (!describe_input(p.q, first->src[1], first) || !describe_input(p.k, first->src[0], first) ||
        !describe_input(p.v, last->src[0], first)) {
        return false;
    }
    p.d = last->ne[0];
    p.n = last->ne[1];
    p.m = first->ne[0];
    p.heads = last->ne[2];
    p.outer = p.k.ne2 == p.v.ne2 ? p.k.ne2 : p.heads;
    p.group_step = p.heads / p.outer;
    p.head_step = 1;
    p.parts = 1;
    p.dst_query = p.d;
    p.dst_head = p.n * p.d;
    p.dst = (float *) (void *) gb_cuda_data(last);
    p.exact = first->op_params[0] == GGML_PREC_F32 || last->op_params[0] == GGML_PREC_F32;
    return first->src[0]->ne[0] == p.d && last->src[1] != last->src[0] && gb_attention_fits(last) &&
           gb_rows(last) < (int64_t) 1 << 31;
}

static bool follow(chain & c, const gb_cuda_nodes & nodes, int i) {
    const ggml_tensor * first = nodes.node[i];
    int at = i;
    c = {};
    c.p.scale = 1;
    if (!is_product(first)) {
        return false;
    }
    do {
        at++;
        if (at >= nodes.n || !add_node(c, nodes.node[at], nodes.node[at - 1])) {
            return false;
        }
    } while (nodes.node[at]->op != GGML_OP_SOFT_MAX);
    at++;
    c.length = at - i + 1;
    return at < nodes.n && is_product(nodes.node[at]) && nodes.node[at]->src[1] == nodes.node[at - 1] &&
           describe(c, first, c.last = nodes.node[at]);
}

// The copy that joins the heads of each query: CONT(PERMUTE(product, 0, 2, 1, 3)).
static bool joins_heads(const ggml_tensor * copy, const ggml_tensor * product) {
    const ggml_tensor * from = copy->src[0];
    return copy->op == GGML_OP_CONT && is_dense(copy) && from->op == GGML_OP_PERMUTE && from->src[0] == product &&
           from->ne[0] == product->ne[0] && from->ne[1] == product->ne[2] && from->ne[2] == product->ne[1] &&
           from->nb[0] == product->nb[0] && from->nb[1] == product->nb[2] && from->nb[2] == product->nb[1] &&
           from->nb[3] == product->nb[3];
}

static bool is_unseen(const gb_cuda_backend & b, const ggml_tensor * t) {
    return b.kind == GB_CUDA_PLAN || ggml_backend_may_leave_out(t); // a plan has no memory, so this is not known
}

static bool is_over_sources(const chain & c, const ggml_tensor * first, const ggml_tensor * product,
    const ggml_tensor * dst) {
    return gb_cuda_overlap(dst, first->src[0]) || gb_cuda_overlap(dst, first->src[1]) ||
           gb_cuda_overlap(dst, product->src[0]) || (c.mask != NULL && gb_cuda_overlap(dst, c.mask));
}

// Adds the copy after the chain, which then gets the result. over: the result may overlap the sources.
static void follow_copy(chain & c, const gb_cuda_backend & b, const gb_cuda_nodes & nodes, int i, bool over) {
    const ggml_tensor * copy = i + c.length < nodes.n ? nodes.node[i + c.length] : NULL;
    if (copy == NULL || !joins_heads(copy, c.last) || !is_unseen(b, c.last) || !is_unseen(b, copy->src[0]) ||
        (!over && b.kind != GB_CUDA_PLAN && is_over_sources(c, nodes.node[i], c.last, copy))) {
        return;
    }
    c.last = copy;
    c.length++;
    c.p.dst = (float *) (void *) gb_cuda_data(copy);
    c.p.dst_query = c.p.d * c.p.heads;
    c.p.dst_head = c.p.d;
}

// ------------------------------------------------------------------------------------------------------------ deciding

static bool nobody_looks(const gb_cuda_backend & b, const gb_cuda_nodes & nodes, int i, int length) {
    bool unseen = true;
    for (int j = i; j < i + length - 1 && unseen; j++) {
        unseen = is_unseen(b, nodes.node[j]);
    }
    return unseen;
}

// Converts the queries for the tensor cores: dense halves of the type of the keys.
static gb_attention_input dense_queries(const gb_attention & p) {
    const size_t row = (size_t) p.d * 2, matrix = row * (size_t) p.n;
    return { NULL, p.k.type, 2, row, matrix, matrix * (size_t) p.heads, p.heads, p.q.ne3, 1, 1 };
}

static bool takes_halves(const gb_cuda_backend & b, const chain & c) {
    gb_attention p = c.p;
    p.q = dense_queries(p);
    return gb_attention_halves_decline(*b.device, p) == NULL;
}

static bool takes_floats(const gb_cuda_backend & b, const chain & c, int64_t batch) {
    const double scores = (double) c.p.m * (double) c.p.n * (double) (c.p.heads * batch) * sizeof(float);
    return c.p.d <= GB_ATTENTION_FLOAT_HEAD && scores > (double) b.device->l2_bytes;
}

// ------------------------------------------------------------------------------------------------------------- running

static enum ggml_status make_queries(gb_cuda_backend & b, gb_attention & p, int64_t batch) {
    gb_make_rows q = { p.q.type, p.q.x, p.q.nb0, p.q.nb1, p.q.nb2, p.q.nb3, p.n, p.heads, p.d, NULL, p.d };
    const int64_t rows = p.n * p.heads * batch;
    const dim3 grid((unsigned) rows, (unsigned) gb_cuda_ceil_div(p.d, 256));
    gb_attention_input made = dense_queries(p);
    q.y = gb_cuda_scratch(b, (size_t) (rows * p.d) * 2);
    made.x = (const char *) q.y;
    p.q = made;
    if (q.y == NULL) {
        return GGML_STATUS_ALLOC_FAILED;
    }
    GB_CUDA_TRY(b, p.k.type == GGML_TYPE_F16 ? GB_LAUNCH((gb_rows_of_floats<GB_ROWS_F16>), grid, 256, 0, b.queue, q)
                                             : GB_LAUNCH((gb_rows_of_floats<GB_ROWS_BF16>), grid, 256, 0, b.queue, q));
    return GGML_STATUS_SUCCESS;
}

static enum ggml_status run(gb_cuda_backend & b, gb_attention & p, int64_t batch, bool halves) {
    if (halves && gb_attention_halves_decline(*b.device, p) != NULL) {
        const enum ggml_status status = make_queries(b, p, batch);
        if (status != GGML_STATUS_SUCCESS) {
            return status;
        }
    }
    return gb_attention_run(b, p, batch, gb_attention_choose(*b.device, p));
}

static enum ggml_status run_apart(gb_cuda_backend & b, gb_attention & p, const ggml_tensor * last, bool halves) {
    gb_view out;
    if (!gb_scratch_floats(b, last, &out)) {
        return GGML_STATUS_ALLOC_FAILED;
    }
    p.dst = (float *) (void *) out.p;
    const enum ggml_status status = run(b, p, last->ne[3], halves);
    if (status == GGML_STATUS_SUCCESS) {
        GB_CUDA_TRY(b, gb_launch_copy(gb_view_of(last), out, b.queue));
    }
    return status;
}

// Few rows: in float, as the products would compute them. A result that overlaps a source is made from parts of the
// keys, after all sources were read. That step also rounds it for the next product.
static enum ggml_status run_few(gb_cuda_backend & b, chain & c, const ggml_tensor * first, const ggml_tensor * product,
    int last) {
    gb_row_kind kind = GB_ROWS_NONE;
    gb_make_panels made = {};
    gb_cuda_kept * kept =
        c.last != product && c.p.d % 32 == 0 ? gb_rows_ahead(b, c.last, last, c.p.d * c.p.heads, &kind, &made) : NULL;
    bool rounded = false;
    if (kept != NULL && kind == GB_ROWS_BYTES) {
        c.p.made = made.rows;
        c.p.rounded = &rounded;
    }
    c.p.joined = b.kind == GB_CUDA_PLAN || is_over_sources(c, first, product, c.last);
    const enum ggml_status status = gb_attention_few_run(b, c.p, product->ne[3]);
    if (rounded) {
        kept->made = true;
    }
    return status;
}

static enum ggml_status run_chain(gb_cuda_backend & b, const gb_cuda_nodes & nodes, int i, chain & c) {
    const ggml_tensor *first = nodes.node[i], *product = c.last;
    if (c.p.n <= FEW_ROWS) {
        follow_copy(c, b, nodes, i, true);
        return run_few(b, c, first, product, i + c.length - 1);
    }
    const bool halves = takes_halves(b, c);
    follow_copy(c, b, nodes, i, false);
    const bool apart = c.last == product && is_over_sources(c, first, product, product);
    return b.kind == GB_CUDA_PLAN || apart ? run_apart(b, c.p, product, halves) // a plan measures the larger
                                           : run(b, c.p, product->ne[3], halves);
}

int gb_attention_fuse(gb_cuda_backend & b, const gb_cuda_nodes & nodes, int i) {
    chain c;
    if (!follow(c, nodes, i) || !nobody_looks(b, nodes, i, c.length)) {
        return 0;
    }
    if (c.p.n > FEW_ROWS && !takes_halves(b, c) && !takes_floats(b, c, c.last->ne[3])) {
        return 0;
    }
    return run_chain(b, nodes, i, c) == GGML_STATUS_SUCCESS ? c.length : -1;
}
