"""Writes text with a model whose layers are spread over the ranks of an MPI job. If a rank is lost, the others go on.

mpiexec -n 3 python examples/text_on_cluster.py MODEL.gguf "Once upon a time" --tokens 100
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import ggml_backend as gb
from ggml_backend.models import TextModel
from ggml_backend.models.tokens import TextStream


def write(
    path: str, prompt: str | Sequence[int], devices: Callable[[], Sequence[str]], max_tokens: int, **options: Any
) -> Iterator[str]:
    """Yields the text after a prompt, piece by piece.

    devices: returns the names of the remaining devices, in order of priority. After a
        ``gb.errors.DeviceLostError`` these devices load the model, which reads the text so far.
    """
    written: list[int] = []
    stream: TextStream | None = None  # kept for the next model: a character may have tokens before and after the loss
    while True:
        try:
            with TextModel(path, devices(), **options) as model:
                stream = stream or TextStream(model.tokenizer)
                begin = model.tokenizer.encode(prompt) if isinstance(prompt, str) else prompt
                before = len(written)
                text = model.generate([*begin, *written], max_tokens=max_tokens - before)
                for _ in text:
                    for token in text.tokens[len(written) - before :]:
                        written.append(token)
                        yield stream.push(token)
                yield stream.end()
                return
        except gb.errors.DeviceLostError:
            if len(written) == max_tokens:
                return


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("model", help="a GGUF file that all ranks can read")
    parser.add_argument("prompt")
    parser.add_argument("--tokens", type=int, default=128, help="maximum of new tokens (default: %(default)s)")
    parser.add_argument("--threads", type=int, help="CPU threads of a rank (default: the usable cores)")
    args = parser.parse_args()
    with gb.cluster.start(n_threads=args.threads) as cluster:

        def living() -> list[str]:
            return [*(b.name for b in cluster.backends()), "CPU"]

        for piece in write(args.model, args.prompt, living, args.tokens, n_threads=args.threads):
            print(piece, end="", flush=True)
    print()


if __name__ == "__main__":
    main()
