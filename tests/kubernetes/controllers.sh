# The controllers of Argo Workflows, JobSet and Kubeflow's trainer, each with the rights and the
# objects of its own manifests; control-plane.sh sources this file, and has their common settings.
# shellcheck shell=bash disable=SC2154

start_workflows() {
    kubectl create namespace argo
    apply_objects "$PROGRAMS/argo-workflows.yaml"
    LEADER_ELECTION_DISABLE=true background workflow-controller \
        --kubeconfig "$run/argo-workflows.kubeconfig" --namespace argo \
        --executor-image localhost/argoexec:test --executor-image-pull-policy Never
}

# They check what is submitted, so the API server has to reach them: at an address instead of a
# service, with its own certificate. FILE PORT.
with_webhooks_at() {
    local authority
    authority=$(base64 --wrap=0 "$run/pki/ca.crt")
    sed -E "/^ *clientConfig:\$/,/^ *path:/ {
        /^ *(service|name|namespace):/d
        s|^  ( *)path: (.*)|\1url: https://10.100.0.1:$2\2\n\1caBundle: $authority|
    }" "$PROGRAMS/$1"
}

# Starts one whose webhooks are at a port, and waits until they answer: PROGRAM PORT CONFIGURATION.
start_with_webhooks() {
    local certificates=$run/$1/k8s-webhook-server/serving-certs
    mkdir -p "$certificates"
    cp "$run/pki/api.crt" "$certificates/tls.crt"
    cp "$run/pki/api.key" "$certificates/tls.key"
    printf '%s\n' "$3" >"$run/$1/configuration.yaml"
    with_webhooks_at "$1.yaml" "$2" >"$run/$1/objects.yaml"
    apply_objects "$run/$1/objects.yaml"
    # It looks for its certificate in the folder of temporary files.
    KUBECONFIG=$run/$1.kubeconfig TMPDIR=$run/$1 background "$1" \
        --config "$run/$1/configuration.yaml"
}

start_trainer() {
    start_with_webhooks jobset 9443 '
apiVersion: config.jobset.x-k8s.io/v1alpha1
kind: Configuration
leaderElection: {leaderElect: false}
internalCertManagement: {enable: false}
health: {healthProbeBindAddress: "127.0.0.1:8081"}
metrics: {bindAddress: "127.0.0.1:8443"}
webhook: {port: 9443}'
    start_with_webhooks trainer 9444 '
apiVersion: config.trainer.kubeflow.org/v1alpha1
kind: Configuration
leaderElection: {leaderElect: false}
certManagement: {enable: false}
health: {healthProbeBindAddress: "127.0.0.1:8082"}
metrics: {bindAddress: "127.0.0.1:8444"}
webhook: {port: 9444, host: ""}'
    local port
    for port in 8081 8082; do
        until kubectl --server "http://127.0.0.1:$port" get --raw /readyz; do sleep 0.1; done
    done
}
