"""Runs the checks of a device. A failure does not stop the other checks."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from traceback import walk_tb
from typing import NamedTuple

from .._base.errors import InvalidArgumentError
from .._base.errors.messages import close_matches
from .._base.terminal import reason
from .._base.text import Patterns
from ..backend.backend import Backend
from . import _graphs as graphs
from . import _memory as memory
from ._graphs import unfused
from ._operators import Nothing, Wrong, check_refusal, check_variant, generator
from ._report import CheckedCase, Outcome
from ._variants import Variant, all_variants, special_variants

__all__ = ["Settings", "UnknownCaseError", "reference_of", "run_checks"]

_PACKAGE = Path(__file__).parents[1]
_DEVICES = _PACKAGE / "devices" / "_array"

Progress = Callable[[int, int, str], None]


class UnknownCaseError(InvalidArgumentError):
    """``only`` names a case that does not exist."""


@dataclass(frozen=True)
class Settings:
    """Settings of :func:`ggml_backend.testing.check_device`."""

    seed: int = 0
    quick: bool = False
    special_values: bool = False
    bit_identical: bool = False
    another: Callable[[], Backend] | None = None  # opens a second device with the same options


class _Job(NamedTuple):
    name: str
    group: str
    op: str
    dtype: str
    run: Callable[[], tuple[str, str] | None]


def reference_of(backend: Backend) -> Backend:
    """The reference of a device: the CPU with its best kernels. The CPU itself is compared with the
    portable kernels in one thread."""
    if backend.is_cpu and backend.level != "scalar":
        return Backend("CPU", n_threads=1, level="scalar")
    return Backend("CPU")


def _jobs(backend: Backend, cpu: Backend, settings: Settings) -> Iterator[_Job]:
    seed, bits = settings.seed, settings.bit_identical

    def plain(check: Callable[[], object]) -> Callable[[], tuple[str, str]]:
        def run() -> tuple[str, str]:
            check()
            return "passed", ""

        return run

    declined: dict[str, str] = {}  # by operation: a variant that the device refuses; "" if none yet

    def of(v: Variant, group: str) -> _Job:
        def run() -> tuple[str, str] | None:
            declined.setdefault(v.op, "")
            answer = check_variant(v, seed, backend, cpu, bits)
            refused = answer is not None and answer[0] in ("refused", "unknown")
            if refused and not declined[v.op] and not v.is_empty:  # an empty node cannot be computed wrongly
                declined[v.op] = v.name
            return answer

        return _Job(v.name, group, v.op, v.dtype, run)

    for name, check in memory.CHECKS.items():
        full = f"memory/{name}"
        done = plain(lambda c=check, f=full: c(backend, cpu, generator(seed, f)))  # type: ignore[misc]
        yield _Job(full, "memory", "memory", "", done)
    variants = all_variants(settings.quick)
    for variant in variants:
        yield of(variant, "operators")
    for variant in variants:
        yield _refusal(variant, seed, backend, declined)
    for name, run in graphs.checks(settings.quick, settings.another).items():
        full = f"graphs/{name}"
        done = plain(lambda c=run, f=full: c(backend, cpu, generator(seed, f), bits))  # type: ignore[misc]
        yield _Job(full, "graphs", f"graphs: {name.split('/')[0]}", "", done)
    for variant in special_variants(settings.quick) if settings.special_values else ():
        yield of(variant, "special values")


def _refusal(variant: Variant, seed: int, backend: Backend, declined: dict[str, str]) -> _Job:
    """A job that computes the first refused node of each operation."""

    def run() -> tuple[str, str] | None:
        first = declined.get(variant.op, variant.name) == variant.name and not variant.is_empty
        if not first or not check_refusal(variant, seed, backend):
            return None
        return "passed", ""

    return _Job(f"refusal/{variant.name}", "refusals", "refusals", "", run)


def _chosen(jobs: Sequence[_Job], only: Sequence[str] | None) -> list[_Job]:
    if only is None:
        return list(jobs)
    names = [job.name for job in jobs]
    patterns = Patterns(names)
    wanted: set[str] = set()
    for pattern in only:
        found = set(patterns.fitting(pattern))
        if pattern not in found:  # a whole name selects that case only
            found.update(job.name for job in jobs if job.group == pattern or job.name.startswith(f"{pattern}/"))
        if not found and pattern == "special values":
            raise UnknownCaseError(f"check_device: only: {pattern!r} are cases of special_values=True")
        if not found:
            near = close_matches(pattern, sorted({*(n.split("/")[0] for n in names), *(job.group for job in jobs)}))
            raise UnknownCaseError(f"check_device: only: no case is called {pattern!r}{near}")
        wanted |= found
    return [job for job in jobs if job.name in wanted]


def _raised_at(error: BaseException) -> str:
    """The line of the device that raised an exception; "" if this package raised it."""
    device, found = None, ""
    for frame, number in walk_tb(error.__traceback__):
        path = Path(frame.f_code.co_filename)
        if device is None and (_PACKAGE not in path.parents or _DEVICES in path.parents):
            device = path.parent  # frames in other folders are functions that it calls
        if path.parent == device:
            found = f" ({path.name}:{number}, in {frame.f_code.co_name})"
    return found


def _words(error: BaseException) -> str:
    kind, text = type(error).__name__, reason(error)
    message = text if text.startswith(kind) else f"{kind}: {text}"
    return "; ".join([message + _raised_at(error), *map(str, getattr(error, "__notes__", ()))])


def _run(job: _Job) -> CheckedCase | None:
    outcome: Outcome = "failed"
    try:
        answer = job.run()
        if answer is None or answer[0] == "unknown":
            return None
        outcome, message = answer  # type: ignore[assignment]
    except Wrong as error:
        message = str(error)
    except Nothing as error:
        outcome, message = "skipped", str(error)
    except (Exception, SystemExit, GeneratorExit) as error:
        message = _words(error)
    return CheckedCase(job.name, job.group, job.op, job.dtype, outcome, message)


def run_checks(
    backend: Backend, settings: Settings, only: Sequence[str] | None, progress: Progress | None
) -> list[CheckedCase]:
    """Runs the selected cases in order. only: patterns of names; progress: as for ``calibrate``"""
    cpu = reference_of(backend)
    jobs = _chosen(list(_jobs(backend, cpu, settings)), only)
    found: list[CheckedCase] = []
    with unfused() if settings.bit_identical else nullcontext():
        for i, job in enumerate(jobs):
            if progress is not None:
                progress(i, len(jobs), job.name)
            case = _run(job)
            if case is not None:
                found.append(case)
    if progress is not None:
        progress(len(jobs), len(jobs), "")
    return found
