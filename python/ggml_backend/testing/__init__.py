"""For authors of devices: :func:`check_device` compares a device with the CPU and reports errors.

- *Operators*: every operation of the package, in every dtype, with strides, offsets, gaps behind rows,
  broadcasts and empty tensors. The result also overwrites a source where a scheduler would place it there.
  Nodes that ``supports`` refuses are listed with the reason. One refused node of each operation is computed
  all the same, which must raise an error. Results must be within the tolerances of
  ``ggml_backend/testing/_tolerance.py``. Sources, and all memory beside results, must not change.
- *Memory*: sizes, alignment, reading and writing at offsets, ``clear``, copies, the largest buffer, closing.
- *Graphs*: repeated runs with other inputs, several graphs in turn, random graphs in schedulers over the device
  and the CPU with random assignments, several pending runs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import TextIO

from .._base.errors import InvalidArgumentError, expect_bool, expect_function, expect_int
from .._base.errors.messages import kind_of
from ..backend.backend import Backend
from ._report import CheckedCase, DeviceReport

__all__ = ["CheckedCase", "DeviceReport", "check_device"]


def check_device(
    device: str | Backend,
    /,
    *,
    only: str | Sequence[str] | None = None,
    seed: int = 0,
    quick: bool = False,
    special_values: bool = False,
    bit_identical: bool = False,
    progress: Callable[[int, int, str], None] | None = None,
    file: TextIO | None = None,
    **options: object,
) -> DeviceReport:
    """Tests everything that a device claims to support, and compares it with the CPU::

        report = gb.testing.check_device("SIM", mem="64M", quick=True)
        assert report.ok, str(report)

    device: a name with options as for :class:`Backend`, or a backend
    only: run only the cases of this name, or of these names: an operation (``"mul_mat"``), a group of
        ``CheckedCase.group`` (such as ``"memory"``), a whole name, or a pattern (``"mul_mat/q4_*"``)
    seed: seed of the inputs. Seed and name determine a case, whether it runs alone or not
    quick: fewer sizes and dtypes, a few seconds
    special_values: also test NaN, infinities and the limits of floats, if the CPU has defined results
    bit_identical: results must equal those of the CPU bit by bit. The CPU then computes node by node
    progress: called with the number of cases done, their total, and the name of the next one
    file: where to print the report; default: it is not printed
    options: options of the backend

    An exception of the device fails its case, and the other cases still run. A device that hangs or crashes
    takes the process with it. ``progress`` then shows the case.
    """
    if not isinstance(device, (str, Backend)):
        raise TypeError(f"check_device: device must be a name or a Backend, not {kind_of(device)}")
    from ._run import Settings, run_checks  # imported here to keep the import of the package fast

    settings = Settings(
        expect_int(seed, "check_device: seed"),
        expect_bool(quick, "check_device: quick"),
        expect_bool(special_values, "check_device: special_values"),
        expect_bool(bit_identical, "check_device: bit_identical"),
    )
    if settings.seed < 0:
        raise InvalidArgumentError(f"check_device: seed must not be negative, is {seed}")
    if progress is not None:
        expect_function(progress, "check_device: progress")
    wanted = _patterns(only)
    backend, call = _opened(device, options)
    flags = {"special_values": settings.special_values, "bit_identical": settings.bit_identical}
    call = ", ".join([call, *(f"{k}=True" for k, on in flags.items() if on)])
    if isinstance(device, str):
        settings = replace(settings, another=partial(Backend, device, **options))  # type: ignore[arg-type]
    cases = run_checks(backend, settings, wanted, progress)
    name = device if isinstance(device, str) else backend.name
    report = DeviceReport(name, settings.seed, settings.quick, tuple(cases), call)
    if file is not None:
        print(report, file=file)
    return report


def _opened(device: str | Backend, options: dict[str, object]) -> tuple[Backend, str]:
    """The backend, and the arguments that name it in a call."""
    if isinstance(device, Backend):
        if options:
            raise InvalidArgumentError(f"check_device: {', '.join(options)}: a backend has its options already")
        return device, "backend"
    call = ", ".join([repr(device), *(f"{k}={v!r}" for k, v in options.items())])
    return Backend(device, **options), call  # type: ignore[arg-type]


def _patterns(only: str | Sequence[str] | None) -> list[str] | None:
    if only is None:
        return None
    found = [only] if isinstance(only, str) else list(only)
    for pattern in found:
        if not isinstance(pattern, str):
            raise TypeError(f"check_device: only: each must be a str, not {kind_of(pattern)}")
    return found
