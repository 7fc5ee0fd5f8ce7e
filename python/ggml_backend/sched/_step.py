"""Steps: one call of C sets the inputs of a graph, computes it, and reads its best results."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from .._base.errors import StateError, raise_last
from .._base.handles import Local
from .._ffi import ffi, lib
from ..tensor._callbacks import Run, raise_abort_errors
from ..tensor.graph import ABORTED, Graph
from ..tensor.tensor import Tensor
from .scheduler import Scheduler

__all__ = ["Step"]

Ids = npt.NDArray[np.int32]
Values = npt.NDArray[np.float32]


class Step(Local):
    """A graph that is computed again and again with other inputs, by one thread at a time.

    ``arrays``: one for each input, in the shape and dtype of the input. Fill them before ``run``.

    result: float32 (rows, n), an output of the graph
    """

    __slots__ = ("_c", "_graph", "_held", "_result", "_scheduler", "arrays")

    def __init__(self, scheduler: Scheduler, graph: Graph, inputs: Sequence[Tensor], result: Tensor) -> None:
        self._scheduler, self._graph, self._result = scheduler, graph, result
        self.arrays: list[npt.NDArray[Any]] = [np.zeros(t.shape, t.dtype.numpy) for t in inputs]
        listed = ffi.new("struct gbpy_input[]", len(inputs))
        data = [ffi.from_buffer(array) for array in self.arrays]
        for i, (t, array) in enumerate(zip(inputs, self.arrays, strict=True)):
            listed[i].context, listed[i].tensor = t._k, t._live()
            listed[i].data, listed[i].size = data[i], array.nbytes
        self._c: Any = ffi.new("struct gbpy_step *")
        self._c.inputs, self._c.n_inputs = listed, len(inputs)
        self._c.context, self._c.result = result._k, result._live()
        self._held = (listed, data, inputs)

    def run(self, k: int) -> tuple[Ids, Values]:
        """Computes. Returns the ``k`` largest elements of each row of the result, the largest first: their indices and
        values, each (rows, k). Of equal elements, the first in the row comes first. NaN is smaller than every number.

        ``k`` of 0 returns empty arrays. ``result.numpy()`` then has all.
        """
        core, graph_core = self._scheduler._live(), self._graph._live()
        rows = self._result.shape[0] if k else 0
        ids, values = np.empty((rows, k), np.int32), np.empty((rows, k), np.float32)
        c, how = self._c, ffi.new("int *")
        c.k = k
        c.ids, c.values = ffi.from_buffer("int32_t[]", ids), ffi.from_buffer("float[]", values)
        calls_python = graph_core.customs or core.may_abort
        run = Run(core.backends, graph_core, graph_core.customs) if calls_python else None
        status = lib.gbpy_sched_step(core.h, graph_core.h, ffi.NULL if run is None else run.c, c, how)
        if run is not None:
            run.finish()
        self._scheduler._graph = self._graph
        if how[0]:
            self._scheduler._planned(core, how[0])
        if status == ABORTED:
            raise_abort_errors(core.backends)
            raise StateError("the computation was stopped, so there are no results")
        if status:
            raise_last("Scheduler.compute", status)
        return ids, values
