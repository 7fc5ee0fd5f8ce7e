"""Every network of the table against ``transformers`` in float64."""

from __future__ import annotations

import json

import numpy as np
import pytest

pytest.importorskip("torch", reason="PyTorch is not installed; tools/check_models.sh (make check-long) does")
pytest.importorskip("transformers", reason="transformers is not installed; make check-long does")
import torch
import transformers

import transformers_models as tm
from ggml_backend.cli import main
from ggml_backend.models import EmbeddingModel, SpeechModel, TextModel


def cosine(a, b):
    a, b = a.astype(np.float64), b.astype(np.float64)
    return float(a @ b / np.linalg.norm(a) / np.linalg.norm(b))


@pytest.fixture(scope="module", params=tm.CASES)
def pair(request, tmp_path_factory):
    case = tm.CASES[request.param]
    made = tm.network(case)
    path = tmp_path_factory.mktemp("models") / "model.gguf"
    tm.write(case, made, path)
    return made, path


@pytest.mark.parametrize("devices", [("CPU",), ("SIM", "CPU"), ("ARRAY", "CPU")], ids=lambda d: d[0])
def test_logits_and_tokens_are_those_of_transformers(pair, devices):
    made, path = pair
    ids = np.random.default_rng(1).integers(3, tm.VOCAB, 21).tolist()
    expected = tm.logits_of(made, ids)
    with TextModel(path, devices, n_ctx=128, n_batch=8, cache="float32") as model:
        for n in (1, 8, 21):  # a single token, a whole batch, several batches and a padded one
            ours, theirs = model.logits(ids[:n]), expected[n - 1]
            assert cosine(ours, theirs) >= 0.9999999, n
            np.testing.assert_allclose(ours, theirs, rtol=0, atol=2e-4 * np.abs(theirs).max())
        model.tokenizer.stops = frozenset()
        written = model.generate(ids, max_tokens=64)
        text = "".join(written)
        assert text == written.text
        # Each token is the likeliest after those before it, so the whole text is that of transformers.
        after = tm.logits_of(made, [*ids, *written.tokens])[len(ids) - 1 : -1]
        assert written.tokens == after.argmax(-1).tolist()
        assert len(written.tokens) == 64


@pytest.mark.parametrize("devices", [("CPU",), ("SIM", "CPU"), ("ARRAY", "CPU")], ids=lambda d: d[0])
@pytest.mark.parametrize("name", tm.ENCODERS)
def test_vectors_are_those_of_transformers(name, devices, tmp_path):
    case = tm.ENCODERS[name]
    made, path = tm.encoder(case), tmp_path / "model.gguf"
    tm.write_encoder(case, made, path)
    rng = np.random.default_rng(2)
    texts = ["".join(tm.PIECES[i] for i in rng.integers(32, tm.VOCAB, n)) for n in (5, 40, 17, 1)]
    for pooling in ("mean", "cls", "last"):
        with EmbeddingModel(path, devices, pooling=pooling) as model:
            ours = model.embed(texts, batch_size=3)
            tokens = [model.tokenizer.encode(text) for text in texts]
        for vector, ids in zip(ours, tokens, strict=True):
            states = tm.states_of(made, ids)
            expected = {"mean": states.mean(0), "cls": states[0], "last": states[-1]}[pooling]
            np.testing.assert_allclose(vector, expected / np.linalg.norm(expected), rtol=0, atol=1e-5)


def test_a_folder_of_whisper_is_converted(tmp_path):
    config = transformers.WhisperConfig(
        vocab_size=51864, d_model=32, encoder_layers=2, decoder_layers=2, encoder_attention_heads=4,
        decoder_attention_heads=4, encoder_ffn_dim=128, decoder_ffn_dim=128, num_mel_bins=80,
        max_source_positions=1500, max_target_positions=448, pad_token_id=0, bos_token_id=1, eos_token_id=50256,
        decoder_start_token_id=50257,
    )  # fmt: skip
    torch.manual_seed(0)
    made = transformers.WhisperForConditionalGeneration(config).eval()
    with torch.no_grad():
        for p in made.parameters():
            p += 0.1 * torch.randn_like(p)  # biases and norms are 0 and 1 otherwise
    made.generation_config.suppress_tokens = [5, 7]
    made.save_pretrained(tmp_path / "model")
    vocab = {"model": {"vocab": {chr(33 + i): i for i in range(90)}}, "added_tokens": []}
    (tmp_path / "model/tokenizer.json").write_text(json.dumps(vocab))
    assert main(["convert", str(tmp_path / "model"), str(tmp_path / "made.gguf"), "--quiet"]) == 0
    mel = np.random.default_rng(0).standard_normal((80, 3000)).astype(np.float32)
    ids = [50257, 5, 9]
    with SpeechModel(tmp_path / "made.gguf") as model:
        assert model.metadata["whisper.suppress_tokens"].tolist() == [5, 7]
        model._encode(mel)
        ours = model._decode(ids, range(3), range(3), [range(i + 1) for i in range(3)])
    with torch.no_grad():
        features = torch.from_numpy(mel)[None].double()
        theirs = made.double()(input_features=features, decoder_input_ids=torch.tensor([ids])).logits[0].numpy()
    for a, b in zip(ours, theirs, strict=True):
        assert cosine(a, b) >= 0.99999
        np.testing.assert_allclose(a, b, rtol=0, atol=1e-2 * np.abs(b).max())
