"""Whole models from GGUF files: chat, generate, embed, transcribe::

    from ggml_backend.models import load

    model = load("SmolLM2.gguf")
    for piece in model.chat([{"role": "user", "content": "Hello"}]):
        print(piece, end="", flush=True)

:mod:`ggml_backend.models.architectures` lists the networks. The package uses only the public interface of
``ggml_backend``, and needs the packages of ``pip install ggml_backend[models]``.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from .. import gguf
from ..backend.backend import Backend
from .architectures import DECODERS, ENCODERS, SPEECH, architecture_of
from .chat import ChatTemplate, Message
from .embedding import EmbeddingModel
from .sampling import Sampling
from .speech import SpeechModel, Transcript
from .text import Generation, Stats, TextModel
from .tokens import Tokenizer, tokenizer_of

__all__ = [
    "DECODERS",
    "ENCODERS",
    "ChatTemplate",
    "EmbeddingModel",
    "Generation",
    "Message",
    "Sampling",
    "SpeechModel",
    "Stats",
    "TextModel",
    "Tokenizer",
    "Transcript",
    "load",
    "tokenizer_of",
]


def load(
    path: str | os.PathLike[str], devices: Sequence[str | Backend] = ("CPU",), **options: Any
) -> TextModel | EmbeddingModel | SpeechModel:
    """Opens a model file as a :class:`TextModel`, :class:`EmbeddingModel` or :class:`SpeechModel`.

    devices: names of devices or backends in order of priority. Layers are spread evenly over them. The CPU
        runs the operations that a device does not support. Without it in the list, it is added for these alone.
    options: keyword arguments of the class of the model, for example ``n_ctx=8192``, ``n_threads=2``.

    FileError: the file is damaged or no model. UnsupportedError: its architecture is not known.
    """
    with gguf.open(path) as file:
        name = architecture_of(file.metadata, (*DECODERS, *ENCODERS, *SPEECH))
    made: Any = TextModel if name in DECODERS else EmbeddingModel if name in ENCODERS else SpeechModel
    known = made.__init__.__kwdefaults__
    for option in options:
        if option not in known:
            raise TypeError(f"load: {option!r} is not among the options of {made.__name__}: {', '.join(known)}")
    model: TextModel | EmbeddingModel | SpeechModel = made(path, devices, **options)
    return model
