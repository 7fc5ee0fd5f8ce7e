#!/usr/bin/env python3
"""Draws docs/pictures/*.svg for README and docs: plans of example graphs on simulated devices.

    tools/draw_docs.py            uses the installed package

tests/python/docs/test_drawn.py fails if the package draws other pictures.
"""

from __future__ import annotations

import sys
import warnings
from pathlib import Path

FOLDER = Path(__file__).resolve().parent.parent / "docs" / "pictures"

#: File -> graph, devices, title.
PICTURES = {
    "encoder.svg": ("embed", ["SIM:name=GPU"], "An encoder of four layers on one device"),
    "two-devices.svg": (
        "llama", ["SIM:name=NPU,noops=soft_max", "SIM:name=GPU"], "Four layers of a Llama; the NPU has no softmax",
    ),
}  # fmt: skip


def drawn() -> dict[str, str]:
    """The pictures that the package draws now, by file name."""
    from ggml_backend.cli.examples.models import prepare
    from ggml_backend.errors import PerformanceWarning

    found = {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", PerformanceWarning)
        for name, (source, devices, title) in PICTURES.items():
            with prepare(source, devices) as made:
                found[name] = made.plan.to_svg(width=960, title=title) + "\n"
    return found


def main() -> int:
    FOLDER.mkdir(exist_ok=True)
    for name, text in drawn().items():
        (FOLDER / name).write_text(text, "utf-8")
        print(f"docs/pictures/{name}: {len(text) // 1000} kB")
    return 0


if __name__ == "__main__":
    sys.exit(main())
