"""``ARRAY``: a device that computes with an array library."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from importlib.util import find_spec
from typing import Any
from weakref import WeakValueDictionary

from ..._base.errors import InvalidArgumentError, UnsupportedError
from ..._ffi import lib
from .._program import by_slot, overwritten_of, program_of
from ..device import Call, Node, register_device
from . import (
    attention,
    copies,
    elements,
    matrices,
    missing,
    products,
    recurrent,
    reductions,
    resample,
    rotation,
    rows,
    windows,
)
from .family import Family, then
from .fusion import Fusion
from .layout import axes, is_aligned, ne
from .library import Library, Step

__all__ = ["ArrayDevice"]

_UNREAD = frozenset(("cont", "dup", "repeat"))  # operators that use only the shape of a second source


@register_device("ARRAY", replace=True)
class ArrayDevice(Family):
    """Computes with NumPy, PyTorch or CuPy, through the package ``array-api-compat``.

    docs/howto/array-device.md describes its operators and options.
    """

    # The operators. Each function takes a node and its arrays, and returns a step that computes it.
    _binary = elements.binary
    _compare = elements.compare
    _where = elements.where
    _unary = elements.unary
    _with_numbers = elements.with_numbers
    _glu = elements.glu
    _opt_step_adamw = elements.opt_step_adamw
    _opt_step_sgd = elements.opt_step_sgd
    _silu_back = elements.silu_back
    _add1 = elements.add1
    _fill = elements.fill
    _arange = elements.arange
    _mul_mat = products.mul_mat
    _mul_mat_id = products.mul_mat_id
    _mul_mat_experts = products.mul_mat_experts
    _out_prod = products.out_prod
    _add_id = rows.add_id
    _norm = rows.norm
    _l2_norm = rows.l2_norm
    _cumsum = rows.cumsum
    _order = rows.order
    _soft_max = attention.soft_max
    _flash_attn_ext = attention.flash_attn_ext
    _diag_mask = rows.diag_mask
    _rope = rotation.rope
    _tri = matrices.tri
    _solve_tri = matrices.solve_tri
    _diag = matrices.diag
    _timestep_embedding = matrices.timestep_embedding
    _ssm_conv = recurrent.ssm_conv
    _ssm_scan = recurrent.ssm_scan
    _gated_delta_net = recurrent.gated_delta_net
    _rwkv_wkv6 = recurrent.rwkv_wkv6
    _rwkv_wkv7 = recurrent.rwkv_wkv7
    _gated_linear_attn = recurrent.gated_linear_attn
    _upscale = resample.upscale
    _interpolate = resample.interpolate
    _pad = resample.pad
    _pad_reflect_1d = resample.pad_reflect_1d
    _roll = resample.roll
    _pool = windows.pool
    _conv_2d = windows.conv_2d
    _conv_3d = windows.conv_3d
    _im2col = windows.im2col
    _im2col_3d = windows.im2col_3d
    _im2col_back = windows.im2col_back
    _col2im_1d = windows.col2im_1d
    _conv_transpose_1d = windows.conv_transpose_1d
    _conv_transpose_2d = windows.conv_transpose_2d
    _get_rows = rows.get_rows
    _set_rows = rows.set_rows
    _copy_elements = copies.copy_elements
    _repeat = copies.repeat
    _concat = copies.concat
    _sum_rows = reductions.sum_rows
    _sum_all = reductions.sum_all
    _argmax = reductions.argmax
    _group_norm = reductions.group_norm
    _soft_max_back = reductions.soft_max_back
    _rms_norm_back = reductions.rms_norm_back
    _repeat_back = reductions.repeat_back

    def __init__(
        self,
        library: str = "numpy",
        device: str | None = None,
        weights: str = "packed",
        compile: bool = False,
        graphs: bool = False,
        memory: str | None = None,
    ) -> None:
        if weights not in ("packed", "widened"):
            raise InvalidArgumentError(f"ARRAY: weights is 'packed' or 'widened', not {weights!r}")
        if memory not in (None, "host", "own"):
            raise InvalidArgumentError(f"ARRAY: memory is 'host' or 'own', not {memory!r}")
        reason = self.missing()
        if reason is not None:
            raise UnsupportedError(f"ARRAY: {reason}")
        self.library: Library = opened(library, device, memory, compile, graphs)
        self.widened: bool = weights == "widened"
        self.versions: Mapping[int, Callable[[], int]] = {}
        self.before: list[Step] = []
        self._kept = WeakValueDictionary()
        self.memory: str = "host" if self.library.host else "own"
        self.name: str = f"{self.name}({self.library.name}:{self.library.device})"
        if self.library.has_queue:
            vars(self)["submit"] = self.library.submit
        if self.library.has_events:
            vars(self)["event"] = self.library.event

    @classmethod
    def missing(cls) -> str | None:
        return missing()

    # -------------------------------------------------------------------------------------------------------- operators

    def supports(self, node: Node) -> bool | str:
        for tensor in (node, *node.sources):
            if not is_aligned(tensor):
                return f"strides {tensor.strides} of {tensor} are not whole elements"
        return super().supports(node)

    def compile(self, calls: Sequence[Call]) -> Callable[[], object]:
        library = self.library
        with library.running():
            ours = [self._adopted(call) for call in calls]
            stepwise = any(self._is_stepwise(call.node.op) for call in ours)
            whole = None if stepwise else library.compiled(ours, self.step)
            if whole is not None:
                return library.program(whole, [])
            pairs = [(a, v) for call in ours for a, v in zip(call.sources, call.weights, strict=True) if v is not None]
            self.versions, self.before = {id(a): v for a, v in pairs}, []
            steps = (
                Fusion(library, ours).steps(self.step)
                if library.can_fuse and lib.ggml_graph_get_fusion()
                else [(self.step(c), c) for c in ours]
            )
            before, self.versions, self.before = self.before, {}, []
        return library.program(program_of(self.name, steps, None), before)

    def _is_stepwise(self, name: str) -> bool:
        """True if the method of an operator is marked with ``stepwise``."""
        return getattr(getattr(self, self._table[name].method), "is_stepwise", False)

    def _adopted(self, call: Call) -> Call:
        adopt, node = self.library.adopt, call.node
        sources = tuple(adopt(a, n.dtype) for a, n in zip(call.sources, node.sources, strict=True))
        out, most = adopt(call.out, node.dtype), max((len(a.shape) for a in sources), default=0)
        if most > len(out.shape) and any(ne(s.shape) == ne(node.shape) for s in node.sources):
            out = axes(self.library, out, most)  # a gradient has the axes of its parameter, not of its sources
        ours = Call(node, out, sources, call.shared)
        ours.may_leave_out, ours.of, ours.weights = call.may_leave_out, call.of, call.weights
        return ours

    def step(self, call: Call) -> Step:
        """Computes a result that overwrites a source elsewhere first, unless the operator reads each element
        before it writes the same one."""
        node, out, entry = call.node, call.out, self._table[call.node.op]
        method, sources = getattr(self, entry.method), by_slot(node, call.sources)
        if node.op == "set_rows":  # keeps a part of the result, so nothing is computed elsewhere
            return method(node, out, *sources)  # type: ignore[no-any-return]
        shared = [call.sources[k] for k in overwritten_of(call) if k == 0 or node.op not in _UNREAD]
        place = self.library.place
        if not shared or (entry.in_place and all(place(a) == place(out) for a in shared)):
            return method(node, out, *sources)  # type: ignore[no-any-return]
        elsewhere = self.library.empty(out.shape, node.dtype)
        return then(method(node, elsewhere, *sources), self.library.assign(out, elsewhere))

    # ------------------------------------------------------------------------------------------------------- memory

    def allocate(self, nbytes: int) -> Any:
        return super().allocate(nbytes) if self.library.host else self.library.allocate(nbytes)

    def array(self, memory: Any, offset: int, node: Node, writable: bool) -> Any:
        if self.library.host:
            return super().array(memory, offset, node, writable)
        return self.library.view(memory, offset, node, writable)

    def write(self, memory: Any, offset: int, data: memoryview) -> None:
        self.library.write(memory, offset, data)

    def read(self, memory: Any, offset: int, data: memoryview) -> None:
        self.library.read(memory, offset, data)

    def fill(self, memory: Any, value: int) -> None:
        self.library.fill(memory, value)

    def copy(self, to: Any, to_offset: int, source: Any, offset: int, nbytes: int) -> bool:
        return self.library.copy(to, to_offset, source, offset, nbytes)

    def store(self, out: Any, result: Any) -> None:
        self.library.assign(out, result)()

    def copy_of(self, array: Any) -> Any:
        return self.library.copy_of(array)

    def synchronize(self) -> None:
        self.library.synchronize()


def opened(library: str, device: str | None, memory: str | None, compile: bool, graphs: bool) -> Library:
    """Imports an array library by its name."""
    name = library.lower() if isinstance(library, str) else library
    if name != "torch" and (compile or graphs):
        raise InvalidArgumentError(f"ARRAY: compile and graphs are options of library='torch', not of {library!r}")
    if name == "numpy":
        import array_api_compat.numpy as xp

        from .library import NumPy

        if device not in (None, "cpu"):
            raise InvalidArgumentError(f"ARRAY: NumPy computes on the device 'cpu', not {device!r}")
        return NumPy(xp, memory != "own")
    if name == "torch":
        return _torch(device, memory, compile, graphs)
    if name == "cupy":
        return _cupy(device, memory)
    raise InvalidArgumentError(f"ARRAY: library is 'numpy', 'torch' or 'cupy', not {library!r}")


def _needs(package: str, extra: str) -> None:
    if find_spec(package) is None:
        raise UnsupportedError(f"ARRAY: library={package!r} is not installed: pip install ggml_backend[{extra}]")


def _torch(device: str | None, memory: str | None, compile: bool, graphs: bool) -> Library:
    _needs("torch", "torch")
    from .library_torch import Torch

    return Torch(device, memory, compile, graphs)


def _cupy(device: str | None, memory: str | None) -> Library:
    _needs("cupy", "cupy")
    from .library_cupy import CuPy

    return CuPy(device, memory)
