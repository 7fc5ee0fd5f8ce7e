"""Splits C headers into blocks, comments and names. ``headers.py`` makes pages of them.

A header consists of blocks, separated by blank lines. A block is a comment with declarations. Rulers (``// ------ a
title``) divide a header into sections.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

__all__ = ["blocks_of", "names_in", "split_comment", "title_of"]

_RULER = re.compile(r"// -{20,} (?P<title>.+)")
_NOT_SHOWN = re.compile(r'#(ifndef|ifdef|endif|define GG\w+_H$|include)|extern "C" \{|\}$|// cdef:')
_FUNCTION = r"GGML_(?:API|CALL)\b[^;{]*?\b(\w+)\s*\("
_TYPE = r"^(?:struct|enum|union) (\w+) \{|^typedef .*?(\w+)\)?(?:\(|;)"
_NAME = re.compile(f"{_FUNCTION}|{_TYPE}", re.M)


def blocks_of(text: str) -> Iterator[list[str]]:
    """The blocks of a header that a reader of its declarations needs."""
    block: list[str] = []
    depth = 0
    for line in [*text.splitlines(), ""]:
        depth += line.count("{") - line.count("}") if 'extern "C"' not in line and line != "}" else 0
        if line.strip() or depth > 0:
            if depth > 0 or not _NOT_SHOWN.match(line):
                block.append(line)
        elif block:
            yield block
            block = []


def split_comment(block: list[str]) -> tuple[list[str], list[str]]:
    """The lines of the comment at the head of a block, without slashes, and the other lines."""
    n = next((i for i, line in enumerate(block) if not line.startswith("//")), len(block))
    return [line[2:].removeprefix(" ") for line in block[:n]], block[n:]


def names_in(code: str) -> list[str]:
    """The names of the functions and types that the code declares."""
    return [next(filter(None, match.groups())) for match in _NAME.finditer(code)]


def title_of(block: list[str]) -> str | None:
    """The title of the section that a block begins; None if it begins no section."""
    ruler = _RULER.fullmatch(block[0])
    return ruler["title"] if ruler else None
