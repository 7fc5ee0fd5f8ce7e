"""A forked child: the objects of the parent work or raise, and new objects work."""

from __future__ import annotations

import textwrap

import pytest

from harness_scene import SANITIZED
from programs import PATIENCE

pytestmark = pytest.mark.slow


def forked(act: str, rounds: int = 40) -> str:
    """A program that forks while threads compute. Each child runs ``act`` and must end with status
    0 within ten seconds."""
    return f"""
sys.setswitchinterval(1e-4)
faulthandler.cancel_dump_traceback_later()  # its thread would be missing in the child
ctx, x, y, g, s = small(gb.Scheduler([sim, cpu]), 16)
others = [small(gb.Scheduler([gb.Backend("CPU", n_threads=2)]), 16) for _ in range(2)]
over = threading.Event()
def busy(mine):
    def loop():
        while not over.is_set():
            mine[1].set(1.0); mine[4].compute(mine[3]); mine[2].numpy()
            with gb.Context() as c, gb.Scheduler([cpu]) as q:
                t = c.tensor(8); h = c.graph(t * 2.0); q.allocate(h); t.set(1.0); q.compute(h)
    return loop
threads = [thread(busy(o)) for o in others] + [thread(busy((ctx, x, y, g, s)))]
def new():
    with gb.Context() as c, gb.Backend("CPU", n_threads=2) as b, gb.Backend("SIM") as d, gb.Scheduler([d, b]) as q:
        t = c.tensor(8); r = t * 2.0; h = c.graph(r); q.allocate(h); t.set(3.0); q.compute(h)
        assert (r.numpy() == 6).all()
        w = c.from_numpy(np.ones((8, 8), np.float32))
        u = gb.ops.relu(w @ w); h = c.graph(u); q.allocate(h); q.compute(h)
        assert (u.numpy() == 8).all()
def old(o):
    ctx, x, y, g, s = o
    for act in (lambda: y.numpy(copy=True), lambda: x.numpy(copy=True), lambda: x.set(1.0), lambda: s.compute(g),
                lambda: y.numpy(copy=True),
                lambda: s.splits, lambda: gb.ops.relu(x), lambda: s.reset(), lambda: s.allocate(g), lambda: x.set(1.0),
                lambda: s.compute(g)):
        try: got = act()
        except OURS: continue
        if isinstance(got, np.ndarray): assert set(got.reshape(-1).tolist()) <= {{1.0, 3.0}}, got
    for thing in (s, ctx):
        try: thing.close()
        except OURS: pass
    gc.collect()
def act():
{textwrap.indent(textwrap.dedent(act), " " * 4)}
children = Children()
for i in range({rounds}):
    time.sleep(random.uniform(0, 0.004))
    children(act, {90 if SANITIZED else 12})
    if children.enough: break
over.set()
faulthandler.dump_traceback_later(60, exit=True)
for t in threads: t.finish()
children.check()
"""


def test_new_objects_work_in_a_forked_child(holds):
    holds(forked("new(); thread(new).finish(); gc.collect()"), patience=3 * PATIENCE)


def test_old_objects_work_or_raise_in_a_forked_child(holds):
    holds(
        forked("""
    for o in ((ctx, x, y, g, s), *others): old(o)
    new()
    """),
        patience=3 * PATIENCE,
    )


def test_a_pending_run_is_valid_or_an_error_in_a_forked_child(holds):
    holds(
        """
    faulthandler.cancel_dump_traceback_later()
    slow = gb.Backend("SIM", delay="20ms")
    children = Children()
    for i in range(25):
        ctx, x, y, g, s = small(gb.Scheduler([slow, cpu]), 64)
        x.set(2.0)
        p = s.compute_async(g, [y])
        time.sleep(random.uniform(0, 0.03))
        def act():
            for read in (lambda: p.results()[0], lambda: y.numpy(copy=True)):
                try: got = read()
                except OURS: continue
                assert (got == 5).all(), got
        children(act)
        if children.enough: break
        assert (p.results()[0] == 5).all()
    children.check()
    """,
        patience=3 * PATIENCE,
    )


QUESTIONS = [
    "s.stats", "s.reset_stats()", "s.splits", "s.n_splits", "s.explain(y)", "s.get_backend(y)", "s.set_backend(y, cpu)",
    "s.memory(cpu), s.buffer_nbytes(slow)",
    "s.prediction", "s.trace().stop()", "repr(s)", "s.prepare(g, allocate=False).memory",
    "plan.memory, plan.splits, repr(plan)",
    "setattr(s, 'n_copies', 2)", "s.set_eval_callback(None)", "s.synchronize()", "repr(p), p.wait()",
    "slow.synchronize()", "y.location, repr(y), y.is_placed",
    "g.to_dot()", "s.reset()", "s.allocate(g)", "s.close()", "slow.close()",
]  # fmt: skip


@pytest.mark.parametrize(("question", "recorded"), [
    *((q, False) for q in QUESTIONS),
    *((q, True) for q in ("trace.stop()", "s.trace()", "s.stats", "s.reset_stats()", "s.splits", "s.synchronize()",
     "s.close()")),
])  # fmt: skip
def test_queries_of_a_busy_scheduler_end_in_a_forked_child(holds, question, recorded):
    """A run is pending, and another thread computes. Each query returns in the child, or raises."""
    holds(f"""
    faulthandler.cancel_dump_traceback_later()
    slow = gb.Backend("SIM", delay="10ms"); one = gb.Backend("CPU", n_threads=2)
    ctx, x, y, g, s = small(gb.Scheduler([slow, one]), 64)
    plan = s.prepare(g)
    trace = s.trace() if {recorded} else None
    over = threading.Event()
    busy = thread(again(lambda: s.compute(g), over))
    ended = {{}}
    for i in range(6):
        try: p = s.compute_async(g, [y])
        except OURS: pass
        time.sleep(random.uniform(0, 0.01))
        pid = os.fork()
        if pid == 0:
            status = 1
            try:
                signal.alarm({90 if SANITIZED else 15})
                for _ in range(2):
                    try: {question}
                    except OURS: pass
                status = 0
            except BaseException:
                import traceback; traceback.print_exc()
            finally:
                os._exit(status)
        status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        ended[status] = ended.get(status, 0) + 1
    over.set(); busy.finish()
    assert set(ended) == {{0}}, f"children by exit status: {{ended}} (-14: they hang)"
    """)
