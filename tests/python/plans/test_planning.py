"""Memory planning from Python and the command line, against a validator that compares all pairs."""

from __future__ import annotations

import csv
import json
import signal
import threading
import time

import numpy as np
import pytest

import ggml_backend as gb
from ggml_backend.cli import main
from source_tree import ROOT, in_tree

DATA = "tests/data"


def assert_valid(lower, upper, size, offsets, alignment=1):
    lower, upper, size, offsets = (np.asarray(a, np.int64) for a in (lower, upper, size, offsets))
    assert (offsets % alignment == 0).all()
    together = (lower[:, None] < upper) & (lower < upper[:, None])
    overlap = (offsets[:, None] < offsets + size) & (offsets < (offsets + size)[:, None])
    np.fill_diagonal(together, False)
    assert not (together & overlap).any()


def live_bytes(lower, upper, size):
    return max(sum(s for b, e, s in zip(lower, upper, size, strict=True) if b <= t < e) for t in set(lower))


def read(path):
    with open(path, newline="") as file:
        rows = list(csv.DictReader(file))
    return tuple([int(r[name]) for r in rows] for name in ("lower", "upper", "size"))


@pytest.mark.parametrize("alignment", [1, 32])
def test_random(rng, alignment):
    for _ in range(30):
        n = int(rng.integers(1, 60))
        lower = rng.integers(-50, 50, n)
        upper = lower + rng.integers(1, 30, n)
        size = rng.integers(0, 1000, n)
        plan = gb.planning.plan_memory(lower, upper, size, alignment, budget_ms=10)
        rounded = (size + alignment - 1) // alignment * alignment
        assert_valid(lower, upper, rounded, plan.offsets, alignment)
        used = rounded > 0
        assert plan.peak == (int((plan.offsets.astype(np.int64) + rounded)[used].max()) if used.any() else 0)
        assert plan.lower_bound == live_bytes(lower.tolist(), upper.tolist(), rounded.tolist())
        assert plan.lower_bound <= plan.peak <= plan.best_fit
        assert plan.gap == pytest.approx(plan.peak / plan.lower_bound - 1 if plan.lower_bound else 0)
        assert plan.proved or plan.gap > 0


@pytest.mark.parametrize("path", sorted((ROOT / DATA / "model-graphs").glob("*.csv")), ids=lambda p: p.stem)
def test_model_graphs(path):
    lower, upper, size = read(path)
    plan = gb.planning.plan_memory(lower, upper, size)
    assert_valid(lower, upper, size, plan.offsets)
    assert plan.proved
    assert plan.peak == plan.lower_bound == live_bytes(lower, upper, size)


@pytest.mark.parametrize("letter", "ABCGHJ")
def test_published_instances(letter):
    lower, upper, size = read(in_tree(f"{DATA}/minimalloc/{letter}.1048576.csv"))
    plan = gb.planning.plan_memory(lower, upper, size, capacity=1048576, budget_ms=60000)
    assert_valid(lower, upper, size, plan.offsets)
    assert plan.peak <= 1048576


def test_equal_inputs_give_equal_plans(rng):
    lower = rng.integers(0, 60, 100)
    instance = lower, lower + rng.integers(1, 40, 100), rng.integers(1, 5000, 100)
    plans = [gb.planning.plan_memory(*instance, budget_ms=50) for _ in range(2)]
    assert (plans[0].offsets == plans[1].offsets).all()


def test_threads_change_no_plan(rng):
    lower = rng.integers(0, 6000, 3000)
    instance = lower, lower + rng.integers(1, 600, 3000), rng.integers(1, 1 << 20, 3000)
    plans = [gb.planning.plan_memory(*instance, budget_ms=0, n_threads=n) for n in (1, 2, 5)]
    assert_valid(*instance, plans[0].offsets)
    assert all((plan.offsets == plans[0].offsets).all() for plan in plans)
    assert all(plan.unfinished or plan.proved for plan in plans)


def hard(rng, n, part):
    """n buffers with random lifetimes of up to 1 / part of the time. A few milliseconds do not find
    the best plan."""
    lower = rng.integers(0, 2 * n, n)
    return lower, lower + rng.integers(1, 2 * n // part, n), rng.integers(1, 1 << 20, n)


def planned_slowly(instance, **options):
    """A plan during which the clock jumps: a signal handler, which runs after some 20 ms of search,
    uses three times the budget in processor time."""
    burned = []

    def burn(*_):
        end = time.thread_time() + 3e-3 * options["budget_ms"]
        while time.thread_time() < end:
            pass
        burned.append(end)

    before = signal.signal(signal.SIGALRM, burn)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.002)
        plan = gb.planning.plan_memory(*instance, **options)
        if not burned:
            pytest.skip("the plan was made before the signal was heard")
        return plan
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="no timers here")
def test_reproducible_plans_do_not_depend_on_the_clock(rng):
    if threading.current_thread() is not threading.main_thread():
        pytest.skip("signals are handled on the main thread only")
    ended = 0
    for n, part in ((1000, 1), (1000, 3), (2000, 10)):
        instance = hard(rng, n, part)
        plan = gb.planning.plan_memory(*instance, budget_ms=60, reproducible=True)
        assert_valid(*instance, plan.offsets)
        slow = planned_slowly(instance, budget_ms=60, reproducible=True)
        assert (slow.offsets == plan.offsets).all()
        assert (slow.peak, slow.bound, slow.proved, slow.unfinished) == (
            plan.peak, plan.bound, plan.proved, plan.unfinished,
        )  # fmt: skip
        ended += planned_slowly(instance, budget_ms=60).peak > plan.peak
    assert ended, "the clock would have ended no search"


def test_reproducible_plans_do_not_depend_on_threads_and_load(rng):
    over = threading.Event()

    def work():
        while not over.is_set():
            np.sort(np.arange(20000)[::-1])

    instances = [hard(rng, n, part) for n, part in ((300, 1), (1000, 1), (3000, 10), (5000, 30))]
    plans = [gb.planning.plan_memory(*instance, budget_ms=3, reproducible=True) for instance in instances]
    workers = [threading.Thread(target=work) for _ in range(2)]
    for worker in workers:
        worker.start()
    try:
        for instance, plan in zip(instances, plans, strict=True):
            assert_valid(*instance, plan.offsets)
            for n_threads in (1, 2, 4):
                again = gb.planning.plan_memory(*instance, budget_ms=3, n_threads=n_threads, reproducible=True)
                assert (again.offsets == plan.offsets).all()
    finally:
        over.set()
        for worker in workers:
            worker.join()


def test_bound():
    """Eight buffers without a plan at the lower bound. Brute force in C (test_plan_exact.c)
    agrees."""
    lower, upper, size = [1, 5, 3, 4, 9, 11, 7, 0], [2, 9, 8, 6, 12, 12, 12, 5], [4, 1, 3, 2, 2, 2, 4, 3]
    plan = gb.planning.plan_memory(lower, upper, size)
    assert plan.proved
    assert plan.bound_by == "search"
    assert plan.bound == plan.peak == plan.lower_bound + 1 == live_bytes(lower, upper, size) + 1
    plan = gb.planning.plan_memory([0, 1], [2, 3], [4, 4])
    assert plan.bound_by == "load"
    assert plan.bound == plan.lower_bound == 8


def test_capacity():
    assert gb.planning.plan_memory([0, 0], [1, 1], [8, 8], capacity=16).peak == 16
    with pytest.raises(gb.errors.AllocationError, match=r"needs 16 bytes, has 15: no plan fits"):
        gb.planning.plan_memory([0, 0], [1, 1], [8, 8], capacity=15)


def test_nothing():
    plan = gb.planning.plan_memory([], [], [])
    assert plan.peak == plan.lower_bound == 0
    assert plan.proved
    assert plan.gap == 0
    assert plan.offsets.shape == (0,)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (([0], [1, 2], [1]), "1 lower, 2 upper, 1 sizes: the numbers must be equal"),
        (([0.5], [1], [1]), "integers"),
        (([[0]], [1], [1]), "one dimension"),
        (([0], [1], [-1]), "out of range"),
        (([2], [1], [1]), "before its start"),
        (([0], [1], [1], 3), "no power of two"),
        (([0], [1], [1], -1), "alignment"),
        (([0], [1], [1], 1, -5), "capacity"),
        (([0], [1], [1], 1, 0), "capacity"),
        (([0], [1], [1], 1, None, -1), "budget_ms"),
        (([0], [1], [1], 1, None, 0, 0), "n_threads"),
        (([0, 0], [1, 1], [2**63, 2**63]), "overflow"),
    ],
)
def test_bad_arguments(arguments, message):
    with pytest.raises(gb.errors.InvalidArgumentError, match=message):
        gb.planning.plan_memory(*arguments)


def test_command_line(tmp_path, capsys):
    source = in_tree(f"{DATA}/model-graphs/whisper_base_enc.csv")
    out = tmp_path / "out.csv"
    assert main(["plan", str(source), "--align", "64", "--out", str(out), "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert result["proved"] is True
    assert result["peak"] == result["lower_bound"] < result["best_fit"]
    assert result["gap"] == 0
    with open(source, newline="") as a, open(out, newline="") as b:
        given, written = list(csv.DictReader(a)), list(csv.DictReader(b))
    assert [{k: w[k] for k in g} for g, w in zip(given, written, strict=True)] == given
    assert_valid(*read(out), [int(r["offset"]) for r in written], 64)
    assert main(["plan", str(source)]) == 0
    text = capsys.readouterr().out
    assert "proved:      yes" in text
    assert "0.00 %" in text


@pytest.mark.parametrize(
    ("content", "arguments", "message"),
    [
        ("id,lower,upper\n1,2,3\n", [], "no column size"),
        ("id,lower,upper,size\n1,2,x,3\n", [], "line 2"),
        ("id,lower,upper,size\n1,2\n", [], "line 2"),
        ("id,lower,upper,size\na,0,1,10\n", ["--capacity", "9"], "no plan fits"),
        ("id,lower,upper,size\na,0,1,10\n", ["--align", "3"], "power of two"),
        (None, [], "No such file"),
    ],
)
def test_command_line_errors(tmp_path, capsys, content, arguments, message):
    path = tmp_path / "x.csv"
    if content is not None:
        path.write_text(content)
    assert main(["plan", str(path), *arguments]) == 1
    assert message in capsys.readouterr().err


@pytest.mark.parametrize("name", ["alignment", "capacity", "budget_ms"])
def test_wrong_types_say_which_argument(name):
    for wrong in (1.5, "32", [1], float("nan")):
        with pytest.raises(TypeError, match=f"plan_memory: {name} must be an int, not {type(wrong).__name__}"):
            gb.planning.plan_memory([0], [1], [32], **{name: wrong})
    assert gb.planning.plan_memory([0], [1], [32], **{name: np.int64(64)}).peak in (32, 64)


def test_reproducible_is_true_or_false():
    for wrong in (None, 2, "yes", [True]):
        with pytest.raises(TypeError, match=f"plan_memory: reproducible must be a bool, not {type(wrong).__name__}"):
            gb.planning.plan_memory([0], [1], [32], reproducible=wrong)
    for right in (True, False, np.True_, 1):
        assert gb.planning.plan_memory([0], [1], [32], reproducible=right).peak == 32


def test_command_line_reproducible(tmp_path, capsys, rng):
    instance = hard(rng, 1000, 1)
    rows = "".join(f"{i},{a},{b},{c}\n" for i, (a, b, c) in enumerate(zip(*instance, strict=True)))
    source = tmp_path / "hard.csv"
    source.write_text("id,lower,upper,size\n" + rows)
    written = []
    for k, threads in enumerate((1, 3, 1)):
        out = tmp_path / f"{k}.csv"
        arguments = ["--budget-ms", "5", "--threads", str(threads), "--out", str(out), "--json"]
        assert main(["plan", str(source), *arguments, "--reproducible"]) == 0
        peak = json.loads(capsys.readouterr().out)["peak"]
        with open(out, newline="") as file:
            written.append([int(row["offset"]) for row in csv.DictReader(file)])
    plan = gb.planning.plan_memory(*instance, budget_ms=5, reproducible=True)
    assert written == [plan.offsets.tolist()] * 3
    assert peak == plan.peak
    assert main(["plan", "llama", "--reproducible"]) == 2
    assert "--reproducible is for FILE.csv" in capsys.readouterr().err


def test_command_line_says_whether_more_time_would_help(tmp_path, capsys, rng):
    lower = rng.integers(0, 2000, 1000)
    rows = zip(lower, lower + rng.integers(1, 2000, 1000), rng.integers(1, 1 << 20, 1000), strict=True)
    source = tmp_path / "hard.csv"
    source.write_text("id,lower,upper,size\n" + "".join(f"{i},{a},{b},{c}\n" for i, (a, b, c) in enumerate(rows)))
    assert main(["plan", str(source), "--budget-ms", "0", "--threads", "2"]) == 0
    assert "hint: more time would probably give a smaller peak (--budget-ms 100)" in capsys.readouterr().out
    assert main(["plan", str(source), "--budget-ms", "0", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["unfinished"] is True
