"""Exchange that must fail: memory that cannot be shared, wrong arguments, and mapped files that
shrink.
"""

from __future__ import annotations

import ctypes
import sys

import numpy as np
import pytest

import ggml_backend as gb
from capsules import Library
from ggml_backend.tensor import _arrays as arrays


def test_tensors_without_memory_are_not_shared():
    class OnlyArray:
        def __array__(self, dtype=None, copy=None):
            return np.ones(2, np.float32)

    for value in ([1.0, 2.0], OnlyArray(), 3.5):
        with pytest.raises(gb.errors.InvalidArgumentError, match="has no memory to share; copy=None"):
            gb.from_dlpack(value, copy=False)
        assert gb.from_dlpack(value, copy=None).numpy().size


@pytest.mark.parametrize("bit", ["is_neg", "is_conj"])
@pytest.mark.parametrize("copy", [None, False, True])
def test_lazily_negated_tensors_are_refused(bit, copy):
    class Lazy:
        def __dlpack__(self, **options):
            return np.ones(2, np.float32).__dlpack__()

        def is_neg(self):
            return bit == "is_neg"

        def is_conj(self):
            return bit == "is_conj"

        resolve_neg = resolve_conj = is_neg

    with pytest.raises(gb.errors.InvalidArgumentError, match=bit.replace("is", "resolve")):
        gb.from_dlpack(Lazy(), copy=copy)


@pytest.mark.parametrize("versioned", [True, False])
@pytest.mark.parametrize("offset", [2**62, 2**63 - 1, 2**63, 2**64 - 4, 2**64 - 1])
@pytest.mark.parametrize("copy", [False, None, True])
def test_offsets_that_leave_the_address_space_are_refused(offset, copy, versioned):
    array = np.arange(6, dtype=np.float32)
    data = array.ctypes.data  # the address is right, only the offset is wrong
    library = Library(array, versioned=versioned, byte_offset=offset, data=data)
    with pytest.raises(gb.errors.InvalidArgumentError, match="leaves the address space"):
        gb.from_dlpack(library, copy=copy)
    assert library.deleted == library.given


def test_strides_that_leave_the_address_space_are_refused():
    for stride in (2**60 // 4, -(2**60) // 4, -(2**55)):
        strides = (ctypes.c_int64 * 1)(stride)
        array = np.arange(2, dtype=np.float32)
        library = Library(array, strides=ctypes.cast(strides, ctypes.POINTER(ctypes.c_int64)))
        with pytest.raises(gb.errors.InvalidArgumentError, match=r"leaves the address space|stride"):
            gb.from_dlpack(library, copy=None)


@pytest.mark.parametrize("offset", [0, 4, 64, 2**20])
def test_offsets_within_memory_are_accepted(offset):
    memory = np.zeros(2**20 + 64, np.uint8)
    array = memory[offset : offset + 24].view(np.float32)
    array[...] = np.arange(6)
    assert gb.from_dlpack(Library(array, byte_offset=offset), copy=None).numpy().tolist() == [0, 1, 2, 3, 4, 5]


class Refuses:
    """Counts calls, and raises an error."""

    def __init__(self, error):
        self.error = error
        self.calls = []

    def __dlpack__(self, **options):
        self.calls.append(options)
        raise self.error

    def __dlpack_device__(self):
        return (1, 0)


@pytest.mark.parametrize("copy", [None, False, True])
@pytest.mark.parametrize(
    "error", [BufferError, RuntimeError, TypeError, ValueError, AttributeError, NotImplementedError]
)
def test_a_failing_array_method_is_called_once(copy, error):
    refuses = Refuses(error("no memory today"))
    with pytest.raises(gb.errors.InvalidArgumentError, match=r"cannot take this .*Refuses: no memory today") as found:
        gb.from_dlpack(refuses, copy=copy)
    without_options = [{}] if error is TypeError else []  # libraries before DLPack 1.0 have no options
    assert refuses.calls[1:] == without_options
    assert found.value.__cause__ is refuses.error


@pytest.mark.parametrize("error", [KeyError, MemoryError, OSError, ZeroDivisionError, RecursionError, SystemExit])
def test_other_errors_of_arrays_pass(error):
    refuses = Refuses(error("mine"))
    with pytest.raises(error, match="mine"):
        gb.from_dlpack(refuses)
    assert len(refuses.calls) == 1


def test_methods_without_options_get_none():
    class Old:
        calls = 0

        def __dlpack__(self):
            self.calls += 1
            return np.arange(3, dtype=np.float32).__dlpack__()

    for copy in (None, False, True):
        old = Old()
        assert gb.from_dlpack(old, copy=copy).numpy().tolist() == [0, 1, 2]
        assert old.calls == 1


@pytest.mark.parametrize("function", [
    gb.from_dlpack, lambda x: gb.from_dlpack(x, copy=None), lambda x: gb.from_dlpack(x, copy=True),
    lambda x: gb.Context().tensor((2,)).set(x), lambda x: gb.Context().constant(x),
    lambda x: gb.Context().from_numpy(x),
])  # fmt: skip
@pytest.mark.parametrize("method", ["__dlpack__", "__array__"])
def test_self_referencing_arrays_raise_a_recursion_error(function, method):
    calls = 0

    def again(self, *args, **options):
        nonlocal calls
        calls += 1
        return function(self)

    asks = type("Asks", (), {method: again})()
    limit = sys.getrecursionlimit()
    with pytest.raises((RecursionError, gb.errors.InvalidArgumentError, TypeError)) as found:
        function(asks)
    assert calls < 2 * limit
    assert calls == 0 or isinstance(found.value, RecursionError)


def test_an_array_that_closes_the_context():
    class Closes:
        def __init__(self, context):
            self.context = context

        def __dlpack__(self, **options):
            self.context.close()
            return np.ones(3, np.float32).__dlpack__(**options)

    context = gb.Context()
    with pytest.raises(gb.errors.StateError, match="closed"):
        context.from_dlpack(Closes(context))


@pytest.mark.parametrize(
    "options", [{"max_version": 5}, {"max_version": ()}, {"max_version": "1"}, {"dl_device": 1}, {"copy": "x"}]
)
def test_arguments_of_dlpack_are_checked(options, ctx):
    with pytest.raises(TypeError, match=f"DLPack: {next(iter(options))}"):
        ctx.from_numpy(np.ones(2, np.float32)).__dlpack__(**options)


@pytest.mark.parametrize("show", [memoryview, lambda a: memoryview(a)[:], lambda a: np.asarray(memoryview(a))])
def test_a_view_of_a_shrinking_file_is_an_error(show, tmp_path, cpu):
    path = tmp_path / "numbers"
    np.ones(1 << 14, np.float32).tofile(path)
    t = gb.from_dlpack(show(np.memmap(path, np.float32, "r+")))
    y = gb.ops.sum(t)
    graph = t.context.graph(y)
    with gb.Scheduler(cpu) as sched:
        sched.allocate(graph)
        with path.open("r+b") as file:
            file.truncate(4096)
        with pytest.raises(gb.errors.FileError):
            sched.compute(graph)


@pytest.mark.parametrize("piece", [1, 7, 64, 1000])
def test_large_arrays_are_copied_in_pieces(piece, monkeypatch, rng):
    monkeypatch.setattr(arrays, "_PIECE", piece)
    for shape in [(5, 7), (1, 30), (30, 1), (2, 3, 4, 5), (3,), (0, 4)]:
        array = rng.standard_normal(shape).astype(np.float32)
        for view in (array, array.T, array[..., ::-1], array[::-1], np.broadcast_to(array[:1], array.shape)):
            found = arrays.contiguous(view)
            assert found.flags.c_contiguous
            assert found.tobytes() == view.tobytes()
            assert found.shape == view.shape
            if view.ndim == 2 and view.size:
                assert gb.from_dlpack(view.copy(order="K"), copy=True).numpy().tobytes() == view.tobytes()


def test_an_interrupt_ends_a_copy_between_two_pieces(monkeypatch):
    monkeypatch.setattr(arrays, "_PIECE", 1024)
    array = np.zeros((512, 512), np.float32).T[::2]
    copied = 0

    def interrupt(frame, event, argument):
        nonlocal copied
        copied += event == "line" and frame.f_code.co_name == "contiguous"
        if copied > 50:
            raise KeyboardInterrupt
        return interrupt

    before = sys.gettrace()
    sys.settrace(interrupt)
    try:
        with pytest.raises(KeyboardInterrupt):
            gb.from_dlpack(array, copy=True)
    finally:
        sys.settrace(before)
    assert 50 < copied < 200
