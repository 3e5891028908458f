#!/usr/bin/env bash
# The first process of the test cluster's namespaces: starts everything; cluster.sh runs it.
set -euo pipefail
. ./folders.sh
. ./controllers.sh
export PATH=$PROGRAMS:/usr/sbin:/sbin:$PATH
run=$FOLDER/run logs=$FOLDER/logs
export KUBECONFIG=$run/admin.kubeconfig
nodes=()
[ "$MODE" = api ] || nodes=(0 1)

# The network of the cluster: the control plane has 10.100.0.1, node N 10.100.0.(10+N), its pods
# 10.244.N.0/24. Pods find the API server at the first address of services, 10.96.0.1, which the
# control plane has, too: there is no kube-proxy.
make_network() {
    ip link set lo up
    ip link add br0 type bridge
    ip address add 10.100.0.1/24 dev br0
    ip address add 10.96.0.1/32 dev br0
    ip link set br0 up
    # Of this network namespace only.
    sysctl -qw net.ipv4.ip_forward=1
}

make_certificates() {
    local new=(-newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes)
    mkdir -p "$run/pki"
    openssl req -x509 "${new[@]}" -keyout "$run/pki/ca.key" -out "$run/pki/ca.crt" -days 2 \
        -subj /CN=test-ca
    openssl req "${new[@]}" -keyout "$run/pki/api.key" -out "$run/pki/api.csr" \
        -subj /CN=kube-apiserver
    openssl x509 -req -in "$run/pki/api.csr" -CA "$run/pki/ca.crt" -CAkey "$run/pki/ca.key" \
        -CAcreateserial -days 2 -out "$run/pki/api.crt" \
        -extfile <(echo 'subjectAltName=IP:10.100.0.1,IP:10.96.0.1,DNS:kubernetes.default.svc')
    openssl genrsa -out "$run/pki/accounts.key" 2048
}

# add_user NAME TOKEN GROUPS FILE: a client of the API server, which it tells by its token.
add_user() {
    printf '%s,%s,%s,"%s"\n' "$2" "$1" "$2" "$3" >>"$run/pki/tokens.csv"
    cat >"$run/$4.kubeconfig" <<YAML
apiVersion: v1
kind: Config
clusters:
- name: test
  cluster: {server: "https://10.100.0.1", certificate-authority: $run/pki/ca.crt}
users: [{name: user, user: {token: $2}}]
contexts: [{name: test, context: {cluster: test, user: user}}]
current-context: test
YAML
}

# Each has the rights that it would have in any cluster, the operator those of its own manifests.
add_users() {
    local account=system:serviceaccount groups=system:serviceaccounts node
    add_user admin admin-token system:masters admin
    add_user system:kube-controller-manager controllers-token "" controllers
    add_user system:kube-scheduler scheduler-token "" scheduler
    add_user $account:mpi-operator:mpi-operator operator-token $groups operator
    add_user $account:kube-system:coredns dns-token $groups dns
    add_user $account:argo:argo argo-token $groups argo-workflows
    add_user $account:jobset-system:jobset-controller-manager jobset-token $groups jobset
    add_user $account:kubeflow-system:kubeflow-trainer-controller-manager trainer-token $groups \
        trainer
    for node in "${nodes[@]}"; do
        add_user "system:node:node$node" "node$node-token" system:nodes "node$node"
    done
}

# Starts a program in the background, with a log of its own.
background() {
    "$@" >"$logs/$1.log" 2>&1 &
}

# Without WatchList, for which Debian's etcd is too old: clients that ask for it ask for ever.
start_api_server() {
    background etcd --data-dir "$run/etcd" --unsafe-no-fsync --log-level warn \
        --listen-client-urls http://127.0.0.1:2379 --listen-peer-urls http://127.0.0.1:2380 \
        --advertise-client-urls http://127.0.0.1:2379
    background kube-apiserver --etcd-servers=http://127.0.0.1:2379 --secure-port=443 \
        --bind-address=0.0.0.0 --advertise-address=10.100.0.1 \
        --tls-cert-file="$run/pki/api.crt" --tls-private-key-file="$run/pki/api.key" \
        --token-auth-file="$run/pki/tokens.csv" \
        --service-account-key-file="$run/pki/accounts.key" \
        --service-account-signing-key-file="$run/pki/accounts.key" \
        --service-account-issuer=https://kubernetes.default.svc \
        --service-cluster-ip-range=10.96.0.0/16 --authorization-mode=Node,RBAC \
        --allow-privileged --feature-gates=WatchList=false \
        --enable-admission-plugins=NodeRestriction --kubelet-preferred-address-types=InternalIP \
        --default-not-ready-toleration-seconds=10 --default-unreachable-toleration-seconds=10
    until kubectl get --raw /readyz >/dev/null 2>&1; do sleep 0.1; done
}

# A node counts as lost after 20 s without a lease instead of 50, and 10 s later (above) its pods
# are deleted instead of 300.
start_controllers() {
    local as=controllers
    background kube-controller-manager --kubeconfig="$run/$as.kubeconfig" \
        --authentication-kubeconfig="$run/$as.kubeconfig" \
        --authorization-kubeconfig="$run/$as.kubeconfig" --leader-elect=false \
        --use-service-account-credentials --root-ca-file="$run/pki/ca.crt" \
        --service-account-private-key-file="$run/pki/accounts.key" \
        --controllers='*,-node-ipam-controller,-cloud-node-lifecycle-controller' \
        --node-monitor-period=2s --node-monitor-grace-period=20s
}

start_scheduler() {
    background kube-scheduler --kubeconfig="$run/scheduler.kubeconfig" --leader-elect=false
}

# Applies the objects of a controller, which wants its definitions to be there when it starts: FILE.
apply_objects() {
    kubectl apply --server-side --filename "$1"
    # It fails at once for a definition that has no conditions yet.
    until kubectl wait --for=condition=Established crd --all --timeout=30s; do sleep 0.1; done
}

start_operator() {
    apply_objects "$PROGRAMS/mpi-operator.yaml"
    background mpi-operator -kubeConfig "$run/operator.kubeconfig" -lock-namespace mpi-operator \
        -alsologtostderr
}

start_dns() {
    kubectl apply --filename coredns.yaml
    cat >"$run/Corefile" <<DNS
.:53 {
    bind 10.100.0.1
    errors
    kubernetes cluster.local {
        kubeconfig $run/dns.kubeconfig
        ttl 1
    }
}
DNS
    background coredns -conf "$run/Corefile"
}

# A node has namespaces of its own, and a link to the bridge: node N's is called port N.
start_node() {
    unshare --net --mount --uts --propagation private ./node.sh "$1" >"$logs/node$1.log" 2>&1 &
    local process=$! own
    own=$(readlink /proc/self/ns/net)
    until [ "$(readlink "/proc/$process/ns/net")" != "$own" ]; do sleep 0.05; done
    ip link add "port$1" type veth peer name eth0 netns "$process"
    ip link set "port$1" master br0 up
    ip route add "10.244.$1.0/24" via "10.100.0.1$1" dev br0 onlink
}

wait_for_nodes() {
    local node
    for node in "${nodes[@]}"; do
        until kubectl get "node/node$node" >/dev/null 2>&1; do sleep 0.2; done
        kubectl wait --for=condition=Ready "node/node$node" --timeout=100s
    done
}

make_network
make_certificates 2>"$logs/certificates.log"
add_users
# Nodes first: they load their images meanwhile.
for node in "${nodes[@]}"; do start_node "$node"; done
start_api_server
start_controllers
[ "$MODE" = api ] || start_scheduler
start_operator
if [ "$MODE" = nodes ]; then
    start_dns
    start_workflows
    start_trainer
fi
wait_for_nodes
touch "$run/ready"
wait
