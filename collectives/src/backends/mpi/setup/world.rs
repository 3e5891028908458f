//! Initialising and finalising MPI.
#![allow(unsafe_code)]

use std::ffi::c_int;
use std::ptr;
use std::time::{Duration, Instant};

use mpi::ffi::{self, MPI_Comm};

use crate::Dtype;
use crate::backends::mpi::library::calls::{self, Call, ErrorCode, Message};
use crate::backends::mpi::library::communicator;

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
#[derive(Debug, Clone, Copy)]
pub(crate) struct Group {
    pub(crate) communicator: MPI_Comm,
    /// Index of this rank in the group.
    pub(crate) member: usize,
    pub(crate) members: usize,
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
