//! A series that all ranks share, and its changes.

use super::Rule;
use super::history::History;
use super::noise::Noise;
use super::window::{Slow, Test, WINDOWS};

/// Blocks of one value each.
#[derive(Debug)]
pub(super) struct Series {
    history: History,
    /// Logarithms of another series, which must have grown as well.
    absolute: History,
    sum: f64,
    absolute_sum: f64,
    noise: Noise,
    change: Option<Change>,
    /// Number of the block from which windows begin: the one at which it was last well.
    fresh_from: usize,
}

/// Change of a series.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Change {
    pub(super) slow: Slow,
    /// First step of the window in which it was found.
    pub(super) since_step: u64,
    /// Step from which it is over.
    pub(super) until_step: Option<u64>,
}

/// Block that ends.
#[derive(Debug, Clone, Copy)]
pub(super) struct End {
    /// Number of its last step.
    pub(super) step: u64,
    pub(super) steps: usize,
    /// Probability of a false finding for each test.
    pub(super) chance: f64,
}

impl End {
    /// First step of the last blocks.
    pub(super) fn since_step(&self, blocks: usize) -> u64 {
        (self.step + 1).saturating_sub((blocks * self.steps) as u64)
    }
}

impl Series {
    pub(super) fn new() -> Self {
        Self {
            history: History::new(1),
            absolute: History::new(1),
            sum: 0.0,
            absolute_sum: 0.0,
            noise: Noise::default(),
            change: None,
            fresh_from: 0,
        }
    }

    /// Adds a value, and the logarithm of one that must have grown as well.
    pub(super) fn add(&mut self, value: f64, absolute: f64) {
        self.sum += value;
        self.absolute_sum += absolute;
    }

    /// Ends a block. Where a rank explains a change, none is looked for.
    pub(super) fn end_block(
        &mut self,
        end: End,
        rule: &Rule,
        is_explained: bool,
    ) -> Option<Change> {
        self.history.push(std::iter::once(self.sum / end.steps as f64));
        self.absolute.push(std::iter::once(self.absolute_sum / end.steps as f64));
        (self.sum, self.absolute_sum) = (0.0, 0.0);
        if Noise::is_due(self.history.count()) {
            self.noise = Noise::of(&self.history, 1);
        }
        let blocks = self.history.count() - self.fresh_from;
        if let Some(change) = self.change {
            let is_long_enough = blocks >= change.slow.blocks_until_well();
            if !is_long_enough || !change.slow.is_over(self.history.of_rank(0)) {
                return None;
            }
            self.change = None;
            self.fresh_from = self.history.count();
            return Some(Change { until_step: Some(end.step), ..change });
        }
        if is_explained || self.history.len() < WINDOWS[0] || self.noise.block <= 0.0 {
            return None;
        }
        let test = Test::new(&self.history, rule, self.noise, 1, end.chance)
            .with_absolute(Some(&self.absolute));
        let slow = test.slow(0, None, blocks)?;
        let since_step = end.since_step(slow.blocks);
        let change = Change { slow, since_step, until_step: None };
        self.change = Some(change);
        self.fresh_from = self.history.count();
        Some(change)
    }
}
