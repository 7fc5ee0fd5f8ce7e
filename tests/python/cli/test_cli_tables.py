"""Tables of commands: order of rows, headings, marks of unreliable figures, and units."""

from __future__ import annotations

import re

import numpy as np
import pytest

import ggml_backend as gb
from ggml_backend._base.text import count
from ggml_backend.cli import main
from ggml_backend.profile import _limits as machine
from ggml_backend.profile._limits import MachineLimits, Presence, limits_from_json, limits_to_json, notes_on

# ----------------------------------------------------------------------------------------------------------------- plan


def test_a_plan_begins_with_the_needed_memory(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "llama", "--devices", "SIM", "CPU"]) == 0
    out = capsys.readouterr().out
    lines = out.splitlines()
    assert re.fullmatch(r"it needs [\d.]+ MiB on SIM\d+, 0 B on CPU", lines[0])
    assert lines.index("memory, in bytes") < next(i for i, line in enumerate(lines) if "splits |" in line)


# ---------------------------------------------------------------------------------------------------------------- bench


def test_bench_has_headings_and_a_legend(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "products", "--types", "q4_k", "--quick", "--threads", "1", "--seconds", "0.0005"]) == 0
    out = capsys.readouterr().out
    (head,) = re.findall(r"^case .*$", out, re.M)
    assert head.split() == ["case", "rate", "unit", "limit", "share", "bound", "algorithm"]
    for word in ("rate:", "limit:", "share:", "bound:", "m, k, n:"):
        assert word in out[: out.index(head)]
    rows = re.findall(r"^q4_k .*$", out, re.M)
    assert len(rows) == 6 and all(row[65:].split()[0] in ("GB/s", "GFLOP/s") for row in rows)


def test_limits_of_a_busy_machine_are_marked(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(Presence, "share", property(lambda self: 0.4))
    command = ["bench", "products", "--types", "q4_k", "--quick", "--threads", "1", "--seconds", "0.0005"]
    assert main(command) == 0
    assert "note: other processes used this machine: the limits were measured with 40%" in capsys.readouterr().out
    assert main([*command, "--cpu"]) == 0  # processor time does not depend on other processes
    assert "note: other processes" not in capsys.readouterr().out


def test_presence_is_processor_time_by_the_time_of_all_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, worked = iter([0.0, 1.0]), iter([0.0, 1.0])
    monkeypatch.setattr(machine, "measured_rate", lambda *a: 1.0)
    monkeypatch.setattr(machine.time, "perf_counter", lambda: next(clock))
    monkeypatch.setattr(machine.time, "process_time", lambda: next(worked))
    presence = Presence()
    assert presence.share == 1.0
    assert presence.measured_rate("f32", "scalar", 0, 2, 1.0) == 1.0
    assert presence.share == 0.5
    assert "50%" in notes_on(0.5, [0.9, None])[0] and notes_on(0.95, [0.9, None]) == []


# -------------------------------------------------------------------------------------------------------------- profile


def profile_of(*names: str) -> gb.profile.Profile:
    ctx, cpu = gb.Context(), gb.Backend("CPU", n_threads=1)
    x = ctx.constant(np.ones((4, 8), np.float32))
    y = gb.ops.relu(x) * 2
    for tensor, name in zip((y.sources[0], y), names, strict=False):
        tensor.named(name)
    graph, sched = ctx.graph(y), gb.Scheduler(cpu)
    with sched.profile() as profile:
        sched.compute(graph)
    return profile


def test_rows_are_kinds_if_no_node_has_a_name() -> None:
    rows = profile_of().table(limits=False)
    assert all(row.name == row.kind for row in rows)
    assert not all(row.name == row.kind for row in profile_of("hidden", "y").table(limits=False))


def low_limits() -> MachineLimits:
    """Limits that every machine exceeds a thousand times."""
    return MachineLimits("any", 1, dict.fromkeys(("f32", "bytes", "bf16"), 1e3), {1 << 28: 1e3}, {1 << 28: 1e3}, 0.5)


def test_impossible_shares_and_a_busy_machine_are_marked(monkeypatch: pytest.MonkeyPatch) -> None:
    profile = profile_of()
    levels = profile.limits()
    monkeypatch.setattr(gb.profile.Profile, "limits", lambda self, **_: dict.fromkeys(levels, low_limits()))
    table = profile.table()
    assert re.search(r"\d%! ", str(table))
    assert [note.split(":")[0] for note in table.notes] == [
        "other processes used this machine", "shares above 100% (!) are impossible",
    ]  # fmt: skip
    assert str(table).count("\nnote: ") == 2 and table._repr_html_().count("<p>Note: ") == 2
    monkeypatch.setattr(gb.profile.Profile, "limits", lambda self, **_: {})
    assert profile.table().notes == ()


def test_presence_is_kept_in_files() -> None:
    data = limits_to_json(low_limits())
    assert limits_from_json(data).presence == 0.5
    del data["presence"]  # a file of an earlier version
    assert limits_from_json(data).presence == 1.0


# ---------------------------------------------------------------------------------------------------------------- nouns


@pytest.mark.parametrize(
    ("n", "noun", "text"),
    [(1, "run", "1 run"), (0, "run", "0 runs"), (2, "copy", "2 copies"), (1, "copy", "1 copy"), (1, "leaf", "1 leaf"),
     (2, "key", "2 keys"), (1000, "byte", "1,000 bytes"), (1000, "leaf", "1,000 leafs")],
)  # fmt: skip
def test_nouns_agree_with_their_number(n: int, noun: str, text: str) -> None:
    assert count(n, noun) == text


def test_texts_of_objects_agree_with_their_numbers(tmp_path) -> None:
    with gb.gguf.Writer(tmp_path / "one.gguf") as writer:
        writer.add("general.architecture", "x").add_tensor("t", np.ones(4, np.float32))
        texts = [repr(writer)]
    with gb.gguf.open(tmp_path / "one.gguf") as file:
        weights = file.load(gb.Backend("CPU"))
        texts += [repr(file), repr(file.metadata), repr(file.tensors), repr(weights)]
    ctx, cpu = gb.Context(), gb.Backend("CPU", n_threads=1)
    graph = ctx.graph(gb.ops.relu(ctx.constant(np.ones((1,), np.float32))))
    sched = gb.Scheduler(cpu)
    with sched.trace(), sched.profile() as profile:
        sched.compute(graph)
    plan = sched.prepare(graph)
    texts += [repr(graph), repr(sched), repr(sched.splits[0]), str(sched.stats), repr(plan), plan.to_text()]
    texts += [repr(profile), str(profile.table(limits=False)), repr(profile.table(limits=False))]
    for text in texts:
        assert re.findall(r"\b1 [a-z]+s\b(?<!us)(?<!ms)", text) == [], text
