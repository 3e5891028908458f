//! The one error type of this crate.

/// Failure of this crate, by what the caller can do about it.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A configuration value is impossible; change the named key.
    #[error("{key} = {found}: expected {expected}")]
    Invalid {
        /// Dotted path of the key, as in `batch.micro_sequences`.
        key: String,
        /// The value found, as the user wrote it.
        found: String,
        /// Description of the accepted values.
        expected: String,
    },
    /// A combination that no engine computes yet; the hint names an alternative.
    #[error("{what} is not supported\n  hint: {hint}")]
    Unsupported {
        /// The keys and values that cannot be combined.
        what: String,
        /// Hint about supported alternatives.
        hint: String,
    },
    /// A configuration text does not parse or has an unknown key.
    #[error("{origin}: {message}")]
    Parse {
        /// File or preset of the text.
        origin: String,
        /// The parser's message, naming the key or line.
        message: String,
    },
    /// Weights did not arrive, or gradients could not be handed over; the error is that of their
    /// source or sink.
    #[error(transparent)]
    Exchange(Box<dyn std::error::Error + Send + Sync>),
    /// A device or one of its libraries failed.
    #[error(transparent)]
    Device(#[from] device::cuda::Error),
    /// The candle engine failed.
    #[error("candle engine: {0}")]
    Candle(#[from] candle_core::Error),
    /// Autograd left a parameter without gradient: the engine is broken.
    #[error("candle engine: no gradient for {tensor}: an operation in its path has no backward")]
    MissingGradient {
        /// Name of the parameter.
        tensor: String,
    },
}

impl Error {
    /// An impossible value for a key.
    pub fn invalid(
        key: impl Into<String>,
        found: impl ToString,
        expected: impl Into<String>,
    ) -> Self {
        Self::Invalid { key: key.into(), found: found.to_string(), expected: expected.into() }
    }
}
