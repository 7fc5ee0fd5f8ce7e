"""Messages for wrong arguments.

A message names the call and its operands, in the caller's words and order, with shapes as NumPy
writes them. It states what is wrong, with the values. For a usual mistake it suggests what the
caller meant.
"""

from __future__ import annotations

import re
import sys

import numpy as np
import pytest

import ggml_backend as gb
from ggml_backend._base import errors as _errors
from ggml_backend._base.errors import faults


class FakeTorch:
    """A bfloat16 tensor of another library, which NumPy cannot read."""

    def __array__(self, *args, **options):
        raise TypeError("Got unsupported ScalarType BFloat16")


FakeTorch.__module__, FakeTorch.__qualname__ = "torch", "Tensor"


class Names(dict):
    """Objects for the cases below, made on first use."""

    def __missing__(self, name):
        self[name] = getattr(self, f"make_{name}")()
        return self[name]

    def make_ctx(self):
        return gb.Context()

    def make_host(self):  # all tensors have memory
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
            gb.Scheduler(backends).allocate(huge.context.graph(gb.ops.relu(huge)))

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

    def make_copied(self):  # the tensor "here" of a copied graph
        graph = self["ctx"].graph(self["ctx"].from_numpy(np.ones((4, 8), np.float32), "here") * 2)
        self["sched"].compute(graph)
        return graph.copy(self["cpu"])["here"]

    def make_compute(self):
        return lambda y: self["sched"].compute(self["ctx"].graph(y))

    def make_replaced(self):  # a result of an earlier graph, now an intermediate node of the allocated graph
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
    gb.errors.InvalidArgumentError,
    gb.errors.StateError,
    TypeError,
    gb.errors.UnsupportedError,
    gb.errors.AllocationError,
    AttributeError,
)
Fault = faults.Fault

# Whole messages.
EXAMPLES = [
    ('x @ w', E,
     "a @ b: a 'x' float32 (16, 128), b 'w' float32 (64, 128): the last axis of a (128) and the last but one "
     'axis of b (64) differ; did you mean a @ b.T?'),
    ("x @ 'w'", T, 'a @ b: b must be a tensor, a number or an array, not str'),
    ('gb.ops.mul_mat(v, x)', E,
     "mul_mat: a 'v' float32 (64, 100), b 'x' float32 (16, 128): axis -1 of a and b must be equal (100 != 128); "
     'mul_mat(a, b) multiplies rows by rows: it is b @ a.T'),
    ('x + v', E,
     "a + b: a 'x' float32 (16, 128), b 'v' float32 (64, 100): the shapes do not broadcast, axis -1 has 128 and "
     '100 elements'),
    ("x + ctx.tensor((4, 128), name='few')", E,
     "a + b: a 'x' float32 (16, 128), b 'few' float32 (4, 128): the shapes do not broadcast, axis -2 has 16 and "
     '4 elements; gb.ops.add(a, b) repeats b over a'),
    ("gb.ops.mul(ctx.tensor(128, name='row'), x)", E,
     "mul: a 'row' float32 (128,), b 'x' float32 (16, 128): axis -2 of a (1) must be a multiple of axis -2 of b "
     '(16); missing axes count as 1; b repeats over a, not a over b: a * b broadcasts as NumPy does'),
    ('gb.ops.relu(arr)', T,
     'relu: a must be a Tensor, not numpy.ndarray; ctx.constant(value) makes one, and ctx.from_numpy(array) one '
     'over its memory'),
    ("gb.ops.get_rows(w, ctx.tensor(4, gb.dtypes.int64, name='i'))", E,
     "get_rows: a 'w' float32 (64, 128), b 'i' int64 (4,): b must be int32, is int64; make b with dtype "
     'gb.int32 (integers of NumPy are int64 by default)'),
    ('gb.ops.softmax(x.T)', E,
     "softmax: a 'x (transposed)' float32 (128, 16): a must be contiguous; a.contiguous() makes a copy that is"),
    ('gb.ops.argmax(image)', E,
     "argmax: a 'image' float32 (1, 4, 8, 8): a must be a matrix, but axis -3 is 4; gb.ops.argmax(a, axis=-1) takes "
     'any number of axes'),
    ('x.reshape(3, 5)', E, "reshape: 'x' float32 (16, 128) cannot become (3, 5): it has 2048 elements, that shape 15"),
    ('x[16]', IndexError, "x[...]: index 16 is out of range for axis 0 of 'x' float32 (16, 128)"),
    ('np.floor(x)', T,
     'np.floor: NumPy computes at once, a tensor has data when its graph has run: use the functions of gb, or '
     'x.numpy()'),
    ("gb.ops.rope(image, ids, mode='neo')", E,
     "rope: mode must be one of 'normal', 'neox', 'glm', 'normal_exact', 'neox_exact', 'mrope', 'vision', "
     "'imrope', not 'neo'; did you mean 'neox' or 'neox_exact'?"),
    ("gb.ops.conv_2d(ctx.tensor((8, 4, 3, 3), 'f16', name='k'), image, stride=0)", E,
     "conv_2d: kernel 'k' float16 (8, 4, 3, 3), data 'image' float32 (1, 4, 8, 8): stride must be from 1 to "
     '2147483647, is 0'),
    ("gb.ops.pool_2d(ctx.tensor((2, 3, 4, 4), name='photos'), 'max', 7)", E,
     "pool_2d: a 'photos' float32 (2, 3, 4, 4): the kernel (7) does not fit into the padded input (4) along "
     'axis -1'),
    ('gb.ops.flash_attn(x, w, v)', E,
     "flash_attn: q 'x' float32 (16, 128), k 'w' float32 (64, 128), v 'v' float32 (64, 100): axis -1 of v must "
     'equal axis -2 of k (100 != 64)'),
    ("gb.ops.cast(v, 'q4_0')", E,
     "cast: a 'v' float32 (64, 100): axis -1 of a q4_0 result must be a multiple of 32, is 100"),
    ("ctx.tensor((2, 3), 'q4')", T, "Context.tensor: there is no dtype 'q4'; did you mean 'q4_0' or 'q4_1' or 'q4_k'?"),
    ('ctx.graph(gone)', S, 'Context.graph: the context of an output is closed'),
    ("ctx.allocate('CPU')", T, "Context.allocate: backend must be a Backend, not str; gb.Backend('CPU') makes one"),
    ('x.numpy()', S,
     "'x' float32 (16, 128): it has no memory: give it some with Context.allocate, Buffer.place or "
     'Scheduler.allocate'),
    ('data.set(np.zeros((3, 2), np.float32))', E,
     "set: 'data' float32 (2, 3) cannot take an array of shape (3, 2); array.T has its shape"),
    ('gb.scheduler(cpu)', N, "ggml_backend has no 'scheduler'; did you mean 'Scheduler' or 'sched.SchedulerStats'?"),
    ("gb.load('m.gguf')", N, "ggml_backend has no 'load'; use gb.gguf.open(path)"),
    ("sched.compute(ctx.graph((wide @ single.T).named('y')))", U,
     "Scheduler.compute: no backend can run node 0, MUL_MAT 'y' float32 (1, 4) of 'single' float32 (4, 8), "
     "'wide' float64 (1, 8); CPU: source 1 must be f32, or have the type of source 0; nothing is computed with "
     "float64, the default of NumPy: make 'wide' from array.astype(np.float32)"),
    ("sched.compute(ctx.graph((half @ single.T).named('y')))", U,
     "Scheduler.compute: no backend can run node 0, MUL_MAT 'y' float32 (4, 4) of 'single' float32 (4, 8), "
     "'half' float16 (4, 8); CPU: source 1 must be f32, or have the type of source 0; the left operand of a "
     'product must be float32 or have the dtype of the right one: h @ x is (x.T @ h.T).T'),
    ("sched.compute(ctx.graph((single + whole).named('y')))", U,
     "Scheduler.compute: no backend can run node 0, ADD 'y' float32 (4, 8) of 'single' float32 (4, 8), 'whole' "
     "int32 (4, 8); CPU: source 1 must be f32, f16 or bf16; 'whole' is int32: its astype('float32') is a node "
     'that converts'),
    ("sched.compute(ctx.graph(gb.ops.get_rows(single, ctx.constant([1, 9], name='ids')).named('y')))", E,
     "Scheduler.compute: split 0 (nodes 0 to 0) on backend CPU: GET_ROWS 'y' float32 (2, 8) of 'single' float32 "
     "(4, 8), 'ids' int32 (2,): index 9 at (1,) is out of range 0..3"),
    ('freed.numpy()', S,
     "'freed' float32 (4, 8): it has lost its memory, which was freed with the scheduler or buffer that held "
     'it: keep that open, or take a copy before, numpy(copy=True)'),
    ("ctx.graph(single * 2)['singel']", KeyError, "'singel'; did you mean 'single'?"),
]  # fmt: skip

# Values in messages, in the order and with the names of the user.
FAULTS = [
    ('gb.ops.mul_mat(v, x)', Fault('UNEQUAL', 'mul_mat', ('a', 'b'), (-1,), (100, 128))),
    ('gb.ops.out_prod(x, v)', Fault('UNEQUAL', 'out_prod', ('a', 'b'), (-2,), (16, 64))),
    ("gb.ops.mul_mat_id([w, v], ctx.tensor((16, 1), 'i32', name='which'), 0, x)",
     Fault('UNEQUAL', 'mul_mat_id', ('matrices[0]', 'matrices[1]'), (-1,), (128, 100))),
    ("gb.ops.mul(ctx.tensor(128, name='row'), x)", Fault('NO_MULTIPLE', 'mul', ('a', 'b'), (-2, -2), (1, 16))),
    ('gb.ops.add(x, v)', Fault('NO_MULTIPLE', 'add', ('a', 'b'), (-1, -1), (128, 100))),
    ('gb.ops.add1(x, w)', Fault('NO_SCALAR', 'add1', ('b',), (-1,), (128,))),
    ('gb.ops.get_rows(w, x[0])', Fault('OTHER_TYPE', 'get_rows', ('b',), dtypes=('int32', 'float32'))),
    ("gb.ops.get_rows(w, ctx.tensor(4, gb.dtypes.int64, name='i'))",
     Fault('OTHER_TYPE', 'get_rows', ('b',), dtypes=('int32', 'int64'))),
    ("gb.ops.get_rows(w, ctx.tensor((2, 4), gb.int32, name='i'))",
     Fault('UNEQUAL_DIMS', 'get_rows', ('a', 'b'), (-3, -2), (1, 2))),
    ('gb.ops.softmax(x.T)', Fault('NOT_CONTIGUOUS', 'softmax', ('a',))),
    ('gb.ops.softmax(x, v)', Fault('OTHER_SIZE', 'softmax', ('mask',), (-1,), (128, 100))),
    ('gb.ops.softmax(w, x[:10])', Fault('NO_MULTIPLE', 'softmax', ('a', 'mask'), (-2, -2), (64, 10))),
    ('gb.ops.argmax(image)', Fault('NO_MATRIX', 'argmax', ('a',), (-3,), (4,))),
    ('gb.ops.top_k(x, 200)', Fault('OUT_OF_RANGE', 'top_k', numbers=(1, 128, 200), parameter='k')),
    ('gb.ops.cpy(x, v)', Fault('OTHER_COUNT', 'cpy', ('a', 'b'), numbers=(2048, 6400))),
    ('gb.ops.reshape(x.T, 2048)', Fault('NOT_CONTIGUOUS', 'reshape', ('a',))),
    ('gb.ops.rope(image, ids[:3])', Fault('UNEQUAL_DIMS', 'rope', ('a', 'positions'), (-3, -1), (4, 3))),
    ('gb.ops.rope(image, x[0])', Fault('OTHER_TYPE', 'rope', ('positions',), dtypes=('int32', 'float32'))),
    ("gb.ops.conv_2d(ctx.tensor((8, 3, 3, 3), 'f16', name='k'), image)",
     Fault('UNEQUAL', 'conv_2d', ('kernel', 'data'), (-3,), (3, 4))),
    ("gb.ops.conv_2d(ctx.tensor((8, 4, 3, 3), 'f16', name='k'), image, stride=0)",
     Fault('OUT_OF_RANGE', 'conv_2d', numbers=(1, 2147483647, 0), parameter='stride')),
    ("gb.ops.pool_2d(ctx.tensor((2, 3, 4, 4), name='photos'), 'max', 7)",
     Fault('KERNEL_TOO_LARGE', 'pool_2d', ('a',), (-1,), (7, 4))),
    ("gb.ops.pool_1d(ctx.tensor((2, 3, 4), name='sounds'), 'max', 7)",
     Fault('KERNEL_TOO_LARGE', 'pool_1d', ('a',), (-1,), (7, 4))),
    ('gb.ops.norm(x, eps=-1.0, axis=0)', Fault('NOT_POSITIVE', 'norm', numbers=(-1.0,), parameter='eps')),
    ('gb.ops.rms_norm(x, eps=-1.0, axis=0)', Fault('NOT_POSITIVE', 'rms_norm', numbers=(-1.0,), parameter='eps')),
    ('gb.ops.flash_attn(x, w, v)', Fault('UNEQUAL_DIMS', 'flash_attn', ('v', 'k'), (-1, -2), (100, 64))),
    ('gb.ops.norm(x, eps=-1)', Fault('NOT_POSITIVE', 'norm', numbers=(-1.0,), parameter='eps')),
    ("gb.ops.cast(v, 'q4_0')", Fault('PART_OF_BLOCK', 'cast', axes=(-1,), numbers=(32, 100), dtypes=('q4_0',))),
    ("sched.compute(ctx.graph(gb.ops.sqr(ctx.tensor(3, gb.dtypes.float64, name='d')).named('y')))",
     Fault('NODE_REFUSED', 'SQR', ('d',), dtypes=('float64',))),
    ("sched.compute(ctx.graph(gb.ops.relu(ctx.tensor((4, 32), 'q4_0', name='r')).named('y')))",
     Fault('NODE_REFUSED', 'UNARY', ('r',), dtypes=('q4_0',))),
    ("sched.compute(ctx.graph((wide @ single.T).named('y')))",
     Fault('NODE_REFUSED', 'MUL_MAT', ('single', 'wide'), dtypes=('float32', 'float64'))),
    ("sched.allocate(ctx.graph((wide + 1).named('y')))",
     Fault('NODE_REFUSED', 'ADD', ('wide', 'leaf_1'), dtypes=('float64', 'float32'))),
    ("sched.prepare(ctx.graph((single + wide).named('y')))",
     Fault('NODE_REFUSED', 'ADD', ('single', 'wide'), dtypes=('float32', 'float64'))),
    ("sched.compute(ctx.graph((half @ single.T).named('y')))",
     Fault('NODE_REFUSED', 'MUL_MAT', ('single', 'half'), dtypes=('float32', 'float16'))),
    ("sched.compute(ctx.graph((single + whole).named('y')))",
     Fault('NODE_REFUSED', 'ADD', ('single', 'whole'), dtypes=('float32', 'int32'))),
    ("sched.reserve(ctx.graph((whole * 2).named('y')))", Fault('NODE_REFUSED', 'SCALE', ('whole',), dtypes=('int32',))),
    ("sched.compute(ctx.graph(wide.astype('float32').named('y')))",
     Fault('NODE_REFUSED', 'CPY', ('wide', 'y'), dtypes=('float64', 'float32'))),
    ('gb.ops.alibi(image, 0, 3, 8.0)', Fault('OTHER_SIZE', 'alibi', ('a',), (-3,), (3, 4))),
    ('gb.ops.conv_transpose_1d(ctx.tensor((2, 3, 4)), ctx.tensor((3, 8)), 0)',
     Fault('UNEQUAL_DIMS', 'conv_transpose_1d', ('kernel', 'data'), (-3, -2), (2, 3))),
    ('gb.ops.acc(x, x, offset=3)', Fault('REGION_OUTSIDE', 'acc', ('b', 'a'), numbers=(3, 512, 8192, 8192, 8192))),
    ('gb.ops.set(q, x)', Fault('QUANTIZED', 'set', ('a', 'b'), dtypes=('q4_k', 'float32'))),
    ('gb.ops.set(x, x, offset=2**40)', Fault('REGION_TOO_LARGE', 'set', numbers=(1099511627776, 512, 8192, 8192))),
    ('gb.ops.get_rel_pos(x, 5, 5)', Fault('OTHER_SIZE', 'get_rel_pos', ('a',), (-2,), (9, 16))),
    ('gb.ops.rope(image, ids, n_dims=3)', Fault('ROPE_DIMS', 'rope', numbers=(8, 3))),
    ("gb.ops.where(x, x, ctx.tensor((16, 128), 'f16'))",
     Fault('OTHER_TYPES', 'where', ('a', 'b'), dtypes=('float32', 'float16'))),
    ('gb.ops.softmax(x, x, max_bias=-1.0)', Fault('NOT_FINITE', 'softmax', numbers=(-1.0,), parameter='max_bias')),
    ('gb.ops.flash_attn(ctx.tensor((5, 8)), ctx.tensor((3, 8)), ctx.tensor((8, 3)))',
     Fault('SMALLER', 'flash_attn', ('k', 'q'), (-2, -2), (3, 5))),
    ('gb.ops.cross_entropy_loss(x, x, eps=2.0)',
     Fault('NO_FRACTION', 'cross_entropy_loss', numbers=(2.0,), parameter='eps')),
    ('gb.ops.mul_mat(x.T, ctx.tensor((4, 16)))', Fault('TRANSPOSED', 'mul_mat', ('a',))),
    ("gb.ops.add_cast(x, x, 'f16')",
     Fault('NO_SMALL_FLOAT', 'add_cast', ('a',), dtypes=('float16', 'bfloat16', 'float32'))),
    ('gb.ops.upscale(image, 0)', Fault('TOO_SMALL', 'upscale', numbers=(1, 0), parameter='factor')),
    ("gb.ops.pool_1d(x, 'avg', 2, padding=-1)",
     Fault('REAL_OUT_OF_RANGE', 'pool_1d', numbers=(0, 2147483647, -1.0), parameter='padding')),
]  # fmt: skip

# Kind of the exception, and start of its message: the call and the wrong argument.
REFUSED = [
    ('x @ v.T', E, "a @ b: a 'x' float32 (16"),
    ('w.T @ x.T', E, "a @ b: a 'w (transposed)' float32"),
    ("ctx.tensor((2, 3, 4), name='p') @ ctx.tensor((5, 4, 6), name='r')", E, "a @ b: a 'p' float32 (2"),
    ('ctx.tensor(()) @ x', E, 'a @ b: a float32 (), b'),
    ('gb.ops.mul_mat_id(w, ids, 0, x)', T, 'mul_mat_id: matrices must be a'),
    ("x - ctx.tensor((4, 128), name='y')", E, "a - b: a 'x' float32 (16"),
    ('np.zeros((16, 128), np.float32) * data', E, 'a * b: a float32 (16, 128)'),
    ('x / np.ones(128)', E, 'a / b: b is an array'),
    ('x + np.arange(128)', E, 'a + b: b is an array'),
    ('x * None', T, 'a * b: b must be a'),
    ('x + torch_tensor', T, 'a + b: b must be a'),
    ('True - x', T, 'a - b: a must be a'),
    ('x ** 3', T, 'a ** b: the exponents 2 and'),
    ('gb.ops.scale(x, w)', E, "scale: a 'x' float32 (16"),
    ("gb.ops.unary(x, 'gelu_quik')", E, 'unary: op must be one'),
    ('gb.ops.relu(torch_tensor)', T, 'relu: a must be a'),
    ("gb.ops.relu('x')", T, 'relu: a must be a'),
    ('gb.ops.get_rows(w, [0, 1])', T, 'get_rows: b must be a'),
    ('gb.ops.repeat(x, (3, 3))', E, "repeat: a 'x' float32 (16"),
    ('gb.ops.concat(x, w)', E, "concat: a 'x' float32 (16"),
    ('gb.ops.concat(x, v, axis=0)', E, "concat: a 'x' float32 (16"),
    ('gb.ops.concat(x, w, axis=5)', E, "concat: a 'x' float32 (16"),
    ('gb.ops.concat(x, ids)', E, "concat: a 'x' float32 (16"),
    ('gb.ops.concat([x, arr])', T, 'concat: tensors[1] must be a'),
    ('gb.ops.concat([])', E, 'concat: needs at least one'),
    ('gb.ops.pad(x, -1)', E, 'pad: amounts must not be negative, are -1'),
    ('x.reshape(7, -1)', E, "reshape: 'x' float32 (16, 128)"),
    ('x.reshape(-1, -1)', E, "reshape: 'x' float32 (16, 128)"),
    ('q.reshape(-1, 16)', E, 'reshape: q4_k stores rows in'),
    ('x.transpose(0, 0)', E, 'transpose: (0, 0) is no'),
    ('x.swapaxes(0, 2)', E, "swapaxes: 'x' float32 (16, 128)"),
    ('x[[0, 1]]', T, 'x[...]: a tensor is indexed'),
    ('x[x]', T, 'x[...]: a tensor is indexed'),
    ('x[::-1]', E, 'x[...]: steps are positive, not'),
    ('x[0, 0, 0]', E, 'x[...]: too many indices, 3'),
    ('q[:, :128]', E, "x[...]: rows of 'q' q4_k"),
    ('x.__setitem__(0, 1.0)', T, 'x[...] = value: a tensor has no'),
    ('gb.ops.view(x, (100, 100))', E, 'view: a view of shape'),
    ('bool(x)', T, 'a tensor has no truth value: its data is known'),
    ('np.sum(x)', T, 'np.add.reduce: NumPy computes at once'),
    ('arr.__iadd__(data)', T, 'np.add: the result for a'),
    ("gb.ops.conv_2d(ctx.tensor((8, 4, 9, 9), 'f16', name='k'), image)", E, "conv_2d: kernel 'k' float16 (8"),
    ("x.reshape(2, 8, 128) @ ctx.tensor((2, 5, 128), name='keys').T", E, "a @ b: a 'x (reshaped)' float32"),
    ('x.reshape(2, 8, 128) @ ctx.tensor((2, 5, 128)).T', E, "a @ b: a 'x (reshaped)' float32"),
    ('gb.cluster.start(3)', T, 'start() takes 0 positional'),
    ('gb.cluster.start(deadlien=3)', T, 'start() got an unexpected'),
    ("gb.ops.pool_2d(image[0], 'mean', 2)", E, 'pool_2d: op must be one'),
    ('gb.ops.map_custom(x, abs)', T, 'map_custom: the first argument must'),
    ('gb.ops.custom(x, abs)', T, 'custom: the first argument must'),
    ('gb.ops.custom(abs, x, arr)', T, 'custom: sources[1] must be a'),
    ('gb.ops.custom(abs)', E, 'custom: without sources the context'),
    ("gb.ops.custom(abs, x, shape=[(2,), (3,)], dtype=['f32'])", E, 'custom: shape has 2 entries'),
    ('ctx.tensor(arr)', T, 'Context.tensor: shape must be an'),
    ("ctx.tensor('x', (2, 3))", T, 'Context.tensor: shape must be an'),
    ('ctx.tensor(2, 3)', T, 'Context.tensor: 3 is no dtype'),
    ("ctx.tensor((2, 3), 'weights')", T, 'Context.tensor: there is no dtype'),
    ('ctx.tensor((2, 3), float)', T, 'Context.tensor: there is no dtype'),
    ('ctx.tensor((2, 100), gb.dtypes.q4_k)', E, 'Context.tensor: q4_k stores rows in'),
    ('ctx.tensor((2, -3))', E, 'Context.tensor: the shape (2, -3)'),
    ('ctx.tensor((1, 2, 3, 4, 5))', E, 'Context.tensor: the shape (1, 2'),
    ('ctx.tensor((2, 3), name=7)', T, 'Context.tensor: name must be a'),
    ("ctx.tensor((2, 3), name='a\\0b')", E, 'Context.tensor: a name cannot hold'),
    ('ctx.from_numpy(arr.T)', E, 'Context.from_numpy: the array is not'),
    ('ctx.from_numpy(arr.astype(np.uint8))', E, 'Context.from_numpy: uint8 is not a'),
    ("ctx.from_numpy(arr.astype('>f4'))", E, 'Context.from_numpy: >f4 is not a'),
    ('ctx.from_numpy(np.zeros((0, 3), np.float32))', E, 'Context.from_numpy: the array of shape'),
    ("ctx.constant('one')", E, "Context.constant: takes numbers, not 'one'"),
    ('ctx.graph()', E, 'Context.graph: needs at least one'),
    ("ctx.graph('x')", T, 'Context.graph: each output must be'),
    ("ctx.allocate(cpu, usage='weight')", E, 'usage must be one'),
    ('gb.ops.relu(x).numpy()', S, 'float32 (16, 128): it was not computed'),
    ('gone.numpy()', S, 'the context of the'),
    ('gb.ops.relu(gone)', S, 'relu: the context of a'),
    ('x + gone', S, 'a + b: the context of b'),
    ('data.item()', E, "item: 'data' float32 (2, 3)"),
    ('data.set(np.zeros((2, 3)))', E, "set: 'data' float32 (2, 3)"),
    ('data.set([1.0, 2.0])', E, "set: 'data' float32 (2, 3)"),
    ('data.set([[1, 2, 3], [4, 5]])', E, "set: 'data' float32 (2, 3)"),
    ("data.set('zeros')", E, "set: 'data' float32 (2, 3)"),
    ('data.set(torch_tensor)', E, "set: 'data' float32 (2, 3)"),
    ('data.set(arr, offset=1)', E, 'set: elements 1 to 7'),
    ('ids.set(np.arange(4))', E, "set: 'ids' int32 (4,) cannot"),
    ('ids.set([0.5, 1, 2, 3])', E, "set: 'ids' int32 (4,) takes"),
    ('q.set(np.zeros((2, 256), np.float32))', E, "set: 'q' q4_k (2, 256)"),
    ('q.set(0.5)', E, "set: 'q' q4_k (2, 256)"),
    ('q.set(np.zeros((2, 256), np.uint8))', E, "set: 'q' q4_k (2, 256)"),
    ('q.set(np.zeros((2, 128), np.float32), quantize=True)', E, "set: 'q' q4_k (2, 256)"),
    ("host.tensor((2, 3), 'bf16', name='b').set(arr)", E, "set: 'b' bfloat16 (2, 3)"),
    ("host.tensor((2, 3), 'f16', name='h').set(arr)", E, "set: 'h' float16 (2, 3)"),
    ('q.numpy(np.float32)', E, 'numpy: q4_k comes as bytes'),
    ('far.numpy(copy=False)', S, "numpy: 'far' float32 (2, 2)"),
    ('np.asarray(far, copy=False)', ValueError, "numpy: 'far' float32 (2, 2)"),
    ('data.copy_from(arr)', T, 'copy_from: source must be a'),
    ('data.copy_from(ids)', E, 'copy_from: dtype, shape and strides'),
    ("cpu.allocate(16).place(ctx.tensor((16, 128), name='y'))", E, "Buffer.place: 'y' float32 (16, 128)"),
    ("cpu.allocate(16384).place(ctx.tensor((16, 128), name='y'), offset=7)", E, "Buffer.place: 'y' float32 (16, 128)"),
    ('cpu.allocate(1024).place(data)', S, "Buffer.place: 'data' float32 (2, 3)"),
    ('cpu.allocate(9000).place(x.T)', E, "Buffer.place: 'x (transposed)' float32 (128"),
    ("gb.quantize(np.zeros((2, 100), np.float32), 'q4_k')", E, 'q4_k: rows of 100 elements'),
    ("gb.quantize(np.zeros((2, 256), np.int32), 'q4_k')", E, 'quantize to q4_k: takes an array of'),
    ("gb.quantize(arr, 'q5_5')", T, 'quantize: there is no dtype'),
    ("gb.Backend('CPUS')", E, 'Backend: there is no backend'),
    ('gb.Backend(None)', T, 'Backend: name must be a'),
    ("gb.Backend('CPU', n_threads=0)", E, 'Backend: n_threads must be at'),
    ("gb.Backend('CPU', n_threads='4')", T, 'Backend: n_threads must be an'),
    ("gb.Backend('SIM', n_threads=4)", E, 'Backend: n_threads and level are'),
    ('gb.Scheduler([])', E, 'Scheduler: needs at least one'),
    ("gb.Scheduler('CPU')", T, 'Scheduler: each backend must be'),
    ("gb.Scheduler([cpu], policy='costs')", E, 'Scheduler: policy must be one'),
    ('gb.Scheduler([cpu], n_copies=0)', E, 'Scheduler: n_copies must be 1'),
    ('sched.compute(gb.ops.relu(x))', T, 'Scheduler.compute: graph must be a'),
    ('sched.set_backend(x, sim)', E, 'Scheduler: SIM0 is not one'),
    ("sched.memory('CPU')", T, 'Scheduler: backend must be a'),
    ("ctx.graph(gb.ops.relu(x).named('y')).compute(cpu)", S, "Graph.compute: 'x' float32 (16, 128)"),
    ("ctx.graph(gb.ops.relu(data)).compute('CPU')", T, 'Graph.compute: backend must be a'),
    ('gb.ops.top_k(x, 3, axis=0)', T, 'top_k() got an unexpected'),
    ('gb.ops.sum(x, dim=1)', T, 'sum() got an unexpected'),
    ('gb.ops.sum_rows(x, axis=0)', T, 'sum_rows() got an unexpected'),
    ('gb.ops.mean(x, keepdims=True)', E, 'mean: keepdims=True needs an axis'),
    ('gb.ops.sum(x, axis=2)', E, "sum: a 'x' float32 (16"),
    ('gb.ops.sum(x, axis=(0, -2))', E, 'sum: axis=(0, -2) names an'),
    ('gb.ops.mean(x, axis=())', E, 'mean: axis=() names no axis'),
    ("gb.ops.sum(x, axis='rows')", T, 'sum: axis must be an'),
    ('gb.ops.sum(x, axis=True)', T, 'sum: axis must be an'),
    ('gb.ops.argmax(x, axis=(0, 1))', T, 'argmax: axis must be an'),
    ('gb.ops.softmax(x, axis=None)', T, 'softmax: axis must be an'),
    ('gb.ops.softmax(x, x, axis=0)', E, 'softmax: axis 0 is not'),
    ('gb.ops.norm(x, inplace=True, axis=0)', E, 'norm: axis 0 is not'),
    ('gb.ops.concat([x, x], dim=0)', T, 'concat() got an unexpected'),
    ('gb.Tensor((2, 3))', T, 'Tensor objects are not'),
    ('gb.Graph(x)', T, 'Graph objects are not'),
    ('gb.Buffer(1024)', T, 'Buffer objects are not'),
    ('gb.sched.Pending()', T, 'Pending objects are not'),
    ("gb.backend.BufferType('CPU')", T, 'BufferType objects are not'),
    ('gb.backend("CPU")', T, "'module' object is not"),
    ('gb.tensor([1, 2])', T, "'module' object is not"),
    ('gb.ops.matmul(x, x)', E, "matmul: a 'x' float32 (16"),
    ("gb.ops.matmul(x, w.T, prec='f64')", E, 'matmul: prec must be one'),
    ('gb.ops.matmul(3, 4)', T, 'matmul: a must be a'),
    ('gb.mm(x, x)', N, "ggml_backend has no 'mm'"),
    ('gb.log_softmax(x)', N, "ggml_backend has no 'log_softmax'"),
    ('gb.log_soft_max(x)', N, "ggml_backend has no 'log_soft_max'"),
    ('gb.squeeze(x)', N, "ggml_backend has no 'squeeze'"),
    ('gb.flatten(x)', N, "ggml_backend has no 'flatten'"),
    ('gb.gather(x, ids)', N, "ggml_backend has no 'gather'"),
    ('gb.sort(x)', N, "ggml_backend has no 'sort'"),
    ("x @ gb.quantize(arr.repeat(256, 1), 'q4_k').T", E, 'a @ b: b holds quantized blocks'),
    ("x + gb.quantize(arr.repeat(256, 1), 'q4_k')", E, 'a + b: b holds quantized blocks'),
    ("gb.quantize(gb.quantize(arr.repeat(256, 1), 'q4_k'), 'q8_0')", E, 'quantize to q8_0: takes an array of'),
    ("host.tensor((1, 2, 3), name='image').set(arr.reshape(3, 2, 1))", E, "set: 'image' float32 (1, 2"),
    ("gb.device('cpu')", N, "ggml_backend has no 'device'"),
    ('gb.profile()', T, "'module' object is not"),
    ("gb.Backend('CPU', nthreads=2)", E, 'Backend: the CPU has no'),
    ("gb.Backend('CPU', colour=2)", E, 'Backend: the CPU has no'),
    ("x @ gb.Context().tensor((64, 128), name='other').T", E, "a @ b: a 'x' float32 (16"),
    ("ctx.constant(np.zeros((2, 256), np.float32), 'q4_k')", E, 'Context.constant: q4_k cannot take an'),
    ("ctx.constant(np.zeros((2, 256), np.float32), 'bf16')", E, 'Context.constant: bfloat16 cannot take an'),
    ("ctx.constant(np.zeros((2, 100), np.uint8), 'q4_k')", E, 'Context.constant: rows of 100 bytes'),
    ('ctx.constant(arr.astype(np.uint8))', E, 'Context.constant: uint8 is not a'),
    ('ctx.constant(arr > 0)', E, 'Context.constant: bool is not a'),
    ('ctx.from_dlpack(arr.astype(np.uint8))', E, 'from_dlpack: uint8 is not a'),
    ('ctx.constant(arr.astype(np.uint32))', E, 'Context.constant: uint32 is not a'),
    ('ctx.constant(arr + 1j)', E, 'Context.constant: takes numbers, not array([[0.+1.j'),
    ('gb.dequantize(np.zeros((2, 18), np.uint8))', T, 'dequantize: an array does not'),
    ("gb.dequantize(q, 'q4_0')", E, 'dequantize: the tensor is q4_k'),
    ("q.set(gb.quantize(np.zeros((2, 256), np.float32), 'q4_0'))", E, "set: 'q' q4_k (2, 256)"),
    ("gb.ops.conv_2d(ctx.tensor((1, 3, 4, 4), name='pixels'), ctx.tensor((8, 3, 3, 3), name='k'))", E,
     "conv_2d: kernel 'pixels' float32 (1"),
    ("gb.ops.im2col(image, image, dtype='q4_0')", E, 'im2col: dtype must be float16'),
    ("compute(gb.ops.custom(lambda out, v: [0.0] * 4, single, shape=(3,)).named('y'))", E,
     "custom: 'y' float32 (3,) of"),
    ('huge().context.allocate(cpu)', A, 'Context.allocate: cannot allocate 4.0 TiB'),
    ('huge().context.allocate(sim_of_a_mib)', A, 'Context.allocate: SIM0: 0 bytes of'),
    ('allocate_huge([cpu])', A, 'Scheduler.allocate: cannot allocate 4.0 TiB'),
    ("gb.gguf.Writer('/no').add_tensor('m', arr > 0)", E, "tensor 'm': GGUF has no type"),
    ("gb.gguf.Writer('/no').add_tensor('m', arr.astype(np.uint8))", E, "tensor 'm': GGUF has no type"),
    ("gb.gguf.Writer('/no').add_tensor('m', arr.astype('c16'))", E, "tensor 'm': GGUF has no type"),
    ("gb.gguf.Writer('/no').add('a' * 70000, 1)", E, "Writer.add: key 'aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"),
    ("gb.quantize(arr.repeat(256, 1) * float('nan'), 'q4_k')", E, 'quantize to q4_k: row 0, column 0'),
    ('replaced().numpy()', S, "'y' float32 (4, 8): it has no value"),
    ('gb.zeros((2, 3))', N, "ggml_backend has no 'zeros'"),
    ('gb.no_such_thing', N, "ggml_backend has no 'no_such_thing'"),
    ('x if x > 0 else 0', T, 'a tensor has no truth value: its data is known'),
    ('gb.Scheduler(cpu, cpu)', T, 'Scheduler: several backends are a'),
    ("sched.compute(ctx.graph(x * 2), {'x': 1})", T, 'Scheduler.compute: callback must be a'),
    ('gb.gguf.open(3)', T, 'open: takes a path or'),
    ("gb.gguf.open(['a.gguf', 'b.gguf'])", T, 'open: takes a path or'),
    ('gb.Scheduler(None)', T, 'Scheduler: each backend must be'),
    ('ctx.graph(single * 2, keep=None)', T, 'Context.graph: keep: each must be'),
    ("ctx.graph(single * 2, keep='y')", T, 'Context.graph: keep: each must be'),
    ("sched.compute(ctx.graph(single * 2), abs, wanted='nope*')", E, 'Scheduler.compute: wanted: no node of'),
    ("sched.compute(ctx.graph(single * 2), abs, wanted=['nope'])", E, 'Scheduler.compute: wanted: no node of'),
    ('sched.compute(ctx.graph(single * 2), abs, wanted=3)', T, 'Scheduler.compute: wanted must be a'),
    ('sched.set_eval_callback(3)', T, 'Scheduler.set_eval_callback: callback must be a'),
    ('gb.sched.set_abort_callback(cpu, 3)', T, 'set_abort_callback: function must be a'),
    ('gb.set_log(lambda text: 0)', T, 'set_log: the function is called'),
    ('ctx.graph(single * 2).__iter__()', T, 'a graph is not iterable: graph.nodes lists its co'),
    ("gb.Context(allocate='x')", T, 'Context: allocate must be a'),
    ("gb.Scheduler(cpu, n_copies='a')", T, 'Scheduler: n_copies must be an'),
    ("(single + 1).named('y').numpy()", S, "'y' float32 (4, 8): it was not computed"),
    ('result.set(5)', S, "set: 'result' float32 (4, 8)"),
    ('result.copy_from(single)', S, "copy_from: 'single' float32 (4, 8)"),
    ('copied + 1', S, 'a + b: the copy of a'),
    ('copied @ copied.T', S, 'transpose: the copy of a'),
    ('copied.context.tensor(3)', S, 'Context.tensor: the copy of a'),
    ('copied.context.constant(3)', S, 'Context.constant: the copy of a'),
    ('copied.context.from_numpy(arr)', S, 'Context.from_numpy: the copy of a'),
    ("gb.ops.conv_2d(ctx.tensor((8, 4, 3, 3), name='k'), image, stride=1.5)", E, 'conv_2d: stride must be an'),
    ("gb.ops.conv_2d(ctx.tensor((8, 4, 3, 3), name='k'), image, stride=None)", E, 'conv_2d: stride must be an'),
    ("gb.ops.conv_2d(ctx.tensor((8, 4, 3, 3), name='k'), image, stride=(1.9, 2))", E, 'conv_2d: stride must be an'),
    ("gb.ops.conv_2d(ctx.tensor((8, 4, 3, 3), name='k'), image, stride='12')", E, 'conv_2d: stride must be an'),
    ("gb.ops.conv_2d(ctx.tensor((8, 4, 3, 3), name='k'), image, padding='same')", E, 'conv_2d: padding must be an'),
    ("gb.ops.conv_1d(ctx.tensor((4, 3, 3), name='k'), ctx.tensor((1, 3, 8), name='data'), stride=1.5)", E,
     "conv_1d: kernel 'k' float32 (4"),
    ("gb.ops.pool_2d(image, 'avg', 2, padding=('a', 1))", E, "pool_2d: a 'image' float32 (1"),
    ("gb.ops.leaky_relu(x, 'a')", E, "leaky_relu: a 'x' float32 (16"),
    ('gb.ops.rms_norm(x, arr)', E, "rms_norm: a 'x' float32 (16"),
    ('gb.ops.top_k(x, 2.5)', E, "top_k: a 'x' float32 (16"),
    ("gb.ops.diag_mask_inf(x, 'a')", E, "diag_mask_inf: a 'x' float32 (16"),
    ('gb.ops.group_norm(image, 2.0)', E, "group_norm: a 'image' float32 (1"),
    ("gb.ops.set(x, x, offset='a')", E, "set: a 'x' float32 (16"),
    ("gb.ops.rope(image, ids, n_dims='a')", E, "rope: a 'image' float32 (1"),
    ("gb.ops.softmax(x, scale='a')", E, "softmax: a 'x' float32 (16"),
    ("gb.ops.map_custom(abs, x, n_tasks='a')", T, 'map_custom: n_tasks must be an'),
    ("x.swapaxes('a', 0)", T, 'swapaxes: a must be an'),
    ("x.reshape('a')", T, 'reshape: shape must be an'),
    ("x.transpose('a')", T, 'transpose: axes must be an'),
    ('gb.ops.pad(x, 1.5)', T, 'pad: amounts must be an'),
    ("gb.ops.repeat(x, 'ab')", T, 'repeat: like must be an'),
    ("x.astype('foo')", T, 'astype: there is no dtype'),
    ('x.astype(np.uint8)', T, 'astype: there is no dtype'),
    ('gb.ops.cast(x, 3)', T, 'cast: there is no dtype'),
    ("ctx.constant(1, 'float3')", T, 'Context.constant: there is no dtype'),
    ('x[True]', T, 'x[...]: a tensor is indexed'),
    ("x['a':]", T, 'x[...]: the bounds of a'),
    ('gb.ops.concat([x, w], axis=5)', E, "concat: 'x' float32 (16, 128)"),
    ("gb.ops.mul_mat(w, x, prec='f64')", E, 'mul_mat: prec must be one'),
    ('gb.ops.view(x, strides=(4,))', E, 'view: strides and an offset'),
    ('gb.ops.view(x, (2,), offset=1)', E, 'view: offset 1 and strides'),
    ('gb.ops.view(x, (2,), offset=1.5)', T, 'view: offset must be an'),
    ("gb.ops.view(x, (2, 2), strides='ab')", T, 'view: strides must be an'),
    ('ctx.constant(2**40)', E, 'Context.constant: 1099511627776 does not fit'),
    ('ctx.constant([1, -2**40])', E, 'Context.constant: -1099511627776 does not fit'),
    ('ctx.constant(2**70)', E, 'Context.constant: 1.181e+21 does not fit'),
    ('cpu.allocate(2**70)', A, 'BufferType.allocate: 1180591620717411303424 bytes exceed the address space'),
    ('gb.backend.load_backend(3)', T, 'load_backend: path must be a'),
    ("gb.Backend('CPU', level=3)", T, 'Backend: level must be a'),
    ("gb.Backend('CPU', n_threads=100000)", E, "Backend.n_threads: argument 'n_threads': needs 1"),
    ("gb.quantize(np.zeros((2, 32), np.float32), 'q4_0', n_threads='a')", T, 'n_threads must be an'),
    ("gb.quantize(np.zeros((2, 256), np.float32), 'q4_k', importance='a')", E,
     'quantize to q4_k: importance must be numbers'),
    ("gb.sched.calibrate(cpu, size='a')", T, 'calibrate: size must be an'),
    ('gb.sched.calibrate(3)', T, 'calibrate: backend must be a'),
    ('gb.Scheduler([cpu], costs=gb.sched.Costs(3))', T, 'Costs: devices must be DeviceCosts'),
    ("gb.Scheduler([cpu], costs=gb.sched.Costs([gb.sched.DeviceCosts((gb.sched.OpCost(launch_us='a'),))]))", T,
     "Costs: launch_us of OpCost(op_class='any', dtype=None"),
    ('gb.planning.plan_memory([0], [1], [64], alignment=3)', E, "plan_memory: argument 'alignment': 3 is"),
    ('single.__reduce__()', T, 'a Tensor cannot be pickled: it belongs to this'),
    ('ctx.graph(single * 2).__reduce__()', T, 'a Graph cannot be pickled: it belongs to this'),
    ('cpu.buffer_type.__deepcopy__(None)', T, 'a BufferType cannot be'),
    ('sched.prepare(ctx.graph(single * 2)).__reduce__()', T, 'a Plan cannot be pickled: it belongs to this'),
    ('x + 10**400', E, 'a + b: b is too large'),
    ('x ** -1', T, 'a ** b: the exponents 2 and'),
    ('ctx.tensor()', T, 'Context.tensor() missing 1 required'),
    ('x.named()', T, 'Tensor.named() missing 1 required'),
    ('x.set()', T, 'Tensor.set() missing 1 required'),
    ('ctx.allocate()', T, 'Context.allocate() missing 1 required'),
    ("sched.compute_async(ctx.graph((single * 3).named('h') + 1), results=result)", E,
     "Scheduler.compute_async: 'result' (SCALE) is not"),
    ('ctx.graph(x)[0]', T, 'graph[...]: name must be a'),
    ("gb.gguf.load('m.gguf')", N, "ggml_backend.gguf has no 'load'"),
    ('gb.gguf.frobnicate', N, "ggml_backend.gguf has no 'frobnicate'"),
    ("gb.backends()['CUDA']", T, 'backends() is a list'),
    ('gb.ops.softmax(x, -1)', T, 'softmax: mask must be a'),
    ('gb.ops.tanh(x, w)', T, 'tanh() takes 1 positional'),
    ('gb.ops.permute_ggml(x, 1, 0, 2, None)', T, 'permute_ggml: axis3 must be an'),
    ("gb.ops.repeat('x', (2, 2))", T, 'repeat: a must be a'),
    ('gb.ops.mul_mat_id(3, ids, 0, x)', T, 'mul_mat_id: matrices must be a'),
    ('x.numpy(3)', T, 'numpy: dtype must be a'),
    ("data.numpy(copy='a')", T, 'numpy: copy must be a'),
    ('data.set(0, offset=1.5)', T, 'set: offset must be an'),
    ("data.set(0, quantize='yes')", T, 'set: quantize must be a'),
    ('cpu.allocate(100).place(x, 1.5)', T, 'Buffer.place: offset must be an'),
    ("cpu.allocate(100).clear('a')", T, 'Buffer.clear: value must be an'),
    ("cpu.allocate(100, usage=['weights'])", E, 'usage must be one'),
    ("gb.Backend('SIM', mem=1.5)", T, 'Backend: mem must be a'),
    ("gb.Backend('SIM', delay=None)", T, 'Backend: delay must be a'),
    ("gb.Backend('CPU', n_threads=2**70)", E, 'Backend: n_threads 1180591620717411303424 is too'),
    ('gb.Scheduler(cpu, 3)', T, 'Scheduler: buffer_types must be a'),
    ("gb.Scheduler(cpu, keep_all='a')", T, 'Scheduler: keep_all must be a'),
    ('sched.compute_async(ctx.graph(single * 2), 3)', T, 'Scheduler.compute_async: results must be a'),
    ('sched.compute_async(ctx.graph(single * 2), results=None)', T, 'Scheduler.compute_async: results must be a'),
    ('sched.trace(3)', T, 'Scheduler.trace: path must be a'),
    ("sched.trace('')", E, 'Scheduler.trace: path is empty'),
    ('sched.prepare(ctx.graph(single * 2)).to_html(3)', T, 'Plan.to_html: path must be a'),
    ("sched.prepare(ctx.graph(single * 2)).to_text('a')", T, 'Plan.to_text: width must be an'),
    ('sched.prepare(ctx.graph(single * 2)).to_text(-1)', E, 'Plan.to_text: width, rows and largest'),
    ('gb.sched.GraphAllocator(cpu).set_order(3)', T, 'GraphAllocator.set_order: order must be a'),
    ('gb.sched.GraphAllocator(cpu).set_order([1.5])', T, 'GraphAllocator.set_order: each of order must'),
    ('gb.sched.TensorAllocator(3)', T, 'TensorAllocator: target must be a'),
    ('gb.sched.calibrate(cpu, progress=3)', T, 'calibrate: progress must be a'),
    ('gb.planning.plan_memory([[0], [1, 2]], [1], [2])', E, 'plan_memory: lower must be integers'),
    ('gb.planning.plan_memory([0], [1], [2], 1.5)', T, 'plan_memory: alignment must be an'),
    ("gb.planning.plan_memory([0], [1], [2], reproducible='a')", T, 'plan_memory: reproducible must be a'),
    ('gb.gguf.Writer(3)', T, 'Writer: path must be a'),
    ("gb.gguf.open('')", E, 'open: source is empty'),
    ("gb.gguf.fallback_dtype('q4_k', 1.5)", T, 'fallback_dtype: n must be an'),
    ('gb.show_config(3)', E, "show_config: mode must be 'print'"),
    ("gb.sched.Costs.cached('CPU')", T, 'Costs.cached: backends must be a'),
    ("ctx.graph(x, keep_inputs='a')", T, 'Context.graph: keep_inputs must be a'),
    ("ctx.tensor((2, 3), 'float')", T, 'Context.tensor: there is no dtype'),
    ("ctx.tensor((2, 3), 'fp16')", T, 'Context.tensor: there is no dtype'),
    ("ctx.tensor((2, 3), 'int4')", T, 'Context.tensor: there is no dtype'),
    ("x.astype('float')", T, 'astype: there is no dtype'),
    ("x.astype('int')", T, 'astype: there is no dtype'),
    ('ctx.from_numpy(arr, 3)', T, 'Context.from_numpy: name must be a'),
    ('ctx.constant(1, name=3)', T, 'Context.constant: name must be a'),
    ("sched.prepare(ctx.graph(single * 2)).memory['CPUS']", KeyError, "'CPUS'; did you mean"),
    ("host['dat']", KeyError, "'dat'"),
    ("gb.Backend('SIM', mem='1.5')", E, "Backend('SIM:mem=1.5'): SIM: parameter 'mem=1.5' needs"),
]  # fmt: skip


def caught(source, kind):
    names = Names(gb=gb, np=np, abs=abs, bool=bool, float=float)
    if "asarray" in source and np.lib.NumpyVersion(np.__version__) < "2.0.0":
        pytest.skip("asarray has no copy before NumPy 2")
    with pytest.raises(kind) as raised:
        eval(source, {"__builtins__": {}}, names)
    return raised.value


@pytest.mark.parametrize(("source", "kind", "text"), EXAMPLES, ids=[m[0] for m in EXAMPLES])
def test_examples_of_errors_have_these_messages(source, kind, text):
    assert str(caught(source, kind)) == text


@pytest.mark.parametrize(("source", "fault"), FAULTS, ids=[m[0] for m in FAULTS])
def test_a_broken_rule_has_these_values(source, fault):
    """The message has operands, axes, numbers, dtypes and the parameter in this order, and no term
    of C."""
    error = caught(source, gb.GgmlError)
    assert error.fault == fault
    said = str(error).partition(": ")[2]
    assert not re.search(r"[{}]|\bggml_|\bdimension \d|\bne\d?\b|\[\d+, \d+", said)
    if fault.kind != "NODE_REFUSED":
        reason = said[said.rfind("): ") + 1 :]
        shown = [f"axis {axis}" for axis in fault.axes], [f"{n:g}" if n < 2**20 else str(n) for n in fault.numbers]
        for values in (fault.operands, *shown, fault.dtypes):
            at = 0
            for value in values:
                assert value in reason[at:], value
                at = reason.index(value, at)


@pytest.mark.parametrize(("source", "kind", "begin"), REFUSED, ids=[m[0] for m in REFUSED])
def test_common_mistakes_are_refused(source, kind, begin):
    error = caught(source, kind)
    text = re.sub(r"\bSIM\d+", "SIM0", str(error))
    assert text.startswith(begin)
    assert getattr(error, "fault", None) is None
    assert not re.search(r"\bggml_\w+\(|\bggml_(?!backend\b)|\bgbpy?_|\bdimension \d|0x[0-9a-f]+", text)
    found = re.match(r"(\w+(?:\.\w+)?): (?:(\w+)\.)?(\w+): ", text)  # the message names the call only once
    assert found is None or (found[2] is None and found[3] != found[1].rpartition(".")[2])


@pytest.mark.parametrize("message", ["Scheduler.compute: no", "compute: no", "no"])
def test_messages_of_c_get_one_prefix(message):
    with pytest.raises(gb.errors.StateError, match=r"^Scheduler\.compute: no$"):
        _errors.raise_as(gb.errors.StateError.status, message, "Scheduler.compute")


# ---------------------------------------------------------------------------------------- what is obviously meant works


def test_obvious_intentions_work(ctx, cpu, rng):
    a, b, c = (rng.standard_normal(shape).astype(np.float32) for shape in [(2, 3), (2, 3), (1, 3)])
    x, y, z = (ctx.constant(v) for v in (a, b, c))
    joined, below, matrices = gb.ops.concat([x, y], axis=1), gb.ops.concat([x, y, z], 0), gb.ops.concat([x, y])
    assert gb.ops.concat([x]) == x
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


# ------------------------------------------------------------------------------------------------------ names of things


def test_results_of_unnamed_tensors_are_unnamed(ctx):
    x, named = ctx.tensor((4, 6)), ctx.tensor((4, 6), name="x")
    makers = [
        lambda t: t.reshape(24),
        lambda t: t.T,
        lambda t: t[1],
        lambda t: t.astype("f16"),
        gb.ops.cont,
        gb.ops.view,
        lambda t: gb.ops.relu(t, inplace=True),
        lambda t: gb.ops.cpy(t, gb.ops.empty_like(t)),
        lambda t: gb.ops.permute_ggml(t, 1, 0, 2, 3),
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
        ("a\0b", gb.errors.InvalidArgumentError),
        ("\ud800", gb.errors.InvalidArgumentError),
    ]:
        with pytest.raises(kind, match=r"^Tensor.name"):
            x.name = wrong
        if wrong is not None:
            with pytest.raises(kind, match=r"^Context.tensor: "):
                ctx.tensor(3, name=wrong)
        with pytest.raises(kind, match=r"^Context.get: "):
            ctx.get(wrong)
    x.name = "ä" * 40
    assert x.name == "ä" * 31  # 62 bytes; one more character would need 64
    assert ctx.get("ä" * 40) == x


# ----------------------------------------------------------------------------------------------------- user's functions


@pytest.mark.skipif(sys.version_info < (3, 11), reason="notes came with Python 3.11")
def test_an_exception_of_map_custom_names_the_node(ctx, cpu):
    def wrong(out, a):
        raise ZeroDivisionError("no such luck")

    x = ctx.constant(np.ones((2, 3), np.float32), name="x")
    with pytest.raises(ZeroDivisionError, match="no such luck") as caught:
        gb.Scheduler(cpu).compute(ctx.graph(gb.ops.map_custom(wrong, x).named("mine")))
    assert caught.value.__notes__ == ["raised in the function of map_custom that computes 'mine' float32 (2, 3)"]
    with pytest.raises(gb.errors.InvalidArgumentError, match="must have the shape") as caught:
        gb.Scheduler(cpu).compute(ctx.graph(gb.ops.map_custom(lambda out, a: np.zeros((4, 4)), x).named("square")))
    assert caught.value.__notes__ == ["raised in the function of map_custom that computes 'square' float32 (2, 3)"]


# ---------------------------------------------------------------------------------------------------------- translation


def test_quotes_of_the_library_become_terms_of_numpy():
    def spoken(text):
        return faults.spoken(text.replace("<", "\x0e").replace(">", "\x0f"))

    assert spoken("<'a b' f32 [128, 16]> and <'' q4_K [256]>") == "'a b' float32 (16, 128) and q4_k (256,)"
    assert spoken("<'it' is f32 [2]' bf16 []>") == "'it' is f32 [2]' bfloat16 ()"
    assert spoken("index 5 at <[1, 0, 0]>, type <i32>, not f32") == "index 5 at (0, 0, 1), type int32, not f32"
    assert spoken("cut <'x' f3") == "cut 'x' f3"
    assert spoken("nothing to see") == "nothing to see"


def _layer_norm(x):
    return (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-5)


def _log_softmax(x):
    return x - np.log(np.exp(x).sum(-1, keepdims=True))


HINTED = {
    "mm": lambda n: n["x"] @ n["w"],
    "log_softmax": lambda n: _log_softmax(n["x"]),
    "layer_norm": lambda n: _layer_norm(n["x"]) * n["weight"] + n["bias"],
    "cat": lambda n: np.concatenate([n["x"], n["y"]]), "stack": lambda n: np.stack([n["x"], n["y"]]),
    "maximum": lambda n: np.maximum(n["a"], n["b"]), "minimum": lambda n: np.minimum(n["a"], n["b"]),
    "clip": lambda n: np.clip(n["x"], n["low"], n["high"]), "argmin": lambda n: n["x"].argmin(-1),
}  # fmt: skip


@pytest.mark.parametrize("name", HINTED)
def test_hints_give_working_expressions(name):
    """The first expression after "use" gives the same as the name in other libraries."""
    rng = np.random.default_rng(1)
    shapes = {"x": (3, 4), "y": (3, 4), "w": (4, 5), "a": (3, 4), "b": (3, 4), "weight": (4,), "bias": (4,)}
    given = {n: rng.normal(size=shape).astype(np.float32) for n, shape in shapes.items()}
    given |= {"low": -0.5, "high": 0.5}
    ctx = gb.Context()
    names = {n: ctx.constant(v) if isinstance(v, np.ndarray) else v for n, v in given.items()} | {"gb": gb}
    with pytest.raises(AttributeError) as error:
        getattr(gb.ops, name)
    expression = re.search(r"; use (.*?)(?:;.*|, or .*|, along .*| or .*|, x\[:, 0\].*)?$", str(error.value))[1]
    with gb.Scheduler(gb.Backend("CPU", n_threads=1)) as scheduler:
        result = eval(expression, names)
        scheduler.compute(ctx.graph(result))
        np.testing.assert_allclose(result.numpy(), HINTED[name](given), rtol=2e-3, atol=2e-3)
