"""The package as a whole: exports, build and command line."""

from __future__ import annotations

import ast
import builtins
import importlib
import inspect
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import ggml_backend as gb
from ggml_backend import ops
from ggml_backend._ffi import ffi, lib
from public import LIBRARY, MODULES
from source_tree import in_tree, load_tool


def test_product_with_a_transposed_tensor_is_one_node(ctx):
    w, x = ctx.tensor((64, 128), name="w"), ctx.tensor((16, 128), name="x")
    y = x @ w.T
    assert w.ne == (128, 64, 1, 1)
    assert [t.op for t in ctx.graph(y).nodes] == ["MUL_MAT"]
    assert y.sources == [w, x]


def test_star_import_hides_no_builtins():
    names: dict[str, object] = {}
    exec("from ggml_backend import *", names)
    assert [name for name in vars(builtins) if not name.startswith("__") and name in names] == []
    assert names["ops"] is gb.ops and names["Tensor"] is gb.Tensor


def test_the_top_level_is_small():
    """A newcomer sees about twenty classes, functions and types, and the submodules with the rest."""
    public = [name for name in dir(gb) if not name.startswith("__")]
    assert public == sorted({*gb.__all__} - {"__version__"})
    modules = [name for name in public if inspect.ismodule(getattr(gb, name))]
    assert len(public) - len(modules) <= 20
    assert {f"gb.{name}" for name in modules} == {*MODULES} - {"gb"}


def test_every_builder_is_reachable():
    """Each C function that makes a tensor from a context has a Python function."""
    reached = set(ops.BUILDERS)
    builders = set()
    for name in dir(lib):
        if not name.startswith("ggml_"):
            continue
        try:
            kind = ffi.typeof(getattr(lib, name))
        except TypeError:  # constants are not callable
            continue
        makes = kind.kind == "function" and kind.result is ffi.typeof("struct ggml_tensor *")
        if makes and kind.args and kind.args[0] is ffi.typeof("struct ggml_context *"):
            builders.add(name)
    assert len(builders) > 140
    # these make no tensor
    assert builders - reached == {"ggml_get_tensor", "ggml_get_first_tensor", "ggml_get_next_tensor"}
    assert reached <= builders


def test_every_operation_is_exported_and_documented():
    for name, function in ops.OPERATIONS.items():
        assert getattr(ops, name) is function
        assert function.__module__ == "ggml_backend.ops", name
        assert function.__doc__, name
        assert function.__annotations__["return"] in ("Tensor", "tuple[Tensor, Tensor]", gb.Tensor), name


def test_public_names_exist_and_are_documented():
    for name, thing in LIBRARY.items():
        if inspect.isclass(thing) or inspect.isfunction(thing):
            assert thing.__doc__, name
        if inspect.isclass(thing) and not issubclass(thing, Exception):
            own = [c for c in thing.__mro__ if c.__module__.startswith("ggml_backend")]
            for attribute, member in (item for c in own for item in vars(c).items()):
                if not attribute.startswith("_") and (inspect.isfunction(member) or isinstance(member, property)):
                    assert isinstance(member, property) or inspect.getdoc(member) or attribute in ("tolist",), (
                        f"{name}.{attribute}"
                    )


def drawn_folders() -> tuple[list[str], list[str]]:
    """Folders of the package as drawn in docs/ARCHITECTURE.md: all, lowest first; and those around the core."""
    text = in_tree("docs/ARCHITECTURE.md").read_text()
    drawing = re.search(r"    python/ggml_backend  .*\n\n((?:    .*\n)+)", text)
    assert drawing is not None
    around, core = [
        re.findall(r"^(?: {13}|    \w+ +)(\w+)  ", part, re.MULTILINE) for part in drawing[1].split("-" * 99)[:2]
    ]
    return [*reversed([*around, *core])], around


def modules_of(folder: Path) -> dict[str, Path]:
    """Files by module name in the package."""
    files = (f for f in folder.rglob("*.py") if f != folder / "__init__.py" and f.name != "__main__.py")
    parts = {f: f.relative_to(folder).with_suffix("").parts for f in files}
    return {".".join(p[:-1] if p[-1] == "__init__" else p): f for f, p in parts.items()}


def imported(name: str, file: Path, known: set[str]) -> set[str]:
    """The modules of the package that a module imports at import time, not in functions or for type
    checkers only."""
    package = name.split(".") if file.name == "__init__.py" else name.split(".")[:-1]
    found = set()
    nodes: list[ast.AST] = list(ast.parse(file.read_text()).body)
    while nodes:
        node = nodes.pop()
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            nodes += node.orelse
        elif not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)):
            nodes += ast.iter_child_nodes(node)
        if isinstance(node, ast.ImportFrom) and node.level:
            base = [*package[: len(package) - node.level + 1], *(node.module or "").split(".")]
            path = ".".join(filter(None, base))
            inner = {f"{path}.{a.name}".lstrip(".") for a in node.names}
            found |= (inner & known) or {path}
    return found


def test_folders_import_only_folders_below_them():
    """The drawing of docs/ARCHITECTURE.md names every folder of the package, and each module beside them."""
    files = modules_of(Path(inspect.getfile(gb)).parent)
    order, _ = drawn_folders()
    assert sorted(order) == sorted({name.split(".")[0] for name in (*files, "_ffi")})
    for name, file in files.items():
        folder = name.split(".")[0]
        used = {path.split(".")[0] for path in imported(name, file, {*files, "_ffi"})}
        later = used - set(order[: order.index(folder) + 1])
        assert not later, f"{name} imports {later}"


def test_import_loads_only_the_core(script):
    names = "sorted(m for m in sys.modules if m.split('.')[0] == 'ggml_backend')"
    bare, loaded = script(
        f"import sys, ggml_backend as gb\nprint(*{names})\n"
        f"assert 'ARRAY' in [*gb.backends(), *gb.backends().missing]\nprint(*{names})"
    ).splitlines()
    assert len(bare.split()) <= 60 and len(loaded.split()) <= 64
    _, around = drawn_folders()
    assert {name.split(".")[1] for name in loaded.split() if "." in name} & {*around} <= {"devices"}
    assert "ggml_backend.devices.device" not in loaded.split()


def test_at_most_three_folders_are_private():
    folders = {file.parent for file in modules_of(Path(inspect.getfile(gb)).parent).values()}
    assert len([folder for folder in folders if folder.name.startswith("_")]) <= 3


def test_extension_includes_one_internal_header():
    """python/ includes public headers, its own headers, and extension.h, which lists exactly the
    internal names that python/ uses."""
    sources = [*in_tree("python/core").glob("*.[ch]"), *in_tree("python").glob("*.h")]
    own = {f.name for f in (*sources, *in_tree("c/include").iterdir())}
    used: set[str] = set()
    for file in sources:
        text = file.read_text()
        headers = set(re.findall(r'#include "([^"]+)"', text))
        assert headers <= {*own, "extension.h"}, f"{file.name}: {headers - own}"
        used |= set(re.findall(r"\b(?:gb|GB)_\w+", re.sub(r'//[^\n]*|"(?:[^"\\\n]|\\.)*"', "", text)))
    door = in_tree("c/src/extension.h").read_text()
    listed = [n for line in re.findall(r"^//   (.*)$", door, re.MULTILINE) for n in line.split()]
    assert len(listed) == len(set(listed))
    assert used - set(listed) == set(), "used, and not listed"
    assert set(listed) - used == set(), "listed, and not used"


@pytest.mark.skipif(shutil.which("nm") is None, reason="needs binutils")
def test_extension_exports_only_its_entry_point():
    module = importlib.import_module("ggml_backend._ffi")
    out = subprocess.run(
        ["nm", "-D", "--defined-only", module.__file__], capture_output=True, text=True, check=True
    ).stdout
    names = {line.split()[-1] for line in out.splitlines() if line.split()[-2] in "TDBRVWi"}
    names = {
        n
        for n in names
        if not n.startswith(
            ("__asan", "__ubsan", "__sanitizer", "__lsan", "_init", "_fini", "__bss_start", "_edata", "_end")
        )
    }
    assert names == {"PyInit__ffi"}


@pytest.mark.parametrize("line", ["gb.Error", "gb.Context().tensr", "gb.gguf.opn", "gb.Graph.comput"])
def test_a_wrong_name_has_one_hint(line):
    """Python adds its own hint to the last error of a program. The package prevents a second
    hint."""
    run = subprocess.run(
        [sys.executable, "-c", f"import ggml_backend as gb; {line}"], capture_output=True, text=True, check=False
    )
    assert run.stderr.lower().count("did you mean") <= 1, run.stderr
    assert "AttributeError" in run.stderr


def test_extension_needs_only_the_c_library():
    module = importlib.import_module("ggml_backend._ffi")
    if shutil.which("readelf") is None:
        pytest.skip("needs binutils")
    out = subprocess.run(["readelf", "-d", module.__file__], capture_output=True, text=True, check=True).stdout
    needed = set(re.findall(r"Shared library: \[([^\]]+)\]", out))
    allowed = r"lib(c|m|pthread|dl|rt|asan|ubsan|tsan|gcc_s|python[0-9.]+)\.so|ld-linux"
    assert all(re.match(allowed, n) for n in needed), needed


def test_version_is_the_project_version():
    assert re.search(
        rf"project\(ggml_backend VERSION {re.escape(gb.__version__)}[ )]", in_tree("CMakeLists.txt").read_text()
    )


def test_the_package_is_typed():
    assert (Path(inspect.getfile(gb)).parent / "py.typed").exists()


def test_show_config(capsys):
    config = gb.show_config("dict")
    assert config["ggml_backend"] == gb.__version__
    assert config["tensor bytes"] == 368
    assert [b["name"] for b in config["backends"]] == gb.backends()
    gb.show_config()
    assert gb.__version__ in capsys.readouterr().out
    with pytest.raises(ValueError, match="mode"):
        gb.show_config("xml")


def test_command_line():
    run = subprocess.run([sys.executable, "-m", "ggml_backend", "info"], capture_output=True, text=True, check=True)
    assert "CPU" in run.stdout
    run = subprocess.run(
        [sys.executable, "-m", "ggml_backend", "info", "--json"], capture_output=True, text=True, check=True
    )
    assert json.loads(run.stdout)["backends"][0]["name"] == "CPU"
    run = subprocess.run(
        [sys.executable, "-m", "ggml_backend", "nonsense"], capture_output=True, text=True, check=False
    )
    assert run.returncode == 2


def test_import_prints_nothing_and_errors_stay_silent(script):
    out = script(
        "import ggml_backend as gb\nctx = gb.Context()\ntry: gb.ops.relu(ctx.tensor((2,), gb.dtypes.q4_0))\n"
        "except gb.GgmlError: pass\ntry: gb.Backend('CPU', level='x')\nexcept gb.GgmlError: pass\n"
    )
    assert out == ""


# ----------------------------------------------------------------------------------------------------- tools/gen_ffi.py


@pytest.fixture
def generator():
    return load_tool("gen_ffi")


def test_generator_reads_the_marked_regions(generator):
    text = "int a;\n// cdef: begin\nint b;\n// cdef: end\nint c;\n// cdef: begin\nint d;\n// cdef: end\n"
    assert generator.marked_regions(text, "x").split() == ["int", "b;", "int", "d;"]


@pytest.mark.parametrize("text", ["int a;", "// cdef: begin\nint b;"])
def test_generator_refuses_broken_marks(generator, text):
    with pytest.raises(SystemExit):
        generator.marked_regions(text, "x")


def test_generator_rewrites_unsupported_declarations(generator):
    source = """
    #define N 4 // words
    GGML_API GGML_CALL int f(const float * GGML_RESTRICT x); /* GGML_API */
    struct s { int a[N]; char b[N * 16 / sizeof(int32_t)]; };
    GBPY_PYTHON void g(void);
    """
    out = generator.declarations(source, {})
    assert "GGML_" not in out
    assert "a[4]" in out
    assert "b[16]" in out
    assert 'extern "Python" void g(void);' in out


def test_declarations_agree_with_the_library():
    assert ffi.sizeof("struct ggml_tensor") == 368
    assert lib.GGML_MAX_DIMS == 4
    assert np.dtype(np.float32).itemsize == lib.ggml_type_size(lib.GGML_TYPE_F32)


def test_the_check_of_lifetimes_finds_faults(tmp_path):
    tool = in_tree("tools/check_lifetimes.py")

    def faults_in(text: str) -> int:
        file = tmp_path / "module.py"
        file.write_text(text)
        return subprocess.run([sys.executable, str(tool), str(file)], capture_output=True).returncode

    assert subprocess.run([sys.executable, str(tool)], capture_output=True).returncode == 0
    assert faults_in("core = x._live()\nlib.f(core.ptr, core.h)\n") == 0
    for wrong in ("lib.f(x._live().ptr)", "lib.f(x._core.h)", "lib.f(cores[0].ptr)", "p = ffi.gc(q, lib.free)"):
        assert faults_in(wrong + "\n") == 1, wrong
