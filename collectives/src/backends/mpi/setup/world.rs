//! Initialising and finalising MPI.
#![allow(unsafe_code)]

use std::ffi::c_int;
use std::ptr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use mpi::ffi::{self, MPI_Comm};

use crate::backends::footprint::PIPELINE_DEPTH;
use crate::backends::mpi::library::calls::{self, Call, ErrorCode, Message};
use crate::backends::mpi::library::communicator;
use crate::core::group::Membership;
use crate::{Channel, Dtype, Operation};

/// Interval between two polls of the last barrier.
const POLL_INTERVAL: Duration = Duration::from_micros(50);

/// All ranks, with a communicator for each channel. Lives on the communication thread.
#[derive(Debug, Clone, Copy)]
pub(crate) struct World {
    pub(crate) rank: usize,
    pub(crate) size: usize,
    pub(crate) data: MPI_Comm,
    pub(crate) control: MPI_Comm,
}

/// Ranks that exchange messages.
#[derive(Debug, Clone)]
pub(crate) struct Group {
    pub(crate) communicator: MPI_Comm,
    /// Index of this rank in the group.
    pub(crate) member: usize,
    /// Rank of each member in the communicator.
    pub(crate) ranks: Arc<[usize]>,
    /// Rank of each member in the world, where the absence of its messages shows that it has not
    /// entered an operation; not so where members may still wait for other ranks.
    pub(crate) named: Option<Arc<[usize]>>,
    /// Number of the group's dimension, which owns a block of tags.
    pub(crate) number: u8,
    /// Block of tags among those of the number's exchanges.
    pub(crate) exchange_block: u16,
}

/// Tags of the groups of one dimension: those of users, then those of exchanges.
const TAGS_PER_NUMBER: u16 = 2 * (Operation::TAG_MAX + 1);

impl Group {
    /// Tags of an exchange.
    pub(crate) const EXCHANGE_TAGS: u16 = 2 * PIPELINE_DEPTH as u16;

    pub(crate) fn members(&self) -> usize {
        self.ranks.len()
    }

    /// The tag in the communicator of a user's message.
    pub(crate) fn tag(&self, tag: u16) -> u16 {
        u16::from(self.number) * TAGS_PER_NUMBER + tag
    }

    /// The tag in the communicator of an exchange's messages.
    pub(crate) fn exchange_tag(&self, tag: u16) -> u16 {
        self.tag(Operation::TAG_MAX + 1 + self.exchange_block * Self::EXCHANGE_TAGS + tag)
    }
}

impl World {
    /// Initialises MPI on this thread, and duplicates the world for each channel.
    ///
    /// Thread level "funneled" is enough, because only this thread ever calls MPI.
    ///
    /// # Errors
    /// Returns a description of the failure.
    pub(crate) fn initialise() -> Result<Self, String> {
        let mut initialised = 0;
        // SAFETY: the call is allowed at any time, and writes one integer.
        unsafe { ffi::MPI_Initialized(&mut initialised) };
        if initialised != 0 {
            return Err("MPI was initialised before in this process".to_owned());
        }
        let mut level = 0;
        // SAFETY: null arguments are allowed since MPI-2; checked not to be initialised.
        let code = unsafe {
            let required = ffi::RSMPI_THREAD_FUNNELED;
            ffi::MPI_Init_thread(ptr::null_mut(), ptr::null_mut(), required, &mut level)
        };
        check_initialised(code, level)?;
        Self::duplicated().map_err(ErrorCode::text)
    }

    /// The ranks of a group of this world, on one channel.
    pub(crate) fn group(self, membership: &Membership, channel: Channel) -> Group {
        let ranks: Arc<[usize]> = membership.plan.ranks.clone().into();
        Group {
            communicator: match channel {
                Channel::Data => self.data,
                Channel::Control => self.control,
            },
            member: membership.member,
            ranks: ranks.clone(),
            named: Some(ranks),
            number: membership.plan.number,
            exchange_block: 0,
        }
    }

    fn duplicated() -> Result<Self, ErrorCode> {
        // SAFETY: MPI is initialised; constants of mpi-sys's C file.
        let world = unsafe {
            let world = ffi::RSMPI_COMM_WORLD;
            // Errors outside of any communicator go to the handler of the world or of self.
            for communicator in [world, ffi::RSMPI_COMM_SELF] {
                let code = ffi::MPI_Comm_set_errhandler(communicator, ffi::RSMPI_ERRORS_RETURN);
                calls::check(code)?;
            }
            world
        };
        Ok(Self {
            rank: communicator::rank(world)?,
            size: communicator::size(world)?,
            data: communicator::duplicate(world)?,
            control: communicator::duplicate(world)?,
        })
    }

    /// Waits for all ranks in a last barrier, frees the communicators, of which `more` is one, and
    /// finalises MPI. `false` when a rank did not enter the barrier in time: MPI_Finalize would
    /// then block for ever, and is left out.
    pub(crate) fn finalise(
        self,
        more: Option<MPI_Comm>,
        deadline: Instant,
    ) -> Result<bool, ErrorCode> {
        if !self.last_barrier(deadline)? {
            return Ok(false);
        }
        // No message is in flight any more on any communicator.
        for communicator in [self.data, self.control].into_iter().chain(more) {
            communicator::free(communicator)?;
        }
        // SAFETY: no call of MPI follows.
        calls::check(unsafe { ffi::MPI_Finalize() })?;
        Ok(true)
    }

    fn last_barrier(self, deadline: Instant) -> Result<bool, ErrorCode> {
        let datatype = calls::datatype(Dtype::U8);
        let empty = Message { start: ptr::null_mut(), count: 0, datatype };
        // SAFETY: a barrier has no memory.
        let mut request = unsafe { calls::start(Call::Barrier, empty, self.control) }?;
        loop {
            let mut is_over = 0;
            // SAFETY: our own request; the status is not wanted.
            let code =
                unsafe { ffi::MPI_Test(&mut request, &mut is_over, ffi::RSMPI_STATUS_IGNORE) };
            calls::check(code)?;
            if is_over != 0 {
                return Ok(true);
            }
            if Instant::now() >= deadline {
                return Ok(false);
            }
            std::thread::sleep(POLL_INTERVAL);
        }
    }
}

/// Checks that MPI has started as required. After a failure MPI is not initialised, and has no
/// message for its code.
fn check_initialised(code: c_int, level: c_int) -> Result<(), String> {
    // SAFETY: a constant of mpi-sys's C file.
    let required = unsafe { ffi::RSMPI_THREAD_FUNNELED };
    if let Err(code) = calls::check(code) {
        return Err(format!("MPI_Init_thread failed with code {}", code.raw()));
    }
    // MPI guarantees that a higher level is a larger number.
    if level < required {
        return Err(format!(
            "MPI provides thread level {level}, {required} (MPI_THREAD_FUNNELED) is required: this \
             MPI library was built without support for threads"
        ));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::GroupPlan;

    #[test]
    fn dimensions_have_tags_of_their_own_below_the_largest_that_mpi_guarantees() {
        let mut end = 0;
        for number in 0..=GroupPlan::NUMBER_MAX {
            // SAFETY: a constant of mpi-sys's C file.
            let communicator = unsafe { ffi::RSMPI_COMM_NULL };
            let ranks: Arc<[usize]> = [0].into();
            let group =
                Group { communicator, member: 0, ranks, named: None, number, exchange_block: 0 };
            assert_eq!(group.tag(0), end);
            assert_eq!(group.exchange_tag(0), group.tag(Operation::TAG_MAX) + 1);
            end = group.exchange_tag(Operation::TAG_MAX) + 1;
        }
        assert_eq!(end, 1 << 15);
    }

    /// MPI is not initialised here: asking it for a message would end the process.
    #[test]
    fn a_failed_start_is_reported_without_calling_mpi() {
        // SAFETY: constants of mpi-sys's C file.
        let [single, funneled, multiple] = unsafe {
            [ffi::RSMPI_THREAD_SINGLE, ffi::RSMPI_THREAD_FUNNELED, ffi::RSMPI_THREAD_MULTIPLE]
        };
        let text = check_initialised(16, multiple).unwrap_err();
        assert!(text.contains("MPI_Init_thread") && text.contains("16"), "{text}");
        let text = check_initialised(0, single).unwrap_err();
        assert!(text.contains("MPI_THREAD_FUNNELED"), "{text}");
        check_initialised(0, funneled).unwrap();
        check_initialised(0, multiple).unwrap();
    }
}
