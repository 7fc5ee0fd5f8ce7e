#!/bin/sh
# make check-long: what takes too long for every change. Run it before a release and before calling a large change done.
#
#     sh tools/check_long.sh [JOBS [STEP...]]       the steps named, or all
#
# A step that fails does not stop the others. The last lines say which steps failed and which left something out,
# because a program is not installed. The output of a step is in build/long/STEP.log. All steps take hours on two cores.
# HARNESS_SECONDS=600 attacks ten times as long as usual, and GGUF_FUZZ_SECONDS is the fuzzer's time.
set -eu

steps="space asan damage tsan levels nehalem aarch64 riscv64 windows cuda-asan cuda-models cuda-python nvcc torch models
clusters writers fuzz flags additions sched-random python-devices check-device plans attacks found pytest-asan
attacks-asan pytest-tsan attacks-tsan site install editable exchange safetensors"

what() { # STEP: what it checks
    case $1 in
        space) echo "disk space of make test (at most 1.5 GB) and of the wheel (at most 4 MB)" ;;
        asan) echo "ctest under the address and undefined-behaviour sanitizers" ;;
        damage) echo "damaged tensors: every field of every operator, and random pairs; damaged program files" ;;
        tsan) echo "ctest under the thread sanitizer: pool, engine, simulated device, scheduler" ;;
        levels) echo "ctest at every kernel level that this processor has" ;;
        nehalem) echo "an x86-64 processor of 2008, emulated" ;;
        aarch64 | riscv64) echo "$1, cross-compiled and emulated" ;;
        windows) echo "Windows, cross-compiled, and under wine" ;;
        cuda-asan) echo "the CUDA backend, emulated, address and undefined-behaviour sanitizers" ;;
        cuda-models) echo "the CUDA backend, emulated as 9.0, 8.0 and 7.5: models in every format, random products" ;;
        cuda-python) echo "the package with emulated CUDA devices: operators, the scheduler, embeddings" ;;
        nvcc) echo "the CUDA backend as a module, compiled by nvcc (on a machine with a GPU: tools/check_cuda.sh)" ;;
        torch) echo "PyTorch as a device, packed weights and programs in PyTorch (tools/check_torch.sh)" ;;
        models) echo "whole models beside transformers, real speech (tools/check_models.sh)" ;;
        clusters) echo "clusters: random graphs over a simulated network, and all that runs over MPI, over MPICH" ;;
        writers) echo "GGUF files of other programs, which are installed in build/gguf-writers" ;;
        fuzz) echo "GGUF files from a fuzzer" ;;
        flags) echo "CFLAGS that change arithmetic: every flag, every source, every kernel level" ;;
        additions) echo "made-up operators, a format and a kernel level, added to a copy of the tree" ;;
        sched-random) echo "random graphs over simulated devices" ;;
        python-devices) echo "random graphs over devices written in Python" ;;
        check-device) echo "check-device: simulated devices and every kernel level, with other inputs each time" ;;
        plans) echo "memory plans: slow instances and thousands of small ones" ;;
        attacks) echo "attacks: interrupts, closing, empty tensors, forks, threads, clusters" ;;
        found) echo "what attacks once found, several times as long" ;;
        pytest-asan) echo "pytest under the address sanitizer" ;;
        attacks-asan) echo "attacks under the address sanitizer" ;;
        pytest-tsan) echo "threads in Python under the thread sanitizer" ;;
        attacks-tsan) echo "attacks under the thread sanitizer" ;;
        site) echo "the documentation site: warnings are errors" ;;
        install) echo "pip install into an empty environment, and the README's first example" ;;
        editable) echo "an editable install: the headers are found, and a module compiles against them" ;;
        exchange) echo "arrays of PyTorch and JAX, in build/torch-venv" ;;
        safetensors) echo "safetensors files that seven other programs write, installed in build/writers" ;;
        *) return 1 ;;
    esac
}

cd "$(dirname "$0")/.."
py=$PWD/build/venv/bin/python

# ---- all steps, one after another ------------------------------------------------------------------------------------

if [ "${1:-}" != --one ]; then
    jobs=${1:-2}
    [ $# -eq 0 ] || shift
    [ $# -eq 0 ] || steps=$*
    for name in $steps; do
        what "$name" >/dev/null || { echo "check_long.sh: no step is called $name" >&2; exit 2; }
    done
    mkdir -p build/long
    failed=
    for name in $steps; do
        log=build/long/$name.log
        # shellcheck disable=SC2016
        if ! "$py" tools/step.py "$name: $(what "$name")" \
            sh -c 'sh "$0" --one "$1" "$2" >"$3" 2>&1' tools/check_long.sh "$name" "$jobs" "$log"; then
            failed="$failed $name"
            tail -n 40 "$log"
        fi
        grep -h '^skipped: ' "$log" || true
    done
    [ -z "$failed" ] || { echo "failed:$failed (build/long/STEP.log)"; exit 1; }
    echo "all passed"
    exit
fi

# ---- one step; the first command that fails ends it ------------------------------------------------------------------

name=$2
jobs=$3
long=${HARNESS_SECONDS:-60} # seconds of each of the three main attacks
short=$((long / 3)) # and of each other one

part() { printf '\n== %s (%s)\n' "$*" "$(date +%H:%M)"; }

# build FOLDER OPTIONS...: compiles in build/FOLDER; shows the end of what was said when that fails
build() {
    folder=build/$1
    shift
    cmake --build "$folder" -j "$jobs" "$@" >"$folder.log" 2>&1 || { tail -n 50 "$folder.log"; exit 1; }
}

# missing TEXT: ends the step, because something is not installed
missing() { echo "skipped: $*"; exit 0; }

levels() { # the kernel levels that this processor has
    "$py" -c 'from ggml_backend.backend import cpu_levels
print(*(name for name, can in cpu_levels().items() if can))'
}

# attack SECONDS HARNESS FLAGS...: what it tried is its last line but one. It runs under `under` if that is set.
under=$py
attack() {
    seconds=$1 harness=$2
    shift 2
    part "$harness $* for $seconds s"
    $under "tests/python/harness/$harness" --seconds "$seconds" --seed "$(date +%s)" --deaths 5 "$@"
}

address_sanitizer="-fsanitize=address,undefined -fno-omit-frame-pointer"
strict_sanitizer="$address_sanitizer -fno-sanitize-recover=undefined"

# package_with FLAGS FOLDER: the package, compiled with a sanitizer
package_with() {
    [ ! -d "$2" ] || rm -rf "$2"
    "$py" -m pip --disable-pip-version-check -q install --no-deps --target "$2" . \
        --config-settings="cmake.define.CMAKE_C_FLAGS=$1" \
        --config-settings=cmake.build-type=RelWithDebInfo --config-settings=install.strip=false
}

under_asan() { # runs Python with the package in build/asan-site
    LD_PRELOAD="$(gcc -print-file-name=libasan.so) $(gcc -print-file-name=libubsan.so)" \
        ASAN_OPTIONS="detect_leaks=0:allocator_may_return_null=1:quarantine_size_mb=$quarantine" \
        PYTHONMALLOC=malloc PYTHONPATH=$PWD/build/asan-site "$py" "$@"
}

under_tsan() { # with that in build/tsan-site, and without randomized addresses, with which the sanitizer's may clash
    LD_PRELOAD="$(gcc -print-file-name=libtsan.so)" \
        TSAN_OPTIONS="exitcode=66:history_size=4:allocator_may_return_null=1:suppressions=$PWD/$suppressions" \
        PYTHONPATH=$PWD/build/tsan-site setarch -R "$py" "$@"
}
suppressions=tests/python/harness/tsan.supp

# emulated PROCESSOR: cross-compiles the library and its tests, and runs those about memory, operators and kernels under
# qemu-user
emulated() {
    triple=$1-linux-gnu
    if ! command -v "$triple-gcc" >/dev/null || ! command -v "qemu-$1-static" >/dev/null; then
        missing "$triple-gcc and qemu-$1-static are not installed (Debian: gcc-$triple qemu-user-static)"
    fi
    cxx=$(command -v "$triple-g++" || true)
    cmake -S . -B "build/$1" -DCMAKE_BUILD_TYPE=RelWithDebInfo -DGGML_BACKEND_TESTS=ON \
        -DCMAKE_SYSTEM_NAME=Linux -DCMAKE_SYSTEM_PROCESSOR="$1" \
        -DCMAKE_C_COMPILER="$triple-gcc" ${cxx:+"-DCMAKE_CXX_COMPILER=$cxx"} \
        -DCMAKE_CROSSCOMPILING_EMULATOR="qemu-$1-static;-L;/usr/$triple" >/dev/null
    build "$1"
    tests='kernels|cpu|mul_mat|base|tensor|graph|types|context|gguf|plan|gallocr|compat_(graph|layout|alloc)'
    (cd "build/$1" && ctest --output-on-failure -j "$jobs" -R "test_($tests)")
}

# module_of_cuda: builds the emulated CUDA module; its path is in `module`
module_of_cuda() {
    cmake -S . -B build/cuda-emulated-module -DCMAKE_BUILD_TYPE=Release -DGGML_BACKEND_TESTS=ON \
        -DGGML_CUDA_EMULATION=ON >/dev/null
    build cuda-emulated-module --target ggml_backend_cuda_emulated_module "$@"
    module=$PWD/build/cuda-emulated-module/tests/cuda/libggml_backend_cuda_emulated_module.so
}

case $name in
    space)
        parts="build/dev build/venv build/wheel build/consumer build/cache build/pytest"
        # shellcheck disable=SC2086
        used=$(du -scm $parts 2>/dev/null | tail -n 1 | cut -f 1)
        echo "$used MB"
        if [ "$used" -gt 1536 ] && ! grep -q 'RELWITHDEBINFO:.*-g' build/dev/CMakeCache.txt; then
            echo "make test needs more than 1.5 GB: du -m build shows where"
            exit 1
        fi
        for wheel in build/wheel/*.whl; do
            size=$(wc -c <"$wheel")
            echo "$wheel: $size bytes"
            [ "$size" -le 4000000 ] || exit 1
        done
        ;;
    asan | damage)
        cmake -S . -B build/asan -DCMAKE_BUILD_TYPE=RelWithDebInfo -DGGML_BACKEND_TESTS=ON \
            -DCMAKE_C_FLAGS="$strict_sanitizer" >/dev/null
        if [ "$name" = asan ]; then
            build asan
            (cd build/asan && ctest --output-on-failure -j "$jobs")
        else
            build asan --target test_damaged
            GGML_TEST_DAMAGE_ALL=1 GGML_TEST_DAMAGE=20000 build/asan/tests/c/test_damaged
            GGML_TEST_DAMAGE=2000 "$py" -m pytest -q tests/python/models/test_saved_programs.py -k many_damaged_models
        fi
        ;;
    tsan)
        cmake -S . -B build/tsan -DCMAKE_BUILD_TYPE=RelWithDebInfo -DGGML_BACKEND_TESTS=ON \
            -DCMAKE_C_FLAGS="-fsanitize=thread -fno-omit-frame-pointer" >/dev/null
        build tsan
        (cd build/tsan && ctest --output-on-failure -R 'threadpool|compute|cpu_backend|sim|sched|registry|base|profile')
        ;;
    levels)
        for level in $(levels); do
            part "GGML_CPU_LEVEL=$level"
            (cd build/dev && GGML_CPU_LEVEL=$level ctest --output-on-failure -j "$jobs" \
                -R 'test_(cpu|mul_mat|compute|compat)')
        done
        ;;
    nehalem)
        command -v qemu-x86_64-static >/dev/null && [ "$(uname -m)" = x86_64 ] ||
            missing "qemu-x86_64-static is not installed (Debian: qemu-user-static), or this is no x86-64 machine"
        for test in test_kernels test_cpu_unary test_cpu_binary test_cpu_norm test_sched; do
            qemu-x86_64-static -cpu Nehalem build/dev/tests/c/$test
        done
        ;;
    aarch64 | riscv64)
        emulated "$name"
        ;;
    windows)
        command -v x86_64-w64-mingw32-gcc >/dev/null ||
            missing "x86_64-w64-mingw32-gcc is not installed (Debian: gcc-mingw-w64-x86-64)"
        programs="test_base test_tensor test_types test_mul_mat test_plan test_liveness test_gguf"
        programs="$programs test_compat_graph test_compat_layout"
        cxx=$(command -v x86_64-w64-mingw32-g++ || true)
        cmake -S . -B build/windows -DCMAKE_BUILD_TYPE=RelWithDebInfo -DGGML_BACKEND_TESTS=ON \
            -DCMAKE_SYSTEM_NAME=Windows -DCMAKE_SYSTEM_PROCESSOR=AMD64 \
            -DCMAKE_C_COMPILER=x86_64-w64-mingw32-gcc ${cxx:+"-DCMAKE_CXX_COMPILER=$cxx"} >/dev/null
        # shellcheck disable=SC2086
        build windows --target ggml_backend ggml_backend_exports $programs
        command -v wine >/dev/null || missing "wine is not installed (Debian: wine64); compiled and linked"
        for program in $programs; do
            part "$program"
            WINEDEBUG=-all WINEPREFIX=$PWD/build/wine wine build/windows/tests/c/"$program".exe
        done
        ;;
    cuda-asan)
        cmake -S . -B build/cuda-emulation -DCMAKE_BUILD_TYPE=Debug -DGGML_BACKEND_TESTS=ON -DGGML_CUDA_EMULATION=ON \
            -DCMAKE_C_FLAGS="$strict_sanitizer" >/dev/null
        build cuda-emulation --target cuda_emulation_tests
        for seed in 1 2 3; do
            (cd build/cuda-emulation && GB_EMU_SEED=$seed ctest --output-on-failure -j "$jobs" -L emulation)
        done
        ;;
    cuda-models)
        module_of_cuda test_cuda_models test_cuda_product_pairs
        for capability in 9.0 8.0 7.5; do
            part "compute capability $capability"
            GB_EMU_CAPABILITY=$capability GGML_TEST_LONG=1 build/cuda-emulated-module/tests/cuda/test_cuda_models
            GB_EMU_CAPABILITY=$capability GGML_TEST_PRODUCTS=3000 \
                build/cuda-emulated-module/tests/cuda/test_cuda_product_pairs
        done
        ;;
    cuda-python)
        module_of_cuda
        export GGML_CUDA_MODULE="$module"
        "$py" -m pytest -q -n "$jobs" -p no:cacheprovider tests/python/backends/test_cuda.py \
            tests/python/sched/test_sched.py tests/python/ops/test_ops_*.py
        "$py" -m ggml_backend check-device CUDA0 --special-values
        attack "$short" harness_zeros.py
        # More than 32 rows, from where devices of 9.0 have kernels of their own.
        embed() { # DEVICES TYPE CAPABILITY FILE
            GB_EMU_CAPABILITY=$3 "$py" -m examples.embed --devices "$1" --type "$2" --out "build/$4" \
                "A cat sat." "Tensors on devices" "A sentence that is long enough to make a batch of rows"
        }
        for type in f32 q8_0; do
            embed CPU $type 9.0 embed-cpu-$type.npy >/dev/null
            for capability in 9.0 8.0 7.5; do
                embed CUDA0 $type $capability embed-cuda-$type.npy
                "$py" tools/compare_embeddings.py build/embed-cpu-$type.npy build/embed-cuda-$type.npy
            done
            embed CUDA0,CPU $type 9.0 embed-cuda-$type.npy
            "$py" tools/compare_embeddings.py build/embed-cpu-$type.npy build/embed-cuda-$type.npy
        done
        ;;
    nvcc)
        command -v nvcc >/dev/null || missing "nvcc is not installed"
        cmake -S . -B build/cuda-module -DCMAKE_BUILD_TYPE=Release -DGGML_BACKEND_TESTS=ON -DGGML_CUDA=ON \
            -DCMAKE_CUDA_ARCHITECTURES=90 >/dev/null
        build cuda-module --target ggml_backend_cuda cuda_device_tests
        (cd build/cuda-module && ctest --output-on-failure -R '^test_cuda_')
        ;;
    torch | models)
        sh "tools/check_$name.sh"
        ;;
    clusters)
        GGML_TEST_GRAPHS=1000 "$py" -m pytest -q tests/python/cluster/test_cluster.py
        GGML_TEST_DEATHS=12 "$py" -m pytest -q tests/python/cluster/test_cluster_mpi.py -k dies
        GGML_TEST_LARGE=1 "$py" -m pytest -q tests/python/cluster/test_cluster_mpi.py -k more_bytes_than
        [ -x build/mpich-venv/bin/python ] || python3 -m venv build/mpich-venv
        build/mpich-venv/bin/python -m pip --disable-pip-version-check -q install \
            "$(ls "$PWD"/build/wheel/*.whl)[mpi]" mpich pytest pytest-timeout gguf
        build/mpich-venv/bin/python -m pytest -q tests/python/cluster/test_cluster_mpi.py
        ;;
    writers)
        GGML_TEST_WRITERS=build/gguf-writers "$py" -m pytest -q -rs tests/python/files/test_gguf_writers.py
        ;;
    fuzz)
        mkdir -p build/fuzz/corpus
        echo 'int LLVMFuzzerTestOneInput(const unsigned char * p, unsigned long n) { return p == 0 && n != 0; }' \
            >build/fuzz/probe.c
        # shellcheck disable=SC2086
        clang $strict_sanitizer -fsanitize=fuzzer build/fuzz/probe.c -o build/fuzz/probe 2>/dev/null ||
            missing "clang with libFuzzer is not installed (Debian: clang and libclang-rt-*-dev)"
        cmake -S . -B build/fuzz -DCMAKE_C_COMPILER=clang -DCMAKE_BUILD_TYPE=Debug -DGGML_BACKEND_TESTS=OFF \
            -DCMAKE_C_FLAGS="$strict_sanitizer -fsanitize=fuzzer-no-link" >/dev/null
        build fuzz --target ggml_backend
        # shellcheck disable=SC2086
        clang -g -O1 $strict_sanitizer -fsanitize=fuzzer -Ic/include tests/fuzz/fuzz_gguf.c \
            build/fuzz/c/libggml_backend.a -lm -lpthread -o build/fuzz/fuzz_gguf
        build/fuzz/fuzz_gguf -max_total_time="${GGUF_FUZZ_SECONDS:-120}" -rss_limit_mb=512 -max_len=8192 \
            -artifact_prefix=build/fuzz/ build/fuzz/corpus tests/fuzz/corpus_gguf
        ;;
    flags)
        "$py" tools/check_flags.py --all --jobs "$jobs"
        ;;
    additions)
        "$py" tools/try_additions.py
        ;;
    sched-random)
        GGML_TEST_RANDOM_GRAPHS=5000 build/dev/tests/c/test_sched_random
        ;;
    python-devices)
        GGML_TEST_GRAPHS=5000 "$py" -m pytest -q tests/python/devices/test_python_device_graphs.py
        ;;
    check-device)
        seed=$(date +%s)
        "$py" -m ggml_backend check-device SIM --special-values --seed "$seed"
        "$py" -m ggml_backend check-device SIM:max=1M,align=256 --bit-identical --seed "$seed"
        for level in $(levels); do
            "$py" -m ggml_backend check-device CPU --level "$level" --threads 3 --special-values --seed "$seed"
        done
        ;;
    plans)
        GGML_TEST_LONG=1 build/dev/tests/c/test_plan_exact
        ;;
    attacks)
        attack "$long" harness_interrupts.py
        attack "$long" harness_closing.py
        attack "$long" harness_zeros.py
        attack "$short" harness_interrupts.py --no-memory
        attack "$short" harness_interrupts.py --latency
        attack "$short" harness_interleave.py --mode interrupts --complete --instructions
        attack "$short" harness_interleave.py --mode handlers
        attack "$short" harness_interleave.py --mode threads
        attack "$short" harness_closing.py --pairs
        attack "$short" harness_fork.py
        attack "$short" harness_messages.py
        for mode in interrupts timer handlers threads fork; do
            attack "$short" harness_clusters.py --mode $mode
        done
        ;;
    found)
        GB_HARNESS_SECONDS=$long "$py" -m pytest -q -p no:cacheprovider -o timeout=3000 \
            tests/python/lifetimes/test_closing.py tests/python/lifetimes/test_interrupts.py \
            tests/python/lifetimes/test_failed_allocations.py tests/python/lifetimes/test_forks.py \
            tests/python/tensors/test_content.py
        ;;
    pytest-asan)
        package_with "$address_sanitizer" build/asan-site
        quarantine=256
        under_asan -m pytest -q -s -p no:faulthandler -p no:cacheprovider tests/python -k 'not clean_install'
        ;;
    attacks-asan)
        [ -d build/asan-site ] || package_with "$address_sanitizer" build/asan-site
        quarantine=16
        under=under_asan
        # (No forks: the sanitizer of gcc 12 holds its own locks in a child of several threads, which then hangs.)
        attack "$short" harness_closing.py
        attack "$short" harness_closing.py --pairs
        attack "$short" harness_zeros.py
        attack "$short" harness_interrupts.py
        attack "$short" harness_interleave.py --mode threads
        ;;
    pytest-tsan)
        package_with "-fsanitize=thread -fno-omit-frame-pointer" build/tsan-site
        for file in lifetimes/test_threads sched/test_sched_runs ops/test_callbacks tensors/test_buffers; do
            under_tsan -m pytest -q -s -p no:faulthandler -p no:cacheprovider "tests/python/$file.py"
        done
        ;;
    attacks-tsan)
        [ -d build/tsan-site ] || package_with "-fsanitize=thread -fno-omit-frame-pointer" build/tsan-site
        under=under_tsan
        attack "$short" harness_closing.py --only threads
        attack "$short" harness_closing.py --only callbacks
        attack "$short" harness_closing.py --pairs
        attack "$short" harness_interleave.py --mode threads
        ;;
    site)
        make docs
        ;;
    install)
        rm -rf build/empty
        "$py" -m venv build/empty
        build/empty/bin/python -m pip --disable-pip-version-check -q install .
        "$py" tools/readme_snippet.py >build/readme_snippet.py
        (cd build && ./empty/bin/python readme_snippet.py && ./empty/bin/python -m ggml_backend info)
        ;;
    editable)
        rm -rf build/editable-venv
        "$py" -m venv build/editable-venv
        build/editable-venv/bin/python -m pip --disable-pip-version-check -q install -e . \
            --config-settings=build-dir=build/editable
        include=$(cd build && ./editable-venv/bin/python -c \
            'import ggml_backend; print(ggml_backend.backend.get_include())')
        test -e "$include/ggml.h"
        cc -shared -fPIC -fvisibility=hidden -DGGML_BACKEND_MODULE_BUILD -I"$include" examples/backend/mini.c \
            "$include/ggml-backend-module.c" -o build/editable-mini.so
        ;;
    exchange)
        env=build/torch-venv/bin/python
        [ -x $env ] || "$py" -m venv build/torch-venv
        # (The version of PyTorch is one that comes for the CPU alone.)
        $env -m pip --disable-pip-version-check -q install "torch==2.13.0" jax pytest pytest-timeout hypothesis ||
            missing "PyTorch and JAX cannot be installed here"
        for wheel in build/wheel/*.whl; do
            $env -m pip --disable-pip-version-check -q install --force-reinstall --no-deps "$wheel"
            $env -m pip --disable-pip-version-check -q install "$wheel"
        done
        $env -m pytest -q -rs -p no:cacheprovider tests/python/tensors/test_exchange*.py
        ;;
    safetensors)
        "$py" tools/check_safetensors.py
        ;;
esac
