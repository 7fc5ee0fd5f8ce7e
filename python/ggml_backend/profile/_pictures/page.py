"""The page: ``page.html`` with charts for any width, tables, and data about blocks for the script.

The script draws nothing. It zooms by widening plots, shows titles, and hides rows of the table of the moment. Names are
escaped as HTML, or as JSON strings without characters that are special in HTML.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cache
from importlib import resources
from os import PathLike
from typing import Any

from ..._base.files import write_text
from ..._base.text import copies_text, markup, script_json, size_text
from .about import facts
from .data import Picture, span, verdict
from .draw import AXIS, Chart, Sheet, Tick
from .labels import LADDER
from .lanes import Lanes, lanes_chart, lanes_of
from .lists import alive_table, copies_table, memory_table, moment_words, splits_table
from .maps import MAP, ArenaDrawn, hatch, legend, live_chart, map_chart, step_ticks, swatch
from .palette import FONT, style, variables

__all__ = ["lanes_page", "page"]

_LIVE = 52


@cache
def _template() -> str:
    return resources.files(__package__).joinpath("page.html").read_text("utf-8")


def _ladder() -> str:
    """CSS rules for the classes of :meth:`.Sheet.when`."""
    steps = list(enumerate(LADDER))[1:]
    return (
        ",".join(f".f{k}" for k, _ in steps) + "{display:none}"
        + "".join(f"@container plot (min-width:{w}px){{.f{k}{{display:inline}}}}" for k, w in steps)
        + "".join(f"@container plot (min-width:{w}px){{.u{k}{{display:none}}}}" for k, w in steps)
    )  # fmt: skip


def _hatch(sheet: Sheet) -> str:
    return f'<svg width="0" height="0" aria-hidden="true" style="position:absolute">{hatch(sheet)}</svg>'


def _chart(chart: Chart, name: str, label: str, attributes: str = "") -> str:
    focus = f' tabindex="0" role="application" aria-roledescription="{name}"' if attributes else ' role="img"'
    return (
        f'<div class="chart"><svg class="axis" width="{AXIS}" height="{chart.height}" aria-hidden="true">{chart.axis}'
        f'</svg><div class="scroll"><div class="plot"><svg class="{name}"{focus} aria-label="{markup(label)}" '
        f'width="100%" height="{chart.height}"{attributes}>{chart.plot}</svg></div></div></div>'
    )


def _legend(entries: Sequence[tuple[str, str, str]]) -> str:
    items = []
    for sample, words, colour in entries:
        only = f' data-only="{colour}"' if colour else ""
        items.append(f'<li{only}><svg width="16" height="12" aria-hidden="true">{sample}</svg>{markup(words)}</li>')
    return f'<ul class="legend">{"".join(items)}</ul>'


def _figures(pairs: Sequence[tuple[str, str, str]]) -> str:
    parts = [f'<div title="{markup(about)}"><dt>{markup(a)}</dt><dd>{markup(b)}</dd></div>' for a, b, about in pairs]
    return f'<dl class="figures">{"".join(parts)}</dl>'


def _lanes_card(picture: Picture, sheet: Sheet) -> str:
    lanes = lanes_of(picture)
    if not lanes.bars:
        return ""
    chart = lanes_chart(sheet, lanes, step_ticks(int(sheet.t0), int(sheet.t1)), "step")
    return (
        '<section class="card" aria-label="Splits"><h2>Where it runs</h2><p class="soft">A lane for each device, the '
        "graph from left to right. A bar is a split: consecutive nodes on one device. An arrow is a copy."
        f"</p>{_chart(chart, 'lanes', 'Splits and copies. Arrow keys move between them.', ' data-keys')}"
        f"<details><summary>Splits as a table</summary>{splits_table(picture)}</details></section>"
    )


def _memory_card(picture: Picture) -> str:
    if not picture.n_nodes or not picture.arenas:
        return ""
    return (
        '<section class="card" aria-label="Memory by device"><h2>Memory by device</h2><p class="soft">The arena holds '
        "results, planned below; leafs are inputs that the scheduler places; kept copies are weights of other devices; "
        f"scratch is temporary memory of operators.</p>{memory_table(picture)}</section>"
    )


def _arena_card(picture: Picture, sheet: Sheet, d: ArenaDrawn, number: int) -> str:
    arena, blocks = d.arena, d.arena.blocks
    whole = sum(b.nbytes for b in blocks)
    saved = f"{100 * (1 - arena.peak / whole):.1f} %" if whole else "0 %"
    name = "Memory" if arena.backend == picture.title else f"Memory of {arena.backend}"
    head = f'<div class="head"><h2>{markup(name)}</h2><p class="soft">{markup(verdict(arena))}</p></div>'
    figures = _figures([
        ("Arena", size_text(arena.peak), f"{arena.peak:,} bytes: the peak of this plan"),
        ("Lower bound", size_text(arena.lower_bound), f"{arena.lower_bound:,} bytes: no plan needs less"),
        ("Without reuse", size_text(whole), f"{whole:,} bytes: each tensor in memory of its own"),
        ("Saved", saved, "by reuse"),
        ("Tensors", f"{len(blocks):,}", "that share the arena over time"),
        ("Blocks", f"{len(d.pieces):,}", "of memory; tensors computed in place share one"),
    ])  # fmt: skip
    begin = f'<section class="card" aria-label="{markup(name)}" data-arena="{number}">{head}'
    if not any(s.upper > s.lower for s in d.pieces):
        return f'{begin}<p class="soft">No results are in this memory.</p></section>'
    label = f"{name}: {len(d.pieces)} blocks over {picture.n_steps} steps. Arrow keys move between them."
    t0, t1 = int(sheet.t0), int(sheet.t1)
    return (
        f"{begin}{figures}{_chart(map_chart(sheet, d, MAP), 'map', label, ' data-keys')}"
        "<h3>Live bytes, and gaps below the highest live block</h3>"
        f"{_chart(live_chart(sheet, d, _LIVE), 'live', f'Live bytes, at most {size_text(arena.lower_bound)}')}"
        f"{_legend(legend(sheet, d))}"
        f'<div class="slide script"><label for="moment{number}">Step</label><input type="range" id="moment{number}" '
        f'min="{t0}" max="{t1 - 1}" value="{d.moment}"><output for="moment{number}"></output>'
        '<button type="button" class="back">Most alive</button></div>'
        f'<h3 class="when">Alive at step {d.moment}, the step with the most live bytes</h3>{alive_table(d)}</section>'
    )


def _content(drawn: Sequence[ArenaDrawn], sheet: Sheet) -> dict[str, Any]:
    """Data for the script: columns of blocks and of moments."""
    return {
        "t0": sheet.t0, "t1": sheet.t1,
        "arenas": [
            {"height": d.height, "moment": d.moment, "lower": [s.lower for s in d.pieces],
             "upper": [s.upper for s in d.pieces], "bottom": [s.bottom for s in d.pieces],
             "size": [s.nbytes for s in d.pieces], "name": [s.names[-1] for s in d.pieces],
             "at": [m.time for m in d.moments], "live": [m.live for m in d.moments],
             "top": [m.top for m in d.moments], "words": [moment_words(m)[1:] for m in d.moments]}
            for d in drawn
        ],
    }  # fmt: skip


def _filled(title: str, facts_line: str, body: str, content: dict[str, Any], colour: str, name: str = "plan") -> str:
    look = f"{variables()}{style('body')}{_ladder()}"
    parts = {"STYLE": look, "FONT": FONT, "TITLE": markup(title), "FACTS": markup(facts_line), "BODY": body,
             "COLOUR": colour, "KIND": name, "DATA": script_json(content)}  # fmt: skip
    return re.sub("@([A-Z]+)@", lambda m: parts[m[1]], _template())


def page(picture: Picture, path: str | PathLike[str] | None = None) -> str:
    """Returns a self-contained HTML page. Also writes it if ``path`` is given."""
    t0, t1 = span(picture)
    bare = not any(b.op for a in picture.arenas for b in a.blocks)
    sheet = Sheet(t0, t1)
    drawn = [ArenaDrawn.of(picture, a) for a in picture.arenas]
    body = [_hatch(sheet), _lanes_card(picture, sheet), _memory_card(picture)]
    body += [_arena_card(picture, sheet, d, k) for k, d in enumerate(drawn)]
    if picture.copies:
        copied = copies_text(c.nbytes for c in picture.copies)
        body.append(
            f'<section class="card" aria-label="Copies"><div class="head"><h2>Copies between devices</h2>'
            f'<p class="soft">{copied}</p></div>{copies_table(picture)}</section>'
        )
    result = _filled(picture.title, facts(picture), "".join(body), _content(drawn, sheet), "life" if bare else "kind")
    if path is not None:
        write_text(path, result)
    return result


def lanes_page(title: str, facts_line: str, lanes: Lanes, ticks: Sequence[Tick], unit: str, sheet: Sheet) -> str:
    """A page with lanes only."""
    chart = _chart(lanes_chart(sheet, lanes, ticks, unit), "lanes", f"{title}. Arrow keys move.", " data-keys")
    entries = _legend([(swatch(sheet, c), words, "") for c, words in lanes.legend])
    body = f'{_hatch(sheet)}<section class="card" aria-label="{markup(title)}">{chart}{entries}</section>'
    return _filled(title, facts_line, body, {"t0": sheet.t0, "t1": sheet.t1, "arenas": []}, "kind", "lanes-only")
