//! `kill -9` at every failpoint of a save: the newest committed step survives, and the next save
//! works.

use std::os::unix::process::ExitStatusExt;
use std::path::Path;

use checkpoint::{Failpoint, Failpoints, Listed, Peers, SingleRank, Status};

use crate::support::*;

/// Kills the whole process when one rank reaches a failpoint.
pub(crate) struct Killer {
    pub(crate) rank: usize,
    pub(crate) failpoint: Failpoint,
    pub(crate) own: usize,
}

impl Failpoints for Killer {
    fn hit(&self, failpoint: Failpoint) {
        if (self.own, failpoint) == (self.rank, self.failpoint) {
            let pid = rustix::process::getpid();
            rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
        }
    }
}

/// The child: saves step 30 as attempt 2, and dies.
fn die(argument: &str) {
    let mut fields = argument.splitn(3, ' ');
    let mut next = || fields.next().unwrap();
    let failpoint = next().parse().unwrap();
    let rank = next().parse().unwrap();
    let store = open(Path::new(next()));
    assert_eq!(store.claim_attempt(2, &SingleRank).unwrap().attempt, 2);
    on_ranks(2, |peers| {
        let killer = Killer { rank, failpoint, own: peers.rank() };
        save_rank(&store, Plan { step: 30, attempt: 2, keep: 1 }, peers, &killer).map(|_| ())
    });
    panic!("survived {failpoint} on rank {rank}");
}

#[test]
fn at_every_failpoint_the_newest_committed_step_survives() {
    if let Some(argument) = child_argument() {
        return die(&argument);
    }
    let committed = [Failpoint::ManifestBeforeLatest, Failpoint::MidRetention];
    let of_all_ranks = |failpoint| Failpoint::ALL[..4].contains(&failpoint);
    for failpoint in Failpoint::ALL {
        for rank in 0..if of_all_ranks(failpoint) { 2 } else { 1 } {
            let folder = tempfile::tempdir().unwrap();
            let store = open(folder.path());
            save(&store, 2, 10, 1, 0);
            save(&store, 2, 20, 1, 0);
            let argument = format!("{failpoint} {rank} {}", folder.path().display());
            let test = "kill::at_every_failpoint_the_newest_committed_step_survives";
            let output = child(&["env"], test, &argument).output().unwrap();
            assert_eq!(output.status.signal(), Some(9), "{failpoint} on rank {rank}: {output:?}");

            let resumed = resume(&store, 2);
            let expected = if committed.contains(&failpoint) { 30 } else { 20 };
            assert_eq!((resumed.step, resumed.rejected), (expected, Vec::new()), "{failpoint}");
            let deleted = |listed: &Listed| listed.status == Status::Deleted;
            let halfway = usize::from(failpoint == Failpoint::MidRetention);
            assert_eq!(store.list().unwrap().into_iter().filter(deleted).count(), halfway);
            assert_eq!(store.claim_attempt(1, &SingleRank).unwrap().attempt, 3);
            let name = save(&store, 2, 40, 3, 1);
            assert_eq!(names(&store), [name], "{failpoint} on rank {rank}: leftovers are removed");
            assert_eq!(resume(&store, 1).step, 40);
        }
    }
}
