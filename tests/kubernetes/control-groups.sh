# The control groups of the test cluster's nodes, with version 1 or 2 of Linux's control groups;
# cluster.sh and node.sh source this file. They are named by the process that started the cluster.
# shellcheck shell=bash

# Folders in which a node's group is: one for each controller, or one.
group_parents() {
    if [ -e /sys/fs/cgroup/cgroup.controllers ]; then
        printf '%s\n' /sys/fs/cgroup
    else
        dirname /sys/fs/cgroup/*/cgroup.procs
    fi
}

# Makes the group of a node: GROUP.
make_group() {
    local parent setting
    for parent in $(group_parents); do
        mkdir -p "$parent/$1"
        # Version 1 lets no process in before these are set.
        for setting in cpuset.cpus cpuset.mems; do
            if [ -e "$parent/$setting" ]; then
                cat "$parent/$setting" >"$parent/$1/$setting"
            fi
        done
    done
}

# Removes the groups of the cluster that a process started: PROCESS. Its own have just ended, but
# Linux may still be at it.
remove_groups() {
    local parent
    for _ in $(seq 50); do
        for parent in $(group_parents); do
            find "$parent" -depth -type d -path "$parent/yardstick-$1-*" -exec rmdir {} \; \
                2>/dev/null || true
        done
        [ -n "$(groups_of "$1")" ] || return 0
        sleep 0.1
    done
    printf 'kubernetes cluster: control groups remain: %s\n' "$(groups_of "$1")" >&2
}

# The groups of a cluster, or of all of them ("*").
groups_of() {
    local parent
    for parent in $(group_parents); do
        find "$parent" -maxdepth 1 -type d -name "yardstick-$1-node*"
    done
}

# Removes the groups of clusters whose script was killed.
remove_stale_groups() {
    local process
    for process in $(groups_of '*' | sed 's/.*yardstick-\([0-9]*\)-.*/\1/' | sort --unique); do
        [ -e "/proc/$process" ] || remove_groups "$process"
    done
}
