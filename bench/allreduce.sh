#!/usr/bin/env bash
# All-reduce of 124 MB of f32 on two ranks of this machine: in buffers that the ranks of the node
# share, as the trainer's gradients are, and in private memory by messages of MPI (`plain`), against
# Open MPI's own MPI_Allreduce in each of its modes, in turn for several rounds. The figure is the
# ratio of Open MPI's best median to that of the shared buffers. The goal holds too where the bytes
# that must be moved (every buffer read once and written once) move at 80 % of the memory bandwidth
# that both ranks reach in the same run.
#
# Nothing else runs: no training, no telemetry. Open MPI's call is blocking, on its main thread;
# ours is submitted to the backend, executed by the communication thread, and waited for.
set -euo pipefail
cd "$(dirname "$0")/.."
# shellcheck source=scripts/bench.sh
. scripts/bench.sh

begin 5
elements=31000000
repeats=${REPEATS:-9}
goal=5
goal_share=80

export OMPI_MCA_rmaps_base_oversubscribe=1
unset OMPI_MCA_btl_vader_single_copy_mechanism OMPI_MCA_hwloc_base_binding_policy

cargo build --release --quiet --workspace --example allreduce
allreduce=target/release/examples/allreduce

# measure NAME ROLE [MPIRUN ARGUMENTS...]: adds a median to the measurements of that name.
measure() {
    local name=$1 role=$2
    shift 2
    quietly "$folder/log" mpirun -np 2 "$@" "$allreduce" "$role" "$elements" "$repeats" \
        >>"$folder/$name"
}

# Open MPI's modes: how bytes are copied between processes, and the algorithm of its module `tuned`.
declare -A modes=(
    [default]=""
    [cma]="--mca btl_vader_single_copy_mechanism cma"
    [copy-in-copy-out]="--mca btl_vader_single_copy_mechanism none"
)
declare -A algorithms=([recursive-doubling]=3 [ring]=4 [segmented-ring]=5 [rabenseifner]=6)
for name in "${!algorithms[@]}"; do
    modes[cma-$name]="${modes[cma]} --mca coll_tuned_use_dynamic_rules 1
        --mca coll_tuned_allreduce_algorithm ${algorithms[$name]}"
done

ompi_info --version | head -n 1
ompi_info --param btl vader --level 3 2>/dev/null |
    sed -n 's/.*"btl_vader_single_copy_mechanism" (current value: \("[^"]*"\).*/default is \1/p'
for round in $(seq "$rounds"); do
    echo "round $round of $rounds" >&2
    measure memory memory
    for name in "${!modes[@]}"; do
        read -ra arguments <<<"$(tr '\n' ' ' <<<"${modes[$name]}")"
        measure "$name" mpi "${arguments[@]}"
    done
    measure plain plain
    measure buffers buffer
done

row() {
    awk -v name="$1" -v s="$2" -v n="$elements" \
        'BEGIN { printf "%-40s %12.1f %12.2f\n", name, s * 1e3, 4 * n / s / 1e9 }'
}

printf '%-40s %12s %12s\n' "all-reduce of $((elements * 4 / 1000000)) MB, 2 ranks" ms GB/s
best=
for name in $(printf '%s\n' "${!modes[@]}" | sort); do
    seconds=$(median_of "$name")
    row "Open MPI, $name" "$seconds"
    best=$(awk -v a="$seconds" -v b="${best:-1e9}" 'BEGIN { print (a < b ? a : b) }')
done
row "yardstick, messages of MPI" "$(median_of plain)"
ours=$(median_of buffers)
row "yardstick, shared buffers" "$ours"
bandwidth=$(median_of memory)
share=$(awk -v s="$ours" -v n="$elements" -v b="$bandwidth" \
    'BEGIN { printf "%.0f", 100 * 2 * 2 * 4 * n / s / b }')
awk -v b="$bandwidth" 'BEGIN { printf "memory bandwidth, both ranks: %.1f GB/s\n", b / 1e9 }'
echo "minimum traffic of each rank: $((elements * 8 / 1000000)) MB; of both ranks together" \
    "$share % of the memory bandwidth (goal $goal_share)"
ratio=$(ratio "$best" "$ours")
if is_number "$share" && awk -v ratio="$ratio" -v goal="$goal" -v share="$share" \
    -v goal_share="$goal_share" 'BEGIN { exit !(ratio < goal && share >= goal_share) }'; then
    printf 'allreduce: %.2f (goal %s, or %s %% of the memory bandwidth, which is met: %s %%)\n' \
        "$ratio" "$goal" "$goal_share" "$share"
else
    at_least allreduce "$ratio" "$goal"
fi
