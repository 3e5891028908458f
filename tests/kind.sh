#!/usr/bin/env bash
# From nothing to a first verdict, on a cluster of kind: two nodes, the operator, the image, the
# namespace, the first job, its record.
#
#   tests/kind.sh
#
# Needs Docker, kind and kubectl; the cluster `yardstick-test` is deleted first and at the end.
# Exits with the exit code in the record, or 3 where something is missing. Files are in target/kind.
set -euo pipefail
cd "$(dirname "$0")/.."

cluster=yardstick-test
image=localhost/yardstick:kind
folder=$PWD/target/kind
operator=https://raw.githubusercontent.com/kubeflow/mpi-operator/v0.8.2
operator+=/deploy/v2beta1/mpi-operator.yaml
export KUBECONFIG=$folder/kubeconfig

fail() {
    printf 'kind: %s\n' "$*" >&2
    exit 3
}

check_tools() {
    local tool
    for tool in docker kind kubectl; do
        command -v "$tool" >/dev/null || fail "expected $tool in PATH, found none: install it"
    done
    docker info >/dev/null 2>&1 || fail "expected a Docker daemon that answers: see \`docker info\`"
}

# Both workers see one folder of this machine: kind's own volumes are of one node each.
write_cluster() {
    local role
    printf 'kind: Cluster\napiVersion: kind.x-k8s.io/v1alpha4\nnodes:\n- role: control-plane\n'
    for role in worker worker; do
        printf -- '- role: %s\n  extraMounts:\n' "$role"
        printf '  - {hostPath: "%s", containerPath: /volumes}\n' "$folder/volumes"
    done
}

# Volume and claim name each other; the empty class keeps kind's own provisioner away.
write_volume() {
    cat <<YAML
---
apiVersion: v1
kind: PersistentVolume
metadata: {name: yardstick-$1}
spec:
  capacity: {storage: 1Ti}
  accessModes: [ReadWriteMany]
  storageClassName: ""
  hostPath: {path: /volumes/$1, type: Directory}
  claimRef: {namespace: yardstick, name: yardstick-$1}
YAML
}

# The overlay is beside the base: kustomize reads relative paths only.
write_overlay() {
    mkdir -p "$folder/overlay"
    { write_volume results && write_volume shared; } >"$folder/overlay/volumes.yaml"
    cat >"$folder/overlay/kustomization.yaml" <<YAML
apiVersion: kustomize.config.k8s.io/v1beta1
kind: Kustomization
resources:
- ../../../k8s/base
- volumes.yaml
patches:
- target: {kind: PersistentVolumeClaim}
  patch: |
    - {op: add, path: /spec/storageClassName, value: ""}
YAML
}

# The user of the image writes into them.
make_volumes() {
    mkdir -p "$folder"/volumes/{results,shared}
    chmod 777 "$folder"/volumes/*
}

start_cluster() {
    write_cluster >"$folder/cluster.yaml"
    kind delete cluster --name "$cluster"
    trap 'kind delete cluster --name "$cluster"' EXIT
    kind create cluster --name "$cluster" --config "$folder/cluster.yaml" --wait 3m
    docker build --file k8s/image/Dockerfile --build-arg REVISION="$(git rev-parse HEAD)" \
        --tag "$image" .
    kind load docker-image "$image" --name "$cluster"
    kubectl apply --server-side --filename "$operator"
    kubectl --namespace mpi-operator rollout status deployment --timeout=3m
    kubectl apply --kustomize "$folder/overlay"
}

yardstick() {
    docker run --rm --volume "$folder:$folder" --workdir "$folder" "$image" "$@"
}

run_job() {
    # Docker's machine may have two processors, of which the cluster itself uses some.
    sed -e "s|^images = .*|images = { cpu = \"$image\", pull_policy = \"Never\" }|" \
        -e 's|^cpu = .*|cpu = "500m"|' \
        k8s/jobs/smoke-cpu.toml >"$folder/smoke-cpu.toml"
    yardstick k8s render "$folder/smoke-cpu.toml" >"$folder/smoke-cpu.yaml"
    kubectl apply --server-side --filename "$folder/smoke-cpu.yaml"
    # A job that fails ends too: what counts is the record.
    for _ in $(seq 240); do
        [ -z "$(kubectl --namespace yardstick get mpijob/smoke-cpu \
            --output jsonpath='{.status.completionTime}')" ] || break
        sleep 5
    done
    kubectl --namespace yardstick logs --tail 20 \
        --selector training.kubeflow.org/job-name=smoke-cpu,training.kubeflow.org/job-role=launcher
}

check_tools
# The user of the image has written into it.
if [ -d "$folder/volumes" ]; then
    docker run --rm --user 0 --volume "$folder:$folder" --entrypoint rm "$image" -rf \
        "$folder/volumes"
fi
rm -rf "$folder"
mkdir -p "$folder"
make_volumes
write_overlay
start_cluster
run_job
record=$folder/volumes/results/smoke-cpu/record.json
[ -e "$record" ] || fail "expected a record in $record, found none: see the log above"
cp "$record" "$folder/record.json"
yardstick report "$folder/record.json"
code=$(sed -n 's/^  "exit_code": \([0-9][0-9]*\).*/\1/p' "$record")
[ -n "$code" ] || fail "expected an exit code in $record, found none: the run has not ended"
exit "$code"
