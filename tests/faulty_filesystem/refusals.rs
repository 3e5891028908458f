//! Folders that a server refuses: the reason is named before the first step.

use fuser::Errno;

use crate::faults::{Effect, Fault, Operation};
use crate::mount::Mounted;
use support::{Folder, run};

#[test]
#[ignore = "mounts a file system of its own: needs /dev/fuse and root"]
fn a_server_that_refuses_a_folder_is_named_with_the_reason() {
    let mounted = Mounted::new();
    let folder = Folder::inside(mounted.path());
    let refuse = |errno| Fault::Named {
        operation: Operation::CreateFolder,
        name: "run",
        effect: Effect::Error(errno),
    };
    let out = folder.text();
    let nvme = format!("checkpoint.nvme.path={out}");
    let elsewhere = Folder::new();
    let other = elsewhere.text();
    for (errno, reason) in
        [(Errno::EACCES, "maps to nobody (root_squash)"), (Errno::ESTALE, "mount it again")]
    {
        mounted.set(Some(refuse(errno)));
        let refused = run(&["train", "--steps", "1", "--out", &out]).expect(3);
        refused.expect_stderr(&[&out, "cannot create folder", reason]);
        let warned = run(&["train", "--steps", "1", "--out", &other, "--set", &nvme]).expect(0);
        warned.expect_stderr(&["warning: tier nvme is ", reason]);
        mounted.set(None);
        std::fs::remove_dir_all(elsewhere.path()).unwrap();
    }
}
