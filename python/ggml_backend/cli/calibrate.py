"""``python -m ggml_backend calibrate``: measures costs of operators and copies, and shows those measured before."""

from __future__ import annotations

import argparse

from .._base.errors import GgmlError
from .._base.terminal import print_json, say, step_bar
from ..backend.backend import Backend
from ..sched._calibrate import calibrate, check_size
from ..sched._costs import describe_device, file_of, read_costs, to_json
from .program import add_import, import_named

EXAMPLE = "SIM CPU"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "devices",
        nargs="*",
        metavar="DEVICE",
        help="devices to measure, named as for Backend: CPU, SIM:name=A (default: CPU)",
    )
    parser.add_argument(
        "--size", type=int, default=768, metavar="N", help="rows and columns of the measured matrices (default: 768)"
    )
    parser.add_argument("--force", action="store_true", help="measure again, even if costs are known")
    add_import(parser)
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(options: argparse.Namespace) -> int:
    check_size(options.size)
    import_named(options)
    results = []
    for name in options.devices or ["CPU"]:
        try:
            backend = Backend(name)
            kept = None if options.force else read_costs(backend)
            device = kept or calibrate(backend, size=options.size, progress=step_bar(name))
        except GgmlError as error:
            if len(options.devices or ()) > 1 and name not in str(error):
                error.args = (f"{name}: {error}",)
            raise
        results.append(
            {
                "device": describe_device(backend),
                "file": str(file_of(backend)),
                "measured": kept is None,
                **to_json(device),
            }
        )
    if options.json:
        print_json(results)
        return 0
    for r in results:
        say(f"{r['device']}: {'measured now' if r['measured'] else 'measured earlier'}, {r['file']}")
        for op in r["ops"]:
            rates = "".join(
                f"{op[k] / 1e3:10.2f} {unit}"
                for k, unit in (("bytes_per_us", "GB/s"), ("flops_per_us", "GFLOP/s"))
                if op[k]
            )
            print(f"  {op['op_class']:9} {op['dtype'] or '':8} {op['launch_us']:9.2f} us{rates}")
        for what in ("from_host", "to_host"):
            print(f"  {what:18} {r[what]['launch_us']:9.2f} us {r[what]['bytes_per_us'] / 1e3:9.2f} GB/s")
    return 0
