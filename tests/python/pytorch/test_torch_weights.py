"""Packed weights in PyTorch: operators, tensors, and packing modules."""

from __future__ import annotations

import copy
import io
import subprocess
import sys

import numpy as np
import pytest

import ggml_backend as gb
from ggml_backend.errors import InvalidArgumentError
from threads import run_threads

pytest.importorskip("torch", reason="PyTorch is not installed; tools/check_torch.sh installs it")
import torch
from torch import nn
from torch.nn import functional as F

import ggml_backend.torch as gbt

FORMATS = ["float16", "bfloat16", "q4_0", "q4_1", "q5_0", "q5_1", "q8_0", "q2_k", "q3_k", "q4_k", "q5_k", "q6_k",
           "iq4_nl", "iq4_xs", "mxfp4", "tq1_0", "tq2_0"]  # fmt: skip


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(0)


def exact(x, w, bias=None):
    """The product in float64."""
    y = x.detach().double() @ w.double().T
    return y if bias is None else y + bias.detach().double()


def bound(x, w):
    """The tolerance: the larger error of two algorithms, and the rounding of sums of floats.

    One algorithm rounds activations to 8 bits by groups of 32. The other (level amx) multiplies pairs of bfloat16, with
    an error of at most 2^-7 of the sum of magnitudes.
    """
    terms = x.detach().double().abs() @ w.double().abs().T
    groups = x.detach().double().abs().unflatten(-1, (-1, 32)).amax(-1)
    sums = w.double().abs().unflatten(-1, (-1, 32)).sum(-1)
    return torch.maximum(groups @ sums.T / 254, terms * 2**-7) + 1e-5 * terms


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("lead", [(1,), (3, 5), (70,), ()], ids=str)
def test_products_of_every_format(format, lead):
    w, x, b = torch.randn(48, 256), torch.randn(*lead, 256), torch.randn(48)
    for precision in ("default", "f16", "f32"):
        packed = gbt.pack(w, format, precision=precision)
        values = packed.dequantize()
        assert values.shape == w.shape and values.dtype == torch.float32
        for bias in (None, b):
            y = gbt.linear(x, packed, bias)
            assert y.shape == (*lead, 48) and y.dtype == torch.float32
            off = (y.double() - exact(x, values, bias)).abs()
            limit = bound(x, values) if precision == "default" else 1e-4 * exact(x, values, bias).abs().max()
            if precision == "f16":  # 15 bits
                limit = limit + bound(x, values) / 128
            assert (off <= limit).all()
            assert torch.equal(F.linear(x, packed, bias), y)


@pytest.mark.parametrize("format", FORMATS)
def test_embeddings_are_the_values_of_rows(format):
    packed = gbt.pack(torch.randn(31, 256), format)
    for numbers in ([[0, 30], [7, 7]], 3, list(range(31)), [[], []]):
        ids = torch.tensor(numbers, dtype=torch.int32 if numbers == 3 else torch.int64)
        assert torch.equal(gbt.embedding(ids, packed), packed.dequantize()[ids.long()])
        assert torch.equal(F.embedding(ids, packed), packed.dequantize()[ids.long()])


def test_values_are_those_of_the_package():
    w = torch.randn(8, 64)
    assert np.array_equal(gbt.pack(w, "q4_0").blocks.numpy(), gb.quantize(w.numpy(), "q4_0"))


@pytest.mark.parametrize(
    ("dtype", "tolerance"), [(torch.float16, 2**-10), (torch.bfloat16, 2**-7), (torch.float64, 1e-5)]
)
def test_other_dtypes_are_converted_once(dtype, tolerance):
    packed = gbt.pack(torch.randn(16, 64).to(dtype), "q8_0", precision="f32")
    x, b = torch.randn(3, 64).to(dtype), torch.randn(16).to(dtype)
    y = gbt.linear(x, packed, b)
    values = gbt.PackedTensor(packed.blocks, "q8_0").dequantize()  # float32: not rounded to dtype
    expected = F.linear(x.float(), values, b.float())
    assert y.dtype == dtype and packed.dtype == dtype
    assert torch.allclose(y.float(), expected, rtol=tolerance, atol=1e-5)
    assert gbt.embedding(torch.tensor([1]), packed).dtype == dtype


def test_activations_are_not_copied(monkeypatch):
    """The kept graph reads and writes the memory of PyTorch's tensors."""
    from ggml_backend.torch import _engine

    seen = []
    real = _engine.product

    def product(*arguments):
        seen.append([a for a in arguments if isinstance(a, np.ndarray)])
        real(*arguments)

    monkeypatch.setattr(_engine, "product", product)
    packed, x, b = gbt.pack(torch.randn(16, 64), "q8_0"), torch.randn(2, 3, 64), torch.randn(16)
    y = gbt.linear(x, packed, b)
    assert [a.ctypes.data for a in seen[0]] == [t.data_ptr() for t in (packed.blocks, x, b, y)]


def test_gaps_and_views():
    packed = gbt.pack(torch.randn(16, 64), "q8_0")
    whole = torch.randn(6, 128)
    for x in (whole[:, ::2], whole.T[:64].T, whole[1::2, 64:], whole[0, 1:65]):
        assert torch.equal(gbt.linear(x, packed), gbt.linear(x.contiguous().clone(), packed))


def test_transposed_operands():
    packed, x, b = gbt.pack(torch.randn(16, 64), "q8_0"), torch.randn(3, 64), torch.randn(16)
    y = gbt.linear(x, packed)
    turned = packed.T
    assert turned.shape == (64, 16) and torch.equal(turned.dequantize(), packed.dequantize().T)
    for other in (turned, packed.t(), packed.transpose(0, 1), packed.permute(1, 0), packed.T.T.T):
        assert all(torch.equal(product, y) for product in (x @ other, torch.matmul(x, other), torch.mm(x, other)))
        assert torch.equal(torch.addmm(b, x, other), gbt.linear(x, packed, b))
    wrong = [lambda: x @ packed, lambda: F.linear(x, turned), lambda: packed @ x.T, lambda: packed + 1]
    for call in [*wrong, lambda: turned[0]]:
        with pytest.raises(NotImplementedError, match="packed"):
            call()


def test_gradients():
    packed, x, b = gbt.pack(torch.randn(48, 96), "q8_0", precision="f32"), torch.randn(2, 5, 96), torch.randn(48)
    weight = packed.dequantize()
    x.requires_grad_()
    b.requires_grad_()
    grad = torch.randn(2, 5, 48)
    gbt.linear(x, packed, b).backward(grad)
    given = x.grad, b.grad
    x.grad = b.grad = None
    F.linear(x, weight, b).backward(grad)
    for mine, theirs in zip(given, (x.grad, b.grad), strict=True):
        assert torch.allclose(mine, theirs, rtol=1e-5, atol=1e-4)


def test_gradients_of_wide_weights_are_summed_in_pieces(monkeypatch):
    from ggml_backend.torch import _operators

    monkeypatch.setattr(_operators, "_CHUNK", 7 * 64)
    packed, x = gbt.pack(torch.randn(33, 64), "q4_0", precision="f32"), torch.randn(3, 64, requires_grad=True)
    grad = torch.randn(3, 33)
    gbt.linear(x, packed).backward(grad)
    assert torch.allclose(x.grad, grad @ packed.dequantize(), atol=1e-4)


def test_operators_pass_the_checks_of_pytorch():
    packed = gbt.pack(torch.randn(16, 64), "q8_0", precision="f32")
    x, b = torch.randn(3, 64, requires_grad=True), torch.randn(16, requires_grad=True)
    tests = ("test_schema", "test_autograd_registration", "test_faketensor", "test_aot_dispatch_dynamic")
    for bias in (None, b):
        given = (x, packed.blocks, bias, "q8_0", "f32")
        torch.library.opcheck(torch.ops.ggml_backend.linear, given, test_utils=tests, atol=1e-4, rtol=1e-4)
    given = (torch.tensor([1, 2]), packed.blocks, "q8_0", torch.float32)
    torch.library.opcheck(torch.ops.ggml_backend.embedding, given)


class Net(nn.Module):
    """Each kind of layer that is packed, and each that stays."""

    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(100, 64)
        self.up, self.down = nn.Linear(64, 96), nn.Linear(96, 64, bias=False)
        self.norm = nn.LayerNorm(64)
        self.conv = nn.Conv1d(64, 64, 3, padding=1)
        self.attention = nn.MultiheadAttention(64, 4, batch_first=True)
        self.head = nn.Linear(64, 100, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, ids):
        x = self.embed(ids)
        x = x + self.down(F.gelu(self.up(self.norm(x))))
        x = x + self.attention(x, x, x, need_weights=False)[0]
        return self.head(x + self.conv(x.transpose(1, 2)).transpose(1, 2))


IDS = torch.tensor([[1, 5, 99, 0], [4, 4, 8, 16]])


def close(a, b, limit):
    assert (a - b).abs().max() <= limit * b.abs().max()


def test_modules_are_packed_in_place():
    net = Net().eval()
    before, up = net(IDS), net.up
    assert gbt.pack_(net, {"head.*": "q8_0", "down.weight": None, "*": "q4_0"}) is net
    kinds = {n: p.format for n, p in net.named_parameters() if isinstance(p, gbt.PackedTensor)}
    assert kinds == {"embed.weight": "q4_0", "up.weight": "q4_0", "head.weight": "q8_0"} and net.up is up
    assert isinstance(net.up.weight, nn.Parameter)
    close(net(IDS), before, 0.2)
    gbt.pack_(net, {"*": "q8_0"})  # packed modules stay as they are
    assert net.up.weight.format == "q4_0" and net.down.weight.format == "q8_0"


def test_tied_weights_stay_tied():
    net = gbt.pack_(Net(), {"*.weight": "q8_0"})
    assert net.head.weight is net.embed.weight and isinstance(net.head.weight, gbt.PackedTensor)


def test_rows_of_partial_blocks_get_the_nearest_format():
    assert gbt.pack(torch.randn(4, 96), "q4_k").format == "q5_0"
    assert gbt.pack(torch.randn(4, 10), "q4_k").format == "float16"


@pytest.mark.parametrize(
    ("formats", "message"),
    [
        ({"*.wieght": "q8_0"}, r"no weight that can be packed fits '\*.wieght'"),
        ({"norm.weight": "q8_0"}, "no weight that can be packed fits 'norm.weight'"),
        ({"*": "q8_0", "up.weight": "q4_0"}, "'up.weight' decides nothing"),
        ({"*": "float32"}, "pack_: .*: pack: float32 is not packed"),
        ({"*": "int8"}, "pack_: .*int8 is not packed"),
    ],
)
def test_wrong_patterns_change_nothing(formats, message):
    net = Net()
    with pytest.raises(InvalidArgumentError, match=message):
        gbt.pack_(net, formats)
    assert not any(isinstance(p, gbt.PackedTensor) for p in net.parameters())


def test_wrong_arguments():
    packed, refused = gbt.pack(torch.randn(16, 64), "q8_0"), InvalidArgumentError
    x, operator = torch.randn(3, 64), torch.ops.ggml_backend.linear
    cases = [
        (lambda: gbt.linear(torch.randn(3, 32), packed), refused, r"does not fit the shape \(3, 32\)"),
        (lambda: gbt.linear(torch.tensor(1.0), packed), refused, "does not fit"),
        (lambda: gbt.linear(x, packed, torch.randn(5)), refused, "bias"),
        (lambda: gbt.linear(x, torch.randn(16, 64)), TypeError, "weight must be a PackedTensor"),
        (lambda: gbt.embedding(torch.tensor([16]), packed), IndexError, "16 to 16, the weight has 16 rows"),
        (lambda: gbt.embedding(torch.tensor([-1]), packed), IndexError, "-1"),
        (lambda: gbt.embedding(torch.tensor([2**32]), packed), IndexError, "4294967296"),
        (lambda: gbt.embedding(torch.tensor([1.0]), packed), TypeError, "ids must be integers"),
        (lambda: gbt.pack(packed, "q4_0"), refused, "is packed"),
        (lambda: gbt.pack(torch.randn(4), "q4_0"), refused, "takes a matrix"),
        (lambda: gbt.pack(torch.ones(4, 32, dtype=torch.int32), "q4_0"), refused, "takes a matrix of floats"),
        (lambda: gbt.pack(torch.full((4, 32), float("nan")), "q4_0"), refused, "row 0, column 0"),
        (lambda: gbt.pack(torch.randn(4, 32, device="meta"), "q4_0"), refused, "is on meta"),
        (lambda: gbt.pack(torch.randn(4, 32), "q4_0", precision="f64"), refused, "precision .* not 'f64'"),
        (lambda: gbt.pack(torch.randn(4, 32), "q4_0", precision=16), refused, "precision .* not 16"),
        (lambda: gbt.pack_(3, {}), TypeError, "module must be a Module"),
        (lambda: gbt.pack_(Net(), "q4_k"), TypeError, "formats must be a dict"),
        (lambda: gbt.PackedTensor(torch.zeros(2, 35, dtype=torch.uint8), "q8_0"), refused, "multiple of 34"),
        (lambda: operator(x, packed.blocks, None, "q9"), Exception, "q9"),
        (lambda: operator(x, packed.blocks, None, "q8_0", "f64"), refused, "linear: precision .* not 'f64'"),
        (lambda: operator(x[:0], packed.blocks, None, "q8_0", "f64"), refused, "linear: precision .* not 'f64'"),
        (lambda: operator(x.to("meta"), packed.blocks.to("meta"), None, "q8_0", "f64"), refused, "not 'f64'"),
        (lambda: operator(x, packed.blocks[0], None, "q8_0"), refused, "blocks of q8_0 are uint8"),
        (lambda: operator(x, torch.randn(16, 68), None, "q8_0"), refused, "blocks of q8_0 are uint8"),
    ]
    for call, kind, message in cases:
        with pytest.raises(kind, match=message):
            call()


def test_empty_batches():
    packed = gbt.pack(torch.randn(16, 64), "q8_0")
    assert gbt.linear(torch.empty(0, 64), packed).shape == (0, 16)
    assert gbt.linear(torch.empty(2, 0, 64), packed, torch.randn(16)).shape == (2, 0, 16)


def test_state_copies_and_pickles():
    net = Net().eval()
    floats = copy.deepcopy(net.state_dict())
    gbt.pack_(net, {"up.*": "q4_0", "*": "q8_0"})
    expected = net(IDS)
    memory = io.BytesIO()
    torch.save(net.state_dict(), memory)
    memory.seek(0)
    state = torch.load(memory)  # weights_only
    assert state["up.weight"].format == "q4_0" and repr(state["up.weight"]) == "PackedTensor(q4_0 (96, 64), 3456 bytes)"
    other = gbt.pack_(Net().eval(), {"up.*": "q4_0", "*": "q8_0"})
    assert not torch.equal(other(IDS), expected)
    other.load_state_dict(state)
    assert torch.equal(other(IDS), expected)
    copied = copy.deepcopy(net)
    assert copied.head.weight is copied.embed.weight and isinstance(copied.up.weight, nn.Parameter)
    assert copied.up.weight.blocks.data_ptr() != net.up.weight.blocks.data_ptr()
    memory = io.BytesIO()
    torch.save(net, memory)
    memory.seek(0)
    loaded = torch.load(memory, weights_only=False)
    for made in (copied, loaded):
        assert torch.equal(made(IDS), expected)
        assert isinstance(made.up.weight, nn.Parameter)
    fresh = gbt.pack_(Net().eval(), {"up.*": "q4_0", "*": "q8_0"})
    fresh.load_state_dict(floats)  # floats are packed as they are loaded
    assert torch.equal(fresh(IDS), expected)
    plain = Net().eval()
    plain.load_state_dict(state)  # and blocks are widened
    assert torch.equal(plain.up.weight, net.up.weight.dequantize())
    wrong = gbt.pack_(Net(), {"*": "q5_0"})
    with pytest.raises(RuntimeError, match="formats or shapes differ"):
        wrong.load_state_dict(state)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_modules_change_their_dtype(dtype):
    net = gbt.pack_(nn.Sequential(nn.Embedding(100, 64), nn.Linear(64, 32)), {"*": "q8_0"})
    expected = net(IDS)
    net.to(dtype)
    assert net[1].weight.dtype == dtype and net(IDS).dtype == dtype
    close(net(IDS).float(), expected, 0.02)
    with pytest.raises((NotImplementedError, TypeError)):
        net[1].weight.to(torch.int32)


def test_a_linear_of_gpt2_is_packed():
    class Conv1D(nn.Module):  # as in transformers
        def __init__(self, nf, nx):
            super().__init__()
            self.nf, self.nx = nf, nx
            self.weight, self.bias = nn.Parameter(torch.randn(nx, nf)), nn.Parameter(torch.randn(nf))

        def forward(self, x):
            return torch.addmm(self.bias, x.view(-1, x.size(-1)), self.weight).view(*x.shape[:-1], self.nf)

    layer, x = Conv1D(96, 64), torch.randn(2, 5, 64)
    expected = layer(x)
    gbt.pack_(layer, {"*": "q8_0"})
    assert layer.weight.shape == (64, 96) and layer.weight.transposed
    close(layer(x), expected, 0.03)


def test_an_encoder_of_pytorch_is_packed():
    """In inference, PyTorch has a shortcut for plain weights, which a packed weight must not take."""
    encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(64, 4, 128, batch_first=True), 2).eval()
    x = torch.randn(2, 7, 64)
    with torch.inference_mode():
        expected = encoder(x)
        gbt.pack_(encoder, {"*": "q8_0"})
        close(encoder(x), expected, 0.03)
    assert isinstance(encoder.layers[1].linear2.weight, gbt.PackedTensor)


def layers():
    torch.manual_seed(1)
    net = nn.Sequential(nn.Linear(64, 96), nn.ReLU(), nn.LayerNorm(96), nn.Linear(96, 32))
    return gbt.pack_(net, {"*": "q8_0"}, precision="f32")


@pytest.mark.parametrize("backend", ["aot_eager", pytest.param("inductor", marks=pytest.mark.slow)])
def test_compiled_modules(backend):
    net, x = layers(), torch.randn(4, 64)
    compiled = torch.compile(net, fullgraph=True, dynamic=True, backend=backend)
    with torch.inference_mode():
        for n in (1, 4, 9):
            rows = torch.randn(n, 64)
            assert torch.allclose(compiled(rows), net(rows), atol=1e-5)
    grads = []
    for call in (net, compiled):
        given = x.clone().requires_grad_()
        call(given).square().sum().backward()
        grads.append(given.grad)
    assert torch.allclose(*grads, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("strict", [True, False])
def test_exported_modules(strict):
    net = layers()
    rows = {"input": {0: torch.export.Dim("rows")}}
    program = torch.export.export(net, (torch.randn(4, 64),), dynamic_shapes=rows, strict=strict)
    assert "ggml_backend.linear" in program.graph_module.code
    for n in (1, 7):
        x = torch.randn(n, 64)
        assert torch.equal(program.module()(x), net(x))


def test_threads_of_python_get_their_own_results():
    net = layers()
    inputs = [torch.randn(n, 64) for n in (1, 3, 1, 8)]
    expected = [net(x) for x in inputs]

    def work(i):
        for _ in range(100):
            with torch.inference_mode():
                assert torch.equal(net(inputs[i]), expected[i])

    run_threads(4, work)


def test_the_number_of_threads_is_that_of_pytorch():
    from ggml_backend.torch import _engine

    packed, x, before = gbt.pack(torch.randn(1024, 1024), "q8_0"), torch.randn(4, 1024), torch.get_num_threads()
    try:
        results = []
        for n in (1, 3, 2):
            torch.set_num_threads(n)
            results.append(gbt.linear(x, packed))
            assert _engine._current().backend(1 << 30).n_threads == n
        assert torch.equal(results[0], results[1]) and torch.equal(results[0], results[2])
    finally:
        torch.set_num_threads(before)


FORK = """
import os, threading, torch
import ggml_backend.torch as gbt
torch.set_num_threads(1)
packed, x = gbt.pack(torch.randn(512, 512), "q8_0"), torch.randn(8, 512)
expected = gbt.linear(x, packed)
done = threading.Event()
def work():
    while not done.is_set():
        gbt.linear(x, packed)
threads = [threading.Thread(target=work) for _ in range(2)]
[t.start() for t in threads]
for _ in range(6):
    child = os.fork()
    if not child:
        os._exit(0 if torch.equal(gbt.linear(x, packed), expected) else 3)
    assert os.waitpid(child, 0)[1] == 0
done.set()
[t.join() for t in threads]
"""


@pytest.mark.skipif(not hasattr(__import__("os"), "fork"), reason="needs fork")
def test_forked_children_compute():
    subprocess.run([sys.executable, "-W", "ignore", "-c", FORK], check=True, timeout=280)


def test_importing_the_package_does_not_load_pytorch():
    program = "import sys, ggml_backend as gb; assert 'torch' not in sys.modules; import ggml_backend.torch"
    subprocess.run([sys.executable, "-c", program], check=True, timeout=280)
