"""Graphs to plan: the examples of the package, and models from the metadata of their files. No
weights are read: their memory is never touched."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from itertools import chain
from typing import Any

from ... import gguf, ops
from ..._base.errors import AllocationError, InvalidArgumentError, UnsupportedError
from ...backend.backend import Backend
from ...dtypes import DType, float16, float32, int32
from ...models import _whisper as whisper
from ...models import embedding
from ...models._decoder import Inputs, decode
from ...models._sizes import Sizes
from ...models.architectures import DECODERS, ENCODERS, SPEECH, decoder_of, unknown
from ...profile._pictures import Picture, picture_of
from ...sched.plan import Plan
from ...sched.scheduler import Scheduler
from ...tensor.context import Context
from ...tensor.graph import Graph
from ...tensor.tensor import Tensor
from .graphs import NAMES
from .graphs import build as build_example

__all__ = ["Llama", "LlamaFile", "Pass", "llama_layer", "llama_shapes", "prepare"]


@dataclass(frozen=True)
class Pass:
    """One pass through a model, as given on the command line."""

    tokens: int | None
    context: int | None


@dataclass(frozen=True)
class Prepared:
    """A graph with the plan that its scheduler made."""

    graph: Graph
    scheduler: Scheduler
    picture: Picture
    plan: Plan
    reordered: bool  # --reorder found a better order of the nodes
    held: Sequence[Held]  # by device; empty for an example


@dataclass
class Held:
    """Bytes of a model on one device, beside those of the plan."""

    weights: int = 0
    caches: int = 0


# ---------------------------------------------------------------------------------------------------------------- llama


@dataclass(frozen=True)
class Llama:
    """Sizes of a model, from the keys ``llama.*``."""

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

    @classmethod
    def of(cls, metadata: Mapping[str, Any]) -> Llama:
        def number(name: str, default: int | None = None) -> int:
            value = metadata.get(f"llama.{name}", default)
            if not isinstance(value, int) or isinstance(value, bool) or not 0 < value < 2**31:
                raise InvalidArgumentError(f"the file's llama.{name} must be a number from 1 up, is {value!r}")
            return value

        def real(name: str, default: float) -> float:
            value = metadata.get(f"llama.{name}", default)
            if not isinstance(value, (int, float)):
                raise InvalidArgumentError(f"the file's llama.{name} must be a number, is {value!r}")
            return float(value)

        if metadata.get("llama.expert_count", 0):
            raise UnsupportedError(
                "the file holds a mixture of experts; only dense models can be planned (and the example 'moe')"
            )
        embd, heads = number("embedding_length"), number("attention.head_count")
        kv_heads = number("attention.head_count_kv", heads)
        if embd % heads or heads % kv_heads:
            raise InvalidArgumentError(
                f"the sizes of the file do not divide: {embd} values, {heads} heads, {kv_heads} heads of keys"
            )
        return cls(
            embd, number("block_count"), heads, kv_heads, number("feed_forward_length"), number("context_length"),
            real("attention.layer_norm_rms_epsilon", 1e-5), number("rope.dimension_count", embd // heads),
            real("rope.freq_base", 1e4),
        )  # fmt: skip


def _llama_attention(
    w: Mapping[str, Tensor], c: Llama, i: int, x: Tensor, past: int, positions: Tensor, writes: list[Tensor]
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


def llama_layer(
    w: Mapping[str, Tensor], c: Llama, i: int, x: Tensor, past: int, positions: Tensor, writes: list[Tensor]
) -> Tensor:
    p = f"blk.{i}."

    def norm(x: Tensor, name: str) -> Tensor:
        return (ops.rms_norm(x, eps=c.eps).named(f"{p}{name}_rms") * w[f"{p}{name}.weight"]).named(f"{p}{name}")

    x = (x + _llama_attention(w, c, i, norm(x, "attn_norm"), past, positions, writes)).named(f"{p}attn_sum")
    h = norm(x, "ffn_norm")
    gate = ops.silu(ops.mul_mat(w[f"{p}ffn_gate.weight"], h).named(f"{p}gate")).named(f"{p}gate_silu")
    both = (gate * ops.mul_mat(w[f"{p}ffn_up.weight"], h).named(f"{p}up")).named(f"{p}gate_up")
    return (x + ops.mul_mat(w[f"{p}ffn_down.weight"], both).named(f"{p}ffn_out")).named(f"{p}out")


def _llama_weights(c: Llama, vocab: int) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Names and shapes of the weights. A generator, because a corrupt file may claim any number of
    layers."""
    yield "token_embd.weight", (vocab, c.embd)
    yield "output_norm.weight", (c.embd,)
    kv = c.kv_heads * c.head
    for i in range(c.layers):
        block = {
            "attn_norm": (c.embd,), "attn_q": (c.embd, c.embd), "attn_k": (kv, c.embd), "attn_v": (kv, c.embd),
            "attn_output": (c.embd, c.embd), "ffn_norm": (c.embd,), "ffn_gate": (c.ff, c.embd),
            "ffn_up": (c.ff, c.embd),
            "ffn_down": (c.embd, c.ff),
        }  # fmt: skip
        for name, shape in block.items():
            yield f"blk.{i}.{name}.weight", shape


def llama_shapes(c: Llama, vocab: int) -> dict[str, tuple[int, ...]]:
    """Names and shapes of the tensors that a file must have."""
    return dict(_llama_weights(c, vocab))


@dataclass(frozen=True)
class LlamaFile:
    """The metadata of a file: sizes, and shape and type of each weight. Weights are not read."""

    c: Llama
    weights: Mapping[str, tuple[tuple[int, ...], DType]]
    tokens: int
    length: int  #: positions of the cache

    @classmethod
    def of(cls, file: gguf.GGUFFile, asked: Pass) -> LlamaFile:
        c = Llama.of(file.metadata)
        tokens, length = _lengths(asked, c.context)
        if "token_embd.weight" not in file.tensors or len(file.tensors["token_embd.weight"].shape) != 2:
            raise InvalidArgumentError("the file has no matrix token_embd.weight")
        vocab, weights = file.tensors["token_embd.weight"].shape[0], {}
        head = [("output.weight", (vocab, c.embd))] if "output.weight" in file.tensors else []
        for name, shape in chain(_llama_weights(c, vocab), head):
            if name not in file.tensors:
                raise InvalidArgumentError(f"the file has no tensor {name}")
            found = file.tensors[name]
            if found.shape != shape:
                raise InvalidArgumentError(f"the file's {name} has the shape {found.shape}, by its metadata {shape}")
            weights[name] = shape, found.dtype
        return cls(c, weights, tokens, length)

    def tensors(self, home: Callable[[str], Context]) -> dict[str, Tensor]:
        """Weights and caches without memory. home: the context for each name"""
        c, length = self.c, self.length
        w = {name: home(name).tensor(shape, dtype, name=name) for name, (shape, dtype) in self.weights.items()}
        for i in range(c.layers):
            keys, values = f"blk.{i}.cache_k", f"blk.{i}.cache_v"
            w[keys] = home(keys).tensor((c.kv_heads, length, c.head), float16, name=keys)
            w[values] = home(values).tensor((c.kv_heads, c.head, length), float16, name=values)
        return w

    def graph(self, context: Context, w: Mapping[str, Tensor]) -> Graph:
        """One pass of tokens that fill the cache."""
        tokens = self.tokens
        ids, positions = (
            context.tensor((tokens,), int32, name="ids"),
            context.tensor((tokens,), int32, name="positions"),
        )
        x, writes = ops.get_rows(w["token_embd.weight"], ids).named("embeddings"), list[Tensor]()
        for i in range(self.c.layers):
            x = llama_layer(w, self.c, i, x, self.length - tokens, positions, writes)
        normed = ops.rms_norm(x[-1:], eps=self.c.eps).named("output_rms")
        last = (normed * w["output_norm.weight"]).named("output_norm")
        logits = ops.mul_mat(w.get("output.weight", w["token_embd.weight"]), last).named("logits")
        return context.graph(*writes, logits)


# --------------------------------------------------------------------------------------------------------------- models


@dataclass(frozen=True)
class _File:
    """A model to plan: the contexts of its layers and of the rest, which get memory, and the graph."""

    file: gguf.GGUFFile
    layers: Sequence[Context]
    rest: Context
    context: Context

    @classmethod
    def of(cls, file: gguf.GGUFFile, n_layers: int, stack: ExitStack) -> _File:
        rest, *layers = [stack.enter_context(Context(usage="weights")) for _ in range(1 + n_layers)]
        return cls(file, layers, rest, stack.enter_context(Context()))

    def weights(self, names: Iterable[str]) -> dict[str, Tensor]:
        """Weights without memory, those of ``blk.3`` with the layer."""
        made: dict[str, Tensor] = {}
        for name in names:
            block = name.split(".")[1] if name.startswith("blk.") else ""
            home = self.layers[int(block)] if block.isdecimal() and int(block) < len(self.layers) else self.rest
            found = self.file.tensors[name]
            made[name] = home.tensor(found.shape, found.dtype, name=name)
        return made


def _lengths(asked: Pass, context: int) -> tuple[int, int]:
    """Tokens of a pass, and positions of the cache. context: the most that the model takes"""
    if asked.context is not None and not 1 <= asked.context <= context:
        raise InvalidArgumentError(f"--context is {asked.context}: this model takes 1 to {context}")
    length = asked.context if asked.context is not None else min(context, 4096)
    tokens = asked.tokens if asked.tokens is not None else min(512, length)
    if not 0 < tokens <= length:
        raise InvalidArgumentError(f"{tokens} tokens do not fit a cache of {length}")
    return tokens, length


def _decoder(
    file: gguf.GGUFFile, backends: Sequence[Backend], asked: Pass, stack: ExitStack
) -> tuple[Graph, str, Sequence[Held]]:
    """A pass of tokens that fill the cache."""
    name = str(file.metadata["general.architecture"])
    a = decoder_of(name)
    s = Sizes.of(name, a, dict(file.metadata), file.tensors, asked.context)
    tokens, length = _lengths(asked, s.context)
    parts = _File.of(file, s.layers, stack)
    w = parts.weights(dict(s.shapes(a, file.tensors)))
    caches = [
        (
            home.tensor((length, s.kv_heads * s.head_k), float16, name=f"blk.{i}.cache_k"),
            home.tensor((length, s.kv_heads * s.head_v), float16, name=f"blk.{i}.cache_v"),
        )
        for i, home in enumerate(parts.layers)
    ]
    held = _hold([*parts.layers, parts.rest], backends)
    inputs = Inputs.make(parts.context, a, s, tokens, length, 1)
    graph = parts.context.graph(decode(w, a, s, inputs, caches))
    return graph, f"{tokens} tokens that fill a cache of {length}", held


def _encoder(
    file: gguf.GGUFFile, backends: Sequence[Backend], asked: Pass, stack: ExitStack
) -> tuple[Graph, str, Sequence[Held]]:
    """A text of BERT or one of its successors."""
    name = str(file.metadata["general.architecture"])
    a, s = ENCODERS[name], embedding.Sizes.of(name, file.metadata, file.tensors)
    s.check(a, file.tensors)
    if asked.context is not None:
        raise InvalidArgumentError(f"--context: {name} has no cache; --tokens is the length of a text")
    tokens, _ = _lengths(asked, s.context)
    parts = _File.of(file, s.layers, stack)
    w = parts.weights(s.names(a, file.tensors))
    held = _hold([*parts.layers, parts.rest], backends)
    inputs = embedding.Inputs.make(parts.context, a, s, 1, tokens)
    return parts.context.graph(embedding.encode(w, a, s, inputs)), f"a text of {tokens} tokens", held


def _whisper(
    file: gguf.GGUFFile, backends: Sequence[Backend], asked: Pass, stack: ExitStack
) -> tuple[Graph, str, Sequence[Held]]:
    """A window of 30 seconds, which needs more memory than writing its text."""
    if asked != Pass(None, None):
        raise InvalidArgumentError("--tokens and --context: the windows of whisper have one size")
    s = whisper.Sizes.of(file.metadata, file.tensors)
    parts = _File.of(file, 0, stack)
    w = parts.weights(s.shapes())
    kinds = (("cache", s.text_context), ("window", s.audio_context))
    caches = {
        (kind, part, i): parts.rest.tensor((n, s.embd), float16, name=f"blk.{i}.cache_{kind}_{part}")
        for kind, n in kinds
        for i in range(s.decoder_layers)
        for part in "kv"
    }
    held = _hold([parts.rest], backends)
    mel = parts.context.tensor((s.mels, 2 * s.audio_context), float32, name="mel")
    crossed = [(caches["window", "k", i], caches["window", "v", i]) for i in range(s.decoder_layers)]
    graph = parts.context.graph(*whisper.encode(w, s, mel, crossed))
    return graph, "a window of 30 seconds", held


def _hold(parts: Sequence[Context], backends: Sequence[Backend]) -> list[Held]:
    """Allocates the parts of a model in order, spread evenly over the devices, the last part on the
    last device. If a device is full, the next one takes the part."""
    held, least, n = [Held() for _ in backends], 0, len(backends)
    for i, part in enumerate(parts):
        wanted = n - 1 if i == len(parts) - 1 else i * n // (len(parts) - 1)
        for k in range(max(wanted, least), n):
            try:
                part.allocate(backends[k], "weights")
            except AllocationError as error:
                if k == n - 1:
                    raise AllocationError(
                        f"the weights and caches do not fit on {', '.join(b.name for b in backends)}: {error}; more"
                        " devices (--devices ... CPU), a smaller cache (--context) or smaller weights (gguf quantize)"
                        " may help"
                    ) from error
                least = k + 1
                continue
            for t in part.tensors():
                if ".cache_" in t.name:
                    held[k].caches += t.nbytes
                else:
                    held[k].weights += t.nbytes
            break
    return held


def _name_nodes(graph: Graph) -> None:
    """Names nodes by the weight or cache that they read: ``blk.0.ffn_gate``, ``blk.0.attention``."""
    for node in graph.nodes:
        if not node.name.startswith("node_"):
            continue
        for source in node.sources:
            whole = source.view_of
            name, _, kind = (source if whole is None else whole).name.rpartition(".")
            if name == "token_embd" and node.op == "MUL_MAT":  # tied embeddings
                node.name = "output"
                break
            if kind in ("weight", "bias"):
                node.name = name if kind == "weight" else f"{name}_sum"
                break
            if kind.startswith("cache_"):
                node.name = f"{name}.attention" if node.op == "FLASH_ATTN_EXT" else f"{name}.{kind}_store"
                break


def _model(path: str, backends: Sequence[Backend], asked: Pass, stack: ExitStack) -> tuple[Graph, str, Sequence[Held]]:
    file = stack.enter_context(gguf.open(path))
    name = file.metadata.get("general.architecture")
    build = _decoder if name in DECODERS else _encoder if name in ENCODERS else _whisper if name in SPEECH else None
    if build is None:
        raise UnsupportedError(f"{path}: {unknown(str(name))}")
    graph, what, held = build(file, backends, asked, stack)
    _name_nodes(graph)
    return graph, f"{os.path.basename(path)}: {what}", held


# ------------------------------------------------------------------------------------------------------------- examples


def _example(name: str, asked: Pass, stack: ExitStack) -> tuple[Graph, str]:
    if name not in NAMES:
        raise InvalidArgumentError(f"{name}: neither a file nor an example; examples: {', '.join(NAMES)}")
    if asked.tokens is not None or asked.context is not None:
        raise InvalidArgumentError("--tokens and --context are for MODEL.gguf; an example has sizes of its own")
    context, graph = build_example(name)
    stack.enter_context(context)
    return graph, name


@contextmanager
def prepare(
    source: str, devices: Sequence[str], tokens: int | None = None, context: int | None = None, reorder: bool = False
) -> Iterator[Prepared]:
    """Plans the graph of a GGUF file or of an example on these devices. Computes nothing; only
    weights get memory."""
    asked = Pass(tokens, context)
    with ExitStack() as stack:
        backends = [stack.enter_context(Backend(name)) for name in devices]
        if os.path.exists(source) or source.lower().endswith(".gguf"):
            graph, title, held = _model(source, backends, asked, stack)
        else:
            (graph, title), held = _example(source, asked, stack), ()
        scheduler = stack.enter_context(Scheduler(backends))
        plan = scheduler.prepare(graph, allocate=False, reorder=reorder)
        yield Prepared(plan.graph, scheduler, picture_of(plan, title), plan, plan.graph is not graph, held)
