#!/bin/sh
# make check-long: what takes too long for every change. Run it before a release and before calling a large change done.
#   - the disk space that make test needs
#   - ctest under the address and undefined-behaviour sanitizers
#   - the threaded parts under the thread sanitizer
#   - thousands of random graphs over simulated devices, and over devices written in Python
#   - all that check-device tries, of simulated devices, of every kernel level and of emulated CUDA devices
#   - the code of every source compiled with CFLAGS such as -ffast-math, compared with that of the normal build
#   - made-up operators, a format and a kernel level, added to a copy of the tree
#   - attacks: interrupts, closing and empty tensors for ten minutes each, their variants and what runs under sanitizers
#     for two
#   - pytest under the address sanitizer
#   - every kernel level forced in turn, and what qemu-user and wine can emulate: an old x86-64, aarch64, riscv64,
#     Windows
#   - the CUDA backend in its emulation, models in every format on three kinds of
#     devices, and compiled by nvcc where that is installed (on a machine with a GPU:
#     tools/check_cuda.sh)
#   - arrays that come from and go to PyTorch and JAX, which it installs in build/torch-venv
#   - PyTorch (on the processor) as a device
#   - clusters over MPICH, in build/mpich-venv, and hundreds of random graphs over a simulated network
#   - GGUF files of other programs: those that it can install, in build/gguf-writers
#   - the documentation site
#   - safetensors files that seven other programs write, installed in build/writers
#   - pages of memory plans in a headless Chromium, light and dark
#   - pip install into an empty virtual environment, and the README's first example there; an editable install
set -eu
jobs=${1:-2}
cd "$(dirname "$0")/.."
py=$PWD/build/venv/bin/python
step() { printf '\n== %s (%s)\n' "$*" "$(date +%H:%M)"; }
# build FOLDER OPTIONS...: compiles in build/FOLDER; shows the end of what was said when that fails
build() {
    folder=build/$1
    shift
    cmake --build "$folder" -j "$jobs" "$@" >"$folder.log" 2>&1 || { tail -n 50 "$folder.log"; exit 1; }
}

# How long one attack lasts: the three main ones, and all others.
long=${HARNESS_SECONDS:-600}
short=$((long / 5))

step "disk space of make test: at most 1.5 GB"
parts="build/dev build/venv build/wheel build/consumer build/cache build/pytest"
# shellcheck disable=SC2086
used=$(du -scm $parts 2>/dev/null | tail -n 1 | cut -f 1)
echo "$used MB"
if [ "$used" -gt 1536 ] && ! grep -q 'RELWITHDEBINFO:.*-g' build/dev/CMakeCache.txt; then
    echo "make test needs more than 1.5 GB: du -m build shows where"
    exit 1
fi

step "the wheel: at most 4 MB"
for wheel in build/wheel/*.whl; do
    size=$(wc -c <"$wheel")
    echo "$wheel: $size bytes"
    [ "$size" -le 4000000 ] || exit 1
done

step "ctest, address and undefined-behaviour sanitizers"
cmake -S . -B build/asan -DCMAKE_BUILD_TYPE=RelWithDebInfo -DGGML_BACKEND_TESTS=ON \
    -DCMAKE_C_FLAGS="-fsanitize=address,undefined -fno-sanitize-recover=undefined -fno-omit-frame-pointer" >/dev/null
build asan
(cd build/asan && ctest --output-on-failure -j "$jobs")

step "tensors whose fields were overwritten: every damage of every operator, and random pairs"
GGML_TEST_DAMAGE_ALL=1 GGML_TEST_DAMAGE=20000 build/asan/tests/c/test_damaged

step "ctest, thread sanitizer: pool, engine, simulated device, scheduler"
cmake -S . -B build/tsan -DCMAKE_BUILD_TYPE=RelWithDebInfo -DGGML_BACKEND_TESTS=ON \
    -DCMAKE_C_FLAGS="-fsanitize=thread -fno-omit-frame-pointer" >/dev/null
build tsan
(cd build/tsan && ctest --output-on-failure -R 'threadpool|compute|cpu_backend|sim|sched|registry|base|profile')

step "ctest at every kernel level that this processor has"
usable='from ggml_backend.backend import cpu_levels; print(*(name for name, can in cpu_levels().items() if can))'
for level in $("$py" -c "$usable"); do
    echo "-- GGML_CPU_LEVEL=$level"
    (cd build/dev && GGML_CPU_LEVEL=$level ctest --output-on-failure -j "$jobs" -R 'test_(cpu|mul_mat|compute|compat)')
done

step "an x86-64 processor of 2008, emulated"
if command -v qemu-x86_64-static >/dev/null && [ "$(uname -m)" = x86_64 ]; then
    for test in test_kernels test_cpu_unary test_cpu_binary test_cpu_norm test_sched; do
        qemu-x86_64-static -cpu Nehalem build/dev/tests/c/$test
    done
else
    echo "skipped: qemu-x86_64-static is not installed (Debian: qemu-user-static), or this is no x86-64 machine"
fi

# emulated PROCESSOR: cross-compiles the library and its tests, and runs those about memory, operators and kernels under
# qemu-user
emulated() {
    step "$1, cross-compiled and emulated"
    triple=$1-linux-gnu
    if ! command -v "$triple-gcc" >/dev/null || ! command -v "qemu-$1-static" >/dev/null; then
        echo "skipped: $triple-gcc and qemu-$1-static are not installed (Debian: gcc-$triple qemu-user-static)"
        return
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
emulated aarch64
emulated riscv64

step "Windows, cross-compiled"
if command -v x86_64-w64-mingw32-gcc >/dev/null; then
    programs="test_base test_tensor test_types test_mul_mat test_plan test_liveness test_gguf"
    programs="$programs test_compat_graph test_compat_layout"
    cxx=$(command -v x86_64-w64-mingw32-g++ || true)
    cmake -S . -B build/windows -DCMAKE_BUILD_TYPE=RelWithDebInfo -DGGML_BACKEND_TESTS=ON \
        -DCMAKE_SYSTEM_NAME=Windows -DCMAKE_SYSTEM_PROCESSOR=AMD64 \
        -DCMAKE_C_COMPILER=x86_64-w64-mingw32-gcc ${cxx:+"-DCMAKE_CXX_COMPILER=$cxx"} >/dev/null
    # shellcheck disable=SC2086
    build windows --target ggml_backend ggml_backend_exports $programs
    if command -v wine >/dev/null; then
        for program in $programs; do
            echo "-- $program"
            WINEDEBUG=-all WINEPREFIX=$PWD/build/wine wine build/windows/tests/c/$program.exe
        done
    else
        echo "compiled and linked; not run: wine is not installed (Debian: wine64)"
    fi
else
    echo "skipped: x86_64-w64-mingw32-gcc is not installed (Debian: gcc-mingw-w64-x86-64)"
fi

step "the CUDA backend, emulated, address and undefined-behaviour sanitizers"
cmake -S . -B build/cuda-emulation -DCMAKE_BUILD_TYPE=Debug -DGGML_BACKEND_TESTS=ON -DGGML_CUDA_EMULATION=ON \
    -DCMAKE_C_FLAGS="-fsanitize=address,undefined -fno-sanitize-recover=undefined -fno-omit-frame-pointer" >/dev/null
build cuda-emulation --target cuda_emulation_tests
for seed in 1 2 3; do
    (cd build/cuda-emulation && GB_EMU_SEED=$seed ctest --output-on-failure -j "$jobs" -L emulation)
done

step "the CUDA backend, emulated as 9.0, 8.0 and 7.5: models in every format, random products"
cmake -S . -B build/cuda-emulated-module -DCMAKE_BUILD_TYPE=Release -DGGML_BACKEND_TESTS=ON \
    -DGGML_CUDA_EMULATION=ON >/dev/null
build cuda-emulated-module --target ggml_backend_cuda_emulated_module test_cuda_models test_cuda_product_pairs
for capability in 9.0 8.0 7.5; do
    echo "-- compute capability $capability"
    GB_EMU_CAPABILITY=$capability GGML_TEST_LONG=1 build/cuda-emulated-module/tests/cuda/test_cuda_models
    GB_EMU_CAPABILITY=$capability GGML_TEST_PRODUCTS=3000 \
        build/cuda-emulated-module/tests/cuda/test_cuda_product_pairs
done

step "the package with emulated CUDA devices: operators against NumPy, the scheduler, the embedding demo"
emulated=$PWD/build/cuda-emulated-module/tests/cuda/libggml_backend_cuda_emulated_module.so
GGML_CUDA_MODULE=$emulated "$py" -m pytest -q -p no:cacheprovider tests/python/backends/test_cuda.py \
    tests/python/sched/test_sched.py tests/python/ops/test_ops_*.py
GGML_CUDA_MODULE=$emulated "$py" -m ggml_backend check-device CUDA0 --special-values
GGML_CUDA_MODULE=$emulated "$py" tests/python/harness/harness_zeros.py \
    --seconds "$short" --seed "$(date +%s)" --deaths 5
# More than 32 rows, from where devices of 9.0 have kernels of their own.
embed() { # DEVICES TYPE CAPABILITY FILE
    GB_EMU_CAPABILITY=$3 GGML_CUDA_MODULE=$emulated "$py" -m examples.embed --devices "$1" --type "$2" \
        --out "build/$4" "A cat sat." "Tensors on devices" "A sentence that is long enough to make a batch of rows"
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

step "the CUDA backend as a module, one architecture"
if command -v nvcc >/dev/null; then
    cmake -S . -B build/cuda-module -DCMAKE_BUILD_TYPE=Release -DGGML_BACKEND_TESTS=ON -DGGML_CUDA=ON \
        -DCMAKE_CUDA_ARCHITECTURES=90 >/dev/null
    build cuda-module --target ggml_backend_cuda cuda_device_tests
    (cd build/cuda-module && ctest --output-on-failure -R '^test_cuda_')
else
    echo "skipped: nvcc is not installed"
fi

step "PyTorch: the device ARRAY"
sh tools/check_torch.sh

step "whole models beside transformers, real speech"
sh tools/check_models.sh

step "clusters: random graphs over a simulated network, and all that runs over MPI, over MPICH"
GGML_TEST_GRAPHS=1000 "$py" -m pytest -q tests/python/cluster/test_cluster.py
GGML_TEST_DEATHS=12 "$py" -m pytest -q tests/python/cluster/test_cluster_mpi.py -k dies
GGML_TEST_LARGE=1 "$py" -m pytest -q tests/python/cluster/test_cluster_mpi.py -k more_bytes_than
[ -x build/mpich-venv/bin/python ] || python3 -m venv build/mpich-venv
build/mpich-venv/bin/python -m pip --disable-pip-version-check -q install "$(ls "$PWD"/build/wheel/*.whl)[mpi]" mpich \
    pytest pytest-timeout gguf
build/mpich-venv/bin/python -m pytest -q tests/python/cluster/test_cluster_mpi.py

step "GGUF files of other programs, which are installed in build/gguf-writers"
GGML_TEST_WRITERS=build/gguf-writers "$py" -m pytest -q -rs tests/python/files/test_gguf_writers.py

step "GGUF files from a fuzzer, 10 minutes"
fuzz="-fsanitize=address,undefined -fno-sanitize-recover=undefined -fno-omit-frame-pointer"
mkdir -p build
echo 'int LLVMFuzzerTestOneInput(const unsigned char * p, unsigned long n) { return p == 0 && n != 0; }' >build/fuzzer.c
# shellcheck disable=SC2086
if clang $fuzz -fsanitize=fuzzer build/fuzzer.c -o build/fuzzer 2>/dev/null; then
    cmake -S . -B build/fuzz -DCMAKE_C_COMPILER=clang -DCMAKE_BUILD_TYPE=Debug -DGGML_BACKEND_TESTS=OFF \
        -DCMAKE_C_FLAGS="$fuzz -fsanitize=fuzzer-no-link" >/dev/null
    build fuzz --target ggml_backend
    # shellcheck disable=SC2086
    clang -g -O1 $fuzz -fsanitize=fuzzer -Ic/include tests/fuzz/fuzz_gguf.c build/fuzz/c/libggml_backend.a \
        -lm -lpthread -o build/fuzz/fuzz_gguf
    mkdir -p build/fuzz/corpus
    build/fuzz/fuzz_gguf -max_total_time="${GGUF_FUZZ_SECONDS:-600}" -rss_limit_mb=512 -max_len=8192 \
        -artifact_prefix=build/fuzz/ build/fuzz/corpus tests/fuzz/corpus_gguf >build/fuzz.log 2>&1 ||
        { tail -n 50 build/fuzz.log; exit 1; }
else
    echo "skipped: clang with libFuzzer is not installed (Debian: clang and libclang-rt-*-dev)"
fi

step "CFLAGS that change arithmetic: every flag, every source, every kernel level"
"$py" tools/check_flags.py --all --jobs "$jobs"

step "made-up operators, a format and a kernel level, added to a copy of the tree"
"$py" tools/try_additions.py

step "random graphs over simulated devices"
GGML_TEST_RANDOM_GRAPHS=5000 build/dev/tests/c/test_sched_random

step "random graphs over devices written in Python"
GGML_TEST_GRAPHS=5000 "$py" -m pytest -q tests/python/devices/test_python_device_graphs.py

step "check-device: simulated devices and every kernel level, with other inputs each time"
seed=$(date +%s)
"$py" -m ggml_backend check-device SIM --special-values --seed "$seed"
"$py" -m ggml_backend check-device SIM:max=1M,align=256 --bit-identical --seed "$seed"
for level in $("$py" -c "$usable"); do
    "$py" -m ggml_backend check-device CPU --level "$level" --threads 3 --special-values --seed "$seed"
done

step "memory plans: slow instances and thousands of small ones"
GGML_TEST_LONG=1 build/dev/tests/c/test_plan_exact

# attack SECONDS HARNESS FLAGS...: what it tried is its last line but one
attack() {
    step "attack for $1 s: $(shift; echo "$@")"
    "$py" "tests/python/harness/$2" --seconds "$1" --seed "$(date +%s)" --deaths 5 $(shift 2; echo "$@")
}
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

step "what attacks once found, ten times as long"
GB_HARNESS_SECONDS=80 "$py" -m pytest -q -p no:cacheprovider -o timeout=3000 \
    tests/python/lifetimes/test_closing.py tests/python/lifetimes/test_interrupts.py \
    tests/python/lifetimes/test_failed_allocations.py tests/python/lifetimes/test_forks.py \
    tests/python/tensors/test_content.py

step "pytest, address sanitizer"
rm -rf build/asan-site
"$py" -m pip --disable-pip-version-check -q install --no-deps --target build/asan-site . \
    --config-settings="cmake.define.CMAKE_C_FLAGS=-fsanitize=address,undefined -fno-omit-frame-pointer" \
    --config-settings=cmake.build-type=RelWithDebInfo --config-settings=install.strip=false
quarantine=256
under_asan() { # runs Python with the package that was just built
    LD_PRELOAD="$(gcc -print-file-name=libasan.so) $(gcc -print-file-name=libubsan.so)" \
        ASAN_OPTIONS=detect_leaks=0:allocator_may_return_null=1:quarantine_size_mb=$quarantine \
        PYTHONMALLOC=malloc PYTHONPATH=$PWD/build/asan-site "$py" "$@"
}
under_asan -m pytest -q -s -p no:faulthandler -p no:cacheprovider tests/python -k 'not clean_install'
quarantine=16
# (No forks: the sanitizer of gcc 12 holds its own locks in a child of several threads, which then hangs.)
for attack in "harness_closing.py" "harness_closing.py --pairs" "harness_zeros.py" "harness_interrupts.py" \
    "harness_interleave.py --mode threads"; do
    step "address sanitizer, attack for $short s: $attack"
    # shellcheck disable=SC2086
    under_asan tests/python/harness/$attack --seconds "$short" --seed "$(date +%s)" --deaths 5
done

step "threads in Python, thread sanitizer"
rm -rf build/tsan-site
"$py" -m pip --disable-pip-version-check -q install --no-deps --target build/tsan-site . \
    --config-settings="cmake.define.CMAKE_C_FLAGS=-fsanitize=thread -fno-omit-frame-pointer" \
    --config-settings=cmake.build-type=RelWithDebInfo --config-settings=install.strip=false
under_tsan() { # without randomized addresses, with which the sanitizer's memory may clash
    options=exitcode=66:history_size=4:allocator_may_return_null=1
    LD_PRELOAD="$(gcc -print-file-name=libtsan.so)" \
        TSAN_OPTIONS="$options:suppressions=$PWD/tests/python/harness/tsan.supp" \
        PYTHONPATH=$PWD/build/tsan-site setarch -R "$py" "$@"
}
for part in lifetimes/test_threads sched/test_sched_runs ops/test_callbacks tensors/test_buffers; do
    under_tsan -m pytest -q -s -p no:faulthandler -p no:cacheprovider "tests/python/$part.py"
done
for attack in "harness_closing.py --only threads" "harness_closing.py --only callbacks" "harness_closing.py --pairs" \
    "harness_interleave.py --mode threads"; do
    step "thread sanitizer, attack for $short s: $attack"
    # shellcheck disable=SC2086
    under_tsan tests/python/harness/$attack --seconds "$short" --seed "$(date +%s)" --deaths 5
done

step "the documentation site: warnings are errors"
make docs

step "pip install into an empty environment, and the README's first example"
rm -rf build/empty
"$py" -m venv build/empty
build/empty/bin/python -m pip --disable-pip-version-check -q install .
"$py" tools/readme_snippet.py >build/readme_snippet.py
(cd build && ./empty/bin/python readme_snippet.py && ./empty/bin/python -m ggml_backend info)

step "an editable install: the headers are found, and a module compiles against them"
rm -rf build/editable-venv
"$py" -m venv build/editable-venv
build/editable-venv/bin/python -m pip --disable-pip-version-check -q install -e . \
    --config-settings=build-dir=build/editable
include=$(cd build && ./editable-venv/bin/python -c 'import ggml_backend; print(ggml_backend.backend.get_include())')
test -e "$include/ggml.h"
cc -shared -fPIC -fvisibility=hidden -DGGML_BACKEND_MODULE_BUILD -I"$include" examples/backend/mini.c \
    "$include/ggml-backend-module.c" -o build/editable-mini.so

# torch_environment: build/torch-venv with PyTorch, JAX and the package, for the steps that need them; false: not here
torch_environment() {
    if [ ! -e build/torch-venv/.libraries ]; then
        [ -x build/torch-venv/bin/python ] || "$py" -m venv build/torch-venv
        # (The version of PyTorch is one that comes for the CPU alone.)
        build/torch-venv/bin/python -m pip --disable-pip-version-check -q install "torch==2.13.0" jax pytest \
            pytest-timeout hypothesis >build/torch-venv.log 2>&1 || return 1
        touch build/torch-venv/.libraries
    fi
    build/torch-venv/bin/python -m pip --disable-pip-version-check -q install --force-reinstall --no-deps \
        build/wheel/*.whl && build/torch-venv/bin/python -m pip --disable-pip-version-check -q install build/wheel/*.whl
}

step "arrays of PyTorch and JAX"
if torch_environment; then
    build/torch-venv/bin/python -m pytest -q -rs -p no:cacheprovider tests/python/tensors/test_exchange*.py
else
    echo "skipped: PyTorch and JAX cannot be installed here: $(tail -n 1 build/torch-venv.log)"
fi

step "safetensors files of other programs"
"$py" tools/check_safetensors.py

step "all passed"
