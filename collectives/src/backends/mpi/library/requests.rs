//! The requests that MPI has not completed.
#![allow(unsafe_code)]

use std::ffi::c_int;

use mpi::ffi::{self, MPI_Comm, MPI_Request, MPI_Status};

use super::calls::{self, Call, ErrorCode, Message};
use crate::OUTSTANDING_MAX;

/// All pending requests, each with its purpose. Lives on the communication thread.
#[derive(Debug)]
pub(crate) struct Requests<Purpose> {
    /// Most requests that there is room for.
    most: usize,
    requests: Vec<MPI_Request>,
    /// Purpose and expected message of each request.
    entries: Vec<Entry<Purpose>>,
    /// Requests that the last test found complete.
    complete: Vec<c_int>,
    /// Status of each complete request.
    statuses: Vec<MPI_Status>,
}

#[derive(Debug)]
struct Entry<Purpose> {
    purpose: Purpose,
    /// The message that a receive must get.
    expected: Option<Message>,
}

/// Cause of a failed request.
#[derive(Debug)]
pub(crate) enum RequestError {
    /// MPI reports an error.
    Failed(ErrorCode),
    /// A message has another number of elements. MPI accepts those that are too short.
    WrongLength { expected: c_int, found: c_int },
}

/// A request that failed.
#[derive(Debug)]
pub(crate) struct FailedRequest<Purpose> {
    pub(crate) purpose: Purpose,
    pub(crate) error: RequestError,
}

impl<Purpose: Copy> Requests<Purpose> {
    /// No requests, and room for one per outstanding operation.
    pub(crate) fn new() -> Self {
        let mut requests = Self {
            most: 0,
            requests: Vec::new(),
            entries: Vec::new(),
            complete: Vec::new(),
            statuses: Vec::new(),
        };
        requests.add_room(OUTSTANDING_MAX);
        requests
    }

    pub(crate) fn len(&self) -> usize {
        self.requests.len()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.requests.is_empty()
    }

    /// Makes room for more requests. Allocates.
    pub(crate) fn add_room(&mut self, more: usize) {
        self.most += more;
        self.requests.reserve_exact(self.most.saturating_sub(self.requests.len()));
        self.entries.reserve_exact(self.most.saturating_sub(self.entries.len()));
        self.complete.reserve_exact(self.most.saturating_sub(self.complete.len()));
        self.statuses.reserve_exact(self.most.saturating_sub(self.statuses.len()));
    }

    /// The purposes of all pending requests.
    pub(crate) fn purposes(&self) -> impl Iterator<Item = Purpose> {
        self.entries.iter().map(|entry| entry.purpose)
    }

    /// Starts a call of MPI, and adds its request.
    ///
    /// # Safety
    /// The caller upholds the contract of [`calls::start`].
    pub(crate) unsafe fn start(
        &mut self,
        purpose: Purpose,
        call: Call,
        message: Message,
        communicator: MPI_Comm,
    ) -> Result<(), ErrorCode> {
        // SAFETY: the caller's promise.
        let request = unsafe { calls::start(call, message, communicator) }?;
        let is_received = matches!(call, Call::Receive { .. });
        self.requests.push(request);
        self.entries.push(Entry { purpose, expected: is_received.then_some(message) });
        Ok(())
    }

    /// Lets MPI progress, and finds the complete requests.
    pub(crate) fn test(&mut self) -> Result<(), FailedRequest<Purpose>> {
        let len = self.requests.len();
        // SAFETY: a status is plain integers.
        self.statuses.resize_with(len, || unsafe { std::mem::zeroed() });
        self.complete.resize(len, 0);
        let mut count = 0;
        // SAFETY: three arrays of `len` entries.
        let code = unsafe {
            let requests = self.requests.as_mut_ptr();
            let indices = self.complete.as_mut_ptr();
            let statuses = self.statuses.as_mut_ptr();
            ffi::MPI_Testsome(len as c_int, requests, &mut count, indices, statuses)
        };
        let complete = usize::try_from(count).unwrap_or(0); // MPI_UNDEFINED is negative
        self.complete.truncate(complete);
        if let Err(code) = calls::check(code) {
            let failed = first_failure(&self.complete, &self.statuses);
            let failed = failed.filter(|_| code.is_in_status());
            let Failure { index, code } = failed.unwrap_or(Failure { index: 0, code });
            return Err(self.failed(index, RequestError::Failed(code)));
        }
        self.check_lengths()
    }

    /// A message that is too long is an error of MPI's; one that is too short is not.
    fn check_lengths(&self) -> Result<(), FailedRequest<Purpose>> {
        for (&index, status) in self.complete.iter().zip(&self.statuses) {
            let index = index as usize;
            let Some(Message { count: expected, datatype, .. }) = self.entries[index].expected
            else {
                continue;
            };
            let found = calls::received(status, datatype)
                .map_err(|code| self.failed(index, RequestError::Failed(code)))?;
            if found != expected {
                let error = RequestError::WrongLength { expected, found };
                return Err(self.failed(index, error));
            }
        }
        Ok(())
    }

    fn failed(&self, index: usize, error: RequestError) -> FailedRequest<Purpose> {
        FailedRequest { purpose: self.entries[index].purpose, error }
    }

    /// Removes the requests that the last test found complete. Returns whether there were any.
    pub(crate) fn take_complete(&mut self, mut take: impl FnMut(Purpose)) -> bool {
        // From the back, so that removing one does not move those that are still to be removed.
        self.complete.sort_unstable_by(|a, b| b.cmp(a));
        for &index in &self.complete {
            self.requests.swap_remove(index as usize);
            take(self.entries.swap_remove(index as usize).purpose);
        }
        let any = !self.complete.is_empty();
        self.complete.clear();
        any
    }
}

#[derive(Debug, Clone, Copy)]
struct Failure {
    index: usize,
    code: ErrorCode,
}

/// The first of the complete requests whose status is an error.
fn first_failure(complete: &[c_int], statuses: &[MPI_Status]) -> Option<Failure> {
    complete.iter().zip(statuses).find_map(|(&index, status)| {
        let code = calls::check(status.MPI_ERROR).err()?;
        Some(Failure { index: index as usize, code })
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
        let found = first_failure(&[4, 7, 2], &statuses).unwrap();
        assert_eq!((found.index, found.code.raw()), (7, 15));
        assert!(first_failure(&[4], &statuses).is_none(), "then the call's own code counts");
        assert!(first_failure(&[], &statuses).is_none());
    }
}
