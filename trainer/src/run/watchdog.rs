//! Watchdog for a step that does not end, which reports the ranks that have arrived and those that
//! have not.
//!
//! A thread of each rank watches the position of training. From the time at which a step has taken
//! half of the deadline of collectives, it writes the position to the run's folder, also for a rank
//! that hangs itself, and writes it again whenever it has changed: a rank that arrives later is no
//! longer missing. So when the deadline passes, the waiting ranks can name those that did not
//! arrive.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::timing::progress::Progress;
use record::Position;
use record::phase::Phase;
use record::text::list;
use record::{Anomaly, StallFile};
use telemetry::Events;

/// Watches the progress of training until it is dropped.
#[derive(Debug)]
pub(super) struct Watchdog {
    /// Sender whose end ends the thread.
    end: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

/// State that a watchdog observes.
#[derive(Debug)]
pub(super) struct Watched {
    pub(super) dir: PathBuf,
    pub(super) attempt: u32,
    pub(super) rank: usize,
    /// Host of each rank, and its place in the dimensions.
    pub(super) places: Vec<String>,
    pub(super) progress: Arc<Progress>,
    /// Time that a step may take before the position of the rank is written.
    pub(super) timeout: Duration,
    pub(super) events: Events,
}

/// Step of the last check.
#[derive(Debug)]
struct LastCheck {
    step: u64,
    since: Instant,
    /// Position that the rank has written.
    written: Option<Position>,
    /// True if rank 0 has evaluated the positions of all ranks.
    is_warned: bool,
}

impl LastCheck {
    fn now(step: u64) -> Self {
        Self { step, since: Instant::now(), written: None, is_warned: false }
    }
}

/// Number of checks within the timeout.
const CHECKS_PER_TIMEOUT: u32 = 10;

impl Watchdog {
    /// Starts to watch. A run without the thread is equally good, except that a hang names no rank.
    pub(super) fn start(watched: Watched) -> Self {
        let (end, ended) = mpsc::channel();
        let interval = watched.timeout / CHECKS_PER_TIMEOUT;
        let check = move || {
            let mut last = LastCheck::now(watched.progress.position().step);
            while ended.recv_timeout(interval) == Err(RecvTimeoutError::Timeout) {
                watched.check(&mut last);
            }
        };
        let thread = device::threads::spawn("watchdog", check);
        Self { end: Some(end), thread: thread.ok() }
    }
}

impl Drop for Watchdog {
    fn drop(&mut self) {
        self.end = None;
        self.thread.take().map(JoinHandle::join);
    }
}

impl Watched {
    /// Compares the position with that of the last check.
    fn check(&self, last: &mut LastCheck) {
        let position = self.progress.position();
        let file = StallFile::new(&self.dir, self.attempt, self.rank);
        if position.step != last.step {
            if last.written.is_some() {
                file.remove();
            }
            *last = LastCheck::now(position.step);
            return;
        }
        let passed = last.since.elapsed();
        let is_due = position.step > 0 && passed >= self.timeout;
        if is_due && last.written != Some(position) {
            let _ = file.write(&position); // a rank that cannot write is silent
            last.written = Some(position);
        }
        // By then the other ranks have written theirs.
        if self.rank == 0 && !last.is_warned && passed >= self.timeout + self.timeout / 4 {
            last.is_warned = true;
            self.warn(position);
        }
    }

    fn warn(&self, own: Position) {
        if matches!(own.phase, Phase::Checkpoint | Phase::Eval) {
            return; // these may take long
        }
        let whole = Stall::of(&self.dir, self.attempt, own.step, self.places.len());
        // If no rank waits for another one, the step is just long.
        let Some((rank, _)) = whole.cause(self.rank, &[]) else { return };
        let step = own.step;
        let seconds = self.timeout.as_secs_f64();
        let found = whole.text(&self.places);
        let text = format!("step {step} has not ended for {seconds:.1} s: {found}");
        self.events.warn(Anomaly { step: Some(step), rank: Some(rank), text });
    }
}

/// Positions of all ranks in a step that does not end.
#[derive(Debug)]
pub(super) struct Stall {
    step: u64,
    /// Position of each rank; `None` if it is silent.
    positions: Vec<Option<Position>>,
}

impl Stall {
    /// Reads the positions that the ranks have written for a step.
    pub(super) fn of(dir: &Path, attempt: u32, step: u64, world: usize) -> Self {
        let read = |rank| StallFile::new(dir, attempt, rank).read();
        let of_step = |position: &Position| position.step == step;
        Self { step, positions: (0..world).map(|rank| read(rank).filter(of_step)).collect() }
    }

    /// Returns whether a rank has reached its wait for the other ranks.
    fn has_arrived(position: &Position) -> bool {
        position.phase == Phase::CommExposed
    }

    /// Returns the likely cause, a rank that has not arrived, and its position, if that is known;
    /// `None` unless some ranks have arrived and some have not.
    ///
    /// A rank that a failed operation lacked (`lacked`) comes before the others, and a lower number
    /// before a higher one. Rank `own`, which asks, is the last: it waits itself, although it may
    /// have arrived since its file was written.
    pub(super) fn cause(&self, own: usize, lacked: &[usize]) -> Option<(usize, Option<Position>)> {
        let arrived = self.positions.iter().flatten().any(Self::has_arrived);
        let is_missing =
            |it: &(usize, &Option<Position>)| !it.1.as_ref().is_some_and(Self::has_arrived);
        let missing = self.positions.iter().enumerate().filter(is_missing);
        let (rank, position) =
            missing.min_by_key(|(rank, _)| (*rank == own, !lacked.contains(rank), *rank))?;
        arrived.then_some((rank, *position))
    }

    /// Describes the likely cause if all ranks have arrived.
    pub(super) fn text_of_network(&self, places: &[String]) -> Option<String> {
        let arrived = self.positions.iter().flatten().filter(|at| Self::has_arrived(at)).count();
        if arrived < self.positions.len() {
            return None;
        }
        let ranks = places.iter().enumerate().map(|(rank, place)| format!("{rank} ({place})"));
        let ranks: Vec<_> = ranks.collect();
        Some(format!(
            "in step {}, all ranks had arrived, {}: a link between them is down, or an adapter, \
             unless a process has died since; `yardstick comm --pairs` on these hosts names it",
            self.step,
            list(&ranks)
        ))
    }

    /// Describes the positions of all ranks.
    pub(super) fn text(&self, places: &[String]) -> String {
        let name = |rank: usize| format!("{rank} ({})", places[rank]);
        let mut groups: Vec<(String, Vec<String>)> = Vec::new();
        for (rank, position) in self.positions.iter().enumerate() {
            let place = match position {
                None => {
                    "silent: the process hangs as a whole, or it or its node is gone".to_owned()
                }
                Some(position) => place(position),
            };
            match groups.iter_mut().find(|group| group.0 == place) {
                Some(group) => group.1.push(name(rank)),
                None => groups.push((place, vec![name(rank)])),
            }
        }
        // The smallest groups first: they are more likely the cause.
        groups.sort_by_key(|group| group.1.len());
        let texts = groups.iter().map(|(place, ranks)| {
            let noun = if ranks.len() == 1 { "rank" } else { "ranks" };
            format!("{noun} {}: {place}", list(ranks))
        });
        let texts: Vec<String> = texts.collect();
        format!("in step {}, {}", self.step, texts.join("; "))
    }
}

fn place(position: &Position) -> String {
    let Position { phase, bucket, buckets, .. } = position;
    let name = phase.name();
    match (Stall::has_arrived(position), bucket) {
        (true, 0) => format!("arrived, in {name}"),
        (true, bucket) => format!("arrived, waits for bucket {bucket} of {buckets}"),
        (false, _) => format!("not arrived, in {name}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run::peers::tests::silent_telemetry;

    fn at(phase: Phase, bucket: u32) -> Position {
        Position { step: 7, phase, bucket, buckets: 4 }
    }

    #[test]
    fn the_network_is_to_blame_where_all_have_arrived() {
        let arrived = Some(at(Phase::CommExposed, 2));
        let hosts = ["node-0", "node-1"].map(str::to_owned);
        let stall = Stall { step: 7, positions: vec![arrived, arrived] };
        assert!(stall.cause(0, &[]).is_none());
        let text = stall.text_of_network(&hosts).unwrap();
        assert!(text.contains("all ranks had arrived, 0 (node-0), 1 (node-1): "), "{text}");
        let hung = Stall { step: 7, positions: vec![arrived, Some(at(Phase::Forward, 0))] };
        assert_eq!(hung.text_of_network(&hosts), None);
    }

    #[test]
    fn the_ranks_that_did_not_arrive_are_named() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir(dir.path().join("attempts")).unwrap();
        let hosts: Vec<String> = (0..4).map(|rank| format!("node-{rank}")).collect();
        let write = |rank, position| {
            StallFile::new(dir.path(), 2, rank).write(&position).unwrap();
            Stall::of(dir.path(), 2, 7, 4)
        };
        write(0, at(Phase::CommExposed, 3));
        assert_eq!(
            write(1, Position { step: 6, ..at(Phase::Data, 0) }).cause(0, &[]),
            Some((1, None))
        );
        write(3, at(Phase::CommExposed, 3));
        let stall = write(2, at(Phase::Forward, 0));
        let text = stall.text(&hosts);
        assert!(text.contains("rank 2 (node-2): not arrived, in forward; "), "{text}");
        assert!(text.contains("rank 1 (node-1): silent"), "{text}");
        let arrived = "; ranks 0 (node-0), 3 (node-3): arrived, waits for bucket 3 of 4";
        assert!(text.ends_with(arrived), "{text}");
        let stall = write(1, at(Phase::CommExposed, 3));
        assert_eq!(stall.cause(0, &[]), Some((2, Some(at(Phase::Forward, 0)))));
        assert_eq!(write(2, at(Phase::CommExposed, 3)).cause(0, &[]), None, "all wait");
    }

    #[test]
    fn of_several_ranks_one_that_an_operation_lacked_is_the_cause() {
        let [arrived, late] = [at(Phase::CommExposed, 0), at(Phase::Backward, 0)].map(Some);
        let stall = Stall { step: 7, positions: vec![late, late, arrived, None] };
        assert_eq!(stall.cause(2, &[]), Some((0, late)));
        assert_eq!(stall.cause(2, &[2, 3]), Some((3, None)));
        assert_eq!(stall.cause(0, &[]), Some((1, late)), "the rank that asks waits itself");
        let stall = Stall { step: 7, positions: vec![late, arrived, arrived, arrived] };
        assert_eq!(stall.cause(0, &[]), Some((0, late)), "the others waited for it");
    }

    /// Rank 5 of two shard groups of four hangs in forward. The others of its group wait for its
    /// weights; the other group computes for some time, and waits for its sums.
    #[test]
    fn a_rank_that_arrives_late_is_not_the_cause() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir(dir.path().join("attempts")).unwrap();
        let telemetry = silent_telemetry(dir.path(), 8);
        let rank = |rank| Watched {
            dir: dir.path().to_owned(),
            attempt: 2,
            rank,
            places: vec![String::new(); 8],
            progress: Arc::default(),
            timeout: Duration::ZERO,
            events: telemetry.events().clone(),
        };
        let ranks: Vec<Watched> = (0..8).map(rank).collect();
        let mut checks: Vec<LastCheck> = (0..8).map(|_| LastCheck::now(7)).collect();
        let mut cause = |phase_of: &dyn Fn(usize) -> Phase| {
            for (rank, last) in ranks.iter().zip(&mut checks) {
                rank.progress.begin(7);
                rank.progress.enter(phase_of(rank.rank));
                rank.check(last);
            }
            Stall::of(dir.path(), 2, 7, 8).cause(4, &[])
        };
        let of_frozen = |rank| if rank == 5 { Phase::Forward } else { Phase::CommExposed };
        let early = |rank| if rank < 4 { Phase::Backward } else { of_frozen(rank) };
        assert_eq!(cause(&early).map(|cause| cause.0), Some(0), "it still computes");
        let position = Position { bucket: 0, buckets: 0, ..at(Phase::Forward, 0) };
        assert_eq!(cause(&of_frozen), Some((5, Some(position))));
    }
}
