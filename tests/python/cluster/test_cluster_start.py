"""A cluster that cannot start for lack of threads, memory or files raises an error and leaves
nothing behind.
"""

from __future__ import annotations

import gc
import os
import socket
import subprocess
import sys
import threading

import pytest

import ggml_backend as gb
from ggml_backend.cluster import _transport, _worker, simulated

THREADS = 5  # threads of a cluster of three: two ranks, their two heartbeats, and the sender of rank 0


@pytest.mark.parametrize("allowed", range(THREADS + 1))
def test_a_cluster_without_threads_is_an_error(allowed, monkeypatch):
    original, started = threading.Thread.start, []

    def start(thread):
        if len(started) == allowed:
            raise RuntimeError("can't start new thread")
        started.append(thread)
        original(thread)

    monkeypatch.setattr(threading.Thread, "start", start)
    if allowed == THREADS:
        with simulated(3, deadline=5) as cluster:
            assert cluster.n_ranks == 3
    else:
        failing = pytest.raises(gb.errors.AllocationError, match=r"no thread for .*can't start new thread.*ulimit")
        with failing, simulated(3, deadline=5):
            pytest.fail("it began")
    monkeypatch.undo()
    for thread in started:
        thread.join(10)
    assert not any(thread.is_alive() for thread in started)
    with simulated(3, deadline=5) as cluster:
        assert cluster.ping(2) > 0


@pytest.mark.parametrize("error", [OSError(24, "Too many open files"), MemoryError(), RuntimeError("no")], ids=repr)
@pytest.mark.parametrize("place", ["name", "worker", "message", "send"])
def test_a_failed_start_raises_an_error_of_the_package(place, error, monkeypatch):
    def fails(*args, **kwargs):
        raise error

    owner, name = {
        "name": (socket, "gethostname"),
        "worker": (_worker.Worker, "greet"),
        "message": (_transport.LocalTransport, "poll"),
        "send": (_transport.LocalTransport, "send"),
    }[place]
    monkeypatch.setattr(owner, name, fails)
    with pytest.raises(gb.GgmlError) as caught, simulated(3, deadline=1):
        pytest.fail("it began")
    monkeypatch.undo()
    assert type(error).__name__ in str(caught.value)
    del caught
    gc.collect()
    with simulated(2, deadline=5) as cluster:
        assert cluster.ping(1) > 0


@pytest.mark.skipif("libasan" in os.environ.get("LD_PRELOAD", ""), reason="the sanitizer takes terabytes of addresses")
def test_too_little_address_space_raises_an_error_of_the_package():
    program = """
import resource, threading, time
import ggml_backend as gb
from ggml_backend.cluster import simulated
gb.Backend("CPU", n_threads=1)
threading.stack_size(64 << 20)
with open("/proc/self/statm") as file:
    used = int(file.read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + (100 << 20), used + (100 << 20)))
try:
    with simulated(3, deadline=5):
        print("began")
except gb.GgmlError as error:
    end = time.monotonic() + 30
    while threading.active_count() > 1 and time.monotonic() < end:  # an ending thread may be listed for a moment
        time.sleep(0.01)
    print(type(error).__name__, threading.active_count())
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120, check=False)
    assert done.stdout.split() == ["AllocationError", "1"], done.stdout + done.stderr
    assert not done.stderr
