"""Names of devices in tests and documents are unique: a name stays registered for the life of the
process.
"""

from __future__ import annotations

import re
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).parents[3]
REGISTERED = re.compile(r"""register_device\(\s*["'](\w+)["']""")


def test_no_two_files_register_the_same_device_name():
    files: dict[str, set[str]] = defaultdict(set)
    for folder, pattern in (("tests/python", "*.py"), ("docs", "*.md"), ("examples", "*.py"), (".", "README.md")):
        for path in (ROOT / folder).rglob(pattern) if folder != "." else [ROOT / pattern]:
            for name in REGISTERED.findall(path.read_text()):
                files[name.upper()].add(str(path.relative_to(ROOT)))
    assert len(files) > 30
    assert {name: sorted(where) for name, where in files.items() if len(where) > 1} == {}
