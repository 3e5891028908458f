//! Detection of stores that do not answer for long. The program that uses this library reports
//! them: the library prints nothing by itself.

use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::time::{Duration, Instant};

use tokio::time::timeout;

/// Silence of a store that is reported, beside the time for what is being sent to it.
const REPORT_AFTER: Duration = Duration::from_secs(5);

/// Interval of checks while a call waits.
const CHECK_EVERY: Duration = Duration::from_millis(250);

static LISTENER: OnceLock<fn(&str)> = OnceLock::new();

/// Registers `listener`, which gets a sentence about each store that has not answered for 5 s,
/// beside the time for a body in flight to it: once, until it answers again. It is called on a
/// thread that waits for the store.
pub fn on_silence(listener: fn(&str)) {
    let _ = LISTENER.set(listener);
}

/// Time since the last answer of a store, in all calls to it: an answer is the head of a response
/// that is not retried, or bytes of its body.
#[derive(Debug, Default)]
pub(super) struct Silence {
    pub(super) last_answer: Option<Instant>,
    last_failure: Option<(Instant, String)>,
    /// Times that the bodies of requests in flight may take.
    uploads: Vec<Weak<Duration>>,
    is_reported: bool,
}

impl Silence {
    pub(super) fn answered(&mut self, now: Instant) {
        self.last_answer = Some(now);
        self.is_reported = false;
    }

    /// Notes a failed try; more may follow.
    pub(super) fn failed(&mut self, now: Instant, cause: String) {
        self.last_failure = Some((now, cause));
    }

    /// Allows this time for the body of a request, until the returned handle is dropped.
    pub(super) fn allow(&mut self, upload: Duration) -> Arc<Duration> {
        let upload = Arc::new(upload);
        self.uploads.retain(|upload| upload.strong_count() > 0);
        self.uploads.push(Arc::downgrade(&upload));
        upload
    }

    /// Sentence about a store that has been silent for too long, in a call that started then.
    fn report(&mut self, url: &str, started: Instant, now: Instant) -> Option<String> {
        let since = self.last_answer.map_or(started, |answer| answer.max(started));
        let upload = self.uploads.iter().filter_map(Weak::upgrade).max();
        let allowed = REPORT_AFTER + upload.as_deref().copied().unwrap_or_default();
        if self.is_reported || now < since + allowed {
            return None;
        }
        self.is_reported = true;
        let failure = self.last_failure.as_ref().filter(|(at, _)| *at >= since);
        let tries = match failure {
            Some((_, cause)) => format!("the last try: {cause}"),
            None => "no try has failed".to_owned(),
        };
        Some(format!("{url}: no answer for {} s; {tries}", (now - since).as_secs()))
    }
}

pub(super) fn lock(silence: &Mutex<Silence>) -> MutexGuard<'_, Silence> {
    silence.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Waits for the end of a call to the store at `url`, and reports silence meanwhile.
pub(super) async fn watch<T>(
    silence: &Mutex<Silence>,
    url: &str,
    call: impl Future<Output = T>,
) -> T {
    let started = Instant::now();
    let mut call = pin!(call);
    loop {
        if let Ok(ended) = timeout(CHECK_EVERY, &mut call).await {
            return ended;
        }
        let report = lock(silence).report(url, started, Instant::now());
        // The lock is free again: threads that talk to the store do not wait for the listener.
        if let (Some(text), Some(listener)) = (report, LISTENER.get()) {
            listener(&text);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const URL: &str = "s3://bucket/run";

    /// The times of a test, in seconds after the start of a call.
    fn clock() -> impl Fn(u64) -> Instant {
        let started = Instant::now();
        move |seconds| started + Duration::from_secs(seconds)
    }

    #[test]
    fn silence_is_reported_once_until_the_store_answers() {
        let at = clock();
        let mut silence = Silence::default();
        assert_eq!(silence.report(URL, at(0), at(4)), None);
        silence.failed(at(4), "answered 503".to_owned());
        let report = silence.report(URL, at(0), at(5));
        assert_eq!(
            report.unwrap(),
            "s3://bucket/run: no answer for 5 s; the last try: answered 503"
        );
        assert_eq!(silence.report(URL, at(0), at(60)), None);
        assert_eq!(silence.report(URL, at(50), at(60)), None, "another call, the same silence");
        silence.answered(at(61));
        let report = silence.report(URL, at(60), at(67));
        assert_eq!(report.unwrap(), "s3://bucket/run: no answer for 6 s; no try has failed");
    }

    #[test]
    fn a_call_of_many_requests_may_take_long() {
        let at = clock();
        let mut silence = Silence::default();
        for second in 1..60 {
            silence.answered(at(second));
            assert_eq!(silence.report(URL, at(0), at(second + 4)), None);
        }
        assert!(silence.report(URL, at(0), at(64)).is_some());
    }

    #[test]
    fn the_failure_of_an_earlier_call_is_not_the_cause() {
        let at = clock();
        let mut silence = Silence::default();
        silence.failed(at(0), "answered 503".to_owned());
        let report = silence.report(URL, at(7200), at(7205)).unwrap();
        assert!(report.ends_with("; no try has failed"), "{report}");
    }

    #[test]
    fn a_body_has_its_time_only_while_it_is_in_flight() {
        let at = clock();
        let mut silence = Silence::default();
        let small = silence.allow(Duration::from_secs(8));
        let large = silence.allow(Duration::from_secs(64));
        assert_eq!(silence.report(URL, at(0), at(68)), None);
        drop(large);
        assert_eq!(silence.report(URL, at(0), at(12)), None);
        drop(small);
        assert!(silence.report(URL, at(0), at(6)).is_some());
    }
}
