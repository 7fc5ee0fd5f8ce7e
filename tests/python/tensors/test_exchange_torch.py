"""Exchange with PyTorch. ``make check-long`` installs PyTorch for the CPU in its own environment.
Without PyTorch the tests are skipped.
"""

from __future__ import annotations

import gc
import sys

import numpy as np
import pytest

import ggml_backend as gb
from exchanged import DTYPES, SHAPES, numbers

torch = pytest.importorskip("torch", reason="PyTorch is not installed; make check-long installs it")


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SHAPES)
def test_round_trip(ctx, shape, dtype):
    given = torch.from_numpy(numbers(shape).astype(np.float64)).to(getattr(torch, dtype))
    t = ctx.from_dlpack(given, "x")
    assert (t.shape, t.dtype, t.name) == (shape, gb.dtypes.as_dtype(dtype), "x")
    back = torch.from_dlpack(t)
    assert back.dtype == given.dtype and tuple(back.shape) == shape and torch.equal(back, given)
    assert t.numpy(np.float64).tolist() == given.double().tolist()
    if given.numel():
        assert back.data_ptr() == given.data_ptr()
        back.fill_(7)
        assert torch.equal(given, torch.full_like(given, 7)) and (t.numpy(np.float64) == 7).all()
        t.set(torch.full_like(given, 3))
        assert torch.equal(given, torch.full_like(given, 3))


@pytest.mark.parametrize(
    "view",
    [
        lambda a: a.T,
        lambda a: a[:, ::2],
        lambda a: a[1:, 1:3],
        lambda a: a.permute(1, 0),
        lambda a: a[1],
        lambda a: a[:, 2],
    ],
)
def test_strides(ctx, view, computed):
    given = view(torch.arange(24.0).reshape(4, 6))
    t = ctx.from_dlpack(given)
    assert t.numpy().ctypes.data == given.data_ptr()
    np.testing.assert_array_equal(computed(gb.ops.cont(t)), given.numpy())
    back = torch.from_dlpack(t)
    assert back.stride() == given.stride() and back.data_ptr() == given.data_ptr()


def test_channels_last(ctx):
    given = torch.arange(120.0).reshape(2, 3, 4, 5).to(memory_format=torch.channels_last)
    t = ctx.from_dlpack(given)
    assert t.numpy().ctypes.data == given.data_ptr()
    np.testing.assert_array_equal(t.numpy(), given.numpy())
    with pytest.raises(gb.errors.InvalidArgumentError, match=r"several elements of the array lie at one address"):
        ctx.from_dlpack(torch.ones(3).expand(4, 3))
    assert ctx.from_dlpack(torch.ones(3).expand(4, 3), copy=None).tolist() == [[1] * 3] * 4


def test_refusals_give_advice(ctx):
    with pytest.raises(gb.errors.InvalidArgumentError, match="detach"):
        ctx.from_dlpack(torch.ones(3, requires_grad=True))
    with pytest.raises(gb.errors.InvalidArgumentError, match="complex64 is not a dtype of tensors"):
        ctx.from_dlpack(torch.ones(3, dtype=torch.complex64))
    with pytest.raises(gb.errors.InvalidArgumentError, match="uint8 is not a dtype of tensors"):
        ctx.from_dlpack(torch.ones(3, dtype=torch.uint8))
    with pytest.raises(gb.errors.InvalidArgumentError, match=r"torch\.Tensor"):
        ctx.from_dlpack(torch.ones(3, device="meta"))
    with pytest.raises(gb.errors.InvalidArgumentError):
        ctx.from_dlpack(torch.ones(2, 2).to_sparse())
    assert ctx.tensors() == []


def test_read_only_tensors_of_ours(ctx, cpu):
    c = ctx.constant([1.0, 2.0, 3.0])
    ctx.allocate(cpu)
    with pytest.raises((BufferError, RuntimeError)):
        torch.utils.dlpack.from_dlpack(c.__dlpack__())
    assert torch.from_dlpack(c, copy=True).tolist() == [1, 2, 3]


def test_device_memory_is_copied(ctx, sim):
    t = ctx.tensor((2, 3), gb.bfloat16, name="far")
    ctx.allocate(sim)
    t.set(torch.full((2, 3), 1.5, dtype=torch.bfloat16))
    with pytest.raises(BufferError, match=r"'far' bfloat16 .* is in device memory"):
        torch.from_dlpack(t)


@pytest.mark.parametrize("first", ["producer", "consumer"])
def test_lifetimes(first):
    given = torch.arange(1000.0)
    ctx = gb.Context()
    t = ctx.from_dlpack(given)
    back = torch.from_dlpack(t)
    if first == "producer":
        del given, t
        ctx.close()
        gc.collect()
        torch.full((1000,), -1.0)  # would reuse freed memory
        assert torch.equal(back, torch.arange(1000.0))
    else:
        del back
        gc.collect()
        assert t.numpy()[999] == 999 and given[999] == 999
        ctx.close()
        assert given[999] == 999


def test_memory_is_freed():
    """A thousand exchanges of 4 MB in both directions would show a leak."""
    import resource

    def peak():
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss

    def exchange(n):
        for i in range(n):
            t = gb.from_dlpack(torch.full((1 << 20,), float(i)))
            assert torch.from_dlpack(t)[7] == i

    exchange(5)
    before = peak()
    exchange(200)
    assert peak() - before < 100 << 10, f"{peak() - before} KiB more"


def test_in_set_constants_and_arithmetic(ctx, cpu, monkeypatch):
    monkeypatch.setitem(sys.modules, "ml_dtypes", None)
    half = torch.tensor([[1.0, -2.5], [3.0, 0.125]], dtype=torch.bfloat16)
    t, f = ctx.tensor((2, 2), gb.bfloat16, name="t"), ctx.tensor((2, 2), name="f")
    c, shared = ctx.constant(half), ctx.from_numpy(half)
    ctx.allocate(cpu)
    assert t.set(half).tolist() == c.tolist() == shared.tolist() == half.tolist()
    assert c.dtype == shared.dtype == gb.bfloat16 and shared.numpy().ctypes.data == half.data_ptr()
    assert t.set(half.T).tolist() == half.T.tolist()
    assert f.set(half.float()).tolist() == half.tolist()
    assert f.set(half, quantize=True).tolist() == half.tolist()
    assert ctx.constant(torch.tensor([1.5, 2], dtype=torch.float16)).dtype == gb.float16
    with pytest.raises(gb.errors.InvalidArgumentError, match=r"'f' float32.*cannot take an array of bfloat16"):
        f.set(half)
    for act in (lambda: f + half, lambda: f * half, lambda: f @ half):
        with pytest.raises(TypeError, match=r"not torch.Tensor; ctx.from_dlpack\(value\) makes one over its memory"):
            act()
    with pytest.raises((TypeError, RuntimeError)):
        half + f
    with pytest.raises(gb.errors.InvalidArgumentError, match=r"requires grad.*detach\(\) is its data"):
        f.set(torch.ones(2, 2, requires_grad=True))


def test_results_of_custom_operators(ctx, computed):
    x = ctx.from_numpy(np.arange(6, dtype=np.float32).reshape(2, 3))
    doubled = gb.ops.map_custom(lambda out, a: torch.from_numpy(a.copy()) * 2, x)
    np.testing.assert_array_equal(computed(doubled), np.arange(6).reshape(2, 3) * 2)


def test_pytorch_weights_are_used_in_place(ctx, computed):
    linear = torch.nn.Linear(16, 8)
    x = torch.randn(4, 16)
    weight, bias = (ctx.from_dlpack(p.detach()) for p in (linear.weight, linear.bias))
    y = ctx.from_dlpack(x) @ weight.T + bias
    np.testing.assert_allclose(computed(y), linear(x).detach().numpy(), rtol=1e-4, atol=1e-5)


TORCH_EXITS = {
    "torch has it": "kept = torch.from_dlpack(ctx.from_dlpack(np.ones(8, np.float32)))",
    "we have it": "kept = ctx.from_dlpack(torch.ones(8))",
    "both": "a = torch.ones(8); t = ctx.from_dlpack(a); b = torch.from_dlpack(t); t.more = 0",
    "builtins": "import builtins; builtins.kept = [torch.from_dlpack(ctx.from_dlpack(torch.ones(8)))]",
    "threads": "threading.Thread(target=lambda: [torch.from_dlpack(ctx.from_dlpack(torch.ones(8))) for _ in range(99)])"
    ".start()",
}


@pytest.mark.parametrize("ending", list(TORCH_EXITS))
def test_at_the_end_of_the_interpreter(holds, ending):
    program = TORCH_EXITS[ending].replace("; t.more = 0", "")
    holds("import torch\nctx = gb.Context()\n" + program)
