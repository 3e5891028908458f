#!/usr/bin/env bash
# The first process of an emulated pod: mounts what a container runtime does, and becomes the
# container's process. It runs in mount, PID, UTS, IPC and network namespaces of the pod's own.
#
#   pod.sh FOLDER LAYER HOSTNAME [SOURCE:TARGET...] -- COMMAND...
#
# The container's root is this machine's, with the files of LAYER over it, and is mounted in FOLDER,
# which is empty. It is read-only; a folder or file SOURCE is seen at TARGET.
set -euo pipefail

folder=$1
layer=$2
name=$3
shift 3

# Layers must not be inside each other, so LAYER is copied to another file system than the root's.
mount -t tmpfs -o mode=755 tmpfs "$folder"
cp -a "$layer" "$folder/layer"
root=$folder/root
mkdir "$root"
mount -t overlay -o "lowerdir=$folder/layer:/" overlay "$root"
mount -t proc proc "$root/proc"
mount -t sysfs -o ro sysfs "$root/sys"
mount -t tmpfs -o mode=755 tmpfs "$root/dev"
mkdir "$root/dev/pts" "$root/dev/shm"
mount -t devpts -o newinstance,ptmxmode=0666 devpts "$root/dev/pts"
ln -s pts/ptmx "$root/dev/ptmx"
mount -t tmpfs -o mode=1777,size=64m tmpfs "$root/dev/shm"
for device in full null random tty urandom zero; do
    touch "$root/dev/$device"
    mount --bind "/dev/$device" "$root/dev/$device"
done
while [ "$1" != -- ]; do
    mount --bind "${1%%:*}" "$root/${1#*:}"
    shift
done
shift
hostname "$name"
exec chroot "$root" "$@"
