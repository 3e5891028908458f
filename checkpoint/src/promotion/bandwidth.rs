//! A limit on the bytes per second that all promotions of a process send together.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Token bucket that holds the tokens of one second. It may be overdrawn: the sender then waits
/// until the debt is paid, so that a piece of any size passes.
#[derive(Debug)]
pub(super) struct Bandwidth {
    /// `None` is unlimited.
    bytes_per_second: Option<f64>,
    bucket: Mutex<Bucket>,
}

#[derive(Debug)]
struct Bucket {
    tokens: f64,
    filled: Instant,
}

impl Bandwidth {
    pub(super) fn new(bytes_per_second_max: Option<u64>, now: Instant) -> Self {
        let bytes_per_second = bytes_per_second_max.map(|bytes| bytes.max(1) as f64);
        let tokens = bytes_per_second.unwrap_or(0.0);
        Self { bytes_per_second, bucket: Mutex::new(Bucket { tokens, filled: now }) }
    }

    /// Returns how long to wait before so many bytes are sent.
    pub(super) fn take(&self, bytes: u64, now: Instant) -> Duration {
        let Some(rate) = self.bytes_per_second else { return Duration::ZERO };
        let mut bucket = self.bucket.lock().unwrap_or_else(PoisonError::into_inner);
        let refill = now.saturating_duration_since(bucket.filled).as_secs_f64() * rate;
        bucket.tokens = (bucket.tokens + refill).min(rate) - bytes as f64;
        bucket.filled = bucket.filled.max(now);
        Duration::from_secs_f64((-bucket.tokens / rate).max(0.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RATE: u64 = 1000;

    /// Two senders that wait as required never send more than the rate and the burst, nor much
    /// less.
    #[test]
    fn senders_together_keep_to_the_rate() {
        let start = Instant::now();
        let bandwidth = Bandwidth::new(Some(RATE), start);
        let sizes = [700, 1900];
        let mut next = [start; 2];
        let mut sent = 0;
        while next[0].min(next[1]) < start + Duration::from_secs(60) {
            let sender = usize::from(next[1] < next[0]);
            let now = next[sender];
            next[sender] = now + bandwidth.take(sizes[sender], now);
            sent += sizes[sender];
            let seconds = next[sender].duration_since(start).as_secs_f64();
            assert!(sent as f64 <= RATE as f64 * (seconds + 1.0) + 1.0, "{sent} in {seconds}");
        }
        assert!(sent >= 58 * RATE, "{sent}");
    }

    #[test]
    fn an_idle_bucket_holds_one_second() {
        let start = Instant::now();
        let bandwidth = Bandwidth::new(Some(RATE), start);
        let later = start + Duration::from_secs(1000);
        assert_eq!(bandwidth.take(RATE, later), Duration::ZERO);
        assert_eq!(bandwidth.take(RATE, later), Duration::from_secs(1));
        assert_eq!(Bandwidth::new(None, start).take(u64::MAX, start), Duration::ZERO);
    }
}
