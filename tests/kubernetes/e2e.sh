#!/usr/bin/env bash
# Runs the tests of this folder on a cluster of this machine's own, and prints their table.
#
#   tests/kubernetes/e2e.sh [ARGUMENT...]      arguments of the test program: parts of tests' names
#   tests/kubernetes/e2e.sh shell              a shell in the cluster instead, with `kubectl`
#
# Needs root; `make k8s-e2e` installs the rest. Logs are in target/kubernetes/logs.
set -euo pipefail
cd "$(dirname "$0")/../.."

here=tests/kubernetes
folder=$PWD/target/kubernetes
cargo_test=(cargo test --profile "${PROFILE:=testing}" --workspace --test kubernetes)

# Its input is a pipe from here: it ends when this script does, however that happens.
start_cluster() {
    local line
    coproc CLUSTER { exec "$here/cluster.sh" nodes "$folder"; }
    cluster=$CLUSTER_PID
    read -r line <&"${CLUSTER[0]}" && [ "$line" = ready ] || exit 3
}

stop_cluster() {
    local input=${CLUSTER[1]}
    exec {input}>&-
    wait "$cluster"
}

print_table() {
    cat <<TEXT
# Jobs on a real Kubernetes

What \`make k8s-e2e\` printed on $(date -u +%F), on $(nproc) cores, with
$("target/$PROFILE/yardstick" --version | cut -d ' ' -f 1,2), Kubernetes $KUBERNETES_VERSION,
mpi-operator $(version_of mpi-operator), Argo Workflows $(version_of argo-workflows), Kubeflow's
trainer $(version_of trainer), JobSet $(version_of jobset),
$(containerd --version | cut -d ' ' -f 1,3),
$(runc --version | head -n 1), Linux $(uname -r).

Two workers on two nodes train 200 steps of \`smoke\`, and what happens to them happens after
step 50: seconds are from then on, or from \`kubectl apply\`, to the end of the launcher. Each job
that went on ended with the losses and weights of one that nothing happened to, bit for bit.
"code" is the exit code of the launcher, or in a night of the task that says how it ended. "status"
is that of the MPIJob, TrainJob or Workflow. That of a job does not count: the record does.

TEXT
    printf '| case | what happened | code | record | status | seconds | what is said |\n'
    printf '|---|---|---|---|---|---|---|\n'
    cat "$folder"/rows/*.md
}

# That of the first module that a folder requires.
version_of() {
    sed -n 's|^require [^ ]* v||p' "$here/modules/$1/go.mod" | head -n 1
}

"$here/programs.sh" >/dev/null
"${cargo_test[@]}" --no-run
"$here/image.sh" "target/$PROFILE/yardstick" >/dev/null
mkdir -p "$folder"
start_cluster
if [ "${1:-}" = shell ]; then
    "$folder/enter" bash
    stop_cluster
    exit
fi
rm -rf "$folder/rows"
status=0
YARDSTICK_KUBERNETES=$folder "${cargo_test[@]}" -- --test-threads=1 "$@" || status=$?
stop_cluster
KUBERNETES_VERSION=$(cd "$here" && . ./folders.sh && printf '%s' "$KUBERNETES_VERSION")
if [ "$status" = 0 ]; then
    print_table | tee "$folder/table.md"
else
    cat "$folder"/rows/*.md
fi
exit "$status"
