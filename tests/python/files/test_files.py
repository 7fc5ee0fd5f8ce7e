"""The package writes a file completely or not at all, keeps its permissions, and leaves no
temporary files.
"""

from __future__ import annotations

import os
import signal
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ggml_backend as gb
from ggml_backend._base import files as _files
from ggml_backend.cli import main
from ggml_backend.sched._costs import write_costs

Write = Callable[[Path], Any]


def plan_of() -> tuple[gb.Scheduler, gb.Graph, Any]:
    cpu = gb.Backend("CPU", n_threads=1)
    ctx = gb.Context()
    x = ctx.tensor((64, 64), name="x")
    graph = ctx.graph((x + x).named("y"))
    sched = gb.Scheduler([cpu])
    plan = sched.prepare(graph)
    x.set(1.0)
    return sched, graph, plan


def trace(path: Path) -> None:
    sched, graph, _ = plan_of()
    with sched.trace(path):
        sched.compute(graph)


def trace_json(path: Path) -> None:
    sched, graph, _ = plan_of()
    with sched.trace() as record:
        sched.compute(graph)
    record.to_json(path)


def gguf(path: Path) -> None:
    gb.gguf.Writer(path).add("name", "x").add_tensor("t", np.ones(5000, np.float32)).close()


WRITERS: dict[str, Write] = {
    "to_html": lambda path: plan_of()[2].to_html(path),
    "to_csv": lambda path: plan_of()[2].to_csv(path),
    "trace": trace,
    "to_json": trace_json,
    "gguf": gguf,
    "plan --html": lambda path: main(["plan", "embed", "--html", str(path)]) and pytest.fail("failed"),
    "plan --out": lambda path: main(["plan", "embed", "--out", str(path)]) and pytest.fail("failed"),
}


def names(folder: Path) -> list[str]:
    return sorted(f.name for f in folder.iterdir())


@pytest.mark.parametrize("what", WRITERS)
def test_writing_replaces_a_file(tmp_path: Path, what: str) -> None:
    path = tmp_path / "target"
    WRITERS[what](path)
    mask = os.umask(0)
    os.umask(mask)
    assert stat.S_IMODE(path.stat().st_mode) == 0o666 & ~mask
    content = path.read_bytes()
    assert content
    path.write_text("old")
    path.chmod(0o640)
    with path.open("rb") as reader:  # an open file keeps the old contents
        WRITERS[what](path)
        assert reader.read() == b"old"
    assert len(path.read_bytes()) > 3
    assert stat.S_IMODE(path.stat().st_mode) == 0o640
    assert names(tmp_path) == ["target"]


@pytest.mark.parametrize("what", WRITERS)
def test_links_stay_links(tmp_path: Path, what: str) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a/real").write_text("old")
    (tmp_path / "link").symlink_to("a/real")
    WRITERS[what](tmp_path / "link")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "a/real").read_bytes() not in (b"", b"old")
    (tmp_path / "dangling").symlink_to("a/new")
    WRITERS[what](tmp_path / "dangling")
    assert (tmp_path / "a/new").stat().st_size > 0


@pytest.mark.parametrize("what", [w for w in WRITERS if not w.startswith("plan")])
def test_impossible_paths_are_errors(tmp_path: Path, what: str) -> None:
    for path in (tmp_path, tmp_path / "absent/target"):
        with pytest.raises(OSError):
            WRITERS[what](path)
    with pytest.raises(OSError, match="No space left"):
        WRITERS[what](Path("/dev/full"))
    assert names(tmp_path) == []


@pytest.mark.parametrize("what", WRITERS)
def test_pipes_are_written_to(tmp_path: Path, what: str) -> None:
    WRITERS[what](tmp_path / "file")
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    got: list[bytes] = []
    reader = threading.Thread(target=lambda: got.append(pipe.read_bytes()))
    reader.start()
    WRITERS[what](pipe)
    reader.join(20)
    assert got and len(got[0]) > 0.9 * (tmp_path / "file").stat().st_size
    assert stat.S_ISFIFO(pipe.stat().st_mode)


CHILD = """
import os, resource, signal, sys, time
sys.path.insert(0, {tests!r})
from pathlib import Path
import test_files
"""


def child(program: str, *arguments: str) -> subprocess.Popen[str]:
    source = CHILD.format(tests=str(Path(__file__).parent)) + program
    return subprocess.Popen(
        [sys.executable, "-c", source, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


@pytest.mark.parametrize("what", WRITERS)
def test_a_full_disk_leaves_the_old_file(tmp_path: Path, what: str) -> None:
    """A size limit simulates a full disk. The target is unchanged, and no other file remains."""
    path = tmp_path / "target"
    path.write_text("old")
    program = """
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (50, 50))
try:
    test_files.WRITERS[sys.argv[1]](Path(sys.argv[2]))
except OSError as error:
    assert "too large" in str(error), error
    sys.exit(0)
except BaseException as error:  # the command line has printed it
    sys.exit(0 if "Failed" in type(error).__name__ else 1)
sys.exit(2)
"""
    process = child(program, what, str(path))
    out, err = process.communicate(timeout=60)
    assert process.returncode == 0, (out, err)
    assert path.read_text() == "old"
    assert names(tmp_path) == ["target"]


def test_signals_leave_the_old_file(tmp_path: Path) -> None:
    """SIGTERM, SIGKILL and SIGHUP arrive during writing. No temporary file remains."""
    program = """
from ggml_backend._base import files as _files
for number in (signal.SIGTERM, signal.SIGHUP):  # the caller of the tests may ignore them (nohup)
    signal.signal(number, signal.SIG_DFL)
def write(file):
    file.write(bytes(1 << 22))
    print("halfway", flush=True)
    time.sleep(60)
_files.replace_file(sys.argv[1], write)
"""
    path = tmp_path / "target"
    path.write_text("old")
    for number in (signal.SIGTERM, signal.SIGKILL, signal.SIGHUP):
        process = child(program, str(path))
        assert process.stdout is not None and process.stdout.readline() == "halfway\n"
        os.kill(process.pid, number)
        process.communicate(timeout=60)
        assert process.returncode == -number
        assert path.read_text() == "old"
        assert names(tmp_path) == ["target"]


WITHOUT_NAMELESS = """
import ctypes, platform
class Filter(ctypes.Structure):
    _fields_ = [("code", ctypes.c_ushort), ("jt", ctypes.c_ubyte), ("jf", ctypes.c_ubyte), ("k", ctypes.c_uint)]
class Program(ctypes.Structure):
    _fields_ = [("length", ctypes.c_ushort), ("filter", ctypes.POINTER(Filter))]
openat = {"x86_64": 257, "aarch64": 56}.get(platform.machine())
steps = [(0x20, 0, 0, 0), (0x15, 0, 4, openat or 0), (0x20, 0, 0, 32),
         (0x54, 0, 0, os.O_TMPFILE), (0x15, 0, 1, os.O_TMPFILE), (0x06, 0, 0, 0x50000 | 95), (0x06, 0, 0, 0x7fff0000)]
program = Program(len(steps), (Filter * len(steps))(*(Filter(*s) for s in steps)))
prctl = ctypes.CDLL(None).prctl
if openat is None or prctl(38, 1, 0, 0, 0) or prctl(22, 2, ctypes.byref(program), 0, 0):
    sys.exit(77)
"""


def test_files_are_replaced_without_nameless_files(tmp_path: Path) -> None:
    """Some file systems have no nameless files (O_TMPFILE). seccomp refuses them here. Files of a
    killed process do not disturb later writes."""
    program = (
        WITHOUT_NAMELESS
        + """
try:
    os.open(sys.argv[1], os.O_TMPFILE | os.O_WRONLY)
    sys.exit("it was not refused")
except OSError as error:
    assert error.errno == 95
from ggml_backend._base import files as _files
folder = Path(sys.argv[1])
for i in range(5):
    (folder / f"target.{os.getpid()}.{i}.part").write_text("left")
test_files.WRITERS["to_html"](folder / "target")
(folder / "target").write_text("old")
(folder / "target").chmod(0o640)
test_files.WRITERS["gguf"](folder / "target")
assert (folder / "target").stat().st_mode & 0o777 == 0o640
for old in folder.glob("*.part"):
    assert old.read_text() == "left"
    old.unlink()
def fails(file):
    file.write(b"x" * 100)
    assert len(list(folder.iterdir())) == 2
    raise KeyboardInterrupt
try:
    _files.replace_file(folder / "target", fails)
except KeyboardInterrupt:
    assert [f.name for f in folder.iterdir()] == ["target"]
    sys.exit(0)
"""
    )
    process = child(program, str(tmp_path))
    out, err = process.communicate(timeout=60)
    if process.returncode == 77:
        pytest.skip("no filter of system calls can be installed here")
    assert process.returncode == 0, (out, err)


def test_a_trace_replaces_its_file_when_it_stops(tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    path.write_text("old")
    sched, graph, _ = plan_of()
    record = sched.trace(path)
    assert path.read_text() == "old" and names(tmp_path) == ["run.json"]
    record.stop()
    assert path.read_text() != "old"


def test_standard_output(tmp_path: Path) -> None:
    """/dev/stdout may be a file that another program opened. The package writes to it and does not
    replace it."""
    program = "test_files.WRITERS['to_csv'](Path('/dev/stdout'))"
    process = child(program)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 0 and out.startswith("id,lower,upper"), err
    source = CHILD.format(tests=str(Path(__file__).parent)) + program
    with (tmp_path / "out").open("w") as file:
        subprocess.run([sys.executable, "-c", source], stdout=file, check=True, timeout=60)
    assert (tmp_path / "out").read_text().startswith("id,lower,upper")
    assert names(tmp_path) == ["out"]


def test_contents_of_several_writers_do_not_mix(tmp_path: Path) -> None:
    path = tmp_path / "target"
    texts = [str(i) * 100_000 for i in range(8)]
    stop = time.monotonic() + 1.0

    def write(text: str) -> None:
        while time.monotonic() < stop:
            _files.write_text(path, text)

    threads = [threading.Thread(target=write, args=(t,)) for t in texts]
    for t in threads:
        t.start()
    seen = set()
    while time.monotonic() < stop:
        if path.exists():
            seen.add(path.read_text())
    for t in threads:
        t.join()
    assert seen and seen <= set(texts)
    assert names(tmp_path) == ["target"]


def test_the_cache_of_costs_leaves_no_other_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    backend = gb.Backend("SIM:name=kept")
    path = write_costs(backend, gb.sched.DeviceCosts())
    assert names(path.parent) == [path.name]
