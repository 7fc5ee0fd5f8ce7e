"""``python -m ggml_backend plan MODEL.gguf --cluster FILE``: plans a model on a cluster that need
not exist."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Sequence
from typing import Any

from .._base.terminal import print_json, say
from .._base.text import line, size_text
from ..cluster.planning.describe import Description
from ..cluster.planning.layers import LayerModel, Placement, Prediction, place, predict
from ..cluster.planning.simulate import simulate
from ..profile._pictures import drawing, page, png, text_map
from .examples.layers import Passes, drawn, passes_of_file

__all__ = ["plan_cluster"]

_ENOUGH_PASSES = 2000  # simulated passes, over all sequences


def plan_cluster(options: argparse.Namespace, columns: int) -> None:
    """Prints the plan, and writes the requested pictures."""
    _expect_model(options)
    sequences = 1 if options.sequences is None else options.sequences
    if sequences < 1:
        options.parser.error(f"--sequences must be a number from 1 up, not {sequences}")
    cluster = Description.read(options.cluster)
    passes = passes_of_file(options.source, options.tokens, options.context)
    placement = place(passes.step, cluster, sequences)
    result = _result(options, passes, placement, cluster, sequences)
    picture = None
    if options.html or options.svg or options.png or options.map:
        with drawn(passes, passes.step, placement, cluster) as (_, picture):
            for path, write in ((options.html, page), (options.svg, drawing), (options.png, png)):
                if path:
                    write(picture, path)
    if options.json:
        print_json(result)
        return
    _print(result)
    if options.map and picture is not None:
        print(f"\n{text_map(picture, columns)}", end="")


def _expect_model(options: argparse.Namespace) -> None:
    for flag in ("devices", "reorder", "module", "out"):
        if getattr(options, flag) is not None:
            reason = ": FILE describes the devices" if flag in ("devices", "module") else ""
            options.parser.error(f"--{'import' if flag == 'module' else flag} is not for --cluster{reason}")
    if not (os.path.exists(options.source) or options.source.lower().endswith(".gguf")):
        options.parser.error(f"--cluster is for MODEL.gguf, and {line(options.source)} is an example")


# ------------------------------------------------------------------------------------------------------------- figures


def _result(
    options: argparse.Namespace, passes: Passes, placement: Placement, cluster: Description, sequences: int
) -> dict[str, Any]:
    step, prompt = passes.step, passes.prompt
    by_step, by_prompt = predict(step, placement, cluster), predict(prompt, placement, cluster)
    used = {s.device for s in placement.stages}
    result = {
        "model": step.title, "cluster": str(options.cluster), "sequences": sequences, "tokens": prompt.tokens,
        "context": passes.file.length,
        "devices": _devices(passes, placement, cluster, by_step, by_prompt),
        "unused": [d.name for k, d in enumerate(cluster.devices) if k not in used],
        "cuts": _cuts(step, prompt, placement, by_step, by_prompt),
        "step": _pass(by_step, sequences), "prompt": _pass(by_prompt, sequences),
    }  # fmt: skip
    if options.simulate:
        result["simulated"] = {
            str(n): simulate(step, placement, cluster, n, passes=max(10, _ENOUGH_PASSES // n)).rate
            for n in sorted({1, sequences})
        }
    return result


def _devices(
    passes: Passes, placement: Placement, cluster: Description, step: Prediction, prompt: Prediction
) -> list[dict[str, Any]]:
    rows = []
    for k, s in enumerate(placement.stages):
        device, units = cluster.devices[s.device], passes.step.units[s.begin : s.end]
        weights, caches = sum(u.weights for u in units), placement.sequences * sum(u.cache for u in units)
        rows.append({
            "device": device.name, "host": device.host, "first": units[0].name, "last": units[-1].name,
            "weights": weights, "caches": caches, "results": passes.step.scratch,
            "total": weights + caches + passes.step.scratch, "memory": device.kind.memory,
            "step_s": step.stages[k], "prompt_s": prompt.stages[k],
        })  # fmt: skip
    return rows


def _cuts(
    step: LayerModel, prompt: LayerModel, placement: Placement, by_step: Prediction, by_prompt: Prediction
) -> list[dict[str, Any]]:
    ends = [s.end for s in placement.stages[:-1]]
    names = ["rank 0", *by_step.names, "rank 0"]
    sizes = [(step.sent, prompt.sent), *((step.units[e - 1].carry, prompt.units[e - 1].carry) for e in ends)]
    sizes.append((step.returned, prompt.returned))
    return [
        {"from": names[k], "to": names[k + 1], "step_bytes": a, "step_s": by_step.hops[k], "prompt_bytes": b,
         "prompt_s": by_prompt.hops[k]}
        for k, (a, b) in enumerate(sizes)
    ]  # fmt: skip


def _pass(p: Prediction, sequences: int) -> dict[str, Any]:
    return {
        "once_s": p.once, "computing_s": sum(p.stages), "links_s": sum(p.hops), "rank0_s": p.issue,
        "one_per_s": p.rate(1), "per_s": p.rate(sequences), "most_per_s": p.rate(p.enough), "enough": p.enough,
        "slowest": p.slowest[0], "slowest_s": p.slowest[1], "limit": p.limit(sequences),
    }  # fmt: skip


# ---------------------------------------------------------------------------------------------------------------- text


def _rate(r: float) -> str:
    return f"{r:.3g}" if r < 1000 else f"{r:.0f}"


def _seconds(s: float) -> str:
    for unit, factor in (("s", 1.0), ("ms", 1e-3), ("us", 1e-6)):
        if s >= factor:
            return f"{s / factor:.3g} {unit}" if s < 1000 else f"{s:.0f} s"
    return "0" if s == 0 else f"{s * 1e9:.3g} ns"


def _table(rows: Sequence[Sequence[str]], right: Callable[[int], bool]) -> None:
    widths = [max(len(row[k]) for row in rows) for k in range(len(rows[0]))]
    for row in rows:
        cells = (c.rjust(w) if right(k) else c.ljust(w) for k, (c, w) in enumerate(zip(row, widths, strict=True)))
        say("  ".join(cells).rstrip())


def _print(r: dict[str, Any]) -> None:
    n = r["sequences"]
    say(f"{r['model']}: steps at the end of a cache of {r['context']}, prompts of {r['tokens']} tokens, {n}"
        f" sequence{'s' if n > 1 else ''} on {r['cluster']}\n")  # fmt: skip
    rows = [["device", "holds", "weights", "caches", "results", "of its memory", "a step", "a prompt"]]
    for d in r["devices"]:
        holds = d["first"] if d["first"] == d["last"] else f"{d['first']} to {d['last']}"
        share = f"{d['total'] / d['memory']:.0%} of {size_text(d['memory'])}"
        sizes = [size_text(d[what]) for what in ("weights", "caches", "results")]
        rows.append([d["device"], holds, *sizes, share, _seconds(d["step_s"]), _seconds(d["prompt_s"])])
    _table(rows, lambda k: k > 1)
    rows = [["from", "to", "a step", "takes", "a prompt", "takes"]]
    for c in r["cuts"]:
        values = (
            size_text(c["step_bytes"]),
            _seconds(c["step_s"]),
            size_text(c["prompt_bytes"]),
            _seconds(c["prompt_s"]),
        )
        rows.append([c["from"], c["to"], *values])
    print()
    _table(rows, lambda k: k > 1)
    if r["unused"]:
        say(f"\nnot used: {', '.join(r['unused'])}")
    _print_rates(r)


def _print_rates(r: dict[str, Any]) -> None:
    n, step = r["sequences"], r["step"]
    parts = [("computing", step["computing_s"]), ("on links", step["links_s"]), ("of rank 0", step["rank0_s"])]
    say(f"\na step takes {_seconds(step['once_s'])}: {', '.join(f'{_seconds(s)} {what}' for what, s in parts)}")
    say(f"a prompt takes {_seconds(r['prompt']['once_s'])}")
    simulated = r.get("simulated", {})

    def say_rate(what: str, rate: float, key: str, why: str) -> None:
        beside = f" ({_rate(simulated[key])} simulated)" if key in simulated else ""
        say(f"{what}: {_rate(rate)} tokens/s{beside}{why}")

    say_rate("one sequence", step["one_per_s"], "1", "")
    if n > 1:
        say_rate(f"{n} sequences", step["per_s"], str(n), f"; limit: {step['limit']}")
    say_rate(f"{step['enough']} sequences or more", step["most_per_s"], "", f"; limit: {step['slowest']}")
