"""The map of an arena and the curve of its live bytes."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

from ..._base.text import size_text
from .about import about_stage
from .data import (
    ArenaLike,
    Moment,
    Picture,
    Storage,
    bases,
    byte_ticks,
    curve,
    next_tick,
    peak_moment,
    storages,
    tick_text,
    time_tick,
)
from .draw import AXIS, FOOT, TOP, Chart, Sheet, Tick, axis_text, labels, time_axis, title
from .labels import Label, alternatives, fitting, shown_name
from .palette import COLOURS, KINDS, SHADES, kind

__all__ = ["MAP", "ArenaDrawn", "hatch", "legend", "live_chart", "map_chart", "step_ticks", "swatch"]

MAP = 330  # pixels: height of a map


@dataclass(frozen=True)
class ArenaDrawn:
    """An arena with data that its pictures share."""

    picture: Picture
    arena: ArenaLike
    pieces: list[Storage]
    moments: list[Moment]
    bases: list[int]

    @classmethod
    def of(cls, picture: Picture, arena: ArenaLike) -> ArenaDrawn:
        pieces = storages(arena.blocks)
        return cls(picture, arena, pieces, curve(pieces), bases(arena.blocks))

    @property
    def height(self) -> int:
        """Bytes from the bottom to the top of the map."""
        return max(self.bases[-1], self.arena.peak, 1)

    @cached_property
    def moment(self) -> int:
        return peak_moment(self.moments)


def step_ticks(t0: int, t1: int) -> list[Tick]:
    """About a hundred ticks for any number of steps: multiples of a fine unit and of the next
    coarser unit."""
    fine = max(1, (t1 - t0) // 400)
    shown = 1
    while shown < fine:
        shown = next_tick(shown)
    steps = {t for unit in (fine, shown) for t in range(-(-t0 // unit) * unit, t1 + 1, unit) if unit == fine or t > 0}
    return [(t, f"{t:,}", time_tick(t)) for t in sorted(steps)]


def _shade(value: float, most: float) -> int:
    return min(SHADES - 1, int(SHADES * math.log1p(value) / (math.log1p(most) + 1e-9)))


def _byte_axis(sheet: Sheet, height: int, pixels: float, most: int, peak: int = 0) -> tuple[str, str]:
    """The axis with ticks and labels, including the peak; and faint lines for the plot."""
    ticks, lines = [], []
    paint, top = sheet.paint("tick"), TOP + pixels * (1 - peak / height)
    for n in byte_ticks(height, most):
        y = TOP + pixels * (1 - n / height)
        ticks.append(f'<line {paint} x1="{AXIS - 5}" x2="{AXIS}" y1="{y:.1f}" y2="{y:.1f}"/>')
        if abs(y - top) > 12 or not peak:
            ticks.append(axis_text(y + 4, tick_text(n), sheet))
        lines.append(f'<line {paint} x1="0" x2="{sheet.full()}" y1="{y:.1f}" y2="{y:.1f}"/>')
    if peak:
        ticks.append(f'<line {sheet.paint("rule")} x1="{AXIS - 5}" x2="{AXIS}" y1="{top:.1f}" y2="{top:.1f}"/>')
        ticks.append(axis_text(top + 4, size_text(peak), sheet, "ink"))
    return "".join(ticks), "".join(lines)


def _gaps(sheet: Sheet, d: ArenaDrawn, pixels: float) -> str:
    """Hatches everything below the top. Blocks are drawn over it, so that the gaps stay hatched."""
    spans: list[tuple[int, int, int]] = []
    for m, after in zip(d.moments, [*(m.time for m in d.moments[1:]), sheet.t1], strict=True):
        if spans and spans[-1][2] == m.top and spans[-1][1] == m.time:
            spans[-1] = spans[-1][0], int(after), m.top
        else:
            spans.append((m.time, int(after), m.top))
    return "".join(
        f'<rect {sheet.between(a, b)} y="{TOP + pixels * (1 - top / d.height):.1f}" '
        f'height="{pixels * top / d.height:.1f}" fill="url(#{sheet.ident}-hatch)"/>'
        for a, b, top in spans if top and b > a
    )  # fmt: skip


def hatch(sheet: Sheet) -> str:
    return (
        f'<defs><pattern id="{sheet.ident}-hatch" width="6" height="6" patternUnits="userSpaceOnUse" '
        f'patternTransform="rotate(45)"><line {sheet.paint("hatch")} x1="0" x2="0" y1="0" y2="6" stroke-width="1.6"/>'
        "</pattern></defs>"
    )


def _divider(sheet: Sheet, s: Storage, k: int, y: float, high: float) -> str:
    """The left edge of stage k, shown if it and the stage before it are 6 pixels wide."""
    shorter = min(t.end - t.start for t in s.stages[k - 1 : k + 1])
    shown = sheet.when(6 * (sheet.t1 - sheet.t0) / max(shorter, 0.01))
    at = sheet.x(s.stages[k].start)
    return "" if shown is None else (
        f'<line {sheet.paint("label-line", shown=shown)} x1="{at}" x2="{at}" y1="{y:.1f}" y2="{y + high:.1f}" '
        'stroke-dasharray="2 2"/>'
    )  # fmt: skip


def _storage(sheet: Sheet, d: ArenaDrawn, i: int, pixels: float, largest: int) -> str:
    s = d.pieces[i]
    scale = pixels / d.height
    y, high = TOP + pixels - (s.bottom + s.nbytes) * scale, max(s.nbytes * scale, 0.6)
    life, size = _shade(s.upper - s.lower, sheet.t1 - sheet.t0), _shade(s.nbytes, largest)
    parts = []
    for k, stage in enumerate(s.stages):
        if stage.end <= stage.start:
            continue
        fill = sheet.paint(f"k{kind(stage.block.op)}", f"l{life}", f"z{size}")
        own = max(stage.block.nbytes * scale, 0.6)
        about = title(about_stage(d.picture, s, k))
        if own < high - 1:  # a smaller tensor: the rest of the storage is pale
            parts.append(
                f'<rect {fill} {sheet.between(stage.start, stage.end)} y="{y:.1f}" height="{high:.1f}" opacity=".4"/>'
            )
        parts.append(
            f'<rect {fill} {sheet.between(stage.start, stage.end)} y="{y + high - own:.1f}" height="{own:.1f}">'
            f"{about}</rect>"
        )
        if k and stage.start > s.lower:
            parts.append(_divider(sheet, s, k, y, high))
    # an edge would hide a block of few pixels
    shown = sheet.when(4 * (sheet.t1 - sheet.t0) / (s.upper - s.lower)) if high >= 3 else None
    edge = 'class="outline"' if shown is None else sheet.paint("edge", shown=shown)
    parts.append(f'<rect {edge} fill="none" {sheet.between(s.lower, s.upper)} y="{y:.1f}" height="{high:.1f}"/>')
    return f'<g data-i="{i}">{"".join(parts)}</g>'


def _storage_labels(sheet: Sheet, d: ArenaDrawn, s: Storage, pixels: float) -> list[tuple[float, float, float, Label]]:
    """Labels of the stages. The longest stage also shows the size of the storage."""
    scale, span = pixels / d.height, sheet.t1 - sheet.t0
    high, middle = s.nbytes * scale, TOP + pixels - (s.bottom + s.nbytes / 2) * scale
    longest = max(s.stages, key=lambda t: t.end - t.start)
    found = []
    for t in s.stages:
        texts = alternatives(shown_name(t.block.name, t.block.op), size_text(s.nbytes) if t is longest else "")
        for label in fitting(texts, (t.end - t.start) / span, high):
            found.append((float(t.start), float(t.end), middle, label))
    return found


def _now(sheet: Sheet, d: ArenaDrawn, pixels: int) -> str:
    """The line of the current moment: first the step with the most live bytes. The page moves
    it."""
    at = sheet.x(d.moment + 0.5)
    return (
        f'<line {sheet.paint("now")} data-now="" x1="{at}" x2="{at}" y1="3" y2="{TOP + pixels}" stroke-width="1.5" '
        'stroke-dasharray="3 2"/>'
    )


def map_chart(sheet: Sheet, d: ArenaDrawn, pixels: int) -> Chart:
    axis, lines = _byte_axis(sheet, d.height, pixels, 6, d.arena.peak)
    largest = max((s.nbytes for s in d.pieces), default=1)
    order = range(len(d.pieces))
    blocks = "".join(_storage(sheet, d, i, pixels, largest) for i in order if d.pieces[i].upper > d.pieces[i].lower)
    # blocks lower than half a line have no label
    named = [s for s in d.pieces if s.upper > s.lower and s.nbytes * pixels / d.height >= 13]
    texts = labels(sheet, (found for s in named for found in _storage_labels(sheet, d, s, pixels)))

    def rule(n: int, name: str, dash: str = "") -> str:
        y = TOP + pixels * (1 - n / d.height)
        return (
            f'<line {sheet.paint("rule")} data-rule="{name}" x1="0" x2="{sheet.full()}" y1="{y:.1f}" y2="{y:.1f}"'
            f"{dash}/>"
        )

    rules = [rule(d.arena.peak, "arena")]
    if d.arena.lower_bound < d.arena.peak:
        rules.append(rule(d.arena.lower_bound, "bound", ' stroke-dasharray="6 4"'))
    rules += [rule(b, "chunk", ' stroke-dasharray="1 3"') for b in d.bases[1:-1]]
    now = _now(sheet, d, pixels)
    ground = (
        f'<rect {sheet.paint("free")} data-ground="" y="{TOP}" width="{sheet.full()}" height="{pixels}">'
        f"{title(_about_ground(d))}</rect>"
    )
    ticks = time_axis(sheet, step_ticks(int(sheet.t0), int(sheet.t1)), TOP + pixels)
    plot = (
        f'{ground}{lines}<g pointer-events="none">{_gaps(sheet, d, pixels)}</g>'
        f'<g class="blocks">{blocks}</g>{texts}<g pointer-events="none">{"".join(rules)}{now}</g>{ticks}'
    )
    return Chart(axis + axis_text(TOP + pixels + 18, "step", sheet), plot, TOP + pixels + FOOT)


def _about_ground(d: ArenaDrawn) -> str:
    widest = max((m.top - m.live for m in d.moments), default=0)
    return (
        f"unused memory of {d.arena.backend}\nhatched: a gap, below the highest block alive at that step; "
        f"at most {size_text(widest)}\nplain: free memory above everything alive; other steps need it"
    )


def live_chart(sheet: Sheet, d: ArenaDrawn, pixels: int) -> Chart:
    """The curve of live bytes, and the gaps below the top."""
    axis, lines = _byte_axis(sheet, d.height, pixels, 2)
    d_path, level = [f"M{sheet.t0:g} {d.height}"], d.height
    for m in d.moments:
        d_path.append(f"H{m.time}")
        level = d.height - m.live
        d_path.append(f"V{level}")
    path = "".join(d_path) + f"H{sheet.t1:g}V{d.height}Z"
    plot = (
        f'<rect {sheet.paint("free")} y="{TOP}" width="{sheet.full()}" height="{pixels}"/>{lines}'
        f"{_gaps(sheet, d, pixels)}"
        f'<svg y="{TOP}" width="{sheet.full()}" height="{pixels}" preserveAspectRatio="none" '
        f'viewBox="{sheet.t0:g} 0 {sheet.t1 - sheet.t0:g} {d.height}"><path {sheet.paint("live")} d="{path}"/></svg>'
        f"{_now(sheet, d, pixels)}"
    )
    return Chart(axis, plot, TOP + pixels + 8)


def swatch(sheet: Sheet, what: str) -> str:
    """16 by 12 pixels."""
    if what == "gap":
        ground = f'<rect {sheet.paint("free")} width="16" height="12"/>'
        return f'{ground}<rect {sheet.paint("tick")} width="16" height="12" fill="url(#{sheet.ident}-hatch)"/>'
    if what in ("arena", "bound", "chunk", "now", "copy"):
        dash = {"bound": "6 4", "chunk": "1 3", "now": "3 2"}.get(what)
        line = "now" if what == "now" else "copy" if what == "copy" else "rule"
        dashes = f' stroke-dasharray="{dash}"' if dash else ""
        upright = what in ("now", "copy")
        return f'<path {sheet.paint(line)} fill="none" d="{"M8 0V12" if upright else "M0 6H16"}"{dashes}/>'
    edge = f' stroke="{COLOURS["hatch"][sheet.theme == "dark"]}" stroke-width=".5"' if what == "free" else ""
    return f'<rect {sheet.paint(what)} width="16" height="12" rx="2"{edge}/>'


def legend(sheet: Sheet, d: ArenaDrawn) -> list[tuple[str, str, str]]:
    """Entries (swatch, text, the meaning of colours that it belongs to, or "")."""
    used = sorted({kind(t.block.op) for s in d.pieces for t in s.stages})
    total = int(sheet.t1 - sheet.t0)
    largest = max((s.nbytes for s in d.pieces), default=1)
    scale = {"kind": [(f"k{k}", KINDS[k]) for k in used]}
    for name, most, unit in (("life", total, lambda n: f"{n} steps"), ("size", largest, size_text)):
        ends = [math.ceil(math.expm1(math.log1p(most) * (k + 1) / SHADES)) for k in range(SHADES)]
        words = [f"up to {unit(n)}" for n in ends[:-1]] + [f"up to {unit(most)}"]
        scale[name] = [(f"{name[0] if name == 'life' else 'z'}{k}", w) for k, w in enumerate(words)]
    shown = scale if sheet.width is None else {sheet.colour: scale[sheet.colour]}
    found = [(swatch(sheet, c), words, colour) for colour, entries in shown.items() for c, words in entries]
    same = d.arena.lower_bound >= d.arena.peak
    lines = [("arena", f"arena {size_text(d.arena.peak)}" + (" = lower bound" if same else ""))]
    if not same:
        lines.append(("bound", f"lower bound {size_text(d.arena.lower_bound)}"))
    if len(d.bases) > 2:
        lines.append(("chunk", "next chunk"))
    lines += [("now", f"most alive: step {d.moment}"), ("live", "live bytes"),
              ("gap", "gap: unused, below something alive"), ("free", "free: above everything alive")]  # fmt: skip
    return found + [(swatch(sheet, c), words, "") for c, words in lines]
