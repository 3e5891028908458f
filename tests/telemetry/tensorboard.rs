//! TensorBoard's own reader on the files that a run writes for it.

use std::collections::BTreeMap;
use std::process::Command;

use support::{Folder, finish, library_of, text, yardstick};

/// Prints the scalars of a folder of events as JSON: of each tag a list of [step, value].
const READ: &str = "
import json, sys
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
events = EventAccumulator(sys.argv[1], size_guidance={'scalars': 0})
events.Reload()
tags = events.Tags()['scalars']
print(json.dumps({tag: [[e.step, e.value] for e in events.Scalars(tag)] for tag in tags}))
";

fn scalars(folder: &Folder) -> BTreeMap<String, Vec<(u64, f64)>> {
    let python = concat!(env!("CARGO_MANIFEST_DIR"), "/../../.venv-tensorboard/bin/python");
    let mut command = Command::new(python);
    command.args(["-c", READ, &text(&folder.path().join("tensorboard"))]);
    let finished = finish(command);
    assert_eq!(finished.code, 0, "{finished:?}");
    serde_json::from_str(finished.stdout.lines().last().unwrap()).unwrap()
}

/// Sets the process's clock back by a minute, as on another host, or where the clock was corrected.
#[test]
fn a_clock_that_went_back_hides_neither_steps_nor_goodput() {
    const BEHIND: &str = "
        #define _GNU_SOURCE
        #include <sys/syscall.h>
        #include <time.h>
        #include <unistd.h>
        int clock_gettime(clockid_t id, struct timespec *time) {
            int result = syscall(SYS_clock_gettime, id, time);
            if (id == CLOCK_REALTIME) time->tv_sec -= 60;
            return result;
        }";
    let (folder, library) = (Folder::new(), tempfile::tempdir().unwrap());
    let flags = ["--set", "telemetry.tensorboard=true", "--steps"];
    folder.train(&[&flags[..], &["4"]].concat()).expect(0);
    let mut later = yardstick(&[&["train", "--out", &folder.text()], &flags[..], &["8"]].concat());
    later.env("LD_PRELOAD", library_of(BEHIND, library.path()));
    let sentence = "the clock went back: by it attempt 2 began";
    finish(later).expect(0).expect_stderr(&[sentence]);
    let steps: Vec<_> = scalars(&folder)["train/loss"].iter().map(|it| it.0).collect();
    assert_eq!(steps, (1..=8).collect::<Vec<u64>>());
    let record = folder.record();
    let share = record["goodput"]["share"].as_f64().unwrap();
    assert!(share > 0.0 && share <= 1.0, "{}", record["goodput"]);
    assert!(record["anomalies"].to_string().contains(sentence), "{}", record["anomalies"]);
}

#[test]
fn tensorboard_reads_every_step_once_also_after_a_kill() {
    let folder = Folder::new();
    let flags = ["--steps", "12", "--eval-every", "4", "--set", "telemetry.tensorboard=true"];
    let flags = [&flags[..], &["--checkpoint-every", "5steps"]].concat();
    // Step 7 is slow, so that it and the one before are written to the file, and there is time for
    // that before the process is killed; the next attempt repeats both.
    let faults = ["slow@step=7,rank=0", "slow@step=8,rank=0", "kill@step=8,rank=0"];
    let faults: Vec<&str> = faults.iter().flat_map(|fault| ["--inject", fault]).collect();
    let killed = folder.train(&[&flags[..], &faults].concat());
    assert_ne!(killed.code, 0);
    assert_eq!(scalars(&folder)["train/loss"].last().unwrap().0, 7);
    folder.train(&flags).expect(0);
    let scalars = scalars(&folder);
    let losses = &scalars["train/loss"];
    assert_eq!(losses.iter().map(|it| it.0).collect::<Vec<_>>(), (1..=12).collect::<Vec<u64>>());
    for (line, (step, loss)) in folder.steps(0).iter().zip(losses) {
        assert_eq!(line.step(), *step);
        assert!((line.loss() - loss).abs() < 1e-5, "step {step}: {loss}");
    }
    let evaluated: Vec<u64> = scalars["eval/loss"].iter().map(|it| it.0).collect();
    assert_eq!(evaluated, [4, 8, 12]);
    for tag in ["speed/tokens_per_second", "speed/step_ms", "phase_ms/forward"] {
        assert!(scalars[tag].iter().all(|(_, value)| *value > 0.0), "{tag}: {:?}", scalars[tag]);
    }
}
