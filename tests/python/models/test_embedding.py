"""Embedding models against NumPy in float64."""

from __future__ import annotations

import warnings

import numpy as np
import pytest

import ggml_backend as gb
import small_models as sm
from ggml_backend.cli import main
from ggml_backend.models import EmbeddingModel, SpeechModel, TextModel, load
from ggml_backend.models._model import _METHODS
from threads import run_threads

pytestmark = pytest.mark.filterwarnings("ignore:.* the rest is cut off")
TEXTS = ["a cat sits on the mat.", "the kitten lies", "", "cats", "a " * 200, "zzz the"]


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    path = tmp_path_factory.mktemp("models") / "bert.gguf"
    sm.write_encoder(path)
    return path


def expected(ids, pooling):
    states = sm.encoder_states(ids)
    found = {"mean": states.mean(0), "cls": states[0], "last": states[-1]}[pooling]
    return found / np.linalg.norm(found)


@pytest.mark.parametrize("devices", [("CPU",), ("SIM", "CPU")], ids=len)
@pytest.mark.parametrize("pooling", ["mean", "cls", "last"])
def test_vectors_are_those_of_numpy(path, pooling, devices):
    with load(path, devices, pooling=pooling) as model:
        assert isinstance(model, EmbeddingModel)
        for batch_size in (1, 4, 32):
            vectors = model.embed(TEXTS, batch_size)
            assert (vectors.shape, vectors.dtype) == ((6, 32), np.float32)
            for text, vector in zip(TEXTS, vectors, strict=True):
                ids = model.tokenizer.encode(text, special=False)
                ids = ids if len(ids) <= 64 else [*ids[:63], ids[-1]]
                np.testing.assert_allclose(vector, expected(ids, pooling), rtol=0, atol=2e-6)


def test_a_text_beyond_the_context_is_cut_with_a_warning(path):
    with load(path, n_ctx=16) as model:
        with pytest.warns(
            UserWarning, match=r"2 of 3 texts have more than 16 tokens \(n_ctx\): the rest is cut off"
        ) as found:
            long = model.embed(["a " * 14 + "cat", "cat", "a " * 300 + "mat"])
        assert found[0].filename == __file__
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            np.testing.assert_allclose(model.embed(["a " * 14]), long[[0]], atol=1e-6)


def test_the_pooling_is_that_of_the_file(tmp_path):
    for number, pooling in ((1, "mean"), (2, "cls"), (3, "last"), (None, "mean")):
        sm.write_encoder(tmp_path / "model.gguf", bert__pooling_type=number)
        with load(tmp_path / "model.gguf") as model:
            assert model.pooling == pooling


def test_a_quantized_model_gives_nearly_the_same_vectors(path, tmp_path):
    assert main(["quantize", str(path), str(tmp_path / "small.gguf"), "Q8_0", "--quiet"]) == 0
    with load(path) as model, load(tmp_path / "small.gguf") as small:
        assert small.weights["blk.0.ffn_up.weight"].dtype.name == "q8_0"
        assert (model.embed(TEXTS) * small.embed(TEXTS)).sum(1).min() > 0.999


def test_special_tokens_in_texts_are_text(path):
    with load(path) as model:
        ids = model.tokenizer.encode("the [SEP] cat", special=False)
        assert ids.count(3) == 1
        np.testing.assert_allclose(model.embed("the [SEP] cat")[0], expected(ids, "mean"), rtol=0, atol=2e-6)


def test_threads_share_a_model(path):
    with load(path) as model:
        alone = [model.embed(t) for t in TEXTS]
        found = [None] * 6
        run_threads(6, lambda i: found.__setitem__(i, model.embed(TEXTS[i])))
        for a, b in zip(found, alone, strict=True):
            np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (lambda m: m.embed(["a", 3]), TypeError, "list of str"),
        (lambda m: m.embed(None), TypeError, "texts must be"),
        (lambda m: m.embed(["a"], 0), ValueError, "batch_size is 0"),
        (lambda m: m.embed(["a"], progress=3), TypeError, "progress must be a function"),
        (lambda m: (m.close(), m.embed("a")), gb.errors.StateError, "closed"),
    ],
)
def test_wrong_calls_are_errors(path, call, error, words):
    with load(path) as model, pytest.raises(error, match=words):
        call(model)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"bert__attention__head_count": 5}, "multiple of the 5 heads"),
        ({"bert__block_count": 3}, "no matrix blk.2"),
        ({"bert__context_length": 100}, "position_embd.weight has shape"),
        ({"bert__pooling_type": 9}, "bert.pooling_type is 9"),
        ({"tokenizer__ggml__unknown_token_id": None, "tokenizer__ggml__tokens": ["x"] * 15}, "no token '.UNK.'"),
    ],
)
def test_errors_of_damaged_files_name_the_key(tmp_path, changes, words):
    sm.write_encoder(tmp_path / "model.gguf", **changes)
    with pytest.raises(gb.errors.FileError, match=words):
        load(tmp_path / "model.gguf")


def test_a_method_of_another_kind_of_model_is_named(path):
    with load(path) as model:
        for method, kind in (("chat", "TextModel"), ("generate_all", "TextModel"), ("transcribe", "SpeechModel")):
            with pytest.raises(AttributeError, match=f"EmbeddingModel has no method '{method}': it is one of {kind}"):
                getattr(model, method)
        with pytest.raises(AttributeError, match="'EmbeddingModel' object has no attribute 'embedd'"):
            model.embedd  # noqa: B018
    kinds = {kind.__name__: kind for kind in (TextModel, EmbeddingModel, SpeechModel)}
    assert all(hasattr(kinds[kind], method) for method, kind in _METHODS.items())


def test_wrong_options_are_errors(path):
    with pytest.raises(gb.errors.InvalidArgumentError, match="pooling must be one of 'mean', 'cls', 'last', not 'max'"):
        load(path, pooling="max")
    with pytest.raises(gb.errors.InvalidArgumentError, match="n_ctx is 1"):
        load(path, n_ctx=1)
    for devices in (3, [3]):
        with pytest.raises(TypeError, match="devices must be"):
            load(path, devices)
    with pytest.raises(TypeError, match="n_threads"):
        load(path, n_threads=np.ones(2))
    with pytest.raises(gb.errors.InvalidArgumentError, match="pooling must be"):
        load(path, pooling=np.ones(2))
    assert load(path).embed([]).shape == (0, 32)
