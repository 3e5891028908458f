#!/usr/bin/env bash
# Builds the programs of the test cluster from Go modules, once, and prints the folder they are in.
#
#   tests/kubernetes/programs.sh [--if-cached]
#
# The folder is outside of the checkout, because the first build takes some 20 minutes on two idle
# cores; it is kept. With --if-cached nothing is built: exit code 1 if a program or a package is
# missing that cluster.sh needs in mode `api`. Versions are those of modules/*/go.mod; a change
# there builds that program again.
set -euo pipefail
cd "$(dirname "$0")"
. ./folders.sh

fail() {
    printf 'kubernetes programs: %s\n' "$*" >&2
    exit 3
}

# What a program is built from.
stamp() {
    { cat "modules/$1"/* && linker_flags; } | sha256sum | cut -d ' ' -f 1
}

# Whether a program is there and of this version: MODULE PROGRAM.
is_built() {
    [ -s "$PROGRAMS/$2" ] && [ "$(cat "$PROGRAMS/$2.stamp" 2>/dev/null)" = "$(stamp "$1")" ]
}

# Remembers that a program is complete: MODULE PROGRAM.
built() {
    [ -s "$PROGRAMS/$2.new" ] || fail "$2 could not be made: see above"
    mv "$PROGRAMS/$2.new" "$PROGRAMS/$2"
    stamp "$1" >"$PROGRAMS/$2.stamp"
}

# Folder of a module's source: MODULE PATH.
source_of() {
    (cd "modules/$1" && go mod download "$2" && go list -m -f '{{.Dir}}' "$2")
}

# The version is compiled in, as Kubernetes' own build does: clients and servers compare it.
linker_flags() {
    local name=k8s.io/component-base/version
    printf '%s' "-s -w -X $name.gitVersion=v$KUBERNETES_VERSION -X $name.gitMajor=1" \
        " -X $name.gitMinor=$(cut -d . -f 2 <<<"$KUBERNETES_VERSION") -X $name.gitTreeState=clean"
}

# Compiles one program: MODULE PROGRAM PACKAGE [FLAG...].
compile() {
    local module=$1 program=$2 package=$3
    shift 3
    printf 'kubernetes programs: building %s\n' "$program" >&2
    (cd "modules/$module" && CGO_ENABLED=0 GOFLAGS=-mod=readonly go build -trimpath "$@" \
        -ldflags "$(linker_flags)" -o "$PROGRAMS/$program.new" "$package") ||
        fail "$program could not be built: see above"
    built "$module" "$program"
}

# What holds a pod's namespaces. Its source comes with Kubernetes.
compile_pause() {
    local source
    source=$(source_of kubernetes k8s.io/kubernetes)
    gcc -Os -static -DVERSION=yardstick -o "$PROGRAMS/pause.new" "$source/build/pause/linux/pause.c"
    built kubernetes pause
}

# Argo's module lacks signal_linux.go at the module proxy. signal_darwin.go, which it has, uses
# nothing that Linux lacks: a copy of the module has it under both names. (Go's -overlay refuses to
# change the cache of modules.)
compile_argoexec() {
    local argo=github.com/argoproj/argo-workflows/v3 copy
    copy=$(mktemp -d)
    copy_module argo-workflows $argo "$copy/source"
    (cd "$copy/source/workflow/executor/osspecific" && cp signal_darwin.go signal_linux.go)
    cp modules/argo-workflows/go.mod "$copy/argo.mod"
    cp modules/argo-workflows/go.sum "$copy/argo.sum"
    go mod edit -replace "$argo=$copy/source" "$copy/argo.mod"
    compile "$@" -modfile "$copy/argo.mod"
    rm -r "$copy"
}

# Copies a module's source, which is read-only, to where it can be changed: MODULE PATH FOLDER.
copy_module() {
    local source
    source=$(source_of "$1" "$2")
    cp -r --no-preserve=mode "$source" "$3"
}

# The objects of a controller's own manifests: MODULE FILE PATH FOLDER.
render() {
    local source
    source=$(source_of "$1" "$3")
    render_folder "$1" "$2" "$source/$4"
}

# Without its Deployment: its image cannot be pulled, so it runs as a process beside the API server.
render_folder() {
    "$PROGRAMS/kubectl" kustomize "$3" |
        awk 'BEGIN { RS = "---\n"; ORS = "---\n" } !/\nkind: Deployment\n/' >"$PROGRAMS/$2.new"
    built "$1" "$2"
}

# The trainer's manifests fetch JobSet's from the internet: those come from JobSet's own module.
render_trainer() {
    local copy
    copy=$(mktemp -d)
    copy_module trainer github.com/kubeflow/trainer/v2 "$copy/source"
    sed -i '/third-party\/jobset/d' "$copy/source/manifests/overlays/manager/kustomization.yaml"
    render_folder trainer trainer.yaml "$copy/source/manifests/overlays/manager"
    rm -r "$copy"
}

# Calls "$1 MODULE PROGRAM [ARGUMENT...]" for what mode `api` needs, until that fails.
each_of_api() {
    local program operator=github.com/kubeflow/mpi-operator
    for program in kube-apiserver kube-controller-manager kube-scheduler kubectl kubelet; do
        "$1" kubernetes "$program" "k8s.io/kubernetes/cmd/$program" || return
    done
    "$1" mpi-operator mpi-operator $operator/cmd/mpi-operator || return
    "$1" mpi-operator mpi-operator.yaml $operator manifests/overlays/standalone
}

# The same for what mode `nodes` needs beyond that.
each_of_nodes() {
    local argo=github.com/argoproj/argo-workflows/v3 trainer=github.com/kubeflow/trainer/v2
    "$1" kubernetes pause || return
    "$1" coredns coredns . || return
    "$1" argo-workflows workflow-controller $argo/cmd/workflow-controller || return
    "$1" argo-workflows argoexec $argo/cmd/argoexec || return
    "$1" argo-workflows argo-workflows.yaml $argo manifests/cluster-install || return
    "$1" jobset jobset sigs.k8s.io/jobset || return
    "$1" jobset jobset.yaml sigs.k8s.io/jobset config/default || return
    "$1" trainer trainer $trainer/cmd/trainer-controller-manager || return
    "$1" trainer trainer.yaml
}

build_missing() {
    if is_built "$1" "$2"; then
        return
    fi
    command -v go >/dev/null ||
        fail "expected Go 1.26 or newer in PATH, found none: https://go.dev/dl"
    case $2 in
    pause) compile_pause ;;
    argoexec) compile_argoexec "$@" ;;
    trainer.yaml) render_trainer ;;
    *.yaml) render "$@" ;;
    *) compile "$@" ;;
    esac
}

# Whether cluster.sh finds what Debian's packages bring: after an image with the cache alone.
has_packages() {
    local program
    for program in etcd openssl setpriv nsenter pgrep; do
        PATH=$PATH:/usr/sbin:/sbin command -v "$program" >/dev/null || return
    done
}

if [ "${1:-}" = --if-cached ]; then
    has_packages && each_of_api is_built || exit 1
else
    mkdir -p "$PROGRAMS"
    each_of_api build_missing
    each_of_nodes build_missing
fi
printf '%s\n' "$PROGRAMS"
