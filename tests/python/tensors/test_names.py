"""Names of tensors, keys and backends passed to C and back."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import ggml_backend as gb
from ggml_backend._base.text import Patterns

NO_NAMES = [b"bytes", 5, 1.5, ["a"], object()]


def takes_names(tmp_path: Path) -> dict[str, Callable[[Any], object]]:
    ctx = gb.Context()
    x = ctx.tensor((4,), name="a")
    graph = ctx.graph(gb.ops.relu(x).named("b"))
    writer = gb.gguf.Writer(tmp_path / "x.gguf")
    return {
        "Context.tensor": lambda name: ctx.tensor((4,), name=name),
        "Context.constant": lambda name: ctx.constant([1.0], name=name),
        "Context.from_numpy": lambda name: ctx.from_numpy(np.ones(64, np.float32), name=name),
        "Tensor.name": lambda name: setattr(x, "name", name),
        "Tensor.named": x.named,
        "Context.get": ctx.get,
        "Context[]": ctx.__getitem__,
        "Graph.get": graph.get,
        "Graph[]": graph.__getitem__,
        "Writer.add": lambda name: writer.add(name, 1),
        "Writer.add_tensor": lambda name: writer.add_tensor(name, np.ones(4, np.float32)),
        "Backend": gb.Backend,
        "Backend level": lambda name: gb.Backend("CPU", level=name),
    }


@pytest.mark.parametrize("what", takes_names(Path()))
def test_invalid_names_are_refused(tmp_path: Path, what: str) -> None:
    call = takes_names(tmp_path)[what]
    for wrong in NO_NAMES:
        with pytest.raises(TypeError, match=f"str, not {type(wrong).__name__}"):
            call(wrong)
    for name in ("a\0b", "\0", "a\0", "\ud800"):
        with pytest.raises(gb.errors.InvalidArgumentError, match=r"NUL|surrogate|contains"):
            call(name)


def test_a_failed_call_makes_no_tensor() -> None:
    ctx = gb.Context()
    with pytest.raises(gb.errors.InvalidArgumentError):
        ctx.tensor((4,), name="a\0b")
    assert ctx.tensors() == []
    x = ctx.tensor((4,), name="before")
    with pytest.raises(TypeError):
        x.name = b"after"  # type: ignore[assignment]
    assert x.name == "before"


@given(st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=90))
def test_names_are_cut_between_characters(name: str) -> None:
    got = gb.Context().tensor((1,), name=name).name
    assert name.startswith(got)
    assert len(got.encode()) <= 63
    rest = name[len(got) :]
    assert not rest or len((got + rest[0]).encode()) > 63


def test_generated_names_are_cut_between_characters() -> None:
    ctx = gb.Context()
    for n in range(20, 33):
        x = ctx.tensor((4, 4), name="é" * n)
        for t in (x.reshape(16), x.T, gb.ops.cont(x.T)):
            t.name.encode()  # whole characters
    odd = "\udcff" * 70  # bytes that are not UTF-8: cut anywhere
    assert ctx.tensor((1,), name=odd).name in (odd[:63], odd[:62], odd[:61], odd[:60])


def test_patterns_and_lookups() -> None:
    ctx = gb.Context()
    assert ctx.get("absent") is None
    x = ctx.tensor((4,), name="名前\udcff")
    assert x.name == "名前\udcff"
    assert ctx["名前\udcff"].name == x.name


def write_bytes_name(path: Path) -> list[str]:
    """A file with names that are not UTF-8."""
    names = ["\udcff\udcfe", "weight\udc80", "plain"]
    with gb.gguf.Writer(path) as writer:
        for i, name in enumerate(names):
            writer.add(f"key{name}", name).add_tensor(name, np.full((2, 32), i, np.float32))
    assert b"\xff\xfe" in path.read_bytes()
    return names


@pytest.mark.parametrize("where", ["CPU", "SIM"])
def test_files_with_names_that_are_not_utf_8(tmp_path: Path, where: str) -> None:
    path = tmp_path / "model.gguf"
    names = write_bytes_name(path)
    with gb.gguf.open(path) as file:
        assert list(file.tensors) == names
        weights = file.load({"weight*": gb.Backend(where), "*": gb.Backend("CPU")})
        assert list(weights) == names
        for i, name in enumerate(names):
            assert weights[name].name == name and weights.context[name].shape == (2, 32)
            assert (weights[name].numpy() == i).all()
            str(weights[name]), repr(file.tensors[name])
            assert file.load(gb.Backend(where), name)[name].numpy().shape == (2, 32)
        gb.gguf.Writer(tmp_path / "again.gguf").copy_from(file).close()
        with gb.gguf.open(tmp_path / "again.gguf") as again:
            assert list(again.tensors) == names and dict(again.metadata) == dict(file.metadata)
    for action in (["info"], ["dump"], ["check"]):
        command = [sys.executable, "-m", "ggml_backend", "gguf", *action, str(path)]
        done = subprocess.run(
            command, capture_output=True, check=False, timeout=60, env={**os.environ, "PYTHONUTF8": "1"}
        )
        assert done.returncode == 0 and not done.stderr, done.stderr


def test_lookups_of_impossible_names(tmp_path: Path) -> None:
    write_bytes_name(tmp_path / "model.gguf")
    with gb.gguf.open(tmp_path / "model.gguf") as file:
        for name in ("\ud800", "a\0b", "", "absent"):
            assert name not in file.tensors and name not in file.metadata
            with pytest.raises(KeyError):
                file.tensors[name]
            with pytest.raises(KeyError):
                file.metadata[name]
            assert file.metadata.get(name) is None
        for wrong in NO_NAMES[:2]:
            assert wrong not in file.tensors and wrong not in file.metadata


# ------------------------------------------------------------------------------------------------------------- patterns

pattern_text = st.text("ab.*?[]-!0", max_size=8)
name_text = st.text("ab.0-[", min_size=1, max_size=8)


@given(st.lists(name_text, max_size=30, unique=True), st.lists(pattern_text, max_size=10))
def test_patterns_are_those_of_fnmatch(names: list[str], patterns: list[str]) -> None:
    from fnmatch import fnmatchcase

    known = Patterns(names)
    for pattern in patterns:
        assert sorted(known.matching(pattern)) == sorted(n for n in names if fnmatchcase(n, pattern))
    first = {n: next((p for p in patterns if fnmatchcase(n, p)), None) for n in names}
    assert known.first(patterns) == {n: p for n, p in first.items() if p is not None}


def test_many_patterns(tmp_path: Path) -> None:
    """8,000 matching patterns for 2,000 blocks take linear time. There is a pattern with a leading
    ``*`` for each block, which may match many names."""
    path = tmp_path / "model.gguf"
    with gb.gguf.Writer(path) as writer:
        for i in range(2000):
            writer.add_tensor(f"blk.{i}.w", np.ones(8, np.float32))
        writer.add_tensor("end", np.ones(8, np.float32))
    cpu = gb.Backend("CPU")
    with gb.gguf.open(path) as file:
        for form in ("blk.{n}.{stars}", "blk.{n}.?{stars}", "{stars}.{n}.w"):
            start = time.perf_counter()
            n = 2000 if form.startswith("{stars}") else 8_000
            patterns = {form.format(n=i % 2000, stars="*" * (1 + i // 2000)): cpu for i in range(n)}
            assert len(patterns) == n
            weights = file.load({**patterns, "*": cpu})
            assert time.perf_counter() - start < 10
            assert len(weights) == 2001
        many = [f"*{i}.w" for i in range(2000)]  # "*1.w" matches 200 names, including those of "*11.w"
        start = time.perf_counter()
        with pytest.raises(gb.errors.InvalidArgumentError, match="decides nothing"):
            file.load(dict.fromkeys([*many, "*"], cpu))
        assert len(file.load(dict.fromkeys([*reversed(many), "*"], cpu))) == 2001
        assert len(file.load(cpu, many)) == 2000
        assert len(file.load(cpu, [f"blk.{i}.*" for i in range(2000)])) == 2000
        assert time.perf_counter() - start < 10
