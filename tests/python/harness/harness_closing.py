"""Threads, signal handlers, finalizers and callbacks close objects that other code uses. Also runs
all pairs of operations at once.

    python tests/python/harness/harness_closing.py --seconds 10 --seed 1
        random operations at once, and close()
    python tests/python/harness/harness_closing.py --pairs
        every pair of operations for some milliseconds, to find deadlocks

Rounds of four kinds alternate:

- *Threads*: some run random operations on one scene, others close its parts, until all is closed.
- *Handlers*: signals of a timer close parts while the main thread works.
- *Callbacks*: ``__array__`` of an argument, an eval callback, a custom operation, an abort callback,
  a log function, the generator of a dropped ``with`` block, or ``copy.copy`` close parts.
- *Finalizers*: garbage cycles, collected during operations, use and close everything in ``__del__``
  and weak references.

Only errors of the package are allowed, results must be right, and arrays must stay valid memory.
"""

from __future__ import annotations

import argparse
import copy
import functools
import gc
import itertools
import random
import signal
import sys
import threading
import time
import weakref
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

import ggml_backend as gb
from harness_scene import CLOSERS, OPERATIONS, N, Scene, doubled, report, shuffled, supervise, watched

Task = Callable[[Scene], object]
MINE = (gb.GgmlError,)
WEIGHTS = {"open backend": 0.1, "write file": 0.1, "pictures": 0.2, "compare": 0.3}


def tolerant(act: Task, scene: Scene) -> bool:
    try:
        act(scene)
    except MINE:
        return False
    return True


class Team:
    """Threads that work. At the end it raises their first exception."""

    def __init__(self) -> None:
        self.raised: list[tuple[str, BaseException]] = []
        self.threads: list[threading.Thread] = []

    def start(self, function: Callable[[], str | None]) -> None:
        thread = threading.Thread(target=self._guarded, args=(function,))
        self.threads.append(thread)
        thread.start()

    def _guarded(self, function: Callable[[], str | None]) -> None:
        try:
            function()
        except BaseException as error:
            self.raised.append((getattr(error, "_at", "?"), error))

    def join(self) -> None:
        for thread in self.threads:
            thread.join()
        if self.raised:
            print(f"at: {self.raised[0][0]}", flush=True)
            raise self.raised[0][1]


def run_named(name: str, act: Task, scene: Scene) -> bool:
    try:
        return tolerant(act, scene)
    except BaseException as error:
        error._at = name  # type: ignore[attr-defined]
        raise


NAMES = list(OPERATIONS)
NAME_WEIGHTS = [WEIGHTS.get(n, 1.0) for n in NAMES]


def threads_round(chooser: random.Random, counts: Counter[str]) -> None:
    scene, team = Scene(), Team()
    over = threading.Event()
    favourites = chooser.sample(NAMES, 12)

    def user(seed: int) -> None:
        mine = random.Random(seed)
        n = good = 0
        while not over.is_set():
            name = mine.choice(favourites) if mine.random() < 0.7 else mine.choices(NAMES, NAME_WEIGHTS)[0]
            good += run_named(name, OPERATIONS[name], scene)
            n += 1
        counts["operations"] += n
        counts["that succeeded"] += good

    def closer(seed: int) -> None:
        mine = random.Random(seed)
        try:
            for name in shuffled(list(CLOSERS), mine):
                time.sleep(mine.choice([0, 1e-5, 1e-4, 1e-3, 3e-3]))
                run_named(name, CLOSERS[name], scene)
                counts["closes"] += 1
        finally:
            over.set()

    for _ in range(chooser.randint(2, 4)):
        team.start(functools.partial(user, chooser.getrandbits(32)))
    time.sleep(chooser.choice([0, 0.002, 0.01]))
    team.start(functools.partial(closer, chooser.getrandbits(32)))
    team.join()
    scene.read_views()


def one_of(scene: Scene, closers: list[str], chooser: random.Random, counts: Counter[str], where: str) -> None:
    """Closes the next part of the scene, or uses any part."""
    closes = bool(closers) and chooser.random() < 0.3
    name = closers.pop() if closes else chooser.choice(NAMES)
    counts["closes" if closes else f"operations in {where}"] += 1
    run_named(name, (CLOSERS if closes else OPERATIONS)[name], scene)


def handlers_round(chooser: random.Random, counts: Counter[str]) -> None:
    scene = Scene()
    closers = shuffled(list(CLOSERS), chooser)
    interval = 10 ** chooser.uniform(-4, -2.7)

    def handler(number: int, frame: Any) -> None:
        one_of(scene, closers, chooser, counts, "handlers")
        signal.setitimer(signal.ITIMER_REAL, interval)

    signal.signal(signal.SIGALRM, handler)
    signal.setitimer(signal.ITIMER_REAL, interval)
    name = "?"
    try:
        while closers:
            name = chooser.choices(NAMES, NAME_WEIGHTS)[0]
            run_named(name, OPERATIONS[name], scene)
            counts["operations"] += 1
    except BaseException:
        print(f"at: {name}, with a handler", flush=True)
        raise
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, signal.SIG_IGN)
    scene.read_views()


class _Array:
    """Closes something when NumPy converts it."""

    def __init__(self, act: Callable[[], object], shape: tuple[int, ...]) -> None:
        self.act, self.shape = act, shape

    def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
        self.act()
        return np.full(self.shape, 2, np.float32)


class _Floats(list):  # type: ignore[type-arg]
    """A list that closes something when its length is read."""

    def __init__(self, act: Callable[[], object], values: list[float]) -> None:
        super().__init__(values)
        self.act = act

    def __len__(self) -> int:
        self.act()
        return super().__len__()

    def __iter__(self) -> Iterator[float]:
        self.act()
        return super().__iter__()


class _Index:
    def __init__(self, act: Callable[[], object], value: int) -> None:
        self.act, self.value = act, value

    def __index__(self) -> int:
        self.act()
        return self.value


class _Name(str):
    """A string that closes something when it is encoded."""

    __slots__ = ("act",)

    def encode(self, *args: Any, **kwargs: Any) -> bytes:
        self.act()
        return super().encode(*args, **kwargs)


def named(act: Callable[[], object], value: str) -> _Name:
    name = _Name(value)
    name.act = act  # type: ignore[attr-defined]
    return name


def _suspended(scene: Scene, act: Callable[[], object]) -> Iterator[int]:
    with gb.Context() as ctx, gb.Scheduler([scene.sim, scene.cpu]) as scheduler:
        x = ctx.tensor(3)
        graph = ctx.graph(x * 2.0)
        scheduler.allocate(graph)
        x.set(1.0)
        yield 1
        act()


def _yes(act: Callable[[], object]) -> Callable[..., bool]:
    def asked(*args: object) -> bool:
        act()
        return True

    return asked


def _custom(scene: Scene, act: Callable[[], object]) -> None:
    def function(dst: Any, a: Any) -> None:
        act()
        doubled(dst, a)
        a.sum()

    node = gb.ops.scale(gb.ops.map_custom(function, gb.ops.relu(scene.x)), 1.0)
    graph = scene.ctx.graph(node)
    scene.sched.allocate(graph)
    scene.x.set(2.0)
    scene.sched.compute(graph)


def _custom_several(scene: Scene, act: Callable[[], object]) -> None:
    def function(out: Any, a: Any, b: Any) -> Any:
        act()
        out[0][...] = a * 2
        return None, (a + b).sum(1)

    y, z = gb.ops.custom(function, gb.ops.relu(scene.x), scene.x, shape=[(4, N), (4,)], dtype=["f32", "f64"])
    graph = scene.ctx.graph(gb.ops.scale(y, 1.0), z)
    scene.sched.allocate(graph)
    scene.x.set(2.0)
    scene.sched.compute(graph)


def _custom_own(scene: Scene, act: Callable[[], object]) -> None:
    with gb.Context() as ctx:
        x = ctx.tensor((4, N))
        graph = ctx.graph(gb.ops.map_custom(lambda d, a: (act(), doubled(d, a))[1], x))
        ctx.allocate(scene.cpu)
        x.set(1.0)
        graph.compute(scene.cpu)


def _abort(scene: Scene, act: Callable[[], object]) -> None:
    gb.sched.set_abort_callback(scene.cpu, lambda: bool(act() and False))
    scene.own_graph.compute(scene.cpu)


def _eval_kept(scene: Scene, act: Callable[[], object]) -> None:
    scene.sched.set_eval_callback(_yes(act))
    scene.sched.compute(scene.graph)


def _log(scene: Scene, act: Callable[[], object]) -> None:
    gb.set_log(lambda level, text: act())
    try:
        gb.ops.mul_mat(scene.x, scene.t[:, 1:])
    finally:
        gb.set_log(None)


def _generator(scene: Scene, act: Callable[[], object]) -> None:
    suspended = _suspended(scene, act)
    next(suspended)
    act()
    del suspended


def _copied(scene: Scene, act: Callable[[], object]) -> None:
    for thing in (scene.sched, scene.buffer, scene.ctx, scene.cpu, scene.graph, scene.x, scene.file, scene.event):
        try:
            other = copy.copy(thing)
        except (TypeError, *MINE):
            continue
        if hasattr(other, "close") and other is not scene.file:
            other.close()
        repr(other)
    act()


REENTRIES: dict[str, Callable[[Scene, Callable[[], object]], object]] = {
    "__array__ of set": lambda w, act: w.x.set(_Array(act, (4, N))),
    "__array__ of set in a buffer": lambda w, act: w.a.set(_Array(act, (4, N))),
    "__array__ of quantize": lambda w, act: gb.quantize(_Array(act, (4, 64)), "q8_0"),
    "__array__ of a constant": lambda w, act: w.own.constant(_Array(act, (4,))),
    "__array__ of an operand": lambda w, act: w.x + _Array(act, (N,)),
    "a list for set": lambda w, act: w.x.set(_Floats(act, [2.0])),
    "an offset": lambda w, act: w.x.set(np.full(2, 2, np.float32), _Index(act, 3)),
    "a shape": lambda w, act: w.ctx.tensor((_Index(act, 2), _Index(act, 3))),
    "an index": lambda w, act: w.y[_Index(act, 1)],
    "a size": lambda w, act: w.sim.allocate(_Index(act, 64)),
    "a name": lambda w, act: w.ctx.tensor(3, name=named(act, "t")),
    "a name to look for": lambda w, act: w.graph.get(named(act, "x")),
    "an eval callback": lambda w, act: w.sched.compute(w.graph, _yes(act)),
    "an eval callback that is asked": lambda w, act: w.sched.compute(w.graph, lambda t: True, wanted=_yes(act)),
    "an eval callback that stays": _eval_kept,
    "a custom operation": _custom,
    "a custom operation with several results": _custom_several,
    "a custom operation in a buffer": _custom_own,
    "an abort callback": _abort,
    "a log function": _log,
    "a comparison": lambda w, act: w.own_graph.compare(w.cpu, w.sim, _yes(act)),
    "progress of a load": lambda w, act: w.file.load(w.sim, progress=lambda done, total: act()),
    "a dropped generator": _generator,
    "copies": _copied,
}


def callbacks_round(chooser: random.Random, counts: Counter[str]) -> None:
    scene = Scene()
    closers = shuffled(list(CLOSERS), chooser)
    name = "?"

    def act() -> None:
        one_of(scene, closers, chooser, counts, "callbacks")

    try:
        while closers:
            name = chooser.choice(list(REENTRIES))
            try:
                REENTRIES[name](scene, act)
            except (*MINE, TypeError):
                pass
            act()
            counts["re-entries"] += 1
    except BaseException as error:
        print(f"at: {name}, with {getattr(error, '_at', '?')}", flush=True)
        raise
    scene.read_views()


class _Garbage:
    """A member of a cycle that uses and closes parts of a scene when it is collected."""

    def __init__(self, scene: Scene, chooser: random.Random, counts: Counter[str]) -> None:
        self.scene, self.me, self.chooser, self.counts = scene, self, chooser, counts
        self.views = [scene.y.numpy(), scene.w.numpy()]
        self.refs = [
            weakref.ref(self, lambda ref, file=scene.file: file.nbytes),
            weakref.ref(scene.graph, lambda ref: gc.get_count()),
        ]

    def __del__(self) -> None:
        for _ in range(6):
            name = self.chooser.choice(NAMES)
            tolerant(OPERATIONS[name], self.scene)
        for name in shuffled(list(CLOSERS), self.chooser)[:6]:
            tolerant(CLOSERS[name], self.scene)
        for view in self.views:
            view.tobytes()
        self.counts["finalizers"] += 1


def finalizers_round(chooser: random.Random, counts: Counter[str]) -> None:
    scene = Scene()
    gc.set_threshold(chooser.choice([20, 100, 300]), 3, 3)
    name = "?"
    try:
        for _ in range(12):
            garbage = Scene()
            garbage.__dict__["cycle"] = [_Garbage(garbage, chooser, counts), garbage]
            if chooser.random() < 0.5:  # it shares devices with the scene
                garbage.__dict__["other"] = scene
                garbage.sched = gb.Scheduler([scene.sim, scene.cpu])
            del garbage
            for _ in range(15):
                name = chooser.choices(NAMES, NAME_WEIGHTS)[0]
                run_named(name, OPERATIONS[name], scene)
                counts["operations"] += 1
    except BaseException:
        print(f"at: {name}, with finalizers", flush=True)
        raise
    finally:
        gc.set_threshold(700, 10, 10)
    gc.collect()
    scene.read_views()


ROUNDS = {
    "threads": threads_round,
    "handlers": handlers_round,
    "callbacks": callbacks_round,
    "finalizers": finalizers_round,
}


def closing(seconds: float, seed: int, options: argparse.Namespace) -> Counter[str]:
    chooser, counts = random.Random(seed), Counter[str]()
    end = time.monotonic() + seconds
    sys.setswitchinterval(1e-5)
    kinds = [options.only] if options.only else list(ROUNDS)
    for kind in itertools.cycle(kinds):
        if time.monotonic() > end:
            break
        print(f"at: a round of {kind}", flush=True)
        with watched():
            ROUNDS[kind](chooser, counts)
        counts[f"rounds of {kind}"] += 1
        if counts["closes"] % 7 == 0:
            gc.collect()
        report(counts)
    return counts


def pairs(seconds: float, seed: int, options: argparse.Namespace) -> Counter[str]:
    """Two threads run one operation each for some milliseconds. Covers all pairs, including equal
    operations, as time allows."""
    chooser, counts = random.Random(seed), Counter[str]()
    end = time.monotonic() + seconds
    sys.setswitchinterval(1e-5)
    table = {**OPERATIONS, "copy over": lambda w: w.w.copy_from(w.v), "read while computing": _read_while_computing}
    couples = [*itertools.combinations_with_replacement(table, 2)]
    chooser.shuffle(couples)
    each = min(0.05, max(0.004, 0.7 * seconds / len(couples)))
    scene = Scene()
    for i, (one, two) in enumerate(couples):
        if time.monotonic() > end:
            break
        if i % 50 == 0:
            scene.close()
            scene = Scene()
            gc.collect()
            report(counts)
        team, over = Team(), threading.Event()
        print(f"at: {one} | {two}", flush=True)

        def again(name: str, over: threading.Event = over, scene: Scene = scene) -> None:
            while not over.is_set():
                counts["operations"] += run_named(name, table[name], scene)

        with watched():
            for name in (one, two):
                team.start(lambda name=name, again=again: again(name))
            time.sleep(each)
            over.set()
            team.join()
            scene.read_views()
            scene.pending = None
            scene.check()
        counts["pairs"] += 1
    else:
        counts["complete"] += 1
    return counts


def _read_while_computing(w: Scene) -> None:
    """An evaluation callback that reads tensors which other threads write."""
    w.sched.compute(w.graph, lambda t: w.w.numpy() is not None and w.t.numpy() is not None)


def work(seconds: float, seed: int, options: argparse.Namespace) -> Counter[str]:
    return (pairs if options.pairs else closing)(seconds, seed, options)


if __name__ == "__main__":
    sys.exit(supervise(__file__, work, ("--pairs", {"action": "store_true"}), ("--only", {"choices": list(ROUNDS)})))
