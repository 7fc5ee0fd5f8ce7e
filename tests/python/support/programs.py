"""Runs programs that could crash, hang or end the interpreter, each in a process of its own."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import harness_scene
from harness_scene import SANITIZED

PATIENCE = 240 if SANITIZED else 60
LONGER = float(os.environ.get("GB_HARNESS_SECONDS", "8")) / 8
"""A factor for the duration of searches for races."""

PRELUDE = """
import faulthandler, gc, os, random, signal, sys, threading, time, warnings
warnings.filterwarnings("ignore", message=".*fork", category=DeprecationWarning)
import numpy as np
import ggml_backend as gb
faulthandler.enable()
faulthandler.dump_traceback_later(PATIENCE, exit=True)
LONGER = FACTOR
OURS = gb.GgmlError

def thread(act):
    # runs a function on a thread; join() raises its exception
    raised = []
    def run():
        try: act()
        except BaseException as error: raised.append(error)
    t = threading.Thread(target=run, daemon=True); t.start()
    def join():
        t.join()
        if raised: raise raised[0]
    t.finish = join
    return t

def again(act, over):
    # until `over`; closed objects raise errors of the package
    def loop():
        while not over.is_set():
            try: act()
            except OURS: pass
    return loop

def both(act):
    # here and on another thread
    act(); thread(act).finish()

def forever(scheduler, graph):
    while True: scheduler.compute(graph)

def Interrupts():
    def unraisable(hook):  # Python drops exceptions of finalizers
        if not isinstance(hook.exc_value, KeyboardInterrupt): sys.__unraisablehook__(hook)
    sys.unraisablehook = unraisable
    sys.path.insert(0, FOLDER)
    from harness_interrupts import Timer
    return Timer()

cpu, sim = gb.Backend("CPU", n_threads=1), gb.Backend("SIM")

class Children:
    # Forked children that run a function, and their exit statuses.
    def __init__(self): self.ended = {}
    def __call__(self, act, seconds=12):
        pid = os.fork()
        if pid == 0:
            status = 1
            try:
                signal.alarm(seconds)
                act()
                status = 0
            except BaseException:
                import traceback; traceback.print_exc()
            finally:
                os._exit(status)
        status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        self.ended[status] = self.ended.get(status, 0) + 1
    @property
    def enough(self): return sum(n for k, n in self.ended.items() if k) > 3
    def check(self): assert set(self.ended) == {0}, f"children by exit status: {self.ended} (-14: they hang)"
def small(scheduler=None, n=4):
    # a scheduler and a graph, 2 x + 1
    ctx = gb.Context()
    x = ctx.tensor((n, n), name="x")
    y = gb.ops.relu(x * 2.0) + 1.0
    g = ctx.graph(y)
    s = scheduler or gb.Scheduler([cpu])
    s.allocate(g); x.set(1.0); s.compute(g)
    return ctx, x, y, g, s
"""


SERVER = """
import json, os, sys, warnings
warnings.filterwarnings("ignore", message=".*fork", category=DeprecationWarning)
import numpy, ggml_backend
for line in sys.stdin:
    job = json.loads(line)
    child = os.fork()
    if child == 0:
        break
    print(child, flush=True)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
else:
    os._exit(0)
os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
for fd, name in enumerate(("out", "err"), 1):
    os.dup2(os.open(job[name], os.O_WRONLY | os.O_CREAT | os.O_TRUNC), fd)
warnings.resetwarnings()
warnings.simplefilter("error")
exec(compile(job["program"], "program", "exec"), globals())
"""
MALLOC = {"PYTHONFAULTHANDLER": "1", "MALLOC_PERTURB_": "165", "MALLOC_MMAP_THRESHOLD_": "16384"}
FORKS = sys.platform == "linux" and not SANITIZED
"""True if programs run in forked children of a process that has imported the package. A child ends
with the interpreter's normal shutdown. Under sanitizers each program has a fresh interpreter."""


class Forks:
    """The process that forks."""

    def __init__(self, folder: Path) -> None:
        self.out, self.err = folder / "out", folder / "err"
        self.process = subprocess.Popen(
            [sys.executable, "-W", "error", "-c", SERVER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
            env={**os.environ, **MALLOC},
        )  # fmt: skip

    def run(self, program: str, timeout: float) -> tuple[int, str, str]:
        """The exit status, stdout and stderr of a program."""
        to, back = self.process.stdin, self.process.stdout
        assert to is not None and back is not None
        to.write(json.dumps({"program": program, "out": str(self.out), "err": str(self.err)}) + "\n")
        to.flush()
        child = int(back.readline())
        hangs = threading.Timer(timeout, os.kill, (child, signal.SIGKILL))
        hangs.start()
        status = int(back.readline())
        hangs.cancel()
        return status, self.out.read_text(errors="replace"), self.err.read_text(errors="replace")


@pytest.fixture(scope="session")
def forks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Forks | None]:
    if not FORKS:
        yield None
        return
    found = Forks(tmp_path_factory.mktemp("programs"))
    yield found
    found.process.communicate()


def fresh(program: str, timeout: float, environment: dict[str, str]) -> tuple[int, str, str]:
    """Runs a program in a fresh interpreter."""
    try:
        done = subprocess.run(
            [sys.executable, "-W", "error", "-c", program], capture_output=True, text=True, timeout=timeout,
            check=False, env={**os.environ, **MALLOC, **environment},
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        pytest.fail("the program hangs")
    return done.returncode, done.stdout, done.stderr


@pytest.fixture
def holds(forks: Forks | None) -> Callable[..., str]:
    """Runs a program in its own process. Checks that it ends with status 0 and an empty stderr."""

    def run(source: str, environment: dict[str, str] | None = None, patience: int = PATIENCE) -> str:
        program = (
            PRELUDE.replace("PATIENCE", str(patience * max(1, LONGER)))
            .replace("FACTOR", str(LONGER))
            .replace("FOLDER", repr(str(Path(harness_scene.__file__).parent)))
            + textwrap.dedent(source)
            + "\nfaulthandler.cancel_dump_traceback_later()\n"
        )
        timeout = 2 * patience * max(1, LONGER)
        if forks is None or environment:
            status, out, err = fresh(program, timeout, environment or {})
        else:
            status, out, err = forks.run(program, timeout)
        assert status == 0, f"exit status {status}\n{out[-2000:]}\n{err[-4000:]}"
        assert err == "", err[-4000:]
        return out

    return run
