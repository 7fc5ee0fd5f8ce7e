"""``quantize``: the same model in another format."""

from __future__ import annotations

import argparse

from .gguf.conversion import add_conversion_arguments
from .gguf.mixtures import MIXTURES
from .gguf.quantize import run as run_quantize

EXAMPLE = "model-f16.gguf model-q4.gguf Q4_K_M"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("input", metavar="MODEL.gguf", help="the model to read")
    parser.add_argument("output", metavar="SMALLER.gguf", help="the file to write")
    mixtures = ", ".join(name.upper() for name in MIXTURES)
    parser.add_argument("type", metavar="TYPE", help=f"a mixture ({mixtures}) or a format such as Q8_0, Q4_0, F16")
    add_conversion_arguments(parser, type_option=False)


def run(options: argparse.Namespace) -> int:
    return run_quantize(options)
