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

/// Noise of all ranks of a class.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Noise {
    /// Deviation of one block, so that the mean of L blocks has that of this over √L: the largest
    /// of all scales.
    pub(super) block: f64,
    /// Least window that is tested, in blocks.
    pub(super) window_least: usize,
    /// Spread of the ranks' medians; 0 below [`RANKS_WITH_SPREAD`].
    pub(super) spread: f64,
}

impl Noise {
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
        let mut of_one = 0.0;
        for scale in [1].into_iter().chain(WINDOWS) {
            let Some(deviation) = allan(history, &sample, scale, blocks) else { continue };
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
    /// Of two ranks one: the other's blocks are the same with the other sign.
    fn of(ranks: usize) -> Self {
        let count = if ranks == 2 { 1 } else { ranks };
        Self { count, stride: count.div_ceil(RANKS_MAX) }
    }

    fn ranks(&self) -> impl Iterator<Item = usize> + use<> {
        (0..self.count).step_by(self.stride)
    }
}

/// The deviation of one block that the differences between neighbouring means of `scale` blocks
/// show; `None` with too few.
fn allan(history: &History, sample: &Sample, scale: usize, blocks: usize) -> Option<f64> {
    let means = blocks / scale;
    let of_ranks = sample.ranks().count();
    if means < 2 || (means - 1) * of_ranks < DIFFERENCES_LEAST {
        return None;
    }
    let mut sums = vec![0.0; means * of_ranks];
    for (mean, sums) in sums.chunks_mut(of_ranks).enumerate() {
        for block in mean * scale..(mean + 1) * scale {
            let row = history.back(block);
            sample.ranks().zip(&mut *sums).for_each(|(rank, sum)| *sum += f64::from(row[rank]));
        }
    }
    let later = &sums[of_ranks..];
    let mut differences: Vec<f64> = sums.iter().zip(later).map(|(a, b)| (a - b).abs()).collect();
    // Sums of `scale` blocks have `scale` times the difference of means, and √scale of the noise.
    Some(deviation_of(&mut differences) / (scale as f64).sqrt())
}

/// Standard deviation of values whose differences these are, which resists outliers.
fn deviation_of(differences: &mut [f64]) -> f64 {
    DEVIATIONS_PER_MAD * median_of(differences) / std::f64::consts::SQRT_2
}
