"""Graphs to plan: the examples of the package, and models from the metadata of their files. No
weights are read: their memory is never touched."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

import numpy as np

from ... import gguf
from ..._base.errors import AllocationError, InvalidArgumentError
from ...backend.backend import Backend
from ...dtypes import DType, float16, float32
from ...models import _whisper as whisper
from ...models import embedding
from ...models._decoder import Inputs, decode
from ...models._sizes import Sizes
from ...models.architectures import DECODERS, ENCODERS, SPEECH, Decoder, architecture_of
from ...profile._pictures import Picture, picture_of
from ...sched.plan import Plan
from ...sched.scheduler import Scheduler
from ...tensor.context import Context
from ...tensor.graph import Graph
from ...tensor.tensor import Tensor
from .graphs import NAMES
from .graphs import build as build_example

__all__ = ["DecoderFile", "Pass", "name_nodes", "prepare"]


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

    def home(self, name: str) -> Context:
        """The context of a tensor: those of ``blk.3`` are with the layer."""
        block = name.split(".")[1] if name.startswith("blk.") else ""
        return self.layers[int(block)] if block.isdecimal() and int(block) < len(self.layers) else self.rest

    def weights(self, names: Iterable[str]) -> dict[str, Tensor]:
        """Weights without memory."""
        found = {name: self.file.tensors[name] for name in names}
        return {name: self.home(name).tensor(t.shape, t.dtype, name=name) for name, t in found.items()}


def _lengths(asked: Pass, context: int) -> tuple[int, int]:
    """Tokens of a pass, and positions of the cache. context: the most that the model takes"""
    if asked.context is not None and not 1 <= asked.context <= context:
        raise InvalidArgumentError(f"--context is {asked.context}: this model takes 1 to {context}")
    length = asked.context if asked.context is not None else min(context, 4096)
    tokens = asked.tokens if asked.tokens is not None else min(512, length)
    if not 0 < tokens <= length:
        raise InvalidArgumentError(f"{tokens} tokens do not fit a cache of {length}")
    return tokens, length


@dataclass(frozen=True)
class DecoderFile:
    """A language model without its weights: its sizes, and shape and type of each tensor."""

    a: Decoder
    s: Sizes
    weights: Mapping[str, tuple[tuple[int, ...], DType]]
    tokens: int  #: tokens of a pass
    length: int  #: positions of the cache

    @classmethod
    def of(cls, file: gguf.GGUFFile, asked: Pass) -> DecoderFile:
        """From the metadata of a file. Weights are not read."""
        name = architecture_of(file.metadata, DECODERS)
        a = DECODERS[name]
        s = Sizes.of(name, a, dict(file.metadata), file.tensors, asked.context)
        found = {n: (file.tensors[n].shape, file.tensors[n].dtype) for n, _ in s.shapes(a, file.tensors)}
        return cls(a, s, found, *_lengths(asked, s.context))

    @classmethod
    def of_sizes(cls, a: Decoder, s: Sizes, dtype: DType, tokens: int) -> DecoderFile:
        """A model that is in no file, with matrices of one type and an output matrix of its own."""
        shapes = s.shapes(a, {"output.weight": np.empty(0)})
        found = {name: (shape, dtype if len(shape) > 1 else float32) for name, shape in shapes}
        return cls(a, s, found, tokens, s.context)

    def tensors(self, home: Callable[[str], Context]) -> tuple[dict[str, Tensor], list[tuple[Tensor, Tensor]]]:
        """Weights by name, and keys and values of each layer, without memory. home: the context for each name"""
        s = self.s

        def cache(i: int, part: str, head: int) -> Tensor:
            name = f"blk.{i}.cache_{part}"
            return home(name).tensor((self.length, s.kv_heads * head), float16, name=name)

        w = {name: home(name).tensor(shape, dtype, name=name) for name, (shape, dtype) in self.weights.items()}
        return w, [(cache(i, "k", s.head_k), cache(i, "v", s.head_v)) for i in range(s.layers)]

    def graph(self, context: Context, w: Mapping[str, Tensor], caches: Sequence[tuple[Tensor, Tensor]]) -> Graph:
        """One pass of tokens that fill the cache."""
        inputs = Inputs.make(context, self.a, self.s, self.tokens, self.length, 1)
        order: list[Tensor] = []
        logits = decode(w, self.a, self.s, inputs, caches, order=order)
        graph = context.graph(logits, first=order)
        name_nodes(graph)
        return graph


def _decoder(
    file: gguf.GGUFFile, backends: Sequence[Backend], asked: Pass, stack: ExitStack
) -> tuple[Graph, str, Sequence[Held]]:
    """A pass of tokens that fill the cache."""
    model = DecoderFile.of(file, asked)
    parts = _File.of(file, model.s.layers, stack)
    w, caches = model.tensors(parts.home)
    held = _hold([*parts.layers, parts.rest], backends)
    graph = model.graph(parts.context, w, caches)
    return graph, f"{model.tokens} tokens that fill a cache of {model.length}", held


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


def name_nodes(graph: Graph) -> None:
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
    name = architecture_of(file.metadata, (*DECODERS, *ENCODERS, *SPEECH), path)
    build = _decoder if name in DECODERS else _encoder if name in ENCODERS else _whisper
    graph, what, held = build(file, backends, asked, stack)
    name_nodes(graph)
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
