//! Arrangements of ranks that tests train on.

use std::fmt;

/// Kinds of `parallel.sharded` that divide state.
pub(crate) const KINDS: [&str; 3] = ["optimizer", "gradients", "weights"];

/// Sizes of both dimensions, and the part of the state that is divided.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Layout {
    pub(crate) data: usize,
    pub(crate) shard: usize,
    pub(crate) sharded: &'static str,
}

impl Layout {
    pub(crate) const ONE_RANK: Self = Self { data: 1, shard: 1, sharded: "none" };

    pub(crate) fn ranks(self) -> usize {
        self.data * self.shard
    }

    /// Flags of `train`.
    pub(crate) fn flags(self) -> [String; 6] {
        let Self { data, shard, sharded } = self;
        let set = || "--set".to_owned();
        let [data, shard] =
            [("data", data), ("shard", shard)].map(|(key, size)| format!("parallel.{key}={size}"));
        [set(), data, set(), shard, set(), format!("parallel.sharded={sharded}")]
    }
}

impl fmt::Display for Layout {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { data, shard, sharded } = self;
        write!(formatter, "data {data} x shard {shard}, sharded: {sharded}")
    }
}
