"""Files of the state of an optimizer: what they hold, damage, interrupted saving."""

from __future__ import annotations

import itertools
import math
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ggml_backend as gb
from trained_net import CLASSES, Array, batches, started


def test_a_loaded_state_goes_on_bit_for_bit(tmp_path: Path, cpu: gb.Backend) -> None:
    net, sched, optimizer = started(cpu, 3)
    optimizer.lr, optimizer.betas = 0.03, (0.85, 0.99)
    optimizer.save(tmp_path / "s.gguf", {"training.epoch": 7})
    other, other_sched, loaded = started(cpu, 1, seed=99)
    loaded.add(other_sched)  # forgotten by load
    loaded.load(tmp_path / "s.gguf")
    assert (loaded.n_steps, loaded.lr, loaded.betas, loaded.max_norm) == (3, 0.03, (0.85, 0.99), 0.5)
    for batch in batches(4, seed=6):
        net.feed(batch)
        other.feed(batch)
        assert optimizer.step(sched) == loaded.step(other_sched)
    for a, b in zip(net.copies(), other.copies(), strict=True):
        np.testing.assert_array_equal(a, b)


def test_the_file_of_a_state_is_a_model_file(tmp_path: Path, cpu: gb.Backend, trained: Any) -> None:
    net, _, optimizer = trained
    optimizer.save(tmp_path / "s.gguf", {"training.epoch": 7})
    with gb.gguf.open(tmp_path / "s.gguf") as file:
        assert file.metadata["training.epoch"] == 7
        weights = file.load(cpu, ["w1", "w2", "b"])
        for w in net.weights:
            np.testing.assert_array_equal(weights[w.name].numpy(), w.numpy())


def test_damaged_files_change_nothing(tmp_path: Path, trained: Any) -> None:
    net, sched, optimizer = trained
    path = tmp_path / "s.gguf"
    optimizer.save(path)
    whole, before = path.read_bytes(), net.copies()
    rng = np.random.default_rng(1)
    damaged = [whole[:n] for n in (0, 3, 24, 100, len(whole) // 2, len(whole) - 1)]
    for at in rng.integers(0, len(whole), 300):
        damaged.append(whole[:at] + bytes([whole[at] ^ (1 << int(rng.integers(0, 8)))]) + whole[at + 1 :])
    refused = 0
    for data in damaged:
        path.write_bytes(data)
        try:
            optimizer.load(path)
        except gb.errors.FileError:
            refused += 1
        else:  # a number of the file, or padding
            optimizer.lr, optimizer.betas, optimizer.weight_decay = 0.05, (0.9, 0.999), 0.01
            optimizer.eps, optimizer.max_norm = 1e-8, 0.5
        for a, b in zip(before, net.copies(), strict=True):
            np.testing.assert_array_equal(a, b)
    assert refused > len(damaged) * 0.7
    path.write_bytes(whole)
    optimizer.load(path)
    optimizer.step(sched)
    assert optimizer.n_steps == 4


def edited(path: Path, change: Callable[[dict[str, Any], dict[str, Array]], object]) -> None:
    """Writes the file again with other keys and tensors."""
    with gb.gguf.open(path.read_bytes()) as file:
        keys, tensors = dict(file.metadata), {name: t.numpy().copy() for name, t in file.tensors.items()}
        types = {key: file.metadata.type(key) for key in keys}
    change(keys, tensors)
    with gb.gguf.Writer(path) as writer:
        for key, value in keys.items():
            writer.add(key, value, None if isinstance(value, (str, float)) else types.get(key))
        for name, array in tensors.items():
            writer.add_tensor(name, array)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda keys, tensors: keys.pop("optim.kind"), "not a state of an optimizer"),
        (lambda keys, tensors: keys.update({"optim.kind": "SGD"}), "state of 'SGD', not of AdamW"),
        (lambda keys, tensors: keys.pop("optim.lr"), "'optim.lr' must be a number"),
        (lambda keys, tensors: keys.update({"optim.lr": -1.0}), "'optim.lr' must be a number"),
        (lambda keys, tensors: keys.update({"optim.lr": "fast"}), "'optim.lr' must be a number"),
        (lambda keys, tensors: keys.update({"optim.n_steps": math.inf}), "'optim.n_steps' must be a whole number"),
        (lambda keys, tensors: keys.update({"optim.n_steps": 1.5}), "'optim.n_steps' must be a whole number"),
        (lambda keys, tensors: tensors.pop("optim.m.w2"), "no tensor 'optim.m.w2'"),
        (lambda keys, tensors: tensors.update({"w3": np.ones(3, np.float32)}), "the tensor 'w3'"),
        (lambda keys, tensors: tensors.update({"b": np.ones(5, np.float32)}), r"'b' is float32 \(5,\), not"),
        (lambda keys, tensors: tensors.update({"b": np.ones(CLASSES, np.float16)}), "'b' is float16"),
        (lambda keys, tensors: tensors["w1"].__setitem__((0, 0), 9), "checksum of its data differs"),
    ],
)
def test_wrong_states_are_refused(tmp_path: Path, trained: Any, change: Any, words: str) -> None:
    _, _, optimizer = trained
    path = tmp_path / "s.gguf"
    optimizer.save(path)
    edited(path, change)
    with pytest.raises(gb.errors.FileError, match=words):
        optimizer.load(path)
    assert optimizer.n_steps == 3


def test_ctrl_c_while_saving_keeps_a_whole_state(tmp_path: Path, trained: Any) -> None:
    """Interrupted before each line of Python that saving runs: the file is the old one or the new one."""
    _, sched, optimizer = trained
    path = tmp_path / "s.gguf"
    optimizer.save(path)
    old = path.read_bytes()
    optimizer.step(sched)
    optimizer.save(path)
    new = path.read_bytes()
    assert len(new) == len(old) and new != old
    for n in itertools.count(1):
        path.write_bytes(old)
        lines = itertools.count(1)

        def tracer(frame: Any, event: str, arg: Any, lines: Any = lines, n: int = n) -> Any:
            if event == "line" and next(lines) == n:
                raise KeyboardInterrupt
            return tracer

        before = sys.gettrace()
        sys.settrace(tracer)
        try:
            optimizer.save(path)
        except KeyboardInterrupt:
            assert path.read_bytes() in (old, new), n
        else:
            break
        finally:
            sys.settrace(before)
    assert n > 50 and path.read_bytes() == new
    optimizer.load(path)
    assert optimizer.n_steps == 4


def test_states_that_cannot_be_saved(tmp_path: Path, cpu: gb.Backend) -> None:
    net, sched, optimizer = started(cpu, 1)
    with pytest.raises(gb.errors.InvalidArgumentError, match=r"begins with 'optim\.'"):
        optimizer.save(tmp_path / "s.gguf", {"optim.lr": 3})
    optimizer.add(sched)
    with pytest.raises(gb.errors.StateError, match="1 added batch would be lost"):
        optimizer.save(tmp_path / "s.gguf")
    optimizer.step(sched)
    net.weights[0].name = "b"
    with pytest.raises(gb.errors.InvalidArgumentError, match="two weights have this name"):
        optimizer.save(tmp_path / "s.gguf")
    assert os.listdir(tmp_path) == []
