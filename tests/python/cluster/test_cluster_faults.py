"""Ranks that die, stop answering, answer late, have another version, or send garbage. The caller
gets an error with rank and host within the deadline, and the other ranks continue.
"""

from __future__ import annotations

import itertools
import re
import socket
import struct
import threading
import time

import numpy as np
import pytest

import ggml_backend as gb
from ggml_backend._ffi import ffi, lib
from ggml_backend.cluster import LocalNetwork, Options, _started, _worker, simulated
from ggml_backend.cluster import _messages as m
from ggml_backend.cluster._memory import Compiled, Piece
from ggml_backend.cluster._messages import Kind, MessageError, What
from ggml_backend.cluster._nodes import graph_of, pack
from ggml_backend.cluster._transport import Killed
from ggml_backend.cluster._worker import Worker
from ranks import alone, compute_on, placed

pytestmark = pytest.mark.slow

HOST = socket.gethostname()
SHORT = 0.4  # seconds: the deadline of silent ranks


class Counting(LocalNetwork):
    """Calls ``what`` when ``at`` messages have been sent."""

    def __init__(self, size, at, what):
        super().__init__(size)
        self.at, self.what, self.n, self.on = at, what, 0, False

    def post(self, source, target, tag, data):
        if self.on:
            self.n += 1
            if self.n == self.at:
                self.what(self)
        super().post(source, target, tag, data)


def survivors_compute(cluster):
    """A new scheduler uses the remaining ranks."""
    devices = cluster.backends()
    assert devices
    for device in devices:
        compute_on(device)


def steps_of_a_run():
    """The number of messages that a run of the model sends."""
    network = Counting(4, 0, None)
    with simulated(4, network=network) as cluster, placed("embed", cluster.backends()) as (model, sched):
        model.run(sched, 0)
        network.on = True
        model.run(sched, 1)
        return network.n


@pytest.mark.parametrize("how", ["kill", "stop"])
def test_a_rank_is_lost_at_every_step_of_a_run(how):
    for at in range(1, steps_of_a_run() + 1, 1 if how == "kill" else 4):
        network = Counting(4, at, lambda net: getattr(net, how)(2))
        with simulated(4, network=network, deadline=SHORT) as cluster:
            with placed("embed", cluster.backends()) as (model, sched):
                model.run(sched, 0)
                network.on = True
                with pytest.raises(gb.errors.DeviceLostError, match=rf"rank 2 \({HOST}\) is lost") as caught:
                    [model.run(sched, seed) for seed in range(3)]
                network.on = False
                assert (caught.value.rank, caught.value.host) == (2, HOST)
            assert [r.number for r in cluster.ranks if r.lost] == [2]
            assert [b.name for b in cluster.backends()] == ["MPI1:CPU", "MPI3:CPU"]
            survivors_compute(cluster)


def length(error):
    trace, n = error.__traceback__, 0
    while trace is not None:
        trace, n = trace.tb_next, n + 1
    return n


def test_repeated_errors_of_a_lost_rank_keep_no_objects():
    """Each exception has its own traceback, and keeps no objects alive."""
    network = LocalNetwork(2)
    with simulated(2, network=network) as cluster:
        device = cluster.backends()[0]
        network.kill(1)
        found = []
        for _ in range(5):
            with pytest.raises(gb.errors.DeviceLostError) as lost:
                device.allocate(64)
            found.append((length(lost.value), lost.value.rank, str(lost.value)))
        assert len({n for n, *_ in found[1:]}) == 1 and len(set(found[1:])) == 1


def test_each_run_of_an_unprepared_graph_raises():
    broken = _worker._Broken(0, _worker._Failure(-1, -1, "why"))
    found = []
    for _ in range(3):
        with pytest.raises(_worker._Failure, match="why") as lost:
            broken.run()
        found.append(length(lost.value))
    assert len(set(found)) == 1 and broken.failure.__traceback__ is None


@pytest.mark.parametrize("link", [(1, 2), (2, 0), (0, 2)])
def test_a_link_that_is_cut_silently(link):
    network = LocalNetwork(4)
    with simulated(4, network=network, deadline=SHORT) as cluster:
        with placed("embed", cluster.backends()) as (model, sched):
            model.run(sched, 0)
            network.cut(*link)
            with pytest.raises(gb.errors.DeviceLostError, match="rank 2"):
                model.run(sched, 1)
        survivors_compute(cluster)


def test_a_slow_rank_is_not_lost():
    """A rank that computes for longer than the deadline sends heartbeats."""
    network = LocalNetwork(2)
    with simulated(2, network=network, deadline=SHORT) as cluster:
        worker = cluster._workers[0]
        real = worker._do[What.RUN]
        worker._do[What.RUN] = lambda command: (time.sleep(3 * SHORT), real(command))
        survivors_compute(cluster)


def test_failures_name_rank_and_host():
    with simulated(3) as cluster, placed("embed", cluster.backends()) as (model, sched):
        model.run(sched, 0)
        worker = cluster._workers[0]
        real = worker._do[What.RUN]

        def fails(command):
            raise gb.errors.AllocationError("no scratch memory")

        worker._do[What.RUN] = fails
        with pytest.raises(gb.errors.AllocationError, match=rf"rank 1 \({HOST}\): no scratch memory"):
            model.run(sched, 1)
        worker._do[What.RUN] = real
        np.testing.assert_array_equal(model.run(sched, 2), alone("embed", [2])[0])


def test_no_memory_and_wrong_names():
    with simulated(2) as cluster:
        device = cluster.backends()[0]
        with pytest.raises(gb.errors.AllocationError, match=rf"rank 1 \({HOST}\): no memory for {1 << 60} bytes"):
            device.allocate(1 << 60)
        with pytest.raises(gb.errors.InvalidArgumentError, match=r"rank 1 .*no backend 'TPU'; there are CPU"):
            gb.Backend("MPI1:TPU")
        with pytest.raises(gb.errors.InvalidArgumentError, match="say which backend of the rank: MPI1:CPU"):
            gb.Backend("MPI1")
        with pytest.raises(
            gb.GgmlError, match=r"no backend 'MPI2'|MPI2 cannot be used here: no open cluster has this rank"
        ):
            gb.Backend("MPI2:CPU")
        with pytest.raises(gb.errors.InvalidArgumentError, match=r"no rank has a backend 'CUDA'; there are CPU"):
            cluster.backends("CUDA")
        with pytest.raises(gb.errors.InvalidArgumentError, match="there is no rank 5"):
            cluster.ping(5)
    with pytest.raises(gb.GgmlError, match="MPI1 cannot be used here: no open cluster"):
        gb.Backend("MPI1:CPU")
    with pytest.raises(gb.errors.StateError, match="cluster is closed"):
        device.allocate(16)
    for use in (cluster.backends, cluster.__enter__, lambda: cluster.ping(1)):
        with pytest.raises(gb.errors.StateError, match=r"^the cluster is closed$"):
            use()
    assert "MPI1" not in gb.backends()


def test_python_functions_do_not_run_on_ranks():
    with simulated(2) as cluster, gb.Context() as ctx:
        x = ctx.tensor((3,))
        y = gb.ops.map_custom(lambda a: a, x)
        assert "cannot run on another rank" in str(cluster.backends()[0].unsupported_reason(y))


# ------------------------------------------------------------------------------------------------------------- greeting


def greeted(change, deadline=SHORT):
    """The errors of both sides if their greetings differ."""
    network = LocalNetwork(2)
    options = Options(deadline=deadline)
    worker = Worker(network.transport(1), gb.__version__, options)
    worker.facts.update(change)
    theirs = []

    def serve():
        try:
            worker.serve()
        except (gb.GgmlError, Killed) as error:
            theirs.append(error)

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        with pytest.raises(gb.GgmlError) as caught:
            _started(network.transport(0), options)
    finally:
        thread.join(10)
    assert not thread.is_alive()
    return str(caught.value), str(theirs[0]) if theirs else ""


def test_another_version_is_refused_with_both_named():
    mine, theirs = greeted({"version": "9.9.9"})
    for text in (mine, theirs):
        assert "'9.9.9'" in text and repr(gb.__version__) in text and "install the same version" in text


def test_another_byte_order_is_refused():
    mine, theirs = greeted({"byteorder": "big"})
    assert "byte order" in mine and "'big'" in mine and "cannot be exchanged" in mine


def test_another_protocol_is_refused(monkeypatch):
    monkeypatch.setattr(m, "read_hello", lambda data: {"magic": "ggml_backend cluster", "protocol": 77, "host": "h"})
    mine, theirs = greeted({})
    assert "protocol" in mine and "77" in mine


def test_a_missing_rank_is_an_error():
    with pytest.raises(gb.errors.DeviceLostError, match=r"rank 1 has not called gb.cluster.start\(\) within 0.2 s"):
        _started(LocalNetwork(2).transport(0), Options(deadline=0.2))


def test_a_rank_that_starts_late():
    network = LocalNetwork(2)
    options = Options(deadline=5)
    worker = Worker(network.transport(1), gb.__version__, options)
    thread = threading.Timer(0.3, worker.serve)
    thread.start()
    with _started(network.transport(0), options) as cluster:
        survivors_compute(cluster)
    thread.join(10)
    assert not thread.is_alive()


def test_a_worker_without_rank_0():
    worker = Worker(LocalNetwork(2).transport(1), gb.__version__, Options(deadline=0.2))
    wrong = r"rank 0 has not called gb.cluster.start\(\) within 0.2 s. All ranks run the"
    with pytest.raises(gb.errors.StateError, match=wrong):
        worker.serve()


def test_one_cluster_at_a_time():
    with simulated(2), pytest.raises(gb.errors.StateError, match="a cluster is already open"):
        _started(LocalNetwork(1).transport(0), Options())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"deadline": 0}, "deadline must be seconds, more than 0, not 0"),
        ({"deadline": "1"}, "deadline must be seconds"),
        ({"heartbeat": -1}, "heartbeat must be seconds"),
        ({"deadline": 1, "heartbeat": 10}, "heartbeat, 10 s, must be at most half of the deadline, 1 s"),
        ({"n_threads": 0}, "n_threads must be a number from 1 up"),
        ({"n_threads": True}, "n_threads must be a number from 1 up"),
    ],
)
def test_wrong_options(options, message):
    with pytest.raises(gb.errors.InvalidArgumentError, match=message):
        gb.cluster.start(**options)


def test_one_process_has_no_remote_devices():
    with gb.cluster.start() as cluster:
        assert cluster.backends() == [] and cluster.n_ranks == 1
        assert [r.number for r in cluster.ranks] == [0] and cluster.ranks[0].host == HOST
        assert cluster.backends("CUDA") == []
        assert repr(cluster) == "<Cluster of 1 rank>"
    assert cluster.closed and repr(cluster) == "<Cluster closed>"
    cluster.close()
    for use in (cluster.backends, cluster.__enter__, lambda: cluster.ping(1)):
        with pytest.raises(gb.errors.StateError, match=r"^the cluster is closed$"):
            use()


# ------------------------------------------------------------------------------------------------------ fuzzed messages


_HEAD = struct.Struct("<II")  # as c/src/tensor/nodes.h and record.h describe them
_TENSOR = struct.Struct("<II8Q64s64s10iIiQQQ")
_OP, _ROOT, _MEMORY, _OFFSET = 1, 23, 25, 26  # fields of a tensor


def tensors_of(data):
    """Offsets of the tensors of a message."""
    return [_HEAD.size + i * _TENSOR.size for i in range(_HEAD.unpack_from(data)[0])]


def placed_at(data, places):
    """The message with memory 1 for all tensors that are not views."""
    data = bytearray(data)
    for at in tensors_of(data):
        fields = list(_TENSOR.unpack_from(data, at))
        if fields[_ROOT] < 0:
            fields[_MEMORY], fields[_OFFSET] = 1, next(places)
        _TENSOR.pack_into(data, at, *fields)
    return bytes(data)


def a_graph(rng):
    """A message of nodes in memory 1."""
    with gb.Context() as ctx:
        x = ctx.tensor((4, 8), name="x")
        graph = ctx.graph(gb.ops.soft_max(gb.ops.relu(x[1:3]) * 2.0))
        core = graph._live()
        return placed_at(pack(core.ptr.nodes[0 : core.ptr.n_nodes], ffi.NULL), itertools.repeat(0))


def mutated(data, rng):
    data = bytearray(data)
    for _ in range(int(rng.integers(1, 6))):
        kind = int(rng.integers(3))
        at = int(rng.integers(len(data))) if data else 0
        if kind == 0 and data:
            data[at] = int(rng.integers(256))
        elif kind == 1:
            del data[at : at + int(rng.integers(1, 40))]
        else:
            data[at:at] = rng.bytes(int(rng.integers(1, 9)))
    return bytes(data)


@pytest.mark.parametrize("op", [name for name in dir(lib) if re.match("GGML_OP_(MAP_|CUSTOM)", name)])
def test_no_message_holds_an_address(op):
    """The parameters of these operators are functions."""
    data = bytearray(a_graph(np.random.default_rng(1)))
    last = tensors_of(data)[-1]
    fields = list(_TENSOR.unpack_from(data, last))
    fields[_OP] = getattr(lib, op)
    _TENSOR.pack_into(data, last, *fields)
    with pytest.raises(MessageError, match="is no operator that a record can hold"):
        graph_of(memoryview(data), None)


def test_mutated_nodes_are_refused_or_make_a_graph():
    rng = np.random.default_rng(1)
    good = a_graph(rng)
    assert graph_of(memoryview(good), None).ptr.n_nodes > 2
    refused = 0
    for _ in range(3000):
        try:
            graph_of(memoryview(mutated(good, rng)), None)
        except MessageError:
            refused += 1
    assert refused > 1500


def commands(rng):
    """All commands, with valid and invalid numbers."""
    found = []
    for _ in range(int(rng.integers(1, 8))):
        what = int(rng.choice([v for k, v in vars(What).items() if k.isupper() and v not in (What.TAKE, What.FILE)]))
        fields = m.FIELDS[what]
        raw = b"".join(
            int(rng.choice([0, 1, 2, 16, 1 << 20, 1 << 40, (1 << 63) + 5])).to_bytes(8, "little") for _ in range(20)
        )
        more = (
            mutated(a_graph(rng), rng)
            if what in (What.GRAPH, What.ASK, What.WORK)
            else b"CPU"
            if what == What.OPEN
            else b""
        )
        length = fields.size + len(more)
        found.append(bytes([what, 0, 0, 0]) + length.to_bytes(4, "little") + raw[: fields.size] + more)
    return b"".join(found)


def test_fuzzed_messages_leave_a_rank_usable():
    """Random commands and changed bytes after a valid start: the rank does not crash, uses no
    foreign memory, and still works."""
    rng = np.random.default_rng(2)
    network = LocalNetwork(2)
    here = network.transport(0)
    worker = Worker(network.transport(1), gb.__version__, Options(deadline=5, n_threads=1))
    thread = threading.Thread(target=worker.serve, daemon=True)
    here.send(1, m.HELLO, m.hello(worker.facts))
    thread.start()
    for number in range(1, 601):
        body = commands(rng)
        whole = m.message(Kind.COMMANDS, number, body)
        worker.received = 0  # accept changed numbers
        here.send(1, m.CONTROL, whole if rng.random() < 0.7 else mutated(whole, rng))
        assert thread.is_alive()
    here.send(1, m.CONTROL, b"")
    here.send(1, m.DATA, b"nobody asked for it")
    here.send(1, 99, b"no channel")
    until, asked = time.monotonic() + 300, 0.0  # the system clears much memory that the commands allocate
    pong = False
    while not pong and time.monotonic() < until:
        if time.monotonic() - asked > 1:  # again, because a changed number may have arrived in between
            asked, worker.received = time.monotonic(), 0
            here.send(1, m.CONTROL, m.message(Kind.PING, 1 << 40))
        letter = here.poll()
        if letter is None:
            here.pause(1)
            continue
        letter.finished = True
        if letter.channel == m.CONTROL:
            answer = m.read_message(letter.take())
            pong = answer.kind == Kind.PONG and answer.number == 1 << 40
    assert pong
    here.send(1, m.CONTROL, m.message(Kind.BYE, 0))
    thread.join(30)
    assert not thread.is_alive() and not worker.memories


@pytest.mark.parametrize("seed", range(3))
def test_graphs_with_changed_bytes_are_refused_or_run(seed, cpu):
    """Nodes in real memory run after changes of some bytes of the message. They change no other
    memory, and nothing crashes."""
    rng = np.random.default_rng(seed)
    piece = Piece(cpu, 0, 1 << 16)
    with gb.Context() as ctx:
        x, w, i = ctx.tensor((4, 32)), ctx.tensor((8, 32), gb.dtypes.q8_0), ctx.tensor((3,), gb.int32)
        y = gb.ops.rope(gb.ops.get_rows(gb.ops.soft_max(gb.ops.mul_mat(w, x)) * 2.0, i).reshape(3, 1, 8), i)
        graph = ctx.graph(gb.ops.cpy(y, ctx.tensor((3, 1, 8), gb.float16)))
        pointers = graph._live().ptr.nodes[0 : graph.n_nodes]
        good = placed_at(pack(pointers, ffi.NULL), itertools.count(0, 4096))
    ran = 0
    for _ in range(1500):
        data = bytearray(good)
        for _ in range(int(rng.integers(1, 4))):
            at = int(rng.integers(8, len(data)))
            data[at] ^= 1 << int(rng.integers(8))
        piece.fill(0)
        try:
            compiled = Compiled(
                cpu, 0, graph_of(memoryview(data), lambda n, weights: (piece.pointer, piece.base, piece.size))
            )
        except gb.GgmlError:
            continue
        try:
            compiled.run()
            ran += 1
        except gb.GgmlError:
            pass
        finally:
            compiled.close()
    assert ran > 100


def test_a_rank_that_sends_nonsense_is_lost():
    rng = np.random.default_rng(3)
    for _ in range(20):
        network = LocalNetwork(3)
        with simulated(3, network=network, deadline=SHORT) as cluster:
            good = m.message(Kind.DONE, 1)
            network.post(1, 0, int(rng.integers(1, 5)), mutated(good, rng))
            try:
                survivors_compute(cluster)
            except gb.errors.DeviceLostError as error:
                assert error.rank == 1
            survivors_compute(cluster)


def test_messages_are_checked():
    for wrong, text in [
        (b"", "shorter than a header"),
        (b"x" * 40, "begins with"),
        (m.message(99, 0), "unknown kind of message 99"),
        (m.message(Kind.DONE, 0)[:-1] + b"\1", "gives its length as"),
    ]:
        with pytest.raises(MessageError, match=text):
            m.read_message(wrong)
    for wrong, text in [
        (b"\x63\0\0\0\0\0\0\0", "unknown command 99"),
        (b"\1", "are too few for a command"),
        (b"\3\0\0\0\xff\0\0\0", "claims 255 bytes, but only 0 are left"),
    ]:
        with pytest.raises(MessageError, match=text):
            list(m.commands_of(memoryview(wrong)))
    with pytest.raises(MessageError, match="invalid greeting"):
        m.read_hello(b"{}")
    with pytest.raises(MessageError, match="invalid greeting"):
        m.read_hello(b"[" * 100000)
