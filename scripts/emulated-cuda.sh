#!/usr/bin/env bash
# Builds the emulated CUDA device: libraries that stand in for NVIDIA's driver, NVRTC, cuBLASLt,
# NCCL and NVML on a machine without a GPU (see tests/emulated_cuda). Needs g++ and nothing else.
#
#   scripts/emulated-cuda.sh          builds what changed and prints the folder of the libraries
#   scripts/emulated-cuda.sh --test   also runs the tests of the emulated device itself
#
# A program uses them with YARDSTICK_CUDA_PATH set to the printed folder.
set -euo pipefail
cd "$(dirname "$0")/.."

sources=tests/emulated_cuda
out=target/emulated-cuda
flags=(-std=gnu++17 -O2 -g1 -fPIC -pthread -Wall -Wextra -fvisibility=hidden)
# The loops of cuBLASLt are worth the processor's vector instructions.
fast_flags=(-O3 -march=native -ffp-contract=fast)

# compile FOLDER [FLAG...]: every source of a folder, where it or a header it includes is newer.
compile() {
    local folder=$1 source object
    shift
    mkdir -p "$out/objects/$folder"
    for object in "$out/objects/$folder"/*.o; do
        [ -e "$sources/$folder/$(basename "$object" .o).cpp" ] || rm -f "$object"
    done
    for source in "$sources/$folder"/*.cpp; do
        object=$out/objects/$folder/$(basename "$source" .cpp).o
        if is_stale "$object"; then
            g++ "${flags[@]}" "$@" -MMD -MP -c "$source" -o "$object"
        fi
    done
}

# Whether an object is missing or older than one of the files that its .d lists.
is_stale() {
    local object=$1 file
    [ -e "$object" ] && [ -e "${object%.o}.d" ] || return 0
    [ "$object" -nt scripts/emulated-cuda.sh ] || return 0
    for file in $(dependencies "${object%.o}.d"); do
        [ "$object" -nt "$file" ] || return 0
    done
    return 1
}

# The files that a .d written by g++ lists.
dependencies() {
    tr ' ' '\n' < "$1" | grep -v -e ':$' -e '^\\$' -e '^$'
}

# link FOLDER SONAME [FLAG...]: a library of a folder's objects. It appears by a rename, so that
# programs that have the old one mapped keep it.
link() {
    local folder=$1 soname=$2 library="$out/lib/$2" object
    shift 2
    mkdir -p "$out/lib"
    for object in "$out/objects/$folder"/*.o; do
        if [ ! -e "$library" ] || [ "$object" -nt "$library" ]; then
            g++ -shared -pthread "-Wl,-soname,$soname" "-Wl,-rpath,\$ORIGIN" -Wl,-z,defs \
                "$out/objects/$folder"/*.o "$@" -ldl -o "$library.$$"
            mv "$library.$$" "$library"
            return
        fi
    done
}

# The headers for kernels, where the emulated NVRTC looks for them.
install_headers() {
    mkdir -p "$out/include/simt"
    install -C -m 644 "$sources/simt.h" "$out/include/"
    install -C -m 644 "$sources"/simt/*.h "$out/include/simt/"
}

build() {
    compile driver -fno-gnu-unique # Unique symbols would keep a closed copy in the process.
    link driver libcuda.so.1
    compile nvrtc
    link nvrtc libnvrtc.so.12
    compile cublaslt "${fast_flags[@]}"
    link cublaslt libcublasLt.so.12 "$out/lib/libcuda.so.1"
    compile nccl
    link nccl libnccl.so.2 "$out/lib/libcuda.so.1"
    compile nvml
    link nvml libnvidia-ml.so.1
    install_headers
}

build_test() {
    compile selftest
    g++ -pthread "$out"/objects/selftest/*.o "$out/lib/libcuda.so.1" "$out/lib/libnvrtc.so.12" \
        "$out/lib/libcublasLt.so.12" "$out/lib/libnccl.so.2" \
        -Wl,-rpath,"$PWD/$out/lib" -o "$out/selftest"
}

case "${1:-}" in
    '') ;;
    --test) ;;
    *)
        echo "usage: $0 [--test]" >&2
        exit 2
        ;;
esac

mkdir -p "$out"
exec 9> "$out/lock"
flock 9 # Several tests may want the libraries at the same time.
build >&2
if [ "${1:-}" = --test ]; then
    build_test >&2
    exec 9>&-
    exec "$out/selftest"
fi
echo "$PWD/$out/lib"
