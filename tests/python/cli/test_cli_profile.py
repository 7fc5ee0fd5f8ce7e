"""``python -m ggml_backend profile``: the graphs that it runs, its output and its files."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import ggml_backend as gb

SCRIPT = """
import sys
import numpy as np, ggml_backend as gb
import beside
ctx = gb.Context()
x = ctx.constant(np.ones((4, 64), np.float32))
for i in range(2):
    x = gb.ops.soft_max(x @ ctx.constant(np.eye(64, dtype=np.float32), name=f"blk.{i}.weight").T)
graph = ctx.graph(x)
for backend in ([gb.Backend("CPU", n_threads=1)], [gb.Backend("CPU", n_threads=2)]):
    with gb.Scheduler(backend) as sched:
        for _ in range(3):
            sched.compute(graph)
print(__name__, sys.argv[1:], beside.THERE)
if "exit" in sys.argv:
    sys.exit(7)
if "raise" in sys.argv:
    raise ValueError("of the script")
if "text" in sys.argv:
    sys.exit("gone")
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "beside.py").write_text("THERE = True\n")
    (tmp_path / "program.py").write_text(SCRIPT)
    return tmp_path


def run(folder: Path, *arguments: str, **options: Any) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "ggml_backend", "profile", *arguments],
        cwd=folder, capture_output=True, text=True, timeout=240, check=False, **options,
    )  # fmt: skip


def test_a_script_is_run_as_python_runs_it(folder):
    for arguments in (["program.py", "--by", "x"], ["-m", "program", "--by", "x"], [str(folder / "program.py")]):
        done = run(folder, "--no-limits", *arguments)
        assert (done.returncode, done.stderr) == (0, "")
        first, title, head, *rows = done.stdout.splitlines()
        assert first == f"__main__ {['--by', 'x'] if 'x' in arguments else []} True"
        assert title.startswith("6 runs, ")
        assert "24 records" in title
        assert head.split()[:3] == ["name", "operators", "algorithm"]
        assert len(rows) == 4
        assert sum("blk.0.weight" in row for row in rows) == 1


def test_groups_and_limits(folder):
    done = run(folder, "--by", "kind", "--sort", "name", "program.py")
    rows = [row for row in done.stdout.splitlines()[3:] if not row.startswith("note: ")]  # notes about a busy machine
    assert [row.split()[0] for row in rows] == ["MUL_MAT", "SOFT_MAX"]
    assert all(row.split()[-2].rstrip("!").endswith("%") for row in rows)
    done = run(folder, "--no-limits", "--pattern", "blk.0.*", "--pattern", "blk.1.*", "--sort", "name", "program.py")
    assert [row.split()[0] for row in done.stdout.splitlines()[3:]] == ["(others)", "blk.0.*", "blk.1.*"]
    done = run(folder, "--no-limits", "--regex", r"blk\.(\d)", "--sort", "name", "--top", "2", "program.py")
    assert [row.split()[0] for row in done.stdout.splitlines()[3:]] == ["(others)", "0"]


def test_files_of_the_profile_command(folder):
    done = run(folder, "--no-limits", "--json", "a.json", "--trace", "a.trace.json", "program.py")
    assert done.returncode == 0, done
    profile = gb.profile.Profile.from_json(folder / "a.json")
    assert len(profile.records) == 24
    trace = json.loads((folder / "a.trace.json").read_text())
    assert sum(e["ph"] == "X" for e in trace["traceEvents"]) == 24
    done = run(folder, "--no-limits", "--by", "kind", "--compare", "a.json", "program.py")
    assert done.returncode == 0, done
    assert "compared with a.json:" in done.stdout
    assert done.stdout.splitlines()[-1].split()[0] in ("MUL_MAT", "SOFT_MAX")
    assert json.loads((folder / "a.json").read_text())["limits"] == []


@pytest.mark.parametrize(("word", "status", "said"), [
    ("exit", 7, ""), ("text", 1, "gone\n"), ("raise", 1, "ValueError: of the script"),
])  # fmt: skip
def test_the_exit_status_is_that_of_the_script(folder, word, status, said):
    """The command also prints what the script computed before it ended."""
    done = run(folder, "--no-limits", "program.py", word)
    assert done.returncode == status
    assert said in done.stderr
    assert "24 records" in done.stdout
    if word == "raise":
        assert "cli/profile.py" not in done.stderr


@pytest.mark.parametrize(("arguments", "status", "words"), [
    ([], 2, ["usage", "SCRIPT"]),
    (["none.py"], 1, ["there is no file none.py"]),
    (["--compare", "none.json", "program.py"], 1, ["none.json"]),
    (["--compare", "beside.py", "program.py"], 1, ["not a profile"]),
    (["--by", "length", "program.py"], 2, ["--by"]),
    (["--by", "kind", "--pattern", "x", "program.py"], 2, ["--by"]),
    (["--regex", "(", "program.py"], 2, ["--regex"]),
    (["--top", "0", "program.py"], 2, ["--top"]),
    (["-m", "no_such_module"], 1, ["no_such_module"]),
])  # fmt: skip
def test_errors(folder, arguments, status, words):
    done = run(folder, *arguments)
    assert done.returncode == status, done
    assert all(word in done.stderr for word in words), done.stderr
    if status == 1:
        assert len(done.stderr.splitlines()) == 1, done.stderr


def test_an_interrupted_script_and_a_script_with_threads(folder: Path) -> None:
    computes = SCRIPT.split("for backend")[0]
    (folder / "stopped.py").write_text(
        f"{computes}gb.Scheduler([gb.Backend('CPU')]).compute(graph)\nraise KeyboardInterrupt"
    )
    (folder / "threads.py").write_text(
        f"{computes}import threading, time\n"
        "def later():\n    time.sleep(0.3)\n    gb.Scheduler([gb.Backend('CPU')]).compute(graph)\n"
        "threading.Thread(target=later).start()\n"
    )
    for name, status in (("stopped.py", 130), ("threads.py", 0)):
        command = [sys.executable, "-m", "ggml_backend", "profile", "--no-limits", "--json", "p.json", "--", name]
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=120, check=False)
        assert done.returncode == status, done.stderr
        assert "MUL_MAT" in done.stdout
        assert len(gb.profile.Profile.from_json(folder / "p.json").runs) == 1
        (folder / "p.json").unlink()


def test_output_files_are_checked_before_the_script_runs(folder: Path) -> None:
    command = [sys.executable, "-m", "ggml_backend", "profile", "--json", "/nowhere/p.json", "beside.py"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 1 and "/nowhere/p.json" in done.stderr and not done.stdout
