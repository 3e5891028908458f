//! What MPI was asked for and has not finished.

use std::ffi::c_int;

use mpi::ffi::{self, MPI_Request, MPI_Status};

use super::calls::{self, Code};
use crate::{Channel, OUTSTANDING_MAX};

/// All requests in the air. Lives on the communication thread.
#[derive(Debug)]
pub(super) struct Requests {
    requests: Vec<MPI_Request>,
    /// What each request is for, in the same order.
    errands: Vec<Errand>,
    /// Those found complete.
    indices: Vec<c_int>,
    statuses: Vec<MPI_Status>,
}

/// What a request is for.
#[derive(Debug, Clone, Copy)]
pub(super) struct Errand {
    pub(super) slot: u32,
    pub(super) of: Of,
    /// Elements of a message that is received, and their type.
    pub(super) expected: Option<(c_int, crate::Dtype)>,
}

/// Whose request it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Of {
    /// The operation's own.
    Operation,
    /// A piece's in the exchange of a channel: its place there.
    Piece(Channel, usize),
}

/// What is wrong with a request.
#[derive(Debug)]
pub(super) enum Trouble {
    /// MPI says so.
    Failed(Code),
    /// A message of as many elements where others were expected: MPI lets short ones pass.
    Short { expected: c_int, found: c_int },
}

impl Requests {
    /// None, with room for `more` beside the operations' own.
    pub(super) fn new(more: usize) -> Self {
        let room = OUTSTANDING_MAX + more;
        Self {
            requests: Vec::with_capacity(room),
            errands: Vec::with_capacity(room),
            indices: Vec::with_capacity(room),
            statuses: Vec::with_capacity(room),
        }
    }

    pub(super) fn len(&self) -> usize {
        self.requests.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.requests.is_empty()
    }

    pub(super) fn push(&mut self, request: MPI_Request, errand: Errand) {
        self.requests.push(request);
        self.errands.push(errand);
    }

    /// Lets MPI work, and looks once which requests are complete.
    pub(super) fn test(&mut self) -> Result<(), (u32, Trouble)> {
        let len = self.requests.len();
        // SAFETY: a status is plain integers.
        self.statuses.resize_with(len, || unsafe { std::mem::zeroed() });
        self.indices.resize(len, 0);
        let mut count = 0;
        // SAFETY: three arrays of `len` entries.
        let code = unsafe {
            let (requests, indices) = (self.requests.as_mut_ptr(), self.indices.as_mut_ptr());
            let statuses = self.statuses.as_mut_ptr();
            ffi::MPI_Testsome(len as c_int, requests, &mut count, indices, statuses)
        };
        let complete = usize::try_from(count).unwrap_or(0); // MPI_UNDEFINED is negative
        self.indices.truncate(complete);
        if let Err(code) = calls::check(code) {
            let first = first_failure(&self.indices, &self.statuses);
            let (index, code) = first.filter(|_| code.is_in_status()).unwrap_or((0, code));
            return Err((self.errands[index].slot, Trouble::Failed(code)));
        }
        self.check_received()
    }

    /// A message that is too long is MPI's error; one that is too short is ours to notice.
    fn check_received(&self) -> Result<(), (u32, Trouble)> {
        for (position, &index) in self.indices.iter().enumerate() {
            let Errand { slot, expected, .. } = self.errands[index as usize];
            let Some((expected, dtype)) = expected else { continue };
            let found = calls::received(&self.statuses[position], calls::datatype(dtype));
            let found = found.map_err(|code| (slot, Trouble::Failed(code)))?;
            if found != expected {
                return Err((slot, Trouble::Short { expected, found }));
            }
        }
        Ok(())
    }

    /// Takes out those found complete. Says whether there were any.
    pub(super) fn take(&mut self, mut complete: impl FnMut(Errand)) -> bool {
        // From the back, so that taking one out does not move those still to be looked at.
        self.indices.sort_unstable_by(|a, b| b.cmp(a));
        for &index in &self.indices {
            self.requests.swap_remove(index as usize);
            complete(self.errands.swap_remove(index as usize));
        }
        let any = !self.indices.is_empty();
        self.indices.clear();
        any
    }
}

/// The first request, of those that are complete, whose status has an error.
fn first_failure(indices: &[c_int], statuses: &[MPI_Status]) -> Option<(usize, Code)> {
    let complete = indices.iter().zip(statuses);
    complete.into_iter().find_map(|(&index, status)| {
        let code = calls::check(status.MPI_ERROR).err()?;
        Some((index as usize, code))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_status_with_an_error_names_its_request() {
        let status = |code: c_int| {
            // SAFETY: a status is plain integers.
            let mut status: MPI_Status = unsafe { std::mem::zeroed() };
            status.MPI_ERROR = code;
            status
        };
        let statuses = [0, 15, 3, 9].map(status); // the last is of no complete request
        let found = first_failure(&[4, 7, 2], &statuses).map(|(index, code)| (index, code.raw()));
        assert_eq!(found, Some((7, 15)));
        assert!(first_failure(&[4], &statuses).is_none(), "then the call's own code counts");
        assert!(first_failure(&[], &statuses).is_none());
    }
}
