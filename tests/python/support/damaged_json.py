"""JSON with one random fault, for readers that must refuse it or accept it."""

from __future__ import annotations

import copy

_WRONG = (None, -1, 0, 3, 2**31, 2**70, "x", "n*n", "tokens", "((", [], {}, 1.5, float("nan"), [-1], [2**40] * 3, True,
          {"value": "nothing"}, {"size": "tokens // 0"}, {"size": "batch"}, "matmul", "float64", "relu")  # fmt: skip


def damaged(data, r):
    """The JSON with one part replaced, removed or doubled."""
    made = copy.deepcopy(data)
    spot = made
    while True:
        key = r.choice([*spot] if isinstance(spot, dict) else [*range(len(spot))])
        if isinstance(spot[key], (dict, list)) and spot[key] and r.random() < 0.85:
            spot = spot[key]
            continue
        how = r.random()
        if how < 0.2:
            del spot[key]
        elif how < 0.3 and isinstance(spot, list):
            spot.append(spot[key])
        else:
            spot[key] = r.choice(_WRONG)
        return made
