"""The methods of a plan that draw it: ``class Plan(PlanPictures)``."""

from __future__ import annotations

from collections.abc import Sequence
from os import PathLike
from typing import Protocol

from .._errors import InvalidArgumentError, expect_int, expect_path
from .._errors.messages import kind_of
from .data import ArenaLike, CopyLike, Picture, SplitLike
from .page import page
from .svg import notebook
from .table import write_table
from .text import text_map

_MOST = 10000  # columns, lines and blocks of a map


class PlanLike(Protocol):
    """What a plan must have to be drawn."""

    @property
    def arenas(self) -> Sequence[ArenaLike]: ...
    @property
    def splits(self) -> Sequence[SplitLike]: ...
    @property
    def copies(self) -> Sequence[CopyLike]: ...


def picture_of(plan: PlanLike, title: str = "plan") -> Picture:
    """Of all nodes that its splits have."""
    return Picture(title, max((s.end for s in plan.splits), default=0), plan.arenas, plan.splits, plan.copies)


def _text(title: object, what: str) -> str:
    if not isinstance(title, str):
        raise TypeError(f"{what}: title must be a str, not {kind_of(title)}")
    return title


class PlanPictures:
    """CSV, pages and maps of a plan (docs/PLANS.md). The plan has ``arenas``, ``splits`` and ``copies``."""

    __slots__ = ()

    def to_csv(self: PlanLike, path: str | PathLike[str] | None = None) -> str:
        """The blocks of all arenas: id,lower,upper,size,offset,name,op,backend,arena,root. Returned, and written if
        there is a path."""
        if path is not None:
            expect_path(path, "Plan.to_csv: path")
        return write_table(self.arenas, path)

    def to_html(self: PlanLike, path: str | PathLike[str] | None = None, title: str = "plan") -> str:
        """One self-contained page with pictures of the plan. Returned, and written if there is a path."""
        if path is not None:
            expect_path(path, "Plan.to_html: path")
        return page(picture_of(self, _text(title, "Plan.to_html")), path)

    def to_text(self: PlanLike, width: int = 100, rows: int = 12, largest: int = 8, title: str = "plan") -> str:
        """A map for terminals of so many columns: ``rows`` lines for each arena, and its ``largest`` blocks."""
        sizes = [
            expect_int(n, f"Plan.to_text: {name}")
            for name, n in (("width", width), ("rows", rows), ("largest", largest))
        ]
        if not all(0 <= n <= _MOST for n in sizes):
            raise InvalidArgumentError(
                f"Plan.to_text: width, rows and largest must be 0 to {_MOST}, not {width}, {rows} and {largest}"
            )
        return text_map(picture_of(self, _text(title, "Plan.to_text")), *sizes)

    def _repr_html_(self: PlanLike) -> str:
        return notebook(picture_of(self))
