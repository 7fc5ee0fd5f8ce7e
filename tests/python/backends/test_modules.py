"""Backend modules that these tests compile against the headers of the package. Each test has its
own process, because a module is never unloaded.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import ggml_backend as gb
from source_tree import in_tree

CC = next((c for c in (os.environ.get("CC"), "cc", "gcc", "clang") if c and shutil.which(c)), None)
pytestmark = pytest.mark.skipif(CC is None, reason="no C compiler")


def compile_module(
    target: Path, *sources: Path, define: str = "GGML_BACKEND_MODULE_BUILD", forward: bool = True
) -> Path:
    include = Path(gb.backend.get_include())
    files = [*sources, *([include / "ggml-backend-module.c"] if forward else [])]
    command = [
        str(CC),
        "-std=c11",
        "-D_GNU_SOURCE",
        "-shared",
        "-fPIC",
        "-fvisibility=hidden",
        f"-D{define}",
        f"-I{include}",
        *map(str, files),
    ]
    subprocess.run([*command, "-o", str(target)], check=True)
    return target


@pytest.fixture(scope="module")
def mini(tmp_path_factory):
    return compile_module(tmp_path_factory.mktemp("modules") / "mini.so", in_tree("examples/backend/mini.c"))


def run(code: str, *args: object, cwd: Path | None = None) -> str:
    result = subprocess.run([sys.executable, "-c", code, *map(str, args)], capture_output=True, text=True, cwd=cwd)
    assert result.returncode == 0, result.stderr
    return result.stdout


USE = """
import ctypes, sys
import numpy as np
for other in sys.argv[2:]:
    other = ctypes.CDLL(other, mode=ctypes.RTLD_GLOBAL)
import ggml_backend as gb
assert gb.backend.load_report() == []
assert gb.backend.load_backend(sys.argv[1]) == ["MINI"]
assert gb.backend.load_backend(sys.argv[1]) == []
(record,) = gb.backend.load_report()
assert record.ok and record.name == "mini" and record.backends == 1 and record.message == ""
assert "MINI" in gb.backends()
with gb.Context() as ctx, gb.Backend("MINI") as mini, gb.Backend("CPU") as cpu:
    a, b = ctx.tensor((5, 7)), ctx.tensor((5, 7))
    total = a * b + a
    y = gb.ops.sqrt(total)
    graph = ctx.graph(y)
    with gb.Scheduler([mini, cpu]) as sched:
        sched.allocate(graph)
        x, z = np.random.default_rng(1).random((2, 5, 7), dtype=np.float32)
        a.set(x); b.set(z)
        sched.compute(graph)
        np.testing.assert_allclose(y.numpy(), np.sqrt(x * z + x), rtol=1e-6)
        assert [s.backend for s in sched.splits] == ["MINI", "CPU"]
        assert "only ADD and MUL" in sched.explain(y), sched.explain(y)
for other in sys.argv[2:]:
    assert ctypes.CDLL(other).impostor_calls() == 0
print("fine")
"""


def test_example(mini):
    assert run(USE, mini) == "fine\n"


def test_a_module_loads_with_a_library_of_the_same_names(mini, tmp_path):
    impostor = compile_module(tmp_path / "impostor.so", in_tree("tests/c/backend/modules/impostor.c"), forward=False)
    assert run(USE, mini, impostor) == "fine\n"


def test_a_module_is_not_searched_for(mini):
    """A bare name means a file in the current folder. The loader searches no path."""
    code = """
import os, sys
import ggml_backend as gb
os.environ["LD_LIBRARY_PATH"] = sys.argv[1]
try:
    gb.backend.load_backend("mini.so")
except FileNotFoundError as error:
    assert "mini.so" in str(error)
    assert "MINI" not in gb.backends(), gb.backends()
    print("not found")
"""
    assert run(code, mini.parent, cwd=mini.parent.parent) == "not found\n"


@pytest.mark.parametrize(
    ("define", "error", "message"),
    [
        ("OTHER_VERSION", "UnsupportedError", "has version 2 of the module interface, this library has 1"),
        ("OTHER_LAYOUT", "UnsupportedError", "struct ggml_tensor: 1 bytes in the module"),
        ("NO_ENTRY", "InvalidArgumentError", "does not export"),
        ("GGML_BACKEND_MODULE_BUILD -DNO_DEVICE", "UnsupportedError", "no device: 0 of them answered"),
    ],
)
def test_refused(tmp_path, define, error, message):
    first, *more = define.split(" -D")
    source = tmp_path / "module.c"
    source.write_text("".join(f"#define {d}\n" for d in more) + in_tree("tests/c/backend/modules/broken.c").read_text())
    module = compile_module(tmp_path / "broken.so", source, define=first)
    code = """
import sys
import ggml_backend as gb
try:
    gb.backend.load_backend(sys.argv[1])
except gb.GgmlError as e:
    (record,) = gb.backend.load_report()
    assert not record.ok and record.path == sys.argv[1]
    assert str(e).endswith(record.message.removeprefix("ggml_backend_load: "))
    print(type(e).__name__, e)
"""
    out = run(code, module)
    assert out.startswith(error), out
    assert message in out


def test_not_a_module(tmp_path):
    (tmp_path / "text.so").write_text("hello")
    with pytest.raises(gb.errors.InvalidArgumentError, match="no backend module"):
        gb.backend.load_backend(tmp_path / "text.so")
    with pytest.raises(gb.errors.FileError):
        gb.backend.load_backend(tmp_path)
    with pytest.raises(TypeError):
        gb.backend.load_backend(None)  # type: ignore[arg-type]
    # a build with CUDA may have one more
    assert [r.ok for r in gb.backend.load_report() if str(tmp_path) in r.path] == [False, False]


def test_a_long_module_path_is_a_missing_file(holds):
    holds(
        """
    assert "CPU" in gb.backends()
    assert "GGML_CUDA_MODULE" in gb.backends().missing["CUDA"]
    """,
        {"GGML_CUDA_MODULE": "x" * 5000},
    )
