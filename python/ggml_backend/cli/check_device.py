"""``python -m ggml_backend check-device``: compares a device with the CPU and reports faults."""

from __future__ import annotations

import argparse
from typing import Any

from .._base.terminal import print_json, say, step_bar
from ..backend.backend import cpu_levels, load_backend
from ..testing import check_device
from ..testing._run import UnknownCaseError
from .program import add_import, import_named


def _seed(word: str) -> int:
    value = int(word)
    if value < 0:
        raise argparse.ArgumentTypeError(f"must not be negative, is {value}")
    return value


EXAMPLE = "SIM --quick"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("device", metavar="NAME", help="the device, named as for Backend: SIM, SIM:mem=64M, CUDA0")
    parser.add_argument(
        "--only",
        nargs="+",
        metavar="PATTERN",
        help="try only these cases: an operation, a group (operators, refusals, memory, graphs, 'special values'), a"
        " whole name, or a pattern such as 'mul_mat/q4_*'",
    )
    parser.add_argument("--seed", type=_seed, default=0, metavar="N", help="seed of the inputs (default: 0)")
    parser.add_argument("--quick", action="store_true", help="try fewer sizes and dtypes, in a few seconds")
    parser.add_argument(
        "--special-values", action="store_true", help="also try NaN, infinities and the limits of floats"
    )
    parser.add_argument("--bit-identical", action="store_true", help="require the CPU's results bit by bit")
    parser.add_argument("--threads", type=int, metavar="N", help="threads, if the device is CPU")
    parser.add_argument("--level", choices=list(cpu_levels()), help="kernels, if the device is CPU")
    parser.add_argument("--load", metavar="FILE", help="load the device from this shared library first")
    add_import(parser)
    parser.add_argument("--json", action="store_true", help="print every case as JSON instead of the table")


def run(options: argparse.Namespace) -> int:
    if options.load is not None:
        load_backend(options.load)
    import_named(options)
    given: dict[str, Any] = {"n_threads": options.threads, "level": options.level}
    given = {k: v for k, v in given.items() if v is not None}
    show = step_bar("check-device")
    try:
        report = check_device(
            options.device,
            only=options.only,
            seed=options.seed,
            quick=options.quick,
            special_values=options.special_values,
            bit_identical=options.bit_identical,
            progress=lambda done, total, name: show(done, max(total, 1), name[:48]),
            **given,
        )
    except UnknownCaseError as error:
        options.parser.error(str(error).removeprefix("check_device: ").replace("only:", "argument --only:"))
    if options.json:
        print_json(report.to_dict())
    else:
        say(report)
    return 0 if report.ok else 1
