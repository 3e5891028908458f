# Two emulated nodes for the scripts in bench/, which source this file: network namespaces with
# different host names, connected by a link of $link_rate. Needs root; writes files to $folder.
# shellcheck shell=bash

first=yardstick-$$-a
export SECOND_NODE=yardstick-$$-b

# require_nodes NAME: fails if this machine cannot emulate nodes.
require_nodes() {
    if [ "$(id -u)" != 0 ] || ! command -v ip >/dev/null || ! command -v tc >/dev/null; then
        echo "$1: needs root and ip and tc (Debian's iproute2)" >&2
        return 1
    fi
}

nodes_down() {
    ip netns del "$first" 2>/dev/null || true
    ip netns del "$SECOND_NODE" 2>/dev/null || true
}

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
            tbf rate "${link_rate:?}" burst 4mb latency 100ms
        address=$((address + 1))
    done
    # mpirun starts the second node's ranks with this instead of ssh: HOST COMMAND...
    cat >"${folder:?}/agent" <<'AGENT'
#!/bin/sh
shift
exec ip netns exec "$SECOND_NODE" unshare --uts sh -c "hostname second-node; $*"
AGENT
    chmod +x "$folder/agent"
}

# on_both_nodes RANKS COMMAND...: starts RANKS ranks on each node, over Open MPI's TCP transport.
on_both_nodes() {
    local ranks=$1
    shift
    ip netns exec "$first" unshare --uts sh -c 'hostname first-node; exec "$@"' sh \
        mpirun -np $((2 * ranks)) --host "10.77.0.1:$ranks,10.77.0.2:$ranks" \
        --mca plm_rsh_agent "$folder/agent" \
        --mca btl_tcp_if_include link0 --mca oob_tcp_if_include link0 \
        --mca hwloc_base_binding_policy none "$@"
}
