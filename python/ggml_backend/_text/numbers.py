"""Numbers in texts for people."""

from __future__ import annotations

__all__ = ["counted"]


def counted(n: int, noun: str) -> str:
    """``1 run``, ``2 runs``, ``1,000 copies``."""
    if n == 1:
        return f"1 {noun}"
    ending = "ies" if noun.endswith("y") else "s"
    return f"{n:,} {noun.removesuffix('y') if ending == 'ies' else noun}{ending}"
