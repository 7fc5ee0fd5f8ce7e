#!/bin/sh
# Installs the C library (static, then shared) into a private prefix; builds a program and a backend module against it
# from outside the tree, and runs the program with the module.
set -eu
dir=$1
jobs=$2
source=$(cd "$(dirname "$0")/../.." && pwd)
rm -rf "$dir"
mkdir -p "$dir"
dir=$(cd "$dir" && pwd)
for shared in OFF ON; do
    kind=$([ $shared = ON ] && echo shared || echo static)
    cmake -S "$source" -B "$dir/$kind" -DBUILD_SHARED_LIBS=$shared -DGGML_BACKEND_TESTS=OFF \
        -DCMAKE_INSTALL_PREFIX="$dir/prefix-$kind" >"$dir/$kind.log"
    cmake --build "$dir/$kind" -j "$jobs" >>"$dir/$kind.log" 2>&1 || { tail -n 50 "$dir/$kind.log"; exit 1; }
    cmake --install "$dir/$kind" >>"$dir/$kind.log"
    cp -r "$source/tests/consumer" "$dir/program-$kind"
    cmake -S "$dir/program-$kind" -B "$dir/program-$kind/build" \
        -DCMAKE_PREFIX_PATH="$dir/prefix-$kind" >>"$dir/$kind.log"
    cmake --build "$dir/program-$kind/build" >>"$dir/$kind.log" 2>&1 || { tail -n 50 "$dir/$kind.log"; exit 1; }
    cp -r "$source/examples/backend" "$dir/module-$kind"
    cmake -S "$dir/module-$kind" -B "$dir/module-$kind/build" -DCMAKE_PREFIX_PATH="$dir/prefix-$kind" >>"$dir/$kind.log"
    cmake --build "$dir/module-$kind/build" >>"$dir/$kind.log" 2>&1 || { tail -n 50 "$dir/$kind.log"; exit 1; }
    echo "$kind: $("$dir/program-$kind/build/consumer" "$dir/module-$kind/build/mini.so")"
done
