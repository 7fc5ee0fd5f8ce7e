"""Reads the text to learn, the topics of Python's help or a file, and turns characters into numbers."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from ..command import read_text

Tokens = npt.NDArray[np.int32]


def read(source: str) -> str:
    """For ``"topics"``, returns the topics of ``help()``, which are part of Python. Otherwise reads this file."""
    if source != "topics":
        return read_text(Path(source))
    try:
        from pydoc_data import topics
    except ImportError:
        raise SystemExit("this Python has no pydoc_data: give a text with --text FILE") from None
    return "\n\n".join(topics.topics[name].strip() for name in sorted(topics.topics))


@dataclass(frozen=True)
class Text:
    """Characters as numbers. The last tenth is for validation."""

    characters: str
    training: Tokens
    validation: Tokens

    @classmethod
    def of(cls, text: str, context: int, characters: str = "") -> Text:
        """characters: the characters of an earlier run (default: all characters of the text)"""
        known = characters or "".join(sorted(set(text)))
        if missing := set(text) - set(known):
            raise ValueError(f"the text has {min(missing)!r}, which the trained network does not know")
        number = {c: i for i, c in enumerate(known)}
        tokens = np.fromiter((number[c] for c in text), np.int32, len(text))
        cut = len(tokens) * 9 // 10
        if len(tokens) - cut <= context:
            raise ValueError(f"the text has {len(text)} characters: it needs more than {10 * (context + 1)}")
        return cls(known, tokens[:cut], tokens[cut:])

    def decode(self, tokens: Tokens) -> str:
        return "".join(self.characters[t] for t in tokens)

    def encode(self, text: str) -> Tokens:
        return np.array([self.characters.index(c) for c in text if c in self.characters], np.int32)


def batch(tokens: Tokens, n: int, context: int, seed: tuple[int, ...]) -> tuple[Tokens, Tokens]:
    """``n`` random pieces, and for each of their characters the next one. The seed decides which pieces."""
    starts = np.random.default_rng(seed).integers(0, len(tokens) - context, n)
    pieces = np.stack([tokens[s : s + context + 1] for s in starts])
    return np.ascontiguousarray(pieces[:, :-1]), np.ascontiguousarray(pieces[:, 1:])
