"""A table of the differences between architectures.

The name is that of the key ``general.architecture``. A decoder is Llama's network (Touvron et al. 2023,
arXiv:2302.13971) with the differences that its entry names. Sizes come from the keys of the file. Biases, the norms of
queries and keys, and the frequency factors of ROPE are used if the file has their tensors.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args, get_type_hints

from .._base.errors import FileError, UnsupportedError

__all__ = ["DECODERS", "ENCODERS", "SPEECH", "Decoder", "Encoder", "architecture_of"]


def _nowhere(layer: int) -> bool:
    return False


def _everywhere(layer: int) -> bool:
    return True


def _even(layer: int) -> bool:
    return layer % 2 == 0


def _five_of_six(layer: int) -> bool:
    return layer % 6 != 5


def _check_words(entry: Any) -> None:
    """ValueError: a field that takes one of several words has another one."""
    for field, kind in get_type_hints(type(entry)).items():
        known, word = get_args(kind), getattr(entry, field)
        if isinstance(word, str) and known and word not in known:
            raise ValueError(f"{field}: needs one of {', '.join(known)}, is {word!r}")


@dataclass(frozen=True)
class Decoder:
    """A network that predicts the next token.

    rope: "normal" rotates neighbours, "neox" pairs an element with the one half a head away.
    activation: of the gate of the feed-forward block. "swiglu_oai" is gpt-oss's clamped form.
    fused: queries, keys and values are one matrix, and so are gate and up.
    post_norms: attention and feed-forward results are normalized before they are added.
    ffn_norm: tensor of the norm before the feed-forward block.
    scale_embedding: embeddings are multiplied by the square root of their width.
    windowed: the layers that see only the last ``attention.sliding_window`` positions.
    local_rope_base: base of ROPE in windowed layers, if it differs; these layers do not scale positions.
    experts: how the weights of experts follow from the router. "all": softmax of all. "normalized": the same, divided
        by the sum of those used. "used": softmax of those used.
    wide_layers: a model with one of these numbers of layers scales scores by ``embd / heads``, not by the head size.
    """

    rope: Literal["normal", "neox"] = "neox"
    activation: Literal["silu", "gelu", "swiglu_oai"] = "silu"
    fused: bool = False
    post_norms: bool = False
    ffn_norm: str = "ffn_norm"
    scale_embedding: bool = False
    windowed: Callable[[int], bool] = _nowhere
    local_rope_base: float | None = None
    experts: Literal["all", "normalized", "used"] = "normalized"
    wide_layers: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        _check_words(self)


DECODERS: dict[str, Decoder] = {
    # Llama 1 to 3, Mistral, Mixtral, SmolLM, and others that are stored as Llama
    "llama": Decoder(rope="normal"),
    "qwen2": Decoder(),
    "qwen3": Decoder(),
    "qwen3moe": Decoder(),
    "olmoe": Decoder(experts="all"),
    "phi3": Decoder(fused=True, windowed=_everywhere),
    "gemma2": Decoder(activation="gelu", post_norms=True, scale_embedding=True, windowed=_even, wide_layers=(46,)),
    "gemma3": Decoder(
        activation="gelu",
        post_norms=True,
        scale_embedding=True,
        windowed=_five_of_six,
        local_rope_base=10000.0,
        wide_layers=(62,),
    ),
    "gpt-oss": Decoder(
        activation="swiglu_oai", ffn_norm="post_attention_norm", windowed=_even, experts="used"
    ),
}  # fmt: skip


@dataclass(frozen=True)
class Encoder:
    """A network that gives a vector for each token, or for a whole text.

    norm_first: the norm stands before each block, not behind it.
    rope: positions rotate queries and keys. Else a table of positions is added.
    gate: "none", "silu" or "gelu": the activation of a gated feed-forward block. Ungated ones use GELU.
    windowed: the layers that see only half of ``attention.sliding_window`` to each side.
    local_rope_base: base of ROPE in windowed layers.
    """

    norm_first: bool = False
    rope: bool = False
    gate: Literal["none", "silu", "gelu"] = "none"
    windowed: Callable[[int], bool] = _nowhere
    local_rope_base: float | None = None

    def __post_init__(self) -> None:
        _check_words(self)


def _two_of_three(layer: int) -> bool:
    return layer % 3 != 0


ENCODERS: dict[str, Encoder] = {
    "bert": Encoder(),
    "nomic-bert": Encoder(rope=True, gate="silu"),
    "modern-bert": Encoder(norm_first=True, rope=True, gate="gelu", windowed=_two_of_three, local_rope_base=10000.0),
}


SPEECH: tuple[str, ...] = ("whisper",)
"""Networks that transcribe speech. They need no table, because all differences are in the keys of the file."""

_KINDS: tuple[tuple[Collection[str], str, str], ...] = (
    (DECODERS, "a language model", "chat or generate"),
    (ENCODERS, "an embedding model", "embed"),
    (SPEECH, "a speech model", "transcribe"),
)
"""The networks of each kind, the name of the kind, and the commands that run it."""


def architecture_of(metadata: Mapping[str, Any], known: Collection[str], path: str = "") -> str:
    """The architecture of a file. FileError if the file does not say it, UnsupportedError unless it is one of
    ``known``. path: for these messages"""
    name, where = metadata.get("general.architecture"), f"{path}: " if path else ""
    if name is None:
        raise FileError(f"{where}the file does not say which network it holds: it has no key general.architecture")
    if not isinstance(name, str) or name not in known:
        raise UnsupportedError(f"{where}{unknown(str(name))}")
    return name


def unknown(name: str) -> str:
    """The message about an architecture that no table names, or that is of another kind than the command runs."""
    for names, kind, commands in _KINDS:
        if name in names:
            return f"the architecture {name!r} is {kind}: use ggml-backend {commands}"
    known = ", ".join(sorted(name for names, _, _ in _KINDS for name in names))
    return (
        f"the architecture {name[:60]!r} is not known. Known are {known}."
        " The page 'Add an architecture' of the documentation shows how to add one"
    )
