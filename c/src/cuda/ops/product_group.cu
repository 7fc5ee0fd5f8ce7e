// product_group.cu - products of one row together with the nodes after them, as when one token is
// decoded:
//
//   projections: MUL_MAT [ROPE] [CPY], two or three times with the same activations, such as q, k and v with the cache.
//       One launch computes the products, a second the nodes after them.
//   a gate: MUL_MAT, UNARY, MUL_MAT, MUL, such as gate and up. One launch computes the products, a second the rest. The
//       second also converts the result for the next product.
//   a sum: MUL_MAT, ADD, such as a residual. One launch computes both.
//
// Intermediate results are not stored, or are in scratch memory. That is allowed only if no other
// node reads them (ggml_backend_may_leave_out). All products read before the second launch writes.
// So nodes are computed together only if no node overwrites a tensor from outside the group that a
// later node of the group reads.
#include "cuda/ops/elements.h"
#include "cuda/ops/gate.h"
#include "cuda/ops/products.h"
#include "cuda/ops/rope.h"

namespace {

struct member {
    const ggml_tensor * product;
    const ggml_tensor * rope; // NULL: none
    const ggml_tensor * copy; // NULL: none
    int at; // index of the product
};

struct group {
    member m[GB_MATVEC_PARTS];
    int n;
    int length; // nodes
};

} // namespace

// ------------------------------------------------------------------------------------------------------------- members

static bool is_dense(const ggml_tensor * t) { return t->type == GGML_TYPE_F32 && ggml_is_contiguous(t); }

static bool is_unseen(const gb_cuda_backend & b, const ggml_tensor * t) {
    return b.kind == GB_CUDA_PLAN || ggml_backend_may_leave_out(t); // a plan has no memory, so this is not known
}

// True if t is the product, or a view of it, and no other node reads either of them.
static bool shows(const gb_cuda_backend & b, const ggml_tensor * t, const ggml_tensor * product) {
    return t == product ? is_unseen(b, t) : t->view_src == product && is_unseen(b, t) && is_unseen(b, product);
}

// A product of one row by an algorithm that computes groups.
static bool is_member(const gb_cuda_backend & b, int i) {
    const ggml_tensor * t = b.nodes->node[i];
    return t->op == GGML_OP_MUL_MAT && is_dense(t) && gb_rows(t) == 1 && gb_product_may_group(b.choices.data[i]);
}

// True if both products have the same activations and the same algorithm.
static bool go_together(const gb_cuda_backend & b, int i, int j) {
    const ggml_tensor *s = b.nodes->node[i], *t = b.nodes->node[j];
    return is_member(b, j) && s->src[1] == t->src[1] && s->src[0]->type == t->src[0]->type &&
           b.choices.data[i].algorithm == b.choices.data[j].algorithm;
}

static const ggml_tensor * node_at(const gb_cuda_backend & b, int i) {
    return i < b.nodes->n ? b.nodes->node[i] : NULL;
}

static bool is_inside(const gb_cuda_backend & b, int i, int from, const ggml_tensor * t) {
    bool found = false;
    for (int j = from; j < i && !found; j++) {
        found = t == b.nodes->node[j] || t->view_src == b.nodes->node[j];
    }
    return found;
}

// True if no node of [i, i + n) overwrites a tensor from outside the group that a later node of the
// group reads.
static bool keeps_sources(const gb_cuda_backend & b, int i, int n) {
    bool keeps = true;
    for (int late = i + 1; late < i + n; late++) {
        const ggml_tensor * t = b.nodes->node[late];
        const bool copies = t->op == GGML_OP_CPY; // its second source is its target
        for (int s = 0; s < (copies ? 1 : 2); s++) {
            for (int early = i; early < late && t->src[s] != NULL && keeps; early++) {
                keeps = is_inside(b, late, i, t->src[s]) || !gb_cuda_overlap(b.nodes->node[early], t->src[s]);
            }
        }
    }
    return keeps;
}

// --------------------------------------------------------------------------------------------------------- projections

// True if the node copies the member's result. y: the memory of the copy, in the shape of the ROPE or of the source.
static bool copies(const gb_cuda_backend & b, const member & m, const ggml_tensor * node, gb_view * y) {
    return (m.rope != NULL ? gb_rope_is_copy_of(m.rope, node, y) : gb_rope_copies(node, y)) &&
           shows(b, node->src[0], m.rope != NULL ? m.rope : m.product);
}

// Reads the members from node i on, each with the nodes after it.
static void read_group(const gb_cuda_backend & b, int i, group & g) {
    g = {};
    int at = i;
    while (g.n < GB_MATVEC_PARTS && at < b.nodes->n && (g.n == 0 ? is_member(b, at) : go_together(b, i, at))) {
        member m = { b.nodes->node[at], NULL, NULL, at };
        const ggml_tensor * next = node_at(b, ++at);
        if (next != NULL && next->op == GGML_OP_ROPE && is_dense(next) && shows(b, next->src[0], m.product)) {
            m.rope = next;
            next = node_at(b, ++at);
        }
        gb_view y;
        if (next != NULL && copies(b, m, next, &y)) {
            m.copy = next;
            at++;
        }
        if (m.rope == NULL && m.copy == NULL) {
            break; // an earlier node may still need the product's memory
        }
        g.m[g.n++] = m;
        g.length = at - i;
    }
}

static const ggml_tensor * result_of(const member & m) { return m.copy != NULL ? m.copy : m.rope; }

// True if no result overlaps another one, or positions that a ROPE of the group reads.
static bool results_are_apart(const group & g) {
    bool apart = true;
    for (int i = 0; i < g.n; i++) {
        for (int j = 0; j < g.n && apart; j++) {
            apart = (i == j || !gb_cuda_overlap(result_of(g.m[i]), result_of(g.m[j]))) &&
                    (g.m[j].rope == NULL || !gb_cuda_overlap(result_of(g.m[i]), g.m[j].rope->src[1]));
        }
    }
    return apart;
}

// The view t of a product, in `memory` instead of the product's own.
static gb_view moved(const ggml_tensor * t, const ggml_tensor * product, float * memory) {
    gb_view v = gb_view_of(t);
    v.p = (char *) memory + (t == product ? 0 : t->view_offs);
    return v;
}

static enum ggml_status run_products(gb_cuda_backend & b, const int * at, int n, float ** memory) {
    gb_product p[GB_MATVEC_PARTS];
    for (int i = 0; i < n; i++) {
        gb_product_of(p[i], b.nodes->node[at[i]]);
        p[i].dst = memory[i] = (float *) gb_cuda_scratch(b, (size_t) p[i].m * sizeof(float));
        if (p[i].dst == NULL) {
            return GGML_STATUS_ALLOC_FAILED;
        }
    }
    return gb_product_run_group(b, p, n, b.choices.data[at[0]]);
}

static enum ggml_status run_group(gb_cuda_backend & b, const group & g) {
    int at[GB_MATVEC_PARTS];
    float * memory[GB_MATVEC_PARTS];
    gb_rope_part part[GB_MATVEC_PARTS];
    for (int i = 0; i < g.n; i++) {
        at[i] = g.m[i].at;
    }
    // Tables of ROPE are kept. Kept data stands before the rest of the scratch memory.
    for (int i = 0; i < g.n; i++) {
        const enum ggml_status status = gb_rope_part_of(b, g.m[i].rope, &part[i]);
        if (status != GGML_STATUS_SUCCESS) {
            return status;
        }
    }
    const enum ggml_status status = run_products(b, at, g.n, memory);
    if (status != GGML_STATUS_SUCCESS) {
        return status;
    }
    for (int i = 0; i < g.n; i++) {
        const member & m = g.m[i];
        const ggml_tensor * from = m.rope != NULL ? m.rope->src[0] : m.copy->src[0];
        part[i].x = moved(from, m.product, memory[i]);
        if (m.copy == NULL) {
            part[i].y = gb_view_of(m.rope);
        } else {
            copies(b, m, m.copy, &part[i].y);
        }
    }
    return gb_rope_launch(b, part, g.n);
}

// --------------------------------------------------------------------------------------------------------------- gates

// True if the nodes from i on are MUL_MAT, UNARY, MUL_MAT, MUL and may be computed together. at: indices of the
// products.
static bool is_gate(const gb_cuda_backend & b, int i, int (&at)[2]) {
    const ggml_tensor *gate = node_at(b, i), *act = node_at(b, i + 1), *up = node_at(b, i + 2),
                      *mul = node_at(b, i + 3);
    if (mul == NULL || !is_member(b, i) || act->op != GGML_OP_UNARY || act->src[0] != gate || !is_dense(act) ||
        !gb_gate_has(act->op_params[0]) || !go_together(b, i, i + 2) || mul->op != GGML_OP_MUL || !is_dense(mul) ||
        !gb_same_shape(act, up) || !gb_same_shape(mul, up)) {
        return false;
    }
    at[0] = i;
    at[1] = i + 2;
    return ((mul->src[0] == act && mul->src[1] == up) || (mul->src[0] == up && mul->src[1] == act)) &&
           is_unseen(b, gate) && is_unseen(b, act) && is_unseen(b, up) &&
           (b.kind == GB_CUDA_PLAN || keeps_sources(b, i, 4));
}

static enum ggml_status run_gate(gb_cuda_backend & b, const int (&at)[2]) {
    const ggml_tensor *act = b.nodes->node[at[0] + 1], *mul = b.nodes->node[at[1] + 1];
    gb_row_kind kind = GB_ROWS_NONE;
    gb_make_panels made = {};
    gb_cuda_kept * kept = gb_rows_ahead(b, mul, at[1] + 1, mul->ne[0], &kind, &made);
    float * memory[GB_MATVEC_PARTS];
    const enum ggml_status status = run_products(b, at, 2, memory);
    if (status != GGML_STATUS_SUCCESS) {
        return status;
    }
    gb_gate q = { memory[0], memory[1], (float *) (void *) gb_cuda_data(mul), mul->ne[0], false, made.rows };
    if (kept != NULL && kind == GB_ROWS_BYTES) {
        q.rounds = true;
        kept->made = true;
    }
    GB_CUDA_TRY(b, gb_gate_launch(act->op_params[0], q, b.queue));
    return GGML_STATUS_SUCCESS;
}

// ---------------------------------------------------------------------------------------------------------------- sums

// The second operand of a sum with the product; NULL: the product cannot add it.
static const ggml_tensor * addend(const gb_cuda_backend & b, const ggml_tensor * sum, const ggml_tensor * product) {
    if (sum == NULL || sum->op != GGML_OP_ADD || !is_dense(sum) || !is_unseen(b, product)) {
        return NULL;
    }
    const ggml_tensor * other = sum->src[0] == product ? sum->src[1] : sum->src[0];
    const bool fits = (sum->src[0] == product) != (sum->src[1] == product) && is_dense(other) &&
                      gb_same_shape(other, product) && gb_same_shape(sum, product);
    const bool apart = fits && gb_is_apart_or_same(other, sum) && !gb_cuda_overlap(product, other) &&
                       !gb_cuda_overlap(sum, product->src[0]) && !gb_cuda_overlap(sum, product->src[1]);
    return apart ? other : NULL;
}

static int fuse_sum(gb_cuda_backend & b, int i) {
    const ggml_tensor *product = b.nodes->node[i], *sum = node_at(b, i + 1);
    const bool may = b.kind != GB_CUDA_PLAN && is_dense(product) && gb_product_may_group(b.choices.data[i]);
    const ggml_tensor * other = may ? addend(b, sum, product) : NULL;
    if (other == NULL) {
        return 0;
    }
    gb_product p;
    gb_product_of(p, product);
    p.dst = (float *) (void *) gb_cuda_data(sum);
    p.add = (const float *) (const void *) gb_cuda_data(other);
    return gb_product_run_group(b, &p, 1, b.choices.data[i]) == GGML_STATUS_SUCCESS ? 2 : -1;
}

// ----------------------------------------------------------------------------------------------------------------- all

int gb_product_fuse(gb_cuda_backend & b, int i) {
    int at[2], n = 0;
    group g;
    enum ggml_status status = GGML_STATUS_SUCCESS;
    read_group(b, i, g);
    if (g.n >= 2 && (b.kind == GB_CUDA_PLAN || (results_are_apart(g) && keeps_sources(b, i, g.length)))) {
        status = run_group(b, g);
        n = g.length;
    } else if (is_gate(b, i, at)) {
        status = run_gate(b, at);
        n = 4;
    }
    if (n > 0 && b.kind == GB_CUDA_PLAN) { // scratch memory is measured; the run may still compute node by node
        b.scratch.used = gb_cuda_kept_end(b);
        n = 0;
    }
    return status != GGML_STATUS_SUCCESS ? -1 : n > 0 ? n : fuse_sum(b, i);
}
