"""Tokenizers: text to tokens and back, from the vocabulary inside a GGUF file.

The key ``tokenizer.ggml.model`` names the kind:

========  ==============================================================================================
gpt2      byte-level BPE with a list of merges. ``tokenizer.ggml.pre`` names how text is cut before.
llama     SentencePiece BPE: pieces with scores. Unknown characters become byte pieces ``<0x..>``.
t5        SentencePiece unigram: the split of a text with the largest sum of scores
bert      WordPiece: the longest pieces of a word from the left
========  ==============================================================================================

All but ``llama`` run in the package ``tokenizers``.
"""

from __future__ import annotations

import codecs
import heapq
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from .._base.errors import FileError, UnsupportedError, expect, expect_bool, expect_int, expect_list
from .._base.errors.messages import kind_of
from ._keys import Keys

if TYPE_CHECKING:
    from tokenizers import Tokenizer as Engine

__all__ = ["TextStream", "Tokenizer", "tokenizer_of"]

_SPACE = "\u2581"
_NORMAL, _UNKNOWN, _CONTROL, _USER, _BYTE = 1, 2, 3, 4, 6  # tokenizer.ggml.token_type

_ENDINGS = "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_GPT_2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_END_LLAMA_3 = r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_END_GPT_4O = r"| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_LLAMA_3 = rf"{_ENDINGS}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}{{1,3}}{_END_LLAMA_3}"
_QWEN_2 = rf"{_ENDINGS}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}{_END_LLAMA_3}"
_GPT_4O = (
    rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+{_ENDINGS}?|[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*{_ENDINGS}?"
    rf"|\p{{N}}{{1,3}}{_END_GPT_4O}"
)
_TEKKEN = rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+|[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*|\p{{N}}{_END_GPT_4O}"

PATTERNS: Mapping[str, str] = {
    **dict.fromkeys(("default", "gpt-2", "smollm", "olmo", "modern-bert", "mpt", "phi-2"), _GPT_2),
    **dict.fromkeys(("llama-bpe", "llama3", "llama-v3", "pixtral", "dbrx", "smaug-bpe"), _LLAMA_3),
    **dict.fromkeys(("qwen2", "deepseek-r1-qwen", "stablelm2"), _QWEN_2),
    "gpt-4o": _GPT_4O,
    "tekken": _TEKKEN,
}
"""The regular expression that cuts text before BPE, by ``tokenizer.ggml.pre``."""

_WHOLE_PIECES = frozenset(
    {"llama-bpe", "llama3", "llama-v3", "pixtral", "tekken"}
)  # text between two cuts that is a piece becomes its token, without merges
_SINGLE_DIGITS = frozenset({"smollm"})  # cut apart before the pattern
_NORMAL_FORM_C = frozenset({"qwen2", "deepseek-r1-qwen", "modern-bert", "olmo", "mpt"})

_STOPS = ("<|im_end|>", "<|eot_id|>", "<|eom_id|>", "<end_of_turn>", "<|end|>", "<|endoftext|>", "<|return|>")
"""Control tokens that end an answer in the chat formats of the models."""


class TextStream:
    """Joins the bytes of tokens to text. A character that spreads over tokens comes when it is complete."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def push(self, token: int) -> str:
        """The characters that are complete after this token."""
        return self._decoder.decode(self._tokenizer.piece(token))

    def end(self) -> str:
        """The rest of the text: U+FFFD for an incomplete character."""
        return self._decoder.decode(b"", final=True)


class Tokenizer:
    """The tokenizer of a model file.

    ``pieces``: the text of each token as the file writes it; ``bos``, ``eos``: the numbers of the tokens that begin and
    end a text, or None; ``stops``: the tokens that end an answer.
    """

    kind = ""
    _begin_by_default = False

    def __init__(self, keys: Keys) -> None:
        self.pieces: list[str] = keys.words("tokenizer.ggml.tokens")
        self._types = keys.numbers("tokenizer.ggml.token_type", _NORMAL, len(self.pieces))
        self.bos: int | None = self._number(keys, "bos")
        self.eos: int | None = self._number(keys, "eos")
        self._add_bos = keys.flag("tokenizer.ggml.add_bos_token", self._begin_by_default and self.bos is not None)
        self._add_eos = keys.flag("tokenizer.ggml.add_eos_token", False)
        for name, wanted, token in (("bos", self._add_bos, self.bos), ("eos", self._add_eos, self.eos)):
            if wanted and token is None:
                raise FileError(f"tokenizer.ggml.add_{name}_token is true without a tokenizer.ggml.{name}_token_id")
        control = {p: i for i, (p, t) in enumerate(zip(self.pieces, self._types, strict=True)) if t == _CONTROL}
        users = {p: i for i, (p, t) in enumerate(zip(self.pieces, self._types, strict=True)) if t == _USER}
        self._special = users | control
        named = (self.eos, self._number(keys, "eot"), self._number(keys, "eom"))
        self.stops: frozenset[int] = frozenset(t for t in named if t is not None) | {
            control[n] for n in _STOPS if n in control
        }
        longest_first = sorted((p for p in self._special if p), key=len, reverse=True)
        self._cut = re.compile("|".join(map(re.escape, longest_first))) if longest_first else None

    def _number(self, keys: Keys, name: str) -> int | None:
        key = f"tokenizer.ggml.{name}_token_id"
        return keys.count(key, least=0, most=len(self.pieces) - 1) if key in keys else None

    def __len__(self) -> int:
        return len(self.pieces)

    def __repr__(self) -> str:
        return f"<Tokenizer {self.kind}: {len(self)} tokens>"

    def encode(self, text: str, *, special: bool = True, ends: bool = True) -> list[int]:
        """Tokens of a text.

        special: text such as ``<|im_end|>`` becomes the special token of that name. Turn it off for untrusted text.
        ends: adds the tokens that the model expects at the beginning and the end of a text.
        """
        expect(text, str, "text")
        special, ends = expect_bool(special, "special"), expect_bool(ends, "ends")
        tokens = [self.bos] if ends and self._add_bos and self.bos is not None else []
        begin = 0
        for found in self._cut.finditer(text) if special and self._cut else ():
            tokens += self._encode_plain(text[begin : found.start()], begin == 0)
            tokens.append(self._special[found[0]])
            begin = found.end()
        tokens += self._encode_plain(text[begin:], begin == 0)
        if ends and self._add_eos and self.eos is not None:
            tokens.append(self.eos)
        return tokens

    def _encode_plain(self, text: str, first: bool) -> Iterable[int]:
        """Tokens of a text without special tokens. first: it begins the whole text."""
        raise NotImplementedError

    def piece(self, token: int) -> bytes:
        """The bytes of a token in UTF-8. A character may spread over several tokens.

        Control tokens have none, and neither have rows of the embedding beyond the vocabulary.
        """
        token = expect_int(token, "token")
        return self._piece(token) if 0 <= token < len(self.pieces) else b""

    def _piece(self, token: int) -> bytes:
        """The bytes of a token of the vocabulary."""
        raise NotImplementedError

    def decode(self, tokens: Iterable[int]) -> str:
        """The text of tokens. Bytes that are not UTF-8 become U+FFFD."""
        numbers = [expect_int(t, "tokens: each") for t in expect_list(tokens, "tokens", "tokens")]
        return b"".join(map(self.piece, numbers)).decode("utf-8", "replace")


class _SpaceMarked(Tokenizer):
    """A tokenizer whose pieces have U+2581 for a space. Pieces such as ``<0x41>`` stand for bytes."""

    def __init__(self, keys: Keys) -> None:
        super().__init__(keys)
        self._bytes = {
            i: _byte_of(p) for i, (p, t) in enumerate(zip(self.pieces, self._types, strict=True)) if t == _BYTE
        }
        self._ids_of_bytes = {b[0]: i for i, b in self._bytes.items()}
        unknown = self._number(keys, "unknown")
        if unknown is None:
            unknown = self._types.index(_UNKNOWN) if _UNKNOWN in self._types else 0
        self._unknown = unknown

    def _byte_tokens(self, text: str) -> list[int]:
        """Tokens of the bytes of a text that no piece has."""
        return [self._ids_of_bytes.get(b, self._unknown) for b in text.encode("utf-8", "replace")]

    def _piece(self, token: int) -> bytes:
        kind = self._types[token]
        if kind == _BYTE:
            return self._bytes[token]
        return b"" if kind == _CONTROL else self.pieces[token].replace(_SPACE, " ").encode("utf-8", "surrogateescape")


class _SentencePiece(_SpaceMarked):
    """The scored BPE of SentencePiece (Kudo and Richardson 2018, arXiv:1808.06226).

    Of all neighbours whose union is a piece, it merges those with the best score first, ties from the left.
    """

    kind = "llama"
    _begin_by_default = True

    def __init__(self, keys: Keys) -> None:
        super().__init__(keys)
        self._scores = keys.numbers("tokenizer.ggml.scores", 0.0, len(self.pieces))
        no_text = (_UNKNOWN, _CONTROL, _BYTE)  # a text that spells such a piece does not become its token
        self._ids = {p: i for i, p in reversed(list(enumerate(self.pieces))) if self._types[i] not in no_text}
        self._add_space = keys.flag("tokenizer.ggml.add_space_prefix", True)

    def _merge(self, text: str) -> Iterator[str]:
        parts: list[str] = list(text)
        before, after = list(range(-1, len(parts) - 1)), list(range(1, len(parts) + 1))
        queue: list[tuple[float, int, int, str]] = []

        def offer(left: int) -> None:
            right = after[left] if left >= 0 else len(parts)
            if left >= 0 and right < len(parts):
                union = parts[left] + parts[right]
                token = self._ids.get(union)
                if token is not None:
                    heapq.heappush(queue, (-self._scores[token], left, right, union))

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

    def _encode_plain(self, text: str, first: bool) -> Iterator[int]:
        shown = text.replace(" ", _SPACE)
        if shown and first and self._add_space:
            shown = _SPACE + shown
        for part in self._merge(shown):
            token = self._ids.get(part)
            if token is not None:
                yield token
            else:
                yield from self._byte_tokens(part)


class _ByteLevel(Tokenizer):
    """Byte-level BPE (Radford et al. 2019) with the merges of the file."""

    kind = "gpt2"

    def __init__(self, keys: Keys) -> None:
        from tokenizers import Regex, Tokenizer, normalizers
        from tokenizers.models import BPE
        from tokenizers.pre_tokenizers import ByteLevel, Digits, PreTokenizer, Sequence, Split

        pre = keys.word("tokenizer.ggml.pre", "default")
        if pre not in PATTERNS:
            raise UnsupportedError(f"tokenizer.ggml.pre is {pre[:60]!r}; known are {', '.join(sorted(PATTERNS))}")
        self._begin_by_default = pre in _WHOLE_PIECES
        super().__init__(keys)
        vocab = {p: i for i, p in enumerate(self.pieces)}
        merges = [_pair(m, vocab) for m in keys.words("tokenizer.ggml.merges")]
        self._engine = Tokenizer(BPE(vocab=vocab, merges=merges, ignore_merges=pre in _WHOLE_PIECES))
        steps: list[PreTokenizer] = [Digits(individual_digits=True)] if pre in _SINGLE_DIGITS else []
        steps.append(Split(Regex(PATTERNS[pre]), behavior="isolated"))
        self._engine.pre_tokenizer = Sequence([*steps, ByteLevel(add_prefix_space=False, use_regex=False)])
        if pre in _NORMAL_FORM_C:
            self._engine.normalizer = normalizers.NFC()
        self._bytes = {c: b for b, c in enumerate(_byte_characters())}

    def _encode_plain(self, text: str, first: bool) -> list[int]:
        return _ids(self._engine, text)

    def _piece(self, token: int) -> bytes:
        text, kind = self.pieces[token], self._types[token]
        if kind == _CONTROL:
            return b""
        if kind == _USER:
            return text.encode("utf-8", "surrogateescape")
        return bytes(self._bytes[c] for c in text if c in self._bytes)


class _CharacterMap:
    """The normalizer of SentencePiece: at each character, it replaces the longest text that the table has.

    The table begins with the size of a trie in bytes. The trie follows: a double array (Aoe 1989) of uint32 in the
    layout of Darts-clone. Its values are offsets into the rest, which are replacements that end with a zero byte.
    """

    _LONGEST_KEY, _LONGEST_REPLACEMENT = 256, 1024  # bytes; bounds the work and memory that a hostile file can cause

    def __init__(self, table: Any) -> None:
        data = table.tobytes() if isinstance(table, np.ndarray) and table.dtype.itemsize == 1 else b""
        end = 4 + int.from_bytes(data[:4], "little")
        self._replacements = data[end:]
        if not 8 <= end <= len(data) or end % 4 or self._replacements[-1:] not in (b"", b"\0"):
            raise FileError("tokenizer.ggml.precompiled_charsmap is damaged: it must be a trie and its replacements")
        if max(map(len, self._replacements.split(b"\0"))) > self._LONGEST_REPLACEMENT:
            raise FileError(
                f"tokenizer.ggml.precompiled_charsmap has a replacement above {self._LONGEST_REPLACEMENT} bytes"
            )
        self._units: list[int] = np.frombuffer(data[4:end], "<u4").tolist()

    def _longest(self, text: bytes, begin: int) -> tuple[int, int] | None:
        """The offset of the replacement for the longest key at ``begin``, and the end of that key."""
        units, found = self._units, None
        at = self._children(units[0])
        for i, byte in enumerate(text[begin : begin + self._LONGEST_KEY], begin + 1):
            at ^= byte
            if at >= len(units) or units[at] & 0x800000FF != byte:
                break
            is_key = units[at] & 0x100
            at ^= self._children(units[at])
            if is_key and at < len(units):
                found = units[at] & 0x7FFFFFFF, i
        return found

    @staticmethod
    def _children(unit: int) -> int:
        """The distance from a unit of the trie to its children."""
        return (unit >> 10) << (8 if unit & 0x200 else 0)

    def __call__(self, text: str) -> str:
        data, made, begin = text.encode("utf-8", "replace"), bytearray(), 0
        while begin < len(data):
            found = self._longest(data, begin)
            if found:
                offset, begin = found
                made += self._replacements[offset : self._replacements.find(b"\0", offset)]
            else:
                first = data[begin]
                end = begin + 1 + (first >= 0xC0) + (first >= 0xE0) + (first >= 0xF0)
                made += data[begin:end]
                begin = end
        return made.decode("utf-8", "replace")


class _Unigram(_SpaceMarked):
    """The unigram model of SentencePiece (Kudo 2018, arXiv:1804.10959)."""

    kind = "t5"

    def __init__(self, keys: Keys) -> None:
        from tokenizers import Tokenizer
        from tokenizers.models import Unigram

        super().__init__(keys)
        scores = keys.numbers("tokenizer.ggml.scores", 0.0, len(self.pieces))
        # Only normal pieces may match. The others get a space in front: the engine never sees a text with spaces.
        vocab = [
            (p, s) if t == _NORMAL and p else (f" {p}", 0.0)
            for p, s, t in zip(self.pieces, scores, self._types, strict=True)
        ]
        self._engine = Tokenizer(Unigram(vocab, unk_id=self._unknown, byte_fallback=False))
        table = keys.metadata.get("tokenizer.ggml.precompiled_charsmap")
        self._map = _CharacterMap(table) if table is not None and np.size(table) else None
        self._add_space = keys.flag("tokenizer.ggml.add_space_prefix", True)
        self._strip = keys.flag("tokenizer.ggml.remove_extra_whitespaces", True)
        self._add_bos = self._add_bos or ("tokenizer.ggml.add_bos_token" not in keys and self.bos is not None)
        self._add_eos = self._add_eos or ("tokenizer.ggml.add_eos_token" not in keys and self.eos is not None)

    def _normal(self, text: str) -> str:
        """The text that the engine sees: characters are mapped, extra spaces removed, and spaces become U+2581."""
        shown = self._map(text) if self._map else text.encode("utf-8", "replace").decode()
        if self._strip:
            text = shown = re.sub(" +", " ", shown).strip(" ")
        shown = (_SPACE if text and self._add_space else "") + shown.replace(" ", _SPACE)
        return shown.rstrip(_SPACE) if self._strip else shown

    def _encode_plain(self, text: str, first: bool) -> Iterator[int]:
        found = self._engine.encode(self._normal(text), add_special_tokens=False)
        for token, piece in zip(found.ids, found.tokens, strict=True):
            if token == self._unknown and self._ids_of_bytes:
                yield from self._byte_tokens(piece)
            else:
                yield token


class _WordPiece(_SpaceMarked):
    """WordPiece as BERT uses it (Devlin et al. 2019). The file marks the first piece of a word by U+2581."""

    kind = "bert"

    def __init__(self, keys: Keys) -> None:
        from tokenizers import Tokenizer
        from tokenizers.models import WordPiece
        from tokenizers.normalizers import BertNormalizer
        from tokenizers.pre_tokenizers import BertPreTokenizer

        super().__init__(keys)
        self._words = [self._word(p, t) for p, t in zip(self.pieces, self._types, strict=True)]
        vocab = {w: i for i, w in reversed(list(enumerate(self._words)))}
        cased = any(p[:1] == _SPACE and p[1:2].isupper() for p in self.pieces)
        unknown = self._number(keys, "unknown")
        named = self.pieces[unknown] if unknown is not None else "[UNK]"
        if named not in vocab:
            raise FileError(f"tokenizer.ggml.tokens has no token {named!r} for unknown words")
        self._engine = Tokenizer(WordPiece(vocab, unk_token=named, max_input_chars_per_word=100))
        self._engine.normalizer = BertNormalizer(lowercase=not cased)
        self._engine.pre_tokenizer = BertPreTokenizer()
        cls, sep = self._number(keys, "cls"), self._number(keys, "seperator")
        self._first = cls if cls is not None else self._special.get("[CLS]", self.bos)
        self._last = sep if sep is not None else self._special.get("[SEP]", self.eos)

    @staticmethod
    def _word(piece: str, kind: float) -> str:
        if kind in (_CONTROL, _UNKNOWN, _USER):
            return piece
        return piece[1:] if piece.startswith(_SPACE) else f"##{piece}"

    def encode(self, text: str, *, special: bool = True, ends: bool = True) -> list[int]:
        tokens, ends = super().encode(text, special=special, ends=False), expect_bool(ends, "ends")
        first, last = ([t] if ends and t is not None else [] for t in (self._first, self._last))
        return [*first, *tokens, *last]

    def _encode_plain(self, text: str, first: bool) -> list[int]:
        return _ids(self._engine, text)


def _ids(engine: Engine, text: str) -> list[int]:
    whole = text.encode("utf-8", "replace").decode()  # lone surrogates are no text
    return list(engine.encode(whole, add_special_tokens=False).ids) if whole else []


def _byte_of(piece: str) -> bytes:
    """The byte of ``<0x41>``."""
    found = re.fullmatch(r"<0x([0-9A-Fa-f]{2})>", piece)
    if found is None:
        raise FileError(f"tokenizer.ggml.tokens: {piece[:60]!r} is marked as a byte and is not of the form <0x41>")
    return bytes.fromhex(found[1])


def _pair(merge: str, vocab: Mapping[str, int]) -> tuple[str, str]:
    left, _, right = merge.partition(" ")
    if left not in vocab or right not in vocab or left + right not in vocab:
        raise FileError(f"tokenizer.ggml.merges: {merge[:60]!r} does not join two tokens to a third")
    return left, right


def _byte_characters() -> list[str]:
    """The printable character that stands for each byte: itself if it is printable, else one from U+0100 on."""
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = iter(range(0x100, 0x200))
    return [chr(b) if b in printable else chr(next(others)) for b in range(256)]


_KINDS: Sequence[type[Tokenizer]] = (_ByteLevel, _SentencePiece, _Unigram, _WordPiece)


def tokenizer_of(metadata: Mapping[str, Any], n_tokens: int | None = None) -> Tokenizer:
    """The tokenizer that a model file describes.

    n_tokens: rows of the network's embedding. A vocabulary of more tokens is an error.
    FileError: the file has no tokenizer, or a damaged one. UnsupportedError: it has one of another kind.
    """
    if not isinstance(metadata, Mapping):
        raise TypeError(f"metadata must be a mapping of keys to values, not {kind_of(metadata)}")
    n_tokens = None if n_tokens is None else expect_int(n_tokens, "n_tokens")
    keys = Keys(metadata)
    kind = metadata.get("tokenizer.ggml.model")
    if kind is None:
        raise FileError("the file has no tokenizer (tokenizer.ggml.model)")
    for made in _KINDS:
        if isinstance(kind, str) and made.kind == kind:
            break
    else:
        known = ", ".join(k.kind for k in _KINDS)
        raise UnsupportedError(f"tokenizer.ggml.model is {str(kind)[:60]!r}; known are {known}")
    try:
        tokenizer = made(keys)
    except ModuleNotFoundError as error:
        raise UnsupportedError(
            f"this model needs the package {error.name}: pip install ggml_backend[models]"
        ) from error
    except UnicodeEncodeError as error:
        raise FileError(f"tokenizer.ggml.tokens: {error.object[:60]!r} is not UTF-8") from error
    if n_tokens is not None and len(tokenizer) > n_tokens:
        raise FileError(f"tokenizer.ggml.tokens has {len(tokenizer)} pieces, the network {n_tokens} tokens")
    return tokenizer
