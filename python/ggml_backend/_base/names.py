"""Names on their way to C: of tensors, keys, backends. C ends a text at a NUL, so that a name with one would become
another."""

from __future__ import annotations

from .errors import InvalidArgumentError

__all__ = ["MAX_NAME", "as_name", "shorter"]

MAX_NAME = 63
"""Bytes of the name of a tensor."""


def as_name(name: object, what: str, label: str = "name") -> bytes:
    """The bytes of a name: UTF-8, surrogates (bytes of a file that were no UTF-8) as they were. TypeError unless it is
    a str, InvalidArgumentError for a NUL and for what UTF-8 cannot hold. what: of which function, and label: which
    argument, for the message"""
    if not isinstance(name, str):
        raise TypeError(f"{what}: {label} must be a str, not {type(name).__name__}")
    if "\0" in name:
        raise InvalidArgumentError(f"{what}: a name cannot hold NUL: {name!r:.60}")
    try:
        return name.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        raise InvalidArgumentError(f"{what}: {name!r:.60} holds half of a surrogate pair, which is no text") from None


def shorter(name: bytes, most: int) -> bytes:
    """At most so many bytes, cut between characters."""
    if len(name) <= most:
        return name
    end = most
    while end > 0 and name[end] & 0xC0 == 0x80:
        end -= 1
    return name[: end if end > most - 4 else most]
