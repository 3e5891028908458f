//! Table of faults and outcomes.

use std::collections::BTreeMap;
use std::fmt;

use crate::job::Fault;
use crate::shared_tier::StoreFault;

/// Point from which a run resumed after a fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// Newest checkpoint that was committed.
    Newest,
    /// Older checkpoint: the newest was only where it was lost.
    OlderLeft,
    /// Beginning: nothing was committed yet.
    NothingSavedYet,
}

/// Faults of one kind of an object store.
#[derive(Debug, Default)]
struct StoreFaults {
    attempts: usize,
    requests: usize,
}

/// Faults by kind and outcome. A lost last good fails the test, so it has no column.
#[derive(Debug, Default)]
pub(crate) struct Tally {
    counts: BTreeMap<&'static str, [usize; 3]>,
    of_stores: BTreeMap<String, StoreFaults>,
    /// Runs that ended with the right bits.
    pub(crate) runs: usize,
}

impl Tally {
    pub(crate) fn count(&mut self, fault: &Fault, outcome: Outcome) {
        self.counts.entry(fault.kind()).or_default()[outcome as usize] += 1;
    }

    /// Counts an attempt whose object store had a fault, which has happened to so many requests.
    pub(crate) fn count_of_store(&mut self, fault: &StoreFault, requests: usize) {
        let counts = self.of_stores.entry(fault.kind()).or_default();
        counts.attempts += 1;
        counts.requests += requests;
    }

    pub(crate) fn faults(&self) -> usize {
        self.counts.values().flatten().sum()
    }
}

impl fmt::Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "| fault | times | resumed from the newest | from an older one | from step 0 |"
        )?;
        writeln!(f, "| --- | --- | --- | --- | --- |")?;
        for (kind, [newest, older, none]) in &self.counts {
            let times = newest + older + none;
            writeln!(f, "| {kind} | {times} | {newest} | {older} | {none} |")?;
        }
        if !self.of_stores.is_empty() {
            writeln!(f, "\n| fault of the object store | attempts | requests that it met |")?;
            writeln!(f, "| --- | --- | --- |")?;
        }
        for (kind, StoreFaults { attempts, requests }) in &self.of_stores {
            writeln!(f, "| {kind} | {attempts} | {requests} |")?;
        }
        write!(f, "\n{} faults in {} runs; lost last good: 0", self.faults(), self.runs)
    }
}
