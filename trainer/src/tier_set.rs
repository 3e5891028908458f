//! Sets of tiers.

/// Set of tiers, by their positions among those of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct TierSet(pub u8);

impl TierSet {
    /// Set of all tiers.
    pub const ALL: Self = Self(u8::MAX);

    /// Returns whether the set is empty.
    pub fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// Returns whether the set contains a tier.
    pub fn contains(self, tier: usize) -> bool {
        self.0 & (1 << tier) != 0
    }

    /// Returns the tiers of either set.
    #[must_use]
    pub fn union(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// Returns the tiers that are not in the other set.
    #[must_use]
    pub(crate) fn without(self, other: Self) -> Self {
        Self(self.0 & !other.0)
    }

    /// Returns the positions of its tiers, the nearest first.
    pub(crate) fn positions(self) -> impl Iterator<Item = usize> {
        (0..u8::BITS as usize).filter(move |&tier| self.contains(tier))
    }

    pub(crate) fn insert(&mut self, tier: usize) {
        self.0 |= 1 << tier;
    }
}
