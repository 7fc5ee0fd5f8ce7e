"""Command line of the generation example: text, or bare tokens, printed as they come; speed at the end."""

from __future__ import annotations

import argparse
import codecs
import sys
from collections.abc import Callable, Iterable, Sequence

import ggml_backend as gb
from ggml_backend.models import Tokenizer, tokenizer_of

from ..command import add_devices, count, plain, run
from .model import Llama, Sampler


def show_text(tokenizer: Tokenizer, tokens: Iterable[int]) -> None:
    decoder = codecs.getincrementaldecoder("utf-8")("replace")  # a character may spread over tokens
    for token in tokens:
        print(plain(decoder.decode(tokenizer.piece(token))), end="", flush=True)
    print(plain(decoder.decode(b"", final=True)))


def show_tokens(tokens: Iterable[int]) -> None:
    for token in tokens:
        print(token, end=" ", flush=True)
    print()


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m examples.llama", description="Generate text with a Llama-architecture GGUF file."
    )
    parser.add_argument("model", help="the GGUF file; of a split one, its first part")
    parser.add_argument("prompt", nargs="?", default="", help="text to go on from")
    parser.add_argument("--tokens", help="instead of a text: token numbers, separated by commas; prints numbers")
    parser.add_argument("-n", type=count(), default=128, help="tokens to generate at most (default: %(default)s)")
    parser.add_argument(
        "--temperature", type=float, default=0.0, help="0 takes the likeliest token (default: %(default)s)"
    )
    parser.add_argument(
        "--top-k", type=count(), default=40, help="with a temperature: among so many likeliest (default: %(default)s)"
    )
    parser.add_argument(
        "--top-p", type=float, default=0.95, help="... that make up this probability (default: %(default)s)"
    )
    parser.add_argument("--seed", type=int, help="of the random choice")
    add_devices(parser)
    parser.add_argument(
        "--cluster",
        action="store_true",
        help="under mpiexec: layers are spread over the ranks; if one is lost, the text goes on with the others",
    )
    parser.add_argument("--threads", type=count(512), help="CPU threads (default: what the machine has)")
    parser.add_argument("--context", type=count(), help="positions of the cache (default: the model's, at most 4096)")
    args = parser.parse_args()

    if not args.cluster:
        generate(args, args.devices)
        return
    with gb.cluster.start(n_threads=args.threads) as cluster:

        def living() -> list[str]:
            return [*(b.name for b in cluster.backends()), "CPU"]

        generate(args, living(), living)


def generate(
    args: argparse.Namespace, devices: list[str], survivors: Callable[[], Sequence[str]] | None = None
) -> None:
    sampler = Sampler(args.temperature, args.top_k, args.top_p, args.seed)
    model = Llama(args.model, devices, args.threads, args.context, survivors=survivors)
    if args.tokens:
        show_tokens(model.generate([int(t) for t in args.tokens.split(",")], sampler, args.n))
    else:
        tokenizer = tokenizer_of(model.metadata, model.config.vocab)
        prompt = args.prompt.encode("utf-8", "replace").decode()
        print(plain(prompt), end="", flush=True)
        show_text(tokenizer, model.generate(tokenizer.encode(prompt), sampler, args.n, tokenizer.stops))

    s = model.stats
    parts = []
    if s.prompt_seconds:
        parts.append(f"prompt {s.prompt_tokens} tokens, {s.prompt_tokens / s.prompt_seconds:.1f}/s")
    if s.new_seconds:
        parts.append(f"generated with {s.new_tokens} steps, {s.new_tokens / s.new_seconds:.1f}/s")
    parts.append(f"weights {model.weights.nbytes / 2**20:.1f} MiB, cache {model.cache.nbytes / 2**20:.1f} MiB")
    print("; ".join(parts), file=sys.stderr)


if __name__ == "__main__":
    run(main, "python -m examples.llama")
