"""Arrays of other libraries over the memory of tensors, and tensors over theirs: DLPack, buffers,
and ``__array__``.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import itertools
import mmap
import sys
import weakref

import ml_dtypes
import numpy as np
import pytest

import ggml_backend as gb
from capsules import (
    CODES,
    CPU,
    CUDA,
    IS_COPIED,
    PLAIN,
    READ_ONLY,
    VERSIONED,
    Library,
    bfloat16,
    functions,
    name_of,
    said,
)
from ggml_backend.tensor._exchange import buffer_of
from threads import run_threads

DTYPES = ["float32", "float16", "float64", "int8", "int16", "int32", "int64"]
SHAPES = [(), (1,), (5,), (2, 3), (1, 1), (3, 1, 4), (2, 3, 4, 5), (0,), (2, 0, 3), (1, 0)]
NUMPY_2_1 = np.lib.NumpyVersion(np.__version__) >= "2.1.0"


def numbers(shape, dtype="float32"):
    return (np.arange(int(np.prod(shape))) % 100).reshape(shape).astype(dtype)


@pytest.fixture
def graph_of(cpu):
    def compute(context, node):
        graph = context.graph(node)
        sched = gb.Scheduler([cpu])
        assert sched.compute(graph)
        return node.numpy(copy=True)

    return compute


# ------------------------------------------------------------------------------------------------------- round trips


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SHAPES)
def test_numpy_arrays_round_trip(ctx, shape, dtype):
    array = numbers(shape, dtype)
    t = ctx.from_dlpack(array, "x")
    assert (t.shape, t.dtype, t.name, t.op, t.location) == (shape, gb.dtypes.as_dtype(dtype), "x", "NONE", "CPU")
    back = np.from_dlpack(t)
    assert back.dtype == array.dtype and back.shape == shape
    np.testing.assert_array_equal(back, array)
    np.testing.assert_array_equal(t.numpy(), array)
    assert t.__dlpack_device__() == (1, 0)
    if array.size:
        assert np.shares_memory(back, array)
        array[...] = 7
        assert (back == 7).all() and (t.numpy() == 7).all()
        t.set(array + 1)
        assert (array == 8).all()
        if NUMPY_2_1:
            back[...] = 9
            assert (array == 9).all()


def test_the_capsule_describes_the_tensor(ctx):
    t = ctx.from_dlpack(numbers((4, 6))[:, 1:4])
    plain, versioned = t.__dlpack__(), t.__dlpack__(max_version=(1, 2))
    assert (name_of(plain), name_of(versioned)) == (PLAIN, VERSIONED)
    for capsule, version in ((plain, None), (versioned, (1, 0))):
        found = said(capsule)
        assert (found.version, found.flags, found.device, found.dtype) == (
            version,
            0,
            (CPU, 0),
            (CODES["float"], 32, 1),
        )
        assert (found.shape, found.strides, found.data) == ((4, 3), (6, 1), t.numpy().ctypes.data)
    assert name_of(t.__dlpack__(max_version=(0, 8))) == PLAIN


def test_bfloat16_round_trips(ctx, graph_of):
    bits = bfloat16([[1, -2.5], [0.125, 3], [7, 1024]])
    t = ctx.from_dlpack(Library(bits, kind="bfloat"))
    assert t.dtype == gb.bfloat16 and np.shares_memory(t.numpy(), bits)
    found = said(t.__dlpack__(max_version=(1, 0)))
    assert found.dtype == (CODES["bfloat"], 16, 1) and found.data == bits.ctypes.data
    again = ctx.from_dlpack(t)
    assert again.dtype == gb.bfloat16 and np.shares_memory(again.numpy(), bits)
    np.testing.assert_array_equal(graph_of(ctx, gb.ops.cast(again, gb.float32)), [[1, -2.5], [0.125, 3], [7, 1024]])


def test_bfloat16_of_ml_dtypes(ctx):
    ml_dtypes = pytest.importorskip("ml_dtypes")
    array = np.array([1, 2.5, -3], ml_dtypes.bfloat16)
    for t in (ctx.from_dlpack(array), ctx.from_numpy(array)):
        assert t.dtype == gb.bfloat16 and np.shares_memory(t.numpy(), array.view(np.uint16))
        assert t.tolist() == [1, 2.5, -3]


def test_tensors_of_two_contexts_share_memory(ctx, cpu):
    t = ctx.tensor((2, 3))
    ctx.allocate(cpu)
    t.set(numbers((2, 3)))
    other = gb.from_dlpack(t.T, "t")
    assert other.context is not ctx and other.shape == (3, 2)
    ctx.close()
    del t
    np.testing.assert_array_equal(other.numpy(), numbers((2, 3)).T)


def test_other_protocols(ctx):
    array = numbers((2, 3))

    class Interface:
        __array_interface__ = array.__array_interface__

    import array as arrays

    for given in (Interface(), memoryview(array), arrays.array("f", array.ravel().tolist()), mapped(array)):
        t = ctx.from_dlpack(given)
        np.testing.assert_array_equal(t.numpy().reshape(2, 3), array)
    assert np.shares_memory(ctx.from_dlpack(memoryview(array)).numpy(), array)


def mapped(array):
    memory = mmap.mmap(-1, array.nbytes)
    memory.write(array.tobytes())
    return np.frombuffer(memory, array.dtype).reshape(array.shape)


# ------------------------------------------------------------------------------------------------------------ strides


@pytest.mark.parametrize("axes", list(itertools.permutations(range(4))))
def test_axes_in_any_order(ctx, graph_of, axes):
    array = numbers((2, 3, 4, 5)).transpose(axes)
    t = ctx.from_dlpack(array)
    assert t.shape == array.shape and t.strides == array.strides
    assert np.shares_memory(t.numpy(), array)
    np.testing.assert_array_equal(np.from_dlpack(t), array)
    np.testing.assert_array_equal(graph_of(ctx, gb.ops.cont(t)), array)


STRIDED = {
    "rows": lambda a: a[1:, ::2], "columns": lambda a: a[..., 1:4], "steps": lambda a: a[0, :, :, ::2],
    "steps of a row": lambda a: a[0, 0, 0, ::3], "column": lambda a: a[1, 2, :, 4:5],
    "one": lambda a: a[1:, 2:3, 3:4, 4:],
    "unit axes": lambda a: a[:, None, 1, :, 2], "transposed steps": lambda a: a[0, :, ::2, ::2].T,
    "none of it": lambda a: a[:, 1:1, ::2],
    "four axes": lambda a: a[:, ::2, 1:, :3], "first": lambda a: a[..., 0],
}  # fmt: skip


@pytest.mark.parametrize("what", list(STRIDED))
def test_arrays_with_gaps_are_views(ctx, graph_of, what):
    array = STRIDED[what](numbers((2, 3, 4, 5)))
    t = ctx.from_dlpack(array, "x")
    assert t.shape == array.shape and t.name == "x"
    np.testing.assert_array_equal(t.numpy(), array)
    np.testing.assert_array_equal(np.from_dlpack(t), array)
    assert not array.size or np.shares_memory(t.numpy(), array)
    np.testing.assert_array_equal(graph_of(ctx, gb.ops.cont(t)), array)
    copy = ctx.from_dlpack(array, copy=True)
    assert not np.shares_memory(copy.numpy(), array) and copy.is_contiguous
    np.testing.assert_array_equal(copy.numpy(), array)


def test_a_view_with_a_step_is_written_in_place(ctx):
    array = numbers((4, 6))
    ctx.from_dlpack(array[::2, 1::2]).set(np.full((2, 3), 99, np.float32))
    expected = numbers((4, 6))
    expected[::2, 1::2] = 99
    np.testing.assert_array_equal(array, expected)


def test_products_with_weights_in_the_other_order(ctx, graph_of, rng):
    x, w = (rng.standard_normal(shape).astype(np.float32) for shape in ((3, 8), (8, 16)))
    flipped = ctx.from_dlpack(np.asfortranarray(w))
    np.testing.assert_allclose(graph_of(ctx, ctx.from_dlpack(x) @ flipped), x @ w, rtol=1e-5, atol=1e-5)


def unaligned(shape):
    return np.frombuffer(bytearray(4 * int(np.prod(shape)) + 1), np.uint8)[1:].view(np.float32).reshape(shape)


ONE_PLACE = "several elements of the array lie at one address"
NOT_SHARED = {
    "reversed": (lambda: numbers(6)[::-1], "axis 0 has a stride of -4 bytes, which no tensor has"),
    "four gaps": (
        lambda: numbers((2, 4, 6, 8))[:, ::2, ::2, ::2],
        "no tensor has gaps between the elements of all of its four axes",
    ),
    "repeated": (lambda: np.broadcast_to(numbers(5), (3, 5)), ONE_PLACE),
    "repeated column": (lambda: np.broadcast_to(numbers((4, 1)), (4, 5)), ONE_PLACE),
    "windows": (lambda: np.lib.stride_tricks.sliding_window_view(numbers(8), 3), ONE_PLACE),
    "unaligned": (lambda: unaligned((2, 3)), "the array begins at an address that is no multiple of 4"),
}


@pytest.mark.parametrize("what", list(NOT_SHARED))
def test_unshareable_arrays_are_copied_on_request(ctx, what):
    make, reason = NOT_SHARED[what]
    array = make()
    before = len(ctx.tensors())
    with pytest.raises(gb.errors.InvalidArgumentError) as caught:
        ctx.from_dlpack(array)
    assert str(caught.value) == f"from_dlpack: {reason}; copy=True gives the tensor memory of its own"
    assert len(ctx.tensors()) == before
    for copy in (None, True):
        t = ctx.from_dlpack(array, "x", copy=copy)
        assert t.name == "x" and not np.shares_memory(t.numpy(), array)
        np.testing.assert_array_equal(t.numpy(), array)
        t.set(0)


def test_copy_none_shares_if_possible(ctx):
    array = numbers((2, 3))
    assert np.shares_memory(ctx.from_dlpack(array, copy=None).numpy(), array)


def test_from_dlpack_in_a_context_with_memory_needs_a_copy():
    own = gb.Context(allocate=True)
    with pytest.raises(gb.errors.StateError, match=r"allocate=True.*use gb.Context\(\)"):
        own.from_dlpack(numbers(3))
    np.testing.assert_array_equal(own.from_dlpack(numbers(3), copy=True).numpy(), numbers(3))


# ---------------------------------------------------------------------------------------------------------- read-only


def test_read_only_arrays_are_never_written(ctx, graph_of):
    array = numbers((2, 3))
    array.flags.writeable = False
    t = ctx.from_dlpack(array)
    with pytest.raises(gb.errors.StateError, match="read-only"):
        t.set(0)
    assert not t.numpy().flags.writeable and np.shares_memory(t.numpy(), array)
    assert said(t.__dlpack__(max_version=(1, 0))).flags == READ_ONLY
    with pytest.raises(BufferError, match=r"is read-only, which DLPack cannot say before its version 1.0"):
        t.__dlpack__()
    if NUMPY_2_1:
        assert not np.from_dlpack(t).flags.writeable
    np.testing.assert_array_equal(graph_of(ctx, t * 2.0), array * 2)
    again = ctx.from_dlpack(t)
    with pytest.raises(gb.errors.StateError, match="read-only"):
        again.set(0)
    copy = ctx.from_dlpack(array, copy=True).set(5)
    assert (copy.numpy() == 5).all() and (array == numbers((2, 3))).all()


def test_constants_are_read_only(ctx, cpu):
    c = ctx.constant([1.0, 2.0])
    ctx.allocate(cpu)
    assert said(c.__dlpack__(max_version=(1, 0))).flags == READ_ONLY
    with pytest.raises(BufferError, match="read-only"):
        c.__dlpack__()
    assert said(c.__dlpack__(copy=True)).shape == (2,)


@pytest.mark.parametrize("flags", [0, READ_ONLY])
def test_a_library_that_reports_read_only(ctx, flags):
    t = ctx.from_dlpack(Library(numbers(3), flags=flags))
    assert t.numpy().flags.writeable == (not flags)


def test_a_library_without_flags_counts_as_read_only(ctx):
    library = Library(numbers(3), versioned=False)
    t = ctx.from_dlpack(library)
    assert not t.numpy().flags.writeable
    np.testing.assert_array_equal(t.numpy(), numbers(3))


# --------------------------------------------------------------------------------------------- arguments of __dlpack__


def test_streams_devices_and_copies(ctx):
    t = ctx.from_dlpack(numbers(3), "x")
    for stream in (0, 1, -1, object()):
        with pytest.raises(gb.errors.InvalidArgumentError, match="host memory has no streams"):
            t.__dlpack__(stream=stream)
    with pytest.raises(BufferError, match=r"'x' float32 \(3,\) is given in host memory, \(1, 0\), not in \(2, 0\)"):
        t.__dlpack__(dl_device=(2, 0))
    assert said(t.__dlpack__(dl_device=(1, 0), copy=False)).data == t.numpy().ctypes.data
    copied = said(t.__dlpack__(copy=True, max_version=(1, 0)))
    assert copied.flags == IS_COPIED and copied.data != t.numpy().ctypes.data
    with pytest.raises(TypeError):
        t.__dlpack__(None)


def test_device_memory(ctx, sim):
    t = ctx.tensor((2, 3), name="far")
    ctx.allocate(sim)
    t.set(numbers((2, 3)))
    for give in (t.__dlpack__, t.__dlpack_device__, lambda: np.from_dlpack(t)):
        with pytest.raises(BufferError, match=r"'far' float32 \(2, 3\) is in device memory: numpy\(\)"):
            give()
    with pytest.raises(BufferError, match="copy=False"):
        t.__dlpack__(dl_device=(1, 0), copy=False)
    found = said(t.__dlpack__(dl_device=(1, 0), max_version=(1, 0)))
    assert found.flags == IS_COPIED and found.shape == (2, 3)
    if NUMPY_2_1:
        np.testing.assert_array_equal(np.from_dlpack(t, device="cpu"), numbers((2, 3)))
        np.testing.assert_array_equal(np.from_dlpack(t, copy=True), numbers((2, 3)))
    with gb.Context() as other, pytest.raises(gb.errors.InvalidArgumentError, match="device memory"):
        other.from_dlpack(t)
    with gb.Context() as other:
        for copy in (None, True):
            np.testing.assert_array_equal(other.from_dlpack(t, copy=copy).numpy(), numbers((2, 3)))


@pytest.mark.parametrize("copy", [None, True])
def test_quantized_tensors_are_not_exported(ctx, cpu, copy):
    q = ctx.tensor((2, 32), gb.dtypes.q8_0, name="q")
    ctx.allocate(cpu)
    q.set(np.zeros((2, 32), np.float32), quantize=True)
    with pytest.raises(BufferError, match=r"DLPack has no q8_0; numpy\(\) has the bytes of 'q' q8_0 \(2, 32\)"):
        q.__dlpack__(copy=copy)


def test_invalid_content_is_not_exported(ctx, cpu):
    x = ctx.tensor(3, name="x")
    y = gb.ops.relu(x).named("y")
    ctx.graph(y)
    with pytest.raises(gb.errors.StateError, match="no memory"):
        x.__dlpack__()
    ctx.allocate(cpu)
    for give in (y.__dlpack__, lambda: y.__dlpack__(copy=True), lambda: np.from_dlpack(y)):
        with pytest.raises(gb.errors.StateError, match="not computed"):
            give()
    np.from_dlpack(x)  # arrays of unset inputs are allowed, to set them
    ctx.close()
    with pytest.raises(gb.errors.StateError, match="closed"):
        x.__dlpack__()


# ------------------------------------------------------------------------------------------------ capsules of libraries


REFUSED = {
    "device": ({"device_type": CUDA}, "from_dlpack: the array is in memory of a device (DLPack's type 2, number 0); it "
               "must be copied to the host's"),
    "version": ({"major": 2}, "from_dlpack: the array came by version 2.0 of DLPack; versions 1.x and those before are "
                "known"),
    "bool": ({"kind": "bool", "bits": 8}, "from_dlpack: bool is not a dtype of tensors: convert the array where it "
             "was made"),
    "uint16": ({"kind": "uint", "bits": 16}, "from_dlpack: uint16 is not a dtype of tensors; only the dtype marks "
               "bits as bfloat16: array.view(ml_dtypes.bfloat16) (pip install "
               "'ggml_backend[bfloat16]'), or ctx.tensor(array.shape, 'bfloat16').set(array)"),
    "complex64": ({"kind": "complex", "bits": 64}, "from_dlpack: complex64 is not a dtype of tensors: convert the "
                  "array where it was made"),
    "code": ({"code": 99}, "from_dlpack: DLPack's code 99 with 32 bits and 1 lanes is not a dtype of tensors: "
             "convert the array where it was made"),
    "lanes": ({"lanes": 4}, "from_dlpack: DLPack's code 2 with 32 bits and 4 lanes is not a dtype of tensors: "
              "convert the array where it was made"),
    "memory": ({"data": None}, "from_dlpack: the array has elements, and no memory"),
    "axes": ({"ndim": 5}, "from_dlpack: the array has 5 axes, tensors have at most 4"),
    "no axes": ({"ndim": -1}, "from_dlpack: the array has -1 axes, tensors have at most 4"),
    "no shape": ({"shape": None}, "from_dlpack: the array has no shape"),
    "negative": ({"shape": (2, -3)}, "from_dlpack: axis 1 of the array has -3 elements with a stride of 1"),
    "huge": ({"shape": (2**62, 2**62)}, "from_dlpack: axis 1 of the array has 4611686018427387904 elements with a "
             "stride of 1"),
    "far": ({"strides": (2**62, 1)}, "from_dlpack: axis 0 of the array has 2 elements with a stride of "
            "4611686018427387904"),
    "wide": ({"shape": (2**30, 2**30), "strides": (2**60, 1)}, "from_dlpack: the array leaves the address space: it "
             "begins 0 bytes behind its memory's address"),
}  # fmt: skip


@pytest.mark.parametrize("what", list(REFUSED))
@pytest.mark.parametrize("copy", [False, None, True])
def test_refused_capsules_stay_with_their_owner(ctx, what, copy):
    changes, message = dict(REFUSED[what][0]), REFUSED[what][1]
    for name in ("shape", "strides"):
        if isinstance(changes.get(name), tuple):
            values = (ctypes.c_int64 * 2)(*changes[name])
            changes[name] = ctypes.cast(values, ctypes.POINTER(ctypes.c_int64))
    if what == "wide" and copy is True:
        pytest.skip("NumPy is asked to copy what is not there")
    library = Library(numbers((2, 3)), **changes)
    with pytest.raises(gb.errors.InvalidArgumentError if what != "version" else gb.errors.UnsupportedError) as caught:
        ctx.from_dlpack(library, copy=copy)
    assert str(caught.value) == message
    del caught  # its traceback has the capsule
    gc.collect()
    assert library.deleted == library.given > 0
    assert ctx.tensors() == []


def test_a_capsule_is_consumed_once(ctx):
    library = Library(numbers(3))
    capsule = library.capsule()

    class Twice:
        def __dlpack__(self, **options):
            return capsule

    t = ctx.from_dlpack(Twice())
    with pytest.raises(gb.errors.InvalidArgumentError, match="invalid DLPack capsule, or one that was taken already"):
        ctx.from_dlpack(Twice())
    assert library.deleted == 0
    del t
    ctx.close()
    gc.collect()
    assert library.deleted == 1


@pytest.mark.parametrize("gives", [None, 3, "x", object(), b"", (1, 2)])
def test_no_capsule_at_all(ctx, gives):
    class Wrong:
        def __dlpack__(self, **options):
            return gives

    with pytest.raises(gb.errors.InvalidArgumentError, match="invalid DLPack capsule"):
        ctx.from_dlpack(Wrong())


def test_errors_of_a_library_are_reported(ctx):
    class Refuses:
        def __dlpack__(self, **options):
            raise BufferError("call detach() first")

    with pytest.raises(
        gb.errors.InvalidArgumentError, match=r"from_dlpack cannot take this .*Refuses: call detach\(\) first"
    ):
        ctx.from_dlpack(Refuses())
    with pytest.raises(gb.errors.InvalidArgumentError, match="from_dlpack: takes an array of numbers, not of object"):
        ctx.from_dlpack(object())


def test_missing_strides_and_byte_offsets_are_accepted(ctx):
    array = numbers((2, 3))
    none = ctypes.cast(None, ctypes.POINTER(ctypes.c_int64))
    for library in (
        Library(array, strides=none),
        Library(array, byte_offset=64),
        Library(array, strides=none, versioned=False),
    ):
        np.testing.assert_array_equal(ctx.from_dlpack(library).numpy(), array)


def test_the_library_is_asked_for_versions_and_copies(ctx):
    library = Library(numbers(3))
    ctx.from_dlpack(library)
    assert library.asked == [{"max_version": (1, 0)}]
    ctx.from_dlpack(library, copy=True)
    assert library.asked[1:] == [{"max_version": (1, 0), "dl_device": (1, 0)}]


# ---------------------------------------------------------------------------------------------------------- lifetimes


@pytest.mark.parametrize("versioned", [True, False])
def test_shared_memory_is_released_once(versioned):
    library = Library(numbers((2, 3)), versioned=versioned)
    ctx = gb.Context()
    t = ctx.from_dlpack(library)
    array, view = t.numpy(), np.from_dlpack(t.T) if versioned else None
    ctx.close()
    del t, ctx
    gc.collect()
    assert library.deleted == 0 and (array == numbers((2, 3))).all()
    del array
    assert library.deleted == (0 if versioned else 1)
    del view
    gc.collect()
    assert library.deleted == 1


def test_the_array_keeps_the_memory_of_the_tensor(cpu):
    ctx = gb.Context()
    t = ctx.tensor((4, 4))
    buffer = ctx.allocate(cpu)
    t.set(numbers((4, 4)))
    arrays = [np.from_dlpack(t), np.from_dlpack(t[1:])]
    buffer.close()
    ctx.close()
    del t, ctx, buffer
    gc.collect()
    np.testing.assert_array_equal(arrays[0], numbers((4, 4)))
    np.testing.assert_array_equal(arrays[1], numbers((4, 4))[1:])


def test_an_array_keeps_memory_of_a_scheduler(cpu):
    ctx = gb.Context()
    x = ctx.tensor((64, 64), name="x")
    y = (x * 2.0).named("y")
    sched = gb.Scheduler([cpu])
    graph = ctx.graph(y)
    sched.allocate(graph)
    x.set(1)
    sched.compute(graph)
    array = np.from_dlpack(y)
    sched.close()
    del sched
    gc.collect()
    assert (array == 2).all()


def test_unused_capsules_release_their_memory(ctx):
    array = numbers(1000)
    alive = weakref.ref(array)
    t = ctx.from_dlpack(array)
    capsules = [t.__dlpack__(), t.__dlpack__(max_version=(1, 0)), t.__dlpack__(copy=True)]
    del array, t
    ctx.close()
    gc.collect()
    assert alive() is not None
    del capsules
    gc.collect()
    assert alive() is None


@pytest.mark.parametrize("writable", [True, False])
@pytest.mark.parametrize("dtype", [">f4", ">i2", ">u2"])
def test_another_byte_order_is_refused_with_advice(ctx, dtype, writable):
    array = np.arange(3).astype(dtype)
    array.flags.writeable = writable
    words = rf"{dtype} is not a dtype of tensors; array.astype\(array.dtype.newbyteorder\('='\)\) has the bytes"
    for take in (gb.from_dlpack, ctx.from_dlpack, ctx.from_numpy):
        with pytest.raises(gb.errors.InvalidArgumentError, match=words):
            take(array)


def test_bits_of_bfloat16_are_refused_with_advice(ctx):
    bits = np.array([0x3F80, 0xC000], np.uint16)
    for take in (gb.from_dlpack, ctx.from_dlpack, ctx.from_numpy):
        with pytest.raises(
            gb.errors.InvalidArgumentError,
            match=r"uint16 is not a dtype of tensors.*; only the dtype marks bits as bfloat16: array.view",
        ):
            take(bits)
    assert gb.from_dlpack(bits.view(ml_dtypes.bfloat16)).numpy(np.float32).tolist() == [1, -2]
    t = ctx.tensor(bits.shape, "bfloat16")
    ctx.allocate(gb.Backend("CPU"))
    t.set(bits)
    assert t.numpy(np.float32).tolist() == [1, -2]


def test_a_tensor_is_freed_by_reference_counts_alone():
    array = numbers(10)
    alive = weakref.ref(array)
    gc.collect()
    gc.disable()
    try:
        t = gb.from_dlpack(array)
        back = np.from_dlpack(t)
        del array, t
        assert alive() is not None
        del back
        assert alive() is None
    finally:
        gc.enable()


@pytest.mark.parametrize("take", [gb.from_dlpack, lambda array: gb.Context().from_numpy(array)])
def test_a_mapping_under_a_tensor_cannot_be_closed(tmp_path, take):
    path = tmp_path / "x"
    numbers(1024).tofile(path)
    array = np.memmap(path, np.float32, "r")
    mapping = array._mmap
    t = take(array)
    del array
    gc.collect()
    with pytest.raises(BufferError, match="exported pointers exist"):
        mapping.close()
    np.testing.assert_array_equal(t.numpy(), numbers(1024))
    with pytest.raises(gb.errors.StateError, match="read-only"):
        t.set(0)
    del t
    gc.collect()
    mapping.close()


def test_a_shrinking_file_is_an_error(ctx, tmp_path, graph_of):
    path = tmp_path / "x"
    numbers(65536).tofile(path)
    t = ctx.from_dlpack(np.memmap(path, np.float32, "r+"))
    path.open("r+b").truncate(4096)
    with pytest.raises(gb.errors.FileError):
        graph_of(ctx, t * 2.0)


def test_arrays_in_one_context_do_not_overlap(ctx):
    arrays = [np.full(3, i, np.float32) for i in range(500)]
    tensors = [ctx.from_dlpack(a) for a in arrays]
    for i, (a, t) in enumerate(zip(arrays, tensors, strict=True)):
        assert np.shares_memory(t.numpy(), a) and t.tolist() == [i] * 3


def test_threads_exchange_arrays():
    """Threads export and import arrays, while tensors, arrays and contexts are freed."""
    shared = gb.from_dlpack(numbers((8, 8)))

    def work(_):
        for i in range(200):
            ctx = gb.Context()
            t = ctx.from_dlpack(np.from_dlpack(shared if i % 2 else ctx.from_dlpack(numbers((8, 8)))))
            array = np.from_dlpack(t)
            ctx.close()
            assert (array == numbers((8, 8))).all()

    run_threads(4, work)


def test_a_capsule_can_be_freed_on_a_foreign_thread(ctx):
    """A C library frees the memory on a thread unknown to Python."""
    import threading

    alive = weakref.ref(array := numbers(100))
    t = ctx.from_dlpack(array)
    capsule = t.__dlpack__(max_version=(1, 0))
    from capsules import ManagedVersioned, api

    address = api.PyCapsule_GetPointer(capsule, VERSIONED)
    managed = ManagedVersioned.from_address(address)
    api.PyCapsule_SetName.argtypes = [ctypes.py_object, ctypes.c_char_p]
    used = ctypes.create_string_buffer(b"used_dltensor_versioned")
    api.PyCapsule_SetName(capsule, ctypes.cast(used, ctypes.c_char_p))
    give_back = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(ctypes.cast(managed.deleter, ctypes.c_void_p).value)
    del array, t, capsule
    ctx.close()
    gc.collect()
    assert alive() is not None
    thread = threading.Thread(target=give_back, args=(address,))  # without the GIL, as ctypes calls C
    thread.start()
    thread.join()
    assert alive() is None


EXITS = {
    "array": "kept = np.from_dlpack(t)",
    "capsule": "kept = t.__dlpack__(max_version=(1, 0))",
    "copy": "kept = t.__dlpack__(copy=True)",
    "cycle": "kept = [np.from_dlpack(t)]; kept.append(kept)",
    "builtins": "import builtins; builtins.kept = [np.from_dlpack(t), t, array]",
    "unloaded": (
        "kept = np.from_dlpack(t)\n"
        "for m in [m for m in sys.modules if m.startswith('ggml_backend')]: del sys.modules[m]"
    ),
    "finalizer": "class D:\n    def __del__(self): self.a[0] += 1\nd = D(); d.a = np.from_dlpack(t)",
    "closed": "kept = np.from_dlpack(t); ctx.close(); del t",
    "daemon": (
        "event = threading.Event()\n"
        "def loop():\n    event.set()\n    while True: np.from_dlpack(ctx2.from_dlpack(np.ones(8, np.float32)))\n"
        "ctx2 = gb.Context(); threading.Thread(target=loop, daemon=True).start(); event.wait()"
    ),
}  # fmt: skip


@pytest.mark.parametrize("ending", list(EXITS))
def test_the_interpreter_exits_with_live_arrays(holds, ending):
    holds("ctx = gb.Context(); array = np.ones((4, 4), np.float32); t = ctx.from_dlpack(array)\n" + EXITS[ending])


# ------------------------------------------------------------------------------------- set, constants, custom operators


class Torch:
    """Like PyTorch's bfloat16 tensor: NumPy cannot read it, DLPack can."""

    def __init__(self, library):
        self.library = library

    def __array__(self, *args, **options):
        raise TypeError("Got unsupported ScalarType BFloat16")

    def __dlpack__(self, **options):
        return self.library.__dlpack__(**options)


@pytest.mark.parametrize("kind", [Torch, lambda library: library], ids=["with __array__", "without"])
def test_bfloat16_of_other_libraries_needs_no_package(ctx, cpu, monkeypatch, kind):
    monkeypatch.setitem(sys.modules, "ml_dtypes", None)
    values = [[1, -2.5, 3], [4, 0.5, -6]]
    library = Library(bfloat16(values), kind="bfloat")
    given = kind(library)
    t = ctx.tensor((2, 3), gb.bfloat16, name="t")
    f = ctx.tensor((2, 3), name="f")
    c = ctx.constant(given)
    shared = ctx.from_numpy(given)
    ctx.allocate(cpu)
    assert t.set(given).tolist() == values
    assert c.dtype == gb.bfloat16 and c.tolist() == values
    assert shared.dtype == gb.bfloat16 and np.shares_memory(shared.numpy(), library.array)
    assert f.set(given, quantize=True).tolist() == values
    assert gb.dequantize(gb.quantize(given, "float32"), "float32").tolist() == values
    with pytest.raises(gb.errors.InvalidArgumentError, match=r"'f' float32.*cannot take an array of bfloat16"):
        f.set(given)
    with pytest.raises(gb.errors.InvalidArgumentError, match=r"'t' bfloat16.*cannot take an array of shape"):
        t.set(kind(Library(bfloat16([1, 2]), kind="bfloat")))
    gc.collect()
    assert library.given - library.deleted == 1  # `shared` keeps the last one


def test_arrays_of_other_libraries_keep_their_dtype_in_constants(ctx):
    half = Library(np.array([1, 2], np.float16))
    assert ctx.constant(half).dtype == gb.float16
    assert ctx.constant(Library(np.array([1, 2]))).dtype == gb.dtypes.int64
    assert ctx.constant([1.0, 2]).dtype == gb.float32


def test_set_takes_arrays_of_any_protocol(ctx, cpu):
    t = ctx.tensor((2, 3), name="t")
    ctx.allocate(cpu)
    expected = numbers((2, 3))
    for given in (Library(expected), Library(expected.T.copy().T), memoryview(expected), ctx.from_dlpack(expected)):
        t.set(0)
        np.testing.assert_array_equal(t.set(given).numpy(), expected)
    with pytest.raises(gb.errors.InvalidArgumentError, match=r"'t' float32.*cannot take an array of float64"):
        t.set(Library(expected.astype(np.float64)))
    with pytest.raises(gb.errors.InvalidArgumentError, match=r"cannot take an array of shape \(3, 2\)"):
        t.set(Library(expected.reshape(3, 2)))
    with pytest.raises(gb.errors.InvalidArgumentError, match="memory of a device"):
        t.set(Library(expected, device_type=CUDA))


@pytest.mark.parametrize("kind", [Torch, lambda library: library], ids=["with __array__", "without"])
@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_functions_return_arrays_of_other_libraries(ctx, cpu, graph_of, monkeypatch, kind, dtype):
    monkeypatch.setitem(sys.modules, "ml_dtypes", None)
    values = [[1, -2.5, 3], [4, 0.5, -6]]
    x = ctx.tensor((2, 3), dtype)
    ctx.allocate(cpu)
    x.set(0)

    def function(out, a):
        return kind(Library(bfloat16(values), kind="bfloat"))

    for y in (gb.ops.map_custom(function, x), gb.ops.custom(function, x, shape=(2, 3), dtype=dtype)):
        assert gb.dequantize(graph_of(ctx, y), dtype).tolist() == values


def test_arithmetic_with_arrays_suggests_from_dlpack(ctx):
    t = ctx.tensor(3, name="t")
    for act in (lambda a: t + a, lambda a: a * t, lambda a: gb.ops.mul(t, a)):
        with pytest.raises(
            TypeError,
            match=r"Library; ctx.from_dlpack\(value\) makes one over its memory, ctx.constant\(value\) one with a copy",
        ):
            act(Library(numbers(3)))


# ----------------------------------------------------------------------------------------------- asarray, and buffers


def test_asarray_without_a_copy_never_copies(sim, cpu):
    near, far, half = gb.Context(), gb.Context(), gb.Context()
    t, d, b = near.tensor((2, 3)), far.tensor((2, 3)), half.tensor(3, gb.bfloat16)
    near.allocate(cpu), far.allocate(sim), half.allocate(cpu)
    for x in (t, d, b):
        x.set(0)
    if np.lib.NumpyVersion(np.__version__) >= "2.0.0":
        assert np.shares_memory(np.asarray(t, copy=False), t.numpy())
        for what in (lambda: np.asarray(d, copy=False), lambda: np.asarray(t, np.float64, copy=False),
                     lambda: np.asarray(b, np.float32, copy=False), lambda: np.array(d, copy=False)):  # fmt: skip
            with pytest.raises(ValueError, match="copy"):
                what()
    for what in (lambda: d.numpy(copy=False), lambda: t.numpy(np.float64, copy=False),
                 lambda: b.numpy(np.float32, copy=False)):  # fmt: skip
        with pytest.raises(gb.errors.StateError, match="takes a copy"):
            what()
    assert b.numpy(np.float32).dtype == np.float32 and np.asarray(b, np.float32).dtype == np.float32
    assert b.numpy(np.uint16, copy=False).dtype == np.uint16


@pytest.mark.skipif(sys.version_info < (3, 12), reason="classes of Python have buffers from Python 3.12 (PEP 688)")
def test_buffers(ctx, cpu, sim):
    t, b, q = ctx.tensor((2, 3)), ctx.tensor(3, gb.bfloat16), ctx.tensor(32, gb.dtypes.q8_0)
    c = ctx.constant([1.0, 2.0])
    buffer = ctx.allocate(cpu)
    t.set(numbers((2, 3))), b.set(np.ones(3, np.uint16)), q.set(...)
    view = memoryview(t)
    assert (view.shape, view.format, view.readonly) == ((2, 3), "f", False)
    view[1, 2] = 99
    assert t.numpy()[1, 2] == 99
    assert memoryview(c).readonly and memoryview(t.T).strides == (4, 12)
    assert np.shares_memory(np.frombuffer(t, np.float32), t.numpy())
    with pytest.raises(TypeError, match="not writable"):
        (ctypes.c_float * 2).from_buffer(c)
    (ctypes.c_float * 6).from_buffer(t)[0] = 98
    assert t.numpy()[0, 0] == 98
    for x in (b, q):
        with pytest.raises(BufferError, match="a buffer has no"):
            memoryview(x)
    np.testing.assert_array_equal(np.asarray(b, np.float32), b.numpy(np.float32))  # values, not bits
    assert np.asarray(q).dtype == np.uint8
    with gb.Context() as far:
        d = far.tensor(3, name="d")
        with pytest.raises(BufferError, match="no memory"):
            memoryview(d)
        far.allocate(sim)
        with pytest.raises(BufferError, match="device memory"):
            memoryview(d)
        d.set(2)
        assert np.asarray(d).tolist() == [2, 2, 2]
    buffer.close()
    ctx.close()
    assert view[0, 1] == 1
    np.frombuffer(view.cast("B"), np.uint8)


def test_the_buffer_of_a_tensor(ctx, cpu, sim):
    """``buffer_of`` makes the buffers of the test above. It works with every version of Python."""
    t, b, c = ctx.tensor((2, 3), name="t"), ctx.tensor(3, gb.bfloat16, name="b"), ctx.constant([1.0, 2.0])
    with pytest.raises(BufferError, match="no memory"):
        buffer_of(t, 0)
    ctx.allocate(cpu)
    t.set(numbers((2, 3)))
    view = buffer_of(t, 1)
    assert (view.shape, view.format, view.strides, view.readonly) == ((2, 3), "f", (12, 4), False)
    view[1, 2] = 99
    assert t.numpy()[1, 2] == 99
    assert buffer_of(c, 0).readonly
    with pytest.raises(BufferError, match="is read-only"):
        buffer_of(c, 1)
    with pytest.raises(BufferError, match="a buffer has no bfloat16"):
        buffer_of(b, 0)
    with gb.Context() as far:
        d = far.tensor(3, name="d")
        far.allocate(sim)
        with pytest.raises(BufferError, match=r"'d' .*device memory"):
            buffer_of(d, 0)
    ctx.close()
    assert view[0, 1] == 1


def test_buffers_need_python_3_12(ctx):
    t = ctx.from_dlpack(numbers(3))
    if sys.version_info < (3, 12):
        assert not hasattr(t, "__buffer__")
        with contextlib.suppress(TypeError):
            memoryview(t)
            raise AssertionError("a buffer")


# ------------------------------------------------------------------------------------------- C functions of the type


def library_with(**tables):
    """A type with C functions for export (DLPack 1.3), and an array of it."""

    class Offering(Library):
        exported = 0

    def export(array):
        array.exported += 1
        return array.managed()

    Offering.__dlpack_c_exchange_api__ = functions(export, **tables)
    return Offering(numbers((2, 3)))


def test_c_functions_of_the_type_are_used(ctx):
    given = library_with()
    t = ctx.from_dlpack(given, "x")
    assert (given.exported, given.given, given.deleted) == (1, 0, 0)
    np.testing.assert_array_equal(t.numpy(), numbers((2, 3)))
    assert np.shares_memory(t.numpy(), given.array)
    assert ctx.from_dlpack(given, copy=True).tolist() == numbers((2, 3)).tolist()
    ctx.close()
    del t
    gc.collect()
    assert given.deleted == given.exported + given.given


def test_unused_results_of_c_functions_are_released(ctx):
    given = library_with()
    given.array = np.zeros(3, np.complex64)
    with pytest.raises(gb.errors.InvalidArgumentError, match="complex64 is not a dtype of tensors"):
        ctx.from_dlpack(given)
    gc.collect()
    assert given.exported == 1 and given.deleted == given.exported + given.given


def test_c_functions_of_a_newer_version_fall_back_to_older_ones(ctx):
    given = library_with()
    table = type(given).__dlpack_c_exchange_api__
    type(given).__dlpack_c_exchange_api__ = functions(lambda array: 1 / 0, major=2, before=table)
    assert ctx.from_dlpack(given).tolist() == numbers((2, 3)).tolist()
    assert (given.exported, given.given) == (1, 0)


def failing(array):
    raise BufferError("not this way")


@pytest.mark.parametrize(
    "table",
    [
        functions(failing), functions(lambda array: 0), functions(None), functions(failing, major=2),
        functions(failing, major=0), functions(failing, name=b"another"), "no capsule", None, 7,
    ],
)  # fmt: skip
def test_failing_c_functions_fall_back_to_dlpack(ctx, table):
    given = library_with()
    type(given).__dlpack_c_exchange_api__ = table
    assert ctx.from_dlpack(given).tolist() == numbers((2, 3)).tolist()
    assert (given.exported, given.given) == (0, 1)


def test_subclasses_and_gradients_do_not_use_c_functions(ctx):
    given = library_with()

    class Derived(type(given)):
        pass

    derived = Derived(numbers(3))
    assert ctx.from_dlpack(derived).tolist() == [0, 1, 2] and (derived.exported, derived.given) == (0, 1)
    given.requires_grad = True
    assert ctx.from_dlpack(given).tolist() == numbers((2, 3)).tolist() and (given.exported, given.given) == (0, 1)
