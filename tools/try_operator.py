#!/usr/bin/env python3
"""Adds made-up operators to a copy of the tree, builds the package from it, and computes with them.

    try_operator.py [--only NAME] [--keep FOLDER] [--all-levels]

CONTRIBUTING.md says which files an operator touches. This proves it: ``EXERCISES`` holds the edits as data, each a
file, an anchor that stands in it exactly once, and what goes before the anchor. No other file of the copy changes. Ends
with 1 where an anchor is missing, an exercise touches more files than it may, the build fails, or a result is wrong.

- ``unary``: softsign, x / (1 + |x|), a function of UNARY with a kernel of its own.
- ``own``: pair_sums, the sums of neighbours in each row, an operator with a rule and a shape of its own.

The package is built with the scalar level alone, as for a processor that has no other (``--all-levels``: with all).
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
LEFT_OUT = ("build", ".git", ".venv", "dist", "__pycache__", ".cache")


@dataclass(frozen=True)
class Edit:
    """``text`` goes before ``anchor``, which stands in the file exactly once."""

    file: str
    anchor: str
    text: str


@dataclass(frozen=True)
class Exercise:
    """An operator: what it needs, how many product files that may be, and a program that computes with it."""

    files: int
    edits: tuple[Edit, ...]
    program: str

    def touched(self) -> list[str]:
        """The files of the edits, each once, in their order."""
        return list(dict.fromkeys(edit.file for edit in self.edits))


START = """
import numpy as np
import ggml_backend as gb

x = np.linspace(-4, 4, 7 * 34, dtype=np.float32).reshape(7, 34)

def compute(build):
    with gb.Backend("CPU") as cpu, gb.Scheduler([cpu]) as scheduler, gb.Context() as ctx:
        source = ctx.tensor(x.shape, name="x")
        result = build(source)
        with ctx.allocate(cpu):
            source.set(x)
            scheduler.compute(ctx.graph(result))
            return result.numpy().copy()
"""

BUILDER = """struct ggml_tensor * ggml_pair_sums(struct ggml_context * ctx, struct ggml_tensor * a) {
    if (!check_pair_sums(__func__, a)) {
        return NULL;
    }
    struct ggml_tensor * node = gb_op_new(ctx, __func__, GGML_OP_PAIR_SUMS, a->type, shape_pair_sums(a));
    return gb_op_sources(ctx, node, GB_GRAD_NONE, a, NULL, NULL);
}

bool gb_built_pair_sums(gb_ct t) {
    return check_pair_sums(NULL, t->src[0]) && gb_is_shape(t, shape_pair_sums(t->src[0]));
}

"""

RULE = """static bool check_pair_sums(const char * func, gb_ct a) {
    const struct gb_call c = GB_CALL_1(func, a);
    return gb_rule_given(&c) && gb_rule_no_grad(&c) &&
           (a->ne[0] % 2 == 0 || gb_rule_broken(&c, "{a.0} must be even, is %lld", (long long) a->ne[0]));
}

static struct gb_shape shape_pair_sums(gb_ct a) { return gb_shape_of(a->ne[0] / 2, a->ne[1], a->ne[2], a->ne[3]); }

"""

DRIVER = """static void run_pair_sums(const struct gb_cpu_call * call, struct ggml_tensor * node) {
    const struct ggml_tensor * a = node->src[0];
    int64_t                    first, last;
    gb_cpu_share(call, gb_rows(node), &first, &last);
    for (int64_t r = first; r < last && !gb_cpu_stopped(call, a->ne[0]); r++) {
        const struct gb_row at = gb_row_at(node, r);
        const char *        x  = gb_row_of(a, at);
        char *              y  = gb_row_of(node, at);
        for (int64_t i = 0; i < node->ne[0]; i++, x += 2 * a->nb[0], y += node->nb[0]) {
            gb_set(node->type, y, gb_get(a->type, x) + gb_get(a->type, x + a->nb[0]));
        }
    }
}

const struct gb_cpu_op gb_cpu_op_pair_sums = {
    .unsupported = float_unsupported, .n_tasks = gb_tasks_src_rows, .run = run_pair_sums
};
"""

EXERCISES = {
    "unary": Exercise(
        files=4,
        edits=(
            Edit("c/include/ggml.h", "    GGML_UNARY_OP_COUNT,\n", "    GGML_UNARY_OP_SOFTSIGN,\n"),
            Edit(
                "c/src/tensor/ops.def",
                "\n#undef GB_OP\n",
                "GB_UNARY_OP(SOFTSIGN, softsign, EXACT, GENERIC, none)\n",
            ),
            Edit(
                "c/src/cpu/kernels/elementwise.tpl.h",
                "ROWS_1(abs_f32, UNARY,",
                "ROWS_1(softsign_f32, UNARY, v_div(a, v_add(v_set(1.0f), v_abs(a))))\n",
            ),
            Edit("python/ggml_backend/ops.py", '    "view", "win_part",\n', '    "softsign",\n'),
            Edit(
                "python/ggml_backend/ops.py",
                '@builds("ggml_leaky_relu")\n',
                "def softsign(a: Tensor, inplace: bool = False) -> Tensor:\n"
                '    """``x / (1 + |x|)``"""\n'
                '    return unary(a, "softsign", inplace)\n\n\n',
            ),
        ),
        program=START
        + """
want = x / (1 + np.abs(x))
np.testing.assert_array_equal(compute(gb.softsign), want)
np.testing.assert_array_equal(compute(lambda t: gb.softsign(t, inplace=True)), want)
np.testing.assert_array_equal(compute(lambda t: gb.unary(t, "softsign")), want)
np.testing.assert_array_equal(compute(lambda t: gb.softsign(t * 2.0) + t), 2 * x / (1 + np.abs(2 * x)) + x)
""",
    ),
    "own": Exercise(
        files=8,
        edits=(
            Edit("c/include/ggml.h", "    GGML_OP_COUNT,\n", "    GGML_OP_PAIR_SUMS,\n"),
            Edit(
                "c/include/ggml-ext.h",
                "GGML_API struct ggml_tensor * ggml_gelu_erf(struct ggml_context * ctx,",
                "GGML_API struct ggml_tensor * ggml_pair_sums(struct ggml_context * ctx, struct ggml_tensor * a);\n",
            ),
            Edit(
                "c/src/tensor/ops.def",
                "\nGB_UNARY_OP(ABS,",
                'GB_OP(PAIR_SUMS, pair_sums, 1, EACH, ROWS, NEVER, ALL, none, "pair_sums(x)")\n',
            ),
            Edit("c/src/tensor/ops_reduce.c", '#include "tensor/ops.h"\n', '#include "tensor/rule.h"\n'),
            Edit("c/src/tensor/ops_reduce.c", "struct ggml_tensor * ggml_mean(", RULE + BUILDER),
            Edit("c/src/cpu/ops/reduce.c", "const struct gb_cpu_op gb_cpu_op_mean = {", DRIVER),
            Edit("python/ggml_backend/ops.py", '    "view", "win_part",\n', '    "pair_sums",\n'),
            Edit(
                "python/ggml_backend/ops.py",
                '@builds("ggml_mean")\n',
                '@builds("ggml_pair_sums")\n'
                "@without()\n"
                "def pair_sums(a: Tensor) -> Tensor:\n"
                '    """Sums of neighbours: ``(..., 2 n)`` gives ``(..., n)``."""\n'
                '    return build_1("pair_sums", lib.ggml_pair_sums, a)\n\n\n',
            ),
        ),
        program=START
        + """
want = x.reshape(7, 17, 2).sum(-1)
np.testing.assert_array_equal(compute(gb.pair_sums), want)
np.testing.assert_array_equal(compute(lambda t: gb.pair_sums(t * 2.0) * 3.0), 2 * want * 3)
try:
    compute(lambda t: gb.pair_sums(t[:, :33]))
except gb.InvalidArgumentError as error:
    assert "even" in str(error) and "33" in str(error), error
else:
    raise SystemExit("a row of 33 elements was taken")
""",
    ),
}


def apply(edits: Sequence[Edit], root: Path) -> None:
    """Makes the edits in the tree at ``root``."""
    for edit in edits:
        path = root / edit.file
        text = path.read_text(encoding="utf-8")
        if text.count(edit.anchor) != 1:
            raise SystemExit(f"{edit.file}: {edit.anchor!r} stands in it {text.count(edit.anchor)} times, not once")
        path.write_text(text.replace(edit.anchor, edit.text + edit.anchor), encoding="utf-8")


def build(root: Path, site: Path, *, all_levels: bool) -> None:
    """Installs the package of the tree at ``root`` into ``site``."""
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "-q", "install", "--no-deps"]
    if importlib.util.find_spec("scikit_build_core"):
        command.append("--no-build-isolation")
    command += ["--target", str(site), str(root), "-C", f"build-dir={root / 'build'}"]
    command += ["-C", "cmake.define.CMAKE_C_FLAGS_RELEASE=-O1"]
    if not all_levels:  # what CMake is told of the processor chooses the levels (c/cmake/levels.cmake)
        system = platform.system()
        command += ["-C", f"cmake.define.CMAKE_SYSTEM_NAME={system}", "-C", "cmake.define.CMAKE_SYSTEM_PROCESSOR=plain"]
    subprocess.run(command, check=True)


def attempt(exercise: Exercise, root: Path, *, all_levels: bool) -> None:
    """Copies the tree to ``root``, edits, builds and computes. Raises where one of them fails."""
    shutil.copytree(ROOT, root, ignore=shutil.ignore_patterns(*LEFT_OUT), symlinks=True)
    apply(exercise.edits, root)
    build(root, root / "site", all_levels=all_levels)
    paths = {**os.environ, "PYTHONPATH": str(root / "site")}
    subprocess.run([sys.executable, "-c", exercise.program], cwd=root / "site", env=paths, check=True)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--only", choices=list(EXERCISES), help="one of the operators")
    parser.add_argument("--keep", type=Path, help="a folder that does not exist: the copies stay there")
    parser.add_argument("--all-levels", action="store_true", help="build every kernel level of this processor")
    options = parser.parse_args(arguments)
    failed = False
    with tempfile.TemporaryDirectory() as temporary:
        for name in [options.only] if options.only else list(EXERCISES):
            exercise, began = EXERCISES[name], time.monotonic()
            files = exercise.touched()
            try:
                attempt(exercise, (options.keep or Path(temporary)) / name, all_levels=options.all_levels)
                result = "computes"
            except subprocess.CalledProcessError as error:
                result, failed = f"FAILED: {' '.join(map(str, error.cmd))[:200]}", True
            failed |= len(files) > exercise.files
            print(f"{name}: {result}, {len(files)} product files of at most {exercise.files}, "
                  f"{time.monotonic() - began:.0f} s\n    " + "\n    ".join(files))  # fmt: skip
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
