//! The sink that keeps warnings for the record.

use crate::event::Event;
use crate::sink::Sink;
use record::Anomaly;

/// Maximum number of anomalies that are kept; beyond it, only their number.
const KEPT_MAX: usize = 1000;

/// Keeps the warnings of one attempt.
#[derive(Debug, Default)]
pub(crate) struct Anomalies {
    kept: Vec<Anomaly>,
    dropped: usize,
}

impl Anomalies {
    /// Returns all warnings so far.
    pub(crate) fn all(&self) -> Vec<Anomaly> {
        let more = (self.dropped > 0).then(|| {
            let text = format!("{} more warnings, which are only in the log", self.dropped);
            Anomaly { step: None, rank: None, text }
        });
        self.kept.iter().cloned().chain(more).collect()
    }
}

impl Sink for Anomalies {
    fn take(&mut self, event: &Event) {
        let anomaly = match event {
            Event::Warning(anomaly) => anomaly,
            Event::Verdict(verdict) => &verdict.anomaly,
            Event::Corruption(found) => &found.anomaly,
            _ => return,
        };
        if self.kept.len() < KEPT_MAX {
            self.kept.push(anomaly.clone());
        } else {
            self.dropped += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn warnings_are_kept_in_bounded_memory() {
        let mut anomalies = Anomalies::default();
        let warning = |number: usize| Anomaly { step: None, rank: None, text: number.to_string() };
        (0..KEPT_MAX + 5).for_each(|number| anomalies.take(&Event::Warning(warning(number))));
        let all = anomalies.all();
        assert_eq!(all.len(), KEPT_MAX + 1);
        assert_eq!(all[KEPT_MAX - 1].text, "999");
        assert_eq!(all[KEPT_MAX].text, "5 more warnings, which are only in the log");
    }
}
