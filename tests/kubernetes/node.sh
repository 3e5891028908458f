#!/usr/bin/env bash
# One node of the test cluster, in namespaces that control-plane.sh made: containerd and kubelet.
#
#   node.sh NUMBER
set -euo pipefail
. ./folders.sh
. ./control-groups.sh
number=$1 name=node$1 group=$GROUP_PREFIX-node$1
export PATH=$PROGRAMS:/usr/sbin:/sbin:$PATH
state=$FOLDER/run/$name logs=$FOLDER/logs

join_network() {
    local other=$((1 - number))
    ip link set lo up
    until ip link show eth0 >/dev/null 2>&1; do sleep 0.05; done
    ip address add "10.100.0.1$number/24" dev eth0
    ip link set eth0 up
    sysctl -qw net.ipv4.ip_forward=1
    ip route add "10.244.$other.0/24" via "10.100.0.1$other"
    ip route add default via 10.100.0.1
}

# Both nodes see this machine's files, but have these folders to themselves.
make_folders() {
    mount -t tmpfs tmpfs /run
    # The last is the disk of the node, for jobs that name a folder of it.
    mkdir -p "$state"/{containerd,kubelet,cni,log} /run/netns /run/nvme
    mount --bind "$state/log" /var/log
    mkdir -p /var/log/pods /var/log/containers
    overlay_var_lib
}

# The kubelet wants a folder in it: it is not made on this machine.
overlay_var_lib() {
    mkdir -p /run/var-lib/{upper,work}
    mount -t overlay overlay /var/lib \
        -o lowerdir=/var/lib,upperdir=/run/var-lib/upper,workdir=/run/var-lib/work
    mkdir -p /var/lib/kubelet
}

# The kubelet insists on these settings of the whole machine: it sees files that say so instead.
cover_settings() {
    local setting file
    mkdir "$state/settings"
    for setting in vm/overcommit_memory=1 vm/panic_on_oom=0 kernel/panic=10 \
        kernel/panic_on_oops=1 kernel/keys/root_maxkeys=1000000 \
        kernel/keys/root_maxbytes=25000000; do
        file=$state/settings/$(basename "${setting%=*}")
        printf '%s\n' "${setting#*=}" >"$file"
        mount --bind "$file" "/proc/sys/${setting%=*}"
    done
}

configure_pod_network() {
    cat >"$state/cni/pods.conflist" <<JSON
{"cniVersion": "0.4.0", "name": "pods", "plugins": [{
    "type": "bridge", "bridge": "cni0", "isGateway": true, "ipMasq": false,
    "ipam": {"type": "host-local", "dataDir": "$state/addresses",
        "ranges": [[{"subnet": "10.244.$number.0/24"}]], "routes": [{"dst": "0.0.0.0/0"}]}}]}
JSON
}

# Without AppArmor, and without lowering what makes a process the victim of a lack of memory: a
# container that the test runs in may lack the right to do so.
start_containerd() {
    cat >"$state/containerd.toml" <<TOML
version = 2
root = "$state/containerd"
state = "/run/containerd"
oom_score = 0
[grpc]
address = "/run/containerd.sock"
[plugins."io.containerd.grpc.v1.cri"]
sandbox_image = "localhost/pause:test"
restrict_oom_score_adj = true
disable_apparmor = true
[plugins."io.containerd.grpc.v1.cri".cni]
bin_dir = "/usr/lib/cni"
conf_dir = "$state/cni"
[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
runtime_type = "io.containerd.runc.v2"
[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
SystemdCgroup = false
TOML
    containerd --config "$state/containerd.toml" >"$logs/$name-containerd.log" 2>&1 &
    until ctr --address /run/containerd.sock version >/dev/null 2>&1; do sleep 0.1; done
}

load_images() {
    local image
    for image in pause yardstick argoexec; do
        ctr --address /run/containerd.sock --namespace k8s.io images import \
            "$IMAGES/$image.tar"
    done
}

# Its lease lasts 12 s instead of 40, so that a lost node is noticed in tests' time. Images are not
# removed when the disk is full: there is nowhere to pull them from. KubeletInUserNamespace
# tolerates what a container that the test runs in may forbid.
configure_kubelet() {
    cat >"$state/kubelet.yaml" <<YAML
apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
authentication: {anonymous: {enabled: true}, webhook: {enabled: false}}
authorization: {mode: AlwaysAllow}
clusterDNS: [10.100.0.1]
clusterDomain: cluster.local
containerRuntimeEndpoint: unix:///run/containerd.sock
cgroupDriver: cgroupfs
cgroupRoot: /$group
failSwapOn: false
failCgroupV1: false
protectKernelDefaults: false
oomScoreAdj: 0
featureGates: {KubeletInUserNamespace: true}
evictionHard: {memory.available: 100Mi, nodefs.available: 1%, imagefs.available: 1%}
imageGCHighThresholdPercent: 100
resolvConf: /dev/null
nodeStatusUpdateFrequency: 5s
nodeLeaseDurationSeconds: 12
YAML
}

hostname "$name"
join_network
make_folders
cover_settings
configure_pod_network
make_group "$group"
start_containerd
load_images
configure_kubelet
until [ -e "$FOLDER/run/$name.kubeconfig" ]; do sleep 0.1; done
exec kubelet --config="$state/kubelet.yaml" --kubeconfig="$FOLDER/run/$name.kubeconfig" \
    --root-dir="$state/kubelet" --cert-dir="$state/pki" --hostname-override="$name" \
    --node-ip="10.100.0.1$number" >"$logs/$name-kubelet.log" 2>&1
