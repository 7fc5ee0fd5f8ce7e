"""Backends, and the registry of their names."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from .._base.errors import (
    InvalidArgumentError,
    StateError,
    UnsupportedError,
    check,
    clear_error,
    expect_int,
    expect_path,
    non_null,
    raise_last,
)
from .._base.errors.faults import message_of
from .._base.errors.messages import close_matches, kind_of
from .._base.files import built_file
from .._base.handles import Core, Handle, fail, new_handle, use
from .._base.renamed import Renamed
from .._base.signals import watch
from .._base.text import as_name
from .._ffi import ffi, lib
from . import _registry as registry
from ._state import State, object_of
from .buffer import Buffer, BufferType, Usage, expect_tensor, text

if TYPE_CHECKING:
    from pathlib import Path

    from ..tensor.tensor import Tensor

_MAX_INT = 2**31 - 1

__all__ = [
    "Backend",
    "BackendList",
    "LoadRecord",
    "backends",
    "cpu_levels",
    "get_include",
    "load_backend",
    "load_report",
]


class BackendList(list[str]):
    """The result of :func:`backends`: the names, and for missing kinds of backends the reason."""

    missing: dict[str, str]  #: ``{"CUDA": "no device: ..."}``; empty when nothing is missing

    if not TYPE_CHECKING:  # hidden from type checkers

        def __getitem__(self, index):
            if isinstance(index, str):
                raise TypeError(f"backends() is a list of names; gb.Backend({index!r}) makes a backend")
            return super().__getitem__(index)


def _registered() -> list[str]:
    return [text(lib.ggml_backend_reg_get_name(i)) for i in range(lib.ggml_backend_reg_get_count())]


def backends() -> BackendList:
    """The names that :class:`Backend` accepts, in registry order. ``"CPU"`` is always the first.

    The first call looks for NVIDIA devices, if the package was built with CUDA. ``.missing`` of the
    result gives the reason if none is available::

        >>> gb.backends().missing
        {'CUDA': 'the package was built without it (pip install . -C cmake.define.GGML_CUDA=ON)'}
    """
    missing = _load_cuda()
    reasons = {"CUDA": missing} if missing else {}
    reasons.update(registry.missing())
    names = BackendList(n for n in _registered() if n not in reasons)
    names.missing = reasons
    return names


_cuda_outcome: str | None = None  # result of the first attempt; "": loaded, None: not tried


def _load_cuda() -> str:
    """Loads the installed CUDA module once. Returns the reason for a failure, or ``""``.

    It takes no lock, because a signal handler that calls it meanwhile would deadlock. Threads that
    call it at the same time load the module again, which has no effect. The first outcome counts.
    """
    global _cuda_outcome
    if _cuda_outcome is None:
        given = os.environ.get("GGML_CUDA_MODULE")
        from pathlib import Path

        path = Path(given).absolute() if given else built_file("libggml_backend_cuda.so")
        if not _exists(path):
            built = "the package was built without it (pip install . -C cmake.define.GGML_CUDA=ON)"
            outcome = f"GGML_CUDA_MODULE: there is no file {str(path)!r}" if given else built
        elif lib.ggml_backend_load(os.fsencode(path)) == lib.GGML_STATUS_SUCCESS:
            outcome = ""
        else:
            outcome = message_of(lib.ggml_last_error()).removeprefix("CUDA: ")
            lib.ggml_clear_error()
        if _cuda_outcome is None:
            _cuda_outcome = outcome
    return _cuda_outcome


def _exists(path: Path) -> bool:
    try:
        return path.exists()
    except (OSError, ValueError):  # a path that the system rejects
        return False


@dataclass(frozen=True)
class LoadRecord:
    """One attempt to load a backend module, as listed by :func:`load_report`."""

    path: str
    name: str  #: name that the module reports; empty if the file is no module
    ok: bool
    message: str  #: why it failed; empty on success
    backends: int  #: number of registry entries that it added


def load_backend(path: str | os.PathLike[str]) -> list[str]:
    """Loads a backend module from a shared library. Returns the names that it registered, for :class:`Backend`.

    The path is explicit. No directory is searched. The version of the module is checked in the file
    before any of its code runs. Loading a module again has no effect and returns ``[]``. A module stays
    loaded until the process ends. To write one, see ``examples/backend`` in the source tree and
    :func:`get_include`.

    FileNotFoundError: the file does not exist. InvalidArgumentError: it is no backend module.
    UnsupportedError: it was built for another version, or finds no device.
    """
    given: Any = path
    expect_path(given, "load_backend: path")
    from pathlib import Path

    full = Path(os.fsdecode(given)).absolute()
    if not _exists(full):
        raise FileNotFoundError(f"load_backend: there is no file {str(full)!r}")
    before = len(_registered())
    check(lib.ggml_backend_load(os.fsencode(full)), "load_backend")
    return _registered()[before:]


def load_report() -> list[LoadRecord]:
    """All attempts of this process to load a module, in order, without repetitions."""
    records = [lib.ggml_backend_load_get(i) for i in range(lib.ggml_backend_load_count())]
    success = lib.GGML_STATUS_SUCCESS
    return [
        LoadRecord(
            os.fsdecode(ffi.string(r.path)), text(r.name), r.status == success, message_of(r.message), r.n_backends
        )
        for r in records
    ]


def get_include() -> str:
    """The directory of the C headers and of ``ggml-backend-module.c``, for compiling a backend module.

    In a shell, with ``INCLUDE`` for the directory::

        cc -shared -fPIC -fvisibility=hidden -DGGML_BACKEND_MODULE_BUILD -I$INCLUDE mine.c \\
            $INCLUDE/ggml-backend-module.c -o mine.so
    """
    return str(built_file("include"))


def cpu_levels() -> dict[str, bool]:
    """Instruction-set levels of the CPU kernels in this build, lowest first. True if this processor has them."""
    return {
        text(lib.ggml_cpu_level_name(i)): bool(lib.ggml_cpu_level_usable(i)) for i in range(lib.ggml_cpu_level_count())
    }


class BackendCore(Core):
    """Owns a ``ggml_backend``. ``stop`` lets any thread end a running computation (CPU only)."""

    __slots__ = ("abort", "asked", "is_cpu", "name", "stop")
    is_cpu: bool
    name: str
    stop: Any

    def __init__(self, spec: str) -> None:
        watch()
        self.stop = stop = ffi.new("struct gbpy_stop *")
        h = new_handle()
        status = lib.gbpy_open_backend(h, as_name(spec, "Backend"), stop)
        if status:
            fail(status, f"Backend({spec!r})")
        super().__init__(h, "struct ggml_backend *")
        self.keep(stop)
        self.name = text(lib.ggml_backend_name(self.ptr))
        self.is_cpu = bool(lib.ggml_backend_is_cpu(self.ptr))
        self.asked: Any = None  # the handle of abort callbacks in C; made once
        self.abort: Any = None  # the object behind that handle, if an abort callback is set


def _parameter(key: str, value: object) -> str:
    if isinstance(value, str):
        shown = value
    elif isinstance(value, bool):
        shown = str(int(value))
    elif isinstance(value, (list, tuple, set, frozenset)) and all(isinstance(v, str) for v in value):
        shown = "+".join(sorted(value) if isinstance(value, (set, frozenset)) else value)
    elif hasattr(value, "__index__"):
        shown = str(expect_int(value, f"Backend: {key}"))
    else:
        hint = (
            "; a size is '1.5M' or an int of bytes, a time '2.5ms'" if isinstance(value, (float, np.floating)) else ""
        )
        raise TypeError(f"Backend: {key} must be a str, an int or a list of names, not {kind_of(value)}{hint}")
    if "," in shown or "," in key or "=" in key:
        raise InvalidArgumentError(f"Backend: parameter {key}={shown!r} contains a separator")
    return f"{key}={shown}"


def _duration(value: float | str | None) -> object:
    """Seconds in the notation of C. Other types are left to :func:`_parameter`."""
    return f"{value:.9f}s" if isinstance(value, (int, float)) and not isinstance(value, bool) else value


_MORE = (
    "; gb.devices.register_device registers a Python class (on the command line: --import MODULE),"
    " gb.backend.load_backend loads a shared library"
)


def _refuse_unknown(params: dict[str, object]) -> None:
    """Raises for an unknown keyword of the CPU. Its parameters have other names on the command line."""
    for key in params:
        if key not in ("threads", "level"):
            near = close_matches(key, ["n_threads", "level"])
            raise InvalidArgumentError(
                f"Backend: the CPU has no parameter {key!r}{near or '; it has n_threads=<count> and level=<name>'}"
            )


class Backend(Handle):
    """A device that computes.

    Write ``Backend("CPU", n_threads=2)``, ``Backend("SIM:mem=64M,ops=mul_mat+add")``, or the same with
    keywords: ``Backend("SIM", mem="64M", ops=["mul_mat", "add"])``. :func:`backends` lists the names.
    Case does not matter.

    name: registry name, optionally with ``:parameters``
    n_threads: CPU only. Default: min(physical cores, affinity mask, container quota)
    level: CPU only. Instruction-set level of the kernels (see :func:`cpu_levels`)

    A backend serves one thread at a time. Calls from several threads wait for each other. A closed
    backend is freed when the last scheduler and buffer that need it are gone.
    """

    __slots__ = ("__weakref__", "_core", "_name")

    def __init__(
        self, name: str, /, *, n_threads: int | None = None, level: str | None = None, **params: object
    ) -> None:
        self._core: BackendCore | None = None
        as_name(name, "Backend")
        spec = name
        kind = registry.kind_called(name.partition(":")[0])
        if name.partition(":")[0].upper() == "CPU":
            _refuse_unknown(params)
        if params and kind is None:
            joined = ",".join(_parameter(k, v) for k, v in params.items())
            spec = f"{name},{joined}" if ":" in name else f"{name}:{joined}"
        base = name.partition(":")[0]
        if base.lower() not in (n.lower() for n in _registered()):
            names = backends()  # loads the CUDA module if needed
            if base.lower() not in (n.lower() for n in names):
                meant = re.fullmatch(r"(CUDA|GPU|NVIDIA)[:\d]*", base.upper())
                why = "".join([f" ({kind}: {reason})" for kind, reason in names.missing.items() if meant])
                guess = "" if meant else close_matches(base, names) or _MORE
                raise InvalidArgumentError(
                    f"Backend: there is no backend {base!r}; there are {', '.join(names)}{why}{guess}"
                )
        if kind is None:
            self._core = core = BackendCore(spec)
        else:
            reason = kind.missing()
            if reason:
                raise UnsupportedError(f"Backend: {kind.name} cannot be used here: {reason}")
            kind.load()
            before, registry.given.keywords = registry.given.keywords, params
            try:
                self._core = core = BackendCore(spec)
            finally:
                registry.given.keywords = before
        self._name = core.name
        if core.is_cpu:
            if n_threads is None and ":" not in spec:
                n_threads = lib.ggml_cpu_default_n_threads()
            if n_threads is not None:
                self.n_threads = n_threads
            if level is not None:
                wanted = as_name(level, "Backend", "level")
                usable = [repr(known) for known, can in cpu_levels().items() if can]
                if repr(level) not in usable:
                    raise InvalidArgumentError(f"Backend: level must be one of {', '.join(usable)}, not {level!r}")
                check(lib.ggml_backend_cpu_set_level(core.ptr, wanted), "Backend")
        elif n_threads is not None or level is not None:
            raise InvalidArgumentError(f"Backend: n_threads and level are for the CPU, not for {self._name}")

    @classmethod
    def simulated(
        cls,
        *,
        name: str | None = None,
        mem: int | str | None = None,
        max_nbytes: int | str | None = None,
        align: int | None = None,
        ops: Sequence[str] | None = None,
        noops: Sequence[str] | None = None,
        n_threads: int | None = None,
        delay: float | str | None = None,
        op_delay: float | str | None = None,
        copy_delay: float | str | None = None,
        copy_bw: int | str | None = None,
        fail_op: str | None = None,
        fail_alloc_after: int | None = None,
    ) -> Backend:
        """``Backend("SIM", ...)``, a simulated device, with options that editors and type checkers know.

        It has its own memory and queue, and the CPU's kernels. A size is an int of bytes or a text like "64M". A
        time is a number of seconds or a text like "2ms".

        name: its name; default: SIM0, SIM1, ...
        mem: its memory; max_nbytes: its largest buffer; align: alignment of tensors, a power of two
        ops: the only operators that it computes; noops: operators that it does not compute
        n_threads: threads that it computes with
        delay, op_delay, copy_delay: times that each graph, node or copy takes in addition
        copy_bw: bytes per second of copies
        fail_op: an operator that fails; fail_alloc_after: number of allocations that succeed
        """
        options: dict[str, Any] = {
            "name": name, "mem": mem, "max": max_nbytes, "align": align, "ops": ops, "noops": noops,
            "threads": n_threads, "delay": _duration(delay), "op_delay": _duration(op_delay),
            "copy_delay": _duration(copy_delay), "copy_bw": copy_bw, "fail_op": fail_op,
            "fail_alloc_after": fail_alloc_after,
        }  # fmt: skip
        return cls("SIM", **{key: value for key, value in options.items() if value is not None})

    def _live(self) -> BackendCore:
        core = self._core
        if core is None:
            raise StateError(f"the backend {getattr(self, '_name', '')} is closed")
        return core

    def _cpu(self) -> BackendCore:
        core = self._live()
        if not core.is_cpu:
            raise InvalidArgumentError(f"{self._name} is not a CPU backend")
        return core

    @property
    def name(self) -> str:
        return self._name

    @property
    def is_cpu(self) -> bool:
        return self._live().is_cpu

    @property
    def device(self) -> Any:
        """The :class:`ggml_backend.devices.Device` behind a backend written in Python; None for other backends."""
        core = self._live()
        handle = lib.gbpy_device_of(core.h)
        return object_of(handle, State).device if handle else None

    @property
    def n_threads(self) -> int:
        """Threads of the CPU backend."""
        core = self._cpu()
        return int(lib.ggml_backend_cpu_get_n_threads(core.ptr))

    @n_threads.setter
    def n_threads(self, n: int) -> None:
        core = self._cpu()
        if isinstance(n, bool):
            raise TypeError("Backend: n_threads must be an int, not bool")
        n = expect_int(n, "Backend: n_threads")
        if n < 1:
            raise InvalidArgumentError(f"Backend: n_threads must be at least 1, not {n}")
        if n > _MAX_INT:
            raise InvalidArgumentError(f"Backend: n_threads {n} is too large")
        with use("Backend", core):
            check(lib.ggml_backend_cpu_set_n_threads(core.ptr, n), "Backend.n_threads")

    @property
    def level(self) -> str:
        """Instruction-set level of the CPU kernels."""
        core = self._cpu()
        return text(lib.ggml_backend_cpu_get_level(core.ptr))

    @property
    def buffer_type(self) -> BufferType:
        """The kind of memory that this backend computes on."""
        core = self._live()
        return BufferType(non_null(lib.ggml_backend_get_default_buffer_type(core.ptr)), core)

    @property
    def alignment(self) -> int:
        core = self._live()
        return int(lib.ggml_backend_get_alignment(core.ptr))

    @property
    def max_nbytes(self) -> int:
        """Bytes of the largest single allocation."""
        core = self._live()
        return int(lib.ggml_backend_get_max_size(core.ptr))

    def allocate(self, size: int, usage: Usage = "any") -> Buffer:
        """Allocates ``size`` bytes on the device."""
        return self.buffer_type.allocate(size, usage)

    alloc: ClassVar[Renamed] = Renamed("allocate")
    max_size: ClassVar[Renamed] = Renamed("max_nbytes")

    def supports(self, tensor: Tensor) -> bool:
        """True if the backend can compute the operation of ``tensor``."""
        expect_tensor(tensor, "Backend.supports: tensor")
        core = self._live()
        clear_error()
        can = bool(lib.ggml_backend_supports_op(core.ptr, tensor._live()))
        if not can and lib.ggml_last_status():
            raise_last("Backend.supports")
        return can

    def unsupported_reason(self, tensor: Tensor) -> str | None:
        """The reason why the backend cannot compute ``tensor``; None if it can."""
        expect_tensor(tensor, "Backend.unsupported_reason: tensor")
        core = self._live()
        clear_error()
        reason = lib.ggml_backend_unsupported_reason(core.ptr, tensor._live())
        if reason and lib.ggml_last_status():
            raise_last("Backend.unsupported_reason")
        return message_of(reason) if reason else None

    def synchronize(self) -> None:
        """Waits for all queued work of the device. Raises the first failure in it."""
        core = self._live()
        with use("Backend.synchronize", core):
            check(lib.ggml_backend_synchronize(core.ptr), f"{self._name}.synchronize")

    def stop(self) -> None:
        """Ends a computation of this CPU backend in another thread. Its ``compute`` then returns False.

        It ends before the next node. Within a long node it ends within about a millisecond. An idle
        backend is not affected.
        """
        core = self._cpu()
        lib.gbpy_stop(core.h)

    def __repr__(self) -> str:
        core = self._core
        if core is None:
            return f"<Backend {getattr(self, '_name', '?')!r} closed>"
        extra = f" n_threads={self.n_threads} level={self.level}" if core.is_cpu else ""
        return f"<Backend {self._name!r}{extra}>"
