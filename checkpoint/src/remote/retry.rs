//! Retries of requests that the store has answered: answers that are cut, malformed or of another
//! request, and conflicts of conditional puts.
//!
//! `object_store` sends a request again after a failed connection, a 5xx or a 429, and an error
//! inside of a 200 if it knows the error's code. It returns everything else at once.

use std::time::{Duration, Instant};

use object_store::{Error, Result};
use tokio::time::sleep;

use super::Remote;
use super::failure::{is_conflict, is_refused, is_too_large};

/// Answers to the same request before the last one is the error.
const ANSWERS_MAX: usize = 4;
const FIRST_PAUSE: Duration = Duration::from_millis(50);

impl Remote {
    /// Repeats an idempotent call that fails for a reason that may be this answer's alone.
    pub(super) async fn repeat<T>(&self, call: impl AsyncFn() -> Result<T>) -> Result<T> {
        let mut answers = 0;
        self.repeat_while(call, |error| {
            answers += 1;
            answers < ANSWERS_MAX && !is_refused(error) && !is_too_large(error)
        })
        .await
    }

    /// Repeats a conditional put while the store answers that another request for the same key is
    /// in flight, and does not say which of them wins.
    pub(super) async fn repeat_conflicts<T>(&self, put: impl AsyncFn() -> Result<T>) -> Result<T> {
        self.repeat_while(put, is_conflict).await
    }

    /// Repeats a call as long as retries of `object_store` may take; after that time it has
    /// repeated the call itself.
    async fn repeat_while<T>(
        &self,
        call: impl AsyncFn() -> Result<T>,
        mut is_transient: impl FnMut(&Error) -> bool,
    ) -> Result<T> {
        let retries = self.options.retries();
        let started = Instant::now();
        let mut pause = FIRST_PAUSE;
        loop {
            let answered = call().await;
            match &answered {
                Err(error)
                    if started.elapsed() + pause < retries.retry_timeout && is_transient(error) =>
                {
                    sleep(pause).await;
                    pause = (pause * 2).min(retries.backoff.max_backoff);
                }
                _ => return answered,
            }
        }
    }
}
