"""C objects that Python holds. ``python/core`` counts references, takes locks, and handles forks and signals. These
classes only hold its handles.

A *core* is a handle, the pointer in it, and the cores that Python's side of it needs. Public objects (``Context``,
``Buffer``, ``Backend``, ...) hold a core; ``close()`` drops it. The C object is freed when its last user is gone,
whatever the order.

Two rules, which ``tools/check_lifetimes.py`` checks:

- a handle is made empty (:func:`new_handle`) and filled by the one C call that makes the object, so nothing can be lost
  in between;
- a pointer is taken from a core in a local variable (``core.ptr``), never through a call or another object: the
  variable keeps it alive.
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
    """The pointer as an object that calls ``destructor``, a function of C, when its last reference is gone.

    The garbage collector does not look at it: it calls the finalizers of a cycle in any order, this one perhaps before
    others that use what is behind the pointer.
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
    """The contexts that made tensors, as handles: of a graph's tensors, or of the sources of one."""

    __slots__ = ("_known", "_of")

    def __init__(self, handle: Any) -> None:
        self._of = handle
        self._known: dict[int, Any] = {}

    def __call__(self, pointer: Any) -> Any:
        found = new_handle()
        lib.gbpy_share_context(found, self._of, pointer)
        return self._known.setdefault(address(found.object), found)


def handles_of(cores: Any) -> Any:
    """An array of the handles of cores, for C."""
    return _new(_handles_type, [c.h for c in cores])


def fail(status: int, prefix: str = "") -> NoReturn:
    """Raises what a call of C reported."""
    raise_last(prefix, status)


class Core:
    """A handle and the pointer in it; ``parents``: what else must stay."""

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
        """C refers to it: it stays as long as the C object."""
        if not lib.gbpy_keep(self.h, id(thing)):
            raise_last("keep")

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Core) and bool(lib.gbpy_same(self.h, other.h))

    def __hash__(self) -> int:
        return hash(self.h.object)


def use(what: str, *cores: Core, nested: bool = False, beside_runs: bool = False) -> Any:
    """``with use("Scheduler", core, ...):`` locks objects for writing, all in one step.

    Waits for the owners of other locks on them, and for pending runs unless ``beside_runs``. :class:`StateError` in a
    callback of a computation that has locked one of them, unless ``nested``. Use it around several calls that belong
    together; a single call of C takes its own locks. Returns a context manager of C. If a signal handler raises when
    the block ends, the locks are already released, and no traceback keeps them.
    """
    guard = owned(_new(_locks_type), _unlock)
    n = len(cores)
    try:
        status = _lock(guard, what.encode(), handles_of(cores), n, n, nested, beside_runs)
    except BaseException:  # of a signal handler: the traceback would keep the guard
        _unlock(guard)
        raise
    if status:
        fail(status)
    return guard


class ContextCore(Core):
    """A ``ggml_context`` (or, for a copied graph, those that C owns: then ``ptr`` is NULL). As long as there is one, so
    are the buffers that were given to the context, and the functions of its nodes. Those may refer to the context: so
    Python holds them, whose garbage collector sees the cycle."""

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
        self.adopted: dict[int, ContextCore] = {}  # by serial number: contexts whose tensors are used here
        self.listed: dict[int, ContextCore] = {}  # the same: contexts of tensors that graphs of this one have
        self.is_adopted: bool = False  # by another
        self.of_weights: bool = False
        self.weights: set[int] = set()  # addresses of the tensors that lie in buffers of weights
        self.transposed: dict[int, Any] = {}  # address of a matrix -> its transposed view
        self.functions: list[object] = []

    def pools(self) -> tuple[Any, ...]:
        """The ``ggml_context`` s that tensors are in."""
        return (self.ptr,)

    def adopt(self, other: ContextCore, what: str) -> None:
        """Keeps `other` alive as long as this context, because ``what`` builds here with its tensors. It is an error if
        `other` uses tensors of this context: neither could be freed first."""
        if other is self or other.serial in self.adopted:
            return
        # Written before the check, so that of two threads that close a circle at least one sees it.
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
        """Notes that a graph of this context has tensors of `other`. Such uses may form circles."""
        if other is not self:
            self.listed[other.serial] = other

    def reaches(self, wanted: ContextCore) -> bool:
        """True if this context uses tensors of ``wanted``, directly or not."""
        return wanted.serial in _within(self, lambda core: list(core.adopted.values()))

    def family(self) -> tuple[ContextCore, ...]:
        """This context and all whose tensors it uses or lists, directly or not."""
        return tuple(_within(self, lambda core: [*core.adopted.values(), *core.listed.values()]).values())


def _within(first: ContextCore, following: Callable[[ContextCore], list[ContextCore]]) -> dict[int, ContextCore]:
    """All contexts that can be reached from the first one, by serial number."""
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
    """Of objects that refer to C objects, or to others that do: a copy is the same one, and they do not leave the
    process."""

    __slots__ = ()

    def __copy__(self: _L) -> _L:
        return self

    def __deepcopy__(self, memo: object) -> Any:
        raise TypeError(f"{_called(self)} cannot be copied with all that it refers to")

    def __reduce__(self) -> Any:
        raise TypeError(f"{_called(self)} cannot be pickled: it belongs to this process")


class Owner(Local):
    """Of objects that are closed: a copy would close what the other one uses."""

    __slots__ = ()

    def __copy__(self) -> Any:
        raise TypeError(f"{_called(self)} cannot be copied: both would close the same thing")

    def __deepcopy__(self, memo: object) -> Any:
        return self.__copy__()


class Handle(Owner):
    """What public objects that hold a core have in common: closing, and the ``with`` statement."""

    __slots__ = ()
    _core: Any

    def _live(self) -> Any:
        """The core; StateError if the object is closed."""
        raise NotImplementedError

    def close(self) -> None:
        """Ends its use; what is behind it is given back when nothing needs it any more. Closing twice is fine."""
        self._core = None

    @property
    def closed(self) -> bool:
        return self._core is None

    def __enter__(self: _H) -> _H:
        self._live()
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()
