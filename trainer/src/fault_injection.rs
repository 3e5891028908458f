//! Fault injection for tests and drills: `--inject kill@step=30,rank=1,failpoint=mid-shard`.

use std::str::FromStr;
use std::time::Duration;

use checkpoint::{Failpoint, Failpoints};

use crate::failure::{Failure, Outcome};

/// A kind of fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fault {
    /// The process gets a SIGKILL.
    Kill,
    /// The loss becomes NaN.
    NonFinite,
    /// The process sleeps for an hour, like one on a node that hangs.
    Hang,
    /// The process sleeps for three seconds, like one on a slow file system.
    Slow,
    /// The process gets a SIGTERM, as from a scheduler that preempts it.
    Stop,
}

/// One fault and when it is injected, at most once per process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Injection {
    fault: Fault,
    pub(crate) step: u64,
    pub(crate) rank: usize,
    /// Inside the save of the step, or inside the promotion of that checkpoint or, if it is
    /// overtaken, of a later one; without one, at the beginning of the step.
    failpoint: Option<Failpoint>,
}

impl FromStr for Injection {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let expected = "kill|nan|hang|slow|stop@step=S,rank=R[,failpoint=F]";
        let error = |what: String| format!("{text:?}: {what}; expected {expected}");
        let (fault, rest) = text.split_once('@').ok_or_else(|| error("no @".into()))?;
        let fault = match fault {
            "kill" => Fault::Kill,
            "nan" => Fault::NonFinite,
            "hang" => Fault::Hang,
            "slow" => Fault::Slow,
            "stop" => Fault::Stop,
            other => return Err(error(format!("unknown fault {other:?}"))),
        };
        let mut step = None;
        let mut rank = 0;
        let mut failpoint = None;
        for field in rest.split(',') {
            let (key, value) = field.split_once('=').unwrap_or((field, ""));
            let number = || value.parse::<u64>().map_err(|_| error(format!("bad {key}={value}")));
            match key {
                "step" => step = Some(number()?),
                "rank" => rank = number()? as usize,
                "failpoint" => {
                    let bad = |_| error(format!("bad failpoint={value}"));
                    failpoint = Some(value.parse().map_err(bad)?);
                }
                _ => return Err(error(format!("unknown field {key:?}"))),
            }
        }
        let step = step.ok_or_else(|| error("no step".into()))?;
        Ok(Self { fault, step, rank, failpoint })
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

/// Faults that are not injected, because the run resumes after their step.
pub(crate) fn skipped(
    injections: &[Injection],
    completed_steps: u64,
) -> impl Iterator<Item = &Injection> + use<'_> {
    injections.iter().filter(move |injection| injection.step <= completed_steps)
}

/// Injects the faults of one rank.
#[derive(Debug, Clone, Default)]
pub struct Injector {
    injections: Vec<Injection>,
    step: u64,
}

impl Injector {
    /// An injector of those faults that are for this rank.
    pub fn new(injections: &[Injection], rank: usize) -> Self {
        let own = injections.iter().filter(|injection| injection.rank == rank).cloned().collect();
        Self { injections: own, ..Self::default() }
    }

    /// Without the faults up to a step: after a resume they are not injected again.
    pub fn after(&self, step: u64) -> Self {
        let later = self.injections.iter().filter(|injection| injection.step > step).cloned();
        Self { injections: later.collect(), step }
    }

    /// Begins a step, counted from 1.
    pub fn begin(&mut self, step: u64) {
        self.step = step;
        for injection in &self.injections {
            if injection.step == step && injection.failpoint.is_none() {
                injection.fault.inject();
            }
        }
    }

    /// The loss of the current step, or NaN if that is to be injected.
    pub fn loss(&self, loss: f64) -> f64 {
        let is_due = |injection: &Injection| {
            injection.fault == Fault::NonFinite && injection.step == self.step
        };
        if self.injections.iter().any(is_due) { f64::NAN } else { loss }
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
    fn inject(self) {
        match self {
            Self::Kill => kill_self(),
            Self::Hang => std::thread::sleep(Duration::from_secs(3600)),
            Self::Slow => std::thread::sleep(Duration::from_secs(3)),
            Self::Stop => launch::signals::raise_sigterm().expect("a process may signal itself"),
            Self::NonFinite => {}
        }
    }
}

fn kill_self() {
    let _ = rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::KILL);
    std::thread::sleep(Duration::from_secs(60)); // until the signal is delivered
}

impl Failpoints for Injector {
    fn hit(&self, failpoint: Failpoint) {
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
        for text in ["", "kill", "melt@step=1", "kill@rank=1", "kill@step=x", "kill@step=1,at=2"] {
            assert!(text.parse::<Injection>().unwrap_err().contains("expected kill"), "{text}");
        }
    }
}
