"""How the next token is chosen from logits."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from .._base.errors import InvalidArgumentError

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
            "top_k": (0, math.inf),
            "top_p": (1e-9, 1.0),
            "min_p": (0.0, 1.0),
            "repeat_penalty": (1e-3, 1e3),
            "repeat_last": (0, math.inf),
        }
        for name, (least, most) in limits.items():
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, (int, float, np.integer, np.floating)):
                raise TypeError(f"{name} must be a number, not {type(value).__name__}")
            if not least <= value <= most or value == math.inf:
                raise InvalidArgumentError(f"{name} is {value}: it must be from {least:g} to {most:g}")
        if self.seed is not None and (isinstance(self.seed, bool) or not isinstance(self.seed, (int, np.integer))):
            raise TypeError(f"seed must be an int, not {type(self.seed).__name__}")
        if self.seed is not None and self.seed < 0:
            raise InvalidArgumentError(f"seed is {self.seed}: it must be 0 or more")

    def random(self) -> np.random.Generator:
        """The source of random numbers of one text."""
        return np.random.default_rng(self.seed)

    def _n_best(self, vocabulary: int) -> int:
        """How many of the likeliest tokens decide the choice. 0: all."""
        if self.repeat_penalty < 1 or (self.temperature and not self.top_k):
            return 0
        recent = int(self.repeat_last) if self.repeat_penalty != 1 else 0  # penalized tokens make room for others
        n = (int(self.top_k) if self.temperature else 1) + recent
        return n if n < vocabulary else 0

    def choose(
        self,
        logits: FloatArray,
        before: Sequence[int],
        random: np.random.Generator,
        tokens: npt.NDArray[np.int32] | None = None,
    ) -> int:
        """The next token after the tokens ``before``.

        logits: float32 (vocabulary,), or the largest of them, the largest first
        tokens: the tokens that the largest logits belong to
        """
        if self.repeat_penalty != 1.0 and before and self.repeat_last:
            logits = logits.copy()
            recent = np.asarray(before[-int(self.repeat_last) :])
            seen = np.unique(recent) if tokens is None else np.flatnonzero(np.isin(tokens, recent))
            found = logits[seen]
            logits[seen] = np.where(found > 0, found / self.repeat_penalty, found * self.repeat_penalty)
            if tokens is not None:
                order = np.lexsort((tokens, -logits))
                tokens, logits = tokens[order], logits[order]
        if self.temperature == 0:
            return int(logits.argmax()) if tokens is None else int(tokens[0])
        k = min(int(self.top_k) or len(logits), len(logits))
        if tokens is None:
            best = np.argpartition(-logits, k - 1)[:k] if k < len(logits) else np.arange(len(logits))
            best = best[np.argsort(-logits[best], kind="stable")]
            largest = logits[best].astype(np.float64)
        else:
            best, largest = tokens[:k].astype(np.intp), logits[:k].astype(np.float64)
        plain = _softmax(largest)
        kept = max(1, min(int(np.searchsorted(np.cumsum(plain), self.top_p)) + 1, k))
        if self.min_p > 0:
            kept = max(1, min(kept, int(np.count_nonzero(plain >= self.min_p * plain[0]))))
        p = _softmax(largest[:kept] / self.temperature)
        return int(random.choice(best[:kept], p=p))


def _softmax(x: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Infinities count as very large numbers, and NaN as a very small one."""
    finite = np.nan_to_num(x, nan=-1e300, posinf=1e300, neginf=-1e300)
    shares: npt.NDArray[np.float64] = np.exp(finite - finite.max())
    shares /= shares.sum()
    return shares
