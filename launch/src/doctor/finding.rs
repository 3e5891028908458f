//! Result of a check.

use std::fmt;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Status of a result, the best first.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "lowercase")]
pub enum Status {
    /// The expectation is met.
    Pass,
    /// Not applicable, or not readable.
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

/// Result of a check at one place.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Finding {
    /// Status of the check.
    pub status: Status,
    /// Description of what was found, or the reason of a skip.
    pub found: String,
    /// Expectation, if it was not met.
    pub expected: Option<String>,
}

impl Finding {
    /// Builds a pass.
    pub fn pass(found: impl Into<String>) -> Self {
        Self { status: Status::Pass, found: found.into(), expected: None }
    }

    /// Builds a skip, with its reason.
    pub fn skip(why: impl Into<String>) -> Self {
        Self { status: Status::Skip, found: why.into(), expected: None }
    }

    /// Builds a warning: training works, although not as it should.
    pub fn warn(found: impl Into<String>, expected: impl Into<String>) -> Self {
        Self { status: Status::Warn, found: found.into(), expected: Some(expected.into()) }
    }

    /// Builds a failure: training would not work.
    pub fn fail(found: impl Into<String>, expected: impl Into<String>) -> Self {
        Self { status: Status::Fail, ..Self::warn(found, expected) }
    }
}
