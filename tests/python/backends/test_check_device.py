"""``gb.testing.check_device`` passes a correct device and finds each defect of a defective one."""

from __future__ import annotations

import io
import json
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import ggml_backend as gb
from ggml_backend import ops
from ggml_backend._ffi import lib
from ggml_backend.devices._nodes import op_facts
from ggml_backend.testing import _cases as cases
from ggml_backend.testing import _random_graphs as random_graphs
from ggml_backend.testing import _tolerance as tolerance
from ggml_backend.testing import _variants as variants
from ggml_backend.testing._inputs import In, laid, values_of
from source_tree import in_tree
from test_modules import CC, compile_module

needs_compiler = pytest.mark.skipif(CC is None, reason="no C compiler")
LEVELS = [level for level, usable in gb.backend.cpu_levels().items() if usable]


# ------------------------------------------------------------------------------------------------------ correct devices


def test_sim_passes():
    report = gb.testing.check_device("SIM", mem="64M", quick=True, special_values=True)
    assert report.ok, str(report)
    assert not report.refused
    assert {c.op for c in report.passed if c.group == "operators"} == set(ops.OPERATIONS) - cases.VIEWS
    assert len(report.passed) > 2000


@pytest.mark.parametrize("level", LEVELS)
def test_every_level_passes(level):
    assert gb.Backend("CPU", level=level).level == level
    report = gb.testing.check_device("CPU", level=level, n_threads=3, quick=True, special_values=True)
    assert report.ok, str(report)


def test_sim_promises_the_same_bits():
    """SIM computes with the kernels of the CPU. Random graphs then include operators that round."""
    before = lib.ggml_graph_get_fusion()
    report = gb.testing.check_device(gb.Backend("SIM"), quick=True, bit_identical=True)
    assert report.ok, str(report)
    assert lib.ggml_graph_get_fusion() == before


def test_missing_operators_are_refused_with_a_reason():
    report = gb.testing.check_device(
        "SIM", ops=["mul_mat", "add"], quick=True, only=["add", "relu", "graphs", "refusal/relu"]
    )
    assert report.ok, str(report)
    assert {c.op for c in report.refused} == {"relu"}
    assert {c.message for c in report.refused} == {"the device was made without this operator"}
    assert "refused:\n" in str(report)
    alone = gb.testing.check_device("SIM", noops=["add"], only="graphs/random/0", quick=True)
    assert [c.name for c in alone.passed] == ["graphs/random/0"]


def test_cases_larger_than_the_largest_buffer_are_skipped():
    report = gb.testing.check_device("SIM", max="1K", quick=True, only=["add", "memory/too_large"])
    assert report.ok, str(report)
    assert {c.message.split(";")[1] for c in report.skipped} == {" the device's largest has 1024"}


# -------------------------------------------------------------------------------------------------------------- defects

ELEMENTS = {"add", "mul"}
#: Defect of tests/c/backend/modules/faulty.c -> the cases that must fail.
DEFECTS = {
    "raises": {"add", "graphs: random"},
    "supports": {"sqr"},
    "silent": {"refusals"},
    "values": {"add"},
    "products": {"mul_mat"},
    "tail": {*ELEMENTS, "relu"},
    "overrun": {*ELEMENTS, "neg", "mul_mat"},
    "underrun": {*ELEMENTS, "neg", "mul_mat"},
    "source": {*ELEMENTS, "neg", "mul_mat"},
    "stale": {"graphs: again", "graphs: in turn"},
    "broadcast": ELEMENTS,
    "strides": {*ELEMENTS, "neg"},
    "in_place": {*ELEMENTS, "neg"},
    "nan": {"relu"},
    "set_offset": {"memory"},
    "get_size": {"memory"},
    "copy": {"memory"},
    "clear": {"memory"},
    "alignment": {"memory"},
    "leak": {"memory"},
}

FIND = """
import json, sys
import ggml_backend as gb
gb.backend.load_backend(sys.argv[1])
found = {}
for defect in ["", *sys.argv[2:]]:
    only = ["add", "mul", "neg", "relu", "sqr", "mul_mat", "memory", "refusal/abs/*"]
    only += ["graphs/again", "graphs/in turn", "graphs/random/0", "graphs/random/1", "graphs/random/2"]
    def check(only):
        return gb.testing.check_device(f"FAULTY:{defect}", quick=True, special_values=True, only=only)
    report = check(only)
    again = [check(c.name) for c in report.failed[:1] if defect != "stale"]  # "stale" depends on earlier runs
    found[defect] = dict(
        ok=report.ok, passed=len(report.passed), failed=[(c.op, c.name, c.message) for c in report.failed],
        again=[(c.op, c.name, c.message) for r in again for c in r.failed])
print(json.dumps(found))
"""


@pytest.fixture(scope="module")
def faulty(tmp_path_factory):
    return compile_module(tmp_path_factory.mktemp("modules") / "faulty.so", in_tree("tests/c/backend/modules/faulty.c"))


@pytest.fixture(scope="module")
def found(faulty):
    done = subprocess.run(
        [sys.executable, "-c", FIND, str(faulty), *DEFECTS], capture_output=True, text=True, timeout=280
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@needs_compiler
def test_without_a_defect_nothing_fails(found):
    assert found[""]["ok"], found[""]["failed"]
    assert found[""]["passed"] > 100


@needs_compiler
@pytest.mark.parametrize("defect", DEFECTS)
def test_each_defect_is_found(found, defect):
    report = found[defect]
    assert not report["ok"]
    assert {op for op, _, _ in report["failed"]} >= DEFECTS[defect]
    assert all(message for _, _, message in report["failed"])


@needs_compiler
@pytest.mark.parametrize("defect", sorted(set(DEFECTS) - {"stale", "leak", "alignment"}))
def test_a_failed_case_fails_alone_with_the_same_message(found, defect):
    again, first = found[defect]["again"], found[defect]["failed"][:1]
    if defect in ("clear", "copy", "get_size"):  # contents of unwritten memory differ between runs
        again, first = [c[:2] for c in again], [c[:2] for c in first]
    assert again == first


@needs_compiler
def test_messages_describe_the_defect(found):
    def first(defect):
        return found[defect]["failed"][0][2]

    assert re.search(r"UnsupportedError: .*FAULTY: node .* \(ADD\): not here", first("raises"))
    assert re.search(r"4 bytes outside of the tensors were written, the first 0 behind .*float32", first("overrun"))
    assert re.search(r"4 bytes outside of the tensors were written, the first 4 before .*float32", first("underrun"))
    assert re.search(r"bytes of source 0 \(.*\) were changed, the first at 0", first("source"))
    assert "allowed is a difference of" in first("values")
    assert first("silent") == "it raised no error for a node that it does not support"


# ------------------------------------------------------------------------------------------------------------- reports


def test_the_report_as_text_table_and_json():
    out = io.StringIO()
    report = gb.testing.check_device("SIM", mem="8M", quick=True, seed=3, only=["add", "memory/clear"], file=out)
    assert out.getvalue() == f"{report}\n"
    assert str(report).startswith("SIM: ok: ")
    assert "(seed 3)" in str(report)
    data = json.loads(json.dumps(report.to_dict()))
    assert data["ok"] is True
    assert data["counts"]["passed"] == len(report.passed) == len(data["cases"])
    assert "<table>" in report._repr_html_()
    assert "cases=" not in repr(report)


def test_reports_contain_the_call_that_repeats_a_failure():
    wrong = gb.testing.CheckedCase("add/<b>", "operators", "add", "float32", "failed", "\x1b[31m <i>")
    report = gb.testing.DeviceReport("NP", 7, True, [wrong], "'NP', n=2")
    assert not report.ok
    assert report.failed == [wrong]
    assert "gb.testing.check_device('NP', n=2, seed=7, quick=True, only='add/<b>')" in str(report)
    assert "\x1b" not in str(report)
    assert "<i>" not in report._repr_html_()
    assert report.to_dict()["cases"][0]["reproduce"] == report.reproduce(wrong)


def test_equal_failures_of_an_operation_are_merged():
    def case(i, op, message):
        return gb.testing.CheckedCase(f"{op}/{i}", "operators", op, "float32", "failed", message)

    def values(i):
        return f"{i} of 9 elements differ; element ({i},) is {i / 3} instead of -1e+{i}"

    raised = [case(i, "add", f"ValueError: no (mine.py:3); <Node 'y{i}' ADD float32 ({i}, 4)>") for i in range(24)]
    off = [case(i, "add", values(i)) for i in range(3)]
    other = [case(i, "mul", values(i)) for i in range(2)]
    report = gb.testing.DeviceReport("NP", 0, False, [*raised, *off, *other], "'NP'")
    text = str(report)
    assert text.count("FAILED add/0: ") == 2 and text.count("FAILED mul/0: ") == 1 and text.count("\nFAILED ") == 3
    assert "  and in the same way 23 more: add/1 add/2 " in text
    assert "  and in the same way 2 more: add/1 add/2\n" in text
    assert "  and in the same way 1 more: mul/1" in text
    assert report._repr_html_().count("<li>") == 3 and "add/0 and 23 more: ValueError" in report._repr_html_()
    many = [case(0, f"op{chr(97 + i)}", "wrong") for i in range(23)]
    assert str(gb.testing.DeviceReport("NP", 0, False, many, "'NP'")).endswith("\n... and 3 more")


def test_the_report_in_short():
    passed, failed = (gb.testing.CheckedCase("a", "memory", "memory", "", what) for what in ("passed", "failed"))
    report = gb.testing.DeviceReport("NP", 5, False, [passed, failed, passed])
    assert repr(report) == "<DeviceReport NP: FAILED: 2 passed, 1 failed (seed 5)>"
    assert repr(gb.testing.DeviceReport("NP", 5, False, [passed])) == "<DeviceReport NP: ok: 1 passed (seed 5)>"


def test_groups_are_run_by_their_names():
    device = gb.Backend("SIM", ops=["add"])
    whole = gb.testing.check_device(device, quick=True, special_values=True)
    groups = {c.group for c in whole.cases}
    assert groups == {"operators", "refusals", "special values", "memory", "graphs"}
    for group in sorted(groups - {"refusals"}):
        report = gb.testing.check_device(device, quick=True, special_values=True, only=group)
        assert [c.name for c in report.cases] == [c.name for c in whole.cases if c.group == group], group
        assert report.cases
    report = gb.testing.check_device(device, quick=True, only="refusals")  # all refusals, in any order
    assert {c.group for c in report.cases} == {"refusals"} and len(report.cases) > 50


def test_nothing_checked_is_not_ok():
    assert not gb.testing.DeviceReport("NP", 0, False, []).ok


def test_progress_and_nothing_is_printed(capsys):
    seen = []
    gb.testing.check_device("SIM", quick=True, only="neg", progress=lambda *what: seen.append(what))
    assert seen[0][0] == 0
    assert seen[-1] == (seen[-1][1], seen[-1][1], "")
    assert seen[0][2].startswith("neg/")
    assert capsys.readouterr() == ("", "")


def test_wrong_arguments():
    with pytest.raises(TypeError, match="device must be a name or a Backend, not int"):
        gb.testing.check_device(3)
    with pytest.raises(gb.errors.InvalidArgumentError, match=r"only: no case is called 'ad'; did you mean 'add'"):
        gb.testing.check_device("SIM", only="ad", quick=True)
    with pytest.raises(
        gb.errors.InvalidArgumentError, match=r"only: 'special values' are cases of special_values=True"
    ):
        gb.testing.check_device("SIM", only="special values", quick=True)
    with pytest.raises(
        gb.errors.InvalidArgumentError, match=r"only: no case is called 'operator'; did you mean 'operators'"
    ):
        gb.testing.check_device("SIM", only="operator", quick=True)
    with pytest.raises(TypeError, match="only: each must be a str"):
        gb.testing.check_device("SIM", only=[3])
    with pytest.raises(TypeError, match="progress"):
        gb.testing.check_device("SIM", progress=3)
    with pytest.raises(gb.errors.InvalidArgumentError, match="seed must not be negative"):
        gb.testing.check_device("SIM", seed=-1)
    with pytest.raises(gb.errors.InvalidArgumentError, match="mem: a backend has its options already"):
        gb.testing.check_device(gb.Backend("SIM"), mem="1M")
    with pytest.raises(gb.errors.InvalidArgumentError, match="there is no backend"):
        gb.testing.check_device("NOTHING")


# ------------------------------------------------------------------------------------------------------------- command


def command(*arguments: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "ggml_backend", "check-device", *arguments], capture_output=True, text=True, cwd=cwd
    )


def test_the_command():
    done = command("SIM:mem=64M", "--quick", "--only", "add", "memory")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("SIM:mem=64M: ok: ")
    done = command("CPU", "--level", "scalar", "--threads", "2", "--quick", "--only", "relu/*", "--json", "--seed", "4")
    data = json.loads(done.stdout)
    assert done.returncode == 0
    assert data["ok"] and data["seed"] == 4 and {c["op"] for c in data["cases"]} == {"relu"}


@needs_compiler
def test_the_command_with_a_module(faulty, tmp_path):
    done = command("FAULTY:values", "--load", str(faulty), "--quick", "--only", "add")
    assert done.returncode == 1
    assert "FAILED add/float32:" in done.stdout
    mini = compile_module(tmp_path / "mini.so", in_tree("examples/backend/mini.c"))
    done = command("MINI", "--load", str(mini), "--quick")
    assert done.returncode == 0, done.stdout
    assert "only ADD and MUL" in done.stdout


def test_the_command_used_wrongly(tmp_path):
    assert command().returncode == 2
    assert command("SIM", "--level", "none").returncode == 2
    for option, wrong, words in (("--seed", "-1", "must not be negative"), ("--only", "zz", "no case is called")):
        done = command("SIM", "--quick", option, wrong)
        assert done.returncode == 2
        assert done.stderr.startswith("usage: ") and f"error: argument {option}: {words}" in done.stderr, done.stderr
    done = command("NOTHING", "--quick")
    assert done.returncode == 1
    assert done.stderr.startswith("python -m ggml_backend check-device: error: Backend: there is no backend 'NOTHING'")
    done = command("SIM", "--import", "no_such_module_here")
    assert done.returncode == 1
    assert "no_such_module_here" in done.stderr
    (tmp_path / "prints.py").write_text("print('imported')\n")
    done = command("SIM", "--import", "prints", "--quick", "--only", "neg", cwd=tmp_path)
    assert done.returncode == 0
    assert done.stdout.startswith("imported\n")


# --------------------------------------------------------------------------------------------------------------- cases


def test_every_operation_dtype_and_layout_is_among_the_cases():
    found = list(variants.all_variants(quick=False))
    assert {v.op for v in found} == set(ops.OPERATIONS) - cases.VIEWS
    assert {i.dtype for v in found for i in v.inputs} == set(gb.dtypes.dtypes)
    assert {v.layout for v in found} == {"whole", "padded", "offset", "permuted", "transposed"}
    assert len({v.name for v in found}) == len(found)
    assert all(not set(v.name) & set("[*? ") for v in found)  # no special characters of patterns and shells
    quick = {v.name for v in variants.all_variants(quick=True)}
    assert {name.split("/")[0] for name in quick} == {v.op for v in found}


def test_facts_of_operators_are_the_columns_of_the_table():
    text = in_tree("c/src/tensor/ops.def").read_text()
    table = {}
    for stem, cost, where in re.findall(r"^GB_OP\(\w+, +(\w+), +\d+, \w+, +(\w+), +(\w+),", text, re.MULTILINE):
        table[stem] = (cost == "ELEMENTS", (0, 1) if where.endswith("AB") else (0,) if where != "NEVER" else ())
    del table["none"]
    of_unary = table.pop("unary")
    table |= dict.fromkeys(re.findall(r"^GB_UNARY_OP\(\w+, +(\w+),", text, re.MULTILINE), of_unary)
    assert table == op_facts()
    assert cases.in_place_sources("less") == (0, 1) and cases.in_place_sources("unary") == (0,)


@pytest.mark.parametrize(
    ("layout", "dtype"),
    [
        (layout, dtype)
        for layout in ("whole", "padded", "offset", "permuted", "transposed")
        for dtype in ("float32", "float16", "bfloat16", "int32", "q8_0")
        if (layout, dtype) != ("transposed", "q8_0")  # blocks run along rows
    ],
)
def test_layouts_hold_the_values_and_poison_beside_them(ctx, rng, cpu, dtype, layout):
    shape = (2, 3, 64)
    array, _ = values_of(In(shape, dtype), rng)
    made = laid(ctx, In(shape, dtype), layout, array)
    ctx.allocate(cpu)
    made.root.set(made.memory)
    assert made.tensor.shape == shape
    bare = made.tensor.numpy(copy=True)
    assert bare.tobytes() == array.tobytes()
    used = array.nbytes
    assert np.count_nonzero(np.frombuffer(made.memory.tobytes(), np.uint8) == 0xFF) >= made.memory.nbytes - used


def test_the_worst_element_in_words():
    want, allowed = np.array([1.0, -0.0, np.inf]), np.full(3, 0.5)

    def text(*got):
        array = np.array(got)
        return tolerance.worst(array, want, allowed, tolerance.difference(array, want, allowed, gb.float32))

    assert (
        text(3.0, 0.0, np.inf)
        == "1 of 3 elements differ; element (0,) is 3 instead of 1; allowed is a difference of 0.5"
    )
    assert text(3.0, np.nan, np.inf) == "2 of 3 elements differ; element (1,) is nan instead of -0"
    assert text(1.0, 0.0, -7.0) == "1 of 3 elements differ; element (2,) is -7 instead of inf"


def test_tolerances_tell_right_from_wrong():
    f32, f16 = gb.float32, gb.float16
    want = np.array([1.0, np.nan, np.inf, 65504.0, 0.0])
    rule = tolerance.Rule(terms=1)
    allowed = tolerance.allowance(rule, want, np.abs(want), f16, [f16])
    assert not tolerance.difference(want.copy(), want, allowed, f16).any()
    near = np.array([1.0 + 2.0**-10, np.nan, np.inf, np.inf, -0.0])  # half a step each, or beyond the largest number
    assert not tolerance.difference(near, want, allowed, f16).any()
    for i, wrong in enumerate((1.01, 1.0, -np.inf, 60000.0, 1e-3)):
        got = want.copy()
        got[i] = wrong
        assert list(np.flatnonzero(tolerance.difference(got, want, allowed, f16))) == [i]
    assert tolerance.allowance(tolerance.EXACT, want, 1.0, f32, [f32]) == 0
    assert tolerance.allowance(rule, want, 1.0, gb.int32, [f32]) == 0
    sums = tolerance.Rule(terms=0, n=100)
    assert tolerance.allowance(sums, np.zeros(1), 3.0, f32, [f32]) == pytest.approx(2 * 100 * 2.0**-24 * 3)
    one = tolerance.block_allowance(np.array([[8.0, -1.0]]), gb.dtypes.q4_0)
    assert one == pytest.approx(2.0)  # a quarter of the largest


def test_random_graphs_are_exact(cpu):
    """All numbers are integers within float16, or have sums that are exact in float32."""
    seen = set()
    for seed in range(25):
        built = random_graphs.random_graph(np.random.default_rng(seed), 30)
        with gb.Scheduler([cpu], keep_all=True) as sched:
            sched.allocate(built.graph)
            built.fill(np.random.default_rng(1))
            sched.compute(built.graph)
            for node in built.graph.nodes:
                seen.add(node.op)
            for t in built.outputs:
                values = t.numpy(np.float64)
                assert np.array_equal(values, np.rint(values))
                assert np.abs(values).max() <= 2**20
    assert seen >= {"MUL_MAT", "CPY", "CLAMP", "CONCAT", "GET_ROWS", "SUM_ROWS", "DIAG_MASK_ZERO", "SCALE", "CONT"}
