"""``python -m ggml_backend plan``: prints and draws plans of tables (CSV), example graphs and
models."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .._base.errors import AllocationError, InvalidArgumentError
from .._base.files import read_head
from .._base.terminal import print_json, say
from .._base.text import line, size_text
from ..backend.backend import backends
from ..planning import plan_memory
from ..profile._pictures import (
    BareArena,
    BareBlock,
    BlockLike,
    Picture,
    bare_picture,
    chains,
    drawing,
    page,
    png,
    read_table,
    text_map,
    write_rows,
    write_table,
)
from ..profile._pictures.about import memory_columns
from ..profile._pictures.data import storages, verdict
from .program import add_import, import_named, plain_warnings

if TYPE_CHECKING:
    from ..sched.plan import ArenaPlan
    from .examples.models import Held, Prepared

DESCRIPTION = (
    "Plans the memory of buffers with lifetimes (FILE.csv: columns id,lower,upper,size; a buffer is alive from lower"
    " up to, not including, upper), of an example graph, or of a model from its metadata alone; prints how much it"
    " needs and draws the layout."
)

_Rows = list[tuple[str, BareBlock]]


# ------------------------------------------------------------------------------------------------------- bare instances


def _merged(rows: _Rows) -> tuple[list[int], list[tuple[int, int, int]]]:
    """The buffers to plan, and the buffer of each block. Blocks that share memory are one buffer,
    alive as long as any of them."""
    blocks: list[BlockLike] = [block for _, block in rows]
    number: dict[int, int] = {}
    spans: list[tuple[int, int, int]] = []
    which = []
    for (_, b), root in zip(rows, chains(blocks), strict=True):
        k = number.setdefault(root, len(spans))
        if k == len(spans):
            spans.append((b.lower, b.upper, b.nbytes))
        else:
            lower, upper, size = spans[k]
            spans[k] = min(lower, b.lower), max(upper, b.upper), max(size, b.nbytes)
        which.append(k)
    return which, spans


def _solve(name: str, rows: _Rows, options: argparse.Namespace) -> tuple[dict[str, Any], BareArena, list[int]]:
    which, spans = _merged(rows)
    lower, upper, size = ([s[k] for s in spans] for k in range(3))
    plan = plan_memory(
        lower, upper, size, options.align, options.capacity, options.budget_ms, options.threads,
        options.reproducible is not None,
    )  # fmt: skip
    result = {
        "buffers": len(rows), "peak": plan.peak, "lower_bound": plan.lower_bound, "gap": plan.gap,
        "best_fit": plan.best_fit,
        "proved": plan.proved, "bound": plan.bound, "bound_by": plan.bound_by, "unfinished": plan.unfinished,
        "milliseconds": round(plan.milliseconds, 3),
    }  # fmt: skip
    offsets = [int(plan.offsets[k]) for k in which]
    blocks = tuple(
        BareBlock(b.id, b.lower, b.upper, b.nbytes, o, b.name, b.op, b.backend or name, 0, b.root)
        for (_, b), o in zip(rows, offsets, strict=True)
    )
    return result, BareArena(name, plan.peak, plan.lower_bound, plan.proved, blocks), offsets


def _print_result(result: dict[str, Any], budget_ms: int) -> None:
    words = {**result, "gap": f"{100 * result['gap']:.2f} %", "proved": "yes" if result["proved"] else "no"}
    unfinished = words.pop("unfinished")
    print("\n".join(f"{name.replace('_', ' ') + ':':12} {value}" for name, value in words.items()))
    if unfinished:
        print(f"hint: more time would probably give a smaller peak (--budget-ms {10 * max(budget_ms, 10)})")


def _plan_table(options: argparse.Namespace) -> None:
    tables = read_table(options.source) or {"": []}
    stem = Path(options.source).stem
    solved = {arena: _solve(arena or stem, rows, options) for arena, rows in tables.items()}
    if options.out:
        write_rows(
            options.out,
            {a: [(*row, o) for row, o in zip(rows, solved[a][2], strict=True)] for a, rows in tables.items()},
        )
    picture = bare_picture(stem, [arena for _, arena, _ in solved.values()])
    _write_pictures(picture, options)
    results = [{"arena": arena, **result} for arena, (result, _, _) in solved.items()]
    if options.json:
        print_json(solved[""][0] if list(solved) == [""] else {"arenas": results})
        return
    for k, result in enumerate(results):
        if arena := result.pop("arena"):
            say(f"{'' if k == 0 else chr(10)}{line(arena)}")
        _print_result(result, options.budget_ms)
    if options.map:
        print(f"\n{text_map(picture, _columns())}", end="")


# --------------------------------------------------------------------------------------------------------------- graphs


def _devices(words: list[str] | None) -> list[str]:
    """``SIM,CPU`` or ``SIM:mem=1M,ops=mul_mat CPU``."""
    names = [name for word in words or ["CPU"] for name in ([word] if ":" in word else word.split(","))]
    if not all(names):
        raise InvalidArgumentError("--devices: an empty name")
    known = [backend.lower() for backend in backends()]
    for name in names:
        _, _, parameters = name.partition(":")
        second = next((p for p in parameters.split(",") if p.partition(":")[0].lower() in known), None)
        if second is not None:
            raise InvalidArgumentError(
                f"--devices: {second!r} in {name!r} is a device: separate devices with parameters by a space"
            )
        if name.endswith((".toml", ".json")):
            raise InvalidArgumentError(f"--devices: {name} is no device: a description of a cluster is for --cluster")
    return names


def _does_not_fit(prepared: Prepared) -> str | None:
    """The error of the devices if the plan does not fit them."""
    try:
        prepared.scheduler.allocate(prepared.graph)
    except AllocationError as error:
        return str(error)
    return None


def _expect_no_table_flags(options: argparse.Namespace) -> None:
    for flag in ("capacity", "budget_ms", "align", "threads", "reproducible"):
        if getattr(options, flag) is not None:
            options.parser.error(
                f"--{flag.replace('_', '-')} is for FILE.csv; a graph has the alignment and limits of its devices"
            )


def _print_memory(arenas: Sequence[ArenaPlan], held: Sequence[Held]) -> None:
    """Prints a column for each device: bytes for computing, for weights and caches, and the sum."""
    names, found = memory_columns(arenas)
    totals = found[-1][1]
    if held:
        found[-1] = ("= computing", totals)
        for part, sizes in (("weights", [h.weights for h in held]), ("caches", [h.caches for h in held])):
            found.append((f"+ {part}", [*sizes, sum(sizes)] if len(held) > 1 else sizes))
        totals = [sum(column) for column in zip(*(numbers for _, numbers in found[-3:]), strict=True)]
        found.append(("= total", totals))
    needs = [f"{size_text(n)} on {line(name)}" for n, name in zip(totals, names, strict=True) if name != "all"]
    say(f"it needs {', '.join(needs)}")
    rows = [("", names), *((part, [f"{n:,}" for n in numbers]) for part, numbers in found)]
    widths = [max(len(line(cells[k])) for _, cells in rows) for k in range(len(names))]
    print("\nmemory, in bytes")
    for head, cells in rows:
        say(f"    {head:13}  " + "  ".join(line(c).rjust(w) for c, w in zip(cells, widths, strict=True)))


def _plan_graph(options: argparse.Namespace) -> None:
    from .examples.models import prepare  # imports the operations

    _expect_no_table_flags(options)
    with (
        plain_warnings(options.parser.prog),
        prepare(
            options.source, _devices(options.devices), options.tokens, options.context, bool(options.reorder)
        ) as prepared,
    ):
        picture, plan, reordered, short = prepared.picture, prepared.plan, prepared.reordered, _does_not_fit(prepared)
        if options.out:
            write_table(picture.arenas, options.out)
        _write_pictures(picture, options)
    if not options.json:
        _print_memory(plan.arenas, prepared.held)
        if options.reorder:
            as_it_is = "no order of the nodes that needs less memory was found: the order is unchanged"
            print(f"\n{'in another order of the nodes' if reordered else as_it_is}")
        if short:
            print(f"\nit does not fit: {line(short)}")
        print(f"\n{text_map(picture, _columns())}", end="")
        return
    arenas = [
        {"arena": a.backend, "buffers": len(a.blocks), "blocks": len(storages(a.blocks)), "peak": a.peak,
         "lower_bound": a.lower_bound, "gap": a.gap, "proved": a.proved, "verdict": verdict(a),
         "no_reuse": a.no_reuse, "inputs": a.leafs, "kept_copies": a.replicas, "allocated": a.allocated,
         "scratch": a.scratch, "total": a.total}
        for a in plan.arenas
    ]  # fmt: skip
    for arena, held in zip(arenas, prepared.held, strict=bool(prepared.held)):
        arena.update(weights=held.weights, caches=held.caches)
    splits = [
        {"index": s.index, "backend": s.backend, "start": s.start, "end": s.end, "inputs": s.n_inputs}
        for s in picture.splits
    ]
    copies = [
        {
            "name": c.name,
            "from": c.src_backend,
            "to": c.dst_backend,
            "size": c.nbytes,
            "split": c.split,
            "reason": c.reason,
        }
        for c in picture.copies
    ]
    result = {
        "graph": picture.title, "nodes": picture.n_nodes, "steps": picture.n_steps,
        "arenas": arenas, "splits": splits, "copies": copies,
        "reordered": reordered, "does_not_fit": short,
    }  # fmt: skip
    print_json(result)


# -------------------------------------------------------------------------------------------------------------- command


def _columns() -> int:
    return os.get_terminal_size().columns if sys.stdout.isatty() else 100


def _write_pictures(picture: Picture, options: argparse.Namespace) -> None:
    if options.html:
        page(picture, options.html)
    if options.svg:
        drawing(picture, options.svg)
    if options.png:
        png(picture, options.png)


def _is_table(source: str) -> bool:
    """True for a CSV file of any name. A file with the magic number of GGUF is a model."""
    if source.lower().endswith((".csv", ".gguf")) or not os.path.isfile(source):
        return source.lower().endswith(".csv")
    return read_head(source, 4) != b"GGUF"


def run(options: argparse.Namespace) -> int:
    if options.cluster is None:
        for flag in ("sequences", "simulate"):
            if getattr(options, flag) is not None:
                options.parser.error(f"--{flag} needs --cluster FILE, a description of a cluster")
    if _is_table(options.source):
        given_to = ("devices", "tokens", "context", "reorder", "cluster")
        for flag, given in {"import": "module", **{f: f for f in given_to}}.items():
            if getattr(options, given) is not None:
                options.parser.error(f"--{flag} is for graphs; {line(options.source)} is a table of buffers")
        options.align = 1 if options.align is None else options.align
        options.budget_ms = 5000 if options.budget_ms is None else options.budget_ms
        options.threads = 1 if options.threads is None else options.threads
        _plan_table(options)
    elif options.cluster is not None:
        _expect_no_table_flags(options)
        from .plan_cluster import plan_cluster

        plan_cluster(options, _columns())
    else:
        import_named(options)
        _plan_graph(options)
    return 0


EXAMPLE = "MODEL.gguf --devices SIM:mem=8G CPU"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = DESCRIPTION
    parser.add_argument(
        "source", metavar="FILE.csv|EXAMPLE|MODEL.gguf", help="what to plan; examples: llama, moe, whisper, unet, embed"
    )
    parser.add_argument("--out", metavar="FILE.csv", help="write the blocks with their offsets")
    parser.add_argument("--html", metavar="FILE.html", help="write a page with the pictures")
    parser.add_argument("--svg", metavar="FILE.svg", help="write the pictures as one SVG")
    parser.add_argument("--png", metavar="FILE.png", help="write the pictures as PNG (extra [png])")
    parser.add_argument("--map", action="store_true", help="print the map for FILE.csv too")
    parser.add_argument("--json", action="store_true", help="print JSON")
    bare = parser.add_argument_group("for FILE.csv")
    bare.add_argument(
        "--align", type=int, metavar="N", help="alignment of offsets and sizes, a power of two (default: 1)"
    )
    bare.add_argument(
        "--capacity",
        type=int,
        metavar="N",
        help="stop at the first plan that needs at most N bytes; fail if there is none",
    )
    bare.add_argument(
        "--budget-ms", type=int, metavar="N", help="milliseconds of search after the heuristics (default: 5000)"
    )
    bare.add_argument("--threads", type=int, metavar="N", help="threads that try orders in parallel (default: 1)")
    bare.add_argument(
        "--reproducible",
        action="store_const",
        const=True,
        help="give the same plan on every machine: a number of steps ends the search, not the"
        " clock, so it may take longer than --budget-ms",
    )
    _add_graph_arguments(parser)


def _add_graph_arguments(parser: argparse.ArgumentParser) -> None:
    graph = parser.add_argument_group("for graphs")
    graph.add_argument(
        "--devices",
        nargs="+",
        metavar="NAME",
        help="devices in order of priority: SIM,CPU or SIM:mem=64M CPU (default: CPU)",
    )
    add_import(graph)
    graph.add_argument(
        "--tokens", type=int, metavar="N", help="tokens of one pass through a model (default: 512, at most its context)"
    )
    graph.add_argument(
        "--context",
        type=int,
        metavar="N",
        help="positions that the cache holds (default: those of the model, at most 4096)",
    )
    graph.add_argument(
        "--reorder", action="store_const", const=True, help="reorder the nodes if that needs less memory"
    )
    cluster = parser.add_argument_group("for MODEL.gguf on a cluster that need not exist")
    cluster.add_argument(
        "--cluster",
        metavar="FILE",
        help="a description of hosts, devices and links, TOML or JSON (docs/howto/plan-cluster.md)",
    )
    cluster.add_argument(
        "--sequences", type=int, metavar="N", help="sequences generated at once, each with its own cache (default: 1)"
    )
    cluster.add_argument(
        "--simulate",
        action="store_const",
        const=True,
        help="also simulate the steps, and print the result beside the prediction",
    )
