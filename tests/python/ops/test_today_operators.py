"""Each operator of today's models has all its parts: kernels, a device in Python, a gradient, a documented function.

Other tests compare the values: ``test_ops_*.py`` with NumPy, and ``check_device`` on each device.
"""

from __future__ import annotations

import re

import pytest

import ggml_backend as gb
from ggml_backend import ops
from ggml_backend.testing._cases import Sizes
from ggml_backend.testing._variants import all_cases
from source_tree import in_tree

# By group: operators as in Node.op. Groups 1 and 2 have kernels for CUDA, too.
GROUPS = {
    1: ["set_rows", "mul_mat_experts", "add_id", "rope", "rope_back", "soft_max", "flash_attn_ext"],
    2: [
        *("glu", "l2_norm", "top_k", "scale", "scale_bias", "floor", "ceil", "round", "trunc", "expm1", "softplus"),
        *("xielu", "cumsum", "tri", "solve_tri", "fill", "diag", "arange", "timestep_embedding", "ssm_conv"),
        *("ssm_scan", "gated_delta_net", "rwkv_wkv6", "rwkv_wkv7", "gated_linear_attn"),
    ],
    3: [
        *("upscale", "interpolate", "pad", "pad_ext", "pad_reflect_1d", "roll", "conv_transpose_1d"),
        *("conv_transpose_2d", "col2im_1d", "im2col", "im2col_3d"),
    ],
}
ALL = [op for group in GROUPS.values() for op in group]

# Those for which ggml has a gradient (ops-2026.md, section 11).
GRADIENTS = ["soft_max", "rope", "im2col", "pool_2d", "glu", "cross_entropy_loss", "mean", "repeat"]
UNARY_GRADIENTS = ["expm1", "softplus"]

# Names that users of NumPy and PyTorch expect.
FUNCTIONS = [
    *("softmax", "cumsum", "roll", "pad", "interpolate", "top_k", "glu", "swiglu", "l2_norm", "tril", "triu", "diag"),
    *("arange", "rope", "set_rows", "mul_mat_experts", "flash_attn_ext", "solve_tri", "ssm_scan", "gated_delta_net"),
    *("floor", "ceil", "round", "trunc", "expm1", "fill", "timestep_embedding", "ssm_conv", "rwkv_wkv6", "rwkv_wkv7"),
    *("gated_linear_attn", "conv_transpose_1d", "conv_transpose_2d", "col2im_1d", "im2col", "im2col_3d", "add_id"),
]


@pytest.fixture(scope="module")
def nodes():
    """A node of each operator, from the cases of ``check_device``."""
    context = gb.Context()
    found = {}
    for case in all_cases(Sizes("one")):
        given = [i.typed("float32", "float32") for i in case.inputs]
        try:
            result = case.call(*(context.tensor(i.shape, i.dtype) for i in given))
        except gb.errors.InvalidArgumentError:  # the case is of another dtype
            continue
        for node in context.graph(*(result if isinstance(result, tuple) else (result,))).nodes:
            found.setdefault(node.op.lower(), []).append(node)
    return found


@pytest.mark.parametrize("op", ALL)
def test_the_cpu_and_arrays_compute_a_case_of_check_device(nodes, op):
    for backend in (gb.Backend("CPU"), gb.Backend("ARRAY")):
        assert any(backend.supports(node) for node in nodes[op]), backend.name


def kernels_of_cuda():
    """Rows of the tables of operators and functions in the sources."""
    rows = "".join(path.read_text() for path in sorted(in_tree("c/src/cuda/ops").glob("*.cu")))
    return {name.lower() for name in re.findall(r"\{\s*GGML_OP_(\w+),", rows)}


def test_groups_1_and_2_have_kernels_for_cuda():
    unary = {stem for stem, _ in functions_of_unary()}
    missing = set(GROUPS[1] + GROUPS[2]) - unary - kernels_of_cuda()
    assert missing == set()
    assert "unary" in kernels_of_cuda()


def table():
    return in_tree("c/src/tensor/ops.def").read_text()


def functions_of_unary():
    """Stem and derivative of each function."""
    return re.findall(r"^GB_UNARY_OP\(\w+,\s*(\w+),\s*\w+,\s*\w+,\s*(\w+)\)", table(), re.M)


def test_operators_with_a_gradient_in_ggml_have_one():
    operators = dict(re.findall(r"^GB_OP\(\w+,\s*(\w+),(?:[^,]+,){5}\s*(\w+),", table(), re.M))
    assert len(operators) > 100
    assert [op for op in GRADIENTS if operators[op] == "none"] == []
    unary = dict(functions_of_unary())
    assert [op for op in UNARY_GRADIENTS if unary[op] == "none"] == []


@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions_have_the_expected_names_and_a_description(name):
    function = getattr(ops, name)
    assert function.__doc__
    assert name in ops.OPERATIONS or name == "softmax"
