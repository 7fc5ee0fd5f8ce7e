"""The cache of keys and values, shared by several sequences."""

from __future__ import annotations

from collections.abc import Sequence as List
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from .._base.errors import InvalidArgumentError
from ..backend.backend import Backend
from ..backend.buffer import Buffer
from ..dtypes import DType
from ..tensor.context import Context
from ..tensor.tensor import Tensor
from ._sizes import Sizes

__all__ = ["Cache", "Sequence"]

Ints = npt.NDArray[np.int32]
_FREE = -1


@dataclass(eq=False)
class Sequence:
    """The tokens of one text whose keys and values are in the cache. ``cells``: the cell of each token."""

    number: int
    tokens: list[int] = field(default_factory=list)
    cells: list[int] = field(default_factory=list)
    idle: bool = False


class Cache:
    """Keys and values of ``n_cells`` tokens in any order, the layers spread over the backends.

    A cell belongs to one token of one sequence. ``owner`` holds the number of its sequence, or -1, and ``position`` the
    position in it. Cells of idle sequences stay until others need them, so a text that continues an earlier one
    computes only what is new.
    """

    def __init__(self, s: Sizes, n_cells: int, backends: List[Backend], dtype: DType) -> None:
        self.n_cells = n_cells
        self.owner: Ints = np.full(n_cells, _FREE, np.int32)
        self.position: Ints = np.zeros(n_cells, np.int32)
        self.sequences: list[Sequence] = []
        self._next = 0
        self._contexts: list[Context] = []
        self.buffers: list[Buffer] = []
        self.layers: list[tuple[Tensor, Tensor]] = []
        for width in (s.kv_heads * s.head_k, s.kv_heads * s.head_v):
            if width % dtype.block_size:
                raise InvalidArgumentError(
                    f"cache={dtype.name!r} needs rows of whole blocks of {dtype.block_size};"
                    f" this model has {width} values in a row: use 'float16'"
                )
        of = [i * len(backends) // s.layers for i in range(s.layers)]
        for index, backend in enumerate(backends):
            mine = [i for i in range(s.layers) if of[i] == index]
            if mine:
                self._make(s, mine, backend, dtype)

    def _make(self, s: Sizes, layers: List[int], backend: Backend, dtype: DType) -> None:
        context = Context()
        self._contexts.append(context)
        for i in layers:
            keys = context.tensor((self.n_cells, s.kv_heads * s.head_k), dtype, name=f"cache.{i}.k")
            values = context.tensor((self.n_cells, s.kv_heads * s.head_v), dtype, name=f"cache.{i}.v")
            self.layers.append((keys, values))
        buffer = context.allocate(backend)
        buffer.clear(0)
        self.buffers.append(buffer)

    @property
    def nbytes(self) -> int:
        """Bytes of all keys and values."""
        return sum(buffer.nbytes for buffer in self.buffers)

    @property
    def n_used(self) -> int:
        """Cells that belong to sequences in use."""
        return sum(len(s.cells) for s in self.sequences if not s.idle)

    def begin(self, tokens: List[int]) -> Sequence:
        """The sequence of a text: the idle one that shares most tokens with its beginning, or a new one.

        At least one token is left to compute.
        """
        best, common = None, 0
        for sequence in self.sequences:
            n = _common(sequence.tokens, tokens[:-1]) if sequence.idle else 0
            if n > common:
                best, common = sequence, n
        if best is None:
            best = Sequence(self._next)
            self._next += 1
            self.sequences.append(best)
        self._drop(best, common)
        best.idle = False
        return best

    def end(self, sequence: Sequence) -> None:
        """Other sequences may use its cells from now on."""
        sequence.idle = True

    def add(self, sequence: Sequence, tokens: List[int]) -> Ints:
        """Places for the next tokens of a sequence.

        InvalidArgumentError: the sequences in use fill the cache.
        """
        free = np.flatnonzero(self.owner == _FREE)
        while len(free) < len(tokens):
            idle = next((s for s in self.sequences if s.idle), None)
            if idle is None:
                raise InvalidArgumentError(
                    f"{self.n_used + len(tokens)} tokens do not fit the context of {self.n_cells}: load the model with"
                    " a larger n_ctx, or give a shorter text"
                )
            self._drop(idle, 0)
            self.sequences.remove(idle)
            free = np.flatnonzero(self.owner == _FREE)
        cells = free[: len(tokens)].astype(np.int32)
        begin = len(sequence.tokens)
        self.owner[cells] = sequence.number
        self.position[cells] = np.arange(begin, begin + len(tokens), dtype=np.int32)
        sequence.tokens += tokens
        sequence.cells += cells.tolist()
        return cells

    def forget_idle(self) -> None:
        """Frees the cells of all idle sequences."""
        for sequence in [s for s in self.sequences if s.idle]:
            self._drop(sequence, 0)
            self.sequences.remove(sequence)

    def drop_last(self, sequence: Sequence, n: int) -> None:
        """Forgets the last ``n`` tokens, which a failed step did not compute."""
        self._drop(sequence, len(sequence.tokens) - n)

    def _drop(self, sequence: Sequence, kept: int) -> None:
        self.owner[sequence.cells[kept:]] = _FREE
        del sequence.cells[kept:], sequence.tokens[kept:]

    def n_seen(self) -> int:
        """Cells up to the last one that holds a token."""
        used = np.flatnonzero(self.owner != _FREE)
        return int(used[-1]) + 1 if len(used) else 0

    def visible(self, numbers: Ints, positions: Ints, n: int, window: int = 0) -> npt.NDArray[np.float16]:
        """The mask (tokens, n): 0 where a token sees a cell, else -inf. window: it sees only so many positions."""
        distance = positions[:, None] - self.position[None, :n]
        seen = (self.owner[None, :n] == numbers[:, None]) & (distance >= 0)
        if window:
            seen &= distance < window
        return np.where(seen, np.float16(0), np.float16(-np.inf))

    def close(self) -> None:
        """Frees the memory."""
        for context in self._contexts:
            context.close()
        self.layers.clear()


def _common(a: List[int], b: List[Any]) -> int:
    """The number of equal items at the beginning."""
    n = min(len(a), len(b))
    for i in range(n):
        if a[i] != b[i]:
            return i
    return n
