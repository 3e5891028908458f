//! Storage that does not answer: ranks wait no longer than they may, and say for which file.

use std::time::Duration;

use crate::faults::{Effect, Fault, Operation};
use crate::mount::Mounted;
use crate::runs::Run;

/// Several times as long as ranks wait.
const HANG: Duration = Duration::from_secs(5);

#[test]
#[ignore = "needs /dev/fuse and root"]
fn a_hung_write_ends_within_its_deadline_and_names_rank_and_file() {
    let mounted = Mounted::new();
    let run = Run::new(&mounted);
    let hang =
        |name| Fault::Named { operation: Operation::Write, name, effect: Effect::Hang(HANG) };
    for (name, rank) in [("r00001-000.safetensors", 1), ("MANIFEST", 0)] {
        mounted.set(Some(hang(name)));
        let finished = run.train(&["--set", "checkpoint.deadline=1s"]);
        assert!(mounted.last_hit().is_some(), "{name}");
        mounted.set(None);
        std::thread::sleep(HANG); // until then the process that hangs holds the folder's lock
        let stderr = finished.expect(6).stderr;
        let errors = stderr.lines().filter(|line| line.contains("is storage hung?"));
        let is_named = |line: &&str| line.contains(name) && line.contains(&format!("rank {rank}"));
        assert!(errors.clone().any(|line| is_named(&line)), "{name}: {stderr}");
    }
    run.train(&[]).expect(0);
    assert_eq!(run.result(), *crate::runs::undisturbed());
}
