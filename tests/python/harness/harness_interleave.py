"""Interleaves other code at each place of the package's Python code, in every operation.

    python tests/python/harness/harness_interleave.py --mode interrupts
        raises KeyboardInterrupt there. Afterwards everything works from two threads
    python tests/python/harness/harness_interleave.py --mode handlers
        another operation or close() runs there on the same thread, like a signal handler or a
        finalizer
    python tests/python/harness/harness_interleave.py --mode threads
        the same on another thread, while this one pauses there

Only the order is random, and the part that fits into the given time. ``--complete`` tries
everything in the first mode, and every operation with every close() in the others, for as long as
it takes. Places are the lines of the package that ``sys.settrace`` reports. With ``--instructions``
they include the instructions after a call, where CPython checks for signals. Only errors of the
package are allowed.
"""

from __future__ import annotations

import argparse
import contextlib
import dis
import functools
import gc
import itertools
import random
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import ggml_backend as gb
from harness_interrupts import attempt, checked, new_scene_and_close
from harness_scene import CLOSERS, OPERATIONS, Scene, report, shuffled, supervise, watched

PACKAGE = str(Path(gb.__file__).parent)
STANDSTILL = 0.01  # seconds that a thread pauses for another one, which may wait for it


@functools.cache
def after_calls(code: CodeType) -> frozenset[int]:
    """Offsets of the instructions after those where CPython checks for signals."""
    found, before = set(), ""
    for instruction in dis.get_instructions(code):
        if before.startswith(("CALL", "RESUME", "JUMP_BACKWARD")):
            found.add(instruction.offset)
        if instruction.opname not in ("CACHE", "PRECALL"):
            before = instruction.opname
    return frozenset(found)


class Places:
    """``run(act, k, intruder)`` calls the intruder at the k-th place of the package in ``act``.
    False if there are fewer places."""

    def __init__(self, instructions: bool) -> None:
        self.instructions = instructions
        self.left = 0
        self.intruder: Callable[[], object] | None = None
        self.where = ""

    def run(self, act: Callable[[], object], k: int, intruder: Callable[[], object]) -> bool:
        self.left, self.intruder, self.where = k, intruder, ""
        sys.settrace(self._enter)
        try:
            act()
        finally:
            sys.settrace(None)
        return self.intruder is None

    def is_place(self, frame: FrameType, event: str) -> bool:
        return event == "line" or (event == "opcode" and frame.f_lasti in after_calls(frame.f_code))

    def _enter(self, frame: FrameType, event: str, arg: Any) -> Any:
        if self.intruder is None or not frame.f_code.co_filename.startswith(PACKAGE):
            return None
        frame.f_trace_opcodes = self.instructions
        return self._step

    def _step(self, frame: FrameType, event: str, arg: Any) -> Any:
        if self.is_place(frame, event):
            self.left -= 1
            if self.left == 0 and self.intruder is not None:
                intruder, self.intruder = self.intruder, None
                self.where = f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno} ({frame.f_code.co_name})"
                sys.settrace(None)
                intruder()
        return self._step if self.intruder is not None else None


def interrupt() -> None:
    raise KeyboardInterrupt


def interrupted(places: Places, name: str, act: Callable[[], object], k: int) -> bool:
    """Interrupts ``act`` at its k-th place. False if there are fewer places."""
    with watched():
        try:
            return places.run(act, k, interrupt)
        except KeyboardInterrupt:
            return True
        except BaseException:
            print(f"at: {name}, interrupted at {places.where}", flush=True)
            raise


def interrupts(seconds: float, seed: int, options: argparse.Namespace) -> Counter[str]:
    chooser, places, counts = random.Random(seed), Places(options.instructions), Counter[str]()
    end = time.monotonic() + seconds
    acts: dict[str, Any] = {**OPERATIONS, "a scene": new_scene_and_close}
    scene = Scene()
    for name in shuffled(list(acts), chooser):
        act = acts[name]
        for k in itertools.count(1):
            if time.monotonic() > end and not options.complete:
                return counts
            if not interrupted(places, name, functools.partial(attempt, name, act, scene), k):
                break
            counts["interrupts"] += 1
            print(f"at: the check after {name}, interrupted at {places.where}", flush=True)
            checked(scene, counts)
        counts["operations"] += 1
        report(counts)
        scene.close()
        scene = Scene()
    counts["complete"] += 1
    return counts


def tolerant(act: Callable[[Scene], object], scene: Scene) -> None:
    """Closed or locked objects raise errors of the package."""
    with contextlib.suppress(gb.GgmlError):
        act(scene)


def intruders(seconds: float, seed: int, options: argparse.Namespace) -> Counter[str]:
    chooser, places, counts = random.Random(seed), Places(options.instructions), Counter[str]()
    end = time.monotonic() + seconds
    lengths: dict[str, int] = {}
    done = 0
    for name, other, k in _choices(chooser, lengths, options.complete):
        if time.monotonic() > end and not options.complete:
            break
        if done % 64 == 0:
            gc.collect()
            report(counts)
        done += 1
        scene = Scene()
        act, second = OPERATIONS[name], CLOSERS.get(other) or OPERATIONS[other]
        helper: list[threading.Thread] = []
        raised: list[BaseException] = []

        def beside(second: Any = second, scene: Scene = scene, raised: list[BaseException] = raised) -> None:
            try:
                tolerant(second, scene)
            except BaseException as error:
                raised.append(error)

        def start(helper: list[threading.Thread] = helper, beside: Callable[[], None] = beside) -> None:
            helper.append(threading.Thread(target=beside))
            helper[0].start()
            helper[0].join(STANDSTILL)

        with watched():
            print(f"at: {name} with {other} at place {k}", flush=True)
            reached = places.run(
                lambda act=act, scene=scene: tolerant(act, scene), k, beside if options.mode == "handlers" else start
            )
            for thread in helper:
                thread.join()
            if raised:
                raise raised[0]
            if not reached:
                lengths[name] = min(lengths.get(name, k), k)
                continue
            counts[f"{'re-entries' if options.mode == 'handlers' else 'meetings'}"] += 1
            for last in (lambda w: w.read_views(), *CLOSERS.values()):
                tolerant(last, scene)
    else:
        counts["complete"] += 1
    return counts


def _choices(chooser: random.Random, lengths: dict[str, int], complete: bool) -> Iterator[tuple[str, str, int]]:
    """Triples of operation, intruder and place. ``lengths``: the number of places of an operation,
    once it is known"""
    if complete:
        for name in shuffled(list(OPERATIONS), chooser):
            for other in CLOSERS:
                lengths.pop(name, None)
                for k in itertools.count(1):
                    if name in lengths:
                        break
                    yield name, other, k
        return
    names, others = list(OPERATIONS), list(OPERATIONS)
    while True:
        name = chooser.choice(names)
        other = chooser.choice(list(CLOSERS)) if chooser.random() < 0.7 else chooser.choice(others)
        yield name, other, chooser.randint(1, lengths.get(name, 200) - 1) if lengths.get(name, 200) > 1 else 1


def work(seconds: float, seed: int, options: argparse.Namespace) -> Counter[str]:
    return (interrupts if options.mode in (None, "interrupts") else intruders)(seconds, seed, options)


if __name__ == "__main__":
    sys.exit(supervise(
        __file__, work, ("--mode", {"choices": ["interrupts", "handlers", "threads"], "default": "interrupts"}),
        ("--complete", {"action": "store_true"}), ("--instructions", {"action": "store_true"}),
    ))  # fmt: skip
