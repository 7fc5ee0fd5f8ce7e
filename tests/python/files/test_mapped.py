"""A mapped file that shrinks gives an error in the reading call, never a signal that ends the
process.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ggml_backend as gb

ROWS, COLUMNS = 512, 512  # 1 MiB of float32

PRELUDE = """
import os, sys, threading, mmap
import numpy as np
import ggml_backend as gb

path, size = sys.argv[1], int(sys.argv[2])
cpu, sim = gb.Backend("CPU", n_threads=2), gb.Backend("SIM")

def shrinks(call, what=gb.errors.FileError):
    os.truncate(path, size)
    for again in range(2):
        try:
            result = call()
        except what as error:
            assert again or "shrank" in str(error) or "lost" in str(error), error
        else:
            raise SystemExit(f"no error, but {result!r}")

def product(w, backends):
    ctx = gb.Context()
    x = ctx.tensor((4, 512), name="x")
    graph = ctx.graph(x @ w.T)
    sched = gb.Scheduler(backends)
    sched.allocate(graph)
    x.set(np.ones((4, 512), np.float32))
    return ctx, graph, sched

file = gb.gguf.open(path)
"""

CASES = {
    "numpy": "shrinks(lambda: file.tensors['w'].numpy())",
    "data": "shrinks(lambda: file.tensors['w'].data)",
    "dequantize": "shrinks(lambda: file.tensors['q'].dequantize())",
    "dequantize a view": "q = file.tensors['q'].numpy(); shrinks(lambda: gb.dequantize(q, 'q8_0'))",
    "dequantize halves": "h = file.tensors['h'].numpy(); shrinks(lambda: gb.dequantize(h, 'f16'))",
    "quantize": "w = file.tensors['w'].numpy(); shrinks(lambda: gb.quantize(w, 'q4_0'))",
    "quantize halves": "h = file.tensors['h'].numpy(); shrinks(lambda: gb.quantize(h, 'q8_0', n_threads=3))",
    "load in place": "shrinks(lambda: file.load(cpu))",
    "load to a device": "shrinks(lambda: file.load(sim))",
    "compute": (
        "w = file.load(cpu)['w']; _, g, s = product(w, [cpu]); assert s.compute(g); shrinks(lambda: s.compute(g))"
    ),
    "compute elsewhere": (
        """
        w = file.load(cpu)["w"]
        ctx, g, s = product(w, [sim, cpu])
        s.set_backend(g.nodes[-1], sim)
        assert s.compute(g)
        shrinks(lambda: s.compute(g))
    """
    ),
    "compute later": (
        """
        w = file.load(cpu)["w"]
        ctx, g, s = product(w, [sim, cpu])
        s.set_backend(g.nodes[-1], sim)
        shrinks(lambda: s.compute_async(g) and s.synchronize())
    """
    ),
    "compute without a scheduler": (
        """
        w = file.load(cpu)["w"]
        ctx = gb.Context()
        x = ctx.tensor((4, 512))
        g = ctx.graph(x @ w.T)
        ctx.allocate(cpu)
        x.set(1.0)
        assert g.compute(cpu)
        shrinks(lambda: g.compute(cpu))
    """
    ),
    "compute in threads": (
        """
        w = file.load(cpu)["w"]
        made = [product(w, [gb.Backend("CPU", n_threads=3)]) for _ in range(4)]
        os.truncate(path, size)
        outcomes = []
        def run(g, s):
            for _ in range(3):
                try:
                    outcomes.append(s.compute(g))
                except gb.errors.FileError:
                    outcomes.append("error")
        threads = [threading.Thread(target=run, args=(g, s)) for _, g, s in made]
        [t.start() for t in threads]
        [t.join() for t in threads]
        assert outcomes == ["error"] * 12, outcomes
    """
    ),
    "copy of weights": "w = file.load(cpu)['w']; shrinks(lambda: w.numpy(copy=True))",
    "view of weights": "w = file.load(cpu)['w']; shrinks(w.numpy)",
    "copy_from": (
        """
        w = file.load(cpu)["w"]
        ctx = gb.Context(allocate=True)
        t = ctx.tensor((512, 512))
        shrinks(lambda: t.copy_from(w))
    """
    ),
    "set": (
        """
        w = file.tensors["w"].numpy()
        ctx = gb.Context()
        t = ctx.tensor((512, 512))
        ctx.allocate(sim)
        shrinks(lambda: t.set(w))
    """
    ),
    "set of a strided view": (
        """
        w = file.tensors["w"].numpy()
        t = gb.Context(allocate=True).tensor((512, 512))
        shrinks(lambda: t.set(w.T))
    """
    ),
    "writer": (
        "shrinks(lambda: gb.gguf.Writer(path + '.new').copy_from(file).close()); assert not os.path.exists(path +"
        " '.new')"
    ),
    "writer of arrays": (
        "w = file.tensors['w'].numpy(); shrinks(lambda: gb.gguf.Writer(path + '.new').add_tensor('x', w).close())"
    ),
    "writer converts": (
        """
        shrinks(lambda: gb.gguf.Writer(path + ".new").add_tensor("x", file.tensors["h"], "q8_0").close())
        assert not os.path.exists(path + ".new")
    """
    ),
    "writer of a user's map": (
        """
        m = np.memmap(path, np.uint8, "r")
        shrinks(lambda: gb.gguf.Writer(path + ".new").add_tensor("x", m[-4096:].view(np.int8)).close())
    """
    ),
    "a buffer over a user's map": (
        """
        m = np.memmap(path, np.float32, "r", offset=os.path.getsize(path) - 64 * 512 * 4, shape=(64, 512))
        ctx = gb.Context()
        t = gb.Buffer.from_array(m, "weights").place(ctx.tensor((64, 512)))
        _, g, s = product(t, [cpu])
        assert s.compute(g)
        shrinks(lambda: s.compute(g))
    """
    ),
    "a buffer over a writable map": (
        """
        f = open(path, "r+b")
        m = mmap.mmap(f.fileno(), 0)
        ctx = gb.Context()
        array = np.frombuffer(m, np.float32, 64 * 512, os.path.getsize(path) // 2 // 4 * 4)
        t = gb.Buffer.from_array(array, usage="weights").place(ctx.tensor((64, 512)))
        del array
        _, g, s = product(t, [cpu])
        assert s.compute(g)
        shrinks(lambda: s.compute(g))
    """
    ),
    "a map that is opened as a file": (
        """
        with open(path, "rb") as f:
            other = gb.gguf.open(mmap.mmap(f.fileno(), 0, access=mmap.ACCESS_READ))
        shrinks(lambda: other.tensors["q"].dequantize())
    """
    ),
    "after a fork": (
        """
        w = file.load(cpu)["w"]
        child = os.fork()
        if child == 0:
            try:
                mine = gb.Backend("CPU", n_threads=2)
                _, g, s = product(w, [mine])
                shrinks(lambda: s.compute(g))
            except BaseException as error:
                print("child:", repr(error), flush=True)
                os._exit(1)
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
    """
    ),
    "behind faulthandler": (
        """
        import faulthandler
        faulthandler.enable()
        w = file.load(cpu)["w"]
        _, g, s = product(w, [cpu])
        shrinks(lambda: s.compute(g))
    """
    ),
    "other tensors are unchanged": (
        """
        w = file.load(cpu)["w"]
        _, g, s = product(w, [cpu])
        shrinks(lambda: s.compute(g))
        ctx = gb.Context()
        t = ctx.tensor((512, 512))
        ctx.allocate(cpu, usage="weights")
        t.set(2.0)
        _, g, s = product(t, [cpu])
        assert s.compute(g) and (g.outputs[0].numpy() == 1024).all()
    """
    ),
}


def model(path: Path) -> Path:
    rng = np.random.default_rng(0)
    w = rng.standard_normal((ROWS, COLUMNS)).astype(np.float32)
    with gb.gguf.Writer(path) as writer:
        writer.add_tensor("small", np.ones(8, np.float32)).add_tensor("w", w).add_tensor(
            "h", w.astype(np.float16)
        ).add_tensor("q", w, "q8_0")
    return path


def run(case: str, path: Path, size: int) -> subprocess.CompletedProcess[str]:
    """Runs a program in its own interpreter."""
    program = PRELUDE + textwrap.dedent(case)
    return subprocess.run(
        [sys.executable, "-c", program, str(path), str(size)], capture_output=True, text=True, timeout=120, check=False
    )


FORKS = """
import json, os, sys, traceback
import ggml_backend
for line in sys.stdin:
    program, path, size, log = json.loads(line)
    child = os.fork()
    if child == 0:
        status = 1
        try:
            os.dup2(os.open(log, os.O_WRONLY | os.O_CREAT), 1)
            os.dup2(1, 2)
            sys.argv = ["case", path, size]
            exec(compile(program, "case", "exec"), {"__name__": "__main__"})
            status = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(status)
    print(os.waitpid(child, 0)[1], flush=True)
"""


@pytest.fixture(scope="module")
def children() -> Iterator[subprocess.Popen[str]]:
    """A process that imports the package once, and runs each program in a child."""
    command = [sys.executable, "-W", "ignore", "-c", FORKS]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        yield process
        process.stdin.close()  # type: ignore[union-attr]


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel's list of mappings is read on Linux only")
@pytest.mark.parametrize("left", ["little", "all but the end"])
@pytest.mark.parametrize("case", CASES)
def test_reads_of_a_file_that_shrinks_are_errors(tmp_path: Path, case: str, left: str, children: Any) -> None:
    """The file shrinks to a hundred bytes, so that pages are missing, or by less than a page, which gives no signal."""
    path, log = model(tmp_path / "model.gguf"), tmp_path / "log"
    size = 100 if left == "little" else path.stat().st_size - 50
    children.stdin.write(json.dumps([PRELUDE + textwrap.dedent(CASES[case]), str(path), str(size), str(log)]) + "\n")
    children.stdin.flush()
    assert children.stdout.readline() == "0\n", log.read_text()


def test_the_interpreter_exits_after_a_file_shrank(tmp_path: Path) -> None:
    done = run(CASES["other tensors are unchanged"], model(tmp_path / "model.gguf"), 100)
    assert done.returncode == 0, (done.returncode, done.stdout, done.stderr[-2000:])


@pytest.mark.parametrize("handler", ["", "import faulthandler; faulthandler.enable()"])
def test_numpy_reads_of_a_view_get_the_signal(tmp_path: Path, handler: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The package does not replace missing data of a user's view by zeros. faulthandler reports the place."""
    path = model(tmp_path / "model.gguf")
    # an address sanitizer would catch the signal
    monkeypatch.setenv("ASAN_OPTIONS", f"{os.environ.get('ASAN_OPTIONS', '')}:handle_sigbus=0")
    case = (
        f"v = file.tensors['w'].numpy(); {handler}\nfile.tensors['q'].dequantize(); os.truncate(path, 100);"
        " print(v.sum())"
    )
    done = run(case, path, 0)
    assert done.returncode == -signal.SIGBUS, done
    assert done.stderr.count("Fatal Python error: Bus error") == bool(handler)


def test_replacing_the_file_keeps_the_mapping(tmp_path: Path) -> None:
    """Replacing the file at the path does not change the mapping."""
    path = model(tmp_path / "model.gguf")
    with gb.gguf.open(path) as file:
        before = file.tensors["w"].numpy().copy()
        (tmp_path / "short").write_bytes(b"x")
        os.replace(tmp_path / "short", path)
        np.testing.assert_array_equal(file.tensors["w"].numpy(), before)
        np.testing.assert_array_equal(file.load(gb.Backend("SIM"))["w"].numpy(), before)
