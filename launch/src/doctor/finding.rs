//! What a check has found.

use std::fmt;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// How it is, the best first.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "lowercase")]
pub enum Status {
    /// As it should be.
    Pass,
    /// There was nothing to look at.
    Skip,
    /// Training works, but may be slower or less safe than it could be.
    Warn,
    /// Training would fail, or be much slower.
    Fail,
}

impl fmt::Display for Status {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.pad(match self {
            Self::Pass => "pass",
            Self::Skip => "skip",
            Self::Warn => "warn",
            Self::Fail => "FAIL",
        })
    }
}

/// What a check has found at one place.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Finding {
    /// How it is.
    pub status: Status,
    /// What was found; why there was nothing to look at.
    pub found: String,
    /// What was expected, where that was not found.
    pub expected: Option<String>,
}

impl Finding {
    /// As it should be.
    pub fn pass(found: impl Into<String>) -> Self {
        Self { status: Status::Pass, found: found.into(), expected: None }
    }

    /// There was nothing to look at, and why.
    pub fn skip(why: impl Into<String>) -> Self {
        Self { status: Status::Skip, found: why.into(), expected: None }
    }

    /// Not as it should be, but training works.
    pub fn warn(found: impl Into<String>, expected: impl Into<String>) -> Self {
        Self { status: Status::Warn, found: found.into(), expected: Some(expected.into()) }
    }

    /// Training would not work.
    pub fn fail(found: impl Into<String>, expected: impl Into<String>) -> Self {
        Self { status: Status::Fail, ..Self::warn(found, expected) }
    }
}
