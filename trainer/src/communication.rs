//! What the network did during one step, and how much of it computing covered.

use std::time::Instant;

use collectives::Timing;

/// What the network did during one step. What is started in one step and waited for in the next
/// counts there.
#[derive(Debug, Clone, Copy, Default)]
pub struct Communication {
    /// Time in which at least one bucket was under way.
    pub total_ns: u64,
    /// The part of it that computing covered: backward, the update of other buckets, forward.
    pub hidden_ns: u64,
    /// How long before the end of backward the first bucket was started (0 if after).
    pub first_bucket_lead_ns: u64,
    /// Bytes of the buckets reduced and gathered.
    pub bytes: u64,
}

impl Communication {
    /// These gradients and those weights.
    pub(crate) fn and(self, weights: Self) -> Self {
        Self {
            total_ns: self.total_ns + weights.total_ns,
            hidden_ns: self.hidden_ns + weights.hidden_ns,
            bytes: self.bytes + weights.bytes,
            ..self
        }
    }
}

/// Adds up buckets as they are waited for.
#[derive(Debug, Default)]
pub(crate) struct Tally {
    sum: Communication,
    /// The end of those so far.
    covered: Option<Instant>,
}

impl Tally {
    /// Adds one bucket, in the order of their starts; what came before `computed`, when waiting for
    /// it began, was hidden. Several may be under way at once: time up to the end of an earlier one
    /// was counted with that.
    pub(crate) fn add(&mut self, timing: Timing, computed: Instant) {
        if self.covered.is_none() {
            let lead = computed.saturating_duration_since(timing.started);
            self.sum.first_bucket_lead_ns = lead.as_nanos() as u64;
        }
        let from = self.covered.map_or(timing.started, |covered| covered.max(timing.started));
        let until = |end: Instant| end.saturating_duration_since(from).as_nanos() as u64;
        self.sum.total_ns += until(timing.ended);
        self.sum.hidden_ns += until(timing.ended.min(computed));
        self.sum.bytes += timing.bytes as u64;
        self.covered = Some(self.covered.map_or(timing.ended, |end| end.max(timing.ended)));
    }

    /// The sum, and begins again.
    pub(crate) fn take(&mut self) -> Communication {
        std::mem::take(self).sum
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn time_with_several_buckets_under_way_counts_once() {
        let zero = Instant::now();
        let at = |ms| zero + Duration::from_millis(ms);
        let timing = |from, to| Timing { started: at(from), ended: at(to), bytes: 8 };
        let mut tally = Tally::default();
        // Backward ends at 30. The second lies inside the first; the third overlaps; a gap; then
        // one that nothing hides.
        for bucket in [timing(10, 20), timing(12, 18), timing(15, 35), timing(40, 45)] {
            tally.add(bucket, at(30));
        }
        let found = tally.take();
        assert_eq!(found.total_ns, 30_000_000);
        assert_eq!(found.hidden_ns, 20_000_000);
        assert_eq!(found.first_bucket_lead_ns, 20_000_000);
        assert_eq!(found.bytes, 32);
        assert_eq!(tally.take().total_ns, 0, "it begins again");
    }

    #[test]
    fn what_is_waited_for_in_turn_is_hidden_up_to_each_wait() {
        let zero = Instant::now();
        let at = |ms| zero + Duration::from_millis(ms);
        let timing = |from, to| Timing { started: at(from), ended: at(to), bytes: 8 };
        let mut tally = Tally::default();
        tally.add(timing(0, 10), at(4)); // forward waits 6
        tally.add(timing(2, 20), at(15)); // it computes from 10 to 15, and waits 5
        tally.add(timing(20, 30), at(40)); // the last was there before it was needed
        let found = tally.take();
        assert_eq!((found.total_ns, found.hidden_ns), (30_000_000, 19_000_000));
    }
}
