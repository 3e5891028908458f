//! Errors that end a process, with their exit codes. `run/mod.rs` names the rank that failed, and
//! `trainer/cli/src/main.rs` exits with the code.

use std::fmt;

use device::threads;
use record::ExitCode;
use record::files::IoError;
use record::golden::GoldenMiss;

use crate::data::DataError;
use record;
use record::phase::Phase;

/// Error with its exit code and, if it happened in training, the step and rank.
#[derive(Debug)]
pub struct Failure {
    /// Exit code of the process.
    pub code: ExitCode,
    /// Error that ends the process.
    pub error: anyhow::Error,
    /// Step in which it happened.
    pub step: Option<u64>,
    /// Rank that caused it, if known.
    pub rank: Option<usize>,
    /// Phase of that rank, if known.
    pub phase: Option<Phase>,
    /// Rank that reports it; `None` before the rendezvous.
    pub reported_by: Option<usize>,
}

/// Returns whether any cause of an error is that the system refuses something to this process.
pub(crate) fn is_refused_by_system(error: &anyhow::Error) -> bool {
    error.chain().any(is_refused)
}

/// Returns whether the system refuses something: permissions, space, limits.
fn is_refused(cause: &(dyn std::error::Error + 'static)) -> bool {
    use std::io::ErrorKind::{
        FileTooLarge, OutOfMemory, PermissionDenied, QuotaExceeded, ReadOnlyFilesystem,
        StaleNetworkFileHandle, StorageFull,
    };
    let kinds = [
        FileTooLarge,
        OutOfMemory,
        PermissionDenied,
        QuotaExceeded,
        ReadOnlyFilesystem,
        StaleNetworkFileHandle,
        StorageFull,
    ];
    let error = cause.downcast_ref::<std::io::Error>();
    error.is_some_and(|error| kinds.contains(&error.kind())) || is_limited(cause)
}

/// Returns whether a limit of this process caused an error.
fn is_limited(cause: &(dyn std::error::Error + 'static)) -> bool {
    let error = cause.downcast_ref::<std::io::Error>();
    error.is_some_and(|error| record::files::process_limits::behind(error).is_some())
}

/// Result of a function whose error ends the process.
pub type Outcome<T> = Result<T, Failure>;

impl Failure {
    /// Creates a failure with this exit code.
    ///
    /// The code is that of the environment, whatever `code` is, if a thread cannot be started.
    /// Errors of usage become errors of the environment if a limit of this process caused them, and
    /// internal errors if the system refuses something.
    pub fn new(code: ExitCode, error: impl Into<anyhow::Error>) -> Self {
        let error = error.into();
        let code = match code {
            _ if error.chain().any(threads::Error::is_behind) => ExitCode::Environment,
            ExitCode::Usage if error.chain().any(is_limited) => ExitCode::Environment,
            ExitCode::Internal if is_refused_by_system(&error) => ExitCode::Environment,
            code => code,
        };
        Self { code, error, step: None, rank: None, phase: None, reported_by: None }
    }

    /// Creates a usage error with this message.
    pub fn usage(message: impl fmt::Display) -> Self {
        Self::new(ExitCode::Usage, anyhow::anyhow!("{message}"))
    }

    /// Returns the rank that caused it, as far as rank `own` knows; `own` if no other rank can be
    /// the cause.
    pub(crate) fn failed_rank(&self, own: usize) -> Option<usize> {
        let shared = [ExitCode::PeerLost, ExitCode::Numerical, ExitCode::Checkpoint];
        let is_own = !shared.contains(&self.code) || self.is_of_own_files();
        self.rank.or(is_own.then_some(own))
    }

    /// Returns the ranks that caused it, as far as they are known.
    pub(crate) fn causes(&self) -> Vec<usize> {
        let operation = |cause: &(dyn std::error::Error + 'static)| {
            cause.downcast_ref().map(|error: &collectives::Error| error.missing_ranks().to_vec())
        };
        let missing = self.error.chain().find_map(operation).unwrap_or_default();
        if missing.is_empty() { self.rank.into_iter().collect() } else { missing }
    }

    /// Returns whether the GPU of this rank, or its driver, failed.
    pub(crate) fn is_of_device(&self) -> bool {
        self.error.chain().any(|cause| cause.is::<device::cuda::Error>())
    }

    /// Returns whether files failed on this rank, not on another rank that reported it.
    fn is_of_own_files(&self) -> bool {
        use checkpoint::Error::{Damaged, Io, Mismatch, UnsupportedFormat};
        let cause = self.error.downcast_ref();
        matches!(
            cause,
            Some(Io { .. } | Damaged { .. } | Mismatch { .. } | UnsupportedFormat { .. })
        )
    }

    /// Adds the step, unless there is one.
    #[must_use]
    pub fn at_step(mut self, step: u64) -> Self {
        self.step = self.step.or(Some(step));
        self
    }

    /// Sets the rank that caused the failure.
    #[must_use]
    pub(crate) fn caused_by(mut self, rank: usize) -> Self {
        self.rank = Some(rank);
        self
    }

    /// Adds an outer message.
    #[must_use]
    pub fn context(mut self, message: impl fmt::Display + Send + Sync + 'static) -> Self {
        self.error = self.error.context(message);
        self
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The text of some errors already includes their cause.
        let mut text = String::new();
        for cause in self.error.chain().map(ToString::to_string) {
            if text.is_empty() {
                text = cause;
            } else if !text.contains(&cause) {
                text = format!("{text}: {cause}");
            }
        }
        formatter.write_str(&text)
    }
}

impl From<models::Error> for Failure {
    /// Converts an error of a model. Weights that were not gathered are a failed collective
    /// operation.
    fn from(error: models::Error) -> Self {
        let error = match error {
            models::Error::Exchange(cause) => match cause.downcast::<collectives::Error>() {
                Ok(cause) => return (*cause).into(),
                Err(cause) => models::Error::Exchange(cause),
            },
            models::Error::Device(cause) => return cause.into(),
            error => error,
        };
        let code = match &error {
            models::Error::Invalid { .. }
            | models::Error::Parse { .. }
            | models::Error::Unsupported { .. } => ExitCode::Usage,
            _ => ExitCode::Internal,
        };
        Self::new(code, error)
    }
}

impl From<collectives::Error> for Failure {
    /// Converts a failed collective operation: a lost peer, unless this rank's device or libraries
    /// failed.
    fn from(error: collectives::Error) -> Self {
        let code = match &error {
            collectives::Error::Start { .. } => ExitCode::Environment,
            collectives::Error::Device { source, .. } => code_of_device(source),
            _ => ExitCode::PeerLost,
        };
        let rank = error.missing_ranks().first().copied();
        Self { rank, ..Self::new(code, error) }
    }
}

impl From<device::cuda::Error> for Failure {
    /// Converts an error of a device: the device or its library is missing or broken, or this
    /// program uses it wrongly.
    fn from(error: device::cuda::Error) -> Self {
        Self::new(code_of_device(&error), error)
    }
}

fn code_of_device(error: &device::cuda::Error) -> ExitCode {
    if error.is_of_machine() { ExitCode::Environment } else { ExitCode::Internal }
}

impl From<std::io::Error> for Failure {
    fn from(error: std::io::Error) -> Self {
        Self::new(ExitCode::Internal, error)
    }
}

impl From<IoError> for Failure {
    /// Converts an error of reading or writing a file or folder of a run.
    fn from(error: IoError) -> Self {
        Self::new(code_of_file(&error), error)
    }
}

/// Returns the exit code of a file error. A file that is too large or not regular was not written
/// by a run: bad input.
fn code_of_file(error: &IoError) -> ExitCode {
    let is_foreign = error.source.kind() == std::io::ErrorKind::InvalidData;
    if is_foreign { ExitCode::Usage } else { ExitCode::Internal }
}

impl From<threads::Error> for Failure {
    fn from(error: threads::Error) -> Self {
        Self::new(ExitCode::Environment, error)
    }
}

impl From<DataError> for Failure {
    /// Converts an error of data files, which are an input of the user.
    fn from(error: DataError) -> Self {
        Self::new(ExitCode::Usage, error)
    }
}

impl From<record::Error> for Failure {
    /// Converts an error of writing or reading the record or steps.
    fn from(error: record::Error) -> Self {
        let code = match &error {
            record::Error::Io(error) => code_of_file(error),
            record::Error::Golden { .. } | record::Error::Benchmark { .. } => ExitCode::Usage,
            _ => ExitCode::Internal,
        };
        Self::new(code, error)
    }
}

impl From<GoldenMiss> for Failure {
    /// Converts a miss of golden losses: the run did not compute its workload.
    fn from(miss: GoldenMiss) -> Self {
        let (step, rank) = (miss.step, miss.far.map(|far| far.rank));
        Self { rank, ..Self::new(ExitCode::Numerical, miss).at_step(step) }
    }
}

impl From<checkpoint::Error> for Failure {
    /// Converts an error of a checkpoint, or of a peer that was lost meanwhile.
    fn from(error: checkpoint::Error) -> Self {
        let code = match &error {
            checkpoint::Error::Peers { .. } => ExitCode::PeerLost,
            _ => ExitCode::Checkpoint,
        };
        let rank = error.rank();
        Self { rank, ..Self::new(code, error) }
    }
}

#[cfg(test)]
mod tests {
    use record::golden::{Golden, GoldenWatch};

    use super::*;

    #[test]
    fn a_missed_golden_loss_is_numerical_and_names_step_and_rank() {
        let golden = Golden {
            workload: "smoke".to_owned(),
            workload_id: "0123456789ab".to_owned(),
            device: "cpu".to_owned(),
            tokens_per_step: 4096,
            tolerance_nats: 0.01,
            steps: vec![5],
            losses: vec![5.0],
            exact: Vec::new(),
        };
        let miss = GoldenWatch::new(golden).observe(5, 9.0, [5.1, 12.9].into_iter()).unwrap_err();
        let failure = Failure::from(miss);
        assert_eq!((failure.code, failure.step), (ExitCode::Numerical, Some(5)));
        assert_eq!(failure.rank, Some(1));
        assert!(failure.error.is::<GoldenMiss>());
    }
}
