"""Converts the docstrings of the package for Sphinx.

Docstrings name classes and functions without ``ggml_backend``. Such a name refers to the package or to one of its
public submodules.

Docstrings name documents by their path in the repository, such as ``docs/PLANS.md``. These paths become links to the
pages of the site.

A paragraph of lines ``name: description`` or ``a, b: description`` becomes a list of definitions. Each line describes
parameters. Lines that continue a description are indented.
"""

from __future__ import annotations

import re
from typing import Any

import ggml_backend

_MODULES = [name for name in ggml_backend.__all__ if hasattr(getattr(ggml_backend, name), "__all__")]
_ENTRY = re.compile(r"(?P<names>\*{0,2}\w+(?:, \*{0,2}\w+)*): (?P<text>\S.*)")
_DOCUMENT = re.compile(r"(?<![\w/`])docs/(?P<page>[\w/-]+)\.md\b")


def _is_list(paragraph: list[str]) -> bool:
    """True if each line begins or continues an entry."""
    return bool(_ENTRY.fullmatch(paragraph[0])) and all(
        line.startswith("    ") or _ENTRY.fullmatch(line) for line in paragraph
    )


def _as_definitions(paragraph: list[str]) -> list[str]:
    lines: list[str] = []
    for line in paragraph:
        entry = None if line.startswith("    ") else _ENTRY.fullmatch(line)
        if entry:
            names = ", ".join(f"``{name}``" for name in entry["names"].split(", "))
            lines += ["", names, f"    {entry['text']}"]
        else:
            lines.append(line)
    return lines


def rewrite(lines: list[str]) -> list[str]:
    """Returns the lines with lists of parameters as definitions, and paths of documents as links."""
    result: list[str] = []
    paragraph: list[str] = []
    for line in [*lines, ""]:
        if line.strip():
            paragraph.append(line)
            continue
        if paragraph:
            result += _as_definitions(paragraph) if _is_list(paragraph) else paragraph
        result.append("")
        paragraph = []
    return [_DOCUMENT.sub(r":doc:`/\g<page>`", line) for line in result]


def _process(app: Any, what: str, name: str, obj: Any, options: Any, lines: list[str]) -> None:
    lines[:] = rewrite(lines)


def _resolve(app: Any, env: Any, node: Any, contnode: Any) -> Any:
    """Resolves a name of the package that is not in the module of the docstring."""
    if node.get("refdomain") != "py" or node.get("refexplicit"):
        return None
    domain = env.get_domain("py")
    whole, last = node["reftarget"], node["reftarget"].rsplit(".", 1)[-1]
    for module in ("ggml_backend", *(f"ggml_backend.{public}" for public in _MODULES)):
        for name in (f"{module}.{whole}", f"{module}.{last}"):
            if name in domain.objects:
                return domain.resolve_xref(env, node["refdoc"], app.builder, node["reftype"], name, node, contnode)
    return None


def setup(app: Any) -> dict[str, bool]:
    app.connect("autodoc-process-docstring", _process)
    app.connect("missing-reference", _resolve)
    return {"parallel_read_safe": True}
