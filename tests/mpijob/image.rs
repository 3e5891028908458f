//! Files in which the image of a job differs from this machine's root.

use std::fs;
use std::os::unix::fs::{PermissionsExt, chown, symlink};
use std::path::Path;

/// User and group of the image, `yardstick`, which has no other user but root.
pub(crate) const USER: u32 = 1000;

/// The user's home, where the operator mounts its ssh secret.
pub(crate) const HOME: &str = "/home/yardstick";

/// Folder of the addresses of pods: a folder, so that the file in it can be replaced.
pub(crate) const NAMES: &str = "/etc/names";

/// The port of sshd in worker pods.
pub(crate) const SSH_PORT: u16 = 2222;

const FILES: [(&str, &str); 4] = [
    (
        "etc/passwd",
        "root:x:0:0:root:/root:/bin/sh\nyardstick:x:1000:1000::/home/yardstick:/bin/sh\n",
    ),
    ("etc/group", "root:x:0:\nyardstick:x:1000:\n"),
    ("etc/nsswitch.conf", "passwd: files\ngroup: files\nhosts: files\n"),
    (
        "etc/ssh/ssh_config",
        "Host *\n    Port 2222\n    StrictHostKeyChecking no\n    UserKnownHostsFile /dev/null\n",
    ),
];

/// Folders where volumes and the binary are mounted.
const FOLDERS: [&str; 7] =
    ["etc/mpi", "etc/names", "home/yardstick/.ssh", "nvme", "opt/openmpi", "results", "shared"];

/// Writes these files into a folder.
pub(crate) fn write(layer: &Path) {
    for folder in FOLDERS {
        fs::create_dir_all(layer.join(folder)).unwrap();
    }
    for (name, text) in FILES {
        write_file(&layer.join(name), text);
    }
    write_file(&layer.join("usr/local/bin/yardstick"), "");
    symlink(Path::new(NAMES).join("hosts"), layer.join("etc/hosts")).unwrap();
    chown(layer.join("home/yardstick"), Some(USER), Some(USER)).unwrap();
    // The temporary folder is this user's only.
    fs::set_permissions(layer, fs::Permissions::from_mode(0o755)).unwrap();
}

fn write_file(path: &Path, text: &str) {
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, text).unwrap();
}
