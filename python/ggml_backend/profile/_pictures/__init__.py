"""Pictures of plans and of traces: on a page, in notebooks, as SVG and PNG, as CSV and in terminals.

Parts of a picture
    *Lanes*: one for each device, time to the right. A bar is a split (in a trace: an event of the
    device). An arrow is a copy between devices. *Map*: one for each device, time to the right,
    addresses upwards, a block for each piece of memory. *Live bytes* are below it. There is a
    *legend*, and on the page *tables* whose last row is the sum.

One data model (``data``)
    A block is the memory of one tensor over its lifetime. Blocks that share memory in place are the
    *stages* of one :class:`~.data.Storage`, which is drawn, listed and counted once. The x axis has
    the *steps* of the plan's program: nodes that compute something, and copies. *Nodes* are those
    of the graph, views included, as ``repr`` of a graph counts them. The top is the highest address
    in use at a step. A hatched *gap* is unused memory below the top. Memory above the top is
    *free*.

Peaks
    *arena*: the highest address of results. *lower bound*: no plan needs fewer bytes. *allocated*:
    arena, leafs and kept copies. *total*: allocated and scratch. No other number is called a peak.

One drawing code (``draw``, ``maps``, ``lanes``, ``labels``)
    It writes SVG, for a width in pixels (files, notebooks) or for any width (the page). For any
    width, positions are shares of the width, and each label has the smallest width at which it
    fits. A label is the longest of its alternatives that fits into its block, horizontal or
    vertical: name and size, name, last parts of the name. A label that does not fit is not drawn.
    Widths of texts are those of Helvetica, Arial and Liberation Sans, plus 8 %. The pointer, a tap
    or the keyboard shows the ``<title>`` of an element, in lines ``word: text``.

One set of colours (``palette``)
    A colour means the kind of an operator, never a device. The colour-blind can distinguish all
    kinds, and dark text is legible on them, in the light theme and in the dark theme. Bytes and
    lifetimes have one scale of five shades.

Modules. They only read.
    ``plans`` and ``traces`` make the data of a picture (``data``, ``about``) from a plan or a record.
    ``maps`` and ``lanes`` draw charts with ``draw``, ``labels`` and ``palette``. ``svg`` writes files
    and notebooks, ``page`` and ``lists`` the page, ``table`` CSV, ``text`` terminals, ``chrome``
    records for other viewers.
"""

from __future__ import annotations

from .data import ArenaLike, BareArena, BareBlock, BlockLike, CopyLike, Picture, SplitLike, bare_picture, chains
from .page import page
from .plans import picture_of, plan_csv, plan_map, plan_page, plan_png, plan_svg
from .svg import drawing, notebook, png
from .table import read_table, write_rows, write_table
from .text import text_map

__all__ = [
    "ArenaLike", "BareArena", "BareBlock", "BlockLike", "CopyLike", "Picture", "SplitLike", "bare_picture", "chains",
    "drawing", "notebook", "page", "picture_of", "plan_csv", "plan_map", "plan_page", "plan_png", "plan_svg", "png",
    "read_table", "text_map", "write_rows", "write_table",
]  # fmt: skip
