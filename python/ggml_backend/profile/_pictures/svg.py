"""A picture for one width: an SVG file, for a notebook, or a PNG. It has no script. Browsers show
titles of elements under the pointer."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
from os import PathLike

from ..._base.errors import InvalidArgumentError, UnsupportedError
from ..._base.files import write_bytes, write_text
from ..._base.text import line, markup, size_text
from .about import facts, memory_parts
from .data import Picture, span, verdict
from .draw import AXIS, SIDE, Chart, Sheet, Tick, plot_width
from .labels import text_width
from .lanes import Lanes, lanes_chart, lanes_of
from .maps import MAP, ArenaDrawn, hatch, legend, live_chart, map_chart, step_ticks, swatch
from .palette import FONT, THEMES, style

__all__ = ["WIDTHS", "check_look", "drawing", "lanes_drawing", "notebook", "png", "sheet_of"]

WIDTHS = 240, 20000  # smallest and largest width of a picture, in pixels
_LIVE, _LINE = 44, 18


class Paper:
    """A picture that grows downwards."""

    def __init__(self, sheet: Sheet, width: int) -> None:
        self.sheet, self.width = sheet, width
        self.parts: list[str] = []
        self.y = 12.0

    def words(self, text: str, size: int, *, bold: bool = False, name: str = "ink") -> None:
        """A line of text, cut at the right edge."""
        self.y += size + 3
        available = self.width - 2 * SIDE
        shown = line(text)
        while len(shown) > 1 and text_width(shown, size * (1.08 if bold else 1)) > available:
            shown = shown[: -max(2, len(shown) // 20)] + "…"
        weight = ' font-weight="600"' if bold else ""
        self.parts.append(
            f'<text {self.sheet.paint(name)} x="{SIDE}" y="{self.y:.1f}" style="font-size:{size}px" '
            f'font-size="{size}"{weight}>{markup(shown)}</text>'
        )
        self.y += 5

    def chart(self, chart: Chart) -> None:
        self.parts.append(
            f'<g transform="translate({SIDE} {self.y:.1f})">{chart.axis}</g>'
            f'<svg x="{SIDE + AXIS}" y="{self.y:.1f}" width="{self.sheet.full()}" height="{chart.height}" '
            f'overflow="visible">{chart.plot}</svg>'
        )
        self.y += chart.height

    def legend(self, entries: Sequence[tuple[str, str]]) -> None:
        x: float = SIDE + AXIS
        self.y += 8
        for sample, words in entries:
            wide = 21 + text_width(words) + 14
            if x + wide > self.width - SIDE and x > SIDE + AXIS:
                x, self.y = SIDE + AXIS, self.y + _LINE
            self.parts.append(
                f'<g transform="translate({x:.1f} {self.y:.1f})">{sample}'
                f'<text {self.sheet.paint("soft")} x="21" y="10">{markup(words)}</text></g>'
            )
            x += wide
        self.y += _LINE + 8

    def svg(self, label: str) -> str:
        high = round(self.y) + 4
        look = style("svg.gb", self.sheet.theme)
        card = self.sheet.paint("card")
        return (
            f'<svg xmlns="http://www.w3.org/2000/svg" class="gb" data-colour="{self.sheet.colour}" role="img" '
            f'aria-label="{markup(label)}" viewBox="0 0 {self.width} {high}" width="{self.width}" height="{high}" '
            f'font-family="{markup(FONT)}" font-size="11" style="max-width:100%;height:auto">'
            f"<style>{look}</style>{hatch(self.sheet)}"
            f'<rect {card} width="{self.width}" height="{high}" rx="8"/>{"".join(self.parts)}</svg>'
        )


def sheet_of(picture: Picture, width: int, theme: str) -> Sheet:
    """The sheet of a picture of this width, axis included."""
    t0, t1 = span(picture)
    bare = not any(b.op for a in picture.arenas for b in a.blocks)
    names = "\n".join([picture.title, str(width), theme, *(b.name for a in picture.arenas for b in a.blocks)])
    ident = f"g{zlib.crc32(names.encode('utf-8', 'replace')):08x}"
    return Sheet(t0, t1, plot_width(width), theme, "life" if bare else "kind", ident)


def check_look(width: int, theme: str, what: str) -> None:
    if not WIDTHS[0] <= width <= WIDTHS[1]:
        raise InvalidArgumentError(f"{what}: width must be {WIDTHS[0]} to {WIDTHS[1]} pixels, not {width}")
    if not isinstance(theme, str) or theme not in THEMES:
        raise InvalidArgumentError(f"{what}: theme must be one of {', '.join(THEMES)}, not {theme!r:.60}")


def drawing(
    picture: Picture, path: str | PathLike[str] | None = None, width: int = 960, theme: str = "auto",
    what: str = "to_svg",
) -> str:  # fmt: skip
    """Returns the whole picture as one SVG. Also writes it if ``path`` is given."""
    check_look(width, theme, what)
    sheet = sheet_of(picture, width, theme)
    paper = Paper(sheet, width)
    paper.words(picture.title, 16, bold=True)
    paper.words(facts(picture), 12, name="soft")
    lanes = lanes_of(picture)
    if lanes.bars:
        paper.words("Where it runs", 13, bold=True)
        paper.chart(lanes_chart(sheet, lanes, step_ticks(int(sheet.t0), int(sheet.t1)), "step"))
    for arena in picture.arenas:
        _arena(paper, picture, ArenaDrawn.of(picture, arena))
    result = paper.svg(f"{picture.title}: {facts(picture)}")
    if path is not None:
        write_text(path, result + "\n")
    return result


def _arena(paper: Paper, picture: Picture, d: ArenaDrawn) -> None:
    arena, sheet = d.arena, paper.sheet
    paper.words(f"Memory of {arena.backend}" if arena.backend != picture.title else "Memory", 13, bold=True)
    parts = dict(memory_parts(arena))
    line = [f"arena {size_text(arena.peak)}, {verdict(arena)}"]
    if parts["total"] != arena.peak:
        line += [f"{name} {size_text(parts[name])}" for name in ("leafs", "kept copies", "scratch") if parts[name]]
        line.append(f"total {size_text(parts['total'])}")
    paper.words(" · ".join(line), 12, name="soft")
    if not any(s.nbytes and s.upper > s.lower for s in d.pieces):
        return
    paper.chart(map_chart(sheet, d, MAP))
    paper.chart(live_chart(sheet, d, _LIVE))
    paper.legend([(sample, words) for sample, words, _ in legend(sheet, d)])


def notebook(picture: Picture) -> str:
    """The SVG inside HTML, for ``_repr_html_``."""
    return f"<div>{drawing(picture, width=880)}</div>"


def png(
    picture: Picture, path: str | PathLike[str] | None = None, width: int = 960, theme: str = "light", scale: int = 2,
    what: str = "to_png",
) -> bytes:  # fmt: skip
    """The picture as PNG, with ``scale`` pixels for each unit of ``width``."""
    return pixels(lambda: drawing(picture, None, width, theme, what), path, theme, scale, what)


def pixels(
    draw: Callable[[], str], path: str | PathLike[str] | None, theme: str, scale: int, what: str
) -> bytes:  # fmt: skip
    """Renders the SVG that ``draw`` returns as PNG. Also writes it if ``path`` is given."""
    if isinstance(theme, str) and theme == "auto":
        raise InvalidArgumentError(f"{what}: a PNG has one theme, light or dark")
    if not 1 <= scale <= 8:
        raise InvalidArgumentError(f"{what}: scale must be 1 to 8, not {scale}")
    try:
        import resvg_py
    except ImportError:
        raise UnsupportedError(
            f"{what}: drawing pixels needs the package resvg-py: pip install 'ggml_backend[png]'"
        ) from None
    result = bytes(resvg_py.svg_to_bytes(svg_string=draw(), zoom=scale))
    if path is not None:
        write_bytes(path, result)
    return result


def lanes_drawing(
    title: str, facts_line: str, lanes: Lanes, ticks: Sequence[Tick], unit: str, sheet: Sheet, width: int
) -> str:  # fmt: skip
    """A picture with lanes only."""
    paper = Paper(sheet, width)
    paper.words(title, 16, bold=True)
    paper.words(facts_line, 12, name="soft")
    paper.chart(lanes_chart(sheet, lanes, ticks, unit))
    paper.legend([(swatch(sheet, c), words) for c, words in lanes.legend])
    return paper.svg(f"{title}: {facts_line}")
