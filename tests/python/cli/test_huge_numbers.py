"""A command works in proportion to the size of its files, not to the numbers in them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow


def test_work_does_not_grow_with_numbers_in_files(tmp_path: Path) -> None:
    program = Path(__file__).with_name("huge_numbers.py")
    done = subprocess.run(
        [sys.executable, str(program), str(tmp_path)], capture_output=True, text=True, timeout=900, check=False
    )
    assert done.returncode == 0, done.stderr
    *failed, last = done.stdout.splitlines()
    assert not failed, "\n".join(failed)
    assert int(last.split()[0]) > 900
