//! The sink that keeps what the hardware did for the record.

use super::event::Event;
use super::sink::Sink;
use crate::hardware::Summaries;
use record::hardware::RankHardware;

/// Sums up the readings of one attempt.
#[derive(Debug, Default)]
pub(super) struct Hardware(Summaries);

impl Hardware {
    /// What is known so far; with its course over time or without.
    pub(super) fn summarize(&self, with_series: bool) -> RankHardware {
        self.0.summarize(with_series)
    }
}

impl Sink for Hardware {
    fn take(&mut self, event: &Event) {
        match event {
            Event::Hardware(readings) => self.0.take(readings),
            Event::HardwareMissing(missing) => self.0.is_missing(missing),
            _ => {}
        }
    }
}
