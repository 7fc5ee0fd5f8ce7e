"""Writes the public interface as text, one line for each name. A review shows how a change alters it, and
``tests/python/package/test_interface.py`` fails if the record and the interface differ.

    python tools/record_interface.py          writes tests/data/interface_python.txt and tests/data/interface_c.txt,
                                              with PyTorch also tests/data/interface_torch.txt

The Python records have every name in ``__all__`` of the public modules, with the signatures of functions and methods,
properties, and values of enumerations. The record of C has the declarations of the public headers, and the constants
and layouts of structures in the compiled package (names that begin with ``ggml_``, ``GGML_``, ``gguf_`` and ``GGUF_``).
"""

from __future__ import annotations

import enum
import importlib
import importlib.util
import inspect
import re
import types
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

MODULES = ("ggml_backend", *(f"ggml_backend.{name}" for name in (
    "backend", "cluster", "devices", "dtypes", "errors", "gguf", "ops", "optim", "planning", "profile", "program",
    "sched", "tensor", "testing",
)))  # fmt: skip
TREE = Path(__file__).resolve().parents[1]
DATA, HEADERS = TREE / "tests" / "data", TREE / "c" / "include"
PREFIXES = ("ggml_", "GGML_", "gguf_", "GGUF_")


def signature_of(function: Any) -> str:
    """The signature of a function, without defaults whose text contains an address."""
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        return "(...)"
    parameters = [
        p.replace(default=type(p.default).__name__) if " at 0x" in repr(p.default) else p
        for p in signature.parameters.values()
    ]
    return str(signature.replace(parameters=parameters))


def lines_of_class(name: str, cls: type) -> Iterator[str]:
    bases = ", ".join(b.__name__ for b in cls.__bases__ if b is not object)
    yield f"class {name}({bases})"
    if issubclass(cls, enum.Enum):
        for member in cls:
            yield f"{name}.{member.name} = {member.value!r}"
    for member_name, member in sorted(vars(cls).items()):
        if member_name.startswith("_") and member_name not in ("__init__", "__call__"):
            continue
        what = f"{name}.{member_name}"
        if isinstance(member, (staticmethod, classmethod)):
            yield f"{type(member).__name__} {what}{signature_of(member.__func__)}"
        elif isinstance(member, property):
            yield f"property {what}{' (settable)' if member.fset else ''}"
        elif isinstance(member, types.FunctionType):
            yield f"{what}{signature_of(member)}"
        elif isinstance(member, types.MemberDescriptorType):
            yield f"attribute {what}"


def python_lines(modules: Sequence[str] = MODULES) -> list[str]:
    lines: list[str] = []
    recorded: set[str] = set()  # names at the top level are in a submodule, too
    for module_name in modules:
        module = importlib.import_module(module_name)
        for name in sorted(set(module.__all__) - recorded):
            value, full = getattr(module, name), f"{module_name}.{name}"
            if isinstance(value, type):
                lines += lines_of_class(full, value)
            elif isinstance(value, types.ModuleType):
                lines.append(f"module {full}")
            elif callable(value):
                lines.append(f"{full}{signature_of(value)}")
            else:
                lines.append(f"{full}: {type(value).__name__}")
        recorded |= set(module.__all__) if module_name == MODULES[0] else set()
    return lines


def declarations(text: str) -> Iterator[str]:
    """Macros and declarations of a header, each on a line, without comments and preprocessor conditions."""
    text = re.sub(r"/\*.*?\*/|//[^\n]*", " ", text, flags=re.DOTALL).replace("\\\n", " ")
    rest = []
    for line in text.splitlines():
        if line.lstrip().startswith("#"):
            macro = re.match(r"\s*#\s*define\s+(.*)", line)
            if macro:
                yield "#define " + " ".join(macro[1].split())
        else:
            rest.append(line)
    depth, begin, text = 0, 0, " ".join(" ".join(rest).split()).replace('extern "C" {', "")
    for i, c in enumerate(text):
        depth += (c in "{(") - (c in "})")
        if depth == 0 and c == ";":
            yield text[begin:i].strip()
            begin = i + 1


def c_lines() -> list[str]:
    from ggml_backend._ffi import ffi, lib

    lines = []
    for header in sorted(HEADERS.glob("*.h")):
        lines += [f"{header.name}: {d}" for d in sorted(set(declarations(header.read_text())))]
    for name in dir(lib):
        value = getattr(lib, name) if name.startswith(PREFIXES) else None
        if isinstance(value, int):
            lines.append(f"{name} = {value}")
    for name in sorted({name for names in ffi.list_types() for name in names if name.startswith(PREFIXES)}):
        for kind in ("struct", "union"):
            try:
                found = ffi.typeof(f"{kind} {name}")
                size = ffi.sizeof(found)  # this call also reads the fields
            except ffi.error:  # no structure of this name, or an opaque one
                continue
            lines.append(f"{kind} {name}: {size} bytes")
            lines += [f"{kind} {name} + {f.offset}: {f.type.cname} {field}" for field, f in found.fields]
    return lines


def interfaces() -> dict[Path, list[str]]:
    """The content that each file should have."""
    found = {DATA / "interface_python.txt": python_lines(), DATA / "interface_c.txt": c_lines()}
    if importlib.util.find_spec("torch") is not None:
        found[DATA / "interface_torch.txt"] = python_lines(["ggml_backend.torch"])
    return found


if __name__ == "__main__":
    for path, lines in interfaces().items():
        path.write_text("\n".join(lines) + "\n")
        print(f"{path.name}: {len(lines)} lines")
