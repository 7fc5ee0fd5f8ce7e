"""Programs beside PyTorch, value by value."""

from __future__ import annotations

import math
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest

from ggml_backend.errors import InvalidArgumentError, UnsupportedError
from ggml_backend.program import patterns
from ggml_backend.program.build import NoRule
from ggml_backend.program.network import Node
from ggml_backend.program.rules import RULES

pytest.importorskip("torch", reason="PyTorch is not installed; tools/check_torch.sh installs it")
import torch
from torch import nn
from torch.nn import functional as F

import ggml_backend.torch as gbt
from ggml_backend.torch import verified


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(0)


class Norm(nn.Module):
    """As transformers writes it."""

    def __init__(self, n):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(n))

    def forward(self, x):
        x = x.to(torch.float32)
        return self.weight * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6))


def turned(x):
    half = x.shape[-1] // 2
    return torch.cat((-x[..., half:], x[..., :half]), dim=-1)


class Decoder(nn.Module):
    """A layer in the style of a Llama: two heads of queries share one of keys."""

    def __init__(self):
        super().__init__()
        self.norm, self.behind = Norm(32), Norm(32)
        self.q, self.k, self.v, self.o = (nn.Linear(32, n, bias=False) for n in (32, 16, 16, 32))
        self.gate, self.up, self.down = nn.Linear(32, 64), nn.Linear(32, 64), nn.Linear(64, 32)

    def forward(self, x):
        b, t, _ = x.shape
        angles = torch.arange(t)[:, None] / 100 ** (torch.arange(4) / 4)
        cos, sin = (f(torch.cat((angles, angles), -1)) for f in (torch.cos, torch.sin))
        y = self.norm(x)
        q, k, v = (linear(y).view(b, t, -1, 8).transpose(1, 2) for linear in (self.q, self.k, self.v))
        q, k = (z * cos + turned(z) * sin for z in (q, k))
        k, v = (z[:, :, None].expand(b, 2, 2, t, 8).reshape(b, 4, t, 8) for z in (k, v))
        z = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(b, t, 32)
        x = x + self.o(z)
        y = self.behind(x)
        return x + self.down(F.silu(self.gate(y)) * self.up(y))


class Convolutions(nn.Sequential):
    def __init__(self):
        norm = nn.BatchNorm2d(16)
        norm.running_mean.normal_()
        norm.running_var.uniform_(0.5, 2)
        layers = nn.Conv2d(3, 16, 3, padding=1), norm, nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(16, 8, 1), nn.ReLU6()
        super().__init__(*layers, nn.Flatten(), nn.Linear(8 * 64, 10))


def test_a_decoder_agrees_with_pytorch_and_is_fused():
    model, x = Decoder().eval(), torch.randn(2, 7, 32)
    report = gbt.verify(model, (x,), tolerance=1e-5)
    assert not report.failed
    ops = [value.operator for value in report.values]
    assert ops.count("rms_norm") == 2 and ops.count("ggml_backend.glu") == 1
    assert "expand" not in ops and "cat" not in ops and "rsqrt" not in ops
    program = gbt.compile(model, (x,))
    found = [node.op for node in program.network.nodes]
    assert found.count("roll") == 2 and len(found) < 40
    assert (program(x) - model(x)).abs().max() < 1e-5


def test_fused_steps_are_compared_as_the_program_computes_them():
    report = gbt.verify(Convolutions().eval(), (torch.randn(2, 3, 16, 16),))
    assert not report.failed and report.fusions["convolution"] == 2
    assert [(v.module, v.operator) for v in report.values] == [
        ("2", "relu"), ("3", "max_pool2d"), ("5", "hardtanh"), ("7", "linear"),
    ]  # fmt: skip
    assert "4 values compared" in str(report)
    assert {v.device for v in report.values} == {"CPU"}


def eager(name, **more):
    """A small network of transformers that writes attention out."""
    transformers = pytest.importorskip("transformers")
    common = {"vocab_size": 99, "num_hidden_layers": 2, "num_attention_heads": 4}
    sizes = {"hidden_size": 32, "intermediate_size": 64}
    model, settings = {
        "Gemma2": ("Gemma2ForCausalLM", {**sizes, "num_key_value_heads": 2, "head_dim": 8, "sliding_window": 6}),
        "GPT2": ("GPT2LMHeadModel", {"n_embd": 32}),
        "Bert": ("BertModel", sizes),
        "T5": ("T5EncoderModel", {"d_model": 32, "d_kv": 8, "d_ff": 64}),
    }[name]
    config = getattr(transformers, f"{name}Config")(**common, **settings, **more)
    config._attn_implementation, config.use_cache = "eager", False
    return getattr(transformers, model)(config).eval()


@pytest.mark.parametrize(("tokens", "padded"), [(5, True), (19, False)])
@pytest.mark.parametrize(
    ("name", "op"),
    [
        ("Gemma2", "ggml_backend.attention"),
        ("GPT2", "scaled_dot_product_attention"),
        ("Bert", "scaled_dot_product_attention"),
        ("T5", "scaled_dot_product_attention"),
    ],
)
def test_attention_that_is_written_out_is_fused(name, op, padded, tokens):
    model, ids = eager(name), torch.randint(1, 99, (2, tokens))
    mask = torch.ones_like(ids)
    if padded:
        mask[0, -2:] = 0
    given = {"input_ids": ids, "attention_mask": mask}
    report = gbt.verify(model, kwargs=given, tolerance=2e-5)
    assert not report.failed, report
    program = gbt.compile(model, kwargs=given)
    found = [node.op for node in program.network.nodes]
    assert found.count(op) == 2
    assert "softmax.int" not in found
    assert (program(**given)[0] - model(**given)[0]).abs().max() < 2e-5 * model(**given)[0].abs().max()


def test_attention_that_gives_its_weights_stays():
    model, ids = eager("Bert", output_attentions=True), torch.randint(1, 99, (2, 7))
    program = gbt.compile(model, (ids,))
    assert [node.op for node in program.network.nodes].count("softmax.int") == 2
    for found, expected in zip(program(ids).attentions, model(ids).attentions, strict=True):
        assert (found - expected).abs().max() < 1e-6


def broken(change):
    """The table of patterns in which a mistake was made."""

    def wrong(make):
        def made(graph, node, found):
            nodes = make(graph, node, found)
            return nodes and [*nodes[:-1], change(nodes[-1])]

        return made

    return tuple((pattern, wrong(make)) for pattern, make in patterns._PATTERNS)


def with_arguments(op, /, **changes):
    return lambda node: Node(op, {**node.arguments, **changes}, node.results, node.module) if node.op == op else node


@pytest.mark.parametrize(
    ("op", "changes"),
    [
        ("rms_norm", {"eps": 0.5}),
        ("ggml_backend.glu", {"op": "geglu"}),
        ("ggml_backend.glu", {"op": "reglu"}),
        ("scaled_dot_product_attention", {"scale": 0.9}),
        ("add.Tensor", {"alpha": 1.5}),
    ],
)
def test_a_mistake_in_a_pattern_is_found_where_it_is(monkeypatch, op, changes):
    monkeypatch.setattr(patterns, "_PATTERNS", broken(with_arguments(op, **changes)))
    report = gbt.verify(Decoder().eval(), (torch.randn(2, 7, 32),))
    assert report.failed
    assert report.failed[0].operator == op
    assert f"{len(report.failed)} values differ by more than 0.0001" in str(report)


def test_a_mistake_in_written_out_attention_is_found(monkeypatch):
    monkeypatch.setattr(patterns, "_PATTERNS", broken(with_arguments("ggml_backend.attention", softcap=0.01)))
    report = gbt.verify(eager("Gemma2"), kwargs={"input_ids": torch.randint(1, 99, (2, 19))})
    assert report.failed[0].operator == "ggml_backend.attention"
    assert report.failed[0].module == "model.layers.0.self_attn"


class WrittenOut(nn.Module):
    """Fusions find two norms, GELU, a gated unit, a rotation, and attention with a cap and without one."""

    def forward(self, x):
        x = x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6)
        x = x * 0.5 * (1 + torch.erf(x / math.sqrt(2)))
        centred = x - x.mean(-1, keepdim=True)
        x = centred / torch.sqrt(centred.pow(2).mean(-1, keepdim=True) + 1e-6)
        y = x + turned(x) * x.cos()
        k = x[:, :2, None].expand(2, 2, 2, 5, 8).reshape(2, 4, 5, 8)
        y = torch.softmax(y @ k.transpose(2, 3) * 0.3, -1) @ k
        k = y[:, :2, None].expand(2, 2, 2, 5, 8).reshape(2, 4, 5, 8)
        y = torch.softmax(torch.tanh(y @ k.transpose(2, 3) / 2.0) * 2.0 + x[:, :, :, :5], -1) @ k
        a, b = torch.cat([x, y], -1).split(8, -1)
        return a * F.silu(b), F.gelu(x, approximate="tanh") * y


@pytest.mark.parametrize(
    "op",
    [
        "rms_norm", "layer_norm", "gelu", "roll", "ggml_backend.glu", "scaled_dot_product_attention",
        "ggml_backend.attention",
    ],
)  # fmt: skip
def test_pytorch_computes_a_fused_node_that_a_rule_refuses(monkeypatch, op):
    def refuses(build, **arguments):
        raise NoRule("not today")

    monkeypatch.setitem(RULES, op, replace(RULES[op], function=refuses))
    model, x = WrittenOut().eval(), torch.randn(2, 4, 5, 8)
    program = gbt.compile(model, (x,))
    assert {(one.operator, one.reason) for one in program.missing} == {(op, "not today")}
    for found, expected in zip(program(x), model(x), strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)
    assert not gbt.verify(model, (x,), tolerance=1e-5).failed
    with pytest.raises(UnsupportedError, match=rf"{op} \(.*not today"):
        gbt.compile(model, (x,), strict=True)


def test_quantized_weights_differ_by_their_format():
    report = gbt.verify(Decoder().eval(), (torch.randn(2, 7, 32),), weights="q8_0")
    assert report.failed and max(v.difference for v in report.values) < 0.1
    assert not gbt.verify(Decoder().eval(), (torch.randn(2, 7, 32),), weights="q8_0", tolerance=0.1).failed


def test_operators_without_a_rule_are_compared_too():
    class Model(nn.Module):
        def forward(self, x):
            return torch.special.erfinv(x) * 2

    report = gbt.verify(Model().eval(), (torch.rand(3, 5) / 2,))
    assert [v.operator for v in report.values] == ["erfinv", "mul.Tensor"] and not report.failed


def test_states_begin_with_the_values_of_the_model():
    class Counter(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("total", torch.full((3,), 2.0))

        def forward(self, x):
            self.total.add_(x)
            return self.total * 2

    report = gbt.verify(Counter().eval(), (torch.ones(3),))
    assert report.values and not report.failed


def test_devices_that_record_splits():
    model, x = Convolutions().eval(), torch.randn(2, 3, 16, 16)
    report = gbt.verify(model, (x,), devices=["SIM", "CPU"])
    assert report.values and not report.failed


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_nan_and_infinity_must_agree(value):
    class Model(nn.Module):
        def forward(self, x):
            return x * 2 + 1

    assert not gbt.verify(Model().eval(), (torch.tensor([1.0, value]),)).failed
    ours, theirs = np.float32([1, 2]), np.float32([1, value])
    assert verified._difference(ours, theirs) == math.inf and verified._difference(theirs, theirs) == 0


@pytest.mark.parametrize("tolerance", [np.float32(1e-4), np.float64(1e-4), Fraction(1, 10000), 1, np.int64(1)])
def test_tolerances_are_real_numbers(tolerance):
    report = gbt.verify(nn.Linear(2, 2).eval(), (torch.ones(1, 2),), tolerance=tolerance)
    assert not report.failed and report.tolerance == pytest.approx(float(tolerance))
    report.values[0] = report.values[0]._replace(difference=1.5)
    assert f"1 value differs by more than {float(tolerance):g}" in str(report)


@pytest.mark.parametrize("tolerance", [-1, math.nan, "1e-4", True, np.True_, None, 1j, 10**400, np.float32(-1)])
def test_bad_tolerances(tolerance):
    with pytest.raises(InvalidArgumentError, match="tolerance must be a number of at least 0"):
        gbt.verify(nn.Linear(2, 2).eval(), (torch.ones(1, 2),), tolerance=tolerance)


def test_models_that_cannot_be_exported_raise_as_in_compile():
    class Model(nn.Module):
        def forward(self, x):
            return x * 2 if x.sum() > 0 else x

    with pytest.raises(UnsupportedError, match="verify: "):
        gbt.verify(Model().eval(), (torch.ones(2),))
    with pytest.raises(InvalidArgumentError, match="verify: the model is in training mode"):
        gbt.verify(nn.Linear(2, 2), (torch.ones(1, 2),))


def shared_heads(q, k, v):
    k, v = (z[:, :, None].expand(2, 2, 3, 5, 8).reshape(2, 6, 5, 8) for z in (k, v))
    return F.scaled_dot_product_attention(q, k, v)


@pytest.mark.parametrize(
    ("function", "shapes"),
    [
        (lambda x, w: F.layer_norm(x.bfloat16(), (8,)) * w, [(3, 8), (8,)]),
        (lambda x: x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + torch.full((1,), 1e-6).double()), [(3, 8)]),
        (shared_heads, [(2, 1, 5, 8), (2, 2, 5, 8), (2, 2, 5, 8)]),
        (shared_heads, [(1, 6, 5, 8), (2, 2, 5, 8), (2, 2, 5, 8)]),
        (shared_heads, [(6, 5, 8), (2, 2, 5, 8), (2, 2, 5, 8)]),
    ],
    ids=["bfloat16", "float64", "one head", "one text", "no texts"],
)
def test_what_pytorch_computes_is_not_fused(function, shapes):
    class Model(nn.Module):
        def forward(self, *args):
            return function(*args)

    given = tuple(torch.randn(shape) for shape in shapes)
    model = Model().eval()
    found = gbt.compile(model, given)(*given)
    assert found.dtype == model(*given).dtype
    torch.testing.assert_close(found, model(*given), rtol=1e-6 if found.dtype == torch.float64 else 1e-5, atol=1e-6)
