//! Blocks of the last steps: for each rank the mean of its relative own time.

use super::window::WINDOWS;

/// Blocks that are kept.
const BLOCKS_MAX: usize = 512;

/// Ring of blocks, and their sums over windows that end now. Memory is allocated once: 2 KiB for
/// each rank.
#[derive(Debug)]
pub(super) struct History {
    ranks: usize,
    /// By block modulo [`BLOCKS_MAX`], and in each by rank.
    blocks: Vec<f32>,
    /// By window, and in each by rank: sums of the last blocks.
    sums: Vec<f64>,
    /// Blocks so far, also those that are not kept any more.
    count: usize,
}

impl History {
    pub(super) fn new(ranks: usize) -> Self {
        let sums = vec![0.0; ranks * WINDOWS.len()];
        Self { ranks, blocks: vec![0.0; ranks * BLOCKS_MAX], sums, count: 0 }
    }

    /// Blocks that are kept.
    pub(super) fn len(&self) -> usize {
        self.count.min(BLOCKS_MAX)
    }

    /// Blocks so far.
    pub(super) fn count(&self) -> usize {
        self.count
    }

    pub(super) fn push(&mut self, block: impl Iterator<Item = f64>) {
        let kept = self.len();
        for (window, sums) in WINDOWS.into_iter().zip(self.sums.chunks_mut(self.ranks)) {
            if kept >= window {
                let start = (self.count - window) % BLOCKS_MAX * self.ranks;
                let oldest = &self.blocks[start..start + self.ranks];
                sums.iter_mut().zip(oldest).for_each(|(sum, old)| *sum -= f64::from(*old));
            }
        }
        let start = self.count % BLOCKS_MAX * self.ranks;
        let row = &mut self.blocks[start..start + self.ranks];
        row.iter_mut().zip(block).for_each(|(kept, value)| *kept = value as f32);
        for sums in self.sums.chunks_mut(self.ranks) {
            sums.iter_mut().zip(&*row).for_each(|(sum, new)| *sum += f64::from(*new));
        }
        self.count += 1;
    }

    /// Returns the mean of a rank over one of the windows.
    pub(super) fn mean(&self, window: usize, rank: usize) -> f64 {
        let index = WINDOWS.iter().position(|it| *it == window).expect("a window");
        self.sums[index * self.ranks + rank] / window as f64
    }

    /// The block so many before the newest one, by rank.
    pub(super) fn back(&self, blocks: usize) -> &[f32] {
        debug_assert!(blocks < self.len(), "{blocks} of {}", self.len());
        let start = (self.count - 1 - blocks) % BLOCKS_MAX * self.ranks;
        &self.blocks[start..start + self.ranks]
    }

    /// Blocks of a rank that are kept, the newest first.
    pub(super) fn of_rank(&self, rank: usize) -> impl Iterator<Item = f64> + '_ {
        (0..self.len()).map(move |block| f64::from(self.back(block)[rank]))
    }
}
