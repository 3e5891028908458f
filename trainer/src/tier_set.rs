//! Sets of tiers.

/// A set of tiers, by their positions among those of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct TierSet(pub u8);

impl TierSet {
    /// Every tier there is.
    pub const ALL: Self = Self(u8::MAX);

    /// Whether it has none.
    pub fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// Whether it has this one.
    pub fn contains(self, tier: usize) -> bool {
        self.0 & (1 << tier) != 0
    }

    /// Those of both.
    #[must_use]
    pub fn union(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// Those that are not in the other set.
    #[must_use]
    pub(crate) fn without(self, other: Self) -> Self {
        Self(self.0 & !other.0)
    }

    /// Positions of its tiers, the nearest first.
    pub(crate) fn positions(self) -> impl Iterator<Item = usize> {
        (0..u8::BITS as usize).filter(move |&tier| self.contains(tier))
    }

    pub(crate) fn insert(&mut self, tier: usize) {
        self.0 |= 1 << tier;
    }
}
