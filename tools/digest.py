#!/usr/bin/env python3
"""A digest of what the installed package computes and decides: equal digests before and after a change mean equal bits.

    PYTHONPATH=SITE python tools/digest.py [--json FILE] [--compare FILE] [--only PATTERN] [--cases]

Groups, each with the sha256 of its results (every one has parts: machines, or kinds of results):

- ``op/NAME``: each function of the public table, over dtypes, shapes, layouts and in-place forms, with random inputs of
  a fixed seed: the bytes of the results by level of instructions and number of threads; what CPU and SIM support and
  which inputs are refused; what a scheduler with costs predicts and what its planner puts where.
- ``quantize/TYPE``: blocks from floats, with and without importance, and floats from blocks.
- ``chain/NAME``: operators that may be computed together: products with what follows, attention, rotations into caches.
- ``sched/POLICY``: random graphs over CPU and two simulated devices: results, plans (placement, splits, copies,
  offsets), counters, and the reasons in words, which are a part of their own.
- ``memory``: the planner of offsets on random lifetimes, orders of nodes, the allocators.
- ``gguf``: files of tensors of every type.
- ``demo``: embeddings of examples/embed, where the model is installed.

Two digests can be compared only if they come from the same machine, Python and NumPy; ``--compare`` says which parts
differ and ends with 1 if any does. ``--cases`` prints one line for each result instead: two of these lists, compared by
diff, name the first case that differs. Only the public interface of the package is used.
"""

from __future__ import annotations

import argparse
import contextlib
import fnmatch
import hashlib
import importlib
import io
import json
import os
import platform
import sys
import tempfile
import time
import warnings
import zlib
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

if __name__ == "__main__":  # before the package reads it: nothing that was measured or quantized earlier counts
    _caches = tempfile.TemporaryDirectory(prefix="digest-")
    os.environ["XDG_CACHE_HOME"] = _caches.name

import digest_ops
import digest_worlds
import ggml_backend as gb

ROOT = Path(__file__).resolve().parent.parent


class Digest:
    """Hashes by group and part."""

    def __init__(self, show_cases: bool = False) -> None:
        self.show_cases = show_cases
        self.group = ""
        self.n = 0
        self._hashes: dict[str, dict[str, Any]] = defaultdict(lambda: defaultdict(hashlib.sha256))

    def add(self, part: str, label: str, *results: Any) -> None:
        """Arrays and bytes count with all their bits, anything else by its text."""
        h = hashlib.sha256(label.encode())
        for r in results:
            if isinstance(r, np.ndarray):
                h.update(f"{r.dtype}{r.shape}".encode())
                r = np.ascontiguousarray(r).tobytes()
            h.update(r if isinstance(r, bytes) else repr(r).encode())
        self._hashes[self.group][part].update(h.digest())
        self.n += 1
        if self.show_cases:
            print(f"{h.hexdigest()[:16]} {self.group} [{part}] {label}")

    def result(self) -> dict[str, dict[str, str]]:
        return {g: {p: h.hexdigest() for p, h in sorted(parts.items())} for g, parts in sorted(self._hashes.items())}


def combined(parts: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


def seeded(label: str) -> np.random.Generator:
    return np.random.default_rng(zlib.crc32(label.encode()))


# ---- operators -------------------------------------------------------------------------------------------------------


def machines() -> dict[str, gb.Backend]:
    """The best and the scalar level with one and two threads, the others with one."""
    found = {f"default, {n} threads": gb.Backend("CPU", n_threads=n) for n in (1, 2)}
    best = found["default, 1 threads"].level
    for level, usable in gb.cpu_levels().items():
        if usable and (level != best or level == "scalar"):
            for n in (1, 2) if level == "scalar" else (1,):
                found[f"{level}, {n} threads"] = gb.Backend("CPU", n_threads=n, level=level)
    return found


def price_list() -> gb.Costs:
    """Costs that differ for each class of operators and for a few types."""
    ops = [gb.OpCost("any", None, 1.5, 311.0, 997.0)]
    for i, kind in enumerate(("matmul", "rows", "elements", "moves", "windows"), 2):
        ops.append(gb.OpCost(kind, None, 1.0 / i, 100.0 * i + 7.0, 1000.0 * i + 13.0))
        ops.append(gb.OpCost(kind, "float16", 2.0 / i, 150.0 * i + 3.0, 1700.0 * i + 11.0))
    fast = tuple(gb.OpCost(o.op_class, o.dtype, 2 * o.launch_us, 3 * o.bytes_per_us, 5 * o.flops_per_us) for o in ops)
    copy = gb.CopyCost(3.0, 500.0)
    return gb.Costs([gb.DeviceCosts(fast, copy, copy), gb.DeviceCosts(tuple(ops), host=True)])


class Operators:
    """Runs each variant of each case on all machines."""

    def __init__(self) -> None:
        self.machines = machines()
        self.sim = gb.Backend("SIM:name=OPS,mem=64M")
        self.costs = price_list()
        self.shown: set[str] = set()

    def add(self, digest: Digest, variant: digest_ops.Variant) -> None:
        label = variant.label
        try:
            built = digest_ops.built(variant)
        except (gb.GgmlError, TypeError) as error:
            digest.add("refused", label, type(error).__name__)
            return
        with built.ctx:
            self.plan(digest, label, built)
            self.compute(digest, label, built)

    def plan(self, digest: Digest, label: str, built: digest_ops.Built) -> None:
        """What needs no memory. Without data, in a scheduler that puts the nodes' inputs where it likes."""
        cpu = self.machines["default, 1 threads"]
        digest.add("supported", label, [(cpu.supports(t), self.sim.supports(t)) for t in built.graph.nodes])
        shown = f"{built.node.op} {built.variant.case.label}"
        if shown not in self.shown:  # one picture each: a file is written for it
            self.shown.add(shown)
            digest.add("graph", label, digest_worlds.without_pointers(built.graph.to_dot()))
        with gb.Scheduler([self.sim, cpu], policy="cost", costs=self.costs) as sched:
            try:
                plan = sched.prepare(built.graph, allocate=False)
            except gb.GgmlError as error:
                digest.add("planned", label, type(error).__name__)
                return
            digest.add("planned", label, sched.prediction, plan.arenas, plan.splits, plan.copies)

    def compute(self, digest: Digest, label: str, built: digest_ops.Built) -> None:
        cpu = self.machines["default, 1 threads"]
        if not all(cpu.supports(t) for t in built.graph.nodes):
            digest.add("refused", label, "unsupported")
            return
        built.ctx.allocate(cpu)
        arrays = built.arrays(seeded(label))
        for name, machine in self.machines.items():
            for root, array in zip(built.roots, arrays, strict=True):
                root.set(array)
            try:
                built.graph.compute(machine)
            except gb.GgmlError as error:
                digest.add(name, label, type(error).__name__)
                continue
            digest.add(name, label, built.node.numpy())


def operators(digest: Digest, wanted: Callable[[str], bool]) -> None:
    runner = Operators()
    covered = set()
    for case in digest_ops.cases():
        covered.add(case.name)
        digest.group = f"op/{case.name}"
        if wanted(digest.group):
            for variant in digest_ops.variants(case):
                runner.add(digest, variant)
    missing = set(gb.ops.__all__) - covered
    if missing:
        raise SystemExit(f"digest: there is no case for {', '.join(sorted(missing))}: add one to digest_ops.py")


# ---- quantized formats -----------------------------------------------------------------------------------------------


def formats(digest: Digest, wanted: Callable[[str], bool]) -> None:
    for dtype in digest_ops.DTYPES:
        digest.group = f"quantize/{dtype.name}"
        if not dtype.is_quantized or not wanted(digest.group):
            continue
        rng = seeded(digest.group)
        for kind, array in arrays_to_quantize(rng):
            for with_importance in (False, True):
                weights = rng.random(array.shape[-1]).astype(np.float32) + 0.1 if with_importance else None
                label = f"{kind} importance={with_importance}"
                for n in (1, 2):
                    try:
                        made = gb.quantize(array, dtype, weights, n_threads=n)
                    except gb.GgmlError as error:
                        digest.add("quantized", label, type(error).__name__)
                        continue
                    digest.add("quantized", label, made)
                    digest.add("dequantized", label, gb.dequantize(made, dtype, n_threads=n))
        bits = rng.integers(0, 256, (4, dtype.row_nbytes(512)), np.uint8)
        digest.add(
            "random blocks", dtype.name, np.isnan(gb.dequantize(bits, dtype)), finite(gb.dequantize(bits, dtype))
        )


def arrays_to_quantize(rng: np.random.Generator) -> Iterator[tuple[str, np.ndarray[Any, Any]]]:
    yield "normal", rng.standard_normal((6, 1024), np.float32)
    yield "tiny", rng.standard_normal((2, 512), np.float32) * np.float32(1e-6)
    yield "one-sided", rng.random((2, 512), np.float32) + np.float32(3.0)
    yield "zeros", np.zeros((1, 512), np.float32)
    spiked = rng.standard_normal((2, 512)).astype(np.float32)
    spiked[:, ::97] *= 300
    yield "spiked", spiked


def finite(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Zeros for what is not a number: its bits mean nothing."""
    return np.where(np.isnan(array), np.float32(0), array)


# ---- demo ------------------------------------------------------------------------------------------------------------


def demo(digest: Digest, wanted: Callable[[str], bool]) -> str:
    """Says why it was skipped, if it was."""
    digest.group = "demo"
    if not wanted(digest.group):
        return ""
    sys.path.insert(0, str(ROOT))
    try:
        sentences = importlib.import_module("examples.embed.__main__").SENTENCES
        model = importlib.import_module("examples.embed.model")
        model.model_dir()
        importlib.import_module("tokenizers")
    except (ImportError, SystemExit) as error:
        return f"demo skipped: {error}"
    texts = [*sentences, *(" ".join(sentences[: i + 1]) for i in range(3))]
    for dtype in ("f32", "q8_0", "q4_k"):
        for devices in (("CPU",), ("SIM", "CPU")):
            for n in (1, 2):
                label = f"{dtype} {'+'.join(devices)} {n} threads"
                with contextlib.redirect_stdout(io.StringIO()):  # it tells what it quantizes
                    embedder = model.Embedder(devices, n_threads=n, dtype=dtype)
                digest.add(dtype, label, embedder.embed(texts, batch_size=4))
    for path in sorted(Path(os.environ["XDG_CACHE_HOME"]).rglob("*.gguf")):
        digest.add("files", path.name, path.read_bytes())
    return ""


# ---- running and comparing -------------------------------------------------------------------------------------------


def everything(digest: Digest, wanted: Callable[[str], bool]) -> list[str]:
    """All groups; what was skipped."""
    notes = []
    for run in (
        operators,
        formats,
        digest_worlds.chains,
        digest_worlds.worlds,
        digest_worlds.memory,
        digest_worlds.files,
    ):
        run(digest, wanted)
    note = demo(digest, wanted)
    if note:
        notes.append(note)
    return notes


def machine() -> dict[str, str]:
    """What must be the same for two digests to be comparable."""
    levels = " ".join(n for n, usable in gb.cpu_levels().items() if usable)
    return {"levels": levels, "python": platform.python_version(), "numpy": np.__version__}


def compare(now: dict[str, Any], before: dict[str, Any], wanted: Callable[[str], bool]) -> int:
    """Prints what differs; 1 if anything does."""
    if now["machine"] != before["machine"]:
        print(f"not comparable: {before['machine']} then, {now['machine']} now")
        return 1
    different = 0
    groups = sorted(g for g in now["groups"].keys() | before["groups"].keys() if wanted(g))
    for group in groups:
        new, old = now["groups"].get(group, {}), before["groups"].get(group, {})
        parts = sorted(p for p in new.keys() | old.keys() if new.get(p) != old.get(p))
        print(f"{'equal' if not parts else 'DIFFERENT'}  {group}{': ' + '; '.join(parts) if parts else ''}")
        different += bool(parts)
    print(f"{len(groups) - different} of {len(groups)} groups are equal")
    return 1 if different else 0


def main() -> int:
    parser = argparse.ArgumentParser(description="A digest of what the installed package computes and decides.")
    parser.add_argument("--json", type=Path, help="write the hashes to this file")
    parser.add_argument("--compare", type=Path, help="a file that --json wrote: which groups are equal?")
    parser.add_argument("--only", default="*", help="pattern of the groups wanted: 'op/mul_mat*'")
    parser.add_argument("--cases", action="store_true", help="one line for each result")
    options = parser.parse_args()
    begin = time.monotonic()
    warnings.simplefilter("ignore", gb.PerformanceWarning)
    digest = Digest(options.cases)

    def wanted(group: str) -> bool:
        return fnmatch.fnmatch(group, options.only)

    notes = everything(digest, wanted)
    result: dict[str, dict[str, Any]] = {"machine": machine(), "groups": digest.result()}
    if not options.cases and not options.compare:
        for group, parts in result["groups"].items():
            print(f"{combined(parts)} {group}")
    for note in notes:
        print(note)
    print(f"{combined(result['groups'])} total: {digest.n} results, {time.monotonic() - begin:.0f} s, {gb.__file__}")
    if options.json:
        options.json.write_text(json.dumps(result, indent=1) + "\n")
    if options.compare:
        return compare(result, json.loads(options.compare.read_text()), wanted)
    return 0


if __name__ == "__main__":
    sys.exit(main())
