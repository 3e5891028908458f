//! The operations that MPI is working on, each one request or several.

use std::ffi::{c_int, c_void};
use std::ops::Range;
use std::time::Instant;

use mpi::ffi::{self, MPI_Comm, MPI_Request, MPI_Status};

use super::calls::{self, Call, Code, Piece};
use super::plan::Plan;
use super::world::World;
use crate::slots::Job;
use crate::{Channel, Error, OUTSTANDING_MAX, Operation, Timing};

/// A failed operation: its slot and its error.
pub(super) type Failure = (u32, Error);

/// All requests in the air. Lives on the communication thread.
#[derive(Debug)]
pub(super) struct Flight {
    world: World,
    chunk_elements_max: usize,
    requests: Vec<MPI_Request>,
    /// What each request is for, in the same order.
    parts: Vec<Part>,
    /// By slot.
    running: Box<[Option<Running>]>,
    indices: Vec<c_int>,
    statuses: Vec<MPI_Status>,
}

#[derive(Debug, Clone, Copy)]
struct Part {
    slot: u32,
    count: c_int,
}

#[derive(Debug, Clone, Copy)]
struct Running {
    job: Job,
    started: Instant,
    requests: usize,
    /// MPI does all of the operation, and not only what is left of it between nodes.
    is_whole: bool,
}

/// A communicator, and this rank's number in it.
#[derive(Debug, Clone, Copy)]
struct Group {
    communicator: MPI_Comm,
    rank: usize,
}

impl Flight {
    pub(super) fn new(world: World, chunk_elements_max: usize) -> Self {
        Self {
            world,
            chunk_elements_max,
            requests: Vec::with_capacity(OUTSTANDING_MAX),
            parts: Vec::with_capacity(OUTSTANDING_MAX),
            running: vec![None; OUTSTANDING_MAX].into(),
            indices: Vec::with_capacity(OUTSTANDING_MAX),
            statuses: Vec::with_capacity(OUTSTANDING_MAX),
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.requests.is_empty()
    }

    /// Hands an operation to MPI, all chunks at once.
    ///
    /// All at once, because MPI wants the collective calls of a communicator in the same order on
    /// all ranks, and a window that moves with completions would follow each rank's own timing.
    pub(super) fn start(&mut self, slot: u32, job: Job) -> Result<(), Failure> {
        let started = Instant::now();
        let before = self.requests.len();
        let outcome = self.start_pieces(slot, job);
        outcome.map_err(|code| (slot, code.of(job.operation, self.world.rank)))?;
        let requests = self.requests.len() - before;
        self.running[slot as usize] = Some(Running { job, started, requests, is_whole: true });
        Ok(())
    }

    /// Hands to MPI what an operation does between nodes; `false` if that is nothing.
    pub(super) fn start_across(
        &mut self,
        slot: u32,
        plan: Plan<'_>,
        communicator: MPI_Comm,
    ) -> Result<bool, Failure> {
        let (started, before, job) = (Instant::now(), self.requests.len(), plan.job);
        let group = Group { communicator, rank: plan.layout.node };
        let outcome = plan.across(|call, range| match range.is_empty() {
            true => Ok(()),
            false => self.chunks(slot, job, call, range, group),
        });
        outcome.map_err(|code| (slot, code.of(job.operation, self.world.rank)))?;
        let requests = self.requests.len() - before;
        if requests == 0 {
            return Ok(false);
        }
        self.running[slot as usize] = Some(Running { job, started, requests, is_whole: false });
        Ok(true)
    }

    fn start_pieces(&mut self, slot: u32, job: Job) -> Result<(), Code> {
        let (world, len) = (self.world.size, job.memory.len());
        let part = |owner: usize| owner * (len / world)..(owner + 1) * (len / world);
        let whole = len <= self.chunk_elements_max;
        let World { rank, data, control, .. } = self.world;
        let communicator = match job.channel {
            Channel::Data => data,
            Channel::Control => control,
        };
        let group = Group { communicator, rank };
        let mut chunks = |call, range| self.chunks(slot, job, call, range, group);
        match job.operation {
            Operation::AllReduceSum => chunks(Call::AllReduce, 0..len),
            Operation::Broadcast { root } => chunks(Call::Broadcast { root }, 0..len),
            Operation::Barrier => chunks(Call::Barrier, 0..0),
            Operation::Send { to, tag } => chunks(Call::Send { to, tag }, 0..len),
            Operation::Receive { from, tag } => chunks(Call::Receive { from, tag }, 0..len),
            Operation::ReduceScatterSum if whole => chunks(Call::ReduceScatter, part(0)),
            Operation::AllGather if whole => chunks(Call::AllGather, part(0)),
            // Beyond the limit a chunk of all parts is not contiguous: one part after another.
            Operation::ReduceScatterSum => {
                (0..world).try_for_each(|root| chunks(Call::Reduce { root }, part(root)))
            }
            Operation::AllGather => {
                (0..world).try_for_each(|root| chunks(Call::Broadcast { root }, part(root)))
            }
        }
    }

    /// Cuts a range into chunks of the limit and a shorter one, and starts each. No elements are
    /// one empty chunk.
    ///
    /// A message always ends with its shorter chunk, empty where the length is a multiple of the
    /// limit: else a message that is too long by whole chunks would leave them to the next receive.
    fn chunks(
        &mut self,
        slot: u32,
        job: Job,
        call: Call,
        range: Range<usize>,
        group: Group,
    ) -> Result<(), Code> {
        let Group { communicator, rank } = group;
        let chunk = self.chunk_elements_max;
        let chunks = match call {
            Call::Send { .. } | Call::Receive { .. } => range.len() / chunk + 1,
            _ => range.len().div_ceil(chunk).max(1),
        };
        for index in 0..chunks {
            let start = range.start + index * chunk;
            let piece = piece(job, start, chunk.min(range.end - start));
            // SAFETY: `submit` promised that the memory is valid and ours until the end.
            let request = unsafe { calls::start(call, piece, communicator, rank) }?;
            self.requests.push(request);
            self.parts.push(Part { slot, count: piece.count });
        }
        Ok(())
    }

    /// Looks once, and tells what is over. Touches no memory when `is_dead` says so after MPI was
    /// called, because the call may have outlasted the patience of the memory's owners.
    pub(super) fn poll(
        &mut self,
        is_dead: impl Fn() -> bool,
        mut over: impl FnMut(u32, Timing),
    ) -> Result<(), Failure> {
        if self.requests.is_empty() {
            return Ok(());
        }
        self.test_some()?;
        if self.indices.is_empty() || is_dead() {
            return Ok(());
        }
        // From the back, so that taking one out does not move those still to be looked at.
        self.indices.sort_unstable_by(|a, b| b.cmp(a));
        for position in 0..self.indices.len() {
            let index = self.indices[position] as usize;
            self.requests.swap_remove(index);
            let Part { slot, .. } = self.parts.swap_remove(index);
            let Some(running) = &mut self.running[slot as usize] else { continue };
            running.requests -= 1;
            if running.requests == 0 {
                let Running { job, started, is_whole, .. } = *running;
                self.running[slot as usize] = None;
                if is_whole {
                    self.settle(job);
                }
                over(slot, job.done(started));
            }
        }
        Ok(())
    }

    /// Fills `indices` with the requests that are complete.
    fn test_some(&mut self) -> Result<(), Failure> {
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
            return Err(self.failure(self.parts[index].slot, code));
        }
        self.check_received()
    }

    fn failure(&self, slot: u32, code: Code) -> Failure {
        let operation = self.operation(slot);
        (slot, code.of(operation, self.world.rank))
    }

    fn operation(&self, slot: u32) -> Operation {
        self.running[slot as usize].map_or(Operation::Barrier, |running| running.job.operation)
    }

    /// A message that is too long is MPI's error; one that is too short is ours to notice.
    fn check_received(&self) -> Result<(), Failure> {
        for (position, &index) in self.indices.iter().enumerate() {
            let Part { slot, count } = self.parts[index as usize];
            let Some(Running { job, .. }) = self.running[slot as usize] else { continue };
            if !matches!(job.operation, Operation::Receive { .. }) {
                continue;
            }
            let datatype = calls::datatype(job.memory.dtype());
            let found = calls::received(&self.statuses[position], datatype);
            let found = found.map_err(|code| self.failure(slot, code))?;
            if found != count {
                let text = format!("expected a message of {count} elements, found {found}");
                let rank = self.world.rank;
                return Err((slot, Error::Mismatch { operation: job.operation, rank, text }));
            }
        }
        Ok(())
    }

    /// MPI leaves the result of an in-place reduce-scatter at the start; it belongs to our part.
    /// The first part becomes zeros: sums of another place must not be taken for anything there.
    fn settle(&self, job: Job) {
        let memory = job.memory;
        let chunked = memory.len() > self.chunk_elements_max;
        if job.operation != Operation::ReduceScatterSum || chunked {
            return;
        }
        let part_bytes = memory.bytes() / self.world.size;
        // SAFETY: the memory is still lent; both parts lie inside it.
        unsafe {
            let start = memory.pointer().as_ptr();
            start.add(self.world.rank * part_bytes).copy_from(start, part_bytes);
            if self.world.rank > 0 {
                start.write_bytes(0, part_bytes);
            }
        }
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

fn piece(job: Job, start: usize, count: usize) -> Piece {
    /// Stands for no memory: Rust's address of no bytes is 1, which is Open MPI's MPI_IN_PLACE.
    static NOTHING: u64 = 0;
    let memory = job.memory;
    let pointer = if memory.is_empty() {
        std::ptr::from_ref(&NOTHING).cast::<u8>().cast_mut()
    } else {
        // SAFETY: `start` lies inside the memory or at its end.
        unsafe { memory.pointer().as_ptr().add(start * memory.dtype().bytes()) }
    };
    // The chunk limit is at most what a C int holds: checked when the backend was opened.
    let count = c_int::try_from(count).unwrap_or(c_int::MAX);
    Piece { pointer: pointer.cast::<c_void>(), count, datatype: calls::datatype(memory.dtype()) }
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
