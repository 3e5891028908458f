//! Failed saves by their cause, so that one cause is not reported at every save.

use std::collections::BTreeMap;

/// Number of saves that each cause made fail.
#[derive(Debug, Default)]
pub(super) struct Failures(BTreeMap<String, u64>);

impl Failures {
    /// Counts a failure. Returns its number if it is worth a warning: the 1st, 2nd, 4th, 8th, ...
    pub(super) fn count(&mut self, tier: &str, reason: &str) -> Option<u64> {
        let count = self.0.entry(format!("{tier}: {}", cause(reason))).or_default();
        *count += 1;
        count.is_power_of_two().then_some(*count)
    }
}

/// Returns the system's error, which ends the reason: the text before it names a file of the
/// checkpoint, which differs between saves.
fn cause(reason: &str) -> &str {
    reason.rsplit(": ").next().unwrap_or(reason)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cause_is_reported_ever_more_rarely() {
        let mut failures = Failures::default();
        let mut fail = |step: u64, error: &str| {
            let reason =
                format!("save of step {step} aborted: rank 0: write /nvme/s{step}: {error}");
            failures.count("nvme", &reason).is_some()
        };
        let reported: Vec<_> = (1..=9).filter(|&step| fail(step, "No space left")).collect();
        assert_eq!(reported, [1, 2, 4, 8]);
        assert!(fail(10, "Read-only file system"), "another cause");
        assert!(failures.count("shared", "No space left").is_some(), "another tier");
    }
}
