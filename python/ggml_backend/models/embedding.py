"""Models that turn text into vectors: BERT and its successors."""

from __future__ import annotations

import os
import threading
import warnings
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from .. import gguf, ops
from .._base.errors import (
    FileError,
    InvalidArgumentError,
    expect_choice,
    expect_function,
    expect_int,
    expect_list,
)
from .._base.text import count
from ..backend._priority import holders_of, with_cpu
from ..backend.backend import Backend
from ..dtypes import float32, int32
from ..sched.scheduler import Scheduler
from ..tensor.context import Context
from ..tensor.graph import Graph
from ..tensor.tensor import Tensor
from ._keys import Keys
from ._model import Model
from ._sizes import Shaped, matrix_rows
from .architectures import ENCODERS, Encoder, architecture_of
from .tokens import Tokenizer, tokenizer_of

__all__ = ["EmbeddingModel", "Inputs", "Sizes", "encode"]

FloatArray = npt.NDArray[np.float32]

_KEPT_GRAPHS = 8
_POOLINGS = {1: "mean", 2: "cls", 3: "last"}


@dataclass(frozen=True)
class Sizes:
    vocab: int
    embd: int
    layers: int
    heads: int
    context: int
    eps: float
    rope_base: float
    window: int

    @property
    def head(self) -> int:
        return self.embd // self.heads

    @classmethod
    def of(cls, name: str, metadata: Mapping[str, Any], tensors: Mapping[str, Shaped]) -> Sizes:
        keys = Keys(metadata, name)
        embd, heads = keys.count(".embedding_length"), keys.count(".attention.head_count")
        if embd % heads or embd // heads % 2:
            raise FileError(f"{keys.name('.embedding_length')} {embd} must be an even multiple of the {heads} heads")
        return cls(
            vocab=matrix_rows(tensors, "token_embd.weight"),
            embd=embd,
            layers=keys.count(".block_count", most=1 << 16),
            heads=heads,
            context=keys.count(".context_length", most=1 << 31),
            eps=keys.real(".attention.layer_norm_epsilon", 1e-12),
            rope_base=keys.real(".rope.freq_base", 10000.0, least=1e-6),
            window=keys.count(".attention.sliding_window", 0, least=0, most=1 << 31),
        )

    def check(self, a: Encoder, tensors: Mapping[str, Shaped]) -> None:
        """FileError unless the file has the tensors that the network needs, in the right shapes."""
        for name, shape in self._shapes(a, tensors).items():
            found = tensors.get(name)
            if found is None:
                raise FileError(f"the file has no tensor {name}")
            if tuple(found.shape) != shape:
                raise FileError(f"{name} has shape {tuple(found.shape)}; the keys of the file say {shape}")

    def names(self, a: Encoder, tensors: Mapping[str, Shaped]) -> list[str]:
        """All tensors that the network uses."""
        optional = ["token_types.weight", *(f"blk.{i}.attn_norm.weight" for i in range(self.layers))]
        optional += [f"{name.removesuffix('.weight')}.bias" for name in optional[1:]]
        return [*self._shapes(a, tensors), *(name for name in optional if name in tensors)]

    def _shapes(self, a: Encoder, tensors: Mapping[str, Shaped]) -> dict[str, tuple[int, ...]]:
        e, found = self.embd, dict[str, tuple[int, ...]]()
        found["token_embd.weight"] = (self.vocab, e)
        found["token_embd_norm.weight"] = (e,)
        if not a.rope:
            found["position_embd.weight"] = (self.context, e)
        if a.norm_first:
            found["output_norm.weight"] = (e,)
        for i in range(self.layers):
            name = f"blk.{i}"
            ff = matrix_rows(tensors, f"{name}.ffn_up.weight")
            if f"{name}.attn_qkv.weight" in tensors:
                found[f"{name}.attn_qkv.weight"] = (3 * e, e)
            else:
                found.update({f"{name}.attn_{part}.weight": (e, e) for part in "qkv"})
            found[f"{name}.attn_output.weight"] = (e, e)
            found[f"{name}.ffn_up.weight"] = (ff, e)
            if a.gate != "none" and not a.norm_first:
                found[f"{name}.ffn_gate.weight"] = (ff, e)
            inner = ff // 2 if a.norm_first else ff
            found[f"{name}.ffn_down.weight"] = (e, inner)
            norms = ("ffn_norm",) if a.norm_first else ("attn_output_norm", "layer_output_norm")
            found.update({f"{name}.{norm}.weight": (e,) for norm in norms})
        biases = {
            f"{n.removesuffix('.weight')}.bias": shape[:1]
            for n, shape in found.items()
            if f"{n.removesuffix('.weight')}.bias" in tensors
        }
        return {**found, **biases}


@dataclass(frozen=True)
class Inputs:
    """ids, positions: int32 (B * T,); mask, local_mask: float32 (B, 1, 1 or T, T), 0 or -inf; pool: float32 (B, 1, T),
    the weight of each token in the vector of its text."""

    ids: Tensor
    positions: Tensor
    mask: Tensor
    local_mask: Tensor | None
    pool: Tensor

    @classmethod
    def make(cls, context: Context, a: Encoder, s: Sizes, batch: int, tokens: int) -> Inputs:
        local = s.window > 0 and any(a.windowed(i) for i in range(s.layers))
        return cls(
            context.tensor((batch * tokens,), int32, name="ids"),
            context.tensor((batch * tokens,), int32, name="positions"),
            context.tensor((batch, 1, 1, tokens), float32, name="mask"),
            context.tensor((batch, 1, tokens, tokens), float32, name="local_mask") if local else None,
            context.tensor((batch, 1, tokens), float32, name="pool"),
        )


class _Network:
    """One pass over ``B`` texts of ``T`` tokens."""

    def __init__(self, w: Mapping[str, Tensor], a: Encoder, s: Sizes, inputs: Inputs) -> None:
        self.w, self.a, self.s, self.inputs = w, a, s, inputs
        self.batch, self.tokens = inputs.pool.shape[0], inputs.pool.shape[2]

    def norm(self, name: str, x: Tensor) -> Tensor:
        if f"{name}.weight" not in self.w:
            return x
        y = ops.norm(x, eps=self.s.eps) * self.w[f"{name}.weight"]
        bias = self.w.get(f"{name}.bias")
        return y if bias is None else y + bias

    def linear(self, name: str, x: Tensor) -> Tensor:
        y = ops.mul_mat(self.w[f"{name}.weight"], x)
        bias = self.w.get(f"{name}.bias")
        return y if bias is None else y + bias

    def projections(self, block: str, x: Tensor) -> list[Tensor]:
        if f"{block}.attn_qkv.weight" not in self.w:
            return [self.linear(f"{block}.attn_{part}", x) for part in "qkv"]
        qkv, e = self.linear(f"{block}.attn_qkv", x), self.s.embd
        return [ops.cont(qkv[:, i * e : (i + 1) * e]) for i in range(3)]

    def attention(self, i: int, x: Tensor) -> Tensor:
        """Multi-head attention of x (B * T, E) within each text."""
        s, block = self.s, f"blk.{i}"
        local = self.a.windowed(i) and self.inputs.local_mask is not None
        base = self.a.local_rope_base if local and self.a.local_rope_base else s.rope_base

        def heads(t: Tensor, rotate: bool) -> Tensor:  # (B, heads, T, head)
            if rotate and self.a.rope:
                t = t.reshape(self.batch * self.tokens, s.heads, s.head)
                t = ops.rope(t, self.inputs.positions, s.head, "neox_exact", freq_base=base)
            return t.reshape(self.batch, self.tokens, s.heads, s.head).transpose(0, 2, 1, 3)

        q, k, v = self.projections(block, x)
        mask = self.inputs.local_mask if local else self.inputs.mask
        assert mask is not None
        scores = (heads(q, True) @ heads(k, True).transpose(0, 1, 3, 2)) * (1.0 / s.head**0.5) + mask
        mixed = ops.soft_max(scores) @ heads(v, False)
        merged = ops.cont(mixed.transpose(0, 2, 1, 3)).reshape(self.batch * self.tokens, s.embd)
        return self.linear(f"{block}.attn_output", merged)

    def feed_forward(self, block: str, x: Tensor) -> Tensor:
        up = self.linear(f"{block}.ffn_up", x)
        if self.a.gate == "none":
            inner = ops.gelu_erf(up)
        elif self.a.gate == "silu":
            inner = ops.silu(self.linear(f"{block}.ffn_gate", x)) * up
        else:  # one matrix holds both
            half = up.shape[1] // 2
            inner = ops.gelu_erf(ops.cont(up[:, :half])) * ops.cont(up[:, half:])
        return self.linear(f"{block}.ffn_down", inner)

    def run(self) -> Tensor:
        x = ops.get_rows(self.w["token_embd.weight"], self.inputs.ids)
        if not self.a.rope:
            x = x + ops.get_rows(self.w["position_embd.weight"], self.inputs.positions)
        if "token_types.weight" in self.w:
            x = x + self.w["token_types.weight"][0]
        x = self.norm("token_embd_norm", x)
        for i in range(self.s.layers):
            name = f"blk.{i}"
            if self.a.norm_first:
                x = x + self.attention(i, self.norm(f"{name}.attn_norm", x))
                x = x + self.feed_forward(name, self.norm(f"{name}.ffn_norm", x))
            else:
                x = self.norm(f"{name}.attn_output_norm", x + self.attention(i, x))
                x = self.norm(f"{name}.layer_output_norm", x + self.feed_forward(name, x))
        x = self.norm("output_norm", x) if self.a.norm_first else x
        return (self.inputs.pool @ x.reshape(self.batch, self.tokens, self.s.embd)).reshape(self.batch, self.s.embd)


def encode(w: Mapping[str, Tensor], a: Encoder, s: Sizes, inputs: Inputs) -> Tensor:
    """Vectors (B, E) of texts."""
    return _Network(w, a, s, inputs).run()


@dataclass(frozen=True)
class _Step:
    context: Context
    graph: Graph
    inputs: Inputs
    out: Tensor


class EmbeddingModel(Model):
    """An encoder with its tokenizer: texts in, unit vectors out.

    Use :func:`ggml_backend.models.load`. The object may be shared between threads.

    ``name``, ``architecture``, ``n_dims`` (of a vector), ``n_ctx`` (tokens of a text), ``pooling``, ``tokenizer``,
    ``metadata``
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        devices: Sequence[str | Backend] = ("CPU",),
        *,
        n_threads: int | None = None,
        n_ctx: int | None = None,
        pooling: Literal["mean", "cls", "last"] | None = None,
    ) -> None:
        holders = holders_of(devices, n_threads)
        self.backends: list[Backend] = with_cpu(holders, n_threads)
        self._lock = threading.RLock()
        with gguf.open(path) as file:
            self.metadata: dict[str, Any] = dict(file.metadata)
            self.architecture: str = architecture_of(self.metadata, ENCODERS)
            self._a = ENCODERS[self.architecture]
            self._s = s = Sizes.of(self.architecture, self.metadata, file.tensors)
            s.check(self._a, file.tensors)
            self.tokenizer: Tokenizer = tokenizer_of(self.metadata, s.vocab)
            layers = {f"blk.{i}.*": holders[i * len(holders) // s.layers] for i in range(s.layers)}
            self.weights: gguf.Weights = file.load({**layers, "*": holders[-1]})
        self.n_dims: int = s.embd
        self.n_ctx: int = min(s.context, 8192 if n_ctx is None else expect_int(n_ctx, "n_ctx"))
        if self.n_ctx < 2:
            raise InvalidArgumentError(f"n_ctx is {n_ctx}: it must be from 2 to {s.context}")
        kind = Keys(self.metadata, self.architecture).count(".pooling_type", 1, least=0, most=4)
        self.pooling: str = _POOLINGS.get(kind, "mean") if pooling is None else pooling
        expect_choice(self.pooling, "pooling", tuple(_POOLINGS.values()))
        self.name: str = str(self.metadata.get("general.name", self.architecture))
        self._scheduler: Scheduler | None = Scheduler(self.backends)
        self._steps: OrderedDict[tuple[int, int], _Step] = OrderedDict()

    def _step_of(self, batch: int, tokens: int) -> _Step:
        """The graph of a batch's shape, built on first use."""
        found = self._steps.get((batch, tokens))
        if found is not None:
            self._steps.move_to_end((batch, tokens))
            return found
        if len(self._steps) >= _KEPT_GRAPHS:
            self._steps.popitem(last=False)[1].context.close()
        context = Context()
        inputs = Inputs.make(context, self._a, self._s, batch, tokens)
        out = encode(self.weights, self._a, self._s, inputs)
        step = self._steps[batch, tokens] = _Step(context, context.graph(out), inputs, out)
        return step

    def _compute(self, sequences: Sequence[Sequence[int]]) -> FloatArray:
        """Vectors (n, n_dims) of token sequences, padded to the longest."""
        lengths = np.array([len(s) for s in sequences])
        batch, tokens = len(sequences), int(lengths.max())
        ids = np.zeros((batch, tokens), np.int32)
        for row, s in zip(ids, sequences, strict=True):
            row[: len(s)] = s
        places = np.arange(tokens)
        real = places < lengths[:, None]
        if self.pooling == "mean":
            pool = real / lengths[:, None]
        else:
            pool = places == (0 if self.pooling == "cls" else lengths[:, None] - 1)
        with self._lock:
            scheduler, step = self._open(), self._step_of(batch, tokens)
            scheduler.allocate(step.graph)
            step.inputs.ids.set(ids.reshape(-1))
            step.inputs.positions.set(np.tile(places.astype(np.int32), batch))
            mask = np.where(real, 0, -np.inf).astype(np.float32)[:, None, None]
            step.inputs.mask.set(mask)
            if step.inputs.local_mask is not None:
                near = np.abs(places[:, None] - places) <= self._s.window // 2
                step.inputs.local_mask.set(np.where(near, mask, -np.inf).astype(np.float32))
            step.inputs.pool.set(np.broadcast_to(pool, (batch, tokens)).astype(np.float32)[:, None])
            scheduler.compute(step.graph)
            vectors: FloatArray = np.array(step.out.numpy())
        vectors /= np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12)
        return vectors

    def embed(
        self,
        texts: str | Sequence[str],
        batch_size: int = 32,
        *,
        progress: Callable[[Iterable[range]], Iterable[range]] = iter,
    ) -> FloatArray:
        """Unit vectors of texts: float32 (n, n_dims). Their products are cosine similarities.

        Texts of similar length are computed together. A text of more than ``n_ctx`` tokens is cut off there, and a
        warning says how many texts were cut.
        progress: wraps the iteration over batches, as ``tqdm`` does.
        """
        texts = [texts] if isinstance(texts, str) else expect_list(texts, "texts", "str")
        if not all(isinstance(t, str) for t in texts):
            raise TypeError("texts must be a list of str")
        if expect_int(batch_size, "batch_size") < 1:
            raise InvalidArgumentError(f"batch_size is {batch_size}: it must be at least 1")
        expect_function(progress, "progress")
        sequences = self._cut([self.tokenizer.encode(t, special=False) for t in texts])
        order = sorted(range(len(texts)), key=lambda i: len(sequences[i]))
        out = np.empty((len(texts), self.n_dims), np.float32)
        batches = [range(i, min(i + batch_size, len(order))) for i in range(0, len(order), batch_size)]
        for batch in progress(batches):
            members = [order[i] for i in batch]
            out[members] = self._compute([sequences[i] for i in members])
        return out

    def _cut(self, sequences: Sequence[list[int]]) -> list[list[int]]:
        """At most ``n_ctx`` tokens of each, with the last one, which ends a text."""
        n, n_long = self.n_ctx, sum(len(tokens) > self.n_ctx for tokens in sequences)
        if n_long:
            warnings.warn(
                f"{n_long} of {count(len(sequences), 'text')} {'has' if n_long == 1 else 'have'} more than {n} tokens"
                " (n_ctx): the rest is cut off",
                stacklevel=3,
            )
        return [[*tokens[: n - 1], tokens[-1]] if len(tokens) > n else tokens or [0] for tokens in sequences]

    @property
    def nbytes(self) -> int:
        """Bytes of all weights."""
        return self.weights.nbytes

    def close(self) -> None:
        """Frees the memory."""
        with self._lock:
            if self._scheduler is None:
                return
            self._scheduler.close()
            self._scheduler = None
            for step in self._steps.values():
                step.context.close()
            self._steps.clear()
            self.weights.close()

    def __repr__(self) -> str:
        if self._scheduler is None:
            return "<EmbeddingModel: closed>"
        return f"<EmbeddingModel {self.name!r}: {self.architecture}, {self.n_dims} dimensions, {self.pooling}>"
