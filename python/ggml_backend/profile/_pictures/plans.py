"""A plan as CSV, page, picture and text: called by methods of :class:`ggml_backend.sched.Plan`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from os import PathLike
from typing import Protocol

from ..._base.errors import InvalidArgumentError, expect_int, expect_path
from ..._base.errors.messages import kind_of
from .data import ArenaLike, CopyLike, Note, Picture, SplitLike
from .page import page
from .svg import drawing, png
from .table import write_table
from .text import text_map

__all__ = ["PlanLike", "picture_of", "plan_csv", "plan_map", "plan_page", "plan_png", "plan_svg"]

_MOST = 10000  # maximum columns, lines and blocks of a map


class PlanLike(Protocol):
    """The attributes of a plan that pictures need."""

    @property
    def arenas(self) -> Sequence[ArenaLike]: ...
    @property
    def splits(self) -> Sequence[SplitLike]: ...
    @property
    def copies(self) -> Sequence[CopyLike]: ...
    def _notes(self) -> Mapping[int, Note]: ...


def picture_of(plan: PlanLike, title: str = "plan", notes: bool = True) -> Picture:
    """The picture of a plan. ``notes``: add notes about the nodes."""
    nodes = sum(len(s.nodes) for s in plan.splits)
    return Picture(title, nodes, plan.arenas, plan.splits, plan.copies, plan._notes() if notes else {})


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


def plan_svg(plan: PlanLike, path: str | PathLike[str] | None, width: int, title: str, theme: str) -> str:
    what = "Plan.to_svg"
    if path is not None:
        expect_path(path, f"{what}: path")
    return drawing(picture_of(plan, _text(title, what)), path, expect_int(width, f"{what}: width"), theme, what)


def plan_png(plan: PlanLike, path: str | PathLike[str] | None, width: int, title: str, theme: str, scale: int) -> bytes:
    what = "Plan.to_png"
    if path is not None:
        expect_path(path, f"{what}: path")
    sizes = expect_int(width, f"{what}: width"), expect_int(scale, f"{what}: scale")
    return png(picture_of(plan, _text(title, what)), path, sizes[0], theme, sizes[1], what)


def plan_map(plan: PlanLike, width: int, rows: int, largest: int, title: str) -> str:
    sizes = [
        expect_int(n, f"Plan.to_text: {name}") for name, n in (("width", width), ("rows", rows), ("largest", largest))
    ]
    if not all(0 <= n <= _MOST for n in sizes):
        raise InvalidArgumentError(
            f"Plan.to_text: width, rows and largest must be 0 to {_MOST}, not {width}, {rows} and {largest}"
        )
    return text_map(picture_of(plan, _text(title, "Plan.to_text"), notes=False), *sizes)
