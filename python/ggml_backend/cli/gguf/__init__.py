"""``python -m ggml_backend gguf``: looks at GGUF files, checks them, quantizes them, makes them from safetensors files.
A module for each action, called like it, of the same form as those of the commands."""

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
    "diff": "show in what two files differ",
}
"""What each action does, in a line."""

EXAMPLE = "info MODEL.gguf"


def add_arguments(parser: Parser) -> None:
    add_commands(parser, __name__, ACTIONS, "action", {"dump": ["list"]})


def run(options: argparse.Namespace) -> int:
    return command_of(__name__, options.action).run(options)
