//! Checkpoint tiers, end to end: a node that is lost with its tier, and a run that resumes from the
//! shared one.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::OnceLock;

use rustix::fs::{CWD, RenameFlags, renameat_with};
use rustix::process::{Signal, kill_process};
use serde_json::json;
use support::{Folder, RunResult, Running, finish, mpirun, yardstick};

/// Trains on two ranks with a tier of each node and a shared one, saved every four steps.
fn train(folder: &Folder, steps: &str) -> support::Finished {
    train_with(folder, steps, &[])
}

fn train_with(folder: &Folder, steps: &str, flags: &[&str]) -> support::Finished {
    let [nvme, shared] = ["nvme", "shared"].map(|tier| {
        let path = folder.sibling(tier);
        format!("checkpoint.{tier}.path={}", path.display())
    });
    let out = folder.text();
    let tiers = ["--set", &nvme, "--set", &shared, "--set", "checkpoint.background=false"];
    let train = ["train", "--out", &out, "--steps", steps, "--threads", "1"];
    let saves = ["--checkpoint-every", "4steps"];
    finish(mpirun(2, &[&train[..], &saves, &tiers, flags].concat()))
}

/// The result of a run without a fault; made once for all tests.
pub(crate) fn uninterrupted() -> &'static RunResult {
    static RESULT: OnceLock<RunResult> = OnceLock::new();
    RESULT.get_or_init(|| {
        let folder = Folder::new();
        folder.train_on(2, &["--steps", "12", "--threads", "1"]).expect(0);
        folder.result()
    })
}

/// Checkpoints in a tier.
fn checkpoints(tier: &PathBuf) -> Vec<String> {
    let run = fs::read_dir(tier).unwrap().next().unwrap().unwrap().path();
    let names = fs::read_dir(run).unwrap().map(|entry| entry.unwrap().file_name());
    let mut names: Vec<_> = names.map(|name| name.into_string().unwrap()).collect();
    names.retain(|name| name.starts_with("s0"));
    names.sort();
    names
}

#[test]
fn checkpoints_get_to_the_shared_tier() {
    let folder = Folder::new();
    train(&folder, "12").expect(0);
    assert_eq!(folder.result(), *uninterrupted());
    let [nvme, shared] = ["nvme", "shared"].map(|tier| checkpoints(&folder.sibling(tier)));
    assert_eq!(shared.last(), nvme.last(), "the last one is copied before the run ends");
    assert!(shared.last().unwrap().starts_with("s000000012-a0001-"));
    assert!(!folder.path().join("checkpoints").exists(), "the run's folder is no tier here");
    let checkpoints = &folder.record()["checkpoints"];
    assert_eq!((&checkpoints["tier"], &checkpoints["count"]), (&json!("nvme"), &json!(3)));
    let tiers = folder.record()["tiers"].clone();
    assert_eq!((&tiers[0]["name"], &tiers[1]["name"]), (&json!("nvme"), &json!("shared")));
    assert!(tiers[0]["filesystem"].is_string(), "{tiers}");
    let promoted = &checkpoints["promoted"][0];
    assert_eq!((&promoted["tier"], &promoted["last_step"]), (&json!("shared"), &json!(12)));
    assert!(promoted["bytes_per_second"].as_f64().unwrap() > 0.0);
}

/// Loses the node with its tier, or the shared one.
#[test]
fn a_run_goes_on_from_the_tier_that_is_left() {
    for (lost, left) in [("nvme", 1), ("shared", 0)] {
        let folder = Folder::new();
        train(&folder, "8").expect(0);
        fs::remove_dir_all(folder.sibling(lost)).unwrap();
        train(&folder, "12").expect(0);
        let resumed = &folder.record()["attempts"][1];
        assert_eq!(resumed["resumed_after_step"], 8, "without {lost}");
        let sources = &resumed["recovery"]["sources"];
        let bytes = [0, 1].map(|tier| sources[tier]["bytes"].as_u64().unwrap());
        assert!(bytes[left] > 0 && bytes[1 - left] == 0, "without {lost}: {sources}");
        assert_eq!(folder.result(), *uninterrupted(), "without {lost}");
    }
}

/// The checkpoint of the rank that was killed is promoted after the restart.
#[test]
fn a_rank_killed_while_it_promotes_loses_nothing() {
    let at_step_12 = "rank=1,failpoint=mid-promotion";
    for failpoint in [at_step_12, "failpoint=promotion-before-manifest"] {
        let folder = Folder::new();
        let fault = format!("kill@step=12,{failpoint}");
        let killed = train_with(&folder, "12", &["--inject", &fault]);
        assert_ne!(killed.code, 0, "{fault}");
        train_with(&folder, "12", &["--inject", &fault]).expect(0);
        assert_eq!(folder.result(), *uninterrupted(), "{fault}");
        let [nvme, shared] = ["nvme", "shared"].map(|tier| checkpoints(&folder.sibling(tier)));
        assert_eq!(shared.last(), nvme.last(), "{fault}");
    }
}

#[test]
fn a_run_whose_tiers_are_all_gone_is_refused() {
    let folder = Folder::new();
    train(&folder, "8").expect(0);
    for tier in ["nvme", "shared"] {
        fs::remove_dir_all(folder.sibling(tier)).unwrap();
    }
    train(&folder, "12").expect(6).expect_stderr(&["nvme", "shared", "found none", "--fresh"]);
}

/// Limits the rate, so that a copy would take hours.
#[test]
fn a_stop_leaves_copies_half_way_and_the_next_attempt_goes_on() {
    let folder = Folder::new();
    let nvme = format!("checkpoint.nvme.path={}", folder.sibling("nvme").display());
    let shared = format!("checkpoint.shared.path={}", folder.sibling("shared").display());
    let tiers = ["--set", &nvme, "--set", &shared, "--threads", "1"];
    let slow = ["checkpoint.copy_bytes_per_second_max=1000", "checkpoint.stop_grace=100ms"];
    let slow = ["--set", slow[0], "--set", slow[1], "--inject", "stop@step=2,rank=0"];
    let stopped = folder.train(&[&tiers[..], &slow].concat()).expect(75);
    assert!(
        stopped
            .stderr
            .contains("tier shared has no newer checkpoint: the next attempt goes on with s0"),
        "{}",
        stopped.stderr
    );
    let committed = || {
        let run = fs::read_dir(folder.sibling("shared")).unwrap().next().unwrap().unwrap().path();
        let found = fs::read_dir(run).unwrap().map(|entry| entry.unwrap().path());
        found.filter(|path| path.join("MANIFEST.json").exists()).count()
    };
    assert_eq!(committed(), 0);
    let settings = ["--steps", "3", "--set", "checkpoint.at_end=false"];
    folder.train(&[&tiers[..], &settings].concat()).expect(0);
    assert_eq!(committed(), 1);
}

/// Saves the first step to measure; with failures every tenth of a second the next saves follow as
/// fast as the tiers take them.
#[test]
fn an_automatic_cadence_measures_what_saves_cost() {
    let folder = Folder::new();
    let settings = [
        "checkpoint.nvme.every=auto",
        "checkpoint.shared.every=never",
        "checkpoint.at_end=false",
        "checkpoint.mean_time_between_failures=100ms",
    ];
    let flags: Vec<_> = settings.iter().flat_map(|setting| ["--set", setting]).collect();
    train_with(&folder, "12", &flags).expect(0);
    let checkpoints = &folder.record()["checkpoints"];
    assert!(checkpoints["count"].as_u64() > Some(1), "{checkpoints}");
    let cadence = &checkpoints["cadence"][0];
    assert_eq!((&cadence["tier"], &cadence["is_mean_given"]), (&json!("nvme"), &json!(true)));
    let [interval, durable] =
        ["interval_seconds", "durable_seconds"].map(|key| cadence[key].as_f64().unwrap());
    assert!(interval >= durable && durable > 0.0, "{cadence}");
}

/// A rank is killed between the commits of two nodes, in the first save there is.
#[test]
fn a_first_save_that_only_one_node_committed_does_not_stop_the_run() {
    let folder = Folder::new();
    let nowhere_else = ["--set", "checkpoint.shared.every=never"];
    let fault = ["--inject", "kill@step=4,failpoint=manifest-before-latest"];
    assert_ne!(train_with(&folder, "12", &[nowhere_else, fault].concat()).code, 0);
    let nvme = folder.sibling("nvme");
    let names = checkpoints(&nvme);
    assert!(names[0].starts_with("s000000004"), "{names:?}");
    let run = fs::read_dir(&nvme).unwrap().next().unwrap().unwrap().path();
    for file in ["r00001-000.safetensors", "r00001.idx.json"] {
        fs::remove_file(run.join(&names[0]).join("d00").join(file)).unwrap();
    }
    let again = train_with(&folder, "12", &nowhere_else).expect(0);
    again.expect_stderr(&["starts again at step 1", &names[0]]);
    assert_eq!(folder.result(), *uninterrupted());
}

/// A run of one rank with a tier of its node and a shared one, which trains until it is stopped.
struct Training {
    folder: Folder,
    running: Running,
    log: PathBuf,
}

impl Training {
    fn start(steps: &str, flags: &[&str]) -> Self {
        let folder = Folder::new();
        let log = folder.sibling("log");
        let out = folder.text();
        let tiers = ["nvme", "shared"]
            .map(|tier| format!("checkpoint.{tier}.path={}", folder.sibling(tier).display()));
        let train = ["train", "--out", &out, "--threads", "1", "--steps", steps];
        let often = ["--checkpoint-every", "3steps", "--set", &tiers[0], "--set", &tiers[1]];
        let small = ["--set", "schedule.steps=1000000"];
        fs::write(folder.sibling("aside"), "no folder").unwrap();
        let mut command = yardstick(&[&train[..], &often, &small, flags].concat());
        command.stdin(Stdio::null()).stdout(Stdio::null());
        command.stderr(fs::File::create(&log).unwrap());
        Self { running: Running::spawn(command), folder, log }
    }

    fn log(&self) -> String {
        fs::read_to_string(&self.log).unwrap()
    }

    /// Waits for a part of the log.
    #[track_caller]
    fn await_text(&mut self, text: &str) {
        let log = self.log.clone();
        self.running.poll_while(|| !fs::read_to_string(&log).unwrap().contains(text));
    }

    /// Waits for a checkpoint that was committed on a tier after now.
    #[track_caller]
    fn await_commit(&mut self, tier: &str) {
        let tier = self.folder.sibling(tier);
        let newest = || newest_committed(&tier);
        let before = newest();
        self.running.poll_while(|| newest() <= before);
    }

    /// Exchanges a tier's folder for a file, below which nothing can be written; or back.
    fn exchange(&self, tier: &str) {
        let [tier, aside] = [tier, "aside"].map(|name| self.folder.sibling(name));
        renameat_with(CWD, &tier, CWD, &aside, RenameFlags::EXCHANGE).unwrap();
    }

    /// Exit code after SIGTERM.
    fn stop(&mut self) -> Option<i32> {
        kill_process(self.running.pid(), Signal::TERM).unwrap();
        self.running.wait()
    }

    /// Number of warnings with this text, in the log and in the record.
    #[track_caller]
    fn expect_warnings(&self, text: &str, count: usize) {
        let log = self.log();
        assert_eq!(log.matches(&format!("warning: {text}")).count(), count, "{text}:\n{log}");
        let anomalies = self.folder.record()["anomalies"].to_string();
        assert_eq!(anomalies.matches(text).count(), count, "{anomalies}");
    }
}

/// Name of the newest checkpoint with a manifest.
fn newest_committed(tier: &Path) -> Option<String> {
    let run = fs::read_dir(tier).ok()?.next()?.ok()?.path();
    let found = fs::read_dir(run).ok()?.filter_map(|entry| Some(entry.ok()?.path()));
    let committed = found.filter(|path| path.join("MANIFEST.json").exists());
    committed.filter_map(|path| Some(path.file_name()?.to_str()?.to_owned())).max()
}

/// Asks for a checkpoint by SIGUSR1 as well.
#[test]
fn copies_that_fail_are_reported_once_and_again_when_they_succeed() {
    let mut training = Training::start("1000000", &[]);
    training.await_commit("shared");
    training.exchange("shared");
    training.await_text("tier shared: copies fail");
    training.await_commit("nvme");
    training.exchange("shared");
    training.await_text("tier shared: copies succeed again");
    kill_process(training.running.pid(), Signal::USR1).unwrap();
    training.await_commit("nvme"); // of a save that was in progress, if there was one
    training.await_commit("nvme");
    assert_eq!(training.stop(), Some(75), "{}", training.log());
    let triggers = &training.folder.record()["checkpoints"]["triggers"];
    assert_eq!(triggers["signal"], 1, "{triggers}");
    training.expect_warnings("tier shared: copies fail, and are tried again: ", 1);
    training.expect_warnings("tier shared: copies succeed again", 1);
    assert!(training.log().contains("Not a directory"), "{}", training.log());
}

/// Waits at the end of a run for copies that fail: it is reported, and a stop request shortens it.
#[test]
fn the_wait_for_copies_at_the_end_is_reported_and_ends_with_a_stop_request() {
    let slow = ["--inject", "slow@step=7,rank=0", "--set", "checkpoint.stop_grace=1s"];
    let in_foreground = ["--set", "checkpoint.background=false"];
    let mut training = Training::start("30", &[&slow[..], &in_foreground].concat());
    let shared = training.folder.sibling("shared");
    training.running.poll_while(|| newest_committed(&shared).is_none());
    training.exchange("shared");
    training.await_text("waits up to ");
    training.await_text("to tier shared (failing: ");
    assert_eq!(training.stop(), Some(0), "{}", training.log());
    training.expect_warnings("tier shared has no newer checkpoint: ", 1);
}

#[test]
fn the_next_tier_takes_over_from_one_that_fails_until_it_works_again() {
    let mut training = Training::start("1000000", &[]);
    training.await_commit("nvme");
    training.exchange("nvme");
    training.await_text("tier shared takes over from nvme");
    training.await_commit("shared");
    training.exchange("nvme");
    training.await_text("tier nvme works again: step ");
    training.await_commit("nvme");
    training.exchange("nvme");
    assert_eq!(training.stop(), Some(75), "{}", training.log());
    let last_step = training.folder.record()["attempts"][0]["last_step"].as_u64().unwrap();
    let newest = newest_committed(&training.folder.sibling("shared")).unwrap();
    assert!(newest.starts_with(&format!("s{last_step:09}-")), "{newest} of step {last_step}");
    let saved = training.folder.record()["checkpoints"]["saved"].to_string();
    assert!(saved.contains(r#""tier":"shared""#) && saved.contains(r#""tier":"nvme""#), "{saved}");
    training.expect_warnings("tier nvme works again: step ", 1);
}

/// The newest checkpoint was removed, or a listing hides it.
#[test]
fn a_restore_of_an_older_checkpoint_is_a_warning() {
    let folder = Folder::new();
    let saves = ["--checkpoint-every", "4steps", "--set", "checkpoint.background=false"];
    let train = |steps| folder.train(&[&["--steps", steps][..], &saves].concat()).expect(0);
    train("12");
    assert_eq!(folder.record()["attempts"][0]["committed_step"], 12);
    let newest = folder.path().join("checkpoints");
    let names = fs::read_dir(&newest).unwrap().map(|entry| entry.unwrap().path());
    let is_newest = |path: &PathBuf| path.to_string_lossy().contains("/s000000012-");
    fs::remove_dir_all(names.into_iter().find(is_newest).unwrap()).unwrap();
    let warning = "resumes from the checkpoint of step 8, although attempt 1 has committed one of \
                   step 12";
    train("16").expect_stderr(&[&format!("warning: {warning}")]);
    assert!(folder.record()["anomalies"].to_string().contains(warning));
    let again = train("20");
    assert!(!again.stderr.contains("resumes from the checkpoint of"), "{}", again.stderr);
}
