"""Who owns which C object, and when it is freed.

A *core* is one C object together with strong references to the cores that it needs (its parents). Public objects (``Context``,
``Buffer``, ``Backend``, ...) hold a core; ``close()`` only drops that reference. So a C object is freed when its last user is gone,
users always go before what they use, and no order of closing can hurt. References between cores form no cycles, so this
happens at once, not at some later garbage collection.

Memory is the delicate part, because tensors point into buffers by plain C pointers:

- an *owner* is a core whose C object owns buffers (a buffer, a scheduler, a copied graph). ``owners`` maps the address of each such
  C buffer to its owner, so that a tensor finds out whether the memory it points to still exists;
- before an owner frees its buffers, every tensor (of any context) that lies in them is unplaced. A tensor therefore
  never points to freed memory, and an address that is used again by a new buffer cannot be mistaken for the old one;
- a NumPy array that looks into a buffer holds its owner, through a :class:`Pin`.

``__del__`` methods use only class attributes, because module globals may be gone when the interpreter ends.
"""

from __future__ import annotations

import itertools
import threading
import weakref
from collections.abc import Iterator
from typing import Any, ClassVar

from ._errors import StateError
from ._ffi import ffi, lib

_cast = ffi.cast
_buffer_array: Any = ffi.typeof("struct ggml_backend_buffer *[]")


def address(pointer: Any) -> int:
    """The address in a cffi pointer."""
    return int(_cast("uintptr_t", pointer))


class Core:
    """A C object, the cores that it needs, and the lock under which it is used."""

    __slots__ = ("__weakref__", "busy", "closed", "lock", "parents", "ptr")

    def __init__(self, ptr: Any, parents: tuple[Core, ...] = ()) -> None:
        self.ptr = ptr
        self.parents = parents
        self.lock = threading.RLock()
        self.busy = False
        self.closed = False

    def free(self) -> None:
        """Frees the C object; called once."""

    def __del__(self) -> None:
        if getattr(self, "ptr", None):
            self.free()
            self.ptr = None


class Use:
    """``with Use("Scheduler", core, ...)``: exclusive use of cores that one thread at a time may work with.

    Locks are taken in one global order, so that two users of the same backends cannot wait for each other. A call from a
    callback of the computation that holds them is refused: it would wait for itself, or corrupt it.
    """

    __slots__ = ("cores", "what")

    def __init__(self, what: str, *cores: Core) -> None:
        self.what = what
        self.cores = cores if len(cores) < 2 else tuple(sorted(set(cores), key=id))

    def __enter__(self) -> None:
        done = 0
        try:
            for core in self.cores:
                core.lock.acquire()
                done += 1
                if core.busy:
                    raise StateError(f"{self.what}: is computing, and was called from one of its own callbacks")
        except BaseException:
            for core in self.cores[:done]:
                core.lock.release()
            raise
        for core in self.cores:
            core.busy = True

    def __exit__(self, *exc: object) -> None:
        for core in self.cores:
            core.busy = False
            core.lock.release()


# ---------------------------------------------------------------------------------------------------------------- contexts


class ContextCore(Core):
    """A ``ggml_context`` (or, for a copied graph, two that C owns: then ``ptr`` is NULL).

    ``parents`` grows by the contexts whose tensors are used here. ``lock`` guards building.
    """

    __slots__ = ("_freer", "buffers", "constants", "keep", "placed_by", "serial", "transposed")
    alive: ClassVar[dict[int, weakref.ref[ContextCore]]] = {}
    counter: ClassVar[Iterator[int]] = itertools.count()

    def __init__(self, ptr: Any) -> None:
        super().__init__(ptr)
        self._freer = lib.ggml_free
        self.serial = next(self.counter)
        self.buffers: tuple[OwnerCore, ...] = ()  # kept alive: where tensors of this context were placed
        self.placed_by: tuple[weakref.ref[OwnerCore], ...] = ()  # schedulers: not kept alive (they keep the context)
        self.constants: list[tuple[Any, bytes]] = []  # tensor, its value: written each time the tensor is placed
        self.keep: list[object] = []  # whatever C refers to
        self.transposed: dict[int, Any] = {}  # address of a matrix -> its transposed view
        self.alive[id(self)] = weakref.ref(self)

    def free(self) -> None:
        self.alive.pop(id(self), None)
        self._freer(self.ptr)

    def adopt(self, other: ContextCore) -> None:
        """Tensors of `other` are about to be used here."""
        if other is not self and other not in self.parents:
            self.parents = (*self.parents, other)

    def family(self) -> tuple[ContextCore, ...]:
        """This context and all whose tensors it uses, directly or not."""
        found: dict[int, ContextCore] = {}
        stack: list[Core] = [self]
        while stack:
            core = stack.pop()
            if isinstance(core, ContextCore) and id(core) not in found:
                found[id(core)] = core
                stack.extend(core.parents)
        return tuple(found.values())

    def add_buffer(self, owner: OwnerCore) -> None:
        if owner not in self.buffers:
            self.buffers = (*self.buffers, owner)

    def add_placed_by(self, owner: OwnerCore) -> None:
        if owner.ref not in self.placed_by:
            self.placed_by = (*(r for r in self.placed_by if r() is not None), owner.ref)

    def hold(self) -> tuple[OwnerCore | None, ...]:
        """Strong references to all memory of this context's tensors, for the duration of a computation."""
        return (*self.buffers, *(r() for r in self.placed_by))

    def upload_constants(self) -> None:
        for tensor, value in self.constants:
            if tensor.data and lib.gbpy_buffer(tensor):
                lib.ggml_backend_tensor_set(tensor, ffi.from_buffer(value), 0, len(value))


# ------------------------------------------------------------------------------------------------------------------ memory


class Pin:
    """Held by the arrays that look into an owner's memory."""

    __slots__ = ("__weakref__", "owner")

    def __init__(self, owner: Core) -> None:
        self.owner = owner


class OwnerCore(Core):
    """A core whose C object owns buffers."""

    __slots__ = ("addresses", "pin_ref", "readonly", "ref", "scratch", "version")
    owners: ClassVar[dict[int, weakref.ref[OwnerCore]]] = {}
    graveyard: ClassVar[list[Tomb]] = []
    tomb: ClassVar[Any]
    pin_lock: ClassVar[Any] = threading.RLock()

    def __init__(self, ptr: Any, parents: tuple[Core, ...] = ()) -> None:
        super().__init__(ptr, parents)
        self.ref = weakref.ref(self)
        self.pin_ref: Any = None
        self.addresses: dict[int, bool] = {}  # of each C buffer: is it host memory
        self.readonly = False
        self.scratch = False  # tensors that lose their place here may simply be placed again
        self.version = 0  # counts every time tensors lost their place here

    def own(self, buffer: Any) -> None:
        """Registers a C buffer as part of this owner."""
        self.addresses[address(buffer)] = bool(lib.ggml_backend_buffer_is_host(buffer))
        self.owners[address(buffer)] = self.ref

    def unplace(self) -> None:
        """Unplaces what lies in this owner's buffers."""
        self.version += 1
        Tomb(None, None, tuple(self.addresses), (), lost=False).detach(wait=True)

    def pin(self) -> Pin:
        """The pin that all arrays into this owner share, so that one weak reference tells whether there are any."""
        with self.pin_lock:
            pin: Pin | None = self.pin_ref() if self.pin_ref is not None else None
            if pin is None:
                pin = Pin(self)
                self.pin_ref = weakref.ref(pin)
                self.hold()
            return pin

    def hold(self) -> None:
        """From now on memory must stay while arrays look into it, even if C has no more use for it."""

    def has(self, tensor: Any) -> bool:
        """Is the data of a tensor that lies here still its own?"""
        return True

    def pinned(self) -> bool:
        """Do arrays look into this owner's memory?"""
        return self.pin_ref is not None and self.pin_ref() is not None

    def synchronize(self) -> None:
        """Waits for work that still writes here."""

    def freer(self) -> Any:
        """A function of ``ptr`` that frees the C object, and that does not need this object any more."""
        raise NotImplementedError

    def free(self) -> None:
        tomb = self.tomb(self.freer(), self.ptr, tuple(self.addresses), self.parents, lost=not self.scratch)
        for a in self.addresses:
            if self.owners.get(a) is self.ref:
                del self.owners[a]
        if not tomb.bury():
            self.graveyard.append(tomb)


class Tomb:
    """An owner that is gone for Python, but whose C object could not be freed yet, because a thread is building tensors in a
    context that has to be searched for tensors in its memory. `reap` tries again."""

    __slots__ = ("addresses", "freer", "lost", "parents", "ptr")
    contexts: ClassVar[dict[int, weakref.ref[ContextCore]]] = ContextCore.alive
    scan: ClassVar[Any] = lib.gbpy_detach
    cast: ClassVar[Any] = ffi.cast

    def __init__(self, freer: Any, ptr: Any, addresses: tuple[int, ...], parents: tuple[Core, ...], *, lost: bool) -> None:
        self.lost = lost
        self.freer = freer
        self.ptr = ptr
        self.addresses = addresses
        self.parents = parents

    def detach(self, wait: bool = False) -> bool:
        """Unplaces the tensors in these buffers; False if a context is in use by another thread and `wait` is not set.

        Never waits while Python collects garbage: the thread may hold a lock that the other one needs.
        """
        if not self.addresses:
            return True
        contexts = [c for c in [r() for r in list(self.contexts.values())] if c is not None and c.ptr]
        scan = type(self).scan
        for views in (True, False):
            for c in contexts:
                if not c.lock.acquire(blocking=wait):
                    return False
                try:
                    for a in self.addresses:
                        scan(c.ptr, self.cast("struct ggml_backend_buffer *", a), views, self.lost)
                finally:
                    c.lock.release()
        return True

    def bury(self) -> bool:
        if not self.detach():
            return False
        self.freer(self.ptr)
        self.ptr = None
        return True


OwnerCore.tomb = Tomb


def reap() -> None:
    """Frees what had to wait."""
    if OwnerCore.graveyard:
        waiting, OwnerCore.graveyard[:] = OwnerCore.graveyard[:], []
        OwnerCore.graveyard.extend(t for t in waiting if not t.bury())


class BufferCore(OwnerCore):
    """A ``ggml_backend_buffer`` and, for memory of somebody else, the object that owns the bytes (``exporter``)."""

    __slots__ = ("exporter",)

    def __init__(self, ptr: Any, parents: tuple[Core, ...] = (), exporter: object = None) -> None:
        super().__init__(ptr, parents)
        self.exporter = exporter
        self.own(ptr)

    _buffer_free: ClassVar[Any] = lib.ggml_backend_buffer_free

    def freer(self) -> Any:
        # The exporter must outlive the buffer, so the closure holds it.
        free, exporter = type(self)._buffer_free, self.exporter
        return lambda p, _exporter=exporter: free(p)


def buffers_of(collect: Any, ptr: Any) -> list[Any]:
    """The different C buffers in which the tensors of a context or the nodes and leafs of a graph lie."""
    capacity = 16
    while True:
        out = ffi.new(_buffer_array, capacity)
        n = collect(ptr, out, capacity)
        if n < capacity:
            return [out[i] for i in range(n)]
        capacity *= 4


def find_owner(buffer: Any) -> OwnerCore | None:
    """The live owner of a C buffer."""
    ref = OwnerCore.owners.get(address(buffer))
    return ref() if ref is not None else None
