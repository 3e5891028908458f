#!/usr/bin/env bash
# Gain of overlapping communication with computation over a network: two nodes of one rank each,
# GPT-2 124M in bf16, two sequences of 256 tokens per rank, with `collectives.overlap` off and on,
# and the same with a sharded optimizer. They train in turn for several rounds, without checkpoints,
# with telemetry; the figure is the smaller ratio of median tokens/s.
#
# The nodes are network namespaces of this machine (which requires root and iproute2) with different
# host names, connected by a link of LINK_RATE; ranks communicate over Open MPI's TCP transport.
set -euo pipefail
cd "$(dirname "$0")/.."
# shellcheck source=scripts/bench.sh
. scripts/bench.sh
# shellcheck source=scripts/nodes.sh
. scripts/nodes.sh

require_nodes overlap
begin 3
trap 'nodes_down; rm -rf "$folder"' EXIT
steps=${STEPS:-8}
link_rate=${LINK_RATE:-4gbit}

# train SHARDED OVERLAP ROUND: trains, and prints its tokens/s and the hidden share of
# communication.
train() {
    local out=$folder/$1-$2-$3 rate
    rate=$(rate_of "$out" on_both_nodes 1 "$yardstick" train --workload gpt2-124m \
        --steps "$steps" --threads 1 --set precision.compute=bf16 \
        --set "parallel.sharded=$1" --set "collectives.overlap=$2" \
        --set batch.micro_sequences=2 --set batch.global_sequences=4 \
        --set batch.sequence_tokens=256 --set checkpoint.at_end=false) || return 1
    echo "$rate $(sed -n 's/.*"hidden_share": \([0-9.]*\).*/\1/p' "$out/record.json")"
}

nodes_up
echo "gpt2-124m, bf16, 2 nodes x 1 rank x 2 x 256, link $link_rate, $(nproc) cores, $steps steps" \
    "per round; checkpoints off, telemetry on; commit $commit"
printf '%-10s %8s %14s %14s %10s\n' optimizer round 'overlap off' 'overlap on' hidden
for sharded in none optimizer; do
    name=$([ "$sharded" = optimizer ] && echo sharded || echo unsharded)
    for round in $(seq "$rounds"); do
        measured=$(train "$sharded" false "$round")
        read -r off _ <<<"$measured"
        measured=$(train "$sharded" true "$round")
        read -r on hidden <<<"$measured"
        add "off-$sharded" "$off"
        add "on-$sharded" "$on"
        printf '%-10s %8s %14.1f %14.1f %10.2f\n' "$name" "$round" "$off" "$on" "$hidden"
    done
    off=$(median_of "off-$sharded")
    on=$(median_of "on-$sharded")
    printf '%-10s %8s %14.1f %14.1f\n' "$name" median "$off" "$on"
    add ratios "$(ratio "$on" "$off")"
done
at_least overlap "$(min_of ratios)" 1.1
