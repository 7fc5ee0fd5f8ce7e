"""Programs that every rank of an MPI job runs: ``mpiexec -n 3 python rank_programs.py NAME ARGUMENT...``. Rank 0 prints
``fine`` at the end."""

from __future__ import annotations

import atexit
import contextlib
import itertools
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parent))

import ggml_backend as gb
from ggml_backend.cluster import _messages as m
from ggml_backend.cluster import _mpi
from ranks import alone, compute_on, placed


def models() -> None:
    """All ranks compute the bits of one process."""
    with gb.cluster.start(deadline=20, n_threads=1) as cluster:
        for name in ("embed", "llama"):
            wanted = alone(name, range(3))
            with placed(name, cluster.backends()) as (model, sched):
                for seed, want in enumerate(wanted):
                    np.testing.assert_array_equal(model.run(sched, seed), want)
                assert {s.backend for s in sched.splits} >= {f"MPI{r}:CPU" for r in range(1, cluster.n_ranks)}


def minilm(tree: str) -> None:
    """Vectors of the real model have the bits of the CPU of one process."""
    sys.path.insert(0, tree)
    from examples.embed.model import Embedder

    texts = [" ".join(["word"] * n) + f" number {n}" for n in range(1, 20)]
    with gb.cluster.start(deadline=60, n_threads=1) as cluster:
        devices = [*(b.name for b in cluster.backends()), "CPU"]
        embedder = Embedder(devices, 1)
        found = embedder.embed(texts, 4)
        assert [s.backend for s in embedder.scheduler.splits] == devices
        np.testing.assert_array_equal(found, Embedder(["CPU"], 1).embed(texts, 4))


def device(name: str) -> None:
    with gb.cluster.start(deadline=20, n_threads=1):
        report = gb.testing.check_device(name, quick=True, only=["graphs", "memory"])
        assert report.ok, str(report)


def weights(path: str, *other: str) -> None:
    """Each rank reads its own file. ``other``: a file that replaces it on rank 0 only."""
    with gb.cluster.start(deadline=20, n_threads=1) as cluster:
        remote = cluster.backends()
        file = gb.gguf.open(path)
        before = cluster.bytes_sent
        loaded = file.load({f"t{i}": d for i, d in enumerate(remote)})
        assert cluster.bytes_sent - before < 2000
        for name, tensor in loaded.items():
            np.testing.assert_array_equal(tensor.numpy(), file.tensors[name].numpy())
        with gb.Context() as ctx:  # also constants of a mapped file
            made = ctx.constant(file.tensors["t0"].numpy())
            before = cluster.bytes_sent
            ctx.allocate(remote[0])
            assert cluster.bytes_sent - before < 2000
            np.testing.assert_array_equal(made.numpy(), file.tensors["t0"].numpy())
        for changed in other:
            os.replace(changed, path)  # the open file is unchanged
            try:
                file.load({"*": remote[0]}, names="t0")
                raise AssertionError("the file is another one")
            except gb.errors.FileError as error:
                assert "'t0'" in str(error) and "rank 1" in str(error) and "the files differ" in str(error), error


def lost(how: str) -> None:
    """A rank is killed or stopped during runs. The others continue."""
    _mpi.rank()  # starts MPI, which may take longer than the deadline
    with gb.cluster.start(deadline=3 if how == "SIGSTOP" else 60, n_threads=1) as cluster:
        with placed("embed", cluster.backends()) as (model, sched):
            model.run(sched, 0)
            os.kill(cluster.ranks[2].pid, getattr(signal, how))
            begin = time.perf_counter()
            try:
                for seed in range(100):
                    model.run(sched, seed)
                raise AssertionError("nobody noticed")
            except gb.errors.DeviceLostError as error:
                took = time.perf_counter() - begin
                assert error.rank == 2 and error.host == cluster.ranks[2].host
                reason = "has not answered" if how == "SIGSTOP" else "its process has died"
                assert reason in str(error), error
                print(f"noticed after {took * 1e3:.1f} ms", flush=True)
        assert [b.name for b in cluster.backends()] == ["MPI1:CPU"]
        compute_on(cluster.backends()[0])


def dies(at: str) -> None:
    """Rank 2 kills itself before command number ``at`` among those that take, compute and give in
    runs."""
    from mpi4py import MPI

    real, number, runs = m.commands_of, itertools.count(1), False

    def commands_of(body: memoryview, begin: int = 0) -> Iterator[m.Command]:
        nonlocal runs
        for command in real(body, begin):
            runs = runs or command.what == m.What.RUN
            if (
                runs
                and begin == 0
                and command.what in (m.What.TAKE, m.What.RUN, m.What.GIVE)
                and next(number) == int(at)
            ):
                os.kill(os.getpid(), signal.SIGKILL)
            yield command

    if MPI.COMM_WORLD.Get_rank() == 2:
        m.commands_of = commands_of
    with gb.cluster.start(deadline=60, n_threads=1) as cluster:
        with placed("embed", cluster.backends()) as (model, sched):
            try:
                for seed in range(100):
                    model.run(sched, seed)
                raise AssertionError("nobody noticed")
            except gb.errors.DeviceLostError as error:
                assert error.rank == 2 and "its process has died" in str(error), error
        compute_on(cluster.backends()[0])


class Large:
    """x + 1 + 1 ... with 4 MiB. Each addition is on the next device, in turn. Each run has new values."""

    def __init__(self, devices: list[gb.Backend], copies: int, n: int = 1 << 20) -> None:
        self.ctx = gb.Context()
        self.sched = gb.Scheduler([*devices, gb.Backend("CPU", n_threads=1)], n_copies=copies)
        self.x = self.ctx.tensor((n,), name="x").set_input()
        node = self.x
        for i in range(8):
            node = node + 1.0
            self.sched.set_backend(node, devices[i % len(devices)])
        self.y, self.graph = node, self.ctx.graph(node)
        self.sched.allocate(self.graph)
        self.base = np.arange(n, dtype=np.float32) % 1000

    def start(self, value: int) -> gb.sched.Pending:
        self.x.set(self.base + np.float32(value))
        return self.sched.compute_async(self.graph, results=self.y)

    def expect(self, run: gb.sched.Pending, value: int) -> None:
        np.testing.assert_array_equal(run.results()[0], self.base + np.float32(value + 8))


def large() -> None:
    """Large activations are sent without a copy, and arrive unchanged, with one pending run and
    with several."""
    lent, real = [], _mpi.MpiTransport.lend

    def lend(self: _mpi.MpiTransport, peer: int, tag: int, data: memoryview, keep: object) -> object:
        lent.append(len(data))
        return real(self, peer, tag, data, keep)

    _mpi.MpiTransport.lend = lend  # type: ignore[method-assign]
    atexit.register(lambda: print(f"lent {len(lent)} times", flush=True))
    with gb.cluster.start(deadline=60, n_threads=1) as cluster:
        for copies in (1, 4):
            work = Large(cluster.backends(), copies)
            for value in range(20):
                work.expect(work.start(value), value)
            runs = [(work.start(value), value) for value in range(3 * copies)]
            for run in runs:
                work.expect(*run)


def pieces(nbytes: str, limit: str) -> None:
    """Inputs, results and cuts of more bytes than one message may hold."""
    m.MAX_DATA = int(limit)
    n = int(nbytes) // 4
    marks = np.array([0, 1, m.MAX_DATA // 4, n // 2, n - 1]).clip(0, n - 1)
    with gb.cluster.start(deadline=120, n_threads=1) as cluster, gb.Context() as ctx:
        ranks, cpu = cluster.backends(), gb.Backend("CPU", n_threads=1)
        x = ctx.tensor(n, name="x")
        for device in ranks[:1]:
            device.allocate(4 * n + 64).place(x)
        y = gb.ops.relu(x)
        middle = y if len(ranks) == 1 else gb.ops.relu(y)
        total = gb.ops.sum(middle)
        with gb.Scheduler([*ranks, cpu]) as sched:
            sched.set_backend(y, ranks[0])
            if middle is not y:
                sched.set_backend(middle, ranks[1])
            sched.set_backend(total, cpu)
            graph = ctx.graph(total)
            sched.allocate(graph)
            values = np.zeros(n, np.float32)
            values[marks] = np.arange(1, 6)
            x.set(values)
            del values
            sched.compute(graph)
            got = x.numpy()
            assert got.nbytes == 4 * n
            wanted = got[marks].sum() if len(set(marks.tolist())) == 5 else got.sum()
            assert got[n - 1] == 5 and np.count_nonzero(got) <= 5
            assert total.item() == wanted, (total.item(), wanted)


def catches() -> None:
    """Rank 2 waits a moment for messages of rank 1, as for a cut, and receives later ones as
    letters."""
    transport = _mpi.connect(20)
    assert transport is not None
    world, rank, tag = transport._MPI.COMM_WORLD, transport.rank, m.tag_of(m.DATA, 5)

    def sends(nbytes: int, at: int = tag) -> None:
        if rank == 1:
            transport.send(2, at, bytes([nbytes % 251]) * nbytes)

    def caught(seconds: float, size: int) -> tuple[int | None, bytearray]:
        target = bytearray(b"." * size)
        return transport.catch(1, tag, memoryview(target), seconds), target

    def letter() -> Any:
        until = time.monotonic() + 10
        while (found := transport.poll()) is None:
            assert time.monotonic() < until
        return found

    for nbytes in (1, 1000, 5000, 16 << 10, 300_000, 5 << 20):
        wanted = bytes([nbytes % 251]) * nbytes
        world.Barrier()  # a message that comes later, and one that has arrived
        for early in (False, True):
            if rank == 1 and not early:
                time.sleep(0.01)
            sends(nbytes)
            if rank == 2:
                time.sleep(0.02 * early)
                found, target = caught(5, nbytes)
                assert found == nbytes and target == wanted, (nbytes, early, found)
            world.Barrier()
        if rank == 2:  # a late message is a letter, and nothing was written
            found, target = caught(0.001, nbytes)
            assert found is None and target == b"." * nbytes, (nbytes, found)
        world.Barrier()
        sends(nbytes)
        if rank == 2:
            late = letter()
            assert (late.peer, late.channel, late.mark) == (1, m.DATA, 5) and late.take() == wanted
            assert target == b"." * nbytes
        world.Barrier()
        sends(nbytes, m.tag_of(m.POISON, 5))  # another message is skipped, the one behind it is received
        sends(nbytes)
        if rank == 2:
            found, target = caught(5, nbytes)
            assert found == nbytes and target == wanted
            assert letter().channel == m.POISON
        world.Barrier()
        sends(nbytes)  # another length
        if rank == 2:
            found, _ = caught(5, nbytes + 1)
            assert found == nbytes
        world.Barrier()
        sends(nbytes)
        if rank == 2 and nbytes > 1:
            try:
                caught(5, nbytes - 1)
                raise AssertionError("too long, without an error")
            except gb.errors.DeviceError as error:
                assert "cannot be received" in str(error), error
        elif rank == 2:
            letter().take()
        world.Barrier()
        transport.flush(5)
    for _ in range(3000):  # cancelled and sent at the same time: exactly one happens
        world.Barrier()
        sends(5000)
        if rank == 2:
            found, target = caught(1e-6, 5000)
            data = letter().take() if found is None else target
            assert data == bytes([5000 % 251]) * 5000 and (found == 5000 or target == b"." * 5000)
    world.Barrier()
    transport.close()


def sender_dies(nbytes: str) -> None:
    """Rank 2 waits for a message of rank 1, which dies. Rank 2 continues, unless MPI may still
    write to its memory."""
    transport = _mpi.connect(20)
    assert transport is not None
    world, rank, tag, size = transport._MPI.COMM_WORLD, transport.rank, m.tag_of(m.DATA, 5), int(nbytes)
    world.Barrier()
    if rank == 1:
        time.sleep(0.05)
        if size:
            kept = np.zeros(size, np.uint8)
            transport.lend(2, tag, memoryview(kept), kept)  # makes no progress
        os.kill(os.getpid(), signal.SIGKILL)
    if rank == 2:
        begin, target = time.monotonic(), memoryview(bytearray(size or 16384))
        try:
            found = transport.catch(1, tag, target, 30)
            assert found in (None, size) and (size or found is None), found
        except (gb.errors.DeviceLostError, _mpi.Unusable) as error:
            print(f"{type(error).__name__}: {error}", flush=True)
        assert time.monotonic() - begin < 5
        transport.send(0, tag, b"fine")
    if rank == 0:
        until = time.monotonic() + 10
        while (letter := transport.poll()) is None:
            assert time.monotonic() < until
        assert letter.take() == b"fine"
        letter.finished = True
    transport.in_trouble()  # MPI cannot be finalized any more, even if no call of this rank has failed


def blocks_within_mpi(lost: str, pid: int) -> bool:
    """True if the rank sleeps in a lock of MPI and does not answer.

    Open MPI 5.0 over TCP can deadlock when a peer dies within a large message. It closes the connection under the
    connection's lock, reports the failed message, and takes the lock again to answer. A rank that waits for data spins
    instead, and an idle one answers.
    """
    over = os.environ.get("OMPI_MCA_btl", "")  # noqa: SIM112 - as Open MPI calls it
    if "tcp" not in over or "it has not answered" not in lost:
        return False
    states = set()
    for _ in range(100):
        states.add(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0])
        time.sleep(0.01)
    return states == {"S"}


def lost_large(how: str, ms: str) -> None:
    """Rank 2 is killed or stopped while large activations are sent. Rank 1 continues, unless rank 2
    was stopped within a message to it, or MPI blocks it."""
    _mpi.rank()  # starts MPI, which may take longer than the deadline
    with gb.cluster.start(deadline=3, n_threads=1) as cluster:
        work, pid, other = Large(cluster.backends(), 2), cluster.ranks[2].pid, cluster.ranks[1].pid
        work.expect(work.start(0), 0)
        threading.Timer(float(ms) / 1e3, os.kill, (pid, getattr(signal, how))).start()
        begin = time.monotonic()
        try:
            while time.monotonic() < begin + 20:
                for value in range(3):
                    work.expect(work.start(value), value)
            raise AssertionError("nobody noticed")
        except gb.errors.DeviceLostError as error:
            found = error
        try:
            assert found.rank == 2 or how == "SIGSTOP", found
            assert [b.name for b in cluster.backends()] == ["MPI1:CPU"], [r.lost for r in cluster.ranks]
            compute_on(cluster.backends()[0])
        except (AssertionError, gb.errors.DeviceLostError):
            first = cluster.ranks[1].lost
            if first is None or (how != "SIGSTOP" and not blocks_within_mpi(first, other)):
                raise
            print("rank 1 is lost, too", flush=True)


def silent(who: str, ms: str, how: str = "SIGSTOP") -> None:
    """Rank 1 is killed or stopped within a long message to rank 0 or 2, which continue."""
    _mpi.rank()
    _mpi._SLOWEST = 1e9
    with gb.cluster.start(deadline=4, n_threads=1) as cluster, gb.Context() as c1, gb.Context() as c2:
        one, two = cluster.backends()
        a, b = c1.tensor((1 << 27,), name="a"), c2.tensor((1 << 27,), name="b")
        c1.allocate(one), c2.allocate(two)
        for memory in (a, b):
            memory.buffer.clear()
        one.synchronize(), two.synchronize()
        threading.Timer(float(ms) / 1e3, os.kill, (cluster.ranks[1].pid, getattr(signal, how))).start()
        begin = time.monotonic()
        try:
            while time.monotonic() < begin + 20:
                if who == "0":
                    a.numpy(copy=True)
                else:
                    b.copy_from(a)
                    two.synchronize()
            raise AssertionError("nobody noticed")
        except gb.errors.DeviceLostError as error:
            assert error.rank == 1, error
        print(f"noticed after {time.monotonic() - begin:.1f} s", flush=True)
        assert [b.name for b in cluster.backends()] == ["MPI2:CPU"], [r.lost for r in cluster.ranks]
        with contextlib.suppress(gb.errors.DeviceLostError):
            two.synchronize()
        compute_on(cluster.backends()[0])


def text(path: str, examples: str) -> None:
    """A rank is killed while the ranks write a text. The text is unchanged."""
    sys.path.insert(0, examples)
    from examples.text_on_cluster import write

    prompt, options = [33, 41, 54, 51, 59, 62], {"n_ctx": 64, "n_threads": 1, "cache": "float32"}
    with gb.cluster.start(deadline=20, n_threads=1) as cluster:

        def names() -> list[str]:
            return [*(b.name for b in cluster.backends()), "CPU"]

        used: list[list[str]] = []  # the devices of each model that wrote

        def devices() -> list[str]:
            used.append(names())
            return used[-1]

        wanted = "".join(write(path, prompt, lambda: ["CPU"], 20, **options))
        found = ""
        for piece in write(path, prompt, devices, 20, **options):
            found += piece
            if len(found) == 7:
                os.kill(cluster.ranks[1].pid, signal.SIGKILL)
        assert found == wanted, (found, wanted)
        assert names() == ["MPI2:CPU", "CPU"]
        assert used == [["MPI1:CPU", "MPI2:CPU", "CPU"], ["MPI2:CPU", "CPU"]], used


def waits_in_vain() -> None:
    """Rank 0 never calls gb.cluster.start()."""
    from mpi4py import MPI

    if MPI.COMM_WORLD.Get_rank() != 0:
        gb.cluster.start(deadline=1)


def does_not_come() -> None:
    """Rank 1 never calls gb.cluster.start()."""
    from mpi4py import MPI

    if MPI.COMM_WORLD.Get_rank() != 1:
        gb.cluster.start(deadline=1)


def never_begins(how: str) -> None:
    """Rank 1 never initializes MPI, and the others wait for it."""
    if "1" in (os.environ.get("OMPI_COMM_WORLD_RANK"), os.environ.get("PMI_RANK")):
        if how == "sleeps":
            time.sleep(300)
        return
    gb.cluster.start(deadline=1)


def too_few_threads() -> None:
    import mpi4py

    mpi4py.rc.thread_level = "serialized"
    try:
        gb.cluster.start()
        raise AssertionError
    except gb.errors.UnsupportedError as error:
        assert "MPI_THREAD_MULTIPLE" in str(error)


def interrupted() -> None:
    """Ctrl-C on rank 0 while ranks compute. The cluster works afterwards."""
    with gb.cluster.start(deadline=20, n_threads=1) as cluster, placed("embed", cluster.backends()) as (model, sched):
        wanted = model.run(sched, 7)
        for i in range(20):
            signal.setitimer(signal.ITIMER_REAL, 0.0005 * (i + 1))
            try:
                while True:
                    model.run(sched, 1)
            except KeyboardInterrupt:
                pass
        np.testing.assert_array_equal(model.run(sched, 7), wanted)


def forks() -> None:
    """Children of rank 0 cannot use the cluster, and their exit does not disturb it."""
    with gb.cluster.start(deadline=20, n_threads=1) as cluster, placed("embed", cluster.backends()) as (model, sched):
        wanted = model.run(sched, 7)
        for status in (0, 3):
            child = os.fork()
            if child == 0:
                try:
                    cluster.backends()[0].allocate(64)
                except gb.GgmlError as error:
                    assert "forked" in str(error) or "no such rank" in str(error) or "no open cluster" in str(error), (
                        error
                    )
                    cluster.close()
                    sys.exit(status)
                sys.exit(99)
            _, waited = os.waitpid(child, 0)
            assert os.waitstatus_to_exitcode(waited) == status
            np.testing.assert_array_equal(model.run(sched, 7), wanted)


def forgets() -> None:
    """No call closes the cluster."""
    compute_on(gb.cluster.start(deadline=20, n_threads=1).backends()[0])


def raises() -> None:
    with gb.cluster.start(deadline=20, n_threads=1) as cluster:
        compute_on(cluster.backends()[0])
        raise RuntimeError("of the script")


if __name__ == "__main__":
    signal.signal(signal.SIGALRM, signal.default_int_handler)
    name, *arguments = sys.argv[1:]
    globals()[name](*arguments)
    print("fine", flush=True)
