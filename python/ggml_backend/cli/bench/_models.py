"""Whole models with random weights, in the shapes of a Llama of 1.1 billion parameters and of
all-MiniLM-L6-v2."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass

import numpy as np

from ... import ops
from ...backend.backend import Backend
from ...dtypes import DType, dtypes, float16, float32, int32
from ...sched.scheduler import Scheduler
from ...tensor.context import Context
from ...tensor.graph import Graph
from ...tensor.tensor import Tensor
from ._measure import Arithmetic, Case, Limits
from ._products import algorithm_of, arithmetic_of, weights

__all__ = ["model_cases"]


@dataclass(frozen=True)
class _Llama:
    """Sizes of a model."""

    embd: int
    layers: int
    heads: int
    kv_heads: int
    ff: int
    context: int
    eps: float
    rope_dims: int
    rope_base: float

    @property
    def head(self) -> int:
        return self.embd // self.heads


_LLAMA = _Llama(2048, 22, 32, 4, 5632, 2048, 1e-5, 64, 1e4)
_TINY = _Llama(256, 2, 8, 2, 512, 128, 1e-5, 32, 1e4)


def _llama_attention(
    w: Mapping[str, Tensor], c: _Llama, i: int, x: Tensor, past: int, positions: Tensor, writes: list[Tensor]
) -> Tensor:
    """Attention of x (tokens, embd) to the whole cache: keys (kv_heads, position, head), values
    (kv_heads, head, position)."""
    tokens, total, p = x.shape[0], past + x.shape[0], f"blk.{i}."

    def heads(name: str, n: int) -> Tensor:
        return ops.mul_mat(w[f"{p}{name}.weight"], x).named(f"{p}{name}").reshape(tokens, n, c.head)

    q = ops.rope(heads("attn_q", c.heads), positions, c.rope_dims, freq_base=c.rope_base).named(f"{p}q_rope")
    k = ops.rope(heads("attn_k", c.kv_heads), positions, c.rope_dims, freq_base=c.rope_base).named(f"{p}k_rope")
    v = heads("attn_v", c.kv_heads)
    keys, values = w[f"{p}cache_k"], w[f"{p}cache_v"]
    writes.append(ops.cpy(k.transpose(1, 0, 2), keys[:, past:total]).named(f"{p}k_store"))
    writes.append(ops.cpy(v.transpose(1, 2, 0), values[:, :, past:total]).named(f"{p}v_store"))
    scores = ops.mul_mat(keys[:, :total], q.transpose(1, 0, 2)).named(f"{p}scores")
    masked = ops.diag_mask_inf((scores * (1.0 / c.head**0.5)).named(f"{p}scores_scaled"), past).named(
        f"{p}scores_masked"
    )
    mixed = ops.mul_mat(values[:, :, :total], ops.soft_max(masked).named(f"{p}probs")).named(f"{p}mixed")
    merged = ops.cont(mixed.transpose(1, 0, 2)).named(f"{p}merged").reshape(tokens, c.embd)
    return ops.mul_mat(w[f"{p}attn_output.weight"], merged).named(f"{p}attn_out")


def _llama_layer(
    w: Mapping[str, Tensor], c: _Llama, i: int, x: Tensor, past: int, positions: Tensor, writes: list[Tensor]
) -> Tensor:
    p = f"blk.{i}."

    def norm(x: Tensor, name: str) -> Tensor:
        return (ops.rms_norm(x, eps=c.eps).named(f"{p}{name}_rms") * w[f"{p}{name}.weight"]).named(f"{p}{name}")

    x = (x + _llama_attention(w, c, i, norm(x, "attn_norm"), past, positions, writes)).named(f"{p}attn_sum")
    h = norm(x, "ffn_norm")
    gate = ops.silu(ops.mul_mat(w[f"{p}ffn_gate.weight"], h).named(f"{p}gate")).named(f"{p}gate_silu")
    both = (gate * ops.mul_mat(w[f"{p}ffn_up.weight"], h).named(f"{p}up")).named(f"{p}gate_up")
    return (x + ops.mul_mat(w[f"{p}ffn_down.weight"], both).named(f"{p}ffn_out")).named(f"{p}out")


class _LlamaModel:
    """Weights and a cache in one buffer. ``case`` builds a pass for any fill of the cache."""

    def __init__(self, backend: Backend, c: _Llama, vocab: int, dtype: DType, stack: ExitStack) -> None:
        self.backend, self.c, self.vocab, self.stack = backend, c, vocab, stack
        ctx = stack.enter_context(Context())
        self.w: dict[str, Tensor] = {}
        kv, length = c.kv_heads * c.head, c.context
        matrices = {
            "attn_q": (c.embd, c.embd),
            "attn_k": (kv, c.embd),
            "attn_v": (kv, c.embd),
            "attn_output": (c.embd, c.embd),
        }
        matrices |= {"ffn_gate": (c.ff, c.embd), "ffn_up": (c.ff, c.embd), "ffn_down": (c.embd, c.ff)}
        shapes = {f"blk.{i}.{name}.weight": shape for i in range(c.layers) for name, shape in matrices.items()}
        shapes["output.weight"] = (vocab, c.embd)
        norms = [
            "output_norm.weight",
            *(f"blk.{i}.{n}.weight" for i in range(c.layers) for n in ("attn_norm", "ffn_norm")),
        ]
        self.w = {name: ctx.tensor(shape, dtype, name=name) for name, shape in shapes.items()}
        self.w |= {name: ctx.tensor((c.embd,), float32, name=name) for name in norms}
        for i in range(c.layers):
            self.w[f"blk.{i}.cache_k"] = ctx.tensor((c.kv_heads, length, c.head), float16)
            self.w[f"blk.{i}.cache_v"] = ctx.tensor((c.kv_heads, c.head, length), float16)
        buffer = stack.enter_context(ctx.allocate(backend, "weights"))
        buffer.clear(0)  # unwritten parts of the cache are multiplied by zero, so they must be finite
        known: dict[tuple[int, int], np.ndarray] = {}
        for name, shape in shapes.items():
            if shape not in known:
                known[shape] = weights(dtype, *shape)
            self.w[name].set(known[shape])
        for name in norms:
            self.w[name].set(np.ones(c.embd, np.float32))
        self.bytes = float(sum(self.w[name].nbytes for name in shapes))
        self.weights = float(sum(a * b for a, b in shapes.values()))
        self.head_weights = float(vocab * c.embd)

    def case(self, name: str, tokens: int, past: int, limits: Limits) -> Case:
        """A pass of ``tokens`` tokens after ``past`` cached ones, which returns the logits of the
        last."""
        ctx, scheduler = self.stack.enter_context(Context()), self.stack.enter_context(Scheduler([self.backend]))
        x, positions = (
            ctx.tensor((tokens, self.c.embd), float32, name="x"),
            ctx.tensor((tokens,), int32, name="positions"),
        )
        h, writes = x, list[Tensor]()
        for i in range(self.c.layers):
            h = _llama_layer(self.w, self.c, i, h, past, positions, writes)
        last = ops.rms_norm(h[-1:], eps=self.c.eps) * self.w["output_norm.weight"]
        graph = ctx.graph(*writes, ops.mul_mat(self.w["output.weight"], last))
        scheduler.allocate(graph)
        x.set(np.random.default_rng(0).standard_normal(x.shape, dtype=np.float32))
        positions.set(np.arange(past, past + tokens, dtype=np.int32))
        flops = 2.0 * (tokens * (self.weights - self.head_weights) + self.head_weights)
        return Case(
            name, "models", "tokens/s", tokens, lambda: scheduler.compute(graph), memory=self.bytes, flops=flops,
            arithmetic=_arithmetic(graph, limits),
        )  # fmt: skip


def _arithmetic(graph: Graph, limits: Limits) -> Arithmetic:
    """The arithmetic of products with weights, as the first product of the graph has it."""
    first = next(node for node in graph.nodes if node.op == "MUL_MAT")
    return arithmetic_of(algorithm_of(first, limits.level).name)


def _llama(backend: Backend, limits: Limits, dtype: DType, quick: bool) -> Iterator[Case]:
    c, vocab, prompt = (_TINY, 512, 64) if quick else (_LLAMA, 32000, 512)
    with ExitStack() as stack:
        model = _LlamaModel(backend, c, vocab, dtype, stack)
        shape = f"llama {c.embd} x {c.layers}, {dtype.ggml_name.lower()}"
        yield model.case(f"{shape}: a prompt of {prompt}", prompt, 0, limits)
        yield model.case(f"{shape}: generating after 64", 1, 63, limits)


def _embedding(backend: Backend, limits: Limits, batch: int, dtype: DType, quick: bool) -> Iterator[Case]:
    """BERT: products with bias, full attention, norms. The result is the mean over tokens,
    normalized to length 1."""
    tokens, hidden, heads, ff, layers = (8, 64, 4, 128, 2) if quick else (34, 384, 12, 1536, 6)
    with ExitStack() as stack:
        store, ctx = stack.enter_context(Context(usage="weights")), stack.enter_context(Context())
        matrices: list[Tensor] = []

        def linear(x: Tensor, rows: int) -> Tensor:
            w = store.tensor((rows, x.shape[-1]), dtype)
            matrices.append(w)
            return ops.mul_mat(w, x) + store.tensor((rows,))

        def norm(x: Tensor) -> Tensor:
            return ops.norm(x, eps=1e-12) * store.tensor((hidden,)) + store.tensor((hidden,))

        def split(x: Tensor) -> Tensor:
            return x.reshape(batch, tokens, heads, hidden // heads)

        x, mask = ctx.tensor((batch * tokens, hidden), name="x"), ctx.tensor((batch, 1, 1, tokens), name="mask")
        h = norm(x)
        for _ in range(layers):
            q, k, v = split(linear(h, hidden)), split(linear(h, hidden)), split(linear(h, hidden))
            scores = ops.mul_mat(k.transpose(0, 2, 1, 3), q.transpose(0, 2, 1, 3)) * (hidden // heads) ** -0.5
            mixed = ops.mul_mat(ops.cont(v.transpose(0, 2, 3, 1)), ops.soft_max(scores + mask))
            h = norm(h + linear(ops.cont(mixed.transpose(0, 2, 1, 3)).reshape(batch * tokens, hidden), hidden))
            h = norm(h + linear(ops.gelu_erf(linear(h, ff)), hidden))
        mean = ops.mean(ops.cont(h.reshape(batch, tokens, hidden).transpose(0, 2, 1))).reshape(batch, hidden)
        buffer = stack.enter_context(store.allocate(backend, "weights"))
        buffer.clear(0)
        for w in matrices:
            w.set(weights(dtype, *w.shape))
        scheduler = stack.enter_context(Scheduler([backend]))
        graph = ctx.graph(ops.rms_norm(mean, eps=1e-12))
        scheduler.allocate(graph)
        x.set(np.random.default_rng(0).standard_normal(x.shape, dtype=np.float32))
        mask.set(np.zeros(mask.shape, np.float32))
        n = float(sum(w.shape[0] * w.shape[1] for w in matrices))
        flops = 2.0 * batch * tokens * n + 4.0 * layers * batch * tokens * tokens * hidden
        yield Case(
            f"embedding {hidden} x {layers}, {dtype.ggml_name.lower()}, {tokens} tokens: batch {batch}", "models",
            "sentences/s", batch,
            lambda: scheduler.compute(graph), memory=float(sum(w.nbytes for w in matrices)), flops=flops,
            arithmetic=_arithmetic(graph, limits),
        )  # fmt: skip


def model_cases(
    backend: Backend, limits: Limits, types: Sequence[DType] | None, *, quick: bool = False
) -> Iterator[Case]:
    """The models, made one at a time.

    types: of the weights; default: four for the Llama shape, float32 and q8_0 for the embedding
        model
    """
    for dtype in types or ([dtypes["q8_0"]] if quick else [float16, dtypes["q8_0"], dtypes["q4_0"], dtypes["q4_k"]]):
        yield from _llama(backend, limits, dtype, quick)
    for dtype in types or ([float32] if quick else [float32, dtypes["q8_0"]]):
        for batch in (1, 4 if quick else 32):
            if all(n % dtype.block_size == 0 for n in ((64, 128) if quick else (384, 1536))):
                yield from _embedding(backend, limits, batch, dtype, quick)
