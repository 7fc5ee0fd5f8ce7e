"""A wrong kind of object as an argument raises an error of this package, or a TypeError that names
the argument.
"""

from __future__ import annotations

import inspect
import re

import numpy as np
import pytest

import ggml_backend as gb
from public import LIBRARY, THINGS

KINDS = ["Tensor", "Graph", "Backend", "BufferType", "Buffer", "Context", "Scheduler"]


def makers() -> dict[str, object]:
    """An object for each kind of parameter that calls below need."""
    ctx = gb.Context()
    sim, cpu = gb.Backend("SIM"), gb.Backend("CPU", n_threads=1)
    x = ctx.tensor((4, 4), name="x")
    return {
        "Tensor": x, "Graph": ctx.graph(gb.ops.relu(x)), "Backend": cpu, "BufferType": cpu.buffer_type,
        "Buffer": cpu.allocate(4096), "Context": ctx,
        "Scheduler": gb.Scheduler([sim, cpu]), "int": 1, "float": 1.0, "str": "x", "bool": False,
        "Any": np.zeros((4, 4), np.float32), "SupportsIndex": 0,
        "DTypeLike": "float32", "IntPair": 1, "Amounts": 1, "Callable": print, "SupportsIndex | Sequence[int]": 1,
        "Event": gb.backend.Event(sim),
        "TensorAllocator": gb.sched.TensorAllocator(cpu, 4096), "GraphAllocator": gb.sched.GraphAllocator(cpu),
    }  # fmt: skip


def callables():
    """Public functions and methods that take an object of the package, with the parameter in question."""
    for name, thing in LIBRARY.items():
        if inspect.isfunction(thing):
            yield from parameters(name, thing)
        elif (
            inspect.isclass(thing)
            and thing.__module__.startswith("ggml_backend")
            and not issubclass(thing, BaseException)
        ):
            if name in ("Event", "TensorAllocator", "GraphAllocator", "Scheduler"):
                yield from parameters(f"{name}.__init__", thing.__init__)
            for base in thing.__mro__:
                if base.__module__.startswith("ggml_backend"):
                    for attribute, member in vars(base).items():
                        if inspect.isfunction(member) and not attribute.startswith("_"):
                            yield from parameters(f"{name}.{attribute}", member)


def parameters(name, function):
    for parameter in inspect.signature(function).parameters.values():
        text = str(parameter.annotation)
        if any(re.search(rf"\b{kind}\b", text) for kind in KINDS) and not text.startswith("Callable"):
            yield name, parameter.name


CALLS = sorted(set(callables()))
WRONG = ["wrong", 3, object(), [1, 2], b"x", print]


def call(name: str, wanted: str, wrong: object, given: dict[str, object]) -> None:
    owner, _, method = name.partition(".")
    thing = THINGS[owner]
    if not method or method == "__init__":
        function, bound = thing, []
    else:
        if owner not in given:
            pytest.skip(f"no {owner} is made here")
        function, bound = getattr(thing, method), [given[owner]]
        if isinstance(inspect.getattr_static(thing, method), (classmethod, staticmethod)):
            bound = []
    positional, named = list(bound), {}
    for parameter in list(inspect.signature(function).parameters.values())[len(bound) :]:
        text = str(parameter.annotation)
        if parameter.name == wanted:
            value = wrong
        elif parameter.default is not parameter.empty or parameter.kind in (
            parameter.VAR_POSITIONAL,
            parameter.VAR_KEYWORD,
        ):
            continue
        else:
            kinds = [kind for kind in given if re.search(rf"\b{re.escape(kind)}\b", text)]
            choices = re.match(r"Literal\['(\w+)'", text)
            if choices:
                value = choices[1]
            elif kinds:
                value = [given[kinds[0]]] if text.startswith("Sequence") else given[kinds[0]]
            else:
                pytest.skip(f"no value for {parameter.name}: {text}")
        if (
            parameter.kind in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD, parameter.VAR_POSITIONAL)
            and not named
        ):
            positional.append(value)
        else:
            named[parameter.name] = value
    function(*positional, **named)


@pytest.mark.parametrize(("name", "parameter"), CALLS, ids=[".".join(c) for c in CALLS])
def test_a_wrong_object_is_a_type_error(name, parameter):
    given = makers()
    others = [value for kind, value in given.items() if kind in KINDS]
    for wrong in [*WRONG, *others]:
        try:
            call(name, parameter, wrong, given)
        except (TypeError, gb.GgmlError, IndexError, KeyError, OSError) as error:
            inside = re.search(r"cdata|'_\w+'|_live|NoneType: None|initializer for ctype|ffi", str(error))
            assert not inside, f"{name}({parameter}={type(wrong).__name__}): {error}"
        # otherwise the value is valid for this parameter


def test_most_of_the_interface_is_covered():
    assert len(CALLS) > 120
    assert {
        ("relu", "a"),
        ("Buffer.place", "tensor"),
        ("Scheduler.compute", "graph"),
        ("Event.wait", "backend"),
    } <= set(CALLS)
