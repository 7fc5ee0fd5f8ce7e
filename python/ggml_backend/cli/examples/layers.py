"""Models as sequences of layers, for ``cluster/planning``. The graph, built from the file's
metadata, gives each layer's weights, work, and bytes sent to the next layer. No tensor gets memory.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, fields, replace
from typing import Any

from ... import gguf
from ..._base.errors import InvalidArgumentError, UnsupportedError
from ...backend.backend import Backend
from ...cluster.planning.describe import Description
from ...cluster.planning.layers import LayerModel, Node, Placement, Unit
from ...models._decoder import Inputs
from ...models.architectures import DECODERS, ENCODERS, SPEECH, architecture_of
from ...profile._pictures import Picture, picture_of
from ...sched.plan import Plan
from ...sched.scheduler import Scheduler
from ...tensor.context import Context
from ...tensor.graph import Graph
from ...tensor.tensor import Tensor
from .models import DecoderFile, Pass

__all__ = ["Passes", "drawn", "passes_of", "passes_of_file"]

_INPUTS = frozenset(field.name for field in fields(Inputs))
_VIEWS = frozenset(("NONE", "RESHAPE", "VIEW", "PERMUTE", "TRANSPOSE"))


@dataclass(frozen=True)
class Passes:
    """A model's pass of one token at the end of the cache, and its pass of a prompt that fills the
    cache."""

    step: LayerModel
    prompt: LayerModel
    file: DecoderFile


def passes_of_file(path: str, tokens: int | None, context: int | None) -> Passes:
    """The passes of a GGUF file. Reads its metadata only."""
    with gguf.open(path) as file:
        name = architecture_of(file.metadata, (*DECODERS, *ENCODERS, *SPEECH), path)
        if name not in DECODERS:
            raise UnsupportedError(f"{path}: --cluster splits language models, and {name!r} is of another kind")
        return passes_of(DecoderFile.of(file, Pass(tokens, context)), os.path.basename(path))


def passes_of(file: DecoderFile, title: str) -> Passes:
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
    sources, size = t.sources, t.size
    flops, nbytes = float(size), _data_bytes(t)
    read = [_data_bytes(s) for s in sources]
    if t.op == "SET_ROWS":  # writes as many bytes of the table as there are rows
        rows, flops = sources[0], float(sources[0].size)
        nbytes, read[2] = t.dtype.row_nbytes(rows.shape[-1]) * (rows.size // rows.shape[-1]), 0
    elif t.op == "GET_ROWS":  # reads as many bytes of the table as the result holds
        read[0] = sources[0].dtype.row_nbytes(t.shape[-1]) * (size // t.shape[-1])
    elif t.op == "MUL_MAT":
        flops = 2.0 * size * sources[0].ne[0]
    elif t.op == "MUL_MAT_EXPERTS":  # reads at most one matrix for each id
        experts, _, ids = sources
        flops = 2.0 * size * experts.ne[0]
        read[0] = min(read[0], ids.size * (read[0] // experts.shape[0]))
    elif t.op == "FLASH_ATTN_EXT":
        flops = 2.0 * (size + sources[0].size) * sources[1].ne[1]
    return Node(sources[0].dtype.name if sources else t.dtype.name, float(nbytes + sum(read)), flops)


def _unit_of(name: str, layers: int) -> int | None:
    """The unit of a weight or a named node: 0 for the embeddings, then the layers, then the head. None for other
    names."""
    found = re.match(r"blk\.(\d+)\.", name)
    if found:
        return int(found[1]) + 1
    return 0 if name.startswith("token_embd.") else layers + 1 if name.startswith("output") else None


def _root(t: Tensor) -> Tensor:
    while (base := t.view_of) is not None:
        t = base
    return t


class _Counter:
    """Counts the work, weights and crossing bytes of each unit of a graph.

    Rank 0 sends the inputs of a pass to the first unit. They go on to the last unit that reads them, as results do.
    """

    def __init__(self, layers: int) -> None:
        self.layers = layers
        self.unit: dict[Tensor, int] = {}  # of inputs and computed tensors
        self.nodes: list[list[Node]] = [[] for _ in range(layers + 2)]
        self.held: list[dict[Tensor, int]] = [{} for _ in range(layers + 2)]  # weights and caches, with bytes
        self.crossing: list[dict[Tensor, int]] = [{} for _ in range(layers + 2)]  # read by later units, with bytes

    def count(self, graph: Graph) -> None:
        self.unit.update((leaf, 0) for leaf in _inputs(graph))
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
        if root not in self.unit:  # a weight or a cache
            self.held[unit][root] = root.nbytes
            return
        for behind in range(self.unit[root], unit):
            crossing = self.crossing[behind]
            crossing[root] = max(crossing.get(root, 0), _data_bytes(source))


def _inputs(graph: Graph) -> list[Tensor]:
    return [leaf for leaf in graph.leafs if leaf.name in _INPUTS]


def _model(file: DecoderFile, title: str) -> LayerModel:
    layers = file.s.layers
    with Context(usage="weights") as held, Context() as context:
        graph = file.graph(context, *file.tensors(lambda _: held))
        counter = _Counter(layers)
        counter.count(graph)
        returned, sent = graph.outputs[-1].nbytes, sum(t.nbytes for t in _inputs(graph))
        scratch = _scratch(graph) + sent
        names = ["embeddings", *(f"blk.{i}" for i in range(layers)), "head"]
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
        graph = file.graph(context, *file.tensors(lambda _: held))
        scheduler = stack.enter_context(Scheduler(backends))
        where = _homes(placement, backends)
        counter = _Counter(file.s.layers)
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
