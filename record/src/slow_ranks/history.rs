//! Blocks of the last steps: for each rank the mean of its relative own time.

/// Blocks that are kept.
pub(super) const BLOCKS_MAX: usize = 512;

/// Ring of blocks. Memory is allocated once: 2 KiB for each rank.
#[derive(Debug)]
pub(super) struct History {
    ranks: usize,
    /// By block modulo [`BLOCKS_MAX`], and in each by rank.
    blocks: Vec<f32>,
    /// Blocks so far, also those that are not kept any more.
    count: usize,
}

impl History {
    pub(super) fn new(ranks: usize) -> Self {
        Self { ranks, blocks: vec![0.0; ranks * BLOCKS_MAX], count: 0 }
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
        let start = self.count % BLOCKS_MAX * self.ranks;
        let row = &mut self.blocks[start..start + self.ranks];
        row.iter_mut().zip(block).for_each(|(kept, value)| *kept = value as f32);
        self.count += 1;
    }

    /// The block so many before the newest one, by rank.
    pub(super) fn back(&self, blocks: usize) -> &[f32] {
        debug_assert!(blocks < self.len(), "{blocks} of {}", self.len());
        let start = (self.count - 1 - blocks) % BLOCKS_MAX * self.ranks;
        &self.blocks[start..start + self.ranks]
    }

    /// The blocks of a rank, the newest first.
    pub(super) fn of_rank(&self, rank: usize) -> impl Iterator<Item = f64> + '_ {
        (0..self.len()).map(move |back| f64::from(self.back(back)[rank]))
    }
}
