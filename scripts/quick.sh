#!/usr/bin/env bash
# Builds what differs from a commit, and runs the unit tests of the modules that differ and a dozen
# tests of the program: a verdict in about a minute, but for the first build.
#
#   scripts/quick.sh [BASE]    (by default HEAD)
set -euo pipefail
cd "$(dirname "$0")/.."

# Tests of the program, one or two for a subject.
tests=(one_process::a_target_loss_ends one_process::a_run_resumes one_process::phases_add_up
    determinism::another_seed export::an_import_of_an_export
    faults::a_non_finite_loss launching::a_killed_rank_is_named launching::what_cannot_be_launched
    ckpt::a_checkpoint_is_shown ckpt::all_tiers_are_listed
    fingerprint::a_run_compares gap::the_rows_of)
targets=(--test end_to_end)

# Each file as a filter of its tests: trainer/src/step/gradients.rs is in step::, and a file of a
# test program has its own name.
mapfile -t modules < <({
    git diff --name-only "${1:-HEAD}" -- '*.rs'
    git ls-files --others --exclude-standard -- '*.rs'
} | sed -n -e '\,/src/\(lib\|main\).rs$,d' -e 's,.*/src/\([a-z_0-9]*\).*,\1::,p;t' \
    -e 's,.*/\([a-z_0-9]*\)\.rs$,\1::,p' | sort -u)

# What is compiled incrementally is not what the other groups test: a build of its own.
scripts/seed-target.sh target-quick
export CARGO_TARGET_DIR=$PWD/target-quick CARGO_INCREMENTAL=1
exec scripts/cargo-test.sh --lib --bins "${targets[@]}" -- "${modules[@]}" "${tests[@]}" \
    --skip cuda_tests::
