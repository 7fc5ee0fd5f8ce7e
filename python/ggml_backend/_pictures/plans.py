"""A plan as CSV, page and map: what the methods of :class:`ggml_backend.Plan` that draw it call."""

from __future__ import annotations

from collections.abc import Sequence
from os import PathLike
from typing import Protocol

from .._errors import InvalidArgumentError, expect_int, expect_path
from .._errors.messages import kind_of
from .data import ArenaLike, CopyLike, Picture, SplitLike
from .page import page
from .table import write_table
from .text import text_map

__all__ = ["PlanLike", "picture_of", "plan_csv", "plan_map", "plan_page"]

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


def plan_csv(plan: PlanLike, path: str | PathLike[str] | None) -> str:
    if path is not None:
        expect_path(path, "Plan.to_csv: path")
    return write_table(plan.arenas, path)


def plan_page(plan: PlanLike, path: str | PathLike[str] | None, title: str) -> str:
    if path is not None:
        expect_path(path, "Plan.to_html: path")
    return page(picture_of(plan, _text(title, "Plan.to_html")), path)


def plan_map(plan: PlanLike, width: int, rows: int, largest: int, title: str) -> str:
    sizes = [
        expect_int(n, f"Plan.to_text: {name}") for name, n in (("width", width), ("rows", rows), ("largest", largest))
    ]
    if not all(0 <= n <= _MOST for n in sizes):
        raise InvalidArgumentError(
            f"Plan.to_text: width, rows and largest must be 0 to {_MOST}, not {width}, {rows} and {largest}"
        )
    return text_map(picture_of(plan, _text(title, "Plan.to_text")), *sizes)
