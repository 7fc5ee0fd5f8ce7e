"""The attack harnesses, each for a few seconds; ``make check-long`` gives them ten minutes each. A failure names the seed: run the command again
with ``--seed`` and it begins alike."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
HARNESSES = {
    "interrupts": ["harness_interrupts.py"],
    "failed allocations": ["harness_interrupts.py", "--no-memory"],
    "interrupts everywhere": ["harness_interleave.py"],
    "handlers everywhere": ["harness_interleave.py", "--mode", "handlers"],
    "threads everywhere": ["harness_interleave.py", "--mode", "threads"],
    "closing": ["harness_closing.py"],
    "pairs": ["harness_closing.py", "--pairs"],
    "zeros": ["harness_zeros.py"],
    "fork": ["harness_fork.py"],
}


@pytest.mark.parametrize("name", HARNESSES)
def test_holds(name, prompt_frees, capsys):
    file, *flags = HARNESSES[name]
    seconds = os.environ.get("GB_HARNESS_SECONDS", "8")
    seed = os.environ.get("GB_HARNESS_SEED", "1")
    command = [sys.executable, str(HERE / file), *flags, "--seconds", seconds, "--seed", seed]
    done = subprocess.run(command, capture_output=True, text=True, errors="replace", check=False)
    with capsys.disabled():
        print(f" [{name}: {done.stdout.strip().splitlines()[0] if done.returncode == 0 else 'failed'}] ", end="", flush=True)
    assert done.returncode == 0, done.stdout[-8000:] + done.stderr[-2000:]
