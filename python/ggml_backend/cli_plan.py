"""``python -m ggml_backend plan FILE.csv``: memory planning of a bare instance."""

from __future__ import annotations

import argparse
import json
import sys
from typing import Any

from ._errors import GgmlError
from .planning import plan_memory, read_instance, write_plan

__all__ = ["add_plan_command"]


def _plan(options: argparse.Namespace) -> int:
    try:
        ids, lower, upper, size = read_instance(options.file)
        plan = plan_memory(lower, upper, size, options.align, options.capacity, options.budget_ms)
        if options.out:
            write_plan(options.out, ids, lower, upper, size, plan.offsets)
    except (GgmlError, OSError, UnicodeDecodeError) as error:
        print(f"plan: {error}", file=sys.stderr)
        return 1
    result: dict[str, Any] = {
        "buffers": len(ids), "peak": plan.peak, "lower_bound": plan.lower_bound, "gap": plan.gap, "best_fit": plan.best_fit,
        "proved": plan.proved, "milliseconds": round(plan.milliseconds, 3),
    }  # fmt: skip
    if options.json:
        json.dump(result, sys.stdout, indent=2)
        print()
        return 0
    result["gap"] = f"{100 * plan.gap:.2f} %"
    result["proved"] = "yes" if plan.proved else "no"
    print("\n".join(f"{name.replace('_', ' ') + ':':13}{value}" for name, value in result.items()))
    return 0


def add_plan_command(commands: Any) -> None:
    """Adds ``plan`` to the subparsers of the command line; the function to run is the default ``run``."""
    parser = commands.add_parser("plan", help="offsets for buffers with known lifetimes, from a CSV file")
    parser.add_argument("file", metavar="FILE.csv", help="columns id,lower,upper,size; alive from lower up to, not including, upper")
    parser.add_argument("--align", type=int, default=1, metavar="N", help="alignment of offsets and sizes, a power of two (1)")
    parser.add_argument("--capacity", type=int, metavar="N", help="bytes that will do; an error if no plan within them is found")
    parser.add_argument("--budget-ms", type=int, default=5000, metavar="N", help="for search beyond heuristics (5000)")
    parser.add_argument("--out", metavar="FILE.csv", help="write id,lower,upper,size,offset")
    parser.add_argument("--json", action="store_true", help="as JSON")
    parser.set_defaults(run=_plan)
