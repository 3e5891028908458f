//! `kill -9` at every named point of a save: the newest committed step is there, and the next
//! save works.

use std::os::unix::process::ExitStatusExt;
use std::path::Path;

use checkpoint::{Alone, Listed, Observer, Peers, Point, Status};

use crate::support::*;

/// Kills the whole process when one rank reaches a point.
struct Killer {
    rank: usize,
    point: Point,
    own: usize,
}

impl Observer for Killer {
    fn reached(&self, point: Point) {
        if (self.own, point) == (self.rank, self.point) {
            let pid = rustix::process::getpid();
            rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
        }
    }
}

/// The child: saves step 30 as epoch 2, and dies.
fn die(argument: &str) {
    let mut words = argument.splitn(3, ' ');
    let mut next = || words.next().unwrap();
    let (point, rank) = (next().parse().unwrap(), next().parse().unwrap());
    let store = open(Path::new(next()));
    on_ranks(2, |peers| {
        let killer = Killer { rank, point, own: peers.rank() };
        save_rank(&store, (30, 2, 1), peers, &killer).map(|_| ())
    });
    panic!("lived past {point} on rank {rank}");
}

#[test]
fn at_every_point_the_newest_committed_step_survives() {
    if let Some(argument) = child_argument() {
        return die(&argument);
    }
    let committed = |point| matches!(point, Point::ManifestBeforeLatest | Point::MidRetention);
    let of_all_ranks = |point| Point::ALL[..4].contains(&point);
    for point in Point::ALL {
        for rank in 0..if of_all_ranks(point) { 2 } else { 1 } {
            let folder = tempfile::tempdir().unwrap();
            let store = open(folder.path());
            save(&store, 2, 10, 1, 0);
            save(&store, 2, 20, 1, 0);
            let argument = format!("{point} {rank} {}", folder.path().display());
            let test = "kill::at_every_point_the_newest_committed_step_survives";
            let output = child(&["env"], test, &argument).output().unwrap();
            assert_eq!(output.status.signal(), Some(9), "{point} on rank {rank}: {output:?}");

            let resumed = resume(&store, 2);
            let expected = if committed(point) { 30 } else { 20 };
            assert_eq!((resumed.step, resumed.rejected), (expected, Vec::new()), "{point}");
            let deleted = |listed: &Listed| listed.status == Status::Deleted;
            let halfway = usize::from(point == Point::MidRetention);
            assert_eq!(store.list().unwrap().into_iter().filter(deleted).count(), halfway);
            assert_eq!(store.claim(1, &Alone).unwrap(), 3);
            let name = save(&store, 2, 40, 3, 1);
            assert_eq!(names(&store), [name], "{point} on rank {rank}: remains are swept");
            assert_eq!(resume(&store, 1).step, 40);
        }
    }
}
