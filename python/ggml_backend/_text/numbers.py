"""Numbers in texts for people."""

from __future__ import annotations

__all__ = ["counted"]


def counted(n: int, noun: str) -> str:
    """``1 run``, ``2 runs``, ``1,000 copies``."""
    if n == 1:
        return f"1 {noun}"
    return f"{n:,} {noun[:-1]}ies" if noun.endswith("py") else f"{n:,} {noun}s"
