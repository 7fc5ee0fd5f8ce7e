"""Complete texts of errors for usual mistakes, to be read as prose.

A message names the call and its operands, in the caller's words and order, with shapes as NumPy
writes them. It states what is wrong, with the values. For a usual mistake it suggests what the
caller meant. It names no function of C.
"""

from __future__ import annotations

import inspect
import re
import sys

import numpy as np
import pytest

import ggml_backend as gb
from ggml_backend._base import errors as _errors
from ggml_backend._base.errors import messages
from ggml_backend._ffi import ffi, lib
from ggml_backend.ops._unary import UNARY


class FakeTorch:
    """Stands for a tensor of bfloat16 of another library: NumPy cannot take it."""

    def __array__(self, *args, **options):
        raise TypeError("Got unsupported ScalarType BFloat16")


FakeTorch.__module__, FakeTorch.__qualname__ = "torch", "Tensor"


class Names(dict):
    """What the lines below refer to, made when they do."""

    def __missing__(self, name):
        self[name] = getattr(self, f"make_{name}")()
        return self[name]

    def make_ctx(self):
        return gb.Context()

    def make_host(self):  # each tensor has memory
        return gb.Context(allocate=True, usage="weights")

    def make_cpu(self):
        return gb.Backend("CPU", n_threads=1)

    def make_sim(self):
        return gb.Backend("SIM")

    def make_sched(self):
        return gb.Scheduler([self["cpu"]])

    def make_x(self):
        return self["ctx"].tensor((16, 128), name="x")

    def make_w(self):
        return self["ctx"].tensor((64, 128), name="w")

    def make_v(self):
        return self["ctx"].tensor((64, 100), name="v")

    def make_image(self):
        return self["ctx"].tensor((1, 4, 8, 8), name="image")

    def make_data(self):
        return self["host"].tensor((2, 3), name="data").set(0)

    def make_q(self):
        return self["host"].tensor((2, 256), "q4_k", name="q").set(np.zeros((2, 144), np.uint8))

    def make_ids(self):
        return self["host"].tensor(4, gb.int32, name="ids").set(0)

    def make_far(self):  # in device memory
        far = gb.Context()
        tensor = far.tensor((2, 2), name="far")
        far.allocate(self["sim"])
        return tensor.set(0)

    def make_gone(self):
        with gb.Context() as closed:
            return closed.tensor((2, 2), name="gone")

    def make_allocate_huge(self):
        def allocate(backends):
            huge = gb.Context().tensor((2**20, 2**20), name="huge")
            gb.Scheduler(backends).allocate(huge.context.graph(gb.relu(huge)))

        return allocate

    def make_arr(self):
        return np.zeros((2, 3), np.float32)

    def make_wide(self):
        return self["ctx"].from_numpy(np.ones((1, 8)), "wide")

    def make_half(self):
        return self["ctx"].from_numpy(np.ones((4, 8), np.float16), "half")

    def make_whole(self):
        return self["ctx"].from_numpy(np.ones((4, 8), np.int32), "whole")

    def make_single(self):
        return self["ctx"].from_numpy(np.ones((4, 8), np.float32), "single")

    def make_result(self):
        result = (self["single"] * 2).named("result")
        self["sched"].compute(self["ctx"].graph(result))
        return result

    def make_freed(self):
        freed = (self["single"] * 3).named("freed")
        gb.Scheduler(self["cpu"]).compute(self["ctx"].graph(freed))
        return freed

    def make_copied(self):  # of the tensor "here" of a graph that was copied
        graph = self["ctx"].graph(self["ctx"].from_numpy(np.ones((4, 8), np.float32), "here") * 2)
        self["sched"].compute(graph)
        return graph.copy(self["cpu"])["here"]

    def make_compute(self):
        return lambda y: self["sched"].compute(self["ctx"].graph(y))

    def make_replaced(self):  # a result of an earlier graph that is in the middle of the one that is allocated now
        def replaced():
            y = (self["single"] * 2).named("y")
            self["compute"](y)
            self["sched"].allocate(self["ctx"].graph(y + 1))
            return y

        return replaced

    def make_huge(self):
        def huge():
            context = gb.Context()
            context.tensor((2, 2), name="small")
            return context.tensor((1 << 20, 1 << 20), name="huge")

        return huge

    def make_sim_of_a_mib(self):
        return gb.Backend("SIM", mem="1M")

    def make_torch_tensor(self):
        return FakeTorch()


E, S, T, U, A, N = (
    gb.InvalidArgumentError,
    gb.StateError,
    TypeError,
    gb.UnsupportedError,
    gb.AllocationError,
    AttributeError,
)

MISTAKES = [
    # products
    ("x @ w", E, "a @ b: a 'x' float32 (16, 128), b 'w' float32 (64, 128): the last axis of a (128) and the last but "
     "one axis of b (64) differ; did you mean a @ b.T?"),
    ("x @ v.T", E, "a @ b: a 'x' float32 (16, 128), b 'v (transposed)' float32 (100, 64): the last axis of a (128) and "
     "the last but one axis of b (100) differ"),
    ("w.T @ x.T", E, "a @ b: a 'w (transposed)' float32 (128, 64), b 'x (transposed)' float32 (128, 16): the last axis "
     "of a (64) and the last but one axis of b (128) differ; did you mean a.T @ b?"),
    ("ctx.tensor((2, 3, 4), name='p') @ ctx.tensor((5, 4, 6), name='r')", E,
     "a @ b: a 'p' float32 (2, 3, 4), b 'r' float32 (5, 4, 6): the batch axes (2,) and (5,) do not broadcast"),
    ("ctx.tensor(()) @ x", E,
     "a @ b: a float32 (), b 'x' float32 (16, 128): a tensor without axes has no products of rows; use *"),
    ("x @ 'w'", T, "a @ b: b must be a tensor, a number or an array, not str"),
    ("gb.mul_mat(v, x)", E,
     "mul_mat: a 'v' float32 (64, 100), b 'x' float32 (16, 128): axis -1 of a and b must be equal (100 != 128); "
     "mul_mat(a, b) multiplies rows by rows: it is b @ a.T"),
    ("gb.out_prod(x, v)", E,
     "out_prod: a 'x' float32 (16, 128), b 'v' float32 (64, 100): axis -2 of a and b must be equal (16 != 64)"),
    ("gb.mul_mat_id(w, ids, 0, x)", T, "mul_mat_id: matrices must be a list of tensors, not one Tensor"),
    ("gb.mul_mat_id([w, v], ctx.tensor((16, 1), 'i32', name='which'), 0, x)", E,
     "mul_mat_id: matrices[0] 'w' float32 (64, 128), matrices[1] 'v' float32 (64, 100), ids 'which' int32 (16, 1), b "
     "'x' float32 (16, 128): axis -1 of matrices[0] and matrices[1] must be equal (128 != 100)"),
    # elementwise
    ("x + v", E, "a + b: a 'x' float32 (16, 128), b 'v' float32 (64, 100): the shapes do not broadcast, axis -1 has "
     "128 and 100 elements"),
    ("x - ctx.tensor((4, 128), name='y')", E,
     "a - b: a 'x' float32 (16, 128), b 'y' float32 (4, 128): the shapes do not broadcast, axis -2 has 16 and 4 "
     "elements; gb.sub(a, b) repeats b over a"),
    ("np.zeros((16, 128), np.float32) * data", E,
     "a * b: a float32 (16, 128), b 'data' float32 (2, 3): the shapes do not broadcast, axis -1 has 128 and 3 "
     "elements"),
    ("x / np.ones(128)", E, "a / b: b is an array of float64, where float32 is needed: b.astype(np.float32)"),
    ("x + np.arange(128)", E, "a + b: b is an array of int64, where float32 is needed: b.astype(np.float32)"),
    ("x * None", T, "a * b: b must be a tensor, a number or an array, not NoneType"),
    ("x + torch_tensor", T,
     "a + b: b must be a tensor, a number or an array, not torch.Tensor; ctx.from_dlpack(value) makes one over its "
     "memory, ctx.constant(value) one with a copy"),
    ("True - x", T, "a - b: a must be a tensor, a number or an array, not bool"),
    ("x ** 3", T, "a ** b: the exponents 2 and 0.5 are possible, not 3; a * a * a is a third power"),
    ("gb.mul(ctx.tensor(128, name='row'), x)", E,
     "mul: a 'row' float32 (128,), b 'x' float32 (16, 128): axis -2 of a must be a multiple of that of b (1, 16); "
     "missing axes count as 1; b repeats over a, not a over b: a * b broadcasts as NumPy does"),
    ("gb.add(x, v)", E, "add: a 'x' float32 (16, 128), b 'v' float32 (64, 100): axis -1 of a must be a multiple of "
     "that of b (128, 100)"),
    ("gb.add1(x, w)", E, "add1: a 'x' float32 (16, 128), b 'w' float32 (64, 128): b must be a scalar, axis -1 is 128"),
    ("gb.scale(x, w)", E, "scale: a 'x' float32 (16, 128): s must be a number, not Tensor; mul multiplies by a tensor"),
    ("gb.unary(x, 'gelu_quik')", E,
     f"unary: op must be one of {', '.join(map(repr, sorted(UNARY)))}, not 'gelu_quik'; did you mean 'gelu_quick'?"),
    ("gb.relu(arr)", T, "relu: a must be a Tensor, not numpy.ndarray; ctx.constant(value) makes one, and "
     "ctx.from_numpy(array) one over its memory"),
    ("gb.relu(torch_tensor)", T,
     "relu: a must be a Tensor, not torch.Tensor; ctx.from_dlpack(value) makes one over its memory, "
     "ctx.constant(value) one with a copy"),
    ("gb.relu('x')", T, "relu: a must be a Tensor, not str"),
    # rows, reductions, joining
    ("gb.get_rows(w, x[0])", E,
     "get_rows: a 'w' float32 (64, 128), b 'x (view)' float32 (128,): b must be int32, is float32; make b with dtype "
     "gb.int32"),
    ("gb.get_rows(w, ctx.tensor(4, gb.int64, name='i'))", E,
     "get_rows: a 'w' float32 (64, 128), b 'i' int64 (4,): b must be int32, is int64; make b with dtype gb.int32 "
     "(integers of NumPy are int64 by default)"),
    ("gb.get_rows(w, ctx.tensor((2, 4), gb.int32, name='i'))", E,
     "get_rows: a 'w' float32 (64, 128), b 'i' int32 (2, 4): axis -3 of a must equal axis -2 of b (1 != 2); missing "
     "axes count as 1; reshape b to one axis to pick rows of one matrix"),
    ("gb.get_rows(w, [0, 1])", T,
     "get_rows: b must be a Tensor, not list; ctx.constant(value) makes one, and ctx.from_numpy(array) one over its "
     "memory"),
    ("gb.soft_max(x.T)", E,
     "softmax: a 'x (transposed)' float32 (128, 16): a must be contiguous; a.contiguous() makes a copy that is"),
    ("gb.soft_max(x, w)", E,
     "softmax: a 'x' float32 (16, 128), mask 'w' float32 (64, 128): axis -2 of a must be a multiple of that of mask "
     "(16, 64)"),
    ("gb.argmax(image)", E, "argmax: a 'image' float32 (1, 4, 8, 8): a must be a matrix, axis -3 is 4; "
     "gb.argmax(a, axis=-1) takes any number of axes"),
    ("gb.top_k(x, 200)", E, "top_k: a 'x' float32 (16, 128): k must be in 1 .. 128, is 200"),
    ("gb.repeat(x, (3, 3))", E,
     "repeat: a 'x' float32 (16, 128) cannot become (3, 3): each size must be a multiple of that of a"),
    ("gb.concat(x, w)", E,
     "concat: a 'x' float32 (16, 128), b 'w' float32 (64, 128): along axis -3 all other axes must be equal, but axis "
     "-2 has 16 and 64 elements; axis=0 would do"),
    ("gb.concat(x, v, axis=0)", E,
     "concat: a 'x' float32 (16, 128), b 'v' float32 (64, 100): along axis -2 all other axes must be equal, but axis "
     "-1 has 128 and 100 elements"),
    ("gb.concat(x, w, axis=5)", E, "concat: a 'x' float32 (16, 128), b 'w' float32 (64, 128): there is no axis 5"),
    ("gb.concat(x, ids)", E,
     "concat: a 'x' float32 (16, 128), b 'ids' int32 (4,): a and b must have the same dtype; b.astype('float32') "
     "converts"),
    ("gb.concat([x, arr])", T,
     "concat: tensors[1] must be a Tensor, not numpy.ndarray; ctx.constant(value) makes one, and ctx.from_numpy(array) "
     "one over its memory"),
    ("gb.concat([])", E, "concat: needs at least one tensor"),
    ("gb.cpy(x, v)", E, "cpy: a 'x' float32 (16, 128), b 'v' float32 (64, 100): must have equally many elements (2048 "
     "!= 6400)"),
    ("gb.pad(x, -1)", E, "pad: amounts are not negative, but (-1,)"),
    # shapes and views
    ("x.reshape(3, 5)", E, "reshape: 'x' float32 (16, 128) cannot become (3, 5): it has 2048 elements, that shape 15"),
    ("x.reshape(7, -1)", E,
     "reshape: 'x' float32 (16, 128) cannot become (7, -1): its 2048 elements are no multiple of 7"),
    ("x.reshape(-1, -1)", E, "reshape: 'x' float32 (16, 128) cannot become (-1, -1): only one size may be -1"),
    ("gb.reshape(x.T, 2048)", E,
     "reshape: a 'x (transposed)' float32 (128, 16): a must be contiguous; a.reshape(...) copies where it must"),
    ("q.reshape(-1, 16)", E,
     "reshape: q4_k stores rows in blocks of 256 elements; the last axis of the shape (32, 16) is no multiple"),
    ("x.transpose(0, 0)", E, "transpose: (0, 0) is no order of the 2 axes of 'x' float32 (16, 128)"),
    ("x.swapaxes(0, 2)", E, "swapaxes: 'x' float32 (16, 128) has no axes 0 and 2"),
    ("x[[0, 1]]", T, "x[...]: a tensor is indexed by integers, slices, ... and None, not by list; gb.get_rows(x, ids) "
     "picks rows by int32 indices"),
    ("x[x]", T, "x[...]: a tensor is indexed by integers, slices, ... and None, not by Tensor; gb.get_rows(x, ids) "
     "picks rows by int32 indices"),
    ("x[::-1]", E, "x[...]: steps are positive, not -1, in a view of 'x' float32 (16, 128)"),
    ("x[0, 0, 0]", E, "x[...]: too many indices, 3 for the 2 axes of 'x' float32 (16, 128)"),
    ("x[16]", IndexError, "x[...]: index 16 is out of range for axis 0 of 'x' float32 (16, 128)"),
    ("q[:, :128]", E, "x[...]: rows of 'q' q4_k (2, 256) are blocks of 256 elements, which cannot be cut: take whole "
     "rows"),
    ("x.__setitem__(0, 1.0)", T,
     "x[...] = value: a tensor has no item assignment; x[...].set(value) writes its data, gb.set(x, b) is a node"),
    ("gb.view(x, (100, 100))", E,
     "view: a view of shape (100, 100) would reach 40000 bytes into 'x' float32 (16, 128), which has 8192"),
    ("bool(x)", T, "a tensor has no truth value: its data is known only after its graph has run"),
    ("np.floor(x)", T, "np.floor: NumPy computes at once, a tensor has data when its graph has run: use the functions "
     "of gb, or x.numpy()"),
    ("np.sum(x)", T, "np.add.reduce: NumPy computes at once, a tensor has data when its graph has run: use the "
     "functions of gb, or x.numpy()"),
    ("arr.__iadd__(data)", T,
     "np.add: the result for a tensor is a node, which an array cannot take; write a = a + b, not a += b"),
    # networks
    ("gb.rope(image, ids[:3])", E,
     "rope: a 'image' float32 (1, 4, 8, 8), positions 'ids (view)' int32 (3,): axis -3 of a must equal axis -1 of "
     "positions (4 != 3)"),
    ("gb.rope(image, x[0])", E,
     "rope: a 'image' float32 (1, 4, 8, 8), positions 'x (view)' float32 (128,): positions must be int32, is float32; "
     "make positions with dtype gb.int32"),
    ("gb.rope(image, ids, mode='neo')", E,
     "rope: mode must be one of 'normal', 'neox', 'glm', 'normal_exact', 'neox_exact', not 'neo'; did you mean 'neox' "
     "or 'neox_exact'?"),
    ("gb.conv_2d(ctx.tensor((8, 3, 3, 3), 'f16', name='k'), image)", E,
     "conv_2d: kernel 'k' float16 (8, 3, 3, 3), data 'image' float32 (1, 4, 8, 8): axis -3 of kernel and data must be "
     "equal (3 != 4)"),
    ("gb.conv_2d(ctx.tensor((8, 4, 9, 9), 'f16', name='k'), image)", E,
     "conv_2d: kernel 'k' float16 (8, 4, 9, 9), data 'image' float32 (1, 4, 8, 8): the kernel (9) does not fit into "
     "the padded input (8) along axis -1; the order is conv_2d(kernel, data): are they swapped?"),
    ("gb.conv_2d(ctx.tensor((8, 4, 3, 3), 'f16', name='k'), image, stride=0)", E,
     "conv_2d: kernel 'k' float16 (8, 4, 3, 3), data 'image' float32 (1, 4, 8, 8): stride must be in 1 .. 2147483647, "
     "is 0"),
    # what is reshaped or transposed first is told of as it was given
    ("gb.pool_2d(ctx.tensor((2, 3, 4, 4), name='photos'), 'max', 7)", E,
     "pool_2d: a 'photos' float32 (2, 3, 4, 4): the kernel (7) does not fit into the padded input (4) along axis -1"),
    ("gb.pool_1d(ctx.tensor((2, 3, 4), name='sounds'), 'max', 7)", E,
     "pool_1d: a 'sounds' float32 (2, 3, 4): the kernel (7) does not fit into the padded input (4) along axis -1"),
    ("gb.norm(x, eps=-1.0, axis=0)", E, "norm: a 'x' float32 (16, 128): eps must be above 0, is -1"),
    ("gb.rms_norm(x, eps=-1.0, axis=0)", E, "rms_norm: a 'x' float32 (16, 128): eps must be above 0, is -1"),
    ("x.reshape(2, 8, 128) @ ctx.tensor((2, 5, 128), name='keys').T", E,
     "a @ b: a 'x (reshaped)' float32 (2, 8, 128), b 'keys (permuted)' float32 (128, 5, 2): the last axis of a (128) "
     "and the last but one axis of b (5) differ; b is the transpose of 'keys' float32 (2, 5, 128), and .T reverses all "
     "axes: did you mean a @ keys.swapaxes(-1, -2)?"),
    ("x.reshape(2, 8, 128) @ ctx.tensor((2, 5, 128)).T", E,
     "a @ b: a 'x (reshaped)' float32 (2, 8, 128), b float32 (128, 5, 2): the last axis of a (128) and the last but "
     "one axis of b (5) differ; b is the transpose of that tensor k, float32 (2, 5, 128), and .T reverses all axes: "
     "did you mean a @ k.swapaxes(-1, -2)?"),
    ("gb.cluster.start(3)", T, "start() takes 0 positional arguments but 1 was given"),
    ("gb.cluster.start(deadlien=3)", T, "start() got an unexpected keyword argument 'deadlien'"),
    ("gb.pool_2d(image[0], 'mean', 2)", E, "pool_2d: op must be one of 'max', 'avg', not 'mean'"),
    ("gb.flash_attn(x, w, v)", E,
     "flash_attn: q 'x' float32 (16, 128), k 'w' float32 (64, 128), v 'v' float32 (64, 100): axis -1 of v must equal "
     "axis -2 of k (100 != 64)"),
    ("gb.norm(x, eps=-1)", E, "norm: a 'x' float32 (16, 128): eps must be above 0, is -1"),
    ("gb.map_custom(x, abs)", T,
     "map_custom: the first argument must be a function, not Tensor: map_custom(function, tensor, ...)"),
    ("gb.custom(x, abs)", T,
     "custom: the first argument must be a function, not Tensor: custom(function, *tensors, shape=...)"),
    ("gb.custom(abs, x, arr)", T,
     "custom: sources[1] must be a Tensor, not numpy.ndarray; ctx.constant(value) makes one, and ctx.from_numpy(array) "
     "one over its memory"),
    ("gb.custom(abs)", E, "custom: without sources the context must be given: custom(function, context=ctx)"),
    ("gb.custom(abs, x, shape=[(2,), (3,)], dtype=['f32'])", E,
     "custom: shape has 2 entries and dtype 1: each result needs one of both"),
    ("gb.cast(v, 'q4_0')", E,
     "cast: a 'v' float32 (64, 100): axis -1 of a q4_0 result must be a multiple of 32, is 100"),
    # making tensors and graphs
    ("ctx.tensor(arr)", T,
     "Context.tensor: shape must be an int or a sequence of ints, not a numpy.ndarray; ctx.from_numpy(array) makes a "
     "tensor over an array, ctx.constant(array) one with a fixed value"),
    ("ctx.tensor('x', (2, 3))", T,
     "Context.tensor: shape must be an int or a sequence of ints, not 'x'; the order is tensor(shape, dtype, name)"),
    ("ctx.tensor(2, 3)", T, "Context.tensor: 3 is no dtype; a shape of several sizes is a tuple: tensor((2, 3))"),
    ("ctx.tensor((2, 3), 'weights')", T,
     "Context.tensor: there is no dtype 'weights'; a name is given as tensor(shape, name='weights')"),
    ("ctx.tensor((2, 3), 'q4')", T, "Context.tensor: there is no dtype 'q4'; did you mean 'q4_0' or 'q4_1' or 'q4_k'?"),
    ("ctx.tensor((2, 3), float)", T,
     "Context.tensor: there is no dtype 'float'; it could be float32 or float16: say which"),
    ("ctx.tensor((2, 100), gb.q4_k)", E,
     "Context.tensor: q4_k stores rows in blocks of 256 elements; the last axis of the shape (2, 100) is no multiple"),
    ("ctx.tensor((2, -3))", E, "Context.tensor: the shape (2, -3) has a negative size"),
    ("ctx.tensor((1, 2, 3, 4, 5))", E, "Context.tensor: the shape (1, 2, 3, 4, 5) has 5 axes, at most 4 are possible"),
    ("ctx.tensor((2, 3), name=7)", T, "Context.tensor: name must be a str, not int"),
    ("ctx.tensor((2, 3), name='a\\0b')", E, "Context.tensor: a name cannot hold NUL: 'a\\x00b'"),
    ("ctx.from_numpy(arr.T)", E,
     "Context.from_numpy: the array is not C-contiguous; np.ascontiguousarray(array) is, and ctx.from_dlpack(array) "
     "takes it as it is"),
    ("ctx.from_numpy(arr.astype(np.uint8))", E,
     "Context.from_numpy: uint8 is not a dtype of tensors; array.astype(np.float32) converts numbers. Is it "
     "quantized data? Then name its format: ctx.constant(array, 'q4_k')"),
    ("ctx.from_numpy(arr.astype('>f4'))", E,
     "Context.from_numpy: >f4 is not a dtype of tensors; array.astype(array.dtype.newbyteorder('=')) has the bytes "
     "in the order of this machine"),
    ("ctx.from_numpy(np.zeros((0, 3), np.float32))", E,
     "Context.from_numpy: the array of shape (0, 3) is empty: there is no memory to use"),
    ("ctx.constant('one')", E, "Context.constant: takes numbers, not 'one'"),
    ("ctx.graph()", E, "Context.graph: needs at least one tensor to compute"),
    ("ctx.graph('x')", T, "Context.graph: each output must be a Tensor, not str"),
    ("ctx.graph(gone)", S, "Context.graph: the context of an output is closed"),
    # memory and data
    ("ctx.allocate('CPU')", T, "Context.allocate: backend must be a Backend, not str; gb.Backend('CPU') makes one"),
    ("ctx.allocate(cpu, usage='weight')", E, "usage must be one of 'any', 'weights', not 'weight'"),
    ("x.numpy()", S, "'x' float32 (16, 128): it has no memory: give it some with Context.allocate, Buffer.place or "
     "Scheduler.allocate"),
    ("gb.relu(x).numpy()", S,
     "float32 (16, 128): it was not computed: make a graph of it (Context.graph) and compute that (Scheduler.compute)"),
    ("gone.numpy()", S, "the context of the tensor is closed"),
    ("gb.relu(gone)", S, "relu: the context of a is closed"),
    ("x + gone", S, "a + b: the context of b is closed"),
    ("data.item()", E, "item: 'data' float32 (2, 3) has 6 elements"),
    ("data.set(np.zeros((2, 3)))", E,
     "set: 'data' float32 (2, 3) cannot take an array of float64; array.astype(np.float32) converts it"),
    ("data.set(np.zeros((3, 2), np.float32))", E,
     "set: 'data' float32 (2, 3) cannot take an array of shape (3, 2); array.T has its shape"),
    ("data.set([1.0, 2.0])", E, "set: 'data' float32 (2, 3) cannot take an array of shape (2,)"),
    ("data.set([[1, 2, 3], [4, 5]])", E,
     "set: 'data' float32 (2, 3) cannot take this list: its lists have different lengths"),
    ("data.set('zeros')", E, "set: 'data' float32 (2, 3) cannot take 'zeros'"),
    ("data.set(torch_tensor)", E,
     "set: 'data' float32 (2, 3) cannot take this torch.Tensor: NumPy has no bfloat16; t.float().numpy() is float32, "
     "t.view(torch.int16).numpy().view(np.uint16) has the bits, as tensors of bfloat16 take them"),
    ("data.set(arr, offset=1)", E, "set: elements 1 to 7 are outside of 'data' float32 (2, 3), which has 6"),
    ("ids.set(np.arange(4))", E,
     "set: 'ids' int32 (4,) cannot take an array of int64; array.astype(np.int32) converts it"),
    ("ids.set([0.5, 1, 2, 3])", E, "set: 'ids' int32 (4,) takes integers, not floats"),
    ("q.set(np.zeros((2, 256), np.float32))", E,
     "set: 'q' q4_k (2, 256) cannot take an array of float32; set(array, quantize=True) converts it, or "
     "gb.quantize(array, 'q4_k') makes the blocks that it takes"),
    ("q.set(0.5)", E, "set: 'q' q4_k (2, 256) takes the bytes of its rows, as an array of uint8; set(value, "
     "quantize=True) converts floats"),
    ("q.set(np.zeros((2, 256), np.uint8))", E,
     "set: 'q' q4_k (2, 256) cannot take an array of shape (2, 256); the bytes of its rows have the shape (2, 144)"),
    ("q.set(np.zeros((2, 128), np.float32), quantize=True)", E,
     "set: 'q' q4_k (2, 256) cannot take an array of shape (2, 128)"),
    ("host.tensor((2, 3), 'bf16', name='b').set(arr)", E,
     "set: 'b' bfloat16 (2, 3) cannot take an array of float32; set(array, quantize=True) rounds it, and so does "
     "array.astype(ml_dtypes.bfloat16) (pip install 'ggml_backend[bfloat16]')"),
    ("host.tensor((2, 3), 'f16', name='h').set(arr)", E,
     "set: 'h' float16 (2, 3) cannot take an array of float32; array.astype(np.float16) converts it"),
    ("q.numpy(np.float32)", E,
     "numpy: q4_k comes as bytes, not as float32; gb.dequantize(t.numpy(), 'q4_k') makes float32 of them"),
    ("far.numpy(copy=False)", S, "numpy: 'far' float32 (2, 2) is in device memory, which takes a copy"),
    ("np.asarray(far, copy=False)", ValueError, "numpy: 'far' float32 (2, 2) is in device memory, which takes a copy"),
    ("data.copy_from(arr)", T, "copy_from: source must be a Tensor, not numpy.ndarray; set(array) writes an array"),
    ("data.copy_from(ids)", E,
     "copy_from: dtype, shape and strides must be the same, not those of 'ids' int32 (4,) and 'data' float32 (2, 3)"),
    ("cpu.allocate(16).place(ctx.tensor((16, 128), name='y'))", E,
     "Buffer.place: 'y' float32 (16, 128) takes 8192 bytes; behind offset 0 the buffer has 128"),
    ("cpu.allocate(16384).place(ctx.tensor((16, 128), name='y'), offset=7)", E,
     "Buffer.place: 'y' float32 (16, 128) lies at multiples of 4 bytes; offset 7 is none"),
    ("cpu.allocate(1024).place(data)", S, "Buffer.place: 'data' float32 (2, 3) has memory already"),
    ("cpu.allocate(9000).place(x.T)", E,
     "Buffer.place: 'x (transposed)' float32 (128, 16) is a view of 'x' float32 (16, 128): place that"),
    ("gb.quantize(np.zeros((2, 100), np.float32), 'q4_k')", E,
     "q4_k: rows of 100 elements are not whole blocks of 256"),
    ("gb.quantize(np.zeros((2, 256), np.int32), 'q4_k')", E,
     "quantize to q4_k: takes an array of floats, not of int32"),
    ("gb.quantize(arr, 'q5_5')", T, "quantize: there is no dtype 'q5_5'; did you mean 'q5_k' or 'q5_1' or 'q5_0'?"),
    # backends and schedulers
    ("gb.Backend('CPUS')", E, "Backend: there is no backend 'CPUS'; there are BACKENDS; did you mean 'CPU'?"),
    ("gb.Backend(None)", T, "Backend: name must be a str, not NoneType"),
    ("gb.Backend('CPU', n_threads=0)", E, "Backend: n_threads must be at least 1, not 0"),
    ("gb.Backend('CPU', n_threads='4')", T, "Backend: n_threads must be an int, not str"),
    ("gb.Backend('SIM', n_threads=4)", E, "Backend: n_threads and level are for the CPU, not for SIM0"),
    ("gb.Scheduler([])", E, "Scheduler: needs at least one backend"),
    ("gb.Scheduler('CPU')", T, "Scheduler: each backend must be a Backend, not str; gb.Backend('CPU') makes one"),
    ("gb.Scheduler([cpu], policy='costs')", E,
     "Scheduler: policy must be one of 'weights', 'sources', 'cost', not 'costs'"),
    ("gb.Scheduler([cpu], n_copies=0)", E, "Scheduler: n_copies must be 1 to 64, not 0"),
    ("sched.compute(ctx.graph(gb.sqr(ctx.tensor(3, gb.float64, name='d')).named('y')))", U,
     "Scheduler.compute: no backend can run node 0, SQR 'y' float64 (3,) of 'd' float64 (3,); CPU: dtype of the result "
     "must be float32, float16 or bfloat16; nothing is computed with float64, the default of NumPy: make 'd' of "
     "array.astype(np.float32)"),
    ("sched.compute(gb.relu(x))", T,
     "Scheduler.compute: graph must be a Graph, not Tensor; ctx.graph(tensor) makes one"),
    ("sched.set_backend(x, sim)", E, "Scheduler: SIM0 is not one of its backends, which are CPU"),
    ("sched.memory('CPU')", T, "Scheduler: backend must be a Backend, not str; gb.Backend('CPU') makes one"),
    ("ctx.graph(gb.relu(x).named('y')).compute(cpu)", S,
     "Graph.compute: 'x' float32 (16, 128) has no memory; Scheduler.compute(graph) gives each tensor some"),
    ("ctx.graph(gb.relu(data)).compute('CPU')", T,
     "Graph.compute: backend must be a Backend, not str; gb.Backend('CPU') makes one"),
    ("sched.compute(ctx.graph(gb.relu(ctx.tensor((4, 32), 'q4_0', name='r')).named('y')))", U,
     "Scheduler.compute: no backend can run node 0, RELU 'y' q4_0 (4, 32) of 'r' q4_0 (4, 32); CPU: quantized tensors "
     "are not for this operator"),
    # names and arguments of NumPy and PyTorch, classes that are not called
    ("gb.top_k(x, 3, axis=0)", T,
     "top_k: there is no axis; it works along the last axis, which x.swapaxes(axis, -1).contiguous() makes of "
     "another one"),
    ("gb.sum(x, dim=1)", T, "sum: there is no dim; axis and keepdims are the names here"),
    ("gb.sum_rows(x, axis=0)", T,
     "sum_rows: there is no axis; it works along the last axis; gb.sum(x, axis=...) along others"),
    ("gb.mean(x, keepdims=True)", E,
     "mean: keepdims goes with an axis; without one the last axis stays with size 1"),
    ("gb.sum(x, axis=2)", E, "sum: a 'x' float32 (16, 128): there is no axis 2"),
    ("gb.sum(x, axis=(0, -2))", E, "sum: axis=(0, -2) names an axis twice"),
    ("gb.mean(x, axis=())", E, "mean: axis=() names no axis; axis=None is all of them"),
    ("gb.sum(x, axis='rows')", T, "sum: axis must be an int, a tuple of ints or None, not 'rows'"),
    ("gb.sum(x, axis=True)", T, "sum: axis must be an int, not bool"),
    ("gb.argmax(x, axis=(0, 1))", T,
     "argmax: axis must be an int; gb.argmax(x.reshape(-1), axis=0) looks at all elements"),
    ("gb.soft_max(x, axis=None)", T, "softmax: axis must be an int, not None"),
    ("gb.soft_max(x, x, axis=0)", E,
     "softmax: axis 0 is not the last one, and a mask is laid over the rows along that alone"),
    ("gb.norm(x, inplace=True, axis=0)", E, "norm: axis 0 is not the last one, and in place it works along that alone"),
    ("gb.concat([x, x], dim=0)", T, "concat: there is no dim; axis is its name here"),
    ("gb.Tensor((2, 3))", T,
     "Tensor: objects of this class are not made by calling it; ctx.tensor(shape), or of data ctx.constant(array), "
     "makes one"),
    ("gb.Graph(x)", T, "Graph: objects of this class are not made by calling it; ctx.graph(tensor) makes one"),
    ("gb.Buffer(1024)", T,
     "Buffer: objects of this class are not made by calling it; backend.allocate(size), ctx.allocate(backend) or "
     "gb.Buffer.from_array(array) makes one"),
    ("gb.Pending()", T, "Pending: objects of this class are not made by calling it; scheduler.compute_async(graph) "
     "makes one"),
    ("gb.BufferType('CPU')", T,
     "BufferType: objects of this class are not made by calling it; backend.buffer_type, or gb.cpu_buffer_type(), "
     "makes one"),
    ("gb.matmul(x, x)", E, "matmul: a 'x' float32 (16, 128), b 'x' float32 (16, 128): the last axis of a (128) and the "
     "last but one axis of b (16) differ; did you mean a @ b.T?"),
    ("gb.matmul(x, w.T, prec='f16')", E, "matmul: prec must be one of 'default', 'f32', not 'f16'"),
    ("gb.matmul(3, 4)", T, "matmul: a must be a Tensor, not int; ctx.constant(value) makes one, and "
     "ctx.from_numpy(array) one over its memory"),
    ("gb.mm(x, x)", N, "ggml_backend has no 'mm'; use x @ w, or gb.matmul(x, w)"),
    ("gb.log_softmax(x)", N,
     "ggml_backend has no 'log_softmax'; use gb.log(gb.softmax(x)), along the last axis"),
    ("gb.log_soft_max(x)", N,
     "ggml_backend has no 'log_soft_max'; use gb.log(gb.softmax(x)), along the last axis"),
    ("gb.squeeze(x)", N, "ggml_backend has no 'squeeze'; use x[0], x[:, 0] or x.reshape(shape)"),
    ("gb.flatten(x)", N, "ggml_backend has no 'flatten'; use x.reshape(-1)"),
    ("gb.gather(x, ids)", N, "ggml_backend has no 'gather'; use gb.get_rows(x, ids)"),
    ("gb.sort(x)", N, "ggml_backend has no 'sort'; gb.argsort(x) gives the order, and gb.top_k(x, k) the largest"),
    ("cpu.buffer(100)", N, "'Backend' object has no attribute 'buffer'; use backend.allocate(size)"),
    ("x @ gb.quantize(arr.repeat(256, 1), 'q4_k').T", E,
     "a @ b: b holds quantized blocks; ctx.constant(blocks) makes a tensor of them"),
    ("x + gb.quantize(arr.repeat(256, 1), 'q4_k')", E,
     "a + b: b holds quantized blocks; ctx.constant(blocks) makes a tensor of them"),
    ("gb.quantize(gb.quantize(arr.repeat(256, 1), 'q4_k'), 'q8_0')", E,
     "quantize to q8_0: takes an array of floats, not blocks of q4_k; gb.dequantize(blocks) makes floats of them"),
    ("host.tensor((1, 2, 3), name='image').set(arr.reshape(3, 2, 1))", E,
     "set: 'image' float32 (1, 2, 3) cannot take an array of shape (3, 2, 1)"),
    ("gb.Backend('CPU', nthreads=2)", E, "Backend: the CPU has no parameter 'nthreads'; did you mean 'n_threads'?"),
    ("gb.Backend('CPU', colour=2)", E,
     "Backend: the CPU has no parameter 'colour'; it has n_threads=<count> and level=<name>"),
    ("x @ gb.Context().tensor((64, 128), name='other').T", E,
     "a @ b: a 'x' float32 (16, 128), b 'other' float32 (64, 128): these belong to different contexts, so name the one "
     "of the result: 'with ctx.as_default():'. A context that holds weights, gb.Context(usage='weights'), needs no "
     "naming"),
    ("ctx.constant(np.zeros((2, 256), np.float32), 'q4_k')", E,
     "Context.constant: q4_k cannot take an array of float32; gb.quantize(array, 'q4_k') makes the blocks that it "
     "takes"),
    ("ctx.constant(np.zeros((2, 256), np.float32), 'bf16')", E,
     "Context.constant: bfloat16 cannot take an array of float32; gb.quantize(array, 'bfloat16') rounds it, and so "
     "does array.astype(ml_dtypes.bfloat16) (pip install 'ggml_backend[bfloat16]')"),
    ("ctx.constant(np.zeros((2, 100), np.uint8), 'q4_k')", E,
     "Context.constant: rows of 100 bytes are not whole blocks of q4_k, of 144 bytes"),
    ("ctx.constant(arr.astype(np.uint8))", E,
     "Context.constant: uint8 is not a dtype of tensors; array.astype(np.float32) converts numbers. Is it quantized "
     "data? Then name its format: ctx.constant(array, 'q4_k')"),
    ("ctx.constant(arr > 0)", E,
     "Context.constant: bool is not a dtype of tensors; array.astype(np.float32) converts it"),
    ("ctx.from_dlpack(arr.astype(np.uint8))", E,
     "from_dlpack: uint8 is not a dtype of tensors; array.astype(np.float32) converts numbers. Is it quantized data? "
     "Then name its format: ctx.constant(array, 'q4_k')"),
    ("ctx.constant(arr.astype(np.uint32))", E,
     "Context.constant: uint32 is not a dtype of tensors; array.astype(np.int32) converts it, or np.int64, or "
     "np.float32"),
    ("ctx.constant(arr + 1j)", E,
     "Context.constant: takes numbers, not array([[0.+1.j, 0.+1.j, 0.+1.j],\n       [0.+1.j, 0.+1.j, 0.+"),
    ("gb.dequantize(np.zeros((2, 18), np.uint8))", T,
     "dequantize: an array does not say which format its bytes have: give it, as in dequantize(array, 'q4_0')"),
    ("gb.dequantize(q, 'q4_0')", E, "dequantize: the tensor is q4_k, not q4_0; leave dtype out"),
    ("q.set(gb.quantize(np.zeros((2, 256), np.float32), 'q4_0'))", E,
     "set: 'q' q4_k (2, 256): these are blocks of q4_0, not of q4_k; gb.dequantize(blocks) makes floats of blocks, "
     "gb.quantize(floats, dtype) blocks of another format"),
    ("gb.conv_2d(ctx.tensor((1, 3, 4, 4), name='pixels'), ctx.tensor((8, 3, 3, 3), name='k'))", E,
     "conv_2d: kernel 'pixels' float32 (1, 3, 4, 4), data 'k' float32 (8, 3, 3, 3): the kernel (4) does not fit into "
     "the padded input (3) along axis -1; the order is conv_2d(kernel, data): are they swapped?"),
    ("gb.im2col(image, image, dtype='q4_0')", E, "im2col: dtype must be float16 or float32, not q4_0"),
    ("compute(gb.custom(lambda out, v: [0.0] * 4, single, shape=(3,)).named('y'))", E,
     "custom: 'y' float32 (3,) of 'single' float32 (4, 8): the result must have the shape (3,), not (4,)"),
    ("huge().context.allocate(cpu)", A,
     "Context.allocate: cannot allocate 4.0 TiB of host memory; the largest of its tensors is 'huge' float32 (1048576, "
     "1048576)"),
    ("huge().context.allocate(sim_of_a_mib)", A,
     "Context.allocate: SIM0: 0 bytes of 1.0 MiB in use, a buffer needs 4.0 TiB: free what lies there, or give the "
     "device more (mem); the largest of its tensors is 'huge' float32 (1048576, 1048576)"),
    ("allocate_huge([cpu])", A,
     "Scheduler.allocate: cannot allocate 4.0 TiB of host memory; the largest of its tensors is 'huge' float32 "
     "(1048576, 1048576)"),
    ("gb.gguf.Writer('/no').add_tensor('m', arr > 0)", E,
     "tensor 'm': GGUF has no type for bool; array.astype(np.int8) has the same values"),
    ("gb.gguf.Writer('/no').add_tensor('m', arr.astype(np.uint8))", E,
     "tensor 'm': GGUF has no type for uint8; array.astype(np.int16) has the same values"),
    ("gb.gguf.Writer('/no').add_tensor('m', arr.astype('c16'))", E, "tensor 'm': GGUF has no type for complex128"),
    ("gb.gguf.Writer('/no').add('a' * 70000, 1)", E,
     f"Writer.add: key '{'a' * 96}...: gguf: a key has 70000 bytes, allowed are 1 .. 65535"),
    ("gb.quantize(arr.repeat(256, 1) * float('nan'), 'q4_k')", E,
     "quantize to q4_k: row 0, column 0: nan cannot be stored as q4_k; on_invalid='clip' (--on-invalid clip) cuts "
     "numbers to what it holds, nan to 0"),
    ("replaced().numpy()", S,
     "'y' float32 (4, 8): it has no value now: the scheduler was allocated for another graph, which has not run "
     "yet. Compute that graph. To keep a result, copy it first: numpy(copy=True)"),
    ("gb.zeros((2, 3))", N,
     "ggml_backend has no 'zeros'; ctx.constant(array) makes a tensor of data, ctx.tensor(shape) one to be set"),
    ("gb.floor(x)", N,
     "ggml_backend has no 'floor'; there is no such operation; gb.map_custom(function, x) runs a function of yours"),
    ("gb.scheduler(cpu)", N, "ggml_backend has no 'scheduler'; did you mean 'Scheduler' or 'SchedulerStats'?"),
    ("gb.load('m.gguf')", N, "ggml_backend has no 'load'; use gb.gguf.open(path)"),
    ("gb.f32", N, "ggml_backend has no 'f32'; use gb.float32"),
    ("gb.no_such_thing", N, "ggml_backend has no 'no_such_thing'"),
    ("x if x > 0 else 0", T, "a tensor has no truth value: its data is known only after its graph has run"),
    ("gb.Scheduler(cpu, cpu)", T, "Scheduler: several backends are a list: Scheduler([a, b])"),
    ("sched.compute(ctx.graph(x * 2), {'x': 1})", T,
     "Scheduler.compute: callback must be a function, not dict; inputs are set with x.set(array) before"),
    ("gb.gguf.open(3)", T,
     "open: takes a path or the bytes of a file, not int; give the path, or mmap.mmap(descriptor, 0, "
     "access=mmap.ACCESS_READ)"),
    ("gb.gguf.open(['a.gguf', 'b.gguf'])", T,
     "open: takes a path or the bytes of a file, not list; of a split file, give the path of one part"),
    # dtypes that no backend takes; schedulers
    ("sched.compute(ctx.graph((wide @ single.T).named('y')))", U,
     "Scheduler.compute: no backend can run node 0, MUL_MAT 'y' float32 (1, 4) of 'single' float32 (4, 8), 'wide' "
     "float64 (1, 8); CPU: dtype of 'wide' (float64) must be float32 or that of 'single'; nothing is computed with "
     "float64, the default of NumPy: make 'wide' of array.astype(np.float32)"),
    ("sched.allocate(ctx.graph((wide + 1).named('y')))", U,
     "Scheduler.allocate: no backend can run node 0, ADD 'y' float64 (1, 8) of 'wide' float64 (1, 8), 'leaf_1' float32 "
     "(); CPU: dtype of the result must be float32, float16 or bfloat16; nothing is computed with float64, the default "
     "of NumPy: make 'wide' of array.astype(np.float32)"),
    ("sched.prepare(ctx.graph((single + wide).named('y')))", U,
     "Scheduler.prepare: no backend can run node 0, ADD 'y' float32 (4, 8) of 'single' float32 (4, 8), 'wide' float64 "
     "(1, 8); CPU: dtype of 'wide' (float64) must be float32, float16 or bfloat16; nothing is computed with float64, "
     "the default of NumPy: make 'wide' of array.astype(np.float32)"),
    ("sched.compute(ctx.graph((half @ single.T).named('y')))", U,
     "Scheduler.compute: no backend can run node 0, MUL_MAT 'y' float32 (4, 4) of 'single' float32 (4, 8), 'half' "
     "float16 (4, 8); CPU: dtype of 'half' (float16) must be float32 or that of 'single'; what is neither float32 nor "
     "of the same dtype stands on the right of a product: h @ x is (x.T @ h.T).T"),
    ("sched.compute(ctx.graph((single + whole).named('y')))", U,
     "Scheduler.compute: no backend can run node 0, ADD 'y' float32 (4, 8) of 'single' float32 (4, 8), 'whole' int32 "
     "(4, 8); CPU: dtype of 'whole' (int32) must be float32, float16 or bfloat16; 'whole' is int32: its "
     "astype('float32') is a node that converts"),
    ("sched.reserve(ctx.graph((whole * 2).named('y')))", U,
     "Scheduler.reserve: no backend can run node 0, SCALE 'y' int32 (4, 8) of 'whole' int32 (4, 8); CPU: dtype of the "
     "result must be float32, float16 or bfloat16; 'whole' is int32: its astype('float32') is a node that converts"),
    ("sched.compute(ctx.graph(wide.astype('float32').named('y')))", U,
     "Scheduler.compute: no backend can run node 0, CPY 'y' float32 (1, 8) of 'wide' float64 (1, 8), 'y' float32 (1, "
     "8); CPU: no conversion between these types; nothing is computed with float64, the default of NumPy: make 'wide' "
     "of array.astype(np.float32)"),
    ("sched.compute(ctx.graph(gb.get_rows(single, ctx.constant([1, 9], name='ids')).named('y')))", E,
     "Scheduler.compute: split 0 (nodes 0 to 0) on backend CPU: GET_ROWS 'y' float32 (2, 8) of 'single' float32 (4, "
     "8), 'ids' int32 (2,): index 9 at (1,) out of range 0..3"),
    ("gb.Scheduler(None)", T, "Scheduler: each backend must be a Backend, not NoneType"),
    ("ctx.graph(single * 2, keep=None)", T, "Context.graph: keep: each must be a Tensor, not NoneType"),
    ("ctx.graph(single * 2, keep='y')", T, "Context.graph: keep: each must be a Tensor, not str"),
    ("sched.compute(ctx.graph(single * 2), abs, wanted='nope*')", E,
     "Scheduler.compute: wanted: no node of the graph has a name like 'nope*'"),
    ("sched.compute(ctx.graph(single * 2), abs, wanted=['nope'])", E,
     "Scheduler.compute: wanted: no node of the graph is called 'nope'"),
    ("sched.compute(ctx.graph(single * 2), abs, wanted=3)", T,
     "Scheduler.compute: wanted must be a pattern, names, tensors or a function, not int"),
    ("sched.set_eval_callback(3)", T, "Scheduler.set_eval_callback: callback must be a function, not int"),
    ("gb.set_abort_callback(cpu, 3)", T, "set_abort_callback: function must be a function, not int"),
    ("gb.set_log(lambda text: 0)", T,
     "set_log: the function is called with a level and a text: too many positional arguments"),
    ("ctx.graph(single * 2).__iter__()", T,
     "a graph is not gone through itself: graph.nodes lists what it computes, graph.leafs what it starts from"),
    ("gb.Context(allocate='x')", T, "Context: allocate must be a bool, not str"),
    ("gb.Scheduler(cpu, n_copies='a')", T, "Scheduler: n_copies must be an int, not str"),
    # results, copies of graphs, arguments of other kinds
    ("freed.numpy()", S,
     "'freed' float32 (4, 8): it has lost its memory, which was freed with the scheduler or buffer that held it: keep "
     "that open, or take a copy before, numpy(copy=True)"),
    ("(single + 1).named('y').numpy()", S,
     "'y' float32 (4, 8): it was not computed: make a graph of it (Context.graph) and compute that "
     "(Scheduler.compute)"),
    ("result.set(5)", S,
     "set: 'result' float32 (4, 8): it is a result, which only a computation writes (a callback may while it runs): "
     "set an input"),
    ("result.copy_from(single)", S,
     "copy_from: 'single' float32 (4, 8) to 'result' float32 (4, 8): it is a result, which only a computation writes "
     "(a callback may while it runs): set an input"),
    ("copied + 1", S, "a + b: the copy of a graph cannot be built on"),
    ("copied @ copied.T", S, "transpose: the copy of a graph cannot be built on"),
    ("copied.context.tensor(3)", S, "Context.tensor: the copy of a graph cannot be built on"),
    ("copied.context.constant(3)", S, "Context.constant: the copy of a graph cannot be built on"),
    ("copied.context.from_numpy(arr)", S, "Context.from_numpy: the copy of a graph cannot be built on"),
    ("gb.conv_2d(ctx.tensor((8, 4, 3, 3), name='k'), image, stride=1.5)", E,
     "conv_2d: stride must be an int or a pair of ints, not 1.5"),
    ("gb.conv_2d(ctx.tensor((8, 4, 3, 3), name='k'), image, stride=None)", E,
     "conv_2d: stride must be an int or a pair of ints, not None"),
    ("gb.conv_2d(ctx.tensor((8, 4, 3, 3), name='k'), image, stride=(1.9, 2))", E,
     "conv_2d: stride must be an int or a pair of ints, not (1.9, 2)"),
    ("gb.conv_2d(ctx.tensor((8, 4, 3, 3), name='k'), image, stride='12')", E,
     "conv_2d: stride must be an int or a pair of ints, not '12'"),
    ("gb.conv_2d(ctx.tensor((8, 4, 3, 3), name='k'), image, padding='same')", E,
     "conv_2d: padding must be an int or a pair of ints, not 'same'"),
    ("gb.conv_1d(ctx.tensor((4, 3, 3), name='k'), ctx.tensor((1, 3, 8), name='data'), stride=1.5)", E,
     "conv_1d: kernel 'k' float32 (4, 3, 3), data 'data' float32 (1, 3, 8): stride must be an int, not float"),
    ("gb.pool_2d(image, 'avg', 2, padding=('a', 1))", E,
     "pool_2d: a 'image' float32 (1, 4, 8, 8): padding must be a number, not str"),
    ("gb.leaky_relu(x, 'a')", E, "leaky_relu: a 'x' float32 (16, 128): negative_slope must be a number, not str"),
    ("gb.rms_norm(x, arr)", E, "rms_norm: a 'x' float32 (16, 128): eps must be a number, not numpy.ndarray"),
    ("gb.top_k(x, 2.5)", E, "top_k: a 'x' float32 (16, 128): k must be an int, not float"),
    ("gb.diag_mask_inf(x, 'a')", E, "diag_mask_inf: a 'x' float32 (16, 128): n_past must be an int, not str"),
    ("gb.group_norm(image, 2.0)", E, "group_norm: a 'image' float32 (1, 4, 8, 8): n_groups must be an int, not float"),
    ("gb.set(x, x, offset='a')", E,
     "set: a 'x' float32 (16, 128), b 'x' float32 (16, 128): offset must be an int, not str"),
    ("gb.rope(image, ids, n_dims='a')", E,
     "rope: a 'image' float32 (1, 4, 8, 8), positions 'ids' int32 (4,): n_dims must be an int, not str"),
    ("gb.soft_max(x, scale='a')", E, "softmax: a 'x' float32 (16, 128): scale must be a number, not str"),
    ("gb.map_custom(abs, x, n_tasks='a')", T, "map_custom: n_tasks must be an int, not str"),
    ("x.swapaxes('a', 0)", T, "swapaxes: a must be an int, not str"),
    ("x.reshape('a')", T, "reshape: shape must be an int or a sequence of ints, not 'a'"),
    ("x.transpose('a')", T, "transpose: axes must be an int or a sequence of ints, not 'a'"),
    ("gb.pad(x, 1.5)", T, "pad: amounts must be an int or a sequence of ints, not 1.5"),
    ("gb.repeat(x, 'ab')", T, "repeat: like must be an int or a sequence of ints, not 'ab'"),
    ("x.astype('foo')", T,
     "astype: there is no dtype 'foo'; there are float32, float16, float64, bfloat16, int8, int16, int32, int64 and "
     "quantized ones, as in gb.dtypes.dtypes"),
    ("x.astype(np.uint8)", T,
     "astype: there is no dtype 'uint8'; there are float32, float16, float64, bfloat16, int8, int16, int32, int64 and "
     "quantized ones, as in gb.dtypes.dtypes"),
    ("gb.cast(x, 3)", T,
     "cast: there is no dtype '3'; there are float32, float16, float64, bfloat16, int8, int16, int32, int64 and "
     "quantized ones, as in gb.dtypes.dtypes"),
    ("ctx.constant(1, 'float3')", T, "Context.constant: there is no dtype 'float3'; did you mean 'float32'?"),
    ("x[True]", T, "x[...]: a tensor is indexed by integers, slices, ... and None, not by bool"),
    ("x['a':]", T, "x[...]: the bounds of a slice are integers or None, not those of slice('a', None, None)"),
    ("gb.concat([x, w], axis=5)", E, "concat: 'x' float32 (16, 128), 'w' float32 (64, 128): there is no axis 5"),
    ("gb.mul_mat(w, x, prec='f16')", E, "mul_mat: prec must be one of 'default', 'f32', not 'f16'"),
    ("gb.view(x, strides=(4,))", E, "view: strides and an offset need a shape"),
    ("gb.view(x, (2,), offset=1)", E,
     "view: offset 1 and strides None must be multiples of the 4 bytes of an element of 'x' float32 (16, 128)"),
    ("gb.view(x, (2,), offset=1.5)", T, "view: offset must be an int, not float"),
    ("gb.view(x, (2, 2), strides='ab')", T, "view: strides must be an int or a sequence of ints, not 'ab'"),
    ("ctx.constant(2**40)", E,
     "Context.constant: 1099511627776 does not fit into int32; say dtype='int64', or dtype='float32'"),
    ("ctx.constant([1, -2**40])", E,
     "Context.constant: -1099511627776 does not fit into int32; say dtype='int64', or dtype='float32'"),
    ("ctx.constant(2**70)", E, "Context.constant: 1.181e+21 does not fit into int64; say dtype='float32'"),
    ("cpu.allocate(2**70)", A, "BufferType.allocate: no memory has 1180591620717411303424 bytes"),
    ("gb.load_backend(3)", T, "load_backend: path must be a path, not int"),
    ("gb.Backend('CPU', level=3)", T, "Backend: level must be a str, not int"),
    ("gb.Backend('CPU', n_threads=100000)", E, "Backend.n_threads: needs 1 to 512, has 100000"),
    ("gb.quantize(np.zeros((2, 32), np.float32), 'q4_0', n_threads='a')", T, "n_threads must be an int, not str"),
    ("gb.quantize(np.zeros((2, 256), np.float32), 'q4_k', importance='a')", E,
     "quantize to q4_k: importance must be numbers, not 'a'"),
    ("gb.calibrate(cpu, size='a')", T, "calibrate: size must be an int, not str"),
    ("gb.calibrate(3)", T, "calibrate: backend must be a Backend, not int"),
    ("gb.Scheduler([cpu], costs=gb.Costs(3))", T, "Costs: devices must be DeviceCosts, one for each backend, not 3"),
    ("gb.Scheduler([cpu], costs=gb.Costs([gb.DeviceCosts((gb.OpCost(launch_us='a'),))]))", T,
     "Costs: launch_us of OpCost(op_class='any', dtype=None, launch_us='a', bytes_per_us=inf, flops_per_us=inf) must "
     "be a number"),
    ("gb.plan_memory([0], [1], [64], alignment=3)", E, "plan_memory: alignment 3 is no power of two"),
    ("single.__reduce__()", T, "a Tensor cannot be pickled: it belongs to this process"),
    ("ctx.graph(single * 2).__reduce__()", T, "a Graph cannot be pickled: it belongs to this process"),
    ("cpu.buffer_type.__deepcopy__(None)", T, "a BufferType cannot be copied with all that it refers to"),
    ("sched.prepare(ctx.graph(single * 2)).__reduce__()", T, "a Plan cannot be pickled: it belongs to this process"),
    ("x + 10**400", E, "a + b: b is too large for a float"),
    # names in Python's own messages
    ("x ** -1", T, "a ** b: the exponents 2 and 0.5 are possible, not -1; 1 / a is a power of -1"),
    ("ctx.tensor()", T, "Context.tensor() missing 1 required positional argument: 'shape'"),
    ("x.named()", T, "Tensor.named() missing 1 required positional argument: 'name'"),
    ("x.set()", T, "Tensor.set() missing 1 required positional argument: 'value'"),
    ("ctx.allocate()", T, "Context.allocate() missing 1 required positional argument: 'backend'"),
    ("sched.compute_async(ctx.graph((single * 3).named('h') + 1), results=result)", E,
     "Scheduler.compute_async: 'result' (SCALE) is not in the graph"),
    # methods and names that other libraries have
    ("x.sum()", N, "'Tensor' object has no attribute 'sum'; gb.sum(x) adds all elements, gb.sum(x, axis=...) "
     "those along an axis"),
    ("x.floor()", N, "'Tensor' object has no attribute 'floor'; there is no such operation; gb.map_custom(function, x) "
     "runs a function of yours"),
    ("x.exp()", N, "'Tensor' object has no attribute 'exp'; gb.exp is a function of tensors"),
    ("x.relu()", N, "'Tensor' object has no attribute 'relu'; gb.relu is a function of tensors"),
    ("x.view(3, 4)", N, "'Tensor' object has no attribute 'view'; use x.reshape(shape)"),
    ("x.cuda()", N, "'Tensor' object has no attribute 'cuda'; a tensor is where its memory is: ctx.allocate(backend), "
     "backend.allocate(size).place(x), or where the scheduler puts it"),
    ("x.double()", N, "'Tensor' object has no attribute 'double'; nothing is computed with float64"),
    ("x.shap", N, "'Tensor' object has no attribute 'shap'"),
    ("x.frobnicate()", N, "'Tensor' object has no attribute 'frobnicate'"),
    ("ctx.zeros((2, 3))", N,
     "'Context' object has no attribute 'zeros'; ctx.constant(array) makes a tensor of data, ctx.tensor(shape) one to "
     "be set"),
    ("sched.run(ctx.graph(x))", N, "'Scheduler' object has no attribute 'run'; use scheduler.compute(graph)"),
    ("cpu.compute(x)", N,
     "'Backend' object has no attribute 'compute'; use graph.compute(backend), or scheduler.compute(graph)"),
    ("ctx.graph(x).run()", N,
     "'Graph' object has no attribute 'run'; use scheduler.compute(graph), or graph.compute(backend)"),
    ("ctx.graph(x)[0]", T, "graph[...]: name must be a str, not int; graph.nodes and graph.leafs are lists"),
    ("gb.nn", N, "ggml_backend has no 'nn'; a model is a function of tensors: gb.relu(x @ w.T + b)"),
    ("gb.uint8", N, "ggml_backend has no 'uint8'; the integers of tensors are int8, int16, int32 and int64"),
    ("gb.gguf.load('m.gguf')", N, "ggml_backend.gguf has no 'load'; use gb.gguf.open(path)"),
    ("gb.gguf.frobnicate", N, "ggml_backend.gguf has no 'frobnicate'"),
    ("gb.backends()['CUDA']", T, "backends() is a list of names; gb.Backend('CUDA') makes a backend"),
    ("gb.soft_max(x, -1)", T, "softmax: mask must be a Tensor, not int; an axis is given by name: axis=..."),
    # what is no number, flag, path or list
    ("gb.tanh(x, w)", T, "tanh() takes 1 positional argument but 2 were given"),
    ("gb.permute_ggml(x, 1, 0, 2, None)", T, "permute_ggml: axis3 must be an int, not NoneType"),
    ("gb.repeat('x', (2, 2))", T, "repeat: a must be a Tensor, not str"),
    ("gb.mul_mat_id(3, ids, 0, x)", T, "mul_mat_id: matrices must be a list of tensors, not int"),
    ("x.numpy(3)", T, "numpy: dtype must be a dtype of NumPy, such as np.float32, not 3"),
    ("data.numpy(copy='a')", T, "numpy: copy must be a bool, not str"),
    ("data.set(0, offset=1.5)", T, "set: offset must be an int, not float"),
    ("data.set(0, quantize='yes')", T, "set: quantize must be a bool, not str"),
    ("cpu.allocate(100).place(x, 1.5)", T, "Buffer.place: offset must be an int, not float"),
    ("cpu.allocate(100).clear('a')", T, "Buffer.clear: value must be an int, not str"),
    ("cpu.allocate(100, usage=['weights'])", E, "usage must be one of 'any', 'weights', not ['weights']"),
    ("gb.Backend('SIM', mem=1.5)", T,
     "Backend: mem must be a str, an int or a list of names, not float; a size is '1.5M' or an int of bytes, a time "
     "'2.5ms'"),
    ("gb.Backend('SIM', delay=None)", T, "Backend: delay must be a str, an int or a list of names, not NoneType"),
    ("gb.Backend('CPU', n_threads=2**70)", E, "Backend: n_threads 1180591620717411303424 is too large"),
    ("gb.Scheduler(cpu, 3)", T, "Scheduler: buffer_types must be a list of buffer types, not int"),
    ("gb.Scheduler(cpu, keep_all='a')", T, "Scheduler: keep_all must be a bool, not str"),
    ("sched.compute_async(ctx.graph(single * 2), 3)", T,
     "Scheduler.compute_async: results must be a list of tensors, not int"),
    ("sched.compute_async(ctx.graph(single * 2), results=None)", T,
     "Scheduler.compute_async: results must be a list of tensors, not NoneType"),
    ("sched.trace(3)", T, "Scheduler.trace: path must be a path, not int"),
    ("sched.trace('')", E, "Scheduler.trace: path is empty"),
    ("sched.prepare(ctx.graph(single * 2)).to_html(3)", T, "Plan.to_html: path must be a path, not int"),
    ("sched.prepare(ctx.graph(single * 2)).to_text('a')", T, "Plan.to_text: width must be an int, not str"),
    ("sched.prepare(ctx.graph(single * 2)).to_text(-1)", E,
     "Plan.to_text: width, rows and largest must be 0 to 10000, not -1, 12 and 8"),
    ("gb.GraphAllocator(cpu).set_order(3)", T, "GraphAllocator.set_order: order must be a list of ints, not int"),
    ("gb.GraphAllocator(cpu).set_order([1.5])", T, "GraphAllocator.set_order: each of order must be an int, not float"),
    ("gb.TensorAllocator(3)", T, "TensorAllocator: target must be a Backend, not int"),
    ("gb.calibrate(cpu, progress=3)", T, "calibrate: progress must be a function, not int"),
    ("gb.plan_memory([[0], [1, 2]], [1], [2])", E,
     "plan_memory: lower must be integers, and its lists have different lengths"),
    ("gb.plan_memory([0], [1], [2], 1.5)", T, "plan_memory: alignment must be an int, not float"),
    ("gb.plan_memory([0], [1], [2], reproducible='a')", T, "plan_memory: reproducible must be a bool, not str"),
    ("gb.gguf.Writer(3)", T, "Writer: path must be a path, not int"),
    ("gb.gguf.open('')", E, "open: source is empty"),
    ("gb.gguf.fallback_dtype('q4_k', 1.5)", T, "fallback_dtype: n must be an int, not float"),
    ("gb.show_config(3)", E, "show_config: mode must be 'print' or 'dict', not 3"),
    ("gb.Costs.cached('CPU')", T, "Costs.cached: backends must be a list of backends, not str"),
    ("ctx.graph(x, keep_inputs='a')", T, "Context.graph: keep_inputs must be a bool, not str"),
    # names of dtypes, keys
    ("ctx.tensor((2, 3), 'float')", T,
     "Context.tensor: there is no dtype 'float'; it could be float32 or float16: say which"),
    ("ctx.tensor((2, 3), 'fp16')", T, "Context.tensor: there is no dtype 'fp16'; it is called float16"),
    ("ctx.tensor((2, 3), 'int4')", T, "Context.tensor: there is no dtype 'int4'; q4_0 and q4_k have 4 bits"),
    ("x.astype('float')", T, "astype: there is no dtype 'float'; it could be float32 or float16: say which"),
    ("x.astype('int')", T, "astype: there is no dtype 'int'; it could be int32 or int64: say which"),
    ("ctx.from_numpy(arr, 3)", T, "Context.from_numpy: name must be a str, not int"),
    ("ctx.constant(1, name=3)", T, "Context.constant: name must be a str, not int"),
    ("sched.prepare(ctx.graph(single * 2)).memory['CPUS']", KeyError, "'CPUS'; did you mean 'CPU'?"),
    ("ctx.graph(single * 2)['singel']", KeyError, "'singel'; did you mean 'single'?"),
    ("host['dat']", KeyError, "'dat'"),
    ("gb.Backend('SIM', mem='1.5')", E,
     "Backend('SIM:mem=1.5'): SIM: parameter 'mem=1.5' needs a size like 64M; known are name=<text>, mem=<size>, "
     "max=<size>, align=<size>, ops=<op+op>, noops=<op+op>, delay=<time>, op_delay=<time>, copy_delay=<time>, "
     "copy_bw=<size>, threads=<count>, fail_op=<op>, fail_alloc_after=<count>"),
]  # fmt: skip


@pytest.mark.parametrize(("source", "kind", "text"), MISTAKES, ids=[m[0] for m in MISTAKES])
def test_a_usual_mistake_is_told(source, kind, text):
    text = text.replace("BACKENDS", ", ".join(gb.backends()))  # tests register some
    names = Names(gb=gb, np=np, abs=abs, bool=bool, float=float)
    if "asarray" in source and np.lib.NumpyVersion(np.__version__) < "2.0.0":
        pytest.skip("asarray has no copy before NumPy 2")
    with pytest.raises(kind) as caught:
        eval(source, {"__builtins__": {}}, names)
    assert re.sub(r"\bSIM\d+", "SIM0", str(caught.value)) == text


def test_there_are_enough_of_them():
    assert len(MISTAKES) >= 60
    assert len({source for source, _, _ in MISTAKES}) == len(MISTAKES)


def test_what_was_called_is_said_once():
    for source, _, text in MISTAKES:
        found = re.match(r"(\w+(?:\.\w+)?): (?:(\w+)\.)?(\w+): ", text)
        assert found is None or (found[2] is None and found[3] != found[1].rpartition(".")[2]), source


@pytest.mark.parametrize("message", ["Scheduler.compute: no", "compute: no", "no"])
def test_a_message_of_c_gets_one_prefix(message):
    with pytest.raises(gb.StateError, match=r"^Scheduler\.compute: no$"):
        _errors.raise_as(gb.StateError.status, message, "Scheduler.compute")


def test_no_text_speaks_of_the_library_below():
    for source, _, text in MISTAKES:
        assert source == "gb.f32" or not re.search(
            r"\bggml_\w+\(|\bggml_(?!backend\b)|\bgbpy?_|\bdimension"
            r" \d|\bne\d?\b|(?<!')\b(f32|i32|f16)\b|0x[0-9a-f]+|\[\d+, \d+",
            text,
        ), source


# ------------------------------------------------------------------------------------------- what is obviously meant
# works


def test_what_is_obviously_meant_works(ctx, cpu, rng):
    a, b, c = (rng.standard_normal(shape).astype(np.float32) for shape in [(2, 3), (2, 3), (1, 3)])
    x, y, z = (ctx.constant(v) for v in (a, b, c))
    joined, below, matrices = gb.concat([x, y], axis=1), gb.concat([x, y, z], 0), gb.concat([x, y])
    assert gb.concat([x]) == x
    assert gb.Backend("SIM", name="LAB").name == gb.Backend("SIM:name=LAB").name == "LAB"
    scheduler = gb.Scheduler(cpu)
    assert scheduler.compute(ctx.graph([joined, below, matrices]))
    np.testing.assert_array_equal(joined.numpy(), np.concatenate([a, b], 1))
    np.testing.assert_array_equal(below.numpy(), np.concatenate([a, b, c], 0))
    np.testing.assert_array_equal(matrices.numpy(), np.stack([a, b]))


def test_functions_of_numpy_that_are_operators_are_nodes(ctx, cpu, rng):
    array = (rng.standard_normal((3, 3)) + 2).astype(np.float32)
    data = (rng.standard_normal((3, 3)) + 3).astype(np.float32)
    x = ctx.constant(data)
    formulas = [
        "np.add(x, a)",
        "np.subtract(a, x)",
        "np.multiply(x, x)",
        "np.true_divide(a, x)",
        "np.matmul(a, x)",
        "np.negative(x)",
        "abs(x)",
        "np.absolute(x)",
        "a - x",
        "a @ x",
        "np.float32(3) / x",
        "np.int64(2) + x",
    ]
    nodes = [eval(f, {"np": np, "a": array, "x": x}) for f in formulas]
    assert all(isinstance(node, gb.Tensor) for node in nodes)
    scheduler, graph = gb.Scheduler(cpu), ctx.graph(nodes)
    scheduler.compute(graph)
    for formula, node in zip(formulas, graph.outputs, strict=True):
        np.testing.assert_allclose(
            node.numpy(), eval(formula, {"np": np, "a": array, "x": data}), rtol=1e-5, atol=1e-5, err_msg=formula
        )
    assert (array == x) is False
    assert (array != x) is True
    assert np.equal(x, x) is True


# ---------------------------------------------------------------------------------------------------------- names of
# things


def test_what_is_made_of_a_tensor_without_a_name_has_none(ctx):
    x, named = ctx.tensor((4, 6)), ctx.tensor((4, 6), name="x")
    makers = [
        lambda t: t.reshape(24),
        lambda t: t.T,
        lambda t: t[1],
        lambda t: t.astype("f16"),
        gb.cont,
        gb.view,
        lambda t: gb.relu(t, inplace=True),
        lambda t: gb.cpy(t, gb.empty_like(t)),
        lambda t: gb.permute_ggml(t, 1, 0, 2, 3),
    ]
    for make in makers:
        assert make(x).name == ""
        assert re.fullmatch(r"x \(\w+\)", make(named).name)


def test_names_are_checked_and_cut_between_characters(ctx):
    x = ctx.tensor(3)
    for wrong, kind in [
        (7, TypeError),
        (b"x", TypeError),
        (None, TypeError),
        ("a\0b", gb.InvalidArgumentError),
        ("\ud800", gb.InvalidArgumentError),
    ]:
        with pytest.raises(kind, match=r"^Tensor.name"):
            x.name = wrong
        if wrong is not None:
            with pytest.raises(kind, match=r"^Context.tensor: "):
                ctx.tensor(3, name=wrong)
        with pytest.raises(kind, match=r"^Context.get: "):
            ctx.get(wrong)
    x.name = "ä" * 40
    assert x.name == "ä" * 31  # 62 bytes: another one would be 64
    assert ctx.get("ä" * 40) == x


# ------------------------------------------------------------------------------------------------------- user's
# functions


@pytest.mark.skipif(sys.version_info < (3, 11), reason="notes came with Python 3.11")
def test_an_exception_of_map_custom_names_the_node(ctx, cpu):
    def wrong(out, a):
        raise ZeroDivisionError("no such luck")

    x = ctx.constant(np.ones((2, 3), np.float32), name="x")
    with pytest.raises(ZeroDivisionError, match="no such luck") as caught:
        gb.Scheduler(cpu).compute(ctx.graph(gb.map_custom(wrong, x).named("mine")))
    assert caught.value.__notes__ == ["raised in the function of map_custom that computes 'mine' float32 (2, 3)"]
    with pytest.raises(gb.InvalidArgumentError, match="must have the shape") as caught:
        gb.Scheduler(cpu).compute(ctx.graph(gb.map_custom(lambda out, a: np.zeros((4, 4)), x).named("square")))
    assert caught.value.__notes__ == ["raised in the function of map_custom that computes 'square' float32 (2, 3)"]


# ---------------------------------------------------------------------------------------------------------- translation


def test_messages_of_the_library_become_those_of_python():
    plain = messages.plain
    assert plain("ggml_x: gb_y: 'a b' f32 [128, 16] and '' q4_K [256]") == "'a b' float32 (16, 128) and q4_k (256,)"
    assert plain("index 5 at [1, 0,0] of 'x' i32 [2]") == "index 5 at (0, 0, 1) of 'x' int32 (2,)"
    assert (
        plain("type of src[1] must be f32, f16 or bf16, not that of 'f32'")
        == "dtype of sources[1] must be float32, float16 or bfloat16, not that of 'f32'"
    )
    assert plain("nothing to see") == "nothing to see"
    assert plain("the file ggml_x: is not at the beginning") == "the file ggml_x: is not at the beginning"


def test_marks_of_broken_rules():
    def reason(text, op="op", labels=("a", "data"), ndims=(2, 2)):
        return messages.reason_of(text, op, labels, ndims)

    assert reason("{a,b.0} must be equal") == "axis -1 of a and data must be equal"
    assert (
        reason("{b.1} and {~b.0}, {#f32}, {@[3, 2]}{!, see ggml_cont}")
        == "axis -2 of data and axis -1, float32, (2, 3)"
    )
    assert reason("{a.2} is 5") == "axis -3 of a is 5; missing axes count as 1"
    assert reason("{$s0} {$other}") == "stride other"
    assert reason("{$p0}", op="pad") == "amounts"
    assert reason("{as[1].0}", labels=("matrices[0]", "matrices[1]"), ndims=(2, 2)) == "axis -1 of matrices[1]"


def test_every_rule_of_the_library_says_what_python_can_say(ctx):
    """The reasons that C leaves have balanced marks, and none is left over in the message."""
    ops = [
        lambda: gb.mul_mat(ctx.tensor((2, 3)), ctx.tensor((2, 4))),
        lambda: gb.soft_max(ctx.tensor((2, 3)).T),
        lambda: gb.argmax(ctx.tensor((2, 3, 4))),
    ]
    for op in ops:
        with pytest.raises(gb.InvalidArgumentError) as caught:
            op()
        marked = ffi.string(lib.gbpy_last_reason()).decode()
        assert marked.count("{") == marked.count("}") > 0
        assert "{" not in str(caught.value)
        assert "{" not in ffi.string(lib.ggml_last_error()).decode()
    lib.ggml_clear_error()
    assert ffi.string(lib.gbpy_last_reason()) == b""


def test_what_objects_have_not_is_not_listed():
    """And has no part in look-ups of what they have: a class with ``__getattr__`` would make each of them slow."""
    with gb.Context() as ctx:
        x = ctx.tensor(3)
        for thing in (x, ctx, gb.Tensor, gb.Context):
            assert not {"sum", "relu", "zeros", "cuda"} & set(dir(thing))
            assert not hasattr(thing, "cuda") and not hasattr(thing, "zeros")
            assert not hasattr(thing if isinstance(thing, type) else type(thing), "__getattr__")
        assert not {"sum", "relu"} & {name for name, _ in inspect.getmembers(gb.Tensor)}
        assert "shape" in dir(x) and "tensor" in dir(ctx)


def _layer_norm(x):
    return (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-5)


def _log_softmax(x):
    return x - np.log(np.exp(x).sum(-1, keepdims=True))


HINTED = {
    "matmul": lambda n: n["x"] @ n["w"], "mm": lambda n: n["x"] @ n["w"], "bmm": lambda n: n["x"] @ n["w"],
    "dot": lambda n: n["x"] @ n["w"],
    "log_softmax": lambda n: _log_softmax(n["x"]), "logsumexp": lambda n: np.log(np.exp(n["x"]).sum(-1)),
    "layer_norm": lambda n: _layer_norm(n["x"]) * n["weight"] + n["bias"],
    "cat": lambda n: np.concatenate([n["x"], n["y"]]), "stack": lambda n: np.stack([n["x"], n["y"]]),
    "maximum": lambda n: np.maximum(n["a"], n["b"]), "minimum": lambda n: np.minimum(n["a"], n["b"]),
    "pow": lambda n: n["x"] ** 2, "clip": lambda n: np.clip(n["x"], n["low"], n["high"]),
    "log_sigmoid": lambda n: -np.log1p(np.exp(-n["x"])), "argmin": lambda n: n["x"].argmin(-1),
    "squeeze": lambda n: n["x"][0], "flatten": lambda n: n["x"].reshape(-1), "unsqueeze": lambda n: n["x"][None],
    "mT": lambda n: np.swapaxes(n["x"], -1, -2), "t": lambda n: n["x"].T, "int": lambda n: n["x"].astype(np.int32),
    "half": lambda n: n["x"].astype(np.float16),
}  # fmt: skip


OF_TENSORS = ("matmul", "squeeze", "flatten", "unsqueeze", "mT", "t", "int", "half")  # attributes, not functions


@pytest.mark.parametrize("name", HINTED)
def test_what_a_hint_advises_computes_what_was_meant(name):
    """The first expression after "use" gives what the name gives elsewhere."""
    rng = np.random.default_rng(1)
    shapes = {"x": (3, 4), "y": (3, 4), "w": (4, 5), "a": (3, 4), "b": (3, 4), "weight": (4,), "bias": (4,)}
    given = {n: rng.normal(size=shape).astype(np.float32) for n, shape in shapes.items()}
    given |= {"low": -0.5, "high": 0.5}
    ctx = gb.Context()
    names = {n: ctx.constant(v) if isinstance(v, np.ndarray) else v for n, v in given.items()} | {"gb": gb}
    with pytest.raises(AttributeError) as error:
        getattr(names["x"] if name in OF_TENSORS else gb, name)
    expression = re.search(r"; use (.*?)(?:;.*|, or .*|, along .*| or .*|, x\[:, 0\].*)?$", str(error.value))[1]
    with gb.Scheduler(gb.Backend("CPU", n_threads=1)) as scheduler:
        result = eval(expression, names)
        scheduler.compute(ctx.graph(result))
        np.testing.assert_allclose(result.numpy(), HINTED[name](given), rtol=2e-3, atol=2e-3)
