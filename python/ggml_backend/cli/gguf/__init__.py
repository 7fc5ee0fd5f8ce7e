"""``python -m ggml_backend gguf``: looks at GGUF files, checks them, quantizes them, makes them from safetensors files.
A module for each action, called like it, of the same form as those of the commands."""

from __future__ import annotations

import argparse

from ..program import Command, add_commands
from . import check, convert, dump, info, quantize

HELP = "look at, check, quantize and make GGUF files"
ACTIONS: dict[str, Command] = {"info": info, "dump": dump, "check": check, "quantize": quantize, "convert": convert}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_commands(parser, ACTIONS, "action")


def run(options: argparse.Namespace) -> int:
    return ACTIONS[options.action].run(options)
