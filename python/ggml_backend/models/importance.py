"""Which columns of each matrix matter for a text: the file that ``quantize --imatrix`` reads.

The importance of a column is the mean square of the values that it multiplies.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from ..gguf import Writer
from ._decoder import Observed
from .text import TextModel

__all__ = ["Importances"]

Doubles = npt.NDArray[np.float64]


class Importances:
    """Sums of squares and counts of rows, by the name of the matrix. ``n_chunks``: parts of the text that were read."""

    def __init__(self) -> None:
        self.sums: dict[str, Doubles] = {}
        self.counts: dict[str, Doubles] = {}
        self.n_chunks: int = 0

    def add(self, name: str, rows: Any, experts: Any = None, n_experts: int = 1) -> None:
        """Adds rows (n, columns). experts: the expert of each row."""
        squares = np.square(rows, dtype=np.float64)
        if name not in self.sums:
            self.sums[name] = np.zeros((n_experts, squares.shape[1]))
            self.counts[name] = np.zeros((n_experts, 1))
        if experts is None:
            self.sums[name][0] += squares.sum(0)
            self.counts[name][0] += len(squares)
        else:
            np.add.at(self.sums[name], experts, squares)
            self.counts[name][:, 0] += np.bincount(experts, minlength=n_experts)

    def read(
        self,
        model: TextModel,
        text: str | Sequence[int],
        n_chunk: int = 512,
        progress: Callable[[int, int], object] | None = None,
    ) -> None:
        """Runs a model over a text, in parts of ``n_chunk`` tokens that do not see each other.

        progress: called with the tokens done and all tokens.
        """
        tokens = model._tokens(text)
        n_chunk = min(n_chunk, model.n_ctx)
        model._observer = lambda observed, n: self._observe(model, observed, n)
        model._forget_graphs()
        try:
            for i in range(0, len(tokens), n_chunk):
                model.cache.forget_idle()  # else a part that begins like another is not computed
                model.logits(tokens[i : i + n_chunk])
                self.n_chunks += 1
                if progress is not None:
                    progress(min(i + n_chunk, len(tokens)), len(tokens))
        finally:
            model._observer = None
            model._forget_graphs()

    def _observe(self, model: TextModel, observed: Sequence[Observed], n: int) -> None:
        """Adds what one step multiplied. n: its tokens; the graph may have more, for padding."""
        for one in observed:
            rows = one.rows.numpy()
            if one.experts is None:
                self.add(one.weight, rows[:n] if len(rows) > 1 else rows)
                continue
            chosen = one.experts.numpy()[:n]
            each = np.broadcast_to(rows[:n], (*chosen.shape, rows.shape[-1]))
            n_experts = model.weights[one.weight].shape[0]
            self.add(one.weight, each.reshape(-1, rows.shape[-1]), chosen.reshape(-1), n_experts)

    def save(self, path: str | os.PathLike[str], dataset: str = "", n_chunk: int = 512) -> None:
        """Writes a GGUF file with ``NAME.in_sum2`` (matrices, columns) and ``NAME.counts`` (matrices, 1)."""
        with Writer(path) as writer:
            writer.add("general.type", "imatrix")
            writer.add("imatrix.datasets", [dataset])
            writer.add("imatrix.chunk_count", self.n_chunks, "u32")
            writer.add("imatrix.chunk_size", n_chunk, "u32")
            for name, sums in self.sums.items():
                writer.add_tensor(f"{name}.in_sum2", sums.astype(np.float32))
                writer.add_tensor(f"{name}.counts", self.counts[name].astype(np.float32))
