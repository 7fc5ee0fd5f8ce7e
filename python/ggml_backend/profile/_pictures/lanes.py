"""Lanes: the work of each device over time, and the copies between devices."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..._base.text import count
from .about import about_copy, about_split
from .data import Picture, copy_steps
from .draw import AXIS, FOOT, TOP, Chart, Sheet, Tick, axis_text, labels, time_axis, title
from .labels import Label, fitting, text_width

__all__ = ["Arrow", "Bar", "Lanes", "lanes_chart", "lanes_of"]

LANE, _BAR = 34, 22  # pixels: height of a lane, and of its bars
_MOST_ARROWS = 3000


@dataclass(frozen=True)
class Bar:
    """A bar from ``start`` to ``end`` in a lane."""

    lane: int
    start: float
    end: float
    texts: Sequence[str]  #: the longest first
    about: str
    colour: str = "bar"


@dataclass(frozen=True)
class Arrow:
    """An arrow from one lane to another, at one time."""

    at: float
    source: int
    target: int
    about: str


@dataclass(frozen=True)
class Lanes:
    names: Sequence[str]
    bars: Sequence[Bar]
    arrows: Sequence[Arrow]
    legend: Sequence[tuple[str, str]] = ()  #: (colour, words)


def lanes_of(picture: Picture) -> Lanes:
    """Lanes of splits and copies. "host" has a lane if there are copies from it. A single split has
    no lanes."""
    if len(picture.splits) <= 1 and not picture.copies:
        return Lanes((), (), ())
    names = picture.backends
    if "host" in names:
        names = ["host", *(n for n in names if n != "host")]
    bars, first = [], 0
    for s in picture.splits:
        texts = [f"split {s.index}: {count(len(s.nodes), 'node')}", f"split {s.index}", str(s.index)]
        if s.end > s.start:
            bars.append(Bar(names.index(s.backend), s.start, s.end, texts, about_split(picture, s, first)))
        first += len(s.nodes)
    arrows = [
        Arrow(at + 0.5, names.index(c.src_backend), names.index(c.dst_backend), about_copy(c, at))
        for c, at in zip(picture.copies, copy_steps(picture), strict=True)
    ]
    return Lanes(names, bars, arrows)


def _arrow(sheet: Sheet, arrow: Arrow, i: int, points: str | None) -> str:
    """A line, with a tip if there is space, and a wider invisible line for the pointer."""
    a, b = (TOP + LANE * (lane + 0.5) for lane in (arrow.source, arrow.target))
    down = 1 if b >= a else -1
    a, b = a + down * _BAR / 2, b - down * _BAR / 2
    if arrow.source == arrow.target:
        a, b = b, a
    at = sheet.x(arrow.at)
    point = "" if points is None else (
        f'<svg x="{at}" y="{b:.1f}" overflow="visible" class="point{points}"><path {sheet.paint("tip")} '
        f'd="M0 0L-3 {-6 * down}H3Z"/></svg>'
    )  # fmt: skip
    return (
        f'<g data-arrow="{i}"><line class="wide" stroke="transparent" stroke-width="9" x1="{at}" x2="{at}" '
        f'y1="{a:.1f}" y2="{b:.1f}"/>'
        f'<line {sheet.paint("copy")} x1="{at}" x2="{at}" y1="{a:.1f}" y2="{b - 4 * down:.1f}"/>'
        f"{point}{title(arrow.about)}</g>"
    )


def lanes_chart(sheet: Sheet, lanes: Lanes, ticks: Sequence[Tick], unit: str) -> Chart:
    pixels = LANE * len(lanes.names)
    axis, plot, texts = [], [], []
    for k, name in enumerate(lanes.names):
        y = TOP + LANE * (k + 0.5)
        shown = name
        while text_width(shown) > AXIS - 10 and len(shown) > 3:
            shown = shown[:-2] + "…"
        axis.append(f"<g>{axis_text(y + 4, shown, sheet, 'ink')}{title(name)}</g>")
        plot.append(f'<rect {sheet.paint("free")} width="{sheet.full()}" y="{y - _BAR / 2:.1f}" height="{_BAR}"/>')
    for i, bar in enumerate(lanes.bars):
        y = TOP + LANE * (bar.lane + 0.5)
        plot.append(
            f'<rect {sheet.paint(bar.colour)} data-bar="{i}" {sheet.between(bar.start, bar.end)} '
            f'y="{y - _BAR / 2:.1f}" height="{_BAR}">{title(bar.about)}</rect>'
        )
        if (edge := sheet.when(4 * (sheet.t1 - sheet.t0) / max(bar.end - bar.start, 1e-9))) is not None:
            plot.append(
                f'<rect {sheet.paint("edge", shown=edge)} fill="none" pointer-events="none" '
                f'{sheet.between(bar.start, bar.end)} y="{y - _BAR / 2:.1f}" height="{_BAR}"/>'
            )
        found: list[Label] = fitting(bar.texts, sheet.share(bar.end) - sheet.share(bar.start), _BAR)
        texts += [(bar.start, bar.end, y, label) for label in found if not label.standing]
    drawn = lanes.arrows[:_MOST_ARROWS]
    points = sheet.when(7 * len(drawn))
    arrows = "".join(_arrow(sheet, a, i, points) for i, a in enumerate(drawn))
    axis.append(axis_text(TOP + pixels + 18, unit, sheet))
    plot += [labels(sheet, texts), f'<g class="arrows">{arrows}</g>', time_axis(sheet, ticks, TOP + pixels)]
    return Chart("".join(axis), "".join(plot), TOP + pixels + FOOT)
