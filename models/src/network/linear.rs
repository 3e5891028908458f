//! The linear layers of a block.

use crate::meter::Role;

/// A linear layer of a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Linear {
    /// Computes queries, keys and values.
    AttentionIn,
    /// Projects the attention's output.
    AttentionOut,
    /// The first of the feed-forward layer.
    Expand,
    /// The last of the feed-forward layer.
    Contract,
}

impl Linear {
    pub(super) const ALL: [Self; 4] =
        [Self::AttentionIn, Self::AttentionOut, Self::Expand, Self::Contract];

    /// Returns whether its output is added to the residual stream.
    pub(super) fn writes_to_stream(self) -> bool {
        matches!(self, Self::AttentionOut | Self::Contract)
    }

    /// Its name where ops are counted.
    pub(super) fn role(self) -> Role {
        match self {
            Self::AttentionIn => Role::AttentionIn,
            Self::AttentionOut => Role::AttentionOut,
            Self::Expand => Role::Expand,
            Self::Contract => Role::Contract,
        }
    }
}
