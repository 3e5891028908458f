//! Work that may take any time, such as a download or copies to a slow tier. The other ranks wait for
//! it as long as this rank answers; only one that does not is lost.

use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

use device::threads;
use serde::{Deserialize, Serialize};

use crate::failure::{ExitCode, Failure, Outcome};
use crate::ranks::Ranks;
use crate::record::list;

/// Interval of answers.
const ANSWER_EVERY: Duration = Duration::from_millis(500);

/// Ranks that are waited for longer are reported.
const REPORT_AFTER: Duration = Duration::from_secs(5);

/// How far a rank is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
enum State {
    Working,
    Done,
    Failed(ExitCode),
}

/// Does this rank's part of some work, and returns when all ranks have done theirs. `purpose`
/// completes "waits for rank 3 to". Collective; `work` must not be.
///
/// # Errors
/// Those of `work`, on other ranks with the same exit code; and when a rank does not answer within
/// the timeout of `ranks`.
pub(super) fn together<T>(
    ranks: Ranks<'_>,
    purpose: &str,
    work: impl FnOnce() -> Outcome<T>,
) -> Outcome<T> {
    if ranks.is_alone() {
        return work();
    }
    std::thread::scope(|scope| {
        let (ended, end) = mpsc::channel();
        let answers =
            threads::spawn_scoped(scope, "answers", move || answer(ranks, purpose, &end))?;
        let own = work();
        let state =
            own.as_ref().map_or_else(|failure| State::Failed(failure.code), |_| State::Done);
        let _ = ended.send(state); // nobody listens after a failure of another rank
        let others = answers.join().expect("answers do not panic");
        own.and_then(|own| others.map(|()| own))
    })
}

/// Answers until all ranks are done, or one has failed.
fn answer(ranks: Ranks<'_>, purpose: &str, end: &Receiver<State>) -> Outcome<()> {
    let started = Instant::now();
    let mut own = State::Working;
    let mut is_reported = false;
    loop {
        if own == State::Working {
            own = match end.recv_timeout(ANSWER_EVERY) {
                Ok(state) => state,
                Err(RecvTimeoutError::Timeout) => State::Working,
                Err(RecvTimeoutError::Disconnected) => State::Failed(ExitCode::Internal), // a panic
            };
        }
        let states = ranks.gather(&own)?;
        for (rank, state) in states.iter().enumerate() {
            if let State::Failed(code) = state {
                let text = format!("rank {rank} could not {purpose}; see its error");
                return Err(Failure::new(*code, anyhow::anyhow!(text)).caused_by(rank));
            }
        }
        let is_working = |rank: &usize| states[*rank] == State::Working;
        let working: Vec<_> = (0..states.len()).filter(is_working).collect();
        if working.is_empty() {
            return Ok(());
        }
        if ranks.rank() == 0 && !is_reported && started.elapsed() >= REPORT_AFTER {
            is_reported = true;
            let noun = if working.len() == 1 { "rank" } else { "ranks" };
            let numbers: Vec<_> = working.iter().map(ToString::to_string).collect();
            tracing::info!("waits for {noun} {} to {purpose}", list(&numbers));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::thread::{self, sleep};

    use collectives::{Collective, Threads};

    use super::*;

    const TIMEOUT: Duration = Duration::from_secs(2);

    /// The outcomes of two ranks.
    fn on_two_ranks(work: impl Fn(usize) -> Outcome<usize> + Sync) -> [Outcome<usize>; 2] {
        let ranks = Threads::group(2);
        thread::scope(|scope| {
            let of_rank = |collective: &Threads| {
                let ranks = Ranks::new(collective, TIMEOUT);
                together(ranks, "read", || work(ranks.rank()))
            };
            let started = ranks.iter().map(|rank| scope.spawn(move || of_rank(rank)));
            let started: Vec<_> = started.collect();
            let outcomes: Vec<_> = started.into_iter().map(|it| it.join().unwrap()).collect();
            outcomes.try_into().unwrap()
        })
    }

    #[test]
    fn ranks_wait_longer_than_their_timeout_for_one_that_answers() {
        let outcomes = on_two_ranks(|rank| {
            sleep(TIMEOUT * 2 * rank as u32);
            Ok(rank)
        });
        assert_eq!(outcomes.map(Outcome::unwrap), [0, 1]);
    }

    #[test]
    fn a_failure_ends_all_ranks_with_its_code() {
        let outcomes = on_two_ranks(|rank| match rank {
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
        let own = Ranks::new(&ranks[0] as &dyn Collective, Duration::from_millis(200));
        let lost = together(own, "read", || Ok(())).unwrap_err();
        assert_eq!(lost.code, ExitCode::PeerLost);
    }
}
