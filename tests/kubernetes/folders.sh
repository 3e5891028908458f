# Where the test cluster keeps what it needs; the scripts of this folder, which is the current one,
# source this file.
# shellcheck shell=bash

KUBERNETES_VERSION=$(sed -n 's/^require k8s.io\/kubernetes v//p' modules/kubernetes/go.mod)
# Outside of the checkout, and kept: another checkout uses it too.
CACHE=${XDG_CACHE_HOME:-$HOME/.cache}/yardstick/kubernetes-$KUBERNETES_VERSION
export PROGRAMS=$CACHE/programs
# Root file system of Debian, for the image, and the images.
export DEBIAN_ROOT=$CACHE/debian-root IMAGES=$CACHE/images
