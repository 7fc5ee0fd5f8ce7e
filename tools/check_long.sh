#!/bin/sh
# make check-long: what takes too long for every change. Run it before a release and before calling a large change done.
#   - ctest under the address and undefined-behaviour sanitizers
#   - the threaded parts under the thread sanitizer
#   - thousands of random graphs over simulated devices
#   - pytest under the address sanitizer
#   - every kernel level forced in turn
set -eu
jobs=${1:-2}
cd "$(dirname "$0")/.."
py=$PWD/build/venv/bin/python
step() { printf '\n== %s\n' "$*"; }

step "ctest, address and undefined-behaviour sanitizers"
cmake -S . -B build/asan -DCMAKE_BUILD_TYPE=RelWithDebInfo -DGGML_BACKEND_TESTS=ON \
    -DCMAKE_C_FLAGS="-fsanitize=address,undefined -fno-sanitize-recover=undefined -fno-omit-frame-pointer" >/dev/null
cmake --build build/asan -j "$jobs" >build/asan.log 2>&1 || { tail -n 50 build/asan.log; exit 1; }
(cd build/asan && ctest --output-on-failure -j "$jobs")

step "ctest, thread sanitizer: pool, engine, simulated device, scheduler"
cmake -S . -B build/tsan -DCMAKE_BUILD_TYPE=RelWithDebInfo -DGGML_BACKEND_TESTS=ON \
    -DCMAKE_C_FLAGS="-fsanitize=thread -fno-omit-frame-pointer" >/dev/null
cmake --build build/tsan -j "$jobs" >build/tsan.log 2>&1 || { tail -n 50 build/tsan.log; exit 1; }
(cd build/tsan && ctest --output-on-failure -R 'threadpool|compute|cpu_backend|sim|sched|registry|base')

step "ctest at every kernel level"
for level in scalar avx2 avx512; do
    echo "-- GGML_CPU_LEVEL=$level"
    (cd build/dev && GGML_CPU_LEVEL=$level ctest --output-on-failure -j "$jobs" -R 'cpu|mul_mat|compute|compat') || exit 1
done

step "random graphs over simulated devices"
GGML_TEST_RANDOM_GRAPHS=5000 build/dev/tests/c/test_sched_random

step "pytest, address sanitizer"
rm -rf build/asan-site
"$py" -m pip --disable-pip-version-check -q install --no-deps --target build/asan-site . \
    -C "cmake.define.CMAKE_C_FLAGS=-fsanitize=address,undefined -fno-omit-frame-pointer" -C cmake.build-type=RelWithDebInfo -C install.strip=false
LD_PRELOAD="$(gcc -print-file-name=libasan.so) $(gcc -print-file-name=libubsan.so)" \
    ASAN_OPTIONS=detect_leaks=0 PYTHONMALLOC=malloc PYTHONPATH=$PWD/build/asan-site \
    "$py" -m pytest -q -s -p no:faulthandler -p no:cacheprovider tests/python -k 'not clean_install'

step "all passed"
