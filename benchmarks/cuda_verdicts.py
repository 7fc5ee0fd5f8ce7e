"""Compares the figures of bench_cuda.c and bench_cuda_torch.py with the claims about the CUDA backend.

    python3 benchmarks/cuda_verdicts.py build/bench/cuda.json build/bench/torch.json [--mma build/bench/cuda-mma.json]
    [--waiting build/bench/cuda-waiting.json]

All files must come from one machine, within an hour. The program prints each claim with two figures and whether the
claim holds. A claim without figures is owed. The program exits with 1 if a claim does not hold, else with 77 if one is
owed.
"""

import argparse
import json
import sys
from collections.abc import Iterator
from pathlib import Path

Figures = dict[str, float]

WEIGHTS = ("f16", "bf16", "q8_0", "q4_0", "q4_K", "q6_K", "iq4_xs")


def figures(path: str) -> Figures:
    """The figures of a file by name, without units. Empty if the file is missing or incomplete."""
    try:
        results = json.loads(Path(path).read_text(encoding="utf-8-sig"))["results"]
    except (OSError, ValueError, KeyError) as error:
        print(f"{path}: {error}", file=sys.stderr)
        return {}
    return {r["name"]: next(v for k, v in r.items() if k != "name") for r in results}


def claims(hopper: bool) -> Iterator[tuple[str, str, str, float]]:
    """Name of the figure, of what it is divided by (``torch:`` and ``mma:`` are the other files), and the least ratio
    that is claimed."""
    copy = "device copy, bytes read and written"
    for name in WEIGHTS:
        yield f"matrix-vector, {name}", f"mul_mat {name} m=8192 n=1 k=8192", copy, 0.85
        yield f"matrix-vector of 2048, {name}", f"mul_mat {name} m=2048 n=1 k=2048", copy, 0.5
    for name in WEIGHTS[2:]:
        for rows in (8, 16):
            yield f"{rows} rows, {name}", f"mul_mat {name} m=8192 n={rows} k=8192", copy, 0.7
    product = "mul_mat f32 m=4096 n=4096 k=4096"
    yield "4096^3, f32, beside cuBLAS", product, f"{product} by cuBLAS", 0.8
    yield "4096^3, f32 in tf32, beside f32", f"{product} in tf32", product, 2.0
    yield "depthwise convolution", "conv_2d_dw 3x3, bytes read and written", copy, 0.4
    for name in ("f16", "bf16"):
        product = f"mul_mat {name} m=8192 n=8192 k=8192"
        yield f"8192^3, {name}", f"{product}, {name} rows", f"torch:{product}", 0.7
        yield f"8192^3, {name}, float rows made {name}", product, f"torch:{product}, float rows made {name}", 0.7
    for name, other in (("q8_0", "q8_0"), ("q4_0", "q4_0"), ("q4_K", "q4_0")):  # with the same number of bits
        yield (
            f"512 rows, {name}",
            f"mul_mat {name} m=8192 n=512 k=8192",
            f"torch:dequantize {other}, then mul_mat m=8192 n=512 k=8192",
            1.0,
        )
    for name in ("f16 n=4096 heads=32 d=128 causal", "bf16 n=4096 heads=32 d=128"):
        yield f"attention, {name}", f"flash_attn {name}", f"torch:flash_attn {name}", 0.5
    for name in WEIGHTS if hopper else ():
        for rows in (48, 128, 512):
            product = f"mul_mat {name} m=8192 n={rows} k=8192"
            yield f"{rows} rows, {name}, beside mma.sync", product, f"mma:{product}", 1.0
        product = f"mul_mat_id {name} m=4096 n=2048 k=4096 experts=8"
        yield f"experts, {name}, beside mma.sync", product, f"mma:{product}", 1.0
    yield "upload, pinned", "upload of 2 GiB, pinned memory", "torch:upload of 2 GiB, pinned memory", 0.9


def judge(ours: Figures, torch: Figures, mma: Figures | None) -> tuple[list[str], bool, bool]:
    """The lines of a table, whether all measured claims hold, and whether a claim is owed. ``mma`` is None on devices
    without kernels of their own."""
    files = {"torch": torch, "mma": mma or {}}
    lines, holds, owed = [], True, False
    for text, name, reference, least in claims(mma is not None):
        value = ours.get(name)
        file, _, other = reference.partition(":")
        against = files[file].get(other) if file in files else ours.get(reference)
        if value is None or against is None:
            lines.append(f"{text:42} owed: {'no figure' if value is None else 'nothing to compare with'}")
            owed = True
            continue
        good = value >= least * against
        holds &= good
        lines.append(
            f"{text:42} {value:10.4g} of {against:10.4g}: {value / against:6.1%}, {least:.0%} claimed:"
            f" {'holds' if good else 'DOES NOT HOLD'}"
        )
    replay = ours.get("1000 nodes, replayed")
    if replay is None:
        lines.append(f"{'1000 nodes, replayed':42} owed: no figure")
    else:
        lines.append(
            f"{'1000 nodes, replayed':42} {replay:10.4g} ms, less than 1 claimed:"
            f" {'holds' if replay < 1 else 'DOES NOT HOLD'}"
        )
    return lines, holds and (replay is None or replay < 1), owed or replay is None


def judge_dependent(ours: Figures, waiting: Figures) -> tuple[str, bool, bool]:
    """The same for one claim: a chain of kernels takes no longer with dependent launches than without."""
    name = "1000 nodes, replayed"
    with_it, without = ours.get(name), waiting.get(name)
    if with_it is None or without is None:
        return f"{'dependent launches':42} owed: no figure", True, True
    good = with_it <= without
    shares = f"{with_it:10.4g} of {without:10.4g} ms: {with_it / without:6.1%}, at most 100% claimed"
    return f"{'dependent launches':42} {shares}: {'holds' if good else 'DOES NOT HOLD'}", good, False


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("ours", help="JSON of bench_cuda")
    parser.add_argument("torch", help="JSON of bench_cuda_torch.py")
    parser.add_argument("--mma", help="JSON of bench_cuda with GGML_CUDA_HOPPER=0, on a device of compute capability"
                        " 9.0: checks that its own kernels are faster than those for all devices")  # fmt: skip
    parser.add_argument("--waiting", help="JSON of bench_cuda with GGML_CUDA_DEPENDENT=0: checks dependent launches")
    args = parser.parse_args()
    ours = figures(args.ours)
    lines, holds, owed = judge(ours, figures(args.torch), figures(args.mma) if args.mma else None)
    if args.waiting:
        line, good, missing = judge_dependent(ours, figures(args.waiting))
        lines, holds, owed = [*lines, line], holds and good, owed or missing
    print("\n".join(lines))
    return 1 if not holds else 77 if owed else 0


if __name__ == "__main__":
    raise SystemExit(main())
