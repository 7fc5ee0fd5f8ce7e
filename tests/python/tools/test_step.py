"""tools/step.py reports that a command is running. The Makefile uses it for long commands."""

from __future__ import annotations

import re
import subprocess
import sys
from types import ModuleType

import pytest

from source_tree import in_tree, load_tool

TOOL = in_tree("tools/step.py")
MAKEFILE = TOOL.parent.parent / "Makefile"


@pytest.fixture
def step(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    tool = load_tool("step")
    monkeypatch.setattr(tool, "SILENCE", 0.1)
    return tool


def run(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, str(TOOL), *words], capture_output=True, text=True, timeout=60, check=False)


def script(*lines: str) -> list[str]:
    return [sys.executable, "-c", "\n".join(["import sys, time", *lines])]


def test_output_is_passed_on_with_the_status() -> None:
    done = run("a command", *script("print('one')", "print('two', file=sys.stderr)", "sys.exit(3)"))
    assert done.returncode == 3
    assert {"one", "two"} <= set(done.stdout.split("\n"))
    assert "failed with status 3" in done.stdout


def test_a_quiet_command_prints_only_its_end() -> None:
    done = run("--quiet", "a command", *script("print('one')"))
    assert done.returncode == 0
    assert re.fullmatch(r"a command: done in \d+ s\n", done.stdout)


def test_a_quiet_command_that_fails_shows_the_end_of_its_output() -> None:
    done = run("--quiet", "a command", *script("print(*range(1000), sep='\\n')", "sys.exit(1)"))
    assert done.returncode == 1
    lines = done.stdout.splitlines()
    assert lines[-2] == "999" and "0" not in lines
    assert "failed with status 1" in lines[-1]


def test_a_silent_command_is_reported_with_its_progress(step: ModuleType, capfd: pytest.CaptureFixture[str]) -> None:
    command = script("print('[3/10] compiling', flush=True)", "time.sleep(1)")
    assert step.Step("building", command, True).run() == 0
    out = capfd.readouterr().out
    assert re.search(r"building: still running, \d+ s \[3/10\]\n", out)
    assert "compiling" not in out


def test_a_report_begins_a_line(step: ModuleType, capfd: pytest.CaptureFixture[str]) -> None:
    assert step.Step("tests", script("print('...', end='', flush=True)", "time.sleep(1)"), False).run() == 0
    assert capfd.readouterr().out.startswith("...\ntests: still running")


LONG = r"-m pip|\$\(pip\)|-m pytest|\$\(pytest\)|cmake -S|cmake --build|ctest|-m mypy|-m sphinx|examples\.embed|run\.sh"


def test_the_makefile_reports_every_long_command() -> None:
    text = MAKEFILE.read_text(encoding="utf-8").replace("\\\n", " ")
    recipes = [line.strip() for line in text.splitlines() if line.startswith("\t")]
    long = [line for line in recipes if re.search(LONG, line)]
    assert len(long) >= 15
    assert [line for line in long if not re.match(r"@?\$\((step|quiet)\) \"", line)] == []


def test_caches_of_programs_stay_in_the_tree() -> None:
    text = MAKEFILE.read_text(encoding="utf-8")
    assert re.search(r"^export XDG_CACHE_HOME *:= \$\(CURDIR\)/build/", text, re.M)
    assert "--basetemp build/" in text
