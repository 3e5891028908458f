//! Where the time of a step goes: every instant belongs to exactly one phase.

use std::cell::Cell;
use std::time::Instant;

use serde::{Deserialize, Serialize};

/// What a rank is doing. The same names stand in the record, in metrics and in traces.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Phase {
    /// Waiting for the next micro-batch.
    Data,
    /// Activations and loss.
    Forward,
    /// Gradients.
    Backward,
    /// Waiting for the network: what computing could not hide.
    CommExposed,
    /// Norm, clip and update.
    Optimizer,
    /// Training stands still for a checkpoint.
    Checkpoint,
    /// Held-out loss.
    Eval,
    /// What no other phase claims.
    Other,
}

impl Phase {
    /// Every phase, in the order of a step.
    pub const ALL: [Self; 8] = [
        Self::Data,
        Self::Forward,
        Self::Backward,
        Self::CommExposed,
        Self::Optimizer,
        Self::Checkpoint,
        Self::Eval,
        Self::Other,
    ];

    /// The name in files.
    pub fn name(self) -> &'static str {
        match self {
            Self::Data => "data",
            Self::Forward => "forward",
            Self::Backward => "backward",
            Self::CommExposed => "comm_exposed",
            Self::Optimizer => "optimizer",
            Self::Checkpoint => "checkpoint",
            Self::Eval => "eval",
            Self::Other => "other",
        }
    }
}

/// One value for each phase.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[allow(missing_docs, reason = "the fields are the phases, documented there")]
pub struct ByPhase<T> {
    pub data: T,
    pub forward: T,
    pub backward: T,
    pub comm_exposed: T,
    pub optimizer: T,
    pub checkpoint: T,
    pub eval: T,
    pub other: T,
}

impl<T: Copy> ByPhase<T> {
    /// One value for each phase, made in the order of [`Phase::ALL`].
    pub fn from_fn(mut value: impl FnMut(Phase) -> T) -> Self {
        Self {
            data: value(Phase::Data),
            forward: value(Phase::Forward),
            backward: value(Phase::Backward),
            comm_exposed: value(Phase::CommExposed),
            optimizer: value(Phase::Optimizer),
            checkpoint: value(Phase::Checkpoint),
            eval: value(Phase::Eval),
            other: value(Phase::Other),
        }
    }

    /// The value of a phase.
    pub fn get(&self, phase: Phase) -> T {
        match phase {
            Phase::Data => self.data,
            Phase::Forward => self.forward,
            Phase::Backward => self.backward,
            Phase::CommExposed => self.comm_exposed,
            Phase::Optimizer => self.optimizer,
            Phase::Checkpoint => self.checkpoint,
            Phase::Eval => self.eval,
            Phase::Other => self.other,
        }
    }
}

/// Nanoseconds in each phase of one step; they add up to the wall time of the step exactly.
pub type PhaseTimes = ByPhase<u64>;

impl PhaseTimes {
    /// Wall time in nanoseconds: the sum over all phases.
    pub fn wall_ns(&self) -> u64 {
        Phase::ALL.iter().map(|&phase| self.get(phase)).sum()
    }

    /// Nanoseconds of training itself: the wall time without checkpoints and evaluation.
    ///
    /// `other` is in it, so that time which no phase explains never makes a rate look better.
    pub fn step_ns(&self) -> u64 {
        self.wall_ns() - self.checkpoint - self.eval
    }
}

/// A stopwatch that is always in exactly one phase, so that phases add up to wall time.
///
/// Steps tile the time line: what passes between [`finish_step`](Self::finish_step) and the next
/// [`start_step`](Self::start_step) is `other` of the next step, but for [`pause`](Self::pause). It
/// never allocates. Phases are entered through shared references: who takes gradients and who gives
/// weights both do.
#[derive(Debug)]
pub struct PhaseClock {
    phase: Cell<Phase>,
    /// Start of the phase that runs.
    since: Cell<Instant>,
    /// End of the step before, by which phases are held against wall time.
    step_since: Instant,
    /// Nanoseconds in each phase since the last step was finished, by the order of [`Phase::ALL`].
    spent_ns: Cell<[u64; Phase::ALL.len()]>,
    /// Whether time counts: not before the first step, nor in a pause.
    running: bool,
}

impl Default for PhaseClock {
    fn default() -> Self {
        Self::new()
    }
}

impl PhaseClock {
    /// A clock that stands until the first step is started.
    pub fn new() -> Self {
        let now = Instant::now();
        Self {
            phase: Cell::new(Phase::Other),
            since: Cell::new(now),
            step_since: now,
            spent_ns: Cell::new([0; Phase::ALL.len()]),
            running: false,
        }
    }

    /// Starts a step, in the phase `other`.
    pub fn start_step(&mut self) {
        self.start_at(Instant::now());
    }

    fn start_at(&mut self, now: Instant) {
        if !self.running {
            self.running = true;
            let since = self.since.get();
            self.step_since += now.saturating_duration_since(since);
            self.since.set(since.max(now));
        }
        self.enter_at(Phase::Other, now);
    }

    /// Stands until the next step is started: what passes until then is no step's.
    pub fn pause(&mut self) {
        self.pause_at(Instant::now());
    }

    fn pause_at(&mut self, now: Instant) {
        self.enter_at(Phase::Other, now);
        self.running = false;
    }

    /// Goes over to a phase; entering the phase that already runs changes nothing.
    pub fn enter(&self, phase: Phase) {
        self.enter_at(phase, Instant::now());
    }

    /// The phase that runs.
    pub fn phase(&self) -> Phase {
        self.phase.get()
    }

    /// Ends the step and returns where its time went, and how much of it there was in nanoseconds:
    /// the same number by another way.
    pub fn finish_step(&mut self) -> (PhaseTimes, u64) {
        self.finish_at(Instant::now())
    }

    fn enter_at(&self, phase: Phase, now: Instant) {
        let since = self.since.get();
        if self.running {
            let mut spent_ns = self.spent_ns.get();
            let passed = now.saturating_duration_since(since);
            spent_ns[self.phase.get() as usize] += passed.as_nanos() as u64;
            self.spent_ns.set(spent_ns);
            // Never backwards: each nanosecond is counted once.
            self.since.set(since.max(now));
        }
        self.phase.set(phase);
    }

    fn finish_at(&mut self, now: Instant) -> (PhaseTimes, u64) {
        self.enter_at(Phase::Other, now);
        let (spent_ns, since) = (self.spent_ns.take(), self.since.get());
        let wall = since.saturating_duration_since(self.step_since);
        self.step_since = since;
        (PhaseTimes::from_fn(|phase| spent_ns[phase as usize]), wall.as_nanos() as u64)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn time_between_two_entries_belongs_to_the_first() {
        let mut clock = PhaseClock::new();
        clock.start_step();
        let start = clock.since.get();
        let at = |ms| start + Duration::from_millis(ms);
        clock.enter_at(Phase::Data, at(1));
        clock.enter_at(Phase::Forward, at(3));
        clock.enter_at(Phase::Backward, at(7));
        clock.enter_at(Phase::Data, at(15)); // the next micro-batch
        clock.enter_at(Phase::Forward, at(16));
        clock.enter_at(Phase::CommExposed, at(32));
        let (times, wall_ns) = clock.finish_at(at(64));
        let ms = ByPhase::from_fn(|phase| times.get(phase) / 1_000_000);
        let expected = ByPhase {
            other: 1,
            data: 3,
            forward: 20,
            backward: 8,
            comm_exposed: 32,
            ..ByPhase::default()
        };
        assert_eq!(ms, expected);
        assert_eq!((times.wall_ns(), wall_ns), (64_000_000, 64_000_000));
    }

    #[test]
    fn steps_tile_the_time_line_without_a_gap() {
        let mut clock = PhaseClock::new();
        std::thread::sleep(Duration::from_millis(20)); // before the first step: not counted
        clock.start_step();
        let started = clock.since.get();
        let mut total_ns = 0;
        for step in 0..50_usize {
            clock.start_step();
            for phase in Phase::ALL {
                clock.enter(phase);
                std::hint::black_box((0..step * 10).sum::<usize>());
            }
            let (times, wall_ns) = clock.finish_step();
            assert_eq!(times.wall_ns(), wall_ns);
            total_ns += wall_ns;
            std::hint::black_box((0..1000_usize).sum::<usize>()); // between steps: counted
        }
        let elapsed_ns = clock.since.get().duration_since(started).as_nanos() as u64;
        assert_eq!(total_ns, elapsed_ns);
    }

    #[test]
    fn a_pause_is_no_step_s_and_what_came_before_it_is_the_next_one_s() {
        let mut clock = PhaseClock::new();
        let start = clock.since.get();
        let at = |ms| start + Duration::from_millis(ms);
        clock.enter_at(Phase::Data, at(2)); // while a checkpoint is read
        clock.start_at(at(5));
        clock.enter_at(Phase::Forward, at(6));
        let (times, wall_ns) = clock.finish_at(at(16));
        assert_eq!((times.wall_ns(), wall_ns), (11_000_000, 11_000_000));
        clock.enter_at(Phase::Checkpoint, at(17));
        clock.pause_at(at(20));
        clock.enter_at(Phase::CommExposed, at(500)); // of nobody's step
        clock.start_at(at(1000));
        let (times, wall_ns) = clock.finish_at(at(1007));
        assert_eq!((times.wall_ns(), wall_ns), (11_000_000, 11_000_000));
        assert_eq!((times.other, times.checkpoint), (8_000_000, 3_000_000));
    }

    #[test]
    fn a_clock_that_seems_to_go_back_counts_nothing_twice() {
        let mut clock = PhaseClock::new();
        clock.start_step();
        let start = clock.since.get();
        clock.enter_at(Phase::Data, start + Duration::from_millis(10));
        clock.enter_at(Phase::Forward, start + Duration::from_millis(5));
        let (times, wall_ns) = clock.finish_at(start + Duration::from_millis(20));
        assert_eq!((times.wall_ns(), wall_ns), (20_000_000, 20_000_000));
        assert_eq!(times.forward, 10_000_000);
    }

    #[test]
    fn training_time_leaves_out_checkpoint_and_evaluation_only() {
        let times = ByPhase {
            data: 1,
            optimizer: 2,
            checkpoint: 4,
            eval: 8,
            other: 16,
            ..ByPhase::default()
        };
        assert_eq!(times.wall_ns(), 31);
        assert_eq!(times.step_ns(), 19);
    }

    #[test]
    fn names_are_those_of_the_files() {
        for phase in Phase::ALL {
            let name = serde_json::to_value(phase).unwrap();
            assert_eq!(name, phase.name());
            let times = ByPhase::from_fn(|other| u64::from(other == phase));
            assert_eq!(serde_json::to_value(times).unwrap()[phase.name()], 1);
            assert_eq!(times.get(phase), 1);
        }
    }
}
