"""Tables that benchmarks print: aligned columns, or Markdown for documents."""

from __future__ import annotations

from collections.abc import Sequence


def print_table(rows: Sequence[Sequence[str]], *, markdown: bool) -> None:
    """Prints rows of one length, the titles first. Aligns the first column to the left, all others to the right."""
    if markdown:
        print("\n".join(f"| {' | '.join(line)} |" for line in (rows[0], ["---"] * len(rows[0]), *rows[1:])))
        return
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for line in rows:
        print("  ".join(c.rjust(w) if k else c.ljust(w) for k, (c, w) in enumerate(zip(line, widths, strict=True))))
