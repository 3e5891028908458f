#!/usr/bin/env bash
# Builds the images of the test cluster without a Docker daemon, and prints the folder they are in.
#
#   tests/kubernetes/image.sh PROGRAM
#
# `yardstick.tar` is k8s/image/Dockerfile with PROGRAM in place of what its stage `build` makes, on
# a Debian that debootstrap installs, as there may be no registry here; `pause.tar` holds a pod's
# namespaces, and `argoexec.tar` is what Argo Workflows runs in its pods. Layers and Debian are kept
# in the cache, so only the program is new each time.
set -euo pipefail
program=$(realpath "${1:?expected the program}")
cd "$(dirname "$0")"
. ./folders.sh

# A mount namespace of its own: what a build mounts ends with it.
if [ -z "${IN_NAMESPACE:-}" ]; then
    IN_NAMESPACE=yes exec unshare --mount --propagation private "./${0##*/}" "$program"
fi

say() {
    printf 'kubernetes image: %s\n' "$*" >&2
}

in_storage() {
    buildah --root "$CACHE/storage" --runroot "$CACHE/storage-run" "$@"
}

quiet_buildah() {
    in_storage "$@" >"$IMAGES/build.log" 2>&1 || {
        cat "$IMAGES/build.log" >&2
        exit 3
    }
}

# Debian 12, the smallest: what the Dockerfile's base image is too.
install_debian() {
    say "installing Debian 12"
    rm -rf "$DEBIAN_ROOT.new"
    debootstrap --variant=minbase bookworm "$DEBIAN_ROOT.new" >"$IMAGES/build.log" ||
        { tail -n 5 "$IMAGES/build.log" >&2 && exit 3; }
    rm -rf "$DEBIAN_ROOT.new"/var/cache/apt/archives/*.deb
    mv "$DEBIAN_ROOT.new" "$DEBIAN_ROOT"
}

# An image of files alone: NAME FILES TARGET [SETTING...].
image_of() {
    local name=$1 files=$2 target=$3
    shift 3
    in_storage rm "$name" >/dev/null 2>&1 || true # of a build that was killed
    quiet_buildah from --name "$name" scratch
    quiet_buildah add "$name" "$files" "$target"
    [ $# = 0 ] || quiet_buildah config "$@" "$name"
    quiet_buildah commit --rm "$name" "localhost/$name:test"
}

has_image() {
    in_storage inspect --type image "localhost/$1:test" >/dev/null 2>&1
}

write_archive() {
    rm -f "$IMAGES/$1.tar"
    rm -f "$IMAGES/$1.tar.new"
    quiet_buildah push "localhost/$1:test" "docker-archive:$IMAGES/$1.tar.new:localhost/$1:test"
    mv "$IMAGES/$1.tar.new" "$IMAGES/$1.tar"
}

# As upstream's: on nothing but a folder for temporary files, its own user, and found by name.
build_argoexec() {
    local root=$CACHE/argoexec-root
    [ "$PROGRAMS/argoexec" -nt "$IMAGES/argoexec.tar" ] || return 0
    rm -rf "$root"
    install -D "$PROGRAMS/argoexec" "$root/bin/argoexec"
    mkdir --mode 1777 "$root/tmp"
    image_of argoexec "$root" / --entrypoint '["argoexec"]' --env PATH=/bin --user 8737
    rm -r "$root"
    write_archive argoexec
}

# The Dockerfile, but for its stage `build`, which is this folder instead.
build_yardstick() {
    local built=$CACHE/built
    mkdir -p "$built/program"
    strip -o "$built/program/yardstick" "$program"
    quiet_buildah build --isolation chroot --layers \
        --build-arg DEBIAN_IMAGE=localhost/debian:test --build-context "build=$built" \
        --file ../../k8s/image/Dockerfile --ignorefile ../../k8s/image/Dockerfile.dockerignore \
        --tag localhost/yardstick:test ../..
    rm -r "$built"
}

export STORAGE_DRIVER=overlay
mkdir -p "$IMAGES"
[ -d "$DEBIAN_ROOT" ] || install_debian
has_image debian || image_of debian "$DEBIAN_ROOT" /
has_image pause || image_of pause "$PROGRAMS/pause" /pause --entrypoint '["/pause"]'
build_argoexec
build_yardstick
write_archive pause
write_archive yardstick
printf '%s\n' "$IMAGES"
