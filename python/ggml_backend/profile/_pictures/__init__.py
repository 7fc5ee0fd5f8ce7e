"""Pictures of plans and of traces: on a page, in notebooks, as SVG and PNG, as CSV and in terminals.

What a picture consists of
    *Lanes*: one for each device, time to the right. A bar is a split (of a trace: what a device did), an arrow a copy
    from one device to another. *Map*, one for each device: time to the right, addresses upwards, a block for each piece
    of memory. *Live bytes* below it. A *legend*, and on the page *tables* whose rows add up to their last one.

One data model (``data``)
    A block is one tensor's stay. Blocks that follow one another in the same memory (in place) are the *stages* of one
    :class:`~.data.Storage`: it is drawn, listed and counted once. The x axis has *steps*: what the plan's program does,
    the nodes that compute something and the copies between them. *Nodes* are those of the graph, views included; they
    are what ``repr`` of a graph counts. A hatched *gap* is memory below the top of what is alive that nothing uses
    then; above that top memory is *free*.

Peaks
    *arena*: the highest address that results need at once; *lower bound*: what no plan can go below. *allocated*:
    arena, leafs and kept copies. *total*: allocated and scratch. No other number is called a peak.

One drawing code (``draw``, ``maps``, ``lanes``, ``labels``)
    It writes SVG, for a width in pixels (files, notebooks) or for any width (the page: positions are shares of the
    width, and each label says from which width on it fits). A label is the longest of its alternatives that fits into
    its block, lying or standing: name and size, name, the name's last parts. None is drawn that does not fit. Widths
    are those of Helvetica, which Arial and Liberation Sans share, and with 8 % to spare. What the pointer, a tap or the
    keyboard shows of a thing is the ``<title>`` inside it, in lines ``word: what``.

One set of colours (``palette``)
    A colour means the kind of an operator, and nothing else; devices have lanes, not colours. Kinds differ also for the
    colour-blind, and dark text is legible on all of them, in the light set and in the dark one. Bytes and lifetimes
    have one scale of five shades.

Modules: ``data`` what is drawn; ``about`` what is told of it; ``labels`` what is legible; ``palette`` colours; ``draw``
how places and texts are written; ``maps`` and ``lanes`` the charts; ``svg`` files and notebooks; ``page`` with
``page.html``, and its tables, ``lists``; ``table`` CSV; ``text`` terminals; ``plans`` these of a plan; ``traces`` those
of a record; ``chrome`` records for other viewers. All of them read and change nothing.
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
