"""Flags of the environment do not change the code of the library (tools/check_flags.py)."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[3]


@pytest.mark.skipif(os.name != "posix" or shutil.which("cmake") is None, reason="needs cmake and a Unix compiler")
def test_fast_math_in_cflags_changes_no_code() -> None:
    tool = [sys.executable, str(ROOT / "tools" / "check_flags.py")]
    done = subprocess.run(tool, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
