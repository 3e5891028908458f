#!/usr/bin/env bash
# What overlapping communication with computing gains where there is a network: two nodes of one
# rank each, GPT-2 124M in bf16, two sequences of 256 tokens a rank, with `collectives.overlap` off
# and on, and the same with a sharded optimizer. They train in turn for several rounds, no
# checkpoint, telemetry on; the figure is the smaller ratio of median tokens/s.
#
# The nodes are network namespaces of this machine (so it needs root and iproute2) with host names
# of their own, joined by a link of LINK_RATE; ranks talk over Open MPI's TCP.
set -euo pipefail
cd "$(dirname "$0")/.."
# shellcheck source=scripts/bench.sh
. scripts/bench.sh
# shellcheck source=scripts/nodes.sh
. scripts/nodes.sh

nodes_needed overlap
rounds=${ROUNDS:-3}
steps=${STEPS:-8}
link_rate=${LINK_RATE:-4gbit}
goal=1.1
folder=$(mktemp -d)
trap 'nodes_down; rm -rf "$folder"' EXIT

# train SHARDED OVERLAP ROUND: trains, prints its tokens/s and the hidden share of communication.
train() {
    local out=$folder/$1-$2-$3
    on_both_nodes 1 "$PWD/target/release/yardstick" train --workload gpt2-124m --steps "$steps" \
        --threads 1 --out "$out" --set precision.compute=bf16 \
        --set "run.shard_optimizer=$1" --set "collectives.overlap=$2" \
        --set batch.micro_sequences=2 --set batch.global_sequences=4 \
        --set batch.sequence_tokens=256 --set checkpoint.at_end=false >/dev/null 2>"$out.log" \
        || { cat "$out.log" >&2; return 1; }
    local rate hidden
    rate=$(tokens_per_second_of "$out")
    hidden=$(sed -n 's/.*"hidden_share": \([0-9.]*\).*/\1/p' "$out/record.json")
    [ -n "$rate" ] || { echo "overlap: $out has no tokens per second" >&2; return 1; }
    echo "$rate $hidden"
}

cargo build --release --quiet
nodes_up
echo "gpt2-124m, bf16, 2 nodes x 1 rank x 2 x 256, link $link_rate, $(nproc) cores, $steps steps" \
    "a round; checkpoints off, telemetry on; commit $(git rev-parse --short HEAD)"
printf '%-10s %8s %14s %14s %10s\n' optimizer round 'overlap off' 'overlap on' hidden
smallest=
for sharded in false true; do
    name=$([ "$sharded" = true ] && echo sharded || echo whole)
    for round in $(seq "$rounds"); do
        told=$(train "$sharded" false "$round")
        read -r off _ <<<"$told"
        told=$(train "$sharded" true "$round")
        read -r on hidden <<<"$told"
        echo "$off" >>"$folder/off-$sharded"
        echo "$on" >>"$folder/on-$sharded"
        printf '%-10s %8s %14.1f %14.1f %10.2f\n' "$name" "$round" "$off" "$on" "$hidden"
    done
    off=$(median <"$folder/off-$sharded")
    on=$(median <"$folder/on-$sharded")
    printf '%-10s %8s %14.1f %14.1f\n' "$name" median "$off" "$on"
    smallest=$(awk -v a="$on" -v b="$off" -v least="${smallest:-9}" \
        'BEGIN { ratio = a / b; printf "%.4f", ratio < least ? ratio : least }')
done
printf 'overlap: %.2f (goal %s)\n' "$smallest" "$goal"
awk -v ratio="$smallest" -v goal="$goal" 'BEGIN { exit !(ratio >= goal) }'
