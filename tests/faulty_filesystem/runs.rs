//! Runs of the program on the faulty file system.

use std::fs::File;
use std::sync::OnceLock;

use crate::mount::Mounted;
use support::{Finished, Folder, RunResult, finish, mpirun};

/// Run with all that it writes on a faulty file system.
#[derive(Debug)]
pub(crate) struct Run {
    folder: Folder,
}

impl Run {
    pub(crate) fn new(mounted: &Mounted) -> Self {
        let run = Self { folder: Folder::inside(mounted.path()) };
        File::open(mounted.path()).unwrap().sync_all().unwrap(); // the folder's name
        run
    }

    /// Trains on two ranks, to the end or to a fault.
    pub(crate) fn train(&self, extra: &[&str]) -> Finished {
        let out = self.folder.text();
        let flags = ["train", "--out", &out, "--steps", "16", "--threads", "1"];
        let saves = ["--checkpoint-every", "4steps"];
        finish(mpirun(2, &[&flags[..], &saves, extra].concat()))
    }

    /// Waits for the end of its processes.
    pub(crate) fn await_end(&self) {
        self.folder.await_end();
    }

    pub(crate) fn result(&self) -> RunResult {
        self.folder.result()
    }
}

/// Returns the result of a run without faults.
pub(crate) fn undisturbed() -> &'static RunResult {
    static RESULT: OnceLock<RunResult> = OnceLock::new();
    RESULT.get_or_init(|| {
        let run = Run { folder: Folder::new() };
        run.train(&[]).expect(0);
        run.result()
    })
}
