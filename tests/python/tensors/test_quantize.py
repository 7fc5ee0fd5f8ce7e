"""quantize and dequantize on arrays, against the package ``gguf`` where it has the format."""

from __future__ import annotations

from typing import Any

import gguf
import numpy as np
import pytest

import ggml_backend as gb
import kquant_reference

QUANTIZED = [d for d in (d for n, d in gb.dtypes.dtypes.items() if n[0] in "qitmn") if d.is_quantized]
NEEDS_IMPORTANCE = {"iq2_xxs", "iq2_xs", "iq1_s"}
EXACT = ["q4_0", "q4_1", "q5_0", "q5_1", "q8_0", "bfloat16", "tq1_0", "tq2_0", "mxfp4"]


def names(dtypes: list[gb.dtypes.DType]) -> list[str]:
    return [d.name for d in dtypes]


def reference(name: str) -> tuple[gguf.GGMLQuantizationType, Any]:
    kind = gguf.GGMLQuantizationType(gb.dtypes.as_dtype(name).id)
    return kind, gguf.quants


def importance(name: str, n: int) -> np.ndarray | None:
    return np.ones(n, np.float32) if name in NEEDS_IMPORTANCE else None


def random_blocks(name: str, rows: int, rng: np.random.Generator) -> np.ndarray:
    """Random bytes with finite scales: half floats are made small."""
    d = gb.dtypes.as_dtype(name)
    x = rng.standard_normal((rows, 8 * d.block_size)).astype(np.float32)
    good = gb.quantize(x, name, importance(name, x.shape[-1]))
    noise = rng.integers(0, 256, good.shape, np.uint8)
    blocks = noise.reshape(-1, d.itemsize)
    whole = good.reshape(-1, d.itemsize)
    where = {
        "q2_k": (80, 84),
        "q3_k": (108, 110),
        "q6_k": (208, 210),
        "iq1_m": (48, 56),
        "tq1_0": (52, 54),
        "tq2_0": (64, 66),
        "mxfp4": (0, 1),
        "nvfp4": (0, 0),
    }
    start, stop = where.get(name, (0, 4 if name in ("q4_1", "q5_1", "q4_k", "q5_k", "q8_1", "q8_k") else 2))
    blocks[:, start:stop] = whole[:, start:stop]
    if name == "q8_1":
        blocks[:, :8] = whole[:, :8]
    return blocks.reshape(good.shape)


def test_every_format_of_the_package_is_tested() -> None:
    assert {"q4_0", "q8_1", "q2_k", "q6_k", "iq2_xxs", "iq4_xs", "iq1_m", "tq2_0", "mxfp4", "nvfp4", "q1_0"} <= set(
        names(QUANTIZED)
    )
    assert len(QUANTIZED) == 27


@pytest.mark.parametrize("name", EXACT)
@pytest.mark.parametrize("shape", [(256,), (3, 512), (2, 1, 5, 256), (700, 256)])
def test_quantized_bytes_are_those_of_the_package(rng: np.random.Generator, name: str, shape: tuple[int, ...]) -> None:
    kind, package = reference(name)
    for array in (
        rng.standard_normal(shape),
        rng.standard_normal(shape) * 1e-2,
        np.zeros(shape),
        rng.integers(-3, 4, shape) * 0.5,
    ):
        x = array.astype(np.float32)
        ours = gb.quantize(x, name)
        expected = package.quantize(x, kind)
        assert ours.dtype == np.uint8
        assert ours.shape == expected.shape
        np.testing.assert_array_equal(ours, expected)


def encoded_q1_0(x: np.ndarray) -> np.ndarray:
    """The mean magnitude, summed in order, and a bit for each number that is not negative."""
    total = np.zeros(x.shape[0], np.float32)
    for column in np.abs(x).T:
        total += column
    scales = (total / np.float32(128)).astype(np.float16).view(np.uint8).reshape(-1, 2)
    return np.hstack([scales, np.packbits(x >= 0, axis=1, bitorder="little")])


def encoded_q2_0(x: np.ndarray) -> np.ndarray:
    """The largest magnitude, and the nearest of -1, 0 and 1, halves away from zero."""
    d = np.abs(x).max(1)
    ratio = x * np.divide(np.float32(1), d, out=np.zeros_like(d), where=d > 0)[:, None]
    level = (1 + (ratio >= 0.5) - (ratio <= -0.5)).astype(np.uint8).reshape(len(x), 16, 4)
    packed = level[..., 0] | level[..., 1] << 2 | level[..., 2] << 4 | level[..., 3] << 6
    return np.hstack([d.astype(np.float16).view(np.uint8).reshape(-1, 2), packed])


def decoded_q1_0(blocks: np.ndarray) -> np.ndarray:
    d = blocks[:, :2].copy().view(np.float16).astype(np.float32)
    return np.where(np.unpackbits(blocks[:, 2:], axis=1, bitorder="little") == 1, d, -d)


def decoded_q2_0(blocks: np.ndarray) -> np.ndarray:
    d = blocks[:, :2].copy().view(np.float16).astype(np.float32)
    level = blocks[:, 2:, None] >> np.array([0, 2, 4, 6], np.uint8) & 3
    return d * (level.reshape(len(blocks), -1).astype(np.float32) - 1)


LOW: dict[str, tuple[int, Any, Any]] = {
    "q1_0": (128, encoded_q1_0, decoded_q1_0),
    "q2_0": (64, encoded_q2_0, decoded_q2_0),
}


@pytest.mark.parametrize("name", LOW)
@pytest.mark.parametrize("size", [1.0, 0.02, 300.0])
def test_blocks_of_one_and_two_bits_are_those_of_numpy(rng: np.random.Generator, name: str, size: float) -> None:
    n, encoded, decoded = LOW[name]
    x = (size * rng.standard_normal((500, n))).astype(np.float32)
    x[0] = 0
    x[1] = rng.integers(-2, 3, n) * size
    blocks = gb.quantize(x, name)
    np.testing.assert_array_equal(blocks, encoded(x))
    noise = rng.integers(0, 256, (500, 18), np.uint8)
    noise[:, :2] = blocks[:, :2]
    np.testing.assert_array_equal(gb.dequantize(noise, name), decoded(noise))
    assert gb.dtypes.as_dtype(name).id == {"q1_0": gguf.GGMLQuantizationType.Q1_0, "q2_0": 42}[name]


@pytest.mark.parametrize("kind", ["normal", "heavy tails", "steps", "positive"])
@pytest.mark.parametrize("name", sorted(kquant_reference.QUANTIZE))
def test_super_blocks_are_those_of_numpy(rng: np.random.Generator, name: str, kind: str) -> None:
    x = {
        "normal": lambda: rng.standard_normal((40, 1024)),
        "heavy tails": lambda: 0.02 * rng.standard_t(2, (40, 1024)).clip(-1000, 1000),
        "steps": lambda: rng.integers(-9, 10, (40, 1024)) / 8,
        "positive": lambda: (
            np.abs(rng.standard_normal((40, 1024))) * np.repeat(2.0 ** rng.integers(-6, 3, (40, 64)), 16, axis=1)
        ),
    }[kind]().astype(np.float32)
    expected = kquant_reference.QUANTIZE[name](x.reshape(-1, 256))
    np.testing.assert_array_equal(gb.quantize(x, name).reshape(expected.shape), expected)


def relative_error(x: np.ndarray, y: np.ndarray) -> float:
    return float(np.sqrt(((y - x.astype(np.float64)) ** 2).sum() / (x.astype(np.float64) ** 2).sum()))


SHAPES: dict[str, Any] = {
    "normal": lambda rng: rng.standard_normal((1, 512)),
    "heavy tails": lambda rng: rng.standard_t(2, (1, 512)).clip(-100, 100),
    "positive": lambda rng: np.abs(rng.standard_normal((1, 512))) + 0.2,
    "negative": lambda rng: -np.abs(rng.standard_normal((1, 512))),
    "constant": lambda rng: np.full((1, 512), 0.7),
    "one": lambda rng: np.eye(1, 512, 77),
}


@pytest.mark.parametrize("name", names(QUANTIZED))
def test_no_scale_makes_a_round_trip_worse_than_zeros(rng: np.random.Generator, name: str) -> None:
    weights = importance(name, 512)
    too_large = 0
    for exponent in np.arange(-10, 10.01, 1 if name.startswith("iq") else 0.5):
        for kind, make in SHAPES.items():
            x = (make(rng) * 10.0**exponent).astype(np.float32)
            try:
                y = gb.dequantize(gb.quantize(x, name, weights), name)
            except gb.errors.InvalidArgumentError as error:
                assert "too large for" in str(error)
                assert exponent >= 1
                too_large += 1
                continue
            assert relative_error(x, y) <= 1 + 1e-6, (exponent, kind)
    assert too_large == 0 or name not in ("q8_1", "q8_k", "mxfp4")


@pytest.mark.parametrize(
    ("name", "scale", "limit"),
    [("q4_0", 1e-6, 0.11), ("q5_1", 1e-6, 0.06), ("q8_0", 1e-6, 0.02), ("q8_0", 1e-5, 0.008), ("q2_k", 1e-6, 0.31),
     ("q3_k", 1e-6, 0.17),
     ("q4_k", 1e-5, 0.08), ("q4_k", 1e-6, 0.09), ("q5_k", 1e-5, 0.04), ("q5_k", 1e-6, 0.05), ("q6_k", 1e-4, 0.02),
     ("q6_k", 1e-6, 0.03)],
)  # fmt: skip
def test_small_weights_keep_half_precision(rng: np.random.Generator, name: str, scale: float, limit: float) -> None:
    x = (scale * rng.standard_normal((16, 1024))).astype(np.float32)
    error = relative_error(x, gb.dequantize(gb.quantize(x, name), name))
    assert error < limit
    if name in EXACT:
        kind, package = reference(name)
        assert error <= relative_error(x, package.dequantize(package.quantize(x, kind), kind))


INVALID = [np.nan, np.inf, -np.inf, 1e30, -1e35]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        (n, v)
        for n in names(QUANTIZED)
        if n not in ("q8_1", "q8_k", "mxfp4")
        for v in INVALID[:: 4 if n.startswith("iq") else 1]
    ],
)
def test_values_outside_a_format_are_an_error(rng: np.random.Generator, name: str, value: float) -> None:
    x = rng.standard_normal((70, 2, 512)).astype(np.float32)
    for i, j, k in ((69, 1, 500), (40, 0, 3)):  # the error names the first one, on any number of threads
        x[i, j, k] = value
    weights = importance(name, 512)
    why = "is too large for" if np.isfinite(value) else "cannot be stored as"
    with pytest.raises(ValueError, match=rf"row \(40, 0\), column 3: {value:g} {why} {name}".replace("+", r"\+")):
        gb.quantize(x, name, weights)
    with pytest.raises(gb.errors.InvalidArgumentError, match="row 80, column 3: "):
        gb.quantize(x.reshape(140, 512), name, np.ones(512))
    with pytest.raises(gb.errors.InvalidArgumentError, match=f"quantize to {name}: column 3: "):
        gb.quantize(x[40, 0], name, weights)
    clean = gb.dequantize(gb.quantize(np.where(np.abs(x) < 100, x, 0), name, weights), name)
    clipped = gb.dequantize(gb.quantize(x, name, weights, on_invalid="clip"), name)
    assert np.isfinite(clipped).all()
    np.testing.assert_array_equal(clipped[:40], clean[:40])
    if not np.isnan(value):
        assert clipped[40, 0, 3] * np.sign(value) > (500 if name == "q1_0" else 1000)  # the mean of a block
    spoiled = gb.dequantize(gb.quantize(x, name, weights, on_invalid="nan"), name)
    size = gb.dtypes.as_dtype(name).block_size
    expected = np.zeros(x.shape, bool)
    expected[40, 0, :size] = expected[69, 1, 500 // size * size : 500 // size * size + size] = name != "nvfp4"
    np.testing.assert_array_equal(np.isnan(spoiled), expected)
    with pytest.raises(gb.errors.InvalidArgumentError, match="on_invalid is 'error', 'clip' or 'nan', not 'ignore'"):
        gb.quantize(x, name, weights, on_invalid="ignore")  # type: ignore[arg-type]


def test_plain_formats_hold_nan_and_infinities() -> None:
    x = np.array([[1, np.nan, np.inf, -np.inf], [7e4, 1, 1, -1e39]])
    for name in ("float32", "float16", "bfloat16"):
        assert np.isnan(gb.dequantize(gb.quantize(x[0], name), name)[1])
    with pytest.raises(gb.errors.InvalidArgumentError, match="row 1, column 0: 70000 is too large for float16"):
        gb.quantize(x, "float16")
    for name in ("float32", "bfloat16"):
        with pytest.raises(gb.errors.InvalidArgumentError, match=rf"row 1, column 3: -1e\+39 .* {name}"):
            gb.quantize(x, name)
    assert gb.quantize(x, "float16", on_invalid="clip").tolist()[1] == [65504, 1, 1, -65504]
    assert gb.quantize(x, "float32", on_invalid="clip")[1, 3] == np.finfo(np.float32).min
    assert gb.dequantize(gb.quantize(x, "bfloat16", on_invalid="nan"), "bfloat16")[1, 3] == -np.inf
    assert gb.quantize(x, "float16", on_invalid="nan")[1, 0] == np.inf


def test_errors_of_tensors_and_files_name_them(rng: np.random.Generator, tmp_path: Any) -> None:
    x = rng.standard_normal((3000, 256)).astype(np.float32)
    x[2500, 9] = np.inf
    with gb.Context() as ctx:
        tensor = ctx.tensor(x.shape, "q4_0", name="wq")
        ctx.allocate(gb.Backend("CPU"))
        with pytest.raises(
            gb.errors.InvalidArgumentError, match=r"wq.*row 2500, column 9: inf cannot be stored as q4_0"
        ):
            tensor.set(x, quantize=True)
        tensor.set(x, quantize=True, on_invalid="clip")
        assert np.isfinite(gb.dequantize(tensor.numpy(), "q4_0")).all()

    def write(on_invalid: Any = "error", **options: Any) -> None:
        with gb.gguf.Writer(tmp_path / "a.gguf") as writer:
            writer.add_tensor("blk.0.wq", x, dtype="q4_k", on_invalid=on_invalid, **options)

    for options in ({}, {"importance": np.ones(256)}):
        with pytest.raises(
            gb.errors.InvalidArgumentError, match=r"tensor 'blk\.0\.wq' as q4_k: row 2500, column 9: inf"
        ):
            write(**options)
        assert not list(tmp_path.iterdir())
    with (
        pytest.raises(gb.errors.InvalidArgumentError, match="row 2500, column 9"),
        gb.gguf.Writer(tmp_path / "a.gguf") as writer,
    ):
        writer.add_tensor("b", lambda: (x[i : i + 700] for i in range(0, 3000, 700)), "q8_0", shape=x.shape)
    write("clip")
    with gb.gguf.open(tmp_path / "a.gguf") as file:
        assert np.isfinite(file.tensors["blk.0.wq"].dequantize()).all()


def test_the_command_line_refuses_and_clips(
    rng: np.random.Generator, tmp_path: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    from ggml_backend.cli import main

    x = rng.standard_normal((8, 512)).astype(np.float32)
    x[3, 300] = np.nan
    source, target = tmp_path / "x.gguf", tmp_path / "y.gguf"
    with gb.gguf.Writer(source) as writer:
        writer.add_tensor("w", x)
    assert main(["gguf", "quantize", str(source), str(target), "--type", "q5_k"]) == 1
    assert "tensor 'w' as q5_k: row 3, column 300: nan cannot be stored as q5_k" in capsys.readouterr().err
    assert not target.exists()
    assert (
        main(["gguf", "quantize", str(source), str(target), "--type", "q5_k", "--on-invalid", "clip", "--quiet"]) == 0
    )
    assert main(["gguf", "check", str(target)]) == 0
    assert main(["gguf", "quantize", str(source), str(target), "--type", "q5_k", "--on-invalid", "nan", "--quiet"]) == 0
    assert main(["gguf", "check", str(target)]) == 1


@pytest.mark.parametrize("name", [name for name in names(QUANTIZED) if name not in LOW])
def test_dequantized_values_are_those_of_the_package(rng: np.random.Generator, name: str) -> None:
    kind, package = reference(name)
    blocks = random_blocks(name, 6, rng)
    ours = gb.dequantize(blocks, name)
    try:
        expected = package.dequantize(blocks, kind)
    except NotImplementedError:
        assert name in ("q8_1", "q8_k")
        return
    assert ours.dtype == np.float32
    np.testing.assert_array_equal(ours, expected)


@pytest.mark.parametrize("name", names(QUANTIZED))
def test_random_bytes_are_dequantized(rng: np.random.Generator, name: str) -> None:
    d = gb.dtypes.as_dtype(name)
    for row in (
        rng.integers(0, 256, (40, 4 * d.itemsize), np.uint8),
        np.full((1, d.itemsize), 255, np.uint8),
        np.zeros((1, d.itemsize), np.uint8),
    ):
        assert gb.dequantize(row, name).shape == (len(row), row.shape[1] // d.itemsize * d.block_size)


@pytest.mark.parametrize("name", names(QUANTIZED))
def test_threads_and_shapes_do_not_matter(rng: np.random.Generator, name: str) -> None:
    x = rng.standard_normal((17, 2, 1280), np.float32)
    weights = importance(name, 1280)
    whole = gb.quantize(x, name, weights, n_threads=4)
    np.testing.assert_array_equal(whole, gb.quantize(x, name, weights, n_threads=1))
    np.testing.assert_array_equal(whole[3, 1], gb.quantize(x[3, 1], name, weights))
    np.testing.assert_array_equal(whole[:, ::-1], gb.quantize(x[:, ::-1], name, weights))
    floats = gb.dequantize(whole, name, n_threads=3)
    np.testing.assert_array_equal(floats[5:7], gb.dequantize(whole[5:7], name, n_threads=1))
    np.testing.assert_array_equal(floats[:, :1], gb.dequantize(whole[:, :1], name))


@pytest.mark.parametrize(
    "name",
    [n for n in names(QUANTIZED) if n not in ("q8_0", "q8_1", "q8_k", "q1_0", "q2_0", "tq1_0", "tq2_0", "mxfp4")],
)
def test_importance_lowers_the_weighted_error(rng: np.random.Generator, name: str) -> None:
    x = rng.standard_normal((32, 1024), np.float32)
    weights = np.exp(2 * rng.standard_normal(1024)).astype(np.float32)

    def error(blocks: np.ndarray) -> float:
        return float((weights * (gb.dequantize(blocks, name) - x) ** 2).mean())

    plain = gb.quantize(x, name, np.ones(1024) if name in NEEDS_IMPORTANCE else None)
    assert error(gb.quantize(x, name, weights)) < error(plain)


def test_importance_of_each_matrix(rng: np.random.Generator) -> None:
    x = rng.standard_normal((3, 8, 512), np.float32)
    weights = np.exp(rng.standard_normal((3, 512))).astype(np.float32)
    whole = gb.quantize(x, "q4_k", weights)
    for i in range(3):
        np.testing.assert_array_equal(whole[i], gb.quantize(x[i], "q4_k", weights[i]))
    np.testing.assert_array_equal(gb.quantize(x, "q4_k", weights[0])[2], gb.quantize(x[2], "q4_k", weights[0]))


def test_more_bits_give_smaller_errors(rng: np.random.Generator) -> None:
    x = rng.standard_normal((64, 1024), np.float32)
    errors = [
        float(((gb.dequantize(gb.quantize(x, n), n) - x) ** 2).mean())
        for n in ("q8_0", "q6_k", "q5_k", "q4_k", "q3_k", "q2_k")
    ]
    assert errors == sorted(errors)
    assert errors[0] < 1e-4 < errors[-1] < 0.15


def test_plain_formats(rng: np.random.Generator) -> None:
    x = rng.standard_normal((3, 5)).astype(np.float32)
    assert gb.quantize(x, "f16").dtype == np.float16
    np.testing.assert_array_equal(gb.quantize(x, gb.float16), x.astype(np.float16))
    np.testing.assert_array_equal(gb.dequantize(x.astype(np.float16), "f16"), x.astype(np.float16).astype(np.float32))
    np.testing.assert_array_equal(gb.dequantize(x, "f32"), x)
    bits = gb.quantize(x, gb.bfloat16)
    assert bits.shape == (3, 10)
    np.testing.assert_array_equal(gb.dequantize(bits, gb.bfloat16), gb.dequantize(bits.view(np.uint16), gb.bfloat16))


def test_accepted_arguments_of_quantize() -> None:
    ml_dtypes = pytest.importorskip("ml_dtypes")
    x = np.linspace(-2, 2, 64)
    expected = gb.quantize(x.astype(np.float32), "q8_0")
    np.testing.assert_array_equal(gb.quantize(x, "q8_0"), expected)
    np.testing.assert_array_equal(gb.quantize(x.tolist(), "q8_0"), expected)
    for kind in (np.float16, ml_dtypes.bfloat16):
        np.testing.assert_array_equal(
            gb.quantize(x.astype(kind), "q8_0"), gb.quantize(x.astype(kind).astype(np.float32), "q8_0")
        )
    assert gb.quantize(np.zeros((0, 64), np.float32), "q8_0").shape == (0, 68)
    assert gb.dequantize(np.zeros((0, 68), np.uint8), "q8_0").shape == (0, 64)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: gb.quantize(np.zeros(31, np.float32), "q4_0"), "whole blocks of 32"),
        (lambda: gb.quantize(np.zeros(32, np.int32), "q4_0"), "int32"),
        (lambda: gb.quantize(np.float32(1), "q4_0"), "rows"),
        (lambda: gb.quantize(np.zeros(32, np.float32), "i32"), "int32"),
        (lambda: gb.quantize(np.zeros(256, np.float32), "iq2_xs"), "importance matrix"),
        (lambda: gb.quantize(np.zeros(256, np.float32), "q4_k", np.ones(255)), "importance of shape"),
        (lambda: gb.quantize(np.zeros(256, np.float32), "q4_k", -np.ones(256)), "not negative"),
        (lambda: gb.quantize(np.zeros(256, np.float32), "q4_k", np.full(256, np.nan)), "finite"),
        (lambda: gb.quantize(np.zeros(32, np.float32), "q4_0", n_threads=0), "n_threads"),
        (lambda: gb.dequantize(np.zeros(17, np.uint8), "q4_0"), "whole blocks of q4_0, of 18 bytes"),
        (lambda: gb.dequantize(np.zeros(18, np.float32), "q4_0"), "uint8"),
        (lambda: gb.dequantize(np.zeros(4, np.uint8), "i32"), "int32"),
    ],
)
def test_errors(call: Any, message: str) -> None:
    with pytest.raises((gb.errors.InvalidArgumentError, gb.errors.UnsupportedError), match=message):
        call()
    with pytest.raises(TypeError):
        gb.quantize(np.zeros(32, np.float32), "q99")


@pytest.mark.parametrize("name", ["q4_0", "q6_k", "iq4_xs", "bfloat16", "float16", "float32"])
@pytest.mark.parametrize("device", ["CPU", "SIM"])
def test_set_quantizes_on_request(rng: np.random.Generator, name: str, device: str) -> None:
    x = rng.standard_normal((3, 256))
    with gb.Context() as ctx:
        tensor = ctx.tensor(x.shape, name)
        ctx.allocate(gb.Backend(device))
        tensor.set(x, quantize=True)
        np.testing.assert_array_equal(gb.dequantize(tensor.numpy(), name), gb.dequantize(gb.quantize(x, name), name))
        with pytest.raises(gb.errors.InvalidArgumentError, match="shape"):
            tensor.set(x[0], quantize=True)
        if name == "q4_0":
            with pytest.raises(gb.errors.InvalidArgumentError):
                tensor.set(x)


@pytest.mark.parametrize(
    ("asked", "n", "given"),
    [("q4_k", 384, "q5_0"), ("q5_k", 384, "q5_1"), ("q6_k", 384, "q8_0"), ("q3_k", 384, "iq4_nl"),
     ("iq2_xs", 384, "iq4_nl"), ("q4_k", 512, "q4_k"),
     ("q8_0", 384, "q8_0"), ("q8_0", 33, "float16"), ("tq1_0", 64, "iq4_nl")],
)  # fmt: skip
def test_fallback(asked: str, n: int, given: str) -> None:
    assert gb.gguf.fallback_dtype(asked, n).name == given


@pytest.mark.parametrize("factor", [2.0**-800, 2.0**-149, 2.0**-60, 2.0**90, 2.0**1000])
@pytest.mark.parametrize("name", ["q4_0", "q6_k", "iq2_xs", "iq4_xs", "nvfp4"])
def test_only_ratios_of_importances_count(rng: np.random.Generator, name: str, factor: float) -> None:
    x = rng.standard_normal((2, 3, 512), np.float32)
    weights = np.exp(3 * rng.standard_normal((2, 512)))
    weights[0] *= 1e-40  # another magnitude than the second matrix
    np.testing.assert_array_equal(gb.quantize(x, name, weights * factor), gb.quantize(x, name, weights))


@pytest.mark.parametrize("importance", [[10**400] + [1] * 511, [np.nan] * 512, [-1] * 512, ["a"] * 512])
def test_invalid_importances_are_refused(importance: list[Any]) -> None:
    with pytest.raises(gb.errors.InvalidArgumentError, match="importance"):
        gb.quantize(np.ones((2, 512), np.float32), "q4_k", importance)


@pytest.mark.parametrize("factor", [2.0**-140, 2.0**-160, 2.0**-900])
@pytest.mark.parametrize("name", ["q2_k", "q4_k", "q6_k", "iq1_s", "iq2_xs", "iq3_s", "iq4_xs", "nvfp4"])
def test_importances_of_another_block_do_not_count(rng: np.random.Generator, name: str, factor: float) -> None:
    x = rng.standard_normal((2, 512), np.float32)
    weights = np.exp(rng.standard_normal(512))
    smaller = np.concatenate([weights[:256], weights[256:] * factor])
    np.testing.assert_array_equal(gb.quantize(x, name, smaller), gb.quantize(x, name, weights))


@pytest.mark.parametrize("dtype", ["U3", "S3", "m8[s]", "M8[s]", "c8"])
def test_importances_are_real_numbers(dtype: str) -> None:
    with pytest.raises(gb.errors.InvalidArgumentError, match="importance must be numbers"):
        gb.quantize(np.ones((2, 32), np.float32), "q4_0", np.ones(32, "i8").astype(dtype))
