// check.c - the rules of every operator, in the order of check.h. The rules of convolutions and
// images are in check_conv.c.
//
// A rule set is a chain of rules (rule.h). A check that is not a rule is a function next to its
// only caller. A rule of a single operator may be next to its builder (ops_<family>.c).
//
// Invariant: every node satisfies its rules. Kernels, allocators and the scheduler rely on that and
// check no shapes.
#include "tensor/check.h"

#include <math.h>

#include "tensor/rule.h"
#include "tensor/shapes.h"
#include "tensor/tensor.h"

bool gb_check_1(const char * func, gb_ct a) {
    const struct gb_call c = GB_CALL_1(func, a);
    return gb_rule_given(&c);
}

bool gb_check_2(const char * func, gb_ct a, gb_ct b) {
    const struct gb_call c = GB_CALL_2(func, a, b);
    return gb_rule_given(&c);
}

bool gb_check_no_grad(const char * func, gb_ct a) {
    const struct gb_call c = GB_CALL_1(func, a);
    return gb_rule_given(&c) && gb_rule_no_grad(&c);
}

// ------------------------------------------------------------------------------------------------------- views, copies

// A result of a blocked type needs rows of whole blocks.
static bool rule_blocks(const struct gb_call * c, enum ggml_type type, int64_t ne0) {
    const int block = ggml_blck_size(type);
    return block == 1 || (block > 1 && ne0 % block == 0) ||
           GB_BROKEN(c, PART_OF_BLOCK, .t = type, .number = { block, ne0 });
}

// The new shape has as many elements as the operand, and its rows are whole blocks.
static bool rule_count(const struct gb_call * c, const int64_t ne[4]) {
    const int64_t have = ggml_nelements(c->list[0].t);
    int64_t want = 1;
    for (int d = 0; d < 4; d++) {
        if (ne[d] < 0 || !gb_mul_i64(want, ne[d], &want)) {
            want = -1;
            break;
        }
    }
    return (want == have || GB_BROKEN(c, RESHAPE, .number = { have, ne[0], ne[1], ne[2], ne[3] })) &&
           rule_blocks(c, c->list[0].t->type, ne[0]);
}

bool gb_check_count(const char * func, gb_ct a, const int64_t ne[4]) {
    const struct gb_call c = GB_CALL_1(func, a);
    return gb_rule_given(&c) && rule_count(&c, ne);
}

// A reshaped tensor is a view, so its elements must have no gaps.
bool gb_check_reshape(const char * func, gb_ct a, const int64_t ne[4]) {
    const struct gb_call c = GB_CALL_1(func, a);
    return gb_rule_given(&c) && rule_count(&c, ne) && gb_rule_contiguous(&c, 0);
}

// Every axis occurs once.
bool gb_check_permute(const char * func, gb_ct a, const int axes[4]) {
    const struct gb_call c = GB_CALL_1(func, a);
    if (!gb_rule_given(&c)) {
        return false;
    }
    bool taken[4] = { false };
    for (int d = 0; d < 4; d++) {
        if (axes[d] < 0 || axes[d] > 3 || taken[axes[d]]) {
            return GB_BROKEN(&c, NO_PERMUTATION, .number = { axes[0], axes[1], axes[2], axes[3] });
        }
        taken[axes[d]] = true;
    }
    return true;
}

// Types and shapes may differ, because elements are copied in logical order.
bool gb_check_cpy(const char * func, gb_ct a, gb_ct b) {
    const struct gb_call c = GB_CALL_2(func, a, b);
    return gb_rule_given(&c) &&
           (ggml_nelements(a) == ggml_nelements(b) ||
               GB_BROKEN(&c, OTHER_COUNT, .a = "a", .b = "b", .number = { ggml_nelements(a), ggml_nelements(b) })) &&
           gb_rule_apart(&c, 1);
}

bool gb_check_inplace(const char * func, gb_ct a) {
    const struct gb_call c = GB_CALL_1(func, a);
    return gb_rule_given(&c) && gb_rule_apart(&c, 0);
}

// The type exists, and the operand's rows can have it.
static bool rule_is_type(const struct gb_call * c, enum ggml_type type) {
    return (gb_type_is_valid(type) || GB_BROKEN(c, NO_TYPE, .number = { (int64_t) type })) &&
           rule_blocks(c, type, c->list[0].t->ne[0]);
}

bool gb_check_type(const char * func, gb_ct a, enum ggml_type type) {
    const struct gb_call c = GB_CALL_1(func, a);
    return gb_rule_given(&c) && rule_is_type(&c, type);
}

// b holds row numbers of a, as I32: [k, m, n] picks k rows of each matrix of a [x, y, m, n].
// Readers check the range of the numbers.
bool gb_check_get_rows(const char * func, gb_ct a, gb_ct b) {
    const struct gb_call c = GB_CALL_2(func, a, b);
    return gb_rule_given(&c) && gb_rule_type(&c, 1, GGML_TYPE_I32) && gb_rule_equal(&c, 0, 2, 1, 1) &&
           gb_rule_max_dims(&c, 1, 3) && gb_rule_size_in_range(&c, 0, 3, b->ne[2], INT64_MAX);
}

// a holds a gradient for each row that b has picked; c gives the shape of the result.
bool gb_check_get_rows_back(const char * func, gb_ct a, gb_ct b, gb_ct c) {
    const struct gb_call call = GB_CALL_3(func, a, b, c);
    return gb_rule_given(&call) && gb_rule_type(&call, 1, GGML_TYPE_I32) && gb_rule_max_dims(&call, 0, 2) &&
           gb_rule_max_dims(&call, 1, 1) && gb_rule_max_dims(&call, 2, 2) && gb_rule_equal(&call, 0, 1, 1, 0) &&
           gb_rule_equal(&call, 0, 0, 2, 0);
}

// Dimension d - 1 of the places repeats over dimension d of the rows.
static bool rule_places_repeat(const struct gb_call * c, gb_ct rows, gb_ct places, int d) {
    return gb_size_divides(places->ne[d - 1], rows->ne[d]) ||
           GB_BROKEN(c, NO_MULTIPLE, .a = "b", .b = "c", .a_dim = d, .b_dim = d - 1,
               .number = { rows->ne[d], places->ne[d - 1] });
}

static bool rule_index_type(const struct gb_call * c, int i) {
    const enum ggml_type type = c->list[i].t->type;
    return gb_rule_is_built(c) || type == GGML_TYPE_I32 || type == GGML_TYPE_I64 ||
           GB_BROKEN(c, NO_INDEX_TYPE, .a = c->list[i].role, .t = type);
}

static bool rule_float(const struct gb_call * c, int i) {
    const enum ggml_type type = c->list[i].t->type;
    return gb_rule_is_built(c) || type == GGML_TYPE_F32 || type == GGML_TYPE_F16 || type == GGML_TYPE_BF16 ||
           GB_BROKEN(c, NO_FLOAT, .a = c->list[i].role, .t = type);
}

// c has the number of a row of a for each row of b, and repeats over dimensions 2 and 3 of b. The
// operator checks that the numbers are in range when it reads them.
bool gb_check_set_rows(const char * func, gb_ct a, gb_ct b, gb_ct c) {
    const struct gb_call call = GB_CALL_3(func, a, b, c);
    return gb_rule_given(&call) && rule_float(&call, 1) && rule_index_type(&call, 2) &&
           gb_rule_equal(&call, 0, 0, 1, 0) && gb_rule_equal(&call, 0, 2, 1, 2) && gb_rule_equal(&call, 0, 3, 1, 3) &&
           gb_rule_equal(&call, 1, 1, 2, 0) && gb_rule_max_dims(&call, 2, 3) && rule_places_repeat(&call, b, c, 2) &&
           rule_places_repeat(&call, b, c, 3) && gb_rule_apart(&call, 0);
}

// a holds one row, the diagonal, for each matrix of the result.
bool gb_check_diag(const char * func, gb_ct a) {
    const struct gb_call c = GB_CALL_1(func, a);
    return gb_rule_given(&c) && gb_rule_size(&c, 0, 1, 1);
}

// --------------------------------------------------------------------------------------------------------- elementwise

bool gb_check_unary(const char * func, gb_ct a, enum ggml_unary_op op) {
    const struct gb_call c = GB_CALL_1(func, a);
    return gb_rule_given(&c) && gb_rule_in_range(&c, "unary operator", (int) op, 0, GGML_UNARY_OP_COUNT - 1);
}

bool gb_check_binary(const char * func, gb_ct a, gb_ct b) {
    const struct gb_call c = GB_CALL_2(func, a, b);
    return gb_rule_given(&c) && gb_rule_repeats(&c, 1, 0);
}

// For kernels that add floats to rows of a and store the requested type.
bool gb_check_add_cast(const char * func, gb_ct a, gb_ct b, enum ggml_type type) {
    const struct gb_call c = GB_CALL_2(func, a, b);
    if (!gb_rule_given(&c) || !rule_is_type(&c, type) || !gb_rule_equal(&c, 0, 0, 1, 0) || !gb_rule_repeats(&c, 1, 0)) {
        return false;
    }
    return ggml_is_quantized(a->type) || a->type == GGML_TYPE_F16 || a->type == GGML_TYPE_BF16 ||
           GB_BROKEN(&c, NO_SMALL_FLOAT, .a = "a", .t = a->type);
}

// b is a single number.
bool gb_check_add1(const char * func, gb_ct a, gb_ct b) {
    const struct gb_call c = GB_CALL_2(func, a, b);
    return gb_rule_given(&c) && gb_rule_max_dims(&c, 1, 0);
}

bool gb_check_same_shape(const char * func, gb_ct a, gb_ct b) {
    const struct gb_call c = GB_CALL_2(func, a, b);
    return gb_rule_given(&c) && gb_rule_same_shape(&c, 0, 1);
}

// The bytes from the start of the result to the end of b's region in it; false on overflow. b has elements.
static bool region_end(gb_ct a, gb_ct b, const struct gb_region * r, size_t * end) {
    const size_t steps[4] = { ggml_type_size(a->type), r->nb1, r->nb2, r->nb3 };
    if (!gb_add_size(r->offset, steps[0], end)) {
        return false;
    }
    for (int d = 0; d < 4; d++) {
        size_t extent;
        if (!gb_mul_size((size_t) b->ne[d] - 1, steps[d], &extent) || !gb_add_size(*end, extent, end)) {
            return false;
        }
    }
    return true;
}

// True if the node can store these numbers, in 31 bits each. The strides of dimensions that b does
// not have are not used.
static bool region_is_kept(gb_ct b, const struct gb_region * r) {
    return r->offset <= INT32_MAX && (r->nb1 <= INT32_MAX || b->ne[1] == 1) && (r->nb2 <= INT32_MAX || b->ne[2] == 1) &&
           (r->nb3 <= INT32_MAX || b->ne[3] == 1);
}

// Kernels read and write whole elements, so each must begin at a multiple of its size.
static bool region_is_aligned(gb_ct a, gb_ct b, const struct gb_region * r) {
    const size_t element = ggml_type_size(a->type);
    return r->offset % element == 0 && (b->ne[1] == 1 || r->nb1 % element == 0) &&
           (b->ne[2] == 1 || r->nb2 % element == 0) && (b->ne[3] == 1 || r->nb3 % element == 0);
}

// The values of a fault: the region, and a number of bytes.
#define REGION(r, bytes) \
    .number = { (int64_t) (r)->offset, (int64_t) (r)->nb1, (int64_t) (r)->nb2, (int64_t) (r)->nb3, (int64_t) (bytes) }

// The region is within the result, at whole elements, and fits into the node's parameters.
static bool rule_region(const struct gb_call * c, gb_ct a, gb_ct b, const struct gb_region * r, bool inplace) {
    if (!region_is_kept(b, r)) {
        return GB_BROKEN(c, REGION_TOO_LARGE, REGION(r, 0));
    }
    if (ggml_nelements(b) == 0) {
        return true;
    }
    // a fresh result is contiguous, for any strides of a
    const size_t limit = inplace ? ggml_nbytes(a) : ggml_row_size(a->type, a->ne[0]) * (size_t) ggml_nrows(a);
    size_t end = SIZE_MAX;
    if (!region_end(a, b, r, &end) || end > limit) {
        return GB_BROKEN(c, REGION_OUTSIDE, .a = "a", .b = "b", REGION(r, limit));
    }
    return region_is_aligned(a, b, r) || GB_BROKEN(c, REGION_UNALIGNED, REGION(r, ggml_type_size(a->type)));
}

// ACC adds floats and starts from a copy of a's bytes. SET moves bytes of any type except blocks.
bool gb_check_acc(const char * func, gb_ct a, gb_ct b, const struct gb_region * region, bool inplace) {
    const struct gb_call c = GB_CALL_2(func, a, b);
    return gb_rule_given(&c) && gb_rule_type(&c, 0, GGML_TYPE_F32) && gb_rule_type(&c, 1, GGML_TYPE_F32) &&
           gb_rule_contiguous(&c, 0) && rule_region(&c, a, b, region, inplace);
}

bool gb_check_set(const char * func, gb_ct a, gb_ct b, const struct gb_region * region, bool inplace) {
    const struct gb_call c = GB_CALL_2(func, a, b);
    if (!gb_rule_given(&c)) {
        return false;
    }
    const bool quantized = ggml_is_quantized(a->type) || ggml_is_quantized(b->type);
    return (!quantized || GB_BROKEN(&c, QUANTIZED, .a = "a", .b = "b", .t = a->type, .u = b->type)) &&
           rule_region(&c, a, b, region, inplace);
}

// ------------------------------------------------------------------------------------ reductions, ordering, repetition

// Results that are positions in a row have type I32.
static bool rule_indexable(const struct gb_call * c) { return gb_rule_size_in_range(c, 0, 0, 0, INT32_MAX); }

// A row without elements has no maximum.
bool gb_check_argmax(const char * func, gb_ct a) {
    const struct gb_call c = GB_CALL_1(func, a);
    return gb_rule_given(&c) && gb_rule_no_grad(&c) && gb_rule_max_dims(&c, 0, 2) &&
           gb_rule_size_in_range(&c, 0, 0, 1, INT32_MAX);
}

bool gb_check_argsort(const char * func, gb_ct a, enum ggml_sort_order order) {
    const struct gb_call c = GB_CALL_1(func, a);
    return gb_rule_given(&c) && rule_indexable(&c) &&
           gb_rule_in_range(&c, "sort order", (int) order, GGML_SORT_ASC, GGML_SORT_DESC);
}

bool gb_check_top_k(const char * func, gb_ct a, int k) {
    const struct gb_call c = GB_CALL_1(func, a);
    return gb_rule_given(&c) && rule_indexable(&c) && gb_rule_in_range(&c, "k", k, 1, a->ne[0]);
}

bool gb_check_repeat(const char * func, gb_ct a, gb_ct b) {
    const struct gb_call c = GB_CALL_2(func, a, b);
    return gb_rule_given(&c) && gb_rule_repeats(&c, 0, 1);
}

bool gb_check_repeat_back(const char * func, gb_ct a, gb_ct b) {
    const struct gb_call c = GB_CALL_2(func, a, b);
    return gb_rule_given(&c) && gb_rule_repeats(&c, 1, 0);
}

// All sizes but the third are equal: tensors are joined along dimension 2.
bool gb_check_concat(const char * func, gb_ct a, gb_ct b) {
    const struct gb_call c = GB_CALL_2(func, a, b);
    return gb_rule_given(&c) && gb_rule_same_type(&c, 0, 1) && gb_rule_equal(&c, 0, 0, 1, 0) &&
           gb_rule_equal(&c, 0, 1, 1, 1) && gb_rule_equal(&c, 0, 3, 1, 3);
}

// ----------------------------------------------------------------------------------------------------- matrix products

// Rows of both operands have the same length. a broadcasts over the outer dimensions of b. Elements
// of a row of a are contiguous.
static bool rule_mul_mat(const struct gb_call * c, int a, int b) {
    return gb_rule_equal(c, a, 0, b, 0) && gb_rule_divides(c, a, b, 2) && gb_rule_divides(c, a, b, 3) &&
           gb_rule_not_transposed(c, a);
}

bool gb_check_mul_mat(const char * func, gb_ct a, gb_ct b) {
    const struct gb_call c = GB_CALL_2(func, a, b);
    return gb_rule_given(&c) && rule_mul_mat(&c, 0, 1);
}

// Rules for as[i] as the matrix of a product. All must have the shape and type of as[0].
static bool rule_expert(const char * func, struct ggml_tensor * const as[], int i, gb_ct ids, gb_ct b) {
    static const char * const roles[GGML_MAX_SRC - 2] = { "as[0]", "as[1]", "as[2]", "as[3]", "as[4]", "as[5]", "as[6]",
        "as[7]" };
    const struct gb_call c = GB_CALL(func, { roles[0], as[0] }, { roles[i], as[i] }, { "ids", ids }, { "b", b });
    return gb_rule_given(&c) && gb_rule_same_type(&c, 0, 1) && gb_rule_same_shape(&c, 0, 1) &&
           gb_rule_max_dims(&c, 1, 2) && rule_mul_mat(&c, 1, 3);
}

// ids holds numbers of experts as I32, one row for each row of b. Column `id` is used. A node has
// sources for ids, b and a limited number of experts.
bool gb_check_mul_mat_id(const char * func, struct ggml_tensor * const as[], int n_as, gb_ct ids, int id, gb_ct b) {
    const struct gb_call c = GB_CALL_2(func, ids, b);
    if (as == NULL) {
        return gb_rule_missing(&c, "as");
    }
    if (!gb_rule_given(&c) || !gb_rule_in_range(&c, "n_as", n_as, 1, GGML_MAX_SRC - 2)) {
        return false;
    }
    for (int i = 0; i < n_as; i++) {
        if (!rule_expert(func, as, i, ids, b)) {
            return false;
        }
    }
    return gb_rule_type(&c, 0, GGML_TYPE_I32) && gb_rule_max_dims(&c, 0, 2) && gb_rule_equal(&c, 0, 1, 1, 1) &&
           gb_rule_in_range(&c, "id", id, 0, GB_MAX(ids->ne[0], 0) - 1);
}

// Each token has one row of ids. It has one row of b for each of its experts, or rows that repeat
// over them.
bool gb_check_mul_mat_experts(const char * func, gb_ct as, gb_ct b, gb_ct ids) {
    const struct gb_call c = GB_CALL_3(func, as, b, ids);
    return gb_rule_given(&c) && gb_rule_type(&c, 2, GGML_TYPE_I32) && gb_rule_max_dims(&c, 0, 3) &&
           gb_rule_max_dims(&c, 1, 3) && gb_rule_max_dims(&c, 2, 2) && gb_rule_equal(&c, 0, 0, 1, 0) &&
           gb_rule_equal(&c, 1, 2, 2, 1) &&
           (gb_size_divides(b->ne[1], ids->ne[0]) || GB_BROKEN(&c, NO_MULTIPLE, .a = "ids", .b = "b", .a_dim = 0,
                                                         .b_dim = 1, .number = { ids->ne[0], b->ne[1] })) &&
           gb_rule_not_transposed(&c, 0);
}

bool gb_check_add_id(const char * func, gb_ct a, gb_ct b, gb_ct ids) {
    const struct gb_call c = GB_CALL_3(func, a, b, ids);
    return gb_rule_given(&c) && gb_rule_type(&c, 2, GGML_TYPE_I32) && rule_float(&c, 0) && rule_float(&c, 1) &&
           gb_rule_max_dims(&c, 0, 3) && gb_rule_max_dims(&c, 1, 2) && gb_rule_max_dims(&c, 2, 2) &&
           gb_rule_equal(&c, 0, 0, 1, 0) && gb_rule_equal(&c, 0, 1, 2, 0) && gb_rule_equal(&c, 0, 2, 2, 1);
}

// Both operands have the same number of rows, over which they are summed. a broadcasts over the
// outer dimensions of b.
bool gb_check_out_prod(const char * func, gb_ct a, gb_ct b) {
    const struct gb_call c = GB_CALL_2(func, a, b);
    return gb_rule_given(&c) && gb_rule_equal(&c, 0, 1, 1, 1) && gb_rule_divides(&c, 0, 1, 2) &&
           gb_rule_divides(&c, 0, 1, 3) && gb_rule_not_transposed(&c, 0);
}

// --------------------------------------------------------------------------------------- normalisation, softmax, masks

// NaN is not positive.
static bool rule_positive(const struct gb_call * c, const char * what, float value) {
    return value > 0 || GB_BROKEN(c, NOT_POSITIVE, .name = what, .real = (double) value);
}

bool gb_check_norm(const char * func, gb_ct a, float eps) {
    const struct gb_call c = GB_CALL_1(func, a);
    return gb_rule_given(&c) && rule_positive(&c, "eps", eps);
}

// eps may be 0 here, because a nonzero row has a gradient without eps.
bool gb_check_rms_norm_back(const char * func, gb_ct a, gb_ct b, float eps) {
    const struct gb_call c = GB_CALL_2(func, a, b);
    return gb_rule_given(&c) && gb_rule_same_shape(&c, 0, 1) &&
           (eps >= 0 || GB_BROKEN(&c, NEGATIVE, .name = "eps", .real = (double) eps));
}

// There may be more groups than channels. Some groups are then empty.
bool gb_check_group_norm(const char * func, gb_ct a, int n_groups) {
    const struct gb_call c = GB_CALL_1(func, a);
    return gb_rule_given(&c) && gb_rule_at_least(&c, "n_groups", n_groups, 1);
}

// A mask of F32 or F16 for n rows of m scores. It repeats over the rows, or has at least as many.
// It also repeats over heads (dimension 2 of `like`) and batches.
static bool rule_mask(const struct gb_call * c, int i, int64_t m, int64_t n, gb_ct like) {
    gb_ct mask = c->list[i].t;
    const bool type = gb_rule_is_built(c) || mask->type == GGML_TYPE_F32 || mask->type == GGML_TYPE_F16;
    return (type || GB_BROKEN(c, NO_KERNEL_TYPE, .a = c->list[i].role, .t = mask->type)) && gb_rule_size(c, i, 0, m) &&
           (mask->ne[1] >= n || gb_size_divides(mask->ne[1], n) ||
               GB_BROKEN(c, NO_MULTIPLE, .a = c->list[0].role, .b = c->list[i].role, .a_dim = 1, .b_dim = 1,
                   .number = { n, mask->ne[1] })) &&
           (gb_size_divides(mask->ne[2], like->ne[2]) ||
               GB_BROKEN(c, NO_MULTIPLE, .a = c->list[0].role, .b = c->list[i].role, .a_dim = 2, .b_dim = 2,
                   .number = { like->ne[2], mask->ne[2] })) &&
           (gb_size_divides(mask->ne[3], like->ne[3]) ||
               GB_BROKEN(c, NO_MULTIPLE, .a = c->list[0].role, .b = c->list[i].role, .a_dim = 3, .b_dim = 3,
                   .number = { like->ne[3], mask->ne[3] })) &&
           gb_rule_contiguous(c, i);
}

static bool check_masked(const char * func, gb_ct a, gb_ct mask) {
    const struct gb_call c = GB_CALL_2(func, a, mask);
    return gb_rule_given(&c) && gb_rule_contiguous(&c, 0) && rule_mask(&c, 1, a->ne[0], a->ne[1], a);
}

bool gb_check_sinks(const char * func, gb_ct a, gb_ct sinks, int64_t n_heads) {
    const struct gb_call c = GB_CALL_2(func, a, sinks);
    return sinks == NULL || (gb_rule_given(&c) && gb_rule_type(&c, 1, GGML_TYPE_F32) && gb_rule_max_dims(&c, 1, 1) &&
                                gb_rule_size(&c, 1, 0, n_heads));
}

// Kernels treat the rows of a as one array.
bool gb_check_soft_max(const char * func, gb_ct a, gb_ct mask) {
    if (mask != NULL) {
        return check_masked(func, a, mask);
    }
    const struct gb_call c = GB_CALL_1(func, a);
    return gb_rule_given(&c) && gb_rule_contiguous(&c, 0);
}

bool gb_check_max_bias(const char * func, gb_ct a, gb_ct mask, float max_bias) {
    const struct gb_call c = GB_CALL_1(func, a);
    if (!(max_bias >= 0 && max_bias < INFINITY)) {
        return GB_BROKEN(&c, NOT_FINITE, .name = "max_bias", .real = (double) max_bias);
    }
    if (max_bias > 0 && mask == NULL) { // the bias is a factor on the mask
        return gb_rule_missing(&c, "mask");
    }
    return true;
}

bool gb_check_soft_max_back(const char * func, gb_ct a, gb_ct b) {
    const struct gb_call c = GB_CALL_2(func, a, b);
    return gb_rule_given(&c) && gb_rule_same_shape(&c, 0, 1) && gb_rule_contiguous(&c, 0) && gb_rule_contiguous(&c, 1);
}

// A fresh result is filled from the rows of a as one array.
bool gb_check_diag_mask(const char * func, gb_ct a, int n_past, bool inplace) {
    const struct gb_call c = GB_CALL_1(func, a);
    return gb_rule_given(&c) && gb_rule_at_least(&c, "n_past", n_past, 0) && (inplace || gb_rule_contiguous(&c, 0));
}

// Dimension 2 counts heads. Each head has its own slope.
bool gb_check_alibi(const char * func, gb_ct a, int n_head) {
    const struct gb_call c = GB_CALL_1(func, a);
    return gb_rule_given(&c) && gb_rule_no_grad(&c) && gb_rule_at_least(&c, "n_head", n_head, 1) &&
           gb_rule_size(&c, 0, 2, n_head);
}

// ---------------------------------------------------------------------------------------------------- rotary embedding

// The number of rotated elements in a row, which depends on the mode.
static bool rule_rope_dims(const struct gb_call * c, gb_ct a, const struct gb_rope * r) {
    if (r->n_dims < 2 || r->n_dims % 2 != 0 || r->n_dims > a->ne[0]) {
        return GB_BROKEN(c, ROPE_DIMS, .number = { a->ne[0], r->n_dims });
    }
    if ((r->mode & GB_ROPE_GLM) != 0) {
        return a->ne[0] == 2 * (int64_t) r->n_dims ||
               GB_BROKEN(c, ROPE_GLM_SIZE, .a = "a", .number = { r->mode, a->ne[0], r->n_dims });
    }
    // this mode rotates pairs of neighbours, also beyond n_dims
    return (r->mode & (GB_ROPE_NEOX | GGML_ROPE_EXACT)) != 0 || a->ne[0] % 2 == 0 ||
           GB_BROKEN(c, ROPE_ODD_SIZE, .a = "a", .number = { r->mode, a->ne[0] });
}

// Bits 0 to 2, as in early 2024, or GGML_ROPE_EXACT with a mode of 2026.
static bool rule_rope_mode(const struct gb_call * c, int mode) {
    const int rest = mode & ~GGML_ROPE_EXACT;
    if ((mode & GGML_ROPE_EXACT) == 0) {
        return gb_rule_in_range(c, "mode", mode, 0, 7);
    }
    return rest == GGML_ROPE_TYPE_NORMAL || rest == GGML_ROPE_TYPE_NEOX || rest == GGML_ROPE_TYPE_MROPE ||
           rest == GGML_ROPE_TYPE_VISION || rest == GGML_ROPE_TYPE_IMROPE ||
           GB_BROKEN(c, ROPE_EXACT_MODE, .number = { GB_ROPE_NEOX, rest });
}

static bool rule_rope_offset(const struct gb_call * c, gb_ct a, const struct gb_rope * r) {
    const int64_t most = gb_rope_is_vision(r->mode) ? 0 : a->ne[0] - r->n_dims;
    return (r->n_offs >= 0 && r->n_offs % 2 == 0 && r->n_offs <= most) ||
           GB_BROKEN(c, ROPE_OFFSET, .number = { most, r->n_offs });
}

// Sections count pairs. Their sum is at most the number of elements of a row.
static bool rule_rope_sections(const struct gb_call * c, gb_ct a, const struct gb_rope * r) {
    const int32_t * s = r->sections;
    const int64_t sum = (int64_t) s[0] + s[1] + s[2] + s[3];
    if (!gb_rope_has_sections(r->mode)) {
        return true;
    }
    if (s[0] < 0 || s[1] < 0 || s[2] < 0 || s[3] < 0 || s[0] + (int64_t) s[1] + s[2] == 0) {
        return GB_BROKEN(c, ROPE_SECTIONS, .number = { s[0], s[1], s[2], s[3] });
    }
    if (sum > a->ne[0]) {
        return GB_BROKEN(c, ROPE_SECTIONS_SUM, .number = { a->ne[0], sum });
    }
    return !gb_rope_is_vision(r->mode) || a->ne[0] == 2 * (int64_t) r->n_dims ||
           GB_BROKEN(c, ROPE_VISION_SIZE, .a = "a",
               .number = { GGML_ROPE_TYPE_VISION, a->ne[0], 2 * (int64_t) r->n_dims });
}

// c has a factor for each pair. Further factors are not read.
static bool check_rope_factors(const char * func, gb_ct c, const struct gb_rope * rope) {
    const struct gb_call call = GB_CALL_1(func, c);
    return gb_rule_given(&call) && gb_rule_type(&call, 0, GGML_TYPE_F32) && gb_rule_max_dims(&call, 0, 1) &&
           gb_rule_contiguous(&call, 0) &&
           gb_rule_size_in_range(&call, 0, 0, gb_rope_pairs(rope->mode, rope->n_dims), INT64_MAX);
}

// b holds a position as I32 for each slice of dimension 2 of a, or four of them (modes with sections).
bool gb_check_rope(const char * func, gb_ct a, gb_ct b, gb_ct c, const struct gb_rope * rope) {
    const struct gb_call call = GB_CALL_2(func, a, b);
    if (!gb_rule_given(&call) || !gb_rule_type(&call, 1, GGML_TYPE_I32) || !gb_rule_max_dims(&call, 1, 1) ||
        !gb_rule_contiguous(&call, 1) || !rule_rope_mode(&call, rope->mode)) {
        return false;
    }
    const bool four = gb_rope_has_sections(rope->mode);
    const bool positions = four ? b->ne[0] == gb_size_product(4, a->ne[2]) ||
                                      GB_BROKEN(&call, ROPE_POSITIONS, .a = "a", .b = "b", .a_dim = 2, .b_dim = 0,
                                          .number = { b->ne[0], 4 * a->ne[2], 4 })
                                : gb_rule_equal(&call, 0, 2, 1, 0);
    return positions && rule_rope_dims(&call, a, rope) && rule_positive(&call, "freq_base", rope->freq_base) &&
           rule_rope_sections(&call, a, rope) &&
           ((rope->mode & GGML_ROPE_EXACT) == 0 || rule_rope_offset(&call, a, rope)) &&
           (c == NULL || check_rope_factors(func, c, rope));
}

bool gb_check_rope_back(const char * func, gb_ct a, gb_ct b, gb_ct c, const struct gb_rope * rope) {
    const struct gb_call call = GB_CALL_2(func, a, b);
    return gb_check_rope(func, a, b, c, rope) &&
           ((rope->mode & GB_ROPE_GLM) == 0 || GB_BROKEN(&call, ROPE_GLM_BACK, .number = { rope->mode }));
}

// ----------------------------------------------------------------------------------------------------------- attention

// q and k have the same row length. v has as many positions as k (transposed). Every query has a
// position in k.
static bool rule_attention(const struct gb_call * c, gb_ct q, gb_ct k) {
    return gb_rule_same_type(c, 0, 1) && gb_rule_same_type(c, 0, 2) && rule_mul_mat(c, 1, 0) &&
           gb_rule_equal(c, 0, 3, 1, 3) && gb_rule_equal(c, 0, 3, 2, 3) && gb_rule_equal(c, 2, 0, 1, 1) &&
           gb_rule_equal(c, 2, 1, 0, 0) &&
           (k->ne[1] >= q->ne[1] ||
               GB_BROKEN(c, SMALLER, .a = "k", .b = "q", .a_dim = 1, .b_dim = 1, .number = { k->ne[1], q->ne[1] }));
}

// A remainder selects the head of v for a head of q, so v needs a head.
static bool rule_heads(const struct gb_call * c) { return gb_rule_size_in_range(c, 2, 2, 1, INT64_MAX); }

bool gb_check_flash_attn(const char * func, gb_ct q, gb_ct k, gb_ct v) {
    const struct gb_call c = GB_CALL_3(func, q, k, v);
    return gb_rule_given(&c) && rule_attention(&c, q, k) && rule_heads(&c);
}

// Keys and queries have rows of equal length. There are as many keys as values. Blocks of query
// heads share a key head and a value head.
bool gb_check_flash_attn_ext(const char * func, gb_ct q, gb_ct k, gb_ct v, gb_ct mask,
    const struct gb_attention_numbers * numbers) {
    const struct gb_call c = GB_CALL_3(func, q, k, v);
    if (!gb_rule_given(&c) || !rule_float(&c, 0) || !gb_rule_equal(&c, 0, 0, 1, 0) || !gb_rule_equal(&c, 1, 1, 2, 1) ||
        !gb_rule_divides(&c, 1, 0, 2) || !gb_rule_divides(&c, 2, 0, 2) || !gb_rule_equal(&c, 0, 3, 1, 3) ||
        !gb_rule_equal(&c, 0, 3, 2, 3)) {
        return false;
    }
    if (!(numbers->softcap >= 0 && numbers->softcap < INFINITY)) {
        return GB_BROKEN(&c, NOT_FINITE, .name = "logit_softcap", .real = (double) numbers->softcap);
    }
    if (!gb_check_max_bias(func, q, mask, numbers->max_bias)) {
        return false;
    }
    const struct gb_call m = GB_CALL_2(func, q, mask);
    return mask == NULL || (gb_rule_given(&m) && rule_mask(&m, 1, k->ne[1], q->ne[1], q) &&
                               gb_rule_size_in_range(&m, 1, 1, q->ne[1], INT64_MAX));
}

// Gradients are floats, with the shape of q. Every head of k has one of v.
bool gb_check_flash_attn_back(const char * func, gb_ct q, gb_ct k, gb_ct v, gb_ct d) {
    const struct gb_call c = GB_CALL_4(func, q, k, v, d);
    return gb_rule_given(&c) && gb_rule_type(&c, 0, GGML_TYPE_F32) && gb_rule_type(&c, 3, GGML_TYPE_F32) &&
           rule_attention(&c, q, k) && gb_rule_equal(&c, 1, 2, 2, 2) && gb_rule_same_shape(&c, 0, 3);
}

// a [D, N] goes through the matrices b0 [D, M] and c0 [M, D]. The vectors b1 [M] and c1 [D] are
// added. Batches are equal.
bool gb_check_flash_ff(const char * func, gb_ct a, gb_ct b0, gb_ct b1, gb_ct c0, gb_ct c1) {
    const struct gb_call c = GB_CALL_5(func, a, b0, b1, c0, c1);
    if (!gb_rule_given(&c) || !gb_rule_same_type(&c, 0, 1) || !gb_rule_same_type(&c, 0, 3)) {
        return false;
    }
    const bool sizes = gb_rule_equal(&c, 0, 0, 1, 0) && gb_rule_equal(&c, 3, 0, 1, 1) &&
                       gb_rule_equal(&c, 3, 1, 0, 0) && gb_rule_equal(&c, 2, 0, 1, 1) && gb_rule_equal(&c, 4, 0, 0, 0);
    const bool batches = sizes && gb_rule_equal(&c, 0, 2, 1, 2) && gb_rule_equal(&c, 0, 3, 1, 3) &&
                         gb_rule_equal(&c, 0, 2, 3, 2) && gb_rule_equal(&c, 0, 3, 3, 3);
    return batches && gb_rule_max_dims(&c, 2, 1) && gb_rule_max_dims(&c, 4, 1);
}

// ---------------------------------------------------------------------------------------------- user-defined operators

// The caller's function. The rules only check that it is not NULL.
static bool rule_fun(const struct gb_call * c, bool has_fun) {
    return has_fun || GB_BROKEN(c, NO_FUNCTION, .number = { 0 });
}

// The older user functions get rows of floats of equal length.
bool gb_check_map_rows(const char * func, gb_ct a, gb_ct b, int n, bool has_fun) {
    struct gb_call c = GB_CALL_2(func, a, b);
    c.n = n;
    if (!gb_rule_given(&c) || !rule_fun(&c, has_fun)) {
        return false;
    }
    for (int i = 0; i < n; i++) {
        if (!gb_rule_type(&c, i, GGML_TYPE_F32) || !gb_rule_same_shape(&c, 0, i)) {
            return false;
        }
    }
    return gb_rule_size_in_range(&c, 0, 0, 0, INT32_MAX); // the function takes the length as an int
}

static bool rule_tasks(const struct gb_call * c, int n_tasks) {
    return n_tasks > 0 || n_tasks == GGML_N_TASKS_MAX || GB_BROKEN(c, TASKS, .name = "n_tasks", .number = { n_tasks });
}

bool gb_check_map_custom(const char * func, gb_ct a, gb_ct b, gb_ct c, int n, bool has_fun, int n_tasks) {
    struct gb_call call = GB_CALL_3(func, a, b, c);
    call.n = n;
    return gb_rule_given(&call) && rule_fun(&call, has_fun) && rule_tasks(&call, n_tasks);
}

// Checks the sizes of the n_dims dimensions that the caller gives for the result.
bool gb_check_result(const char * func, enum ggml_type type, const int64_t * ne, int n_dims) {
    const struct gb_call c = { func, 0, NULL };
    if (!gb_type_is_valid(type)) {
        return GB_BROKEN(&c, NO_TYPE, .number = { (int64_t) type });
    }
    if (!gb_rule_in_range(&c, "n_dims", n_dims, 1, GGML_MAX_DIMS) || (ne == NULL && !gb_rule_missing(&c, "ne"))) {
        return false;
    }
    for (int d = 0; d < n_dims; d++) {
        if (ne[d] < 0) {
            return GB_BROKEN(&c, NEGATIVE_SIZE, .number = { d, ne[d] });
        }
    }
    return rule_blocks(&c, type, ne[0]);
}

// The only rule about sources is that they exist, so messages do not list them.
bool gb_check_custom(const char * func, struct ggml_tensor * const sources[], int n, bool has_fun, int n_tasks) {
    const struct gb_call c = { func, 0, NULL };
    if (!gb_rule_in_range(&c, "n_src", n, 0, GGML_MAX_SRC) ||
        (n > 0 && sources == NULL && !gb_rule_missing(&c, "sources"))) {
        return false;
    }
    for (int i = 0; i < n; i++) {
        static const char * const roles[GGML_MAX_SRC] = { "sources[0]", "sources[1]", "sources[2]", "sources[3]",
            "sources[4]", "sources[5]", "sources[6]", "sources[7]", "sources[8]", "sources[9]" };
        const struct gb_call source = GB_CALL(func, { roles[i], sources[i] });
        if (!gb_rule_given(&source)) {
            return false;
        }
    }
    return rule_fun(&c, has_fun) && rule_tasks(&c, n_tasks);
}

// -------------------------------------------------------------------------------------------------------------- losses

// Logits and labels have the same shape, and kernels treat each as one array.
static bool rule_loss(const struct gb_call * c) {
    return gb_rule_same_shape(c, 0, 1) && gb_rule_same_type(c, 0, 1) && gb_rule_contiguous(c, 0) &&
           gb_rule_contiguous(c, 1);
}

bool gb_check_cross_entropy_loss(const char * func, gb_ct a, gb_ct b) {
    const struct gb_call c = GB_CALL_2(func, a, b);
    return gb_rule_given(&c) && rule_loss(&c);
}

bool gb_check_loss_eps(const char * func, gb_ct a, float eps) {
    const struct gb_call c = GB_CALL_1(func, a);
    return (eps >= 0 && eps < 1) || GB_BROKEN(&c, NO_FRACTION, .name = "eps", .real = (double) eps);
}

// c is the gradient of the loss, a single number.
bool gb_check_cross_entropy_loss_back(const char * func, gb_ct a, gb_ct b, gb_ct c) {
    const struct gb_call call = GB_CALL_3(func, a, b, c);
    return gb_rule_given(&call) && rule_loss(&call) && gb_rule_max_dims(&call, 2, 0);
}
