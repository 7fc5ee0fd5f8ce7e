"""Text to tokens and back, from the vocabulary inside a GGUF file.

``tokenizer.ggml.model`` is ``llama`` (SentencePiece: pieces with scores, merged greedily by score; spaces are U+2581,
unknown characters become byte pieces ``<0x..>``) or ``gpt2`` (byte-level BPE with a list of merges, through the package
``tokenizers``).
"""

from __future__ import annotations

import heapq
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol

from .keys import Keys

SPACE = "\u2581"
NORMAL, CONTROL, BYTE = 1, 3, 6  # tokenizer.ggml.token_type

# How text is cut before merging, by tokenizer.ggml.pre.
PATTERNS = {
    "gpt-2": r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+",
    "llama-bpe": (
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}|"
        r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
    ),
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


def _byte_of(piece: str) -> bytes:
    """Of ``<0x41>``."""
    found = re.fullmatch(r"<0x([0-9A-Fa-f]{2})>", piece)
    if found is None:
        raise ValueError(f"tokenizer.ggml.tokens: {piece[:60]!r} is marked as a byte, and is not of the form <0x41>")
    return bytes.fromhex(found[1])


class SentencePiece:
    """The unigram-scored BPE of SentencePiece: of all neighbours whose union is a piece, the best-scored are merged
    first, ties from the left."""

    def __init__(self, metadata: Mapping[str, Any]) -> None:
        keys = Keys(metadata)
        self.pieces: Sequence[str] = keys.texts("tokenizer.ggml.tokens")
        self.scores = keys.numbers("tokenizer.ggml.scores", 0.0, len(self.pieces))
        self.kinds = keys.numbers("tokenizer.ggml.token_type", NORMAL, len(self.pieces))
        self.bytes = {i: _byte_of(p) for i, (p, k) in enumerate(zip(self.pieces, self.kinds, strict=True)) if k == BYTE}
        self.ids = {p: i for i, p in reversed(list(enumerate(self.pieces)))}
        last = len(self.pieces) - 1
        self.add_bos = keys.flag("tokenizer.ggml.add_bos_token", True)
        self.add_space = keys.flag("tokenizer.ggml.add_space_prefix", True)
        self.bos = keys.count("tokenizer.ggml.bos_token_id", min(1, last), least=0, most=last)
        self.unknown = keys.count("tokenizer.ggml.unknown_token_id", 0, least=0, most=last)
        self.stop = frozenset({keys.count("tokenizer.ggml.eos_token_id", 2, least=0, most=(1 << 32) - 1)})

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
                tokens += [self.ids.get(f"<0x{b:02X}>", self.unknown) for b in part.encode("utf-8", "replace")]
        return tokens

    def piece(self, token: int) -> bytes:
        kind, text = self.kinds[token], self.pieces[token]
        if kind == BYTE:
            return self.bytes[token]
        return b"" if kind == CONTROL else text.replace(SPACE, " ").encode("utf-8", "surrogateescape")


class ByteLevel:
    """Byte-level BPE as GPT-2 introduced it, with the merges of the file."""

    def __init__(self, metadata: Mapping[str, Any]) -> None:
        from tokenizers import AddedToken, Regex, decoders, pre_tokenizers
        from tokenizers import Tokenizer as Fast
        from tokenizers.models import BPE

        keys = Keys(metadata)
        pre = keys.word("tokenizer.ggml.pre", "default")
        if pre not in PATTERNS:
            raise ValueError(f"tokenizer.ggml.pre is {pre[:60]!r}; known are {', '.join(PATTERNS)}")
        pieces = keys.texts("tokenizer.ggml.tokens")
        kinds = keys.numbers("tokenizer.ggml.token_type", NORMAL, len(pieces))
        vocab = {p: i for i, p in enumerate(pieces)}
        merges = [_pair(m, vocab) for m in keys.texts("tokenizer.ggml.merges")]
        self.fast = Fast(BPE(vocab=vocab, merges=merges, ignore_merges=pre in ("llama-bpe", "llama3")))
        split = pre_tokenizers.Split(Regex(PATTERNS[pre]), behavior="isolated")
        self.fast.pre_tokenizer = pre_tokenizers.Sequence(
            [split, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
        )
        self.fast.decoder = decoders.ByteLevel()
        self.fast.add_special_tokens(
            [AddedToken(p, special=True) for p, k in zip(pieces, kinds, strict=True) if k == CONTROL]
        )
        self.control = {i for i, k in enumerate(kinds) if k == CONTROL}
        self.pieces = pieces
        self.bytes = {c: b for b, c in enumerate(_byte_characters())}
        self.bos = keys.count("tokenizer.ggml.bos_token_id", -1, least=-1, most=len(pieces) - 1)
        self.add_bos = keys.flag("tokenizer.ggml.add_bos_token", self.bos >= 0 and pre in ("llama-bpe", "llama3"))
        if self.add_bos and self.bos < 0:
            raise ValueError("tokenizer.ggml.add_bos_token is true, and there is no tokenizer.ggml.bos_token_id")
        ends = (f"tokenizer.ggml.{k}_token_id" for k in ("eos", "eot"))
        self.stop = frozenset(keys.count(e, least=0, most=(1 << 32) - 1) for e in ends if e in metadata)

    def encode(self, text: str) -> list[int]:
        return ([self.bos] if self.add_bos else []) + list(self.fast.encode(text, add_special_tokens=False).ids)

    def piece(self, token: int) -> bytes:
        if token in self.control:
            return b""
        return bytes(self.bytes[c] for c in self.pieces[token] if c in self.bytes)


def _pair(merge: str, vocab: Mapping[str, int]) -> tuple[str, str]:
    left, _, right = merge.partition(" ")
    if left not in vocab or right not in vocab or left + right not in vocab:
        raise ValueError(f"tokenizer.ggml.merges: {merge[:60]!r} does not join two tokens to a third")
    return left, right


def _byte_characters() -> list[str]:
    """The printable character that stands for each byte: itself where it is printable, else one from U+0100 on, in
    order."""
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = iter(range(0x100, 0x200))
    return [chr(b) if b in printable else chr(next(others)) for b in range(256)]


def tokenizer_of(metadata: Mapping[str, Any], vocab: int | None = None) -> Tokenizer:
    """The tokenizer that a model file describes. ValueError: it has none, of an unknown kind, or not with a piece for
    each of ``vocab``."""
    kind = metadata.get("tokenizer.ggml.model")
    if kind is None:
        raise ValueError("the file holds no tokenizer: give tokens by --tokens")
    if kind not in ("llama", "gpt2"):
        raise ValueError(f"unknown tokenizer {str(kind)[:60]!r}: not llama or gpt2")
    tokenizer: SentencePiece | ByteLevel = SentencePiece(metadata) if kind == "llama" else ByteLevel(metadata)
    if vocab is not None and len(tokenizer.pieces) != vocab:
        raise ValueError(f"tokenizer.ggml.tokens has {len(tokenizer.pieces)} pieces, the network {vocab} tokens")
    return tokenizer
