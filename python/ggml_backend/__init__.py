"""ggml's backend layer: tensors, buffers, allocators, backends and the scheduler.

    import numpy as np, ggml_backend as gb

    cpu = gb.Backend("CPU")
    with gb.Context() as ctx:
        w = ctx.tensor((64, 128), gb.float32, name="w")
        x = ctx.tensor((16, 128), gb.float32, name="x")
        y = gb.ops.relu(x @ w.T)
        graph = ctx.graph(y)
        sched = gb.Scheduler([cpu])
        sched.allocate(graph)
        w.set(np.random.rand(64, 128).astype(np.float32))
        x.set(np.random.rand(16, 128).astype(np.float32))
        sched.compute(graph)
        print(y.numpy())

Shapes are in NumPy order everywhere; ``Tensor.ne`` and ``Tensor.nb`` give ggml's. You need not close anything; if you
do, any order works. Objects may be shared between threads: calls that need the same scheduler or backend wait for each
other.

Public names are in ``__all__`` here and in the submodules that it lists. :mod:`ggml_backend.ops` has the operations,
:mod:`ggml_backend.dtypes` all data types, and :mod:`ggml_backend.errors` the exceptions. Other names may change.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ._base import again as _again  # isort: skip  # first: it may bring back the modules of an earlier import

from ._base import signals as _signals  # noqa: F401  # isort: skip  # Ctrl-C may come while NumPy loads

from . import backend, dtypes, errors, gguf, ops, sched, tensor
from ._base.errors.messages import no_name as _no_name
from ._base.renamed import load as _load
from ._base.renamed import warn_of as _warn_of
from ._ffi import ffi as _ffi_object
from ._ffi import lib as _lib
from .backend import Backend, Buffer, backends
from .dtypes import bfloat16, float16, float32, int32
from .errors import GgmlError
from .sched import Scheduler
from .tensor import Context, Graph, Tensor, dequantize, from_dlpack, quantize, set_log

if TYPE_CHECKING:
    from . import cluster, devices, models, optim, planning, profile, testing
    from .cli.info import show_config
    from .program import load_onnx, load_program
    from .tensor._grad import grad

__version__: str = _ffi_object.string(_lib.gbpy_version()).decode()

__all__ = [
    "Backend", "Buffer", "Context", "GgmlError", "Graph", "Scheduler", "Tensor", "__version__", "backend", "backends",
    "bfloat16", "cluster", "dequantize", "devices", "dtypes", "errors", "float16", "float32", "from_dlpack", "gguf",
    "grad", "int32", "load_onnx", "load_program", "models", "ops", "optim", "planning", "profile", "quantize", "sched",
    "set_log", "show_config", "tensor", "testing",
]  # fmt: skip

if not TYPE_CHECKING:
    _LATER = {
        "": ("cli", "cluster", "devices", "models", "optim", "planning", "profile", "program", "testing"),
        "cli.info": ("show_config",),
        "program": ("load_onnx", "load_program"),
        "tensor._grad": ("grad",),
    }
    """Names by the module that is imported when one of them is used. "" is the package: its submodules."""

    _MOVED = {
        "cluster": ("Cluster",),
        "devices": ("Call", "Device", "Node", "op", "register_device"),
        "planning": ("MemoryPlan", "plan_memory"),
        "profile": (
            "MachineLimits", "Profile", "ProfileChange", "ProfileComparison", "ProfileRow", "ProfileStep",
            "ProfileTable",
        ),
    }  # fmt: skip
    """Names that stood here, by submodules that load later. Names of loaded submodules stood here as well. All can be
    used here until the next release."""

    _RENAMED = {"SplitInfo": "sched.Split", "permute": "ops.permute_ggml"}

    def _moved():
        """The paths of names that stood here."""
        kept = {module.__name__.rpartition(".")[2]: module.__all__ for module in (ops, dtypes, errors, backend, sched)}
        places = {**_MOVED, **kept, "tensor": tensor.__all__}
        return {
            name: f"{module}.{name}" for module, names in places.items() for name in names if name not in __all__
        } | _RENAMED

    def __getattr__(name):
        found = _load(__name__, _LATER, name)
        if found is not None:
            return found
        moved = _moved()
        if name not in moved:
            _no_name("ggml_backend", name, [*__all__, *moved], moved)
        _warn_of(f"gb.{name}", f"gb.{moved[name]}")
        module, _, name = moved[name].partition(".")
        return getattr(_load(__name__, {"": (module,)}, module), name)

    def __dir__():
        return sorted({*__all__, *(name for name in globals() if name.startswith("__"))})


_again.keep()
