//! Entering and leaving MPI.

use std::ffi::c_int;
use std::ptr;
use std::time::{Duration, Instant};

use mpi::ffi::{self, MPI_Comm};

use super::calls::{self, Call, Code, Piece};
use super::shared::NAME;
use crate::{Dtype, Error};

/// The group as MPI sees it. Lives on the communication thread.
#[derive(Debug, Clone, Copy)]
pub(super) struct World {
    pub(super) rank: usize,
    pub(super) size: usize,
    pub(super) data: MPI_Comm,
    pub(super) control: MPI_Comm,
    /// Between nodes, where those of one node share memory.
    pub(super) across: Option<Group>,
}

/// A communicator, this rank's number in it, and how many there are.
#[derive(Debug, Clone, Copy)]
pub(super) struct Group {
    pub(super) communicator: MPI_Comm,
    pub(super) member: usize,
    pub(super) members: usize,
}

impl World {
    /// Initialises MPI on this thread, and duplicates the world for each channel.
    ///
    /// Thread level "funneled" is enough, because only this thread ever calls MPI.
    pub(super) fn enter() -> Result<Self, Error> {
        let start = |text: String| Error::Start { backend: NAME, text };
        let mut initialised = 0;
        let mut level = 0;
        // SAFETY: the call is allowed at any time, and writes one integer.
        unsafe { ffi::MPI_Initialized(&mut initialised) };
        if initialised != 0 {
            return Err(start("MPI was initialised before in this process".to_owned()));
        }
        // SAFETY: null arguments are allowed since MPI-2; checked not to be initialised.
        let code = unsafe {
            let wanted = ffi::RSMPI_THREAD_FUNNELED;
            ffi::MPI_Init_thread(ptr::null_mut(), ptr::null_mut(), wanted, &mut level)
        };
        initialised_well(code, level).map_err(start)?;
        Self::describe().map_err(|code| start(code.text()))
    }

    fn describe() -> Result<Self, Code> {
        // SAFETY: MPI is initialised; constants of mpi-sys's C file.
        let world = unsafe {
            let world = ffi::RSMPI_COMM_WORLD;
            // Errors outside of any communicator go to the world's handler or to self's.
            for communicator in [world, ffi::RSMPI_COMM_SELF] {
                let code = ffi::MPI_Comm_set_errhandler(communicator, ffi::RSMPI_ERRORS_RETURN);
                calls::check(code)?;
            }
            world
        };
        let (rank, size) = calls::rank_and_size(world)?;
        let [data, control] = [duplicate()?, duplicate()?];
        Ok(Self { rank, size, data, control, across: None })
    }

    /// Meets the others a last time and finalises MPI. `false` when somebody did not come in time:
    /// MPI_Finalize would then block for good, and is left to the end of the process.
    pub(super) fn leave(self, deadline: Instant) -> Result<bool, Code> {
        let datatype = calls::datatype(Dtype::U8);
        let nothing = Piece { pointer: ptr::null_mut(), count: 0, datatype };
        // SAFETY: a barrier has no memory.
        let mut request = unsafe { calls::start(Call::Barrier, nothing, self.control) }?;
        let mut over = 0;
        while over == 0 {
            // SAFETY: our own request; the status is not wanted.
            let status = unsafe { ffi::RSMPI_STATUS_IGNORE };
            // SAFETY: as above.
            calls::check(unsafe { ffi::MPI_Test(&mut request, &mut over, status) })?;
            if over == 0 && Instant::now() >= deadline {
                return Ok(false);
            }
            std::thread::sleep(Duration::from_micros(if over == 0 { 50 } else { 0 }));
        }
        // Nothing is in the air any more on any communicator.
        let across = self.across.map(|group| group.communicator);
        for communicator in [self.data, self.control].into_iter().chain(across) {
            calls::free(communicator)?;
        }
        // SAFETY: no call of MPI follows.
        calls::check(unsafe { ffi::MPI_Finalize() })?;
        Ok(true)
    }
}

/// Whether MPI came up as needed. After a failure MPI is not up, and has no words for its code.
fn initialised_well(code: c_int, level: c_int) -> Result<(), String> {
    // SAFETY: a constant of mpi-sys's C file.
    let wanted = unsafe { ffi::RSMPI_THREAD_FUNNELED };
    if let Err(code) = calls::check(code) {
        return Err(format!("MPI_Init_thread failed with code {}", code.raw()));
    }
    // MPI promises that a higher level is a larger number.
    if level < wanted {
        return Err(format!(
            "MPI gives thread level {level}, {wanted} (MPI_THREAD_FUNNELED) is needed: this MPI \
             library was built without support for threads"
        ));
    }
    Ok(())
}

fn duplicate() -> Result<MPI_Comm, Code> {
    // SAFETY: MPI is initialised; a duplicate inherits the error handler.
    unsafe {
        let mut communicator = ffi::RSMPI_COMM_NULL;
        calls::check(ffi::MPI_Comm_dup(ffi::RSMPI_COMM_WORLD, &mut communicator))?;
        Ok(communicator)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// MPI is not initialised here: asking it for words would end the process.
    #[test]
    fn a_failed_start_is_told_without_asking_mpi() {
        // SAFETY: constants of mpi-sys's C file.
        let (single, funneled, multiple) = unsafe {
            (ffi::RSMPI_THREAD_SINGLE, ffi::RSMPI_THREAD_FUNNELED, ffi::RSMPI_THREAD_MULTIPLE)
        };
        let text = initialised_well(16, multiple).unwrap_err();
        assert!(text.contains("MPI_Init_thread") && text.contains("16"), "{text}");
        let text = initialised_well(0, single).unwrap_err();
        assert!(text.contains("MPI_THREAD_FUNNELED"), "{text}");
        initialised_well(0, funneled).unwrap();
        initialised_well(0, multiple).unwrap();
    }
}
