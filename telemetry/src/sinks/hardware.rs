//! The sink that keeps the readings of the hardware for the record.

use crate::event::Event;
use crate::hardware::Summaries;
use crate::sink::Sink;
use record::hardware::RankHardware;

/// Sums up the readings of one attempt.
#[derive(Debug, Default)]
pub(crate) struct Hardware(Summaries);

impl Hardware {
    /// Summarizes the readings so far, with or without their values over time.
    pub(crate) fn summarize(&self, with_series: bool) -> RankHardware {
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
