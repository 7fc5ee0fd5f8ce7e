"""Text to tokens and back, from the vocabulary inside a GGUF file.

``tokenizer.ggml.model`` is ``llama`` (SentencePiece: pieces with scores, merged greedily by score; spaces are U+2581, unknown characters
become byte pieces ``<0x..>``) or ``gpt2`` (byte-level BPE with a list of merges, through the package ``tokenizers``).
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol

SPACE = "\u2581"
NORMAL, CONTROL, BYTE = 1, 3, 6  # tokenizer.ggml.token_type

# How text is cut before merging, by tokenizer.ggml.pre.
PATTERNS = {
    "gpt-2": r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+",
    "llama-bpe": r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
}
PATTERNS["default"] = PATTERNS["gpt-2"]
PATTERNS["llama3"] = PATTERNS["llama-bpe"]
PATTERNS["smollm"] = PATTERNS["gpt-2"]


class Tokenizer(Protocol):
    """What both kinds can do. ``stop``: tokens that end a text."""

    stop: frozenset[int]

    def encode(self, text: str) -> list[int]: ...

    def piece(self, token: int) -> bytes:
        """The bytes of one token; a character may spread over several."""
        ...


class SentencePiece:
    """The unigram-scored BPE of SentencePiece: of all neighbours whose union is a piece, the best-scored are merged first, ties from the left."""

    def __init__(self, metadata: Mapping[str, Any]) -> None:
        self.pieces: Sequence[str] = list(metadata["tokenizer.ggml.tokens"])
        self.scores = [float(s) for s in metadata.get("tokenizer.ggml.scores", [0.0] * len(self.pieces))]
        self.kinds = [int(t) for t in metadata.get("tokenizer.ggml.token_type", [NORMAL] * len(self.pieces))]
        self.ids = {p: i for i, p in reversed(list(enumerate(self.pieces)))}
        self.bos = int(metadata.get("tokenizer.ggml.bos_token_id", 1))
        self.unknown = int(metadata.get("tokenizer.ggml.unknown_token_id", 0))
        self.add_bos = bool(metadata.get("tokenizer.ggml.add_bos_token", True))
        self.add_space = bool(metadata.get("tokenizer.ggml.add_space_prefix", True))
        self.stop = frozenset({int(metadata.get("tokenizer.ggml.eos_token_id", 2))})

    def _merge(self, text: str) -> Iterable[str]:
        parts: list[str] = list(text)
        before, after = list(range(-1, len(parts) - 1)), list(range(1, len(parts) + 1))
        queue: list[tuple[float, int, int, str]] = []

        def offer(left: int) -> None:
            right = after[left] if left >= 0 else len(parts)
            if left >= 0 and right < len(parts):
                union = parts[left] + parts[right]
                token = self.ids.get(union)
                if token is not None:
                    heapq.heappush(queue, (-self.scores[token], left, right, union))

        for i in range(len(parts) - 1):
            offer(i)
        while queue:
            _, left, right, union = heapq.heappop(queue)
            if after[left] != right or parts[left] + parts[right] != union or not parts[left] or not parts[right]:
                continue  # one of them was merged meanwhile
            parts[left], parts[right] = union, ""
            after[left] = after[right]
            if after[right] < len(parts):
                before[after[right]] = left
            offer(before[left])
            offer(left)
        return (p for p in parts if p)

    def encode(self, text: str) -> list[int]:
        shown = text.replace(" ", SPACE)
        tokens = [self.bos] if self.add_bos else []
        if not shown:
            return tokens
        for part in self._merge(SPACE + shown if self.add_space else shown):
            token = self.ids.get(part)
            if token is not None:
                tokens.append(token)
            else:
                tokens += [self.ids.get(f"<0x{b:02X}>", self.unknown) for b in part.encode()]
        return tokens

    def piece(self, token: int) -> bytes:
        kind, text = self.kinds[token], self.pieces[token]
        if kind == BYTE:
            return bytes([int(text[3:5], 16)])
        return b"" if kind == CONTROL else text.replace(SPACE, " ").encode()


class ByteLevel:
    """Byte-level BPE as GPT-2 introduced it, with the merges of the file."""

    def __init__(self, metadata: Mapping[str, Any]) -> None:
        from tokenizers import AddedToken, Regex, decoders, pre_tokenizers
        from tokenizers import Tokenizer as Fast
        from tokenizers.models import BPE

        pre = metadata.get("tokenizer.ggml.pre", "default")
        if pre not in PATTERNS:
            raise ValueError(f"tokenizer.ggml.pre is {pre!r}; known are {', '.join(PATTERNS)}")
        pieces = list(metadata["tokenizer.ggml.tokens"])
        kinds = list(metadata.get("tokenizer.ggml.token_type", [NORMAL] * len(pieces)))
        merges = [tuple(m.split(" ", 1)) for m in metadata["tokenizer.ggml.merges"]]
        self.fast = Fast(BPE(vocab={p: i for i, p in enumerate(pieces)}, merges=merges, ignore_merges=pre in ("llama-bpe", "llama3")))
        split = pre_tokenizers.Split(Regex(PATTERNS[pre]), behavior="isolated")
        self.fast.pre_tokenizer = pre_tokenizers.Sequence([split, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
        self.fast.decoder = decoders.ByteLevel()
        self.fast.add_special_tokens([AddedToken(p, special=True) for p, k in zip(pieces, kinds, strict=True) if k == CONTROL])
        self.control = {i for i, k in enumerate(kinds) if k == CONTROL}
        self.pieces = pieces
        self.bytes = {c: b for b, c in enumerate(_byte_characters())}
        self.bos = int(metadata.get("tokenizer.ggml.bos_token_id", -1))
        self.add_bos = bool(metadata.get("tokenizer.ggml.add_bos_token", self.bos >= 0 and pre in ("llama-bpe", "llama3")))
        ends = (metadata.get(f"tokenizer.ggml.{k}_token_id") for k in ("eos", "eot"))
        self.stop = frozenset(int(e) for e in ends if e is not None)

    def encode(self, text: str) -> list[int]:
        return ([self.bos] if self.add_bos else []) + list(self.fast.encode(text, add_special_tokens=False).ids)

    def piece(self, token: int) -> bytes:
        if token in self.control:
            return b""
        return bytes(self.bytes[c] for c in self.pieces[token] if c in self.bytes)


def _byte_characters() -> list[str]:
    """The printable character that stands for each byte: itself where it is printable, else one from U+0100 on, in order."""
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = iter(range(0x100, 0x200))
    return [chr(b) if b in printable else chr(next(others)) for b in range(256)]


def tokenizer_of(metadata: Mapping[str, Any]) -> Tokenizer:
    """The tokenizer that a model file describes. ValueError: it has none, or of an unknown kind."""
    kind = metadata.get("tokenizer.ggml.model")
    if kind == "llama":
        return SentencePiece(metadata)
    if kind == "gpt2":
        return ByteLevel(metadata)
    raise ValueError("the file holds no tokenizer: give tokens by --tokens" if kind is None else f"unknown tokenizer {kind!r}: not llama or gpt2")
