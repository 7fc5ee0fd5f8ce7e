"""Models as sequences of layers, for ``cluster/planning``. The graph, built from the file's
metadata, gives each layer's weights, work, and bytes sent to the next layer. No tensor gets memory.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import Any

from ... import gguf
from ..._base.errors import InvalidArgumentError, UnsupportedError
from ...backend.backend import Backend
from ...cluster.planning.describe import Description
from ...cluster.planning.layers import LayerModel, Node, Placement, Unit
from ...profile._pictures import Picture, picture_of
from ...sched.plan import Plan
from ...sched.scheduler import Scheduler
from ...tensor.context import Context
from ...tensor.graph import Graph
from ...tensor.tensor import Tensor
from .models import LlamaFile, Pass

__all__ = ["Passes", "drawn", "passes_of", "passes_of_file"]

_VIEWS = frozenset(("NONE", "RESHAPE", "VIEW", "PERMUTE", "TRANSPOSE"))


@dataclass(frozen=True)
class Passes:
    """A model's pass of one token at the end of the cache, and its pass of a prompt that fills the
    cache."""

    step: LayerModel
    prompt: LayerModel
    file: LlamaFile


def passes_of_file(path: str, tokens: int | None, context: int | None) -> Passes:
    """The passes of a GGUF file. Reads its metadata only."""
    with gguf.open(path) as file:
        architecture = file.metadata.get("general.architecture")
        if architecture != "llama":
            raise UnsupportedError(
                f"{path}: only the architecture 'llama' can be split into layers, and the file"
                f" has {str(architecture)[:60]!r}"
            )
        return passes_of(LlamaFile.of(file, Pass(tokens, context)), os.path.basename(path))


def passes_of(file: LlamaFile, title: str) -> Passes:
    """The passes of a model given by sizes, shapes and types."""
    step, prompt = (_model(replace(file, tokens=n), title) for n in (1, file.tokens))
    scratch = max(step.scratch, prompt.scratch)
    return Passes(replace(step, scratch=scratch), replace(prompt, scratch=scratch), file)


# ------------------------------------------------------------------------------------------------------------- counting


def _data_bytes(t: Tensor) -> int:
    """Bytes of the elements, without gaps between rows."""
    return t.dtype.row_nbytes(t.shape[-1]) * (t.size // t.shape[-1]) if t.size else 0


def _work(t: Tensor) -> Node:
    """The work of a node, counted as the scheduler's costs do (docs/PLACEMENT.md)."""
    sources = t.sources
    nbytes, count = _data_bytes(t), t.size
    if t.op == "SET_ROWS":  # writes as many bytes of the table as there are rows
        rows, ids, _ = sources
        count, n = rows.size, rows.shape[-1]
        nbytes = _data_bytes(rows) + _data_bytes(ids) + (t.dtype.row_nbytes(n) * (count // n) if count else 0)
    elif t.op == "GET_ROWS":  # reads as many bytes of the table as the result holds
        table, ids = sources
        nbytes += table.dtype.row_nbytes(t.shape[-1]) * (t.size // t.shape[-1]) + _data_bytes(ids)
    else:
        nbytes += sum(_data_bytes(s) for i, s in enumerate(sources) if t.op != "CPY" or i == 0)
    flops = 2.0 * t.size * sources[0].ne[0] if t.op == "MUL_MAT" else float(count)
    return Node(sources[0].dtype.name if sources else t.dtype.name, float(nbytes), flops)


def _unit_of(name: str, layers: int) -> int | None:
    """The unit of a weight: 0 for the embeddings, then the layers, then the head. None for other
    names."""
    found = re.match(r"blk\.(\d+)\.", name)
    if found:
        return int(found[1]) + 1
    return {"token_embd.weight": 0, "output_norm.weight": layers + 1, "output.weight": layers + 1}.get(name)


def _root(t: Tensor) -> Tensor:
    while (base := t.view_of) is not None:
        t = base
    return t


class _Counter:
    """Counts the work, weights and crossing bytes of each unit of a graph."""

    def __init__(self, layers: int) -> None:
        self.layers = layers
        self.unit: dict[Tensor, int] = {}  # of computed tensors
        self.nodes: list[list[Node]] = [[] for _ in range(layers + 2)]
        self.held: list[dict[Tensor, int]] = [{} for _ in range(layers + 2)]  # weights and caches, with bytes
        self.crossing: list[dict[Tensor, int]] = [{} for _ in range(layers + 2)]  # read by later units, with bytes

    def count(self, graph: Graph) -> None:
        for node in graph.nodes:
            if node.op in _VIEWS:
                continue
            sources = [(s, _root(s)) for s in node.sources]
            units = [self.unit.get(root, _unit_of(root.name, self.layers)) for _, root in sources]
            unit = max(u for u in (*units, _unit_of(node.name, self.layers), 0) if u is not None)
            self.unit[node] = unit
            if (base := _root(node)) is not node and base.op != "NONE":
                self.unit[base] = unit
            self.nodes[unit].append(_work(node))
            for source, root in sources:
                self._reads(unit, source, root)

    def _reads(self, unit: int, source: Tensor, root: Tensor) -> None:
        if root.op == "NONE" and root not in self.unit:
            if _unit_of(root.name, self.layers) is not None:
                self.held[unit][root] = root.nbytes
            return
        for behind in range(self.unit[root], unit):
            crossing = self.crossing[behind]
            crossing[root] = max(crossing.get(root, 0), _data_bytes(source))


def _model(file: LlamaFile, title: str) -> LayerModel:
    c = file.c
    with Context(usage="weights") as held, Context() as context:
        w = file.tensors(lambda _: held)
        graph = file.graph(context, w)
        counter = _Counter(c.layers)
        counter.count(graph)
        returned = graph.outputs[-1].nbytes
        scratch, sent = _scratch(graph), sum(t.nbytes for t in graph.leafs if t.name in ("ids", "positions"))
        names = ["embeddings", *(f"blk.{i}" for i in range(c.layers)), "head"]
        shared: dict[tuple[Node, ...], tuple[Node, ...]] = {}  # equal layers share one tuple
        units = []
        for k, name in enumerate(names):
            cache = sum(n for t, n in counter.held[k].items() if ".cache_" in t.name)
            nodes = tuple(counter.nodes[k])
            weights = sum(counter.held[k].values()) - cache
            carry = sum(counter.crossing[k].values())
            units.append(Unit(name, shared.setdefault(nodes, nodes), weights, cache, carry))
    return LayerModel(title, tuple(units), file.tokens, scratch, sent, returned)


def _scratch(graph: Graph) -> int:
    """Peak bytes of results if one device computes the whole graph."""
    with Backend("SIM:name=all") as backend, Scheduler([backend]) as scheduler:
        return scheduler.prepare(graph, allocate=False).arenas[0].peak


# -------------------------------------------------------------------------------------------------------------- drawing


@contextmanager
def drawn(
    passes: Passes, model: LayerModel, placement: Placement, cluster: Description
) -> Iterator[tuple[Plan, Picture]]:
    """The scheduler's plan of a pass, and its picture. Simulated devices without memory replace
    those of the cluster."""
    file = replace(passes.file, tokens=model.tokens)
    with ExitStack() as stack:
        names = [cluster.devices[s.device].name for s in placement.stages]
        backends = [stack.enter_context(Backend(f"SIM:name={_short(n)}")) for n in names]
        held, context = stack.enter_context(Context(usage="weights")), stack.enter_context(Context())
        graph = file.graph(context, file.tensors(lambda _: held))
        scheduler = stack.enter_context(Scheduler(backends))
        where = _homes(placement, backends)
        counter = _Counter(file.c.layers)
        counter.count(graph)
        for node, unit in counter.unit.items():
            if node.op not in _VIEWS:
                scheduler.set_backend(node, where[unit])
        plan = scheduler.prepare(graph, allocate=False)
        title = f"{model.title}: {model.tokens} token{'s' if model.tokens > 1 else ''}"
        yield plan, picture_of(plan, title)


def _homes(placement: Placement, backends: Sequence[Backend]) -> dict[int, Backend]:
    pairs: Any = zip(placement.stages, backends, strict=True)
    return {unit: backend for s, backend in pairs for unit in range(s.begin, s.end)}


def _short(name: str) -> str:
    if "," in name or "=" in name:
        raise InvalidArgumentError(f"device {name!r} cannot be drawn: its name has a separator")
    return name[:60]
