"""examples/llama against a NumPy network in float64 without a cache."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import ggml_backend as gb
from source_tree import in_tree

pytestmark = pytest.mark.slow

ROOT = in_tree("examples").parent
sys.path.insert(0, str(ROOT))
from examples.llama import model as llama_model  # noqa: E402
from examples.llama.model import Config, Llama, Sampler  # noqa: E402

EMBD, LAYERS, HEADS, KV, FF, VOCAB, CONTEXT = 64, 3, 4, 2, 96, 50, 64
HEAD = EMBD // HEADS


def random_weights(seed: int = 3) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)

    def matrix(rows: int, columns: int) -> np.ndarray:
        return (rng.standard_normal((rows, columns)) / columns**0.5).astype(np.float32)

    w = {
        "token_embd.weight": rng.standard_normal((VOCAB, EMBD)).astype(np.float32),
        "output.weight": matrix(VOCAB, EMBD),
    }
    w["output_norm.weight"] = (1 + rng.standard_normal(EMBD) / 10).astype(np.float32)
    for i in range(LAYERS):
        for part, rows, columns in [
            ("attn_q", EMBD, EMBD), ("attn_k", KV * HEAD, EMBD), ("attn_v", KV * HEAD, EMBD),
            ("attn_output", EMBD, EMBD),
            ("ffn_gate", FF, EMBD), ("ffn_up", FF, EMBD), ("ffn_down", EMBD, FF),
        ]:  # fmt: skip
            w[f"blk.{i}.{part}.weight"] = matrix(rows, columns)
        for part in ("attn_norm", "ffn_norm"):
            w[f"blk.{i}.{part}.weight"] = (1 + rng.standard_normal(EMBD) / 10).astype(np.float32)
    return w


def write(path: Path, weights: dict[str, np.ndarray], dtype: str = "f32", **keys: object) -> Path:
    described: dict[str, object] = {
        "general.architecture": "llama", "llama.embedding_length": EMBD, "llama.block_count": LAYERS,
        "llama.feed_forward_length": FF, "llama.attention.head_count": HEADS, "llama.attention.head_count_kv": KV,
        "llama.context_length": CONTEXT, "llama.attention.layer_norm_rms_epsilon": 1e-5, "llama.rope.freq_base": 5000.0,
    }  # fmt: skip
    described.update((key.replace("__", "."), value) for key, value in keys.items())
    with gb.gguf.Writer(path) as out:
        for key, value in described.items():
            out.add(key, value)
        for name, array in weights.items():
            out.add_tensor(name, array, dtype=gb.dtypes.as_dtype(dtype) if array.ndim == 2 else gb.float32)
    return path


def reference(weights: dict[str, np.ndarray], ids: list[int]) -> np.ndarray:
    """Logits (tokens, vocab) after each token, all at once, in float64."""
    w = {k: v.astype(np.float64) for k, v in weights.items()}
    n = len(ids)

    def norm(x: np.ndarray, name: str) -> np.ndarray:
        return x / np.sqrt((x**2).mean(-1, keepdims=True) + np.float32(1e-5)) * w[name + ".weight"]

    def rotate(x: np.ndarray) -> np.ndarray:  # (tokens, heads, head), pairs of neighbours
        angle = np.arange(n)[:, None] * 5000.0 ** (-np.arange(0, HEAD, 2) / HEAD)
        z = (x[..., 0::2] + 1j * x[..., 1::2]) * np.exp(1j * angle)[:, None]
        return np.stack([z.real, z.imag], -1).reshape(x.shape)

    x = w["token_embd.weight"][ids]
    for i in range(LAYERS):
        h = norm(x, f"blk.{i}.attn_norm")
        q = rotate((h @ w[f"blk.{i}.attn_q.weight"].T).reshape(n, HEADS, HEAD))
        k = rotate((h @ w[f"blk.{i}.attn_k.weight"].T).reshape(n, KV, HEAD)).repeat(HEADS // KV, 1)
        v = (h @ w[f"blk.{i}.attn_v.weight"].T).reshape(n, KV, HEAD).repeat(HEADS // KV, 1)
        scores = np.einsum("qhd,khd->hqk", q, k) / HEAD**0.5 + np.triu(np.full((n, n), -np.inf), 1)
        p = np.exp(scores - scores.max(-1, keepdims=True))
        mixed = np.einsum("hqk,khd->qhd", p / p.sum(-1, keepdims=True), v).reshape(n, EMBD)
        x = x + mixed @ w[f"blk.{i}.attn_output.weight"].T
        h = norm(x, f"blk.{i}.ffn_norm")
        gate = h @ w[f"blk.{i}.ffn_gate.weight"].T
        x = x + (gate / (1 + np.exp(-gate)) * (h @ w[f"blk.{i}.ffn_up.weight"].T)) @ w[f"blk.{i}.ffn_down.weight"].T
    return norm(x, "output_norm") @ w["output.weight"].T


@pytest.fixture(scope="module")
def weights():
    return random_weights()


@pytest.fixture(scope="module")
def file(weights, tmp_path_factory):
    return write(tmp_path_factory.mktemp("llama") / "tiny.gguf", weights)


IDS = [int(i) for i in np.random.default_rng(5).integers(0, VOCAB, 40)]


@pytest.mark.parametrize("devices", [("CPU",), ("SIM", "CPU"), ("SIM", "SIM", "CPU")])
@pytest.mark.parametrize("batch", [1, 7, 512])
def test_logits_equal_a_network_without_cache(file, weights, devices, batch):
    expected = reference(weights, IDS)
    model = Llama(file, devices, n_threads=2, batch=batch)
    np.testing.assert_allclose(model.logits(IDS[:25]), expected[24], atol=6e-3)  # keys and values are float16
    for i in range(25, 40):
        np.testing.assert_allclose(model.logits([IDS[i]]), expected[i], atol=6e-3)
    model.reset()
    np.testing.assert_allclose(model.logits(IDS[:3]), expected[2], atol=6e-3)


@pytest.mark.parametrize("devices", [("CPU",), ("SIM", "CPU")])
def test_windows_equal_prompts(file, devices, monkeypatch):
    """Token by token, across window ends and back, logits equal those of a prompt of all tokens so
    far."""
    monkeypatch.setattr(llama_model, "WINDOW", 8)
    whole, steps = Llama(file, devices, n_threads=2), Llama(file, devices, n_threads=2)

    def expected(ids: list[int]) -> np.ndarray:
        whole.reset()
        return whole.logits(ids)

    close = {"atol": 2e-3}  # keys and values are float16
    steps.logits(IDS[:2])
    before = [p.keys.context.used_nbytes for p in steps.cache.parts]
    for i in range(2, 30):
        np.testing.assert_allclose(steps.logits([IDS[i]]), expected(IDS[: i + 1]), **close)
    steps.cache.used = 5
    np.testing.assert_allclose(steps.logits([IDS[7]]), expected([*IDS[:5], IDS[7]]), **close)
    np.testing.assert_allclose(steps.logits(IDS[10:14]), expected([*IDS[:5], IDS[7], *IDS[10:14]]), **close)
    np.testing.assert_allclose(steps.logits([1]), expected([*IDS[:5], IDS[7], *IDS[10:14], 1]), **close)
    assert [p.keys.context.used_nbytes for p in steps.cache.parts] == before  # slices do not accumulate


def test_a_window_is_planned_once(file):
    model = Llama(file, n_threads=2)
    model.logits(IDS[:3])
    model.logits([1])
    before = model.scheduler.stats
    for _ in range(10):
        model.logits([1])
    after = model.scheduler.stats
    assert after.plans_made == before.plans_made
    assert after.plans_found >= before.plans_found + 10


def test_same_tokens_on_all_devices(file):
    runs = [
        list(Llama(file, devices, n_threads=2).generate(IDS[:5], Sampler(), 30))
        for devices in [("CPU",), ("SIM", "CPU")]
    ]
    assert runs[0] == runs[1]
    assert len(runs[0]) == 30


@pytest.mark.parametrize("dtype", ["f16", "q8_0"])
def test_other_types_are_close(weights, tmp_path, dtype):
    model = Llama(write(tmp_path / "m.gguf", weights, dtype), n_threads=2)
    got, expected = model.logits(IDS), reference(weights, IDS)[-1]
    cosine = got @ expected / np.linalg.norm(got) / np.linalg.norm(expected)
    assert cosine > (0.9999 if dtype == "f16" else 0.995)


def test_tied_embeddings(weights, tmp_path):
    tied = {k: v for k, v in weights.items() if k != "output.weight"}
    expected = reference({**tied, "output.weight": tied["token_embd.weight"]}, IDS[:9])[-1]
    np.testing.assert_allclose(Llama(write(tmp_path / "m.gguf", tied)).logits(IDS[:9]), expected, atol=6e-2)


def test_ends_of_the_context(file):
    model = Llama(file, context=8)
    assert len(list(model.generate(IDS[:5], Sampler(), 100))) == 4  # three fit, and the last one needs no cache
    with pytest.raises(ValueError, match="do not fit the context of 8"):
        model.logits([1])
    model.reset()
    with pytest.raises(ValueError, match="no tokens"):
        model.logits([])
    with pytest.raises(ValueError, match="token 50 is not in the vocabulary"):
        model.logits([50])


def test_stop_token(file):
    model = Llama(file)
    tokens = list(model.generate(IDS[:5], Sampler(), 20))
    model.reset()
    assert list(model.generate(IDS[:5], Sampler(), 20, frozenset({tokens[3]}))) == tokens[: tokens.index(tokens[3])]


def test_sampler():
    logits = np.log(np.array([0.05, 0.5, 0.15, 0.3], np.float32))
    assert Sampler()(logits) == 1
    pick = Sampler(1.0, top_k=4, top_p=1.0, seed=1)
    counts = np.bincount([pick(logits) for _ in range(20000)], minlength=4) / 20000
    np.testing.assert_allclose(counts, [0.05, 0.5, 0.15, 0.3], atol=0.015)
    pick = Sampler(1.0, top_k=2, seed=1, top_p=1.0)
    assert {pick(logits) for _ in range(200)} == {1, 3}
    pick = Sampler(1.0, top_k=4, top_p=0.45, seed=1)
    assert {pick(logits) for _ in range(200)} == {1}
    assert [Sampler(2.0, seed=9)(logits) for _ in range(3)] == [Sampler(2.0, seed=9)(logits) for _ in range(3)]
    for wrong in ({"temperature": -1}, {"top_k": 0}, {"top_p": 0}, {"top_p": 1.5}):
        with pytest.raises(ValueError):
            Sampler(**wrong)


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("general__architecture", "bert", "architecture of the file is 'bert'"),
        ("llama__expert_count", 8, "mixture of experts"),
        ("llama__rope__scaling__type", "yarn", "yarn"),
        ("llama__embedding_length", 66, "no multiple"),
    ],
)
def test_wrong_files_are_refused(weights, tmp_path, key, value, message):
    with pytest.raises(ValueError, match=message):
        Llama(write(tmp_path / "m.gguf", weights, **{key: value}))


def test_missing_key():
    with pytest.raises(ValueError, match=r"no key llama.block_count"):
        Config.of(
            {"general.architecture": "llama", "llama.embedding_length": 4, "llama.attention.head_count": 1},
            {"token_embd.weight": np.zeros((2, 4))},
        )


def test_command_line(file, weights, tmp_path):
    def run(*args: object) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "examples.llama", *map(str, args)], capture_output=True, text=True, cwd=ROOT
        )

    done = run(file, "--tokens", "1,2,3", "-n", 6)
    assert done.returncode == 0, done.stderr
    assert [int(t) for t in done.stdout.split()] == list(Llama(file).generate([1, 2, 3], Sampler(), 6))
    assert "prompt 3 tokens" in done.stderr
    done = run(file, "hello")
    assert done.returncode == 1
    assert "has no tokenizer" in done.stderr
    assert "Traceback" not in done.stderr
    assert run(tmp_path / "none.gguf", "x").returncode == 1

    pieces = ["<unk>", "<s>", "</s>", "\u2581", "a", "b", "ab", *(f"w{i}" for i in range(50 - 7))]
    text = write(tmp_path / "text.gguf", weights, tokenizer__ggml__model="llama", tokenizer__ggml__tokens=pieces)
    done = run(text, "ab", "-n", 5, "--temperature", 0.8, "--seed", 1)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("ab")
