"""A user's program that mentions every public name, as type checkers see it: `mypy --strict` and `pyright` must accept
it against the installed package. It also runs, which shows that the types are true.

`tests/python/package/test_types.py` checks it, and that no name of the public modules is missing here.
"""

from __future__ import annotations

import logging
import re
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

import ggml_backend as gb
import ggml_backend.gguf
from ggml_backend import gguf
from ggml_backend.cluster import Description
from ggml_backend.program import Missing

if TYPE_CHECKING:
    from typing_extensions import assert_type
else:

    def assert_type(value: Any, kind: Any) -> Any:
        return value


def dtypes() -> list[gb.dtypes.DType]:
    quantized: list[gb.dtypes.DType] = [
        gb.dtypes.q4_0, gb.dtypes.q4_1, gb.dtypes.q5_0, gb.dtypes.q5_1, gb.dtypes.q8_0,
        gb.dtypes.q8_1, gb.dtypes.q2_k, gb.dtypes.q3_k, gb.dtypes.q4_k, gb.dtypes.q5_k,
        gb.dtypes.q6_k, gb.dtypes.q8_k, gb.dtypes.iq1_m, gb.dtypes.iq1_s, gb.dtypes.iq2_s,
        gb.dtypes.iq2_xs, gb.dtypes.iq2_xxs, gb.dtypes.iq3_s, gb.dtypes.iq3_xxs, gb.dtypes.iq4_nl,
        gb.dtypes.iq4_xs, gb.dtypes.tq1_0, gb.dtypes.tq2_0, gb.dtypes.mxfp4, gb.dtypes.nvfp4,
        gb.dtypes.q1_0, gb.dtypes.q2_0,
    ]  # fmt: skip
    plain = [
        gb.float32,
        gb.float16,
        gb.bfloat16,
        gb.dtypes.float64,
        gb.dtypes.int8,
        gb.dtypes.int16,
        gb.int32,
        gb.dtypes.int64,
    ]
    wanted: gb.dtypes.DTypeLike = "q4_0"
    assert_type(gb.dtypes.as_dtype(wanted), gb.dtypes.DType)
    assert_type(gb.dtypes.q4_0.block_size, int)
    assert_type(gb.float32.dtype, "np.dtype[Any]")
    return plain + quantized


def triangles(a: gb.Tensor) -> list[gb.Tensor]:
    return [gb.ops.tri(a, "upper"), gb.ops.tril(a), gb.ops.triu(a), gb.ops.solve_tri(gb.ops.tril(a), a)]


def models(path: Path) -> None:
    """Whole models: what each kind gives."""
    model = gb.models.load(path)
    if isinstance(model, gb.models.TextModel):
        rules = gb.models.Sampling(temperature=0.5, seed=1)
        messages: Sequence[gb.models.Message] = [{"role": "user", "content": "Hello"}]
        answer: gb.models.Generation = model.chat(messages, sampling=rules)
        assert_type(next(answer), str)
        stats: gb.models.Stats = model.stats
        tokenizer: gb.models.Tokenizer = model.tokenizer
        template: gb.models.ChatTemplate | None = model.template
        print(stats, tokenizer, template, gb.models.tokenizer_of(model.metadata))
    elif isinstance(model, gb.models.SpeechModel):
        found: gb.models.Transcript = model.transcribe("speech.wav")
        assert_type(found.text, str)
    else:
        embedding: gb.models.EmbeddingModel = model
        print(embedding.embed(["text"]).shape, gb.models.DECODERS, gb.models.ENCODERS)


def programs(path: Path, ids: np.ndarray[Any, np.dtype[np.int64]]) -> None:
    """Programs of files."""
    program = gb.load_program(path, devices=["CPU"], n_threads=1, policy="weights")
    print(program(ids), program(input_ids=ids), program.explain().packed, program.plan.memory)
    assert_type(program.inputs, "dict[str, tuple[tuple[int | str, ...], str]]")
    assert_type(program.backends, list[gb.Backend])
    program.save(path)
    model = gb.load_onnx(path, weights={"*": "q8_0"}, sizes={"batch": 1}, fixed={"sr": 16000}, seed=0, n_threads=1)
    assert_type(model.explain().missing, list[Missing])


def training(loss: gb.Tensor, w: gb.Tensor, sched: gb.Scheduler, path: Path) -> None:
    """Steps of optimizers, and their files."""
    adam = gb.optim.AdamW(loss, [w], 1e-3, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.1, max_norm=1.0)
    optimizer: gb.optim.Optimizer = gb.optim.SGD(loss, [w], lr=0.1, weight_decay=0.0, max_norm=None)
    sched.allocate(adam.graph)
    adam.lr, adam.max_norm = 1e-4, None
    assert_type(adam.add(sched), float)
    assert_type(optimizer.prepare(sched, max_bytes=2**20), gb.sched.Plan)
    assert_type(optimizer.step(sched), float)
    assert_type((adam.n_steps, adam.norm), tuple[int, float])
    adam.save(path, {"training.epoch": 1})
    adam.load(path)
    assert issubclass(gb.errors.NonFiniteError, gb.GgmlError)


def elementwise(x: gb.Tensor, y: gb.Tensor) -> list[gb.Tensor]:
    functions: list[Callable[[gb.Tensor], gb.Tensor]] = [
        gb.ops.abs, gb.ops.sgn, gb.ops.sign, gb.ops.neg, gb.ops.step, gb.ops.tanh, gb.ops.elu,
        gb.ops.relu, gb.ops.gelu, gb.ops.gelu_erf, gb.ops.gelu_quick, gb.ops.silu, gb.ops.hardswish,
        gb.ops.hardsigmoid, gb.ops.leaky_relu, gb.ops.sqr, gb.ops.square, gb.ops.sqrt, gb.ops.log,
        gb.ops.exp, gb.ops.sigmoid, gb.ops.softplus, gb.ops.sin, gb.ops.cos, gb.ops.ceil, gb.ops.expm1, gb.ops.floor,
        gb.ops.round,
        gb.ops.trunc, gb.ops.glu, gb.ops.geglu, gb.ops.geglu_erf, gb.ops.geglu_quick, gb.ops.reglu, gb.ops.swiglu,
        gb.ops.swiglu_oai, gb.ops.l2_norm, gb.ops.cumsum,
    ]  # fmt: skip
    results = [function(x) for function in functions]
    results += [
        gb.ops.add(x, y),
        gb.ops.sub(x, y),
        gb.ops.mul(x, y),
        gb.ops.div(x, y),
        gb.ops.subtract(x, y),
        gb.ops.multiply(x, y),
        gb.ops.divide(x, y),
        gb.ops.scale(x, 2.0),
        gb.ops.clamp(x, min=0.0, max=1.0),
        gb.ops.xielu(x, 0.3, 0.7),
        gb.ops.fill(x, 1.0),
        gb.ops.arange(0, 4, context=x.context),
        gb.ops.timestep_embedding(x[0], 8),
        gb.ops.interpolate(x, (8, 9), "bilinear", antialias=True),
        gb.ops.pad(x, ((1, 2), 3), mode="wrap"),
        gb.ops.roll(x, (1, 2), axis=(0, 1)),
        gb.ops.upscale(x, 2, "bicubic"),
        gb.ops.top_k(x, 2, sorted=False),
        gb.ops.ssm_conv(x, y),
        gb.ops.unary(x, "relu"),
    ]
    results += [
        gb.ops.add1(x, x.context.constant(1.0)),
        gb.ops.add_cast(x.astype("f16"), y, gb.float32),
        gb.ops.acc(x, y, 0),
        gb.ops.set(x, y, inplace=False),
    ]
    comparisons: list[Callable[[gb.Tensor, float], gb.Tensor]] = [
        gb.ops.equal, gb.ops.not_equal, gb.ops.less, gb.ops.less_equal, gb.ops.greater, gb.ops.greater_equal,
    ]  # fmt: skip
    results += [compare(x, 0.5) for compare in comparisons]
    results += [x < y, x <= 0, x > np.zeros(4, np.float32), x <= 1.0]
    results += [gb.ops.where(x > 0, x, 0.0), gb.ops.where(np.ones(4, bool), 1.0, y)]
    results += [
        x + y,
        x - y,
        x * y,
        x / y,
        -x,
        +x,
        abs(x),
        x**2,
        2 * x,
        1.0 - x,
        x + np.zeros(4, np.float32),
        x[1:, ::2],
        x[None, 0],
    ]
    results += [gb.ops.map_custom(lambda out, a: a * 2, x), gb.ops.silu_back(x, y)]
    one = gb.ops.custom(lambda out, a: a.sum(1), x, shape=3)
    assert_type(one, gb.Tensor)
    pair = gb.ops.custom(lambda out, a: (a.argmax(1), a.max(1)), x, shape=3, dtype=["i32", None])
    assert_type(pair, tuple[gb.Tensor, ...])
    both = gb.ops.custom(lambda out, a, b: (a, b), x, y, shape=[(3, 4), None], dtype=gb.float32, n_tasks=1)
    assert_type(both, tuple[gb.Tensor, ...])
    mixed = gb.ops.custom(lambda out, a: (a.sum(0), a), x, shape=[4, (3, 4)])
    assert_type(mixed, tuple[gb.Tensor, ...])
    assert [t.shape for t in mixed] == [(4,), (3, 4)]
    alone = gb.ops.custom(lambda out: np.ones(3), shape=(3,), dtype="f64", context=x.context)
    assert_type(alone, gb.Tensor)
    results += [one, pair[1], *both]

    def widened(out: np.ndarray[Any, Any], blocks: gb.tensor.Blocks) -> np.ndarray[Any, Any]:
        assert blocks.format is not None
        return gb.dequantize(blocks)

    results.append(gb.ops.custom(widened, x.context.tensor((2, 32), "q8_0"), dtype=gb.float32))
    assert_type(x @ y.T, gb.Tensor)
    assert_type(x[0], gb.Tensor)
    return results


def rows(x: gb.Tensor, y: gb.Tensor) -> list[gb.Tensor]:
    ids = x.context.constant([0, 1], gb.int32)
    results = [
        gb.ops.sum(x),
        gb.ops.sum_rows(x),
        gb.ops.mean(x),
        gb.ops.argmax(x),
        gb.ops.argsort(x, descending=True),
        gb.ops.top_k(x, 2),
        gb.ops.diag_mask_inf(x),
    ]
    results += [
        gb.ops.norm(x),
        gb.ops.rms_norm(x, eps=1e-6),
        gb.ops.group_norm(x.reshape(1, 3, 4), 1),
        gb.ops.rms_norm_back(x, y),
        gb.ops.diag_mask_zero(x),
    ]
    results += [
        gb.ops.mul_mat(x, y, prec="f16"),
        gb.ops.mul_mat_id([x, x], x.context.constant([[0], [1], [0]], "i32"), 0, y),
        gb.ops.mul_mat_experts(
            x.reshape(1, 3, 4), y.reshape(3, 1, 4), x.context.constant([[0], [0], [0]], "i32"), prec="f32"
        ),
        gb.ops.add_id(x.reshape(3, 1, 4), y, x.context.constant([[0], [1], [0]], "i32")),
        gb.ops.rope(x.reshape(3, 1, 4), x.context.constant([0, 1, 2], "i32"), factors=x[0, :2]),
        gb.ops.rope(x.reshape(3, 1, 4), x.context.constant([0] * 12, "i32"), mode="mrope", sections=(1, 1, 0, 0)),
        gb.ops.softmax(x.reshape(1, 3, 4), y, sinks=x[0, :1]),
        gb.ops.flash_attn_ext(x.reshape(1, 1, 3, 4), x.reshape(1, 1, 3, 4), y.reshape(1, 1, 3, 4), softcap=5.0),
        gb.ops.out_prod(x, y),
    ]
    results += [
        gb.ops.get_rows(x, ids),
        gb.ops.get_rows_back(gb.ops.get_rows(x, ids), ids, x),
        gb.ops.set_rows(x, gb.ops.get_rows(x, ids), ids),
        gb.ops.diag(x[:1]),
        gb.ops.empty_like(x),
        gb.ops.repeat(x, (6, 4)),
    ]
    results += [
        gb.ops.repeat_back(gb.ops.repeat(x, (6, 4)), x),
        gb.ops.concat(x, y, axis=0),
        gb.ops.soft_max(x),
        gb.ops.softmax(x),
        gb.ops.soft_max_back(x, y),
        gb.ops.dup(x),
    ]
    results += [
        gb.ops.cpy(x, gb.ops.empty_like(y)),
        gb.ops.cast(x, np.float16),
        gb.ops.cont(x.T),
        gb.ops.contiguous(x.T),
        gb.ops.reshape(x, (4, 3)),
        gb.ops.view(x),
        gb.ops.permute_ggml(x, 1, 0, 2, 3),
    ]
    results += [
        gb.ops.transpose(x),
        gb.ops.pad(x, 1),
        gb.ops.cross_entropy_loss(x, y),
        gb.ops.cross_entropy_loss_back(x, y, x.context.constant(1.0)),
    ]
    results += [gb.ops.alibi(x.reshape(1, 3, 4), 0, 1, 8.0), gb.ops.upscale(x, 2), gb.ops.pool_1d(x, "max", 2)]
    return results


def layers(ctx: gb.Context) -> list[gb.Tensor]:
    q, v, g = ctx.tensor((1, 5, 2, 8)), ctx.tensor((1, 5, 4, 8)), ctx.tensor((1, 5, 4, 1))
    pairs = [gb.ops.gated_delta_net(q, q, v, g, g, ctx.tensor((1, 4, 8, 8)), n_states=1)]
    a, x, ids = ctx.tensor((3, 1)), ctx.tensor((1, 5, 3, 4)), ctx.tensor((1,), "i32")
    b = ctx.tensor((1, 5, 1, 8))
    pairs += [gb.ops.ssm_scan(ctx.tensor((2, 3, 4, 8)), x, ctx.tensor((1, 5, 3)), a, b, b, ids)]
    t, state = ctx.tensor((5, 3, 8)), ctx.tensor((1, 3 * 64))
    pairs += [gb.ops.rwkv_wkv6(t, t, t, ctx.tensor((3, 8)), t, state), gb.ops.rwkv_wkv7(t, t, t, t, t, t, state)]
    pairs += [gb.ops.gated_linear_attn(t, t, t, t, state, 0.5)]
    volume = ctx.tensor((2, 4, 4, 4))
    columns = [
        gb.ops.im2col_3d(ctx.tensor((4, 2, 2, 2)), volume, 2, padding=(1, 0, 0)),
        gb.ops.col2im_1d(ctx.tensor((5, 6)), 2, 1),
        gb.ops.im2col_back(ctx.tensor((2, 1, 2, 2)), ctx.tensor((1, 3, 3, 4)), (1, 1, 4, 4)),
        gb.ops.opt_step_sgd(t, t, ctx.tensor((2,))),
        gb.ops.opt_step_adamw(t, t, t, t, ctx.tensor((7,))),
        *gb.grad(gb.ops.sum(t), [t]),
        *(g for g in gb.grad(gb.ops.sum(t), [t], allow_unused=True) if g is not None),
    ]
    return [*columns, *(both for pair in pairs for both in pair)]


def images_and_attention(ctx: gb.Context) -> list[gb.Tensor]:
    kernel, image = ctx.tensor((2, 3, 3, 3), gb.float16), ctx.tensor((1, 3, 8, 8))
    results = [
        gb.ops.conv_2d(kernel, image, padding="half"),
        gb.ops.im2col(kernel, image, padding=(1, 1)),
        gb.ops.pool_2d(image[0], "avg", (2, 2)),
    ]
    results += [
        gb.ops.conv_1d(ctx.tensor((2, 3, 3), "f16"), image[:, :, 0], stride=2),
        gb.ops.conv_depthwise_2d(ctx.tensor((3, 1, 3, 3), "f16"), image),
    ]
    results += [
        gb.ops.conv_transpose_1d(ctx.tensor((8, 2, 3), "f16"), image[0, 0]),
        gb.ops.win_unpart(gb.ops.win_part(image[0].transpose(1, 2, 0).contiguous(), 4), 8, 8, 4),
    ]
    results += [
        gb.ops.conv_2d(ctx.tensor((6, 1, 3, 3), "f16"), image, padding=1, groups=3),
        gb.ops.conv_3d(ctx.tensor((4, 2, 2, 2)), ctx.tensor((2, 4, 4, 4)), 2, stride=(1, 2, 1)),
        gb.ops.conv_transpose_2d(ctx.tensor((3, 2, 2, 2), "f16"), image, stride=2),
        gb.ops.get_rel_pos(ctx.tensor((7, 4), "f16"), 4, 4),
    ]
    q, k, v = ctx.tensor((1, 2, 4, 8)), ctx.tensor((1, 2, 4, 8)), ctx.tensor((1, 2, 8, 4))
    results += [gb.ops.flash_attn(q, k, v, masked=True), gb.ops.flash_attn_back(q, k, v, q)]
    positions = ctx.constant(np.arange(2, dtype=np.int32))
    results += [
        gb.ops.rope(q, positions, mode="neox"),
        gb.ops.rope_back(q, positions),
        gb.ops.rope(q, positions, freq_scale=0.5),
    ]
    heights, widths = ctx.tensor((1, 2, 2, 2)), ctx.tensor((1, 2, 2, 2))
    results += [gb.ops.add_rel_pos(ctx.tensor((1, 4, 4)), widths, heights)]
    h, d = ctx.tensor((6, 4), "f16"), ctx.tensor((4, 6), "f16")
    results += [gb.ops.flash_ff(ctx.tensor((3, 4), "f16"), h, ctx.tensor(6), d, ctx.tensor(4))]
    return results


def memory(cpu: gb.Backend, folder: Path) -> None:
    assert_type(gb.backends(), gb.backend.BackendList)
    assert_type(gb.backend.cpu_levels(), "dict[str, bool]")
    assert_type(gb.backend.load_report(), "list[gb.backend.LoadRecord]")
    assert_type(gb.backend.get_include(), str)
    assert_type(gb.__version__, str)
    load: Callable[[str], list[str]] = gb.backend.load_backend
    assert callable(load)
    kind: gb.backend.BufferType = gb.backend.cpu_buffer_type()
    with gb.Context() as ctx, kind.allocate(1 << 16, usage="weights") as buffer:
        assert_type(buffer, gb.Buffer)
        assert_type(buffer.changed(), None)
        w = buffer.place(ctx.tensor((2, 32), "q8_0", name="w"))
        blocks = gb.quantize(np.ones((2, 32), np.float32), gb.dtypes.q8_0)
        assert_type(w.set(blocks), gb.Tensor)
        assert_type(ctx.constant(blocks, name="blocks"), gb.Tensor)
        assert_type(ctx.from_numpy(np.asarray(blocks), dtype="q8_0"), gb.Tensor)
        assert_type(gb.dequantize(w), "np.ndarray[Any, Any]")
        with gb.Context(usage="weights") as named, named.as_default() as same:
            assert_type(same, gb.Context)
            assert_type(gb.ops.matmul(ctx.tensor((2, 3)), np.ones((3, 2), np.float32), prec="f32"), gb.Tensor)
        assert_type(gb.dequantize(w.numpy(), gb.dtypes.q8_0), "np.ndarray[Any, Any]")
        with gb.sched.TensorAllocator(cpu, size=1 << 12) as tensors:
            assert_type(tensors.allocate(ctx.tensor(3)), gb.Tensor)
        with gb.sched.GraphAllocator(cpu) as graphs:
            assert_type(graphs.measure(ctx.graph(gb.ops.relu(ctx.tensor(3)))), int)
    shared = gb.from_dlpack(np.ones((2, 3), np.float16), "shared", copy=None)
    assert_type(shared, gb.Tensor)
    assert_type(shared.context.from_dlpack(shared, usage="weights"), gb.Tensor)
    back: np.ndarray[Any, Any] = np.from_dlpack(shared)
    assert back.shape == (2, 3)
    assert_type(shared.__dlpack_device__(), tuple[int, int])
    plan = gb.planning.plan_memory([0, 1], [2, 3], [64, 64], alignment=32, n_threads=2, reproducible=True)
    assert_type(plan, gb.planning.MemoryPlan)
    assert_type(plan.peak, int)
    assert_type(plan.bound, int)
    assert_type(plan.bound_by, str)
    assert_type(plan.unfinished, bool)
    with gguf.Writer(folder / "model.gguf") as writer:
        writer.add("general.name", "small")
        writer.add_tensor("w", np.ones((2, 4), np.float32))
    gb.gguf.open(folder / "model.gguf", part=True).close()
    with gb.gguf.open(folder / "model.gguf") as file, file.load(cpu) as weights:
        assert_type(file, ggml_backend.gguf.GGUFFile)
        assert_type(file.is_part, bool)
        assert_type(weights.left_out, dict[str, str])
        assert_type(weights["w"], gb.Tensor)


def scheduling(cpu: gb.Backend, folder: Path) -> None:
    sim = gb.Backend.simulated(mem="64M", ops=["mul_mat", "relu", "add", "mul"], copy_delay=1e-6)
    costs = gb.sched.Costs(
        [
            gb.sched.DeviceCosts((gb.sched.OpCost(launch_us=1.0),), gb.sched.CopyCost(2.0, 1000.0)),
            gb.sched.DeviceCosts(host=True),
        ]
    )
    measure: Callable[[gb.Backend], gb.sched.DeviceCosts] = gb.sched.calibrate
    assert callable(measure)
    with gb.Context() as ctx, gb.Scheduler([sim, cpu], policy="cost", costs=costs) as sched:
        x = ctx.tensor((3, 4), name="x")
        y = gb.ops.relu(x).named("y")
        graph = ctx.graph(y)
        assert_type(graph, gb.Graph)
        function: gb.tensor.Function = graph.function(cpu, x, y)
        assert_type(function(np.ones((3, 4), np.float32), np.ones((3, 4), np.float32)), bool)
        plan: gb.sched.Plan = sched.prepare(graph)
        assert_type(sched.prepare(graph, max_bytes=2**20).recomputation, gb.sched.Recomputation | None)
        arenas: dict[str, gb.sched.ArenaPlan] = dict(plan.memory)
        blocks: list[gb.sched.PlanBlock] = [block for arena in arenas.values() for block in arena.blocks]
        parts: tuple[gb.sched.Split, ...] = plan.splits
        copies: tuple[gb.sched.CopyInfo, ...] = plan.copies
        assert blocks and parts and len(copies) >= 0
        x.set(np.ones((3, 4), np.float32))
        with sched.trace() as trace:
            assert_type(trace, gb.sched.Trace)
            assert_type(sched.compute(graph, lambda t: None, wanted="y*"), bool)
        assert_type(trace.events[0], gb.sched.TraceEvent)
        pages: list[str] = [
            plan.to_html(),
            plan.to_svg(width=700, theme="dark"),
            trace.to_html(),
            trace.to_svg(title="t"),
        ]
        pixels: list[bytes] = [plan.to_png(theme="light", scale=1), trace.to_png(width=700)]
        print(len(pages), len(pixels))
        with sched.profile() as profile:
            assert_type(profile, gb.profile.Profile)
            assert_type(sched.compute(graph), bool)
        table: gb.profile.ProfileTable = profile.table(by="kind", sort="limit", top=3)
        rows: list[gb.profile.ProfileRow] = list(table)
        assert_type(rows[0].limit, "float | None")
        assert_type(profile.steps[0], gb.profile.ProfileStep)
        assert_type(profile.records, "np.ndarray[Any, Any]")
        beside: gb.profile.ProfileComparison = profile.compare(
            gb.profile.Profile.from_json(profile.to_json()), by=["x*", re.compile("y")]
        )
        changes: list[gb.profile.ProfileChange] = list(beside)
        machine: dict[str, gb.profile.MachineLimits] = profile.limits()
        with graph.profile(max_records=10), gb.profile.Profile.everything():
            assert changes and machine
        pending = sched.compute_async(graph, [y])
        assert_type(pending, gb.sched.Pending)
        assert_type(pending.results()[0], "np.ndarray[Any, Any]")
        event = gb.backend.Event(sim).record()
        event.synchronize()
        stats: gb.sched.SchedulerStats = sched.stats
        assert_type(stats.inputs, gb.sched.Traffic)
        times: tuple[gb.sched.SplitTime, ...] = stats.splits
        splits: list[gb.sched.Split] = sched.splits
        assert_type(sched.memory(cpu), gb.sched.Memory)
        assert_type(sched.prediction, "gb.sched.Prediction | None")
        assert len(times) == len(splits)
        assert_type(y.numpy(), "np.ndarray[Any, Any]")
    with gb.Context(allocate=True) as ctx:
        graph = ctx.graph(gb.ops.relu(ctx.tensor((3, 4)).set(1)))
        assert_type(graph.copy(cpu).compare(cpu, cpu), "list[gb.tensor.Comparison]")


@gb.devices.register_device("TYPED")
class TypedDevice(gb.devices.Device):
    """A device with every method that has a default."""

    def __init__(self, n: int = 1) -> None:
        self.n = n

    @gb.devices.op("add", "mul", dtypes=(gb.float32, "f16"), when=lambda node: node.ndim < 4, repeats=False)
    def elements(self, node: gb.devices.Node, out: np.ndarray[Any, Any], *sources: np.ndarray[Any, Any]) -> None:
        assert_type(node.params, "dict[str, Any]")
        assert_type(node.sources, "tuple[gb.devices.Node, ...]")
        np.add(sources[0], sources[1], out=out)

    def supports(self, node: gb.devices.Node) -> bool | str:
        return super().supports(node)

    def compile(self, calls: Sequence[gb.devices.Call]) -> Callable[[], object]:
        shared: list[tuple[int, ...]] = [call.shared for call in calls]
        assert len(shared) == len(calls)
        return super().compile(calls)


class TypedMark:
    """A mark in a queue."""

    def record(self) -> None: ...

    def synchronize(self) -> None: ...

    def wait(self, device: gb.devices.Device) -> None: ...


class TypedQueue(TypedDevice):
    """A device with a queue."""

    def submit(self, work: Callable[[], None]) -> None:
        work()

    def synchronize(self) -> None: ...

    def event(self) -> TypedMark:
        return TypedMark()


def devices() -> None:
    queued: type[gb.devices.Device] = gb.devices.register_device("TYPED_QUEUE", TypedQueue)
    assert gb.backend.Event(gb.Backend("TYPED_QUEUE")).record().backend.name == "TYPED_QUEUE"
    assert queued is TypedQueue
    backend = gb.Backend("TYPED", n=2)
    kind: type[gb.devices.Device] = gb.devices.register_device("TYPED", TypedDevice)
    assert isinstance(backend.device, kind)
    shipped: type[gb.devices.Device] = gb.devices.ArrayDevice
    assert issubclass(shipped, gb.devices.Device)
    only = ["memory/clear", "neg/*"]
    report = gb.testing.check_device(backend, quick=True, seed=1, only=only, progress=print_nothing)
    assert_type(report, gb.testing.DeviceReport)
    assert_type(report.failed, "list[gb.testing.CheckedCase]")
    assert_type(report.to_dict(), "dict[str, Any]")
    assert report.ok, str(report)


def print_nothing(done: int, total: int, name: str) -> None:
    assert done <= total


def failures(cpu: gb.Backend) -> list[type[Exception]]:
    gb.set_log(logging.getLogger("ggml"))
    gb.set_log(None)
    gb.sched.set_abort_callback(cpu, lambda: False)
    gb.sched.set_abort_callback(cpu, None)
    try:
        gb.Backend("none")
    except gb.errors.InvalidArgumentError as error:
        assert_type(error.fault, "gb.errors.Fault | None")
        assert_type(error.status, int)
    warning: type[Warning] = gb.errors.PerformanceWarning
    assert issubclass(warning, UserWarning)
    assert issubclass(gb.errors.DeviceLostError, gb.errors.DeviceError)
    assert issubclass(gb.errors.UnknownKey, KeyError)
    return [
        gb.errors.AllocationError,
        gb.errors.DeviceError,
        gb.errors.FileError,
        gb.GgmlError,
        gb.errors.StateError,
        gb.errors.UnsupportedError,
    ]


def ranks(folder: Path) -> None:
    with gb.cluster.start(deadline=5.0, heartbeat=0.5, cache=None, n_threads=1) as cluster:
        assert_type(cluster, gb.cluster.Cluster)
        assert_type(cluster.backends(), "list[gb.Backend]")
        assert_type([r.lost for r in cluster.ranks], "list[str | None]")
        assert_type(cluster.bytes_sent, int)
        backends = [*cluster.backends(), gb.Backend("CPU", n_threads=1)]
        costs = cluster.calibrate(backends, size=64, seconds=1.0, force=False, progress=lambda done, total, what: None)
        assert_type(costs, gb.sched.Costs)
        described = cluster.describe(backends, costs)
        assert_type(described, Description)
        described.write(folder / "cluster.toml")
        assert_type(described.costs(message=4096), gb.sched.Costs)
    if sys.version_info >= (3, 11):
        assert_type(Description.read(folder / "cluster.toml"), Description)


def main(folder: Path) -> None:
    config = gb.show_config("dict")
    assert_type(config, "dict[str, Any]")
    cpu = gb.Backend("CPU", n_threads=1)
    with gb.Context() as ctx:
        x, y = ctx.tensor((3, 4), gb.float32, name="x"), ctx.tensor((3, 4), gb.float32, name="y")
        nodes = elementwise(x, y) + triangles(ctx.tensor((4, 4))) + rows(x, y) + layers(ctx) + images_and_attention(ctx)
        assert all(isinstance(node, gb.Tensor) for node in nodes)
    assert len(dtypes()) == 35
    memory(cpu, folder)
    scheduling(cpu, folder)
    devices()
    failures(cpu)
    ranks(folder)
