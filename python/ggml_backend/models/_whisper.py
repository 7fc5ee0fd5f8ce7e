"""Whisper's network (Radford et al. 2022, arXiv:2212.04356), its sizes, and its special tokens.

Tensors have the names of OpenAI's files, such as ``encoder.blocks.0.attn.query.weight``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from .. import ops
from .._base.errors import FileError
from ..tensor.tensor import Tensor
from ._keys import Keys
from ._sizes import Shaped

__all__ = ["LANGUAGES", "Sizes", "Special", "decode", "encode"]

LANGUAGES: tuple[str, ...] = (
    "en", "zh", "de", "es", "ru", "ko", "fr", "ja", "pt", "tr", "pl", "ca", "nl", "ar", "sv", "it", "id", "hi",
    "fi", "vi", "he", "uk", "el", "ms", "cs", "ro", "da", "hu", "ta", "no", "th", "ur", "hr", "bg", "lt", "la",
    "mi", "ml", "cy", "sk", "te", "fa", "lv", "bn", "sr", "az", "sl", "kn", "et", "mk", "br", "eu", "is", "hy",
    "ne", "mn", "bs", "kk", "sq", "sw", "gl", "mr", "pa", "si", "km", "sn", "yo", "so", "af", "oc", "ka", "be",
    "tg", "sd", "gu", "am", "yi", "lo", "uz", "fo", "ht", "ps", "tk", "nn", "mt", "sa", "lb", "my", "bo", "tl",
    "mg", "as", "tt", "haw", "ln", "ha", "ba", "jw", "su", "yue",
)  # fmt: skip
"""Codes of the languages, in the order of their tokens."""

_MULTILINGUAL = 51865

WINDOW = 1500
"""Positions of the encoder for a window of 30 seconds. Each stands for two frames."""


@dataclass(frozen=True)
class Special:
    """Numbers of special tokens. They follow from the size of the vocabulary."""

    end: int
    start: int
    languages: int
    """The first language. ``n_languages`` follow each other."""
    n_languages: int
    translate: int
    transcribe: int
    previous: int
    no_speech: int
    no_timestamps: int
    first_time: int
    """0.00 seconds. Each further token is 0.02 seconds later."""

    @classmethod
    def of(cls, n_tokens: int) -> Special:
        """The tokens of a vocabulary."""
        multilingual = n_tokens >= _MULTILINGUAL
        end = 50257 if multilingual else 50256
        n_languages = n_tokens - 51765 - multilingual
        after = end + 2 + n_languages
        return cls(end, end + 1, end + 2, n_languages, after, after + 1, after + 3, after + 4, after + 5, after + 6)

    @property
    def multilingual(self) -> bool:
        return self.end == 50257


@dataclass(frozen=True)
class Sizes:
    """Sizes of both halves of the network."""

    vocab: int
    embd: int
    heads: int
    encoder_layers: int
    decoder_layers: int
    mels: int
    audio_context: int
    text_context: int

    @property
    def head(self) -> int:
        return self.embd // self.heads

    @classmethod
    def of(cls, metadata: Mapping[str, object], tensors: Mapping[str, Shaped]) -> Sizes:
        """FileError for a file that the network cannot run."""
        keys = Keys(metadata, "whisper")
        s = cls(
            vocab=keys.count(".vocab_size", least=51864, most=51866),
            embd=keys.count(".embedding_length"),
            heads=keys.count(".attention.head_count"),
            encoder_layers=keys.count(".encoder.block_count", most=1 << 12),
            decoder_layers=keys.count(".decoder.block_count", most=1 << 12),
            mels=keys.count(".encoder.mel_count", most=1024),
            audio_context=keys.count(".encoder.context_length", WINDOW, least=WINDOW, most=1 << 16),
            text_context=keys.count(".context_length", 448, least=16, most=1 << 16),
        )
        if s.embd % s.heads:
            raise FileError(f"whisper.embedding_length {s.embd} is no multiple of the {s.heads} heads")
        for name, shape in s.shapes().items():
            found = tensors.get(name)
            if found is None:
                raise FileError(f"the file has no tensor {name}")
            if tuple(found.shape) != shape:
                raise FileError(f"{name} has shape {tuple(found.shape)}; the keys of the file say {shape}")
        return s

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """All tensors of the network."""
        e = self.embd
        found: dict[str, tuple[int, ...]] = {
            "encoder.conv1.weight": (e, self.mels, 3), "encoder.conv1.bias": (e,),
            "encoder.conv2.weight": (e, e, 3), "encoder.conv2.bias": (e,),
            "encoder.positional_embedding": (self.audio_context, e),
            "decoder.positional_embedding": (self.text_context, e),
            "decoder.token_embedding.weight": (self.vocab, e),
        }  # fmt: skip
        for name in ("encoder.ln_post", "decoder.ln"):
            found |= {f"{name}.weight": (e,), f"{name}.bias": (e,)}
        for half, layers in (("encoder", self.encoder_layers), ("decoder", self.decoder_layers)):
            for i in range(layers):
                found |= self._block(f"{half}.blocks.{i}", half == "decoder")
        return found

    def _block(self, name: str, crossed: bool) -> dict[str, tuple[int, ...]]:
        e, found = self.embd, dict[str, tuple[int, ...]]()
        for attention in ("attn", "cross_attn") if crossed else ("attn",):
            for part in ("query", "key", "value", "out"):
                found[f"{name}.{attention}.{part}.weight"] = (e, e)
                if part != "key":
                    found[f"{name}.{attention}.{part}.bias"] = (e,)
            found |= {f"{name}.{attention}_ln.weight": (e,), f"{name}.{attention}_ln.bias": (e,)}
        found |= {f"{name}.mlp.0.weight": (4 * e, e), f"{name}.mlp.0.bias": (4 * e,)}
        found |= {f"{name}.mlp.2.weight": (e, 4 * e), f"{name}.mlp.2.bias": (e,)}
        return found | {f"{name}.mlp_ln.weight": (e,), f"{name}.mlp_ln.bias": (e,)}


Weights = Mapping[str, Tensor]
Layer = tuple[Tensor, Tensor]


def _linear(w: Weights, name: str, x: Tensor) -> Tensor:
    y = ops.mul_mat(w[f"{name}.weight"], x)
    bias = w.get(f"{name}.bias")
    return y if bias is None else y + bias


def _norm(w: Weights, name: str, x: Tensor) -> Tensor:
    return ops.norm(x, eps=1e-5) * w[f"{name}.weight"] + w[f"{name}.bias"]


def _attend(s: Sizes, q: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None) -> Tensor:
    """Attention of q (T, E) to keys and values (N, E)."""

    def heads(x: Tensor) -> Tensor:
        return x.reshape(x.shape[0], s.heads, s.head).transpose(1, 0, 2)

    mixed: Tensor = ops.flash_attn_ext(heads(q), heads(keys), heads(values), mask, scale=s.head**-0.5)
    return mixed.reshape(q.shape[0], s.embd)


def _feed_forward(w: Weights, name: str, x: Tensor) -> Tensor:
    h = _linear(w, f"{name}.mlp.0", _norm(w, f"{name}.mlp_ln", x))
    return x + _linear(w, f"{name}.mlp.2", ops.gelu_erf(h))


def encode(w: Weights, s: Sizes, mel: Tensor, crossed: Sequence[Layer]) -> list[Tensor]:
    """The writes of the keys and values of a window into ``crossed``, one pair for each decoder layer.

    mel: float32 (mels, 2 * audio_context); crossed: each (audio_context, E)
    """
    x = ops.conv_1d(w["encoder.conv1.weight"], mel, 1, 1) + w["encoder.conv1.bias"].reshape(s.embd, 1)
    x = ops.conv_1d(w["encoder.conv2.weight"], ops.gelu_erf(x), 2, 1) + w["encoder.conv2.bias"].reshape(s.embd, 1)
    x = ops.cont(ops.gelu_erf(x).reshape(s.embd, s.audio_context).T) + w["encoder.positional_embedding"]
    for i in range(s.encoder_layers):
        name = f"encoder.blocks.{i}"
        h = _norm(w, f"{name}.attn_ln", x)
        q, k, v = (_linear(w, f"{name}.attn.{part}", h) for part in ("query", "key", "value"))
        x = x + _linear(w, f"{name}.attn.out", _attend(s, q, k, v, None))
        x = _feed_forward(w, name, x)
    x = _norm(w, "encoder.ln_post", x)
    writes = []
    for i, (keys, values) in enumerate(crossed):
        name = f"decoder.blocks.{i}.cross_attn"
        writes.append(ops.cpy(_linear(w, f"{name}.key", x), keys))
        writes.append(ops.cpy(_linear(w, f"{name}.value", x), values))
    return writes


def decode(
    w: Weights,
    s: Sizes,
    ids: Tensor,
    positions: Tensor,
    rows: Tensor,
    mask: Tensor,
    cache: Sequence[Layer],
    crossed: Sequence[Layer],
) -> Tensor:
    """Logits (T, vocabulary) of the tokens behind each of ``ids`` (T,).

    rows: int32 (T,), the cells of the cache that they write; mask: float16 (T, n), 0 or -inf for the first n cells;
    cache: keys and values (cells, E) of each layer; crossed: those of the window
    """
    x = ops.get_rows(w["decoder.token_embedding.weight"], ids)
    x = x + ops.get_rows(w["decoder.positional_embedding"], positions)
    n = mask.shape[-1]
    for i, (own, window) in enumerate(zip(cache, crossed, strict=True)):
        name = f"decoder.blocks.{i}"
        h = _norm(w, f"{name}.attn_ln", x)
        q, k, v = (_linear(w, f"{name}.attn.{part}", h) for part in ("query", "key", "value"))
        keys, values = ops.set_rows(own[0], k, rows)[:n], ops.set_rows(own[1], v, rows)[:n]
        x = x + _linear(w, f"{name}.attn.out", _attend(s, q, keys, values, mask))
        q = _linear(w, f"{name}.cross_attn.query", _norm(w, f"{name}.cross_attn_ln", x))
        x = x + _linear(w, f"{name}.cross_attn.out", _attend(s, q, window[0], window[1], None))
        x = _feed_forward(w, name, x)
    return ops.mul_mat(w["decoder.token_embedding.weight"], _norm(w, "decoder.ln", x))
