"""Buffers, buffer types, backends."""

from __future__ import annotations

import mmap

import numpy as np
import pytest

import ggml_backend as gb


def test_registry():
    names = gb.backends()
    assert names[0] == "CPU"
    assert "SIM" in names


def test_cpu_backend(cpu):
    assert cpu.name == "CPU"
    assert cpu.n_threads == 2
    cpu.n_threads = 1
    assert cpu.n_threads == 1
    assert cpu.is_cpu
    assert cpu.level in gb.backend.cpu_levels()
    assert cpu.buffer_type == gb.backend.cpu_buffer_type()
    assert cpu.buffer_type.is_host
    assert cpu.alignment == cpu.buffer_type.alignment
    assert cpu.max_nbytes > 2**40
    assert gb.Backend("cpu").n_threads >= 1
    cpu.synchronize()


@pytest.mark.parametrize(
    "arguments",
    [("NOPE",), ("CPU", {"level": "mmx"}), ("CPU", {"n_threads": 0}), ("SIM", {"n_threads": 2}),
     ("SIM", {"nonsense": 1}), ("SIM", {"mem": "x,y"}),
     ("SIM", {"ops": ["no_such_op"]})],
    ids=str,
)  # fmt: skip
def test_wrong_backends(arguments):
    name, options = (*arguments, {})[:2]
    with pytest.raises(gb.errors.InvalidArgumentError):
        gb.Backend(name, **options)


def test_parameters_as_string_and_keywords(ctx):
    x = ctx.tensor((4, 4))
    product, total = gb.ops.mul_mat(x, x), x + x
    for backend in (
        gb.Backend("SIM:mem=1M,ops=mul_mat"),
        gb.Backend("SIM", mem="1M", ops=["mul_mat"]),
        gb.Backend("SIM:mem=1M", ops=["mul_mat"]),
    ):
        assert backend.supports(product)
        assert not backend.supports(total)
        assert "operator" in backend.unsupported_reason(total)
        assert backend.unsupported_reason(product) is None
        with pytest.raises(MemoryError):
            backend.allocate(2**21)
        with pytest.raises(gb.errors.InvalidArgumentError):
            backend.n_threads  # noqa: B018


def test_closed_backend():
    backend = gb.Backend("CPU")
    with backend:
        pass
    backend.close()
    assert backend.closed
    assert "closed" in repr(backend)
    for act in (
        backend.synchronize,
        lambda: backend.buffer_type,
        lambda: backend.allocate(10),
        lambda: gb.Scheduler([backend]),
        lambda: backend.n_threads,
    ):
        with pytest.raises(gb.errors.StateError, match="CPU"):
            act()


def test_buffer(cpu):
    buffer = cpu.buffer_type.allocate(1000, usage="weights")
    assert buffer.nbytes >= 1000
    assert len(buffer) == buffer.nbytes
    assert buffer.usage == "weights"
    buffer.usage = "any"
    assert buffer.usage == "any"
    assert buffer.is_host
    assert not buffer.readonly
    assert buffer.type == cpu.buffer_type
    assert buffer.name == "CPU"
    buffer.clear()
    buffer.clear(255)
    for wrong in (
        lambda: buffer.clear(256),
        lambda: buffer.clear(-1),
        lambda: cpu.allocate(-1),
        lambda: cpu.allocate(10, usage="other"),
    ):
        with pytest.raises(gb.errors.InvalidArgumentError):
            wrong()
    with pytest.raises(MemoryError):
        cpu.allocate(2**62)
    buffer.close()
    buffer.close()
    assert buffer.closed
    assert "closed" in repr(buffer)
    with pytest.raises(gb.errors.StateError, match="closed"):
        buffer.nbytes  # noqa: B018


def test_placing(ctx, cpu):
    buffer = cpu.allocate(1024)
    a, b = ctx.tensor((4, 4), name="a"), ctx.tensor(8, name="b")
    assert buffer.place(a) is a
    buffer.place(b, 64)
    buffer.clear()
    b.set(np.arange(8, dtype=np.float32))
    assert not a.numpy().any()
    assert a.buffer == buffer
    assert b.location == "CPU"
    for tensor, offset in [
        (a, 512),
        (ctx.tensor(4096), 0),
        (ctx.tensor(4), buffer.nbytes - 4),
        (ctx.tensor(4), -4),
        (ctx.tensor(4), 2 * buffer.nbytes),
        (a[1], 0),
    ]:
        with pytest.raises((gb.errors.InvalidArgumentError, gb.errors.StateError, gb.errors.AllocationError)):
            buffer.place(tensor, offset)


def test_context_allocation(ctx, sim):
    t = ctx.tensor((16, 16))
    buffer = ctx.allocate(sim, usage="weights")
    assert buffer.usage == "weights"
    assert t.buffer == buffer
    assert not t.is_host
    with pytest.raises(gb.errors.StateError, match="already"):
        ctx.allocate(sim)
    u = ctx.tensor((4096, 4096), name="u")
    ctx.tensor((4096, 4096))
    with pytest.raises(MemoryError):
        ctx.allocate(sim)
    assert not u.is_placed


def test_context_larger_than_one_allocation(ctx):
    device = gb.Backend("SIM", mem="64M", max="1M")
    tensors = [ctx.tensor((256, 512), name=str(i)) for i in range(5)]
    buffer = ctx.allocate(device)
    assert buffer.nbytes >= 5 * 256 * 512 * 4
    for i, t in enumerate(tensors):
        t.set(i)
    assert [t.numpy()[5, 5] for t in tensors] == [0, 1, 2, 3, 4]
    view = tensors[3][:2]
    buffer.close()
    for t in (*tensors, view):
        with pytest.raises(gb.errors.StateError):
            t.numpy()


def test_from_array_shares_memory(ctx):
    data = np.arange(32, dtype=np.float32)
    buffer = gb.Buffer.from_array(data, usage="weights")
    assert (buffer.usage, buffer.nbytes, buffer.readonly) == ("weights", 128, False)
    t = buffer.place(ctx.tensor((2, 4)), 64)
    np.testing.assert_array_equal(t.numpy().ravel(), data[16:24])
    t.set(0)
    assert not data[16:24].any()
    assert data[24] == 24
    assert gb.backend.cpu_buffer_type().from_array(data).nbytes == 128
    with pytest.raises(gb.errors.InvalidArgumentError):
        gb.Backend("SIM").buffer_type.from_array(data)


@pytest.mark.parametrize(
    "wrong", [np.zeros((3, 4))[:, ::2], np.zeros(0), np.array([None]), 3, b"", "text", [1, 2]], ids=repr
)
def test_from_array_refuses(wrong):
    with pytest.raises(gb.errors.InvalidArgumentError):
        gb.Buffer.from_array(wrong)


def test_misaligned_memory_computes(ctx, cpu, rng):
    raw = np.frombuffer(rng.bytes(4 * 40 + 1), np.uint8).copy()[1:161]
    values = rng.standard_normal(40).astype(np.float32)
    raw[:] = values.view(np.uint8)
    t = gb.Buffer.from_array(raw).place(ctx.tensor((5, 8)))
    y = t @ t.T
    scheduler = gb.Scheduler([cpu])
    graph = ctx.graph(y)
    scheduler.compute(graph)
    v = values.reshape(5, 8)
    np.testing.assert_allclose(y.numpy(), v @ v.T, rtol=1e-5, atol=1e-5)


def test_read_only_memory(tmp_path, ctx, cpu):
    path = tmp_path / "weights"
    path.write_bytes(np.arange(16, dtype=np.float32).tobytes())
    with path.open("rb") as f:
        mapping = mmap.mmap(f.fileno(), 0, access=mmap.ACCESS_READ)
    buffer = gb.Buffer.from_array(mapping, usage="weights")
    assert buffer.readonly
    t = buffer.place(ctx.tensor((4, 4), name="mapped"))
    assert not t.numpy().flags.writeable
    for act in (lambda: t.set(0), lambda: t[1].set(0), buffer.clear, lambda: t.copy_from(t)):
        with pytest.raises(gb.errors.StateError, match="read-only"):
            act()
    with pytest.raises(BufferError):
        mapping.close()
    scheduler = gb.Scheduler([cpu])
    y = t * 2.0
    scheduler.compute(ctx.graph(y))
    assert y.numpy()[3, 3] == 30
    bad = gb.ops.relu(t, inplace=True)
    with pytest.raises(gb.errors.StateError, match="read-only"):
        scheduler.compute(ctx.graph(bad))
    with pytest.raises(gb.errors.StateError, match="read-only"):
        ctx.graph(bad).compute(cpu)
    assert gb.Buffer.from_array(b"12345678").readonly


def test_mapping_can_be_closed_when_nothing_uses_it(tmp_path):
    path = tmp_path / "weights"
    path.write_bytes(bytes(64))
    with path.open("r+b") as f:
        mapping = mmap.mmap(f.fileno(), 0)
    buffer = gb.Buffer.from_array(mapping)
    with pytest.raises(BufferError):
        mapping.close()
    buffer.close()
    mapping.close()
