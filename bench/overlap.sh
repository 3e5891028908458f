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

if [ "$(id -u)" != 0 ] || ! command -v ip >/dev/null || ! command -v tc >/dev/null; then
    echo "overlap: needs root and ip and tc (Debian's iproute2)" >&2
    exit 1
fi
begin 3
steps=${STEPS:-8}
link_rate=${LINK_RATE:-4gbit}
first=yardstick-$$-a
export SECOND_NODE=yardstick-$$-b

nodes_down() {
    ip netns del "$first" 2>/dev/null || true
    ip netns del "$SECOND_NODE" 2>/dev/null || true
    rm -rf "$folder"
}
trap nodes_down EXIT

nodes_up() {
    local node address=1
    ip netns add "$first"
    ip netns add "$SECOND_NODE"
    ip link add link0 netns "$first" type veth peer name link0 netns "$SECOND_NODE"
    for node in "$first" "$SECOND_NODE"; do
        ip -n "$node" address add "10.77.0.$address/24" dev link0
        ip -n "$node" link set link0 up
        ip -n "$node" link set lo up
        ip netns exec "$node" tc qdisc add dev link0 root \
            tbf rate "$link_rate" burst 4mb latency 100ms
        address=$((address + 1))
    done
    # What mpirun starts the second node's ranks with, in place of ssh: HOST COMMAND...
    cat >"$folder/agent" <<'AGENT'
#!/bin/sh
shift
exec ip netns exec "$SECOND_NODE" unshare --uts sh -c "hostname second-node; $*"
AGENT
    chmod +x "$folder/agent"
}

# on_both_nodes COMMAND...: one rank on each.
on_both_nodes() {
    ip netns exec "$first" unshare --uts sh -c 'hostname first-node; exec "$@"' sh \
        mpirun -np 2 --host 10.77.0.1:1,10.77.0.2:1 --mca plm_rsh_agent "$folder/agent" \
        --mca btl_tcp_if_include link0 --mca oob_tcp_if_include link0 \
        --mca hwloc_base_binding_policy none "$@"
}

# train SHARDED OVERLAP ROUND: trains, prints its tokens/s and the hidden share of communication.
train() {
    local out=$folder/$1-$2-$3 rate
    rate=$(rate_of "$out" on_both_nodes "$yardstick" train --workload gpt2-124m --steps "$steps" \
        --threads 1 --set precision.compute=bf16 \
        --set "run.shard_optimizer=$1" --set "collectives.overlap=$2" \
        --set batch.micro_sequences=2 --set batch.global_sequences=4 \
        --set batch.sequence_tokens=256 --set checkpoint.at_end=false) || return 1
    echo "$rate $(sed -n 's/.*"hidden_share": \([0-9.]*\).*/\1/p' "$out/record.json")"
}

nodes_up
echo "gpt2-124m, bf16, 2 nodes x 1 rank x 2 x 256, link $link_rate, $(nproc) cores, $steps steps" \
    "a round; checkpoints off, telemetry on; commit $commit"
printf '%-10s %8s %14s %14s %10s\n' optimizer round 'overlap off' 'overlap on' hidden
for sharded in false true; do
    name=$([ "$sharded" = true ] && echo sharded || echo whole)
    for round in $(seq "$rounds"); do
        told=$(train "$sharded" false "$round")
        read -r off _ <<<"$told"
        told=$(train "$sharded" true "$round")
        read -r on hidden <<<"$told"
        keep "off-$sharded" "$off"
        keep "on-$sharded" "$on"
        printf '%-10s %8s %14.1f %14.1f %10.2f\n' "$name" "$round" "$off" "$on" "$hidden"
    done
    off=$(median_of "off-$sharded")
    on=$(median_of "on-$sharded")
    printf '%-10s %8s %14.1f %14.1f\n' "$name" median "$off" "$on"
    keep ratios "$(ratio "$on" "$off")"
done
at_least overlap "$(least_of ratios)" 1.1
