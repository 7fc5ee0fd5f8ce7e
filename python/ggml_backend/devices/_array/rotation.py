"""Rotary position embedding."""

from __future__ import annotations

from math import ceil, floor, log, pi
from typing import Any

import numpy as np

from .._nodes import Node
from ..device import op
from .family import FLOAT_NAMES, Family
from .layout import axes
from .library import Step

_SECTIONED = ("mrope", "imrope", "vision")


def _turns(node: Node) -> bool | str:
    p, size = node.params, node.shape[-1]
    if p["mode"] not in ("normal", "neox", "normal_exact", "neox_exact", *_SECTIONED):
        return f"mode {p['mode']}"
    if p["xpos_base"]:
        return "xPos (xpos_base)"
    if not 0 < p["n_dims"] <= size or p["n_dims"] % 2 or size % 2:
        return "n_dims is odd or larger than a row"
    return True


@op("rope", "rope_back", dtypes=FLOAT_NAMES, when=_turns, prepare=True)
def rope(device: Family, node: Node, out: Any, a: Any, positions: Any, factors: Any = None) -> Step:
    """Rotates pairs of a head by angles that grow with the token's position, computed in double.

    The angles are a matrix product: each token has one position, or four, and each pair has a frequency for
    one of them. YaRN only changes frequencies. Rotating back means negative frequencies.
    """
    p, library = node.params, device.library
    a, out = (axes(library, array, 4) for array in (a, out))
    tokens, size = a.shape[1], a.shape[3]
    pairs = size // 2 if p["mode"] == "normal" else p["n_dims"] // (1 if p["mode"] == "vision" else 2)
    magnitude = p["attn_factor"] * (1 + 0.1 * log(1 / p["freq_scale"]) if p["ext_factor"] else 1.0)
    streams = len(p["sections"] or (0,))
    stride = library.strides(positions)[-1]
    positions = library.strided(positions, (tokens, streams), (stride, tokens * stride))
    frequencies = _frequencies(p, pairs, streams) * (-1.0 if node.op == "rope_back" else 1.0)
    turns = library.turns(positions, frequencies, magnitude, None if factors is None else factors[:pairs])
    rotate, halves = library.rotate, not p["mode"].startswith("normal")

    def rotated(x: Any, out: Any = None) -> Any:
        return rotate(x, turns(), p["offset"], 2 * pairs, halves, out)

    return device.step_of(rotated, node, out, (a,))


def _frequencies(p: dict[str, Any], pairs: int, streams: int) -> np.ndarray[Any, Any]:
    """The frequency of each pair in the row of its position; 0 in the other rows."""
    pair = np.arange(pairs)
    stream, power = (pair * 0, pair) if streams == 1 else _streams(p["mode"], np.array(p["sections"]), pair)
    scale, ramp = p["freq_scale"], pair
    if p["mode"] == "neox":  # scales twice, and all pairs have the ramp of pair 0
        scale, ramp = scale**2, pair * 0
    if p["ext_factor"]:
        low, high = (_corrected(p, beta) for beta in (p["beta_fast"], p["beta_slow"]))
        low, high = max(0, floor(low)), min(p["n_dims"] - 1, ceil(high))
        mix = p["ext_factor"] * (1 - np.clip((ramp - low) / max(0.001, high - low), 0, 1))
        scale = scale * (1 - mix) + mix * (p["freq_scale"] if p["mode"] == "neox" else 1.0)
    found = np.zeros((streams, pairs))
    found[stream, pair] = p["freq_base"] ** (-2.0 * power / p["n_dims"]) * scale
    return found


def _corrected(p: dict[str, Any], beta: float) -> float:
    """The pair whose wavelength fits ``beta`` times into the original context."""
    return float(p["n_dims"] * log(p["n_orig_ctx"] / (beta * 2 * pi)) / (2 * log(p["freq_base"])))


def _streams(mode: str, sections: np.ndarray[Any, Any], pair: np.ndarray[Any, Any]) -> tuple[Any, Any]:
    """The position by which each pair turns, and its exponent of the base."""
    at = pair % sections.sum()
    if mode == "imrope":
        return np.where(at < 3 * sections[at % 3], at % 3, 3), pair
    ends = np.cumsum(sections[:3])
    stream = np.searchsorted(ends, at, side="right")
    starts = np.array([0, *ends])
    return stream, at - starts[stream] if mode == "vision" else pair
