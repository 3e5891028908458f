//! Tier that all ranks see: a folder, an object store that has faults, or none.

use std::path::PathBuf;

use crate::Random;
use support::s3::{Fault, Kind, Operation, S3Server};
use support::text;

/// Faults of reads. They pass, and no restore may notice them.
const READS: [Fault; 9] = [
    fault(Operation::Any, Kind::Answer { status: 503, code: "SlowDown" }, 4),
    fault(Operation::Any, Kind::Disconnect, 3),
    fault(Operation::GetRange, Kind::CutBody, 3),
    fault(Operation::GetRange, Kind::ShortBody, 2),
    fault(Operation::GetRange, Kind::OtherBytes, 1),
    fault(Operation::GetRange, Kind::OtherRange, 2),
    fault(Operation::GetRange, Kind::WholeObject, 2),
    fault(Operation::GetRange, Kind::OtherEtag, 2),
    fault(Operation::List, Kind::PagesOfOneKey, usize::MAX),
];

/// Faults of the targets of copies. Some last as long as the attempt.
const WRITES: [Fault; 8] = [
    fault(Operation::Any, Kind::Answer { status: 429, code: "SlowDown" }, 4),
    fault(Operation::Put, Kind::LoseAnswer, 3),
    fault(Operation::PutNew, Kind::LoseAnswer, 2),
    fault(Operation::PutNew, Kind::Answer { status: 409, code: "OperationAborted" }, 3),
    fault(Operation::AnyPut, Kind::Answer { status: 507, code: "InsufficientStorage" }, 5),
    fault(Operation::AnyPut, Kind::Answer { status: 403, code: "AccessDenied" }, usize::MAX),
    fault(Operation::PutNew, Kind::Answer { status: 403, code: "AccessDenied" }, usize::MAX),
    fault(Operation::AnyPut, Kind::Answer { status: 503, code: "SlowDown" }, usize::MAX),
];

const fn fault(operation: Operation, kind: Kind, times: usize) -> Fault {
    Fault { operation, kind, suffix: "", times }
}

/// A fault of the store while an attempt lasts.
#[derive(Debug, Clone)]
pub(crate) struct StoreFault {
    fault: Fault,
    /// Set if it is there from the attempt's start, and not from some moment later.
    pub(crate) is_at_start: bool,
}

impl StoreFault {
    pub(crate) fn kind(&self) -> String {
        let Fault { operation, kind, times, .. } = &self.fault;
        let lasts = if *times == usize::MAX { ", lasting" } else { "" };
        format!("{operation:?}: {kind:?}{lasts}").replace('"', "")
    }
}

#[derive(Debug)]
pub(crate) enum SharedTier {
    Folder(PathBuf),
    Bucket(S3Server),
    /// Nodes have nothing but their disks.
    Absent,
}

impl SharedTier {
    pub(crate) fn bucket() -> Self {
        Self::Bucket(S3Server::start())
    }

    /// Returns the folder of its files; one that does not exist where it is absent.
    pub(crate) fn files(&self) -> PathBuf {
        match self {
            Self::Folder(path) => path.clone(),
            Self::Bucket(server) => server.file("runs"),
            Self::Absent => PathBuf::new(),
        }
    }

    /// Settings of a run that uses it.
    pub(crate) fn settings(&self) -> Vec<String> {
        match self {
            Self::Folder(path) => vec![format!("checkpoint.shared.path={}", text(path))],
            Self::Bucket(server) => vec![
                "checkpoint.shared.path=none".to_owned(),
                format!("checkpoint.object.path={}", server.url("runs")),
            ],
            Self::Absent => vec!["checkpoint.shared.path=none".to_owned()],
        }
    }

    pub(crate) fn environment(&self) -> Vec<(&'static str, String)> {
        match self {
            Self::Folder(_) | Self::Absent => Vec::new(),
            Self::Bucket(server) => server.environment().to_vec(),
        }
    }

    /// A fault of the store for the next attempt, if it is one: of reads if the attempt has to read
    /// from there.
    pub(crate) fn random_fault(&self, is_needed: bool, random: &mut Random) -> Option<StoreFault> {
        let Self::Bucket(_) = self else { return None };
        let is_at_start = is_needed || random.chance();
        let faults: &[Fault] = if is_at_start { &READS } else { &WRITES };
        Some(StoreFault { fault: faults[random.below(faults.len())].clone(), is_at_start })
    }

    pub(crate) fn begin(&self, fault: &StoreFault) {
        if let Self::Bucket(server) = self {
            server.begin(fault.fault.clone());
        }
    }

    /// Ends a fault, and returns the number of requests that it has happened to.
    pub(crate) fn end_fault(&self) -> usize {
        match self {
            Self::Folder(_) | Self::Absent => 0,
            Self::Bucket(server) => server.end_fault(),
        }
    }
}
