//! Pod Security "restricted", as the admission plugin of Kubernetes 1.34 checks it.
//!
//! It does not look into an MPIJob: the pods would be refused when the operator makes them. Here no
//! pod may set options of SELinux, AppArmor or Windows, of which the plugin allows some.

use serde_json::{Value, json};

use crate::objects::{list, text};

/// Kinds of volumes that a pod may have.
const VOLUMES: [&str; 9] = [
    "configMap",
    "downwardAPI",
    "emptyDir",
    "projected",
    "secret",
    "csi",
    "persistentVolumeClaim",
    "ephemeral",
    "image",
];

/// Sysctls that a pod may set.
const SYSCTLS: [&str; 12] = [
    "kernel.shm_rmid_forced",
    "net.ipv4.ip_local_port_range",
    "net.ipv4.ip_unprivileged_port_start",
    "net.ipv4.tcp_syncookies",
    "net.ipv4.ping_group_range",
    "net.ipv4.ip_local_reserved_ports",
    "net.ipv4.tcp_keepalive_time",
    "net.ipv4.tcp_fin_timeout",
    "net.ipv4.tcp_keepalive_intvl",
    "net.ipv4.tcp_keepalive_probes",
    "net.ipv4.tcp_rmem",
    "net.ipv4.tcp_wmem",
];

/// Places of a container that may name a host to connect to.
const HOSTS: [&str; 8] = [
    "/livenessProbe/tcpSocket/host",
    "/livenessProbe/httpGet/host",
    "/readinessProbe/tcpSocket/host",
    "/readinessProbe/httpGet/host",
    "/startupProbe/tcpSocket/host",
    "/startupProbe/httpGet/host",
    "/lifecycle/preStop/httpGet/host",
    "/lifecycle/postStart/httpGet/host",
];

/// Returns the reasons for which a namespace with this level would refuse a pod template.
pub(crate) fn violations(template: &Value) -> Vec<String> {
    let pod = &template["spec"];
    let mut found = of_pod(pod);
    let places = ["/containers", "/initContainers", "/ephemeralContainers"];
    for container in places.iter().flat_map(|place| list(pod, place)) {
        let name = text(container, "/name");
        found
            .extend(of_container(pod, container).into_iter().map(|text| format!("{name}: {text}")));
    }
    found
}

fn of_pod(pod: &Value) -> Vec<String> {
    let mut found = Vec::new();
    for key in ["hostNetwork", "hostPID", "hostIPC"] {
        if pod[key] == json!(true) {
            found.push(key.to_owned());
        }
    }
    for volume in list(pod, "/volumes") {
        let kinds = volume.as_object().unwrap().keys().filter(|key| *key != "name");
        let wrong = kinds.filter(|kind| !VOLUMES.contains(&kind.as_str()));
        found.extend(wrong.map(|kind| format!("volume of kind {kind}")));
    }
    let sysctls = list(pod, "/securityContext/sysctls").iter().map(|value| text(value, "/name"));
    found.extend(sysctls.filter(|name| !SYSCTLS.contains(name)).map(|name| format!("sets {name}")));
    found
}

/// Settings of a security context that no pod here has a use for.
const UNUSED: [&str; 3] = ["seLinuxOptions", "appArmorProfile", "windowsOptions"];

/// The value of a container's security context, or of its pod's.
fn setting<'a>(pod: &'a Value, container: &'a Value, place: &str) -> Option<&'a Value> {
    let of = |value: &'a Value| value.get("securityContext")?.pointer(place);
    of(container).or_else(|| of(pod))
}

fn of_container(pod: &Value, container: &Value) -> Vec<String> {
    let own = &container["securityContext"];
    let mut found = Vec::new();
    let mut forbid = |is_wrong: bool, what: &str| {
        if is_wrong {
            found.push(what.to_owned());
        }
    };
    forbid(own["privileged"] == json!(true), "privileged");
    forbid(
        own["allowPrivilegeEscalation"] != json!(false),
        "allowPrivilegeEscalation is not false",
    );
    let is_non_root = setting(pod, container, "/runAsNonRoot") == Some(&json!(true));
    forbid(!is_non_root, "runAsNonRoot is not true");
    forbid(setting(pod, container, "/runAsUser") == Some(&json!(0)), "runs as user 0");
    let profile = setting(pod, container, "/seccompProfile/type").and_then(Value::as_str);
    let is_confined = matches!(profile, Some("RuntimeDefault" | "Localhost"));
    forbid(!is_confined, "no seccomp profile");
    let dropped = list(own, "/capabilities/drop");
    forbid(!dropped.contains(&json!("ALL")), "not all capabilities are dropped");
    let added = list(own, "/capabilities/add");
    forbid(added.iter().any(|name| name != "NET_BIND_SERVICE"), "adds a capability");
    for key in UNUSED {
        forbid(setting(pod, container, &format!("/{key}")).is_some(), key);
    }
    let proc_mount = text(own, "/procMount");
    forbid(!["", "Default"].contains(&proc_mount), "procMount");
    let has_host_port = list(container, "/ports").iter().any(|port| port.get("hostPort").is_some());
    forbid(has_host_port, "hostPort");
    forbid(HOSTS.iter().any(|place| !text(container, place).is_empty()), "a probe names a host");
    found
}
