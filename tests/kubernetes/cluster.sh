#!/usr/bin/env bash
# A Kubernetes of this machine's own, which lives as long as this script's standard input is open.
#
#   tests/kubernetes/cluster.sh api|nodes FOLDER
#
# `api` is etcd, kube-apiserver, controllers and the mpi-operator, ready within 10 s: pods are
# admitted and run nowhere. `nodes` is that with a scheduler, two nodes, and the controllers of Argo
# Workflows, JobSet and Kubeflow's trainer. Prints "ready" when it is. FOLDER gets `logs`, `volumes`
# (seen by both nodes), `run` while it runs, and `enter`, a script that runs a command (such as
# kubectl) inside.
#
# Everything is in namespaces that end with this script, whatever ends it: nothing is listened on,
# routed or mounted outside. Outside there are only control groups, which the end of this script
# removes, or the start of the next one.
set -euo pipefail
mode=${1:?expected api or nodes} FOLDER=$(realpath -m "${2:?expected a folder}")
cd "$(dirname "$0")"
. ./folders.sh
. ./control-groups.sh

fail() {
    printf 'kubernetes cluster: %s\n' "$*" >&2
    exit 3
}

prepare_folder() {
    rm -rf "$FOLDER/run" "$FOLDER/logs"
    mkdir -p "$FOLDER"/{run,logs,volumes/results,volumes/shared}
    # The user of the image.
    chown 1000:1000 "$FOLDER"/volumes/*
}

# The first process of the namespaces is the child of the one that makes them; they end with it.
start() {
    export FOLDER MODE=$mode GROUP_PREFIX=yardstick-$$
    setpriv --pdeathsig KILL unshare --mount --net --pid --fork --mount-proc --kill-child \
        --propagation private ./control-plane.sh </dev/null >"$FOLDER/logs/control-plane.log" 2>&1 &
    outer=$!
    until inner=$(pgrep --parent "$outer"); do sleep 0.05; done
    cat >"$FOLDER/enter" <<ENTER
#!/bin/sh
export KUBECONFIG=$FOLDER/run/admin.kubeconfig PATH=$PROGRAMS:/usr/sbin:/sbin:\$PATH
exec nsenter --target $inner --mount --net --pid "\$@"
ENTER
    chmod +x "$FOLDER/enter"
}

stop() {
    kill -KILL "$outer" 2>/dev/null || true
    wait "$outer" 2>/dev/null || true
    remove_groups "$$"
    rm -rf "$FOLDER/run" "$FOLDER/enter"
}

wait_until_ready() {
    for _ in $(seq 1200); do
        if [ -e "$FOLDER/run/ready" ]; then
            return
        fi
        kill -0 "$outer" 2>/dev/null || break
        sleep 0.1
    done
    tail -n 20 "$FOLDER/logs/control-plane.log" >&2
    fail "not ready after 120 s, or ended: see $FOLDER/logs"
}

[ "$(id -u)" = 0 ] || fail "expected root: it makes namespaces, mounts and control groups"
mkdir -p "$FOLDER"
# One cluster in a folder at a time: held by all its processes, until the last has ended.
exec {lock}>"$FOLDER/lock"
flock --timeout 30 "$lock" || fail "another cluster runs in $FOLDER"
remove_stale_groups
prepare_folder
start
trap stop EXIT
wait_until_ready
printf 'ready\n'
# Until the end of input, or of the cluster.
while kill -0 "$outer" 2>/dev/null; do
    status=0
    read -r -t 1 _ || status=$?
    [ "$status" = 0 ] || [ "$status" -gt 128 ] || break
done
