//! Mapping of each other's memory by the ranks of a node, or their agreement that they cannot.

use std::io;
use std::mem::ManuallyDrop;
use std::time::Instant;

use super::memfd::Handle;
use super::shared_buffer::{Export, SharedBuffer};
use crate::{Collective, Error};

/// Reason why no rank shares memory. Equal on all ranks.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("rank {rank} could not {action}: {cause}")]
pub(crate) struct Unavailable {
    rank: usize,
    action: &'static str,
    cause: String,
}

/// Creates zeroed memory on every rank of the world and maps that of the ranks of a node on each
/// of them; on no rank at all where any of them fails, so that all ranks move data in the same way.
///
/// All ranks call this at the same time. `node_ranks` are the ranks of this one's node in ascending
/// order. `all_gather` is called as often on every rank; it returns the values of all ranks of the
/// world in their order, as many of each.
///
/// # Errors
/// Those of `all_gather`.
pub(crate) fn share<E>(
    bytes: usize,
    rank: usize,
    node_ranks: &[usize],
    mut all_gather: impl FnMut(&[u64]) -> Result<Vec<u64>, E>,
) -> Result<Result<SharedBuffer, Unavailable>, E> {
    let export = Export::new(bytes);
    let mut created = vec![status(&export)];
    created.extend(export.as_ref().map_or([0; Handle::FIELDS], |export| export.handle().fields));
    let created = all_gather(&created)?;
    let created: Vec<&[u64]> = created.chunks_exact(1 + Handle::FIELDS).collect();
    let export = match (first_failure(created.iter().map(|values| values[0])), export) {
        (None, Ok(export)) => export,
        (failure, _) => return Ok(Err(unavailable(failure, "create shared memory"))),
    };
    let handle = |&rank: &usize| {
        let mut fields = [0; Handle::FIELDS];
        fields.copy_from_slice(&created[rank][1..]);
        Handle { fields }
    };
    let handles: Vec<Handle> = node_ranks.iter().map(handle).collect();
    let local = node_ranks.iter().position(|&other| other == rank);
    let local = local.unwrap_or_else(|| unreachable!("rank {rank} is not among {node_ranks:?}"));
    let mapped = export.map_peers(local, &handles);
    let outcomes = all_gather(&[status(&mapped)])?;
    Ok(match (first_failure(outcomes.into_iter()), mapped) {
        (None, Ok(peers)) => Ok(export.join(local, peers)),
        (failure, _) => Err(unavailable(failure, "map the shared memory of its node")),
    })
}

/// The `all_gather` of [`share`] over the control channel of a collective.
pub(crate) fn all_gather_over(
    collective: &dyn Collective,
    deadline: Instant,
) -> impl FnMut(&[u64]) -> Result<Vec<u64>, Error> {
    move |own| {
        let len = size_of_val(own);
        // Freed by success alone: after a failure the network may still write into it.
        let mut bytes = ManuallyDrop::new(vec![0_u8; collective.world() * len]);
        let own_bytes = &mut bytes[collective.rank() * len..][..len];
        for (bytes, value) in own_bytes.chunks_exact_mut(size_of::<u64>()).zip(own) {
            bytes.copy_from_slice(&value.to_le_bytes());
        }
        collective.all_gather(&mut bytes, deadline)?;
        let bytes = ManuallyDrop::into_inner(bytes);
        let (values, _) = bytes.as_chunks();
        Ok(values.iter().map(|&value| u64::from_le_bytes(value)).collect())
    }
}

/// Stands for an error that is not the operating system's.
const NOT_FOUND: u64 = u64::MAX;

/// An outcome as a number for other ranks; 0 is success.
fn status<T>(outcome: &io::Result<T>) -> u64 {
    match outcome {
        Ok(_) => 0,
        Err(error) => error.raw_os_error().map_or(NOT_FOUND, |code| u64::from(code as u32)),
    }
}

struct Failure {
    rank: usize,
    status: u64,
}

/// The first rank without success.
fn first_failure(statuses: impl Iterator<Item = u64>) -> Option<Failure> {
    let mut failures = statuses.enumerate().filter(|&(_, status)| status != 0);
    failures.next().map(|(rank, status)| Failure { rank, status })
}

fn unavailable(failure: Option<Failure>, action: &'static str) -> Unavailable {
    let Some(Failure { rank, status }) = failure else {
        unreachable!("this rank's own failure is among the gathered ones")
    };
    let cause = match status {
        NOT_FOUND => "it does not see the files of other ranks: another container?".to_owned(),
        code => io::Error::from_raw_os_error(code as u32 as i32).to_string(),
    };
    Unavailable { rank, action, cause }
}
