#!/usr/bin/env bash
# Prints the fingerprints (losses and final weights) of a fixed set of short runs as a table, to
# check that a change does not alter results.
#
#   scripts/fingerprints.sh [YARDSTICK]    (default: target/release/yardstick)
#
# Fingerprints depend on the processor: compare only tables of the same machine.
set -euo pipefail
cd "$(dirname "$0")/.."

yardstick=$(realpath "${1:-target/release/yardstick}")
folder=$(mktemp -d "${TMPDIR:-/tmp}/yardstick-fingerprints.XXXXXX")
trap 'rm -rf "$folder"' EXIT
export TMPDIR=$folder # other launchers of the user, which remove what they share, have another
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
export OMPI_MCA_rmaps_base_oversubscribe=1 OMPI_MCA_hwloc_base_binding_policy=none

# Prints one of the two digests in a run's record, shortened.
digest() {
    "$yardstick" report --json "$1" | sed -n "/\"fingerprint\"/,/}/s/.*\"$2\": \"\(.\{16\}\).*/\1/p"
}

# Trains one case and prints its row.
row() {
    local workload=$1 precision=$2 ranks=$3 sharded=$4
    shift 4
    local run="$folder/$workload-$precision-$ranks-$sharded"
    mpirun -np "$ranks" "$yardstick" train --workload "$workload" --out "$run" \
        --set "precision.compute=$precision" --set "parallel.sharded=$sharded" \
        --set telemetry.matmul_probe=0s --set checkpoint.at_end=false "$@" 2>"$run.log" ||
        { cat "$run.log" >&2; exit 1; }
    printf '| %s | %s | %s | %s | %s | %s |\n' "$workload" "$precision" "$ranks" "$sharded" \
        "$(digest "$run" losses)" "$(digest "$run" weights)"
}

echo '| workload | precision | ranks | sharded | losses | weights |'
echo '|---|---|---|---|---|---|'
for precision in f32 bf16; do
    for layout in '1 none' '2 none' '2 optimizer'; do
        read -r ranks sharded <<<"$layout"
        for workload in smoke llama-smoke; do
            row "$workload" "$precision" "$ranks" "$sharded" --steps 60
        done
        row gpt2-124m "$precision" "$ranks" "$sharded" --steps 3 --set batch.micro_sequences=2 \
            --set batch.global_sequences=8 --set batch.sequence_tokens=256
    done
done
