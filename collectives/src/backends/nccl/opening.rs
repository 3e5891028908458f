//! Rendezvous of the ranks of a line: the first of them makes an id, and the host's backend carries
//! it to the others, unless all of them have a communicator already.
#![allow(unsafe_code)] // calls of NCCL

use std::ffi::c_int;
use std::mem::ManuallyDrop;
use std::sync::Arc;
use std::time::{Duration, Instant};

use device::cuda::nccl::{self, Status, UniqueId};

use super::NAME;
use super::communicator::{self, Communicator, NotReady};
use super::log_settings::LogSettings;
use super::queue::DeviceQueue;
use crate::core::group::Membership;
use crate::{Collective, Error, GroupPlan};

const HINT: &str = "NCCL_SOCKET_IFNAME chooses the network interface by which ranks connect";

/// Size of a rank's greeting: the version of its NCCL (0 where it has none), 1 if it has a
/// communicator of the ranks of its line, and from the first rank of a line the id of a new one.
const GREETING_BYTES: usize = VERSION_BYTES + 1 + UniqueId::BYTES;
const VERSION_BYTES: usize = size_of::<c_int>();

/// The opening of a communicator for some ranks of a group.
pub(super) struct Opening<'a> {
    pub(super) membership: &'a Membership,
    /// Name of the ranks; `None` for all ranks of the world in their order.
    pub(super) name: Option<&'a Arc<GroupPlan>>,
    /// Ranks of the group.
    pub(super) members: &'a [usize],
    /// This rank has a communicator of these ranks.
    pub(super) is_known: bool,
}

impl Opening<'_> {
    /// Connects the ranks; `None` if they are connected already, as each of them says. All ranks of
    /// the group call this at the same time, each for its own line.
    pub(super) fn connect(
        &self,
        control: &dyn Collective,
        queue: &DeviceQueue,
    ) -> Result<Option<Communicator>, Error> {
        let DeviceQueue { device, timeout, .. } = queue;
        let deadline = Instant::now() + *timeout;
        let Some((functions, id)) = self.greet(control, deadline)? else { return Ok(None) };
        device.bind().map_err(start)?;
        let own = self.membership.member;
        let rank = self.members.iter().position(|&member| member == own).unwrap_or_default();
        let begun = Communicator::begin(functions, device, id, rank, self.members.len());
        let refused = |status| self.refused(&communicator::failure(functions, status));
        let communicator = begun.map_err(refused)?;
        let ready = communicator.await_ready(Status::IN_PROGRESS, queue.until(deadline));
        let Err(failed) = ready else { return Ok(Some(communicator)) };
        let error = match queue.stopped() {
            Some(stopped) => stopped,
            None => self.error(&communicator, failed, *timeout),
        };
        communicator.abort();
        Err(error)
    }

    /// Exchanges greetings with all ranks of the group, and returns the id of a new communicator
    /// for this rank's line, unless it has one.
    fn greet(
        &self,
        control: &dyn Collective,
        deadline: Instant,
    ) -> Result<Option<(&'static nccl::Nccl, UniqueId)>, Error> {
        let own = self.membership.member;
        let first = self.members[0];
        let greeting = greeting(self.is_known, own == first && !self.is_known);
        // After an error the network may still write to it.
        let mut greetings = ManuallyDrop::new(vec![0; control.world() * GREETING_BYTES]);
        if let Ok(Greeting { bytes, .. }) = &greeting {
            greetings[own * GREETING_BYTES..][..GREETING_BYTES].copy_from_slice(bytes);
        }
        control.all_gather(&mut greetings, deadline)?;
        let Greeting { functions, .. } = greeting?;
        let greetings = ManuallyDrop::into_inner(greetings);
        require_same_version(&greetings, &self.membership.plan.ranks)?;
        match are_connected(&greetings, self.members) {
            Some(true) => Ok(None),
            Some(false) => Ok(Some((functions, id_of(&greetings, first)))),
            None => Err(start(format!(
                "some of {} have connected them before, others have not: all ranks open the same \
                 groups in the same order",
                self.ranks_text()
            ))),
        }
    }

    fn error(&self, communicator: &Communicator, failed: NotReady, timeout: Duration) -> Error {
        match failed {
            NotReady::Deadline => Error::OpenDeadline {
                backend: NAME,
                waited: timeout,
                hint: format!("it connects {}; {}", self.ranks_text(), hint()),
            },
            NotReady::Failed(status @ Status::REMOTE_ERROR) => Error::Nccl {
                operation: "ncclCommInitRankConfig".to_owned(),
                group: self.name.cloned(),
                position: None,
                rank: self.membership.world_rank(),
                text: communicator.failure(status),
                peers: Vec::new(),
            },
            NotReady::Failed(status) => self.refused(&communicator.failure(status)),
        }
    }

    fn refused(&self, text: &str) -> Error {
        start(format!("{text}, in {}", self.ranks_text()))
    }

    fn ranks_text(&self) -> String {
        self.name.map_or_else(|| "all ranks".to_owned(), ToString::to_string)
    }
}

/// A rank that has NCCL.
struct Greeting {
    functions: &'static nccl::Nccl,
    bytes: [u8; GREETING_BYTES],
}

fn greeting(is_known: bool, makes_id: bool) -> Result<Greeting, Error> {
    let functions = nccl::Nccl::open().map_err(start)?;
    let require = |status| match status {
        Status::SUCCESS => Ok(()),
        refused => Err(start(communicator::failure(functions, refused))),
    };
    let mut version = 0;
    // SAFETY: it writes one int.
    require(unsafe { (functions.ncclGetVersion)(&raw mut version) })?;
    let mut id = UniqueId([0; UniqueId::BYTES]);
    if makes_id {
        // SAFETY: it writes the id.
        require(unsafe { (functions.ncclGetUniqueId)(&raw mut id) })?;
    }
    let mut bytes = [0; GREETING_BYTES];
    bytes[..VERSION_BYTES].copy_from_slice(&version.to_le_bytes());
    bytes[VERSION_BYTES] = is_known.into();
    bytes[VERSION_BYTES + 1..].copy_from_slice(&id.0);
    Ok(Greeting { functions, bytes })
}

/// Checks that all ranks have the same NCCL: versions do not understand each other. `ranks` are
/// those of the world.
fn require_same_version(greetings: &[u8], ranks: &[usize]) -> Result<(), Error> {
    let version = |greeting: &[u8]| {
        let bytes: [u8; VERSION_BYTES] = std::array::from_fn(|index| greeting[index]);
        c_int::from_le_bytes(bytes)
    };
    let expected = version(greetings);
    for (rank, found) in ranks.iter().zip(greetings.chunks(GREETING_BYTES).map(version)) {
        if found == 0 {
            return Err(start(format!("rank {rank} cannot use NCCL; see its error")));
        }
        if found != expected {
            let first = ranks[0];
            return Err(start(format!(
                "rank {first} has NCCL {expected}, rank {rank} has {found}: install the same \
                 version"
            )));
        }
    }
    Ok(())
}

/// The id that a rank of the group has made.
fn id_of(greetings: &[u8], member: usize) -> UniqueId {
    let id = &greetings[member * GREETING_BYTES + VERSION_BYTES + 1..];
    UniqueId(std::array::from_fn(|index| id[index]))
}

/// Returns whether all of some ranks of the group have a communicator, or none; `None` if only some
/// have one. All of these ranks find the same.
fn are_connected(greetings: &[u8], members: &[usize]) -> Option<bool> {
    let is_known = |member: &usize| greetings[member * GREETING_BYTES + VERSION_BYTES] != 0;
    match members.iter().filter(|member| is_known(member)).count() {
        0 => Some(false),
        known if known == members.len() => Some(true),
        _ => None,
    }
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
            [&version.to_le_bytes()[..], &[u8::from(rank > 0)], &id].concat()
        };
        versions.iter().enumerate().flat_map(greeting).collect()
    }

    #[test]
    fn a_line_takes_the_id_of_its_first_rank() {
        let greetings = greetings(&[22_803, 22_803, 22_803]);
        assert_eq!(id_of(&greetings, 0).0, [7; UniqueId::BYTES]);
        assert_eq!(id_of(&greetings, 2).0, [9; UniqueId::BYTES]);
    }

    #[test]
    fn a_communicator_is_used_again_if_all_of_its_ranks_have_it() {
        let greetings = greetings(&[22_803; 4]);
        let found = [&[1, 3][..], &[0], &[0, 1]].map(|ranks| are_connected(&greetings, ranks));
        assert_eq!(found, [Some(true), Some(false), None]);
    }

    #[test]
    fn ranks_need_the_same_nccl_and_are_named_by_those_of_the_world() {
        let check = |versions: &[c_int]| require_same_version(&greetings(versions), &[4, 2, 6]);
        check(&[22_803, 22_803, 22_803]).unwrap();
        let refused = |versions: &[c_int]| check(versions).unwrap_err().to_string();
        let older = refused(&[22_803, 22_803, 21_903]);
        assert!(older.contains("rank 4 has NCCL 22803, rank 6 has 21903"), "{older}");
        for (versions, without) in [([22_803, 0], "rank 2"), ([0, 22_803], "rank 4")] {
            let text = refused(&versions);
            assert!(text.contains(&format!("{without} cannot use NCCL")), "{text}");
        }
    }
}
