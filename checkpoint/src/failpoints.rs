//! Failpoints: named moments of a save or a promotion at which a test can kill the process or make
//! it wait.

use std::fmt;
use std::str::FromStr;

use crate::error::Error;

/// Failpoint of [`Store::save`](crate::Store::save), in the order in which they are reached, or of
/// a [`Promoter`](crate::promotion::Promoter). On a tier of node scope, a failpoint of rank 0 is
/// reached by every rank.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Failpoint {
    /// The checkpoint has its name; this rank has written nothing.
    BeforeShard,
    /// Half of this rank's bytes are handed to the tier. Not hit on a rank without any.
    MidShard,
    /// This rank's shards are durable, its index is not written.
    ShardBeforeIndex,
    /// All files of this rank are durable, it has not voted.
    IndexBeforeVote,
    /// Some of the bytes that a partner has sent are written here, where nodes keep [copies of each
    /// other](crate::Partner).
    MidPartnerCopy,
    /// The copy of a partner's files is durable here, this rank has not said so.
    PartnerCopyBeforeVote,
    /// All ranks have voted yes (rank 0).
    VoteBeforeManifest,
    /// Half of the manifest's temporary file is written (rank 0).
    MidManifest,
    /// The checkpoint is committed, `LATEST` is not written (rank 0).
    ManifestBeforeLatest,
    /// An old checkpoint has lost its manifest but not its data (rank 0), in
    /// [`Store::apply_retention`](crate::Store::apply_retention).
    MidRetention,
    /// A shard is copied to the next tier, this rank's index is not.
    MidPromotion,
    /// All files of all ranks are on the next tier, the manifest is not (rank 0).
    PromotionBeforeManifest,
}

impl Failpoint {
    /// Failpoints of every save.
    pub const ALL: [Self; 8] = [
        Self::BeforeShard,
        Self::MidShard,
        Self::ShardBeforeIndex,
        Self::IndexBeforeVote,
        Self::VoteBeforeManifest,
        Self::MidManifest,
        Self::ManifestBeforeLatest,
        Self::MidRetention,
    ];

    /// Failpoints of a save whose ranks have [partners](crate::Partner).
    pub const PARTNER: [Self; 2] = [Self::MidPartnerCopy, Self::PartnerCopyBeforeVote];

    /// Failpoints of a promotion.
    pub const PROMOTION: [Self; 2] = [Self::MidPromotion, Self::PromotionBeforeManifest];

    fn name(self) -> &'static str {
        match self {
            Self::BeforeShard => "before-shard",
            Self::MidShard => "mid-shard",
            Self::ShardBeforeIndex => "shard-before-index",
            Self::IndexBeforeVote => "index-before-vote",
            Self::MidPartnerCopy => "mid-partner-copy",
            Self::PartnerCopyBeforeVote => "partner-copy-before-vote",
            Self::VoteBeforeManifest => "vote-before-manifest",
            Self::MidManifest => "mid-manifest",
            Self::ManifestBeforeLatest => "manifest-before-latest",
            Self::MidRetention => "mid-retention",
            Self::MidPromotion => "mid-promotion",
            Self::PromotionBeforeManifest => "promotion-before-manifest",
        }
    }
}

impl fmt::Display for Failpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Failpoint {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        let all = [&Self::ALL[..], &Self::PARTNER, &Self::PROMOTION].concat();
        let named = all.iter().copied().find(|failpoint| failpoint.name() == text);
        named.ok_or_else(|| Error::UnknownFailpoint {
            found: text.to_owned(),
            expected: all.into_iter().map(Self::name).collect::<Vec<_>>().join(", "),
        })
    }
}

/// Behaviour at failpoints.
pub trait Failpoints {
    /// Called when this rank reaches a failpoint of a save or of retention, on the thread of that.
    fn hit(&self, failpoint: Failpoint);

    /// Called when this rank reaches a failpoint of a promotion of the checkpoint of this step.
    fn hit_in_promotion(&self, failpoint: Failpoint, _step: u64) {
        self.hit(failpoint);
    }
}

/// Failpoints that do nothing.
#[derive(Debug, Clone, Copy, Default)]
pub struct NoFailpoints;

impl Failpoints for NoFailpoints {
    fn hit(&self, _failpoint: Failpoint) {}
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_back() {
        let others = Failpoint::PARTNER.into_iter().chain(Failpoint::PROMOTION);
        for failpoint in Failpoint::ALL.into_iter().chain(others) {
            assert_eq!(failpoint.to_string().parse::<Failpoint>().unwrap(), failpoint);
        }
        let message = "mid-sharp".parse::<Failpoint>().unwrap_err().to_string();
        assert!(message.contains("mid-shard"), "{message}");
    }
}
