//! Faults of the faulty file system.

use std::ffi::OsStr;
use std::time::Duration;

use fuser::Errno;

/// Call that a program makes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Operation {
    Create,
    Write,
    Sync,
    Close,
    Rename,
    Link,
    Remove,
    CreateFolder,
    SyncFolder,
    Open,
    Read,
    List,
}

impl Operation {
    /// Returns whether it changes the disk, or makes a change durable.
    fn is_change(self) -> bool {
        !matches!(self, Self::Open | Self::Read | Self::List)
    }
}

/// Effect on a call.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Effect {
    Error(Errno),
    /// Failure after so long. A process that is killed does not end before, because the kernel
    /// waits for the answer.
    #[cfg_attr(not(feature = "mpi"), allow(dead_code, reason = "runs hang, and need ranks"))]
    Hang(Duration),
    /// Success after so long.
    Slow(Duration),
}

/// Calls that have an effect.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Fault {
    /// One call in the order of changes, from 0.
    Change { number: usize, effect: Effect },
    /// All calls from the one of this number in the order of changes on: as of a disk that fails,
    /// or of a machine that loses its power.
    FromChange { number: usize, effect: Effect },
    /// All calls of this kind for a file with this in its name.
    Named { operation: Operation, name: &'static str, effect: Effect },
}

/// The fault there is, and what was done.
#[derive(Debug, Default)]
pub(crate) struct Faults {
    fault: Option<Fault>,
    changes: usize,
    hits: usize,
    last_hit: Option<String>,
}

impl Faults {
    /// Counts from 0 again.
    pub(crate) fn set(&mut self, fault: Option<Fault>) {
        *self = Self { fault, ..Self::default() };
    }

    /// Changes since the fault was set.
    pub(crate) fn changes(&self) -> usize {
        self.changes
    }

    /// Calls with an effect since the fault was set.
    pub(crate) fn hits(&self) -> usize {
        self.hits
    }

    /// The last call that had an effect.
    pub(crate) fn last_hit(&self) -> Option<&str> {
        self.last_hit.as_deref()
    }

    /// Returns the effect on a call; `None` if nothing is wrong.
    pub(crate) fn of(&mut self, operation: Operation, name: &OsStr) -> Option<Effect> {
        let now = self.changes;
        self.changes += usize::from(operation.is_change());
        let (is_hit, effect) = match self.fault? {
            Fault::Change { number, effect } => (operation.is_change() && now == number, effect),
            Fault::FromChange { number, effect } => {
                (now > number || operation.is_change() && now == number, effect)
            }
            Fault::Named { operation: wanted, name: part, effect } => {
                (operation == wanted && name.to_string_lossy().contains(part), effect)
            }
        };
        is_hit.then(|| {
            self.hits += 1;
            self.last_hit = Some(format!("{operation:?} of {}", name.display()));
            effect
        })
    }
}
