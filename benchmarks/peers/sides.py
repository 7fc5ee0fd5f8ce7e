"""The installed libraries, each able to build small graphs, and the cases that they compute."""

from __future__ import annotations

import ctypes
import importlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

import ggml_backend as gb

Run = Callable[[], Any]
Input = tuple[tuple[int, ...], gb.dtypes.DType, np.ndarray]
PEERS = ("numpy", "torch", "compiled", "onnxruntime", "llama_cpp")
COMPILED = "compiled"  # PyTorch's compiler, not a separate library
MICROSOFT = {"MatMulNBits", "QuickGelu", "SkipLayerNormalization", "Attention", "BiasGelu"}


def openblas_core() -> str:
    """The kernels that NumPy's OpenBLAS has chosen; "unknown" where it is another library."""
    try:
        path = next(line.split()[-1] for line in Path("/proc/self/maps").read_text().splitlines() if "openblas" in line)
        name = ctypes.CDLL(path).scipy_openblas_get_corename64_
    except (OSError, StopIteration, AttributeError):
        return "unknown"
    name.restype = ctypes.c_char_p
    return str(name().decode())


@dataclass
class Scope:
    """The cases that a suite yields."""

    quick: bool  # tiny sizes
    sizes: Sequence[int]  # bytes that an operator reads and writes


@dataclass
class Work:
    """A case. ``peers`` prepares it for each library, and is called only if the library is installed."""

    name: str
    unit: str  # GB/s, GFLOP/s, sentences/s
    amount: float
    ours: Run
    peers: dict[str, Callable[[], Run]]
    tolerance: float  # of the difference divided by the largest value
    keep: list[Any] = field(default_factory=list)


class Sides:
    """The installed libraries, each able to build small graphs."""

    def __init__(self, threads: int, *, compiled: bool = False) -> None:
        """compiled: also measure torch.compile. It takes seconds for each case."""
        self.threads = threads
        self.backend = gb.Backend("CPU", n_threads=threads)
        self.modules: dict[str, Any] = {}
        self.absent: dict[str, str] = {}
        for name in PEERS:
            if name == COMPILED:
                continue
            try:
                self.modules[name] = importlib.import_module(name)
                if name == "onnxruntime":
                    importlib.import_module("onnx")
            except ImportError as error:
                self.modules.pop(name, None)
                self.absent[name] = str(error)
        if "torch" in self.modules:
            self.modules["torch"].set_num_threads(threads)
            if compiled:
                self.modules[COMPILED] = self.modules["torch"].compile

    def graph(self, build: Callable[..., gb.Tensor], *inputs: Input) -> Run:
        """A graph of this package. Inputs are (shape, dtype, values). `build` returns one result or several."""
        ctx, allocator = gb.Context(), gb.sched.GraphAllocator(self.backend)
        sources = [ctx.tensor(shape, dtype, name=f"x{i}") for i, (shape, dtype, _) in enumerate(inputs)]
        buffer = ctx.allocate(self.backend)
        made = build(*sources)
        results = made if isinstance(made, list) else [made]
        graph = ctx.graph(*results)
        allocator.allocate(graph)  # results reuse memory, as in programs
        for tensor, (_, _, values) in zip(sources, inputs, strict=True):
            tensor.set(values)

        graph.compute(self.backend)
        view = results[-1].numpy()  # of memory that each run writes

        def run(keep: Any = (ctx, buffer, allocator)) -> Any:
            graph.compute(self.backend)
            return view

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
            kind = next(a.i for a in nodes[-1].attribute if a.name == "to")
            result = [helper.make_tensor_value_info(out, kind, None)]
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

        domain = "com.microsoft" if op in MICROSOFT else ""
        return helper.make_node(op, inputs, [attributes.pop("to_name", "y")], domain=domain, **attributes)
