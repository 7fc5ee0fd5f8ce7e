"""The package finds built files beside the extension. In an editable install its Python files are
elsewhere.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import ggml_backend as gb
from source_tree import ROOT, in_tree

pytestmark = pytest.mark.slow

CC = next((c for c in (os.environ.get("CC"), "cc", "gcc", "clang") if c and shutil.which(c)), None)

# Like the finder of an editable install: Python files come from one folder, built files from another.
SPLIT = """
import importlib.util, sys
sources, built = sys.argv[1:3]
spec = importlib.util.spec_from_file_location(
    "ggml_backend", sources + "/__init__.py", submodule_search_locations=[sources, built])
module = importlib.util.module_from_spec(spec)
sys.modules["ggml_backend"] = module
spec.loader.exec_module(module)
import ggml_backend as gb
assert gb.__file__.startswith(sources), gb.__file__
"""


@pytest.fixture
def halves(tmp_path):
    """The folders of Python files and of built files."""
    package = Path(gb.__file__).parent
    sources, built = tmp_path / "sources" / "ggml_backend", tmp_path / "built" / "ggml_backend"
    is_built = {"include", *(p.name for p in package.iterdir() if p.suffix in (".so", ".pyd"))}
    shutil.copytree(package, sources, ignore=lambda folder, names: is_built | {"__pycache__"})
    built.mkdir(parents=True)
    for name in is_built:
        (built / name).symlink_to(Path(gb._ffi.__file__).parent / name)
    return sources, built


def run(code, *arguments):
    found = subprocess.run(
        [sys.executable, "-c", SPLIT + code, *map(str, arguments)], capture_output=True, text=True, cwd="/"
    )
    assert found.returncode == 0, found.stderr
    return found.stdout.strip()


def test_headers_are_found_beside_built_files(halves):
    include = Path(run("print(gb.backend.get_include())", *halves))
    assert (include / "ggml.h").is_file()
    assert (include / "ggml-backend-module.c").is_file()


@pytest.mark.skipif(CC is None, reason="no C compiler")
def test_the_compile_command_of_the_docstring_works(halves, tmp_path):
    include = run("print(gb.backend.get_include())", *halves)
    command = [str(CC), "-shared", "-fPIC", "-fvisibility=hidden", "-DGGML_BACKEND_MODULE_BUILD", f"-I{include}"]
    mine = in_tree("examples/backend/mini.c")
    subprocess.run([*command, str(mine), f"{include}/ggml-backend-module.c", "-o", tmp_path / "mine.so"], check=True)
    assert run("print(gb.backend.load_backend(sys.argv[3]))", *halves, tmp_path / "mine.so") == "['MINI']"


def test_modules_are_found_beside_built_files(halves):
    """The CUDA module is beside the extension."""
    code = "from ggml_backend._base.files import built_file; print(built_file('libggml_backend_cuda.so'))"
    found = Path(run(code, *halves))
    assert found.parent.samefile(Path(gb._ffi.__file__).parent) or found.parent == halves[1]


def test_built_files_are_not_expected_beside_python_files():
    """Only these files use ``__file__``. ``built_file`` of ``_base/files.py`` finds all built files."""
    package = ROOT / "python" / "ggml_backend"
    using = {str(path.relative_to(package)) for path in package.rglob("*.py") if "__file__" in path.read_text("utf-8")}
    assert using == {"_base/files.py", "cli/profile.py", "models/chat.py", "sched/_fallbacks.py", "testing/_run.py"}


def test_the_build_type_is_known():
    """Also with generators of several configurations, which have no CMAKE_BUILD_TYPE."""
    assert "$<CONFIG>" in in_tree("python/CMakeLists.txt").read_text()
    compiler = gb.show_config(mode="dict")["compiler"]
    assert not compiler.rstrip().endswith(","), compiler
