//! Alerts about the GPU of a rank, which the other ranks receive with the rank's vote.

use std::sync::Arc;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicU32, AtomicU64};

use super::{gpu, xid};
use record::RankRecord;

/// Number of fields of an alert in a vote.
pub const ALERT_FIELDS: usize = 4;

/// Alert of a rank about its GPU; all zero if nothing is alarming or known.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Alert {
    /// NVML bits of the throttle reasons that should not occur.
    pub throttled: u64,
    /// Number of XID errors since the attempt started.
    pub xid_errors: u32,
    /// Newest XID error.
    pub last_xid: u32,
    /// Number of uncorrected ECC errors since the attempt started.
    pub uncorrected_errors: u64,
}

impl Alert {
    /// Alert with nothing alarming.
    pub const NONE: Self = Self { throttled: 0, xid_errors: 0, last_xid: 0, uncorrected_errors: 0 };

    /// Encodes the alert as numbers, for other ranks: all are far below 2^53.
    pub fn encode(&self) -> [f64; ALERT_FIELDS] {
        let Self { throttled, xid_errors, last_xid, uncorrected_errors } = *self;
        [throttled as f64, f64::from(xid_errors), f64::from(last_xid), uncorrected_errors as f64]
    }

    /// Decodes the numbers of another rank.
    pub fn decode(fields: &[f64]) -> Self {
        Self {
            throttled: fields[0] as u64,
            xid_errors: fields[1] as u32,
            last_xid: fields[2] as u32,
            uncorrected_errors: fields[3] as u64,
        }
    }

    /// Describes the last XID error of this rank's GPU, to explain a failure of the device itself.
    pub fn explanation(&self) -> Option<String> {
        (self.xid_errors > 0).then(|| format!("the GPU reports {}", xid::name(self.last_xid)))
    }

    /// Names of the alarming throttle reasons.
    fn reasons(&self) -> String {
        gpu::alarming_reasons(self.throttled).join(", ")
    }
}

/// Newest alert of this rank: the sampler writes it, training reads it.
#[derive(Debug, Default)]
pub struct SharedAlert {
    throttled: AtomicU64,
    xid_errors: AtomicU32,
    last_xid: AtomicU32,
    uncorrected_errors: AtomicU64,
}

impl SharedAlert {
    /// Creates a shared alert with nothing alarming.
    pub fn new() -> Arc<Self> {
        Arc::default()
    }

    /// Sets the newest alert. The number of errors is written last and read first: a reader that
    /// sees one more error also sees which.
    pub(crate) fn set(&self, alert: Alert) {
        self.throttled.store(alert.throttled, Relaxed);
        self.last_xid.store(alert.last_xid, Relaxed);
        self.uncorrected_errors.store(alert.uncorrected_errors, Relaxed);
        self.xid_errors.store(alert.xid_errors, Release);
    }

    /// Returns the newest alert.
    pub fn get(&self) -> Alert {
        let xid_errors = self.xid_errors.load(Acquire);
        Alert {
            throttled: self.throttled.load(Relaxed),
            xid_errors,
            last_xid: self.last_xid.load(Relaxed),
            uncorrected_errors: self.uncorrected_errors.load(Relaxed),
        }
    }
}

/// A new finding about a rank's GPU.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    /// Rank of the GPU.
    pub rank: usize,
    /// Finding in words, without the rank.
    pub text: String,
}

/// Detects new alarms in the alerts of all ranks. All ranks find the same.
#[derive(Debug)]
pub struct AlertWatch {
    ranks: Vec<Known>,
}

/// Known state of a rank's GPU.
#[derive(Debug, Clone)]
struct Known {
    last: Alert,
    /// Throttle reasons that have been reported.
    throttled: u64,
    /// XID errors that have been reported: each once, as a bad GPU may repeat the same error all
    /// the time.
    xids: Vec<u32>,
    /// Number of uncorrected errors at which they are reported again.
    next_errors: u64,
}

/// Factor by which uncorrected errors grow until they are reported again.
const REALERT_FACTOR: u64 = 10;

impl AlertWatch {
    /// Creates a watch of `world` ranks.
    pub fn new(world: usize) -> Self {
        let known = Known { last: Alert::NONE, throttled: 0, xids: Vec::new(), next_errors: 1 };
        Self { ranks: vec![known; world] }
    }

    /// Returns the new alarms in these alerts, one of each rank. Allocates only if there are any.
    pub fn take(&mut self, alerts: impl Iterator<Item = Alert>) -> Vec<Finding> {
        let mut findings = Vec::new();
        for (rank, (known, alert)) in self.ranks.iter_mut().zip(alerts).enumerate() {
            if alert != known.last {
                let found = known.take(alert).into_iter().flatten();
                findings.extend(found.map(|text| Finding { rank, text }));
            }
        }
        findings
    }

    /// Returns the reasons for which a rank's GPU is throttled; `None` if it is not.
    pub fn throttled(&self, rank: usize) -> Option<String> {
        let last = self.ranks.get(rank)?.last;
        (last.throttled != 0).then(|| last.reasons())
    }
}

impl Known {
    fn take(&mut self, alert: Alert) -> [Option<String>; 3] {
        let before = std::mem::replace(&mut self.last, alert);
        let throttled = Alert { throttled: alert.throttled & !self.throttled, ..alert };
        self.throttled |= alert.throttled;
        let is_new_xid =
            alert.xid_errors > before.xid_errors && !self.xids.contains(&alert.last_xid);
        if is_new_xid {
            self.xids.push(alert.last_xid);
        }
        let errors = alert.uncorrected_errors;
        let is_new_error = errors >= self.next_errors;
        if is_new_error {
            self.next_errors = errors * REALERT_FACTOR;
        }
        [
            (throttled.throttled != 0)
                .then(|| format!("the clocks of its GPU are held down: {}", throttled.reasons())),
            is_new_xid.then(|| format!("its GPU reports {}", xid::name(alert.last_xid))),
            is_new_error
                .then(|| format!("the memory of its GPU has had {errors} uncorrected ECC errors")),
        ]
    }
}

impl Finding {
    /// Describes the finding in a sentence, with the place of the rank.
    pub fn sentence(&self, ranks: &[RankRecord]) -> String {
        format!("{}: {}", ranks[self.rank].location(ranks), self.text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HW_THERMAL: u64 = 0x40;
    const SW_THERMAL: u64 = 0x20;

    #[test]
    fn each_alarm_is_found_once_and_with_its_rank() {
        let mut watch = AlertWatch::new(2);
        let mut take = |alert: Alert| -> Vec<String> {
            let alert = Alert::decode(&alert.encode());
            let found = watch.take([Alert::NONE, alert].into_iter());
            assert!(found.iter().all(|finding| finding.rank == 1));
            found.into_iter().map(|finding| finding.text).collect()
        };
        let hot = Alert { throttled: HW_THERMAL, ..Alert::NONE };
        assert_eq!(take(hot), ["the clocks of its GPU are held down: hw_thermal_slowdown"]);
        assert_eq!(take(hot), [""; 0]);
        assert_eq!(take(Alert::NONE), [""; 0]);
        let hotter = Alert { throttled: HW_THERMAL | SW_THERMAL, ..Alert::NONE };
        assert_eq!(take(hotter), ["the clocks of its GPU are held down: sw_thermal_slowdown"]);
        let lost = Alert { xid_errors: 1, last_xid: 79, ..hotter };
        assert_eq!(take(lost), ["its GPU reports XID 79 (the GPU has fallen off the bus)"]);
        let worn = Alert { uncorrected_errors: 2, ..lost };
        assert_eq!(take(worn), ["the memory of its GPU has had 2 uncorrected ECC errors"]);
        let again = Alert { xid_errors: 2, uncorrected_errors: 3, ..worn };
        assert_eq!(take(again), [""; 0], "the same error, and hardly more of the others");
        let other = Alert { xid_errors: 3, last_xid: 48, uncorrected_errors: 20, ..again };
        assert_eq!(take(other).len(), 2);
        let reasons = Some("sw_thermal_slowdown, hw_thermal_slowdown".to_owned());
        assert_eq!((watch.throttled(1), watch.throttled(0)), (reasons, None));
        let cool = Alert { throttled: 0, ..other };
        assert_eq!(watch.take([Alert::NONE, cool].into_iter()), []);
        assert_eq!(watch.throttled(1), None, "that is over");
    }
}
