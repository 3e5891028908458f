#!/usr/bin/env bash
# Runs a group of tests unless nothing that it depends on has changed since it was green.
#
#   scripts/stamp.sh NAME COMMAND...
#
# tests/stamps.toml, or the file $STAMPS, has the digest of the inputs of each group's last green
# run: the command, files, wheels and the versions of compilers. A green run replaces it. A stamp
# that is missing or damaged is stale.
set -uo pipefail
shopt -s globstar nullglob
cd "$(dirname "$0")/.." || exit 1

stamps=${STAMPS:-tests/stamps.toml}

# The files and folders that a group depends on. In .venv-*/installed are the versions of wheels.
inputs() {
    case $1 in
        deny) printf '%s\n' Cargo.lock Cargo.toml */Cargo.toml trainer/cli/Cargo.toml deny.toml \
            scripts/setup.sh ;;
        test-detection) printf '%s\n' Cargo.{lock,toml} docs/detection.md record verdict ;;
        test-cuda-kernels) printf '%s\n' Cargo.{lock,toml} models/src/ops/**/*.{cu,cuh} device/src \
            record/src/machine models/tests/cuda_kernels .venv-nvrtc/installed ;;
        test-mpich | test-openmpi5) printf '%s\n' Cargo.{lock,toml} collectives device launch \
            record tests/support scripts/{cargo-test,seed-target,test-mpi}.sh ;;
        *) printf 'stamp: no inputs of %s are listed\n' "$1" >&2; return 2 ;;
    esac
}

# digest NAME COMMAND...
digest() {
    local files
    mapfile -t files < <(inputs "$1")
    [ "${#files[@]}" -gt 0 ] || return
    {
        echo "${PROFILE-}" "$@"
        rustc --version && g++ --version && find "${files[@]}" -type f -print0 |
            LC_ALL=C sort --zero-terminated | xargs --null sha256sum
    } | sha256sum | cut -d ' ' -f 1
}

# Replaces the stamp of a group. Lines that are no stamps are not kept.
write() {
    local others
    others=$(grep -xE '[a-z0-9-]+ = "[0-9a-f]{64}"' "$stamps" 2>/dev/null | grep -v "^$1 ")
    {
        echo '# Digests of what groups depended on when they were last green: see scripts/stamp.sh.'
        echo
        printf '%s\n' "$others" "$1 = \"$2\"" | sort | grep .
    } >"$stamps.new" && mv "$stamps.new" "$stamps"
}

name=$1
before=$(digest "$@") || before=''
if [ -n "$before" ] && grep -qxF "$name = \"$before\"" "$stamps" 2>/dev/null; then
    printf '== %s: stamped\n' "$name"
    exit
fi
"${@:2}" || exit
# What was changed meanwhile has not been tested.
if [ -n "$before" ] && [ "$(digest "$@")" = "$before" ]; then
    write "$name" "$before"
fi
