#!/usr/bin/env bash
# Puts what tests/manifests needs beyond Debian's packages into target/manifest-tools, once, and
# prints that folder: the definitions of the operators' objects, out of their Go modules, and
# `kustomize`, which is kubectl's where that is new enough, and else built from its module.
set -euo pipefail
cd "$(dirname "$0")/.."

operator=github.com/kubeflow/mpi-operator@v0.8.2
prometheus=github.com/prometheus-operator/prometheus-operator@v0.93.1
trainer=github.com/kubeflow/trainer/v2@v2.1.0
argo=github.com/argoproj/argo-workflows/v3@v3.7.2
monitoring=example/prometheus-operator-crd/monitoring.coreos.com
# FILE=MODULE@VERSION/PATH: the definitions.
definitions=(
    "mpijob=$operator/manifests/base/kubeflow.org_mpijobs.yaml"
    "trainingruntime=$trainer/manifests/base/crds/trainer.kubeflow.org_trainingruntimes.yaml"
    "trainjob=$trainer/manifests/base/crds/trainer.kubeflow.org_trainjobs.yaml"
    "workflowtemplate=$argo/manifests/base/crds/full/argoproj.io_workflowtemplates.yaml"
    "podmonitor=$prometheus/${monitoring}_podmonitors.yaml"
    "prometheusrule=$prometheus/${monitoring}_prometheusrules.yaml"
)
kustomize=sigs.k8s.io/kustomize/kustomize/v5@v5.7.1
folder=$PWD/target/manifest-tools
wanted="${definitions[*]} $kustomize"

fail() {
    printf 'manifest-tools: %s\n' "$*" >&2
    exit 3
}

# fetch NAME MODULE@VERSION/PATH: the file of a module, whose checksum Go knows.
fetch() {
    local version=${2#*@}
    local module=${2%%@*}@${version%%/*} source
    source=$(go mod download -json "$module" | sed -n 's/^\t"Dir": "\(.*\)",$/\1/p')
    [ -n "$source" ] || fail "$module could not be downloaded"
    cp "$source/${version#*/}" "$folder/$1.yaml"
    chmod 644 "$folder/$1.yaml"
}

# Components came with version 4, and Debian 12 has a kubectl with version 2.
kubectl_is_new_enough() {
    kubectl version --client 2>/dev/null | grep -qE '^Kustomize Version: v([5-9]|[1-9][0-9])\.'
}

install_kustomize() {
    if kubectl_is_new_enough; then
        # shellcheck disable=SC2016 # expanded when it runs
        printf '#!/bin/sh\n# kubectl has it built in.\nexec kubectl kustomize "$@"\n' \
            >"$folder/kustomize"
        chmod +x "$folder/kustomize"
        return
    fi
    GOBIN=$folder/bin go install "$kustomize"
    printf '#!/bin/sh\n# Built from its Go module.\nexec "%s" build "$@"\n' \
        "$folder/bin/kustomize" >"$folder/kustomize"
    chmod +x "$folder/kustomize"
}

if [ "$(cat "$folder/installed" 2>/dev/null)" != "$wanted" ]; then
    command -v go >/dev/null ||
        fail "expected Go 1.26 or newer in PATH, found none: https://go.dev/dl"
    rm -rf "$folder"
    mkdir -p "$folder"
    for definition in "${definitions[@]}"; do
        fetch "${definition%%=*}" "${definition#*=}"
    done
    install_kustomize
    printf '%s\n' "$wanted" >"$folder/installed"
fi
printf '%s\n' "$folder"
