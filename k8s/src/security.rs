//! User and privileges of containers.

use k8s_openapi::api::core::v1::{
    Capabilities, PodSecurityContext, SeccompProfile, SecurityContext,
};

use super::benchmark::Benchmark;
use super::paths::{SSH_OF_ROOT, SSH_OF_USER};

/// User and group of the image.
const USER: i64 = 1000;

/// Mount of the job's ssh keys by the operator: in the home folder of the user.
pub(super) fn ssh_folder(benchmark: &Benchmark) -> &'static str {
    if benchmark.platform.root { SSH_OF_ROOT } else { SSH_OF_USER }
}

/// Security context of a pod. Volumes belong to the group of the image's user. As root they must
/// not: ssh refuses keys that a group may read.
pub(super) fn of_pod(benchmark: &Benchmark) -> PodSecurityContext {
    let common = PodSecurityContext {
        seccomp_profile: Some(SeccompProfile {
            type_: "RuntimeDefault".to_owned(),
            ..SeccompProfile::default()
        }),
        ..PodSecurityContext::default()
    };
    if benchmark.platform.root {
        return PodSecurityContext { run_as_user: Some(0), run_as_group: Some(0), ..common };
    }
    PodSecurityContext {
        run_as_user: Some(USER),
        run_as_group: Some(USER),
        run_as_non_root: Some(true),
        fs_group: Some(USER),
        fs_group_change_policy: Some("OnRootMismatch".to_owned()),
        ..common
    }
}

/// Security context of a container. As root, sshd needs the default grants of container runtimes
/// (to change its root and user), so nothing is dropped then.
pub(super) fn of_container(benchmark: &Benchmark) -> SecurityContext {
    let list = |name: &str| Some(vec![name.to_owned()]);
    let capabilities = if benchmark.platform.root {
        Capabilities { add: list("IPC_LOCK"), drop: None }
    } else {
        Capabilities { add: None, drop: list("ALL") }
    };
    SecurityContext {
        allow_privilege_escalation: Some(false),
        capabilities: Some(capabilities),
        read_only_root_filesystem: Some(true),
        ..SecurityContext::default()
    }
}
