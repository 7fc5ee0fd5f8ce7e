"""Widths of texts, and the widths of the chart at which each label is shown."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

__all__ = ["LADDER", "Label", "alternatives", "fitting", "level", "text_width"]

SIZE = 11  # pixels of a letter
PAD = 4  # pixels between a label and the edge of its block
HIGH = 13  # pixels that a line needs

#: Widths of a chart, in pixels, at which labels appear or disappear.
LADDER = [round(240 * 1.25**k) for k in range(27)]

# Advances of Helvetica from space to "~", in thousandths of the size.
_ADVANCES = [
    278, 278, 355, 556, 556, 889, 667, 191, 333, 333, 389, 584, 278, 333, 278, 278, 556, 556, 556, 556, 556, 556, 556,
    556, 556, 556, 278, 278, 584, 584, 584, 556, 1015, 667, 667, 722, 722, 667, 611, 778, 722, 278, 500, 667, 556, 833,
    722, 778, 667, 778, 722, 667, 611, 722, 667, 944, 667, 667, 611, 278, 278, 278, 469, 556, 333, 556, 556, 500, 556,
    556, 278, 556, 556, 222, 222, 500, 222, 833, 556, 556, 556, 556, 333, 500, 278, 556, 500, 722, 500, 500, 500, 334,
    260, 334, 584,
]  # fmt: skip
_SPARE = 1.08  # other fonts are wider
_MADE_UP = re.compile(r"(node|leaf)_\d+")  # names that the library gives


def text_width(text: str, size: float = SIZE) -> float:
    """An upper estimate of the width of a line, in pixels."""
    total = sum(_ADVANCES[ord(c) - 32] if " " <= c <= "~" else 1000 for c in text)
    return total * size * _SPARE / 1000


def level(width: float) -> int:
    """The index of the first width of the ladder that is at least ``width``. The length of the
    ladder if none is."""
    return next((k for k, w in enumerate(LADDER) if w >= width), len(LADDER))


def shown_name(name: str, op: str) -> str:
    """The name if the user chose it, else the operator. A copy has the name of its original."""
    if op == "copy":
        return name.partition("#")[2] or name
    return op.lower() if op and (not name or _MADE_UP.fullmatch(name)) else name


def _tails(name: str) -> Iterator[str]:
    """The name, the name without a suffix such as " (reshaped)", and its last parts: a.b.c, b.c,
    c."""
    yield name
    plain = name.partition(" (")[0]
    if plain and plain != name:
        yield plain
    parts = (plain or name).split(".")
    for k in range(1, len(parts)):
        if len(tail := ".".join(parts[k:])) > 2:
            yield tail
    if len(parts[-1]) > 9:
        yield parts[-1][:6] + "…"


def alternatives(name: str, size: str = "") -> list[str]:
    """Labels for this name and size, the longest first."""
    return [*([f"{name} · {size}"] if size else []), *_tails(name)]


@dataclass(frozen=True)
class Label:
    """A text that is shown while the chart is at least ``above`` and less than ``below`` wide."""

    text: str
    above: float
    below: float
    standing: bool = False


def fitting(texts: Sequence[str], share: float, height: float, below: float = float("inf")) -> list[Label]:
    """The labels of a block. Each text is shown at the widths at which it is the longest that fits.

    texts: the longest first
    share, height: size of the block, as a share of the chart's width and in pixels
    """
    if share <= 0:
        return []
    found = []
    if height >= HIGH:
        for text in texts:
            above = (text_width(text) + 2 * PAD) / share
            if above < below:
                found.append(Label(text, above, below))
                below = above
    stands = next((t for t in texts if text_width(t) + 2 * PAD <= height), None)
    if stands is not None and (HIGH + 1) / share < below:
        found.append(Label(stands, (HIGH + 1) / share, below, True))
    return found
