"""Named mixtures of formats, such as ``Q4_K_M``: which tensor of a model gets which format.

The table is that of the mixtures' first description (k-quants, 2023). "Half of the layers" are the first and the last
eighth, and every third between them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase

__all__ = ["MIXTURES", "Mixture", "is_kept"]

_LAYER = re.compile(r"blk\.(\d+)\.")

_KEPT = ("*ffn_gate_inp.weight", "position_embd.weight", "token_types.weight", "*.positional_embedding",
         "rope_*.weight", "*ssm_conv1d.weight")  # fmt: skip
"""Small matrices that stay as they are: routers, and tables whose rows are added, for which blocks have no operator."""


def is_kept(name: str) -> bool:
    """True for a matrix that keeps its format unless the user names it."""
    return any(fnmatchcase(name, pattern) for pattern in _KEPT)


@dataclass(frozen=True)
class Mixture:
    """``base`` for all matrices but those of ``special`` (by pattern) and, in half of the layers, of ``half``.

    ``file_type``: the number of ``general.file_type``
    """

    base: str
    file_type: int
    special: Mapping[str, str] = field(default_factory=dict)
    half: Mapping[str, str] = field(default_factory=dict)

    def of(self, name: str, names: Sequence[str]) -> tuple[str | None, str]:
        """The format of a tensor, or None if it stays, and why."""
        if is_kept(name):
            return None, "small"
        head = "output.weight" if "output.weight" in names else "token_embd.weight"
        if name == head:
            return ("q8_0" if self.base == "q8_0" else "q6_k"), "gives the logits"
        for pattern, wanted in self.special.items():
            if fnmatchcase(name, pattern):
                return wanted, f"{pattern} in all layers"
        for pattern, wanted in self.half.items():
            if fnmatchcase(name, pattern) and _in_half(name, names):
                return wanted, f"{pattern} in half of the layers"
        return self.base, ""


def _in_half(name: str, names: Sequence[str]) -> bool:
    numbers = [int(found[1]) for found in map(_LAYER.match, names) if found]
    found = _LAYER.match(name)
    if found is None:
        return False
    n, i = max(numbers) + 1, int(found[1])
    return i < n // 8 or i >= 7 * n // 8 or (i - n // 8) % 3 == 2


_VALUES, _DOWN, _OUT = "*attn_v.weight", "*ffn_down*.weight", "*attn_output.weight"


def _all(dtype: str, *patterns: str) -> dict[str, str]:
    return dict.fromkeys(patterns, dtype)


MIXTURES: Mapping[str, Mixture] = {
    "q2_k": Mixture("q2_k", 10, _all("q4_k", _VALUES, _DOWN)),
    "q3_k_s": Mixture("q3_k", 11),
    "q3_k_m": Mixture("q3_k", 12, _all("q4_k", _VALUES, _OUT, _DOWN)),
    "q3_k_l": Mixture("q3_k", 13, _all("q5_k", _VALUES, _OUT, _DOWN)),
    "q4_k_s": Mixture("q4_k", 14),
    "q4_k_m": Mixture("q4_k", 15, half=_all("q6_k", _VALUES, _DOWN)),
    "q5_k_s": Mixture("q5_k", 16),
    "q5_k_m": Mixture("q5_k", 17, half=_all("q6_k", _VALUES, _DOWN)),
}
"""By name, in small letters. A plain format, such as ``q8_0``, is no mixture."""
