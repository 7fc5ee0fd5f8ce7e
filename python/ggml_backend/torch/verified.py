"""Programs beside PyTorch, value by value: :func:`verify`."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from numbers import Real
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import nn

from .._base.text import count
from ..backend import Backend
from ..backend._priority import backends_of
from ..errors import InvalidArgumentError
from ..profile import ProfileStep
from ..program.formats import Formats, check_formats, chosen_formats
from ..program.program import Engine, Step
from ..tensor import Tensor
from ._exported import Exported, export
from ._operators import check_precision
from .compiled import Policy, _example
from .packed import Precision

__all__ = ["Comparison", "Verification", "verify"]

Array = np.ndarray[Any, Any]

_VIEWS = ("RESHAPE", "VIEW", "PERMUTE", "TRANSPOSE")
_LISTED = 20  # values of a report
_NUMBERS: Any = Real  # of NumPy, too


class Comparison(NamedTuple):
    """A value of a program beside that of PyTorch.

    module, operator: what computes the value in PyTorch
    device: where the program computed it; ``""`` for a part of a split, of which a device reports no details
    fusion: which operators the device computed in one step, as in a profile; ``""``: one operator
    difference: the largest one, relative to PyTorch's largest finite magnitude. Infinite if one of the two is NaN or
        infinite where the other is not.
    """

    module: str
    operator: str
    device: str
    fusion: str
    difference: float

    def __str__(self) -> str:
        fused = f", fused: {self.fusion}" if self.fusion else ""
        return (
            f"{self.module or 'the model'}/{self.operator} ({self.device or 'unknown'}{fused}): {self.difference:.2g}"
        )


class Verification(NamedTuple):
    """What :func:`verify` has found. ``str()`` is a report.

    values: in the order of computation
    """

    values: list[Comparison]
    tolerance: float

    @property
    def failed(self) -> list[Comparison]:
        """The values that differ by more than the tolerance. The first one is the cause of the others, or near it."""
        return [value for value in self.values if not value.difference <= self.tolerance]

    @property
    def fusions(self) -> dict[str, int]:
        """How many of the values each fusion computed."""
        return dict(Counter(value.fusion for value in self.values if value.fusion))

    def __str__(self) -> str:
        largest = max((value.difference for value in self.values), default=0.0)
        compared, failed = count(len(self.values), "value"), self.failed
        lines = [f"{compared} compared with PyTorch; the largest difference is {largest:.2g}"]
        lines.append("fused: " + (", ".join(f"{n} {name}" for name, n in self.fusions.items()) or "nothing"))
        if failed:
            differ = count(len(failed), "value differs", "values differ")
            lines.append(f"{differ} by more than {self.tolerance:g}. In the order of computation:")
            lines += [f"  {value}" for value in failed[:_LISTED]]
        if len(failed) > _LISTED:
            lines.append(f"  and {len(failed) - _LISTED} more")
        return "\n".join(lines)


def verify(
    model: nn.Module,
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    weights: Formats = None,
    devices: Sequence[str | Backend] = ("CPU",),
    precision: Precision = "default",
    policy: Policy = "weights",
    tolerance: float = 1e-4,
) -> Verification:
    """Compares a program with PyTorch, value by value, to find where an answer becomes wrong::

        print(gbt.verify(model, (x,)))

    The program computes what :func:`compile` makes for these inputs, with the same fusions. Every value that it stores
    and the model has is compared: results of single operators and of fused ones. PyTorch computes the exported model
    operator by operator. Batch norms and padding are folded into convolutions in the program only.

    Both keep all their values in memory. Buffers that the model changes begin with the values of the model.

    tolerance: the largest relative difference that the report accepts. Quantized weights differ by more than 1e-4.

    The other parameters and the errors are those of :func:`compile`. On devices that record whole splits in a profile,
    only the last value of a split and the results of the model are compared.
    """
    check_precision(precision, "verify")
    accepted = _tolerance(tolerance)
    call = _example(model, args, kwargs, "verify")
    exported = export(model, call.args, call.kwargs, "verify")
    check_formats(weights, exported.network, "verify")
    plain = replace(exported, network=exported.network.at({}))  # Engine.step changes the other one
    engine = Engine(backends_of(devices, torch.get_num_threads()), {}, precision=precision, policy=policy)
    engine.weights.formats.update(chosen_formats(weights, exported.network))
    engine.add_states(exported.initial)
    given = {name: a for name, a in zip(exported.leaves, call.arrays(), strict=True) if name is not None}

    step = engine.step(exported.network, "verify", exported.compute)
    _, profiled = _run(engine, step, given)
    stored = _stored(step, profiled)
    engine.reset()
    network = exported.network.at({})
    network.outputs += [name for name in stored if name not in network.outputs]
    step = engine.step(network, "verify", exported.compute)
    ours, profiled = _run(engine, step, given)

    theirs = _reference(plain, {**exported.initial, **given})
    steps = {tensor: one for one, tensors in _tensors(step, profiled) for tensor in tensors}
    found = []
    for node in network.nodes:
        for name in node.results:
            if name in ours and name in theirs:
                tensor = step.values[name].tensor
                by = None if tensor is None else steps.get(_computed(tensor))
                device, fusion = ("", "") if by is None else (by.device, by.fusion)
                difference = _difference(ours[name], theirs[name])
                found.append(Comparison(node.module, node.op, device, fusion, difference))
    return Verification(found, accepted)


def _tolerance(tolerance: Any) -> float:
    """Any real number of at least 0, as a float."""
    with contextlib.suppress(OverflowError):
        if isinstance(tolerance, _NUMBERS) and float(tolerance) >= 0 and not isinstance(tolerance, bool):
            return float(tolerance)
    raise InvalidArgumentError(f"verify: tolerance must be a number of at least 0, not {tolerance!r}")


def _run(engine: Engine, step: Step, given: Mapping[str, Array]) -> tuple[dict[str, Array], tuple[ProfileStep, ...]]:
    """The outputs, and the steps of the run. Their names of nodes are positions in the graph."""
    for i, node in enumerate(step.graph.nodes if step.graph is not None else ()):
        node.name = str(i)
    with engine.scheduler.profile() as profile:
        found = engine.run(step, given)
    return found, profile.steps


def _computed(tensor: Tensor) -> Tensor:
    """The tensor whose elements a view shows."""
    while tensor.op in _VIEWS:
        tensor = tensor.sources[0]
    return tensor


def _tensors(step: Step, profiled: Sequence[ProfileStep]) -> Iterator[tuple[ProfileStep, list[Tensor]]]:
    """The nodes of each step that a device has recorded, as far as they are known."""
    nodes = {node.name: node for node in step.graph.nodes} if step.graph is not None else {}
    for one in profiled:
        yield one, [nodes[name] for name in one.names if name in nodes]


def _stored(step: Step, profiled: Sequence[ProfileStep]) -> list[str]:
    """The values of the network that are in memory after a step: those that another step reads, or the caller."""
    if step.graph is None:
        return []
    within = {tensor: i for i, (_, tensors) in enumerate(_tensors(step, profiled)) for tensor in tensors}
    read: dict[Tensor, set[int | None]] = {}  # the steps that read a tensor
    for tensor in step.graph.nodes:
        if tensor.op not in _VIEWS:
            for source in map(_computed, tensor.sources):
                read.setdefault(source, set()).add(within.get(tensor))
    names: dict[Tensor, str] = {}
    for name in (name for node in step.network.nodes for name in node.results):
        value = step.values.get(name)
        if value is not None and value.tensor is not None:
            made = _computed(value.tensor)
            if made in within and read.get(made) != {within[made]}:
                names.setdefault(made, name)
    return [*names.values()]


def _reference(exported: Exported, values: dict[str, Array]) -> dict[str, Array]:
    """All values of the network, as PyTorch computes them."""
    values.update(exported.network.arrays)
    for node in exported.network.nodes:
        values.update(zip(node.results, exported.compute(node, values), strict=True))
    return values


def _difference(ours: Array, theirs: Array) -> float:
    a, b = ours.astype(np.float64), theirs.astype(np.float64).reshape(ours.shape)
    finite = np.isfinite(a) & np.isfinite(b)
    if not np.array_equal(a[~finite], b[~finite], equal_nan=True):
        return np.inf
    a, b = a[finite], b[finite]
    largest = np.abs(b).max(initial=0.0)
    return float(np.abs(a - b).max(initial=0.0) / (largest or 1.0))
