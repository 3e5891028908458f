#!/bin/sh
# Installs into Debian 12 what a pod of yardstick needs besides the program: run by the Dockerfile.
#
#   install.sh [CUDA]        CUDA: 12 or 13, to add NVIDIA's libraries; nothing without it
set -eu

cuda=${1:-}
# Open MPI 4.1, which reports the loss of a worker more often than 5 does; ssh in both directions;
# the certificates of object stores.
packages="openmpi-bin openssh-client openssh-server ca-certificates"
# The libraries that yardstick opens where there is a GPU; the driver comes with the node. Without
# what they depend on: yardstick opens them one by one.
case $cuda in
"") wheels="" ;;
12)
    wheels="nvidia-cuda-nvrtc-cu12==12.9.86 nvidia-cublas-cu12==12.9.3.13
        nvidia-cudnn-cu12==9.27.0.42 nvidia-nccl-cu12==2.32.3"
    ;;
13)
    wheels="nvidia-cuda-nvrtc==13.5.37 nvidia-cublas==13.10.0.20
        nvidia-cudnn-cu13==9.28.1.4 nvidia-nccl-cu13==2.32.3"
    ;;
*)
    echo "install.sh: expected CUDA 12, 13 or nothing, found $cuda" >&2
    exit 2
    ;;
esac

install_packages() {
    export DEBIAN_FRONTEND=noninteractive
    apt-get -qq update
    # shellcheck disable=SC2086 # a list
    apt-get -qq install --yes --no-install-recommends "$@" >/dev/null
}

# A user with an entry in passwd: ssh refuses one without.
add_user() {
    groupadd --gid 1000 yardstick
    useradd --uid 1000 --gid 1000 --create-home --shell /bin/sh yardstick
    # Where the operator mounts the key of the job.
    install --directory --owner=yardstick --group=yardstick --mode=700 /home/yardstick/.ssh
}

# Host keys are the job's, made by the operator for each job, so there is nothing to compare them
# with; the network policy keeps others away.
configure_ssh() {
    rm -f /etc/ssh/ssh_host_*
    cat >/etc/ssh/ssh_config.d/yardstick.conf <<'SSH'
Host *
    Port 2222
    StrictHostKeyChecking no
    UserKnownHostsFile /dev/null
    LogLevel ERROR
SSH
}

install_wheels() {
    install_packages python3-venv
    python3 -m venv /opt/nvidia
    # shellcheck disable=SC2086 # a list
    /opt/nvidia/bin/pip install --quiet --disable-pip-version-check --no-cache-dir --no-deps $wheels
}

# shellcheck disable=SC2086 # a list
install_packages $packages
add_user
configure_ssh
[ -z "$wheels" ] || install_wheels
apt-get -qq clean
rm -rf /var/lib/apt/lists/* /var/log/*
