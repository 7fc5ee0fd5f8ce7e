"""``bench MODEL.gguf``: tokens a second of a model file, of any architecture that ``chat``, ``embed`` or ``transcribe``
runs. ``profile MODEL.gguf`` runs the same work once."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from ..._base.errors import InvalidArgumentError
from ..._base.files import read_head
from ..._base.terminal import step_bar
from ..._base.text import line, size_text
from ..._base.timing import PROCESS, WALL, median
from ...models import EmbeddingModel, SpeechModel, TextModel, load

__all__ = ["is_model", "measure_file", "print_figures", "work_of"]

Work = Callable[[int], float]
"""One round of a kind of work: the round's number -> units of work done."""

_PROMPT, _NEW, _TEXTS, _TEXT = 512, 32, 32, 128


def is_model(path: str) -> bool:
    """True for the name of a GGUF file, or a file that begins like one."""
    try:
        return path.lower().endswith(".gguf") or read_head(path, 4) == b"GGUF"
    except OSError:
        return False


@contextmanager
def work_of(
    path: str, devices: Sequence[str] = ("CPU",), n_threads: int | None = None, prompt: int | None = None,
    new: int | None = None,
) -> Iterator[tuple[Any, dict[str, tuple[str, Work]]]]:  # fmt: skip
    """The open model, and its kinds of work by name, each with its unit.

    prompt: tokens of a prompt (512) or of a text of an embedding model (128), by default at most the context. Speech
        models refuse it.
    new: tokens that are written, one after another (32). Embedding models refuse it.
    """
    options = {} if n_threads is None else {"n_threads": n_threads}
    with load(path, devices, **options) as model:
        if isinstance(model, TextModel):
            yield model, _writing(model, prompt, new)
        elif isinstance(model, EmbeddingModel):
            if new is not None:
                raise InvalidArgumentError(
                    f"--new: {line(model.architecture)!r} is an embedding model: it writes no tokens"
                )
            yield model, _reading(model, prompt)
        else:
            if prompt is not None:
                raise InvalidArgumentError(f"--prompt: {line(model.architecture)!r} is a speech model: it reads audio")
            yield model, _listening(model, new)


def _writing(model: TextModel, prompt: int | None, new: int | None) -> dict[str, tuple[str, Work]]:
    n_new = _NEW if new is None else new
    n = min(_PROMPT, model.n_ctx - n_new) if prompt is None else prompt
    if n < 1 or n + n_new > model.n_ctx:
        raise InvalidArgumentError(f"a prompt of {n} tokens and {n_new} more do not fit the context of {model.n_ctx}")
    n_vocab = len(model.tokenizer)

    def ids(i: int) -> list[int]:  # another first token each time, so that no round finds the tokens of the last
        tokens: list[int] = np.random.default_rng(i).integers(0, n_vocab, n + n_new).tolist()
        return [i % n_vocab, *tokens[1:]]

    def read(i: int) -> float:
        model.logits(ids(i)[:n])
        return n

    def write(i: int) -> float:
        tokens = ids(i)
        for k in range(n, n + n_new):
            model.logits(tokens[: k + 1])
        return n_new

    return {f"a prompt of {n}": ("tokens/s", read), f"{n_new} tokens after it": ("tokens/s", write)}


def _reading(model: EmbeddingModel, prompt: int | None) -> dict[str, tuple[str, Work]]:
    n = min(_TEXT if prompt is None else prompt, model.n_ctx)
    texts = [f"{i} " + "word " * max(1, n - 4) for i in range(_TEXTS)]
    total = sum(min(n, len(model.tokenizer.encode(text))) for text in texts)

    def read(i: int) -> float:
        model.embed(texts)
        return total

    return {f"{_TEXTS} texts of {total // _TEXTS} tokens": ("tokens/s", read)}


def _listening(model: SpeechModel, new: int | None) -> dict[str, tuple[str, Work]]:
    n = _NEW if new is None else new
    noise = np.random.default_rng(0).standard_normal((model._s.mels, 2 * model._s.audio_context)).astype(np.float32)
    first = model._special.start

    def listen(i: int) -> float:
        model._encode(noise)
        return 30.0

    def write(i: int) -> float:
        for k in range(n):
            model._decode([first], [k], [k], [range(k + 1)])
        return n

    return {"windows of 30 s": ("s of audio/s", listen), f"{n} tokens": ("tokens/s", write)}


def measure_file(
    path: str, devices: Sequence[str], n_threads: int | None, prompt: int | None, new: int | None, rounds: int,
    processor_time: bool,
) -> dict[str, Any]:  # fmt: skip
    """Rates of each kind of work, of each round."""
    clock, show = PROCESS if processor_time else WALL, step_bar("bench")
    with work_of(path, devices, n_threads, prompt, new) as (model, kinds):
        rates: dict[str, list[float]] = {name: [] for name in kinds}
        for i in range(rounds + 1):
            for name, (_, work) in kinds.items():
                begin = clock()
                units = work(i)
                if i > 0:  # the first round builds the graphs
                    rates[name].append(units / (clock() - begin))
            show(i, rounds, name)
        memory = {"weights": model.weights.nbytes}
        if isinstance(model, TextModel):
            memory |= {"cache": model.cache.nbytes, "compute": model.compute_nbytes}
        return {
            "model": model.name,
            "architecture": model.architecture,
            "devices": [b.name for b in model.backends],
            "threads": n_threads or model.backends[-1].n_threads,
            "processor_time": processor_time,
            "memory": memory,
            "rates": {
                name: {"unit": unit, "median": median(rates[name]), "rounds": rates[name]}
                for name, (unit, _) in kinds.items()
            },
        }


def print_figures(found: dict[str, Any]) -> None:
    """Prints what :func:`measure_file` returns."""
    memory = ", ".join(f"{name} {size_text(n)}" for name, n in found["memory"].items())
    how = "; processor time" if found["processor_time"] else ""
    print(
        f"{line(found['model'])}: {line(found['architecture'])}, on {', '.join(found['devices'])},"
        f" {found['threads']} threads{how}; {memory}"
    )
    for name, rate in found["rates"].items():
        print(
            f"{name:<28} {rate['median']:10.1f} {rate['unit']:<13} ({min(rate['rounds']):.1f} to"
            f" {max(rate['rounds']):.1f})"
        )
