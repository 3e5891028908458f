//! Own time of a rank in a step.

use crate::Kind;
use crate::phase::PhaseTimes;

/// Seconds of a step in which a rank did not wait for other ranks, by kind.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct OwnTime([f64; Kind::ALL.len()]);

impl OwnTime {
    /// Number of the kinds of time that ranks exchange.
    pub const FIELDS: usize = Kind::ALL.len();

    /// No time.
    pub const ZERO: Self = Self([0.0; Self::FIELDS]);

    /// Returns the own time of a step with these phases, in which the host spent some time on
    /// starting communication: that happens while it computes.
    pub fn of_step(phases: &PhaseTimes, starting_ns: u64) -> Self {
        let spent = |kind: Kind| -> u64 { kind.phases().iter().map(|it| phases.get(*it)).sum() };
        let mut time = Self::ZERO;
        for kind in Kind::ALL {
            time.set(kind, spent(kind));
        }
        time.set(Kind::Compute, spent(Kind::Compute).saturating_sub(starting_ns));
        time.set(Kind::Communication, starting_ns);
        time
    }

    /// Returns the own time of a save whose files took a rank so long to write.
    pub fn of_save(write_ns: u64) -> Self {
        let mut time = Self::ZERO;
        time.set(Kind::Checkpoint, write_ns);
        time
    }

    fn set(&mut self, kind: Kind, ns: u64) {
        self.0[kind as usize] = ns as f64 / 1e9;
    }

    /// Returns the seconds of all kinds.
    pub fn total(&self) -> f64 {
        self.0.iter().sum()
    }

    /// Returns the seconds of each kind, in the order of [`Kind::ALL`].
    pub(super) fn by_kind(&self) -> [f64; Self::FIELDS] {
        self.0
    }
}

/// Times of a rank in a step.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct StepTimes {
    /// Time without waiting for other ranks.
    pub own: OwnTime,
    /// Seconds of waiting for communication.
    pub exposed_seconds: f64,
}

impl StepTimes {
    /// Number of fields that ranks exchange.
    pub const FIELDS: usize = OwnTime::FIELDS + 1;

    /// Times that are not known yet.
    pub const ZERO: Self = Self { own: OwnTime::ZERO, exposed_seconds: 0.0 };

    /// Encodes the times as numbers, for other ranks.
    pub fn encode(&self) -> [f64; Self::FIELDS] {
        let mut fields = [self.exposed_seconds; Self::FIELDS];
        fields[..OwnTime::FIELDS].copy_from_slice(&self.own.0);
        fields
    }

    /// Decodes the numbers of another rank.
    ///
    /// # Panics
    /// Unless there are [`Self::FIELDS`].
    pub fn decode(fields: &[f64]) -> Self {
        let (own, exposed) = fields.split_at(OwnTime::FIELDS);
        let own = OwnTime(own.try_into().expect("as many fields as kinds"));
        Self { own, exposed_seconds: exposed[0] }
    }
}

impl From<OwnTime> for StepTimes {
    fn from(own: OwnTime) -> Self {
        Self { own, ..Self::ZERO }
    }
}
