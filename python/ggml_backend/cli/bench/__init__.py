"""``python -m ggml_backend bench``: speed of operators, products and models, as a share of the
machine's limits."""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from ..._base.errors import InvalidArgumentError
from ..._base.files import read_text, write_text
from ..._base.terminal import reason, step_bar
from ..._ffi import lib
from ...backend.backend import Backend, cpu_levels
from ...backend.buffer import text
from ...dtypes import DType, as_dtype
from ...profile._limits import notes_on
from ...sched._costs import describe_device
from ._files import is_model, measure_file, print_figures
from ._measure import Case, Limits, Result, measure
from ._models import model_cases
from ._ops import op_cases
from ._products import explain_products, product_cases, product_types

FORMAT = 1
_SUITES = ("ops", "products", "models")


def _types(words: list[str] | None, backend: Backend) -> list[DType] | None:
    if words is None:
        return None
    possible = product_types(backend)
    names = [name for word in words for name in word.split(",") if name]
    found = []
    for name in names:
        try:
            dtype = as_dtype(name)
        except TypeError:
            dtype = None
        if dtype is None or dtype not in possible:
            raise InvalidArgumentError(
                f"--types: {name!r} is no type of weights; choose from"
                f" {', '.join(t.ggml_name.lower() for t in possible)}"
            )
        found.append(dtype)
    if not found:
        raise InvalidArgumentError("--types: needs the name of a type")
    return found


def _cases(options: argparse.Namespace, backend: Backend, limits: Limits, stack: ExitStack) -> Iterator[Case]:
    types = _types(options.types, backend)
    suites = options.suites or list(_SUITES)
    if "ops" in suites:
        with ExitStack() as own:
            yield from op_cases(backend, own, quick=options.quick)
    if "products" in suites:
        yield from product_cases(backend, limits, types or product_types(backend), quick=options.quick)
    if "models" in suites:
        yield from model_cases(backend, limits, types, quick=options.quick)


def _count(options: argparse.Namespace, backend: Backend) -> int:
    """An estimate of the number of cases, for the progress bar. Building the cases to count them
    would be slow."""
    types = _types(options.types, backend)
    suites = options.suites or list(_SUITES)
    n = 42 if "ops" in suites else 0
    n += 6 * len(types or product_types(backend)) if "products" in suites else 0
    n += (4 * len(types) if types else 4 if options.quick else 12) if "models" in suites else 0
    return n


def _caches() -> dict[str, int]:
    """Half the size of each data cache, and a size larger than all caches. Sizes are guesses
    outside Linux."""
    found = {"L1": 32 << 10, "L2": 1 << 20}
    for folder in sorted(Path("/sys/devices/system/cpu/cpu0/cache").glob("index*")):
        try:
            kind, level = (folder / "type").read_text().strip(), (folder / "level").read_text().strip()
            size = (folder / "size").read_text().strip()
            if kind != "Instruction" and size.endswith("K"):
                found[f"L{level}"] = int(size[:-1]) << 10
        except (OSError, ValueError):
            continue
    sizes = {name: size // 2 for name, size in found.items()}
    sizes["memory"] = 256 << 20
    return sizes


def _table(limits: Limits, quick: bool) -> dict[str, float]:
    per_core = {"L1", "L2"}
    sizes = {
        n: s * limits.threads if n in per_core else s for n, s in _caches().items() if not (quick and n not in per_core)
    }
    return limits.table(sizes, 1 if quick else 3)


def _load() -> float | None:
    return os.getloadavg()[0] if hasattr(os, "getloadavg") else None


# --------------------------------------------------------------------------------------------------------------- output


_LEGEND = """
rate: the median over the rounds. limit: the rate at which this machine's memory or arithmetic would be used in full.
share: rate / limit. bound: the resource that sets the limit. m, k, n: n rows of activations times m x k weights.
"""


def _print_head() -> None:
    print(_LEGEND)
    print(f"{'case':<52} {'rate':>12} {'unit':<11} {'limit':>10} {'share':>8}  {'bound':<22}  algorithm", flush=True)


def _print_row(result: Result) -> None:
    share = bound = limit = ""
    if result.limit is not None and result.share is not None:
        limit, bound = f"{result.limit:.4g}", result.bound
        share = f"{result.share:.1%}{'!' * (result.share > 1)}"
    figures = f"{result.case.name:<52} {result.median:12.4g} {result.case.unit:<11}"
    print(f"{figures} {limit:>10} {share:>8}  {bound:<22}  {result.case.algorithm}".rstrip(), flush=True)


def _print_notes(limits: Limits, results: list[Result]) -> None:
    presence = 1.0 if limits.processor_time else limits.presence.share
    for note in notes_on(presence, [r.share for r in results]):
        print(f"note: {note}")


def _read_old(path: str) -> dict[str, Any]:
    """The cases of a file that --json wrote."""
    try:
        data = json.loads(read_text(path))
        if data["benchmark"] != "bench" or data["format"] != FORMAT:
            raise ValueError(f"written by another version (format {data['format']})")
        cases = {
            str(name).lower(): {"median": float(row["median"]), "share": row["share"]}
            for name, row in data["cases"].items()
        }
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise InvalidArgumentError(
            f"--compare: {path} is no result of bench --json: {reason(error).removeprefix(f'{path}: ')}"
        ) from None
    return cases


def _compare(path: str, old: dict[str, Any], results: list[Result]) -> None:
    print(f"\nratio: this run / {path}")
    for r in results:
        before = old.get(r.case.name.lower())
        if before is None or before["median"] <= 0:
            print(f"{r.case.name:<52} not in the file")
            continue
        line = (
            f"{r.case.name:<52} {before['median']:12.4g} -> {r.median:12.4g} {r.case.unit:<11} ratio"
            f" {r.median / before['median']:6.3f}"
        )
        if before["share"] is not None and r.share is not None:
            line += f"   share {before['share']:6.1%} -> {r.share:6.1%}"
        print(line)


def _to_json(
    options: argparse.Namespace, backend: Backend, table: dict[str, float], results: list[Result]
) -> dict[str, Any]:
    return {
        "benchmark": "bench", "format": FORMAT, "version": text(lib.gbpy_version()), "build": text(lib.gbpy_build()),
        "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()), "device": describe_device(backend),
        "level": backend.level,
        "threads": backend.n_threads, "load": _load(), "rounds": options.rounds, "seconds": options.seconds,
        "quick": options.quick,
        "processor_time": options.cpu,
        "limits": table, "cases": {r.case.name: r.to_json() for r in results},
    }  # fmt: skip


def _write(path: str, data: dict[str, Any]) -> None:
    target = Path(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    write_text(target, json.dumps(data, indent=1) + "\n")


# -------------------------------------------------------------------------------------------------------------- command


def _measure_all(options: argparse.Namespace) -> None:
    if options.cpu and options.threads not in (None, 1):
        raise InvalidArgumentError(f"--cpu measures the time of one thread, not of {options.threads}")
    backend = Backend("CPU", n_threads=1 if options.cpu else options.threads, level=options.level)
    old = _read_old(options.compare) if options.compare else None
    limits = Limits(backend, options.seconds / 2, processor_time=options.cpu)
    total, show = _count(options, backend), step_bar("bench")
    table = _table(limits, options.quick)
    load = _load()
    how = "; processor time" if options.cpu else ""
    print(f"{describe_device(backend)}{how}{'' if load is None else f'; load average {load:.2f}'}")
    for name, rate in table.items():
        print(f"  {name:<24} {rate / 1e9:10.1f} {'GB/s' if ',' in name else 'G operations/s'}")
    _print_head()
    results: list[Result] = []
    with ExitStack() as stack:
        for case in _cases(options, backend, limits, stack):
            if options.only and not any(word in case.name for word in options.only):
                continue
            show(min(len(results), total - 1), total, case.name[:24])
            results.append(measure(case, limits, options.rounds, options.seconds))
            if sys.stderr.isatty():
                print("\r\033[K", end="", file=sys.stderr, flush=True)
            _print_row(results[-1])
    _print_notes(limits, results)
    if options.json:
        _write(options.json, _to_json(options, backend, table, results))
    if old is not None:
        _compare(options.compare, old, results)


def _explain(options: argparse.Namespace) -> None:
    """Prints which algorithm computes each product, and why earlier ones in the table decline.
    Prints reasons only if they differ from the previous product of the type."""
    on_cpu = options.device == "CPU"
    backend = Backend("CPU", level=options.level) if on_cpu else Backend(options.device)
    types = _types(options.types, backend) or product_types(backend)
    where = f"at level {backend.level}" if on_cpu else f"on {describe_device(backend)}"
    print(f"algorithms of products {where}, in the order in which they are tried")
    known: tuple[object, ...] = ()
    for name, algorithm in explain_products(types, backend, quick=options.quick):
        if options.only and not any(word in name for word in options.only):
            continue
        if algorithm is None:
            print(f"{name:<32} (the backend does not name it)")
            continue
        print(f"{name:<32} {algorithm.name}")
        dtype = name.split()[0]
        if (dtype, algorithm.declined) != known:
            for other, why in algorithm.declined:
                print(f"{'':<32}   not {other}: {why}")
        known = (dtype, algorithm.declined)


def _measure_model(options: argparse.Namespace) -> None:
    """Measures the model file that was given in place of a suite."""
    if len(options.suites) != 1:
        options.parser.error("measure one model file at a time")
    for flag in ("level", "types", "only", "compare"):
        if getattr(options, flag) is not None:
            options.parser.error(f"argument --{flag}: not for MODEL.gguf")
    if options.cpu and options.threads not in (None, 1):
        options.parser.error(f"--cpu measures the time of one thread, not of {options.threads}")
    found = measure_file(
        options.suites[0], options.device.split(","), 1 if options.cpu else options.threads, options.prompt,
        options.new, 2 if options.quick else options.rounds, options.cpu,
    )  # fmt: skip
    print_figures(found)
    if options.json:
        _write(options.json, {"benchmark": "bench", "version": text(lib.gbpy_version()), "load": _load(), **found})


def run(options: argparse.Namespace) -> int:
    if any(is_model(s) for s in options.suites):
        _measure_model(options)
        return 0
    if options.prompt is not None or options.new is not None:
        options.parser.error("arguments --prompt and --new: for MODEL.gguf")
    unknown = [s for s in options.suites if s not in _SUITES]
    if unknown:
        options.parser.error(f"argument ops|products|models|MODEL.gguf: {unknown[0]!r} is none of these")
    if options.explain:
        if options.suites != ["products"]:
            options.parser.error("argument --explain: only products have several algorithms: bench products --explain")
        if options.device != "CPU" and options.level is not None:
            options.parser.error("argument --level: only the CPU has levels")
        _explain(options)
        return 0
    if options.device != "CPU":
        options.parser.error("argument --device: another device than the CPU needs --explain")
    if options.quick:
        options.rounds, options.seconds = min(options.rounds, 2), min(options.seconds, 0.005)
    _measure_all(options)
    return 0


def _positive(kind: type[int] | type[float]) -> Any:
    def parse(word: str) -> float:
        try:
            value = kind(word)
        except ValueError:
            raise argparse.ArgumentTypeError(f"{word!r} is no number") from None
        if not 0 < value < 10000:
            raise argparse.ArgumentTypeError(f"{word} is not above 0 and below 10000")
        return value

    return parse


EXAMPLE = "products --types q4_k --threads 1"


def _add_model_arguments(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("for MODEL.gguf")
    group.add_argument(
        "--prompt",
        type=_positive(int),
        metavar="N",
        help="tokens of a prompt (default: 512), or of each text of an embedding model (default: 128); not for Whisper",
    )
    group.add_argument(
        "--new",
        type=_positive(int),
        metavar="N",
        help="tokens that are written (default: 32); not for embedding models",
    )


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "suites", nargs="*", metavar="ops|products|models|MODEL.gguf", help="what to measure (default: all suites)"
    )
    parser.add_argument(
        "--threads",
        type=_positive(int),
        metavar="N",
        help="threads of the CPU backend (default: as Backend chooses)",
    )
    parser.add_argument(
        "--level", choices=list(cpu_levels()), help="kernel level (default: the best of this processor)"
    )
    parser.add_argument(
        "--types",
        nargs="+",
        metavar="TYPE",
        help="types of weights, such as q4_0,f16 (default: all for products, four for models)",
    )
    parser.add_argument(
        "--only", nargs="+", metavar="TEXT", help="measure only cases whose names contain one of these texts"
    )
    parser.add_argument(
        "--rounds",
        type=_positive(int),
        default=5,
        metavar="N",
        help="rounds that measure the limits and the case alternately; the median is shown (default: 5)",
    )
    parser.add_argument(
        "--seconds", type=_positive(float), default=0.05, metavar="S", help="shortest time of a round (default: 0.05)"
    )
    parser.add_argument(
        "--cpu",
        action="store_true",
        help="measure the processor time of one thread: for busy machines",
    )
    parser.add_argument(
        "--quick",
        action="store_true",
        help="tiny sizes and short rounds, to test the command; the figures mean little",
    )
    parser.add_argument(
        "--explain",
        action="store_true",
        help="list the algorithm chosen for each product and why (does not measure)",
    )
    parser.add_argument(
        "--device",
        default="CPU",
        metavar="NAME",
        help="device that --explain asks, such as CUDA0; of MODEL.gguf, one or several, CUDA0,CPU (CPU)",
    )
    _add_model_arguments(parser)
    parser.add_argument("--json", metavar="FILE", help="write the figures of every round to a file")
    parser.add_argument("--compare", metavar="FILE", help="print ratios to the figures in a file that --json wrote")
