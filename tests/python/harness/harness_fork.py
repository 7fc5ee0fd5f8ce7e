"""fork() at random times, while threads compute, set, read, build, open and close.

    python tests/python/harness/harness_fork.py --seconds 10 --seed 1

In the child new objects work from two threads. Old objects give right results or raise an error of
the package. Nothing hangs, no read returns garbage, and everything can be closed. The parent is not
affected. The harness counts failed children by kind, and fails at the end if there are any.
"""

from __future__ import annotations

import argparse
import contextlib
import faulthandler
import gc
import os
import random
import signal
import sys
import threading
import time
import traceback
from collections import Counter
from typing import Any

import ggml_backend as gb
from harness_scene import (
    CLOSERS,
    OPERATIONS,
    SANITIZED,
    Scene,
    Wrong,
    in_thread,
    out_of_memory,
    report,
    shuffled,
    supervise,
    watched,
)

PATIENCE = 60 if SANITIZED else 15  # seconds for a child, which needs less than one
GARBAGE, FOREIGN, NEW = 81, 82, 83
HOW = {GARBAGE: "read garbage", FOREIGN: "raised what is no error of the package", NEW: "could not use new objects"}
BUSY = (
    "compute", "compute custom", "compute several", "set x", "read y", "set w", "copy to v", "copy to t", "build",
    "open scheduler", "reset", "results", "compute own",
    "compute with callback", "open and allocate", "graph of", "compute async", "splits", "open buffer", "load",
    "quantize into",
)  # fmt: skip


class Busy:
    """Threads that almost always execute an operation."""

    def __init__(self, chooser: random.Random, scenes: list[Scene]) -> None:
        self.over = threading.Event()
        self.raised: list[BaseException] = []
        self.threads = [threading.Thread(target=self._run, args=(chooser.getrandbits(32), scenes)) for _ in range(3)]
        for thread in self.threads:
            thread.start()

    def _run(self, seed: int, scenes: list[Scene]) -> None:
        chooser = random.Random(seed)
        names = [n for n in BUSY if n in OPERATIONS]
        try:
            while not self.over.is_set():
                with contextlib.suppress(gb.GgmlError):
                    OPERATIONS[chooser.choice(names)](chooser.choice(scenes))
        except BaseException as error:
            self.raised.append(error)

    def stop(self) -> None:
        self.over.set()
        for thread in self.threads:
            thread.join()
        if self.raised:
            raise self.raised[0]


def child(scenes: list[Scene], pending: Any, chooser: random.Random) -> int:
    """The checks in the child. Returns its exit status."""
    doing = "?"

    def use_new() -> None:
        scene = Scene()
        scene.check()
        in_thread(scene.check)
        scene.close()

    def use_old() -> None:
        nonlocal doing
        for scene in scenes:
            for name in chooser.sample(list(OPERATIONS), 10):
                doing = name
                with contextlib.suppress(gb.GgmlError):
                    OPERATIONS[name](scene)
        if pending is not None:
            doing = "results of a pending run"
            try:
                array = pending.results()[0]
            except gb.GgmlError:
                pass
            else:
                if not set(array.reshape(-1).tolist()) <= {3.0, 4.0}:
                    raise Wrong(f"{doing}: {array.reshape(-1)[:4]}")

    def use_new_last() -> None:
        nonlocal doing
        doing = "new objects"
        use_new()

    steps = [use_old, use_new_last] if chooser.random() < 0.5 else [use_new_last, use_old, use_new_last]
    try:
        for step in steps:
            step()
        for scene in scenes:
            for name in shuffled(list(CLOSERS), chooser):
                doing = name
                with contextlib.suppress(gb.GgmlError):
                    CLOSERS[name](scene)
        gc.collect()
        doing = "new objects in the end"
        use_new()
    except Wrong:
        traceback.print_exc()
        print(f"child: {doing}", flush=True)
        return GARBAGE if "new" not in doing else NEW
    except BaseException as error:
        if out_of_memory(error):
            return 0
        traceback.print_exc()
        print(f"child: {doing}", flush=True)
        return NEW if "new" in doing else FOREIGN
    return 0


def forks(seconds: float, seed: int, options: argparse.Namespace) -> Counter[str]:
    chooser, counts, bad = random.Random(seed), Counter[str](), Counter[str]()
    end = time.monotonic() + seconds
    sys.setswitchinterval(1e-4)
    while time.monotonic() < end and sum(bad.values()) < 40:
        with watched():
            scenes = [Scene(), Scene()]
            for scene in scenes:
                for name in ("compute", "compute own"):
                    OPERATIONS[name](scene)
        busy = Busy(chooser, scenes)
        for _ in range(12):
            time.sleep(chooser.choice([0, 1e-4, 1e-3, 5e-3]))
            pending = None
            if chooser.random() < 0.3:
                with contextlib.suppress(gb.GgmlError):
                    pending = scenes[0].sched.compute_async(scenes[0].graph, [scenes[0].y])
            sys.stdout.flush()
            process = os.fork()  # no watchdog of faulthandler may be active, because the child could not cancel it
            if process == 0:
                signal.alarm(2 * PATIENCE)
                faulthandler.dump_traceback_later(PATIENCE, exit=True)
                status = 99
                try:
                    status = child(scenes, pending, random.Random(chooser.getrandbits(32)))
                    sys.stdout.flush()
                finally:
                    os._exit(status)
            with watched(4 * PATIENCE):
                _, waited = os.waitpid(process, 0)
            counts["children"] += 1
            if waited:
                code = os.waitstatus_to_exitcode(waited)
                bad[
                    (
                        "hung"
                        if code in (1, -signal.SIGALRM)
                        else f"died of signal {-code}"
                        if code < 0
                        else HOW.get(code, f"ended with {code}")
                    )
                ] += 1
            report(counts + Counter({f"children that {k}": v for k, v in bad.items()}))
            if time.monotonic() > end:
                break
        with watched():
            busy.stop()
            for scene in scenes:
                scene.check()
                scene.close()
    if bad:
        raise AssertionError(f"of {counts['children']} children " + ", ".join(f"{v} {k}" for k, v in bad.most_common()))
    return counts


if __name__ == "__main__":
    sys.exit(supervise(__file__, forks))
