"""An interrupted wait releases the memory that the results would fill."""

from __future__ import annotations

import contextlib
import itertools
import weakref

import numpy as np

import ggml_backend as gb
from ggml_backend.cluster import LocalNetwork, simulated
from harness_clusters import Instructions
from harness_interleave import interrupt

N = 6000  # elements: more bytes than inline data of a command


def test_an_interrupted_run_releases_its_memory():
    """For any place of the interrupt: no data of ranks are awaited for a freed array."""
    network, places, freed = LocalNetwork(2), Instructions(), 0
    with simulated(2, network=network) as cluster, gb.Context() as ctx:
        network.link(1, 0, delay=2e-3)
        (device,) = cluster.backends()
        x = ctx.tensor((N,), name="x").set_input()
        y = x + 1.0
        graph = ctx.graph(y)
        with gb.Scheduler([device, gb.Backend("CPU", n_threads=1)], n_copies=2) as sched:
            sched.set_backend(y, device)
            sched.allocate(graph)
            for k in itertools.count(1):
                x.set(np.full(N, k, np.float32))
                pending = sched.compute_async(graph, [y])
                array = weakref.ref(pending._fetches[0].bytes)
                try:
                    inside = places.run(sched.synchronize, k, interrupt)
                except KeyboardInterrupt:
                    inside = True
                del pending
                if array() is None:
                    freed += 1
                    peers = cluster._conductor.peers.values()
                    awaited = [a for p in peers for a in list(p.arrivals.values()) if a.target is not None]
                    assert not awaited, f"interrupted at {places.where}"
                with contextlib.suppress(gb.errors.StateError):  # an interrupted run
                    sched.synchronize()
                if not inside:
                    break
            np.testing.assert_array_equal(sched.compute_async(graph, [y]).results()[0], np.full(N, k + 1, np.float32))
    assert k > 20 and freed > 10
