"""Writes positions, colours and texts as SVG: for one width, or for any width.

A chart has two parts, an axis of ``AXIS`` pixels at its left and the plot. The page puts the plot
into a box that scrolls and that a reader can widen, so positions in it are shares of its width. A
file has both parts in one picture.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from ..._base.text import markup
from .labels import HIGH, LADDER, PAD, Label, level
from .palette import attribute

__all__ = [
    "AXIS", "FOOT", "SIDE", "TOP", "Chart", "Sheet", "Tick", "axis_text", "labels", "plot_width", "time_axis", "title",
]  # fmt: skip

AXIS = 64  # pixels: width of an axis
TOP = 8  # pixels above a chart: half a line
FOOT = 24  # pixels below it: the time axis
SIDE = 12  # pixels beside charts of a file
_MOST_LABELS, _MOST_TICKS = 1500, 800


Tick = tuple[float, str, float]  # time, text, and how coarse: the distance to ticks that are as coarse


def plot_width(width: int) -> int:
    """The width of the plot in a file of this width."""
    return width - 2 * SIDE - AXIS - 8


class Chart(NamedTuple):
    """Two fragments of SVG, of the same height in pixels."""

    axis: str
    plot: str
    height: int


@dataclass(frozen=True)
class Sheet:
    """Writes positions and colours."""

    t0: float
    t1: float
    width: float | None = None  #: pixels of the plot; None: any width
    theme: str = "auto"
    colour: str = "kind"  #: the meaning of colours: "kind", "life" or "size". For any width all three are written
    ident: str = "p"  #: prefix of the ids of patterns

    def share(self, t: float) -> float:
        return (t - self.t0) / (self.t1 - self.t0)

    def x(self, t: float) -> str:
        return f"{100 * self.share(t):.5g}%" if self.width is None else f"{self.width * self.share(t):.1f}"

    def between(self, a: float, b: float) -> str:
        """Attributes of a rectangle: its left edge and its width."""
        share = self.share(b) - self.share(a)
        wide = f"{100 * share:.5g}%" if self.width is None else f"{max(self.width * share, 0.5):.1f}"
        return f'x="{self.x(a)}" width="{wide}"'

    def full(self) -> str:
        return "100%" if self.width is None else f"{self.width:.1f}"

    def paint(self, *names: str, shown: str = "") -> str:
        """The attribute ``class``. For one width also the colours, for viewers without styles.
        ``shown``: classes of :meth:`when`."""
        if self.width is None:
            return f'class="{" ".join(names)}{shown}"'
        other = {"k": "kind", "l": "life", "z": "size"}
        kept = [n for n in names if not n[1:].isdigit() or other.get(n[0], self.colour) == self.colour]
        return f'class="{" ".join(kept)}"' + "".join(attribute(n, self.theme) for n in kept)

    def when(self, above: float, below: float = float("inf")) -> str | None:
        """Classes of an element that is shown while the plot is at least ``above`` and less than
        ``below`` wide. None: it is never shown."""
        if self.width is not None:
            return "" if above <= self.width < below else None
        a, b = level(above), level(below)
        if a >= min(b, len(LADDER)):
            return None
        return (f" f{a}" if a else "") + (f" u{b}" if b < len(LADDER) else "")


def title(text: str) -> str:
    """The title of an element, which viewers show under the pointer."""
    return f"<title>{chr(10).join(markup(line) for line in text.split(chr(10)))}</title>"


def axis_text(y: float, words: str, sheet: Sheet, name: str = "soft") -> str:
    return f'<text {sheet.paint(name)} x="{AXIS - 8}" y="{y:.1f}" text-anchor="end">{markup(words)}</text>'


def labels(sheet: Sheet, found: Iterable[tuple[float, float, float, Label]]) -> str:
    """Labels of blocks: (begin, end, middle in pixels from above, label). Writes a limited number,
    those for the smallest widths first."""
    parts = []
    for begin, end, y, label in sorted(found, key=lambda f: f[3].above)[:_MOST_LABELS]:
        shown = sheet.when(label.above, label.below)
        if shown is None:
            continue
        words = markup(label.text)
        if label.standing:  # rotated around a point that is a share of the width
            parts.append(
                f'<svg x="{sheet.x((begin + end) / 2)}" y="{y:.1f}" overflow="visible" class="turned{shown}">'
                f'<text {sheet.paint("label")} text-anchor="middle" transform="rotate(-90)" y="4">{words}</text></svg>'
            )
        else:
            parts.append(
                f'<text {sheet.paint("label", shown=shown)} x="{sheet.x(begin)}" dx="{PAD}" y="{y + 4:.1f}">'
                f"{words}</text>"
            )
    return f'<g class="labels" pointer-events="none">{"".join(parts)}</g>'


def time_axis(sheet: Sheet, ticks: Iterable[Tick], y: float) -> str:
    """The time axis. Ticks are at least 44 pixels apart."""
    parts = []
    span = sheet.t1 - sheet.t0
    for t, words, coarse in sorted(ticks, key=lambda tick: -tick[2])[:_MOST_TICKS]:
        shown = sheet.when(44 * span / coarse)
        if shown is None or not sheet.t0 <= t <= sheet.t1:
            continue
        at, share = sheet.x(t), sheet.share(t)
        anchor = "start" if share < 0.01 else "end" if share > 0.97 else "middle"
        parts.append(
            f'<g class="when{shown}"><line {sheet.paint("tick")} x1="{at}" x2="{at}" y1="{y:.1f}" y2="{y + 5:.1f}"/>'
            f'<text {sheet.paint("soft")} x="{at}" y="{y + 5 + HIGH}" text-anchor="{anchor}">{markup(words)}</text></g>'
        )
    return "".join(parts)
