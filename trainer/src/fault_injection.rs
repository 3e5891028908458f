//! Fault injection for tests and drills: `--inject kill@step=30,rank=1,failpoint=mid-shard`.
//!
//! A fault happens once, at a step of the run's first attempt, of another named attempt, or of
//! every attempt. A slow part is slow from that step on, in every attempt. `clock` replaces the
//! times that ranks report by virtual ones (`timing/virtual_clock.rs`).

use std::fmt;
use std::str::FromStr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use checkpoint::{Failpoint, Failpoints};

use crate::bit_flip::{BitFlip, Computation, FlipKind, FlippedValue};
use crate::failure::{Failure, Outcome};
use crate::timing::virtual_clock::{Part, SlowPart, VirtualClock};
use models::rng::{Purpose, Stream};

/// Kind of fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fault {
    /// The process gets a SIGKILL.
    Kill,
    /// The loss becomes NaN.
    NonFinite,
    /// One weight becomes huge, as if a bit of its exponent flipped.
    Corrupt,
    /// Bits of a value flip.
    Flip(FlipKind),
    /// The process sleeps for an hour, like one on a node that hangs.
    Hang,
    /// The process is stopped as a whole, with all of its threads.
    Freeze,
    /// The process sleeps for three seconds, like one on a slow file system.
    Slow,
    /// The process gets a SIGTERM, as from a scheduler that preempts it.
    Stop,
    /// A part takes longer: in a step by a share of the host's time for forward and backward, in a
    /// save by a share of the time in which this rank writes.
    SlowPart(Part),
    /// All ranks report virtual times, in which a part of this rank takes longer.
    Clock { part: Part, seed: Option<u64> },
}

/// Attempts of a run that a fault applies to: an attempt that resumes the run does not repeat it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Attempts {
    Only(u32),
    Every,
}

/// Fault and its time of injection, at most once per process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Injection {
    fault: Fault,
    pub(crate) step: u64,
    pub(crate) rank: usize,
    attempts: Attempts,
    /// Percentage by which a part is slower.
    percent: u32,
    /// Failpoint inside the save of the step, or inside the promotion of that checkpoint or, if it
    /// is overtaken, of a later one; without one, the fault is injected at the beginning of the
    /// step.
    failpoint: Option<Failpoint>,
    /// Text on the command line.
    text: String,
}

impl fmt::Display for Injection {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.text)
    }
}

impl FromStr for Injection {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let expected = "kill|nan|corrupt|hang|freeze|slow|stop@step=S,rank=R[,failpoint=F]\
                        [,attempt=N|every], flip@step=S,rank=R,where=gradient|input|weights|\
                        reduction|moments[,bits=N][,every=N], slow-compute|slow-data|\
                        slow-communication|slow-checkpoint@rank=R,percent=P[,step=S]\
                        [,attempt=N|every], or clock@rank=R,percent=P,seed=S[,part=compute|data|\
                        communication|checkpoint][,step=S]";
        let error = |what: String| format!("{text:?}: {what}; expected {expected}");
        let (fault, rest) = text.split_once('@').ok_or_else(|| error("no @".into()))?;
        let mut fault = match fault {
            "kill" => Fault::Kill,
            "nan" => Fault::NonFinite,
            "corrupt" => Fault::Corrupt,
            "flip" => Fault::Flip(FlipKind::default()),
            "hang" => Fault::Hang,
            "freeze" => Fault::Freeze,
            "slow" => Fault::Slow,
            "stop" => Fault::Stop,
            "clock" => Fault::Clock { part: Part::Compute, seed: None },
            other => {
                let part = other.strip_prefix("slow-").and_then(|part| part.parse().ok());
                let unknown = || error(format!("unknown fault {other:?}"));
                Fault::SlowPart(part.ok_or_else(unknown)?)
            }
        };
        let mut step = None;
        let mut rank = 0;
        let mut percent = None;
        let mut failpoint = None;
        let mut is_located = false;
        let is_slow_part = fault.lasts();
        let mut attempts = if is_slow_part { Attempts::Every } else { Attempts::Only(1) };
        for field in rest.split(',') {
            let (key, value) = field.split_once('=').unwrap_or((field, ""));
            let number = || value.parse::<u64>().map_err(|_| error(format!("bad {key}={value}")));
            match key {
                "step" => step = Some(number()?),
                "rank" => rank = number()? as usize,
                "attempt" if value == "every" => attempts = Attempts::Every,
                "attempt" => {
                    let attempt = u32::try_from(number()?).ok().filter(|attempt| *attempt > 0);
                    let bad = || error(format!("bad attempt={value}"));
                    attempts = Attempts::Only(attempt.ok_or_else(bad)?);
                }
                "percent" => percent = Some(number()? as u32),
                "part" | "seed" => {
                    let Fault::Clock { part, seed } = &mut fault else {
                        return Err(error(format!("{key} is of clock")));
                    };
                    match key {
                        "part" => {
                            *part = value.parse().map_err(|()| error(format!("bad {field}")))?
                        }
                        _ => *seed = Some(number()?),
                    }
                }
                "where" | "bits" | "every" => {
                    let Fault::Flip(flip) = &mut fault else {
                        return Err(error(format!("{key} is of flips")));
                    };
                    flip.set(key, value).ok_or_else(|| error(format!("bad {field}")))?;
                    is_located |= key == "where";
                }
                "failpoint" => {
                    let bad = |_| error(format!("bad failpoint={value}"));
                    failpoint = Some(value.parse().map_err(bad)?);
                }
                _ => return Err(error(format!("unknown field {key:?}"))),
            }
        }
        let step = step.or(is_slow_part.then_some(1)).ok_or_else(|| error("no step".into()))?;
        if is_slow_part != percent.is_some() || (is_slow_part && failpoint.is_some()) {
            return Err(error("percent is of slow parts, and a failpoint is not".into()));
        }
        if matches!(fault, Fault::Flip(_)) && (!is_located || failpoint.is_some()) {
            return Err(error("a flip needs where, and has no failpoint".into()));
        }
        if matches!(fault, Fault::Clock { seed: None, .. }) {
            return Err(error("clock needs a seed".into()));
        }
        let percent = percent.unwrap_or(0);
        let text = text.to_owned();
        Ok(Self { fault, step, rank, attempts, percent, failpoint, text })
    }
}

/// Returns the texts of the faults that are injected in an attempt.
pub(crate) fn of_attempt(injections: &[Injection], attempt: u32) -> Vec<String> {
    let of_attempt = injections.iter().filter(|injection| injection.is_of(attempt));
    of_attempt.map(Injection::to_string).collect()
}

impl Injection {
    /// Returns whether it changes weights or moments before a step.
    fn changes_state(&self) -> bool {
        use FlippedValue::{Moments, Weights};
        match self.fault {
            Fault::Corrupt => true,
            Fault::Flip(kind) => matches!(kind.value, Weights | Moments),
            _ => false,
        }
    }

    /// Returns whether it happens again and again.
    fn recurs(&self) -> bool {
        matches!(self.fault, Fault::Flip(FlipKind { every: Some(_), .. }))
    }

    fn is_of(&self, attempt: u32) -> bool {
        self.attempts == Attempts::Every || self.attempts == Attempts::Only(attempt)
    }
}

/// Refuses a fault that would never be injected, because its rank or its step does not exist.
pub(crate) fn check(injections: &[Injection], world: usize, last_step: u64) -> Outcome<()> {
    for Injection { rank, step, .. } in injections {
        if *rank >= world {
            let expected = format!("a rank below the world size {world}");
            return Err(Failure::usage(format!("--inject rank={rank}: expected {expected}")));
        }
        if !(1..=last_step).contains(step) {
            let expected = format!("a step from 1 to the last, {last_step}");
            return Err(Failure::usage(format!("--inject step={step}: expected {expected}")));
        }
    }
    Ok(())
}

/// Returns a sentence for each fault that is not injected, because it is of another attempt or the
/// run resumes after its step.
pub(crate) fn skipped(
    injections: &[Injection],
    attempt: u32,
    completed_steps: u64,
) -> impl Iterator<Item = String> {
    injections.iter().filter_map(move |injection| {
        let Injection { rank, step, attempts, fault, .. } = injection;
        let why = match attempts {
            Attempts::Only(only) if *only != attempt => format!("it is of attempt {only}"),
            _ if *step > completed_steps || fault.lasts() => return None,
            _ if injection.recurs() => return None,
            _ => format!("step {step} was completed before"),
        };
        Some(format!("--inject on rank {rank}: no effect, {why}"))
    })
}

/// Injects the faults of one rank.
#[derive(Debug, Clone, Default)]
pub struct Injector {
    injections: Vec<Injection>,
    /// Faults of any rank that change weights or moments.
    corruptions: Vec<Injection>,
    /// Parts of any rank that are slow in virtual time.
    clocks: Vec<Injection>,
    step: u64,
    times: Arc<Times>,
}

/// Base times of slow parts. Other threads make saves.
#[derive(Debug, Default)]
struct Times {
    /// Forward and backward of the last micro-batch.
    micro_batch_ns: AtomicU64,
    /// Forward and backward of this step so far.
    step_ns: AtomicU64,
    /// Forward and backward of the step before.
    last_step_ns: AtomicU64,
    /// Injected delay of this step's communication, which is started during backward.
    delayed_ns: AtomicU64,
    /// Time at which this rank began to write.
    write_start: Mutex<Option<Instant>>,
}

impl Injector {
    /// Creates an injector of the faults for this rank and attempt.
    pub fn new(injections: &[Injection], rank: usize, attempt: u32) -> Self {
        let of_attempt = || injections.iter().filter(|it| it.is_of(attempt));
        let corruptions = of_attempt().filter(|it| it.changes_state());
        let clocks = of_attempt().filter(|it| matches!(it.fault, Fault::Clock { .. }));
        Self {
            injections: of_attempt().filter(|it| it.rank == rank).cloned().collect(),
            corruptions: corruptions.cloned().collect(),
            clocks: clocks.cloned().collect(),
            ..Self::default()
        }
    }

    /// Drops the faults up to a step: after a resume they are not injected again.
    pub fn after(&self, step: u64) -> Self {
        let later = |all: &[Injection]| -> Vec<Injection> {
            let is_left = |it: &&Injection| it.step > step || it.recurs();
            all.iter().filter(is_left).cloned().collect()
        };
        Self {
            injections: later(&self.injections),
            corruptions: later(&self.corruptions),
            step,
            ..Self::default()
        }
    }

    /// Returns the virtual clock of a rank, if there is one. The seeds of all its faults count.
    pub(crate) fn virtual_clock(&self, rank: usize, world: usize) -> Option<VirtualClock> {
        let mut stream = Stream::new(0, Purpose::Fault);
        let mut slow = Vec::new();
        for Injection { fault, rank, percent, step, .. } in &self.clocks {
            let Fault::Clock { part, seed } = *fault else { continue };
            stream = stream.child(seed.unwrap_or(0));
            let share = f64::from(*percent) / 100.0;
            slow.push(SlowPart { rank: *rank, part, share, from_step: *step });
        }
        (!slow.is_empty()).then_some(VirtualClock { stream, rank, world, slow })
    }

    /// Begins a step, counted from 1.
    pub fn begin(&mut self, step: u64) {
        self.step = step;
        let Times { step_ns, last_step_ns, .. } = &*self.times;
        last_step_ns.store(step_ns.swap(0, Ordering::Relaxed), Ordering::Relaxed);
        for injection in &self.injections {
            if injection.step == step && injection.failpoint.is_none() {
                injection.fault.inject();
            }
        }
    }

    /// Records the time of a computed micro-batch; sleeps if computation is slow.
    pub fn computed(&self, time: Duration) {
        let Times { micro_batch_ns, step_ns, delayed_ns, .. } = &*self.times;
        let delayed = delayed_ns.swap(0, Ordering::Relaxed);
        let computed = (time.as_nanos() as u64).saturating_sub(delayed);
        micro_batch_ns.store(computed, Ordering::Relaxed);
        step_ns.fetch_add(computed, Ordering::Relaxed);
        self.slow_down(Part::Compute, Duration::from_nanos(computed));
    }

    /// Prepares to fetch a micro-batch; sleeps if data is slow.
    pub fn fetches(&self) {
        let computed = self.times.micro_batch_ns.load(Ordering::Relaxed);
        self.slow_down(Part::Data, Duration::from_nanos(computed));
    }

    /// Prepares for the first communication of a step; sleeps if communication is slow.
    pub(crate) fn communicates(&self) {
        let Times { last_step_ns, delayed_ns, .. } = &*self.times;
        let computed = Duration::from_nanos(last_step_ns.load(Ordering::Relaxed));
        let delayed = self.slow_down(Part::Communication, computed);
        delayed_ns.store(delayed.as_nanos() as u64, Ordering::Relaxed);
    }

    /// Sleeps for a share of `time` if the part is slow, and returns the time slept.
    fn slow_down(&self, part: Part, time: Duration) -> Duration {
        let is_due = |injection: &&Injection| {
            injection.fault == Fault::SlowPart(part) && injection.step <= self.step
        };
        let percent: u32 = self.injections.iter().filter(is_due).map(|it| it.percent).sum();
        let start = Instant::now();
        if percent > 0 {
            std::thread::sleep(time * percent / 100);
        }
        start.elapsed()
    }

    /// Prolongs a slow save once this rank has written its part.
    fn slow_down_save(&self, failpoint: Failpoint) {
        let Ok(mut write_start) = self.times.write_start.lock() else { return };
        match failpoint {
            Failpoint::BeforeShard => *write_start = Some(Instant::now()),
            Failpoint::IndexBeforeVote => {
                let written = write_start.take().map_or(Duration::ZERO, |start| start.elapsed());
                self.slow_down(Part::Checkpoint, written);
            }
            _ => {}
        }
    }

    /// Returns whether any rank changes weights or moments in this step. The same on all ranks.
    pub(crate) fn any_rank_corrupts(&self) -> bool {
        self.corruptions.iter().any(|it| match it.fault {
            Fault::Flip(kind) => kind.is_due(it.step, self.step, Computation::First),
            _ => it.step == self.step,
        })
    }

    /// Returns whether to corrupt a weight in this step.
    pub(crate) fn corrupts(&self) -> bool {
        self.is_due(Fault::Corrupt)
    }

    /// Returns the flips of a kind of value that are due in a computation of this step.
    pub(crate) fn flips(
        &self,
        value: FlippedValue,
        computation: Computation,
    ) -> impl Iterator<Item = BitFlip> {
        self.injections.iter().filter_map(move |injection| {
            let Fault::Flip(kind) = injection.fault else { return None };
            // A fault that recurs is in the self-test too, before the first step.
            let step = self.step.max(1);
            let is_due = kind.value == value && kind.is_due(injection.step, step, computation);
            is_due.then(|| BitFlip::new(kind, &injection.text))
        })
    }

    fn is_due(&self, fault: Fault) -> bool {
        let mut own = self.injections.iter();
        own.any(|injection| injection.fault == fault && injection.step == self.step)
    }

    /// Returns the loss of the current step, or NaN if that is injected.
    pub fn loss(&self, loss: f64) -> f64 {
        if self.is_due(Fault::NonFinite) { f64::NAN } else { loss }
    }

    fn inject(&self, failpoint: Failpoint, is_due: impl Fn(u64) -> bool) {
        for injection in &self.injections {
            if injection.failpoint == Some(failpoint) && is_due(injection.step) {
                injection.fault.inject();
            }
        }
    }
}

impl Fault {
    /// Returns whether it lasts from its step on, in every attempt.
    fn lasts(self) -> bool {
        matches!(self, Self::SlowPart(_) | Self::Clock { .. })
    }

    fn inject(self) {
        match self {
            Self::Kill => signal_self(rustix::process::Signal::KILL),
            Self::Hang => std::thread::sleep(Duration::from_secs(3600)),
            Self::Freeze => signal_self(rustix::process::Signal::STOP),
            Self::Slow => std::thread::sleep(Duration::from_secs(3)),
            Self::Stop => launch::signals::raise_sigterm().expect("a process may signal itself"),
            Self::NonFinite
            | Self::Corrupt
            | Self::Flip(_)
            | Self::SlowPart(_)
            | Self::Clock { .. } => {}
        }
    }
}

/// Signals this process. Another thread may take the signal first, late on a busy machine: this one
/// must not go on until then.
fn signal_self(signal: rustix::process::Signal) {
    let _ = rustix::process::kill_process(rustix::process::getpid(), signal);
    std::thread::sleep(Duration::from_secs(10));
}

impl Failpoints for Injector {
    fn hit(&self, failpoint: Failpoint) {
        self.slow_down_save(failpoint);
        self.inject(failpoint, |step| step == self.step);
    }

    fn hit_in_promotion(&self, failpoint: Failpoint, promoted: u64) {
        self.inject(failpoint, |step| step <= promoted);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fault_is_parsed() {
        let injection: Injection = "kill@step=30,rank=1,failpoint=mid-shard".parse().unwrap();
        assert_eq!((injection.step, injection.rank), (30, 1));
        assert_eq!(injection.failpoint, Some(Failpoint::MidShard));
    }

    #[test]
    fn an_invalid_fault_is_refused() {
        let bad =
            ["", "kill", "melt@step=1", "kill@rank=1", "kill@step=x", "kill@step=1,attempt=a"];
        let bad_parts = [
            "slow-compute@rank=1",
            "slow-data@percent=x",
            "kill@step=1,percent=5",
            "slow-data@percent=5,failpoint=mid-shard",
        ];
        let bad_flips = [
            "flip@step=1",
            "flip@step=1,where=nowhere",
            "flip@step=1,where=input,bits=0",
            "flip@step=1,where=input,bits=33",
            "flip@step=1,where=input,failpoint=mid-shard",
            "kill@step=1,where=input",
        ];
        let bad_clocks = [
            "clock@rank=1,percent=10",
            "clock@rank=1,seed=1",
            "clock@rank=1,percent=10,seed=x",
            "clock@rank=1,percent=10,seed=1,part=host",
            "clock@rank=1,percent=10,seed=1,failpoint=mid-shard",
            "slow-data@percent=5,seed=1",
        ];
        let bad = bad.into_iter().chain(bad_parts).chain(bad_flips).chain(bad_clocks);
        for text in bad {
            assert!(text.parse::<Injection>().unwrap_err().contains("expected kill"), "{text}");
        }
    }
}
