//! Virtual time: a seeded series in place of measured step and write times, so that everything that
//! judges times is exact on any machine, however busy. `--inject clock@rank=1,percent=10,seed=1`.
//!
//! Every rank computes the series of all ranks: in a step all wait for the slowest one.

use std::str::FromStr;
use std::time::Duration;

use checkpoint::SaveReport;
use models::rng::Stream;
use record::phase::PhaseTimes;

use super::communication::Communication;
use super::phase::StepTime;

/// Mean own time of a rank in a step, of which each phase has a share; the rest is backward.
const STEP_NS: f64 = 100e6;
const DATA_SHARE: f64 = 0.01;
const FORWARD_SHARE: f64 = 0.3;
const OPTIMIZER_SHARE: f64 = 0.08;
const OTHER_SHARE: f64 = 0.01;

/// Share in which the host starts reductions, during backward.
const STARTING_SHARE: f64 = 0.01;

/// Wait for other ranks even of the slowest one, and communication that is hidden behind backward.
const NETWORK_NS: u64 = 5_000_000;
const HIDDEN_NS: u64 = 20_000_000;

/// Mean time in which a rank writes its files of a save.
const WRITE_NS: f64 = 200e6;

/// Standard deviation of own and write times, as a share.
const DEVIATION: f64 = 0.01;

/// Activity of a rank that can be slowed down.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Part {
    Compute,
    Data,
    Communication,
    Checkpoint,
}

impl FromStr for Part {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        Ok(match text {
            "compute" => Self::Compute,
            "data" => Self::Data,
            "communication" => Self::Communication,
            "checkpoint" => Self::Checkpoint,
            _ => return Err(()),
        })
    }
}

/// Part of a rank's work that is slow from a step on.
#[derive(Debug, Clone, Copy)]
pub(crate) struct SlowPart {
    pub(crate) rank: usize,
    pub(crate) part: Part,
    /// Added time, as a share of the rank's own time in a step, or of that of writing.
    pub(crate) share: f64,
    pub(crate) from_step: u64,
}

/// Virtual times of one rank.
#[derive(Debug)]
pub(crate) struct VirtualClock {
    pub(crate) stream: Stream,
    pub(crate) rank: usize,
    pub(crate) world: usize,
    pub(crate) slow: Vec<SlowPart>,
}

impl VirtualClock {
    /// Returns the time of a step. Saves and evaluations keep their measured times.
    pub(super) fn step_time(&self, step: u64, measured: &PhaseTimes) -> StepTime {
        let own = self.own(self.rank, step);
        let slowest = (0..self.world).map(|rank| self.own(rank, step).wall_ns()).max();
        let wait = slowest.map_or(0, |slowest| slowest - own.wall_ns());
        let network = if self.world > 1 { NETWORK_NS } else { 0 };
        let PhaseTimes { checkpoint, eval, .. } = *measured;
        let phases = PhaseTimes { comm_exposed: wait + network, checkpoint, eval, ..own };
        StepTime { phases, wall_ns: phases.wall_ns() }
    }

    /// Returns the phases of a rank in a step, without waiting for other ranks.
    fn own(&self, rank: usize, step: u64) -> PhaseTimes {
        let total = STEP_NS * self.noise("step", rank, step);
        let ns = |share: f64| (share * total) as u64;
        let slower = |part| ns(self.slower(part, rank, step));
        let backward = 1.0 - DATA_SHARE - FORWARD_SHARE - OPTIMIZER_SHARE - OTHER_SHARE;
        PhaseTimes {
            data: ns(DATA_SHARE) + slower(Part::Data),
            forward: ns(FORWARD_SHARE) + slower(Part::Compute),
            backward: ns(backward) + slower(Part::Communication),
            optimizer: ns(OPTIMIZER_SHARE),
            other: ns(OTHER_SHARE),
            ..PhaseTimes::default()
        }
    }

    /// Returns the part of a step's backward in which the host starts reductions.
    pub(crate) fn starting_ns(&self, step: u64) -> u64 {
        let total = STEP_NS * self.noise("step", self.rank, step);
        let slower = self.slower(Part::Communication, self.rank, step);
        ((STARTING_SHARE + slower) * total) as u64
    }

    /// Returns a step's communication with virtual times.
    pub(crate) fn communication(&self, measured: Communication, exposed_ns: u64) -> Communication {
        if self.world == 1 {
            return measured;
        }
        Communication {
            total_ns: HIDDEN_NS + exposed_ns,
            hidden_ns: HIDDEN_NS,
            first_bucket_lead_ns: HIDDEN_NS,
            bytes: measured.bytes,
        }
    }

    /// Returns the report of a save with virtual write times; its other parts keep their time.
    pub(crate) fn saved(&self, measured: SaveReport) -> SaveReport {
        let write = |rank| {
            let slower = 1.0 + self.slower(Part::Checkpoint, rank, measured.step);
            let ns = WRITE_NS * self.noise("write", rank, measured.step) * slower;
            Duration::from_nanos(ns as u64)
        };
        let writes: Vec<_> = (0..measured.writes.len()).map(write).collect();
        let longest = |writes: &[Duration]| writes.iter().copied().max().unwrap_or_default();
        let rest = measured.commit.saturating_sub(longest(&measured.writes));
        SaveReport { commit: longest(&writes) + rest, writes, ..measured }
    }

    /// Returns the share by which a part of a rank is slower in a step.
    fn slower(&self, part: Part, rank: usize, step: u64) -> f64 {
        let is_it = |it: &&SlowPart| it.part == part && it.rank == rank && it.from_step <= step;
        self.slow.iter().filter(is_it).map(|it| it.share).sum()
    }

    fn noise(&self, what: &str, rank: usize, step: u64) -> f64 {
        1.0 + DEVIATION * self.stream.named(what).child(rank as u64).normal(step)
    }
}

#[cfg(test)]
mod tests {
    use models::rng::Purpose;
    use record::phase::Phase;

    use super::*;

    fn clock(rank: usize, part: Part) -> VirtualClock {
        let slow = vec![SlowPart { rank: 1, part, share: 0.25, from_step: 11 }];
        VirtualClock { stream: Stream::new(1, Purpose::Test), rank, world: 2, slow }
    }

    #[test]
    fn phases_add_up_and_all_ranks_take_the_same_time() {
        let measured = PhaseTimes { checkpoint: 3, eval: 4, ..PhaseTimes::default() };
        for step in 1..=20 {
            let times = [0, 1].map(|rank| clock(rank, Part::Data).step_time(step, &measured));
            assert_eq!(times[0].wall_ns, times[1].wall_ns);
            assert_eq!(times.map(|it| it.phases.wall_ns()), times.map(|it| it.wall_ns));
            assert_eq!((times[0].phases.checkpoint, times[0].phases.eval), (3, 4));
            let waits = times.map(|it| it.phases.comm_exposed);
            assert_eq!(waits.into_iter().min(), Some(NETWORK_NS));
        }
    }

    #[test]
    fn a_slow_part_is_that_of_its_rank_from_its_step_on() {
        let parts = [
            (Part::Compute, Phase::Forward),
            (Part::Data, Phase::Data),
            (Part::Communication, Phase::Backward),
        ];
        for (part, phase) in parts {
            for (rank, step) in [(0, 10), (0, 11), (1, 10), (1, 11)] {
                let of = |part| clock(rank, part).own(rank, step);
                let usual = of(Part::Checkpoint);
                let added = usual.wall_ns() / 4 * u64::from((rank, step) == (1, 11));
                let found = of(part).get(phase) - usual.get(phase);
                assert!(found.abs_diff(added) < 10, "{part:?}: {found}, {added}");
                assert_eq!(of(part).wall_ns() - usual.wall_ns(), found);
            }
        }
        let starting = |part| clock(1, part).starting_ns(11);
        assert!(starting(Part::Communication) > 20 * starting(Part::Compute));
    }
}
