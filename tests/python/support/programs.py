"""Programs that could crash, hang or end the interpreter run in their own interpreter."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest

import harness_scene
from harness_scene import SANITIZED

PATIENCE = 240 if SANITIZED else 60
LONGER = float(os.environ.get("GB_HARNESS_SECONDS", "8")) / 8
"""Races are looked for as much longer."""

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
    # runs it on a thread; join() raises what it raised
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
    # until `over`; closed things raise our errors
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
    def unraisable(hook):  # Python drops what is raised in finalizers
        if not isinstance(hook.exc_value, KeyboardInterrupt): sys.__unraisablehook__(hook)
    sys.unraisablehook = unraisable
    sys.path.insert(0, FOLDER)
    from harness_interrupts import Timer
    return Timer()

cpu, sim = gb.Backend("CPU", n_threads=1), gb.Backend("SIM")

class Children:
    # Forked ones that do something, by their exit status.
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
    y = gb.relu(x * 2.0) + 1.0
    g = ctx.graph(y)
    s = scheduler or gb.Scheduler([cpu])
    s.allocate(g); x.set(1.0); s.compute(g)
    return ctx, x, y, g, s
"""


@pytest.fixture
def holds(monkeypatch) -> Callable[..., str]:
    """Runs a program in a fresh interpreter: it ends by itself, with status 0 and nothing on stderr."""

    def run(source: str, environment: dict[str, str] | None = None, patience: int = PATIENCE) -> str:
        program = (
            PRELUDE.replace("PATIENCE", str(patience * max(1, LONGER)))
            .replace("FACTOR", str(LONGER))
            .replace("FOLDER", repr(str(Path(harness_scene.__file__).parent)))
            + textwrap.dedent(source)
            + "\nfaulthandler.cancel_dump_traceback_later()\n"
        )
        try:
            done = subprocess.run(
                [sys.executable, "-W", "error", "-c", program], capture_output=True, text=True,
                timeout=2 * patience * max(1, LONGER), check=False,
                env={**os.environ, "PYTHONFAULTHANDLER": "1", "MALLOC_PERTURB_": "165",
                 "MALLOC_MMAP_THRESHOLD_": "16384", **(environment or {})},
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            pytest.fail("the program hangs")
        errors = done.stderr[-4000:]
        assert done.returncode == 0, f"exit status {done.returncode}\n{done.stdout[-2000:]}\n{errors}"
        assert errors == "", errors
        return done.stdout

    return run
