"""The colours of all pictures, light and dark, and the kinds of operators that they mean."""

from __future__ import annotations

import re
from collections.abc import Mapping

__all__ = ["COLOURS", "KINDS", "SHADES", "THEMES", "attribute", "kind", "style", "variables"]

FONT = 'Helvetica, Arial, "Liberation Sans", sans-serif'
THEMES = ("auto", "light", "dark")
SHADES = 5  # shades of the scale for lifetimes and sizes

KINDS = (
    "matrix product", "elementwise", "norm", "attention, softmax, rope", "copy, layout", "rows, experts",
    "convolution, image", "input, other",
)  # fmt: skip

_PATTERNS = (
    (5, r"MUL_MAT_ID|GET_ROWS|ARGSORT|ARGMAX|TOP_K|SET_ROWS"),
    (0, r"MUL_MAT|OUT_PROD"),
    (2, r".*NORM"),
    (3, r".*(SOFT_MAX|ROPE|FLASH|DIAG_MASK|ALIBI)"),
    (4, r"CPY|CONT|DUP|CAST|CONCAT|RESHAPE|VIEW|PERMUTE|TRANSPOSE|SET|REPEAT|COPY"),
    (6, r".*(CONV|IM2COL|POOL|UPSCALE|PAD|WIN_|REL_POS)"),
    (7, r"$|NONE|INPUT|LEAF"),
)


def kind(op: str) -> int:
    """The index of an operator's kind in KINDS."""
    return next((k for k, pattern in _PATTERNS if re.match(pattern, op.upper())), 1)


#: name -> (light, dark).
COLOURS: Mapping[str, tuple[str, str]] = {
    "page": ("#f6f6f3", "#131417"),
    "card": ("#ffffff", "#1b1d21"),
    "ink": ("#1c1e21", "#e9eaec"),
    "soft": ("#5a5f67", "#a4aab3"),
    "line": ("#d5d5cf", "#3a3e45"),
    "free": ("#f3f3ef", "#22252a"),
    "hatch": ("#b9bab2", "#555a63"),
    "edge": ("#ffffff", "#1b1d21"),
    "accent": ("#b3261e", "#ff8a80"),
    "focus": ("#1257d6", "#82b1ff"),
    "label": ("#101214", "#0b0c0e"),
    "bar": ("#c9d3e0", "#8f9bab"),
    "live": ("#8a97a8", "#74808f"),
    "k0": ("#4c93f5", "#4a86d8"),
    "k1": ("#cae182", "#b2c672"),
    "k2": ("#43ca8a", "#3bb279"),
    "k3": ("#ec7041", "#d06339"),
    "k4": ("#829798", "#728586"),
    "k5": ("#fdd6d7", "#dfbcbd"),
    "k6": ("#b47dc2", "#9e6eab"),
    "k7": ("#a8dafd", "#94c0df"),
    "s0": ("#fde9a9", "#f5dc91"),
    "s1": ("#f9c27a", "#eeb56c"),
    "s2": ("#ee9b76", "#e08d68"),
    "s3": ("#d98094", "#cd7387"),
    "s4": ("#b07cbd", "#a873b6"),
}

# class -> (property, colour)
_RULES: Mapping[str, tuple[tuple[str, str], ...]] = {
    **{f"k{i}": (("fill", f"k{i}"),) for i in range(len(KINDS))},
    **{f"{c}{i}": (("fill", f"s{i}"),) for c in "lz" for i in range(SHADES)},
    "card": (("fill", "card"),),
    "ink": (("fill", "ink"),),
    "soft": (("fill", "soft"),),
    "label": (("fill", "label"),),
    "free": (("fill", "free"),),
    "bar": (("fill", "bar"),),
    "live": (("fill", "live"),),
    "hatch": (("stroke", "hatch"),),
    "edge": (("stroke", "edge"),),
    "label-line": (("stroke", "label"),),
    "tick": (("stroke", "line"),),
    "rule": (("stroke", "ink"),),
    "now": (("stroke", "accent"),),
    "copy": (("stroke", "accent"),),
    "tip": (("fill", "accent"),),
}
# An element has a class for its kind, its lifetime and its size. A picture shows one of the three.
_ONE_OF = {"k": "kind", "l": "life", "z": "size"}


def _group(name: str) -> str:
    return _ONE_OF.get(name[0], "") if name[1:].isdigit() else ""


def style(scope: str, theme: str = "auto") -> str:
    """CSS rules of all classes below ``scope``. Colours mean lifetime or size below an element with
    ``data-colour="life"`` or ``"size"``."""

    def rules(which: int) -> str:
        parts = []
        for name, properties in _RULES.items():
            group = _group(name)
            where = f'{scope}[data-colour="{group}"]' if group in ("life", "size") else scope
            body = ";".join(f"{p}:{COLOURS[c][which]}" for p, c in properties)
            parts.append(f"{where} .{name}{{{body}}}")
        return "".join(parts)

    if theme != "auto":
        return rules(THEMES.index(theme) - 1)
    return f"{rules(0)}@media (prefers-color-scheme:dark){{{rules(1)}}}"


def variables() -> str:
    """The colours as CSS variables, for the parts of a page around the charts."""
    light, dark = ("".join(f"--{name}:{pair[k]};" for name, pair in COLOURS.items()) for k in range(2))
    return f":root{{{light}}}@media (prefers-color-scheme:dark){{:root{{{dark}}}}}"


def attribute(name: str, theme: str) -> str:
    """The properties of a class as attributes, for viewers without style sheets. Theme "auto" gives light colours."""
    which = 1 if theme == "dark" else 0
    return "".join(f' {p}="{COLOURS[c][which]}"' for p, c in _RULES[name])
