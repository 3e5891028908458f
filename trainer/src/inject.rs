//! Faults on request, for tests and drills: `--inject kill@step=30,rank=1,point=mid-shard`.

use std::str::FromStr;
use std::time::Duration;

use checkpoint::{Observer, Point};

use crate::failure::{Failure, Outcome};

/// What happens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fault {
    /// SIGKILL to the own process.
    Kill,
    /// The loss becomes NaN.
    NonFinite,
    /// The rank sleeps for an hour, as if its node hung.
    Hang,
    /// It sleeps for three seconds, as if a file system were slow.
    Slow,
    /// SIGTERM to the own process, as from a scheduler that wants the machine back.
    Stop,
}

/// One fault: what, and when. Injected at most once per process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Injection {
    fault: Fault,
    pub(crate) step: u64,
    pub(crate) rank: usize,
    point: Option<Point>,
}

impl FromStr for Injection {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let expected = "kill|nan|hang|slow|stop@step=S,rank=R[,point=P]";
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
        let (mut step, mut rank, mut point) = (None, 0, None);
        for field in rest.split(',') {
            let (key, value) = field.split_once('=').unwrap_or((field, ""));
            let number = || value.parse::<u64>().map_err(|_| error(format!("bad {key}={value}")));
            match key {
                "step" => step = Some(number()?),
                "rank" => rank = number()? as usize,
                "point" => {
                    let parsed = value.parse().map_err(|_| error(format!("bad point={value}")))?;
                    point = Some(parsed);
                }
                _ => return Err(error(format!("unknown field {key:?}"))),
            }
        }
        let step = step.ok_or_else(|| error("no step".into()))?;
        Ok(Self { fault, step, rank, point })
    }
}

/// Refuses a fault that would never strike: its rank is not in the world, or its step not in the
/// run.
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

/// Faults that do not strike, because the run goes on after their step.
pub(crate) fn missed(
    injections: &[Injection],
    resumed: u64,
) -> impl Iterator<Item = &Injection> + use<'_> {
    injections.iter().filter(move |injection| injection.step <= resumed)
}

/// The faults of this rank.
#[derive(Debug, Clone, Default)]
pub struct Injector {
    injections: Vec<Injection>,
    step: u64,
}

impl Injector {
    /// Keeps the faults that concern a rank.
    pub fn new(injections: &[Injection], rank: usize) -> Self {
        let own = injections.iter().filter(|injection| injection.rank == rank).cloned().collect();
        Self { injections: own, step: 0 }
    }

    /// A step, counted from 1, begins.
    pub fn begin(&mut self, step: u64) {
        self.step = step;
        for injection in &self.injections {
            if injection.step == step && injection.point.is_none() {
                injection.fault.strike();
            }
        }
    }

    /// The loss of the step that runs, unless it is to become NaN.
    pub fn loss(&self, loss: f64) -> f64 {
        let struck = |injection: &Injection| {
            injection.fault == Fault::NonFinite && injection.step == self.step
        };
        if self.injections.iter().any(struck) { f64::NAN } else { loss }
    }
}

impl Fault {
    fn strike(self) {
        match self {
            Self::Kill => kill_self(),
            Self::Hang => std::thread::sleep(Duration::from_secs(3600)),
            Self::Slow => std::thread::sleep(Duration::from_secs(3)),
            Self::Stop => launch::signals::request_stop().expect("a process may signal itself"),
            Self::NonFinite => {}
        }
    }
}

fn kill_self() {
    let _ = rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::KILL);
    std::thread::sleep(Duration::from_secs(60)); // the signal is on its way
}

impl Observer for Injector {
    fn reached(&self, point: Point) {
        for injection in &self.injections {
            if injection.step == self.step && injection.point == Some(point) {
                injection.fault.strike();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_a_fault() {
        let injection: Injection = "kill@step=30,rank=1,point=mid-shard".parse().unwrap();
        assert_eq!((injection.step, injection.rank), (30, 1));
        assert_eq!(injection.point, Some(Point::MidShard));
    }

    #[test]
    fn refuses_what_it_does_not_know() {
        for text in ["", "kill", "melt@step=1", "kill@rank=1", "kill@step=x", "kill@step=1,at=2"] {
            assert!(text.parse::<Injection>().unwrap_err().contains("expected kill"), "{text}");
        }
    }
}
