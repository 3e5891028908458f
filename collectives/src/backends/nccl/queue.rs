//! One rank's queue of operations on its device, which all of its groups share.
//!
//! There is one communication stream. So the device carries out the operations of all groups in the
//! order in which the host submits them, whatever the version of NCCL: operations of two
//! communicators that run at the same time need an order that is the same on all devices.
#![allow(unsafe_code)]

use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use device::Keeper;
use device::cuda::nccl::Status;
use device::cuda::{self, Cuda, Stream};

use super::communicator::{Communicator, NotReady, Pause, Until, abort_all};
use super::device_clock::DeviceClock;
use super::failure::{Cause, Failing};
use super::group::Group;
use super::operations::{Entry, Operations};
use super::route::{Line, LineIndex, Route, Stage};
use super::{NAME, opening};
use crate::core::outstanding::Job;
use crate::{Error, Message, OUTSTANDING_MAX, Operation, RawBuffer, Settled, Ticket, Timing};

#[derive(Debug)]
pub(super) struct DeviceQueue {
    pub(super) device: Cuda,
    /// The communication stream.
    stream: Arc<Stream>,
    pub(super) timeout: Duration,
    /// This rank in the world.
    pub(super) rank: usize,
    pub(super) warning: OnceLock<String>,
    /// Reason for which another thread has stopped it. Not in the state, which a thread that waits
    /// for NCCL to take an operation has locked.
    stopped: OnceLock<Arc<str>>,
    state: Mutex<State>,
}

#[derive(Debug)]
pub(super) struct State {
    /// By the index in a [`Job`].
    pub(super) groups: Vec<Arc<Group>>,
    /// Until they are closed or aborted.
    pub(super) lines: Vec<Line>,
    pub(super) operations: Operations,
    clock: DeviceClock,
    /// Reason why no operation is accepted any more.
    dead: Option<Arc<str>>,
    /// Communicators were aborted: peers that have not done so may write to this rank's memory.
    is_aborted: bool,
}

impl State {
    pub(super) fn die(&mut self, reason: &str) {
        self.dead.get_or_insert_with(|| reason.into());
    }

    /// Stops operations in flight.
    pub(super) fn abort(&mut self) {
        let lines = std::mem::take(&mut self.lines);
        self.is_aborted |= !lines.is_empty();
        abort_all(lines.into_iter().map(|line| line.communicator));
    }

    /// The group of an operation.
    pub(super) fn group(&self, job: Job) -> &Arc<Group> {
        &self.groups[usize::from(job.group)]
    }

    /// Error of a communicator, if one reports any.
    fn line_error(&self) -> Option<Cause> {
        let states = self.lines.iter().map(|line| line.communicator.state()).enumerate();
        let mut failed =
            states.filter(|(_, state)| *state != Status::SUCCESS && *state != Status::IN_PROGRESS);
        failed.next().map(|(line, status)| Cause::Status { line, status })
    }
}

/// An operation that the host waits for.
struct Awaited {
    slot: usize,
    /// Returns whether its time counts: before that, the device computes preceding work.
    since: fn(&Entry) -> Result<bool, cuda::Error>,
}

impl DeviceQueue {
    pub(super) fn new(device: &Cuda, timeout: Duration, rank: usize) -> Result<Self, Error> {
        let state = State {
            groups: Vec::new(),
            lines: Vec::new(),
            operations: Operations::new(device),
            clock: DeviceClock::new(device).map_err(opening::start)?,
            dead: None,
            is_aborted: false,
        };
        Ok(Self {
            device: device.clone(),
            stream: device.new_urgent_stream().map_err(opening::start)?,
            timeout,
            rank,
            warning: OnceLock::new(),
            stopped: OnceLock::new(),
            state: Mutex::new(state),
        })
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The line of these ranks of the world, if there is one.
    pub(super) fn line_of(&self, ranks: &[usize]) -> Option<LineIndex> {
        self.lock().lines.iter().position(|line| line.ranks == ranks)
    }

    pub(super) fn add_line(&self, line: Line) -> LineIndex {
        let lines = &mut self.lock().lines;
        lines.push(line);
        lines.len() - 1
    }

    /// Adds a group and returns its index.
    pub(super) fn add_group(&self, group: Arc<Group>) -> u16 {
        let groups = &mut self.lock().groups;
        groups.push(group);
        (groups.len() - 1) as u16
    }

    pub(super) fn require_alive(&self, state: &State) -> Result<(), Error> {
        state.dead.as_ref().map_or(Ok(()), |reason| Err(self.dead(reason)))
    }

    fn dead(&self, reason: &Arc<str>) -> Error {
        Error::Dead { backend: NAME, rank: self.rank, reason: reason.clone() }
    }

    /// The error of everything that was stopped, once it was.
    pub(super) fn stopped(&self) -> Option<Error> {
        self.stopped.get().map(|reason| self.dead(reason))
    }

    /// The end of a wait for a communicator.
    pub(super) fn until(&self, deadline: Instant) -> Until<'_> {
        Until { deadline, stopped: &self.stopped }
    }

    /// Registers memory with the communicators of a route.
    pub(super) fn register(&self, route: Route, buffer: RawBuffer, keeper: &Keeper) {
        let mut state = self.lock();
        for index in route.lines() {
            let Some(line) = state.lines.get_mut(index) else { return };
            let current = self.device.bind().map_err(|error| error.to_string());
            let communicator = &mut line.communicator;
            let registered = current.and_then(|()| communicator.register(buffer, keeper.clone()));
            if let Err(text) = registered {
                let text =
                    format!("NCCL does not register a buffer, and copies it instead: {text}");
                let _ = self.warning.set(text); // the first stays
            }
        }
    }

    /// Submits an operation to the device, behind the computation so far.
    ///
    /// # Safety
    /// The caller upholds the contract of [`Collective::submit`](crate::Collective::submit).
    pub(super) unsafe fn submit(&self, job: Job, route: Route) -> Result<Ticket, Error> {
        let stages = || route.stages(job.operation, job.buffer);
        self.start(job, stages().count(), |lines, entry| {
            for (index, stage) in stages().enumerate() {
                if index > 0 {
                    entry.record_stage_end(&self.device, &self.stream)?;
                }
                let Stage { line, operation, buffer } = stage;
                // SAFETY: the caller's promise, of parts of the buffer.
                self.launch(lines, line, |communicator| unsafe {
                    communicator.launch(operation, buffer, &self.stream)
                })?;
            }
            Ok(())
        })
    }

    /// Submits messages between the ranks of a line to the device, behind the computation so far.
    ///
    /// # Safety
    /// The caller upholds the contract of
    /// [`Collective::submit_group`](crate::Collective::submit_group).
    pub(super) unsafe fn submit_group(
        &self,
        job: Job,
        line: LineIndex,
        messages: &[Message],
    ) -> Result<Ticket, Error> {
        self.start(job, 1, |lines, _| {
            // SAFETY: the caller's promise.
            self.launch(lines, line, |communicator| unsafe {
                communicator.launch_group(messages, &self.stream)
            })
        })
    }

    /// Enters an operation, and lets it `launch` its stages between two events.
    fn start(
        &self,
        job: Job,
        stages: usize,
        launch: impl FnOnce(&[Line], &mut Entry) -> Result<(), Cause>,
    ) -> Result<Ticket, Error> {
        self.await_room()?;
        let mut state = self.lock();
        self.require_alive(&state)?;
        let ticket = match state.operations.insert(job, stages) {
            Ok(Some(ticket)) => ticket,
            Ok(None) => {
                let Job { operation, .. } = job;
                return Err(Error::Full { operation, rank: self.rank, capacity: OUTSTANDING_MAX });
            }
            Err(error) => return Err(self.fail(state, Failing::new(job, error))),
        };
        let State { lines, operations, .. } = &mut *state;
        let entry = operations.of_mut(&ticket);
        match self.launch_between_events(lines, entry, launch) {
            Ok(()) => Ok(ticket),
            Err(cause) => Err(self.fail(state, Failing::new(job, cause))),
        }
    }

    fn launch_between_events(
        &self,
        lines: &[Line],
        entry: &mut Entry,
        launch: impl FnOnce(&[Line], &mut Entry) -> Result<(), Cause>,
    ) -> Result<(), Cause> {
        entry.order_start(self.device.compute(), &self.stream)?;
        self.device.bind()?;
        launch(lines, entry)?;
        Ok(entry.record_end(&self.stream)?)
    }

    /// Launches something on the communicator of a line, and waits until NCCL has given it to the
    /// stream: what is launched next comes after it, by whatever thread of NCCL.
    fn launch(
        &self,
        lines: &[Line],
        line: LineIndex,
        launch: impl FnOnce(&Communicator) -> Status,
    ) -> Result<(), Cause> {
        let Some(Line { communicator, .. }) = lines.get(line) else { return Ok(()) };
        let until = self.until(Instant::now() + self.timeout);
        communicator.await_ready(launch(communicator), until).map_err(|error| match error {
            NotReady::Deadline => Cause::Deadline { line: Some(line), waited: self.timeout },
            NotReady::Failed(status) => Cause::Status { line, status },
        })
    }

    /// Returns whether an operation is over; an error that NCCL reports meanwhile is returned.
    fn is_over(&self, state: &State, entry: &Entry) -> Result<bool, Cause> {
        if entry.is_over()? {
            return Ok(true);
        }
        self.device.bind()?;
        state.line_error().map_or(Ok(false), Err)
    }

    /// Waits until the deadline for an operation, and forgets it.
    pub(super) fn wait(&self, ticket: &Ticket, deadline: Instant) -> Result<Timing, Error> {
        let mut pause = Pause::default();
        loop {
            let state = self.lock();
            self.require_alive(&state)?;
            let entry = state.operations.of(ticket);
            let job = entry.job();
            let cause = match self.is_over(&state, entry) {
                Ok(true) => return self.finish(state, ticket),
                Ok(false) if Instant::now() < deadline => None,
                Ok(false) => Some(Cause::Deadline { line: None, waited: job.submitted.elapsed() }),
                Err(cause) => Some(cause),
            };
            if let Some(cause) = cause {
                let failing = Failing::behind(&state, job, cause);
                return Err(self.fail(state, failing));
            }
            drop(state);
            pause.next();
        }
    }

    /// Collects the timing of an operation that is over.
    fn finish(&self, mut state: MutexGuard<'_, State>, ticket: &Ticket) -> Result<Timing, Error> {
        let State { operations, clock, .. } = &mut *state;
        let entry = operations.of(ticket);
        let job = entry.job();
        let timing = clock.now().and_then(|now| entry.timing(&now));
        operations.release(ticket);
        timing.map_err(|error| self.fail(state, Failing::new(job, error)))
    }

    /// Lets the compute stream wait for an operation.
    pub(super) fn join(&self, ticket: &Ticket) -> Result<(), Error> {
        let mut state = self.lock();
        self.require_alive(&state)?;
        let entry = state.operations.of(ticket);
        let job = entry.job();
        if let Err(error) = entry.join(self.device.compute()) {
            return Err(self.fail(state, Failing::new(job, error)));
        }
        state.operations.add_joined(ticket);
        let before = state.operations.joined_len().checked_sub(1 + ahead_max(job.operation));
        drop(state);
        before.map_or(Ok(()), |before| self.await_joined(before, self.timeout))
    }

    /// Waits for all joined operations and reports them.
    pub(super) fn settle(
        &self,
        timeout: Duration,
        report: &mut dyn FnMut(Settled),
    ) -> Result<(), Error> {
        let joined = self.lock().operations.joined_len();
        for index in 0..joined {
            self.await_joined(index, timeout)?;
        }
        self.free_joined()?;
        self.lock().operations.take_settled().for_each(report);
        Ok(())
    }

    /// Frees the entries of joined operations that are over.
    fn free_joined(&self) -> Result<(), Error> {
        let mut state = self.lock();
        if state.operations.joined_len() == 0 {
            return Ok(());
        }
        self.require_alive(&state)?;
        let State { operations, clock, groups, .. } = &mut *state;
        let job = operations.entry(operations.joined_slot(0)).job();
        let dimension_of = |job: Job| groups[usize::from(job.group)].membership.plan.dimension;
        let freed = clock.now().and_then(|now| operations.free_joined(&now, dimension_of));
        freed.map_err(|error| self.fail(state, Failing::new(job, error)))
    }

    /// Waits for one of the joined operations. Its time counts from where the device needs it.
    fn await_joined(&self, index: usize, timeout: Duration) -> Result<(), Error> {
        let slot = self.lock().operations.joined_slot(index);
        self.await_over(&Awaited { slot, since: Entry::is_waited_for }, timeout)
    }

    /// Waits until the communication stream and the table have room for one more operation. Those
    /// that were joined keep their entries until then: a step may have any number of them.
    fn await_room(&self) -> Result<(), Error> {
        while self.lock().operations.is_full_of_joined() {
            self.await_joined(0, self.timeout)?;
            self.free_joined()?;
        }
        while let Some(slot) = { self.lock().operations.oldest_blocking() } {
            self.await_over(&Awaited { slot, since: Entry::is_ready }, self.timeout)?;
            self.lock().operations.forget(slot);
        }
        Ok(())
    }

    fn await_over(&self, awaited: &Awaited, timeout: Duration) -> Result<(), Error> {
        let mut needed_since = None;
        let mut pause = Pause::default();
        loop {
            let state = self.lock();
            self.require_alive(&state)?;
            match self.progress(&state, awaited, &mut needed_since, timeout) {
                Ok(true) => return Ok(()),
                Ok(false) => drop(state),
                Err(cause) => {
                    let job = state.operations.entry(awaited.slot).job();
                    let failing = Failing::behind(&state, job, cause);
                    return Err(self.fail(state, failing));
                }
            }
            pause.next();
        }
    }

    fn progress(
        &self,
        state: &State,
        awaited: &Awaited,
        needed_since: &mut Option<Instant>,
        timeout: Duration,
    ) -> Result<bool, Cause> {
        let entry = state.operations.entry(awaited.slot);
        if self.is_over(state, entry)? {
            return Ok(true);
        }
        if needed_since.is_none() && (awaited.since)(entry)? {
            *needed_since = Some(Instant::now());
        }
        match needed_since.map(|since| since.elapsed()) {
            Some(waited) if waited > timeout => Err(Cause::Deadline { line: None, waited }),
            _ => Ok(false),
        }
    }

    /// Closes all communicators in order, when all ranks do.
    pub(super) fn close(&self, deadline: Instant) -> Result<(), Error> {
        let mut state = self.lock();
        self.require_alive(&state)?;
        state.die("it was closed");
        let mut lines = std::mem::take(&mut state.lines).into_iter();
        let failed = |name, text| Error::Nccl {
            operation: "ncclCommFinalize".to_owned(),
            group: name,
            position: None,
            rank: self.rank,
            text,
            peers: Vec::new(),
        };
        self.device.bind().map_err(|error| failed(None, error.to_string()))?;
        while let Some(Line { name, communicator, .. }) = lines.next() {
            if let Err(error) = communicator.close(self.until(deadline)) {
                state.is_aborted = true;
                abort_all(lines.map(|line| line.communicator));
                let text = match error {
                    NotReady::Deadline => "a peer does not close its end".to_owned(),
                    NotReady::Failed(status) => format!("{status:?}"),
                };
                return Err(self.stopped().unwrap_or_else(|| failed(name, text)));
            }
        }
        Ok(())
    }

    /// Rejects operations from here on; stops those in flight, and waits of other threads.
    pub(super) fn stop(&self, reason: &str) {
        let reason = self.stopped.get_or_init(|| reason.into());
        let mut state = self.lock();
        state.die(reason);
        state.abort();
    }

    pub(super) fn is_aborted(&self) -> bool {
        self.lock().is_aborted
    }
}

/// Number of joined operations that may be in flight behind an unfinished one.
///
/// A stream takes about a thousand entries; then the host blocks, without a deadline, in the next
/// call that starts something. Whole layers are started behind a gather of weights, and behind a
/// reduce-scatter of gradients whose window is used again; a few kernels behind an all-reduce.
fn ahead_max(operation: Operation) -> usize {
    match operation {
        Operation::AllGather | Operation::ReduceScatterSum => 1,
        _ => 64,
    }
}
