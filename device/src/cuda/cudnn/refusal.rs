//! Errors that cuDNN returns, with their reasons.

use std::fmt;

use crate::cuda::Error;

/// A call that cuDNN refused.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refusal {
    /// The function, or what it was called for.
    pub(super) call: &'static str,
    /// `cudnnStatus_t`.
    pub(super) status: i32,
    /// cuDNN's message.
    pub(super) text: String,
}

impl Refusal {
    /// Returns whether cuDNN cannot compute this, rather than that the request was wrong: statuses
    /// from 3000 to 3999.
    pub fn is_unsupported(&self) -> bool {
        self.status / 1000 == 3
    }

    /// The error of a library that does not start.
    pub(super) fn at_startup(self) -> Error {
        Error::LibraryStartup { library: "cuDNN", text: self.to_string() }
    }

    /// The error of a call that had to succeed.
    pub fn during(self, what: &str) -> Error {
        Error::Library { library: "cuDNN", what: what.to_owned(), text: self.to_string() }
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}: {}", self.call, self.text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_cannot_be_computed_differs_from_what_is_wrong() {
        let refusal = |status| Refusal { call: "finalizing", status, text: "text".to_owned() };
        assert!(refusal(3000).is_unsupported() && refusal(3014).is_unsupported());
        assert!(!refusal(2000).is_unsupported() && !refusal(4001).is_unsupported());
        assert!(refusal(1000).at_startup().is_of_machine());
        assert!(!refusal(2000).during("planning").is_of_machine());
        assert_eq!(
            refusal(2000).during("planning").to_string(),
            "cuDNN: planning failed: finalizing: text"
        );
    }
}
