"""``generate``: continues a text."""

from __future__ import annotations

import argparse
import sys

from ._models import add_model, add_sampling, add_stop, load_text, sampling_of, speed, text_of, visible, whole_number
from .program import need_output

EXAMPLE = 'SmolLM2.gguf "Once upon a time" --max-tokens 100 --temperature 0.8 --seed 1'


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_model(parser)
    parser.add_argument("prompt", nargs="?", help="the text to continue")
    parser.add_argument("-f", "--file", metavar="FILE", help="read the text from this file; -: the standard input")
    parser.add_argument(
        "-n",
        "--max-tokens",
        type=whole_number(),
        default=128,
        metavar="N",
        help="longest new text (default: 128)",
    )
    add_stop(parser, "the new text")
    add_sampling(parser)
    parser.add_argument("--quiet", action="store_true", help="do not show the speed")


def run(options: argparse.Namespace) -> int:
    if (options.prompt is None) == (options.file is None):
        options.parser.error("give either a prompt or --file")
    sampling = sampling_of(options)
    need_output()
    prompt = options.prompt if options.file is None else text_of(options.file)
    with load_text(options) as model:
        generation = model.generate(prompt, max_tokens=options.max_tokens, stop=options.stop, sampling=sampling)
        try:
            for piece in generation:
                print(visible(piece), end="", flush=True)
        finally:
            print(flush=True)
        if not options.quiet:
            print(speed(model), file=sys.stderr)
    return 0
