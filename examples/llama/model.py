"""A Llama-architecture network with a cache of keys and values, on ggml_backend tensors.

* ``Config`` - the sizes of the network, from the file's metadata.
* ``Cache`` - keys and values of all positions so far, in their own buffers.
* ``decoder`` - the network: builds the logits of the last token, and the writes into the cache.
* ``Window`` - the graph of one token at any position below a bound. It is built and planned once for many tokens.
* ``Llama`` - runs them: a graph for each part of a prompt, then token after token in the current window.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

import ggml_backend as gb
from ggml_backend import ops

from .keys import Keys

FloatArray = npt.NDArray[np.float32]

WINDOW = 64  # positions: larger ones are built less often, and look at more places that hold nothing yet


@dataclass(frozen=True)
class Config:
    """Sizes and constants of the network, from the keys ``llama.*``."""

    vocab: int
    embd: int
    layers: int
    heads: int
    kv_heads: int
    ff: int
    context: int
    eps: float
    rope_dims: int
    rope_base: float
    rope_scale: float

    @property
    def head(self) -> int:
        return self.embd // self.heads

    @classmethod
    def of(cls, metadata: Mapping[str, Any], tensors: Mapping[str, Any]) -> Config:
        """ValueError for a file that this network cannot run: nothing in it is trusted, so that what follows can be."""
        keys = Keys(metadata)
        architecture = metadata.get("general.architecture")
        if architecture != "llama":
            raise ValueError(f"the architecture of the file is {str(architecture)[:60]!r}; this example runs 'llama'")
        if keys.count("llama.expert_count", 0, least=0):
            raise ValueError("the file holds a mixture of experts; this example runs dense models")
        if "rope_freqs.weight" in tensors:
            raise ValueError(
                "the file scales rotary frequencies one by one (rope_freqs.weight), for which ROPE has no operand"
            )
        embd, heads = keys.count("llama.embedding_length"), keys.count("llama.attention.head_count")
        kv_heads = keys.count("llama.attention.head_count_kv", heads)
        if embd % heads:
            raise ValueError(f"llama.embedding_length {embd} is no multiple of llama.attention.head_count {heads}")
        if heads % kv_heads:
            raise ValueError(
                f"llama.attention.head_count {heads} is no multiple of llama.attention.head_count_kv {kv_heads}"
            )
        rope_dims = keys.count("llama.rope.dimension_count", embd // heads)
        if rope_dims > embd // heads or rope_dims % 2:
            raise ValueError(
                f"llama.rope.dimension_count is {rope_dims}: it must be even and at most the size of a head,"
                f" {embd // heads}"
            )
        scaling = keys.word("llama.rope.scaling.type", "none")
        if scaling not in ("none", "linear"):
            raise ValueError(f"llama.rope.scaling.type is {scaling[:60]!r}; this example knows 'none' and 'linear'")
        factor = keys.real("llama.rope.scaling.factor", 1.0, least=1e-6) if scaling == "linear" else 1.0
        embedding = tensors.get("token_embd.weight")
        if embedding is None or len(embedding.shape) != 2:
            raise ValueError("the file has no matrix token_embd.weight")
        config = cls(
            vocab=embedding.shape[0],
            embd=embd,
            layers=keys.count("llama.block_count"),
            heads=heads,
            kv_heads=kv_heads,
            ff=keys.count("llama.feed_forward_length"),
            context=keys.count("llama.context_length", most=1 << 31),
            eps=keys.real("llama.attention.layer_norm_rms_epsilon"),
            rope_dims=rope_dims,
            rope_base=keys.real("llama.rope.freq_base", 10000.0, least=1e-6),
            rope_scale=1.0 / factor,
        )
        for name, shape in config.shapes(with_head="output.weight" in tensors):
            found = tensors.get(name)
            if found is None:
                raise ValueError(f"the file has no tensor {name}")
            if tuple(found.shape) != shape:
                raise ValueError(f"{name} has shape {tuple(found.shape)}; the file's metadata says {shape}")
        return config

    def shapes(self, with_head: bool) -> Iterator[tuple[str, tuple[int, ...]]]:
        """All tensors that the network uses."""
        embd, kv = self.embd, self.kv_heads * self.head
        yield "token_embd.weight", (self.vocab, embd)
        yield "output_norm.weight", (embd,)
        if with_head:
            yield "output.weight", (self.vocab, embd)
        parts = {
            "attn_norm": (embd,), "attn_q": (embd, embd), "attn_k": (kv, embd), "attn_v": (kv, embd),
            "attn_output": (embd, embd),
            "ffn_norm": (embd,), "ffn_gate": (self.ff, embd), "ffn_up": (self.ff, embd), "ffn_down": (embd, self.ff),
        }  # fmt: skip
        for i in range(self.layers):
            for part, shape in parts.items():
                yield f"blk.{i}.{part}.weight", shape


@dataclass(frozen=True)
class Part:
    """The cache of the layers on one backend: keys (layers, kv_heads, position, head), values (layers, kv_heads, head,
    position). So both products of the attention read rows."""

    backend: gb.Backend
    layers: range
    keys: gb.Tensor
    values: gb.Tensor
    buffer: gb.Buffer
    arrays: tuple[Any, Any] | None  # keys and values as NumPy sees them, in host memory


class Cache:
    """Keys and values of ``length`` positions, float16, each layer's on its backend."""

    def __init__(self, c: Config, length: int, backends: Sequence[gb.Backend]) -> None:
        self.length = length
        self.used = 0  # positions that hold something
        self.parts: list[Part] = []
        per = [i * len(backends) // c.layers for i in range(c.layers)]
        for index, backend in enumerate(backends):
            count = per.count(index)
            if count:
                context = gb.Context()
                keys = context.tensor((count, c.kv_heads, length, c.head), gb.float16, name=f"cache.{index}.k")
                values = context.tensor((count, c.kv_heads, c.head, length), gb.float16, name=f"cache.{index}.v")
                buffer = context.allocate(backend)
                buffer.clear(0)  # what is not written yet is multiplied by zero, and must be finite
                arrays = (keys.numpy(), values.numpy()) if buffer.is_host else None
                self.parts.append(
                    Part(backend, range(per.index(index), per.index(index) + count), keys, values, buffer, arrays)
                )

    def layers(self, context: gb.Context) -> list[tuple[gb.Tensor, gb.Tensor]]:
        """Keys and values of each layer, as views that go with the context."""
        found = []
        for part in self.parts:
            keys, values = context.view(part.keys), context.view(part.values)
            found += [(keys[i], values[i]) for i in range(len(part.layers))]
        return found

    def move(self, source: int, target: int) -> None:
        """Copies the keys and values of one position to another, in all layers at once."""
        for part in self.parts:
            if part.arrays is not None:
                keys, values = part.arrays
                keys[:, :, target] = keys[:, :, source]
                values[..., target] = values[..., source]
                continue
            with gb.Context() as context:  # on the device
                keys, values = context.view(part.keys), context.view(part.values)
                moved = (
                    ops.cpy(keys[:, :, source : source + 1], keys[:, :, target : target + 1]),
                    ops.cpy(values[:, :, :, source : source + 1], values[:, :, :, target : target + 1]),
                )
                context.graph(*moved).compute(part.backend)

    @property
    def nbytes(self) -> int:
        return sum(part.buffer.nbytes for part in self.parts)


@dataclass(frozen=True)
class Span:
    """The part of the cache that a graph writes and reads. Its tokens write to the positions from ``start`` on. Each
    token reads the first ``total`` positions where the mask (1, total) is 0, or without a mask up to its own."""

    layers: list[tuple[gb.Tensor, gb.Tensor]]
    start: int
    total: int
    mask: gb.Tensor | None = None


Tensors = Mapping[str, gb.Tensor]


def norm(w: Tensors, name: str, x: gb.Tensor, c: Config) -> gb.Tensor:
    return ops.rms_norm(x, eps=c.eps) * w[f"{name}.weight"]


def linear(w: Tensors, name: str, x: gb.Tensor) -> gb.Tensor:
    return ops.mul_mat(w[f"{name}.weight"], x)


def attention(
    w: Tensors, c: Config, layer: int, x: gb.Tensor, positions: gb.Tensor, span: Span, writes: list[gb.Tensor]
) -> gb.Tensor:
    """Grouped-query attention of x (tokens, embd)."""
    tokens, end, name = x.shape[0], span.start + x.shape[0], f"blk.{layer}"

    def rotate(t: gb.Tensor) -> gb.Tensor:  # (tokens, heads, head)
        return ops.rope(t, positions, c.rope_dims, freq_base=c.rope_base, freq_scale=c.rope_scale)

    q = rotate(linear(w, f"{name}.attn_q", x).reshape(tokens, c.heads, c.head))
    k = rotate(linear(w, f"{name}.attn_k", x).reshape(tokens, c.kv_heads, c.head))
    v = linear(w, f"{name}.attn_v", x).reshape(tokens, c.kv_heads, c.head)

    keys, values = span.layers[layer]
    writes.append(ops.cpy(k.transpose(1, 0, 2), keys[:, span.start : end]))
    writes.append(ops.cpy(v.transpose(1, 2, 0), values[:, :, span.start : end]))

    # The writes above stand before these reads in the graph (see graph_of), so they are done first.
    scores, scale = (
        ops.mul_mat(keys[:, : span.total], q.transpose(1, 0, 2)),
        1.0 / c.head**0.5,
    )  # (heads, tokens, total)
    if span.mask is None:
        shares = ops.soft_max(ops.diag_mask_inf(scores * scale, span.start))
    else:
        shares = ops.soft_max(scores, span.mask, scale)
    # (heads, tokens, head); consecutive heads share keys and values
    mixed = ops.mul_mat(values[:, :, : span.total], shares)
    return linear(w, f"{name}.attn_output", ops.cont(mixed.transpose(1, 0, 2)).reshape(tokens, c.embd))


def decoder(
    w: Tensors, c: Config, ids: gb.Tensor, positions: gb.Tensor, span: Span
) -> tuple[gb.Tensor, list[gb.Tensor]]:
    """Logits (1, vocab) of the token after the last of ids (tokens,), and the writes into the cache in the order of the
    layers."""
    writes: list[gb.Tensor] = []
    x = ops.get_rows(w["token_embd.weight"], ids)
    for i in range(c.layers):
        name = f"blk.{i}"
        x = x + attention(w, c, i, norm(w, f"{name}.attn_norm", x, c), positions, span, writes)
        h = norm(w, f"{name}.ffn_norm", x, c)
        x = x + linear(
            w, f"{name}.ffn_down", ops.silu(linear(w, f"{name}.ffn_gate", h)) * linear(w, f"{name}.ffn_up", h)
        )
    last = norm(w, "output_norm", x[-1:], c)
    head = w["output.weight"] if "output.weight" in w else w["token_embd.weight"]
    return ops.mul_mat(head, last), writes


def graph_of(context: gb.Context, logits: gb.Tensor, writes: Sequence[gb.Tensor]) -> gb.Graph:
    """Layer by layer: the write of a layer needs the layers before it, so each layer's writes come before its reads."""
    return context.graph(*writes, logits)


class Window:
    """The graph of one token at any position below ``total``.

    Token, position and mask are inputs, because they change from token to token. The place of a write cannot be an
    input. So keys and values always go to the last place of the window, and are moved to their own place afterwards.
    The order in the cache does not matter, because the rotation holds the position.
    """

    def __init__(self, w: Tensors, c: Config, cache: Cache, scheduler: gb.Scheduler, total: int) -> None:
        self.total, self.cache, self.scheduler = total, cache, scheduler
        self.context = context = gb.Context()
        self.id = context.tensor((1,), gb.int32, name="id")
        self.position = context.tensor((1,), gb.int32, name="position")
        self.mask = context.tensor((1, total), gb.float32, name="mask")
        span = Span(cache.layers(context), total - 1, total, self.mask)
        self.logits, writes = decoder(w, c, self.id, self.position, span)
        self.graph = graph_of(context, self.logits, writes)

    def step(self, token: int, position: int) -> FloatArray:
        """Logits (vocab,) after a token at a position, which is then in the cache."""
        mask = np.full((1, self.total), -np.inf, np.float32)
        mask[0, :position] = mask[0, -1] = 0
        self.scheduler.allocate(self.graph)  # does nothing but the first time, and after a prompt
        self.id.set(np.array([token], np.int32))
        self.position.set(np.array([position], np.int32))
        self.mask.set(mask)
        self.scheduler.compute(self.graph)
        if position != self.total - 1:
            self.cache.move(self.total - 1, position)
        return np.array(self.logits.numpy()[0])

    def close(self) -> None:
        self.context.close()


@dataclass
class Stats:
    """Of all steps so far."""

    prompt_tokens: int = 0
    prompt_seconds: float = 0.0
    new_tokens: int = 0
    new_seconds: float = 0.0


class Llama:
    """A model file, ready to generate.

    devices: registry names in order of priority. The last one is the fallback. Layers are spread evenly.
    context: positions of the cache. Default: the model's, at most 4096.
    batch: tokens of a prompt that are computed at once.
    survivors: returns the devices that are left after a ``gb.errors.DeviceLostError``. The model is loaded
        there, the cache is computed again by the same steps, and the same text continues.
    """

    def __init__(
        self,
        path: str | Path,
        devices: Sequence[str] = ("CPU",),
        n_threads: int | None = None,
        context: int | None = None,
        batch: int = 512,
        survivors: Callable[[], Sequence[str]] | None = None,
    ) -> None:
        self.path, self.n_threads, self.batch, self.survivors = path, n_threads, batch, survivors
        self.stats = Stats()
        self._steps: list[list[int]] = []  # since the cache was empty
        self._load(devices, context)

    def _load(self, devices: Sequence[str], context: int | None) -> None:
        self.backends = [
            gb.Backend(d, n_threads=self.n_threads) if d.upper() == "CPU" and self.n_threads else gb.Backend(d)
            for d in devices
        ]
        with gb.gguf.open(self.path) as file:
            self.metadata = dict(file.metadata)
            self.config = c = Config.of(file.metadata, file.tensors)
            layers = range(c.layers)
            where = {f"blk.{i}.*": self.backends[i * len(self.backends) // c.layers] for i in layers}
            self.weights = file.load({**where, "*": self.backends[-1]})
        self.cache = Cache(c, context or min(c.context, 4096), self.backends)
        self.scheduler = gb.Scheduler(self.backends)
        self._window: Window | None = None

    def _go_on_elsewhere(self) -> None:
        """A device was lost: on those that are left, with the cache that there was. The same steps give the same
        bits."""
        assert self.survivors is not None
        self.scheduler.close()
        self.weights.close()
        steps, used = self._steps, self.cache.used
        self._load(self.survivors(), self.cache.length)
        for ids in steps:
            self._step(ids)
        assert self.cache.used == used

    def _prompt(self, ids: Sequence[int]) -> FloatArray:
        """Logits (vocab,) after these tokens, which are added to the cache."""
        past, tokens = self.cache.used, len(ids)
        with gb.Context() as context:
            id_input = context.tensor((tokens,), gb.int32, name="ids")
            positions = context.tensor((tokens,), gb.int32, name="positions")
            span = Span(self.cache.layers(context), past, past + tokens)
            logits, writes = decoder(self.weights, self.config, id_input, positions, span)
            graph = graph_of(context, logits, writes)
            self.scheduler.allocate(graph)
            id_input.set(np.asarray(ids, np.int32))
            positions.set(np.arange(past, past + tokens, dtype=np.int32))
            self.scheduler.compute(graph)
            return np.array(logits.numpy()[0])

    def _next(self, token: int) -> FloatArray:
        """The same of a single one, by the window that its position lies in."""
        position = self.cache.used
        total = min((position // WINDOW + 1) * WINDOW, self.cache.length)
        if self._window is None or self._window.total != total:
            if self._window is not None:
                self._window.close()
            self._window = Window(self.weights, self.config, self.cache, self.scheduler, total)
        return self._window.step(token, position)

    def _step(self, ids: Sequence[int]) -> FloatArray:
        out = self._next(ids[0]) if len(ids) == 1 else self._prompt(ids)
        self.cache.used += len(ids)
        return out

    def _surely(self, ids: Sequence[int]) -> FloatArray:
        """A step, on other devices if one is lost meanwhile."""
        again = False
        while True:
            try:
                if again:
                    self._go_on_elsewhere()
                out = self._step(ids)
            except gb.errors.DeviceLostError:
                if self.survivors is None:
                    raise
                again = True
                continue
            self._steps.append(list(ids))
            return out

    def logits(self, ids: Sequence[int]) -> FloatArray:
        """Adds tokens to the cache, in batches, and returns the logits (vocab,) of the next one."""
        if not ids:
            raise ValueError("no tokens")
        wrong = [i for i in ids if not 0 <= i < self.config.vocab]
        if wrong:
            raise ValueError(f"token {wrong[0]} is not in the vocabulary of {self.config.vocab}")
        if self.cache.used + len(ids) > self.cache.length:
            raise ValueError(f"{self.cache.used} + {len(ids)} tokens do not fit the context of {self.cache.length}")
        out = np.empty(0, np.float32)
        start = time.perf_counter()
        for i in range(0, len(ids), self.batch):
            out = self._surely(ids[i : i + self.batch])
        seconds = time.perf_counter() - start
        if len(ids) > 1:
            self.stats.prompt_tokens += len(ids)
            self.stats.prompt_seconds += seconds
        else:
            self.stats.new_tokens += 1
            self.stats.new_seconds += seconds
        return out

    def reset(self) -> None:
        """Forgets all tokens."""
        self.cache.used = 0
        self._steps.clear()

    def generate(
        self, prompt: Sequence[int], sampler: Sampler, n: int, stop: frozenset[int] = frozenset()
    ) -> Iterator[int]:
        """Yields up to n tokens that follow the prompt, as they come; ends before a token of ``stop`` or at the end of
        the context."""
        logits = self.logits(prompt)
        for i in range(n):
            token = sampler(logits)
            if token in stop:
                return
            yield token
            if i + 1 == n or self.cache.used == self.cache.length:
                return
            logits = self.logits([token])


class Sampler:
    """Chooses a token from logits: the likeliest with temperature 0, else at random among the top_k likeliest that make
    up top_p."""

    def __init__(self, temperature: float = 0.0, top_k: int = 40, top_p: float = 0.95, seed: int | None = None) -> None:
        if not 0 <= temperature < np.inf or top_k < 1 or not 0 < top_p <= 1:
            raise ValueError(
                f"temperature {temperature} must be >= 0 and finite, top_k {top_k} >= 1 and top_p {top_p} in (0, 1]"
            )
        self.temperature, self.top_k, self.top_p = temperature, top_k, top_p
        self.random = np.random.default_rng(seed)

    def __call__(self, logits: FloatArray) -> int:
        if self.temperature == 0:
            return int(logits.argmax())
        k = min(self.top_k, len(logits))
        best = np.argpartition(-logits, k - 1)[:k]
        best = best[np.argsort(-logits[best], kind="stable")]
        p = np.exp((logits[best].astype(np.float64) - logits[best[0]]) / self.temperature)
        p /= p.sum()
        kept = int(np.searchsorted(np.cumsum(p), self.top_p)) + 1  # the smallest set that reaches top_p
        p = p[:kept] / p[:kept].sum()
        return int(self.random.choice(best[:kept], p=p))
