//! The backend: operations on a device's memory go to NCCL, all others to the host's backend.
#![allow(unsafe_code)]

use std::sync::Arc;
use std::time::{Duration, Instant};

use device::cuda::{Cuda, Libraries, Required};
use device::{Allocator, Keeper, Place};

use super::group::Group;
use super::operations::Operations;
use super::queue::DeviceQueue;
use super::route::Route;
use super::{NAME, opening};
use crate::core::outstanding::Job;
use crate::{
    BackendMemory, Channel, Collective, Dimensions, Error, GridPlan, GroupPlan, Incoming, Message,
    Operation, RawBuffer, Settled, Ticket, Timing,
};

/// Group of ranks, each with a CUDA device.
///
/// Sums, gathers, broadcasts and messages in the memory of devices are NCCL's, on the data channel.
/// They run on a stream of their own, after the work that the compute stream had before. Everything
/// else (control messages, buffers of the host) is the host's backend's.
///
/// All groups of a rank share this stream, in which operations have the order of their submission.
/// Operations on devices must have the same order on all ranks, also between groups: one thread per
/// rank submits them. A group is opened by all of its ranks at the same time,
/// and waits for them.
///
/// NCCL adds in an order of its own choice, which does not depend on timing.
///
/// The first operation of a kind may block while NCCL connects the ranks: see
/// [`connect`](Collective::connect).
///
/// After a failure in any group all communicators are aborted, and the host's backend may be dead
/// as well. Then the outcome of no operation is known any more, also not of those that were
/// complete.
#[derive(Debug)]
pub struct Nccl {
    queue: Arc<DeviceQueue>,
    group: Arc<Group>,
    /// The group's index in the queue.
    index: u16,
    library: Arc<str>,
    /// This is what was opened first, and not one of its groups.
    is_world: bool,
}

impl Nccl {
    /// Environment variable that, set to 1, makes NCCL from 2.26 on launch the operations of all
    /// communicators of a device in the order of the host's calls. NCCL reads it at its first call.
    pub const LAUNCH_ORDER: &str = "NCCL_LAUNCH_ORDER_IMPLICIT";

    /// Connects this rank's device with those of all others. All ranks call this at the same time.
    /// No operation takes longer than `timeout` to be started. `control`, the host's backend, is
    /// closed after this.
    ///
    /// # Errors
    /// [`Error::Start`] when NCCL is missing somewhere or does not work; [`Error::OpenDeadline`]
    /// when not all ranks are connected in time; those of `control`.
    pub fn open(control: &dyn Collective, device: &Cuda, timeout: Duration) -> Result<Self, Error> {
        Self::open_as(control, device, timeout, Group::flat)
    }

    /// Opens ranks whose devices communicate in groups only: nothing connects all of them, which
    /// saves a communicator's memory. All ranks call this at the same time.
    ///
    /// # Errors
    /// Those of [`open`](Self::open).
    pub fn open_for_groups(
        control: &dyn Collective,
        device: &Cuda,
        timeout: Duration,
    ) -> Result<Self, Error> {
        Self::open_as(control, device, timeout, |control, _| Ok(Group::without_lines(control)))
    }

    fn open_as(
        control: &dyn Collective,
        device: &Cuda,
        timeout: Duration,
        group: impl FnOnce(Arc<dyn Collective>, &DeviceQueue) -> Result<Group, Error>,
    ) -> Result<Self, Error> {
        let library = describe(control).into();
        let control = owned(control)?;
        let rank = Group::without_lines(control.clone()).membership.world_rank();
        let queue = Arc::new(DeviceQueue::new(device, timeout, rank)?);
        let group = Arc::new(group(control, &queue)?);
        let index = queue.add_group(group.clone());
        Ok(Self { queue, group, index, library, is_world: true })
    }

    /// This rank's end of a group.
    fn open_group(
        &self,
        open: impl FnOnce(&DeviceQueue) -> Result<Group, Error>,
    ) -> Result<Self, Error> {
        let Self { queue, library, .. } = self;
        let alive = queue.require_alive(&queue.lock());
        alive?;
        let group = Arc::new(open(queue)?);
        Ok(Self {
            queue: queue.clone(),
            index: queue.add_group(group.clone()),
            group,
            library: library.clone(),
            is_world: false,
        })
    }

    /// Closes the communicators of all groups in order, when all ranks do. Dropping this without
    /// closing it aborts them. The host's backend is not closed.
    ///
    /// # Errors
    /// [`Error::Dead`] after an earlier failure, or when another thread abandons it meanwhile;
    /// [`Error::Nccl`] when NCCL fails or a rank does not
    /// close its end in time.
    pub fn close(&self, deadline: Instant) -> Result<(), Error> {
        self.queue.close(deadline)
    }

    /// Refuses what NCCL is not used for.
    fn require_supported(
        &self,
        channel: Channel,
        operation: Operation,
        buffer: RawBuffer,
    ) -> Result<(), Error> {
        let place = buffer.place();
        let device = &self.queue.device;
        let unsupported = |text: String| Err(Error::Unsupported { operation, text });
        if place != (Place::Cuda { ordinal: device.ordinal() }) {
            return unsupported(format!("in {place:?} on {device:?}"));
        }
        if channel != Channel::Data {
            return unsupported(format!("in {place:?} on the control channel"));
        }
        if self.group.route.lines().next().is_none() {
            return unsupported(format!("in {place:?} in a group that was opened without it"));
        }
        match operation {
            Operation::AllReduceSum
            | Operation::ReduceScatterSum
            | Operation::AllGather
            | Operation::Broadcast { .. } => operation.validate(buffer, &self.group.membership),
            Operation::Send { .. } | Operation::Receive { .. } => match self.group.route {
                Route::Grid { .. } => unsupported(format!("in {place:?} in a grid")),
                _ => operation.validate(buffer, &self.group.membership),
            },
            Operation::Barrier | Operation::Messages => unsupported(format!("in {place:?}")),
        }
    }
}

/// An end of the same ranks that lives as long as the caller likes.
fn owned(control: &dyn Collective) -> Result<Arc<dyn Collective>, Error> {
    let all = || GroupPlan { dimension: "world", number: 1, ranks: (0..control.world()).collect() };
    let plan = control.group().unwrap_or_else(|| Arc::new(all()));
    Ok(control.subgroup(&plan)?.into())
}

/// NCCL's version, and what carries control messages.
fn describe(control: &dyn Collective) -> String {
    let libraries = Libraries::open(&Required { nccl: true, ..Required::NONE });
    let version = libraries.ok().and_then(|libraries| Some(libraries.nccl()?.version_text()));
    let version = version.unwrap_or_else(|| "of unknown version".to_owned());
    let control = control.library().unwrap_or_else(|| control.backend().to_owned());
    format!("NCCL {version}; control messages: {control}")
}

impl Drop for Nccl {
    fn drop(&mut self) {
        if self.is_world {
            self.queue.stop("it was dropped");
        }
    }
}

// SAFETY: NCCL uses a buffer only on the communication stream, between two events. `wait` returns
// after the second, and `join` makes the compute stream wait for it. Once aborted the memory is at
// risk for ever: peers that have not aborted may still write to it. Everything else is the host's
// backend's.
unsafe impl Collective for Nccl {
    fn rank(&self) -> usize {
        self.group.membership.member
    }

    fn world(&self) -> usize {
        self.group.membership.size()
    }

    /// Waits for the other members, unlike that of other backends.
    fn subgroup(&self, plan: &GroupPlan) -> Result<Box<dyn Collective>, Error> {
        let control = self.group.control.subgroup(plan)?;
        Ok(Box::new(self.open_group(|queue| Group::flat(control.into(), queue))?))
    }

    /// Waits for the other ranks, unlike that of other backends.
    fn grid(&self, plan: &GridPlan) -> Result<Box<dyn Collective>, Error> {
        let control = self.group.control.grid(plan)?.into();
        let open = |queue: &DeviceQueue| match plan.staged() {
            Some(plan) => Group::grid(control, &plan, queue),
            None => Group::flat(control, queue),
        };
        Ok(Box::new(self.open_group(open)?))
    }

    fn dimensions(&self) -> Dimensions {
        self.group.membership.dimensions()
    }

    fn group(&self) -> Option<Arc<GroupPlan>> {
        self.group.membership.named()
    }

    fn backend(&self) -> &'static str {
        NAME
    }

    fn library(&self) -> Option<String> {
        Some(self.library.to_string())
    }

    fn warning(&self) -> Option<String> {
        self.queue.warning.get().cloned()
    }

    fn allocate(&self, bytes: usize, deadline: Instant) -> Result<Option<BackendMemory>, Error> {
        self.group.control.allocate(bytes, deadline)
    }

    fn register(&self, buffer: RawBuffer, keeper: Keeper) {
        self.queue.register(self.group.route, buffer, &keeper);
    }

    /// NCCL connects the ranks, and allocates memory, when it first runs an operation of a kind and
    /// size: after this, what the device has free is known, and no later connection waits for an
    /// operation in flight.
    fn connect(&self, operations: &[Operation], bytes: usize) -> Result<(), Error> {
        if operations.is_empty() {
            return Ok(());
        }
        let allocator = Allocator::cuda(&self.queue.device);
        let part_len = bytes.div_ceil(self.world() * size_of::<f32>());
        let memory = allocator.zeros::<f32>(part_len * self.world());
        allocator.outcome().map_err(opening::start)?;
        let all = 0..memory.len();
        let mut memory = Incoming::new(self, memory);
        for &operation in operations {
            let deadline = Instant::now() + self.queue.timeout;
            let started = memory.start(operation, all.clone());
            let joined = started.and_then(|()| memory.wait(&all, deadline, |_| {}));
            let settled = joined.and_then(|()| self.settle(self.queue.timeout, &mut |_| {}));
            settled.map_err(|error| match error {
                Error::Nccl { .. } => opening::start(error),
                error => error,
            })?;
        }
        Ok(())
    }

    fn timeout(&self) -> Duration {
        self.queue.timeout
    }

    unsafe fn submit(
        &self,
        channel: Channel,
        operation: Operation,
        buffer: RawBuffer,
    ) -> Result<Ticket, Error> {
        if buffer.place() == Place::Host {
            self.queue.require_alive(&self.queue.lock())?;
            // SAFETY: the caller's promise.
            return unsafe { self.group.control.submit(channel, operation, buffer) };
        }
        self.require_supported(channel, operation, buffer)?;
        let job = Job { group: self.index, ..Job::new(channel, operation, buffer) };
        // SAFETY: the caller's promise.
        unsafe { self.queue.submit(job, self.group.route) }
    }

    /// Messages are all in the host's memory or all in that of the device.
    unsafe fn submit_group(&self, channel: Channel, messages: &[Message]) -> Result<Ticket, Error> {
        if messages.iter().all(|message| message.buffer.place() == Place::Host) {
            self.queue.require_alive(&self.queue.lock())?;
            // SAFETY: the caller's promise.
            return unsafe { self.group.control.submit_group(channel, messages) };
        }
        for message in messages {
            message.validate(&self.group.membership)?;
            self.require_supported(channel, message.operation, message.buffer)?;
        }
        let job = Job { group: self.index, ..Job::of_messages(channel, messages) };
        let line = self.group.route.lines().next().unwrap_or_default();
        // SAFETY: the caller's promise.
        unsafe { self.queue.submit_group(job, line, messages) }
    }

    fn wait(&self, ticket: Ticket, deadline: Instant) -> Result<Timing, Error> {
        match Operations::has_issued(&ticket) {
            true => self.queue.wait(&ticket, deadline),
            false => self.group.control.wait(ticket, deadline),
        }
    }

    fn join(&self, ticket: Ticket, deadline: Instant) -> Result<Option<Timing>, Error> {
        match Operations::has_issued(&ticket) {
            true => self.queue.join(&ticket).map(|()| None),
            false => self.group.control.join(ticket, deadline),
        }
    }

    fn settle(&self, timeout: Duration, report: &mut dyn FnMut(Settled)) -> Result<(), Error> {
        self.queue.settle(timeout, report)
    }

    fn memory_at_risk(&self) -> bool {
        self.queue.is_aborted() || self.group.control.memory_at_risk()
    }

    fn abandon(&self, reason: &str) {
        self.queue.stop(reason);
        self.group.control.abandon(reason);
    }
}
