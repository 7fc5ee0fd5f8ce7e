"""A description of a cluster that need not exist: hosts, devices, memory and links.

``Description.read("cluster.toml")`` reads a file. An error names the wrong key. A file::

    [devices.server]                # a kind of device
    memory = "64 GiB"
    bandwidth = "200 GB/s"          # of reading weights
    flops = "2 TFLOP/s"
    launch = "5 us"                 # of each node; default 0
    types.q4_k.bandwidth = "150 GB/s"    # for weights of one type; also flops

    [[hosts]]
    name = "a"
    count = 8                       # a1 to a8; default: one host, a
    devices = ["server"]
    inside = { latency = "10 us", bandwidth = "20 GB/s" }   # between devices of a host, required if it has several

    [[links]]                       # the first link whose patterns match two hosts counts, in either order
    between = ["*", "*"]
    latency = "5 us"                # one way
    bandwidth = "25 GB/s"
    loss = 0.001                    # share of lost packets, at most 0.5; default 0
    retransmit = "200 ms"           # time of each loss, required if there is loss

Optional keys are ``rank0 = "a1"``, the host of rank 0 (default: the first), and ``issue = "10 us"``,
the time of rank 0 to start one split. JSON with the same keys is also accepted.
"""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from fnmatch import fnmatchcase
from functools import cached_property
from typing import Any

from ..._base.errors import FileError, InvalidArgumentError, UnsupportedError, expect_int, expect_path
from ..._base.errors.messages import close_matches
from ..._base.files import read_text, write_text
from ..._base.text import line
from ...dtypes import dtypes
from ...sched._costs import CopyCost, Costs, DeviceCosts, OpCost

__all__ = ["PACKET", "Description", "Device", "DeviceKind", "Link", "Rates", "devices_of"]

PACKET = 1448  # bytes of a message in one packet: Ethernet's 1500 less the headers of TCP
_MAX_DEVICES = 1024

_BYTES = {
    "B": 1.0, "kB": 1e3, "KB": 1e3, "MB": 1e6, "GB": 1e9, "TB": 1e12,
    "KiB": 2.0**10, "MiB": 2.0**20, "GiB": 2.0**30, "TiB": 2.0**40,
}  # fmt: skip
_BITS = {"bit": 0.125, "kbit": 125.0, "Mbit": 125e3, "Gbit": 125e6, "Tbit": 125e9}
_UNITS = {
    "memory": _BYTES,
    "time": {"ns": 1e-9, "us": 1e-6, "ms": 1e-3, "s": 1.0},
    "bandwidth": {f"{unit}/s": factor for unit, factor in {**_BYTES, **_BITS}.items()},
    "flops": {"FLOP/s": 1.0, "MFLOP/s": 1e6, "GFLOP/s": 1e9, "TFLOP/s": 1e12, "PFLOP/s": 1e15},
}  # fmt: skip
_EXAMPLES = {"memory": "24 GiB", "time": "5 us", "bandwidth": "25 GB/s", "flops": "2 TFLOP/s"}


@dataclass(frozen=True)
class Rates:
    """Work that a device does in a second."""

    bandwidth: float  #: bytes read and written
    flops: float  #: floating-point operations


@dataclass(frozen=True)
class DeviceKind:
    """A kind of device."""

    name: str
    memory: int  #: bytes
    rates: Rates
    launch: float = 0.0  #: extra seconds of each node
    types: Mapping[str, Rates] = field(default_factory=dict)  #: rates of nodes by type of the first source

    def seconds(self, dtype: str, nbytes: float, flops: float) -> float:
        """Seconds of one node: its launch, plus the longer of its memory traffic and its
        arithmetic."""
        rates = self.types.get(dtype, self.rates)
        return self.launch + max(nbytes / rates.bandwidth, flops / rates.flops)


@dataclass(frozen=True)
class Link:
    """One direction of a connection."""

    latency: float  #: seconds, one way
    bandwidth: float  #: bytes a second
    loss: float = 0.0  #: share of lost packets
    retransmit: float = 0.0  #: seconds until a lost packet is sent again

    def busy(self, nbytes: int) -> float:
        """Seconds for which a message occupies the link."""
        return nbytes / self.bandwidth

    def rounds(self, nbytes: int) -> float:
        """Expected number of retransmission rounds of a message. It needs ``r`` or more if one of
        its packets is lost ``r`` times."""
        packets, total, missing = max(1, math.ceil(nbytes / PACKET)), 0.0, self.loss
        while missing > 0 and (part := -math.expm1(packets * math.log1p(-missing))) > 1e-12:
            total += part
            missing *= self.loss
        return total

    def seconds(self, nbytes: int) -> float:
        """Expected seconds from the start of a message to its complete arrival."""
        return self.latency + self.busy(nbytes) + self.retransmit * self.rounds(nbytes)


NO_LINK = Link(0.0, math.inf)
"""The link within one process."""


@dataclass(frozen=True)
class Device:
    """One device of a described cluster."""

    name: str
    host: str
    kind: DeviceKind


@dataclass(frozen=True)
class Description:
    """A described cluster. :meth:`read` reads a file. ``link`` and ``costs`` serve the planner."""

    devices: tuple[Device, ...]
    rank0: str  #: the host of rank 0
    issue: float  #: seconds that rank 0 takes to start one split
    _inside: Mapping[str, Link] = field(repr=False)
    _between: Mapping[tuple[str, str], Link] = field(repr=False)

    @classmethod
    def read(cls, path: str | os.PathLike[str]) -> Description:
        """Reads a TOML file, or a JSON file if its name ends in .json. docs/howto/plan-cluster.md
        has the keys. Raises :class:`FileError` with the key of an error."""
        expect_path(path, "Description.read: path")
        text = read_text(path)
        shown = line(os.fsdecode(path))
        return _Reader(shown, "", _parsed(shown, text)).description()

    def write(self, path: str | os.PathLike[str]) -> None:
        """Writes a file for :meth:`read`: TOML, or JSON if its name ends in .json."""
        expect_path(path, "Description.write: path")
        is_json = os.fsdecode(path).lower().endswith(".json")
        write_text(path, json.dumps(_tables_of(self), indent=2) + "\n" if is_json else _toml_of(self))

    @cached_property
    def alike(self) -> bool:
        """True if all devices are of one kind and all links between them are equal."""
        links = {self._link(a, b) for a, b in self._pairs()}
        return len({d.kind.name for d in self.devices}) == 1 and len(links) <= 1

    def _pairs(self) -> Iterator[tuple[int, int]]:
        n = len(self.devices)
        return ((a, b) for a in range(n) for b in range(n) if a != b)

    def link(self, source: int, target: int) -> Link:
        """The link between two devices, by their indices in ``devices``."""
        self._expect_place(source, "Description.link: source")
        self._expect_place(target, "Description.link: target")
        return self._link(source, target)

    def _link(self, source: int, target: int) -> Link:
        return self._between_hosts(self.devices[source].host, self.devices[target].host)

    def from_rank0(self, device: int) -> Link:
        """The link from rank 0 to a device. The reverse link is equal."""
        self._expect_place(device, "Description.from_rank0: device")
        return self._between_hosts(self.rank0, self.devices[device].host)

    def _expect_place(self, place: int, what: str) -> None:
        n = len(self.devices)
        if not 0 <= expect_int(place, what) < n:
            raise InvalidArgumentError(f"{what} must be the index of a device, 0 to {n - 1}, not {place}")

    def _between_hosts(self, a: str, b: str) -> Link:
        return self._inside.get(a, NO_LINK) if a == b else self._between[a, b]

    def costs(self, message: int = 32 << 10) -> Costs:
        """Costs for ``Scheduler(policy="cost")`` with one backend for each device, in this order.

        message: bytes of a typical message, for the cost of losses
        """
        if expect_int(message, "Description.costs: message") < 0:
            raise InvalidArgumentError(f"Description.costs: message must be bytes, 0 or more, not {message}")

        def copy(link: Link) -> CopyCost:
            waits = link.latency + link.retransmit * link.rounds(message)
            return CopyCost(waits * 1e6, link.bandwidth / 1e6)

        found = []
        for k, device in enumerate(self.devices):
            kind = device.kind
            entries = [(None, kind.rates), *kind.types.items()]
            ops = [OpCost("any", t, kind.launch * 1e6, r.bandwidth / 1e6, r.flops / 1e6) for t, r in entries]
            found.append(DeviceCosts(tuple(ops), copy(self.from_rank0(k)), copy(self.from_rank0(k))))
        copies = {(a, b): copy(self._link(a, b)) for a, b in self._pairs()}
        return Costs(found, copies, split_us=self.issue * 1e6)


# ------------------------------------------------------------------------------------------------------------- writing


def _quantity(value: float, what: str) -> str:
    """A value with the largest unit that gives at least one digit before the point."""
    units = {"memory": ("B", "KiB", "MiB", "GiB"), "bandwidth": ("B/s", "kB/s", "MB/s", "GB/s")}.get(what, _UNITS[what])
    fitting = [u for u in units if value >= _UNITS[what][u]] or [next(iter(units))]
    unit = max(fitting, key=_UNITS[what].__getitem__)
    return f"{value / _UNITS[what][unit]:.{12 if what == 'memory' else 6}g} {unit}"


def _link_table(link: Link) -> dict[str, Any]:
    found: dict[str, Any] = {
        "latency": _quantity(link.latency, "time"), "bandwidth": _quantity(link.bandwidth, "bandwidth")
    }  # fmt: skip
    if link.loss:
        found |= {"loss": float(f"{link.loss:.6g}"), "retransmit": _quantity(link.retransmit, "time")}
    return found


def _rates_table(rates: Rates) -> dict[str, Any]:
    return {"bandwidth": _quantity(rates.bandwidth, "bandwidth"), "flops": _quantity(rates.flops, "flops")}


def _tables_of(d: Description) -> dict[str, Any]:
    """The tables of a file: one for each host, and a link for each pair."""
    kinds = {
        kind.name: {
            "memory": _quantity(kind.memory, "memory"), **_rates_table(kind.rates),
            "launch": _quantity(kind.launch, "time"),
            "types": {dtype: _rates_table(rates) for dtype, rates in kind.types.items()},
        }
        for kind in (device.kind for device in d.devices)
    }  # fmt: skip
    hosts: dict[str, dict[str, Any]] = {}
    for device in d.devices:
        hosts.setdefault(device.host, {"name": device.host, "devices": []})["devices"].append(device.kind.name)
    for name, host in hosts.items():
        if name in d._inside:
            host["inside"] = _link_table(d._inside[name])
    links = [{"between": [a, b], **_link_table(link)} for (a, b), link in d._between.items() if a < b]
    issue = _quantity(d.issue, "time")
    return {"rank0": d.rank0, "issue": issue, "devices": kinds, "hosts": list(hosts.values()), "links": links}


def _toml_value(value: Any) -> str:
    if isinstance(value, dict):
        return f"{{ {', '.join(_toml_keys(value))} }}" if value else "{}"
    return json.dumps(value)


def _toml_keys(table: Mapping[str, Any]) -> list[str]:
    return [f"{key} = {_toml_value(value)}" for key, value in table.items()]


def _toml_of(d: Description) -> str:
    tables = _tables_of(d)
    lines = _toml_keys({key: tables[key] for key in ("rank0", "issue")})
    for name, kind in tables["devices"].items():
        lines += ["", f"[devices.{json.dumps(name)}]", *_toml_keys(kind)]
    for what in ("hosts", "links"):
        for table in tables[what]:
            lines += ["", f"[[{what}]]", *_toml_keys(table)]
    return "\n".join(lines) + "\n"


# ------------------------------------------------------------------------------------------------------------- reading


def _parsed(shown: str, text: str) -> Any:
    if shown.lower().endswith(".json"):
        try:
            return json.loads(text)
        except (ValueError, RecursionError) as error:
            raise FileError(f"{shown}: it is not JSON: {error}") from None
    try:
        import tomllib
    except ImportError:
        raise UnsupportedError(
            f"{shown}: TOML needs Python 3.11; JSON with the same keys, FILE.json, does not"
        ) from None
    try:
        return tomllib.loads(text)
    except (ValueError, RecursionError) as error:  # ValueError also for an integer of more than 4300 digits
        raise FileError(f"{shown}: it is not TOML: {error}") from None


class _Reader:
    """One table of a file. Keys that :meth:`take` has not taken are unknown."""

    def __init__(self, path: str, where: str, table: Any) -> None:
        self.path, self.where = path, where
        if not isinstance(table, dict):
            raise self.error("", "must be a table of keys")
        self.left: dict[str, Any] = dict(table)
        self.known: list[str] = []

    def error(self, key: str, what: str) -> FileError:
        place = ".".join(filter(None, (self.where, key)))
        return FileError(f"{self.path}: {line(place)}: {what}" if place else f"{self.path}: {what}")

    def take(self, key: str, needed: bool = True) -> Any:
        self.known.append(key)
        if needed and key not in self.left:
            raise self.error("", f"has no {key!r}") if self.where else self.error(key, "is missing")
        if key in self.left and self.left[key] is None:
            raise self.error(key, "must not be null")
        return self.left.pop(key, None)

    def end(self) -> None:
        for key in self.left:
            raise self.error(key, f"unknown key; known are {', '.join(self.known)}" + close_matches(key, self.known))

    def inner(self, key: str, value: Any) -> _Reader:
        return _Reader(self.path, ".".join(filter(None, (self.where, key))), value)

    def text(self, key: str, needed: bool = True) -> str | None:
        value = self.take(key, needed)
        if value is not None and (not isinstance(value, str) or not value):
            raise self.error(key, f"must be a text, not {value!r:.60}")
        return value

    def quantity(self, key: str, what: str, default: float | None = None, zero: bool = False) -> float:
        """A number with a unit, as bytes, seconds, bytes a second or operations a second."""
        value = self.take(key, default is None)
        if value is None:
            assert default is not None
            return default
        units = _UNITS[what]
        how = f"write a number and one of {', '.join(units)}, as in {_EXAMPLES[what]!r}"
        parts = (
            re.fullmatch(r"\s*([-+]?[0-9.]+(?:[eE][-+]?[0-9]+)?)\s*([A-Za-z/]*)\s*", value)
            if isinstance(value, str)
            else None
        )
        if parts is None:
            raise self.error(key, f"{value!r:.60} is no {what}: {how}")
        if parts[2] not in units:
            raise self.error(key, f"{value!r:.60} is no {what}: {how}")
        try:
            found = float(Decimal(parts[1]) * Decimal(repr(units[parts[2]])))
        except ArithmeticError:
            raise self.error(key, f"{value!r:.60} is no {what}: {how}") from None
        if not (found >= 0 if zero else found > 0) or found > 1e24:
            raise self.error(key, f"{value!r:.60} must be {'0 or more' if zero else 'more than 0'}, and finite")
        return found

    def tables(self, key: str) -> list[_Reader]:
        value = self.take(key)
        if not isinstance(value, list) or not value:
            raise self.error(key, f"must be tables, [[{key}]]")
        return [self.inner(f"{key}[{i}]", v) for i, v in enumerate(value)]

    # ------------------------------------------------------------------------------------------------------- the parts

    def description(self) -> Description:
        kinds_table = self.inner("devices", self.take("devices"))
        kinds = {name: kinds_table.inner(name, table).kind(name) for name, table in kinds_table.left.items()}
        if not kinds:
            raise self.error("devices", "has no kinds of devices: add [devices.NAME]")
        hosts: dict[str, list[str]] = {}
        inside: dict[str, Link] = {}
        for reader in self.tables("hosts"):
            reader.host(kinds, hosts, inside)
        devices = [d for host, given in hosts.items() for d in devices_of(host, [kinds[k] for k in given])]
        if len(devices) > _MAX_DEVICES:
            raise self.error("hosts", f"{len(devices)} devices are more than {_MAX_DEVICES}")
        between = self._links(list(hosts))
        rank0 = self.text("rank0", needed=False) or next(iter(hosts))
        if rank0 not in hosts:
            raise self.error("rank0", f"there is no host {rank0!r}{close_matches(rank0, hosts)}")
        issue = self.quantity("issue", "time", 10e-6, zero=True)
        self.end()
        return Description(tuple(devices), rank0, issue, inside, between)

    def kind(self, name: str) -> DeviceKind:
        memory = round(self.quantity("memory", "memory"))
        if memory < 1:
            raise self.error("memory", "is less than a byte")
        rates = Rates(self.quantity("bandwidth", "bandwidth"), self.quantity("flops", "flops"))
        launch = self.quantity("launch", "time", 0.0, zero=True)
        given, types = self.take("types", needed=False), {}
        table = self.inner("types", {} if given is None else given)
        for dtype in table.left:
            if dtype not in dtypes:
                raise table.error(dtype, f"there is no such type{close_matches(dtype, dtypes)}")
            reader = table.inner(dtype, table.left[dtype])
            types[dtypes[dtype].name] = Rates(
                reader.quantity("bandwidth", "bandwidth", rates.bandwidth),
                reader.quantity("flops", "flops", rates.flops),
            )
            reader.end()
        self.end()
        return DeviceKind(name, memory, rates, launch, types)

    def host(self, kinds: Mapping[str, DeviceKind], hosts: dict[str, list[str]], inside: dict[str, Link]) -> None:
        name, count = self.text("name"), self.take("count", needed=False)
        assert name is not None
        if count is not None and (
            isinstance(count, bool) or not isinstance(count, int) or not 1 <= count <= _MAX_DEVICES
        ):
            raise self.error("count", f"must be a number from 1 to {_MAX_DEVICES}, not {count!r:.60}")
        given = self.take("devices")
        if not isinstance(given, list) or not given:
            raise self.error("devices", "must be a list of kinds of devices, as in ['server']")
        for kind in given:
            if not isinstance(kind, str) or kind not in kinds:
                near = close_matches(kind, kinds) if isinstance(kind, str) else ""
                raise self.error("devices", f"there is no [devices.{line(kind, 60)}]{near}")
        value = self.take("inside", needed=False)
        link = None if value is None else self.inner("inside", value).link()
        if link is None and len(given) > 1:
            raise self.error("", "has several devices, so it needs 'inside', the link between them")
        self.end()
        for called in [name] if count is None else [f"{name}{i}" for i in range(1, count + 1)]:
            if called in hosts:
                raise self.error("name", f"two hosts are named {called!r}")
            hosts[called] = given
            if link is not None:
                inside[called] = link

    def link(self) -> Link:
        """Reads the keys of a link."""
        latency, bandwidth = self.quantity("latency", "time", zero=True), self.quantity("bandwidth", "bandwidth")
        loss = self.take("loss", needed=False)
        if loss is not None and (isinstance(loss, bool) or not isinstance(loss, (int, float)) or not 0 <= loss <= 0.5):
            raise self.error("loss", f"must be the share of lost packets, 0 to 0.5, not {loss!r:.60}")
        retransmit = self.quantity("retransmit", "time", None if loss else 0.0)
        self.end()
        return Link(latency, bandwidth, float(loss or 0), retransmit)

    def _links(self, hosts: Sequence[str]) -> dict[tuple[str, str], Link]:
        if len(hosts) == 1 and "links" not in self.left:
            return {}
        rows = []
        for reader in self.tables("links"):
            pair = reader.take("between")
            if not isinstance(pair, list) or len(pair) != 2 or not all(isinstance(p, str) for p in pair):
                raise reader.error("between", "must be two names of hosts, or patterns of names, as in ['a*', 'b*']")
            for pattern in pair:
                if not any(fnmatchcase(h, pattern) for h in hosts):
                    raise reader.error("between", f"no host is called {pattern!r}{close_matches(pattern, hosts)}")
            rows.append((*pair, reader.link()))
        found: dict[tuple[str, str], Link] = {}
        for a, b in ((a, b) for a in hosts for b in hosts if a < b):
            link = next((k for p, q, k in rows if _fits(a, b, p, q)), None)
            if link is None:
                raise self.error("links", f"{a!r} and {b!r} have no link: add one with between = [{a!r}, {b!r}]")
            found[a, b] = found[b, a] = link
        return found


def _fits(a: str, b: str, p: str, q: str) -> bool:
    return (fnmatchcase(a, p) and fnmatchcase(b, q)) or (fnmatchcase(a, q) and fnmatchcase(b, p))


def devices_of(host: str, kinds: Sequence[DeviceKind]) -> Iterator[Device]:
    """The devices of a host: ``a1:gpu``, or ``a1:gpu.0`` and ``a1:gpu.1``."""
    names = [k.name for k in kinds]
    for i, kind in enumerate(kinds):
        number = f".{names[:i].count(kind.name)}" if names.count(kind.name) > 1 else ""
        yield Device(f"{host}:{kind.name}{number}", host, kind)
