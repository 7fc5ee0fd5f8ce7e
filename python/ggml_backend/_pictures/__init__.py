"""Pictures of a memory plan: CSV, one self-contained HTML page, a small SVG for notebooks, and a map for terminals.

* ``data``: what a picture shows, and what is computed for it once (the live bytes over time, the peak moment)
* ``table``: CSV, written and read
* ``page`` with ``page.html``: the page
* ``svg``: for notebooks, without scripts
* ``text``: for terminals
* ``plans``: these of a plan of a scheduler
* ``chrome``: the record of a scheduler as Chrome trace JSON

All of them read plans and change none.
"""

from __future__ import annotations

from .data import ArenaLike, BareArena, BareBlock, BlockLike, CopyLike, Picture, SplitLike, bare_picture, chains
from .page import page
from .plans import picture_of, plan_csv, plan_map, plan_page
from .svg import notebook
from .table import read_table, write_rows, write_table
from .text import text_map

__all__ = [
    "ArenaLike", "BareArena", "BareBlock", "BlockLike", "CopyLike", "Picture", "SplitLike", "bare_picture", "chains",
    "notebook", "page", "picture_of", "plan_csv", "plan_map", "plan_page", "read_table", "text_map", "write_rows",
    "write_table",
]  # fmt: skip
