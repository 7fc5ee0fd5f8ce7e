"""Describes a running cluster from the costs that :meth:`Cluster.calibrate` measured."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Sequence
from typing import Any

from ..._base.errors import InvalidArgumentError, expect, expect_list
from ...backend.backend import Backend
from ...sched._costs import CopyCost, Costs, DeviceCosts
from .._links import Measured
from .describe import Description, DeviceKind, Link, Rates, devices_of

__all__ = ["described"]


def described(backends: Sequence[Backend], costs: Costs, home: dict[str, Any]) -> Description:
    """Implements :meth:`Cluster.describe`. home: the facts of rank 0, the host of backends of this
    process"""
    given = expect_list(backends, "Cluster.describe: backends", "backends")
    expect(costs, Costs, "Cluster.describe: costs")
    if not given or len(given) != len(costs.devices):
        raise InvalidArgumentError(
            f"Cluster.describe: {len(given)} backends do not match costs of {len(costs.devices)} devices"
        )
    facts: dict[str, dict[str, Any]] = {}
    host_of = []
    for backend in given:
        expect(backend, Backend, "Cluster.describe: each backend")
        device = backend.device
        peer = device.peer if isinstance(device, Measured) else None
        name = f"rank{peer.number if peer else 0}"
        facts.setdefault(name, peer.facts if peer else home)
        host_of.append(name)
    on_host = Counter(f.get("host") for f in facts.values())
    kinds: dict[tuple[Any, ...], DeviceKind] = {}
    of_host: dict[str, list[DeviceKind]] = {name: [] for name in facts}
    for name, device_costs in zip(host_of, costs.devices, strict=True):
        memory = int(facts[name].get("memory", 0)) // on_host[facts[name].get("host")] // host_of.count(name)
        key = (memory, device_costs.ops)
        kinds.setdefault(key, _kind_of(f"kind{len(kinds) + 1}", memory, device_costs))
        of_host[name].append(kinds[key])
    between: dict[tuple[str, str], Link] = {}
    inside: dict[str, Link] = {}
    for a, b in itertools.combinations(range(len(given)), 2):
        link = _slower(costs.copy(a, b), costs.copy(b, a))
        p, q = host_of[a], host_of[b]
        if p == q:
            inside[p] = link
        else:
            between[p, q] = between[q, p] = link
    devices = [d for name, found in of_host.items() for d in devices_of(name, found)]
    return Description(tuple(devices), "rank0" if "rank0" in facts else host_of[0], 10e-6, inside, between)


def _slower(a: CopyCost, b: CopyCost) -> Link:
    return Link(max(a.launch_us, b.launch_us) / 1e6, min(a.bytes_per_us, b.bytes_per_us) * 1e6)


def _kind_of(name: str, memory: int, costs: DeviceCosts) -> DeviceKind:
    """A kind of device with the rates of products, which take most of the time of a model."""
    plain = {op.dtype: op for op in costs.ops if op.op_class == "matmul"}
    base = plain.get("float32") or costs.ops[0]
    rates = {
        t: Rates(op.bytes_per_us * 1e6, op.flops_per_us * 1e6) for t, op in plain.items() if t not in (None, base.dtype)
    }
    return DeviceKind(
        name, memory, Rates(base.bytes_per_us * 1e6, base.flops_per_us * 1e6), base.launch_us / 1e6,
        {str(t): r for t, r in rates.items()},
    )  # fmt: skip
