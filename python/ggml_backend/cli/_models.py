"""Arguments and output that all commands for whole models share."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable

from .._base.errors import InvalidArgumentError
from .._base.files import read_text
from .._base.text import lines, size_text
from ..models.embedding import EmbeddingModel
from ..models.sampling import Sampling
from ..models.text import TextModel
from .program import add_import, import_named, need_input

__all__ = [
    "add_model",
    "add_sampling",
    "add_stop",
    "load_embedding",
    "load_text",
    "sampling_of",
    "speed",
    "text_of",
    "visible",
    "whole_number",
]


def whole_number(least: int = 1, most: int = 1 << 31) -> Callable[[str], int]:
    """For ``type=`` of an argument."""

    def number(word: str) -> int:
        value = int(word)
        if not least <= value <= most:
            raise argparse.ArgumentTypeError(f"{word} is not from {least} to {most}")
        return value

    return number


def add_model(parser: argparse.ArgumentParser) -> None:
    """The arguments of every command that runs a model."""
    count = whole_number()
    parser.add_argument("model", metavar="MODEL.gguf", help="the model; if it is split, its first part")
    parser.add_argument(
        "--devices", default="CPU", help="devices in order of priority, for example CUDA0,CPU (default: CPU)"
    )
    parser.add_argument("--threads", type=count, metavar="N", help="threads of the CPU (default: all processors)")
    parser.add_argument(
        "--n-ctx",
        type=count,
        metavar="N",
        help="length of the context in tokens (default: that of the model, at most 4096)",
    )
    add_import(parser)


def add_sampling(parser: argparse.ArgumentParser) -> None:
    """The rules of :class:`Sampling`."""
    parser.add_argument(
        "--precision",
        choices=("default", "f16", "f32"),
        default="f16",
        help="activations for quantized weights: default rounds to 8 bits, which is faster (default: f16)",
    )
    group = parser.add_argument_group("choice of the next token")
    group.add_argument(
        "--temperature", type=float, default=0.0, metavar="T", help="0: take the likeliest token (default: 0)"
    )
    group.add_argument(
        "--top-k",
        type=int,
        default=40,
        metavar="N",
        help="choose among the N likeliest tokens; 0: among all (default: 40)",
    )
    group.add_argument(
        "--top-p",
        type=float,
        default=0.95,
        metavar="P",
        help="choose among the likeliest tokens that reach this probability together (default: 0.95)",
    )
    group.add_argument(
        "--min-p",
        type=float,
        default=0.0,
        metavar="P",
        help="choose among tokens with this share of the best probability (default: 0)",
    )
    group.add_argument(
        "--repeat-penalty",
        type=float,
        default=1.0,
        metavar="X",
        help="make recent tokens less likely (default: 1, not at all)",
    )
    group.add_argument("--seed", type=int, metavar="N", help="seed of the random choice")


def add_stop(parser: argparse.ArgumentParser, what: str) -> None:
    """The option --stop. what: the text that it ends"""
    parser.add_argument(
        "--stop",
        action="append",
        default=[],
        type=_some_text,
        metavar="TEXT",
        help=f"text that ends {what}; may be repeated",
    )


def _some_text(word: str) -> str:
    if not word:
        raise argparse.ArgumentTypeError("the text is empty")
    return word


def sampling_of(options: argparse.Namespace) -> Sampling:
    """The rules that the user gave. A wrong rule ends the command with its usage."""
    try:
        return Sampling(
            options.temperature, options.top_k, options.top_p, options.min_p, options.repeat_penalty, seed=options.seed
        )
    except InvalidArgumentError as error:
        parser: argparse.ArgumentParser = options.parser
        parser.error(f"--{str(error).replace('_', '-')}")


def _names(text: str) -> list[str]:
    """Devices with options: ``SIM:mem=64M,delay=1ms,CPU`` names two."""
    names: list[str] = []
    for item in text.split(","):
        if names and "=" in item and ":" not in item.partition("=")[0]:
            names[-1] += f",{item}"
        else:
            names.append(item)
    return names


def load_text(options: argparse.Namespace) -> TextModel:
    """The model of a command that writes text."""
    import_named(options)
    return TextModel(
        options.model,
        _names(options.devices),
        n_threads=options.threads,
        n_ctx=options.n_ctx,
        precision=getattr(options, "precision", "f16"),
    )


def load_embedding(options: argparse.Namespace) -> EmbeddingModel:
    """The model of a command that makes vectors."""
    import_named(options)
    return EmbeddingModel(options.model, _names(options.devices), n_threads=options.threads, n_ctx=options.n_ctx)


def visible(text: str) -> str:
    """Text of a model for the output: control characters become visible if that is a terminal."""
    return lines(text) if sys.stdout.isatty() else text


def _peak_memory() -> int | None:
    """The most memory in bytes that this process had so far. None if the system does not tell."""
    try:
        import resource
    except ImportError:
        return None
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return most if sys.platform == "darwin" else most * 1024


def speed(model: TextModel) -> str:
    """Tokens a second, the planned memory, and the peak of the process, in a line."""
    s, parts = model.stats, []
    if s.prompt_seconds:
        parts.append(f"prompt {s.prompt_tokens} tokens, {s.prompt_tokens / s.prompt_seconds:.0f} tokens/s")
    if s.new_seconds:
        parts.append(f"answer {s.new_tokens + 1} tokens, {s.new_tokens / s.new_seconds:.1f} tokens/s")
    sizes = {"weights": model.weights.nbytes, "cache": model.cache.nbytes, "compute": model.compute_nbytes}
    planned = ", ".join(f"{name} {size_text(nbytes)}" for name, nbytes in sizes.items())
    peak = _peak_memory()
    beside = "" if peak is None else f", the whole process {size_text(peak)} at most"
    parts.append(f"planned {size_text(sum(sizes.values()))} ({planned}){beside}")
    return "; ".join(parts)


def text_of(path: str) -> str:
    """A text file, or the standard input if it is ``-``."""
    if path != "-":
        return read_text(path)
    need_input("give the name of a file in place of -")
    return sys.stdin.read()
