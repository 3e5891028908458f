//! Named points of a save, for telemetry and for killing a process exactly there.

use std::fmt;
use std::str::FromStr;

use crate::Error;

/// A point of [`Store::save`](crate::Store::save), in the order in which they are reached.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Point {
    /// The attempt's folder exists; this rank has written nothing.
    BeforeShard,
    /// Half of this rank's bytes are written. Not reached by a rank without any.
    MidShard,
    /// This rank's shards are durable, its index is not written.
    ShardBeforeIndex,
    /// Everything of this rank is durable, it has not voted.
    IndexBeforeVote,
    /// All ranks have voted yes (rank 0).
    VoteBeforeManifest,
    /// Half of the manifest's temporary file is written (rank 0).
    MidManifest,
    /// The checkpoint is committed, `LATEST` is not written (rank 0).
    ManifestBeforeLatest,
    /// An old checkpoint has lost its manifest but not its data (rank 0, if one is removed; this
    /// one is a point of [`Store::tidy`](crate::Store::tidy)).
    MidRetention,
}

impl Point {
    /// All of them.
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

    fn name(self) -> &'static str {
        match self {
            Self::BeforeShard => "before-shard",
            Self::MidShard => "mid-shard",
            Self::ShardBeforeIndex => "shard-before-index",
            Self::IndexBeforeVote => "index-before-vote",
            Self::VoteBeforeManifest => "vote-before-manifest",
            Self::MidManifest => "mid-manifest",
            Self::ManifestBeforeLatest => "manifest-before-latest",
            Self::MidRetention => "mid-retention",
        }
    }
}

impl fmt::Display for Point {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Point {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        let unknown = || Error::UnknownPoint {
            found: text.to_owned(),
            expected: Self::ALL.map(Self::name).join(", "),
        };
        Self::ALL.into_iter().find(|point| point.name() == text).ok_or_else(unknown)
    }
}

/// Is told when a point is reached, on the thread that saves.
pub trait Observer {
    /// This point is reached on this rank.
    fn reached(&self, point: Point);
}

/// An observer that does nothing.
#[derive(Debug, Clone, Copy, Default)]
pub struct Silent;

impl Observer for Silent {
    fn reached(&self, _point: Point) {}
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_back() {
        for point in Point::ALL {
            assert_eq!(point.to_string().parse::<Point>().unwrap(), point);
        }
        let message = "mid-sharp".parse::<Point>().unwrap_err().to_string();
        assert!(message.contains("mid-shard"), "{message}");
    }
}
