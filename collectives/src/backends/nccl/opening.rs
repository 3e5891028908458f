//! Rendezvous of the ranks: rank 0 makes an id, and the host's backend carries it to the others.
#![allow(unsafe_code)] // calls of NCCL

use std::ffi::c_int;
use std::mem::ManuallyDrop;
use std::time::{Duration, Instant};

use device::cuda::Cuda;
use device::cuda::nccl::{self, Status, UniqueId};

use super::NAME;
use super::communicator::{self, Communicator, NotReady};
use super::log_settings::LogSettings;
use crate::{Collective, Error};

const HINT: &str = "NCCL_SOCKET_IFNAME chooses the network interface by which ranks connect";

/// Size of a rank's greeting: the version of its NCCL (0 where it has none), and from rank 0 the id
/// of the communicator.
const GREETING_BYTES: usize = size_of::<c_int>() + UniqueId::BYTES;

/// Connects all ranks.
pub(super) fn open(
    control: &dyn Collective,
    device: &Cuda,
    timeout: Duration,
) -> Result<Communicator, Error> {
    let deadline = Instant::now() + timeout;
    let rank = control.rank();
    let own = greeting(rank);
    // After an error the network may still write to it.
    let mut greetings = ManuallyDrop::new(vec![0; control.world() * GREETING_BYTES]);
    if let Ok(Greeting { bytes, .. }) = &own {
        greetings[rank * GREETING_BYTES..][..GREETING_BYTES].copy_from_slice(bytes);
    }
    control.all_gather(&mut greetings, deadline)?;
    let Greeting { functions, .. } = own?;
    let greetings = ManuallyDrop::into_inner(greetings);
    let id = agreed_id(&greetings)?;
    device.bind().map_err(start)?;
    let begun = Communicator::begin(functions, device, id, rank, control.world());
    let refused = |status| start(communicator::failure(functions, status));
    let communicator = begun.map_err(refused)?;
    match communicator.await_ready(Status::IN_PROGRESS, deadline) {
        Ok(()) => Ok(communicator),
        Err(failed) => {
            let error = match failed {
                NotReady::Deadline => {
                    Error::OpenDeadline { backend: NAME, waited: timeout, hint: hint() }
                }
                NotReady::Failed(status @ Status::REMOTE_ERROR) => {
                    let text = communicator.failure(status);
                    let operation = "ncclCommInitRankConfig".to_owned();
                    Error::Nccl { operation, position: None, rank, text, peers: Vec::new() }
                }
                NotReady::Failed(status) => start(communicator.failure(status)),
            };
            communicator.abort();
            Err(error)
        }
    }
}

/// A rank that has NCCL.
struct Greeting {
    functions: &'static nccl::Nccl,
    bytes: [u8; GREETING_BYTES],
}

fn greeting(rank: usize) -> Result<Greeting, Error> {
    let functions = nccl::Nccl::open().map_err(start)?;
    let require = |status| match status {
        Status::SUCCESS => Ok(()),
        refused => Err(start(communicator::failure(functions, refused))),
    };
    let mut version = 0;
    // SAFETY: it writes one int.
    require(unsafe { (functions.ncclGetVersion)(&raw mut version) })?;
    let mut id = UniqueId([0; UniqueId::BYTES]);
    if rank == 0 {
        // SAFETY: it writes the id.
        require(unsafe { (functions.ncclGetUniqueId)(&raw mut id) })?;
    }
    let mut bytes = [0; GREETING_BYTES];
    let (of_version, of_id) = bytes.split_at_mut(size_of::<c_int>());
    of_version.copy_from_slice(&version.to_le_bytes());
    of_id.copy_from_slice(&id.0);
    Ok(Greeting { functions, bytes })
}

/// Rank 0's id, if all ranks have the same NCCL: versions do not understand each other.
fn agreed_id(greetings: &[u8]) -> Result<UniqueId, Error> {
    let version = |greeting: &[u8]| {
        let bytes: [u8; size_of::<c_int>()] = std::array::from_fn(|index| greeting[index]);
        c_int::from_le_bytes(bytes)
    };
    let expected = version(greetings);
    for (rank, found) in greetings.chunks(GREETING_BYTES).map(version).enumerate() {
        if found == 0 {
            return Err(start(format!("rank {rank} cannot use NCCL; see its error")));
        }
        if found != expected {
            return Err(start(format!(
                "rank 0 has NCCL {expected}, rank {rank} has {found}: install the same version"
            )));
        }
    }
    let id = &greetings[size_of::<c_int>()..GREETING_BYTES];
    Ok(UniqueId(std::array::from_fn(|index| id[index])))
}

/// Hint for a peer that does not connect.
fn hint() -> String {
    match LogSettings::written_file() {
        Some(file) => format!("NCCL's log {} shows what it tried; {HINT}", file.display()),
        None => format!("NCCL_DEBUG=INFO shows what NCCL tries; {HINT}"),
    }
}

pub(super) fn start(text: impl ToString) -> Error {
    Error::Start { backend: NAME, text: text.to_string() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn greetings(versions: &[c_int]) -> Vec<u8> {
        let greeting = |(rank, version): (usize, &c_int)| {
            let id = [rank as u8 + 7; UniqueId::BYTES];
            [&version.to_le_bytes()[..], &id].concat()
        };
        versions.iter().enumerate().flat_map(greeting).collect()
    }

    #[test]
    fn ranks_take_the_id_of_rank_0_if_they_have_the_same_nccl() {
        assert_eq!(agreed_id(&greetings(&[22_803, 22_803])).unwrap().0, [7; UniqueId::BYTES]);
        let refused = |versions: &[c_int]| agreed_id(&greetings(versions)).err().unwrap();
        let older = refused(&[22_803, 22_803, 21_903]).to_string();
        assert!(older.contains("22803") && older.contains("rank 2 has 21903"), "{older}");
        for (versions, without) in [([22_803, 0], "rank 1"), ([0, 22_803], "rank 0")] {
            let error = refused(&versions).to_string();
            assert!(error.contains(&format!("{without} cannot use NCCL")), "{error}");
        }
    }
}
