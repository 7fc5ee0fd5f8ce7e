"""Programs: models of PyTorch on our devices, as users call them."""

from __future__ import annotations

import os
import threading

import numpy as np
import pytest

import ggml_backend as gb
from ggml_backend.errors import InvalidArgumentError, UnsupportedError

pytest.importorskip("torch", reason="PyTorch is not installed; tools/check_torch.sh installs it")
import torch
from torch import nn
from torch.nn import functional as F

import ggml_backend.torch as gbt


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(0)


class Encoder(nn.Module):
    """Embeddings, a layer, and a head with the matrix of the embeddings."""

    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(50, 32)
        self.layer = nn.TransformerEncoderLayer(32, 4, 64, batch_first=True)
        self.head = nn.Linear(32, 50, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, ids, mask=None):
        x = self.layer(self.embed(ids))
        if mask is not None:
            x = x * mask[:, :, None]
        return {"logits": self.head(x), "first": (x[:, 0], None)}


class Plain(nn.Module):
    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, *xs):
        return self.function(*xs)


def near(ours, theirs, bound=1e-5):
    ours, theirs = np.asarray(ours), theirs.detach().numpy()
    assert ours.shape == theirs.shape
    assert np.abs(ours - theirs).max() <= bound * np.abs(theirs).max()


@pytest.fixture
def encoder():
    return Encoder().eval()


@pytest.fixture
def ids():
    return torch.randint(0, 50, (2, 7))


def test_results_have_the_structure_of_the_model(encoder, ids):
    program = gbt.compile(encoder, (ids,), strict=True)
    with torch.no_grad():
        theirs = encoder(ids)
    ours = program(ids)
    assert type(ours["logits"]) is torch.Tensor and ours["first"][1] is None
    near(ours["logits"], theirs["logits"])
    near(ours["first"][0], theirs["first"][0])
    arrays = program(ids=ids.numpy().astype(np.int32))
    assert type(arrays["logits"]) is np.ndarray
    np.testing.assert_array_equal(arrays["logits"], ours["logits"].numpy())


def test_results_stay_when_the_program_runs_again(encoder, ids):
    program = gbt.compile(encoder, (ids,))
    first = program(ids)["logits"]
    kept = first.clone()
    program((ids + 1) % 50)
    assert torch.equal(first, kept)


def test_weights_are_shared_and_tied_weights_are_one_tensor(encoder, ids):
    program = gbt.compile(encoder, (ids,), strict=True)
    found = program.explain()
    assert found.copied == 0
    assert found.shared == sum(p.numel() * 4 for p in encoder.parameters())
    with torch.no_grad():
        encoder.embed.weight.mul_(2)
        near(program(ids)["logits"], encoder(ids)["logits"])


def test_patterns_choose_the_formats_of_weights(encoder, ids):
    formats = {"layer.linear1.weight": None, "layer.*": "q4_0", "*": "q8_0"}
    program = gbt.compile(encoder, (ids,), weights=formats)
    packed = program.explain().packed
    assert packed["embed.weight"] == "q8_0" and packed["layer.linear2.weight"] == "q4_0"
    assert "layer.linear1.weight" not in packed
    whole = gbt.compile(encoder, (ids,), weights="q8_0", precision="f32")
    assert whole.explain().quantized < 0.3 * whole.explain().shared + 0.3 * 4 * sum(
        p.numel() for p in encoder.parameters()
    )
    with torch.no_grad():
        near(whole(ids)["logits"], encoder(ids)["logits"], 0.03)


def test_a_quantized_program_multiplies_the_values_of_the_format():
    layer = nn.Linear(64, 8).eval()
    x = torch.randn(3, 64)
    program = gbt.compile(layer, (x,), weights="q4_0", precision="f32", strict=True)
    with torch.no_grad():
        layer.weight.copy_(gbt.pack(layer.weight, "q4_0").dequantize())
        near(program(x), layer(x))


def test_packed_modules_can_be_compiled():
    model = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 8)).eval()
    gbt.pack_(model, {"*.weight": "q8_0"}, precision="f32")
    x = torch.randn(3, 64)
    program = gbt.compile(model, (x,), strict=True)
    assert "0/linear" in {t.name for t in program.graph.nodes}
    with torch.no_grad():
        near(program(x), model(x))


def test_dynamic_axes_take_other_sizes(encoder, ids):
    program = gbt.compile(encoder, (ids,), dynamic={"ids": {0: "batch", 1: "tokens"}}, strict=True)
    before = program.explain().shared
    for shape in [(1, 3), (4, 9), (1, 3), (2, 7)]:
        x = torch.randint(0, 50, shape)
        with torch.no_grad():
            near(program(x)["logits"], encoder(x)["logits"])
        assert program.inputs == {"ids": (shape, "int64")}
    assert program.explain().shared == before


@pytest.mark.parametrize("weights", [None, "q8_0"])
def test_a_saved_program_needs_no_pytorch(encoder, ids, weights, tmp_path, script):
    program = gbt.compile(encoder, (ids,), dynamic={"ids": {0: "batch", 1: "tokens"}}, weights=weights)
    program.save(tmp_path / "p.gguf")
    for shape in ((2, 7), (1, 1), (3, 5)):
        x = torch.randint(0, 50, shape).numpy()
        np.savez(tmp_path / f"{shape[0]}.npz", ids=x, logits=program(x)["logits"])
    script(f"""
import sys
sys.modules["torch"] = None
import numpy as np, ggml_backend as gb
program = gb.load_program({str(tmp_path / "p.gguf")!r})
for n in (1, 2, 3):
    with np.load({str(tmp_path)!r} + f"/{{n}}.npz") as file:
        found = program(file["ids"])
        assert found["first"][1] is None and np.array_equal(found["logits"], file["logits"])
""")


def test_programs_that_a_file_cannot_hold_say_why(tmp_path):
    x = torch.randn(3, 5)
    with pytest.raises(UnsupportedError, match="save: operators without a rule: erfinv"):
        gbt.compile(Plain(erfinv_between).eval(), (x,)).save(tmp_path / "p.gguf")
    program = gbt.compile(Branches().eval(), (torch.ones(2, 64),), dynamic={"x": {0: "n"}})
    assert program(torch.ones(1, 64)).shape == program(torch.ones(1, 64)).shape
    program.save(tmp_path / "p.gguf")  # both branches
    loaded = gb.load_program(tmp_path / "p.gguf")
    for n in (1, 2, 5):
        near(loaded(np.ones((n, 64), np.float32)), program(torch.ones(n, 64)))


class Branches(nn.Module):
    """Reads more matrices if there are more rows. Their transposes have other names then."""

    def __init__(self):
        super().__init__()
        self.first, self.last = (nn.Parameter(torch.randn(64, 64)) for _ in range(2))
        self.middle = nn.Linear(64, 64)

    def forward(self, x):
        return (x if x.shape[0] == 1 else self.middle(x @ self.first.T)) @ self.last.T


def test_all_sizes_quantize_the_weights_that_they_read():
    program = gbt.compile(Branches().eval(), (torch.ones(1, 64),), weights="q8_0", dynamic={"x": {0: "n"}})
    assert program(torch.ones(3, 64)).shape == (3, 64)
    found = program.explain()
    assert {name.partition(" ")[0] for name in found.packed} == {"first", "middle.weight", "last"}
    assert found.shared == 64 * 4  # the bias


def test_axes_of_one_name_have_one_size(encoder, ids):
    mask = torch.ones(2, 7)
    program = gbt.compile(encoder, (ids, mask), dynamic={"ids": {1: "tokens"}, "mask": {1: "tokens"}}, strict=True)
    assert program(ids[:, :4], mask[:, :4])["logits"].shape == (2, 4, 50)
    with pytest.raises(InvalidArgumentError, match=r"tokens is 5 in ids, and 4 in mask \(axis 1\)"):
        program(ids[:, :5], mask[:, :4])
    with pytest.raises(InvalidArgumentError, match="axis 0 of ids must be 2, not 1"):
        program(ids[:1], mask[:1])


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda p, x: p(x[:, :5]), InvalidArgumentError, "axis 1 of ids must be 7, not 5; compile with dynamic="),
        (lambda p, x: p(x[0]), InvalidArgumentError, "ids must have 2 axes, not 1"),
        (lambda p, x: p(x.float()), InvalidArgumentError, "ids must be torch.int64, not torch.float32"),
        (lambda p, x: p(x, mask=torch.ones(2, 7)), InvalidArgumentError, "Not among these: mask"),
        (lambda p, x: p(), TypeError, "missing a required argument: 'ids'"),
        (lambda p, x: p(x, 3), InvalidArgumentError, "mask"),
        (lambda p, x: p([1, 2]), InvalidArgumentError, "Not among these: ids.0, ids.1"),
        (lambda p, x: p(x * 2**30), InvalidArgumentError, "integers of a program are at most 16777216"),
        (lambda p, x: p(x.numpy().astype(np.float64)), InvalidArgumentError, "ids must be torch.int64"),
    ],
)
def test_wrong_inputs_are_named(encoder, ids, call, error, message):
    program = gbt.compile(encoder, (ids,))
    with pytest.raises(error, match=message.replace("(", r"\(")):
        call(program, ids + 1)
    assert program(ids)["logits"].shape == (2, 7, 50)


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"weights": "q9"}, TypeError, "there is no dtype 'q9'"),
        ({"weights": {"*.wieght": "q8_0"}}, InvalidArgumentError, "no weight that can be quantized fits '*.wieght'"),
        ({"weights": {"*": "q8_0", "embed.*": "q4_0"}}, InvalidArgumentError, "'embed.*' decides nothing"),
        ({"dynamic": {"idz": {0: "n"}}}, InvalidArgumentError, "no input is called 'idz'"),
        ({"dynamic": {"ids": {5: "n"}}}, InvalidArgumentError, "ids has no axis 5"),
        ({"dynamic": 3}, TypeError, "dynamic must be a dict"),
        ({"dynamic": {"ids": 3}}, TypeError, "the axes of ids must be a dict or a list, not int"),
        ({"weights": {3: "q8_0"}}, TypeError, "weights: each pattern must be a str, not int"),
        ({"precision": "f64"}, InvalidArgumentError, "compile: precision must be one of"),
        ({"kwargs": 3}, TypeError, "kwargs must be a dict of example inputs by name, not int"),
        ({"devices": []}, InvalidArgumentError, "devices is empty"),
        ({"strict": "yes"}, TypeError, "strict"),
    ],
)
def test_wrong_options_are_named(encoder, ids, options, error, message):
    import re

    with pytest.raises(error, match=re.escape(message)):
        gbt.compile(encoder, (ids,), **options)


def test_models_that_cannot_be_compiled_say_why(ids):
    with pytest.raises(TypeError, match="model must be a Module"):
        gbt.compile(3, (ids,))
    with pytest.raises(TypeError, match="example inputs are a tuple"):
        gbt.compile(nn.ReLU().eval(), ids)
    with pytest.raises(InvalidArgumentError, match=r"model\.eval\(\)"):
        gbt.compile(nn.Sequential(nn.Dropout()), (torch.ones(2),))
    with pytest.raises(InvalidArgumentError, match="give example inputs"):
        gbt.compile(Plain(lambda: torch.ones(2)).eval(), ())
    with pytest.raises(InvalidArgumentError, match=r"model\.float\(\)"):
        gbt.compile(nn.Linear(2, 2).half().eval(), (torch.ones(1, 2),))
    with pytest.raises(UnsupportedError, match="PyTorch cannot export this model"):
        gbt.compile(Plain(lambda x: x if x.sum() > 0 else -x).eval(), (torch.ones(2),))


class Counter(nn.Module):
    """It counts its calls, and keeps the last rows of its input."""

    def __init__(self):
        super().__init__()
        self.register_buffer("n", torch.zeros((), dtype=torch.long))
        self.register_buffer("rows", torch.arange(8.0).reshape(4, 2), persistent=False)

    def forward(self, x):
        before = self.rows.clone()
        self.rows.index_copy_(0, self.n % 4 + torch.arange(1), x)
        self.n.add_(1)
        return x + self.n, self.rows, before


def test_buffers_that_a_model_changes_are_states():
    model, theirs = Counter().eval(), Counter().eval()
    program = gbt.compile(model, (torch.ones(1, 2),))
    for turn in range(2):
        for i in range(6):
            x = torch.full((1, 2), 10.0 * i)
            for ours, other in zip(program(x), theirs(x), strict=True):
                torch.testing.assert_close(ours, other, rtol=0, atol=0)
        assert program.states["n"] == 6 and {*program.states} == {"n", "rows"}
        assert [*program.inputs] == ["x"] and turn in (0, 1)
        program.reset()
        theirs = Counter().eval()
    assert model.n == 0 and torch.equal(model.rows, Counter().rows)  # the buffers of the model stay


def erfinv_between(x):
    y = torch.erfinv(torch.tanh(x)) * 2
    return torch.special.i0(y), torch.sort(x, dim=1).indices


def test_operators_without_a_rule_run_in_pytorch():
    x = torch.randn(3, 5)
    model = Plain(erfinv_between).eval()
    program = gbt.compile(model, (x,))
    assert {m.operator for m in program.missing} >= {"erfinv", "i0"}
    for ours, theirs in zip(program(x), model(x), strict=True):
        near(ours, theirs)


@pytest.mark.parametrize(
    ("function", "x"),
    [
        (lambda x: (x + x).float(), torch.arange(120, 140, dtype=torch.uint8)),
        (lambda x: (-x).float(), torch.arange(5, dtype=torch.uint8)),
        (lambda x: (x * x).float(), torch.arange(30, dtype=torch.int8)),
        (lambda x: (x.bfloat16() * 2).float(), torch.randn(3, 4)),
        (lambda x: x + 1, torch.randn(3, 4).bfloat16()),
        (lambda x: x.half() + 1, torch.randn(3, 4)),
    ],
)
def test_dtypes_without_a_rule_keep_their_arithmetic(function, x):
    program = gbt.compile(Plain(function).eval(), (x,))
    assert program.missing
    ours, theirs = program(x), function(x)
    assert ours.dtype == theirs.dtype and torch.equal(ours, theirs)


@pytest.mark.parametrize("function", [lambda x: x * x, lambda x: x + 2**30, lambda x: x.cumsum(0) * 4096])
def test_integers_that_floats_cannot_hold_are_an_error(function):
    x = torch.arange(5000, 5010)
    program = gbt.compile(Plain(function).eval(), (x,))
    with pytest.raises(InvalidArgumentError, match="integers of a program are at most 16777216"):
        program(x)


def test_networks_that_pytorch_cannot_complete_are_refused():
    x = torch.randn(3, 4)
    with pytest.raises(UnsupportedError, match="as_strided reads the memory"):
        gbt.compile(Plain(lambda x: x.T.as_strided((2, 2), (1, 2))).eval(), (x,))
    with pytest.raises(UnsupportedError, match="complex64, which programs do not have"):
        gbt.compile(Plain(lambda x: torch.fft.rfft(x).abs()).eval(), (x,))
    with pytest.raises(
        UnsupportedError, match=r"cat has no rule \(.*float64\).* it has 12 sources, and the limit is 10"
    ):
        gbt.compile(Plain(lambda x: torch.cat([(x + i).double() for i in range(12)])).eval(), (x,))


def test_a_new_size_is_refused_in_training_mode():
    model = nn.Sequential(nn.Linear(4, 4), nn.Dropout()).eval()
    program = gbt.compile(model, (torch.ones(2, 4),), dynamic={"input": {0: "n"}})
    model.train()
    with pytest.raises(InvalidArgumentError, match=r"program: the model is in training mode; call model\.eval\(\)"):
        program(torch.ones(1, 4))


def test_strict_refuses_with_a_list_of_all_operators_without_a_rule():
    with pytest.raises(UnsupportedError, match=r"operators without a rule: erfinv \(1 times.*; i0 "):
        gbt.compile(Plain(erfinv_between).eval(), (torch.randn(3, 5),), strict=True)


def test_explain_counts_operators_without_a_rule_and_lists_formats(encoder, ids):
    text = str(gbt.explain(encoder, (ids,), weights={"layer.*": "q8_0"}))
    assert "0 of them have no rule" in text and "as q8_0" in text
    text = str(gbt.explain(Plain(erfinv_between).eval(), (torch.randn(3, 5),)))
    assert "erfinv (1 times, first in the model): there is no rule" in text


def test_nodes_have_the_names_of_modules(encoder, ids):
    program = gbt.compile(encoder, (ids,))
    names = {t.name for t in program.graph.nodes}
    assert "layer.linear1/linear" in names
    assert not any(name.startswith("node_") for name in names)
    assert program.plan.memory


def test_a_program_runs_on_several_devices(encoder, ids):
    sim = gb.Backend("SIM", mem="64M", ops=["mul_mat", "add"])
    program = gbt.compile(encoder, (ids,), devices=[sim, "CPU"], strict=True)
    with torch.no_grad():
        near(program(ids)["logits"], encoder(ids)["logits"])
    assert {split.backend for split in program.plan.splits} == {"SIM0", "CPU"}


def test_several_threads_call_a_program(encoder):
    program = gbt.compile(encoder, (torch.zeros(2, 7, dtype=torch.int64),))
    inputs = [torch.randint(0, 50, (2, 7)) for _ in range(4)]
    with torch.no_grad():
        expected = [encoder(x)["logits"] for x in inputs]
    failed = []

    def work(x, y):
        for _ in range(20):
            if not np.allclose(program(x)["logits"], y, atol=1e-4):
                failed.append(1)

    threads = [threading.Thread(target=work, args=pair) for pair in zip(inputs, expected, strict=True)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not failed


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_child_after_a_fork_calls_a_program(encoder, ids):
    program = gbt.compile(encoder, (ids,))
    expected = program(ids.numpy())["logits"]
    child = os.fork()
    if child == 0:
        try:
            os._exit(0 if np.array_equal(program(ids.numpy())["logits"], expected) else 1)
        except BaseException:
            os._exit(2)
    assert os.waitpid(child, 0)[1] == 0


@pytest.mark.parametrize(
    ("function", "shapes"),
    [
        (lambda x: x, [(2, 3)]),
        (lambda x: (x.T, x + 1), [(2, 3)]),
        (lambda x: torch.ones(3), [(2, 3)]),
        (lambda x: x.sum(), [(2, 3)]),
        (lambda x: x > 0, [(2, 3)]),
        (lambda x: (x > 0).sum(1), [(2, 3)]),
        (lambda x: x.reshape(2, 2, 2, 2, 2, 2).permute(5, 0, 3, 1, 4, 2) + 1, [(64,)]),
        (lambda x: (x.permute(0, 2, 1, 3, 4) * 0.3).softmax(-1), [(2, 3, 2, 3, 4)]),
        (lambda x, y: x.unfold(1, 2, 2).flatten(1) @ y, [(3, 8), (8, 2)]),
        (lambda x: F.scaled_dot_product_attention(x, x, x, is_causal=True), [(2, 4, 5, 8)]),
        (lambda x: torch.einsum("bhnd,bhmd->bhnm", x, x), [(2, 4, 5, 8)]),
        (lambda x: F.pad(x, (1, 2), mode="constant", value=-3.0), [(2, 4)]),
        (lambda x: x[:, torch.tensor([2, 0])], [(2, 4)]),
        (lambda x: torch.where(x > 0, x, x.new_zeros(())), [(2, 4)]),
        (lambda x: F.glu(x), [(2, 4)]),
        (lambda x: x.clamp(1, -1), [(2, 4)]),
        (lambda x: ((x > 0) + (x > -1)).sum(1), [(3, 8)]),
        (lambda x: torch.fill(x > 0, 2.5).float(), [(2, 4)]),
        (lambda x: torch.fill(x.long(), 2.5).float(), [(2, 4)]),
        (lambda x: (x > 0).masked_fill(x > 1, 3).float(), [(3, 8)]),
        (lambda x: F.avg_pool2d(x, (4, 3), padding=(0, 1), ceil_mode=True, count_include_pad=False), [(1, 3, 2, 8)]),
    ],
)
def test_small_functions(function, shapes):
    xs = [torch.randn(*shape) for shape in shapes]
    model = Plain(function).eval()
    program = gbt.compile(model, tuple(xs), strict=True)
    ours, theirs = program(*xs), model(*xs)
    for a, b in zip(*((v if isinstance(v, tuple) else (v,)) for v in (ours, theirs)), strict=True):
        assert a.dtype == b.dtype
        np.testing.assert_allclose(a.numpy(), b.numpy(), atol=1e-5)


@pytest.mark.parametrize(
    ("amounts", "folded"), [((1, 1, 2, 2), True), ((1, 1), True), ((0, 1, 0, 1), False), ((1, 1, 1, 1, 1, 1), False)]
)
def test_zeros_around_data_are_padding_of_the_convolution(amounts, folded):
    conv = nn.Conv2d(5 if len(amounts) == 6 else 3, 4, 3, padding=1).eval()
    x = torch.randn(2, 3, 7, 7)
    model = Plain(lambda x: conv(F.pad(x, amounts))).eval()
    model.conv = conv
    program = gbt.compile(model, (x,), strict=True)
    with torch.no_grad():
        near(program(x), model(x))
    assert [node.op for node in program.network.nodes] == (["conv2d"] if folded else ["constant_pad_nd", "conv2d"])


def test_batch_norms_are_folded_into_convolutions():
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 8, 1, groups=8, bias=False),
                          nn.BatchNorm2d(8)).eval()  # fmt: skip
    for norm in (model[1], model[4]):
        nn.init.normal_(norm.running_mean)
        nn.init.uniform_(norm.running_var, 0.5, 2)
        nn.init.normal_(norm.weight)
    x = torch.randn(2, 3, 9, 9)
    program = gbt.compile(model, (x,), strict=True, dynamic={"input": {0: "n"}})
    assert [node.op for node in program.network.nodes] == ["conv2d", "relu", "conv2d"]
    copied = program.explain().copied + program.explain().shared
    with torch.no_grad():
        near(program(x), model(x))
        near(program(x[:1]), model(x[:1]))
    assert program.explain().copied + program.explain().shared == copied
