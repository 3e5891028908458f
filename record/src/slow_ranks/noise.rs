//! Noise of blocks: what the mean of some of them differs by where nothing has changed.

use super::history::History;
use super::window::WINDOWS;
use crate::statistics::{DEVIATIONS_PER_MAD, median_of, robust_deviation};

/// Most ranks that the noise of all is estimated from.
const RANKS_MAX: usize = 512;

/// Blocks that the noise of many ranks is estimated from: there are enough differences.
const BLOCKS_OF_MANY_RANKS: usize = 128;
const MANY_RANKS: usize = 64;

/// Least number of differences from which a deviation is estimated.
const DIFFERENCES_LEAST: usize = 8;

/// Least number of ranks whose spread shows how much ranks usually differ.
pub(super) const RANKS_WITH_SPREAD: usize = 8;

/// Ranks from which means of four blocks show whether blocks depend on each other.
const RANKS_OF_SHORT_WINDOWS: usize = 32;

/// Ratio of the deviations of four blocks and of one from which short windows are not tested, as
/// blocks depend on those before.
const DEPENDENCE: f64 = 1.5;

/// Least window of blocks that depend on each other.
const WINDOW_OF_DEPENDENT: usize = 16;

/// Blocks until which the noise is estimated at the end of each, and between estimates after that.
const BLOCKS_OF_EACH_NOISE: usize = 32;
const BLOCKS_BETWEEN_NOISES: usize = 8;

/// Noise of all ranks of a class.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Noise {
    /// Deviation of one block, so that the mean of L blocks has that of this over sqrt(L): the
    /// largest of all scales.
    pub(super) block: f64,
    /// Least window that is tested, in blocks.
    pub(super) window_least: usize,
    /// Spread of the ranks' medians; 0 below [`RANKS_WITH_SPREAD`].
    pub(super) spread: f64,
}

impl Noise {
    /// Returns whether the noise is estimated anew after so many blocks.
    pub(super) fn is_due(blocks: usize) -> bool {
        blocks < BLOCKS_OF_EACH_NOISE || blocks.is_multiple_of(BLOCKS_BETWEEN_NOISES)
    }

    /// Estimates the noise: at each scale the Allan deviation, by the differences of neighbouring
    /// means of so many blocks. A rank's own pace does not count, regimes and dependence do.
    pub(super) fn of(history: &History, ranks: usize) -> Self {
        let sample = Sample::of(ranks);
        let mut blocks = history.len();
        if ranks >= MANY_RANKS {
            blocks = blocks.min(BLOCKS_OF_MANY_RANKS);
        }
        let mut noise = Self { window_least: WINDOW_OF_DEPENDENT, ..Self::default() };
        if ranks >= RANKS_OF_SHORT_WINDOWS {
            noise.window_least = WINDOWS[0];
        }
        let sums = Sums::of(history, &sample, blocks);
        let mut of_one = 0.0;
        for scale in [1].into_iter().chain(WINDOWS) {
            let Some(deviation) = sums.allan(scale, blocks) else { continue };
            noise.block = noise.block.max(deviation);
            if scale == 1 {
                of_one = deviation;
            } else if scale == WINDOWS[0] && of_one > 0.0 {
                let is_independent = deviation / of_one < DEPENDENCE;
                noise.window_least = if is_independent { WINDOWS[0] } else { WINDOW_OF_DEPENDENT };
            }
        }
        if ranks >= RANKS_WITH_SPREAD {
            let medians = sample.ranks().map(|rank| {
                let mut of_rank: Vec<f64> = history.of_rank(rank).collect();
                median_of(&mut of_rank)
            });
            noise.spread = robust_deviation(&medians.collect::<Vec<_>>());
        }
        noise
    }

    /// The noise of one rank with these blocks: its own where that is larger.
    pub(super) fn of_rank(self, blocks: &[f64]) -> f64 {
        let neighbours = blocks.windows(2);
        let mut differences: Vec<f64> = neighbours.map(|pair| (pair[1] - pair[0]).abs()).collect();
        if differences.len() < DIFFERENCES_LEAST {
            return self.block;
        }
        self.block.max(deviation_of(&mut differences))
    }
}

/// Ranks that stand for all.
struct Sample {
    count: usize,
    stride: usize,
}

impl Sample {
    /// Takes one of two ranks: the other's blocks are the same with the other sign.
    fn of(ranks: usize) -> Self {
        let count = if ranks == 2 { 1 } else { ranks };
        Self { count, stride: count.div_ceil(RANKS_MAX) }
    }

    fn ranks(&self) -> impl Iterator<Item = usize> + use<> {
        (0..self.count).step_by(self.stride)
    }
}

/// Sums of the blocks of some ranks, from the newest one on.
struct Sums {
    ranks: usize,
    /// By number of blocks, from 0 on, and in each by rank.
    sums: Vec<f64>,
}

impl Sums {
    fn of(history: &History, sample: &Sample, blocks: usize) -> Self {
        let ranks = sample.ranks().count();
        let mut sums = vec![0.0; ranks];
        sums.reserve(ranks * blocks);
        for block in 0..blocks {
            let row = history.back(block);
            for (index, rank) in sample.ranks().enumerate() {
                sums.push(sums[block * ranks + index] + f64::from(row[rank]));
            }
        }
        Self { ranks, sums }
    }

    /// Returns the deviation of one block that the differences between neighbouring means of
    /// `scale` blocks show; `None` with too few.
    fn allan(&self, scale: usize, blocks: usize) -> Option<f64> {
        let means = blocks / scale;
        if means < 2 || (means - 1) * self.ranks < DIFFERENCES_LEAST {
            return None;
        }
        let row = |mean: usize| &self.sums[mean * scale * self.ranks..][..self.ranks];
        let mut differences = Vec::with_capacity((means - 1) * self.ranks);
        for mean in 1..means {
            let rows = row(mean - 1).iter().zip(row(mean)).zip(row(mean + 1));
            differences.extend(rows.map(|((a, b), c)| (2.0 * b - a - c).abs()));
        }
        // Sums of `scale` blocks have `scale` times the difference of means, and sqrt(scale) of the
        // noise.
        Some(deviation_of(&mut differences) / (scale as f64).sqrt())
    }
}

/// Standard deviation of values whose differences these are, which resists outliers.
fn deviation_of(differences: &mut [f64]) -> f64 {
    DEVIATIONS_PER_MAD * median_of(differences) / std::f64::consts::SQRT_2
}
