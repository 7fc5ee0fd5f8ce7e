"""The same work side by side with other libraries in one process: NumPy, PyTorch, ONNX Runtime and llama.cpp, where
they can be imported.

    python benchmarks/compare_peers.py [products|ops|attention|model|llama ...] [--threads N] [--only TEXT ...]
    [--rounds N] [--seconds S]
                                       [--cpu] [--quick] [--json FILE] [--markdown]

It installs nothing (pip install torch onnxruntime onnx llama-cpp-python) and says what is absent. All sides get the
same inputs and the same number of threads (NumPy takes what its BLAS takes); results are compared before anything is
measured. In every round each side runs for a while, after a pause in which the threads of the side before fall asleep;
the table has medians of the rounds, and ratios to ours taken round by round. Above 1: we are faster. Outputs are made
by each library in its own way: PyTorch and NumPy allocate them, ONNX Runtime copies them out, ours lie in a buffer.
With --cpu it is one thread, and the processor time of the process is measured instead: what is left to do on a machine
that others use meanwhile.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))

import ggml_backend as gb
from timing import PROCESS, WALL, in_turns, median, per_call, ratio

Run = Callable[[], Any]
PEERS = ("numpy", "torch", "onnxruntime", "llama_cpp")


@dataclass
class Work:
    """What all sides do; ``peers``: how to prepare it for each, called only if the library is there."""

    name: str
    unit: str  # GB/s, GFLOP/s, sentences/s
    amount: float
    ours: Run
    peers: dict[str, Callable[[], Run]]
    tolerance: float  # of the difference, by the largest value
    keep: list[Any] = field(default_factory=list)


class Sides:
    """The libraries that are there, and small graphs in each."""

    def __init__(self, threads: int) -> None:
        self.threads = threads
        self.backend = gb.Backend("CPU", n_threads=threads)
        self.modules: dict[str, Any] = {}
        self.absent: dict[str, str] = {}
        for name in PEERS:
            try:
                self.modules[name] = importlib.import_module(name)
                if name == "onnxruntime":
                    importlib.import_module("onnx")
            except ImportError as error:
                self.modules.pop(name, None)
                self.absent[name] = str(error)
        if "torch" in self.modules:
            self.modules["torch"].set_num_threads(threads)

    def graph(self, build: Callable[..., gb.Tensor], *inputs: tuple[tuple[int, ...], gb.DType, np.ndarray]) -> Run:
        """Of ours: inputs are (shape, dtype, values)."""
        ctx, allocator = gb.Context(), gb.GraphAllocator(self.backend)
        sources = [ctx.tensor(shape, dtype, name=f"x{i}") for i, (shape, dtype, _) in enumerate(inputs)]
        buffer = ctx.allocate(self.backend)
        result = build(*sources)
        graph = ctx.graph(result)
        allocator.allocate(graph)  # as programs do: results in the place of what is no longer needed
        for tensor, (_, _, values) in zip(sources, inputs, strict=True):
            tensor.set(values)

        def run(keep: Any = (ctx, buffer, allocator)) -> Any:
            graph.compute(self.backend)
            return result.numpy()

        return run

    def onnx(
        self, nodes: list[Any], inputs: dict[str, np.ndarray], weights: dict[str, np.ndarray], out: str = "y"
    ) -> Run:
        """A session that computes `out` from the inputs; weights are part of the model."""
        ort = self.modules["onnxruntime"]
        from onnx import TensorProto, helper

        types = {
            np.dtype(k): v for k, v in {np.float32: 1, np.uint8: 2, np.int32: 6, np.int64: 7, np.float16: 10}.items()
        }
        initial = [helper.make_tensor(n, types[w.dtype], w.shape, w.tobytes(), raw=True) for n, w in weights.items()]
        described = [helper.make_tensor_value_info(n, types[x.dtype], x.shape) for n, x in inputs.items()]
        result = [helper.make_tensor_value_info(out, TensorProto.FLOAT, None)]
        if nodes[-1].op_type == "Cast":
            result = [helper.make_tensor_value_info(out, TensorProto.FLOAT16, None)]
        graph = helper.make_graph(nodes, "work", described, result, initial)
        opsets = [helper.make_opsetid("", 20), helper.make_opsetid("com.microsoft", 1)]
        model = helper.make_model(graph, opset_imports=opsets, ir_version=9)
        options = ort.SessionOptions()
        options.intra_op_num_threads = self.threads
        options.log_severity_level = 3
        session = ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
        return lambda: session.run([out], inputs)[0]

    def node(self, op: str, inputs: list[str], **attributes: Any) -> Any:
        from onnx import helper

        domain = (
            "com.microsoft"
            if op
            in (
                "MatMulNBits",
                "QuickGelu",
                "SkipLayerNormalization",
                "Attention",
                "BiasGelu",
                "SimplifiedLayerNormalization",
            )
            else ""
        )
        return helper.make_node(
            op,
            inputs,
            [attributes.pop("to_name", "y")],
            domain="" if op == "SimplifiedLayerNormalization" else domain,
            **attributes,
        )


# ------------------------------------------------------------------------------------------------------------- products


def int_weights(m: int, k: int, bits: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Integers 0 .. 2^bits - 1 in blocks of 32 with a scale each, as MatMulNBits takes them, and what they mean (zero
    in the middle)."""
    q = rng.integers(0, 1 << bits, (m, k // 32, 32), dtype=np.uint8)
    scales = ((rng.random((m, k // 32), dtype=np.float32) + 0.5) / 64).astype(np.float16).astype(np.float32)
    if bits == 8:
        q = np.maximum(q, 1)  # Q8_0 holds -127 .. 127
    packed = q if bits == 8 else q[..., ::2] | q[..., 1::2] << 4
    return packed, scales, ((q.astype(np.float32) - (1 << bits - 1)) * scales[..., None]).reshape(m, k)


def blocks_of(q: np.ndarray, scales: np.ndarray, bits: int) -> np.ndarray:
    """The same weights as Q4_0 or Q8_0: a scale in float16, then 32 values; Q4_0 has the second half of a block in the
    upper bits."""
    d = scales.astype(np.float16)[..., None].view(np.uint8)
    if bits == 8:
        values = (q ^ 0x80).view(np.uint8)
    else:
        plain = np.stack([q & 15, q >> 4], -1).reshape(*q.shape[:2], 32)
        values = plain[..., :16] | plain[..., 16:] << 4
    return np.ascontiguousarray(np.concatenate([d, values], -1)).reshape(q.shape[0], -1)


def products(s: Sides, quick: bool) -> Iterator[Work]:
    rng = np.random.default_rng(0)
    m, k = (256, 512) if quick else (4096, 14336)
    for n in (16,) if quick else (512, 1):
        unit, x = ("GB/s" if n == 1 else "GFLOP/s"), rng.standard_normal((n, k), dtype=np.float32)
        flops = 2.0 * m * k * n
        w = rng.standard_normal((m, k), dtype=np.float32) / np.float32(k**0.5)
        wt = np.ascontiguousarray(w.T)

        def torch_linear(w: np.ndarray, x: np.ndarray, dtype: str) -> Run:
            torch = s.modules["torch"]
            a, b = torch.from_numpy(w).to(getattr(torch, dtype)), torch.from_numpy(x).to(getattr(torch, dtype))

            def run() -> Any:
                with torch.inference_mode():
                    return torch.nn.functional.linear(b, a)

            return run

        yield Work(
            f"f32 m={m} k={k} n={n}", unit, w.nbytes if n == 1 else flops,
            s.graph(gb.mul_mat, ((m, k), gb.float32, w), ((n, k), gb.float32, x)),
            {
                "numpy": lambda x=x, w=w: lambda: x @ w.T,
                "torch": lambda x=x, w=w, f=torch_linear: f(w, x, "float32"),
                "onnxruntime": lambda x=x, wt=wt: s.onnx([s.node("MatMul", ["x", "w"])], {"x": x}, {"w": wt}),
            },
            1e-4,
        )  # fmt: skip
        h = w.astype(np.float16)
        yield Work(
            f"f16 m={m} k={k} n={n}", unit, h.nbytes if n == 1 else flops,
            s.graph(gb.mul_mat, ((m, k), gb.float16, h), ((n, k), gb.float32, x)),
            {"torch": lambda x=x, w=w, f=torch_linear: f(w, x, "float16")}, 1e-2,
        )  # fmt: skip
        bf = gb.quantize(w, gb.bfloat16).view(np.uint16)
        yield Work(
            f"bf16 m={m} k={k} n={n}", unit, bf.nbytes if n == 1 else flops,
            s.graph(gb.mul_mat, ((m, k), gb.bfloat16, bf), ((n, k), gb.float32, x)),
            {"torch": lambda x=x, w=w, f=torch_linear: f(w, x, "bfloat16")}, 3e-2,
        )  # fmt: skip
        for bits, dtype in ((4, gb.q4_0), (8, gb.q8_0)):
            q, scales, meant = int_weights(m, k, bits, rng)
            blocks = blocks_of(q, scales, bits)
            assert np.abs(gb.dequantize(blocks, dtype) - meant).max() < 1e-6, (
                "the two sides do not have the same weights"
            )
            attributes = {"K": k, "N": m, "bits": bits, "block_size": 32, "accuracy_level": 4}
            parts = {"q": q, "d": scales.reshape(-1) if bits == 4 else scales.reshape(m, -1)}
            yield Work(
                f"{dtype} m={m} k={k} n={n}", unit, blocks.nbytes if n == 1 else flops,
                s.graph(gb.mul_mat, ((m, k), dtype, blocks), ((n, k), gb.float32, x)),
                {"onnxruntime": lambda x=x, a=attributes,
                 p=parts: s.onnx([s.node("MatMulNBits", ["x", "q", "d"], **a)], {"x": x}, p)},
                3e-2,
            )  # fmt: skip


# ------------------------------------------------------------------------------------------------------------------ ops


def operators(s: Sides, quick: bool) -> Iterator[Work]:
    rng = np.random.default_rng(0)
    rows, columns = (32, 256) if quick else (512, 4096)
    a, b = (rng.standard_normal((rows, columns), dtype=np.float32) for _ in range(2))
    w, c = (rng.standard_normal(columns, dtype=np.float32) for _ in range(2))
    named = {"a": a, "b": b, "w": w, "c": c}

    def softmax(x: np.ndarray) -> np.ndarray:
        e = np.exp(x - x.max(-1, keepdims=True))
        return e / e.sum(-1, keepdims=True)

    def row_norm(x: np.ndarray) -> np.ndarray:
        d = x - x.mean(-1, keepdims=True)
        return d / np.sqrt((d * d).mean(-1, keepdims=True) + 1e-5)

    def work(
        name: str, operands: str, ours: Callable[..., gb.Tensor], numpy: Callable[..., Any] | None,
        torch: Callable[..., Any] | None,
        onnx: Callable[[], list[Any]] | None, bytes_each: float = 0, tolerance: float = 1e-4,
    ) -> Work:  # fmt: skip
        arrays = [named[o] for o in operands]
        peers: dict[str, Callable[[], Run]] = {}
        if numpy is not None:
            peers["numpy"] = lambda: lambda: numpy(*arrays)
        if torch is not None:

            def prepare() -> Run:
                t = s.modules["torch"]
                tensors = [t.from_numpy(x) for x in arrays]

                def run() -> Any:
                    with t.inference_mode():
                        return torch(t, *tensors)

                return run

            peers["torch"] = prepare
        if onnx is not None:
            peers["onnxruntime"] = lambda: s.onnx(
                onnx(), {o: named[o] for o in operands if o in "ab"}, {o: named[o] for o in operands if o in "wc"}
            )
        count = bytes_each * a.size or 4.0 * a.size * (1 + sum(o in "ab" for o in operands))
        return Work(
            f"{name} [{rows} x {columns}]",
            "GB/s",
            count,
            s.graph(ours, *((x.shape, gb.float32, x) for x in arrays)),
            peers,
            tolerance,
        )

    n = s.node
    yield work("add", "ab", lambda x, y: x + y, np.add, lambda t, x, y: x + y, lambda: [n("Add", ["a", "b"])])
    yield work("relu", "a", gb.relu, lambda x: np.maximum(x, 0), lambda t, x: t.relu(x), lambda: [n("Relu", ["a"])])
    yield work(
        "silu",
        "a",
        gb.silu,
        lambda x: x / (1 + np.exp(-x)),
        lambda t, x: t.nn.functional.silu(x),
        lambda: [n("QuickGelu", ["a"], alpha=1.0)],
    )
    yield work(
        "gelu (tanh)", "a", gb.gelu, None, lambda t, x: t.nn.functional.gelu(x, approximate="tanh"),
        lambda: [n("Gelu", ["a"], approximate="tanh")], tolerance=2e-3,
    )  # fmt: skip
    yield work("gelu (erf)", "a", gb.gelu_erf, None, lambda t, x: t.nn.functional.gelu(x), lambda: [n("Gelu", ["a"])])
    yield work("tanh", "a", gb.tanh, np.tanh, lambda t, x: t.tanh(x), lambda: [n("Tanh", ["a"])])
    yield work(
        "norm, weight, bias", "awc", lambda x, g, h: gb.norm(x, eps=1e-5) * g + h, lambda x, g, h: row_norm(x) * g + h,
        lambda t, x, g, h: t.nn.functional.layer_norm(x, (columns,), g, h, 1e-5),
        lambda: [n("LayerNormalization", ["a", "w", "c"], epsilon=1e-5)],
    )  # fmt: skip
    yield work(
        "rms_norm, weight", "aw", lambda x, g: gb.rms_norm(x, eps=1e-5) * g, lambda x,
        g: x / np.sqrt((x * x).mean(-1, keepdims=True) + 1e-5) * g,
        lambda t, x, g: t.nn.functional.rms_norm(x, (columns,), g, 1e-5),
        lambda: [n("SimplifiedLayerNormalization", ["a", "w"], epsilon=1e-5)],
    )  # fmt: skip
    yield work("soft_max", "a", gb.soft_max, softmax, lambda t, x: t.softmax(x, -1), lambda: [n("Softmax", ["a"])])
    yield work(
        "soft_max, scale, mask", "ab", lambda x, m: gb.soft_max(x, m, 0.1), lambda x,
        m: softmax(x * np.float32(0.1) + m),
        lambda t, x, m: t.softmax(t.add(m, x, alpha=0.1), -1), None,
    )  # fmt: skip
    yield work(
        "sum_rows",
        "a",
        gb.sum_rows,
        lambda x: x.sum(-1, keepdims=True),
        lambda t, x: x.sum(-1, keepdim=True),
        None,
        4,
        1e-3,
    )
    yield work(
        "f32 to f16",
        "a",
        lambda x: gb.cast(x, gb.float16),
        lambda x: x.astype(np.float16),
        lambda t, x: x.half(),
        lambda: [n("Cast", ["a"], to=10)],
        6,
        1e-3,
    )
    yield work("f32 to bf16", "a", lambda x: gb.cast(x, gb.bfloat16), None, lambda t, x: x.bfloat16(), None, 6, 1e-2)
    yield work(
        "transposing copy",
        "a",
        lambda x: gb.cont(x.T),
        lambda x: np.ascontiguousarray(x.T),
        lambda t, x: x.T.contiguous(),
        lambda: [n("Transpose", ["a"])],
    )


def attention(s: Sides, quick: bool) -> Iterator[Work]:
    rng = np.random.default_rng(0)
    heads, d = (2, 64) if quick else (32, 128)
    for queries, keys in ((16, 32),) if quick else ((512, 512), (1, 4096)):
        q, k, v = (rng.standard_normal((heads, t, d), dtype=np.float32) for t in (queries, keys, keys))
        mask = np.where(rng.random((queries, keys)) < 0.1, -np.inf, 0).astype(np.float32)
        vt, kt = np.ascontiguousarray(v.transpose(0, 2, 1)), np.ascontiguousarray(k.transpose(0, 2, 1))

        def ours(q: gb.Tensor, k: gb.Tensor, vt: gb.Tensor, m: gb.Tensor) -> gb.Tensor:
            return gb.mul_mat(vt, gb.soft_max(gb.mul_mat(k, q), m, d**-0.5))

        def torch_attention(q: np.ndarray = q, k: np.ndarray = k, v: np.ndarray = v, m: np.ndarray = mask) -> Run:
            t = s.modules["torch"]
            parts = [t.from_numpy(x)[None] for x in (q, k, v, m[None])]

            def compute() -> Any:
                with t.inference_mode():
                    return t.nn.functional.scaled_dot_product_attention(*parts[:3], attn_mask=parts[3])[0]

            return compute

        def onnx_attention(q: np.ndarray = q, kt: np.ndarray = kt, v: np.ndarray = v, m: np.ndarray = mask) -> Run:
            nodes = [
                s.node("MatMul", ["q", "kt"], to_name="scores"), s.node("Mul", ["scores", "scale"], to_name="scaled"),
                s.node("Add", ["scaled", "mask"], to_name="masked"), s.node("Softmax", ["masked"], to_name="probs"),
                s.node("MatMul", ["probs", "v"]),
            ]  # fmt: skip
            return s.onnx(nodes, {"q": q, "kt": kt, "v": v, "mask": m}, {"scale": np.array(d**-0.5, np.float32)})

        flops = 4.0 * queries * keys * d * heads
        run = s.graph(ours, *((x.shape, gb.float32, x) for x in (q, k, vt, mask)))
        yield Work(
            f"attention {queries} to {keys}, {heads} heads of {d}", "GFLOP/s", flops, run,
            {"torch": torch_attention, "onnxruntime": onnx_attention}, 1e-3,
        )  # fmt: skip


# ---------------------------------------------------------------------------------------------------------------- model


def onnx_bert(s: Sides, config: Any, folder: Path) -> Callable[[list[list[int]]], Run]:
    """The embedding model as ONNX Runtime runs it fastest: its fused attention, skip and bias operators, made by
    hand."""
    from safetensors.numpy import load_file

    file = load_file(str(folder / "model.safetensors"))
    w: dict[str, np.ndarray] = {n: file[f"embeddings.{n}_embeddings.weight"] for n in ("word", "position")}
    w["type"] = file["embeddings.token_type_embeddings.weight"][0]

    def norm(name: str) -> list[str]:
        for part in ("weight", "bias"):
            w[f"{name}.{part}"] = file[f"{name}.{part}"]
        return [f"{name}.weight", f"{name}.bias"]

    def matrix(name: str) -> str:
        w[f"{name}.w"], w[f"{name}.b"] = np.ascontiguousarray(file[f"{name}.weight"].T), file[f"{name}.bias"]
        return f"{name}.w"

    n, eps = s.node, config.eps
    nodes = [
        n("Gather", ["word", "ids"], to_name="e0"), n("Gather", ["position", "places"], to_name="e1"),
        n("Add", ["e0", "e1"], to_name="e2"),
        n("Add", ["e2", "type"], to_name="e3"),
        n("LayerNormalization", ["e3", *norm("embeddings.LayerNorm")], epsilon=eps, to_name="x"),
    ]  # fmt: skip
    x = "x"
    for i in range(config.layers):
        p = f"encoder.layer.{i}."
        for part in ("weight", "bias"):
            joined = np.concatenate([file[f"{p}attention.self.{q}.{part}"] for q in ("query", "key", "value")])
            w[f"{p}qkv.{part}"] = np.ascontiguousarray(joined.T)
        attn, inner, out = f"{p}attention.output.dense", f"{p}intermediate.dense", f"{p}output.dense"
        nodes += [
            n("Attention", [x, f"{p}qkv.weight", f"{p}qkv.bias", "mask"], num_heads=config.heads, to_name=f"{p}a"),
            n("MatMul", [f"{p}a", matrix(attn)], to_name=f"{p}b"),
            n(
                "SkipLayerNormalization",
                [f"{p}b", x, *norm(f"{p}attention.output.LayerNorm"), f"{attn}.b"],
                epsilon=eps,
                to_name=f"{p}c",
            ),
            n("MatMul", [f"{p}c", matrix(inner)], to_name=f"{p}d"),
            n("BiasGelu", [f"{p}d", f"{inner}.b"], to_name=f"{p}e"),
            n("MatMul", [f"{p}e", matrix(out)], to_name=f"{p}f"),
            n(
                "SkipLayerNormalization",
                [f"{p}f", f"{p}c", *norm(f"{p}output.LayerNorm"), f"{out}.b"],
                epsilon=eps,
                to_name=f"{p}g",
            ),
        ]
        x = f"{p}g"
    nodes += [n("MatMul", ["pool", x], to_name="mean"), n("LpNormalization", ["mean"], axis=-1, p=2)]

    def prepare(sequences: list[list[int]]) -> Run:
        lengths = np.array([len(t) for t in sequences])
        tokens = int(lengths.max())
        real = np.arange(tokens) < lengths[:, None]
        ids = np.zeros(real.shape, np.int32)
        ids[real] = np.concatenate(sequences)
        inputs = {
            "ids": ids,
            "places": np.broadcast_to(np.arange(tokens, dtype=np.int32), ids.shape).copy(),
            "mask": real.astype(np.int32),
        }
        inputs["pool"] = (real / lengths[:, None]).astype(np.float32)[:, None]
        run = s.onnx(nodes, inputs, w)
        return lambda: run()[:, 0]

    return prepare


def model(s: Sides, quick: bool) -> Iterator[Work]:
    try:
        from bench_embed import token_sequences, torch_model
        from examples.embed.model import Embedder, model_dir

        folder = model_dir()
        embedder = Embedder(n_threads=s.threads)
    except (ImportError, SystemExit) as error:
        print(f"embedding model: left out, {error}")
        return
    for batch in (2,) if quick else (1, 32):
        sequences = token_sequences(embedder, batch, 34)
        peers: dict[str, Callable[[], Run]] = {
            "onnxruntime": lambda q=sequences: onnx_bert(s, embedder.config, folder)(q)
        }

        def torch_run(q: list[list[int]] = sequences) -> Run:
            peer = torch_model(s.threads)
            if peer is None:
                raise RuntimeError("needs torch and safetensors")
            return lambda: peer(q)

        peers["torch"] = torch_run
        yield Work(
            f"all-MiniLM-L6-v2 f32, 34 tokens, batch {batch}",
            "sentences/s",
            batch,
            lambda q=sequences: embedder.embed_tokens(q),
            peers,
            1e-4,
        )


# ----------------------------------------------------------------------------------------------------------- generating


def llama_cpp_run(s: Sides, path: Path, ids: list[int], after: int) -> Run:
    """The logits after `ids`, of which the first `after` are in the cache already, as llama.cpp computes them (package
    llama-cpp-python)."""
    lib = s.modules["llama_cpp"]
    lib.llama_log_set(QUIET_LOG := lib.llama_log_callback(lambda *_: None), None)
    model = lib.llama_model_load_from_file(str(path).encode(), lib.llama_model_default_params())
    if not model:
        raise RuntimeError("it cannot load the file")
    params = lib.llama_context_default_params()
    params.n_ctx = params.n_batch = params.n_ubatch = max(len(ids) + 8, 64)
    params.n_threads = params.n_threads_batch = s.threads
    context = lib.llama_init_from_model(model, params)
    memory, vocab = lib.llama_get_memory(context), lib.llama_vocab_n_tokens(lib.llama_model_get_vocab(model))

    def decode(part: list[int]) -> None:
        tokens = (lib.llama_token * len(part))(*part)
        if lib.llama_decode(context, lib.llama_batch_get_one(tokens, len(part))) != 0:
            raise RuntimeError("llama_decode failed")

    if after:
        decode(ids[:after])

    def run(keep: Any = QUIET_LOG) -> Any:
        lib.llama_memory_seq_rm(memory, 0, after, -1)
        decode(ids[after:])
        return np.ctypeslib.as_array(lib.llama_get_logits_ith(context, -1), (vocab,)).copy()

    return run


def llama(s: Sides, quick: bool) -> Iterator[Work]:
    """A Llama shape of 1.1 billion parameters with random weights (bench_llama.py): a prompt at once, and one token
    after 64."""
    from bench_llama import VOCAB, write_model
    from examples.llama.model import Llama

    layers, prompt = (1, 32) if quick else (22, 512)
    for kind in ("q4_0",) if quick else ("f16", "q8_0", "q4_0", "q4_k"):
        dtype = gb.as_dtype(kind)
        path = Path(f"build/bench/llama/{dtype.name}-{layers}-peers.gguf")
        if not path.exists():
            write_model(path, dtype, layers)
        ids = [int(i) for i in np.random.default_rng(0).integers(0, VOCAB, prompt)]
        net = Llama(path, n_threads=s.threads, context=prompt + 8)
        for name, tokens, after in ((f"a prompt of {prompt}", ids, 0), ("a token after 64", ids[:65], 64)):
            after = min(after, len(tokens) - 1)

            def ours(tokens: list[int] = tokens, after: int = after, net: Llama = net) -> Any:
                if net.cache.used < after:
                    net.reset()
                    net.logits(tokens[:after])
                net.cache.used = after
                return net.logits(tokens[after:])

            net.reset()
            peers = {"llama_cpp": lambda path=path, tokens=tokens, after=after: llama_cpp_run(s, path, tokens, after)}
            yield Work(f"llama 2048 x {layers}, {kind}: {name}", "tokens/s", len(tokens) - after, ours, peers, 0.05)
        del net, ours


# ------------------------------------------------------------------------------------------------------------ measuring

SUITES: dict[str, Callable[[Sides, bool], Iterator[Work]]] = {
    "products": products,
    "ops": operators,
    "attention": attention,
    "model": model,
    "llama": llama,
}


def as_array(x: Any) -> np.ndarray:
    if getattr(x, "dtype", None) == np.uint16:  # bfloat16 of ours
        x = (x.astype(np.uint32) << 16).view(np.float32)
    return np.asarray(x.float() if hasattr(x, "float") else x, np.float32)


def prepared(s: Sides, work: Work) -> tuple[dict[str, Run], dict[str, str]]:
    """The sides that can do it and give the same result; why others cannot."""
    runs, reasons = {"ours": work.ours}, {}
    expected = np.array(as_array(work.ours()))
    for name, prepare in work.peers.items():
        if name not in s.modules:
            continue
        try:
            run = prepare()
            found = as_array(run())
        except Exception as error:  # any of another library's
            reasons[name] = str(error).splitlines()[0][:100] if str(error) else repr(error)
            continue
        difference = float(np.abs(found.reshape(expected.shape) - expected).max() / np.abs(expected).max())
        if difference <= work.tolerance:
            runs[name] = run
        else:
            reasons[name] = f"another result, by {difference:.2g}"
    return runs, reasons


def rate(work: Work, run: Run, seconds: float, pause: float, clock: Callable[[], float]) -> float:
    return work.amount / per_call(run, seconds, clock, pause=pause) / (1e9 if work.unit in ("GB/s", "GFLOP/s") else 1)


def measure(
    s: Sides, work: Work, rounds: int, seconds: float, pause: float, clock: Callable[[], float]
) -> dict[str, Any]:
    runs, reasons = prepared(s, work)
    found = in_turns({name: partial(rate, work, run, seconds, pause, clock) for name, run in runs.items()}, rounds)
    ratios = {name: ratio(found["ours"], theirs) for name, theirs in found.items() if name != "ours"}
    return {
        "unit": work.unit,
        "median": median(found["ours"]),
        "rounds": found,
        "ratios": ratios,
        "left_out": reasons,
    }


def row(name: str, result: dict[str, Any], markdown: bool) -> str:
    cells = [f"{result['median']:.4g} {result['unit']}"]
    for peer in PEERS:
        if peer in result["ratios"]:
            cells.append(f"{median(result['rounds'][peer]):.4g}, {result['ratios'][peer]:.2f} x")
        else:
            cells.append("-")
    if markdown:
        return f"| {name} | {' | '.join(cells)} |"
    return f"{name:<44} {cells[0]:>20}   " + "   ".join(f"{c:>18}" for c in cells[1:])


def count(kind: type[int] | type[float]) -> Callable[[str], Any]:
    def parse(word: str) -> Any:
        value = kind(word)
        if not 0 < value < 10000:
            raise argparse.ArgumentTypeError(f"{word} is not above 0 and below 10000")
        return value

    return parse


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("suites", nargs="*", metavar="|".join(SUITES), help="what to compare (all)")
    parser.add_argument("--threads", type=count(int), default=gb.Backend("CPU").n_threads)
    parser.add_argument("--only", nargs="+", help="work with one of these in its name")
    parser.add_argument("--rounds", type=count(int), default=5)
    parser.add_argument("--seconds", type=count(float), default=0.2, help="of each side in a round")
    parser.add_argument("--pause", type=float, default=0.1, help="seconds before each side")
    parser.add_argument("--cpu", action="store_true", help="one thread, processor time")
    parser.add_argument("--quick", action="store_true", help="tiny sizes: to see that it works")
    parser.add_argument("--markdown", action="store_true", help="print a table for a document")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    for name in args.suites:
        if name not in SUITES:
            parser.error(f"{name!r} is none of {', '.join(SUITES)}")

    clock = PROCESS if args.cpu else WALL
    args.threads = 1 if args.cpu else args.threads
    s = Sides(args.threads)
    load = os.getloadavg()[0] if hasattr(os, "getloadavg") else -1.0
    versions = {name: getattr(module, "__version__", "?") for name, module in s.modules.items()}
    print(
        f"{'processor time, ' if args.cpu else ''}{args.threads} threads, level {s.backend.level}, load average"
        f" {load:.2f}; beside " + ", ".join(f"{n} {v}" for n, v in versions.items())
    )
    for name, why in s.absent.items():
        print(f"absent: {name} ({why})")
    results: dict[str, Any] = {
        "benchmark": "peers",
        "threads": args.threads,
        "processor_time": args.cpu,
        "load": load,
        "versions": versions,
        "absent": s.absent,
        "cases": {},
    }
    if args.markdown:
        print(
            f"\n| {args.threads} threads | ours | "
            + " | ".join(f"{p}, ratio" for p in PEERS)
            + " |\n|"
            + " --- |" * (2 + len(PEERS))
        )
    left_out = []
    for name in args.suites or SUITES:
        for work in SUITES[name](s, args.quick):
            if args.only and not any(o in work.name for o in args.only):
                continue
            result = results["cases"][work.name] = measure(s, work, args.rounds, args.seconds, args.pause, clock)
            print(row(work.name, result, args.markdown), flush=True)
            left_out += [f"{work.name}: {peer} left out: {why}" for peer, why in result["left_out"].items()]
    print("\n".join(left_out))
    if args.json:
        args.json.parent.mkdir(parents=True, exist_ok=True)
        args.json.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
