"""GGUF files, written with the ``gguf`` package."""

from __future__ import annotations

import gguf

__all__ = ["finish"]


def finish(writer: gguf.GGUFWriter) -> None:
    """Writes the file."""
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
