"""``python -m ggml_backend bench`` with tiny sizes: output, files, comparisons, wrong arguments,
and its arithmetic.
"""

from __future__ import annotations

import json
import re
from contextlib import ExitStack

import numpy as np
import pytest

import ggml_backend as gb
from ggml_backend._ffi import lib
from ggml_backend.cli import bench, main
from ggml_backend.cli.bench._measure import Case, Limits, measure
from ggml_backend.cli.bench._models import model_cases
from ggml_backend.cli.bench._ops import op_cases
from ggml_backend.cli.bench._products import algorithm_of, arithmetic_of, product_cases, product_types, weights

QUICK = ["--quick", "--threads", "1", "--seconds", "0.0005"]


@pytest.fixture
def backend():
    return gb.Backend("CPU", n_threads=1)


class Known:
    """Fixed limits: 8 G operations and 2 GB a second."""

    level = "scalar"
    processor_time = False

    def least_seconds(self, case: Case) -> tuple[float, str]:
        return Limits.least_seconds(self, case)  # type: ignore[arg-type]

    def arithmetic(self, kind: str) -> float:
        return 8e9

    def memory(self, traffic: str, footprint: float) -> float:
        self.asked = traffic, footprint
        return 2e9


def case(**options: object) -> Case:
    return Case("c", "ops", "GB/s", 1e9, lambda: None, **options)  # type: ignore[arg-type]


# --------------------------------------------------------------------------------------------------------------- limits


def test_the_larger_limit_counts():
    known = Known()
    assert known.least_seconds(case(memory=4e9, flops=8e9)) == (2.0, "reading 3.73 GB")
    assert known.least_seconds(case(memory=1e9, flops=8e9)) == (1.0, "f32 multiply-adds")
    assert known.least_seconds(case(flops=8e9, arithmetic="bytes")) == (1.0, "products of bytes")
    assert known.least_seconds(case()) == (0.0, "")


def test_the_footprint_selects_the_cache():
    known = Known()
    assert known.least_seconds(case(memory=4e9, traffic="copy", footprint=2048.0)) == (2.0, "copying 2 kB")
    assert known.asked == ("copy", 2048.0)
    known.least_seconds(case(memory=4e9))
    assert known.asked == ("read", 4e9)


def test_shares_are_taken_round_by_round():
    result = measure(case(memory=4e9), Known(), 3, 0.0)  # type: ignore[arg-type]
    assert len(result.rounds) == len(result.limits) == 3
    assert result.limit == 0.5  # a call of 1 GB that takes at least 2 s
    result.rounds = [0.1, 0.3, 0.2]
    assert result.median == 0.2 and result.share == pytest.approx(0.4)
    assert measure(case(), Known(), 2, 0.0).share is None  # type: ignore[arg-type]


def test_limits_are_measured(backend):
    limits = Limits(backend, 0.001)
    table = limits.table({"small": 1 << 14}, 1)
    assert {
        "f32 multiply-adds",
        "products of bytes",
        "products of bfloat16",
        "reading, small",
        "copying, small",
    } == set(table)
    assert all(1e6 < rate < 1e14 for rate in table.values())
    scalar = Limits(gb.Backend("CPU", n_threads=1, level="scalar"), 0.002)
    assert scalar.level == "scalar"
    assert scalar.arithmetic("f32") > 1e6
    assert limits.best_level == [name for name, usable in gb.backend.cpu_levels().items() if usable][-1]


def test_measuring_reports_errors():
    assert lib.gbpy_measure_limit(99, b"scalar", 4096, 1, 1, False) == 0
    assert lib.ggml_last_status() == lib.GGML_STATUS_INVALID_ARGUMENT
    lib.ggml_clear_error()


# ---------------------------------------------------------------------------------------------------------------- cases


def test_all_operators_compute(backend):
    with ExitStack() as stack:
        cases = list(op_cases(backend, stack, quick=True))
        names = {c.name.split(" [")[0] for c in cases}
        assert len(names) == len(cases)
        required = {
            "add",
            "norm",
            "rms_norm",
            "soft_max, scale, mask",
            "silu",
            "gelu",
            "gelu_erf",
            "transposing copy",
            "sum_rows",
            "argmax",
            "rope",
        }
        assert required <= names
        for c in cases:
            assert c.work > 0 and c.memory >= 0
            c.run()


def test_weights_of_every_type(backend):
    types = product_types(backend)
    assert {"float32", "float16", "bfloat16", "q4_0", "q8_0", "q4_k", "iq2_xxs"} <= {t.name for t in types}
    for dtype in types:
        w = weights(dtype, 10, 512)
        assert w.nbytes == 10 * dtype.row_nbytes(512), dtype
        if dtype.is_quantized:
            assert np.isfinite(gb.dequantize(w, dtype)).all(), dtype


def test_products_compute_with_their_type(backend):
    names = []
    for c in product_cases(backend, Known(), [gb.float32, gb.dtypes.q4_0], quick=True):  # type: ignore[arg-type]
        c.run()
        names.append(c.name)
        n = int(c.name.rpartition("=")[2])
        assert c.flops == 2.0 * 256 * 512 * n
        assert c.memory == 256 * (gb.dtypes.q4_0 if c.name.startswith("q4_0") else gb.float32).row_nbytes(512)
    assert len(names) == 12
    algorithms = ("dense_row", "blocked_f32", "blocked_bf16", "unpacked_bf16", "blocked_bytes", "interleaved")
    assert [arithmetic_of(a) for a in algorithms] == ["f32", "f32", "bf16", "bf16", "bytes", "bytes"]


def test_the_algorithm_of_a_product(backend):
    with gb.Context() as ctx:
        product = gb.ops.mul_mat(ctx.tensor((32, 512), gb.dtypes.q4_0), ctx.tensor((2, 512)))
        found = algorithm_of(product, "scalar")
        assert found.name == "byte_dots"
        assert dict(found.declined)["short_q8_0"] == "the weights are not q8_0"
        with pytest.raises(gb.errors.InvalidArgumentError, match="ADD is not a product"):
            algorithm_of(product + product, "scalar")
    cases = list(product_cases(backend, Known(), [gb.float32], quick=True))  # type: ignore[arg-type]
    taken = {c.name.split()[-1]: c.algorithm for c in cases}
    assert taken == {
        "n=1": "dense_row", "n=2": "dense_rows", "n=4": "dense_rows", "n=8": "dense_rows", "n=16": "dense_rows",
        "n=64": "lanes",
    }  # fmt: skip


def test_explain(capsys):
    assert main(["bench", "products", "--explain", "--types", "f32,q4_0", "--level", "scalar", "--only", "n=1"]) == 0
    out = capsys.readouterr().out
    assert "level scalar" in out
    assert re.search(r"^f32 m=4096 k=14336 n=1 +dense_row$", out, re.MULTILINE)
    assert re.search(r"^q4_0 m=4096 k=14336 n=1 +byte_dots$", out, re.MULTILINE)
    assert re.search(r"^ +not interleaved: the level has no kernels for it$", out, re.MULTILINE)
    assert "n=2 " not in out


def test_explain_on_a_device_without_names(capsys):
    assert main(["bench", "products", "--explain", "--types", "f32", "--device", "SIM", "--only", "n=1"]) == 0
    assert "does not name it" in capsys.readouterr().out


def test_models_compute(backend):
    cases = []
    for c in model_cases(backend, Known(), None, quick=True):  # type: ignore[arg-type]
        c.run()
        cases.append(c)
    assert [c.unit for c in cases] == ["tokens/s"] * 2 + ["sentences/s"] * 2
    c, vocab = (256, 2, 512), 512
    per_layer = 2 * c[0] * c[0] + 2 * c[0] * c[0] // 4 + 3 * c[0] * c[2]
    assert cases[1].flops == 2.0 * (2 * per_layer + vocab * c[0])
    assert cases[0].memory == cases[1].memory == gb.dtypes.q8_0.row_nbytes(256) * (2 * per_layer + vocab * c[0]) / 256


# --------------------------------------------------------------------------------------------------------- command line


@pytest.fixture
def written(tmp_path, capsys):
    file = tmp_path / "new" / "bench.json"
    assert main(["bench", "products", "--types", "f32,q8_0", "--json", str(file), *QUICK]) == 0
    return file, capsys.readouterr()


def test_json(written):
    file, printed = written
    data = json.loads(file.read_text())
    assert data["benchmark"] == "bench" and data["format"] == bench.FORMAT and data["version"] == gb.__version__
    assert data["threads"] == 1 and data["rounds"] == 2 and data["quick"] is True
    assert all(rate > 0 for rate in data["limits"].values())
    assert len(data["cases"]) == 12
    for name, row in data["cases"].items():
        assert re.match(r"(f32|q8_0) m=256 k=512 n=\d+$", name) and name in printed.out
        assert len(row["rounds"]) == len(row["limit_rounds"]) == 2
        assert row["unit"] == ("GFLOP/s" if name.endswith("n=64") else "GB/s")
        assert min(row["rounds"]) <= row["median"] <= max(row["rounds"])
        assert row["share"] == pytest.approx(np.median(np.array(row["rounds"]) / row["limit_rounds"]))
    assert printed.err == ""  # the bar is for terminals


def test_processor_time(tmp_path, capsys):
    file = tmp_path / "cpu.json"
    assert (
        main(["bench", "products", "--types", "f32", "--cpu", "--json", str(file), "--quick", "--seconds", "0.0005"])
        == 0
    )
    data = json.loads(file.read_text())
    assert data["processor_time"] is True and data["threads"] == 1 and len(data["cases"]) == 6
    assert "processor time" in capsys.readouterr().out


def test_compare(written, capsys):
    file, _ = written
    data = json.loads(file.read_text())
    row = data["cases"].pop("f32 m=256 k=512 n=1")
    data["cases"]["f32 m=256 k=512 n=2"] = {**row, "median": 1e-30}
    file.write_text(json.dumps(data))
    assert main(["bench", "products", "--types", "f32", "--only", "n=1", "n=2", "--compare", str(file), *QUICK]) == 0
    out = capsys.readouterr().out
    after = out[out.index("ratio: this run") :].splitlines()[1:]
    assert [line.split("  ")[0] for line in after] == [f"f32 m=256 k=512 n={n}" for n in (1, 2, 16)]
    assert "not in the file" in after[0]
    ratio = float(after[1].split("ratio")[1].split()[0])
    assert ratio > 1e20 and "share" in after[1]


@pytest.mark.parametrize(
    "text",
    [
        None,
        "",
        "[]",
        "{}",
        '{"benchmark": "bench", "format": 99, "cases": {}}',
        '{"benchmark": "bench", "format": 1, "cases": {"x": {}}}',
    ],
)
def test_files_to_compare_with_are_checked_first(tmp_path, capsys, text, monkeypatch):
    file = tmp_path / "old.json"
    if text is not None:
        file.write_text(text)
    monkeypatch.setattr(bench, "_table", lambda *_: pytest.fail("measured before the file was read"))
    assert main(["bench", "ops", "--compare", str(file), *QUICK]) == 1
    assert str(file) in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "status", "message"),
    [
        (["nonsense"], 2, "nonsense"),
        (["--cpu", "--threads", "2", "--quick"], 1, "one thread"),
        (["--threads", "0"], 2, "not above 0"),
        (["--threads", "x"], 2, "no number"),
        (["--rounds", "-1"], 2, "not above 0"),
        (["--level", "pdp11"], 2, "pdp11"),
        (["products", "--types", "q4_9", *QUICK], 1, "q4_9"),
        (["products", "--types", "i32", *QUICK], 1, "i32"),
        (["products", "--types", ",", *QUICK], 1, "needs the name"),
        (["--explain"], 2, "bench products"),
        (["ops", "--explain"], 2, "bench products"),
        (["products", "--device", "SIM", "--quick"], 2, "needs --explain"),
        (["products", "--explain", "--device", "SIM", "--level", "scalar"], 2, "only the CPU has levels"),
        (["products", "--explain", "--device", "NOPE0"], 1, "NOPE0"),
    ],
)
def test_bad_arguments(capsys, words, status, message):
    try:
        found = main(["bench", *words])
    except SystemExit as error:
        found = error.code
    assert found == status
    assert message in capsys.readouterr().err


def test_an_unwritable_result_is_an_error(tmp_path, capsys):
    (tmp_path / "file").write_text("")
    assert (
        main(
            [
                "bench",
                "products",
                "--types",
                "f32",
                "--only",
                "n=1",
                "--json",
                str(tmp_path / "file" / "x.json"),
                *QUICK,
            ]
        )
        == 1
    )
    assert "bench:" in capsys.readouterr().err
