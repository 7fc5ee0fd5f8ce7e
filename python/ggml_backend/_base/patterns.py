"""Many patterns for many names, as in a shell (``*``, ``?``, ``[0-9]``)."""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from fnmatch import translate
from itertools import takewhile

from .errors.messages import close_matches

__all__ = ["Patterns", "nearest"]

_WILD = re.compile(r"[*?\[]")


class Patterns:
    """Names to look in. A pattern without wildcards is looked up; one that begins, or ends, with text is tried on the
    names that begin, or end, with it; only one that has wildcards on both sides is tried on all."""

    def __init__(self, names: Iterable[str]) -> None:
        self._names = list(names)
        self._known = set(self._names)
        self._sorted = sorted(self._names)
        self._backwards: list[str] | None = None  # sorted, each name from its end

    def _candidates(self, pattern: str, wild: int) -> Iterator[str]:
        if wild:
            return _beginning(self._sorted, pattern[:wild])
        tail = re.split(r"[*?\]]", pattern)[-1]
        if not tail:
            return iter(self._names)
        if self._backwards is None:
            self._backwards = sorted(name[::-1] for name in self._names)
        return (name[::-1] for name in _beginning(self._backwards, tail[::-1]))

    def matching(self, pattern: str) -> Iterator[str]:
        """The names that a pattern fits, in no order."""
        found = _WILD.search(pattern)
        if found is None:
            return iter([pattern] if pattern in self._known else [])
        candidates = self._candidates(pattern, found.start())
        if found.start() == len(pattern) - 1 and pattern[-1] == "*":
            return candidates
        return _fitting(pattern, candidates)

    def fitting(self, pattern: str) -> list[str]:
        """The same; one that is a name itself fits that alone."""
        return [pattern] if pattern in self._known else list(self.matching(pattern))

    def first(self, patterns: Iterable[str]) -> dict[str, str]:
        """For each name the first pattern that fits it; names that none fits are left out."""
        chosen: dict[str, str] = {}
        for pattern in patterns:
            if len(chosen) == len(self._known):
                break
            for name in self.matching(pattern):
                chosen.setdefault(name, pattern)
        return chosen

    def hidden(self, patterns: Iterable[str]) -> tuple[str, str] | None:
        """A pattern that is never the first to fit, behind one that fits the same names and more; and that one."""
        given = list(dict.fromkeys(patterns))
        chosen = self.first(given)
        deciding = set(chosen.values())
        for pattern in given:
            names = set() if pattern in deciding else set(self.matching(pattern))
            before = {chosen[name] for name in names}
            if len(before) == 1 and sum(1 for _ in self.matching(*before)) > len(names):
                return pattern, before.pop()
        return None


def nearest(pattern: str, names: Iterable[str]) -> str:
    """The end of a message about a pattern that fits nothing: similar names, or the first ones."""
    known = list(names)
    near = close_matches(pattern, known) or close_matches(pattern.strip("*?."), known)
    if near or not known:
        return near
    return f"; there are {', '.join(map(repr, known[:4]))}{', ...' if len(known) > 4 else ''}"


def _beginning(names: Sequence[str], text: str) -> Iterator[str]:
    at = bisect_left(names, text)
    return takewhile(lambda name: name.startswith(text), (names[i] for i in range(at, len(names))))


def _fitting(pattern: str, candidates: Iterator[str]) -> Iterator[str]:
    head = next(candidates, None)
    if head is None:
        return  # most of many patterns fit nothing: not worth compiling
    fits = re.compile(translate(pattern)).match
    if fits(head):
        yield head
    yield from (name for name in candidates if fits(name))
