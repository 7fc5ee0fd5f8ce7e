"""Commands that take a model file of any architecture: ``plan``, ``bench``, ``profile``, ``quantize --max-shard``."""

from __future__ import annotations

import json

import numpy as np
import pytest

import ggml_backend as gb
import small_models as sm
import small_whisper
from ggml_backend.cli import main
from ggml_backend.cli.gguf.shards import sizes_of_parts
from ggml_backend.models import load


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    path = tmp_path_factory.mktemp("models") / "llama.gguf"
    sm.write(path, sm.SMALL["llama"])
    return str(path)


@pytest.fixture(scope="module")
def whisper(tmp_path_factory):
    path = tmp_path_factory.mktemp("models") / "whisper.gguf"
    small_whisper.write_whisper(path)
    return str(path)


@pytest.mark.parametrize("name", sm.SMALL)
def test_plan_lists_the_memory_of_a_model(name, tmp_path, capsys):
    path = str(tmp_path / "model.gguf")
    sm.write(path, sm.SMALL[name])
    assert main(["plan", path, "--tokens", "8", "--context", "64", "--json"]) == 0
    (arena,) = json.loads(capsys.readouterr().out)["arenas"]
    with load(path, n_ctx=64) as model:
        model.logits(list(range(40, 48)))
        assert arena["weights"] == model.weights.nbytes
        assert arena["caches"] == sum(t.nbytes for layer in model.cache.layers for t in layer)
        assert arena["allocated"] == model.compute_nbytes


def test_plan_and_bench_take_an_encoder(tmp_path, capsys):
    path = str(tmp_path / "model.gguf")
    sm.write_encoder(path)
    assert main(["plan", path, "--tokens", "8", "--json"]) == 0
    (arena,) = json.loads(capsys.readouterr().out)["arenas"]
    with load(path) as model:
        assert arena["weights"] == model.weights.nbytes and arena["peak"] > 0
    assert main(["plan", path, "--context", "8"]) == 1
    assert "no cache" in capsys.readouterr().err
    assert main(["bench", path, "--prompt", "8", "--rounds", "1"]) == 0
    assert "32 texts" in capsys.readouterr().out


def test_plan_of_whisper_has_both_halves(whisper, capsys):
    assert main(["plan", whisper, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    with load(whisper) as model:
        assert found["arenas"][0]["weights"] == model.weights.nbytes
    assert main(["plan", whisper, "--tokens", "5"]) == 1
    assert "one size" in capsys.readouterr().err


def test_bench_measures_a_model(path, whisper, tmp_path, capsys):
    figures = tmp_path / "figures.json"
    for model, kinds in ((path, 2), (whisper, 2)):
        options = ["--new", "2", "--rounds", "1", "--threads", "1", "--json", str(figures)]
        assert main(["bench", model, *options, *(["--prompt", "9"] if model == path else [])]) == 0
        found = json.loads(figures.read_text())
        assert found["architecture"] in ("llama", "whisper") and found["threads"] == 1
        assert len(found["rates"]) == kinds
        assert all(rate["median"] > 0 and len(rate["rounds"]) == 1 for rate in found["rates"].values())
        assert found["memory"]["weights"] > 0
    out = capsys.readouterr().out
    assert "a prompt of 9" in out and "tokens/s" in out and "windows of 30 s" in out


@pytest.mark.parametrize(
    ("options", "status", "word"),
    [(["--prompt", "600"], 1, "do not fit"), (["ops"], 2, "one model file"), (["--types", "f16"], 2, "--types"),
     (["--cpu", "--threads", "2"], 2, "one thread")],
)  # fmt: skip
def test_bench_of_a_model_refuses_wrong_options(path, options, status, word, capsys):
    assert main(["bench", path, *options]) == status
    assert word in capsys.readouterr().err


def test_bench_refuses_options_of_other_models(whisper, tmp_path, capsys):
    sm.write_encoder(tmp_path / "model.gguf")
    for model, option, why in (
        (whisper, "--prompt", "it reads audio"),
        (tmp_path / "model.gguf", "--new", "no tokens"),
    ):
        assert main(["bench", str(model), option, "2", "--rounds", "1"]) == 1
        out = capsys.readouterr()
        assert option in out.err and why in out.err and out.out == ""


def test_prompt_is_for_models(capsys):
    assert main(["bench", "ops", "--prompt", "5"]) == 2
    assert "for MODEL.gguf" in capsys.readouterr().err


def test_profile_runs_a_model(path, capsys):
    assert main(["profile", "--no-limits", "--by", "kind", path]) == 0
    out = capsys.readouterr().out
    assert "mul_mat" in out.lower() and "flash_attn_ext" in out.lower()
    assert main(["profile", "--no-limits", path, "more"]) == 1
    assert "takes no arguments" in capsys.readouterr().err


def test_parts_hold_the_same_model(path, tmp_path, capsys):
    whole, parts = str(tmp_path / "whole.gguf"), str(tmp_path / "parts.gguf")
    assert main(["quantize", path, whole, "Q8_0", "--quiet"]) == 0
    assert main(["quantize", path, parts, "Q8_0", "--quiet", "--max-shard", "100K"]) == 0
    files = sorted(tmp_path.glob("parts-*.gguf"))
    assert len(files) > 2 and not (tmp_path / "parts.gguf").exists()
    assert f"and {len(files) - 1} more parts" in capsys.readouterr().out
    assert all(f.stat().st_size <= 100_000 for f in files)
    with gb.gguf.open(whole) as a, gb.gguf.open(files[0]) as b:
        assert list(a.tensors) == list(b.tensors)
        for name, tensor in a.tensors.items():
            np.testing.assert_array_equal(tensor.data, b.tensors[name].data)
        assert {k: v for k, v in b.metadata.items() if not k.startswith("split.")}.keys() == a.metadata.keys()
    with load(whole, n_ctx=64) as a, load(files[0], n_ctx=64) as b:
        np.testing.assert_array_equal(a.logits([40, 41]), b.logits([40, 41]))


def test_one_part_is_a_plain_file(path, tmp_path):
    target = tmp_path / "small.gguf"
    assert main(["quantize", path, str(target), "Q8_0", "--quiet", "--max-shard", "2G"]) == 0
    with gb.gguf.open(target) as file:
        assert not any(key.startswith("split.") for key in file.metadata)


@pytest.mark.parametrize("word", ["0", "-1", "2X", "", "1.5G", "9" * 30])
def test_sizes_of_parts_are_checked(path, tmp_path, word, capsys):
    assert main(["quantize", path, str(tmp_path / "x.gguf"), "Q8_0", "--max-shard", word]) == 2
    assert "--max-shard" in capsys.readouterr().err


def test_a_failed_part_leaves_none(tmp_path, capsys):
    path, target = str(tmp_path / "bad.gguf"), tmp_path / "out.gguf"
    with gb.gguf.Writer(path) as writer:
        writer.add("general.architecture", "llama")
        writer.add_tensor("a.weight", np.full((64, 64), np.nan, np.float32))  # in the first part, which is written last
        for name in "bcd":
            writer.add_tensor(f"{name}.weight", np.ones((64, 64), np.float32))
    assert main(["quantize", path, str(target), "Q8_0", "--quiet", "--max-shard", "10K"]) == 1
    assert len(capsys.readouterr().err.splitlines()) == 1
    assert [p.name for p in tmp_path.iterdir()] == ["bad.gguf"]


def test_no_part_replaces_an_input(tmp_path, capsys):
    first = tmp_path / "m-00001-of-00002.gguf"
    with gb.gguf.Writer(first) as writer:
        for name in "ab":
            writer.add_tensor(f"{name}.weight", np.ones((64, 64), np.float32))
    before = first.read_bytes()
    assert main(["quantize", str(first), str(tmp_path / "m.gguf"), "F16", "--quiet", "--max-shard", "14K"]) == 1
    assert "is the input" in capsys.readouterr().err
    assert first.read_bytes() == before


def test_tensors_go_to_the_next_part_when_one_is_full():
    assert sizes_of_parts([100, 100, 100], 1000, 500) == [1, 1, 1]
    assert sizes_of_parts([10**6] * 5, 2 * 10**6 + 10**4, 500) == [2, 2, 1]
    assert sizes_of_parts([10**7, 5], 1000, 500) == [1, 1]  # the first is larger than a part
    assert sizes_of_parts([], 1000, 500) == [0]
    rng = np.random.default_rng(0)
    for _ in range(50):
        sizes, most, head = rng.integers(1, 10**6, 40).tolist(), int(rng.integers(5000, 3 * 10**6)), 2000
        counts, at = sizes_of_parts(sizes, most, head), 0
        assert sum(counts) == 40 and all(counts)
        for n in counts:
            assert n == 1 or sum(sizes[at : at + n]) <= most
            at += n
