#!/usr/bin/env bash
# `yardstick launch` on many hosts: how long until all of them have answered, and what the launcher
# costs while ranks run. The hosts are loopback addresses (127.1.0.1, ...) of one real sshd, which
# gives each connection a host name and namespaces of its own; ssh is the real one. `mpirun` is a
# script that only waits, so that there are no ranks. The goal holds where all hosts are ready
# within the seconds of GOAL.
#
#   HOSTS=256 IDLE=30 PROGRAM=target/release/yardstick bench/launch_hosts.sh
#
# All hosts share this machine: their agents and sshd take most of the time until they are ready.
# Needs root, openssh-server and unshare.
set -euo pipefail
cd "$(dirname "$0")/.."
hosts=${HOSTS:-256}
idle=${IDLE:-30}
goal=${GOAL:-60}
program=$(realpath "${PROGRAM:-target/release/yardstick}")
folder=$(mktemp --directory)
port=$((20000 + RANDOM % 10000))
launch='' sshd=''
# shellcheck disable=SC2329 # the trap calls it
end() {
    # shellcheck disable=SC2086 # those that were started
    [ -z "$launch$sshd" ] || kill $launch $sshd 2>/dev/null || true
    wait || true
    rm -rf "$folder"
}
trap end EXIT

for key in host user; do ssh-keygen -q -t ed25519 -N '' -f "$folder/$key"; done
mkdir -p /run/sshd "$folder/bin"
cat >"$folder/host.sh" <<'END'
#!/bin/bash
hostname "node-${SSH_CONNECTION##* 127.1.}"
eval "$SSH_ORIGINAL_COMMAND"
END
# The address that was connected to tells which host it is.
cat >"$folder/enter.sh" <<END
#!/bin/bash
connection=(\$SSH_CONNECTION)
export SSH_CONNECTION="to \${connection[2]}"
exec unshare --uts --mount --pid --fork --kill-child --mount-proc bash $folder/host.sh
END
cat >"$folder/sshd_config" <<END
Port $port
ListenAddress 0.0.0.0
HostKey $folder/host
AuthorizedKeysFile $folder/user.pub
PidFile none
StrictModes no
UsePAM no
MaxStartups 1000
PermitRootLogin yes
ForceCommand bash $folder/enter.sh
END
cat >"$folder/ssh_config" <<END
Port $port
IdentityFile $folder/user
StrictHostKeyChecking no
UserKnownHostsFile /dev/null
END
printf '#!/bin/bash\nexec /usr/bin/ssh -F %s/ssh_config "$@"\n' "$folder" >"$folder/bin/ssh"
cat >"$folder/bin/mpirun" <<'END'
#!/bin/bash
[ "$1" = --version ] && echo 'mpirun (Open MPI) 4.1.4' && exit
exec sleep 3600
END
chmod +x "$folder"/bin/*
for ((host = 0; host < hosts; host++)); do
    echo "127.1.$((host / 250)).$((host % 250 + 1)) slots=1"
done >"$folder/hosts"

/usr/sbin/sshd -D -f "$folder/sshd_config" 2>"$folder/sshd.log" &
sshd=$!
sleep 1
PATH=$folder/bin:$PATH "$program" launch --hostfile "$folder/hosts" --share-nodes \
    --grace 1s -- comm \
    2>"$folder/log" &
launch=$!
began=$SECONDS
until grep --quiet 'hosts answered after' "$folder/log"; do
    if ! kill -0 "$launch" || ((SECONDS - began >= 300)); then
        tail -5 "$folder/log" >&2
        exit 1
    fi
    sleep 1
done
ready=$(sed -n 's/.*hosts answered after \([0-9.]*\) s.*/\1/p' "$folder/log")

# ticks PROCESS: its time of the processor, in clock ticks.
ticks() { awk '{ print $14 + $15 }' "/proc/$1/stat"; }
# of_clients: the same of all ssh sessions.
of_clients() {
    local sum=0 process
    for process in $(pgrep --parent "$launch"); do sum=$((sum + $(ticks "$process"))); done
    echo "$sum"
}
start=$(ticks "$launch") start_of_clients=$(of_clients)
used_until_ready=$((start * 1000 / $(getconf CLK_TCK)))
sleep "$idle"
used=$(($(ticks "$launch") - start)) used_of_clients=$(($(of_clients) - start_of_clients))
status() { sed -n "s/^$1:[^0-9]*\([0-9]*\).*/\1/p" "/proc/$launch/status"; }
pss=0
for process in $(pgrep --parent "$launch"); do
    bytes=$(sed -n 's/^Pss:[^0-9]*\([0-9]*\).*/\1/p' "/proc/$process/smaps_rollup")
    pss=$((pss + bytes))
done
percent() { awk -v ticks="$1" -v hz="$(getconf CLK_TCK)" -v s="$idle" \
    'BEGIN { printf "%.2f", 100 * ticks / hz / s }'; }
echo "hosts                        $hosts"
echo "launcher, until ready        $used_until_ready ms of the processor"
echo "launcher, then               $(percent "$used") % of a core"
echo "its children, then           $(percent "$used_of_clients") % of a core, $((pss / 1024)) MiB"
echo "memory of the launcher       $(($(status VmRSS) / 1024)) MiB"
echo "threads, descriptors         $(status Threads), $(find "/proc/$launch/fd" -type l | wc -l)"
lost=$(grep --count 'is lost' "$folder/log" || true)
echo "lost meanwhile               $lost"
verdict=$(awk -v ready="$ready" -v goal="$goal" -v lost="$lost" \
    'BEGIN { print ready <= goal && lost == 0 ? 0 : 1 }')
echo "launch_hosts: $ready s until $hosts hosts are ready (goal $goal s)"
exit "$verdict"
