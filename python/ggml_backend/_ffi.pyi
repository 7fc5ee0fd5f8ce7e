"""The generated module. Its declarations are those of the C headers (tools/gen_ffi.py); everything is Any here."""

from typing import Any

ffi: Any
lib: Any
