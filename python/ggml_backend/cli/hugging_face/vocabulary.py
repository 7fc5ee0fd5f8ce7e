"""The tokenizer's keys of a GGUF file, from ``tokenizer.json`` and the files beside it."""

from __future__ import annotations

import base64
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from ..._base.errors import FileError, UnsupportedError
from ...models.tokens import PATTERNS

__all__ = ["vocabulary_of"]

_NORMAL, _UNKNOWN, _CONTROL, _USER, _BYTE = 1, 2, 3, 4, 6
_SPACE = "\u2581"
_MOST_TOKENS = 1 << 22


def _steps(part: Any) -> Iterator[Mapping[str, Any]]:
    """The steps of a normalizer or pre-tokenizer."""
    if isinstance(part, dict):
        inner = part.get("pretokenizers") or part.get("normalizers")
        if isinstance(inner, list):
            for one in inner:
                yield from _steps(one)
        else:
            yield part


def _pre(tokenizer: Mapping[str, Any]) -> str:
    """The name of the rule that cuts text before byte-level BPE."""
    steps = list(_steps(tokenizer.get("pre_tokenizer")))
    kinds = [step.get("type") for step in steps]
    if "Digits" in kinds and "ByteLevel" in kinds:
        return "smollm"
    patterns = [
        step["pattern"]["Regex"] for step in steps if step.get("type") == "Split" and "Regex" in step["pattern"]
    ]
    for name, pattern in PATTERNS.items():
        if patterns == [pattern]:
            return name
    if not patterns and kinds == ["ByteLevel"]:
        return "gpt-2"
    raise UnsupportedError(f"tokenizer.json: the pre-tokenizer is not known: {str(patterns or kinds)[:200]}")


def _named(config: Mapping[str, Any], name: str) -> str | None:
    """A special token of ``tokenizer_config.json``: a text, or an object with its content."""
    value = config.get(name)
    return value.get("content") if isinstance(value, dict) else value


def vocabulary_of(
    tokenizer: Mapping[str, Any], config: Mapping[str, Any], n_tokens: int, template: str | None
) -> dict[str, Any]:
    """Keys. config: ``tokenizer_config.json``; n_tokens: rows of the embedding; template: the chat template."""
    model = tokenizer.get("model")
    if not isinstance(model, dict) or "vocab" not in model:
        raise FileError("tokenizer.json has no model with a vocabulary")
    kind = str(model.get("type") or ("BPE" if "merges" in model else "WordPiece"))
    if kind == "Unigram":
        pieces, scores = [str(p) for p, _ in model["vocab"]], [float(s) for _, s in model["vocab"]]
    else:
        pieces, scores = [p for p, _ in sorted(model["vocab"].items(), key=lambda item: item[1])], []
    types = [_NORMAL] * len(pieces)
    _add(tokenizer.get("added_tokens") or [], pieces, types)
    for i in range(len(pieces), n_tokens):  # rows that no token uses
        pieces.append(f"[PAD{i}]")
        types.append(_USER)
    if kind == "BPE" and model.get("byte_fallback"):
        keys = _scored(tokenizer, model, pieces, types)
    elif kind == "BPE":
        merges = [m if isinstance(m, str) else " ".join(m) for m in model["merges"]]
        keys = {"tokenizer.ggml.model": "gpt2", "tokenizer.ggml.pre": _pre(tokenizer), "tokenizer.ggml.merges": merges}
    elif kind == "WordPiece":
        pieces = [
            p if t == _CONTROL else p[2:] if p.startswith("##") else _SPACE + p
            for p, t in zip(pieces, types, strict=True)
        ]
        keys = {"tokenizer.ggml.model": "bert"}
    elif kind == "Unigram":
        keys = _unigram(tokenizer, scores + [0.0] * (len(pieces) - len(scores)))
    else:
        raise UnsupportedError(f"tokenizer.json: the model {kind[:60]!r} is not known")
    keys |= {"tokenizer.ggml.tokens": pieces, "tokenizer.ggml.token_type": np.array(types, np.int32)}
    return {
        **keys,
        **_special(tokenizer, config, model, pieces, kind),
        **({"tokenizer.chat_template": template} if template else {}),
    }


def _add(added: list[Any], pieces: list[str], types: list[int]) -> None:
    """Tokens beside the model's vocabulary, some of which it has already."""
    for token in sorted(added, key=lambda t: t["id"]):
        i = int(token["id"])
        if not 0 <= i < _MOST_TOKENS:
            raise FileError(f"tokenizer.json: an added token has the number {i}, not one from 0 to {_MOST_TOKENS - 1}")
        while len(pieces) <= i:
            pieces.append(f"[PAD{len(pieces)}]")
            types.append(_USER)
        pieces[i], types[i] = str(token["content"]), _CONTROL if token.get("special") else _USER


def _scored(
    tokenizer: Mapping[str, Any], model: Mapping[str, Any], pieces: list[str], types: list[int]
) -> dict[str, Any]:
    """SentencePiece BPE: a merge that comes earlier has a better score."""
    scores = np.full(len(pieces), -1e9, np.float32)
    ids = {p: i for i, p in enumerate(pieces)}
    for rank, merge in reversed(list(enumerate(model["merges"]))):
        union = merge.replace(" ", "", 1) if isinstance(merge, str) else "".join(merge)
        if union in ids:
            scores[ids[union]] = -rank
    for i, piece in enumerate(pieces):
        if len(piece) == 6 and piece.startswith("<0x") and piece.endswith(">"):
            types[i] = _BYTE
        elif piece == model.get("unk_token"):
            types[i] = _UNKNOWN
    steps = list(_steps(tokenizer.get("normalizer"))) + list(_steps(tokenizer.get("pre_tokenizer")))
    prefix = any(
        s.get("type") == "Prepend" or (s.get("type") == "Metaspace" and s.get("prepend_scheme") != "never")
        for s in steps
    )
    return {"tokenizer.ggml.model": "llama", "tokenizer.ggml.scores": scores, "tokenizer.ggml.add_space_prefix": prefix}


def _unigram(tokenizer: Mapping[str, Any], scores: list[float]) -> dict[str, Any]:
    keys: dict[str, Any] = {"tokenizer.ggml.model": "t5", "tokenizer.ggml.scores": np.array(scores, np.float32)}
    for step in _steps(tokenizer.get("normalizer")):
        if step.get("type") == "Precompiled":
            table = base64.b64decode(step["precompiled_charsmap"])
            keys["tokenizer.ggml.precompiled_charsmap"] = np.frombuffer(table, np.uint8)
    return keys


def _special(
    tokenizer: Mapping[str, Any], config: Mapping[str, Any], model: Mapping[str, Any], pieces: list[str], kind: str
) -> dict[str, Any]:
    """Numbers of special tokens, and which of them stand around a text."""
    ids = {p: i for i, p in reversed(list(enumerate(pieces)))}
    keys: dict[str, Any] = {}
    names = {"bos": "bos_token", "eos": "eos_token", "unknown": "unk_token", "padding": "pad_token", "cls": "cls_token",
             "seperator": "sep_token", "mask": "mask_token"}  # fmt: skip
    for target, source in names.items():
        token = _named(config, source) or (model.get("unk_token") if source == "unk_token" else None)
        if token in ids:
            keys[f"tokenizer.ggml.{target}_token_id"] = ids[token]
    around = [
        step for step in _steps_of_post(tokenizer.get("post_processor")) if step.get("type") == "TemplateProcessing"
    ]
    first = last = False
    for step in around:
        single = step.get("single") or [{}]
        first, last = first or "SpecialToken" in single[0], last or "SpecialToken" in single[-1]
    if kind == "BPE":
        if "tokenizer.ggml.bos_token_id" in keys:
            keys["tokenizer.ggml.add_bos_token"] = bool(config.get("add_bos_token", first))
        if "tokenizer.ggml.eos_token_id" in keys:
            keys["tokenizer.ggml.add_eos_token"] = bool(config.get("add_eos_token", last))
    elif kind == "WordPiece":
        for target, token in (("cls", "[CLS]"), ("seperator", "[SEP]"), ("unknown", "[UNK]")):
            if token in ids:
                keys.setdefault(f"tokenizer.ggml.{target}_token_id", ids[token])
    return keys


def _steps_of_post(part: Any) -> Iterator[Mapping[str, Any]]:
    if isinstance(part, dict):
        inner = part.get("processors")
        if isinstance(inner, list):
            for one in inner:
                yield from _steps_of_post(one)
        else:
            yield part
