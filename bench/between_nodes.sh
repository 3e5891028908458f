#!/usr/bin/env bash
# Reductions between two nodes over a link of LINK_RATE in each direction: all-reduce and
# reduce-scatter of 260 MB of f32 by two ranks (one per node) and by four, which use the shared
# memory of their nodes (`buffer`) or do not (`plain`). The figure is the share of the link's rate
# that the reduce-scatter of two ranks reaches.
#
# OTHER is the path of the example `allreduce` of another build, which then runs in turn with this
# build. A build that ignores unknown arguments is refused, because it would run an all-reduce
# instead of the reduce-scatter. Nothing else runs: no training, no telemetry.
set -euo pipefail
cd "$(dirname "$0")/.."
# shellcheck source=scripts/bench.sh
. scripts/bench.sh
# shellcheck source=scripts/nodes.sh
. scripts/nodes.sh

require_nodes between_nodes
begin 3
trap 'nodes_down; rm -rf "$folder"' EXIT
repeats=${REPEATS:-2}
elements=65000000
link_rate=${LINK_RATE:-1gbit}

cargo build --release --quiet --workspace --example allreduce
declare -A builds=([this]=$PWD/target/release/examples/allreduce)
[ -z "${OTHER:-}" ] || builds[other]=$(realpath "$OTHER")
for build in "${builds[@]}"; do
    if mpirun -np 1 "$build" plain 1 1 unknown >/dev/null 2>&1; then
        echo "between_nodes: $build does not support reduce-scatter" >&2
        exit 1
    fi
done
nodes_up

# measure BUILD RANKS ROLE OPERATION: adds a measurement in seconds.
measure() {
    local scatter=()
    [ "$4" = scatter ] && scatter=(scatter)
    quietly "$folder/log" on_both_nodes "$2" "${builds[$1]}" "$3" "$elements" "$repeats" \
        "${scatter[@]}" >>"$folder/$1-$2-$3-$4"
}

cases=("1 plain reduce" "1 plain scatter" "2 plain reduce" "2 plain scatter" "2 buffer reduce" \
    "2 buffer scatter")
for round in $(seq "$rounds"); do
    echo "round $round of $rounds" >&2
    for case in "${cases[@]}"; do
        read -r ranks role operation <<<"$case"
        for build in "${!builds[@]}"; do
            measure "$build" "$ranks" "$role" "$operation"
        done
    done
done

echo "260 MB, link $link_rate, $(nproc) cores; commit $commit"
printf '%-6s %-8s %-8s' ranks memory operation
printf ' %12s' "${!builds[@]}"
echo ' (s)'
for case in "${cases[@]}"; do
    read -r ranks role operation <<<"$case"
    printf '%-6s %-8s %-8s' "$((2 * ranks))" "$role" "$operation"
    for build in "${!builds[@]}"; do
        printf ' %12.3f' "$(median_of "$build-$ranks-$role-$operation")"
    done
    echo
done
# Half of the buffer is sent in each direction.
rate=$(numfmt --from=si "$(sed 's/bit$//; s/[kmg]$/\U&/' <<<"$link_rate")")
share=$(awk -v s="$(median_of this-1-plain-scatter)" -v n="$elements" -v rate="$rate" \
    'BEGIN { printf "%.3f", 4 * n / 2 * 8 / rate / s }')
at_least between_nodes "$share" 0.9
