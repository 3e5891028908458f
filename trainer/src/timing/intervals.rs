//! Sets of instants, from which times that overlap are counted once.

use std::time::Instant;

use collectives::Interval;

/// Set of instants. Keeps its memory when it is cleared.
#[derive(Debug, Default)]
pub(crate) struct Intervals {
    /// Once united, in order and without overlap.
    intervals: Vec<Interval>,
}

impl Intervals {
    /// Adds an interval. [`unite`](Self::unite) has to follow before times are read.
    pub(crate) fn add(&mut self, interval: Interval) {
        if interval.started < interval.ended {
            self.intervals.push(interval);
        }
    }

    /// Joins intervals that overlap.
    pub(crate) fn unite(&mut self) {
        self.intervals.sort_unstable_by_key(|interval| interval.started);
        self.intervals.dedup_by(|next, last| {
            let overlaps = next.started <= last.ended;
            if overlaps {
                last.ended = last.ended.max(next.ended);
            }
            overlaps
        });
    }

    /// Removes everything.
    pub(crate) fn clear(&mut self) {
        self.intervals.clear();
    }

    /// Returns the time in the set.
    pub(crate) fn total_ns(&self) -> u64 {
        self.intervals.iter().map(|interval| between_ns(interval.started, interval.ended)).sum()
    }

    /// Returns the part of an interval that is not in the set.
    pub(crate) fn outside_ns(&self, interval: Interval) -> u64 {
        let Interval { started, ended } = interval;
        let first = self.intervals.partition_point(|own| own.ended <= started);
        let within = self.intervals[first..].iter().take_while(|own| own.started < ended);
        let common = |own: &Interval| between_ns(own.started.max(started), own.ended.min(ended));
        between_ns(started, ended) - within.map(common).sum::<u64>()
    }

    /// Returns the time in this set that is not in another one.
    pub(crate) fn without_ns(&self, other: &Self) -> u64 {
        self.intervals.iter().map(|&interval| other.outside_ns(interval)).sum()
    }
}

/// Returns the time from one instant to another; 0 if that is earlier.
pub(crate) fn between_ns(from: Instant, to: Instant) -> u64 {
    to.saturating_duration_since(from).as_nanos() as u64
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn times_that_overlap_count_once() {
        let zero = Instant::now();
        let interval = |[from, to]: [u64; 2]| {
            let at = |ns| zero + Duration::from_nanos(ns);
            Interval { started: at(from), ended: at(to) }
        };
        let set = |intervals: &[[u64; 2]]| {
            let mut set = Intervals::default();
            intervals.iter().copied().map(interval).for_each(|interval| set.add(interval));
            set.unite();
            set
        };
        let some = set(&[[30, 40], [0, 10], [12, 12], [5, 7], [8, 15], [15, 16]]);
        assert_eq!(some.total_ns(), 26);
        assert_eq!(some.outside_ns(interval([5, 35])), 14);
        assert_eq!(some.outside_ns(interval([50, 60])), 10);
        let other = set(&[[2, 4], [14, 31], [39, 60]]);
        assert_eq!(some.without_ns(&other), 26 - 2 - 2 - 1 - 1);
        assert_eq!(other.without_ns(&some), 2 + 17 + 21 - 6);
        assert_eq!(some.without_ns(&set(&[])), 26);
    }
}
