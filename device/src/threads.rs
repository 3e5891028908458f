//! Starting threads. Limits of a user or a container may prevent it; the error then has to name the
//! purpose of the thread.

use std::io;
use std::sync::Mutex;
use std::thread::{Builder, JoinHandle, Scope, ScopedJoinHandle};

use record::files::process_limits;

/// A thread that could not be started: raise a limit, or start fewer.
#[derive(Debug, thiserror::Error)]
#[error("cannot start a thread for {purpose}: {cause}{}", limits())]
pub struct Error {
    purpose: String,
    cause: io::Error,
}

impl Error {
    /// The error of a library that could not start threads.
    pub fn new(purpose: impl Into<String>, cause: io::Error) -> Self {
        Self { purpose: purpose.into(), cause }
    }

    /// Returns whether an error stems from a thread that could not be started.
    pub fn is_behind(error: &(dyn std::error::Error + 'static)) -> bool {
        let inner = error.downcast_ref::<io::Error>().and_then(io::Error::get_ref);
        error.is::<Self>() || inner.is_some_and(|inner| inner.is::<Self>())
    }
}

impl From<Error> for io::Error {
    fn from(error: Error) -> Self {
        Self::new(error.cause.kind(), error)
    }
}

fn limits() -> String {
    process_limits::of_threads().iter().map(|limit| format!("; {limit}")).collect()
}

/// Starts a thread, which gets the purpose as its name.
///
/// # Errors
/// Fails if the system has no more.
pub fn spawn<T: Send + 'static>(
    purpose: &str,
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<JoinHandle<T>, Error> {
    let started = Builder::new().name(purpose.to_owned()).spawn(work);
    started.map_err(|cause| Error::new(purpose, cause))
}

/// Starts a thread that borrows from its scope.
///
/// # Errors
/// Fails if the system has no more.
pub fn spawn_scoped<'scope, T: Send + 'scope>(
    scope: &'scope Scope<'scope, '_>,
    purpose: &str,
    work: impl FnOnce() -> T + Send + 'scope,
) -> Result<ScopedJoinHandle<'scope, T>, Error> {
    let started = Builder::new().name(purpose.to_owned()).spawn_scoped(scope, work);
    started.map_err(|cause| Error::new(purpose, cause))
}

/// Checks that so many threads can be started, for libraries that panic where they cannot.
///
/// # Errors
/// Fails if the system has fewer.
pub fn require(count: usize, purpose: &str) -> Result<(), Error> {
    let gate = Mutex::new(());
    std::thread::scope(|scope| {
        let _closed = gate.lock();
        (0..count).try_for_each(|_| {
            spawn_scoped(scope, purpose, || drop(gate.lock()))?;
            Ok(())
        })
    })
}
