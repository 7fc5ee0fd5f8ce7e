"""How the next token is chosen from logits."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from .._base.errors import InvalidArgumentError, expect, expect_int, expect_list
from .._base.errors.messages import kind_of

__all__ = ["Sampling"]

FloatArray = npt.NDArray[np.float32]


@dataclass(frozen=True)
class Sampling:
    """The rules of a choice. They apply in this order.

    repeat_penalty: logits of the last ``repeat_last`` tokens are divided by it if they are positive, else multiplied
        (Keskar et al. 2019, arXiv:1909.05858). 1 turns it off.
    temperature: 0 takes the likeliest token. Else logits are divided by it after the other rules.
    top_k: keeps so many of the likeliest tokens. 0 keeps all.
    top_p: keeps the smallest set of the likeliest tokens whose probability reaches it (Holtzman et al. 2020,
        arXiv:1904.09751).
    min_p: keeps tokens with at least this share of the probability of the likeliest (Nguyen et al. 2024,
        arXiv:2407.01082).
    seed: of the random choice. Without one, each run differs.
    """

    temperature: float = 0.0
    top_k: int = 40
    top_p: float = 0.95
    min_p: float = 0.0
    repeat_penalty: float = 1.0
    repeat_last: int = 64
    seed: int | None = None

    def __post_init__(self) -> None:
        limits = {
            "temperature": (0.0, math.inf),
            "top_p": (1e-9, 1.0),
            "min_p": (0.0, 1.0),
            "repeat_penalty": (1e-3, 1e3),
        }
        for name, (least, most) in limits.items():
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, (int, float, np.integer, np.floating)):
                raise TypeError(f"{name} must be a number, not {kind_of(value)}")
            if not least <= value <= most or value == math.inf:
                allowed = f"from {least:g} to {most:g}" if most < math.inf else f"{least:g} or more, and finite"
                raise InvalidArgumentError(f"{name} is {value}: it must be {allowed}")
        for name in ("top_k", "repeat_last", "seed"):
            value = getattr(self, name)
            if (name != "seed" or value is not None) and expect_int(value, name) < 0:
                raise InvalidArgumentError(f"{name} is {value}: it must be 0 or more")

    def random(self) -> np.random.Generator:
        """The source of random numbers of one text."""
        return np.random.default_rng(self.seed)

    def choose(self, logits: FloatArray, before: Sequence[int], random: np.random.Generator) -> int:
        """The next token after the tokens ``before``. logits: float32 (vocabulary,)."""
        if not isinstance(logits, np.ndarray) or logits.ndim != 1 or logits.dtype.kind != "f" or not len(logits):
            raise TypeError(f"logits must be an array of floats with one axis, not {kind_of(logits)}")
        expect(random, np.random.Generator, "random")
        recent = expect_list(before, "before", "tokens")[-self.repeat_last :]
        if self.repeat_penalty != 1.0 and recent and self.repeat_last:
            seen = np.unique([expect_int(t, "before: each token") for t in recent])
            if seen[0] < 0 or seen[-1] >= len(logits):
                raise InvalidArgumentError(f"before: tokens must be from 0 to {len(logits) - 1}")
            logits = self._penalized(logits, seen)
        if self.temperature == 0:
            return int(logits.argmax())
        k = min(self.top_k or len(logits), len(logits))
        best = np.argpartition(-logits, k - 1)[:k] if k < len(logits) else np.arange(len(logits))
        best = best[np.argsort(-logits[best], kind="stable")]
        return self._draw(best, logits[best], random)

    def _n_best(self, vocabulary: int) -> int:
        """How many of the likeliest tokens decide the choice. 0: all."""
        if self.repeat_penalty < 1 or (self.temperature and not self.top_k):
            return 0
        recent = self.repeat_last if self.repeat_penalty != 1 else 0  # penalized tokens make room for others
        n = (self.top_k if self.temperature else 1) + recent
        return n if n < vocabulary else 0

    def _choose_of(
        self, best: npt.NDArray[np.int32], logits: FloatArray, before: Sequence[int], random: np.random.Generator
    ) -> int:
        """As :meth:`choose`, of the ``_n_best`` likeliest tokens and their logits, the likeliest first."""
        if self.repeat_penalty != 1.0 and before and self.repeat_last:
            logits = self._penalized(logits, np.flatnonzero(np.isin(best, before[-self.repeat_last :])))
            order = np.lexsort((best, -logits))
            best, logits = best[order], logits[order]
        if self.temperature == 0:
            return int(best[0])
        return self._draw(best[: self.top_k], logits[: self.top_k], random)

    def _penalized(self, logits: FloatArray, seen: npt.NDArray[Any]) -> FloatArray:
        logits = logits.copy()
        found = logits[seen]
        logits[seen] = np.where(found > 0, found / self.repeat_penalty, found * self.repeat_penalty)
        return logits

    def _draw(self, best: npt.NDArray[Any], logits: FloatArray, random: np.random.Generator) -> int:
        """One of the ``top_k`` likeliest tokens, the likeliest first."""
        plain = _softmax(logits.astype(np.float64))
        kept = max(1, min(int(np.searchsorted(np.cumsum(plain), self.top_p)) + 1, len(best)))
        if self.min_p > 0:
            kept = max(1, min(kept, int(np.count_nonzero(plain >= self.min_p * plain[0]))))
        p = _softmax(logits[:kept].astype(np.float64) / self.temperature)
        return int(random.choice(best[:kept], p=p))


def _softmax(x: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Infinities count as very large numbers, and NaN as a very small one."""
    finite = np.nan_to_num(x, nan=-1e300, posinf=1e300, neginf=-1e300)
    shares: npt.NDArray[np.float64] = np.exp(finite - finite.max())
    shares /= shares.sum()
    return shares
