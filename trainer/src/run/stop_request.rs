//! Requests to stop: the last step that follows from one, and the immediate report.
//!
//! The signal arrives while the training thread is in a step, so another thread reports it, from
//! the state that the training thread has published.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use launch::signals::{StopEffect, StopSignal};

use telemetry::report_stop;
use telemetry::{Events, StopRequest};

/// Progress of the run, for the thread that reports a request to stop; clones share their state.
#[derive(Debug, Clone)]
pub(super) struct StopPoint(Arc<Mutex<Situation>>);

/// State that the answer to a stop request depends on.
#[derive(Debug, Clone)]
struct Situation {
    stage: Stage,
    /// Newest committed step.
    committed_step: Option<u64>,
    /// Time of the last step without its evaluation and its saves.
    step_time: Option<Duration>,
    /// Steps between evaluations.
    evaluate_every: Option<u64>,
    /// Time of the last evaluation.
    evaluation_time: Option<Duration>,
    /// Time of the last save until its commit.
    save_time: Option<Duration>,
    /// Time that a stop waits for copies; `None` without farther tiers.
    copy_time: Option<Duration>,
    /// Events of the run that trains.
    events: Option<Events>,
}

#[derive(Debug, Clone, Copy)]
enum Stage {
    /// Before the first step.
    Starting,
    /// In a step, or after it and before the next.
    Step { step: u64, began: Instant, vote: Vote },
    /// After the last step.
    Ending { last_step: u64 },
}

/// Vote of this rank in a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Vote {
    /// The last vote of the step is pending.
    Open,
    /// The step is the last one.
    Stop,
    /// The step is not the last one: a signal from now on ends the run with the next step.
    Continue,
}

impl StopPoint {
    pub(super) fn new() -> Self {
        Self(Arc::new(Mutex::new(Situation {
            stage: Stage::Starting,
            committed_step: None,
            step_time: None,
            evaluate_every: None,
            evaluation_time: None,
            save_time: None,
            copy_time: None,
            events: None,
        })))
    }

    fn lock(&self) -> MutexGuard<'_, Situation> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Starts a run that reports to `events`.
    pub(super) fn start(&self, events: &Events) {
        let mut situation = self.lock();
        let events = Some(events.clone());
        *situation = Situation { events, ..Self::new().lock().clone() };
    }

    /// Begins the steps, with an evaluation every `evaluate_every`. `committed_step` was restored;
    /// a stop waits `copy_time` for copies.
    pub(super) fn begin(
        &self,
        committed_step: Option<u64>,
        evaluate_every: Option<u64>,
        copy_time: Option<Duration>,
    ) {
        let mut situation = self.lock();
        situation.evaluate_every = evaluate_every;
        situation.committed_step = committed_step;
        situation.copy_time = copy_time;
    }

    /// Begins a step.
    pub(super) fn begin_step(&self, step: u64) {
        self.lock().stage = Stage::Step { step, began: Instant::now(), vote: Vote::Open };
    }

    /// Returns the vote of this rank, by whether a stop `is_requested` now. A later request is
    /// reported for the next step, unless another vote of this step `follows`.
    pub(super) fn vote(&self, is_requested: impl FnOnce() -> bool, follows: bool) -> bool {
        let mut situation = self.lock();
        let is_requested = is_requested();
        if let Stage::Step { vote, .. } = &mut situation.stage {
            *vote = match (is_requested, follows) {
                (true, _) => Vote::Stop,
                (false, true) => Vote::Open,
                (false, false) => Vote::Continue,
            };
        }
        is_requested
    }

    /// Records the time of a step, and of the evaluation after it.
    pub(super) fn timed_step(&self, time: Duration, evaluation: Option<Duration>) {
        let mut situation = self.lock();
        situation.step_time = Some(time);
        situation.evaluation_time = evaluation.or(situation.evaluation_time);
    }

    /// Records a committed save and its time.
    pub(super) fn committed(&self, step: u64, time: Option<Duration>) {
        let mut situation = self.lock();
        situation.committed_step = Some(step);
        situation.save_time = time.or(situation.save_time);
    }

    /// Records that no step follows.
    pub(super) fn end_steps(&self, last_step: u64) {
        self.lock().stage = Stage::Ending { last_step };
    }

    /// Reports a signal immediately.
    pub(super) fn report(&self, signal: StopSignal) {
        let situation = self.lock().clone();
        let request = situation.request(signal, Instant::now());
        // Telemetry may have ended.
        let is_reported = situation.events.is_some_and(|events| events.stop_requested(&request));
        if !is_reported {
            report_stop(&request);
        }
    }
}

impl Situation {
    fn request(&self, signal: StopSignal, now: Instant) -> StopRequest {
        let StopSignal { name, effect } = signal;
        let lost = self.lost();
        let text = match effect {
            StopEffect::Ends => {
                format!("second {name}: ends at once; {lost}; the same command resumes")
            }
            StopEffect::None => format!("{name}: stops already; {}", self.follows(now)),
            StopEffect::Stops => {
                let ends_it = match name {
                    "SIGINT" => "a second SIGINT (Ctrl-C) ends at once",
                    _ => "SIGINT (Ctrl-C) twice ends at once",
                };
                format!("stop requested ({name}): {}; {ends_it}: {lost}", self.follows(now))
            }
        };
        StopRequest {
            text,
            signal: name,
            last_step: self.last_step().filter(|_| effect != StopEffect::Ends),
            expected_seconds: self
                .expected(now)
                .filter(|_| effect != StopEffect::Ends)
                .map(|time| time.as_secs_f64()),
            committed_step: self.committed_step,
            ends_at_once: effect == StopEffect::Ends,
        }
    }

    /// Returns the step after which the run ends, if it is known.
    fn last_step(&self) -> Option<u64> {
        match self.stage {
            Stage::Starting => None,
            Stage::Step { step, vote, .. } => Some(step + u64::from(vote == Vote::Continue)),
            Stage::Ending { last_step } => Some(last_step),
        }
    }

    /// Returns whether an evaluation follows a step.
    fn is_evaluated(&self, step: u64) -> bool {
        self.evaluate_every.is_some_and(|steps| step.is_multiple_of(steps))
    }

    /// Returns the time of a step, with the evaluation after it if one was timed.
    fn time_of(&self, step: u64) -> Option<Duration> {
        let evaluation = self.evaluation_time.filter(|_| self.is_evaluated(step));
        Some(self.step_time? + evaluation.unwrap_or_default())
    }

    /// Returns the time of the steps that are left; `None` if no step was timed.
    fn steps_left(&self, now: Instant) -> Option<Duration> {
        match self.stage {
            Stage::Starting => None,
            Stage::Step { step, began, vote } => {
                let this = self.time_of(step)?.saturating_sub(now.duration_since(began));
                match vote {
                    Vote::Continue => Some(this + self.time_of(step + 1)?),
                    Vote::Open | Vote::Stop => Some(this),
                }
            }
            Stage::Ending { .. } => Some(Duration::ZERO),
        }
    }

    /// Returns how long the run still takes, without copies; `None` if it is not known yet.
    fn expected(&self, now: Instant) -> Option<Duration> {
        Some(self.steps_left(now)? + self.save_time.unwrap_or_default())
    }

    /// Describes what the run does before it ends.
    fn follows(&self, now: Instant) -> String {
        let what = match self.last_step() {
            None => "the run starts; it makes one step and saves it".to_owned(),
            Some(step) if matches!(self.stage, Stage::Ending { .. }) => {
                format!("step {step} was the last one, its save is being finished")
            }
            Some(step) if self.is_evaluated(step) => {
                format!("finishes step {step} and its evaluation, and saves it")
            }
            Some(step) => format!("finishes step {step} and saves it"),
        };
        let time = match self.expected(now) {
            None => "no step has been timed yet".to_owned(),
            Some(time) => {
                let seconds = time.as_secs_f64().ceil().max(1.0);
                format!("expected in about {seconds} s{}", self.not_timed())
            }
        };
        let copies = self.copy_time.map_or_else(String::new, |time| {
            format!(", then up to {} s for copies to farther tiers", time.as_secs())
        });
        format!("{what}; {time}{copies}")
    }

    /// Describes the parts that follow and were never timed.
    fn not_timed(&self) -> &'static str {
        let is_in_step = matches!(self.stage, Stage::Step { .. });
        let evaluates = is_in_step && self.last_step().is_some_and(|step| self.is_evaluated(step));
        match (evaluates && self.evaluation_time.is_none(), self.save_time.is_none()) {
            (true, true) => ", a first evaluation and a first save",
            (true, false) => " and a first evaluation",
            (false, true) => " and a first save",
            (false, false) => "",
        }
    }

    /// Describes what an immediate end loses.
    fn lost(&self) -> String {
        let first = self.committed_step.unwrap_or(0) + 1;
        let newest = match self.committed_step {
            None => "no checkpoint is committed".to_owned(),
            Some(step) => format!("the newest checkpoint is step {step}"),
        };
        let made = match self.stage {
            // The checkpoint that will be restored may not be known yet.
            Stage::Starting if self.committed_step.is_none() => {
                return "no step of this attempt is lost".to_owned();
            }
            Stage::Starting => return newest,
            Stage::Step { step, .. } => step,
            Stage::Ending { last_step } => last_step,
        };
        match made {
            made if made < first => format!("no step is lost, {newest}"),
            made if made == first => format!("step {first} is lost, {newest}"),
            made => format!("steps {first} to {made} are lost, {newest}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TERM: StopSignal = StopSignal { name: "SIGTERM", effect: StopEffect::Stops };

    fn text(point: &StopPoint, now: Instant) -> String {
        point.lock().request(TERM, now).text
    }

    #[test]
    fn the_reported_step_is_the_one_whose_vote_reads_the_request() {
        let point = StopPoint::new();
        let is_in = |part: &str, after_seconds| {
            let text = text(&point, Instant::now() + Duration::from_secs(after_seconds));
            assert!(text.contains(part), "{part}: {text}");
        };
        is_in("makes one step and saves it; no step has been timed yet; ", 0);
        is_in("SIGINT (Ctrl-C) twice ends at once: no step of this attempt is lost", 0);
        point.begin(Some(40), None, Some(Duration::from_secs(20)));
        point.timed_step(Duration::from_secs(19), None);
        point.begin_step(42);
        is_in("finishes step 42 and saves it; expected in about 15 s and a first save, then ", 4);
        is_in("steps 41 to 42 are lost, the newest checkpoint is step 40", 0);
        point.committed(41, Some(Duration::from_secs(2)));
        is_in("step 42 and saves it; expected in about 17 s, then up to 20 s for copies", 4);
        is_in("twice ends at once: step 42 is lost, ", 0);
        assert!(!point.vote(|| false, true), "an evaluation follows");
        is_in("finishes step 42", 0);
        assert!(!point.vote(|| false, false));
        is_in("finishes step 43 and saves it; expected in about 36 s, ", 4);
        point.begin_step(43);
        assert!(point.vote(|| true, false));
        is_in("finishes step 43", 0);
        point.end_steps(43);
        is_in("step 43 was the last one, its save is being finished; expected in about 2 s", 0);
    }

    #[test]
    fn an_evaluation_that_is_due_is_counted() {
        let point = StopPoint::new();
        let is_in = |part: &str, after_seconds| {
            let text = text(&point, Instant::now() + Duration::from_secs(after_seconds));
            assert!(text.contains(part), "{part}: {text}");
        };
        point.begin(None, Some(10), None);
        point.timed_step(Duration::from_secs(2), None);
        point.begin_step(10);
        let first = "finishes step 10 and its evaluation, and saves it; expected in about 2 s, \
                     a first evaluation and a first save; ";
        is_in(first, 0);
        point.timed_step(Duration::from_secs(2), Some(Duration::from_secs(30)));
        point.committed(10, Some(Duration::from_secs(1)));
        point.begin_step(11);
        is_in("finishes step 11 and saves it; expected in about 3 s; ", 0);
        point.begin_step(19);
        assert!(!point.vote(|| false, false));
        is_in("finishes step 20 and its evaluation, and saves it; expected in about 35 s; ", 0);
        point.begin_step(20);
        assert!(point.vote(|| true, true));
        is_in("finishes step 20 and its evaluation, and saves it; expected in about 33 s; ", 0);
        is_in("expected in about 26 s; ", 7);
        assert!(!point.vote(|| false, false), "after the evaluation");
        is_in("finishes step 21 and saves it; expected in about 3 s; ", 32);
    }
}
