"""Prints the first Python block of README.md, which check_long.sh runs as a new user would."""

from __future__ import annotations

import re
from pathlib import Path

text = (Path(__file__).parents[1] / "README.md").read_text(encoding="utf-8")
match = re.search(r"```python\n(.*?)```", text, re.DOTALL)
if match is None:
    raise SystemExit("README.md has no Python block")
print(match[1])
