"""C objects that Python holds. ``python/core`` counts references, takes locks, and handles forks and signals. These
classes only hold its handles.

A *core* is a handle, the pointer in it, and the cores that it keeps alive. Public objects
(``Context``, ``Buffer``, ``Backend``, ...) hold a core, and ``close()`` drops it. The C object is
freed with its last user, for any order of closing.

Two rules, which ``tools/check_lifetimes.py`` checks:

- a handle is made empty (:func:`new_handle`) and filled by the one C call that makes the object, so
    an interrupt leaks nothing;
- a pointer is read from a core in a local variable (``core.ptr``), never through a call or another
    object. The variable keeps the C object alive.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any, ClassVar, NoReturn, TypeVar

from .._ffi import ffi, lib
from .errors import InvalidArgumentError, raise_last

__all__ = [
    "ContextCore", "Core", "Handle", "Holders", "Local", "Owner", "address", "fail", "new_handle",
    "new_pin", "owned", "use",
]  # fmt: skip

_gc = ffi.gc
_untrack = lib.gbpy_untrack


def owned(pointer: Any, destructor: Any) -> Any:
    """The pointer as an object that calls the C function ``destructor`` when its last reference is gone.

    It is invisible to the garbage collector. The collector calls finalizers of a cycle in any
    order, so it could otherwise free the C object before finalizers that use it.
    """
    owner = _gc(pointer, destructor)
    _untrack(id(owner))
    return owner


_cast = ffi.cast
_new = ffi.new
_release = lib.gbpy_release
_unpin = lib.gbpy_unpin
_lock = lib.gbpy_lock
_unlock = lib.gbpy_unlock
_handle_type: Any = ffi.typeof("struct gbpy_handle *")
_locks_type: Any = ffi.typeof("struct gbpy_locks *")
_handles_type: Any = ffi.typeof("struct gbpy_handle *[]")
_H = TypeVar("_H", bound="Handle")
_L = TypeVar("_L", bound="Local")


def address(pointer: Any) -> int:
    """The address in a cffi pointer."""
    return int(_cast("uintptr_t", pointer))


def new_handle() -> Any:
    """An empty handle. It releases the reference that C puts into it."""
    return owned(_new(_handle_type), _release)


def new_pin() -> Any:
    """An empty handle that keeps memory for an array."""
    return owned(_new(_handle_type), _unpin)


class Holders:
    """Finds the handle of a tensor's context from the tensor's pointer.

    ``handle``: of the graph or context that uses the tensor. All tensors of a context get the same handle.
    """

    __slots__ = ("_known", "_of")

    def __init__(self, handle: Any) -> None:
        self._of = handle
        self._known: dict[int, Any] = {}

    def __call__(self, pointer: Any) -> Any:
        found = new_handle()
        lib.gbpy_share_context(found, self._of, pointer)
        return self._known.setdefault(address(found.object), found)


def handles_of(cores: Any) -> Any:
    """The handles of cores as a C array."""
    return _new(_handles_type, [c.h for c in cores])


def fail(status: int, prefix: str = "") -> NoReturn:
    """Raises the exception for the status of a C call."""
    raise_last(prefix, status)


class Core:
    """A handle and the pointer in it. ``parents``: cores that it keeps alive"""

    __slots__ = ("__weakref__", "h", "parents", "ptr")
    h: Any
    parents: tuple[Core, ...]
    ptr: Any

    def __init__(self, h: Any, kind: str, parents: tuple[Core, ...] = ()) -> None:
        self.h = h
        self.ptr = _cast(kind, lib.gbpy_ptr(h))
        self.parents = parents

    @property
    def closed(self) -> bool:
        return bool(lib.gbpy_is_closed(self.h))

    def keep(self, thing: object) -> None:
        """Keeps an object alive as long as the C object, which refers to it."""
        if not lib.gbpy_keep(self.h, id(thing)):
            raise_last("keep")

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Core) and bool(lib.gbpy_same(self.h, other.h))

    def __hash__(self) -> int:
        return hash(self.h.object)


def use(what: str, *cores: Core, nested: bool = False, beside_runs: bool = False) -> Any:
    """``with use("Scheduler", core, ...):`` locks objects for writing, in one step.

    Waits for the owners of other locks on them, and for pending runs unless ``beside_runs``. In a callback of a
    computation that has locked one of them it raises :class:`StateError`, unless ``nested``. Use it around several
    calls that belong together. A single call of C takes its own locks. Returns a context manager of C. If a signal
    handler raises when the block ends, the locks are already released, and no traceback keeps them.
    """
    guard = owned(_new(_locks_type), _unlock)
    n = len(cores)
    try:
        status = _lock(guard, what.encode(), handles_of(cores), n, n, nested, beside_runs)
    except BaseException:  # from a signal handler: the traceback would keep the guard alive
        _unlock(guard)
        raise
    if status:
        fail(status)
    return guard


class ContextCore(Core):
    """Owns a ``ggml_context``, or the contexts of a copied graph, with ``ptr`` NULL.

    It keeps the buffers of the context and the functions of its nodes alive. A function may refer to the context, so
    Python holds the functions: its garbage collector can then see the cycle.
    """

    __slots__ = (
        "adopted",
        "functions",
        "is_adopted",
        "keeping",
        "listed",
        "of_weights",
        "serial",
        "transposed",
        "weights",
    )
    keeping: Any
    serial: int
    counter: ClassVar[Iterator[int]] = itertools.count()

    def __init__(self, h: Any, parents: tuple[Core, ...] = ()) -> None:
        super().__init__(h, "struct ggml_context *", parents)
        self.keeping = new_handle()
        lib.gbpy_share(self.keeping, h, True)
        self.serial = next(self.counter)
        self.adopted: dict[int, ContextCore] = {}  # by serial number: contexts whose tensors are sources here
        self.listed: dict[int, ContextCore] = {}  # by serial number: contexts of tensors in graphs of this context
        self.is_adopted: bool = False  # True if another context uses tensors of this one
        self.of_weights: bool = False
        self.weights: set[int] = set()  # addresses of tensors in buffers with usage "weights"
        self.transposed: dict[int, Any] = {}  # address of a matrix -> its transposed view
        self.functions: list[object] = []

    def pools(self) -> tuple[Any, ...]:
        """The ``ggml_context`` objects of tensors."""
        return (self.ptr,)

    def adopt(self, other: ContextCore, what: str) -> None:
        """Keeps `other` alive as long as this context, because ``what`` uses its tensors here.
        Raises if `other` uses tensors of this context, because neither could be freed first."""
        if other is self or other.serial in self.adopted:
            return
        # Set before the check: if two threads close a cycle, at least one of them sees it.
        self.adopted[other.serial] = other
        other.is_adopted = True
        try:
            if self.is_adopted and other.reaches(self):
                raise InvalidArgumentError(
                    f"{what}: the context of a source uses tensors of the context of the result: two contexts cannot"
                    " use each other's tensors"
                )
            if not lib.gbpy_need(self.h, other.h):
                raise_last(what)
        except BaseException:
            self.adopted.pop(other.serial, None)
            raise

    def note_listed(self, other: ContextCore) -> None:
        """Records that a graph of this context has tensors of `other`. Such references may form
        cycles."""
        if other is not self:
            self.listed[other.serial] = other

    def reaches(self, wanted: ContextCore) -> bool:
        """True if this context uses tensors of ``wanted``, directly or indirectly."""
        return wanted.serial in _within(self, lambda core: list(core.adopted.values()))

    def family(self) -> tuple[ContextCore, ...]:
        """This context and all contexts whose tensors it uses or lists, directly or indirectly."""
        return tuple(_within(self, lambda core: [*core.adopted.values(), *core.listed.values()]).values())


def _within(first: ContextCore, following: Callable[[ContextCore], list[ContextCore]]) -> dict[int, ContextCore]:
    """All contexts reachable from the first one, by serial number."""
    found: dict[int, ContextCore] = {}
    stack = [first]
    while stack:
        core = stack.pop()
        if core.serial not in found:
            found[core.serial] = core
            stack.extend(following(core))
    return found


def _called(thing: object) -> str:
    name = type(thing).__name__
    return f"{'an' if name[0] in 'AEIOU' else 'a'} {name}"


class Local:
    """Base of objects that refer to C objects. A copy is the object itself, and pickling is an
    error."""

    __slots__ = ()

    def __copy__(self: _L) -> _L:
        return self

    def __deepcopy__(self, memo: object) -> Any:
        raise TypeError(f"{_called(self)} cannot be copied with all that it refers to")

    def __reduce__(self) -> Any:
        raise TypeError(f"{_called(self)} cannot be pickled: it belongs to this process")


class Owner(Local):
    """Base of objects with ``close``. Copying is an error, because closing a copy would close the
    other object."""

    __slots__ = ()

    def __copy__(self) -> Any:
        raise TypeError(f"{_called(self)} cannot be copied: both would close the same thing")

    def __deepcopy__(self, memo: object) -> Any:
        return self.__copy__()


class Handle(Owner):
    """Base of public objects with a core: ``close``, and the ``with`` statement."""

    __slots__ = ()
    _core: Any

    def _live(self) -> Any:
        """The core; StateError if the object is closed."""
        raise NotImplementedError

    def close(self) -> None:
        """Closes the object. The C object is freed with its last user. Closing twice is fine."""
        self._core = None

    @property
    def closed(self) -> bool:
        return self._core is None

    def __enter__(self: _H) -> _H:
        self._live()
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()
