"""Measures cuts of a cluster on one machine (run by mpiexec), or pipelines over a simulated network.

    mpiexec -n 3 python benchmarks/bench_cluster.py               # a cut beside plain MPI, microseconds
    python benchmarks/bench_cluster.py --pipeline                 # pending runs over links of 1, 20 and 80 ms

``benchmarks/results/cluster-cuts.json`` has figures.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time

import numpy as np

import ggml_backend as gb
from ggml_backend.cluster import _mpi

SIZES = (16 << 10, 256 << 10, 4 << 20)
CUTS = 16


def ping_pong(nbytes: int, rounds: int) -> list[float]:
    """Seconds of one transfer between ranks 1 and 2, with plain calls of mpi4py."""
    from mpi4py import MPI

    world = MPI.COMM_WORLD
    rank, data = world.Get_rank(), bytearray(nbytes)
    times = []
    world.Barrier()
    if rank in (1, 2):
        for _ in range(rounds):
            begin = time.perf_counter()
            for turn in (1, 2):
                if rank == turn:
                    world.Send([data, MPI.BYTE], 3 - rank)
                else:
                    world.Recv([data, MPI.BYTE], 3 - rank)
            times.append((time.perf_counter() - begin) / 2)
    return times


def collected(nbytes: int, rounds: int) -> list[float]:
    """Runs :func:`ping_pong` and sends the times of rank 1 to rank 0, which sleeps while the others measure."""
    from mpi4py import MPI

    world = MPI.COMM_WORLD
    times = ping_pong(nbytes, rounds)
    if world.Get_rank() == 1:
        world.send(times, 0)
    if world.Get_rank() == 0:
        while not world.Iprobe(1):
            time.sleep(0.005)
        times = world.recv(source=1)
    return times


def chain(devices: list[gb.Backend], nbytes: int, rounds: int) -> list[float]:
    """Seconds of runs of a chain of squares. Neighbours are on different devices, in turn."""
    cpu = gb.Backend("CPU", n_threads=1)
    with gb.Context() as ctx, gb.Scheduler([*dict.fromkeys(devices), cpu]) as sched:
        x = ctx.tensor((nbytes // 4,), name="x")
        node, nodes = x, []
        for _ in range(CUTS + 1):
            node = gb.ops.sqr(node)
            nodes.append(node)
        small = gb.ops.sum(node)
        graph = ctx.graph(small)
        for i, n in enumerate((*nodes, small)):
            sched.set_backend(n, devices[min(i, CUTS) % len(devices)])
        sched.allocate(graph)
        x.set(np.zeros(nbytes // 4, np.float32))
        times = []
        for _ in range(rounds + 5):
            begin = time.perf_counter()
            sched.compute(graph)
            times.append(time.perf_counter() - begin)
        assert sched.n_splits == (1 if devices.count(devices[0]) == len(devices) else CUTS + 1)
        return times[5:]


def cuts(rounds: int) -> None:
    _mpi._module()  # as the cluster starts MPI
    plain = {nbytes: collected(nbytes, rounds) for nbytes in SIZES}
    with gb.cluster.start(deadline=60, n_threads=1) as cluster:
        one, two = cluster.backends()[:2]
        print(f"{cluster.n_ranks} ranks, {os.cpu_count()} cores, round trip of a ping {cluster.ping(1) * 1e6:.1f} us")
        print(f"{'bytes':>9} {'plain, one way':>20} {'a cut':>20} {'above plain':>12}    us, least / median")
        for nbytes in SIZES:
            least, median = [], []
            for _ in range(5):  # in turns
                same, other = chain([one], nbytes, rounds // 5), chain([one, two], nbytes, rounds // 5)
                least.append((min(other) - min(same)) / CUTS * 1e6)
                median.append((statistics.median(other) - statistics.median(same)) / CUTS * 1e6)
            p, q = min(plain[nbytes]) * 1e6, statistics.median(plain[nbytes]) * 1e6
            a, b = min(least), statistics.median(median)
            print(f"{nbytes:>9} {f'{p:.1f} / {q:.1f}':>20} {f'{a:.1f} / {b:.1f}':>20} {b - q:>12.1f}", flush=True)


def pipeline(stage: float, runs: int) -> None:
    """Measures two stages that take ``stage`` seconds each. Their threads sleep instead of computing."""
    from ggml_backend.cluster import simulated
    from ggml_backend.cluster._messages import What

    print("delay     pending   runs/s   of the slowest stage")
    for delay in (0.001, 0.02, 0.08):
        n = min(64, int(4 * delay / stage) + 6)
        with simulated(3, delay=delay) as cluster:
            for worker in cluster._workers:
                real = worker._do[What.RUN]
                worker._do[What.RUN] = lambda command, real=real: (real(command), time.sleep(stage))
            rate = throughput(cluster.backends(), n, runs)
        print(f"{delay * 1e3:4.0f} ms {n:>11} {rate:>8.1f} {rate * stage:>12.0%}", flush=True)


def throughput(devices: list[gb.Backend], n: int, runs: int) -> float:
    with gb.Context() as ctx, gb.Scheduler([*devices, gb.Backend("CPU", n_threads=1)], n_copies=n) as sched:
        x = ctx.tensor((4096,), name="x").set_input()
        node = x
        for device in devices:
            node = gb.ops.sqr(node)
            sched.set_backend(node, device)
        graph = ctx.graph(node)
        sched.allocate(graph)
        data = np.zeros(4096, np.float32)
        x.set(data)
        sched.compute(graph)
        pending, begin = [], time.perf_counter()
        for _ in range(runs):
            x.set(data)
            pending.append(sched.compute_async(graph, results=node))
        for run in pending:
            run.results()
        return runs / (time.perf_counter() - begin)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--pipeline", action="store_true")
    parser.add_argument("--stage", type=float, default=0.01, help="seconds that a stage takes")
    args = parser.parse_args()
    if args.pipeline:
        pipeline(args.stage, args.rounds)
    else:
        cuts(args.rounds)


if __name__ == "__main__":
    main()
