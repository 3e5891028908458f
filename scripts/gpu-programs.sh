# Functions for scripts/gpu-check.sh: the programs that it runs, found, built or packed.
# shellcheck shell=bash
# shellcheck disable=SC2034,SC2154  # variables are shared with gpu-check.sh

# What a check runs: the binary, two test binaries, and an example.
PROGRAMS=(yardstick cuda_engine cuda_step cuda_timing)
# What a lent machine takes at most, in MiB.
PACK_MAX=60

# find_programs [DIR]: sets yardstick, cuda_engine, cuda_step and cuda_timing to their paths.
find_programs() {
    local folder=${1:-$here} program
    if [ -n "$1" ] || [ -x "$here/yardstick" ]; then
        folder=$(cd "$folder" && pwd) || return
        for program in "${PROGRAMS[@]}"; do
            printf -v "$program" '%s' "$folder/$program"
        done
    else
        build_programs || return
    fi
    for program in "${PROGRAMS[@]}"; do
        [ -x "${!program}" ] || { echo "gpu-check: ${!program} is missing" >&2; return 3; }
    done
    use_packed_libraries "$folder/lib"
}

# The binary links MPI's library, which may be missing where nothing is started by mpirun.
use_packed_libraries() {
    if ! "$yardstick" --version >/dev/null 2>&1 && [ -d "$1" ]; then
        export LD_LIBRARY_PATH=$1${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
    fi
    "$yardstick" --version >/dev/null ||
        { echo "gpu-check: $yardstick does not start" >&2; return 3; }
}

# Builds the programs. Cargo tells the path of each in a line of JSON.
build_programs() {
    local messages program
    command -v cargo >/dev/null ||
        { echo "gpu-check: no cargo, and no programs in $here" >&2; return 3; }
    messages=$(cd "$here/.." && cargo build --profile "${PROFILE:-release}" --workspace \
        --bin yardstick --test cuda_engine --test cuda_step --example cuda_timing \
        --message-format json-render-diagnostics) || return
    for program in "${PROGRAMS[@]}"; do
        printf -v "$program" '%s' "$(executable "$program" <<<"$messages")"
    done
}

# The path of a program, from cargo's messages.
executable() {
    sed -n "/\"name\":\"$1\"/s/.*\"executable\":\"\([^\"]*\)\".*/\1/p" | tail -n 1
}

# pack DIR: builds the programs and collects them, stripped, with the libraries of MPI that the
# binary links, these scripts, the benchmark against PyTorch, and a manifest.
pack() {
    local folder=$1 program size
    if [ -e "$folder" ] && [ -n "$(ls -A "$folder")" ]; then
        echo "gpu-check: $folder is not empty" >&2
        return 2
    fi
    build_programs && mkdir -p "$folder/lib" || return
    for program in "${PROGRAMS[@]}"; do
        strip -o "$folder/$program" "${!program}" || return
    done
    cp "$here"/gpu-*.sh "$here"/../bench/{gpu_vs_torch,torch_gpt}.py "$folder/" || return
    linked_libraries | xargs -r cp -L -t "$folder/lib" || return
    manifest "$folder" >"$folder/MANIFEST" || return
    size=$(du -sm "$folder" | cut -f 1)
    cat "$folder/MANIFEST"
    echo "$folder: $size MiB of at most $PACK_MAX"
    [ "$size" -le "$PACK_MAX" ]
}

# Libraries that the binary links, but for those of the C library, which every machine has.
linked_libraries() {
    ldd "$yardstick" | awk '$2 == "=>" { print $3 }' |
        grep -v -E '/(libc|libm|libgcc_s|libpthread|libdl|librt)\.so'
}

manifest() {
    echo "commit $(git -C "$here" rev-parse HEAD)"
    echo "profile ${PROFILE:-release}"
    echo "built on $(sed -n 's/^PRETTY_NAME="\(.*\)"/\1/p' /etc/os-release)," \
        "$(ldd --version | sed -n '1s/.* /glibc /p'), $(rustc --version)"
    (cd "$1" && find . -type f ! -name MANIFEST -printf '%P\n' | sort | xargs sha256sum)
}
