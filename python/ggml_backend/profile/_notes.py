"""Notes about nodes for pictures: sources, readers, and the reason for the backend."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .._base.errors import StateError
from ..backend.buffer import text
from ..sched.plan import computes
from ..tensor.graph import Graph
from ..tensor.tensor import Tensor
from ._pictures.data import Note

__all__ = ["read_notes"]


def _root(tensor: Any) -> Any:
    """The tensor that owns the memory of a tensor. For a tensor that is no view: itself."""
    while tensor.view_src:
        tensor = tensor.view_src
    return tensor


def read_notes(graph: Graph, explain: Callable[[Tensor], str]) -> dict[int, Note]:
    """Notes by index of the node; empty for a closed graph."""
    try:
        tensors, core = graph.nodes, graph._live()
    except StateError:
        return {}
    nodes = core.ptr.nodes[0 : core.ptr.n_nodes]
    sources: list[dict[str, None]] = [{} for _ in nodes]
    readers: dict[Any, dict[str, None]] = {}
    for i, node in enumerate(nodes):
        if computes(node):
            for root in (_root(s) for s in node.src if s):
                sources[i][text(root.name)] = None
                readers.setdefault(root, {})[text(node.name)] = None
    found = {}
    for i, node in enumerate(nodes):
        if computes(node):
            try:
                reason = explain(tensors[i])
            except StateError:  # the scheduler is closed
                reason = ""
            found[i] = Note(tuple(sources[i]), tuple(readers.get(_root(node), ())), reason)
    return found
