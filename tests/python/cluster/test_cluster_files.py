"""Weights of ranks: read from their own copy of the file, sent where there is none, refused where it is another one."""

from __future__ import annotations

import numpy as np
import pytest

import ggml_backend as gb
from ggml_backend.cluster import LocalNetwork, _worker, simulated
from ggml_backend.cluster._messages import DATA

NBYTES = 4 * 50 * 1000  # of a tensor


@pytest.fixture
def file(tmp_path):
    rng = np.random.default_rng(0)
    with gb.gguf.Writer(tmp_path / "model.gguf") as out:
        for i in range(4):
            out.add_tensor(f"t{i}", rng.standard_normal((50, 1000)).astype(np.float32))
    return gb.gguf.open(tmp_path / "model.gguf")


def loaded(file, cluster, **options):
    one, two = cluster.backends()
    weights = file.load({"t[01]": one, "*": two}, **options)
    for name, tensor in weights.items():
        np.testing.assert_array_equal(tensor.numpy(), file.tensors[name].numpy())
    return weights


def sent(network):
    """Data from rank 0 to the others: messages and bytes."""
    return [network.sent.get((0, rank, DATA), [0, 0]) for rank in (1, 2)]


def without_the_file(monkeypatch):
    real = _worker.fill_from_file

    def fill(piece, offset, nbytes, path, at, digest):
        if path.endswith(".gguf"):
            raise FileNotFoundError(path)
        real(piece, offset, nbytes, path, at, digest)

    monkeypatch.setattr(_worker, "fill_from_file", fill)


def test_no_byte_of_a_weight_is_sent(file):
    network = LocalNetwork(3)
    with simulated(3, network=network) as cluster:
        done = []
        loaded(file, cluster, progress=lambda n, total: done.append((n, total)))
        assert sent(network) == [[0, 0], [0, 0]]
        assert done == [(i * NBYTES, 4 * NBYTES) for i in range(1, 5)]


def test_without_the_file_weights_are_sent_once_and_kept(file, tmp_path, monkeypatch):
    network = LocalNetwork(3)
    without_the_file(monkeypatch)
    with simulated(3, network=network, cache=tmp_path / "cache") as cluster:
        for _ in range(2):  # the second time from the cache
            loaded(file, cluster)
            assert sent(network) == [[2, 2 * NBYTES], [2, 2 * NBYTES]]
        assert len(list((tmp_path / "cache").iterdir())) == 4
        damaged = next((tmp_path / "cache").iterdir())
        damaged.write_bytes(bytes(NBYTES))
        loaded(file, cluster)  # what is not what its name says is not taken
        assert sum(n for n, _ in sent(network)) == 5


def test_another_file_is_an_error_with_file_tensor_and_rank(file, tmp_path):
    other = np.random.default_rng(1)
    with simulated(3) as cluster:
        with gb.gguf.Writer(tmp_path / "model.gguf") as out:  # the open one stays what it was
            for i in range(4):
                out.add_tensor(f"t{i}", other.standard_normal((50, 1000)).astype(np.float32))
        with pytest.raises(gb.FileError, match=r"load: 't0': rank 1 \(.*\): .*model\.gguf: .*: another file"):
            loaded(file, cluster)
        (tmp_path / "model.gguf").write_bytes(b"short")
        with pytest.raises(gb.FileError, match="has 5 in all: another file"):
            loaded(file, cluster)
        (tmp_path / "model.gguf").unlink()
        loaded(file, cluster)  # sent


def test_a_rank_that_is_lost_while_it_reads(file):
    network = LocalNetwork(3)
    with simulated(3, network=network, deadline=5) as cluster:
        devices = cluster.backends()
        network.kill(2)
        with pytest.raises(gb.DeviceLostError, match="rank 2"):
            file.load({"t[01]": devices[0], "*": devices[1]})
        for name, tensor in file.load(devices[0]).items():
            np.testing.assert_array_equal(tensor.numpy(), file.tensors[name].numpy())
