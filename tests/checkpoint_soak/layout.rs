//! Divisions of four ranks, as attempts of a run have them.

use crate::Random;

/// Sizes of the dimensions, and what ranks share.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Layout {
    data: usize,
    shard: usize,
    sharded: &'static str,
}

/// Layouts of the attempts of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Layouts {
    /// Hybrid, with sharded weights, in every attempt.
    Hybrid,
    /// Hybrid, and each attempt shares other state: with one micro-batch a step has the same bits.
    SameSizes,
    /// Attempts have other dimensions, too, which add in another order: results agree to rounding.
    Any,
}

const SHARDED: [&str; 4] = ["none", "optimizer", "gradients", "weights"];

impl Layouts {
    pub(crate) const ALL: [Self; 3] = [Self::Hybrid, Self::SameSizes, Self::Any];

    /// Returns the layout of the next attempt.
    pub(crate) fn next(self, random: &mut Random) -> Layout {
        match self {
            Self::Hybrid => Layout { data: 2, shard: 2, sharded: "weights" },
            Self::SameSizes => Layout { data: 2, shard: 2, sharded: random.choose(&SHARDED) },
            Self::Any => {
                let [data, shard] = random.choose(&[[2, 2], [1, 4], [4, 1]]);
                Layout { data, shard, sharded: random.choose(&SHARDED) }
            }
        }
    }
}

impl Layout {
    pub(crate) fn settings(self) -> [String; 3] {
        let Self { data, shard, sharded } = self;
        [
            format!("parallel.data={data}"),
            format!("parallel.shard={shard}"),
            format!("parallel.sharded={sharded}"),
        ]
    }
}
