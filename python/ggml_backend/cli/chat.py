"""``chat``: one question and its answer, or a conversation."""

from __future__ import annotations

import argparse
import sys

from .._base.text import lines
from ..models.chat import Message
from ..models.text import TextModel
from ._models import add_model, add_sampling, add_stop, load_text, sampling_of, speed, visible, whole_number
from .program import need_input, need_output

EXAMPLE = 'SmolLM2.gguf "What is the capital of France?"'


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_model(parser)
    parser.add_argument("message", nargs="?", help="your question; without it, a conversation begins")
    parser.add_argument("--system", metavar="TEXT", help="instructions before the conversation")
    parser.add_argument(
        "-n",
        "--max-tokens",
        type=whole_number(),
        metavar="N",
        help="longest answer (default: to the end of the context)",
    )
    add_stop(parser, "an answer")
    add_sampling(parser)
    parser.add_argument("--quiet", action="store_true", help="do not show the speed")


def run(options: argparse.Namespace) -> int:
    sampling = sampling_of(options)
    need_output()
    if options.message is None:
        need_input("give your question as an argument")
    with load_text(options) as model:
        messages: list[Message] = [{"role": "system", "content": options.system}] if options.system else []

        def answer(question: str) -> None:
            messages.append({"role": "user", "content": question})
            generation = model.chat(messages, max_tokens=options.max_tokens, stop=options.stop, sampling=sampling)
            try:
                for piece in generation:
                    print(visible(piece), end="", flush=True)
            finally:
                print(flush=True)
                messages.append({"role": "assistant", "content": generation.text})

        if options.message is not None:
            answer(options.message)
        else:
            _converse(model, answer)
        if not options.quiet and model.stats.prompt_tokens + model.stats.new_tokens:
            print(speed(model), file=sys.stderr)
    return 0


def _converse(model: TextModel, answer: object) -> None:
    """Reads questions until the end of the input. Ctrl-C ends an answer, or the conversation at a question."""
    assert callable(answer)
    if sys.stdin.isatty():
        print(f"{lines(model.name)}. Ctrl-C ends an answer, Ctrl-D the conversation.", file=sys.stderr)
    while True:
        try:
            question = input("> " if sys.stdin.isatty() else "")
        except EOFError:
            return
        if not question.strip():
            continue
        try:
            answer(question)
        except KeyboardInterrupt:
            if not sys.stdin.isatty():
                raise
