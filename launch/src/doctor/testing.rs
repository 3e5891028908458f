//! Test helper: a host that is a folder.

use std::fs;

use tempfile::TempDir;

use super::{Check, Context, Finding, Status};

/// Folder with files of a host.
pub(super) struct Host {
    root: TempDir,
}

impl Host {
    pub(super) fn new(files: &[(&str, &str)]) -> Self {
        let host = Self { root: tempfile::tempdir().unwrap() };
        files.iter().for_each(|(file, text)| host.write(file, text));
        host
    }

    pub(super) fn write(&self, file: &str, text: &str) {
        let path = self.root.path().join(file);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    /// Plants an adapter of the host, with its device in the container.
    pub(super) fn plant_adapter(&self, name: &str) {
        self.write(&format!("sys/class/infiniband/{name}/fw_ver"), "1");
        self.write(&format!("sys/class/infiniband_verbs/uverbs-{name}/ibdev"), name);
        self.write(&format!("dev/infiniband/uverbs-{name}"), "");
    }

    /// Context of two ranks on one node, with a thread each.
    pub(super) fn context(&self) -> Context {
        Context {
            root: self.root.path().to_owned(),
            host_root: self.root.path().to_owned(),
            world: 2,
            local_world: 2,
            threads: 1,
            on_cuda: false,
            nccl_ib_hca: None,
            memory_bytes: None,
        }
    }

    /// Runs a check, and expects this status and a text with this part.
    #[track_caller]
    pub(super) fn expect(&self, check: &dyn Check, status: Status, part: &str) -> Finding {
        expect(check.run(&self.context()), status, part)
    }
}

#[track_caller]
pub(super) fn expect(finding: Finding, status: Status, part: &str) -> Finding {
    assert_eq!(finding.status, status, "{finding:?}");
    assert!(finding.found.contains(part), "no {part:?} in {finding:?}");
    finding
}
