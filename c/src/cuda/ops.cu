// ops.cu - the table of operators, collected from the families.
//
// Of the library's internal files the backend includes only tables (*.def). They depend on ggml.h
// alone, so a module can be built apart from the library.
#include "cuda/op.h"

#define GB_CUDA_FAMILY(name) extern const gb_cuda_family gb_cuda_family_##name;
#include "cuda/ops/families.def"
#undef GB_CUDA_FAMILY

namespace {

struct table {
    const gb_cuda_op * ops[GGML_OP_COUNT] = {};

    table() {
        const gb_cuda_family * const families[] = {
#define GB_CUDA_FAMILY(name) &gb_cuda_family_##name,
#include "cuda/ops/families.def"
#undef GB_CUDA_FAMILY
        };
        for (const gb_cuda_family * family : families) {
            for (int i = 0; i < family->n_ops; i++) {
                ops[family->ops[i].op] = &family->ops[i];
            }
        }
    }
};

} // namespace

const gb_cuda_op * gb_cuda_op_get(enum ggml_op op) {
    static const table all;
    return (int) op >= 0 && op < GGML_OP_COUNT ? all.ops[op] : nullptr;
}

bool gb_cuda_is_view(enum ggml_op op) {
    enum work { // as in ops.def
        VIEW,
        EACH,
        PRODUCT,
        OUTER,
        EXPERTS,
        STACK,
        ATTEND,
        RECUR,
        PICK,
        TARGET,
        SCATTER,
        WINDOW,
        CUSTOM
    };
    static const work works[] = {
#define GB_OP(id, stem, sources, work, ...) work,
#include "tensor/ops.def"
    };
    static_assert(sizeof(works) == GGML_OP_COUNT * sizeof(*works), "ops.def has the operators of ggml.h");
    return (unsigned) op < GGML_OP_COUNT && works[op] == VIEW;
}

const char * gb_cuda_unsupported_reason(const gb_cuda_device & d, const ggml_tensor * op) {
    if (gb_cuda_is_view(op->op)) {
        return nullptr;
    }
    const gb_cuda_op * found = gb_cuda_op_get(op->op);
    return found == nullptr ? "the operator is not implemented" : found->supports(d, op);
}

const char * gb_cuda_candidate(const gb_cuda_backend & b, const ggml_tensor * dst, int i, const char ** why) {
    const gb_cuda_op * found = gb_cuda_op_get(dst->op);
    const bool has =
        found != nullptr && found->candidate != nullptr && gb_cuda_unsupported_reason(*b.device, dst) == nullptr;
    return has ? found->candidate(b, dst, i, why) : nullptr;
}
