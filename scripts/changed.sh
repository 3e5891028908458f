#!/usr/bin/env bash
# Prints which groups of `make test-matrix` a diff needs.
#
#   scripts/changed.sh [BASE]    from this commit (by default main) to the working tree
set -euo pipefail
cd "$(dirname "$0")/.."

groups_of() {
    case $1 in
        collectives/* | launch/*) echo matrix-{mpich,openmpi5,without-mpi} ;;
        scripts/test-mpi.sh | tests/mpijob/*) echo matrix-{mpich,openmpi5} ;;
        models/src/ops/*.cu | models/src/ops/*.cuh | device/src/cuda/*.cuh)
            echo matrix-{cuda-kernels,emulated-{seeds,refusals,address}} ;;
        models/src/ops/*/cuda* | device/src/cuda/* | tests/emulated_cuda/*)
            echo matrix-{emulated-{seeds,refusals,address},gpu-check} ;;
        models/tests/cuda_kernels/*) echo matrix-cuda-kernels ;;
        scripts/gpu-*) echo matrix-gpu-check ;;
        models/src/network/* | models/src/ops/* | trainer/src/*)
            echo matrix-{variants,without-mpi} ;;
        tests/support/*) echo matrix-{mpich,openmpi5,variants} ;;
        tests/training/* | tests/allocations/* | tests/measured/*) echo matrix-variants ;;
        record/src/slow_ranks/* | verdict/src/compare/*) echo matrix-detection ;;
        k8s/* | trainer/cli/src/k8s/* | tests/manifests/*) echo matrix-api-server ;;
        *Cargo.toml | Cargo.lock) echo matrix-{deny,mpich,openmpi5,without-mpi} ;;
        deny.toml) echo matrix-deny ;;
    esac
}

{ git diff --name-only "${1:-main}" && git ls-files --others --exclude-standard; } |
    while read -r path; do groups_of "$path"; done |
    tr ' ' '\n' | sort -u
