//! Folder of a run and its files.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::process::{Finished, finish, mpirun, run};
use crate::schema::expect_valid;

/// The folder `run` in a temporary folder; it does not exist before a run creates it.
#[derive(Debug)]
pub struct Folder {
    temporary: tempfile::TempDir,
}

impl Default for Folder {
    fn default() -> Self {
        Self { temporary: tempfile::tempdir().unwrap() }
    }
}

impl Folder {
    /// A folder that no run has created yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Creates a temporary folder in this one.
    pub fn inside(folder: &Path) -> Self {
        Self { temporary: tempfile::tempdir_in(folder).unwrap() }
    }

    /// Path of the folder.
    pub fn path(&self) -> PathBuf {
        self.sibling("run")
    }

    /// The same as text.
    pub fn text(&self) -> String {
        text(&self.path())
    }

    /// Another path in the temporary folder.
    pub fn sibling(&self, name: &str) -> PathBuf {
        self.temporary.path().join(name)
    }

    /// Runs `yardstick train` with this folder as `--out`.
    #[track_caller]
    pub fn train(&self, flags: &[&str]) -> Finished {
        run(&[&["train", "--out", &self.text()], flags].concat())
    }

    /// Runs `yardstick train` under mpirun with this folder as `--out`.
    #[track_caller]
    pub fn train_on(&self, ranks: usize, flags: &[&str]) -> Finished {
        finish(mpirun(ranks, &[&["train", "--out", &self.text()], flags].concat()))
    }

    /// `record.json`, which has to be of its schema.
    #[track_caller]
    pub fn record(&self) -> Value {
        record(&self.path())
    }

    /// Waits for the end of the processes of the run, and fails if one remains: a launcher may end
    /// shortly before a process that it killed.
    #[track_caller]
    pub fn await_end(&self) {
        let end = Instant::now() + Duration::from_secs(60);
        for rank in self.record()["ranks"].as_array().unwrap() {
            let status = format!("/proc/{}/status", rank["pid"]);
            let status = || std::fs::read_to_string(&status).unwrap_or_default();
            while status().contains("VmRSS:") {
                assert!(Instant::now() < end, "process {} remains", rank["pid"]);
                std::thread::sleep(Duration::from_millis(20));
            }
        }
    }

    /// Rank 0's loss at each step.
    pub fn losses(&self) -> Vec<LossBits> {
        let bits = |line: &StepLine| LossBits { step: line.step(), bits: line.loss().to_bits() };
        self.steps(0).iter().map(bits).collect()
    }

    /// Returns the result of a run.
    pub fn result(&self) -> RunResult {
        RunResult { losses: self.losses(), fingerprint: self.record()["fingerprint"].clone() }
    }

    /// Returns every line of one rank's steps.
    pub fn steps(&self, rank: usize) -> Vec<StepLine> {
        let path = self.path().join(format!("steps/r{rank:06}.jsonl"));
        let text = std::fs::read_to_string(&path).unwrap();
        text.lines().map(|line| StepLine(serde_json::from_str(line).unwrap())).collect()
    }

    /// Number of checkpoints in the folder, committed or not.
    pub fn checkpoint_count(&self) -> usize {
        let entries = std::fs::read_dir(self.path().join("checkpoints")).unwrap();
        let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
        names.filter(|name| name.starts_with("s00")).count()
    }

    /// Name of the newest checkpoint.
    pub fn newest_checkpoint(&self) -> String {
        let listed = run(&["ckpt", "ls", "--json", &self.text()]).expect(0).stdout;
        let listed: Value = serde_json::from_str(&listed).unwrap();
        listed[0]["name"].as_str().unwrap().to_owned()
    }
}

/// Result of a run.
#[derive(Debug, PartialEq)]
pub struct RunResult {
    /// Loss of each step.
    pub losses: Vec<LossBits>,
    /// `fingerprint` of the record.
    pub fingerprint: Value,
}

/// The bits of the loss of one step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LossBits {
    /// Number of the step, from 1.
    pub step: u64,
    /// Bits of the loss as f64.
    pub bits: u64,
}

impl LossBits {
    /// The loss.
    pub fn loss(self) -> f64 {
        f64::from_bits(self.bits)
    }

    /// |self - other| / self.
    pub fn relative_difference(self, other: Self) -> f64 {
        (self.loss() - other.loss()).abs() / self.loss()
    }
}

/// Line of `steps/rRRRRRR.jsonl`.
#[derive(Debug)]
pub struct StepLine(pub Value);

impl StepLine {
    /// Number of the step, from 1.
    pub fn step(&self) -> u64 {
        self.0["step"].as_u64().unwrap()
    }

    /// The loss.
    pub fn loss(&self) -> f64 {
        self.0["loss"].as_f64().unwrap()
    }
}

/// `record.json` of a folder, which has to be of its schema.
#[track_caller]
pub fn record(folder: &Path) -> Value {
    let text = std::fs::read_to_string(folder.join("record.json")).unwrap();
    let record = serde_json::from_str(&text).unwrap();
    expect_valid(&record);
    record
}

/// A path as text.
pub fn text(path: &Path) -> String {
    path.to_string_lossy().into_owned()
}

/// Creates a folder with only those emulated device libraries that training needs.
pub fn only_training_libraries() -> Folder {
    let libraries = std::env::var("YARDSTICK_CUDA_PATH").unwrap();
    let folder = Folder::new();
    std::fs::create_dir(folder.path()).unwrap();
    for library in ["libcuda.so.1", "libnvrtc.so.12", "libcublasLt.so.12"] {
        let link = folder.path().join(library);
        std::os::unix::fs::symlink(format!("{libraries}/{library}"), link).unwrap();
    }
    folder
}
