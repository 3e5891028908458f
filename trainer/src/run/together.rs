//! Work of unbounded duration, such as a download or copies to a slow tier. The other ranks wait
//! for it as long as this rank answers; only a rank that does not answer is lost.

use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

use device::threads;
use serde::{Deserialize, Serialize};

use crate::failure::{Failure, Outcome};
use crate::ranks::Ranks;
use record::ExitCode;
use record::text::list;

/// Longest interval of answers.
const ANSWER_EVERY: Duration = Duration::from_millis(500);

/// Longest wait for ranks that is not reported.
const REPORT_AFTER: Duration = Duration::from_secs(5);

/// Work that all ranks end together.
pub(super) struct Together<'a> {
    pub(super) ranks: Ranks<'a>,
    /// Completion of the sentence "waits for rank 3 to".
    pub(super) purpose: &'a str,
    /// Time that a rank that is done waits for the others.
    pub(super) timeout: Duration,
    /// Checks for a stop request: once any rank has one, ranks that are done wait no longer than
    /// the timeout of `ranks`.
    pub(super) stop_requested: &'a (dyn Fn() -> bool + Sync),
}

/// Progress of a rank.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
enum State {
    Working,
    Done,
    Failed(ExitCode),
}

/// Answer of a rank.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
struct Answer {
    state: State,
    is_asked_to_stop: bool,
    /// True if the rank has waited long enough. All ranks learn that in the same round, so that
    /// none is left in the next one.
    gives_up: bool,
}

impl Together<'_> {
    /// Does this rank's part of the work, and returns when all ranks have done theirs. Collective;
    /// `work` must not be.
    ///
    /// # Errors
    /// Those of `work`, on other ranks with the same exit code, and one if a rank does not answer
    /// within the timeout of the ranks or takes too long.
    pub(super) fn run<T>(&self, work: impl FnOnce() -> Outcome<T>) -> Outcome<T> {
        if self.ranks.is_alone() {
            return work();
        }
        std::thread::scope(|scope| {
            let (ended, end) = mpsc::channel();
            let answers = threads::spawn_scoped(scope, "answers", move || self.answer(&end));
            let own = work(); // also where nobody answers for this rank
            let answers = answers?;
            let state =
                own.as_ref().map_or_else(|failure| State::Failed(failure.code), |_| State::Done);
            let _ = ended.send(state); // nobody listens after a failure of another rank
            let others = answers.join().expect("answers do not panic");
            own.and_then(|own| others.map(|()| own))
        })
    }

    /// Answers until all ranks are done, or one rank has failed or gives up.
    fn answer(&self, end: &Receiver<State>) -> Outcome<()> {
        let Self { ranks, purpose, .. } = *self;
        let started = Instant::now();
        let mut waiting = Waiting::default();
        let mut is_reported = false;
        loop {
            if waiting.since.is_none() {
                waiting.await_own_end(end, ANSWER_EVERY.min(ranks.timeout / 4));
            }
            let own = Answer {
                state: waiting.state,
                is_asked_to_stop: (self.stop_requested)(),
                gives_up: waiting.gives_up(self.timeout, ranks.timeout),
            };
            let answers = ranks.gather(&own)?;
            if answers.iter().any(|answer| answer.is_asked_to_stop) {
                waiting.asked_to_stop.get_or_insert_with(Instant::now);
            }
            for (rank, answer) in answers.iter().enumerate() {
                if let State::Failed(code) = answer.state {
                    let text = format!("rank {rank} could not {purpose}; see its error");
                    return Err(Failure::new(code, anyhow::anyhow!(text)).caused_by(rank));
                }
            }
            let is_working = |rank: &usize| answers[*rank].state == State::Working;
            let working: Vec<_> = (0..answers.len()).filter(is_working).collect();
            let Some(&first) = working.first() else { return Ok(()) };
            let numbers: Vec<_> = working.iter().map(ToString::to_string).collect();
            let noun = if working.len() == 1 { "rank" } else { "ranks" };
            let waits = format!("waits for {noun} {} to {purpose}", list(&numbers));
            if answers.iter().any(|answer| answer.gives_up) {
                let error = anyhow::anyhow!("the run {waits}: too long");
                return Err(Failure::new(ExitCode::PeerLost, error).caused_by(first));
            }
            if ranks.rank() == 0 && !is_reported && started.elapsed() >= REPORT_AFTER {
                is_reported = true;
                tracing::info!("{waits}");
            }
        }
    }
}

/// State of this rank, while it waits for the other ranks.
struct Waiting {
    state: State,
    /// Time at which its own work ended.
    since: Option<Instant>,
    /// Time at which it learned of a stop request.
    asked_to_stop: Option<Instant>,
}

impl Default for Waiting {
    fn default() -> Self {
        Self { state: State::Working, since: None, asked_to_stop: None }
    }
}

impl Waiting {
    /// Waits for the end of its own work until the next answer is due.
    fn await_own_end(&mut self, end: &Receiver<State>, limit: Duration) {
        self.state = match end.recv_timeout(limit) {
            Ok(state) => state,
            Err(RecvTimeoutError::Timeout) => return,
            Err(RecvTimeoutError::Disconnected) => State::Failed(ExitCode::Internal), // a panic
        };
        self.since = Some(Instant::now());
    }

    fn gives_up(&self, timeout: Duration, after_request: Duration) -> bool {
        let is_over = |since: Option<Instant>, limit| since.is_some_and(|it| it.elapsed() > limit);
        is_over(self.since, timeout)
            || self.since.is_some() && is_over(self.asked_to_stop, after_request)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::thread::{self, sleep};

    use collectives::{Collective, Threads};

    use super::*;

    /// Longer than a busy machine keeps a rank from its answers.
    const TIMEOUT: Duration = Duration::from_secs(2);

    fn together<'a>(
        collective: &'a dyn Collective,
        timeout: Duration,
        stop_requested: &'a (dyn Fn() -> bool + Sync),
    ) -> Together<'a> {
        let ranks = Ranks::new(collective, TIMEOUT);
        Together { ranks, purpose: "read", timeout, stop_requested }
    }

    /// Returns the outcomes of two ranks. The work is told whether a rank has ended.
    fn on_two_ranks(
        timeout: Duration,
        stop_requested: &(dyn Fn() -> bool + Sync),
        work: impl Fn(usize, &AtomicBool) -> Outcome<usize> + Sync,
    ) -> [Outcome<usize>; 2] {
        let ranks = Threads::group(2);
        let has_ended = AtomicBool::new(false);
        let (work, has_ended) = (&work, &has_ended);
        thread::scope(|scope| {
            let of_rank = |rank| {
                scope.spawn(move || {
                    let together = together(rank, timeout, stop_requested);
                    let outcome = together.run(|| work(together.ranks.rank(), has_ended));
                    has_ended.store(true, Ordering::SeqCst);
                    outcome
                })
            };
            let started: Vec<_> = ranks.iter().map(|rank: &Threads| of_rank(rank)).collect();
            let outcomes: Vec<_> = started.into_iter().map(|it| it.join().unwrap()).collect();
            outcomes.try_into().unwrap()
        })
    }

    /// Takes longer than the timeout on rank 1.
    fn slow(rank: usize, _: &AtomicBool) -> Outcome<usize> {
        sleep(TIMEOUT * 5 / 4 * rank as u32);
        Ok(rank)
    }

    /// Takes longer on rank 1 than rank 0 waits, but not for ever.
    fn too_slow(rank: usize, has_ended: &AtomicBool) -> Outcome<usize> {
        let end = Instant::now() + Duration::from_secs(60);
        while rank == 1 && !has_ended.load(Ordering::SeqCst) && Instant::now() < end {
            sleep(Duration::from_millis(5));
        }
        Ok(rank)
    }

    #[test]
    fn ranks_wait_longer_than_their_timeout_for_one_that_answers() {
        let outcomes = on_two_ranks(Duration::MAX, &|| false, slow);
        assert_eq!(outcomes.map(Outcome::unwrap), [0, 1]);
    }

    #[test]
    fn patience_and_a_stop_request_limit_the_wait() {
        let limited = on_two_ranks(TIMEOUT / 4, &|| false, too_slow);
        let asked_to_stop = on_two_ranks(Duration::MAX, &|| true, too_slow);
        for failure in limited.into_iter().chain(asked_to_stop).map(Outcome::unwrap_err) {
            assert_eq!((failure.code, failure.rank), (ExitCode::PeerLost, Some(1)));
            let text = failure.error.to_string();
            assert_eq!(text, "the run waits for rank 1 to read: too long");
        }
    }

    #[test]
    fn a_failure_ends_all_ranks_with_its_code() {
        let outcomes = on_two_ranks(Duration::MAX, &|| false, |rank, _| match rank {
            0 => Ok(0),
            _ => Err(Failure::usage("no such file")),
        });
        let failures = outcomes.map(Outcome::unwrap_err);
        let texts = failures.each_ref().map(|failure| failure.error.to_string());
        assert_eq!(texts, ["rank 1 could not read; see its error", "no such file"]);
        let codes = failures.map(|failure| failure.code);
        assert_eq!(codes, [ExitCode::Usage; 2]);
    }

    #[test]
    fn a_rank_that_does_not_answer_is_lost() {
        let ranks = Threads::group(2);
        let lost = together(&ranks[0], Duration::MAX, &|| false).run(|| Ok(())).unwrap_err();
        assert_eq!(lost.code, ExitCode::PeerLost);
    }
}
