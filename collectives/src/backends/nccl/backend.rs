//! The backend: operations on a device's memory go to NCCL, all others to the host's backend.
#![allow(unsafe_code)]

use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use device::cuda::nccl::Status;
use device::cuda::{self, Cuda, Libraries, Required, Stream};
use device::{Allocator, Keeper, Place};

use super::NAME;
use super::communicator::{Communicator, NotReady, Pause};
use super::device_clock::DeviceClock;
use super::operations::{Entry, Operations};
use super::{opening, roll_call};
use crate::core::group::Membership;
use crate::core::outstanding::Job;
use crate::{
    BackendMemory, Channel, Collective, Error, GroupPlan, Incoming, OUTSTANDING_MAX, Operation,
    Position, RawBuffer, Settled, Ticket, Timing,
};

/// Group of ranks, each with a CUDA device.
///
/// Sums and gathers on the memory of devices are NCCL's, on the data channel. They run on a stream
/// of their own, after the work that the compute stream had before. Everything else (control
/// messages, buffers of the host) is `control`'s.
///
/// NCCL adds in an order of its own choice, which does not depend on timing.
///
/// The first operation of a kind may block while NCCL connects the ranks.
///
/// After a failure the communicator is aborted, and `control` may be dead as well. Then the
/// outcome of no operation is known any more, also not of those that were complete.
#[derive(Debug)]
pub struct Nccl<'world> {
    control: &'world dyn Collective,
    membership: Membership,
    device: Cuda,
    /// The communication stream.
    stream: Arc<Stream>,
    timeout: Duration,
    library: String,
    warning: OnceLock<String>,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    /// Present until it is closed or aborted.
    communicator: Option<Communicator>,
    operations: Operations,
    clock: DeviceClock,
    /// Reason why no operation is accepted any more.
    dead: Option<Arc<str>>,
    /// The communicator was aborted: peers that have not done so may write to this rank's memory.
    is_aborted: bool,
}

impl State {
    fn die(&mut self, reason: &str) {
        self.dead.get_or_insert_with(|| reason.into());
    }

    /// Stops operations in flight.
    fn abort(&mut self) {
        if let Some(communicator) = self.communicator.take() {
            self.is_aborted = true;
            communicator.abort();
        }
    }
}

/// Cause of a failed operation.
#[derive(Debug)]
enum Cause {
    Deadline { waited: Duration },
    Status(Status),
    Device(cuda::Error),
}

impl From<cuda::Error> for Cause {
    fn from(error: cuda::Error) -> Self {
        Self::Device(error)
    }
}

/// An operation that fails.
struct Failing {
    job: Job,
    position: Option<Position>,
    cause: Cause,
}

impl Failing {
    fn new(job: Job, cause: impl Into<Cause>) -> Self {
        Self { job, position: None, cause: cause.into() }
    }
}

/// An operation that the host waits for.
struct Awaited {
    slot: usize,
    position: Option<Position>,
    /// Returns whether its time counts: before that, the device computes preceding work.
    since: fn(&Entry) -> Result<bool, cuda::Error>,
}

impl<'world> Nccl<'world> {
    /// Connects this rank's device with those of all others. All ranks call this at the same time.
    /// No operation takes longer than `timeout` to be started.
    ///
    /// # Errors
    /// [`Error::Start`] when NCCL is missing somewhere or does not work; [`Error::OpenDeadline`]
    /// when not all ranks are connected in time; those of `control`.
    pub fn open(
        control: &'world dyn Collective,
        device: &Cuda,
        timeout: Duration,
    ) -> Result<Self, Error> {
        let communicator = opening::open(control, device, timeout)?;
        let state = State {
            communicator: Some(communicator),
            operations: Operations::new(device),
            clock: DeviceClock::new(device).map_err(opening::start)?,
            dead: None,
            is_aborted: false,
        };
        Ok(Self {
            control,
            membership: Membership::of(control),
            device: device.clone(),
            stream: device.new_urgent_stream().map_err(opening::start)?,
            timeout,
            library: describe(control),
            warning: OnceLock::new(),
            state: Mutex::new(state),
        })
    }

    /// Runs operations once, on so much memory, which is freed again. NCCL connects the ranks, and
    /// allocates memory, when it first runs an operation of a kind and size: after this, what the
    /// device has free is known. All ranks call it at the same time.
    ///
    /// # Errors
    /// [`Error::Start`] when NCCL cannot; [`Error::Deadline`] and [`Error::PeerLost`] as any
    /// operation.
    pub fn connect(&self, operations: &[Operation], bytes: usize) -> Result<(), Error> {
        let allocator = Allocator::cuda(&self.device);
        let part_len = bytes.div_ceil(self.world() * size_of::<f32>());
        let memory = allocator.zeros::<f32>(part_len * self.world());
        allocator.outcome().map_err(opening::start)?;
        let all = 0..memory.len();
        let mut memory = Incoming::new(self, memory);
        for &operation in operations {
            let deadline = Instant::now() + self.timeout;
            let started = memory.start(operation, all.clone());
            let joined = started.and_then(|()| memory.wait(&all, deadline, |_| {}));
            let settled = joined.and_then(|()| self.settle(self.timeout, &mut |_| {}));
            settled.map_err(|error| match error {
                Error::Nccl { text, .. } => opening::start(text),
                error => error,
            })?;
        }
        Ok(())
    }

    /// Closes the communicator in order, when all ranks do. Dropping this without closing it aborts
    /// the communicator. `control` is not closed.
    ///
    /// # Errors
    /// [`Error::Dead`] after an earlier failure; [`Error::Nccl`] when NCCL fails or a rank does not
    /// close its end in time.
    pub fn close(self, deadline: Instant) -> Result<(), Error> {
        let mut state = self.lock();
        self.require_alive(&state)?;
        state.die("it was closed");
        let Some(communicator) = state.communicator.take() else { return Ok(()) };
        let failed = |text: String| Error::Nccl {
            operation: "ncclCommFinalize".to_owned(),
            position: None,
            rank: self.membership.world_rank(),
            text,
            peers: Vec::new(),
        };
        self.device.bind().map_err(|error| failed(error.to_string()))?;
        communicator.close(deadline).map_err(|error| {
            state.is_aborted = true;
            failed(match error {
                NotReady::Deadline => "a peer does not close its end".to_owned(),
                NotReady::Failed(status) => format!("{status:?}"),
            })
        })
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn require_alive(&self, state: &State) -> Result<(), Error> {
        match &state.dead {
            Some(reason) => Err(self.dead(reason.clone())),
            None => Ok(()),
        }
    }

    fn dead(&self, reason: Arc<str>) -> Error {
        Error::Dead { backend: NAME, rank: self.membership.world_rank(), reason }
    }

    /// Refuses what NCCL is not used for.
    fn require_supported(
        &self,
        channel: Channel,
        operation: Operation,
        buffer: RawBuffer,
    ) -> Result<(), Error> {
        let place = buffer.place();
        let unsupported = |text: String| Err(Error::Unsupported { operation, text });
        if place != (Place::Cuda { ordinal: self.device.ordinal() }) {
            return unsupported(format!("in {place:?} on {:?}", self.device));
        }
        if channel != Channel::Data {
            return unsupported(format!("in {place:?} on the control channel"));
        }
        match operation {
            Operation::AllReduceSum | Operation::ReduceScatterSum | Operation::AllGather => {
                operation.validate(buffer, &self.membership)
            }
            _ => unsupported(format!("in {place:?}")),
        }
    }

    /// Submits an operation to the device, behind the computation so far.
    ///
    /// # Safety
    /// The caller upholds the contract of [`Collective::submit`].
    unsafe fn start(&self, state: &State, ticket: &Ticket) -> Result<(), Cause> {
        let entry = state.operations.of(ticket);
        let Job { operation, buffer, .. } = entry.job();
        entry.order_start(self.device.compute(), &self.stream)?;
        if !buffer.is_empty()
            && let Some(communicator) = &state.communicator
        {
            self.device.bind()?;
            // SAFETY: the caller's promise.
            let launched = unsafe { communicator.launch(operation, buffer, &self.stream) };
            let ready = communicator.await_ready(launched, Instant::now() + self.timeout);
            ready.map_err(|error| match error {
                NotReady::Deadline => Cause::Deadline { waited: self.timeout },
                NotReady::Failed(status) => Cause::Status(status),
            })?;
        }
        Ok(entry.record_end(&self.stream)?)
    }

    /// Returns whether an operation is over; an error that NCCL reports meanwhile is returned.
    fn is_over(&self, state: &State, entry: &Entry) -> Result<bool, Cause> {
        if entry.is_over()? {
            return Ok(true);
        }
        self.device.bind()?;
        match state.communicator.as_ref().map_or(Status::SUCCESS, Communicator::state) {
            Status::SUCCESS | Status::IN_PROGRESS => Ok(false),
            failed => Err(Cause::Status(failed)),
        }
    }

    /// Waits for one of the joined operations. Its time counts from where the device needs it.
    fn await_joined(&self, index: usize, timeout: Duration) -> Result<(), Error> {
        let (slot, position) = {
            let operations = &self.lock().operations;
            (operations.joined_slot(index), operations.position(index))
        };
        self.await_over(
            Awaited { slot, position: Some(position), since: Entry::is_waited_for },
            timeout,
        )
    }

    /// Waits until the communication stream has room for one more operation.
    fn await_room(&self) -> Result<(), Error> {
        while let Some(slot) = { self.lock().operations.oldest_blocking() } {
            let awaited = Awaited { slot, position: None, since: Entry::is_ready };
            self.await_over(awaited, self.timeout)?;
            self.lock().operations.forget(slot);
        }
        Ok(())
    }

    fn await_over(&self, awaited: Awaited, timeout: Duration) -> Result<(), Error> {
        let mut needed_since = None;
        let mut pause = Pause::default();
        loop {
            let state = self.lock();
            self.require_alive(&state)?;
            match self.progress(&state, &awaited, &mut needed_since, timeout) {
                Ok(true) => return Ok(()),
                Ok(false) => drop(state),
                Err(cause) => {
                    let job = state.operations.entry(awaited.slot).job();
                    let position = awaited.position;
                    return Err(self.fail(state, Failing { job, position, cause }));
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
            Some(waited) if waited > timeout => Err(Cause::Deadline { waited }),
            _ => Ok(false),
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

    /// Kills the backend, and returns the error to report.
    fn fail(&self, mut state: MutexGuard<'_, State>, failing: Failing) -> Error {
        let Failing { job, position, cause } = failing;
        let operation = job.operation.in_world(&self.membership.plan.ranks);
        let rank = self.membership.world_rank();
        let text = match (&cause, &state.communicator) {
            (Cause::Deadline { .. }, _) => "it was not over in time".to_owned(),
            (Cause::Device(error), _) => error.to_string(),
            (Cause::Status(status), Some(communicator)) => communicator.failure(*status),
            (Cause::Status(status), None) => format!("{status:?}"),
        };
        state.die(&format!("{operation}: {text}"));
        drop(state);
        if let Cause::Device(error) = cause {
            self.lock().abort();
            return Error::Device { operation, rank, source: Box::new(error) };
        }
        // Before the abort, which takes a second on some ranks and nothing on others.
        let peers = roll_call::silent_peers(self.control);
        let peers = peers.into_iter().map(|peer| self.membership.plan.ranks[peer]).collect();
        let group = self.membership.named();
        self.lock().abort();
        match cause {
            Cause::Deadline { waited } => Error::Deadline {
                operation,
                group,
                position,
                rank,
                waited,
                bytes: job.buffer.bytes(),
                backend: NAME,
                peers,
            },
            Cause::Status(Status::REMOTE_ERROR) => {
                Error::PeerLost { operation, group, position, rank, text, peers }
            }
            _ => Error::Nccl { operation: operation.to_string(), position, rank, text, peers },
        }
    }

    /// Rejects operations from here on; stops those in flight.
    fn stop(&self, reason: &str) {
        let mut state = self.lock();
        state.die(reason);
        state.abort();
    }
}

/// Number of joined operations that may be in flight behind an unfinished one.
///
/// A stream takes about a thousand entries; then the host blocks, without a deadline, in the next
/// call that starts something. Behind a gather of weights whole layers are started, behind a
/// reduction of gradients a few kernels.
fn ahead_max(operation: Operation) -> usize {
    match operation {
        Operation::AllGather => 1,
        _ => 64,
    }
}

/// NCCL's version, and what carries control messages.
fn describe(control: &dyn Collective) -> String {
    let libraries = Libraries::open(&Required { nccl: true, ..Required::NONE });
    let version = libraries.ok().and_then(|libraries| Some(libraries.nccl()?.version_text()));
    let version = version.unwrap_or_else(|| "of unknown version".to_owned());
    let control = control.library().unwrap_or_else(|| control.backend().to_owned());
    format!("NCCL {version}; control messages: {control}")
}

impl Drop for Nccl<'_> {
    fn drop(&mut self) {
        self.stop("it was dropped");
    }
}

// SAFETY: NCCL uses a buffer only on the communication stream, between two events. `wait` returns
// after the second, and `join` makes the compute stream wait for it. Once aborted the memory is at
// risk for ever: peers that have not aborted may still write to it. Everything else is `control`'s.
unsafe impl Collective for Nccl<'_> {
    fn rank(&self) -> usize {
        self.control.rank()
    }

    fn world(&self) -> usize {
        self.control.world()
    }

    fn group(&self) -> Option<Arc<GroupPlan>> {
        self.membership.named()
    }

    fn backend(&self) -> &'static str {
        NAME
    }

    fn library(&self) -> Option<String> {
        Some(self.library.clone())
    }

    fn warning(&self) -> Option<String> {
        self.warning.get().cloned()
    }

    fn allocate(&self, bytes: usize, deadline: Instant) -> Result<Option<BackendMemory>, Error> {
        self.control.allocate(bytes, deadline)
    }

    fn register(&self, buffer: RawBuffer, keeper: Keeper) {
        let mut state = self.lock();
        let Some(communicator) = &mut state.communicator else { return };
        let current = self.device.bind().map_err(|error| error.to_string());
        if let Err(text) = current.and_then(|()| communicator.register(buffer, keeper)) {
            let text = format!("NCCL does not register a buffer, and copies it instead: {text}");
            let _ = self.warning.set(text); // the first stays
        }
    }

    fn timeout(&self) -> Duration {
        self.timeout
    }

    unsafe fn submit(
        &self,
        channel: Channel,
        operation: Operation,
        buffer: RawBuffer,
    ) -> Result<Ticket, Error> {
        if buffer.place() == Place::Host {
            self.require_alive(&self.lock())?;
            // SAFETY: the caller's promise.
            return unsafe { self.control.submit(channel, operation, buffer) };
        }
        self.require_supported(channel, operation, buffer)?;
        self.await_room()?;
        let mut state = self.lock();
        self.require_alive(&state)?;
        let job = Job::new(channel, operation, buffer);
        let rank = self.membership.world_rank();
        let ticket = match state.operations.insert(job) {
            Ok(Some(ticket)) => ticket,
            Ok(None) => return Err(Error::Full { operation, rank, capacity: OUTSTANDING_MAX }),
            Err(error) => return Err(self.fail(state, Failing::new(job, error))),
        };
        // SAFETY: the caller's promise.
        match unsafe { self.start(&state, &ticket) } {
            Ok(()) => Ok(ticket),
            Err(cause) => Err(self.fail(state, Failing::new(job, cause))),
        }
    }

    fn wait(&self, ticket: Ticket, deadline: Instant) -> Result<Timing, Error> {
        if !Operations::has_issued(&ticket) {
            return self.control.wait(ticket, deadline);
        }
        let mut pause = Pause::default();
        loop {
            let state = self.lock();
            self.require_alive(&state)?;
            let entry = state.operations.of(&ticket);
            let job = entry.job();
            let cause = match self.is_over(&state, entry) {
                Ok(true) => return self.finish(state, &ticket),
                Ok(false) if Instant::now() < deadline => None,
                Ok(false) => Some(Cause::Deadline { waited: job.submitted.elapsed() }),
                Err(cause) => Some(cause),
            };
            if let Some(cause) = cause {
                return Err(self.fail(state, Failing::new(job, cause)));
            }
            drop(state);
            pause.next();
        }
    }

    fn join(&self, ticket: Ticket, deadline: Instant) -> Result<Option<Timing>, Error> {
        if !Operations::has_issued(&ticket) {
            return self.control.join(ticket, deadline);
        }
        let mut state = self.lock();
        self.require_alive(&state)?;
        let entry = state.operations.of(&ticket);
        let job = entry.job();
        if let Err(error) = entry.join(self.device.compute()) {
            return Err(self.fail(state, Failing::new(job, error)));
        }
        state.operations.add_joined(&ticket);
        let before = state.operations.joined_len().checked_sub(1 + ahead_max(job.operation));
        drop(state);
        if let Some(before) = before {
            self.await_joined(before, self.timeout)?;
        }
        Ok(None)
    }

    fn settle(&self, timeout: Duration, report: &mut dyn FnMut(Settled)) -> Result<(), Error> {
        let joined = self.lock().operations.joined_len();
        if joined == 0 {
            return Ok(());
        }
        for index in 0..joined {
            self.await_joined(index, timeout)?;
        }
        let mut state = self.lock();
        self.require_alive(&state)?;
        let State { operations, clock, .. } = &mut *state;
        let job = operations.joined(0).job();
        let settled = clock.now().and_then(|now| operations.settle(&now, report));
        settled.map_err(|error| self.fail(state, Failing::new(job, error)))
    }

    fn memory_at_risk(&self) -> bool {
        self.lock().is_aborted || self.control.memory_at_risk()
    }

    fn abandon(&self, reason: &str) {
        self.stop(reason);
        self.control.abandon(reason);
    }
}
