"""``gb.testing.check_device`` passes correct devices written in Python, and finds the faults of
others.
"""

from __future__ import annotations

import importlib
import importlib.util
from collections import deque
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import ggml_backend as gb
from python_devices import NAMES, Box, Host, HostQueued, Mark, Own, Queued
from source_tree import in_tree


@pytest.fixture(scope="module")
def numpy_device():
    spec = importlib.util.spec_from_file_location("numpy_device_of_the_check", in_tree("examples/numpy_device.py"))
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.NumPyDevice


def test_the_example_passes(numpy_device):
    gb.devices.register_device("NPCHECK", numpy_device, replace=True)
    report = gb.testing.check_device("NPCHECK", quick=True)
    assert report.ok, str(report)
    computed = {c.op for c in report.passed if c.group == "operators"}
    names = "add sub mul div scale mul_mat matmul norm rms_norm soft_max get_rows cont"
    assert computed == set(names.split())
    assert {c.message for c in report.refused if c.op == "soft_max" and "," in c.name.split("/")[1]} >= {"a mask"}


@pytest.mark.parametrize("name", NAMES)
def test_right_devices_pass(name, monkeypatch):
    monkeypatch.setattr(Own, "allocate", lambda device, nbytes: Box(nbytes))  # Own.allocate keeps its boxes
    report = gb.testing.check_device(name, quick=True, **({"delay": 0.0} if "QUEUE" in name else {}))
    assert report.ok, str(report)
    assert {c.op for c in report.passed if c.group == "operators"} == {"add", "sub", "mul", "div", "scale"}


@pytest.mark.parametrize("free", [False, True])
def test_leaked_memory_is_found(free):
    if free:  # free heap memory of the process, which leaked memory would reuse
        np.full(30 << 20, 1, np.uint8)  # glibc keeps blocks of up to this size from then on
        blocks = [np.full(4 << 20, 1, np.uint8) for _ in range(64)]
        last = [np.full(1 << 16, 1, np.uint8) for _ in range(8)]  # behind them in the heap, so that they stay
        blocks.clear()
        assert last
    report = gb.testing.check_device("PYOWN", only="memory", quick=True)
    assert [c.name for c in report.failed] == ["memory/returned"]


# --------------------------------------------------------------------------------------------------------------- faults


class Values(Host):
    @gb.devices.op("add")
    def elements(self, node: gb.devices.Node, out: Any, a: Any, b: Any) -> None:
        with np.errstate(over="ignore"):
            np.add(a, b.astype(np.float16), out=out)


class Few(Host):
    """Omits the last element of more than four."""

    @gb.devices.op("add")
    def elements(self, node: gb.devices.Node, out: Any, a: Any, b: Any) -> None:
        whole = (a + b).reshape(-1)
        n = whole.size // 4 * 4 if whole.size > 4 else whole.size
        mask = np.arange(whole.size) < n
        np.copyto(out, whole.reshape(out.shape), where=mask.reshape(out.shape))


class Beyond(Host):
    """Writes an element behind its result."""

    @gb.devices.op("add")
    def elements(self, node: gb.devices.Node, out: Any, a: Any, b: Any) -> None:
        np.add(a, b, out=out)
        if out.size and out.flags.c_contiguous:
            np.lib.stride_tricks.as_strided(out.reshape(-1), (out.size + 1,), (4,))[-1] = 1


class Lies(Host):
    def supports(self, node: gb.devices.Node) -> bool | str:
        return node.op == "sqr" or super().supports(node)


class Stale(Host):
    """Reads sources only when it makes the plan."""

    def compile(self, calls: Any) -> Any:
        results = []

        def run() -> None:
            if not results:
                super(Stale, self).compile(calls)()
                results.extend(np.array(c.out) for c in calls)
            else:
                for call, kept in zip(calls, results, strict=True):
                    call.out[...] = kept

        return run


class OffsetBox(Box):
    def write(self, offset: int, data: memoryview) -> None:
        super().write(0 if len(data) < 4 else offset, data)


class HalfBox(Box):
    def fill(self, value: int) -> None:
        self.bytes[: self.bytes.size // 2] = value


class CopyBox(Box):
    def copy_from(self, offset: int, source: Any, at: int, nbytes: int) -> bool:
        return isinstance(source, Box)


def owning(box: type[Box]) -> type[gb.devices.Device]:
    class Owning(Own):
        def allocate(self, nbytes: int) -> Any:
            return box(nbytes)

    return Owning


class Hasty(Queued):
    """Does not wait for its queue."""

    def synchronize(self) -> None:
        pass


class Lazy(HostQueued):
    """Computes only during a wait, so that a missing wait is found even on a busy machine."""

    def __init__(self) -> None:
        super().__init__()
        self.left: deque[Callable[[], None]] = deque()

    def submit(self, work: Callable[[], None]) -> None:
        self.left.append(work)

    def synchronize(self) -> None:
        while self.left:
            self.left.popleft()()

    def event(self) -> Mark:
        mark = Mark(self)
        mark.synchronize = self.synchronize  # type: ignore[method-assign]
        mark.wait = lambda device: self.synchronize()  # type: ignore[method-assign]
        return mark


class Deaf(Lazy):
    """Other queues do not wait for its marks."""

    def event(self) -> Mark:
        mark = super().event()
        mark.wait = lambda device: None  # type: ignore[method-assign]
        return mark


class Exits(Host):
    @gb.devices.op("sqr")
    def sqr(self, node: gb.devices.Node, out: Any, a: Any) -> None:
        raise SystemExit(0)


class Constant(Host):
    """All custom functions give the same result."""

    computes_custom = True

    def step(self, call: gb.devices.Call) -> Any:
        if call.node.op in ("custom", "map_custom1"):
            return lambda: call.out.fill(99)
        return super().step(call)


#: Name -> class, options, and the cases that must fail.
WRONG: dict[str, tuple[type[gb.devices.Device], dict[str, Any], set[str]]] = {
    "raises": (Host, {"odd": "raise"}, {"add", "mul", "graphs: random"}),
    "shape": (Host, {"odd": "shape"}, {"add", "mul"}),
    "list": (Host, {"odd": "list"}, {"add", "mul"}),
    "complex": (Host, {"odd": "complex"}, {"add", "mul"}),
    "source": (Host, {"odd": "write_source"}, {"add", "mul"}),
    "outside": (Host, {"odd": "write_outside"}, {"add", "mul"}),
    "values": (Values, {}, {"add"}),
    "few": (Few, {}, {"add"}),
    "beyond": (Beyond, {}, {"add"}),
    "lies": (Lies, {}, {"sqr"}),
    "stale": (Stale, {}, {"graphs: again"}),
    "no memory": (Own, {"alloc": "none"}, {"memory", "add"}),
    "full": (Own, {"alloc": "full"}, {"memory", "add"}),
    "offset": (owning(OffsetBox), {}, {"memory"}),
    "half": (owning(HalfBox), {}, {"memory"}),
    "copy": (owning(CopyBox), {}, {"memory"}),
    "hasty": (Hasty, {}, {"add"}),
    "deaf": (Deaf, {}, {"graphs: two"}),
    "exits": (Exits, {}, {"sqr"}),
    "constant": (Constant, {}, {"graphs: functions"}),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_faults_are_found(wrong):
    kind, options, expected = WRONG[wrong]
    gb.devices.register_device("WRONG", kind, replace=True)
    only = ["add", "mul", "sqr", "memory", "graphs", "refusal/relu"]
    report = gb.testing.check_device("WRONG", quick=True, only=only, **options)
    assert not report.ok
    assert {c.op for c in report.failed} >= expected, str(report)
    assert all(c.message for c in report.failed)
    gb.devices.register_device("RIGHT", Host, replace=True)  # other devices still work
    assert gb.testing.check_device("RIGHT", quick=True, only="add").ok


def test_a_queue_that_runs_during_waits_passes():
    gb.devices.register_device("LAZY", Lazy, replace=True)
    report = gb.testing.check_device("LAZY", quick=True, only=["add", "mul", "sqr", "memory", "graphs"])
    assert report.ok, str(report)


def test_messages_name_device_node_and_line(tmp_path, monkeypatch):
    path = tmp_path / "mine.py"
    path.write_text(
        "import numpy as np\n"
        "import ggml_backend as gb\n"
        "class Mine(gb.devices.Device):\n"
        "    @gb.devices.op('add')\n"
        "    def add(self, node, out, a, b):\n"
        "        np.reshape(a, (7, -1))\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    gb.devices.register_device("MINE", importlib.import_module("mine").Mine, replace=True)
    for name in ("add/float32:1,float32:1", "add/float32:3x5,float32:3x5"):
        (case,) = gb.testing.check_device("MINE", quick=True, only=name).failed
        first, note = case.message.split("; ")
        assert first.startswith("ValueError: ") and first.endswith(" (mine.py:6, in add)")  # not a line of NumPy
        assert "raised by the device MINE while it computed <Node " in note and " ADD float32 (" in note
    monkeypatch.setattr(gb.devices.Device, "compile", lambda self, calls: 3)
    (case,) = gb.testing.check_device("MINE", quick=True, only=name).failed
    message = "TypeError: MINE: compile must return a function, not int; raised by the device MINE"
    assert case.message.startswith(message)
