"""No data message is longer than the limit, on any path."""

from __future__ import annotations

import numpy as np
import pytest

import ggml_backend as gb
from ggml_backend.cluster import LocalNetwork, simulated
from ggml_backend.cluster import _messages as m

LIMIT = 10000  # larger than inline data of a command
SIZES = [LIMIT - 4, LIMIT, LIMIT + 4, 2 * LIMIT, 3 * LIMIT + 28]  # bytes
RAW = [LIMIT - 1, LIMIT, LIMIT + 1, 2 * LIMIT, 3 * LIMIT + 7]


@pytest.fixture
def longest(monkeypatch):
    """The length of the longest data message. The network refuses more than a small limit, as MPI
    does beyond 2 GiB."""
    monkeypatch.setattr(m, "MAX_DATA", LIMIT)
    found = [0]
    original = LocalNetwork._post_letter

    def post(network, target, tag, letter):
        if tag % m.N_CHANNELS == m.DATA:
            assert letter.nbytes <= LIMIT or network.size == 2
            found[0] = max(found[0], letter.nbytes)
        original(network, target, tag, letter)

    monkeypatch.setattr(LocalNetwork, "_post_letter", post)
    yield found
    assert found[0] > 0


@pytest.fixture(params=["copied", "lent"])
def ranks(request, monkeypatch, longest):
    """A cluster whose ranks send copies of data, or lend data."""
    from ggml_backend.cluster import _worker

    if request.param == "lent":
        monkeypatch.setattr(_worker, "_LEND", 64)
    with simulated(3, deadline=10) as found:
        yield found


def values(nbytes: int, rng: np.random.Generator) -> np.ndarray:
    return rng.integers(-128, 127, nbytes).astype(np.int8)


@pytest.mark.parametrize("nbytes", RAW)
def test_set_get_and_copies_are_sent_in_pieces(nbytes, ranks, ctx, rng):
    one, two = ranks.backends()
    a, b, c = (ctx.tensor(nbytes, "i8") for _ in range(3))
    for tensor, device in ((a, one), (b, two), (c, one)):
        device.allocate(nbytes + 64).place(tensor)
    x = values(nbytes, rng)
    a.set(x)
    assert (a.numpy() == x).all()
    b.copy_from(a)  # from rank to rank
    assert (b.numpy() == x).all()
    c.copy_from(a)  # within a rank
    assert (c.numpy() == x).all()
    part = values(nbytes // 2, rng)
    b.set(part, nbytes // 4)
    x[nbytes // 4 : nbytes // 4 + nbytes // 2] = part
    assert (b.numpy() == x).all()


@pytest.mark.parametrize("nbytes", SIZES)
@pytest.mark.parametrize("n_copies", [1, 3])
def test_cuts_weights_and_results_are_sent_in_pieces(nbytes, n_copies, ranks, cpu, ctx, rng):
    """The graph runs through both ranks and back: it sends inputs, weights, results between ranks, and outputs."""
    one, two = ranks.backends()
    n = nbytes // 4
    weights = gb.Context()
    w = weights.tensor(n, name="w")
    buffer = weights.allocate(cpu, usage="weights")
    v = rng.standard_normal(n, dtype=np.float32)
    w.set(v)
    x = ctx.tensor(n, name="x").set_input()
    first = x + w
    second = gb.ops.relu(first) * w
    last = second + x
    with gb.Scheduler([one, two, cpu], n_copies=n_copies) as sched:
        for node, device in ((first, one), (second, two), (second.sources[0], two), (last, cpu)):
            sched.set_backend(node, device)
        graph = ctx.graph(last, first)
        sched.allocate(graph)
        for _ in range(3):
            u = rng.standard_normal(n, dtype=np.float32)
            x.set(u)
            found, early = sched.compute_async(graph, [last, first]).results()
            np.testing.assert_array_equal(early, u + v)
            np.testing.assert_array_equal(found, np.maximum(u + v, 0) * v + u)
    buffer.close()


def test_a_loaded_model_is_sent_in_pieces(ranks, rng, tmp_path):
    path, shape = tmp_path / "model.gguf", (64, 200)
    w = rng.standard_normal(shape, dtype=np.float32)
    with gb.gguf.Writer(path) as writer:
        writer.add("general.architecture", "test")
        writer.add_tensor("w", w)
    with gb.gguf.open(path) as file:
        for device in ranks.backends():
            with file.load(device) as weights:
                assert (weights["w"].numpy() == w).all()


def test_a_longer_message_is_refused(longest):
    network = LocalNetwork(2)
    network.transport(0).send(1, m.DATA, bytes(LIMIT))
    with pytest.raises(gb.errors.DeviceError, match=f"a message of {LIMIT + 1} bytes exceeds the limit of {LIMIT}"):
        network.transport(0).send(1, m.DATA, bytes(LIMIT + 1))


@pytest.mark.parametrize("nbytes", [0, 1, LIMIT, LIMIT + 1, 2**31 - 1, 2**31, 5 * 2**31 + 3])
def test_pieces_cover_all_bytes_once(nbytes):
    at = 0
    for begin, n in m.pieces_of(nbytes):
        assert begin == at and 0 <= n <= m.MAX_DATA < 2**31
        at += n
    assert at == nbytes
