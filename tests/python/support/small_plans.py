"""Small handmade plans with all elements that pictures show."""

from __future__ import annotations

from typing import NamedTuple

from ggml_backend.profile._pictures import BareArena, BareBlock, Picture
from ggml_backend.profile._pictures.data import Note

__all__ = ["HOSTILE", "Copy", "Split", "hostile_plan", "small_plan"]

HOSTILE = (
    "</script><img src=x onerror=\"document.title='hacked'\">", "<!--<script>", "a\"b'c&amp;<b>", "\u2028line", "]]>",
    "\ud800", "${1}`", "@DATA@",
)  # fmt: skip


class Split(NamedTuple):
    index: int
    backend: str
    nodes: tuple[str, ...]
    start: int
    end: int
    n_inputs: int


class Copy(NamedTuple):
    name: str
    src_backend: str
    dst_backend: str
    nbytes: int
    split: int
    reason: str
    shape: tuple[int, ...] | None = None
    dtype: str = ""


def small_plan() -> Picture:
    """Two devices: a residual over all steps, scores in place, a gap below the residual, copies in
    both directions."""

    def block(i: int, lower: int, upper: int, size: int, offset: int, name: str, op: str, step: int, node: int = -1,
              root: int | None = None, backend: str = "SIM0") -> BareBlock:  # fmt: skip
        return BareBlock(
            i, lower, upper, size, offset, name, op, backend, 0, root, (16, size // 64), "float32", step, node
        )

    sim = (
        block(0, 0, 4, 2048, 0, "q", "RMS_NORM", 0, 0),
        block(1, 1, 5, 4096, 2048, "scores", "MUL_MAT", 1, 1),
        block(2, 1, 5, 4096, 2048, "scaled", "SCALE", 2, 2, 1),
        block(3, 1, 5, 4096, 2048, "probs", "SOFT_MAX", 3, 3, 1),
        block(4, 4, 12, 1024, 6144, "attention.residual", "ADD", 4, 4),
        block(5, 7, 9, 2048, 0, "SIM0#back", "copy", 7),
        block(6, 8, 12, 2048, 2048, "out", "MUL_MAT", 8, 7),
    )
    cpu = (
        block(0, 5, 7, 2048, 0, "CPU#attention.residual", "copy", 5, backend="CPU"),
        block(1, 6, 7, 1024, 2048, "back", "GET_ROWS", 6, 6, backend="CPU"),
    )
    arenas = (
        BareArena("SIM0", 7168, 6144, False, sim, 512, 256, 128),
        BareArena("CPU", 3072, 3072, True, cpu, 64, 0, 1024),
    )
    splits = (
        Split(0, "SIM0", ("q", "scores", "scaled", "probs", "attention.residual", "x (view)"), 0, 5, 0),
        Split(1, "CPU", ("back",), 6, 7, 1),
        Split(2, "SIM0", ("out", *["more"] * 3), 8, 12, 1),
    )
    copies = (
        Copy("attention.residual", "SIM0", "CPU", 2048, 1, "input", (16, 32), "float32"),
        Copy("back", "CPU", "SIM0", 2048, 2, "input", (16, 32), "float32"),
    )
    reason = "backend SIM0: a weight lies there"
    notes = {
        0: Note(("x",), ("scores",), reason), 1: Note(("q", "keys"), ("scaled",), reason),
        2: Note(("scores",), ("probs",), reason), 3: Note(("scaled",), ("attention.residual",), reason),
        4: Note(("probs", "x"), ("back",), reason), 6: Note(("attention.residual",), ("out",), "backend CPU: the user"),
        7: Note(("back",), (), reason),
    }  # fmt: skip
    return Picture("a small plan", 11, arenas, splits, copies, notes)


def hostile_plan() -> Picture:
    blocks = tuple(
        BareBlock(i, i, i + 2, 100, 100 * (i % 2), n, HOSTILE[i % 3], "X") for i, n in enumerate(HOSTILE * 4)
    )
    splits = (Split(0, HOSTILE[0], HOSTILE, 0, 16, 0), Split(1, HOSTILE[1], HOSTILE, 17, 33, 1))
    copies = (Copy(HOSTILE[3], HOSTILE[0], HOSTILE[1], 100, 1, HOSTILE[4]),)
    arenas = (BareArena(HOSTILE[2], 200, 200, True, blocks),)
    return Picture(HOSTILE[0], 16, arenas, splits, copies)
