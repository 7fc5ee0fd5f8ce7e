"""A failed allocation is an error, and leaves all objects usable."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import threading

import numpy as np
import pytest

import ggml_backend as gb
from harness_scene import SANITIZED
from programs import PATIENCE

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("act", [
    "s.compute(g)", "s.reset(); s.allocate(g); x.set(1.0)", "with_trace()", "x.set(1.0)", "y.numpy()",
    "gb.ops.relu(x + x)", "open_and_close()", "t.copy_from(x)",
    "s.compute(g, lambda t: t.numpy() is not None)", "s.compute_async(g, [y]).results()",
])  # fmt: skip
def test_failed_allocations_leave_objects_usable(holds, act):
    pytest.importorskip("_testcapi", reason="this Python has no _testcapi")
    holds(
        f"""
    import _testcapi
    ctx, x, y, g, s = small(gb.Scheduler([sim, cpu]))
    own = gb.Context(allocate=True); t = own.tensor((4, 4))
    def open_and_close():
        with gb.Context() as c, gb.Scheduler([cpu]) as q:
            u = c.tensor(3); h = c.graph(u * 2.0); q.allocate(h); u.set(1.0); q.compute(h)
    def with_trace():
        trace = s.trace()
        try: s.compute(g)
        finally: trace.stop()
    def right():
        global s
        s.allocate(g); x.set(3.0)
        assert s.compute(g) is True
        assert (y.numpy(copy=True) == 7).all()
        t.copy_from(x)
        open_and_close()
    def act(): {act}
    act(); right()
    ignored = []
    sys.unraisablehook = lambda hook: ignored.append(type(hook.exc_value))
    quiet = n = 0
    while quiet < 30 and n < 1200:
        error = None
        _testcapi.set_nomemory(n, n + 1)
        try:
            try: act()
            finally: _testcapi.remove_mem_hooks()
        except BaseException as e:
            error = type(e), str(e)
        if error is None: quiet += 1
        else:
            quiet = 0
            kind, message = error
            # errors of NumPy, cffi and threading; outdated results, lost inputs
            known = issubclass(kind, (MemoryError, SystemError, gb.errors.StateError))
            assert known or "can't" in message, error
            if "recorded already" in message: s = gb.Scheduler([sim, cpu])
        both(right)
        n += 1
    assert set(ignored) <= {{MemoryError}}, ignored
    """,
        patience=3 * PATIENCE,
    )


def test_small_graphs_need_little_memory(ctx):
    """Repeatedly making a graph of one node does not fill the memory."""
    x = ctx.tensor(4)
    y = x * 2.0
    before = ctx.used_nbytes
    for _ in range(1000):
        ctx.graph(y)
    assert ctx.used_nbytes - before < 1000 * 4096


def test_quantize_works_if_threads_cannot_start(monkeypatch):
    def refuse(self: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    values = np.linspace(-1, 1, 512 * 4096, dtype=np.float32).reshape(512, 4096)
    expected = gb.quantize(values, "q8_0", n_threads=1)
    monkeypatch.setattr(threading.Thread, "start", refuse)
    np.testing.assert_array_equal(gb.quantize(values, "q8_0", n_threads=4), expected)
    assert np.abs(gb.dequantize(expected, "q8_0", n_threads=4) - values).max() < 0.01


# malloc, calloc or realloc fails once, in the n-th call from the package's module.
FAILING = r"""
#include <stddef.h>
#include <stdint.h>
extern void *__libc_malloc(size_t), *__libc_calloc(size_t, size_t), *__libc_realloc(void *, size_t);
static uintptr_t begin, end;
static long left;
int failing_hit;
void failing_set(uintptr_t b, uintptr_t e, long n) {
    begin = b; end = e; left = n; failing_hit = n > 0 ? 0 : failing_hit;
}
static int fails(void * from) {
    uintptr_t at = (uintptr_t) from;
    return left > 0 && at >= begin && at < end && --left == 0 ? (failing_hit = 1) : 0;
}
void * malloc(size_t n) { return fails(__builtin_return_address(0)) ? NULL : __libc_malloc(n); }
void * calloc(size_t n, size_t size) { return fails(__builtin_return_address(0)) ? NULL : __libc_calloc(n, size); }
void * realloc(void * p, size_t n) { return fails(__builtin_return_address(0)) ? NULL : __libc_realloc(p, n); }
"""


@pytest.fixture(scope="session")
def failing(tmp_path_factory: pytest.TempPathFactory) -> str:
    compiler = shutil.which("cc")
    if (
        not sys.platform.startswith("linux")
        or os.confstr("CS_GNU_LIBC_VERSION") is None
        or compiler is None
        or SANITIZED
    ):
        pytest.skip("needs glibc, a C compiler, and malloc for itself")
    folder = tmp_path_factory.mktemp("failing")
    (folder / "failing.c").write_text(FAILING)
    subprocess.run([compiler, "-shared", "-fPIC", "-O1", "-o", folder / "failing.so", folder / "failing.c"], check=True)
    return str(folder / "failing.so")


FAIL = """
import ctypes
from ggml_backend._ffi import ffi
with open("/proc/self/maps") as maps:
    spans = [[int(a, 16) for a in line.split()[0].split("-")] for line in maps if "_ffi." in line]
this = ctypes.CDLL(None)
hit = ctypes.c_int.in_dll(this, "failing_hit")
def fail(n):
    begin, end = min(a for a, _ in spans), max(b for _, b in spans)
    this.failing_set(ctypes.c_size_t(begin), ctypes.c_size_t(end), ctypes.c_long(n))
"""


@pytest.mark.parametrize("build", ["new.view(w)", "x + w"])
def test_a_failed_record_of_another_context_fails_the_call(holds, failing, build):
    holds(
        FAIL
        + f"""
def act():
    old, new = gb.Context(usage="weights"), gb.Context()
    w, x = old.tensor((8, 8), name="w"), new.tensor((8, 8))
    fail(attempt)
    try: t = {build}
    except MemoryError: return None
    finally: fail(0)
    return t._k, t._p
for attempt in range(1, 400):
    made = act()
    gc.collect(); junk = [gb.Context().tensor(3) for _ in range(20)]
    if made is not None:
        kept, p = made
        while p.view_src or any(p.src): p = p.view_src or [s for s in p.src if s][-1]
        assert ffi.string(p.name) == b"w", (attempt, ffi.string(p.name))
    if not hit.value: break
assert 1 < attempt < 399
""",
        {"LD_PRELOAD": failing},
    )


@pytest.mark.parametrize("call", ["measure", "allocate"])
def test_allocators_report_failed_allocations(holds, failing, call):
    holds(
        FAIL
        + f"""
for attempt in range(1, 400):
    ctx = gb.Context(); x = ctx.tensor((8, 8)); g = ctx.graph(gb.ops.relu(x @ x))
    allocator = gb.sched.GraphAllocator(cpu)
    fail(attempt)
    try: needs = allocator.{call}(g)
    except MemoryError: needs = 1
    finally: fail(0)
    assert needs, attempt
    if not hit.value: break
    allocator.allocate(g); x.set(1.0)
    assert g.compute(cpu)
assert 1 < attempt < 399
""",
        {"LD_PRELOAD": failing},
    )
