#!/usr/bin/env bash
# A Slurm of two nodes, node1 and node2, with the network namespace of each, a bridge between them
# and slurmctld beside it. It says "ready" when it takes jobs, and lives until its input ends. All
# ends with it, also when it is killed.
#
#   tests/slurm/cluster.sh FOLDER
#
# Slurm's clients reach it with SLURM_CONF=FOLDER/slurm.conf in this process's network namespace.
# The nodes take root's ssh connections from each other.
# Needs root, and Debian's iproute2, munge, openssh-server, slurm-client, slurmctld and slurmd.
set -euo pipefail
folder=$1
if [ "${2:-}" != inside ]; then
    exec unshare --net --mount --pid --fork --kill-child --mount-proc "$0" "$folder" inside
fi

nodes=(node1 node2)
mkdir -p "$folder"/{state,logs}
hosts=$folder/hosts
printf '127.0.0.1 localhost\n10.79.0.100 controller\n10.79.0.1 node1\n10.79.0.2 node2\n' >"$hosts"
mount --bind "$hosts" /etc/hosts

ip link set lo up
ip link add bridge type bridge
ip address add 10.79.0.100/24 dev bridge
ip link set bridge up

cat >"$folder/slurm.conf" <<EOF
ClusterName=test
SlurmctldHost=controller(10.79.0.100)
AuthType=auth/munge
AuthInfo=socket=$folder/munge.socket
SlurmUser=root
SlurmdUser=root
MpiDefault=none
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
SwitchType=switch/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SlurmdParameters=config_overrides
ReturnToService=2
StateSaveLocation=$folder/state
SlurmdSpoolDir=$folder/spool.%n
SlurmctldPidFile=$folder/slurmctld.pid
SlurmdPidFile=$folder/slurmd.%n.pid
NodeName=node1 NodeAddr=10.79.0.1 CPUs=4 RealMemory=1000
NodeName=node2 NodeAddr=10.79.0.2 CPUs=4 RealMemory=1000
PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP
EOF
export SLURM_CONF=$folder/slurm.conf

head --bytes 1024 /dev/urandom >"$folder/munge.key"
chmod 400 "$folder/munge.key"
munged --force --foreground --key-file="$folder/munge.key" --socket="$folder/munge.socket" \
    --pid-file="$folder/munge.pid" --log-file="$folder/logs/munge" \
    --seed-file="$folder/munge.seed" &
until [ -S "$folder/munge.socket" ]; do sleep 0.05; done

ssh-keygen -q -t ed25519 -N '' -C '' -f "$folder/key"
cat >"$folder/sshd_config" <<EOF
HostKey $folder/key
AuthorizedKeysFile $folder/key.pub
PermitRootLogin yes
PidFile none
StrictModes no
UsePAM no
EOF
cat >"$folder/ssh_config" <<EOF
Host *
    IdentityFile $folder/key
    StrictHostKeyChecking no
    UserKnownHostsFile /dev/null
EOF
mount --bind "$folder/ssh_config" /etc/ssh/ssh_config
mkdir -p /run/sshd

# A host name of its own, as slurmd asks for its own; processes of its own, as hosts have.
# shellcheck disable=SC2016 # expanded by the inner shell
start='hostname "$1"; shift; exec "$@"'
unshare --uts bash -c "$start" - controller slurmctld -D >"$folder/logs/controller" 2>&1 &
for number in 1 2; do
    node=${nodes[number - 1]}
    mkdir -p "$folder/spool.$node"
    # shellcheck disable=SC2016 # expanded by the inner shell
    unshare --net --uts --mount --pid --fork --kill-child --mount-proc \
        bash -c 'until [ -e /sys/class/net/lo ] && ip link show eth0 >/dev/null 2>&1; do
            sleep 0.05; done; ip link set lo up; ip address add "$1" dev eth0
            ip link set eth0 up; /usr/sbin/sshd -f "$2"; shift 2; '"$start" \
        - "10.79.0.$number/24" "$folder/sshd_config" "$node" slurmd -D -N "$node" \
        >"$folder/logs/$node" 2>&1 &
    outer=$!
    until [ "$(readlink "/proc/$outer/ns/net")" != "$(readlink /proc/self/ns/net)" ]; do
        sleep 0.05
    done
    ip link add "$node" type veth peer name eth0 netns "$outer"
    ip link set "$node" master bridge up
done
until [ "$(sinfo --noheader --Node --format %T | grep --count idle)" = 2 ]; do sleep 0.2; done
echo ready
cat >/dev/null
