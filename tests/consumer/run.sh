#!/bin/sh
# run.sh FOLDER JOBS BUILD: installs the C library into private prefixes: the static one that BUILD holds, and a shared
# one that is built here. Builds a program and a backend module against each from outside the tree, and runs the program
# with the module. The same program by pkg-config, from a tree that was moved, and against what a Debian package holds.
set -eu
dir=$1
jobs=$2
static=$3
source=$(cd "$(dirname "$0")/../.." && pwd)
rm -rf "$dir"
mkdir -p "$dir"
dir=$(cd "$dir" && pwd)
for kind in static shared; do
    if [ $kind = shared ]; then
        built=$dir/shared
        cmake -S "$source" -B "$built" -DBUILD_SHARED_LIBS=ON -DGGML_BACKEND_TESTS=OFF >"$dir/$kind.log"
        cmake --build "$built" -j "$jobs" >>"$dir/$kind.log" 2>&1 || { tail -n 50 "$dir/$kind.log"; exit 1; }
    else
        built=$static
    fi
    cmake --install "$built" --prefix "$dir/prefix-$kind" >>"$dir/$kind.log"
    cp -r "$source/tests/consumer" "$dir/program-$kind"
    cmake -S "$dir/program-$kind" -B "$dir/program-$kind/build" \
        -DCMAKE_PREFIX_PATH="$dir/prefix-$kind" >>"$dir/$kind.log"
    cmake --build "$dir/program-$kind/build" >>"$dir/$kind.log" 2>&1 || { tail -n 50 "$dir/$kind.log"; exit 1; }
    cp -r "$source/examples/backend" "$dir/module-$kind"
    cmake -S "$dir/module-$kind" -B "$dir/module-$kind/build" -DCMAKE_PREFIX_PATH="$dir/prefix-$kind" >>"$dir/$kind.log"
    cmake --build "$dir/module-$kind/build" >>"$dir/$kind.log" 2>&1 || { tail -n 50 "$dir/$kind.log"; exit 1; }
    echo "$kind: $("$dir/program-$kind/build/consumer" "$dir/module-$kind/build/mini.so")"
    program=$dir/program-$kind/by-pkg-config
    if command -v pkg-config >/dev/null; then
        mv "$dir/prefix-$kind" "$dir/moved-$kind"
        folder=$(dirname "$(find "$dir/moved-$kind" -name ggml_backend.pc)")
        # shellcheck disable=SC2046
        "${CC:-cc}" -o "$program" "$source/tests/consumer/main.c" \
            $(PKG_CONFIG_PATH=$folder pkg-config --cflags --libs ggml_backend)
        said=$(LD_LIBRARY_PATH=$(dirname "$folder") "$program" "$dir/module-$kind/build/mini.so")
        echo "$kind, by pkg-config: $said"
        # the program of the documentation
        sed -n '/^```c$/,/^```$/p' "$source/docs/howto/from-c.md" | sed '/^```/d' >"$dir/app.c"
        # shellcheck disable=SC2046
        "${CC:-cc}" -o "$program-app" "$dir/app.c" $(PKG_CONFIG_PATH=$folder pkg-config --cflags --libs ggml_backend)
        said=$(LD_LIBRARY_PATH=$(dirname "$folder") "$program-app")
        [ "$said" = "6 0" ] || { echo "docs/howto/from-c.md: the program says $said"; exit 1; }
    else
        echo "$kind, by pkg-config: skipped: pkg-config is not installed"
    fi
done
if command -v dpkg-deb >/dev/null && command -v cpack >/dev/null; then
    (cd "$dir/shared" && cpack -G DEB -B "$dir/package" >>"$dir/shared.log")
    dpkg-deb -x "$dir"/package/*.deb "$dir/unpacked"
    root=$dir/unpacked/usr
    library=$(find "$root" -name libggml_backend.so)
    "${CC:-cc}" -DGGML_SHARED -I"$root/include" -o "$dir/by-package" "$source/tests/consumer/main.c" "$library"
    echo "Debian package: $(LD_LIBRARY_PATH=$(dirname "$library") "$dir/by-package" "$dir/module-shared/build/mini.so")"
else
    echo "Debian package: skipped: dpkg-deb or cpack is not installed"
fi
