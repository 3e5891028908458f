# Functions for scripts/gpu-check.sh: the programs that it runs, found, built or packed.
# shellcheck shell=bash
# shellcheck disable=SC2034,SC2154  # variables are shared with gpu-check.sh

# What a check runs, by the names of cargo's targets: the binary, the unit tests of models with
# those of the kernels, and tests of the engine and of NCCL. (Other tests for devices set up devices
# of their own.)
PROGRAMS=(yardstick yardstick_models cuda_engine cuda_nccl_backend)
# With a test: else features of dependencies differ, and all would be compiled again.
BUILD_TARGETS=(--bin yardstick --test cuda_engine)
TEST_TARGETS=(--lib --test cuda_engine --test cuda_nccl_backend)
# Largest pack, in MiB: a lent machine takes 64 with the working tree. Programs that are not
# optimised are larger.
PACK_MAX=56

# find_programs [DIR]: sets a variable named as each program to its path, and $packed to the folder
# that has them, if they were not built.
find_programs() {
    local folder=${1:-$here} program
    packed=''
    if [ -n "$1" ] || [ -x "$here/yardstick" ]; then
        folder=$(cd "$folder" && pwd) || return
        packed=$folder
        for program in "${PROGRAMS[@]}"; do
            printf -v "$program" '%s' "$folder/$program"
        done
    else
        build_programs || return
    fi
    for program in "${PROGRAMS[@]}"; do
        [ -x "${!program}" ] || { echo "gpu-check: ${!program} is missing" >&2; return 3; }
    done
    use_packed_mpi "$folder"
    "$yardstick" --version >/dev/null ||
        { echo "gpu-check: $yardstick does not start" >&2; return 3; }
}

# The binary links MPI's library, and two ranks need the launcher of the same MPI: both are those of
# the build machine, if the folder has them. What is not ours gets $own_library_path.
use_packed_mpi() {
    own_library_path=${LD_LIBRARY_PATH-}
    [ ! -d "$1/lib" ] || export LD_LIBRARY_PATH=$1/lib${own_library_path:+:$own_library_path}
    [ -d "$1/mpi" ] || return 0
    export PATH=$1/mpi:$PATH
    export OPAL_PKGLIBDIR=$1/mpi OPAL_PKGDATADIR=$1/mpi OPAL_SYSCONFDIR=$1/mpi
    # PMIx looks for plugins where it was installed, and does without.
    export PMIX_MCA_pcompress_base_silence_warning=1
}

# Builds the programs. Cargo tells the path of each in a line of JSON.
build_programs() {
    local messages program
    command -v cargo >/dev/null ||
        { echo "gpu-check: no cargo, and no programs in $here" >&2; return 3; }
    messages=$(cargo_messages build "${BUILD_TARGETS[@]}" &&
        cargo_messages test --no-run "${TEST_TARGETS[@]}") || return
    for program in "${PROGRAMS[@]}"; do
        printf -v "$program" '%s' "$(executable "$program" <<<"$messages")"
    done
}

cargo_messages() {
    (cd "$here/.." && cargo "$@" --profile "${PROFILE:-release}" --workspace \
        --message-format json-render-diagnostics)
}

# The path of a program, from cargo's messages.
executable() {
    sed -n "/\"name\":\"$1\"/s/.*\"executable\":\"\([^\"]*\)\".*/\1/p" | tail -n 1
}

# pack DIR: builds the programs and collects them, stripped, with the MPI that the binary links,
# these scripts, the benchmark against PyTorch, and a manifest.
pack() {
    local folder=$1 program
    if [ -e "$folder" ] && [ -n "$(ls -A "$folder")" ]; then
        echo "gpu-check: $folder is not empty" >&2
        return 2
    fi
    build_programs && mkdir -p "$folder/lib" || return
    for program in "${PROGRAMS[@]}"; do
        strip -o "$folder/$program" "${!program}" || return
    done
    cp "$here"/gpu-*.sh "$here"/../bench/{gpu_vs_torch,torch_gpt,ncu_kernels}.py \
        "$folder/" || return
    libraries "$yardstick" | xargs -r cp -L -t "$folder/lib" || return
    pack_launcher "$folder" || return
    manifest "$folder" >"$folder/MANIFEST" || return
    cat "$folder/MANIFEST"
    if [ "${PROFILE:-release}" = release ]; then
        fits "$folder"
    else
        echo "$folder: $(mebibytes "$folder") MiB, not optimised"
    fi
}

# fits PATH: prints its size; fails where a machine would not take it.
fits() {
    local size
    size=$(mebibytes "$1")
    echo "$1: $size MiB of at most $PACK_MAX"
    [ "$size" -le "$PACK_MAX" ] ||
        { echo "gpu-check: $1 has $size MiB, more than the $PACK_MAX that can be carried" >&2
            return 3; }
}

mebibytes() {
    du --summarize --block-size 1M "$1" | cut -f 1
}

# pack_launcher DIR: mpirun of Open MPI 4 with its libraries and messages, and with those of its
# plugins that need no further library, as those for networks do: it starts ranks on one machine.
pack_launcher() {
    local folder=$1 plugins messages plugin
    if ! grep -q '(Open MPI) 4' <<<"$(mpirun --version 2>/dev/null)"; then
        echo "gpu-check: no mpirun of Open MPI 4, so none is packed" >&2
        return
    fi
    plugins=$(ompi_info --parsable --path pkglibdir | cut -d : -f 3) || return
    messages=$(ompi_info --parsable --path pkgdatadir | cut -d : -f 3) || return
    mkdir -p "$folder/mpi" || return
    cp -L "$(command -v mpirun)" "$messages"/help-*.txt "$folder/mpi/" || return
    libraries "$(command -v mpirun)" "$plugins"/mca_pmix_ext*.so |
        xargs -r cp -L -t "$folder/lib" || return
    for plugin in "$plugins"/*.so; do
        has_libraries "$plugin" "$folder/lib" || continue
        cp "$plugin" "$folder/mpi/" || return
    done
}

# libraries FILE...: what they link, but for the C library, which every machine has.
libraries() {
    ldd "$@" | awk '$2 == "=>" { print $3 }' | sort -u |
        grep -v -E '/(libc|libm|libgcc_s|libpthread|libdl|librt)\.so'
}

# has_libraries FILE DIR: whether a folder has all that a file links.
has_libraries() {
    local library
    for library in $(libraries "$1"); do
        [ -e "$2/$(basename "$library")" ] || return
    done
}

manifest() {
    echo "commit $(git -C "$here" rev-parse HEAD)"
    echo "profile ${PROFILE:-release}"
    echo "built on $(sed -n 's/^PRETTY_NAME="\(.*\)"/\1/p' /etc/os-release)," \
        "$(ldd --version | sed -n '1s/.* /glibc /p'), $(rustc --version)"
    (cd "$1" && find . -type f ! -name MANIFEST -printf '%P\n' | sort | xargs sha256sum)
}
