"""``torch.compile(model, backend="ggml")``: graphs of PyTorch's compiler as programs."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import threading
import warnings
import weakref

import pytest

from ggml_backend.errors import PerformanceWarning, UnsupportedError

pytest.importorskip("torch", reason="PyTorch is not installed; tools/check_torch.sh installs it")
import torch
from torch import nn

import ggml_backend.torch as gbt


@pytest.fixture(autouse=True)
def _fresh():
    torch._dynamo.reset()
    torch.manual_seed(0)
    yield
    torch._dynamo.reset()


class Block(nn.Module):
    def __init__(self, n=16):
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(n), nn.Linear(n, 2 * n), nn.Linear(2 * n, n)
        self.register_buffer("shift", torch.randn(n))

    def forward(self, x):
        return x + self.down(torch.relu(self.up(self.norm(x)))) + self.shift


class Cut(nn.Module):
    """Two graphs with Python in between."""

    def __init__(self):
        super().__init__()
        self.first, self.second = Block(), Block()

    def forward(self, x):
        y = self.first(x)
        torch._dynamo.graph_break()
        return self.second(y)


def new(before):
    """The graphs that the backend has got since."""
    return [g for g in gbt.compiled_graphs() if g not in before]


def compiled(model, **options):
    given = {"strict": True, **options}
    return torch.compile(model, backend="ggml", dynamic=given.pop("dynamic", None), options=given)


def near(ours, theirs, bound=1e-5):
    assert ours.shape == theirs.shape and ours.dtype == theirs.dtype
    assert (ours - theirs).abs().max() <= bound * theirs.abs().max()


@torch.no_grad()
def test_a_model_computes_what_pytorch_computes():
    model, x, before = Block().eval(), torch.randn(3, 16), gbt.compiled_graphs()
    near(compiled(model)(x), model(x))
    (graph,) = new(before)
    assert graph.calls == 1 and not graph.calls_of_pytorch and not graph.missing
    assert graph.program.explain().copied == 0
    assert "up.weight" in {t.name for t in graph.program.graph.leafs}


@torch.no_grad()
def test_nodes_have_the_names_of_modules():
    class Layers(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = nn.ModuleList([Block(), Block()])
            self.heads = nn.ModuleDict({"last one": nn.Linear(16, 4)})

        def forward(self, x):
            for layer in self.layers:
                x = layer(x)
            return self.heads["last one"](x)

    model, x, before = Layers().eval(), torch.randn(3, 16), gbt.compiled_graphs()
    near(compiled(model)(x), model(x))
    (graph,) = new(before)
    names = {node.name for node in graph.program.graph.nodes}
    expected = {node.name for node in gbt.compile(model, (x,)).graph.nodes}
    assert {"layers.0.up/linear", "layers.1.up/linear", "heads.last one/linear"} <= names
    assert {name.partition("/")[0] for name in names} >= {name.partition("/")[0] for name in expected if "/" in name}


def test_the_backend_needs_no_import_of_the_package():
    code = (
        "import torch, sys; m = torch.nn.Linear(8, 4); x = torch.randn(2, 8)\n"
        "with torch.no_grad(): y = torch.compile(m, backend='ggml', options={'strict': True})(x); d = y - m(x)\n"
        "print(d.abs().max().item() < 1e-5, 'ggml_backend.torch' in sys.modules)"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=200)
    assert found.stdout.split() == ["True", "True"]


@torch.no_grad()
def test_graph_breaks_give_several_programs():
    model, x, before = Cut().eval(), torch.randn(3, 16), gbt.compiled_graphs()
    near(compiled(model)(x), model(x))
    assert [g.calls for g in new(before)] == [1, 1]


@torch.no_grad()
def test_equal_layers_share_a_graph_and_have_their_own_weights():
    layers, x = nn.ModuleList(Block() for _ in range(3)).eval(), torch.randn(2, 16)
    ours = theirs = x
    for layer in layers:
        theirs = layer(theirs)
    for layer in layers:
        layer.compile(backend="ggml", options={"strict": True})
    for _ in range(2):
        ours = x
        for layer in layers:
            ours = layer(ours)
        near(ours, theirs)


@pytest.mark.parametrize("dynamic", [True, None])
@torch.no_grad()
def test_sizes_may_vary(dynamic):
    model = Block().eval()
    run = compiled(model, dynamic=dynamic)
    for shape in [(2, 5, 16), (3, 7, 16), (1, 4, 16), (3, 7, 16)]:
        x = torch.randn(shape)
        near(run(x), model(x))


@torch.no_grad()
def test_results_may_be_sizes_and_constants():
    def function(x):
        return x * 2, x.shape[0], None, 3.5, x.shape[0] * 2 + 1

    run = compiled(function, dynamic=True)
    for n in (3, 5):
        y, *others = run(torch.ones(n, 2))
        assert others == [n, None, 3.5, 2 * n + 1] and torch.equal(y, torch.full((n, 2), 2.0))


@pytest.mark.parametrize(
    "x",
    [torch.randn(6, 4).t(), torch.randn(8, 6)[::2], torch.randn(1, 6).expand(4, 6), torch.randn(30)[3:27].view(4, 6)],
)
@torch.no_grad()
def test_inputs_may_have_gaps(x):
    near(compiled(lambda x: torch.softmax(x, -1) + 1)(x), torch.softmax(x, -1) + 1)


VIEWS = {
    "of an argument": lambda x: (x.t(), x + 1),
    "of a part of an argument": lambda x: (x[1:, ::2], x.sum()),
    "of an argument alone": lambda x: (x.t()[1:], x[0]),
    "of one value": lambda x: ((y := torch.relu(x)), y.view(-1), y.t()[1]),
    "of the parts of a value": lambda x: torch.tanh(x).chunk(2, 1),
    "an argument": lambda x: (x, x * 2),
}


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("name", VIEWS)
@torch.no_grad()
def test_views_share_their_memory(name, dynamic):
    function = VIEWS[name]
    for whole in (torch.randn(4, 6), torch.randn(9, 14)[1:, 2::2]):
        other = whole.clone()[:, :] if whole.is_contiguous() else torch.empty(9, 14)[1:, 2::2].copy_(whole)
        ours, theirs = compiled(function, dynamic=dynamic)(whole), function(other)
        for mine, his in zip(ours, theirs, strict=True):
            near(mine, his)
        for mine, his in zip(ours, theirs, strict=True):
            mine += 1.0
            his += 1.0
            for p, q in zip((*ours, whole), (*theirs, other), strict=True):
                near(p, q)


def changed(function, *shapes):
    """The arguments after a call of the model, and of the compiled model."""
    given = [torch.randn(s) for s in shapes]
    copies = [x.clone() for x in given]
    near(compiled(function)(*given), function(*copies))
    return given, copies


@pytest.mark.parametrize(
    "function",
    [
        lambda x, y: x.add_(y).sum(),
        lambda x, y: x[1:].copy_(y[1:] * 2).mean() + y,
        lambda x, y: (x.mul_(2), y.sub_(x), x * y)[2],
        lambda x, y: y.zero_().add_(x).exp_().view(-1)[2:] + 1,
    ],
)
@torch.no_grad()
def test_arguments_that_a_model_changes_are_changed(function):
    for mine, his in zip(*changed(function, (3, 4), (3, 4)), strict=True):
        near(mine, his)


@torch.no_grad()
def test_programs_that_change_arguments_have_no_file(tmp_path):
    before, x = gbt.compiled_graphs(), torch.ones(3)
    compiled(lambda x: x.add_(1) * 2)(x)
    (graph,) = new(before)
    with pytest.raises(UnsupportedError, match="save: the program changes its arguments"):
        graph.program.save(tmp_path / "program")
    with pytest.raises(UnsupportedError, match="export_graph: the program changes its arguments"):
        graph.program.export_graph(tmp_path / "graph")


@torch.no_grad()
def test_arguments_that_share_memory_are_changed_by_pytorch():
    def function(x, y):
        x.add_(1)
        return x + y

    before = gbt.compiled_graphs()
    run = compiled(function, strict=False)
    one, other = torch.zeros(8), torch.zeros(8)
    assert torch.equal(run(one[:6], one[2:]), function(other[:6], other[2:])) and torch.equal(one, other)
    assert any("shares its memory" in g.reason for g in new(before))


@pytest.mark.parametrize("training", [False, True])
@torch.no_grad()
def test_statistics_of_a_batch_norm_are_those_of_pytorch(training):
    def made():
        torch.manual_seed(1)
        return nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU()).train(training)

    mine, his = made(), made()
    run = compiled(mine, strict=False)
    for _ in range(3):
        x = torch.randn(2, 3, 6, 6)
        near(run(x), his(x))
        for (name, p), q in zip(mine.state_dict().items(), his.state_dict().values(), strict=True):
            assert torch.allclose(p, q, atol=1e-6), name
    x = torch.randn(2, 3, 6, 6)
    near(run.eval()(x), his.eval()(x))


class Counter(nn.Module):
    """Graphs that read nothing but a buffer."""

    def __init__(self):
        super().__init__()
        self.register_buffer("n", torch.zeros(3))

    def forward(self):
        self.n.add_(1)
        return self.n * 2 if self.n.shape[0] == 3 else self.n


@torch.no_grad()
def test_buffers_are_changed_without_an_argument():
    mine, his = Counter(), Counter()
    run = compiled(mine)
    for _ in range(3):
        assert torch.equal(run(), his()) and torch.equal(mine.n, his.n)

    class Silent(Counter):
        def forward(self):
            self.n.add_(1)

    mine = Silent()
    run = compiled(mine)
    run()
    run()
    assert torch.equal(mine.n, torch.full((3,), 2.0))


@torch.no_grad()
def test_new_weights_are_used():
    model, x = Block().eval(), torch.randn(2, 16)
    run = compiled(model, weights={"*.weight": "q8_0"}, precision="f32")
    near(run(x), model(x), 0.03)
    model.load_state_dict({name: 2 * value for name, value in model.state_dict().items()})
    near(run(x), model(x), 0.03)
    model.up = nn.Linear(16, 32)
    near(run(x), model(x), 0.03)
    with torch.inference_mode():
        near(run(x), model(x), 0.03)


def test_inputs_of_inference_mode_are_taken():
    model = Block().eval()
    with torch.inference_mode():
        x = torch.randn(2, 16)
        run = compiled(model)
        near(run(x), model(x))
        near(run(x + 1), model(x + 1))


@torch.no_grad()
def test_programs_of_a_model_that_is_gone_are_dropped():
    before, x = gbt.compiled_graphs(), torch.randn(2, 16)
    for _ in range(4):
        model = Block().eval()
        model.compile(backend="ggml", options={"strict": True})
        assert model(x).shape == x.shape
        del model
        gc.collect()  # PyTorch's modules and frames are in cycles
    assert sum(len(g._kept) for g in new(before)) <= 2


def test_calls_that_record_gradients_run_in_pytorch():
    model, x = Block().eval(), torch.randn(2, 16)
    before = gbt.compiled_graphs()
    run = torch.compile(model, backend="ggml")
    with pytest.warns(PerformanceWarning, match=r"call the model under torch\.no_grad\(\)"):
        y = run(x)
    y.sum().backward()
    found = model.up.weight.grad.clone()
    model.zero_grad()
    model(x).sum().backward()
    assert torch.equal(found, model.up.weight.grad)
    (graph,) = new(before)
    assert graph.calls_of_pytorch == 1 and "records gradients" in repr(graph)
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("error")
        near(run(x), model(x))
    model.requires_grad_(False)
    near(run(x), model(x))
    torch._dynamo.reset()
    with pytest.raises(UnsupportedError, match="records gradients"):
        compiled(model)(x.requires_grad_())


def test_gradients_in_forward_mode_are_those_of_pytorch():
    forward, x, t = torch.autograd.forward_ad, torch.randn(3, 4), torch.randn(3, 4)
    run = compiled(torch.sin, strict=False)
    with forward.dual_level():
        y = run(forward.make_dual(x, t))
        near(forward.unpack_dual(y).tangent, torch.cos(x) * t)


@torch.no_grad()
def test_graphs_that_enable_gradients_run_in_pytorch():
    def function(x, w):
        with torch.enable_grad():
            y = torch.relu(x @ w)
        return y + 1, y

    x, w = torch.randn(3, 4), torch.randn(4, 4, requires_grad=True)
    _, y = compiled(function, strict=False)(x, w)
    assert y.requires_grad
    with torch.enable_grad():
        y.sum().backward()
    assert w.grad.abs().sum() > 0


@torch.no_grad()
def test_operators_without_a_rule_run_in_pytorch_inside_the_program():
    def function(x):
        return torch.special.i1(x * 2) + 1

    x, before = torch.randn(3, 4), gbt.compiled_graphs()
    near(compiled(function, strict=False)(x), function(x))
    (graph,) = new(before)
    assert [m.operator for m in graph.missing] == ["special_i1"] and not graph.calls_of_pytorch
    torch._dynamo.reset()
    with pytest.raises(UnsupportedError, match="special_i1"):
        compiled(function)(x)


def drawn_in_another_order(x):
    first, second = torch.rand(4), torch.rand(4)
    return (x * second).sum() + x * first


@pytest.mark.parametrize(
    ("function", "by_pytorch"),
    [
        (lambda x: torch.relu(x) + torch.rand(4), 0),
        (lambda x: nn.functional.dropout(x, 0.5, training=True) + torch.rand(4), 2),
        (drawn_in_another_order, 2),
    ],
)
@torch.no_grad()
def test_random_numbers_are_those_of_pytorch(function, by_pytorch):
    x, before, run = torch.ones(3, 4), gbt.compiled_graphs(), compiled(function, strict=False)
    for seed in (1, 2):
        torch.manual_seed(seed)
        mine = run(x)
        torch.manual_seed(seed)
        near(mine, function(x))
    (graph,) = new(before)
    assert graph.calls_of_pytorch == by_pytorch


@pytest.mark.parametrize(
    ("function", "x", "reason"),
    [
        (lambda x: x @ x, torch.ones(3, 3, dtype=torch.complex64), "complex64"),
        (lambda x: (x.double() / 3).sum(), torch.randn(3, 3), "float64"),
        (lambda x: x + 1, torch.tensor([2**30, 5]), "at most 16777216"),
        (lambda x: (x.view(torch.int32), x + 1), torch.randn(3), "a view with another dtype"),
        (torch.vmap(lambda x: x.sum() + 1), torch.randn(3, 4), "torch.func"),
        (torch.func.grad(lambda x: (x**3).sum()), torch.randn(3), "torch.func"),
    ],
)
@torch.no_grad()
def test_graphs_that_no_program_computes_run_in_pytorch(function, x, reason):
    before = gbt.compiled_graphs()
    ours, theirs = compiled(function, strict=False)(x), function(x)
    for mine, his in zip(ours, theirs, strict=True) if isinstance(theirs, tuple) else [(ours, theirs)]:
        assert torch.equal(mine, his)
    assert any(reason in g.reason for g in new(before)), [g.reason for g in new(before)]


@torch.no_grad()
def test_half_weights_and_autocast_run_in_pytorch():
    x, before = torch.randn(2, 8), gbt.compiled_graphs()
    model = nn.Linear(8, 4).half()
    assert torch.equal(compiled(model, strict=False)(x.half()), model(x.half()))
    other = nn.Linear(8, 4)
    run = compiled(other, strict=False)
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(run(x), other(x)) and run(x).dtype == torch.bfloat16
    assert {g.reason.split(" ")[0] for g in new(before)} == {"weight", "the"}


@torch.no_grad()
def test_numbers_are_constants_of_a_graph():
    def function(x, factor, power):
        return x * factor + power

    run, x = compiled(function, dynamic=True), torch.randn(5)
    for factor, power in [(0.5, 2), (1.5, 3), (0.5, 2)]:
        near(run(x, factor, power), function(x, factor, power))


@torch.no_grad()
def test_numbers_that_compare_equal_have_their_own_programs():
    run, x = compiled(lambda x, divisor: x / divisor, dynamic=True), torch.ones(3)
    for divisor in (1.5, 2.5, 0.0, -0.0):
        assert torch.equal(run(x, divisor), x / divisor)


@torch.no_grad()
def test_a_result_on_another_device_stays_there():
    before = gbt.compiled_graphs()
    run = compiled(lambda x: (x + 1).to("meta"), strict=False)
    assert run(torch.ones(3)).device.type == "meta"
    assert any("on meta" in g.reason for g in new(before))


@torch.no_grad()
def test_a_program_keeps_no_arguments_alive():
    run = compiled(lambda x: torch.relu(x) + 1, dynamic=True)
    run(torch.randn(3, 5))
    x = torch.randn(4, 5)
    found = weakref.ref(x)
    run(x)
    del x
    gc.collect()
    assert found() is None


def test_a_graph_with_many_numbers_runs_in_pytorch(monkeypatch):
    monkeypatch.setattr("ggml_backend.torch.dynamo._MOST_NUMBERS", 2)
    run, x = compiled(lambda x, factor: x * factor, strict=False, dynamic=True), torch.randn(5)
    before = gbt.compiled_graphs()
    for i in range(5):
        assert torch.allclose(run(x, i + 0.5), x * (i + 0.5))
    assert any("many different numbers" in g.reason for g in new(before))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"weight": "q8_0"}, "no option 'weight'; did you mean 'weights'"),
        ({"weights": "q9"}, "there is no dtype 'q9'"),
        ({"strict": 3}, "strict must be a bool"),
        ({"precision": "f99"}, "precision"),
        ({"devices": ["NONE"]}, "NONE"),
    ],
)
def test_wrong_options_are_named(options, message):
    with pytest.raises(Exception, match=message):
        torch.compile(nn.Linear(2, 2), backend="ggml", options=options)(torch.ones(1, 2))


def test_modes_are_refused():
    with pytest.raises(Exception, match="takes options, and no mode"):
        torch.compile(nn.Linear(2, 2), backend="ggml", mode="max-autotune")(torch.ones(1, 2))


@torch.no_grad()
def test_several_threads_call_a_compiled_model():
    model = Block().eval()
    run, failures = compiled(model), []
    run(torch.randn(4, 16))

    def work(seed):
        x = torch.randn(4, 16, generator=torch.Generator().manual_seed(seed))
        with torch.no_grad():
            for _ in range(10):
                try:
                    near(run(x), model(x))
                except BaseException as error:
                    failures.append(error)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not failures


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@torch.no_grad()
def test_a_child_after_a_fork_calls_a_compiled_model():
    model, x = Block().eval(), torch.randn(4, 16)
    run = compiled(model)
    expected = run(x)
    child = os.fork()
    if child == 0:
        os._exit(0 if torch.equal(run(x), expected) else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
