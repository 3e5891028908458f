//! Selection of the tier that ranks save on: the nearest one that works.
//!
//! A save that fails on any rank fails on all of them, so every rank moves alike without a vote.
//! The nearest tier is tried again after 8 commits elsewhere.

/// Commits on a farther tier before the nearest one is tried again.
const COMMITS_ELSEWHERE: u32 = 8;

/// Tier in use, among those that all ranks can save on.
#[derive(Debug)]
pub(super) struct SaveTier {
    /// Positions among the tiers of the run, the nearest first; never empty.
    usable: Vec<usize>,
    /// Position of the tier in use in `usable`.
    present: usize,
    /// Commits since the tier came into use.
    commits: u32,
    /// True if the nearest tier has failed, and has not worked since.
    has_failed: bool,
}

/// Move after a failed save.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum AfterFailure {
    /// The next tier takes over: save there at once.
    TakenOver,
    /// No other tier is left: the next save is due as usual, on the nearest one.
    NoneLeft,
}

impl SaveTier {
    /// Starts on the first, which is the nearest tier.
    ///
    /// # Panics
    /// If there is no tier.
    pub(super) fn new(usable: Vec<usize>) -> Self {
        assert!(!usable.is_empty(), "a run has at least one usable tier");
        Self { usable, present: 0, commits: 0, has_failed: false }
    }

    /// Returns the position of the tier in use among the tiers of the run.
    pub(super) fn position(&self) -> usize {
        self.usable[self.present]
    }

    /// Returns the number of usable tiers.
    pub(super) fn count(&self) -> usize {
        self.usable.len()
    }

    /// Moves to the next tier after a failed save.
    pub(super) fn failed(&mut self) -> AfterFailure {
        self.commits = 0;
        self.has_failed |= self.present == 0;
        self.present = (self.present + 1) % self.usable.len();
        if self.present == 0 { AfterFailure::NoneLeft } else { AfterFailure::TakenOver }
    }

    /// Counts a commit, and moves back to the nearest tier when it is due to be tried again.
    /// Returns whether the nearest tier, which had failed, works again.
    pub(super) fn committed(&mut self) -> bool {
        if self.present == 0 {
            return std::mem::take(&mut self.has_failed);
        }
        self.commits += 1;
        if self.commits == COMMITS_ELSEWHERE {
            self.commits = 0;
            self.present = 0;
        }
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the tiers of the next saves where the nearest one fails and the next one works.
    fn saves(tier: &mut SaveTier, count: usize) -> Vec<usize> {
        let mut save = || {
            let position = tier.position();
            if position == 0 {
                assert_eq!(tier.failed(), AfterFailure::TakenOver);
            } else {
                assert!(!tier.committed());
            }
            position
        };
        (0..count).map(|_| save()).collect()
    }

    #[test]
    fn the_nearest_tier_is_tried_again() {
        let mut tier = SaveTier::new(vec![0, 2]);
        let expected = [&[0][..], &[2; 8], &[0], &[2; 8], &[0]].concat();
        assert_eq!(saves(&mut tier, expected.len()), expected);
        // It works again.
        let mut tier = SaveTier::new(vec![0, 2]);
        saves(&mut tier, 9);
        assert_eq!(tier.position(), 0);
        assert!(tier.committed() && !tier.committed(), "said once");
        assert_eq!(saves(&mut tier, expected.len()), expected, "as at first");
    }

    #[test]
    fn with_no_tier_left_the_nearest_is_next() {
        let mut tier = SaveTier::new(vec![1, 2]);
        assert_eq!(tier.failed(), AfterFailure::TakenOver);
        assert_eq!(tier.failed(), AfterFailure::NoneLeft);
        assert_eq!(tier.position(), 1);
        let mut only = SaveTier::new(vec![0]);
        assert_eq!((only.failed(), only.position()), (AfterFailure::NoneLeft, 0));
    }
}
