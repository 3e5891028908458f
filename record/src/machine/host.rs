//! Names of this machine.

use std::fs;

/// Name of this host; in a pod, the pod's name.
pub fn host_name() -> String {
    rustix::system::uname().nodename().to_string_lossy().into_owned()
}

/// Boot id of the running kernel, which differs between machines of one name. Empty where it is
/// hidden.
pub fn boot_id() -> String {
    let text = fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    text.trim().to_owned()
}
