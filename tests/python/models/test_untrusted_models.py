"""Model files with wrong keys and tensors: one line for each error, no traceback, and no endless work."""

from __future__ import annotations

import contextlib
import io
import os
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import ggml_backend as gb
import small_models as sm
from ggml_backend.cli import main

pytestmark = pytest.mark.slow

SECONDS = 60.0
EMBD, VOCAB, KV = sm.EMBD, sm.VOCAB, sm.KV_HEADS * sm.HEAD


def command(*arguments: object) -> tuple[int, str, str]:
    """Status, output and errors of a command."""
    out, err = io.StringIO(), io.StringIO()
    start = time.monotonic()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        status = main([str(a) for a in arguments])
    assert time.monotonic() - start < SECONDS
    return status, out.getvalue(), err.getvalue()


def generated(path: object) -> tuple[int, str, str]:
    return command("generate", path, sm.PIECES[40], "-n", 2, "--n-ctx", 64, "--quiet")


def refused(found: tuple[int, str, str], word: str = "") -> None:
    status, _, err = found
    assert status == 1 and word in err, found
    assert len(err.splitlines()) == 1 and "Traceback" not in err, err
    assert all(c.isprintable() for c in err.strip()), err


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path: Path = tmp_path_factory.mktemp("models") / "good.gguf"
    sm.write(path, sm.SMALL["llama"])
    assert generated(path)[0] == 0
    return path


def changed(good: Path, path: Path, changes: dict[str, Any], tensors: dict[str, Any] | None = None) -> Path:
    """The valid file with replaced keys or tensors; None removes one."""
    tensors = tensors or {}
    with gb.gguf.open(good) as file, gb.gguf.Writer(path) as writer:
        writer.copy_from(file, keys=[k for k in file.metadata if k not in changes], tensors=False)
        for key, value in changes.items():
            if value is not None:
                writer.add(key, value)
        writer.copy_from(file, keys=False, tensors=[name for name in file.tensors if name not in tensors])
        for name, array in tensors.items():
            if array is not None:
                writer.add_tensor(name, array)
    return path


WRONG_KEYS = [
    ("general.architecture", 5, "is not known"), ("general.architecture", "\x1b[31mbert", "is not known"),
    ("llama.block_count", 1_000_000, "block_count"), ("llama.block_count", 0, "block_count"),
    ("llama.block_count", -1, "block_count"), ("llama.block_count", 2**40, "block_count"),
    ("llama.block_count", 1.5, "block_count"), ("llama.block_count", [3], "block_count"),
    ("llama.block_count", True, "block_count"),
    ("llama.embedding_length", 0, "embedding_length"), ("llama.embedding_length", 63, "token_embd"),
    ("llama.attention.head_count", 0, "head_count"), ("llama.attention.head_count", 3, "multiple"),
    ("llama.attention.head_count_kv", 0, "head_count_kv"), ("llama.attention.head_count_kv", 4, "attn_k"),
    ("llama.feed_forward_length", 97, "ffn_gate"), ("llama.feed_forward_length", "x", "feed_forward_length"),
    ("llama.context_length", 0, "context_length"), ("llama.context_length", "long", "context_length"),
    ("llama.attention.layer_norm_rms_epsilon", float("nan"), "epsilon"),
    ("llama.attention.layer_norm_rms_epsilon", "x", "epsilon"),
    ("llama.attention.layer_norm_rms_epsilon", -1.0, "epsilon"),
    ("llama.rope.freq_base", 0.0, "freq_base"), ("llama.rope.freq_base", float("inf"), "freq_base"),
    ("llama.rope.dimension_count", 1000, "dimension_count"), ("llama.rope.scaling.type", 3, "scaling.type"),
    ("llama.attention.head_count", [4, 4, 4], "head_count"), ("llama.expert_count", "x", "expert_count"),
    ("tokenizer.ggml.model", ["llama"], "known are gpt2"), ("tokenizer.ggml.tokens", None, "tokenizer.ggml.tokens"),
    ("tokenizer.ggml.tokens", [1, 2], "tokenizer.ggml.tokens"), ("tokenizer.ggml.scores", "x", "scores"),
    ("tokenizer.ggml.scores", [float("nan")] * VOCAB, "scores"), ("tokenizer.ggml.bos_token_id", 10**6, "bos"),
    ("tokenizer.ggml.bos_token_id", "x", "bos"), ("tokenizer.ggml.add_bos_token", "x", "add_bos"),
    ("tokenizer.ggml.eos_token_id", [1], "eos"), ("tokenizer.ggml.unknown_token_id", VOCAB, "unknown_token"),
    ("tokenizer.ggml.model", "gpt2", "merges"),
]  # fmt: skip


@pytest.mark.parametrize(("key", "value", "word"), WRONG_KEYS)
def test_wrong_keys_are_named(good: Path, tmp_path: Path, key: str, value: Any, word: str) -> None:
    refused(generated(changed(good, tmp_path / "bad.gguf", {key: value})), word)


@pytest.mark.parametrize(
    ("keys", "word"),
    [({"llama.rope.scaling.type": "linear", "llama.rope.scaling.factor": 0.0}, "factor"),
     ({"tokenizer.ggml.model": "gpt2", "tokenizer.ggml.merges": ["a b"], "tokenizer.ggml.pre": 3}, "pre"),
     ({"tokenizer.ggml.model": "gpt2", "tokenizer.ggml.merges": ["a b"], "tokenizer.ggml.pre": "\x1b[1m"}, "pre")],
)  # fmt: skip
def test_wrong_pairs_of_keys_are_named(good: Path, tmp_path: Path, keys: dict[str, Any], word: str) -> None:
    refused(generated(changed(good, tmp_path / "bad.gguf", keys)), word)


@pytest.mark.parametrize(
    ("name", "array"),
    [("token_embd.weight", None), ("token_embd.weight", np.ones(5, np.float32)), ("output_norm.weight", None),
     ("blk.1.attn_q.weight", None), ("blk.1.attn_q.weight", np.ones((EMBD, EMBD + 1), np.float32)),
     ("blk.2.attn_k.weight", np.ones((KV + 1, EMBD), np.float32)), ("blk.0.ffn_down.weight", np.ones(4, np.float32)),
     ("output.weight", np.ones((VOCAB + 1, EMBD), np.float32)),
     ("blk.0.attn_norm.weight", np.ones((2, EMBD), np.float32)), ("rope_freqs.weight", np.ones(4, np.float32)),
     ("blk.0.attn_q.weight", np.ones((sm.HEADS * sm.HEAD, EMBD), np.int32)),
     ("token_embd.weight", np.ones((VOCAB, EMBD), np.int8)), ("blk.0.attn_norm.weight", np.ones(EMBD, np.int16))],
)  # fmt: skip
def test_wrong_tensors_are_refused(good: Path, tmp_path: Path, name: str, array: Any) -> None:
    refused(generated(changed(good, tmp_path / "bad.gguf", {}, {name: array})))


def test_nan_weights_end_the_program(good: Path, tmp_path: Path) -> None:
    """The output may be anything."""
    bad = changed(good, tmp_path / "bad.gguf", {}, {"output_norm.weight": np.full(EMBD, np.nan, np.float32)})
    for options in ([], ["--temperature", 0.8, "--seed", 1]):
        status, _, err = command("generate", bad, sm.PIECES[40], "-n", 3, *options)
        assert status in (0, 1) and len(err.splitlines()) == 1, err


def test_wrong_files_are_refused(good: Path, tmp_path: Path) -> None:
    empty, cut, pipe = tmp_path / "empty", tmp_path / "cut", tmp_path / "pipe"
    empty.touch()
    cut.write_bytes(good.read_bytes()[:-5000])
    os.mkfifo(pipe)
    for path in (tmp_path / "absent", tmp_path, empty, cut, pipe, "/dev/null", tmp_path / ("x" * 300)):
        refused(generated(path))


VALUES = st.one_of(
    st.integers(-(2**40), 2**40), st.sampled_from([0, 1, 2, 3, 4, 64, 2**31 - 1, 2**31, 2**32 - 1, 10**6]),
    st.floats(width=32), st.booleans(), st.text(st.characters(exclude_categories=["Cs"]), max_size=5),
    st.lists(st.integers(-5, 5), min_size=1, max_size=4),
    st.lists(st.text(st.characters(exclude_categories=["Cs"]), max_size=3), min_size=1, max_size=4), st.none(),
)  # fmt: skip
KEYS = [
    *(k for k in sm.keys_of(sm.SMALL["llama"]) if k != "general.name"), "general.alignment", "llama.expert_count",
    "llama.rope.dimension_count", "llama.rope.scaling.type", "llama.rope.scaling.factor", "tokenizer.ggml.merges",
    "tokenizer.ggml.pre", "tokenizer.ggml.bos_token_id", "tokenizer.ggml.eos_token_id",
    "tokenizer.ggml.unknown_token_id",
]  # fmt: skip


@pytest.mark.parametrize("program", [generated, lambda path: command("plan", path, "--tokens", 4, "--context", 64)])
def test_any_metadata_ends_in_a_result_or_a_line(good: Path, tmp_path: Path, program: Any) -> None:
    @settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
    @given(changes=st.dictionaries(st.sampled_from(KEYS), VALUES, min_size=1, max_size=3))
    def run(changes: dict[str, Any]) -> None:
        try:
            bad = changed(good, tmp_path / "bad.gguf", changes)
        except (gb.GgmlError, TypeError):
            return  # such a file cannot be written
        status, _, err = program(bad)
        assert status in (0, 1) and "Traceback" not in err, (changes, err)
        assert status == 0 or len(err.splitlines()) == 1, err

    run()
