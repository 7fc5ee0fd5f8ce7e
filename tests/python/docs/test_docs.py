"""Code blocks in README.md and docs run in order and print what the page shows.

A block is fenced (```` ```python ````) or indented by four spaces. Python blocks of a page share
their names. ``BEFORE`` defines the names that a page assumes. A ``text`` block after a Python block
is the expected output. In blocks with ``>>>`` the answers are compared. ``NOT_RUN`` lists every
other block, with the reason. Each command ``python -m ggml_backend ...`` of a page accepts the
options that the page shows.
"""

from __future__ import annotations

import ast
import contextlib
import io
import os
import re
import subprocess
import sys
import traceback
import warnings
import wave
from collections.abc import Iterator
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ggml_backend as gb
import small_models
import small_whisper
from ggml_backend.cli.hugging_face.names import FAMILIES
from ggml_backend.models.architectures import DECODERS, ENCODERS, Decoder, Encoder
from source_tree import in_tree

ROOT = in_tree("README.md").parent
PAGES = [
    "README.md",
    "CONTRIBUTING.md",
    "benchmarks/README.md",
    *(str(p.relative_to(ROOT)) for p in sorted((ROOT / "docs").glob("**/*.md"))),
]

BUILD, INSTALL, MEASURES, C, DRAWING = (
    "builds for minutes; `make test` does the same",
    "installs",
    "measures for minutes",
    "C or CMake, tested in tests/consumer",
    "no code",
)

#: page, start of the first line: the reason why the block is not run
NOT_RUN = {
    ("README.md", "pip install ."): INSTALL,
    ("docs/howto/deploy.md", "pip wheel"): BUILD,
    ("docs/howto/memory-before-loading.md", "python -m ggml_backend plan MODEL"): "names no model; see docs/PLANS.md",
    ("README.md", "ggml-backend"): "real models; tests/python/cli/test_cli_models.py has small ones",
    ("README.md", "cmake -S"): BUILD,
    ("CONTRIBUTING.md", "cmake --preset"): BUILD,
    ("CONTRIBUTING.md", "pip install"): INSTALL,
    ("benchmarks/README.md", "python -m ggml_backend bench"): MEASURES,
    ("benchmarks/README.md", "cmake -S"): BUILD,
    ("docs/ARCHITECTURE.md", "base  ->"): DRAWING,
    ("docs/ARCHITECTURE.md", "python/ggml_backend "): "a drawing; tests/python/package/test_package.py checks it",
    ("docs/howto/array-device.md", "pip install"): INSTALL,
    ("docs/howto/from-c.md", "ggml_program_t "): "tests/python/models/test_saved_programs.py does the same",
    ("docs/howto/pytorch.md", "import ggml_backend.torch"): "a real model; tests/python/pytorch has small ones",
    ("docs/howto/bring-your-model.md", "model = BertModel"): "a real model; tests/python/pytorch has small ones",
    ("docs/howto/bring-your-model.md", "print(gbt.explain"): "tests/python/pytorch/test_torch_compile.py does the same",
    ("docs/howto/bring-your-model.md", "print(gbt.verify"): "test_torch_verify.py does the same",
    ("docs/howto/bring-your-model.md", "decoder = gbt.with_cache"): "test_torch_caches.py does the same",
    ("docs/howto/bring-your-model.md", "program = gb.load_onnx"): "needs the package onnx and a model",
    ("docs/howto/bring-your-model.md", "program = gbt.compile(model, (x,), devices"): "needs an NVIDIA device",
    ("docs/howto/backend-in-c.md", "GGML_BACKEND_MODULE"): "C, tested in tests/python/backends/test_modules.py",
    ("docs/howto/backend-in-c.md", "find_package"): C,
    ("docs/howto/backend-in-c.md", "I=$(python"): "compiles; tests/python/backends/test_modules.py does the same",
    ("docs/howto/backend-in-c.md", "python -m ggml_backend check-device"): "as in docs/howto/check-device.md",
    ("docs/howto/check-device.md",
     "python -m ggml_backend check-device"): "takes minutes; tests/python/backends/test_check_device.py runs such",
    ("docs/CLUSTER.md", "pip install"): INSTALL,
    ("docs/CLUSTER.md", "mpiexec -n 3 python -m ggml_backend"): "needs an MPI; test_cluster_mpi.py runs such",
    ("docs/CLUSTER.md", "sched = gb.Scheduler"): "a sketch; tests/python/cluster/test_cluster.py runs such",
    ("docs/design/cluster.md", "mpiexec -n 3 python benchmarks/"): MEASURES,
    ("docs/design/cpu.md", "python -m ggml_backend bench"): MEASURES,
    ("docs/howto/plan-cluster.md", "python -m ggml_backend plan MODEL.gguf"): "the arguments are placeholders; "
     "tests/python/cluster/test_cluster_layers.py",
    ("docs/howto/plan-cluster.md", 'rank0 = "a1"'): "read by tests/python/cluster/test_cluster_descriptions.py",
    ("docs/howto/plan-cluster.md", "python benchmarks/"): MEASURES,
    ("docs/howto/start-cluster.md", "#!/bin/sh"): "needs Slurm",
    ("docs/howto/start-cluster.md", "mpiexec -n 4 --hostfile"): "needs several hosts",
    ("docs/CUDA.md", "cmake -S . -B build -D"): BUILD,
    ("docs/design/cuda-emulation.md", "cmake -S . -B build/emulation"): BUILD,
    ("docs/CUDA.md", "ggml_backend_cuda_init"): "C, tested in tests/cuda",
    ("docs/CUDA.md", "CUDA: no device"): "the message of a driver",
    ("docs/howto/adapters.md", "python -m examples"): "a real model; tests/python/training/test_lora.py has small ones",
    ("docs/howto/real-models.md", "pip install --no-deps"): INSTALL,
    ("docs/howto/real-models.md", "ggml-backend"): "a real model; tests/python/cli/test_cli_models.py has small ones",
    ("docs/howto/embed-texts.md", "ggml-backend"): "a real model; tests/python/cli/test_cli_models.py has small ones",
    ("docs/howto/transcribe.md", "ggml-backend"): "a real model; tests/python/models/test_speech.py has small ones",
    ("docs/howto/embed-texts.md", "pip install"): INSTALL,
    ("docs/howto/transcribe.md", "pip install"): INSTALL,
    ("docs/howto/quantize-model.md", "ggml-backend"): "real models; tests/python/cli/test_cli_models.py has small ones",
    ("docs/howto/from-c.md", "cmake -S"): BUILD,
    ("docs/howto/from-c.md", "cmake_minimum_required"): C,
    ("docs/howto/install.md", "pip install ."): INSTALL,
    ("docs/howto/own-backend.md", "python -m ggml_backend check-device"): "as in docs/howto/check-device.md",
    ("docs/howto/convert-hugging-face.md", "ggml-backend convert"): "runs in tests/python/cli/test_bad_inputs.py",
    ("docs/howto/convert-hugging-face.md", "python -c"): "needs transformers",
    ("docs/howto/add-architecture.md", "build/venv/bin/python -m pip"): "of a made-up name",
    ("docs/howto/convert-safetensors.md",
     "python -m ggml_backend gguf convert"): "a real model; tests/python/files/test_safetensors.py has small ones",
    ("docs/PERFORMANCE.md", "python -m ggml_backend bench"): MEASURES,
    ("docs/PERFORMANCE.md", "python -m ggml_backend info"): MEASURES,
    ("docs/PERFORMANCE.md", "python benchmarks/"): MEASURES,
    ("docs/howto/from-c.md", "#include <stdio.h>"): "C, compiled and run by tests/consumer/run.sh",
    ("docs/PLACEMENT.md", "cost of a placement"): "a formula",
    ("docs/PLACEMENT.md", "python -m ggml_backend calibrate"): MEASURES,
    ("docs/PLANNING.md",
     "python -m ggml_backend plan FILE.csv"): "files are placeholders; tests/python/plans/test_planning.py",
    ("docs/PLANNING.md", "python -m ggml_backend plan unet"): "runs below",
    ("docs/PLANS.md", "10 runs"): "times differ from run to run; the lines are compared below",
    ("docs/PLANS.md", "python -m ggml_backend plan FILE.csv"): "the arguments are placeholders; "
     "tests/python/plans/test_planning.py",
    ("docs/QUANTIZATION.md", "python -m ggml_backend gguf quantize"): "a real model; tests/python/files has small ones",
    ("docs/CONFIGURATION.md", "GGML_CPU_LEVEL"): "test_commands_that_are_cheap_run has the command",
    ("docs/COMPAT.md", "cc old_program.c"): C,
    ("docs/TODAY.md", "cc -include ggml-today.h"): C,
    ("docs/reference/errors.md", "try:"): "a sketch",
    ("docs/reference/operations.md", "y = gb.ops.relu"): "a sketch",
    ("docs/howto/where-time-goes.md",
     "python -m ggml_backend profile"): "names no script; tests/python/cli/test_cli_profile.py runs some",
    ("docs/design/ownership.md", "x = gb.Context()"): "a sketch",
    ("docs/design/placement.md", "a on 0, b on 0"): "a calculation",
    ("docs/design/planning.md", "buffer   bytes"): "a calculation",
    ("docs/howto/architectures.md", "model = BertModel"): "a sketch; tests/python/pytorch compiles all of the table",
    ("docs/reference/versions.md", "pip install"): INSTALL,
    ("docs/design/scheduler.md", "check: step 1"): "the message of a fault that no user can make; tests/c makes it",
}  # fmt: skip


@dataclass(frozen=True)
class Block:
    page: str
    line: int  # line number of its first line
    kind: str  # kind of its fence; "" without a kind, or for an indented block
    text: str

    @property
    def name(self) -> str:
        return f"{self.page}:{self.line}"

    @property
    def first(self) -> str:
        return self.text.split("\n", 1)[0]


def blocks_of(page: str) -> list[Block]:
    lines = (ROOT / page).read_text(encoding="utf-8").split("\n")
    found, i = [], 0
    while i < len(lines):
        j = i + 1
        if lines[i].startswith("```"):
            while not lines[j].startswith("```"):
                j += 1
            found.append(Block(page, i + 2, lines[i][3:].strip(), "\n".join(lines[i + 1 : j])))
            j += 1
        elif lines[i].startswith("    ") and i and not lines[i - 1].strip():
            while j < len(lines) and (
                lines[j].startswith("    ")
                or (not lines[j].strip() and "".join(lines[j + 1 : j + 2]).startswith("    "))
            ):
                j += 1
            found.append(Block(page, i + 1, "", "\n".join(line[4:] for line in lines[i:j])))
        i = j
    return found


BLOCKS = {page: blocks_of(page) for page in PAGES}
WITH_PYTHON = [page for page, blocks in BLOCKS.items() if any(b.kind == "python" for b in blocks)]


# ------------------------------------------------------------------------------------------- names that pages assume


def _network(names: dict[str, Any], **options: Any) -> None:
    """A small graph with the usual names, planned by a scheduler of two devices."""
    cpu, sim = gb.Backend("CPU", n_threads=1), gb.Backend("SIM:name=DEVICE")
    ctx = gb.Context()
    x = ctx.constant(np.ones((4, 8), np.float32), name="x") if not options else ctx.tensor((4, 8), name="x").set_input()
    y = gb.ops.relu(x * 2).named("y")
    graph = ctx.graph(y)
    names.update(cpu=cpu, sim=sim, ctx=ctx, x=x, y=y, node=y, graph=graph, sched=gb.Scheduler([sim, cpu], **options))
    if options:
        names["sched"].allocate(graph)
        x.set(np.ones((4, 8), np.float32))


def _readme(names: dict[str, Any], folder: Path) -> None:
    with gb.gguf.Writer(folder / "model.gguf") as writer:
        writer.add("general.name", "small").add_tensor("blk.0.attn_q.weight", np.ones((4, 8), np.float32))


def _plans(names: dict[str, Any], folder: Path) -> None:
    _network(names, n_copies=2)
    names.update(warnings=warnings, batches=[np.full((4, 8), i, np.float32) for i in range(5)], pending=[])


def _placement(names: dict[str, Any], folder: Path) -> None:
    _network(names)
    ctx = names["ctx"]
    product = ctx.tensor((1024, 1024), name="a") @ ctx.tensor((1024, 1024), name="b").T
    names.update(
        gpu_backend=gb.Backend("SIM:name=GPU"), cpu_backend=names["cpu"], node=product, graph=ctx.graph(product)
    )


def _usual(names: dict[str, Any], folder: Path) -> None:
    _network(names)


def _nothing(names: dict[str, Any], folder: Path) -> None:
    """For pages that assume nothing."""


def _language_model(names: dict[str, Any], folder: Path) -> None:
    small_models.write(folder / "SmolLM2.gguf", small_models.SMALL["llama"])


def _embedding_model(names: dict[str, Any], folder: Path) -> None:
    small_models.write_encoder(folder / "all-MiniLM-L6-v2.gguf")


def _speech_model(names: dict[str, Any], folder: Path) -> None:
    small_whisper.write_whisper(folder / "whisper-tiny.en.gguf")
    with wave.open(str(folder / "speech.wav"), "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(16000)
        file.writeframes(bytes(3200))


def _converted_model(names: dict[str, Any], folder: Path) -> None:
    small_models.write(folder / "my-model.gguf", small_models.SMALL["llama"])


BEFORE = {
    "docs/howto/convert-hugging-face.md": _converted_model,
    "docs/howto/transcribe.md": _speech_model,
    "docs/howto/real-models.md": _language_model,
    "docs/howto/embed-texts.md": _embedding_model,
    "README.md": _readme,
    "docs/PLANS.md": _plans,
    "docs/PLACEMENT.md": _placement,
    "docs/PLANNING.md": _usual,
    "docs/CUDA.md": _usual,
}


# -------------------------------------------------------------------------------------------------------------- running


@contextlib.contextmanager
def within(folder: Path) -> Iterator[None]:
    before = os.getcwd()
    os.chdir(folder)
    try:
        yield
    finally:
        os.chdir(before)


@contextlib.contextmanager
def as_it_was(table: dict[str, Any]) -> Iterator[None]:
    """Removes the entries that a page adds to a table."""
    before = dict(table)
    try:
        yield
    finally:
        table.clear()
        table.update(before)


def execute(block: Block, names: dict[str, Any]) -> str:
    """Runs a block and returns its output."""
    out = io.StringIO()
    code = compile("\n" * (block.line - 1) + block.text, str(ROOT / block.page), "exec")
    with contextlib.redirect_stdout(out):
        exec(code, names)
    return out.getvalue().rstrip("\n")


def converse(block: Block, names: dict[str, Any]) -> tuple[list[str], list[str]]:
    """Runs a block of ``>>>`` lines. Returns the answers on the page and the actual answers."""
    said, answered = [], []
    for part in re.split(r"^>>> ", block.text, flags=re.M)[1:]:
        source, _, expected = part.partition("\n")
        said.append(expected.strip("\n"))
        out = io.StringIO()
        try:
            with contextlib.redirect_stdout(out):
                tree = ast.parse(source)
                if isinstance(tree.body[-1], ast.Expr):
                    value = eval(compile(source, block.name, "eval"), names)
                    if value is not None:
                        print(repr(value))
                else:
                    exec(compile(tree, block.name, "exec"), names)
            answered.append(out.getvalue().strip("\n"))
        except Exception as error:
            last = "".join(traceback.format_exception_only(type(error), error)).strip("\n")
            answered.append(f"Traceback (most recent call last):\n  ...\n{last}")
    return said, answered


@pytest.mark.parametrize("page", WITH_PYTHON)
def test_code_of_a_page_runs_and_prints_its_output(page, tmp_path):
    if page == "docs/CUDA.md" and "CUDA0" not in gb.backends():
        pytest.skip(f"CUDA: {gb.backends().missing.get('CUDA')}")
    if page in ("docs/howto/pytorch.md", "docs/howto/bring-your-model.md", "docs/howto/torch-compile.md"):
        pytest.importorskip("torch", reason="PyTorch is not installed; make check-long installs it")
    names: dict[str, Any] = {"gb": gb, "np": np}
    BEFORE.get(page, _nothing)(names, tmp_path)
    blocks = BLOCKS[page]
    with within(tmp_path), warnings.catch_warnings(), as_it_was(DECODERS), as_it_was(ENCODERS):
        warnings.simplefilter("always")
        for block, behind in zip(blocks, [*blocks[1:], None], strict=True):
            if block.kind != "python":
                continue
            if block.text.startswith(">>> "):
                said, answered = converse(block, names)
                assert answered == said, block.name
                continue
            printed = execute(block, names)
            if behind is not None and behind.kind == "text":
                assert printed == behind.text, block.name


def test_every_other_block_has_a_reason():
    left = dict.fromkeys(NOT_RUN, 0)
    for page, blocks in BLOCKS.items():
        for block, before in zip(blocks, [None, *blocks], strict=False):
            if block.kind == "python" or block.kind.startswith("{"):  # "{...}": directives of the site builder
                continue
            if block.kind == "text":
                assert before is not None, block.name
                assert before.kind == "python", f"{block.name}: output without a Python block before it"
                continue
            keys = [key for key in NOT_RUN if key[0] == page and block.first.startswith(key[1])]
            assert len(keys) == 1, f"{block.name} {block.first!r}: a Python block, or in NOT_RUN with a reason"
            left[keys[0]] += 1
    assert [key for key, uses in left.items() if not uses] == [], "entries of NOT_RUN that are on no page"


def test_tables_of_pages_are_whole():
    """Architectures, model types that ``convert`` reads, and the differences between architectures."""

    def names_on(page: str) -> set[str]:
        text = (ROOT / "docs/howto" / page).read_text(encoding="utf-8")
        rows = [line for line in text.splitlines() if line.startswith("|")]
        return {name for row in rows for name in re.findall(r"`([\w-]+)`", row)}

    assert {*DECODERS, *ENCODERS} <= names_on("real-models.md")
    assert {*FAMILIES, "whisper"} <= names_on("convert-hugging-face.md")
    assert {f.name for kind in (Decoder, Encoder) for f in fields(kind)} <= names_on("add-architecture.md")


def test_the_lines_of_statistics_are_those_of_the_page():
    """Numbers may differ."""
    names: dict[str, Any] = {}
    _network(names)
    with names["sched"].trace():
        for _ in range(2):
            names["sched"].compute(names["graph"])
    (block,) = [b for b in BLOCKS["docs/PLANS.md"] if b.first.startswith("10 runs")]

    def shape(text: str) -> list[str]:
        singular = re.sub(r"\b(run|byte|cop)(?:s|ies|y)?\b", r"\1", text)
        return [re.sub(r"[\d.,]+", "#", line).strip() for line in singular.splitlines()]

    page, real = shape(block.text), shape(str(names["sched"].stats))
    assert page[:5] == real[:5]
    assert re.fullmatch(r"split # on \w+: # us a run \(# traced\)", page[-1])
    assert re.fullmatch(r"split # on \w+: # us a run \(# traced\)", real[-1])


# -------------------------------------------------------------------------------------------------------- command lines

_COMMAND = re.compile(r"(?:python -m ggml_backend|ggml-backend)((?: [a-z][a-z-]*)*)([^`\n|#]*)")


def mentioned() -> dict[tuple[str, ...], set[str]]:
    """Subcommands on the pages, with their options."""
    known = {
        **dict.fromkeys(("chat", "generate", "transcribe", "embed", "quantize", "convert", "imatrix"), ()),
        "info": (),
        "plan": (),
        "profile": (),
        "bench": (),
        "calibrate": (),
        "check-device": (),
        "cluster": ("info", "ping", "calibrate", "run"),
        "gguf": ("info", "dump", "check", "quantize", "convert", "set", "rename", "diff"),
    }
    found: dict[tuple[str, ...], set[str]] = {}
    for page in PAGES:
        for match in _COMMAND.finditer((ROOT / page).read_text(encoding="utf-8")):
            words = match[1].split()
            if not words or words[0] not in known:
                assert not words or words[0] in known, f"{page}: there is no command {words[0]!r}"
                continue
            command = tuple(words[:2]) if len(words) > 1 and words[1] in known[words[0]] else (words[0],)
            found.setdefault(command, set()).update(re.findall(r"--[a-z][a-z-]*", match[2]))
    return found


@pytest.mark.parametrize("command", sorted(mentioned()), ids=" ".join)
def test_commands_that_pages_mention_have_these_options(command):
    done = subprocess.run(
        [sys.executable, "-m", "ggml_backend", *command, "--help"],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    missing = {option for option in mentioned()[command] if option not in done.stdout}
    assert not missing, f"{' '.join(command)}: {missing}"


@pytest.mark.parametrize("arguments", [["info"], ["plan", "unet", "--reorder"]], ids=" ".join)
def test_commands_that_are_cheap_run(arguments, tmp_path):
    done = subprocess.run(
        [sys.executable, "-m", "ggml_backend", *arguments],
        capture_output=True,
        text=True,
        timeout=120,
        cwd=tmp_path,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout
