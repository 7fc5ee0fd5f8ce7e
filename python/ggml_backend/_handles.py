"""Who owns which C object, and when it is freed.

A *core* is one C object together with strong references to the cores that it needs (its parents). Public objects (``Context``,
``Buffer``, ``Backend``, ...) hold a core; ``close()`` only drops that reference. So a C object is freed when its last user is gone,
users always go before what they use, and no order of closing can hurt. References between cores form no cycles, so this
happens at once, not at some later garbage collection.

What frees is not the core but its *token*, a small object that Python's garbage collector does not know. The collector calls the
finalizers of a cycle in any order, and other finalizers may use the objects afterwards; tokens only die when really nothing
refers to them. What is to be freed then, and the tokens of the parents, stand in a table outside of all cycles. While the
interpreter ends nothing is freed any more; the operating system cleans up.

Memory is the delicate part, because tensors point into buffers by plain C pointers:

- an *owner* is a core whose C object owns buffers (a buffer, a scheduler, a copied graph). ``owners`` maps the address of each such
  C buffer to its owner, so that a tensor finds out whether the memory it points to still exists;
- before an owner frees its buffers, every tensor (of any context) that lies in them is unplaced. A tensor therefore
  never points to freed memory, and an address that is used again by a new buffer cannot be mistaken for the old one;
- a NumPy array that looks into a buffer holds the owner's token.
"""

from __future__ import annotations

import itertools
import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from typing import Any, ClassVar, TypeVar

from ._errors import StateError
from ._ffi import ffi, lib

_cast = ffi.cast
_new = ffi.new
_buffer_array: Any = ffi.typeof("struct ggml_backend_buffer *[]")
_token_type: Any = ffi.typeof("char[1]")
_H = TypeVar("_H", bound="Handle")


def address(pointer: Any) -> int:
    """The address in a cffi pointer."""
    return int(_cast("uintptr_t", pointer))


class Entry:
    """What happens when a token dies: ``free()`` is called, then ``needs`` are let go."""

    __slots__ = ("free", "keep", "needs", "ref")
    free: Callable[[], object]
    needs: tuple[Any, ...]
    keep: object

    def __init__(self, free: Callable[[], object], needs: tuple[Any, ...], keep: object) -> None:
        self.free = free
        self.needs = needs  # tokens
        self.keep = keep  # whatever C refers to
        self.ref: Any = None


def _make_token(table: dict[int, Entry]) -> Callable[..., tuple[Any, Entry]]:
    def died(ref: Any, ending: Callable[[], bool] = sys.is_finalizing) -> None:
        if ending():
            return
        entry = table.pop(id(ref), None)
        if entry is not None:
            entry.free()

    def token(free: Callable[[], object], needs: tuple[Any, ...], keep: object = None) -> tuple[Any, Entry]:
        new = _new(_token_type)
        entry = Entry(free, needs, keep)
        entry.ref = weakref.ref(new, died)
        table[id(entry.ref)] = entry
        return new, entry

    return token


_table: dict[int, Entry] = {}
make_token = _make_token(_table)


AGAIN = "is computing, and was called from one of its own callbacks"


class Core:
    """A C object, the cores that it needs, and the lock under which it is used."""

    __slots__ = ("__weakref__", "busy", "closed", "entry", "lock", "parents", "ptr", "token")
    token: Any
    entry: Entry
    ptr: Any
    parents: tuple[Core, ...]
    lock: Any
    busy: bool
    closed: bool

    def __init__(self, ptr: Any, parents: tuple[Core, ...] = (), free: Callable[[], object] | None = None, keep: object = None) -> None:
        self.ptr = ptr
        self.parents = parents
        self.lock = threading.RLock()
        self.busy = False
        self.closed = False
        self.token, self.entry = make_token(free or _nothing, tuple(p.token for p in parents), keep)

    def enter(self, what: str) -> None:
        """Takes exclusive use; see :class:`Use`."""
        self.lock.acquire()
        if self.busy:
            self.lock.release()
            raise StateError(f"{what}: {AGAIN}")
        self.busy = True

    def leave(self) -> None:
        """Gives it back."""
        self.busy = False
        self.lock.release()


def _nothing() -> None:
    pass


def calling(function: Any, ptr: Any) -> Callable[[], object]:
    """``function(ptr)``, to be called when a token dies."""
    return lambda: function(ptr)


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
                core.enter(self.what)
                done += 1
        except BaseException:
            for core in self.cores[:done]:
                core.leave()
            raise

    def __exit__(self, *exc: object) -> None:
        for core in self.cores:
            core.leave()


# ---------------------------------------------------------------------------------------------------------------- contexts


class ContextCore(Core):
    """A ``ggml_context`` (or, for a copied graph, two that C owns: then ``ptr`` is NULL).

    ``parents`` grows by the contexts whose tensors are used here. ``lock`` guards building.
    """

    __slots__ = ("buffers", "constants", "keep", "serial", "transposed")
    serial: int
    parents: tuple[Core, ...]
    alive: ClassVar[dict[int, tuple[Any, Any, Any]]] = {}  # address -> weak token, ptr, lock: all C contexts
    counter: ClassVar[Iterator[int]] = itertools.count()

    def __init__(self, ptr: Any, parents: tuple[Core, ...] = ()) -> None:
        free, where, alive = lib.ggml_free, address(ptr), self.alive

        def forget_and_free() -> None:
            alive.pop(where, None)
            free(ptr)

        super().__init__(ptr, parents, forget_and_free if ptr else None)
        if ptr:
            alive[where] = (self.entry.ref, ptr, self.lock)
        self.serial = next(self.counter)
        self.buffers: tuple[OwnerCore, ...] = ()  # kept alive: where tensors of this context were placed
        self.constants: list[tuple[Any, bytes]] = []  # tensor, its value: written each time the tensor is placed
        self.keep: list[object] = []  # whatever C refers to
        self.transposed: dict[int, Any] = {}  # address of a matrix -> its transposed view

    def adopt(self, other: ContextCore) -> None:
        """Tensors of `other` are about to be used here. An older context goes after this one, also for C."""
        if other is not self and other not in self.parents:
            self.parents = (*self.parents, other)
            if other.serial < self.serial:  # views here may look into its tensors; the other way round would be a cycle
                self.entry.needs = (*self.entry.needs, other.token)

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
        OwnerCore.epoch = lib.gbpy_moved()
        if owner not in self.buffers:
            self.buffers = (*self.buffers, owner)
            owner.users = (*(r for r in owner.users if r() is not None), weakref.ref(self))

    def upload_constants(self) -> None:
        for tensor, value in self.constants:
            if tensor.data and lib.gbpy_buffer(tensor):
                lib.ggml_backend_tensor_set(tensor, ffi.from_buffer(value), 0, len(value))


# ------------------------------------------------------------------------------------------------------------------ memory


class Memory:
    """The C buffers of an owner; outlives the core, for its token."""

    __slots__ = ("addresses", "scratch")
    scratch: bool

    def __init__(self) -> None:
        self.addresses: dict[int, bool] = {}  # of each C buffer: is it host memory
        self.scratch = False  # tensors that lose their place here may simply be placed again

    def detach(self, lost: bool, wait: bool) -> bool:
        """Unplaces the tensors in these buffers; False if a context is in use by another thread and `wait` is not set.

        Never waits while Python collects garbage: the thread may hold a lock that the other one needs.
        """
        contexts = [(ref(), ptr, lock) for ref, ptr, lock in list(ContextCore.alive.values())]
        for views in (True, False):
            for token, ptr, lock in contexts:
                if token is None:
                    continue
                if not lock.acquire(blocking=wait):
                    return False
                try:
                    for a in self.addresses:
                        lib.gbpy_detach(ptr, _cast("struct ggml_backend_buffer *", a), views, lost)
                finally:
                    lock.release()
        return True


class OwnerCore(Core):
    """A core whose C object owns buffers."""

    __slots__ = ("memory", "pin_ref", "readonly", "ref", "users", "version")
    memory: Memory
    ref: weakref.ref[OwnerCore]
    readonly: bool
    version: int
    owners: ClassVar[dict[int, weakref.ref[OwnerCore]]] = {}
    graveyard: ClassVar[list[Tomb]] = []
    pin_lock: ClassVar[Any] = threading.RLock()
    epoch: ClassVar[int] = 0  # of C, as last seen: it changes whenever any tensor may have got or lost memory
    working: ClassVar[dict[int, weakref.ref[OwnerCore]]] = {}  # those that compute asynchronously: schedulers

    def __init__(self, ptr: Any, parents: tuple[Core, ...], freer: Any, keep: object = None) -> None:
        self.memory = memory = Memory()
        needs = tuple(p.token for p in parents)
        super().__init__(ptr, parents, lambda: Tomb(freer, ptr, memory, (needs, keep)).bury_or_wait(), keep)
        self.ref = weakref.ref(self)
        self.pin_ref: Any = None
        self.users: tuple[weakref.ref[ContextCore], ...] = ()  # contexts that keep it alive
        self.readonly = False
        self.version = 0  # counts every time tensors lost their place here

    def own(self, buffer: Any) -> None:
        """Registers a C buffer, and its parts, as part of this owner."""
        i = 0
        while part := lib.gbpy_buffer_part(buffer, i):
            self.own(part)
            i += 1
        self.memory.addresses[address(buffer)] = bool(lib.ggml_backend_buffer_is_host(buffer))
        self.owners[address(buffer)] = self.ref

    def is_host(self, buffer: Any) -> bool:
        return self.memory.addresses[address(buffer)]

    def unplace(self) -> None:
        """Unplaces what lies in this owner's buffers."""
        self.version += 1
        OwnerCore.epoch = lib.gbpy_moved()
        self.memory.detach(lost=False, wait=True)

    def pin(self) -> Any:
        """What arrays into this memory hold. They share it, so that one weak reference tells whether there are any."""
        with self.pin_lock:
            pin = self.pin_ref() if self.pin_ref is not None else None
            if pin is None:
                pin, entry = make_token(_nothing, (self.token,))
                self.pin_ref = entry.ref
                self.hold()
            return pin

    def pinned(self) -> bool:
        """Do arrays look into this owner's memory?"""
        return self.pin_ref is not None and self.pin_ref() is not None

    def hold(self) -> None:
        """From now on memory must stay while arrays look into it, even if C has no more use for it."""

    def has(self, tensor: Any) -> bool:
        """Is the data of a tensor that lies here still its own?"""
        return True

    def synchronize(self) -> None:
        """Waits for work that still writes here."""

    def before_set(self, tensor: Any) -> None:
        """Waits for work that still needs what a tensor holds."""
        self.synchronize()

    def uses(self, owner: OwnerCore) -> bool:
        """Does work that may still run read or write the memory of another owner?"""
        return False

    def wait_for_users(self, tensor: Any, setting: bool) -> None:
        """Waits for work of others on a tensor that lies here."""
        for ref in list(self.working.values()):
            user = ref()
            if user is not None and user is not self and user.uses(self):
                with user.lock:
                    if not user.busy:  # called from one of its callbacks
                        user.before_set(tensor) if setting else user.synchronize()


class Tomb:
    """An owner that is gone for Python, and whose C object is freed as soon as no tensor points into its buffers. That may have to wait: a
    thread may be building tensors in a context that is to be searched. `reap` tries again."""

    __slots__ = ("freer", "keep", "memory", "ptr")

    def __init__(self, freer: Any, ptr: Any, memory: Memory, keep: object) -> None:
        self.freer = freer
        self.ptr = ptr
        self.memory = memory
        self.keep = keep  # until the C object is freed

    def bury(self) -> bool:
        if not self.memory.detach(lost=not self.memory.scratch, wait=False):
            return False
        for a in self.memory.addresses:
            ref = OwnerCore.owners.get(a)
            if ref is not None and ref() is None:
                del OwnerCore.owners[a]
        self.freer(self.ptr)
        return True

    def bury_or_wait(self) -> None:
        if not self.bury():
            OwnerCore.graveyard.append(self)


def reap() -> None:
    """Frees what had to wait."""
    if OwnerCore.graveyard:
        waiting, OwnerCore.graveyard[:] = OwnerCore.graveyard[:], []
        OwnerCore.graveyard.extend(t for t in waiting if not t.bury())


class BufferCore(OwnerCore):
    """A ``ggml_backend_buffer`` and, for memory of somebody else, the object that owns the bytes (``exporter``)."""

    __slots__ = ()

    def __init__(self, ptr: Any, parents: tuple[Core, ...] = (), exporter: object = None) -> None:
        super().__init__(ptr, parents, lib.ggml_backend_buffer_free, exporter)
        self.own(ptr)


class Handle:
    """What public objects that hold a core have in common: closing, and the ``with`` statement."""

    __slots__ = ()
    _core: Any

    def _live(self) -> Any:
        """The core; StateError if the object is closed."""
        raise NotImplementedError

    def close(self) -> None:
        """Ends its use; what is behind it is given back when nothing needs it any more. Closing twice is fine."""
        self._core = None
        reap()

    @property
    def closed(self) -> bool:
        return self._core is None

    def __enter__(self: _H) -> _H:
        self._live()
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


def buffers_of(graph: Any) -> list[Any]:
    """The different C buffers in which the nodes and leafs of a C graph lie."""
    capacity = 16
    while True:
        out = ffi.new(_buffer_array, capacity)
        n = lib.gbpy_graph_buffers(graph, out, capacity)
        if n < capacity:
            return [out[i] for i in range(n)]
        capacity *= 4


def find_owner(buffer: Any) -> OwnerCore | None:
    """The live owner of a C buffer."""
    ref = OwnerCore.owners.get(address(buffer))
    return ref() if ref is not None else None
