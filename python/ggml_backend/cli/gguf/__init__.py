"""``python -m ggml_backend gguf``: shows, checks, quantizes and makes GGUF files. Each action has a
module of the same name and form as a command."""

from __future__ import annotations

import argparse

from ..program import Parser, add_commands, command_of

ACTIONS = {
    "info": "show keys, values and a summary of the tensors",
    "dump": "list the tensors, and their values if you like",
    "check": "check that files are valid and that all their numbers are finite",
    "quantize": "write the same file with its matrices in another format",
    "convert": "write a GGUF file from safetensors files",
    "set": "write the same file with other keys",
    "rename": "write the same file with other names of tensors",
    "diff": "show the differences between two files",
}
"""One-line descriptions of the actions."""

EXAMPLE = "info MODEL.gguf"


def add_arguments(parser: Parser) -> None:
    add_commands(parser, __name__, ACTIONS, "action", {"dump": ["list"]})


def run(options: argparse.Namespace) -> int:
    return command_of(__name__, options.action).run(options)
