"""Descriptions of clusters: their fields, and the error for each mistake."""

from __future__ import annotations

import math
import sys
from pathlib import Path
from typing import Any

import pytest

import ggml_backend as gb
from damage import replaced
from described import LINK, description, table
from ggml_backend.cluster import Description
from ggml_backend.cluster.planning.describe import Link
from source_tree import in_tree

FULL = """
rank0 = "b"
issue = "20 us"

[devices.server]
memory = "64 GiB"
bandwidth = "200 GB/s"
flops = "2 TFLOP/s"
launch = "3 us"
types.q4_k.bandwidth = "150 GB/s"

[devices.gpu]
memory = "24GB"
bandwidth = "0.9 TB/s"
flops = "60 TFLOP/s"

[[hosts]]
name = "a"
count = 2
devices = ["server"]

[[hosts]]
name = "b"
devices = ["gpu", "gpu", "server"]
inside = { latency = "10 us", bandwidth = "20 GB/s" }

[[links]]
between = ["b", "a1"]
latency = "40 ms"
bandwidth = "160 Mbit/s"
loss = 0.001
retransmit = "200 ms"

[[links]]
between = ["*", "*"]
latency = "5 us"
bandwidth = "25 GB/s"
"""


@pytest.fixture
def full(tmp_path: Path) -> Description:
    if sys.version_info < (3, 11):
        pytest.skip("TOML needs Python 3.11")
    path = tmp_path / "cluster.toml"
    path.write_text(FULL)
    return Description.read(path)


def test_a_file_is_read_completely(full):
    assert [d.name for d in full.devices] == ["a1:server", "a2:server", "b:gpu.0", "b:gpu.1", "b:server"]
    server, gpu = full.devices[0].kind, full.devices[2].kind
    assert (server.memory, gpu.memory) == (64 * 2**30, 24 * 10**9)
    assert (server.rates.bandwidth, server.rates.flops, gpu.rates.bandwidth) == (200e9, 2e12, 0.9e12)
    assert server.launch == pytest.approx(3e-6) and gpu.launch == 0
    assert server.types["q4_k"].bandwidth == 150e9 and server.types["q4_k"].flops == 2e12
    assert full.rank0 == "b" and full.issue == pytest.approx(20e-6)
    far = Link(0.04, 20e6, 0.001, 0.2)
    assert full.link(0, 2) == full.link(2, 0) == full.from_rank0(0) == far
    assert full.link(0, 1) == full.link(1, 2) == full.from_rank0(1) == Link(5e-6, 25e9)
    assert full.link(2, 4) == full.from_rank0(3) == Link(10e-6, 20e9)


def test_a_node_takes_its_launch_and_the_longer_of_two(full):
    server = full.devices[0].kind
    assert server.seconds("f32", 200e9, 1) == pytest.approx(1 + 3e-6)
    assert server.seconds("q4_k", 150e9, 1) == pytest.approx(1 + 3e-6)
    assert server.seconds("f32", 1, 4e12) == pytest.approx(2 + 3e-6)


def test_costs_for_the_scheduler(full):
    costs = full.costs(message=1448)
    assert [len(d.ops) for d in costs.devices] == [2, 2, 1, 1, 2]
    assert costs.copy(0, 1) == gb.sched.CopyCost(pytest.approx(5), pytest.approx(25e3))
    waits = sum(0.001**r for r in range(1, 20)) * 0.2  # a packet that is lost r times in a row
    assert costs.copy(0, 2).launch_us == pytest.approx((0.04 + waits) * 1e6)
    backends = [gb.Backend(f"SIM:name=d{i}") for i in range(5)]
    gb.Scheduler(backends, policy="cost", costs=costs).close()


def test_wrong_arguments_of_a_description(tmp_path):
    described = description(tmp_path, table(3))
    for ask in (lambda: described.link(0, 3), lambda: described.link(-1, 0), lambda: described.from_rank0(99)):
        with pytest.raises(gb.errors.InvalidArgumentError, match=r"must be the index of a device, 0 to 2, not"):
            ask()
    with pytest.raises(TypeError, match=r"Description\.link: target must be an int, not str"):
        described.link(0, "b")
    with pytest.raises(TypeError, match=r"Description\.costs: message must be an int, not str"):
        described.costs("x")
    with pytest.raises(
        gb.errors.InvalidArgumentError, match=r"Description\.costs: message must be bytes, 0 or more, not -1"
    ):
        described.costs(-1)


def test_losses_on_average():
    """By hand: the probability that one of two packets is lost at least once is 1 - (1 - p)^2, and
    so on."""
    link = Link(0.0, 1e9, 0.1, 1.0)
    wanted = sum(1 - (1 - 0.1**r) ** 2 for r in range(1, 15))
    assert link.rounds(2000) == pytest.approx(wanted, rel=1e-9)
    assert Link(0.0, 1e9).rounds(10**9) == 0
    assert link.seconds(0) == pytest.approx(link.rounds(1)) and not math.isnan(link.seconds(10**12))


@pytest.mark.parametrize("name", ["again.toml", "again.JSON"])
def test_written_and_read_again(full, tmp_path, name):
    if name.endswith("toml") and sys.version_info < (3, 11):
        pytest.skip("TOML needs Python 3.11")
    again = tmp_path / name
    full.write(again)
    other = Description.read(again)
    assert [(d.name, d.host, d.kind) for d in other.devices] == [(d.name, d.host, d.kind) for d in full.devices]
    assert (other.rank0, other.issue) == (full.rank0, full.issue)
    n = range(len(full.devices))
    assert all(other.link(a, b) == full.link(a, b) for a in n for b in n if a != b)


@pytest.mark.skipif(sys.version_info < (3, 11), reason="TOML needs Python 3.11")
def test_a_description_must_be_text(tmp_path):
    path = tmp_path / "model.toml"
    path.write_bytes(b"GGUF\xac\xff")
    with pytest.raises(gb.errors.FileError, match=r"model\.toml: it is a GGUF file"):
        Description.read(path)
    path.write_bytes(b"name\xac\xff")
    with pytest.raises(gb.errors.FileError, match=r"model\.toml: it is not text: .* at byte 4"):
        Description.read(path)


def test_the_example_is_a_valid_description():
    found = Description.read(in_tree("examples/cluster/campus.toml"))
    assert len(found.devices) == 12 and found.rank0 == "room-a1"
    assert found.link(0, 8).latency == pytest.approx(200e-6) and found.link(0, 1).latency == pytest.approx(20e-6)


@pytest.mark.skipif(sys.version_info < (3, 11), reason="TOML needs Python 3.11")
def test_the_description_in_the_docs_is_valid(tmp_path):
    page = in_tree("docs/howto/plan-cluster.md").read_text(encoding="utf-8")
    (tmp_path / "c.toml").write_text(page.partition("```toml\n")[2].partition("```")[0])
    found = Description.read(tmp_path / "c.toml")
    assert (
        len(found.devices) == 10 and found.link(0, 8).loss == 0.001 and found.link(8, 9).latency == pytest.approx(1e-5)
    )


SERVER = table()["devices"]["server"]


def changed(key: str, value: Any, *, of: str = "server") -> dict[str, Any]:
    if of == "link":
        return table(links=[{**LINK, key: value}])
    if of == "host":
        return table(hosts=[{**table()["hosts"][0], key: value}])
    return table(devices={"server": {**SERVER, key: value}})


WRONG = [
    (table(device={}), "device: unknown key", "did you mean 'devices'"),
    ({k: v for k, v in table().items() if k != "hosts"}, "hosts: is missing"),
    (table(devices={}), "devices: has no kinds of devices"),
    (table(devices=3), "devices: must be a table"),
    (table(devices={"server": {"memory": "1 GiB", "flops": "1 TFLOP/s"}}), "devices.server: has no 'bandwidth'"),
    (changed("memroy", "1 GiB"), "devices.server.memroy: unknown key", "did you mean 'memory'"),
    (changed("memory", "64 GB/s"), "devices.server.memory: '64 GB/s' is no memory", "as in '24 GiB'"),
    (changed("memory", 64), "devices.server.memory: 64 is no memory"),
    (changed("memory", "64"), "devices.server.memory: '64' is no memory"),
    (changed("memory", "-1 GiB"), "devices.server.memory: '-1 GiB' must be more than 0"),
    (changed("memory", "1e-9 B"), "devices.server.memory: is less than a byte"),
    (changed("memory", "1e300 GiB"), "devices.server.memory: '1e300 GiB' must be more than 0, and finite"),
    (changed("memory", "1e999999999999 GiB"), "devices.server.memory: '1e999999999999 GiB' is no memory"),
    (changed("memory", "1.2.3 GiB"), "devices.server.memory: '1.2.3 GiB' is no memory"),
    (changed("bandwidth", "24GiB"), "devices.server.bandwidth: '24GiB' is no bandwidth", "as in '25 GB/s'"),
    (changed("bandwidth", "100 Gb/s"), "devices.server.bandwidth: '100 Gb/s' is no bandwidth"),
    (changed("bandwidth", "0 GB/s"), "devices.server.bandwidth: '0 GB/s' must be more than 0"),
    (changed("flops", "2 TFLOPS"), "devices.server.flops: '2 TFLOPS' is no flops", "'2 TFLOP/s'"),
    (changed("launch", "-5 us"), "devices.server.launch: '-5 us' must be 0 or more"),
    (changed("types", {"q4k": {}}), "devices.server.types.q4k: there is no such type"),
    (changed("types", {"q4_k": {"memory": "1 B"}}), "devices.server.types.q4_k.memory: unknown key"),
    (changed("devices", [], of="host"), "hosts[0].devices: must be a list"),
    (changed("devices", ["sever"], of="host"), "hosts[0].devices: there is no [devices.sever]", "'server'"),
    (changed("devices", ["server", "server"], of="host"), "hosts[0]: has several devices, so it needs 'inside'"),
    (changed("count", 0, of="host"), "hosts[0].count: must be a number from 1"),
    (changed("count", True, of="host"), "hosts[0].count: must be a number from 1"),
    (changed("name", "", of="host"), "hosts[0].name: must be a text"),
    (changed("inside", {"latency": "1 us"}, of="host"), "hosts[0].inside: has no 'bandwidth'"),
    (
        table(hosts=[*table()["hosts"], {"name": "a1", "devices": ["server"]}]),
        "hosts[1].name: two hosts are named 'a1'",
    ),
    (table(hosts=[]), "hosts: must be tables"),
    (table(1025), "hosts[0].count: must be a number"),
    (table(links=[{**LINK, "between": ["a1", "a3"]}]), "links[0].between: no host is called 'a3'"),
    (table(links=[{**LINK, "between": ["a1"]}]), "links[0].between: must be two names"),
    (table(3, links=[{**LINK, "between": ["a1", "*"]}]), "links: 'a2' and 'a3' have no link"),
    (table(links=[]), "links: must be tables"),
    ({k: v for k, v in table().items() if k != "links"}, "links: is missing"),
    (changed("latency", "5 GB", of="link"), "links[0].latency: '5 GB' is no time", "as in '5 us'"),
    (changed("loss", 1.5, of="link"), "links[0].loss: must be the share"),
    (changed("loss", 0.51, of="link"), "links[0].loss: must be the share of lost packets, 0 to 0.5, not 0.51"),
    (changed("loss", 0.01, of="link"), "links[0]: has no 'retransmit'"),
    (table(rank0="c"), "rank0: there is no host 'c'"),
    (table(issue="fast"), "issue: 'fast' is no time"),
]


@pytest.mark.parametrize(("data", "words"), [(w[0], w[1:]) for w in WRONG], ids=[w[1] for w in WRONG])
def test_an_error_names_the_key(tmp_path, data, words):
    with pytest.raises(gb.errors.FileError) as found:
        description(tmp_path, data)
    assert "cluster.json: " in str(found.value)
    for word in words:
        assert word in str(found.value)


@pytest.mark.parametrize("content", ["", "{", "[1, 2]", "null", "[" * 100_000, '{"devices": {"x": [[[1]]]}}'])
def test_other_json_is_refused(tmp_path, content):
    path = tmp_path / "c.json"
    path.write_text(content)
    with pytest.raises(gb.errors.FileError, match=r"c\.json"):
        Description.read(path)


@pytest.mark.parametrize("content", ["devices = [", "a = 1\na = 2", "\0"])
def test_invalid_toml_is_refused(tmp_path, content):
    path = tmp_path / "c.toml"
    path.write_text(content)
    with pytest.raises((gb.errors.FileError, gb.errors.UnsupportedError), match=r"c\.toml"):
        Description.read(path)


def test_any_value_is_accepted_or_refused(tmp_path):
    """Any value at any key is accepted or raises an error of the package."""
    values: list[Any] = [None, True, -1, 0, 1.5, "", "x", "1 GiB", "nan GB/s", "1e999 us", [], {}, [[]], ["a1", "a2"]]
    base = table(
        hosts=[
            {"name": "a", "count": 2, "devices": ["server"], "inside": {k: LINK[k] for k in ("latency", "bandwidth")}}
        ]
    )
    base["devices"]["server"]["types"] = {"q4_k": {"flops": "1 TFLOP/s"}}

    def paths(tree: Any, at: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
        items = tree.items() if isinstance(tree, dict) else enumerate(tree) if isinstance(tree, list) else ()
        return [at, *(p for k, v in items for p in paths(v, (*at, k)))]

    taken = refused = 0
    for where in paths(base):
        for value in values:
            try:
                found = description(tmp_path, replaced(base, where, value))
                assert found.devices and all(0 < d.kind.memory < 2**100 for d in found.devices)
                taken += 1
            except gb.errors.FileError:
                refused += 1
    assert taken > 5 and refused > 200
