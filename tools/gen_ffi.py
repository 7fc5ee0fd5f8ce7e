#!/usr/bin/env python3
"""Writes the C source of the Python module `ggml_backend._ffi`.

    gen_ffi.py --module NAME --output FILE.c HEADER...

The declarations are those of the headers between the comments `// cdef: begin` and `// cdef: end`. So no declaration is
written twice. This program rewrites macros that expand to attributes and constant expressions in
array sizes, because cffi cannot parse them. The C compiler then checks every declaration against the header.
"""

from __future__ import annotations

import argparse
import re
import sys
from pathlib import Path

from cffi import FFI

BEGIN = re.compile(r"^\s*// cdef: begin\b.*$", re.MULTILINE)
END = re.compile(r"^\s*// cdef: end\b.*$", re.MULTILINE)
COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.DOTALL)
ATTRIBUTE = re.compile(r"\b(?:GGML_API|GGML_CALL|GGML_RESTRICT)\b\s*")
DEFINE = re.compile(r"^[ \t]*#[ \t]*define[ \t]+(\w+)[ \t]+(\S+)[ \t]*$", re.MULTILINE)
ARRAY = re.compile(r"\[([^\[\]]*[A-Za-z/+*-][^\[\]]*)\]")
STATIC_PROTOTYPE = re.compile(r"^static\s+(?:inline\s+)?", re.MULTILINE)
SIZEOF = {"char": 1, "int8_t": 1, "uint8_t": 1, "int16_t": 2, "int32_t": 4, "float": 4, "int64_t": 8, "double": 8}


def marked_regions(text: str, name: str) -> str:
    """The text between the marks, without them."""
    parts = []
    position = 0
    while True:
        begin = BEGIN.search(text, position)
        if begin is None:
            break
        end = END.search(text, begin.end())
        if end is None:
            raise SystemExit(f"{name}: a 'cdef: begin' has no 'cdef: end'")
        parts.append(text[begin.end() : end.start()])
        position = end.end()
    if not parts:
        raise SystemExit(f"{name}: has no '// cdef: begin'")
    return "\n".join(parts)


def constant(expression: str, defines: dict[str, int]) -> int:
    """The value of a constant expression made of integers, names, sizeof(type) and + - * / ( )."""
    text = re.sub(r"sizeof\s*\(\s*(\w+)\s*\)", lambda m: str(SIZEOF[m.group(1)]), expression)
    text = re.sub(r"\b[A-Za-z_]\w*\b", lambda m: str(defines[m.group(0)]), text)
    if not re.fullmatch(r"[\d\s+*/()x-]+", text):
        raise SystemExit(f"cannot evaluate array size '{expression}'")
    return int(eval(text.replace("/", "//"), {"__builtins__": {}}))


def declarations(text: str, defines: dict[str, int]) -> str:
    """Turns the C of a marked region into C that cffi can parse. Adds the region's integer macros to `defines`."""
    text = COMMENT.sub("", text)
    text = ATTRIBUTE.sub("", text)
    for name, value in DEFINE.findall(text):
        defines[name] = int(value, 0)
    text = ARRAY.sub(lambda m: f"[{constant(m.group(1), defines)}]", text)
    text = re.sub(r"\bGBPY_PYTHON\b", 'extern "Python"', text)
    text = STATIC_PROTOTYPE.sub("", text)
    return "\n".join(line.rstrip() for line in text.splitlines() if line.strip())


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--module", required=True, help="full name of the module")
    parser.add_argument("--output", required=True, type=Path, help="C file to write")
    parser.add_argument("headers", nargs="+", type=Path)
    options = parser.parse_args()

    # programs can override this macro, so it is outside of the marked region; the compiler checks the value
    defines: dict[str, int] = {"GGML_MAX_NAME": 64}
    cdef = "\n".join(declarations(marked_regions(h.read_text(), h.name), defines) for h in options.headers)
    ffi = FFI()
    ffi.cdef(cdef)
    ffi.set_source(options.module, "".join(f'#include "{h.name}"\n' for h in options.headers))
    options.output.parent.mkdir(parents=True, exist_ok=True)
    ffi.emit_c_code(str(options.output))
    return 0


if __name__ == "__main__":
    sys.exit(main())
