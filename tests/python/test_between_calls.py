"""What is left behind when an exception comes between two steps of one call, and questions about what another call has changed meanwhile."""

from __future__ import annotations

import gc
import sys

import numpy as np
import pytest

import ggml_backend as gb
from test_holes import holds  # noqa: F401 - a fixture

# An exception before the line that comes after `n` others in a function of the package, as a signal handler's may.
INTERRUPT = """
def interrupted(name, n, act):
    left = [n]
    def trace(frame, event, arg):
        if frame.f_code.co_name == name:
            if event == "line":
                left[0] -= 1
                if left[0] < 0:
                    sys.settrace(None)
                    raise KeyboardInterrupt
            return trace
    sys.settrace(trace)
    try: act()
    except KeyboardInterrupt: return True
    finally: sys.settrace(None)
    return False
"""


# -------------------------------------------------------------------------------------------------------------- custom operations


@pytest.mark.parametrize("how", ["graph", "scheduler", "copy"])
def test_a_copied_graph_has_the_custom_operations(holds, how):  # noqa: F811
    """Also when the original and its context are gone."""
    program = """
        def make():
            ctx = gb.Context()
            x = ctx.tensor(4)
            g = ctx.graph(gb.map_custom(lambda out, a: a * 2, x) + 1.0)
            ctx.allocate(cpu); x.set(3.0)
            return g.copy(cpu)
        cpu = gb.Backend("CPU", n_threads=1)
        k = make()
        if HOW == "copy": k = k.copy(cpu)
        run = (lambda: gb.Scheduler([cpu]).compute(k)) if HOW == "scheduler" else (lambda: k.compute(cpu))
        for _ in range(3):
            assert run() and k.outputs[0].tolist() == [7.0] * 4, k.outputs[0].tolist()
            gc.collect(); junk = [gb.Context().tensor(3) for _ in range(20)]
        def boom(out, a): raise ZeroDivisionError
        ctx = gb.Context(); x = ctx.tensor(4); g = ctx.graph(gb.map_custom(boom, x)); ctx.allocate(cpu); x.set(3.0)
        k = g.copy(cpu)
        for _ in range(2):
            try: run()
            except ZeroDivisionError: pass
            else: raise SystemExit("nothing was raised")
    """
    holds(program.replace("HOW", repr(how)))


def test_a_custom_operation_that_was_interrupted_while_it_was_made_can_be_run(holds):  # noqa: F811
    holds(
        INTERRUPT
        + """
cpu = gb.Backend("CPU", n_threads=1)
for name in ("map_custom", "build"):
    n = 0
    while True:
        ctx = gb.Context(); x = ctx.tensor(4)
        if not interrupted(name, n, lambda: gb.map_custom(lambda out, a: a * 2, x)): break
        n += 1; gc.collect(); junk = [object() for _ in range(1000)]
        node = ctx.tensors()[-1]
        if node.op == "NONE": continue
        g = ctx.graph(node); ctx.allocate(cpu); x.set(3.0)
        assert g.compute(cpu) and node.tolist() == [6.0] * 4
    assert n > 5
"""
    )


# ----------------------------------------------------------------------------------------------------------------- abort callbacks


def test_an_abort_callback_that_was_interrupted_while_it_was_set_is_there_or_not(holds):  # noqa: F811
    holds(
        INTERRUPT
        + """
ctx, x, y, g, s = small()
cpu = s.backends[0]

for first in (None, lambda: False):
    for then in (None, lambda: False):
        n = 0
        while True:
            gb.set_abort_callback(cpu, None)
            gb.set_abort_callback(cpu, first)
            again = interrupted("set_abort_callback", n, lambda: gb.set_abort_callback(cpu, then))
            n += 1; gc.collect(); junk = [object() for _ in range(1000)]
            assert s.compute(g) and s.compute(g)
            if not again: break
        assert n > 4
"""
    )


def test_abort_callbacks_do_not_keep_their_backend():
    backend = gb.Backend("CPU", n_threads=1)
    gb.set_abort_callback(backend, lambda: backend.closed)
    core = backend._core.__class__
    before = sum(isinstance(o, core) for o in gc.get_objects())
    del backend
    gc.collect()
    assert sum(isinstance(o, core) for o in gc.get_objects()) == before - 1
