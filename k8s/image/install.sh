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
# Each with the SHA-256 of its wheels on PyPI: those of the wheels for x86-64 and for ARM.
case $cuda in
"") wheels="" ;;
12)
    wheels="
nvidia-cuda-nvrtc-cu12==12.9.86
    210cf05005a447e29214e9ce50851e83fc5f4358df8b453155d5e1918094dcb4
    096d4de6bda726415dfaf3198d4f5c522b8e70139c97feef5cd2ca6d4cd9cead
nvidia-cublas-cu12==12.9.3.13
    d7d51055f161b317c7105ddaae90e71eda059026074ffef93cf7cde2886bfe72
    918a8781956115d34b1db49e0e7b7befba8d101661c4b560ed4d42e0e17bebc3
nvidia-nccl-cu12==2.32.3
    bb94b2348e4861d5e8aa00b36c3d12d9bdf9c6369b82cbb723de0b582280a21c
    061af42ae1044816820e16b872075e243d1ac0656f51860fbc8e106c257aa83a"
    ;;
13)
    wheels="
nvidia-cuda-nvrtc==13.5.37
    86b4d68058807988b7d9af5b44917a0601e9c337f35ccd657bfb3c759ff8d8bc
    36e4fa2a8ada293f5693d308e531c196ab6f91cf7a0ff479bf96a537d43a6096
nvidia-cublas==13.10.0.20
    dcc6d63884c53d07e267ce7e6feac17b2538cebaafec5db865736c3e28e4dc84
    c5f3418c0a845232a8cabc58f6fa52cfae7d8bd3680d94c3907aca710fd48d70
nvidia-nccl-cu13==2.32.3
    1459723080ac889d73a26edfa3e04383a7928ab31ac8f0ec43b3ea9548b04ff3
    a5bee92b2f4af218c109f8d221c3c9adcc752b94ae0ffcb0ed5abf9341a7724c"
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
    # Where sshd of a job as root gives up its rights; an init system would make it.
    mkdir -p /run/sshd
    cat >/etc/ssh/ssh_config.d/yardstick.conf <<'SSH'
Host *
    Port 2222
    StrictHostKeyChecking no
    UserKnownHostsFile /dev/null
    LogLevel ERROR
SSH
}

# As a file of requirements for pip: other wheels than those are refused.
requirements() {
    for word in $wheels; do
        case $word in
        *==*) printf '\n%s' "$word" ;;
        *) printf ' --hash=sha256:%s' "$word" ;;
        esac
    done
    printf '\n'
}

install_wheels() {
    install_packages python3-venv
    python3 -m venv /opt/nvidia
    requirements >/tmp/requirements.txt
    /opt/nvidia/bin/pip install --quiet --disable-pip-version-check --no-cache-dir --no-deps \
        --only-binary :all: --require-hashes --requirement /tmp/requirements.txt
    rm /tmp/requirements.txt
}

# shellcheck disable=SC2086 # a list
install_packages $packages
add_user
configure_ssh
[ -z "$wheels" ] || install_wheels
apt-get -qq clean
rm -rf /var/lib/apt/lists/* /var/log/*
