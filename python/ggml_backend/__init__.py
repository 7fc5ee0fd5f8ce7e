"""ggml's backend layer: tensors, buffers, allocators, backends and the scheduler.

    import numpy as np, ggml_backend as gb

    cpu = gb.Backend("CPU")
    with gb.Context() as ctx:
        w = ctx.tensor((64, 128), gb.float32, name="w")
        x = ctx.tensor((16, 128), gb.float32, name="x")
        y = gb.relu(x @ w.T)
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

What is public is in ``__all__`` here, in :mod:`ggml_backend.gguf` and in :mod:`ggml_backend.testing`; other modules are
where it is kept, and may change. Some operations are called like functions of Python: ``gb.abs``, ``gb.set`` and
``gb.sum`` are public, though ``from ggml_backend import *`` leaves Python's as they are.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from ._base import again as _again  # isort: skip  # first: it may bring back the modules of an earlier import

from . import dtypes, gguf, ops
from ._base.errors import (
    AllocationError,
    DeviceError,
    DeviceLostError,
    FileError,
    GgmlError,
    InvalidArgumentError,
    PerformanceWarning,
    StateError,
    UnsupportedError,
)
from ._base.errors.messages import no_name as _no_name
from ._base.renamed import warn_of as _warn_of
from ._ffi import ffi as _ffi_object
from ._ffi import lib as _lib
from .backend.backend import (
    Backend,
    BackendList,
    LoadRecord,
    backends,
    cpu_levels,
    get_include,
    load_backend,
    load_report,
)
from .backend.buffer import Buffer, BufferType, cpu_buffer_type
from .backend.event import Event
from .dtypes import *  # noqa: F403
from .ops._attention import *  # noqa: F403
from .ops._binary import *  # noqa: F403
from .ops._conv import *  # noqa: F403
from .ops._copies import *  # noqa: F403
from .ops._custom import custom, map_custom
from .ops._fill import *  # noqa: F403
from .ops._gates import *  # noqa: F403
from .ops._products import *  # noqa: F403
from .ops._recurrent import *  # noqa: F403
from .ops._reduce import *  # noqa: F403
from .ops._resample import *  # noqa: F403
from .ops._rope import *  # noqa: F403
from .ops._select import *  # noqa: F403
from .ops._soft_max import *  # noqa: F403
from .ops._unary import *  # noqa: F403
from .sched.alloc import GraphAllocator, TensorAllocator
from .sched.pending import Pending
from .sched.plan import ArenaPlan, CopyInfo, Plan, PlanBlock, Split
from .sched.scheduler import Memory, Scheduler
from .tensor._blocks import Blocks
from .tensor._callbacks import set_abort_callback, set_log
from .tensor._quantize import dequantize, quantize
from .tensor.context import Context, from_dlpack
from .tensor.graph import Comparison, Graph
from .tensor.tensor import Tensor

if TYPE_CHECKING:
    from . import cluster, devices, testing
    from .cli.info import show_config
    from .cluster import Cluster
    from .devices.device import Call, Device, Node, op, register_device
    from .planning import MemoryPlan, plan_memory
    from .profile import (
        MachineLimits,
        Profile,
        ProfileChange,
        ProfileComparison,
        ProfileRow,
        ProfileStep,
        ProfileTable,
    )
    from .sched._calibrate import calibrate
    from .sched._costs import CopyCost, Costs, DeviceCosts, OpCost, Prediction
    from .sched.stats import SchedulerStats, SplitTime, Traffic
    from .sched.trace import Trace, TraceEvent

_FOLDERS = ("cli", "cluster", "devices", "planning", "profile", "testing")
"""What stands around the core. Each is imported when its name is used."""

_LATER = {
    "cli.info": ("show_config",),
    "cluster": ("Cluster",),
    "devices.device": ("Call", "Device", "Node", "op", "register_device"),
    "planning": ("MemoryPlan", "plan_memory"),
    "profile": (
        "MachineLimits",
        "Profile",
        "ProfileChange",
        "ProfileComparison",
        "ProfileRow",
        "ProfileStep",
        "ProfileTable",
    ),
    "sched._calibrate": ("calibrate",),
    "sched._costs": ("CopyCost", "Costs", "DeviceCosts", "OpCost", "Prediction"),
    "sched.stats": ("SchedulerStats", "SplitTime", "Traffic"),
    "sched.trace": ("Trace", "TraceEvent"),
}
"""Names by the module that is imported when one of them is used."""

_RENAMED = {"SplitInfo": "Split", "permute": "permute_ggml"}
"""Old names, which work for one release."""

_MODULE_OF = {name: module for module, names in _LATER.items() for name in names}

__version__: str = _ffi_object.string(_lib.gbpy_version()).decode()

# What checkers understand: a list, and the lists of modules. mypy takes no list that is joined of others, so above
# operations come from the files of their families.
__all__ = [
    "AllocationError", "ArenaPlan", "Backend", "BackendList", "Blocks", "Buffer", "BufferType", "Call", "Cluster",
    "Comparison", "Context", "CopyCost", "CopyInfo", "Costs", "Device", "DeviceCosts", "DeviceError",
    "DeviceLostError", "Event", "FileError", "GgmlError", "Graph", "GraphAllocator", "InvalidArgumentError",
    "LoadRecord", "MachineLimits", "Memory", "MemoryPlan", "Node", "OpCost", "Pending", "PerformanceWarning", "Plan",
    "PlanBlock", "Prediction", "Profile", "ProfileChange", "ProfileComparison", "ProfileRow", "ProfileStep",
    "ProfileTable", "Scheduler", "SchedulerStats", "Split", "SplitTime", "StateError", "Tensor",
    "TensorAllocator", "Trace", "TraceEvent", "Traffic", "UnsupportedError", "__version__", "backends", "calibrate",
    "cluster", "cpu_buffer_type", "cpu_levels", "custom", "dequantize", "devices", "from_dlpack", "get_include",
    "gguf", "load_backend", "load_report", "map_custom", "op", "plan_memory", "quantize", "register_device",
    "set_abort_callback", "set_log", "show_config", "testing",
]  # fmt: skip
__all__ += dtypes.__all__
__all__ += ops.__all__

if not TYPE_CHECKING:  # for checkers there is no such thing
    for _name in ("abs", "round", "set", "sum"):  # of Python, which `import *` would hide
        __all__.remove(_name)

    def __getattr__(name):
        if name in _FOLDERS:
            return import_module(f".{name}", __name__)
        if name in _MODULE_OF:
            value = globals()[name] = getattr(import_module(f".{_MODULE_OF[name]}", __name__), name)
            return value
        if name in _RENAMED:
            _warn_of(name, _RENAMED[name])
            return globals()[_RENAMED[name]]
        return _no_name("ggml_backend", name, __dir__())

    def __dir__():
        return sorted({*globals(), *_FOLDERS, *_MODULE_OF})


_again.keep()
