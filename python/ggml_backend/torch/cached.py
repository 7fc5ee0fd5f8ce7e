"""Language models of ``transformers`` with their cache of keys and values as buffers, for :func:`compile`."""

from __future__ import annotations

import inspect
from typing import Any

import torch
from torch import nn

from .._base.errors import expect, expect_int
from ..errors import UnsupportedError

__all__ = ["CachedModel", "with_cache"]


class CachedModel(nn.Module):
    """A language model that continues its text: each call takes the next tokens. :func:`with_cache` makes them.

    The cache is in buffers, ``cache_0_keys`` and so on. A program of the model has them as states.
    """

    def __init__(self, model: nn.Module, cache: Any) -> None:
        super().__init__()
        self.model: nn.Module = model
        self._cache = cache
        self._parts: list[tuple[Any, str, str]] = []
        for i, layer in enumerate(cache.layers):
            for name, value in list(vars(layer).items()):
                if isinstance(value, torch.Tensor):
                    self._parts.append((layer, name, f"cache_{i}_{name}"))
                    self.register_buffer(self._parts[-1][2], value, persistent=False)

    def forward(self, input_ids: Any) -> Any:
        for layer, name, buffer in self._parts:  # while PyTorch exports the model, buffers are other tensors
            setattr(layer, name, self.get_buffer(buffer))
        return self.model(input_ids=input_ids, use_cache=True, **{_argument(self.model): self._cache}).logits


def _argument(model: nn.Module) -> str:
    """The name of the argument for a cache, which transformers changes."""
    return "cache" if "cache" in inspect.signature(model.forward).parameters else "past_key_values"


def with_cache(model: nn.Module, max_tokens: int, batch: int = 1) -> CachedModel:
    """A language model of ``transformers`` with a cache for :func:`compile`::

        decoder = gbt.with_cache(model, max_tokens=256)
        program = gbt.compile(decoder, (prompt,), dynamic={"input_ids": {1: "tokens"}})
        logits = program(prompt)      # all tokens of the prompt, and then one token in each call
        logits = program(next_token)
        program.reset()               # a new text

    max_tokens: of a text; a call beyond them is an error
    batch: number of texts, which have the same length

    UnsupportedError: a layer of the model keeps a window, or something else than keys and values
    """
    expect(model, nn.Module, "with_cache: model")
    max_tokens, batch = expect_int(max_tokens, "with_cache: max_tokens"), expect_int(batch, "with_cache: batch")
    from transformers import StaticCache

    cache = StaticCache(config=model.config, max_cache_len=max_tokens)
    other = [kind for kind in (type(layer).__name__ for layer in cache.layers) if kind != "StaticLayer"]
    if other:
        raise UnsupportedError(f"with_cache: the model has a layer with a {other[0]}, which is no cache of all tokens")
    with torch.no_grad():  # the first call makes the tensors of the cache
        model(input_ids=torch.zeros((batch, 1), dtype=torch.long), use_cache=True, **{_argument(model): cache})
    cache.reset()
    made = CachedModel(model, cache)
    made.eval()
    return made
