#!/usr/bin/env bash
# Builds the programs of the test cluster from Go modules, once, and prints the folder they are in.
#
#   tests/kubernetes/programs.sh [--if-cached]
#
# The folder is outside of the checkout, because the first build takes 11 minutes on two idle cores;
# it is kept. With --if-cached nothing is built: exit code 1 if a program or a package is missing.
# Versions are those of modules/*/go.mod; a change there builds that program again.
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
    [ "$(cat "$PROGRAMS/$2.stamp" 2>/dev/null)" = "$(stamp "$1")" ]
}

# Remembers that a program is complete: MODULE PROGRAM.
built() {
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

# Compiles one program: MODULE PROGRAM PACKAGE.
compile() {
    printf 'kubernetes programs: building %s\n' "$2" >&2
    (cd "modules/$1" && CGO_ENABLED=0 GOFLAGS=-mod=readonly go build -trimpath \
        -ldflags "$(linker_flags)" -o "$PROGRAMS/$2.new" "$3") ||
        fail "$2 could not be built: see above"
    built "$1" "$2"
}

# What holds a pod's namespaces. Its source comes with Kubernetes.
compile_pause() {
    local source
    source=$(source_of kubernetes k8s.io/kubernetes)
    gcc -Os -static -DVERSION=yardstick -o "$PROGRAMS/pause.new" "$source/build/pause/linux/pause.c"
    built kubernetes pause
}

# The operator's own objects, without its Deployment: its image cannot be pulled, so it runs as a
# process beside the API server.
render_operator() {
    local source
    source=$(source_of mpi-operator github.com/kubeflow/mpi-operator)
    "$PROGRAMS/kubectl" kustomize "$source/manifests/overlays/standalone" |
        awk 'BEGIN { RS = "---\n"; ORS = "---\n" } !/kind: Deployment/' \
            >"$PROGRAMS/mpi-operator.yaml.new"
    built mpi-operator mpi-operator.yaml
}

# Calls "$1 MODULE PROGRAM [PACKAGE]" for everything, until that fails.
each() {
    local program
    for program in kube-apiserver kube-controller-manager kube-scheduler kubectl kubelet; do
        "$1" kubernetes "$program" "k8s.io/kubernetes/cmd/$program" || return
    done
    "$1" kubernetes pause || return
    "$1" coredns coredns . || return
    "$1" mpi-operator mpi-operator github.com/kubeflow/mpi-operator/cmd/mpi-operator || return
    "$1" mpi-operator mpi-operator.yaml
}

build_missing() {
    if is_built "$1" "$2"; then
        return
    fi
    command -v go >/dev/null ||
        fail "expected Go 1.26 or newer in PATH, found none: https://go.dev/dl"
    case $2 in
    pause) compile_pause ;;
    mpi-operator.yaml) render_operator ;;
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
    has_packages && each is_built || exit 1
else
    mkdir -p "$PROGRAMS"
    each build_missing
fi
printf '%s\n' "$PROGRAMS"
