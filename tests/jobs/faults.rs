//! Kills, stops, hangs and non-finite numbers: exit codes, records, and resuming to the same bits.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use checkpoint::Failpoint;
use models::rng::{Purpose, Stream};
use serde_json::Value;
use support::{
    Finished, Folder, RunResult, Running, VARIANTS, Variant, finish, finish_waiting, library_of,
    mpirun, on_each_rank,
};

const STEPS: u64 = 24;

/// 24 steps with a save after every fourth.
const FLAGS: [&str; 6] = ["--steps", "24", "--threads", "1", "--checkpoint-every", "4steps"];

/// Training waits for each save: it is committed before the next step, and none is skipped.
const IN_FOREGROUND: [&str; 2] = ["--set", "checkpoint.background=false"];

fn arguments<'a>(out: &'a str, extra: &[&'a str]) -> Vec<&'a str> {
    [&["train", "--out", out], &FLAGS[..], extra].concat()
}

/// Trains on some ranks to the end, or to a fault.
#[track_caller]
fn train(ranks: usize, folder: &Folder, extra: &[&str]) -> Finished {
    finish(mpirun(ranks, &arguments(&folder.text(), extra)))
}

/// The result of an uninterrupted run on two ranks of the same family and format; made once for all
/// tests.
fn uninterrupted(variant: Variant) -> &'static RunResult {
    static RESULTS: [OnceLock<RunResult>; VARIANTS] = [const { OnceLock::new() }; VARIANTS];
    RESULTS[variant.plain().index()].get_or_init(|| {
        let folder = Folder::new();
        train(2, &folder, &variant.plain().flags()).expect(0);
        folder.result()
    })
}

/// Completes four steps on two ranks, for a run that resumes after them.
fn after_four_steps() -> Folder {
    let folder = Folder::new();
    folder.train_on(2, &["--steps", "4", "--threads", "1"]).expect(0);
    folder
}

/// Trains until a fault kills a rank.
#[track_caller]
fn train_until_killed(ranks: usize, folder: &Folder, flags: &[&str], fault: &str) {
    let fault = format!("{fault},attempt=every");
    let killed = train(ranks, folder, &[flags, &["--inject", &fault]].concat());
    assert_ne!(killed.code, 0, "{fault}: no rank was killed\n{}", killed.stderr);
}

/// A random kill: at a step, or inside a save.
fn random_kill(seed: u64, is_inside_a_save: bool) -> String {
    let stream = Stream::new(seed, Purpose::Fault);
    let rank = stream.below(0, 2);
    if !is_inside_a_save {
        return format!("kill@step={},rank={rank}", 1 + stream.below(2, STEPS));
    }
    let failpoint = Failpoint::ALL[stream.below(3, Failpoint::ALL.len() as u64) as usize];
    // Saves follow steps 4, 8, 12, ...; the third is the first after which a checkpoint is removed.
    let first = if failpoint == Failpoint::MidRetention { 3 } else { 1 };
    let step = 4 * (first + stream.below(2, 6 - first));
    let is_in_commit = failpoint as usize >= Failpoint::VoteBeforeManifest as usize;
    let rank = if is_in_commit { 0 } else { rank }; // only rank 0 commits
    format!("kill@step={step},rank={rank},failpoint={failpoint}")
}

/// The launcher has started it, but it never joins MPI, like a process on a node that hangs.
#[test]
fn a_peer_that_never_joins_is_lost() {
    let folder = Folder::new();
    let mut command = mpirun(1, &["train", "--deadline", "2s", "--out", &folder.text()]);
    command.args([":", "-np", "1", "sleep", "300"]);
    finish_waiting(command).expect(5).expect_stderr(&["a peer is missing"]);
    assert!(!folder.path().exists(), "the folder is not created");
}

/// The soak kills more.
#[test]
fn runs_killed_at_a_step_resume_to_the_same_bits() {
    let [first, .., last] = Variant::corners();
    for variant in [first, last] {
        let fault = random_kill(variant.index() as u64, false);
        a_killed_run_resumes_to_the_same_bits(variant, &[], &fault);
    }
}

#[test]
fn runs_killed_inside_a_save_resume_to_the_same_bits() {
    let [_, second, third, _] = Variant::corners();
    for variant in [second, third] {
        let fault = random_kill((variant.index() + VARIANTS) as u64, true);
        a_killed_run_resumes_to_the_same_bits(variant, &IN_FOREGROUND, &fault);
    }
}

/// Kills one attempt after another in its first save, which is never skipped, while training
/// continues or waits for the optimizer's turn. Only the last kill follows a commit.
#[test]
fn kills_inside_saves_in_the_background_resume_to_the_same_bits() {
    let [_, variant, ..] = Variant::corners();
    let folder = Folder::new();
    let failpoints = Failpoint::ALL.into_iter().filter(|it| *it != Failpoint::MidRetention);
    for failpoint in failpoints.clone() {
        let is_in_commit = failpoint as usize >= Failpoint::VoteBeforeManifest as usize;
        let rank = if is_in_commit { 0 } else { 1 };
        let fault = format!("kill@step=4,rank={rank},failpoint={failpoint}");
        train_until_killed(2, &folder, &variant.flags(), &fault);
    }
    train(2, &folder, &variant.flags()).expect(0);
    assert_eq!(folder.result(), *uninterrupted(variant));
    let attempts = folder.record()["attempts"].as_array().unwrap().clone();
    let resumed: Vec<_> = attempts.iter().map(|it| it["resumed_after_step"].clone()).collect();
    assert_eq!(resumed, [vec![0; failpoints.count()], vec![4]].concat());
}

fn a_killed_run_resumes_to_the_same_bits(variant: Variant, extra: &[&str], fault: &str) {
    let folder = Folder::new();
    let flags = [&variant.flags()[..], extra].concat();
    train_until_killed(2, &folder, &flags, fault);
    train(2, &folder, &flags).expect(0);
    assert_eq!(folder.result(), *uninterrupted(variant), "{variant:?}, {fault}");
    let record = folder.record();
    assert_eq!(record["status"], "complete", "{variant:?}, {fault}");
    assert_eq!(record["attempts"].as_array().unwrap().len(), 2, "{variant:?}, {fault}");
}

#[test]
fn a_run_resumes_at_another_world_size_to_the_same_losses() {
    let [_, second, third, _] = Variant::corners();
    for variant in [second, third] {
        let folder = Folder::new();
        let flags = [&variant.flags()[..], &IN_FOREGROUND].concat();
        train_until_killed(4, &folder, &flags, "kill@step=13,rank=0");
        train(1, &folder, &flags).expect(0);
        let attempts = folder.record()["attempts"].clone();
        assert_eq!((&attempts[0]["world"], &attempts[1]["world"]), (&4.into(), &1.into()));
        assert_eq!(attempts[1]["resumed_after_step"], 12, "{variant:?}");
        assert_eq!(folder.losses().len(), STEPS as usize, "{variant:?}");
        for (expected, found) in uninterrupted(variant).losses.iter().zip(folder.losses()) {
            let relative = expected.relative_difference(found);
            assert!(relative <= variant.rounding(), "{variant:?}, {expected:?}: {relative:e}");
        }
    }
}

/// Killed after the save of the step that reached the target. Only rank 0 still has its steps.
#[test]
fn all_ranks_learn_from_rank_0_that_the_target_was_reached() {
    let folder = Folder::new();
    let target = ["--threads", "1", "--eval-every", "4", "--target-loss", "100"];
    let kill = ["--inject", "kill@step=4,rank=0,failpoint=manifest-before-latest"];
    assert_ne!(folder.train_on(2, &[&target[..], &kill].concat()).code, 0);
    std::fs::remove_file(folder.path().join("steps/r000001.jsonl")).unwrap();
    folder.train_on(2, &target).expect(0);
    assert_eq!(folder.losses().len(), 4, "no step was made");
    assert_eq!(folder.record()["target_loss"]["step"], 4);
}

#[test]
fn lost_steps_are_counted_over_all_attempts() {
    let folder = Folder::new();
    for step in ["7", "15"] {
        train_until_killed(2, &folder, &IN_FOREGROUND, &format!("kill@step={step},rank=1"));
    }
    train(2, &folder, &[]).expect(0);
    let record = folder.record();
    let resumed: Vec<_> = (0..3).map(|n| &record["attempts"][n]["resumed_after_step"]).collect();
    assert_eq!(resumed, [0, 4, 12]);
    let last: Vec<_> = (0..2).map(|n| record["attempts"][n]["last_step"].as_u64()).collect();
    let lost = last[0].unwrap() - 4 + last[1].unwrap() - 12;
    assert_eq!(record["goodput"]["lost_steps"], lost, "{record}");
    assert!(lost <= 4, "{lost}: both kills are at most two steps after a save");
}

#[test]
fn weak_scaling_resumes_with_the_next_sequence_at_another_world_size() {
    let folder = Folder::new();
    let train = |ranks, steps| {
        let weak = "batch.sequences_per_rank=8";
        let flags = ["--threads", "1", "--steps", steps, "--set", weak];
        folder.train_on(ranks, &flags).expect(0);
    };
    train(2, "4");
    assert_eq!(progress(&folder), [4, 64, 64 * 128]);
    train(1, "6");
    assert_eq!(progress(&folder), [6, 64 + 16, (64 + 16) * 128]);
}

/// Step, next sequence and tokens of the newest checkpoint.
fn progress(folder: &Folder) -> [u64; 3] {
    let name = folder.newest_checkpoint();
    let manifest = folder.path().join(format!("checkpoints/{name}/MANIFEST.json"));
    let manifest: Value = serde_json::from_slice(&std::fs::read(manifest).unwrap()).unwrap();
    let state = &manifest["state"];
    ["step", "next_sequence", "tokens"].map(|key| state[key].as_u64().unwrap())
}

/// Faults that delay rank 0 by six seconds in step 5.
const SLOW_STEP_5: [&str; 4] = ["--inject", "slow@step=5,rank=0", "--inject", "slow@step=5,rank=0"];

/// Run in which rank 0 sleeps at the beginning of step 5, and is asked to stop then.
struct AskedInStep5 {
    folder: Folder,
    running: Running,
    stderr: PathBuf,
    /// Process id of the rank that is asked.
    pid: String,
}

impl AskedInStep5 {
    /// Sends a signal to one rank, and waits until that has reported it. The flags have the fault
    /// that lets rank 0 sleep.
    fn new(ranks: usize, rank: usize, signal: &str, flags: &[&str]) -> Self {
        let folder = Folder::new();
        let stderr = folder.sibling("stderr");
        let mut command = mpirun(
            ranks,
            &[
                &["train", "--threads", "1", "--out", &folder.text()],
                &["--set", "schedule.steps=100000"][..],
                flags,
            ]
            .concat(),
        );
        command.stderr(std::fs::File::create(&stderr).unwrap());
        let mut running = Running::spawn(command);
        let steps = folder.path().join("steps/r000000.jsonl");
        let lines = |path: &Path| std::fs::read_to_string(path).unwrap_or_default();
        running.poll_while(|| lines(&steps).lines().count() < 4);
        // Without its schema, which takes long to build: step 5 does not sleep for ever.
        let record = std::fs::read(folder.path().join("record.json")).unwrap();
        let record: serde_json::Value = serde_json::from_slice(&record).unwrap();
        let pid = record["ranks"][rank]["pid"].to_string();
        let mut asked = Self { folder, running, stderr, pid };
        asked.send(signal);
        asked.await_report("stop requested");
        assert_eq!(lines(&steps).lines().count(), 4, "reported before the step has ended");
        asked
    }

    /// Waits until it has reported this.
    fn await_report(&mut self, text: &str) {
        let stderr = self.stderr.clone();
        self.running.poll_while(|| !std::fs::read_to_string(&stderr).unwrap().contains(text));
    }

    fn send(&self, signal: &str) {
        assert!(Command::new("kill").args([signal, &self.pid]).status().unwrap().success());
    }

    fn stderr(&self) -> String {
        std::fs::read_to_string(&self.stderr).unwrap()
    }
}

#[test]
fn a_sigterm_in_a_step_makes_it_the_last_one_and_is_reported_at_once() {
    assert_stops_after_step_5(1, 0, "");
}

/// Sends the signal to a rank that waits for the gradients of a sleeping one.
#[test]
fn a_sigterm_to_one_of_two_ranks_is_reported_with_its_number() {
    assert_stops_after_step_5(2, 1, "rank 1: ");
}

#[track_caller]
fn assert_stops_after_step_5(ranks: usize, rank: usize, origin: &str) {
    let saves = [&["--checkpoint-every", "3steps"], &IN_FOREGROUND[..], &SLOW_STEP_5].concat();
    let mut asked = AskedInStep5::new(ranks, rank, "-TERM", &saves);
    asked.send("-TERM"); // as launchers pass one request on in several ways
    assert_eq!(asked.running.wait(), Some(75));
    let stderr = asked.stderr();
    let reported = format!("{origin}stop requested (SIGTERM): finishes step 5 and saves it; ");
    let line = stderr.lines().find(|line| line.starts_with(&reported));
    let line = line.unwrap_or_else(|| panic!("{stderr}"));
    assert!(line.contains("; expected in about "), "{line}");
    assert!(line.ends_with("steps 4 to 5 are lost, the newest checkpoint is step 3"), "{line}");
    assert!(stderr.contains("SIGTERM: stops already; "), "{stderr}");
    let folder = &asked.folder;
    let record = folder.record();
    assert_eq!((&record["status"], &record["exit_code"]), (&"stopped".into(), &75.into()));
    assert_eq!(record["checkpoints"]["triggers"]["stop"], 1, "{record}");
    assert_eq!(record["checkpoints"]["last_step"], 5);
    assert_eq!(folder.steps(0).len(), 5, "no step after that of the signal");
    let verified = support::run(&["ckpt", "verify", &folder.text()]).expect(0);
    assert!(verified.stdout.contains("ok"), "{}", verified.stdout);
}

#[test]
fn the_second_interrupt_ends_at_once_and_says_what_is_lost() {
    let flags = ["--log-format", "json", "--inject", "hang@step=5,rank=0"];
    let mut asked = AskedInStep5::new(1, 0, "-INT", &flags);
    // Until the report of the first one is over, the second one ends the process without a word:
    // a request that is reported after it says when that is.
    asked.send("-TERM");
    asked.await_report("SIGTERM: stops already");
    asked.send("-INT");
    assert_eq!(asked.running.wait(), Some(130));
    assert_eq!(asked.folder.steps(0).len(), 4);
    let stderr = asked.stderr();
    let events = stderr.lines().filter(|line| line.contains("\"event\":\"stop\""));
    let events: Vec<Value> = events.map(|line| serde_json::from_str(line).unwrap()).collect();
    let [first, between, second] = &events[..] else { panic!("{stderr}") };
    assert_eq!((&first["last_step"], &first["ends_at_once"]), (&5.into(), &false.into()));
    assert_eq!((&between["last_step"], &between["ends_at_once"]), (&5.into(), &false.into()));
    assert!(first["expected_seconds"].is_number(), "{first}");
    assert_eq!((&first["signal"], &first["step"]), (&"SIGINT".into(), &5.into()));
    assert_eq!((&second["last_step"], &second["ends_at_once"]), (&Value::Null, &true.into()));
    let text = second["text"].as_str().unwrap();
    assert!(text.contains("ends at once; steps 1 to 5 are lost, no checkpoint is"), "{text}");
}

/// The removal of the first checkpoint, after the second save, hangs, and the request is made
/// during it. The third save, which would wait for the removal, is far away.
#[test]
fn a_stop_does_not_wait_for_retention() {
    let folder = Folder::new();
    let retention = ["--checkpoint-every", "50steps", "--set", "checkpoint.keep=1"];
    let [stop, hang] = ["stop", "hang"].map(|f| format!("{f}@step=100,failpoint=mid-retention"));
    let faults = ["--inject", &stop, "--inject", &hang];
    folder.train(&[&retention[..], &faults].concat()).expect(75);
    assert_eq!(folder.record()["status"], "stopped");
    assert_eq!(folder.checkpoint_count(), 3, "no checkpoint is removed");

    // The run removes them when it resumes, also without a save.
    let one_more = (folder.steps(0).len() + 1).to_string();
    let resume = ["--steps", &one_more, "--set", "checkpoint.at_end=false"];
    folder.train(&[&resume[..], &retention[2..]].concat()).expect(0);
    assert_eq!(folder.checkpoint_count(), 1);
}

#[test]
fn a_non_finite_loss_is_an_error_with_step_and_rank() {
    let folder = Folder::new();
    let fault = ["--inject", "nan@step=5,rank=1", "--log-format", "json"];
    let finished = train(2, &folder, &fault).expect(4);
    let finished = finished.expect_stderr(&["step 5, rank 1: the loss"]);
    // Lines are complete although both ranks write at the same time.
    let events = finished.stderr.lines().filter(|line| line.contains("\"error\""));
    let events: Vec<Value> = events.map(|line| serde_json::from_str(line).unwrap()).collect();
    let reporters: Vec<_> = events.iter().map(|event| event["rank"].as_u64()).collect();
    let is_reported = reporters.contains(&Some(0)) || reporters.contains(&Some(1));
    assert!(is_reported, "{}", finished.stderr);
    assert!(events.iter().all(|event| event["caused_by_rank"] == 1), "{}", finished.stderr);
    let record = folder.record();
    assert_eq!(record["status"], "failed");
    assert_eq!(record["exit_code"], 4);
    assert_eq!(record["reason"]["rank"], 1);
    assert_eq!(record["reason"]["step"], 5);
}

/// A single rank finds it in another way than several.
#[test]
fn a_non_finite_gradient_is_an_error_with_the_tensor() {
    let diverging = [
        "--set",
        "schedule.learning_rate=1e30",
        "--set",
        "schedule.warmup_steps=0",
        "--set",
        "optimizer.gradient_norm_max=0.0",
    ];
    // All ranks diverge: none of several is to blame.
    for (ranks, named, blamed) in
        [(1, "rank 0: ", Value::from(0)), (2, "rank 0 and 1 other rank: ", Value::Null)]
    {
        let folder = Folder::new();
        let message = [&format!("{named}the gradient of "), ".weight", "not finite"];
        train(ranks, &folder, &diverging).expect(4).expect_stderr(&message);
        assert_eq!(folder.record()["reason"]["rank"], blamed);
    }
}

#[test]
fn a_rank_that_cannot_write_its_error_file_keeps_its_exit_code() {
    let folder = after_four_steps();
    let out = folder.text();
    std::fs::create_dir(folder.path().join("attempts/002.r000001.failed")).unwrap();
    let fault = ["--inject", "nan@step=5,rank=1,attempt=2"];
    let failed = on_each_rank(2, &arguments(&out, &fault), &[]);
    assert_eq!(failed.codes, "4\n4\n", "{}", failed.finished.stderr);
    failed.finished.expect_stderr(&["002.r000001.failed"]);
}

/// Only rank 0 checks the folder, and sends the exit code to the other ranks.
#[test]
fn every_rank_refuses_a_run_whose_checkpoints_are_gone() {
    let folder = after_four_steps();
    let out = folder.text();
    let checkpoints = folder.path().join("checkpoints");
    std::fs::remove_dir_all(&checkpoints).unwrap();
    let refused = on_each_rank(2, &arguments(&out, &["--log-format", "json"]), &[]);
    assert_eq!(refused.codes, "6\n6\n", "{}", refused.finished.stderr);
    let finished = refused.finished.expect_stderr(&[&checkpoints.to_string_lossy()]);
    let causes = finished.stderr.matches("\"caused_by_rank\":0,");
    assert_eq!(causes.count(), 2, "{}", finished.stderr);
    assert!(!checkpoints.exists(), "the folder is not created");
}

/// A library whose `MPI_Finalize` runs `body` and fails, and whose exit handler hangs.
fn failing_finalize(body: &str, folder: &Path) -> PathBuf {
    let text = "#include <stdlib.h>\n#include <unistd.h>\n\
                static void hang(void) { for (;;) pause(); }\n\
                int MPI_Finalize(void) { atexit(hang); BODY return 16; }\n";
    library_of(&text.replace("BODY", body), folder)
}

/// A library in which each of rank 0's first three renames takes 3.5 s: those of the configuration,
/// the attempt and the record.
fn slow_renames(folder: &Path) -> PathBuf {
    let text = r#"
        #include <fcntl.h>
        #include <stdio.h>
        #include <stdlib.h>
        #include <string.h>
        #include <unistd.h>
        static int renames;
        int rename(const char *from, const char *to) {
            const char *rank = getenv("OMPI_COMM_WORLD_RANK");
            if (!rank) rank = getenv("PMI_RANK");
            if (rank && !strcmp(rank, "0") && renames++ < 3) usleep(3500000);
            return renameat(AT_FDCWD, from, AT_FDCWD, to);
        }"#;
    library_of(text, folder)
}

/// Other ranks wait for the folder, the record and the steps as long as for a checkpoint.
#[test]
fn a_start_on_slow_storage_outlasts_the_deadline_of_collectives() {
    let folder = Folder::new();
    let built = tempfile::tempdir().unwrap();
    let library = slow_renames(built.path());
    let out = folder.text();
    let train = ["train", "--out", &out, "--steps", "2", "--threads", "1", "--deadline", "3s"];
    let start = Instant::now();
    let both = on_each_rank(2, &train, &[("LD_PRELOAD", library.as_os_str())]);
    assert_eq!(both.codes, "0\n0\n", "{}", both.finished.stderr);
    assert!(start.elapsed() > Duration::from_secs(10), "renames are slow: {:?}", start.elapsed());
}

/// The result was recorded and reported before, so the exit code stays, and each rank warns.
#[test]
fn a_failing_mpi_finalize_does_not_change_the_exit_code() {
    // Only an end that hangs waits for the deadlines, which saves have to keep.
    let short_deadlines = ["--deadline", "5s", "--set", "checkpoint.deadline=5s"];
    let stop = ["--inject", "stop@step=2,rank=1", "--log-format", "json"];
    let stop = [short_deadlines, stop].concat();
    for (body, extra, code, cause) in [
        ("", &[][..], 0, "MPI could not end: "),
        ("hang();", &stop[..], 75, "MPI_Finalize does not end"),
    ] {
        let folder = Folder::new();
        let built = tempfile::tempdir().unwrap();
        let library = failing_finalize(body, built.path());
        let variables = [("LD_PRELOAD", library.as_os_str())];
        let both = on_each_rank(2, &arguments(&folder.text(), extra), &variables);
        let stderr = both.finished.stderr;
        assert_eq!(both.codes, format!("{code}\n{code}\n"), "{stderr}");
        assert_eq!(folder.record()["exit_code"], code);
        let warnings = stderr.lines().filter(|line| line.contains("WARN"));
        let warnings: Vec<_> = warnings.filter(|line| line.contains(cause)).collect();
        assert_eq!(warnings.len(), 2, "{stderr}");
        let text = "communication could not be closed";
        assert!(warnings.iter().all(|line| line.contains(text)), "{stderr}");
        assert!(warnings[0].starts_with('{') == (code == 75), "JSON if requested: {stderr}");
    }
}

#[test]
fn the_error_of_a_rank_other_than_0_is_reported() {
    let folder = after_four_steps();
    let out = folder.text();
    let steps = folder.path().join("steps/r000001.jsonl");
    std::fs::remove_file(&steps).unwrap();
    std::fs::create_dir(&steps).unwrap(); // rank 1 cannot write its steps
    assert_ne!(train(2, &folder, &[]).code, 0);
    let report = support::run(&["report", &out]).expect(0).stdout;
    let unwrapped = report.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(unwrapped.contains("r000001.jsonl"), "{report}");
    std::fs::remove_dir(&steps).unwrap();
    train(2, &folder, &[]).expect(0);
    let attempts = folder.record()["attempts"].clone();
    assert_eq!(attempts[1]["status"], "failed", "{attempts}");
}

#[test]
fn a_hung_rank_ends_the_run_within_its_deadline() {
    let folder = Folder::new();
    let hang = ["--deadline", "2s", "--inject", "hang@step=5,rank=1"];
    let stderr = train(2, &folder, &hang).expect(5).stderr;
    // The default deadline is two minutes.
    let rest = stderr.split_once("not over after ").unwrap_or_else(|| panic!("{stderr}")).1;
    let waited: f64 = rest.split(' ').next().unwrap().parse().unwrap();
    assert!((2.0..120.0).contains(&waited), "{stderr}");
    assert_eq!(folder.record()["exit_code"], 5);
    train(2, &folder, &[]).expect(0);
}
