"""Fixtures for the tests of the package."""

from __future__ import annotations

import contextlib
import gc
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ggml_backend as gb
from ggml_backend._ffi import lib

# Folders that tests of several folders import. Other imports of a test are in its own folder.
sys.path[:0] = [str(Path(__file__).parent / folder) for folder in ("support", "harness")]

from programs import forks, holds  # noqa: E402, F401 - fixtures

# a shell's background job ignores SIGINT, and programs that tests start would inherit that
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session", autouse=True)
def _caches(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Keeps caches out of the user's home, also without the Makefile."""
    os.environ.setdefault("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Lists the reasons for skipped tests once, most frequent first."""
    reasons: Counter[str] = Counter()
    for report in terminalreporter.stats.get("skipped", []):
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
        reasons[" ".join(reason.removeprefix("Skipped: ").split())] += 1
    if reasons:
        terminalreporter.section("skipped tests, by reason")
    for reason, n in reasons.most_common():
        terminalreporter.write_line(f"{n:5}  {reason}")


@pytest.fixture
def cpu() -> gb.Backend:
    return gb.Backend("CPU", n_threads=2)


@pytest.fixture
def computed(cpu: gb.Backend) -> Callable[[gb.Tensor], np.ndarray[Any, Any]]:
    """The values of a node, computed on the CPU by a scheduler."""

    def compute(node: gb.Tensor) -> np.ndarray[Any, Any]:
        sched = gb.Scheduler([cpu])
        assert sched.compute(node.context.graph(node))
        return node.numpy(copy=True)

    return compute


@pytest.fixture
def sim() -> gb.Backend:
    return gb.Backend("SIM", mem="64M")


def open_device(name: str) -> gb.Backend:
    """The backend. Skips the test if there is no such device, for example CUDA0."""
    names = gb.backends()
    if name.startswith("CUDA") and name not in names:
        pytest.skip(f"CUDA: {names.missing.get('CUDA', f'there is no {name}')}")
    return gb.Backend(name)


@contextlib.contextmanager
def fusion(on: bool) -> Iterator[None]:
    before = lib.ggml_graph_get_fusion()
    lib.ggml_graph_set_fusion(on)
    try:
        yield
    finally:
        lib.ggml_graph_set_fusion(before)


def unfused() -> contextlib.AbstractContextManager[None]:
    """Turns fusion off. Fused nodes round differently, and their neighbours and memory decide which
    nodes are fused."""
    return fusion(False)


@pytest.fixture
def node_by_node() -> Iterator[None]:
    with unfused():
        yield


@pytest.fixture
def ctx() -> Iterator[gb.Context]:
    with gb.Context() as context:
        yield context


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(7)


@pytest.fixture
def script() -> Callable[..., str]:
    """Runs Python source in a fresh interpreter and returns its output. Fails on a crash or output
    on stderr."""

    def run(source: str, *arguments: str) -> str:
        done = subprocess.run(
            [sys.executable, "-X", "dev", "-W", "error", "-c", source, *arguments],
            capture_output=True, text=True, timeout=240, env={**os.environ, "PYTHONFAULTHANDLER": "1"}, check=False,
        )  # fmt: skip
        assert done.returncode == 0, f"exit status {done.returncode}\n{done.stdout}\n{done.stderr}"
        assert done.stderr == "", done.stderr
        return done.stdout

    return run


@pytest.fixture
def prompt_frees(monkeypatch: pytest.MonkeyPatch) -> None:
    """For scripts that measure memory: the address sanitizer then releases freed memory at once."""
    sizes = "quarantine_size_mb=0:thread_local_quarantine_size_kb=0:allocator_release_to_os_interval_ms=0"
    options = f"{os.environ.get('ASAN_OPTIONS', '')}:{sizes}"
    monkeypatch.setenv("ASAN_OPTIONS", options.lstrip(":"))


def pytest_collection_finish() -> None:
    gc.collect()
    gc.freeze()  # test modules stay alive anyway; without this each collection below takes 50 ms


@pytest.fixture(autouse=True)
def collected() -> Iterator[None]:
    """Frees objects after each test, so that a crash in freeing belongs to its test."""
    yield
    gc.collect()
