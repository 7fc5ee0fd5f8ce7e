"""Plans of PyTorch as functions of tensors, for ``torch.compile``.

The memory planner reuses memory of results that are no longer needed, which a compiler of functions cannot see. So
the calls are traced over separate tensors. Tensors that a plan reads from outside become arguments. Results that may
be read after the plan become return values, which are stored in the order of the calls.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.fx.experimental.proxy_tensor import make_fx

from .._program import Call, is_target
from .layout import ne
from .library import Library, Step


def compiled(library: Library, calls: Sequence[Call], step: Callable[[Call], Step]) -> Step | None:
    """The program of a plan; None if it cannot be compiled.

    A plan cannot be compiled if it reads memory outside again that it has written, or indices that it computes. The
    caller excludes plans with operators that are marked with ``stepwise``.
    """
    given: list[Any] = []
    checks: list[Step] = []
    number: dict[int, int] = {}
    for i, call in enumerate(calls):
        if call.node.op == "get_rows":
            if call.of[1] >= 0:
                return None
            checks.append(library.check_ids(call.sources[1], ne(call.node.sources[0].shape)[2]))
        for k, source in enumerate(call.sources):
            if call.of[k] >= 0 or is_target(call, k):
                continue
            if any(_overlap(library, source, earlier.out) for earlier in calls[:i]):
                return None
            if id(source) not in number:
                number[id(source)] = len(given)
                given.append(source)
    stored = [i for i, call in enumerate(calls) if not call.may_leave_out]

    def function(*arguments: Any) -> list[Any]:
        results: list[Any] = []
        for call in calls:
            out = torch.empty(call.out.shape, dtype=call.out.dtype, device=call.out.device)
            sources = [
                out if is_target(call, k) else arguments[number[id(s)]] if i < 0 else _seen(s, calls[i].out, results[i])
                for k, (s, i) in enumerate(zip(call.sources, call.of, strict=True))
            ]
            step(Call(call.node, out, tuple(sources), ()))()
            results.append(out)
        return [results[i] for i in stored]

    with torch.inference_mode(False), torch.no_grad():
        graph = make_fx(function)(*[a.detach() for a in given])
    run = torch.compile(graph, dynamic=False)
    outs = [calls[i].out for i in stored]

    def program() -> None:
        for check in checks:
            check()
        for out, value in zip(outs, run(*given), strict=True):
            out.copy_(value)

    return program


def _overlap(library: Library, a: Any, b: Any) -> bool:
    (begin, end), (first, last) = library.span(a), library.span(b)
    return begin < last and first < end


def _seen(source: Any, out: Any, value: Any) -> Any:
    """The view of ``value`` that corresponds to ``source``, a view of ``out``."""
    offset = (source.data_ptr() - out.data_ptr()) // out.element_size()
    return value.as_strided(source.shape, source.stride(), offset)
