"""Each attack harness for a few seconds. ``make check-long`` runs each for 20 to 60 seconds. A
failure names the seed. Run the command with ``--seed`` to repeat it.
"""

from __future__ import annotations

import itertools
import os
import re
import subprocess
import sys
import threading
from pathlib import Path

import pytest

import ggml_backend as gb
from ggml_backend._base.renamed import Renamed
from harness_clusters import OPERATIONS as CLUSTER_OPERATIONS
from harness_clusters import ClusterScene, Instructions
from harness_interleave import Places, tolerant
from harness_scene import CLOSERS, OPERATIONS, SANITIZED, Scene

pytestmark = pytest.mark.slow

HERE = Path(__file__).parent
HARNESSES = {
    "interrupts": ["harness_interrupts.py"],
    "failed allocations": ["harness_interrupts.py", "--no-memory"],
    "interrupts heard": ["harness_interrupts.py", "--latency"],
    "interrupts everywhere": ["harness_interleave.py"],
    "handlers everywhere": ["harness_interleave.py", "--mode", "handlers"],
    "threads everywhere": ["harness_interleave.py", "--mode", "threads"],
    "closing": ["harness_closing.py"],
    "pairs": ["harness_closing.py", "--pairs"],
    "zeros": ["harness_zeros.py"],
    "fork": ["harness_fork.py"],
    "damaged messages": ["harness_messages.py"],
    "clusters, interrupts": ["harness_clusters.py"],
    **{
        f"clusters, {mode}": ["harness_clusters.py", "--mode", mode]
        for mode in ("timer", "handlers", "threads", "fork")
    },
}


def test_every_operation_of_a_cluster_works():
    scene = ClusterScene()
    for act in CLUSTER_OPERATIONS.values():
        act(scene)
    scene.check()
    scene.check_ranks()
    scene.close()


@pytest.mark.parametrize("name", ["read a", "compute", "copy to b"])
def test_handlers_can_read_during_any_operation(name):
    """At each place of an operation of a cluster, a handler on the same thread receives arrived
    messages and requests more."""
    scene, places = ClusterScene(), Instructions()
    for k in itertools.count(1):
        if not places.run(lambda: CLUSTER_OPERATIONS[name](scene), k, lambda: CLUSTER_OPERATIONS["read a"](scene)):
            break
        lost = [r.lost for r in scene.cluster.ranks if r.lost]
        assert not lost, f"{places.where}: {lost[0]}"
    assert k > 20
    scene.check()
    scene.check_ranks()
    scene.close()


ALONE = {"interrupts heard"}


@pytest.mark.parametrize("name", [pytest.param(n, marks=pytest.mark.alone if n in ALONE else ()) for n in HARNESSES])
def test_the_harness_finds_no_failure(name, prompt_frees, capsys):
    if name.endswith("fork") and SANITIZED:
        pytest.skip("the sanitizer of gcc 12 holds its own locks in a child of several threads, which then hangs")
    file, *flags = HARNESSES[name]
    seconds = os.environ.get("GB_HARNESS_SECONDS", "8")
    seed = os.environ.get("GB_HARNESS_SEED", "1")
    command = [sys.executable, str(HERE / file), *flags, "--seconds", seconds, "--seed", seed]
    done = subprocess.run(command, capture_output=True, text=True, errors="replace", check=False)
    with capsys.disabled():
        print(
            f" [{name}: {done.stdout.strip().splitlines()[0] if done.returncode == 0 else 'failed'}] ",
            end="",
            flush=True,
        )
    assert done.returncode == 0, done.stdout[-8000:] + done.stderr[-2000:]


def test_every_operation_works():
    """Each operation runs again in a scene after all others."""
    scene = Scene()
    for name, act in OPERATIONS.items():
        fresh = Scene()
        if name in ("read z", "file view"):  # z was not computed yet
            fresh.sched.compute(fresh.custom)
        act(fresh)
        fresh.check()
        fresh.close()
        try:
            act(scene)
        except gb.errors.StateError:
            assert name in (
                "read y",
                "read z",
                "read b",
                "read q",
                "fetch y",
                "item y",
                "view y",
                "dlpack result",
                "dlpack copy",
            ), name  # outdated
    scene.check()


def _trace_and_close(w: Scene) -> None:
    w.sched.trace()
    w.sched.close()


def _stop_trace(w: Scene) -> None:
    trace = w.sched._trace
    if trace is not None:
        trace.stop()


@pytest.mark.parametrize(("act", "intruder"), [
    *((OPERATIONS[name], CLOSERS["close file"]) for name in ("metadata", "file tensor", "file view", "load",
     "load on the device")),
    *((OPERATIONS[name], CLOSERS["close event"]) for name in ("record", "event wait", "event synchronize")),
    (OPERATIONS["allocator facts"], CLOSERS["close allocator"]),
    (OPERATIONS["measure"], CLOSERS["close graph allocator"]),
    (_trace_and_close, _stop_trace), (_trace_and_close, CLOSERS["close scheduler"]),
])  # fmt: skip
def test_another_operation_at_every_place(act, intruder):
    """Runs some pairs at all places, which the harness tries at random places."""
    places = Places(instructions=False)
    for k in itertools.count(1):
        scene = Scene()
        if not places.run(lambda scene=scene: tolerant(act, scene), k, lambda scene=scene: tolerant(intruder, scene)):
            break
        for closer in CLOSERS.values():
            tolerant(closer, scene)
    assert k > 5


BESIDE = {
    **{name: OPERATIONS[name] for name in ("results of a function", "compute a function async", "synchronize")},
    "trace": lambda w: w.sched.trace().stop(),
}


@pytest.mark.parametrize("other", ["synchronize", "trace"])
@pytest.mark.parametrize("act", list(BESIDE))
def test_another_thread_at_every_place(act, other):
    """At each place of an operation, which pauses there, another thread runs another operation as
    far as possible."""
    scene, places, raised = Scene(), Places(instructions=False), []

    def guarded() -> None:
        try:
            tolerant(BESIDE[other], scene)
        except BaseException as error:
            raised.append(error)

    for k in itertools.count(1):
        helper = threading.Thread(target=guarded)

        def start(helper: threading.Thread = helper) -> None:
            helper.start()
            helper.join(0.002)

        if not places.run(lambda: tolerant(BESIDE[act], scene), k, start):
            break
        helper.join()
        assert not raised, f"{places.where}: {raised[0]!r}"
    assert k > 5
    scene.check()
    scene.close()


CLASSES = [
    gb.Context, gb.Tensor, gb.Graph, gb.Scheduler, gb.Backend, gb.Buffer, gb.backend.BufferType, gb.backend.Event,
    gb.sched.Pending, gb.sched.TensorAllocator, gb.sched.GraphAllocator,
    gb.sched.Trace, gb.gguf.GGUFFile, gb.gguf.GGUFTensor, gb.gguf.Metadata, gb.gguf.Weights, gb.gguf.Writer,
]  # fmt: skip


@pytest.mark.parametrize("kind", CLASSES)
def test_every_public_method_is_in_the_table(kind):
    """A new method needs a row in the table of operations."""
    source = (HERE / "harness_scene.py").read_text(encoding="utf-8") + (HERE / "harness_closing.py").read_text(
        encoding="utf-8"
    )
    names = {
        n
        for k in kind.__mro__
        if k.__module__.startswith("ggml_backend")
        for n in vars(k)
        if not n.startswith("_") and n in dir(kind) and not isinstance(vars(k)[n], Renamed)
    }
    assert {n for n in names if not re.search(rf"\.{n}\b", source)} == set()
