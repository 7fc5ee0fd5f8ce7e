"""A rank reads weights from its own copy of the file, receives them without a copy, and refuses a
different file.
"""

from __future__ import annotations

import errno
import hashlib
import os
import shutil

import numpy as np
import pytest

import ggml_backend as gb
from ggml_backend.cluster import LocalNetwork, _memory, _worker, simulated
from ggml_backend.cluster._messages import DATA
from ranks import compute_on

NBYTES = 4 * 50 * 1000  # bytes of a tensor


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
        loaded(file, cluster)  # a cached file with wrong contents is ignored
        assert sum(n for n, _ in sent(network)) == 5


def test_another_file_is_an_error_with_file_tensor_and_rank(file, tmp_path):
    other = np.random.default_rng(1)
    with simulated(3) as cluster:
        with gb.gguf.Writer(tmp_path / "model.gguf") as out:  # the open one stays what it was
            for i in range(4):
                out.add_tensor(f"t{i}", other.standard_normal((50, 1000)).astype(np.float32))
        with pytest.raises(
            gb.errors.FileError, match=r"load: 't0': rank 1 \(.*\): .*model\.gguf: .*: the files differ"
        ):
            loaded(file, cluster)
        (tmp_path / "model.gguf").write_bytes(b"short")
        with pytest.raises(gb.errors.FileError, match=r"the file has 5 bytes, rank 0 needs .*: the files differ"):
            loaded(file, cluster)
        (tmp_path / "model.gguf").unlink()
        loaded(file, cluster)  # sent


@pytest.mark.parametrize("what", ["loop", "pipe", "folder", "unreadable"])
def test_an_unreadable_file_is_an_error_with_file_tensor_and_rank(file, tmp_path, what, monkeypatch):
    path = tmp_path / "model.gguf"
    path.unlink()
    if what == "loop":
        path.symlink_to(path)
    elif what == "pipe":
        os.mkfifo(path)
    elif what == "folder":
        path.mkdir()
    else:  # root can read all files
        path.touch()
        monkeypatch.setattr(_memory, "open_regular", denied)
    with simulated(3) as cluster:
        with pytest.raises(gb.errors.FileError, match=r"load: 't0': rank 1 \(.*\): .*model\.gguf: "):
            loaded(file, cluster)
        compute_on(cluster.backends()[0])


def denied(path):
    raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), path)


def test_a_path_below_a_file_counts_as_missing(file, tmp_path):
    """On this rank a file replaces a folder of the path."""
    (tmp_path / "folder").mkdir()
    moved = gb.gguf.open(shutil.copy(tmp_path / "model.gguf", tmp_path / "folder"))
    shutil.rmtree(tmp_path / "folder")
    (tmp_path / "folder").touch()
    network = LocalNetwork(3)
    with simulated(3, network=network) as cluster:
        loaded(moved, cluster)
        assert sent(network) == [[2, 2 * NBYTES], [2, 2 * NBYTES]]


def test_another_path_to_the_same_bytes(file, tmp_path):
    (tmp_path / "model.gguf").rename(tmp_path / "real")
    (tmp_path / "model.gguf").symlink_to("real")
    network = LocalNetwork(3)
    with simulated(3, network=network) as cluster:
        loaded(file, cluster)
        assert sent(network) == [[0, 0], [0, 0]]


def test_a_cache_that_cannot_be_written(file, tmp_path, monkeypatch):
    without_the_file(monkeypatch)
    (tmp_path / "cache").touch()
    with simulated(2, cache=tmp_path / "cache") as cluster:
        device = cluster.backends()[0]
        weights = file.load(device)
        with pytest.raises(
            gb.errors.FileError, match=r"rank 1 \(.*\): the cache .* cannot keep 200000 bytes .*cache=\.\.\."
        ):
            device.synchronize()
        compute_on(device)
        np.testing.assert_array_equal(weights["t0"].numpy(), file.tensors["t0"].numpy())


def test_a_rank_that_is_lost_while_it_reads(file):
    network = LocalNetwork(3)
    with simulated(3, network=network, deadline=5) as cluster:
        devices = cluster.backends()
        network.kill(2)
        with pytest.raises(gb.errors.DeviceLostError, match="rank 2"):
            file.load({"t[01]": devices[0], "*": devices[1]})
        for name, tensor in file.load(devices[0]).items():
            np.testing.assert_array_equal(tensor.numpy(), file.tensors[name].numpy())


def allocated(file, device):
    """Constants of the mapped file on a device, and one other constant."""
    ctx = gb.Context()
    made = [ctx.constant(file.tensors[f"t{i}"].numpy(), name=f"c{i}") for i in range(4)]
    made.append(ctx.constant(np.arange(5000, dtype=np.float32), name="other"))
    buffer = ctx.allocate(device, "weights")
    for i, tensor in enumerate(made[:4]):
        np.testing.assert_array_equal(tensor.numpy(), file.tensors[f"t{i}"].numpy())
    np.testing.assert_array_equal(made[4].numpy(), np.arange(5000))
    return ctx, buffer


def test_constants_of_a_mapped_file_are_read_by_the_rank(file, tmp_path, monkeypatch):
    network = LocalNetwork(3)
    with simulated(3, network=network, cache=tmp_path / "cache") as cluster:
        one, two = cluster.backends()
        for device in (one, two):
            _, buffer = allocated(file, device)
            buffer.clear(1)  # clear sets constants again
        assert sent(network) == [[2, 2 * 20000], [2, 2 * 20000]]  # twice: the constant without a file
        network.sent.clear()
        without_the_file(monkeypatch)
        for _ in range(2):
            allocated(file, one)
        assert sent(network) == [[6, 4 * NBYTES + 2 * 20000], [0, 0]]  # the second time from the cache


def test_constants_of_a_memory_map_of_the_program(tmp_path):
    data = np.random.default_rng(0).standard_normal((100, 100)).astype(np.float32)
    np.save(tmp_path / "a.npy", data)
    network = LocalNetwork(2)
    with simulated(2, network=network) as cluster, gb.Context() as ctx:
        mapped = np.load(tmp_path / "a.npy", mmap_mode="r")
        whole, rows = ctx.constant(mapped), ctx.constant(mapped[50:])
        ctx.allocate(cluster.backends()[0])
        assert network.sent.get((0, 1, DATA), [0, 0]) == [0, 0]
        np.testing.assert_array_equal(whole.numpy(), data)
        np.testing.assert_array_equal(rows.numpy(), data[50:])


def test_constants_of_another_file(file, tmp_path):
    with simulated(2) as cluster:
        (tmp_path / "model.gguf").unlink()
        with gb.gguf.Writer(tmp_path / "model.gguf") as out:
            out.add_tensor("t0", np.zeros((300, 1000), np.float32))
        with pytest.raises(gb.errors.FileError, match=r"'c\d': rank 1 \(.*\): .*model\.gguf: .*the files differ"):
            allocated(file, cluster.backends()[0])


class Reader(gb.devices.Device):
    """A device with its own memory that reads files itself."""

    memory = "own"

    def __init__(self, log: object) -> None:
        self.log = log

    def allocate(self, nbytes):
        return np.zeros(nbytes, np.uint8)

    def fill_from_file(self, memory, offset, path, at, nbytes, digest):
        self.log.append((path, at, nbytes))
        if self.log[0] == "cannot":
            return None

        def wait():
            data = np.fromfile(path, np.uint8)[at : at + nbytes]
            if self.log[0] == "absent":
                return False
            if hashlib.blake2b(data, digest_size=32).digest() != digest:
                raise gb.errors.FileError("the files differ")
            memory[offset : offset + nbytes] = data
            return True

        return wait

    def keep_file(self, memory, offset, nbytes, digest):
        assert hashlib.blake2b(memory[offset : offset + nbytes], digest_size=32).digest() == digest
        self.log.append("kept")


@pytest.mark.parametrize("what", ["reads", "absent", "cannot"])
def test_a_python_device_reads_files(file, tmp_path, what):
    gb.devices.register_device("READER", Reader, replace=True)
    log = [what]
    with gb.Backend("READER", log=log) as device:
        weights = file.load(device)
        for name, tensor in weights.items():
            np.testing.assert_array_equal(tensor.numpy(), file.tensors[name].numpy())
        path = str(tmp_path / "model.gguf")
        asked = [(path, file.tensors[f"t{i}"].offset, NBYTES) for i in range(4)]
        assert [entry for entry in log[1:] if entry != "kept"] == asked
        assert log.count("kept") == (4 if what == "absent" else 0)
        if what == "reads":
            (tmp_path / "model.gguf").unlink()  # the open one stays what it was
            (tmp_path / "model.gguf").write_bytes(bytes(1000000))
            with pytest.raises(gb.errors.FileError, match="load: 't0': the files differ"):
                file.load(device)
