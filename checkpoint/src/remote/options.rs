//! Time limits of calls to an object store, and settings beside the environment.

use std::time::Duration;

use object_store::{BackoffConfig, RetryConfig};

/// Deadlines of calls to an object store, and its settings.
///
/// Time is for waiting and for moving bytes, and they are allowed separately: a timeout for both
/// either cuts off large parts on slow links or waits minutes for a server that is gone.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RemoteOptions {
    /// Time for which a call continues without success, in addition to the time for its bytes.
    pub patience: Duration,
    /// Slowest rate of one connection that is not yet a failure.
    pub slowest_bytes_per_second: u64,
    /// Size of the largest object or range that is read in one call.
    pub largest_body_bytes: u64,
    /// Credentials and settings by the names of their environment variables, before those of the
    /// environment.
    pub settings: Vec<(String, String)>,
}

impl Default for RemoteOptions {
    fn default() -> Self {
        Self {
            patience: Duration::from_secs(60),
            slowest_bytes_per_second: 1 << 20,
            largest_body_bytes: 64 << 20,
            settings: Vec::new(),
        }
    }
}

impl RemoteOptions {
    /// Timeout of one request: a third of the patience, so that a lost one is sent again.
    pub(super) fn request_timeout(&self, body_bytes: u64) -> Duration {
        self.patience / 3 + self.transfer(body_bytes)
    }

    /// Deadline of a whole call. Retries end before, with the error of the last one.
    pub(super) fn deadline(&self, body_bytes: u64) -> Duration {
        self.patience * 3 / 2 + self.transfer(body_bytes) * 2
    }

    /// The last retry starts after two thirds of the patience, and takes at most a third.
    pub(super) fn retries(&self) -> RetryConfig {
        RetryConfig {
            backoff: BackoffConfig {
                init_backoff: Duration::from_millis(100),
                max_backoff: Duration::from_secs(5).min(self.patience / 6),
                base: 2.0,
            },
            max_retries: usize::MAX, // time is the limit
            retry_timeout: self.patience * 2 / 3,
        }
    }

    /// Longest time that this many bytes may take.
    pub(super) fn transfer(&self, bytes: u64) -> Duration {
        Duration::from_secs_f64(bytes as f64 / self.slowest_bytes_per_second.max(1) as f64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_large_part_has_time_and_a_small_request_does_not_wait_for_it() {
        let options = RemoteOptions::default();
        assert_eq!(options.request_timeout(0), Duration::from_secs(20));
        assert_eq!(options.request_timeout(64 << 20), Duration::from_secs(84));
        assert!(options.deadline(0) > options.retries().retry_timeout + options.request_timeout(0));
    }
}
